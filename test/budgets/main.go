// Command budgets measures what the picker costs and compares that with its
// budgets. It prints one line per finding (package finding says how to read one)
// and exits with 1 if any is short, with 2 on a usage error.
//
// Before them stand lines `manifest KEY VALUE...`, which say what is measured, of
// what, and under what traffic; hack/results makes a published result of both.
//
//	budgets [-run REGEX] [-v] [-profile DIR]
//	budgets -list
//
// These are comparisons within one run, not timed tests. What is compared runs
// in turns, CPU time is counted instead of time on the wall, and of several
// rounds the least or the median counts, so that a busy machine disturbs both
// sides alike. CPU clocks of processes need Linux.
//
// What must be told apart runs as a process of its own: berth-epp, built for the
// purpose, this binary in another role (see roles), and the stock scheduler that
// decisions are compared with. The latter has a module of its own in stock/;
// building it takes minutes and the network the first time, and where that is
// not possible the run goes on without it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-dev/berth/test/finding"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// budgets are in the order in which they run: what is small first, so that the
// memory of one does not become the garbage of the next.
func budgets() []budget {
	return []budget{
		{"decision", "CPU and allocations of one decision: screen, gather, place", decisionSubject, measureDecision},
		{"stock", "the same beside the stock GIE v1.5.0 scheduler", stockSubject, measureStock},
		{"screening", "CPU and allocations of the hard cut by an intent's requirements", screeningSubject, measureScreening},
		{"intent-metadata", "CPU of reading an intent that came in metadata", intentMetadataSubject, measureIntentMetadata},
		{"intent-signed", "CPU of reading a signed intent, beside the check of its signature", intentSignedSubject, measureIntentSigned},
		{"body-scan", "reading the facts of a request body, beside gjson", bodyScanSubject, measureBodyScan},
		{"engine-page", "an engine's page to a snapshot, beside a walk over the page", enginePageSubject, measureEnginePage},
		{"picker-cycle", "CPU of the picker per request, beside an empty ext_proc server", cycleSubject, measureCycle},
		{"record", "CPU of the candidates in the decision record", recordSubject, measureRecord},
		{"stream-memory", "memory that a long response takes", streamsSubject, measureStreams},
		{"telemetry", "CPU and memory of reading 100 replicas", telemetrySubject, measureTelemetry},
		{"endpoint-memory", "memory per endpoint of a large pool", endpointMemorySubject, measureEndpointMemory},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if play, ok := roles()[args[0]]; ok {
			if err := play(ctx, args[1:]); err != nil {
				fmt.Fprintf(stderr, "budgets %s: %v\n", args[0], err)
				return finding.ExitShort
			}
			return 0
		}
	}
	command := finding.NewCommand("budgets", budgets(), stdout, stderr)
	profiles := command.Flags.String("profile", "", "write a CPU profile of each budget and of each server to this `directory`; pickers then run inside this binary")
	chosen, exit := command.Choose(args)
	if len(chosen) == 0 {
		return exit
	}
	s, err := newSession(ctx, *profiles)
	if err != nil {
		return command.Fail(err)
	}
	defer s.close()
	s.verbose = command.Verbose()
	if err := printManifest(chosen, stdout); err != nil {
		return command.Fail(err)
	}
	return finding.Measure(ctx, chosen, stdout, s.measure)
}
