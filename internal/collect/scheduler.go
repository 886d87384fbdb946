package collect

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// scheduler decides which endpoint is scraped when. Only its own goroutine
// touches it, apart from the inbox and the two channels.
type scheduler struct {
	opts    Options
	client  *client
	inbox   *inbox
	jobs    chan job
	results chan result

	targets map[*pool.Live]*target
	due     dueHeap
	// ready and slow are due and wait for a worker; slow are those whose last
	// failure was slow.
	ready, slow queue
	// free is the number of idle workers, slowRunning how many work on a slow
	// target.
	free, slowRunning int
}

// target is one endpoint under the scheduler.
type target struct {
	endpoint *pool.Endpoint
	// at is when it is due; index its place in the heap, -1 outside.
	at    telemetry.Instant
	index int
	// running: a worker has it; cancel ends that.
	running bool
	cancel  context.CancelFunc
	gone    bool
	// again: woken while running, perhaps after the interval was chosen.
	again bool

	scrapes            uint64
	lastStart, lastEnd telemetry.Instant
	// failures in a row; wasSlow and reached are of the last one.
	failures         int
	wasSlow, reached bool
	lastReason       string

	// memory belongs to the worker while the target is running.
	memory memory

	// woken: the target is in the inbox already. reporting: the worker itself
	// is about to report a refusal, whose wake would only lead back here.
	woken, reporting atomic.Bool
}

// job is one scrape. The endpoint is that of the time of dispatch.
type job struct {
	ctx      context.Context
	target   *target
	endpoint *pool.Endpoint
}

type result struct {
	target *target
	report
}

// inbox is what other goroutines tell the scheduler: the newest set and the
// endpoints that were woken. Putting something in never blocks for long.
type inbox struct {
	set    atomic.Pointer[pool.Set]
	mu     sync.Mutex
	woken  []*target
	signal chan struct{}
}

func (in *inbox) replace(set *pool.Set) {
	in.set.Store(set)
	in.ring()
}

func (in *inbox) wake(t *target) {
	if t.reporting.Load() || !t.woken.CompareAndSwap(false, true) {
		return
	}
	in.mu.Lock()
	in.woken = append(in.woken, t)
	in.mu.Unlock()
	in.ring()
}

func (in *inbox) ring() {
	select {
	case in.signal <- struct{}{}:
	default:
	}
}

func (in *inbox) takeWoken() []*target {
	in.mu.Lock()
	defer in.mu.Unlock()
	woken := in.woken
	in.woken = nil
	return woken
}

func newScheduler(opts Options, client *client) *scheduler {
	return &scheduler{
		opts:    opts,
		client:  client,
		inbox:   &inbox{signal: make(chan struct{}, 1)},
		jobs:    make(chan job, opts.Workers),
		results: make(chan result, opts.Workers),
		targets: map[*pool.Live]*target{},
		free:    opts.Workers,
	}
}

func (s *scheduler) run(ctx context.Context) {
	timer := s.opts.NewTimer()
	defer timer.Stop()
	defer s.drop()
	for {
		s.dispatch(ctx)
		// Targets that wait for a worker need no timer: a result will come.
		if len(s.due) > 0 {
			timer.Reset(max(0, s.due[0].at.Sub(s.opts.Clock())))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		case r := <-s.results:
			s.finish(r)
		case <-s.inbox.signal:
			if set := s.inbox.set.Swap(nil); set != nil {
				s.replace(set)
			}
			for _, t := range s.inbox.takeWoken() {
				t.woken.Store(false)
				s.wake(t)
			}
		}
	}
}

// drop cancels what runs when the scheduler ends.
func (s *scheduler) drop() {
	for _, t := range s.targets {
		s.remove(t)
	}
}

// replace follows the pool to its newest set.
func (s *scheduler) replace(set *pool.Set) {
	now := s.opts.Clock()
	kept := make(map[*pool.Live]*target, len(set.Endpoints))
	for _, e := range set.Endpoints {
		t := s.targets[e.Live]
		if t == nil {
			t = &target{at: now.Add(s.firstDelay(e)), index: -1}
			e.OnWake(func() { s.inbox.wake(t) })
			heap.Push(&s.due, t)
		}
		t.endpoint = e
		kept[e.Live] = t
	}
	for live, t := range s.targets {
		if kept[live] == nil {
			s.remove(t)
		}
	}
	s.targets = kept
}

// firstDelay spreads the first scrapes of endpoints that come together.
func (s *scheduler) firstDelay(e *pool.Endpoint) time.Duration {
	return time.Duration(fraction(e.Hash) * float64(s.opts.Hot))
}

// remove forgets a target. If it is being scraped, the scrape is cancelled and
// its result dropped.
func (s *scheduler) remove(t *target) {
	t.gone = true
	if t.index >= 0 {
		heap.Remove(&s.due, t.index)
	}
	if t.running {
		t.cancel()
		return
	}
	s.forget(t)
}

func (s *scheduler) forget(t *target) {
	s.client.forget(t.memory.metrics)
	s.client.forget(t.memory.serving)
}

// wake makes a target due now, but not before the hot cadence allows it: wakes
// come as often as requests do.
func (s *scheduler) wake(t *target) {
	if t.running {
		t.again = true
	}
	if t.gone || t.index < 0 {
		return
	}
	again := t.lastStart.Add(s.opts.Hot)
	if t.failures > 0 {
		if t.reached && !t.endpoint.OrderedLast() {
			return
		}
		again = t.lastEnd.Add(s.opts.Hot)
	}
	at := max(s.opts.Clock(), again)
	if at < t.at {
		t.at = at
		heap.Fix(&s.due, t.index)
	}
}

// slowShare is the part of the workers that slow targets may hold.
const slowShare = 4

// dispatch hands what is due to free workers.
func (s *scheduler) dispatch(ctx context.Context) {
	now := s.opts.Clock()
	for len(s.due) > 0 && s.due[0].at <= now {
		t := heap.Pop(&s.due).(*target)
		if t.wasSlow {
			s.slow.push(t)
		} else {
			s.ready.push(t)
		}
	}
	for s.free > 0 {
		t := s.next()
		if t == nil {
			return
		}
		s.free--
		if t.wasSlow {
			s.slowRunning++
		}
		t.running = true
		j := job{target: t, endpoint: t.endpoint}
		j.ctx, t.cancel = context.WithCancel(ctx)
		s.jobs <- j
	}
}

func (s *scheduler) next() *target {
	if s.slowRunning < max(1, s.opts.Workers/slowShare) {
		if t := s.slow.pop(); t != nil {
			return t
		}
	}
	return s.ready.pop()
}

// finish books a scrape and sets the time of the next.
func (s *scheduler) finish(r result) {
	t := r.target
	t.cancel()
	t.running = false
	s.free++
	if t.wasSlow {
		s.slowRunning--
	}
	if t.gone {
		s.forget(t)
		return
	}
	s.log(t, r.report)
	now := s.opts.Clock()
	t.lastStart, t.lastEnd = r.started, now
	t.scrapes++
	if r.reason == "" {
		t.failures, t.wasSlow = 0, false
		if t.again {
			r.interval = min(r.interval, s.opts.Hot)
		}
		interval := jitter(r.interval, t.endpoint.Hash, t.scrapes)
		t.at = max(r.started.Add(interval), now.Add(r.took))
	} else {
		t.failures++
		t.reached = r.reached
		t.wasSlow = r.reason == "timeout" || now.Sub(r.started) >= s.opts.Timeout/2
		pause := s.opts.pause(t.endpoint.Live, t.failures, t.reached, now)
		t.at = now.Add(jitter(pause, t.endpoint.Hash, t.scrapes))
	}
	t.again = false
	heap.Push(&s.due, t)
}

// log tells of changes only: a replica without a page must not fill the log.
func (s *scheduler) log(t *target, r report) {
	if r.reason == t.lastReason {
		return
	}
	t.lastReason = r.reason
	where := zap.String("endpoint", t.endpoint.Name)
	if r.reason == "" {
		s.opts.Logger.Info("scrape succeeds again", where)
		return
	}
	s.opts.Logger.Warn("scrape fails", where, zap.String("reason", r.reason), zap.Error(r.cause))
}

// dueHeap orders targets by time; it is a container/heap.
type dueHeap []*target

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	t := x.(*target)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *dueHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

// queue is first in, first out, and skips targets that have gone.
type queue struct {
	targets []*target
	head    int
}

func (q *queue) push(t *target) {
	// A queue that never runs empty must not grow at its spent end.
	if q.head > 64 && q.head > len(q.targets)/2 {
		n := copy(q.targets, q.targets[q.head:])
		clear(q.targets[n:])
		q.targets, q.head = q.targets[:n], 0
	}
	q.targets = append(q.targets, t)
}

func (q *queue) pop() *target {
	for q.head < len(q.targets) {
		t := q.targets[q.head]
		q.targets[q.head] = nil
		q.head++
		if !t.gone {
			return t
		}
	}
	q.targets, q.head = q.targets[:0], 0
	return nil
}
