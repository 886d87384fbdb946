package host

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
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
	rec.Refusal = &v1alpha1.Refusal{Status: refusal.Status, Reason: refusal.Reason, Message: refusal.Message}
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
	at := c.now.Time()
	rec.Acknowledgement.RecommendedAt = &at
	f := newInFlight(c, d, rec)
	r.ledger.Open(rec)
	return f
}

// finished completes the record of a placed request.
func (r *recorder) finished(f *inFlight, o extproc.Outcome) {
	rec := *f.record
	ack := &rec.Acknowledgement
	ack.Acted = string(f.acted)
	ack.Attempts = f.served.Attempts
	if f.served.At != 0 {
		at := f.served.At.Time()
		ack.ActedAt = &at
	}
	switch {
	case f.servedBy != nil:
		ack.Served = f.servedBy.Name
	case f.byReplica():
		ack.ServedAddress = f.served.Address
	}
	rec.Outcome = &v1alpha1.Outcome{
		EndedAt:      o.At.Time(),
		Status:       f.served.Status,
		Cause:        string(o.Cause),
		Duration:     o.At.Sub(f.completeAt).Seconds(),
		RequestBytes: o.RequestBytes,
	}
	if f.served.Details != viaUpstream {
		rec.Outcome.Details = f.served.Details
	}
	if o.ResponseSeen {
		rec.Outcome.ResponseBytes = &o.ResponseBytes
	}
	rec.Outcome.ErrorCode = o.Answer.ErrorCode
	if o.ResponseSeen {
		rec.Outcome.InputTokens = stated(o.Answer.Input)
		rec.Outcome.OutputTokens = stated(o.Answer.Output)
		rec.Outcome.CachedTokens = stated(o.Answer.Cached)
	}
	if f.firstByteAt != 0 {
		ttft := f.firstByteAt.Sub(f.completeAt).Seconds()
		rec.Outcome.TTFT = &ttft
	}
	f.record = &rec
	r.ledger.Close(&rec)
}

// stated is nil for a count that was not stated.
func stated(count int64) *int64 {
	if count < 0 {
		return nil
	}
	return &count
}

// describe renders what a cycle saw, as far as it came.
func describe(c *cycle) *v1alpha1.Decision {
	req := c.request
	rec := &v1alpha1.Decision{
		Version: v1alpha1.Version,
		Kind:    "Decision",
		ID:      c.id,
		Time:    c.now.Time(),
		Pool:    c.set.Pool,
		Path:    "native",
		Key:     strconv.FormatUint(c.key, 16),
		Members: len(c.set.Endpoints),
		Intent:  v1alpha1.IntentFacts{Source: "none", Model: c.facts.Model},
		Request: v1alpha1.RequestFacts{
			RequestID:   req.RequestID,
			API:         c.facts.API.String(),
			Stream:      c.facts.Stream,
			MaxTokens:   c.facts.MaxTokens,
			BodyBytes:   len(req.Body),
			PromptBytes: c.facts.Prompt.End - c.facts.Prompt.Start,
			Unread:      c.facts.Unread,
		},
		Candidates: []v1alpha1.Candidate{},
		Replayable: true,
		Versions: v1alpha1.Versions{
			Schema: v1alpha1.Version,
			Policy: c.act.policy.Digest,
			Build:  version.Version,
		},
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
	}
	describeCandidates(c, rec)
	return rec
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
	rec.Candidates = make([]v1alpha1.Candidate, len(members))
	for slot, e := range members {
		rec.Candidates[slot] = v1alpha1.Candidate{Replica: e.Name, Address: e.Destination}
		if class := c.screened.Fate[slot]; class != screen.Kept {
			rec.Candidates[slot].RemovedBy = class.String()
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
	rows := c.evidence.Len()
	scorers := c.act.plan.Scorers()
	readings := make([]v1alpha1.FieldEvidence, 0, rows*len(placement.LoadFields))
	scores := make([]v1alpha1.Score, 0, rows*len(c.placed.Scores))
	numbers := make([]float64, 0, rows*(1+2*len(placement.LoadFields)+len(scorers)))
	number := func(v float64) *float64 {
		numbers = append(numbers, v)
		return &numbers[len(numbers)-1]
	}
	for row, slot := range c.screened.Slots {
		cand := &rec.Candidates[slot]
		cand.Last = c.evidence.Last[row]
		cand.InFlight = c.evidence.InFlight[row]
		cand.Pending = c.evidence.Pending[row]
		cand.Total = c.placed.Total[row]
		if l := c.evidence.Latency[row]; !math.IsNaN(l) {
			cand.Latency = number(l)
		}
		from := len(readings)
		for i, f := range placement.LoadFields {
			if c.placed.Uses[i] == placement.Unused {
				continue
			}
			readings = append(readings, fieldEvidence(c, c.set.Endpoints[slot], i, f, row, number))
		}
		cand.Readings = readings[from:len(readings):len(readings)]
		from = len(scores)
		for i, column := range c.placed.Scores {
			s := v1alpha1.Score{Scorer: scorers[i].Name, Weight: scorers[i].Weight}
			if v := column[row]; !math.IsNaN(v) {
				s.Value = number(v)
			}
			scores = append(scores, s)
		}
		cand.Scores = scores[from:len(scores):len(scores)]
	}
	for place, row := range c.placed.Ranked {
		rec.Candidates[c.screened.Slots[row]].Rank = place + 1
	}
}

func fieldEvidence(
	c *cycle, e *pool.Endpoint, i int, f telemetry.Field, row int, number func(float64) *float64,
) v1alpha1.FieldEvidence {
	state := c.evidence.Load[i].State[row]
	value := c.evidence.Load[i].Value[row]
	ev := v1alpha1.FieldEvidence{Field: f.String(), State: state.String()}
	known := state == telemetry.Fresh || state == telemetry.Stale
	if known {
		ev.Value = number(value)
		if s := e.Snapshot(); s != nil {
			age := c.now.Sub(s.Readings[f].ObservedAt)
			millis := int64(max(age, 0) / time.Millisecond)
			ev.AgeMillis = &millis
		}
	}
	if estimates := c.placed.Estimate[i]; estimates != nil {
		ev.Estimate = number(estimates[row])
		ev.Provenance = telemetry.Inferred.String()
		if state == telemetry.Fresh && estimates[row] == value {
			ev.Provenance = telemetry.Measured.String()
		}
	}
	return ev
}
