package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
)

const stockPairs = 5

// measureStock decides over the same fleet as the stock scheduler does, in
// turns. Nothing is short by it: the stock scheduler has a module of its own,
// whose first build takes minutes, and a machine may be without the modules.
func measureStock(s *session) error {
	sizes := []struct {
		endpoints int
		// cheaper is how many times cheaper than stock a decision should be.
		cheaper float64
	}{{100, 25}, {1000, 50}, {5000, 80}}

	stock, err := startStock(s)
	if err != nil {
		s.report(finding{
			name: "stock", value: math.NaN(), limit: atLeast(sizes[0].cheaper), unit: "x", advisory: true,
			about: "no stock scheduler to compare with: " + err.Error(),
		})
		return nil
	}
	defer stock.stop()
	for _, size := range sizes {
		d, err := newDecider(size.endpoints)
		if err != nil {
			return err
		}
		runtime.GC()
		op, err := newOperation(d.decide)
		if err != nil {
			return err
		}
		// As many decisions as take a moment at the cost that the budgets assume.
		times := max(1, int(float64(op.times)/size.cheaper))
		var ratios, costs, allocs []float64
		for i := range stockPairs {
			ours, _, err := op.round()
			if err != nil {
				return err
			}
			var theirs, n float64
			if err := stock.ask(&theirs, &n, size.endpoints, times); err != nil {
				return err
			}
			s.logf("  %d endpoints, pair %d: %.0f ns, stock %.0f ns and %.0f allocations", size.endpoints, i, ours, theirs, n)
			ratios, costs, allocs = append(ratios, theirs/ours), append(costs, theirs), append(allocs, n)
		}
		s.report(finding{
			name: fmt.Sprintf("stock/%d/ratio", size.endpoints), value: median(ratios), unit: "x",
			limit: atLeast(size.cheaper), advisory: true,
			about: fmt.Sprintf("stock scheduler's CPU to ours, median of %d alternating pairs; stock takes %s us and %s allocations per decision",
				stockPairs, number(median(costs)/1e3), number(median(allocs))),
		})
	}
	return nil
}

// startStock builds the stock scheduler, once per version of it, and starts it.
func startStock(s *session) (*child, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	binary := filepath.Join(cache, "berth", "budgets", "stock")
	if _, err := os.Stat(binary); err != nil {
		fmt.Fprintln(os.Stderr, "budgets: building the stock scheduler; the first time takes minutes")
	}
	if err := s.build(filepath.Join(s.root, "test", "budgets", "stock"), ".", binary); err != nil {
		return nil, err
	}
	return s.start(binary)
}
