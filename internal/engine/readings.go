package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
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
	// History is what the pages before have left behind, and is added to; nil
	// for a page that stands alone.
	History *History
	// Interrupted: nobody listened at the address at some time since Previous. What
	// is there now is another process, unless it states that it is not.
	Interrupted bool
	// Traffic is what this picker knows of its own requests at the endpoint.
	Traffic Traffic
}

// Read turns a metrics page into a snapshot. Readings live for the profile's
// TTL until Extend gives them more.
//
// The error is or wraps one of the package; the page as a whole says nothing
// then, and History is as it was. page is not kept.
func (p *Profile) Read(page []byte, in Input) (*telemetry.Snapshot, error) {
	counting := in.History.counts(&in)
	sc := p.scratch.Get().(*scratch)
	defer p.scratch.Put(sc)
	defer sc.release()
	if err := p.scan(page, sc, counting); err != nil {
		return nil, err
	}
	s := p.blank
	s.ScrapedAt = in.At
	in.History.holdTo(p)
	e := evaluation{profile: p, scratch: sc, in: in, counting: counting, pod: anyPod}
	e.chooseModels()
	said := e.readAll(&s.Readings)
	e.judgeProcess(&s)
	if counting {
		in.History.note(in.At, sc)
	}
	if !said {
		in.History.dueAgain()
	}
	e.doubt(&s)
	if prev := in.Previous; prev != nil && prev.Profile == p.digest && !Restarted(prev, &s) {
		for _, page := range p.pages[1:] {
			for _, f := range page.fields {
				s.Readings[f] = prev.Readings[f]
			}
		}
	}
	return &s, nil
}

// readAll reads every field of the profile. It returns false where the page says
// nothing yet, by its own word.
func (e *evaluation) readAll(readings *[telemetry.NumFields]telemetry.Reading) (said bool) {
	p := e.profile
	invalid := e.notYet()
	for i := range p.rules {
		r := &p.rules[i]
		switch {
		case invalid != nil && r.field != telemetry.ProcessStart:
			readings[r.field] = telemetry.Reading{Detail: invalid}
		case r.seldom && !e.counting:
			// Read too short a while ago to say anything new.
			if prev := e.in.Previous; prev != nil && prev.Profile == p.digest {
				readings[r.field] = prev.Readings[r.field]
			}
		default:
			readings[r.field] = e.read(r)
		}
	}
	if invalid == nil {
		e.judgeRanks(readings)
	}
	return invalid == nil
}

// windowed reports that a source of the rule is a window.
func (r *rule) windowed() bool {
	return slices.ContainsFunc(r.sources, func(s source) bool { return s.window > 0 })
}

// notYet says why the page says nothing yet, by its own word; nil if it does.
func (e *evaluation) notYet() *telemetry.Detail {
	v := e.profile.valid
	if v == nil {
		return nil
	}
	o := e.combined(&v.series, amount)
	if o.kind == absent || o.kind == possible && o.value > 0 {
		return nil
	}
	return reasons(v.because)
}

// judgeProcess numbers the engine's process.
func (e *evaluation) judgeProcess(s *telemetry.Snapshot) {
	s.Incarnation = 1
	fell := e.in.History.takeReset()
	prev := e.in.Previous
	if prev == nil {
		return
	}
	s.Incarnation = max(1, prev.Incarnation)
	b, a := &prev.Readings[telemetry.ProcessStart], &s.Readings[telemetry.ProcessStart]
	stated := b.Recorded == telemetry.Fresh && a.Recorded == telemetry.Fresh
	if prev.Engine != s.Engine || stated && b.Value != a.Value || !stated && (fell || e.in.Interrupted) {
		s.Incarnation++
		e.in.History.restart(e.in.At)
		for i := range e.profile.rules {
			r := &e.profile.rules[i]
			now := &s.Readings[r.field]
			switch {
			case r.windowed() && now.Recorded != telemetry.Invalid && now.Support == telemetry.Supported:
				*now = telemetry.Reading{Support: now.Support, Detail: anewWindow}
			case r.seldom && !e.counting:
				// What was carried over is of the old process.
				*now = telemetry.Reading{Detail: anewUnread}
			}
		}
	}
}

// What a reading says after a restart that it has not outlived.
var (
	anewWindow = reasons("the engine's process was started anew: a window needs two pages")
	anewUnread = &telemetry.Detail{Reasons: []string{"the engine's process was started anew: not read yet"}, Unread: true}
)

// Restarted reports that two snapshots of one endpoint are of different engine
// processes: by the process start time that both state, or because a counter
// fell, nobody listened in between, or it is another engine.
func Restarted(before, after *telemetry.Snapshot) bool {
	return before.Incarnation != after.Incarnation
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

// maxModels bounds the models that are told apart on one page.
const maxModels = 64

// evaluation is one page under the rules of a profile.
type evaluation struct {
	profile *Profile
	*scratch
	in Input
	// counting: what is read seldom is read too, windows above all.
	counting bool
	// filter: the page shows several models, and only those of in.Models
	// count; ambiguous: it does, and it is not known which count.
	filter    bool
	ambiguous string
	// pod is whose samples count on an exporter's page.
	pod Pod
	// loads are the sources of the load fields that have a value on this page.
	loads [len(telemetry.LoadFields)]*source
}

// chooseModels decides which of the models on the page count.
func (e *evaluation) chooseModels() {
	e.models = e.models[:0]
	if e.profile.labels.model == "" {
		return
	}
	if h := e.in.History; h != nil && !e.counting {
		// A page that is read in part shows the models of its other families too.
		e.models = append(e.models, h.models...)
		for _, name := range h.models {
			if m := e.names[name]; m != nil {
				m.shown = e.round
			}
		}
	}
	for i := range e.samples {
		k := e.samples[i].known
		// Of a spoilt family nobody knows what else it would have shown.
		if e.profile.families[k.family].choosing || e.families[k.family].problem != "" {
			continue
		}
		if m := k.model; m != nil && m.shown != e.round {
			m.shown = e.round
			if e.models = append(e.models, m.name); len(e.models) == maxModels {
				break
			}
		}
	}
	if h := e.in.History; h != nil && e.counting {
		h.models = append(h.models[:0], e.models...)
	}
	switch {
	case len(e.models) < 2:
	case len(e.in.Models) == 0:
		e.ambiguous = fmt.Sprintf("ambiguous: %d models on the page, and it is not known which the endpoint serves", len(e.models))
	default:
		e.filter = true
		for _, name := range e.in.Models {
			if m := e.names[name]; m != nil {
				m.counts = e.round
			}
		}
	}
}

func (e *evaluation) read(r *rule) telemetry.Reading {
	support := r.absent
	e.why = e.why[:0]
	var silent *source
	for i := range r.sources {
		src := &r.sources[i]
		o := e.outcome(src, r.field)
		if o.kind == refused {
			return e.without(r.field, telemetry.Unsupported, nil, o.reason)
		}
		if o.kind == possible {
			o = e.contradicted(r, o)
		}
		if o.kind == possible || o.kind == impossible {
			e.decided(r.field, src, o)
			return e.reading(r.field, src, o)
		}
		if o.shown {
			support = telemetry.Supported
		}
		if !slices.Contains(e.why, o.reason) {
			e.why = append(e.why, o.reason)
		}
		if o.kind == waiting {
			silent = src
			break
		}
	}
	for i := range r.off {
		if e.holds(&r.off[i]) && !e.refuted(&r.off[i]) {
			return e.without(r.field, telemetry.Disabled, nil, r.off[i].because)
		}
	}
	if silent != nil {
		return e.without(r.field, support, e.from(silent.detail.Source), e.why...)
	}
	return e.without(r.field, support, nil, e.why...)
}

// without is a reading that has no value.
func (e *evaluation) without(f telemetry.Field, support telemetry.Support, from *telemetry.Source, why ...string) telemetry.Reading {
	if d := e.before(f); d != nil && d.Source == from && !d.Unread && d.Max == nil && d.Names == nil && d.Text == "" && d.Distribution == nil && slices.Equal(d.Reasons, why) {
		return telemetry.Reading{Support: support, Detail: d}
	}
	return telemetry.Reading{Support: support, Detail: &telemetry.Detail{Source: from, Reasons: slices.Clone(why)}}
}

// before is what the last reading of a field had to say; nil if nothing. Most
// pages have nothing new to say, and a detail is never changed.
func (e *evaluation) before(f telemetry.Field) *telemetry.Detail {
	if e.in.Previous == nil || e.in.Previous.Profile != e.profile.digest {
		return nil
	}
	return e.in.Previous.Readings[f].Detail
}

// holds reports that the page itself says that something is off. A series that
// is spoilt proves nothing.
func (e *evaluation) holds(c *condition) bool {
	list, _, fault := e.chosen(&c.series)
	if fault != "" || e.families[c.family].problem != "" || slices.ContainsFunc(list, func(s *sample) bool { return s.problem != "" }) {
		return false
	}
	if c.is == "" {
		var total float64
		for _, s := range list {
			if possibleNumber(s.value) {
				total += s.value
			}
		}
		return total > c.above
	}
	return slices.ContainsFunc(list, func(s *sample) bool {
		if c.label != "" {
			return s.labels.Get(c.label) == c.is
		}
		return strconv.FormatFloat(s.value, 'g', -1, 64) == c.is
	})
}

// from is a source, on the path where the page was really found.
func (e *evaluation) from(src *telemetry.Source) *telemetry.Source {
	if e.in.Path == "" || e.in.Path == src.Path {
		return src
	}
	own := *src
	own.Path = e.in.Path
	return &own
}

func (e *evaluation) reading(f telemetry.Field, src *source, o outcome) telemetry.Reading {
	r := telemetry.Reading{
		ObservedAt: e.in.At,
		Support:    telemetry.Supported,
		Detail:     src.detail,
	}
	if o.byHead {
		r.Detail = src.byHead
	}
	if at := e.past(o.at); at != 0 {
		// A page that is passed on says when its values are from.
		r.ObservedAt = at
	}
	if from := e.from(r.Detail.Source); from != r.Detail.Source {
		r.Detail = &telemetry.Detail{Source: from, Reasons: src.detail.Reasons}
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
	r.ExpiresAt = r.ObservedAt.Add(e.profile.ttl[f])
	switch {
	case f.Kind() == telemetry.Names, f.Kind() == telemetry.Text, f.Kind() == telemetry.Dist:
		own := *r.Detail
		switch f.Kind() {
		case telemetry.Names:
			own.Names = o.names
		case telemetry.Text:
			own.Text = o.names[0]
		default:
			own.Distribution = o.dist
		}
		r.Detail = &own
		if o.reason != "" {
			e.distrust(&r, doubtful, o.reason)
		}
	case src.combine == mean:
		own := *r.Detail
		if d := e.before(f); d != nil && d.Max != nil && *d.Max == o.hottest && d.Source == own.Source && d.EngineTime == 0 && slices.Equal(d.Reasons, own.Reasons) {
			r.Detail = d
		} else {
			hottest := o.hottest
			own.Max = &hottest
			r.Detail = &own
		}
	}
	e.doubtStamp(&r, f, o.at)
	return r
}

func reasons(words string) *telemetry.Detail { return &telemetry.Detail{Reasons: []string{words}} }

type outcomeKind uint8

const (
	// absent: the source is not on the page, or says nothing.
	absent outcomeKind = iota
	// waiting: the source is on the page, and will say something later. No
	// other source speaks for it meanwhile.
	waiting
	// refused: what is there does not mean what it seems to.
	refused
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
	// at is the oldest time that the engine states for one of the samples; 0 if
	// for none.
	at telemetry.Instant
	// byHead: a mean is not weighted, since the page does not tell the weights.
	byHead bool
	names  []string
	dist   *telemetry.Distribution
	reason string
}

func invalid(format string, args ...any) outcome {
	return outcome{kind: impossible, reason: fmt.Sprintf(format, args...)}
}

// outcome is what one source says of a field.
func (e *evaluation) outcome(src *source, f telemetry.Field) outcome {
	switch {
	case src.window > 0:
		return e.grown(src, f)
	case f.Kind() == telemetry.Names || f.Kind() == telemetry.Text:
		return e.texts(src, f)
	}
	o := e.combined(&src.series, src.shapeOf(f))
	if o.kind != possible {
		return o
	}
	if e.families[src.family].types&isCounter != 0 && src.label == "" {
		return invalid("%s is a counter, which says something only over a window", e.profile.families[src.family].name)
	}
	for i := range src.plus {
		switch more := e.combined(&src.plus[i], amount); more.kind {
		case possible:
			o.value += more.value
			o.at = oldest(o.at, more.at)
		case impossible:
			return more
		}
	}
	factor := src.scale
	if src.times != nil {
		times := e.combined(src.times, amount)
		if times.kind != possible {
			return times
		}
		factor *= times.value
		o.at = oldest(o.at, times.at)
	}
	if len(src.over) > 0 {
		whole := e.summed(src.over)
		if whole.kind != possible {
			return whole
		}
		if whole.value == 0 {
			return outcome{kind: waiting, shown: true, reason: e.profile.families[src.over[0].family].name + " says 0: not known yet"}
		}
		factor /= whole.value
		o.at = oldest(o.at, whole.at)
	}
	o.value *= factor
	o.hottest *= factor
	if src.invert {
		o.value = truth(o.value == 0)
	}
	return e.fit(src, f, o)
}

// fit judges a value by the range of its field.
func (e *evaluation) fit(src *source, f telemetry.Field, o outcome) outcome {
	switch f.Kind() {
	case telemetry.Bool:
		o.value = truth(o.value != 0)
	case telemetry.Time:
		if !(o.value > 0 && o.value <= latestTime) {
			return invalid("value %v: want seconds since the Unix epoch", o.value)
		}
		if now := float64(e.in.At) / 1e9; now > 0 && o.value > now+clockSkew.Seconds() {
			return invalid("value %v: is later than the page, which was asked for at %.0f", o.value, now)
		}
	default:
		o.value, _ = shapeOf(f).accept(o.value)
		if !f.Possible(o.value) {
			return invalid("value %v: %s", o.value, wanted(f))
		}
		o.hottest, _ = shapeOf(f).accept(o.hottest)
		if src.combine == mean && !f.Possible(o.hottest) {
			return invalid("value %v of one rank: %s", o.hottest, wanted(f))
		}
		if o.value == 0 && neverZero(f) {
			return outcome{shown: true, reason: e.profile.families[src.family].name + " says 0: not known yet"}
		}
	}
	return o
}

// summed adds up what several series say; all must say something.
func (e *evaluation) summed(list []series) (whole outcome) {
	whole.kind = possible
	for i := range list {
		o := e.combined(&list[i], amount)
		if o.kind != possible {
			return o
		}
		whole.value += o.value
		whole.at = oldest(whole.at, o.at)
	}
	if !possibleNumber(whole.value) {
		return invalid("%s and others: together beyond any number", e.profile.families[list[0].family].name)
	}
	return whole
}

// neverZero names the fields of which 0 is not a value: engines show it until
// they have allocated the cache.
func neverZero(f telemetry.Field) bool {
	return f == telemetry.KVCacheCapacity || f == telemetry.KVBlockSize || f == telemetry.MaxConcurrency ||
		f == telemetry.ContextLimit
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
	amount shape = iota
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
		return amount
	}
}

// shapeOf is the shape of the source's series, before they are scaled.
func (s *source) shapeOf(f telemetry.Field) shape {
	if sh := shapeOf(f); sh != ratio || s.scale == 1 && len(s.over) == 0 && s.times == nil {
		return sh
	}
	return amount
}

// overshoot is how far rounding in an engine may push a ratio beyond 1.
const overshoot = 1e-3

// accept is v as a value of this shape, and whether it can be one.
func (sh shape) accept(v float64) (float64, bool) {
	if sh == ratio && v > 1 && v <= 1+overshoot {
		v = 1
	}
	return v, possibleNumber(v) && (sh != ratio || v <= 1)
}

// wanted says which values of a field are possible.
func wanted(f telemetry.Field) string {
	if shapeOf(f) == ratio {
		return ratio.wanted()
	}
	return fmt.Sprintf("want 0 to %v", telemetry.MaxNumber)
}

func (sh shape) wanted() string {
	if sh == ratio {
		return "want 0 to 1"
	}
	return "want a finite number of at least 0"
}
