package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// statements takes what a command prints, passes it on, and keeps the lines that
// make a result.
type statements struct {
	through io.Writer
	// line is what came of a line that has not ended.
	line    []byte
	number  int
	subject Subject
	figures []Figure
	wrong   []error
}

func newStatements(through io.Writer) *statements { return &statements{through: through} }

// Write never refuses: a command whose output is wrong still runs to its end, and
// its output is still seen.
func (s *statements) Write(p []byte) (int, error) {
	n, err := s.through.Write(p)
	for rest := p[:n]; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		s.line = append(s.line, part...)
		if ended {
			s.take()
		}
		rest = after
	}
	return n, err
}

// end returns what was stated, or everything that is wrong with it.
func (s *statements) end() (Subject, []Figure, error) {
	if len(s.line) > 0 {
		s.take()
	}
	for _, k := range s.subject.keys() {
		if len(*k.values) == 0 {
			s.wrong = append(s.wrong, fmt.Errorf("the command does not state %[1]s; it must print a line `manifest %[1]s VALUE...`, "+
				"which says `none` and why where there is nothing to state", k.key))
		}
	}
	return s.subject, s.figures, errors.Join(s.wrong...)
}

// take reads the line that has ended.
func (s *statements) take() {
	line := strings.ToValidUTF8(string(s.line), "\uFFFD")
	s.line = s.line[:0]
	s.number++
	words := strings.Fields(line)
	if len(words) == 0 {
		return
	}
	var err error
	switch words[0] {
	case "manifest":
		err = s.state(words[1:])
	case "ok", "short", "info":
		var f Figure
		if f, err = parseFigure(line); err == nil {
			s.figures = append(s.figures, f)
		}
	}
	if err != nil {
		s.wrong = append(s.wrong, fmt.Errorf("line %d of the output, %q: %w", s.number, line, err))
	}
}

func (s *statements) state(words []string) error {
	var allowed []string
	for _, k := range s.subject.keys() {
		allowed = append(allowed, k.key)
		if len(words) > 1 && words[0] == k.key {
			*k.values = append(*k.values, strings.Join(words[1:], " "))
			return nil
		}
	}
	return fmt.Errorf("want `manifest KEY VALUE...` with a KEY of %s", strings.Join(allowed, ", "))
}

// parseFigure reads a line whose first word is a verdict.
func parseFigure(line string) (Figure, error) {
	columns, about, _ := strings.Cut(line, "#")
	words := strings.Fields(columns)
	if len(words) != 4 {
		return Figure{}, fmt.Errorf("%d words before any #, want 4: ok, short or info, name, measured, limit", len(words))
	}
	f := Figure{Name: words[1], Measured: words[2], Limit: words[3], About: strings.TrimSpace(about)}
	if verdicts := []string{"short", "ok"}; slices.Contains(verdicts, words[0]) {
		held := words[0] == "ok"
		f.OK = &held
	}
	return f, nil
}
