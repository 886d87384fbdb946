package main

import (
	"fmt"

	"github.com/berth-dev/berth/test/finding"
)

// checkUnread brings bodies one after the other and takes no answer, so that the
// picker cannot hand them back.
func checkUnread(s *session, p *picker) error {
	before, err := s.warmUp(p)
	if err != nil {
		return err
	}
	if err := s.leaveUnread(p, before); err != nil {
		return err
	}
	return s.compare("unread", p, before, 16)
}

// leaveUnread looks at the picker while the answers wait, and leaves.
func (s *session) leaveUnread(p *picker, before reading) error {
	steps := talk{mode: modes[0], request: split(chatBody(s.size.bodyBytes), partBytes)}.steps()
	request := len(steps) - 2
	for range s.size.unread {
		// A connection each: those that are not read share no window.
		g, err := dial(p.address)
		if err != nil {
			return err
		}
		defer g.close()
		x, err := g.open(s.ctx)
		if err != nil {
			return err
		}
		defer x.cancel()
		if err := x.say(steps[:request], false); err != nil {
			return err
		}
	}
	var r reading
	err := s.await("bodies whose answers nobody takes are decided", func() (bool, error) {
		var err error
		r, err = p.read(s.ctx)
		return err == nil && r.placed()-before.placed()+r.refused("overloaded")-before.refused("overloaded") >= float64(s.size.unread), err
	})
	if err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "unread/memory", Value: (r.heap - before.heap) / mebibyte, Unit: "MiB", Limit: finding.AtMost(2 * float64(s.size.buffered) / mebibyte),
		About: fmt.Sprintf("live heap while %d bodies, %d bytes in all, were decided and nobody takes the answers; %s bytes count as held",
			s.size.unread, s.size.unread*s.size.bodyBytes, finding.Number(r.held())),
	})
	return nil
}
