package enginesim

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

func TestFaultsAreDecodedStrictly(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	for _, c := range []struct{ body, want string }{
		{`{"slowly":2}`, `unknown field \"slowly\"`},
		{`{"slow":2} {}`, "more than one JSON value"},
		{`{"slow":-1}`, "slow: -1: must be 0 (off) or from 0.001 to 1000"},
		{`{"pageStatus":99}`, "pageStatus: 99: must be"},
		{`{"refuseStatus":200}`, "refuseStatus: 200: must be"},
		{`{"pageDelay":200}`, `duration 200: must be a string`},
		{`{"pageDelay":"soon"}`, `duration \"soon\": must be`},
		{`{"pageDelay":"-1s"}`, `pageDelay: -1s: must be`},
		{`{"page":{"values":{"a:b":""}}}`, `page.values: a:b: \"\": must not be empty`},
		{`{"page":{"values":{"a:b":"1 2"}}}`, `page.values: a:b: \"1 2\": must not be empty or have spaces`},
		{`{"page":{"hugeLabel":67108865}}`, "page.hugeLabel: 67108865: must be from 0 (off) to 67108864"},
		{`{"page":{"instead":"pdf"}}`, `page.instead: \"pdf\": must be empty (off), html, json or empty`},
		{`{"page":{"contentType":"a\nb"}}`, "page.contentType: "},
		{`{"page":{"redirect":"http://[::1"}}`, "page.redirect: "},
		{`{"page":{"truncate":{"bytes":-1}}}`, "page.truncate.bytes: -1: must be at least 0"},
		{`{"page":{"dropFamily":["a"]}}`, `unknown field \"dropFamily\"`},
		{``, "EOF"},
	} {
		if status, got := s.do("POST", "/sim/faults", c.body); status != 400 || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %d %s, want 400 with %s", c.body, status, got, c.want)
		}
	}
	const all = `{"freezePage":true,"pageStatus":500,"pageHang":false,"pageDelay":"200ms",` +
		`"page":{"dropFamilies":["a"],"values":{"b":"NaN"},"duplicates":["c"],"truncate":{"bytes":3,"clean":true}},"slow":2,"refuseStatus":503,` +
		`"dropConnection":true,"hang":false,"sleep":false,"zeroCounters":false}`
	s.ok("POST", "/sim/faults", all)
	if got := s.ok("GET", "/sim/faults", ""); got != all {
		t.Errorf("faults are %s, want %s", got, all)
	}
	s.ok("DELETE", "/sim/faults", "")
	if got := s.ok("GET", "/sim/faults", ""); strings.Contains(got, "true") || strings.Contains(got, "503") {
		t.Errorf("cleared faults are %s", got)
	}
}

func TestFreezePageShowsThePast(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/sim/faults", `{"freezePage":true}`)
	before := s.ok("GET", "/metrics", "")
	s.ok("POST", "/v1/completions", small)
	if after := s.ok("GET", "/metrics", ""); after != before {
		t.Error("a frozen page has changed")
	}
	s.ok("DELETE", "/sim/faults", "")
	if got := page(t, s.ok("GET", "/metrics", "")).value("vllm:generation_tokens_total"); got != 2 {
		t.Errorf("%v tokens generated after the thaw, want 2", got)
	}
}

func TestFreezePageLeavesOtherPagesAlone(t *testing.T) {
	s := run(t, Config{Dialect: SGLang{}, Clock: manual(), Background: Load{Running: 1}})
	s.ok("POST", "/sim/faults", `{"freezePage":true,"sleep":true}`)
	if status, _ := s.do("GET", "/ready", ""); status != 503 {
		t.Errorf("/ready is %d while asleep, want 503", status)
	}
	s.ok("DELETE", "/sim/load", "")
	if loads := s.ok("GET", "/v1/loads", ""); !strings.Contains(loads, `"num_running_reqs":0`) {
		t.Errorf("/v1/loads is frozen too: %s", loads)
	}
	if v := s.page().value("sglang:num_running_reqs"); v != 1 {
		t.Errorf("%v run by the frozen page, want 1", v)
	}
}

func TestPageStatusReplacesThePage(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/sim/faults", `{"pageStatus":500}`)
	if status, body := s.do("GET", "/metrics", ""); status != 500 || body != "" {
		t.Errorf("got %d with %d bytes, want 500 with none", status, len(body))
	}
	s.ok("POST", "/v1/completions", small)
}

func TestPageHangNeverAnswers(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/sim/faults", `{"pageHang":true}`)
	answered := make(chan error)
	go func() {
		resp, err := s.send(context.Background(), "GET", "/metrics", "")
		if err == nil {
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	s.ok("GET", "/health", "")
	s.Die()
	if err := <-answered; err == nil {
		t.Error("a hanging page was answered")
	}
}

func TestPageDelayTakesItsTime(t *testing.T) {
	clock := instant()
	s := run(t, Config{Clock: clock})
	s.ok("POST", "/sim/faults", `{"pageDelay":"200ms"}`)
	before := clock.Now()
	s.ok("GET", "/metrics", "")
	if took := clock.Now().Sub(before); took != 200*time.Millisecond {
		t.Errorf("the page took %v, want 200ms", took)
	}
}

func TestSlowStretchesEveryStep(t *testing.T) {
	clock := instant()
	s := run(t, Config{Clock: clock})
	took := func() time.Duration {
		before := clock.Now()
		s.ok("POST", "/v1/completions", small)
		return clock.Now().Sub(before)
	}
	// One prompt token and one more to decode: 6.1 ms + 1/8000 s, and 6.1 ms.
	if got, want := took(), 12325*time.Microsecond; got != want {
		t.Errorf("took %v, want %v", got, want)
	}
	s.ok("POST", "/sim/faults", `{"slow":10}`)
	if got, want := took(), 123250*time.Microsecond; got != want {
		t.Errorf("ten times as slow it took %v, want %v", got, want)
	}
}

func TestRefuseStatusRefusesInferenceOnly(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/sim/faults", `{"refuseStatus":503}`)
	if status, body := s.do("POST", "/v1/completions", small); status != 503 || !strings.Contains(body, `"code":503`) {
		t.Errorf("got %d %s, want 503", status, body)
	}
	s.ok("GET", "/metrics", "")
	if a, st := s.Arrivals(), s.stats(); a.Served != 1 || st.Submitted != 0 {
		t.Errorf("%d arrived and %d reached the model, want 1 and 0", a.Served, st.Submitted)
	}
}

func TestDropConnectionCutsAfterTheFirstToken(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/sim/faults", `{"dropConnection":true}`)
	resp, err := s.send(t.Context(), "POST", "/v1/completions", `{"prompt":"four","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Error("the stream came to an orderly end")
	}
	if got := string(body); strings.Count(got, "data: ") != 1 || !strings.Contains(got, `"text":"the"`) {
		t.Errorf("the client got %q, want the first token", got)
	}
	if resp, err := s.send(t.Context(), "POST", "/v1/completions", `{"prompt":"four"}`); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer in one piece arrived")
	}
	eventually(t, "both places are free", func() bool { return s.stats().Running == 0 })
}

func TestHangStopsTheSchedulerAndNothingElse(t *testing.T) {
	clock := manual()
	s := run(t, Config{Clock: clock})
	resp, err := s.send(t.Context(), "POST", "/v1/completions", `{"prompt":"four","max_tokens":3,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	clock.advance(6225 * time.Microsecond)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"text":"the"`) {
		t.Fatalf("first token: %q, %v", line, err)
	}

	s.ok("POST", "/sim/faults", `{"hang":true}`)
	clock.advance(time.Hour)
	s.ok("GET", "/health", "")
	stuck := page(t, s.ok("GET", "/metrics", ""))
	if run, made := stuck.value("vllm:num_requests_running"), stuck.value("vllm:generation_tokens_total"); run != 1 || made != 1 {
		t.Errorf("%v run and %v tokens were generated, want 1 and 1", run, made)
	}

	s.ok("DELETE", "/sim/faults", "")
	if got := s.stats().GeneratedTokens; got != 1 {
		t.Errorf("%d tokens right after the hang, want 1: the time of the hang must not count", got)
	}
	clock.advance(6100 * time.Microsecond)
	eventually(t, "the second token came", func() bool { return s.stats().GeneratedTokens == 2 })
	clock.advance(6100 * time.Microsecond)
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream went on with %q, %v", rest, err)
	}
	// Clients saw the hang, so the histograms have it.
	after := page(t, s.ok("GET", "/metrics", ""))
	if got := after.histogram("vllm:e2e_request_latency_seconds").GetSampleSum(); got < 3600 {
		t.Errorf("the request took %v s by the page, want more than an hour", got)
	}
}
