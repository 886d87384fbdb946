package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/api/v1alpha1"
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
	var poolFile, intentsFile string
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check configurations; each finding has a code, an explanation and a fix",
		Long: "lint reads configurations (EndpointPickerConfig, BerthConfiguration, StaticPool), pool files\n" +
			"(StaticPool alone), and Envoy configurations (a bootstrap, or what Envoy's admin endpoint\n" +
			"dumps), of which it checks the picker's filters and what stands around them, against the\n" +
			"configurations that are given with them. What cannot be loaded is an error with file, line,\n" +
			"field, value and what is allowed (exit 2); what loads and is questionable is a finding (exit 1;\n" +
			"notes alone exit 0). docs/lint.md lists all findings. With --intents, routing intents that\n" +
			"requests may carry are checked against each pool: which demand nobody can meet.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("FILE: missing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			doc := lintDocument{Version: "berth.dev/v1alpha1", Kind: "LintReport", Findings: []lintFinding{}, Errors: []lintError{}}
			var errs []error
			intents, ignored, err := readIntents(intentsFile)
			if err != nil {
				errs = append(errs, err)
				doc.Errors = append(doc.Errors, lintErrors(intentsFile, err)...)
			}
			for _, f := range ignored {
				doc.Findings = append(doc.Findings, lintFinding{File: intentsFile, Finding: f})
			}
			files := make([]lintedFile, len(args))
			var policies []*policy.Policy
			for i, file := range args {
				var err error
				if files[i], err = lintFile(file, poolFile, intents); err != nil {
					errs = append(errs, err)
					doc.Errors = append(doc.Errors, lintErrors(file, err)...)
				}
				if files[i].policy != nil {
					policies = append(policies, files[i].policy)
				}
			}
			for i, file := range args {
				findings := files[i].findings
				if files[i].gateway != nil {
					findings = lintGateway(files[i].gateway, policies)
				}
				for _, f := range findings {
					doc.Findings = append(doc.Findings, lintFinding{File: file, Finding: f})
				}
			}
			err = out.print(cmd.OutOrStdout(), doc, func(w io.Writer) error {
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
	cmd.Flags().StringVar(&intentsFile, "intents", "", "`FILE` of routing intents, JSON documents one after the other, that a pool should be able to meet")
	return cmd
}

// warningCode is the code of what loading itself warns of. What to do about it
// differs from one to the next, so that these findings have no fix.
const warningCode = "BERTH000"

// questionable reports whether a finding is more than a note: notes are right in
// some places, and alone do not make lint fail.
func questionable(f lintFinding) bool { return f.Severity != policy.SeverityNote }

// lintedFile is what was found in one file.
type lintedFile struct {
	findings []policy.Finding
	// policy is what a configuration says, gateway what one of Envoy's does.
	policy  *policy.Policy
	gateway *gateway.Configuration
}

// lintGateway checks a gateway in front of pickers with these policies; alone, if
// there are none.
func lintGateway(c *gateway.Configuration, policies []*policy.Policy) []policy.Finding {
	if len(policies) == 0 {
		return c.Lint(nil)
	}
	var findings []policy.Finding
	for _, p := range policies {
		for _, f := range c.Lint(p) {
			if !slices.Contains(findings, f) {
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// lintFile checks a configuration together with its pool, or a pool by itself. A
// gateway it only reads.
func lintFile(file, poolFile string, intents []v1alpha1.RoutingIntent) (lintedFile, error) {
	data, err := readLinted(file)
	switch {
	case errors.As(err, new(*policy.Error)):
		return lintedFile{}, err
	case err != nil:
		// Loading it gives the error in the form of all others.
	case isPool(data):
		p, err := policy.ParsePool(file, data, nil)
		if err != nil {
			return lintedFile{}, err
		}
		return lintedFile{findings: append(policy.Lint(nil, p), policy.LintIntents(nil, p, intents)...)}, nil
	default:
		c, err := gateway.Read(file, data)
		if !errors.Is(err, gateway.ErrNotEnvoy) {
			if err != nil && len(c.Filters) == 0 {
				return lintedFile{}, err // not for want of a filter
			}
			// What is wrong with one filter says nothing of the others.
			return lintedFile{gateway: c}, err
		}
	}
	p, warnings, err := policy.Load(file, plugins.Catalog{})
	if err != nil {
		return lintedFile{}, err
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
		return lintedFile{findings: findings, policy: p}, err
	}
	findings = append(findings, policy.Lint(p, members)...)
	findings = append(findings, policy.LintAccess(unusable(p.Engines))...)
	return lintedFile{findings: append(findings, policy.LintIntents(p, members, intents)...), policy: p}, nil
}

// readIntents reads a file of routing intents, and finds the members in it that are
// ignored; none without a file.
func readIntents(file string) (intents []v1alpha1.RoutingIntent, ignored []policy.Finding, err error) {
	if file == "" {
		return nil, nil, nil
	}
	data, err := readLinted(file)
	if err != nil {
		return nil, nil, err
	}
	// The line of what follows an offset.
	lineAt := func(offset int64) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }
	documents := json.NewDecoder(bytes.NewReader(data))
	for {
		rest := bytes.TrimLeft(data[documents.InputOffset():], " \t\r\n")
		begin := int64(len(data) - len(rest))
		at := lineAt(begin)
		var text json.RawMessage
		switch err := documents.Decode(&text); {
		case errors.Is(err, io.EOF):
			return intents, ignored, nil
		case err != nil:
			// Of a document by itself, the offset is behind the byte that does not fit.
			var syntax *json.SyntaxError
			if errors.As(json.NewDecoder(bytes.NewReader(rest)).Decode(&text), &syntax) {
				at = lineAt(min(begin+max(syntax.Offset-1, 0), int64(len(data))))
			}
			return nil, nil, &policy.Error{File: file, Line: at, Allowed: "must be JSON documents one after the other: " + err.Error()}
		}
		i, unknown, err := v1alpha1.DecodeIntent(text)
		var wrong *v1alpha1.IntentError
		switch {
		case errors.As(err, &wrong):
			return nil, nil, &policy.Error{File: file, Line: at, Field: fmt.Sprintf("intents[%d].%s", len(intents), wrong.Field), Allowed: wrong.Problem}
		case err != nil:
			return nil, nil, err
		}
		for _, f := range policy.LintIgnored(len(intents), unknown) {
			f.Where = fmt.Sprintf("line %d: %s", at, f.Where)
			ignored = append(ignored, f)
		}
		intents = append(intents, *i)
	}
}

// maxLinted bounds a file, bytes: a gateway's dump may take some hundred MiB.
const maxLinted = 256 << 20

// readLinted reads a file of at most maxLinted bytes. That it is longer is a
// *policy.Error.
func readLinted(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var data []byte
	if info.Size() <= maxLinted {
		// It may grow meanwhile.
		if data, err = io.ReadAll(io.LimitReader(f, maxLinted+1)); err != nil {
			return nil, err
		}
	}
	if info.Size() > maxLinted || len(data) > maxLinted {
		return nil, &policy.Error{File: path, Value: "more than 256MiB", Allowed: "must be at most 256MiB"}
	}
	return data, nil
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
		return policy.LoadPool(override, p.Engines)
	case p.Pool != nil:
		return p.Pool, nil
	case p.Discovery.File != "":
		members, err := policy.LoadPool(p.Discovery.File, p.Engines)
		return members, p.PoolFileError(err)
	default:
		return nil, nil
	}
}

// isPool reports whether the first document of a file is a StaticPool.
func isPool(data []byte) bool {
	for line := range bytes.Lines(data) {
		if kind, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("kind:")); ok {
			return string(bytes.TrimSpace(kind)) == "StaticPool"
		}
	}
	return false
}
