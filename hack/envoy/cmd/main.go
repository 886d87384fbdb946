// Command cmd gets the pinned Envoy, if it is not cached yet, and prints the
// path of its binary.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-dev/berth/hack/envoy"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	path, err := envoy.Path(ctx, os.Stderr)
	if err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}
