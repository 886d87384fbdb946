package screen

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	now     telemetry.Instant = 1000e9
	expired                   = now
	valid                     = now + 1
)

// setOf names the endpoints and gives them addresses where the specs do not.
func setOf(t testing.TB, specs ...pool.Spec) *pool.Set {
	t.Helper()
	r := pool.NewRegistry("default/pool", false)
	for i := range specs {
		if specs[i].Name == "" {
			specs[i].Name = fmt.Sprint("replica-", i)
		}
		if !specs[i].Address.IsValid() {
			specs[i].Address = address(i)
		}
	}
	if err := r.Update("default/pool", specs); err != nil {
		t.Fatal(err)
	}
	return r.Set()
}

// cut screens by an index of its own.
func cut(set *pool.Set, req Request, now telemetry.Instant, res *Result) {
	NewIndex().Screen(set, &req, Rules{QuarantineShare: 0.5}, now, res)
}

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte((i + 1) >> 8), byte(i + 1)}), 8000)
}

// says publishes a page with one reading.
func says(e *pool.Endpoint, f telemetry.Field, r telemetry.Reading) {
	page := &telemetry.Snapshot{}
	page.Readings[f] = r
	e.Publish(page, e.BeginScrape())
}

func TestWhatExcludesOneEndpoint(t *testing.T) {
	word := func(value float64, recorded telemetry.State, expires telemetry.Instant) telemetry.Reading {
		return telemetry.Reading{Value: value, Recorded: recorded, ExpiresAt: expires}
	}
	served := func(recorded telemetry.State, names ...string) telemetry.Reading {
		return telemetry.Reading{Recorded: recorded, ExpiresAt: valid, Detail: &telemetry.Detail{Names: names}}
	}
	ready := pool.Spec{Ready: true}
	for _, tc := range []struct {
		name  string
		spec  pool.Spec
		field telemetry.Field
		page  *telemetry.Reading
		req   Request
		want  Class
	}{
		{"a ready endpoint that was never scraped", ready, 0, nil, Request{}, Kept},
		{"not ready", pool.Spec{}, 0, nil, Request{}, ByHealth},
		{"terminating, though still ready", pool.Spec{Ready: true, Terminating: true}, 0, nil, Request{}, ByHealth},

		{"asleep", ready, telemetry.Sleeping, ptr(word(1, telemetry.Fresh, valid)), Request{}, ByHealth},
		{"asleep when last heard of, long ago", ready, telemetry.Sleeping, ptr(word(1, telemetry.Fresh, expired)), Request{}, Kept},
		{"awake", ready, telemetry.Sleeping, ptr(word(0, telemetry.Fresh, valid)), Request{}, Kept},
		{"unhealthy", ready, telemetry.Health, ptr(word(0, telemetry.Fresh, valid)), Request{}, ByHealth},
		{"unhealthy when last heard of, long ago", ready, telemetry.Health, ptr(word(0, telemetry.Fresh, expired)), Request{}, Kept},
		{"a health that made no sense", ready, telemetry.Health, ptr(word(0, telemetry.Invalid, valid)), Request{}, Kept},
		{"a health that was not given", ready, telemetry.Health, ptr(word(0, telemetry.Missing, 0)), Request{}, Kept},
		{"healthy", ready, telemetry.Health, ptr(word(1, telemetry.Fresh, valid)), Request{}, Kept},
		{"the engine says not ready, discovery says ready", ready, telemetry.Ready, ptr(word(0, telemetry.Fresh, valid)), Request{}, ByHealth},
		{"the engine said not ready, long ago", ready, telemetry.Ready, ptr(word(0, telemetry.Stale, valid)), Request{}, Kept},

		{"the served set is unknown", ready, 0, nil, Request{Models: []string{"m"}}, Kept},
		{"the served set made no sense", ready, telemetry.ServedModels, ptr(served(telemetry.Invalid, "n")), Request{Models: []string{"m"}}, Kept},
		{"serves it", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n", "m")), Request{Models: []string{"m"}}, Kept},
		{"serves others", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n")), Request{Models: []string{"m"}}, ByServedModel},
		{"serves others, by an old word", ready, telemetry.ServedModels, ptr(served(telemetry.Stale, "n")), Request{Models: []string{"m"}}, ByServedModel},
		{"serves others, and no model is asked for", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n")), Request{}, Kept},
		{"declared to serve it", pool.Spec{Ready: true, ServedModels: []string{"m"}}, 0, nil, Request{Models: []string{"m"}}, Kept},
		{"declared to serve others", pool.Spec{Ready: true, ServedModels: []string{"n"}}, 0, nil, Request{Models: []string{"m"}}, ByServedModel},

		{"in the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.1:8000")}, Kept},
		{"at another port of the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.1:8001")}, BySubset},
		{"outside the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.2:8000")}, BySubset},
		{"no subset", ready, 0, nil, Request{Subset: nil}, Kept},
		{"an empty subset", ready, 0, nil, Request{Subset: NewSubset(nil)}, BySubset},
		{"a subset of garbage", ready, 0, nil, Request{Subset: SplitSubset("replica-0,*")}, BySubset},

		{"the subset comes before the model and health", pool.Spec{ServedModels: []string{"n"}}, 0, nil, Request{Models: []string{"m"}, Subset: NewSubset(nil)}, BySubset},
		{"the model comes before health", pool.Spec{ServedModels: []string{"n"}}, 0, nil, Request{Models: []string{"m"}}, ByServedModel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := setOf(t, tc.spec)
			if tc.page != nil {
				says(set.Endpoints[0], tc.field, *tc.page)
			}
			var res Result
			cut(set, tc.req, now, &res)
			if res.Fate(0) != tc.want {
				t.Errorf("fate %s, want %s", res.Fate(0), tc.want)
			}
			if kept := len(res.Slots) == 1; kept != (tc.want == Kept) {
				t.Errorf("slots %v for fate %s", res.Slots, tc.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestTheFirstStageThatLeavesNobodyIsTheCause(t *testing.T) {
	// Endpoint i is at 10.0.0.(i+1):8000.
	var (
		good     = pool.Spec{Ready: true, ServedModels: []string{"m"}}
		other    = pool.Spec{Ready: true, ServedModels: []string{"n"}}
		ill      = pool.Spec{ServedModels: []string{"m"}}
		illOther = pool.Spec{ServedModels: []string{"n"}}
		unknown  = pool.Spec{Ready: true}
		leaving  = pool.Spec{Ready: true, Terminating: true}
	)
	first, nobody := SplitSubset("10.0.0.1:8000"), NewSubset(nil)
	for _, tc := range []struct {
		name    string
		specs   []pool.Spec
		req     Request
		want    Cause
		removed [NumClasses]int
	}{
		{"no members", nil, Request{}, PoolEmpty, [NumClasses]int{}},
		{"no members, a subset and a model", nil, Request{Models: []string{"m"}, Subset: first}, PoolEmpty, [NumClasses]int{}},
		{"somebody is left", []pool.Spec{ill, good, other}, Request{Models: []string{"m"}}, None, [NumClasses]int{ByServedModel: 1, ByHealth: 1}},
		{"an unknown served set is left", []pool.Spec{other, unknown}, Request{Models: []string{"m"}}, None, [NumClasses]int{ByServedModel: 1}},
		{"an empty subset", []pool.Spec{good, ill}, Request{Models: []string{"m"}, Subset: nobody}, SubsetEmpty, [NumClasses]int{BySubset: 2}},
		{"a subset of strangers", []pool.Spec{good}, Request{Subset: SplitSubset("10.9.9.9:8000")}, SubsetEmpty, [NumClasses]int{BySubset: 1}},
		{"all serve others", []pool.Spec{other, other}, Request{Models: []string{"m"}}, ModelUnserved, [NumClasses]int{ByServedModel: 2}},
		{"all of the subset serve others", []pool.Spec{other, good}, Request{Models: []string{"m"}, Subset: first}, ModelUnserved, [NumClasses]int{BySubset: 1, ByServedModel: 1}},
		{"all serve others and are ill", []pool.Spec{illOther}, Request{Models: []string{"m"}}, ModelUnserved, [NumClasses]int{ByServedModel: 1}},
		{"all are ill", []pool.Spec{ill, leaving}, Request{}, Unhealthy, [NumClasses]int{ByHealth: 2}},
		{"all that serve it are ill", []pool.Spec{other, ill}, Request{Models: []string{"m"}}, Unhealthy, [NumClasses]int{ByServedModel: 1, ByHealth: 1}},
		{"all of the subset are ill", []pool.Spec{ill, good}, Request{Models: []string{"m"}, Subset: first}, Unhealthy, [NumClasses]int{BySubset: 1, ByHealth: 1}},
		{"a different one at each stage", []pool.Spec{ill, other, good}, Request{Models: []string{"m"}, Subset: SplitSubset("10.0.0.1:8000,10.0.0.2:8000")},
			Unhealthy, [NumClasses]int{BySubset: 1, ByServedModel: 1, ByHealth: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var res Result
			cut(setOf(t, slices.Clone(tc.specs)...), tc.req, now, &res)
			if res.Cause != tc.want || res.Removed != tc.removed {
				t.Errorf("cause %d, removed %v; want %d, %v", res.Cause, res.Removed, tc.want, tc.removed)
			}
		})
	}
}

func TestAnIPv6EndpointIsFoundInEverySpelling(t *testing.T) {
	set := setOf(t, pool.Spec{Ready: true, Address: netip.MustParseAddrPort("[fd00::1]:8000")})
	for _, entry := range []string{"[fd00::1]:8000", "fd00::1:8000", "[FD00:0:0::1]:8000"} {
		var res Result
		cut(set, Request{Subset: NewSubset([]string{entry})}, now, &res)
		if len(res.Slots) != 1 {
			t.Errorf("%s does not match %s", entry, set.Endpoints[0].Destination)
		}
	}
}

func TestAUsedResultKeepsNothingOfThePoolBefore(t *testing.T) {
	big := make([]pool.Spec, 130)
	for i := range big {
		big[i] = pool.Spec{Ready: true}
	}
	var res Result
	cut(setOf(t, big...), Request{}, now, &res)
	if len(res.Slots) != 130 || !res.Members().Contains(129) || res.Members().Contains(130) {
		t.Fatalf("%d of 130 slots; 129 %v, 130 %v", len(res.Slots), res.Members().Contains(129), res.Members().Contains(130))
	}
	cut(setOf(t, pool.Spec{}, pool.Spec{Ready: true}), Request{}, now, &res)
	if !slices.Equal(res.Slots, []int32{1}) || res.Fate(0) != ByHealth || res.Fate(1) != Kept || res.Removed != [NumClasses]int{ByHealth: 1} {
		t.Errorf("slots %v, fate %v, removed %v", res.Slots, res.Slots, res.Removed)
	}
	for slot := -1; slot < 200; slot++ {
		if res.Members().Contains(slot) != (slot == 1) {
			t.Errorf("slot %d in the screened set: %v", slot, res.Members().Contains(slot))
		}
	}
	cut(setOf(t), Request{}, now, &res)
	if len(res.Slots) != 0 || res.Fate(0) != Kept || res.Members().Contains(1) || res.Cause != PoolEmpty {
		t.Errorf("of an empty pool: slots %v, fate %v, cause %d", res.Slots, res.Slots, res.Cause)
	}
}

func TestClonedMembersOutliveTheNextScreen(t *testing.T) {
	var res Result
	cut(setOf(t, pool.Spec{Ready: true}), Request{}, now, &res)
	kept := slices.Clone(res.Members())
	cut(setOf(t, pool.Spec{}), Request{}, now, &res)
	if !kept.Contains(0) || res.Members().Contains(0) {
		t.Errorf("slot 0: in the clone %v, in the newer result %v", kept.Contains(0), res.Members().Contains(0))
	}
}
