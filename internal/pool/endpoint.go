package pool

import (
	"net/netip"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/attribute"
)

// Spec is what discovery declares of one endpoint. Nothing in it changes after
// it was handed to the Registry.
type Spec struct {
	// Name is unique in the pool: the static endpoint's name, or the pod's
	// namespace/name with its port or rank.
	Name string
	// Pod is the pod's namespace/name, by which the pages of exporters join. Of a
	// static endpoint it is the pool's namespace and the endpoint's name.
	Pod string
	// UID is the pod's; empty for static endpoints.
	UID string
	// Address is where requests go.
	Address netip.AddrPort
	// Engine is the declared kind of engine; empty leaves it to detection.
	Engine string
	Node   string
	Zone   string
	// Ready false and Terminating true exclude the endpoint from every pick.
	Ready       bool
	Terminating bool
	// ServedModels are the declared names; nil means not declared.
	ServedModels []string
	// ContextLimit is the declared limit in tokens; 0 means not declared.
	ContextLimit int64
	Labels       map[string]string
	Annotations  map[string]string
	Metrics      MetricsTarget
}

// MetricsTarget is where the endpoint's own telemetry page is, on the
// endpoint's own address. Zero members are left to the engine's profile.
type MetricsTarget struct {
	Scheme string
	Port   uint16
	Path   string
}

// Endpoint is one member of a Set.
type Endpoint struct {
	Spec
	*Live
	// Destination is Address as the gateway expects it: ip:port, IPv6 in
	// brackets.
	Destination string
	// Hash identifies the endpoint in rendezvous hashing. It depends on the
	// name alone, so that ties break alike on every picker.
	Hash uint64
	// declared is the served set of Spec.
	declared *ServedSet
	// attributes are those that discovery states; declaredLimit is as in ContextFit.
	attributes    attribute.Set
	declaredLimit int64
}

func newEndpoint(pool string, spec Spec, live *Live) *Endpoint {
	e := &Endpoint{
		Spec:        spec,
		Live:        live,
		declared:    live.shared.served.of(spec.ServedModels),
		attributes:  declaredAttributes(&spec, pool),
		Destination: spec.Address.String(),
		Hash:        xxhash.Sum64String(spec.Name),
	}
	e.declaredLimit = declaredLimit(e.attributes)
	return e
}

// sameIncarnation reports whether what is known of a still holds for b: the
// same pod at the same address, whatever else was edited.
func sameIncarnation(a, b *Spec) bool {
	return a.Name == b.Name && a.UID == b.UID && a.Address == b.Address
}

// Serving says whether a replica serves a model.
type Serving uint8

const (
	// ServingUnknown: neither declared nor stated by the engine.
	ServingUnknown Serving = iota
	// Serves: the name is in the replica's served set.
	Serves
	// ServesOthers: the served set is known and lacks the name.
	ServesOthers
)

// Serving judges one model name. Where both discovery and the engine have said
// what is served, a model must be in both: an engine cannot serve what it does
// not know, and what is declared is all that it may serve.
func (e *Endpoint) Serving(model string) Serving {
	said := e.hot.served.Load()
	switch {
	case said == nil && e.declared == nil:
		return ServingUnknown
	case said != nil && !said.Has(model), e.declared != nil && !e.declared.Has(model):
		return ServesOthers
	default:
		return Serves
	}
}
