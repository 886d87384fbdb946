package main

import (
	"path/filepath"

	"github.com/berth-dev/berth/test/finding"
)

// budget is one thing to measure.
type budget struct {
	name, what string
	subject    func() (subject, error)
	// measure reports its findings to the session; an error says why there are no
	// more of them.
	measure func(*session) error
}

// Describe makes a budget a part of the command.
func (b budget) Describe() (name, what string) { return b.name, b.what }

// measure measures b, with a CPU profile of this process where one is wanted.
func (s *session) measure(b budget, report func(finding.Finding)) error {
	s.report = report
	s.logf("%s: %s", b.name, b.what)
	if s.profiles != "" {
		stop, err := startProfile(filepath.Join(s.profiles, b.name+".pprof"))
		if err != nil {
			return err
		}
		defer stop()
	}
	return b.measure(s)
}
