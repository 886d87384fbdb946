// Command soak lets hostile clients loose on a running picker and looks at what
// they leave behind. It prints one line per finding (package finding says how to
// read one) and exits with 1 if any is short, with 2 on a usage error.
//
// Before them stand lines `manifest KEY VALUE...`, which say what is measured, of
// what, and under what traffic; hack/results makes a published result of both.
//
//	soak [-run REGEX] [-v]
//	soak -list
//
// Each check has a picker of its own: this binary in another role, so that what
// the picker holds is not mixed up with what the clients hold. They speak real
// gRPC to it, as a gateway does, or bytes that no gateway would send. Afterwards
// the picker must be as it was before: no request in flight, no byte held, no
// goroutine or descriptor more, every placed request with one outcome, and the
// heap within a stated growth. Needs Linux, whose /proc tells what a process has
// open.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/finding"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func checks() []check {
	return []check{
		{"streams", "thousands of responses under way at once", standard, checkStreams},
		{"half-open", "clients that begin and do not go on, or go on too slowly", hasty, checkHalfOpen},
		{"one-byte-parts", "bodies that come in as many messages as they have bytes", standard, checkOneByteParts},
		{"bodies", "many large bodies at once, up to what may be held and beyond", holding, checkBodies},
		{"unread", "large bodies whose answers nobody takes", holding, checkUnread},
		{"disconnects", "the end of a stream at every frame, in every way and every body mode", standard, checkDisconnects},
		{"names", "models, ids, headers, paths and subsets that never come twice", roomy, checkNames},
		{"garbage", "what is not gRPC, not HTTP/2, or lies about its length", standard, checkGarbage},
		{"reload", "a new configuration each second while requests pass", standard, checkReload},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == pickerRole {
		if err := playPicker(ctx, args[1:]); err != nil {
			fmt.Fprintf(stderr, "soak %s: %v\n", pickerRole, err)
			return finding.ExitShort
		}
		return 0
	}
	command := finding.NewCommand("soak", checks(), stdout, stderr)
	chosen, exit := command.Choose(args)
	if len(chosen) == 0 {
		return exit
	}
	dir, err := os.MkdirTemp("", "berth-soak-")
	if err != nil {
		return command.Fail(err)
	}
	// One that stays behind does no harm.
	defer func() { _ = os.RemoveAll(dir) }()
	s := &session{ctx: ctx, dir: dir, size: fullSize(), verbose: command.Verbose(), started: time.Now()}
	if err := printManifest(chosen, s.size, stdout); err != nil {
		return command.Fail(err)
	}
	return finding.Measure(ctx, chosen, stdout, s.measure)
}
