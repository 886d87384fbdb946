package enginesim

import (
	"math"
	"net/http"
	"time"
)

// SGLang is the Dialect of SGLang 0.5.23 with one rank and --enable-metrics.
//
// What the scheduler tells (running, queue, usage) is on its page only after the first report, which comes with the first request or
// 30 s after the start; it is of the latest step that computed a prompt, or of the latest fortieth step that did not, and stays
// as it is for up to 30 s after the last request has gone. Counters of the tokenizer process move when a request finishes.
// Most families have no series before their first event.
type SGLang struct{}

// SGLangAPIKey is the secret that /server_info gives away, for tests that look for it where it must not be.
const SGLangAPIKey = "sk-sim-must-not-be-logged"

const sglangVersion = "0.5.23"

// Name is "sglang".
func (SGLang) Name() string { return "sglang" }

// Cadence is the scheduler's, with its default --decode-log-interval.
func (SGLang) Cadence() Cadence {
	return Cadence{Prefill: true, DecodeSteps: 40, Idle: 30 * time.Second}
}

// Bounds are SGLang's.
func (SGLang) Bounds() Bounds {
	ttft := []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	itl := []float64{0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
		1, 2, 4, 6, 8}
	e2e := []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400}
	queue := []float64{0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200,
		300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000}
	tokens := []float64{100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500,
		20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1e6, 1.1e6}
	return Bounds{TTFT: ttft, ITL: itl, TPOT: itl, E2E: e2e, Queue: queue, PromptLength: tokens, OutputLength: tokens}
}

// Pages has a /health that costs a token and at least a second, and a /ready that costs nothing.
func (SGLang) Pages() Pages {
	metrics := Page{Make: sglangMetrics, Telemetry: true, Negotiates: true}
	health := Page{Make: empty, Generates: true}
	info := Page{Make: object(sglangServerInfo)}
	return Pages{
		"/metrics":         metrics,
		"/metrics/":        metrics,
		"/health":          health,
		"/health_generate": health,
		"/ready":           {Make: ready(http.StatusServiceUnavailable)},
		"/server_info":     info,
		"/get_server_info": info,
		"/model_info": {Make: object(func(s State) any {
			return map[string]any{"model_path": s.Root, "tokenizer_path": s.Root, "is_generation": true}
		})},
		"/v1/loads": {Make: object(sglangLoads)},
		// The root is the served name, not where the model comes from.
		"/v1/models": {Make: modelList(func(s State, id string) fullCard {
			return fullCard{card: newCard(s, id, "sglang"), Root: id, MaxModelLen: s.MaxModelLen}
		})},
	}
}

func sglangServerInfo(s State) any {
	return map[string]any{
		"version":              sglangVersion,
		"model_path":           s.Root,
		"served_model_name":    s.Models[0],
		"api_key":              SGLangAPIKey,
		"context_length":       s.MaxModelLen,
		"disable_radix_cache":  s.Engine.DisablePrefixCache,
		"max_running_requests": s.Engine.MaxRunning,
		"max_total_num_tokens": capacity(s.Engine),
		"page_size":            s.Engine.BlockTokens,
		"tp_size":              1,
		"dp_size":              1,
	}
}

// sglangLoads asks the scheduler itself, so it is true at once.
func sglangLoads(s State) any {
	st := s.Truth.Stats
	load := map[string]any{
		"dp_rank":              0,
		"timestamp":            seconds(s.Now),
		"num_running_reqs":     st.Running,
		"num_waiting_reqs":     st.Waiting,
		"num_used_tokens":      st.BlocksUsed * s.Engine.BlockTokens,
		"max_total_num_tokens": capacity(s.Engine),
		"token_usage":          st.KVUsage(),
		"gen_throughput":       s.Truth.Throughput,
		"cache_hit_rate":       s.Truth.HitRate,
		"max_running_requests": s.Engine.MaxRunning,
	}
	return map[string]any{
		"timestamp":     s.Now.UTC().Format(time.RFC3339Nano),
		"version":       sglangVersion,
		"dp_rank_count": 1,
		"loads":         []any{load},
		"aggregate": map[string]any{
			"total_running_reqs": st.Running,
			"total_waiting_reqs": st.Waiting,
			"total_reqs":         st.Running + st.Waiting,
			"avg_token_usage":    st.KVUsage(),
			"avg_throughput":     s.Truth.Throughput,
		},
	}
}

// seconds is Unix time as Python writes it into JSON.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func sglangMetrics(s State) Content {
	engine := []label{{"engine_type", "unified"}, {"model_name", s.Models[0]}}
	scheduler := sglangPage{exposition{number: pythonNumber,
		common: append([]label{{"moe_ep_rank", "0"}, {"pp_rank", "0"}, {"tp_rank", "0"}}, engine...)}}
	scheduler.constants(s)
	if !s.Shown.At.IsZero() {
		scheduler.load(s)
	}
	scheduler.work(s)
	tokenizer := sglangPage{exposition{number: pythonNumber, common: engine}}
	tokenizer.requests(s)
	scheduler.buf.Write(tokenizer.buf.Bytes())
	return text("text/plain; version=0.0.4; charset=utf-8", &scheduler.exposition)
}

type sglangPage struct{ exposition }

func (p *sglangPage) constants(s State) {
	p.gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", float64(capacity(s.Engine)))
	p.gauge("sglang:weight_memory_usage_gb", "GPU memory of the weights in GB.", 14.99)
	p.gauge("sglang:kv_cache_memory_usage_gb", "GPU memory of the KV cache in GB.", 52.19)
	p.gauge("sglang:page_size", "KV cache page size in tokens.", float64(s.Engine.BlockTokens))
	p.gauge("sglang:num_pages", "Number of KV cache pages.", float64(s.Engine.Blocks))
	p.gauge("sglang:context_len", "Maximum context length.", float64(s.MaxModelLen))
	p.gauge("sglang:startup_available_gpu_memory_gb", "Available GPU memory in GB at startup.", 9.87)
}

// load writes what the scheduler has reported.
func (p *sglangPage) load(s State) {
	st := s.Shown.Stats
	tokens := func(blocks int) float64 { return float64(blocks * s.Engine.BlockTokens) }
	usage := st.KVUsage()
	p.gauge("sglang:num_running_reqs", "The number of running requests.", float64(st.Running))
	p.gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", float64(st.Waiting))
	p.gauge("sglang:num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0)
	p.gauge("sglang:gen_throughput", "The generation throughput (token/s).", s.Shown.Throughput)
	p.gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", s.Shown.HitRate)
	p.gauge("sglang:token_usage", "The token usage.", usage)
	p.gauge("sglang:full_token_usage", "The token usage for full attention layers.", usage)
	p.gauge("sglang:swa_token_usage", "The token usage for SWA layers.", 0)
	p.gauge("sglang:mamba_usage", "The token usage for Mamba layers.", 0)
	p.gauge("sglang:num_used_tokens", "The number of used tokens.", tokens(st.BlocksUsed))
	p.gauge("sglang:kv_available_tokens", "Number of free token slots in the KV cache pool.",
		tokens(st.BlocksTotal-st.BlocksUsed-st.BlocksCached))
	p.gauge("sglang:kv_evictable_tokens", "Number of evictable (radix-cached) token slots in the KV cache pool.", tokens(st.BlocksCached))
	p.gauge("sglang:kv_used_tokens", "Number of actively used token slots in the KV cache pool.", tokens(st.BlocksUsed))
	for _, queue := range []string{"prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer"} {
		p.gauge("sglang:num_"+queue+"_queue_reqs", "The number of requests in the "+queue+" queue.", 0)
	}
	p.gauge("sglang:utilization", "The utilization.", 0)
	p.gauge("sglang:fwd_occupancy", "Forward pass GPU occupancy percentage.", math.NaN())
	p.gauge("sglang:new_token_ratio", "The new token ratio.", 0.41)
	pid := label{"pid", "9116"}
	p.gauge("sglang:num_retracted_reqs", "The number of retracted requests.", 0, pid)
	p.gauge("sglang:num_paused_reqs", "The number of paused requests by async weight sync.", 0, pid)
}

// work writes the scheduler's counters. Some have been there from the start, others come with the first event.
func (p *sglangPage) work(s State) {
	st := s.Shown.Stats
	computed := float64(st.QueriedTokens - st.CachedTokens)
	if s.Engine.DisablePrefixCache {
		computed = float64(st.PromptTokens)
	}
	cached := float64(st.CachedTokens)
	mode := func(name string) label { return label{"mode", name} }
	p.family("sglang:prefill_effective_tokens_total", "counter", "Prompt tokens by where they came from.")
	p.series("sglang:prefill_effective_tokens_total", computed, mode("input"))
	p.series("sglang:prefill_effective_tokens_total", cached, mode("device_hit"))
	p.series("sglang:prefill_effective_tokens_total", 0, mode("host_hit"))
	p.series("sglang:prefill_effective_tokens_total", 0, mode("storage_hit"))
	p.family("sglang:scheduler_idle_seconds_total", "counter", "Time in which the scheduler had nothing to do.")
	p.series("sglang:scheduler_idle_seconds_total", (s.Up() - s.Busy).Seconds())
	if st.Steps > 0 {
		p.family("sglang:realtime_tokens_total", "counter",
			"Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode.")
		p.series("sglang:realtime_tokens_total", computed, mode("prefill_compute"))
		p.series("sglang:realtime_tokens_total", cached, mode("prefill_cache"))
		p.series("sglang:realtime_tokens_total", float64(st.GeneratedTokens), mode("decode"))
	}
	if n := s.Truth.Stats.Preemptions; n > 0 {
		p.counter("sglang:num_retracted_requests_total", "Total number of retracted requests.", n)
	}
	p.histogram("sglang:queue_time_seconds", "Histogram of queueing time in seconds.", s.All().Queue)
}

// requests writes what the tokenizer process counts. Nothing of it is there before the first request.
func (p *sglangPage) requests(s State) {
	p.counters(s, "sglang:prompt_tokens_total", "Number of prefill tokens processed.",
		func(t Totals) uint64 { return t.PromptTokens })
	p.counters(s, "sglang:generation_tokens_total", "Number of generation tokens processed.",
		func(t Totals) uint64 { return t.GeneratedTokens })
	all := s.All()
	if all.CachedTokens > 0 {
		p.counter("sglang:cached_tokens_total", "Number of cached prompt tokens by source (device/host/storage).",
			all.CachedTokens, label{"cache_source", "device"})
	}
	p.counters(s, "sglang:num_requests_total", "Number of requests processed.", func(t Totals) uint64 { return t.Finished })
	if n := s.Truth.Stats.Aborted; n > 0 {
		p.counter("sglang:num_aborted_requests_total", "Number of requests aborted.", n)
	}
	p.histograms(s, "sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.",
		func(l Latencies) Histogram { return l.TTFT })
	p.histogram("sglang:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", all.ITL)
	p.histograms(s, "sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds",
		func(l Latencies) Histogram { return l.E2E })
	p.histograms(s, "sglang:request_time_per_output_token_seconds", "Histogram of time per output token of a request in seconds.",
		func(l Latencies) Histogram { return l.TPOT })
	p.histogram("sglang:prompt_tokens_histogram", "Histogram of prompt token length.", all.PromptLength)
	p.histogram("sglang:generation_tokens_histogram", "Histogram of generation token length.", all.OutputLength)
}

// byStreaming are the two children of families that tell streamed requests from others.
func byStreaming(s State) []struct {
	own  label
	work Work
} {
	return []struct {
		own  label
		work Work
	}{{label{"is_streaming", "true"}, s.Streamed}, {label{"is_streaming", "false"}, s.Whole}}
}

func (p *sglangPage) counters(s State, name, help string, count func(Totals) uint64) {
	if s.Streamed.Finished+s.Whole.Finished == 0 {
		return
	}
	p.family(name, "counter", help)
	for _, child := range byStreaming(s) {
		if child.work.Finished > 0 {
			p.series(name, float64(count(child.work.Totals)), child.own)
		}
	}
}

func (p *sglangPage) histograms(s State, name, help string, of func(Latencies) Histogram) {
	if of(s.All().Latencies).Count() == 0 {
		return
	}
	p.family(name, "histogram", help)
	for _, child := range byStreaming(s) {
		if h := of(child.work.Latencies); h.Count() > 0 {
			p.multiprocess(name, h, child.own)
		}
	}
}

func (p *sglangPage) histogram(name, help string, h Histogram) {
	if h.Count() > 0 {
		p.family(name, "histogram", help)
		p.multiprocess(name, h)
	}
}
