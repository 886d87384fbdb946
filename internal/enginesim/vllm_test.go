package enginesim

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/berth-dev/berth/internal/enginemodel"
)

var update = flag.Bool("update", false, "rewrite golden files")

// families is a parsed page.
type families struct {
	t   *testing.T
	all map[string]*dto.MetricFamily
}

func page(t *testing.T, text string) families {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families{t, all}
}

// value is that of the one series with these labels and values, given as name, value, name, value.
func (f families) value(name string, labels ...string) float64 {
	f.t.Helper()
	for _, m := range f.all[name].GetMetric() {
		if has(m, labels) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	f.t.Fatalf("no %s with %v on the page", name, labels)
	return 0
}

func (f families) histogram(name string) *dto.Histogram {
	f.t.Helper()
	if len(f.all[name].GetMetric()) != 1 {
		f.t.Fatalf("no single %s on the page", name)
	}
	return f.all[name].GetMetric()[0].GetHistogram()
}

func has(m *dto.Metric, labels []string) bool {
	found := 0
	for i := 0; i < len(labels); i += 2 {
		for _, l := range m.GetLabel() {
			if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
				found += 2
			}
		}
	}
	return found == len(labels)
}

func TestThePageSaysWhatTheModelSays(t *testing.T) {
	s := run(t, Config{Models: []string{"org/m"}, OutputTokens: 4, Clock: instant()})
	// 40 prompt tokens each, two full blocks of 16 of them; 3 tokens with a limit, 4 without.
	prompt := `"prompt":"` + strings.Repeat("abcdefgh", 20) + `"`
	s.ok("POST", "/v1/completions", `{"max_tokens":3,`+prompt+`}`)
	s.ok("POST", "/v1/completions", `{`+prompt+`}`)

	resp, err := s.send(t.Context(), "GET", "/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got, want := resp.Header.Get("Content-Type"), "text/plain; version=1.0.0; charset=utf-8"; got != want {
		t.Errorf("content-type is %q, want %q", got, want)
	}
	got := page(t, s.ok("GET", "/metrics", ""))
	st := s.stats()
	for _, c := range []struct {
		name, label, value string
		want               float64
		model              uint64
	}{
		{"vllm:num_requests_running", "model_name", "org/m", 0, uint64(st.Running)},
		{"vllm:num_requests_waiting", "engine", "0", 0, uint64(st.Waiting)},
		{"vllm:prompt_tokens_total", "model_name", "org/m", 80, st.PromptTokens},
		{"vllm:prefix_cache_queries_total", "model_name", "org/m", 80, st.QueriedTokens},
		{"vllm:prefix_cache_hits_total", "model_name", "org/m", 32, st.CachedTokens},
		{"vllm:generation_tokens_total", "model_name", "org/m", 7, st.GeneratedTokens},
		{"vllm:num_preemptions_total", "model_name", "org/m", 0, st.Preemptions},
		{"vllm:request_success_total", "finished_reason", "stop", 1, st.Stopped},
		{"vllm:request_success_total", "finished_reason", "length", 1, st.Truncated},
		{"vllm:cache_config_info", "num_gpu_blocks", "4097", 1, 1},
		{"vllm:engine_sleep_state", "sleep_state", "awake", 1, 1},
	} {
		if v := got.value(c.name, c.label, c.value); v != c.want || v != float64(c.model) {
			t.Errorf("%s is %v, want %v; the model says %v", c.name, v, c.want, c.model)
		}
	}
	if v := got.value("process_start_time_seconds"); v != 1_700_000_000.25 {
		t.Errorf("process start time is %v", v)
	}

	// 6.1 ms + 40/8000 s, then 6.1 ms + 8/8000 s with 32 tokens cached; every further token 6.1 ms.
	for _, c := range []struct {
		name  string
		count uint64
		sum   float64
	}{
		{"vllm:time_to_first_token_seconds", 2, 0.0111 + 0.0071},
		{"vllm:inter_token_latency_seconds", 5, 5 * 0.0061},
		{"vllm:request_time_per_output_token_seconds", 2, 2 * 0.0061},
		{"vllm:e2e_request_latency_seconds", 2, 0.0111 + 0.0071 + 5*0.0061},
		{"vllm:request_queue_time_seconds", 2, 0},
	} {
		h := got.histogram(c.name)
		if d := h.GetSampleSum() - c.sum; h.GetSampleCount() != c.count || d > 1e-9 || d < -1e-9 {
			t.Errorf("%s: %d values with sum %v, want %d with %v", c.name, h.GetSampleCount(), h.GetSampleSum(), c.count, c.sum)
		}
	}
	// One value is at most 10 ms, both at most 20 ms.
	buckets := got.histogram("vllm:time_to_first_token_seconds").GetBucket()
	if b := buckets[2]; b.GetUpperBound() != 0.01 || b.GetCumulativeCount() != 1 || buckets[3].GetCumulativeCount() != 2 {
		t.Errorf("buckets of the time to first token: %v", buckets)
	}
}

// Four blocks of four tokens, and two requests that have three in the end: the younger one has to give up its two when the older one
// needs a third, and comes back when that has ended.
func TestVLLMCountsAPreemptionWhenTheRequestGeneratesAgain(t *testing.T) {
	clock := manual()
	s := run(t, Config{Clock: clock, Engine: enginemodel.Config{Blocks: 4, BlockTokens: 4}})
	p, err := s.running()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"older", "younger"} {
		c, err := p.submit(enginemodel.Request{ID: id, PromptTokens: 4, OutputTokens: 8}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer p.leave(c)
	}
	counted := func() float64 { return s.page().value("vllm:num_preemptions_total") }
	// await lets time pass until a condition holds.
	await := func(what string, holds func() bool) {
		t.Helper()
		for range 1000 {
			clock.advance(time.Millisecond)
			s.page()
			if holds() {
				return
			}
		}
		t.Fatalf("not within a second: %s", what)
	}
	await("one is preempted", func() bool { return s.stats().Preemptions == 1 })
	await("the other has ended", func() bool { return counted() > 0 || s.stats().Stopped == 1 })
	if st := s.stats(); st.Stopped != 1 || counted() != 0 {
		t.Errorf("%d ended and %v preemptions are counted, want 1 and 0", st.Stopped, counted())
	}
	made := s.stats().GeneratedTokens
	await("it generates again", func() bool { return s.stats().GeneratedTokens > made })
	if got := counted(); got != 1 {
		t.Errorf("%v preemptions are counted, want 1", got)
	}
}

func TestThePageOfALoadedEngine(t *testing.T) {
	h := newHistogram([]float64{0.5, 1})
	for _, seconds := range []float64{0.5, 0.6, 2} {
		h.observe(seconds)
	}
	s := State{
		Models:      []string{`odd "name"`},
		MaxModelLen: 8192,
		Engine:      enginemodel.Config{Blocks: 1000, BlockTokens: 16},
		Truth: Report{Stats: enginemodel.Stats{Waiting: 12, Running: 37, BlocksUsed: 641, BlocksTotal: 1000, Stopped: 5210, Truncated: 131, Aborted: 9,
			Preemptions: 5, PromptTokens: 5210400, QueriedTokens: 5210400, CachedTokens: 3126240, GeneratedTokens: 1412300}, Totals: Totals{Recovered: 4}},
		Started: epoch, Now: epoch.Add(time.Hour),
		Streamed: Work{Latencies: Latencies{TTFT: h, ITL: h, TPOT: h, E2E: h, Queue: h}},
	}
	got := string(vllmMetrics(s).Body)
	page(t, got)
	golden := filepath.Join("testdata", "vllm.prom")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the page differs from %s; got\n%s", golden, got)
	}
}
