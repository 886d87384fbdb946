package enginesim

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// spoiled is an SGLang engine with an answered request, and these faults of its page.
func spoiled(t *testing.T, f PageFaults) *sim {
	t.Helper()
	s := run(t, Config{Dialect: SGLang{}, Clock: instant()})
	s.ok("POST", "/v1/completions", small)
	body, err := json.Marshal(map[string]PageFaults{"page": f})
	if err != nil {
		t.Fatal(err)
	}
	s.ok("POST", "/sim/faults", string(body))
	return s
}

func TestDropFamiliesLeavesThemOut(t *testing.T) {
	got := spoiled(t, PageFaults{DropFamilies: []string{"sglang:num_queue_reqs", "sglang:time_to_first_token_seconds", "no:such"}}).page()
	if got.has("sglang:num_queue_reqs") || got.has("sglang:time_to_first_token_seconds") {
		t.Error("dropped families are there")
	}
	if !got.has("sglang:num_running_reqs") || !got.has("sglang:e2e_request_latency_seconds") {
		t.Error("other families went too")
	}
}

func TestValuesReplaceEachValueOfAFamily(t *testing.T) {
	for _, value := range []string{"NaN", "-nan", "-1", "1e300", "soon"} {
		s := spoiled(t, PageFaults{Values: map[string]string{"sglang:realtime_tokens_total": value}})
		body := s.ok("GET", "/metrics", "")
		if n := strings.Count(body, "} "+value+"\n"); n < 3 {
			t.Errorf("%s is on the page %d times, want 3, once for each mode", value, n)
		}
		if !strings.Contains(body, "sglang:num_running_reqs{engine_type=\"unified\",model_name=\"sim-model\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} 1.0\n") {
			t.Errorf("%s: another family has changed", value)
		}
	}
}

func TestDuplicatesComeWithAnotherValue(t *testing.T) {
	body := spoiled(t, PageFaults{Duplicates: []string{"sglang:num_queue_reqs"}}).ok("GET", "/metrics", "")
	const series = `sglang:num_queue_reqs{engine_type="unified",model_name="sim-model",moe_ep_rank="0",pp_rank="0",tp_rank="0"} `
	if !strings.Contains(body, series+"0.0\n"+series+"1\n") {
		t.Error("the series does not come twice")
	}
	if n := strings.Count(body, "# TYPE sglang:num_queue_reqs "); n != 1 {
		t.Errorf("%d TYPE lines, want 1", n)
	}
}

func TestColonIsLostOnSamplesOnly(t *testing.T) {
	body := spoiled(t, PageFaults{Colon: true}).ok("GET", "/metrics", "")
	for line := range strings.Lines(body) {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "{")
		if comment := strings.HasPrefix(line, "#"); comment != strings.Contains(name, "sglang:") || !comment && !strings.HasPrefix(line, "sglang_") {
			t.Fatalf("got the line %q", line)
		}
	}
}

func TestHugeLabelComesBeforeWhatIsNeeded(t *testing.T) {
	const size = 22 << 20
	body := spoiled(t, PageFaults{HugeLabel: size}).ok("GET", "/metrics", "")
	if len(body) < size || strings.Index(body, "sglang:num_running_reqs") < size {
		t.Errorf("the page has %d bytes, with the gauge at %d", len(body), strings.Index(body, "sglang:num_running_reqs"))
	}
	if got := page(t, body); !got.has("model_settings_info") || !got.has("sglang:num_running_reqs") {
		t.Error("the page is not complete")
	}
}

func TestSomethingElseInsteadOfThePage(t *testing.T) {
	for instead, want := range map[Instead]struct{ contentType, body string }{
		InsteadHTML:  {"text/html; charset=utf-8", "<!doctype html>\n<title>Welcome</title>\n"},
		InsteadJSON:  {"application/json", "[]"},
		InsteadEmpty: {"text/plain; version=0.0.4; charset=utf-8", ""},
	} {
		resp, err := spoiled(t, PageFaults{Instead: instead}).send(t.Context(), "GET", "/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); err != nil || resp.StatusCode != http.StatusOK || got != want.contentType || string(body) != want.body {
			t.Errorf("%s: got %d, %q and %q, %v", instead, resp.StatusCode, got, body, err)
		}
	}
}

func TestContentTypeIsSaidToBeAnother(t *testing.T) {
	const other = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	resp, err := spoiled(t, PageFaults{ContentType: other}).send(t.Context(), "GET", "/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != other {
		t.Errorf("content-type is %q, want %q", got, other)
	}
}

func TestRedirectLeadsElsewhere(t *testing.T) {
	s := spoiled(t, PageFaults{Redirect: "http://127.0.0.1:1/metrics"})
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := s.send(t.Context(), "GET", "/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusTemporaryRedirect || got != "http://127.0.0.1:1/metrics" {
		t.Errorf("got %d to %q", resp.StatusCode, got)
	}
}

func TestTruncatedPagesEndEarlyWithAndWithoutASign(t *testing.T) {
	for _, clean := range []bool{false, true} {
		s := spoiled(t, PageFaults{Truncate: &Truncation{Bytes: 1000, Clean: clean}})
		resp, err := s.send(t.Context(), "GET", "/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if len(body) != 1000 || (err == nil) != clean || !clean && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("clean %v: got %d bytes and %v", clean, len(body), err)
		}
		if (resp.ContentLength == 1000) != clean {
			t.Errorf("clean %v: content-length is %d", clean, resp.ContentLength)
		}
	}
}

func TestAPageThatIsShorterThanItsTruncationIsWhole(t *testing.T) {
	spoiled(t, PageFaults{Truncate: &Truncation{Bytes: 1 << 20}}).page()
}

func TestPageFaultsLeaveOtherPagesAlone(t *testing.T) {
	s := run(t, Config{Dialect: TRTLLM{}, Clock: instant()})
	s.ok("POST", "/sim/faults", `{"pageStatus":500,"page":{"instead":"html"}}`)
	for path, want := range map[string]string{"/metrics": "[]", "/version": `{"version":"1.3.0"}`, "/health": ""} {
		if got := s.ok("GET", path, ""); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if status, _ := s.do("GET", "/prometheus/metrics", ""); status != 500 {
		t.Errorf("the page has status %d, want 500", status)
	}
}

func TestZeroCountersStartAgainWithinTheProcess(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":3}`)
	before := s.page()
	s.ok("POST", "/sim/faults", `{"zeroCounters":true}`)
	got := s.page()
	if v := got.value("vllm:generation_tokens_total"); v != 0 {
		t.Errorf("%v tokens, want 0", v)
	}
	if n := got.histogram("vllm:e2e_request_latency_seconds").GetSampleCount(); n != 0 {
		t.Errorf("%d latencies, want 0", n)
	}
	if a, b := got.value("process_start_time_seconds"), before.value("process_start_time_seconds"); a != b {
		t.Errorf("the process start time went from %v to %v", b, a)
	}
	s.ok("DELETE", "/sim/faults", "")
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":2}`)
	if v := s.page().value("vllm:generation_tokens_total"); v != 2 {
		t.Errorf("%v tokens after the next request, want 2", v)
	}
	if got := s.stats().GeneratedTokens; got != 5 {
		t.Errorf("the model has generated %d tokens, want 5", got)
	}
}

func TestZeroCountersOnAPageThatLagsBehind(t *testing.T) {
	clock := manual()
	s := run(t, Config{Dialect: ATOM{}, Clock: clock, Background: Load{Running: 1}})
	clock.advance(10 * time.Second)
	s.ok("POST", "/sim/faults", `{"zeroCounters":true}`)
	clock.advance(6 * time.Second)
	// What is shown now was reported before.
	if v := s.page().value("atom:generation_tokens_total"); v != 0 {
		t.Errorf("%v tokens, want 0", v)
	}
	clock.advance(time.Minute)
	// Background requests follow each other every 5.864 s; the first ended before.
	if v := s.page().value("atom:requests_finished_total"); v < 9 || v > 12 {
		t.Errorf("%v requests in the 65 s before the report, want about 11", v)
	}
}

func TestSleepStandsStillAndShowsIt(t *testing.T) {
	clock := manual()
	s := run(t, Config{Clock: clock, Background: Load{Running: 1}})
	sleeps := func(awake, offloaded float64) {
		t.Helper()
		got := s.page()
		if a, o := got.value("vllm:engine_sleep_state", "sleep_state", "awake"),
			got.value("vllm:engine_sleep_state", "sleep_state", "weights_offloaded"); a != awake || o != offloaded {
			t.Errorf("awake %v and offloaded %v, want %v and %v", a, o, awake, offloaded)
		}
	}
	sleeps(1, 0)
	s.ok("POST", "/sim/faults", `{"sleep":true}`)
	clock.advance(time.Hour)
	sleeps(0, 1)
	s.ok("GET", "/health", "")
	if got := s.page().value("vllm:generation_tokens_total"); got != 0 {
		t.Errorf("%v tokens generated while asleep", got)
	}
	s.ok("DELETE", "/sim/faults", "")
	sleeps(1, 0)
	clock.advance(firstToken)
	if got := s.page().value("vllm:generation_tokens_total"); got != 1 {
		t.Errorf("%v tokens after waking up, want 1", got)
	}
	for dialect, want := range map[Dialect]struct {
		path   string
		status int
	}{SGLang{}: {"/ready", 503}, Triton{}: {"/v2/health/ready", 400}} {
		s := run(t, Config{Dialect: dialect, Clock: clock})
		s.ok("GET", want.path, "")
		s.ok("POST", "/sim/faults", `{"sleep":true}`)
		if status, _ := s.do("GET", want.path, ""); status != want.status {
			t.Errorf("%s: %s is %d while asleep, want %d", dialect.Name(), want.path, status, want.status)
		}
	}
}
