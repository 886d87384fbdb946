// Command berth-epp is the endpoint picker: it answers a gateway's ext_proc
// stream with the replica that each request goes to.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/internal/host"
	"github.com/berth-dev/berth/internal/version"
)

// Exit codes, the same as berthctl's.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// A reader of the decision log that goes away is an error of that log, not the
	// end of the picker.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	// The first signal drains, a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx)
	stop()
	os.Exit(code)
}

// endSignals are the signals that end the picker. One that ignores SIGHUP from its
// start, as under nohup, is to outlive the terminal; catching it would undo that.
func endSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// run executes the command line and returns the exit code.
func run(ctx context.Context) int {
	err := command().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "berth-epp:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func command() *cobra.Command {
	var (
		opts     host.Options
		logLevel string
	)
	cmd := &cobra.Command{
		Use:   "berth-epp --config FILE",
		Short: "Pick the replica that each inference request goes to",
		Long: "berth-epp answers a gateway's external processing stream (Envoy ext_proc v3) with the replica\n" +
			"that each request goes to. It writes one line of JSON per ended request to standard output and\n" +
			"its own log to standard error.",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: unexpected argument", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.ConfigFile == "" {
				return usageError{errors.New("--config: missing; it names the configuration file")}
			}
			if opts.ExtProcTLS == "" {
				// Not off: whoever gave it may have meant a directory.
				return usageError{fmt.Errorf(`--extproc-tls: "": must be %s, %s or a directory`, host.TLSOff, host.TLSSelfSigned)}
			}
			level, err := zapcore.ParseLevel(logLevel)
			if err != nil || level > zapcore.ErrorLevel {
				return usageError{fmt.Errorf("--log-level: %q: must be debug, info, warn or error", logLevel)}
			}
			opts.Log = logger(level)
			opts.DecisionLog = os.Stdout
			return serve(cmd.Context(), opts)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&opts.ConfigFile, "config", "", "configuration `FILE` (EndpointPickerConfig, BerthConfiguration, StaticPool)")
	f.StringVar(&logLevel, "log-level", "info", "least `LEVEL` that is logged: debug, info, warn or error")
	f.StringVar(&opts.ExtProcAddress, "extproc-address", ":9002", "`ADDRESS` of the ext_proc listener (gRPC)")
	f.StringVar(&opts.ExtProcTLS, "extproc-tls", host.TLSOff, "TLS of the ext_proc listener, `off|self-signed|DIR`: none, for gateways that do\n"+
		"not verify it, or by tls.crt and tls.key in DIR, which are followed")
	f.StringVar(&opts.HealthAddress, "health-address", ":9003", "`ADDRESS` of the health listener (gRPC)")
	f.StringVar(&opts.MetricsAddress, "metrics-address", ":9090", "`ADDRESS` of /metrics, /healthz and /readyz")
	f.StringVar(&opts.AdminAddress, "admin-address", "127.0.0.1:9091", "`ADDRESS` of the reports under /v1alpha1; they name replicas")
	return cmd
}

// gcPercent lets the heap grow to five times what is live before it is collected.
// A picker's live heap is some MiB, and every request makes a little garbage: at
// Go's default of 100 collecting is an eighth of its CPU.
const gcPercent = 400

// baseMemory is what a picker may take beside the bodies that it holds, bytes.
const baseMemory = 512 << 20

// limitMemory collects earlier when bodies fill the heap: each may be held twice,
// in the parts it came in and joined.
func limitMemory(buffered int64) { debug.SetMemoryLimit(2*buffered + baseMemory) }

func serve(ctx context.Context, opts host.Options) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		opts.Buffered = limitMemory
	}
	h, err := host.Start(ctx, opts)
	if err != nil {
		return err
	}
	<-ctx.Done()
	opts.Log.Info("shutting down")
	h.Stop()
	return nil
}

func logger(level zapcore.Level) *zap.Logger {
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(cfg), zapcore.Lock(os.Stderr), level))
}
