package enginemodel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts plays conversations with an engine. Commands:
//
//	new max-running=N budget=N rate=TOKENS/S base=D per-seq=D blocks=N block=N no-cache speed=F
//	submit ID prompt=N output=N [max=N] [blocks=a,b,c]   each letter stands for the content of one full block
//	cancel ID
//	advance D | advance to-next | run                    prints what happened, with the time since the start
//	speed F
//	stats | next
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, s.play)
	})
}

type script struct {
	engine *Engine
	now    time.Time
}

var epoch = time.Unix(1_700_000_000, 0)

func (s *script) play(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		return s.new(t, d)
	case "submit":
		req := Request{ID: d.CmdArgs[0].Key}
		d.ScanArgs(t, "prompt", &req.PromptTokens)
		d.ScanArgs(t, "output", &req.OutputTokens)
		d.MaybeScanArgs(t, "max", &req.MaxTokens)
		if d.HasArg("blocks") {
			var contents string
			d.ScanArgs(t, "blocks", &contents)
			for _, c := range strings.Split(contents, "") {
				req.Blocks = append(req.Blocks, uint64(c[0]))
			}
		}
		return told(s.engine.Submit(s.now, req))
	case "cancel":
		return told(s.engine.Cancel(s.now, d.CmdArgs[0].Key))
	case "advance":
		if d.CmdArgs[0].Key == "to-next" {
			next, ok := s.engine.NextEventAt()
			if !ok {
				return "nothing to wait for\n"
			}
			s.now = next
		} else {
			by, err := time.ParseDuration(d.CmdArgs[0].Key)
			if err != nil {
				t.Fatal(err)
			}
			s.now = s.now.Add(by)
		}
		return events(s.engine.Advance(s.now))
	case "run":
		var out strings.Builder
		for next, ok := s.engine.NextEventAt(); ok; next, ok = s.engine.NextEventAt() {
			s.now = next
			out.WriteString(events(s.engine.Advance(next)))
		}
		return out.String()
	case "speed":
		var f float64
		if _, err := fmt.Sscan(d.CmdArgs[0].Key, &f); err != nil {
			t.Fatal(err)
		}
		return told(s.engine.SetSpeed(f))
	case "next":
		next, ok := s.engine.NextEventAt()
		if !ok {
			return "nothing to wait for\n"
		}
		return fmt.Sprintf("%v\n", next.Sub(epoch))
	case "stats":
		st := s.engine.Stats()
		return fmt.Sprintf("waiting %d, running %d, blocks %d used + %d cached of %d (usage %.2f)\n"+
			"submitted %d: stopped %d, truncated %d, aborted %d; preemptions %d\n"+
			"tokens: prompt %d, queried %d, cached %d, generated %d\n",
			st.Waiting, st.Running, st.BlocksUsed, st.BlocksCached, st.BlocksTotal, st.KVUsage(),
			st.Submitted, st.Stopped, st.Truncated, st.Aborted, st.Preemptions,
			st.PromptTokens, st.QueriedTokens, st.CachedTokens, st.GeneratedTokens)
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func (s *script) new(t *testing.T, d *datadriven.TestData) string {
	var cfg Config
	d.MaybeScanArgs(t, "max-running", &cfg.MaxRunning)
	d.MaybeScanArgs(t, "budget", &cfg.MaxBatchedTokens)
	d.MaybeScanArgs(t, "blocks", &cfg.Blocks)
	d.MaybeScanArgs(t, "block", &cfg.BlockTokens)
	var rate int
	d.MaybeScanArgs(t, "rate", &rate)
	cfg.PrefillRate = float64(rate)
	for key, field := range map[string]*time.Duration{"base": &cfg.StepBase, "per-seq": &cfg.PerSequence} {
		if !d.HasArg(key) {
			continue
		}
		var text string
		d.ScanArgs(t, key, &text)
		value, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		*field = value
	}
	cfg.DisablePrefixCache = d.HasArg("no-cache")
	engine, err := New(cfg, 1)
	if err != nil {
		return err.Error() + "\n"
	}
	s.engine, s.now = engine, epoch
	return "ok\n"
}

func told(err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	return "ok\n"
}

func events(all []Event) string {
	var out strings.Builder
	for _, ev := range all {
		fmt.Fprintf(&out, "%v %s %v", ev.At.Sub(epoch), ev.ID, ev.Kind)
		switch ev.Kind {
		case Admitted:
			if ev.Cached > 0 {
				fmt.Fprintf(&out, ", %d tokens cached", ev.Cached)
			}
		case Finished:
			fmt.Fprintf(&out, ", %d tokens, %v", ev.Generated, ev.Reason)
		case FirstToken, Token, Preempted, Aborted:
			fmt.Fprintf(&out, ", %d so far", ev.Generated)
		}
		out.WriteByte('\n')
	}
	return out.String()
}
