// Package contextfit keeps the endpoints whose context limit has room for the
// request: the filter context-fit. README.md is its page for operators.
package contextfit

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/filters/internal/candidates"
	"github.com/berth-dev/berth/filters/internal/channel"
	"github.com/berth-dev/berth/filters/internal/refusal"
	"github.com/berth-dev/berth/scorers/parameters"
)

// Type is the plugin type in configuration.
const Type = "context-fit"

// Filter keeps what has room. It may be used concurrently.
type Filter struct {
	name    plugin.TypedName
	intents *channel.Reader
	// passUnknown keeps endpoints whose limit is not stated.
	passUnknown bool
	now         func() time.Time
	refused     refusal.Log
}

var _ scheduling.Filter = (*Filter)(nil)

// Factory builds the plugin for GIE. It reads the key set by read, once. The handle
// is not used.
func Factory(read func(path string) ([]byte, error)) plugin.FactoryFunc {
	return func(name string, params json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
		f, err := New(params, read)
		if err != nil {
			return nil, fmt.Errorf("plugin %q of type %s: %w", name, Type, err)
		}
		f.name.Name = name
		return f, nil
	}
}

// Check reports whether the parameters can be used, without reading the key set.
// The error is a *parameters.Error.
func Check(params json.RawMessage) error {
	_, _, err := decode(params)
	return err
}

// New builds the filter from its parameters; none at all means that no intent is
// trusted. An error of theirs is a *parameters.Error.
func New(params json.RawMessage, read func(path string) ([]byte, error)) (*Filter, error) {
	settings, passUnknown, err := decode(params)
	if err != nil {
		return nil, err
	}
	intents, err := settings.Open(read)
	if err != nil {
		return nil, err
	}
	return &Filter{name: plugin.TypedName{Type: Type, Name: Type}, intents: intents,
		passUnknown: passUnknown, now: time.Now}, nil
}

func decode(params json.RawMessage) (settings *channel.Settings, passUnknown bool, err error) {
	const fail, pass = string(v1alpha1.ContextUnknownFail), string(v1alpha1.ContextUnknownPass)
	unknown := fail
	settings, err = channel.Decode(params,
		parameters.Choice{Key: "contextUnknown", Into: &unknown, Of: []string{fail, pass}})
	return settings, unknown == pass, err
}

// TypedName is the plugin's type and its name in the configuration.
func (f *Filter) TypedName() plugin.TypedName { return f.name }

// Filter keeps the endpoints that have room for what the intent needs, and none of
// them where the intent cannot be trusted.
func (f *Filter) Filter(ctx context.Context, _ *scheduling.CycleState, request *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	now := f.now()
	intent, err := f.intents.Read(request, now)
	if err != nil {
		f.refused.Say(ctx, now, f.name, channel.Reason(err))
		return nil
	}
	need := tokens(intent.Routing)
	if need == 0 {
		return endpoints
	}
	kept := candidates.Where(endpoints, func(e scheduling.Endpoint) bool { return fits(e, need, f.passUnknown) })
	if len(kept) == 0 && len(endpoints) > 0 {
		f.refused.Say(ctx, now, f.name, "context_exceeded")
	}
	return kept
}

// tokens is how many must fit together; 0 asks for nothing. Each part is below 2^53.
func tokens(routing *v1alpha1.RoutingIntent) int64 {
	if routing == nil || routing.Context == nil {
		return 0
	}
	return routing.Context.InputTokens + routing.Context.OutputTokens
}

// fits reports whether the limit that the endpoint's label states is at least need,
// which is above 0. A label that is not one whole number is a limit that nothing
// fits, not one that is unknown.
func fits(e scheduling.Endpoint, need int64, passUnknown bool) bool {
	limit := candidates.Label(e, v1alpha1.AttributeContextLimit)
	if !limit.Present() {
		return passUnknown
	}
	return limit.Meets(v1alpha1.Gt, []string{strconv.FormatInt(need-1, 10)})
}
