package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"github.com/berth-dev/berth/test/finding"
)

const stockPairs = 5

// stockSizes are the pools, and how many times cheaper than stock a decision
// should be.
var stockSizes = []struct {
	endpoints int
	cheaper   float64
}{{100, 25}, {1000, 50}, {5000, 80}}

func stockSubject() (subject, error) {
	about, err := decisionSubject()
	var sizes []int
	for _, size := range stockSizes {
		sizes = append(sizes, size.endpoints)
	}
	about.configuration += "; beside the scheduler of GIE v1.5.0 with its own scorers of the same three fields, weighted alike"
	about.traffic = fmt.Sprintf("decisions back to back, without requests, over pools of %v endpoints whose readings are all fresh; "+
		"the same load on both sides, ties break anew", sizes)
	return about, err
}

// measureStock decides over the same fleet as the stock scheduler does, in
// turns. Nothing is short by it: the stock scheduler has a module of its own,
// whose first build takes minutes, and a machine may be without the modules.
func measureStock(s *session) error {
	stock, err := startStock(s)
	if err != nil {
		s.report(finding.Finding{
			Name: "stock", Value: math.NaN(), Limit: finding.AtLeast(stockSizes[0].cheaper), Unit: "x", Advisory: true,
			About: "no stock scheduler to compare with: " + err.Error(),
		})
		return nil
	}
	defer stock.stop()
	for _, size := range stockSizes {
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
		s.report(finding.Finding{
			Name: fmt.Sprintf("stock/%d/ratio", size.endpoints), Value: median(ratios), Unit: "x",
			Limit: finding.AtLeast(size.cheaper), Advisory: true,
			About: fmt.Sprintf("stock scheduler's CPU to ours, median of %d alternating pairs; stock takes %s us and %s allocations per decision",
				stockPairs, finding.Number(median(costs)/1e3), finding.Number(median(allocs))),
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
