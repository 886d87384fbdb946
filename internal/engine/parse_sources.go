package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"

	"github.com/berth-dev/berth/internal/telemetry"
)

func (p *Profile) parseField(n pair) {
	f, ok := parseFieldName(n)
	if !ok {
		return
	}
	for _, page := range p.pages[1:] {
		if slices.Contains(page.fields, f) {
			n.fail("already read from %s", page.Path)
			return
		}
	}
	m := n.members("unit", "ttl", "absent", "sources", "contradicted", "off")
	switch unit := m["unit"]; {
	case unit.text() == f.Unit():
	case !unit.has():
		n.lack("unit", "unit is missing, want %q", f.Unit())
	case f.Unit() == "":
		unit.fail("%q, want none", shortened(unit.text()))
	case !unit.bad():
		// The name of the field goes with the unit.
		n.doc.add(unit.line, n.path, unit.path, fmt.Sprintf("unit %q, want %q", shortened(unit.text()), f.Unit()))
	}
	r := rule{field: f}
	if m["absent"].one("unknown", "unknown", "unsupported") == "unsupported" {
		r.absent = telemetry.Unsupported
	}
	p.ttl[f] = m["ttl"].duration(p.pages[0].TTL, shortestTTL)
	for _, s := range m["sources"].require(n.node, "sources").list() {
		src := p.parseSource(s, f)
		if i := slices.IndexFunc(r.sources, func(other source) bool { return other.same(&src) }); i >= 0 {
			s.fail("chooses the same series as sources[%d], which comes first", i)
		}
		r.seldom = r.seldom || src.window > 0 || p.ttl[f] >= longLife && f != telemetry.ProcessStart && !slices.Contains(telemetry.LoadFields[:], f)
		r.sources = append(r.sources, src)
	}
	if len(r.sources) == 0 {
		n.fail("sources is empty, want at least one")
	}
	for _, c := range m["contradicted"].list() {
		r.contradicted = append(r.contradicted, p.parseContradiction(c))
	}
	for _, c := range m["off"].list() {
		r.off = append(r.off, p.parseCondition(c))
	}
	p.rules = append(p.rules, r)
}

func (p *Profile) parseSource(n node, f telemetry.Field) source {
	m := n.members("metric", "label", "where", "combine", "weight", "plus", "times", "over", "scale", "window", "count",
		"differs", "invert", "quality", "because")
	suffix := ""
	if f.Kind() == telemetry.Dist && !m["count"].has() {
		suffix = "_sum"
	}
	s := source{
		series:  p.parseSeries(n, m, suffix),
		scale:   m["scale"].number(1, 1e-12, 1e12),
		window:  m["window"].duration(0, shortestWindow),
		differs: parseLabel(m["differs"]),
		invert:  m["invert"].boolean(),
		quality: float32(m["quality"].number(1, leastQuality, 1)),
		because: m["because"].prose(),
	}
	only := func(name string, ok bool, words string) {
		if !ok {
			m[name].fail("%s", words)
		}
	}
	numeric := f.Kind() == telemetry.Number
	windowed := m["window"].has()
	only("invert", f.Kind() == telemetry.Bool, f.String()+" is not a yes-or-no field")
	only("weight", s.combine == mean || m["combine"].bad(), "combine is not mean")
	only("over", numeric, f.String()+" is not a number")
	only("plus", numeric && !windowed, "only for a number that does not count")
	only("times", numeric && !windowed, "only for a number that does not count")
	only("scale", numeric || f.Kind() == telemetry.Dist, f.String()+" is not a number")
	only("count", f.Kind() == telemetry.Dist, f.String()+" is not a distribution")
	only("differs", f.Kind() == telemetry.Names && m["label"].has(), f.String()+" is not a list of names from a label")
	if windowed {
		if words := growthless(f, len(m["over"].list()) > 0); words != "" {
			m["window"].fail("%s", words)
		} else {
			m["label"].fail("a text does not count")
			if s.combine != sum {
				m["combine"].fail("what counts is summed, want sum or none")
			}
		}
	} else if !m["combine"].bad() {
		if words := uncombined(f, s.combine, len(m["over"].list()) > 0); words != "" {
			m["combine"].fail("%s", words)
		}
	}
	if f.Kind() == telemetry.Dist && !windowed {
		n.lack("window", "window is missing: a distribution is read as growth")
	}
	if (f.Kind() == telemetry.Names || f.Kind() == telemetry.Text) && !m["label"].has() {
		n.lack("label", "label is missing: %s is a text", f)
	}
	if !m["quality"].bad() && !m["because"].bad() && (s.quality < 1) != (s.because != "") {
		n.lack("because", "quality %v and because %q, want both or neither", s.quality, s.because)
	}
	if w := m["weight"]; w.has() {
		s.weight = p.parsePart(w)
	}
	if t := m["times"]; t.has() {
		s.times = p.parsePart(t)
	}
	for _, part := range m["plus"].list() {
		s.plus = append(s.plus, *p.parsePart(part))
	}
	for _, part := range m["over"].list() {
		s.over = append(s.over, *p.parsePart(part))
	}
	if s.window > 0 {
		p.parseWindow(m, f, &s, suffix)
	}
	if s.differs != "" {
		s.alike = fmt.Sprintf("label %s of %s says the same as %s: it does not tell them apart", s.label, p.families[s.family].name, s.differs)
	}
	s.detail = p.detail(&s)
	if s.weight != nil {
		unweighted := s
		unweighted.weight = nil
		s.byHead = p.detail(&unweighted)
		s.byHead.Source.Rule += ", each the same, as the page does not tell " + p.described(s.weight) + " of each"
	}
	return s
}

// parseWindow numbers a window and finds the families of a histogram.
func (p *Profile) parseWindow(m map[string]node, f telemetry.Field, s *source, suffix string) {
	s.combine = sum
	s.id = p.windows
	p.windows++
	switch {
	case f.Kind() != telemetry.Dist:
	case m["count"].has():
		s.total = p.parsePart(m["count"])
		s.total.combine = sum
	default:
		name := strings.TrimSuffix(p.families[s.family].name, suffix)
		part := func(suffix string) *series {
			part := s.series
			part.family = p.family(name + suffix)
			return &part
		}
		s.bucket, s.total = part("_bucket"), part("_count")
		for _, i := range []int{s.family, s.bucket.family, s.total.family} {
			p.families[i].gone, p.families[i].empty = name+" is not on the page", name+" has no sample"
			p.families[i].base, p.families[i].typed = name, s.family
		}
		for _, spelling := range []string{name, flatten(name)} {
			p.addName(spelling, naming{s.family, true})
		}
	}
}

func (p *Profile) parsePart(n node) *series {
	s := p.parseSeries(n, n.members("metric", "label", "where", "combine"), "")
	return &s
}

// parseSeries reads the members that say which series, and how they combine.
// suffix is what comes after the name of the metric.
func (p *Profile) parseSeries(n node, m map[string]node, suffix string) series {
	s := series{
		family: p.family(parseMetric(m["metric"].require(n, "metric")) + suffix),
		label:  parseLabel(m["label"]),
	}
	if name := p.families[s.family].name; p.readAt[name] == "" {
		p.readAt[name] = m["metric"].path
		p.remember(m["metric"])
	}
	for _, w := range m["where"].pairs() {
		if slices.Contains(p.labels.drop, w.name) || slices.Contains(p.labels.refuse, w.name) {
			w.fail("a label that does not count cannot choose series")
			continue
		}
		if !model.LegacyValidation.IsValidLabelName(w.name) {
			w.fail("%q, want the name of a label", w.name)
		}
		s.where = append(s.where, labelPair{w.name, w.textOrEmpty()})
	}
	slices.SortFunc(s.where, func(a, b labelPair) int { return strings.Compare(a.name, b.name) })
	switch m["combine"].one("one", "sum", "mean", "max", "newest", "one") {
	case "sum":
		s.combine = sum
	case "mean":
		s.combine = mean
	case "max":
		s.combine = largest
	case "newest":
		s.combine = newest
		if !m["label"].has() {
			m["combine"].fail("newest, want a label to read from the series with the latest time")
		}
	default:
		s.combine = one
	}
	return s
}

func (p *Profile) parseCondition(n node) condition {
	m := n.members("metric", "label", "where", "is", "above", "because")
	c := condition{
		series:  p.parseSeries(n, m, ""),
		is:      m["is"].text(),
		above:   m["above"].number(0, 0, 1e15),
		because: m["because"].require(n, "because").prose(),
	}
	if m["is"].has() == m["above"].has() {
		n.lack("is", "want is or above, and not both")
	} else if m["label"].has() && !m["is"].has() {
		n.lack("is", "label, want is with it")
	}
	return c
}

// same reports that two sources are present on the same pages.
func (s *source) same(other *source) bool {
	return slices.EqualFunc(s.parts(), other.parts(), (*series).same)
}

// parts are all series that a source needs, itself first.
func (s *source) parts() []*series {
	parts := []*series{&s.series}
	for _, part := range slices.Concat([]*series{s.times, s.bucket, s.total}, pointers(s.over)) {
		if part != nil {
			parts = append(parts, part)
		}
	}
	return parts
}

// same reports that two series are chosen by the same words.
func (s *series) same(other *series) bool {
	return s.family == other.family && s.label == other.label && slices.Equal(s.where, other.where)
}
