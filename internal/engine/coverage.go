package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Level says how well a profile can know a field.
type Level uint8

const (
	// None: the engine has no source for it.
	None Level = iota
	// Partial: the best source is of low quality, or not every release and
	// configuration of the engine has one.
	Partial
	// Direct: the engine says it.
	Direct
)

func (l Level) String() string { return [...]string{"none", "partial", "direct"}[l] }

// Symbol is ● for direct, ◐ for partial and ○ for none.
func (l Level) Symbol() string { return [...]string{"○", "◐", "●"}[l] }

// Coverage is what a profile can know of one field, before any page was read.
type Coverage struct {
	Field telemetry.Field
	Level Level
	// Origins are where it is read, in order of preference; the first that is
	// present decides. Empty for None.
	Origins []Origin
	// Reason says why the level is not Direct; empty if it is.
	Reason string
	// Off are the reasons for which the engine may have the field switched off.
	Off []string
}

// Origin is one place that a field can be read from.
type Origin struct {
	// Source is as it is in readings.
	Source telemetry.Source
	// Quality is 0 to 1; below 1 Because says why.
	Quality float32
	Because string
}

const (
	// sometimes is the reason of fields whose absence is no fault of a page.
	sometimes = "not in every release or configuration of the engine"
	// unnamed is that of fields that a profile neither reads nor gives up.
	unnamed = "the profile does not name it"
)

// Coverage tells what the profile can know of each field, in the order of the
// catalogue.
func (p *Profile) Coverage() []Coverage {
	all := make([]Coverage, telemetry.NumFields)
	for f := range telemetry.NumFields {
		all[f] = Coverage{Field: f, Reason: p.unsupported[f]}
		if all[f].Reason == "" {
			all[f].Reason = unnamed
		}
	}
	for i := range p.rules {
		all[p.rules[i].field] = p.rules[i].coverage()
	}
	for i := range p.pages[1:] {
		page := &p.pages[1+i]
		for j, f := range page.fields {
			o := page.origin(j)
			all[f] = Coverage{Field: f, Level: Direct, Origins: []Origin{o}}
			all[f].lower(o)
		}
	}
	return all
}

func (r *rule) coverage() Coverage {
	c := Coverage{Field: r.field, Level: Direct}
	for i := range r.sources {
		s := &r.sources[i]
		c.Origins = append(c.Origins, Origin{Source: *s.detail.Source, Quality: s.quality, Because: s.because})
	}
	if r.absent == telemetry.Unsupported {
		c.Level, c.Reason = Partial, sometimes
	}
	c.lower(c.Origins[0])
	for i := range r.off {
		if words := r.off[i].because; !slices.Contains(c.Off, words) {
			c.Off = append(c.Off, words)
		}
	}
	return c
}

// lower makes the level that of the best source.
func (c *Coverage) lower(best Origin) {
	if best.Quality < 1 {
		c.Level, c.Reason = Partial, best.Because
	}
}

// origin is where the page says its field of index i.
func (page *Page) origin(i int) Origin {
	o := Origin{Source: telemetry.Source{Path: page.Path}, Quality: 1}
	switch page.Format {
	case OpenAIModels:
		switch page.fields[i] {
		case telemetry.ServedModels:
			o.Source.Metric, o.Source.Rule = "data[].id", "cards without a parent"
		case telemetry.AdaptersLoaded:
			o.Source.Metric, o.Source.Rule = "data[].id", "cards with a parent"
		default:
			o.Source.Metric, o.Source.Rule = "data[].max_model_len", "lowest of the cards without a parent"
		}
	case Status:
		o.Source.Metric, o.Source.Rule = "status", "200 is yes"
		for _, status := range page.no {
			o.Source.Rule += fmt.Sprintf(", %d no", status)
		}
	default:
		m := &page.members[i]
		o.Source.Metric, o.Quality, o.Because = m.name, m.quality, m.because
		o.Source.Rule = map[combination]string{one: "one value", sum: "sum", largest: "max"}[m.combine]
		if m.invert {
			o.Source.Rule += ", true where false"
		}
	}
	return o
}

// Recognition says in words by what a page is recognised as the engine's.
func (p *Profile) Recognition() string {
	var ways []string
	for _, prefix := range p.detect.prefixes {
		// The flat spelling follows the one that the profile has.
		if !slices.ContainsFunc(p.detect.prefixes, func(other string) bool { return other != prefix && flatten(other) == prefix }) {
			ways = append(ways, "a family that begins with "+prefix)
		}
	}
	if len(p.detect.families) > 0 {
		names := make([]string, len(p.detect.families))
		for i, spellings := range p.detect.families {
			names[i] = spellings[0]
		}
		ways = append(ways, "all of "+strings.Join(names, ", "))
	}
	return strings.Join(ways, "; or ")
}

// Forbidden are the paths that must not be asked on this engine.
func (p *Profile) Forbidden() []string { return slices.Clone(p.never) }
