package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

var now = telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC))

// reports is the handler over two replicas, of which the second was never read,
// and over 150 decisions.
func reports(t *testing.T) http.Handler {
	t.Helper()
	pools := pool.NewRegistry("", false)
	err := pools.Update("local/demo", []pool.Spec{
		{Name: "r1", Pod: "local/r1", Engine: "sglang", Address: netip.MustParseAddrPort("10.0.0.1:8000"), Node: "n1", Zone: "eu-1", Ready: true},
		{Name: "r2", Address: netip.MustParseAddrPort("[fd00::2]:8000"), Engine: "sglang", UID: "u2", Ready: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &telemetry.Snapshot{Engine: "vllm", Profile: "vllm@sha256:0123456789ab", Declared: "sglang", Incarnation: 3}
	hottest := 0.75
	s.Readings[telemetry.QueueDepth] = telemetry.Reading{
		Value: 4, ObservedAt: now, ExpiresAt: now.Add(time.Second), Quality: 1,
		Support: telemetry.Supported, Recorded: telemetry.Fresh, Provenance: telemetry.Measured,
		Detail: &telemetry.Detail{Source: &telemetry.Source{Path: "/metrics", Metric: "vllm:num_requests_waiting", Rule: "sum over engine"}},
	}
	s.Readings[telemetry.KVCacheUtilization] = telemetry.Reading{
		Value: 0.5, ObservedAt: now.Add(-time.Minute), ExpiresAt: now.Add(-time.Second), Quality: 0.5,
		Support: telemetry.Supported, Recorded: telemetry.Fresh, Provenance: telemetry.Measured,
		Detail: &telemetry.Detail{Max: &hottest, Reasons: []string{"one rank of two"}},
	}
	s.Readings[telemetry.ProcessStart] = telemetry.Reading{Recorded: telemetry.Fresh, Value: 1767225600.5}
	s.Readings[telemetry.EngineVersion] = telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Text: "0.32.0"}}
	live := pools.Set().Endpoints[0].Live
	live.Publish(s, live.BeginScrape())
	live.Answered()
	live.Take(now)
	pools.Set().Endpoints[1].ScrapeFailed("connection refused")

	l := ledger.New(1000, nil, func(string) {})
	for i := range 150 {
		l.Open(&v1alpha1.Decision{Version: v1alpha1.Version, Kind: "Decision", ID: fmt.Sprintf("d%d", i), Candidates: []v1alpha1.Candidate{}})
	}
	return Reports(Options{Pools: pools, Ledger: l, Clock: func() telemetry.Instant { return now }})
}

func ask(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, http.NoBody))
	return w
}

func TestRoutesOfTheReports(t *testing.T) {
	h := reports(t)
	tests := []struct {
		method, target string
		status         int
		contains       string
	}{
		{"GET", "/v1alpha1/replicas", 200, `"kind":"ReplicaList"`},
		{"GET", "/v1alpha1/decisions", 200, `"kind":"DecisionList"`},
		{"GET", "/v1alpha1/decisions/d7", 200, `"id":"d7"`},
		{"GET", "/v1alpha1/decisions/unknown", 404, `"error":"no decision with this id`},
		{"GET", "/v1alpha1/decisions/%2e%2e%2fsecret", 404, "no decision"},
		{"GET", "/v1alpha1/decisions?limit=0", 400, "from 1 to 100000"},
		{"GET", "/v1alpha1/decisions?limit=-1", 400, "from 1 to 100000"},
		{"GET", "/v1alpha1/decisions?limit=100001", 400, "from 1 to 100000"},
		{"GET", "/v1alpha1/decisions?limit=99999999999999999999", 400, "from 1 to 100000"},
		{"GET", "/v1alpha1/decisions?limit=many", 400, "from 1 to 100000"},
		{"GET", "/v1alpha1/decisions?limit=100000", 200, `"id":"d0"`},
		{"GET", "/v1alpha1", 404, ""},
		{"GET", "/", 404, ""},
		{"GET", "/metrics", 404, ""},
		{"POST", "/v1alpha1/replicas", 405, ""},
		{"PUT", "/v1alpha1/decisions", 405, ""},
		{"DELETE", "/v1alpha1/decisions/d7", 405, ""},
	}
	for _, tt := range tests {
		w := ask(h, tt.method, tt.target)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.contains) {
			t.Errorf("%s %s: %d %.200s, want %d with %s", tt.method, tt.target, w.Code, w.Body, tt.status, tt.contains)
		}
		if ours := tt.contains != ""; ours && w.Header().Get("content-type") != "application/json" {
			t.Errorf("%s %s: content type %q", tt.method, tt.target, w.Header().Get("content-type"))
		}
	}
}

func TestDecisionsComeNewestFirstAndNoMoreThanAsked(t *testing.T) {
	h := reports(t)
	for target, want := range map[string]int{"": 100, "?limit=1": 1, "?limit=3": 3, "?limit=1000": 150} {
		var list struct{ Items []v1alpha1.Decision }
		if err := json.Unmarshal(ask(h, "GET", "/v1alpha1/decisions"+target).Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != want || list.Items[0].ID != "d149" {
			t.Errorf("%q: %d decisions, the first is %s; want %d from d149", target, len(list.Items), list.Items[0].ID, want)
		}
	}
}

func TestEmptyListsAreLists(t *testing.T) {
	h := Reports(Options{
		Pools: pool.NewRegistry("", false), Ledger: ledger.New(1, nil, func(string) {}),
		Clock: func() telemetry.Instant { return now },
	})
	for _, target := range []string{"/v1alpha1/replicas", "/v1alpha1/decisions"} {
		if body := ask(h, "GET", target).Body.String(); !strings.Contains(body, `"items":[]`) {
			t.Errorf("%s: %s", target, body)
		}
	}
}

func TestAReplicaIsReportedAsAnObservation(t *testing.T) {
	var list struct {
		Version, Kind string
		Items         []map[string]json.RawMessage
	}
	if err := json.Unmarshal(ask(reports(t), "GET", "/v1alpha1/replicas").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if list.Version != "berth.dev/v1alpha1" || len(list.Items) != 2 {
		t.Fatalf("%+v", list)
	}
	wants := []map[string]string{
		{
			"version": `"berth.dev/v1alpha1"`, "kind": `"Observation"`, "engine": `"vllm"`, "declared": `"sglang"`,
			"profile": `"vllm@sha256:0123456789ab"`, "order": `"normal"`, "inFlight": `1`,
			"replica": `{"pool":"local/demo","name":"r1","pod":"local/r1","address":"10.0.0.1:8000","node":"n1","zone":"eu-1",` +
				`"incarnation":3,"processStart":"2026-01-01T00:00:00.5Z","engineVersion":"0.32.0"}`,
		},
		{
			"engine": `"sglang"`, "declared": ``, "order": `"last"`, "inFlight": `0`, "scrapeError": `"connection refused"`,
			"replica": `{"pool":"local/demo","name":"r2","uid":"u2","address":"[fd00::2]:8000"}`,
		},
	}
	for i, want := range wants {
		for member, value := range want {
			if got := string(list.Items[i][member]); got != value {
				t.Errorf("replica %d: %s: %s, want %s", i, member, got, value)
			}
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(list.Items[i]["fields"], &fields); err != nil {
			t.Fatal(err)
		}
		if len(fields) != int(telemetry.NumFields) {
			t.Errorf("replica %d: %d fields, want all %d of the catalogue", i, len(fields), telemetry.NumFields)
		}
		for name, want := range []map[string]string{
			{
				"queueDepth": `{"support":"supported","state":"fresh","value":4,"unit":"requests","provenance":"measured",` +
					`"source":{"path":"/metrics","metric":"vllm:num_requests_waiting","rule":"sum over engine"},` +
					`"observedAt":"2026-01-02T03:04:05.678Z","expiresAt":"2026-01-02T03:04:06.678Z","quality":1,"reasons":[]}`,
				"kvCacheUtilization": `{"support":"supported","state":"stale","value":0.5,"max":0.75,"unit":"util","provenance":"measured",` +
					`"observedAt":"2026-01-02T03:03:05.678Z","expiresAt":"2026-01-02T03:04:04.678Z","quality":0.5,"reasons":["one rank of two","expired 1s ago"]}`,
				"activeRequests": `{"support":"unknown","state":"missing","unit":"requests","quality":0,"reasons":["not read"]}`,
			},
			{"queueDepth": `{"support":"unknown","state":"missing","unit":"requests","quality":0,"reasons":["not read"]}`},
		}[i] {
			if got := string(fields[name]); got != want {
				t.Errorf("replica %d: %s:\n%s, want\n%s", i, name, got, want)
			}
		}
	}
}

func TestRoutesOfTheMetricsListener(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_test_total", Help: "For the test."})
	registry.MustRegister(c)
	var reason error
	h := Metrics(registry, func() error { return reason })
	tests := []struct {
		method, target string
		reason         error
		status         int
		contains       string
	}{
		{"GET", "/metrics", nil, 200, "berth_test_total 0"},
		{"GET", "/healthz", nil, 200, "alive"},
		{"GET", "/healthz", errors.New("no endpoints"), 200, "alive"},
		{"GET", "/readyz", nil, 200, "ready"},
		{"GET", "/readyz", errors.New("no endpoints"), 503, `{"error":"no endpoints"}`},
		{"GET", "/v1alpha1/replicas", nil, 404, ""},
		{"POST", "/metrics", nil, 405, ""},
		{"POST", "/readyz", nil, 405, ""},
	}
	for _, tt := range tests {
		reason = tt.reason
		w := ask(h, tt.method, tt.target)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.contains) {
			t.Errorf("%s %s with %v: %d %s, want %d with %q", tt.method, tt.target, tt.reason, w.Code, w.Body, tt.status, tt.contains)
		}
	}
}
