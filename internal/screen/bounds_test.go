package screen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// three is a pool of three: team a, teams a and b, no team.
func three(t testing.TB) *pool.Set {
	return setOf(t,
		pool.Spec{Ready: true, ServedModels: []string{"m"}, Labels: map[string]string{"team": "a", "tier": "7"}},
		pool.Spec{Ready: true, ServedModels: []string{"n"}, Annotations: map[string]string{"team": "a, b"}},
		pool.Spec{Ready: true, ServedModels: []string{"m", "n"}},
	)
}

// slots are those that an index leaves for requirements.
func slots(x *Index, set *pool.Set, req *Request) []int32 {
	var res Result
	x.Screen(set, req, Rules{}, now, &res)
	return slices.Clone(res.Slots)
}

func TestMoreRequirementsThanAreKeptAreStillAnswered(t *testing.T) {
	set, x := three(t), NewIndex()
	for round := range 2 {
		for i := range maxRequirements + 100 {
			req := &Request{Requirements: requirements("placement", "team", "In", fmt.Sprint("stranger-", i), "b")}
			if got := slots(x, set, req); !slices.Equal(got, []int32{1}) {
				t.Fatalf("round %d, requirement %d leaves %v, want slot 1", round, i, got)
			}
		}
		if n := x.requirements.lru.Len(); n != maxRequirements {
			t.Errorf("%d requirements are kept, want %d", n, maxRequirements)
		}
	}
}

func TestMoreModelsThanAreKeptAreStillAnsweredAndPushOutNoRequirement(t *testing.T) {
	set, x := three(t), NewIndex()
	req := &Request{Requirements: requirements("placement", "team", "In", "b")}
	slots(x, set, req)
	for range 2 {
		for i := range maxModels + 100 {
			if got := slots(x, set, &Request{Models: []string{fmt.Sprint("stranger-", i), "m"}}); !slices.Equal(got, []int32{0, 2}) {
				t.Fatalf("model %d leaves %v, want slots 0 and 2", i, got)
			}
		}
	}
	if models, requirements := x.models.lru.Len(), x.requirements.lru.Len(); models != maxModels || requirements != 1 {
		t.Errorf("%d models and %d requirements are kept, want %d and 1", models, requirements, maxModels)
	}
}

func TestLongTextsAreAnsweredAndNotKept(t *testing.T) {
	set, x := three(t), NewIndex()
	long := strings.Repeat("x", maxText)
	for range 2 {
		if got := slots(x, set, &Request{Requirements: requirements("placement", "team", "In", long, "b")}); !slices.Equal(got, []int32{1}) {
			t.Errorf("a long requirement leaves %v, want slot 1", got)
		}
		if got := slots(x, set, &Request{Requirements: requirements("placement", "team", "In", long, "stranger")}); len(got) != 0 {
			t.Errorf("another long requirement leaves %v, want nobody", got)
		}
		if got := slots(x, set, &Request{Models: []string{long + "x", "n"}}); !slices.Equal(got, []int32{1, 2}) {
			t.Errorf("a long model leaves %v, want slots 1 and 2", got)
		}
	}
	if n := x.requirements.lru.Len(); n != 0 {
		t.Errorf("%d requirements are kept, want none", n)
	}
	if n := x.models.lru.Len(); n != 1 {
		t.Errorf("%d models are kept, want the short one", n)
	}
	if n := cap(x.requirements.key); n > maxText {
		t.Errorf("%d bytes of memory are kept for the next text", n)
	}
	if got := slots(x, set, &Request{Models: []string{long}}); len(got) != 0 || x.models.lru.Len() != 2 {
		t.Errorf("a model of %d bytes leaves %v, and %d are kept", maxText, got, x.models.lru.Len())
	}
}

// Texts that differ where one ends and the next begins are different constraints.
func TestTextsThatRunTogetherAreToldApart(t *testing.T) {
	set, x := three(t), NewIndex()
	for _, tc := range []struct {
		values []string
		want   []int32
	}{
		{[]string{"a", "b"}, []int32{0, 1}},
		{[]string{"ab"}, nil},
		{[]string{"", "ab"}, nil},
		{[]string{"a\x01b"}, nil},
		{[]string{"\x01a\x01b"}, nil},
		{[]string{"b"}, []int32{1}},
	} {
		if got := slots(x, set, &Request{Requirements: requirements("placement", "team", "In", tc.values...)}); !slices.Equal(got, tc.want) {
			t.Errorf("In %q leaves %v, want %v", tc.values, got, tc.want)
		}
	}
	if got := slots(x, set, &Request{Requirements: requirements("placement", "team", "NotIn", "b")}); !slices.Equal(got, []int32{0}) {
		t.Errorf("NotIn b leaves %v, want slot 0", got)
	}
}

// Two texts with one hash must never be taken for each other: clients could look for
// such a pair.
func TestAHashThatTwoTextsShareMixesNothingUp(t *testing.T) {
	set, x := three(t), NewIndex()
	keyOf := xxhash.Sum64String
	nobody := &Request{Models: []string{"stranger"}}
	slots(x, set, nobody)
	stranger, _ := x.models.lru.Get(keyOf("stranger"))
	// As if m had the stranger's hash.
	x.models.lru.Add(keyOf("m"), stranger)
	for range 3 {
		if got := slots(x, set, &Request{Models: []string{"m"}}); !slices.Equal(got, []int32{0, 2}) {
			t.Fatalf("model m leaves %v, want slots 0 and 2", got)
		}
		served, _ := x.models.lru.Get(keyOf("m"))
		x.models.lru.Add(keyOf("stranger"), served)
		if got := slots(x, set, nobody); len(got) != 0 {
			t.Fatalf("a model that nobody serves leaves %v", got)
		}
	}

	ask := func(value string) []int32 {
		return slots(x, set, &Request{Requirements: requirements("authorization", "team", "In", value)})
	}
	ask("stranger")
	strangers := x.requirements.lru.Values()[0]
	ask("b")
	for _, hash := range x.requirements.lru.Keys() {
		x.requirements.lru.Add(hash, strangers)
	}
	if got := ask("b"); !slices.Equal(got, []int32{1}) {
		t.Errorf("team b leaves %v, want slot 1", got)
	}
	if got := ask("stranger"); len(got) != 0 {
		t.Errorf("a team that nobody is of leaves %v", got)
	}
}

// What is kept of a request must not be the request's own memory, which its owner uses
// again.
func TestAnIndexKeepsNothingOfARequestsMemory(t *testing.T) {
	set, x := three(t), NewIndex()
	req := &Request{Requirements: requirements("placement", "team", "In", "b")}
	slots(x, set, req)
	req.Requirements[0].Values[0] = "a"
	req.Requirements[0].Key = "tier"
	next := setOf(t, pool.Spec{Ready: true, Labels: map[string]string{"team": "b"}})
	next.Generation = set.Generation + 1
	if got := slots(x, next, &Request{Requirements: requirements("placement", "team", "In", "b")}); !slices.Equal(got, []int32{0}) {
		t.Errorf("team b leaves %v, want slot 0", got)
	}
}

func TestCoverageTellsOfEachValueByItself(t *testing.T) {
	set, x := three(t), NewIndex()
	var res Result
	ask := func(at telemetry.Instant, class, key, op string, values ...string) {
		x.Screen(set, &Request{Requirements: requirements(class, key, op, values...)}, Rules{}, at, &res)
	}
	later := now.Add(2 * time.Second)
	ask(now, "placement", "team", "In", "b", " a\t", "stranger")
	ask(now, "authorization", "team", "In", "b", "b")
	ask(now, "authorization", "team", "NotIn", "b")
	ask(now, "authorization", "team", "Exists")
	ask(now, "authorization", "team", "DoesNotExist")
	ask(now, "capability", "tier", "Gt", " 6")
	ask(now, "capability", "tier", "Lt", "7")
	ask(later, "authorization", "team", "NotIn", "b", "c")
	ask(later.Add(time.Millisecond), "authorization", "team", "NotIn", "b", "c")
	ask(now, "safety", "none", "NotIn", "x")
	want := []string{
		"authorization team DoesNotExist  1 0s",
		"authorization team Exists  2 0s",
		"authorization team In b 1 0s",
		"authorization team NotIn b 1 2s",
		"authorization team NotIn c 2 2s",
		"safety none NotIn x 0 0s",
		"capability tier Gt 6 1 0s",
		"capability tier Lt 7 0 0s",
		"placement team In a 2 0s",
		"placement team In b 1 0s",
		"placement team In stranger 0 0s",
	}
	var got []string
	for _, c := range x.Coverage(set) {
		got = append(got, fmt.Sprintf("%s %s %s %s %d %s", c.Class, c.Key, c.Operator, c.Value, c.Endpoints, c.AskedAt.Sub(now)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("coverage\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if all := NewIndex().Coverage(set); len(all) != 0 {
		t.Errorf("an index that was asked nothing tells of %v", all)
	}
}

func TestCoverageHasTheValuesThatWereAskedLast(t *testing.T) {
	set, x := three(t), NewIndex()
	var res Result
	at := now
	ask := func(value string) {
		at = at.Add(time.Second)
		x.Screen(set, &Request{Requirements: requirements("placement", "team", "In", value)}, Rules{}, at, &res)
	}
	ask("asked once")
	for i := range maxCoverage + 50 {
		ask(fmt.Sprint("stranger-", i))
		ask("a")
	}
	all := x.Coverage(set)
	if len(all) != maxCoverage {
		t.Errorf("%d values, want %d", len(all), maxCoverage)
	}
	has := func(value string) bool {
		return slices.ContainsFunc(all, func(c Coverage) bool { return c.Value == value })
	}
	// One place is that of a.
	for value, want := range map[string]bool{
		"a": true, "asked once": false, "stranger-50": false, "stranger-51": true, fmt.Sprint("stranger-", maxCoverage+49): true,
	} {
		if has(value) != want {
			t.Errorf("%q is told of: %v, want %v", value, has(value), want)
		}
	}
	if !slices.IsSortedFunc(all, func(a, b Coverage) int { return strings.Compare(a.Value, b.Value) }) {
		t.Error("not in order")
	}
}

// TestCoverageEqualsANaiveCount counts each value over random pools.
func TestCoverageEqualsANaiveCount(t *testing.T) {
	r := source{rand.New(rand.NewPCG(8, 2))}
	met := 0
	for range 1000 {
		subjects := r.subjects(now)
		s, x := made(t, subjects), NewIndex()
		asked := map[Constraint]bool{}
		for range 5 {
			q := r.requirement()
			x.Screen(s.set, &Request{Requirements: []v1alpha1.Requirement{q}}, Rules{}, now, &Result{})
			if len(q.Values) == 0 {
				asked[Constraint{q.Class, q.Key, q.Operator, ""}] = true
			}
			for _, value := range q.Values {
				asked[Constraint{q.Class, q.Key, q.Operator, strings.Trim(value, " \t\r\n")}] = true
			}
		}
		all := x.Coverage(s.set)
		if len(subjects) > 0 && len(all) != len(asked) {
			t.Fatalf("%d values are told of, %d were asked for", len(all), len(asked))
		}
		for _, c := range all {
			q, want := v1alpha1.Requirement{Class: c.Class, Key: c.Key, Operator: c.Operator}, 0
			if c.Value != "" {
				q.Values = []string{c.Value}
			}
			for i := range subjects {
				if subjects[i].meets(&q) {
					want++
				}
			}
			if !asked[c.Constraint] || c.Endpoints != want {
				t.Fatalf("%+v: asked %v, %d meet it, want %d\nof %+v", c, asked[c.Constraint], c.Endpoints, want, subjects)
			}
			met += want
		}
	}
	if met < 1000 {
		t.Errorf("only %d times was a value met", met)
	}
}
