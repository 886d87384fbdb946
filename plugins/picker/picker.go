// Package picker takes the best scored endpoints: the picker berth-picker.
// README.md is its page for operators.
package picker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/scorers/evidence"
	"github.com/berth-dev/berth/scorers/parameters"
)

// Type is the plugin type in configuration.
const Type = "berth-picker"

const (
	defaultEndpoints = 1
	// maxEndpoints is the pick and the most fallbacks that a gateway is handed.
	maxEndpoints = 1 + placement.MaxFallbacks
)

// Picker picks the endpoints with the highest scores and breaks ties by
// rendezvous hash of the request key. It may be used concurrently.
type Picker struct {
	name      plugin.TypedName
	endpoints int
	// keyless counts the picks for requests without a key, and stands in for
	// one: see key. It is the only state, and unused where requests have keys.
	keyless atomic.Uint64
}

var (
	_ scheduling.Picker  = (*Picker)(nil)
	_ scheduling.Filter  = (*Picker)(nil)
	_ plugin.FactoryFunc = Factory
)

// Factory builds the plugin for GIE. The handle is not used.
func Factory(name string, params json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
	p, err := New(params)
	if err != nil {
		return nil, fmt.Errorf("plugin %q of type %s: %w", name, Type, err)
	}
	p.name.Name = name
	return p, nil
}

// New builds the picker from its parameters; none at all means the defaults.
// An error of theirs is a *parameters.Error.
func New(params json.RawMessage) (*Picker, error) {
	p := &Picker{name: plugin.TypedName{Type: Type, Name: Type}, endpoints: defaultEndpoints}
	err := parameters.Decode(params,
		parameters.Integer{Key: "maxNumOfEndpoints", Into: &p.endpoints, Min: 1, Max: maxEndpoints})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// TypedName is the plugin's type and its name in the configuration.
func (p *Picker) TypedName() plugin.TypedName { return p.name }

// Filter keeps all endpoints. GIE shows a picker no request, and runs a plugin
// at every extension point that it implements: this is where the picker learns
// the request key, from the request's ID, unless the host has set one.
func (p *Picker) Filter(_ context.Context, state *scheduling.CycleState, request *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	if state == nil || request == nil || request.RequestId == "" {
		return endpoints
	}
	if _, ok := readKey(state); !ok {
		WriteKey(state, xxhash.Sum64String(request.RequestId))
	}
	return endpoints
}

// Pick returns the best endpoints, best first, by the order that placement
// uses: those that are not last, then by score, then by rendezvous hash, then
// by name. A NaN score is below all others. It returns nil, which GIE reports
// as a failed profile, when there is nothing to pick from: a result without
// endpoints would bring GIE's director down.
func (p *Picker) Pick(_ context.Context, state *scheduling.CycleState,
	scored []*scheduling.ScoredEndpoint) *scheduling.ProfileRunResult {
	key := p.key(state)
	candidates := make([]candidate, 0, len(scored))
	for _, s := range scored {
		if s != nil && s.Endpoint != nil {
			candidates = append(candidates, newCandidate(s, key))
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	slices.SortFunc(candidates, byPreference)
	best := candidates[:min(p.endpoints, len(candidates))]
	targets := make([]scheduling.Endpoint, len(best))
	for i, c := range best {
		targets[i] = c.endpoint
	}
	return &scheduling.ProfileRunResult{TargetEndpoints: targets}
}

// key is the request's key. A request without one gets the next number, so
// that ties still spread: the hash alone would send them all to one endpoint.
func (p *Picker) key(state *scheduling.CycleState) uint64 {
	if state != nil {
		if k, ok := readKey(state); ok {
			return k
		}
	}
	return p.keyless.Add(1)
}

// candidate is a scored endpoint with everything that it is ordered by.
type candidate struct {
	endpoint scheduling.Endpoint
	last     bool
	score    float64
	tie      uint64
	name     string
}

func newCandidate(s *scheduling.ScoredEndpoint, key uint64) candidate {
	c := candidate{endpoint: s.Endpoint, score: s.Score}
	if m := s.GetMetadata(); m != nil {
		c.name = m.NamespacedName.String()
	}
	if row, ok := evidence.RowOf(s.Endpoint); ok {
		c.last, c.tie = row.Last, placement.Rendezvous(key, row.Hash)
	} else {
		c.tie = placement.Rendezvous(key, xxhash.Sum64String(c.name))
	}
	return c
}

func byPreference(a, b candidate) int {
	if a.last != b.last {
		if b.last {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(b.score, a.score),
		cmp.Compare(b.tie, a.tie),
		cmp.Compare(a.name, b.name),
	)
}
