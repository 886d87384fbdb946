// Command cmd gets the pinned vLLM, if it is not cached yet, and prints the path
// of its Python interpreter.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-dev/berth/hack/vllm"
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
	path, err := vllm.Python(ctx, os.Stderr)
	if err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}
