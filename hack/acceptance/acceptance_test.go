package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const header = "| id | criterion | tests | documents |\n|---|---|---|---|\n"

// events of one run: two packages have a TestShared.
const events = `
{"Action":"run","Package":"example.com/m/internal/screen","Test":"TestPassed"}
{"Action":"run","Package":"example.com/m/internal/screen","Test":"TestPassed/v1.2_of_it"}
{"Action":"pass","Package":"example.com/m/internal/screen","Test":"TestPassed/v1.2_of_it"}
{"Action":"pass","Package":"example.com/m/internal/screen","Test":"TestPassed"}
{"Action":"pass","Package":"example.com/m/internal/screen","Test":"TestPassed/a|b,c"}
{"Action":"fail","Package":"example.com/m/internal/screen","Test":"TestFailed"}
{"Action":"skip","Package":"example.com/m/internal/screen","Test":"TestSkipped"}
{"Action":"run","Package":"example.com/m/internal/screen","Test":"TestCrashed"}
{"Action":"skip","Package":"example.com/m/internal/screen","Test":"TestHalf/sub"}
{"Action":"pass","Package":"example.com/m/internal/screen","Test":"TestHalf"}
{"Action":"pass","Package":"example.com/m/internal/screen","Test":"TestShared"}
{"Action":"pass","Package":"example.com/m/internal/pool","Test":"TestShared"}
{"Action":"pass","Package":"example.com/m/internal/pool","Test":"FuzzParse"}
{"Action":"pass","Package":"example.com/m/internal/pool"}
`

// findings checks a table against the events above; docs/there.md exists.
func findings(t *testing.T, table string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"acceptance.md": table, "there.md": "", "test.json": events} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := check(filepath.Join(dir, "acceptance.md"), filepath.Join(dir, "test.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], filepath.Join(dir, "acceptance.md")+":")
	}
	return got
}

func TestARowHoldsWhereItsTestsPassed(t *testing.T) {
	for _, c := range []struct{ name, row string }{
		{"one test by its short name", "| A1 | It holds. | `TestPassed` | |"},
		{"the package within the module", "| A1 | It holds. | `internal/screen.TestPassed` | |"},
		{"the whole import path", "| A1 | It holds. | `example.com/m/internal/screen.TestPassed` | |"},
		{"a subtest with a dot", "| A1 | It holds. | `internal/screen.TestPassed/v1.2_of_it` | |"},
		{"a subtest with a bar and a comma", "| A1 | It holds. | `TestPassed/a\\|b,c` | |"},
		{"a name of two packages, qualified", "| A1 | It holds. | `internal/pool.TestShared`, `internal/screen.TestShared` | |"},
		{"a fuzz target's seeds", "| A1 | It holds. | `FuzzParse` | |"},
		{"a part of a criterion", "| A10b | It holds. | `TestPassed` | |"},
		{"documents", "| A1 | It holds. | `TestPassed` | [there](there.md), [a part of it](there.md#part) |"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := findings(t, "# Title\n\n"+header+c.row+"\n"); len(got) != 0 {
				t.Errorf("findings %q, want none", got)
			}
		})
	}
}

func TestARowIsRefusedWithItsLineAndReason(t *testing.T) {
	for _, c := range []struct{ name, row, want string }{
		{"the test does not exist", "| A1 | It holds. | `TestNowhere` | |", "3: A1: test TestNowhere did not run"},
		{"the test is in another package", "| A1 | It holds. | `internal/pool.TestPassed` | |", "3: A1: test internal/pool.TestPassed did not run"},
		{"the package is only the end of a word", "| A1 | It holds. | `creen.TestPassed` | |", "3: A1: test creen.TestPassed did not run"},
		{"the subtest does not exist", "| A1 | It holds. | `TestPassed/other` | |", "3: A1: test TestPassed/other did not run"},
		{"the test failed", "| A1 | It holds. | `TestFailed` | |", "3: A1: test TestFailed failed"},
		{"the test was skipped", "| A1 | It holds. | `TestSkipped` | |", "3: A1: test TestSkipped was skipped"},
		{"a subtest was skipped", "| A1 | It holds. | `TestHalf` | |", "3: A1: test TestHalf passed without its subtest TestHalf/sub, which was skipped"},
		{"the test never ended", "| A1 | It holds. | `TestCrashed` | |", "3: A1: test TestCrashed did not end"},
		{"two packages have the test", "| A1 | It holds. | `TestShared` | |", "3: A1: test TestShared is in more than one package: example.com/m/internal/pool, example.com/m/internal/screen"},
		{"the document is not there", "| A1 | It holds. | `TestPassed` | [gone](gone.md) |", "3: A1: document gone.md is not there"},
		{"a document outside", "| A1 | It holds. | `TestPassed` | [x](https://example.com) |", "3: A1: documents: \"[x](https://example.com)\" is not a link [text](path) to a file of this repository"},
		{"no test", "| A1 | It holds. | | |", "3: A1: tests is empty, want at least one test"},
		{"only commas for tests", "| A1 | It holds. | , | |", "3: A1: tests is empty, want at least one test"},
		{"a test without backticks", "| A1 | It holds. | TestPassed | |", "3: A1: tests: \"TestPassed\" is not `TestName`, `TestName/subtest` or `package/path.TestName` in backticks"},
		{"something that is no test", "| A1 | It holds. | `BenchmarkPick` | |", "3: A1: tests: \"`BenchmarkPick`\" is not `TestName`, `TestName/subtest` or `package/path.TestName` in backticks"},
		{"no criterion", "| A1 | | `TestPassed` | |", "3: A1: criterion is empty"},
		{"no id", "| | It holds. | `TestPassed` | |", "3: id \"\" is not of the form A5 or A10b"},
		{"an id that is no number", "| A0 | It holds. | `TestPassed` | |", "3: id \"A0\" is not of the form A5 or A10b"},
		{"a cell too few", "| A1 | It holds. | `TestPassed` |", "3: the line has 3 cells, want 4"},
		{"a cell too many", "| A1 | It holds. | `TestPassed` | | |", "3: the line has 5 cells, want 4"},
		{"no last bar", "| A1 | It holds. | `TestPassed` | there", "3: the line does not end with a bar"},
		{"the same id again", "| A1 | It holds. | `TestPassed` | |\n| A1 | Too. | `TestPassed` | |", "4: id A1 is on line 3 already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, want := findings(t, header+c.row+"\n"), []string{c.want}; !slices.Equal(got, want) {
				t.Errorf("findings %q\nwant     %q", got, want)
			}
		})
	}
}

func TestATableWithoutRowsIsAcceptedButNotAMissingTable(t *testing.T) {
	for _, c := range []struct {
		name, table string
		want        []string
	}{
		{"no rows", header, nil},
		{"no table", "# Title\n", []string{`1: there is no table with the columns ["id" "criterion" "tests" "documents"]`}},
		{"only a header", "| id | criterion | tests | documents |\n", []string{`1: there is no table with the columns ["id" "criterion" "tests" "documents"]`}},
		{"other columns", "| id | what | tests | documents |\n|---|---|---|---|\n", []string{`1: the columns are ["id" "what" "tests" "documents"], want ["id" "criterion" "tests" "documents"]`}},
		{"no dashes", "| id | criterion | tests | documents |\n| A1 | It holds. | `TestPassed` | |\n", []string{"2: the line below the header is \"| A1 | It holds. | `TestPassed` | |\", want dashes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := findings(t, c.table); !slices.Equal(got, c.want) {
				t.Errorf("findings %q\nwant     %q", got, c.want)
			}
		})
	}
}

func TestTheProjectsOwnTableKeepsTheRules(t *testing.T) {
	text, err := os.ReadFile(filepath.FromSlash("../../docs/acceptance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := parseTable(string(text)); len(problems) != 0 {
		t.Errorf("problems: %v", problems)
	}
}

func TestAMissingFileIsAnErrorThatNamesIt(t *testing.T) {
	dir := t.TempDir()
	table := filepath.Join(dir, "acceptance.md")
	if err := os.WriteFile(table, []byte(header), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ table, events, want string }{
		{filepath.Join(dir, "no.md"), table, "no.md"},
		{table, filepath.Join(dir, "no.json"), "no.json"},
	} {
		if _, _, err := check(c.table, c.events); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one that names %s", err, c.want)
		}
	}
}

// Whatever the file holds, the parser ends, and each line of it that starts with
// a bar beyond the first two is either a row or has a problem.
func FuzzParseTable(f *testing.F) {
	f.Add(header)
	f.Add(header + "| A1 | It holds. | `TestPassed` | [there](there.md) |\n")
	f.Add(header + "| A1 | a \\| b | `p.TestA/b\\|c`, `TestD` | |\n|\n||\n| A1 ||||\n")
	f.Fuzz(func(t *testing.T, text string) {
		rows, problems := parseTable(text)
		accounted := map[int]bool{}
		for _, r := range rows {
			accounted[r.line] = true
			if len(r.tests) == 0 {
				t.Errorf("row %s on line %d has no tests", r.id, r.line)
			}
		}
		for _, p := range problems {
			accounted[p.line] = true
		}
		bars := 0
		for i, line := range strings.Split(text, "\n") {
			if !strings.HasPrefix(strings.TrimSpace(line), "|") {
				continue
			}
			if bars++; bars > 2 && !accounted[i+1] {
				t.Errorf("line %d, %q, is neither a row nor a problem", i+1, line)
			}
		}
	})
}
