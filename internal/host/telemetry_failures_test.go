package host

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// failure is one way for the telemetry of a replica to fail.
type failure struct {
	what, how string
	// lost are the fields that are lost by it, of those that are looked at.
	lost []telemetry.Field
	// page answers for the replica, and gpus for the exporter, while it fails; nil
	// answers as before.
	page func(*atWork) http.HandlerFunc
	gpus http.HandlerFunc
	// result is that of the replica's last scrape.
	result string
	// gone: the replica's server ends.
	gone bool
	// timeout of a page; 0 is one that does not matter.
	timeout time.Duration
	// speed is how many times as fast the clock runs; 0 is 40 times.
	speed time.Duration
}

// lookedAt are the fields of the table: of the metrics page, of another page, and of an
// exporter.
var lookedAt = append(telemetry.LoadFields[:], telemetry.ServedModels, telemetry.ContextLimit, telemetry.Power)

func telemetryFailures() []failure {
	load := telemetry.LoadFields[:]
	queue := load[:1]
	models := []telemetry.Field{telemetry.ServedModels, telemetry.ContextLimit}
	// What the replica itself says; an exporter may be well all the same.
	everything := lookedAt[:len(lookedAt)-1]
	ill := func(status int, path string) func(*atWork) http.HandlerFunc {
		return func(e *atWork) http.HandlerFunc {
			well := e.well()
			return func(rw http.ResponseWriter, req *http.Request) {
				if req.URL.Path == path {
					http.Error(rw, "no", status)
					return
				}
				well(rw, req)
			}
		}
	}
	altered := func(change func(page string) string) func(*atWork) http.HandlerFunc {
		return func(e *atWork) http.HandlerFunc { return e.altered(change) }
	}
	html := func(*atWork) http.HandlerFunc { return all(200, "text/html", "<html></html>") }
	hang := func(*atWork) http.HandlerFunc {
		return func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	}
	noFamily := func(page string) string {
		_, rest, _ := strings.Cut(page, "\n")
		return rest
	}
	standingStill := func(string) string { return vllm(2, 1, 0.2, 1000) }
	notANumber := func(page string) string { return strings.Replace(page, "} 2\n", "} NaN\n", 1) }
	return []failure{
		{what: "the metrics page", how: "answers 404", result: "status_404", lost: load, page: ill(404, "/metrics")},
		{what: "the metrics page", how: "answers 500", result: "status_500", lost: load, page: ill(500, "/metrics")},
		{what: "the metrics page", how: "is HTML", result: "not_text", lost: load, page: html},
		{what: "the metrics page", how: "hangs", result: "timeout", lost: load, page: hang, timeout: time.Second, speed: 10},
		{what: "the replica", how: "refuses connections", result: "refused", lost: everything, gone: true},
		{what: "the metrics page", how: "is frozen while the engine works", result: "ok", lost: load, page: altered(standingStill)},
		{what: "a field", how: "is not on the page any more", result: "ok", lost: queue, page: altered(noFamily)},
		{what: "a field", how: "is NaN", result: "ok", lost: queue, page: altered(notANumber)},
		{what: "another page (`/v1/models`)", how: "answers 500", result: "ok", lost: models, page: ill(500, "/v1/models")},
		{what: "an exporter", how: "answers 500", result: "ok", lost: []telemetry.Field{telemetry.Power}, gpus: all(500, "text/plain", "no")},
	}
}

// atWork is a vLLM that works.
type atWork struct{ tokens atomic.Int64 }

// well are its pages.
func (e *atWork) well() http.HandlerFunc { return e.altered(func(page string) string { return page }) }

// altered are its pages with a metrics page that is changed.
func (e *atWork) altered(change func(page string) string) http.HandlerFunc {
	return func(rw http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(rw, change(vllm(2, 1, 0.2, int(e.tokens.Add(1)))))
		case "/v1/models":
			_, _ = io.WriteString(rw, `{"object":"list","data":[{"id":"m","object":"model","max_model_len":4096}]}`)
		default:
			http.NotFound(rw, req)
		}
	}
}

// TestTelemetryFailureModes makes the telemetry of one of three replicas fail in each
// way, and compares what came of it with the table in docs/failure-modes.md.
func TestTelemetryFailureModes(t *testing.T) {
	failures := telemetryFailures()
	rows := make([]string, len(failures))
	for i, f := range failures {
		t.Run(f.what+" "+f.how, func(t *testing.T) { rows[i] = f.observe(t) })
	}
	if t.Failed() {
		return
	}
	compareTable(t, "| what fails | how | readings | cause | last scrape | the replica gets | rung | log |\n|---|---|---|---|---|---|---|---|\n"+
		strings.Join(rows, ""))
}

// quickClock runs several times as fast as time does, and can be held.
type quickClock struct {
	*handClock
	begun time.Time
	speed time.Duration
	held  atomic.Bool
}

func (c *quickClock) read() telemetry.Instant {
	if !c.held.Load() {
		c.now.Store(int64(telemetry.At(epoch).Add(c.speed * time.Since(c.begun))))
	}
	return c.handClock.read()
}

// quickTimer goes by a quickClock.
type quickTimer struct {
	*time.Timer
	speed time.Duration
}

func (t quickTimer) Reset(d time.Duration) { t.Timer.Reset(d / t.speed) }
func (t quickTimer) C() <-chan time.Time   { return t.Timer.C }
func (t quickTimer) Stop()                 { t.Timer.Stop() }

// observe makes it happen and returns the row of the table.
func (f failure) observe(t *testing.T) string {
	r := newRig(t, "")
	clock := &quickClock{handClock: r.clock, begun: time.Now(), speed: cmp.Or(f.speed, 40)}
	core, log := observer.New(zap.InfoLevel)
	watch := newLoadWatch(r.metrics.fleet, zap.New(core))
	gpus := serve(t, text(gpuPage))
	var engines [3]atWork
	var servers []*server
	var specs []pool.Spec
	for i := range engines {
		servers = append(servers, serve(t, engines[i].well()))
		spec := servers[i].spec(i+1, "vllm")
		spec.Pod = "local/" + spec.Name
		specs = append(specs, spec)
	}
	r.update(specs...)
	ctx, cancel := context.WithCancel(t.Context())
	collector := collect.New(collect.Options{
		Profiles: builtIn(t), Clock: clock.read, NewTimer: func() collect.Timer { return quickTimer{time.NewTimer(time.Hour), clock.speed} },
		Timeout: cmp.Or(f.timeout, patience), Logger: zap.New(core),
		Exporters: []collect.Exporter{{Profile: builtIn(t).Profile("dcgm"), Address: netip.MustParseAddrPort(gpus.Listener.Addr().String())}},
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		collector.Run(ctx, r.pools)
	}()
	defer cancel()
	state := func(field telemetry.Field) string {
		s := r.live("r1").Snapshot()
		if s == nil {
			return "missing"
		}
		return s.Readings[field].State(r.clock.read()).String()
	}
	// held waits until a condition holds, at a time at which the clock then stands.
	held := func(what string, holds func() bool) {
		t.Helper()
		eventually(t, what, func() bool {
			clock.read()
			clock.held.Store(true)
			if holds() {
				return true
			}
			clock.held.Store(false)
			return false
		})
	}
	// known reports that of each field all replicas' readings are fresh, but for those
	// that are lost.
	known := func(lost []telemetry.Field) bool {
		for _, field := range lookedAt {
			want := 3.0
			switch {
			case slices.Contains(lost, field) && f.gpus != nil:
				want = 0
			case slices.Contains(lost, field):
				want = 2
			}
			if r.sample("berth_readings", field.String(), "fresh") != want {
				return false
			}
		}
		return true
	}
	held("all is known", func() bool { return known(nil) })
	watch.look()
	if lines := log.TakeAll(); len(lines) != 1 || lines[0].Message != "the exporter's page has pods of the pool" {
		t.Fatalf("logged %v while nothing fails", lines)
	}
	switch {
	case f.gone:
		servers[0].CloseClientConnections()
		_ = servers[0].Listener.Close()
	case f.gpus != nil:
		gpus.become(f.gpus)
	default:
		servers[0].become(f.page(&engines[0]))
	}
	clock.held.Store(false)
	held("just this is lost", func() bool { return known(f.lost) && r.resultAt() == f.result })
	cancel()
	<-ended
	watch.look()

	var lost []string
	is, why := state(f.lost[0]), r.causeAt(f.lost[0])
	for _, field := range f.lost {
		lost = append(lost, "`"+field.String()+"`")
		if state(field) != is || r.causeAt(field) != why {
			t.Errorf("%s is %s by %s, %s %s by %s", f.lost[0], is, why, field, state(field), r.causeAt(field))
		}
	}
	row := []string{f.what, f.how, strings.Join(lost, ", ") + " " + is, "`" + why + "`", "`" + r.resultAt() + "`"}
	rungs := func() map[string]float64 {
		all := map[string]float64{}
		for _, rung := range []string{"full", "partial", "local", "spread"} {
			all[rung] = r.sample("berth_decisions_total", "native", rung)
		}
		return all
	}
	before := rungs()
	const n = 300
	to := r.picks(n, 30)
	var on []string
	for rung, count := range rungs() {
		if count > before[rung] {
			on = append(on, rung)
		}
	}
	slices.Sort(on)
	share, least, most := "its share", n/6, n/2
	switch {
	case r.live("r1").OrderedLast():
		share, least, most = "nothing while others answer", 0, 0
	case !slices.Equal(on, []string{"full"}):
		// The median of the others stands in for it, or what it is known to hold.
		share, least = "at most its share", 0
	}
	if got := to["r1"]; got < least || got > most {
		t.Errorf("%d of %d requests, want %d to %d", got, n, least, most)
	}
	var said []string
	for _, line := range log.TakeAll() {
		text := "`" + line.Message + "`"
		if reason := line.ContextMap()["cause"]; reason != nil {
			text += fmt.Sprintf(" (`%v`)", reason)
		} else if reason := line.ContextMap()["reason"]; reason != nil {
			text += fmt.Sprintf(" (`%v`)", reason)
		}
		said = append(said, text)
	}
	if len(said) == 0 {
		said = []string{"-"}
	}
	return "| " + strings.Join(append(row, share, strings.Join(on, ", "), strings.Join(said, "; ")), " | ") + " |\n"
}

// gpuPage is an exporter's page of the pods of three replicas.
const gpuPage = "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n" +
	"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",namespace=\"local\",pod=\"r1\"} 301\n" +
	"DCGM_FI_DEV_POWER_USAGE{gpu=\"1\",namespace=\"local\",pod=\"r2\"} 302\n" +
	"DCGM_FI_DEV_POWER_USAGE{gpu=\"2\",namespace=\"local\",pod=\"r3\"} 303\n"

// causeAt and resultAt are those of r1.
func (r *rig) causeAt(f telemetry.Field) string {
	s := r.metrics.fleet.look().at(r.pools.Set().Endpoints[0])
	_, why := s.reading(f, r.clock.read())
	return why.String()
}

func (r *rig) resultAt() string {
	s := r.metrics.fleet.look().at(r.pools.Set().Endpoints[0])
	return s.result()
}

// compareTable compares a table with that of docs/failure-modes.md, or writes it there.
func compareTable(t *testing.T, observed string) {
	t.Helper()
	const file, begin, end = "../../docs/failure-modes.md", "<!-- observed: telemetry -->\n", "<!-- /observed: telemetry -->\n"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), begin)
	documented, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s lacks the lines %q and %q", file, begin, end)
	}
	if documented == observed {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+observed+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s, the table of telemetry (-update rewrites it):\nobserved\n%s\ndocumented\n%s", file, observed, documented)
}
