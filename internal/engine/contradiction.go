package engine

import "slices"

// contradiction is a page that cannot be true of a field: what some series add up to
// exceeds what others do.
type contradiction struct {
	more, than []series
	// by is how far it may exceed, as a share: a page may be caught between two
	// updates.
	by      float64
	because string
}

func (p *Profile) parseContradiction(n node) contradiction {
	m := n.members("more", "than", "by", "because")
	c := contradiction{
		by:      m["by"].number(0, 0, 1),
		because: m["because"].require(n, "because").prose(),
	}
	parts := func(name string) (list []series) {
		for _, part := range m[name].require(n, name).list() {
			list = append(list, *p.parsePart(part))
		}
		if len(list) == 0 {
			m[name].fail("is empty, want at least one series")
		}
		return list
	}
	c.more, c.than = parts("more"), parts("than")
	return c
}

// parts are all its series.
func (c *contradiction) parts() []*series { return slices.Concat(pointers(c.more), pointers(c.than)) }

// contradicted judges a value by what else is on its page. Series that are not there,
// or say nothing, contradict nothing.
func (e *evaluation) contradicted(r *rule, o outcome) outcome {
	for i := range r.contradicted {
		c := &r.contradicted[i]
		more, than := e.summed(c.more), e.summed(c.than)
		if more.kind == possible && than.kind == possible && more.value > than.value*(1+c.by) {
			return invalid("%s: %v and %v", c.because, more.value, than.value)
		}
	}
	return o
}
