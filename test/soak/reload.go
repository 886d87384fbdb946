package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/test/finding"
)

func withoutFallbacks(n size) configuration {
	c := standard(n)
	c.fallbacks = 0
	return c
}

// reloading puts the configurations in force by turns, until stop is called,
// which tells how often it did.
func (s *session) reloading(p *picker, every time.Duration, turns []configuration) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(s.ctx)
	n := 0
	var group errgroup.Group
	group.Go(func() error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			n++
			if err := p.configure(turns[n%len(turns)]); err != nil {
				return err
			}
		}
	})
	return func() (int, error) {
		cancel()
		err := group.Wait()
		return n, err
	}
}

// checkReload passes whole conversations while the configuration changes: the
// endpoints, the fallbacks, whether engines are read, and a file that is no
// configuration at all. None may be refused, and each has to get its answers.
func checkReload(s *session, p *picker) error {
	base, err := s.warmUp(p)
	if err != nil {
		return err
	}
	usually := standard(s.size)
	fewer, read, broken := usually, usually, usually
	fewer.endpoints = 3
	read.telemetry = "auto"
	broken.limits = "{body: none}"
	turns := []configuration{usually, fewer, withoutFallbacks(s.size), broken, read}

	gateways, closeAll, err := dialMany(p.address)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var passed atomic.Int64
	group, traffic := errgroup.WithContext(s.ctx)
	const streams = 16
	for i := range streams {
		t := usual(modes[i%len(modes)])
		steps := t.steps()
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := passOne(traffic, gateways[i%len(gateways)], t, steps); err != nil {
					return err
				}
				passed.Add(1)
			}
			return nil
		})
	}
	stop := s.reloading(p, s.size.reloadEvery, turns)
	var taken float64
	waitErr := s.await("the reloads take place", func() (bool, error) {
		page, err := p.metrics(s.ctx)
		if err != nil {
			return false, err
		}
		taken = page.reloads("ok") + page.reloads("failed")
		return taken >= float64(s.size.reloads) || traffic.Err() != nil, nil
	})
	_, stopErr := stop()
	cancel()
	lost := 0.0
	about := fmt.Sprintf("of %d requests while %s configurations were put in force or refused", passed.Load(), finding.Number(taken))
	if err := group.Wait(); err != nil {
		lost, about = 1, "the first that did not get its answers: "+err.Error()
	}
	for _, err := range []error{waitErr, stopErr} {
		if err != nil {
			return err
		}
	}
	s.report(finding.Finding{Name: "reload/lost", Value: lost, Limit: finding.Exactly(0), About: about})
	closeAll()
	if err := p.configure(usually); err != nil {
		return err
	}
	return s.compare("reload", p, base, 8)
}
