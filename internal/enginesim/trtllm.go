package enginesim

import (
	"strconv"
	"time"
)

// TRTLLM is the Dialect of trtllm-serve of TensorRT-LLM 1.3, with return_perf_metrics and enable_iter_perf_stats on and the PyTorch
// backend.
//
// The telemetry page is at /prometheus/metrics. What it says of the load is of the latest step in which a request completed, and
// absent before the first one; there is no sign of how old it is. At /metrics is a JSON list of the steps since somebody last
// asked for it, the latest 1000 at most: whoever reads it takes it away from others (Arrivals.Drained).
type TRTLLM struct{}

const trtllmVersion = "1.3.0"

// Name is "trtllm-serve".
func (TRTLLM) Name() string { return "trtllm-serve" }

// Cadence is that of the server's loop, which a completion wakes.
func (TRTLLM) Cadence() Cadence { return Cadence{Completion: true, Rows: 1000, TTFTAtEnd: true} }

// Bounds are TensorRT-LLM's.
func (TRTLLM) Bounds() Bounds {
	ttft := []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tpot := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2e := []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	prefill := []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560}
	return Bounds{TTFT: ttft, TPOT: tpot, E2E: e2e, Queue: e2e, Prefill: prefill, Decode: e2e, Inference: e2e}
}

// Pages has the telemetry page where no other engine has it.
func (TRTLLM) Pages() Pages {
	metrics := Page{Make: trtllmMetrics, Telemetry: true, Negotiates: true}
	return Pages{
		"/prometheus/metrics":  metrics,
		"/prometheus/metrics/": metrics,
		"/metrics":             {Make: object(trtllmIterations), Drains: true},
		"/health":              {Make: empty},
		"/health_generate":     {Make: empty, Generates: true},
		"/version":             {Make: constant(map[string]string{"version": trtllmVersion})},
		"/v1/models":           {Make: modelList(func(s State, id string) card { return newCard(s, id, "tensorrt_llm") })},
	}
}

func trtllmMetrics(s State) Content {
	p := trtllmPage{exposition{number: pythonNumber, common: []label{{"engine_type", "pytorch"}, {"model_name", s.Models[0]}}}}
	if s.Streamed.Finished+s.Whole.Finished > 0 {
		p.requests(s)
	}
	if !s.Shown.At.IsZero() {
		p.iteration(s)
	}
	p.configuration(s)
	return text("text/plain; version=0.0.4; charset=utf-8", &p.exposition)
}

type trtllmPage struct{ exposition }

// trtllmPID is of the one process that writes gauges: each of them has this label because none of them says how several
// processes' values become one.
var trtllmPID = label{"pid", "71"}

func (p *trtllmPage) requests(s State) {
	st, all := s.Truth.Stats, s.All()
	p.family("trtllm_request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range []struct {
		name  string
		count uint64
	}{{"stop", st.Stopped}, {"length", st.Truncated}} {
		if reason.count > 0 {
			p.series("trtllm_request_success_total", float64(reason.count), label{"finished_reason", reason.name})
		}
	}
	for _, f := range []struct {
		name, help string
		h          Histogram
	}{
		{"e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", all.E2E},
		{"time_to_first_token_seconds", "Histogram of time to first token in seconds.", all.TTFT},
		{"time_per_output_token_seconds", "Histogram of time per output token in seconds.", all.TPOT},
		{"request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", all.Queue},
		{"request_prefill_time_seconds",
			"Histogram of prefill (context) phase duration in seconds (first_token_time - first_scheduled_time).", all.Prefill},
		{"request_decode_time_seconds",
			"Histogram of decode (generation) phase duration in seconds (last_token_time - first_token_time).", all.Decode},
		{"request_inference_time_seconds",
			"Histogram of total inference duration in seconds (last_token_time - first_scheduled_time).", all.Inference},
	} {
		if f.h.Count() > 0 {
			p.family("trtllm_"+f.name, "histogram", f.help)
			p.multiprocess("trtllm_"+f.name, f.h)
		}
	}
	p.counter("trtllm_prompt_tokens_total", "Cumulative number of prompt (input) tokens processed.", all.PromptTokens)
	p.counter("trtllm_generation_tokens_total", "Cumulative number of generation (output) tokens produced.", all.GeneratedTokens)
	p.counter("trtllm_prompt_cached_tokens_total", "Process-lifetime total prompt tokens served from KV cache. "+
		"Resets only when the serving process restarts, not when the KV cache is flushed or evicted.", all.CachedTokens)
}

// Memory of a device of 80 GB. Engines take the KV cache's part of it at the start, so it tells nothing about the load.
const (
	gpuMemoryTotal = 85_520_809_984
	gpuMemoryUsed  = 71_940_702_208
)

func (p *trtllmPage) iteration(s State) {
	r, st := s.Shown, s.Shown.Stats
	reused, missed, rate := kvBlocks(s, r)
	p.counter("trtllm_kv_cache_reused_blocks_total", "Cumulative number of KV cache blocks reused (cache hits)", reused)
	p.counter("trtllm_kv_cache_missed_blocks_total", "Cumulative number of KV cache blocks missed (cache misses)", missed)
	p.counter("trtllm_num_requests_completed_total", "Total number of completed requests across iterations", r.Finished)
	for _, f := range []struct {
		name  string
		value float64
		help  string
	}{
		{"trtllm_kv_cache_hit_rate", rate, "KV cache hit rate"},
		{"trtllm_kv_cache_utilization", st.KVUsage(), "KV cache utilization"},
		{"trtllm_kv_cache_host_utilization", 0, "KV cache host (secondary) pool utilization"},
		{"trtllm_kv_cache_iter_reuse_rate", rate, "Per-iteration KV cache block reuse rate"},
		{"trtllm_num_requests_running", float64(st.Running), "Number of active requests"},
		{"trtllm_num_requests_waiting", float64(st.Waiting), "Number of queued requests"},
		{"trtllm_max_num_active_requests", float64(s.Engine.MaxRunning), "Maximum number of active requests"},
		{"trtllm_iteration_latency_seconds", r.Took.Seconds(), "Iteration latency in seconds"},
		{"trtllm_gpu_memory_usage_bytes", gpuMemoryUsed, "GPU memory usage in bytes"},
		{"trtllm_cpu_memory_usage_bytes", 0, "CPU memory usage in bytes"},
		{"trtllm_pinned_memory_usage_bytes", 0, "Pinned memory usage in bytes"},
		{"trtllm_max_batch_size_static", float64(s.Engine.MaxRunning), "Static maximum batch size"},
		{"trtllm_max_batch_size_runtime", float64(s.Engine.MaxRunning), "Runtime maximum batch size"},
		{"trtllm_max_num_tokens_runtime", float64(s.Engine.MaxBatchedTokens), "Runtime maximum number of tokens"},
		{"trtllm_kv_cache_max_blocks", float64(st.BlocksTotal), "Maximum number of KV cache blocks"},
		{"trtllm_kv_cache_free_blocks", float64(st.BlocksTotal - st.BlocksUsed), "Number of free KV cache blocks"},
		{"trtllm_kv_cache_used_blocks", float64(st.BlocksUsed), "Number of used KV cache blocks"},
		{"trtllm_kv_cache_tokens_per_block", float64(s.Engine.BlockTokens), "Number of tokens per KV cache block"},
		{"trtllm_num_context_requests", float64(r.Computing), "Number of context (prefill) requests"},
		{"trtllm_num_generation_requests", float64(st.Running - r.Computing), "Number of generation (decode) requests"},
		{"trtllm_num_paused_requests", 0, "Number of paused requests"},
		{"trtllm_num_scheduled_requests", float64(st.Running), "Number of scheduled requests"},
		{"trtllm_total_context_tokens", 0, "Total number of context tokens"},
		{"trtllm_avg_decoded_tokens_per_iter", 1, "Average number of decoded tokens per iteration"},
		{"trtllm_prefill_batch_occupancy", float64(r.Computing) / float64(s.Engine.MaxRunning), "Fraction of max active slots occupied by context requests."},
	} {
		p.gauge(f.name, f.help, f.value, trtllmPID)
	}
}

// kvBlocks are the full blocks of prompts that were found in the cache and that were not.
func kvBlocks(s State, r Report) (reused, missed uint64, hitRate float64) {
	size := uint64(s.Engine.BlockTokens)
	reused, missed = r.Stats.CachedTokens/size, (r.Stats.QueriedTokens-r.Stats.CachedTokens)/size
	if all := reused + missed; all > 0 {
		hitRate = float64(reused) / float64(all)
	}
	return reused, missed, hitRate
}

// configuration writes what is known from the start.
func (p *trtllmPage) configuration(s State) {
	p.gauge("trtllm_model_config_info", "Model configuration info", 1, trtllmPID,
		label{"dtype", "auto"},
		label{"gpu_type", "NVIDIA H100 80GB HBM3"},
		label{"max_model_len", strconv.Itoa(s.MaxModelLen)},
		label{"model", s.Root},
		label{"quantization", "none"},
		label{"served_model_name", s.Models[0]})
	p.gauge("trtllm_parallel_config_info", "Parallelism configuration info", 1, trtllmPID,
		label{"context_parallel_size", "1"},
		label{"gpu_count", "1"},
		label{"pipeline_parallel_size", "1"},
		label{"tensor_parallel_size", "1"})
	p.gauge("trtllm_kv_cache_config_info", "KV cache configuration info", 1, trtllmPID,
		label{"cache_dtype", "auto"},
		label{"enable_block_reuse", pythonBool(!s.Engine.DisablePrefixCache)},
		label{"enable_partial_reuse", pythonBool(!s.Engine.DisablePrefixCache)},
		label{"free_gpu_memory_fraction", "0.9"})
}

// trtllmIterations is one object for each step. Its keys are a part of those that TensorRT-LLM writes.
func trtllmIterations(s State) any {
	rows := []any{} // an empty list, not null
	for _, r := range s.Rows {
		st := r.Stats
		reused, missed, rate := kvBlocks(s, r)
		rows = append(rows, map[string]any{
			"iter":                 st.Steps,
			"timestamp":            r.At.UTC().Format("01-02-2006 15:04:05.000000"),
			"iterLatencyMS":        float64(r.Took) / float64(time.Millisecond),
			"numNewActiveRequests": r.Admitted,
			"numActiveRequests":    st.Running,
			"numQueuedRequests":    st.Waiting,
			"numCompletedRequests": r.Completed,
			"maxNumActiveRequests": s.Engine.MaxRunning,
			"maxBatchSizeStatic":   s.Engine.MaxRunning,
			"maxBatchSizeRuntime":  s.Engine.MaxRunning,
			"maxNumTokensStatic":   s.Engine.MaxBatchedTokens,
			"maxNumTokensRuntime":  s.Engine.MaxBatchedTokens,
			"gpuMemUsage":          gpuMemoryUsed,
			"cpuMemUsage":          0,
			"pinnedMemUsage":       0,
			"kvCacheStats": map[string]any{
				"maxNumBlocks":   st.BlocksTotal,
				"freeNumBlocks":  st.BlocksTotal - st.BlocksUsed,
				"usedNumBlocks":  st.BlocksUsed,
				"tokensPerBlock": s.Engine.BlockTokens,
				"reusedBlocks":   reused,
				"missedBlocks":   missed,
				"cacheHitRate":   rate,
			},
			"inflightBatchingStats": map[string]any{
				"numScheduledRequests": st.Running,
				"numContextRequests":   r.Computing,
				"numGenRequests":       st.Running - r.Computing,
				"numPausedRequests":    0,
				"microBatchId":         0,
			},
			"staticBatchingStats": nil,
			"specDecodingStats":   nil,
		})
	}
	return rows
}
