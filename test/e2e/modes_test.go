package e2e

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
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

// odd is a completion request with all that a gateway or a picker that writes
// bodies anew would change; the marker makes it one of its kind.
func odd(marker string) string {
	return "{ \"prompt\":\"no\",\"prompt\": \"\\u0068i\",\t\"max_tokens\":3, \"seed\":18446744073709551617, \"id\":9007199254740993,\r\n" +
		"\"temperature\":0.10, \"top_p\":1.0, \"min_p\":1e-3, \"x_new\":{\"b\":[null,{}],\"a\":-0.0}, \"user\":\"\xff\xfe\xc3\"," +
		"\"model\":\"sim-model\", \"marker\":\"" + marker + "\"}\n"
}

// modeRoutes are the routes of all request modes with these response modes, to
// both kinds of destination.
func modeRoutes(responses ...responseMode) []route {
	var routes []route
	for _, to := range []struct{ kind, cluster string }{{"override-host", "pool"}, {"original-dst", originalDst}} {
		for _, request := range []string{none, streamed, buffered, bufferedPartial, fullDuplex} {
			for _, response := range responses {
				routes = append(routes, route{
					name:    "request " + request + ", response " + response.String() + ", " + to.kind,
					cluster: to.cluster, request: request, response: response,
				})
			}
		}
	}
	return routes
}

// An ending is what a record can say of how a request ended.
type ending struct {
	cause, seen, acted string
	status             int
}

// endingOf is what a gateway of this mode lets the picker know of a request that
// went well.
// A short response may be over before the picker has answered to its headers, or
// not: then two things may be known of it.
func (r route) endingOf(bodiless, short bool) []ending {
	// Envoy keeps the stream until the exchange is over in these modes alone.
	kept := !bodiless && r.request != none && r.request != fullDuplex
	switch {
	case r.response.headers == "SKIP":
		return []ending{{"unseen", "nothing", "unreported", 0}}
	case r.response.body != none:
		return []ending{{"complete", "whole", "confirmed", 200}}
	case kept || r.response.trailers == "SEND":
		known := []ending{{"complete", "end", "confirmed", 200}}
		if short {
			known = append(known, ending{"unseen", "headers", "confirmed", 200})
		}
		return known
	default:
		return []ending{{"unseen", "headers", "confirmed", 200}}
	}
}

func TestX3_EveryBodyModeOfTheGatewayIsServed(t *testing.T) {
	whole := append(modeRoutes(wholeResponse),
		route{name: "response BUFFERED", request: buffered, response: responseMode{"SEND", buffered, "SKIP"}},
		route{name: "response STREAMED", request: streamed, response: responseMode{"SEND", streamed, "SKIP"}})
	skips := modeRoutes(noResponse)
	for _, r := range modeRoutes(responseMode{"SKIP", none, "SEND"}) {
		if r.cluster != originalDst {
			skips = append(skips, r)
		}
	}
	// A picker learns from responses whether a gateway shows any, so that those of
	// other modes have a picker of their own, as they have outside.
	for _, group := range []struct {
		name   string
		routes []route
	}{
		{"gateways that show responses, or their ends", append(whole, modeRoutes(endOfResponse)...)},
		{"gateways that show response headers", modeRoutes(responseHeaders)},
		{"gateways that show nothing of responses", skips},
	} {
		t.Run(group.name, func(t *testing.T) {
			f := start(t, spec{engines: engines(2, fast), envoy: func(bootstrap tree) {
				addClusters(t, bootstrap)
				addRoutes(t, bootstrap, group.routes...)
			}})
			for _, r := range group.routes {
				t.Run("X3 "+r.name, func(t *testing.T) {
					for version, c := range f.clients() {
						t.Run(version, func(t *testing.T) { servesInMode(f.through(t, r.name), c, r, version) })
					}
				})
			}
		})
	}
}

// requestID is an x-request-id that no other test uses.
func requestID(t *testing.T) string { return digest(t.Name()) }

// hang has all engines stand still, or go on.
func (f *fleet) hang(on bool) {
	f.t.Helper()
	for _, e := range f.engines {
		if err := e.SetFaults(enginesim.Faults{Hang: on}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// servesInMode has a request of each kind served.
func servesInMode(f *fleet, c *http.Client, r route, version string) {
	t := f.t
	// Modes in which the destination is due before the body is there.
	blind := r.request == none || r.request == streamed || r.request == bufferedPartial
	send := func(t *testing.T, method, path, body string) (answer, string) {
		t.Helper()
		id := requestID(t)
		req := f.request(t.Context(), method, path, body)
		req.Header.Set("X-Request-Id", id)
		return f.do(c, req), id
	}
	// Records are read when all requests were served, since each takes a moment.
	var records []func(t *testing.T)
	ends := func(what, id string, want []ending, also func(*testing.T, v1alpha1.Decision)) {
		records = append(records, func(t *testing.T) {
			d := f.record(id)
			if got := (ending{d.Outcome.Cause, d.Outcome.Seen, d.Acknowledgement.Acted, d.Outcome.Status}); !slices.Contains(want, got) {
				t.Errorf("%s: the record says %+v, want one of %+v", what, got, want)
			}
			if also != nil {
				also(t, d)
			}
		})
	}

	t.Run("X16 a stream passes event for event", func(t *testing.T) {
		// It goes on when the picker has answered to its headers; but a gateway that
		// buffers shows none before the end.
		f.hang(r.response.body != buffered)
		s := f.open(c, streams(3), requestID(t))
		f.quiet()
		f.hang(false)
		body, err := s.rest()
		if err != nil {
			t.Errorf("the stream ended with %v", err)
		}
		if s.status != http.StatusOK || strings.Count(body, "data: ") != 4 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("status %d, %q", s.status, body)
		}
		if length := s.header.Get("Content-Length"); length != "" {
			t.Errorf("a stream with content-length %s", length)
		}
		ends("stream", requestID(t), r.endingOf(false, false), nil)
	})
	t.Run("R10 the body arrives as it was written", func(t *testing.T) {
		body := odd(r.name + version)
		a, id := send(t, http.MethodPost, completions, body)
		if a.status != http.StatusOK || !strings.Contains(a.body, `"text":"the ship comes"`) {
			t.Errorf("status %d, %s", a.status, a.body)
		}
		if n := f.arrivedUnchanged(body); n != 1 {
			t.Errorf("the body arrived unchanged %d times, want once", n)
		}
		if length := a.header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(a.body)) {
			t.Errorf("X16: content-length %s for %d bytes", length, len(a.body))
		}
		ends("JSON", id, r.endingOf(false, true), func(t *testing.T, d v1alpha1.Decision) {
			if blind != (d.Request.Unread == "not_shown") || blind != (d.Intent.Model == "") {
				t.Errorf("model %q, unread %q; want the model where the body is shown in time", d.Intent.Model, d.Request.Unread)
			}
			whole := r.response.body != none
			if whole != (d.Outcome.ResponseBytes != nil) || whole != (d.Outcome.OutputTokens != nil) || whole != (d.Outcome.TTFT != nil) {
				t.Errorf("response bytes %v, tokens %v, time to first byte %v; want them where the response body is shown",
					d.Outcome.ResponseBytes, d.Outcome.OutputTokens, d.Outcome.TTFT)
			} else if whole && (*d.Outcome.ResponseBytes != int64(len(a.body)) || *d.Outcome.OutputTokens != 3) {
				t.Errorf("recorded %d bytes and %d tokens, want %d and 3", *d.Outcome.ResponseBytes, *d.Outcome.OutputTokens, len(a.body))
			}
		})
	})
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		t.Run("X4 X5 "+method+" without a body", func(t *testing.T) {
			a, id := send(t, method, "/v1/models", "")
			if a.status != http.StatusOK || a.engine() == "" || (method == http.MethodGet) != strings.Contains(a.body, `"sim-model"`) {
				t.Errorf("status %d from %q, %s", a.status, a.engine(), a.body)
			}
			want := r.endingOf(true, true)
			if method == http.MethodHead && r.response.headers == "SEND" {
				// Its headers are the whole response.
				want = []ending{{"complete", "whole", "confirmed", 200}}
			}
			ends(method, id, want, nil)
		})
	}
	t.Run("X15 a model that nobody serves is refused where the body is shown in time", func(t *testing.T) {
		a, _ := send(t, http.MethodPost, completions, `{"model":"other","prompt":"hi"}`)
		if !blind {
			expectRefusal(t, a, 404, "model_unserved")
		} else if a.status != http.StatusNotFound || a.engine() == "" {
			t.Errorf("status %d from %q, want the engine's own 404", a.status, a.engine())
		}
	})
	t.Run("the records say what the gateway showed", func(t *testing.T) {
		for _, check := range records {
			check(t)
		}
	})
	f.awaitInFlight(map[string]int{})
}

func TestX10_BodiesLargerThanTheGatewaysBufferFlowInEveryModeThatHoldsNone(t *testing.T) {
	var routes []route
	for _, r := range modeRoutes(wholeResponse) {
		if r.request != buffered && r.cluster != originalDst {
			routes = append(routes, r)
		}
	}
	f := start(t, spec{engines: engines(2, fast), envoy: func(bootstrap tree) {
		addClusters(t, bootstrap)
		addRoutes(t, bootstrap, routes...)
	}})
	for _, r := range routes {
		for version, c := range f.clients() {
			t.Run(r.name+" over "+version, func(t *testing.T) {
				f := f.through(t, r.name)
				body := padded(2 << 20)
				copy(body[len(body)-100:], r.name+version) // no two uploads are the same bytes
				if a := f.upload(c, body, version == "h1"); a.status != http.StatusOK {
					t.Fatalf("status %d: %s", a.status, a.body)
				}
				if n := f.arrivedUnchanged(string(body)); n != 1 {
					t.Errorf("the body arrived unchanged %d times, want once", n)
				}
			})
		}
	}
	f.awaitInFlight(map[string]int{})
}

func TestX10_AGatewayThatBuffersMaySendALargeBodyInOneMessage(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), envoy: func(bootstrap tree) {
		mode := processingMode(listener(bootstrap))
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
