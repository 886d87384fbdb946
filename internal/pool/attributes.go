package pool

import (
	"strconv"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
	"github.com/berth-dev/berth/internal/telemetry"
)

// UnknownEngine is what a snapshot says of an engine that no profile is for.
const UnknownEngine = "unknown"

// declaredAttributes has what a Spec says, all but what the engine may say too.
func declaredAttributes(s *Spec, pool string) attribute.Set {
	set := attribute.FromMetadata(s.Labels, s.Annotations)
	for key, text := range map[string]string{
		v1alpha1.AttributePool:    pool,
		v1alpha1.AttributeReplica: s.Name,
		v1alpha1.AttributeNode:    s.Node,
		v1alpha1.AttributeZone:    s.Zone,
	} {
		if text != "" {
			set.State(key, attribute.Of(text))
		}
	}
	if s.Engine != "" && !set[v1alpha1.AttributeEngine].Contradicted() {
		// A label may say the same by an alias.
		set[v1alpha1.AttributeEngine] = attribute.Of(s.Engine)
	}
	if s.ContextLimit != 0 {
		set.State(v1alpha1.AttributeContextLimit, attribute.Of(strconv.FormatInt(s.ContextLimit, 10)))
	}
	return set
}

// Stated says which of an endpoint's attributes the engine states, or may.
type Stated uint8

const (
	// ByDiscovery: the attribute changes with the Set alone.
	ByDiscovery Stated = iota
	// ByServing: it changes with what the engine serves.
	ByServing
	// ByEngine: it changes with what the engine says of itself.
	ByEngine
)

// StatedBy says when an attribute may change.
func StatedBy(key string) Stated {
	switch key {
	case v1alpha1.AttributeServedModels:
		return ByServing
	case v1alpha1.AttributeEngine, v1alpha1.AttributeEngineVersion, v1alpha1.AttributeContextLimit:
		return ByEngine
	default:
		return ByDiscovery
	}
}

// Attribute is one attribute of the endpoint as it is now. What its engine may state,
// and has not been asked for yet, is not absent: it meets nothing.
func (e *Endpoint) Attribute(key string) attribute.Value {
	v, known := e.KnownAttribute(key)
	if !known {
		return attribute.Invalid()
	}
	return v
}

// KnownAttribute is one attribute of the endpoint as it is now. It is not known where
// nobody has stated it, and the engine, which may, has not answered yet: that is
// neither absent nor contradicted.
func (e *Endpoint) KnownAttribute(key string) (v attribute.Value, known bool) {
	// Before the attribute is read: an answer that comes in between leaves it not
	// known, and never absent.
	answered := e.answered(key)
	v = e.attribute(key)
	return v, answered || v.Present() || StatedBy(key) == ByDiscovery
}

// answered reports that the engine has said what it will of an attribute: the page
// that tells was read.
func (e *Endpoint) answered(key string) bool {
	s := e.Snapshot()
	if s == nil {
		return false
	}
	switch key {
	case v1alpha1.AttributeServedModels:
		return !s.Readings[telemetry.ServedModels].Unread()
	case v1alpha1.AttributeEngineVersion:
		return !s.Readings[telemetry.EngineVersion].Unread()
	case v1alpha1.AttributeContextLimit:
		return !s.Readings[telemetry.ContextLimit].Unread()
	default:
		return true
	}
}

func (e *Endpoint) attribute(key string) attribute.Value {
	v := e.attributes[key]
	switch key {
	case v1alpha1.AttributeServedModels:
		return e.servedAttribute(v)
	case v1alpha1.AttributeEngine:
		if s := e.Snapshot(); s != nil && s.Engine != "" && s.Engine != UnknownEngine {
			return v.Join(attribute.Of(s.Engine))
		}
	case v1alpha1.AttributeEngineVersion:
		if s := e.Snapshot(); s != nil {
			if r := &s.Readings[telemetry.EngineVersion]; said(r) && textOf(r) != "" {
				return v.Join(attribute.Of(r.Detail.Text))
			}
		}
	case v1alpha1.AttributeContextLimit:
		switch limit := e.ContextFit(); {
		case v.Contradicted() || limit == contradictedLimit:
			return attribute.Invalid()
		case limit != unknownLimit:
			return attribute.Of(strconv.FormatInt(limit, 10))
		}
	}
	return v
}

// servedAttribute has the models that both discovery and the engine name, or the
// one of them that has said any.
func (e *Endpoint) servedAttribute(v attribute.Value) attribute.Value {
	said, declared := e.hot.served.Load(), e.declared
	switch {
	case said == nil && declared == nil:
		return v
	case said == nil:
		return v.Join(attribute.Of(declared.names...))
	case declared == nil:
		return v.Join(attribute.Of(said.names...))
	}
	var both []string
	for _, name := range declared.names {
		if said.Has(name) {
			both = append(both, name)
		}
	}
	return v.Join(attribute.Of(both...))
}

// Codes of ContextFit.
const (
	unknownLimit      int64 = -1
	contradictedLimit int64 = 0
)

// ContextFit is how many tokens fit the endpoint's context: the lowest of what is
// declared and what the engine says. It is below 0 where nobody has said, and 0,
// which nothing fits, where what is declared makes no sense.
func (e *Endpoint) ContextFit() int64 {
	limit := e.declaredLimit
	if s := e.Snapshot(); s != nil && limit != contradictedLimit {
		if r := &s.Readings[telemetry.ContextLimit]; said(r) && (limit == unknownLimit || int64(r.Value) < limit) {
			limit = max(int64(r.Value), contradictedLimit)
		}
	}
	return limit
}

// declaredLimit is as in ContextFit.
func declaredLimit(attributes attribute.Set) int64 {
	v := attributes[v1alpha1.AttributeContextLimit]
	if !v.Present() {
		return unknownLimit
	}
	if items := v.Items(); !v.Contradicted() && len(items) == 1 {
		if n, err := strconv.ParseInt(items[0], 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return contradictedLimit
}

// said reports that the engine has stated a value. How long ago does not matter: it
// changes by a restart, and then the endpoint's telemetry starts anew.
func said(r *telemetry.Reading) bool {
	return r.Recorded == telemetry.Fresh || r.Recorded == telemetry.Stale
}
