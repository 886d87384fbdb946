package main

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins"
	"github.com/berth-dev/berth/test/finding"
)

func reading(state v1alpha1.State, value any) v1alpha1.Reading {
	return v1alpha1.Reading{Support: v1alpha1.Supported, State: state, Value: value, Quality: 1}
}

func TestOnlyFreshReadingsAreNumbers(t *testing.T) {
	for _, tc := range []struct {
		name string
		is   v1alpha1.Reading
		want float64
	}{
		{"a number", reading(v1alpha1.Fresh, 3.0), 3},
		{"yes", reading(v1alpha1.Fresh, true), 1},
		{"no", reading(v1alpha1.Fresh, false), 0},
		{"a stale number", reading(v1alpha1.Stale, 3.0), math.NaN()},
		{"a missing one", reading(v1alpha1.Missing, nil), math.NaN()},
		{"a distribution", reading(v1alpha1.Fresh, v1alpha1.Distribution{Mean: 0.5, Count: 2}), 0.5},
		{"a name", reading(v1alpha1.Fresh, "tiny"), math.NaN()},
		{"no reading", v1alpha1.Reading{}, math.NaN()},
	} {
		got := number(&v1alpha1.Observation{Fields: map[string]v1alpha1.Reading{"x": tc.is}}, "x")
		if got != tc.want && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestWhatIsNotSupportedIsToldAndNotHeldTo(t *testing.T) {
	fields := []limited{{"a", 1, "what a counts"}}
	for _, tc := range []struct {
		name    string
		is      v1alpha1.Reading
		reached bool
		verdict finding.Verdict
	}{
		{"enough", reading(v1alpha1.Fresh, 1.0), true, finding.OK},
		{"too little", reading(v1alpha1.Fresh, 0.5), false, finding.Short},
		{"missing", reading(v1alpha1.Missing, nil), false, finding.Short},
		{"stale", reading(v1alpha1.Stale, 2.0), false, finding.Short},
		{"unsupported", v1alpha1.Reading{Support: v1alpha1.Unsupported, State: v1alpha1.Missing}, true, finding.Info},
	} {
		o := &v1alpha1.Observation{Fields: map[string]v1alpha1.Reading{"a": tc.is}}
		if got := reached(o, fields); got != tc.reached {
			t.Errorf("%s: reached is %t", tc.name, got)
		}
		s := testSession(t)
		var reported []finding.Finding
		s.report = func(f finding.Finding) { reported = append(reported, f) }
		s.growing(phase{name: "queued"}, &replica{name: "r1"}, o, fields)
		if len(reported) != 1 || reported[0].Name != "queued/r1/a" || reported[0].Verdict() != tc.verdict {
			t.Errorf("%s: reported %v, want one that is %s", tc.name, reported, tc.verdict)
		}
	}
}

func TestLoadFieldsAreCountedByTheirState(t *testing.T) {
	o := &v1alpha1.Observation{Fields: map[string]v1alpha1.Reading{
		"queueDepth":         reading(v1alpha1.Fresh, 0.0),
		"activeRequests":     reading(v1alpha1.Stale, 1.0),
		"kvCacheUtilization": reading(v1alpha1.Fresh, 0.5),
		"sleeping":           reading(v1alpha1.Fresh, false),
	}}
	if fresh, stale := count(o, v1alpha1.Fresh), count(o, v1alpha1.Stale); fresh != 2 || stale != 1 {
		t.Errorf("%d fresh and %d stale, want 2 and 1: sleeping is no load field", fresh, stale)
	}
}

func TestAReadingIsToldWithWhatIsToBeKnownOfIt(t *testing.T) {
	for _, tc := range []struct {
		is   v1alpha1.Reading
		want string
	}{
		{v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Fresh, Value: 3.0, Unit: "requests", Quality: 1}, "3 requests"},
		{v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Stale, Value: 0.25, Unit: "util", Quality: 1}, "0.25, stale"},
		{v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Fresh, Value: 1.5, Unit: "requests", Quality: 0.5, Reasons: []string{"not the batch"}},
			"1.5 requests, quality 0.5, not the batch"},
		{reading(v1alpha1.Fresh, false), "false"},
		{reading(v1alpha1.Fresh, "0.32.0"), "0.32.0"},
		{reading(v1alpha1.Fresh, []string{"a", "b"}), `["a" "b"]`},
		{reading(v1alpha1.Fresh, []string{}), "[]"},
		{v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Fresh, Unit: "seconds", Quality: 1,
			Value: v1alpha1.Distribution{Mean: 0.125, Count: 8}}, "mean 0.125 seconds of 8"},
		{v1alpha1.Reading{Support: v1alpha1.Supported, State: v1alpha1.Missing, Reasons: []string{"first page"}}, "missing, first page"},
		{v1alpha1.Reading{Support: v1alpha1.Unsupported, State: v1alpha1.Missing, Reasons: []string{"not exported"}}, "unsupported, not exported"},
	} {
		if got := say(tc.is); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestTheTableHasALineForEachFieldInTheOrderOfTheCatalogue(t *testing.T) {
	var readings table
	if got := readings.findings(); got != nil {
		t.Errorf("a table of no phase has lines: %v", got)
	}
	readings.add("idle", map[string]v1alpha1.Reading{"queueDepth": reading(v1alpha1.Fresh, 0.0), "engineVersion": reading(v1alpha1.Fresh, "0.32.0")})
	readings.add("killed", map[string]v1alpha1.Reading{"queueDepth": reading(v1alpha1.Stale, 0.0), "engineVersion": reading(v1alpha1.Fresh, "0.32.0")})
	list := readings.findings()
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
		if f.Verdict() != finding.Info {
			t.Errorf("%s is %s, want info", f.Name, f.Verdict())
		}
	}
	var want []string
	for f := range telemetry.NumFields {
		want = append(want, "reading/"+f.String())
	}
	if !slices.Equal(names, want) {
		t.Fatalf("lines for %v, want %v", names, want)
	}
	for i, line := range map[telemetry.Field]string{
		telemetry.QueueDepth:    "1/2 - # idle: 0; killed: 0, stale",
		telemetry.EngineVersion: "2/2 - # always 0.32.0",
	} {
		if got := strings.Join(strings.Fields(list[i].String())[2:], " "); got != line {
			t.Errorf("%s: %q, want %q", list[i].Name, got, line)
		}
	}
}

func TestAnswersOfAReplicaAreThoseThatSucceeded(t *testing.T) {
	answers := []answer{{status: 200, served: "r1"}, {status: 200, served: "r2"}, {status: 503, served: "r2"}, {status: 200}}
	if got := servedBy(answers, &replica{name: "r2"}); got != 1 {
		t.Errorf("r2 served %v, want 1", got)
	}
}

func TestACounterIsTheSumOfItsOwnFamily(t *testing.T) {
	const page = "# TYPE vllm:a_total counter\nvllm:a_total{engine=\"0\"} 2.0\nvllm:a_total{engine=\"1\"} 1e1\nvllm:a_totals 5\nvllm:b_total 7\nvllm:c_total{x=\"y\"} no\n"
	for _, tc := range []struct {
		family string
		sum    float64
		found  bool
	}{{"vllm:a_total", 12, true}, {"vllm:b_total", 7, true}, {"vllm:c_total", 0, false}, {"vllm:d_total", 0, false}} {
		if sum, found := counter(page, tc.family); sum != tc.sum || found != tc.found {
			t.Errorf("%s: %v, %t; want %v, %t", tc.family, sum, found, tc.sum, tc.found)
		}
	}
}

// The pages in testdata are those that r1 of a run showed in four of its phases.
func TestTheEnginesOwnPagesSayWhatTheyWereMadeToDo(t *testing.T) {
	families := []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_preemptions_total",
		"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}
	for _, tc := range []struct {
		phase string
		want  [5]float64
	}{
		{"idle", [5]float64{0, 0, 0, 0, 0}},
		// Five requests of 1000 tokens came before, four of them with 896 in the cache.
		{"queued", [5]float64{maxRunning, queued, 0, 5340, 4 * 896}},
		// Two of the batch have been put back.
		{"preempting", [5]float64{2, 2, 2, 5436, 4 * 896}},
		{"asleep", [5]float64{0, 0, 2, 5436, 4 * 896}},
	} {
		page, err := os.ReadFile(filepath.Join("testdata", tc.phase+".prom"))
		if err != nil {
			t.Fatal(err)
		}
		for i, family := range families {
			if got, found := counter(string(page), family); !found || got != tc.want[i] {
				t.Errorf("%s: %s is %v (%t), want %v", tc.phase, family, got, found, tc.want[i])
			}
		}
		awake := strings.Contains(string(page), `sleep_state="awake"} 1.0`)
		if awake != (tc.phase != "asleep") {
			t.Errorf("%s: awake is %t", tc.phase, awake)
		}
		if withoutHelp(string(page)) != string(page) {
			t.Errorf("%s has HELP", tc.phase)
		}
	}
}

func TestAKeptPageHasEverythingButItsHelp(t *testing.T) {
	const page = "# HELP a what it is\n# TYPE a gauge\na{b=\"# HELP\"} 1\n"
	if got := withoutHelp(page); got != "# TYPE a gauge\na{b=\"# HELP\"} 1\n" {
		t.Errorf("got %q", got)
	}
}

func TestEnvoysAnswersAreRead(t *testing.T) {
	if got := envoyVersion("/some/where/envoy  version: 0123abcd/1.40.0/Clean/RELEASE/BoringSSL\n"); got != "1.40.0" {
		t.Errorf("version %q, want 1.40.0", got)
	}
	const one = `{"name":"gateway","local_address":{"socket_address":{"address":"127.0.0.1","port_value":10000}}}`
	if got, err := listenerOf(`{"listener_statuses":[` + one + `]}`); err != nil || got != "127.0.0.1:10000" {
		t.Errorf("listener %q, %v", got, err)
	}
	for _, page := range []string{"", "{}", `{"listener_statuses":[` + one + "," + one + `]}`} {
		if got, err := listenerOf(page); err == nil {
			t.Errorf("%q has the listener %q, want an error", page, got)
		}
	}
}

func TestThePickersConfigurationHoldsBothReplicas(t *testing.T) {
	s := testSession(t)
	s.replicas = []*replica{{name: "r1", address: "127.0.0.1:8001"}, {name: "r2", address: "127.0.0.1:8002"}}
	p, _, err := policy.Parse("berth.yaml", []byte(s.configuration()), s.dir, plugins.Catalog{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Digest == "" || !strings.Contains(s.configuration(), "{name: r2, address: 127.0.0.1, port: 8002, engine: vllm}") {
		t.Errorf("digest %q of\n%s", p.Digest, s.configuration())
	}
}

// What requests ask for, with the prompt, must fit where it is to fit.
func TestTheSizesMakeThePhases(t *testing.T) {
	blocks := func(tokens int) int { return (tokens + 40 + blockSize - 1) / blockSize }
	const usable = kvBlocks - 1
	if got := maxRunning * blocks(fitting); got > usable {
		t.Errorf("a batch of fitting requests takes %d blocks of %d", got, usable)
	}
	if got := maxRunning * blocks(overflowing); got <= usable {
		t.Errorf("a batch of overflowing requests takes %d blocks of %d", got, usable)
	}
	if overflowing+40 > contextLimit || blocks(contextLimit) > usable+1 {
		t.Errorf("one request of %d tokens must fit into the context and the cache", overflowing)
	}
}

func TestClientsGoWhenTheyAreSentAway(t *testing.T) {
	s := testSession(t)
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// A server that has not read the body does not see its client leave.
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.URL.Path != "/v1/completions" {
			t.Errorf("asked for %s: %v", r.URL.Path, err)
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	}))
	defer server.Close()
	leave := s.occupy(&replica{name: "r1", address: server.Listener.Addr().String()}, 3, 10)
	<-asked
	if err := leave(); err != nil {
		t.Errorf("clients that were sent away met an error: %v", err)
	}
}

func TestAClientThatIsRefusedIsAnError(t *testing.T) {
	s := testSession(t)
	answered := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		answered <- struct{}{}
	}))
	defer server.Close()
	r := &replica{name: "r1", address: server.Listener.Addr().String()}
	if err := s.once(t.Context(), r, 0, 10); err == nil || !strings.Contains(err.Error(), "status 503") {
		t.Errorf("error %v, want one with the status", err)
	}
}
