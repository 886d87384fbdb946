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
	// reset: a counter fell since takeReset was last asked; gone: one that had
	// counted is no longer there; stood: one that had counted is there, and has not
	// fallen.
	reset, gone, stood bool
	// print is a digest of the page's values, and movedAt when one of them was last
	// another. values are those without their labels, and shape is the labels alone: a
	// series that comes under another label moves nothing.
	print, values, shape uint64
	movedAt              telemetry.Instant
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

// takeReset reports, once, that the counters are those of another process: one fell,
// or all that had counted are gone. Where one of several is gone, a rank or a label
// may come back.
func (h *History) takeReset() bool {
	if h == nil {
		return false
	}
	reset := h.reset || h.gone && !h.stood
	h.reset, h.gone, h.stood = false, false, false
	return reset
}

// note remembers the page's values as a whole.
func (h *History) note(at telemetry.Instant, sc *scratch) {
	if h == nil {
		return
	}
	h.counted = at
	var print, values, shape uint64
	for i := range sc.samples {
		s := &sc.samples[i]
		// Labels and values that cannot be are no sign of work.
		if !sc.profile.families[s.family].works || s.problem != "" || !possibleNumber(s.value) {
			continue
		}
		value := mix(math.Float64bits(s.value) ^ uint64(s.family))
		print += mix(s.hash ^ value)
		values += mix(s.rank ^ value)
		shape += mix(s.hash ^ uint64(s.family))
	}
	moved := print != h.print
	if shape != h.shape {
		moved = values != h.values
	}
	if moved || h.movedAt == 0 {
		h.movedAt, h.stale = at, ""
	}
	h.print, h.values, h.shape = print, values, shape
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
	// from is the oldest time that the engine states for one of them; 0 if for none.
	from telemetry.Instant
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
			h.gone = h.gone || e.families[src.family].count == 0 && h.windows[src.id].counted()
			h.windows[src.id] = window{}
		}
		return o
	}
	if h == nil {
		return outcome{kind: waiting, shown: true, reason: firstPage}
	}
	w := &h.windows[src.id]
	had := w.counted()
	why, stood := w.compare(e.counters, e.bounds, now.buckets)
	h.reset = h.reset || why == fell
	h.stood = h.stood || stood
	h.gone = h.gone || had && !stood
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

// counted reports that it had counted anything.
func (w *window) counted() bool {
	return slices.ContainsFunc(w.series, func(c counter) bool { return c.value > 0 })
}

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
	now.part, now.from = o.value, o.at
	for i := range src.over {
		if o = e.counted(&src.over[i]); o.kind != possible {
			return o
		}
		now.whole += o.value
		now.from = oldest(now.from, o.at)
	}
	if src.total != nil {
		if o = e.counted(src.total); o.kind != possible {
			return o
		}
		if o.value != math.Trunc(o.value) {
			return invalid("%s: %v, want a whole number", e.profile.families[src.total.family].name, o.value)
		}
		now.whole = o.value
		now.from = oldest(now.from, o.at)
	}
	if src.bucket != nil {
		in := e.buckets(src.bucket, now.whole)
		if in.kind != possible {
			return in
		}
		now.from = oldest(now.from, in.at)
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
	f := &e.profile.families[s.family]
	switch {
	case e.families[f.typed].types&isGauge != 0:
		return invalid("%s is a gauge, which says what is now: its growth over a window means nothing", f.base)
	case o.value > maxCount:
		return invalid("%s: %v: the growth of more than %d cannot be told", f.name, o.value, int64(maxCount))
	}
	for _, at := range e.list {
		e.counters = append(e.counters, counter{at.hash ^ uint64(at.family), at.value})
	}
	return o
}

// buckets adds up the buckets of a histogram over its series. Each bound must be
// there for every series, and the largest hold them all.
func (e *evaluation) buckets(s *series, total float64) outcome {
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
	o := outcome{kind: possible}
	bounds, cumulative, seen := e.bounds[:0], e.cumulative[:0], e.seen[:0]
	for _, at := range list {
		switch {
		case at.problem != "":
			return invalid("%s: %s", name, at.problem)
		case math.IsNaN(at.le):
			return invalid("%s: label le is %.32q, want a number", name, at.labels.Get("le"))
		case !possibleNumber(at.value):
			return invalid("%s: value %v: %s", name, at.value, amount.wanted())
		case at.value != math.Trunc(at.value):
			return invalid("%s: value %v: want a whole number", name, at.value)
		}
		i, found := slices.BinarySearch(bounds, at.le)
		if !found {
			bounds = slices.Insert(bounds, i, at.le)
			cumulative = slices.Insert(cumulative, i, 0)
			seen = slices.Insert(seen, i, 0)
		}
		cumulative[i] += at.value
		seen[i]++
		o.at = oldest(o.at, at.at)
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
	return o
}

// compare says why what was counted before cannot be subtracted; empty if it
// can. stood reports that a counter that had counted is there and has not fallen. The
// new counters and bounds take the place of the old.
func (w *window) compare(counters []counter, bounds, buckets []float64) (why string, stood bool) {
	slices.SortFunc(counters, func(a, b counter) int { return cmp.Compare(a.hash, b.hash) })
	defer func() { w.series = append(w.series[:0], counters...) }()
	reshapes := !slices.Equal(w.bounds, bounds)
	had := w.bounds != nil
	if reshapes {
		w.bounds = slices.Clone(bounds)
	}
	i, came, left, falls := 0, false, false, false
	for _, before := range w.series {
		for ; i < len(counters) && counters[i].hash < before.hash; i++ {
			came = came || counters[i].value > 0
		}
		if i == len(counters) || counters[i].hash != before.hash {
			left = true
			continue
		}
		falls = falls || counters[i].value < before.value
		stood = stood || before.value > 0 && counters[i].value >= before.value
		i++
	}
	for ; i < len(counters); i++ {
		came = came || counters[i].value > 0
	}
	if !left && !reshapes {
		for i, before := range w.last.buckets {
			falls = falls || buckets[i] < before
		}
	}
	// What fell says more than what came or went, wherever it stands.
	switch {
	case falls:
		return fell, stood
	case left:
		return vanished, stood
	case came && len(w.series) > 0:
		return appeared, stood
	case had && reshapes:
		return reshaped, stood
	default:
		return "", stood
	}
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
	o := outcome{kind: possible, at: now.from}
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
				switch {
				case o.reason != "":
				case math.IsNaN(v):
					o.reason = "no bucket bounds the quantiles that are left out"
				case beyond:
					o.reason = fmt.Sprintf("quantiles beyond the largest bound, %v, are at least that", src.scale*v)
				}
			}
			if lowest := e.bounds[0]; e.increases[0] >= 0.99*whole && lowest > 0 && !math.IsInf(lowest, 1) {
				o.reason = fmt.Sprintf("quantiles are within the lowest bucket: all that is known is that they are at most %v", src.scale*lowest)
			}
		}
		for i, v := range [...]float64{o.dist.Mean, o.dist.P50, o.dist.P90, o.dist.P99} {
			if (i == 0 || !math.IsNaN(v)) && !f.Possible(v) {
				return invalid("value %v: %s", v, wanted(f))
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
	case !math.IsInf(largest, 1) && (largest < 0 || sum > largest*(count+1)+slack):
		return fmt.Sprintf("values of at most %v have the mean %v", largest, sum/count)
	case last > 0 && sum+max(0, e.bounds[last-1])+slack < least:
		return fmt.Sprintf("values of at least %v in the mean have the mean %v", least/count, sum/count)
	default:
		return ""
	}
}

// quantile interpolates within the bucket that a share of the values ends in.
// The lowest bucket begins at 0, and what is counted below 0 is taken for 0; in
// the bucket without a bound, the largest bound is all that is known, and if that is
// not above 0 nothing is: v is NaN.
func quantile(share float64, bounds, cumulative []float64) (v float64, beyond bool) {
	last := len(bounds) - 1
	target := share * cumulative[last]
	i := 0
	for i < last && cumulative[i] < target {
		i++
	}
	if i == last {
		if last == 0 || bounds[last-1] <= 0 {
			return math.NaN(), true
		}
		return bounds[last-1], true
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
