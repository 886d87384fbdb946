package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Traffic is what the picker knows of its own requests at an endpoint. One of
// the two is set; neither, if nothing is known.
type Traffic struct {
	// BusySince is since when it has had requests there without a break.
	BusySince telemetry.Instant
	// IdleSince is since when it has had none.
	IdleSince telemetry.Instant
}

const (
	// doubtful is the quality of a reading that something speaks against.
	doubtful = 0.5
	// hopeless is that of one which is stale, whatever its age.
	hopeless = 0.1
	// standstill is how many times longer than a profile allows a page may
	// stand still under this picker's own requests before it is stale.
	standstill = 3
)

// doubt lowers what the page says by what else is known.
func (e *evaluation) doubt(s *telemetry.Snapshot) {
	e.doubtClock(s)
	e.doubtStandstill(s)
}

// busyReadings reports that the engine says it has requests.
func busyReadings(s *telemetry.Snapshot) bool {
	for _, f := range [...]telemetry.Field{telemetry.ActiveRequests, telemetry.QueueDepth} {
		if r := &s.Readings[f]; r.Recorded == telemetry.Fresh && r.Value > 0 {
			return true
		}
	}
	return false
}

// doubtClock compares the time that the engine states with that of the scrape.
func (e *evaluation) doubtClock(s *telemetry.Snapshot) {
	clock := e.profile.clock
	if clock == nil {
		return
	}
	o := e.combined(&clock.series, amount)
	if o.kind != possible && o.kind != impossible {
		return
	}
	said := instant(o.value)
	at := e.past(said)
	age := e.in.At.Sub(at)
	counts := !clock.whileBusy || busyReadings(s)
	old := at != 0 && age > clock.maxAge && counts
	doubt := ""
	switch name := e.profile.families[clock.family].name; {
	case !counts || at != 0 && o.kind == possible:
	case o.kind == impossible:
		doubt = "the engine's own time says nothing: " + o.reason
	case said == 0:
		doubt = fmt.Sprintf("the engine's own time says nothing: %s: value %v is no time", name, o.value)
	default:
		doubt = fmt.Sprintf("the engine's own time is ahead of the scrape by more than %v, and does not show how old the page is", clockSkew)
	}
	for i := range e.profile.rules {
		rule := &e.profile.rules[i]
		r := &s.Readings[rule.field]
		if r.Recorded != telemetry.Fresh || rule.seldom && !e.counting || rule.field == telemetry.ProcessStart {
			continue
		}
		if doubt != "" {
			e.distrust(r, doubtful, doubt)
			continue
		}
		if at == 0 {
			continue
		}
		own := *r.Detail
		own.EngineTime = at
		r.Detail = &own
		if old {
			e.distrust(r, hopeless, fmt.Sprintf("the engine's own time is %v before the scrape, want at most %v", age.Round(time.Millisecond), clock.maxAge))
			r.Recorded = telemetry.Stale
		}
	}
}

// doubtStamp says of a reading that the engine dates what that is worth: a reading
// that is older than it lives is stale from the start, and a date in the future is
// none.
func (e *evaluation) doubtStamp(r *telemetry.Reading, f telemetry.Field, at telemetry.Instant) {
	switch {
	case at == 0:
	case e.past(at) == 0:
		e.distrust(r, doubtful, fmt.Sprintf("a timestamp is ahead of the scrape by more than %v", clockSkew))
	case e.in.At.Sub(r.ObservedAt) >= e.profile.ttl[f]:
		e.distrust(r, r.Quality, "the timestamp of the sample is older than the reading lives")
	}
}

// instant is a time that an engine states, in seconds, milliseconds,
// microseconds or nanoseconds since the epoch, by its size; 0 if it is none after
// the year 2001.
func instant(v float64) telemetry.Instant {
	for v >= 1e11 && v <= 1e20 {
		v /= 1e3
	}
	if !(v >= 1e9 && v < 9e9) {
		return 0
	}
	sec := int64(v)
	return telemetry.Instant(sec*1e9 + int64((v-float64(sec))*1e9))
}

// past is a time that the engine states, no later than the scrape; 0 if it is in
// the future: what an engine says of that is no evidence.
func (e *evaluation) past(at telemetry.Instant) telemetry.Instant {
	if at > e.in.At.Add(clockSkew) {
		return 0
	}
	return min(at, e.in.At)
}

// doubtStandstill looks at how long the page has shown the same values. An idle
// engine's may for ever.
func (e *evaluation) doubtStandstill(s *telemetry.Snapshot) {
	h := e.in.History
	if h == nil || h.movedAt == 0 {
		return
	}
	if !e.counting && e.loadMoved(s) {
		// The rest of a page that is read in part is not looked at.
		h.movedAt, h.stale = e.in.At, ""
	}
	still, limit := e.in.At.Sub(h.movedAt), e.profile.still
	busy, idle := e.in.Traffic.lasting(e.in.At)
	switch {
	case still < limit || h.stale != "":
	case busy >= limit:
		words := fmt.Sprintf("no value on the page moved for %v while requests of this picker were there", still.Round(time.Second))
		if still < standstill*limit || busy < standstill*limit {
			e.distrustAll(s, false, words)
			return
		}
		h.stale = words
	case idle >= limit && busyReadings(s):
		h.stale = fmt.Sprintf("frozen: no value on the page moved for %v although it says that the engine works", still.Round(time.Second))
	}
	// A request that comes and goes meanwhile makes a page that stands still no
	// better.
	if h.stale != "" {
		e.distrustAll(s, true, h.stale)
	}
}

// loadMoved reports that the page says another load than the one before it.
func (e *evaluation) loadMoved(s *telemetry.Snapshot) bool {
	if e.in.Previous == nil {
		return false
	}
	return slices.ContainsFunc(telemetry.LoadFields[:], func(f telemetry.Field) bool {
		before, now := &e.in.Previous.Readings[f], &s.Readings[f]
		known := (before.Recorded == telemetry.Fresh || before.Recorded == telemetry.Stale) && now.Recorded == telemetry.Fresh
		return known && before.Value != now.Value
	})
}

// lasting is how long it has been so.
func (t Traffic) lasting(now telemetry.Instant) (busy, idle time.Duration) {
	if t.BusySince != 0 {
		busy = now.Sub(t.BusySince)
	}
	if t.IdleSince != 0 {
		idle = now.Sub(t.IdleSince)
	}
	return busy, idle
}

// distrustAll doubts what the page says of the present: the load, and what windows
// have counted. What is carried over from an earlier page was doubted there.
func (e *evaluation) distrustAll(s *telemetry.Snapshot, stale bool, why string) {
	for i := range e.profile.rules {
		rule := &e.profile.rules[i]
		r := &s.Readings[rule.field]
		ofNow := slices.Contains(telemetry.LoadFields[:], rule.field) || rule.windowed()
		if !ofNow || rule.seldom && !e.counting || r.Recorded != telemetry.Fresh {
			continue
		}
		if stale {
			e.distrust(r, hopeless, why)
			r.Recorded = telemetry.Stale
		} else {
			e.distrust(r, doubtful, why)
		}
	}
}

// distrust lowers the quality of a reading for a reason.
func (e *evaluation) distrust(r *telemetry.Reading, quality float32, why string) {
	own := *r.Detail
	own.Reasons = append(slices.Clone(own.Reasons), why)
	r.Detail = &own
	r.Quality = min(r.Quality, quality)
}
