package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

func spec(name, uid, address string) Spec {
	return Spec{Name: name, UID: uid, Address: netip.MustParseAddrPort(address), Ready: true}
}

func registryOf(t testing.TB, specs ...Spec) *Registry {
	t.Helper()
	r := NewRegistry("default/pool", false)
	if err := r.Update("default/pool", specs); err != nil {
		t.Fatal(err)
	}
	return r
}

func gone(l *Live) bool {
	select {
	case <-l.Gone():
		return true
	default:
		return false
	}
}

func TestANewRegistryHasAnEmptySet(t *testing.T) {
	r := NewRegistry("default/pool", false)
	set := r.Set()
	if set == nil || set.Pool != "default/pool" || len(set.Endpoints) != 0 {
		t.Fatalf("Set() = %+v, want an empty one named default/pool", set)
	}
	if slot, ok := set.ByAddress(netip.MustParseAddrPort("10.0.0.1:8000")); ok {
		t.Errorf("an empty set has slot %d for an address", slot)
	}
}

func TestWhatIsKnownBelongsToOneIncarnation(t *testing.T) {
	before := spec("default/a:8000", "uid-1", "10.0.0.1:8000")
	edited := func(edit func(*Spec)) []Spec {
		s := before
		edit(&s)
		return []Spec{s}
	}
	other := spec("default/b:8000", "uid-9", "10.0.0.9:8000")
	for _, tc := range []struct {
		name  string
		after []Spec
		keeps bool
	}{
		{"the same spec again", []Spec{before}, true},
		{"not ready", edited(func(s *Spec) { s.Ready = false }), true},
		{"terminating", edited(func(s *Spec) { s.Terminating = true }), true},
		{"other labels", edited(func(s *Spec) { s.Labels = map[string]string{"tier": "gold"} }), true},
		{"other declarations", edited(func(s *Spec) { s.ServedModels, s.ContextLimit, s.Engine = []string{"m"}, 4096, "vllm" }), true},
		{"another metrics port", edited(func(s *Spec) { s.Metrics.Port = 9000 }), true},
		{"another place in the list", []Spec{other, before}, true},
		{"a new UID at the same address", edited(func(s *Spec) { s.UID = "uid-2" }), false},
		{"a new address under the same UID", edited(func(s *Spec) { s.Address = netip.MustParseAddrPort("10.0.0.2:8000") }), false},
		{"a new port", edited(func(s *Spec) { s.Address = netip.MustParseAddrPort("10.0.0.1:8001") }), false},
		{"a new name at the same address", edited(func(s *Spec) { s.Name = "default/c:8000" }), false},
		{"removed", nil, false},
		{"replaced by another endpoint", []Spec{other}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := registryOf(t, before)
			was := r.Set().Endpoints[0].Live
			was.Publish(&telemetry.Snapshot{Engine: "vllm"}, was.BeginScrape())
			was.Take(1)
			if err := r.Update("default/pool", tc.after); err != nil {
				t.Fatal(err)
			}
			kept := slices.ContainsFunc(r.Set().Endpoints, func(e *Endpoint) bool { return e.Live == was })
			if kept != tc.keeps {
				t.Errorf("live part kept: %v, want %v", kept, tc.keeps)
			}
			if gone(was) == tc.keeps {
				t.Errorf("Gone closed: %v, want %v", gone(was), !tc.keeps)
			}
			for _, e := range r.Set().Endpoints {
				if e.Live != was && (e.Snapshot() != nil || e.InFlight() != 0 || !e.OrderedLast() || gone(e.Live)) {
					t.Errorf("%s is a new incarnation and starts with snapshot %v, %d in flight, last %v, gone %v",
						e.Name, e.Snapshot(), e.InFlight(), e.OrderedLast(), gone(e.Live))
				}
			}
		})
	}
}

func TestAnEditedSpecShowsInTheNextSetAndNotInTheLast(t *testing.T) {
	a := spec("a", "", "10.0.0.1:8000")
	r := registryOf(t, a)
	first := r.Set()
	a.Ready = false
	if err := r.Update("default/renamed", []Spec{a}); err != nil {
		t.Fatal(err)
	}
	if !first.Endpoints[0].Ready || first.Pool != "default/pool" {
		t.Errorf("the set taken before the update changed: ready %v, pool %s", first.Endpoints[0].Ready, first.Pool)
	}
	if second := r.Set(); second.Endpoints[0].Ready || second.Pool != "default/renamed" {
		t.Errorf("the set after the update has ready %v, pool %s", second.Endpoints[0].Ready, second.Pool)
	}
}

func TestAReadinessFlapKeepsTelemetryAndOrder(t *testing.T) {
	a := spec("a", "uid-1", "10.0.0.1:8000")
	r := registryOf(t, a)
	live := r.Set().Endpoints[0].Live
	page := &telemetry.Snapshot{}
	live.Publish(page, live.BeginScrape())
	live.Answered()
	unit := live.Take(1)
	for _, ready := range []bool{false, true} {
		a.Ready = ready
		if err := r.Update("default/pool", []Spec{a}); err != nil {
			t.Fatal(err)
		}
	}
	e := r.Set().Endpoints[0]
	if e.Snapshot() != page || e.OrderedLast() || e.InFlight() != 1 || gone(e.Live) {
		t.Errorf("after the flap: same snapshot %v, last %v, in flight %d, gone %v", e.Snapshot() == page, e.OrderedLast(), e.InFlight(), gone(e.Live))
	}
	unit.Release()
	if e.InFlight() != 0 {
		t.Errorf("in flight after the release: %d, want 0", e.InFlight())
	}
}

// The requests of a pod that crashed end after its successor has begun.
func TestReleasesOfAPredecessorDoNotTouchItsSuccessor(t *testing.T) {
	for name, again := range map[string]Spec{
		"same name and address, new pod": spec("a", "uid-2", "10.0.0.1:8000"),
		"the same static endpoint again": spec("a", "uid-1", "10.0.0.1:8000"),
	} {
		t.Run(name, func(t *testing.T) {
			r := registryOf(t, spec("a", "uid-1", "10.0.0.1:8000"))
			old := r.Set().Endpoints[0].Live
			var units []Unit
			for range 10 {
				units = append(units, old.Take(1))
			}
			for _, specs := range [][]Spec{nil, {again}} {
				if err := r.Update("default/pool", specs); err != nil {
					t.Fatal(err)
				}
			}
			next := r.Set().Endpoints[0].Live
			later := []Unit{next.Take(2), next.Take(2)}
			for i := range units {
				units[i].Release()
			}
			if old.InFlight() != 0 || next.InFlight() != 2 {
				t.Errorf("in flight: predecessor %d, successor %d; want 0 and 2", old.InFlight(), next.InFlight())
			}
			for i := range later {
				later[i].Release()
			}
			if next.InFlight() != 0 || next.Pending() != 0 {
				t.Errorf("at the end: %d in flight, %d pending; want none", next.InFlight(), next.Pending())
			}
		})
	}
}

func TestARefusedUpdateLeavesTheSetAsItWas(t *testing.T) {
	a, b := spec("a", "", "10.0.0.1:8000"), spec("b", "", "10.0.0.2:8000")
	for _, tc := range []struct {
		name  string
		specs []Spec
		says  []string
	}{
		{"one name twice", []Spec{b, a, spec("a", "", "10.0.0.3:8000")}, []string{`"a"`, "twice", "unique"}},
		{"one name twice under two UIDs", []Spec{spec("c", "1", "10.0.0.3:8000"), spec("c", "2", "10.0.0.4:8000")}, []string{`"c"`}},
		{"one address twice", []Spec{b, spec("c", "", "10.0.0.2:8000")}, []string{`"c"`, "10.0.0.2:8000", `"b"`}},
		{"one IPv6 address in two spellings", []Spec{spec("c", "", "[fd00::1]:80"), spec("d", "", "[fd00:0:0::1]:80")}, []string{`"d"`, "[fd00::1]:80", `"c"`}},
		{"the same spec twice", []Spec{a, a}, []string{`"a"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := registryOf(t, a, b)
			calls := 0
			r.Watch(func(*Set) { calls++ })
			before := r.Set()
			err := r.Update("default/pool", tc.specs)
			if err == nil {
				t.Fatal("the update was taken")
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %s", err, want)
				}
			}
			if r.Set() != before {
				t.Error("the set was replaced")
			}
			if gone(before.Endpoints[0].Live) || gone(before.Endpoints[1].Live) {
				t.Error("a member is marked gone")
			}
			if calls != 1 {
				t.Errorf("watchers were called %d times, want once, at the start", calls)
			}
			if err := r.Update("default/pool", []Spec{a}); err != nil || len(r.Set().Endpoints) != 1 {
				t.Errorf("the next good update: %v, %d endpoints", err, len(r.Set().Endpoints))
			}
		})
	}
}

func TestTwoPortsOfOnePodAreTwoEndpoints(t *testing.T) {
	r := registryOf(t, spec("default/a:8000", "uid-1", "10.0.0.1:8000"), spec("default/a:8001", "uid-1", "10.0.0.1:8001"))
	es := r.Set().Endpoints
	if len(es) != 2 || es[0].Live == es[1].Live || es[0].Hash == es[1].Hash {
		t.Errorf("%d endpoints; they share a live part or a hash", len(es))
	}
}

func TestSlotsFollowDiscoveryAndAreFoundByAddress(t *testing.T) {
	r := registryOf(t, spec("c", "", "10.0.0.3:8000"), spec("a", "", "10.0.0.1:8000"), spec("b", "", "[fd00::2]:8000"))
	set := r.Set()
	for slot, want := range []struct{ name, destination string }{
		{"c", "10.0.0.3:8000"}, {"a", "10.0.0.1:8000"}, {"b", "[fd00::2]:8000"},
	} {
		e := set.Endpoints[slot]
		if e.Name != want.name || e.Destination != want.destination {
			t.Errorf("slot %d is %s at %s, want %s at %s", slot, e.Name, e.Destination, want.name, want.destination)
		}
		if got, ok := set.ByAddress(e.Address); !ok || got != slot {
			t.Errorf("ByAddress(%s) = %d, %v; want %d", e.Address, got, ok, slot)
		}
	}
	for _, absent := range []string{"10.0.0.3:8001", "10.0.0.4:8000", "[fd00::2]:80"} {
		if got, ok := set.ByAddress(netip.MustParseAddrPort(absent)); ok {
			t.Errorf("ByAddress(%s) = %d, want none", absent, got)
		}
	}
}

func TestTheHashDependsOnTheNameAlone(t *testing.T) {
	one := registryOf(t, spec("a", "uid-1", "10.0.0.1:8000"), spec("b", "", "10.0.0.2:8000")).Set()
	two := registryOf(t, spec("b", "uid-7", "10.0.0.8:80"), spec("a", "uid-2", "10.0.0.9:80")).Set()
	if one.Endpoints[0].Hash != two.Endpoints[1].Hash || one.Endpoints[1].Hash != two.Endpoints[0].Hash {
		t.Error("two pickers hash one name differently")
	}
	if one.Endpoints[0].Hash == one.Endpoints[1].Hash {
		t.Error("two names have one hash")
	}
}

func TestWatchersSeeEverySetOnceAndInOrder(t *testing.T) {
	r := registryOf(t, spec("a", "", "10.0.0.1:8000"))
	var told []string
	watch := func(who string) func(*Set) {
		return func(s *Set) {
			if s != r.Set() {
				t.Errorf("watcher %s is handed a set that is not the newest", who)
			}
			told = append(told, fmt.Sprintf("%s:%d", who, len(s.Endpoints)))
		}
	}
	r.Watch(watch("first"))
	r.Watch(watch("second"))
	for n := 2; n <= 3; n++ {
		var specs []Spec
		for i := range n {
			specs = append(specs, spec(fmt.Sprint("e", i), "", fmt.Sprintf("10.0.0.%d:8000", i+1)))
		}
		if err := r.Update("default/pool", specs); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"first:1", "second:1", "first:2", "second:2", "first:3", "second:3"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestAMemberThatLeftIsGoneBeforeWatchersHear(t *testing.T) {
	r := registryOf(t, spec("a", "", "10.0.0.1:8000"))
	live := r.Set().Endpoints[0].Live
	heard := false
	r.Watch(func(s *Set) {
		if len(s.Endpoints) == 0 {
			heard = true
			if !gone(live) {
				t.Error("watchers hear of the removal before Gone is closed")
			}
		}
	})
	if err := r.Update("default/pool", nil); err != nil {
		t.Fatal(err)
	}
	if !heard {
		t.Error("watchers did not hear of the removal")
	}
}

func TestConcurrentUpdatesReachWatchersOneAtATime(t *testing.T) {
	r := NewRegistry("default/pool", false)
	var last *Set
	sets := 0
	r.Watch(func(s *Set) { last, sets = s, sets+1 })
	var wg sync.WaitGroup
	const updates = 64
	for i := range updates {
		wg.Go(func() {
			address := fmt.Sprintf("10.0.%d.1:8000", i)
			if err := r.Update("default/pool", []Spec{spec(fmt.Sprint("e", i), "", address)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if sets != updates+1 || last != r.Set() {
		t.Errorf("watcher heard of %d sets, want %d; the last is the newest: %v", sets, updates+1, last == r.Set())
	}
}

func TestAWatcherHearsNothingAfterItHasStopped(t *testing.T) {
	r := NewRegistry("p", false)
	var first, second int
	stop := r.Watch(func(*Set) { first++ })
	r.Watch(func(*Set) { second++ })
	stop()
	if err := r.Update("p", nil); err != nil {
		t.Fatal(err)
	}
	if first != 1 || second != 2 {
		t.Errorf("heard %d and %d times, want 1 and 2", first, second)
	}
}

func TestWithoutTelemetryEndpointsStartInNormalOrder(t *testing.T) {
	r := NewRegistry("p", false)
	update := func(names ...string) {
		t.Helper()
		var specs []Spec
		for i, name := range names {
			specs = append(specs, Spec{Name: name, Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1))})
		}
		if err := r.Update("p", specs); err != nil {
			t.Fatal(err)
		}
	}
	last := func() (names []string) {
		for _, e := range r.Set().Endpoints {
			if e.OrderedLast() {
				names = append(names, e.Name)
			}
		}
		return names
	}
	update("a")
	if got := last(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("with telemetry, last are %v, want a", got)
	}
	r.SetTelemetryNone(true)
	update("a", "b")
	if got := last(); len(got) != 0 {
		t.Errorf("without telemetry, last are %v, want nobody", got)
	}
	r.SetTelemetryNone(false)
	update("a", "b", "c")
	if got := last(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("with telemetry again, last are %v, want c", got)
	}
}
