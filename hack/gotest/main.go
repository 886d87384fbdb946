// Command gotest runs `go test -json` with the arguments given and makes its
// events readable: one line for each package, the output of whatever failed,
// the names of skipped tests, and at the end
//
//	N passed, N failed, N skipped
//
// counting tests and subtests, and a package that failed outside of its tests
// (it does not build, it panicked, it timed out) as one failure. The raw events
// go to a file, for tools that ask later what ran:
//
//	gotest -o build/test.json -- -race ./...
//
// It exits with 1 where anything failed or no test ran, with 2 on a usage error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/berth-dev/berth/hack/testevent"
)

func main() {
	out := flag.String("o", "", "`file` that takes the raw events; its directory is made")
	flag.Parse()
	if *out == "" {
		fmt.Fprintln(os.Stderr, "gotest: -o is required")
		os.Exit(2)
	}
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(out string, args []string) (err error) {
	// go test is in the same process group and ends by the terminal's own
	// signal; what it said until then is still reported.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("making the directory of -o: %w", err)
	}
	raw, err := os.Create(out)
	if err != nil {
		return fmt.Errorf("creating -o: %w", err)
	}
	defer func() { err = errors.Join(err, raw.Close()) }()

	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	rep := newReport(os.Stdout)
	readErr := testevent.Read(io.TeeReader(events, raw), rep.add)
	if readErr != nil {
		// Nobody reads the pipe any more, so go test would wait for ever.
		_ = cmd.Process.Kill()
	}
	waitErr := cmd.Wait()
	sum := rep.summary()
	switch {
	case readErr != nil:
		return readErr
	case sum.failed > 0:
		return fmt.Errorf("%d failed", sum.failed)
	case waitErr != nil:
		return fmt.Errorf("go test: %w", waitErr)
	case sum.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}
