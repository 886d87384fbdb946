package placement_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

const now telemetry.Instant = 1000e9

// busyPool is a pool of n endpoints that were all scraped, with some requests in
// flight. For the partial rung, one in ten is stale.
func busyPool(tb testing.TB, n int, rung placement.Rung) *pool.Set {
	tb.Helper()
	specs := make([]pool.Spec, n)
	for i := range specs {
		specs[i] = pool.Spec{
			Name:         fmt.Sprintf("default/replica-%d:8000", i),
			Address:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000),
			Ready:        true,
			ServedModels: []string{"llama-3.1-8b"},
		}
	}
	r := pool.NewRegistry("default/pool", false)
	if err := r.Update("default/pool", specs); err != nil {
		tb.Fatal(err)
	}
	for i, e := range r.Set().Endpoints {
		expires := now + 1
		if rung == placement.Partial && i%10 == 9 {
			expires = now
		}
		page := &telemetry.Snapshot{}
		for f, v := range map[telemetry.Field]float64{
			telemetry.QueueDepth:         float64(i * 7 % 13),
			telemetry.ActiveRequests:     float64(i * 5 % 31),
			telemetry.KVCacheUtilization: float64(i*11%97) / 97,
			telemetry.Health:             1,
			telemetry.Sleeping:           0,
		} {
			page.Readings[f] = telemetry.Reading{Value: v, Recorded: telemetry.Fresh, ExpiresAt: expires}
		}
		e.Answered()
		mark := e.BeginScrape()
		for range i % 4 {
			e.Take(now)
		}
		e.Publish(page, mark)
	}
	return r.Set()
}

// loadPlan weights all load fields with scorers of one pass each.
func loadPlan(tb testing.TB) *placement.Plan {
	tb.Helper()
	var scorers []placement.Scorer
	for _, f := range placement.LoadFields {
		scorers = append(scorers, placement.Scorer{
			Name: f.String(), Weight: 1, Reads: []telemetry.Field{f},
			Score: func(in *placement.Input, out []float64) {
				values, ok := in.Field(f)
				for row := range out {
					out[row] = math.NaN()
					if ok {
						out[row] = 1 / (1 + values[row])
					}
				}
			},
		})
	}
	plan, err := placement.NewPlan(scorers, 0.5)
	if err != nil {
		tb.Fatal(err)
	}
	return plan
}

// decision is what one request does, with the memory that it keeps.
type decision struct {
	index    *screen.Index
	screened screen.Result
	evidence placement.Evidence
	order    placement.Result
}

var models = []string{"llama-3.1-8b"}

func (d *decision) make(set *pool.Set, plan *placement.Plan, key uint64) {
	if d.index == nil {
		d.index = screen.NewIndex()
	}
	d.index.Screen(set, &screen.Request{Models: models}, screen.Rules{}, now, &d.screened)
	d.evidence.Gather(set, d.screened.Slots, now)
	plan.Place(&d.evidence, key, placement.MaxFallbacks, &d.order)
}

// eachRungAndSize runs a benchmark where all is fresh, and where medians have to
// be found.
func eachRungAndSize(b *testing.B, run func(b *testing.B, set *pool.Set, d *decision)) {
	for _, rung := range []placement.Rung{placement.Full, placement.Partial} {
		for _, n := range []int{10, 100, 1000, 5000} {
			b.Run(fmt.Sprintf("rung=%s/endpoints=%d", rung, n), func(b *testing.B) {
				var d decision
				b.ReportAllocs()
				run(b, busyPool(b, n, rung), &d)
				if len(d.screened.Slots) != n || d.order.Rung != rung {
					b.Fatalf("%d of %d screened, rung %s", len(d.screened.Slots), n, d.order.Rung)
				}
			})
		}
	}
}

// keyStep walks the request keys through all of their range.
const keyStep = 0x9e3779b97f4a7c15

func BenchmarkPlace(b *testing.B) {
	plan := loadPlan(b)
	eachRungAndSize(b, func(b *testing.B, set *pool.Set, d *decision) {
		d.make(set, plan, 0)
		key := uint64(0)
		for b.Loop() {
			key += keyStep
			plan.Place(&d.evidence, key, placement.MaxFallbacks, &d.order)
		}
	})
}

func BenchmarkScreenGatherPlace(b *testing.B) {
	plan := loadPlan(b)
	eachRungAndSize(b, func(b *testing.B, set *pool.Set, d *decision) {
		key := uint64(0)
		for b.Loop() {
			key += keyStep
			d.make(set, plan, key)
		}
	})
}

// TestADecisionInUsedMemoryAllocatesAlmostNothing: scorers are called through
// function values, so what they are handed is on the heap. With the race
// detector on, so is what the screen clears its columns with.
func TestADecisionInUsedMemoryAllocatesAlmostNothing(t *testing.T) {
	const limit = 1 + 2
	plan := loadPlan(t)
	for _, rung := range []placement.Rung{placement.Full, placement.Partial} {
		for _, n := range []int{2, 100, 1000} {
			set := busyPool(t, n, rung)
			var d decision
			d.make(set, plan, 0)
			key := uint64(0)
			if allocs := testing.AllocsPerRun(10, func() { key++; d.make(set, plan, key) }); allocs > limit {
				t.Errorf("%s, %d endpoints: %v allocations, want at most %d", rung, n, allocs, limit)
			}
		}
	}
}

// TestAPickIsAlwaysInTheScreenedSet walks the whole way of a request over pools
// in which the screen leaves out every other endpoint.
func TestAPickIsAlwaysInTheScreenedSet(t *testing.T) {
	plan := loadPlan(t)
	set := busyPool(t, 64, placement.Full)
	var entries []string
	for i, e := range set.Endpoints {
		if i%2 == 0 {
			entries = append(entries, e.Destination)
		}
	}
	subset := screen.NewSubset(entries)
	var d decision
	for key := range uint64(1000) {
		screen.NewIndex().Screen(set, &screen.Request{Subset: subset}, screen.Rules{}, now, &d.screened)
		d.evidence.Gather(set, d.screened.Slots, now)
		plan.Place(&d.evidence, key, placement.MaxFallbacks, &d.order)
		if len(d.order.Ranked) != 1+placement.MaxFallbacks {
			t.Fatalf("%d ranked", len(d.order.Ranked))
		}
		for _, row := range d.order.Ranked {
			slot := int(d.screened.Slots[row])
			if slot%2 != 0 || !d.screened.Members().Contains(slot) {
				t.Fatalf("key %d: slot %d is outside the subset", key, slot)
			}
		}
	}
}
