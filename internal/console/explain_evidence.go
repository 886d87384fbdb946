package console

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Bounds of what is told of causes.
const (
	// causesShown is how many are told, those of most replicas first.
	causesShown = 8
	// reasonWidth is how many characters of one are.
	reasonWidth = 200
)

// cause is why some fields were not fresh, or doubtful, at some candidates.
type cause struct {
	fields []string
	// standing is what the fields were, reason why.
	standing, reason string
	replicas         []string
}

// explainEvidence tells why readings were not fresh, or worth less: a line for each
// cause.
func explainEvidence(p *printer, d *v1alpha1.Decision) {
	placed := 0
	for i := range d.Candidates {
		if d.Candidates[i].RemovedBy == "" {
			placed++
		}
	}
	causes := causesOf(d)
	for _, c := range causes[:min(len(causes), causesShown)] {
		p.line("  %s", c.describe(placed))
	}
	if more := len(causes) - causesShown; more > 0 {
		p.line("  and %d other causes", more)
	}
}

// causesOf has the causes of a decision, those of most replicas first.
func causesOf(d *v1alpha1.Decision) []cause {
	var causes []cause
	for f := range d.Fields {
		from := len(causes)
		at := map[[2]string]int{}
		for i := range d.Candidates {
			c := &d.Candidates[i]
			if c.RemovedBy != "" || f >= len(c.Readings) {
				continue
			}
			r := &c.Readings[f]
			standing := evidenceStanding(r)
			if standing == "" {
				continue
			}
			reason := r.Reason
			if reason == "" && r.State == string(v1alpha1.Missing) && d.Telemetry == string(v1alpha1.TelemetryNone) {
				reason = "telemetry.mode is none"
			}
			key := [2]string{standing, alike(reason)}
			n, known := at[key]
			if !known {
				n = len(causes)
				at[key] = n
				causes = append(causes, cause{[]string{d.Fields[f].Field}, standing, reason, nil})
			}
			causes[n].replicas = append(causes[n].replicas, c.Replica)
			if reason != causes[n].reason {
				causes[n].reason = key[1]
			}
		}
		causes = joined(causes, from)
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return len(b.replicas) - len(a.replicas) })
	return causes
}

// joined adds the causes from an index on, those of one field, to the same ones of
// fields before it.
func joined(causes []cause, from int) []cause {
	all := causes[:from]
	for _, c := range causes[from:] {
		same := slices.IndexFunc(all[:from], func(o cause) bool {
			return o.standing == c.standing && o.reason == c.reason && slices.Equal(o.replicas, c.replicas)
		})
		if same >= 0 {
			all[same].fields = append(all[same].fields, c.fields...)
		} else {
			all = append(all, c)
		}
	}
	return all
}

// evidenceStanding is what a reading was that needs a reason; empty for one that does
// not.
func evidenceStanding(r *v1alpha1.FieldEvidence) string {
	if r.State == string(v1alpha1.Fresh) {
		if r.Reason == "" {
			return ""
		}
		return "of lower quality"
	}
	return readingState(&v1alpha1.Reading{State: v1alpha1.State(r.State), Support: v1alpha1.Support(r.Support)})
}

// alike is a reason with "..." for the numbers in it: a page that has stood still for
// 12s is one cause with one that has for 15s. Tokens such as status_404 stay.
func alike(reason string) string {
	words := strings.Split(reason, " ")
	for i, w := range words {
		if unsigned := strings.TrimPrefix(w, "-"); unsigned != "" && unsigned[0] >= '0' && unsigned[0] <= '9' {
			words[i] = "..." + strings.TrimLeft(w, "-+.0123456789eEµnmsh")
		}
	}
	return strings.Join(words, " ")
}

func (c *cause) describe(of int) string {
	text := strings.Join(c.fields, ", ") + " " + c.standing
	switch {
	case of == 1:
	case len(c.replicas) == of:
		text += fmt.Sprintf(" on all %d", of)
	default:
		text += fmt.Sprintf(" on %d of %d", len(c.replicas), of)
	}
	if c.reason != "" {
		reason := c.reason
		if runes := []rune(reason); len(runes) > reasonWidth {
			reason = string(runes[:reasonWidth]) + "..."
		}
		text += ": " + reason
		if words := failureMeaning(c.reason); words != "" {
			text += ", " + words
		}
	}
	if len(c.replicas) < of {
		text += " (" + names(c.replicas) + ")"
	}
	return text
}

// failureMeaning says what a scrape's reason means; empty for another reason.
func failureMeaning(reason string) string {
	if _, known := failures[reason]; !known && !strings.HasPrefix(reason, "status_") {
		return ""
	}
	return ScrapeFailure(reason, "").Meaning
}
