package health

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/filters/internal/filtertest"
	"github.com/berth-dev/berth/scorers/parameters"
)

func filter(t testing.TB) *Filter {
	t.Helper()
	f, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func endpoint(name string, said datalayer.Cloneable) scheduling.Endpoint {
	e := filtertest.Endpoint(name, nil, nil)
	if said != nil {
		e.Put(Key, said)
	}
	return e
}

type foreign struct{}

func (foreign) Clone() datalayer.Cloneable { return foreign{} }

func TestOnlyEndpointsThatAreKnownToBeUnableAreDropped(t *testing.T) {
	never, scraped := &datalayer.Metrics{}, &datalayer.Metrics{WaitingQueueSize: 1000, UpdateTime: filtertest.Now}
	endpoints := []scheduling.Endpoint{
		endpoint("silent", nil),
		endpoint("unknown", Unknown),
		endpoint("serving", Serving),
		endpoint("excluded", Excluded),
		endpoint("beyond", Verdict(3)),
		endpoint("foreign", foreign{}),
		filtertest.Endpoint("never scraped", nil, never),
		filtertest.Endpoint("busy", map[string]string{"ready": "false"}, scraped),
		scheduling.NewEndpoint(nil, nil, nil),
	}
	got := filtertest.Names(filter(t).Filter(t.Context(), nil, nil, endpoints))
	if want := []string{"silent", "unknown", "serving", "never scraped", "busy", "?"}; !slices.Equal(got, want) {
		t.Errorf("%v are kept, want %v", got, want)
	}
}

func TestNobodyIsKeptWhereAllAreExcluded(t *testing.T) {
	endpoints := []scheduling.Endpoint{endpoint("a", Excluded), endpoint("b", Excluded)}
	if got := filter(t).Filter(t.Context(), nil, nil, endpoints); len(got) != 0 {
		t.Errorf("%v are kept, want none", filtertest.Names(got))
	}
}

func TestFilterConforms(t *testing.T) {
	values := map[string][]string{"ready": {"true", "false"}}
	filtertest.Conform(t, filter(t), []*scheduling.LLMRequest{nil, {TargetModel: "m"}}, values, true)
}

func TestFactoryNamesThePluginAndTakesNoParameters(t *testing.T) {
	made, err := Factory("mine", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := made.TypedName(), (plugin.TypedName{Type: Type, Name: "mine"}); got != want {
		t.Errorf("the plugin is %v, want %v", got, want)
	}
	made, err = Factory("mine", json.RawMessage(`{"strict": true}`), nil)
	const want = `plugin "mine" of type health: strict: true: unknown parameter; this plugin has none`
	if refused := (*parameters.Error)(nil); made != nil || !errors.As(err, &refused) || err.Error() != want {
		t.Errorf("Factory = %v, %v, want no plugin and %s", made, err, want)
	}
}
