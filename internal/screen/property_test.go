package screen

import (
	"maps"
	"slices"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// TestScreenEqualsANaiveEvaluation compares 100,000 requests over random pools, half
// of them over the same endpoints in another order, and by an index that knows the
// other order.
func TestScreenEqualsANaiveEvaluation(t *testing.T) {
	const pools, requests = 10_000, 5
	r := newSource(1)
	var res Result
	causes, fates, ruled, quarantined := map[Cause]int{}, map[Class]int{}, 0, 0
	for range pools {
		subjects := r.subjects(now)
		registry, x := pool.NewRegistry(poolName, false), NewIndex()
		set := update(t, registry, subjects)
		for i := range subjects {
			subjects[i].apply(set.Endpoints[i])
		}
		demands := make([]demand, requests)
		for i := range demands {
			demands[i] = r.demand(subjects)
			compare(t, x, set, subjects, &demands[i], now, &res)
			causes[res.Cause]++
			for slot := range subjects {
				fates[res.Fate(slot)]++
				if res.Rule(slot) >= 0 {
					ruled++
				}
				if res.Quarantined(slot) {
					quarantined++
				}
			}
		}
		subjects = shuffled(r, subjects)
		set = update(t, registry, subjects)
		for i := range demands {
			compare(t, x, set, subjects, &demands[i], now, &res)
		}
		if t.Failed() {
			return
		}
	}
	// Each answer came up often enough to mean something.
	for name, c := range causeOf {
		if causes[c] < 500 {
			t.Errorf("only %d requests ended with cause %q", causes[c], name)
		}
	}
	for class := range NumClasses {
		if fates[class] < 1000 {
			t.Errorf("only %d endpoints ended as %s", fates[class], class)
		}
	}
	if ruled < 1000 || quarantined < 1000 {
		t.Errorf("only %d rules and %d endpoints left in quarantine", ruled, quarantined)
	}
}

// screened is a random pool, and what an index says of it.
type screened struct {
	subjects []subject
	set      *pool.Set
}

func made(t *testing.T, subjects []subject) screened {
	set := update(t, pool.NewRegistry(poolName, false), subjects)
	for i := range subjects {
		subjects[i].apply(set.Endpoints[i])
	}
	return screened{subjects, set}
}

// left are the names that are left for a demand.
func (s screened) left(d *demand) map[string]bool {
	var res Result
	NewIndex().Screen(s.set, d.request(), d.rules, now, &res)
	left := map[string]bool{}
	for _, slot := range res.Slots {
		left[s.set.Endpoints[slot].Name] = true
	}
	return left
}

// beyond is a name that is left by the second and not by the first.
func beyond(was, is map[string]bool) (name string, found bool) {
	for name := range is {
		if !was[name] {
			return name, true
		}
	}
	return "", false
}

// withoutQuarantine takes away what relates endpoints with each other: how many may be
// in quarantine depends on how many others are left.
func withoutQuarantine(subjects []subject) []subject {
	subjects = slices.Clone(subjects)
	for i := range subjects {
		subjects[i].away = away{}
	}
	return subjects
}

// metamorphic is how many pools each relation between two results is tried on.
const metamorphic = 10_000

func TestTheOrderOfRequirementsAndMembersMeansNothing(t *testing.T) {
	r := newSource(3)
	for range metamorphic {
		subjects := r.subjects(now)
		for i := range subjects {
			// Of those put away at the same time the order of the pool decides.
			if subjects[i].away.since != 0 {
				subjects[i].away.since, subjects[i].away.until = now-1000-telemetry.Instant(i), now+1
				subjects[i].away.tried = false
			}
		}
		d := r.demand(subjects)
		other := d
		other.requirements, other.subset, other.models = shuffled(r, d.requirements), shuffled(r, d.subset), shuffled(r, d.models)
		one, two := made(t, subjects), made(t, shuffled(r, subjects))
		var res, res2 Result
		NewIndex().Screen(one.set, d.request(), d.rules, now, &res)
		NewIndex().Screen(two.set, other.request(), other.rules, now, &res2)
		if res.Cause != res2.Cause || res.Removed != res2.Removed || !slices.Equal(res.Keys(), res2.Keys()) {
			t.Fatalf("cause %d, removed %v, keys %v; in another order %d, %v, %v\nof %+v for %+v",
				res.Cause, res.Removed, res.Keys(), res2.Cause, res2.Removed, res2.Keys(), subjects, d)
		}
		for slot, e := range one.set.Endpoints {
			slot2 := slices.IndexFunc(two.set.Endpoints, func(other *pool.Endpoint) bool { return other.Name == e.Name })
			if res.Fate(slot) != res2.Fate(slot2) || res.Quarantined(slot) != res2.Quarantined(slot2) {
				t.Fatalf("%s: %s; in another order %s\nof %+v for %+v", e.Name, res.Fate(slot), res2.Fate(slot2), subjects, d)
			}
			rule, rule2 := res.Rule(slot), res2.Rule(slot2)
			if (rule < 0) != (rule2 < 0) || rule >= 0 &&
				(d.requirements[rule].Class != other.requirements[rule2].Class || plain(&d.requirements[rule]) != plain(&other.requirements[rule2])) {
				t.Fatalf("%s by rule %d of %+v; in another order by %d of %+v", e.Name, rule, d.requirements, rule2, other.requirements)
			}
		}
	}
}

func TestAnAttributeThatIsGoneLetsNobodyInButForDoesNotExist(t *testing.T) {
	r := newSource(4)
	let := 0
	for range metamorphic {
		subjects := withoutQuarantine(r.subjects(now))
		if len(subjects) == 0 {
			continue
		}
		d := r.demand(subjects)
		key := pick(r, freeKeys...)
		d.requirements = slices.DeleteFunc(d.requirements, func(q v1alpha1.Requirement) bool {
			return q.Operator == v1alpha1.DoesNotExist && q.Key == key
		})
		was := made(t, subjects).left(&d)
		less := slices.Clone(subjects)
		at := &less[r.IntN(len(less))]
		at.labels, at.annotations = maps.Clone(at.labels), maps.Clone(at.annotations)
		delete(at.labels, key)
		delete(at.annotations, key)
		is := made(t, less).left(&d)
		if name, found := beyond(was, is); found {
			t.Fatalf("without %s of %s, %s is let in\nof %+v for %+v", key, at.name, name, subjects, d)
		}
		let += len(is)
	}
	if let < 1000 {
		t.Errorf("only %d endpoints were left at all", let)
	}
}

func TestOneMoreRequirementLetsNobodyIn(t *testing.T) {
	r := newSource(5)
	let := 0
	for range metamorphic {
		subjects := withoutQuarantine(r.subjects(now))
		d := r.demand(subjects)
		more := d
		more.requirements = append(slices.Clone(d.requirements), r.requirement())
		s := made(t, subjects)
		was, is := s.left(&d), s.left(&more)
		if name, found := beyond(was, is); found {
			t.Fatalf("with %+v more, %s is let in\nof %+v for %+v", more.requirements[len(d.requirements)], name, subjects, d)
		}
		let += len(is)
	}
	if let < 1000 {
		t.Errorf("only %d endpoints were left at all", let)
	}
}

func TestQuarantineKeepsToItsShareAndLeavesSomebody(t *testing.T) {
	r := newSource(6)
	away := 0
	for range metamorphic {
		subjects := r.subjects(now)
		s, d := made(t, subjects), r.demand(subjects)
		var res Result
		NewIndex().Screen(s.set, d.request(), d.rules, now, &res)
		if res.Cause != None {
			continue
		}
		gone := res.Removed[ByQuarantine]
		if len(res.Slots) == 0 || float64(gone) > d.rules.QuarantineShare*float64(len(res.Slots)+gone) {
			t.Fatalf("share %v: %d put away, %d left", d.rules.QuarantineShare, gone, len(res.Slots))
		}
		away += gone
	}
	if away < 300 {
		t.Errorf("only %d endpoints were put away at all", away)
	}
}
