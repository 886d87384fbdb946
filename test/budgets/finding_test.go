package main

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestAVerdictFollowsFromTheValueAndItsLimit(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name string
		f    finding
		want verdict
	}{
		{"below the most", finding{value: 1, limit: atMost(2)}, ok},
		{"at the most", finding{value: 2, limit: atMost(2)}, ok},
		{"above the most", finding{value: 2.001, limit: atMost(2)}, short},
		{"above the least", finding{value: 3, limit: atLeast(2)}, ok},
		{"at the least", finding{value: 2, limit: atLeast(2)}, ok},
		{"below the least", finding{value: 1.999, limit: atLeast(2)}, short},
		{"zero at a most of zero", finding{value: 0, limit: atMost(0)}, ok},
		{"no value, at most", finding{value: nan, limit: atMost(2)}, short},
		{"no value, at least", finding{value: nan, limit: atLeast(2)}, short},
		{"infinite, at most", finding{value: math.Inf(1), limit: atMost(2)}, short},
		{"no limit", finding{value: 1}, info},
		{"no limit and no value", finding{value: nan}, info},
		{"a limit that is not held to, kept", finding{value: 3, limit: atLeast(2), advisory: true}, info},
		{"a limit that is not held to, missed", finding{value: 1, limit: atLeast(2), advisory: true}, info},
		{"a limit that is not held to, no value", finding{value: nan, limit: atLeast(2), advisory: true}, info},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.f.verdict(); got != tc.want {
				t.Errorf("verdict is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestALineBeginsWithVerdictNameMeasuredAndLimit(t *testing.T) {
	for _, tc := range []struct {
		f    finding
		want string
	}{
		{finding{name: "a/ratio", value: 1.2345, unit: "x", limit: atMost(1.25), about: "five pairs"}, "ok a/ratio 1.23x <=1.25x # five pairs"},
		{finding{name: "b", value: 41, limit: atMost(40), about: "all"}, "short b 41 <=40 # all"},
		{finding{name: "c", value: 0.5, unit: "x", limit: atLeast(0.8), about: "all"}, "short c 0.5x >=0.8x # all"},
		{finding{name: "d", value: 3.25, unit: "us", about: "all"}, "info d 3.25us - # all"},
		{finding{name: "e", value: math.NaN(), unit: "us", limit: atMost(1), about: "no clock"}, "short e unmeasured <=1us # no clock"},
	} {
		if got := strings.Join(strings.Fields(tc.f.String()), " "); got != tc.want {
			t.Errorf("line is %q, want %q", got, tc.want)
		}
	}
}

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 2: "2", -2: "-2", 0.0123456: "0.0123", 0.5: "0.5", 1.2345: "1.23", 12.345: "12.3", 123.45: "123", 12345.6: "12346",
		9.999: "10", math.Inf(1): "+Inf",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestARunFitsOnlyIfNoFindingIsShort(t *testing.T) {
	reporting := func(findings ...finding) func(*session) error {
		return func(s *session) error {
			for _, f := range findings {
				s.report(f)
			}
			return nil
		}
	}
	kept := finding{name: "kept", value: 1, limit: atMost(1)}
	missed := finding{name: "missed", value: 2, limit: atMost(1)}
	told := finding{name: "told", value: 2}
	for _, tc := range []struct {
		name   string
		chosen []budget
		fits   bool
		lines  string
	}{
		{"all kept", []budget{{"a", "", nil, reporting(kept, told)}}, true, "ok kept, info told"},
		{"the first missed", []budget{{"a", "", nil, reporting(missed)}, {"b", "", nil, reporting(kept)}}, false, "short missed, ok kept"},
		{"the last missed", []budget{{"a", "", nil, reporting(kept, missed)}}, false, "ok kept, short missed"},
		{
			"one cannot be measured",
			[]budget{{"a", "", nil, func(*session) error { return errors.New("no clock") }}, {"b", "", nil, reporting(kept)}},
			false, "short a, ok kept",
		},
		{
			"one cannot be measured to its end",
			[]budget{{"a", "", nil, func(s *session) error { s.report(kept); return errors.New("no clock") }}},
			false, "ok kept, short a",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			fits := measureAll(&session{ctx: t.Context()}, tc.chosen, &out)
			if fits != tc.fits {
				t.Errorf("fits is %v, want %v", fits, tc.fits)
			}
			var lines []string
			for line := range strings.Lines(out.String()) {
				lines = append(lines, strings.Join(strings.Fields(line)[:2], " "))
			}
			if got := strings.Join(lines, ", "); got != tc.lines {
				t.Errorf("lines are %q, want %q", got, tc.lines)
			}
		})
	}
}
