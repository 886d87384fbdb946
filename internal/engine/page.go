package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// Reasons for which a page as a whole is refused.
var (
	// ErrNotText: the page is JSON, HTML or binary, whatever its content type.
	ErrNotText = errors.New("not a text metrics page")
	// ErrNoEngineFamilies: the page has not one family of the engine. Either it
	// is another engine's, or this one's statistics are switched off (vLLM:
	// --disable-log-stats).
	ErrNoEngineFamilies = errors.New("no family of the engine on the page")
	// ErrTruncated: the last line is not complete.
	ErrTruncated = errors.New("the page was cut in its last line")
)

const (
	// maxSeries bounds the series of one family: 64 data-parallel ranks, each
	// with some states and some dead processes, stay well below.
	maxSeries = 512
	// maxLine bounds one sample line. Pages with megabytes in one label exist
	// (vLLM pull request 44702).
	maxLine = 1 << 20
)

// scratch is the memory of one reading of one page, reused for the next.
type scratch struct {
	// kept are the lines of named families, each ended by a newline.
	kept     []byte
	lines    []keptLine
	families []familyState
	samples  []sample
	values   []weighted
	models   []string
	hash     []byte
	symbols  *labels.SymbolTable
}

type keptLine struct {
	family int
	end    int // in kept, after the newline
}

// familyState is what is known of a family apart from its good samples.
type familyState struct {
	// declared: HELP or TYPE was on the page.
	declared bool
	count    int
	// problem spoils the whole family: a line that does not parse, or too many.
	problem string
}

// sample is one series. Two lines with the same labels become one sample.
type sample struct {
	family int
	labels labels.Labels
	value  float64
	// full and group are hashes of the labels, and of those that count.
	full, group uint64
	// problem spoils every value that this series takes part in.
	problem string
}

func (sc *scratch) reset(families int) {
	sc.kept = sc.kept[:0]
	sc.lines = sc.lines[:0]
	sc.samples = sc.samples[:0]
	sc.families = slices.Grow(sc.families[:0], families)[:families]
	clear(sc.families)
}

// release lets go of what the last page has left behind.
func (sc *scratch) release() {
	clear(sc.samples)
	clear(sc.models)
	if cap(sc.kept) > 1<<18 {
		sc.kept = nil
	}
}

// recognises reports whether the profile's engine wrote the page.
func (p *Profile) recognises(page []byte) bool {
	if notText(page) {
		return false
	}
	for line := range bytes.Lines(page) {
		if p.owns(subject(bytes.TrimLeft(line, " \t"))) {
			return true
		}
	}
	return false
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

// named finds the family that a line is about among those that the rules read.
// Looking only where a name of a known length would end is several times
// cheaper than finding the end of each name.
func (p *Profile) named(subject []byte) (family int, ok bool) {
	for i := range p.lengths {
		n := p.lengths[i]
		if len(subject) < n || len(subject) > n && !endsName(subject[n]) {
			continue
		}
		if family, ok = p.families[string(subject[:n])]; ok {
			return family, true
		}
	}
	return 0, false
}

// owns reports that a line is about a family of the engine.
func (p *Profile) owns(subject []byte) bool {
	for _, prefix := range p.prefixes {
		if n := len(prefix); len(subject) > n && string(subject[:n]) == prefix && !endsName(subject[n]) {
			return true
		}
	}
	return false
}

// scan keeps the lines of the families that the profile names and parses them
// into samples.
func (p *Profile) scan(page []byte, sc *scratch) error {
	if notText(page) {
		return ErrNotText
	}
	sc.reset(len(p.names))
	owned := false
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
		owned = owned || p.owns(about)
		family, named := p.named(about)
		if !named {
			continue
		}
		f := &sc.families[family]
		if line[0] == '#' {
			f.declared = true
			continue
		}
		sc.keep(family, f, bytes.TrimSuffix(line, []byte{'\r'}))
	}
	if !owned {
		return ErrNoEngineFamilies
	}
	sc.parse()
	sc.unify(p.drop)
	return nil
}

// cut reports that a last line without a newline is only the beginning of one.
func cut(line []byte) bool {
	line = bytes.Trim(line, " \t\r")
	if len(line) == 0 || signedNaN(line) {
		return false
	}
	own := append(slices.Clone(line), '\n')
	if !balanced(own) {
		return true
	}
	_, err := textparse.NewPromParser(own, nil, false).Next()
	return err != nil
}

// keep puts a sample line aside, or notes why its family is spoilt.
func (sc *scratch) keep(family int, f *familyState, line []byte) {
	f.count++
	switch {
	case f.count > maxSeries:
		f.problem = fmt.Sprintf("more than %d series", maxSeries)
	case len(line) > maxLine:
		f.problem = fmt.Sprintf("a series of more than %d bytes", maxLine)
	case signedNaN(line):
		f.problem = "value is not a number"
	case !balanced(line):
		f.problem = "a line does not parse"
	default:
		sc.kept = append(append(sc.kept, line...), '\n')
		sc.lines = append(sc.lines, keptLine{family, len(sc.kept)})
	}
}

// signedNaN reports a value that C prints for some NaN and that Go's parser
// refuses, though it knows the NaN without a sign.
func signedNaN(line []byte) bool {
	if n := len(line); n >= 5 && (line[n-4] == '-' || line[n-4] == '+') {
		before := line[n-5]
		return (before == ' ' || before == '\t' || before == '}') && bytes.EqualFold(line[n-3:], []byte("nan"))
	}
	return false
}

// balanced reports that every quote of a line is closed in it. The parser lets
// a label value run over the end of its line, into the next one.
func balanced(line []byte) bool {
	open := false
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '"':
			open = !open
		case line[i] == '\\' && open:
			i++
		}
	}
	return !open
}

// parse reads the kept lines with one parser, and starts a new one after each
// line that does not parse: it must not take others with it.
func (sc *scratch) parse() {
	if sc.symbols == nil {
		sc.symbols = labels.NewSymbolTable()
	}
	var parser textparse.Parser
	start := 0
	for _, line := range sc.lines {
		if parser == nil {
			parser = textparse.NewPromParser(sc.kept[start:], sc.symbols, false)
		}
		start = line.end
		entry, err := parser.Next()
		if err != nil || entry != textparse.EntrySeries {
			sc.families[line.family].problem = "a line does not parse"
			parser = nil
			continue
		}
		s := sample{family: line.family}
		series, _, value := parser.Series()
		s.value = value
		if bytes.IndexByte(series, '{') >= 0 {
			parser.Labels(&s.labels)
		}
		if name, twice := s.labels.HasDuplicateLabelNames(); twice {
			sc.families[line.family].problem = fmt.Sprintf("label %.32q given twice", name)
			continue
		}
		sc.samples = append(sc.samples, s)
	}
}

// unify makes one sample of each series. Lines that repeat a series must agree;
// of series that differ in dropped labels alone, the largest value counts.
func (sc *scratch) unify(drop []string) {
	for i := range sc.samples {
		s := &sc.samples[i]
		s.full, sc.hash = s.labels.HashWithoutLabels(sc.hash)
		s.group = s.full
		if len(drop) > 0 {
			s.group, sc.hash = s.labels.HashWithoutLabels(sc.hash, drop...)
		}
	}
	distinct := sc.samples[:0]
	for _, s := range sc.samples {
		twin := slices.IndexFunc(distinct, func(d sample) bool { return d.family == s.family && d.full == s.full })
		switch {
		case twin < 0:
			distinct = append(distinct, s)
		case distinct[twin].value != s.value:
			distinct[twin].problem = "duplicate: one series with different values"
		}
	}
	sc.samples = distinct
	if len(drop) == 0 {
		return
	}
	groups := sc.samples[:0]
	for _, s := range sc.samples {
		twin := slices.IndexFunc(groups, func(g sample) bool { return g.family == s.family && g.group == s.group })
		if twin < 0 {
			groups = append(groups, s)
			continue
		}
		g := &groups[twin]
		if g.problem == "" {
			g.problem = s.problem
		}
		if !possibleNumber(g.value) || s.value > g.value {
			g.value = s.value
		}
	}
	sc.samples = groups
}

// distinctModels counts the model names that the samples carry.
func (sc *scratch) distinctModels(label string) int {
	sc.models = sc.models[:0]
	for i := range sc.samples {
		name := sc.samples[i].labels.Get(label)
		if name != "" && !slices.Contains(sc.models, name) {
			sc.models = append(sc.models, name)
		}
	}
	return len(sc.models)
}
