package enginesim

import "time"

// Clock is where a Server takes its time from. It must be safe for concurrent use.
type Clock interface {
	// Now returns the time. It must not run backwards.
	Now() time.Time
	// At returns a channel that receives once Now has reached t, and a function that releases what waits for it.
	At(t time.Time) (reached <-chan time.Time, stop func())
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) At(t time.Time) (<-chan time.Time, func()) {
	timer := time.NewTimer(time.Until(t))
	return timer.C, func() { timer.Stop() }
}
