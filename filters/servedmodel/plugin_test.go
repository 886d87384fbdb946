package servedmodel

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/filters/internal/filtertest"
	"github.com/berth-dev/berth/scorers/parameters"
)

func filter(t testing.TB, params string) *Filter {
	t.Helper()
	f, err := New(json.RawMessage(params), filtertest.KeySet)
	if err != nil {
		t.Fatal(err)
	}
	f.now = func() time.Time { return filtertest.Now }
	return f
}

const trusting = `{` + filtertest.Trusting + `, "aliases": {"fast": ["base", "sql"]}}`

func fleet() []scheduling.Endpoint {
	serves := func(name string) map[string]string { return map[string]string{"berth.dev/served-models": name} }
	scraped := filtertest.Now
	return []scheduling.Endpoint{
		filtertest.Endpoint("base", serves("base"), nil),
		filtertest.Endpoint("other", serves("other"), nil),
		filtertest.Endpoint("none", serves(""), nil),
		filtertest.Endpoint("unknown", nil, nil),
		filtertest.Endpoint("active", nil, &datalayer.Metrics{ActiveModels: map[string]int{"sql": 1}, UpdateTime: scraped}),
		filtertest.Endpoint("waiting", serves("base"), &datalayer.Metrics{WaitingModels: map[string]int{"sql": 0}, UpdateTime: scraped}),
		filtertest.Endpoint("unread", nil, &datalayer.Metrics{ActiveModels: map[string]int{"sql": 1}}),
		scheduling.NewEndpoint(nil, nil, nil),
	}
}

func TestEndpointsThatServeTheModelAreKept(t *testing.T) {
	all := []string{"base", "other", "none", "unknown", "active", "waiting", "unread", "?"}
	for _, c := range []struct {
		name   string
		intent *v1alpha1.RoutingIntent
		target string
		want   []string
		reason string
	}{
		{"without a model anybody", nil, "", all, ""},
		{"a label, or nothing known", nil, "base", []string{"base", "unknown", "active", "waiting", "unread", "?"}, ""},
		{"an adapter at work, or nothing known", nil, "sql", []string{"unknown", "active", "waiting", "unread", "?"}, ""},
		{"an alias that no intent names is a model", nil, "fast", []string{"unknown", "active", "unread", "?"}, ""},
		{"an intent without a model", &v1alpha1.RoutingIntent{}, "base", []string{"base", "unknown", "active", "waiting", "unread", "?"}, ""},
		{"a trusted model must be known", &v1alpha1.RoutingIntent{LogicalModel: "base"}, "base", []string{"base", "waiting"}, ""},
		{"a trusted adapter at work", &v1alpha1.RoutingIntent{ServedModels: []string{"base", "sql"}}, "sql", []string{"active", "waiting"}, ""},
		{"a trusted alias", &v1alpha1.RoutingIntent{LogicalModel: "fast"}, "sql", []string{"active", "waiting"}, ""},
		{"a model that is none of the intent's", &v1alpha1.RoutingIntent{LogicalModel: "fast"}, "other", nil, "model_not_eligible"},
		{"a model that GIE has not read", &v1alpha1.RoutingIntent{LogicalModel: "fast"}, "", nil, "model_not_eligible"},
		{"a trusted model that nobody serves", &v1alpha1.RoutingIntent{LogicalModel: "gone"}, "gone", nil, "model_unserved"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := &scheduling.LLMRequest{TargetModel: c.target}
			if c.intent != nil {
				request = filtertest.Request(t, c.target, *c.intent)
			}
			var lines []string
			got := filter(t, trusting).Filter(filtertest.Context(&lines), nil, request, fleet())
			if names := filtertest.Names(got); !slices.Equal(names, c.want) {
				t.Errorf("%v are kept, want %v", names, c.want)
			}
			if said := strings.Join(lines, ""); (c.reason == "") != (said == "") || !strings.Contains(said, c.reason) {
				t.Errorf("the log says %q, want %q", said, c.reason)
			}
		})
	}
}

func TestAModelThatWasNotReadMayPassByTheIntentAlone(t *testing.T) {
	f := filter(t, `{`+filtertest.Trusting+`, "unreadableBody": "pass"}`)
	request := filtertest.Request(t, "", v1alpha1.RoutingIntent{ServedModels: []string{"other", "sql"}})
	if got, want := filtertest.Names(f.Filter(t.Context(), nil, request, fleet())), []string{"other", "active", "waiting"}; !slices.Equal(got, want) {
		t.Errorf("%v are kept, want %v", got, want)
	}
	request.TargetModel = "base"
	if got := f.Filter(t.Context(), nil, request, fleet()); len(got) != 0 {
		t.Errorf("%v are kept for a model that was read and is another one, want none", filtertest.Names(got))
	}
}

func TestNobodyIsKeptForAnIntentThatCannotBeTrusted(t *testing.T) {
	var lines []string
	request := &scheduling.LLMRequest{TargetModel: "base", Headers: map[string]string{"x-berth-intent": "x"}}
	got := filter(t, trusting).Filter(filtertest.Context(&lines), nil, request, fleet())
	if len(got) != 0 || len(lines) != 1 || !strings.Contains(lines[0], `"reason"="intent_malformed"`) {
		t.Errorf("%v are kept and the log says %q, want none and intent_malformed", filtertest.Names(got), lines)
	}
}

func TestWithoutARequestAllAreKept(t *testing.T) {
	endpoints := fleet()
	if got := filter(t, "").Filter(t.Context(), nil, nil, endpoints); !slices.Equal(got, endpoints) {
		t.Errorf("%v are kept, want all", filtertest.Names(got))
	}
}

func TestFilterConforms(t *testing.T) {
	values := map[string][]string{"berth.dev/served-models": {"a", "b", ""}}
	trusted := []*scheduling.LLMRequest{
		filtertest.Request(t, "a", v1alpha1.RoutingIntent{LogicalModel: "a"}),
		filtertest.Request(t, "c", v1alpha1.RoutingIntent{ServedModels: []string{"a", "c"}}),
	}
	filtertest.Conform(t, filter(t, trusting), trusted, values, true)
	t.Run("by the body alone", func(t *testing.T) {
		filtertest.Conform(t, filter(t, trusting), []*scheduling.LLMRequest{{TargetModel: "a"}, {}, nil}, values, false)
	})
}

func TestFactoryNamesThePluginAndItsParameters(t *testing.T) {
	made, err := Factory(filtertest.KeySet)("mine", json.RawMessage(trusting), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "mine"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
	for _, params := range []string{`{"unreadableBody": "ignore"}`, `{"aliases": {"a": []}}`, `{"aliases": {"a": "b"}}`, `{"contextUnknown": "pass"}`} {
		made, err := Factory(filtertest.KeySet)("mine", json.RawMessage(params), nil)
		var refused *parameters.Error
		if made != nil || !errors.As(err, &refused) {
			t.Errorf("Factory(%s) = %v, %v, want no plugin and a refusal", params, made, err)
		}
		if err := Check(json.RawMessage(params)); !errors.As(err, &refused) {
			t.Errorf("Check(%s) = %v, want a refusal", params, err)
		}
	}
}
