// Package candidates has what filters do with the endpoints that GIE hands them.
package candidates

import (
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/attribute"
)

// Where returns the endpoints that keep is true for, in their order, in a slice of
// its own: GIE shows the one that it passes to the other profiles, too. A nil
// endpoint is left out.
func Where(endpoints []scheduling.Endpoint, keep func(scheduling.Endpoint) bool) []scheduling.Endpoint {
	kept := make([]scheduling.Endpoint, 0, len(endpoints))
	for _, e := range endpoints {
		if e != nil && keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// Label is the attribute that a label states; it is absent where there is no such
// label. A stock EPP shows a filter labels, and no annotations.
func Label(e scheduling.Endpoint, key string) attribute.Value {
	m := e.GetMetadata()
	if m == nil {
		return attribute.Value{}
	}
	text, ok := m.Labels[key]
	if !ok {
		return attribute.Value{}
	}
	return attribute.List(text)
}
