package placement

import (
	"math"
	"time"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// OutcomeWindow is how long the observed latency of a finished request counts
// as knowledge of an endpoint.
const OutcomeWindow = 60 * time.Second

// LoadFields are the fields whose freshness decides the rung. All other fields
// are dropped silently when they are absent.
var LoadFields = telemetry.LoadFields

const numLoadFields = telemetry.NumLoadFields

// Evidence is everything that a decision looks at: one row per screened
// endpoint, one column per fact. It is the whole input of Place apart from the
// plan and the request key, and a record of it is enough to place again.
type Evidence struct {
	// Hash identifies the endpoint in rendezvous hashing.
	Hash []uint64
	// Last orders the row after all rows without it.
	Last []bool
	// InFlight is this picker's requests at the endpoint, Pending the part of
	// them that the endpoint's readings cannot have counted.
	InFlight []int32
	Pending  []int32
	// Latency is the smoothed time to first byte in seconds, NaN where nothing
	// was observed within OutcomeWindow.
	Latency []float64
	// Load is the load fields in the order of LoadFields.
	Load [numLoadFields]Column
}

// Column is one field over all rows. Value means nothing where State is
// neither Fresh nor Stale.
type Column struct {
	Value []float64
	State []telemetry.State
}

// Len is the number of rows.
func (ev *Evidence) Len() int { return len(ev.Hash) }

// Reset makes room for n rows, reusing memory. The rows hold old values until
// they are set.
func (ev *Evidence) Reset(n int) {
	ev.Hash = resize(ev.Hash, n)
	ev.Last = resize(ev.Last, n)
	ev.InFlight = resize(ev.InFlight, n)
	ev.Pending = resize(ev.Pending, n)
	ev.Latency = resize(ev.Latency, n)
	for i := range ev.Load {
		ev.Load[i].Value = resize(ev.Load[i].Value, n)
		ev.Load[i].State = resize(ev.Load[i].State, n)
	}
}

// Gather reads the endpoints in the given slots of set as they are at now.
func (ev *Evidence) Gather(set *pool.Set, slots []int32, now telemetry.Instant) {
	ev.Reset(len(slots))
	var load pool.Load
	for row, slot := range slots {
		live := set.Lives[slot]
		ev.Hash[row] = set.Hashes[slot]
		ev.Last[row] = live.OrderedLast()
		ev.InFlight[row] = live.InFlight()
		ev.Latency[row] = math.NaN()
		if seconds, at, ok := live.Latency(); ok && now.Sub(at) <= OutcomeWindow {
			ev.Latency[row] = seconds
		}
		live.ReadLoad(now, &load)
		ev.Pending[row] = load.Pending
		for i := range ev.Load {
			ev.Load[i].Value[row], ev.Load[i].State[row] = load.Value[i], load.State[i]
		}
	}
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
