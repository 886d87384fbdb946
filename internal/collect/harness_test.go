package collect

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// fakeClock is a clock with one timer, both moved by the test.
type fakeClock struct {
	mu       sync.Mutex
	now      telemetry.Instant
	deadline telemetry.Instant
	ring     chan time.Time
	// sleeps are the durations that the scheduler lies down for.
	sleeps chan time.Duration
}

func newFakeClock() *fakeClock {
	return &fakeClock{
		now:    telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		ring:   make(chan time.Time, 1),
		sleeps: make(chan time.Duration, 1000),
	}
}

func (c *fakeClock) Now() telemetry.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Reset(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ring:
	default:
	}
	c.deadline = c.now.Add(d)
	if d <= 0 {
		c.fire()
	}
	c.sleeps <- d
}

func (c *fakeClock) C() <-chan time.Time { return c.ring }
func (c *fakeClock) Stop()               {}

func (c *fakeClock) fire() {
	c.deadline = 0
	c.ring <- c.now.Time()
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	if c.deadline != 0 && c.deadline <= c.now {
		c.fire()
	}
}

// fleet is a collector at work on a registry.
type fleet struct {
	t        *testing.T
	clock    *fakeClock
	registry *pool.Registry
	results  chan string
	stop     func()
	// lying is how long the scheduler has lain down for, if settle has seen it.
	lying *time.Duration
}

func profiles(t *testing.T) *engine.Set {
	t.Helper()
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// start runs a collector on a fake clock.
func start(t *testing.T, change func(*Options), specs ...pool.Spec) *fleet {
	t.Helper()
	f := &fleet{t: t, clock: newFakeClock(), registry: pool.NewRegistry("test/pool", false), results: make(chan string, 10000)}
	opts := Options{
		Profiles: profiles(t),
		Timeout:  5 * time.Second,
		Clock:    f.clock.Now,
		NewTimer: func() Timer { return f.clock },
		Observe:  func(_, result string, _ time.Duration) { f.results <- result },
	}
	if change != nil {
		change(&opts)
	}
	f.update(specs...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		New(opts).Run(ctx, f.registry)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		wait(t, done, "Run to return")
	})
	t.Cleanup(f.stop)
	return f
}

func (f *fleet) update(specs ...pool.Spec) {
	f.t.Helper()
	if err := f.registry.Update("test/pool", specs); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) endpoint(i int) *pool.Endpoint { return f.registry.Set().Endpoints[i] }

// scrape sleeps as long as the scheduler does and waits for the scrape that
// follows. It is for fleets of one endpoint. slept is the time since the last.
func (f *fleet) scrape() (slept time.Duration, result string) {
	f.t.Helper()
	slept = f.settle()
	f.advance(slept)
	for {
		select {
		case result = <-f.results:
			return slept, result
		case more := <-f.clock.sleeps:
			select {
			case result = <-f.results:
				// The scheduler lies down after the scrape.
				f.lying = &more
				return slept, result
			default:
			}
			// It was woken in between and has lain down again.
			f.clock.Advance(more)
			slept += more
		case <-time.After(patience):
			f.t.Fatal("waited in vain for a scrape")
		}
	}
}

// advance lets time pass while the scheduler lies down.
func (f *fleet) advance(d time.Duration) {
	f.lying = nil
	f.clock.Advance(d)
}

// settle waits for the end of the turn, slow pages included, and returns how long
// the scheduler lies down for.
func (f *fleet) settle() time.Duration {
	f.t.Helper()
	if f.lying == nil {
		slept := wait(f.t, f.clock.sleeps, "the scheduler to lie down")
		f.lying = &slept
	}
	return *f.lying
}

func (f *fleet) mustScrape(want string) {
	f.t.Helper()
	if _, got := f.scrape(); got != want {
		f.t.Fatalf("scrape: %s, want %s", got, want)
	}
}

// turns scrapes until what is waited for has come true.
func (f *fleet) turns(what string, until func() bool) {
	f.t.Helper()
	for range 10000 {
		if until() {
			return
		}
		f.clock.Advance(f.newestSleep(what))
	}
	f.t.Fatalf("waited in vain for %s", what)
}

// newestSleep is how long the scheduler lies down for. With several endpoints it
// has lain down and been woken since it was last asked.
func (f *fleet) newestSleep(what string) time.Duration {
	f.t.Helper()
	slept := wait(f.t, f.clock.sleeps, what)
	for {
		select {
		case slept = <-f.clock.sleeps:
		default:
			return slept
		}
	}
}

// see scrapes until there was this result.
func (f *fleet) see(want string) {
	f.t.Helper()
	f.turns(want, func() bool {
		for {
			select {
			case got := <-f.results:
				if got == want {
					return true
				}
			default:
				return false
			}
		}
	})
}

// refreshed scrapes until all but so many endpoints were scraped anew.
func (f *fleet) refreshed(but int) {
	f.t.Helper()
	began := f.clock.Now()
	f.turns("the endpoints to be scraped", func() bool {
		old := 0
		for _, e := range f.registry.Set().Endpoints {
			if s := e.Snapshot(); s == nil || s.ScrapedAt <= began {
				old++
			}
		}
		return old <= but
	})
}

// fakeEngine is an HTTP server whose handler can be exchanged.
type fakeEngine struct {
	*httptest.Server
	handler atomic.Pointer[http.HandlerFunc]
	// closed hears of connections that were closed.
	closed chan struct{}

	mu       sync.Mutex
	requests []string
	running  int
	most     int
}

func newFakeEngine(t testing.TB, handler http.HandlerFunc) *fakeEngine {
	t.Helper()
	e := newStoppedEngine(t, handler)
	e.Start()
	return e
}

func newStoppedEngine(t testing.TB, handler http.HandlerFunc) *fakeEngine {
	t.Helper()
	e := &fakeEngine{closed: make(chan struct{}, 10000)}
	e.serve(handler)
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.requests = append(e.requests, r.URL.Path)
		e.running++
		e.most = max(e.most, e.running)
		e.mu.Unlock()
		defer func() {
			e.mu.Lock()
			e.running--
			e.mu.Unlock()
		}()
		(*e.handler.Load())(w, r)
	}))
	e.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			e.closed <- struct{}{}
		}
	}
	t.Cleanup(e.Close)
	return e
}

func (e *fakeEngine) serve(handler http.HandlerFunc) { e.handler.Store(&handler) }

func (e *fakeEngine) count(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, p := range e.requests {
		if p == path {
			n++
		}
	}
	return n
}

// atOnce is how many requests there were at the same time, at most.
func (e *fakeEngine) atOnce() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.most
}

func (e *fakeEngine) address() netip.AddrPort {
	return netip.MustParseAddrPort(e.Listener.Addr().String())
}

func (e *fakeEngine) spec(name string) pool.Spec {
	return pool.Spec{Name: name, Address: e.address(), Engine: "vllm", Ready: true}
}

// said is what a fake vLLM answers with.
type said struct {
	waiting, start  string
	version, models string
}

var calm = said{waiting: "0", start: "1.7e9", version: "0.32.0", models: `[{"id":"m","owned_by":"vllm","max_model_len":8192}]`}

func (s said) page() string {
	return "vllm:num_requests_waiting " + s.waiting + "\nvllm:num_requests_running 0\nprocess_start_time_seconds " + s.start + "\n"
}

func (s said) handle(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		_, _ = w.Write([]byte(s.page()))
	case "/version":
		_, _ = w.Write([]byte(`{"version":"` + s.version + `"}`))
	case "/v1/models":
		_, _ = w.Write([]byte(`{"data":` + s.models + `}`))
	default:
		http.NotFound(w, r)
	}
}

// text answers every page alike.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}
