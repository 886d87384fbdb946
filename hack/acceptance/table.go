package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A row is one criterion of the table.
type row struct {
	line      int // in the file, from 1
	id        string
	tests     []testName
	documents []string // link targets
}

// A problem is one finding about one line of the table.
type problem struct {
	line int
	text string
}

var columns = []string{"id", "criterion", "tests", "documents"}

var (
	idPattern  = regexp.MustCompile(`^A[1-9][0-9]*[a-z]?$`)
	delimiter  = regexp.MustCompile(`^:?-+:?$`)
	linkTarget = regexp.MustCompile(`^\[[^\]]+\]\(([^()\s]+)\)$`)
)

// parseTable returns the rows that keep the rules, and a problem for everything
// that does not. A text without the table is a problem; a table without rows is
// none.
func parseTable(text string) (rows []row, problems []problem) {
	report := func(line int, format string, args ...any) {
		problems = append(problems, problem{line, fmt.Sprintf(format, args...)})
	}
	seen := map[string]int{}
	tableLine := 0 // lines of the table so far: header, delimiter, rows
	for i, text := range strings.Split(text, "\n") {
		line := i + 1
		text = strings.TrimSpace(text)
		if !strings.HasPrefix(text, "|") {
			continue
		}
		tableLine++
		got, err := cells(text)
		if err != nil {
			report(line, "%v", err)
			continue
		}
		switch tableLine {
		case 1:
			if !slices.Equal(got, columns) {
				report(line, "the columns are %q, want %q", got, columns)
			}
			continue
		case 2:
			if slices.ContainsFunc(got, func(c string) bool { return !delimiter.MatchString(c) }) {
				report(line, "the line below the header is %q, want dashes", text)
			}
			continue
		}
		r, err := parseRow(line, got)
		if err != nil {
			report(line, "%v", err)
			continue
		}
		if first, twice := seen[r.id]; twice {
			report(line, "id %s is on line %d already", r.id, first)
			continue
		}
		seen[r.id] = line
		rows = append(rows, r)
	}
	if tableLine < 2 {
		report(1, "there is no table with the columns %q", columns)
	}
	return rows, problems
}

// cells splits a table line, which starts with a bar, into its four trimmed cells.
func cells(line string) ([]string, error) {
	// Markdown has no byte that cannot stand in a cell, but a NUL stands in no
	// text file, so it can stand for the escaped bar.
	line = strings.ReplaceAll(line, `\|`, "\x00")
	parts := strings.Split(line, "|")
	if parts[len(parts)-1] != "" {
		return nil, fmt.Errorf("the line does not end with a bar")
	}
	parts = parts[1 : len(parts)-1]
	if len(parts) != len(columns) {
		return nil, fmt.Errorf("the line has %d cells, want %d", len(parts), len(columns))
	}
	for i, p := range parts {
		parts[i] = strings.TrimSpace(strings.ReplaceAll(p, "\x00", "|"))
	}
	return parts, nil
}

func parseRow(line int, cells []string) (row, error) {
	r := row{line: line, id: cells[0]}
	if !idPattern.MatchString(r.id) {
		return row{}, fmt.Errorf("id %q is not of the form A5 or A10b", r.id)
	}
	if cells[1] == "" {
		return row{}, fmt.Errorf("%s: criterion is empty", r.id)
	}
	for _, item := range items(cells[2]) {
		name, err := parseTestName(item)
		if err != nil {
			return row{}, fmt.Errorf("%s: tests: %w", r.id, err)
		}
		r.tests = append(r.tests, name)
	}
	if len(r.tests) == 0 {
		return row{}, fmt.Errorf("%s: tests is empty, want at least one test", r.id)
	}
	for _, item := range items(cells[3]) {
		m := linkTarget.FindStringSubmatch(item)
		if m == nil || strings.Contains(m[1], ":") || strings.HasPrefix(m[1], "/") || strings.HasPrefix(m[1], "#") {
			return row{}, fmt.Errorf("%s: documents: %q is not a link [text](path) to a file of this repository", r.id, item)
		}
		r.documents = append(r.documents, m[1])
	}
	return r, nil
}

// items splits a cell at its commas, except at those inside backticks.
func items(cell string) []string {
	quoted := false
	split := strings.FieldsFunc(cell, func(c rune) bool {
		if c == '`' {
			quoted = !quoted
		}
		return c == ',' && !quoted
	})
	for i, s := range split {
		split[i] = strings.TrimSpace(s)
	}
	return split
}

// A testName is a test as the table names it.
type testName struct {
	pkg  string // path within the module, or whole; empty: the only one that has the test
	test string // with subtests
}

func (n testName) String() string {
	if n.pkg == "" {
		return n.test
	}
	return n.pkg + "." + n.test
}

// The package is matched as short as possible: a subtest's name may hold dots.
var testPattern = regexp.MustCompile("^`(?:([A-Za-z0-9_./-]+?)\\.)?((?:Test|Fuzz|Example)[\\p{L}\\p{N}_]*(?:/[^\\s`]+)?)`$")

func parseTestName(item string) (testName, error) {
	m := testPattern.FindStringSubmatch(item)
	if m == nil {
		return testName{}, fmt.Errorf("%q is not `TestName`, `TestName/subtest` or `package/path.TestName` in backticks", item)
	}
	return testName{pkg: m[1], test: m[2]}, nil
}
