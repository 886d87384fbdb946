package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/berth-dev/berth/internal/telemetry"
)

// failing is what tests, fuzz targets and properties have in common.
type failing interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkPossible fails for a reading that no engine can have.
func checkPossible(t failing, s *telemetry.Snapshot) {
	t.Helper()
	for f := range telemetry.NumFields {
		r := &s.Readings[f]
		if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) || !(r.Quality >= 0 && r.Quality <= 1) {
			t.Errorf("%s is %v, quality %v", f, r.Value, r.Quality)
		}
		if r.Recorded != telemetry.Fresh && r.Recorded != telemetry.Stale {
			if r.Detail == nil || len(r.Detail.Reasons) == 0 {
				t.Errorf("%s is %s without a reason", f, r.Recorded)
			}
			continue
		}
		if !f.Possible(r.Value) {
			t.Errorf("%s is %v", f, r.Value)
		}
		if r.Quality < 1 && (r.Detail == nil || len(r.Detail.Reasons) == 0) {
			t.Errorf("%s has a quality of %v without a reason", f, r.Quality)
		}
		if r.Detail == nil || r.Detail.Source == nil {
			t.Errorf("%s has a value and no source", f)
			continue
		}
		if m := r.Detail.Max; m != nil && (!f.Possible(*m) || *m < r.Value) {
			t.Errorf("%s is %v, its hottest rank %v", f, r.Value, *m)
		}
		if d := r.Detail.Distribution; d != nil {
			checkDistribution(t, f, d)
		} else if f.Kind() == telemetry.Dist {
			t.Errorf("%s is fresh without a distribution", f)
		}
	}
}

func checkDistribution(t failing, f telemetry.Field, d *telemetry.Distribution) {
	t.Helper()
	if !telemetry.QueueDepth.Possible(d.Mean) {
		t.Errorf("%s has a mean of %v", f, d.Mean)
	}
	if math.IsNaN(d.P50) && math.IsNaN(d.P90) && math.IsNaN(d.P99) {
		return // a sum and a count
	}
	if !telemetry.QueueDepth.Possible(d.P50) || !telemetry.QueueDepth.Possible(d.P99) || !(d.P50 <= d.P90 && d.P90 <= d.P99) {
		t.Errorf("%s has quantiles of %v, %v, %v", f, d.P50, d.P90, d.P99)
	}
}

// asScanned is a profile that keeps every series of a page: no label is an
// artefact or chooses among ranks.
func asScanned(t testing.TB, p *Profile) *Profile {
	t.Helper()
	plain, err := Parse(p.Name(), choosingLabels.ReplaceAll(p.Text(), nil))
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

var choosingLabels = regexp.MustCompile(`(?m)^  (lowest|drop|refuse): .*\n`)

// series of one family as they are on a page: values by labels, and more than one
// value where the page has a series twice.
type scannedSeries map[string][]float64

func keyOf(l []string) string {
	slices.Sort(l)
	return strings.Join(l, "\x00")
}

// scanned are the samples of the families that a profile names, as scan sees them.
func scanned(p *Profile, page []byte) (families []scannedSeries, fault string, err error) {
	sc := newScratch(p)
	if err := p.scan(page, sc, true); err != nil {
		return nil, "", err
	}
	families = make([]scannedSeries, len(p.families))
	for i := range families {
		if problem := sc.families[i].problem; problem != "" {
			fault = fmt.Sprintf("%s: %s", p.families[i].name, problem)
		}
		families[i] = scannedSeries{}
		sc.each(&series{family: i}, func(s *sample) bool {
			var words []string
			s.labels.Range(func(l labels.Label) { words = append(words, l.Name+"="+l.Value) })
			key := keyOf(words)
			families[i][key] = append(families[i][key], s.value)
			if s.problem != "" {
				families[i][key] = append(families[i][key], math.NaN())
			}
			return true
		})
	}
	return families, fault, nil
}

// parsedByCommon is a page as prometheus/common sees it; nil if it does not, or
// reads it differently by intent. Types are left out, so that a histogram is three
// families of plain samples.
func parsedByCommon(page []byte) map[string]*dto.MetricFamily {
	if exotic(page) {
		return nil
	}
	var samples []byte
	for line := range bytes.Lines(page) {
		if !bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")) {
			samples = append(samples, line...)
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	byName, err := parser.TextToMetricFamilies(bytes.NewReader(append(samples, '\n')))
	if err != nil {
		// It gives up at the first bad line.
		return nil
	}
	return byName
}

// samplesOf are the samples of the families that a profile names.
func samplesOf(p *Profile, byName map[string]*dto.MetricFamily) []scannedSeries {
	families := make([]scannedSeries, len(p.families))
	for i := range families {
		families[i] = scannedSeries{}
		name := p.families[i].name
		spellings := []string{name}
		if flat := flatten(name); flat != name {
			spellings = append(spellings, flat)
		}
		for _, spelling := range spellings {
			for _, m := range byName[spelling].GetMetric() {
				key := keyOf(labelWords(m))
				families[i][key] = append(families[i][key], m.GetUntyped().GetValue())
			}
		}
	}
	return families
}

func labelWords(m *dto.Metric) (words []string) {
	for _, l := range m.Label {
		words = append(words, l.GetName()+"="+l.GetValue())
	}
	return words
}

// exotic reports forms that the two parsers treat differently by intent: metric
// names in quotes, which no engine writes with text 0.0.4, and bare carriage
// returns.
func exotic(page []byte) bool {
	return quotedName.Match(page) || bytes.ContainsAny(page, "\r\x00\v\f")
}

var quotedName = regexp.MustCompile(`[{,][ \t]*"`)

// compareWithCommon holds the samples of a page against those of another parser.
// It reports whether there was anything to compare.
func compareWithCommon(t failing, p *Profile, page []byte, byName map[string]*dto.MetricFamily) bool {
	t.Helper()
	if byName == nil {
		return false
	}
	got, fault, err := scanned(p, page)
	if err != nil {
		if errors.Is(err, ErrTruncated) || errors.Is(err, ErrNotText) {
			t.Errorf("%s: %v, and prometheus/common reads it", p.Name(), err)
		}
		return false
	}
	if fault != "" {
		t.Errorf("%s: %s, and prometheus/common reads it", p.Name(), fault)
	}
	want := samplesOf(p, byName)
	for i := range p.families {
		name := p.families[i].name
		for key, values := range want[i] {
			slices.SortFunc(values, compareBits)
			values = slices.CompactFunc(values, func(a, b float64) bool { return compareBits(a, b) == 0 })
			one := got[i][key]
			switch {
			case len(one) == 0:
				t.Errorf("%s: %s{%q} is not seen", p.Name(), name, key)
			case len(values) == 1 && (len(one) != 1 || compareBits(one[0], values[0]) != 0):
				t.Errorf("%s: %s{%q} is %v, prometheus/common found %v", p.Name(), name, key, one, values)
			case len(values) > 1 && len(one) != 2:
				t.Errorf("%s: %s{%q} has the values %v, and is not spoilt", p.Name(), name, key, values)
			}
		}
		for key := range got[i] {
			if want[i][key] == nil {
				t.Errorf("%s: %s{%q} is on no page", p.Name(), name, key)
			}
		}
	}
	return true
}

// compareBits orders floats; every NaN is the same, and -0 is 0.
func compareBits(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b), a == b:
		return 0
	case math.IsNaN(a) || a < b:
		return -1
	default:
		return 1
	}
}

func TestSamplesAreThoseOfTheParserOfPrometheusCommon(t *testing.T) {
	pages, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages in testdata, %v", len(pages), err)
	}
	compared := map[string]int{}
	set := defaults(t)
	plain := map[*Profile]*Profile{}
	for _, p := range set.Profiles() {
		plain[p] = asScanned(t, p)
	}
	for _, path := range pages {
		page := load(t, filepath.Base(path))
		byName := parsedByCommon(page)
		for _, p := range set.Profiles() {
			if compareWithCommon(t, plain[p], page, byName) {
				compared[p.Name()]++
			}
		}
	}
	for _, p := range set.Profiles() {
		if compared[p.Name()] == 0 {
			t.Errorf("no page of %s", p.Name())
		}
	}
}

// everyFamily is a page with two series of each family that a profile names.
func everyFamily(p *Profile) []byte {
	var page strings.Builder
	for i := range p.families {
		fmt.Fprintf(&page, "%s{le=\"+Inf\",rank=\"0\"} %d\n%s{le=\"+Inf\",rank=\"1\"} %d.5\n", p.families[i].name, i, p.families[i].name, i)
	}
	return []byte(page.String())
}

// TestEveryFamilyIsComparedWithTheParserOfPrometheusCommon: none that a profile
// names is left out of the comparison, on a page or as a seed of the fuzzer.
func TestEveryFamilyIsComparedWithTheParserOfPrometheusCommon(t *testing.T) {
	for _, p := range defaults(t).Profiles() {
		plain, page := asScanned(t, p), everyFamily(p)
		if !compareWithCommon(t, plain, page, parsedByCommon(page)) {
			t.Errorf("%s: nothing was compared", p.Name())
		}
		for i, series := range samplesOf(plain, parsedByCommon(page)) {
			if len(series) != 2 {
				t.Errorf("%s: %d series of %s, want 2", p.Name(), len(series), plain.families[i].name)
			}
		}
	}
}

func TestSeriesThatNoOtherParserSettles(t *testing.T) {
	p := asScanned(t, vllm(t))
	cases := []struct{ name, lines, want string }{
		{"a comma before the brace", `vllm:num_requests_waiting{engine="0",} 1`, "engine=0"},
		{"blanks everywhere", `vllm:num_requests_waiting { engine = "0" , a = "b" }  1`, "a=b\x00engine=0"},
		{"escapes", `vllm:num_requests_waiting{engine="a\\b\"c\nd"} 1`, "engine=a\\b\"c\nd"},
		{"a brace in a value", `vllm:num_requests_waiting{engine="}{"} 1`, "engine=}{"},
		{"a mark of a comment in a value", `vllm:num_requests_waiting{engine="#"} 1`, "engine=#"},
		{"an exemplar", `vllm:num_requests_waiting{engine="0"} 1 # {trace="}"} 0.5`, "engine=0"},
		{"an exemplar after a time", `vllm:num_requests_waiting{engine="0"} 1 1700000000 # {trace="x"} 0.5 1700000000`, "engine=0"},
		{"no labels in braces", `vllm:num_requests_waiting{} 1`, ""},
		{"a tab before the value", "vllm:num_requests_waiting\t1", ""},
		{"letters of another script", `vllm:num_requests_waiting{engine="模型"} 1`, "engine=模型"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			families, fault, err := scanned(p, []byte(c.lines+"\n"))
			if err != nil || fault != "" {
				t.Fatalf("%v %s", err, fault)
			}
			i := slices.IndexFunc(p.families, func(f family) bool { return f.name == "vllm:num_requests_waiting" })
			if got := families[i][c.want]; len(families[i]) != 1 || len(got) != 1 || got[0] != 1 {
				t.Errorf("got %v", families[i])
			}
		})
	}
}

// TestTheMemoryOfPagesIsBounded: an engine that invents series at every scrape
// must not fill the picker.
func TestTheMemoryOfPagesIsBounded(t *testing.T) {
	p := vllm(t)
	sc := newScratch(p)
	for round := range 12 {
		var page strings.Builder
		for i := range maxSeries {
			fmt.Fprintf(&page, "vllm:num_requests_waiting{engine=\"%d-%d\"} 1\n", round, i)
		}
		if err := p.scan([]byte(page.String()), sc, true); err != nil {
			t.Fatal(err)
		}
		if len(sc.samples) != maxSeries {
			t.Fatalf("%d samples of round %d", len(sc.samples), round)
		}
	}
	if most := maxKnown + maxSeries; len(sc.known) > most || len(sc.places) > 2*most {
		t.Errorf("%d series and %d places are remembered, want at most %d", len(sc.known), len(sc.places), most)
	}
	if sc.knownText > maxKnownText+maxSeries*64 {
		t.Errorf("%d bytes of series are remembered", sc.knownText)
	}
}

// TestAPageIsNotKept: the collector reads the next page into the same memory.
func TestAPageIsNotKept(t *testing.T) {
	p := vllm(t)
	page := bytes.Clone(load(t, "vllm.prom"))
	s, err := p.Read(page, Input{At: laterThanEveryPage})
	if err != nil {
		t.Fatal(err)
	}
	before := sayAll(s)
	for i := range page {
		page[i] = 'x'
	}
	if sayAll(s) != before {
		t.Error("readings changed with the memory of the page")
	}
	again, err := p.Read(load(t, "vllm.prom"), Input{At: laterThanEveryPage})
	if err != nil || sayAll(again) != before {
		t.Errorf("the same page is read differently after it was overwritten: %v", err)
	}
}

// Work grows with the page and not with its square: these took minutes when each
// name was looked for among those before it. The numbers are what a page of 8 MiB
// has room for.
func TestPagesOfManyNamesAreReadInOneGo(t *testing.T) {
	p := vllm(t)
	var models, cards strings.Builder
	for i := range maxSeries {
		fmt.Fprintf(&models, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m%d\"} 1\n", i, i)
		fmt.Fprintf(&models, "vllm:kv_cache_usage_perc{engine=\"%d\",model_name=\"m%d\"} 0.5\n", i, i)
		fmt.Fprintf(&models, "vllm:cache_config_info{engine=\"%d\",kv_cache_size_tokens=\"16\"} 1\n", i)
	}
	s, err := p.Read([]byte(models.String()), Input{At: second})
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Invalid || !strings.Contains(r.Detail.Reasons[0], "ambiguous") {
		t.Errorf("%+v", r)
	}
	for i := range 200_000 {
		fmt.Fprintf(&cards, `{"id":"m%d","owned_by":"o%d"},`, i%maxNames, i)
	}
	page := []byte(`{"data":[` + strings.TrimSuffix(cards.String(), ",") + `]}`)
	if got, whole := Owners(page); whole || len(got) != maxOwners {
		t.Errorf("%d owners, want %d", len(got), maxOwners)
	}
	var list modelList
	if err := list.decode(page); err != nil || len(list.base.reading().Detail.Names) != maxNames {
		t.Errorf("%d names, %v", len(list.base.reading().Detail.Names), err)
	}
}

func TestAPageOfMoreSeriesThanAReplicaHasIsRefused(t *testing.T) {
	p := vllm(t)
	var page strings.Builder
	for _, f := range p.families {
		for i := range maxSeries {
			fmt.Fprintf(&page, "%s{engine=\"%d\"} 1\n", f.name, i)
		}
	}
	if s, err := p.Read([]byte(page.String()), Input{At: second}); s != nil || !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, %v, want %v", s, err, ErrTooLarge)
	}
}

// The parser is made by its constructor: its zero value refuses names with colons,
// or panics.
func TestM11_NamesWithColonsAreParsed(t *testing.T) {
	s := readPageOf(t, "vllm", "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"a:b\"} 3\n", Input{At: noon})
	wantValue(t, s, telemetry.QueueDepth, 3)
}

// An engine that answers in OpenMetrics, asked for or not, says the same: with
// exemplars, units, times in seconds, creation times and an end.
func TestM19_OpenMetricsSaysTheSameAsText(t *testing.T) {
	const text = `# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 4
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0"} 1000
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} %d
vllm:time_to_first_token_seconds_count{engine="0"} %d
vllm:time_to_first_token_seconds_sum{engine="0"} %v
`
	const open = `# TYPE vllm:num_requests_waiting gauge
# UNIT vllm:num_requests_waiting requests
vllm:num_requests_waiting{engine="0"} 4.0 1788264030.5
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 1000.0
vllm:generation_tokens_created{engine="0"} 1.78e9
# TYPE vllm:time_to_first_token_seconds histogram
# UNIT vllm:time_to_first_token_seconds seconds
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} %d # {trace_id="a}b \" # {"} 0.05 1788264030.123
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} %d # {} 0.5
vllm:time_to_first_token_seconds_count{engine="0"} %d
vllm:time_to_first_token_seconds_sum{engine="0"} %v
# EOF
`
	for name, page := range map[string]string{"text": text, "OpenMetrics": open} {
		s := grownPages(t, "vllm", fmt.Sprintf(page, 1, 2, 2, 0.5), fmt.Sprintf(page, 3, 6, 6, 2.5))
		wantValue(t, s, telemetry.QueueDepth, 4)
		wantValue(t, s, telemetry.GenerationThroughput, 0)
		if d := s.Readings[telemetry.TTFT].Detail.Distribution; d == nil || d.Count != 4 || d.Mean != 0.5 {
			t.Errorf("%s: %+v, %s", name, d, reasonsOf(s, telemetry.TTFT))
		}
	}
}
