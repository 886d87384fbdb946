package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

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
	o := outcome{kind: possible, names: []string{}}
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
			if len(o.names) > 0 && o.names[0] != text {
				return invalid("label %s of %s differs between series", src.label, name)
			}
			o.names = []string{text}
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part == "" || slices.Contains(o.names, part) {
				continue
			}
			if fault := unfit(part); fault != "" {
				return invalid("a name in label %s of %s %s", src.label, name, fault)
			}
			if o.names = append(o.names, part); len(o.names) > maxNames {
				return invalid("label %s of %s has more than %d names", src.label, name, maxNames)
			}
		}
	}
	slices.Sort(o.names)
	return o
}
