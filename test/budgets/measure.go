package main

import (
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// roundTime is the CPU time that one round of a small operation should take:
// long enough for the clock and for garbage collection to even out.
const roundTime = 60 * time.Millisecond

// operation is something small that is measured by doing it many times.
type operation struct {
	do func()
	// times is how often a round does it.
	times int
}

// newOperation finds out how often a round has to do it.
func newOperation(do func()) (*operation, error) {
	o := &operation{do: do, times: 1}
	for {
		cost, _, err := o.round()
		if err != nil {
			return nil, err
		}
		took := cost * float64(o.times)
		if took >= float64(roundTime)/4 {
			o.times = max(1, int(float64(roundTime)/cost))
			return o, nil
		}
		o.times *= 4
	}
}

// round returns nanoseconds of CPU and allocations per operation, the garbage
// collector's share included.
func (o *operation) round() (ns, allocs float64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, err := processCPU(os.Getpid())
	if err != nil {
		return 0, 0, err
	}
	for range o.times {
		o.do()
	}
	end, err := processCPU(os.Getpid())
	if err != nil {
		return 0, 0, err
	}
	runtime.ReadMemStats(&after)
	n := float64(o.times)
	return float64(end-start) / n, float64(after.Mallocs-before.Mallocs) / n, nil
}

// cost is what an operation takes: nanoseconds of CPU, and allocations to the
// nearest whole one, since what else the process does may allocate, too.
type cost struct {
	ns, allocs float64
	// times is how often a round did it.
	times int
}

// rounds is how often an operation's cost is measured.
const rounds = 9

// least is the cost in the least of several rounds: what disturbs a round only
// ever adds to it. label names the operation in what -v tells.
func least(s *session, label string, do func()) (cost, error) {
	runtime.GC()
	op, err := newOperation(do)
	if err != nil {
		return cost{}, err
	}
	c := cost{math.Inf(1), math.Inf(1), op.times}
	for i := range rounds {
		ns, n, err := op.round()
		if err != nil {
			return cost{}, err
		}
		s.logf("  %s, round %d: %.0f ns, %.2f allocations", label, i, ns, n)
		c.ns, c.allocs = min(c.ns, ns), min(c.allocs, math.Round(n))
	}
	return c, nil
}

// comparison is what rounds of two operations in turns have shown, in
// nanoseconds of CPU and allocations per operation.
type comparison struct {
	ours, theirs, allocs float64
	// ratio is the median, over the pairs of rounds, of ours to theirs.
	ratio float64
}

// compare takes the least of several rounds of each, an odd number of them.
func compare(s *session, rounds int, ours, theirs func()) (comparison, error) {
	runtime.GC()
	a, err := newOperation(ours)
	if err != nil {
		return comparison{}, err
	}
	b, err := newOperation(theirs)
	if err != nil {
		return comparison{}, err
	}
	var as, bs, allocs, ratios []float64
	one := func(o *operation, ns *[]float64) error {
		cost, n, err := o.round()
		*ns = append(*ns, cost)
		if o == a {
			allocs = append(allocs, n)
		}
		return err
	}
	for i := range rounds {
		first, second := a, b
		firstNS, secondNS := &as, &bs
		if i%2 == 1 {
			first, second, firstNS, secondNS = b, a, &bs, &as
		}
		if err := one(first, firstNS); err != nil {
			return comparison{}, err
		}
		if err := one(second, secondNS); err != nil {
			return comparison{}, err
		}
		ratios = append(ratios, as[i]/bs[i])
		s.logf("  round %d: %.0f ns, beside %.0f ns", i, as[i], bs[i])
	}
	return comparison{slices.Min(as), slices.Min(bs), slices.Min(allocs), median(ratios)}, nil
}

// median of an odd number of values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// liveMemory is what the process holds after garbage collection: heap and
// stacks, in bytes.
func liveMemory() (heap, stacks float64) {
	// The second collection empties what sync.Pool keeps over one.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(m.StackInuse)
}
