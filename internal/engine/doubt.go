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
	if o.kind != possible {
		return
	}
	at := e.past(instant(o.value))
	if at == 0 {
		return
	}
	age := e.in.At.Sub(at)
	old := age > clock.maxAge && (!clock.whileBusy || busyReadings(s))
	for i := range e.profile.rules {
		rule := &e.profile.rules[i]
		r := &s.Readings[rule.field]
		if r.Recorded != telemetry.Fresh || rule.seldom && !e.counting || rule.field == telemetry.ProcessStart {
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
	still, limit := e.in.At.Sub(h.movedAt), e.profile.still
	busy, idle := e.in.Traffic.lasting(e.in.At)
	switch {
	case still < limit || h.stale != "":
	case busy >= limit:
		words := fmt.Sprintf("no value on the page moved for %v while requests of this picker were there", still.Round(time.Second))
		if still < standstill*limit || busy < standstill*limit {
			e.distrustLoad(s, false, words)
			return
		}
		h.stale = words
	case idle >= limit && busyReadings(s):
		h.stale = fmt.Sprintf("frozen: no value on the page moved for %v although it says that the engine works", still.Round(time.Second))
	}
	// A request that comes and goes meanwhile makes a page that stands still no
	// better.
	if h.stale != "" {
		e.distrustLoad(s, true, h.stale)
	}
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

func (e *evaluation) distrustLoad(s *telemetry.Snapshot, stale bool, why string) {
	for _, f := range telemetry.LoadFields {
		r := &s.Readings[f]
		if r.Recorded != telemetry.Fresh {
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
