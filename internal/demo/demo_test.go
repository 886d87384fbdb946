package demo

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/hack/envoy"
)

// A story is the demo's output, which a test may read while it grows.
type story struct {
	mu   sync.Mutex
	text strings.Builder
	// on is called with the whole text after each write.
	on func(text string)
}

func (s *story) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	if s.on != nil {
		s.on(s.text.String())
	}
	return len(b), nil
}

func (s *story) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// short is the demo in a few seconds.
func short(t *testing.T, out *story) Options {
	t.Helper()
	path, err := envoy.Path(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Envoy: path, Out: out, Seed: 1, Rate: 12, Live: 3 * time.Second, Compare: 500 * time.Millisecond, Dir: t.TempDir(),
	}
}

// inTheOrder checks that the parts come one after the other.
func inTheOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Errorf("no %q in its place in:\n%s", part, text)
			return
		}
		rest = after
	}
}

var address = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)

// nothingIsLeft checks that every address of the story refuses, that no file is
// left, and that the goroutines are as many as before.
func nothingIsLeft(t *testing.T, o Options, text string, goroutines int) {
	t.Helper()
	addresses := address.FindAllString(text, -1)
	if len(addresses) < len(impaired.Replicas)+2 {
		t.Errorf("the story names the addresses %q only", addresses)
	}
	for _, a := range addresses {
		if conn, err := net.Dial("tcp", a); err == nil {
			_ = conn.Close()
			t.Errorf("%s still listens", a)
		}
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	err := until(context.Background(), 10*time.Second, "all goroutines have ended", func() (bool, error) {
		return runtime.NumGoroutine() <= goroutines, nil
	})
	if err != nil {
		stacks := make([]byte, 1<<20)
		t.Errorf("%v: %d of %d:\n%s", err, runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
	}
}

func TestTheDemoTellsItsStoryServesWhileKeptAndLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	kept := make(chan struct{})
	var once sync.Once
	out := &story{on: func(text string) {
		if strings.Contains(text, "/sim/faults") {
			once.Do(func() { close(kept) })
		}
	}}
	o := short(t, out)
	o.Keep, o.Command = true, "bin/berthctl"
	var result *Result
	ended := make(chan error, 1)
	go func() {
		var err error
		result, err = Run(ctx, o)
		ended <- err
	}()
	select {
	case <-kept:
	case err := <-ended:
		t.Fatalf("ended before it was interrupted: %v\n%s", err, out)
	}
	_, hints, _ := strings.Cut(out.String(), "keep running until Ctrl-C")
	inTheOrder(t, hints, "curl -sN http://127.0.0.1:", "bin/berthctl top --server http://127.0.0.1:",
		"bin/berthctl observe r2 --server http://127.0.0.1:", "bin/berthctl explain latest", "curl -s http://127.0.0.1:", "/metrics\n", "of r2 hang")
	client := newClient()
	s := ask(t.Context(), client, "http://"+address.FindString(hints), &workload(1, 100, time.Second)[0], time.Now())
	client.CloseIdleConnections()
	if s.Err != nil {
		t.Errorf("the gateway that was named: %v", s.Err)
	}
	interrupt()
	if err := <-ended; err != nil {
		t.Fatalf("an end after the story is an error: %v", err)
	}
	nothingIsLeft(t, o, out.String(), before)
	checkStory(t, o, result, out.String())
}

func TestAReplicaThatIsBackIsToldAsThePickerSeesIt(t *testing.T) {
	for excluded, want := range map[string]string{
		"":                    "it gets requests again",
		"quarantined":         "since several requests in a row failed there, it is in quarantine until one that tries it goes well",
		"asleep_or_unhealthy": "it gets no requests: asleep or unhealthy",
	} {
		if got := prospects(&v1alpha1.Observation{Excluded: excluded}); got != want {
			t.Errorf("%q: %q, want %q", excluded, got, want)
		}
	}
}

func checkStory(t *testing.T, o Options, result *Result, text string) {
	t.Helper()
	inTheOrder(t, text,
		"r2: its telemetry page stops answering",
		"r2: its readings are stale",
		"r2: its page answers again",
		"r1: dies",
		"r1: its connections are refused",
		"r1: is back",
		"r1: has answered the picker",
		"requests were answered.",
		"Impaired fleet",
		"Berth's TTFT was",
		"Equal fleet",
		"Berth's TTFT was",
		"as `bin/berthctl explain` tells it",
		"was picked",
	)
	requests := len(workload(o.Seed, o.Rate, o.Live))
	if l := result.Live; l.Requests != requests || l.Errors != l.Cut {
		t.Errorf("of %d requests %d were sent and %d failed, %d of them for the death", requests, l.Requests, l.Errors, l.Cut)
	}
	if n := len(result.Comparisons); n != 2 {
		t.Fatalf("%d comparisons", n)
	}
	requests = len(workload(o.Seed, o.Rate, o.Compare))
	for _, c := range result.Comparisons {
		for _, s := range []Summary{c.Berth, c.RoundRobin} {
			served := 0
			for _, n := range s.Served {
				served += n
			}
			if s.Requests != requests || s.Errors != 0 || served != requests {
				t.Errorf("%s, %s: of %d requests %d were sent, %d served, %d failed: %s",
					c.Fleet, s.Router, requests, s.Requests, served, s.Errors, s.FirstError)
			}
		}
		// Round robin serves each replica alike, to one request.
		counts := make([]int, 0, len(c.Replicas))
		for _, r := range c.Replicas {
			counts = append(counts, c.RoundRobin.Served[r])
		}
		if slices.Max(counts)-slices.Min(counts) > 1 {
			t.Errorf("%s: round robin served %v", c.Fleet, counts)
		}
	}
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	for name, at := range map[string]string{
		"while a page hangs":        "stops answering",
		"while a replica is dead":   "r1: dies",
		"while the routers compete": "Impaired fleet",
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			out := &story{on: func(text string) {
				if strings.Contains(text, at) {
					interrupt()
				}
			}}
			o := short(t, out)
			if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want that of the context", err)
			}
			nothingIsLeft(t, o, out.String(), before)
		})
	}
}

func TestAnEnvoyThatEndsIsAnErrorWithItsLastWords(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	broken := filepath.Join(dir, "envoy")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho no such thing >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := &story{}
	o := short(t, out)
	o.Envoy = broken
	_, err := Run(t.Context(), o)
	if err == nil {
		t.Fatal("no error")
	}
	inTheOrder(t, err.Error(), "Envoy, ended by itself", "no such thing")
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	err = until(t.Context(), 10*time.Second, "all goroutines have ended", func() (bool, error) {
		return runtime.NumGoroutine() <= before, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOptionsThatCannotBeUsedAreNamed(t *testing.T) {
	good := Options{Envoy: "/envoy", Out: &story{}}
	for _, tc := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Envoy = "envoy" }, `Envoy: "envoy": must be an absolute path`},
		{func(o *Options) { o.Rate = -1 }, "Rate: -1: must be above 0 and at most 1000 requests per second"},
		{func(o *Options) { o.Live = -time.Second }, "Live: -1s: must be above 0s and at most 1h"},
		{func(o *Options) { o.Compare = 2 * time.Hour }, "Compare: 2h0m0s: must be above 0s and at most 1h"},
	} {
		o := good
		tc.change(&o)
		if _, err := Run(t.Context(), o); err == nil || err.Error() != tc.want {
			t.Errorf("error %v, want %s", err, tc.want)
		}
	}
}

func TestTheTellingDecisionIsAPartialOneWithAClearWinner(t *testing.T) {
	ttft := 0.1
	decision := func(id, rung, cause string, totals ...float64) *v1alpha1.Decision {
		d := &v1alpha1.Decision{ID: id, Rung: rung, Outcome: &v1alpha1.Outcome{Cause: cause, TTFT: &ttft}}
		for i, total := range totals {
			d.Candidates = append(d.Candidates, v1alpha1.Candidate{Rank: i + 1, Total: total})
		}
		return d
	}
	running := decision("running", "partial", "complete", 9, 1)
	running.Outcome = nil
	for _, tc := range []struct {
		want      string
		decisions []*v1alpha1.Decision
	}{
		{"", nil},
		{"", []*v1alpha1.Decision{running, decision("cut", "partial", "aborted", 9, 1)}},
		{"clear", []*v1alpha1.Decision{running, decision("close", "full", "complete", 3, 2.9), decision("clear", "full", "complete", 3, 1)}},
		{"partial", []*v1alpha1.Decision{decision("clear", "full", "complete", 3, 1), decision("partial", "partial", "complete", 3, 2)}},
		{"partial", []*v1alpha1.Decision{decision("partial", "partial", "complete", 3, 2), decision("clear", "full", "complete", 3, 1)}},
	} {
		got := ""
		if d := telling(tc.decisions); d != nil {
			got = d.ID
		}
		if got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestFailuresWithoutAFaultAreAnError(t *testing.T) {
	for _, tc := range []struct {
		name   string
		result Result
		want   string
	}{
		{"none", Result{Live: &Live{Summary: Summary{Errors: 2, FirstError: "cut"}, Cut: 2}}, ""},
		{"round robin's are not the picker's",
			Result{Live: &Live{}, Comparisons: []Comparison{{RoundRobin: Summary{Errors: 1, FirstError: "late"}}}}, ""},
		{"in the live part", Result{Live: &Live{Summary: Summary{Errors: 3, FirstError: "cut"}, Cut: 2}},
			"1 requests through the picker failed without a fault that explains it; one of them: cut"},
		{"in a comparison", Result{Live: &Live{}, Comparisons: []Comparison{{Berth: Summary{Errors: 2, FirstError: "late"}}}},
			"2 requests through the picker failed without a fault that explains it; one of them: late"},
	} {
		got := ""
		if err := tc.result.unexplained(); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
