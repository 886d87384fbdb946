package screen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
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

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 8000)
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

		{"the served set is unknown", ready, 0, nil, Request{Model: "m"}, Kept},
		{"the served set made no sense", ready, telemetry.ServedModels, ptr(served(telemetry.Invalid, "n")), Request{Model: "m"}, Kept},
		{"serves it", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n", "m")), Request{Model: "m"}, Kept},
		{"serves others", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n")), Request{Model: "m"}, ByServedModel},
		{"serves others, by an old word", ready, telemetry.ServedModels, ptr(served(telemetry.Stale, "n")), Request{Model: "m"}, ByServedModel},
		{"serves others, and no model is asked for", ready, telemetry.ServedModels, ptr(served(telemetry.Fresh, "n")), Request{}, Kept},
		{"declared to serve it", pool.Spec{Ready: true, ServedModels: []string{"m"}}, 0, nil, Request{Model: "m"}, Kept},
		{"declared to serve others", pool.Spec{Ready: true, ServedModels: []string{"n"}}, 0, nil, Request{Model: "m"}, ByServedModel},

		{"in the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.1:8000")}, Kept},
		{"at another port of the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.1:8001")}, BySubset},
		{"outside the subset", ready, 0, nil, Request{Subset: SplitSubset("10.0.0.2:8000")}, BySubset},
		{"no subset", ready, 0, nil, Request{Subset: nil}, Kept},
		{"an empty subset", ready, 0, nil, Request{Subset: NewSubset(nil)}, BySubset},
		{"a subset of garbage", ready, 0, nil, Request{Subset: SplitSubset("replica-0,*")}, BySubset},

		{"the subset comes before the model and health", pool.Spec{ServedModels: []string{"n"}}, 0, nil, Request{Model: "m", Subset: NewSubset(nil)}, BySubset},
		{"the model comes before health", pool.Spec{ServedModels: []string{"n"}}, 0, nil, Request{Model: "m"}, ByServedModel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := setOf(t, tc.spec)
			if tc.page != nil {
				says(set.Endpoints[0], tc.field, *tc.page)
			}
			var res Result
			Screen(set, tc.req, now, &res)
			if res.Fate[0] != tc.want {
				t.Errorf("fate %s, want %s", res.Fate[0], tc.want)
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
		{"no members, a subset and a model", nil, Request{Model: "m", Subset: first}, PoolEmpty, [NumClasses]int{}},
		{"somebody is left", []pool.Spec{ill, good, other}, Request{Model: "m"}, None, [NumClasses]int{ByServedModel: 1, ByHealth: 1}},
		{"an unknown served set is left", []pool.Spec{other, unknown}, Request{Model: "m"}, None, [NumClasses]int{ByServedModel: 1}},
		{"an empty subset", []pool.Spec{good, ill}, Request{Model: "m", Subset: nobody}, SubsetEmpty, [NumClasses]int{BySubset: 2}},
		{"a subset of strangers", []pool.Spec{good}, Request{Subset: SplitSubset("10.9.9.9:8000")}, SubsetEmpty, [NumClasses]int{BySubset: 1}},
		{"all serve others", []pool.Spec{other, other}, Request{Model: "m"}, ModelUnserved, [NumClasses]int{ByServedModel: 2}},
		{"all of the subset serve others", []pool.Spec{other, good}, Request{Model: "m", Subset: first}, ModelUnserved, [NumClasses]int{BySubset: 1, ByServedModel: 1}},
		{"all serve others and are ill", []pool.Spec{illOther}, Request{Model: "m"}, ModelUnserved, [NumClasses]int{ByServedModel: 1}},
		{"all are ill", []pool.Spec{ill, leaving}, Request{}, Unhealthy, [NumClasses]int{ByHealth: 2}},
		{"all that serve it are ill", []pool.Spec{other, ill}, Request{Model: "m"}, Unhealthy, [NumClasses]int{ByServedModel: 1, ByHealth: 1}},
		{"all of the subset are ill", []pool.Spec{ill, good}, Request{Model: "m", Subset: first}, Unhealthy, [NumClasses]int{BySubset: 1, ByHealth: 1}},
		{"a different one at each stage", []pool.Spec{ill, other, good}, Request{Model: "m", Subset: SplitSubset("10.0.0.1:8000,10.0.0.2:8000")},
			Unhealthy, [NumClasses]int{BySubset: 1, ByServedModel: 1, ByHealth: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var res Result
			Screen(setOf(t, slices.Clone(tc.specs)...), tc.req, now, &res)
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
		Screen(set, Request{Subset: NewSubset([]string{entry})}, now, &res)
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
	Screen(setOf(t, big...), Request{}, now, &res)
	if len(res.Slots) != 130 || !res.Members().Contains(129) || res.Members().Contains(130) {
		t.Fatalf("%d of 130 slots; 129 %v, 130 %v", len(res.Slots), res.Members().Contains(129), res.Members().Contains(130))
	}
	Screen(setOf(t, pool.Spec{}, pool.Spec{Ready: true}), Request{}, now, &res)
	if !slices.Equal(res.Slots, []int32{1}) || !slices.Equal(res.Fate, []Class{ByHealth, Kept}) || res.Removed != [NumClasses]int{ByHealth: 1} {
		t.Errorf("slots %v, fate %v, removed %v", res.Slots, res.Fate, res.Removed)
	}
	for slot := -1; slot < 200; slot++ {
		if res.Members().Contains(slot) != (slot == 1) {
			t.Errorf("slot %d in the screened set: %v", slot, res.Members().Contains(slot))
		}
	}
	Screen(setOf(t), Request{}, now, &res)
	if len(res.Slots) != 0 || len(res.Fate) != 0 || res.Members().Contains(1) || res.Cause != PoolEmpty {
		t.Errorf("of an empty pool: slots %v, fate %v, cause %d", res.Slots, res.Fate, res.Cause)
	}
}

func TestClonedMembersOutliveTheNextScreen(t *testing.T) {
	var res Result
	Screen(setOf(t, pool.Spec{Ready: true}), Request{}, now, &res)
	kept := slices.Clone(res.Members())
	Screen(setOf(t, pool.Spec{}), Request{}, now, &res)
	if !kept.Contains(0) || res.Members().Contains(0) {
		t.Errorf("slot 0: in the clone %v, in the newer result %v", kept.Contains(0), res.Members().Contains(0))
	}
}

// subject is one endpoint of a random pool in plain words, from which both the
// pool and the naive evaluation are made.
type subject struct {
	name, address      string
	ready, terminating bool
	declared           []string // nil: not declared
	engine             engineWord
}

// engineWord is what the newest page says, if there is one.
type engineWord struct {
	scraped           bool
	models            []string
	modelsState       telemetry.State
	asleep            bool
	sleepState        telemetry.State
	healthy           bool
	healthState       telemetry.State
	expired, hasNames bool
}

func (w engineWord) page() *telemetry.Snapshot {
	expires := valid
	if w.expired {
		expires = expired
	}
	page := &telemetry.Snapshot{}
	value := map[bool]float64{true: 1}
	page.Readings[telemetry.Sleeping] = telemetry.Reading{Value: value[w.asleep], Recorded: w.sleepState, ExpiresAt: expires}
	page.Readings[telemetry.Health] = telemetry.Reading{Value: value[w.healthy], Recorded: w.healthState, ExpiresAt: expires}
	served := telemetry.Reading{Recorded: w.modelsState, ExpiresAt: expires}
	if w.hasNames {
		served.Detail = &telemetry.Detail{Names: w.models}
	}
	page.Readings[telemetry.ServedModels] = served
	return page
}

// demand is a request in plain words.
type demand struct {
	model     string
	hasSubset bool
	subset    []string
}

// naively evaluates the stages one after the other over lists of names, the way
// the contract tells them. It returns who is left, which stage removed each of
// the others, and the name of the stage that left nobody.
func naively(subjects []subject, d demand) (left []string, removedBy map[string]string, cause string) {
	removedBy = map[string]string{}
	stages := []struct {
		name string
		out  func(s subject) bool
	}{
		{"subset", func(s subject) bool {
			return d.hasSubset && !slices.Contains(d.subset, s.address)
		}},
		{"served_model", func(s subject) bool {
			if d.model == "" {
				return false
			}
			if w := s.engine; w.scraped && w.hasNames && (w.modelsState == telemetry.Fresh || w.modelsState == telemetry.Stale) {
				if !slices.Contains(w.models, d.model) {
					return true
				}
			}
			return s.declared != nil && !slices.Contains(s.declared, d.model)
		}},
		{"health", func(s subject) bool {
			heard := s.engine.scraped && !s.engine.expired
			return !s.ready || s.terminating ||
				heard && s.engine.asleep && s.engine.sleepState == telemetry.Fresh ||
				heard && !s.engine.healthy && s.engine.healthState == telemetry.Fresh
		}},
	}
	remaining := slices.Clone(subjects)
	if len(remaining) == 0 {
		return nil, removedBy, "pool"
	}
	for _, stage := range stages {
		var next []subject
		for _, s := range remaining {
			if stage.out(s) {
				removedBy[s.name] = stage.name
			} else {
				next = append(next, s)
			}
		}
		remaining = next
		if len(remaining) == 0 && cause == "" {
			cause = stage.name
		}
	}
	for _, s := range remaining {
		left = append(left, s.name)
	}
	return left, removedBy, cause
}

var causeOf = map[string]Cause{"": None, "pool": PoolEmpty, "subset": SubsetEmpty, "served_model": ModelUnserved, "health": Unhealthy}

func randomSubjects(rng *rand.Rand) []subject {
	subjects := make([]subject, rng.IntN(9))
	states := []telemetry.State{telemetry.Missing, telemetry.Fresh, telemetry.Fresh, telemetry.Stale, telemetry.Invalid}
	state := func() telemetry.State { return states[rng.IntN(len(states))] }
	lists := [][]string{nil, nil, {}, {"m"}, {"n"}, {"n", "m"}}
	for i := range subjects {
		subjects[i] = subject{
			name:        fmt.Sprint("replica-", i),
			address:     fmt.Sprintf("10.0.0.%d:%d", 1+i/2, 8000+i%2), // two ports of one host
			ready:       rng.IntN(5) > 0,
			terminating: rng.IntN(6) == 0,
			declared:    lists[rng.IntN(len(lists))],
			engine: engineWord{
				scraped: rng.IntN(4) > 0, expired: rng.IntN(4) == 0,
				models: lists[rng.IntN(len(lists))], hasNames: rng.IntN(4) > 0, modelsState: state(),
				asleep: rng.IntN(3) == 0, sleepState: state(),
				healthy: rng.IntN(3) > 0, healthState: state(),
			},
		}
	}
	return subjects
}

func randomDemand(rng *rand.Rand, subjects []subject) demand {
	d := demand{model: []string{"", "m", "n", "o"}[rng.IntN(4)], hasSubset: rng.IntN(2) == 0}
	for _, s := range subjects {
		if rng.IntN(2) == 0 {
			d.subset = append(d.subset, s.address)
		}
	}
	if rng.IntN(4) == 0 {
		d.subset = append(d.subset, "10.0.0.1", "nobody:8000", "10.0.0.1:9999", "[fd00::1]:8000")
	}
	rng.Shuffle(len(d.subset), func(i, j int) { d.subset[i], d.subset[j] = d.subset[j], d.subset[i] })
	return d
}

func (d demand) request(rng *rand.Rand) Request {
	req := Request{Model: d.model}
	if !d.hasSubset {
		return req
	}
	req.Subset = NewSubset(d.subset)
	if len(d.subset) > 0 && rng.IntN(2) == 0 {
		req.Subset = SplitSubset(strings.Join(d.subset, ", "))
	}
	return req
}

// publish makes the subjects the members of the pool, in the order given.
// Pages that are there stay.
func publish(t *testing.T, r *pool.Registry, subjects []subject) *pool.Set {
	specs := make([]pool.Spec, len(subjects))
	for i, s := range subjects {
		specs[i] = pool.Spec{
			Name: s.name, Address: netip.MustParseAddrPort(s.address),
			Ready: s.ready, Terminating: s.terminating, ServedModels: s.declared,
		}
	}
	if err := r.Update("default/pool", specs); err != nil {
		t.Fatal(err)
	}
	return r.Set()
}

// TestScreenEqualsANaiveEvaluation compares 100,000 requests over random pools,
// half of them over the same endpoints in another order.
func TestScreenEqualsANaiveEvaluation(t *testing.T) {
	const pools, requests = 10_000, 5
	rng := rand.New(rand.NewPCG(1, 2))
	var res Result
	causes := map[Cause]int{}
	for range pools {
		subjects := randomSubjects(rng)
		r := pool.NewRegistry("default/pool", false)
		set := publish(t, r, subjects)
		for i, s := range subjects {
			if s.engine.scraped {
				e := set.Endpoints[i]
				e.Publish(s.engine.page(), e.BeginScrape())
			}
		}
		demands := make([]demand, requests)
		for i := range demands {
			demands[i] = randomDemand(rng, subjects)
			compare(t, set, subjects, demands[i], demands[i].request(rng), &res)
			causes[res.Cause]++
		}
		rng.Shuffle(len(subjects), func(i, j int) { subjects[i], subjects[j] = subjects[j], subjects[i] })
		set = publish(t, r, subjects)
		for _, d := range demands {
			compare(t, set, subjects, d, d.request(rng), &res)
		}
		if t.Failed() {
			return
		}
	}
	for name, c := range causeOf {
		if causes[c] < 500 {
			t.Errorf("only %d requests ended with cause %q", causes[c], name)
		}
	}
}

// compare screens once and holds every part of the result against the naive
// evaluation. The latter works with names and does not know of slots, so the
// same answer for two orders of the endpoints is the same fate for each of them.
func compare(t *testing.T, set *pool.Set, subjects []subject, d demand, req Request, res *Result) {
	left, removedBy, cause := naively(subjects, d)
	Screen(set, req, now, res)
	explain := func(what string, got, want any) {
		t.Errorf("%s: %v, want %v\nof %+v\nfor %+v", what, got, want, subjects, d)
	}
	var names []string
	for i, slot := range res.Slots {
		if i > 0 && slot <= res.Slots[i-1] {
			explain("slots are not ascending", res.Slots, left)
		}
		names = append(names, set.Endpoints[slot].Name)
	}
	if !slices.Equal(names, left) {
		explain("left", names, left)
	}
	if len(res.Fate) != len(subjects) {
		explain("fates", len(res.Fate), len(subjects))
		return
	}
	var removed [NumClasses]int
	for slot, e := range set.Endpoints {
		want := removedBy[e.Name]
		if want == "" {
			want = "kept"
		}
		if got := res.Fate[slot].String(); got != want {
			explain("fate of "+e.Name, got, want)
		}
		if got := res.Members().Contains(slot); got != (want == "kept") {
			explain(e.Name+" is a member of the screened set", got, want)
		}
		if want != "kept" {
			removed[res.Fate[slot]]++
		}
	}
	if res.Removed != removed {
		explain("removed", res.Removed, removed)
	}
	for _, outside := range []int{-1, len(subjects), len(subjects) + 64, 1 << 40} {
		if res.Members().Contains(outside) {
			explain("slot outside the pool is a member", outside, len(subjects))
		}
	}
	if res.Cause != causeOf[cause] {
		explain("cause", res.Cause, causeOf[cause])
	}
}
