package enginesim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// Bucket bounds of vLLM's histograms, in seconds.
var (
	ttftBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
		640, 2560}
	itlBounds = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBounds = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// process is one life of an engine, from a start to a death. One goroutine, the runner, moves the model on when it is due and tells
// each call what has happened to it; everything else happens on the goroutines of callers.
type process struct {
	cfg     Config
	started time.Time

	wake   chan struct{} // capacity 1: the model has changed, the runner must look again
	done   chan struct{} // closed when the process dies
	rested chan struct{} // closed when the runner has returned

	mu     sync.Mutex
	engine *enginemodel.Engine
	calls  map[string]*call // all that have not ended
	lastID uint64
	faults Faults
	frozen *State // what the page shows while Faults.FreezePage

	// load is what was asked for; background are the IDs of its requests, oldest first.
	load       Load
	background []string

	// The model's time is the clock's, less what was spent in Faults.Hang.
	hungSince time.Time // meaningful only while Faults.Hang
	stalled   time.Duration

	ttft, itl, tpot, e2e, queue Histogram
}

// call is one request in the model. All fields but notify are guarded by the process's mutex.
type call struct {
	id     string
	notify chan struct{} // capacity 1: there is progress

	arrived, admitted, first, last time.Time // of tokens first and last; by the clock, not by the model
	progress                       progress
}

// progress is how far a call has come.
type progress struct {
	generated, cached int
	ended             bool
	reason            enginemodel.Reason
	drop              bool // Faults.DropConnection
}

func startProcess(cfg Config) (*process, error) {
	engine, err := enginemodel.New(cfg.Engine, cfg.Seed)
	if err != nil {
		return nil, err
	}
	p := &process{
		cfg:     cfg,
		started: cfg.Clock.Now(),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		rested:  make(chan struct{}),
		engine:  engine,
		calls:   make(map[string]*call),
		ttft:    newHistogram(ttftBounds),
		itl:     newHistogram(itlBounds),
		tpot:    newHistogram(itlBounds),
		e2e:     newHistogram(e2eBounds),
		queue:   newHistogram(e2eBounds),
	}
	if err := p.setLoad(cfg.Background); err != nil {
		return nil, err
	}
	go p.run()
	return p, nil
}

// stop ends the runner and every wait. It must be called once.
func (p *process) stop() {
	close(p.done)
	<-p.rested
}

func (p *process) run() {
	defer close(p.rested)
	for {
		var due <-chan time.Time
		release := func() {}
		if at, ok := p.catchUp(); ok {
			due, release = p.cfg.Clock.At(at)
		}
		select {
		case <-due:
		case <-p.wake:
		case <-p.done:
			release()
			return
		}
		release()
	}
}

// catchUp brings the model up to now and returns when, by the clock, it is due again.
func (p *process) catchUp() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.Hang {
		return time.Time{}, false
	}
	for _, ev := range p.engine.Advance(p.modelNow()) {
		if c := p.calls[ev.ID]; c != nil {
			p.record(c, ev)
		}
	}
	// Requests like these were accepted when the load was set.
	_ = p.replenish()
	at, ok := p.engine.NextEventAt()
	return at.Add(p.stalled), ok
}

func (p *process) record(c *call, ev enginemodel.Event) {
	at := ev.At.Add(p.stalled)
	c.progress.cached = ev.Cached
	switch ev.Kind {
	case enginemodel.Admitted:
		if c.admitted.IsZero() {
			c.admitted = at
		}
		return
	case enginemodel.FirstToken:
		p.ttft.observe(at.Sub(c.arrived))
		c.first, c.last = at, at
	case enginemodel.Token:
		p.itl.observe(at.Sub(c.last))
		c.last = at
	case enginemodel.Finished:
		p.e2e.observe(at.Sub(c.arrived))
		p.queue.observe(c.admitted.Sub(c.arrived))
		if ev.Generated > 1 {
			p.tpot.observe(c.last.Sub(c.first) / time.Duration(ev.Generated-1))
		}
		c.progress.ended, c.progress.reason = true, ev.Reason
		delete(p.calls, c.id)
	case enginemodel.Aborted:
		delete(p.calls, c.id)
		return
	case enginemodel.Preempted:
		return
	}
	c.progress.generated = ev.Generated
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// modelNow is the model's time. p.mu is held.
func (p *process) modelNow() time.Time {
	if p.faults.Hang {
		return p.hungSince.Add(-p.stalled)
	}
	return p.cfg.Clock.Now().Add(-p.stalled)
}

// rouse makes the runner look at the model again.
func (p *process) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// submit hands a request to the model. The caller must leave the call when it is done with it, ended or not.
func (p *process) submit(req enginemodel.Request) (*call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.submitLocked(req)
	p.rouse()
	return c, err
}

func (p *process) submitLocked(req enginemodel.Request) (*call, error) {
	c := &call{id: req.ID, notify: make(chan struct{}, 1), arrived: p.cfg.Clock.Now()}
	if err := p.engine.Submit(p.modelNow(), req); err != nil {
		return nil, err
	}
	p.calls[c.id] = c
	return c, nil
}

// newID returns an ID for the model; clients never see it.
func (p *process) newID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nextID()
}

func (p *process) nextID() string {
	p.lastID++
	return fmt.Sprintf("r%d", p.lastID)
}

// leave cancels the call if it has not ended.
func (p *process) leave(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls[c.id] == c {
		p.cancel(c.id)
		p.rouse()
	}
}

func (p *process) cancel(id string) {
	delete(p.calls, id)
	// The model may have finished it since the runner last looked; then there is nothing left to cancel.
	_ = p.engine.Cancel(p.modelNow(), id)
}

// errGone: the process died or the client went away.
var errGone = errors.New("gone")

// await returns the call's progress when there is some since the last await. The error is errGone.
func (p *process) await(ctx context.Context, c *call) (progress, error) {
	select {
	case <-c.notify:
	case <-ctx.Done():
		return progress{}, errGone
	case <-p.done:
		return progress{}, errGone
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := c.progress
	now.drop = p.faults.DropConnection
	return now, nil
}

func (p *process) setLoad(load Load) error {
	if err := load.validate(p.cfg.Engine.MaxRunning); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load = load
	for len(p.background) > load.Running+load.Waiting {
		last := len(p.background) - 1
		p.cancel(p.background[last])
		p.background = p.background[:last]
	}
	p.rouse()
	return p.replenish()
}

// replenish replaces background requests that have ended. p.mu is held.
func (p *process) replenish() error {
	live := p.background[:0]
	for _, id := range p.background {
		if p.calls[id] != nil {
			live = append(live, id)
		}
	}
	p.background = live
	for len(p.background) < p.load.Running+p.load.Waiting {
		id := p.nextID()
		if _, err := p.submitLocked(p.load.request(id, p.cfg)); err != nil {
			return fmt.Errorf("background request: %w", err)
		}
		p.background = append(p.background, id)
	}
	return nil
}

func (p *process) currentLoad() Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.load
}

func (p *process) setFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.engine.SetSpeed(p.cfg.Engine.Speed / f.slowdown()); err != nil {
		return fmt.Errorf("slow: %v: %w", f.Slow, err)
	}
	if f.FreezePage && p.frozen == nil {
		now := p.read()
		p.frozen = &now
	} else if !f.FreezePage {
		p.frozen = nil
	}
	now := p.cfg.Clock.Now()
	if f.Hang && !p.faults.Hang {
		p.hungSince = now
	} else if !f.Hang && p.faults.Hang {
		p.stalled += now.Sub(p.hungSince)
	}
	p.faults = f
	p.rouse()
	return nil
}

func (p *process) currentFaults() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// state is what a page shows now.
func (p *process) state() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		return *p.frozen
	}
	return p.read()
}

// read takes the true state. p.mu is held.
func (p *process) read() State {
	return State{
		Model:       p.cfg.Models[0],
		MaxModelLen: p.cfg.MaxModelLen,
		Engine:      p.cfg.Engine,
		Stats:       p.engine.Stats(),
		Started:     p.started,
		Now:         p.cfg.Clock.Now(),
		TTFT:        p.ttft.clone(),
		ITL:         p.itl.clone(),
		TPOT:        p.tpot.clone(),
		E2E:         p.e2e.clone(),
		Queue:       p.queue.clone(),
	}
}
