package engine

import (
	"slices"
	"strings"
)

func (p *Profile) parseLabels(root, n node) {
	m := n.members("model", "placeholders", "ranks", "lowest", "drop", "refuse", "namespace", "pod")
	p.labels = labelRules{
		model:        parseLabel(m["model"]),
		placeholders: m["placeholders"].texts(),
		ranks:        sorted(parseLabelNames(m["ranks"])),
		lowest:       parseLabelNames(m["lowest"]),
		drop:         sorted(parseLabelNames(m["drop"])),
		refuse:       parseLabelNames(m["refuse"]),
		namespace:    parseLabel(m["namespace"]),
		pod:          parseLabel(m["pod"]),
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
	joins := m["namespace"].has() && m["pod"].has()
	switch {
	case p.exporter && !joins:
		n.orElse(root).lack("labels", "labels.namespace and labels.pod are missing: an exporter's page must say whose each series is")
	case !p.exporter && (m["namespace"].has() || m["pod"].has()):
		n.fail("namespace and pod are for role exporter alone")
	case len(p.labels.lowest) > maxLowest:
		m["lowest"].fail("%d labels, want at most %d", len(p.labels.lowest), maxLowest)
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// everyones are the beginnings of families that client libraries and web servers
// put on any page.
var everyones = []string{"process_", "python_", "go_", "http_", "promhttp_", "target_", "scrape_"}

func (p *Profile) parseDetection(root, n node) {
	m := n.members("prefixes", "families", "ownedBy")
	m["prefixes"].texts()
	m["families"].texts()
	for _, n := range m["prefixes"].list() {
		p.remember(n)
		prefix := parseMetric(n)
		if i := slices.IndexFunc(everyones, func(common string) bool {
			return strings.HasPrefix(common, prefix) || strings.HasPrefix(prefix, common)
		}); i >= 0 {
			n.fail("%q, want one that is not on every page, as %s is", prefix, everyones[i])
		}
		p.detect.prefixes = append(p.detect.prefixes, prefix)
		p.detect.given = append(p.detect.given, prefix)
		if flat := flatten(prefix); flat != prefix {
			p.detect.prefixes = append(p.detect.prefixes, flat)
		}
	}
	p.remember(m["families"])
	for _, n := range m["families"].list() {
		family := parseMetric(n)
		p.detect.families = append(p.detect.families, [2]string{family, flatten(family)})
	}
	if n := m["families"]; len(p.detect.families) > 63 {
		n.fail("%d families, want at most 63", len(p.detect.families))
	}
	p.detect.ownedBy = m["ownedBy"].texts()
	if len(p.detect.prefixes) == 0 && len(p.detect.families) == 0 && !n.bad() {
		n.orElse(root).lack("detect", "neither detect.prefixes nor detect.families, want at least one by which the page is recognised")
	}
}

// flatten is how some client libraries spell a name with colons when they
// answer in a format of their own choice.
func flatten(name string) string { return strings.ReplaceAll(name, ":", "_") }
