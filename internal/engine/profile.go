package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Profile says how the pages of one kind of engine become readings. It is
// immutable and safe for concurrent use.
type Profile struct {
	name   string
	digest string
	text   []byte
	// prefixes of family names, in both spellings.
	prefixes []string
	pages    []Page
	model    string
	ranks    []string
	drop     []string
	rules    []rule
	// families numbers the names that the rules read, in both spellings.
	families map[string]int
	names    []string
	// lengths are those of the keys of families, each once.
	lengths []int
	// blank is a snapshot of an engine that has said nothing yet.
	blank   telemetry.Snapshot
	ttl     [telemetry.NumFields]time.Duration
	scratch sync.Pool
}

// Format says how a page is written.
type Format string

const (
	// Prometheus is the text exposition format, version 0.0.4.
	Prometheus Format = "prometheus"
	// OpenAIModels is the model list of the OpenAI API.
	OpenAIModels Format = "openai-models"
	// Version is a JSON object with the engine's version.
	Version Format = "version"
)

// Page is one page of an engine, relative to its own address.
type Page struct {
	// Path begins with a slash.
	Path   string
	Format Format
	// Accept is the Accept header to ask with.
	Accept string
	// Every is the cadence of a page that changes only with the process; 0
	// for the metrics page, which is asked for at every scrape.
	Every time.Duration
	// TTL is the shortest life of a reading.
	TTL time.Duration
}

type combination uint8

const (
	sum combination = iota
	mean
	largest
	one
)

// rule is how one field is read from the metrics page.
type rule struct {
	field telemetry.Field
	// absent is the support to report when no source is on the page.
	absent  telemetry.Support
	sources []source
}

type source struct {
	family  int
	label   string
	where   []labelPair
	combine combination
	weight  *source
	times   *source
	invert  bool
	quality float32
	because string
	// detail is shared by all readings that have nothing more to say.
	detail *telemetry.Detail
}

type labelPair struct{ name, value string }

// Name is the engine's name.
func (p *Profile) Name() string { return p.name }

// Digest is the name and the first 12 hexadecimal digits of the SHA-256 of the
// profile's text, as in "vllm@sha256:0123456789ab".
func (p *Profile) Digest() string { return p.digest }

// Text is the YAML that the profile was parsed from.
func (p *Profile) Text() []byte { return slices.Clone(p.text) }

// Metrics is the metrics page.
func (p *Profile) Metrics() Page { return p.pages[0] }

// SlowPages are the others, in the order in which to ask for them. The slice
// must not be changed.
func (p *Profile) SlowPages() []Page { return p.pages[1:] }

// Limits of what a profile may ask for.
const (
	shortestTTL = 100 * time.Millisecond
	longestTTL  = time.Hour
	slowestPage = time.Hour
	fastestPage = time.Second
	maxProfile  = 1 << 20
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
	m := root.members("apiVersion", "kind", "name", "detect", "pages", "labels", "fields", "unsupported")
	m["apiVersion"].require(root, "apiVersion").one("", "berth.dev/v1alpha1")
	m["kind"].require(root, "kind").one("", "EngineProfile")
	p := &Profile{
		name:     m["name"].require(root, "name").text(),
		text:     slices.Clone(text),
		families: map[string]int{},
	}
	sha := sha256.Sum256(text)
	p.digest = p.name + "@sha256:" + hex.EncodeToString(sha[:])[:12]
	p.scratch.New = func() any { return new(scratch) }

	for _, prefix := range m["detect"].require(root, "detect").texts() {
		p.prefixes = append(p.prefixes, prefix)
		if flat := flatten(prefix); flat != prefix {
			p.prefixes = append(p.prefixes, flat)
		}
	}
	if len(p.prefixes) == 0 {
		root.fail("detect is empty, want at least one family prefix")
	}
	p.parsePages(m["pages"].require(root, "pages"))
	labels := m["labels"].members("model", "ranks", "drop")
	p.model = labels["model"].text()
	p.ranks = sorted(labels["ranks"].texts())
	p.drop = sorted(labels["drop"].texts())

	p.blank = telemetry.Snapshot{Engine: p.name, Profile: p.digest}
	for f := range telemetry.NumFields {
		p.blank.Readings[f].Detail = notRead
	}
	for _, f := range m["fields"].require(root, "fields").pairs() {
		p.parseField(f)
	}
	p.parseUnsupported(m["unsupported"])
	if root.doc.err != nil {
		return nil, root.doc.err
	}
	return p, nil
}

var notRead = &telemetry.Detail{Reasons: []string{"not read"}}

// flatten is how some client libraries spell a name with colons when they
// answer in a format of their own choice.
func flatten(name string) string { return strings.ReplaceAll(name, ":", "_") }

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

func (p *Profile) parsePages(list node) {
	for i, n := range list.list() {
		m := n.members("path", "format", "accept", "every", "ttl")
		page := Page{
			Path:   m["path"].require(n, "path").text(),
			Format: Format(m["format"].require(n, "format").one("", string(Prometheus), string(OpenAIModels), string(Version))),
			Accept: m["accept"].text(),
			Every:  m["every"].duration(0, fastestPage, slowestPage),
			TTL:    m["ttl"].duration(shortestTTL, shortestTTL, longestTTL),
		}
		if path := m["path"]; path.has() && !strings.HasPrefix(page.Path, "/") {
			path.fail("%q, want a path that begins with a slash", page.Path)
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
		case slices.ContainsFunc(p.pages, func(other Page) bool { return other.Format == page.Format }):
			n.fail("format %s is already that of another page", page.Format)
		}
		for _, f := range page.Format.fields() {
			p.ttl[f] = page.TTL
		}
		p.pages = append(p.pages, page)
	}
	if len(p.pages) == 0 {
		list.fail("no page, want the metrics page at least")
	}
}

// fields are those that a page of this format is the only source of.
func (f Format) fields() []telemetry.Field {
	switch f {
	case OpenAIModels:
		return []telemetry.Field{telemetry.ServedModels, telemetry.AdaptersLoaded, telemetry.ContextLimit}
	case Version:
		return []telemetry.Field{telemetry.EngineVersion}
	default:
		return nil
	}
}

func (p *Profile) parseField(n member) {
	f, ok := telemetry.ParseField(n.name)
	switch {
	case !ok:
		n.fail("not a field of the catalogue")
		return
	case len(p.pages) == 0:
		return
	case f.Kind() != telemetry.Number && f.Kind() != telemetry.Bool && f.Kind() != telemetry.Time:
		n.fail("not a number, a yes-or-no or a time: it cannot be read from series")
		return
	}
	for _, page := range p.pages[1:] {
		if slices.Contains(page.Format.fields(), f) {
			n.fail("already read from %s", page.Path)
		}
	}
	m := n.members("unit", "ttl", "absent", "sources")
	if unit := m["unit"].text(); unit != f.Unit() {
		n.fail("unit %q, want %q", unit, f.Unit())
	}
	r := rule{field: f}
	if m["absent"].one("unknown", "unknown", "unsupported") == "unsupported" {
		r.absent = telemetry.Unsupported
	}
	p.ttl[f] = m["ttl"].duration(p.pages[0].TTL, shortestTTL, longestTTL)
	for _, s := range m["sources"].require(n.node, "sources").list() {
		r.sources = append(r.sources, p.parseSource(s, f))
	}
	if len(r.sources) == 0 {
		n.fail("sources is empty, want at least one")
	}
	p.rules = append(p.rules, r)
}

func (p *Profile) parseSource(n node, f telemetry.Field) source {
	m := n.members("metric", "label", "where", "combine", "weight", "times", "invert", "quality", "because")
	s := source{
		invert:  m["invert"].boolean(),
		quality: float32(m["quality"].number(1, 0, 1)),
		because: m["because"].text(),
	}
	p.parseSeries(n, m, &s)
	if s.invert && f.Kind() != telemetry.Bool {
		m["invert"].fail("%s is not a yes-or-no field", f)
	}
	if (s.quality < 1) != (s.because != "") {
		n.fail("quality %v and because %q, want both or neither", s.quality, s.because)
	}
	if w := m["weight"]; w.has() {
		if s.combine != mean {
			w.fail("combine is not mean")
		}
		s.weight = &source{}
		p.parseSeries(w, w.members("metric", "label", "where"), s.weight)
	}
	if t := m["times"]; t.has() {
		s.times = &source{}
		p.parseSeries(t, t.members("metric", "label", "where", "combine"), s.times)
	}
	s.detail = p.detail(&s)
	return s
}

// parseSeries reads the members that say which series, and how they combine.
func (p *Profile) parseSeries(n node, m map[string]node, s *source) {
	s.family = p.family(m["metric"].require(n, "metric").text())
	s.label = m["label"].text()
	for _, w := range m["where"].pairs() {
		s.where = append(s.where, labelPair{w.name, w.text()})
	}
	switch m["combine"].one("one", "sum", "mean", "max", "one") {
	case "sum":
		s.combine = sum
	case "mean":
		s.combine = mean
	case "max":
		s.combine = largest
	default:
		s.combine = one
	}
}

// family numbers a family and remembers both spellings of its name.
func (p *Profile) family(name string) int {
	if i := slices.Index(p.names, name); i >= 0 {
		return i
	}
	i := len(p.names)
	p.names = append(p.names, name)
	p.families[name] = i
	p.families[flatten(name)] = i
	if !slices.Contains(p.lengths, len(name)) {
		p.lengths = append(p.lengths, len(name))
	}
	return i
}

func (p *Profile) detail(s *source) *telemetry.Detail {
	src := &telemetry.Source{Path: p.pages[0].Path, Metric: p.names[s.family], Rule: p.describe(s)}
	if s.times != nil {
		src.Rule += ", times " + p.names[s.times.family] + " " + p.describe(s.times)
	}
	d := &telemetry.Detail{Source: src}
	if s.because != "" {
		d.Reasons = []string{s.because}
	}
	return d
}

// describe says in words how several series become one value.
func (p *Profile) describe(s *source) string {
	over := "the series"
	if len(p.ranks) > 0 {
		over = strings.Join(p.ranks, ", ")
	}
	var words string
	switch s.combine {
	case sum:
		words = "sum over " + over
	case mean:
		words = "mean over " + over
		if s.weight != nil {
			words += " weighted by " + s.weight.label
		}
	case largest:
		words = "max over " + over
	default:
		words = "one series"
	}
	if s.label != "" {
		words = "label " + s.label + ", " + words
	}
	for _, w := range s.where {
		words += " where " + w.name + "=" + w.value
	}
	if s.invert {
		words += ", true where 0"
	}
	return words
}

func (p *Profile) parseUnsupported(n node) {
	for _, u := range n.pairs() {
		f, ok := telemetry.ParseField(u.name)
		switch {
		case !ok:
			u.fail("not a field of the catalogue")
			continue
		case slices.ContainsFunc(p.rules, func(r rule) bool { return r.field == f }):
			u.fail("also in fields")
		}
		p.blank.Readings[f] = telemetry.Reading{
			Support: telemetry.Unsupported,
			Detail:  &telemetry.Detail{Reasons: []string{u.text()}},
		}
	}
}
