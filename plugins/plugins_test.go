package plugins

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/scorers/parameters"
)

func TestTypesAreSortedAndEachIsThereOnce(t *testing.T) {
	want := []string{
		"active-requests", "berth-picker", "context-fit", "eligibility", "health", "kv-cache-utilization", "queue-depth",
		"served-model", "subset",
	}
	if got := Types(); !slices.Equal(got, want) {
		t.Errorf("types are %v, want %v", got, want)
	}
}

func TestRegisterHandsEachTypeToGIE(t *testing.T) {
	before := plugin.Registry
	plugin.Registry = map[string]plugin.FactoryFunc{}
	t.Cleanup(func() { plugin.Registry = before })
	Register()
	if len(plugin.Registry) != len(Types()) {
		t.Errorf("GIE knows %d types, want %d", len(plugin.Registry), len(Types()))
	}
	for _, kind := range Types() {
		made, err := plugin.Registry[kind]("mine", nil, nil)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if got, want := made.TypedName(), (plugin.TypedName{Type: kind, Name: "mine"}); got != want {
			t.Errorf("the plugin is %v, want %v", got, want)
		}
		class, err := Catalog{}.Check(kind, nil)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		_, scores := made.(scheduling.Scorer)
		_, picks := made.(scheduling.Picker)
		// The picker filters too: see there.
		_, filters := made.(scheduling.Filter)
		if scores != (class == policy.Scorer) || picks != (class == policy.Picker) || filters != (class == policy.Filter || picks) {
			t.Errorf("%s is a %s, but to GIE scorer is %v, picker is %v and filter is %v", kind, class, scores, picks, filters)
		}
	}
}

func TestCatalogRefusesWhatCannotBeBuilt(t *testing.T) {
	t.Run("an unknown type, with those that are known", func(t *testing.T) {
		_, err := Catalog{}.Check("queue-dept", nil)
		var unknown *policy.UnknownTypeError
		if !errors.As(err, &unknown) || unknown.Type != "queue-dept" || !slices.Equal(unknown.Known, Types()) {
			t.Errorf("the error is %v, want the type and all known ones", err)
		}
	})
	for _, c := range []struct {
		name, kind, params string
		class              policy.Class
		want               policy.ParameterError
	}{
		{"a value out of range", "queue-depth", `{"floor": 0}`, policy.Scorer,
			policy.ParameterError{Key: "floor", Allowed: "a number above 0 and at most 1000000 requests"}},
		{"an unknown key", "kv-cache-utilization", `{"floor": 1}`, policy.Scorer,
			policy.ParameterError{Key: "floor", Allowed: "unknown parameter; this plugin has none"}},
		{"a filter's entry", "eligibility", `{"plainHeaders": true, "headers": {"x-a": "priority", "x-b": "priority"}}`, policy.Filter,
			policy.ParameterError{Key: "headers.x-b", Allowed: "a key of its own: x-a has this one"}},
		{"a filter's missing key", "context-fit", `{"keySet": "keys.json"}`, policy.Filter,
			policy.ParameterError{Key: "audience", Allowed: "the name of this picker, since a signed intent is meant for one"}},
		{"a picker's value", "berth-picker", `{"maxNumOfEndpoints": 9}`, policy.Picker,
			policy.ParameterError{Key: "maxNumOfEndpoints", Allowed: "a whole number from 1 to 5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			class, err := Catalog{}.Check(c.kind, json.RawMessage(c.params))
			var refused *policy.ParameterError
			if !errors.As(err, &refused) || *refused != c.want || class != c.class {
				t.Errorf("Check is %v, %v, want %v, %v", class, err, c.class, &c.want)
			}
		})
	}
	t.Run("parameters that are no object, without a key", func(t *testing.T) {
		_, err := Catalog{}.Check("queue-depth", json.RawMessage(`[]`))
		var keyed *policy.ParameterError
		if err == nil || errors.As(err, &keyed) {
			t.Errorf("the error is %v, want one that names no key", err)
		}
	})
}

func TestScorerBuildsWhatTheProfileAsksFor(t *testing.T) {
	s, err := Scorer("active-requests", "load", 2, json.RawMessage(`{"floor": 4}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "load" || s.Weight != 2 || !slices.Equal(s.Reads, []telemetry.Field{telemetry.ActiveRequests}) {
		t.Errorf("the scorer is %+v, want load, weight 2, reading activeRequests", s)
	}

	var unknown *policy.UnknownTypeError
	if _, err := Scorer("nothing", "load", 1, nil); !errors.As(err, &unknown) {
		t.Errorf("the error for an unknown type is %v", err)
	}
	var refused *parameters.Error
	if _, err := Scorer("queue-depth", "load", 1, json.RawMessage(`{"x": 1}`)); !errors.As(err, &refused) || refused.Field != "x" {
		t.Errorf("the error for an unknown parameter is %v", err)
	}
	for kind, want := range map[string]string{
		"berth-picker": `plugin "best": berth-picker: a picker, must be a scorer`,
		"eligibility":  `plugin "best": eligibility: a filter, must be a scorer`,
		"health":       `plugin "best": health: a filter, must be a scorer`,
	} {
		if _, err := Scorer(kind, "best", 1, nil); err == nil || err.Error() != want {
			t.Errorf("the error for %s is %v, want %s", kind, err, want)
		}
	}
}
