package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// History is what the pages of one endpoint have left behind: counters as they
// were, and since when the page stands still. The zero value is that of an
// endpoint that was never read. It belongs to one reader at a time.
type History struct {
	// profile is whose numbering the windows follow.
	profile *Profile
	windows []window
	// counted is when the windows were last read, 0 if never.
	counted telemetry.Instant
	// reset: a counter fell since takeReset was last asked.
	reset bool
	// print is a digest of the page's values, and movedAt when it was last
	// another one.
	print   uint64
	movedAt telemetry.Instant
	// stale is why the page was judged stale since it moved; empty if it was not.
	stale string
	// models are those that the page showed when it was last read in full.
	models []string
}

// countEvery is the shortest time between two readings of the windows. A hot
// endpoint is read several times in it, for its gauges. One where nothing happens
// has nothing to count.
const (
	countEvery      = time.Second
	countQuietEvery = 8 * time.Second
)

// counts reports that the windows are due. A page alone is read in full, to say
// what a window would need.
func (h *History) counts(in *Input) bool {
	if h == nil || h.counted == 0 || in.At < h.counted {
		return true
	}
	quiet := h.stale == "" && in.Traffic.BusySince == 0 && in.Previous != nil && !busyReadings(in.Previous) && h.movedAt < h.counted
	if quiet {
		return in.At.Sub(h.counted) >= countQuietEvery
	}
	return in.At.Sub(h.counted) >= countEvery
}

// dueAgain has the next page read in full: what was read of this one is nothing
// that later pages could be spared.
func (h *History) dueAgain() {
	if h != nil {
		h.counted = 0
	}
}

// holdTo makes h that of a profile.
func (h *History) holdTo(p *Profile) {
	if h == nil || h.profile == p {
		return
	}
	*h = History{profile: p, windows: make([]window, p.windows)}
}

// restart forgets what was counted by a process that is gone. The page of at is
// the first of its successor.
func (h *History) restart(at telemetry.Instant) {
	if h == nil {
		return
	}
	h.counted = 0
	for i := range h.windows {
		w := &h.windows[i]
		if w.last.at != at {
			*w = window{}
			continue
		}
		first := w.last
		first.buckets = slices.Clone(first.buckets)
		w.marks = append(w.marks[:0], first)
	}
}

// takeReset reports that a counter fell, once.
func (h *History) takeReset() bool {
	if h == nil || !h.reset {
		return false
	}
	h.reset = false
	return true
}

// note remembers the page's values as a whole.
func (h *History) note(at telemetry.Instant, sc *scratch) {
	if h == nil {
		return
	}
	h.counted = at
	var print uint64
	for i := range sc.samples {
		s := &sc.samples[i]
		if sc.profile.families[s.family].still {
			continue
		}
		print += mix(s.hash ^ mix(math.Float64bits(s.value)^uint64(s.family)))
	}
	if print != h.print || h.movedAt == 0 {
		h.print, h.movedAt, h.stale = print, at, ""
	}
}

// mix spreads the bits of x over all of it.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// window is one source that counts.
type window struct {
	// marks are what was counted at some times, the oldest first. The oldest is
	// the last one from before the window.
	marks []mark
	// series are the single counters of the page before, ordered by hash: each
	// must be there again, and not lower.
	series []counter
	// bounds are those of a histogram's buckets, ascending; the last is +Inf.
	bounds []float64
	// last is what was counted on the page before.
	last mark
}

// mark is what a source had counted at a time.
type mark struct {
	at telemetry.Instant
	// part is what the source itself counts, whole what it is compared with.
	part, whole float64
	// buckets are cumulative, one for each bound.
	buckets []float64
}

type counter struct {
	hash  uint64
	value float64
}

// marksPerWindow is how finely the beginning of a window moves on.
const marksPerWindow = 4

// counting is memory for the windows of one page.
type counting struct {
	counters              []counter
	bounds                []float64
	cumulative, increases []float64
	seen                  []int
}

// grown is what a source counted within its window.
func (e *evaluation) grown(src *source, f telemetry.Field) outcome {
	now := mark{at: e.in.At}
	e.counters, e.bounds = e.counters[:0], e.bounds[:0]
	h := e.in.History
	if o := e.countAll(src, &now); o.kind != possible {
		if o.kind == absent && h != nil {
			// All series are gone, which ends the window as one of them would.
			h.windows[src.id] = window{}
		}
		return o
	}
	if h == nil {
		return outcome{kind: waiting, shown: true, reason: firstPage}
	}
	w := &h.windows[src.id]
	why := w.compare(e.counters, e.bounds, now.buckets)
	if why == fell {
		h.reset = true
	}
	base, ok := w.add(now, src.window, why != "")
	switch {
	case why != "":
		return outcome{kind: waiting, shown: true, reason: why}
	case !ok && base.at == 0:
		return outcome{kind: waiting, shown: true, reason: firstPage}
	case !ok:
		return outcome{kind: waiting, shown: true, reason: fmt.Sprintf("the window of %v has begun: it needs half of it", src.window)}
	}
	return e.growth(src, f, base, now)
}

// maxCount is beyond what is ever counted, and exact as a float64.
const maxCount = 1 << 53

const (
	firstPage = "first page: a window needs two"
	fell      = "window dropped: a counter fell, its process was started anew"
	vanished  = "window dropped: a series is gone"
	appeared  = "window dropped: a series has come, which may have counted before"
	reshaped  = "window dropped: the buckets have changed"
	noData    = "no recent data: nothing was observed in the window"
)

// countAll counts all that a source needs; the outcome says why it cannot.
func (e *evaluation) countAll(src *source, now *mark) outcome {
	o := e.counted(&src.series)
	if o.kind != possible {
		return o
	}
	now.part = o.value
	for i := range src.over {
		if o = e.counted(&src.over[i]); o.kind != possible {
			return o
		}
		now.whole += o.value
	}
	if src.total != nil {
		if o = e.counted(src.total); o.kind != possible {
			return o
		}
		now.whole = o.value
	}
	if src.bucket != nil {
		if fault := e.buckets(src.bucket, now.whole); fault.reason != "" {
			return fault
		}
		now.buckets = e.cumulative
	}
	return o
}

// counted sums up counters and notes each.
func (e *evaluation) counted(s *series) outcome {
	o := e.combined(s, amount)
	if o.kind != possible {
		return o
	}
	for _, at := range e.list {
		e.counters = append(e.counters, counter{at.hash ^ uint64(at.family), at.value})
	}
	return o
}

// buckets adds up the buckets of a histogram over its series. Each bound must be
// there for every series, and the largest hold them all.
func (e *evaluation) buckets(s *series, total float64) (fault outcome) {
	name := e.profile.families[s.family].name
	if problem := e.families[s.family].problem; problem != "" {
		return invalid("%s: %s", name, problem)
	}
	list, others, why := e.chosen(s)
	switch {
	case why != "":
		return invalid("%s", why)
	case len(list) == 0:
		return e.missing(s, others)
	}
	bounds, cumulative, seen := e.bounds[:0], e.cumulative[:0], e.seen[:0]
	for _, at := range list {
		switch {
		case at.problem != "":
			return invalid("%s: %s", name, at.problem)
		case math.IsNaN(at.le):
			return invalid("%s: label le is %.32q, want a number", name, at.labels.Get("le"))
		case !possibleNumber(at.value):
			return invalid("%s: value %v: %s", name, at.value, amount.wanted())
		}
		i, found := slices.BinarySearch(bounds, at.le)
		if !found {
			bounds = slices.Insert(bounds, i, at.le)
			cumulative = slices.Insert(cumulative, i, 0)
			seen = slices.Insert(seen, i, 0)
		}
		cumulative[i] += at.value
		seen[i]++
	}
	e.bounds, e.cumulative, e.seen = bounds, cumulative, seen
	last := len(bounds) - 1
	switch {
	case !math.IsInf(bounds[last], 1):
		return invalid("%s: no bucket +Inf", name)
	case slices.Min(seen) != slices.Max(seen):
		return invalid("%s: series with different buckets", name)
	case !slices.IsSorted(cumulative):
		return invalid("%s: a bucket has less than the one below it", name)
	case cumulative[last] != total:
		return invalid("%s: the largest bucket has %v, the count is %v", name, cumulative[last], total)
	}
	return outcome{}
}

// compare says why what was counted before cannot be subtracted; empty if it
// can. The new counters and bounds take the place of the old.
func (w *window) compare(counters []counter, bounds, buckets []float64) (why string) {
	slices.SortFunc(counters, func(a, b counter) int { return cmp.Compare(a.hash, b.hash) })
	defer func() { w.series = append(w.series[:0], counters...) }()
	reshapes := !slices.Equal(w.bounds, bounds)
	had := w.bounds != nil
	if reshapes {
		w.bounds = slices.Clone(bounds)
	}
	i, came := 0, false
	for _, before := range w.series {
		for ; i < len(counters) && counters[i].hash < before.hash; i++ {
			came = came || counters[i].value > 0
		}
		switch {
		case i == len(counters) || counters[i].hash != before.hash:
			return vanished
		case counters[i].value < before.value:
			return fell
		}
		i++
	}
	for ; i < len(counters); i++ {
		came = came || counters[i].value > 0
	}
	if came && len(w.series) > 0 {
		return appeared
	}
	if had && reshapes {
		return reshaped
	}
	for i, before := range w.last.buckets {
		if buckets[i] < before {
			return fell
		}
	}
	return ""
}

// add notes what was counted and returns what the window begins with; ok is
// false if less than half of the window is known.
func (w *window) add(now mark, width time.Duration, dropped bool) (base mark, ok bool) {
	w.last.at, w.last.part, w.last.whole = now.at, now.part, now.whole
	w.last.buckets = append(w.last.buckets[:0], now.buckets...)
	if dropped || len(w.marks) > 0 && now.at.Sub(w.marks[len(w.marks)-1].at) > 2*width {
		w.marks = w.marks[:0]
	}
	for len(w.marks) > 1 && now.at.Sub(w.marks[1].at) >= width {
		w.marks = slices.Delete(w.marks, 0, 1)
	}
	if len(w.marks) > 0 {
		base = w.marks[0]
	}
	if len(w.marks) == 0 || now.at.Sub(w.marks[len(w.marks)-1].at) >= width/marksPerWindow {
		now.buckets = slices.Clone(now.buckets)
		w.marks = append(w.marks, now)
	}
	return base, base.at != 0 && now.at.Sub(base.at) >= width/2
}

// growth makes a value of what was counted between two marks.
func (e *evaluation) growth(src *source, f telemetry.Field, base, now mark) outcome {
	part, whole := now.part-base.part, now.whole-base.whole
	o := outcome{kind: possible}
	switch {
	case f.Kind() == telemetry.Dist:
		if whole <= 0 {
			return outcome{kind: waiting, shown: true, reason: noData}
		}
		o.dist = &telemetry.Distribution{
			Mean: src.scale * part / whole, Count: uint64(min(whole, maxCount)),
			P50: math.NaN(), P90: math.NaN(), P99: math.NaN(),
		}
		if src.bucket != nil {
			e.increases = e.increases[:0]
			for i := range now.buckets {
				e.increases = append(e.increases, now.buckets[i]-base.buckets[i])
			}
			if fault := e.contradicts(part, whole); fault != "" {
				return invalid("%s: %s", e.profile.families[src.bucket.family].name, fault)
			}
			d := o.dist
			for _, q := range []struct {
				to    *float64
				share float64
			}{{&d.P50, 0.5}, {&d.P90, 0.9}, {&d.P99, 0.99}} {
				v, beyond := quantile(q.share, e.bounds, e.increases)
				*q.to = src.scale * v
				if beyond && o.reason == "" {
					o.reason = fmt.Sprintf("quantiles beyond the largest bound, %v, are at least that", src.scale*v)
				}
			}
			if lowest := e.bounds[0]; e.increases[0] >= 0.99*whole && lowest > 0 && !math.IsInf(lowest, 1) {
				o.reason = fmt.Sprintf("quantiles are within the lowest bucket: all that is known is that they are at most %v", src.scale*lowest)
			}
		}
		for _, v := range [...]float64{o.dist.Mean, o.dist.P50, o.dist.P90, o.dist.P99} {
			if !math.IsNaN(v) && !f.Possible(v) {
				return invalid("value %v: %s", v, amount.wanted())
			}
		}
		return o
	case len(src.over) > 0:
		if whole <= 0 {
			return outcome{kind: waiting, shown: true, reason: noData}
		}
		o.value = src.scale * part / whole
	default:
		o.value = src.scale * part / now.at.Sub(base.at).Seconds()
	}
	return e.fit(src, f, o)
}

// contradicts says why a sum cannot be that of the values in the buckets; empty
// if it can. In between two scrapes, a value may be in one and not yet in the
// other: as much as one more of the largest is let pass.
func (e *evaluation) contradicts(sum, count float64) string {
	last := len(e.bounds) - 1
	largest, least, below := 0.0, 0.0, 0.0
	for i, upTo := range e.increases {
		if in := upTo - below; in > 0 {
			largest = e.bounds[i]
			if i > 0 {
				least += in * max(0, e.bounds[i-1])
			}
		}
		below = upTo
	}
	slack := (count + 1) * 1e-6
	switch {
	case largest >= 0 && !math.IsInf(largest, 1) && sum > largest*(count+1)+slack:
		return fmt.Sprintf("values of at most %v have the mean %v", largest, sum/count)
	case last > 0 && sum+max(0, e.bounds[last-1])+slack < least:
		return fmt.Sprintf("values of at least %v in the mean have the mean %v", least/count, sum/count)
	default:
		return ""
	}
}

// quantile interpolates within the bucket that a share of the values ends in.
// The lowest bucket begins at 0, and what is counted below 0 is taken for 0; in
// the bucket without a bound, the largest bound is all that is known.
func quantile(share float64, bounds, cumulative []float64) (v float64, beyond bool) {
	last := len(bounds) - 1
	target := share * cumulative[last]
	i := 0
	for i < last && cumulative[i] < target {
		i++
	}
	if i == last {
		if last == 0 {
			return 0, true
		}
		return max(bounds[last-1], 0), true
	}
	low, below := 0.0, 0.0
	if i > 0 {
		low, below = bounds[i-1], cumulative[i-1]
	}
	low, high := max(low, 0), max(bounds[i], 0)
	in := cumulative[i] - below
	if in <= 0 {
		return high, false
	}
	return low + (high-low)*(target-below)/in, false
}
