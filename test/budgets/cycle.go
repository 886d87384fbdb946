package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/test/finding"
)

const (
	cyclePairs    = 5
	cycleRequests = 5000
	cycleStreams  = 8
	// warmUp is how many requests come before the clock is read.
	warmUp = 1000

	recordEndpoints = 100
	recordPairs     = 5
	recordRequests  = 2000
)

var (
	cyclePicker       = setup{endpoints: 10, candidates: 512, ring: 1000}
	withCandidates    = setup{endpoints: recordEndpoints, candidates: recordEndpoints, ring: 1000}
	withoutCandidates = setup{endpoints: recordEndpoints, candidates: 0, ring: 1000}
)

func cycleSubject() (subject, error) {
	configuration, err := pickers(cyclePicker)
	return subject{configuration, model, exchanges(cyclePairs, cycleRequests)}, err
}

func recordSubject() (subject, error) {
	configuration, err := pickers(withCandidates, withoutCandidates)
	return subject{configuration, model, exchanges(recordPairs, recordRequests)}, err
}

// exchanges is the traffic that alternate makes.
func exchanges(pairs, requests int) string {
	return fmt.Sprintf("ext_proc frames without a gateway or replicas: %d streams at a time on one connection, each with its next request "+
		"when its last is answered; chat requests of %d bytes, all the same, with responses of %d bytes in one part; "+
		"%d before the clock is read, then %d rounds of %d at each server in turns",
		cycleStreams, bodyBytes, bodyBytes, warmUp, pairs, requests)
}

// measureCycle holds the picker against a server that only answers.
func measureCycle(s *session) error {
	picker, err := s.startPicker("picker", cyclePicker.config())
	if err != nil {
		return err
	}
	defer picker.stop()
	var profile []string
	if s.profiles != "" {
		profile = append(profile, filepath.Join(s.profiles, "empty-server.pprof"))
	}
	empty, err := s.play("empty-server", profile...)
	if err != nil {
		return err
	}
	defer empty.stop()
	costs, err := alternate(s, cyclePairs, cycleRequests, picker, empty)
	if err != nil {
		return err
	}
	var ratios []float64
	for i := range cyclePairs {
		ratios = append(ratios, costs[0][i]/costs[1][i])
	}
	s.report(finding.Finding{
		Name: "picker-cycle/ratio", Value: median(ratios), Unit: "x", Limit: finding.AtMost(1.25),
		About: fmt.Sprintf("CPU per request to that of an empty ext_proc server: 1 KB both ways, 10 endpoints, decision log on; "+
			"median of %d alternating pairs of %d requests on %d streams; %s us beside %s us",
			cyclePairs, cycleRequests, cycleStreams, finding.Number(median(costs[0])), finding.Number(median(costs[1]))),
	})
	return nil
}

// measureRecord tells what listing the candidates costs: the same picker with
// and without them in its records.
func measureRecord(s *session) error {
	with, err := s.startPicker("with-candidates", withCandidates.config())
	if err != nil {
		return err
	}
	defer with.stop()
	without, err := s.startPicker("without-candidates", withoutCandidates.config())
	if err != nil {
		return err
	}
	defer without.stop()
	costs, err := alternate(s, recordPairs, recordRequests, with, without)
	if err != nil {
		return err
	}
	var extra []float64
	for i := range recordPairs {
		extra = append(extra, costs[0][i]-costs[1][i])
	}
	s.report(finding.Finding{
		Name: "record/100/cpu", Value: median(extra), Unit: "us",
		About: fmt.Sprintf("CPU per request to record %d candidates and to write them to the log: pickers with and without, "+
			"median of %d alternating pairs of %d requests; %s us beside %s us in all",
			recordEndpoints, recordPairs, recordRequests, finding.Number(median(costs[0])), finding.Number(median(costs[1]))),
	})
	return nil
}

// alternate drives two servers in turns and returns the microseconds of CPU per
// request that each took, by round.
func alternate(s *session, pairs, requests int, servers ...*child) ([][]float64, error) {
	gateways := make([]*gateway, len(servers))
	costs := make([][]float64, len(servers))
	for i, server := range servers {
		g, err := dial(server.address)
		if err != nil {
			return nil, err
		}
		defer g.close()
		gateways[i] = g
		if err := g.run(s.ctx, warmUp, cycleStreams); err != nil {
			return nil, err
		}
	}
	for pair := range pairs {
		for turn := range servers {
			i := (pair + turn) % len(servers)
			before, err := servers[i].cpu(s.ctx)
			if err != nil {
				return nil, err
			}
			if err := gateways[i].run(s.ctx, requests, cycleStreams); err != nil {
				return nil, err
			}
			after, err := servers[i].cpu(s.ctx)
			if err != nil {
				return nil, err
			}
			costs[i] = append(costs[i], float64(after-before)/float64(time.Microsecond)/float64(requests))
		}
		s.logf("  pair %d: %.1f us, beside %.1f us", pair, costs[0][pair], costs[1][pair])
	}
	return costs, nil
}
