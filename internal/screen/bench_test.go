package screen

import (
	"fmt"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
)

// BenchmarkScreen cuts a pool of 5,000 by a model, six requirements and a context
// need, when each of them has been asked before.
func BenchmarkScreen(b *testing.B) {
	const endpoints = 5000
	set := labelled(b, endpoints)
	req := demanding()
	x := NewIndex()
	var res Result
	b.ReportAllocs()
	for b.Loop() {
		x.Screen(set, &req, Rules{QuarantineShare: 0.5}, now, &res)
	}
	if len(res.Slots) == 0 {
		b.Fatalf("cause %d", res.Cause)
	}
}

// BenchmarkScreenAnew is the same by an index that knows nothing yet.
func BenchmarkScreenAnew(b *testing.B) {
	set := labelled(b, 5000)
	req := demanding()
	var res Result
	b.ReportAllocs()
	for b.Loop() {
		NewIndex().Screen(set, &req, Rules{QuarantineShare: 0.5}, now, &res)
	}
}

func TestScreeningWhatWasAskedBeforeAllocatesNothing(t *testing.T) {
	set := labelled(t, 5000)
	req := demanding()
	x := NewIndex()
	var res Result
	x.Screen(set, &req, Rules{QuarantineShare: 0.5}, now, &res)
	if n := testing.AllocsPerRun(100, func() { x.Screen(set, &req, Rules{QuarantineShare: 0.5}, now, &res) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// labelled is a pool in which most endpoints meet what demanding demands.
func labelled(t testing.TB, n int) *pool.Set {
	specs := make([]pool.Spec, n)
	for i := range specs {
		specs[i] = pool.Spec{
			Address: address(i), Ready: true, ServedModels: []string{"m"}, ContextLimit: 8192 << (i % 3),
			Labels: map[string]string{
				v1alpha1.AttributeResidency: []string{"eu", "eu", "us"}[i%3], v1alpha1.AttributeTier: fmt.Sprint(i % 5), "team": "a",
			},
			Annotations: map[string]string{v1alpha1.AttributeTenants: fmt.Sprintf("a,t%d", i%50), v1alpha1.AttributeSafety: "filtered"},
		}
	}
	return setOf(t, specs...)
}

func demanding() Request {
	return Request{
		Models: []string{"m"}, Trusted: true, Context: 4096,
		Requirements: []v1alpha1.Requirement{
			{Class: v1alpha1.Authorization, Key: v1alpha1.AttributeTenants, Operator: v1alpha1.In, Values: []string{"a", "b"}},
			{Class: v1alpha1.Safety, Key: v1alpha1.AttributeSafety, Operator: v1alpha1.In, Values: []string{"filtered"}},
			{Class: v1alpha1.Residency, Key: v1alpha1.AttributeResidency, Operator: v1alpha1.In, Values: []string{"eu"}},
			{Class: v1alpha1.Residency, Key: "embargo", Operator: v1alpha1.DoesNotExist},
			{Class: v1alpha1.Capability, Key: v1alpha1.AttributeTier, Operator: v1alpha1.Gt, Values: []string{"0"}},
			{Class: v1alpha1.Placement, Key: "team", Operator: v1alpha1.NotIn, Values: []string{"b"}},
		},
	}
}
