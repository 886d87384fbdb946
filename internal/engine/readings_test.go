package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

const second = telemetry.Instant(time.Second)

func vllm(t testing.TB) *Profile {
	t.Helper()
	return defaults(t).Profile("vllm")
}

func load(t testing.TB, name string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func mustRead(t testing.TB, page string, models ...string) *telemetry.Snapshot {
	t.Helper()
	s, err := vllm(t).Read([]byte(page), Input{At: 100 * second, Models: models})
	if err != nil {
		t.Fatalf("the page is refused: %v", err)
	}
	return s
}

// say puts a reading in one line: a value, with the hottest rank and a doubt
// where there is one, or the state and the reasons.
func say(f telemetry.Field, r *telemetry.Reading) string {
	words := ""
	if r.Detail != nil {
		words = strings.Join(r.Detail.Reasons, "; ")
	}
	if r.Recorded != telemetry.Fresh {
		return fmt.Sprintf("%s, %s: %s", r.Support, r.Recorded, words)
	}
	v := strconv.FormatFloat(r.Value, 'f', -1, 64)
	if f.Kind() == telemetry.Bool {
		v = strconv.FormatBool(r.Value != 0)
	}
	if r.Detail.Max != nil {
		v += " max " + strconv.FormatFloat(*r.Detail.Max, 'f', -1, 64)
	}
	if r.Quality < 1 {
		v += fmt.Sprintf(" at %.1f: %s", r.Quality, words)
	}
	return v
}

func checkReadings(t *testing.T, s *telemetry.Snapshot, want map[string]string) {
	t.Helper()
	for name, words := range want {
		f, ok := telemetry.ParseField(name)
		if !ok {
			t.Fatalf("%s is not a field", name)
		}
		if got := say(f, &s.Readings[f]); got != words {
			t.Errorf("%s\n got  %s\n want %s", name, got, words)
		}
	}
}

// TestMoreFormsOfAPage adds to the forms that every page is read in against its
// expectation.
func TestMoreFormsOfAPage(t *testing.T) {
	forms := map[string]func(string) string{
		"page joined with itself": func(page string) string { return strings.TrimRight(page, "\n") + "\n" + page },
		"lines indented, tabs": func(page string) string {
			return strings.ReplaceAll(strings.ReplaceAll(page, "\nvllm:num", "\n \tvllm:num"), "} ", "}\t")
		},
		"types of a proxy": func(page string) string {
			return strings.NewReplacer(" gauge\n", " untyped\n", " counter\n", " unknown\n").Replace(page)
		},
		"timestamps": func(page string) string {
			all := lines(page)
			for i, line := range all {
				if !isComment(line) {
					all[i] = strings.TrimRight(line, "\n") + " 1798761600000\n"
				}
			}
			return strings.Join(all, "")
		},
	}
	pages, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	set := defaults(t)
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			for _, path := range pages {
				page := string(load(t, filepath.Base(path)))
				p, err := set.Detect([]byte(page))
				if err != nil {
					continue // an exporter's
				}
				read := func(page string) string {
					s, err := p.Read([]byte(page), Input{At: laterThanEveryPage})
					if err != nil {
						t.Fatalf("%s: %v", path, err)
					}
					return sayAll(s)
				}
				if got, want := read(form(page)), read(page); got != want {
					t.Errorf("%s\n got  %s\n want %s", path, got, want)
				}
			}
		})
	}
}

// sayAll puts every reading in a line of its own.
func sayAll(s *telemetry.Snapshot) string {
	var all strings.Builder
	for f := range telemetry.NumFields {
		fmt.Fprintf(&all, "%s %s\n", f, say(f, &s.Readings[f]))
	}
	return all.String()
}

// minimal is a page with one value for each load field.
const minimal = `# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
`

func TestABadValueSpoilsItsFieldAlone(t *testing.T) {
	const waiting = `vllm:num_requests_waiting{engine="0",model_name="m"} `
	const usage = `vllm:kv_cache_usage_perc{engine="0",model_name="m"} `
	cases := []struct{ name, old, now, field, want string }{
		{"NaN", waiting + "2", waiting + "NaN", "queueDepth", "value NaN"},
		{"signed nan", waiting + "2", waiting + "-nan", "queueDepth", "value NaN"},
		{"plus nan", waiting + "2", waiting + "+NaN", "queueDepth", "value NaN"},
		{"plus infinity", waiting + "2", waiting + "+Inf", "queueDepth", "value +Inf"},
		{"minus infinity", waiting + "2", waiting + "-Inf", "queueDepth", "value -Inf"},
		{"negative", waiting + "2", waiting + "-5", "queueDepth", "value -5"},
		{"beyond floats", waiting + "2", waiting + "1e999", "queueDepth", "value +Inf"},
		{"a word", waiting + "2", waiting + "none", "queueDepth", "does not parse"},
		{"no value", waiting + "2", waiting, "queueDepth", "does not parse"},
		{"an open label", waiting + "2", `vllm:num_requests_waiting{engine="0,model_name=x} 2`, "queueDepth", "does not parse"},
		{"a label twice", waiting + "2", `vllm:num_requests_waiting{engine="0",engine="1"} 2`, "queueDepth", "given twice"},
		{"percent", usage + "0.25", usage + "87.5", "kvCacheUtilization", "want 0 to 1"},
		{"a hexadecimal number", waiting + "2", waiting + "0x2", "queueDepth", "does not parse"},
		{"digits with underscores", waiting + "2", waiting + "1_000", "queueDepth", "does not parse"},
		{"a word after the value", waiting + "2", waiting + "2 x", "queueDepth", "does not parse"},
		{"more than a value and a time", waiting + "2", waiting + "2 1700000000000 3", "queueDepth", "does not parse"},
		{"more than rounding above one", usage + "0.25", usage + "1.002", "kvCacheUtilization", "want 0 to 1"},
		{"a little below zero", usage + "0.25", usage + "-0.01", "kvCacheUtilization", "want 0 to 1"},
		{"two values of one series", waiting + "2", waiting + "2\n" + waiting + "9", "queueDepth", "duplicate"},
		{"sum beyond floats", waiting + "2", waiting + "1.7e308\n" + `vllm:num_requests_waiting{engine="1"} 1.7e308`, "queueDepth", "what 2 series say together is beyond any number"},
	}
	want := map[string]string{"queueDepth": "2", "activeRequests": "3", "kvCacheUtilization": "0.25 max 0.25"}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := mustRead(t, strings.Replace(minimal, c.old, c.now, 1))
			for name, words := range want {
				f, _ := telemetry.ParseField(name)
				r := &s.Readings[f]
				got := say(f, r)
				if name != c.field {
					if got != words {
						t.Errorf("%s is %s, want %s", name, got, words)
					}
					continue
				}
				if r.Recorded != telemetry.Invalid || r.Support != telemetry.Supported || !strings.Contains(got, c.want) {
					t.Errorf("%s is %s, want invalid with %q", name, got, c.want)
				}
			}
		})
	}
}

func TestABadLineGivesTheSameReadingsWhereverItStands(t *testing.T) {
	lines := strings.SplitAfter(minimal, "\n")
	lines = lines[1 : len(lines)-1]
	for _, bad := range []string{
		"vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} -nan\n",
		"vllm:kv_cache_usage_perc{engine=\"0\n",
	} {
		rest := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.HasPrefix(l, "vllm:kv") })
		var first string
		for at := range len(rest) + 1 {
			s := mustRead(t, strings.Join(slices.Insert(slices.Clone(rest), at, bad), ""))
			var all []string
			for f := range telemetry.NumFields {
				all = append(all, say(f, &s.Readings[f]))
			}
			got := strings.Join(all, "\n")
			if first == "" {
				first = got
			}
			if got != first {
				t.Errorf("%q at line %d gives other readings:\n%s\nthan at the top:\n%s", bad, at, got, first)
			}
			if s.Readings[telemetry.KVCacheUtilization].Recorded != telemetry.Invalid || s.Readings[telemetry.QueueDepth].Value != 2 {
				t.Errorf("%q at line %d: %s", bad, at, got)
			}
		}
	}
}

func TestRoundingAboveOneIsOne(t *testing.T) {
	for _, v := range []string{"1.0000005", "1.0001", "1.001"} {
		checkReadings(t, mustRead(t, "vllm:kv_cache_usage_perc "+v+"\n"), map[string]string{"kvCacheUtilization": "1 max 1"})
	}
}

func TestRanksOfAReplica(t *testing.T) {
	cases := []struct {
		name, page string
		want       map[string]string
	}{
		{"counts are summed, the idle rank first",
			"vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 40\n",
			map[string]string{"queueDepth": "40"}},
		{"counts are summed, the idle rank last",
			"vllm:num_requests_waiting{engine=\"1\"} 40\nvllm:num_requests_waiting{engine=\"0\"} 0\n",
			map[string]string{"queueDepth": "40"}},
		{"no rank needs to be number 0",
			"vllm:num_requests_waiting{engine=\"6\"} 5\nvllm:num_requests_waiting{engine=\"7\"} 1\n",
			map[string]string{"queueDepth": "6"}},
		{"one bad rank spoils the sum",
			"vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} NaN\n",
			map[string]string{"queueDepth": "supported, invalid: vllm:num_requests_waiting: value NaN: want a finite number of at least 0"}},
		{"utilisation is weighted by capacity",
			"vllm:kv_cache_usage_perc{engine=\"0\"} 0.8\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.2\n" +
				"vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"3000\"} 1\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"1000\"} 1\n",
			map[string]string{"kvCacheUtilization": "0.65 max 0.8", "kvCacheCapacity": "4000"}},
		{"utilisation is a plain mean if one rank does not tell its capacity",
			"vllm:kv_cache_usage_perc{engine=\"0\"} 0.75\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n" +
				"vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"3000\"} 1\n",
			map[string]string{"kvCacheUtilization": "0.5 max 0.75"}},
		{"a sum over a rank that says nothing is missing",
			"vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"3000\"} 1\nvllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"None\"} 1\n",
			map[string]string{"kvCacheCapacity": "supported, missing: label kv_cache_size_tokens of vllm:cache_config_info is None; vllm:cache_config_info has no label num_gpu_blocks"}},
		{"the repeated number of blocks counts once",
			"vllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"60\",effective_attention_block_size=\"8\",block_size=\"4\"} 1\n" +
				"vllm:cache_config_info{engine=\"1\",num_gpu_blocks=\"60\",effective_attention_block_size=\"8\",block_size=\"4\"} 1\n",
			map[string]string{"kvCacheCapacity": "480", "kvBlockSize": "8"}},
		{"ranks must agree on a constant",
			"vllm:cache_config_info{engine=\"0\",block_size=\"8\"} 1\nvllm:cache_config_info{engine=\"1\",block_size=\"16\"} 1\n",
			map[string]string{"kvBlockSize": "supported, invalid: vllm:cache_config_info: 8 on one series and 16 on another, want the same on all, or combine to say what becomes of them"}},
		{"no blocks yet is not a capacity of zero",
			"vllm:cache_config_info{num_gpu_blocks=\"0\",block_size=\"16\"} 1\n",
			map[string]string{"kvCacheCapacity": "supported, missing: vllm:cache_config_info has no label kv_cache_size_tokens; vllm:cache_config_info has no label effective_attention_block_size; vllm:cache_config_info says 0: not known yet"}},
		{"a label that is no number is invalid",
			"vllm:cache_config_info{block_size=\"auto\",enable_prefix_caching=\"yes\"} 1\n",
			map[string]string{
				"kvBlockSize":        "supported, invalid: vllm:cache_config_info: label block_size is \"auto\", want a number or None",
				"prefixCacheEnabled": "supported, invalid: vllm:cache_config_info: label enable_prefix_caching is \"yes\", want True or False"}},
		{"asleep only if no rank is awake",
			"vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 1\n",
			map[string]string{"sleeping": "false"}},
		{"asleep when all ranks are",
			"vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 1\n",
			map[string]string{"sleeping": "true"}},
		{"processes of one rank count once, the largest",
			"vllm:kv_cache_usage_perc{engine=\"0\",pid=\"7\"} 0.1\nvllm:kv_cache_usage_perc{engine=\"0\",pid=\"8\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\",pid=\"9\"} 0.3\n",
			map[string]string{"kvCacheUtilization": "0.4 max 0.5"}},
		{"the new name of a gauge wins",
			"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.3\n",
			map[string]string{"kvCacheUtilization": "0.3 max 0.3"}},
		{"an old name does not stand in for an invalid new one",
			"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc NaN\n",
			map[string]string{"kvCacheUtilization": "supported, invalid: vllm:kv_cache_usage_perc: value NaN: want 0 to 1"}},
		{"the longest names do not match by their beginning",
			"vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9\nvllm:num_requests_waiting_created 1.7e9\n",
			map[string]string{"queueDepth": "unknown, missing: vllm:num_requests_waiting is not on the page"}},
		{"a start time beyond the calendar is invalid",
			"vllm:x 1\nprocess_start_time_seconds 1e300\n",
			map[string]string{"processStart": "supported, invalid: value 1e+300: want seconds since the Unix epoch"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { checkReadings(t, mustRead(t, c.page), c.want) })
	}
}

func TestModelsOfOnePageAreKeptApart(t *testing.T) {
	const page = `vllm:num_requests_running{model_name="a"} 3
vllm:num_requests_waiting{model_name="a"} 1
vllm:num_requests_running{model_name="b"} 5
vllm:num_requests_waiting{model_name="b"} 7
vllm:kv_cache_usage_perc{model_name="a"} 0.5
vllm:cache_config_info{block_size="16"} 1
`
	const ambiguous = "supported, invalid: ambiguous: 2 models on the page, and it is not known which the endpoint serves"
	cases := []struct {
		name   string
		models []string
		want   map[string]string
	}{
		{"the first", []string{"a"}, map[string]string{"activeRequests": "3", "queueDepth": "1", "kvCacheUtilization": "0.5 max 0.5", "kvBlockSize": "16"}},
		{"the second, and nothing of the first", []string{"b"}, map[string]string{"activeRequests": "5", "queueDepth": "7", "kvBlockSize": "16",
			"kvCacheUtilization": "supported, missing: vllm:kv_cache_usage_perc has no series for the models that the endpoint serves; vllm:gpu_cache_usage_perc is not on the page"}},
		{"an alias beside the name", []string{"alias", "b"}, map[string]string{"activeRequests": "5", "queueDepth": "7"}},
		{"both", []string{"a", "b"}, map[string]string{"activeRequests": "8", "queueDepth": "8"}},
		{"neither", []string{"c"}, map[string]string{
			"activeRequests": "supported, missing: vllm:num_requests_running has no series for the models that the endpoint serves"}},
		{"not known", nil, map[string]string{"activeRequests": ambiguous, "queueDepth": ambiguous, "kvBlockSize": "16"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { checkReadings(t, mustRead(t, page, c.models...), c.want) })
	}
	t.Run("a single model needs no name that fits", func(t *testing.T) {
		checkReadings(t, mustRead(t, minimal, "another"), map[string]string{"queueDepth": "2"})
	})
}

func TestPagesThatAreRefusedAsAWhole(t *testing.T) {
	cases := []struct {
		name, page string
		want       error
	}{
		{"JSON list", "[]", ErrNotText},
		{"JSON object", "\n {\"a\":1}", ErrNotText},
		{"HTML", "<!DOCTYPE html><html>", ErrNotText},
		{"gzip", "\x1f\x8b\x08\x00", ErrNotText},
		{"empty", "", ErrEmpty},
		{"blank", "\n\n", ErrEmpty},
		{"blank lines of Windows", "\r\n\r\n", ErrEmpty},
		{"a mark of OpenMetrics alone", "# EOF\n", ErrNoEngineFamilies},
		{"the page of another engine", "sglang:num_running_reqs 1\n", ErrNoEngineFamilies},
		{"the pages of several workers in one", minimal + `vllm:num_requests_swapped{worker_addr="10.0.0.1:8000"} 0` + "\n" + `vllm:num_requests_running{worker_addr="10.0.0.1:8000"} 0` + "\n", ErrJoined},
		{"only the client library's families", "python_info 1\nprocess_start_time_seconds 1.7e9\n", ErrNoEngineFamilies},
		{"a prefix without a name", "vllm: 3\n", ErrNoEngineFamilies},
		{"a text", "404 page not found", ErrTruncated},
		{"cut in a name", minimal + "vllm:num_req", ErrTruncated},
		{"cut in a label", minimal + `vllm:num_requests_swapped{engine="0`, ErrTruncated},
		{"cut before a value", minimal + `vllm:num_requests_swapped{engine="0"} `, ErrTruncated},
		{"cut in a line nobody reads", minimal + `python_info{a="b"`, ErrTruncated},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := vllm(t).Read([]byte(c.page), Input{At: second})
			if !errors.Is(err, c.want) || s != nil {
				t.Errorf("got %v and a snapshot %t, want %v", err, s != nil, c.want)
			}
		})
	}
}

func TestAFamilyWithTooMuchOnItIsInvalid(t *testing.T) {
	var many strings.Builder
	for i := range maxSeries + 1 {
		fmt.Fprintf(&many, "vllm:num_requests_waiting{engine=\"%d\"} 1\n", i)
	}
	checkReadings(t, mustRead(t, many.String()+"vllm:num_requests_running 3\n"), map[string]string{
		"queueDepth":     "supported, invalid: vllm:num_requests_waiting: more than 4096 series",
		"activeRequests": "3",
	})
	huge := `vllm:cache_config_info{hf_config="` + strings.Repeat("x", maxLine) + `",block_size="16"} 1` + "\n"
	checkReadings(t, mustRead(t, huge+minimal), map[string]string{
		"kvBlockSize": "supported, invalid: vllm:cache_config_info: a series of more than 1048576 bytes",
		"queueDepth":  "2",
	})
}

func TestAReadingSaysWhereItIsFromAndHowLongItLives(t *testing.T) {
	p := vllm(t)
	s, err := p.Read([]byte(minimal+"vllm:cache_config_info{block_size=\"16\"} 1\n"), Input{At: 100 * second, Path: "/engine/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	r := &s.Readings[telemetry.QueueDepth]
	if got, want := *r.Detail.Source, (telemetry.Source{Path: "/engine/metrics", Metric: "vllm:num_requests_waiting", Rule: "sum over engine"}); got != want {
		t.Errorf("source %+v, want %+v", got, want)
	}
	if r.Provenance != telemetry.Measured || r.Quality != 1 || r.ObservedAt != 100*second {
		t.Errorf("provenance %v, quality %v, observed at %v", r.Provenance, r.Quality, r.ObservedAt)
	}
	for _, c := range []struct {
		lease time.Duration
		field telemetry.Field
		want  telemetry.Instant
	}{
		{0, telemetry.QueueDepth, 102 * second},
		{time.Second, telemetry.QueueDepth, 102 * second},
		{16 * time.Second, telemetry.QueueDepth, 116 * second},
		{16 * time.Second, telemetry.KVBlockSize, 160 * second},
	} {
		p.Extend(s, c.lease)
		if got := s.Readings[c.field].ExpiresAt; got != c.want {
			t.Errorf("%s with a lease of %v expires at %v, want %v", c.field, c.lease, got.Time(), c.want.Time())
		}
	}
	if got := s.Readings[telemetry.TTFT].ExpiresAt; got != 0 {
		t.Errorf("a reading that was never made expires at %v", got)
	}
}

// rulesProfile has one field for each way in which series become a value.
const rulesProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: rules
detect: {prefixes: ["r:"]}
pages: [{path: /metrics, format: prometheus}]
labels: {model: model, placeholders: [none], ranks: [rank], lowest: [tp, ep], drop: [pid]}
valid: {metric: "r:ready", because: not ready}
fields:
  queueDepth:
    unit: requests
    sources:
    - {metric: "r:waiting", where: {kind: a, priority: ""}, combine: sum, plus: [{metric: "r:held", combine: sum}, {metric: "r:kept", combine: max}]}
    - {metric: "r:waiting", where: {kind: "*"}, combine: max, quality: 0.5, because: a guess}
    off:
    - {metric: "r:info", label: stats, is: "off", because: statistics are off}
    - {metric: "r:done_total", above: 5, because: no queue is shown}
  kvCacheUtilization:
    unit: util
    sources: [{metric: "r:kv", combine: mean, weight: {metric: "r:blocks"}}]
  kvCacheCapacity:
    unit: tokens
    absent: unsupported
    sources: [{metric: "r:blocks", combine: sum, times: {metric: "r:block"}, scale: 0.5}]
  memoryPressure:
    unit: util
    sources: [{metric: "r:used", combine: sum, over: [{metric: "r:used", combine: sum}, {metric: "r:free", combine: sum}]}]
  sleeping:
    sources: [{metric: "r:state", where: {state: awake}, combine: max, invert: true}]
  adaptersMax:
    unit: count
    sources: [{metric: "r:lora", label: most, combine: newest}]
  adaptersWaiting:
    sources: [{metric: "r:lora", label: waiting, combine: newest, differs: running}]
  engineVersion:
    sources: [{metric: "r:info", label: version}]
  power:
    unit: W
    sources: [{metric: "r:watts", where: {model: gpu}, combine: sum}]
  processStart:
    unit: time
    sources: [{metric: "r:start"}]
`

func TestTheRulesOfTheProfileLanguage(t *testing.T) {
	p := parse(t, rulesProfile)
	cases := []struct {
		name, page, field, want string
		models                  []string
	}{
		// where, plus, off.
		{name: "only the series with a label's value", page: `r:waiting{kind="a"} 3|r:waiting{kind="b"} 50`, field: "queueDepth", want: "3"},
		{name: "only the series without a label", page: `r:waiting{kind="a"} 3|r:waiting{kind="a",priority="1"} 50|r:waiting{kind="a",x="1",priority=""} 50`, field: "queueDepth",
			want: "53"},
		{name: "any value of a label, by another source", page: `r:waiting{kind="b"} 3|r:waiting{kind="c"} 4|r:waiting 9`, field: "queueDepth", want: "4 at 0.5: a guess"},
		{name: "no source fits", page: "r:waiting 9", field: "queueDepth", want: "unknown, missing: r:waiting has no series where kind=a without priority; r:waiting has no series with kind"},
		{name: "what is added is added if it is there", page: `r:waiting{kind="a"} 3|r:held{x="1"} 2|r:held{x="2"} 1|r:kept{x="1"} 4|r:kept{x="2"} 5`, field: "queueDepth", want: "11"},
		{name: "what is added alone is no value", page: "r:held 2", field: "queueDepth", want: "unknown, missing: r:waiting is not on the page"},
		{name: "what is added and wrong spoils the sum", page: `r:waiting{kind="a"} 3|r:held -2`, field: "queueDepth", want: "supported, invalid: r:held: value -2: want a finite number of at least 0"},
		{name: "off by a label", page: `r:info{stats="off"} 1`, field: "queueDepth", want: "disabled, missing: statistics are off"},
		{name: "not off by another word", page: `r:info{stats="on"} 1`, field: "queueDepth", want: "unknown, missing: r:waiting is not on the page"},
		{name: "off by what was counted", page: `r:done_total{x="1"} 3|r:done_total{x="2"} 3`, field: "queueDepth", want: "disabled, missing: no queue is shown"},
		{name: "not off by too little", page: "r:done_total 5", field: "queueDepth", want: "unknown, missing: r:waiting is not on the page"},
		{name: "not off by what makes no sense", page: "r:done_total 9|r:done_total 8", field: "queueDepth", want: "unknown, missing: r:waiting is not on the page"},
		{name: "not off where there is a value", page: `r:waiting{kind="a"} 0|r:info{stats="off"} 1`, field: "queueDepth", want: "0"},

		// mean and weight.
		{name: "a mean by weight", page: `r:kv{rank="0"} 0.8|r:kv{rank="1"} 0.2|r:blocks{rank="0"} 30|r:blocks{rank="1"} 10`, field: "kvCacheUtilization", want: "0.65 max 0.8"},
		{name: "a mean without weights", page: `r:kv{rank="0"} 0.75|r:kv{rank="1"} 0.25`, field: "kvCacheUtilization", want: "0.5 max 0.75"},
		{name: "a mean by weights that are 0", page: `r:kv{rank="0"} 0.75|r:kv{rank="1"} 0.25|r:blocks{rank="0"} 0|r:blocks{rank="1"} 0`, field: "kvCacheUtilization", want: "0.5 max 0.75"},
		{name: "a weight that is wrong", page: `r:kv{rank="0"} 0.75|r:kv{rank="1"} 0.25|r:blocks{rank="0"} NaN|r:blocks{rank="1"} 10`, field: "kvCacheUtilization", want: "0.5 max 0.75"},
		{name: "weights of the model that is served, the other's first", models: []string{"b"}, field: "kvCacheUtilization", want: "0.65 max 0.8",
			page: `r:blocks{model="a",rank="0"} 10|r:blocks{model="a",rank="1"} 30|r:kv{model="b",rank="0"} 0.8|r:kv{model="b",rank="1"} 0.2|r:blocks{model="b",rank="0"} 30|r:blocks{model="b",rank="1"} 10`},

		// times, over, scale.
		{name: "a product", page: `r:blocks{rank="0"} 30|r:blocks{rank="1"} 10|r:block{rank="0"} 16|r:block{rank="1"} 16`, field: "kvCacheCapacity", want: "320"},
		{name: "factors that differ", page: `r:blocks 30|r:block{rank="0"} 16|r:block{rank="1"} 32`, field: "kvCacheCapacity", want: "supported, invalid: r:block: 16 on one series and 32 on another, want the same on all, or combine to say what becomes of them"},
		{name: "no factor", page: "r:blocks 30", field: "kvCacheCapacity", want: "unsupported, missing: r:block is not on the page"},
		{name: "a product of 0", page: "r:blocks 0|r:block 16", field: "kvCacheCapacity", want: "supported, missing: r:blocks says 0: not known yet"},
		{name: "a share", page: `r:used{x="1"} 20|r:used{x="2"} 10|r:free{x="1"} 60|r:free{x="2"} 30`, field: "memoryPressure", want: "0.25"},
		{name: "a share of 0", page: "r:used 0|r:free 0", field: "memoryPressure", want: "supported, missing: r:used says 0: not known yet"},
		{name: "a share of what is not there", page: "r:used 20", field: "memoryPressure", want: "unknown, missing: r:free is not on the page"},

		// yes or no.
		{name: "asleep only where none is awake", page: `r:state{state="awake",rank="0"} 0|r:state{state="awake",rank="1"} 1|r:state{state="off",rank="0"} 1`, field: "sleeping", want: "false"},
		{name: "asleep", page: `r:state{state="awake",rank="0"} 0|r:state{state="awake",rank="1"} 0`, field: "sleeping", want: "true"},
		{name: "another state says nothing", page: `r:state{state="off"} 1`, field: "sleeping", want: "unknown, missing: r:state has no series where state=awake"},

		// newest, differs, texts.
		{name: "the newest series", page: `r:lora{most="4"} 100|r:lora{most="8"} 200`, field: "adaptersMax", want: "8"},
		{name: "the newest series, first on the page", page: `r:lora{most="8"} 200|r:lora{most="4"} 100`, field: "adaptersMax", want: "8"},
		{name: "a newest that is no time", page: `r:lora{most="8"} 3e9`, field: "adaptersMax",
			want: "unsupported, missing: r:lora: 3e+09 is no time: several processes add up there, and the largest is not the newest"},
		{name: "a newest that is wrong", page: `r:lora{most="8"} -1|r:lora{most="4"} 3`, field: "adaptersMax", want: "supported, invalid: r:lora: value -1: want a time"},
		{name: "names", page: `r:lora{waiting="b, a,,b",running="c"} 1`, field: "adaptersWaiting", want: "names a,b"},
		{name: "no names is a list", page: `r:lora{waiting="",running="c"} 1`, field: "adaptersWaiting", want: "names "},
		{name: "no label is none", page: `r:lora{running="c"} 1`, field: "adaptersWaiting", want: "unknown, missing: r:lora has no label waiting"},
		{name: "names that are those of another label", page: `r:lora{waiting="a",running="a"} 1`, field: "adaptersWaiting",
			want: "unsupported, missing: label waiting of r:lora says the same as running: it does not tell them apart"},
		{name: "a name that does not print", page: "r:lora{waiting=\"a\u200bb\"} 1", field: "adaptersWaiting", want: "supported, invalid: a name in label waiting of r:lora has characters that do not print"},
		{name: "a text", page: `r:info{version="1.2",rank="0"} 1|r:info{version="1.2",rank="1"} 1`, field: "engineVersion", want: "text 1.2"},
		{name: "texts that differ", page: `r:info{version="1.2",rank="0"} 1|r:info{version="1.3",rank="1"} 1`, field: "engineVersion", want: "supported, invalid: label version of r:info differs between series"},
		{name: "no text", page: "r:info 1", field: "engineVersion", want: "unknown, missing: r:info has no label version"},

		// drop and lowest.
		{name: "of processes the largest", page: `r:blocks{pid="1"} 30|r:blocks{pid="2"} 40|r:block 1`, field: "kvCacheCapacity", want: "20"},
		{name: "a process with a bad value, last", page: `r:kv{pid="1"} 0.5|r:kv{pid="2"} +Inf`, field: "kvCacheUtilization", want: "invalid"},
		{name: "a process with a bad value, first", page: `r:kv{pid="2"} +Inf|r:kv{pid="1"} 0.5`, field: "kvCacheUtilization", want: "invalid"},
		{name: "a process with no number", page: `r:kv{pid="2"} NaN|r:kv{pid="1"} 0.5`, field: "kvCacheUtilization", want: "invalid"},
		{name: "the lowest rank", page: `r:waiting{kind="a",tp="1"} 9|r:waiting{kind="a",tp="0"} 3`, field: "queueDepth", want: "3"},
		{name: "the lowest rank by the first label, then by the next", page: `r:waiting{kind="a",tp="1",ep="0"} 9|r:waiting{kind="a",tp="0",ep="2"} 8|r:waiting{kind="a",tp="0",ep="1"} 3`, field: "queueDepth", want: "3"},
		{name: "ranks are numbers", page: `r:waiting{kind="a",tp="10"} 9|r:waiting{kind="a",tp="2"} 3`, field: "queueDepth", want: "3"},
		{name: "a rank that is no number comes last", page: `r:waiting{kind="a",tp="x"} 9|r:waiting{kind="a",tp="2"} 3`, field: "queueDepth", want: "3"},
		{name: "the lowest rank within each rank that is summed", page: `r:waiting{kind="a",rank="0",tp="0"} 1|r:waiting{kind="a",rank="0",tp="1"} 1|r:waiting{kind="a",rank="1",tp="2"} 4|r:waiting{kind="a",rank="1",tp="3"} 4`, field: "queueDepth", want: "5"},
		{name: "the largest process of the lowest rank", page: `r:waiting{kind="a",tp="0",pid="1"} 1|r:waiting{kind="a",tp="1",pid="2"} 9|r:waiting{kind="a",tp="0",pid="3"} 2`, field: "queueDepth", want: "2"},

		// Models.
		{name: "a placeholder names no model", page: `r:waiting{kind="a",model="none"} 3|r:held{model="m"} 1`, field: "queueDepth", want: "4"},
		{name: "a family whose source names the model is not asked which", page: `r:watts{model="gpu"} 300|r:watts{model="cpu"} 50|r:waiting{kind="a",model="m"} 3`, field: "queueDepth", want: "3"},
		{name: "and gives its value", page: `r:watts{model="gpu"} 300|r:watts{model="cpu"} 50|r:waiting{kind="a",model="m"} 3`, field: "power", want: "300"},

		// valid.
		{name: "a page that is valid by its own word", page: `r:ready 1|r:waiting{kind="a"} 0`, field: "queueDepth", want: "0"},
		{name: "a page that is not", page: `r:ready 0|r:waiting{kind="a"} 0`, field: "queueDepth", want: "unknown, missing: not ready"},
		{name: "a page whose word makes no sense", page: `r:ready NaN|r:waiting{kind="a"} 0`, field: "queueDepth", want: "unknown, missing: not ready"},
		{name: "a page that does not say", page: `r:waiting{kind="a"} 0`, field: "queueDepth", want: "0"},
		{name: "its process has started all the same", page: "r:ready 0|r:start 1.7e9", field: "processStart", want: "1700000000"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			page := strings.ReplaceAll(c.page, "|", "\n") + "\n"
			s, err := p.Read([]byte(page), Input{At: 1800000000 * second, Models: c.models})
			if err != nil {
				t.Fatal(err)
			}
			checkPossible(t, s)
			f, ok := telemetry.ParseField(c.field)
			if !ok {
				t.Fatalf("%s is not a field", c.field)
			}
			r := &s.Readings[f]
			got := say(f, r)
			switch {
			case c.want == "invalid":
				got = r.Recorded.String()
			case r.Recorded == telemetry.Fresh && f.Kind() == telemetry.Names:
				got = "names " + strings.Join(r.Detail.Names, ",")
			case r.Recorded == telemetry.Fresh && f.Kind() == telemetry.Text:
				got = "text " + r.Detail.Text
			}
			if got != c.want {
				t.Errorf("%s\n got  %s\n want %s", c.field, got, c.want)
			}
		})
	}
}

// A page that is passed on says when its values are from. They are as old as that.
func TestAValueIsAsOldAsItsTimestamp(t *testing.T) {
	at := scriptBegins.Add(time.Hour)
	for stamp, want := range map[int64]telemetry.State{
		int64(at.Add(-time.Minute)) / 1e6: telemetry.Stale,
		int64(at.Add(-time.Second)) / 1e6: telemetry.Fresh,
		// What is said of the future is no evidence.
		int64(at.Add(time.Hour)) / 1e6: telemetry.Fresh,
		0:                              telemetry.Stale,
	} {
		page := fmt.Sprintf("vllm:num_requests_waiting{engine=\"0\"} 3 %d\nvllm:num_requests_waiting{engine=\"1\"} 4 %d\n", stamp, int64(at)/1e6)
		s := readPageOf(t, "vllm", page, Input{At: at})
		if r := &s.Readings[telemetry.QueueDepth]; r.State(at) != want || r.Value != 7 {
			t.Errorf("timestamp %d: %s, %v; want %s, 7", stamp, r.State(at), r.Value, want)
		}
	}
}

func TestACounterIsNoGauge(t *testing.T) {
	s := readPageOf(t, "vllm", "# TYPE vllm:num_requests_waiting counter\nvllm:num_requests_waiting 43000\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n", Input{At: noon})
	if r := &s.Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Invalid || !strings.Contains(r.Detail.Reasons[0], "is a counter") {
		t.Errorf("%+v %v", r, r.Detail)
	}
	wantValue(t, s, telemetry.ActiveRequests, 3)
}
