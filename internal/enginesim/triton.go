package enginesim

import (
	"net/http"
	"time"
)

// Triton is the Dialect of Triton with the TensorRT-LLM backend as an ensemble of four models, of which only "tensorrt_llm" carries the
// gauges of the batch.
//
// The backend reports them at the end of each step, with a timestamp, so that they stay as they are when there is nothing to do, and
// are all 0 before the first step. What is said of the device is up to 2 s old. Triton's own telemetry port is not imitated: /metrics is on the port of everything
// else. So are the paths of inference, which a real Triton has in its OpenAI front end only; the model list and
// /health of that one are absent.
type Triton struct{}

// tritonVersion is the server's, not TensorRT-LLM's.
const tritonVersion = "2.64.0"

const (
	tritonEnsemble = "ensemble"
	tritonLLM      = "tensorrt_llm"
)

// tritonModels are in alphabetical order, as on the page.
func tritonModels() []string {
	return []string{tritonEnsemble, "postprocessing", "preprocessing", tritonLLM}
}

// Name is "triton-tensorrt-llm".
func (Triton) Name() string { return "triton-tensorrt-llm" }

// Cadence is that of the backend's statistics, and of Triton's questions to the driver.
func (Triton) Cadence() Cadence { return Cadence{Step: true, Device: 2 * time.Second} }

// Bounds are the backend's. Triton shows no latencies unless told to.
func (Triton) Bounds() Bounds {
	tokens := []float64{10, 50, 100, 500, 1000}
	return Bounds{PromptLength: tokens, OutputLength: tokens}
}

// Pages are those of KServe's version 2 protocol.
func (Triton) Pages() Pages {
	pages := Pages{
		"/metrics": {Make: tritonMetrics, Telemetry: true},
		"/v2": {Make: constant(map[string]any{"name": "triton", "version": tritonVersion,
			"extensions": []string{"classification", "sequence", "model_repository", "schedule_policy", "statistics", "trace", "logging"}})},
		"/v2/health/live":  {Make: empty},
		"/v2/health/ready": {Make: ready(http.StatusBadRequest)},
	}
	for _, model := range tritonModels() {
		pages["/v2/models/"+model+"/ready"] = Page{Make: ready(http.StatusBadRequest)}
		pages["/v2/models/"+model] = Page{Make: constant(map[string]any{"name": model, "versions": []string{"1"}})}
	}
	return pages
}

func tritonMetrics(s State) Content {
	p := tritonPage{exposition{number: cppNumber}}
	p.inference(s)
	p.batch(s)
	p.lengths(s)
	p.device(s)
	return text("text/plain; charset=utf-8", &p.exposition)
}

type tritonPage struct{ exposition }

// perModel writes a family with a series for each model.
func (p *tritonPage) perModel(name, kind, help string, value func(model string) float64) {
	p.family(name, kind, help)
	for _, model := range tritonModels() {
		p.series(name, value(model), label{"model", model}, label{"version", "1"})
	}
}

// isLLM says whether a model's requests last as long as the answer takes.
func isLLM(model string) bool { return model == tritonEnsemble || model == tritonLLM }

func (p *tritonPage) inference(s State) {
	all := s.All()
	done := float64(all.Finished)
	always := func(value float64) func(string) float64 { return func(string) float64 { return value } }
	// The steps before and after the model are taken to last 50 and 70 microseconds, without a queue.
	duration := func(model string) float64 {
		switch model {
		case "preprocessing":
			return 50 * done
		case "postprocessing":
			return 70 * done
		}
		return all.E2E.Sum * 1e6
	}
	p.perModel("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes", always(done))
	p.family("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes")
	for _, model := range tritonModels() {
		for _, reason := range []string{"REJECTED", "CANCELED", "BACKEND", "OTHER"} {
			failed := 0.0
			if reason == "CANCELED" && isLLM(model) {
				failed = float64(s.Truth.Stats.Aborted)
			}
			p.series("nv_inference_request_failure", failed, label{"model", model}, label{"reason", reason}, label{"version", "1"})
		}
	}
	p.perModel("nv_inference_count", "counter", "Number of inferences performed (does not include cached requests)", always(done))
	p.perModel("nv_inference_exec_count", "counter", "Number of model executions performed (does not include cached requests)", always(done))
	p.perModel("nv_inference_request_duration_us", "counter",
		"Cumulative inference request duration in microseconds (includes cached requests)", duration)
	p.perModel("nv_inference_queue_duration_us", "counter",
		"Cumulative inference queuing duration in microseconds (includes cached requests)", always(0))
	p.perModel("nv_inference_compute_infer_duration_us", "counter",
		"Cumulative compute inference duration in microseconds (does not include cached requests)", func(model string) float64 {
			if model == tritonEnsemble {
				return 0
			}
			return duration(model)
		})
	// The backend takes every request from Triton's queue at once; they wait in its own.
	p.perModel("nv_inference_pending_request_count", "gauge",
		"Instantaneous number of pending requests awaiting execution per-model.", always(0))
}

// typed is one series of a family in which a label says what the value is.
type typed struct {
	kind  string
	value float64
}

// byType writes a family of the backend.
func (p *tritonPage) byType(name, kind, help, by string, values ...typed) {
	p.family(name, kind, help)
	for _, v := range values {
		p.series(name, v.value, label{by, v.kind}, label{"model", tritonLLM}, label{"version", "1"})
	}
}

func (p *tritonPage) batch(s State) {
	r, st := s.Shown, s.Shown.Stats
	var most, tokensPer, stamp, pinned, gpu, cpu float64
	if !r.At.IsZero() {
		most, tokensPer, stamp = float64(s.Engine.MaxRunning), float64(s.Engine.BlockTokens), float64(r.At.UnixMicro())
		pinned, gpu, cpu = 2952841216, 36100332423, 68172
	}
	reused := 0.0
	if tokensPer > 0 {
		reused = float64(st.CachedTokens / uint64(s.Engine.BlockTokens))
	}
	p.byType("nv_trt_llm_request_metrics", "gauge", "TRT LLM request metrics", "request_type",
		typed{"waiting", float64(st.Waiting)}, typed{"context", float64(r.Computing)}, typed{"scheduled", float64(st.Running)},
		typed{"max", most}, typed{"active", float64(st.Waiting + st.Running)})
	p.byType("nv_trt_llm_runtime_memory_metrics", "gauge", "TRT LLM runtime memory metrics", "memory_type",
		typed{"pinned", pinned}, typed{"gpu", gpu}, typed{"cpu", cpu})
	p.byType("nv_trt_llm_kv_cache_block_metrics", "gauge", "TRT LLM KV cache block metrics", "kv_cache_block_type",
		typed{"fraction", st.KVUsage()}, typed{"reused", reused}, typed{"tokens_per", tokensPer}, typed{"used", float64(st.BlocksUsed)},
		typed{"free", float64(st.BlocksTotal - st.BlocksUsed)}, typed{"max", float64(st.BlocksTotal)})
	p.byType("nv_trt_llm_inflight_batcher_metrics", "gauge", "TRT LLM inflight_batcher-specific metrics", "inflight_batcher_specific_metric",
		typed{"paused_requests", 0}, typed{"micro_batch_id", 0}, typed{"generation_requests", float64(st.Running - r.Computing)},
		typed{"total_context_tokens", 0})
	p.byType("nv_trt_llm_general_metrics", "gauge", "General TRT LLM metrics", "general_type",
		typed{"iteration_counter", float64(st.Steps)}, typed{"timestamp", stamp})
	p.byType("nv_trt_llm_disaggregated_serving_metrics", "counter", "TRT LLM disaggregated serving metrics", "disaggregated_serving_type",
		typed{"kv_cache_transfer_ms", 0}, typed{"request_count", 0})
}

func (p *tritonPage) lengths(s State) {
	all := s.All()
	for _, f := range []struct {
		direction string
		h         Histogram
	}{{"output", all.OutputLength}, {"input", all.PromptLength}} {
		name := "nv_llm_" + f.direction + "_token_len"
		own := []label{{"model", tritonLLM}, {"response_metric_type", "total_" + f.direction + "_tokens"}, {"version", "1"}}
		p.family(name, "histogram", "TRT LLM response metrics")
		p.series(name+"_count", float64(f.h.Count()), own...)
		p.series(name+"_sum", f.h.Sum, own...)
		p.buckets(name, f.h, own...)
	}
}

// The one device draws so much with and without a batch, in watts.
const (
	gpuIdlePower = 110.0
	gpuBusyPower = 512.337
	gpuMaxPower  = 700.0
)

// device writes what Triton itself asks the driver for.
func (p *tritonPage) device(s State) {
	gpu := label{"gpu_uuid", "GPU-0e9fdafb-0000-0000-0000-000000000001"}
	utilization, power := 0.0, gpuIdlePower
	if s.Device.Working {
		utilization, power = 0.94, gpuBusyPower
	}
	busy := s.Device.Busy
	idle := max(0, s.Device.At.Sub(s.Counting)-busy)
	p.gauge("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", utilization, gpu)
	p.gauge("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", gpuMemoryTotal, gpu)
	p.gauge("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", gpuMemoryUsed, gpu)
	p.gauge("nv_gpu_power_usage", "GPU power usage in watts", power, gpu)
	p.gauge("nv_gpu_power_limit", "GPU power management limit in watts", gpuMaxPower, gpu)
	p.family("nv_energy_consumption", "counter", "GPU energy consumption in joules since the Triton Server started")
	p.series("nv_energy_consumption", busy.Seconds()*gpuBusyPower+idle.Seconds()*gpuIdlePower, gpu)
	p.gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", 0.31)
}
