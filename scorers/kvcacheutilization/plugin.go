// Package kvcacheutilization prefers endpoints with room in their KV cache: the
// scorer kv-cache-utilization. README.md is its page for operators.
package kvcacheutilization

import (
	"context"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/scorers/evidence"
	"github.com/berth-dev/berth/scorers/internal/load"
	"github.com/berth-dev/berth/scorers/parameters"
)

// Type is the plugin type in configuration.
const Type = "kv-cache-utilization"

// Scorer scores by KV-cache utilization. It is immutable and may be used concurrently.
type Scorer struct {
	name plugin.TypedName
	gie  *evidence.Adapter
}

var (
	_ scheduling.Scorer  = (*Scorer)(nil)
	_ plugin.FactoryFunc = Factory
)

// Factory builds the plugin for GIE. The handle is not used.
func Factory(name string, params json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
	s, err := New(params)
	if err != nil {
		return nil, fmt.Errorf("plugin %q of type %s: %w", name, Type, err)
	}
	s.name.Name = name
	return s, nil
}

// New builds the scorer. It has no parameters; giving one is a
// *parameters.Error.
func New(params json.RawMessage) (*Scorer, error) {
	s := &Scorer{name: plugin.TypedName{Type: Type, Name: Type}}
	err := parameters.Decode(params)
	if err != nil {
		return nil, err
	}
	if s.gie, err = evidence.NewAdapter(s.Placement(Type, 1)); err != nil {
		return nil, err
	}
	return s, nil
}

// TypedName is the plugin's type and its name in the configuration.
func (s *Scorer) TypedName() plugin.TypedName { return s.name }

// Category tells GIE that the scorer spreads requests.
func (s *Scorer) Category() scheduling.ScorerCategory { return scheduling.Distribution }

// Score scores endpoints for GIE as Placement's function does in Berth.
func (s *Scorer) Score(_ context.Context, _ *scheduling.CycleState, _ *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) map[scheduling.Endpoint]float64 {
	return s.gie.Score(endpoints)
}

// Placement is the scorer as placement runs it.
func (*Scorer) Placement(name string, weight float64) placement.Scorer {
	return placement.Scorer{
		Name:   name,
		Weight: weight,
		Reads:  []telemetry.Field{telemetry.KVCacheUtilization},
		Score:  score,
	}
}

func score(in *placement.Input, out []float64) {
	used, ok := in.Field(telemetry.KVCacheUtilization)
	if !ok {
		load.Abstain(out)
		return
	}
	for row, u := range used {
		out[row] = 1 - min(max(u, 0), 1)
	}
}
