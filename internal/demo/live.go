package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/enginesim"
)

// When things go wrong in the live part, as shares of its length, or later: each
// also waits until the picker has noticed what was before.
const (
	silentFrom, silentTo = 0.1, 0.5
	deadFrom, deadFor    = 0.6, 0.2
)

// Who the faults happen to.
const (
	silentReplica = "r2"
	deadReplica   = "r1"
)

// Live is what became of the requests of the live part.
type Live struct {
	Summary
	// Cut are those of the errors that hit requests which were under way when
	// the replica died.
	Cut int `json:"cut"`
}

// runLive loads the fleet, makes things go wrong, and shows it.
func runLive(ctx context.Context, s *stand, out *screen, work []request, length time.Duration) (*Live, error) {
	out.start = time.Now()
	var samples []sample
	var death span
	both, ctxBoth := errgroup.WithContext(ctx)
	shown, hide := context.WithCancel(ctxBoth)
	defer hide()
	both.Go(func() error {
		defer hide()
		story, ctx := errgroup.WithContext(ctxBoth)
		story.Go(func() (err error) {
			samples, err = send(ctx, s.client, s.gatewayURL(), work)
			return err
		})
		story.Go(func() error { return misfortunes(ctx, s, out, length, &death) })
		return story.Wait()
	})
	both.Go(func() error { return watch(shown, s, out) })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	// Once more, with the end of every request in it.
	if err := drawFleet(ctx, s, out); err != nil {
		return nil, err
	}
	out.keep()
	live := &Live{Summary: summarise(berthName, samples)}
	for i := range samples {
		if samples[i].Err != nil && death.hit(&samples[i]) {
			live.Cut++
		}
	}
	out.say("%s", live.tell())
	return live, nil
}

func (l *Live) tell() string {
	text := fmt.Sprintf("%d of %d requests were answered.", l.Requests-l.Errors, l.Requests)
	if l.Cut > 0 {
		text += fmt.Sprintf(" %d broke off: they were under way when %s died.", l.Cut, deadReplica)
	}
	if other := l.Errors - l.Cut; other > 0 {
		text += fmt.Sprintf(" %d failed without a fault that explains it.", other)
	}
	return text
}

// A span is the time from a replica's death until the picker knew of it.
type span struct{ from, to time.Time }

// hit reports that the request was under way in that time.
func (s span) hit(x *sample) bool { return x.Due.Before(s.to) && x.End.After(s.from) }

// misfortunes is what goes wrong, one thing after the other. death is when.
func misfortunes(ctx context.Context, s *stand, out *screen, length time.Duration, death *span) error {
	start := time.Now()
	at := func(share float64) error {
		return wait(ctx, time.Until(start.Add(time.Duration(share*float64(length)))))
	}
	silent, dead := s.named(silentReplica), s.named(deadReplica)
	var back v1alpha1.Observation
	return inOrder(
		func() error { return at(silentFrom) },
		// What is read of a replica without requests lives longer than the demo.
		func() error { return s.noticed(ctx, silent.Name, "busy", shortLived) },
		func() error {
			out.event("%s: its telemetry page stops answering; it serves as before", silent.Name)
			return silent.SetFaults(enginesim.Faults{PageHang: true})
		},
		func() error {
			return s.noticed(ctx, silent.Name, "stale", func(o *v1alpha1.Observation) bool { return loadState(o) == v1alpha1.Stale })
		},
		func() error {
			out.event("%s: its readings are stale; estimates from the others' stand in for them", silent.Name)
			return at(silentTo)
		},
		func() error {
			out.event("%s: its page answers again", silent.Name)
			return silent.SetFaults(enginesim.Faults{})
		},
		func() error {
			return s.noticed(ctx, silent.Name, "fresh", func(o *v1alpha1.Observation) bool { return loadState(o) == v1alpha1.Fresh })
		},
		func() error { return at(deadFrom) },
		func() error {
			out.event("%s: dies", dead.Name)
			death.from = time.Now()
			dead.Die()
			return nil
		},
		func() error {
			return s.noticed(ctx, dead.Name, "ordered last", func(o *v1alpha1.Observation) bool { return o.Order != orderNormal })
		},
		func() error {
			death.to = time.Now()
			out.event("%s: its connections are refused; it comes after all others", dead.Name)
			return wait(ctx, time.Duration(deadFor*float64(length)))
		},
		func() error {
			if err := dead.Restart(); err != nil {
				return fmt.Errorf("%s cannot come back: %w", dead.Name, err)
			}
			out.event("%s: is back, with an empty cache", dead.Name)
			return nil
		},
		func() error {
			return s.noticed(ctx, dead.Name, "back", func(o *v1alpha1.Observation) bool {
				back = *o
				return o.Order == orderNormal && loadState(o) == v1alpha1.Fresh
			})
		},
		func() error {
			out.event("%s: has answered the picker; %s", dead.Name, prospects(&back))
			return nil
		},
	)
}

// prospects are what a replica that has answered the picker may expect.
func prospects(o *v1alpha1.Observation) string {
	switch o.Excluded {
	case "":
		return "it gets requests again"
	case "quarantined":
		return "since several requests in a row failed there, it is in quarantine until one that tries it goes well"
	default:
		return "it gets no requests: " + strings.ReplaceAll(o.Excluded, "_", " ")
	}
}

// shortLived reports that the replica is read as often as one with requests is.
func shortLived(o *v1alpha1.Observation) bool {
	const most = 3 * time.Second
	r := o.Fields["queueDepth"]
	return r.ObservedAt != nil && r.ExpiresAt != nil && r.ExpiresAt.Sub(*r.ObservedAt) <= most
}

// inOrder does one thing after the other until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// noticed waits until the picker sees a replica as it should.
func (s *stand) noticed(ctx context.Context, name, as string, holds func(*v1alpha1.Observation) bool) error {
	what := fmt.Sprintf("the picker sees that %s is %s", name, as)
	return until(ctx, pickerLimit, what, func() (bool, error) {
		replicas, err := s.observe(ctx)
		if err != nil {
			return false, err
		}
		for i := range replicas {
			if replicas[i].Replica.Name == name {
				return holds(&replicas[i]), nil
			}
		}
		return false, fmt.Errorf("the picker does not report replica %s", name)
	})
}

// wait returns after d, or with the context's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// How often the table is drawn. Plain text keeps every table, so there are
// fewer.
const (
	redrawEvery = time.Second
	plainEvery  = 4 * time.Second
)

// watch draws the fleet until the context ends.
func watch(ctx context.Context, s *stand, out *screen) error {
	every := redrawEvery
	if out.width == nil {
		every = plainEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := drawFleet(ctx, s, out); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

func drawFleet(ctx context.Context, s *stand, out *screen) error {
	replicas, err := s.observe(ctx)
	if err != nil {
		return err
	}
	decisions, err := s.decisions(ctx)
	if err != nil {
		return err
	}
	var table strings.Builder
	if err := console.Fleet(&table, time.Now(), replicas, decisions); err != nil {
		return err
	}
	out.show(table.String())
	return nil
}
