package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/enginesim"
	"github.com/berth-dev/berth/internal/gateway"
)

func TestAGatewayThatConnectsToWhateverThePickerSaysServes(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), kind: gateway.OriginalDst})
	for version, c := range f.clients() {
		t.Run(version, func(t *testing.T) {
			a := f.post(c, asks(2))
			if a.status != http.StatusOK || !strings.Contains(a.body, `"text":"the ship"`) {
				t.Errorf("JSON: status %d, %s", a.status, a.body)
			}
			d := f.record(a.decision())
			if d.Acknowledgement.Acted != "confirmed" || d.Acknowledgement.Served != a.engine() {
				t.Errorf("acted %q by %q, want confirmed by %s", d.Acknowledgement.Acted, d.Acknowledgement.Served, a.engine())
			}
			if s := f.post(c, streams(5)); s.status != http.StatusOK || !strings.HasSuffix(s.body, "data: [DONE]\n\n") {
				t.Errorf("SSE: status %d, %s", s.status, s.body)
			}
			seen := map[string]bool{}
			eventually(t, "both have answered a bodiless request", func() bool {
				a := f.models(c)
				if a.status != http.StatusOK {
					t.Fatalf("bodiless: status %d, %s", a.status, a.body)
				}
				seen[a.engine()] = true
				return len(seen) == 2
			})
			expectRefusal(t, f.post(c, `{"model":"other","prompt":"hi"}`), 404, "model_unserved")
		})
	}
	f.awaitInFlight(map[string]int{})

	before := f.total()
	f.stopPicker()
	for version, c := range f.clients() {
		for _, req := range []*http.Request{
			f.request(t.Context(), http.MethodPost, completions, asks(1)),
			f.request(t.Context(), http.MethodGet, "/v1/models", ""),
		} {
			// What would be obeyed if the gateway listened to clients.
			req.Header.Set("X-Gateway-Destination-Endpoint", f.engines[0].Addr())
			if a := f.do(c, req); a.status != http.StatusInternalServerError || a.engine() != "" {
				t.Errorf("%s %s without a picker: status %d from %q, want 500 from nobody", version, req.Method, a.status, a.engine())
			}
		}
	}
	if n := f.total() - before; n != 0 {
		t.Errorf("%d requests reached an engine without a pick", n)
	}
}

func TestX3_EveryBodyModeOfTheGatewayIsServed(t *testing.T) {
	const duplex = "FULL_DUPLEX_STREAMED"
	for _, tc := range []struct {
		name                                          string
		requestBody, responseBody, trailers, requests string
		// blind modes pick without the body, so that no model is screened for.
		blind bool
	}{
		{"X16 buffered both ways", "BUFFERED", "BUFFERED", "SKIP", "SKIP", false},
		{"buffered request, nothing of the response body", "BUFFERED", "NONE", "SEND", "SKIP", false},
		{"duplex request, nothing of the response body", duplex, "NONE", "SEND", "SEND", false},
		{"duplex request, response headers alone", duplex, "NONE", "SKIP", "SEND", false},
		{"streamed both ways", "STREAMED", "STREAMED", "SKIP", "SKIP", true},
		{"headers alone", "NONE", "NONE", "SKIP", "SKIP", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, spec{engines: engines(2, enginesim.Config{}), envoy: func(bootstrap tree) {
				mode := processingMode(bootstrap)
				mode["request_body_mode"], mode["request_trailer_mode"] = tc.requestBody, tc.requests
				mode["response_body_mode"], mode["response_trailer_mode"] = tc.responseBody, tc.trailers
			}})
			for version, c := range f.clients() {
				before := f.arrivedUnchanged(asks(3))
				a := f.post(c, asks(3))
				if a.status != http.StatusOK || !strings.Contains(a.body, `"text":"the ship comes"`) {
					t.Errorf("%s JSON: status %d, %s", version, a.status, a.body)
				}
				if n := f.arrivedUnchanged(asks(3)) - before; n != 1 {
					t.Errorf("%s: the body arrived unchanged %d times, want once", version, n)
				}
				s := f.post(c, streams(3))
				if s.status != http.StatusOK || strings.Count(s.body, "data: ") != 4 || !strings.HasSuffix(s.body, "data: [DONE]\n\n") {
					t.Errorf("%s SSE: status %d, %q", version, s.status, s.body)
				}
				if g := f.models(c); g.status != http.StatusOK || !strings.Contains(g.body, `"sim-model"`) {
					t.Errorf("%s bodiless: status %d, %s", version, g.status, g.body)
				}
				for _, id := range []string{a.decision(), s.decision()} {
					d := f.record(id)
					if d.Outcome.Cause != "complete" || d.Acknowledgement.Acted != "confirmed" {
						t.Errorf("%s: outcome %q, acted %q; want complete and confirmed", version, d.Outcome.Cause, d.Acknowledgement.Acted)
					}
					if (d.Outcome.ResponseBytes != nil) != (tc.responseBody != "NONE") {
						t.Errorf("%s: response bytes recorded %v, want them where the gateway shows the body", version, d.Outcome.ResponseBytes)
					}
				}
				other := f.post(c, `{"model":"other","prompt":"hi"}`)
				if !tc.blind {
					expectRefusal(t, other, 404, "model_unserved")
				} else if other.status != http.StatusNotFound || other.engine() == "" {
					t.Errorf("%s: status %d from %q, want the engine's own 404", version, other.status, other.engine())
				}
			}
			f.awaitInFlight(map[string]int{})
		})
	}
}

func TestX10_AGatewayThatBuffersMaySendALargeBodyInOneMessage(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), envoy: func(bootstrap tree) {
		mode := processingMode(bootstrap)
		mode["request_body_mode"], mode["request_trailer_mode"] = "BUFFERED", "SKIP"
		listener(bootstrap)["per_connection_buffer_limit_bytes"] = 64 << 20
	}})
	for _, size := range []int{5 << 20, 20 << 20} {
		body := padded(size)
		if a := f.upload(f.h1, body, true); a.status != http.StatusOK {
			t.Errorf("%d bytes: status %d, %s", size, a.status, a.body)
		}
		if n := f.arrivedUnchanged(string(body)); n != 1 {
			t.Errorf("%d bytes arrived unchanged %d times, want once", size, n)
		}
	}
	before := f.total()
	expectRefusal(t, f.upload(f.h1, padded(32<<20+1), true), 413, "body_too_large")
	if n := f.total() - before; n != 0 {
		t.Errorf("%d requests over the limit reached an engine", n)
	}
}
