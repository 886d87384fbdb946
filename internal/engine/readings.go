package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Input is what a page is read with.
type Input struct {
	// At is when the page was asked for.
	At telemetry.Instant
	// Path is where it was asked for; empty stands for the profile's own path.
	Path string
	// Models are the names by which the endpoint serves its model, if known.
	// They matter for pages that show several models.
	Models []string
	// Previous is the snapshot before this one, nil if there is none. What
	// other pages than the metrics page said then is carried over, unless the
	// engine's process was started anew since.
	Previous *telemetry.Snapshot
}

// Read turns a metrics page into a snapshot. Readings live for the profile's
// TTL until Extend gives them more.
//
// The error is ErrNotText, ErrNoEngineFamilies or ErrTruncated; the page as a
// whole says nothing then. page is not kept.
func (p *Profile) Read(page []byte, in Input) (*telemetry.Snapshot, error) {
	sc := p.scratch.Get().(*scratch)
	defer p.scratch.Put(sc)
	defer sc.release()
	if err := p.scan(page, sc); err != nil {
		return nil, err
	}
	s := p.blank
	s.ScrapedAt = in.At
	e := evaluation{profile: p, scratch: sc, in: in}
	e.chooseModels()
	for i := range p.rules {
		r := &p.rules[i]
		s.Readings[r.field] = e.read(r)
	}
	if prev := in.Previous; prev != nil && prev.Profile == p.digest && !Restarted(prev, &s) {
		for _, page := range p.pages[1:] {
			for _, f := range page.Format.fields() {
				s.Readings[f] = prev.Readings[f]
			}
		}
	}
	return &s, nil
}

// Restarted reports that two snapshots of one endpoint are of different engine
// processes, by the process start time that both state.
func Restarted(before, after *telemetry.Snapshot) bool {
	b, a := &before.Readings[telemetry.ProcessStart], &after.Readings[telemetry.ProcessStart]
	return b.Recorded == telemetry.Fresh && a.Recorded == telemetry.Fresh && b.Value != a.Value
}

// Extend makes the readings that s took from the metrics page live for at least
// lease, counted from when the page was asked for. Only the owner of a snapshot
// that nobody else has seen may call it.
func (p *Profile) Extend(s *telemetry.Snapshot, lease time.Duration) {
	for i := range p.rules {
		f := p.rules[i].field
		if r := &s.Readings[f]; r.Recorded == telemetry.Fresh {
			r.ExpiresAt = r.ObservedAt.Add(max(p.ttl[f], lease))
		}
	}
}

// evaluation is one page under the rules of a profile.
type evaluation struct {
	profile *Profile
	*scratch
	in Input
	// filter: the page shows several models, and only those of in.Models
	// count; ambiguous: it does, and it is not known which count.
	filter    bool
	ambiguous string
}

func (e *evaluation) chooseModels() {
	shown := e.distinctModels(e.profile.model)
	if shown < 2 {
		return
	}
	if len(e.in.Models) == 0 {
		e.ambiguous = fmt.Sprintf("ambiguous: %d models on the page, and it is not known which the endpoint serves", shown)
		return
	}
	e.filter = true
}

func (e *evaluation) read(r *rule) telemetry.Reading {
	support := r.absent
	var why []string
	for i := range r.sources {
		src := &r.sources[i]
		o := e.outcome(src, r.field)
		if o.kind != absent {
			return e.reading(r.field, src, o)
		}
		if o.shown {
			support = telemetry.Supported
		}
		if !slices.Contains(why, o.reason) {
			why = append(why, o.reason)
		}
	}
	return telemetry.Reading{Support: support, Detail: &telemetry.Detail{Reasons: why}}
}

func (e *evaluation) reading(f telemetry.Field, src *source, o outcome) telemetry.Reading {
	r := telemetry.Reading{
		ObservedAt: e.in.At,
		Support:    telemetry.Supported,
		Detail:     src.detail,
	}
	if e.in.Path != "" && e.in.Path != r.Detail.Source.Path {
		own := *r.Detail.Source
		own.Path = e.in.Path
		r.Detail = &telemetry.Detail{Source: &own, Reasons: src.detail.Reasons}
	}
	if o.kind == impossible {
		r.Recorded = telemetry.Invalid
		r.Detail = &telemetry.Detail{Source: r.Detail.Source, Reasons: []string{o.reason}}
		return r
	}
	r.Recorded = telemetry.Fresh
	r.Provenance = telemetry.Measured
	r.Quality = src.quality
	r.Value = o.value
	r.ExpiresAt = e.in.At.Add(e.profile.ttl[f])
	if src.combine == mean {
		hottest := o.hottest
		r.Detail = &telemetry.Detail{Source: r.Detail.Source, Reasons: r.Detail.Reasons, Max: &hottest}
	}
	return r
}

func reasons(words string) *telemetry.Detail { return &telemetry.Detail{Reasons: []string{words}} }

type outcomeKind uint8

const (
	// absent: the source is not on the page, or says nothing.
	absent outcomeKind = iota
	// impossible: it is there and cannot be true.
	impossible
	// possible: it is there with a value.
	possible
)

type outcome struct {
	kind outcomeKind
	// shown: the source is on the page, though it says nothing.
	shown   bool
	value   float64
	hottest float64
	reason  string
}

func invalid(format string, args ...any) outcome {
	return outcome{kind: impossible, reason: fmt.Sprintf(format, args...)}
}

// outcome is what one source says of a field.
func (e *evaluation) outcome(src *source, f telemetry.Field) outcome {
	o := e.combined(src, shapeOf(f))
	if o.kind != possible {
		return o
	}
	if src.times != nil {
		factor := e.combined(src.times, count)
		if factor.kind != possible {
			return factor
		}
		o.value *= factor.value
	}
	if src.invert {
		o.value = truth(o.value == 0)
	}
	switch f.Kind() {
	case telemetry.Bool:
		o.value = truth(o.value != 0)
	case telemetry.Time:
		if o.value <= 0 || o.value > latestTime {
			return invalid("value %v: want seconds since the Unix epoch", o.value)
		}
	default:
		if !f.Possible(o.value) {
			return invalid("value %v: %s", o.value, shapeOf(f).wanted())
		}
		if o.value == 0 && neverZero(f) {
			return outcome{shown: true, reason: e.profile.names[src.family] + " says 0: not known yet"}
		}
	}
	return o
}

// neverZero names the fields of which 0 is not a value: engines show it until
// they have allocated the cache.
func neverZero(f telemetry.Field) bool {
	return f == telemetry.KVCacheCapacity || f == telemetry.KVBlockSize || f == telemetry.MaxConcurrency
}

// latestTime is the end of the year 9999, beyond which a time has no JSON form.
const latestTime = 253402300799

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func possibleNumber(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }

// shape is what the values of single series look like.
type shape uint8

const (
	count shape = iota
	ratio
	yesOrNo
)

func shapeOf(f telemetry.Field) shape {
	switch {
	case f.Kind() == telemetry.Bool:
		return yesOrNo
	case f.Unit() == "util":
		return ratio
	default:
		return count
	}
}

// overshoot is how far rounding in an engine may push a ratio beyond 1.
const overshoot = 1e-6

// accept is v as a value of this shape, and whether it can be one.
func (sh shape) accept(v float64) (float64, bool) {
	if sh == ratio && v > 1 && v <= 1+overshoot {
		v = 1
	}
	return v, possibleNumber(v) && (sh != ratio || v <= 1)
}

func (sh shape) wanted() string {
	if sh == ratio {
		return "want 0 to 1"
	}
	return "want a finite number of at least 0"
}

// weighted is the value of one rank.
type weighted struct{ value, weight float64 }

// combined makes one value of a source's series.
func (e *evaluation) combined(src *source, sh shape) outcome {
	family := &e.families[src.family]
	name := e.profile.names[src.family]
	if family.problem != "" {
		return invalid("%s: %s", name, family.problem)
	}
	e.values = e.values[:0]
	lacks, none, others := false, false, false
	for i := range e.samples {
		s := &e.samples[i]
		if s.family != src.family || !s.matches(src.where) {
			continue
		}
		if model := s.labels.Get(e.profile.model); model != "" {
			if e.ambiguous != "" {
				return invalid("%s", e.ambiguous)
			}
			if e.filter && !slices.Contains(e.in.Models, model) {
				others = true
				continue
			}
		}
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
		e.values = append(e.values, weighted{v, e.weight(src.weight, s)})
	}
	switch {
	case lacks:
		return outcome{reason: fmt.Sprintf("%s has no label %s", name, src.label)}
	case none:
		return outcome{shown: true, reason: fmt.Sprintf("label %s of %s is None", src.label, name)}
	case len(e.values) == 0 && others:
		return outcome{shown: true, reason: name + " has no series for the models that the endpoint serves"}
	case len(e.values) == 0 && (family.declared || family.count > 0):
		return outcome{shown: true, reason: name + " has no sample"}
	case len(e.values) == 0:
		return outcome{reason: name + " is not on the page"}
	}
	return combine(src.combine, e.values, name)
}

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
		o.value = average(values)
	case largest:
		o.value = hottest
	default:
		if lowest != hottest {
			return invalid("%s: %v on one series and %v on another, want the same on all", name, lowest, hottest)
		}
		o.value = hottest
	}
	return o
}

// average weighs by capacity if every rank tells its own, and else by head.
func average(values []weighted) float64 {
	var total, weights float64
	for _, v := range values {
		total += v.value * v.weight
		weights += v.weight
	}
	if slices.ContainsFunc(values, func(v weighted) bool { return v.weight <= 0 }) || weights > math.MaxFloat64 {
		total, weights = 0, float64(len(values))
		for _, v := range values {
			total += v.value
		}
	}
	// Rounding must not carry a mean beyond the values it is made of.
	return min(max(total/weights, values[0].value), values[len(values)-1].value)
}

// weight is what the weight source says of the rank that s is of; 0 if nothing.
func (e *evaluation) weight(src *source, s *sample) float64 {
	if src == nil {
		return 1
	}
	for i := range e.samples {
		w := &e.samples[i]
		if w.family != src.family || !w.matches(src.where) || !e.sameRank(w, s) {
			continue
		}
		if v, said, err := w.read(src.label, count); said && err == nil && w.problem == "" && possibleNumber(v) {
			return v
		}
		return 0
	}
	return 0
}

func (e *evaluation) sameRank(a, b *sample) bool {
	for _, label := range e.profile.ranks {
		if a.labels.Get(label) != b.labels.Get(label) {
			return false
		}
	}
	return true
}

func (s *sample) matches(where []labelPair) bool {
	for _, w := range where {
		if s.labels.Get(w.name) != w.value {
			return false
		}
	}
	return true
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
	v, err = strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, false, fmt.Errorf("label %s is %.32q, want a number or None", label, text)
	}
	return v, true, nil
}
