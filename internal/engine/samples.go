package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	// maxSeries bounds the series of one family: a histogram of 40 buckets on
	// each of 64 data-parallel ranks stays below.
	maxSeries = 4096
	// maxSamples bounds those of all families.
	maxSamples = 32768
	// maxLine bounds one sample line. Pages with megabytes in one label exist
	// (vLLM pull request 44702).
	maxLine = 1 << 20
	// maxKnown and maxKnownText bound the series that a scratch remembers.
	maxKnown     = maxSamples
	maxKnownText = 4 << 20
	// maxLowest bounds the labels of which the lowest counts.
	maxLowest = 4
)

// scratch is the memory of one reading of one page, reused for the next.
type scratch struct {
	profile *Profile
	// round numbers the pages.
	round    uint32
	families []familyState
	samples  []sample
	values   []weighted
	weights  map[uint64]float64
	list     []*sample
	models   []string
	why      []string
	hash     []byte
	line     []byte
	counting

	// known are the series seen before, by their text on the page, and places
	// what they share with others. Pages repeat the same text for years.
	known     map[string]*known
	knownText int
	places    map[placeKey]*place
}

// familyState is what one page says of a family apart from its good samples.
type familyState struct {
	// declared: HELP or TYPE was on the page; counter: its TYPE says that.
	declared bool
	counter  bool
	count    int
	// first is the first sample's index plus 1; 0 is none.
	first int32
	// problem spoils the whole family: a line that does not parse, or too many.
	problem string
}

// sample is one series. Two lines with the same labels become one sample.
type sample struct {
	*known
	value float64
	// at is when the engine says that the value is from; 0 if it does not.
	at telemetry.Instant
	// next is the family's next sample's index plus 1.
	next int32
	// problem spoils every value that this series takes part in.
	problem string
}

// known is a series apart from its value.
type known struct {
	family int
	labels labels.Labels
	// hash is of the labels that are not dropped.
	hash uint64
	// model is the name of the model that it is of, and pod its pod on an
	// exporter's page; empty if it names none.
	model string
	pod   Pod
	// rank is a hash of all that tells ranks apart: the rank's labels, the model
	// and the pod.
	rank uint64
	// twins are series with the same labels, group those that count as one.
	twins, group *place
	// order decides which of a group counts, the lowest first.
	order [maxLowest]int64
	// le is a bucket's bound, NaN where there is none.
	le float64
	// fault is what is wrong with the labels.
	fault string
}

// place is where the sample of some series is in this round.
type place struct {
	round uint32
	index int32
}

type placeKey struct {
	family int
	role   byte
	hash   uint64
}

func newScratch(p *Profile) *scratch {
	sc := &scratch{profile: p}
	sc.forget()
	return sc
}

// forget drops every known series.
func (sc *scratch) forget() {
	sc.known, sc.knownText = map[string]*known{}, 0
	sc.places = map[placeKey]*place{}
}

func (sc *scratch) begin() {
	sc.round++
	if sc.round == 0 || len(sc.known) >= maxKnown || len(sc.places) > 2*maxKnown || sc.knownText > maxKnownText {
		sc.forget()
		sc.round = 1
	}
	sc.samples = sc.samples[:0]
	sc.families = slices.Grow(sc.families[:0], len(sc.profile.families))[:len(sc.profile.families)]
	clear(sc.families)
}

// release lets go of what the last page has left behind.
func (sc *scratch) release() {
	clear(sc.samples)
	clear(sc.list[:cap(sc.list)])
	clear(sc.models)
	clear(sc.why[:cap(sc.why)])
	if cap(sc.line) > 1<<16 {
		sc.line = nil
	}
}

// keep turns a line into a sample, or notes why its family is spoilt.
func (sc *scratch) keep(family int, f *familyState, line []byte) {
	f.count++
	if f.problem != "" {
		return
	}
	switch {
	case f.count > maxSeries:
		f.problem = fmt.Sprintf("more than %d series", maxSeries)
		return
	case len(line) > maxLine:
		f.problem = fmt.Sprintf("a series of more than %d bytes", maxLine)
		return
	}
	text, rest, ok := split(line)
	if !ok {
		f.problem = noParse
		return
	}
	k := sc.known[string(text)]
	if k == nil || k.family != family {
		k = sc.learn(family, text)
	}
	if k.fault != "" {
		f.problem = k.fault
		return
	}
	v, at, err := parseValue(rest)
	if err != nil {
		f.problem = noParse
		return
	}
	if k.twins.round == sc.round {
		if twin := &sc.samples[k.twins.index]; twin.value != v && !(math.IsNaN(twin.value) && math.IsNaN(v)) {
			twin.problem = "duplicate: one series with different values"
		}
		return
	}
	*k.twins = place{sc.round, int32(len(sc.samples))}
	sc.samples = append(sc.samples, sample{known: k, value: v, at: at})
}

// learn parses a series that was not seen before.
func (sc *scratch) learn(family int, text []byte) *known {
	k := &known{family: family, le: math.NaN()}
	k.labels, k.fault = parseSeries(text, &sc.line)
	if k.fault == "" {
		l := &sc.profile.labels
		k.twins = sc.place(family, 't', k.labels)
		k.group = k.twins
		if without := slices.Concat(l.drop, l.lowest); len(without) > 0 {
			slices.Sort(without)
			k.group = sc.place(family, 'g', k.labels, without...)
		}
		k.hash, sc.hash = k.labels.HashWithoutLabels(sc.hash, l.drop...)
		k.model, k.pod = modelOf(sc.profile, k), podOf(sc.profile, k)
		k.rank, sc.hash = k.labels.HashForLabels(sc.hash, l.apart...)
		for i, label := range l.lowest {
			k.order[i] = rankOf(k.labels.Get(label))
		}
		if le := k.labels.Get(labels.BucketLabel); le != "" {
			if v, err := strconv.ParseFloat(le, 64); err == nil {
				k.le = v
			}
		}
	}
	// A faulty or huge series may come in a different text each time.
	if k.fault == "" && len(text) < 4096 && len(sc.known) < maxKnown {
		sc.known[string(text)] = k
		sc.knownText += len(text)
	}
	return k
}

// rankOf is a rank's number; a text that is none comes last.
func rankOf(text string) int64 {
	if text == "" {
		return -1
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return v
}

func (sc *scratch) place(family int, role byte, l labels.Labels, without ...string) *place {
	key := placeKey{family: family, role: role}
	key.hash, sc.hash = l.HashWithoutLabels(sc.hash, without...)
	p := sc.places[key]
	if p == nil {
		p = &place{}
		sc.places[key] = p
	}
	return p
}

// settle makes one sample of each group: of series that differ in dropped labels
// alone the largest value counts, of those that differ in ranks of one replica
// the lowest rank.
func (sc *scratch) settle() {
	settled := sc.samples[:0]
	for _, s := range sc.samples {
		g := s.group
		if g == s.twins || g.round != sc.round {
			if g != s.twins {
				*g = place{sc.round, int32(len(settled))}
			}
			settled = append(settled, s)
			continue
		}
		had := &settled[g.index]
		switch order := slices.Compare(s.order[:], had.order[:]); {
		case order < 0:
			*had = s
		case order > 0:
		default:
			switch {
			case had.problem != "" || s.problem != "":
				had.problem = max(had.problem, s.problem)
			case !possibleNumber(had.value) || !possibleNumber(s.value):
				had.problem = "one of several series that count as one is not a finite number of at least 0"
			default:
				had.value = max(had.value, s.value)
			}
		}
	}
	sc.samples = settled
	// From the last to the first, so that a family's samples are in page order.
	for i := len(sc.samples) - 1; i >= 0; i-- {
		f := &sc.families[sc.samples[i].family]
		sc.samples[i].next = f.first
		f.first = int32(i + 1)
	}
}

// each calls do for every sample of a family that where chooses, until it
// returns false.
func (sc *scratch) each(s *series, do func(*sample) bool) {
	for i := sc.families[s.family].first; i > 0; {
		at := &sc.samples[i-1]
		i = at.next
		if at.matches(s.where) && !do(at) {
			return
		}
	}
}

func (k *known) matches(where []labelPair) bool {
	for i := range where {
		w := &where[i]
		v := k.labels.Get(w.name)
		if w.value == "*" {
			if v == "" {
				return false
			}
		} else if v != w.value {
			return false
		}
	}
	return true
}
