// Command e2evllm runs Berth behind a real Envoy and in front of two real vLLM
// servers, on the CPU of this machine, and compares what the picker reports of
// them with what they were made to do. It prints one line per finding (package
// finding says how to read one) and exits with 1 if any is short, with 2 on a
// usage error.
//
// Before them stand lines `manifest KEY VALUE...`, which say what is measured, of
// what, and under what traffic; hack/results makes a published result of both.
// After them stands a line for each field of the catalogue, with what its reading
// said in each phase.
//
//	e2evllm [-run REGEX] [-pages DIR] [-v]
//	e2evllm -list
//
// The phases share one stand and come one after the other; the last one kills a
// replica. Both vLLM serve a tiny model with random weights, which is made here:
// two layers, a vocabulary of bytes. What it writes makes no sense, but its
// requests are scheduled, queued, preempted and counted as those of any other.
//
// The first run on a machine downloads about 2.9 GB (package hack/vllm); every
// run takes some 5 GB of memory and some minutes. It is part of no other test.
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

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (exit int) {
	command := finding.NewCommand("e2evllm", phases(), stdout, stderr)
	pages := command.Flags.String("pages", "", "write the page that the first replica shows in each phase into this `directory`, without HELP")
	chosen, exit := command.Choose(args)
	if len(chosen) == 0 {
		return exit
	}
	dir, err := os.MkdirTemp("", "berth-e2evllm-")
	if err != nil {
		return command.Fail(err)
	}
	// One that stays behind does no harm.
	defer func() { _ = os.RemoveAll(dir) }()
	s := newSession(ctx, dir, *pages, command.Verbose())
	defer s.close()
	if err := s.start(); err != nil {
		return command.Fail(err)
	}
	manifest, err := s.manifest(chosen)
	if err != nil {
		return command.Fail(err)
	}
	fmt.Fprint(stdout, manifest)
	exit = finding.Measure(ctx, chosen, stdout, s.measure)
	for _, f := range s.readings.findings() {
		fmt.Fprintln(stdout, f)
	}
	return exit
}
