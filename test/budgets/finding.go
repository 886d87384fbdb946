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
	// info is a finding without a verdict.
	info verdict = "info"
)

// bound is what a value is held against. The zero bound is none.
type bound struct {
	kind  boundKind
	value float64
}

type boundKind uint8

const (
	unbounded boundKind = iota
	upper
	lower
)

func atMost(v float64) bound  { return bound{upper, v} }
func atLeast(v float64) bound { return bound{lower, v} }

// holds is false for NaN under any bound.
func (b bound) holds(v float64) bool {
	switch b.kind {
	case upper:
		return v <= b.value
	case lower:
		return v >= b.value
	default:
		return true
	}
}

// finding is one measured value.
type finding struct {
	// name has no spaces; it begins with the budget's name.
	name  string
	value float64
	// unit follows the number: "us", "x".
	unit  string
	limit bound
	// advisory findings show their limit and are not held to it.
	advisory bool
	// about says what was measured, and in how many runs.
	about string
}

func (f finding) verdict() verdict {
	switch {
	case f.advisory || f.limit.kind == unbounded:
		return info
	case f.limit.holds(f.value):
		return ok
	default:
		return short
	}
}

func (f finding) String() string {
	limit := "-"
	switch f.limit.kind {
	case upper:
		limit = "<=" + number(f.limit.value) + f.unit
	case lower:
		limit = ">=" + number(f.limit.value) + f.unit
	}
	measured := "unmeasured"
	if !math.IsNaN(f.value) {
		measured = number(f.value) + f.unit
	}
	return fmt.Sprintf("%-5s %-32s %10s %10s  # %s", f.verdict(), f.name, measured, limit, f.about)
}

// number writes v with three digits that count, and all that stand before the
// point.
func number(v float64) string {
	if v == 0 || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	scale := math.Pow10(decimals)
	return strconv.FormatFloat(math.Round(v*scale)/scale, 'f', -1, 64)
}

// budget is one thing to measure. measure reports its findings to the session;
// an error says why there are no more of them.
type budget struct {
	name, what string
	subject    func() (subject, error)
	measure    func(*session) error
}

// measureAll prints findings as they come and tells whether none is short. A
// budget that could not be measured is short.
func measureAll(s *session, chosen []budget, w io.Writer) bool {
	fits := true
	s.report = func(f finding) {
		fmt.Fprintln(w, f)
		fits = fits && f.verdict() != short
	}
	for _, b := range chosen {
		if s.ctx.Err() != nil {
			return false
		}
		s.logf("%s: %s", b.name, b.what)
		if err := s.profiled(b); err != nil {
			s.report(finding{name: b.name, value: math.NaN(), limit: atMost(0), about: err.Error()})
		}
	}
	return fits
}
