// Package servedmodel keeps the endpoints that serve the model of the request: the
// filter served-model. README.md is its page for operators.
package servedmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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
const Type = "served-model"

// Filter keeps what serves the model. It may be used concurrently.
type Filter struct {
	name    plugin.TypedName
	intents *channel.Reader
	// passUnreadable places a request whose model GIE has not read by its intent
	// alone.
	passUnreadable bool
	now            func() time.Time
	refused        refusal.Log
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
	settings, passUnreadable, err := decode(params)
	if err != nil {
		return nil, err
	}
	intents, err := settings.Open(read)
	if err != nil {
		return nil, err
	}
	return &Filter{name: plugin.TypedName{Type: Type, Name: Type}, intents: intents,
		passUnreadable: passUnreadable, now: time.Now}, nil
}

func decode(params json.RawMessage) (settings *channel.Settings, passUnreadable bool, err error) {
	const refuse, pass = string(v1alpha1.UnreadableBodyRefuse), string(v1alpha1.UnreadableBodyPass)
	unreadable := refuse
	var aliases map[string][]string
	settings, err = channel.Decode(params, channel.Aliases(&aliases),
		parameters.Choice{Key: "unreadableBody", Into: &unreadable, Of: []string{refuse, pass}})
	if err != nil {
		return nil, false, err
	}
	return settings, unreadable == pass, settings.Alias(aliases)
}

// TypedName is the plugin's type and its name in the configuration.
func (f *Filter) TypedName() plugin.TypedName { return f.name }

// Filter keeps the endpoints that serve the model, and none of them where the intent
// cannot be trusted or names another model than the request.
func (f *Filter) Filter(ctx context.Context, _ *scheduling.CycleState, request *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	now := f.now()
	intent, err := f.intents.Read(request, now)
	if err != nil {
		f.refused.Say(ctx, now, f.name, channel.Reason(err))
		return nil
	}
	var target string
	if request != nil {
		target = request.TargetModel
	}
	names, ok := wanted(intent.Models, target, f.passUnreadable)
	switch {
	case !ok:
		f.refused.Say(ctx, now, f.name, "model_not_eligible")
		return nil
	case len(names) == 0:
		return endpoints
	}
	kept := candidates.Where(endpoints, func(e scheduling.Endpoint) bool {
		return serves(e, names, len(intent.Models) > 0)
	})
	if len(kept) == 0 && len(endpoints) > 0 {
		f.refused.Say(ctx, now, f.name, "model_unserved")
	}
	return kept
}

// wanted are the names that an endpoint must serve one of; none at all asks for
// nothing. It is false where the request's model is not one of a trusted intent's.
func wanted(trusted []string, target string, passUnreadable bool) (names []string, ok bool) {
	switch {
	case len(trusted) == 0 && target == "":
		return nil, true
	case len(trusted) == 0 || slices.Contains(trusted, target):
		return []string{target}, true
	case target == "" && passUnreadable:
		return trusted, true
	default:
		return nil, false
	}
}

// serves reports whether an endpoint serves one of the names. The label says all
// that it serves; GIE's metrics name adapters that are at work, which says nothing
// against the others. Where neither says anything, only a request without a trusted
// model may try.
func serves(e scheduling.Endpoint, names []string, trusted bool) bool {
	declared := candidates.Label(e, v1alpha1.AttributeServedModels)
	if declared.Meets(v1alpha1.In, names) || working(e, names) {
		return true
	}
	return !declared.Present() && !trusted
}

// working reports whether the engine has shown requests for one of the names.
func working(e scheduling.Endpoint, names []string) bool {
	m := e.GetMetrics()
	if m == nil || m.UpdateTime.IsZero() {
		return false
	}
	return slices.ContainsFunc(names, func(name string) bool {
		_, active := m.ActiveModels[name]
		_, waiting := m.WaitingModels[name]
		return active || waiting
	})
}
