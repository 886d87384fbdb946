package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
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
	// maxProfile is in bytes; the largest of the built-in profiles has 10 KiB.
	maxProfile = 256 << 10
	// maxFamilies bounds what each page is searched for, and each replica's memory.
	maxFamilies  = 512
	defaultStill = 10 * time.Second
	// longLife is that of readings which need not be read anew at every scrape.
	longLife = 10 * time.Second
	// leastQuality is that of the worst source: one of no worth at all is none.
	leastQuality = 0.01
)

// Parse reads a profile. file is its name in errors. The error joins a Fault for
// each thing that is wrong, in the order of lines; beyond 20 it says how many more
// there are.
func Parse(file string, text []byte) (*Profile, error) {
	if len(text) > maxProfile {
		return nil, &Fault{File: file, Words: fmt.Sprintf("%d bytes or more, want at most %d", len(text), maxProfile)}
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
		file:     file,
		lines:    map[string]int{},
		numbers:  map[string]int{},
		readAt:   map[string]string{},
	}
	sha := sha256.Sum256(text)
	p.digest = p.name + "@sha256:" + hex.EncodeToString(sha[:])[:12]
	p.scratch.New = func() any { return newScratch(p) }
	p.remember(m["name"])
	for _, alias := range m["aliases"].list() {
		p.remember(alias)
		name := parseName(alias)
		if name == p.name || slices.Contains(p.aliases, name) {
			alias.fail("%q is a name of the engine already", name)
		}
		p.aliases = append(p.aliases, name)
	}
	m["never"].texts()
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
		fields := m["fields"].require(root, "fields")
		for _, f := range fields.pairs() {
			p.parseField(f)
		}
		if len(p.rules) == 0 {
			fields.fail("no field, want at least one")
		}
		p.parseValidity(m["valid"])
		p.parseClock(m["engineTime"])
	}
	p.parseUnsupported(m["unsupported"])
	if len(p.families) > maxFamilies {
		root.lack("families", "%d families are read, want at most %d", len(p.families), maxFamilies)
	}
	if err := root.doc.err(); err != nil {
		return nil, err
	}
	p.judgeFamilies()
	p.joinSwitches()
	for f := range telemetry.NumFields {
		if !p.exporter && !p.hasSource(f) && p.unsupported[f] == "" {
			p.blank.Readings[f].Detail = noSource
		}
	}
	p.sorted, p.numbers = slices.Sorted(maps.Keys(p.numbers)), nil
	return p, nil
}

// remember keeps the line of what may be wrong beside other profiles.
func (p *Profile) remember(n node) {
	if n.has() {
		p.lines[n.path] = n.line
	}
}

// hasSource reports that a page of the engine is a source of a field.
func (p *Profile) hasSource(f telemetry.Field) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.field == f }) ||
		slices.ContainsFunc(p.pages, func(page Page) bool { return slices.Contains(page.fields, f) })
}

// noSource is what a reading says that nothing will ever be read for.
var noSource = reasons("no source: the engine's profile names none")

var notRead = &telemetry.Detail{Reasons: []string{telemetry.NotRead}, Unread: true}

// parseName reads the name of an engine, which becomes a metric label.
func parseName(n node) string {
	name := n.text()
	fits := len(name) <= 63 && name != "unknown"
	for _, c := range name {
		fits = fits && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	}
	if !fits {
		n.fail("%q, want at most 63 of a-z, 0-9, - and ., and not unknown", shortened(name))
	}
	return name
}

// parsePath reads a path on the replica's own address, with a query perhaps.
func parsePath(n node) string {
	path := n.text()
	u, err := url.ParseRequestURI(path)
	if n.has() && (err != nil || !strings.HasPrefix(path, "/") || u.Host != "" || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "# ")) {
		n.fail("%q, want a path on the replica that begins with one slash", shortened(path))
	}
	return path
}

// parseWords reads a text that goes into a header or a handshake.
func parseWords(n node) string {
	text := n.text()
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		n.fail("%q, want printable ASCII", shortened(text))
	}
	return text
}

// parseLabel reads the name of a label.
func parseLabel(n node) string {
	name := n.text()
	if n.has() && !model.LegacyValidation.IsValidLabelName(name) {
		n.fail("%q, want the name of a label", shortened(name))
	}
	return name
}

func parseLabelNames(n node) []string {
	for _, item := range n.list() {
		parseLabel(item)
	}
	return n.texts()
}

// parseMetric reads the name of a family, or the beginning of one.
func parseMetric(n node) string {
	name := n.text()
	if n.has() && !model.LegacyValidation.IsValidMetricName(name) {
		n.fail("%q, want the name of a metric", shortened(name))
	}
	return name
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

func (p *Profile) parseAccess(auth, tls node) {
	p.access.TokenFile = parseFile(auth.members("bearerTokenFile")["bearerTokenFile"])
	m := tls.members("caFile", "serverName")
	p.access.CAFile = parseFile(m["caFile"])
	p.access.ServerName = parseWords(m["serverName"])
}

// parseFile reads the path of a file. There is no directory that a relative path
// could be meant from by everyone who reads the profile.
func parseFile(n node) string {
	path := n.text()
	if path != "" && !filepath.IsAbs(path) {
		n.fail("%q, want an absolute path", shortened(path))
	}
	return path
}

func (p *Profile) parseValidity(n node) {
	if !n.has() {
		return
	}
	m := n.members("metric", "where", "because")
	p.valid = &validity{p.parseSeries(n, m, ""), m["because"].require(n, "because").prose()}
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
		p.unsupported[f] = u.prose()
		p.blank.Readings[f] = telemetry.Reading{Support: telemetry.Unsupported, Detail: reasons(p.unsupported[f])}
	}
}
