package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// slowly answers like next, and the metrics page only after a time, which it lets
// pass by itself.
func slowly(c *fakeClock, takes time.Duration, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			c.Advance(takes)
		}
		next(w, r)
	}
}

// What is beyond the limit is not read into memory to find that out. The bytes that
// were allocated are counted, not those that are left: memory that was let go of again
// was taken all the same.
func TestM12_BytesBeyondTheLimitAreNotRead(t *testing.T) {
	const limit, size = 1 << 20, 64 << 20
	chunk := []byte(strings.Repeat("x", 64<<10))
	huge := func(announced bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if announced {
				w.Header().Set("Content-Length", fmt.Sprint(size))
			}
			for range size / len(chunk) {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}
	}
	for name, handler := range map[string]http.HandlerFunc{"announced": huge(true), "not announced": huge(false)} {
		e := newFakeEngine(t, handler)
		ask := newClients(&Options{Clock: newFakeClock().Now, Logger: zap.NewNop()}).caller()
		q := question{scheme: "http", host: e.address().String(), path: "/metrics"}
		var kept connections
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := ask.get(t.Context(), q, &kept, patience, limit, nil)
		runtime.ReadMemStats(&after)
		if a.reason != "too_large" {
			t.Errorf("%s: %q (%v), want too_large", name, a.reason, a.cause)
		}
		// The memory that a page is read into is copied as it grows.
		if got := after.TotalAlloc - before.TotalAlloc; got > 8*limit {
			t.Errorf("%s: %d bytes were allocated for a page of at most %d", name, got, limit)
		}
		// What is left of it would be taken for the next answer.
		if len(kept) != 0 {
			t.Errorf("%s: the connection is kept", name)
		}
	}
}

// vLLM prints its families of adapters only after one was used.
func TestM14_AThousandPagesWithoutAnOptionalFamilyAreNoFaultAndNoNews(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	logs, recorded := observer.New(zapcore.DebugLevel)
	f := start(t, func(o *Options) { o.Logger = zap.New(logs) }, e.spec("a"))
	for range 1000 {
		f.mustScrape("ok")
	}
	f.settle()
	r := f.endpoint(0).Snapshot().Readings[telemetry.AdaptersWaiting]
	if r.Recorded != telemetry.Missing || f.endpoint(0).ScrapeError() != "" {
		t.Errorf("adaptersWaiting is %v, scrape error %q", r.Recorded, f.endpoint(0).ScrapeError())
	}
	// The pages that this engine has not are none of the metrics page's.
	lines := recorded.Filter(func(l observer.LoggedEntry) bool { return l.Level >= zapcore.InfoLevel })
	if lines.Len() != 0 || recorded.FilterMessageSnippet("lora").Len() != 0 {
		t.Errorf("logged %v", lines.All())
	}
}

func TestM15_EachReplicaOfAMixedPoolHasItsCacheRead(t *testing.T) {
	const both = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.3\n"
	pages := map[string]struct {
		page, metric string
		want         float64
	}{
		"old":  {"vllm:gpu_cache_usage_perc 0.6\n", "vllm:gpu_cache_usage_perc", 0.6},
		"new":  {"vllm:kv_cache_usage_perc 0.2\n", "vllm:kv_cache_usage_perc", 0.2},
		"both": {both, "vllm:kv_cache_usage_perc", 0.3},
	}
	var specs []pool.Spec
	for name, p := range pages {
		specs = append(specs, newFakeEngine(t, site{"/metrics": p.page}.ServeHTTP).spec(name))
	}
	f := start(t, nil, specs...)
	f.refreshed(0)
	for _, e := range f.registry.Set().Endpoints {
		want, r := pages[e.Name], e.Snapshot().Readings[telemetry.KVCacheUtilization]
		if r.Recorded != telemetry.Fresh || r.Value != want.want || r.Detail.Source.Metric != want.metric {
			t.Errorf("%s: %v %v of %+v, want %v of %s", e.Name, r.Recorded, r.Value, r.Detail.Source, want.want, want.metric)
		}
	}
}

// A page is whole if its transfer is, and if a line that is read ends in a line feed: a
// server that counts wrong, or a proxy whose upstream died, ends a transfer in order
// where a number could have had more digits.
func TestM26_TheTransferTellsWhetherAPageIsWhole(t *testing.T) {
	const whole = "vllm:num_requests_running 1\nvllm:num_requests_waiting 40"
	cut := strings.TrimSuffix(whole, "0")
	chunked := func(body, end string) http.HandlerFunc {
		return raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%s", len(body), body, end))
	}
	cases := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"announced", text(whole + "\n"), "ok"},
		{"in chunks", chunked(whole+"\n", "0\r\n\r\n"), "ok"},
		{"with the mark of OpenMetrics alone in its last line", text(whole + "\n# EOF"), "ok"},
		{"announced, without a line feed at the end", text(whole), "truncated"},
		{"announced, cut in the number", text(cut), "truncated"},
		{"in chunks, cut in the number", chunked(cut, "0\r\n\r\n"), "truncated"},
		{"ended by the connection, after a newline", raw("HTTP/1.0 200 OK\r\n\r\n" + whole + "\n"), "ok"},
		{"CRLF", text(strings.ReplaceAll(whole+"\n", "\n", "\r\n")), "ok"},
		{"ended by the connection", raw("HTTP/1.0 200 OK\r\n\r\n" + whole), "truncated"},
		{"ended by the connection in the number", raw("HTTP/1.0 200 OK\r\n\r\n" + cut), "truncated"},
		{"in chunks, without the last", chunked(cut, ""), "truncated"},
		{"in a chunk that is cut", raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", len(whole), cut)), "truncated"},
		{"shorter than announced by one", raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(whole), cut)), "truncated"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, c.handler)
			f := start(t, nil, e.spec("a"))
			f.mustScrape(c.want)
			f.settle()
			s := f.endpoint(0).Snapshot()
			if c.want != "ok" {
				if s != nil && s.Readings[telemetry.QueueDepth].Recorded != telemetry.Missing {
					t.Errorf("queueDepth is %+v of a page that was cut", s.Readings[telemetry.QueueDepth])
				}
				return
			}
			if r := s.Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Fresh || r.Value != 40 {
				t.Errorf("queueDepth is %v %v, want fresh 40", r.Recorded, r.Value)
			}
		})
	}
}

// S3, S7: an engine that shows its last batch, or a queue that is gone, for as long as
// nobody sends it anything.
func TestS3_BusyValuesThatStandStillWithoutOurRequestsAreFrozen(t *testing.T) {
	var tokens atomic.Int64
	page := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, "vllm:num_requests_waiting 50\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.99\nvllm:generation_tokens_total %d\n", tokens.Load())
	}
	e := newFakeEngine(t, page)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	f.settle()
	a := f.endpoint(0)
	began := a.Snapshot().ScrapedAt
	for range 200 {
		f.mustScrape("ok")
		f.settle()
		s := a.Snapshot()
		age := s.ScrapedAt.Sub(began)
		for _, field := range telemetry.LoadFields {
			r := &s.Readings[field]
			if frozen := age >= 10*time.Second; !frozen && (r.Recorded != telemetry.Fresh || r.Quality != 1) {
				t.Fatalf("%s is %v, quality %v, after %v", field, r.Recorded, r.Quality, age)
			} else if frozen && (r.Recorded != telemetry.Stale || r.Quality >= 0.5 || !strings.HasPrefix(strings.Join(r.Detail.Reasons, "; "), "frozen: ")) {
				t.Fatalf("%s is %v, quality %v, %q, after %v", field, r.Recorded, r.Quality, r.Detail.Reasons, age)
			}
		}
	}
	if got := a.Snapshot().ScrapedAt.Sub(began); got < 11*time.Second {
		t.Fatalf("looked for %v only", got)
	}
	// It moves, and is believed at once.
	tokens.Add(1)
	f.mustScrape("ok")
	if r := a.Snapshot().Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Fresh || r.Quality != 1 || r.Value != 50 {
		t.Errorf("after it has moved, queueDepth is %+v", r)
	}
}

// The same page under requests of ours is not frozen for want of them.
func TestS3_BusyValuesThatStandStillUnderOurRequestsAreDoubtedForThat(t *testing.T) {
	e := newFakeEngine(t, text("vllm:num_requests_waiting 50\nvllm:num_requests_running 1\n"))
	f := start(t, nil, e.spec("a"))
	a := f.endpoint(0)
	unit := a.Take(f.clock.Now())
	defer unit.Release()
	f.mustScrape("ok")
	f.settle()
	began := a.Snapshot().ScrapedAt
	for a.Snapshot().ScrapedAt.Sub(began) < 40*time.Second {
		f.mustScrape("ok")
		f.settle()
		s := a.Snapshot()
		r := &s.Readings[telemetry.QueueDepth]
		why := strings.Join(r.Detail.Reasons, "; ")
		switch age := s.ScrapedAt.Sub(began); {
		case strings.Contains(why, "frozen"):
			t.Fatalf("after %v: %s", age, why)
		case age < 10*time.Second && (r.Recorded != telemetry.Fresh || r.Quality != 1),
			age >= 10*time.Second && age < 30*time.Second && (r.Recorded != telemetry.Fresh || r.Quality != 0.5),
			age >= 30*time.Second && (r.Recorded != telemetry.Stale || r.Quality >= 0.5):
			t.Fatalf("after %v: %v, quality %v, %q", age, r.Recorded, r.Quality, why)
		}
	}
}

// The page names no process: that nobody listened in between tells, or a counter that
// fell.
func TestARestartInPlaceIsSeenWithoutAProcessStart(t *testing.T) {
	page := func(tokens int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/metrics":
				_, _ = fmt.Fprintf(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:prompt_tokens_total %d\n", tokens)
			default:
				calm.handle(w, r)
			}
		}
	}
	for _, c := range []struct {
		name        string
		interrupted http.HandlerFunc
		after       int
		want        uint32
	}{
		{"its counters go on", nil, 5000, 1},
		{"a counter fell", nil, 10, 2},
		{"nobody listened, and its counters go on", aborts(true), 5000, 2},
		{"it answered with an error, and its counters go on", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 5000, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, page(1000))
			f := start(t, nil, e.spec("a"))
			f.mustScrape("ok")
			f.mustScrape("ok")
			f.settle()
			if c.interrupted != nil {
				e.serve(c.interrupted)
				f.scrape()
				f.settle()
			}
			e.serve(page(c.after))
			for range 6 {
				// Counters are looked at every few seconds.
				f.mustScrape("ok")
			}
			f.settle()
			if got := f.endpoint(0).Snapshot().Incarnation; got != c.want {
				t.Errorf("incarnation %d, want %d", got, c.want)
			}
		})
	}
}

// P1: what a load costs is over when the load is.
func TestP1_TheCadenceIsBackAfterALoad(t *testing.T) {
	const endpoints = 500
	clock := newFakeClock()
	s, registry := handScheduler(t, clock, manySpecs(endpoints))
	// scrapes are how many there are in this time, none of which takes any.
	scrapes := func(over time.Duration) (n int) {
		for end := clock.Now().Add(over); clock.Now() < end; {
			for _, x := range s.inbox.takeWoken() {
				x.woken.Store(false)
				s.wake(x)
			}
			for s.dispatch(t.Context()); len(s.jobs) > 0; s.dispatch(t.Context()) {
				x := (<-s.jobs).target
				s.finish(result{x, report{started: clock.Now(), interval: s.opts.interval(x.endpoint.Live, nil, clock.Now())}})
				n++
			}
			clock.Advance(min(s.due[0].at, end).Sub(clock.Now()))
		}
		return n
	}
	between := func(when string, got, least, most int) {
		t.Helper()
		if got < least || got > most {
			t.Errorf("%s: %d scrapes of %d endpoints, want %d to %d", when, got, endpoints, least, most)
		}
	}
	scrapes(time.Minute)
	// Each every 4.5 to 5 s.
	idle := scrapes(time.Minute)
	between("a minute before the load", idle, endpoints*12, endpoints*14)
	var units []pool.Unit
	for _, a := range registry.Set().Endpoints {
		a.Touch(clock.Now())
		units = append(units, a.Take(clock.Now()))
	}
	// Each every 180 to 200 ms.
	between("ten seconds of load", scrapes(10*time.Second), endpoints*49, endpoints*56)
	for i := range units {
		units[i].Release()
	}
	// Each every 0.9 to 1 s, until 30 s after it was looked at.
	between("19 s after the load", scrapes(19*time.Second), endpoints*18, endpoints*22)
	scrapes(time.Second)
	again := scrapes(time.Minute)
	between("a minute after the load", again, idle*9/10, idle*11/10)
}

// The newest of 45 KB pages is read into the memory of the one before.
func TestP1_TheMemoryOfAPageIsUsedAgain(t *testing.T) {
	page := golden(t, "vllm.prom")
	e := newFakeEngine(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", []pool.Spec{e.spec("a")}); err != nil {
		t.Fatal(err)
	}
	opts := Options{Profiles: profiles(t), Timeout: patience}.withDefaults()
	w := newWorker(opts, newClients(&opts), newTable(nil))
	j := job{ctx: context.Background(), target: &target{kind: "endpoint"}, endpoint: registry.Set().Endpoints[0]}
	scrape := func() {
		if r := w.scrape(j); r.reason != "" {
			t.Fatal(r.reason, r.cause)
		}
	}
	scrape()
	first := &w.buf[:1][0]
	for range 5 {
		if scrape(); &w.buf[:1][0] != first {
			t.Fatal("a page is read into memory of its own")
		}
	}
	// One that was far too large leaves nothing behind.
	e.serve(text(strings.Repeat("x", 3*largestKept)))
	if r := w.scrape(j); r.reason == "" || w.buf != nil {
		t.Errorf("reason %q, and %d bytes are kept, want none", r.reason, cap(w.buf))
	}
}

// Nothing runs for an endpoint but its scrape: goroutines are those of the workers.
func TestP3_GoroutinesAreBoundedHoweverManyEndpointsHang(t *testing.T) {
	// It takes connections, and nobody behind it ever reads from one.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hole := netip.MustParseAddrPort(listener.Addr().String())
	const endpoints, workers = 300, 8
	specs := make([]pool.Spec, endpoints)
	for i := range specs {
		specs[i] = pool.Spec{Name: fmt.Sprint(i), Engine: "vllm", Ready: true,
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, byte(1 + i/250), byte(1 + i%250)}), hole.Port())}
	}
	specs[0].Address = hole
	base := runtime.NumGoroutine()
	f := start(t, func(o *Options) {
		o.Workers, o.Timeout, o.Hot = workers, 50*time.Millisecond, time.Millisecond
		o.NewTimer, o.Clock = newRealTimer, monotonic()
	}, specs...)
	most := 0
	for range 200 {
		wait(t, f.results, "a scrape")
		most = max(most, runtime.NumGoroutine())
	}
	// Of each worker: itself, one that dials, and one that ends a question with its
	// context. Then the scheduler and Run.
	if bound := base + 3*workers + 10; most > bound {
		t.Errorf("%d goroutines for %d endpoints that hang, %d before, want at most %d", most, endpoints, base, bound)
	}
}

// Connections go with the endpoint, those to its metrics port and those of a scrape
// that is under way when it leaves among them.
func TestP5_TheConnectionsOfAnEndpointGoWithIt(t *testing.T) {
	opts := Options{Profiles: profiles(t), Timeout: patience}.withDefaults()
	w := newWorker(opts, newClients(&opts), newTable(nil))
	s := newScheduler(opts, newTable(nil))
	registry := pool.NewRegistry("test/pool", false)
	serving, metrics, busy := newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle)
	split := serving.spec("split")
	split.Metrics.Port = metrics.address().Port()
	follow := func(specs ...pool.Spec) {
		t.Helper()
		if err := registry.Update("test/pool", specs); err != nil {
			t.Fatal(err)
		}
		s.replace(registry.Set())
	}
	follow(split, busy.spec("busy"))
	byName := map[string]*target{}
	for _, x := range s.targets {
		byName[x.name] = x
		if r := w.scrape(job{ctx: t.Context(), target: x, endpoint: x.endpoint}); r.reason != "" {
			t.Fatal(r.reason, r.cause)
		}
	}
	if a, b := len(byName["split"].memory.kept), len(byName["busy"].memory.kept); a != 2 || b != 1 {
		t.Fatalf("%d and %d connections are kept, want 2 and 1", a, b)
	}
	running := byName["busy"]
	running.running, running.cancel = true, func() {}
	s.running[running.lane()]++
	follow()
	wait(t, serving.closed, "the connection to the serving port to be closed")
	wait(t, metrics.closed, "the connection to the metrics port to be closed")
	if len(running.memory.kept) != 1 || len(busy.closed) != 0 {
		t.Error("a connection is closed that a worker has")
	}
	s.finish(result{running, report{}})
	wait(t, busy.closed, "the connection of the scrape that was under way to be closed")
	if len(s.targets) != 0 || len(s.due) != 0 {
		t.Errorf("%d targets and %d due are left, want none", len(s.targets), len(s.due))
	}
}

// counted is an engine and how many connections to it are open.
func counted(t *testing.T, handler http.HandlerFunc) (*fakeEngine, *atomic.Int64) {
	t.Helper()
	var open atomic.Int64
	e := newStoppedEngine(t, handler)
	e.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
			e.closed <- struct{}{}
		}
	}
	e.Start()
	return e, &open
}

// mustClose waits for the last connection to be closed, which is nothing that the
// collection of garbage may do.
func (e *fakeEngine) mustClose(t *testing.T, open *atomic.Int64, what string) {
	t.Helper()
	for open.Load() > 0 {
		wait(t, e.closed, what+" to be closed")
	}
}

// At the end, connections are those of endpoints, of exporters, and of what a worker
// gives back when nobody takes it any more.
func TestP5_TheEndOfTheSchedulerIsThatOfEachConnection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	e, toMember := counted(t, calm.handle)
	left, toLeft := counted(t, calm.handle)
	x, toExporter := counted(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
	opts := Options{Profiles: profiles(t), Timeout: patience, Exporters: []Exporter{dcgm(t, x)}}.withDefaults()
	table := newTable(opts.Exporters)
	w, s := newWorker(opts, newClients(&opts), table), newScheduler(opts, table)
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", []pool.Spec{e.spec("a"), left.spec("b")}); err != nil {
		t.Fatal(err)
	}
	s.replace(registry.Set())
	scrape := func(x *target) report {
		r := w.scrape(job{ctx: t.Context(), target: x, endpoint: x.endpoint})
		if r.reason != "" || len(x.memory.kept) != 1 {
			t.Fatalf("%s: %q (%v), %d connections", x.name, r.reason, r.cause, len(x.memory.kept))
		}
		return r
	}
	for live, x := range s.targets {
		r := scrape(x)
		if x.name == "b" {
			delete(s.targets, live)
			x.gone = true
			s.results <- result{x, r}
		}
	}
	scrape(s.exporters[0])
	s.close()
	e.mustClose(t, toMember, "the connection of an endpoint")
	left.mustClose(t, toLeft, "the connection of an endpoint that has left")
	x.mustClose(t, toExporter, "the connection of an exporter")
}

// Discovery says another thing of the endpoint: it starts anew, over new connections.
func TestP5_ConnectionsGoWithWhatWasDeclared(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before, open := counted(t, calm.handle)
	after, serving := newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle)
	spec := serving.spec("a")
	spec.Metrics.Port = before.address().Port()
	f := start(t, nil, spec)
	f.mustScrape("ok")
	f.settle()
	was := f.endpoint(0).Live
	spec.Metrics.Port = after.address().Port()
	f.update(spec)
	f.turns("the other port to be asked", func() bool { return after.count("/metrics") > 0 })
	if f.endpoint(0).Live != was {
		t.Fatal("another endpoint for another metrics port")
	}
	before.mustClose(t, open, "the connection to the port before")
}

// The page is there, and its endpoint is not any more.
func TestP5_NothingIsPublishedOfAnEndpointThatHasLeft(t *testing.T) {
	registry := pool.NewRegistry("test/pool", false)
	leave := func() {
		if err := registry.Update("test/pool", nil); err != nil {
			t.Error(err)
		}
	}
	var asked atomic.Int64
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			leave()
		}
		calm.handle(w, r)
	})
	if err := registry.Update("test/pool", []pool.Spec{e.spec("a")}); err != nil {
		t.Fatal(err)
	}
	opts := Options{Profiles: profiles(t), Timeout: patience}.withDefaults()
	w := newWorker(opts, newClients(&opts), newTable(nil))
	a := registry.Set().Endpoints[0]
	x := &target{kind: "endpoint", name: "a", endpoint: a}
	defer func() { x.memory.kept.close() }()
	if r := w.scrape(job{ctx: t.Context(), target: x, endpoint: a}); r.reason != "" {
		t.Fatal(r.reason, r.cause)
	}
	if a.Snapshot() != nil || asked.Load() != 1 {
		t.Errorf("snapshot %v, and %d pages were asked for, want none and 1", a.Snapshot(), asked.Load())
	}
}

func TestARedirectionIsFollowedOnlyToTheSameSchemeHostAndPort(t *testing.T) {
	for _, c := range []struct {
		scheme, host, location string
		// want is the path that is asked for next; empty if none is.
		want string
	}{
		{"http", "10.0.0.1:8000", "/metrics/", "/metrics/"},
		{"http", "10.0.0.1:8000", "metrics/", "/metrics/"},
		{"http", "10.0.0.1:8000", "/m?a=b", "/m?a=b"},
		{"http", "10.0.0.1:8000", "http://10.0.0.1:8000/metrics/", "/metrics/"},
		{"http", "10.0.0.1:8000", "//10.0.0.1:8000/metrics/", "/metrics/"},
		{"http", "10.0.0.1:8000", "http://name:secret@10.0.0.1:8000/m", "/m"},
		{"http", "10.0.0.1:80", "http://10.0.0.1/m", "/m"},
		{"https", "10.0.0.1:443", "https://10.0.0.1/m", "/m"},
		{"http", "[fd00::1]:8000", "http://[fd00::1]:8000/m", "/m"},

		{"http", "10.0.0.1:8000", "http://10.0.0.1:8001/metrics", ""},
		{"http", "10.0.0.1:8000", "http://10.0.0.1/metrics", ""},
		{"http", "10.0.0.1:8000", "http://10.0.0.2:8000/metrics", ""},
		{"http", "10.0.0.1:8000", "//10.0.0.2:8000/metrics", ""},
		{"http", "10.0.0.1:8000", "http://10.0.0.1:8000@10.0.0.2:8000/metrics", ""},
		{"http", "10.0.0.1:8000", "http://10.0.0.1.example:8000/metrics", ""},
		{"http", "10.0.0.1:8000", "http://169.254.169.254/latest/meta-data", ""},
		{"http", "10.0.0.1:8000", "http://metadata.google.internal:8000/", ""},
		{"http", "10.0.0.1:8000", "https://10.0.0.1:8000/metrics", ""},
		{"https", "10.0.0.1:8000", "http://10.0.0.1:8000/metrics", ""},
		{"http", "10.0.0.1:8000", "file:///etc/passwd", ""},
		{"http", "10.0.0.1:8000", "gopher://10.0.0.1:8000/", ""},
		{"http", "[fd00::1]:8000", "http://[fd00::2]:8000/m", ""},
		{"http", "10.0.0.1:8000", "", ""},
		{"http", "10.0.0.1:8000", "http://[", ""},
		{"http", "10.0.0.1:8000", "/drain", ""},
		{"http", "10.0.0.1:8000", "/drain?x=1", ""},
		{"http", "10.0.0.1:8000", "/" + strings.Repeat("x", 511), "/" + strings.Repeat("x", 511)},
		{"http", "10.0.0.1:8000", "/" + strings.Repeat("x", 512), ""},
	} {
		q := question{scheme: c.scheme, host: c.host, path: "/metrics", never: func(path string) bool { return path == "/drain" }}
		asked := &http.Request{URL: &url.URL{Scheme: c.scheme, Host: c.host, Path: "/metrics"}}
		for _, status := range []int{301, 302, 303, 307, 308} {
			resp := &http.Response{StatusCode: status, Header: http.Header{}, Request: asked}
			if c.location != "" {
				resp.Header.Set("Location", c.location)
			}
			if got, ok := sameOrigin(q, resp); ok != (c.want != "") || ok && got != c.want {
				t.Errorf("%d from %s://%s to %.80q: %q %t, want %q", status, c.scheme, c.host, c.location, got, ok, c.want)
			}
		}
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Location": {c.location}}, Request: asked}
		if got, ok := sameOrigin(q, resp); ok {
			t.Errorf("a page that is there leads to %q", got)
		}
	}
}

// Neither the address nor the port may be another, and nobody there hears of it, least
// of all of the key.
func TestNobodyElseHearsOfAnEngineThatRedirects(t *testing.T) {
	var heard atomic.Int64
	elsewhere, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	go func() {
		for {
			conn, err := elsewhere.Accept()
			if err != nil {
				return
			}
			heard.Add(1)
			_ = conn.Close()
		}
	}()
	port := elsewhere.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "localhost"} {
		for _, scheme := range []string{"http", "https"} {
			e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, fmt.Sprintf("%s://%s:%d%s", scheme, host, port, r.URL.Path), http.StatusTemporaryRedirect)
			})
			f := start(t, nil, e.spec("a"))
			f.mustScrape("redirect")
			f.mustScrape("redirect")
			f.settle()
			f.stop()
		}
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d connections to where engines redirected", n)
	}
}

func TestAConnectionIsUsedAgainWhateverTheAnswer(t *testing.T) {
	page := calm.page()
	for name, handler := range map[string]http.HandlerFunc{
		"a page":   calm.handle,
		"an error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
		"no page":  http.NotFound,
		"JSON":     text("[]"),
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.2:1/", http.StatusFound)
		},
		"by a slash": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				http.Redirect(w, r, "/metrics/", http.StatusFound)
				return
			}
			_, _ = w.Write([]byte(page))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var opened atomic.Int64
			e := newStoppedEngine(t, handler)
			e.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			e.Start()
			f := start(t, nil, e.spec("a"))
			for range 5 {
				f.scrape()
			}
			f.settle()
			if asked := e.atOnce(); asked != 1 {
				t.Errorf("%d requests at once", asked)
			}
			if got := opened.Load(); got != 1 {
				t.Errorf("%d connections for 5 scrapes, want 1", got)
			}
		})
	}
}

// Endpoints that were scraped at one moment are not at one moment for ever, neither
// while they answer nor while they fail.
func TestScrapesThatFallTogetherSpread(t *testing.T) {
	for name, r := range map[string]report{
		"that succeed": {interval: 5 * time.Second},
		"that fail":    {reason: "status_500", reached: true},
	} {
		clock := newFakeClock()
		s, _ := handScheduler(t, clock, manySpecs(200))
		at := clock.Now()
		for _, x := range slices.Clone(s.due) {
			x.at = at
			x.endpoint.Answered()
		}
		done := 0
		for done < 200 {
			s.dispatch(t.Context())
			for len(s.jobs) > 0 {
				j := <-s.jobs
				r.started = at
				s.finish(result{j.target, r})
				done++
			}
		}
		first, last := s.due[0].at, s.due[0].at
		for _, x := range s.due {
			first, last = min(first, x.at), max(last, x.at)
		}
		whole := 5 * time.Second
		if r.reason != "" {
			whole = 400 * time.Millisecond
		}
		if spread := last.Sub(first); spread < whole*8/100 || last.Sub(at) > whole || first.Sub(at) < whole*9/10 {
			t.Errorf("scrapes %s come %v to %v later, want them spread over the last tenth of %v", name, first.Sub(at), last.Sub(at), whole)
		}
	}
}

// observedAt + max(profile TTL, 3 x interval + timeout): vLLM's load has a TTL of 2 s,
// and what a page says of the engine's making one of a minute.
func TestAReadingExpiresByItsProfileOrByTheCadenceWhicheverIsLater(t *testing.T) {
	const page = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"
	for _, c := range []struct {
		name    string
		timeout time.Duration
		happens func(*fleet) func()
		want    time.Duration
	}{
		{"idle", time.Second, func(*fleet) func() { return func() {} }, 3*5*time.Second + time.Second},
		{"warm", time.Second, func(f *fleet) func() {
			f.endpoint(0).Touch(f.clock.Now())
			return func() {}
		}, 3*time.Second + time.Second},
		{"hot, and the profile's is later", time.Second, func(f *fleet) func() {
			unit := f.endpoint(0).Take(f.clock.Now())
			return unit.Release
		}, 2 * time.Second},
		{"hot, and the cadence's is later", 3 * time.Second, func(f *fleet) func() {
			unit := f.endpoint(0).Take(f.clock.Now())
			return unit.Release
		}, 600*time.Millisecond + 3*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, text(page))
			f := start(t, func(o *Options) { o.Timeout = c.timeout }, e.spec("a"))
			over := c.happens(f)
			f.mustScrape("ok")
			f.settle()
			s := f.endpoint(0).Snapshot()
			if r := s.Readings[telemetry.QueueDepth]; r.ExpiresAt.Sub(r.ObservedAt) != c.want || r.ObservedAt != s.ScrapedAt {
				t.Errorf("queueDepth lives %v from %v before the scrape, want %v from the scrape", r.ExpiresAt.Sub(r.ObservedAt), s.ScrapedAt.Sub(r.ObservedAt), c.want)
			}
			if r := s.Readings[telemetry.KVBlockSize]; r.Recorded != telemetry.Fresh || r.ExpiresAt.Sub(r.ObservedAt) != time.Minute {
				t.Errorf("kvBlockSize is %v and lives %v, want its profile's minute", r.Recorded, r.ExpiresAt.Sub(r.ObservedAt))
			}
			over()
		})
	}
}

// Nothing but the pick asks for it.
func TestTheFirstPickOnAnIdleEndpointIsScrapedAtOnceAndTheSecondIsNot(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	f.mustScrape("ok")
	f.settle()
	f.advance(3 * time.Second)
	a := f.endpoint(0)
	picked := f.clock.Now()
	unit := a.Take(picked)
	defer unit.Release()
	wait(t, f.results, "the scrape that the pick asks for")
	if s := f.settle(); a.Snapshot().ScrapedAt != picked || s <= 180*time.Millisecond || s > 200*time.Millisecond {
		t.Errorf("scraped %v after the pick, and the next comes after %v, want at once and the hot cadence", a.Snapshot().ScrapedAt.Sub(picked), s)
	}
	asked := e.count("/metrics")
	for range 10 {
		other := a.Take(picked)
		other.Release()
	}
	if got := e.count("/metrics"); got != asked || len(f.clock.sleeps) != 0 {
		t.Errorf("%d scrapes more for ten picks of a hot endpoint, want none before they are due", got-asked)
	}
}

// The pages beside the metrics page keep their faults to themselves.
func TestABadSlowPageSpoilsWhatItWouldSayAlone(t *testing.T) {
	chunk := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct {
		models http.HandlerFunc
		// version: the version is still read in the same turn.
		version bool
	}{
		"an error": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, true},
		"HTML":     {text("<html></html>"), true},
		"22 MB in a name": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":[{"id":"`))
			for range 22 << 20 / len(chunk) {
				if _, err := w.Write([]byte(chunk)); err != nil {
					return
				}
			}
			_, _ = w.Write([]byte(`"}]}`))
		}, true},
		"more than a slow page may have": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}],"more":"` + strings.Repeat("x", largestSlow) + `"}`))
		}, true},
		"a bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(gzipped(32 << 20))
		}, true},
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`))
		}, true},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.2:1/v1/models", http.StatusFound)
		}, true},
		"it hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false},
		"reset":    {aborts(true), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					c.models(w, r)
					return
				}
				said{waiting: "4", start: "1.7e9", version: "0.32.0"}.handle(w, r)
			})
			timeout := patience
			if name == "it hangs" {
				timeout = 200 * time.Millisecond
			}
			f := start(t, func(o *Options) { o.Timeout, o.MaxPage = timeout, 64<<20 }, e.spec("a"))
			f.mustScrape("ok")
			f.settle()
			a := f.endpoint(0)
			s := a.Snapshot()
			if r := s.Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Fresh || r.Value != 4 || a.ScrapeError() != "" {
				t.Errorf("queueDepth is %v %v, scrape error %q", r.Recorded, r.Value, a.ScrapeError())
			}
			if r := s.Readings[telemetry.ServedModels]; r.Recorded != telemetry.Missing || r.Detail == nil || len(r.Detail.Reasons) != 1 || r.Detail.Names != nil {
				t.Errorf("servedModels is %v, %+v, want missing for a reason", r.Recorded, r.Detail)
			}
			if r := s.Readings[telemetry.EngineVersion]; c.version && (r.Recorded != telemetry.Fresh || r.Detail.Text != "0.32.0") {
				t.Errorf("engineVersion is %v, %+v", r.Recorded, r.Detail)
			}
		})
	}
}

// Only slow pages that end in time are waited for, and the metrics page is published
// before any of them is asked for.
func TestTheMetricsPageIsPublishedBeforeTheOthersAreAskedFor(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" && once.CompareAndSwap(false, true) {
			close(asked)
			<-release
		}
		calm.handle(w, r)
	})
	f := start(t, func(o *Options) { o.Timeout = patience }, e.spec("a"))
	f.advance(f.settle())
	wait(t, asked, "the first of the other pages to be asked for")
	s := f.endpoint(0).Snapshot()
	close(release)
	if s == nil || s.Readings[telemetry.QueueDepth].Recorded != telemetry.Fresh {
		t.Errorf("what the metrics page says is not known: %v", s)
	}
	wait(t, f.results, "the end of the turn")
}

// A fault in this process, while one endpoint is read, costs that scrape: not the
// worker, not what was known, and nobody else's.
func TestAPanicCostsOneScrapeOfOneEndpoint(t *testing.T) {
	var armed atomic.Bool
	bad, good := newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle)
	clock := newFakeClock()
	f := start(t, func(o *Options) {
		o.Workers = 1
		o.Clock = func() telemetry.Instant {
			if armed.Load() && strings.Contains(stack(), "(*worker).readEndpoint") {
				armed.Store(false)
				panic("a fault of this process")
			}
			return clock.Now()
		}
		o.NewTimer = func() Timer { return clock }
	}, bad.spec("bad"), good.spec("good"))
	f.clock = clock
	f.refreshed(0)
	byName := map[string]*pool.Endpoint{}
	for _, e := range f.registry.Set().Endpoints {
		byName[e.Name] = e
	}
	known := byName["bad"].Snapshot()
	bad.serve(func(w http.ResponseWriter, r *http.Request) {
		armed.Store(true)
		calm.handle(w, r)
	})
	f.see("panic")
	if byName["bad"].ScrapeError() != "panic" || byName["good"].ScrapeError() != "" {
		t.Errorf("scrape errors %q and %q, want panic and none", byName["bad"].ScrapeError(), byName["good"].ScrapeError())
	}
	if byName["bad"].Snapshot() != known {
		t.Error("the snapshot was replaced")
	}
	bad.serve(calm.handle)
	f.refreshed(0)
	if byName["bad"].ScrapeError() != "" {
		t.Errorf("after that, scrape error %q", byName["bad"].ScrapeError())
	}
}

func stack() string {
	text := make([]byte, 16<<10)
	return string(text[:runtime.Stack(text, false)])
}

// Readers hold a snapshot for as long as they like.
func TestAPublishedSnapshotNeverChanges(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { o.Timeout = patience }, e.spec("a"))
	pages := []said{
		calm,
		{waiting: "9", start: "1.7e9", version: "0.32.0", models: `[{"id":"m","max_model_len":8192}]`},
		{waiting: "NaN", start: "1.7e9", version: "0.33.0", models: `[{"id":"other"}]`},
		{waiting: "1", start: "1.75e9", version: "0.33.0", models: `[]`},
	}
	all := func(s *telemetry.Snapshot) string {
		at := s.ScrapedAt
		doc, err := json.Marshal(s.Observation(v1alpha1.Replica{}, at))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s %s %q %d %d %s\n", s.Engine, s.Profile, s.Declared, s.Incarnation, s.ScrapedAt, doc)
		for i := range s.Readings {
			r := s.Readings[i]
			fmt.Fprintf(&b, "%v %v %v %v %v %v %v %+v\n", r.Value, r.ObservedAt, r.ExpiresAt, r.Quality, r.Support, r.Recorded, r.Provenance, r.Detail)
		}
		return b.String()
	}
	held := map[*telemetry.Snapshot]string{}
	for round := range 40 {
		e.serve(pages[round%len(pages)].handle)
		if round%7 == 6 {
			e.serve(http.NotFound)
		}
		f.scrape()
		f.settle()
		if s := f.endpoint(0).Snapshot(); s != nil && held[s] == "" {
			held[s] = all(s)
		}
		for s, was := range held {
			if now := all(s); now != was {
				t.Fatalf("a snapshot that was published has changed from\n%sto\n%s", was, now)
			}
		}
	}
	if len(held) < 20 {
		t.Errorf("%d snapshots were held, want one for most scrapes", len(held))
	}
}

// Whatever the first pages are, none of them is an idle replica.
func TestABadFirstPageGivesNoValueOfTheLoad(t *testing.T) {
	page := string(golden(t, "vllm.prom"))
	e := newFakeEngine(t, text(page))
	opts := Options{Profiles: profiles(t), MaxPage: 1 << 20, Timeout: patience}.withDefaults()
	w := newWorker(opts, newClients(&opts), newTable(nil))
	bad := badPages(page)
	kinds := kindsOf(bad)
	rapid.Check(t, func(rt *rapid.T) {
		registry := pool.NewRegistry("test/pool", false)
		spec := e.spec("a")
		spec.Engine = rapid.SampledFrom([]string{"", "vllm", "sglang", "nobody"}).Draw(rt, "declared")
		if err := registry.Update("test/pool", []pool.Spec{spec}); err != nil {
			rt.Fatal(err)
		}
		a := registry.Set().Endpoints[0]
		j := job{ctx: context.Background(), target: &target{kind: "endpoint", name: "a", endpoint: a}, endpoint: a}
		defer func() { j.target.memory.kept.close() }()
		for range rapid.IntRange(1, 3).Draw(rt, "scrapes") {
			kind := rapid.SampledFrom(kinds).Draw(rt, "kind")
			e.serve(bad[kind](rt))
			if r := w.scrape(j); r.reason == "" || r.reason == "panic" {
				rt.Fatalf("%s: reason %q", kind, r.reason)
			}
			s := a.Snapshot()
			if s == nil {
				continue
			}
			for _, field := range telemetry.LoadFields {
				if r := &s.Readings[field]; r.Recorded != telemetry.Missing || r.ObservedAt != 0 {
					rt.Fatalf("%s: %s is %+v", kind, field, r)
				}
			}
		}
	})
}
