package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Set is one state of the pool. It is immutable; the Live parts of its
// endpoints move on by themselves.
type Set struct {
	// Pool is namespace/name.
	Pool string
	// Generation is another one for each Set of a registry.
	Generation uint64
	// Endpoints are in the order that discovery gave. An endpoint's index is its
	// slot.
	Endpoints []*Endpoint
	// Hashes, Lives and Closed repeat what decisions read of every endpoint, by
	// slot and side by side in memory. Closed is true for an endpoint that is
	// not ready, or terminating.
	Hashes []uint64
	Lives  []*Live
	Closed []bool

	declared  []*ServedSet
	byAddress map[netip.AddrPort]int
	shared    *shared
}

// shared is what the endpoints of a registry have in common: their served sets, and
// counters of what screening depends on. A counter goes up after the change that it
// counts, so that whoever reads it before it looks is never told too much.
type shared struct {
	served servedSets
	// serving counts changes of what engines serve, stated those of what else they
	// say of themselves, eligibility those of who is asleep, unhealthy or in
	// quarantine, by time alone apart.
	serving, stated, eligibility atomic.Uint64
}

// Changes counts what may have changed the attributes that are stated so. What was
// found out of them since the count was read may be kept until the count differs.
func (s *Set) Changes(by Stated) uint64 {
	switch by {
	case ByServing:
		return s.shared.serving.Load()
	case ByEngine:
		return s.shared.stated.Load()
	default:
		return 0
	}
}

// EligibilityChanges counts the changes of Excluded and Quarantine that came
// otherwise than by time.
func (s *Set) EligibilityChanges() uint64 { return s.shared.eligibility.Load() }

// Served is what the engine in a slot says that it serves, and what discovery
// declares that it may; nil where either has not said.
func (s *Set) Served(slot int) (said, declared *ServedSet) {
	return s.Lives[slot].hot.served.Load(), s.declared[slot]
}

func (s *Set) add(e *Endpoint) {
	s.byAddress[e.Address] = len(s.Endpoints)
	s.Endpoints = append(s.Endpoints, e)
	s.Hashes = append(s.Hashes, e.Hash)
	s.Lives = append(s.Lives, e.Live)
	s.Closed = append(s.Closed, !e.Ready || e.Terminating)
	s.declared = append(s.declared, e.declared)
}

// ByAddress finds the slot of the endpoint with this address.
func (s *Set) ByAddress(a netip.AddrPort) (slot int, ok bool) {
	slot, ok = s.byAddress[a]
	return slot, ok
}

// Registry publishes the newest Set. Reading it takes no lock.
type Registry struct {
	set atomic.Pointer[Set]

	mu sync.Mutex
	// telemetryNone starts new endpoints in normal order.
	telemetryNone bool
	shared        *shared
	watchers      []*func(*Set)
}

// NewRegistry returns a registry with an empty set. With telemetryNone no
// endpoint is ever scraped, so all start in normal order.
func NewRegistry(pool string, telemetryNone bool) *Registry {
	r := &Registry{telemetryNone: telemetryNone, shared: &shared{}}
	r.set.Store(&Set{Pool: pool, shared: r.shared})
	return r
}

// Set is the newest state of the pool.
func (r *Registry) Set() *Set { return r.set.Load() }

// Watch calls f with the newest set now and after each change, one call at a
// time and in order, until stop is called. f must not call back into the
// Registry's Update or Watch, and stop must not be called from f.
func (r *Registry) Watch(f func(*Set)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &f
	r.watchers = append(r.watchers, w)
	f(r.set.Load())
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(other *func(*Set)) bool { return other == w })
	}
}

// SetTelemetryNone says from now on whether endpoints are read at all. Without
// telemetry none can show that it is there before it is sent a request, so all
// that have not answered yet are put in normal order.
func (r *Registry) SetTelemetryNone(none bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.telemetryNone == none {
		return
	}
	r.telemetryNone = none
	if none {
		for _, e := range r.set.Load().Endpoints {
			e.Answered()
		}
	}
}

// Update replaces the set. Endpoints that stay keep what is known of them;
// those that left are marked gone. Two specs with one name or one address are
// an error, and the set stays as it was.
func (r *Registry) Update(pool string, specs []Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.set.Load()
	byName := make(map[string]*Endpoint, len(old.Endpoints))
	for _, e := range old.Endpoints {
		byName[e.Name] = e
	}
	next := &Set{
		Pool:       pool,
		Generation: old.Generation + 1,
		shared:     r.shared,

		Endpoints: make([]*Endpoint, 0, len(specs)),
		byAddress: make(map[netip.AddrPort]int, len(specs)),
	}
	names := make(map[string]struct{}, len(specs))
	for i := range specs {
		spec := &specs[i]
		if _, twice := names[spec.Name]; twice {
			return fmt.Errorf("endpoint name %q: given twice, must be unique in the pool", spec.Name)
		}
		names[spec.Name] = struct{}{}
		if j, twice := next.byAddress[spec.Address]; twice {
			return fmt.Errorf("endpoint %q: address %s is already that of endpoint %q",
				spec.Name, spec.Address, next.Endpoints[j].Name)
		}
		live := (*Live)(nil)
		if was, ok := byName[spec.Name]; ok && sameIncarnation(&was.Spec, spec) {
			live = was.Live
		} else {
			live = newLive(r.telemetryNone, r.shared)
		}
		next.add(newEndpoint(pool, *spec, live))
	}
	kept := make(map[*Live]struct{}, len(next.Endpoints))
	for _, e := range next.Endpoints {
		kept[e.Live] = struct{}{}
	}
	r.set.Store(next)
	for _, e := range old.Endpoints {
		if _, ok := kept[e.Live]; !ok {
			close(e.Live.gone)
		}
	}
	for _, w := range r.watchers {
		(*w)(next)
	}
	return nil
}
