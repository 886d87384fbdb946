package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// syntaxError tells in which line a text stops being YAML, from 1, and why.
//
// The line that the YAML library names counts from 0 in what its parser finds, is
// then that of the mapping or list around the fault, and is left out where it would
// be the first. Behind an empty line there is always one; and what the parser finds
// is in the last line of the shortest beginning of the text that fails as the whole.
func syntaxError(text []byte, err error) (line int, words string) {
	behind := append([]byte("\n"), bytes.TrimPrefix(text, []byte("\ufeff"))...)
	whole := notYAML(behind)
	if whole == nil {
		_, reason := libraryLine(err)
		return 0, "not YAML: " + printable(reason)
	}
	named, reason := libraryLine(whole)
	end, collects := parserFaults[reason]
	line = named - 1
	ends := lineEnds(behind)
	if collects || named == 0 {
		line = sort.Search(len(ends)-1, func(i int) bool {
			err := notYAML(append(behind[:ends[i]:ends[i]], end...))
			return err != nil && err.Error() == whole.Error()
		})
	}
	line = max(line, 1)
	because := reason
	if collects && 0 < named && named < line {
		because += fmt.Sprintf(" of what begins in line %d", named)
	}
	at := string(behind[ends[line-1]:ends[min(line, len(ends)-1)]])
	return line, fmt.Sprintf("not YAML: %.200s%s", printable(because), remedy(reason, at))
}

// parserFaults are what the parser of the library finds wrong, with what makes a
// text that only ends too early fail in another way.
var parserFaults = map[string]string{
	"did not find expected key":              "",
	"did not find expected '-' indicator":    "",
	"did not find expected ',' or ']'":       "\n,",
	"did not find expected ',' or '}'":       "\n,",
	"did not find expected node content":     "",
	"did not find expected <document start>": "",
	"found undefined tag handle":             "",
	"found duplicate %YAML directive":        "",
	"found duplicate %TAG directive":         "",
	"found incompatible YAML document":       "",
}

var libraryLinePattern = regexp.MustCompile(`^line (\d+): `)

// libraryLine takes the line out of an error of the YAML library; 0 if it has none.
func libraryLine(err error) (line int, reason string) {
	if err == nil {
		return 0, ""
	}
	reason = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := libraryLinePattern.FindStringSubmatch(reason); m != nil {
		line, _ = strconv.Atoi(m[1])
		reason = reason[len(m[0]):]
	}
	return line, reason
}

// notYAML is the first syntax error of a text, nil if it has none.
func notYAML(text []byte) error {
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		switch err := dec.Decode(new(yaml.Node)); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// lineEnds are where the lines of a text end; there is one at least.
func lineEnds(text []byte) []int {
	var ends []int
	for i, c := range text {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(ends) == 0 || ends[len(ends)-1] < len(text) {
		ends = append(ends, len(text))
	}
	return ends
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
