package e2e

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A scriptedReplica does with each request what its header x-test-do says, so
// that a test can fail it at any point of a response:
//
//	answer       200
//	hold         200, when the gate opens
//	slow         as hold and then stream, which needs the gate to open twice
//	stream       200, one event, and another one when the gate opens
//	error        500
//	unavailable  503, and 200 for the request's second attempt
//	event        200, and an error event as the only one
//	reset        the connection is reset before the response
//	cut          200, one event; the connection is reset when the gate opens
//
// Everything else, such as its telemetry page, is not found.
type scriptedReplica struct {
	name    string
	address string
	gate    *gate
	server  *http.Server

	mu       sync.Mutex
	arrivals map[string]arrival // by x-request-id
}

// An arrival is what a replica knows of one request.
type arrival struct {
	// decision is what the request said it was placed by; empty if it was not.
	decision string
	// began and ended are when the response was; zero if it was not. gated is set
	// where it waited for the gate each time.
	began, ended time.Time
	gated        bool
}

// A gate holds responses back until it is opened. Those that come later wait for
// the next time.
type gate struct {
	mu   sync.Mutex
	open chan struct{}
	// tried has the requests that were answered 503 once.
	tried map[string]bool
}

// again reports whether the request was here before.
func (g *gate) again(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tried == nil {
		g.tried = map[string]bool{}
	}
	before := g.tried[id]
	g.tried[id] = true
	return before
}

func (g *gate) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
	return g.open
}

func (g *gate) letThrough() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != nil {
		close(g.open)
		g.open = nil
	}
}

func newScriptedReplica(t *testing.T, name string, g *gate) *scriptedReplica {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &scriptedReplica{name: name, address: l.Addr().String(), gate: g, arrivals: map[string]arrival{}}
	r.server = &http.Server{Handler: r}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.server.Serve(l)
	}()
	t.Cleanup(func() {
		g.letThrough()
		_ = r.server.Close()
		<-ended
	})
	return r
}

func (r *scriptedReplica) arrival(id string) (arrival, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.arrivals[id]
	return a, ok
}

func (r *scriptedReplica) note(id string, what func(*arrival)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.arrivals[id]
	what(&a)
	r.arrivals[id] = a
}

// ServeHTTP implements http.Handler.
func (r *scriptedReplica) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	do, id := req.Header.Get("X-Test-Do"), req.Header.Get("X-Request-Id")
	if do == "" {
		http.NotFound(w, req)
		return
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return
	}
	gate := r.gate.wait()
	r.note(id, func(a *arrival) { a.decision = req.Header.Get("X-Berth-Decision") })
	goesOn := func() bool {
		select {
		case <-gate:
			return true
		case <-req.Context().Done():
			return false
		}
	}
	w.Header().Set("X-Sim-Engine", r.name)
	if (do == "hold" || do == "slow") && !goesOn() {
		return
	}
	if do == "slow" {
		gate = r.gate.wait()
	}
	if do == "unavailable" && r.gate.again(id) {
		do = "answer"
	}
	r.note(id, func(a *arrival) { a.began, a.gated = time.Now(), do == "slow" })
	switch do {
	case "reset":
		reset(w)
		return
	case "error":
		w.WriteHeader(http.StatusInternalServerError)
	case "unavailable":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "event":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"no room\",\"type\":\"InternalServerError\",\"code\":503}}\n\ndata: [DONE]\n\n")
	case "stream", "slow", "cut":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\n")
		if http.NewResponseController(w).Flush() != nil || !goesOn() {
			return
		}
		if do == "cut" {
			reset(w)
			return
		}
		// The time is taken before the last byte, after which nobody waits.
		r.note(id, func(a *arrival) { a.ended = time.Now() })
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	default:
		r.note(id, func(a *arrival) { a.ended = time.Now() })
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}
}

// reset ends a connection by force, as the death of a process does.
func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
