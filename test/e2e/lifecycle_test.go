package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginemodel"
	"github.com/berth-dev/berth/internal/enginesim"
)

// oneAtATime is an engine that queues whatever comes while it works.
var oneAtATime = enginesim.Config{Engine: enginemodel.Config{MaxRunning: 1}}

func TestX14_AClientThatLeavesGivesItsUnitBack(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2 %v", h2), func(t *testing.T) {
			f := start(t, spec{engines: engines(1, oneAtATime)})
			c := client(t, h2)
			running := f.open(c, streams(8000), "running")
			if _, err := running.event(); err != nil {
				t.Fatal(err)
			}
			f.awaitInFlight(map[string]int{"e1": 1})

			// The engine is full, so this one waits for its first byte.
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			queued := f.request(ctx, http.MethodPost, completions, asks(1))
			queued.Header.Set("X-Request-Id", "queued")
			go func() {
				_, err := try(c, queued)
				left <- err
			}()
			eventually(t, "the engine queues the second request", func() bool { return f.holds(0, 1, 1) })
			f.awaitInFlight(map[string]int{"e1": 2})
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("the client that left got %v", err)
			}
			f.awaitInFlight(map[string]int{"e1": 1})
			eventually(t, "the engine has dropped it from its queue", func() bool { return f.holds(0, 1, 0) })
			if d := f.record("queued"); d.Outcome.Cause != "client_disconnect" {
				t.Errorf("outcome of the queued request %q, want client_disconnect", d.Outcome.Cause)
			}

			running.close()
			f.awaitInFlight(map[string]int{})
			eventually(t, "the engine has stopped the stream", func() bool { return f.holds(0, 0, 0) })
			if d := f.record("running"); d.Outcome.Cause != "aborted" || d.Acknowledgement.Acted != "confirmed" {
				t.Errorf("outcome of the stream %q, acted %q; want aborted and confirmed", d.Outcome.Cause, d.Acknowledgement.Acted)
			}

			if a := f.post(c, asks(1)); a.status != http.StatusOK {
				t.Errorf("the next request got %d: %s", a.status, a.body)
			}
		})
	}
}

// scrapedOnce keeps the picker from looking again at an engine that rests: what
// it learns of a death, it learns from requests.
var scrapedOnce = tree{"telemetry": tree{"hot": "1s", "warm": "1h", "idle": "1h"}}

// busy is an engine that always has a request of its own, so that an idle one is
// the better pick.
var busy = enginesim.Config{Background: enginesim.Load{Running: 1}}

func TestARefusedPickIsServedByAScreenedFallback(t *testing.T) {
	alone := enginesim.Config{Models: []string{"sim-model", "solo"}}
	f := start(t, spec{
		engines:   []enginesim.Config{alone, busy, busy, {}},
		fallbacks: 2,
		berth:     scrapedOnce,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			ready := false
			m[3].Ready = &ready
			return m
		},
	})
	f.engines[0].Die()
	// So that the answer is on its way for as long as the test looks.
	for _, e := range f.engines[1:3] {
		if err := e.SetFaults(enginesim.Faults{Hang: true}); err != nil {
			t.Fatal(err)
		}
	}
	s := f.open(f.h1, streams(2), "")
	if s.status != http.StatusOK || s.header.Get("X-Berth-Acted") != "overridden" {
		t.Errorf("status %d, acted %q; want 200 and overridden", s.status, s.header.Get("X-Berth-Acted"))
	}
	by := s.engine()
	if by != "e2" && by != "e3" {
		t.Fatalf("served by %q, want e2 or e3", by)
	}
	f.awaitInFlight(map[string]int{by: 1})
	for _, e := range f.engines[1:3] {
		if err := e.SetFaults(enginesim.Faults{}); err != nil {
			t.Fatal(err)
		}
	}
	if rest, err := s.rest(); err != nil || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v after %q", err, rest)
	}
	f.awaitInFlight(map[string]int{})
	d := f.record(s.decision())
	if d.Pick != "e1" || d.Acknowledgement.Served != by || d.Acknowledgement.Attempts != 2 || d.Outcome.Cause != "complete" {
		t.Errorf("pick %q, served %q at attempt %d, outcome %q; want e1, %s, 2, complete",
			d.Pick, d.Acknowledgement.Served, d.Acknowledgement.Attempts, d.Outcome.Cause, by)
	}
	if f.total() != 1 {
		t.Errorf("requests at the engines %v, want one in all", f.counts())
	}

	// Only the dead one serves this model: there is nobody to fall back to.
	before := f.counts()
	for _, body := range []string{`{"model":"solo","prompt":"hi","max_tokens":1}`, `{"model":"solo","prompt":"hi","stream":true}`} {
		a := f.post(f.h1, body)
		if a.status != http.StatusServiceUnavailable || a.engine() != "" {
			t.Errorf("status %d from %q, want 503 from nobody", a.status, a.engine())
		}
		d := f.record(a.decision())
		if d.Screened != 1 || d.Outcome.Cause != "upstream_error" || d.Acknowledgement.Acted != "unreported" {
			t.Errorf("screened %d, outcome %q, acted %q; want 1, upstream_error, unreported",
				d.Screened, d.Outcome.Cause, d.Acknowledgement.Acted)
		}
	}
	if after := f.counts(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("requests at the engines %v, then %v: a model was served by a replica that lacks it", before, after)
	}
	f.awaitInFlight(map[string]int{})
}

func TestAReplicaThatDiesIsAvoidedUntilItIsBack(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2 %v", h2), func(t *testing.T) {
			f := start(t, spec{engines: []enginesim.Config{{}, busy}})
			c := client(t, h2)
			s := f.open(c, streams(8000), "cut")
			if s.engine() != "e1" {
				t.Fatalf("served by %s, want e1, which is idle", s.engine())
			}
			if _, err := s.event(); err != nil {
				t.Fatal(err)
			}
			f.engines[0].Die()
			rest, err := s.rest()
			if err == nil || strings.Contains(rest, "[DONE]") {
				t.Errorf("the client saw a stream that ends well, with %q", rest)
			}
			f.awaitInFlight(map[string]int{})
			if d := f.record("cut"); d.Outcome.Cause != "aborted" || d.Acknowledgement.Served != "e1" {
				t.Errorf("outcome %q at %q, want aborted at e1", d.Outcome.Cause, d.Acknowledgement.Served)
			}

			eventually(t, "the first refused connection puts e1 last", func() bool { return f.replica("e1").Order == "last" })
			for range 20 {
				if a := f.post(c, asks(1)); a.status != http.StatusOK || a.engine() != "e2" {
					t.Errorf("status %d from %q, want 200 from e2", a.status, a.engine())
				}
			}
			eventually(t, "e1 is back", func() bool { return f.engines[0].Restart() == nil })
			eventually(t, "e1 has answered", func() bool { return f.replica("e1").Order == "normal" })
			eventually(t, "e1 serves again", func() bool { return f.post(c, asks(1)).engine() == "e1" })
		})
	}
}

// stopping begins to stop the picker; the channel is closed when it has stopped.
func (f *fleet) stopping() <-chan struct{} {
	f.t.Helper()
	stopped := make(chan struct{})
	picker := f.picker
	f.picker = nil
	go func() {
		defer close(stopped)
		picker.Stop()
	}()
	f.t.Cleanup(func() { <-stopped })
	eventually(f.t, "the picker takes no new connection", func() bool {
		c, err := net.Dial("tcp", f.extproc)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	eventually(f.t, "the gateway was told to open no new stream", func() bool {
		return f.envoy.stat("cluster.picker.upstream_cx_close_notify") > 0
	})
	return stopped
}

func TestAGracefulStopFinishesWhatRuns(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{})})
	hang := func(on bool) {
		if err := f.engines[0].SetFaults(enginesim.Faults{Hang: on}); err != nil {
			t.Fatal(err)
		}
	}
	hang(true)
	first, second := f.open(f.h1, streams(5), "first"), f.open(f.h2, streams(5), "second")
	stopped := f.stopping()
	for _, c := range f.clients() {
		for _, req := range []*http.Request{
			f.request(t.Context(), http.MethodPost, completions, asks(1)),
			f.request(t.Context(), http.MethodGet, "/v1/models", ""),
		} {
			if a := f.do(c, req); a.status != http.StatusInternalServerError || a.engine() != "" {
				t.Errorf("%s while the picker drains: status %d from %q, want 500 from nobody", req.Method, a.status, a.engine())
			}
		}
	}
	if n := f.total(); n != 2 {
		t.Errorf("%d requests reached the engine, want the 2 that were there before", n)
	}
	select {
	case <-stopped:
		t.Error("the picker stopped while it had streams")
	default:
	}
	hang(false)
	for _, s := range []*stream{first, second} {
		if rest, err := s.rest(); err != nil || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
			t.Errorf("a stream ended with %v after %q", err, rest)
		}
	}
	<-stopped
	for _, id := range []string{"first", "second"} {
		if d := f.record(id); d.Outcome.Cause != "complete" {
			t.Errorf("outcome of the %s stream %q, want complete", id, d.Outcome.Cause)
		}
	}
}

func TestTheDrainDeadlineCutsWhatIsLeft(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{}), berth: tree{"limits": tree{"drain": "700ms"}}})
	if err := f.engines[0].SetFaults(enginesim.Faults{Hang: true}); err != nil {
		t.Fatal(err)
	}
	s := f.open(f.h1, streams(5), "running")
	// A request that is still being uploaded has no decision yet.
	body, rest := io.Pipe()
	defer func() { _ = rest.Close() }()
	go func() { _, _ = io.WriteString(rest, `{"model":"sim-model","pro`) }()
	upload := f.request(t.Context(), http.MethodPost, completions, "")
	upload.Header.Set("Content-Type", "application/json")
	upload.Body, upload.ContentLength = body, -1
	refused := make(chan answer, 1)
	go func() {
		a, err := try(f.h2, upload)
		if err != nil {
			a.body = err.Error()
		}
		refused <- a
	}()
	eventually(t, "the picker has both requests", func() bool { return f.envoy.asking() == 2 })
	<-f.stopping()
	if got, err := s.rest(); err == nil {
		t.Errorf("the stream ended well, with %q", got)
	}
	if d := f.record("running"); d.Outcome.Cause != "shutdown" {
		t.Errorf("outcome %q, want shutdown", d.Outcome.Cause)
	}
	expectRefusal(t, <-refused, 503, "shutting_down")
	if n := f.total(); n != 1 {
		t.Errorf("%d requests reached the engine, want the stream alone", n)
	}
	eventually(t, "the engine's slot is free again", func() bool { return f.holds(0, 0, 0) })
}

func TestX24_AStopIsNotHeldUpByIdleStreams(t *testing.T) {
	const each = 25
	f := start(t, spec{engines: engines(2, enginesim.Config{}), berth: tree{"limits": tree{"drain": "3s"}}})
	f.hang(true)
	var running []*stream
	for range each {
		running = append(running, f.open(f.h1, streams(2), ""))
	}
	refused := make(chan answer, each)
	for range each {
		body, rest := io.Pipe()
		t.Cleanup(func() { _ = rest.Close() })
		go func() { _, _ = io.WriteString(rest, `{"model":"sim-model","pro`) }()
		upload := f.request(t.Context(), http.MethodPost, completions, "")
		upload.Body, upload.ContentLength = body, -1
		go func() {
			a, err := try(f.h1, upload)
			if err != nil {
				a.body = err.Error()
			}
			refused <- a
		}()
	}
	eventually(t, "the picker has all requests", func() bool { return f.envoy.asking() == 2*each })
	stopped := f.stopping()
	f.hang(false)
	for _, s := range running {
		if rest, err := s.rest(); err != nil || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
			t.Errorf("a stream that was under way ended with %v after %q", err, rest)
		}
	}
	await(t, "the picker has stopped", stopped)
	for range each {
		expectRefusal(t, <-refused, 503, "shutting_down")
	}
}
