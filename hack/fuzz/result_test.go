package main

import (
	"strings"
	"testing"
	"time"
)

func TestTheOutcomeIsWhatGoTestSaidLast(t *testing.T) {
	for _, tc := range []struct {
		name, output string
		want         outcome
	}{
		{
			"nothing failed",
			"fuzz: elapsed: 0s, gathering baseline coverage: 60/60 completed, now fuzzing with 2 workers\n" +
				"fuzz: elapsed: 3s, execs: 21680 (7225/sec), new interesting: 6 (total: 66)\n" +
				"fuzz: elapsed: 1m4s, execs: 28515 (6419/sec), new interesting: 11 (total: 71)\n" +
				"PASS\nok  \texample.com/m\t64.097s\n",
			outcome{executions: 28515, fuzzed: 64 * time.Second},
		},
		{
			"an input was found",
			"fuzz: elapsed: 3s, execs: 7 (2/sec), new interesting: 0 (total: 1)\n--- FAIL: FuzzFind (3.06s)\n" +
				"    \n    Failing input written to testdata/fuzz/FuzzFind/b2089cb22b868c96\n",
			outcome{executions: 7, fuzzed: 3 * time.Second, crashed: true},
		},
		{
			"a seed fails",
			"fuzz: elapsed: 0s, gathering baseline coverage: 0/1 completed\nfailure while testing seed corpus entry: FuzzSeed/seed#0\n",
			outcome{crashed: true},
		},
		{"a failure without an input", "--- FAIL: FuzzSlow (9.06s)\n    context deadline exceeded\n", outcome{}},
		{"it does not build", "FAIL\texample.com/m [build failed]\n", outcome{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := readOutcome(tc.output); got != tc.want {
				t.Errorf("outcome %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAResultIsShortWithACrashAFailureOrNothingExecuted(t *testing.T) {
	one := target{"example.com/m", "FuzzOne"}
	for _, tc := range []struct {
		name                string
		r                   result
		short               bool
		crashes, executions string
	}{
		{"all well", result{one, outcome{executions: 5, fuzzed: time.Second}, false}, false, "ok FuzzOne/crashes 0 <=0", "ok FuzzOne/executions 5 >=1"},
		{"a crash", result{one, outcome{executions: 5, crashed: true}, true}, true, "short FuzzOne/crashes 1 <=0", "ok FuzzOne/executions 5 >=1"},
		{"a failure", result{one, outcome{executions: 5}, true}, true, "short FuzzOne/crashes unmeasured <=0", "ok FuzzOne/executions 5 >=1"},
		{"nothing executed", result{one, outcome{}, false}, true, "ok FuzzOne/crashes 0 <=0", "short FuzzOne/executions 0 >=1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.r.short(); got != tc.short {
				t.Errorf("short is %v, want %v", got, tc.short)
			}
			var out strings.Builder
			printResults(&out, []result{tc.r}, time.Second)
			var keys, figures []string
			for line := range strings.Lines(out.String()) {
				columns, _, _ := strings.Cut(strings.ReplaceAll(line, "example.com/m.", ""), "#")
				words := strings.Fields(columns)
				if words[0] == "manifest" {
					keys = append(keys, words[1])
				} else {
					figures = append(figures, strings.Join(words, " "))
				}
			}
			if got := strings.Join(keys, " "); got != "configuration servedIDs cacheState trafficShape" {
				t.Errorf("the manifest has the keys %q", got)
			}
			if got, want := strings.Join(figures, ", "), tc.crashes+", "+tc.executions; got != want {
				t.Errorf("figures are %q, want %q", got, want)
			}
		})
	}
}
