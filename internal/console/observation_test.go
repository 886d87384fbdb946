package console

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// everyKind is an observation with a field of each kind and of each state.
func everyKind() *v1alpha1.Observation {
	o := &v1alpha1.Observation{
		Version: v1alpha1.Version, Kind: "Observation", Engine: "vllm", Profile: "vllm@sha256:0123456789ab", Order: "normal",
		Replica: v1alpha1.Replica{Name: "r1", Address: "10.0.0.1:8000", EngineVersion: "0.32.0", ProcessStart: ptr(at.Add(-time.Hour))},
		Fields:  (*telemetry.Snapshot)(nil).Document(telemetry.At(at)),
	}
	set := func(field string, r v1alpha1.Reading) {
		r.Unit = o.Fields[field].Unit
		if r.State == "" {
			r.State, r.Support, r.Quality, r.ObservedAt = v1alpha1.Fresh, v1alpha1.Supported, 1, ptr(at.Add(-1234*time.Millisecond))
		}
		o.Fields[field] = r
	}
	set("queueDepth", v1alpha1.Reading{Value: 12.0, ExpiresAt: ptr(at.Add(2766 * time.Millisecond)), Source: &v1alpha1.Source{Path: "/metrics", Metric: "vllm:num_requests_waiting", Rule: "sum over engine"}})
	set("kvCacheUtilization", v1alpha1.Reading{Value: 0.51236, Max: ptr(0.75), Reasons: []string{"frozen", "old"}})
	set("sleeping", v1alpha1.Reading{Value: false})
	set("servedModels", v1alpha1.Reading{Value: []string{"a", "b", "c", "d", "e", "f"}})
	set("adaptersLoaded", v1alpha1.Reading{Value: []string{}})
	set("adaptersWaiting", v1alpha1.Reading{Value: []string{strings.Repeat("long", 100)}})
	set("kvCacheCapacity", v1alpha1.Reading{Value: 1.23456789e7})
	set("energyPerToken", v1alpha1.Reading{Value: 0.0000123})
	set("ttft", v1alpha1.Reading{Value: v1alpha1.Distribution{Mean: 0.25, P50: ptr(0.2), P90: ptr(0.5), P99: ptr(1.5), Count: 1234}})
	set("e2e", v1alpha1.Reading{Value: v1alpha1.Distribution{Mean: 2, Count: 3}})
	set("engineVersion", v1alpha1.Reading{Value: "0.32.0"})
	set("processStart", v1alpha1.Reading{Value: at.Add(-time.Hour)})
	set("activeRequests", v1alpha1.Reading{State: v1alpha1.Stale, Support: v1alpha1.Supported, Quality: 0.1, Value: 7.0, ObservedAt: ptr(at.Add(-time.Minute)), ExpiresAt: ptr(at.Add(-57 * time.Second))})
	set("power", v1alpha1.Reading{State: v1alpha1.Invalid, Support: v1alpha1.Supported, Reasons: []string{"value -1: want a finite number of at least 0"}})
	set("ready", v1alpha1.Reading{State: v1alpha1.Missing, Support: v1alpha1.Unsupported, Reasons: []string{"no page for it"}})
	set("prefixCacheHitRatio", v1alpha1.Reading{State: v1alpha1.Missing, Support: v1alpha1.Disabled, Reasons: []string{"prefix caching is off"}})
	return o
}

func TestAnObservationShowsEachKindOfFieldInEachState(t *testing.T) {
	failing := everyKind()
	failing.Declared, failing.Excluded, failing.ScrapeError = "sglang", "asleep_or_unhealthy", "status_404"
	for name, o := range map[string]*v1alpha1.Observation{
		"observation.txt": everyKind(),
		"observation-failing.txt": {
			Engine: failing.Engine, Declared: failing.Declared, Excluded: failing.Excluded, ScrapeError: failing.ScrapeError,
			Replica: v1alpha1.Replica{Name: "saved.prom"}, Fields: map[string]v1alpha1.Reading{},
		},
	} {
		var out bytes.Buffer
		if err := Observation(&out, at, o); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.Bytes())
	}
}

// parsed is a profile; text is what it has besides its head.
func parsed(t *testing.T, name, text string) *engine.Profile {
	t.Helper()
	p, err := engine.Parse(name+".yaml", []byte("apiVersion: berth.dev/v1alpha1\nkind: EngineProfile\nname: "+name+
		"\ndetect: {prefixes: [\""+name+"_\"]}\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const acmeText = `pages:
- {path: /metrics, format: prometheus, needs: acme shows its page with --stats alone.}
- {path: /health, format: status, field: health, every: 10s}
fields:
  queueDepth: {unit: requests, sources: [{metric: acme_waiting}]}
  activeRequests: {unit: requests, sources: [{metric: acme_running}]}
unsupported:
  ready: no page tells it
`

// rowOf is the row of a field in a table, its cells apart.
func rowOf(t *testing.T, table, field string) []string {
	t.Helper()
	for line := range strings.Lines(table) {
		if cells := regexp.MustCompile(`  +`).Split(strings.TrimSpace(line), -1); cells[0] == field {
			return cells
		}
	}
	t.Fatalf("no row of %s in\n%s", field, table)
	return nil
}

func TestAFieldWithoutASourceIsToldFromOneThatWasNotReadYet(t *testing.T) {
	p := parsed(t, "acme", acmeText)
	s, err := p.Read([]byte("acme_waiting 3\n"), engine.Input{At: telemetry.At(at)})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Observation(v1alpha1.Replica{Name: "r1"}, telemetry.At(at))
	for field, want := range map[string][2]string{
		"power":          {"missing, no source", "the profile does not name it"},
		"ready":          {"missing, unsupported", "no page tells it"},
		"health":         {"missing", "not read"},
		"activeRequests": {"missing", "acme_running is not on the page"},
	} {
		var out bytes.Buffer
		if err := (View{Profile: p}).Observation(&out, at, &o); err != nil {
			t.Fatal(err)
		}
		cells := rowOf(t, out.String(), field)
		if cells[1] != want[0] || cells[len(cells)-1] != want[1] {
			t.Errorf("%s: %q, want %q", field, cells, want)
		}
	}
	// An exporter may fill what the profile of an engine does not name.
	o.Fields["power"] = v1alpha1.Reading{State: v1alpha1.Fresh, Support: v1alpha1.Supported, Value: 512.5, Unit: "W", Quality: 1}
	var out bytes.Buffer
	if err := (View{Profile: p}).Observation(&out, at, &o); err != nil {
		t.Fatal(err)
	}
	if cells := rowOf(t, out.String(), "power"); cells[1] != "fresh" || cells[2] != "512.5 W" {
		t.Errorf("power of an exporter: %q", cells)
	}
}

func TestTheWideTableHasTheRule(t *testing.T) {
	var out bytes.Buffer
	if err := (View{Wide: true}).Observation(&out, at, everyKind()); err != nil {
		t.Fatal(err)
	}
	golden(t, "observation-wide.txt", out.Bytes())
}

func TestWhenAReadingExpiresIsToldInTimeFromNow(t *testing.T) {
	for left, want := range map[time.Duration]string{
		2766 * time.Millisecond: "in 2.8s", 20 * time.Millisecond: "in 0s", -3240 * time.Millisecond: "3.2s ago", time.Hour: "in 1h0m0s",
	} {
		if got := expiry(at, &v1alpha1.Reading{Value: 1.0, ExpiresAt: ptr(at.Add(left))}); got != want {
			t.Errorf("%s: %q, want %q", left, got, want)
		}
	}
	if got := expiry(at, &v1alpha1.Reading{ExpiresAt: &at}); got != "-" {
		t.Errorf("without a value: %q", got)
	}
}

// What is said of a page that cannot be read any more is of when it could.
func TestAPageThatFailsNowIsToldWithTheTimeOfTheLastOne(t *testing.T) {
	p := parsed(t, "acme", acmeText)
	s, err := p.Read([]byte("acme_waiting 3\n"), engine.Input{At: telemetry.At(at.Add(-11 * time.Minute))})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Observation(v1alpha1.Replica{Name: "r1"}, telemetry.At(at))
	// Another page and an exporter may have been read since.
	o.Fields["health"] = v1alpha1.Reading{State: v1alpha1.Fresh, Value: true, ObservedAt: ptr(at), Source: &v1alpha1.Source{Path: "/health", Metric: "status"}}
	o.Fields["power"] = v1alpha1.Reading{State: v1alpha1.Fresh, Value: 1.0, ObservedAt: ptr(at), Source: &v1alpha1.Source{Path: "/metrics", Metric: "GPU_POWER"}}
	head := func(v View) string {
		var out bytes.Buffer
		if err := v.Observation(&out, at, &o); err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(out.String(), "\n\n")
		return head
	}
	const want = "\nas of    11m0s ago: the last page that was read; what is said of it below, reasons too, is of then"
	if got := head(View{Profile: p}); strings.Contains(got, "as of") {
		t.Errorf("without a failure:\n%s", got)
	}
	o.ScrapeError = "refused"
	if got := head(View{Profile: p}); !strings.HasSuffix(got, want) {
		t.Errorf("with one:\n%s\nwant%s", got, want)
	}
	if got := head(View{}); strings.Contains(got, "as of") {
		t.Errorf("without the profile it is not known:\n%s", got)
	}
	o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Missing}
	if got := head(View{Profile: p}); strings.Contains(got, "as of") {
		t.Errorf("without a value of the page it is not known:\n%s", got)
	}
}

func TestAFailureIsToldByWhatTheProfileSays(t *testing.T) {
	acme, other := parsed(t, "acme", acmeText), parsed(t, "other", strings.Replace(strings.ReplaceAll(acmeText, "acme_", "other_"), ", needs: acme shows its page with --stats alone.", "", 1))
	base, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	own, err := engine.NewSet(acme, other)
	if err != nil {
		t.Fatal(err)
	}
	set, err := base.With(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		reason string
		set    *engine.Set
		p      *engine.Profile
		want   []string
		lacks  string
	}{
		{"one's own", "status_404", set, acme, []string{"acme shows its page with --stats alone."}, "SGLang"},
		{"one's own that needs nothing", "status_404", set, other, nil, "SGLang"},
		{"built in", "status_404", set, set.Profile("sglang"), []string{"--enable-metrics"}, "acme"},
		{"not known, with profiles of one's own", "no_engine_families", set, nil,
			[]string{"acme has its page at /metrics and is recognised by a family that begins with acme_. acme shows its page with --stats alone. other has its page"}, "SGLang"},
		{"not known, with the built-in ones", "status_404", base, nil, []string{"SGLang needs --enable-metrics"}, "acme"},
		{"not known, without any", "status_404", nil, nil, []string{"SGLang needs --enable-metrics"}, "acme"},
		{"a reason that no profile has to do with", "timeout", set, nil, []string{"The engine hangs"}, "acme"},
	} {
		got := FailureOf(tc.reason, tc.set, tc.p)
		if got.Meaning == "" || strings.Contains(got.Hint, tc.lacks) {
			t.Errorf("%s: %+v, which should say nothing of %s", tc.name, got, tc.lacks)
		}
		for _, want := range tc.want {
			if !strings.Contains(got.Hint, want) {
				t.Errorf("%s: %q, want %q", tc.name, got.Hint, want)
			}
		}
	}
}

func TestAPageThatSaysNothingOfLoadIsFollowedByWhatItNeeds(t *testing.T) {
	missing := v1alpha1.Reading{State: v1alpha1.Missing, Support: v1alpha1.SupportUnknown}
	silent := func(o *v1alpha1.Observation) {
		for _, f := range telemetry.LoadFields {
			o.Fields[f.String()] = missing
		}
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Observation)
		want   string
	}{
		"one field":   {func(o *v1alpha1.Observation) { o.Fields["queueDepth"] = missing }, "No value of queueDepth. SGLang shows"},
		"all of them": {silent, "No value of queueDepth, activeRequests, kvCacheUtilization. SGLang shows"},
		"switched off": {func(o *v1alpha1.Observation) {
			o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Missing, Support: v1alpha1.Disabled}
		}, "No value of queueDepth. SGLang shows"},
		"nothing missing": {func(*v1alpha1.Observation) {}, ""},
		"stale": {func(o *v1alpha1.Observation) {
			o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Stale, Value: 1.0}
		}, ""},
		"invalid, which has its reason": {func(o *v1alpha1.Observation) { o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Invalid} }, ""},
		"no source, of which nothing can be hoped": {func(o *v1alpha1.Observation) {
			o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Missing, Support: v1alpha1.Unsupported}
		}, ""},
		"a page that was not read, of which the failure tells": {func(o *v1alpha1.Observation) { silent(o); o.ScrapeError = "refused" }, ""},
		"an exporter":       {func(o *v1alpha1.Observation) { silent(o); o.Engine = "dcgm" }, ""},
		"an unknown engine": {func(o *v1alpha1.Observation) { silent(o); o.Engine = "unknown" }, ""},
	} {
		o := observation("r1", nil)
		o.Engine = "sglang"
		for _, f := range telemetry.LoadFields {
			r := o.Fields[f.String()]
			r.State = v1alpha1.Fresh
			o.Fields[f.String()] = r
		}
		tc.change(&o)
		var out bytes.Buffer
		if err := Observation(&out, at, &o); err != nil {
			t.Fatal(err)
		}
		_, note, _ := strings.Cut(out.String(), "\n\n")
		if _, note, _ = strings.Cut(note, "\n\n"); tc.want == "" && note != "" || !strings.HasPrefix(note, tc.want) {
			t.Errorf("%s: the note is %q, want %q", name, note, tc.want)
		}
	}
}

func TestNumbersAreShortAndNeverRoundToZero(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 0.5: "0.5", 0.123456: "0.1235", 999.99996: "1000", 12345.678: "12346", 0.00001: "1e-05", 2e15: "2000000000000000",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) is %q, want %q", v, got, want)
		}
	}
}

func TestNoStringOfAnObservationActsOnATerminal(t *testing.T) {
	values := []any{hostile, []string{hostile, hostile}, 1.0, nil}
	for _, value := range values {
		o := everyKind()
		o.Replica.Address = ""
		filled(reflect.ValueOf(o))
		for name, r := range o.Fields {
			r.Value, r.Unit = value, hostile
			r.State, r.Support = hostile, hostile
			r.Source = &v1alpha1.Source{Path: hostile, Metric: hostile, Rule: hostile}
			r.Reasons = []string{hostile, hostile}
			o.Fields[name] = r
		}
		o.Engine, o.Profile, o.Declared, o.Excluded, o.ScrapeError = hostile, hostile, hostile, hostile, hostile
		o.Replica.Name, o.Replica.EngineVersion = hostile, hostile
		var out bytes.Buffer
		if err := Observation(&out, at, o); err != nil {
			t.Fatal(err)
		}
		const head = 7 // replica, engine, declared, process, picks, failing, an empty line
		if lines, want := strings.Count(out.String(), "\n"), head+1+int(telemetry.NumFields); lines != want {
			t.Errorf("%d lines, want %d:\n%q", lines, want, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }) {
				t.Errorf("printed %q", line)
			}
		}
	}
}

func TestEveryReasonOfTheCollectorHasWords(t *testing.T) {
	text, err := os.ReadFile("../collect/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^//\t([a-z][a-z_]+)  +\S`).FindAllStringSubmatch(string(text), -1)
	if len(reasons) < 10 {
		t.Fatalf("%d reasons in the documentation of the collector, want its table", len(reasons))
	}
	for _, r := range reasons {
		switch reason := r[1]; reason {
		case "hot", "warm", "idle": // cadences
		case "panic": // a fault of Berth's own, for which there is nothing to advise
		default:
			if _, known := failures[reason]; !known {
				t.Errorf("%s has no words", reason)
			}
		}
	}
}

func TestFailuresSayWhatToDoAboutThem(t *testing.T) {
	for reason, f := range failures {
		if f.Meaning == "" {
			t.Errorf("%s has no meaning", reason)
		}
		if got := ScrapeFailure(reason, ""); got.Hint == "" {
			t.Errorf("%s has no hint", reason)
		}
	}
	for _, tc := range []struct{ reason, engine, want string }{
		{"status_404", "sglang", "--enable-metrics"},
		{"status_404", "trtllm-serve", "return_perf_metrics: true"},
		{"status_404", "atom", "v0.1.6-rc0"},
		{"no_engine_families", "vllm", "--disable-log-stats"},
		{"no_engine_families", "triton-tensorrt-llm", "llmapi"},
		{"status_404", "unknown", "--enable-metrics"},
		{"status_404", "", "return_perf_metrics"},
		{"not_text", "", "/prometheus/metrics"},
		{"refused", "triton-tensorrt-llm", "8002"},
		{"status_503", "vllm", "log of the engine"},
		{"status_401", "", "Keys are sent only to an engine that is named: --engine, or engine: in the pool."},
		{"status_403", "unknown", "Keys are sent only to an engine that is named"},
	} {
		if got := ScrapeFailure(tc.reason, tc.engine); !strings.Contains(got.Hint, tc.want) {
			t.Errorf("%s of %q: %q, want %q in it", tc.reason, tc.engine, got.Hint, tc.want)
		}
	}
	if got := ScrapeFailure("status_401", "vllm"); strings.Contains(got.Hint, "Keys are sent") {
		t.Errorf("of an engine that gets its key: %q", got.Hint)
	}
	if got := ScrapeFailure("status_404", "mine"); got.Hint != "" {
		t.Errorf("of an engine that is not built in: %q, want nothing of others", got.Hint)
	}
	if got := ScrapeFailure("panic", "vllm"); got.Meaning != "the page was not read" {
		t.Errorf("a reason without words: %q", got.Meaning)
	}
}

func TestEachBuiltInProfileSaysWhatItNeeds(t *testing.T) {
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range set.Profiles() {
		if Needs(p.Name()) == "" {
			t.Errorf("nothing is said of what %s needs", p.Name())
		}
	}
	for name := range needs {
		if p := set.Profile(name); p == nil || p.Exporter() {
			t.Errorf("needs of %q, which is no engine", name)
		}
	}
	for name := range exporterNeeds {
		if p := set.Profile(name); p == nil || !p.Exporter() {
			t.Errorf("needs of %q, which is no exporter", name)
		}
	}
}

func TestProfilesAreListedWithHowMuchTheyKnow(t *testing.T) {
	const first = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: first
aliases: [one, uno]
detect: {prefixes: ["first:"]}
pages: [{path: /metrics, format: prometheus, port: 8002, scheme: https}]
fields:
  queueDepth: {unit: requests, sources: [{metric: "first:q"}]}
  activeRequests: {unit: requests, absent: unsupported, sources: [{metric: "first:r"}]}
`
	const second = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: second
role: exporter
detect: {prefixes: ["second:"]}
pages: [{path: /gpu, format: prometheus}]
labels: {namespace: ns, pod: pod}
fields:
  power: {unit: W, sources: [{metric: "second:w"}]}
`
	var profiles []*engine.Profile
	for _, text := range []string{first, second} {
		p, err := engine.Parse("profile.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		profiles = append(profiles, p)
	}
	var out bytes.Buffer
	if err := Profiles(&out, profiles); err != nil {
		t.Fatal(err)
	}
	golden(t, "profiles.txt", out.Bytes())

	// One that takes the place of a built-in one says so, in the list and of a replica.
	p, err := engine.Parse("vllm.yaml", []byte(strings.ReplaceAll(second, "name: second", "name: vllm")))
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := Profiles(&out, []*engine.Profile{p}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "  replacement  ") || !strings.HasSuffix(text, "\nvllm is read by a profile of your own instead of the built-in one.\n") {
		t.Error(text)
	}
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	if got := OriginOf(set.Profile("vllm")); got != BuiltIn {
		t.Errorf("vLLM's own is %s", got)
	}
	for digest, want := range map[string]bool{p.Digest(): true, set.Profile("vllm").Digest(): false, "acme@sha256:0123456789ab": false, "": false} {
		if replaces(digest) != want {
			t.Errorf("%s takes the place of a built-in one: %t", digest, !want)
		}
	}
}
