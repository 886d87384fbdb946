package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
	"github.com/berth-dev/berth/internal/gateway"
	"github.com/berth-dev/berth/internal/host"
)

// limit is how long a condition may take on a busy machine before the test
// gives up.
const limit = time.Minute

// tree is a YAML document, or a part of one.
type tree = map[string]any

// spec is what a fleet is made of. The zero value has no engines.
type spec struct {
	// engines are named e1, e2, ... in the pool and in x-sim-engine.
	engines []enginesim.Config
	// prepare is called when the engines run and the picker does not yet.
	prepare func(engines []*enginesim.Server)
	// members edits what the pool file lists: one member per engine.
	members func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint
	// berth is merged into the BerthConfiguration.
	berth tree
	// unscraped fleets are used before the picker has read every engine.
	unscraped bool
	// binary is a berth-epp that is the picker, as a process of its own; empty
	// runs the picker in the test's process.
	binary string

	kind      gateway.Kind
	fallbacks int
	// envoy edits the bootstrap before Envoy starts.
	envoy func(bootstrap tree)
}

// A fleet is engines, a picker that knows them, and an Envoy in front.
type fleet struct {
	t       *testing.T
	spec    spec
	dir     string
	engines []*enginesim.Server
	members []v1alpha1.StaticEndpoint

	picker  *host.Host // nil where it is a process
	epp     *process   // nil where it is not
	admin   string     // http://ip:port of the picker
	metrics string
	extproc string
	log     *records
	said    *buffer // the picker's own log; nil where it is a process

	envoy  *envoyProcess
	h1, h2 *http.Client
}

// engines returns n times the same engine.
func engines(n int, c enginesim.Config) []enginesim.Config {
	out := make([]enginesim.Config, n)
	for i := range out {
		out[i] = c
	}
	return out
}

// start starts a fleet that ends with the test.
func start(t *testing.T, s spec) *fleet {
	t.Helper()
	f := &fleet{t: t, spec: s, dir: t.TempDir(), log: &records{}}
	for i, c := range s.engines {
		c.Name = fmt.Sprintf("e%d", i+1)
		e, err := enginesim.New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		f.engines = append(f.engines, e)
		f.members = append(f.members, member(c.Name, e.Addr()))
	}
	if s.prepare != nil {
		s.prepare(f.engines)
	}
	if s.members != nil {
		f.members = s.members(f.members)
	}
	f.writePool(f.members)
	f.writeBerth(nil)
	if s.binary != "" {
		f.startProcess("127.0.0.1:0")
	} else {
		f.startPicker()
	}
	f.envoy = startEnvoy(t, f.gatewayOptions(f.members), s.envoy)
	f.h1 = client(t, false)
	f.h2 = client(t, true)
	if !s.unscraped {
		eventually(t, "the picker has read every engine that runs", func() bool {
			for _, r := range f.replicas() {
				if r.Order != "normal" && f.runs(r.Replica.Address) {
					return false
				}
			}
			return true
		})
	}
	return f
}

// member is an engine as the pool file has it.
func member(name, address string) v1alpha1.StaticEndpoint {
	a := netip.MustParseAddrPort(address)
	return v1alpha1.StaticEndpoint{Name: name, Address: a.Addr().String(), Port: int(a.Port()), Engine: "vllm"}
}

func (f *fleet) runs(address string) bool {
	for _, e := range f.engines {
		if e.Addr() == address {
			_, err := e.Stats()
			return err == nil
		}
	}
	return false
}

func (f *fleet) config() string { return filepath.Join(f.dir, "berth.yaml") }

func (f *fleet) startPicker() {
	f.t.Helper()
	said := &buffer{}
	f.said = said
	logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), said, zap.DebugLevel))
	ctx, cancel := context.WithCancel(context.Background())
	const free = "127.0.0.1:0"
	picker, err := host.Start(ctx, host.Options{
		ConfigFile:     f.config(),
		ExtProcAddress: free, HealthAddress: free, MetricsAddress: free, AdminAddress: free,
		DecisionLog: f.log,
		Log:         logger,
	})
	if err != nil {
		cancel()
		f.t.Fatal(err)
	}
	f.picker = picker
	f.admin, f.metrics = "http://"+picker.AdminAddr().String(), "http://"+picker.MetricsAddr().String()
	f.extproc = picker.ExtProcAddr().String()
	f.t.Cleanup(func() {
		f.stopPicker()
		cancel()
		eventually(f.t, "nothing of the picker runs on", func() bool { return pickerGoroutines() == 0 })
		if f.t.Failed() {
			f.t.Logf("the picker said:\n%s", said.String())
		}
	})
}

// startProcess starts berth-epp, or a new one after its death. The log begins
// anew, since the last line of a killed process may be half a line.
func (f *fleet) startProcess(extproc string) {
	f.t.Helper()
	f.log = &records{}
	f.epp = startProcess(f.t, f.spec.binary, f.config(), f.log, extproc)
	f.admin, f.metrics, f.extproc = "http://"+f.epp.admin, "http://"+f.epp.metrics, f.epp.extproc
}

// stopPicker stops the picker once, however often it is called.
func (f *fleet) stopPicker() {
	if f.picker != nil {
		f.picker.Stop()
		f.picker = nil
	}
}

// berthDefaults leave time for a machine that is busy with other tests.
func (f *fleet) berthDefaults() tree {
	return tree{
		"apiVersion": "berth.dev/v1alpha1",
		"kind":       "BerthConfiguration",
		"discovery":  tree{"file": "pool.yaml"},
		"gateway":    tree{"fallbacks": f.spec.fallbacks},
		"limits":     tree{"uploadIdle": "1m", "decisionDeadline": "30s"},
		"ledger":     tree{"ring": 5000},
	}
}

const endpointPickerConfig = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {name: load, type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: load, weight: 1}
  - {pluginRef: berth-picker}
---
`

// writeBerth writes the configuration: that of the spec, with edits on top.
func (f *fleet) writeBerth(edits tree) {
	f.t.Helper()
	doc := f.berthDefaults()
	merge(doc, f.spec.berth)
	merge(doc, edits)
	text, err := yaml.Marshal(doc)
	if err != nil {
		f.t.Fatal(err)
	}
	replaceFile(f.t, f.config(), endpointPickerConfig+string(text))
}

func (f *fleet) poolFile() string { return filepath.Join(f.dir, "pool.yaml") }

// writePool writes the pool file, as the picker reads it.
func (f *fleet) writePool(members []v1alpha1.StaticEndpoint) {
	f.t.Helper()
	if members == nil {
		members = []v1alpha1.StaticEndpoint{}
	}
	text, err := yaml.Marshal(v1alpha1.StaticPool{
		APIVersion:  "berth.dev/v1alpha1",
		Kind:        v1alpha1.KindStaticPool,
		Metadata:    v1alpha1.PoolMetadata{Namespace: "local", Name: "fleet"},
		FailureMode: v1alpha1.FailClose,
		Endpoints:   members,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	replaceFile(f.t, f.poolFile(), string(text))
}

// gatewayOptions are those of a gateway that knows members and this picker.
func (f *fleet) gatewayOptions(members []v1alpha1.StaticEndpoint) gateway.Options {
	o := gateway.Options{
		Kind:          f.spec.kind,
		ListenAddress: "127.0.0.1:0",
		AdminAddress:  "127.0.0.1:0",
		PickerAddress: f.extproc,
		Fallbacks:     f.spec.fallbacks,
	}
	for _, m := range members {
		o.Endpoints = append(o.Endpoints, gateway.Endpoint{
			Name:    m.Name,
			Address: netip.AddrPortFrom(netip.MustParseAddr(m.Address), uint16(m.Port)),
		})
	}
	return o
}

// replaceFile makes content that of the file in one step.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

// merge puts what from has into to, and leaves from as it is.
func merge(to, from tree) {
	for k, v := range from {
		part, isTree := v.(tree)
		if !isTree {
			to[k] = v
			continue
		}
		into, ok := to[k].(tree)
		if !ok {
			into = tree{}
			to[k] = into
		}
		merge(into, part)
	}
}

// client speaks h1, or h2 by prior knowledge.
func client(t *testing.T, h2 bool) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// clients are the HTTP versions that a gateway must treat alike.
func (f *fleet) clients() map[string]*http.Client {
	return map[string]*http.Client{"h1": f.h1, "h2": f.h2}
}

// An answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

// engine is who answered: the engine's own word.
func (a answer) engine() string { return a.header.Get("X-Sim-Engine") }

func (a answer) decision() string { return a.header.Get("X-Berth-Decision") }

// request makes a request to the gateway; an empty body is none.
func (f *fleet) request(ctx context.Context, method, path, body string) *http.Request {
	f.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+f.envoy.gateway+path, r)
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

// try has a request answered; unlike do, it may be called from any goroutine.
func try(c *http.Client, req *http.Request) (answer, error) {
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// do has a request answered, whatever the status.
func (f *fleet) do(c *http.Client, req *http.Request) answer {
	f.t.Helper()
	a, err := try(c, req)
	if err != nil {
		f.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	return a
}

// post sends a completion request.
func (f *fleet) post(c *http.Client, body string) answer {
	f.t.Helper()
	return f.do(c, f.request(f.t.Context(), http.MethodPost, completions, body))
}

// models sends a request without a body.
func (f *fleet) models(c *http.Client) answer {
	f.t.Helper()
	return f.do(c, f.request(f.t.Context(), http.MethodGet, "/v1/models", ""))
}

const completions = "/v1/completions"

// asks is the body of a completion request for n tokens.
func asks(n int) string {
	return fmt.Sprintf(`{"model":"sim-model","prompt":"hello","max_tokens":%d}`, n)
}

// streams is the same for a stream.
func streams(n int) string {
	return fmt.Sprintf(`{"model":"sim-model","prompt":"hello","max_tokens":%d,"stream":true}`, n)
}

// A stream is a response that has begun.
type stream struct {
	answer
	body io.Reader
	// close leaves, whether or not there is more to come.
	close func()
}

// open sends a request and returns when the response headers have come.
func (f *fleet) open(c *http.Client, body, requestID string) *stream {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	req := f.request(ctx, http.MethodPost, completions, body)
	req.Header.Set("X-Request-Id", requestID)
	resp, err := c.Do(req)
	if err != nil {
		cancel()
		f.t.Fatalf("opening a stream: %v", err)
	}
	leave := func() {
		cancel()
		_ = resp.Body.Close()
	}
	f.t.Cleanup(leave)
	return &stream{answer{status: resp.StatusCode, header: resp.Header}, resp.Body, leave}
}

// event reads up to the end of the next server-sent event.
func (s *stream) event() (string, error) {
	var event strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(event.String(), "\n\n"); {
		if _, err := io.ReadFull(s.body, b); err != nil {
			return event.String(), err
		}
		event.WriteByte(b[0])
	}
	return event.String(), nil
}

// rest reads what is left.
func (s *stream) rest() (string, error) {
	b, err := io.ReadAll(s.body)
	return string(b), err
}

// served is how many requests reached an engine, counted there.
func served(e *enginesim.Server) int {
	a := e.Arrivals()
	return int(a.Served + a.Other)
}

// counts is served by each engine.
func (f *fleet) counts() []int {
	out := make([]int, len(f.engines))
	for i, e := range f.engines {
		out[i] = served(e)
	}
	return out
}

// total is served by all of them.
func (f *fleet) total() int {
	n := 0
	for _, c := range f.counts() {
		n += c
	}
	return n
}

// holds reports that an engine runs and queues just so many requests.
func (f *fleet) holds(engine, running, waiting int) bool {
	s, err := f.engines[engine].Stats()
	return err == nil && s.Running == running && s.Waiting == waiting
}

// replicas is the picker's own report.
func (f *fleet) replicas() []v1alpha1.Observation {
	f.t.Helper()
	var doc struct {
		Items []v1alpha1.Observation `json:"items"`
	}
	if err := json.Unmarshal(fetch(f.t, f.admin+"/v1alpha1/replicas"), &doc); err != nil {
		f.t.Fatal(err)
	}
	return doc.Items
}

// replica is the report on one of them; nil if the pool has none of this name.
func (f *fleet) replica(name string) *v1alpha1.Observation {
	f.t.Helper()
	for _, r := range f.replicas() {
		if r.Replica.Name == name {
			return &r
		}
	}
	return nil
}

func (f *fleet) inFlight() map[string]int {
	f.t.Helper()
	units := map[string]int{}
	for _, r := range f.replicas() {
		if r.InFlight != 0 {
			units[r.Replica.Name] = int(r.InFlight)
		}
	}
	return units
}

// awaitInFlight waits until exactly these units are held.
func (f *fleet) awaitInFlight(want map[string]int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("requests in flight are %v", want), func() bool { return maps.Equal(f.inFlight(), want) })
}

// metric is the value of one sample, with its labels as the page has them; 0 if
// it is not there.
func (f *fleet) metric(sample string) float64 {
	f.t.Helper()
	for line := range strings.Lines(string(fetch(f.t, f.metrics+"/metrics"))) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				f.t.Fatalf("metric %s: %v", sample, err)
			}
			return v
		}
	}
	return 0
}

// policy is the digest of the policy in force.
func (f *fleet) policy() string {
	f.t.Helper()
	for line := range strings.Lines(string(fetch(f.t, f.metrics+"/metrics"))) {
		if rest, ok := strings.CutPrefix(line, `berth_policy_info{digest="`); ok {
			digest, _, _ := strings.Cut(rest, `"`)
			return digest
		}
	}
	f.t.Fatal("no policy is in force")
	return ""
}

// adopt writes the configuration anew, with edits on top, and waits until it is
// in force. It must differ from the one before.
func (f *fleet) adopt(edits tree) {
	f.t.Helper()
	before := f.policy()
	f.writeBerth(edits)
	eventually(f.t, "the new configuration is in force", func() bool { return f.policy() != before })
}

// sum adds all samples of a metric that has labels.
func (f *fleet) sum(name string) float64 {
	f.t.Helper()
	total := 0.0
	for line := range strings.Lines(string(fetch(f.t, f.metrics+"/metrics"))) {
		labels, value, ok := strings.Cut(line, "} ")
		if !ok || !strings.HasPrefix(labels, name+"{") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			f.t.Fatalf("metric %s: %v", name, err)
		}
		total += v
	}
	return total
}

// quiet waits until the picker has done what there is to do: it knows of each
// stream that the gateway has ended, and has written what it knows.
func (f *fleet) quiet() {
	f.t.Helper()
	eventually(f.t, "the picker has done what there is to do", func() bool {
		units := 0
		for _, n := range f.inFlight() {
			units += n
		}
		records := f.sum("berth_outcomes_total") + f.sum("berth_refusals_total") - f.metric(`berth_refusals_total{reason="served_outside"}`)
		return units <= f.envoy.asking() && len(f.log.ended(f.t)) == int(records)
	})
}

func fetch(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// records are the decision log's lines, decoded. It is safe for concurrent use.
type records struct {
	mu   sync.Mutex
	part []byte
	all  []v1alpha1.Decision
	err  error
}

// Write implements io.Writer.
func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part = append(r.part, p...)
	for {
		line, rest, whole := bytes.Cut(r.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		var d v1alpha1.Decision
		if err := json.Unmarshal(line, &d); err != nil {
			r.err = errors.Join(r.err, fmt.Errorf("decision log: %w in %q", err, line))
		} else {
			r.all = append(r.all, d)
		}
		r.part = rest
	}
}

func (r *records) ended(t *testing.T) []v1alpha1.Decision {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.all[:len(r.all):len(r.all)]
}

// record waits for the record of a request that has ended: by the id of the
// decision, or of the request.
func (f *fleet) record(id string) v1alpha1.Decision {
	f.t.Helper()
	var found v1alpha1.Decision
	eventually(f.t, "there is a record of "+id, func() bool {
		for _, d := range f.log.ended(f.t) {
			if id != "" && (d.ID == id || d.Request.RequestID == id) {
				found = d
				return true
			}
		}
		return false
	})
	return found
}

// endedRecords waits until n requests have been recorded.
func (f *fleet) endedRecords(n int) []v1alpha1.Decision {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d requests are recorded", n), func() bool { return len(f.log.ended(f.t)) >= n })
	return f.log.ended(f.t)
}

// eventually asks again and again until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	// A test's own context has ended when its cleanups ask.
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", limit, what)
		case <-again.C:
		}
	}
}

// expectRefusal compares a whole answer with a refusal of the picker's.
func expectRefusal(t *testing.T, a answer, status int, reason string) {
	t.Helper()
	if a.status != status || a.header.Get("X-Berth-Reason") != reason {
		t.Errorf("status %d, reason %q, body %q; want %d and %q", a.status, a.header.Get("X-Berth-Reason"), a.body, status, reason)
		return
	}
	var doc struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Errorf("the refusal's body %q is not JSON: %v", a.body, err)
	}
	if doc.Error.Code != reason || doc.Error.Message == "" || doc.Error.Type == "" {
		t.Errorf("the refusal's body is %q, want an error with code %q, a message and a type", a.body, reason)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content-type of the refusal %q, want application/json", got)
	}
	if e := a.engine(); e != "" {
		t.Errorf("the refusal came from engine %s", e)
	}
}

// closedPort returns an address that refuses connections until the test ends:
// the port is taken, and nobody listens on it.
func closedPort(t *testing.T) string {
	t.Helper()
	_, address := boundPort(t)
	return address
}

// boundPort is a closedPort, with the socket that could listen on it.
func boundPort(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// goroutines returns the stack of each goroutine.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")
		}
		buf = make([]byte, 2*len(buf))
	}
}

// pickerGoroutines counts those that run the picker's code.
func pickerGoroutines() int {
	n := 0
	for _, stack := range goroutines() {
		for _, pkg := range []string{"host", "extproc", "collect", "discovery", "ledger", "policy"} {
			if strings.Contains(stack, "berth/internal/"+pkg+".") {
				n++
				break
			}
		}
	}
	return n
}

// buffer collects what is written to it. It is safe for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// Sync implements zapcore.WriteSyncer.
func (b *buffer) Sync() error { return nil }

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
