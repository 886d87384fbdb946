package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

func names(s *telemetry.Snapshot) []string {
	if d := s.Readings[telemetry.ServedModels].Detail; d != nil {
		return d.Names
	}
	return nil
}

func TestAScrapePublishesWhatTheEngineSays(t *testing.T) {
	var headers sync.Map
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		headers.Store(r.URL.Path, r.Header.Clone())
		said{waiting: "4", start: "1.7e9", version: "0.32.0", models: `[{"id":"m","max_model_len":8192}]`}.handle(w, r)
	})
	f := start(t, nil, e.spec("a"))
	if !f.endpoint(0).OrderedLast() {
		t.Error("in normal order before the first answer")
	}
	f.mustScrape("ok")
	// The slow pages follow in the same turn; the next sleep comes after it.
	f.settle()
	a := f.endpoint(0)
	s := a.Snapshot()
	if got := s.Readings[telemetry.QueueDepth].Value; got != 4 {
		t.Errorf("queueDepth %v", got)
	}
	if got := names(s); !slices.Equal(got, []string{"m"}) {
		t.Errorf("servedModels %v", got)
	}
	if got := s.Readings[telemetry.ContextLimit].Value; got != 8192 {
		t.Errorf("contextLimit %v", got)
	}
	if got := s.Readings[telemetry.EngineVersion].Detail.Text; got != "0.32.0" {
		t.Errorf("engineVersion %q", got)
	}
	if a.OrderedLast() || a.ScrapeError() != "" {
		t.Errorf("ordered last %t, scrape error %q", a.OrderedLast(), a.ScrapeError())
	}
	h, _ := headers.Load("/metrics")
	got := h.(http.Header)
	if got.Get("Accept") != "text/plain;version=0.0.4" || got.Get("Accept-Encoding") != "identity" {
		t.Errorf("asked with %v", got)
	}
	for _, secret := range []string{"Authorization", "Cookie"} {
		if got.Get(secret) != "" {
			t.Errorf("%s is sent", secret)
		}
	}
}

func TestTheReadingsOfAnEndpointThatIsWokenStayFresh(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	a := f.endpoint(0)
	slept := f.settle()
	if slept <= 4500*time.Millisecond || slept > 5*time.Second {
		t.Fatalf("an idle endpoint is scraped after %v", slept)
	}
	idle := a.Snapshot().Readings[telemetry.QueueDepth]
	if got, want := idle.ExpiresAt.Sub(idle.ObservedAt), 3*5*time.Second+5*time.Second; got != want {
		t.Errorf("an idle reading lives %v, want %v", got, want)
	}

	// A request comes long before the pause is over.
	f.advance(time.Second)
	unit := a.Take(f.clock.Now())
	a.Wake()
	if got := wait(t, f.results, "the scrape after a wake"); got != "ok" {
		t.Fatalf("scrape: %s", got)
	}
	slept, _ = f.scrape()
	if slept <= 180*time.Millisecond || slept > 200*time.Millisecond {
		t.Errorf("an endpoint with a request in flight is scraped after %v", slept)
	}
	unit.Release()
	hot := a.Snapshot().Readings[telemetry.QueueDepth]
	if got, want := hot.ExpiresAt.Sub(hot.ObservedAt), 3*200*time.Millisecond+5*time.Second; got != want {
		t.Errorf("a hot reading lives %v, want %v", got, want)
	}
	if idle.State(idle.ObservedAt.Add(19*time.Second)) != telemetry.Fresh {
		t.Error("a reading published while idle became stale early")
	}
}

func TestWakesDoNotExceedTheHotCadence(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	f.settle()
	f.endpoint(0).Wake()
	if got := wait(t, f.clock.sleeps, "the pause after a wake"); got != 200*time.Millisecond {
		t.Errorf("woken right after a scrape, the next comes after %v, want 200ms", got)
	}
	if got := e.count("/metrics"); got != 1 {
		t.Errorf("%d scrapes, want 1", got)
	}
}

// aborts closes the connection instead of answering.
func aborts(reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		if reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		_ = conn.Close()
	}
}

// raw answers with these bytes and closes the connection.
func raw(bytes string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(bytes))
		_ = conn.Close()
	}
}

func gzipped(size int) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(calm.page()))
	_, _ = z.Write(make([]byte, size))
	_ = z.Close()
	return b.Bytes()
}

func TestZ10_AFailedScrapeIsNamedAndLeavesTheSnapshotAsItWas(t *testing.T) {
	bomb := gzipped(64 << 20)
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) }
	}
	other := newFakeEngine(t, calm.handle)
	cases := []struct {
		name    string
		handler http.HandlerFunc
		want    string
		// last: the failure puts the endpoint behind those that answer.
		last bool
	}{
		{"server error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x", http.StatusInternalServerError) }, "status_500", false},
		{"no such page", http.NotFound, "status_404", false},
		{"an API key is wanted", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "status_401", false},
		{"a status without a name", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, "status_other", false},
		{"JSON list", text("[]"), "not_text", false},
		{"HTML", text("<html></html>"), "not_text", false},
		{"empty page", text(""), "empty", false},
		{"only the client library's families", text("python_info 1\n"), "no_engine_families", false},
		{"too large, announced", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(1<<30))
			_, _ = w.Write([]byte(calm.page()))
		}, "too_large", false},
		{"too large, not announced", func(w http.ResponseWriter, _ *http.Request) {
			for range 20 {
				_, _ = w.Write([]byte("vllm:x{a=\"" + strings.Repeat("x", 4096) + "\"} 1\n"))
			}
			_, _ = w.Write([]byte(calm.page()))
		}, "too_large", false},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte("vllm:x 1\n")); err != nil {
					return
				}
			}
		}, "too_large", false},
		{"a compressed bomb that nobody asked for", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		}, "not_text", false},
		{"compression said in a second header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Encoding"] = []string{"identity", "gzip"}
			_, _ = w.Write([]byte(calm.page()))
		}, "not_text", false},
		{"the same bomb without saying so", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bomb[:1000]) }, "not_text", false},
		{"shorter than announced", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("vllm:num_requests_waiting 4"))
		}, "truncated", false},
		{"ended by the connection in the middle of a number", raw("HTTP/1.0 200 OK\r\n\r\nvllm:num_requests_waiting 4"), "truncated", false},
		{"cut in a label", text(calm.page() + "vllm:x{a=\"b"), "truncated", false},
		{"to another host", redirect(other.URL + "/metrics"), "redirect", false},
		{"in a circle", redirect("/metrics"), "redirect", false},
		{"reset", aborts(true), "reset", true},
		{"closed without an answer", aborts(false), "reset", true},
		{"not HTTP", raw("SSH-2.0-OpenSSH_9.9\r\n"), "malformed", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, calm.handle)
			f := start(t, func(o *Options) { o.MaxPage = 64 << 10 }, e.spec("a"))
			f.mustScrape("ok")
			sleep := f.settle()
			a := f.endpoint(0)
			before := a.Snapshot()
			e.serve(c.handler)
			f.advance(sleep)
			if got := wait(t, f.results, "a failed scrape"); got != c.want {
				t.Fatalf("scrape: %s, want %s", got, c.want)
			}
			if got := a.ScrapeError(); got != c.want {
				t.Errorf("scrape error %q, want %q", got, c.want)
			}
			if a.Snapshot() != before {
				t.Error("the snapshot was replaced")
			}
			if a.OrderedLast() != c.last {
				t.Errorf("ordered last: %t, want %t", a.OrderedLast(), c.last)
			}
			if got := before.Readings[telemetry.QueueDepth].State(f.clock.Now().Add(time.Minute)); got != telemetry.Stale {
				t.Errorf("a minute later the reading is %v, want stale", got)
			}
			e.serve(calm.handle)
			f.mustScrape("ok")
			if a.ScrapeError() != "" || a.OrderedLast() {
				t.Errorf("back again: scrape error %q, ordered last %t", a.ScrapeError(), a.OrderedLast())
			}
		})
	}
	if got := other.count("/metrics"); got != 0 {
		t.Errorf("a redirection was followed to another host %d times", got)
	}
}

func TestZ10_APageThatDoesNotComeInTimeIsATimeout(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	drip := func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
				_, _ = w.Write([]byte("#"))
				w.(http.Flusher).Flush()
			}
		}
	}
	for name, handler := range map[string]http.HandlerFunc{"headers never": hang, "a byte at a time": drip} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFakeEngine(t, handler)
			f := start(t, func(o *Options) { o.Timeout = 200 * time.Millisecond }, e.spec("a"))
			f.mustScrape("timeout")
			if a := f.endpoint(0); a.Snapshot() != nil || a.ScrapeError() != "timeout" {
				t.Errorf("snapshot %v, scrape error %q", a.Snapshot(), a.ScrapeError())
			}
		})
	}
}

func TestARefusedEndpointIsTriedWithPausesAndRecoversSoon(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	spec := e.spec("a")
	e.Close()
	f := start(t, nil, spec)
	a := f.endpoint(0)
	_, result := f.scrape()
	if result != "refused" || !a.OrderedLast() {
		t.Fatalf("scrape: %s, ordered last %t", result, a.OrderedLast())
	}
	// Its own refusals must not wake it.
	for _, want := range []time.Duration{400, 800, 1600, 3200, 6400, 10000, 10000} {
		want *= time.Millisecond
		slept, result := f.scrape()
		if result != "refused" || slept > want || slept < want*9/10 {
			t.Errorf("%s after %v, want refused after about %v", result, slept, want)
		}
	}
	a.Touch(f.clock.Now())
	f.scrape()
	if slept, _ := f.scrape(); slept > time.Second {
		t.Errorf("a refused candidate is tried after %v, want 1s at most", slept)
	}
	// A request is refused there: the hot cadence bounds the next try.
	f.settle()
	a.Refused()
	if slept := wait(t, f.clock.sleeps, "the pause after a wake"); slept > 200*time.Millisecond {
		t.Errorf("a refused request leads to a try after %v", slept)
	}
	listener, err := net.Listen("tcp", spec.Address.String())
	if err != nil {
		t.Skipf("the port was taken by another: %v", err)
	}
	again := httptest.NewUnstartedServer(http.HandlerFunc(calm.handle))
	_ = again.Listener.Close()
	again.Listener = listener
	again.Start()
	defer again.Close()
	f.advance(200 * time.Millisecond)
	if got := wait(t, f.results, "the scrape after the restart"); got != "ok" || a.OrderedLast() {
		t.Errorf("scrape: %s, ordered last %t", got, a.OrderedLast())
	}
}

func TestAProcessThatStartsAnewIsAskedForItsModels(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	f.mustScrape("ok")
	if got := e.count("/v1/models"); got != 1 {
		t.Fatalf("the models of a process were asked for %d times, want once", got)
	}
	next := calm
	next.start, next.models = "1.75e9", `[{"id":"other"}]`
	sleep := f.settle()
	e.serve(next.handle)
	f.advance(sleep)
	wait(t, f.results, "the scrape after the restart")
	sleep = f.settle()
	if got := names(f.endpoint(0).Snapshot()); !slices.Equal(got, []string{"other"}) {
		t.Errorf("servedModels %v, want those of the new process", got)
	}

	// The models cannot be had: those of the old process must not stay.
	e.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = w.Write([]byte(said{waiting: "3", start: "1.76e9"}.page()))
			return
		}
		http.NotFound(w, r)
	})
	f.advance(sleep)
	if got := wait(t, f.results, "the scrape after the second restart"); got != "ok" {
		t.Errorf("a slow page that fails makes the scrape %s", got)
	}
	f.settle()
	s := f.endpoint(0).Snapshot()
	if got := s.Readings[telemetry.ServedModels].Recorded; got != telemetry.Missing || s.Readings[telemetry.QueueDepth].Value != 3 {
		t.Errorf("servedModels %v, queueDepth %v", got, s.Readings[telemetry.QueueDepth].Value)
	}
}

func TestANewVersionMakesTheModelsDue(t *testing.T) {
	// No process start on the page tells of the restart, and the models fail
	// once, so that they and the version are due at different times.
	before := calm
	before.start = "NaN"
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		before.handle(w, r)
	})
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	after := func(d time.Duration, what said) []string {
		t.Helper()
		f.settle()
		e.serve(what.handle)
		f.advance(d)
		wait(t, f.results, "a scrape")
		return names(f.endpoint(0).Snapshot())
	}
	next := before
	next.version, next.models = "0.33.0", `[{"id":"other"}]`
	if got := after(6*time.Second, before); !slices.Equal(got, []string{"m"}) {
		t.Errorf("6 s after the models failed they are %v", got)
	}
	// Of an idle engine, slow pages are asked for half as often.
	if got := after(60*time.Second, before); !slices.Equal(got, []string{"m"}) {
		t.Errorf("66 s after the models failed they are %v", got)
	}
	if got := after(6*time.Second, next); !slices.Equal(got, []string{"m"}) {
		t.Errorf("before any slow page is due, the models are %v", got)
	}
	// 119 s: the version is due, the models would be after 120 s.
	if got := after(47*time.Second, next); !slices.Equal(got, []string{"other"}) {
		t.Errorf("with a new version the models are %v, want those of the new process", got)
	}
}

func TestM16_ARedirectionToASlashIsFollowedOnceAndRemembered(t *testing.T) {
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			http.Redirect(w, r, "/metrics/", http.StatusTemporaryRedirect)
		case "/metrics/":
			_, _ = w.Write([]byte(calm.page()))
		default:
			calm.handle(w, r)
		}
	})
	f := start(t, nil, e.spec("a"))
	for range 3 {
		f.mustScrape("ok")
	}
	if first, moved := e.count("/metrics"), e.count("/metrics/"); first != 1 || moved != 3 {
		t.Errorf("%d requests for /metrics and %d for /metrics/, want 1 and 3", first, moved)
	}
	if got := f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth].Detail.Source.Path; got != "/metrics/" {
		t.Errorf("source %q", got)
	}
}

func TestWhereTheMetricsAre(t *testing.T) {
	cases := []struct {
		name   string
		target pool.MetricsTarget
		want   string
		asked  string
	}{
		{"the profile's path", pool.MetricsTarget{}, "ok", "/metrics"},
		{"another path", pool.MetricsTarget{Path: "/engine?x=1"}, "ok", "/engine"},
		{"a path that would be a host", pool.MetricsTarget{Path: "@127.0.0.2:1/"}, "malformed", ""},
		{"a path that looks like an address", pool.MetricsTarget{Path: "//127.0.0.2:1/metrics"}, "ok", "//127.0.0.2:1/metrics"},
		{"TLS where there is none", pool.MetricsTarget{Scheme: "https"}, "tls", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, text(calm.page()))
			spec := e.spec("a")
			spec.Metrics = c.target
			f := start(t, nil, spec)
			f.mustScrape(c.want)
			if c.asked != "" && e.count(c.asked) != 1 {
				t.Errorf("asked for %v, want %s", e.requests, c.asked)
			}
		})
	}
	t.Run("another port", func(t *testing.T) {
		serving := newFakeEngine(t, calm.handle)
		metrics := newFakeEngine(t, text(calm.page()))
		spec := serving.spec("a")
		spec.Metrics.Port = metrics.address().Port()
		f := start(t, nil, spec)
		f.mustScrape("ok")
		f.settle()
		if got := names(f.endpoint(0).Snapshot()); !slices.Equal(got, []string{"m"}) {
			t.Errorf("servedModels %v, want what the serving port says", got)
		}
		if m, s := metrics.count("/metrics"), serving.count("/metrics"); m != 1 || s != 0 {
			t.Errorf("%d scrapes of the metrics port and %d of the serving port, want 1 and 0", m, s)
		}
	})
}

func TestWhichEngineItIs(t *testing.T) {
	cases := []struct {
		name, declared, page, want string
		kind                       string
	}{
		{"declared", "vllm", calm.page(), "ok", "vllm"},
		{"detected", "", calm.page(), "ok", "vllm"},
		{"not detected", "", "other:x 1\n", "no_engine_families", ""},
		{"declared, no profile", "other", calm.page(), "profile_unknown", ""},
		{"declared, and another one's page", "vllm", "other:x 1\n", "no_engine_families", "vllm"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, text(c.page))
			spec := e.spec("a")
			spec.Engine = c.declared
			f := start(t, nil, spec)
			f.mustScrape(c.want)
			a := f.endpoint(0)
			if a.OrderedLast() {
				t.Error("an answer does not put the endpoint in normal order")
			}
			kind := ""
			if s := a.Snapshot(); s != nil {
				kind = s.Engine
			}
			if kind != c.kind {
				t.Errorf("engine %q, want %q", kind, c.kind)
			}
		})
	}
}

func TestP5_AnEndpointThatLeavesTakesItsScrapeAndItsConnectionsAlong(t *testing.T) {
	asked, called := make(chan struct{}), make(chan struct{})
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(called)
	})
	idle := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { o.Timeout = time.Hour }, e.spec("a"))
	f.advance(wait(t, f.clock.sleeps, "the first pause"))
	wait(t, asked, "the scrape")
	gone := f.endpoint(0)
	f.update(idle.spec("b"))
	wait(t, called, "the scrape to be called off")
	f.advance(time.Second)
	if got := wait(t, f.results, "the other's scrape"); got != "ok" {
		t.Errorf("the other endpoint: %s", got)
	}
	if gone.Snapshot() != nil || gone.ScrapeError() != "" {
		t.Errorf("the one that left: snapshot %v, scrape error %q", gone.Snapshot(), gone.ScrapeError())
	}
	for f.endpoint(0).Snapshot() == nil || len(names(f.endpoint(0).Snapshot())) == 0 {
		wait(t, f.clock.sleeps, "the end of the turn")
	}
	f.update()
	wait(t, idle.closed, "the idle connection to be closed")
}

func TestThereIsOneScrapeInFlightForEachEndpoint(t *testing.T) {
	release := make(chan struct{})
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		calm.handle(w, r)
	})
	f := start(t, nil, e.spec("a"))
	f.advance(wait(t, f.clock.sleeps, "the first pause"))
	a := f.endpoint(0)
	for range 10 {
		a.Wake()
		f.advance(time.Second)
	}
	close(release)
	wait(t, f.results, "the first scrape")
	for range 5 {
		f.mustScrape("ok")
	}
	if got := e.atOnce(); got != 1 {
		t.Errorf("%d requests at once", got)
	}
}

func TestAPanicIsContained(t *testing.T) {
	e := newFakeEngine(t, text(calm.page()))
	spec := e.spec("a")
	spec.Engine = ""
	logs, recorded := observer.New(zapcore.WarnLevel)
	f := start(t, func(o *Options) { o.Profiles, o.Logger = nil, zap.New(logs) }, spec)
	f.mustScrape("panic")
	f.mustScrape("panic")
	if got := f.endpoint(0).ScrapeError(); got != "panic" {
		t.Errorf("scrape error %q", got)
	}
	if recorded.FilterMessageSnippet("panic").Len() == 0 {
		t.Error("the panic is not in the log")
	}
}

func TestOnlyChangesAreLogged(t *testing.T) {
	e := newFakeEngine(t, http.NotFound)
	logs, recorded := observer.New(zapcore.InfoLevel)
	f := start(t, func(o *Options) { o.Logger = zap.New(logs) }, e.spec("a"))
	for range 5 {
		f.mustScrape("status_404")
	}
	sleep := f.settle()
	e.serve(calm.handle)
	f.advance(sleep)
	wait(t, f.results, "the scrape that succeeds")
	f.mustScrape("ok")
	f.settle()
	var lines []string
	for _, l := range recorded.All() {
		lines = append(lines, l.Message)
	}
	if want := []string{"scrape fails", "scrape succeeds again"}; !slices.Equal(lines, want) {
		t.Errorf("logged %v, want %v", lines, want)
	}
}

func TestP3_EndpointsThatHangDoNotStallTheRest(t *testing.T) {
	const good, bad, workers = 20, 20, 8
	var specs []pool.Spec
	for i := range good {
		specs = append(specs, newFakeEngine(t, calm.handle).spec(fmt.Sprintf("good-%d", i)))
	}
	for i := range bad {
		specs = append(specs, newFakeEngine(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}).spec(fmt.Sprintf("bad-%d", i)))
	}
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", specs); err != nil {
		t.Fatal(err)
	}
	results := make(chan string, 100000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		New(Options{
			Hot: 20 * time.Millisecond, Warm: 20 * time.Millisecond, Idle: 20 * time.Millisecond, Timeout: 500 * time.Millisecond,
			Workers: workers, Profiles: profiles(t),
			Observe: func(_, result string, _ time.Duration) { results <- result },
		}).Run(ctx, registry)
	}()
	defer func() { cancel(); wait(t, done, "Run to return") }()
	for failed := 0; failed < bad; {
		if wait(t, results, "the first failures") == "timeout" {
			failed++
		}
	}
	ok := 0
	for failed := 0; failed < 6; {
		if wait(t, results, "a scrape") == "ok" {
			ok++
		} else {
			failed++
		}
	}
	if ok < good {
		t.Errorf("while 6 scrapes timed out, %d good ones were made, want at least one for each of %d endpoints", ok, good)
	}
}

func TestP5_NothingIsLeftAfterRunReturns(t *testing.T) {
	e := newFakeEngine(t, calm.handle)
	var servers []*fakeEngine
	for range 30 {
		servers = append(servers, newFakeEngine(t, calm.handle))
	}
	base := runtime.NumGoroutine()
	f := start(t, func(o *Options) {
		o.NewTimer, o.Clock, o.Hot, o.Idle = newRealTimer, monotonic(), time.Millisecond, 5*time.Millisecond
	})
	for round := range 5 {
		var specs []pool.Spec
		for i, s := range servers {
			specs = append(specs, s.spec(fmt.Sprintf("%d-%d", round, i)))
		}
		f.update(specs...)
		for range 60 {
			wait(t, f.results, "scrapes")
		}
	}
	f.update(e.spec("last"))
	f.stop()
	for _, s := range servers {
		s.CloseClientConnections()
	}
	e.CloseClientConnections()
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > base+2 {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), base, buf[:runtime.Stack(buf, true)])
		}
		runtime.Gosched()
	}
}
