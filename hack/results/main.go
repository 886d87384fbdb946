// Command results runs a command that measures something and makes a published
// result of what it says:
//
//	results -o docs/results/NAME.json [-allow-dirty] -- COMMAND ARGS...
//
// What the command prints is passed through. Of its standard output, two kinds of
// line count; the first word tells them:
//
//	manifest KEY VALUE...                       what was measured (see Subject)
//	ok|short|info NAME MEASURED LIMIT # ABOUT   a figure (see Figure); "# ABOUT" may be left out
//
// docs/results/README.md says what a result is and how to read one. Nothing is
// written if the command was ended from outside, gave no figure or a line that is
// not of its form, left out a key of the manifest, or measured a tree with changes
// without -allow-dirty; nor if the commit changed meanwhile.
//
// It exits as the command did once the result is written, with 1 where it is not,
// and with 2 on a usage error. It runs on Linux, which describes the machine.
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
	"strings"
	"syscall"
	"time"
)

// stopTime is what a command has to end when it is interrupted.
const stopTime = time.Minute

func main() {
	out := flag.String("o", "", "`file` that takes the result, NAME.json; what is there is replaced")
	allowDirty := flag.Bool("allow-dirty", false, "measure a tree with changes that are not committed, and mark the result")
	flag.Parse()
	if !strings.HasSuffix(*out, ".json") || filepath.Base(*out) == ".json" {
		fmt.Fprintf(os.Stderr, "results: -o %q: want a file NAME.json\n", *out)
		os.Exit(2)
	}
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "results: the command is missing: results -o NAME.json -- COMMAND ARGS...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := job{*out, *allowDirty, flag.Args(), readTree, os.Stdout, os.Stderr}.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "results: %s is not written: %v\n", *out, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "results: %s is written\n", *out)
	os.Exit(code)
}

// job is one command, and the file that takes its result.
type job struct {
	out        string
	allowDirty bool
	command    []string
	tree       func(context.Context) (tree, error)
	// What the command prints goes here.
	stdout, stderr io.Writer
}

// run returns the exit code of the command whose result it wrote.
func (j job) run(ctx context.Context) (int, error) {
	before, err := j.tree(ctx)
	if err != nil {
		return 0, err
	}
	if before.dirty && !j.allowDirty {
		return 0, errors.New("the tree has changes that are not committed; commit them, or mark the result with -allow-dirty")
	}
	result := &Result{Manifest: Manifest{
		Schema:  schema,
		Name:    strings.TrimSuffix(filepath.Base(j.out), ".json"),
		Command: j.command,
		Date:    time.Now().UTC().Truncate(time.Second),
	}}
	if result.Manifest.Build, err = readBuild(ctx, before.version); err != nil {
		return 0, err
	}
	if result.Manifest.Machine, err = readMachine("/proc"); err != nil {
		return 0, err
	}

	said := newStatements(j.stdout)
	cmd := exec.CommandContext(ctx, j.command[0], j.command[1:]...)
	// A go command does not hand a signal on to what it runs; the group has both.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopTime
	cmd.Stdout, cmd.Stderr = said, j.stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, errors.New("interrupted")
	case err != nil && !errors.As(err, &exit):
		return 0, fmt.Errorf("running the command: %w", err)
	case !cmd.ProcessState.Exited():
		return 0, fmt.Errorf("the command was ended from outside: %w", err)
	}
	result.ExitCode = cmd.ProcessState.ExitCode()
	if result.Manifest.Subject, result.Figures, err = said.end(); err != nil {
		return 0, err
	}
	if len(result.Figures) == 0 {
		return 0, fmt.Errorf("the command gave no figure; its exit code is %d", result.ExitCode)
	}

	// What was measured is one commit only if the tree stood still meanwhile.
	after, err := j.tree(ctx)
	switch {
	case err != nil:
		return 0, err
	case after.commit != before.commit:
		return 0, fmt.Errorf("the commit was %s before the command and is %s after it", before.commit, after.commit)
	case after.dirty && !j.allowDirty:
		return 0, errors.New("the tree changed while the command ran")
	}
	result.Manifest.Commit, result.Manifest.Dirty = before.commit, before.dirty || after.dirty

	text, err := result.encode()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(j.out), 0o755); err != nil {
		return 0, err
	}
	return result.ExitCode, os.WriteFile(j.out, text, 0o644)
}
