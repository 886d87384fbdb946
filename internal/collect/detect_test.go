package collect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// changed are the built-in profiles, one of them with another text.
func changed(t *testing.T, name string, edit func(text string) string) *engine.Set {
	t.Helper()
	set := profiles(t)
	p, err := engine.Parse(name+".yaml", []byte(edit(string(set.Profile(name).Text()))))
	if err != nil {
		t.Fatal(err)
	}
	one, err := engine.NewSet(p)
	if err != nil {
		t.Fatal(err)
	}
	if set, err = set.With(one); err != nil {
		t.Fatal(err)
	}
	return set
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	page, err := os.ReadFile("../engine/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// site answers with a page for each path, and 404 for others.
type site map[string]string

func (s site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page, ok := s[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte(page))
}

func models(owner string) string {
	return `{"object":"list","data":[{"id":"m","object":"model","owned_by":"` + owner + `"}]}`
}

// undeclared is an endpoint of which nothing says what it is.
func (e *fakeEngine) undeclared(name string) pool.Spec {
	spec := e.spec(name)
	spec.Engine = ""
	return spec
}

func kindOf(a *pool.Endpoint) string {
	if s := a.Snapshot(); s != nil {
		return s.Engine
	}
	return ""
}

func TestEachEngineIsRecognisedByItsPage(t *testing.T) {
	const statistics = `[{"iter":1,"numActiveRequests":3}]`
	cases := []struct {
		engine, page string
		site         site
		// asked are the pages that detection asks for, in order.
		asked []string
	}{
		{"vllm", "vllm.prom", site{"/v1/models": models("vllm")}, []string{"/prometheus/metrics", "/v1/models", "/metrics"}},
		{"sglang", "sglang.prom", site{"/v1/models": models("sglang")}, []string{"/prometheus/metrics", "/v1/models", "/metrics"}},
		{"atom", "atom.prom", site{"/v1/models": models("atom")}, []string{"/prometheus/metrics", "/v1/models", "/metrics"}},
		{"trtllm-serve", "trtllm.prom", site{"/v1/models": models("tensorrt_llm"), "/metrics": statistics}, []string{"/prometheus/metrics"}},
	}
	for _, c := range cases {
		t.Run(c.engine, func(t *testing.T) {
			path := profiles(t).Profile(c.engine).Metrics().Path
			c.site[path] = string(golden(t, c.page))
			e := newFakeEngine(t, c.site.ServeHTTP)
			f := start(t, nil, e.undeclared("a"))
			f.mustScrape("ok")
			f.settle()
			if got := kindOf(f.endpoint(0)); got != c.engine {
				t.Errorf("engine %q", got)
			}
			if got := names(f.endpoint(0).Snapshot()); !slices.Equal(got, []string{"m"}) {
				t.Errorf("servedModels %v", got)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(e.requests) < len(c.asked) || !slices.Equal(e.requests[:len(c.asked)], c.asked) {
				t.Errorf("asked for %v, want first %v", e.requests, c.asked)
			}
		})
	}
	t.Run("triton-tensorrt-llm", func(t *testing.T) {
		metrics := newFakeEngine(t, site{"/metrics": string(golden(t, "triton-trtllm.prom"))}.ServeHTTP)
		serving := newFakeEngine(t, site{"/v2": `{"version":"2.60.0"}`, "/v2/health/live": "", "/v2/health/ready": ""}.ServeHTTP)
		set := changed(t, "triton-tensorrt-llm", func(text string) string {
			return strings.Replace(text, "port: 8002", fmt.Sprintf("port: %d", metrics.address().Port()), 1)
		})
		f := start(t, func(o *Options) { o.Profiles = set }, serving.undeclared("a"))
		f.mustScrape("ok")
		f.settle()
		s := f.endpoint(0).Snapshot()
		if s.Engine != "triton-tensorrt-llm" || s.Readings[telemetry.EngineVersion].Detail.Text != "2.60.0" {
			t.Errorf("engine %q, engineVersion %+v", s.Engine, s.Readings[telemetry.EngineVersion])
		}
		for _, field := range []telemetry.Field{telemetry.Health, telemetry.Ready} {
			if r := s.Readings[field]; r.Recorded != telemetry.Fresh || r.Value != 1 {
				t.Errorf("%s is %+v", field, r)
			}
		}
		// Known, it is asked at its own port only.
		before := metrics.count("/metrics")
		f.mustScrape("ok")
		if got := metrics.count("/metrics") - before; got != 1 || serving.count("/metrics") != 1 {
			t.Errorf("%d scrapes of the metrics port, and /metrics asked %d times at the serving port, want 1 and 1", got, serving.count("/metrics"))
		}
	})
}

func TestM6_TheDrainingPageOfATRTLLMServerIsNeverAskedFor(t *testing.T) {
	// Without return_perf_metrics the text page does not exist.
	answers := site{"/v1/models": models("tensorrt_llm"), "/metrics": "[]"}
	cases := []struct {
		name    string
		declare func(*pool.Spec)
		want    string
	}{
		{"nothing declared", func(s *pool.Spec) { s.Engine = "" }, "no_text_page"},
		{"declared", func(s *pool.Spec) { s.Engine = "trtllm-serve" }, "status_404"},
		{"declared by an alias", func(s *pool.Spec) { s.Engine = "trtllm" }, "status_404"},
		{"declared, with that path", func(s *pool.Spec) { s.Engine = "trtllm-serve"; s.Metrics.Path = "/metrics?x=1" }, "no_text_page"},
		{"only that path declared", func(s *pool.Spec) { s.Engine = ""; s.Metrics.Path = "/metrics" }, "no_text_page"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, answers.ServeHTTP)
			spec := e.spec("a")
			c.declare(&spec)
			f := start(t, nil, spec)
			for range 3 {
				f.mustScrape(c.want)
			}
			if e.count("/metrics") != 0 {
				t.Errorf("/metrics was asked for: %v", e.requests)
			}
			if f.endpoint(0).OrderedLast() {
				t.Error("an endpoint that answers is ordered last")
			}
			if spec.Engine != "" {
				f.settle()
				if got := names(f.endpoint(0).Snapshot()); !slices.Equal(got, []string{"m"}) {
					t.Errorf("servedModels %v, want what the models page says", got)
				}
			}
		})
	}
	t.Run("a redirection to it", func(t *testing.T) {
		e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/prometheus/metrics" {
				http.Redirect(w, r, "/metrics", http.StatusFound)
				return
			}
			answers.ServeHTTP(w, r)
		})
		spec := e.spec("a")
		spec.Engine = "trtllm-serve"
		f := start(t, nil, spec)
		f.mustScrape("redirect")
		if e.count("/metrics") != 0 {
			t.Errorf("/metrics was asked for: %v", e.requests)
		}
	})
	t.Run("a server that is not ready to say who it is", func(t *testing.T) {
		e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			answers.ServeHTTP(w, r)
		})
		f := start(t, nil, e.undeclared("a"))
		f.mustScrape("status_503")
		e.serve(answers.ServeHTTP)
		f.scrape()
		f.mustScrape("no_text_page")
		if e.count("/metrics") != 0 {
			t.Errorf("/metrics was asked for: %v", e.requests)
		}
	})
}

func TestAnEngineThatNobodyKnowsStaysUnknown(t *testing.T) {
	const both = "vllm:num_requests_running 1\nsglang:num_running_reqs 1\n"
	cases := []struct {
		name string
		site site
		want string
	}{
		{"families of nobody", site{"/metrics": "other:x 1\n", "/v1/models": models("other")}, "no_engine_families"},
		{"families of two", site{"/metrics": both, "/v1/models": models("vllm")}, "several_engines"},
		{"families of none, and who serves the models", site{"/metrics": "python_info 1\n", "/v1/models": models("vllm")}, "no_engine_families"},
		{"nothing there", site{}, "status_404"},
		{"an empty page", site{"/metrics": ""}, "empty"},
		{"a page of GPUs", site{"/metrics": string(golden(t, "dcgm.prom"))}, "no_engine_families"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := newFakeEngine(t, c.site.ServeHTTP)
			f := start(t, nil, e.undeclared("a"))
			f.mustScrape(c.want)
			f.mustScrape(c.want)
			a := f.endpoint(0)
			if a.Snapshot() != nil || a.OrderedLast() || a.ScrapeError() != c.want {
				t.Errorf("snapshot %v, ordered last %t, scrape error %q", a.Snapshot(), a.OrderedLast(), a.ScrapeError())
			}
			if got := e.count("/v1/models"); got != 1 {
				t.Errorf("asked who serves the models %d times, want once", got)
			}
		})
	}
}

func TestAnotherEndpointsPortIsNotTakenForThisOnes(t *testing.T) {
	// On one machine, the port that Triton shows its metrics at by default may be
	// another engine's serving port.
	neighbour := newFakeEngine(t, calm.handle)
	e := newFakeEngine(t, http.NotFound)
	set := changed(t, "triton-tensorrt-llm", func(text string) string {
		return strings.Replace(text, "port: 8002", fmt.Sprintf("port: %d", neighbour.address().Port()), 1)
	})
	f := start(t, func(o *Options) { o.Profiles = set }, e.undeclared("a"))
	f.mustScrape("no_engine_families")
	if f.endpoint(0).Snapshot() != nil {
		t.Errorf("the readings are those of a neighbour: %+v", f.endpoint(0).Snapshot())
	}
}

func TestAClosedMetricsPortSaysNothingOfTheServingPort(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	port := closed.Listener.Addr().String()
	port = port[strings.LastIndex(port, ":")+1:]
	closed.Close()
	set := changed(t, "triton-tensorrt-llm", func(text string) string {
		return strings.Replace(text, "port: 8002", "port: "+port, 1)
	})
	e := newFakeEngine(t, site{"/v2/health/ready": "", "/v2": `{"version":"2.60.0"}`}.ServeHTTP)
	spec := e.spec("a")
	spec.Engine = "triton-tensorrt-llm"
	f := start(t, func(o *Options) { o.Profiles = set }, spec)
	f.mustScrape("refused")
	f.settle()
	a := f.endpoint(0)
	if a.OrderedLast() || a.ScrapeError() != "refused" {
		t.Errorf("ordered last %t, scrape error %q", a.OrderedLast(), a.ScrapeError())
	}
	s := a.Snapshot()
	if s == nil || s.Readings[telemetry.Ready].Value != 1 || s.Readings[telemetry.QueueDepth].Recorded != telemetry.Missing {
		t.Fatalf("snapshot %+v", s)
	}
	if got := s.Readings[telemetry.QueueDepth].Support; got != telemetry.SupportUnknown {
		t.Errorf("queueDepth is %v without a page", got)
	}
}

func TestAClosedMetricsPortMakesTheServingPortBeAsked(t *testing.T) {
	serving, metrics := newFakeEngine(t, calm.handle), newFakeEngine(t, text(calm.page()))
	spec := serving.undeclared("a")
	spec.Metrics.Port = metrics.address().Port()
	f := start(t, nil, spec)
	f.mustScrape("ok")
	f.settle()
	metrics.serve(aborts(true))
	f.mustScrape("reset")
	if f.endpoint(0).OrderedLast() {
		t.Error("ordered last for what the metrics port does")
	}
	f.settle()
	serving.serve(aborts(true))
	f.mustScrape("reset")
	if !f.endpoint(0).OrderedLast() {
		t.Error("the serving port refuses, and the endpoint is not ordered last")
	}
}

func TestAPageOfAnotherEngineThanDeclaredIsReadAsWhatItIs(t *testing.T) {
	e := newFakeEngine(t, site{"/metrics": string(golden(t, "sglang.prom")), "/v1/models": models("sglang")}.ServeHTTP)
	logs, recorded := observer.New(zapcore.InfoLevel)
	var engines []string
	seen := make(chan string, 100)
	f := start(t, func(o *Options) {
		o.Logger = zap.New(logs)
		observe := o.Observe
		o.Observe = func(engine, result string, took time.Duration) {
			seen <- engine
			observe(engine, result, took)
		}
	}, e.spec("a"))
	for range 3 {
		f.mustScrape("ok")
		engines = append(engines, <-seen)
	}
	if want := []string{"sglang", "sglang", "sglang"}; !slices.Equal(engines, want) {
		t.Errorf("scrapes are counted for %v", engines)
	}
	f.settle()
	s := f.endpoint(0).Snapshot()
	if s.Engine != "sglang" || s.Declared != "vllm" {
		t.Errorf("engine %q, declared %q", s.Engine, s.Declared)
	}
	if got := names(s); !slices.Equal(got, []string{"m"}) {
		t.Errorf("servedModels %v", got)
	}
	// The declared engine comes, without a gap that could be seen.
	e.serve(calm.handle)
	f.mustScrape("ok")
	f.settle()
	if s := f.endpoint(0).Snapshot(); s.Engine != "vllm" || s.Declared != "" {
		t.Errorf("engine %q, declared %q", s.Engine, s.Declared)
	}
	var lines []string
	for _, l := range recorded.All() {
		lines = append(lines, l.Message)
	}
	want := []string{"the page is that of another engine than declared, and is read as such", "the page is that of the declared engine again"}
	if !slices.Equal(lines, want) {
		t.Errorf("logged %q", lines)
	}
}

func TestAnEngineWithoutStatisticsIsStillAskedForItsModels(t *testing.T) {
	silent := site{"/metrics": "python_info 1\nprocess_start_time_seconds 1.7e9\n", "/v1/models": models("vllm"), "/version": `{"version":"0.32.0"}`, "/health": ""}
	e := newFakeEngine(t, silent.ServeHTTP)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("no_engine_families")
	f.settle()
	a := f.endpoint(0)
	s := a.Snapshot()
	if s == nil || a.ScrapeError() != "no_engine_families" || a.OrderedLast() {
		t.Fatalf("snapshot %v, scrape error %q, ordered last %t", s, a.ScrapeError(), a.OrderedLast())
	}
	if got := names(s); !slices.Equal(got, []string{"m"}) {
		t.Errorf("servedModels %v", got)
	}
	if r := s.Readings[telemetry.QueueDepth]; r.Support != telemetry.Disabled || r.Recorded != telemetry.Missing {
		t.Errorf("queueDepth %+v", r)
	}
	// They go on being asked.
	before := e.count("/health")
	for range 10 {
		f.mustScrape("no_engine_families")
	}
	f.settle()
	if e.count("/health") == before {
		t.Error("/health was asked for only once")
	}
	e.serve(calm.handle)
	if f.mustScrape("ok"); a.ScrapeError() != "" {
		t.Errorf("scrape error %q", a.ScrapeError())
	}
}

func TestARequestThatNoPageCountsStaysPendingWhileOnlySlowPagesAreRead(t *testing.T) {
	e := newFakeEngine(t, site{"/metrics": "python_info 1\n", "/v1/models": models("vllm")}.ServeHTTP)
	f := start(t, nil, e.spec("a"))
	a := f.endpoint(0)
	unit := a.Take(f.clock.Now())
	defer unit.Release()
	f.mustScrape("no_engine_families")
	f.settle()
	if a.Snapshot() == nil || a.Pending() != 1 {
		t.Errorf("snapshot %v, %d pending, want one and 1", a.Snapshot(), a.Pending())
	}
}

func TestAnotherEngineBehindTheSameAddressIsSeen(t *testing.T) {
	e := newFakeEngine(t, site{"/metrics": string(golden(t, "sglang.prom")), "/v1/models": models("sglang")}.ServeHTTP)
	f := start(t, nil, e.undeclared("a"))
	f.mustScrape("ok")
	f.settle()
	e.serve(aborts(true))
	f.mustScrape("reset")
	f.settle()
	before := e.count("/metrics")
	e.serve(site{"/prometheus/metrics": string(golden(t, "trtllm.prom")), "/v1/models": models("tensorrt_llm"), "/metrics": "[]"}.ServeHTTP)
	f.mustScrape("ok")
	if got := kindOf(f.endpoint(0)); got != "trtllm-serve" {
		t.Errorf("engine %q", got)
	}
	if got := e.count("/metrics") - before; got != 0 {
		t.Errorf("the draining page was asked for %d times", got)
	}
}

// What is declared may be wrong in a way that the page at its place cannot show:
// another engine has its metrics elsewhere.
func TestADeclaredEngineWithoutAPageIsSearchedFor(t *testing.T) {
	vllm := site{"/metrics": string(golden(t, "vllm.prom")), "/v1/models": models("vllm")}
	trtllm := site{"/prometheus/metrics": string(golden(t, "trtllm.prom")), "/v1/models": models("tensorrt_llm"), "/metrics": "[]"}
	for _, c := range []struct {
		declared, is string
		site         site
	}{
		{"trtllm-serve", "vllm", vllm},
		{"triton-tensorrt-llm", "vllm", vllm},
		{"vllm", "trtllm-serve", trtllm},
	} {
		e := newFakeEngine(t, c.site.ServeHTTP)
		spec := e.spec("a")
		spec.Engine = c.declared
		f := start(t, nil, spec)
		f.mustScrape("ok")
		f.settle()
		s := f.endpoint(0).Snapshot()
		if s == nil || s.Engine != c.is || s.Declared != c.declared {
			t.Errorf("%s declared, %s there: %+v", c.declared, c.is, s)
		}
	}
}

// An engine that was taken for another is asked once for what must not be asked.
func TestTheDrainingPageOfAnEngineThatIsDeclaredWronglyIsAskedForOnce(t *testing.T) {
	e := newFakeEngine(t, site{"/v1/models": models("tensorrt_llm"), "/metrics": `[{"iter":1}]`}.ServeHTTP)
	f := start(t, nil, e.spec("a"))
	f.mustScrape("not_text")
	f.mustScrape("no_text_page")
	f.mustScrape("no_text_page")
	if got := e.count("/metrics"); got != 1 {
		t.Errorf("/metrics was asked for %d times, want once", got)
	}
}

// A search in vain leaves the reason of what was declared, and asks nobody for
// what must not be asked.
func TestASearchInVainLeavesTheReason(t *testing.T) {
	e := newFakeEngine(t, site{"/v1/models": models("tensorrt_llm"), "/metrics": "[]"}.ServeHTTP)
	spec := e.spec("a")
	spec.Engine = "trtllm-serve"
	f := start(t, nil, spec)
	f.mustScrape("status_404")
	f.settle()
	if got := e.count("/metrics"); got != 0 {
		t.Errorf("/metrics was asked for %d times", got)
	}
}

// Where nothing is declared, the pages of all engines are tried. One that begins
// and does not come tells more than those that are not there.
func TestAPageThatDoesNotComeTellsMoreThanThoseThatAreNotThere(t *testing.T) {
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			panic(http.ErrAbortHandler)
		}
		site{"/v1/models": models("vllm")}.ServeHTTP(w, r)
	})
	f := start(t, nil, e.undeclared("a"))
	f.mustScrape("reset")
	for _, c := range []struct {
		answer  answer
		serving bool
		want    int
	}{
		{answer{reason: "timeout"}, true, 2},
		{answer{reason: "timeout"}, false, 0},
		{answer{reason: "refused"}, false, 0},
		{answer{reason: "status_404", status: 404}, true, 1},
		{answer{reason: "not_text", status: 200}, true, 3},
	} {
		if got := telling(c.answer, c.serving); got != c.want {
			t.Errorf("%s, serving port %t: %d, want %d", c.answer.reason, c.serving, got, c.want)
		}
	}
}

// A page that is found elsewhere than its profile says is read, and that is told.
func TestAPageElsewhereThanItsProfileSaysIsTold(t *testing.T) {
	e := newFakeEngine(t, site{"/metrics": string(golden(t, "sglang.prom")), "/v1/models": models("sglang")}.ServeHTTP)
	spec := e.spec("a")
	spec.Engine = "sglang"
	set := changed(t, "sglang", func(text string) string { return strings.Replace(text, "path: /metrics", "path: /stats", 1) })
	logs, recorded := observer.New(zapcore.WarnLevel)
	f := start(t, func(o *Options) { o.Logger, o.Profiles = zap.New(logs), set }, spec)
	f.mustScrape("ok")
	f.mustScrape("ok")
	f.settle()
	if got := f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth].Detail.Source.Path; got != "/metrics" {
		t.Errorf("read from %s", got)
	}
	lines := recorded.All()
	if len(lines) != 1 || lines[0].ContextMap()["profile"] != "/stats" || lines[0].ContextMap()["path"] != "/metrics" {
		t.Errorf("logged %v", lines)
	}
}

// Half an answer does not tell whose models there are.
func TestM6_OnlyAWholeListOfModelsLetsAProbePass(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"nothing":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) },
		"a page":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no owner": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[{"id":"m"}]}`)) },
		"one without owner": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":[{"id":"a","owned_by":"x"},{"id":"b"}]}`))
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "500")
			_, _ = w.Write([]byte(`{"data":[]}`))
		},
		"a key is needed": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
	} {
		e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				answer(w, r)
				return
			}
			site{"/metrics": "[]"}.ServeHTTP(w, r)
		})
		f := start(t, nil, e.undeclared("a"))
		f.scrape()
		f.scrape()
		if got := e.count("/metrics"); got != 0 || f.endpoint(0).Snapshot() != nil {
			t.Errorf("%s: /metrics was asked for %d times", name, got)
		}
	}
}
