package pool

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestOrderOfAnEndpointFollowsItsLastAnswer(t *testing.T) {
	answered, refused := (*Live).Answered, (*Live).Refused
	page := func(l *Live) { l.Publish(&telemetry.Snapshot{}, l.BeginScrape()) }
	failed := func(l *Live) { l.ScrapeFailed("timeout") }
	for _, tc := range []struct {
		name          string
		telemetryNone bool
		events        []func(*Live)
		last          bool
	}{
		{"before the first answer", false, nil, true},
		{"after an answer", false, []func(*Live){answered}, false},
		{"after a refusal", false, []func(*Live){refused}, true},
		{"after an answer and a refusal", false, []func(*Live){answered, refused}, true},
		{"after a refusal and an answer", false, []func(*Live){answered, refused, answered}, false},
		{"a page alone is no answer", false, []func(*Live){page}, true},
		{"a failed scrape alone is no refusal", false, []func(*Live){answered, failed}, false},
		{"with telemetry none, from the start", true, nil, false},
		{"with telemetry none, after a refusal", true, []func(*Live){refused}, true},
		{"with telemetry none, served again", true, []func(*Live){refused, answered}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewRegistry("default/pool", tc.telemetryNone)
			if err := r.Update("default/pool", []Spec{spec("a", "", "10.0.0.1:8000")}); err != nil {
				t.Fatal(err)
			}
			live := r.Set().Endpoints[0].Live
			for _, event := range tc.events {
				event(live)
			}
			if got := live.OrderedLast(); got != tc.last {
				t.Errorf("OrderedLast = %v, want %v", got, tc.last)
			}
		})
	}
}

func TestPendingIsWhatThePageCannotHaveCounted(t *testing.T) {
	l := newLive(false, &shared{})
	check := func(when string, inFlight, pending int32) {
		t.Helper()
		if l.InFlight() != inFlight || l.Pending() != pending {
			t.Fatalf("%s: %d in flight, %d pending; want %d and %d", when, l.InFlight(), l.Pending(), inFlight, pending)
		}
	}
	page := &telemetry.Snapshot{}
	a, b := l.Take(now), l.Take(now)
	check("two picks before any scrape", 2, 2)
	mark := l.BeginScrape()
	check("a scrape that began changes nothing", 2, 2)
	c := l.Take(now)
	check("a pick while the page is on its way", 3, 3)
	l.Publish(page, mark)
	check("the page counts what was there when it was asked for", 3, 1)
	if l.Snapshot() != page {
		t.Fatal("the page is not the newest snapshot")
	}
	a.Release()
	check("a counted request ends", 2, 1)
	l.BeginScrape()
	d := l.Take(now)
	check("a second scrape begins", 3, 2)
	l.ScrapeFailed("timeout")
	check("and fails: nothing more was counted", 3, 2)
	if l.Snapshot() != page || l.ScrapeError() != "timeout" {
		t.Fatalf("after a failed scrape: same snapshot %v, error %q", l.Snapshot() == page, l.ScrapeError())
	}
	mark = l.BeginScrape()
	c.Release()
	check("a pending request of before the scrape ends while the page is on its way", 2, 1)
	l.Publish(page, mark)
	check("and is not taken off twice", 2, 0)
	if l.ScrapeError() != "" {
		t.Fatalf("after a page: scrape error %q", l.ScrapeError())
	}
	d.Release()
	d.Release()
	check("released twice, counted once", 1, 0)
	b.Release()
	check("all ended", 0, 0)
	var none Unit
	none.Release()
	check("the zero unit is nobody's", 0, 0)
}

// A page whose scrape was overtaken by the beginning of the next one leaves
// pending as it was: a pick may be counted twice until the next page, and is
// never lost.
func TestAnOvertakenPageNeverHidesAPick(t *testing.T) {
	l := newLive(false, &shared{})
	a := l.Take(now)
	first := l.BeginScrape()
	b := l.Take(now)
	second := l.BeginScrape()
	l.Publish(&telemetry.Snapshot{}, first)
	if got := l.Pending(); got < 1 || got > 2 {
		t.Errorf("pending after the first page: %d, want 1 (b) or 2", got)
	}
	l.Publish(&telemetry.Snapshot{}, second)
	if got := l.Pending(); got != 0 {
		t.Errorf("pending after the second page: %d, want 0", got)
	}
	a.Release()
	b.Release()
	if l.InFlight() != 0 || l.Pending() != 0 {
		t.Errorf("at the end %d in flight, %d pending", l.InFlight(), l.Pending())
	}
}

func TestMovingAUnit(t *testing.T) {
	from, to := newLive(false, &shared{}), newLive(false, &shared{})
	u := from.Take(now)
	to.Publish(&telemetry.Snapshot{}, to.BeginScrape())
	u.Move(to)
	if from.InFlight() != 0 || from.Pending() != 0 || to.InFlight() != 1 || to.Pending() != 1 {
		t.Errorf("moved: %d/%d at the first, %d/%d at the second; want 0/0 and 1/1",
			from.InFlight(), from.Pending(), to.InFlight(), to.Pending())
	}
	u.Move(to)
	if to.InFlight() != 1 {
		t.Errorf("moved to where it is: %d in flight, want 1", to.InFlight())
	}
	u.Release()
	u.Move(from)
	if from.InFlight() != 0 || to.InFlight() != 0 {
		t.Errorf("a released unit came back: %d and %d in flight", from.InFlight(), to.InFlight())
	}
}

func TestThePickOnAnIdleEndpointAsksForAScrape(t *testing.T) {
	l := newLive(false, &shared{})
	wakes := 0
	l.Take(now) // nobody listens yet
	l.OnWake(func() { wakes++ })
	for _, tc := range []struct {
		name  string
		after time.Duration
		wakes int
	}{
		{"at once after another pick", 0, 0},
		{"two seconds after it", 2 * time.Second, 0},
		{"more than two seconds after it", 2*time.Second + 1, 1},
		{"and again at once", time.Millisecond, 1},
		{"after a minute", time.Minute, 2},
	} {
		at := l.LastPicked().Add(tc.after)
		l.Take(at)
		if wakes != tc.wakes {
			t.Errorf("%s: woken %d times, want %d", tc.name, wakes, tc.wakes)
		}
		if l.LastPicked() != at {
			t.Errorf("%s: last picked at %d, want %d", tc.name, l.LastPicked(), at)
		}
	}
	l.Refused()
	if wakes != 3 {
		t.Errorf("a refusal: woken %d times, want 3", wakes)
	}
}

func TestTheFirstPickEverAsksForAScrape(t *testing.T) {
	l := newLive(false, &shared{})
	wakes := 0
	l.OnWake(func() { wakes++ })
	l.Take(now)
	if wakes != 1 {
		t.Errorf("woken %d times, want once", wakes)
	}
}

func TestCandidatesAreTouchedToTheSecond(t *testing.T) {
	l := newLive(false, &shared{})
	for _, tc := range []struct{ at, want telemetry.Instant }{
		{now, now},
		{now + 1, now},
		{now.Add(time.Second) - 1, now},
		{now.Add(time.Second), now.Add(time.Second)},
		{now, now.Add(time.Second)},
	} {
		l.Touch(tc.at)
		if got := l.LastCandidate(); got != tc.want {
			t.Errorf("touched at %d: last candidate at %d, want %d", tc.at, got, tc.want)
		}
	}
}

func TestLatencyIsSmoothedOverRequests(t *testing.T) {
	l := newLive(false, &shared{})
	if _, _, ok := l.Latency(); ok {
		t.Fatal("a latency before the first request")
	}
	for i, tc := range []struct {
		ttfb time.Duration
		want float64
	}{
		{800 * time.Millisecond, 0.8},
		{1600 * time.Millisecond, 0.9},      // 0.8 + 0.8/8
		{900 * time.Millisecond, 0.9},       // as before
		{8100 * time.Millisecond, 1.8},      // 0.9 + 7.2/8
		{200 * time.Millisecond, 1.8 - 0.2}, // 1.8 - 1.6/8
		{0, 1.4},                            // 1.6 - 1.6/8, all but a nanosecond
		{1400 * time.Millisecond, 1.4},      // as before
	} {
		at := now.Add(time.Duration(i))
		l.Observe(tc.ttfb, at)
		got, when, ok := l.Latency()
		if !ok || math.Abs(got-tc.want) > 1e-9 || when != at {
			t.Errorf("after sample %d: %v s at %d, %v; want %v s at %d", i, got, when, ok, tc.want, at)
		}
	}
}

func TestARequestOnAClockThatDidNotMoveIsStillARequest(t *testing.T) {
	for _, ttfb := range []time.Duration{0, -time.Second} {
		l := newLive(false, &shared{})
		l.Observe(ttfb, now)
		seconds, at, ok := l.Latency()
		if !ok || at != now || seconds < 0 || seconds > 1e-6 {
			t.Errorf("after a time to first byte of %v: %v s at %d, %v; want hardly anything at %d, true", ttfb, seconds, at, ok, now)
		}
	}
}

func TestConcurrentSamplesAreAllCounted(t *testing.T) {
	l := newLive(false, &shared{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				l.Observe(time.Second, now)
			}
		})
	}
	wg.Wait()
	if seconds, _, ok := l.Latency(); !ok || seconds != 1 {
		t.Errorf("after 800 samples of 1 s: %v, %v", seconds, ok)
	}
}
