// Command enginesim runs one simulated LLM serving engine (package internal/enginesim) until SIGINT or SIGTERM. It prints the
// address that it listens on, as one line. It exits with 1 if it cannot start or when POST /sim/die ends it, and with 2 if
// its flags are wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/internal/enginesim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var cfg enginesim.Config
	var models, engine string
	flags := flag.NewFlagSet("enginesim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("address", "127.0.0.1:0", "`host:port` to listen on; port 0 takes a free one")
	flags.StringVar(&cfg.Name, "name", "", "name in x-sim-engine (default \"sim\")")
	flags.StringVar(&engine, "engine", "vllm", "`kind` of engine to imitate: vllm, sglang, atom, trtllm-serve or triton")
	flags.StringVar(&models, "model", "", "served model `names`, separated by commas (default \"sim-model\")")
	flags.IntVar(&cfg.MaxModelLen, "max-model-len", 0, "largest prompt plus answer in `tokens` (default 8192, or what the KV cache holds)")
	flags.IntVar(&cfg.OutputTokens, "output-tokens", 0, "`tokens` of an answer without max_tokens (default 48)")
	flags.Float64Var(&cfg.Speed, "speed", 0, "`factor` on the engine's speed (default 1)")
	flags.IntVar(&cfg.Engine.MaxRunning, "max-running", 0, "largest batch in `requests` (default 32)")
	flags.IntVar(&cfg.Engine.MaxBatchedTokens, "max-batched-tokens", 0, "`tokens` of one step (default 512)")
	flags.Float64Var(&cfg.Engine.PrefillRate, "prefill-rate", 0, "prompt `tokens` per second (default 8000)")
	flags.DurationVar(&cfg.Engine.StepBase, "step-base", 0, "time of a step (default 6ms)")
	flags.DurationVar(&cfg.Engine.PerSequence, "per-sequence", 0, "time that each sequence adds to a step (default 100µs)")
	flags.Float64Var(&cfg.Engine.Jitter, "jitter", 0, "largest relative deviation of a step's time, below 1 (default 0)")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "seed of the jitter (default 0)")
	flags.IntVar(&cfg.Engine.Blocks, "blocks", 0, "KV cache size in `blocks` (default 4096)")
	flags.IntVar(&cfg.Engine.BlockTokens, "block-tokens", 0, "`tokens` of a KV cache block (default 16)")
	flags.BoolVar(&cfg.Engine.DisablePrefixCache, "disable-prefix-cache", false, "never reuse cached prefixes")
	flags.IntVar(&cfg.Background.Running, "background-running", 0, "long `requests` of its own that run (default 0)")
	flags.IntVar(&cfg.Background.Waiting, "background-waiting", 0, "and that wait; needs a full batch (default 0)")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "enginesim: %q: no arguments are allowed besides flags\n", flags.Arg(0))
		return 2
	}
	if models != "" {
		cfg.Models = strings.Split(models, ",")
	}
	dialect, err := enginesim.DialectNamed(engine)
	if err != nil {
		fmt.Fprintf(stderr, "enginesim: %v\n", err)
		return 2
	}
	cfg.Dialect = dialect

	server, err := enginesim.New(cfg)
	if err != nil {
		fmt.Fprintf(stderr, "enginesim: %v\n", err)
		return 2
	}
	if err := server.Start(*address); err != nil {
		fmt.Fprintf(stderr, "enginesim: %v\n", err)
		return 1
	}
	defer server.Close()
	died := server.Died()
	fmt.Fprintln(stdout, server.Addr())
	select {
	case <-ctx.Done():
		return 0
	case <-died:
		fmt.Fprintln(stderr, "enginesim: died on request")
		return 1
	}
}
