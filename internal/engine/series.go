package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// weighted is the value of one rank.
type weighted struct{ value, weight float64 }

// chosen lists the samples of a series that count for the endpoint. others
// reports that there were more, of other models or other pods.
func (e *evaluation) chosen(s *series) (list []*sample, others bool, fault string) {
	e.list = e.list[:0]
	e.each(s, func(at *sample) bool {
		if !e.pod.has(at.known) {
			others = true
			return true
		}
		if model := at.model; model != nil && !e.profile.families[s.family].choosing {
			if e.ambiguous != "" {
				fault = e.ambiguous
				return false
			}
			if e.filter && model.counts != e.round {
				others = true
				return true
			}
		}
		e.list = append(e.list, at)
		return true
	})
	return e.list, others, fault
}

// missing says why a series has no value.
func (e *evaluation) missing(s *series, others bool) outcome {
	f := &e.families[s.family]
	known := &e.profile.families[s.family]
	name := known.name
	switch {
	case others && e.profile.exporter:
		return outcome{reason: name + " has no series for the pod"}
	case others:
		return outcome{shown: true, reason: name + " has no series for the models that the endpoint serves"}
	case f.count > 0 && len(s.where) > 0:
		return outcome{reason: name + " has no series" + selector(s)}
	case e.mistyped(s) != "":
		return outcome{reason: e.mistyped(s)}
	case f.declared || f.count > 0:
		return outcome{shown: true, reason: known.empty}
	default:
		return outcome{reason: known.gone}
	}
}

// mistyped says that what is on the page by the name of a family is of another type
// than what is read; empty if it is not.
func (e *evaluation) mistyped(s *series) string {
	known := &e.profile.families[s.family]
	about := &e.families[known.typed]
	switch {
	case known.base == known.name && about.types&(isHistogram|isSummary) != 0:
		return fmt.Sprintf("%s is a %s: want a number, as %[1]s_sum and %[1]s_count are", known.name, about.types&(isHistogram|isSummary))
	case known.base == known.name:
		return ""
	case about.types != 0 && about.types&isHistogram == 0:
		return fmt.Sprintf("%s is a %s: want a histogram, or the sum of what was observed with count", known.base, about.types)
	case about.bare:
		return known.base + " has no buckets: want a histogram"
	default:
		return ""
	}
}

// combined makes one value of some series.
func (e *evaluation) combined(src *series, sh shape) outcome {
	family := &e.families[src.family]
	name := e.profile.families[src.family].name
	if family.problem != "" {
		return invalid("%s: %s", name, family.problem)
	}
	list, others, fault := e.chosen(src)
	if fault != "" {
		return invalid("%s", fault)
	}
	if src.combine == newest {
		latest, o := e.latest(src, list)
		if latest == nil {
			if o.reason == "" {
				return e.missing(src, others)
			}
			return o
		}
		list = append(list[:0], latest)
	}
	e.values = e.values[:0]
	shared := e.weigh(src.weight, list)
	lacks, none := false, false
	for _, s := range list {
		if s.problem != "" {
			return invalid("%s: %s", name, s.problem)
		}
		v, said, err := s.read(src.label, sh)
		if err != nil {
			return invalid("%s: %v", name, err)
		}
		if !said {
			none = true
			lacks = lacks || !s.labels.Has(src.label)
			continue
		}
		v, ok := sh.accept(v)
		if !ok {
			return invalid("%s: value %v: %s", name, v, sh.wanted())
		}
		e.values = append(e.values, weighted{v, e.weight(src.weight, s, shared)})
	}
	switch {
	case lacks:
		return outcome{reason: fmt.Sprintf("%s has no label %s", name, src.label)}
	case none:
		return outcome{shown: true, reason: fmt.Sprintf("label %s of %s is None", src.label, name)}
	case len(e.values) == 0:
		return e.missing(src, others)
	}
	o := combine(src.combine, e.values, name)
	for _, s := range list {
		o.at = oldest(o.at, s.at)
	}
	if src.weight != nil && !o.byHead {
		o.at = oldest(o.at, e.weighedAt)
	}
	return o
}

// latest is the sample with the largest value, which is the time when the
// engine wrote it; with a reason in o if that is no time.
func (e *evaluation) latest(src *series, list []*sample) (latest *sample, o outcome) {
	name := e.profile.families[src.family].name
	for _, s := range list {
		if s.problem != "" {
			return nil, invalid("%s: %s", name, s.problem)
		}
		if !possibleNumber(s.value) {
			return nil, invalid("%s: value %v: want a time", name, s.value)
		}
		if latest == nil || s.value > latest.value || s.value == latest.value && s.hash < latest.hash {
			latest = s
		}
	}
	if latest != nil && e.in.At != 0 && latest.value > float64(e.in.At)/1e9+clockSkew.Seconds() {
		return nil, outcome{kind: refused, reason: fmt.Sprintf(
			"%s: %v is no time: several processes add up there, and the largest is not the newest", name, latest.value)}
	}
	return latest, o
}

// clockSkew is how far an engine's clock may be ahead.
const clockSkew = time.Minute

func combine(how combination, values []weighted, name string) outcome {
	// Sums of floats depend on the order, and the order of lines must not count.
	slices.SortFunc(values, func(a, b weighted) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.weight, b.weight))
	})
	lowest, hottest := values[0].value, values[len(values)-1].value
	o := outcome{kind: possible, hottest: hottest}
	switch how {
	case sum:
		for _, v := range values {
			o.value += v.value
		}
	case mean:
		o.value, o.byHead = average(values)
	case largest:
		o.value = hottest
	default:
		if lowest != hottest {
			return invalid("%s: %v on one series and %v on another, want the same on all, or combine to say what becomes of them", name, lowest, hottest)
		}
		o.value = hottest
	}
	if !possibleNumber(o.value) {
		return invalid("%s: what %d series say together is beyond any number", name, len(values))
	}
	return o
}

// maxWeight bounds a weight: sums of weighted values stay exact enough.
const maxWeight = 1 << 53

// average weighs by capacity if every rank tells its own, and else by head. It is NaN
// where the values are beyond any sum.
func average(values []weighted) (mean float64, byHead bool) {
	var total, weights float64
	for _, v := range values {
		total += v.value * v.weight
		weights += v.weight
	}
	byHead = slices.ContainsFunc(values, func(v weighted) bool { return v.weight <= 0 || v.weight > maxWeight })
	if byHead {
		total, weights = 0, float64(len(values))
		for _, v := range values {
			total += v.value
		}
	}
	if math.IsInf(total, 0) {
		return math.NaN(), byHead
	}
	// Rounding must not carry a mean beyond the values it is made of.
	return min(max(total/weights, values[0].value), values[len(values)-1].value), byHead && len(values) > 1
}

// weigh notes what the weight source says of each rank; 0 where it says nothing,
// or two things. Its family need not have all labels of rank that the weighed one
// has: ranks are told apart by those that both have, which it returns as bits.
func (e *evaluation) weigh(src *series, list []*sample) (shared uint64) {
	clear(e.weights)
	e.weighedAt = 0
	if src == nil || len(list) == 0 {
		return 0
	}
	if e.weights == nil {
		e.weights = map[uint64]float64{}
	}
	var own, others uint64
	for _, s := range list {
		own |= s.shows
	}
	count := 0
	e.each(src, func(w *sample) bool {
		others |= w.shows
		count++
		return true
	})
	shared = own & others
	e.each(src, func(w *sample) bool {
		v, said, err := w.read(src.label, amount)
		if !said || err != nil || w.problem != "" || !possibleNumber(v) {
			v = 0
		}
		rank := e.rankBy(w.known, shared)
		if other, twice := e.weights[rank]; twice && other != v {
			v = 0
		}
		e.weights[rank] = v
		e.weighedAt = oldest(e.weighedAt, w.at)
		return true
	})
	if len(list) > 1 && count == 1 {
		// One weight for several ranks is none of theirs.
		clear(e.weights)
	}
	return shared
}

// weight is that of the rank that a sample is of.
func (e *evaluation) weight(src *series, s *sample, shared uint64) float64 {
	if src == nil {
		return 1
	}
	return e.weights[e.rankBy(s.known, shared)]
}

// rankBy is a hash of those labels of rank that are given as bits.
func (e *evaluation) rankBy(k *known, by uint64) uint64 {
	if k.shows&^by == 0 {
		return k.rank
	}
	names := e.apart[:0]
	for i, name := range e.profile.labels.apart {
		if i < 64 && k.shows&by&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	e.apart = names
	var rank uint64
	rank, e.hash = k.labels.HashForLabels(e.hash, names...)
	return rank
}

// read is the sample's value, or what one of its labels says. said is false
// where the label is absent, empty or Python's None.
func (s *sample) read(label string, sh shape) (v float64, said bool, err error) {
	if label == "" {
		return s.value, true, nil
	}
	text := s.labels.Get(label)
	switch {
	case text == "" || text == "None":
		return 0, false, nil
	case sh == yesOrNo && strings.EqualFold(text, "true"):
		return 1, true, nil
	case sh == yesOrNo && strings.EqualFold(text, "false"):
		return 0, true, nil
	case sh == yesOrNo:
		return 0, false, fmt.Errorf("label %s is %.32q, want True or False", label, text)
	}
	v, err = parseNumber([]byte(text))
	if err != nil {
		return 0, false, fmt.Errorf("label %s is %.32q, want a number or None", label, text)
	}
	return v, true, nil
}
