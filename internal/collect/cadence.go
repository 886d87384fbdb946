package collect

import (
	"time"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	// pickedRecently keeps an endpoint hot after its last pick.
	pickedRecently = 2 * time.Second
	// candidateRecently keeps it warm after it was last looked at.
	candidateRecently = 30 * time.Second
	// longestPause bounds the pause after failures.
	longestPause = 10 * time.Second
	// candidatePause bounds it for a candidate that could not be reached.
	candidatePause = time.Second
)

// interval is the time from one scrape of an endpoint to the next, as of now.
// s is the newest snapshot, nil if there is none.
func (o *Options) interval(live *pool.Live, s *telemetry.Snapshot, now telemetry.Instant) time.Duration {
	switch {
	case live.InFlight() > 0, since(live.LastPicked(), now) < pickedRecently, busy(s):
		return o.Hot
	case since(live.LastCandidate(), now) < candidateRecently:
		return o.Warm
	default:
		return o.Idle
	}
}

// since is the time from at to now; an hour, which is longer than any limit
// here, if at is never.
func since(at, now telemetry.Instant) time.Duration {
	if at == 0 {
		return time.Hour
	}
	return now.Sub(at)
}

// busy reports that the engine's newest word is that it has requests.
func busy(s *telemetry.Snapshot) bool {
	if s == nil {
		return false
	}
	active, queued := &s.Readings[telemetry.ActiveRequests], &s.Readings[telemetry.QueueDepth]
	return active.Recorded == telemetry.Fresh && active.Value > 0 ||
		queued.Recorded == telemetry.Fresh && queued.Value > 0
}

// longestTurn is how many timeouts a scrape may take with all its pages. One that
// took longer was held up here: this process stood still, not the engine.
const longestTurn = 4

// kept is the time from the start of a scrape that took so long to the next: an
// engine rests as long as its pages take.
func (o *Options) kept(interval, took time.Duration) time.Duration {
	return max(interval, 2*min(took, longestTurn*o.Timeout))
}

// lease is how long a reading lives at least when the next comes after
// interval.
func (o *Options) lease(interval time.Duration) time.Duration { return 3*interval + o.Timeout }

// pause is the time from the end of a failed scrape to the next, after failures
// in a row, at least one.
func (o *Options) pause(live *pool.Live, failures int, reached bool, now telemetry.Instant) time.Duration {
	pause := o.backOff(failures)
	if reached && !live.OrderedLast() {
		return pause
	}
	switch {
	case live.InFlight() > 0:
		return min(pause, o.Hot)
	case since(live.LastCandidate(), now) < candidateRecently, since(live.LastPicked(), now) < candidateRecently:
		return min(pause, candidatePause)
	default:
		return pause
	}
}

// backOff doubles with each failure in a row.
func (o *Options) backOff(failures int) time.Duration {
	if failures >= 16 {
		return longestPause
	}
	return min(o.Hot<<failures, longestPause)
}

// note looks at what the picker itself sends to an endpoint. It is called at
// every scrape. Between two of them the endpoint counts as busy if it was so at
// both: requests that follow each other closely leave no time to stand still.
func (t *traffic) note(live *pool.Live, now telemetry.Instant) engine.Traffic {
	picked := live.LastPicked()
	switch {
	case live.InFlight() > 0:
		if t.BusySince == 0 {
			t.Traffic = engine.Traffic{BusySince: now}
		}
	case t.IdleSince == 0, picked != t.picked:
		// A request came and went since, nobody knows when it ended.
		t.Traffic = engine.Traffic{IdleSince: now}
	}
	t.picked = picked
	return t.Traffic
}

// traffic is what was seen of an endpoint's requests.
type traffic struct {
	engine.Traffic
	// picked is when the endpoint had last been picked.
	picked telemetry.Instant
}

// jitter shortens d by up to a tenth, differently for each endpoint and each
// scrape and alike in each run, so that scrapes of many endpoints spread and an
// age limit on readings still holds.
func jitter(d time.Duration, hash, n uint64) time.Duration {
	return d - time.Duration(fraction(hash+n)*float64(d)/10)
}

// fraction maps x to [0,1), neighbours far apart (the finaliser of SplitMix64).
func fraction(x uint64) float64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}
