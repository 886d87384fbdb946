package enginesim

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// telemetryPath is where a dialect has its telemetry page.
func telemetryPath(d Dialect) string {
	for path, page := range d.Pages() {
		if page.Telemetry && !strings.HasSuffix(path, "/") {
			return path
		}
	}
	return ""
}

func (s *sim) page() families {
	s.t.Helper()
	return page(s.t, s.ok("GET", telemetryPath(s.cfg.Dialect), ""))
}

// has says whether the page has a series of the family.
func (f families) has(name string) bool { return len(f.all[name].GetMetric()) > 0 }

// The pages in testdata/pages are those of the engines themselves (vLLM, SGLang, ATOM) or written after their sources
// (trtllm-serve, Triton), less families that a router has no use for; SGLang's is one of two ranks.
func TestAPageHasTheFamiliesOfItsEngine(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		// needed are families that a router reads.
		needed []string
		// ranks are labels that an engine of one rank does not have, or has fewer of.
		ranks []string
	}{
		{VLLM{}, []string{"process_start_time_seconds", "vllm:num_requests_running", "vllm:num_requests_waiting",
			"vllm:num_requests_waiting_by_reason", "vllm:engine_sleep_state", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
			"vllm:prefix_cache_hits_total", "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
			"vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
			"vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:cache_config_info"}, nil},
		{SGLang{}, []string{"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs", "sglang:gen_throughput",
			"sglang:cache_hit_rate", "sglang:token_usage", "sglang:max_total_num_tokens", "sglang:page_size", "sglang:num_pages",
			"sglang:context_len", "sglang:queue_time_seconds", "sglang:realtime_tokens_total", "sglang:prompt_tokens_total",
			"sglang:generation_tokens_total", "sglang:cached_tokens_total", "sglang:num_requests_total", "sglang:time_to_first_token_seconds",
			"sglang:inter_token_latency_seconds", "sglang:e2e_request_latency_seconds", "sglang:request_time_per_output_token_seconds"},
			[]string{"dp_rank"}},
		{ATOM{}, []string{"atom:metrics_snapshot_available", "atom:metrics_last_refresh_timestamp_seconds", "atom:requests_running",
			"atom:requests_waiting", "atom:requests_parked_kv_load", "atom:kv_cache_blocks_total", "atom:kv_cache_usage_ratio",
			"atom:requests_finished_total", "atom:prompt_tokens_total", "atom:generation_tokens_total", "atom:preemptions_total",
			"atom:prefix_cache_cached_tokens_total", "atom:prefix_cache_full_tokens_total"}, nil},
		{TRTLLM{}, []string{"trtllm_num_requests_running", "trtllm_num_requests_waiting", "trtllm_max_num_active_requests",
			"trtllm_kv_cache_utilization", "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block",
			"trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total", "trtllm_num_paused_requests",
			"trtllm_gpu_memory_usage_bytes", "trtllm_request_success_total", "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total",
			"trtllm_prompt_cached_tokens_total", "trtllm_time_to_first_token_seconds", "trtllm_time_per_output_token_seconds",
			"trtllm_e2e_request_latency_seconds", "trtllm_request_queue_time_seconds", "trtllm_model_config_info",
			"trtllm_kv_cache_config_info"}, nil},
		{Triton{}, []string{"nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_inflight_batcher_metrics",
			"nv_trt_llm_general_metrics", "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_request_duration_us",
			"nv_inference_queue_duration_us", "nv_inference_pending_request_count", "nv_llm_input_token_len", "nv_llm_output_token_len",
			"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage", "nv_energy_consumption"}, nil},
	} {
		t.Run(c.dialect.Name(), func(t *testing.T) {
			s := run(t, Config{Dialect: c.dialect, Clock: instant()})
			prompt := `"prompt":"` + strings.Repeat("abcdefgh", 20) + `"`
			s.ok("POST", "/v1/completions", `{"stream":true,`+prompt+`}`)
			s.ok("POST", "/v1/completions", `{"max_tokens":60,`+prompt+`}`)
			text, err := os.ReadFile(filepath.Join("testdata", "pages", c.dialect.Name()+".prom"))
			if err != nil {
				t.Fatal(err)
			}
			want, got := page(t, string(text)), s.page()
			for _, name := range c.needed {
				if !got.has(name) {
					t.Errorf("%s is not on the page", name)
				}
			}
			for name, family := range got.all {
				engine := want.all[name]
				if engine == nil {
					t.Errorf("%s: the engine has no such family", name)
					continue
				}
				if family.GetType() != engine.GetType() {
					t.Errorf("%s is a %v, want a %v", name, family.GetType(), engine.GetType())
				}
				allowed := map[string]bool{}
				for _, m := range engine.GetMetric() {
					allowed[shape(m, name, c.ranks)] = true
				}
				for _, m := range family.GetMetric() {
					if shape := shape(m, name, nil); !allowed[shape] {
						t.Errorf("%s has %s, want one of %v", name, shape, slices.Sorted(maps.Keys(allowed)))
					}
				}
			}
		})
	}
}

// shape is what two series have in common whatever the engine does: label names, with their values where those are from a fixed set,
// and bucket bounds.
func shape(m *dto.Metric, family string, without []string) string {
	var labels []string
	for _, l := range m.GetLabel() {
		switch name := l.GetName(); name {
		case "model_name", "pid", "is_streaming":
			labels = append(labels, name)
		default:
			switch {
			case slices.Contains(without, name):
			case strings.HasSuffix(family, "config_info"):
				// The values are a configuration's, and vLLM has three more of them from release to release.
			default:
				labels = append(labels, name+"="+l.GetValue())
			}
		}
	}
	var bounds []string
	for _, b := range m.GetHistogram().GetBucket() {
		bounds = append(bounds, pythonNumber(b.GetUpperBound()))
	}
	return "{" + strings.Join(labels, ",") + "} " + strings.Join(bounds, " ")
}

func TestBeforeTheFirstRequestAPageSaysLess(t *testing.T) {
	for _, c := range []struct {
		dialect         Dialect
		present, absent []string
	}{
		{VLLM{}, []string{"vllm:num_requests_running", "vllm:time_to_first_token_seconds"}, nil},
		{SGLang{},
			[]string{"sglang:num_pages", "sglang:max_total_num_tokens", "sglang:context_len", "sglang:prefill_effective_tokens_total",
				"sglang:scheduler_idle_seconds_total"},
			[]string{"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:realtime_tokens_total",
				"sglang:prompt_tokens_total", "sglang:time_to_first_token_seconds", "sglang:queue_time_seconds",
				"sglang:num_retracted_requests_total", "sglang:num_aborted_requests_total"}},
		{ATOM{}, []string{"atom:metrics_snapshot_available", "atom:requests_running"}, []string{"atom:mtp_decode_steps_total"}},
		{TRTLLM{},
			[]string{"trtllm_model_config_info", "trtllm_kv_cache_config_info"},
			[]string{"trtllm_num_requests_running", "trtllm_kv_cache_utilization", "trtllm_request_success_total",
				"trtllm_prompt_tokens_total", "trtllm_time_to_first_token_seconds"}},
		{Triton{}, []string{"nv_trt_llm_request_metrics", "nv_inference_request_success", "nv_llm_output_token_len"}, nil},
	} {
		got := run(t, Config{Dialect: c.dialect, Clock: manual()}).page()
		for _, name := range c.present {
			if !got.has(name) {
				t.Errorf("%s: %s is absent", c.dialect.Name(), name)
			}
		}
		for _, name := range c.absent {
			if got.has(name) {
				t.Errorf("%s: %s is there already", c.dialect.Name(), name)
			}
		}
	}
}

func TestContentTypeOfEachPage(t *testing.T) {
	for dialect, want := range map[Dialect]string{
		VLLM{}:   "text/plain; version=1.0.0; charset=utf-8",
		SGLang{}: "text/plain; version=0.0.4; charset=utf-8",
		ATOM{}:   "text/plain; version=1.0.0; charset=utf-8",
		TRTLLM{}: "text/plain; version=0.0.4; charset=utf-8",
		Triton{}: "text/plain; charset=utf-8",
	} {
		s := run(t, Config{Dialect: dialect, Clock: instant()})
		resp, err := s.send(t.Context(), "GET", telemetryPath(dialect), "")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: content-type is %q, want %q", dialect.Name(), got, want)
		}
	}
}

func TestOtherPagesAreThoseOfTheEngine(t *testing.T) {
	const absent = `{"detail":"Not Found"}`
	for _, c := range []struct {
		dialect Dialect
		path    string
		status  int
		want    string
	}{
		{VLLM{}, "/server_info", 404, absent},
		{VLLM{}, "/prometheus/metrics", 404, absent},
		{VLLM{}, "/ready", 404, absent},
		{VLLM{}, "/version", 200, `{"version":"0.32.0"}`},
		{VLLM{}, "/health", 200, ``},
		{VLLM{}, "/v1/models", 200, `{"data":[{"id":"m","object":"model","created":1700000000,"owned_by":"vllm","root":"org/m","parent":null,"max_model_len":1000}],"object":"list"}`},
		{VLLM{}, "/is_sleeping", 404, absent},
		{VLLM{}, "/load", 404, absent},

		{SGLang{}, "/ready", 200, ``},
		{SGLang{}, "/version", 404, absent},
		{SGLang{}, "/is_sleeping", 404, absent},
		{SGLang{}, "/model_info", 200, `{"is_generation":true,"model_path":"org/m","tokenizer_path":"org/m"}`},
		{SGLang{}, "/v1/models", 200, `{"data":[{"id":"m","object":"model","created":1700000000,"owned_by":"sglang","root":"m","parent":null,"max_model_len":1000}],"object":"list"}`},
		{SGLang{}, "/server_info", 200, `{"api_key":"sk-sim-must-not-be-logged","context_length":1000,"disable_radix_cache":false,"dp_size":1,"max_running_requests":32,"max_total_num_tokens":65536,"model_path":"org/m","page_size":16,"served_model_name":"m","tp_size":1,"version":"0.5.23"}`},
		{SGLang{}, "/v1/loads", 200, `{"aggregate":{"avg_throughput":0,"avg_token_usage":0,"total_reqs":0,"total_running_reqs":0,"total_waiting_reqs":0},"dp_rank_count":1,"loads":[{"cache_hit_rate":0,"dp_rank":0,"gen_throughput":0,"max_running_requests":32,"max_total_num_tokens":65536,"num_running_reqs":0,"num_used_tokens":0,"num_waiting_reqs":0,"timestamp":1700000000.25,"token_usage":0}],"timestamp":"2023-11-14T22:13:20.25Z","version":"0.5.23"}`},

		{ATOM{}, "/health", 200, `{"status":"ok"}`},
		{ATOM{}, "/version", 404, absent},
		{ATOM{}, "/prometheus/metrics", 404, absent},
		{ATOM{}, "/server_info", 200, `{"dp_size":1,"model_id":"org/m","served_model_name":"m","tp_size":1}`},
		{ATOM{}, "/v1/models", 200, `{"data":[{"id":"m","object":"model","created":1700000000,"owned_by":"atom"}],"object":"list"}`},

		{TRTLLM{}, "/health", 200, ``},
		{TRTLLM{}, "/version", 200, `{"version":"1.3.0"}`},
		{TRTLLM{}, "/v1/models", 200, `{"data":[{"id":"m","object":"model","created":1700000000,"owned_by":"tensorrt_llm"}],"object":"list"}`},
		{TRTLLM{}, "/metrics", 200, `[]`},
		{TRTLLM{}, "/energy_metrics", 404, absent},

		{Triton{}, "/v2", 200, `{"extensions":["classification","sequence","model_repository","schedule_policy","statistics","trace","logging"],"name":"triton","version":"2.64.0"}`},
		{Triton{}, "/v2/health/live", 200, ``},
		{Triton{}, "/v2/health/ready", 200, ``},
		{Triton{}, "/v2/models/tensorrt_llm/ready", 200, ``},
		{Triton{}, "/v2/models/ensemble", 200, `{"name":"ensemble","versions":["1"]}`},
		{Triton{}, "/v1/models", 404, absent},
		{Triton{}, "/version", 404, absent},
		{Triton{}, "/health", 404, absent},
	} {
		s := run(t, Config{Dialect: c.dialect, Models: []string{"m"}, Root: "org/m", MaxModelLen: 1000, Clock: manual()})
		if status, got := s.do("GET", c.path, ""); status != c.status || got != c.want {
			t.Errorf("%s %s: got %d %s, want %d %s", c.dialect.Name(), c.path, status, got, c.status, c.want)
		}
		if other := s.Arrivals().Other; other != 0 {
			t.Errorf("%s %s: counted as unknown", c.dialect.Name(), c.path)
		}
	}
}

func TestDialectsAreFoundByName(t *testing.T) {
	for _, name := range []string{"vllm", "sglang", "atom", "trtllm-serve", "triton-tensorrt-llm"} {
		if d, err := DialectNamed(name); err != nil || d.Name() != name {
			t.Errorf("%s: got %v, %v", name, d, err)
		}
	}
	if d, err := DialectNamed("triton"); err != nil || d != (Triton{}) {
		t.Errorf("triton: got %v, %v", d, err)
	}
	const want = `engine: "VLLM": must be vllm, sglang, atom, trtllm-serve, triton-tensorrt-llm or triton`
	if _, err := DialectNamed("VLLM"); err == nil || err.Error() != want {
		t.Errorf("VLLM: got %v, want %s", err, want)
	}
}

func TestEachDialectServesInference(t *testing.T) {
	for _, d := range Dialects() {
		s := run(t, Config{Dialect: d, Clock: instant()})
		if got := s.ok("POST", "/v1/completions", small); !strings.Contains(got, `"finish_reason":"length"`) {
			t.Errorf("%s: got %s", d.Name(), got)
		}
	}
}

// A background request of the default engine has a prompt of 64 tokens, four blocks of 4096, and 960 tokens to generate. Alone it takes
// 6.1 ms + 64/8000 s for the first token and 6.1 ms for each further one.
const (
	firstToken = 14100 * time.Microsecond
	nextToken  = 6100 * time.Microsecond
)

func TestSGLangReportsOnPrefillAndEveryFortyDecodeSteps(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: SGLang{}, Clock: clock})
	load := func(l Load) {
		t.Helper()
		if err := s.SetLoad(l); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(when string, running, usage, decoded float64) {
		t.Helper()
		got := s.page()
		if r, u := got.value("sglang:num_running_reqs"), got.value("sglang:token_usage"); r != running || u != usage {
			t.Errorf("%s: %v running with usage %v, want %v and %v", when, r, u, running, usage)
		}
		if !got.has("sglang:realtime_tokens_total") {
			if decoded != 0 {
				t.Errorf("%s: no tokens on the page, want %v", when, decoded)
			}
		} else if d := got.value("sglang:realtime_tokens_total", "mode", "decode"); d != decoded {
			t.Errorf("%s: %v tokens decoded, want %v", when, d, decoded)
		}
	}

	load(Load{Running: 1})
	shows("admitted", 1, 4.0/4096, 0)
	clock.advance(firstToken)
	shows("prompt computed", 1, 5.0/4096, 1)
	clock.advance(39 * nextToken)
	shows("39 steps later", 1, 5.0/4096, 1)
	clock.advance(nextToken)
	// 64 tokens of the prompt and 40 generated ones fill six and a half blocks, the 41st goes on in the seventh.
	shows("40 steps later", 1, 7.0/4096, 41)
	if got, want := s.page().value("sglang:gen_throughput"), 41/0.2581; got < want-1e-6 || got > want+1e-6 {
		t.Errorf("throughput is %v, want %v", got, want)
	}

	clock.advance(10 * nextToken)
	load(Load{})
	shows("gone", 1, 7.0/4096, 41)
	if running := s.stats().Running; running != 0 {
		t.Fatalf("%d run in truth", running)
	}
	clock.advance(30*time.Second - 10*nextToken - time.Nanosecond)
	shows("just before the idle report", 1, 7.0/4096, 41)
	clock.advance(time.Nanosecond)
	shows("30 s after the last report", 0, 0, 51)
	if got := s.page().value("sglang:num_aborted_requests_total"); got != 1 {
		t.Errorf("%v aborted, want 1", got)
	}
}

func TestSGLangReportsWhenIdleForThirtySeconds(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: SGLang{}, Clock: clock})
	clock.advance(30*time.Second - time.Nanosecond)
	if s.page().has("sglang:num_running_reqs") {
		t.Error("the scheduler has reported before its time")
	}
	clock.advance(time.Nanosecond)
	if got := s.page().value("sglang:num_running_reqs"); got != 0 {
		t.Errorf("%v run, want 0", got)
	}
	if got := s.page().value("sglang:scheduler_idle_seconds_total"); got != 30 {
		t.Errorf("idle for %v s, want 30", got)
	}
}

func TestSGLangTellsStreamedRequestsFromOthersAndCountsThemAtTheirEnd(t *testing.T) {
	s := run(t, Config{Dialect: SGLang{}, Clock: instant()})
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":3}`)
	got := s.page()
	if n := len(got.all["sglang:num_requests_total"].GetMetric()); n != 1 {
		t.Errorf("%d children before there was a stream, want 1", n)
	}
	if got.has("sglang:cached_tokens_total") {
		t.Error("cached tokens are counted before there were any")
	}
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":5,"stream":true}`)
	got = s.page()
	for streaming, want := range map[string]float64{"true": 5, "false": 3} {
		if v := got.value("sglang:generation_tokens_total", "is_streaming", streaming); v != want {
			t.Errorf("is_streaming %s: %v tokens, want %v", streaming, v, want)
		}
	}

	clock := manual()
	s = run(t, Config{Dialect: SGLang{}, Clock: clock, Background: Load{Running: 1}})
	clock.advance(firstToken + 50*nextToken)
	if s.page().has("sglang:generation_tokens_total") {
		t.Error("tokens are counted before their request has finished")
	}
	if !s.page().has("sglang:time_to_first_token_seconds") {
		t.Error("the time to first token is not told with the first token")
	}
}

func TestSGLangHitRateIsOfTheLatestPrefillOnly(t *testing.T) {
	s := run(t, Config{Dialect: SGLang{}, Clock: instant()})
	// 40 tokens, of which a second request finds two blocks of 16.
	request := func(output string) {
		s.ok("POST", "/v1/completions", `{"max_tokens":`+output+`,"prompt":"`+strings.Repeat("abcdefgh", 20)+`"}`)
	}
	request("2")
	request("2")
	if got := s.page().value("sglang:cache_hit_rate"); got != 0.8 {
		t.Errorf("hit rate after a prefill is %v, want 0.8", got)
	}
	request("60")
	if got := s.page().value("sglang:cache_hit_rate"); got != 0 {
		t.Errorf("hit rate after a decode report is %v, want 0", got)
	}
	if got := s.page().value("sglang:cached_tokens_total", "cache_source", "device"); got != 64 {
		t.Errorf("%v cached tokens, want 64", got)
	}
}

func TestSGLangHealthCostsATokenAndASecond(t *testing.T) {
	clock := instant()
	s := run(t, Config{Dialect: SGLang{}, Clock: clock})
	before := clock.Now()
	s.ok("GET", "/health", "")
	if took := clock.Now().Sub(before); took != time.Second {
		t.Errorf("/health took %v, want 1s", took)
	}
	if got := s.stats().GeneratedTokens; got != 1 {
		t.Errorf("%d tokens generated, want 1", got)
	}

	s.ok("POST", "/sim/faults", `{"hang":true}`)
	before = clock.Now()
	if status, _ := s.do("GET", "/health", ""); status != 503 {
		t.Errorf("a scheduler that stands still has health %d, want 503", status)
	}
	if took := clock.Now().Sub(before); took != 20*time.Second {
		t.Errorf("/health gave up after %v, want 20s", took)
	}
	s.ok("GET", "/ready", "")
	eventually(t, "the request for health has left", func() bool { return s.stats().Waiting+s.stats().Running == 0 })
}

func TestATOMIsFiveToTenSecondsBehind(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: ATOM{}, Clock: clock})
	shows := func(available, running, finished, tokens float64, refreshed time.Duration) {
		t.Helper()
		got := s.page()
		after := clock.Now().Sub(epoch)
		for name, want := range map[string]float64{
			"metrics_snapshot_available": available, "requests_running": running, "requests_finished_total": finished,
			"generation_tokens_total": tokens, "kv_cache_blocks_total": available * 4096,
			"metrics_last_refresh_timestamp_seconds": seconds(epoch.Add(refreshed)),
		} {
			if v := got.value("atom:" + name); v != want {
				t.Errorf("after %v: %s is %v, want %v", after, name, v, want)
			}
		}
	}
	shows(0, 0, 0, 0, 0)
	clock.advance(4 * time.Second)
	// It finishes after 5.864 s, at 9.864 s, and another one takes its place.
	if err := s.SetLoad(Load{Running: 1}); err != nil {
		t.Fatal(err)
	}
	shows(0, 0, 0, 0, 0)
	clock.advance(time.Second)
	shows(1, 0, 0, 0, 5*time.Second) // the snapshot of the start
	clock.advance(5*time.Second - time.Nanosecond)
	shows(1, 0, 0, 0, 5*time.Second)
	clock.advance(time.Nanosecond)
	shows(1, 1, 0, 0, 10*time.Second) // that of 5 s
	clock.advance(5 * time.Second)
	shows(1, 1, 1, 960, 15*time.Second) // that of 10 s

	if err := s.SetFaults(Faults{Hang: true}); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	shows(1, 1, 1, 960, time.Hour+15*time.Second)
}

func TestTRTLLMShowsTheLastCompletionOnly(t *testing.T) {
	clock := manual()
	// Background requests of 4 and 12 tokens, of which two run.
	s := run(t, Config{Dialect: TRTLLM{}, Clock: clock, Engine: enginemodel.Config{MaxRunning: 2, Blocks: 16, BlockTokens: 4},
		Background: Load{Running: 2, Waiting: 1}})
	// The first request is alone in its first step, of 6.1 ms + 4/8000 s; the second one's prompt is computed in the second, of
	// 6.2 ms + 4/8000 s. Ten steps of 6.2 ms later the first one ends.
	const first, all = 6600 * time.Microsecond, (6600 + 6700 + 10*6200) * time.Microsecond
	clock.advance(first)
	if s.page().has("trtllm_time_to_first_token_seconds") {
		t.Error("the time to first token is told before the request has ended")
	}
	clock.advance(all - first - time.Nanosecond)
	if s.page().has("trtllm_num_requests_running") || s.page().has("trtllm_generation_tokens_total") {
		t.Error("there is something on the page before the first completion")
	}
	clock.advance(time.Nanosecond)
	shows := func(when string) {
		t.Helper()
		got := s.page()
		for name, want := range map[string]float64{
			// The one that waited took the place of the one that ended. The other one holds 4 blocks, it 1.
			"num_requests_running": 2, "num_requests_waiting": 0, "num_requests_completed_total": 1, "num_context_requests": 1,
			"max_num_active_requests": 2, "kv_cache_used_blocks": 5, "kv_cache_utilization": 5.0 / 16, "kv_cache_tokens_per_block": 4,
			"iteration_latency_seconds": 0.0062, "generation_tokens_total": 12,
		} {
			if v := got.value("trtllm_" + name); v != want {
				t.Errorf("%s: %s is %v, want %v", when, name, v, want)
			}
		}
		if n := got.histogram("trtllm_time_to_first_token_seconds").GetSampleCount(); n != 1 {
			t.Errorf("%s: %d times to first token, want 1", when, n)
		}
		if got.value("trtllm_num_requests_running", "pid", "71", "engine_type", "pytorch") != 2 {
			t.Errorf("%s: gauges have no pid", when)
		}
	}
	shows("at the completion")
	if waiting := s.stats().Waiting; waiting != 1 {
		t.Errorf("%d wait in truth, want 1", waiting)
	}
	if err := s.SetLoad(Load{}); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	shows("idle")
}

func TestTRTLLMIterationsAreTakenByWhoeverReadsThem(t *testing.T) {
	s := run(t, Config{Dialect: TRTLLM{}, Clock: instant()})
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":3}`)
	if n := s.Arrivals().Drained; n != 0 {
		t.Errorf("%d reads before the first", n)
	}
	s.page()
	rows := s.ok("GET", "/metrics", "")
	if n := strings.Count(rows, `"iter":`); n != 3 || !strings.Contains(rows, `"numCompletedRequests":1`) {
		t.Errorf("%d rows, want 3, one of them with a completion: %s", n, rows)
	}
	if rows := s.ok("GET", "/metrics", ""); rows != "[]" {
		t.Errorf("the second reader found %s", rows)
	}
	if n := s.Arrivals().Drained; n != 2 {
		t.Errorf("%d reads counted, want 2", n)
	}
}

func TestTRTLLMKeepsAThousandIterations(t *testing.T) {
	s := run(t, Config{Dialect: TRTLLM{}, Clock: instant()})
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":1100}`)
	rows := s.ok("GET", "/metrics", "")
	if n := strings.Count(rows, `"iter":`); n != 1000 || strings.Contains(rows, `"iter":100,`) || !strings.Contains(rows, `"iter":1100,`) {
		t.Errorf("%d rows, want the last 1000 of 1100", n)
	}
}

func TestTritonStampsItsLastStep(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: Triton{}, Clock: clock})
	shows := func(when string, scheduled, waiting, most, iterations float64, stamp time.Duration) {
		t.Helper()
		got := s.page()
		requests := func(kind string) float64 { return got.value("nv_trt_llm_request_metrics", "request_type", kind) }
		if v := requests("scheduled"); v != scheduled {
			t.Errorf("%s: %v scheduled, want %v", when, v, scheduled)
		}
		if v := requests("waiting"); v != waiting || requests("active") != scheduled+waiting {
			t.Errorf("%s: %v waiting and %v active, want %v and %v", when, v, requests("active"), waiting, scheduled+waiting)
		}
		if v := requests("max"); v != most {
			t.Errorf("%s: at most %v, want %v", when, v, most)
		}
		general := func(kind string) float64 { return got.value("nv_trt_llm_general_metrics", "general_type", kind) }
		want := 0.0
		if stamp > 0 {
			want = float64(epoch.Add(stamp).UnixMicro())
		}
		if general("iteration_counter") != iterations || general("timestamp") != want {
			t.Errorf("%s: iteration %v at %v, want %v at %v", when, general("iteration_counter"), general("timestamp"), iterations, want)
		}
	}
	shows("started", 0, 0, 0, 0, 0)
	if err := s.SetLoad(Load{Running: 1}); err != nil {
		t.Fatal(err)
	}
	shows("in the first step", 0, 0, 0, 0, 0)
	clock.advance(firstToken)
	shows("after it", 1, 0, 32, 1, firstToken)
	clock.advance(nextToken + nextToken/2)
	shows("in the third step", 1, 0, 32, 2, firstToken+nextToken)
	if err := s.SetLoad(Load{}); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	shows("idle", 1, 0, 32, 2, firstToken+nextToken)
}

func TestTritonAsksTheDriverEveryTwoSeconds(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: Triton{}, Clock: clock})
	shows := func(when string, utilization, power, energy float64) {
		t.Helper()
		got := s.page()
		u, p, e := got.value("nv_gpu_utilization"), got.value("nv_gpu_power_usage"), got.value("nv_energy_consumption")
		if u != utilization || p != power || math.Abs(e-energy) > 1e-6 {
			t.Errorf("%s: utilization %v at %v W after %v J, want %v, %v and %v", when, u, p, e, utilization, power, energy)
		}
	}
	shows("started", 0, 110, 0)
	clock.advance(1500 * time.Millisecond)
	if err := s.SetLoad(Load{Running: 1}); err != nil {
		t.Fatal(err)
	}
	clock.advance(500*time.Millisecond - time.Nanosecond)
	shows("before it is asked", 0, 110, 0)
	clock.advance(time.Nanosecond)
	shows("with a batch for half a second", 0.94, 512.337, 1.5*110+0.5*512.337)
	clock.advance(time.Second)
	if err := s.SetLoad(Load{}); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Second - time.Nanosecond)
	shows("without one, which nobody has asked for yet", 0.94, 512.337, 1.5*110+0.5*512.337)
	clock.advance(time.Nanosecond)
	shows("a second after its end", 0, 110, 2.5*110+1.5*512.337)
	clock.advance(time.Minute)
	shows("idle", 0, 110, 62.5*110+1.5*512.337)

	s.ok("POST", "/sim/faults", `{"zeroCounters":true}`)
	clock.advance(2 * time.Second)
	shows("counted anew", 0, 110, 2*110)
}

func TestTritonCountsARequestOnceForEachModel(t *testing.T) {
	clock := instant()
	s := run(t, Config{Dialect: Triton{}, Clock: clock})
	s.ok("POST", "/v1/completions", small)
	got := s.page()
	for _, model := range []string{"ensemble", "preprocessing", "tensorrt_llm", "postprocessing"} {
		if v := got.value("nv_inference_request_success", "model", model); v != 1 {
			t.Errorf("%s: %v requests, want 1", model, v)
		}
	}
	if n := len(got.all["nv_trt_llm_request_metrics"].GetMetric()); n != 5 {
		t.Errorf("%d gauges of requests, want 5, all of one model", n)
	}
	if v := got.value("nv_inference_request_duration_us", "model", "ensemble"); v < 12324 || v > 12326 {
		t.Errorf("the request took %v us, want 12325", v)
	}
}
