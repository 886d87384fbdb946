package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// ErrTruncated: the last line is not complete, or may not be: a sample that is
	// read has no line feed, and its number may have had more digits.
	ErrTruncated = errors.New("the page was cut in its last line")
)

// The ways in which a line makes a page no text, wherever it stands.
var (
	errControl = fmt.Errorf("%w: a line has control characters", ErrNotText)
	errNoName  = fmt.Errorf("%w: a line does not begin with the name of a family", ErrNotText)
)

func notText(page []byte) bool {
	page = bytes.TrimLeft(page, " \t\r\n")
	if len(page) == 0 {
		return false
	}
	c := page[0]
	if c == '{' {
		line, _, _ := bytes.Cut(page, []byte("\n"))
		_, ok := unquoted(line)
		return !ok
	}
	return c == '[' || c == '<' || c == '"' || c < ' ' || c > '~'
}

// isControl reports that c is a control character, which belongs into the values of
// labels and into texts of help alone.
func isControl(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f }

// unquoted spells a series whose name is quoted within the braces as one with its
// name before them: {"name",label="value"} is name{label="value"}. The name may be
// one that only this spelling can have; then it is no family's that is read.
func unquoted(line []byte) (plain []byte, ok bool) {
	rest := bytes.TrimLeft(line[1:], " \t")
	end := closingQuote(rest)
	if end < 0 {
		return nil, false
	}
	name := rest[1:end]
	rest = bytes.TrimLeft(rest[end+1:], " \t")
	switch {
	case len(rest) > 0 && rest[0] == ',':
		rest = rest[1:]
	case len(rest) == 0 || rest[0] != '}':
		return nil, false
	}
	if len(name) == 0 || bytes.ContainsFunc(name, func(r rune) bool { return r <= ' ' || strings.ContainsRune("{}\\#\"", r) }) {
		name = []byte("_")
	}
	return slices.Concat(name, []byte("{"), rest), true
}

// closingQuote is where the quoted text ends that a text begins with; -1 if it does
// not.
func closingQuote(text []byte) int {
	if len(text) == 0 || text[0] != '"' {
		return -1
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// scan parses the lines of the families that the profile names into samples.
// Without counting, families that are read seldom are left out.
func (p *Profile) scan(page []byte, sc *scratch, counting bool) error {
	if notText(page) {
		return ErrNotText
	}
	sc.begin()
	finder, lines := p.detect.finder(), reader{Profile: p}
	blank, ended := true, true
	for rest := page; len(rest) > 0; {
		var line []byte
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, rest = rest[:i], rest[i+1:]
		} else {
			line, rest, ended = rest, nil, false
			if cut(line) {
				return ErrTruncated
			}
		}
		for len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			line = line[1:]
		}
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		about := subject(line)
		if len(about) == 0 {
			blank = blank && len(line) == 0
			sc.openMetrics = sc.openMetrics || string(line) == "# EOF"
			continue
		}
		if about[0] == '{' || about[0] == '"' {
			var ok bool
			if about, line, ok = withoutQuotes(about, line); !ok {
				return errNoName
			}
		}
		blank = false
		finder.see(about)
		n, named := lines.named(about)
		if end := len(lines.name); end < len(about) && isControl(about[end]) {
			return errControl
		}
		if !named {
			continue
		}
		f := &sc.families[n.family]
		switch {
		case line[0] == '#':
			f.declared = true
			f.types |= typeOf(line)
		case !ended:
			return ErrTruncated
		case n.comment:
			f.bare = true
		case counting || !p.families[n.family].seldom:
			if !sc.keep(n.family, f, line) {
				return errControl
			}
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

// withoutQuotes takes the quotes off the name that a line is about.
func withoutQuotes(about, line []byte) (subject, plain []byte, ok bool) {
	if line[0] != '#' {
		plain, ok = unquoted(line)
		return plain, plain, ok && about[0] == '{'
	}
	end := closingQuote(about)
	if end < 0 {
		return nil, nil, false
	}
	return about[1:end], line, true
}

// endsName reports that c cannot be part of a family's name.
func endsName(c byte) bool { return c <= ' ' || c == '{' || c == 0x7f }

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

// types are those that comments declare a family to be of; none that matters for
// most.
type types uint8

const (
	isCounter types = 1 << iota
	isGauge
	isHistogram
	isSummary
)

func (t types) String() string {
	for i, word := range [...]string{"counter", "gauge", "histogram", "summary"} {
		if t&(1<<i) != 0 {
			return word
		}
	}
	return "untyped"
}

// typeOf is the type that a comment declares.
func typeOf(line []byte) types {
	if !bytes.HasPrefix(bytes.TrimLeft(line[1:], " \t"), []byte("TYPE")) {
		return 0
	}
	line = bytes.TrimRight(line, " \t")
	switch word := line[bytes.LastIndexAny(line, " \t")+1:]; string(word) {
	case "counter":
		return isCounter
	case "gauge":
		return isGauge
	case "histogram":
		return isHistogram
	case "summary":
		return isSummary
	default:
		return 0
	}
}

// kinds are the types that a family may have.
var kinds = []string{"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"}

// cut reports that a last line without a newline is only the beginning of one.
func cut(line []byte) bool {
	line = bytes.Trim(line, " \t\r")
	if len(line) == 0 {
		return false
	}
	if line[0] == '{' {
		var ok bool
		if line, ok = unquoted(line); !ok {
			return true
		}
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
