package enginemodel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Errors of Submit and Cancel, to be told apart with errors.Is.
var (
	// ErrInvalid: a field of the request is out of its range.
	ErrInvalid = errors.New("invalid request")
	// ErrTooLarge: the request could never fit into the KV cache.
	ErrTooLarge = errors.New("request exceeds the KV cache")
	// ErrDuplicate: a request with this ID is waiting or running.
	ErrDuplicate = errors.New("request ID in use")
	// ErrUnknown: no request with this ID is waiting or running.
	ErrUnknown = errors.New("no such request")
)

// Request is what the engine needs to know of a request. The time of arrival is the time given to Submit.
type Request struct {
	// ID names the request in events. Not empty, and unique among the requests that have not ended.
	ID string
	// PromptTokens is the length of the prompt in tokens, from 1 to 1<<30.
	PromptTokens int
	// Blocks holds one content hash for each full block of the prompt, in order, Config.BlockTokens tokens each. It may stop
	// short of the prompt's end: what it does not cover is never shared. At most PromptTokens / BlockTokens entries. The
	// engine does not keep the slice.
	Blocks []uint64
	// OutputTokens is how many tokens the model would generate if nobody stopped it, from 1 to 1<<30.
	OutputTokens int
	// MaxTokens is the limit that the client set, from 1; 0 means none.
	MaxTokens int
}

const maxTokens = 1 << 30

// Engine is one simulated engine. It is not safe for concurrent use.
type Engine struct {
	cfg   Config
	speed float64
	rng   *rand.Rand
	now   time.Time // the latest time seen
	cache *cache

	live    map[string]*request // all requests that have not ended
	waiting []*request          // next to be admitted first
	running []*request          // oldest admission first

	// The step under way. While stepping is false no request is live.
	stepping bool
	stepEnd  time.Time
	step     []*request // requests with a share in this step; a share of 0 means cancelled since
	sharing  int        // requests in step whose share is not 0

	events, handedOut []Event
	counters          Stats // gauges unset
}

// request is a live request.
type request struct {
	id      string
	prompt  int
	output  int // tokens after which it ends
	reason  Reason
	chained []uint64

	blocks    []int32 // held, in order of the tokens they hold
	published int     // leading blocks that need no publishing
	computed  int     // tokens whose KV is in blocks
	generated int
	share     int // tokens that the step under way computes for it

	admitted bool // at least once
	cached   int  // prompt tokens found at the first admission
}

// known is the number of tokens that exist: the prompt and what was generated.
func (r *request) known() int { return r.prompt + r.generated }

// New returns an idle engine. Zero fields of the configuration mean their defaults. The seed matters only if Jitter is set.
func New(cfg Config, seed uint64) (*Engine, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("engine configuration: %w", err)
	}
	return &Engine{
		cfg:   cfg,
		speed: cfg.Speed,
		rng:   rand.New(rand.NewPCG(seed, 0)),
		cache: newCache(cfg.Blocks),
		live:  make(map[string]*request),
	}, nil
}

// Config returns the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Submit puts a request at the end of the waiting queue; an idle engine starts a step with it at once. The error wraps ErrInvalid,
// ErrTooLarge or ErrDuplicate, and then nothing has changed but the time.
func (e *Engine) Submit(now time.Time, req Request) error {
	e.catchUp(now)
	if err := e.check(req); err != nil {
		return err
	}
	r := &request{id: req.ID, prompt: req.PromptTokens, output: req.OutputTokens, reason: Stop}
	if req.MaxTokens > 0 && req.MaxTokens < req.OutputTokens {
		r.output, r.reason = req.MaxTokens, Length
	}
	if blocks := e.blocksFor(r.prompt + r.output - 1); blocks > e.cfg.Blocks {
		return fmt.Errorf("%w: %d prompt and %d output tokens take %d blocks of %d tokens: at most %d fit",
			ErrTooLarge, r.prompt, r.output, blocks, e.cfg.BlockTokens, e.cfg.Blocks)
	}
	if !e.cfg.DisablePrefixCache {
		r.chained = chain(req.Blocks)
	}
	e.live[r.id] = r
	e.waiting = append(e.waiting, r)
	e.counters.Submitted++
	if !e.stepping {
		e.beginStep()
	}
	return nil
}

func (e *Engine) check(req Request) error {
	switch {
	case req.ID == "":
		return fmt.Errorf("%w: ID: empty: must not be empty", ErrInvalid)
	case req.PromptTokens < 1 || req.PromptTokens > maxTokens:
		return fmt.Errorf("%w: PromptTokens: %d: must be from 1 to %d", ErrInvalid, req.PromptTokens, maxTokens)
	case req.OutputTokens < 1 || req.OutputTokens > maxTokens:
		return fmt.Errorf("%w: OutputTokens: %d: must be from 1 to %d", ErrInvalid, req.OutputTokens, maxTokens)
	case req.MaxTokens < 0:
		return fmt.Errorf("%w: MaxTokens: %d: must be 0 (no limit) or more", ErrInvalid, req.MaxTokens)
	case len(req.Blocks) > req.PromptTokens/e.cfg.BlockTokens:
		return fmt.Errorf("%w: Blocks: %d entries: must be at most PromptTokens / BlockTokens (%d)",
			ErrInvalid, len(req.Blocks), req.PromptTokens/e.cfg.BlockTokens)
	case e.live[req.ID] != nil:
		return fmt.Errorf("%w: ID: %q: must differ from those of waiting and running requests", ErrDuplicate, req.ID)
	}
	return nil
}

// Cancel ends a request at once and frees its place and its blocks. The step under way keeps its length unless nobody is left
// in it. The error is ErrUnknown if the request has ended already or never was.
func (e *Engine) Cancel(now time.Time, id string) error {
	e.catchUp(now)
	r := e.live[id]
	if r == nil {
		return fmt.Errorf("%w: ID: %q", ErrUnknown, id)
	}
	is := func(other *request) bool { return other == r }
	e.waiting = slices.DeleteFunc(e.waiting, is)
	e.running = slices.DeleteFunc(e.running, is)
	e.end(r)
	e.counters.Aborted++
	e.tell(Event{Kind: Aborted}, r)
	if r.share > 0 {
		r.share = 0
		e.sharing--
	}
	if e.sharing == 0 {
		e.beginStep()
	}
	return nil
}

// Advance moves the time to now and returns what has happened since the last Advance, in order of time; events of one instant are
// in the order in which the engine made them. The slice is the engine's own and valid until the next Advance.
func (e *Engine) Advance(now time.Time) []Event {
	e.catchUp(now)
	events := e.events
	e.events, e.handedOut = e.handedOut[:0], events
	return events
}

// NextEventAt returns the earliest time at which Advance may have something to return, and false if it will have nothing without
// another Submit or Cancel. The time is in the past if events are ready.
func (e *Engine) NextEventAt() (time.Time, bool) {
	if len(e.events) > 0 {
		return e.events[0].At, true
	}
	return e.stepEnd, e.stepping
}

// SetSpeed changes Config.Speed for steps that begin from now on. The range is that of Config.Speed.
func (e *Engine) SetSpeed(speed float64) error {
	if !validSpeed(speed) {
		return refusal("Speed", speed, allowedSpeed)
	}
	e.speed = speed
	return nil
}

// Stats returns the state as of the latest time seen.
func (e *Engine) Stats() Stats {
	s := e.counters
	s.Waiting, s.Running = len(e.waiting), len(e.running)
	s.BlocksTotal = e.cfg.Blocks
	s.BlocksUsed = e.cfg.Blocks - e.cache.free
	s.BlocksCached = e.cache.cached
	return s
}

// catchUp plays all steps that end by now.
func (e *Engine) catchUp(now time.Time) {
	for e.stepping && !e.stepEnd.After(now) {
		e.now = e.stepEnd
		e.finishStep()
		e.beginStep()
	}
	if now.After(e.now) {
		e.now = now
	}
}

// beginStep shares out the token budget and starts a step at e.now, or leaves the engine idle if no request is live.
//
// The oldest running request always gets a share: it can preempt all others, and alone it fits (Submit saw to that). If none
// runs, all blocks are free and the first waiting request is admitted. So every step makes progress.
func (e *Engine) beginStep() {
	e.step = e.step[:0]
	budget, prefill, preempted := e.cfg.MaxBatchedTokens, 0, false
	include := func(r *request) {
		r.share = min(r.known()-r.computed, budget)
		budget -= r.share
		if r.generated == 0 || r.known()-r.computed > 1 {
			prefill += r.share
		}
		e.step = append(e.step, r)
	}

	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		for !e.grow(r, min(r.known(), r.computed+budget)) {
			preempted = true
			if victim := e.preemptYoungest(); victim == r {
				break
			}
		}
		if i < len(e.running) {
			include(r)
		}
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxRunning && e.admit(e.waiting[0]) {
		include(e.running[len(e.running)-1])
	}

	e.sharing = len(e.step)
	e.stepping = e.sharing > 0
	if e.stepping {
		e.stepEnd = e.now.Add(e.duration(len(e.step), prefill))
	}
}

func (e *Engine) duration(sequences, prefill int) time.Duration {
	d := float64(e.cfg.StepBase) + float64(sequences)*float64(e.cfg.PerSequence) +
		float64(prefill)/e.cfg.PrefillRate*float64(time.Second)
	if e.cfg.Jitter > 0 {
		d *= 1 + e.cfg.Jitter*(2*e.rng.Float64()-1)
	}
	// Time must move, however fast the engine.
	return max(1, time.Duration(d/e.speed))
}

// finishStep credits each request with its share, and with a token if that was the last one to compute.
func (e *Engine) finishStep() {
	e.counters.Steps++
	ended := false
	for _, r := range e.step {
		if r.share == 0 {
			continue
		}
		r.computed += r.share
		r.share = 0
		e.publish(r)
		if r.computed < r.known() {
			continue
		}
		r.generated++
		e.counters.GeneratedTokens++
		if r.generated == 1 {
			e.counters.PromptTokens += uint64(r.prompt)
			e.tell(Event{Kind: FirstToken}, r)
		} else {
			e.tell(Event{Kind: Token}, r)
		}
		if r.generated == r.output {
			ended = true
			e.finish(r)
		}
	}
	if ended {
		e.running = slices.DeleteFunc(e.running, func(r *request) bool { return r.generated == r.output })
	}
}

func (e *Engine) finish(r *request) {
	e.end(r)
	if r.reason == Stop {
		e.counters.Stopped++
	} else {
		e.counters.Truncated++
	}
	e.tell(Event{Kind: Finished, Reason: r.reason}, r)
}

func (e *Engine) end(r *request) {
	delete(e.live, r.id)
	e.cache.release(r.blocks)
	r.blocks = nil
}

// admit moves the first waiting request into the batch if the cache has room for all of its known tokens.
func (e *Engine) admit(r *request) bool {
	// The last known token is always computed: its result is the next token.
	hits, free := e.cache.match(r.chained[:min(len(r.chained), (r.known()-1)/e.cfg.BlockTokens)])
	fresh := e.blocksFor(r.known()) - len(hits)
	if e.cache.free-free < fresh {
		return false
	}
	for _, id := range hits {
		e.cache.share(id)
	}
	r.blocks, r.published, r.computed = hits, len(hits), len(hits)*e.cfg.BlockTokens
	for range fresh {
		r.blocks = append(r.blocks, e.cache.take())
	}
	if !r.admitted {
		r.admitted = true
		if !e.cfg.DisablePrefixCache {
			r.cached = r.computed
			e.counters.QueriedTokens += uint64(r.prompt)
			e.counters.CachedTokens += uint64(r.cached)
		}
	}
	e.waiting[0] = nil
	e.waiting = e.waiting[1:]
	e.running = append(e.running, r)
	e.tell(Event{Kind: Admitted}, r)
	return true
}

// grow gives the request blocks for that many tokens, all or none.
func (e *Engine) grow(r *request, tokens int) bool {
	fresh := e.blocksFor(tokens) - len(r.blocks)
	if fresh > e.cache.free {
		return false
	}
	for range fresh {
		r.blocks = append(r.blocks, e.cache.take())
	}
	return true
}

func (e *Engine) preemptYoungest() *request {
	last := len(e.running) - 1
	r := e.running[last]
	e.running[last] = nil
	e.running = e.running[:last]
	e.cache.release(r.blocks)
	r.blocks, r.published, r.computed = nil, 0, 0
	e.waiting = slices.Insert(e.waiting, 0, r)
	e.counters.Preemptions++
	e.tell(Event{Kind: Preempted}, r)
	return r
}

// publish offers the request's newly computed prompt blocks to others.
func (e *Engine) publish(r *request) {
	for r.published < len(r.chained) && (r.published+1)*e.cfg.BlockTokens <= r.computed {
		e.cache.publish(r.blocks[r.published], r.chained[r.published])
		r.published++
	}
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockTokens - 1) / e.cfg.BlockTokens
}

func (e *Engine) tell(event Event, r *request) {
	event.At, event.ID, event.Generated, event.Cached = e.now, r.id, r.generated, r.cached
	e.events = append(e.events, event)
}
