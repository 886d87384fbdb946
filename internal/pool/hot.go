package pool

import (
	"math"
	"sync/atomic"

	"github.com/berth-dev/berth/internal/telemetry"
)

// hot is the part of a Live that every decision reads for every candidate,
// packed into two cache lines: at thousands of candidates the time of a decision
// is the time to fetch these.
//
// The load fields and what excludes an endpoint come from one snapshot and are
// written together under seq, so that a reader gets all of one scrape or all of
// another. The other members stand for themselves.
type hot struct {
	// seq is odd while a snapshot is being taken over.
	seq atomic.Uint32
	// last is 1 before the first HTTP answer and after a refused or reset
	// connection.
	last     atomic.Uint32
	inFlight atomic.Int32
	pending  atomic.Int32
	value    [telemetry.NumLoadFields]atomic.Uint64
	// until is when the field stops being fresh, or one of the codes below.
	until [telemetry.NumLoadFields]atomic.Int64
	// excludedUntil is when the engine's last word stops to exclude the endpoint; 0 if
	// it does not. It is one number, so that a page which says "unhealthy" after one
	// that said "asleep" leaves no moment in between.
	excludedUntil atomic.Int64
	// served is what the engine says that it serves; nil until it has said so.
	served atomic.Pointer[ServedSet]
	// latency is the float64 bits of the smoothed time to first byte, seconds;
	// 0 before the first sample.
	latency     atomic.Uint64
	outcomeAt   atomic.Int64
	candidateAt atomic.Int64
}

// Codes of hot.until. A reading that never expires has the largest time, one
// that was judged stale by evidence other than age one long past.
const (
	untilMissing int64 = 0
	untilInvalid int64 = -1
	untilStale   int64 = 1
	untilForever int64 = math.MaxInt64
)

func encodeUntil(r *telemetry.Reading) int64 {
	switch r.Recorded {
	case telemetry.Invalid:
		return untilInvalid
	case telemetry.Stale:
		return untilStale
	case telemetry.Fresh:
		if r.ExpiresAt == 0 {
			return untilForever
		}
		return int64(r.ExpiresAt)
	default:
		return untilMissing
	}
}

func decodeUntil(until int64, now telemetry.Instant) telemetry.State {
	switch {
	case until == untilMissing:
		return telemetry.Missing
	case until == untilInvalid:
		return telemetry.Invalid
	case int64(now) >= until:
		return telemetry.Stale
	default:
		return telemetry.Fresh
	}
}

// freshUntil is when a Bool that was read as v stops to hold; 0 if it does not.
func freshUntil(r *telemetry.Reading, v float64) int64 {
	if r.Recorded != telemetry.Fresh || r.Value != v {
		return 0
	}
	return encodeUntil(r)
}

// takeOver copies what decisions read of a snapshot. pending is the number of
// units that the snapshot cannot have counted. Writers are serialised by Live.mu.
// It reports whether ExcludedUntil has moved.
func (h *hot) takeOver(s *telemetry.Snapshot, pending int32, served *ServedSet) (moved bool) {
	h.seq.Add(1)
	for i, f := range telemetry.LoadFields {
		r := &s.Readings[f]
		h.value[i].Store(math.Float64bits(r.Value))
		h.until[i].Store(encodeUntil(r))
	}
	until := max(freshUntil(&s.Readings[telemetry.Sleeping], 1),
		freshUntil(&s.Readings[telemetry.Health], 0), freshUntil(&s.Readings[telemetry.Ready], 0))
	moved = h.excludedUntil.Swap(until) != until
	h.served.Store(served)
	h.pending.Store(pending)
	h.seq.Add(1)
	return moved
}

// Load is what a decision reads of an endpoint's load: the load fields in the
// order of telemetry.LoadFields, all from one snapshot, and the units that this
// snapshot cannot have counted.
type Load struct {
	Value   [telemetry.NumLoadFields]float64
	State   [telemetry.NumLoadFields]telemetry.State
	Pending int32
}

// ReadLoad reads the load as it is at now.
func (l *Live) ReadLoad(now telemetry.Instant, out *Load) {
	for {
		seq := l.hot.seq.Load()
		if seq&1 == 0 {
			for i := range out.Value {
				out.Value[i] = math.Float64frombits(l.hot.value[i].Load())
				out.State[i] = decodeUntil(l.hot.until[i].Load(), now)
			}
			out.Pending = l.hot.pending.Load()
			if l.hot.seq.Load() == seq {
				return
			}
		}
	}
}

// Excluded reports whether the engine's last fresh word was that it sleeps, is
// unhealthy or not ready. Unknown is none of them.
func (l *Live) Excluded(now telemetry.Instant) bool { return l.hot.excludedUntil.Load() > int64(now) }

// ExcludedUntil is when Excluded turns to false by itself; long past where it is.
func (l *Live) ExcludedUntil() telemetry.Instant {
	return telemetry.Instant(l.hot.excludedUntil.Load())
}
