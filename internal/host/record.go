package host

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/internal/version"
)

// recorder turns decisions into records.
type recorder struct {
	ledger *ledger.Ledger
}

// refused records a request that was not placed.
func (r *recorder) refused(c *cycle, refusal *extproc.Refusal) {
	rec := describe(c)
	rec.Rung = placement.Refuse.String()
	rec.Refusal = &v1alpha1.Refusal{Status: refusal.Status, Reason: refusal.Reason, Message: refusal.Message, Detail: refusal.Detail}
	if rec.Refusal.Detail == "" && c.screenedAny && (c.screened.Cause == screen.ModelUnserved || c.screened.Cause == screen.ModelUnknown) {
		rec.Refusal.Detail = servedInstead(c)
	}
	r.ledger.Close(rec)
}

// placed records a request that was placed and starts to follow it.
func (r *recorder) placed(c *cycle, d *decider) *inFlight {
	rec := describe(c)
	rec.Rung = c.placed.Rung.String()
	rec.Pick = c.ranked(0).Name
	for i := 1; i < len(c.placed.Ranked); i++ {
		rec.Fallbacks = append(rec.Fallbacks, c.ranked(i).Name)
	}
	f := newInFlight(c, d)
	rec.Acknowledgement = f.acknowledgement()
	f.record = r.ledger.Open(rec)
	return f
}

// finished completes the record of a placed request.
func (r *recorder) finished(f *inFlight, o extproc.Outcome) {
	ack := f.acknowledgement()
	ack.Acted = string(f.acted)
	ack.Attempts = f.served.Attempts
	if f.served.At != 0 {
		at := f.served.At.Time()
		ack.ActedAt = &at
	}
	switch {
	case f.servedBy != nil:
		ack.Served = f.servedBy.Name
	case f.served.ByReplica():
		ack.ServedAddress = f.served.Address
	}
	out := v1alpha1.Outcome{
		EndedAt:      o.At.Time(),
		Status:       f.served.Status,
		Cause:        string(o.Cause),
		Seen:         string(o.Seen),
		ErrorCode:    o.Answer.ErrorCode,
		Duration:     o.At.Sub(f.completeAt).Seconds(),
		RequestBytes: o.RequestBytes,
	}
	switch {
	case o.Reason != "":
		out.Details = o.Reason
	case !f.served.ByReplica():
		out.Details = f.served.Details
	}
	if o.ResponseSeen {
		out.ResponseBytes = &o.ResponseBytes
		out.InputTokens = stated(&o.Answer.Input)
		out.OutputTokens = stated(&o.Answer.Output)
		out.CachedTokens = stated(&o.Answer.Cached)
	}
	if f.firstByteAt != 0 {
		ttft := f.firstByteAt.Sub(f.completeAt).Seconds()
		out.TTFT = &ttft
	}
	r.ledger.End(f.record, &ack, &out)
}

// stated is nil for a count that was not stated.
func stated(count *int64) *int64 {
	if *count < 0 {
		return nil
	}
	return count
}

// document is the memory that records are made in: one serves many, one after the
// other, since the ledger keeps none.
type document struct {
	v1alpha1.Decision
	candidates []v1alpha1.Candidate
	// What candidates point to.
	numbers  []float64
	ages     []int64
	readings []v1alpha1.FieldEvidence
	scores   []*float64
}

// describe renders what a cycle saw, as far as it came. The record is good until
// the cycle's memory is used again.
func describe(c *cycle) *v1alpha1.Decision {
	req := c.request
	rec := &c.document.Decision
	*rec = v1alpha1.Decision{
		Version: v1alpha1.Version,
		Kind:    "Decision",
		ID:      c.id,
		Time:    c.now.Time(),
		Pool:    c.set.Pool,
		Path:    "native",
		Key:     strconv.FormatUint(c.key, 16),
		Members: len(c.set.Endpoints),
		Intent:  describeIntent(c),
		Request: v1alpha1.RequestFacts{
			RequestID:   req.RequestID,
			API:         c.facts.API.String(),
			Stream:      c.facts.Stream,
			MaxTokens:   c.facts.MaxTokens,
			BodyBytes:   max(len(req.Body), int(req.BodyBytes)),
			PromptBytes: c.facts.Prompt.End - c.facts.Prompt.Start,
			Unread:      c.facts.Unread,
		},
		Fields:     rec.Fields[:0],
		Scorers:    rec.Scorers[:0],
		Candidates: []v1alpha1.Candidate{},
		Fallbacks:  rec.Fallbacks[:0],
		Replayable: true,
		Versions: v1alpha1.Versions{
			Schema:   v1alpha1.Version,
			Policy:   c.act.policy.Digest,
			Build:    version.Version,
			Profiles: rec.Versions.Profiles[:0],
		},
	}
	if c.act.policy.Telemetry.Mode == v1alpha1.TelemetryNone {
		rec.Telemetry = string(v1alpha1.TelemetryNone)
	}
	if req.Subset != nil {
		n := req.Subset.Len()
		rec.Intent.Subset = &n
	}
	if c.screenedAny {
		describeScreening(c, rec)
	}
	if c.placedAny {
		for i, u := range c.placed.Uses {
			if u != placement.Unused {
				rec.Fields = append(rec.Fields, v1alpha1.FieldUse{Field: placement.LoadFields[i].String(), Use: u.String()})
			}
		}
		for i := range c.placed.Scores {
			scorer := &c.act.plan.Scorers()[i]
			rec.Scorers = append(rec.Scorers, v1alpha1.ScorerUse{Scorer: scorer.Name, Weight: scorer.Weight})
		}
	}
	describeCandidates(c, rec)
	return rec
}

// describeIntent tells what was demanded. The session key is left out: it may name a
// person.
func describeIntent(c *cycle) v1alpha1.IntentFacts {
	facts := v1alpha1.IntentFacts{
		Source: string(c.intent.Source), Model: c.facts.Model, Outranked: outranked(c), Untrusted: c.act.intents.Untrusted(&c.input),
	}
	if facts.Source == "" {
		// It was refused before it was read.
		facts.Source = string(intent.SourceNone)
	}
	if i := c.intent.Routing; i != nil {
		facts.IntentID, facts.Issuer, facts.KeyID = i.IntentID, i.Issuer, c.intent.KeyID
		facts.LogicalModel, facts.Models = i.LogicalModel, c.intent.Models
		facts.Requirements, facts.Priority, facts.Ignored = i.Requirements, i.Priority, c.intent.Unknown
		facts.ContextTokens = c.demand.Context
	}
	return facts
}

// describeRemoval tells why a member was excluded.
func describeRemoval(c *cycle, to *v1alpha1.Candidate, slot int, class screen.Class) {
	to.RemovedBy = class.String()
	e := c.set.Endpoints[slot]
	if rule := c.screened.Rule(slot); rule >= 0 {
		to.Rule, to.Attribute = &rule, attributeFacts(e, &c.demand.Requirements[rule])
	}
	if class == screen.ByContext {
		if limit := e.ContextFit(); limit >= 0 {
			to.ContextLimit = &limit
		}
	}
}

// recordedItems bounds what a record tells of one attribute: a replica may serve
// thousands of tenants.
const recordedItems = 16

// attributeFacts is what an endpoint has that did not meet a requirement; nil if it
// has changed since, and does.
func attributeFacts(e *pool.Endpoint, rule *v1alpha1.Requirement) *v1alpha1.AttributeFacts {
	v, known := e.KnownAttribute(rule.Key)
	switch items := v.Items(); {
	case !known:
		return &v1alpha1.AttributeFacts{State: "unknown"}
	case v.Meets(rule.Operator, rule.Values):
		return nil
	case v.Contradicted():
		return &v1alpha1.AttributeFacts{State: "contradicted"}
	case !v.Present():
		return &v1alpha1.AttributeFacts{State: "absent"}
	default:
		n := min(len(items), recordedItems)
		return &v1alpha1.AttributeFacts{State: "present", Items: items[:n], More: len(items) - n}
	}
}

func describeScreening(c *cycle, rec *v1alpha1.Decision) {
	rec.Screened = len(c.screened.Slots)
	for class, n := range c.screened.Removed {
		if n > 0 {
			if rec.ScreenedOut == nil {
				rec.ScreenedOut = map[string]int{}
			}
			rec.ScreenedOut[screen.Class(class).String()] = n
		}
	}
}

// describeCandidates writes one entry per member of the pool, or none at all:
// a record with a part of them could not be replayed and would look as if it
// could.
func describeCandidates(c *cycle, rec *v1alpha1.Decision) {
	members := c.set.Endpoints
	bound := c.act.policy.Ledger.Candidates
	if !c.screenedAny || len(members) == 0 {
		return
	}
	if len(members) > bound {
		rec.Replayable = false
		rec.NotReplayable = "the pool has " + strconv.Itoa(len(members)) +
			" members, more than the record may list (ledger.candidates: " + strconv.Itoa(bound) + ")"
		return
	}
	c.document.candidates = slices.Grow(c.document.candidates[:0], len(members))[:len(members)]
	rec.Candidates = c.document.candidates
	for slot, e := range members {
		rec.Candidates[slot] = v1alpha1.Candidate{Replica: e.Name, Address: e.Destination}
		if class := c.screened.Fate(slot); class != screen.Kept {
			describeRemoval(c, &rec.Candidates[slot], slot, class)
		}
		if s := e.Snapshot(); s != nil && s.Profile != "" && !slices.Contains(rec.Versions.Profiles, s.Profile) {
			rec.Versions.Profiles = append(rec.Versions.Profiles, s.Profile)
		}
	}
	if c.placedAny {
		describePlacement(c, rec)
	}
}

func describePlacement(c *cycle, rec *v1alpha1.Decision) {
	doc := &c.document
	rows, fields, scorers := c.evidence.Len(), len(rec.Fields), len(c.placed.Scores)
	doc.readings = slices.Grow(doc.readings[:0], rows*fields)
	doc.scores = slices.Grow(doc.scores[:0], rows*scorers)
	doc.numbers = slices.Grow(doc.numbers[:0], rows*(1+2*fields+scorers))
	doc.ages = slices.Grow(doc.ages[:0], rows*fields)
	for row, slot := range c.screened.Slots {
		cand := &rec.Candidates[slot]
		cand.Last = c.evidence.Last[row]
		cand.Quarantined = c.screened.Quarantined(int(slot))
		cand.InFlight = c.evidence.InFlight[row]
		cand.Pending = c.evidence.Pending[row]
		cand.Total = c.placed.Total[row]
		if l := c.evidence.Latency[row]; !math.IsNaN(l) {
			cand.Latency = doc.number(l)
		}
		from := len(doc.readings)
		e := c.set.Endpoints[slot]
		snapshot := e.Snapshot()
		for i := range placement.LoadFields {
			if c.placed.Uses[i] != placement.Unused {
				doc.reading(c, e, snapshot, i, row)
			}
		}
		cand.Readings = doc.readings[from:len(doc.readings):len(doc.readings)]
		from = len(doc.scores)
		for _, column := range c.placed.Scores {
			var score *float64
			if v := column[row]; !math.IsNaN(v) {
				score = doc.number(v)
			}
			doc.scores = append(doc.scores, score)
		}
		cand.Scores = doc.scores[from:len(doc.scores):len(doc.scores)]
	}
	for place, row := range c.placed.Ranked {
		rec.Candidates[c.screened.Slots[row]].Rank = place + 1
	}
}

func (doc *document) number(v float64) *float64 {
	doc.numbers = append(doc.numbers, v)
	return &doc.numbers[len(doc.numbers)-1]
}

// reading describes a load field at a row. The snapshot may be newer than what was
// gathered; it is asked for the age, and for why the field was not fresh.
func (doc *document) reading(c *cycle, e *pool.Endpoint, s *telemetry.Snapshot, field, row int) {
	state := c.evidence.Load[field].State[row]
	value := c.evidence.Load[field].Value[row]
	ev := v1alpha1.FieldEvidence{State: state.String()}
	if state == telemetry.Fresh || state == telemetry.Stale {
		ev.Value = doc.number(value)
		if s != nil {
			age := c.now.Sub(s.Readings[placement.LoadFields[field]].ObservedAt)
			doc.ages = append(doc.ages, int64(max(age, 0)/time.Millisecond))
			ev.AgeMillis = &doc.ages[len(doc.ages)-1]
		}
	}
	if estimates := c.placed.Estimate[field]; estimates != nil && (state != telemetry.Fresh || estimates[row] != value) {
		ev.Estimate = doc.number(estimates[row])
	}
	if s == nil {
		ev.Reason = c.unread(e)
	} else {
		ev.Support, ev.Reason = c.why(e, &s.Readings[placement.LoadFields[field]], state, value)
	}
	doc.readings = append(doc.readings, ev)
}
