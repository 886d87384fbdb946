package engine

import "slices"

// joinSwitches finds out by which families a page shows that something is not
// switched off, whatever a condition infers. Conditions with the same words are of
// one switch. A condition with is has no such families: there the page itself says
// what is off, and may show zeros of it.
func (p *Profile) joinSwitches() {
	for i := range p.rules {
		r := &p.rules[i]
		for j := range r.off {
			c := &r.off[j]
			if c.is != "" {
				continue
			}
			for k := range p.rules {
				other := &p.rules[k]
				if slices.ContainsFunc(other.off, func(o condition) bool { return o.is == "" && o.because == c.because }) {
					c.on = append(c.on, other.families()...)
				}
			}
			slices.Sort(c.on)
			c.on = slices.Compact(c.on)
			for _, family := range c.on {
				// They must be read wherever the condition is asked for.
				p.families[family].seldom = p.families[family].seldom && r.seldom
			}
		}
	}
}

// families are those that the values of a rule are made of.
func (r *rule) families() (list []int) {
	for i := range r.sources {
		for _, part := range r.sources[i].parts() {
			list = append(list, part.family)
		}
	}
	return list
}

// refuted reports that the page shows something of what a condition infers to be
// switched off.
func (e *evaluation) refuted(c *condition) bool {
	return slices.ContainsFunc(c.on, func(family int) bool { return e.families[family].count > 0 })
}
