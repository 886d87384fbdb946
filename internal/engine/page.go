package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Reasons for which a page as a whole is refused.
var (
	// ErrNotText: the page is JSON, HTML or binary, whatever its content type.
	ErrNotText = errors.New("not a text metrics page")
	// ErrEmpty: there is nothing on the page.
	ErrEmpty = errors.New("the page is empty")
	// ErrNoEngineFamilies: the page has not one family of the engine. Either it
	// is another engine's, or this one's statistics are switched off (vLLM:
	// --disable-log-stats).
	ErrNoEngineFamilies = errors.New("no family of the engine on the page")
	// ErrSeveralEngines: the page has families of more than one engine.
	ErrSeveralEngines = errors.New("families of several engines on the page")
	// ErrJoined: the page joins the pages of several replicas.
	ErrJoined = errors.New("the page joins several replicas")
	// ErrTooLarge: the families of the profile have more series than a replica
	// can have, or those of an exporter more pods than a node.
	ErrTooLarge = errors.New("the page has more than it can have")
	// ErrTruncated: the last line is not complete.
	ErrTruncated = errors.New("the page was cut in its last line")
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

func notText(page []byte) bool {
	page = bytes.TrimLeft(page, " \t\r\n")
	if len(page) == 0 {
		return false
	}
	c := page[0]
	return c == '{' || c == '[' || c == '<' || c < ' ' || c > '~'
}

// subject is where the family's name begins: at the beginning of a sample line,
// after the keyword of HELP and TYPE. It is nil for other comments.
func subject(line []byte) []byte {
	if len(line) == 0 || line[0] != '#' {
		return line
	}
	rest := bytes.TrimLeft(line[1:], " \t")
	if !bytes.HasPrefix(rest, []byte("TYPE")) && !bytes.HasPrefix(rest, []byte("HELP")) {
		return nil
	}
	if rest = rest[len("TYPE"):]; len(rest) == 0 || rest[0] != ' ' && rest[0] != '\t' {
		return nil
	}
	return bytes.TrimLeft(rest, " \t")
}

// endsName reports that c cannot be part of a family's name.
func endsName(c byte) bool { return c <= ' ' || c == '{' }

// reader finds what lines are about. Most lines are about what the line before
// was about.
type reader struct {
	*Profile
	name  []byte
	last  naming
	known bool
}

// named finds what a line is about among the names that the rules read.
func (r *reader) named(subject []byte) (n naming, ok bool) {
	if end := len(r.name); end > 0 && len(subject) > end && endsName(subject[end]) && string(subject[:end]) == string(r.name) {
		return r.last, r.known
	}
	end := 0
	for end < len(subject) && !endsName(subject[end]) {
		end++
	}
	r.name = subject[:end]
	r.last, r.known = r.names[string(r.name)]
	return r.last, r.known
}

// scan parses the lines of the families that the profile names into samples.
// Without counting, families that are read seldom are left out.
func (p *Profile) scan(page []byte, sc *scratch, counting bool) error {
	if notText(page) {
		return ErrNotText
	}
	sc.begin()
	finder, lines := p.detect.finder(), reader{Profile: p}
	blank := true
	for rest := page; len(rest) > 0; {
		var line []byte
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, rest = rest[:i], rest[i+1:]
		} else {
			line, rest = rest, nil
			if cut(line) {
				return ErrTruncated
			}
		}
		for len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			line = line[1:]
		}
		about := subject(line)
		if len(about) == 0 || about[0] == '\r' {
			blank = blank && len(bytes.TrimRight(line, "\r")) == 0
			continue
		}
		blank = false
		finder.see(about)
		n, named := lines.named(about)
		if !named {
			continue
		}
		f := &sc.families[n.family]
		switch {
		case line[0] == '#':
			f.declared = true
			f.counter = f.counter || isCounter(line)
		case n.comment:
		case counting || !p.families[n.family].seldom:
			sc.keep(n.family, f, line)
			if len(sc.samples) > maxSamples {
				return fmt.Errorf("%w: more than %d series", ErrTooLarge, maxSamples)
			}
		}
	}
	switch {
	case blank:
		return ErrEmpty
	case !finder.found():
		return ErrNoEngineFamilies
	}
	for i := range sc.samples {
		for _, label := range p.labels.refuse {
			if sc.samples[i].labels.Has(label) {
				return fmt.Errorf("%w: label %s", ErrJoined, label)
			}
		}
	}
	sc.settle()
	return nil
}

// isCounter reports that a comment declares a counter.
func isCounter(line []byte) bool {
	kind, _ := bytes.CutSuffix(bytes.TrimRight(line, " \t\r"), []byte("counter"))
	return len(kind) < len(line) && bytes.HasPrefix(bytes.TrimLeft(line[1:], " \t"), []byte("TYPE")) && isBlank(kind[len(kind)-1])
}

// kinds are the types that a family may have.
var kinds = []string{"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"}

// cut reports that a last line without a newline is only the beginning of one.
func cut(line []byte) bool {
	line = bytes.Trim(line, " \t\r")
	if len(line) == 0 {
		return false
	}
	if line[0] == '#' {
		// A page may end in the type of a family that has no sample yet.
		words := bytes.Fields(line)
		return string(line) != "# EOF" && (len(words) != 4 || string(words[1]) != "TYPE" || !slices.Contains(kinds, string(words[3])))
	}
	text, rest, ok := split(line)
	if !ok {
		return true
	}
	_, fault := parseSeries(text, new([]byte))
	if fault != "" {
		return true
	}
	_, _, err := parseValue(rest)
	return err != nil
}

// split divides a sample line into the series and what comes after it.
func split(line []byte) (text, rest []byte, ok bool) {
	open := bytes.IndexByte(line, '{')
	blank := bytes.IndexAny(line, " \t")
	if open < 0 || blank >= 0 && blank < open && !opensLater(line[blank:]) {
		if blank < 0 {
			return nil, nil, false
		}
		return line[:blank], line[blank:], true
	}
	end := bytes.LastIndexByte(line, '}')
	if bytes.IndexByte(line, '#') >= 0 || end < open {
		end = closing(line, open)
	}
	if end < 0 {
		return nil, nil, false
	}
	return line[:end+1], line[end+1:], true
}

// opensLater reports that only blanks are between a name and its labels.
func opensLater(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t")
	return len(rest) > 0 && rest[0] == '{'
}

// closing finds the brace that closes the labels, outside of quotes; -1 if none
// does.
func closing(line []byte, open int) int {
	quoted := false
	for i := open + 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
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

const noParse = "a line does not parse"

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

// parseSeries reads the labels of a series. fault is empty if they are in order.
func parseSeries(text []byte, buf *[]byte) (l labels.Labels, fault string) {
	if bytes.IndexByte(text, '{') < 0 {
		return l, nameFault(text)
	}
	if closing(text, bytes.IndexByte(text, '{')) != len(text)-1 {
		return l, noParse
	}
	*buf = append(append((*buf)[:0], text...), " 1\n"...)
	parser := textparse.NewPromParser(*buf, labels.NewSymbolTable(), false)
	entry, err := parser.Next()
	if err != nil || entry != textparse.EntrySeries {
		return l, noParse
	}
	parser.Labels(&l)
	if name, twice := l.HasDuplicateLabelNames(); twice {
		return l, fmt.Sprintf("label %.32q given twice", name)
	}
	b := labels.NewScratchBuilder(l.Len())
	l.Range(func(label labels.Label) {
		if label.Name != model.MetricNameLabel {
			b.Add(label.Name, label.Value)
		}
	})
	return b.Labels(), ""
}

// nameFault is for a series without braces, which is a name that is known.
func nameFault(text []byte) string {
	if bytes.ContainsAny(text, "\"}") {
		return noParse
	}
	return ""
}

var errValue = errors.New("not a value")

// parseValue reads what follows a series: a value, perhaps a timestamp, perhaps
// an exemplar.
func parseValue(rest []byte) (v float64, at telemetry.Instant, err error) {
	token, rest := word(rest)
	if v, err = parseNumber(token); err != nil {
		return 0, 0, err
	}
	token, rest = word(rest)
	if len(token) > 0 && token[0] != '#' {
		stamp, err := parseNumber(token)
		if err != nil {
			return 0, 0, err
		}
		at = instant(stamp)
		token, _ = word(rest)
	}
	if len(token) > 0 && token[0] != '#' {
		return 0, 0, errValue
	}
	return v, at, nil
}

// word cuts the first word off a line.
func word(line []byte) (text, rest []byte) {
	start := 0
	for start < len(line) && isBlank(line[start]) {
		start++
	}
	end := start
	for end < len(line) && !isBlank(line[end]) {
		end++
	}
	return line[start:end], line[end:]
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// parseNumber reads a value as Prometheus does. It knows the signed NaN besides,
// which C prints and Go refuses.
func parseNumber(token []byte) (float64, error) {
	if len(token) == 0 {
		return 0, errValue
	}
	if len(token) == 4 && (token[0] == '-' || token[0] == '+') && bytes.EqualFold(token[1:], []byte("nan")) {
		return math.NaN(), nil
	}
	if bytes.ContainsAny(token, "pPxX_") {
		return 0, errValue
	}
	// ParseFloat keeps its text in errors alone, and this one drops them.
	v, err := strconv.ParseFloat(unsafe.String(&token[0], len(token)), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, errValue
	}
	return v, nil
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
