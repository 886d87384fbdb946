package pool

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// quarantine is the circuit breaker of an endpoint: closed while requests go well,
// open after several have failed in a row, half open when a while has passed. Then
// one request tries the endpoint, and what becomes of it decides.
//
// Decisions read it without a lock; mu is for what changes it, which is seldom.
type quarantine struct {
	mu       sync.Mutex
	failures atomic.Int32
	// since and until are when the endpoint was put away and when it may be tried
	// again; until is 0 while it is not in quarantine.
	since, until atomic.Int64
	// try is the number of the request that tries the endpoint, 0 if none does, and
	// tries counts them. Once tryUntil has passed the next request may try, though
	// nothing has come of this one.
	try      atomic.Uint64
	tries    uint64
	tryUntil atomic.Int64
	// probeAfter is that of the rules by which the endpoint was put away.
	probeAfter time.Duration
}

// QuarantineRules say when failures put an endpoint away.
type QuarantineRules struct {
	// Failures is how many must follow each other, at least 1.
	Failures int
	// ProbeAfter is how long it stays away before it is tried, and how long a try may
	// take until the next one.
	ProbeAfter time.Duration
}

// Quarantine is the state of an endpoint's quarantine at some time.
type Quarantine struct {
	// In: no request may try the endpoint, one that does so already apart.
	In bool
	// Since is when it was put away, 0 if it is not. Until is when its state
	// changes by itself, 0 if it does not.
	Since, Until telemetry.Instant
}

// Quarantine is the state at now.
func (l *Live) Quarantine(now telemetry.Instant) Quarantine {
	until := telemetry.Instant(l.quarantine.until.Load())
	if until == 0 {
		return Quarantine{}
	}
	q := Quarantine{Since: telemetry.Instant(l.quarantine.since.Load())}
	if now < until {
		q.In, q.Until = true, until
	} else if until := telemetry.Instant(l.quarantine.tryUntil.Load()); l.quarantine.try.Load() != 0 && now < until {
		q.In, q.Until = true, until
	}
	return q
}

// Failed records a request that the endpoint failed: nobody took the connection, or
// the engine answered with an error of its own. It returns true where that puts the
// endpoint into quarantine.
func (l *Live) Failed(now telemetry.Instant, rules QuarantineRules) bool {
	q := &l.quarantine
	q.mu.Lock()
	defer q.mu.Unlock()
	until := telemetry.Instant(q.until.Load())
	n := q.failures.Add(1)
	switch {
	case until == 0 && int(n) < rules.Failures:
		return false
	case now < until:
		// A request that was under way before.
		return false
	}
	q.since.Store(int64(now))
	q.until.Store(int64(now.Add(rules.ProbeAfter)))
	q.try.Store(0)
	q.probeAfter = rules.ProbeAfter
	l.shared.eligibility.Add(1)
	return until == 0
}

// Succeeded records a request that the engine took and answered. It returns true
// where that ends a quarantine.
func (l *Live) Succeeded() bool {
	q := &l.quarantine
	if q.failures.Load() == 0 && q.until.Load() == 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failures.Store(0)
	if q.until.Load() == 0 {
		return false
	}
	q.since.Store(0)
	q.until.Store(0)
	q.try.Store(0)
	l.shared.eligibility.Add(1)
	return true
}

// beginTry makes a request that was placed at now the one that tries the endpoint, if
// that is due and no other does. It returns its number, or 0.
func (l *Live) beginTry(now telemetry.Instant) uint64 {
	q := &l.quarantine
	if q.until.Load() == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if until := q.until.Load(); until == 0 || int64(now) < until || q.try.Load() != 0 && int64(now) < q.tryUntil.Load() {
		return 0
	}
	q.tries++
	q.tryUntil.Store(int64(now.Add(q.probeAfter)))
	q.try.Store(q.tries)
	l.shared.eligibility.Add(1)
	return q.tries
}

// endTry ends a try before it has shown all that it can: its client has left, or the
// answer has begun. The next request may try.
func (l *Live) endTry(number uint64) {
	q := &l.quarantine
	q.mu.Lock()
	defer q.mu.Unlock()
	if number != 0 && q.try.CompareAndSwap(number, 0) {
		l.shared.eligibility.Add(1)
	}
}
