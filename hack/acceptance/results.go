package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/hack/testevent"
)

// results is how each test ended: package import path, test name, then
// testevent.Pass, Fail or Skip, or Run where it never ended.
type results map[string]map[string]string

func readResults(r io.Reader) (results, error) {
	ran := results{}
	err := testevent.Read(r, func(e testevent.Event) {
		switch e.Action {
		case testevent.Run, testevent.Pass, testevent.Fail, testevent.Skip:
		default:
			return
		}
		if e.Test == "" {
			return
		}
		if ran[e.Package] == nil {
			ran[e.Package] = map[string]string{}
		}
		ran[e.Package][e.Test] = e.Action
	})
	return ran, err
}

// whyNotShown says why the test does not show anything, or "" where it does.
func (ran results) whyNotShown(name testName) string {
	var in []string
	for pkg, tests := range ran {
		if _, ok := tests[name.test]; ok && (name.pkg == "" || pkg == name.pkg || strings.HasSuffix(pkg, "/"+name.pkg)) {
			in = append(in, pkg)
		}
	}
	slices.Sort(in)
	if len(in) == 0 {
		return "did not run"
	}
	if len(in) > 1 {
		return fmt.Sprintf("is in more than one package: %s", strings.Join(in, ", "))
	}
	tests := ran[in[0]]
	switch tests[name.test] {
	case testevent.Pass:
	case testevent.Fail:
		return "failed"
	case testevent.Skip:
		return "was skipped"
	default:
		return "did not end"
	}
	for _, sub := range slices.Sorted(maps.Keys(tests)) {
		if strings.HasPrefix(sub, name.test+"/") && tests[sub] == testevent.Skip {
			return fmt.Sprintf("passed without its subtest %s, which was skipped", sub)
		}
	}
	return ""
}
