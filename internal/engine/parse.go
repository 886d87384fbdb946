package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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
	// leastQuality is that of the worst source: one of no worth at all is none.
	leastQuality = 0.01
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

// parseLabel reads the name of a label.
func parseLabel(n node) string {
	name := n.text()
	if n.has() && !model.LegacyValidation.IsValidLabelName(name) {
		n.fail("%q, want the name of a label", name)
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
		n.fail("%q, want the name of a metric", name)
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
	p.access.TokenFile = auth.members("bearerTokenFile")["bearerTokenFile"].text()
	m := tls.members("caFile", "serverName")
	p.access.CAFile = m["caFile"].text()
	p.access.ServerName = parseWords(m["serverName"])
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
