package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
)

// verdict is the first word of a line.
type verdict string

const (
	ok    verdict = "ok"
	short verdict = "short"
)

// limit is what a value is held against.
type limit struct {
	value float64
	// orLess allows what is below, too.
	orLess bool
}

func atMost(v float64) limit  { return limit{v, true} }
func exactly(v float64) limit { return limit{v, false} }

// finding is one measured value.
type finding struct {
	// name has no spaces; it begins with the check's name.
	name string
	// value is NaN where it could not be measured.
	value float64
	// unit follows the number: "MiB".
	unit  string
	limit limit
	// about says what was measured.
	about string
}

func (f finding) verdict() verdict {
	// NaN is neither.
	if f.value == f.limit.value || f.limit.orLess && f.value < f.limit.value {
		return ok
	}
	return short
}

func (f finding) String() string {
	measured, sign := "unmeasured", "="
	if !math.IsNaN(f.value) {
		measured = number(f.value) + f.unit
	}
	if f.limit.orLess {
		sign = "<="
	}
	return fmt.Sprintf("%-5s %-28s %12s %12s  # %s", f.verdict(), f.name, measured, sign+number(f.limit.value)+f.unit, f.about)
}

// number writes v with at most two decimals.
func number(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

// check is one part of the run.
type check struct {
	name, what string
	// configuration is that of its picker.
	configuration func(size) configuration
	// run reports findings on the picker to the session; an error says why there
	// are no more of them.
	run func(*session, *picker) error
}

// on runs the check on a picker of its own.
func (c check) on(s *session) error {
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

// checkAll prints findings as they come and tells whether none is short. A check
// that could not be run to its end is short.
func checkAll(s *session, chosen []check, w io.Writer) bool {
	fits := true
	s.report = func(f finding) {
		fmt.Fprintln(w, f)
		fits = fits && f.verdict() != short
	}
	for _, c := range chosen {
		if s.ctx.Err() != nil {
			return false
		}
		s.logf("%s: %s", c.name, c.what)
		if err := c.on(s); err != nil {
			s.report(finding{name: c.name, value: math.NaN(), limit: exactly(0), about: err.Error()})
		}
	}
	return fits
}
