package subset

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

	"github.com/berth-dev/berth/filters/internal/filtertest"
	"github.com/berth-dev/berth/scorers/parameters"
)

const reading = `{"header": "x-subset"}`

func filter(t testing.TB, params string) *Filter {
	t.Helper()
	f, err := New(json.RawMessage(params))
	if err != nil {
		t.Fatal(err)
	}
	f.now = func() time.Time { return filtertest.Now }
	return f
}

func at(name, address, port string) scheduling.Endpoint {
	e := filtertest.Endpoint(name, nil, nil)
	m := e.GetMetadata()
	m.Address, m.Port = address, port
	return scheduling.NewEndpoint(m, nil, nil)
}

func fleet() []scheduling.Endpoint {
	return []scheduling.Endpoint{
		at("a-rank-0", "10.0.0.1", "8000"), at("a-rank-1", "10.0.0.1", "8001"), at("b", "10.0.0.2", "8000"),
		at("v6", "fd00::1", "8000"), at("mapped", "::ffff:10.0.0.3", "8000"),
		at("named", "replica.svc", "8000"), at("portless", "10.0.0.4", ""), at("far", "10.0.0.4", "70000"),
		filtertest.Endpoint("nowhere", nil, &datalayer.Metrics{}), scheduling.NewEndpoint(nil, nil, nil),
	}
}

func TestEndpointsAreKeptByAddressAndPort(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        []string
	}{
		{"one port of an address", "10.0.0.1:8001", []string{"a-rank-1"}},
		{"a list with commas", "10.0.0.2:8000, 10.0.0.1:8000", []string{"a-rank-0", "b"}},
		{"a list as JSON", `["10.0.0.2:8000","10.0.0.1:8000"]`, []string{"a-rank-0", "b"}},
		{"IPv6 in brackets", "[fd00::1]:8000", []string{"v6"}},
		{"IPv6 in brackets, as JSON", `[ "[fd00::1]:8000" ]`, []string{"v6"}},
		{"bare IPv6", "fd00::1:8000", []string{"v6"}},
		{"IPv4 for an address mapped into IPv6", "10.0.0.3:8000", []string{"mapped"}},
		{"a member of a JSON list that is no text matches nothing", `[null, 7, ["10.0.0.1:8000"], "10.0.0.2:8000"]`, []string{"b"}},
		{"an address without a port", "10.0.0.1", nil},
		{"nothing", "", nil},
		{"an empty JSON list", "[]", nil},
		{"a JSON text", `"10.0.0.1:8000"`, nil},
		{"a JSON object", `{"10.0.0.1:8000": true}`, nil},
		{"a JSON list that does not end", `["10.0.0.1:8000"`, nil},
		{"two JSON lists", `["10.0.0.1:8000"]["10.0.0.2:8000"]`, nil},
		{"the mark of an absent value", "-", nil},
		{"a name", "replica.svc:8000", nil},
		{"an endpoint with a bad port", "10.0.0.4:70000", nil},
		{"an endpoint of another pool", "10.9.9.9:8000", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lines []string
			request := &scheduling.LLMRequest{Headers: map[string]string{"x-subset": c.value}}
			got := filter(t, reading).Filter(filtertest.Context(&lines), nil, request, fleet())
			if names := filtertest.Names(got); !slices.Equal(names, c.want) {
				t.Errorf("%q keeps %v, want %v", c.value, names, c.want)
			}
			if said := strings.Join(lines, ""); (c.want == nil) != strings.Contains(said, `"reason"="subset_empty"`) {
				t.Errorf("the log says %q", said)
			}
		})
	}
}

func TestAHeaderInTwoSpellingsIsASubsetOfNobody(t *testing.T) {
	request := &scheduling.LLMRequest{Headers: map[string]string{"x-subset": "10.0.0.1:8000", "X-Subset": "10.0.0.1:8000"}}
	if got := filter(t, reading).Filter(t.Context(), nil, request, fleet()); len(got) != 0 {
		t.Errorf("%v are kept, want none", filtertest.Names(got))
	}
	delete(request.Headers, "x-subset")
	if got := filtertest.Names(filter(t, reading).Filter(t.Context(), nil, request, fleet())); !slices.Equal(got, []string{"a-rank-0"}) {
		t.Errorf("in capitals alone, %v are kept, want a-rank-0", got)
	}
}

func TestWithoutASubsetAllAreKept(t *testing.T) {
	endpoints := fleet()
	known := map[string]string{"x-gateway-destination-endpoint-subset": "10.0.0.1:8000"}
	for _, c := range []struct {
		name, params string
		request      *scheduling.LLMRequest
	}{
		{"no request", reading, nil},
		{"no header", reading, &scheduling.LLMRequest{Headers: map[string]string{"x-other": "10.0.0.1:8000"}}},
		{"a header that is not read", "", &scheduling.LLMRequest{Headers: known}},
	} {
		if got := filter(t, c.params).Filter(t.Context(), nil, c.request, endpoints); !slices.Equal(got, endpoints) {
			t.Errorf("%s keeps %v, want all", c.name, filtertest.Names(got))
		}
	}
}

func TestFilterConforms(t *testing.T) {
	var requests []*scheduling.LLMRequest
	for _, value := range []string{"", "10.0.0.1:8000", "[]"} {
		requests = append(requests, &scheduling.LLMRequest{Headers: map[string]string{"x-subset": value}})
	}
	filtertest.Conform(t, filter(t, reading), append(requests, nil), nil, false)
}

func TestFactoryNamesThePluginAndItsParameters(t *testing.T) {
	made, err := Factory("mine", json.RawMessage(reading), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "mine"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
	for _, params := range []string{`{"header": "X-Subset"}`, `{"header": ""}`, `{"header": ":path"}`, `{"header": "x subset"}`, `{"headers": "x"}`} {
		made, err := Factory("mine", json.RawMessage(params), nil)
		if refused := (*parameters.Error)(nil); made != nil || !errors.As(err, &refused) {
			t.Errorf("Factory(%s) = %v, %v, want no plugin and a refusal", params, made, err)
		}
	}
}

// Whatever the header says, what is kept is named in it by address and port.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", "[]", `["10.0.0.1:8000"]`, "10.0.0.1:8000,[fd00::1]:8000", `[{"a": "10.0.0.1:8000"}]`, "[fd00::1]:8000", `["\u0031\u0030.0.0.1:8000"]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s := read(value)
		for _, e := range fleet() {
			if !contains(s, e) {
				continue
			}
			text := value
			if plain, err := unescaped(value); err == nil {
				text = plain
			}
			if port := e.GetMetadata().Port; !strings.Contains(text, port) {
				t.Fatalf("%q contains %s, and does not say its port", value, e.GetMetadata().NamespacedName.Name)
			}
		}
	})
}

// unescaped is a JSON list without its escapes.
func unescaped(value string) (string, error) {
	var members []any
	if err := json.Unmarshal([]byte(value), &members); err != nil {
		return "", err
	}
	var texts []string
	for _, m := range members {
		if s, ok := m.(string); ok {
			texts = append(texts, s)
		}
	}
	return strings.Join(texts, ","), nil
}
