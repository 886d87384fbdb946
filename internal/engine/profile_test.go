package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

const small = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: small
detect: {prefixes: ["small:"]}
pages:
- {path: /metrics, format: prometheus, ttl: 3s}
- {path: /models, format: openai-models, every: 1m}
labels: {model: model, ranks: [rank]}
fields:
  queueDepth:
    unit: requests
    sources:
    - {metric: "small:waiting", combine: sum}
`

func parse(t testing.TB, text string) *Profile {
	t.Helper()
	p, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func defaults(t testing.TB) *Set {
	t.Helper()
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestAnEngineIsAddedByAFileAlone(t *testing.T) {
	set, err := Load(fstest.MapFS{"small.yaml": {Data: []byte(small)}, "README.md": {Data: []byte("not a profile")}})
	if err != nil {
		t.Fatal(err)
	}
	page := []byte("small:waiting{rank=\"0\"} 4\nsmall:waiting{rank=\"1\"} 5\n")
	p, err := set.Detect(page)
	if err != nil || p != set.Profile("small") {
		t.Fatalf("detected %v, %v", p, err)
	}
	s, err := p.Read(page, Input{At: second})
	if err != nil {
		t.Fatal(err)
	}
	r := s.Readings[telemetry.QueueDepth]
	if r.Value != 9 || r.ExpiresAt != 4*second || r.Detail.Source.Rule != "sum over rank" {
		t.Errorf("%+v, rule %q", r, r.Detail.Source.Rule)
	}
}

func TestFilesThatAreNoProfilesStopTheLoading(t *testing.T) {
	half, _, _ := strings.Cut(small, "    sources:")
	_, err := Load(fstest.MapFS{
		"a.yaml": {Data: []byte(small)}, "b.yaml": {Data: []byte("kind: Pod")}, "c.yaml/x": {Data: []byte(small)},
		"d.yaml": {Mode: fs.ModeNamedPipe}, "e.yaml": {Data: []byte(half)}, "f.yaml": {}, "g.yml": {Data: []byte("x")},
		"h.yaml": {Data: []byte(small + strings.Repeat("#", 256<<10))},
	})
	const want = `b.yaml:1: apiVersion is missing
b.yaml:1: kind: "Pod", want one of EngineProfile
b.yaml:1: name is missing
b.yaml:1: pages is missing
b.yaml:1: neither detect.prefixes nor detect.families, want at least one by which the page is recognised
c.yaml: not a regular file, want one
d.yaml: not a regular file, want one
e.yaml:10: fields.queueDepth: sources is missing
f.yaml:1: the document is empty, want a profile
h.yaml: 262145 bytes or more, want at most 262144`
	if err == nil || err.Error() != want {
		t.Errorf("\n got  %v\n want %s", err, want)
	}
}

// unreadable is a file system on which reading fails.
type unreadable struct{ fs.FS }

func (f unreadable) Open(name string) (fs.File, error) {
	if name == "." {
		return f.FS.Open(name)
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestAFileThatCannotBeReadIsNamed(t *testing.T) {
	const want = "a.yaml: permission denied, want a file that can be read"
	if _, err := Load(unreadable{fstest.MapFS{"a.yaml": {Data: []byte(small)}}}); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestWhatADirectoryOfProfilesMayCostIsBounded(t *testing.T) {
	files := fstest.MapFS{}
	for i := range 65 {
		files[fmt.Sprintf("e%02d.yaml", i)] = &fstest.MapFile{Data: []byte("x")}
	}
	if _, err := Load(files); err == nil || err.Error() != "65 files that end in .yaml, want at most 64" {
		t.Errorf("of 65 files: %v", err)
	}
	files = fstest.MapFS{}
	for i := range 17 {
		text := strings.NewReplacer("name: small", fmt.Sprintf("name: small%02d", i), "small:", fmt.Sprintf("small%02d:", i)).Replace(small)
		files[fmt.Sprintf("e%02d.yaml", i)] = &fstest.MapFile{Data: []byte(text + strings.Repeat("#", 256<<10-len(text)))}
	}
	if _, err := Load(files); err == nil || err.Error() != "e16.yaml: more than 4194304 bytes with the files before it, want at most that" {
		t.Errorf("of 17 files of 256 KiB: %v", err)
	}
	delete(files, "e16.yaml")
	if set, err := Load(files); err != nil || len(set.Profiles()) != 16 {
		t.Errorf("of 16 files of 256 KiB: %v", err)
	}
}

const smallDigest = "small@sha256:8f6c8e0aca47"

func TestTheDigestFollowsTheText(t *testing.T) {
	// From: sha256sum of the text above.
	if got := parse(t, small).Digest(); got != smallDigest {
		t.Errorf("digest %q, want %q", got, smallDigest)
	}
	if parse(t, small).Digest() == parse(t, small+"# another comment\n").Digest() {
		t.Error("another text has the same digest")
	}
}

// TestWordsForPeopleAreOfTheTextAndChangeNoReading: needs, as comments and reasons
// are, is part of what the digest tells apart, and of nothing else.
func TestWordsForPeopleAreOfTheTextAndChangeNoReading(t *testing.T) {
	plain := parse(t, small)
	said := parse(t, strings.Replace(small, "ttl: 3s", "ttl: 3s, needs: start it with -m", 1))
	if plain.Metrics().Needs != "" || said.Metrics().Needs != "start it with -m" {
		t.Errorf("needs %q and %q", plain.Metrics().Needs, said.Metrics().Needs)
	}
	if said.Digest() == plain.Digest() {
		t.Error("another text has the same digest")
	}
	const page = "small:waiting{rank=\"0\"} 4\n"
	sameReadings(t, readAs(t, said, page, Input{}), readAs(t, plain, page, Input{}))
	folded := parse(t, strings.Replace(small, "- {path: /metrics, format: prometheus, ttl: 3s}",
		"- path: /metrics\n  format: prometheus\n  needs: >\n    Start it\n    with -m.\n", 1))
	if got := folded.Metrics().Needs; got != "Start it with -m." {
		t.Errorf("over several lines of the file it needs %q, want one line", got)
	}
}

func TestAProfileKeepsItsText(t *testing.T) {
	text := []byte(small)
	p := parse(t, small)
	got := p.Text()
	got[0] = 'X'
	text[0] = 'X'
	if string(p.Text()) != small {
		t.Error("the text was changed through a slice that was given away")
	}
}

func TestWhatAProfileSaysOfItsEngine(t *testing.T) {
	p := parse(t, whole)
	if p.Name() != "whole" || !slices.Equal(p.Aliases(), []string{"all"}) || p.Exporter() {
		t.Errorf("name %q, aliases %q, exporter %t", p.Name(), p.Aliases(), p.Exporter())
	}
	if !p.Never("/drain") || p.Never("/metrics") {
		t.Error("/drain must never be asked, and /metrics may be")
	}
	if !p.Owns("whole") || p.Owns("vllm") || p.Owns("") {
		t.Error("whole is its owner, and no other")
	}
	if got, want := p.Access(), (Access{TokenFile: "/etc/token", CAFile: "/etc/ca.pem", ServerName: "engine"}); got != want {
		t.Errorf("access %+v, want %+v", got, want)
	}
	m := p.Metrics()
	if m.Path != "/metrics" || m.Format != Prometheus || m.Accept != "text/plain" || m.Scheme != "http" || m.Port != 9000 || m.TTL != 3*time.Second || m.Every != 0 || m.Needs != "a flag: -m" {
		t.Errorf("metrics page %+v", m)
	}
	type asked struct {
		path   string
		every  time.Duration
		fields []telemetry.Field
	}
	for i, want := range []asked{
		{"/models", time.Minute, []telemetry.Field{telemetry.ServedModels, telemetry.ContextLimit}},
		{"/health", 10 * time.Second, []telemetry.Field{telemetry.Health}},
		{"/info", time.Minute, []telemetry.Field{telemetry.EngineVersion, telemetry.MaxConcurrency}},
	} {
		page := p.SlowPages()[i]
		if got := (asked{page.Path, page.Every, page.Reads()}); got.path != want.path || got.every != want.every || !slices.Equal(got.fields, want.fields) {
			t.Errorf("page %d is %+v, want %+v", i+1, got, want)
		}
	}
}

// TestRulesInWords: a source is explained to people by what it says of itself.
func TestRulesInWords(t *testing.T) {
	p := parse(t, whole)
	const page = "w:ready{kind=\"page\"} 1\nw:waiting{kind=\"a\"} 1\nw:kv 0.5\nw:blocks 3\nw:block 16\nw:info{caching=\"True\"} 1\n" +
		"w:hits 1\nw:asked 2\nw:ttft_sum 1\nw:ttft_count 1\nw:ttft_bucket{le=\"+Inf\"} 1\nw:busy 3\nw:done 1\nw:lora{waiting=\"x\"} 1\n"
	s, err := p.Read([]byte(page), Input{At: 100 * second})
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[telemetry.Field][2]string{
		telemetry.QueueDepth:          {"w:waiting", "sum over rank where kind=a, plus w:held sum over rank"},
		telemetry.KVCacheUtilization:  {"w:kv", "mean over rank weighted by w:blocks"},
		telemetry.KVCacheCapacity:     {"w:blocks", "sum over rank, times w:block one series, times 2"},
		telemetry.PrefixCacheEnabled:  {"w:info", "label caching, one series, true where 0"},
		telemetry.PrefixCacheHitRatio: {"w:hits", "sum over rank, growth over 30s, divided by w:asked"},
		telemetry.TTFT:                {"w:ttft", "sum over rank, distribution over 30s"},
		telemetry.E2E:                 {"w:busy", "sum over rank, growth over 30s divided by that of w:done"},
		telemetry.AdaptersWaiting:     {"w:lora", "label waiting, newest series"},
	} {
		src := s.Readings[f].Detail.Source
		if src == nil || src.Metric != want[0] || src.Rule != want[1] || src.Path != "/metrics" {
			t.Errorf("%s\n got  %+v\n want %s: %s", f, src, want[0], want[1])
		}
	}
}

func TestEachPageIsRecognisedByItsOwnProfileAlone(t *testing.T) {
	set := defaults(t)
	pages, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	seen := map[string]bool{}
	for _, path := range pages {
		name := strings.TrimPrefix(filepath.Base(path), "real-")
		want, exporter := "", false
		for _, p := range set.Profiles() {
			for _, word := range append([]string{p.Name()}, p.Aliases()...) {
				if strings.HasPrefix(name, word) {
					want, exporter = p.Name(), p.Exporter()
				}
			}
		}
		seen[want] = true
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := set.Detect(page)
		switch {
		case exporter:
			if !errors.Is(err, ErrNoEngineFamilies) {
				t.Errorf("%s, an exporter's: detected %v, %v", name, p, err)
			}
		case err != nil || p.Name() != want:
			t.Errorf("%s: detected %v, %v, want %s", name, p, err, want)
		}
	}
	for _, p := range set.Profiles() {
		if !seen[p.Name()] {
			t.Errorf("no page of %s", p.Name())
		}
	}
}

func TestDetection(t *testing.T) {
	set := defaults(t)
	cases := []struct {
		name, page, want string
		err              error
	}{
		{"a family", "vllm:x 1\n", "vllm", nil},
		{"another spelling", "vllm_x 1\n", "vllm", nil},
		{"a comment alone", "# TYPE vllm:x gauge\n", "vllm", nil},
		{"an indented line", "\t vllm:x 1", "vllm", nil},
		{"CRLF", "\r\nvllm:x 1\r\n", "vllm", nil},
		{"words about a family", "# a comment on vllm:x\nother 1\n", "", ErrNoEngineFamilies},
		{"a prefix in a label", "x{a=\"vllm:\"} 1\n", "", ErrNoEngineFamilies},
		{"a prefix without a name", "vllm: 1\n", "", ErrNoEngineFamilies},
		{"the families of release 1.1, without a prefix", "request_success_total 1\ne2e_request_latency_seconds_count 1\ntime_to_first_token_seconds_count 1\ntime_per_output_token_seconds_count 1\nrequest_queue_time_seconds_count 1\n", "trtllm-serve", nil},
		{"all but one of them", "request_success_total 1\ne2e_request_latency_seconds_count 1\ntime_to_first_token_seconds_count 1\ntime_per_output_token_seconds_count 1\n", "", ErrNoEngineFamilies},
		{"names that begin like them", "request_success_total_x 1\ne2e_request_latency_seconds_count 1\ntime_to_first_token_seconds_count 1\ntime_per_output_token_seconds_count 1\nrequest_queue_time_seconds_count 1\n", "", ErrNoEngineFamilies},
		{"two engines", "vllm:x 1\nsglang:num_running_reqs 1\n", "", ErrSeveralEngines},
		{"JSON", "{\"vllm:x\":1}", "", ErrNotText},
		{"HTML", "<html>vllm:x 1</html>", "", ErrNotText},
		{"nothing", "", "", ErrEmpty},
		{"blank lines", " \r\n\t\n", "", ErrEmpty},
		{"the client library's families alone", "python_info 1\nprocess_start_time_seconds 1.7e9\n", "", ErrNoEngineFamilies},
		{"an exporter's", "DCGM_FI_DEV_GPU_UTIL 1\n", "", ErrNoEngineFamilies},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, err := set.Detect([]byte(c.page))
			got := ""
			if p != nil {
				got = p.Name()
			}
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("detected %q, %v, want %q, %v", got, err, c.want, c.err)
			}
		})
	}
	if _, err := set.Detect([]byte("vllm:x 1\nsglang:y 1\n")); err == nil || !strings.HasSuffix(err.Error(), ": sglang and vllm") {
		t.Errorf("several engines: %v, want their names", err)
	}
}

// TestFamiliesOfDetectionHaveBothSpellings: what holds for prefixes.
func TestFamiliesOfDetectionHaveBothSpellings(t *testing.T) {
	p := parse(t, strings.Replace(small, `prefixes: ["small:"]`, `families: ["small:waiting", "small:running"]`, 1))
	for _, page := range []string{"small:waiting 3\nsmall:running 1\n", "small_waiting 3\nsmall_running 1\n"} {
		s, err := p.Read([]byte(page), Input{At: second})
		if err != nil || s.Readings[telemetry.QueueDepth].Value != 3 {
			t.Errorf("%q: %v", page, err)
		}
	}
}

func TestProfilesThatCannotBeToldApartAreRefused(t *testing.T) {
	named := func(name, alias, detect string) *Profile {
		text := strings.NewReplacer("name: small", "name: "+name+"\naliases: ["+alias+"]", `{prefixes: ["small:"]}`, detect).Replace(small)
		p, err := Parse(name+"-"+alias+".yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// reading is a profile that reads another family than small does.
	reading := func(p *Profile, family string) *Profile {
		p, err := Parse(p.File(), []byte(strings.Replace(string(p.Text()), "small:waiting", family, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	cases := []struct {
		name string
		a, b *Profile
		want string
	}{
		{"one name", named("a", "x", "{prefixes: [a_]}"), named("a", "y", "{prefixes: [b_]}"), `a-y.yaml:3: name: "a" is a name of profile "a" (a-x.yaml:3), want one of its own`},
		{"an alias that is a name", named("a", "x", "{prefixes: [a_]}"), named("b", "a", "{prefixes: [b_]}"), `b-a.yaml:4: aliases[0]: "a" is a name of profile "a" (a-x.yaml:3), want one of its own`},
		{"one alias", named("a", "x", "{prefixes: [a_]}"), named("b", "x", "{prefixes: [b_]}"), `b-x.yaml:4: aliases[0]: "x" is a name of profile "a" (a-x.yaml:3), want one of its own`},
		{"one prefix", named("a", "x", `{prefixes: ["p:"]}`), named("b", "y", `{prefixes: ["p:"]}`), `b-y.yaml:5: detect.prefixes[0]: "p:" overlaps with "p:" of profile "a" (a-x.yaml:3): a page could be of either, want a prefix of its own`},
		{"a prefix of a prefix", named("a", "x", "{prefixes: [p_]}"), named("b", "y", "{prefixes: [p_q_]}"), `b-y.yaml:5: detect.prefixes[0]: "p_q_" overlaps with "p_" of profile "a" (a-x.yaml:3): a page could be of either, want a prefix of its own`},
		{"a prefix in the other spelling", named("a", "x", `{prefixes: ["p:"]}`), named("b", "y", "{prefixes: [p_]}"), `b-y.yaml:5: detect.prefixes[0]: "p_" overlaps with "p_" of profile "a" (a-x.yaml:3): a page could be of either, want a prefix of its own`},
		{"the same families", named("a", "x", "{families: [f, g]}"), named("b", "y", "{families: [g, f]}"),
			`b-y.yaml:5: detect.families: a page of one could be recognised as that of the other, which is profile "a" (a-x.yaml:3): want families of its own`},
		{"a family with the other's prefix", named("a", "x", "{prefixes: [p_]}"), named("b", "y", "{families: [p_f]}"),
			`b-y.yaml:5: detect.families: a page of one could be recognised as that of the other, which is profile "a" (a-x.yaml:3): want families of its own`},
		{"a prefix of what the other reads", named("a", "x", "{prefixes: [p_]}"), reading(named("b", "y", "{prefixes: [q_]}"), "p_waiting"),
			`b-y.yaml:14: fields.queueDepth.sources[0].metric: "p_waiting" begins with p_, by which profile "a" (a-x.yaml:3) is recognised: want families of its own`},
		{"a prefix of what the first reads", reading(named("a", "x", "{prefixes: [p_]}"), "q_waiting"), named("b", "y", "{prefixes: [q_]}"),
			`b-y.yaml:5: detect.prefixes[0]: "q_" is how q_waiting begins, which profile "a" (a-x.yaml:3) reads: want a prefix of its own`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range [][]*Profile{{c.a, c.b}, {c.b, c.a}} {
				if _, err := NewSet(order...); err == nil || err.Error() != c.want {
					t.Errorf("\n got  %v\n want %s", err, c.want)
				}
			}
		})
	}
	// Each that does not go with those before it is one error.
	_, err := NewSet(named("a", "x", "{prefixes: [p_]}"), named("b", "x", "{prefixes: [p_]}"), named("c", "a", "{prefixes: [r_]}"))
	const want = `b-x.yaml:4: aliases[0]: "x" is a name of profile "a" (a-x.yaml:3), want one of its own
c-a.yaml:4: aliases[0]: "a" is a name of profile "a" (a-x.yaml:3), want one of its own`
	if err == nil || err.Error() != want || len(Faults(err)) != 2 {
		t.Errorf("\n got  %v\n want %s", err, want)
	}
	if _, err := NewSet(named("a", "x", "{families: [f, g]}"), named("b", "y", "{families: [h, g]}")); err != nil {
		t.Errorf("families of which no page need have both lists: %v", err)
	}
}

func TestProfilesOfASetAreOrderedByName(t *testing.T) {
	var names, engines []string
	set := defaults(t)
	for _, p := range set.Profiles() {
		names = append(names, p.Name())
	}
	for _, p := range set.Engines() {
		engines = append(engines, p.Name())
	}
	if want := []string{"amd-gpu", "atom", "dcgm", "sglang", "triton-tensorrt-llm", "trtllm-serve", "vllm"}; !slices.Equal(names, want) {
		t.Errorf("profiles %q, want %q", names, want)
	}
	if want := []string{"atom", "sglang", "triton-tensorrt-llm", "trtllm-serve", "vllm"}; !slices.Equal(engines, want) {
		t.Errorf("engines %q, want %q", engines, want)
	}
	if p := set.Profile("triton"); p == nil || p.Name() != "triton-tensorrt-llm" {
		t.Errorf("triton is an alias of %v", p)
	}
	if p := set.Profile("other"); p != nil {
		t.Errorf("other is %v", p)
	}
}

func TestAProfileOfTheSameNameReplacesTheOneThatIsBuiltIn(t *testing.T) {
	set := defaults(t)
	own := parse(t, strings.Replace(small, "name: small", "name: vllm", 1))
	added := parse(t, small)
	other, err := NewSet(own)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := set.With(other)
	if err != nil {
		t.Fatal(err)
	}
	if joined.Profile("vllm") != own || joined.Profile("sglang") != set.Profile("sglang") || len(joined.Profiles()) != len(set.Profiles()) {
		t.Error("want the other's vllm, and all else as it was")
	}
	if !joined.Replaces("vllm") || joined.Replaces("sglang") || set.Replaces("vllm") || other.Replaces("vllm") {
		t.Error("the joined set alone has another vllm than the one it was joined from")
	}
	if own.BuiltIn() || !set.Profile("vllm").BuiltIn() || own.File() != "test.yaml" {
		t.Errorf("a profile from %s is built in, or that of the defaults is not", own.File())
	}
	// It is known still when more is joined, and a set joined with itself replaces nothing.
	if again, err := joined.With(other); err != nil || !again.Replaces("vllm") {
		t.Errorf("joined twice: %v", err)
	}
	if same, err := set.With(set); err != nil || same.Replaces("vllm") {
		t.Errorf("joined with itself: %v", err)
	}
	if set.Profile("vllm") == own {
		t.Error("the set itself was changed")
	}
	if other, err = NewSet(added); err != nil {
		t.Fatal(err)
	}
	if joined, err = set.With(other); err != nil || joined.Profile("small") != added || joined.Profile("vllm") != set.Profile("vllm") {
		t.Errorf("a new name: %v", err)
	}
	clash := parse(t, strings.Replace(small, "name: small", "name: small\naliases: [triton]", 1))
	if other, err = NewSet(clash); err != nil {
		t.Fatal(err)
	}
	const want = `test.yaml:4: aliases[0]: "triton" is a name of the built-in profile "triton-tensorrt-llm", want one of its own`
	if _, err = set.With(other); err == nil || err.Error() != want {
		t.Errorf("an alias of two\n got  %v\n want %s", err, want)
	}
}

func TestAnEngineThatSaysNothingOfItselfIsSwitchedOff(t *testing.T) {
	p := vllm(t)
	s := p.Silent(7 * second)
	if s.Engine != "vllm" || s.Profile != p.Digest() || s.ScrapedAt != 7*second || s.Incarnation != 1 {
		t.Errorf("%q, %q, scraped at %v, incarnation %d", s.Engine, s.Profile, s.ScrapedAt, s.Incarnation)
	}
	checkReadings(t, s, map[string]string{
		"queueDepth":   "disabled, missing: the metrics page has no family of the engine: its statistics are switched off",
		"ttft":         "disabled, missing: the metrics page has no family of the engine: its statistics are switched off",
		"power":        "unsupported, missing: not exported by vLLM",
		"servedModels": "unknown, missing: not read",
	})
}
