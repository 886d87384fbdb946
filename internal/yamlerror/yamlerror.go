// Package yamlerror says where a text stops being YAML.
package yamlerror

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxSearched bounds the texts in which the line of a syntax error is searched for,
// bytes: it takes some twenty more readings. maxReason bounds what is wrong there.
const (
	maxSearched = 1 << 20
	maxReason   = 200
)

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// Place is the line of a syntax error in data, from 1, and what is wrong there, in
// printable characters. The error is the first that decoding the documents of data
// gives. The line is 0 where it cannot be told.
//
// The line that the YAML library names counts from 0 in errors of its parser, is left
// out where it would be the first, and is that of the collection around the fault,
// not that of the fault. Only its text tells one from the other.
func Place(data []byte, err error) (line int, reason string) {
	line, reason = libraryLine(err)
	utf16 := bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff"))
	if len(data) > maxSearched || utf16 {
		if _, parser := parserReasons[reason]; parser && line > 0 {
			line++
		}
		return line, printable(reason)
	}

	// Behind an empty line nothing is in the first one, so that each line is named.
	data = append([]byte("\n"), bytes.TrimPrefix(data, []byte("\ufeff"))...)
	full := syntaxError(data)
	if full == nil {
		return line, printable(reason)
	}
	begin, reason := libraryLine(full)
	tail, parser := parserReasons[reason]
	switch {
	case parser:
		// begin counts from 0 and the empty line stands in front.
		line = failingLine(data, full, tail)
		if line == 0 {
			line = begin
		}
		reason = inside(reason, tail, line, begin)
	case begin == 0:
		line = failingLine(data, full, "")
	default:
		line = begin - 1
	}
	return line, printable(reason)
}

// libraryLine takes the line out of the text of an error; 0 if it has none.
func libraryLine(err error) (line int, reason string) {
	reason = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(reason); m != nil {
		line, _ = strconv.Atoi(m[1]) // digits; 0 if there are too many
		reason = reason[len(m[0]):]
	}
	return line, reason
}

// parserReasons are the errors of the library's parser; all others with a line are its
// scanner's. Behind each is what continues a text that only ends too early, so that it
// fails in another way.
var parserReasons = map[string]string{
	"did not find expected key":              "",
	"did not find expected '-' indicator":    "",
	"did not find expected ',' or ']'":       "\n,",
	"did not find expected ',' or '}'":       "\n,",
	"did not find expected node content":     "",
	"did not find expected <document start>": "",
	"found undefined tag handle":             "",
	"found duplicate %YAML directive":        "",
	"found incompatible YAML document":       "",
	"found duplicate %TAG directive":         "",
}

// inside adds to an error in a collection the line in which that begins: a bracket that
// is not closed is a fault there.
func inside(reason, tail string, line, begin int) string {
	collection := tail != "" || strings.HasSuffix(reason, "expected key") || strings.HasSuffix(reason, "indicator")
	if !collection || line == begin {
		return reason
	}
	return fmt.Sprintf("%s of what begins in line %d", reason, begin)
}

// failingLine is the line that a text must be read to for it to fail as it does; 0 if
// it fails by its end. The text has an empty line in front, which does not count.
func failingLine(data []byte, full error, tail string) int {
	ends := []int{}
	for i, b := range data {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(data) > ends[len(ends)-1] {
		ends = append(ends, len(data))
	}
	n := sort.Search(len(ends), func(n int) bool {
		err := syntaxError(append(data[:ends[n]:ends[n]], tail...))
		return err != nil && err.Error() == full.Error()
	})
	if n == len(ends) {
		return 0
	}
	return n
}

// syntaxError is the first error of reading the documents of a text.
func syntaxError(data []byte) error {
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		switch err := dec.Decode(&n); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// printable quotes a text that could forge a line or command a terminal.
func printable(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason] + "..."
	}
	if !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(reason)
	}
	return reason
}
