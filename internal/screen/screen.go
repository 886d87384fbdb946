// Package screen makes the exact hard cut: which endpoints a request may be
// sent to at all. Nothing after it can bring an endpoint back.
//
// Stages run in a fixed order over the members of the pool as they are now,
// and the first that leaves nobody names the refusal, so that the status tells
// the truth about the cause:
//
//	pool          no members                                     503 pool_empty
//	subset        outside the subset that the gateway states     503 subset_empty
//	served model  known to serve other models only               404 model_unserved
//	health        terminating, not ready, asleep, unhealthy      503 unhealthy
//
// Unknown is never a reason to exclude at the health stage: an endpoint that
// was never scraped, or whose page is stale, stays eligible and is ordered by
// placement.
package screen

import (
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Class is a stage that can exclude an endpoint.
type Class uint8

const (
	// Kept: no stage excluded the endpoint.
	Kept Class = iota
	BySubset
	ByServedModel
	ByHealth

	// NumClasses is the number of classes, Kept included.
	NumClasses
)

func (c Class) String() string {
	return [...]string{"kept", "subset", "served_model", "health"}[c]
}

// Cause says why nobody is left.
type Cause uint8

const (
	// None: somebody is left.
	None Cause = iota
	PoolEmpty
	SubsetEmpty
	ModelUnserved
	Unhealthy
)

// Request is what the request itself demands.
type Request struct {
	// Model is the served id that the body names; empty demands nothing.
	Model string
	// Subset is the gateway's own hard constraint; nil means that it stated
	// none, which is not the same as an empty one.
	Subset *Subset
}

// Result is the screened set. It may be reused; Screen overwrites it.
type Result struct {
	// Slots are the endpoints that are left, ascending.
	Slots []int32
	// Removed counts the endpoints that each class excluded.
	Removed [NumClasses]int
	// Fate has one entry per endpoint of the pool.
	Fate []Class
	// Cause is None unless Slots is empty.
	Cause Cause
	kept  Members
}

// Members is a set of slots.
type Members []uint64

// Contains reports whether a slot is in the set.
func (m Members) Contains(slot int) bool {
	return slot >= 0 && slot>>6 < len(m) && m[slot>>6]&(1<<(slot&63)) != 0
}

// Members is the screened set, as a record of its own: what is made of Slots is
// guarded with it. It is valid until the next Screen; clone it to keep it.
func (r *Result) Members() Members { return r.kept }

// Screen cuts the pool down to what req may use at now.
func Screen(set *pool.Set, req Request, now telemetry.Instant, res *Result) {
	n := len(set.Endpoints)
	res.Slots = res.Slots[:0]
	res.Removed = [NumClasses]int{}
	res.Cause = None
	res.Fate = append(res.Fate[:0], make([]Class, n)...)
	res.kept = append(res.kept[:0], make([]uint64, (n+63)/64)...)

	j := judge{set: set, req: req, now: now}
	for slot := range n {
		class := j.class(slot)
		res.Fate[slot] = class
		res.Removed[class]++
		if class == Kept {
			res.Slots = append(res.Slots, int32(slot))
			res.kept[slot>>6] |= 1 << (slot & 63)
		}
	}
	if len(res.Slots) == 0 {
		res.Cause = cause(n, &res.Removed)
	}
	res.Removed[Kept] = 0
}

// judge asks the stages about one endpoint after another.
type judge struct {
	set *pool.Set
	req Request
	now telemetry.Instant
	// said and declared remember the served set that was asked last: most
	// endpoints of a pool share one.
	said, declared answer
}

// answer is what one served set said of the request's model.
type answer struct {
	set *pool.ServedSet
	has bool
}

// class returns the first class that excludes the endpoint.
func (j *judge) class(slot int) Class {
	switch {
	case j.req.Subset != nil && !j.req.Subset.Contains(j.set.Endpoints[slot].Address):
		return BySubset
	case j.req.Model != "" && !j.mayServe(slot):
		return ByServedModel
	case j.set.Closed[slot] || j.set.Lives[slot].Excluded(j.now):
		return ByHealth
	}
	return Kept
}

// mayServe is false where the engine, or discovery, is known to name other models
// only.
func (j *judge) mayServe(slot int) bool {
	said, declared := j.set.Served(slot)
	return j.said.ask(said, j.req.Model) && j.declared.ask(declared, j.req.Model)
}

// ask is true for a set that has the model, and for an unknown one.
func (a *answer) ask(set *pool.ServedSet, model string) bool {
	if set == nil {
		return true
	}
	if set != a.set {
		a.set, a.has = set, set.Has(model)
	}
	return a.has
}

// cause is the first stage that left nobody. Each endpoint is counted under the
// first class that excluded it, so a stage emptied the set when nobody was
// excluded by a later one.
func cause(members int, removed *[NumClasses]int) Cause {
	switch {
	case members == 0:
		return PoolEmpty
	case removed[ByServedModel]+removed[ByHealth] == 0:
		return SubsetEmpty
	case removed[ByHealth] == 0:
		return ModelUnserved
	default:
		return Unhealthy
	}
}
