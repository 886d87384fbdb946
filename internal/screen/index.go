package screen

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// How many constraints are kept: those asked last. One takes a bit for each endpoint
// of the pool, and what its own text takes. Models are kept apart, since clients name
// them: they must not push out what trusted intents ask.
const (
	maxRequirements = 4096
	maxModels       = 1024
	// maxText is how long, in bytes, the text of one may be. A longer one is
	// answered and not kept.
	maxText = 4096
)

// Index knows which slots of one registry's sets meet which constraint. Any number of
// requests may use it at once.
type Index struct {
	requirements, models *cache

	unknown constraint
	limits  atomic.Pointer[limits]
	state   atomic.Pointer[eligibility]
}

// NewIndex is an empty index.
func NewIndex() *Index {
	return &Index{
		requirements: newCache(maxRequirements),
		models:       newCache(maxModels),
		unknown:      constraint{by: pool.ByServing, fill: fillUnknown},
	}
}

// cache keeps the constraints that were asked last, by their texts.
type cache struct {
	mu  sync.Mutex
	lru *simplelru.LRU[uint64, *constraint]
	key []byte
}

func newCache(size int) *cache {
	lru, err := simplelru.NewLRU[uint64, *constraint](size, nil)
	if err != nil {
		// The sizes are constants above 0.
		panic(err)
	}
	return &cache{lru: lru}
}

// find is the constraint that c.key holds the text of, a new one as fresh says. c.mu
// must be held.
func (c *cache) find(fresh func() *constraint) *constraint {
	if len(c.key) > maxText {
		c.key = nil
		return fresh()
	}
	hash := xxhash.Sum64(c.key)
	k, ok := c.lru.Get(hash)
	// Two texts with one hash take turns.
	if !ok || k.text != string(c.key) {
		k = fresh()
		k.text = string(c.key)
		c.lru.Add(hash, k)
	}
	return k
}

// all are those that are kept.
func (c *cache) all() []*constraint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Values()
}

// constraint is one thing that is asked of endpoints, and who meets it.
type constraint struct {
	text string
	by   pool.Stated
	// rule is what a requirement says, and asked when one last said it.
	rule  v1alpha1.Requirement
	asked atomic.Int64
	// fill adds those that meet it.
	fill  func(*pool.Set, Members)
	found atomic.Pointer[found]
}

// found is an answer and the state of the pool that it is of.
type found struct {
	generation, changes uint64
	members             Members
}

// of is who meets the constraint now.
func (k *constraint) of(set *pool.Set) Members {
	// Before the endpoints are asked: see pool.Set.Changes.
	changes := set.Changes(k.by)
	if f := k.found.Load(); f != nil && f.generation == set.Generation && f.changes == changes {
		return f.members
	}
	f := &found{set.Generation, changes, make(Members, (len(set.Endpoints)+63)/64)}
	k.fill(set, f.members)
	k.found.Store(f)
	return f.members
}

// askedStep is how precisely it is kept when a constraint was asked: a store at each
// request would take the memory away from the other cores.
const askedStep = time.Second

// meet is who meets a requirement.
func (x *Index) meet(set *pool.Set, rule *v1alpha1.Requirement, now telemetry.Instant) Members {
	c := x.requirements
	c.mu.Lock()
	c.key = appendText(c.key[:0], string(rule.Class))
	c.key = appendText(c.key, rule.Key)
	c.key = appendText(c.key, string(rule.Operator))
	for _, v := range rule.Values {
		c.key = appendText(c.key, v)
	}
	k := c.find(func() *constraint { return compile(rule) })
	c.mu.Unlock()
	if now.Sub(telemetry.Instant(k.asked.Load())) >= askedStep {
		k.asked.Store(int64(now))
	}
	return k.of(set)
}

// appendText appends a text so that no two lists of texts come out alike.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// compile keeps nothing of the rule itself, which belongs to a request.
func compile(rule *v1alpha1.Requirement) *constraint {
	own := v1alpha1.Requirement{
		Class: rule.Class, Key: strings.Clone(rule.Key), Operator: rule.Operator, Values: make([]string, len(rule.Values)),
	}
	for i, v := range rule.Values {
		own.Values[i] = strings.Clone(attribute.Trim(v))
	}
	return &constraint{by: pool.StatedBy(own.Key), rule: own, fill: func(set *pool.Set, to Members) {
		for slot, e := range set.Endpoints {
			if e.Attribute(own.Key).Meets(own.Operator, own.Values) {
				to.add(slot)
			}
		}
	}}
}

// serve is who is known to serve a model.
func (x *Index) serve(set *pool.Set, model string) Members {
	c := x.models
	c.mu.Lock()
	c.key = append(c.key[:0], model...)
	k := c.find(func() *constraint {
		model := strings.Clone(model)
		return &constraint{by: pool.ByServing, fill: func(set *pool.Set, to Members) { fillServing(set, model, to) }}
	})
	c.mu.Unlock()
	return k.of(set)
}

// fillServing adds those that serve a model, as pool.Endpoint.Serving has it. Most
// endpoints of a pool share one served set, so each is asked once in a row.
func fillServing(set *pool.Set, model string, to Members) {
	var said, declared answer
	for slot := range set.Endpoints {
		s, d := set.Served(slot)
		if (s != nil || d != nil) && said.of(s, model) && declared.of(d, model) {
			to.add(slot)
		}
	}
}

// answer is what one served set said of a model.
type answer struct {
	set *pool.ServedSet
	has bool
}

// of is true for a set that has the model, and for an unknown one.
func (a *answer) of(set *pool.ServedSet, model string) bool {
	if set == nil {
		return true
	}
	if set != a.set {
		a.set, a.has = set, set.Has(model)
	}
	return a.has
}

// fillUnknown adds those of whom it is not known what they serve.
func fillUnknown(set *pool.Set, to Members) {
	for slot := range set.Endpoints {
		if said, declared := set.Served(slot); said == nil && declared == nil {
			to.add(slot)
		}
	}
}

// limits are the context limits of a set, by slot and side by side in memory.
type limits struct {
	generation, changes uint64
	// tokens are 0 where unknown has the slot.
	tokens  []int64
	unknown Members
}

// fits adds to pass those whose context holds so many tokens, above 0.
func (x *Index) fits(set *pool.Set, need int64, passUnknown bool, pass Members) {
	changes := set.Changes(pool.ByEngine)
	l := x.limits.Load()
	if l == nil || l.generation != set.Generation || l.changes != changes {
		l = &limits{set.Generation, changes, make([]int64, len(set.Endpoints)), make(Members, len(pass))}
		for slot, e := range set.Endpoints {
			if l.tokens[slot] = e.ContextFit(); l.tokens[slot] < 0 {
				l.tokens[slot] = 0
				l.unknown.add(slot)
			}
		}
		x.limits.Store(l)
	}
	for word := range pass {
		var fit uint64
		for i, limit := range l.tokens[word<<6 : min(word<<6+64, len(l.tokens))] {
			// The sign of the difference, without a branch that half of the limits take.
			fit |= uint64(need-1-limit) >> 63 << i
		}
		if passUnknown {
			fit |= l.unknown[word]
		}
		pass[word] = fit
	}
}

// eligibility is who may be sent requests at all, as far as that is known.
type eligibility struct {
	generation, changes uint64
	// It holds from one time until before another.
	from, until telemetry.Instant
	// open are those that the health stage lets through.
	open        Members
	quarantined Members
	// inmates are those of quarantined, the last to come there first.
	inmates []inmate
}

// inmate is an endpoint in quarantine.
type inmate struct {
	slot  int
	since telemetry.Instant
}

// eligibility is the state at now.
func (x *Index) eligibility(set *pool.Set, now telemetry.Instant) *eligibility {
	changes := set.EligibilityChanges()
	s := x.state.Load()
	if s != nil && s.generation == set.Generation && s.changes == changes && s.from <= now && now < s.until {
		return s
	}
	words := (len(set.Endpoints) + 63) / 64
	memory := make(Members, 2*words)
	s = &eligibility{
		generation: set.Generation, changes: changes, from: now, until: math.MaxInt64,
		open: memory[:words:words], quarantined: memory[words:],
	}
	for slot, l := range set.Lives {
		if until := l.ExcludedUntil(); until > now {
			s.until = min(s.until, until)
		} else if !set.Closed[slot] {
			s.open.add(slot)
		}
		if q := l.Quarantine(now); q.In || q.Until != 0 {
			if q.In {
				s.quarantined.add(slot)
				s.inmates = append(s.inmates, inmate{slot, q.Since})
			}
			if q.Until != 0 {
				s.until = min(s.until, q.Until)
			}
		}
	}
	slices.SortStableFunc(s.inmates, func(a, b inmate) int { return cmp.Compare(b.since, a.since) })
	x.state.Store(s)
	return s
}
