package screen

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/pool"
)

// Inputs that are known to break endpoint pickers, as far as they reach the hard cut.

// A number of an endpoint that is none, or too large to be told, is neither above nor
// below anything.
func TestHD4_AnAttributeThatIsNoNumberMeetsNoComparison(t *testing.T) {
	for _, c := range []struct {
		tier         string
		above, below bool // Gt 4, Lt 6
	}{
		{"5", true, true},
		{" 5 ", true, true},
		{"+5", true, true},
		{"0", false, true},
		{"-1", false, true},
		{"9300000000000", true, false},
		{strings.Repeat("9", 400), false, false},
		{"-" + strings.Repeat("9", 400), false, false},
		{"18446744073709551621", false, false},
		{"1e3", false, false},
		{"5.0", false, false},
		{"NaN", false, false},
		{"Inf", false, false},
		{"-Inf", false, false},
		{"0x5", false, false},
		{"５", false, false},
		{"- 5", false, false},
		{"", false, false},
		{" ", false, false},
		{"5,5", true, true},
		{"5,6", false, false},
	} {
		set := setOf(t, pool.Spec{Ready: true, Annotations: map[string]string{"tier": c.tier}}, pool.Spec{Ready: true, Labels: map[string]string{"tier": "5"}})
		for _, rule := range []struct {
			operator, value string
			want            bool
		}{{"Gt", "4", c.above}, {"Lt", "6", c.below}} {
			want := []int32{1}
			if rule.want {
				want = []int32{0, 1}
			}
			req := &Request{Requirements: requirements("capability", "tier", rule.operator, rule.value)}
			if got := slots(NewIndex(), set, req); !slices.Equal(got, want) {
				t.Errorf("tier %.30q, %s %s: slots %v are left, want %v", c.tier, rule.operator, rule.value, got, want)
			}
		}
	}
}

// The largest need that an intent can state does not wrap around to none.
func TestHD4_AHugeContextFitsNobody(t *testing.T) {
	set := setOf(t, pool.Spec{Ready: true, ContextLimit: 8192}, pool.Spec{Ready: true, ContextLimit: 1})
	for _, c := range []struct {
		tokens int64
		want   []int32
	}{
		{0, []int32{0, 1}}, {1, []int32{0, 1}}, {2, []int32{0}}, {8192, []int32{0}}, {8193, nil}, {1<<32 + 1, nil}, {9300000000000, nil},
		{2 * (1<<53 - 1), nil}, {1<<63 - 1, nil},
	} {
		var res Result
		cut(set, Request{Context: c.tokens}, now, &res)
		if !slices.Equal(res.Slots, c.want) || (res.Cause == ContextExceeded) != (c.want == nil) {
			t.Errorf("%d tokens: slots %v, cause %d; want slots %v", c.tokens, res.Slots, res.Cause, c.want)
		}
	}
}

// A session key is a text of the client's. Whatever it names, the same endpoints may
// serve as without one.
func TestHD8_ASessionKeyNeverChangesWhoMayServe(t *testing.T) {
	tenant := func(name string) map[string]string { return map[string]string{"berth.dev/tenants": name} }
	set := setOf(t,
		pool.Spec{Name: "allowed", Ready: true, ServedModels: []string{"m"}, Annotations: tenant("a")},
		pool.Spec{Name: "other-tenant", Ready: true, ServedModels: []string{"m"}, Annotations: tenant("b")},
		pool.Spec{Name: "other-model", Ready: true, ServedModels: []string{"n"}, Annotations: tenant("a")},
		pool.Spec{Name: "not-ready", ServedModels: []string{"m"}, Annotations: tenant("a")},
		pool.Spec{Name: "leaving", Ready: true, Terminating: true, ServedModels: []string{"m"}, Annotations: tenant("a")},
		pool.Spec{Name: "allowed-too", Ready: true, ServedModels: []string{"m"}, Annotations: tenant("a")},
	)
	reader, err := intent.NewReader(intent.Options{Metadata: true})
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"garbage", "MTAuMC4wLjI6ODAwMA==", "%%%", "a", "m", "b", "*", "", "default/other-tenant", "other-namespace/other-tenant", "10.9.9.9:80", "gone"}
	for _, e := range set.Endpoints {
		keys = append(keys, e.Name, e.Address.String(), "default/pool/"+e.Name, "berth.dev/replica="+e.Name)
	}
	x := NewIndex()
	for _, key := range keys {
		flat := map[string]any{"logicalModel": "m", "requirement.authorization.berth.dev/tenants": "a"}
		if key != "" {
			flat["sessionKey"] = key
		}
		read, err := reader.Read(&intent.Input{Metadata: flat}, now.Time())
		if err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		var res Result
		x.Screen(set, &Request{Models: read.Models, Trusted: true, Requirements: read.Routing.Requirements}, Rules{}, now, &res)
		if !slices.Equal(res.Slots, []int32{0, 5}) {
			t.Errorf("session key %q: slots %v are left, want 0 and 5", key, res.Slots)
		}
	}
}

// Fifty thousand tenants, models and sizes are answered, each as if it were the only
// one, and leave no more memory behind than the last few thousand of them take.
func TestZ2_TenantsWithoutNumberTakeNoMemoryWithoutBound(t *testing.T) {
	if testing.Short() {
		t.Skip("asks 50,000 times")
	}
	const tenants, most = 50_000, 16 << 20
	set, x := setOf(t,
		pool.Spec{Ready: true, ServedModels: []string{"m"}, Annotations: map[string]string{"berth.dev/tenants": "a"}},
		pool.Spec{Ready: true, ServedModels: []string{"m"}, Annotations: map[string]string{"berth.dev/tenants": "a,tenant-49000"}},
	), NewIndex()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, at := heap(), now
	var res Result
	for i := range tenants {
		at = at.Add(time.Millisecond)
		tenant := fmt.Sprint("tenant-", i)
		for _, c := range []struct {
			req  Request
			want []int32
		}{
			{Request{Requirements: requirements("authorization", "berth.dev/tenants", "In", tenant)}, map[bool][]int32{true: {1}}[i == 49000]},
			{Request{Requirements: requirements("authorization", "berth.dev/tenants", "In", tenant, "a")}, []int32{0, 1}},
			{Request{Models: []string{tenant}, Trusted: true}, nil},
			{Request{Models: []string{"m"}, Context: int64(i), Trusted: true}, map[bool][]int32{true: {0, 1}}[i == 0]},
		} {
			x.Screen(set, &c.req, Rules{}, at, &res)
			if !slices.Equal(res.Slots, c.want) {
				t.Fatalf("%s: %+v leaves slots %v, want %v", tenant, c.req, res.Slots, c.want)
			}
		}
	}
	if after := heap(); after > before+most {
		t.Errorf("%d bytes are kept of %d tenants, want at most %d", after-before, tenants, most)
	}
	if n := len(x.Coverage(set)); n > maxCoverage {
		t.Errorf("%d constraints are told of, want at most %d", n, maxCoverage)
	}
	runtime.KeepAlive(x)
}
