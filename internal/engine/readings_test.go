package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
	set, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	return set.Profile("vllm")
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

// onPages is what a person reads on each page.
var onPages = []struct {
	page string
	want map[string]string
}{
	{"vllm.prom", map[string]string{
		"queueDepth":         "12",
		"activeRequests":     "37",
		"kvCacheUtilization": "0.6412 max 0.6412",
		"kvCacheCapacity":    "439360",
		"kvBlockSize":        "16",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "13.408203125 at 0.5: counts requests of the full context length, not max_num_seqs",
		"sleeping":           "false",
		"processStart":       "1788184120",
	}},
	{"vllm-idle.prom", map[string]string{
		"queueDepth":         "0",
		"activeRequests":     "0",
		"kvCacheUtilization": "0 max 0",
		"kvCacheCapacity":    "439360",
		"kvBlockSize":        "16",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "13.408203125 at 0.5: counts requests of the full context length, not max_num_seqs",
		"sleeping":           "false",
		"processStart":       "1788184120",
	}},
	{"vllm-dp2.prom", map[string]string{
		"queueDepth":         "15",
		"activeRequests":     "66",
		"kvCacheUtilization": "0.56435 max 0.6412",
		"kvCacheCapacity":    "878720",
		"kvBlockSize":        "16",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "26.81640625 at 0.5: counts requests of the full context length, not max_num_seqs",
		"sleeping":           "false",
		"processStart":       "unknown, missing: process_start_time_seconds is not on the page",
	}},
	{"vllm-transitional.prom", map[string]string{
		"queueDepth":         "12",
		"activeRequests":     "37",
		"kvCacheUtilization": "0.6412 max 0.6412",
		"kvCacheCapacity":    "439360 at 0.8: computed from block_size, which is too small for hybrid models",
		"kvBlockSize":        "16",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "unsupported, missing: vllm:cache_config_info has no label kv_cache_max_concurrency",
		"sleeping":           "unsupported, missing: vllm:engine_sleep_state is not on the page",
		"processStart":       "1788184120",
	}},
	{"vllm-old.prom", map[string]string{
		"queueDepth":         "12",
		"activeRequests":     "37",
		"kvCacheUtilization": "0.6412 max 0.6412",
		"kvCacheCapacity":    "supported, missing: vllm:cache_config_info has no label kv_cache_size_tokens; label num_gpu_blocks of vllm:cache_config_info is None",
		"kvBlockSize":        "16",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "unsupported, missing: vllm:cache_config_info has no label kv_cache_max_concurrency",
		"sleeping":           "unsupported, missing: vllm:engine_sleep_state is not on the page",
		"processStart":       "1788184120",
	}},
	{"real-vllm-0.32.0-loaded.prom", map[string]string{
		"queueDepth":         "8",
		"activeRequests":     "4",
		"kvCacheUtilization": "0.20512820512820518 max 0.20512820512820518",
		"kvCacheCapacity":    "5120",
		"kvBlockSize":        "128",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "2.5 at 0.5: counts requests of the full context length, not max_num_seqs",
		"sleeping":           "false",
		"processStart":       "1795972493.24",
	}},
	{"real-vllm-0.32.0-dp2-idle.prom", map[string]string{
		"queueDepth":         "supported, missing: vllm:num_requests_waiting has no sample",
		"activeRequests":     "supported, missing: vllm:num_requests_running has no sample",
		"kvCacheUtilization": "supported, missing: vllm:kv_cache_usage_perc has no sample; vllm:gpu_cache_usage_perc is not on the page",
		"kvCacheCapacity":    "7680",
		"kvBlockSize":        "128",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "3.75 at 0.5: counts requests of the full context length, not max_num_seqs",
		"sleeping":           "false",
		"processStart":       "unknown, missing: process_start_time_seconds is not on the page",
	}},
	{"real-vllm-0.9.1-loaded.prom", map[string]string{
		"queueDepth":         "3",
		"activeRequests":     "4",
		"kvCacheUtilization": "0.0013427734375 max 0.0013427734375",
		"kvCacheCapacity":    "1048576 at 0.8: computed from block_size, which is too small for hybrid models",
		"kvBlockSize":        "128",
		"prefixCacheEnabled": "true",
		"maxConcurrency":     "unsupported, missing: vllm:cache_config_info has no label kv_cache_max_concurrency",
		"sleeping":           "unsupported, missing: vllm:engine_sleep_state is not on the page",
		"processStart":       "1795974045.94",
	}},
}

// neverOnThePage is what holds for every vLLM page.
var neverOnThePage = map[string]string{
	"gpuUtilization": "unsupported, missing: not exported by vLLM",
	"memoryPressure": "unsupported, missing: device memory is not exported by vLLM",
	"power":          "unsupported, missing: not exported by vLLM",
	"energyPerToken": "unsupported, missing: not exported by vLLM",
	"ttft":           "unknown, missing: not read",
	"health":         "unknown, missing: not read",
	"servedModels":   "unknown, missing: not read",
	"contextLimit":   "unknown, missing: not read",
	"engineVersion":  "unknown, missing: not read",
}

func TestEachPageGivesWhatAPersonReadsOnIt(t *testing.T) {
	for _, c := range onPages {
		t.Run(c.page, func(t *testing.T) {
			s := mustRead(t, string(load(t, c.page)))
			checkReadings(t, s, c.want)
			checkReadings(t, s, neverOnThePage)
			if s.Engine != "vllm" || !strings.HasPrefix(s.Profile, "vllm@sha256:") || s.ScrapedAt != 100*second {
				t.Errorf("engine %q, profile %q, scraped at %v", s.Engine, s.Profile, s.ScrapedAt)
			}
		})
	}
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

func TestTheFormOfAPageDoesNotChangeItsReadings(t *testing.T) {
	forms := map[string]func(string) string{
		"lines shuffled": func(page string) string {
			lines := strings.SplitAfter(page, "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
			return strings.Join(lines, "")
		},
		"CRLF":             func(page string) string { return strings.ReplaceAll(page, "\n", "\r\n") },
		"no final newline": func(page string) string { return strings.TrimRight(page, "\n") },
		"colons replaced":  func(page string) string { return strings.ReplaceAll(page, "vllm:", "vllm_") },
		"colons replaced on samples alone": func(page string) string {
			return strings.ReplaceAll(page, "\nvllm:", "\nvllm_")
		},
		"without HELP": func(page string) string {
			lines := strings.SplitAfter(page, "\n")
			return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "# HELP") }), "")
		},
		"page joined with itself": func(page string) string { return page + page },
		"unknown families added": func(page string) string {
			return "other_engine:num_requests_waiting 900\n" + page +
				"vllm:num_requests_waiting_by_reason{engine=\"7\"} 77\nvllm:num_requests_waiting_created 1.7e9\nfwd_occupancy NaN\nbroken{ 1\nx -nan\n"
		},
		"lines indented, tabs": func(page string) string {
			return strings.ReplaceAll(strings.ReplaceAll(page, "\nvllm:num", "\n \tvllm:num"), "} ", "}\t")
		},
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			for _, c := range onPages {
				checkReadings(t, mustRead(t, form(string(load(t, c.page)))), c.want)
			}
		})
	}
}

func TestAnUntypedPageOfAProxyIsRead(t *testing.T) {
	page := strings.ReplaceAll(string(load(t, "vllm.prom")), " gauge\n", " untyped\n")
	checkReadings(t, mustRead(t, page), onPages[0].want)
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
		{"signed nan", waiting + "2", waiting + "-nan", "queueDepth", "not a number"},
		{"plus nan", waiting + "2", waiting + "+NaN", "queueDepth", "not a number"},
		{"plus infinity", waiting + "2", waiting + "+Inf", "queueDepth", "value +Inf"},
		{"minus infinity", waiting + "2", waiting + "-Inf", "queueDepth", "value -Inf"},
		{"negative", waiting + "2", waiting + "-5", "queueDepth", "value -5"},
		{"beyond floats", waiting + "2", waiting + "1e999", "queueDepth", "does not parse"},
		{"a word", waiting + "2", waiting + "none", "queueDepth", "does not parse"},
		{"no value", waiting + "2", waiting, "queueDepth", "does not parse"},
		{"an open label", waiting + "2", `vllm:num_requests_waiting{engine="0,model_name=x} 2`, "queueDepth", "does not parse"},
		{"a label twice", waiting + "2", `vllm:num_requests_waiting{engine="0",engine="1"} 2`, "queueDepth", "given twice"},
		{"percent", usage + "0.25", usage + "87.5", "kvCacheUtilization", "want 0 to 1"},
		{"a little above one", usage + "0.25", usage + "1.0001", "kvCacheUtilization", "want 0 to 1"},
		{"a little below zero", usage + "0.25", usage + "-0.01", "kvCacheUtilization", "want 0 to 1"},
		{"two values of one series", waiting + "2", waiting + "2\n" + waiting + "9", "queueDepth", "duplicate"},
		{"sum beyond floats", waiting + "2", waiting + "1.7e308\n" + `vllm:num_requests_waiting{engine="1"} 1.7e308`, "queueDepth", "value +Inf"},
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
	s := mustRead(t, "vllm:kv_cache_usage_perc 1.0000005\n")
	checkReadings(t, s, map[string]string{"kvCacheUtilization": "1 max 1"})
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
			map[string]string{"kvBlockSize": "supported, invalid: vllm:cache_config_info: 8 on one series and 16 on another, want the same on all"}},
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
		{"empty", "", ErrNoEngineFamilies},
		{"blank", "\n\n", ErrNoEngineFamilies},
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
		"queueDepth":     "supported, invalid: vllm:num_requests_waiting: more than 512 series",
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

func TestOnePageNeedsAtMostThirtyAllocations(t *testing.T) {
	p, page := vllm(t), load(t, "vllm.prom")
	got := testing.AllocsPerRun(50, func() {
		if _, err := p.Read(page, Input{At: 1}); err != nil {
			t.Fatal(err)
		}
	})
	if got > 30 && !raceEnabled {
		t.Errorf("%v allocations", got)
	}
}
