package engine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fault is one thing that is wrong with a profile. Those of one file come joined, in
// the order of their lines: see Faults.
type Fault struct {
	File string
	// Line counts from 1; 0 where the whole file is meant.
	Line int
	// Field is the path in the document, as in fields.ttft.sources[0].window. Empty
	// where the document as a whole is meant.
	Field string
	// Words are the value and what is allowed, in one line of printable characters.
	Words string
}

// Error is "file:line: field: words", without what is empty.
func (f *Fault) Error() string {
	place := printable(f.File)
	if f.Line > 0 {
		place += ":" + strconv.Itoa(f.Line)
	}
	if f.Field != "" {
		place += ": " + f.Field
	}
	return place + ": " + f.Words
}

// printable is a text that can neither forge a line nor command a terminal: it is
// quoted where it could.
func printable(text string) string {
	if strings.ContainsFunc(text, unprintable) {
		return strconv.Quote(text)
	}
	return text
}

// Faults takes apart what Parse, Load, NewSet and With return: one error for each
// thing that is wrong.
func Faults(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, Faults(e)...)
	}
	return all
}

const (
	// maxFaults bounds what is reported of one file: beyond it, one mistake repeats.
	maxFaults = 20
	// maxCounted bounds what is remembered of one file.
	maxCounted = 1000
)

// faults collects what is wrong with one file.
type faults struct {
	file string
	list []*Fault
	// wrong are the places that were reported, with true, and all that they are
	// parts of.
	wrong map[string]bool
}

// add reports words on the place at path. key tells it from others that are reported
// of the same place, and is reported once.
func (f *faults) add(line int, path, key, words string) {
	if f.wrong[key] || len(f.list) == maxCounted {
		return
	}
	if f.wrong == nil {
		f.wrong = map[string]bool{}
	}
	for part := key; part != ""; {
		part = part[:max(0, strings.LastIndexAny(part, ".["))]
		if _, marked := f.wrong[part]; marked {
			break
		}
		f.wrong[part] = false
	}
	f.wrong[key] = true
	f.list = append(f.list, &Fault{f.file, line, path, words})
}

// only is the error of a file that cannot be read any further.
func (f *faults) only(line int, words string) error {
	return &Fault{File: f.file, Line: line, Words: words}
}

// err joins the first faults in the order of lines; nil without any.
func (f *faults) err() error {
	switch len(f.list) {
	case 0:
		return nil
	case 1:
		return f.list[0]
	}
	slices.SortStableFunc(f.list, func(a, b *Fault) int { return a.Line - b.Line })
	all := make([]error, 0, maxFaults+1)
	for _, one := range f.list[:min(len(f.list), maxFaults)] {
		all = append(all, one)
	}
	switch more := len(f.list) - maxFaults; {
	case len(f.list) == maxCounted:
		all = append(all, &Fault{File: f.file, Words: fmt.Sprintf("at least %d more faults are not shown", more)})
	case more > 0:
		all = append(all, &Fault{File: f.file, Words: fmt.Sprintf("%d more faults are not shown", more)})
	}
	return errors.Join(all...)
}
