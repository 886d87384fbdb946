package enginesim

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// instantClock jumps to whatever time somebody waits for, so that a request takes no real time and exactly the model's.
type instantClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *instantClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *instantClock) At(t time.Time) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.now) {
		c.now = t
	}
	reached := make(chan time.Time, 1)
	reached <- c.now
	return reached, func() {}
}

// manualClock stands still until it is advanced.
type manualClock struct {
	mu      sync.Mutex
	now     time.Time
	waiting map[chan time.Time]time.Time
}

func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) At(t time.Time) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := make(chan time.Time, 1)
	if c.waiting == nil {
		c.waiting = map[chan time.Time]time.Time{}
	}
	c.waiting[reached] = t
	c.fire()
	return reached, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, reached)
	}
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

func (c *manualClock) fire() {
	for reached, t := range c.waiting {
		if !t.After(c.now) {
			reached <- c.now
			delete(c.waiting, reached)
		}
	}
}

var epoch = time.Unix(1_700_000_000, 250_000_000)

func instant() *instantClock { return &instantClock{now: epoch} }
func manual() *manualClock   { return &manualClock{now: epoch} }

// sim is a running engine and a client of its own.
type sim struct {
	*Server
	t      *testing.T
	client *http.Client
}

// run starts an engine and sees to it that its end leaves no goroutine behind.
func run(t *testing.T, cfg Config) *sim {
	t.Helper()
	before := runtime.NumGoroutine()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
		eventually(t, "all goroutines have returned", func() bool { return runtime.NumGoroutine() <= before })
	})
	return &sim{Server: s, t: t, client: &http.Client{Transport: transport}}
}

// send returns the response with its body still to read; the error is of the client.
func (s *sim) send(ctx context.Context, method, path, body string) (*http.Response, error) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "abc")
	return s.client.Do(req)
}

// do returns status and whole body of a response that must come.
func (s *sim) do(method, path, body string) (int, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	resp, err := s.send(ctx, method, path, body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("X-Sim-Engine"); got != s.cfg.Name {
		s.t.Errorf("%s %s: x-sim-engine is %q, want %q", method, path, got, s.cfg.Name)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(text)
}

// ok is do for a response that must be 200.
func (s *sim) ok(method, path, body string) string {
	s.t.Helper()
	status, text := s.do(method, path, body)
	if status != http.StatusOK {
		s.t.Fatalf("%s %s: status %d, want 200: %s", method, path, status, text)
	}
	return text
}

func (s *sim) stats() enginemodel.Stats {
	s.t.Helper()
	st, err := s.Stats()
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// limit is how long anything may take before a test gives up.
const limit = time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("after %v it is not so that %s", limit, what)
		}
	}
}
