package pool

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Three failures in a row, then ten nanoseconds away.
var breaker = QuarantineRules{Failures: 3, ProbeAfter: 10}

// patient is an endpoint in a script of events, at times in nanoseconds.
type patient struct {
	t     *testing.T
	live  *Live
	other *Live
	unit  map[string]*Unit
}

func newPatient(t *testing.T) *patient {
	all := &shared{}
	return &patient{t, newLive(false, all), newLive(false, all), map[string]*Unit{}}
}

// event is one thing that happens, and what the endpoint answers to it.
type event struct {
	at   telemetry.Instant
	what string // failed, succeeded, take, begin, release, move, back NAME; empty: time goes by
	says bool   // of failed and succeeded
	want Quarantine
}

func (p *patient) play(e event) {
	p.t.Helper()
	verb, name, _ := strings.Cut(e.what, " ")
	before, was := p.live.shared.eligibility.Load(), p.live.Quarantine(e.at)
	says := false
	switch verb {
	case "failed":
		says = p.live.Failed(e.at, breaker)
	case "succeeded":
		says = p.live.Succeeded()
	case "take":
		u := p.live.Take(e.at)
		p.unit[name] = &u
	case "begin": // of the answer
		p.unit[name].EndTry()
	case "release":
		p.unit[name].Release()
	case "move":
		p.unit[name].Move(p.other)
	case "back":
		p.unit[name].Move(p.live)
	}
	is := p.live.Quarantine(e.at)
	if says != e.says {
		p.t.Errorf("at %d %s says %v, want %v", e.at, e.what, says, e.says)
	}
	if is != e.want {
		p.t.Errorf("at %d after %q: %+v, want %+v", e.at, e.what, is, e.want)
	}
	if is != was && p.live.shared.eligibility.Load() == before {
		p.t.Errorf("at %d %q turned %+v into %+v, and is not counted", e.at, e.what, was, is)
	}
}

func TestQuarantineStepByStep(t *testing.T) {
	var (
		out      = Quarantine{}
		away     = Quarantine{In: true, Since: 103, Until: 113}
		halfOpen = Quarantine{Since: 103}
		tried    = Quarantine{In: true, Since: 103, Until: 123}
	)
	put := []event{{101, "failed", false, out}, {102, "failed", false, out}, {103, "failed", true, away}}
	for _, tc := range []struct {
		name   string
		events []event
	}{
		{"as many failures as allowed", []event{{101, "failed", false, out}, {102, "failed", false, out}}},
		{"failures that follow each other", put},
		{"a success in between", []event{
			{101, "failed", false, out}, {102, "failed", false, out}, {103, "succeeded", false, out},
			{104, "failed", false, out}, {105, "failed", false, out},
			{106, "failed", true, Quarantine{In: true, Since: 106, Until: 116}},
		}},
		{"successes alone", []event{{101, "succeeded", false, out}, {102, "succeeded", false, out}}},
		{"a failure of an older request while away", append(put[:3:3],
			event{104, "failed", false, away}, event{112, "failed", false, away}, event{112, "", false, away}, event{113, "", false, halfOpen})},
		{"a success of an older request while away", append(put[:3:3],
			event{104, "succeeded", true, out}, event{105, "failed", false, out}, event{106, "failed", false, out},
			event{107, "failed", true, Quarantine{In: true, Since: 107, Until: 117}})},
		{"a request while away tries nothing", append(put[:3:3],
			event{112, "take a", false, away}, event{113, "", false, halfOpen}, event{113, "release a", false, halfOpen})},
		{"a try that succeeds", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "succeeded", true, out}, event{114, "release a", false, out},
			event{115, "failed", false, out})},
		{"a try that fails", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "failed", false, Quarantine{In: true, Since: 114, Until: 124}},
			event{114, "release a", false, Quarantine{In: true, Since: 114, Until: 124}},
			event{124, "take b", false, Quarantine{In: true, Since: 114, Until: 134}})},
		{"a try that shows nothing", append(put[:3:3],
			event{113, "take a", false, tried}, event{122, "", false, tried}, event{122, "release a", false, halfOpen},
			event{122, "take b", false, Quarantine{In: true, Since: 103, Until: 132}})},
		{"a try that takes too long", append(put[:3:3],
			event{113, "take a", false, tried}, event{122, "take b", false, tried}, event{123, "", false, halfOpen},
			event{124, "take c", false, Quarantine{In: true, Since: 103, Until: 134}},
			event{125, "release a", false, Quarantine{In: true, Since: 103, Until: 134}},
			event{126, "begin a", false, Quarantine{In: true, Since: 103, Until: 134}},
			event{127, "release c", false, halfOpen})},
		{"a try whose answer has begun", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "begin a", false, halfOpen},
			event{115, "take b", false, Quarantine{In: true, Since: 103, Until: 125}},
			event{116, "release a", false, Quarantine{In: true, Since: 103, Until: 125}},
			event{117, "succeeded", true, out}, event{118, "begin b", false, out})},
		{"one request at a time tries", append(put[:3:3],
			event{113, "take a", false, tried}, event{113, "take b", false, tried}, event{114, "release b", false, tried},
			event{115, "release a", false, halfOpen})},
		{"a try released twice", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "release a", false, halfOpen}, event{115, "take b", false, Quarantine{In: true, Since: 103, Until: 125}},
			event{116, "release a", false, Quarantine{In: true, Since: 103, Until: 125}})},
		{"a try that moves on", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "move a", false, halfOpen},
			event{115, "take b", false, Quarantine{In: true, Since: 103, Until: 125}},
			event{116, "release a", false, Quarantine{In: true, Since: 103, Until: 125}})},
		{"a try that moves on and back tries no longer", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "move a", false, halfOpen}, event{115, "back a", false, halfOpen},
			event{116, "succeeded", true, out}, event{117, "release a", false, out})},
		{"a request that moves here tries nothing", append(put[:3:3],
			event{104, "take a", false, away}, event{105, "move a", false, away}, event{113, "back a", false, halfOpen},
			event{114, "release a", false, halfOpen})},
		{"a failed try whose request lives on elsewhere, beside the next try", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "failed", false, Quarantine{In: true, Since: 114, Until: 124}},
			event{114, "move a", false, Quarantine{In: true, Since: 114, Until: 124}},
			event{124, "take b", false, Quarantine{In: true, Since: 114, Until: 134}},
			event{125, "release a", false, Quarantine{In: true, Since: 114, Until: 134}},
			event{126, "release b", false, Quarantine{Since: 114}})},
		{"a try of the last quarantine that ends in this one", append(put[:3:3],
			event{113, "take a", false, tried}, event{114, "succeeded", true, out},
			event{115, "failed", false, out}, event{116, "failed", false, out}, event{117, "failed", true, Quarantine{In: true, Since: 117, Until: 127}},
			event{127, "take b", false, Quarantine{In: true, Since: 117, Until: 137}},
			event{128, "release a", false, Quarantine{In: true, Since: 117, Until: 137}})},
		{"a failure of an older request while half open", append(put[:3:3],
			event{120, "failed", false, Quarantine{In: true, Since: 120, Until: 130}})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPatient(t)
			for _, e := range tc.events {
				p.play(e)
			}
		})
	}
}

func TestOneFailureIsEnoughWhereTheRulesSaySo(t *testing.T) {
	l := newLive(false, &shared{})
	rules := QuarantineRules{Failures: 1, ProbeAfter: 10}
	if !l.Failed(100, rules) || !l.Quarantine(109).In || l.Quarantine(110).In {
		t.Errorf("at 109 %+v, at 110 %+v", l.Quarantine(109), l.Quarantine(110))
	}
}

func TestQuarantineStaysWithTheIncarnation(t *testing.T) {
	r := registryOf(t, spec("a", "uid-1", "10.0.0.1:8000"))
	r.Set().Endpoints[0].Failed(now, QuarantineRules{Failures: 1, ProbeAfter: 10})
	edited := spec("a", "uid-1", "10.0.0.1:8000")
	edited.Zone = "z2"
	for _, step := range []struct {
		spec Spec
		in   bool
	}{{edited, true}, {spec("a", "uid-2", "10.0.0.1:8000"), false}} {
		if err := r.Update("default/pool", []Spec{step.spec}); err != nil {
			t.Fatal(err)
		}
		if in := r.Set().Endpoints[0].Quarantine(now).In; in != step.in {
			t.Errorf("%+v: in quarantine %v, want %v", step.spec, in, step.in)
		}
	}
}

// TestQuarantinesBegunAndEndedAddUp lets many requests fail and succeed at once. What
// the calls say must add up, and at most one request tries the endpoint at a time.
func TestQuarantinesBegunAndEndedAddUp(t *testing.T) {
	const rounds, workers, steps = 40, 4, 300
	for round := range rounds {
		l, other := newLive(false, &shared{}), newLive(false, &shared{})
		var clock, begun, ended atomic.Int64
		clock.Store(100)
		var work sync.WaitGroup
		for g := range workers {
			work.Add(1)
			go func() {
				defer work.Done()
				rng := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				for range steps {
					at := telemetry.Instant(clock.Add(rng.Int64N(4)))
					u := l.Take(at)
					switch rng.IntN(4) {
					case 0, 1:
						if l.Failed(at, breaker) {
							begun.Add(1)
						}
					case 2:
						if rng.IntN(3) == 0 && l.Succeeded() {
							ended.Add(1)
						}
					case 3:
						u.Move(other)
					}
					u.Release()
				}
			}()
		}
		work.Wait()
		open := int64(0)
		end := telemetry.Instant(clock.Load() + 1000)
		if l.Quarantine(end).Since != 0 {
			open = 1
		}
		if begun.Load()-ended.Load() != open {
			t.Fatalf("%d begun, %d ended, %d open", begun.Load(), ended.Load(), open)
		}
		if l.quarantine.try.Load() != 0 {
			t.Fatal("nobody is there, and yet a request tries it")
		}
		if begun.Load() == 0 {
			t.Fatal("nothing happened")
		}
		if l.InFlight() != 0 || other.InFlight() != 0 {
			t.Fatalf("%d and %d in flight, want none", l.InFlight(), other.InFlight())
		}
	}
}

// TestQuarantineOpensForOneOfManyAtOnce lets many requests come at the moment at which
// an endpoint may be tried.
func TestQuarantineOpensForOneOfManyAtOnce(t *testing.T) {
	for range 200 {
		l := newLive(false, &shared{})
		for range 3 {
			l.Failed(100, breaker)
		}
		const workers = 8
		units := make([]Unit, workers)
		var work sync.WaitGroup
		for i := range units {
			work.Add(1)
			go func() {
				defer work.Done()
				units[i] = l.Take(110)
			}()
		}
		work.Wait()
		tries := 0
		for i := range units {
			before := l.Quarantine(110).In
			units[i].Release()
			if before && !l.Quarantine(110).In {
				tries++
			}
		}
		if tries != 1 || l.Quarantine(110).In {
			t.Fatalf("%d requests tried it; in quarantine afterwards: %v", tries, l.Quarantine(110).In)
		}
	}
}

// An endpoint that is asleep by one page and unhealthy by the next is at no moment in
// between neither of them.
func TestAnExcludedEndpointIsExcludedThroughout(t *testing.T) {
	const pages = 100_000
	l := newLive(false, &shared{})
	page := func(f telemetry.Field, value float64) {
		s := &telemetry.Snapshot{}
		s.Readings[f] = telemetry.Reading{Value: value, Recorded: telemetry.Fresh, ExpiresAt: expires}
		l.Publish(s, l.BeginScrape())
	}
	page(telemetry.Sleeping, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range pages {
			page(telemetry.Health, 0)
			page(telemetry.Ready, 0)
			page(telemetry.Sleeping, 1)
		}
	}()
	readings, open := 0, 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		// Many at a time, so that they fall in between.
		for range 1000 {
			readings++
			if !l.Excluded(now) || l.ExcludedUntil() != expires {
				open++
			}
		}
	}
	if open > 0 {
		t.Errorf("%d of %d times it was not excluded", open, readings)
	}
}
