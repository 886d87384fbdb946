package enginesim

import (
	"time"
)

// ATOM is the Dialect of ROCm ATOM's own server, of the main branch at ffdf3bb5, the first weeks in which it had a telemetry page.
//
// The page has no labels. The engine core hands a snapshot over every 5 s at most, at the end of a step or while it is idle, and the API
// server reads the latest one every 5 s: what the page shows is 5 to 10 s old, or older while a step takes longer or the
// scheduler stands still. Its time of refresh is when the API server read, whatever it found. Until it has found
// something all else is 0. Tokens and finished requests are counted when a request finishes.
type ATOM struct{}

// Name is "atom".
func (ATOM) Name() string { return "atom" }

// Cadence is the core's and the API server's.
func (ATOM) Cadence() Cadence {
	return Cadence{AtStart: true, Step: true, Idle: 5 * time.Second, Gap: 5 * time.Second, Reread: 5 * time.Second}
}

// Bounds are none: the page has no histograms.
func (ATOM) Bounds() Bounds { return Bounds{} }

// Pages has no page with the engine's version, and a /health that does not look at the engine.
func (ATOM) Pages() Pages {
	return Pages{
		"/metrics": {Make: atomMetrics, Telemetry: true},
		"/health":  {Make: constant(map[string]string{"status": "ok"})},
		"/server_info": {Make: object(func(s State) any {
			return map[string]any{"model_id": s.Root, "served_model_name": s.Models[0], "tp_size": 1, "dp_size": 1}
		})},
		"/v1/models": {Make: modelList(func(s State, id string) card { return newCard(s, id, "atom") })},
	}
}

func atomMetrics(s State) Content {
	e := exposition{number: pythonNumber}
	available := 0.0
	if !s.Shown.At.IsZero() {
		available = 1
	}
	e.gauge("atom:metrics_snapshot_available", "Whether a runtime metrics snapshot has been collected successfully.", available)
	e.counter("atom:metrics_refresh_errors_total", "Number of failed runtime metrics refreshes.", 0)
	e.gauge("atom:metrics_last_refresh_timestamp_seconds", "Unix timestamp of the last successful runtime metrics refresh.", seconds(s.Looked))
	for _, f := range atomFamilies(s.Shown) {
		e.family("atom:"+f.name, f.kind, f.help)
		e.series("atom:"+f.name, f.value)
	}
	// It would have a series for each number of tokens that speculation has gained.
	e.family("atom:mtp_decode_steps_total", "counter", "Number of speculative decode steps by accepted bonus-token count.")
	return text("text/plain; version=1.0.0; charset=utf-8", &e)
}

type atomFamily struct {
	name, kind string
	value      float64
	help       string
}

// atomFamilies are the families of a snapshot. Those of features that are off are 0.
func atomFamilies(r Report) []atomFamily {
	st := r.Stats
	hits, queries := float64(st.CachedTokens), float64(st.QueriedTokens)
	ratio := 0.0
	if queries > 0 {
		ratio = hits / queries
	}
	return []atomFamily{
		{"requests_running", "gauge", float64(st.Running), "Number of requests currently running across data-parallel ranks."},
		{"requests_waiting", "gauge", float64(st.Waiting), "Number of requests waiting across data-parallel ranks."},
		{"requests_parked_kv_load", "gauge", 0, "Number of requests parked for an external KV load."},
		{"requests_partial_prefill", "gauge", float64(r.Computing), "Number of requests currently in chunked prefill."},
		{"kv_cache_blocks_used", "gauge", float64(st.BlocksUsed), "Number of allocated KV-cache blocks."},
		{"kv_cache_blocks_free", "gauge", float64(st.BlocksTotal - st.BlocksUsed), "Number of free KV-cache blocks."},
		{"kv_cache_blocks_total", "gauge", float64(st.BlocksTotal), "Total number of KV-cache blocks."},
		{"kv_cache_blocks_indexed", "gauge", float64(st.BlocksCached), "Number of KV-cache blocks reachable by prefix hash."},
		{"kv_cache_usage_ratio", "gauge", st.KVUsage(), "Fraction of KV-cache blocks currently allocated."},
		{"requests_finished_total", "counter", float64(r.Finished), "Number of requests completed by the scheduler."},
		{"prompt_tokens_total", "counter", float64(r.PromptTokens), "Number of prompt tokens in completed requests."},
		{"generation_tokens_total", "counter", float64(r.GeneratedTokens), "Number of generated tokens in completed requests."},
		{"preemptions_total", "counter", float64(st.Preemptions), "Number of scheduler preemptions."},
		{"prefix_cache_requests_total", "counter", float64(r.LookedUp), "Number of prefill requests observed by prefix-cache accounting."},
		{"prefix_cache_cached_tokens_total", "counter", hits, "Number of prompt tokens served from the admitted prefix cache."},
		{"prefix_cache_compressed_tokens_total", "counter", hits, "Number of tokens matched by the compressed-prefix index."},
		{"prefix_cache_full_tokens_total", "counter", queries, "Number of prompt tokens considered by prefix-cache accounting."},
		{"prefix_cache_wanted_tokens_total", "counter", hits, "Number of reusable tokens wanted after checkpoint gates."},
		{"prefix_cache_checkpoints_kept_total", "counter", 0, "Number of prefix-cache checkpoints kept."},
		{"prefix_cache_checkpoints_dropped_total", "counter", 0, "Number of prefix-cache checkpoints dropped."},
		{"prefix_cache_checkpoints_evicted_total", "counter", 0, "Number of prefix-cache checkpoints evicted."},
		{"prefix_cache_checkpoints_orphaned_total", "counter", 0, "Number of prefix-cache checkpoints orphaned."},
		{"prefix_cache_hit_ratio", "gauge", ratio, "Admitted prefix-cache token hit ratio."},
		{"prefix_cache_compressed_hit_ratio", "gauge", ratio, "Compressed-prefix token hit ratio before state gates."},
		{"prefix_cache_lost_to_checkpoint_ratio", "gauge", 0, "Reusable-token ratio lost because a checkpoint was unavailable."},
		{"prefix_cache_lost_unrecoverable_ratio", "gauge", 0, "Reusable-token ratio not recoverable by checkpointing."},
		{"lmcache_load_requests_total", "counter", 0, "Number of completed LMCache load operations."},
		{"lmcache_loaded_tokens_total", "counter", 0, "Number of tokens loaded from LMCache."},
		{"lmcache_load_failures_total", "counter", 0, "Number of failed LMCache load operations."},
		{"lmcache_save_requests_total", "counter", 0, "Number of completed LMCache save operations."},
		{"lmcache_saved_tokens_total", "counter", 0, "Number of tokens saved to LMCache."},
		{"lmcache_loads_pending", "gauge", 0, "Number of LMCache loads currently in flight."},
		{"lmcache_saves_pending", "gauge", 0, "Number of LMCache saves currently in flight."},
		{"mtp_draft_tokens_total", "counter", 0, "Number of speculative draft tokens considered."},
		{"mtp_accepted_tokens_total", "counter", 0, "Number of accepted speculative bonus tokens."},
		{"mtp_acceptance_rate", "gauge", 0, "Fraction of speculative draft tokens accepted."},
		{"mtp_average_tokens_per_forward", "gauge", 0, "Average emitted tokens per speculative decode forward."},
	}
}
