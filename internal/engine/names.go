package engine

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	// maxNames and maxNamesText bound what one replica may claim to serve: how many
	// names, and their bytes together. Snapshots keep them.
	maxNames     = 4096
	maxNamesText = 64 << 10
	// maxText bounds a name or a version, in bytes.
	maxText = 512
)

// nameSet is names, each once, in the order in which they came.
type nameSet struct {
	names []string
	known map[string]bool
	// text is the length of them all.
	text int
}

// add reports that the name is new. It keeps nothing else of the page that the
// name is part of.
func (s *nameSet) add(name string) bool {
	if s.known[name] {
		return false
	}
	if s.known == nil {
		s.known = map[string]bool{}
	}
	name = strings.Clone(name)
	s.known[name] = true
	s.names = append(s.names, name)
	s.text += len(name)
	return true
}

// tooMuch says why there are more names than may be; empty if there are not.
func (s *nameSet) tooMuch() string {
	switch {
	case len(s.names) > maxNames:
		return fmt.Sprintf("more than %d names", maxNames)
	case s.text > maxNamesText:
		return fmt.Sprintf("names of more than %d bytes together", maxNamesText)
	default:
		return ""
	}
}

// unfit says why a text of an engine cannot be a name; empty if it can.
func unfit(text string) string {
	switch {
	case text == "":
		return "is empty"
	case len(text) > maxText:
		return fmt.Sprintf("has %d bytes, want at most %d", len(text), maxText)
	}
	for _, r := range text {
		switch {
		case r == unicode.ReplacementChar:
			// What stands for halves of a character in JSON: two names may become one.
			return "has what is no character"
		case !unicode.IsPrint(r):
			return "has characters that do not print"
		}
	}
	return ""
}

// texts reads the texts of a label: the names in it, separated by commas, or the
// one text.
func (e *evaluation) texts(src *source, f telemetry.Field) outcome {
	name := e.profile.families[src.family].name
	if problem := e.families[src.family].problem; problem != "" {
		return invalid("%s: %s", name, problem)
	}
	list, others, fault := e.chosen(&src.series)
	if fault != "" {
		return invalid("%s", fault)
	}
	if src.combine == newest {
		latest, o := e.latest(&src.series, list)
		if o.reason != "" {
			return o
		}
		list = list[:0]
		if latest != nil {
			list = append(list, latest)
		}
	}
	if len(list) == 0 {
		return e.missing(&src.series, others)
	}
	o := outcome{kind: possible}
	listed := nameSet{names: []string{}}
	for _, s := range list {
		switch {
		case s.problem != "":
			return invalid("%s: %s", name, s.problem)
		case !s.labels.Has(src.label):
			return outcome{reason: fmt.Sprintf("%s has no label %s", name, src.label)}
		case src.differs != "" && s.labels.Get(src.differs) == s.labels.Get(src.label):
			return outcome{kind: refused, reason: src.alike}
		}
		o.at = oldest(o.at, s.at)
		text := s.labels.Get(src.label)
		if f.Kind() == telemetry.Text {
			if fault := unfit(text); fault != "" {
				return invalid("label %s of %s %s", src.label, name, fault)
			}
			if listed.add(text) && len(listed.names) > 1 {
				return invalid("label %s of %s differs between series", src.label, name)
			}
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			if fault := unfit(part); fault != "" {
				return invalid("a name in label %s of %s %s", src.label, name, fault)
			}
			if !listed.add(part) {
				continue
			}
			if fault := listed.tooMuch(); fault != "" {
				return invalid("label %s of %s has %s", src.label, name, fault)
			}
		}
	}
	o.names = listed.names
	slices.Sort(o.names)
	return o
}
