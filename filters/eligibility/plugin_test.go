package eligibility

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

const trusting = `{` + filtertest.Trusting + `}`

func require(class v1alpha1.RequirementClass, key string, op v1alpha1.Operator, values ...string) v1alpha1.Requirement {
	return v1alpha1.Requirement{Class: class, Key: key, Operator: op, Values: values}
}

func demand(requirements ...v1alpha1.Requirement) v1alpha1.RoutingIntent {
	return v1alpha1.RoutingIntent{Requirements: requirements}
}

// fleet has one endpoint per kind of label; c has the labels of b and more, and d
// none.
func fleet() []scheduling.Endpoint {
	return []scheduling.Endpoint{
		filtertest.Endpoint("a", map[string]string{"berth.dev/residency": "us", "berth.dev/tenants": "blue", "gpus": "8"}, nil),
		filtertest.Endpoint("b", map[string]string{"berth.dev/residency": "eu", "berth.dev/tenants": "blue"}, nil),
		filtertest.Endpoint("c", map[string]string{"berth.dev/residency": "eu", "berth.dev/tenants": "blue", "gpus": "4", "spot": ""}, nil),
		filtertest.Endpoint("d", nil, nil),
		scheduling.NewEndpoint(nil, nil, nil),
	}
}

func TestEndpointsThatMeetEachRequirementAreKept(t *testing.T) {
	const residency, tenants = v1alpha1.AttributeResidency, v1alpha1.AttributeTenants
	for _, c := range []struct {
		name   string
		intent v1alpha1.RoutingIntent
		want   []string
		// reason is what the log says; "" if it says nothing.
		reason string
	}{
		{"no requirements", demand(), []string{"a", "b", "c", "d", "?"}, ""},
		{"In", demand(require(v1alpha1.Residency, residency, v1alpha1.In, "eu", "ch")), []string{"b", "c"}, ""},
		{"NotIn is not met without the label", demand(require(v1alpha1.Residency, residency, v1alpha1.NotIn, "us")), []string{"b", "c"}, ""},
		{"Exists is not met by an empty label", demand(require(v1alpha1.Placement, "spot", v1alpha1.Exists)), nil, "placement_unmet"},
		{"DoesNotExist of a label", demand(require(v1alpha1.Placement, "gpus", v1alpha1.DoesNotExist)), []string{"b", "d", "?"}, ""},
		{"DoesNotExist of what an annotation may state", demand(require(v1alpha1.Authorization, tenants, v1alpha1.DoesNotExist)), nil, "authorization_unmet"},
		{"Gt", demand(require(v1alpha1.Capability, "gpus", v1alpha1.Gt, "4")), []string{"a"}, ""},
		{"Lt", demand(require(v1alpha1.Capability, "gpus", v1alpha1.Lt, "8")), []string{"c"}, ""},
		{"all of several", demand(
			require(v1alpha1.Residency, residency, v1alpha1.In, "eu"),
			require(v1alpha1.Capability, "gpus", v1alpha1.Exists)), []string{"c"}, ""},
		{"another case of a value", demand(require(v1alpha1.Residency, residency, v1alpha1.In, "EU")), nil, "residency_unmet"},
		{"what only the engine says", demand(require(v1alpha1.Capability, v1alpha1.AttributeEngineVersion, v1alpha1.DoesNotExist)), nil, "capability_unmet"},
		{"the class that excludes the last names the reason", demand(
			require(v1alpha1.Placement, "rack", v1alpha1.Exists),
			require(v1alpha1.Authorization, tenants, v1alpha1.In, "blue"),
			require(v1alpha1.Residency, residency, v1alpha1.In, "ch")), nil, "residency_unmet"},
		{"the order of requirements means nothing", demand(
			require(v1alpha1.Residency, residency, v1alpha1.In, "eu"),
			require(v1alpha1.Authorization, tenants, v1alpha1.In, "blue"),
			require(v1alpha1.Placement, "rack", v1alpha1.Exists)), nil, "placement_unmet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			got := filter(t, trusting).Filter(filtertest.Context(&lines), nil, filtertest.Request(t, "m", c.intent), fleet())
			if names := filtertest.Names(got); !slices.Equal(names, c.want) {
				t.Errorf("%v are kept, want %v", names, c.want)
			}
			checkLog(t, lines, c.reason)
		})
	}
}

func TestNobodyIsKeptForAnIntentThatCannotBeTrusted(t *testing.T) {
	request := func(intent v1alpha1.RoutingIntent) *scheduling.LLMRequest {
		return &scheduling.LLMRequest{Headers: map[string]string{"x-berth-intent": filtertest.Sign(t, intent)}}
	}
	late := filtertest.Intent(demand())
	late.IssuedAt, late.ExpiresAt = filtertest.Now.Add(-time.Hour), filtertest.Now.Add(-time.Minute)
	stranger := filtertest.Intent(demand())
	stranger.Audience = []string{"another"}
	const plain = `{"plainHeaders": true, "headers": {"x-context": "contextInputTokens"}}`

	for _, c := range []struct {
		name, params string
		request      *scheduling.LLMRequest
		reason       string
	}{
		{"a malformed one", trusting, &scheduling.LLMRequest{Headers: map[string]string{"x-berth-intent": "CANARY"}}, "intent_malformed"},
		{"an empty header", trusting, &scheduling.LLMRequest{Headers: map[string]string{"x-berth-intent": ""}}, "intent_malformed"},
		{"an expired one", trusting, request(late), "intent_expired"},
		{"one for another picker", trusting, request(stranger), "intent_untrusted"},
		{"a required one that is absent", `{` + filtertest.Trusting + `, "required": true}`, &scheduling.LLMRequest{}, "intent_required"},
		{"a required one without a request", `{` + filtertest.Trusting + `, "required": true}`, nil, "intent_required"},
		{"a malformed plain header", plain, &scheduling.LLMRequest{Headers: map[string]string{"x-context": "CANARY"}}, "intent_malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			got := filter(t, c.params).Filter(filtertest.Context(&lines), nil, c.request, fleet())
			if len(got) != 0 {
				t.Errorf("%v are kept, want none", filtertest.Names(got))
			}
			checkLog(t, lines, c.reason)
		})
	}
}

func checkLog(t *testing.T, lines []string, reason string) {
	t.Helper()
	switch {
	case reason == "" && len(lines) > 0:
		t.Errorf("the log says %q, want nothing", lines)
	case reason != "" && (len(lines) != 1 || !strings.Contains(lines[0], `"reason"="`+reason+`"`)):
		t.Errorf("the log says %q, want one line with %s", lines, reason)
	}
	for _, line := range lines {
		if strings.Contains(line, "CANARY") {
			t.Errorf("the log says %q, with what the client sent", line)
		}
	}
}

func TestWithoutATrustedIntentAllAreKept(t *testing.T) {
	endpoints := fleet()
	signed := filtertest.Request(t, "m", demand(require(v1alpha1.Residency, "x", v1alpha1.Exists)))
	for name, got := range map[string][]scheduling.Endpoint{
		"no intent":                     filter(t, trusting).Filter(t.Context(), nil, &scheduling.LLMRequest{}, endpoints),
		"an intent by a closed channel": filter(t, "").Filter(t.Context(), nil, signed, endpoints),
	} {
		if !slices.Equal(got, endpoints) {
			t.Errorf("%s keeps %v, want all", name, filtertest.Names(got))
		}
	}
}

func TestFilterConforms(t *testing.T) {
	var requests []*scheduling.LLMRequest
	for _, r := range []v1alpha1.Requirement{
		require(v1alpha1.Residency, "berth.dev/residency", v1alpha1.In, "eu"),
		require(v1alpha1.Residency, "berth.dev/residency", v1alpha1.NotIn, "eu"),
		require(v1alpha1.Residency, "berth.dev/residency", v1alpha1.DoesNotExist),
		require(v1alpha1.Capability, "gpus", v1alpha1.Gt, "4"),
		require(v1alpha1.Capability, "gpus", v1alpha1.Lt, "4"),
		require(v1alpha1.Capability, "gpus", v1alpha1.Exists),
	} {
		requests = append(requests, filtertest.Request(t, "m", demand(r)))
	}
	values := map[string][]string{"berth.dev/residency": {"eu", "us", ""}, "gpus": {"1", "8", "many", ""}}
	filtertest.Conform(t, filter(t, trusting), requests, values, true)

	t.Run("with a label that must not be there", func(t *testing.T) {
		absent := filtertest.Request(t, "m", demand(require(v1alpha1.Placement, "gpus", v1alpha1.DoesNotExist)))
		filtertest.Conform(t, filter(t, trusting), []*scheduling.LLMRequest{absent}, values, false)
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
	for _, params := range []string{`{"keySet": 1}`, `[]`, `{"aliases": {"a": ["b"]}}`} {
		made, err := Factory(filtertest.KeySet)("mine", json.RawMessage(params), nil)
		var refused *parameters.Error
		if made != nil || !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), `plugin "mine" of type eligibility: `) {
			t.Errorf("Factory(%s) = %v, %v, want no plugin and a named error", params, made, err)
		}
		if err := Check(json.RawMessage(params)); !errors.As(err, &refused) {
			t.Errorf("Check(%s) = %v, want a refusal", params, err)
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	endpoints := make([]scheduling.Endpoint, 1000)
	for i := range endpoints {
		endpoints[i] = filtertest.Endpoint(fmt.Sprint(i), map[string]string{"berth.dev/residency": "eu", "berth.dev/tenants": "blue"}, nil)
	}
	request := filtertest.Request(b, "m", demand(
		require(v1alpha1.Residency, "berth.dev/residency", v1alpha1.In, "eu"),
		require(v1alpha1.Authorization, "berth.dev/tenants", v1alpha1.In, "blue")))
	f := filter(b, trusting)
	b.ReportAllocs()
	for b.Loop() {
		if len(f.Filter(b.Context(), nil, request, endpoints)) != len(endpoints) {
			b.Fatal("an endpoint was lost")
		}
	}
}
