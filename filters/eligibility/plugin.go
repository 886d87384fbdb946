// Package eligibility keeps the endpoints that meet each requirement of the routing
// intent: the filter eligibility. README.md is its page for operators.
package eligibility

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/filters/internal/candidates"
	"github.com/berth-dev/berth/filters/internal/channel"
	"github.com/berth-dev/berth/filters/internal/refusal"
	"github.com/berth-dev/berth/internal/attribute"
)

// Type is the plugin type in configuration.
const Type = "eligibility"

// Filter keeps what meets the requirements. It may be used concurrently.
type Filter struct {
	name    plugin.TypedName
	intents *channel.Reader
	now     func() time.Time
	refused refusal.Log
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
	_, err := channel.Decode(params)
	return err
}

// New builds the filter from its parameters; none at all means that no intent is
// trusted. An error of theirs is a *parameters.Error.
func New(params json.RawMessage, read func(path string) ([]byte, error)) (*Filter, error) {
	settings, err := channel.Decode(params)
	if err != nil {
		return nil, err
	}
	intents, err := settings.Open(read)
	if err != nil {
		return nil, err
	}
	return &Filter{name: plugin.TypedName{Type: Type, Name: Type}, intents: intents, now: time.Now}, nil
}

// TypedName is the plugin's type and its name in the configuration.
func (f *Filter) TypedName() plugin.TypedName { return f.name }

// Filter keeps the endpoints that meet each requirement, and none of them where the
// intent cannot be trusted.
func (f *Filter) Filter(ctx context.Context, _ *scheduling.CycleState, request *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	now := f.now()
	intent, err := f.intents.Read(request, now)
	if err != nil {
		f.refused.Say(ctx, now, f.name, channel.Reason(err))
		return nil
	}
	if intent.Routing == nil || len(intent.Routing.Requirements) == 0 {
		return endpoints
	}
	kept, reason := meeting(intent.Routing.Requirements, endpoints)
	if len(kept) == 0 && len(endpoints) > 0 {
		f.refused.Say(ctx, now, f.name, reason)
	}
	return kept
}

// classes are the classes of requirements in the order of screening.
var classes = []v1alpha1.RequirementClass{
	v1alpha1.Authorization, v1alpha1.Safety, v1alpha1.Residency, v1alpha1.Capability, v1alpha1.Placement,
}

// meeting returns the endpoints that meet all requirements. The reason is that of the
// class that excluded the last of them, were the classes asked one after another.
func meeting(requirements []v1alpha1.Requirement, endpoints []scheduling.Endpoint) (kept []scheduling.Endpoint, reason string) {
	requirements = slices.Clone(requirements)
	slices.SortStableFunc(requirements, func(a, b v1alpha1.Requirement) int {
		return slices.Index(classes, a.Class) - slices.Index(classes, b.Class)
	})
	last := 0
	kept = candidates.Where(endpoints, func(e scheduling.Endpoint) bool {
		unmet := slices.IndexFunc(requirements, func(r v1alpha1.Requirement) bool {
			return !stated(e, r.Key).Meets(r.Operator, r.Values)
		})
		last = max(last, unmet)
		return unmet < 0
	})
	return kept, string(requirements[last].Class) + "_unmet"
}

// stated is what is known of an attribute. The keys of Berth's own may be stated by
// an annotation or by the engine, which a stock EPP does not show: without a label
// it is not known that they are absent, and nothing is met.
func stated(e scheduling.Endpoint, key string) attribute.Value {
	v := candidates.Label(e, key)
	if !v.Present() && strings.HasPrefix(key, "berth.dev/") {
		return attribute.Invalid()
	}
	return v
}
