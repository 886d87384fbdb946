package main

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/hack/envoy"
	"github.com/berth-dev/berth/internal/demo"
)

func demoCommand() *cobra.Command {
	var (
		opts demo.Options
		once bool
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a local fleet behind a real Envoy, make things go wrong, and compare with round robin",
		Long: "demo starts four simulated replicas, a picker and a real Envoy on 127.0.0.1, sends requests through\n" +
			"them, takes one replica's telemetry away, kills another, and then runs the same requests through\n" +
			"Berth and through Envoy's round robin. It takes under a minute and leaves nothing behind. On a\n" +
			"terminal the table of the fleet is redrawn in place.\n\n" +
			"Envoy is fetched where it is not cached yet; the environment variable ENVOY names another binary.",
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := output{format: cmd.Flag("output").Value.String()}
			opts.Command = os.Args[0]
			opts.Out = cmd.OutOrStdout()
			if out.format != "table" {
				// Standard output is the document's.
				opts.Command = os.Args[0]
				opts.Out = cmd.ErrOrStderr()
			}
			if !once {
				opts.Width = terminalWidth(opts.Out)
			}
			return runDemo(cmd, opts, out)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&once, "once", false, "write plain text, on a terminal too")
	f.BoolVar(&opts.Keep, "keep", false, "leave the fleet, the picker and Envoy running after the summary, until Ctrl-C")
	f.Uint64Var(&opts.Seed, "seed", demo.DefaultSeed, "`SEED` of the workload: the same seed, the same requests at the same times")
	return cmd
}

var errInterrupted = errors.New("interrupted; everything that the demo started has ended")

func runDemo(cmd *cobra.Command, opts demo.Options, out output) error {
	var err error
	if opts.Envoy, err = envoy.Path(cmd.Context(), cmd.ErrOrStderr()); err != nil {
		return err
	}
	result, err := demo.Run(cmd.Context(), opts)
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return errInterrupted
	case err != nil:
		return err
	}
	return out.print(cmd.OutOrStdout(), result, func(io.Writer) error { return nil })
}

// terminalWidth tells the width of the terminal that w is; nil if it is none.
func terminalWidth(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}
}
