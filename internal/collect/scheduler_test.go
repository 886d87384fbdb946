package collect

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/pool"
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
	s := newScheduler(Options{Clock: clock.Now}.withDefaults(), newClient(time.Second))
	s.replace(registry.Set())
	return s, registry
}

func TestP3_SlowEndpointsHoldAQuarterOfTheWorkersAtMost(t *testing.T) {
	clock := newFakeClock()
	s, _ := handScheduler(t, clock, manySpecs(40))
	slow := map[*target]bool{}
	for _, x := range s.due[:20] {
		x.wasSlow, x.failures = true, 1
		slow[x] = true
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
		t.Fatalf("%d workers at work, %d of them for slow endpoints, want 8 and 2", len(running), held)
	}
	// Every good one ends, no slow one does: the good ones go on to the last.
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
		t.Errorf("%d good endpoints were scraped, and %d slow ones begun, want 20 and 2", good, held)
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
	s.finish(result{j.target, report{started: started, took: 700 * time.Millisecond, interval: 200 * time.Millisecond}})
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
