package main

import "github.com/berth-dev/berth/test/finding"

// check is one part of the run.
type check struct {
	name, what string
	// configuration is that of its picker.
	configuration func(size) configuration
	// run reports findings on the picker to the session; an error says why there
	// are no more of them.
	run func(*session, *picker) error
}

// Describe makes a check a part of the command.
func (c check) Describe() (name, what string) { return c.name, c.what }

// measure runs the check on a picker of its own.
func (s *session) measure(c check, report func(finding.Finding)) error {
	s.report = report
	s.logf("%s: %s", c.name, c.what)
	p, err := s.startPicker(c.configuration(s.size))
	if err != nil {
		return err
	}
	err = c.run(s, p)
	if stopErr := p.stop(); err == nil {
		err = stopErr
	}
	return err
}
