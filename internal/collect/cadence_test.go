package collect

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

const now = telemetry.Instant(1000 * time.Second)

func newLive(t *testing.T) *pool.Live {
	t.Helper()
	r := pool.NewRegistry("test/pool", false)
	if err := r.Update("test/pool", []pool.Spec{{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	return r.Set().Endpoints[0].Live
}

func TestTheCadenceFollowsWhatHappensAtAnEndpoint(t *testing.T) {
	engineSays := func(f telemetry.Field, v float64, state telemetry.State) *telemetry.Snapshot {
		s := &telemetry.Snapshot{}
		s.Readings[f] = telemetry.Reading{Value: v, Recorded: state}
		return s
	}
	take := func(ago time.Duration, release bool) func(*pool.Live) {
		return func(l *pool.Live) {
			u := l.Take(now.Add(-ago))
			if release {
				u.Release()
			}
		}
	}
	touch := func(ago time.Duration) func(*pool.Live) {
		return func(l *pool.Live) { l.Touch(now.Add(-ago)) }
	}
	nothing := func(*pool.Live) {}
	cases := []struct {
		name     string
		happens  func(*pool.Live)
		snapshot *telemetry.Snapshot
		want     time.Duration
	}{
		{"nothing", nothing, nil, 5 * time.Second},
		{"a request in flight for an hour", take(time.Hour, false), nil, 200 * time.Millisecond},
		{"picked just below two seconds ago", take(1999*time.Millisecond, true), nil, 200 * time.Millisecond},
		{"picked two seconds ago", take(2*time.Second, true), nil, 5 * time.Second},
		{"a candidate just below thirty seconds ago", touch(29999 * time.Millisecond), nil, time.Second},
		{"a candidate thirty seconds ago", touch(30 * time.Second), nil, 5 * time.Second},
		{"the engine runs requests", nothing, engineSays(telemetry.ActiveRequests, 1, telemetry.Fresh), 200 * time.Millisecond},
		{"the engine queues requests", nothing, engineSays(telemetry.QueueDepth, 1, telemetry.Fresh), 200 * time.Millisecond},
		{"the engine is idle", nothing, engineSays(telemetry.ActiveRequests, 0, telemetry.Fresh), 5 * time.Second},
		{"the engine talks nonsense", nothing, engineSays(telemetry.ActiveRequests, 9, telemetry.Invalid), 5 * time.Second},
	}
	opts := Options{}.withDefaults()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			live := newLive(t)
			c.happens(live)
			if got := opts.interval(live, c.snapshot, now); got != c.want {
				t.Errorf("interval %v, want %v", got, c.want)
			}
		})
	}
}

func TestThePauseAfterFailures(t *testing.T) {
	cases := []struct {
		name     string
		failures int
		reached  bool
		prepare  func(*pool.Live)
		want     time.Duration
	}{
		{"first", 1, true, (*pool.Live).Answered, 400 * time.Millisecond},
		{"third", 3, true, (*pool.Live).Answered, 1600 * time.Millisecond},
		{"sixth, at the bound", 6, true, (*pool.Live).Answered, 10 * time.Second},
		{"thousandth", 1000, true, (*pool.Live).Answered, 10 * time.Second},
		{"a bad page keeps to the bound with requests in flight", 1000, true, func(l *pool.Live) { l.Answered(); l.Take(now) }, 10 * time.Second},
		{"a bad page of a candidate, too", 1000, true, func(l *pool.Live) { l.Answered(); l.Touch(now) }, 10 * time.Second},
		{"unreachable and idle", 1000, false, func(*pool.Live) {}, 10 * time.Second},
		{"unreachable and a candidate", 1000, false, func(l *pool.Live) { l.Touch(now) }, time.Second},
		{"unreachable, a candidate, first", 1, false, func(l *pool.Live) { l.Touch(now) }, 400 * time.Millisecond},
		{"unreachable with a request in flight", 1000, false, func(l *pool.Live) { l.Take(now.Add(-time.Hour)) }, 200 * time.Millisecond},
		{"a bad page, then a request was refused", 1000, true, func(l *pool.Live) { l.Answered(); l.Touch(now); l.Refused() }, time.Second},
	}
	opts := Options{}.withDefaults()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			live := newLive(t)
			c.prepare(live)
			if got := opts.pause(live, c.failures, c.reached, now); got != c.want {
				t.Errorf("pause %v, want %v", got, c.want)
			}
		})
	}
}

func TestAnEngineRestsAsLongAsItsPagesTake(t *testing.T) {
	o := Options{Timeout: time.Second}
	for _, c := range []struct{ interval, took, want time.Duration }{
		{200 * time.Millisecond, 0, 200 * time.Millisecond},
		{200 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond},
		{200 * time.Millisecond, 700 * time.Millisecond, 1400 * time.Millisecond},
		{5 * time.Second, time.Second, 5 * time.Second},
		{200 * time.Millisecond, 4 * time.Second, 8 * time.Second},
		// This process was stopped for an hour: no engine takes that long.
		{200 * time.Millisecond, time.Hour, 8 * time.Second},
	} {
		if got := o.kept(c.interval, c.took); got != c.want {
			t.Errorf("interval %v, pages of %v: %v, want %v", c.interval, c.took, got, c.want)
		}
	}
}

func TestJitterShortensByATenthAtMostAndSpreads(t *testing.T) {
	var lowest, highest time.Duration = time.Hour, 0
	for hash := range uint64(1000) {
		got := jitter(time.Second, hash*7919, 3)
		if got <= 900*time.Millisecond || got > time.Second {
			t.Fatalf("jitter of one second is %v", got)
		}
		if got != jitter(time.Second, hash*7919, 3) {
			t.Fatal("the same scrape has two jitters")
		}
		lowest, highest = min(lowest, got), max(highest, got)
	}
	if highest-lowest < 90*time.Millisecond {
		t.Errorf("a thousand endpoints spread over %v, want nearly 100ms", highest-lowest)
	}
}
