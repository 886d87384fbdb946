package main

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/test/finding"
)

// partMemory bounds what a part of a held body takes, bytes, however small it
// is.
const partMemory = 256

// checkOneByteParts uploads bodies in as many messages as they have bytes, and
// looks what holding them takes.
func checkOneByteParts(s *session, p *picker) error {
	base, err := s.warmUp(p)
	if err != nil {
		return err
	}
	g, err := dial(p.address)
	if err != nil {
		return err
	}
	defer g.close()
	t := talk{
		mode:     modes[0],
		request:  split(chatBody(s.size.oneByteParts), 1),
		response: [][]byte{[]byte("data: [DONE]\n\n")},
	}
	steps := t.steps()
	const uploads = 50
	exchanges := make([]*exchange, uploads)
	err = inParallel(s.ctx, uploads, uploads, func(_ context.Context, i int) error {
		x, err := g.open(s.ctx)
		if err != nil {
			return err
		}
		exchanges[i] = x
		return x.say(steps[:len(t.request)], true)
	})
	if err != nil {
		return err
	}
	held := uploads * (len(t.request) - 1)
	var r reading
	err = s.await("the bytes of bodies are held", func() (bool, error) {
		var err error
		r, err = p.read(s.ctx)
		return r.held() >= float64(held), err
	})
	if err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "one-byte-parts/memory", Value: (r.heap - base.heap) / float64(held), Unit: "B",
		Limit: finding.AtMost(partMemory + (streamMemory*uploads*kibibyte+streamSlack*mebibyte)/float64(held)),
		About: fmt.Sprintf("live heap per byte held, of %d bodies that came in %d messages of one byte", uploads, len(t.request)-1),
	})
	err = inParallel(s.ctx, uploads, uploads, func(_ context.Context, i int) error {
		x := exchanges[i]
		defer x.cancel()
		if err := x.say(steps[len(t.request):], true); err != nil {
			return err
		}
		_, err := x.end()
		return err
	})
	if err != nil {
		return err
	}
	g.close()
	return s.compare("one-byte-parts", p, base, 4)
}
