package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/gateway"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

type lintFinding struct {
	File string `json:"file"`
	policy.Finding
}

// lintError is one policy.Error. Line is 0 and Field and Value are empty where
// the error has none.
type lintError struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Field   string `json:"field"`
	Value   string `json:"value"`
	Message string `json:"message"`
}

type lintDocument struct {
	Version  string        `json:"version"`
	Kind     string        `json:"kind"`
	Findings []lintFinding `json:"findings"`
	// Errors are what kept a file from being loaded, and so from being linted.
	Errors []lintError `json:"errors"`
}

func lintCommand(out *output) *cobra.Command {
	var poolFile string
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check configurations; each finding has a code, an explanation and a fix",
		Long: "lint reads configurations (EndpointPickerConfig, BerthConfiguration, StaticPool), pool files\n" +
			"(StaticPool alone), and Envoy configurations (a bootstrap, or what Envoy's admin endpoint\n" +
			"dumps), of which it checks the ext_proc filters. What cannot be loaded is an error with file, line, field, value and what is\n" +
			"allowed (exit 2); what loads and is questionable is a finding (exit 1; notes alone exit 0).\n" +
			"docs/lint.md lists all findings.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("FILE: missing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			doc := lintDocument{Version: "berth.dev/v1alpha1", Kind: "LintReport", Findings: []lintFinding{}, Errors: []lintError{}}
			var errs []error
			for _, file := range args {
				findings, err := lintFile(file, poolFile)
				if err != nil {
					errs = append(errs, err)
					doc.Errors = append(doc.Errors, lintErrors(file, err)...)
				}
				for _, f := range findings {
					doc.Findings = append(doc.Findings, lintFinding{File: file, Finding: f})
				}
			}
			err := out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
				for _, f := range doc.Findings {
					fmt.Fprintf(w, "%s: %s %s: %s\n    %s\n", f.File, f.Code, f.Severity, f.Where, f.Explanation)
					if f.Fix != "" {
						fmt.Fprintf(w, "    fix: %s\n", f.Fix)
					}
				}
				if len(errs) == 0 && len(doc.Findings) == 0 {
					fmt.Fprintf(w, "%s: no findings\n", strings.Join(args, ", "))
				}
				return nil
			})
			switch {
			case err != nil:
				return err
			case len(errs) > 0:
				return usageError{fileError{errors.Join(errs...)}}
			case slices.ContainsFunc(doc.Findings, questionable):
				return errFindings
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&poolFile, "pool", "", "pool `FILE` to check the configuration against, instead of the one it names")
	return cmd
}

// warningCode is the code of what loading itself warns of. What to do about it
// differs from one to the next, so that these findings have no fix.
const warningCode = "BERTH000"

// questionable reports whether a finding is more than a note: notes are right in
// some places, and alone do not make lint fail.
func questionable(f lintFinding) bool { return f.Severity != policy.SeverityNote }

// lintFile checks a configuration together with its pool, or a pool by itself.
func lintFile(file, poolFile string) ([]policy.Finding, error) {
	// What cannot be read is neither; loading it gives the error.
	data, err := os.ReadFile(file)
	switch {
	case err == nil && isPool(data):
		p, err := policy.ParsePool(file, data)
		if err != nil {
			return nil, err
		}
		return policy.Lint(nil, p), nil
	case err == nil && gateway.IsEnvoy(data):
		filters, err := gateway.Filters(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return gateway.Lint(filters), nil
	}
	p, warnings, err := policy.Load(file, plugins.Catalog{})
	if err != nil {
		return nil, err
	}
	findings := make([]policy.Finding, 0, len(warnings))
	for _, w := range warnings {
		findings = append(findings, policy.Finding{
			Code: warningCode, Severity: policy.SeverityWarning, Where: fmt.Sprintf("line %d: %s", w.Line, w.Field),
			Explanation: w.Message,
		})
	}
	members, err := poolOf(p, poolFile)
	if err != nil {
		return findings, err
	}
	return append(findings, policy.Lint(p, members)...), nil
}

// lintErrors are the errors of one file, or of the pool file that it names.
func lintErrors(file string, err error) []lintError {
	var list []lintError
	for _, e := range unjoin(err) {
		var refused *policy.Error
		if errors.As(e, &refused) {
			list = append(list, lintError{refused.File, refused.Line, refused.Field, refused.Value, refused.Allowed})
		} else {
			list = append(list, lintError{File: file, Message: strings.TrimPrefix(e.Error(), file+": ")})
		}
	}
	return list
}

// poolOf is the pool that a policy runs with; nil if it names none.
func poolOf(p *policy.Policy, override string) (*policy.Pool, error) {
	switch {
	case override != "":
		return policy.LoadPool(override)
	case p.Pool != nil:
		return p.Pool, nil
	case p.Discovery.File != "":
		members, err := policy.LoadPool(p.Discovery.File)
		return members, p.PoolFileError(err)
	default:
		return nil, nil
	}
}

// isPool reports whether the first document of a file is a StaticPool.
func isPool(data []byte) bool {
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "---" {
			continue
		}
		if kind, ok := strings.CutPrefix(line, "kind:"); ok {
			return strings.TrimSpace(kind) == "StaticPool"
		}
	}
	return false
}
