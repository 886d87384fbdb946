package engine

import (
	"strings"

	"github.com/berth-dev/berth/internal/yamlerror"
)

// syntaxError tells in which line a text stops being YAML, from 1, why, and what to do
// about it.
func syntaxError(text []byte, err error) (line int, words string) {
	line, reason := yamlerror.Place(text, err)
	return line, "not YAML: " + reason + remedy(reason, lineOf(text, line))
}

// lineOf is one line of a text, from 1; empty if there is no such line.
func lineOf(text []byte, number int) string {
	for line := range strings.Lines(string(text)) {
		if number--; number == 0 {
			return line
		}
	}
	return ""
}

// remedy says what to do about the mistakes that people make most.
func remedy(reason, line string) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	switch {
	case strings.Contains(reason, "cannot start any token") && strings.Contains(indent, "\t"):
		return " (a tab? indent with spaces)"
	case strings.Contains(reason, "cannot start any token"):
		return " (quote a text that begins with it)"
	case strings.Contains(reason, "mapping values are not allowed"):
		return " (quote a text that has a colon)"
	}
	return ""
}
