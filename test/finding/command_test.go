package finding

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// part reports findings and then fails with an error, if it has one.
type part struct {
	name, what string
	findings   []Finding
	err        error
}

func (p part) Describe() (name, what string) { return p.name, p.what }

func (p part) measure(report func(Finding)) error {
	for _, f := range p.findings {
		report(f)
	}
	return p.err
}

func parts() []part {
	return []part{{name: "one", what: "the first"}, {name: "two", what: "the second"}, {name: "twofold", what: "the third"}}
}

func TestUsageErrorsAreToldApart(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"an unknown flag", []string{"-x"}, ExitUsage, "-x"},
		{"an argument", []string{"one"}, ExitUsage, `it: ["one"]: no arguments`},
		{"not a regular expression", []string{"-run", "("}, ExitUsage, "it: -run: "},
		{"nothing of this name", []string{"-run", "three"}, ExitUsage, `it: -run "three": matches none`},
		{"nothing of this name to list", []string{"-list", "-run", "three"}, ExitUsage, `it: -run "three": matches none`},
		{"a flag of its own without a value", []string{"-own"}, ExitUsage, "-own"},
		{"help", []string{"-h"}, 0, "-own"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			c := NewCommand("it", parts(), &stdout, &stderr)
			c.Flags.String("own", "", "a flag of its own")
			chosen, exit := c.Choose(tc.args)
			if exit != tc.exit || len(chosen) != 0 {
				t.Errorf("exit code %d and %d parts, want %d and none", exit, len(chosen), tc.exit)
			}
			if !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("it says %q, want %s in it", stderr.String(), tc.says)
			}
			if stdout.Len() != 0 {
				t.Errorf("standard output has %q, want nothing", stdout.String())
			}
		})
	}
}

func TestThePartsThatMatchAreChosenInTheirOrder(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"all", nil, "one two twofold"},
		{"what matches anywhere", []string{"-run", "o$|wo"}, "two twofold"},
		{"what matches as a whole", []string{"-run", "^two$"}, "two"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			chosen, exit := NewCommand("it", parts(), io.Discard, io.Discard).Choose(tc.args)
			if exit != 0 {
				t.Errorf("exit code %d, want 0", exit)
			}
			var names []string
			for _, p := range chosen {
				names = append(names, p.name)
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("chosen are %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTheListHasWhatRunChooses(t *testing.T) {
	var stdout, stderr bytes.Buffer
	chosen, exit := NewCommand("it", parts(), &stdout, &stderr).Choose([]string{"-list", "-run", "two"})
	if exit != 0 || len(chosen) != 0 || stderr.Len() != 0 {
		t.Errorf("exit code %d, %d parts, standard error %q, want 0, none and nothing", exit, len(chosen), &stderr)
	}
	const want = "two              the second\ntwofold          the third\n"
	if stdout.String() != want {
		t.Errorf("the list is\n%swant\n%s", &stdout, want)
	}
}

func TestOnlyVHasAnythingToldMeanwhile(t *testing.T) {
	var stderr bytes.Buffer
	c := NewCommand("it", parts(), io.Discard, &stderr)
	if _, exit := c.Choose([]string{"-v"}); exit != 0 || c.Verbose() != &stderr {
		t.Errorf("exit code %d, verbose is %v with -v, want standard error", exit, c.Verbose())
	}
	c = NewCommand("it", parts(), io.Discard, &stderr)
	if _, exit := c.Choose(nil); exit != 0 || c.Verbose() != nil {
		t.Errorf("exit code %d, verbose is %v without -v, want nil", exit, c.Verbose())
	}
}

func TestWhatCannotBeginIsShort(t *testing.T) {
	var stderr bytes.Buffer
	if exit := NewCommand("it", parts(), io.Discard, &stderr).Fail(errors.New("no directory")); exit != ExitShort {
		t.Errorf("exit code %d, want %d", exit, ExitShort)
	}
	if got := stderr.String(); got != "it: no directory\n" {
		t.Errorf("it says %q", got)
	}
}

func TestARunIsShortIfOneFindingIs(t *testing.T) {
	kept := Finding{Name: "kept", Value: 1, Limit: AtMost(1)}
	missed := Finding{Name: "missed", Value: 2, Limit: AtMost(1)}
	told := Finding{Name: "told", Value: 2}
	for _, tc := range []struct {
		name  string
		parts []part
		exit  int
		lines string
	}{
		{"all kept", []part{{name: "a", findings: []Finding{kept, told}}}, 0, "ok kept, info told"},
		{"the first missed", []part{{name: "a", findings: []Finding{missed}}, {name: "b", findings: []Finding{kept}}}, ExitShort, "short missed, ok kept"},
		{"the last missed", []part{{name: "a", findings: []Finding{kept, missed}}}, ExitShort, "ok kept, short missed"},
		{
			"one cannot be measured",
			[]part{{name: "a", err: errors.New("no clock")}, {name: "b", findings: []Finding{kept}}},
			ExitShort, "short a, ok kept",
		},
		{
			"one cannot be measured to its end",
			[]part{{name: "a", findings: []Finding{kept}, err: errors.New("no clock")}, {name: "b", findings: []Finding{kept}}},
			ExitShort, "ok kept, short a, ok kept",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			if exit := Measure(t.Context(), tc.parts, &out, part.measure); exit != tc.exit {
				t.Errorf("exit code %d, want %d", exit, tc.exit)
			}
			if got := firstTwoWords(out.String()); got != tc.lines {
				t.Errorf("lines are %q, want %q", got, tc.lines)
			}
		})
	}
}

func TestAFindingIsPrintedBeforeTheNextIsMeasured(t *testing.T) {
	var out strings.Builder
	Measure(t.Context(), parts()[:1], &out, func(_ part, report func(Finding)) error {
		report(Finding{Name: "one/first"})
		if got := firstTwoWords(out.String()); got != "info one/first" {
			t.Errorf("after the first finding the output has %q", got)
		}
		return nil
	})
}

func TestAnInterruptedRunEndsAndIsShort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	exit := Measure(ctx, parts(), &out, func(p part, report func(Finding)) error {
		report(Finding{Name: p.name})
		cancel()
		return nil
	})
	if exit != ExitShort {
		t.Errorf("exit code %d, want %d", exit, ExitShort)
	}
	if got := firstTwoWords(out.String()); got != "info one" {
		t.Errorf("lines are %q, want that of the first part alone", got)
	}
}

// firstTwoWords are the verdict and the name of each line.
func firstTwoWords(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		lines = append(lines, strings.Join(strings.Fields(line)[:2], " "))
	}
	return strings.Join(lines, ", ")
}
