package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/test/finding"
)

const (
	decisionRounds = 9
	// allocsPerDecision holds for any size of the pool.
	allocsPerDecision = 40
	// Allocations at these two sizes must be the same.
	fewEndpoints, manyEndpoints = 100, 5000
)

var decisionSizes = []int{10, fewEndpoints, 1000, manyEndpoints}

func decisionSubject() (subject, error) {
	var scorers []string
	for _, p := range defaultScorers {
		scorers = append(scorers, fmt.Sprintf("%s x%v", p.kind, p.weight))
	}
	return subject{
		configuration: fmt.Sprintf("a plan without a file: %s, quorum %v", strings.Join(scorers, ", "), quorum),
		served:        model,
		traffic: fmt.Sprintf("decisions back to back on one goroutine, without requests, over pools of %v endpoints whose readings are all fresh; "+
			"load is the same each time, ties break anew", decisionSizes),
	}, nil
}

// decider decides as the host does, between parsing a request and recording the
// decision, in memory that is used again.
type decider struct {
	set      *pool.Set
	plan     *placement.Plan
	key      uint64
	screened screen.Result
	evidence placement.Evidence
	placed   placement.Result
}

func newDecider(endpoints int) (*decider, error) {
	registry, err := freshFleet(endpoints)
	if err != nil {
		return nil, err
	}
	plan, err := defaultPlan()
	if err != nil {
		return nil, err
	}
	d := &decider{set: registry.Set(), plan: plan}
	d.decide()
	if len(d.screened.Slots) != endpoints || d.placed.Rung != placement.Full {
		return nil, fmt.Errorf("%d of %d endpoints screened on rung %s, want all on rung %s",
			len(d.screened.Slots), endpoints, d.placed.Rung, placement.Full)
	}
	return d, nil
}

func (d *decider) decide() {
	// Keys far apart: another tie-break each time.
	d.key += 0x9e3779b97f4a7c15
	screen.Screen(d.set, screen.Request{Model: model}, now, &d.screened)
	for _, slot := range d.screened.Slots {
		d.set.Lives[slot].Touch(now)
	}
	d.evidence.Gather(d.set, d.screened.Slots, now)
	d.plan.Place(&d.evidence, d.key, placement.MaxFallbacks, &d.placed)
}

func measureDecision(s *session) error {
	allocs := map[int]float64{}
	for _, endpoints := range decisionSizes {
		d, err := newDecider(endpoints)
		if err != nil {
			return err
		}
		runtime.GC()
		op, err := newOperation(d.decide)
		if err != nil {
			return err
		}
		cost := math.Inf(1)
		allocs[endpoints] = math.Inf(1)
		for i := range decisionRounds {
			ns, n, err := op.round()
			if err != nil {
				return err
			}
			s.logf("  %d endpoints, round %d: %.0f ns, %.2f allocations", endpoints, i, ns, n)
			cost = min(cost, ns)
			allocs[endpoints] = min(allocs[endpoints], math.Round(n))
		}
		s.report(finding.Finding{
			Name: fmt.Sprintf("decision/%d/cpu", endpoints), Value: cost / 1e3, Unit: "us",
			About: fmt.Sprintf("CPU per decision of %d fresh endpoints, least of %d rounds of %d", endpoints, decisionRounds, op.times),
		})
		s.report(finding.Finding{
			Name: fmt.Sprintf("decision/%d/allocs", endpoints), Value: allocs[endpoints], Limit: finding.AtMost(allocsPerDecision),
			About: "allocations per decision",
		})
	}
	s.report(finding.Finding{
		Name: "decision/allocs-growth", Value: allocs[manyEndpoints] - allocs[fewEndpoints], Limit: finding.AtMost(0),
		About: fmt.Sprintf("allocations per decision at %d endpoints beyond those at %d", manyEndpoints, fewEndpoints),
	})
	return nil
}
