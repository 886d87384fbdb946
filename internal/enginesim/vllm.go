package enginesim

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// VLLM is the Dialect of vLLM 0.32 with one data-parallel rank: names, types, labels and number format of its page, the families
// that a router can use, and the _created gauges that its client library adds. Unlike vLLM it shows no Python and no HTTP
// server families.
type VLLM struct{}

// Version is the version that the page is taken from.
func (VLLM) Version() string { return "0.32.0" }

// HasPage is true for /metrics and /metrics/.
func (VLLM) HasPage(path string) bool { return path == "/metrics" || path == "/metrics/" }

// Page is the same at both paths.
func (VLLM) Page(_ string, s State) Page {
	p := vllmPage{
		labels:  `engine="0",model_name="` + escapeLabel(s.Model) + `"`,
		created: float64(s.Started.UnixMicro()) / 1e6,
	}
	p.process(s)
	p.load(s)
	p.counters(s)
	p.histograms(s)
	p.cacheConfig(s)
	// vLLM answers with this version whatever the scraper asks for.
	return Page{ContentType: "text/plain; version=1.0.0; charset=utf-8", Body: p.buf.Bytes()}
}

type vllmPage struct {
	buf     bytes.Buffer
	labels  string
	created float64
}

func (p *vllmPage) process(s State) {
	// The kernel gives start times in hundredths of a second.
	started := math.Floor(float64(s.Started.UnixMilli())/10) / 100
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.bare("process_start_time_seconds", "", started)
}

func (p *vllmPage) load(s State) {
	waiting := float64(s.Stats.Waiting)
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", "", float64(s.Stats.Running))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", "", waiting)
	p.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: "+
		"'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV "+
		"transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.", `reason="capacity"`, waiting)
	p.sample("vllm:num_requests_waiting_by_reason", `reason="deferred"`, 0)
	p.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "+
		"awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.", `sleep_state="awake"`, 1)
	p.sample("vllm:engine_sleep_state", `sleep_state="weights_offloaded"`, 0)
	p.sample("vllm:engine_sleep_state", `sleep_state="discard_all"`, 0)
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "", s.Stats.KVUsage())
}

func (p *vllmPage) counters(s State) {
	st := s.Stats
	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", one(st.QueriedTokens))
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", one(st.CachedTokens))
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", one(st.Preemptions))
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", one(st.PromptTokens))
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", one(st.CachedTokens))
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.", one(st.GeneratedTokens))
	// vLLM shows every reason from the start, and counts a client that went away under none of them.
	p.counter("vllm:request_success", "Count of successfully processed requests.", []labelled{
		{`finished_reason="stop"`, st.Stopped}, {`finished_reason="length"`, st.Truncated}, {`finished_reason="abort"`, 0},
		{`finished_reason="error"`, 0}, {`finished_reason="repetition"`, 0}})
}

func (p *vllmPage) histograms(s State) {
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", s.TTFT)
	p.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", s.ITL)
	p.histogram("vllm:request_time_per_output_token_seconds",
		"Histogram of time_per_output_token_seconds per request.", s.TPOT)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", s.E2E)
	p.histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", s.Queue)
}

func (p *vllmPage) cacheConfig(s State) {
	caching := "True"
	if s.Engine.DisablePrefixCache {
		caching = "False"
	}
	tokens := capacity(s.Engine)
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.bare("vllm:cache_config_info", fmt.Sprintf(`block_size="%d",cache_dtype="auto",effective_attention_block_size="%d",`+
		`enable_prefix_caching="%s",engine="0",gpu_memory_utilization="0.92",kv_cache_max_concurrency="%s",`+
		`kv_cache_size_tokens="%d",num_cpu_blocks="None",num_gpu_blocks="%d",num_gpu_blocks_override="None",`+
		`prefix_caching_hash_algo="sha256",sliding_window="None",user_specified_block_size="False"`,
		s.Engine.BlockTokens, s.Engine.BlockTokens, caching, number(float64(tokens)/float64(s.MaxModelLen)),
		tokens, s.Engine.Blocks), 1)
}

// labelled is one series of a counter.
type labelled struct {
	labels string
	value  uint64
}

func one(value uint64) []labelled { return []labelled{{"", value}} }

func (p *vllmPage) gauge(name, help, labels string, value float64) {
	p.family(name, "gauge", help)
	p.sample(name, labels, value)
}

func (p *vllmPage) counter(name, help string, series []labelled) {
	p.family(name+"_total", "counter", help)
	for _, l := range series {
		p.sample(name+"_total", l.labels, float64(l.value))
	}
	p.family(name+"_created", "gauge", help)
	for _, l := range series {
		p.sample(name+"_created", l.labels, p.created)
	}
}

func (p *vllmPage) histogram(name, help string, h Histogram) {
	p.family(name, "histogram", help)
	var below uint64
	for i, count := range h.Counts {
		bound := "+Inf"
		if i < len(h.Bounds) {
			bound = number(h.Bounds[i])
		}
		below += count
		p.sample(name+"_bucket", `le="`+bound+`"`, float64(below))
	}
	p.sample(name+"_count", "", float64(below))
	p.sample(name+"_sum", "", h.Sum)
	p.family(name+"_created", "gauge", help)
	p.sample(name+"_created", "", p.created)
}

func (p *vllmPage) family(name, kind, help string) {
	fmt.Fprintf(&p.buf, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a series with the labels that all of vLLM's own families have. Labels are in alphabetical order on the page, and
// an extra one sorts either before model_name or after it.
func (p *vllmPage) sample(name, extra string, value float64) {
	labels := p.labels
	if extra != "" && extra < "model_name" {
		engine, model, _ := strings.Cut(labels, ",")
		labels = engine + "," + extra + "," + model
	} else if extra != "" {
		labels += "," + extra
	}
	p.bare(name, labels, value)
}

func (p *vllmPage) bare(name, labels string, value float64) {
	p.buf.WriteString(name)
	if labels != "" {
		p.buf.WriteString("{" + labels + "}")
	}
	p.buf.WriteString(" " + number(value) + "\n")
}

// number formats as Python's client library does: 3.0, 0.25, 1.4123e+06.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".eIN") {
		text += ".0"
	}
	return text
}

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
