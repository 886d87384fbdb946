package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/test/finding"
)

const (
	// allocsPerDecision holds for any size of the pool.
	allocsPerDecision = 40
	// Allocations at these two sizes must be the same.
	fewEndpoints, manyEndpoints = 100, 5000
	// demandedEndpoints are the pool that requests with an intent are decided over.
	demandedEndpoints = 1000
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
			"load is the same each time, ties break anew; over %d endpoints also with an intent in metadata, the same each time, that is read for each decision: "+
			"an alias, a context need and %d requirements that every endpoint meets", decisionSizes, demandedEndpoints, len(requirements)),
	}, nil
}

// decider decides as the host does, between parsing a request and recording the
// decision, in memory that is used again.
type decider struct {
	set      *pool.Set
	index    *screen.Index
	plan     *placement.Plan
	key      uint64
	screened screen.Result
	evidence placement.Evidence
	placed   placement.Result
}

func newDecider(endpoints int) (*decider, error) {
	return newDeciderOver(specs(endpoints))
}

func newDeciderOver(list []pool.Spec) (*decider, error) {
	registry, err := freshFleet(list)
	if err != nil {
		return nil, err
	}
	plan, err := defaultPlan()
	if err != nil {
		return nil, err
	}
	d := &decider{set: registry.Set(), index: screen.NewIndex(), plan: plan}
	d.decide()
	return d, d.placedAll()
}

// placedAll is an error unless the last decision was one of all endpoints.
func (d *decider) placedAll() error {
	if len(d.screened.Slots) != len(d.set.Endpoints) || d.placed.Rung != placement.Full {
		return fmt.Errorf("%d of %d endpoints screened on rung %s, want all on rung %s",
			len(d.screened.Slots), len(d.set.Endpoints), d.placed.Rung, placement.Full)
	}
	return nil
}

func (d *decider) decide() { d.place(&screen.Request{Models: models}) }

// place decides what is demanded.
func (d *decider) place(demand *screen.Request) {
	// Keys far apart: another tie-break each time.
	d.key += 0x9e3779b97f4a7c15
	d.index.Screen(d.set, demand, rules, now, &d.screened)
	for _, slot := range d.screened.Slots {
		d.set.Lives[slot].Touch(now)
	}
	d.evidence.Gather(d.set, d.screened.Slots, now)
	d.plan.Place(&d.evidence, d.key, placement.MaxFallbacks, &d.placed)
}

// intentDecider decides requests that bring an intent in metadata.
type intentDecider struct {
	*decider
	intents *intent.Reader
	input   intent.Input
	err     error
}

func newIntentDecider(endpoints int) (*intentDecider, error) {
	inner, err := newDeciderOver(demanded(endpoints))
	if err != nil {
		return nil, err
	}
	reader, err := intent.NewReader(metadataOptions)
	if err != nil {
		return nil, err
	}
	tree, err := intentTree()
	if err != nil {
		return nil, err
	}
	d := &intentDecider{decider: inner, intents: reader, input: intent.Input{Metadata: map[string]any{"intent": tree}}}
	d.decide()
	if d.err != nil {
		return nil, d.err
	}
	return d, d.placedAll()
}

// decide reads the intent as well.
func (d *intentDecider) decide() {
	read, err := d.intents.Read(&d.input, wall)
	if err != nil {
		d.err = err
		return
	}
	d.place(demandOf(read))
}

func measureDecision(s *session) error {
	allocs := map[int]float64{}
	for _, endpoints := range decisionSizes {
		d, err := newDecider(endpoints)
		if err != nil {
			return err
		}
		c, err := reportDecision(s, strconv.Itoa(endpoints), fmt.Sprintf("of %d fresh endpoints", endpoints), d.decide)
		if err != nil {
			return err
		}
		allocs[endpoints] = c.allocs
	}
	s.report(finding.Finding{
		Name: "decision/allocs-growth", Value: allocs[manyEndpoints] - allocs[fewEndpoints], Limit: finding.AtMost(0),
		About: fmt.Sprintf("allocations per decision at %d endpoints beyond those at %d", manyEndpoints, fewEndpoints),
	})
	d, err := newIntentDecider(demandedEndpoints)
	if err != nil {
		return err
	}
	about := fmt.Sprintf("of %d fresh endpoints by an intent in metadata with %d requirements, its reading included", demandedEndpoints, len(requirements))
	_, err = reportDecision(s, strconv.Itoa(demandedEndpoints)+"-intent", about, d.decide)
	return errors.Join(err, d.err)
}

// reportDecision tells what decisions of one kind cost.
func reportDecision(s *session, name, about string, decide func()) (cost, error) {
	c, err := least(s, name, decide)
	if err != nil {
		return cost{}, err
	}
	s.report(finding.Finding{
		Name: "decision/" + name + "/cpu", Value: c.ns / 1e3, Unit: "us",
		About: fmt.Sprintf("CPU per decision %s, least of %d rounds of %d", about, rounds, c.times),
	})
	s.report(finding.Finding{
		Name: "decision/" + name + "/allocs", Value: c.allocs, Limit: finding.AtMost(allocsPerDecision),
		About: "allocations per decision",
	})
	return c, nil
}
