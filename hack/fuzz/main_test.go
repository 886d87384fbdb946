package main

import (
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

func TestOnlyFuzzTargetsAreFound(t *testing.T) {
	const source = `package p

import "testing"

func FuzzOne(f *testing.F)              {}
func (s suite) FuzzMethod(f *testing.F) {}
func FuzzHelper(s string)               {}
func FuzzTwo(fuzz *testing.F)           {}
func FuzzTest(t *testing.T)             {}
func FuzzBoth(t *testing.T, f *testing.F) {}
func TestOther(t *testing.T)            {}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p_test.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fuzzFuncs(f), []string{"FuzzOne", "FuzzTwo"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestTargetsAreListedWithTheirPackage(t *testing.T) {
	got, err := list(t.Context(), []string{"github.com/berth-dev/berth/hack/acceptance"})
	if err != nil {
		t.Fatal(err)
	}
	want := []target{{"github.com/berth-dev/berth/hack/acceptance", "FuzzParseTable"}}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}
