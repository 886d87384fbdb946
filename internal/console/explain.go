// Package console renders reports for people: one decision as a story, and the
// fleet as a table.
package console

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// rungMeaning says in words what a rung rests on.
var rungMeaning = map[string]string{
	"full":    "every load field that the policy weights was fresh at every candidate",
	"partial": "some load fields were missing or stale at some candidates; those were imputed, and never better than the median",
	"local": "too little telemetry was fresh; candidates were ordered by the requests that this picker has in flight there, " +
		"and by how slow they were seen to be",
	"spread": "nothing was known of any candidate; the request was spread by its key",
}

// classMeaning says in words why a screening class excludes.
var classMeaning = map[string]string{
	"subset":        "outside the subset that the gateway allows",
	"served_model":  "serves other models, or is not known to serve the one that the intent names",
	"authorization": "does not meet an authorization requirement",
	"safety":        "does not meet a safety requirement",
	"residency":     "does not meet a residency requirement",
	"capability":    "does not meet a capability requirement",
	"context":       "the tokens do not fit its context limit",
	"placement":     "does not meet a placement requirement",
	"health":        "not ready, terminating, asleep or unhealthy",
	"quarantine":    "failed several requests in a row, and is to be tried again later",
}

// screeningOrder has the classes in the order in which they run.
var screeningOrder = []string{
	"subset", "served_model", "authorization", "safety", "residency", "capability", "context", "placement", "health", "quarantine",
}

// Explain tells one decision as a person would: what was asked, who was in
// question, why the pick won, and what came of it.
func Explain(w io.Writer, d *v1alpha1.Decision) error {
	p := &printer{w: w}
	p.line("Decision %s", d.ID)
	p.line("  %s, pool %s, policy %s", d.Time.Format(time.RFC3339Nano), d.Pool, d.Versions.Policy)
	p.line("  request: %s", describeRequest(d))
	explainIntent(p, &d.Intent)
	p.line("")
	explainScreening(p, d)
	if d.Refusal != nil {
		p.line("")
		p.line("Refused with %d %s: %s.", d.Refusal.Status, d.Refusal.Reason, d.Refusal.Message)
		if d.Refusal.Detail != "" {
			p.line("  %s.", d.Refusal.Detail)
		}
		return p.err
	}
	p.line("")
	p.line("Rung %s: %s.", d.Rung, rungMeaning[d.Rung])
	for _, f := range d.Fields {
		if f.Use != "full" {
			p.line("  %s was %s.", f.Field, map[string]string{
				"partial": "imputed where it was not fresh", "dropped": "ignored for all candidates",
			}[f.Use])
		}
	}
	explainEvidence(p, d)
	p.line("")
	explainCandidates(p, d)
	explainPick(p, d)
	explainEnd(p, d)
	return p.err
}

func describeRequest(d *v1alpha1.Decision) string {
	r := d.Request
	parts := []string{r.API}
	if d.Intent.Model != "" {
		parts = append(parts, fmt.Sprintf("model %q", d.Intent.Model))
	} else {
		parts = append(parts, "no model named")
	}
	if r.Stream {
		parts = append(parts, "streamed")
	}
	parts = append(parts, fmt.Sprintf("%d bytes", r.BodyBytes))
	if r.Unread != "" {
		parts = append(parts, "body not read ("+r.Unread+")")
	}
	return strings.Join(parts, ", ")
}

func explainScreening(p *printer, d *v1alpha1.Decision) {
	if d.Refusal != nil && d.Screened == 0 && len(d.ScreenedOut) == 0 && d.Members > 0 {
		p.line("It was refused before it was screened.")
		return
	}
	p.line("Screening left %d of %d replicas.", d.Screened, d.Members)
	for _, class := range classesOf(d) {
		var names []string
		for i := range d.Candidates {
			if c := &d.Candidates[i]; c.RemovedBy == class && c.Rule == nil && c.ContextLimit == nil {
				names = append(names, c.Replica)
			}
		}
		meaning := classMeaning[class]
		if meaning == "" {
			meaning = class
		}
		p.line("  %d excluded (%s)%s", d.ScreenedOut[class], meaning, suffix(": ", listed(names)))
		explainRemovals(p, d, class)
	}
	if d.NotReplayable != "" {
		p.line("  Candidates are not listed: %s.", d.NotReplayable)
	}
}

// classesOf has the classes that excluded somebody: those that are known in the order
// of screening, then others.
func classesOf(d *v1alpha1.Decision) []string {
	var classes []string
	for _, class := range screeningOrder {
		if d.ScreenedOut[class] > 0 {
			classes = append(classes, class)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(d.ScreenedOut)) {
		if !slices.Contains(screeningOrder, class) {
			classes = append(classes, class)
		}
	}
	return classes
}

// channelMeaning says in words by which channel an intent came.
var channelMeaning = map[string]string{
	"metadata": "the gateway's metadata", "signed": "a signed header", "headers": "plain headers",
}

// explainIntent tells what a routing intent demanded, by which channel, and what came
// by others.
func explainIntent(p *printer, i *v1alpha1.IntentFacts) {
	if i.Source != "none" {
		explainDemand(p, i)
	}
	if len(i.Outranked) > 0 {
		var channels []string
		for _, c := range i.Outranked {
			channels = append(channels, cmp.Or(channelMeaning[c], c))
		}
		p.line("    not read, since what was is trusted more: %s", strings.Join(channels, ", "))
	}
	if len(i.Untrusted) > 0 {
		p.line("    not read, since their channels are switched off: %s", listed(i.Untrusted))
	}
}

func explainDemand(p *printer, i *v1alpha1.IntentFacts) {
	about := []string{"by " + cmp.Or(channelMeaning[i.Source], i.Source)}
	for _, part := range []struct{ name, value string }{{"id", i.IntentID}, {"issuer", i.Issuer}, {"key", i.KeyID}} {
		if part.value != "" {
			about = append(about, part.name+" "+part.value)
		}
	}
	p.line("  intent: %s", strings.Join(about, ", "))
	if len(i.Models) > 0 {
		p.line("    model %s, served as %s", cmp.Or(i.LogicalModel, "(no name)"), strings.Join(i.Models, ", "))
	}
	for n := range i.Requirements {
		p.line("    %s: %s", i.Requirements[n].Class, describeRule(&i.Requirements[n]))
	}
	if i.ContextTokens > 0 {
		p.line("    context: %d tokens", i.ContextTokens)
	}
	if len(i.Ignored) > 0 {
		p.line("    keys that are not understood: %s", strings.Join(i.Ignored, ", "))
	}
}

func describeRule(r *v1alpha1.Requirement) string {
	text := r.Key + " " + string(r.Operator)
	if len(r.Values) > 0 {
		text += " [" + strings.Join(r.Values, ", ") + "]"
	}
	return text
}

// listedNames is how many names of a list are written out, and removalsShown how many
// of the replicas that one class excluded are told one by one.
const (
	listedNames   = 16
	removalsShown = 16
)

func listed(names []string) string {
	text := strings.Join(names[:min(len(names), listedNames)], ", ")
	if more := len(names) - listedNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// explainRemovals tells of those that a class excluded by something of their own.
func explainRemovals(p *printer, d *v1alpha1.Decision, class string) {
	told, more := 0, 0
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.RemovedBy != class {
			continue
		}
		text := describeRemoval(d, c)
		switch {
		case text == "":
		case told < removalsShown:
			told++
			p.line("    %s: %s", c.Replica, text)
		default:
			more++
		}
	}
	if more > 0 {
		p.line("    and %d more", more)
	}
}

// describeRemoval tells which rule excluded a candidate, and what it has; empty if the
// class says it all.
func describeRemoval(d *v1alpha1.Decision, c *v1alpha1.Candidate) string {
	switch {
	case c.Rule != nil && *c.Rule >= 0 && *c.Rule < len(d.Intent.Requirements):
		return describeRule(&d.Intent.Requirements[*c.Rule]) + "; " + describeAttribute(c.Attribute)
	case c.ContextLimit != nil:
		return fmt.Sprintf("its limit is %d", *c.ContextLimit)
	default:
		return ""
	}
}

func describeAttribute(a *v1alpha1.AttributeFacts) string {
	switch {
	case a == nil:
		return "what it has was another when it was excluded"
	case a.State == "present":
		text := "it has [" + strings.Join(a.Items, ", ") + "]"
		if a.More > 0 {
			text += fmt.Sprintf(" and %d more", a.More)
		}
		return text
	case a.State == "contradicted":
		return "it has two that contradict each other"
	case a.State == "unknown":
		return "what it has is not known: its engine has not been asked yet"
	default:
		return "it has none"
	}
}

func explainCandidates(p *printer, d *v1alpha1.Decision) {
	placed := placedCandidates(d)
	if len(placed) == 0 {
		return
	}
	t := tabwriter.NewWriter(p, 2, 0, 2, ' ', 0)
	header := []string{"  RANK", "REPLICA", "TOTAL"}
	for _, f := range d.Fields {
		header = append(header, f.Field)
	}
	for _, s := range d.Scorers {
		header = append(header, fmt.Sprintf("%s x%g", s.Scorer, s.Weight))
	}
	header = append(header, "IN FLIGHT")
	row(t, header)
	for _, c := range placed {
		rank := "-"
		if c.Rank > 0 {
			rank = fmt.Sprint(c.Rank)
		}
		cells := []string{"  " + rank, c.Replica, fmt.Sprintf("%.4f", c.Total)}
		for _, r := range c.Readings {
			cells = append(cells, describeEvidence(r))
		}
		for _, s := range c.Scores {
			cells = append(cells, optional("%.3f", s))
		}
		cells = append(cells, fmt.Sprintf("%d (%d new)", c.InFlight, c.Pending))
		if c.Last {
			cells = append(cells, "ordered last: no answer yet, or its last connection was refused")
		}
		if c.Quarantined {
			cells = append(cells, "in quarantine, and let go since too many are")
		}
		row(t, cells)
	}
	_ = t.Flush() // errors stay in p
	p.line("")
}

// row writes the cells of one line of a table.
func row(w io.Writer, cells []string) {
	for i := range cells {
		cells[i] = plain(cells[i])
	}
	// The error stays in the writer.
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// placedCandidates are those that screening left, the best first.
func placedCandidates(d *v1alpha1.Decision) []v1alpha1.Candidate {
	var placed []v1alpha1.Candidate
	for _, c := range d.Candidates {
		if c.RemovedBy == "" {
			placed = append(placed, c)
		}
	}
	slices.SortStableFunc(placed, func(a, b v1alpha1.Candidate) int {
		switch {
		case (a.Rank > 0) != (b.Rank > 0):
			if a.Rank > 0 {
				return -1
			}
			return 1
		case a.Rank != b.Rank:
			return a.Rank - b.Rank
		case a.Last != b.Last:
			if b.Last {
				return -1
			}
			return 1
		case a.Total > b.Total:
			return -1
		case a.Total < b.Total:
			return 1
		}
		return 0
	})
	return placed
}

// describeEvidence shows a reading, and what was made of it where that differs.
func describeEvidence(r v1alpha1.FieldEvidence) string {
	text := r.State
	if r.Value != nil {
		text = fmt.Sprintf("%.3g", *r.Value)
		if r.State != "fresh" {
			text += " " + r.State
		}
		if r.AgeMillis != nil {
			text += fmt.Sprintf(" (%s old)", time.Duration(*r.AgeMillis)*time.Millisecond)
		}
	}
	if r.Estimate != nil {
		text += fmt.Sprintf(" -> %.3g", *r.Estimate)
	}
	return text
}

func explainPick(p *printer, d *v1alpha1.Decision) {
	placed := placedCandidates(d)
	if d.Screened == 1 {
		p.line("%s was the only replica left.", d.Pick)
		return
	}
	var best, next v1alpha1.Candidate
	if len(placed) > 1 {
		best, next = placed[0], placed[1]
	}
	switch {
	case len(placed) < 2:
		p.line("%s was picked.", d.Pick)
	case best.Last != next.Last:
		p.line("%s was picked: all others were ordered last.", d.Pick)
	case best.Total == next.Total:
		p.line("%s was picked: it tied with %s at %.4f, and ties break by the request's key.", d.Pick, next.Replica, best.Total)
	default:
		p.line("%s was picked: %.4f against %.4f for %s%s.", d.Pick, best.Total, next.Total, next.Replica, decisive(d.Scorers, best, next))
	}
	if len(d.Fallbacks) > 0 {
		p.line("Fallbacks, in order: %s.", strings.Join(d.Fallbacks, ", "))
	}
}

// decisive names the scorer that did most for the winner.
func decisive(scorers []v1alpha1.ScorerUse, best, next v1alpha1.Candidate) string {
	name, most := "", 0.0
	for i := range min(len(scorers), len(best.Scores), len(next.Scores)) {
		a, b := best.Scores[i], next.Scores[i]
		if a == nil || b == nil {
			continue
		}
		if gain := scorers[i].Weight * (*a - *b); gain > most {
			name, most = scorers[i].Scorer, gain
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; %s made most of the difference (%+.4f)", name, most)
}

// gatewayHint says what the gateway's own word for an answer means to an
// operator, where it means something in particular.
func gatewayHint(details string) string {
	if details == "no_healthy_upstream" {
		return " It knows none of the addresses that it was given, or has tried them all: " +
			"its list of endpoints may be older than the pool (berthctl gateway writes it)."
	}
	return ""
}

var actedMeaning = map[string]string{
	"confirmed":  "The gateway sent the request there.",
	"overridden": "The gateway sent the request to another screened replica, %s.",
	"violated":   "The gateway sent the request OUTSIDE the screened set, to %s.",
	"unreported": "The gateway did not say who served the request.",
}

// unservedMeaning is said instead of "unreported" where nobody served.
func unservedMeaning(d *v1alpha1.Decision) string {
	switch o := d.Outcome; {
	case d.Acknowledgement.Acted != "unreported" || o == nil:
		return ""
	case o.Status == 0:
		return "No response had begun when the request ended."
	case o.Details != "":
		return "The gateway answered by itself." + gatewayHint(o.Details)
	default:
		return ""
	}
}

func explainEnd(p *printer, d *v1alpha1.Decision) {
	a := d.Acknowledgement
	if a.Acted == "" {
		p.line("The request is still running.")
		return
	}
	served := a.Served
	if served == "" {
		served = a.ServedAddress
	}
	meaning := actedMeaning[a.Acted]
	if strings.Contains(meaning, "%s") {
		meaning = fmt.Sprintf(meaning, served)
	}
	if unserved := unservedMeaning(d); unserved != "" {
		meaning = unserved
	}
	if a.Attempts > 1 {
		meaning += fmt.Sprintf(" It took %d attempts.", a.Attempts)
	}
	p.line("%s", meaning)
	o := d.Outcome
	if o == nil {
		return
	}
	text := "It ended: " + o.Cause
	if o.ErrorCode != 0 {
		text += fmt.Sprintf(" (error %d inside the response)", o.ErrorCode)
	}
	if o.Status != 0 {
		text += fmt.Sprintf(", status %d", o.Status)
	}
	if o.Details != "" {
		text += " (" + o.Details + ")"
	}
	if o.TTFT != nil {
		text += fmt.Sprintf(", first byte after %s", seconds(*o.TTFT))
	}
	text += fmt.Sprintf(", %s in all", seconds(o.Duration))
	if o.ResponseBytes != nil {
		text += fmt.Sprintf(", %d bytes", *o.ResponseBytes)
	}
	if o.InputTokens != nil && o.OutputTokens != nil {
		text += fmt.Sprintf(", %d tokens in and %d out", *o.InputTokens, *o.OutputTokens)
	}
	if o.CachedTokens != nil {
		text += fmt.Sprintf(", %d from the prefix cache", *o.CachedTokens)
	}
	p.line("%s.", text)
	if shown := seenMeaning(o); shown != "" {
		p.line("%s", shown)
	}
}

// seenMeaning says what the gateway kept from the picker; "" where that is nothing.
func seenMeaning(o *v1alpha1.Outcome) string {
	switch {
	case o.Cause == "unseen" && o.Seen == "headers":
		return "The gateway shows nothing behind the response headers: when and how the response ended is not known."
	case o.Cause == "unseen":
		return "The gateway shows no responses: when and how this one ended is not known."
	case o.Seen == "end" && o.ResponseBytes == nil:
		return "The gateway shows no response bodies: it ended when its stream did, which does not say why."
	default:
		return ""
	}
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
}

func optional(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

func suffix(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

// plain makes a text from a record safe for a terminal: it stays on its line, in
// its cell, in the order that it was written in, and in sight. Control characters
// (C0 and C1), format characters (Cf: bidirectional controls, zero widths, tags)
// and separators of lines and paragraphs are replaced; so are bytes that are no
// UTF-8, which a terminal may take for C1.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// printer keeps the first error, so that rendering reads without error checks.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.w.Write(b)
	p.err = err
	return n, err
}

func (p *printer) line(format string, args ...any) {
	for i, arg := range args {
		// Types made of strings are texts of the record, too.
		if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
			args[i] = plain(v.String())
		}
	}
	// The error stays in p.
	_, _ = fmt.Fprintf(p, format+"\n", args...)
}
