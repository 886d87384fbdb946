package engine

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-dev/berth/internal/telemetry"
)

// expectation is a file of testdata/expect: what a first read of one page must
// say of every field. The files are written by hand, from what is known of the
// engines; they are never output of this package.
type expectation struct {
	Page   string
	Engine string
	// At is when the page is asked for, in RFC 3339; later than every time on
	// the pages if it is not given.
	At     string
	Models []string
	// Pod is whose readings are meant, on the page of an exporter.
	Pod    string
	Fields map[string]expectedReading
}

// expectedReading is a value, or the state that stands in for it and a part of
// a reason.
type expectedReading struct {
	Value   any
	Max     *float64
	Names   *[]string
	Text    *string
	Support string
	State   string
	Reason  string
	Quality *float64
	// Cite says where the expectation is from: it begins with the section of the
	// reference on what engines expose, 0 to 9, and goes on with the row or the rule.
	Cite string
}

// laterThanEveryPage is when pages are asked for that state no time of their own.
var laterThanEveryPage = telemetry.At(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))

func TestEachPageGivesWhatWasExpectedByHand(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "expect", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			want := readExpectation(t, file)
			p := profileOf(t, want.Engine)
			page := pageOf(t, want.Page)
			plain := want.read(t, p, page)
			want.check(t, plain)
			for _, form := range formsOfAPage(p) {
				t.Run(form.name, func(t *testing.T) {
					changed := form.change(page)
					if changed == page {
						t.Fatal("this form is the page itself")
					}
					sameReadings(t, want.read(t, p, changed), plain)
				})
			}
		})
	}
}

// TestEveryPageHasAnExpectation keeps a page from lying about without one.
func TestEveryPageHasAnExpectation(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("testdata", "*.prom"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "expect", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	expected := map[string]bool{}
	for _, file := range files {
		expected[readExpectation(t, file).Page] = true
	}
	for _, page := range pages {
		if !expected[filepath.Base(page)] {
			t.Errorf("%s has no file in testdata/expect", page)
		}
	}
}

func readExpectation(t *testing.T, file string) *expectation {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	e := &expectation{}
	if err := dec.Decode(e); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for f := range telemetry.NumFields {
		want, ok := e.Fields[f.String()]
		switch {
		case !ok:
			t.Errorf("%s: %s is not there, want every field", file, f)
		case want.State == "" && want.Value == nil && want.Names == nil && want.Text == nil:
			t.Errorf("%s: %s has neither a value nor a state", file, f)
		case want.State != "" && want.Reason == "" && want.Support != "unknown":
			t.Errorf("%s: %s is %s without a reason", file, f, want.State)
		case !citation.MatchString(want.Cite):
			t.Errorf("%s: %s cites %q, want a section and a row or rule of it", file, f, want.Cite)
		}
	}
	for name := range e.Fields {
		if _, ok := telemetry.ParseField(name); !ok {
			t.Errorf("%s: %s is not a field", file, name)
		}
	}
	return e
}

var citation = regexp.MustCompile(`^[0-9](\.[0-9])?[: ] ?\S`)

func (e *expectation) at(t *testing.T) telemetry.Instant {
	t.Helper()
	if e.At == "" {
		return laterThanEveryPage
	}
	at, err := time.Parse(time.RFC3339, e.At)
	if err != nil {
		t.Fatal(err)
	}
	return telemetry.At(at)
}

func (e *expectation) read(t *testing.T, p *Profile, page string) *telemetry.Snapshot {
	t.Helper()
	at := e.at(t)
	if !p.Exporter() {
		s, err := p.Read([]byte(page), Input{At: at, Models: e.Models})
		if err != nil {
			t.Fatalf("the page is refused: %v", err)
		}
		return s
	}
	pods, err := p.ReadPods([]byte(page), "", at, 0, map[Pod]*History{})
	if err != nil {
		t.Fatalf("the page is refused: %v", err)
	}
	if pods[Pod(e.Pod)] == nil {
		t.Fatalf("pod %q is not on the page", e.Pod)
	}
	s := p.blank
	Join(&s, pods[Pod(e.Pod)])
	return &s
}

func (e *expectation) check(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	for f := range telemetry.NumFields {
		want := e.Fields[f.String()]
		if fault := want.fault(f, &s.Readings[f], e.at(t)); fault != "" {
			t.Errorf("%s: %s\n got  %s\n cite %s", f, fault, sentence(f, &s.Readings[f]), want.Cite)
		}
	}
}

// fault says what is wrong with a reading, empty if nothing is.
func (w *expectedReading) fault(f telemetry.Field, r *telemetry.Reading, now telemetry.Instant) string {
	state, support := w.State, w.Support
	if state == "" {
		state = "fresh"
	}
	if support == "" {
		support = "supported"
	}
	detail := r.Detail
	if detail == nil {
		detail = &telemetry.Detail{}
	}
	reasons := strings.Join(detail.Reasons, "; ")
	switch {
	case r.State(now).String() != state:
		return "want state " + state
	case r.Support.String() != support:
		return "want support " + support
	case !strings.Contains(reasons, w.Reason):
		return fmt.Sprintf("want a reason with %q", w.Reason)
	}
	if state != "fresh" {
		return ""
	}
	quality := 1.0
	if w.Quality != nil {
		quality = *w.Quality
	}
	switch {
	case !near(float64(r.Quality), quality, 1e-6):
		return fmt.Sprintf("quality %v, want %v", r.Quality, quality)
	case quality == 1 && reasons != "":
		return "want no reasons beside full quality"
	case r.ObservedAt != now || r.Provenance != telemetry.Measured || detail.Source == nil:
		return "want it measured on this page"
	case (w.Max == nil) != (detail.Max == nil):
		return fmt.Sprintf("hottest rank %v, want %v", detail.Max, w.Max)
	case w.Max != nil && !near(*detail.Max, *w.Max, 1e-9):
		return fmt.Sprintf("hottest rank %v, want %v", *detail.Max, *w.Max)
	case w.Names != nil && !slices.Equal(detail.Names, *w.Names):
		return fmt.Sprintf("names %q, want %q", detail.Names, *w.Names)
	case w.Text != nil && detail.Text != *w.Text:
		return fmt.Sprintf("text %q, want %q", detail.Text, *w.Text)
	}
	switch v := w.Value.(type) {
	case nil:
		if f.Kind() == telemetry.Names && w.Names == nil || f.Kind() == telemetry.Text && w.Text == nil {
			return "the expectation has no value"
		}
	case bool:
		if f.Kind() != telemetry.Bool || r.Value != truth(v) {
			return fmt.Sprintf("want %v", v)
		}
	case int:
		if !near(r.Value, float64(v), 1e-9) {
			return fmt.Sprintf("value %v, want %v", r.Value, v)
		}
	case float64:
		if !near(r.Value, v, 1e-9) {
			return fmt.Sprintf("value %v, want %v", r.Value, v)
		}
	default:
		return fmt.Sprintf("the expectation has a %T for a value", v)
	}
	return ""
}

// near allows for the rounding of a few additions.
func near(a, b, tolerance float64) bool {
	return a == b || math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}

// form is a way to write a page that must not change what is read on it.
type form struct {
	name   string
	change func(string) string
}

func formsOfAPage(p *Profile) []form {
	forms := []form{
		{"CRLF", func(page string) string { return strings.ReplaceAll(page, "\n", "\r\n") }},
		{"no final newline", func(page string) string { return page + "# EOF" }},
		{"without HELP and TYPE", withoutComments},
		{"as OpenMetrics", asOpenMetrics},
		{"with unknown families", withUnknownFamilies},
		{"OpenMetrics, shuffled, with unknown families, CRLF", func(page string) string {
			return strings.ReplaceAll(shuffled(9)(withUnknownFamilies(asOpenMetrics(page))), "\n", "\r\n")
		}},
	}
	for seed := range uint64(5) {
		forms = append(forms, form{fmt.Sprintf("lines shuffled, seed %d", seed), shuffled(seed)})
	}
	if slices.ContainsFunc(p.detect.prefixes, func(prefix string) bool { return strings.Contains(prefix, ":") }) {
		forms = append(forms,
			form{"colons replaced", func(page string) string { return withoutColons(page, true) }},
			form{"colons replaced on samples alone", func(page string) string { return withoutColons(page, false) }},
			form{"colons replaced on samples of OpenMetrics", func(page string) string {
				return withoutColons(asOpenMetrics(page), false)
			}},
		)
	}
	return forms
}

func lines(page string) []string {
	all := strings.SplitAfter(page, "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

func isComment(line string) bool { return strings.HasPrefix(line, "#") }

func shuffled(seed uint64) func(string) string {
	return func(page string) string {
		all := lines(page)
		rand.New(rand.NewPCG(seed, 7)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return strings.Join(all, "")
	}
}

// withoutComments leaves HELP and TYPE of families without a sample: there they
// are all that is said.
func withoutComments(page string) string {
	sampled := map[string]bool{}
	for _, line := range lines(page) {
		if name := sampleName(line); name != "" {
			sampled[name] = true
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				sampled[strings.TrimSuffix(name, suffix)] = true
			}
		}
	}
	return strings.Join(slices.DeleteFunc(lines(page), func(line string) bool {
		words := strings.Fields(line)
		return isComment(line) && (len(words) < 3 || sampled[words[2]])
	}), "")
}

// asOpenMetrics names the family of a counter without _total in HELP and TYPE,
// states units and ends with the mark of OpenMetrics. Samples stay as they are.
func asOpenMetrics(page string) string {
	counters := map[string]bool{}
	for _, line := range lines(page) {
		if words := strings.Fields(line); len(words) == 4 && words[1] == "TYPE" && words[3] == "counter" {
			counters[words[2]] = strings.HasSuffix(words[2], "_total")
		}
	}
	var out strings.Builder
	for _, line := range lines(page) {
		words := strings.Fields(line)
		if !isComment(line) || len(words) < 3 || words[1] != "HELP" && words[1] != "TYPE" {
			if !isComment(line) {
				out.WriteString(line)
			}
			continue
		}
		name := words[2]
		if counters[name] {
			line = strings.Replace(line, name, strings.TrimSuffix(name, "_total"), 1)
		}
		out.WriteString(line)
		if words[1] == "TYPE" && strings.HasSuffix(name, "_seconds") {
			fmt.Fprintf(&out, "# UNIT %s seconds\n", name)
		}
	}
	out.WriteString("# EOF\n")
	return out.String()
}

// withUnknownFamilies adds, to each family, others whose names begin like it.
func withUnknownFamilies(page string) string {
	names := map[string]bool{}
	for _, line := range lines(page) {
		if name := sampleName(line); name != "" {
			names[name] = true
		} else if words := strings.Fields(line); isComment(line) && len(words) > 2 && words[1] == "TYPE" {
			names[words[2]] = true
		}
	}
	var before, after strings.Builder
	before.WriteString("# TYPE another_engine:num_requests_waiting gauge\nanother_engine:num_requests_waiting 900\n")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&before, "%s_created{engine=\"0\"} 1.7881e+09\n", strings.TrimSuffix(name, "_total"))
		fmt.Fprintf(&before, "# TYPE %s_by_color gauge\n%s_by_color{color=\"red\"} NaN\n", name, name)
		fmt.Fprintf(&after, "%s_more{engine=\"0\"} -77\nno_%s 77\n", name, name)
	}
	after.WriteString("unlike_anything{ 1\nllama_tokens_per_second -nan\n")
	return before.String() + strings.TrimRight(page, "\n") + "\n" + after.String()
}

// withoutColons spells the names of families with underscores, on samples and,
// with comments, in HELP and TYPE as well.
func withoutColons(page string, comments bool) string {
	all := lines(page)
	for i, line := range all {
		name := sampleName(line)
		if words := strings.Fields(line); isComment(line) && comments && len(words) > 2 {
			name = words[2]
		}
		if name != "" {
			all[i] = strings.Replace(line, name, flatten(name), 1)
		}
	}
	return strings.Join(all, "")
}

// sampleName is the name that a sample begins with, empty for other lines.
func sampleName(line string) string {
	if isComment(line) {
		return ""
	}
	if end := strings.IndexAny(line, "{ \t\r\n"); end > 0 {
		return line[:end]
	}
	return ""
}

// pageOf is a page of testdata.
func pageOf(t testing.TB, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// readAs reads a page that must be readable, later than every time on it if the
// input does not say when.
func readAs(t testing.TB, p *Profile, page string, in Input) *telemetry.Snapshot {
	t.Helper()
	if in.At == 0 {
		in.At = laterThanEveryPage
	}
	s, err := p.Read([]byte(page), in)
	if err != nil {
		t.Fatalf("the page is refused: %v", err)
	}
	return s
}

// pageAt is a page of the profile by its path.
func pageAt(t testing.TB, p *Profile, path string) Page {
	t.Helper()
	for _, page := range p.SlowPages() {
		if page.Path == path {
			return page
		}
	}
	t.Fatalf("%s has no page %s", p.Name(), path)
	return Page{}
}

// sentence puts a reading in one line: its value, the hottest rank and a doubt
// where there is one, or the support, the state and the reasons.
func sentence(f telemetry.Field, r *telemetry.Reading) string {
	d := r.Detail
	if d == nil {
		d = &telemetry.Detail{}
	}
	because := strings.Join(d.Reasons, "; ")
	if r.Recorded != telemetry.Fresh {
		return fmt.Sprintf("%s, %s: %s", r.Support, r.Recorded, because)
	}
	var words string
	switch f.Kind() {
	case telemetry.Bool:
		words = fmt.Sprint(r.Value != 0)
	case telemetry.Names:
		words = fmt.Sprintf("%q", d.Names)
	case telemetry.Text:
		words = d.Text
	case telemetry.Dist:
		words = fmt.Sprintf("mean %.6g of %d", d.Distribution.Mean, d.Distribution.Count)
	default:
		words = fmt.Sprintf("%.12g", r.Value)
	}
	if d.Max != nil {
		words += fmt.Sprintf(" max %.12g", *d.Max)
	}
	if r.Quality < 1 {
		words += fmt.Sprintf(" at %.3g: %s", r.Quality, because)
	}
	return words
}

// says checks readings by their sentences: of a value all of it, of the others a
// part.
func says(t testing.TB, s *telemetry.Snapshot, want map[telemetry.Field]string) {
	t.Helper()
	for f, words := range want {
		r := &s.Readings[f]
		got := sentence(f, r)
		if r.Recorded == telemetry.Fresh && r.Quality == 1 && got != words || !strings.Contains(got, words) {
			t.Errorf("%s\n got  %s\n want %s", f, got, words)
		}
	}
}

// sameReadings checks that two pages tell the same.
func sameReadings(t testing.TB, got, want *telemetry.Snapshot) {
	t.Helper()
	for f := range telemetry.NumFields {
		if !reflect.DeepEqual(got.Readings[f], want.Readings[f]) {
			t.Errorf("%s\n got  %s\n want %s", f, sentence(f, &got.Readings[f]), sentence(f, &want.Readings[f]))
		}
	}
}
