// Package scorertest holds what every scorer must do, whatever it prefers:
// each scorer's tests call Conform beside their own tables.
package scorertest

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/scorers/evidence"
)

// Scorer is what each scorer package exports.
type Scorer interface {
	scheduling.Scorer
	Placement(name string, weight float64) placement.Scorer
}

// Native runs the scorer's pure function over one column of estimates; nil is
// a field that was dropped. Columns that the scorer does not read must not
// matter and are absent.
func Native(s Scorer, f telemetry.Field, estimates []float64, rows int) []float64 {
	columns := map[telemetry.Field][]float64{}
	if estimates != nil {
		columns[f] = estimates
	}
	out := make([]float64, rows)
	s.Placement("scorer", 1).Score(placement.NewInput(rows, columns), out)
	return out
}

// Benchmark measures the pure function at the sizes of the budgets. The values
// lie in [0,1), where every load field is possible.
func Benchmark(b *testing.B, s Scorer, f telemetry.Field) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			values, out := make([]float64, n), make([]float64, n)
			for i := range values {
				values[i] = float64(i%37) / 37
			}
			in := placement.NewInput(n, map[telemetry.Field][]float64{f: values})
			score := s.Placement("scorer", 1).Score
			b.ReportAllocs()
			for b.Loop() {
				score(in, out)
			}
		})
	}
}

// Stock is an endpoint as a stock EPP would hand it to a plugin, without
// Berth's row. nil metrics are an endpoint that GIE knows nothing about.
func Stock(name string, m *datalayer.Metrics) scheduling.Endpoint {
	id := types.NamespacedName{Namespace: "default", Name: name}
	return scheduling.NewEndpoint(&datalayer.EndpointMetadata{NamespacedName: id}, m, nil)
}

// Load is the metrics of a scraped endpoint with the same load in every load
// field: requests requests, and requests/100 of the KV cache.
func Load(requests int) *datalayer.Metrics {
	return &datalayer.Metrics{
		WaitingQueueSize:    requests,
		RunningRequestsSize: requests,
		KVCacheUsagePercent: float64(requests) / 100,
		UpdateTime:          time.Unix(1, 0),
	}
}

// Conform checks a load scorer against what every load scorer must do.
func Conform(t *testing.T, s Scorer) {
	t.Run("native and GIE scores are the same bits", func(t *testing.T) { rapid.Check(t, nativeIsGIE(s)) })
	t.Run("stock metrics score as placement would score them", func(t *testing.T) { rapid.Check(t, stockIsNative(s)) })
	t.Run("a dropped field is no evidence for any row", func(t *testing.T) { dropped(t, s) })
	t.Run("an endpoint that was never scraped does not beat the idlest known one", func(t *testing.T) { neverScraped(t, s) })
	t.Run("impossible metrics are missing and spoil no other endpoint", func(t *testing.T) { impossible(t, s) })
	t.Run("endpoints of which too little is known score alike", func(t *testing.T) { unknown(t, s) })
	t.Run("no endpoints score nothing", func(t *testing.T) {
		if got := gie(s); len(got) != 0 {
			t.Errorf("scores are %v, want none", got)
		}
	})
}

// gie scores endpoints through GIE's interface, with the arguments that a
// scorer must do without.
func gie(s Scorer, endpoints ...scheduling.Endpoint) map[scheduling.Endpoint]float64 {
	return s.Score(context.Background(), nil, nil, endpoints)
}

// place runs the scorer natively and says what each row's score adds to its
// total: nothing where there is no evidence.
func place(t *rapid.T, s Scorer, ev *placement.Evidence) (res placement.Result, scores []float64) {
	plan, err := placement.NewPlan([]placement.Scorer{s.Placement("scorer", 1)}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	plan.Place(ev, 1, 0, &res)
	scores = make([]float64, ev.Len())
	if len(res.Scores) == 1 {
		for row, v := range res.Scores[0] {
			if !math.IsNaN(v) {
				scores[row] = v
			}
		}
	}
	return res, scores
}

func compare(t *rapid.T, got map[scheduling.Endpoint]float64, endpoints []scheduling.Endpoint, want []float64) {
	if len(got) != len(endpoints) {
		t.Fatalf("%d endpoints have scores, want %d", len(got), len(endpoints))
	}
	for row, e := range endpoints {
		v, ok := got[e]
		if !ok || math.Float64bits(v) != math.Float64bits(want[row]) {
			t.Fatalf("endpoint %d scores %v, want %v", row, v, want[row])
		}
		if !(v >= 0 && v <= 1) {
			t.Fatalf("endpoint %d scores %v, outside [0,1]", row, v)
		}
	}
}

func nativeIsGIE(s Scorer) func(*rapid.T) {
	return func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "endpoints")
		var ev placement.Evidence
		ev.Reset(n)
		for row := range n {
			ev.Hash[row] = rapid.Uint64().Draw(t, "hash")
			ev.InFlight[row] = rapid.Int32Range(0, 50).Draw(t, "inFlight")
			ev.Pending[row] = rapid.Int32Range(0, ev.InFlight[row]).Draw(t, "pending")
			ev.Latency[row] = math.NaN()
			for i, f := range placement.LoadFields {
				upper := 300.0
				if f == telemetry.KVCacheUtilization {
					upper = 1
				}
				ev.Load[i].Value[row] = rapid.Float64Range(0, upper).Draw(t, "value")
				ev.Load[i].State[row] = rapid.SampledFrom([]telemetry.State{
					telemetry.Fresh, telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid,
				}).Draw(t, "state")
			}
		}
		res, want := place(t, s, &ev)
		endpoints := make([]scheduling.Endpoint, n)
		for row := range endpoints {
			// Stock metrics beside the row must not matter.
			endpoints[row] = Stock(fmt.Sprint(row), Load(row))
			endpoints[row].Put(evidence.Key, evidence.NewRow(&ev, &res, row))
		}
		compare(t, gie(s, endpoints...), endpoints, want)
	}
}

func stockIsNative(s Scorer) func(*rapid.T) {
	return func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "endpoints")
		var ev placement.Evidence
		ev.Reset(n)
		endpoints := make([]scheduling.Endpoint, n)
		for row := range endpoints {
			m := Load(0)
			m.WaitingQueueSize = rapid.IntRange(0, 300).Draw(t, "waiting")
			m.RunningRequestsSize = rapid.IntRange(0, 300).Draw(t, "running")
			m.KVCacheUsagePercent = rapid.Float64Range(0, 1).Draw(t, "kv")
			state := telemetry.Fresh
			if rapid.Bool().Draw(t, "neverScraped") {
				m.UpdateTime, state = time.Time{}, telemetry.Missing
			}
			endpoints[row] = Stock(fmt.Sprint(row), m)
			ev.Latency[row] = math.NaN()
			for i, v := range []float64{float64(m.WaitingQueueSize), float64(m.RunningRequestsSize), m.KVCacheUsagePercent} {
				ev.Load[i].Value[row], ev.Load[i].State[row] = v, state
			}
		}
		_, want := place(t, s, &ev)
		compare(t, gie(s, endpoints...), endpoints, want)
	}
}

func dropped(t *testing.T, s Scorer) {
	for row, v := range Native(s, s.Placement("scorer", 1).Reads[0], nil, 3) {
		if !math.IsNaN(v) {
			t.Errorf("row %d scores %v, want NaN", row, v)
		}
	}
}

func neverScraped(t *testing.T, s Scorer) {
	never := Stock("never", &datalayer.Metrics{})
	nothing := scheduling.NewEndpoint(nil, nil, nil)
	idle, middle, busy := Stock("idle", Load(1)), Stock("middle", Load(10)), Stock("busy", Load(90))
	scores := gie(s, never, nothing, busy, middle, idle)
	if scores[never] != scores[middle] || scores[nothing] != scores[middle] {
		t.Errorf("unknown endpoints score %v and %v, want the median's %v", scores[never], scores[nothing], scores[middle])
	}
	if !(scores[idle] > scores[middle] && scores[middle] > scores[busy]) {
		t.Errorf("idle, middle and busy score %v, %v, %v, want them in that order", scores[idle], scores[middle], scores[busy])
	}
	zero := Stock("zero", Load(0))
	scores = gie(s, zero, busy, middle, idle)
	if !(scores[zero] > scores[idle]) {
		t.Errorf("a scraped zero scores %v, want above the %v of an idle endpoint", scores[zero], scores[idle])
	}
}

func impossible(t *testing.T, s Scorer) {
	idle, middle, busy := Stock("idle", Load(1)), Stock("middle", Load(10)), Stock("busy", Load(90))
	want := gie(s, idle, middle, busy)
	for _, ratio := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.5} {
		m := Load(0)
		m.WaitingQueueSize, m.RunningRequestsSize, m.KVCacheUsagePercent = -5, -5, ratio
		bad := Stock("bad", m)
		got := gie(s, bad, idle, middle, busy)
		if got[bad] != want[middle] {
			t.Errorf("with a ratio of %v the endpoint scores %v, want the median's %v", ratio, got[bad], want[middle])
		}
		for _, e := range []scheduling.Endpoint{idle, middle, busy} {
			if got[e] != want[e] {
				t.Errorf("with a ratio of %v elsewhere an endpoint scores %v, want %v as without", ratio, got[e], want[e])
			}
		}
	}
}

func unknown(t *testing.T, s Scorer) {
	never := func(i int) scheduling.Endpoint { return Stock(fmt.Sprint(i), &datalayer.Metrics{}) }
	for name, endpoints := range map[string][]scheduling.Endpoint{
		"none known":        {never(1), never(2)},
		"one known of five": {never(1), never(2), never(3), never(4), Stock("idle", Load(0))},
	} {
		for e, v := range gie(s, endpoints...) {
			if v != 0 {
				t.Errorf("%s: %s scores %v, want 0 for all", name, e.GetMetadata().NamespacedName, v)
			}
		}
	}
}
