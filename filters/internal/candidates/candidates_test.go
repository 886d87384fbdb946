package candidates

import (
	"slices"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"
)

func labelled(labels map[string]string) scheduling.Endpoint {
	return scheduling.NewEndpoint(&datalayer.EndpointMetadata{Labels: labels}, nil, nil)
}

func TestALabelIsAnAttributeOfOneValueAtMost(t *testing.T) {
	labels := map[string]string{"one": "a", "empty": ""}
	for _, c := range []struct {
		name, key string
		endpoint  scheduling.Endpoint
		present   bool
		items     []string
	}{
		{"a value", "one", labelled(labels), true, []string{"a"}},
		{"an empty value", "empty", labelled(labels), true, nil},
		{"no such label", "two", labelled(labels), false, nil},
		{"no labels", "one", labelled(nil), false, nil},
		{"no metadata", "one", scheduling.NewEndpoint(nil, nil, nil), false, nil},
	} {
		v := Label(c.endpoint, c.key)
		if v.Present() != c.present || !slices.Equal(v.Items(), c.items) {
			t.Errorf("%s: there is %v, with %q, want %v with %q", c.name, v.Present(), v.Items(), c.present, c.items)
		}
	}
}

func TestWhereKeepsTheOrderAndLeavesGapsOut(t *testing.T) {
	a, b, c := labelled(nil), labelled(nil), labelled(nil)
	given := []scheduling.Endpoint{c, nil, a, b}
	got := Where(given, func(e scheduling.Endpoint) bool { return e != a })
	if !slices.Equal(got, []scheduling.Endpoint{c, b}) {
		t.Errorf("%v are kept, want the first and the last", got)
	}
	if !slices.Equal(given, []scheduling.Endpoint{c, nil, a, b}) {
		t.Error("the caller's slice was changed")
	}
}
