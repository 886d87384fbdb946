package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/berth-dev/berth/test/finding"
)

// trickle is the pause between the bytes of a slow upload; it is well below the
// uploadIdle of hasty.
const trickle = 300 * time.Millisecond

// checkHalfOpen brings clients that begin a request and do not finish it.
func checkHalfOpen(s *session, p *picker) error {
	if _, err := s.warmUp(p); err != nil {
		return err
	}
	// Once for the descriptors of goroutines that the runtime keeps.
	if err := s.silentHeaders(p, func(finding.Finding) {}); err != nil {
		return err
	}
	base, err := s.rest(p)
	if err != nil {
		return err
	}
	for _, part := range []func() error{
		func() error { return s.silentHeaders(p, s.report) },
		func() error { return s.slowUploads(p) },
		func() error { return s.silentStreams(p, base) },
		func() error { return s.muteConnections(p) },
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return s.compare("half-open", p, base, 8)
}

// silentHeaders sends the headers of requests and no body.
func (s *session) silentHeaders(p *picker, report func(finding.Finding)) error {
	return s.refusedUploads(p, "silent-headers", "upload_idle", "requests of which only the headers came", report,
		func(context.Context, *exchange) error { return nil })
}

// slowUploads sends bodies byte by byte, each in time.
func (s *session) slowUploads(p *picker) error {
	part := requestBody([]byte{' '}, false)
	return s.refusedUploads(p, "slow-uploads", "upload_slow", "requests of whose body a byte came each "+trickle.String(), s.report,
		func(ctx context.Context, x *exchange) error {
			tick := time.NewTicker(trickle)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
				if err := x.send(part); err != nil {
					return err
				}
			}
		})
}

// refusedUploads begins requests, goes on as upload says until they are
// answered, and reports how many are refused for the reason.
func (s *session) refusedUploads(p *picker, name, reason, about string, report func(finding.Finding), upload func(context.Context, *exchange) error) error {
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	headers := requestHeaders(extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, "/v1/chat/completions")
	refused := make([]bool, s.size.halfOpen)
	err = inParallel(ctx, len(refused), len(refused), func(ctx context.Context, i int) error {
		x, err := gateways[i%len(gateways)].open(ctx)
		if err != nil {
			return err
		}
		defer x.cancel()
		if err := x.send(headers); err != nil {
			return err
		}
		uploading, answered := context.WithCancel(ctx)
		uploaded := make(chan error, 1)
		go func() { uploaded <- upload(uploading, x) }()
		_, err = x.take()
		answered()
		if err := <-uploaded; err != nil {
			return err
		}
		var r *refusal
		if !errors.As(err, &r) {
			return fmt.Errorf("%s: in place of a refusal: %w", name, err)
		}
		refused[i] = r.status == 408 && r.reason == reason
		return nil
	})
	if err != nil {
		return err
	}
	n := 0
	for _, r := range refused {
		if r {
			n++
		}
	}
	report(finding.Finding{
		Name: "half-open/" + name, Value: float64(n), Limit: finding.Exactly(float64(len(refused))),
		About: about + ", refused with 408 " + reason,
	})
	return nil
}

// silentStreams opens streams and sends nothing. The picker waits a minute for a
// first message; here the clients leave before that.
func (s *session) silentStreams(p *picker, base reading) error {
	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	exchanges := make([]*exchange, s.size.halfOpen)
	err = inParallel(s.ctx, len(exchanges), openers, func(_ context.Context, i int) (err error) {
		exchanges[i], err = gateways[i%len(gateways)].open(s.ctx)
		return err
	})
	if err != nil {
		return err
	}
	var r reading
	arrived := func() (bool, error) {
		var err error
		r, err = p.read(s.ctx)
		return err == nil && r.streams() >= float64(len(exchanges)), err
	}
	if err := s.await("streams without a message arrive", arrived); err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "half-open/silent-streams", Value: (r.heap + r.stacks - base.heap - base.stacks) / float64(len(exchanges)) / kibibyte, Unit: "KiB",
		Limit: finding.AtMost(streamMemory + streamSlack*kibibyte/float64(len(exchanges))),
		About: fmt.Sprintf("live heap and stacks per stream without a message, %d of them", len(exchanges)),
	})
	for i, x := range exchanges {
		// Every other one leaves with its connection, below.
		if i%2 == 0 {
			x.cancel()
		}
	}
	for _, g := range gateways {
		g.reset()
	}
	for _, x := range exchanges {
		x.cancel()
	}
	return nil
}

// muteConnections have a request placed and neither read nor answer anything
// from then on, as a gateway whose machine is gone. Pings tell the picker.
func (s *session) muteConnections(p *picker) error {
	headers := requestHeaders(extprocfilterv3.ProcessingMode_NONE, "/v1/chat/completions")
	request, err := muteRequest(headers)
	if err != nil {
		return err
	}
	before, err := p.metrics(s.ctx)
	if err != nil {
		return err
	}
	conns := make([]net.Conn, s.size.garbage)
	for i := range conns {
		conn, err := writeRaw(p.address, request)
		if err != nil {
			return err
		}
		defer conn.Close()
		conns[i] = conn
	}
	n := float64(len(conns))
	var page *page
	look := func(condition func() bool) func() (bool, error) {
		return func() (bool, error) {
			var err error
			page, err = p.metrics(s.ctx)
			return err == nil && condition(), err
		}
	}
	if err := s.await("requests of mute connections are placed", look(func() bool { return page.placed()-before.placed() >= n })); err != nil {
		return err
	}
	// The clients are still there, and say nothing.
	if _, err := s.until(look(func() bool { return page.inFlight() == 0 })); err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "half-open/mute", Value: page.inFlight(), Limit: finding.Exactly(0),
		About: fmt.Sprintf("requests still in flight of %d whose connection answers nothing, pings neither", len(conns)),
	})
	return nil
}
