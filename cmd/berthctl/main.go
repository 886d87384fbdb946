// Command berthctl is the operator's tool: it checks configurations, writes the
// gateway's, and shows what a running picker knows and decided.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/version"
)

// Exit codes: 0 is fine, 1 findings or a failure, 2 wrong usage or unreadable
// input.
const (
	exitFindings = 1
	exitUsage    = 2
)

// usageError is a wrong command line or input that cannot be read.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// fileError is what is wrong with files: each line of it begins with a file and
// mostly a line, as editors and CI look for them.
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

// errFindings ends a command that found something; it was printed already.
var errFindings = errors.New("findings")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal interrupts, a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	err := command().ExecuteContext(ctx)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errFindings):
		os.Exit(exitFindings)
	default:
		report(os.Stderr, err)
		var usage usageError
		if errors.As(err, &usage) {
			os.Exit(exitUsage)
		}
		os.Exit(exitFindings)
	}
}

// report prints an error, all of its lines in the same form.
func report(w io.Writer, err error) {
	prefix := "berthctl: "
	if errors.As(err, new(fileError)) {
		prefix = ""
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, prefix+console.Line(line))
	}
}

// unjoin are the errors that errors.Join made one, at any depth.
func unjoin(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, unjoin(e)...)
	}
	return all
}

func command() *cobra.Command {
	out := &output{}
	cmd := &cobra.Command{
		Use:           "berthctl",
		Short:         "Check, explain and try an endpoint picker",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return out.check()
		},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: no such command; berthctl --help lists them", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.PersistentFlags().StringVarP(&out.format, "output", "o", "table", "`FORMAT` of the output: table, json or yaml")
	cmd.AddCommand(
		demoCommand(),
		explainCommand(out),
		gatewayCommand(out),
		lintCommand(out),
		observeCommand(out),
		profilesCommand(out),
		topCommand(out),
		versionCommand(out),
	)
	return cmd
}

// invalidFlag is how the flag package writes that a value is wrong: the value as Go
// quotes it, the flag, the reason.
var invalidFlag = regexp.MustCompile(`^invalid argument ("(?:[^"\\]|\\.)*") for "(?:-\w, )?--([a-z-]+)" flag: `)

// flagError says of a flag's value what is allowed, in the words of this tool.
func flagError(cmd *cobra.Command, err error) error {
	wrong := invalidFlag.FindStringSubmatch(err.Error())
	if wrong == nil {
		return usageError{err}
	}
	value, flag := wrong[1], cmd.Flag(wrong[2])
	if flag == nil {
		return usageError{err}
	}
	allowed := map[string]string{
		"duration": "a time with its unit, such as 500ms, 20s or 5m",
		"uint64":   "a whole number from 0 to 18446744073709551615",
		"bool":     "true or false",
	}[flag.Value.Type()]
	if allowed == "" {
		// What this tool reads itself says so in its own words.
		return usageError{fmt.Errorf("--%s: %s", flag.Name, err.Error()[len(wrong[0]):])}
	}
	return usageError{fmt.Errorf("--%s: %s: must be %s", flag.Name, value, allowed)}
}

// exactArgs is cobra.ExactArgs with an error that names what is missing.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usageError{fmt.Errorf("%s: missing", names[len(args)])}
		}
		if len(args) > len(names) {
			return usageError{fmt.Errorf("%q: unexpected argument", args[len(names)])}
		}
		return nil
	}
}
