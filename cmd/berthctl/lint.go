package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

type lintFinding struct {
	File string `json:"file"`
	policy.Finding
}

type lintDocument struct {
	Version  string        `json:"version"`
	Kind     string        `json:"kind"`
	Findings []lintFinding `json:"findings"`
}

func lintCommand(out *output) *cobra.Command {
	var poolFile string
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check configurations; each finding has a code, an explanation and a fix",
		Long: "lint reads configurations (EndpointPickerConfig, BerthConfiguration, StaticPool) and pool files\n" +
			"(StaticPool alone). What cannot be loaded is an error with file, line, field, value and what is\n" +
			"allowed (exit 2); what loads and is questionable is a finding (exit 1; notes alone exit 0).",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("FILE: missing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			doc := lintDocument{Version: "berth.dev/v1alpha1", Kind: "LintReport", Findings: []lintFinding{}}
			var errs []error
			for _, file := range args {
				findings, err := lintFile(file, poolFile)
				if err != nil {
					errs = append(errs, err)
				}
				for _, f := range findings {
					doc.Findings = append(doc.Findings, lintFinding{File: file, Finding: f})
				}
			}
			err := out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
				for _, f := range doc.Findings {
					fmt.Fprintf(w, "%s: %s %s: %s\n    %s\n    fix: %s\n", f.File, f.Code, f.Severity, f.Where, f.Explanation, f.Fix)
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
				return usageError{errors.Join(errs...)}
			case slices.ContainsFunc(doc.Findings, questionable):
				return errFindings
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&poolFile, "pool", "", "pool `FILE` to check the configuration against, instead of the one it names")
	return cmd
}

// warningCode is the code of what loading itself warns of.
const warningCode = "BERTH000"

// questionable reports whether a finding is more than a note: notes are right in
// some places, and alone do not make lint fail.
func questionable(f lintFinding) bool { return f.Severity != policy.SeverityNote }

// lintFile checks a configuration together with its pool, or a pool by itself.
func lintFile(file, poolFile string) ([]policy.Finding, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if isPool(data) {
		p, err := policy.ParsePool(file, data)
		if err != nil {
			return nil, err
		}
		return policy.Lint(nil, p), nil
	}
	p, warnings, err := policy.Load(file, plugins.Catalog{})
	if err != nil {
		return nil, err
	}
	findings := make([]policy.Finding, 0, len(warnings))
	for _, w := range warnings {
		findings = append(findings, policy.Finding{
			Code: warningCode, Severity: policy.SeverityWarning, Where: fmt.Sprintf("line %d: %s", w.Line, w.Field),
			Explanation: w.Message, Fix: "Write the configuration so that it says what runs.",
		})
	}
	members, err := poolOf(p, poolFile)
	if err != nil {
		return findings, err
	}
	return append(findings, policy.Lint(p, members)...), nil
}

// poolOf is the pool that a policy runs with; nil if it names none.
func poolOf(p *policy.Policy, override string) (*policy.Pool, error) {
	switch {
	case override != "":
		return policy.LoadPool(override)
	case p.Pool != nil:
		return p.Pool, nil
	case p.Discovery.File != "":
		return policy.LoadPool(p.Discovery.File)
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
