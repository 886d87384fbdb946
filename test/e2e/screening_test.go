package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

// onlyReady makes all members but one not ready.
func onlyReady(i int) func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
	return func(members []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
		ready := false
		for j := range members {
			if j != i {
				members[j].Ready = &ready
			}
		}
		return members
	}
}

func TestX4_BodilessRequestsAreScreenedLikeAnyOther(t *testing.T) {
	f := start(t, spec{engines: engines(3, enginesim.Config{}), members: onlyReady(1), unscraped: true})
	for version, c := range f.clients() {
		for _, r := range []struct{ method, path string }{
			{http.MethodGet, "/v1/models"},
			{http.MethodGet, "/v1/models/?after=x"},
			{http.MethodHead, "/v1/models"},
			{http.MethodOptions, completions},
			{http.MethodDelete, "/v1/responses/r1"},
			{http.MethodPost, "/v1/load_lora_adapter"},
		} {
			t.Run(version+" "+r.method+" "+r.path, func(t *testing.T) {
				for range 50 {
					a := f.do(c, f.request(t.Context(), r.method, r.path, ""))
					if a.status != http.StatusOK || a.engine() != "e2" {
						t.Fatalf("status %d from engine %q, want 200 from e2, the only one that is ready", a.status, a.engine())
					}
				}
			})
		}
	}
	if n := f.counts(); n[0]+n[2] != 0 {
		t.Errorf("requests at the engines %v, want none at e1 and e3", n)
	}
	f.awaitInFlight(map[string]int{})
}

// subsetFromHeader stands for whatever filter of a gateway narrows the pool: it
// copies x-test-subset into the metadata that the picker reads.
func subsetFromHeader(bootstrap tree) {
	insertFilter(listener(bootstrap), "subset", "envoy.extensions.filters.http.header_to_metadata.v3.Config", tree{
		"request_rules": []any{tree{
			"header": "x-test-subset",
			"on_header_present": tree{
				"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset", "type": "STRING",
			},
		}},
	})
}

func TestHD5_TheSubsetComesFromMetadataAndIsExactToThePort(t *testing.T) {
	f := start(t, spec{engines: engines(3, enginesim.Config{}), envoy: subsetFromHeader})
	address := func(i int) string { return f.engines[i].Addr() }
	foreign := closedPort(t)
	for _, tc := range []struct {
		name    string
		subset  string            // what the filter says
		headers map[string]string // what the client says
		allowed []string          // none: subset_empty
	}{
		{"one replica", address(1), nil, []string{"e2"}},
		{"two replicas", address(0) + ", " + address(2), nil, []string{"e1", "e3"}},
		{"an address of another port beside one", foreign + "," + address(2), nil, []string{"e3"}},
		{"only an address of another port", foreign, nil, nil},
		{"an address without a port", "127.0.0.1", nil, nil},
		{"an empty list", ",", nil, nil},
		{"HD5 a client that names another in the subset's header", address(1),
			map[string]string{"x-gateway-destination-endpoint-subset": address(0)}, []string{"e2"}},
		{"HD1 a client that names another destination", address(1),
			map[string]string{"X-Gateway-Destination-Endpoint": address(0)}, []string{"e2"}},
		{"HD1 a client that names a list of destinations", address(1),
			map[string]string{"x-gateway-destination-endpoint": address(0) + "," + address(2)}, []string{"e2"}},
		{"HD1 a client that names a destination where nobody is eligible", foreign,
			map[string]string{"x-gateway-destination-endpoint": address(0)}, nil},
	} {
		for version, c := range f.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				before := f.counts()
				for _, r := range []struct{ method, path, body string }{
					{http.MethodPost, completions, asks(1)},
					{http.MethodPost, completions, streams(1)},
					{http.MethodGet, "/v1/models", ""},
				} {
					for range 8 {
						req := f.request(t.Context(), r.method, r.path, r.body)
						req.Header.Set("X-Test-Subset", tc.subset)
						for name, value := range tc.headers {
							req.Header.Add(name, value)
							req.Header.Add(name, value)
						}
						a := f.do(c, req)
						if tc.allowed == nil {
							expectRefusal(t, a, 503, "subset_empty")
						} else if a.status != http.StatusOK || !strings.Contains(fmt.Sprint(tc.allowed), a.engine()) {
							t.Errorf("status %d from engine %q, want 200 from one of %v", a.status, a.engine(), tc.allowed)
						}
					}
				}
				for i, n := range f.counts() {
					name := fmt.Sprintf("e%d", i+1)
					if n > before[i] && !strings.Contains(fmt.Sprint(tc.allowed), name) {
						t.Errorf("%d requests reached %s, which is outside the subset", n-before[i], name)
					}
				}
			})
		}
	}

	t.Run("HD1 HD5 headers of a client alone narrow nothing", func(t *testing.T) {
		seen := map[string]bool{}
		eventually(t, "every replica has served", func() bool {
			req := f.request(t.Context(), http.MethodPost, completions, asks(1))
			for _, name := range []string{"x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint"} {
				req.Header.Set(name, address(0))
			}
			a := f.do(f.h1, req)
			if a.status != http.StatusOK || a.header.Get("X-Berth-Acted") != "confirmed" {
				t.Fatalf("status %d, acted %q; want 200 and confirmed", a.status, a.header.Get("X-Berth-Acted"))
			}
			seen[a.engine()] = true
			return len(seen) == 3
		})
	})
}

func TestTheSubsetMayBeAListAndAnEmptyOneMeansNobody(t *testing.T) {
	for _, tc := range []struct {
		name    string
		subset  func(addresses []string) any
		allowed string
	}{
		{"a list of one", func(a []string) any { return []any{a[1]} }, "e2"},
		{"an empty list", func([]string) any { return []any{} }, ""},
		{"a value of the wrong type", func([]string) any { return 7 }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var addresses []string
			f := start(t, spec{
				engines: engines(2, enginesim.Config{}),
				prepare: func(engines []*enginesim.Server) {
					for _, e := range engines {
						addresses = append(addresses, e.Addr())
					}
				},
				envoy: func(bootstrap tree) {
					insertFilter(listener(bootstrap), "subset", "envoy.extensions.filters.http.set_metadata.v3.Config", tree{
						"metadata": []any{tree{
							"metadata_namespace": "envoy.lb.subset_hint",
							"value":              tree{"x-gateway-destination-endpoint-subset": tc.subset(addresses)},
						}},
					})
				},
			})
			for _, req := range []*http.Request{
				f.request(t.Context(), http.MethodPost, completions, asks(1)),
				f.request(t.Context(), http.MethodPost, completions, streams(1)),
				f.request(t.Context(), http.MethodGet, "/v1/models", ""),
			} {
				a := f.do(f.h1, req)
				if tc.allowed == "" {
					expectRefusal(t, a, 503, "subset_empty")
				} else if a.status != http.StatusOK || a.engine() != tc.allowed {
					t.Errorf("%s: status %d from %q, want 200 from %s", req.Method, a.status, a.engine(), tc.allowed)
				}
			}
			if tc.allowed == "" && f.total() != 0 {
				t.Errorf("%d requests reached an engine, want none", f.total())
			}
		})
	}
}

func TestX15_RefusalsReachTheClientWithStatusReasonAndBody(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{})})
	for _, tc := range []struct {
		name, body string
		status     int
		reason     string
	}{
		{"a model that nobody serves", `{"model":"other","prompt":"hi"}`, 404, "model_unserved"},
		{"a model that nobody serves, as a stream", `{"model":"other","prompt":"hi","stream":true}`, 404, "model_unserved"},
		{"JSON that ends early", `{"model":"sim-model","prompt":"hi"`, 400, "body_malformed"},
		{"JSON that ends early, as a stream", `{"stream":true,"model":"sim-model","prompt":`, 400, "body_malformed"},
		{"JSON that is no object", `["sim-model"]`, 400, "body_malformed"},
		{"two models", `{"model":"sim-model","prompt":"hi","model":"other"}`, 400, "model_ambiguous"},
		{"two models, as a stream", `{"stream":true,"model":"other","prompt":"hi","model":"sim-model"}`, 400, "model_ambiguous"},
	} {
		for version, c := range f.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				a := f.post(c, tc.body)
				expectRefusal(t, a, tc.status, tc.reason)
				if strings.Contains(a.body, "127.0.0.1") {
					t.Errorf("the refusal tells an address: %s", a.body)
				}
			})
		}
	}
	if n := f.total(); n != 0 {
		t.Errorf("%d requests reached an engine, want none", n)
	}
	f.awaitInFlight(map[string]int{})
	if got := f.metric(`berth_refusals_total{reason="model_unserved"}`); got != 4 {
		t.Errorf("refusals counted as model_unserved: %v, want 4", got)
	}
}

func TestAPoolInWhichNobodyIsEligibleIsUnavailable(t *testing.T) {
	for _, tc := range []struct {
		name    string
		members func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint
		reason  string
	}{
		{"an empty pool", func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint { return nil }, "pool_empty"},
		{"all not ready", onlyReady(-1), "unhealthy"},
		{"all terminating", func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i := range m {
				m[i].Terminating = true
			}
			return m
		}, "unhealthy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, spec{engines: engines(2, enginesim.Config{}), members: tc.members, unscraped: true})
			for version, c := range f.clients() {
				for _, req := range []*http.Request{
					f.request(t.Context(), http.MethodPost, completions, asks(1)),
					f.request(t.Context(), http.MethodPost, completions, streams(1)),
					f.request(t.Context(), http.MethodGet, "/v1/models", ""),
				} {
					a := f.do(c, req)
					expectRefusal(t, a, 503, tc.reason)
					if got := a.header.Get("Retry-After"); got != "5" {
						t.Errorf("%s %s: retry-after %q, want 5 seconds", version, req.Method, got)
					}
				}
			}
			if n := f.total(); n != 0 {
				t.Errorf("%d requests reached an engine, want none", n)
			}
		})
	}
}

func TestAnUploadThatStopsIsRefused(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{}), berth: tree{"limits": tree{"uploadIdle": "300ms"}}})
	for version, c := range f.clients() {
		t.Run(version, func(t *testing.T) {
			body, rest := io.Pipe()
			defer func() { _ = rest.Close() }()
			go func() { _, _ = io.WriteString(rest, `{"model":"sim-model","pro`) }()
			req := f.request(t.Context(), http.MethodPost, completions, "")
			req.Header.Set("Content-Type", "application/json")
			req.Body, req.ContentLength = body, -1
			expectRefusal(t, f.do(c, req), 408, "upload_idle")
		})
	}
	if n := f.total(); n != 0 {
		t.Errorf("%d requests reached the engine, want none", n)
	}
}

func TestR9_RequestsWithTrailersAreRefused(t *testing.T) {
	for _, fallbacks := range []int{0, 2} {
		t.Run(fmt.Sprintf("fallbacks %d", fallbacks), func(t *testing.T) {
			f := start(t, spec{engines: engines(2, enginesim.Config{}), fallbacks: fallbacks})
			req := f.request(t.Context(), http.MethodPost, completions, "")
			req.Header.Set("Content-Type", "application/json")
			req.Body, req.ContentLength = io.NopCloser(once{strings.NewReader(asks(1))}), -1
			req.Trailer = http.Header{"X-Checksum": {"abc"}}
			expectRefusal(t, f.do(f.h2, req), 400, "trailers_refused")
			if n := f.total(); n != 0 {
				t.Errorf("%d requests reached an engine, want none", n)
			}
		})
	}
}

func TestX11_RequestsWithTrailersAreServedWhereTheyMayPass(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), berth: tree{"gateway": tree{"requestTrailers": "pass"}}})
	req := f.request(t.Context(), http.MethodPost, completions, "")
	req.Header.Set("Content-Type", "application/json")
	req.Body, req.ContentLength = io.NopCloser(once{strings.NewReader(asks(1))}), -1
	req.Trailer = http.Header{"X-Checksum": {"abc"}}
	if a := f.do(f.h2, req); a.status != http.StatusOK {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if n := f.total(); n != 1 {
		t.Errorf("%d requests reached an engine, want one", n)
	}
}
