package picker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/scorers/evidence"
	"github.com/berth-dev/berth/scorers/parameters"
)

func newPicker(t testing.TB, params string) *Picker {
	t.Helper()
	p, err := New(json.RawMessage(params))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func scored(name string, score float64) *scheduling.ScoredEndpoint {
	meta := &datalayer.EndpointMetadata{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
	return &scheduling.ScoredEndpoint{Endpoint: scheduling.NewEndpoint(meta, nil, nil), Score: score}
}

func withRow(s *scheduling.ScoredEndpoint, row *evidence.Row) *scheduling.ScoredEndpoint {
	s.Put(evidence.Key, row)
	return s
}

// cycle is the state of a scheduling cycle after the picker saw the request.
func cycle(p *Picker, requestID string) *scheduling.CycleState {
	state := scheduling.NewCycleState()
	p.Filter(context.Background(), state, &scheduling.LLMRequest{RequestId: requestID}, nil)
	return state
}

func pick(p *Picker, state *scheduling.CycleState, scored ...*scheduling.ScoredEndpoint) []string {
	result := p.Pick(context.Background(), state, scored)
	if result == nil {
		return nil
	}
	var names []string
	for _, e := range result.TargetEndpoints {
		name := "?"
		if m := e.GetMetadata(); m != nil {
			name = m.NamespacedName.Name
		}
		names = append(names, name)
	}
	return names
}

func TestPickTakesTheBestScoresFirst(t *testing.T) {
	last := &evidence.Row{Last: true}
	for _, c := range []struct {
		name, params string
		scored       []*scheduling.ScoredEndpoint
		want         []string
	}{
		{"nothing to pick from", "", nil, nil},
		{"nothing but gaps", "", []*scheduling.ScoredEndpoint{nil, {Score: 1}}, nil},
		{"one endpoint by default", "", []*scheduling.ScoredEndpoint{scored("a", 1), scored("b", 3), scored("c", 2)}, []string{"b"}},
		{"as many as asked for", `{"maxNumOfEndpoints": 2}`, []*scheduling.ScoredEndpoint{scored("a", 1), scored("b", 3), scored("c", 2)}, []string{"b", "c"}},
		{"fewer if there are no more", `{"maxNumOfEndpoints": 5}`, []*scheduling.ScoredEndpoint{scored("a", 1), scored("b", 3)}, []string{"b", "a"}},
		{"NaN below everything", `{"maxNumOfEndpoints": 3}`, []*scheduling.ScoredEndpoint{scored("a", math.NaN()), scored("b", 0), scored("c", math.Inf(-1))}, []string{"b", "c", "a"}},
		{"endpoints that are last, last", `{"maxNumOfEndpoints": 2}`, []*scheduling.ScoredEndpoint{withRow(scored("a", 9), last), scored("b", 1)}, []string{"b", "a"}},
		{"a gap beside an endpoint", "", []*scheduling.ScoredEndpoint{nil, scored("a", 1)}, []string{"a"}},
		{"an endpoint without metadata", "", []*scheduling.ScoredEndpoint{{Endpoint: scheduling.NewEndpoint(nil, nil, nil)}}, []string{"?"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPicker(t, c.params)
			if got := pick(p, cycle(p, "request"), c.scored...); !slices.Equal(got, c.want) {
				t.Errorf("the pick is %v, want %v", got, c.want)
			}
			if got := pick(p, nil, c.scored...); !slices.Equal(got, c.want) {
				t.Errorf("without a cycle state the pick is %v, want %v", got, c.want)
			}
		})
	}
}

// GIE hands over endpoints in the order of a map, so the order must not matter.
func TestThePickOfARequestDependsOnNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "endpoints")
		var endpoints []*scheduling.ScoredEndpoint
		for i := range n {
			endpoints = append(endpoints, scored(fmt.Sprint(i), float64(rapid.IntRange(0, 2).Draw(t, "score"))))
		}
		id := rapid.StringN(1, 20, -1).Draw(t, "requestID")
		params := json.RawMessage(`{"maxNumOfEndpoints": 5}`)
		one, err := New(params)
		if err != nil {
			t.Fatal(err)
		}
		other, err := New(params)
		if err != nil {
			t.Fatal(err)
		}
		want := pick(one, cycle(one, id), endpoints...)
		for range 3 {
			before := slices.Clone(endpoints)
			if got := pick(other, cycle(other, id), endpoints...); !slices.Equal(got, want) {
				t.Fatalf("the picks are %v and %v", want, got)
			}
			if !slices.Equal(endpoints, before) {
				t.Fatal("the caller's slice was reordered")
			}
			endpoints = rapid.Permutation(endpoints).Draw(t, "order")
		}
	})
}

const (
	tiedPicks = 10_000
	// chiSquare is the 99th percentile of the distribution with 3 degrees of
	// freedom: what 4 evenly used endpoints stay below, 99 times of 100. The
	// keys are fixed, so a test that passes keeps passing.
	chiSquare = 11.345
)

func tied() []*scheduling.ScoredEndpoint {
	return []*scheduling.ScoredEndpoint{scored("a", 1), scored("b", 1), scored("c", 1), scored("d", 1)}
}

func checkEven(t *testing.T, counts map[string]int) {
	t.Helper()
	const expected = float64(tiedPicks) / 4
	sum := 0.0
	for _, name := range []string{"a", "b", "c", "d"} {
		d := float64(counts[name]) - expected
		sum += d * d / expected
	}
	if sum > chiSquare {
		t.Errorf("chi-square of %v is %.2f, want at most %v", counts, sum, chiSquare)
	}
}

func TestTiesSpreadEvenlyOverRequests(t *testing.T) {
	p, endpoints := newPicker(t, ""), tied()
	counts := map[string]int{}
	previous, run, longest := "", 0, 0
	for i := range tiedPicks {
		name := pick(p, cycle(p, fmt.Sprintf("request-%d", i)), endpoints...)[0]
		counts[name]++
		if name != previous {
			previous, run = name, 0
		}
		run++
		longest = max(longest, run)
	}
	checkEven(t, counts)
	// 4^-14 x 10,000 picks: chance gives a run of 15 once in 27,000 tests.
	if longest > 14 {
		t.Errorf("%d picks in a row went to one endpoint, want at most 14", longest)
	}
}

func TestTiesSpreadEvenlyWithoutRequestKeysFromManyGoroutines(t *testing.T) {
	const goroutines = 64
	p := newPicker(t, "")
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		counts = map[string]int{}
	)
	for g := range goroutines {
		wg.Go(func() {
			endpoints := tied()
			mine := map[string]int{}
			for i := g; i < tiedPicks; i += goroutines {
				mine[pick(p, scheduling.NewCycleState(), endpoints...)[0]]++
			}
			mu.Lock()
			defer mu.Unlock()
			for name, n := range mine {
				counts[name] += n
			}
		})
	}
	wg.Wait()
	checkEven(t, counts)
}

func TestLosingAnEndpointMovesOnlyItsOwnRequests(t *testing.T) {
	p, endpoints := newPicker(t, ""), tied()
	for i := range 1000 {
		state := cycle(p, fmt.Sprintf("request-%d", i))
		before := pick(p, state, endpoints...)[0]
		after := pick(p, state, endpoints[:3]...)[0]
		if before != "d" && after != before {
			t.Fatalf("request %d moved from %s to %s when d left", i, before, after)
		}
	}
}

func TestFilterKeepsAllEndpointsAndTheHostsKey(t *testing.T) {
	p := newPicker(t, "")
	ctx, request := context.Background(), &scheduling.LLMRequest{RequestId: "request"}
	endpoints := []scheduling.Endpoint{scored("a", 0).Endpoint, scored("b", 0).Endpoint}

	state := scheduling.NewCycleState()
	if got := p.Filter(ctx, state, request, endpoints); !slices.Equal(got, endpoints) {
		t.Errorf("the filter keeps %v, want all of %v", got, endpoints)
	}
	// XXH64 of "request" with seed 0.
	const hash uint64 = 0x2cdb6ec8620071ae
	if key, ok := readKey(state); !ok || key != hash {
		t.Errorf("the key is %#x, want %#x", key, hash)
	}

	state = scheduling.NewCycleState()
	WriteKey(state, 7)
	p.Filter(ctx, state, request, endpoints)
	if key, _ := readKey(state); key != 7 {
		t.Errorf("the key is %d, want the 7 that the host set", key)
	}

	state = scheduling.NewCycleState()
	p.Filter(ctx, state, nil, endpoints)
	p.Filter(ctx, state, &scheduling.LLMRequest{}, endpoints)
	p.Filter(ctx, nil, request, endpoints)
	if key, ok := readKey(state); ok {
		t.Errorf("a request without an ID has the key %d, want none", key)
	}
}

func TestParametersThatCannotBeUsedAreRefusedWithTheirName(t *testing.T) {
	for _, c := range []struct{ name, params, want string }{
		{"none to pick", `{"maxNumOfEndpoints": 0}`, "maxNumOfEndpoints: 0: a whole number from 1 to 5"},
		{"more than a gateway is handed", `{"maxNumOfEndpoints": 6}`, "maxNumOfEndpoints: 6: a whole number from 1 to 5"},
		{"a string", `{"maxNumOfEndpoints": "1"}`, `maxNumOfEndpoints: "1": a whole number from 1 to 5`},
		{"an unknown key", `{"max": 1}`, "max: 1: unknown parameter; known here: maxNumOfEndpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			made, err := Factory("best", json.RawMessage(c.params), nil)
			var refused *parameters.Error
			if made != nil || !errors.As(err, &refused) || refused.Error() != c.want {
				t.Errorf("Factory(%s) = %v, %v, want no plugin and %s", c.params, made, err, c.want)
			}
		})
	}
}

func TestFactoryNamesThePlugin(t *testing.T) {
	made, err := Factory("best", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "best"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newPicker(b, "")
			endpoints := make([]*scheduling.ScoredEndpoint, n)
			for i := range endpoints {
				endpoints[i] = scored(fmt.Sprint(i), float64(i%37))
			}
			state := cycle(p, "request")
			b.ReportAllocs()
			for b.Loop() {
				p.Pick(context.Background(), state, endpoints)
			}
		})
	}
}
