package main

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/finding"
)

// outcome is what go test said of one target.
type outcome struct {
	executions int64
	// fuzzed is how long it had been fuzzing when it last said so.
	fuzzed time.Duration
	// crashed tells that an input failed, a seed or one that was found.
	crashed bool
}

// progress is a line of go test -fuzz, such as
//
//	fuzz: elapsed: 3s, execs: 21680 (7225/sec), new interesting: 6 (total: 66)
var progress = regexp.MustCompile(`^fuzz: elapsed: ([0-9a-z.]+), execs: ([0-9]+) \(`)

func readOutcome(output string) outcome {
	var o outcome
	for line := range strings.Lines(output) {
		if blamesInput(line) {
			o.crashed = true
		}
		said := progress.FindStringSubmatch(line)
		if said == nil {
			continue
		}
		elapsed, err := time.ParseDuration(said[1])
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(said[2], 10, 64); err == nil {
			o.fuzzed, o.executions = elapsed, n
		}
	}
	return o
}

// blamesInput tells whether go test names an input that fails. It may also fail
// without one, as when a worker is killed for its memory.
func blamesInput(line string) bool {
	return strings.HasPrefix(strings.TrimSpace(line), "Failing input written to ") ||
		strings.HasPrefix(line, "failure while testing seed corpus entry: ")
}

// result is what came of one target.
type result struct {
	target target
	outcome
	// failed tells that go test did.
	failed bool
}

// findings are two. A target without an execution was not fuzzed, whatever go
// test says.
func (r result) findings() []finding.Finding {
	crashes, about := 0.0, "failing inputs"
	switch {
	case r.crashed:
		crashes, about = 1, "failing inputs; go test stops at the first"
	case r.failed:
		crashes, about = math.NaN(), "go test failed without a failing input"
	}
	return []finding.Finding{
		{Name: r.target.String() + "/crashes", Value: crashes, Limit: finding.AtMost(0), About: about},
		{
			Name: r.target.String() + "/executions", Value: float64(r.executions), Limit: finding.AtLeast(1),
			About: fmt.Sprintf("in %v s, as go test said last", r.fuzzed.Seconds()),
		},
	}
}

// short tells whether one of the target's findings is.
func (r result) short() bool {
	return slices.ContainsFunc(r.findings(), func(f finding.Finding) bool { return f.Verdict() == finding.Short })
}

// printResults ends the output with what hack/results reads.
func printResults(w io.Writer, results []result, each time.Duration) {
	fmt.Fprintln(w, "manifest configuration none: the parts that read foreign bytes, each by itself; no policy is in force")
	fmt.Fprintln(w, "manifest servedIDs none: no replica serves")
	fmt.Fprintln(w, "manifest cacheState no engine runs, so there is no KV cache; inputs that earlier runs on this machine found interesting are used again, from Go's build cache")
	fmt.Fprintf(w, "manifest trafficShape no requests: inputs mutated from each target's seeds by %d workers, %v for each of %d targets, one after the other\n",
		runtime.GOMAXPROCS(0), each, len(results))
	for _, r := range results {
		for _, f := range r.findings() {
			fmt.Fprintln(w, f)
		}
	}
}
