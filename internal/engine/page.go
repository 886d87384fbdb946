package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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

func notText(page []byte) bool {
	page = bytes.TrimLeft(page, " \t\r\n")
	if len(page) == 0 {
		return false
	}
	c := page[0]
	return c == '{' || c == '[' || c == '<' || c < ' ' || c > '~'
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
