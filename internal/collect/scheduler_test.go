package collect

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// manySpecs are endpoints that nobody connects to.
func manySpecs(n int) []pool.Spec {
	specs := make([]pool.Spec, n)
	for i := range specs {
		specs[i] = pool.Spec{
			Name:    fmt.Sprintf("r%d", i),
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8000),
		}
	}
	return specs
}

// handScheduler is a scheduler without workers: the test takes the jobs.
func handScheduler(t *testing.T, clock *fakeClock, specs []pool.Spec) (*scheduler, *pool.Registry) {
	t.Helper()
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", specs); err != nil {
		t.Fatal(err)
	}
	opts := Options{Clock: clock.Now}.withDefaults()
	s := newScheduler(opts, newTable(nil))
	s.replace(registry.Set())
	return s, registry
}

func TestP3_EndpointsThatFailHoldAQuarterOfTheWorkersAtMost(t *testing.T) {
	clock := newFakeClock()
	s, _ := handScheduler(t, clock, manySpecs(40))
	slow := map[*target]bool{}
	for i, x := range s.due {
		x.scrapes = 1
		if i < 20 {
			x.failures, x.wasSlow = 1, i < 10
			slow[x] = true
		}
	}
	clock.Advance(time.Second)
	s.dispatch(t.Context())
	var running []*target
	held := 0
	take := func() {
		for len(s.jobs) > 0 {
			j := <-s.jobs
			running = append(running, j.target)
			if slow[j.target] {
				held++
			}
		}
	}
	take()
	if len(running) != 8 || held != 2 {
		t.Fatalf("%d workers at work, %d of them for endpoints that fail, want 8 and 2", len(running), held)
	}
	// Every good one ends, no failing one does: the good ones go on to the last.
	good := 0
	for len(running) > 0 {
		x := running[0]
		running = running[1:]
		if slow[x] {
			continue
		}
		good++
		s.finish(result{x, report{started: clock.Now(), interval: time.Second}})
		s.dispatch(t.Context())
		take()
	}
	if good != 20 || held != 2 {
		t.Errorf("%d good endpoints were scraped, and %d failing ones begun, want 20 and 2", good, held)
	}
}

// played is how the scrapes of one endpoint go in virtual time.
type played struct {
	takes  time.Duration
	reason string
}

// begun is a scrape of the endpoint with this index.
type begun struct {
	index       int
	start, stop telemetry.Instant
}

// play runs a scheduler and its workers in virtual time and returns the scrapes
// that ended, in the order of their ends. Endpoint i is one of how[i].
func play(t *testing.T, opts Options, interval, horizon time.Duration, how []played) []begun {
	t.Helper()
	clock := newFakeClock()
	opts.Clock = clock.Now
	opts = opts.withDefaults()
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", manySpecs(len(how))); err != nil {
		t.Fatal(err)
	}
	s := newScheduler(opts, newTable(nil))
	s.replace(registry.Set())
	index := map[*pool.Live]int{}
	for i, e := range registry.Set().Endpoints {
		// Each has answered, and not with a page.
		e.Answered()
		index[e.Live] = i
	}
	type work struct {
		begun
		target *target
	}
	var ended []begun
	var running []work
	for end := clock.Now().Add(horizon); clock.Now() < end; {
		s.dispatch(t.Context())
		for len(s.jobs) > 0 {
			j := <-s.jobs
			i := index[j.endpoint.Live]
			running = append(running, work{begun{i, clock.Now(), clock.Now().Add(how[i].takes)}, j.target})
		}
		if len(running) > opts.Workers {
			t.Fatalf("%d scrapes at once, want at most %d", len(running), opts.Workers)
		}
		next := end
		if len(s.due) > 0 {
			next = min(next, s.due[0].at)
		}
		for _, w := range running {
			next = min(next, w.stop)
		}
		clock.Advance(max(0, next.Sub(clock.Now())))
		running = slices.DeleteFunc(running, func(w work) bool {
			if w.stop > clock.Now() {
				return false
			}
			how := how[w.index]
			s.finish(result{w.target, report{started: w.start, interval: interval, reason: how.reason, reached: true}})
			ended = append(ended, w.begun)
			return true
		})
	}
	return ended
}

// oldest is the highest age that what an endpoint said ever had.
func oldest(t *testing.T, scrapes []begun, index int) (age time.Duration) {
	t.Helper()
	var last telemetry.Instant
	for _, s := range scrapes {
		if s.index != index {
			continue
		}
		if last != 0 {
			age = max(age, s.stop.Sub(last))
		}
		last = s.start
	}
	if age == 0 {
		t.Errorf("endpoint %d was not scraped twice", index)
	}
	return age
}

func several(n int, how played) []played {
	list := make([]played, n)
	for i := range list {
		list[i] = how
	}
	return list
}

func TestP3_GoodEndpointsAreNeverOlderThanTwoIntervals(t *testing.T) {
	const timeout = time.Second
	good := played{5 * time.Millisecond, ""}
	hole, drip := played{timeout, "timeout"}, played{timeout, "timeout"}
	cases := []struct {
		name     string
		interval time.Duration
		bad      []played
	}{
		{"15 black holes and 5 that answer a byte a second, hot", 200 * time.Millisecond, append(several(15, hole), several(5, drip)...)},
		{"the same, warm", time.Second, append(several(15, hole), several(5, drip)...)},
		{"200 black holes", time.Second, several(200, hole)},
		{"200 that refuse", time.Second, several(200, played{time.Millisecond, "refused"})},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			// The bad ones come first.
			scrapes := play(t, Options{Timeout: timeout}, c.interval, 60*time.Second, append(slices.Clone(c.bad), several(50, good)...))
			tried := map[int]bool{}
			for _, s := range scrapes {
				tried[s.index] = true
			}
			for i := range 50 {
				if got := oldest(t, scrapes, len(c.bad)+i); got > 2*c.interval {
					t.Fatalf("good endpoint %d was %v old, want at most %v", i, got, 2*c.interval)
				}
			}
			if len(tried) != 50+len(c.bad) {
				t.Errorf("%d endpoints were tried, want all of %d", len(tried), 50+len(c.bad))
			}
		})
	}
}

func TestM12_AnEndpointWithAHugePageKeepsNobodyWaiting(t *testing.T) {
	how := append(several(1, played{400 * time.Millisecond, "too_large"}), several(20, played{5 * time.Millisecond, ""})...)
	scrapes := play(t, Options{}, time.Second, time.Minute, how)
	for i := range 20 {
		if got := oldest(t, scrapes, 1+i); got > 2*time.Second {
			t.Errorf("good endpoint %d was %v old, want at most 2s", i, got)
		}
	}
}

func TestM17_AnEndpointWhosePageFailsIsAskedLessAndLess(t *testing.T) {
	scrapes := play(t, Options{}, time.Second, 10*time.Minute, several(1, played{time.Millisecond, "status_500"}))
	late := 0
	for _, s := range scrapes {
		if s.start.Sub(scrapes[0].start) >= time.Minute {
			late++
		}
	}
	// Nine minutes, at a pause of 9 to 10 s.
	if late < 53 || late > 60 {
		t.Errorf("asked %d times in nine minutes, want about 57", late)
	}
}

func TestM23_APageThatTakesThreeSecondsIsAskedForOnceInSix(t *testing.T) {
	for _, reason := range []string{"", "timeout"} {
		scrapes := play(t, Options{Hot: 100 * time.Millisecond, Timeout: 5 * time.Second}, 100*time.Millisecond, 5*time.Minute,
			several(1, played{3 * time.Second, reason}))
		var last telemetry.Instant
		for _, s := range scrapes {
			if s.start < last {
				t.Fatalf("reason %q: a scrape began before the one before it had ended", reason)
			}
			last = s.stop
		}
		if rate := float64(len(scrapes)) / 300; rate > 0.34 || rate < 0.05 {
			t.Errorf("reason %q: %.3f requests per second, want at most 0.34", reason, rate)
		}
	}
}

func TestWithOneWorkerGoodEndpointsTakeTurnsWithBadOnes(t *testing.T) {
	how := append(several(30, played{time.Second, "timeout"}), several(5, played{time.Millisecond, ""})...)
	scrapes := play(t, Options{Workers: 1}, time.Second, 10*time.Minute, how)
	good := 0
	for _, s := range scrapes {
		if s.index >= 30 {
			good++
		}
	}
	if bad := len(scrapes) - good; good < bad*9/10 || bad == 0 {
		t.Errorf("%d scrapes of good endpoints and %d of bad ones, want about as many", good, bad)
	}
}

func TestFiveThousandEndpointsAreSpreadAndForgotten(t *testing.T) {
	clock := newFakeClock()
	s, registry := handScheduler(t, clock, manySpecs(5000))
	if len(s.due) != 5000 {
		t.Fatalf("%d are due some time, want 5000", len(s.due))
	}
	early := 0
	for _, x := range s.due {
		if x.at.Sub(clock.Now()) < s.opts.Hot/2 {
			early++
		}
	}
	if early < 2250 || early > 2750 {
		t.Errorf("%d of 5000 are due in the first half of the spread", early)
	}
	clock.Advance(s.opts.Hot)
	s.dispatch(t.Context())
	if err := registry.Update("test/pool", manySpecs(10)); err != nil {
		t.Fatal(err)
	}
	s.replace(registry.Set())
	for len(s.jobs) > 0 {
		j := <-s.jobs
		s.finish(result{j.target, report{started: clock.Now()}})
	}
	if len(s.targets) != 10 {
		t.Errorf("%d endpoints are left, want 10", len(s.targets))
	}
	begun := 0
	for s.dispatch(t.Context()); len(s.jobs) > 0; s.dispatch(t.Context()) {
		j := <-s.jobs
		if _, kept := s.targets[j.endpoint.Live]; !kept {
			t.Errorf("%s has left and is scraped", j.endpoint.Name)
		}
		s.finish(result{j.target, report{started: clock.Now(), interval: time.Second}})
		begun++
	}
	if begun > 10 || len(s.due) != 10 {
		t.Errorf("%d scrapes begun, %d endpoints due some time, want at most 10 and 10", begun, len(s.due))
	}
}

func TestASlowAnswerIsFollowedByAPauseAsLong(t *testing.T) {
	clock := newFakeClock()
	s, _ := handScheduler(t, clock, manySpecs(1))
	clock.Advance(time.Second)
	s.dispatch(t.Context())
	j := <-s.jobs
	started := clock.Now()
	clock.Advance(700 * time.Millisecond)
	s.finish(result{j.target, report{started: started, interval: 200 * time.Millisecond}})
	if got := s.due[0].at.Sub(clock.Now()); got != 700*time.Millisecond {
		t.Errorf("after an answer that took 700ms the next scrape comes after %v", got)
	}
}

func TestAWakeDuringAScrapeIsNotLost(t *testing.T) {
	clock := newFakeClock()
	s, _ := handScheduler(t, clock, manySpecs(1))
	clock.Advance(time.Second)
	s.dispatch(t.Context())
	j := <-s.jobs
	s.wake(j.target)
	// The worker chose its interval before the wake.
	s.finish(result{j.target, report{started: clock.Now(), interval: 5 * time.Second}})
	if got := s.due[0].at.Sub(clock.Now()); got > 200*time.Millisecond {
		t.Errorf("the next scrape comes after %v, want the hot cadence", got)
	}
}

func TestAQueueThatNeverRunsEmptyDoesNotGrow(t *testing.T) {
	q := &queue{}
	var first *target
	for i := range 10000 {
		x := &target{}
		if i == 0 {
			first = x
		}
		q.push(x)
		if i >= 10 {
			if got := q.pop(); i == 10 && got != first {
				t.Fatal("not first in, first out")
			}
		}
	}
	if len(q.targets) > 200 {
		t.Errorf("a queue of 10 holds %d places", len(q.targets))
	}
}

// A part of the fleet that answers late, though it answers, does not make the
// rest old.
func TestP3_EndpointsThatAnswerLateDoNotStallTheRest(t *testing.T) {
	const timeout, interval = time.Second, 200 * time.Millisecond
	quick, late := several(20, played{takes: 5 * time.Millisecond}), several(40, played{takes: 900 * time.Millisecond})
	scrapes := play(t, Options{Timeout: timeout, Hot: interval}, interval, time.Minute, slices.Concat(quick, late))
	for i := range quick {
		if age := oldest(t, scrapes, i); age > 3*interval+timeout {
			t.Errorf("what quick endpoint %d said was %v old, want at most %v", i, age, 3*interval+timeout)
		}
	}
	for i := range late {
		oldest(t, scrapes, len(quick)+i)
	}
}

// Idle engines are asked at the idle cadence, however many they are, and go back to
// it when a load has passed.
func TestP1_IdleEndpointsAreAskedAtTheIdleCadence(t *testing.T) {
	const idle = 5 * time.Second
	scrapes := play(t, Options{Idle: idle}, idle, time.Minute, several(500, played{takes: 5 * time.Millisecond}))
	// Jitter shortens intervals by a tenth at most.
	if most := 500 * (int(time.Minute/(idle-idle/10)) + 1); len(scrapes) > most || len(scrapes) < most*2/3 {
		t.Errorf("%d scrapes of 500 idle endpoints in a minute, want at most %d", len(scrapes), most)
	}
}
