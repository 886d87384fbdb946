package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

const coveredProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: covered
detect: {prefixes: ["covered:"]}
pages:
- {path: /metrics, format: prometheus}
- {path: /v1/models, format: openai-models, every: 30s}
- {path: /ready, format: status, field: ready, no: [400, 503], every: 10s}
- path: /info
  format: json
  every: 1m
  fields:
    engineVersion: {member: version, quality: 0.5, because: of the server alone}
    maxConcurrency: {member: "loads[].max", combine: sum}
    prefixCacheEnabled: {member: no_cache, invert: true}
labels: {ranks: [rank]}
fields:
  queueDepth:
    unit: requests
    sources: [{metric: "covered:waiting", combine: sum}]
  activeRequests:
    unit: requests
    absent: unsupported
    sources: [{metric: "covered:running", where: {kind: llm, old: ""}, combine: max}]
  kvCacheUtilization:
    unit: util
    sources:
    - {metric: "covered:kv", combine: mean, quality: 0.8, because: some blocks are left out}
    - {metric: "covered:old_kv", combine: mean}
  kvCacheCapacity:
    unit: tokens
    sources:
    - {metric: "covered:tokens"}
    - {metric: "covered:guess", quality: 0.1, because: a guess}
  prefixCacheHitRatio:
    unit: util
    absent: unsupported
    sources:
    - {metric: "covered:hits_total", window: 30s, over: [{metric: "covered:asked_total"}], quality: 0.5, because: late}
    off:
    - {metric: "covered:config", label: cache, is: "False", because: caching is off}
    - {metric: "covered:config", label: cached, is: "False", because: caching is off}
  ttft:
    unit: seconds
    sources: [{metric: "covered:first_seconds", window: 30s}]
unsupported: {power: not exported}
`

func TestCoverageTellsOfEachFieldWhatTheProfileCanKnow(t *testing.T) {
	p, err := Parse("covered.yaml", []byte(coveredProfile))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, c := range p.Coverage() {
		if int(c.Field) != i {
			t.Errorf("%s is in place %d, want that of the catalogue", c.Field, i)
		}
		text := c.Level.String()
		for _, o := range c.Origins {
			text += fmt.Sprintf("; %s %s [%s] %.1f", o.Source.Path, o.Source.Metric, o.Source.Rule, o.Quality)
			if o.Because != "" {
				text += " " + o.Because
			}
		}
		if c.Reason != "" {
			text += "; reason: " + c.Reason
		}
		if len(c.Off) > 0 {
			text += "; off: " + strings.Join(c.Off, "|")
		}
		got[c.Field.String()] = text
	}
	want := map[string]string{
		"queueDepth":     "direct; /metrics covered:waiting [sum over rank] 1.0",
		"activeRequests": "partial; /metrics covered:running [max over rank where kind=llm without old] 1.0; reason: not in every release or configuration of the engine",
		"kvCacheUtilization": "partial; /metrics covered:kv [mean over rank] 0.8 some blocks are left out; /metrics covered:old_kv [mean over rank] 1.0; " +
			"reason: some blocks are left out",
		"kvCacheCapacity": "direct; /metrics covered:tokens [one series] 1.0; /metrics covered:guess [one series] 0.1 a guess",
		"prefixCacheHitRatio": "partial; /metrics covered:hits_total [sum over rank, growth over 30s, divided by covered:asked_total] 0.5 late; " +
			"reason: late; off: caching is off",
		"ttft":               "direct; /metrics covered:first_seconds [sum over rank, distribution over 30s] 1.0",
		"servedModels":       "direct; /v1/models data[].id [cards without a parent] 1.0",
		"adaptersLoaded":     "direct; /v1/models data[].id [cards with a parent] 1.0",
		"contextLimit":       "direct; /v1/models data[].max_model_len [lowest of the cards without a parent] 1.0",
		"ready":              "direct; /ready status [200 is yes, 400 no, 503 no] 1.0",
		"engineVersion":      "partial; /info version [one value] 0.5 of the server alone; reason: of the server alone",
		"maxConcurrency":     "direct; /info loads[].max [sum] 1.0",
		"prefixCacheEnabled": "direct; /info no_cache [one value, true where false] 1.0",
		"power":              "none; reason: not exported",
	}
	if len(got) != int(telemetry.NumFields) {
		t.Errorf("%d fields, want %d", len(got), telemetry.NumFields)
	}
	for field, text := range got {
		expect, listed := want[field]
		if !listed {
			expect = "none; reason: the profile does not name it"
		}
		if text != expect {
			t.Errorf("%s:\ngot  %s\nwant %s", field, text, expect)
		}
	}
}

// What is covered says so in readings too: a field has a source if and only if
// the profile reads it, and no source names another page.
func TestBuiltInProfilesGiveAReasonForWhatTheyDoNotCover(t *testing.T) {
	set, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range set.Engines() {
		for _, c := range p.Coverage() {
			switch {
			case c.Level == None && (len(c.Origins) > 0 || c.Reason == "" || c.Reason == unnamed):
				t.Errorf("%s: %s has no source, and says of it %q", p.Name(), c.Field, c.Reason)
			case c.Level != None && len(c.Origins) == 0:
				t.Errorf("%s: %s is %s without a source", p.Name(), c.Field, c.Level)
			case (c.Level == Direct) != (c.Reason == ""):
				t.Errorf("%s: %s is %s for the reason %q", p.Name(), c.Field, c.Level, c.Reason)
			}
			for _, o := range c.Origins {
				if o.Source.Metric == "" || o.Source.Path == "" || o.Source.Rule == "" {
					t.Errorf("%s: %s has the source %+v, want all of it", p.Name(), c.Field, o.Source)
				}
			}
		}
	}
}

// TestNoProfileReadsWhatMisleads: families that never existed, that say something
// else than their name, or that were taken for load elsewhere.
func TestNoProfileReadsWhatMisleads(t *testing.T) {
	for misleading, why := range map[string]string{
		"trtllm_cache_config_info":                 "never existed",
		"vllm:num_requests_success_total":          "never existed",
		"vllm:engine_healthy":                      "is in no release up to 0.33",
		"vllm:num_requests_waiting_by_reason":      "sums up to num_requests_waiting",
		"vllm:external_prefix_cache_hits_total":    "is of a connector's cache",
		"vllm:estimated_flops_per_gpu_total":       "is an estimate, and 0 without a flag",
		"sglang:cache_hit_rate":                    "is of the last prefill batch",
		"sglang:gen_throughput":                    "is of the last batch, however long ago",
		"sglang:num_retracted_reqs":                "is not the counter",
		"sglang:full_token_usage":                  "is a part of token_usage",
		"sglang:utilization":                       "is a ratio of the scheduler",
		"sglang:fwd_occupancy":                     "is a ratio of the scheduler, by default NaN",
		"atom:prefix_cache_hit_ratio":              "is cumulative since the start",
		"atom:requests_parked_kv_load":             "is a part of requests_waiting",
		"atom:requests_partial_prefill":            "is a part of requests_running",
		"trtllm_kv_cache_hit_rate":                 "is cumulative since the start",
		"trtllm_num_scheduled_requests":            "is of one iteration",
		"nv_inference_exec_count":                  "counts since the start, in batches",
		"nv_inference_pending_request_count":       "is the queue before the backend",
		"nv_inference_request_failure":             "is no load",
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":     "has its tokens on another page",
		"gpu_energy_consumed":                      "has its tokens on another page",
		"gpu_umc_activity":                         "is of the memory's controller",
		"nv_gpu_power_limit":                       "is what is allowed",
		"vllm:iteration_tokens_total":              "is a histogram of batches",
		"vllm:request_success_total":               "has aborted requests in it",
		"vllm:prompt_tokens_cached_total":          "is a part of prompt_tokens_total",
		"sglang:max_running_requests_under_SLO":    "is optional, and something else",
		"atom:metrics_refresh_errors_total":        "stays 0",
		"nv_trt_llm_inflight_batcher_metrics":      "has what is paused now, and no count",
		"trtllm_gpu_memory_usage_bytes":            "has no total beside it",
		"sglang:startup_available_gpu_memory_gb":   "is of the start",
		"nv_trt_llm_disaggregated_serving_metrics": "is no load",
	} {
		for _, p := range defaults(t).Profiles() {
			if slices.ContainsFunc(p.families, func(f family) bool { return f.name == misleading || strings.HasPrefix(f.name, misleading+"_") }) {
				t.Errorf("%s reads %s, which %s", p.Name(), misleading, why)
			}
		}
	}
}

func TestAProfileSaysByWhatItRecognisesAPage(t *testing.T) {
	for detect, want := range map[string]string{
		`{prefixes: ["a:", b_]}`:                    "a family that begins with a:; or a family that begins with b_",
		`{families: [one, two]}`:                    "all of one, two",
		`{prefixes: ["a:"], families: [one]}`:       "a family that begins with a:; or all of one",
		`{prefixes: ["a:b:"], ownedBy: [somebody]}`: "a family that begins with a:b:",
	} {
		text := strings.Replace(coveredProfile, `{prefixes: ["covered:"]}`, detect, 1)
		p, err := Parse("covered.yaml", []byte(strings.Replace(text, "pages:", "never: [/drain]\npages:", 1)))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Recognition(); got != want {
			t.Errorf("%s: %q, want %q", detect, got, want)
		}
		if got := p.Forbidden(); len(got) != 1 || got[0] != "/drain" {
			t.Errorf("forbidden paths are %q, want /drain", got)
		}
	}
}
