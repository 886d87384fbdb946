package engine

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestM5_APlaceholderForTheModelIsNoModel(t *testing.T) {
	const page = `trtllm_num_requests_waiting{engine_type="undefined",model_name="undefined",pid="71"} 6
trtllm_num_requests_running{engine_type="undefined",model_name="undefined",pid="71"} 33
trtllm_kv_cache_utilization{engine_type="undefined",model_name="undefined",pid="71"} 0.5
`
	for _, models := range [][]string{nil, {"llama"}} {
		s := readPageOf(t, "trtllm-serve", page, Input{Models: models})
		wantValue(t, s, telemetry.QueueDepth, 6)
		wantValue(t, s, telemetry.ActiveRequests, 33)
		wantValue(t, s, telemetry.KVCacheUtilization, 0.5)
		if r := &s.Readings[telemetry.ServedModels]; r.State(noon) != telemetry.Missing {
			t.Errorf("served models %q, want none from a label", r.Detail.Names)
		}
	}
}

func TestENGINES0_TRTLLMsUndefinedBesideAModelIsNotAnotherModel(t *testing.T) {
	s := readPageOf(t, "trtllm-serve", `trtllm_num_requests_waiting{engine_type="pytorch",model_name="llama",pid="71"} 6
trtllm_kv_cache_utilization{engine_type="undefined",model_name="undefined",pid="71"} 0.5
`, Input{})
	wantValue(t, s, telemetry.QueueDepth, 6)
	wantValue(t, s, telemetry.KVCacheUtilization, 0.5)
}

func TestM6_TRTLLMsJSONIsNotAMetricsPage(t *testing.T) {
	p := profileOf(t, "trtllm-serve")
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	for name, page := range map[string][]byte{
		"nothing happened":     []byte("[]"),
		"nothing, and a line":  []byte("[]\n"),
		"iteration statistics": load(t, "trtllm-iteration-stats.json"),
		"an object":            []byte(`{"detail":"Not Found"}`),
	} {
		if s, err := p.Read(page, Input{At: noon}); s != nil || !errors.Is(err, ErrNotText) {
			t.Errorf("%s: error %v, want %v", name, err, ErrNotText)
		}
		if _, err := set.Detect(page); !errors.Is(err, ErrNotText) {
			t.Errorf("%s: detection says %v, want %v", name, err, ErrNotText)
		}
	}
}

func TestM6_TRTLLMsDrainingPagesAreNeverAsked(t *testing.T) {
	p := profileOf(t, "trtllm-serve")
	if path := p.Metrics().Path; path != "/prometheus/metrics" {
		t.Errorf("the metrics page is %s, want /prometheus/metrics", path)
	}
	for _, path := range []string{"/metrics", "/kv_cache_events", "/health_generate"} {
		if !p.Never(path) {
			t.Errorf("%s may be asked, want never", path)
		}
	}
	for _, page := range append(p.SlowPages(), p.Metrics()) {
		if p.Never(page.Path) {
			t.Errorf("%s is asked and must never be", page.Path)
		}
	}
}

// Two processes have left their gauges: 71 lives, 64 is gone.
func TestENGINES0_TRTLLMsGaugesAllCarryAPID(t *testing.T) {
	s := readPageOf(t, "trtllm-serve", `trtllm_num_requests_running{model_name="m",pid="64"} 12
trtllm_num_requests_running{model_name="m",pid="71"} 33
trtllm_num_requests_waiting{model_name="m",pid="64"} 9
trtllm_num_requests_waiting{model_name="m",pid="71"} 6
trtllm_kv_cache_max_blocks{model_name="m",pid="64"} 1000
trtllm_kv_cache_max_blocks{model_name="m",pid="71"} 1000
trtllm_kv_cache_tokens_per_block{model_name="m",pid="64"} 32
trtllm_kv_cache_tokens_per_block{model_name="m",pid="71"} 32
trtllm_model_config_info{max_model_len="8192",model_name="m",pid="64"} 1
trtllm_model_config_info{max_model_len="8192",model_name="m",pid="71"} 1
trtllm_kv_cache_config_info{enable_block_reuse="True",model_name="m",pid="64"} 1
trtllm_kv_cache_config_info{enable_block_reuse="True",model_name="m",pid="71"} 1
`, Input{})
	wantValue(t, s, telemetry.ActiveRequests, 33)
	wantValue(t, s, telemetry.QueueDepth, 9)
	wantValue(t, s, telemetry.KVCacheCapacity, 32000)
	wantValue(t, s, telemetry.ContextLimit, 8192)
	wantValue(t, s, telemetry.PrefixCacheEnabled, 1)
}

// With attention data parallelism each rank repeats the active requests of rank
// 0, whatever label may tell the ranks apart some day.
func TestENGINES0_TRTLLMsRunningRequestsAreNotSummedOverRanks(t *testing.T) {
	s := readPageOf(t, "trtllm-serve", `trtllm_num_requests_running{attention_dp_rank="0",model_name="m",pid="71"} 20
trtllm_num_requests_running{attention_dp_rank="1",model_name="m",pid="71"} 20
trtllm_num_requests_waiting{attention_dp_rank="0",model_name="m",pid="71"} 6
trtllm_num_requests_waiting{attention_dp_rank="1",model_name="m",pid="71"} 0
`, Input{})
	wantValue(t, s, telemetry.ActiveRequests, 20)
	// The queue is in the row of rank 0 alone, and may be summed.
	wantValue(t, s, telemetry.QueueDepth, 6)
}

const perfMetricsAlone = `# TYPE trtllm_request_success_total counter
%s# TYPE trtllm_num_requests_waiting gauge
# TYPE trtllm_num_requests_running gauge
trtllm_model_config_info{max_model_len="8192",model_name="m",pid="71"} 1
trtllm_kv_cache_config_info{enable_block_reuse="False",model_name="m",pid="71"} 1
`

func TestENGINES0_TRTLLMsConfigurationIsThereWithPerfMetricsAlone(t *testing.T) {
	s := readPageOf(t, "trtllm-serve", fmt.Sprintf(perfMetricsAlone, `trtllm_request_success_total{model_name="m"} 3
`), Input{})
	wantValue(t, s, telemetry.ContextLimit, 8192)
	wantValue(t, s, telemetry.PrefixCacheEnabled, 0)
	for _, f := range telemetry.LoadFields {
		wantNoValue(t, s, f, telemetry.Disabled, "enable_iter_perf_stats is off")
	}
}

func TestTRTLLMBeforeTheFirstCompletionIsUnknownAndNotOff(t *testing.T) {
	for name, counter := range map[string]string{"no sample": "", "zero": "trtllm_request_success_total{model_name=\"m\"} 0\n"} {
		t.Run(name, func(t *testing.T) {
			s := readPageOf(t, "trtllm-serve", fmt.Sprintf(perfMetricsAlone, counter), Input{})
			wantNoValue(t, s, telemetry.QueueDepth, telemetry.Supported, "has no sample")
			wantNoValue(t, s, telemetry.ActiveRequests, telemetry.Supported, "has no sample")
			wantNoValue(t, s, telemetry.KVCacheUtilization, telemetry.SupportUnknown, "is not on the page")
		})
	}
}

func TestENGINES0_TRTLLMsGaugesMayPrecedeTheFirstCompletion(t *testing.T) {
	s := readPageOf(t, "trtllm-serve", `# TYPE trtllm_request_success_total counter
trtllm_num_requests_waiting{model_name="m",pid="71"} 0
trtllm_num_requests_running{model_name="m",pid="71"} 0
trtllm_kv_cache_utilization{model_name="m",pid="71"} 0
`, Input{})
	for _, f := range telemetry.LoadFields {
		wantValue(t, s, f, 0)
	}
}

func TestTRTLLMsHealthAndVersionComeFromTheirPages(t *testing.T) {
	p := profileOf(t, "trtllm-serve")
	page := func(path string) Page {
		for _, page := range p.SlowPages() {
			if page.Path == path {
				return page
			}
		}
		t.Fatalf("%s is not asked", path)
		return Page{}
	}
	onto := readPageOf(t, "trtllm-serve", "trtllm_num_requests_waiting 0\n", Input{})
	for status, healthy := range map[int]float64{http.StatusOK: 1, http.StatusServiceUnavailable: 0} {
		s, err := p.ReadSlow(page("/health"), status, nil, noon, time.Minute, onto)
		if err != nil {
			t.Fatal(err)
		}
		wantValue(t, s, telemetry.Health, healthy)
	}
	// Keys that nobody asked for are ignored.
	s, err := p.ReadSlow(page("/version"), http.StatusOK, []byte(`{"version":"1.3.0rc4","commit":[1,{"a":null}]}`), noon, time.Minute, onto)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Readings[telemetry.EngineVersion].Detail.Text; got != "1.3.0rc4" {
		t.Errorf("version %q, want 1.3.0rc4", got)
	}
}

// A gauge that is written when a request completes says nothing while one long
// request runs.
func TestTRTLLMThatStandsStillUnderLoadIsDoubted(t *testing.T) {
	const page = "trtllm_num_requests_running{model_name=\"m\",pid=\"71\"} 1\n"
	history, busy := new(History), Traffic{BusySince: noon.Add(-time.Minute)}
	readPageOf(t, "trtllm-serve", page, Input{At: noon, History: history, Traffic: busy})
	s := readPageOf(t, "trtllm-serve", page, Input{At: noon.Add(31 * time.Second), History: history, Traffic: busy})
	if q := s.Readings[telemetry.ActiveRequests].Quality; q != 0.5 {
		t.Errorf("quality %v after 31 s, want 0.5", q)
	}
}
