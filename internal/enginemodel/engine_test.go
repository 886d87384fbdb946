package enginemodel

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestZeroConfigurationMeansTheDefaults(t *testing.T) {
	e, err := New(Config{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{MaxRunning: 32, MaxBatchedTokens: 512, PrefillRate: 8000, StepBase: 6 * time.Millisecond,
		PerSequence: 100 * time.Microsecond, Speed: 1, Blocks: 4096, BlockTokens: 16}
	if got := e.Config(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (Config{MaxRunning: 1000}).WithDefaults().MaxBatchedTokens; got != 1000 {
		t.Errorf("default budget for 1000 running requests is %d, want 1000", got)
	}
}

func TestBadConfigurationNamesTheField(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{MaxRunning: -1}, []string{"MaxRunning: -1: must be at least 1"}},
		{Config{MaxRunning: 8, MaxBatchedTokens: 7}, []string{"MaxBatchedTokens: 7: must be at least MaxRunning (8)"}},
		{Config{PrefillRate: math.NaN()}, []string{"PrefillRate: NaN: must be above 0"}},
		{Config{PrefillRate: math.Inf(1)}, []string{"PrefillRate: +Inf: must be above 0"}},
		{Config{StepBase: -time.Second}, []string{"StepBase: -1s: must be above 0"}},
		{Config{PerSequence: 2 * time.Hour}, []string{"PerSequence: 2h0m0s: must be above 0 and at most 1h"}},
		{Config{Jitter: 1}, []string{"Jitter: 1: must be at least 0 and below 1"}},
		{Config{Speed: -1}, []string{"Speed: -1: must be from 1e-06 to 1e+06"}},
		{Config{Blocks: -3, BlockTokens: 1 << 20}, []string{"Blocks: -3: must be", "BlockTokens: 1048576: must be"}},
	} {
		_, err := New(c.cfg, 0)
		if err == nil {
			t.Errorf("%+v was accepted", c.cfg)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %q does not say %q", c.cfg, err, want)
			}
		}
	}
}

func TestErrorsCanBeToldApart(t *testing.T) {
	e, err := New(Config{Blocks: 2, BlockTokens: 4}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Submit(epoch, Request{ID: "a", PromptTokens: 4, OutputTokens: 2}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"no ID", e.Submit(epoch, Request{PromptTokens: 1, OutputTokens: 1}), ErrInvalid},
		{"same ID", e.Submit(epoch, Request{ID: "a", PromptTokens: 1, OutputTokens: 1}), ErrDuplicate},
		{"one block too many", e.Submit(epoch, Request{ID: "b", PromptTokens: 8, OutputTokens: 2}), ErrTooLarge},
		{"just fits", e.Submit(epoch, Request{ID: "c", PromptTokens: 8, OutputTokens: 1}), nil},
		{"limit makes it fit", e.Submit(epoch, Request{ID: "d", PromptTokens: 8, OutputTokens: 9, MaxTokens: 1}), nil},
		{"cancel", e.Cancel(epoch, "a"), nil},
		{"cancel twice", e.Cancel(epoch, "a"), ErrUnknown},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, c.err, c.want)
		}
	}
}

func TestTimeNeverRunsBackwards(t *testing.T) {
	e, err := New(Config{StepBase: 10 * time.Millisecond, PerSequence: time.Nanosecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	e.Advance(epoch.Add(time.Second))
	if err := e.Submit(epoch, Request{ID: "a", PromptTokens: 1, OutputTokens: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := e.Advance(epoch)[0].At, epoch.Add(time.Second); !got.Equal(want) {
		t.Errorf("admitted at %v, want %v", got, want)
	}
}

func TestJitterFollowsTheSeed(t *testing.T) {
	last := func(seed uint64) time.Time {
		e, err := New(Config{Jitter: 0.5}, seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(epoch, Request{ID: "a", PromptTokens: 100, OutputTokens: 20}); err != nil {
			t.Fatal(err)
		}
		all := e.Advance(epoch.Add(time.Minute))
		return all[len(all)-1].At
	}
	first, again := last(1), last(1)
	if first != again {
		t.Error("the same seed gave two endings")
	}
	if first == last(2) {
		t.Error("two seeds gave the same ending")
	}
}

// act is one call of a generated script.
type act struct {
	wait   time.Duration // before the call
	cancel string        // cancel this ID, or
	submit Request       // submit this
}

func drawConfig(t *rapid.T) Config {
	running := rapid.IntRange(1, 5).Draw(t, "maxRunning")
	return Config{
		MaxRunning:         running,
		MaxBatchedTokens:   running + rapid.IntRange(0, 30).Draw(t, "extraBudget"),
		Blocks:             rapid.IntRange(4, 24).Draw(t, "blocks"),
		BlockTokens:        rapid.IntRange(1, 5).Draw(t, "blockTokens"),
		Jitter:             rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "jitter"),
		DisablePrefixCache: rapid.Bool().Draw(t, "noCache"),
	}.WithDefaults()
}

// drawActs draws prompts from two block contents only, so that prefixes meet often.
func drawActs(t *rapid.T, cfg Config) []act {
	n := rapid.IntRange(1, 40).Draw(t, "acts")
	acts := make([]act, n)
	for i := range acts {
		acts[i].wait = time.Duration(rapid.IntRange(0, 40).Draw(t, "wait")) * time.Millisecond
		if i > 0 && rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
			acts[i].cancel = fmt.Sprint(rapid.IntRange(0, i-1).Draw(t, "which"))
			continue
		}
		room := cfg.Blocks * cfg.BlockTokens
		prompt := rapid.IntRange(1, room).Draw(t, "prompt")
		acts[i].submit = Request{
			ID:           fmt.Sprint(i),
			PromptTokens: prompt,
			OutputTokens: rapid.IntRange(1, room-prompt+1).Draw(t, "output"),
			MaxTokens:    rapid.IntRange(0, 10).Draw(t, "max"),
			Blocks: rapid.SliceOfN(rapid.Uint64Range(0, 1), 0, prompt/cfg.BlockTokens).
				Draw(t, "contents"),
		}
	}
	return acts
}

// play runs the script and then lets the engine come to rest. each, if not nil, is called after every call to the engine.
func play(t *rapid.T, cfg Config, acts []act, finely bool, each func(*Engine)) (*Engine, []Event) {
	e, err := New(cfg, 7)
	if err != nil {
		t.Fatal(err)
	}
	var all []Event
	now := epoch
	advance := func(to time.Time) {
		for finely {
			next, ok := e.NextEventAt()
			if !ok || next.After(to) {
				break
			}
			all = append(all, e.Advance(next)...)
			if each != nil {
				each(e)
			}
		}
		all = append(all, e.Advance(to)...)
	}
	for _, a := range acts {
		now = now.Add(a.wait)
		if finely {
			advance(now)
		}
		if a.cancel != "" {
			if err := e.Cancel(now, a.cancel); err != nil && !errors.Is(err, ErrUnknown) {
				t.Fatal(err)
			}
		} else if err := e.Submit(now, a.submit); err != nil {
			t.Fatal(err)
		}
		if each != nil {
			each(e)
		}
	}
	advance(now.Add(24 * time.Hour))
	return e, all
}

func TestBlocksAreConservedAndTheBatchStaysWithinItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		play(t, cfg, drawActs(t, cfg), true, func(e *Engine) {
			st := e.Stats()
			if st.Running > cfg.MaxRunning {
				t.Fatalf("%d requests run, at most %d may", st.Running, cfg.MaxRunning)
			}
			ended := st.Stopped + st.Truncated + st.Aborted
			if live := uint64(st.Waiting + st.Running); st.Submitted != ended+live {
				t.Fatalf("%d submitted, but %d ended and %d live", st.Submitted, ended, live)
			}
			if _, due := e.NextEventAt(); st.Waiting+st.Running > 0 && !due {
				t.Fatal("requests are live and nothing will ever happen")
			}
			checkCache(t, e)
		})
	})
}

// checkCache compares the holds and the free list with what the requests say.
func checkCache(t *rapid.T, e *Engine) {
	holds := make([]int32, len(e.cache.blocks))
	for _, r := range e.running {
		if want := e.blocksFor(r.computed + r.share); len(r.blocks) < want {
			t.Fatalf("request %s holds %d blocks and computes into %d", r.id, len(r.blocks), want)
		}
		for _, id := range r.blocks {
			holds[id]++
		}
	}
	for _, r := range e.waiting {
		if len(r.blocks) > 0 {
			t.Fatalf("waiting request %s holds %d blocks", r.id, len(r.blocks))
		}
	}
	free, cached := 0, 0
	for id := e.cache.head; id != none; id = e.cache.blocks[id].next {
		if free++; free > len(holds) {
			t.Fatal("the free list is a circle")
		}
		if holds[id] != 0 {
			t.Fatalf("block %d is free and held", id)
		}
		if e.cache.blocks[id].published {
			cached++
		}
	}
	published := 0
	for id, b := range e.cache.blocks {
		if b.refs != holds[id] {
			t.Fatalf("block %d counts %d holds, has %d", id, b.refs, holds[id])
		}
		if holds[id] > 0 {
			free++
		}
		if b.published {
			published++
			if e.cache.index[b.hash] != int32(id) {
				t.Fatalf("published block %d cannot be found", id)
			}
		}
	}
	if free != len(holds) || cached != e.cache.cached || published != len(e.cache.index) {
		t.Fatalf("%d blocks of %d accounted for, %d of %d cached, %d of %d published",
			free, len(holds), e.cache.cached, cached, len(e.cache.index), published)
	}
}

func TestEveryRequestEndsOnceAfterALifeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		acts := drawActs(t, cfg)
		e, all := play(t, cfg, acts, false, nil)

		if st := e.Stats(); st.Waiting+st.Running+st.BlocksUsed != 0 {
			t.Fatalf("at rest: %+v", st)
		}
		byID := map[string][]Event{}
		for i, ev := range all {
			if i > 0 && ev.At.Before(all[i-1].At) {
				t.Fatalf("event %d is before its predecessor: %+v", i, ev)
			}
			byID[ev.ID] = append(byID[ev.ID], ev)
		}
		for _, a := range acts {
			if a.cancel == "" {
				checkLife(t, a.submit, byID[a.submit.ID], cfg)
				delete(byID, a.submit.ID)
			}
		}
		if len(byID) > 0 {
			t.Fatalf("events of requests that nobody submitted: %v", byID)
		}
	})
}

func checkLife(t *rapid.T, req Request, life []Event, cfg Config) {
	running, generated := false, 0
	for i, ev := range life {
		legal := false
		switch ev.Kind {
		case Admitted:
			legal = !running
			running = true
		case Preempted:
			legal = running
			running = false
		case FirstToken, Token:
			legal = running && (ev.Kind == FirstToken) == (generated == 0)
			generated++
		case Finished, Aborted:
			legal = i == len(life)-1 && (running || ev.Kind == Aborted)
		}
		if !legal || ev.Generated != generated {
			t.Fatalf("request %s, event %d of %+v is out of order", req.ID, i, life)
		}
		if ev.Cached >= req.PromptTokens || ev.Cached > len(req.Blocks)*cfg.BlockTokens || ev.Cached > 0 && cfg.DisablePrefixCache {
			t.Fatalf("request %s with %d prompt tokens found %d cached", req.ID, req.PromptTokens, ev.Cached)
		}
	}
	end := life[len(life)-1]
	want, reason := req.OutputTokens, Stop
	if req.MaxTokens > 0 && req.MaxTokens < want {
		want, reason = req.MaxTokens, Length
	}
	if end.Kind == Finished && (generated != want || end.Reason != reason) || end.Kind != Finished && end.Kind != Aborted {
		t.Fatalf("request %s ended with %+v, want %d tokens and %v", req.ID, end, want, reason)
	}
}

func TestRequestsAreAdmittedInOrderOfArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		acts := drawActs(t, cfg)
		_, all := play(t, cfg, acts, false, nil)
		first := map[string]int{} // ID -> its place among first admissions
		for _, ev := range all {
			if _, seen := first[ev.ID]; ev.Kind == Admitted && !seen {
				first[ev.ID] = len(first)
			}
		}
		last := -1
		for _, a := range acts {
			if place, admitted := first[a.submit.ID]; admitted && a.cancel == "" {
				if place < last {
					t.Fatalf("request %s was admitted before an earlier one", a.submit.ID)
				}
				last = place
			}
		}
	})
}

func TestTheSameScriptGivesTheSameEventsHoweverOftenTimeAdvances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		acts := drawActs(t, cfg)
		rough, roughEvents := play(t, cfg, acts, false, nil)
		fine, fineEvents := play(t, cfg, acts, true, nil)
		if !slices.Equal(roughEvents, fineEvents) {
			t.Fatalf("events differ:\n%s\nand\n%s", events(roughEvents), events(fineEvents))
		}
		if rough.Stats() != fine.Stats() {
			t.Fatalf("stats differ: %+v and %+v", rough.Stats(), fine.Stats())
		}
	})
}

// BenchmarkDecode is one step of a full batch per iteration.
func BenchmarkDecode(b *testing.B) {
	e, err := New(Config{}, 0)
	if err != nil {
		b.Fatal(err)
	}
	now := epoch
	b.ReportAllocs()
	for i := range b.N {
		if st := e.Stats(); st.Running+st.Waiting < e.cfg.MaxRunning {
			if err := e.Submit(now, Request{ID: fmt.Sprint(i), PromptTokens: 64, OutputTokens: 1000}); err != nil {
				b.Fatal(err)
			}
		}
		now, _ = e.NextEventAt()
		e.Advance(now)
	}
}
