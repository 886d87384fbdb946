package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

type sentences = map[telemetry.Field]string

func TestM2_WaitingIsSummedOverEnginesInWhateverOrder(t *testing.T) {
	p := profileOf(t, "vllm")
	idle := "vllm:num_requests_waiting{engine=\"0\"} 0\n"
	full := "vllm:num_requests_waiting{engine=\"1\"} 40\n"
	says(t, readAs(t, p, idle+full, Input{}), sentences{telemetry.QueueDepth: "40"})
	says(t, readAs(t, p, full+idle, Input{}), sentences{telemetry.QueueDepth: "40"})

	// 1 + 2 + … + 8, and the fullest cache beside the mean.
	var eight []string
	for i := range 8 {
		eight = append(eight,
			fmt.Sprintf("vllm:num_requests_waiting{engine=\"%d\"} %d\n", i, i+1),
			fmt.Sprintf("vllm:kv_cache_usage_perc{engine=\"%d\"} 0.%d\n", i, i+1))
	}
	for seed := range uint64(5) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(eight), func(i, j int) { eight[i], eight[j] = eight[j], eight[i] })
		says(t, readAs(t, p, strings.Join(eight, ""), Input{}), sentences{
			telemetry.QueueDepth:         "36",
			telemetry.KVCacheUtilization: "0.45 max 0.8",
		})
	}
}

func TestM4_ModelsOfOnePageAreNotMixed(t *testing.T) {
	p := profileOf(t, "vllm")
	page := func(latencies, tokens int) string {
		return fmt.Sprintf(`vllm:num_requests_running{model_name="model-a"} 3
vllm:num_requests_waiting{model_name="model-a"} 1
vllm:num_requests_running{model_name="model-b"} 5
vllm:num_requests_waiting{model_name="model-b"} 7
vllm:generation_tokens_total{model_name="model-a",kind="x"} %[2]d000
vllm:generation_tokens_total{model_name="model-b",kind="x"} %[2]d00
vllm:generation_tokens_total{model_name="model-b",kind="y"} %[2]d00
vllm:time_to_first_token_seconds_bucket{model_name="model-a",le="+Inf"} 9
vllm:time_to_first_token_seconds_count{model_name="model-a"} 9
vllm:time_to_first_token_seconds_sum{model_name="model-a"} 9
vllm:time_to_first_token_seconds_bucket{model_name="model-b",kind="x",le="1.0"} %[1]d
vllm:time_to_first_token_seconds_bucket{model_name="model-b",kind="x",le="+Inf"} %[1]d
vllm:time_to_first_token_seconds_count{model_name="model-b",kind="x"} %[1]d
vllm:time_to_first_token_seconds_sum{model_name="model-b",kind="x"} %[1]d
vllm:time_to_first_token_seconds_bucket{model_name="model-b",kind="y",le="1.0"} %[1]d
vllm:time_to_first_token_seconds_bucket{model_name="model-b",kind="y",le="+Inf"} %[1]d
vllm:time_to_first_token_seconds_count{model_name="model-b",kind="y"} %[1]d
vllm:time_to_first_token_seconds_sum{model_name="model-b",kind="y"} %[1]d
`, latencies, tokens)
	}
	in := Input{At: laterThanEveryPage, Models: []string{"model-b"}, History: new(History)}
	in.Previous = readAs(t, p, page(2, 1), in)
	in.At = in.At.Add(30 * time.Second)
	says(t, readAs(t, p, page(5, 4), in), sentences{
		telemetry.ActiveRequests:       "5",
		telemetry.QueueDepth:           "7",
		telemetry.TTFT:                 "mean 1 of 6",
		telemetry.GenerationThroughput: "20",
	})
	says(t, readAs(t, p, page(2, 1), Input{Models: []string{"model-c"}}), sentences{
		telemetry.ActiveRequests:       "missing: vllm:num_requests_running has no series for the models that the endpoint serves",
		telemetry.QueueDepth:           "missing: vllm:num_requests_waiting has no series for the models that the endpoint serves",
		telemetry.GenerationThroughput: "missing: vllm:generation_tokens_total has no series for the models that the endpoint serves",
	})
	says(t, readAs(t, p, page(2, 1), Input{}), sentences{
		telemetry.QueueDepth: "invalid: ambiguous: 2 models",
		telemetry.TTFT:       "invalid: ambiguous: 2 models",
	})
}

const threeGauges = `vllm:num_requests_waiting{engine="0",model_name="m"} 40
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
`

func TestM9_ASignedNaNGivesTheSameReadingsWhereverItStands(t *testing.T) {
	p := profileOf(t, "vllm")
	all := lines(threeGauges)
	for _, c := range []struct {
		line string
		want string
	}{
		{"llama_tokens_per_second -nan\n", "0.25 max 0.25"},
		{"vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} -nan\n", "invalid: vllm:kv_cache_usage_perc"},
	} {
		var first *telemetry.Snapshot
		for at := range len(all) + 1 {
			page := strings.Join(all[:at], "") + c.line + strings.Join(all[at:], "")
			s := readAs(t, p, page, Input{})
			if first == nil {
				first = s
			}
			sameReadings(t, s, first)
			says(t, s, sentences{
				telemetry.QueueDepth:         "40",
				telemetry.ActiveRequests:     "3",
				telemetry.KVCacheUtilization: c.want,
			})
		}
	}
}

func TestM13_APageWithoutEngineMetricsIsNoSnapshot(t *testing.T) {
	p := profileOf(t, "vllm")
	for name, c := range map[string]struct {
		page string
		want error
	}{
		"empty":                     {"", ErrEmpty},
		"only the process":          {"python_info{version=\"3.12\"} 1\nprocess_start_time_seconds 1.7e9\n", ErrNoEngineFamilies},
		"only comments of others":   {"# HELP process_cpu_seconds_total x\n# TYPE process_cpu_seconds_total counter\n", ErrNoEngineFamilies},
		"only a name like a prefix": {"not_vllm:num_requests_waiting 0\n", ErrNoEngineFamilies},
	} {
		s, err := p.Read([]byte(c.page), Input{At: laterThanEveryPage})
		if s != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: snapshot %v and error %v, want none and %v", name, s, err, c.want)
		}
	}
}

func TestM14_AnOptionalFamilyThatIsAbsentIsTheSameNewsEachTime(t *testing.T) {
	p := profileOf(t, "vllm")
	in := Input{At: laterThanEveryPage, History: new(History)}
	for range 1000 {
		s := readAs(t, p, threeGauges, in)
		says(t, s, sentences{
			telemetry.QueueDepth:      "40",
			telemetry.AdaptersWaiting: "unsupported, missing: vllm:lora_requests_info is not on the page",
			telemetry.AdaptersMax:     "unsupported, missing: vllm:lora_requests_info is not on the page",
		})
		if t.Failed() {
			return
		}
		in.Previous, in.At = s, in.At.Add(time.Second)
	}
}

func TestM15_EitherNameOfAGaugeIsReadAndTheNewOneWins(t *testing.T) {
	p := profileOf(t, "vllm")
	for _, c := range []struct{ page, value, name string }{
		{"vllm:gpu_cache_usage_perc 0.9\n", "0.9 max 0.9", "vllm:gpu_cache_usage_perc"},
		{"vllm:kv_cache_usage_perc 0.3\n", "0.3 max 0.3", "vllm:kv_cache_usage_perc"},
		{"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.3\n", "0.3 max 0.3", "vllm:kv_cache_usage_perc"},
		{"vllm:kv_cache_usage_perc 0.3\nvllm:gpu_cache_usage_perc 0.9\n", "0.3 max 0.3", "vllm:kv_cache_usage_perc"},
	} {
		s := readAs(t, p, c.page, Input{})
		says(t, s, sentences{telemetry.KVCacheUtilization: c.value})
		if got := s.Readings[telemetry.KVCacheUtilization].Detail.Source; got == nil || got.Metric != c.name || got.Path != "/metrics" {
			t.Errorf("%q: source %+v, want %s on /metrics", c.page, got, c.name)
		}
	}
}

func TestM21_TwoValuesOfOneSeriesAreInvalidInEitherOrder(t *testing.T) {
	p := profileOf(t, "vllm")
	one := strings.Replace(threeGauges, "40", "1", 1)
	other := "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 9\n"
	a, b := readAs(t, p, one+other, Input{}), readAs(t, p, other+one, Input{})
	for _, s := range []*telemetry.Snapshot{a, b} {
		says(t, s, sentences{
			telemetry.QueueDepth:     "supported, invalid: vllm:num_requests_waiting",
			telemetry.ActiveRequests: "3",
		})
	}
	sameReadings(t, a, b)
}

func TestM22_JoinedPagesAreReadInFullOrContradictEachOther(t *testing.T) {
	p := profileOf(t, "vllm")
	whole := pageOf(t, "vllm.prom")
	sameReadings(t, readAs(t, p, whole+whole, Input{}), readAs(t, p, whole, Input{}))

	const head = "# HELP vllm:num_preemptions_total x\n# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{engine=\"0\",model_name=\"m\"} 0\n"
	says(t, readAs(t, p, head+head+threeGauges, Input{}), sentences{
		telemetry.QueueDepth:         "40",
		telemetry.ActiveRequests:     "3",
		telemetry.KVCacheUtilization: "0.25 max 0.25",
	})
	says(t, readAs(t, p, threeGauges+strings.Replace(threeGauges, "40", "0", 1), Input{}), sentences{
		telemetry.QueueDepth:     "invalid: vllm:num_requests_waiting",
		telemetry.ActiveRequests: "3",
	})
}

// Up to 0.10 the usage gauge has no multi-process mode: there is a series for
// each process that ever lived.
func TestENGINES0_VLLM_OfSeveralProcessesTheFullestCounts(t *testing.T) {
	const first, second = `vllm:gpu_cache_usage_perc{engine="0",model_name="m",pid="71"} 0.25` + "\n",
		`vllm:gpu_cache_usage_perc{engine="0",model_name="m",pid="72"} 0.5` + "\n"
	for _, page := range []string{first + second, second + first} {
		s := readPageOf(t, "vllm", page, Input{At: laterThanEveryPage})
		wantValue(t, s, telemetry.KVCacheUtilization, 0.5)
	}
}

func TestM25_RoundingAboveOneIsOneAndPercentIsInvalid(t *testing.T) {
	p := profileOf(t, "vllm")
	for value, want := range map[string]string{
		"1":      "1 max 1",
		"1.0001": "1 max 1",
		"87.5":   "invalid: vllm:kv_cache_usage_perc: value 87.5",
		"-0.01":  "invalid: vllm:kv_cache_usage_perc: value -0.01",
	} {
		says(t, readAs(t, p, "vllm:kv_cache_usage_perc "+value+"\n", Input{}), sentences{telemetry.KVCacheUtilization: want})
	}
}

// A number that was cut is a number, so that a line that is read must end in a line
// feed. A page that was cut is refused, or says nothing untrue.
func TestM26_FormalSlipsAreToleratedAndNothingUntrueIsReadFromACutPage(t *testing.T) {
	p := profileOf(t, "vllm")
	want := sentences{
		telemetry.QueueDepth:         "40",
		telemetry.ActiveRequests:     "3",
		telemetry.KVCacheUtilization: "0.25 max 0.25",
	}
	for name, page := range map[string]string{
		"no final newline": threeGauges + "# EOF",
		"CRLF":             strings.ReplaceAll(threeGauges, "\n", "\r\n"),
		"blank lines":      strings.ReplaceAll(threeGauges, "\n", "\n\n"),
	} {
		t.Run(name, func(t *testing.T) { says(t, readAs(t, p, page, Input{}), want) })
	}
	for at := range len(threeGauges) {
		page := threeGauges[:at]
		s, err := p.Read([]byte(page), Input{At: laterThanEveryPage})
		if err != nil {
			continue
		}
		for f, words := range want {
			r := &s.Readings[f]
			if got := sentence(f, r); got != words && r.Recorded != telemetry.Missing {
				t.Errorf("cut after %q: %s is %s", page, f, got)
			}
		}
	}
}

func TestM27_ARestartDropsTheWindow(t *testing.T) {
	p := profileOf(t, "vllm")
	page := func(start string, hits, queries int) string {
		return fmt.Sprintf("process_start_time_seconds %s\nvllm:prefix_cache_hits_total{engine=\"0\"} %d\nvllm:prefix_cache_queries_total{engine=\"0\"} %d\nvllm:prompt_tokens_total{engine=\"0\"} %d\n",
			start, hits, queries, queries)
	}
	for _, c := range []struct{ name, start string }{
		{"which the start time tells", "1.7959e+09"},
		{"which only the counters tell", "1.7958e+09"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{At: laterThanEveryPage, History: new(History)}
			in.Previous = readAs(t, p, page("1.7958e+09", 1000, 2000), in)
			in.At = in.At.Add(30 * time.Second)
			s := readAs(t, p, page(c.start, 3, 57), in)
			for _, f := range []telemetry.Field{telemetry.PrefixCacheHitRatio, telemetry.PromptThroughput} {
				if r := &s.Readings[f]; r.Recorded != telemetry.Missing || r.Support != telemetry.Supported || r.Value < 0 {
					t.Errorf("%s is %s", f, sentence(f, r))
				}
			}
			in.Previous, in.At = s, in.At.Add(30*time.Second)
			says(t, readAs(t, p, page(c.start, 33, 97), in), sentences{telemetry.PrefixCacheHitRatio: "0.75"})
		})
	}
}

func TestR7_AFamilyWithoutASampleIsMissingUntilItsFirstSample(t *testing.T) {
	p := profileOf(t, "vllm")
	const declared = "# HELP vllm:num_requests_waiting x\n# TYPE vllm:num_requests_waiting gauge\n"
	before := readAs(t, p, declared, Input{})
	says(t, before, sentences{telemetry.QueueDepth: "supported, missing: vllm:num_requests_waiting has no sample"})
	after := readAs(t, p, declared+"vllm:num_requests_waiting{engine=\"0\"} 0\n", Input{Previous: before})
	says(t, after, sentences{telemetry.QueueDepth: "0"})
}

func TestR13_ASumOfTimesIsNotTheNewest(t *testing.T) {
	p := profileOf(t, "vllm")
	at := telemetry.At(time.Unix(1795972650, 0))
	const info = `vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters="b"} 1.795972649e+09
`
	says(t, readAs(t, p, info, Input{At: at}), sentences{
		telemetry.AdaptersMax:     "2",
		telemetry.AdaptersWaiting: `["b"]`,
	})
	const summed = `vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters="c"} 3.59e+09
`
	for _, page := range []string{info + summed, summed + info} {
		says(t, readAs(t, p, page, Input{At: at}), sentences{
			telemetry.AdaptersMax:     "unsupported, missing: vllm:lora_requests_info: 3.59e+09 is no time",
			telemetry.AdaptersWaiting: "unsupported, missing: vllm:lora_requests_info: 3.59e+09 is no time",
		})
	}
}

func TestS10_APageWithoutLatenciesGivesItsLoad(t *testing.T) {
	s := readAs(t, profileOf(t, "vllm"), threeGauges, Input{})
	says(t, s, sentences{
		telemetry.QueueDepth:         "40",
		telemetry.ActiveRequests:     "3",
		telemetry.KVCacheUtilization: "0.25 max 0.25",
		telemetry.TTFT:               "unknown, missing: vllm:time_to_first_token_seconds",
		telemetry.E2E:                "unknown, missing: vllm:e2e_request_latency_seconds",
	})
}

func TestENGINES0_VLLM_MetricsAreAskedForAsTextAndWithoutATrailingSlash(t *testing.T) {
	page := profileOf(t, "vllm").Metrics()
	if page.Path != "/metrics" || page.Accept != "text/plain;version=0.0.4" {
		t.Errorf("the metrics page is %s, asked for as %q", page.Path, page.Accept)
	}
}

func TestENGINES0_VLLM_DisabledStatisticsAreNoLoadOfZero(t *testing.T) {
	const page = "python_info{version=\"3.12\"} 1\nprocess_start_time_seconds 1.7e9\nhttp_requests_total{handler=\"/v1/chat/completions\"} 5350\n"
	s, err := profileOf(t, "vllm").Read([]byte(page), Input{At: laterThanEveryPage})
	if s != nil || !errors.Is(err, ErrNoEngineFamilies) {
		t.Errorf("snapshot %v, error %v, want %v", s, err, ErrNoEngineFamilies)
	}
	// Where it is known whose page it is, each field says so.
	silent := profileOf(t, "vllm").Silent(laterThanEveryPage)
	for _, f := range profileOf(t, "vllm").Reads() {
		says(t, silent, sentences{f: "disabled, missing: the metrics page has no family of the engine"})
	}
}

func TestENGINES0_VLLM_AnIdleServerSaysZeroWithOneAPIServerAndNothingWithSeveral(t *testing.T) {
	p := profileOf(t, "vllm")
	says(t, readAs(t, p, pageOf(t, "vllm-idle.prom"), Input{}), sentences{
		telemetry.QueueDepth: "0", telemetry.ActiveRequests: "0", telemetry.KVCacheUtilization: "0 max 0",
	})
	says(t, readAs(t, p, pageOf(t, "real-vllm-0.32.0-dp2-idle.prom"), Input{}), sentences{
		telemetry.QueueDepth:         "supported, missing: vllm:num_requests_waiting has no sample",
		telemetry.ActiveRequests:     "supported, missing: vllm:num_requests_running has no sample",
		telemetry.KVCacheUtilization: "supported, missing: vllm:kv_cache_usage_perc has no sample",
	})
}

func TestENGINES0_VLLM_BlocksAreASumAlreadyAndTokensArePerEngine(t *testing.T) {
	p := profileOf(t, "vllm")
	says(t, readAs(t, p, pageOf(t, "vllm-dp2.prom"), Input{}), sentences{
		telemetry.KVCacheCapacity: "878720",
		telemetry.MaxConcurrency:  "26.81640625 at 0.5",
	})
	// Without the newer label: 54920 blocks of 16, once.
	older := strings.ReplaceAll(pageOf(t, "vllm-dp2.prom"), "kv_cache_size_tokens=", "another=")
	says(t, readAs(t, p, older, Input{}), sentences{telemetry.KVCacheCapacity: "878720"})
}

func TestENGINES0_VLLM_AdapterListsThatAreTheSameSayNothingOfWaiting(t *testing.T) {
	p := profileOf(t, "vllm")
	for lists, want := range map[string]string{
		`running_lora_adapters="a,b",waiting_lora_adapters="a,b"`: "unsupported, missing",
		`running_lora_adapters="",waiting_lora_adapters=""`:       "unsupported, missing",
		`running_lora_adapters="a",waiting_lora_adapters="b,c"`:   `["b" "c"]`,
		`running_lora_adapters="a",waiting_lora_adapters=""`:      `[]`,
	} {
		// The older series would say something else.
		page := "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"x\",waiting_lora_adapters=\"y\"} 1.795e+09\n" +
			"vllm:lora_requests_info{max_lora=\"4\"," + lists + "} 1.796e+09\n"
		says(t, readAs(t, p, page, Input{}), sentences{
			telemetry.AdaptersWaiting: want,
			telemetry.AdaptersMax:     "4",
		})
	}
}

func TestENGINES0_VLLM_OneBlockThatStaysInUseIsReadAsItIs(t *testing.T) {
	page := strings.Replace(pageOf(t, "real-vllm-0.9.1-loaded.prom"), "0.0013427734375", "0.0001220703125", 1)
	says(t, readAs(t, profileOf(t, "vllm"), page, Input{}), sentences{telemetry.KVCacheUtilization: "0.0001220703125 max 0.0001220703125"})
}

// From 0.11.0 to 0.14 both names of the latency between tokens are on the page, up
// to 0.11 both of the usage: one of them counts.
func TestENGINES0_VLLM_EachReleaseIsReadByItsOwnNames(t *testing.T) {
	p := profileOf(t, "vllm")
	latency := func(name string, count, sum int) string {
		return fmt.Sprintf("vllm:%[1]s_bucket{engine=\"0\",le=\"1.0\"} %[2]d\nvllm:%[1]s_bucket{engine=\"0\",le=\"+Inf\"} %[2]d\n"+
			"vllm:%[1]s_count{engine=\"0\"} %[2]d\nvllm:%[1]s_sum{engine=\"0\"} %[3]d\n", name, count, sum)
	}
	const first, second = "time_per_output_token_seconds", "inter_token_latency_seconds"
	for _, c := range []struct{ name, before, after, usage, want string }{
		{"0.10", latency(first, 10, 1), latency(first, 30, 3), "vllm:gpu_cache_usage_perc 0.5\n", "mean 0.1 of 20"},
		{"0.11 to 0.14", latency(first, 10, 1) + latency(second, 100, 10), latency(first, 30, 5) + latency(second, 140, 14),
			"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n", "mean 0.1 of 40"},
		{"0.15", latency(second, 100, 10), latency(second, 140, 14), "vllm:kv_cache_usage_perc 0.5\n", "mean 0.1 of 40"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{At: laterThanEveryPage, History: new(History)}
			in.Previous = readAs(t, p, c.before+c.usage, in)
			in.At = in.At.Add(30 * time.Second)
			says(t, readAs(t, p, c.after+c.usage, in), sentences{telemetry.ITL: c.want, telemetry.KVCacheUtilization: "0.5 max 0.5"})
		})
	}
}

// 0.9.1 counts tokens under the old names of its prefix counters: 30 of 40.
func TestENGINES0_VLLM_ThePrefixCountersOf091AreARatioToo(t *testing.T) {
	page := func(hits, queries int) string {
		return fmt.Sprintf("vllm:gpu_prefix_cache_hits_total{engine=\"0\"} %d\nvllm:gpu_prefix_cache_queries_total{engine=\"0\"} %d\n", hits, queries)
	}
	wantValue(t, grownPages(t, "vllm", page(1000, 1000), page(1030, 1040)), telemetry.PrefixCacheHitRatio, 0.75)
}

// It moves when the preempted request produces again: 6 in 30 s.
func TestENGINES0_VLLM_PreemptionsAreARate(t *testing.T) {
	const page = "vllm:num_preemptions_total{engine=\"0\"} %d\nvllm:num_preemptions_total{engine=\"1\"} %d\n"
	wantValue(t, grownPages(t, "vllm", fmt.Sprintf(page, 4, 0), fmt.Sprintf(page, 8, 2)), telemetry.PreemptionRate, 0.2)
}

func TestENGINES0_VLLM_WhatFinishedWasRejectedOrIsEstimatedIsNoReading(t *testing.T) {
	p := profileOf(t, "vllm")
	page := pageOf(t, "real-vllm-0.32.0-loaded.prom")
	more := page
	for name, value := range map[string]string{
		`vllm:request_success_total{engine="0",finished_reason="error",model_name="tiny"}`:        "77",
		`vllm:request_success_total{engine="0",finished_reason="repetition",model_name="tiny"}`:   "77",
		`vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}`:         "77",
		`vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="device"}`: "77777",
		`vllm:estimated_flops_per_gpu_total{engine="0",model_name="tiny"}`:                        "1e+15",
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"}`:     "77",
		`vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"}`:   "0.0",
		`vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"}`:                     "77",
	} {
		i := strings.Index(more, "\n"+name+" ")
		if i < 0 {
			t.Fatalf("%s is not on the page", name)
		}
		end := i + 1 + strings.IndexByte(more[i+1:], '\n')
		more = more[:i+1] + name + " " + value + more[end:]
	}
	sameReadings(t, readAs(t, p, more, Input{}), readAs(t, p, page, Input{}))
}

func TestENGINES0_VLLM_WaitingByReasonIsNotAddedToWaiting(t *testing.T) {
	s := readAs(t, profileOf(t, "vllm"), pageOf(t, "vllm.prom"), Input{})
	says(t, s, sentences{telemetry.QueueDepth: "12"})
}

func TestENGINES0_VLLM_HealthIsYesWhileAsleepAndFullAndNoWhenTheEngineIsDead(t *testing.T) {
	p := profileOf(t, "vllm")
	const asleep = `vllm:num_requests_waiting{engine="0"} 900
vllm:kv_cache_usage_perc{engine="0"} 1
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1
`
	s := readAs(t, p, asleep, Input{})
	health := pageAt(t, p, "/health")
	for status, want := range map[int]string{200: "true", 503: "false", 404: "unsupported, missing"} {
		got, err := p.ReadSlow(health, status, nil, laterThanEveryPage, 0, s)
		if err != nil {
			t.Fatal(err)
		}
		says(t, got, sentences{telemetry.Health: want, telemetry.Sleeping: "true", telemetry.QueueDepth: "900"})
	}
	if got, err := p.ReadSlow(health, 500, nil, laterThanEveryPage, 0, s); err == nil {
		t.Errorf("a status of 500 is %s, want an error", sentence(telemetry.Health, &got.Readings[telemetry.Health]))
	}
}

func TestENGINES0_VLLM_APageThatStandsStillUnderOurRequestsIsDoubted(t *testing.T) {
	p := profileOf(t, "vllm")
	start := laterThanEveryPage
	in := Input{At: start, History: new(History), Traffic: Traffic{BusySince: start}}
	in.Previous = readAs(t, p, threeGauges, in)
	says(t, in.Previous, sentences{telemetry.QueueDepth: "40"})
	in.At = start.Add(15 * time.Second)
	in.Previous = readAs(t, p, threeGauges, in)
	says(t, in.Previous, sentences{telemetry.QueueDepth: "40 at 0.5: no value on the page moved for 15s"})
	in.At = start.Add(45 * time.Second)
	says(t, readAs(t, p, threeGauges, in), sentences{
		telemetry.QueueDepth:         "supported, stale: no value on the page moved for 45s",
		telemetry.ActiveRequests:     "supported, stale: no value on the page moved for 45s",
		telemetry.KVCacheUtilization: "supported, stale: no value on the page moved for 45s",
	})
}

func TestENGINES0_VLLM_VersionAndModelsAreReadFromTheirPages(t *testing.T) {
	p := profileOf(t, "vllm")
	s := readAs(t, p, threeGauges, Input{})
	s, err := p.ReadSlow(pageAt(t, p, "/version"), 200, []byte(`{"version":"0.32.0"}`), laterThanEveryPage, 0, s)
	if err != nil {
		t.Fatal(err)
	}
	s, err = p.ReadSlow(pageAt(t, p, "/v1/models"), 200, []byte(`{"object":"list","data":[
		{"id":"tiny","object":"model","owned_by":"vllm","root":"/models/tiny","parent":null,"max_model_len":2048},
		{"id":"alias","object":"model","owned_by":"vllm","root":"/models/tiny","parent":null,"max_model_len":2048},
		{"id":"sql-v2","object":"model","owned_by":"vllm","root":"/loras/sql","parent":"tiny","max_model_len":null}]}`), laterThanEveryPage, 0, s)
	if err != nil {
		t.Fatal(err)
	}
	says(t, s, sentences{
		telemetry.EngineVersion:  "0.32.0",
		telemetry.ServedModels:   `["tiny" "alias"]`,
		telemetry.AdaptersLoaded: `["sql-v2"]`,
		telemetry.ContextLimit:   "2048",
		telemetry.QueueDepth:     "40",
	})
}

func TestAGatewaysPageOfSeveralReplicasIsRefused(t *testing.T) {
	for name, page := range map[string]string{
		"vllm":   `vllm:num_requests_waiting{engine="0",worker_addr="http://10.0.0.1:8000"} 3` + "\n",
		"sglang": `sglang_num_queue_reqs{tp_rank="0",worker_addr="grpc://10.0.0.1:8001"} 3` + "\n",
	} {
		if s, err := profileOf(t, name).Read([]byte(page), Input{At: laterThanEveryPage}); s != nil || !errors.Is(err, ErrJoined) {
			t.Errorf("%s: snapshot %v, error %v, want %v", name, s, err, ErrJoined)
		}
	}
}
