package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// nameSet is names, each once, in the order in which they came.
type nameSet struct {
	names []string
	known map[string]bool
}

// add reports that the name is new.
func (s *nameSet) add(name string) bool {
	if s.known[name] {
		return false
	}
	if s.known == nil {
		s.known = map[string]bool{}
	}
	s.known[name] = true
	s.names = append(s.names, name)
	return true
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
			if listed.add(part) && len(listed.names) > maxNames {
				return invalid("label %s of %s has more than %d names", src.label, name, maxNames)
			}
		}
	}
	o.names = listed.names
	slices.Sort(o.names)
	return o
}
