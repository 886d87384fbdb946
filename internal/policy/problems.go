package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Error is one refused value. Errors of one file come joined: errors.As finds
// the first.
type Error struct {
	File string
	// Line counts from 1; 0 where the whole file is meant.
	Line int
	// Field is the path in the document, as in "gateway.fallbacks" or
	// "endpoints[3].port". Empty where the whole document is meant.
	Field string
	// Value is what the file says, shortened to 64 characters.
	Value string
	// Allowed is what may stand there, as the rest of a sentence about the field
	// or, without one, about the file: it begins with must, is or cannot, as in
	// "must be 0 to 4" and "is not supported by this version".
	Allowed string

	cause error
}

// Error is "file:line: field: value: must be what is allowed" in one line,
// without empty parts: "berth.yaml:7: gateway.fallbacks: 9: must be 0 to 4".
func (e *Error) Error() string {
	place := e.File
	if e.Line > 0 {
		place += ":" + strconv.Itoa(e.Line)
	}
	parts := []string{place}
	for _, s := range []string{e.Field, e.Value, e.Allowed} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Unwrap is the file system's error where a file could not be read.
func (e *Error) Unwrap() error { return e.cause }

// Warning is something that was accepted and does not do what it seems to say.
type Warning struct {
	File string
	Line int
	// Field is a path as in Error.
	Field   string
	Message string
}

// String is "file:line: field: message".
func (w Warning) String() string {
	return (&Error{File: w.File, Line: w.Line, Field: w.Field, Allowed: w.Message}).Error()
}

// maxErrors bounds what one load reports: beyond it, one mistake repeats.
const maxErrors = 20

// problems collects what is wrong with one file.
type problems struct {
	file     string
	errors   []*Error
	dropped  int
	warnings []Warning
}

func (p *problems) refuse(line int, field, value, allowed string) {
	if len(p.errors) == maxErrors {
		p.dropped++
		return
	}
	p.errors = append(p.errors, &Error{File: p.file, Line: line, Field: printable(field, 256), Value: value, Allowed: allowed})
}

func (p *problems) warn(line int, field, message string) {
	p.warnings = append(p.warnings, Warning{File: p.file, Line: line, Field: printable(field, 256), Message: message})
}

// err joins the errors in the order of lines; nil without any.
func (p *problems) err() error {
	if len(p.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(p.errors, func(a, b *Error) int { return a.Line - b.Line })
	all := make([]error, 0, maxErrors+1)
	for _, e := range p.errors {
		all = append(all, e)
	}
	if p.dropped > 0 {
		all = append(all, fmt.Errorf("%s: %d more errors are not shown", p.file, p.dropped))
	}
	return errors.Join(all...)
}

// show is a node's value for an error.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	case yaml.AliasNode:
		return "*" + printable(n.Value, 64)
	}
	if n.ShortTag() == "!!null" {
		return "null"
	}
	// Quoted numbers stay quoted: that they are text is what is wrong with them.
	if n.Value == "" || n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		return quoted(n.Value)
	}
	return printable(n.Value, 64)
}

// printable shortens s to limit characters, and quotes it where it could forge
// a line of a log.
func printable(s string, limit int) string {
	s = shorten(s, limit)
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func quoted(s string) string { return strconv.Quote(shorten(s, 64)) }

func shorten(s string, limit int) string {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i] + "..."
		}
		n++
	}
	return s
}
