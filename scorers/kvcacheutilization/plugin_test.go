package kvcacheutilization

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

func TestKVCacheUtilizationIsScoredByTheRoomThatIsLeft(t *testing.T) {
	for _, c := range []struct {
		name, params string
		estimates    []float64
		want         []float64
	}{
		{"empty caches", "", []float64{0, 0}, []float64{1, 1}},
		{"full caches", "", []float64{1, 1}, []float64{0, 0}},
		{"each by its own room, whatever the others have", "", []float64{0.25, 0.5, 0.75}, []float64{0.75, 0.5, 0.25}},
		{"more than everything is everything", "", []float64{1.5, 1}, []float64{0, 0}},
		{"less than nothing is nothing", "", []float64{-0.5, 0}, []float64{1, 1}},
		{"no parameters, written out", `{}`, []float64{0.5}, []float64{0.5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := scorertest.Native(scorer(t, c.params), telemetry.KVCacheUtilization, c.estimates, len(c.estimates))
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
		{"any key", `{"floor": 1}`, "floor: 1: unknown parameter; this plugin has none"},
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
	scorertest.Benchmark(b, scorer(b, ""), telemetry.KVCacheUtilization)
}
