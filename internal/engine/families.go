package engine

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// family numbers a family and remembers both spellings of its name.
func (p *Profile) family(name string) int {
	if i := slices.IndexFunc(p.families, func(f family) bool { return f.name == name }); i >= 0 {
		return i
	}
	i := len(p.families)
	p.families = append(p.families, family{name: name, gone: name + " is not on the page", empty: name + " has no sample"})
	for _, spelling := range []string{name, flatten(name)} {
		p.addName(spelling, naming{i, false})
		if base, counter := strings.CutSuffix(spelling, "_total"); counter {
			p.addName(base, naming{i, true})
		}
	}
	return i
}

func (p *Profile) addName(name string, n naming) {
	if had, ok := p.names[name]; ok && !had.comment {
		return
	}
	p.names[name] = n
}

// judgeFamilies finds out how each family is used.
func (p *Profile) judgeFamilies() {
	for i := range p.families {
		p.families[i].seldom, p.families[i].choosing = true, true
	}
	use := func(s *series, seldom bool) {
		f := &p.families[s.family]
		f.seldom = f.seldom && seldom
		f.choosing = f.choosing && slices.ContainsFunc(s.where, func(w labelPair) bool { return w.name == p.labels.model })
	}
	for i := range p.rules {
		r := &p.rules[i]
		for j := range r.sources {
			s := &r.sources[j]
			use(&s.series, r.seldom)
			for _, part := range slices.Concat(s.parts()[1:], pointers(s.plus)) {
				use(part, r.seldom)
			}
			if s.weight != nil {
				use(s.weight, r.seldom)
			}
			if r.field == telemetry.ProcessStart {
				p.families[s.family].still = true
			}
		}
		for j := range r.off {
			use(&r.off[j].series, r.seldom)
		}
	}
	if p.valid != nil {
		use(&p.valid.series, false)
	}
	if p.clock != nil {
		use(&p.clock.series, false)
		p.families[p.clock.family].still = true
	}
}

func pointers(list []series) []*series {
	all := make([]*series, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
