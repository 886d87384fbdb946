package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/test/finding"
)

// table is what the readings of one replica said, by field and phase.
type table struct {
	phases []string
	// fields of each phase, in their order.
	fields []map[string]v1alpha1.Reading
}

func (t *table) add(phase string, fields map[string]v1alpha1.Reading) {
	t.phases, t.fields = append(t.phases, phase), append(t.fields, fields)
}

// findings are a line for each field of the catalogue, in its order: in how many
// phases it had a fresh value, and what it said in each.
func (t *table) findings() []finding.Finding {
	if len(t.phases) == 0 {
		return nil
	}
	var list []finding.Finding
	for f := range telemetry.NumFields {
		fresh, said := 0, make([]string, 0, len(t.phases))
		for _, fields := range t.fields {
			r := fields[f.String()]
			if r.State == v1alpha1.Fresh {
				fresh++
			}
			said = append(said, say(r))
		}
		list = append(list, finding.Finding{
			Name: "reading/" + f.String(), Value: float64(fresh), Unit: fmt.Sprintf("/%d", len(t.phases)),
			About: t.join(said),
		})
	}
	return list
}

// join tells what was said in each phase, or once what was the same in all.
func (t *table) join(said []string) string {
	if len(slices.Compact(slices.Clone(said))) == 1 {
		return "always " + said[0]
	}
	var parts []string
	for i, text := range said {
		parts = append(parts, t.phases[i]+": "+text)
	}
	return strings.Join(parts, "; ")
}

// say tells a reading: its value with what is to be known of it, or why there is
// none.
func say(r v1alpha1.Reading) string {
	var words []string
	switch {
	case r.Value != nil:
		words = append(words, sayValue(r.Value, unitWord(r.Unit)))
		if r.State != v1alpha1.Fresh {
			words = append(words, string(r.State))
		}
		if r.Quality < 1 {
			words = append(words, "quality "+finding.Number(r.Quality))
		}
	case r.Support != v1alpha1.Supported:
		words = append(words, string(r.Support))
	default:
		words = append(words, string(r.State))
	}
	return strings.Join(append(words, r.Reasons...), ", ")
}

// unitWord follows a value; shares and times speak for themselves.
func unitWord(unit string) string {
	if unit == "" || unit == telemetry.KVCacheUtilization.Unit() || unit == telemetry.ProcessStart.Unit() {
		return ""
	}
	return " " + unit
}

// sayValue tells a value as a document has it; unit follows numbers.
func sayValue(value any, unit string) string {
	switch v := value.(type) {
	case float64:
		return finding.Number(v) + unit
	case v1alpha1.Distribution:
		return fmt.Sprintf("mean %s%s of %d", finding.Number(v.Mean), unit, v.Count)
	case []string:
		return fmt.Sprintf("%q", v)
	default:
		return fmt.Sprint(v)
	}
}
