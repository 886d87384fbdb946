package host

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
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
	policy *policy.Policy
	plan   *placement.Plan
}

// decider takes a request through intent, screening, placement and guard.
type decider struct {
	registry *pool.Registry
	active   atomic.Pointer[active]
	clock    telemetry.Clock
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

func newDecider(registry *pool.Registry, clock telemetry.Clock, rec *recorder, m *metrics) *decider {
	return &decider{
		registry: registry,
		clock:    clock,
		recorder: rec,
		metrics:  m,
		ids:      newIDSource(),
		scratch:  sync.Pool{New: func() any { return new(scratch) }},
	}
}

// Decide implements extproc.Decider.
func (d *decider) Decide(req *extproc.Request) (extproc.Decision, *extproc.Refusal) {
	d.countUntrusted(req)
	now := d.clock()
	act := d.active.Load()
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
	return d.recorder.placed(c, d), nil
}

func (d *decider) countUntrusted(req *extproc.Request) {
	for _, name := range req.UntrustedHeaders {
		d.metrics.untrustedHeader(name)
	}
}

// refusedByProtocol counts a request that the protocol layer refused, and records
// it, unless it was decided: then it has a record, which its end completes.
func (d *decider) refusedByProtocol(req *extproc.Request, decision extproc.Decision, refusal *extproc.Refusal) {
	d.metrics.refused(refusal.Reason)
	if decision != nil {
		return
	}
	d.countUntrusted(req)
	c := &cycle{
		id:      d.ids.next(),
		now:     d.clock(),
		act:     d.active.Load(),
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
	facts   request.Facts
	// screenedAny and placedAny tell how far the cycle came.
	screenedAny, placedAny bool
	*scratch
}

func (d *decider) place(c *cycle) *extproc.Refusal {
	if refusal := d.readIntent(c); refusal != nil {
		return refusal
	}
	screen.Screen(c.set, screen.Request{Model: c.facts.Model, Subset: c.request.Subset}, c.now, &c.screened)
	c.screenedAny = true
	d.metrics.screenedOut(&c.screened.Removed)
	if c.screened.Cause != screen.None {
		refusal := screenRefusals[c.screened.Cause]
		return &refusal
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

// intentSource is the channel that the intent of a request comes from: this
// version asks the request alone.
const intentSource = "none"

// readIntent reads what the request demands. This version decodes no routing
// intent: a gateway that sends one states constraints that would go unmet, so
// the request is refused.
func (d *decider) readIntent(c *cycle) *extproc.Refusal {
	req := c.request
	if len(req.IntentKeys) > 0 {
		return &extproc.Refusal{
			Status:  400,
			Reason:  "intent_malformed",
			Message: "the gateway sent a routing intent, which this version of the endpoint picker does not read",
		}
	}
	facts, err := request.Read(req.Path, req.ContentType, req.ContentEncoding, req.Body)
	if err != nil {
		c.facts.API = request.APIOf(req.Path)
		refusal := &extproc.Refusal{Status: 400, Reason: "body_malformed", Message: err.Error()}
		var scanErr *request.Error
		if errors.As(err, &scanErr) {
			refusal.Reason = scanErr.Token
		}
		return refusal
	}
	c.facts = facts
	switch {
	case facts.API == request.Unknown && c.act.policy.Gateway.UnknownPaths == v1alpha1.UnknownPathRefuse:
		return &extproc.Refusal{Status: 404, Reason: "path_unknown", Message: "the path is none of the inference APIs that are served here"}
	case req.Tunnel:
		c.facts.Unread = request.UnreadTunnel
	case !req.BodySeen && facts.Unread == request.UnreadEmptyBody:
		c.facts.Unread = request.UnreadNotShown
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
