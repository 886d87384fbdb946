package pool

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Live is what this process knows of one incarnation of an endpoint. All
// methods may be called from any goroutine.
type Live struct {
	hot hot

	snapshot    atomic.Pointer[telemetry.Snapshot]
	pickedAt    atomic.Int64
	scrapeError atomic.Pointer[string]
	onWake      atomic.Pointer[func()]
	gone        chan struct{}
	shared      *shared
	quarantine  quarantine

	mu sync.Mutex
	// mark numbers the scrapes begun; published is the mark of the scrape that
	// snapshot came from. A unit taken under mark m is visible on the page of
	// scrape s only if m < s.
	mark      uint32
	published uint32
	// sinceMark and sinceEarlier split pending: units taken under the current
	// mark, and under earlier marks that no published scrape has covered.
	sinceMark    int32
	sinceEarlier int32
}

// newLive starts with what is true of an endpoint nobody has spoken to: nothing
// scraped, ordered last. An endpoint without telemetry can never be asked, so
// it starts in normal order.
func newLive(telemetryNone bool, all *shared) *Live {
	l := &Live{gone: make(chan struct{}), shared: all}
	if !telemetryNone {
		l.hot.last.Store(1)
	}
	return l
}

// Snapshot is the newest readings; nil before the first successful scrape. The
// value is immutable.
func (l *Live) Snapshot() *telemetry.Snapshot { return l.snapshot.Load() }

// InFlight is the number of this picker's requests at the endpoint.
func (l *Live) InFlight() int32 { return l.hot.inFlight.Load() }

// Pending is the part of InFlight that the snapshot cannot have counted: the
// picks since the scrape it came from began.
func (l *Live) Pending() int32 { return l.hot.pending.Load() }

// OrderedLast reports that the endpoint has not answered since start, or not
// since its last refusal: others go first.
func (l *Live) OrderedLast() bool { return l.hot.last.Load() != 0 }

// Answered records an HTTP answer of any status.
func (l *Live) Answered() {
	if l.OrderedLast() {
		l.hot.last.Store(0)
	}
}

// Refused records a refused or reset connection and asks for a scrape, which
// tells soonest whether the endpoint is back.
func (l *Live) Refused() {
	l.hot.last.Store(1)
	l.Wake()
}

// latencyWeight is the weight of the newest sample in the smoothed time to
// first byte: about the last eight requests count.
const latencyWeight = 1.0 / 8

// Observe records a completed request's time to first byte.
func (l *Live) Observe(ttfb time.Duration, now telemetry.Instant) {
	l.hot.outcomeAt.Store(int64(now))
	// The bits of 0 stand for "none yet", and a clock may stand still.
	sample := max(ttfb, time.Nanosecond).Seconds()
	for {
		old := l.hot.latency.Load()
		next := sample
		if old != 0 {
			prev := math.Float64frombits(old)
			next = prev + latencyWeight*(sample-prev)
		}
		if l.hot.latency.CompareAndSwap(old, math.Float64bits(next)) {
			return
		}
	}
}

// Latency is the smoothed time to first byte in seconds and when the last
// sample came; ok is false before the first.
func (l *Live) Latency() (seconds float64, at telemetry.Instant, ok bool) {
	bits := l.hot.latency.Load()
	return math.Float64frombits(bits), telemetry.Instant(l.hot.outcomeAt.Load()), bits != 0
}

// touchStep is how precisely LastCandidate is kept. Candidates are touched by
// every decision, and a store that changes nothing of use would still take the
// cache line away from the other cores.
const touchStep = time.Second

// Touch records that the endpoint was a candidate, to the second. The
// collector's cadence follows from it.
func (l *Live) Touch(now telemetry.Instant) {
	if now.Sub(telemetry.Instant(l.hot.candidateAt.Load())) >= touchStep {
		l.hot.candidateAt.Store(int64(now))
	}
}

// LastCandidate and LastPicked are when the endpoint last was either.
func (l *Live) LastCandidate() telemetry.Instant { return telemetry.Instant(l.hot.candidateAt.Load()) }

// LastPicked is when a request was last sent here.
func (l *Live) LastPicked() telemetry.Instant { return telemetry.Instant(l.pickedAt.Load()) }

// OnWake installs what Wake calls. f must be cheap and must not block.
func (l *Live) OnWake(f func()) { l.onWake.Store(&f) }

// Wake asks whoever scrapes the endpoint to do it at once.
func (l *Live) Wake() {
	if f := l.onWake.Load(); f != nil {
		(*f)()
	}
}

// Gone is closed when the endpoint has left the pool.
func (l *Live) Gone() <-chan struct{} { return l.gone }

// BeginScrape marks the start of a scrape: units taken from here on cannot be
// on its page. The mark goes back into Publish.
func (l *Live) BeginScrape() (mark uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark++
	l.sinceEarlier += l.sinceMark
	l.sinceMark = 0
	return l.mark
}

// Publish makes s the newest readings, taken by the scrape that began with
// mark. Marks must be published in the order they were given.
func (l *Live) Publish(s *telemetry.Snapshot, mark uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mark == l.mark {
		l.sinceEarlier = 0
		l.published = mark
	}
	before, serving := l.snapshot.Load(), l.hot.served.Load()
	l.snapshot.Store(s)
	served := l.servedIn(s)
	moved := l.hot.takeOver(s, l.sinceEarlier+l.sinceMark, served)
	l.scrapeError.Store(nil)

	if served != serving || before == nil || answers(before, s, telemetry.ServedModels) {
		l.shared.serving.Add(1)
	}
	if !saysTheSame(before, s) {
		l.shared.stated.Add(1)
	}
	if moved {
		l.shared.eligibility.Add(1)
	}
}

// saysTheSame reports that two snapshots give an endpoint the same attributes, its
// served set apart. The first may be nil.
func saysTheSame(a, b *telemetry.Snapshot) bool {
	if a == nil || a.Engine != b.Engine {
		return false
	}
	limits := [...]*telemetry.Reading{&a.Readings[telemetry.ContextLimit], &b.Readings[telemetry.ContextLimit]}
	versions := [...]*telemetry.Reading{&a.Readings[telemetry.EngineVersion], &b.Readings[telemetry.EngineVersion]}
	if answers(a, b, telemetry.ContextLimit) || answers(a, b, telemetry.EngineVersion) {
		return false
	}
	return said(limits[0]) == said(limits[1]) && limits[0].Value == limits[1].Value &&
		said(versions[0]) == said(versions[1]) && textOf(versions[0]) == textOf(versions[1])
}

// answers reports that of two snapshots one tells of a field, if only that there is
// nothing to tell, and the other is of a time when nobody could.
func answers(a, b *telemetry.Snapshot, f telemetry.Field) bool {
	return a.Readings[f].Unread() != b.Readings[f].Unread()
}

func textOf(r *telemetry.Reading) string {
	if r.Detail == nil {
		return ""
	}
	return r.Detail.Text
}

// servedIn is the served set that a snapshot states, adapters among it; nil if
// it states none. Whatever its age it holds: a served set changes by restart,
// and then the endpoint's telemetry starts anew.
func (l *Live) servedIn(s *telemetry.Snapshot) *ServedSet {
	models, known := namesIn(s, telemetry.ServedModels)
	if !known {
		return nil
	}
	names := models
	if adapters, _ := namesIn(s, telemetry.AdaptersLoaded); len(adapters) > 0 {
		names = slices.Concat(models, adapters)
	}
	if now := l.hot.served.Load(); now != nil && slices.Equal(now.names, names) {
		return now
	}
	if names == nil {
		names = []string{}
	}
	return l.shared.served.of(names)
}

func namesIn(s *telemetry.Snapshot, f telemetry.Field) (names []string, known bool) {
	r := &s.Readings[f]
	if !said(r) || r.Detail == nil {
		return nil, false
	}
	return r.Detail.Names, true
}

// ScrapeFailed records why the last scrape yielded nothing. The snapshot stays
// as it was and ages.
func (l *Live) ScrapeFailed(reason string) { l.scrapeError.Store(&reason) }

// ScrapeError is why the last scrape failed; empty if it succeeded or none was
// made.
func (l *Live) ScrapeError() string {
	if p := l.scrapeError.Load(); p != nil {
		return *p
	}
	return ""
}

// Unit is one request in flight at one endpoint. It belongs to the stream that
// took it and is not safe for concurrent use.
type Unit struct {
	live *Live
	mark uint32
	// tried is the endpoint in quarantine that the request tries, try the number of
	// that; nil and 0 if it tries none.
	tried *Live
	try   uint64
}

// idleAfter is how long an endpoint goes without a pick before the next pick
// asks for a scrape: its page may be as old as the idle cadence.
const idleAfter = 2 * time.Second

// Take counts a request in. The unit must be released exactly once; Release
// makes sure that more than once does no harm.
func (l *Live) Take(now telemetry.Instant) Unit {
	before := telemetry.Instant(l.pickedAt.Swap(int64(now)))
	u := l.take()
	if u.try = l.beginTry(now); u.try != 0 {
		u.tried = l
	}
	if now.Sub(before) > idleAfter {
		l.Wake()
	}
	return u
}

func (l *Live) take() Unit {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinceMark++
	l.hot.inFlight.Add(1)
	l.hot.pending.Store(l.sinceEarlier + l.sinceMark)
	return Unit{live: l, mark: l.mark}
}

// Release counts the request out. Releasing again, or releasing the zero Unit,
// does nothing.
func (u *Unit) Release() {
	l := u.live
	if l == nil {
		return
	}
	u.live = nil
	u.EndTry()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case u.mark == l.mark:
		l.sinceMark--
	case u.mark >= l.published:
		l.sinceEarlier--
	}
	l.hot.inFlight.Add(-1)
	l.hot.pending.Store(l.sinceEarlier + l.sinceMark)
}

// EndTry lets another request try the endpoint, where this one does: the endpoint has
// begun to answer, and what it says may go on for minutes.
func (u *Unit) EndTry() {
	if u.tried != nil {
		u.tried.endTry(u.try)
		u.tried = nil
	}
}

// Move hands the unit over to the endpoint that really serves the request. A
// released unit stays released.
func (u *Unit) Move(to *Live) {
	if u.live == nil || u.live == to {
		return
	}
	next := to.take()
	u.Release()
	*u = next
}
