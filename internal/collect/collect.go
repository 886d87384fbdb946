package collect

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Options configure a Collector. Zero members take the defaults.
type Options struct {
	// Hot, Warm and Idle are the cadences; 200 ms, 1 s and 5 s.
	Hot, Warm, Idle time.Duration
	// Timeout bounds one page, from dialling to its last byte; 1 s.
	Timeout time.Duration
	// MaxPage bounds a page in decoded bytes; 8 MiB.
	MaxPage int64
	// Workers is the number of scrapes in flight at once; 8. Two more read the
	// exporters, if there are any.
	Workers int
	// Profiles are the engines that can be read. Required.
	Profiles *engine.Set
	// Exporters are read beside the engines; none by default. Where two know of
	// the same pod, the first that has a value counts.
	Exporters []Exporter
	// Clock must not go back; the default follows the monotonic clock.
	Clock telemetry.Clock
	// NewTimer makes the timer that the scheduler sleeps on; a time.Timer.
	NewTimer func() Timer
	// Logger hears of endpoints whose scrapes begin to fail, fail for another
	// reason, or succeed again; silent by default.
	Logger *zap.Logger
	// Observe hears of every scrape: the name of the engine or of the exporter
	// ("unknown" before it is known), "ok" or the reason for the failure, and how
	// long it took. It is called from several goroutines and must not block.
	Observe func(engine, result string, took time.Duration)
}

// Exporter is a page of GPUs that tells of the pods of a node.
type Exporter struct {
	// Profile is one whose role is exporter.
	Profile *engine.Profile
	Address netip.AddrPort
	// Scheme is http or https; empty is that of the profile, or else http.
	Scheme string
}

// Timer is what the scheduler needs of a time.Timer.
type Timer interface {
	// Reset makes the timer ring once, after d, instead of at any earlier time.
	Reset(d time.Duration)
	// C delivers the ring.
	C() <-chan time.Time
	Stop()
}

type realTimer struct{ *time.Timer }

func newRealTimer() Timer                 { return realTimer{time.NewTimer(time.Hour)} }
func (t realTimer) Reset(d time.Duration) { t.Timer.Reset(d) }
func (t realTimer) C() <-chan time.Time   { return t.Timer.C }
func (t realTimer) Stop()                 { t.Timer.Stop() }

func monotonic() telemetry.Clock {
	start := time.Now()
	at := telemetry.At(start)
	return func() telemetry.Instant { return at.Add(time.Since(start)) }
}

func (o Options) withDefaults() Options {
	setDefault(&o.Hot, 200*time.Millisecond)
	setDefault(&o.Warm, time.Second)
	setDefault(&o.Idle, 5*time.Second)
	setDefault(&o.Timeout, time.Second)
	setDefault(&o.MaxPage, 8<<20)
	setDefault(&o.Workers, 8)
	if o.Clock == nil {
		o.Clock = monotonic()
	}
	if o.NewTimer == nil {
		o.NewTimer = newRealTimer
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Observe == nil {
		o.Observe = func(string, string, time.Duration) {}
	}
	return o
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Collector scrapes the endpoints of a registry while Run runs.
type Collector struct {
	opts Options
}

// New returns a collector. Options.Profiles must be set.
func New(opts Options) *Collector {
	return &Collector{opts: opts.withDefaults()}
}

// Run scrapes until ctx ends, and returns when every scrape has ended and every
// connection is closed. It is called once.
func (c *Collector) Run(ctx context.Context, registry *pool.Registry) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := newClients(&c.opts)
	table := newTable(c.opts.Exporters)
	s := newScheduler(c.opts, table)

	var workers sync.WaitGroup
	for range cap(s.jobs) {
		workers.Go(func() {
			w := newWorker(c.opts, clients, table)
			for j := range s.jobs {
				s.results <- result{j.target, w.scrape(j)}
			}
		})
	}
	defer registry.Watch(s.inbox.replace)()
	s.run(ctx)
	cancel()
	close(s.jobs)
	workers.Wait()
	s.close()
}
