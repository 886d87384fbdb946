package screen

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// TestConcurrentScreeningIsOfAStateThatThePoolHad screens by one index while members,
// pages and quarantines change. What discovery states must be that of the set that
// was screened; what an engine says must be one of the two things that it says in
// turns. When all is quiet the index must have heard of everything.
func TestConcurrentScreeningIsOfAStateThatThePoolHad(t *testing.T) {
	const rounds, requests, publications = 25, 25, 60
	r := newSource(7)
	for range rounds {
		n := 5 + r.IntN(10)
		if r.in(8) {
			n = 70
		}
		subjects := make([]subject, n)
		for i := range subjects {
			subjects[i] = r.subject(i, now)
			subjects[i].said.scraped, subjects[i].away = true, away{}
		}
		registry, x := pool.NewRegistry(poolName, false), NewIndex()
		update(t, registry, subjects)
		for i, e := range registry.Set().Endpoints {
			subjects[i].apply(e)
		}
		// The second word of an engine differs from the first in a few things.
		otherwise := slices.Clone(subjects)
		for i := range otherwise {
			for range r.IntN(4) {
				r.reword(&otherwise[i].said, now)
			}
		}
		demands := make([]demand, 6)
		for i := range demands {
			demands[i] = r.demand(subjects)
			demands[i].hasSubset = false
			demands[i].requirements = append(demands[i].requirements, r.requirement())
		}
		// Discovery says now this and now that, and each set remembers which.
		edited := shuffled(r, subjects)
		for i := range edited {
			r.declare(&edited[i])
		}
		variant := map[uint64][]subject{registry.Set().Generation: subjects}
		var mu sync.Mutex

		var background, foreground sync.WaitGroup
		var last [2]atomic.Bool // for each half of the endpoints: whether they say the other thing
		for half := range last {
			background.Add(1)
			go func() {
				defer background.Done()
				for i := range publications {
					other := i%2 == 0
					for _, e := range registry.Set().Endpoints {
						at := slices.IndexFunc(subjects, func(s subject) bool { return s.name == e.Name })
						if at%2 != half {
							continue
						}
						words := &subjects[at].said
						if other {
							words = &otherwise[at].said
						}
						e.Publish(words.page(), e.BeginScrape())
					}
					last[half].Store(other)
				}
			}()
		}
		background.Add(1)
		go func() {
			defer background.Done()
			for i := range publications / 4 {
				list := subjects
				if i%2 == 0 {
					list = edited
				}
				specs := make([]pool.Spec, len(list))
				for i := range list {
					specs[i] = list[i].spec()
				}
				mu.Lock()
				if err := registry.Update(poolName, specs); err != nil {
					t.Error(err)
				}
				variant[registry.Set().Generation] = list
				mu.Unlock()
			}
		}()
		for g := range 3 {
			foreground.Add(1)
			go func() {
				defer foreground.Done()
				var res Result
				for i := range requests {
					d := &demands[(i+g)%len(demands)]
					set := registry.Set()
					x.Screen(set, d.request(), d.rules, now, &res)
					mu.Lock()
					list := variant[set.Generation]
					mu.Unlock()
					explainable(t, set, list, subjects, otherwise, d, &res)
				}
			}()
		}
		foreground.Wait()
		background.Wait()

		set := registry.Set()
		settled := slices.Clone(variant[set.Generation])
		for i := range settled {
			at := slices.IndexFunc(subjects, func(s subject) bool { return s.name == settled[i].name })
			settled[i].said = subjects[at].said
			if last[at%2].Load() {
				settled[i].said = otherwise[at].said
			}
		}
		for i := range demands {
			var res Result
			compare(t, x, set, settled, &demands[i], now, &res)
		}
		if t.Failed() {
			return
		}
	}
}

// explainable holds each endpoint's fate against what an endpoint may come to that says
// one of two things, or something of both from one constraint to the next. At the stage
// of the model each name is a constraint of its own, of which one must be met: between
// a page that has one of them and a page that has another, an endpoint may be seen to
// have neither.
func explainable(t *testing.T, set *pool.Set, list, one, two []subject, d *demand, res *Result) {
	for slot, e := range set.Endpoints {
		at := slices.IndexFunc(one, func(s subject) bool { return s.name == e.Name })
		s := list[slot]
		passes := func(stage Class) (always, ever bool) {
			s.said = one[at].said
			a := s.passes(stage, d)
			s.said = two[at].said
			b := s.passes(stage, d)
			return a && b, a || b
		}
		fate := res.Fate(slot)
		for stage := ByServedModel; stage <= ByHealth; stage++ {
			always, ever := passes(stage)
			switch {
			case stage < fate && fate != Kept && !ever, stage == fate && always && stage != ByServedModel, fate == Kept && !ever:
				t.Errorf("%s ended as %s; its stage %s passes always %v, ever %v\nfor %+v", e.Name, fate, stage, always, ever, *d)
				return
			}
		}
	}
}

// passes reports whether a subject gets through one stage by itself.
func (s *subject) passes(stage Class, d *demand) bool {
	alone := demand{rules: d.rules}
	switch stage {
	case ByServedModel:
		alone.models, alone.trusted = d.models, d.trusted
	case ByContext:
		alone.context = d.context
	case ByHealth:
		return !s.excluded(now)
	default:
		return len(s.unmet(d.requirements, stage.String())) == 0
	}
	healthy := *s
	healthy.ready, healthy.terminating = true, false
	healthy.said.asleep, healthy.said.healthy, healthy.said.ready = yesNo{}, yesNo{}, yesNo{}
	return len(naively([]subject{healthy}, &alone, now).left) == 1
}

// TestPagesAndQuarantinesUnderLoadAreAllHeardOf lets the health of endpoints flap under
// many eyes. An index that looked in the middle of a change must look again.
func TestPagesAndQuarantinesUnderLoadAreAllHeardOf(t *testing.T) {
	const rounds = 150
	asleep := word{scraped: true, asleep: yesNo{yes: true, state: telemetry.Fresh, expires: valid}}
	registry, x := pool.NewRegistry(poolName, false), NewIndex()
	update(t, registry, []subject{{name: "it", address: "10.0.0.1:8000", ready: true}, other()})
	set := registry.Set()
	e := set.Endpoints[0]
	rules := pool.QuarantineRules{Failures: 1, ProbeAfter: 10}
	for round := range rounds {
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Add(1)
			go func() {
				defer readers.Done()
				var res Result
				for {
					select {
					case <-stop:
						return
					default:
						x.Screen(set, &Request{}, Rules{QuarantineShare: 1}, now, &res)
					}
				}
			}()
		}
		for i := range 20 {
			switch (round + i) % 4 {
			case 0:
				e.Publish(asleep.page(), e.BeginScrape())
			case 1:
				e.Publish((&word{}).page(), e.BeginScrape())
			case 2:
				e.Failed(now, rules)
			case 3:
				e.Succeeded()
			}
			want := !e.Excluded(now) && !e.Quarantine(now).In
			var res Result
			x.Screen(set, &Request{}, Rules{QuarantineShare: 1}, now, &res)
			if got := res.Members().Contains(0); got != want {
				t.Errorf("round %d, step %d: left %v, want %v", round, i, got, want)
			}
		}
		close(stop)
		readers.Wait()
		if t.Failed() {
			return
		}
	}
}
