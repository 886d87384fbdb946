package main

import (
	"context"
	"fmt"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/berth-dev/berth/test/finding"
)

const (
	// streamMemory bounds what an open stream takes of the picker, KiB of heap and
	// stacks; streamSlack, MiB, is for what many have in common.
	streamMemory = 48
	streamSlack  = 4
	// streamGoroutines is the one that gRPC serves it on.
	streamGoroutines = 1
	// connections share the streams of a check.
	connections = 4
	// openers is how many streams are opened at the same time.
	openers = 64
)

// checkStreams holds many responses open in their middle. It does so twice: what
// the first time leaves in the runtime, such as the descriptors of goroutines,
// is no leak if the second time adds nothing.
func checkStreams(s *session, p *picker) error {
	if _, err := s.warmUp(p); err != nil {
		return err
	}
	if _, err := s.holdOpen(p); err != nil {
		return err
	}
	base, err := s.rest(p)
	if err != nil {
		return err
	}
	open, err := s.holdOpen(p)
	if err != nil {
		return err
	}
	n := float64(s.size.streams)
	s.report(finding.Finding{
		Name: "streams/in-flight", Value: open.inFlight(), Limit: finding.Exactly(n),
		About: fmt.Sprintf("responses open at once over %d connections, a part passed on each", connections),
	})
	s.report(finding.Finding{
		Name: "streams/memory", Value: (open.heap + open.stacks - base.heap - base.stacks) / n / kibibyte, Unit: "KiB",
		Limit: finding.AtMost(streamMemory + streamSlack*kibibyte/n),
		About: fmt.Sprintf("live heap and stacks per open stream; resident %s MiB", finding.Number(open.resident/mebibyte)),
	})
	s.report(finding.Finding{
		Name: "streams/goroutines", Value: float64(open.goroutines-base.goroutines) / n,
		Limit: finding.AtMost(streamGoroutines + 10*connections/n),
		About: "goroutines per open stream, those of the connections among them",
	})
	return s.compare("streams", p, base, 4)
}

// holdOpen opens streams up to the middle of their responses, reads the picker,
// and ends half of them as a gateway does and half by a reset.
func (s *session) holdOpen(p *picker) (reading, error) {
	var open reading
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return open, err
	}
	defer closeAll()
	t := usual(extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
	steps := t.steps()
	middle := len(steps) - len(t.response)
	exchanges := make([]*exchange, s.size.streams)
	all := func(do func(context.Context, int) error) error {
		return inParallel(s.ctx, len(exchanges), openers, do)
	}
	err = all(func(_ context.Context, i int) error {
		// The context of a stream is the session's: it outlives this loop.
		x, err := gateways[i%len(gateways)].open(s.ctx)
		if err != nil {
			return err
		}
		exchanges[i] = x
		return x.say(steps[:middle], true)
	})
	if err != nil {
		return open, err
	}
	s.logf("  %d streams are open", len(exchanges))
	if open, err = p.read(s.ctx); err != nil {
		return open, err
	}
	return open, all(func(_ context.Context, i int) error {
		x := exchanges[i]
		defer x.cancel()
		if i%2 == 0 {
			return x.say(steps[middle:middle+1], true)
		}
		if err := x.say(steps[middle:], true); err != nil {
			return err
		}
		_, err := x.end()
		return err
	})
}
