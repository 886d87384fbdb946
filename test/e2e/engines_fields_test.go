package e2e

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
	"github.com/berth-dev/berth/internal/telemetry"
)

// engineFacts are what is known of an engine from its own source and
// documentation, and not from the profile that reads it. Each field of the
// catalogue is in one of its lists.
type engineFacts struct {
	dialect enginesim.Dialect
	version string
	// page is the path of the telemetry page.
	page string
	// load has, for each load field, the family that says it, and how the one
	// sample begins.
	load map[string]sample
	// lag is by how much the queue on the page is behind what was asked of the
	// engine.
	lag float64
	// stated have a value that follows from how the engine was started.
	stated map[string]fact
	// grown become known from traffic within a window; values says in which range
	// they are, for engines of the kind that these tests run.
	grown map[string]fact
	// unseen may come: with a first event, or with a flag that does not show.
	unseen []string
	// without are fields that the engine's page shows it to be without: in this
	// release, or as it was started.
	without []string
	// never are the fields that no page of this kind of engine has.
	never []string
	// models: the engine lists what it serves.
	models bool
	// dated: the page states a time, and all of it is in doubt when that is old.
	dated bool
	// stillAfter is how long the page of a busy engine may stand still.
	stillAfter string
}

// sample is where a value is on a page of text.
type sample struct{ family, prefix string }

// fact is where a field is read, and what it is.
type fact struct {
	// path is that of the telemetry page unless it is given.
	path, metric string
	// value as JSON has it, or one of the marks below. Grown fields have none.
	value any
	// quality is 1 unless it is given.
	quality float64
	// lowest is where the first bucket of a histogram ends, if what these tests ask
	// of an engine may be below: of values that all are, no more is known.
	lowest float64
}

// qualityOf is that of a value: half where all of it is in the lowest bucket.
func (f fact) qualityOf(value any) float64 {
	if d, ok := value.(v1alpha1.Distribution); ok && f.lowest > 0 && d.P99 != nil && *d.P99 <= f.lowest {
		return 0.5
	}
	if f.quality != 0 {
		return f.quality
	}
	return 1
}

// Marks of values that are not the same for each replica.
type (
	largestBatch struct{} // the most requests that may run
	ownVersion   struct{} // that of the engine
	recentStart  struct{} // a time that is not long ago
)

// values are the ranges of what grown fields say: of an engine that makes 48
// tokens for a request, one each 12 to 20 ms. A mistake in a unit is beyond.
var values = map[string]struct{ low, high float64 }{
	"ttft":                 {0.006, 10},
	"itl":                  {0.004, 0.5},
	"tpot":                 {0.004, 0.5},
	"e2e":                  {0.4, 20},
	"queueTime":            {0, 10},
	"promptThroughput":     {1, 20000},
	"generationThroughput": {5, 20000},
	"prefixCacheHitRatio":  {0, 1},
	"preemptionRate":       {0, 0},
	// 512 W for up to 2000 tokens a second, or for a few.
	"energyPerToken": {0.1, 200},
}

// rates are 0 when nothing moves; of other grown fields there is then no recent
// data.
var rates = []string{"promptThroughput", "generationThroughput", "preemptionRate"}

// The engines have 256 blocks of 16 tokens for requests of up to 64, and one
// model without adapters.
var (
	modelName    = []string{enginesim.DefaultModel}
	noAdapter    = []string{}
	cacheTokens  = 4096.0
	blockTokens  = 16.0
	contextLimit = 64.0
)

var allEngines = []engineFacts{
	{
		dialect: enginesim.VLLM{}, version: "0.32.0", page: "/metrics", models: true, stillAfter: "3s",
		load: map[string]sample{
			"queueDepth":         {"vllm:num_requests_waiting", "vllm:num_requests_waiting{"},
			"activeRequests":     {"vllm:num_requests_running", "vllm:num_requests_running{"},
			"kvCacheUtilization": {"vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc{"},
		},
		stated: map[string]fact{
			"servedModels":   {path: "/v1/models", metric: "data[].id", value: modelName},
			"adaptersLoaded": {path: "/v1/models", metric: "data[].id", value: noAdapter},
			"contextLimit":   {path: "/v1/models", metric: "data[].max_model_len", value: contextLimit},
			"engineVersion":  {path: "/version", metric: "version", value: ownVersion{}},
			"health":         {path: "/health", metric: "status", value: true},
			// vLLM counts the block that it never gives out.
			"kvCacheCapacity":    {metric: "vllm:cache_config_info", value: 257 * blockTokens},
			"kvBlockSize":        {metric: "vllm:cache_config_info", value: blockTokens},
			"prefixCacheEnabled": {metric: "vllm:cache_config_info", value: true},
			// Requests of the full context that fit, and not the batch.
			"maxConcurrency": {metric: "vllm:cache_config_info", value: 257 * blockTokens / contextLimit, quality: 0.5},
			"sleeping":       {metric: "vllm:engine_sleep_state", value: false},
			"processStart":   {metric: "process_start_time_seconds", value: recentStart{}},
		},
		grown: map[string]fact{
			"ttft":                 {metric: "vllm:time_to_first_token_seconds"},
			"itl":                  {metric: "vllm:inter_token_latency_seconds"},
			"tpot":                 {metric: "vllm:request_time_per_output_token_seconds"},
			"e2e":                  {metric: "vllm:e2e_request_latency_seconds"},
			"queueTime":            {metric: "vllm:request_queue_time_seconds", lowest: 0.3},
			"promptThroughput":     {metric: "vllm:prompt_tokens_total"},
			"generationThroughput": {metric: "vllm:generation_tokens_total"},
			"prefixCacheHitRatio":  {metric: "vllm:prefix_cache_hits_total"},
			"preemptionRate":       {metric: "vllm:num_preemptions_total"},
		},
		// LoRA is off.
		without: []string{"adaptersWaiting", "adaptersMax"},
		never:   []string{"ready", "gpuUtilization", "memoryPressure", "power", "energyPerToken"},
	},
	{
		dialect: enginesim.SGLang{}, version: "0.5.23", page: "/metrics", models: true, stillAfter: "3s",
		load: map[string]sample{
			"queueDepth":         {"sglang:num_queue_reqs", "sglang:num_queue_reqs{"},
			"activeRequests":     {"sglang:num_running_reqs", "sglang:num_running_reqs{"},
			"kvCacheUtilization": {"sglang:token_usage", "sglang:token_usage{"},
		},
		stated: map[string]fact{
			"servedModels":       {path: "/v1/models", metric: "data[].id", value: modelName},
			"adaptersLoaded":     {path: "/v1/models", metric: "data[].id", value: noAdapter},
			"contextLimit":       {path: "/v1/models", metric: "data[].max_model_len", value: contextLimit},
			"engineVersion":      {path: "/server_info", metric: "version", value: ownVersion{}},
			"prefixCacheEnabled": {path: "/server_info", metric: "disable_radix_cache", value: true},
			"maxConcurrency":     {path: "/v1/loads", metric: "loads[].max_running_requests", value: largestBatch{}},
			"ready":              {path: "/ready", metric: "status", value: true},
			"kvCacheCapacity":    {metric: "sglang:max_total_num_tokens", value: cacheTokens},
			"kvBlockSize":        {metric: "sglang:page_size", value: blockTokens},
		},
		grown: map[string]fact{
			"ttft":                 {metric: "sglang:time_to_first_token_seconds", lowest: 0.1},
			"itl":                  {metric: "sglang:inter_token_latency_seconds"},
			"tpot":                 {metric: "sglang:request_time_per_output_token_seconds"},
			"e2e":                  {metric: "sglang:e2e_request_latency_seconds"},
			"queueTime":            {metric: "sglang:queue_time_seconds"},
			"promptThroughput":     {metric: "sglang:prefill_effective_tokens_total"},
			"generationThroughput": {metric: "sglang:realtime_tokens_total"},
			"prefixCacheHitRatio":  {metric: "sglang:realtime_tokens_total"},
		},
		// The counter of retractions comes with the first.
		unseen: []string{"preemptionRate"},
		// LoRA is off.
		without: []string{"adaptersMax"},
		// Its health is a token, which Berth does not ask for.
		never: []string{
			"health", "sleeping", "gpuUtilization", "memoryPressure", "power", "energyPerToken", "adaptersWaiting", "processStart",
		},
	},
	{
		// It says nothing of latencies in the release that is simulated.
		dialect: enginesim.ATOM{}, page: "/metrics", models: true, dated: true, stillAfter: "8s",
		load: map[string]sample{
			"queueDepth":         {"atom:requests_waiting", "atom:requests_waiting "},
			"activeRequests":     {"atom:requests_running", "atom:requests_running "},
			"kvCacheUtilization": {"atom:kv_cache_usage_ratio", "atom:kv_cache_usage_ratio "},
		},
		stated: map[string]fact{
			"servedModels": {path: "/v1/models", metric: "data[].id", value: modelName},
		},
		grown: map[string]fact{
			// Counted when a request has ended.
			"promptThroughput":     {metric: "atom:prompt_tokens_total", quality: 0.5},
			"generationThroughput": {metric: "atom:generation_tokens_total", quality: 0.5},
			"prefixCacheHitRatio":  {metric: "atom:prefix_cache_cached_tokens_total"},
			"preemptionRate":       {metric: "atom:preemptions_total"},
		},
		without: []string{"kvCacheCapacity", "kvBlockSize", "ttft", "itl", "tpot", "e2e", "queueTime", "processStart"},
		never: []string{
			"health", "ready", "sleeping", "contextLimit", "maxConcurrency", "prefixCacheEnabled", "adaptersLoaded",
			"adaptersWaiting", "adaptersMax", "gpuUtilization", "memoryPressure", "power", "energyPerToken", "engineVersion",
		},
	},
	{
		// The page is of the moment at which a request has completed: the first in
		// the queue has taken its place, and none has come after it yet.
		dialect: enginesim.TRTLLM{}, version: "1.3.0", page: "/prometheus/metrics", models: true, lag: 1, stillAfter: "3s",
		load: map[string]sample{
			"queueDepth":         {"trtllm_num_requests_waiting", "trtllm_num_requests_waiting{"},
			"activeRequests":     {"trtllm_num_requests_running", "trtllm_num_requests_running{"},
			"kvCacheUtilization": {"trtllm_kv_cache_utilization", "trtllm_kv_cache_utilization{"},
		},
		stated: map[string]fact{
			"servedModels":       {path: "/v1/models", metric: "data[].id", value: modelName},
			"engineVersion":      {path: "/version", metric: "version", value: ownVersion{}},
			"health":             {path: "/health", metric: "status", value: true},
			"contextLimit":       {metric: "trtllm_model_config_info", value: contextLimit},
			"maxConcurrency":     {metric: "trtllm_max_num_active_requests", value: largestBatch{}},
			"kvCacheCapacity":    {metric: "trtllm_kv_cache_max_blocks", value: cacheTokens},
			"kvBlockSize":        {metric: "trtllm_kv_cache_tokens_per_block", value: blockTokens},
			"prefixCacheEnabled": {metric: "trtllm_kv_cache_config_info", value: true},
		},
		grown: map[string]fact{
			"ttft":      {metric: "trtllm_time_to_first_token_seconds"},
			"tpot":      {metric: "trtllm_time_per_output_token_seconds"},
			"e2e":       {metric: "trtllm_e2e_request_latency_seconds"},
			"queueTime": {metric: "trtllm_request_queue_time_seconds", lowest: 0.3},
			// Counted when a request has ended.
			"promptThroughput":     {metric: "trtllm_prompt_tokens_total", quality: 0.5},
			"generationThroughput": {metric: "trtllm_generation_tokens_total", quality: 0.5},
			"prefixCacheHitRatio":  {metric: "trtllm_prompt_cached_tokens_total"},
		},
		// Its page comes from files of several processes, and has no start of one.
		without: []string{"processStart"},
		never: []string{
			"ready", "sleeping", "itl", "preemptionRate", "adaptersLoaded", "adaptersWaiting", "adaptersMax", "gpuUtilization",
			"memoryPressure", "power", "energyPerToken",
		},
	},
	{
		dialect: enginesim.Triton{}, version: "2.64.0", page: "/metrics", dated: true, stillAfter: "3s",
		load: map[string]sample{
			"queueDepth":     {"nv_trt_llm_request_metrics", `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting"`},
			"activeRequests": {"nv_trt_llm_request_metrics", `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled"`},
			// The fraction that is on the page too is used over max, and no source.
			"kvCacheUtilization": {"nv_trt_llm_kv_cache_block_metrics", `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"`},
		},
		stated: map[string]fact{
			"health": {path: "/v2/health/live", metric: "status", value: true},
			"ready":  {path: "/v2/health/ready", metric: "status", value: true},
			// Triton's, and not TensorRT-LLM's.
			"engineVersion":   {path: "/v2", metric: "version", value: ownVersion{}, quality: 0.5},
			"maxConcurrency":  {metric: "nv_trt_llm_request_metrics", value: largestBatch{}},
			"kvCacheCapacity": {metric: "nv_trt_llm_kv_cache_block_metrics", value: cacheTokens},
			"kvBlockSize":     {metric: "nv_trt_llm_kv_cache_block_metrics", value: blockTokens},
			"gpuUtilization":  {metric: "nv_gpu_utilization", value: 0.94},
			// Memory of the cache counts whether it is used or not.
			"memoryPressure": {metric: "nv_gpu_memory_used_bytes", value: 71_940_702_208.0 / 85_520_809_984, quality: 0.5},
			"power":          {metric: "nv_gpu_power_usage", value: 512.337},
		},
		grown: map[string]fact{
			"e2e": {metric: "nv_inference_request_duration_us"},
			// The queue before the one in which requests wait.
			"queueTime": {metric: "nv_inference_queue_duration_us", quality: 0.5},
			// Counted when a request has ended.
			"promptThroughput":     {metric: "nv_llm_input_token_len_sum", quality: 0.5},
			"generationThroughput": {metric: "nv_llm_output_token_len_sum", quality: 0.5},
			"energyPerToken":       {metric: "nv_energy_consumption", quality: 0.8},
		},
		// Its histogram needs a flag.
		unseen: []string{"ttft"},
		never: []string{
			"sleeping", "servedModels", "contextLimit", "prefixCacheEnabled", "prefixCacheHitRatio", "adaptersLoaded",
			"adaptersWaiting", "adaptersMax", "itl", "tpot", "preemptionRate", "processStart",
		},
	},
}

// condition is in what state a replica is, for its report.
type condition int

const (
	// well: the page is read and moves.
	well condition = iota
	// frozen: the page is read, says that the engine works, and stands still.
	frozen
	// pageless: there has never been a page; the others of the engine are read.
	pageless
)

// misread are the fields of which a report does not say what is true, as far as
// they are not excepted: each with what it says.
func (r replica) misread(o *v1alpha1.Observation, is condition, except ...string) (wrong []string) {
	check := func(field string, ok bool, want string) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf("%s: want %s: %s", field, want, inFull(o.Fields[field])))
		}
	}
	for f := range telemetry.NumFields {
		field := f.String()
		if slices.Contains(except, field) {
			continue
		}
		got := o.Fields[field]
		fact, stated := r.stated[field]
		grown, isGrown := r.grown[field]
		load, isLoad := r.load[field]
		lasting := stated && fact.path != "" // on a page of its own
		switch {
		case slices.Contains(r.never, field):
			check(field, absent(got, v1alpha1.Unsupported, ""), "unsupported, for a reason")
		case is == pageless && !lasting:
			check(field, absent(got, v1alpha1.SupportUnknown, "not read"), "unknown since nothing was read")
		case slices.Contains(r.without, field):
			check(field, absent(got, v1alpha1.Unsupported, " is not on the page"), "unsupported since the page does not have it")
		case slices.Contains(r.unseen, field):
			check(field, absent(got, v1alpha1.SupportUnknown, " is not on the page"), "unknown since the page does not have it")
		case stated:
			doubted := is == frozen && r.dated && !lasting
			check(field, r.readFrom(got, fact) && rightly(got, fact.qualityOf(got.Value), doubted) && r.same(got.Value, fact.value),
				fmt.Sprintf("%v from %s at %q, doubted: %v", fact.value, fact.metric, fact.path, doubted))
		case isLoad:
			check(field, r.readFrom(got, factOf(load)) && rightly(got, 1, is == frozen), fmt.Sprintf("from %s, doubted: %v", load.family, is == frozen))
		case isGrown && is == frozen && !slices.Contains(rates, field):
			check(field, r.readFrom(got, grown) && absent(got, v1alpha1.Supported, "no recent data: "), "no recent data")
		case isGrown:
			doubted := is == frozen
			least, most := values[field].low, values[field].high
			if is == frozen {
				least, most = 0, 0
			}
			v, counted := number(got)
			check(field, r.readFrom(got, grown) && rightly(got, grown.qualityOf(got.Value), doubted) && counted && v >= least && v <= most,
				fmt.Sprintf("%v to %v from %s, doubted: %v", least, most, grown.metric, doubted))
		default:
			check(field, false, "it in the facts of "+r.name())
		}
	}
	return wrong
}

// factOf says where a load field is read.
func factOf(s sample) fact { return fact{metric: s.family} }

// readFrom reports that a reading names its source.
func (e engineFacts) readFrom(got v1alpha1.Reading, f fact) bool {
	path := f.path
	if path == "" {
		path = e.page
	}
	return got.Support == v1alpha1.Supported && got.Source != nil && got.Source.Path == path && got.Source.Metric == f.metric
}

// absent reports that a reading has no value, and tells why in words of which
// these are a part.
func absent(got v1alpha1.Reading, support v1alpha1.Support, why string) bool {
	return got.Support == support && got.State == v1alpha1.Missing && got.Value == nil && got.Quality == 0 &&
		slices.ContainsFunc(got.Reasons, func(reason string) bool { return strings.Contains(reason, why) })
}

// rightly reports that a reading is fresh, of this quality and for a reason if that
// is below 1; or, if it is doubted, stale for a reason that tells the doubt.
func rightly(got v1alpha1.Reading, quality float64, doubted bool) bool {
	if got.ObservedAt == nil || got.ExpiresAt == nil || got.Provenance != v1alpha1.Measured {
		return false
	}
	if doubted {
		return isFrozen(got)
	}
	return got.State == v1alpha1.Fresh && math.Abs(got.Quality-quality) < 1e-6 && (quality == 1) == (len(got.Reasons) == 0)
}

// isFrozen reports that a reading is stale since its page stands still. Engines that
// state a time are doubted for that when it is 30 s old.
func isFrozen(r v1alpha1.Reading) bool {
	return r.State == v1alpha1.Stale && r.Quality < 1 && slices.ContainsFunc(r.Reasons, func(why string) bool {
		return strings.HasPrefix(why, "frozen: ") || strings.HasPrefix(why, "the engine's own time is ")
	})
}

// same reports that a value is the one of a fact.
func (r replica) same(got, want any) bool {
	switch want := want.(type) {
	case largestBatch:
		return got == float64(r.config().Engine.MaxRunning)
	case ownVersion:
		return got == r.version
	case recentStart:
		text, _ := got.(string)
		at, err := time.Parse(time.RFC3339Nano, text)
		return err == nil && time.Since(at) > 0 && time.Since(at) < time.Hour
	case float64:
		v, ok := got.(float64)
		return ok && math.Abs(v-want) < 1e-6*want
	default:
		return reflect.DeepEqual(got, want)
	}
}

// number is what a reading tells, fresh or not: of a distribution its mean.
func number(r v1alpha1.Reading) (v float64, ok bool) {
	switch v := r.Value.(type) {
	case float64:
		return v, true
	case v1alpha1.Distribution:
		return v.Mean, v.Count > 0
	default:
		return 0, false
	}
}

// truthful waits until the report on a replica says of each field what is true.
func (f *fleet) truthful(engine int, r replica, what string, is condition, except ...string) *v1alpha1.Observation {
	f.t.Helper()
	var wrong []string
	defer func() {
		if f.t.Failed() && len(wrong) > 0 {
			f.t.Logf("%s, %s at the end: %s", nameOf(engine), r.name(), strings.Join(wrong, "\n"))
		}
	}()
	return f.reported(engine, r.name()+" "+what+": each field's state is told", func(o *v1alpha1.Observation) bool {
		wrong = r.misread(o, is, except...)
		return len(wrong) == 0
	})
}

func TestTheFactsOfAnEngineHaveEachFieldOnce(t *testing.T) {
	for _, e := range allEngines {
		n := map[string]int{}
		for _, list := range [][]string{e.unseen, e.without, e.never} {
			for _, field := range list {
				n[field]++
			}
		}
		for field := range e.stated {
			n[field]++
		}
		for field := range e.grown {
			n[field]++
		}
		for field := range e.load {
			n[field]++
		}
		for f := range telemetry.NumFields {
			if n[f.String()] != 1 {
				t.Errorf("%s has %s %d times", e.name(), f, n[f.String()])
			}
			delete(n, f.String())
		}
		if len(n) != 0 {
			t.Errorf("%s has fields that the catalogue lacks: %v", e.name(), n)
		}
	}
}
