package console

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// View is how observations are shown.
type View struct {
	// Profile is what the replica is read by. It tells a field of which nothing can
	// come from one that was not read yet; nil if it is not at hand.
	Profile *engine.Profile
	// Wide shows by which rule a value was made of what is at its source.
	Wide bool
}

// Observation writes what is known of one replica in the view without a profile.
func Observation(w io.Writer, now time.Time, o *v1alpha1.Observation) error {
	return View{}.Observation(w, now, o)
}

// Observation writes what is known of one replica: a head, a row for each field
// of the catalogue, and what may be the matter where a page says nothing of load.
func (v View) Observation(w io.Writer, now time.Time, o *v1alpha1.Observation) error {
	p := &printer{w: w}
	v.observationHead(p, now, o)
	p.line("")
	var rows strings.Builder
	t := tabwriter.NewWriter(&rows, 2, 0, 2, ' ', 0)
	columns := []string{"FIELD", "STATE", "VALUE", "QUALITY", "AGE", "EXPIRES", "SOURCE"}
	if v.Wide {
		columns = append(columns, "RULE")
	}
	fmt.Fprintln(t, strings.Join(append(columns, "REASON"), "\t"))
	sourceless := v.sourceless()
	for f := range telemetry.NumFields {
		r := o.Fields[f.String()]
		state, reason := readingState(&r), strings.Join(r.Reasons, "; ")
		if words := sourceless[f]; words != "" && r.State == v1alpha1.Missing && r.Support == v1alpha1.SupportUnknown && r.Source == nil {
			state, reason = string(r.State)+", no source", words
		}
		cells := []string{f.String(), state, shown(&r), quality(&r), age(now, &r), expiry(now, &r), source(r.Source)}
		if v.Wide {
			cells = append(cells, rule(r.Source))
		}
		for i, cell := range append(cells, reason) {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, plain(cell))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for row := range strings.Lines(rows.String()) {
		p.line("%s", strings.TrimRight(row, " \n"))
	}
	if note := v.loadNote(o); note != "" {
		p.line("")
		p.line("%s", note)
	}
	return p.err
}

// sourceless says of the fields that the profile has no source for why, and nothing
// of the others.
func (v View) sourceless() (words [telemetry.NumFields]string) {
	if v.Profile == nil || v.Profile.Exporter() {
		return words
	}
	for _, c := range v.Profile.Coverage() {
		if c.Level == engine.None {
			words[c.Field] = c.Reason
		}
	}
	return words
}

// loadNote says what a page needs to tell of load; empty where it does, or where
// there is nothing to advise.
func (v View) loadNote(o *v1alpha1.Observation) string {
	words := needs[o.Engine]
	if v.Profile != nil && !v.Profile.Exporter() {
		words = v.Profile.Metrics().Needs
	}
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

func (v View) observationHead(p *printer, now time.Time, o *v1alpha1.Observation) {
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
		if replaces(o.Profile) {
			name += ", not the built-in one"
		}
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
		if last := v.lastPage(o); !last.IsZero() {
			p.line("as of    %s ago: the last page that was read; what is said of it below, reasons too, is of then", ago(now, last))
		}
	}
}

// lastPage is when the metrics page was asked for that the readings are from; zero
// if it is not known, as without a value of that page.
func (v View) lastPage(o *v1alpha1.Observation) (last time.Time) {
	if v.Profile == nil || v.Profile.Digest() != o.Profile {
		return last
	}
	coverage := v.Profile.Coverage()
	for _, f := range v.Profile.Reads() {
		r := o.Fields[f.String()]
		// What the engine does not say, an exporter may.
		own := r.Source != nil && slices.ContainsFunc(coverage[f].Origins, func(o engine.Origin) bool { return o.Source.Metric == r.Source.Metric })
		if own && r.ObservedAt != nil && r.ObservedAt.After(last) {
			last = *r.ObservedAt
		}
	}
	return last
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
	if r.ObservedAt == nil {
		return "-"
	}
	return ago(now, *r.ObservedAt)
}

func ago(now, then time.Time) string {
	return now.Sub(then).Round(10 * time.Millisecond).String()
}

// expiry is when the reading expires, or how long ago it did.
func expiry(now time.Time, r *v1alpha1.Reading) string {
	if r.Value == nil || r.ExpiresAt == nil {
		return "-"
	}
	left := r.ExpiresAt.Sub(now).Round(100 * time.Millisecond)
	if left < 0 {
		return (-left).String() + " ago"
	}
	return "in " + left.String()
}

func source(s *v1alpha1.Source) string {
	if s == nil {
		return "-"
	}
	return strings.TrimSpace(s.Path + " " + s.Metric)
}

func rule(s *v1alpha1.Source) string {
	if s == nil || s.Rule == "" {
		return "-"
	}
	return s.Rule
}
