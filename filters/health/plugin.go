// Package health drops endpoints that are known to be unable to serve: the filter
// health. README.md is its page for operators.
package health

import (
	"context"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/filters/internal/candidates"
	"github.com/berth-dev/berth/scorers/parameters"
)

// Type is the plugin type in configuration.
const Type = "health"

// Key is the endpoint attribute that holds a Verdict: for a data source that hears
// what the engine says of itself.
const Key = "berth.dev/health"

// Verdict is what a data source has heard of an endpoint.
type Verdict uint8

const (
	// Unknown: nothing. An endpoint without a Verdict is as unknown.
	Unknown Verdict = iota
	// Serving: the engine says that it serves.
	Serving
	// Excluded: the engine says that it sleeps, is not ready, or is unhealthy.
	Excluded
)

// Clone returns the verdict itself: GIE asks for a clone at each read.
func (v Verdict) Clone() datalayer.Cloneable { return v }

// Filter drops what is known to be unable to serve. It is immutable and may be used
// concurrently.
type Filter struct{ name plugin.TypedName }

var (
	_ scheduling.Filter  = (*Filter)(nil)
	_ plugin.FactoryFunc = Factory
)

// Factory builds the plugin for GIE. The handle is not used.
func Factory(name string, params json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
	f, err := New(params)
	if err != nil {
		return nil, fmt.Errorf("plugin %q of type %s: %w", name, Type, err)
	}
	f.name.Name = name
	return f, nil
}

// New builds the filter. It has no parameters; an error is a *parameters.Error.
func New(params json.RawMessage) (*Filter, error) {
	if err := parameters.Decode(params); err != nil {
		return nil, err
	}
	return &Filter{name: plugin.TypedName{Type: Type, Name: Type}}, nil
}

// TypedName is the plugin's type and its name in the configuration.
func (f *Filter) TypedName() plugin.TypedName { return f.name }

// Filter keeps the endpoints that nothing is known against.
func (f *Filter) Filter(_ context.Context, _ *scheduling.CycleState, _ *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	return candidates.Where(endpoints, able)
}

// able is false for an endpoint that is excluded, and for one whose attribute is no
// Verdict: who wrote it had something to say.
func able(e scheduling.Endpoint) bool {
	said, ok := e.Get(Key)
	if !ok {
		return true
	}
	verdict, ok := said.(Verdict)
	return ok && (verdict == Unknown || verdict == Serving)
}
