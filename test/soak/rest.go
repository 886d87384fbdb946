package main

import (
	"fmt"
	"math"

	"github.com/berth-dev/berth/test/finding"
)

// rest waits until a picker has nothing to do and nothing in it changes any more.
func (s *session) rest(p *picker) (reading, error) {
	// quiet is how many readings in a row must be alike.
	const quiet = 10
	var r reading
	alike := 0
	err := s.await("a picker without requests comes to rest", func() (bool, error) {
		now, err := p.read(s.ctx)
		if err != nil {
			return false, err
		}
		alike++
		if now.goroutines != r.goroutines || now.descriptors != r.descriptors ||
			now.inFlight() != 0 || now.streams() != 0 || now.held() != 0 {
			alike = 0
		}
		r = now
		return alike == quiet, nil
	})
	return r, err
}

// warmUp passes whole requests, so that what is made once is made and the ring
// of decisions is full, and returns the picker at rest.
func (s *session) warmUp(p *picker) (reading, error) {
	g, err := dial(p.address)
	if err != nil {
		return reading{}, err
	}
	defer g.close()
	for _, m := range modes {
		if err := pass(s.ctx, g, usual(m), ring/len(modes)); err != nil {
			return reading{}, err
		}
	}
	g.close()
	return s.rest(p)
}

// compare waits until a picker is as it was, and reports what it still has
// more, and by how much the heap has grown, which may be growth MiB.
func (s *session) compare(name string, p *picker, base reading, growth float64) error {
	var r reading
	_, err := s.until(func() (bool, error) {
		var err error
		r, err = p.read(s.ctx)
		return err == nil && len(leftBehind(base, r)) == 0 && (r.heap-base.heap)/mebibyte <= growth, err
	})
	if err != nil {
		return err
	}
	left := leftBehind(base, r)
	about := fmt.Sprintf("kinds of things left behind; as before: %d goroutines, %d descriptors; %s placed requests have one outcome each",
		r.goroutines, r.descriptors, finding.Number(r.placed()))
	if len(left) > 0 {
		about = fmt.Sprint("left behind: ", left)
	}
	s.report(finding.Finding{Name: name + "/left-behind", Value: float64(len(left)), Limit: finding.Exactly(0), About: about})
	s.report(finding.Finding{
		Name: name + "/heap", Value: (r.heap - base.heap) / mebibyte, Unit: "MiB", Limit: finding.AtMost(growth),
		About: fmt.Sprintf("growth of the live heap; resident %s MiB, %s MiB at most", finding.Number(r.resident/mebibyte), finding.Number(r.peak/mebibyte)),
	})
	return nil
}

// leftBehind says what a picker that should be at rest has more than before.
func leftBehind(base, now reading) []string {
	var left []string
	for _, c := range []struct {
		what      string
		now, base float64
	}{
		{"requests in flight", now.inFlight(), 0},
		{"streams", now.streams(), 0},
		{"bytes held", now.held(), 0},
		{"goroutines", float64(now.goroutines), float64(base.goroutines)},
		{"descriptors", float64(now.descriptors), float64(base.descriptors)},
		{"placed requests without an outcome, or with two", math.Abs(now.placed() - now.outcomes()), 0},
		{"contained faults", now.faults(), 0},
	} {
		if c.now > c.base {
			left = append(left, finding.Number(c.now-c.base)+" "+c.what)
		}
	}
	return left
}
