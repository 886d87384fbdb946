package engine

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// family numbers a family and remembers both spellings of its name.
func (p *Profile) family(name string) int {
	if i, ok := p.numbers[name]; ok {
		return i
	}
	i := len(p.families)
	p.numbers[name] = i
	p.families = append(p.families, family{name: name, base: name, typed: i, gone: name + " is not on the page", empty: name + " has no sample"})
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
			for _, part := range s.parts() {
				p.families[part.family].works = p.families[part.family].works || part.label == "" && showsWork(r.field)
			}
			for _, part := range slices.Concat(s.parts()[1:], pointers(s.plus)) {
				use(part, r.seldom)
			}
			if s.weight != nil {
				use(s.weight, r.seldom)
			}
		}
		for j := range r.contradicted {
			for _, part := range r.contradicted[j].parts() {
				use(part, r.seldom)
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
		p.families[p.clock.family].works = false
	}
}

// showsWork reports that what a field is read from moves with the work of the engine
// alone. What a device draws or holds moves by itself, and so does time.
func showsWork(f telemetry.Field) bool {
	switch f {
	case telemetry.Power, telemetry.GPUUtilization, telemetry.MemoryPressure, telemetry.EnergyPerToken, telemetry.ProcessStart:
		return false
	default:
		return true
	}
}

func pointers(list []series) []*series {
	all := make([]*series, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
