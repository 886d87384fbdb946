package host

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/request"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// active is one policy in the form that requests are decided by. A request
// keeps the one it started with.
type active struct {
	policy  *policy.Policy
	plan    *placement.Plan
	intents *intent.Reader
	// headers are those that an intent may come by, or could if they were trusted.
	headers []string
}

// rules are what screening goes by.
func (a *active) rules() screen.Rules {
	s := &a.policy.Screening
	return screen.Rules{PassContextUnknown: s.PassContextUnknown, QuarantineShare: s.Quarantine.MaxShare}
}

// quarantine says when an endpoint that fails is put away.
func (a *active) quarantine() pool.QuarantineRules {
	q := &a.policy.Screening.Quarantine
	return pool.QuarantineRules{Failures: q.Failures, ProbeAfter: q.ProbeAfter}
}

// decider takes a request through intent, screening, placement and guard.
type decider struct {
	registry *pool.Registry
	index    *screen.Index
	active   atomic.Pointer[active]
	clock    telemetry.Clock
	// wall is the time of day, which intents are dated by.
	wall     func() time.Time
	recorder *recorder
	metrics  *metrics
	ids      *idSource
	scratch  sync.Pool
}

// scratch is the working memory of one decision.
type scratch struct {
	screened screen.Result
	evidence placement.Evidence
	placed   placement.Result
	document document
}

func newDecider(registry *pool.Registry, clock telemetry.Clock, wall func() time.Time, rec *recorder, m *metrics) *decider {
	return &decider{
		registry: registry,
		index:    screen.NewIndex(),
		clock:    clock,
		wall:     wall,
		recorder: rec,
		metrics:  m,
		ids:      newIDSource(),
		scratch:  sync.Pool{New: func() any { return new(scratch) }},
	}
}

// session decides one request by the policy that was in force when it began.
type session struct {
	*decider
	act *active
}

// begin starts a request.
func (d *decider) begin() session { return session{d, d.active.Load()} }

// Decide implements extproc.Decider.
func (d session) Decide(req *extproc.Request) (extproc.Decision, *extproc.Refusal) {
	now := d.clock()
	act := d.act
	id := d.ids.next()
	s := d.scratch.Get().(*scratch)
	defer d.scratch.Put(s)
	c := &cycle{
		id:      id,
		key:     xxhash.Sum64String(id),
		now:     now,
		act:     act,
		set:     d.registry.Set(),
		request: req,
		scratch: s,
	}
	refusal := d.place(c)
	if refusal != nil {
		refusal.DecisionID = id
		d.metrics.refused(refusal.Reason)
		d.metrics.decided(placement.Refuse, d.clock().Sub(now))
		d.recorder.refused(c, refusal)
		return nil, refusal
	}
	d.metrics.decided(s.placed.Rung, d.clock().Sub(now))
	return d.recorder.placed(c, d.decider), nil
}

// refusedByProtocol counts a request that the protocol layer refused, and records
// it, unless it was decided: then it has a record, which its end completes.
func (d *decider) refusedByProtocol(req *extproc.Request, decision extproc.Decision, refusal *extproc.Refusal) {
	d.metrics.refused(refusal.Reason)
	if decision != nil {
		return
	}
	act := d.active.Load()
	in := inputOf(req)
	d.countUntrusted(act, &in)
	c := &cycle{
		id:      d.ids.next(),
		now:     d.clock(),
		act:     act,
		set:     d.registry.Set(),
		request: req,
		facts:   request.Facts{API: request.APIOf(req.Path), Unread: request.UnreadRefused},
		scratch: &scratch{},
	}
	refusal.DecisionID = c.id
	d.recorder.refused(c, refusal)
}

// cycle is one decision in the making.
type cycle struct {
	id      string
	key     uint64
	now     telemetry.Instant
	act     *active
	set     *pool.Set
	request *extproc.Request
	input   intent.Input
	intent  intent.Intent
	facts   request.Facts
	demand  screen.Request
	// model is the memory of demand.Models where that is one name.
	model [1]string
	// screenedAny and placedAny tell how far the cycle came.
	screenedAny, placedAny bool
	*scratch
}

func (d *decider) place(c *cycle) *extproc.Refusal {
	if refusal := d.readIntent(c); refusal != nil {
		return refusal
	}
	d.index.Screen(c.set, &c.demand, c.act.rules(), c.now, &c.screened)
	c.screenedAny = true
	d.metrics.screenedOut(&c.screened.Removed)
	if c.screened.Cause != screen.None {
		return screenRefusal(&c.screened)
	}

	for _, slot := range c.screened.Slots {
		c.set.Lives[slot].Touch(c.now)
	}
	c.evidence.Gather(c.set, c.screened.Slots, c.now)
	c.act.plan.Place(&c.evidence, c.key, c.act.policy.Gateway.Fallbacks, &c.placed)
	c.placedAny = true
	if err := guard(c); err != nil {
		return &extproc.Refusal{Status: 500, Reason: "internal", Message: err.Error()}
	}
	if now := d.clock(); now > c.request.Deadline {
		return &extproc.Refusal{
			Status:  504,
			Reason:  "deadline",
			Message: "no decision was made in time",
		}
	}
	return nil
}

// guard checks the pick and the fallbacks against the screened set, by a record
// that placement has not seen. Placement cannot leave the set by construction;
// the guard is there for the day when it can.
func guard(c *cycle) error {
	if len(c.placed.Ranked) == 0 {
		return errors.New("placement returned no endpoint")
	}
	for _, row := range c.placed.Ranked {
		if row < 0 || row >= len(c.screened.Slots) || !c.screened.Members().Contains(int(c.screened.Slots[row])) {
			return fmt.Errorf("placement returned row %d, which is not in the screened set", row)
		}
	}
	return nil
}

// ranked returns the endpoint at a place of the order.
func (c *cycle) ranked(i int) *pool.Endpoint {
	return c.set.Endpoints[c.screened.Slots[c.placed.Ranked[i]]]
}
