package plugins

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins/picker"
	"github.com/berth-dev/berth/scorers/evidence"
)

// weighted are the scorers of the profile that these tests run.
var weighted = []struct {
	kind   string
	weight float64
}{
	{"queue-depth", 2}, {"kv-cache-utilization", 2}, {"active-requests", 1},
}

// profile runs plugins in the order of GIE's scheduler: filters, then scorers,
// with scores held in [0,1] and weighted, then the picker.
type profile struct {
	filters []scheduling.Filter
	scorers []scheduling.Scorer
	weights []float64
	picker  scheduling.Picker
}

// newProfile adds each plugin at every extension point that it implements, as
// GIE does.
func newProfile() (*profile, error) {
	p := &profile{}
	add := func(kind string, weight float64, params string) error {
		e, err := find(kind)
		if err != nil {
			return err
		}
		var made plugin.Plugin
		if made, err = e.factory(kind, json.RawMessage(params), nil); err != nil {
			return err
		}
		if f, ok := made.(scheduling.Filter); ok {
			p.filters = append(p.filters, f)
		}
		if s, ok := made.(scheduling.Scorer); ok {
			p.scorers, p.weights = append(p.scorers, s), append(p.weights, weight)
		}
		if best, ok := made.(scheduling.Picker); ok {
			p.picker = best
		}
		return nil
	}
	for _, w := range weighted {
		if err := add(w.kind, w.weight, ""); err != nil {
			return nil, err
		}
	}
	return p, add(picker.Type, 0, `{"maxNumOfEndpoints": 5}`)
}

func (p *profile) run(requestID string, endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	ctx, state := context.Background(), scheduling.NewCycleState()
	request := &scheduling.LLMRequest{RequestId: requestID}
	for _, f := range p.filters {
		endpoints = f.Filter(ctx, state, request, endpoints)
	}
	totals := map[scheduling.Endpoint]float64{}
	for _, e := range endpoints {
		totals[e] = 0
	}
	for i, s := range p.scorers {
		for e, score := range s.Score(ctx, state, request, endpoints) {
			totals[e] += float64(min(max(score, 0), 1) * p.weights[i])
		}
	}
	scored := make([]*scheduling.ScoredEndpoint, 0, len(totals))
	for e, total := range totals {
		scored = append(scored, &scheduling.ScoredEndpoint{Endpoint: e, Score: total})
	}
	return p.picker.Pick(ctx, state, scored).TargetEndpoints
}

func nativePlan(quorum float64) (*placement.Plan, error) {
	var scorers []placement.Scorer
	for _, w := range weighted {
		s, err := Scorer(w.kind, w.kind, w.weight, nil)
		if err != nil {
			return nil, err
		}
		scorers = append(scorers, s)
	}
	return placement.NewPlan(scorers, quorum)
}

func names(endpoints []scheduling.Endpoint) []string {
	var names []string
	for _, e := range endpoints {
		names = append(names, e.GetMetadata().NamespacedName.Name)
	}
	return names
}

func stock(name string, m *datalayer.Metrics) scheduling.Endpoint {
	id := types.NamespacedName{Namespace: "default", Name: name}
	return scheduling.NewEndpoint(&datalayer.EndpointMetadata{NamespacedName: id}, m, nil)
}

// Few distinct values make ties common, and the hash decide often.
func TestTheProfilePicksTheSameEndpointsNativelyAndThroughGIE(t *testing.T) {
	gie, err := newProfile()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		plan, err := nativePlan(rapid.Float64Range(0.01, 1).Draw(t, "quorum"))
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 32).Draw(t, "endpoints")
		var ev placement.Evidence
		ev.Reset(n)
		for row := range n {
			// Hashes are of names and differ: on equal ones the two would go on by
			// row and by name.
			ev.Hash[row] = rapid.Uint64().Draw(t, "hash")<<6 | uint64(row)
			ev.Last[row] = rapid.IntRange(0, 9).Draw(t, "last") == 0
			ev.InFlight[row] = rapid.Int32Range(0, 3).Draw(t, "inFlight")
			ev.Pending[row] = rapid.Int32Range(0, ev.InFlight[row]).Draw(t, "pending")
			ev.Latency[row] = math.NaN()
			for i, f := range placement.LoadFields {
				v := rapid.IntRange(0, 4).Draw(t, "value")
				ev.Load[i].Value[row] = float64(v)
				if f == telemetry.KVCacheUtilization {
					ev.Load[i].Value[row] = float64(v) / 5
				}
				ev.Load[i].State[row] = rapid.SampledFrom([]telemetry.State{
					telemetry.Fresh, telemetry.Fresh, telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid,
				}).Draw(t, "state")
			}
		}
		id := rapid.StringN(1, 16, -1).Draw(t, "requestID")
		var res placement.Result
		plan.Place(&ev, xxhash.Sum64String(id), placement.MaxFallbacks, &res)
		if res.Rung == placement.Local {
			t.Skip("the local rung does not ask the profile's scorers")
		}
		endpoints := make([]scheduling.Endpoint, n)
		for row := range endpoints {
			endpoints[row] = stock(fmt.Sprint(row), nil)
			endpoints[row].Put(evidence.Key, evidence.NewRow(&ev, &res, row))
		}
		want := make([]string, len(res.Ranked))
		for i, row := range res.Ranked {
			want[i] = fmt.Sprint(row)
		}
		if got := names(gie.run(id, endpoints)); !slices.Equal(got, want) {
			t.Fatalf("GIE picks %v, placement %v on rung %s", got, want, res.Rung)
		}
	})
}

func TestInAStockEPPANeverScrapedEndpointDoesNotWin(t *testing.T) {
	gie, err := newProfile()
	if err != nil {
		t.Fatal(err)
	}
	scraped := time.Unix(1, 0)
	never := stock("never", &datalayer.Metrics{})
	light := stock("light", &datalayer.Metrics{WaitingQueueSize: 1, KVCacheUsagePercent: 0.1, UpdateTime: scraped})
	heavy := stock("heavy", &datalayer.Metrics{WaitingQueueSize: 9, KVCacheUsagePercent: 0.8, UpdateTime: scraped})
	idle := stock("idle", &datalayer.Metrics{UpdateTime: scraped})
	for i := range 100 {
		id := fmt.Sprintf("request-%d", i)
		if got := names(gie.run(id, []scheduling.Endpoint{never, light, heavy})); got[0] != "light" {
			t.Fatalf("%s goes to %s, want light", id, got[0])
		}
		if got := names(gie.run(id, []scheduling.Endpoint{idle, light, heavy})); got[0] != "idle" {
			t.Fatalf("%s goes to %s, want idle, which was scraped and is", id, got[0])
		}
	}
}
