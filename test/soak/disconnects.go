package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/berth-dev/berth/test/finding"
)

// endings are the ways in which a gateway leaves.
type ending uint8

const (
	// cancels: the stream is reset.
	cancels ending = iota
	// halfCloses: the gateway says that it sends no more, and waits.
	halfCloses
	// resets: the connection is dropped, with all streams on it.
	resets
	endings
)

// perConnection is how many streams are on a connection that is dropped.
const perConnection = 50

// tally counts what the gateway knows of the requests that it began.
type tally struct {
	begun atomic.Int64
	// placed were told their destination; maybe left before they could be told.
	placed, maybe atomic.Int64
	// endedWell is how many streams ended with status OK before the end of their
	// response: a gateway lets such a request go on by itself.
	endedWell atomic.Int64
}

// checkDisconnects ends conversations after each of their messages: of every two
// one has taken the answers before it leaves, one has not. The configuration
// changes meanwhile.
func checkDisconnects(s *session, p *picker) error {
	base, err := s.warmUp(p)
	if err != nil {
		return err
	}
	stop := s.reloading(p, s.size.reloadEvery, []configuration{standard(s.size), withoutFallbacks(s.size)})
	var t tally
	frames := 0
	for _, m := range modes {
		talk := usual(m)
		steps := talk.steps()
		frames += len(steps) + 1
		for cut := range len(steps) + 1 {
			for e := range endings {
				if err = s.leave(p, &t, talk, steps, cut, e); err != nil {
					_, _ = stop()
					return fmt.Errorf("mode %s, %d of %d messages, ending %d: %w", m, cut, len(steps), e, err)
				}
			}
		}
		s.logf("  mode %s: %d begun in all", m, t.begun.Load())
	}
	reloads, err := stop()
	if err != nil {
		return err
	}
	if err := s.compare("disconnects", p, base, 8); err != nil {
		return err
	}
	now, err := s.rest(p)
	if err != nil {
		return err
	}
	least, most := float64(t.placed.Load()), float64(t.placed.Load()+t.maybe.Load())
	placed := now.placed() - base.placed()
	s.report(finding.Finding{
		Name: "disconnects/placed", Value: max(least-placed, 0) + max(placed-most, 0), Limit: finding.Exactly(0),
		About: fmt.Sprintf("decisions too few or too many: %s, by what the gateway saw %s to %s; %d requests left after %d kinds of prefixes in %d ways, %d reloads meanwhile",
			finding.Number(placed), finding.Number(least), finding.Number(most), t.begun.Load(), frames, endings, reloads),
	})
	s.report(finding.Finding{
		Name: "disconnects/ended-well", Value: float64(t.endedWell.Load()), Limit: finding.Exactly(0),
		About: "half-closed streams that ended with status OK before their response did",
	})
	return nil
}

// leave begins conversations and ends them after cut messages.
func (s *session) leave(p *picker, t *tally, talk talk, steps []step, cut int, e ending) error {
	n := s.size.disconnects
	batches := (n + perConnection - 1) / perConnection
	return inParallel(s.ctx, batches, 4, func(_ context.Context, batch int) error {
		g, err := dial(p.address)
		if err != nil {
			return err
		}
		defer g.close()
		exchanges := make([]*exchange, min(perConnection, n-batch*perConnection))
		err = inParallel(s.ctx, len(exchanges), 8, func(_ context.Context, i int) error {
			// The context of a stream is the session's: it outlives this loop.
			x, err := g.open(s.ctx)
			if err != nil {
				return err
			}
			exchanges[i] = x
			t.begun.Add(1)
			if err := x.say(steps[:cut], i%2 == 0); err != nil {
				return err
			}
			switch e {
			case cancels:
				x.cancel()
			case halfCloses:
				code, err := x.end()
				if err != nil {
					return err
				}
				if code == codes.OK && cut < len(steps) {
					t.endedWell.Add(1)
				}
			}
			switch {
			case x.destination != "":
				t.placed.Add(1)
			case cut > talk.decidedAt():
				t.maybe.Add(1)
			}
			return nil
		})
		if e == resets {
			g.reset()
		}
		for _, x := range exchanges {
			if x != nil {
				x.cancel()
			}
		}
		return err
	})
}
