package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginemodel"
	"github.com/berth-dev/berth/internal/enginesim"
)

// fast is an engine that answers in about a millisecond.
var fast = enginesim.Config{Speed: 20}

// flood sends n requests from so many clients at a time and returns the answers,
// in no order.
func (f *fleet) flood(c *http.Client, clients, n int, body string) []answer {
	f.t.Helper()
	var (
		next    atomic.Int64
		mu      sync.Mutex
		answers []answer
		errs    []error
		all     sync.WaitGroup
	)
	for range clients {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				a, err := try(c, f.request(f.t.Context(), http.MethodPost, completions, body))
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					answers = append(answers, a)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
	return answers
}

// otherGoroutines are all but those of connections to servers of the test's own
// process, which the gateway keeps open as it likes.
func otherGoroutines() int {
	n := 0
	for _, stack := range goroutines() {
		if !strings.Contains(stack, "net/http.(*conn") && !strings.Contains(stack, "net/http.(*connReader") {
			n++
		}
	}
	return n
}

func TestParallelClientsAreSpreadOverEqualReplicas(t *testing.T) {
	const clients, each = 64, 20
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2 %v", h2), func(t *testing.T) {
			f := start(t, spec{engines: engines(4, fast)})
			f.post(f.h1, asks(1)) // Envoy has its connection to the picker
			f.h1.CloseIdleConnections()
			f.awaitInFlight(map[string]int{})
			base := otherGoroutines()

			c := client(t, h2)
			for _, a := range f.flood(c, clients, clients*each, asks(4)) {
				if a.status != http.StatusOK || a.header.Get("X-Berth-Acted") != "confirmed" {
					t.Fatalf("status %d, acted %q, %q; want 200 and confirmed", a.status, a.header.Get("X-Berth-Acted"), a.body)
				}
			}
			if n := f.total(); n != clients*each+1 {
				t.Errorf("%d requests at the engines, want %d", n, clients*each+1)
			}
			for i, n := range f.counts() {
				if share := float64(n) / (clients * each); share < 0.10 || share > 0.45 {
					t.Errorf("e%d served %.0f %% of the requests, want 10 to 45 of equal replicas: %v", i+1, 100*share, f.counts())
				}
			}
			f.awaitInFlight(map[string]int{})
			if got := f.metric("berth_inflight_requests"); got != 0 {
				t.Errorf("berth_inflight_requests %v, want 0", got)
			}

			// The records say of each replica what was counted there.
			recorded := make([]int, len(f.engines))
			for _, d := range f.endedRecords(clients*each + 1) {
				var i int
				if _, err := fmt.Sscanf(d.Acknowledgement.Served, "e%d", &i); err != nil {
					t.Fatalf("decision %s: served by %q", d.ID, d.Acknowledgement.Served)
				}
				recorded[i-1]++
			}
			if fmt.Sprint(recorded) != fmt.Sprint(f.counts()) {
				t.Errorf("recorded as served %v, counted at the engines %v", recorded, f.counts())
			}

			c.CloseIdleConnections()
			http.DefaultClient.CloseIdleConnections()
			eventually(t, "as many goroutines as before", func() bool { return otherGoroutines() <= base+4 })
		})
	}
}

// crowded is an engine whose batch is full, with five requests waiting; its own
// requests are short, so that those of others get their turn.
var crowded = enginesim.Config{
	Speed:       20,
	MaxModelLen: 128,
	Engine:      enginemodel.Config{MaxRunning: 4, Blocks: 64},
	Background:  enginesim.Load{Running: 4, Waiting: 5},
}

func TestR4_AnEndpointThatNeverAnsweredDoesNotWinByItsEmptiness(t *testing.T) {
	ghost := closedPort(t)
	f := start(t, spec{
		engines: engines(2, crowded),
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			return append([]v1alpha1.StaticEndpoint{member("ghost", ghost)}, m...)
		},
	})
	const n = 300
	for _, a := range f.flood(f.h1, 16, n, asks(1)) {
		if a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	if f.total() != n {
		t.Errorf("%d requests at the engines, want %d", f.total(), n)
	}
	picks := map[string]int{}
	for _, d := range f.endedRecords(n) {
		picks[d.Pick]++
		if d.Outcome.Cause != "complete" {
			t.Errorf("decision %s: outcome %q, want complete", d.ID, d.Outcome.Cause)
		}
		if d.Screened != 3 {
			t.Errorf("decision %s: %d screened, want 3: unknown is not unhealthy", d.ID, d.Screened)
		}
	}
	if picks["ghost"] != 0 {
		t.Errorf("picks %v, want none of the ghost while others are eligible", picks)
	}
}

func TestR5_AnEngineThatDiedIdleIsLeftAfterItsFirstRefusal(t *testing.T) {
	f := start(t, spec{engines: []enginesim.Config{{}, crowded, crowded}, berth: scrapedOnce})
	// Its last page says that it is idle, and stays fresh for an hour.
	f.engines[0].Die()
	const clients, n = 8, 100
	refused := 0
	for _, a := range f.flood(f.h1, clients, n, asks(1)) {
		switch a.status {
		case http.StatusOK:
		case http.StatusServiceUnavailable:
			refused++
		default:
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if refused == 0 || refused > clients {
		t.Errorf("%d of %d requests were refused, want 1 to %d: no more than were under way at the first refusal", refused, n, clients)
	}
	if got := f.replica("e1").Order; got != "last" {
		t.Errorf("e1 is ordered %q after it refused a connection, want last", got)
	}
	all := f.endedRecords(n)
	first := -1
	for i, d := range all {
		if d.Outcome.Cause == "upstream_error" && (first < 0 || d.Outcome.EndedAt.Before(all[first].Outcome.EndedAt)) {
			first = i
		}
	}
	if first < 0 {
		t.Fatal("no decision has the outcome upstream_error")
	}
	for _, d := range all {
		if d.Pick == "e1" && d.Time.After(all[first].Outcome.EndedAt) {
			t.Errorf("decision %s picked e1, %v after its first refusal", d.ID, d.Time.Sub(all[first].Outcome.EndedAt))
		}
	}

	for _, a := range f.flood(f.h2, clients, 300, asks(1)) {
		if a.status != http.StatusOK {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	for _, d := range f.endedRecords(n + 300)[n:] {
		if d.Pick == "e1" {
			t.Errorf("decision %s picked e1, long after its first refusal", d.ID)
		}
	}
}

func TestA5_PicksSucceedWhileEveryScrapeHangs(t *testing.T) {
	const n = 1000
	f := start(t, spec{
		engines: engines(4, fast),
		prepare: func(engines []*enginesim.Server) {
			for _, e := range engines {
				if err := e.SetFaults(enginesim.Faults{PageHang: true}); err != nil {
					t.Fatal(err)
				}
			}
		},
		unscraped: true,
	})
	rungs := map[string]int{}
	for _, a := range f.flood(f.h1, 16, n, asks(1)) {
		if a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		rungs[a.header.Get("X-Berth-Rung")]++
	}
	if rungs["local"]+rungs["spread"] != n {
		t.Errorf("rungs %v, want local or spread %d times", rungs, n)
	}
	if f.total() != n {
		t.Errorf("%d requests at the engines, want %d", f.total(), n)
	}
	for _, r := range f.replicas() {
		if state := r.Fields["queueDepth"].State; state == v1alpha1.Fresh {
			t.Errorf("%s: queueDepth is %s although no page was ever read", r.Replica.Name, state)
		}
	}
}

func TestA7_TheRungFollowsWhatTelemetryIsLeft(t *testing.T) {
	const often = "200ms"
	f := start(t, spec{
		engines: engines(4, enginesim.Config{}),
		berth:   tree{"telemetry": tree{"hot": often, "warm": often, "idle": often, "timeout": "500ms"}},
	})
	hang := func(on bool, engines ...*enginesim.Server) {
		for _, e := range engines {
			if err := e.SetFaults(enginesim.Faults{PageHang: on}); err != nil {
				t.Fatal(err)
			}
		}
	}
	comesTo := func(rung string) {
		t.Helper()
		eventually(t, "requests are placed on rung "+rung, func() bool {
			a := f.post(f.h1, asks(1))
			if a.status != http.StatusOK {
				t.Fatalf("on the way to rung %s: status %d, %s", rung, a.status, a.body)
			}
			return a.header.Get("X-Berth-Rung") == rung
		})
	}
	comesTo("full")
	hang(true, f.engines[0])
	comesTo("partial")
	hang(true, f.engines...)
	comesTo("local")
	hang(false, f.engines[:2]...)
	comesTo("partial")
	hang(false, f.engines...)
	comesTo("full")
}
