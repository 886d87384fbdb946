package collect

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// scheduler decides which endpoint, and which exporter, is scraped when. Only its
// own goroutine touches it, apart from the inbox and the two channels.
type scheduler struct {
	opts    Options
	inbox   *inbox
	jobs    chan job
	results chan result

	targets   map[*pool.Live]*target
	exporters []*target
	due       dueHeap
	// waiting are due and wait for a worker; running is how many workers each
	// lane holds, last the lane of the target that began last.
	waiting [numLanes]queue
	running [numLanes]int
	last    lane
}

// lane is what is known of a target's scrapes. What may take long, or be in vain,
// must not hold all the workers.
type lane uint8

const (
	// proven: the last scrape succeeded.
	proven lane = iota
	// sluggish: it succeeded, and took long.
	sluggish
	// newcomer: none has ended yet.
	newcomer
	// failing: the last scrape failed; hanging, if that took long.
	failing
	hanging
	// exporting: an exporter; exportFailing, if its last scrape failed.
	exporting
	exportFailing
	numLanes
)

// exportWorkers read the exporters. One of them at most is held by those that
// fail.
const exportWorkers = 2

// target is one endpoint, or one exporter, under the scheduler.
type target struct {
	// kind and name are for the log; hash makes its jitter its own.
	kind, name string
	hash       uint64
	// endpoint is nil for an exporter.
	endpoint *pool.Endpoint
	exporter *exporter
	// sharesPod: other endpoints of the pool are of the same pod.
	sharesPod bool
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
	// failures in a row; reached is of the last one, wasSlow of the last scrape.
	failures         int
	wasSlow, reached bool
	lastReason       string
	// lastJoined is what was logged of the pods of an exporter.
	lastJoined string

	// memory belongs to the worker while the target is running.
	memory memory

	// woken: the target is in the inbox already. reporting: the worker itself
	// is about to report a refusal, whose wake would only lead back here.
	woken, reporting atomic.Bool
}

// lane changes only with the end of a scrape.
func (t *target) lane() lane {
	switch {
	case t.exporter != nil && t.failures > 0:
		return exportFailing
	case t.exporter != nil:
		return exporting
	case t.failures > 0 && t.wasSlow:
		return hanging
	case t.failures > 0:
		return failing
	case t.scrapes == 0:
		return newcomer
	case t.wasSlow:
		return sluggish
	default:
		return proven
	}
}

// job is one scrape. The endpoint is that of the time of dispatch.
type job struct {
	ctx       context.Context
	target    *target
	endpoint  *pool.Endpoint
	sharesPod bool
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

func newScheduler(opts Options, table *table) *scheduler {
	workers := opts.Workers
	if len(table.exporters) > 0 {
		workers += exportWorkers
	}
	s := &scheduler{
		opts:    opts,
		inbox:   &inbox{signal: make(chan struct{}, 1)},
		targets: map[*pool.Live]*target{},
		jobs:    make(chan job, workers),
		results: make(chan result, workers),
	}
	now := opts.Clock()
	for _, x := range table.exporters {
		name := x.Profile.Name() + " at " + x.Address.String()
		t := &target{kind: "exporter", name: name, hash: xxhash.Sum64String(name), exporter: x, index: -1}
		t.at = now.Add(s.firstDelay(t.hash))
		s.exporters = append(s.exporters, t)
		heap.Push(&s.due, t)
	}
	return s
}

func (s *scheduler) run(ctx context.Context) {
	timer := s.opts.NewTimer()
	defer timer.Stop()
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

// close ends the connections of all targets, when no worker has one any more.
func (s *scheduler) close() {
	for _, t := range s.targets {
		t.memory.kept.close()
	}
	for _, t := range s.exporters {
		t.memory.kept.close()
	}
	// Those that left the pool while a worker had them.
	close(s.results)
	for r := range s.results {
		r.target.memory.kept.close()
	}
}

// replace follows the pool to its newest set.
func (s *scheduler) replace(set *pool.Set) {
	now := s.opts.Clock()
	kept := make(map[*pool.Live]*target, len(set.Endpoints))
	for _, e := range set.Endpoints {
		t := s.targets[e.Live]
		if t == nil {
			t = &target{kind: "endpoint", name: e.Name, hash: e.Hash, at: now.Add(s.firstDelay(e.Hash)), index: -1}
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
	s.countPods()
}

// countPods finds the endpoints whose pod has others besides.
func (s *scheduler) countPods() {
	if len(s.opts.Exporters) == 0 {
		return
	}
	endpoints := map[string]int{}
	for _, t := range s.targets {
		endpoints[t.endpoint.Pod]++
	}
	for _, t := range s.targets {
		t.sharesPod = endpoints[t.endpoint.Pod] > 1
	}
}

// firstDelay spreads the first scrapes of endpoints that come together.
func (s *scheduler) firstDelay(hash uint64) time.Duration {
	return time.Duration(fraction(hash) * float64(s.opts.Hot))
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
	t.memory.kept.close()
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

// dispatch hands what is due to free workers.
func (s *scheduler) dispatch(ctx context.Context) {
	now := s.opts.Clock()
	for len(s.due) > 0 && s.due[0].at <= now {
		t := heap.Pop(&s.due).(*target)
		s.waiting[t.lane()].push(t)
	}
	for t := s.next(); t != nil; t = s.next() {
		s.last = t.lane()
		s.running[s.last]++
		t.running = true
		j := job{target: t, endpoint: t.endpoint, sharesPod: t.sharesPod}
		j.ctx, t.cancel = context.WithCancel(ctx)
		s.jobs <- j
	}
}

// next takes the target to begin with; nil if nothing waits that may have a
// worker. Those that take long come first, as far as they may, since they take
// turns with the proven ones.
func (s *scheduler) next() *target {
	order := [...]lane{exporting, exportFailing, failing, hanging, newcomer, sluggish, proven}
	if s.last != proven {
		order = [...]lane{exporting, exportFailing, proven, failing, hanging, newcomer, sluggish}
	}
	for _, l := range order {
		if s.mayRun(l) {
			if t := s.waiting[l].pop(); t != nil {
				return t
			}
		}
	}
	return nil
}

// mayRun reports that a worker is free for the lane. Targets that fail may hold a
// quarter of the workers, newcomers a half, and those that take long half of what
// is left: the quick ones need few.
func (s *scheduler) mayRun(l lane) bool {
	r, workers := &s.running, s.opts.Workers
	inVain := r[failing] + r[hanging]
	free := inVain+r[newcomer]+r[sluggish]+r[proven] < workers
	switch l {
	case exporting:
		return r[exporting]+r[exportFailing] < exportWorkers
	case exportFailing:
		return r[exporting]+r[exportFailing] < exportWorkers && r[exportFailing] == 0
	case failing, hanging:
		return free && inVain < max(1, workers/4)
	case newcomer:
		return free && r[newcomer] < max(1, workers/2)
	case sluggish:
		return free && inVain+r[newcomer]+r[sluggish] < max(1, workers-workers/4)
	default:
		return free
	}
}

// finish books a scrape and sets the time of the next.
func (s *scheduler) finish(r result) {
	t := r.target
	t.cancel()
	t.running = false
	s.running[t.lane()]--
	if t.gone {
		t.memory.kept.close()
		return
	}
	s.log(t, r.report)
	s.logJoined(t)
	now := s.opts.Clock()
	t.lastStart, t.lastEnd = r.started, now
	t.scrapes++
	t.wasSlow = r.reason == "timeout" || now.Sub(r.started) >= s.opts.Timeout/2
	if r.reason == "" {
		t.failures = 0
		if t.again {
			r.interval = min(r.interval, s.opts.Hot)
		}
		t.at = r.started.Add(s.opts.kept(jitter(r.interval, t.hash, t.scrapes), now.Sub(r.started)))
	} else {
		t.failures++
		t.reached = r.reached
		pause := s.opts.backOff(t.failures)
		if t.endpoint != nil {
			pause = s.opts.pause(t.endpoint.Live, t.failures, t.reached, now)
		}
		t.at = now.Add(jitter(pause, t.hash, t.scrapes))
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
	where := zap.String(t.kind, t.name)
	if r.reason == "" {
		s.opts.Logger.Info("scrape succeeds again", where)
		return
	}
	s.opts.Logger.Warn("scrape fails", where, zap.String("reason", r.reason), zap.Error(r.cause))
}

// logJoined tells when an exporter's page begins or ceases to be about the pool.
func (s *scheduler) logJoined(t *target) {
	if t.exporter == nil || t.exporter.pods.Load() == nil {
		return
	}
	pods := *t.exporter.pods.Load()
	joined := 0
	for _, e := range s.targets {
		if pods[engine.Pod(e.endpoint.Pod)] != nil {
			joined++
		}
	}
	news := "joins"
	if joined == 0 {
		news = "joins nobody"
	}
	if t.lastJoined == news {
		return
	}
	t.lastJoined = news
	where := []zap.Field{zap.String(t.kind, t.name), zap.Int("pods", len(pods)), zap.Int("endpoints", joined)}
	if joined > 0 {
		s.opts.Logger.Info("the exporter's page has pods of the pool", where...)
		return
	}
	s.opts.Logger.Warn("the exporter's page has no pod of the pool: none of its values is used", where...)
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
