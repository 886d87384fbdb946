package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
	"github.com/berth-dev/berth/internal/pool"
)

// LintIntents finds intents that no endpoint can satisfy by what is declared of it:
// of each requirement, of the model, and of all of that together. Policy and pool
// are as for Lint; without an endpoint there is nothing to find. What engines state
// themselves may change the answer, and is taken as met: so is a model where an
// endpoint leaves servedModels out, and the engine where one leaves that to
// detection. The intents are valid ones.
func LintIntents(p *Policy, static *Pool, intents []v1alpha1.RoutingIntent) []Finding {
	if static == nil && p != nil {
		static = p.Pool
	}
	if static == nil || len(static.Endpoints) == 0 {
		return nil
	}
	d := &demands{intents: intents, endpoints: static.Endpoints}
	if p != nil {
		d.aliases = p.Models.Aliases
	}
	for i := range static.Endpoints {
		d.attributes = append(d.attributes, declaredOf(static, &static.Endpoints[i]))
	}
	var findings []Finding
	for _, r := range Rules() {
		if r.findIntents != nil {
			findings = append(findings, r.findings(r.findIntents(d))...)
		}
	}
	return findings
}

// LintIgnored tells of the members of an intent that are not known, and so ignored, as
// v1alpha1.DecodeIntent returns them. The intent is the nth of its file, from 0.
func LintIgnored(nth int, members []string) []Finding {
	var where []string
	for _, name := range members {
		where = append(where, printable(child(index("intents", nth), name), 256)+", the nearest is "+nearest(name, intentMembers()))
	}
	var findings []Finding
	for _, r := range Rules() {
		if r.Code == codeIgnored {
			findings = r.findings(where)
		}
	}
	return findings
}

// intentMembers are the members that intents have, in order.
func intentMembers() []string {
	fields := map[string]reflect.Value{}
	collectFields(reflect.ValueOf(v1alpha1.RoutingIntent{}), fields)
	return slices.Sorted(maps.Keys(fields))
}

// demands are intents beside the pool that is to satisfy them.
type demands struct {
	intents   []v1alpha1.RoutingIntent
	aliases   map[string][]string
	endpoints []pool.Spec
	// attributes are those of the endpoint of the same index.
	attributes []attribute.Set
}

// declaredOf are the attributes of an endpoint that no engine has a say in, and the
// engine where it is declared.
func declaredOf(p *Pool, s *pool.Spec) attribute.Set {
	set := attribute.FromMetadata(s.Labels, s.Annotations)
	// The file has the engine by an alias perhaps; what counts is its profile.
	delete(set, v1alpha1.AttributeEngine)
	for key, text := range map[string]string{
		v1alpha1.AttributePool:    p.Namespace + "/" + p.Name,
		v1alpha1.AttributeReplica: s.Name,
		v1alpha1.AttributeNode:    s.Node,
		v1alpha1.AttributeZone:    s.Zone,
		v1alpha1.AttributeEngine:  s.Engine,
	} {
		if text != "" {
			set.State(key, attribute.Of(text))
		}
	}
	return set
}

// models are the names by which an endpoint may serve what the intent asks for; nil
// where it leaves that to the body.
func (d *demands) models(i *v1alpha1.RoutingIntent) []string {
	switch {
	case len(i.ServedModels) > 0:
		return i.ServedModels
	case i.LogicalModel == "":
		return nil
	case len(d.aliases[i.LogicalModel]) > 0:
		return d.aliases[i.LogicalModel]
	default:
		return []string{i.LogicalModel}
	}
}

// serves reports whether the endpoint may serve one of the models; any where there
// is none.
func (d *demands) serves(endpoint int, models []string) bool {
	declared := d.endpoints[endpoint].ServedModels
	return models == nil || declared == nil || intersect(declared, models)
}

// meets reports whether the endpoint may meet a requirement.
func (d *demands) meets(endpoint int, r *v1alpha1.Requirement) bool {
	switch r.Key {
	case v1alpha1.AttributeServedModels, v1alpha1.AttributeContextLimit, v1alpha1.AttributeEngineVersion:
		return true
	case v1alpha1.AttributeEngine:
		if d.endpoints[endpoint].Engine == "" {
			return true
		}
	}
	return d.attributes[endpoint][r.Key].Meets(r.Operator, r.Values)
}

// fits reports whether the context may fit: an engine can lower what is declared.
func (d *demands) fits(endpoint int, need *v1alpha1.ContextNeed) bool {
	limit := d.endpoints[endpoint].ContextLimit
	// Neither is negative, and each is far below half of an int64.
	return need == nil || limit == 0 || need.InputTokens+need.OutputTokens <= limit
}

// any reports whether some endpoint is as asked.
func (d *demands) any(found func(endpoint int) bool) bool {
	for e := range d.endpoints {
		if found(e) {
			return true
		}
	}
	return false
}

// served reports whether some endpoint may serve the intent's model.
func (d *demands) served(i *v1alpha1.RoutingIntent) bool {
	models := d.models(i)
	return d.any(func(e int) bool { return d.serves(e, models) })
}

// met reports whether some endpoint may meet the requirement.
func (d *demands) met(r *v1alpha1.Requirement) bool {
	return d.any(func(e int) bool { return d.meets(e, r) })
}

func (d *demands) unservedModels() []string {
	var where []string
	for n := range d.intents {
		i := &d.intents[n]
		if d.served(i) {
			continue
		}
		field := "logicalModel"
		if len(i.ServedModels) > 0 {
			field = "servedModels"
		}
		where = append(where, child(index("intents", n), field))
	}
	return where
}

func (d *demands) unmet() []string {
	var where []string
	for n := range d.intents {
		for k := range d.intents[n].Requirements {
			if r := &d.intents[n].Requirements[k]; !d.met(r) && knownAttribute(r.Key) {
				where = append(where, requirementPlace(n, k, r))
			}
		}
	}
	return where
}

func (d *demands) unknownAttributes() []string {
	var where []string
	for n := range d.intents {
		for k := range d.intents[n].Requirements {
			if r := &d.intents[n].Requirements[k]; !knownAttribute(r.Key) {
				where = append(where, requirementPlace(n, k, r)+", the nearest is "+nearest(r.Key, berthAttributes()))
			}
		}
	}
	return where
}

func requirementPlace(intent, requirement int, r *v1alpha1.Requirement) string {
	at := index(child(index("intents", intent), "requirements"), requirement)
	return fmt.Sprintf("%s, key %s", at, printable(r.Key, 317))
}

func (d *demands) unmetTogether() []string {
	var where []string
	for n := range d.intents {
		i := &d.intents[n]
		alone := d.served(i) && !slices.ContainsFunc(i.Requirements, func(r v1alpha1.Requirement) bool { return !d.met(&r) })
		if !alone {
			continue // which is said already
		}
		models := d.models(i)
		if !d.any(func(e int) bool {
			return d.serves(e, models) && d.fits(e, i.Context) &&
				!slices.ContainsFunc(i.Requirements, func(r v1alpha1.Requirement) bool { return !d.meets(e, &r) })
		}) {
			where = append(where, index("intents", n))
		}
	}
	return where
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// failsOpen finds a pool that asks to fail open although something restricts who
// may serve a request.
func failsOpen(p *Policy, static *Pool) []string {
	if static == nil || static.FailureMode != v1alpha1.FailOpen {
		return nil
	}
	constrained := p != nil && (len(p.Models.Aliases) > 0 || p.Intent.Keys != nil || p.Trust.PlainHeaders) ||
		slices.ContainsFunc(static.Endpoints, func(s pool.Spec) bool {
			set := attribute.FromMetadata(s.Labels, s.Annotations)
			return set[v1alpha1.AttributeTenants].Present() || set[v1alpha1.AttributeSafety].Present() || set[v1alpha1.AttributeResidency].Present()
		})
	return at(constrained, "failureMode")
}

// unservedAliases finds the aliases of models that no endpoint declares, where each
// declares what it serves.
func unservedAliases(p *Policy, static *Pool) []string {
	if p == nil || static == nil || len(static.Endpoints) == 0 {
		return nil
	}
	served := map[string]bool{}
	for _, s := range static.Endpoints {
		if s.ServedModels == nil {
			return nil
		}
		for _, name := range s.ServedModels {
			served[name] = true
		}
	}
	return aliasesWhere(p, func(_ string, ids []string) bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return served[id] })
	})
}

// hidingAliases finds aliases that are named like a served model, and do not mean
// it.
func hidingAliases(p *Policy, static *Pool) []string {
	if p == nil {
		return nil
	}
	served := map[string]bool{}
	for _, ids := range p.Models.Aliases {
		for _, id := range ids {
			served[id] = true
		}
	}
	if static != nil {
		for _, s := range static.Endpoints {
			for _, name := range s.ServedModels {
				served[name] = true
			}
		}
	}
	return aliasesWhere(p, func(alias string, ids []string) bool { return served[alias] && !slices.Contains(ids, alias) })
}

func aliasesWhere(p *Policy, found func(alias string, ids []string) bool) []string {
	var where []string
	for _, alias := range slices.Sorted(maps.Keys(p.Models.Aliases)) {
		if found(alias, p.Models.Aliases[alias]) {
			where = append(where, child("models.aliases", alias))
		}
	}
	return where
}

// mappedInVain tells headers that the file maps from the mapping that it gets by
// leaving them out.
// idleIntents are the settings that act on intents alone, where none can arrive.
func idleIntents(p *Policy) (places []string) {
	if p.Intent.Metadata || p.Intent.Keys != nil || p.Trust.PlainHeaders {
		return nil
	}
	for _, s := range []struct {
		where string
		set   bool
	}{
		{"intent.unreadableBody", p.Intent.PassUnreadable},
		{"models.aliases", len(p.Models.Aliases) > 0},
		{"screening.contextUnknown", p.Screening.PassContextUnknown},
	} {
		if s.set {
			places = append(places, s.where)
		}
	}
	return places
}

func mappedInVain(t Trust) bool {
	return !t.PlainHeaders && len(t.Headers) > 0 && !maps.Equal(t.Headers, v1alpha1.DefaultBerthConfiguration().Trust.Headers)
}

func contradictions(p *Pool) []string {
	var where []string
	for _, s := range p.Endpoints {
		set := attribute.FromMetadata(s.Labels, s.Annotations)
		for _, key := range slices.Sorted(maps.Keys(set)) {
			if set[key].Contradicted() {
				where = append(where, fmt.Sprintf("endpoint %s, key %s", s.Name, printable(key, 317)))
			}
		}
	}
	return where
}

func idlePlugins(p *Policy) []string {
	var where []string
	for _, f := range p.Profile.Filters {
		where = append(where, "plugin "+printable(f.Name, 64))
	}
	for _, s := range p.Profile.Scorers {
		if !weighted(s) {
			where = append(where, "plugin "+printable(s.Name, 64))
		}
	}
	for _, name := range p.unused {
		where = append(where, "plugin "+printable(name, 64))
	}
	return where
}

func unknownContexts(p *Policy, static *Pool) []string {
	if p == nil || static == nil || p.Telemetry.Mode != v1alpha1.TelemetryNone || p.Screening.PassContextUnknown {
		return nil
	}
	return places(static, func(s *pool.Spec) bool { return s.ContextLimit == 0 })
}
