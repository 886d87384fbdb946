package collect

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// A page that takes long is followed by a pause as long as itself, and what it said
// lives until the next can have come: the interval that counts is the one that is kept.
func TestS2_AReadingOutlivesThePauseAfterAPageThatTakesLong(t *testing.T) {
	for _, takes := range []time.Duration{100, 400, 700, 900, 990} {
		takes *= time.Millisecond
		e := newFakeEngine(t, calm.handle)
		f := start(t, func(o *Options) { o.Timeout = time.Second }, e.spec("a"))
		f.mustScrape("ok")
		f.settle()
		e.serve(slowly(f.clock, takes, calm.handle))
		unit := f.endpoint(0).Take(f.clock.Now())
		var before telemetry.Reading
		for range 5 {
			f.mustScrape("ok")
			f.settle()
			if before.ObservedAt != 0 && before.State(f.clock.Now()-1) != telemetry.Fresh {
				t.Errorf("pages take %v: a reading lives %v, and the next is there after %v", takes,
					before.ExpiresAt.Sub(before.ObservedAt), f.clock.Now().Sub(before.ObservedAt))
				break
			}
			before = f.endpoint(0).Snapshot().Readings[telemetry.QueueDepth]
		}
		unit.Release()
		f.stop()
	}
}
