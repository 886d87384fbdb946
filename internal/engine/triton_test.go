package engine

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

const triton = "triton-tensorrt-llm"

func TestM7_TritonsKVUtilizationIsUsedOverMax(t *testing.T) {
	const block = `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s",model="tensorrt_llm",version="1"} %v` + "\n"
	for name, c := range map[string]struct {
		page  string
		value float64
		// reason is why there is no value, empty if there is one.
		reason string
	}{
		"no fraction":             {fmt.Sprintf(block+block, "used", 50, "max", 200), 0.25, ""},
		"fraction says otherwise": {fmt.Sprintf(block+block+block, "used", 50, "max", 200, "fraction", 0.9), 0.25, ""},
		"max is 0":                {fmt.Sprintf(block+block, "used", 0, "max", 0), 0, "says 0: not known yet"},
		"max and fraction are 0":  {fmt.Sprintf(block+block+block, "used", 0, "max", 0, "fraction", 0), 0, "says 0: not known yet"},
		"no max":                  {fmt.Sprintf(block, "used", 50), 0, "has no series where kv_cache_block_type=max"},
	} {
		t.Run(name, func(t *testing.T) {
			s := readPageOf(t, triton, c.page, Input{})
			if c.reason == "" {
				wantValue(t, s, telemetry.KVCacheUtilization, c.value)
				return
			}
			r := &s.Readings[telemetry.KVCacheUtilization]
			if r.State(noon) != telemetry.Missing || !strings.Contains(reasonsOf(s, telemetry.KVCacheUtilization), c.reason) {
				t.Errorf("%v, %s (%s), want it missing (%s)", r.Value, r.State(noon), reasonsOf(s, telemetry.KVCacheUtilization), c.reason)
			}
		})
	}
}

const inference = `nv_inference_request_success{model="%[1]s",version="1"} %[2]d
nv_inference_request_duration_us{model="%[1]s",version="1"} %[3]d
nv_inference_queue_duration_us{model="%[1]s",version="1"} %[4]d
`

// parts are the counters of an ensemble and of what it is made of.
func parts(requests, ensemble, llm int) string {
	return fmt.Sprintf(inference, "ensemble", requests, ensemble, 0) +
		fmt.Sprintf(inference, "preprocessing", requests, requests*1000, 100) +
		fmt.Sprintf(inference, "tensorrt_llm", llm, llm*4_000_000, llm*10_000) +
		fmt.Sprintf(inference, "postprocessing", requests, requests*2000, 100)
}

// Containers before 23.12: the counters of tensorrt_llm stay at 0.
func TestM7_TritonsCountersOfTheOutermostModelCount(t *testing.T) {
	s := grownPages(t, triton, parts(10, 50_000_000, 0), parts(30, 150_000_000, 0))
	wantMean(t, s, telemetry.E2E, 5, 20)
	for _, f := range telemetry.LoadFields {
		wantNoValue(t, s, f, telemetry.Unsupported, "is not on the page")
	}
}

func TestM7_TritonsCountersThatStayAtZeroAreNoLatency(t *testing.T) {
	page := fmt.Sprintf(inference, "tensorrt_llm", 0, 0, 0)
	s := grownPages(t, triton, page, page)
	wantNoValue(t, s, telemetry.E2E, telemetry.Supported, "no recent data")
	wantNoValue(t, s, telemetry.QueueTime, telemetry.Supported, "no recent data")
}

func TestTritonsPartsOfAnEnsembleAreNeverSummed(t *testing.T) {
	s := grownPages(t, triton, parts(10, 50_000_000, 10), parts(14, 74_000_000, 14))
	wantMean(t, s, telemetry.E2E, 6, 4)

	bls := func(requests int) string {
		return fmt.Sprintf(inference, "tensorrt_llm_bls", requests, requests*7_000_000, 0) +
			fmt.Sprintf(inference, "tensorrt_llm", requests, requests*4_000_000, requests*10_000)
	}
	s = grownPages(t, triton, bls(3), bls(5))
	wantMean(t, s, telemetry.E2E, 7, 2)

	alone := func(requests int) string {
		return fmt.Sprintf(inference, "tensorrt_llm", requests, requests*4_000_000, requests*10_000)
	}
	s = grownPages(t, triton, alone(3), alone(5))
	wantMean(t, s, telemetry.E2E, 4, 2)
	wantMean(t, s, telemetry.QueueTime, 0.01, 2)
}

func TestENGINES0_TritonsFailuresByReasonDisturbNothing(t *testing.T) {
	plain := parts(10, 50_000_000, 10)
	failures := `nv_inference_request_failure{model="ensemble",reason="REJECTED",version="1"} 4
nv_inference_request_failure{model="ensemble",reason="CANCELED",version="1"} 5
nv_inference_request_failure{model="ensemble",reason="BACKEND",version="1"} 6
nv_inference_request_failure{model="ensemble",reason="OTHER",version="1"} 7
`
	s := grownPages(t, triton, plain+failures, parts(20, 90_000_000, 20)+failures)
	wantMean(t, s, telemetry.E2E, 4, 10)
}

// The llmapi backend makes no family of its own.
func TestENGINES0_TritonsLLMAPIBackendSaysNothingOfLoad(t *testing.T) {
	llmapi := func(requests int) string {
		return fmt.Sprintf(inference, "tensorrt_llm", requests, requests*4_000_000, requests*10_000) +
			`nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 0
nv_inference_exec_count{model="tensorrt_llm",version="1"} 9000
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.9
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.7
nv_gpu_power_usage{gpu_uuid="GPU-1"} 500
nv_gpu_power_usage{gpu_uuid="GPU-2"} 400.5
`
	}
	s := grownPages(t, triton, llmapi(3), llmapi(5))
	for _, f := range []telemetry.Field{
		telemetry.QueueDepth, telemetry.ActiveRequests, telemetry.KVCacheUtilization, telemetry.MaxConcurrency,
		telemetry.KVCacheCapacity, telemetry.KVBlockSize, telemetry.GenerationThroughput,
	} {
		wantNoValue(t, s, f, telemetry.Unsupported, "is not on the page")
	}
	wantMean(t, s, telemetry.E2E, 4, 2)
	wantValue(t, s, telemetry.GPUUtilization, 0.9)
	wantValue(t, s, telemetry.Power, 900.5)
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	if p, err := set.Detect([]byte(llmapi(3))); err != nil || p.Name() != triton {
		t.Errorf("detected as %v, %v, want %s", p, err, triton)
	}
}

func TestTritonWithTwoLLMsIsAmbiguousUnlessItIsKnownWhichIsMeant(t *testing.T) {
	const page = `nv_trt_llm_request_metrics{model="llama",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="qwen",request_type="waiting",version="1"} 7
`
	s := readPageOf(t, triton, page, Input{})
	if r := &s.Readings[telemetry.QueueDepth]; r.State(noon) != telemetry.Invalid || !strings.Contains(reasonsOf(s, telemetry.QueueDepth), "ambiguous") {
		t.Errorf("queue depth %v, %s (%s), want it invalid, ambiguous", r.Value, r.State(noon), reasonsOf(s, telemetry.QueueDepth))
	}
	wantValue(t, readPageOf(t, triton, page, Input{Models: []string{"qwen"}}), telemetry.QueueDepth, 7)
}

// ENGINES 3.5: the sample of the README has more requests scheduled than active, and a
// reporter that misses one type gives each later one its neighbour's value.
func TestATritonPageThatContradictsItselfIsNotBelieved(t *testing.T) {
	const (
		requests = "nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=%q,version=\"1\"} %s\n"
		blocks   = "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=%q,model=\"tensorrt_llm\",version=\"1\"} %s\n"
	)
	group := func(line string, values ...string) (page string) {
		for i := 0; i < len(values); i += 2 {
			page += fmt.Sprintf(line, values[i], values[i+1])
		}
		return page
	}
	load := []telemetry.Field{telemetry.QueueDepth, telemetry.ActiveRequests}
	cache := []telemetry.Field{telemetry.KVCacheUtilization, telemetry.KVCacheCapacity}
	for _, c := range []struct {
		name, page string
		fields     []telemetry.Field
		want       telemetry.State
		reason     string
	}{
		{"the README's requests", group(requests, "waiting", "1", "scheduled", "1", "active", "0", "max", "512"), load, telemetry.Invalid, "more requests are scheduled than active: 1 and 0"},
		{"all of them scheduled", group(requests, "waiting", "0", "scheduled", "7", "active", "7"), load, telemetry.Fresh, ""},
		{"no count of active ones", group(requests, "waiting", "2", "scheduled", "7"), load, telemetry.Fresh, ""},
		{"a count of active ones that is none", group(requests, "waiting", "2", "scheduled", "7", "active", "NaN"), load, telemetry.Fresh, ""},
		{"blocks that add up", group(blocks, "used", "50", "free", "150", "max", "200", "tokens_per", "64"), cache, telemetry.Fresh, ""},
		{"blocks caught between two updates", group(blocks, "used", "58", "free", "150", "max", "200", "tokens_per", "64"), cache, telemetry.Fresh, ""},
		{"blocks without the free ones", group(blocks, "used", "50", "max", "200", "tokens_per", "64"), cache, telemetry.Fresh, ""},
		{"more blocks than there are", group(blocks, "used", "60", "free", "200", "max", "64", "tokens_per", "1"), cache, telemetry.Invalid, "more blocks are used and free than there are: 260 and 64"},
		{"fewer blocks than there are", group(blocks, "used", "0", "free", "50", "max", "150", "tokens_per", "200"), cache, telemetry.Invalid, "there are more blocks than are used and free: 150 and 50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := readPageOf(t, triton, c.page, Input{})
			for _, f := range c.fields {
				if r := &s.Readings[f]; r.State(noon) != c.want || c.reason != "" && reasonsOf(s, f) != c.reason {
					t.Errorf("%s %v is %s (%s), want it %s (%s)", f, r.Value, r.State(noon), reasonsOf(s, f), c.want, c.reason)
				}
			}
		})
	}
}

func TestTritonsModelMayHaveAnyNameBesideAnEnsemble(t *testing.T) {
	s := readPageOf(t, triton, parts(10, 50_000_000, 10)+
		`nv_trt_llm_request_metrics{model="llama_70b",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="llama_70b",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="llama_70b",request_type="active",version="1"} 7
`, Input{Models: []string{"meta-llama/Llama-3.3-70B"}})
	wantValue(t, s, telemetry.QueueDepth, 2)
	wantValue(t, s, telemetry.ActiveRequests, 5)
}

// Microseconds in current sources, seconds in the README. The page does not move
// while nothing runs.
func TestTritonsOwnTimeCountsWhileItWorks(t *testing.T) {
	const page = `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} %d
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} 482211
nv_trt_llm_general_metrics{general_type="timestamp",model="tensorrt_llm",version="1"} %d
`
	for name, c := range map[string]struct {
		running, stated int
		state           telemetry.State
	}{
		"microseconds, 5 s ago, busy":   {3, (noonSeconds - 5) * 1_000_000, telemetry.Fresh},
		"microseconds, 2 min ago, busy": {3, (noonSeconds - 120) * 1_000_000, telemetry.Stale},
		"microseconds, 2 min ago, idle": {0, (noonSeconds - 120) * 1_000_000, telemetry.Fresh},
		"seconds, 5 s ago, busy":        {3, noonSeconds - 5, telemetry.Fresh},
		"seconds, 2 min ago, busy":      {3, noonSeconds - 120, telemetry.Stale},
	} {
		t.Run(name, func(t *testing.T) {
			s := readPageOf(t, triton, fmt.Sprintf(page, c.running, c.stated), Input{})
			r := &s.Readings[telemetry.ActiveRequests]
			if r.State(noon) != c.state {
				t.Errorf("state %s (%s), want %s", r.State(noon), reasonsOf(s, telemetry.ActiveRequests), c.state)
			}
			age := noon.Sub(r.Detail.EngineTime)
			if age != 5*time.Second && age != 2*time.Minute {
				t.Errorf("engine time %v, want 5 s or 2 min before %v", r.Detail.EngineTime.Time(), noon.Time())
			}
		})
	}
}

func TestTritonsHealthReadinessAndVersion(t *testing.T) {
	p := profileOf(t, triton)
	if port := p.Metrics().Port; port != 8002 {
		t.Errorf("the metrics page is on port %d, want 8002", port)
	}
	s := readPageOf(t, triton, parts(0, 0, 0), Input{})
	answers := map[string]struct {
		status int
		body   string
	}{
		"/v2/health/live":  {http.StatusOK, ""},
		"/v2/health/ready": {http.StatusBadRequest, ""},
		"/v2":              {http.StatusOK, `{"name":"triton","version":"2.63.0","extensions":["metrics"]}`},
	}
	for _, page := range p.SlowPages() {
		answer, ok := answers[page.Path]
		if !ok || page.Port != 0 {
			t.Fatalf("%s on port %d is asked, want health, readiness and version on the serving port", page.Path, page.Port)
		}
		var err error
		if s, err = p.ReadSlow(page, answer.status, []byte(answer.body), noon, time.Minute, s); err != nil {
			t.Fatal(err)
		}
	}
	wantValue(t, s, telemetry.Health, 1)
	wantValue(t, s, telemetry.Ready, 0)
	version := &s.Readings[telemetry.EngineVersion]
	if version.Detail.Text != "2.63.0" || version.Quality != 0.5 || !strings.Contains(reasonsOf(s, telemetry.EngineVersion), "not of TensorRT-LLM") {
		t.Errorf("version %q at %v (%s), want 2.63.0 at 0.5, of Triton alone", version.Detail.Text, version.Quality, reasonsOf(s, telemetry.EngineVersion))
	}
}
