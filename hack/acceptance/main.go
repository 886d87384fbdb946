// Command acceptance checks the table of docs/acceptance.md, whose rules stand
// there, against the events of a finished `go test -json ./...`:
//
//	acceptance -table docs/acceptance.md -events build/test.json
//
// It prints one line for each finding, then how many rows hold, and exits with
// 1 where anything was found.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	table := flag.String("table", "docs/acceptance.md", "`file` with the table")
	events := flag.String("events", "build/test.json", "`file` with the events of go test -json")
	flag.Parse()
	findings, rows, err := check(*table, *events)
	if err != nil {
		fmt.Fprintln(os.Stderr, "acceptance:", err)
		os.Exit(1)
	}
	for _, f := range findings {
		fmt.Fprintln(os.Stderr, f)
	}
	if len(findings) > 0 {
		os.Exit(1)
	}
	fmt.Printf("acceptance: %d criteria shown by tests that ran\n", rows)
}

// check returns the findings, each with file and line, and the number of rows.
func check(table, events string) (findings []string, rows int, err error) {
	text, err := os.ReadFile(table)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the table: %w", err)
	}
	log, err := os.ReadFile(events)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the test events: %w", err)
	}
	ran, err := readResults(bytes.NewReader(log))
	if err != nil {
		return nil, 0, err
	}
	parsed, problems := parseTable(string(text))
	for _, r := range parsed {
		for _, name := range r.tests {
			if why := ran.whyNotShown(name); why != "" {
				problems = append(problems, problem{r.line, fmt.Sprintf("%s: test %s %s", r.id, name, why)})
			}
		}
		for _, link := range r.documents {
			path, _, _ := strings.Cut(link, "#")
			if _, err := os.Stat(filepath.Join(filepath.Dir(table), path)); err != nil {
				problems = append(problems, problem{r.line, fmt.Sprintf("%s: document %s is not there", r.id, link)})
			}
		}
	}
	for _, p := range problems {
		findings = append(findings, fmt.Sprintf("%s:%d: %s", table, p.line, p.text))
	}
	return findings, len(parsed), nil
}
