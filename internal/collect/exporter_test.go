package collect

import (
	"fmt"
	"math"
	"net/http"
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

// gpus is a page of dcgm-exporter: the power of each pod, in W.
func gpus(power map[string]float64) string {
	var b strings.Builder
	for pod, watts := range power {
		namespace, name, _ := strings.Cut(pod, "/")
		fmt.Fprintf(&b, "DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",namespace=%q,pod=%q} %v\n", namespace, name, watts)
	}
	return b.String()
}

func dcgm(t *testing.T, e *fakeEngine) Exporter {
	return Exporter{Profile: profiles(t).Profile("dcgm"), Address: e.address()}
}

// podded is an endpoint of a pod.
func (e *fakeEngine) podded(name, pod string) pool.Spec {
	spec := e.spec(name)
	spec.Pod = pod
	return spec
}

// named tells the results of engines and exporters apart.
func named(o *Options) {
	observe := o.Observe
	o.Observe = func(engine, result string, took time.Duration) { observe(engine, engine+" "+result, took) }
}

func (f *fleet) power(i int) telemetry.Reading {
	s := f.endpoint(i).Snapshot()
	if s == nil {
		return telemetry.Reading{}
	}
	return s.Readings[telemetry.Power]
}

func TestWhatAnExporterSaysJoinsTheEndpointsOfItsPods(t *testing.T) {
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300, "llm/other": 900, "else/b": 700})}.ServeHTTP)
	a, b := newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} }, a.podded("a", "llm/a"), b.podded("b", "llm/b"))
	f.see("dcgm ok")
	f.refreshed(0)
	r := f.power(0)
	if r.Recorded != telemetry.Fresh || r.Value != 300 || r.Provenance != telemetry.Measured {
		t.Errorf("power of a %+v", r)
	}
	if r.ExpiresAt.Sub(r.ObservedAt) < 30*time.Second {
		t.Errorf("the power lives %v, want what the profile says at least", r.ExpiresAt.Sub(r.ObservedAt))
	}
	// The node has others, and none of their values is b's.
	if r := f.power(1); r.Recorded != telemetry.Missing {
		t.Errorf("power of b %+v", r)
	}
	if got := f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth]; got.Recorded != telemetry.Fresh {
		t.Errorf("queueDepth %+v", got)
	}
	if got := x.atOnce(); got != 1 {
		t.Errorf("%d requests at once to an exporter", got)
	}
}

func TestAPodOfSeveralEndpointsGivesItsValuesToNoneOfThem(t *testing.T) {
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
	first, second := newFakeEngine(t, calm.handle), newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} }, first.podded("a-0", "llm/a"), second.podded("a-1", "llm/a"))
	f.see("dcgm ok")
	f.refreshed(0)
	for i := range 2 {
		r := f.power(i)
		if r.Recorded != telemetry.Missing || r.Detail == nil || !strings.Contains(r.Detail.Reasons[0], "several endpoints") {
			t.Errorf("power of rank %d %+v", i, r)
		}
	}
	// One of them leaves: what is left is the other's.
	f.update(first.podded("a-0", "llm/a"))
	f.turns("the power of the only endpoint", func() bool { return f.power(0).Value == 300 })
}

func TestAnExporterThatFailsHoldsToWhatItSaidUntilThatExpires(t *testing.T) {
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
	e := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} }, e.podded("a", "llm/a"))
	f.see("dcgm ok")
	f.refreshed(0)
	before := f.power(0)
	for _, c := range []struct {
		handler http.HandlerFunc
		want    string
	}{
		{aborts(true), "dcgm reset"},
		{http.NotFound, "dcgm status_404"},
		{text("[]"), "dcgm not_text"},
		{text("python_info 1\n"), "dcgm no_engine_families"},
		{text(calm.page()), "dcgm no_engine_families"},
	} {
		x.serve(c.handler)
		f.see(c.want)
	}
	f.refreshed(0)
	after := f.power(0)
	if after.ObservedAt < before.ObservedAt || after.Value != 300 {
		t.Errorf("power %+v, then %+v", before, after)
	}
	if got := after.State(after.ExpiresAt); got != telemetry.Stale {
		t.Errorf("after its time it is %v, want stale", got)
	}
	if f.endpoint(0).ScrapeError() != "" || f.endpoint(0).OrderedLast() {
		t.Errorf("the exporter's fault is the endpoint's: %q", f.endpoint(0).ScrapeError())
	}
	// A pod that is not on the page any more has no GPU that is known.
	x.serve(text(gpus(map[string]float64{"llm/other": 1})))
	f.see("dcgm ok")
	f.refreshed(0)
	if r := f.power(0); r.Recorded != telemetry.Missing {
		t.Errorf("power of a pod that the exporter does not know %+v", r)
	}
}

// An engine may be away while the exporter on its node is well.
func TestWhatAnExporterSaysIsTakenOverWhileTheEndpointsPageFails(t *testing.T) {
	for name, fails := range map[string]http.HandlerFunc{"an answer without a page": http.NotFound, "no answer": aborts(true)} {
		t.Run(name, func(t *testing.T) {
			x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
			e := newFakeEngine(t, calm.handle)
			f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} }, e.podded("a", "llm/a"))
			f.see("dcgm ok")
			f.refreshed(0)
			load := f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth]
			e.serve(fails)
			x.serve(text(gpus(map[string]float64{"llm/a": 450})))
			f.see("dcgm ok")
			f.turns("the new power", func() bool { return f.power(0).Value == 450 })
			if got := f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth]; got.Value != load.Value || got.ObservedAt != load.ObservedAt {
				t.Errorf("queueDepth %+v, was %+v", got, load)
			}
		})
	}
}

func TestAnExporterIsReadAtTheIdleCadenceAndLessOftenWhileItFails(t *testing.T) {
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} })
	// The exporters are there before the pool is.
	wait(t, f.clock.sleeps, "the turn before the pool is known")
	f.mustScrape("dcgm ok")
	for range 3 {
		if slept, got := f.scrape(); got != "dcgm ok" || slept <= 4500*time.Millisecond || slept > 5*time.Second {
			t.Errorf("%s after %v, want ok after about 5s", got, slept)
		}
	}
	x.serve(http.NotFound)
	f.mustScrape("dcgm status_404")
	for _, want := range []time.Duration{400, 800, 1600, 3200, 6400, 10000, 10000} {
		want *= time.Millisecond
		if slept, got := f.scrape(); got != "dcgm status_404" || slept > want || slept < want*9/10 {
			t.Errorf("%s after %v, want status_404 after about %v", got, slept, want)
		}
	}
}

func TestTheFirstExporterThatHasAValueCounts(t *testing.T) {
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 300})}.ServeHTTP)
	y := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 999}) + "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",namespace=\"llm\",pod=\"a\"} 50\n"}.ServeHTTP)
	e := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x), dcgm(t, y)} }, e.podded("a", "llm/a"))
	utilization := func() telemetry.Reading { return f.endpoint(0).Snapshot().Readings[telemetry.GPUUtilization] }
	f.refreshed(0)
	f.turns("both exporters", func() bool { return f.power(0).Value == 300 && utilization().Recorded == telemetry.Fresh })
	f.refreshed(0)
	if r := f.power(0); r.Value != 300 {
		t.Errorf("power %v, want that of the first exporter", r.Value)
	}
	if r := utilization(); r.Value != 0.5 {
		t.Errorf("gpuUtilization %+v, want what only the second knows", r)
	}
}

func TestTheEnginesOwnWordComesBeforeTheExporters(t *testing.T) {
	page := string(golden(t, "triton-trtllm.prom"))
	set := profiles(t)
	own, err := set.Profile("triton-tensorrt-llm").Read([]byte(page), engine.Input{At: 1})
	if err != nil {
		t.Fatal(err)
	}
	x := newFakeEngine(t, site{"/metrics": gpus(map[string]float64{"llm/a": 12345})}.ServeHTTP)
	e := newFakeEngine(t, text(page))
	spec := e.podded("a", "llm/a")
	spec.Engine, spec.Metrics.Port = "triton-tensorrt-llm", e.address().Port()
	f := start(t, func(o *Options) { named(o); o.Exporters = []Exporter{dcgm(t, x)} }, spec)
	f.see("dcgm ok")
	f.refreshed(0)
	if got, want := f.power(0).Value, own.Readings[telemetry.Power].Value; got != want || want == 0 {
		t.Errorf("power %v, want %v, which the engine states", got, want)
	}
}

func TestTheTableFollowsPodsFromNodeToNode(t *testing.T) {
	gpus := Exporter{Profile: profiles(t).Profile("dcgm")}
	table := newTable([]Exporter{gpus, gpus})
	says := func(watts float64) *engine.Readings {
		r := &engine.Readings{}
		r[telemetry.Power] = telemetry.Reading{Value: watts, Support: telemetry.Supported, Recorded: telemetry.Fresh}
		return r
	}
	power := func(pod string) float64 {
		s := table.join(&telemetry.Snapshot{}, pod, false)
		if s.Readings[telemetry.Power].Recorded != telemetry.Fresh {
			return math.NaN()
		}
		return s.Readings[telemetry.Power].Value
	}
	table.put(table.exporters[1], map[engine.Pod]*engine.Readings{"n/a": says(1), "n/b": says(2)})
	if power("n/a") != 1 || power("n/b") != 2 || !math.IsNaN(power("n/c")) || !math.IsNaN(power("")) {
		t.Errorf("a %v, b %v, c %v", power("n/a"), power("n/b"), power("n/c"))
	}
	table.put(table.exporters[0], map[engine.Pod]*engine.Readings{"n/a": says(3)})
	if power("n/a") != 3 {
		t.Errorf("a %v, want that of the first exporter", power("n/a"))
	}
	table.put(table.exporters[1], nil)
	table.put(table.exporters[0], map[engine.Pod]*engine.Readings{"n/b": says(4)})
	if !math.IsNaN(power("n/a")) || power("n/b") != 4 {
		t.Errorf("a %v, b %v", power("n/a"), power("n/b"))
	}
	table.put(table.exporters[0], nil)
	table.byPod.Range(func(pod, _ any) bool {
		t.Errorf("%v is left", pod)
		return true
	})
}

func TestExportersThatHangDoNotStallTheOthers(t *testing.T) {
	clock := newFakeClock()
	var list []Exporter
	for _, spec := range manySpecs(20) {
		list = append(list, Exporter{Profile: profiles(t).Profile("dcgm"), Address: spec.Address})
	}
	opts := Options{Clock: clock.Now, Exporters: list}.withDefaults()
	s := newScheduler(opts, newTable(list))
	hang := map[*exporter]bool{}
	for _, x := range s.due[:10] {
		x.failures, x.wasSlow = 1, true
		hang[x.exporter] = true
	}
	clock.Advance(time.Second)
	good, held := 0, 0
	for range 100 {
		s.dispatch(t.Context())
		if s.running[exporting]+s.running[exportFailing] > exportWorkers || s.running[exportFailing] > 1 {
			t.Fatalf("%d workers read exporters, %d of them such as hang", s.running[exporting]+s.running[exportFailing], s.running[exportFailing])
		}
		for len(s.jobs) > 0 {
			j := <-s.jobs
			if hang[j.target.exporter] {
				held++
				continue
			}
			good++
			s.finish(result{j.target, report{started: clock.Now(), interval: opts.Idle}})
		}
	}
	if good != 10 || held != 1 {
		t.Errorf("%d good exporters were read and %d that hang begun, want 10 and 1", good, held)
	}
}

// An exporter whose pods are not those of the pool is configured in vain, and says
// so once.
func TestAnExporterThatJoinsNobodyIsTold(t *testing.T) {
	page := func(pod string) string {
		return `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",namespace="llm",pod="` + pod + `"} 300` + "\n"
	}
	x := newFakeEngine(t, site{"/metrics": page("stranger")}.ServeHTTP)
	logs, recorded := observer.New(zapcore.InfoLevel)
	e := newFakeEngine(t, calm.handle)
	f := start(t, func(o *Options) {
		named(o)
		o.Exporters = []Exporter{dcgm(t, x)}
		o.Logger = zap.New(logs)
	}, e.podded("a", "llm/a"))
	f.see("dcgm ok")
	f.see("dcgm ok")
	f.see("dcgm ok")
	if got := recorded.FilterMessageSnippet("no pod of the pool").Len(); got != 1 {
		t.Errorf("told %d times, want once", got)
	}
	f.refreshed(0)
	if r := f.power(0); !slices.Contains(r.Detail.Reasons, "no exporter's page has the pod llm/a") {
		t.Errorf("the reasons are %q", r.Detail.Reasons)
	}
	x.serve(site{"/metrics": page("a")}.ServeHTTP)
	f.turns("the exporter's joining somebody", func() bool {
		for {
			select {
			case <-f.results:
				continue
			default:
			}
			return recorded.FilterMessageSnippet("has pods of the pool").Len() == 1
		}
	})
}
