package host

import (
	"strings"
	"testing"
)

func TestZ3_AFaultIsToldWithoutTheValueThatItHappenedWith(t *testing.T) {
	const canary = "canary-of-a-prompt"
	for name, happen := range map[string]func(){
		"a text":           func() { panic(canary) },
		"an error of ours": func() { panic(&errWith{canary}) },
		"the runtime's":    func() { _ = []byte(canary)[len(canary):][3] },
	} {
		func() {
			defer func() {
				text := fault(recover())
				if text == "" || strings.Contains(text, canary) {
					t.Errorf("%s: told as %q", name, text)
				}
			}()
			happen()
		}()
	}
}

type errWith struct{ text string }

func (e *errWith) Error() string { return e.text }
