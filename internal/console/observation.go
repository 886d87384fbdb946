package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Observation writes what is known of one replica: a head, a row for each field
// of the catalogue, and what may be the matter where a page says nothing of load.
func Observation(w io.Writer, now time.Time, o *v1alpha1.Observation) error {
	p := &printer{w: w}
	observationHead(p, o)
	p.line("")
	var rows strings.Builder
	t := tabwriter.NewWriter(&rows, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIELD\tSTATE\tVALUE\tQUALITY\tAGE\tSOURCE\tREASON")
	for f := range telemetry.NumFields {
		r := o.Fields[f.String()]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f, plain(readingState(&r)), plain(shown(&r)), quality(&r), age(now, &r),
			plain(source(r.Source)), plain(strings.Join(r.Reasons, "; ")))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for row := range strings.Lines(rows.String()) {
		p.line("%s", strings.TrimRight(row, " \n"))
	}
	if note := loadNote(o); note != "" {
		p.line("")
		p.line("%s", note)
	}
	return p.err
}

// loadNote says what a page needs to tell of load; empty where it does, or where
// there is nothing to advise.
func loadNote(o *v1alpha1.Observation) string {
	words := needs[o.Engine]
	if words == "" || o.ScrapeError != "" {
		return ""
	}
	var silent []string
	for _, f := range telemetry.LoadFields {
		if r := o.Fields[f.String()]; r.State == v1alpha1.Missing && r.Support != v1alpha1.Unsupported {
			silent = append(silent, f.String())
		}
	}
	if len(silent) == 0 {
		return ""
	}
	return "No value of " + strings.Join(silent, ", ") + ". " + words
}

func observationHead(p *printer, o *v1alpha1.Observation) {
	if o.Replica.Address != "" {
		p.line("replica  %s", o.Replica.Address)
	} else {
		p.line("replica  %s", o.Replica.Name)
	}
	name := o.Engine
	if v := o.Replica.EngineVersion; v != "" {
		name += " " + v
	}
	if o.Profile != "" {
		name += ", read by the profile " + o.Profile
	}
	p.line("engine   %s", name)
	if o.Declared != "" {
		p.line("declared %s, which its page is not", o.Declared)
	}
	if o.Replica.ProcessStart != nil {
		p.line("process  started %s", o.Replica.ProcessStart.Format(time.RFC3339))
	}
	if o.Excluded != "" {
		p.line("picks    none: %s", standing(o))
	}
	if o.ScrapeError != "" {
		p.line("failing  %s: %s", o.ScrapeError, ScrapeFailure(o.ScrapeError, o.Engine).Meaning)
	}
}

// readingState is the state, and why there is no reading where support says it.
func readingState(r *v1alpha1.Reading) string {
	if r.State == v1alpha1.Missing && (r.Support == v1alpha1.Unsupported || r.Support == v1alpha1.Disabled) {
		return string(r.State) + ", " + string(r.Support)
	}
	return string(r.State)
}

// shown is a reading's value with its unit.
func shown(r *v1alpha1.Reading) string {
	var text string
	switch v := r.Value.(type) {
	case nil:
		return "-"
	case float64:
		text = number(v)
	case bool:
		text = map[bool]string{true: "yes", false: "no"}[v]
	case []string:
		return names(v)
	case v1alpha1.Distribution:
		text = "mean " + number(v.Mean)
		for _, q := range []struct {
			name  string
			value *float64
		}{{"p50", v.P50}, {"p90", v.P90}, {"p99", v.P99}} {
			if q.value != nil {
				text += ", " + q.name + " " + number(*q.value)
			}
		}
		return text + " " + r.Unit + ", n " + strconv.FormatUint(v.Count, 10)
	case time.Time:
		return v.Format(time.RFC3339)
	default:
		text = fmt.Sprint(v)
	}
	// What is a time as text has its unit in it.
	if r.Unit != "" && r.Unit != "time" {
		text += " " + r.Unit
	}
	if r.Max != nil {
		text += ", max " + number(*r.Max)
	}
	return text
}

// number is short and without an exponent for what a person reads as a number.
func number(v float64) string {
	digits := 4
	if v >= 1000 {
		digits = 0
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.ContainsRune(text, '.') {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	if text == "0" && v != 0 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return text
}

// namesShown is how many names of a list are written out, and nameWidth how many
// characters of each.
const (
	namesShown = 4
	nameWidth  = 60
)

func names(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	var cut []string
	for _, name := range list[:min(len(list), namesShown)] {
		if runes := []rune(name); len(runes) > nameWidth {
			name = string(runes[:nameWidth]) + "..."
		}
		cut = append(cut, name)
	}
	text := strings.Join(cut, ", ")
	if more := len(list) - len(cut); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func quality(r *v1alpha1.Reading) string {
	if r.Value == nil {
		return "-"
	}
	return strconv.FormatFloat(r.Quality, 'g', 3, 32)
}

func age(now time.Time, r *v1alpha1.Reading) string {
	if r.Value == nil || r.ObservedAt == nil {
		return "-"
	}
	return now.Sub(*r.ObservedAt).Round(10 * time.Millisecond).String()
}

func source(s *v1alpha1.Source) string {
	if s == nil {
		return "-"
	}
	return strings.TrimSpace(s.Path + " " + s.Metric)
}
