package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/test/finding"
)

const (
	kibibyte = 1 << 10
	mebibyte = 1 << 20
)

// session is what the checks of one run share.
type session struct {
	ctx context.Context
	// dir is a scratch directory of this run.
	dir    string
	size   size
	report func(finding.Finding)
	// verbose takes what -v asks for; nil without it.
	verbose io.Writer
	started time.Time
}

// size is how much of everything a run does.
type size struct {
	// streams are open at once.
	streams int
	// halfOpen is the number of clients of each kind that do not go on.
	halfOpen int
	// oneByteParts is how many messages a body of as many bytes comes in.
	oneByteParts int
	// bodies of bodyBytes each come at once; buffered, body bytes, is what the
	// picker may hold.
	bodies, bodyBytes int
	buffered          int
	// unread is how many such bodies come whose answers nobody takes.
	unread int
	// disconnects is how often each mode, frame and ending is met.
	disconnects int
	// names is how many of each kind there are; longNames more have longName
	// bytes each.
	names, longNames, longName int
	// garbage is how many connections bring each kind of it.
	garbage int
	// reloads is how often the configuration changes.
	reloads     int
	reloadEvery time.Duration
}

func fullSize() size {
	return size{
		streams:      10_000,
		halfOpen:     1000,
		oneByteParts: 2000,
		bodies:       60, bodyBytes: 20_000_000, buffered: 256 << 20,
		unread:      60,
		disconnects: 500,
		names:       50_000, longNames: 200, longName: 1_000_000,
		garbage: 50,
		reloads: 12, reloadEvery: time.Second,
	}
}

func (s *session) logf(format string, args ...any) {
	if s.verbose != nil {
		fmt.Fprintf(s.verbose, "%7s "+format+"\n", append([]any{time.Since(s.started).Round(100 * time.Millisecond)}, args...)...)
	}
}

const (
	// patience bounds every wait for a condition.
	patience = 90 * time.Second
	// pollEvery is how often a condition is looked at.
	pollEvery = 20 * time.Millisecond
)

// until waits for a condition and reports whether it came to hold in time.
func (s *session) until(condition func() (bool, error)) (bool, error) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		holds, err := condition()
		if holds || err != nil {
			return holds, err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return false, nil
		case <-s.ctx.Done():
			return false, s.ctx.Err()
		}
	}
}

// await is until for a condition without which the check cannot go on.
func (s *session) await(what string, condition func() (bool, error)) error {
	holds, err := s.until(condition)
	if err == nil && !holds {
		err = fmt.Errorf("%s: not within %s", what, patience)
	}
	return err
}

// inParallel calls do for 0 to n-1, so many at a time, and returns the first
// error.
func inParallel(ctx context.Context, n, workers int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
