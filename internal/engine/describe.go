package engine

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

func (p *Profile) detail(s *source) *telemetry.Detail {
	name := p.families[s.family].name
	if s.bucket != nil {
		name = strings.TrimSuffix(name, "_sum")
	}
	src := &telemetry.Source{Path: p.pages[0].Path, Metric: name, Rule: p.describe(s)}
	d := &telemetry.Detail{Source: src}
	if s.because != "" {
		d.Reasons = []string{s.because}
	}
	return d
}

// describe says in words how a source becomes a value.
func (p *Profile) describe(s *source) string {
	words := p.describeSeries(&s.series)
	if s.weight != nil {
		words += " weighted by " + p.described(s.weight)
	}
	for i := range s.plus {
		words += ", plus " + p.families[s.plus[i].family].name + " " + p.describeSeries(&s.plus[i])
	}
	if s.times != nil {
		words += ", times " + p.families[s.times.family].name + " " + p.describeSeries(s.times)
	}
	switch {
	case s.window == 0:
	case s.bucket != nil:
		words += ", distribution over " + s.window.String()
	case s.total != nil:
		words += ", growth over " + s.window.String() + " divided by that of " + p.described(s.total)
	case len(s.over) > 0:
		words += ", growth over " + s.window.String()
	default:
		words += ", per second over " + s.window.String()
	}
	for i := range s.over {
		if i == 0 {
			words += ", divided by "
		} else {
			words += " + "
		}
		words += p.described(&s.over[i])
	}
	if s.scale != 1 {
		words += fmt.Sprintf(", times %v", s.scale)
	}
	if s.invert {
		words += ", true where 0"
	}
	return words
}

// described names a series together with what chooses it.
func (p *Profile) described(s *series) string {
	words := p.families[s.family].name
	if s.label != "" {
		words += " label " + s.label
	}
	return words + selector(s)
}

func (p *Profile) describeSeries(s *series) string {
	over := "the series"
	if len(p.labels.ranks) > 0 {
		over = strings.Join(p.labels.ranks, ", ")
	}
	words := map[combination]string{
		sum: "sum over " + over, mean: "mean over " + over, largest: "max over " + over,
		newest: "newest series", one: "one series",
	}[s.combine]
	if s.label != "" {
		words = "label " + s.label + ", " + words
	}
	return words + selector(s)
}

func selector(s *series) (words string) {
	for _, w := range s.where {
		switch w.value {
		case "":
			words += " without " + w.name
		case "*":
			words += " with " + w.name
		default:
			words += " where " + w.name + "=" + w.value
		}
	}
	return words
}
