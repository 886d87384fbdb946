package screen

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// walk is one registry and all that happens to it, with the same in plain words
// beside it.
type walk struct {
	source
	t        *testing.T
	registry *pool.Registry
	now      telemetry.Instant
	subjects []subject
	next     int
	units    []pool.Unit
	// history has the steps, for the report.
	history []string
}

func newWalk(t *testing.T, seed uint64) *walk {
	w := &walk{source: newSource(seed), t: t, registry: pool.NewRegistry(poolName, false), now: now}
	for range 3 + w.IntN(6) {
		w.join()
	}
	w.members()
	return w
}

// join adds an endpoint nobody has spoken to.
func (w *walk) join() {
	s := w.subject(w.next, w.now)
	s.said, s.away = word{}, away{}
	w.next = (w.next + 1) % 100
	if !slices.ContainsFunc(w.subjects, func(other subject) bool { return other.name == s.name }) {
		w.subjects = append(w.subjects, s)
	}
}

func (w *walk) members() { update(w.t, w.registry, w.subjects) }

// member draws one: its subject and its endpoint.
func (w *walk) member() (*subject, *pool.Endpoint) {
	i := w.IntN(len(w.subjects))
	return &w.subjects[i], w.registry.Set().Endpoints[i]
}

func (w *walk) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// step lets one thing happen.
func (w *walk) step() {
	if len(w.subjects) == 0 {
		w.join()
		w.members()
		return
	}
	rules := pool.QuarantineRules{Failures: 1 + w.IntN(2), ProbeAfter: time.Duration(1 + w.IntN(8))}
	switch w.IntN(16) {
	case 0: // discovery edits, adds, removes, reorders
		switch w.IntN(4) {
		case 0:
			w.join()
		case 1:
			i := w.IntN(len(w.subjects))
			w.subjects = slices.Delete(w.subjects, i, i+1)
		case 2:
			w.subjects = shuffled(w.source, w.subjects)
		case 3:
			s, _ := w.member()
			w.declare(s)
		}
		w.members()
		w.note("discovery")
	case 1, 2, 3, 4, 5, 6: // the next page says one thing otherwise, or nothing
		s, e := w.member()
		if !s.said.scraped {
			s.said = w.word(w.now)
			s.said.scraped = true
		}
		w.reword(&s.said, w.now)
		w.note("page of %s", s.name)
		e.Publish(s.said.page(), e.BeginScrape())
	case 7, 8:
		s, e := w.member()
		w.note("%s fails", s.name)
		e.Failed(w.now, rules)
	case 9:
		s, e := w.member()
		w.note("%s answers", s.name)
		e.Succeeded()
	case 10, 11:
		s, e := w.member()
		w.note("take at %s", s.name)
		w.units = append(w.units, e.Take(w.now))
	case 12, 13:
		if len(w.units) > 0 {
			i := w.IntN(len(w.units))
			if w.in(4) {
				w.note("an answer to unit %d begins", i)
				w.units[i].EndTry()
				return
			}
			if w.in(4) {
				s, e := w.member()
				w.note("unit %d moves to %s", i, s.name)
				w.units[i].Move(e.Live)
				return
			}
			w.note("unit %d ends", i)
			w.units[i].Release()
			w.units = slices.Delete(w.units, i, i+1)
		}
	case 14:
		w.now += pick(w.source, telemetry.Instant(0), 1, 1, 2, 5, 30)
		w.note("it is %d", w.now)
	case 15: // two requests come to be screened in another order than they read the clock
		w.now -= telemetry.Instant(w.IntN(4))
		w.note("it is %d", w.now)
	}
}

// observe takes over what the endpoints say of their quarantines, which is the affair
// of package pool.
func (w *walk) observe() {
	for i, e := range w.registry.Set().Endpoints {
		q := e.Quarantine(w.now)
		w.subjects[i].away = away{since: q.Since, until: q.Until, tried: q.In}
	}
}

// TestAUsedIndexSaysWhatAFreshOneSays walks registries at random. After each step one
// index that has seen all of the walk must say what one says that has seen nothing,
// and what a naive evaluation says.
func TestAUsedIndexSaysWhatAFreshOneSays(t *testing.T) {
	const walks, steps = 150, 120
	changes := 0
	for seed := range uint64(walks) {
		w := newWalk(t, seed)
		x := NewIndex()
		// The same few constraints come up again and again: they are kept.
		demands := make([]demand, 5)
		for i := range demands {
			demands[i] = w.demand(nil)
			demands[i].hasSubset = false
		}
		var before string
		for range steps {
			w.step()
			w.observe()
			set := w.registry.Set()
			var answers string
			for i := range demands {
				var used, fresh Result
				d := &demands[i]
				x.Screen(set, d.request(), d.rules, w.now, &used)
				NewIndex().Screen(set, d.request(), d.rules, w.now, &fresh)
				if !sameResult(&used, &fresh, len(set.Endpoints)) {
					t.Fatalf("walk %d, after %q\na used index says %v %v cause %d\na fresh one    %v %v cause %d\nof %+v\nfor %+v",
						seed, w.history[max(0, len(w.history)-6):], used.Slots, used.Removed, used.Cause,
						fresh.Slots, fresh.Removed, fresh.Cause, w.subjects, *d)
				}
				hold(t, set, w.subjects, d, w.now, &used)
				answers += fmt.Sprint(used.Slots, used.Cause)
			}
			if t.Failed() {
				t.Fatalf("walk %d, after %q", seed, w.history[max(0, len(w.history)-6):])
			}
			if answers != before {
				changes++
				before = answers
			}
		}
		for i := range w.units {
			w.units[i].Release()
		}
	}
	if changes < walks*steps/20 {
		t.Errorf("only %d of %d steps changed an answer", changes, walks*steps)
	}
}

func sameResult(a, b *Result, n int) bool {
	if !slices.Equal(a.Slots, b.Slots) || a.Cause != b.Cause || a.Removed != b.Removed || !slices.Equal(a.Keys(), b.Keys()) {
		return false
	}
	for slot := range n {
		if a.Fate(slot) != b.Fate(slot) || a.Rule(slot) != b.Rule(slot) || a.Quarantined(slot) != b.Quarantined(slot) {
			return false
		}
	}
	return true
}

// TestAnIndexHearsOfEachThingThatMayChangeAnAnswer asks, lets one thing happen, and
// asks again. It is the walk in slow motion: each row is one way for an index to be
// out of date.
func TestAnIndexHearsOfEachThingThatMayChangeAnAnswer(t *testing.T) {
	rules := pool.QuarantineRules{Failures: 2, ProbeAfter: 10}
	page := func(change func(w *word)) func(*testing.T, *pool.Registry, *subject) {
		return func(_ *testing.T, r *pool.Registry, s *subject) {
			change(&s.said)
			s.said.scraped = true
			e := r.Set().Endpoints[0]
			e.Publish(s.said.page(), e.BeginScrape())
		}
	}
	fresh := func(yes bool) yesNo { return yesNo{yes: yes, state: telemetry.Fresh, expires: now + 5} }
	serving := func(names ...string) namesWord {
		return namesWord{state: telemetry.Fresh, given: true, names: names}
	}
	var (
		servesM      = page(func(w *word) { w.models = serving("m") })
		servesN      = page(func(w *word) { w.models = serving("n") })
		servesNobody = page(func(w *word) { w.models = namesWord{} })
		loadsM       = page(func(w *word) { w.adapters = serving("m") })
		isVLLM       = page(func(w *word) { w.engine = "vllm" })
		isSGLang     = page(func(w *word) { w.engine = "sglang" })
		sleeps       = page(func(w *word) { w.asleep = fresh(true) })
		isAwake      = page(func(w *word) { w.asleep = fresh(false) })
		sleepsOn     = page(func(w *word) { w.asleep.expires = now + 9 })
	)
	limit := func(state telemetry.State, tokens float64) func(*testing.T, *pool.Registry, *subject) {
		return page(func(w *word) { w.contextState, w.context = state, tokens })
	}
	version := func(state telemetry.State, given bool, text string) func(*testing.T, *pool.Registry, *subject) {
		return page(func(w *word) { w.version = textWord{state, given, text} })
	}
	asks := func(key, op string, values ...string) demand {
		return demand{rules: Rules{QuarantineShare: 1}, requirements: requirements("capability", key, op, values...)}
	}
	model := demand{models: []string{"m"}, trusted: true}
	context := demand{context: 8192}
	plain := demand{rules: Rules{QuarantineShare: 1}}
	fail := func(_ *testing.T, r *pool.Registry, _ *subject) { r.Set().Endpoints[0].Failed(now, rules) }
	type event = func(*testing.T, *pool.Registry, *subject)
	for _, tc := range []struct {
		name   string
		before []event
		then   event
		at     telemetry.Instant // of the second question; 0 is now
		ask    demand
		was    bool // left before
		want   bool
	}{
		{"a model is served", nil, servesM, 0, model, false, true},
		{"a model is served no longer", []event{servesM}, servesN, 0, model, true, false},
		{"an adapter is loaded", []event{servesN}, loadsM, 0, model, false, true},
		{"a served set becomes unknown", []event{servesM}, servesNobody, 0, model, true, false},
		{"the same as an attribute", nil, servesM, 0, asks("berth.dev/served-models", "In", "m"), false, true},
		{"a context limit is stated", nil, limit(telemetry.Fresh, 8192), 0, context, false, true},
		{"a context limit falls", []event{limit(telemetry.Fresh, 8192)}, limit(telemetry.Fresh, 8191), 0, context, true, false},
		{"a context limit becomes unknown", []event{limit(telemetry.Fresh, 8192)}, limit(telemetry.Missing, 8192), 0, context, true, false},
		{"a context limit grows old", []event{limit(telemetry.Fresh, 8192)}, limit(telemetry.Stale, 8192), 0, context, true, true},
		{"the same as an attribute", nil, limit(telemetry.Fresh, 8192), 0, asks("berth.dev/context-limit", "Gt", "8191"), false, true},
		{"an engine is detected", nil, isVLLM, 0, asks("berth.dev/engine", "In", "vllm"), false, true},
		{"an engine is another", []event{isVLLM}, isSGLang, 0, asks("berth.dev/engine", "In", "vllm"), true, false},
		{"a version is stated", nil, version(telemetry.Fresh, true, "1"), 0, asks("berth.dev/engine-version", "In", "1"), false, true},
		{"a version is another", []event{version(telemetry.Fresh, true, "1")}, version(telemetry.Fresh, true, "2"), 0, asks("berth.dev/engine-version", "In", "1"), true, false},
		{"a version makes no sense any more", []event{version(telemetry.Fresh, true, "1")}, version(telemetry.Invalid, true, "1"), 0, asks("berth.dev/engine-version", "In", "1"), true, false},
		{"a version without text gets an empty one", []event{version(telemetry.Fresh, false, "")}, version(telemetry.Fresh, true, ""), 0, asks("berth.dev/engine-version", "DoesNotExist"), true, true},
		{"the page that would tell the version was read, and has none", nil, version(telemetry.Missing, true, ""), 0, asks("berth.dev/engine-version", "DoesNotExist"), false, true},
		{"the page that would tell the version is unread again", []event{version(telemetry.Missing, true, "")}, version(telemetry.Missing, false, ""), 0, asks("berth.dev/engine-version", "DoesNotExist"), true, false},
		{"the page that would tell the models is unread", nil, isVLLM, 0, asks("berth.dev/served-models", "DoesNotExist"), false, false},
		{"it falls asleep", nil, sleeps, 0, plain, true, false},
		{"it wakes up", []event{sleeps}, isAwake, 0, plain, false, true},
		{"sleep is a while ago", []event{sleeps}, nil, now + 5, plain, false, true},
		{"sleep is almost a while ago", []event{sleeps}, nil, now + 4, plain, false, false},
		{"sleep is heard of again", []event{sleeps}, sleepsOn, now + 5, plain, false, false},
		{"it is unhealthy", nil, page(func(w *word) { w.healthy = fresh(false) }), 0, plain, true, false},
		{"it is not ready by its own word", nil, page(func(w *word) { w.ready = fresh(false) }), 0, plain, true, false},
		{"it fails as often as it may", []event{fail}, nil, 0, plain, true, true},
		{"discovery says that it terminates", nil, func(t *testing.T, r *pool.Registry, s *subject) {
			s.terminating = true
			update(t, r, []subject{*s, other()})
		}, 0, plain, true, false},
		{"discovery edits a label", nil, func(t *testing.T, r *pool.Registry, s *subject) {
			s.labels = map[string]string{"team": "a"}
			update(t, r, []subject{*s, other()})
		}, 0, asks("team", "In", "a"), false, true},
		{"discovery declares another served set", nil, func(t *testing.T, r *pool.Registry, s *subject) {
			s.served = []string{"m"}
			update(t, r, []subject{*s, other()})
		}, 0, model, false, true},
		{"it fails once too often", []event{fail}, fail, 0, plain, true, false},
		{"it answers in quarantine", []event{fail, fail}, func(_ *testing.T, r *pool.Registry, _ *subject) { r.Set().Endpoints[0].Succeeded() }, 0, plain, false, true},
		{"its quarantine is half open", []event{fail, fail}, nil, now + 10, plain, false, true},
		{"its quarantine is almost half open", []event{fail, fail}, nil, now + 9, plain, false, false},
		{"a request tries it", []event{fail, fail}, func(_ *testing.T, r *pool.Registry, _ *subject) { r.Set().Endpoints[0].Take(now + 10) }, now + 10, plain, false, false},
		{"a try that showed nothing ends", []event{fail, fail}, func(_ *testing.T, r *pool.Registry, _ *subject) {
			u := r.Set().Endpoints[0].Take(now + 10)
			u.Release()
		}, now + 10, plain, false, true},
		{"a try takes too long", []event{fail, fail, func(_ *testing.T, r *pool.Registry, _ *subject) {
			r.Set().Endpoints[0].Take(now + 10)
		}}, nil, now + 20, plain, false, true},
		{"an answer to a try begins", []event{fail, fail}, func(_ *testing.T, r *pool.Registry, _ *subject) {
			u := r.Set().Endpoints[0].Take(now + 10)
			u.EndTry()
		}, now + 10, plain, false, true},
		{"a try fails", []event{fail, fail}, func(_ *testing.T, r *pool.Registry, _ *subject) {
			r.Set().Endpoints[0].Take(now + 10)
			r.Set().Endpoints[0].Failed(now+12, rules)
		}, now + 21, plain, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := subject{name: "it", address: "10.0.0.1:8000", ready: true}
			r, x := pool.NewRegistry(poolName, false), NewIndex()
			update(t, r, []subject{s, other()})
			for _, event := range tc.before {
				event(t, r, &s)
			}
			var res Result
			left := func(at telemetry.Instant) bool {
				x.Screen(r.Set(), tc.ask.request(), tc.ask.rules, at, &res)
				return res.Members().Contains(0)
			}
			if got := left(now); got != tc.was {
				t.Fatalf("before: left %v, want %v", got, tc.was)
			}
			if tc.then != nil {
				tc.then(t, r, &s)
			}
			if got := left(max(now, tc.at)); got != tc.want {
				t.Errorf("left %v, want %v", got, tc.want)
			}
		})
	}
}

func requirements(class, key, op string, values ...string) []v1alpha1.Requirement {
	return []v1alpha1.Requirement{{
		Class: v1alpha1.RequirementClass(class), Key: key, Operator: v1alpha1.Operator(op), Values: values,
	}}
}

// other is an endpoint that is always there, so that a quarantine may be.
func other() subject { return subject{name: "other", address: "10.0.0.2:8000", ready: true} }
