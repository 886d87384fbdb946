package activerequests

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"

	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/scorers/internal/scorertest"
	"github.com/berth-dev/berth/scorers/parameters"
)

func scorer(t testing.TB, params string) *Scorer {
	t.Helper()
	s, err := New(json.RawMessage(params))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestActiveRequestsAreScoredAgainstTheMostOrAUsualBatch(t *testing.T) {
	for _, c := range []struct {
		name, params string
		estimates    []float64
		want         []float64
	}{
		{"nothing runs anywhere", "", []float64{0, 0, 0}, []float64{1, 1, 1}},
		{"all run equally much", "", []float64{32, 32}, []float64{0, 0}},
		{"a few more within a usual batch", "", []float64{0, 1, 4}, []float64{1, 0.9375, 0.75}},
		{"a full usual batch", "", []float64{0, 16}, []float64{1, 0}},
		{"more than a usual batch", "", []float64{16, 48, 64}, []float64{0.75, 0.25, 0}},
		{"a higher floor", `{"floor": 128}`, []float64{0, 32, 64}, []float64{1, 0.75, 0.5}},
		{"a lower floor", `{"floor": 1}`, []float64{0, 1}, []float64{1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := scorertest.Native(scorer(t, c.params), telemetry.ActiveRequests, c.estimates, len(c.estimates))
			if !slices.Equal(got, c.want) {
				t.Errorf("%v scores %v, want %v", c.estimates, got, c.want)
			}
		})
	}
}

func TestScorerConforms(t *testing.T) {
	scorertest.Conform(t, scorer(t, ""))
}

func TestParametersThatCannotBeUsedAreRefusedWithTheirName(t *testing.T) {
	for _, c := range []struct{ name, params, want string }{
		{"a floor of zero", `{"floor": 0}`, "floor: 0: a number above 0 and at most 1000000 requests"},
		{"a floor that is a string", `{"floor": "1"}`, `floor: "1": a number above 0 and at most 1000000 requests`},
		{"a floor above its range", `{"floor": 1e7}`, "floor: 1e7: a number above 0 and at most 1000000 requests"},
		{"a floor given twice", `{"floor": 1, "floor": 2}`, "floor: 2: a key that occurs once"},
		{"an unknown key", `{"flor": 1}`, "flor: 1: unknown parameter; known here: floor"},
		{"a list", `[]`, "parameters: []: one JSON object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(json.RawMessage(c.params))
			if err == nil || err.Error() != c.want {
				t.Fatalf("New(%s) = %v, want %s", c.params, err, c.want)
			}
			made, err := Factory("load", json.RawMessage(c.params), nil)
			var refused *parameters.Error
			if made != nil || !errors.As(err, &refused) || refused.Error() != c.want {
				t.Errorf("Factory(%s) = %v, %v, want no plugin and the same error", c.params, made, err)
			}
		})
	}
}

func TestFactoryNamesThePlugin(t *testing.T) {
	made, err := Factory("load", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "load"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
	if got := scorer(t, "").TypedName().Name; got != Type {
		t.Errorf("a scorer without a name is called %q, want its type %q", got, Type)
	}
}

func BenchmarkScore(b *testing.B) {
	scorertest.Benchmark(b, scorer(b, ""), telemetry.ActiveRequests)
}
