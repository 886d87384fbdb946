package host

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// loadWatch tells in the log when what replicas say of their load is lost, and when it
// is back. It looks at the fleet now and then, by itself: decisions log nothing, and
// somebody may read no metrics. A field that a replica never gave is not lost: engines
// have optional ones.
//
// It is not safe for concurrent use.
type loadWatch struct {
	fleet *fleet
	log   *zap.Logger
	// seen is what was seen of each endpoint in the last round that it was in.
	seen  map[*pool.Live]loadSeen
	round uint64
}

// loadSeen has, for each load field, why it was not fresh, and whether it ever was
// more than missing.
type loadSeen struct {
	round uint64
	why   [telemetry.NumLoadFields]cause
	known [telemetry.NumLoadFields]bool
}

const (
	// lookEvery is the time from one look to the next. What is lost and back again in
	// between is not told.
	lookEvery = 5 * time.Second
	// toldSingly is how many lines of one look may be about one replica each. Beyond
	// that, one line tells of all losses and one of all that are back, so that there is
	// less than a line for a second whatever happens to the fleet.
	toldSingly = 4
	// namedExamples is how many replicas are named by a line that is about many.
	namedExamples = 3
)

func newLoadWatch(f *fleet, log *zap.Logger) *loadWatch {
	return &loadWatch{fleet: f, log: log, seen: map[*pool.Live]loadSeen{}}
}

// follow looks at each tick until ctx ends.
func (w *loadWatch) follow(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			w.look()
		}
	}
}

// run looks every lookEvery until ctx ends.
func (w *loadWatch) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w.follow(ctx, tick.C)
}

// change is that fields of one endpoint are lost for one reason, or that they are back.
type change struct {
	endpoint string
	fields   []string
	state    telemetry.State
	// cause is noCause where they are back.
	cause  cause
	reason string
}

// look compares the fleet with the last look and tells what is different.
func (w *loadWatch) look() {
	now, look := w.fleet.clock(), w.fleet.look()
	if look.off {
		clear(w.seen)
		return
	}
	w.round++
	var lost, back []change
	set := w.fleet.pools.Set()
	for _, e := range set.Endpoints {
		seen := w.seen[e.Live]
		seen.round = w.round
		// What gets no requests anyway may be about to end.
		if e.Ready && !e.Terminating {
			lost, back = seen.compare(e, look, now, lost, back)
		}
		w.seen[e.Live] = seen
	}
	if len(w.seen) > len(set.Endpoints) {
		for live, seen := range w.seen {
			if seen.round != w.round {
				delete(w.seen, live)
			}
		}
	}
	w.tell(lost, back, len(set.Endpoints))
}

// compare notes what is seen of an endpoint and adds what has changed.
func (seen *loadSeen) compare(e *pool.Endpoint, look *look, now telemetry.Instant, lost, back []change) (l, b []change) {
	var load pool.Load
	e.ReadLoad(now, &load)
	from, backFrom := len(lost), len(back)
	var s sight
	for i, f := range telemetry.LoadFields {
		state, why := load.State[i], noCause
		if state != telemetry.Fresh {
			if s.engine == "" {
				s = look.at(e)
			}
			state, why = s.reading(f, now)
		}
		was, known := seen.why[i], seen.known[i]
		seen.why[i], seen.known[i] = why, known || state != telemetry.Missing
		switch {
		case !seen.known[i], known && why == was, !known && why == noCause:
		case why == noCause:
			back = added(back, backFrom, change{endpoint: e.Name, state: state}, f)
		default:
			lost = added(lost, from, change{endpoint: e.Name, state: state, cause: why, reason: s.reason(f, why)}, f)
		}
	}
	return lost, back
}

// added adds a change of a field to those of the same endpoint, which begin at from.
func added(list []change, from int, c change, f telemetry.Field) []change {
	for i := from; i < len(list); i++ {
		if o := &list[i]; o.state == c.state && o.cause == c.cause && o.reason == c.reason {
			o.fields = append(o.fields, f.String())
			return list
		}
	}
	c.fields = []string{f.String()}
	return append(list, c)
}

// reason says why a field is not fresh, for people.
func (s *sight) reason(f telemetry.Field, why cause) string {
	var reasons []string
	if s.snapshot != nil && s.snapshot.Readings[f].Detail != nil {
		reasons = s.snapshot.Readings[f].Detail.Reasons
	}
	switch {
	case why == causePageUnread && s.failure != "":
		return short(s.failure)
	case why == causeExpired:
		return expired
	case len(reasons) == 0:
		return why.String()
	case why == causeFrozen, why == causeStandstill, why == causeEngineTime, why == causeDoubted:
		return short(reasons[len(reasons)-1])
	default:
		return short(reasons[0])
	}
}

func (w *loadWatch) tell(lost, back []change, members int) {
	if len(lost)+len(back) > toldSingly {
		w.tellMany(lost, back, members)
		return
	}
	for _, c := range lost {
		w.log.Warn("load readings are lost", zap.String("endpoint", c.endpoint), zap.Strings("fields", c.fields),
			zap.Stringer("state", c.state), zap.Stringer("cause", c.cause), zap.String("reason", c.reason))
	}
	for _, c := range back {
		w.log.Info("load readings are back", zap.String("endpoint", c.endpoint), zap.Strings("fields", c.fields))
	}
}

func (w *loadWatch) tellMany(lost, back []change, members int) {
	if len(lost) > 0 {
		names, causes := summed(lost)
		w.log.Warn("load readings of replicas are lost", zap.Int("endpoints", len(names)), zap.Int("of", members),
			zap.Any("causes", causes), zap.Strings("forExample", names[:min(namedExamples, len(names))]), zap.String("reason", lost[0].reason))
	}
	if len(back) > 0 {
		names, _ := summed(back)
		w.log.Info("load readings of replicas are back", zap.Int("endpoints", len(names)), zap.Int("of", members),
			zap.Strings("forExample", names[:min(namedExamples, len(names))]))
	}
}

// summed has the endpoints of changes, each once, and how many there are of each cause.
// The changes of an endpoint follow each other.
func summed(list []change) (names []string, causes map[string]int) {
	causes = map[string]int{}
	of := map[cause]bool{}
	for i, c := range list {
		if i == 0 || list[i-1].endpoint != c.endpoint {
			names = append(names, c.endpoint)
			clear(of)
		}
		if !of[c.cause] {
			of[c.cause] = true
			causes[c.cause.String()]++
		}
	}
	return names, causes
}
