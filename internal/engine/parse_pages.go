package engine

import (
	"net/http"
	"slices"

	"github.com/berth-dev/berth/internal/telemetry"
)

func (p *Profile) parsePages(list node) {
	for i, n := range list.list() {
		m := n.members("path", "format", "accept", "scheme", "port", "every", "ttl", "needs", "fields", "field", "no")
		page := Page{
			Path:   parsePath(m["path"].require(n, "path")),
			Format: Format(m["format"].require(n, "format").one("", string(Prometheus), string(OpenAIModels), string(Status), string(JSON))),
			Accept: parseWords(m["accept"]),
			Scheme: m["scheme"].one("", "http", "https"),
			Port:   uint16(m["port"].integer(0, 1, 65535)),
			Every:  m["every"].duration(0, fastestPage),
			TTL:    m["ttl"].duration(shortestTTL, shortestTTL),
			Needs:  m["needs"].prose(),
		}
		if slices.Contains(p.never, page.Path) {
			m["path"].fail("%q, which never says must not be asked", page.Path)
		}
		if j := slices.IndexFunc(p.pages, func(other Page) bool {
			return other.Path == page.Path && other.Port == page.Port && other.Scheme == page.Scheme
		}); j >= 0 {
			m["path"].fail("%q is that of pages[%d] already", page.Path, j)
		}
		switch {
		case i == 0 && page.Format != Prometheus:
			m["format"].fail("%q, want %s: the first page is the metrics page", page.Format, Prometheus)
		case i == 0 && page.Every != 0:
			m["every"].fail("the metrics page is asked for at every scrape, want none")
		case i > 0 && page.Format == Prometheus:
			m["format"].fail("%q, want it on the first page alone", page.Format)
		case i > 0 && page.Needs != "":
			m["needs"].fail("want it on the first page alone")
		case i > 0 && !m["every"].has():
			n.lack("every", "every is missing")
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
	if page.Format == "" {
		// What goes with it cannot be told.
		return
	}
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
				f, known := telemetry.ParseField(name.text())
				switch {
				case !known || !slices.Contains(all, f):
					name.fail("%q, want one of servedModels, adaptersLoaded, contextLimit", shortened(name.text()))
				case slices.Contains(page.fields, f):
					name.fail("%q given twice", name.text())
				default:
					page.fields = append(page.fields, f)
				}
			}
		}
	case Status:
		if f, named := telemetry.ParseField(m["field"].require(n, "field").one("", "health", "ready")); named {
			page.fields = []telemetry.Field{f}
		}
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
