package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const program = `// Package p is read.
package p

// A Pick has Members of Other.Last,
// and Kind.
//
// It is a <test>.
type Pick struct {
	// First and Second are a pair; Other.Last ends, Third is none.
	First  int ` + "`json:\"first\"`" + `
	Second int ` + "`json:\"second,omitempty\"`" + `
	Fourth int ` + "`json:\"fourth\"`" + `

	Third int ` + "`json:\"third\"`" + `
	hidden Mode
	// Mode is how.
	Mode Mode ` + "`json:\"mode\"`" + `
	Bare Mode ` + "`json:\"bare\"`" + `
}

type Other struct { Last bool ` + "`json:\"last\"`" + ` }

// Mode says how.
type Mode string

const (
	// ModeOn: it is on.
	ModeOn Mode = "on"
	// Whatever else.
	ModeOff Mode = "off"
	// ModeDim is in between.
	ModeDim Mode = "dim"
	unrelated = "x"
	number Size = 1
)
`

func readProgram(t *testing.T) *source {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"p.go": program, "p_test.go": "no Go at all", "README.md": "nor this"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readSource(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCommentsNameMembersAsTheDocumentDoes(t *testing.T) {
	s := readProgram(t)
	if got, want := s.typeComment("Pick"), "A Pick has Members of Other.last, and Kind.\nIt is a <test>."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	const pair = "first and second are a pair; Other.last ends, third is none."
	const modes = "\non: it is on.\ndim is in between."
	for _, tc := range []struct{ field, of, want string }{
		{"First", "int", pair},
		{"Second", "int", pair},
		{"Fourth", "int", ""}, // of the group, but not named
		{"Third", "int", ""},  // named, but not of the group
		{"Mode", "Mode", "mode is how." + modes},
		{"Bare", "Mode", "Mode says how." + modes},
		{"None", "int", ""},
	} {
		if got := s.memberComment("Pick", tc.field, tc.of); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.field, got, tc.want)
		}
	}
}

func TestConstantsAreTheValuesOfTheirType(t *testing.T) {
	s := readProgram(t)
	want := map[string][]value{"Mode": {{"on", "on: it is on."}, {"off", ""}, {"dim", "dim is in between."}}}
	if !reflect.DeepEqual(s.values, want) {
		t.Errorf("got %q, want %q", s.values, want)
	}
}

func TestSourceThatCannotBeReadIsAnErrorThatNamesIt(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken.go"), []byte("package p\ntype"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ dir, want string }{{dir, "broken.go:2"}, {filepath.Join(dir, "none"), "none"}} {
		if _, err := readSource(tc.dir); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error %v, want one that names %s", err, tc.want)
		}
	}
}
