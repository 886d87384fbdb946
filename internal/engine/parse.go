package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Limits of what a profile may ask for.
const (
	longest        = time.Hour
	shortestTTL    = 100 * time.Millisecond
	fastestPage    = time.Second
	shortestWindow = time.Second
	maxProfile     = 1 << 20
	defaultStill   = 10 * time.Second
	// longLife is that of readings which need not be read anew at every scrape.
	longLife = 10 * time.Second
)

// Parse reads a profile. file is its name in errors, which tell the line, the
// member, the value and what is allowed.
func Parse(file string, text []byte) (*Profile, error) {
	if len(text) > maxProfile {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", file, len(text), maxProfile)
	}
	root, err := parseDocument(file, text)
	if err != nil {
		return nil, err
	}
	m := root.members("apiVersion", "kind", "name", "aliases", "role", "detect", "never", "pages", "auth", "tls",
		"labels", "valid", "engineTime", "stillAfter", "fields", "unsupported")
	m["apiVersion"].require(root, "apiVersion").one("", "berth.dev/v1alpha1")
	m["kind"].require(root, "kind").one("", "EngineProfile")
	p := &Profile{
		name:     parseName(m["name"].require(root, "name")),
		exporter: m["role"].one("engine", "engine", "exporter") == "exporter",
		still:    m["stillAfter"].duration(defaultStill, time.Second),
		text:     slices.Clone(text),
		names:    map[string]naming{},
	}
	sha := sha256.Sum256(text)
	p.digest = p.name + "@sha256:" + hex.EncodeToString(sha[:])[:12]
	p.scratch.New = func() any { return newScratch(p) }
	for _, alias := range m["aliases"].list() {
		name := parseName(alias)
		if name == p.name || slices.Contains(p.aliases, name) {
			alias.fail("%q is a name of the engine already", name)
		}
		p.aliases = append(p.aliases, name)
	}
	for _, path := range m["never"].list() {
		p.never = append(p.never, parsePath(path))
	}
	p.parsePages(m["pages"].require(root, "pages"))
	p.parseAccess(m["auth"], m["tls"])
	p.parseLabels(root, m["labels"])
	p.parseDetection(root, m["detect"])

	p.blank = telemetry.Snapshot{Engine: p.name, Profile: p.digest}
	for f := range telemetry.NumFields {
		p.blank.Readings[f].Detail = notRead
	}
	if len(p.pages) > 0 {
		for _, f := range m["fields"].require(root, "fields").pairs() {
			p.parseField(f)
		}
		p.parseValidity(m["valid"])
		p.parseClock(m["engineTime"])
	}
	p.parseUnsupported(m["unsupported"])
	if root.doc.err != nil {
		return nil, root.doc.err
	}
	p.judgeFamilies()
	return p, nil
}

var notRead = &telemetry.Detail{Reasons: []string{"not read"}}

// parseName reads the name of an engine, which becomes a metric label.
func parseName(n node) string {
	name := n.text()
	fits := len(name) <= 63 && name != "unknown"
	for _, c := range name {
		fits = fits && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	}
	if !fits {
		n.fail("%q, want at most 63 of a-z, 0-9, - and ., and not unknown", name)
	}
	return name
}

// parsePath reads a path on the replica's own address, with a query perhaps.
func parsePath(n node) string {
	path := n.text()
	u, err := url.ParseRequestURI(path)
	if n.has() && (err != nil || !strings.HasPrefix(path, "/") || u.Host != "" || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "# ")) {
		n.fail("%q, want a path on the replica that begins with one slash", path)
	}
	return path
}

// parseWords reads a text that goes into a header or a handshake.
func parseWords(n node) string {
	text := n.text()
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		n.fail("%q, want printable ASCII", text)
	}
	return text
}

// parseMetric reads the name of a family, or the beginning of one.
func parseMetric(n node) string {
	name := n.text()
	if n.has() && !model.LegacyValidation.IsValidMetricName(name) {
		n.fail("%q, want the name of a metric", name)
	}
	return name
}

// flatten is how some client libraries spell a name with colons when they
// answer in a format of their own choice.
func flatten(name string) string { return strings.ReplaceAll(name, ":", "_") }

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// everyones are the beginnings of families that client libraries and web servers
// put on any page.
var everyones = []string{"process_", "python_", "go_", "http_", "promhttp_", "target_", "scrape_"}

func (p *Profile) parseDetection(root, n node) {
	m := n.members("prefixes", "families", "ownedBy")
	for _, n := range m["prefixes"].list() {
		prefix := parseMetric(n)
		if i := slices.IndexFunc(everyones, func(common string) bool {
			return strings.HasPrefix(common, prefix) || strings.HasPrefix(prefix, common)
		}); i >= 0 {
			n.fail("%q, want one that is not on every page, as %s is", prefix, everyones[i])
		}
		p.detect.prefixes = append(p.detect.prefixes, prefix)
		if flat := flatten(prefix); flat != prefix {
			p.detect.prefixes = append(p.detect.prefixes, flat)
		}
	}
	for _, n := range m["families"].list() {
		family := parseMetric(n)
		p.detect.families = append(p.detect.families, [2]string{family, flatten(family)})
	}
	if n := m["families"]; len(p.detect.families) > 63 {
		n.fail("%d families, want at most 63", len(p.detect.families))
	}
	p.detect.ownedBy = m["ownedBy"].texts()
	if len(p.detect.prefixes) == 0 && len(p.detect.families) == 0 {
		root.fail("detect has neither prefixes nor families, want at least one by which the page is recognised")
	}
}

func (p *Profile) parseAccess(auth, tls node) {
	p.access.TokenFile = auth.members("bearerTokenFile")["bearerTokenFile"].text()
	m := tls.members("caFile", "serverName")
	p.access.CAFile = m["caFile"].text()
	p.access.ServerName = parseWords(m["serverName"])
}

func (p *Profile) parseLabels(root, n node) {
	m := n.members("model", "placeholders", "ranks", "lowest", "drop", "refuse", "namespace", "pod")
	p.labels = labelRules{
		model:        m["model"].text(),
		placeholders: m["placeholders"].texts(),
		ranks:        sorted(m["ranks"].texts()),
		lowest:       m["lowest"].texts(),
		drop:         sorted(m["drop"].texts()),
		refuse:       m["refuse"].texts(),
		namespace:    m["namespace"].text(),
		pod:          m["pod"].text(),
	}
	for _, label := range slices.Concat(p.labels.ranks, []string{p.labels.model, p.labels.namespace, p.labels.pod}) {
		if label != "" {
			p.labels.apart = append(p.labels.apart, label)
		}
	}
	slices.Sort(p.labels.apart)
	roles := map[string]string{}
	for _, one := range []string{"model", "namespace", "pod"} {
		if label := m[one]; label.has() {
			if other := roles[label.text()]; other != "" {
				label.fail("%q is that of %s already", label.text(), other)
			}
			roles[label.text()] = one
		}
	}
	for _, list := range []string{"ranks", "lowest", "drop", "refuse"} {
		for _, label := range m[list].list() {
			if other := roles[label.text()]; other != "" {
				label.fail("%q is in %s already", label.text(), other)
			}
			roles[label.text()] = list
		}
	}
	joins := p.labels.namespace != "" && p.labels.pod != ""
	switch {
	case p.exporter && !joins:
		root.fail("labels.namespace and labels.pod are missing: an exporter's page must say whose each series is")
	case !p.exporter && (p.labels.namespace != "" || p.labels.pod != ""):
		n.fail("namespace and pod are for role exporter alone")
	case len(p.labels.lowest) > maxLowest:
		m["lowest"].fail("%d labels, want at most %d", len(p.labels.lowest), maxLowest)
	}
}

func (p *Profile) parsePages(list node) {
	for i, n := range list.list() {
		m := n.members("path", "format", "accept", "scheme", "port", "every", "ttl", "fields", "field", "no")
		page := Page{
			Path:   parsePath(m["path"].require(n, "path")),
			Format: Format(m["format"].require(n, "format").one("", string(Prometheus), string(OpenAIModels), string(Status), string(JSON))),
			Accept: parseWords(m["accept"]),
			Scheme: m["scheme"].one("", "http", "https"),
			Port:   uint16(m["port"].integer(0, 1, 65535)),
			Every:  m["every"].duration(0, fastestPage),
			TTL:    m["ttl"].duration(shortestTTL, shortestTTL),
		}
		if slices.Contains(p.never, page.Path) {
			n.fail("path %s is one that must never be asked", page.Path)
		}
		switch {
		case i == 0 && page.Format != Prometheus:
			n.fail("the first page is the metrics page, want format %s", Prometheus)
		case i == 0 && page.Every != 0:
			n.fail("every: the metrics page is asked for at every scrape, want none")
		case i > 0 && page.Format == Prometheus:
			n.fail("format %s, want it on the first page alone", Prometheus)
		case i > 0 && page.Every == 0:
			n.fail("every is missing")
		case i > 0 && p.exporter:
			n.fail("an exporter has the metrics page alone")
		}
		p.parsePageFields(n, m, &page)
		for _, f := range page.fields {
			for _, other := range p.pages {
				if slices.Contains(other.fields, f) {
					n.fail("field %s is already read from %s", f, other.Path)
				}
			}
			p.ttl[f] = page.TTL
		}
		p.pages = append(p.pages, page)
	}
	if len(p.pages) == 0 {
		list.fail("no page, want the metrics page at least")
	}
}

// parsePageFields reads what each format says of fields.
func (p *Profile) parsePageFields(n node, m map[string]node, page *Page) {
	allowed := map[Format][]string{OpenAIModels: {"fields"}, Status: {"field", "no"}, JSON: {"fields"}}[page.Format]
	for _, name := range []string{"fields", "field", "no"} {
		if m[name].has() && !slices.Contains(allowed, name) {
			m[name].fail("not for format %s", page.Format)
		}
	}
	switch page.Format {
	case OpenAIModels:
		page.fields = []telemetry.Field{telemetry.ServedModels, telemetry.AdaptersLoaded, telemetry.ContextLimit}
		if m["fields"].has() {
			all := page.fields
			page.fields = nil
			for _, name := range m["fields"].list() {
				f, _ := telemetry.ParseField(name.text())
				if !slices.Contains(all, f) || name.text() != f.String() {
					name.fail("%q, want one of servedModels, adaptersLoaded, contextLimit", name.text())
				}
				if slices.Contains(page.fields, f) {
					name.fail("%q given twice", name.text())
				}
				page.fields = append(page.fields, f)
			}
		}
	case Status:
		f, _ := telemetry.ParseField(m["field"].require(n, "field").one("health", "health", "ready"))
		page.fields = []telemetry.Field{f}
		for _, status := range m["no"].list() {
			v := status.integer(0, 400, 599)
			if v == http.StatusNotFound {
				status.fail("404 says that there is no such page")
			}
			page.no = append(page.no, v)
		}
		if !m["no"].has() {
			page.no = []int{http.StatusServiceUnavailable}
		}
	case JSON:
		for _, f := range m["fields"].require(n, "fields").pairs() {
			p.parseMember(f, page)
		}
	}
}

// parseFieldName finds the field that a member is about.
func parseFieldName(n pair) (telemetry.Field, bool) {
	f, ok := telemetry.ParseField(n.name)
	if !ok {
		all := make([]string, telemetry.NumFields)
		for f := range telemetry.NumFields {
			all[f] = f.String()
		}
		n.fail("not a field of the catalogue, which are %s", strings.Join(all, ", "))
	}
	return f, ok
}

func (p *Profile) parseField(n pair) {
	f, ok := parseFieldName(n)
	if !ok {
		return
	}
	for _, page := range p.pages[1:] {
		if slices.Contains(page.fields, f) {
			n.fail("already read from %s", page.Path)
		}
	}
	m := n.members("unit", "ttl", "absent", "sources", "off")
	switch unit := m["unit"].text(); {
	case unit == f.Unit():
	case unit == "":
		n.fail("unit is missing, want %q", f.Unit())
	default:
		n.fail("unit %q, want %q", unit, f.Unit())
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
	for _, c := range m["off"].list() {
		r.off = append(r.off, p.parseCondition(c))
	}
	p.rules = append(p.rules, r)
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
		differs: m["differs"].text(),
		invert:  m["invert"].boolean(),
		quality: float32(m["quality"].number(1, 0, 1)),
		because: m["because"].text(),
	}
	only := func(name string, ok bool, words string) {
		if m[name].has() && !ok {
			m[name].fail("%s", words)
		}
	}
	numeric := f.Kind() == telemetry.Number
	only("invert", f.Kind() == telemetry.Bool, f.String()+" is not a yes-or-no field")
	only("weight", s.combine == mean, "combine is not mean")
	only("over", numeric, f.String()+" is not a number")
	only("plus", numeric && s.window == 0, "only for a number that does not count")
	only("times", numeric && s.window == 0, "only for a number that does not count")
	only("scale", numeric || f.Kind() == telemetry.Dist, f.String()+" is not a number")
	only("window", numeric || f.Kind() == telemetry.Dist, f.String()+" is not a number")
	only("count", f.Kind() == telemetry.Dist, f.String()+" is not a distribution")
	only("differs", f.Kind() == telemetry.Names && s.label != "", f.String()+" is not a list of names from a label")
	switch {
	case f.Kind() == telemetry.Dist && s.window == 0:
		n.fail("window is missing: a distribution is read as growth")
	case (f.Kind() == telemetry.Names || f.Kind() == telemetry.Text) && s.label == "":
		n.fail("label is missing: %s is a text", f)
	case s.window > 0 && s.label != "":
		n.fail("label: a text does not count")
	case s.window > 0 && m["combine"].has() && s.combine != sum:
		m["combine"].fail("what counts is summed, want sum or none")
	case (s.quality < 1) != (s.because != ""):
		n.fail("quality %v and because %q, want both or neither", s.quality, s.because)
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
		label:  m["label"].text(),
	}
	for _, w := range m["where"].pairs() {
		if slices.Contains(p.labels.drop, w.name) || slices.Contains(p.labels.refuse, w.name) {
			w.fail("a label that does not count cannot choose series")
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
		if s.label == "" {
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
		because: m["because"].require(n, "because").text(),
	}
	if m["is"].has() == m["above"].has() {
		n.fail("want is or above, and not both")
	}
	if c.label != "" && !m["is"].has() {
		n.fail("label, want is with it")
	}
	return c
}

func (p *Profile) parseValidity(n node) {
	if !n.has() {
		return
	}
	m := n.members("metric", "where", "because")
	p.valid = &validity{p.parseSeries(n, m, ""), m["because"].require(n, "because").text()}
	p.valid.combine = largest
}

func (p *Profile) parseClock(n node) {
	if !n.has() {
		return
	}
	m := n.members("metric", "where", "maxAge", "whileBusy")
	p.clock = &engineClock{
		series:    p.parseSeries(n, m, ""),
		maxAge:    m["maxAge"].require(n, "maxAge").duration(0, time.Second),
		whileBusy: m["whileBusy"].boolean(),
	}
	p.clock.combine = largest
}

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

func (p *Profile) parseUnsupported(n node) {
	for _, u := range n.pairs() {
		f, ok := parseFieldName(u)
		if !ok {
			continue
		}
		switch {
		case slices.ContainsFunc(p.rules, func(r rule) bool { return r.field == f }):
			u.fail("also in fields")
		case slices.ContainsFunc(p.pages, func(page Page) bool { return slices.Contains(page.fields, f) }):
			u.fail("also read from a page")
		}
		p.unsupported[f] = u.text()
		p.blank.Readings[f] = telemetry.Reading{Support: telemetry.Unsupported, Detail: reasons(u.text())}
	}
}
