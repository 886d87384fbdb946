package main

import (
	"net/http"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/test/finding"
)

// unchanging is what r1's readings must say whatever it does, by what it was told
// in its arguments.
var unchanging = []struct {
	field telemetry.Field
	want  float64
	about string
}{
	{telemetry.ContextLimit, contextLimit, "--max-model-len, tokens"},
	{telemetry.KVBlockSize, blockSize, "--block-size, tokens"},
	{telemetry.KVCacheCapacity, kvBlocks * blockSize, "--num-gpu-blocks-override times --block-size, tokens"},
	{telemetry.MaxConcurrency, float64(kvBlocks*blockSize) / contextLimit, "requests of the full context length that the KV cache holds"},
	{telemetry.PrefixCacheEnabled, 1, "vLLM's default"},
	{telemetry.Sleeping, 0, "it is awake"},
}

func idle(s *session, p phase) error {
	for _, r := range s.replicas {
		o, err := s.see(r, func(o *v1alpha1.Observation) bool {
			return count(o, v1alpha1.Fresh) == telemetry.NumLoadFields && o.Fields["servedModels"].State == v1alpha1.Fresh
		})
		if err != nil {
			return err
		}
		s.expect(p, r.name+"/fresh", float64(count(o, v1alpha1.Fresh)), float64(telemetry.NumLoadFields), "load fields that are fresh")
		for _, f := range telemetry.LoadFields {
			s.expect(p, r.name+"/"+f.String(), number(o, f.String()), 0, "nobody asks")
		}
		s.expect(p, r.name+"/engine", truth(o.Engine == "vllm"), 1, "the replica is known as %s", o.Engine)
		models, _ := o.Fields["servedModels"].Value.([]string)
		s.expect(p, r.name+"/servedModels", truth(slices.Equal(models, []string{servedModel})), 1, "it is said to serve %q", models)
		if r != s.replicas[0] {
			continue
		}
		for _, u := range unchanging {
			s.expect(p, r.name+"/"+u.field.String(), number(o, u.field.String()), u.want, "%s", u.about)
		}
		if err := s.note(p, r, o); err != nil {
			return err
		}
	}
	return nil
}

// asleep makes r1 sleep. vLLM refuses --enable-sleep-mode on a CPU, where weights
// have nowhere to go, but POST /sleep stops the scheduler all the same and says so
// on the page; with VLLM_SERVER_DEV_MODE=1 it is there without the flag.
func asleep(s *session, p phase) (err error) {
	r1, r2 := s.replicas[0], s.replicas[1]
	defer func() {
		for _, r := range s.replicas {
			if woken := s.post(r.url("/wake_up")); err == nil {
				err = woken
			}
		}
	}()
	o, err := s.sleep(r1)
	if err != nil {
		return err
	}
	s.expect(p, "r1/sleeping", number(o, "sleeping"), 1, "after POST /sleep")
	s.expect(p, "r1/excluded", truth(o.Excluded == "asleep_or_unhealthy"), 1, "why it gets no requests: %q", o.Excluded)
	status, _, err := s.get(r1.url("/health"))
	if err != nil {
		return err
	}
	s.report(finding.Finding{Name: p.name + "/r1/health", Value: float64(status), About: "status of the engine's own GET /health while it sleeps"})
	if err := s.note(p, r1, o); err != nil {
		return err
	}
	if err := s.elsewhere(p); err != nil {
		return err
	}

	if o, err = s.sleep(r2); err != nil {
		return err
	}
	s.expect(p, "r2/sleeping", number(o, "sleeping"), 1, "after POST /sleep")
	answers, err := s.ask(1)
	if err != nil {
		return err
	}
	s.expect(p, "nobody", float64(answers[0].status), http.StatusServiceUnavailable, "status of a request while all sleep, reason %q", answers[0].reason)

	for _, r := range s.replicas {
		if err := s.post(r.url("/wake_up")); err != nil {
			return err
		}
		o, err := s.see(r, func(o *v1alpha1.Observation) bool { return number(o, "sleeping") == 0 && o.Excluded == "" })
		if err != nil {
			return err
		}
		s.expect(p, r.name+"/awake", number(o, "sleeping"), 0, "the reading sleeping after POST /wake_up")
	}
	if answers, err = s.ask(asked); err != nil {
		return err
	}
	s.expect(p, "back", servedBy(answers, r1)+servedBy(answers, r2), asked, "requests that are served after both woke up")
	s.report(finding.Finding{Name: p.name + "/r1/back", Value: servedBy(answers, r1), Limit: finding.AtLeast(1), About: "of them by the replica that slept"})
	return nil
}

// sleep makes a replica sleep, at the level at which weights would leave the
// device, and waits until the picker knows.
func (s *session) sleep(r *replica) (*v1alpha1.Observation, error) {
	if err := s.post(r.url("/sleep?level=1")); err != nil {
		return nil, err
	}
	return s.see(r, func(o *v1alpha1.Observation) bool { return number(o, "sleeping") == 1 && o.Excluded != "" })
}

func killed(s *session, p phase) error {
	r1, r2 := s.replicas[0], s.replicas[1]
	r1.killed = true
	if err := r1.kill(); err != nil {
		return err
	}
	answers, err := s.ask(asked)
	if err != nil {
		return err
	}
	s.expect(p, "served", servedBy(answers, r2), asked, "requests, from the moment of the death on, that the other replica served; none failed")
	overridden := 0
	for _, a := range answers {
		if a.acted == "overridden" {
			overridden++
		}
	}
	s.report(finding.Finding{Name: p.name + "/refused", Value: float64(overridden), Limit: finding.AtMost(1), About: "of them, those that had gone to the dead one first"})
	o, err := s.see(r1, func(o *v1alpha1.Observation) bool {
		return o.ScrapeError == "refused" && o.Order == "last" && count(o, v1alpha1.Stale) == telemetry.NumLoadFields
	})
	if err != nil {
		return err
	}
	s.expect(p, "r1/scrape", truth(o.ScrapeError == "refused"), 1, "why its page is not read: %q", o.ScrapeError)
	s.expect(p, "r1/last", truth(o.Order == "last"), 1, "its order is %s", o.Order)
	s.expect(p, "r1/stale", float64(count(o, v1alpha1.Stale)), float64(telemetry.NumLoadFields), "load fields that are stale")
	s.readings.add(p.name, o.Fields)
	if answers, err = s.ask(asked); err != nil {
		return err
	}
	first := 0
	for _, a := range answers {
		if a.acted == "confirmed" && a.served == r2.name {
			first++
		}
	}
	s.expect(p, "picked", float64(first), asked, "requests after that for which the other one was the pick itself")
	return nil
}
