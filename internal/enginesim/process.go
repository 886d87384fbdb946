package enginesim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
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
	zeroed *State // when counters were last set to zero; nil if never

	// load is what was asked for; background are the IDs of its requests, oldest first.
	load       Load
	background []string

	// The model's time is the clock's, less what was spent standing still.
	stillSince time.Time // meaningful only while Faults.still
	stalled    time.Duration

	reports   *reporter
	began     time.Time // the step under way, by the clock
	computing int       // calls whose computing is set
	lookedUp  uint64
	streamed  Work
	whole     Work
}

// call is one request in the model. All fields but the first four are guarded by the process's mutex.
type call struct {
	id     string
	prompt int // tokens
	stream bool
	notify chan struct{} // capacity 1: there is progress

	preempted                      uint64    // times, since it last generated
	computing                      bool      // it runs, and a part of its known tokens is to be computed before it gets another one
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
	}
	bounds := cfg.Dialect.Bounds()
	p.streamed.Latencies, p.whole.Latencies = newLatencies(bounds), newLatencies(bounds)
	p.reports = newReporter(cfg.Dialect.Cadence(), p.started, p.truth())
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
	p.advance()
	if p.faults.still() {
		return time.Time{}, false
	}
	at, ok := p.engine.NextEventAt()
	return at.Add(p.stalled), ok
}

// advance plays all that has happened in the model by now, step by step, because what the page shows depends on what was true at the
// end of which step. It must come before each call that changes the model or its faults, and after it. p.mu is held.
func (p *process) advance() {
	// While the scheduler stands still, events wait: they happen when it goes on.
	for !p.faults.still() {
		at, ok := p.engine.NextEventAt()
		if !ok || at.After(p.modelNow()) {
			break
		}
		p.play(at)
	}
	p.reports.pass(p.cfg.Clock.Now(), p.faults.still())
	p.reports.know(p.truth())
}

// play lets the model have its events of one time, which is next. p.mu is held.
func (p *process) play(at time.Time) {
	steps, computing := p.engine.Stats().Steps, p.computing
	o := occurrence{at: at.Add(p.stalled)}
	p.reports.pass(o.at, false)
	ended := false
	for _, ev := range p.engine.Advance(at) {
		switch ev.Kind {
		case enginemodel.Admitted:
			o.admitted++
		case enginemodel.Finished:
			o.completed++
			ended = true
		case enginemodel.Aborted:
			ended = true
		case enginemodel.FirstToken, enginemodel.Token, enginemodel.Preempted:
		}
		if c := p.calls[ev.ID]; c != nil {
			p.record(c, ev)
		}
	}
	o.step = p.engine.Stats().Steps > steps
	if o.step {
		o.took = o.at.Sub(p.began)
	}
	if o.step || o.admitted > 0 {
		p.began = o.at
	}
	o.prefill = o.step && computing > 0 || o.admitted > 0
	p.reports.happen(o, p.truth())
	if ended {
		// Requests like these were accepted when the load was set.
		_ = p.replenish(at)
	}
}

// truth is what is true in the model. p.mu is held.
func (p *process) truth() Report {
	all := p.streamed.Totals.plus(p.whole.Totals)
	all.LookedUp = p.lookedUp
	return Report{Stats: p.engine.Stats(), Totals: all, Computing: p.computing}
}

// work is what a call counts in.
func (p *process) work(c *call) *Work {
	if c.stream {
		return &p.streamed
	}
	return &p.whole
}

func (p *process) setComputing(c *call, computing bool) {
	switch {
	case computing && !c.computing:
		p.computing++
	case !computing && c.computing:
		p.computing--
	}
	c.computing = computing
}

func (p *process) record(c *call, ev enginemodel.Event) {
	at := ev.At.Add(p.stalled)
	w := p.work(c)
	p.setComputing(c, ev.Kind == enginemodel.Admitted)
	c.progress.cached = ev.Cached
	switch ev.Kind {
	case enginemodel.Admitted:
		if c.admitted.IsZero() {
			c.admitted = at
			p.lookedUp++
		}
		return
	case enginemodel.FirstToken:
		if !p.reports.cadence.TTFTAtEnd {
			w.TTFT.observe(at.Sub(c.arrived).Seconds())
		}
		c.first, c.last = at, at
	case enginemodel.Token:
		w.ITL.observe(at.Sub(c.last).Seconds())
		c.last = at
	case enginemodel.Finished:
		p.finish(w, c, ev)
		c.progress.ended, c.progress.reason = true, ev.Reason
		delete(p.calls, c.id)
	case enginemodel.Aborted:
		delete(p.calls, c.id)
		return
	case enginemodel.Preempted:
		c.preempted++
		return
	}
	w.Recovered += c.preempted
	c.preempted = 0
	c.progress.generated = ev.Generated
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// finish counts a call that has ended by itself.
func (p *process) finish(w *Work, c *call, ev enginemodel.Event) {
	if p.reports.cadence.TTFTAtEnd {
		w.TTFT.observe(c.first.Sub(c.arrived).Seconds())
	}
	w.E2E.observe(c.last.Sub(c.arrived).Seconds())
	w.Queue.observe(c.admitted.Sub(c.arrived).Seconds())
	w.Prefill.observe(c.first.Sub(c.admitted).Seconds())
	w.Decode.observe(c.last.Sub(c.first).Seconds())
	w.Inference.observe(c.last.Sub(c.admitted).Seconds())
	if ev.Generated > 1 {
		w.TPOT.observe((c.last.Sub(c.first) / time.Duration(ev.Generated-1)).Seconds())
	}
	w.PromptLength.observe(float64(c.prompt))
	w.OutputLength.observe(float64(ev.Generated))
	w.Finished++
	w.PromptTokens += uint64(c.prompt)
	w.CachedTokens += uint64(ev.Cached)
	w.GeneratedTokens += uint64(ev.Generated)
}

// modelNow is the model's time. p.mu is held.
func (p *process) modelNow() time.Time {
	if p.faults.still() {
		return p.stillSince.Add(-p.stalled)
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
func (p *process) submit(req enginemodel.Request, stream bool) (*call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	c, err := p.enter(p.modelNow(), req, stream)
	p.advance()
	p.rouse()
	return c, err
}

// enter hands a request to the model at its time. p.mu is held.
func (p *process) enter(at time.Time, req enginemodel.Request, stream bool) (*call, error) {
	c := &call{id: req.ID, prompt: req.PromptTokens, stream: stream, notify: make(chan struct{}, 1), arrived: at.Add(p.stalled)}
	if p.faults.still() {
		c.arrived = p.cfg.Clock.Now()
	}
	if err := p.engine.Submit(at, req); err != nil {
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
	p.advance()
	if p.calls[c.id] == c {
		p.cancel(c.id)
		p.advance()
		p.rouse()
	}
}

// cancel ends a request that may have ended already. p.mu is held.
func (p *process) cancel(id string) {
	if c := p.calls[id]; c != nil {
		p.setComputing(c, false)
		delete(p.calls, id)
	}
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
	p.advance()
	p.load = load
	for len(p.background) > load.Running+load.Waiting {
		last := len(p.background) - 1
		p.cancel(p.background[last])
		p.background = p.background[:last]
	}
	err := p.replenish(p.modelNow())
	p.advance()
	p.rouse()
	return err
}

// replenish replaces background requests that have ended, at the model's time. p.mu is held.
func (p *process) replenish(at time.Time) error {
	live := p.background[:0]
	for _, id := range p.background {
		if p.calls[id] != nil {
			live = append(live, id)
		}
	}
	p.background = live
	for len(p.background) < p.load.Running+p.load.Waiting {
		id := p.nextID()
		if _, err := p.enter(at, p.load.request(id, p.cfg), true); err != nil {
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
	p.advance()
	if err := p.engine.SetSpeed(p.cfg.Engine.Speed / f.slowdown()); err != nil {
		return fmt.Errorf("slow: %v: %w", f.Slow, err)
	}
	if f.ZeroCounters && !p.faults.ZeroCounters {
		now := p.absolute()
		p.zeroed = &now
	}
	if f.FreezePage && p.frozen == nil {
		now := p.read()
		p.frozen = &now
	} else if !f.FreezePage {
		p.frozen = nil
	}
	now := p.cfg.Clock.Now()
	if f.still() && !p.faults.still() {
		p.stillSince = now
	} else if !f.still() && p.faults.still() {
		p.stalled += now.Sub(p.stillSince)
	}
	p.faults = f
	p.advance()
	p.rouse()
	return nil
}

func (p *process) currentFaults() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// generated is how many tokens have been generated.
func (p *process) generated() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	return p.engine.Stats().GeneratedTokens
}

// state is what a page shows now. One that drains takes the rows along.
func (p *process) state(page Page) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance()
	s := p.read()
	if p.frozen != nil && page.Telemetry {
		s = *p.frozen
	}
	if page.Drains {
		s.Rows = p.reports.drain()
	}
	return s
}

// read takes the true state, as far as counters have not been set to zero. p.mu is held.
func (p *process) read() State { return p.absolute().restarted(p.zeroed) }

// absolute takes the true state since the start of the process. p.mu is held.
func (p *process) absolute() State {
	return State{
		Models:      p.cfg.Models,
		Root:        p.cfg.Root,
		MaxModelLen: p.cfg.MaxModelLen,
		Engine:      p.cfg.Engine,
		Asleep:      p.faults.Sleep,
		Started:     p.started,
		Counting:    p.started,
		Now:         p.cfg.Clock.Now(),
		Truth:       p.reports.truth,
		Shown:       p.reports.shown,
		Looked:      p.reports.looked,
		Busy:        p.reports.busy,
		Device:      p.reports.device,
		// Copies: histograms change in place.
		Streamed: p.streamed.plus(Work{}),
		Whole:    p.whole.plus(Work{}),
	}
}
