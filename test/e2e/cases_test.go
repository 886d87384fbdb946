package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
	"github.com/berth-dev/berth/internal/gateway"
)

// newCanned is a replica that answers each POST with the event stream that the
// request's header x-test-answer holds, escaped as in a query.
func newCanned(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := url.QueryUnescape(r.Header.Get("X-Test-Answer"))
		if err != nil || r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestWhatAnEngineSaysInsideA200IsTheOutcome(t *testing.T) {
	f := start(t, spec{
		unscraped: true,
		members: func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			return []v1alpha1.StaticEndpoint{member("e1", newCanned(t).Listener.Addr().String())}
		},
	})
	const token = `data: {"id":"1","choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n"
	for _, tc := range []struct {
		name, answer string
		cause        string
		code         int
	}{
		{"R1 an engine that is full", `data: {"error":{"message":"full","type":"ServiceUnavailableError","code":503}}` + "\n\ndata: [DONE]\n\n", "upstream_error", 503},
		{"R2 an engine that dies in mid-stream", token + `data: {"error":{"message":"dead","type":"InternalServerError","code":500}}` + "\n\ndata: [DONE]\n\n", "upstream_error", 500},
		{"R3 an engine that is stopped", token + `data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":"abort"}]}` + "\n\ndata: [DONE]\n\n", "engine_abort", 0},
		{"X6 a stream without an end marker", token, "complete", 0},
		{"X8 usage of the wrong type", token + `data: {"choices":[],"usage":"oops"}` + "\n\ndata: [DONE]\n\n", "complete", 0},
	} {
		for version, c := range f.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				req := f.request(t.Context(), http.MethodPost, completions, streams(5))
				req.Header.Set("X-Test-Answer", url.QueryEscape(tc.answer))
				a := f.do(c, req)
				if a.status != http.StatusOK || a.body != tc.answer {
					t.Errorf("status %d, %q; want 200 and what the engine sent, %q", a.status, a.body, tc.answer)
				}
				if d := f.record(a.decision()); d.Outcome.Cause != tc.cause || d.Outcome.ErrorCode != tc.code {
					t.Errorf("outcome %q with code %d, want %q with %d", d.Outcome.Cause, d.Outcome.ErrorCode, tc.cause, tc.code)
				}
			})
		}
	}
	f.awaitInFlight(map[string]int{})
}

func TestX17_LabelledBodiesArriveAsTheyAre(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, asks(1)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	f := start(t, spec{engines: engines(1, fast)})
	for _, tc := range []struct{ name, encoding, body string }{
		{"gzip", "gzip", packed.String()},
		{"a zstd label on other bytes", "zstd", "\x28\xb5\x2f\xfd\x00"},
		{"two labels", "gzip, br", packed.String() + "."},
		{"a gzip label on plain JSON", "gzip", asks(2)},
	} {
		for version, c := range f.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				before := f.arrivedUnchanged(tc.body)
				req := f.request(t.Context(), http.MethodPost, completions, tc.body)
				req.Header.Set("Content-Encoding", tc.encoding)
				if a := f.do(c, req); a.engine() != "e1" {
					t.Errorf("status %d from %q, %s; want the engine's answer", a.status, a.engine(), a.body)
				}
				if n := f.arrivedUnchanged(tc.body) - before; n != 1 {
					t.Errorf("the body arrived unchanged %d times, want once", n)
				}
			})
		}
	}
}

func TestX18_EveryPathIsRouted(t *testing.T) {
	f := start(t, spec{engines: engines(1, fast)})
	for _, path := range []string{
		completions + "?a=b", completions + "/", "/v1/chat/completions/render", "/vendor" + completions, "/v1/%63ompletions",
		"//v1/completions", "/" + strings.Repeat("x", 8000), "/",
	} {
		for version, c := range f.clients() {
			t.Run(path[:min(len(path), 40)]+" over "+version, func(t *testing.T) {
				if a := f.do(c, f.request(t.Context(), http.MethodPost, path, asks(1))); a.status != http.StatusOK || a.engine() != "e1" {
					t.Errorf("status %d from %q, want 200 from the engine: %s", a.status, a.engine(), a.body)
				}
			})
		}
	}
}

func TestHD9_HeadersThatAreNotASCIIPass(t *testing.T) {
	f := start(t, spec{engines: engines(1, fast)})
	for name, value := range map[string]string{
		"UTF-8": "\u00fcber \u2603", "Latin-1": "\xfcber", "a traceparent that is none": "00-zz",
	} {
		t.Run(name, func(t *testing.T) {
			req := f.request(t.Context(), http.MethodPost, completions, asks(1))
			req.Header.Set("X-Test", value)
			req.Header.Set("Traceparent", value)
			if a := f.do(f.h1, req); a.status != http.StatusOK {
				t.Errorf("status %d, want 200: %s", a.status, a.body)
			}
			if got := f.engines[0].Arrivals().Last.Headers; got["x-test"] != value || got["traceparent"] != value {
				t.Errorf("the engine got %q and %q, want %q", got["x-test"], got["traceparent"], value)
			}
		})
	}
}

func TestZ3_Z4_NothingTellsPromptsAnswersOrCredentials(t *testing.T) {
	const canary = "canary-7c1f"
	f := start(t, spec{engines: engines(1, enginesim.Config{}), berth: tree{"acknowledgement": tree{"responseHeaders": "full"}}})
	var refusals strings.Builder
	for _, body := range []string{
		`{"model":"sim-model","prompt":"` + canary + `","max_tokens":1}`,
		`{"model":"sim-model","messages":[{"role":"system","content":"` + canary + `"}],"tools":[{"` + canary + `":1}],"max_tokens":1}`,
		`{"model":"sim-model","prompt":"` + canary, // malformed
		`{"model":7,"prompt":"` + canary + `"}`,
		`{"model":"sim-model","model":"sim-model","prompt":"` + canary + `"}`,
	} {
		for _, path := range []string{completions, "/v1/chat/completions"} {
			req := f.request(t.Context(), http.MethodPost, path+"?key="+canary, body)
			for _, name := range []string{"Authorization", "X-Api-Key", "Cookie", "X-Berth-Intent"} {
				req.Header.Set(name, canary)
			}
			a := f.do(f.h1, req)
			for name, values := range a.header {
				refusals.WriteString(name + strings.Join(values, "") + "\n")
			}
			if a.engine() == "" {
				refusals.WriteString(a.body)
			}
		}
	}
	f.awaitInFlight(map[string]int{})
	f.quiet()
	decisions, err := json.Marshal(f.log.ended(t))
	if err != nil {
		t.Fatal(err)
	}
	access, err := os.ReadFile(f.envoy.log)
	if err != nil {
		t.Fatal(err)
	}
	for place, text := range map[string]string{
		"the picker's log at level debug": f.said.String(),
		"decision records":                string(decisions),
		"the report of decisions":         string(fetch(t, f.admin+"/v1alpha1/decisions")),
		"the report of replicas":          string(fetch(t, f.admin+"/v1alpha1/replicas")),
		"metrics":                         string(fetch(t, f.metrics+"/metrics")),
		"headers and refusals":            refusals.String(),
		"the gateway's access log":        string(access),
	} {
		if text == "" {
			t.Errorf("%s: nothing to look at", place)
		}
		if strings.Contains(text, canary) {
			t.Errorf("%s tells what must stay secret: %s", place, text)
		}
	}
}

func TestHD7_WhatIsAddedToARequestIsSmallHoweverLargeThePoolIs(t *testing.T) {
	f := start(t, spec{
		engines:   engines(2, fast),
		fallbacks: gateway.MaxFallbacks,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i := range 30 {
				m = append(m, member(fmt.Sprintf("closed%d", i), closedPort(t)))
			}
			return m
		},
	})
	req := f.request(t.Context(), http.MethodPost, completions, asks(1))
	for i := range 60 {
		req.Header.Set(fmt.Sprintf("X-Large-%d", i), strings.Repeat("x", 1<<10))
	}
	if a := f.do(f.h1, req); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	added := 0
	for name, value := range f.lastArrival().Headers {
		if strings.HasPrefix(name, "x-gateway-") || strings.HasPrefix(name, "x-berth-") {
			added += len(name) + len(value)
		}
		if name == "x-gateway-destination-endpoint" && strings.Count(value, ",") != gateway.MaxFallbacks {
			t.Errorf("destinations %q, want the pick and %d fallbacks", value, gateway.MaxFallbacks)
		}
	}
	if added == 0 || added >= 1<<10 {
		t.Errorf("%d bytes of headers were added, want some, and less than 1 KiB", added)
	}
}

// lastArrival is the only inference request that any engine got.
func (f *fleet) lastArrival() *enginesim.Arrival {
	f.t.Helper()
	for _, e := range f.engines {
		if last := e.Arrivals().Last; last != nil {
			return last
		}
	}
	f.t.Fatal("no engine got a request")
	return nil
}
