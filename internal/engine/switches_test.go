package engine

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

// TestASwitchThatThePageShowsToBeOnIsNotSaidToBeOff: one family that is not there is
// no proof where others of the same switch are.
func TestASwitchThatThePageShowsToBeOnIsNotSaidToBeOff(t *testing.T) {
	const off = "enable_iter_perf_stats is off"
	const done = "trtllm_request_success_total{model_name=\"m\"} 5\n"
	for _, c := range []struct {
		name, page string
		field      telemetry.Field
		support    telemetry.Support
		reason     string
	}{
		{"no gauge is there", done, telemetry.QueueDepth, telemetry.Disabled, off},
		{"the other load field is there", done + "trtllm_num_requests_running{model_name=\"m\"} 0\n",
			telemetry.QueueDepth, telemetry.SupportUnknown, "trtllm_num_requests_waiting is not on the page"},
		{"a field that is read seldom is there", done + "trtllm_max_num_active_requests{model_name=\"m\"} 64\n",
			telemetry.ActiveRequests, telemetry.SupportUnknown, "trtllm_num_requests_running is not on the page"},
		{"one factor of two is there", done + "trtllm_kv_cache_max_blocks{model_name=\"m\"} 100\n",
			telemetry.KVCacheCapacity, telemetry.SupportUnknown, "trtllm_kv_cache_tokens_per_block is not on the page"},
		{"it is there with 0, which is no size", done + "trtllm_kv_cache_tokens_per_block{model_name=\"m\"} 0\n",
			telemetry.KVBlockSize, telemetry.Supported, "trtllm_kv_cache_tokens_per_block says 0: not known yet"},
		{"HELP and TYPE alone show nothing", done + "# HELP trtllm_num_requests_running x\n# TYPE trtllm_num_requests_running gauge\n",
			telemetry.QueueDepth, telemetry.Disabled, off},
		{"what is of another switch shows nothing", done + "trtllm_prompt_tokens_total{model_name=\"m\"} 9\n",
			telemetry.QueueDepth, telemetry.Disabled, off},
		{"nothing has ended", "trtllm_num_requests_running{model_name=\"m\"} 0\n",
			telemetry.QueueDepth, telemetry.SupportUnknown, "trtllm_num_requests_waiting is not on the page"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantNoValue(t, readPageOf(t, "trtllm-serve", c.page, Input{}), c.field, c.support, c.reason)
		})
	}
}

// TestASwitchIsToldTheSameOnEveryPage: on a page that is read in part, too.
func TestASwitchIsToldTheSameOnEveryPage(t *testing.T) {
	p := profileOf(t, "trtllm-serve")
	const page = "trtllm_request_success_total{model_name=\"m\"} 5\ntrtllm_max_num_active_requests{model_name=\"m\"} 64\n"
	var h History
	var prev *telemetry.Snapshot
	for i := range 8 {
		s, err := p.Read([]byte(page), Input{At: noon + telemetry.Instant(i)*second/5, History: &h, Previous: prev})
		if err != nil {
			t.Fatal(err)
		}
		wantNoValue(t, s, telemetry.QueueDepth, telemetry.SupportUnknown, "trtllm_num_requests_waiting is not on the page")
		prev = s
	}
}

// TestWhatThePageItselfSaysIsOffIsOff: its counters may be there, and stand at 0.
func TestWhatThePageItselfSaysIsOffIsOff(t *testing.T) {
	const page = `vllm:cache_config_info{enable_prefix_caching="False"} 1
vllm:prefix_cache_queries_total 0
vllm:prefix_cache_hits_total 0
`
	wantNoValue(t, readPageOf(t, "vllm", page, Input{}), telemetry.PrefixCacheHitRatio, telemetry.Disabled, "prefix caching is off")
}

// TestConditionsWithOtherWordsAreOfAnotherSwitch: for any profile.
func TestConditionsWithOtherWordsAreOfAnotherSwitch(t *testing.T) {
	text := strings.Replace(small, `    - {metric: "small:waiting", combine: sum}
`, `    - {metric: "small:waiting", combine: sum}
    off:
    - {metric: "small:done", above: 0, because: A}
  activeRequests:
    unit: requests
    sources: [{metric: "small:running"}]
    off: [{metric: "small:done", above: 0, because: A}]
  maxConcurrency:
    unit: requests
    sources: [{metric: "small:limit"}]
    off: [{metric: "small:done", above: 0, because: B}]
`, 1)
	p := parse(t, text)
	s := readAs(t, p, "small:done 1\nsmall:limit 5\n", Input{})
	wantNoValue(t, s, telemetry.QueueDepth, telemetry.Disabled, "A")
	s = readAs(t, p, "small:done 1\nsmall:running 5\n", Input{})
	wantNoValue(t, s, telemetry.QueueDepth, telemetry.SupportUnknown, "small:waiting is not on the page")
	wantNoValue(t, s, telemetry.MaxConcurrency, telemetry.Disabled, "B")
}
