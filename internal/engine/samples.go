package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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
	// maxLabels bounds the labels of one series: the cache_config_info of vLLM 0.32
	// has 37.
	maxLabels = 128
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
	// weights are of each rank, by the labels of apart; weighedAt is the oldest time
	// that one of them is of.
	weights   map[uint64]float64
	weighedAt telemetry.Instant
	apart     []string
	ranks     []uint64
	list      []*sample
	models    []string
	// names are the models that pages have shown, each shared by all series of it.
	names map[string]*modelName
	why   []string
	hash  []byte
	line  []byte
	// openMetrics: the page ends as OpenMetrics does.
	openMetrics bool
	counting

	// known are the series seen before, by their text on the page, and places
	// what they share with others. Pages repeat the same text for years.
	known     map[string]*known
	knownText int
	places    map[placeKey]*place
}

// familyState is what one page says of a family apart from its good samples.
type familyState struct {
	// declared: HELP or TYPE was on the page; types: what TYPE says.
	declared bool
	types    types
	// bare: a name that only comments are read of has samples.
	bare  bool
	count int
	// first is the first sample's index plus 1; 0 is none.
	first int32
	// problem spoils the whole family: a line that does not parse, or too many.
	problem string
}

// sample is one series. Two lines with the same labels become one sample.
type sample struct {
	*known
	value float64
	// stamp and at are when the engine says that the value is from, as the page has
	// it and as a time; 0 if it does not.
	stamp stamp
	at    telemetry.Instant
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
	// model is the model that it is of, and pod its pod on an exporter's page; nil
	// and empty if it names none.
	model *modelName
	pod   Pod
	// rank is a hash of all that tells ranks apart: the rank's labels, the model
	// and the pod.
	rank uint64
	// index is a hash of the rank's labels alone, shows which of the labels of rank
	// it has, as bits.
	index, shows uint64
	// ranked: it has one of the rank's labels.
	ranked bool
	// twins are series with the same labels, group those that count as one.
	twins, group *place
	// order decides which of a group counts, the lowest first.
	order [maxLowest]int64
	// le is a bucket's bound, NaN where there is none.
	le float64
	// fault is what is wrong with the labels.
	fault string
}

// modelName is the name of one model on pages. What it means for a page is decided
// once, and not for each series that each source looks at.
type modelName struct {
	name string
	// shown is the last round in which it was on the page, counts the last in which
	// the endpoint served it.
	shown, counts uint32
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
	sc.names = map[string]*modelName{}
}

// model is the one value of a model's name; nil where it names none.
func (sc *scratch) model(name string) *modelName {
	if name == "" || slices.Contains(sc.profile.labels.placeholders, name) {
		return nil
	}
	m := sc.names[name]
	if m == nil {
		m = &modelName{name: strings.Clone(name)}
		sc.names[m.name] = m
		sc.knownText += len(name)
	}
	return m
}

func (sc *scratch) begin() {
	sc.round++
	if sc.round == 0 || len(sc.known) >= maxKnown || len(sc.places) > 2*maxKnown || len(sc.names) > maxKnown || sc.knownText > maxKnownText {
		sc.forget()
		sc.round = 1
	}
	sc.samples = sc.samples[:0]
	sc.families = slices.Grow(sc.families[:0], len(sc.profile.families))[:len(sc.profile.families)]
	clear(sc.families)
	sc.openMetrics = false
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

// keep turns a line into a sample, or notes why its family is spoilt. It returns
// false where the line shows that the page is no text.
func (sc *scratch) keep(family int, f *familyState, line []byte) (text bool) {
	f.count++
	switch {
	case f.problem != "":
	case f.count > maxSeries:
		f.problem = fmt.Sprintf("more than %d series", maxSeries)
	case len(line) > maxLine:
		f.problem = fmt.Sprintf("a series of more than %d bytes", maxLine)
	default:
		if f.problem = sc.sample(family, line); f.problem == "" {
			return true
		}
	}
	return !hasControl(line)
}

// sample notes a sample of a family. It returns what spoils the whole family.
func (sc *scratch) sample(family int, line []byte) (problem string) {
	text, rest, ok := split(line)
	if !ok {
		return noParse
	}
	k := sc.known[string(text)]
	if k == nil || k.family != family {
		k = sc.learn(family, text)
	}
	if k.fault != "" {
		return k.fault
	}
	v, at, err := parseValue(rest)
	if err != nil {
		if !sc.profile.exporter || hasControl(rest) {
			return noParse
		}
		// The labels say whose it is, and the others' pods have no part in it.
		v, problem = math.NaN(), noParse
	}
	if k.twins.round == sc.round {
		twin := &sc.samples[k.twins.index]
		switch {
		case problem != "" || twin.problem == noParse:
			twin.problem = noParse
		case twin.value != v && !(math.IsNaN(twin.value) && math.IsNaN(v)):
			twin.problem = "duplicate: one series with different values"
		}
		switch {
		case twin.stamp == 0 || math.IsNaN(float64(at)):
			twin.stamp = at
		case at != 0 && at < twin.stamp:
			twin.stamp = at
		}
		return ""
	}
	*k.twins = place{sc.round, int32(len(sc.samples))}
	sc.samples = append(sc.samples, sample{known: k, value: v, stamp: at, problem: problem})
	return ""
}

// learn parses a series that was not seen before.
func (sc *scratch) learn(family int, text []byte) *known {
	k := &known{family: family, le: math.NaN()}
	k.labels, k.fault = parseSeries(text, &sc.line)
	if k.fault == "" {
		l := &sc.profile.labels
		// A label that is empty is as good as none.
		said := k.labels.WithoutEmpty()
		k.twins = sc.place(family, 't', said)
		k.group = k.twins
		if without := slices.Concat(l.drop, l.lowest); len(without) > 0 {
			slices.Sort(without)
			k.group = sc.place(family, 'g', said, without...)
		}
		k.hash, sc.hash = said.HashWithoutLabels(sc.hash, l.drop...)
		k.pod = podOf(sc.profile, k)
		if l.model != "" {
			k.model = sc.model(k.labels.Get(l.model))
		}
		k.rank, sc.hash = said.HashForLabels(sc.hash, l.apart...)
		k.index, sc.hash = said.HashForLabels(sc.hash, l.ranks...)
		k.ranked = slices.ContainsFunc(l.ranks, said.Has)
		for i, label := range l.apart {
			if said.Has(label) && i < 64 {
				k.shows |= 1 << i
			}
		}
		for i, label := range l.lowest {
			k.order[i] = rankOf(k.labels.Get(label))
		}
		if le := k.labels.Get(labels.BucketLabel); le != "" {
			if v, err := parseNumber([]byte(le)); err == nil {
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
		if s.stamp != 0 {
			var fault string
			if s.at, fault = s.stamp.instant(sc.openMetrics); fault != "" && s.problem == "" {
				s.problem = fault
			}
		}
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
			had.at = oldest(had.at, s.at)
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
