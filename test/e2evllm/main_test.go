package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/finding"
)

func TestARunThatDoesNotBeginSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"an unknown flag", []string{"-x"}, finding.ExitUsage, "-x"},
		{"an argument", []string{"idle"}, finding.ExitUsage, "no arguments"},
		{"no such phase", []string{"-run", "busy"}, finding.ExitUsage, "matches none"},
		{"help", []string{"-h"}, 0, "-pages"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(t.Context(), tc.args, &stdout, &stderr); got != tc.exit {
				t.Errorf("exit code %d, want %d", got, tc.exit)
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

func TestWithoutAVLLMTheRunIsShortAndSaysWhy(t *testing.T) {
	t.Setenv("VLLM_PYTHON", "/nowhere/python")
	var stdout, stderr bytes.Buffer
	if got := run(t.Context(), []string{"-run", "idle"}, &stdout, &stderr); got != finding.ExitShort {
		t.Errorf("exit code %d, want %d", got, finding.ExitShort)
	}
	if !strings.Contains(stderr.String(), `VLLM_PYTHON="/nowhere/python" does not exist`) {
		t.Errorf("it says %q", stderr.String())
	}
}

func TestTheListHasAllPhasesAndTheKillLast(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := run(t.Context(), []string{"-list"}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit code %d: %s", got, &stderr)
	}
	var names []string
	for line := range strings.Lines(stdout.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names, " "); got != "idle running caching queued preempting asleep killed" {
		t.Errorf("the list has %q", got)
	}
}
