package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/spelling"
)

// familyLine is a line of a metrics page that names a family.
var familyLine = regexp.MustCompile(`(?m)^(?:# (?:TYPE|HELP) )?([a-zA-Z_:][a-zA-Z0-9_:]*)`)

// mostFamilies bounds the lines and the families that are looked at: engines show some
// hundred families in some ten thousand lines.
const (
	mostFamilies     = 4096
	mostFamilyLines  = 1 << 17
	longestSuggested = 256
)

// namesOn are the names of the samples and families of a page, ordered.
func namesOn(page []byte) []string {
	var names []string
	seen := map[string]bool{}
	for _, m := range familyLine.FindAllSubmatch(page, mostFamilyLines) {
		if len(names) == mostFamilies || len(m[1]) > longestSuggested {
			continue
		}
		if name := string(m[1]); !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// familiesOf are the families among names, in their order: those of a histogram are
// one.
func familiesOf(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			if base, is := strings.CutSuffix(name, part); is {
				if _, found := slices.BinarySearch(names, base); found {
					return true
				}
			}
		}
		return false
	})
}

// misspelt tells of families that a profile names and the page does not have, where
// the page has one of nearly that name which the profile does not name.
func misspelt(p *engine.Profile, doc *v1alpha1.Observation, page []byte) (notes []string) {
	names := namesOn(page)
	var named []string
	coverage := p.Coverage()
	for _, c := range coverage {
		for _, o := range c.Origins {
			named = append(named, underscored(o.Source.Metric))
		}
	}
	candidates := slices.DeleteFunc(familiesOf(names), func(f string) bool { return slices.Contains(named, underscored(f)) })
	for _, f := range p.Reads() {
		if doc.Fields[f.String()].State != v1alpha1.Missing {
			continue
		}
		for _, o := range coverage[f].Origins {
			want := o.Source.Metric
			if slices.ContainsFunc(names, func(have string) bool { return underscored(have) == underscored(want) }) {
				continue
			}
			if near := nearest(want, candidates); near != "" {
				notes = append(notes, fmt.Sprintf("%s: %s is not on the page, which has %s", f, want, near))
			}
		}
	}
	return notes
}

// underscored is a family's name as far as the two spellings of a colon go.
func underscored(name string) string { return strings.ReplaceAll(name, ":", "_") }

// nearest is the candidate that is most likely meant by a name, empty if none is.
func nearest(name string, candidates []string) string {
	best, least := "", 0
	for _, c := range candidates {
		d := typos
		if more := len(name) - len(c); more >= -typos && more <= typos {
			d = spelling.Distance(underscored(strings.ToLower(name)), underscored(strings.ToLower(c)))
		} else if !sameBut(name, c) {
			continue
		}
		if d > typos || d*4 > len(name) {
			continue
		}
		if best == "" || d < least {
			best, least = c, d
		}
	}
	return best
}

// typos is by how many characters a name may differ from the one that is meant.
const typos = 2

// sameBut reports that two names differ in an ending that people leave out.
func sameBut(a, b string) bool {
	a, b = underscored(a), underscored(b)
	for _, end := range []string{"_total", "_bucket", "_sum", "_count", "_seconds", "_seconds_total", "_info"} {
		if a+end == b || b+end == a {
			return true
		}
	}
	return false
}

// podLabel is a label of a sample whose name speaks of pods or namespaces.
var podLabel = regexp.MustCompile(`[{,]\s*([a-zA-Z0-9_]*(?:pod|namespace)[a-zA-Z0-9_]*)="[^"]`)

// podHint says by which labels an exporter's profile knows pods, and which the page has
// that look like them.
func podHint(p *engine.Profile, page []byte) string {
	namespace, pod := p.PodLabels()
	text := fmt.Sprintf("The profile reads pods from the labels %s and %s", namespace, pod)
	var like []string
	for _, m := range podLabel.FindAllSubmatch(page, -1) {
		if label := string(m[1]); !slices.Contains(like, label) && len(like) < mostListed {
			like = append(like, label)
		}
	}
	if len(like) > 0 {
		return text + "; those of the page are " + strings.Join(like, ", ") + "."
	}
	return text + ", which no series has with a value: the exporter must be set to write them. " + p.Metrics().Needs
}
