package main

import (
	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/finding"
)

func running(s *session, p phase) error {
	streams, err := s.open(throughGateway, fitting)
	if err != nil {
		return err
	}
	defer streams.leave()
	served := 0
	for i, r := range s.replicas {
		want := streams.served[r.name]
		served += want
		o, err := s.see(r, func(o *v1alpha1.Observation) bool {
			return number(o, "activeRequests") == float64(want) && int(o.InFlight) == want
		})
		if err != nil {
			return err
		}
		s.expect(p, r.name+"/activeRequests", number(o, "activeRequests"), float64(want), "streams that the picker's records say are there")
		s.expect(p, r.name+"/inFlight", float64(o.InFlight), float64(want), "streams that the picker counts there itself")
		s.expect(p, r.name+"/queueDepth", number(o, "queueDepth"), 0, "its batch has room for all of them")
		if i == 0 {
			if err := s.note(p, r, o); err != nil {
				return err
			}
		}
	}
	s.expect(p, "served", float64(served), throughGateway, "streams that a replica of the pool serves")
	return nil
}

// cached is the share of a repeated prompt that the prefix cache gives, at the
// least: of 1000 tokens 7 full blocks, in all requests but the first.
var cached = []limited{{"prefixCacheHitRatio", 0.4, "tokens of prompts that were in the cache"}}

func caching(s *session, p phase) error {
	r := s.replicas[0]
	for range repeated {
		req, err := repetition(s.ctx, r.address)
		if err != nil {
			return err
		}
		if err := s.finish(req); err != nil {
			return err
		}
	}
	o, err := s.see(r, func(o *v1alpha1.Observation) bool { return reached(o, cached) })
	if err != nil {
		return err
	}
	s.growing(p, r, o, cached)
	return s.note(p, r, o)
}

// counted is what a replica with a queue has a mean or a rate of. Times are
// seconds; no limit is one of speed.
var counted = []limited{
	{"promptThroughput", 0.01, "tokens of prompts a second"},
	{"generationThroughput", 1, "tokens a second"},
	{"ttft", 0.0001, "mean time to the first token"},
	{"itl", 0.0001, "mean time between tokens"},
	{"tpot", 0.0001, "mean time per token of a request"},
	{"e2e", 0.001, "mean time of a request"},
	{"queueTime", 0.001, "mean time in the queue"},
}

func queueing(s *session, p phase) (err error) {
	r := s.replicas[0]
	leave := s.occupy(r, maxRunning+queued, fitting)
	defer func() {
		if left := leave(); err == nil {
			err = left
		}
	}()
	o, err := s.see(r, func(o *v1alpha1.Observation) bool {
		return number(o, "activeRequests") == maxRunning && number(o, "queueDepth") == queued && reached(o, counted)
	})
	if err != nil {
		return err
	}
	s.expect(p, "r1/activeRequests", number(o, "activeRequests"), maxRunning, "of %d requests, the batch that --max-num-seqs allows", maxRunning+queued)
	s.expect(p, "r1/queueDepth", number(o, "queueDepth"), queued, "and the rest")
	s.growing(p, r, o, counted)
	if err := s.note(p, r, o); err != nil {
		return err
	}
	return s.elsewhere(p)
}

// pressed is a replica whose KV cache has no block for each request of a batch.
var pressed = []limited{
	{"kvCacheUtilization", 0.9, "share of the blocks that requests refer to"},
	{"preemptionRate", 0.001, "preemptions a second"},
}

func preempting(s *session, p phase) (err error) {
	r := s.replicas[0]
	page, err := s.page(r)
	if err != nil {
		return err
	}
	const family = "vllm:num_preemptions_total"
	before, _ := counter(page, family)
	leave := s.occupy(r, maxRunning, overflowing)
	defer func() {
		if left := leave(); err == nil {
			err = left
		}
	}()
	// The counter moves only when a request that was preempted goes on.
	after := before
	o, err := s.see(r, func(o *v1alpha1.Observation) bool {
		if page, err := s.page(r); err == nil {
			after, _ = counter(page, family)
		}
		return after > before && reached(o, pressed)
	})
	if err != nil {
		return err
	}
	s.report(finding.Finding{Name: p.name + "/r1/engine", Value: after - before, Limit: finding.AtLeast(1), About: "preemptions by the engine's own counter"})
	s.growing(p, r, o, pressed)
	if err := s.note(p, r, o); err != nil {
		return err
	}
	return s.elsewhere(p)
}
