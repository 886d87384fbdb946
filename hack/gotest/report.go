package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/hack/testevent"
)

// report turns events into the text described in the package comment. Packages
// run at the same time, so their events come mixed; each package is printed
// whole when it ends.
type report struct {
	w        io.Writer
	packages map[string]*pkg
	// builds holds what the build printed, by import path of what was built.
	builds map[string][]string
	total  counts
}

type counts struct{ passed, failed, skipped int }

func (c *counts) add(o counts) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

// pkg is one package that has not ended yet.
type pkg struct {
	counts
	output []string         // lines of the package itself
	order  []string         // tests as they started
	tests  map[string]*test // those that have not passed
}

type test struct {
	state  string // testevent.Run until it fails or skips
	output []string
}

func newReport(w io.Writer) *report {
	return &report{w: w, packages: map[string]*pkg{}, builds: map[string][]string{}}
}

// add takes the next event.
func (r *report) add(e testevent.Event) {
	switch {
	case e.Action == "":
		fmt.Fprint(r.w, e.Output)
	case e.Action == testevent.BuildOutput:
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case e.Package == "":
	case e.Test != "":
		r.pkg(e.Package).add(e)
	case e.Action == testevent.Output:
		p := r.pkg(e.Package)
		p.output = append(p.output, e.Output)
	case e.Action == testevent.Pass, e.Action == testevent.Fail, e.Action == testevent.Skip:
		r.end(e)
	}
}

func (r *report) pkg(path string) *pkg {
	p, ok := r.packages[path]
	if !ok {
		p = &pkg{tests: map[string]*test{}}
		r.packages[path] = p
	}
	return p
}

// add takes an event of one test.
func (p *pkg) add(e testevent.Event) {
	t, ok := p.tests[e.Test]
	if !ok {
		t = &test{state: testevent.Run}
		p.tests[e.Test] = t
		p.order = append(p.order, e.Test)
	}
	switch e.Action {
	case testevent.Output:
		t.output = append(t.output, e.Output)
	case testevent.Pass:
		p.passed++
		delete(p.tests, e.Test) // its output is not shown: give it back
	case testevent.Fail:
		p.failed++
		t.state = testevent.Fail
	case testevent.Skip:
		p.skipped++
		t.state = testevent.Skip
	}
}

// end prints a package and forgets it.
func (r *report) end(e testevent.Event) {
	p := r.pkg(e.Package)
	delete(r.packages, e.Package)
	if e.Action == testevent.Fail {
		r.printFailure(p, e)
	}
	for _, name := range p.order {
		if t, ok := p.tests[name]; ok && t.state == testevent.Skip {
			fmt.Fprintf(r.w, "--- SKIP: %s %s%s\n", e.Package, name, reason(t))
		}
	}
	r.total.add(p.counts)
	switch {
	case e.Action == testevent.Fail:
		fmt.Fprintf(r.w, "FAIL  %s  %.2fs  (%s)\n", e.Package, e.Elapsed, p.counts)
	case p.counts != counts{}:
		fmt.Fprintf(r.w, "ok    %s  %s  (%s)\n", e.Package, elapsed(p, e), p.counts)
	}
}

// printFailure shows the output of the tests that failed or never ended, then,
// where no test can be blamed, that of the package and of its build.
func (r *report) printFailure(p *pkg, e testevent.Event) {
	blamed := false
	for _, name := range p.order {
		t, ok := p.tests[name]
		if !ok || t.state == testevent.Skip {
			continue
		}
		blamed = true
		if t.state == testevent.Run {
			p.failed++
			fmt.Fprintf(r.w, "--- FAIL: %s %s did not end\n", e.Package, name)
		}
		r.print(t.output)
	}
	if blamed {
		// Usually the FAIL line alone, but a race or a goroutine dump may be here.
		r.print(notBoilerplate(p.output))
		return
	}
	p.failed++
	r.print(r.builds[e.FailedBuild])
	r.print(p.output)
}

func (r *report) print(lines []string) {
	for _, line := range lines {
		fmt.Fprint(r.w, line)
	}
}

// notBoilerplate drops the lines that this report prints in its own form.
func notBoilerplate(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return line == "FAIL\n" || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "exit status ")
	})
}

// reason is what a skipped test said, on one line.
func reason(t *test) string {
	var said []string
	for _, line := range t.output {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return ""
	}
	return ": " + strings.Join(said, " ")
}

// elapsed is a package's time; a result from Go's test cache took none.
func elapsed(p *pkg, e testevent.Event) string {
	for _, line := range p.output {
		if strings.HasSuffix(line, "(cached)\n") {
			return "cached"
		}
	}
	return fmt.Sprintf("%.2fs", e.Elapsed)
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// summary prints the packages that never ended, then the closing line, and
// returns the counts.
func (r *report) summary() counts {
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		r.end(testevent.Event{Action: testevent.Fail, Package: path})
	}
	fmt.Fprintln(r.w, r.total)
	return r.total
}
