package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// podProfile is an exporter that has a gauge, and a counter of energy.
const podProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: gpus
role: exporter
detect: {prefixes: [gpu_]}
pages: [{path: /metrics, format: prometheus, ttl: 30s}]
labels: {namespace: namespace, pod: pod}
fields:
  gpuUtilization:
    unit: util
    sources: [{metric: gpu_busy, combine: max, scale: 0.01}]
  power:
    unit: W
    sources: [{metric: gpu_watts, combine: sum}, {metric: gpu_millijoules_total, scale: 0.001, window: 30s}]
`

// podReader reads the pages of one exporter.
type podReader struct {
	t         *testing.T
	profile   *Profile
	histories map[Pod]*History
}

func podsOf(t *testing.T, text string) *podReader {
	return &podReader{t, parse(t, text), map[Pod]*History{}}
}

func (r *podReader) read(after time.Duration, page string) map[Pod]*Readings {
	r.t.Helper()
	pods, err := r.profile.ReadPods([]byte(page), "", scriptBegins.Add(after), 5*time.Second, r.histories)
	if err != nil {
		r.t.Fatal(err)
	}
	return pods
}

// checkPods compares one field of every pod; pods that are not named must not be
// there.
func (r *podReader) checkPods(pods map[Pod]*Readings, f telemetry.Field, want map[Pod]string) {
	r.t.Helper()
	for pod := range pods {
		if _, ok := want[pod]; !ok {
			r.t.Errorf("%s has readings, and was not expected", pod)
		}
	}
	for pod, words := range want {
		if pods[pod] == nil {
			r.t.Errorf("%s has no readings", pod)
		} else if got := scripted(f, &pods[pod][f]); got != f.String()+" "+words {
			r.t.Errorf("%s\n got  %s\n want %s %s", pod, got, f, words)
		}
	}
}

func TestEachPodHasItsOwnSeries(t *testing.T) {
	r := podsOf(t, podProfile)
	pods := r.read(0, `gpu_busy{gpu="0",namespace="llm",pod="a"} 90
gpu_busy{gpu="1",namespace="llm",pod="a"} 30
gpu_busy{gpu="2",namespace="llm",pod="b"} 5
gpu_busy{gpu="3",namespace="test",pod="a"} 7
gpu_busy{gpu="4"} 100
gpu_busy{gpu="5",pod="a"} 100
gpu_busy{gpu="6",namespace="llm"} 100
gpu_watts{gpu="0",namespace="llm",pod="a"} 300
gpu_watts{gpu="1",namespace="llm",pod="a"} 200
gpu_watts{gpu="2",namespace="llm",pod="b"} -1
`)
	r.checkPods(pods, telemetry.GPUUtilization, map[Pod]string{
		"llm/a": "fresh 0.9 util", "llm/b": "fresh 0.05 util", "test/a": "fresh 0.07 util"})
	r.checkPods(pods, telemetry.Power, map[Pod]string{
		"llm/a":  "fresh 500 W",
		"llm/b":  `invalid supported "gpu_watts: value -1: want a finite number of at least 0"`,
		"test/a": `missing unknown "gpu_watts has no series for the pod; gpu_millijoules_total is not on the page"`})
	got := pods["llm/a"][telemetry.GPUUtilization]
	if got.ObservedAt != scriptBegins || got.ExpiresAt != scriptBegins.Add(30*time.Second) || got.Detail.Source.Rule != "max over the series, times 0.01" {
		t.Errorf("%+v, %+v", got, got.Detail.Source)
	}
}

func TestALongLeaseOutlivesTheProfile(t *testing.T) {
	p := parse(t, podProfile)
	pods, err := p.ReadPods([]byte("gpu_busy{namespace=\"n\",pod=\"p\"} 1\n"), "", scriptBegins, time.Minute, map[Pod]*History{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := pods["n/p"][telemetry.GPUUtilization].ExpiresAt, scriptBegins.Add(time.Minute); got != want {
		t.Errorf("expires at %v, want %v", got.Time(), want.Time())
	}
}

// TestEachPodHasItsOwnWindow: the growth of one is not that of another, and a pod
// that is gone begins anew when it comes back.
func TestEachPodHasItsOwnWindow(t *testing.T) {
	r := podsOf(t, podProfile)
	page := func(pods map[string]int) string {
		var page strings.Builder
		for _, pod := range slices.Sorted(maps.Keys(pods)) {
			fmt.Fprintf(&page, "gpu_millijoules_total{namespace=\"n\",pod=%q} %d\n", pod, pods[pod])
		}
		return page.String()
	}
	const first = `missing supported "gpu_watts is not on the page; first page: a window needs two"`
	r.checkPods(r.read(0, page(map[string]int{"a": 0, "b": 1000})), telemetry.Power, map[Pod]string{"n/a": first, "n/b": first})
	r.checkPods(r.read(30*time.Second, page(map[string]int{"a": 3000000, "b": 601000})), telemetry.Power, map[Pod]string{"n/a": "fresh 100 W", "n/b": "fresh 20 W"})
	r.checkPods(r.read(60*time.Second, page(map[string]int{"a": 6000000})+"gpu_busy 1\n"), telemetry.Power, map[Pod]string{"n/a": "fresh 100 W"})
	if len(r.histories) != 1 || r.histories["n/a"] == nil {
		t.Errorf("histories of %v, want that of n/a alone", slices.Collect(maps.Keys(r.histories)))
	}
	r.checkPods(r.read(90*time.Second, page(map[string]int{"a": 9000000, "b": 901000})), telemetry.Power, map[Pod]string{"n/a": "fresh 100 W", "n/b": first})
}

// TestACounterOfAPodThatFell drops the window of that pod alone.
func TestACounterOfAPodThatFell(t *testing.T) {
	r := podsOf(t, podProfile)
	page := func(a, b int) string {
		return fmt.Sprintf("gpu_millijoules_total{namespace=\"n\",pod=\"a\"} %d\ngpu_millijoules_total{namespace=\"n\",pod=\"b\"} %d\n", a, b)
	}
	r.read(0, page(500, 0))
	r.checkPods(r.read(30*time.Second, page(10, 30000)), telemetry.Power, map[Pod]string{
		"n/a": `missing supported "gpu_watts is not on the page; window dropped: a counter fell, its process was started anew"`, "n/b": "fresh 1 W"})
	r.checkPods(r.read(60*time.Second, page(30010, 60000)), telemetry.Power, map[Pod]string{"n/a": "fresh 1 W", "n/b": "fresh 1 W"})
}

func TestAnExportersPageThatIsRefusedForgetsNobody(t *testing.T) {
	r := podsOf(t, podProfile)
	r.read(0, "gpu_busy{namespace=\"n\",pod=\"p\"} 1\n")
	for page, want := range map[string]error{"": ErrEmpty, "<html>": ErrNotText, "other 1\n": ErrNoEngineFamilies, "gpu_busy 1\ngpu_b": ErrTruncated} {
		if pods, err := r.profile.ReadPods([]byte(page), "", scriptBegins, 0, r.histories); !errors.Is(err, want) || pods != nil {
			t.Errorf("%q: %v and %d pods, want %v", page, err, len(pods), want)
		}
	}
	if r.histories["n/p"] == nil {
		t.Error("the history of n/p is gone")
	}
}

// TestThePodsOfOnePageAreBounded: a node has no thousand of them. Some of them
// would be some at random.
func TestThePodsOfOnePageAreBounded(t *testing.T) {
	var page strings.Builder
	for i := range maxPods {
		fmt.Fprintf(&page, "gpu_busy{namespace=\"n\",pod=\"p%d\"} 1\n", i)
	}
	r := podsOf(t, podProfile)
	if pods := r.read(0, page.String()); len(pods) != maxPods || len(r.histories) != maxPods {
		t.Errorf("%d pods and %d histories, want %d", len(pods), len(r.histories), maxPods)
	}
	page.WriteString("gpu_busy{namespace=\"n\",pod=\"one-more\"} 1\n")
	if pods, err := r.profile.ReadPods([]byte(page.String()), "", noon, 0, r.histories); pods != nil || !errors.Is(err, ErrTooLarge) {
		t.Errorf("%d pods, %v", len(pods), err)
	}
}

// A name is joined of two, and nobody may choose where they meet.
func TestANamespaceWithASlashIsNobodys(t *testing.T) {
	r := podsOf(t, podProfile)
	if pods := r.read(0, "gpu_busy{namespace=\"a/b\",pod=\"c\"} 1\n"); len(pods) != 0 {
		t.Errorf("%v", pods)
	}
}

func TestJoiningAPodToItsEngine(t *testing.T) {
	missing := func(support telemetry.Support) telemetry.Reading {
		return telemetry.Reading{Support: support, Detail: reasons(support.String())}
	}
	value := func(v float64) telemetry.Reading {
		return telemetry.Reading{Value: v, Recorded: telemetry.Fresh, Support: telemetry.Supported, Quality: 1, Provenance: telemetry.Measured, Detail: &telemetry.Detail{Source: &telemetry.Source{Path: "/metrics"}}}
	}
	invalidReading := telemetry.Reading{Recorded: telemetry.Invalid, Support: telemetry.Supported, Detail: reasons("invalid")}
	cases := []struct {
		name             string
		own, pod         telemetry.Reading
		state            telemetry.State
		value            float64
		support          telemetry.Support
		differsFromOwn   bool
		differsFromOther bool
	}{
		{"an engine that has no source", missing(telemetry.Unsupported), value(0.5), telemetry.Fresh, 0.5, telemetry.Supported, true, false},
		{"an engine of which nothing is known", missing(telemetry.SupportUnknown), value(0.5), telemetry.Fresh, 0.5, telemetry.Supported, true, false},
		{"an engine where it is switched off", missing(telemetry.Disabled), value(0.5), telemetry.Fresh, 0.5, telemetry.Supported, true, false},
		{"an engine that says it itself", value(0.25), value(0.5), telemetry.Fresh, 0.25, telemetry.Supported, false, true},
		{"an engine that will say it", missing(telemetry.Supported), value(0.5), telemetry.Missing, 0, telemetry.Supported, false, true},
		{"an engine that says nonsense", invalidReading, value(0.5), telemetry.Invalid, 0, telemetry.Supported, false, true},
		{"an exporter that knows nothing", missing(telemetry.Unsupported), missing(telemetry.SupportUnknown), telemetry.Missing, 0, telemetry.Unsupported, false, true},
		{"an exporter that says nonsense", missing(telemetry.Unsupported), invalidReading, telemetry.Invalid, 0, telemetry.Supported, true, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &telemetry.Snapshot{}
			pod := &Readings{}
			s.Readings[telemetry.GPUUtilization], pod[telemetry.GPUUtilization] = c.own, c.pod
			Join(s, pod)
			got := s.Readings[telemetry.GPUUtilization]
			if got.Recorded != c.state || got.Value != c.value || got.Support != c.support {
				t.Errorf("%s %v, %s, want %s %v, %s", got.Recorded, got.Value, got.Support, c.state, c.value, c.support)
			}
			if (got.Detail != c.own.Detail) != c.differsFromOwn || (got.Detail != c.pod.Detail) != c.differsFromOther {
				t.Errorf("from neither or both of them: %+v", got.Detail)
			}
		})
	}
}

func TestTheEnergyOfATokenIsEstimated(t *testing.T) {
	fresh := func(v float64, quality float32, at, until telemetry.Instant) telemetry.Reading {
		return telemetry.Reading{Value: v, Recorded: telemetry.Fresh, Support: telemetry.Supported, Quality: quality, ObservedAt: at, ExpiresAt: until, Detail: &telemetry.Detail{}}
	}
	join := func(power, tokens, energy telemetry.Reading) telemetry.Reading {
		s := &telemetry.Snapshot{}
		s.Readings[telemetry.GenerationThroughput], s.Readings[telemetry.EnergyPerToken] = tokens, energy
		pod := &Readings{}
		pod[telemetry.Power] = power
		Join(s, pod)
		return s.Readings[telemetry.EnergyPerToken]
	}
	unsupported := telemetry.Reading{Support: telemetry.Unsupported, Detail: reasons("not exported")}

	got := join(fresh(600, 1, 10*second, 40*second), fresh(1500, 1, 12*second, 14*second), unsupported)
	if got.Recorded != telemetry.Fresh || got.Value != 0.4 || got.Quality != 0.5 || got.Provenance != telemetry.Modeled ||
		got.ObservedAt != 10*second || got.ExpiresAt != 14*second || len(got.Detail.Reasons) == 0 || got.Detail.Source == nil {
		t.Errorf("600 W at 1500 tokens/s: %+v, %+v", got, got.Detail)
	}
	if got := join(fresh(600, 1, 10*second, 40*second), fresh(1500, 0.3, 12*second, 14*second), unsupported); got.Quality != 0.3 {
		t.Errorf("quality %v, want that of the worst", got.Quality)
	}
	if got := join(fresh(600, 1, second, 2*second), fresh(0, 1, second, 2*second), unsupported); got.Recorded != telemetry.Missing || got.Support != telemetry.Supported || !strings.HasPrefix(got.Detail.Reasons[0], "no recent data") {
		t.Errorf("no token: %+v, want no value", got)
	}
	for name, c := range map[string][3]telemetry.Reading{
		"no power":          {unsupported, fresh(5, 1, 1, 2), unsupported},
		"no tokens":         {fresh(600, 1, 1, 2), unsupported, unsupported},
		"the engine's word": {fresh(600, 1, 1, 2), fresh(5, 1, 1, 2), fresh(7, 1, 1, 2)},
		"the engine's wait": {fresh(600, 1, 1, 2), fresh(5, 1, 1, 2), telemetry.Reading{Support: telemetry.Supported, Detail: reasons("first page")}},
	} {
		if got := join(c[0], c[1], c[2]); got.Detail != c[2].Detail || got.Value != c[2].Value {
			t.Errorf("%s: %+v, want what the engine said", name, got)
		}
	}
	if got := join(fresh(1e15, 1, 1, 2), fresh(1e-12, 1, 1, 2), unsupported); got.Recorded == telemetry.Fresh {
		t.Errorf("an impossible energy is fresh: %v", got.Value)
	}
}
