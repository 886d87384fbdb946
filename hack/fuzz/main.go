// Command fuzz runs every fuzz target of the packages given, one after the
// other, each for the same time:
//
//	fuzz -time 10s ./...
//
// `go test` itself fuzzes one target of one package at a time. It goes on after
// a target that fails, and exits with 1 where there is any; go test leaves the
// failing input in the package's testdata. At the end stand, for hack/results,
// lines `manifest KEY VALUE...`, which say what was fuzzed, and two findings for
// each target (package finding says how to read one): TARGET/crashes, of which
// there is at most one, and TARGET/executions, with the seconds that they took.
//
// What go test prints goes to standard error.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/finding"
)

// A target is one fuzz function.
type target struct {
	pkg  string // import path
	name string
}

func (t target) String() string { return t.pkg + "." + t.name }

func main() {
	each := flag.Duration("time", 10*time.Second, "how long to fuzz each target, more than 0")
	flag.Parse()
	if *each <= 0 {
		fmt.Fprintf(os.Stderr, "fuzz: -time %v, want more than 0\n", *each)
		os.Exit(finding.ExitUsage)
	}
	if err := run(*each, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(finding.ExitShort)
	}
}

func run(each time.Duration, patterns []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	targets, err := list(ctx, patterns)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return fmt.Errorf("%s: no package has a fuzz target", strings.Join(patterns, " "))
	}
	var failed []string
	var results []result
	for i, t := range targets {
		fmt.Printf("[%d/%d] %s for %v\n", i+1, len(targets), t, each)
		cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+each.String(), t.pkg)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stderr, &said), os.Stderr
		err := cmd.Run()
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		r := result{target: t, outcome: readOutcome(said.String()), failed: err != nil}
		results = append(results, r)
		if r.short() {
			failed = append(failed, t.String())
		}
	}
	printResults(os.Stdout, results, each)
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed: %s", len(failed), len(targets), strings.Join(failed, ", "))
	}
	return nil
}

// list returns the fuzz targets of the packages in go list's order. It reads the
// sources, because `go test -list` would link every package's test binary first.
func list(ctx context.Context, patterns []string) ([]target, error) {
	const format = `{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}|{{$p.Dir}}|{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}}|{{$p.Dir}}|{{.}}
{{end}}`
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var targets []target
	for line := range strings.Lines(string(out)) {
		part := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if len(part) != 3 {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(part[1], part[2]), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, name := range fuzzFuncs(f) {
			targets = append(targets, target{part[0], name})
		}
	}
	return targets, nil
}

// fuzzFuncs returns the names of the functions in a test file that go test
// takes for fuzz targets.
func fuzzFuncs(f *ast.File) []string {
	var names []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") || len(fn.Type.Params.List) != 1 {
			continue
		}
		ptr, ok := fn.Type.Params.List[0].Type.(*ast.StarExpr)
		if !ok {
			continue
		}
		if sel, ok := ptr.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "F" {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}
