package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// scheduler is a sample of one scheduler.
func scheduler(metric string, dp, tp int, more string, value float64) string {
	return fmt.Sprintf("%s{dp_rank=\"%d\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",%stp_rank=\"%d\"} %g\n", metric, dp, more, tp, value)
}

func TestM3_RanksOfDataParallelismAreSummedAndThoseOfTensorParallelismAreNot(t *testing.T) {
	p := profileOf(t, "sglang")
	var all, lowest string
	for dp, waiting := range []float64{3, 5} {
		for tp := range 4 {
			line := scheduler("sglang:num_queue_reqs", dp, tp, "", waiting)
			all += line
			if tp == 0 {
				lowest += line
			}
		}
	}
	says(t, readAs(t, p, lowest, Input{}), sentences{telemetry.QueueDepth: "8"})
	for seed := range uint64(8) {
		says(t, readAs(t, p, shuffled(seed)(all), Input{}), sentences{telemetry.QueueDepth: "8"})
	}
	// The ranks of a pipeline and of experts say the same as well.
	page := scheduler("sglang:num_queue_reqs", 0, 0, "", 3) +
		strings.Replace(scheduler("sglang:num_queue_reqs", 0, 0, "", 3), `pp_rank="0"`, `pp_rank="1"`, 1) +
		strings.Replace(scheduler("sglang:num_queue_reqs", 0, 1, "", 3), `moe_ep_rank="0"`, `moe_ep_rank="1"`, 1)
	says(t, readAs(t, p, page, Input{}), sentences{telemetry.QueueDepth: "3"})
	// So do processes that a rank has left behind.
	page = scheduler("sglang:num_queue_reqs", 0, 0, `pid="7",`, 3) + scheduler("sglang:num_queue_reqs", 0, 0, `pid="8",`, 2)
	says(t, readAs(t, p, page, Input{}), sentences{telemetry.QueueDepth: "3"})
	// Rank 10 is not below rank 9.
	page = scheduler("sglang:num_queue_reqs", 0, 10, "", 1) + scheduler("sglang:num_queue_reqs", 0, 9, "", 2)
	says(t, readAs(t, p, page, Input{}), sentences{telemetry.QueueDepth: "2"})
}

func TestM8_ANaNOfAnotherGaugeSpoilsNothingAndOneOfItsOwnThatFieldAlone(t *testing.T) {
	p := profileOf(t, "sglang")
	const names = "sglang:num_queue_reqs sglang:num_running_reqs sglang:token_usage"
	fields := []telemetry.Field{telemetry.QueueDepth, telemetry.ActiveRequests, telemetry.KVCacheUtilization}
	good := []string{"5", "24", "0.5 max 0.5"}
	values := []string{"5", "24", "0.5"}
	page := func(bad int, value string) string {
		text := scheduler("sglang:fwd_occupancy", 0, 0, "", 1)
		text = strings.Replace(text, "} 1\n", "} NaN\n", 1)
		for i, name := range strings.Fields(names) {
			v := values[i]
			if i == bad {
				v = value
			}
			text += fmt.Sprintf("%s{dp_rank=\"0\",model_name=\"m\",tp_rank=\"0\"} %s\n", name, v)
		}
		return text
	}
	for i, f := range fields {
		says(t, readAs(t, p, page(-1, ""), Input{}), sentences{f: good[i]})
	}
	for bad := range fields {
		for _, value := range []string{"NaN", "+Inf", "-5"} {
			s := readAs(t, p, page(bad, value), Input{})
			for i, f := range fields {
				want := good[i]
				if i == bad {
					want = "supported, invalid: " + strings.Fields(names)[i]
				}
				says(t, s, sentences{f: want})
			}
		}
	}
}

func TestR6_SamplesWithUnderscoresBelongToTheFamilyWithAColon(t *testing.T) {
	const page = `# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang_num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 7.0
# EOF
`
	says(t, readAs(t, profileOf(t, "sglang"), page, Input{}), sentences{telemetry.ActiveRequests: "7"})
}

// attentionDP is a page of attention data parallelism: tp 4, dp 2.
func attentionDP() string {
	page := scheduler("sglang:num_queue_reqs", 0, 0, "", 5) + scheduler("sglang:num_queue_reqs", 1, 2, "", 6) +
		scheduler("sglang:token_usage", 0, 0, "", 0.2) + scheduler("sglang:token_usage", 1, 2, "", 0.8)
	for tp := range 4 {
		page += scheduler("sglang:max_total_num_tokens", tp/2, tp, "", 1000) +
			scheduler("sglang:num_pages", tp/2, tp, "", 250) +
			scheduler("sglang:page_size", tp/2, tp, "", 4)
	}
	return page
}

func TestR14_TheLowestRankWithinEachDataParallelRankCounts(t *testing.T) {
	p := profileOf(t, "sglang")
	for seed := range uint64(5) {
		page := shuffled(seed)(attentionDP())
		says(t, readAs(t, p, page, Input{}), sentences{
			telemetry.QueueDepth:         "11",
			telemetry.KVCacheUtilization: "0.5 max 0.8",
			telemetry.KVCacheCapacity:    "2000",
			telemetry.KVBlockSize:        "4",
		})
		// The same by pages.
		says(t, readAs(t, p, strings.ReplaceAll(page, "sglang:max_total_num_tokens", "sglang:another"), Input{}), sentences{
			telemetry.KVCacheCapacity:    "2000",
			telemetry.KVCacheUtilization: "0.5 max 0.8",
		})
	}
}

func TestENGINES0_SGLang_NoPageOfItsMakesTheEngineGenerate(t *testing.T) {
	p := profileOf(t, "sglang")
	for _, path := range []string{"/health", "/health_generate"} {
		if !p.Never(path) {
			t.Errorf("%s may be asked", path)
		}
	}
	for _, page := range append(p.SlowPages(), p.Metrics()) {
		if p.Never(page.Path) {
			t.Errorf("%s is asked", page.Path)
		}
	}
	// Asked for as text, /v1/loads has a waiting of its own, with other queues in it.
	if page := pageAt(t, p, "/v1/loads"); page.Format != JSON || !slices.Equal(page.Reads(), []telemetry.Field{telemetry.MaxConcurrency}) {
		t.Errorf("/v1/loads is read as %s for %v", page.Format, page.Reads())
	}
	if accept := p.Metrics().Accept; accept != "text/plain;version=0.0.4" {
		t.Errorf("the metrics page is asked for as %q", accept)
	}
}

func TestENGINES0_SGLang_ReadyIsYesNoOrNotThereInOldReleases(t *testing.T) {
	p := profileOf(t, "sglang")
	s := readAs(t, p, attentionDP(), Input{})
	for status, want := range map[int]string{200: "true", 503: "false", 404: "unsupported, missing: the replica has no page /ready"} {
		got, err := p.ReadSlow(pageAt(t, p, "/ready"), status, []byte("null"), laterThanEveryPage, 0, s)
		if err != nil {
			t.Fatal(err)
		}
		says(t, got, sentences{telemetry.Ready: want})
	}
}

func TestENGINES0_SGLang_CacheConfigInfoIsThatOfOneRank(t *testing.T) {
	p := profileOf(t, "sglang")
	const page = "sglang:cache_config_info{num_pages=\"26719\",page_size=\"16\"} 1.0\n"
	says(t, readAs(t, p, page, Input{}), sentences{
		telemetry.KVCacheCapacity: "427504 at 0.5: equal data-parallel ranks share one series",
		telemetry.KVBlockSize:     "16",
	})
}

func TestENGINES0_SGLang_OfPriorityGaugesTheTotalCountsAndOfCountersAll(t *testing.T) {
	p := profileOf(t, "sglang")
	page := func(tokens float64) string {
		return scheduler("sglang:num_queue_reqs", 0, 0, `priority="",`, 5) +
			scheduler("sglang:num_queue_reqs", 0, 0, `priority="1",`, 2) +
			scheduler("sglang:num_queue_reqs", 0, 0, `priority="2",`, 3) +
			scheduler("sglang:num_grammar_queue_reqs", 0, 0, `priority="",`, 4) +
			scheduler("sglang:num_grammar_queue_reqs", 0, 0, `priority="1",`, 4) +
			scheduler("sglang:num_running_reqs", 0, 0, `priority="",`, 9) +
			scheduler("sglang:num_running_reqs", 0, 0, `priority="1",`, 9) +
			fmt.Sprintf("sglang:generation_tokens_total{model_name=\"m\",priority=\"1\"} %g\n", tokens) +
			fmt.Sprintf("sglang:generation_tokens_total{model_name=\"m\",priority=\"2\"} %g\n", 2*tokens)
	}
	in := Input{At: laterThanEveryPage, History: new(History)}
	in.Previous = readAs(t, p, page(100), in)
	in.At = in.At.Add(30 * time.Second)
	says(t, readAs(t, p, page(200), in), sentences{
		telemetry.QueueDepth:           "9",
		telemetry.ActiveRequests:       "9",
		telemetry.GenerationThroughput: "10 at 0.5: a request counts when it ends",
	})
}

func TestENGINES0_SGLang_AQueueForGrammarsOrDisaggregationIsBacklog(t *testing.T) {
	page := scheduler("sglang:num_queue_reqs", 0, 0, "", 1)
	for i, name := range []string{"num_grammar_queue_reqs", "num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs",
		"num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs"} {
		page += scheduler("sglang:"+name, 0, 0, "", float64(int(10)<<i))
	}
	page += scheduler("sglang:num_retracted_reqs", 0, 0, `pid="7",`, 1000) + scheduler("sglang:num_paused_reqs", 0, 0, `pid="7",`, 1000)
	says(t, readAs(t, profileOf(t, "sglang"), page, Input{}), sentences{telemetry.QueueDepth: "311"})
}

// Constants, queue times and retractions are shown by every rank of tp, and each
// says the same: 4 of dp 0 and 6 of dp 1, not 8 and 12.
func TestENGINES0_SGLang_WhatEveryRankShowsIsCountedOnce(t *testing.T) {
	page := func(dp0, dp1 float64) string {
		var page string
		for tp := range 4 {
			n := []float64{dp0, dp1}[tp/2]
			page += scheduler("sglang:max_total_num_tokens", tp/2, tp, "", 1000) +
				scheduler("sglang:num_retracted_requests_total", tp/2, tp, "", n) +
				scheduler("sglang:queue_time_seconds_bucket", tp/2, tp, `le="1.0",`, n) +
				scheduler("sglang:queue_time_seconds_bucket", tp/2, tp, `le="+Inf",`, 2*n) +
				scheduler("sglang:queue_time_seconds_count", tp/2, tp, "", 2*n) +
				scheduler("sglang:queue_time_seconds_sum", tp/2, tp, "", 4*n)
		}
		return page
	}
	s := grownPages(t, "sglang", page(1, 2), page(5, 8))
	wantMean(t, s, telemetry.QueueTime, 2, 20)
	wantValue(t, s, telemetry.PreemptionRate, 10.0/30)
	wantValue(t, s, telemetry.KVCacheCapacity, 2000)
}

// engine_type came in 0.5.11, is_streaming in 0.5.17, what counts all tokens of
// prompts in 0.5.18, and a real time per output token in 0.5.22.
func TestENGINES0_SGLang_LabelsAndFamiliesOfNewerReleasesAreRead(t *testing.T) {
	histogram := func(name string, streaming string, count int, sum float64) string {
		labels := fmt.Sprintf("engine_type=\"unified\",is_streaming=%q,model_name=\"m\"", streaming)
		return fmt.Sprintf("sglang:%[1]s_bucket{%[2]s,le=\"1.0\"} %[3]d\nsglang:%[1]s_bucket{%[2]s,le=\"+Inf\"} %[3]d\nsglang:%[1]s_count{%[2]s} %[3]d\nsglang:%[1]s_sum{%[2]s} %[4]g\n",
			name, labels, count, sum)
	}
	page := func(n int) string {
		return histogram("time_to_first_token_seconds", "true", n, 0.5*float64(n)) + histogram("time_to_first_token_seconds", "false", n, 0.25*float64(n)) +
			histogram("request_time_per_output_token_seconds", "true", n, 0.125*float64(n)) +
			// Of another meaning, whatever it says.
			histogram("time_per_output_token_seconds", "true", n, 0.75*float64(n)) +
			fmt.Sprintf("sglang:prefill_effective_tokens_total{mode=\"prefill_cache\",model_name=\"m\"} %d\nsglang:prefill_effective_tokens_total{mode=\"prefill_compute\",model_name=\"m\"} %d\n", 20*n, 10*n) +
			fmt.Sprintf("sglang:prompt_tokens_total{model_name=\"m\"} %d\n", 7*n)
	}
	s := grownPages(t, "sglang", page(10), page(20))
	wantMean(t, s, telemetry.TTFT, 0.375, 20)
	wantMean(t, s, telemetry.TPOT, 0.125, 10)
	wantValue(t, s, telemetry.PromptThroughput, 10)
	if q := s.Readings[telemetry.PromptThroughput].Quality; q != 1 {
		t.Errorf("quality %v of promptThroughput, want 1", q)
	}
}

func TestENGINES0_SGLang_JustStartedItKnowsItsCapacityAndNotItsLoad(t *testing.T) {
	page := scheduler("sglang:max_total_num_tokens", 0, 0, "", 427504) + scheduler("sglang:page_size", 0, 0, "", 1) +
		scheduler("sglang:realtime_tokens_total", 0, 0, `mode="decode",`, 0)
	says(t, readAs(t, profileOf(t, "sglang"), page, Input{}), sentences{
		telemetry.KVCacheCapacity:      "427504",
		telemetry.KVBlockSize:          "1",
		telemetry.QueueDepth:           "unknown, missing: sglang:num_queue_reqs is not on the page",
		telemetry.ActiveRequests:       "unknown, missing: sglang:num_running_reqs is not on the page",
		telemetry.KVCacheUtilization:   "unknown, missing: sglang:token_usage is not on the page",
		telemetry.GenerationThroughput: "supported, missing: first page",
	})
}

func TestENGINES0_SGLang_WithoutRanksTheLoadIsThatOfTheLastToReport(t *testing.T) {
	s := readAs(t, profileOf(t, "sglang"), pageOf(t, "sglang-old.prom"), Input{})
	says(t, s, sentences{
		telemetry.QueueDepth:         "2826 at 0.5: this release labels no ranks",
		telemetry.ActiveRequests:     "162 at 0.5: this release labels no ranks",
		telemetry.KVCacheUtilization: "0.28 max 0.28 at 0.5: this release labels no ranks",
	})
}

func TestENGINES0_SGLang_TheLastValuesOfADeadSchedulerBecomeStale(t *testing.T) {
	p := profileOf(t, "sglang")
	page := pageOf(t, "real-sglang-0.5.23-dp2-loaded.prom")
	start := laterThanEveryPage
	in := Input{At: start, History: new(History), Traffic: Traffic{IdleSince: start}}
	in.Previous = readAs(t, p, page, in)
	in.At = start.Add(9 * time.Second)
	in.Previous = readAs(t, p, page, in)
	says(t, in.Previous, sentences{telemetry.QueueDepth: "5"})
	in.At = start.Add(11 * time.Second)
	says(t, readAs(t, p, page, in), sentences{
		telemetry.QueueDepth:         "supported, stale: frozen",
		telemetry.ActiveRequests:     "supported, stale: frozen",
		telemetry.KVCacheUtilization: "supported, stale: frozen",
		telemetry.KVCacheCapacity:    "855008",
	})
}

func TestENGINES0_SGLang_AnIdlePageMayStandStillForEver(t *testing.T) {
	p := profileOf(t, "sglang")
	page := pageOf(t, "real-sglang-0.5.12-idle.prom")
	start := laterThanEveryPage
	in := Input{At: start, History: new(History), Traffic: Traffic{IdleSince: start}}
	in.Previous = readAs(t, p, page, in)
	in.At = start.Add(time.Hour)
	says(t, readAs(t, p, page, in), sentences{telemetry.QueueDepth: "0", telemetry.ActiveRequests: "0"})
}

func TestENGINES0_SGLang_TheGaugeOfRetractedRequestsIsNotTheirCounter(t *testing.T) {
	p := profileOf(t, "sglang")
	page := func(gauge, counter float64) string {
		return scheduler("sglang:num_retracted_reqs", 0, 0, `pid="7",`, gauge) +
			scheduler("sglang:num_retracted_requests_total", 0, 0, "", counter) +
			scheduler("sglang:num_retracted_requests_total", 0, 1, "", counter)
	}
	in := Input{At: laterThanEveryPage, History: new(History)}
	in.Previous = readAs(t, p, page(900, 2), in)
	in.At = in.At.Add(30 * time.Second)
	says(t, readAs(t, p, page(0, 5), in), sentences{telemetry.PreemptionRate: "0.1"})
}

func TestENGINES0_SGLang_TheOtherPagesGiveWhatTheMetricsDoNot(t *testing.T) {
	p := profileOf(t, "sglang")
	s := readAs(t, p, attentionDP(), Input{})
	for path, body := range map[string]string{
		"/server_info": `{"model_path":"/models/llama","api_key":"secret","disable_radix_cache":false,"internal_states":[{"version":1}],"version":"0.5.23"}`,
		"/v1/models":   `{"data":[{"id":"llama","owned_by":"sglang","root":"llama","parent":null,"max_model_len":131072},{"id":"sql-v2","root":"/loras/sql","parent":"llama","max_model_len":null}]}`,
		"/v1/loads":    `{"timestamp":"2026-09-01T00:00:00+00:00","version":"0.5.23","loads":[{"dp_rank":0,"num_running_reqs":9,"max_running_requests":2048},{"dp_rank":1,"num_running_reqs":9,"max_running_requests":2048}]}`,
	} {
		got, err := p.ReadSlow(pageAt(t, p, path), 200, []byte(body), laterThanEveryPage, 0, s)
		if err != nil {
			t.Fatal(err)
		}
		s = got
	}
	says(t, s, sentences{
		telemetry.EngineVersion:      "0.5.23",
		telemetry.PrefixCacheEnabled: "true",
		telemetry.ServedModels:       `["llama"]`,
		telemetry.AdaptersLoaded:     `["sql-v2"]`,
		telemetry.ContextLimit:       "131072",
		telemetry.MaxConcurrency:     "4096",
		telemetry.QueueDepth:         "11",
	})
	old, err := p.ReadSlow(pageAt(t, p, "/v1/loads"), 404, []byte(`{"detail":"Not Found"}`), laterThanEveryPage, 0, s)
	if err != nil {
		t.Fatal(err)
	}
	says(t, old, sentences{telemetry.MaxConcurrency: "unsupported, missing: the replica has no page /v1/loads"})
}

func TestENGINES0_SGLang_TheMultiprocessGaugeOfTheLastBatchIsNoThroughput(t *testing.T) {
	s := readAs(t, profileOf(t, "sglang"), pageOf(t, "real-sglang-0.5.12-idle.prom"), Input{})
	says(t, s, sentences{
		telemetry.GenerationThroughput: "unknown, missing: sglang:realtime_tokens_total is not on the page",
		telemetry.PrefixCacheHitRatio:  "unknown, missing: sglang:realtime_tokens_total is not on the page",
	})
}
