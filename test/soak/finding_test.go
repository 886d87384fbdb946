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
		{"at the most", finding{value: 2, limit: atMost(2)}, ok},
		{"above the most", finding{value: 2.001, limit: atMost(2)}, short},
		{"below the most", finding{value: -1, limit: atMost(2)}, ok},
		{"equal", finding{value: 0, limit: exactly(0)}, ok},
		{"more than equal", finding{value: 1, limit: exactly(0)}, short},
		{"less than equal", finding{value: -1, limit: exactly(0)}, short},
		{"no value, at most", finding{value: nan, limit: atMost(2)}, short},
		{"no value, equal", finding{value: nan, limit: exactly(0)}, short},
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
		{finding{name: "a/memory", value: 20.744, unit: "KiB", limit: atMost(48), about: "all"}, "ok a/memory 20.74KiB <=48KiB # all"},
		{finding{name: "b", value: 9999, limit: exactly(10_000), about: "all"}, "short b 9999 =10000 # all"},
		{finding{name: "c", value: math.NaN(), unit: "B", limit: atMost(1), about: "why"}, "short c unmeasured <=1B # why"},
	} {
		if got := strings.Join(strings.Fields(tc.f.String()), " "); got != tc.want {
			t.Errorf("line is %q, want %q", got, tc.want)
		}
	}
}

func TestARunFitsOnlyIfNoFindingIsShort(t *testing.T) {
	reporting := func(name string, err error, findings ...finding) check {
		return check{name: name, configuration: standard, run: func(s *session, _ *picker) error {
			for _, f := range findings {
				s.report(f)
			}
			return err
		}}
	}
	kept := finding{name: "kept", value: 1, limit: atMost(1)}
	missed := finding{name: "missed", value: 2, limit: atMost(1)}
	for _, tc := range []struct {
		name   string
		chosen []check
		fits   bool
		lines  string
	}{
		{"all kept", []check{reporting("a", nil, kept), reporting("b", nil, kept)}, true, "ok kept, ok kept"},
		{"the first missed", []check{reporting("a", nil, missed), reporting("b", nil, kept)}, false, "short missed, ok kept"},
		{"the last missed", []check{reporting("a", nil, kept, missed)}, false, "ok kept, short missed"},
		{"one breaks off", []check{reporting("a", errors.New("gone"), kept), reporting("b", nil, kept)}, false, "ok kept, short a, ok kept"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			if fits := checkAll(&session{ctx: t.Context(), dir: t.TempDir()}, tc.chosen, &out); fits != tc.fits {
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
