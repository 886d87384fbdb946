package main

import (
	"fmt"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/test/finding"
)

func screeningSubject() (subject, error) {
	return subject{
		configuration: fmt.Sprintf("no file: context limits must be known, quarantine up to %v of the endpoints", rules.QuarantineShare),
		served:        model,
		traffic: fmt.Sprintf("screening back to back on one goroutine, without requests, of %d endpoints by the same demand: "+
			"a trusted model, a context need and %d requirements, all met; once of a pool that stays, once of one that is another each time",
			manyEndpoints, len(requirements)),
	}, nil
}

// screener screens a pool in memory that is used again.
type screener struct {
	index  *screen.Index
	sets   [2]*pool.Set
	turn   int
	demand *screen.Request
	result screen.Result
}

// newScreener has two states of one pool, before and after a replica is replaced.
func newScreener(endpoints int) (*screener, error) {
	list := demanded(endpoints)
	registry, err := freshFleet(list)
	if err != nil {
		return nil, err
	}
	s := &screener{index: screen.NewIndex(), demand: &screen.Request{
		Models: models, Trusted: true, Requirements: requirements, Context: inputTokens + outputTokens,
	}}
	s.sets[0] = registry.Set()
	list = demanded(endpoints)
	list[endpoints/2].Name += "-replaced"
	if err := registry.Update("default/pool", list); err != nil {
		return nil, err
	}
	s.sets[1] = registry.Set()
	for range s.sets {
		s.changed()
		if n := len(s.result.Slots); n != endpoints {
			return nil, fmt.Errorf("%d of %d endpoints are left, want all", n, endpoints)
		}
	}
	return s, nil
}

// unchanged screens the pool as it was.
func (s *screener) unchanged() { s.index.Screen(s.sets[s.turn], s.demand, rules, now, &s.result) }

// changed screens the pool in its other state: nothing that is known of the one
// holds for the other.
func (s *screener) changed() {
	s.turn = 1 - s.turn
	s.unchanged()
}

func measureScreening(s *session) error {
	screener, err := newScreener(manyEndpoints)
	if err != nil {
		return err
	}
	warm, err := least(s, "unchanged", screener.unchanged)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d endpoints by a trusted model, %d requirements and a context need, all met", manyEndpoints, len(requirements))
	s.report(finding.Finding{
		Name: fmt.Sprintf("screening/%d/cpu", manyEndpoints), Value: warm.ns / 1e3, Unit: "us", Limit: finding.AtMost(20),
		About: fmt.Sprintf("CPU of screening %s and asked before, least of %d rounds of %d", what, rounds, warm.times),
	})
	s.report(finding.Finding{
		Name: fmt.Sprintf("screening/%d/allocs", manyEndpoints), Value: warm.allocs, Limit: finding.AtMost(0), About: "allocations of the same",
	})
	anew, err := least(s, "changed", screener.changed)
	if err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: fmt.Sprintf("screening/%d-changed/cpu", manyEndpoints), Value: anew.ns / 1e3, Unit: "us",
		About: fmt.Sprintf("the same of the first request after the pool has changed, least of %d rounds of %d; %s allocations",
			rounds, anew.times, finding.Number(anew.allocs)),
	})
	return nil
}
