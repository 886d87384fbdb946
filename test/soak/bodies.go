package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/test/finding"
)

const (
	// partBytes is the size of the parts in which a body comes.
	partBytes = 64 << 10
	// bodyRoom, MiB, is what a picker may have of memory beside the bodies that it
	// holds: what berth-epp adds to them in its memory limit, up to which it lets
	// garbage lie, and what that limit does not count, such as the binary.
	bodyRoom = 512 + 128
)

// checkBodies brings more bytes of bodies than the picker may hold.
func checkBodies(s *session, p *picker) error {
	if _, err := s.warmUp(p); err != nil {
		return err
	}
	body := chatBody(s.size.bodyBytes)
	duplex, buffered := modes[0], modes[1]
	parts, whole := split(body, partBytes), [][]byte{body}
	base := reading{}
	for round, b := range []struct {
		name string
		talk talk
	}{
		// The first round is made twice: for the buffers that the runtime keeps.
		{"", talk{mode: duplex, request: parts}},
		{"parts", talk{mode: duplex, request: parts}},
		{"one-message", talk{mode: duplex, request: whole}},
		{"buffered", talk{mode: buffered, request: whole}},
	} {
		if err := s.upTo(p, b.name, b.talk); err != nil {
			return err
		}
		if round == 0 {
			var err error
			if base, err = s.rest(p); err != nil {
				return err
			}
		}
	}
	if err := s.beyond(p, talk{mode: duplex, request: parts}); err != nil {
		return err
	}
	if err := s.compare("bodies", p, base, 16); err != nil {
		return err
	}
	now, err := p.read(s.ctx)
	if err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "bodies/resident", Value: now.peak / mebibyte, Unit: "MiB", Limit: finding.AtMost(2*float64(s.size.buffered)/mebibyte + bodyRoom),
		About: fmt.Sprintf("most resident memory ever; %s MiB may be held, and each body twice while its parts are joined", finding.Number(float64(s.size.buffered)/mebibyte)),
	})
	return nil
}

// upTo brings as many bodies at once as may be held: all must be placed and
// come back.
func (s *session) upTo(p *picker, name string, t talk) error {
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	n := s.size.buffered / s.size.bodyBytes
	steps := t.steps()
	var placed atomic.Int64
	err = inParallel(s.ctx, n, n, func(ctx context.Context, i int) error {
		if err := passOne(ctx, gateways[i%len(gateways)], t, steps); err != nil {
			return err
		}
		placed.Add(1)
		return nil
	})
	about := fmt.Sprintf("bodies of %d bytes in %d messages each, %s, all at once, that were placed", s.size.bodyBytes, len(t.request), t.mode)
	if err != nil {
		about = fmt.Sprintf("%s; the first that was not: %v", about, err)
	}
	if name != "" || err != nil {
		s.report(finding.Finding{Name: "bodies/" + name, Value: float64(placed.Load()), Limit: finding.Exactly(float64(n)), About: about})
	}
	return s.ctx.Err()
}

// beyond sends all but the last part of more bodies than may be held, then the
// last parts: each is placed, or refused for the reason that there is.
func (s *session) beyond(p *picker, t talk) error {
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	before, err := p.metrics(s.ctx)
	if err != nil {
		return err
	}
	steps := t.steps()
	last := len(t.request)
	var placed, refused atomic.Int64
	var sent sync.WaitGroup
	sent.Add(s.size.bodies)
	proceed := make(chan error, 1)
	go func() {
		sent.Wait()
		proceed <- s.await("a body is refused", func() (bool, error) {
			page, err := p.metrics(s.ctx)
			return err == nil && page.refused("overloaded") > before.refused("overloaded"), err
		})
		close(proceed)
	}()
	err = inParallel(s.ctx, s.size.bodies, s.size.bodies, func(ctx context.Context, i int) error {
		x, err := gateways[i%len(gateways)].open(ctx)
		if err != nil {
			sent.Done()
			return err
		}
		defer x.cancel()
		err = x.say(steps[:last], true)
		sent.Done()
		if err != nil {
			return err
		}
		if err := <-proceed; err != nil {
			return err
		}
		err = x.say(steps[last:last+1], true)
		var r *refusal
		switch {
		case err == nil:
			placed.Add(1)
		case errors.As(err, &r) && r.status == 503 && r.reason == "overloaded":
			refused.Add(1)
		default:
			return err
		}
		return nil
	})
	about := fmt.Sprintf("bodies at once, %d bytes in all where %d may be held, that were placed (%d) or refused with 503 overloaded (%d)",
		s.size.bodies*s.size.bodyBytes, s.size.buffered, placed.Load(), refused.Load())
	if err != nil {
		about = fmt.Sprintf("%s; the first that was neither: %v", about, err)
	}
	s.report(finding.Finding{
		Name: "bodies/beyond", Value: float64(placed.Load() + refused.Load()), Limit: finding.Exactly(float64(s.size.bodies)), About: about,
	})
	return s.ctx.Err()
}
