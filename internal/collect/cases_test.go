package collect

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

func TestM12_AHugePageTakesNoMoreMemoryThanTheLimit(t *testing.T) {
	const limit, size = 1 << 20, 22 << 20
	chunk := []byte(strings.Repeat("x", 64<<10))
	huge := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			calm.handle(w, r)
			return
		}
		_, _ = w.Write([]byte("vllm:cache_config_info{config=\""))
		for range size / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
		_, _ = w.Write([]byte("\"} 1\n" + calm.page()))
	}
	bad := newFakeEngine(t, calm.handle)
	specs := []pool.Spec{bad.spec("bad")}
	for i := range 20 {
		specs = append(specs, newFakeEngine(t, calm.handle).spec(fmt.Sprintf("good-%d", i)))
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	f := start(t, func(o *Options) { o.MaxPage = limit }, specs...)
	f.refreshed(0)
	f.refreshed(0)
	before := heap()
	bad.serve(huge)
	for range 3 {
		f.see("too_large")
		// The memory that a page is read into is copied as it grows, and the next
		// scrape may be at it at this moment.
		if got, most := heap(), before+8*limit; got > most {
			t.Errorf("the heap grew by %d bytes, want at most %d", got-before, most-before)
		}
	}
	f.refreshed(1)
	a := f.endpoint(slices.IndexFunc(f.registry.Set().Endpoints, func(e *pool.Endpoint) bool { return e.Name == "bad" }))
	if a.ScrapeError() != "too_large" {
		t.Errorf("scrape error %q", a.ScrapeError())
	}
}

func TestM13_APageWithoutMetricsRefreshesNothing(t *testing.T) {
	for name, c := range map[string]struct{ page, want string }{
		"empty":                {"", "empty"},
		"blank":                {"\n\n", "empty"},
		"the client library's": {"python_info{version=\"3.12\"} 1\nprocess_start_time_seconds 1.7e9\n", "no_engine_families"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeEngine(t, calm.handle)
			f := start(t, nil, e.spec("a"))
			f.mustScrape("ok")
			f.settle()
			before := *f.endpoint(0).Snapshot()
			e.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/metrics" {
					_, _ = w.Write([]byte(c.page))
					return
				}
				calm.handle(w, r)
			})
			// Long enough for the other pages to be asked for again.
			for range 12 {
				f.mustScrape(c.want)
			}
			f.settle()
			after := f.endpoint(0).Snapshot()
			if after.ScrapedAt != before.ScrapedAt {
				t.Errorf("scraped at %v, then at %v", before.ScrapedAt, after.ScrapedAt)
			}
			for _, field := range telemetry.LoadFields {
				if after.Readings[field] != before.Readings[field] {
					t.Errorf("%s was %+v and is %+v", field, before.Readings[field], after.Readings[field])
				}
			}
			if got := after.Readings[telemetry.QueueDepth].State(f.clock.Now()); got != telemetry.Stale {
				t.Errorf("queueDepth is %v, want stale", got)
			}
			if got := after.Readings[telemetry.ServedModels].State(f.clock.Now()); got != telemetry.Fresh {
				t.Errorf("servedModels is %v, want fresh: its page is there", got)
			}
			if got := f.endpoint(0).ScrapeError(); got != c.want {
				t.Errorf("scrape error %q", got)
			}
		})
	}
}

func TestM18_AReplicaWithoutAMetricsPageHarmsNobody(t *testing.T) {
	pages := map[string]http.HandlerFunc{
		"html": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<!doctype html><p>vllm:num_requests_waiting 0</p>"))
		},
		"json": text(`{"vllm:num_requests_waiting": 0}`),
		"404":  http.NotFound,
	}
	var specs []pool.Spec
	for name, handler := range pages {
		specs = append(specs, newFakeEngine(t, handler).spec(name))
	}
	specs = append(specs, newFakeEngine(t, calm.handle).spec("good"))
	f := start(t, nil, specs...)
	f.refreshed(len(pages))
	f.turns("the others to fail", func() bool {
		failed := 0
		for _, e := range f.registry.Set().Endpoints {
			if e.ScrapeError() != "" {
				failed++
			}
		}
		return failed == len(pages)
	})
	for _, e := range f.registry.Set().Endpoints {
		s := e.Snapshot()
		known := s != nil && s.Readings[telemetry.QueueDepth].Recorded != telemetry.Missing
		if good := e.Name == "good"; known != good || (e.ScrapeError() == "") != good || e.OrderedLast() {
			t.Errorf("%s: load known %t, scrape error %q, ordered last %t", e.Name, known, e.ScrapeError(), e.OrderedLast())
		}
	}
}

func TestM6_AJSONPageIsNotAnIdleReplica(t *testing.T) {
	busy := make(chan struct{})
	cases := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"nothing happened", text("[]"), "not_text"},
		{"statistics", text(string(golden(t, "trtllm-iteration-stats.json"))), "not_text"},
		{"answers only when idle", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-busy:
			case <-r.Context().Done():
			}
		}, "timeout"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, c.handler)
			spec := e.spec("a")
			spec.Engine, spec.Metrics.Path = "trtllm-serve", "/statistics"
			f := start(t, func(o *Options) { o.Timeout = 200 * time.Millisecond }, spec)
			f.mustScrape(c.want)
			a := f.endpoint(0)
			if s := a.Snapshot(); s != nil && s.Readings[telemetry.QueueDepth].Recorded != telemetry.Missing {
				t.Errorf("queueDepth %+v", s.Readings[telemetry.QueueDepth])
			}
			if a.ScrapeError() != c.want {
				t.Errorf("scrape error %q", a.ScrapeError())
			}
		})
	}
	close(busy)
}

func TestR6_OpenMetricsWithUnderscoresIsTheSameEngine(t *testing.T) {
	page := "# HELP sglang:num_queue_reqs The number of requests in the queue.\n# TYPE sglang:num_queue_reqs gauge\n" +
		"sglang_num_queue_reqs{tp_rank=\"0\"} 7.0\nsglang_num_running_reqs{tp_rank=\"0\"} 2.0\n# EOF\n"
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		_, _ = w.Write([]byte(page))
	})
	f := start(t, nil, e.undeclared("a"))
	f.mustScrape("ok")
	if s := f.endpoint(0).Snapshot(); s.Engine != "sglang" || s.Readings[telemetry.QueueDepth].Value != 7 || s.Readings[telemetry.ActiveRequests].Value != 2 {
		t.Errorf("engine %q, queueDepth %+v, activeRequests %+v", s.Engine, s.Readings[telemetry.QueueDepth], s.Readings[telemetry.ActiveRequests])
	}
}

func TestS2_WhileEveryScrapeHangsTheReadingsAgeAndNobodyIsOrderedLast(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { o.Timeout = 200 * time.Millisecond }, e.spec("a"))
	f.mustScrape("ok")
	f.settle()
	a := f.endpoint(0)
	before := a.Snapshot()
	e.serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for range 6 {
		f.mustScrape("timeout")
	}
	now := &a.Snapshot().Readings[telemetry.QueueDepth]
	if *now != before.Readings[telemetry.QueueDepth] || a.OrderedLast() {
		t.Errorf("queueDepth %+v, ordered last %t", now, a.OrderedLast())
	}
	if got := now.State(f.clock.Now()); got != telemetry.Stale {
		t.Errorf("queueDepth is %v, want stale", got)
	}
}

func TestS10_APageWithoutLatenciesIsAGoodPage(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	s := f.endpoint(0).Snapshot()
	if s.Readings[telemetry.TTFT].Recorded != telemetry.Missing || s.Readings[telemetry.QueueDepth].Recorded != telemetry.Fresh {
		t.Errorf("ttft %v, queueDepth %v", s.Readings[telemetry.TTFT].Recorded, s.Readings[telemetry.QueueDepth].Recorded)
	}
}

func TestAStatusPageSaysYesAndNoByItsStatus(t *testing.T) {
	var status int
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(status)
			return
		}
		calm.handle(w, r)
	})
	f := start(t, nil, e.spec("a"))
	// Each is asked for within 10 s, at a cadence of 5 s.
	after := func(now int) telemetry.Reading {
		t.Helper()
		status = now
		asked := e.count("/health")
		for e.count("/health") == asked {
			f.mustScrape("ok")
			f.settle()
		}
		return f.endpoint(0).Snapshot().Readings[telemetry.Health]
	}
	if r := after(200); r.Recorded != telemetry.Fresh || r.Value != 1 {
		t.Errorf("200: %+v", r)
	}
	if r := after(503); r.Recorded != telemetry.Fresh || r.Value != 0 || !f.endpoint(0).Excluded(f.clock.Now()) {
		t.Errorf("503: %+v, excluded %t", r, f.endpoint(0).Excluded(f.clock.Now()))
	}
	no := f.endpoint(0).Snapshot().Readings[telemetry.Health]
	// A page that sends elsewhere, as one behind a login does, says nothing.
	if r := after(302); r != no {
		t.Errorf("302 turned %+v into %+v", no, r)
	}
	if r := after(500); r != no {
		t.Errorf("500, which says nothing, turned %+v into %+v", no, r)
	}
	if r := after(404); r.Support != telemetry.Unsupported || r.Recorded != telemetry.Missing {
		t.Errorf("404: %+v", r)
	}
	// A page that is not there is let alone more and more, until the process is
	// another one: after 10 s, 20 s and so on, and then every ten minutes.
	asked, began := e.count("/health"), f.clock.Now()
	for f.clock.Now().Sub(began) < 8*time.Minute {
		f.mustScrape("ok")
	}
	if got := e.count("/health") - asked; got < 4 || got > 6 {
		t.Errorf("a page that is not there was asked for %d times in 8 minutes, want about 5", got)
	}
	asked = e.count("/health")
	for f.clock.Now().Sub(began) < 38*time.Minute {
		f.mustScrape("ok")
	}
	f.settle()
	if got := e.count("/health") - asked; got < 2 || got > 4 {
		t.Errorf("a page that is not there was asked for %d times in the next 30 minutes, want about 3", got)
	}
	next := calm
	next.start = "1.75e9"
	e.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			next.handle(w, r)
		}
	})
	f.mustScrape("ok")
	f.settle()
	if r := f.endpoint(0).Snapshot().Readings[telemetry.Health]; r.Recorded != telemetry.Fresh || r.Value != 1 {
		t.Errorf("the new process: %+v", r)
	}
	if got := f.endpoint(0).Snapshot().Incarnation; got != 2 {
		t.Errorf("incarnation %d, want 2", got)
	}
}

func TestAPageThatStandsStillUnderRequestsIsDoubted(t *testing.T) {
	e := newFakeEngine(t, text(calm.page()))
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	f.settle()
	a := f.endpoint(0)
	unit := a.Take(f.clock.Now())
	began := f.clock.Now()
	f.mustScrape("ok")
	doubted := func() bool {
		d := a.Snapshot().Readings[telemetry.QueueDepth].Detail
		return d != nil && slices.ContainsFunc(d.Reasons, func(r string) bool { return strings.Contains(r, "no value on the page moved") })
	}
	for !doubted() {
		f.mustScrape("ok")
		if f.clock.Now().Sub(began) > time.Minute {
			t.Fatal("not doubted within a minute")
		}
	}
	if got := f.clock.Now().Sub(began); got < 10*time.Second || got > 20*time.Second {
		t.Errorf("doubted after %v, want a little more than 10s", got)
	}
	unit.Release()
	f.mustScrape("ok")
	if doubted() {
		t.Error("an idle engine's page is doubted for standing still")
	}
}

func TestTrafficIsWhatWasSeenAtTheScrapes(t *testing.T) {
	live := newLive(t)
	var seen traffic
	check := func(at telemetry.Instant, want engine.Traffic) {
		t.Helper()
		if got := seen.note(live, at); got != want {
			t.Errorf("at %v: %+v, want %+v", at.Sub(now), got, want)
		}
	}
	at := func(s int) telemetry.Instant { return now.Add(time.Duration(s) * time.Second) }
	check(at(0), engine.Traffic{IdleSince: at(0)})
	check(at(1), engine.Traffic{IdleSince: at(0)})
	unit := live.Take(at(1))
	check(at(2), engine.Traffic{BusySince: at(2)})
	other := live.Take(at(2))
	unit.Release()
	check(at(3), engine.Traffic{BusySince: at(2)})
	other.Release()
	check(at(4), engine.Traffic{IdleSince: at(4)})
	check(at(5), engine.Traffic{IdleSince: at(4)})
	// One that came and went between two scrapes.
	unit = live.Take(at(5))
	unit.Release()
	check(at(6), engine.Traffic{IdleSince: at(6)})
	check(at(7), engine.Traffic{IdleSince: at(6)})
}

// badPages are the ways in which a page may be of no use, by name.
func badPages(page string) map[string]func(*rapid.T) http.HandlerFunc {
	lines := strings.SplitAfter(page, "\n")
	return map[string]func(*rapid.T) http.HandlerFunc{
		"status": func(rt *rapid.T) http.HandlerFunc {
			status := rapid.SampledFrom([]int{204, 301, 400, 401, 403, 404, 429, 500, 502, 503, 799}).Draw(rt, "status")
			return func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				if status != http.StatusNoContent {
					_, _ = w.Write([]byte(page))
				}
			}
		},
		"shorter than announced": func(rt *rapid.T) http.HandlerFunc {
			n := rapid.IntRange(0, len(page)-1).Draw(rt, "bytes")
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(page)))
				_, _ = w.Write([]byte(page[:n]))
			}
		},
		"no family of the engine": func(rt *rapid.T) http.HandlerFunc {
			return text(strings.ReplaceAll(page, "vllm:", rapid.SampledFrom([]string{"", "other:", "vllm"}).Draw(rt, "prefix")))
		},
		"not text": func(rt *rapid.T) http.HandlerFunc {
			return text(rapid.SampledFrom([]string{"[", "{", "<", "\x1f\x8b", "\x00"}).Draw(rt, "begin") + page)
		},
		"several replicas": func(*rapid.T) http.HandlerFunc {
			return text(page + "vllm:num_requests_running{worker_addr=\"10.0.0.1\"} 0\n")
		},
		"too large": func(rt *rapid.T) http.HandlerFunc {
			at := rapid.IntRange(0, len(lines)).Draw(rt, "line")
			huge := "vllm:huge{a=\"" + strings.Repeat("x", 1<<20) + "\"} 1\n"
			return text(strings.Join(lines[:at], "") + huge + strings.Join(lines[at:], ""))
		},
		"empty": func(rt *rapid.T) http.HandlerFunc {
			return text(rapid.SampledFrom([]string{"", "\n", " \r\n\n"}).Draw(rt, "blank"))
		},
		"compressed": func(*rapid.T) http.HandlerFunc {
			packed := gzipped(1000)
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(packed)
			}
		},
		"a chunk that is cut": func(rt *rapid.T) http.HandlerFunc {
			n := rapid.IntRange(0, len(page)-1).Draw(rt, "bytes")
			return raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", len(page), page[:n]))
		},
		"elsewhere": func(*rapid.T) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://127.0.0.2:1"+r.URL.Path, http.StatusFound)
			}
		},
	}
}

func kindsOf(bad map[string]func(*rapid.T) http.HandlerFunc) (kinds []string) {
	for kind := range bad {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

func TestABadPageLeavesThePreviousSnapshotAndItsAgesUntouched(t *testing.T) {
	page := string(golden(t, "vllm.prom"))
	e := newFakeEngine(t, text(page))
	opts := Options{Profiles: profiles(t), MaxPage: 1 << 20, Timeout: patience}.withDefaults()
	clients := newClients(&opts)
	w := newWorker(opts, clients, newTable(nil))
	bad := badPages(page)
	kinds := kindsOf(bad)
	rapid.Check(t, func(rt *rapid.T) {
		registry := pool.NewRegistry("test/pool", false)
		if err := registry.Update("test/pool", []pool.Spec{e.spec("a")}); err != nil {
			rt.Fatal(err)
		}
		a := registry.Set().Endpoints[0]
		j := job{ctx: context.Background(), target: &target{kind: "endpoint", name: "a", endpoint: a}, endpoint: a}
		defer func() { j.target.memory.kept.close() }()
		e.serve(text(page))
		if r := w.scrape(j); r.reason != "" {
			rt.Fatal(r.reason, r.cause)
		}
		before, value := a.Snapshot(), *a.Snapshot()
		kind := rapid.SampledFrom(kinds).Draw(rt, "kind")
		e.serve(bad[kind](rt))
		r := w.scrape(j)
		if r.reason == "" || r.reason == "panic" {
			rt.Fatalf("%s: reason %q", kind, r.reason)
		}
		if a.Snapshot() != before || *before != value {
			rt.Fatalf("%s: the snapshot has changed", kind)
		}
		if a.ScrapeError() != r.reason {
			rt.Fatalf("%s: scrape error %q, reason %q", kind, a.ScrapeError(), r.reason)
		}
	})
}

// aPage is a profile of one page, so that a thousand endpoints are asked once
// each.
const aPage = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: plain
detect: {prefixes: ["plain:"]}
pages:
- {path: /metrics, format: prometheus, ttl: 2s}
fields:
  queueDepth:
    unit: requests
    sources:
    - {metric: "plain:waiting", combine: sum}
`

func TestP5_AThousandEndpointsComeAndGoWithoutALeak(t *testing.T) {
	const endpoints, rounds = 1000, 10
	p, err := engine.Parse("plain.yaml", []byte(aPage))
	if err != nil {
		t.Fatal(err)
	}
	set, err := engine.NewSet(p)
	if err != nil {
		t.Fatal(err)
	}
	// One server stands behind as many addresses of the loopback.
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	if conn, err := net.Dial("tcp", fmt.Sprintf("127.1.2.3:%d", port)); err != nil {
		t.Skipf("the loopback has one address only: %v", err)
	} else {
		_ = conn.Close()
	}
	server := httptest.NewUnstartedServer(text("plain:waiting 1\n"))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	f := start(t, func(o *Options) {
		o.Profiles, o.NewTimer, o.Clock = set, newRealTimer, monotonic()
		o.Timeout, o.Idle, o.Warm = patience, time.Hour, time.Hour
	})
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0
		}
		return len(list)
	}
	goroutines, files := runtime.NumGoroutine(), open()
	for round := range rounds {
		specs := make([]pool.Spec, endpoints)
		for i := range specs {
			address := netip.AddrFrom4([4]byte{127, byte(1 + round), byte(i >> 8), byte(i)})
			specs[i] = pool.Spec{Name: fmt.Sprintf("%d-%d", round, i), Address: netip.AddrPortFrom(address, port), Engine: "plain", Ready: true}
		}
		f.update(specs...)
		for range endpoints {
			if got := wait(t, f.results, "a scrape"); got != "ok" {
				t.Fatalf("scrape: %s", got)
			}
		}
		f.update()
	}
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > goroutines+10 || open() > files+10 {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d open files, before %d and %d", runtime.NumGoroutine(), open(), goroutines, files)
		}
		runtime.Gosched()
	}
}

// ATOM and vLLM answer with a version that no parser knows, whatever is asked for.
func TestENGINES0_AContentTypeAloneRefusesNoPage(t *testing.T) {
	for _, kind := range []string{"text/plain; version=1.0.0; charset=utf-8", "application/octet-stream", "application/json", ""} {
		e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = []string{kind}
			calm.handle(w, r)
		})
		f := start(t, nil, e.spec("a"))
		f.mustScrape("ok")
	}
}
