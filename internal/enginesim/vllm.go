package enginesim

import (
	"math"
	"strconv"
)

// VLLM is the Dialect of vLLM 0.32 with one data-parallel rank: names, types, labels and number format of its page, the families
// that a router can use, and the _created gauges that its client library adds. Unlike vLLM it shows no Python and no HTTP
// server families. The page is always true, but for a preemption: it counts when the request that was preempted generates again.
type VLLM struct{}

// vllmVersion is the version that the page is taken from.
const vllmVersion = "0.32.0"

// Name is "vllm".
func (VLLM) Name() string { return "vllm" }

// Cadence is none.
func (VLLM) Cadence() Cadence { return Cadence{} }

// Bounds are vLLM's.
func (VLLM) Bounds() Bounds {
	ttft := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itl := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2e := []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	return Bounds{TTFT: ttft, ITL: itl, TPOT: itl, E2E: e2e, Queue: e2e}
}

// Pages has the telemetry page at two paths, of which the one without a slash at its end has one format. /health is 200 even while the engine is asleep.
func (VLLM) Pages() Pages {
	return Pages{
		"/metrics":  {Make: vllmMetrics, Telemetry: true},
		"/metrics/": {Make: vllmMetrics, Telemetry: true, Negotiates: true},
		"/health":   {Make: empty},
		"/ping":     {Make: empty},
		"/version":  {Make: constant(map[string]string{"version": vllmVersion})},
		"/v1/models": {Make: modelList(func(s State, id string) fullCard {
			return fullCard{card: newCard(s, id, "vllm"), Root: s.Root, MaxModelLen: s.MaxModelLen}
		})},
	}
}

func vllmMetrics(s State) Content {
	p := vllmPage{
		exposition: exposition{common: []label{{"engine", "0"}, {"model_name", s.Models[0]}}, number: pythonNumber},
		created:    float64(s.Started.UnixMicro()) / 1e6,
	}
	p.process(s)
	p.load(s)
	p.counters(s)
	p.histograms(s)
	p.cacheConfig(s)
	// vLLM answers with this version whatever the scraper asks for.
	return text("text/plain; version=1.0.0; charset=utf-8", &p.exposition)
}

type vllmPage struct {
	exposition
	created float64
}

func (p *vllmPage) process(s State) {
	// The kernel gives start times in hundredths of a second.
	started := math.Floor(float64(s.Started.UnixMilli())/10) / 100
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.bare("process_start_time_seconds", started)
}

func (p *vllmPage) load(s State) {
	st := s.Truth.Stats
	waiting := float64(st.Waiting)
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(st.Running))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
	p.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: "+
		"'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV "+
		"transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.", waiting, label{"reason", "capacity"})
	p.series("vllm:num_requests_waiting_by_reason", 0, label{"reason", "deferred"})
	awake, offloaded := 1.0, 0.0
	if s.Asleep {
		awake, offloaded = 0, 1
	}
	p.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "+
		"awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.", awake, label{"sleep_state", "awake"})
	p.series("vllm:engine_sleep_state", offloaded, label{"sleep_state", "weights_offloaded"})
	p.series("vllm:engine_sleep_state", 0, label{"sleep_state", "discard_all"})
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", st.KVUsage())
}

func (p *vllmPage) counters(s State) {
	st := s.Truth.Stats
	p.total("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", counted{value: st.QueriedTokens})
	p.total("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", counted{value: st.CachedTokens})
	p.total("vllm:num_preemptions", "Cumulative number of preemption from the engine.", counted{value: s.Truth.Recovered})
	p.total("vllm:prompt_tokens", "Number of prefill tokens processed.", counted{value: st.PromptTokens})
	p.total("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", counted{value: st.CachedTokens})
	p.total("vllm:generation_tokens", "Number of generation tokens processed.", counted{value: st.GeneratedTokens})
	// vLLM shows every reason from the start, and counts a client that went away under none of them.
	reason := func(name string, value uint64) counted {
		return counted{value: value, own: []label{{"finished_reason", name}}}
	}
	p.total("vllm:request_success", "Count of successfully processed requests.", reason("stop", st.Stopped),
		reason("length", st.Truncated), reason("abort", 0), reason("error", 0), reason("repetition", 0))
}

func (p *vllmPage) histograms(s State) {
	all := s.All()
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", all.TTFT)
	p.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", all.ITL)
	p.histogram("vllm:request_time_per_output_token_seconds",
		"Histogram of time_per_output_token_seconds per request.", all.TPOT)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", all.E2E)
	p.histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", all.Queue)
}

func (p *vllmPage) cacheConfig(s State) {
	// One block is never given out; usage is of the others.
	blocks := s.Engine.Blocks + 1
	blockTokens, tokens := strconv.Itoa(s.Engine.BlockTokens), blocks*s.Engine.BlockTokens
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.bare("vllm:cache_config_info", 1,
		label{"block_size", blockTokens},
		label{"cache_dtype", "auto"},
		label{"effective_attention_block_size", blockTokens},
		label{"enable_prefix_caching", pythonBool(!s.Engine.DisablePrefixCache)},
		label{"engine", "0"},
		label{"gpu_memory_utilization", "0.92"},
		label{"kv_cache_max_concurrency", pythonNumber(float64(tokens) / float64(s.MaxModelLen))},
		label{"kv_cache_size_tokens", strconv.Itoa(tokens)},
		label{"num_cpu_blocks", "None"},
		label{"num_gpu_blocks", strconv.Itoa(blocks)},
		label{"num_gpu_blocks_override", "None"},
		label{"prefix_caching_hash_algo", "sha256"},
		label{"sliding_window", "None"},
		label{"user_specified_block_size", "False"})
}

// counted is one series of a counter.
type counted struct {
	value uint64
	own   []label
}

// total writes a counter and the gauge with its time of creation.
func (p *vllmPage) total(name, help string, series ...counted) {
	p.family(name+"_total", "counter", help)
	for _, c := range series {
		p.series(name+"_total", float64(c.value), c.own...)
	}
	p.family(name+"_created", "gauge", help)
	for _, c := range series {
		p.series(name+"_created", p.created, c.own...)
	}
}

// histogram writes a histogram and the gauge with its time of creation.
func (p *vllmPage) histogram(name, help string, h Histogram) {
	p.family(name, "histogram", help)
	p.buckets(name, h)
	p.series(name+"_count", float64(h.Count()))
	p.series(name+"_sum", h.Sum)
	p.gauge(name+"_created", help, p.created)
}
