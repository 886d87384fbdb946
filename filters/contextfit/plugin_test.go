package contextfit

import (
	"encoding/json"
	"errors"
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

const (
	failing = `{` + filtertest.Trusting + `}`
	passing = `{` + filtertest.Trusting + `, "contextUnknown": "pass"}`
)

func need(input, output int64) v1alpha1.RoutingIntent {
	return v1alpha1.RoutingIntent{Context: &v1alpha1.ContextNeed{InputTokens: input, OutputTokens: output}}
}

func fleet() []scheduling.Endpoint {
	limit := func(name, limit string) scheduling.Endpoint {
		return filtertest.Endpoint(name, map[string]string{"berth.dev/context-limit": limit}, nil)
	}
	return []scheduling.Endpoint{
		limit("4k", "4096"), limit("8k", "8192"), limit("words", "8k"), limit("empty", ""), limit("zero", "0"),
		limit("negative", "-8192"), limit("huge", "9223372036854775808"), limit("fraction", "8192.5"),
		filtertest.Endpoint("unknown", nil, nil), scheduling.NewEndpoint(nil, nil, nil),
	}
}

func TestEndpointsWithRoomForTheTokensAreKept(t *testing.T) {
	all := []string{"4k", "8k", "words", "empty", "zero", "negative", "huge", "fraction", "unknown", "?"}
	for _, c := range []struct {
		name, params string
		intent       v1alpha1.RoutingIntent
		want         []string
		reason       string
	}{
		{"no need", failing, v1alpha1.RoutingIntent{}, all, ""},
		{"a need of nothing", failing, need(0, 0), all, ""},
		{"one token", failing, need(1, 0), []string{"4k", "8k"}, ""},
		{"input and output fit together", failing, need(4000, 96), []string{"4k", "8k"}, ""},
		{"one token too many", failing, need(4000, 97), []string{"8k"}, ""},
		{"output alone", failing, need(0, 8192), []string{"8k"}, ""},
		{"more than anybody has", failing, need(8192, 1), nil, "context_exceeded"},
		{"the most that may be asked", failing, need(1<<53-1, 0), nil, "context_exceeded"},
		{"an unknown limit passes, a bad one does not", passing, need(8192, 0), []string{"8k", "unknown", "?"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			got := filter(t, c.params).Filter(filtertest.Context(&lines), nil, filtertest.Request(t, "m", c.intent), fleet())
			if names := filtertest.Names(got); !slices.Equal(names, c.want) {
				t.Errorf("%v are kept, want %v", names, c.want)
			}
			if said := strings.Join(lines, ""); (c.reason == "") != (said == "") || !strings.Contains(said, c.reason) {
				t.Errorf("the log says %q, want %q", said, c.reason)
			}
		})
	}
}

func TestNobodyIsKeptForAnIntentThatCannotBeTrusted(t *testing.T) {
	var lines []string
	request := &scheduling.LLMRequest{Headers: map[string]string{"x-berth-intent": "x"}}
	got := filter(t, passing).Filter(filtertest.Context(&lines), nil, request, fleet())
	if len(got) != 0 || len(lines) != 1 || !strings.Contains(lines[0], `"reason"="intent_malformed"`) {
		t.Errorf("%v are kept and the log says %q, want none and intent_malformed", filtertest.Names(got), lines)
	}
}

func TestAPlainHeaderMayStateTheNeed(t *testing.T) {
	f := filter(t, `{"plainHeaders": true, "headers": {"x-tokens": "contextInputTokens"}}`)
	request := &scheduling.LLMRequest{Headers: map[string]string{"x-tokens": "5000"}}
	if got, want := filtertest.Names(f.Filter(t.Context(), nil, request, fleet())), []string{"8k"}; !slices.Equal(got, want) {
		t.Errorf("%v are kept, want %v", got, want)
	}
}

func TestFilterConforms(t *testing.T) {
	values := map[string][]string{"berth.dev/context-limit": {"4096", "8192", "8k", "", "0"}}
	requests := []*scheduling.LLMRequest{filtertest.Request(t, "m", need(4096, 0)), filtertest.Request(t, "m", need(4096, 1))}
	filtertest.Conform(t, filter(t, failing), requests, values, true)
	t.Run("and passes what is unknown", func(t *testing.T) {
		filtertest.Conform(t, filter(t, passing), append(requests, nil), values, false)
	})
}

func TestFactoryNamesThePluginAndItsParameters(t *testing.T) {
	made, err := Factory(filtertest.KeySet)("mine", json.RawMessage(passing), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "mine"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
	for _, params := range []string{`{"contextUnknown": "keep"}`, `{"contextUnknown": true}`, `{"aliases": {"a": ["b"]}}`} {
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
