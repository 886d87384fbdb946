package plugins

import (
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"

	"github.com/berth-dev/berth/filters/contextfit"
	"github.com/berth-dev/berth/filters/eligibility"
	"github.com/berth-dev/berth/filters/health"
	"github.com/berth-dev/berth/filters/servedmodel"
	"github.com/berth-dev/berth/filters/subset"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins/picker"
	"github.com/berth-dev/berth/scorers/activerequests"
	"github.com/berth-dev/berth/scorers/kvcacheutilization"
	"github.com/berth-dev/berth/scorers/parameters"
	"github.com/berth-dev/berth/scorers/queuedepth"
)

// entry is one plugin type.
type entry struct {
	kind  string
	class policy.Class
	// factory builds the plugin for GIE.
	factory plugin.FactoryFunc
	// build makes the plugin from its parameters, to check them and, where it
	// is a native scorer, to run it; it makes nothing of a plugin that would read
	// a file. A parameter that it refuses is a *parameters.Error.
	build func(json.RawMessage) (any, error)
}

// native is a scorer that Berth's own placement can run.
type native interface {
	Placement(name string, weight float64) placement.Scorer
}

// table has every plugin type of Berth, sorted by name. It is never written to.
var table = []entry{
	{activerequests.Type, policy.Scorer, activerequests.Factory, builder(activerequests.New)},
	{picker.Type, policy.Picker, picker.Factory, builder(picker.New)},
	{contextfit.Type, policy.Filter, contextfit.Factory(readKeySet), checker(contextfit.Check)},
	{eligibility.Type, policy.Filter, eligibility.Factory(readKeySet), checker(eligibility.Check)},
	{health.Type, policy.Filter, health.Factory, builder(health.New)},
	{kvcacheutilization.Type, policy.Scorer, kvcacheutilization.Factory, builder(kvcacheutilization.New)},
	{queuedepth.Type, policy.Scorer, queuedepth.Factory, builder(queuedepth.New)},
	{servedmodel.Type, policy.Filter, servedmodel.Factory(readKeySet), checker(servedmodel.Check)},
	{subset.Type, policy.Filter, subset.Factory, builder(subset.New)},
}

func builder[T any](build func(json.RawMessage) (T, error)) func(json.RawMessage) (any, error) {
	return func(params json.RawMessage) (any, error) { return build(params) }
}

func checker(check func(json.RawMessage) error) func(json.RawMessage) (any, error) {
	return func(params json.RawMessage) (any, error) { return nil, check(params) }
}

func find(pluginType string) (entry, error) {
	for _, e := range table {
		if e.kind == pluginType {
			return e, nil
		}
	}
	return entry{}, &policy.UnknownTypeError{Type: pluginType, Known: Types()}
}

// Types are the names of all plugin types, sorted.
func Types() []string {
	names := make([]string, len(table))
	for i, e := range table {
		names[i] = e.kind
	}
	return names
}

// Register makes all plugin types known to GIE. GIE's registry is not
// protected: call it before any goroutine may read it.
func Register() {
	for _, e := range table {
		plugin.Register(e.kind, e.factory)
	}
}

// Catalog is the table as the configuration asks it. It is stateless.
type Catalog struct{}

var _ policy.Catalog = Catalog{}

// Check implements policy.Catalog.
func (Catalog) Check(pluginType string, params json.RawMessage) (policy.Class, error) {
	e, err := find(pluginType)
	if err != nil {
		return 0, err
	}
	_, err = e.build(params)
	if refused := (*parameters.Error)(nil); errors.As(err, &refused) && refused.Field != "" {
		err = &policy.ParameterError{Key: refused.Field, Allowed: refused.Allowed}
	}
	return e.class, err
}

// Scorer builds a scorer for Berth's own placement. name and weight are the
// profile's; placement.NewPlan judges the weight. A type that does not exist
// is a *policy.UnknownTypeError, a parameter that is refused a
// *parameters.Error.
func Scorer(pluginType, name string, weight float64, params json.RawMessage) (placement.Scorer, error) {
	e, err := find(pluginType)
	if err != nil {
		return placement.Scorer{}, fmt.Errorf("plugin %q: %w", name, err)
	}
	built, err := e.build(params)
	if err != nil {
		return placement.Scorer{}, fmt.Errorf("plugin %q of type %s: %w", name, pluginType, err)
	}
	s, ok := built.(native)
	if !ok {
		return placement.Scorer{}, fmt.Errorf("plugin %q: %s: a %s, must be a scorer", name, pluginType, e.class)
	}
	return s.Placement(name, weight), nil
}
