// Package screen makes the exact hard cut: which endpoints a request may be
// sent to at all. Nothing after it can bring an endpoint back.
//
// Stages run in a fixed order over the members of the pool as they are now,
// and the first that leaves nobody names the refusal, so that the status tells
// the truth about the cause:
//
//	pool           no members                                    503 pool_empty
//	subset         outside the subset that the gateway states    503 subset_empty
//	served model   known to serve other models only              404 model_unserved
//	               the same, and of some it is not known         503 model_unknown
//	authorization  a requirement of that class is not met        403 authorization_unmet
//	safety                                                       403 safety_unmet
//	residency                                                    403 residency_unmet
//	capability                                                   422 capability_unmet
//	context        the tokens do not fit the context limit       422 context_exceeded
//	placement      a requirement of that class is not met        422 placement_unmet
//	health         terminating, not ready, asleep, unhealthy     503 unhealthy
//	quarantine     several requests in a row failed there        never leaves nobody
//
// Unknown is never a reason to exclude at the health stage: an endpoint that
// was never scraped, or whose page is stale, stays eligible and is ordered by
// placement. At every other stage what is not known does not pass, but for the
// served model where the name comes from the request's body alone.
//
// # How it is fast
//
// What a stage asks of an endpoint depends on the pool and on one constraint, and
// not on the request. So an Index keeps, for each constraint that was asked lately,
// the set of slots that meet it, as a bitset, and a request costs a handful of
// bitwise ANDs. Each kept set says of which state of the pool it is, by counters
// that go up after whatever could change it; it is made anew when they differ. Each is
// of one moment, and those of one request of moments close together.
package screen

import (
	"math/bits"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
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
	ByAuthorization
	BySafety
	ByResidency
	ByCapability
	ByContext
	ByPlacement
	ByHealth
	ByQuarantine

	// NumClasses is the number of classes, Kept included.
	NumClasses
)

func (c Class) String() string {
	return [...]string{"kept", "subset", "served_model", "authorization", "safety", "residency",
		"capability", "context", "placement", "health", "quarantine"}[c]
}

// classOf is the stage of a requirement. One of a class that does not exist is the
// strictest there is; decoding lets none through.
func classOf(c v1alpha1.RequirementClass) Class {
	switch c {
	case v1alpha1.Safety:
		return BySafety
	case v1alpha1.Residency:
		return ByResidency
	case v1alpha1.Capability:
		return ByCapability
	case v1alpha1.Placement:
		return ByPlacement
	default:
		return ByAuthorization
	}
}

// Cause says why nobody is left.
type Cause uint8

const (
	// None: somebody is left.
	None Cause = iota
	PoolEmpty
	SubsetEmpty
	ModelUnserved
	// ModelUnknown: nobody is known to serve the model, and of somebody it is not
	// known what he serves.
	ModelUnknown
	AuthorizationUnmet
	SafetyUnmet
	ResidencyUnmet
	CapabilityUnmet
	ContextExceeded
	PlacementUnmet
	Unhealthy
)

// Request is what is demanded of an endpoint.
type Request struct {
	// Models are the names that the endpoint must serve one of; none demands
	// nothing.
	Models []string
	// Trusted says that an intent names the models: then an endpoint whose served
	// set is not known does not pass.
	Trusted bool
	// Subset is the gateway's own hard constraint; nil means that it stated
	// none, which is not the same as an empty one.
	Subset *Subset
	// Requirements are valid ones, in any order.
	Requirements []v1alpha1.Requirement
	// Context is how many tokens must fit; 0 demands nothing.
	Context int64
}

// Rules are of the policy.
type Rules struct {
	// PassContextUnknown lets endpoints pass whose context limit is not known.
	PassContextUnknown bool
	// QuarantineShare is how large a part of the endpoints that are left may be in
	// quarantine, 0 to 1. Those above it, the last to come there first, are let go:
	// otherwise whoever makes good endpoints fail would have the bad ones chosen.
	QuarantineShare float64
}

// Result is the screened set. It may be reused; Screen overwrites it. What it says
// is valid until then.
type Result struct {
	// Slots are the endpoints that are left, ascending.
	Slots []int32
	// Removed counts the endpoints that each class excluded.
	Removed [NumClasses]int
	// Cause is None unless Slots is empty.
	Cause Cause

	kept    Members
	removed [NumClasses]Members
	// quarantined are those that are left although they are in quarantine.
	quarantined Members
	// order has the indexes of the request's requirements by class and key, and met
	// what meets each of them.
	order []int
	met   []Members
	req   Request
}

// Members is a set of slots.
type Members []uint64

// Contains reports whether a slot is in the set.
func (m Members) Contains(slot int) bool {
	return slot >= 0 && slot>>6 < len(m) && m[slot>>6]&(1<<(slot&63)) != 0
}

func (m Members) add(slot int) { m[slot>>6] |= 1 << (slot & 63) }

func (m Members) count() int {
	n := 0
	for _, word := range m {
		n += bits.OnesCount64(word)
	}
	return n
}

// Members is the screened set, as a record of its own: what is made of Slots is
// guarded with it. It is valid until the next Screen; clone it to keep it.
func (r *Result) Members() Members { return r.kept }

// Fate is the class that excluded the endpoint in a slot; Kept if none did.
func (r *Result) Fate(slot int) Class {
	for class := range r.removed {
		if r.Removed[class] > 0 && r.removed[class].Contains(slot) {
			return Class(class)
		}
	}
	return Kept
}

// Rule is the index of the requirement that excluded the endpoint in a slot; -1 if
// none did. Of several of one class it is the first by key, operator and values.
func (r *Result) Rule(slot int) int {
	fate := r.Fate(slot)
	for i, met := range r.met {
		which := r.order[i]
		if classOf(r.req.Requirements[which].Class) == fate && !met.Contains(slot) {
			return which
		}
	}
	return -1
}

// Quarantined reports that the endpoint in a slot is in quarantine and was left all
// the same: too many are.
func (r *Result) Quarantined(slot int) bool { return r.quarantined.Contains(slot) }

// Keys are the attributes, sorted, that the requirements of the refusing class are
// over.
func (r *Result) Keys() []string {
	var keys []string
	for i := range r.req.Requirements {
		if rule := &r.req.Requirements[i]; unmet[classOf(rule.Class)] == r.Cause {
			keys = append(keys, rule.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// unmet has the cause of each class that is made of requirements.
var unmet = [NumClasses]Cause{
	ByAuthorization: AuthorizationUnmet, BySafety: SafetyUnmet, ByResidency: ResidencyUnmet,
	ByCapability: CapabilityUnmet, ByPlacement: PlacementUnmet,
}

// Screen cuts the pool down to what req may use at now. The set must be one of the
// registry that x was made for. req is not changed, and must not be while the result
// is in use.
func (x *Index) Screen(set *pool.Set, req *Request, rules Rules, now telemetry.Instant, res *Result) {
	res.begin(len(set.Endpoints), req)
	if len(set.Endpoints) == 0 {
		res.Cause = PoolEmpty
		return
	}
	if req.Subset != nil {
		req.Subset.slots(set, res.stage(BySubset))
		res.cut(BySubset, SubsetEmpty)
	}
	if len(req.Models) > 0 && res.Cause == None {
		x.screenModel(set, req, res)
	}
	x.screenRequirements(set, req, now, res, ByAuthorization, ByCapability)
	if req.Context > 0 && res.Cause == None {
		x.fits(set, req.Context, rules.PassContextUnknown, res.stage(ByContext))
		res.cut(ByContext, ContextExceeded)
	}
	x.screenRequirements(set, req, now, res, ByPlacement, ByPlacement)
	if res.Cause == None {
		state := x.eligibility(set, now)
		res.cutTo(state.open, ByHealth, Unhealthy)
		if res.Cause == None {
			res.quarantine(state, rules.QuarantineShare)
		}
	}
	if res.Cause == None {
		res.list()
		return
	}
	// Those that a refusal came before are asked too: Coverage tells of all.
	for i := len(res.met); i < len(res.order); i++ {
		x.meet(set, &req.Requirements[res.order[i]], now)
	}
}

// begin makes the result that of a pool of n endpoints, all of them left.
func (r *Result) begin(n int, req *Request) {
	words := (n + 63) / 64
	r.req = *req
	r.Slots, r.Cause = r.Slots[:0], None
	r.Removed = [NumClasses]int{}
	r.kept = sized(r.kept, words)
	for i := range r.kept {
		r.kept[i] = ^uint64(0)
	}
	if rest := n % 64; rest != 0 {
		r.kept[words-1] = 1<<rest - 1
	}
	r.quarantined = r.quarantined[:0]
	r.sort(req.Requirements)
}

func sized(m Members, words int) Members { return slices.Grow(m[:0], words)[:words] }

// sort orders the requirements by class and key.
func (r *Result) sort(requirements []v1alpha1.Requirement) {
	r.order, r.met = r.order[:0], r.met[:0]
	for i := range requirements {
		at := len(r.order)
		for at > 0 && before(&requirements[i], &requirements[r.order[at-1]]) {
			at--
		}
		r.order = slices.Insert(r.order, at, i)
	}
}

func before(a, b *v1alpha1.Requirement) bool {
	if x, y := classOf(a.Class), classOf(b.Class); x != y {
		return x < y
	}
	if a.Key != b.Key {
		return a.Key < b.Key
	}
	if a.Operator != b.Operator {
		return a.Operator < b.Operator
	}
	return slices.Compare(a.Values, b.Values) < 0
}

// stage is the memory for the set that a stage lets through, empty.
func (r *Result) stage(class Class) Members {
	r.removed[class] = sized(r.removed[class], len(r.kept))
	clear(r.removed[class])
	return r.removed[class]
}

// cut leaves those that are in the memory of stage, which holds afterwards those
// that it excludes.
func (r *Result) cut(class Class, otherwise Cause) { r.cutTo(r.removed[class], class, otherwise) }

// cutTo leaves those that pass, and counts the others under their class.
func (r *Result) cutTo(pass Members, class Class, otherwise Cause) {
	removed := sized(r.removed[class], len(r.kept))
	left, gone := uint64(0), 0
	for i := range r.kept {
		out := r.kept[i] &^ pass[i]
		r.kept[i] &= pass[i]
		left |= r.kept[i]
		if r.Removed[class] > 0 {
			// The class has cut before.
			out |= removed[i]
		}
		removed[i] = out
		gone += bits.OnesCount64(out)
	}
	r.removed[class], r.Removed[class] = removed, gone
	if left == 0 {
		r.Cause = otherwise
	}
}

// screenRequirements runs the stages from one class to another.
func (x *Index) screenRequirements(set *pool.Set, req *Request, now telemetry.Instant, res *Result, from, to Class) {
	for i := len(res.met); i < len(res.order) && res.Cause == None; i++ {
		rule := &req.Requirements[res.order[i]]
		class := classOf(rule.Class)
		if class < from || class > to {
			return
		}
		met := x.meet(set, rule, now)
		res.met = append(res.met, met)
		res.cutTo(met, class, unmet[class])
	}
}

// screenModel leaves those that serve one of the models.
func (x *Index) screenModel(set *pool.Set, req *Request, res *Result) {
	pass := res.stage(ByServedModel)
	unknown := x.unknown.of(set)
	if !req.Trusted {
		copy(pass, unknown)
	}
	for _, model := range req.Models {
		for i, word := range x.serve(set, model) {
			pass[i] |= word
		}
	}
	otherwise := ModelUnserved
	for i := range unknown {
		if res.kept[i]&unknown[i] != 0 {
			otherwise = ModelUnknown
			break
		}
	}
	res.cut(ByServedModel, otherwise)
}

// list writes the slots of those that are left.
func (r *Result) list() {
	n := r.kept.count()
	slots := slices.Grow(r.Slots, n)[:n]
	r.Slots, n = slots, 0
	for i, word := range r.kept {
		for ; word != 0; word &= word - 1 {
			slots[n] = int32(i<<6 + bits.TrailingZeros64(word))
			n++
		}
	}
}

// quarantine leaves out those in quarantine, as many as the share allows and never
// all: of more than that, those who were put away first.
func (r *Result) quarantine(state *eligibility, share float64) {
	if len(state.inmates) == 0 {
		return
	}
	inside := r.stage(ByQuarantine)
	left, away := 0, 0
	for i := range r.kept {
		inside[i] = r.kept[i] & state.quarantined[i]
		left += bits.OnesCount64(r.kept[i])
		away += bits.OnesCount64(inside[i])
	}
	// A share such as 0.29 of 100 is a hair below a whole number.
	allowed := min(int(share*float64(left)+1e-9), left-1)
	if away > allowed {
		r.quarantined = append(r.quarantined[:0], inside...)
		inside.thin(state.inmates, away-allowed)
		for i := range r.quarantined {
			r.quarantined[i] &^= inside[i]
		}
	}
	for i := range r.kept {
		r.kept[i] &^= inside[i]
	}
	r.Removed[ByQuarantine] = min(away, allowed)
}

// thin takes out as many of its members, those who were put into quarantine last.
func (m Members) thin(inmates []inmate, out int) {
	for _, i := range inmates {
		if out > 0 && m.Contains(i.slot) {
			m[i.slot>>6] &^= 1 << (i.slot & 63)
			out--
		}
	}
}
