package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/gateway"
)

var update = flag.Bool("update", false, "rewrite the table in docs/failure-modes.md")

const failureModes = "../../docs/failure-modes.md"

// closedRoutes fail closed, as what package gateway writes does; openRoutes have
// failure_mode_allow on.
func closedRoutes() []route {
	return []route{
		{name: "override-host"},
		{name: "original-dst", cluster: originalDst},
		{name: "request BUFFERED", request: buffered},
		{name: endShown, response: endOfResponse},
		{name: "response NONE+SKIP", response: responseHeaders},
		{name: "response headers SKIP", response: noResponse},
	}
}

// endShown is the route whose gateway shows the end of a response by that of the
// stream alone.
const endShown = "response NONE+SEND"

func openRoutes() []route {
	routes := []route{
		{name: "open override-host"},
		{name: "open original-dst", cluster: originalDst},
		{name: "open any-host", cluster: anyHost},
		{name: "open any-host, request BUFFERED", cluster: anyHost, request: buffered},
		{name: "open any-host, response NONE+SKIP", cluster: anyHost, response: responseHeaders},
	}
	for i := range routes {
		routes[i].edit = func(l tree) { externalProcessor(l)["failure_mode_allow"] = true }
	}
	return routes
}

func everyRoute() []route { return append(closedRoutes(), openRoutes()...) }

// patience is how a variant of each route differs in what it waits for.
const (
	// impatient routes wait for the picker's messages for 0.3 s, and 1.5 s for
	// any byte.
	impatient = ", impatient"
	// timed routes give a whole response 2 s.
	timed = ", timed"
	// retrying routes try one fallback.
	retrying = "override-host, one fallback"
)

// variants adds what routes are like with less patience.
func variants(routes []route) []route {
	with := func(r route, suffix string, edit func(tree)) route {
		before := r.edit
		r.name += suffix
		r.edit = func(l tree) {
			if before != nil {
				before(l)
			}
			edit(l)
		}
		return r
	}
	var all []route
	for _, r := range routes {
		all = append(all,
			with(r, "", func(l tree) { externalProcessor(l)["message_timeout"] = "60s" }),
			with(r, impatient, func(l tree) {
				externalProcessor(l)["message_timeout"] = "0.3s"
				connectionManager(l)["stream_idle_timeout"] = "1.5s"
			}),
			with(r, timed, func(l tree) { routeTo(l)["timeout"] = "2s" }))
	}
	return all
}

// retryingRoute is the route that gateways with one fallback have.
func retryingRoute(t *testing.T) route {
	t.Helper()
	text, err := gateway.Bootstrap(gateway.Options{
		ListenAddress: "127.0.0.1:0", PickerAddress: "127.0.0.1:1", EndpointsFile: "/unused.yaml", Fallbacks: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	var bootstrap tree
	if err := yaml.Unmarshal(text, &bootstrap); err != nil {
		t.Fatal(err)
	}
	routes := connectionManager(listener(bootstrap))["route_config"]
	return route{name: retrying, edit: func(l tree) { connectionManager(l)["route_config"] = routes }}
}

// A rig is a fleet in which everything can fail: a picker of its own process,
// replicas that follow a script, and every route.
type rig struct {
	*fleet
	gate     gate
	replicas []*scriptedReplica
	// dead refuses connections; stranger is known to the picker alone.
	dead     string
	stranger *scriptedReplica
	table    table
}

func startRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{dead: closedPort(t)}
	for _, name := range []string{"e1", "e2"} {
		g.replicas = append(g.replicas, newScriptedReplica(t, name, &g.gate))
	}
	g.stranger = newScriptedReplica(t, "stranger", &g.gate)
	g.fleet = start(t, spec{
		binary:    buildPicker(t),
		unscraped: true,
		berth:     tree{"limits": tree{"uploadIdle": "1m", "drain": "1m"}},
		members: func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			return []v1alpha1.StaticEndpoint{
				member("e1", g.replicas[0].address), member("e2", g.replicas[1].address), member("dead", g.dead),
			}
		},
		envoy: func(bootstrap tree) {
			subsetFromHeader(bootstrap)
			addClusters(t, bootstrap)
			onlyHosts(bootstrap, anyHost, g.replicas[0].address, g.replicas[1].address)
			addRoutes(t, bootstrap, variants(closedRoutes())...)
			addRoutes(t, bootstrap, variants(openRoutes())...)
			addRoutes(t, bootstrap, retryingRoute(t))
		},
	})
	g.writePool(append(g.members, member("stranger", g.stranger.address)))
	eventually(t, "the picker knows the stranger", func() bool { return g.replica("stranger") != nil })
	return g
}

// An exchange is one request and what its client saw.
type exchange struct {
	// route is what it is called in the table; body is whether it has one.
	route string
	body  bool
	id    string

	leave  context.CancelFunc
	left   bool
	upload *io.PipeWriter
	// began is closed when a part of a response body has come, ended at the end.
	began, ended chan struct{}

	// These may be read after the end.
	status int
	header http.Header
	broke  error
}

// An ask is what varies between exchanges.
type ask struct {
	do       string
	patience string
	// subset is who may serve; empty is the live replicas.
	subset string
	// headers is how many more headers it has; large is the size of its body.
	headers int
	large   int
	// unfinished requests stop in the middle of their body.
	unfinished bool
}

func (g *rig) live() string { return g.replicas[0].address + "," + g.replicas[1].address }

// send sends one request and returns at once.
func (g *rig) send(r string, body bool, a ask) *exchange {
	g.t.Helper()
	x := &exchange{
		route: r, body: body, id: fmt.Sprintf("x%d", g.table.next()),
		began: make(chan struct{}), ended: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	x.leave = cancel
	method, content := http.MethodGet, ""
	if body {
		method, content = http.MethodPost, asks(1)
	}
	if a.large > 0 {
		content = string(padded(a.large))
	}
	req := g.through(g.t, r+a.patience).request(ctx, method, completions, content)
	if a.unfinished {
		var read *io.PipeReader
		read, x.upload = io.Pipe()
		req.Body, req.ContentLength = read, -1
		go func() { _, _ = io.WriteString(x.upload, content[:len(content)/2]) }()
	}
	subset := a.subset
	if subset == "" {
		subset = g.live()
	}
	req.Header.Set("X-Request-Id", x.id)
	req.Header.Set("X-Test-Do", a.do)
	req.Header.Set("X-Test-Subset", subset)
	for i := range a.headers {
		req.Header.Set(fmt.Sprintf("X-Test-%d", i), "1")
	}
	go func() {
		defer close(x.ended)
		resp, err := g.h1.Do(req)
		if err != nil {
			x.broke = err
			return
		}
		defer func() { _ = resp.Body.Close() }()
		x.status, x.header = resp.StatusCode, resp.Header
		n, err := resp.Body.Read(make([]byte, 1))
		if n > 0 {
			close(x.began)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		if !errors.Is(err, io.EOF) {
			x.broke = err
		}
	}()
	return x
}

// sendAll sends one request without a body through each route, and one with.
func (g *rig) sendAll(routes []route, a ask) []*exchange {
	g.t.Helper()
	var all []*exchange
	for _, r := range routes {
		all = append(all, g.send(r.name, true, a))
		if !a.unfinished && a.large == 0 {
			all = append(all, g.send(r.name, false, a))
		}
	}
	return all
}

// arrival is who got the request last, and how.
func (g *rig) arrival(x *exchange) (*scriptedReplica, arrival, bool) {
	var by *scriptedReplica
	var last arrival
	for _, r := range append([]*scriptedReplica{g.stranger}, g.replicas...) {
		if a, ok := r.arrival(x.id); ok && (by == nil || a.began.After(last.began)) {
			by, last = r, a
		}
	}
	return by, last, by != nil
}

func (g *rig) awaitArrival(all []*exchange) {
	g.t.Helper()
	for _, x := range all {
		eventually(g.t, x.route+": a replica has the request", func() bool {
			_, _, ok := g.arrival(x)
			return ok
		})
	}
	g.quiet()
}

func (g *rig) awaitBegin(all []*exchange) {
	g.t.Helper()
	for _, x := range all {
		await(g.t, x.route+": the client has a part of the response", x.began)
	}
	g.quiet()
}

func (g *rig) awaitEnd(all []*exchange) {
	g.t.Helper()
	for _, x := range all {
		await(g.t, x.route+": the client is done", x.ended)
	}
}

// leaveAll has all clients leave.
func (g *rig) leaveAll(all []*exchange) {
	for _, x := range all {
		x.left = true
		x.leave()
		if x.upload != nil {
			_ = x.upload.CloseWithError(context.Canceled)
		}
	}
	g.awaitEnd(all)
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// settled waits until nothing is under way.
func (g *rig) settled() {
	g.t.Helper()
	eventually(g.t, "the gateway asks nothing", func() bool { return g.envoy.asking() == 0 })
	g.awaitInFlight(map[string]int{})
	g.quiet()
}

// awaitAsked waits until the gateway has just these requests at the picker.
func (g *rig) awaitAsked(all []*exchange) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("the gateway has %d requests at the picker", len(all)), func() bool {
		return g.envoy.asking() == len(all)
	})
}

// kill kills the picker; revive starts a new one in its place.
func (g *rig) kill() { g.epp.kill() }

func (g *rig) revive() {
	g.t.Helper()
	g.startProcess(g.extproc)
}

// stop has the picker hang: connections stay, and nothing answers.
func (g *rig) stop() {
	g.t.Helper()
	g.signal(syscall.SIGSTOP)
	// The signal is on its way to each thread.
	threads := fmt.Sprintf("/proc/%d/task", g.epp.cmd.Process.Pid)
	eventually(g.t, "the picker has stopped", func() bool {
		ids, err := os.ReadDir(threads)
		if err != nil {
			return false
		}
		for _, id := range ids {
			stat, err := os.ReadFile(filepath.Join(threads, id.Name(), "stat"))
			if err != nil || !bytes.Contains(stat, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

func (g *rig) signal(s syscall.Signal) {
	g.t.Helper()
	if err := g.epp.cmd.Process.Signal(s); err != nil {
		g.t.Fatal(err)
	}
}

// TestFailureModes makes each part fail in each phase of a request, and compares
// what came of it with the table in docs/failure-modes.md. It repeats what
// triggered the known faults X13 (fail-open that never triggers), X14 (clients
// that leave) and R8 (a picker that ends without an answer).
func TestFailureModes(t *testing.T) {
	g := startRig(t)
	g.nothingFails()
	g.pickerFails()
	g.replicasFail()
	g.clientsLeave()
	g.gatewayFails()
	g.table.compare(t)
}

func (g *rig) nothingFails() {
	all := everyRoute()
	x := g.sendAll(all, ask{do: "answer"})
	g.awaitEnd(x)
	g.settled()
	g.observe("nothing", "the response comes in one piece", x)

	x = g.sendAll(all, ask{do: "slow"})
	g.awaitArrival(x)
	g.gate.letThrough()
	g.awaitBegin(x)
	g.gate.letThrough()
	g.awaitEnd(x)
	g.settled()
	g.observe("nothing", "the response takes a while", x)
}

func (g *rig) pickerFails() {
	all := everyRoute()

	x := g.sendAll(all, ask{do: "answer", subset: ","})
	g.awaitEnd(x)
	g.settled()
	g.observe("picker", "refuses the request", x)

	g.kill()
	x = g.sendAll(all, ask{do: "answer"})
	g.awaitEnd(x)
	g.observe("picker", "is down", x)
	g.revive()

	g.stop()
	x = g.sendAll(all, ask{do: "answer"})
	g.awaitAsked(x)
	g.kill()
	g.awaitEnd(x)
	g.observe("picker", "dies before it answers", x)
	g.revive()

	x = g.sendAll(all, ask{do: "hold"})
	g.awaitArrival(x)
	g.kill()
	g.awaitAsked(nil)
	g.gate.letThrough()
	g.awaitEnd(x)
	g.observe("picker", "dies before the response", x)
	g.revive()

	x = g.sendAll(all, ask{do: "stream"})
	g.awaitBegin(x)
	g.kill()
	g.awaitAsked(nil)
	g.gate.letThrough()
	g.awaitEnd(x)
	g.observe("picker", "dies in mid-response", x)
	g.revive()

	g.stop()
	x = g.sendAll(all, ask{do: "answer", patience: impatient})
	g.awaitEnd(x)
	g.kill() // or it would decide some of them, too late for anyone
	g.observe("picker", "hangs before it answers", x)
	g.revive()

	x = g.sendAll(all, ask{do: "hold", patience: impatient})
	g.awaitArrival(x)
	g.stop()
	g.gate.letThrough()
	g.awaitEnd(x)
	g.kill()
	g.observe("picker", "hangs before the response", x)
	g.revive()

	notices := g.envoy.stat("cluster.picker.upstream_cx_close_notify")
	x = g.sendAll(all, ask{do: "stream"})
	g.awaitBegin(x)
	g.signal(syscall.SIGTERM)
	eventually(g.t, "the gateway was told to open no new stream", func() bool {
		return g.envoy.stat("cluster.picker.upstream_cx_close_notify") > notices && refuses(g.extproc)
	})
	late := g.sendAll(all, ask{do: "answer"})
	g.awaitEnd(late)
	g.gate.letThrough()
	g.awaitEnd(x)
	await(g.t, "the picker has ended", g.epp.ended)
	g.observe("picker", "is told to end (SIGTERM) in mid-response", x)
	g.observe("picker", "is ending", late)
	g.revive()

	x = g.sendAll(all, ask{do: "answer"})
	g.awaitEnd(x)
	g.settled()
	g.observe("picker", "was restarted", x)
}

func (g *rig) replicasFail() {
	closed := closedRoutes()
	for _, tc := range []struct {
		when string
		ask  ask
	}{
		{"refuses the connection", ask{do: "answer", subset: g.dead}},
		{"resets the connection before the response", ask{do: "reset"}},
		{"answers 500", ask{do: "error"}},
		{"sends an error event with status 200", ask{do: "event"}},
	} {
		x := g.sendAll(closed, tc.ask)
		g.awaitEnd(x)
		g.settled()
		g.observe("replica", tc.when, x)
	}

	x := g.sendAll(closed, ask{do: "cut"})
	g.awaitBegin(x)
	g.gate.letThrough()
	g.awaitEnd(x)
	g.settled()
	g.observe("replica", "resets the connection in mid-response", x)

	before := g.sendAll(closed, ask{do: "hold", patience: impatient})
	mid := g.sendAll(closed, ask{do: "stream", patience: impatient})
	g.awaitEnd(before)
	g.awaitEnd(mid)
	g.gate.letThrough()
	g.settled()
	g.observe("replica", "hangs before the response", before)
	g.observe("replica", "hangs in mid-response", mid)
}

func (g *rig) clientsLeave() {
	closed := closedRoutes()

	x := g.sendAll(closed, ask{do: "answer", unfinished: true})
	g.awaitAsked(x)
	g.leaveAll(x)
	g.settled()
	g.observe("client", "leaves in the upload", x)

	x = g.sendAll(closed, ask{do: "hold"})
	g.awaitArrival(x)
	g.leaveAll(x)
	g.settled()
	g.observe("client", "leaves before the response", x)

	x = g.sendAll(closed, ask{do: "stream"})
	g.awaitBegin(x)
	g.leaveAll(x)
	g.settled()
	g.observe("client", "leaves in mid-response", x)
}

func (g *rig) gatewayFails() {
	closed := closedRoutes()

	before := g.sendAll(closed, ask{do: "hold", patience: timed})
	mid := g.sendAll(closed, ask{do: "stream", patience: timed})
	g.awaitEnd(before)
	g.awaitEnd(mid)
	g.gate.letThrough()
	g.settled()
	g.observe("gateway", "gives up before the response (route timeout)", before)
	g.observe("gateway", "gives up in mid-response (route timeout)", mid)

	x := g.sendAll(closed, ask{do: "answer", headers: 201})
	g.awaitEnd(x)
	g.settled()
	g.observe("gateway", "gets more than 200 headers (its limit)", x)

	x = g.sendAll(closed, ask{do: "answer", large: 2 << 20})
	g.awaitEnd(x)
	g.settled()
	g.observe("gateway", "gets a body of 2 MiB (its buffer has 1 MiB)", x)

	x = g.sendAll(everyRoute(), ask{do: "answer", subset: g.stranger.address})
	g.awaitEnd(x)
	g.settled()
	g.observe("gateway", "does not know the pick", x)

	g.reconfigure(tree{"gateway": tree{"onViolation": "refuse", "fallbacks": 0}})
	x = g.sendAll(openRoutes(), ask{do: "answer", subset: g.stranger.address})
	g.awaitEnd(x)
	g.settled()
	g.observe("gateway", "does not know the pick (`onViolation: refuse`)", x)

	g.reconfigure(tree{"gateway": tree{"fallbacks": 1}})
	x = []*exchange{g.send(retrying, true, ask{do: "unavailable"}), g.send(retrying, false, ask{do: "unavailable"})}
	g.awaitEnd(x)
	g.settled()
	g.observe("replica", "answers 503", x)
}

func refuses(address string) bool {
	c, err := net.Dial("tcp", address)
	if err == nil {
		_ = c.Close()
	}
	return err != nil
}

func (g *rig) reconfigure(edits tree) {
	g.t.Helper()
	digest := func() string {
		x := g.send("override-host", false, ask{do: "answer"})
		g.awaitEnd([]*exchange{x})
		return x.header.Get("X-Berth-Policy")
	}
	before := digest()
	g.writeBerth(edits)
	eventually(g.t, "the new configuration is in force", func() bool { return digest() != before })
}

// A table collects what was observed.
type table struct {
	rows []row
	sent int
}

func (t *table) next() int {
	t.sent++
	return t.sent
}

type row struct {
	fails, when, route, request string
	saw                         outcome
}

// An outcome is what came of an exchange, as the table's cells say it.
type outcome struct{ client, reason, server, record, unit string }

// observe notes what came of requests; the picker's records are those of the
// process that had them.
func (g *rig) observe(fails, when string, all []*exchange) {
	g.t.Helper()
	lines := g.accessLog()
	for _, x := range all {
		request := "no body"
		if x.body {
			request = "body"
		}
		g.table.rows = append(g.table.rows, row{fails, when, x.route, request, g.outcome(lines, x)})
	}
}

func (g *rig) outcome(lines []accessLine, x *exchange) outcome {
	g.t.Helper()
	o := outcome{client: strconv.Itoa(x.status), reason: "-", server: "nobody", record: "none", unit: "never taken"}
	switch {
	case x.left:
		o.client = "left"
	case x.status == 0:
		o.client = "connection closed"
	case x.broke != nil:
		o.client += ", cut"
	}

	i := slices.IndexFunc(lines, func(l accessLine) bool { return l.RequestID == x.id })
	if reason := x.header.Get("X-Berth-Reason"); reason != "" {
		o.reason = "`" + reason + "`"
	} else if i >= 0 && lines[i].Details != "via_upstream" {
		details, _, _ := strings.Cut(lines[i].Details, "{")
		o.reason = "`" + details + "`"
	}

	records := g.log.ended(g.t)
	var d *v1alpha1.Decision
	if i := slices.IndexFunc(records, func(d v1alpha1.Decision) bool { return d.Request.RequestID == x.id }); i >= 0 {
		d = &records[i]
	}
	by, arrived, served := g.arrival(x)
	switch {
	case !served:
	case arrived.decision == "":
		o.server = "a replica without a pick"
	case d != nil && slices.Contains(d.Fallbacks, by.name):
		o.server = "a fallback"
	case d != nil && by.name != d.Pick:
		o.server = "another replica"
	default:
		o.server = "the pick"
	}
	switch {
	case d != nil && d.Outcome != nil:
		o.record = cause(x, d, arrived) + ", " + d.Acknowledgement.Acted
		o.unit = returned(d.Outcome.EndedAt, arrived)
	case d != nil:
		o.record = "refused"
	case arrived.decision != "":
		o.unit = "lost with the picker"
	}
	return o
}

// cause is what the record says of the end. Where the end of a response is that of
// its stream, a short one may be over before the picker has answered to its
// headers, or not: then both belong into the table.
func cause(x *exchange, d *v1alpha1.Decision, response arrival) string {
	c := d.Outcome.Cause
	if x.route == endShown && !response.gated && d.Outcome.Seen != "whole" && (c == "complete" || c == "unseen") {
		return "`complete` or `unseen`"
	}
	return "`" + c + "`"
}

// returned says when a unit came back. A replica that began to answer when the
// gate opened did so after the picker had done all that it could.
func returned(at time.Time, response arrival) string {
	switch {
	case response.gated && at.Before(response.began):
		return "back before the response"
	case response.gated && at.Before(response.ended):
		return "back at the response's headers"
	default:
		return "back"
	}
}

// An accessLine is what the gateway's access log says of a request.
type accessLine struct {
	RequestID string `json:"request_id"`
	Details   string `json:"details"`
}

// accessLog waits until all requests so far are in the gateway's access log.
func (g *rig) accessLog() []accessLine {
	g.t.Helper()
	var lines []accessLine
	eventually(g.t, "the access log has all requests", func() bool {
		text, err := os.ReadFile(g.envoy.log)
		if err != nil {
			return false
		}
		lines = lines[:0]
		for line := range bytes.Lines(text) {
			var l accessLine
			if json.Unmarshal(line, &l) == nil {
				lines = append(lines, l)
			}
		}
		return len(lines) >= g.table.sent
	})
	return lines
}

// markdown is the table as the document has it: rows that say the same are one.
func (t *table) markdown() string {
	var b strings.Builder
	b.WriteString("| what fails | when | route | request | client gets | reason | served by | record | unit |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	type line struct {
		fails, when, request string
		saw                  outcome
	}
	var lines []line
	routes := map[line][]string{}
	first := map[string]int{} // what fails, by its first row
	for i, r := range slices.Backward(t.rows) {
		first[r.fails] = i
	}
	slices.SortStableFunc(t.rows, func(a, b row) int { return first[a.fails] - first[b.fails] })
	for _, r := range t.rows {
		l := line{r.fails, r.when, r.request, r.saw}
		if other := t.other(r); other == nil || other.saw == r.saw {
			l.request = "any"
			if other == nil {
				l.request = r.request
			}
		}
		if !slices.Contains(routes[l], r.route) {
			routes[l] = append(routes[l], r.route)
		}
		if !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", l.fails, l.when, routeNames(routes[l]), l.request,
			l.saw.client, l.saw.reason, l.saw.server, l.saw.record, l.saw.unit)
	}
	return b.String()
}

// other is what was seen of the other kind of request through the same route.
func (t *table) other(r row) *row {
	for i, o := range t.rows {
		if o.fails == r.fails && o.when == r.when && o.route == r.route && o.request != r.request {
			return &t.rows[i]
		}
	}
	return nil
}

// routeNames names a set of routes as shortly as may be.
func routeNames(names []string) string {
	var out []string
	left := slices.Clone(names)
	for _, set := range []struct {
		name   string
		routes []route
	}{{"all closed", closedRoutes()}, {"all open", openRoutes()}} {
		if slices.ContainsFunc(set.routes, func(r route) bool { return !slices.Contains(left, r.name) }) {
			continue
		}
		out = append(out, set.name)
		left = slices.DeleteFunc(left, func(name string) bool {
			return slices.ContainsFunc(set.routes, func(r route) bool { return r.name == name })
		})
	}
	return strings.Join(append(out, left...), "; ")
}

// compare compares the table with the document's, or writes it there.
func (t *table) compare(test *testing.T) {
	test.Helper()
	const begin, end = "<!-- observed -->\n", "<!-- /observed -->\n"
	text, err := os.ReadFile(failureModes)
	if err != nil {
		test.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	documented, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		test.Fatalf("%s lacks the lines %q and %q", failureModes, begin, end)
	}
	observed := t.markdown()
	if *update {
		if err := os.WriteFile(failureModes, []byte(before+begin+observed+end+after), 0o644); err != nil {
			test.Fatal(err)
		}
		return
	}
	for _, d := range difference(documented, observed) {
		test.Errorf("%s, the table: %s (-update rewrites it)", failureModes, d)
	}
}

// difference lists the lines that only one of two texts has.
func difference(documented, observed string) []string {
	var out []string
	have, want := strings.Split(documented, "\n"), strings.Split(observed, "\n")
	for _, line := range have {
		if !slices.Contains(want, line) {
			out = append(out, "was not observed: "+line)
		}
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			out = append(out, "lacks: "+line)
		}
	}
	if len(out) == 0 && documented != observed {
		out = append(out, "has the rows in another order")
	}
	return out
}
