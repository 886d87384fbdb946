package main

import (
	"fmt"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/finding"
)

// phase is one state that the replicas are brought into.
type phase struct {
	name, what string
	// traffic is what they get meanwhile, for the manifest.
	traffic string
	// run brings them into it and reports findings; an error says why there are no
	// more of them. Afterwards nobody has anything to do.
	run func(*session, phase) error
}

// Describe makes a phase a part of the command.
func (p phase) Describe() (name, what string) { return p.name, p.what }

// Numbers of requests.
const (
	// throughGateway streams are open at once in phase running.
	throughGateway = 4
	// queued requests are more than a batch holds.
	queued = 3
	// repeated requests have one prompt of so many tokens, all of whose full blocks
	// but the first time are in the prefix cache.
	repeated, repeatedPrompt = 5, 1000
	// asked is how many requests go through the gateway one after the other.
	asked = 10
)

func phases() []phase {
	asks := fmt.Sprintf("%d requests of 4 tokens through the gateway, one after the other", asked)
	direct := func(n, tokens int) string {
		return fmt.Sprintf("%d clients that ask r1 past the gateway for %d tokens each, again and again", n, tokens)
	}
	return []phase{
		{"idle", "nobody asks; what does not change is read", "none", idle},
		{"running", "streams through the gateway", fmt.Sprintf("%d streams of up to %d tokens through the gateway", throughGateway, fitting), running},
		{"caching", "one replica gets the same prompt again", fmt.Sprintf("%d requests to r1 past the gateway with the same prompt of %d tokens", repeated, repeatedPrompt), caching},
		{"queued", "one replica has a full batch and a queue", direct(maxRunning+queued, fitting) + "; " + asks, queueing},
		{"preempting", "one replica's batch does not fit into its KV cache", direct(maxRunning, overflowing) + "; " + asks, preempting},
		{"asleep", "one replica sleeps, then both", asks + ", while r1 sleeps and after; one while both sleep", asleep},
		{"killed", "one replica's server is killed by SIGKILL", asks, killed},
	}
}

// measure runs a phase, which begins with nothing to do.
func (s *session) measure(p phase, report func(finding.Finding)) error {
	s.report = report
	s.logf("%s: %s", p.name, p.what)
	if err := s.quiet(); err != nil {
		return err
	}
	return p.run(s, p)
}

// expect reports a value of a phase that must be the one that is wanted.
func (s *session) expect(p phase, name string, got, want float64, about string, args ...any) {
	s.report(finding.Finding{Name: p.name + "/" + name, Value: got, Limit: finding.Exactly(want), About: fmt.Sprintf(about, args...)})
}

// note keeps what a replica's readings say in a phase, for the table.
func (s *session) note(p phase, r *replica, o *v1alpha1.Observation) error {
	s.readings.add(p.name, o.Fields)
	return s.keepPage(p.name, r)
}

// elsewhere asks while r1 is to be avoided.
func (s *session) elsewhere(p phase) error {
	answers, err := s.ask(asked)
	if err != nil {
		return err
	}
	s.expect(p, "elsewhere", servedBy(answers, s.replicas[1]), asked, "requests through the gateway that r2 served")
	return nil
}
