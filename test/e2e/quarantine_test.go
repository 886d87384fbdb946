package e2e

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

// A failing replica is one whose requests fail.
type failing struct {
	name     string
	failures []time.Time // when each was sent
	// between is how many requests others have served since the latest failure.
	between int
}

// failed checks a further failure against what quarantine promises.
func (r *failing) failed(t *testing.T, sent time.Time, probeAfter time.Duration) {
	t.Helper()
	now := time.Now()
	if n := len(r.failures); n >= 3 {
		// It was put away by the end of the request before, which is after that was
		// sent.
		if early := r.failures[n-1].Add(probeAfter); now.Before(early) {
			t.Errorf("%s got its request %d only %v after the one before, want %v", r.name, n+1, now.Sub(r.failures[n-1]), probeAfter)
		}
		if r.between == 0 {
			t.Errorf("%s got two requests one after the other, while it was in quarantine", r.name)
		}
	}
	r.failures = append(r.failures, sent)
	r.between = 0
}

// quarantinedReplicas has replicas fail requests: one answers 500 at once, and
// looks idle for it; one refuses connections, while its telemetry goes on.
func quarantinedReplicas(t *testing.T, binary string) {
	const probeAfter = 500 * time.Millisecond
	closed, refusing := boundPort(t)
	f := start(t, spec{
		engines: engines(4, enginesim.Config{Speed: 4}),
		binary:  binary,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			telemetry := m[1].Port
			m[1] = member("e2", refusing)
			m[1].Metrics = &v1alpha1.EndpointMetrics{Port: &telemetry}
			return m
		},
		berth: tree{
			"screening": tree{"quarantine": tree{"failures": 3, "probeAfter": probeAfter.String(), "maxShare": 0.5}},
			"telemetry": tree{"hot": "100ms", "warm": "100ms", "idle": "200ms"},
		},
	})
	eventually(t, "every replica has answered", func() bool {
		for _, r := range f.replicas() {
			if r.Order != "normal" {
				return false
			}
		}
		return true
	})
	events := func(event string) int { return int(f.metric(`berth_quarantines_total{event="` + event + `"}`)) }

	f.fault(0, enginesim.Faults{RefuseStatus: 500})
	t.Run("after three failures they get one request at a time, and rarely", func(t *testing.T) {
		answers500, refuses := &failing{name: "e1"}, &failing{name: "e2"}
		eventually(t, "both have been tried again twice", func() bool {
			sent := time.Now()
			switch a := f.post(f.h1, asks(1)); {
			case a.status == http.StatusOK && (a.engine() == "e3" || a.engine() == "e4"):
				answers500.between++
				refuses.between++
			case a.status == http.StatusInternalServerError && a.engine() == "e1":
				answers500.failed(t, sent, probeAfter)
				refuses.between++
			case a.status == http.StatusServiceUnavailable && a.engine() == "" && a.header.Get("X-Berth-Reason") == "":
				refuses.failed(t, sent, probeAfter)
				answers500.between++
			default:
				t.Fatalf("status %d from %q: %s", a.status, a.engine(), a.body)
			}
			return len(answers500.failures) >= 5 && len(refuses.failures) >= 5
		})
		if begun, ended := events("begun"), events("ended"); begun != 2 || ended != 0 {
			t.Errorf("%d quarantines have begun and %d ended, want 2 and none", begun, ended)
		}
		if n := f.metric(`berth_replicas{state="quarantined"}`); n > 2 {
			t.Errorf("%v replicas in quarantine, want at most the 2 that fail", n)
		}
	})

	t.Run("one request tries, however many come", func(t *testing.T) {
		f.fault(0, enginesim.Faults{Hang: true})
		answers := make(chan answer, 100)
		asked := 0
		send := func() {
			asked++
			req := f.request(t.Context(), http.MethodPost, completions, asks(1))
			go func() {
				a, err := try(f.h2, req)
				if err != nil {
					a.body = err.Error()
				}
				answers <- a
			}()
		}
		probing := func() bool { return f.holds(0, 1, 0) || f.holds(0, 0, 1) }
		// The one that tries waits; the others are answered.
		eventually(t, "the probe is under way", func() bool {
			if probing() {
				return true
			}
			send()
			eventually(t, "the request is answered, or it is the probe", func() bool { return len(answers) == asked || probing() })
			return false
		})
		// Now the others stand still, too, and are soon much busier than e1.
		f.fault(2, enginesim.Faults{Hang: true})
		f.fault(3, enginesim.Faults{Hang: true})
		before, done := f.counts(), len(answers)
		const crowd = 40
		for range crowd {
			send()
		}
		eventually(t, "all have come to a replica, or were answered", func() bool {
			n := len(answers) - done
			for i, served := range f.counts() {
				n += served - before[i]
			}
			return n >= crowd
		})
		if n := f.counts()[0] - before[0]; n != 0 {
			t.Errorf("%d more requests reached e1 during its probe", n)
		}
		f.fault(2, enginesim.Faults{})
		f.fault(3, enginesim.Faults{})
		if a := f.post(f.h1, asks(1)); a.decision() != "" && a.status == http.StatusOK {
			if out := f.record(a.decision()).ScreenedOut["quarantine"]; out < 1 || out > 2 {
				t.Errorf("%d replicas are left out for quarantine, want 1 or 2", out)
			}
		}

		f.fault(0, enginesim.Faults{})
		for range asked {
			if a := <-answers; a.status != http.StatusOK && a.status != http.StatusServiceUnavailable {
				t.Errorf("status %d, %s", a.status, a.body)
			}
		}
		eventually(t, "e1 is out of quarantine", func() bool { return events("ended") == 1 })
		n := served(f.engines[0])
		eventually(t, "e1 serves as others do", func() bool { f.post(f.h1, asks(1)); return served(f.engines[0]) >= n+3 })
	})

	t.Run("one that takes connections again comes back", func(t *testing.T) {
		listenOn(f.t, closed, f.engines[1]) // to the end of all of this
		seen := 0
		eventually(t, "e2 serves as others do", func() bool {
			if f.post(f.h1, asks(1)).engine() == "e2" {
				seen++
			}
			return seen >= 3
		})
		if begun, ended := events("begun"), events("ended"); begun != 2 || ended != 2 {
			t.Errorf("%d quarantines have begun and %d ended, want 2 each", begun, ended)
		}
	})

	t.Run("A12 what a client did wrong counts for nothing", func(t *testing.T) {
		for _, status := range []int{400, 404, 413, 422, 429} {
			for i := range f.engines {
				f.fault(i, enginesim.Faults{RefuseStatus: status})
			}
			for range 20 {
				if a := f.post(f.h1, asks(1)); a.status != status || a.engine() == "" {
					t.Fatalf("status %d from %q, want %d from an engine", a.status, a.engine(), status)
				}
			}
		}
		f.awaitInFlight(map[string]int{})
		if n := events("begun"); n != 2 {
			t.Errorf("%d quarantines have begun, want the 2 of before", n)
		}
	})

	t.Run("where all fail, half stay", func(t *testing.T) {
		for i := range f.engines {
			f.fault(i, enginesim.Faults{RefuseStatus: 500})
		}
		most, left := 0, false
		asked := f.total()
		eventually(t, "the most that may be are in quarantine, and of others it is known", func() bool {
			a := f.post(f.h1, asks(1))
			if a.status != http.StatusInternalServerError || a.engine() == "" {
				t.Fatalf("status %d from %q, %s; want the 500 of a replica", a.status, a.engine(), a.body)
			}
			asked++
			d := f.record(a.decision())
			most = max(most, d.ScreenedOut["quarantine"])
			if d.Screened < 2 || d.ScreenedOut["quarantine"] > 2 {
				t.Fatalf("%d of 4 replicas are left, %v are out; want half", d.Screened, d.ScreenedOut)
			}
			for _, c := range d.Candidates {
				left = left || c.Quarantined && c.RemovedBy == ""
			}
			return most == 2 && left
		})
		if n := f.total(); n != asked {
			t.Errorf("%d requests at the engines, want %d", n, asked)
		}
	})

	t.Run("a pool of one is never emptied", func(t *testing.T) {
		f.writePool(f.members[2:3])
		eventually(t, "the pool is e3", func() bool { return len(f.replicas()) == 1 })
		before := served(f.engines[2])
		for range 10 {
			if a := f.post(f.h1, asks(1)); a.status != http.StatusInternalServerError || a.engine() != "e3" {
				t.Errorf("status %d from %q, %s; want the 500 of e3", a.status, a.engine(), a.body)
			}
		}
		f.fault(2, enginesim.Faults{})
		if a := f.post(f.h1, asks(1)); a.status != http.StatusOK || a.engine() != "e3" {
			t.Errorf("status %d from %q, want 200 from e3", a.status, a.engine())
		}
		if n := served(f.engines[2]) - before; n != 11 {
			t.Errorf("%d requests reached e3, want 11", n)
		}
	})
	f.awaitInFlight(map[string]int{})
}

// listenOn has a bound socket take connections, for an engine behind it.
func listenOn(t *testing.T, fd int, engine *enginesim.Server) {
	t.Helper()
	if err := syscall.Listen(fd, 128); err != nil {
		t.Fatal(err)
	}
	copied, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(copied), "listener")
	l, err := net.FileListener(file)
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine.Addr()})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
}
