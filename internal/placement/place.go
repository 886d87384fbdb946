package placement

import (
	"math"
	"slices"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Rung says how good the evidence behind an order was.
type Rung uint8

const (
	Full Rung = iota
	Partial
	Local
	Spread
	// Refuse is the rung of a request that was not placed.
	Refuse
)

func (r Rung) String() string {
	return [...]string{"full", "partial", "local", "spread", "refuse"}[r]
}

// Use says what became of a field in one decision.
type Use uint8

const (
	// Unused: no scorer with weight reads the field.
	Unused Use = iota
	// UsedFull: fresh at every row.
	UsedFull
	// UsedPartial: fresh at a quorum of rows, imputed at the others.
	UsedPartial
	// Dropped: fresh at fewer, ignored for all rows.
	Dropped
)

func (u Use) String() string {
	return [...]string{"unused", "full", "partial", "dropped"}[u]
}

// Result is one order with its reasons. It may be reused; Place overwrites it.
type Result struct {
	Rung Rung
	// Ranked are rows of the evidence, best first: the pick and the fallbacks.
	Ranked []int
	// Uses tells what became of each load field, in the order of LoadFields.
	Uses [numLoadFields]Use
	// Estimate is what scorers read of each load field; nil where the field is
	// unused or dropped.
	Estimate [numLoadFields][]float64
	// Scores has one column per scorer of the plan, NaN for "no evidence";
	// empty on rungs where no scorer ran.
	Scores [][]float64
	// Total is what rows were ordered by.
	Total []float64

	estimates [numLoadFields][]float64
	columns   [][]float64
	samples   []float64
	input     Input
}

// Place orders the rows of ev for the request with this key and writes the
// pick and at most fallbacks others to res. ev must have at least one row.
func (p *Plan) Place(ev *Evidence, key uint64, fallbacks int, res *Result) {
	n := ev.Len()
	res.Total = resize(res.Total, n)
	p.estimate(ev, res)
	res.Rung = p.rung(ev, res)
	switch res.Rung {
	case Full, Partial:
		p.score(n, res)
	case Local:
		res.Scores = res.columns[:0]
		localScore(ev, res)
	default:
		res.Scores = res.columns[:0]
		clear(res.Total)
	}
	rank(ev, key, 1+max(0, min(fallbacks, MaxFallbacks, n-1)), res)
}

// Columns of the counts among the load fields, in the order of LoadFields.
const (
	queueColumn = iota
	activeColumn
)

// estimate fills the columns that scorers read.
func (p *Plan) estimate(ev *Evidence, res *Result) {
	for i := range LoadFields {
		res.Uses[i] = p.use(i, &ev.Load[i])
	}
	for i := range LoadFields {
		res.Estimate[i] = nil
		if !res.used(i) {
			continue
		}
		res.estimates[i] = resize(res.estimates[i], ev.Len())
		out := res.estimates[i]
		for row, v := range ev.Load[i].Value {
			out[row] = v + float64(pendingIn(ev, res, i, row))
		}
		res.Estimate[i] = out
		if res.Uses[i] == UsedPartial {
			impute(ev, i, out, res)
		}
	}
}

// use says what becomes of a load field.
func (p *Plan) use(column int, col *Column) Use {
	if !p.weighted[column] {
		return Unused
	}
	fresh, n := 0, len(col.State)
	for _, s := range col.State {
		if s == telemetry.Fresh {
			fresh++
		}
	}
	switch {
	case float64(fresh)/float64(n) < p.quorum:
		// The quotient is rounded to the double that a quorum of just this share
		// is written as; the product quorum x n can come out above a whole number.
		return Dropped
	case fresh < n:
		return UsedPartial
	default:
		return UsedFull
	}
}

// used reports that a load field counts in this decision.
func (res *Result) used(column int) bool {
	return res.Uses[column] == UsedFull || res.Uses[column] == UsedPartial
}

// pendingIn is how many of the requests that the page cannot have counted are
// added to a load field. Each is added once: to the queue, since a request that
// has just come is still to be prefilled and the next one waits behind it; to the
// active requests where the queue does not count in the decision. A ratio takes
// none.
func pendingIn(ev *Evidence, res *Result, column, row int) int32 {
	if column == queueColumn || column == activeColumn && !res.used(queueColumn) {
		return ev.Pending[row]
	}
	return 0
}

// inFlightIn is this picker's own knowledge of a load field: its requests there,
// each told once as in pendingIn.
func inFlightIn(ev *Evidence, res *Result, column, row int) int32 {
	switch {
	case column == queueColumn && res.used(activeColumn):
		return ev.Pending[row]
	case column == activeColumn && res.used(queueColumn):
		return ev.InFlight[row] - ev.Pending[row]
	case column == queueColumn || column == activeColumn:
		return ev.InFlight[row]
	default:
		return 0
	}
}

// impute replaces every value of out that is not fresh: by the median of the
// fresh ones, or by this picker's own knowledge where that is worse.
func impute(ev *Evidence, column int, out []float64, res *Result) {
	state := ev.Load[column].State
	res.samples = res.samples[:0]
	for row, s := range state {
		if s == telemetry.Fresh {
			res.samples = append(res.samples, out[row])
		}
	}
	m := median(res.samples)
	for row, s := range state {
		if s != telemetry.Fresh {
			out[row] = max(m, float64(inFlightIn(ev, res, column, row)))
		}
	}
}

// median is the middle value, or the mean of the two in the middle. It reorders
// values.
func median(values []float64) float64 {
	n := len(values)
	upper := nth(values, n/2)
	if n%2 == 1 {
		return upper
	}
	lower := slices.Max(values[:n/2])
	return lower + (upper-lower)/2
}

// nth puts the value that sorting would put at k there, no larger ones before
// it and no smaller ones after it, and returns it. It takes linear time where
// sorting would be most of a decision.
func nth(values []float64, k int) float64 {
	lo, hi := 0, len(values)-1
	for lo < hi {
		// The median of three keeps sorted input, the usual one, from being the
		// worst case.
		mid := int(uint(lo+hi) / 2)
		if values[mid] < values[lo] {
			values[mid], values[lo] = values[lo], values[mid]
		}
		if values[hi] < values[lo] {
			values[hi], values[lo] = values[lo], values[hi]
		}
		if values[hi] < values[mid] {
			values[hi], values[mid] = values[mid], values[hi]
		}
		pivot := values[mid]
		i, j := lo, hi
		for i <= j {
			for values[i] < pivot {
				i++
			}
			for values[j] > pivot {
				j--
			}
			if i <= j {
				values[i], values[j] = values[j], values[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return values[k]
		}
	}
	return values[k]
}

func (p *Plan) rung(ev *Evidence, res *Result) Rung {
	full, any := true, false
	for i, u := range res.Uses {
		if !p.weighted[i] {
			continue
		}
		any = any || u == UsedFull || u == UsedPartial
		full = full && u == UsedFull
	}
	switch {
	case any && full:
		return Full
	case any:
		return Partial
	}
	for row := range ev.InFlight {
		if ev.InFlight[row] > 0 || !math.IsNaN(ev.Latency[row]) {
			return Local
		}
	}
	return Spread
}

// score sums what the scorers say, in the plan's order. The products are
// rounded on their own (the conversions forbid a fused multiply-add), so that
// every architecture gets the same bits.
func (p *Plan) score(n int, res *Result) {
	res.input = Input{n: n, estimate: res.Estimate}
	for len(res.columns) < len(p.scorers) {
		res.columns = append(res.columns, nil)
	}
	clear(res.Total)
	for i := range p.scorers {
		s := &p.scorers[i]
		res.columns[i] = resize(res.columns[i], n)
		out := res.columns[i]
		s.Score(&res.input, out)
		for row, v := range out {
			if math.IsNaN(v) {
				continue
			}
			v = min(max(v, 0), 1)
			out[row] = v
			res.Total[row] += float64(s.Weight * v)
		}
	}
	res.Scores = res.columns[:len(p.scorers)]
}

// slowFactor is how many times the median latency an endpoint must show before
// the local rung holds it against it: below, the difference is noise, and
// following it would send everything to one endpoint.
const slowFactor = 2

// minLatency keeps a clock that did not move from dividing by zero, seconds.
const minLatency = 1e-6

// localScore orders by the requests in flight here, weighted with how much
// slower than the median an endpoint was clearly seen to be.
func localScore(ev *Evidence, res *Result) {
	res.samples = res.samples[:0]
	for _, l := range ev.Latency {
		if !math.IsNaN(l) {
			res.samples = append(res.samples, l)
		}
	}
	typical := math.NaN()
	if len(res.samples) > 0 {
		// The lower median: in a pool of two, the faster one is what the other
		// is compared with.
		typical = max(nth(res.samples, (len(res.samples)-1)/2), minLatency)
	}
	for row, l := range ev.Latency {
		cost := float64(ev.InFlight[row]) + 1
		if ratio := l / typical; ratio >= slowFactor {
			cost *= math.Floor(ratio)
		}
		res.Total[row] = 1 / cost
	}
}

// rank selects the k best rows: rows that are not last before those that are,
// then by total, then by rendezvous hash, then by row.
func rank(ev *Evidence, key uint64, k int, res *Result) {
	res.Ranked = res.Ranked[:0]
	for row := range res.Total {
		if len(res.Ranked) == k && !better(ev, res.Total, key, row, res.Ranked[k-1]) {
			continue
		}
		if len(res.Ranked) < k {
			res.Ranked = append(res.Ranked, row)
		} else {
			res.Ranked[k-1] = row
		}
		for i := len(res.Ranked) - 1; i > 0 && better(ev, res.Total, key, row, res.Ranked[i-1]); i-- {
			res.Ranked[i], res.Ranked[i-1] = res.Ranked[i-1], row
		}
	}
}

func better(ev *Evidence, total []float64, key uint64, a, b int) bool {
	if ev.Last[a] != ev.Last[b] {
		return !ev.Last[a]
	}
	if total[a] != total[b] {
		return total[a] > total[b]
	}
	ra, rb := Rendezvous(key, ev.Hash[a]), Rendezvous(key, ev.Hash[b])
	if ra != rb {
		return ra > rb
	}
	return a < b
}

// Rendezvous mixes a request key with an endpoint's hash (the finalizer of
// splitmix64): for each key the endpoints are in an order of their own, and
// removing one moves only the requests that it had.
func Rendezvous(key, endpoint uint64) uint64 {
	x := key ^ endpoint
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
