package v1alpha1

import (
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// parseObject reads JSON text that is one object into a tree with json.Number for
// numbers. It takes what RFC 8259 takes, but for four things that encoding/json
// puts up with, each of which two readers may understand in two ways: a name that
// occurs twice in an object, bytes that are not UTF-8, half a surrogate pair, and
// nesting of any depth. The keys of the tree and its texts are parts of the text
// unless they were escaped.
func parseObject(text string) (map[string]any, *IntentError) {
	if !utf8.ValidString(text) {
		return nil, malformed("", "is not UTF-8")
	}
	p := parser{text: text}
	p.blanks()
	if p.peek() != '{' {
		return nil, p.expected("an object")
	}
	tree, bad := p.object(1)
	if bad != nil {
		return nil, bad
	}
	if p.blanks(); p.at != len(text) {
		return nil, p.expected("the end")
	}
	return tree, nil
}

// parser stands at the byte of the text that is read next.
type parser struct {
	text string
	at   int
}

// peek is the next byte, 0 at the end. No text can go on with a real 0.
func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) blanks() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// next passes over a byte if it is the next one after blanks.
func (p *parser) next(c byte) bool {
	p.blanks()
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

func (p *parser) expected(what string) *IntentError {
	return malformed("", "is not JSON: byte %d is where %s should be", p.at, what)
}

// value reads what begins at the next byte that is no blank. Depth is that of an
// object or list that it may be.
func (p *parser) value(depth int) (any, *IntentError) {
	p.blanks()
	switch c := p.peek(); {
	case c == '"':
		return boxed(p.string())
	case c == '{':
		return boxed(p.object(depth))
	case c == '[':
		return boxed(p.list(depth))
	case c == '-' || c >= '0' && c <= '9':
		start := p.at
		end := numberEnd(p.text, start)
		if end < 0 {
			return nil, p.expected("a number")
		}
		p.at = end
		return json.Number(p.text[start:end]), nil
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	case p.word("null"):
		return nil, nil
	default:
		return nil, p.expected("a value")
	}
}

func boxed[T any](v T, bad *IntentError) (any, *IntentError) { return v, bad }

func (p *parser) word(w string) bool {
	if len(p.text)-p.at < len(w) || p.text[p.at:p.at+len(w)] != w {
		return false
	}
	p.at += len(w)
	return true
}

func (p *parser) object(depth int) (map[string]any, *IntentError) {
	if depth > intentDepth {
		return nil, tooDeep()
	}
	p.at++
	of := map[string]any{}
	if p.next('}') {
		return of, nil
	}
	for {
		p.blanks()
		if p.peek() != '"' {
			return nil, p.expected("a name in quotes")
		}
		name, bad := p.string()
		if bad != nil {
			return nil, bad
		}
		if _, twice := of[name]; twice {
			return nil, malformed(member(name), "occurs twice")
		}
		if !p.next(':') {
			return nil, p.expected("a colon").within(member(name))
		}
		if of[name], bad = p.value(depth + 1); bad != nil {
			return nil, bad.within(member(name))
		}
		if p.next('}') {
			return of, nil
		}
		if !p.next(',') {
			return nil, p.expected("a comma or a brace")
		}
	}
}

func (p *parser) list(depth int) ([]any, *IntentError) {
	if depth > intentDepth {
		return nil, tooDeep()
	}
	p.at++
	items := []any{}
	if p.next(']') {
		return items, nil
	}
	for {
		v, bad := p.value(depth + 1)
		if bad != nil {
			return nil, bad.within(item("", len(items)))
		}
		items = append(items, v)
		if p.next(']') {
			return items, nil
		}
		if !p.next(',') {
			return nil, p.expected("a comma or a bracket")
		}
	}
}

func tooDeep() *IntentError {
	return malformed("", "is nested too deeply; allowed are at most %d objects and lists within each other", intentDepth)
}

// string reads a string that begins at the next byte.
func (p *parser) string() (string, *IntentError) {
	p.at++
	start := p.at
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return p.text[start : p.at-1], nil
		case c == '\\':
			return p.escaped(p.text[start:p.at])
		case c < ' ':
			return "", malformed("", "is not JSON: byte %d is a control character that is not escaped", p.at)
		}
		p.at++
	}
	return "", p.expected("a quote")
}

// escaped reads on from the first escape of a string.
func (p *parser) escaped(before string) (string, *IntentError) {
	text := []byte(before)
	for p.at < len(p.text) {
		c := p.text[p.at]
		if c < ' ' {
			return "", malformed("", "is not JSON: byte %d is a control character that is not escaped", p.at)
		}
		p.at++
		if c == '"' {
			return string(text), nil
		}
		if c != '\\' {
			text = append(text, c)
			continue
		}
		switch e := p.peek(); e {
		case '"', '\\', '/':
			text = append(text, e)
		case 'b':
			text = append(text, '\b')
		case 'f':
			text = append(text, '\f')
		case 'n':
			text = append(text, '\n')
		case 'r':
			text = append(text, '\r')
		case 't':
			text = append(text, '\t')
		case 'u':
			r, bad := p.character()
			if bad != nil {
				return "", bad
			}
			text = utf8.AppendRune(text, r)
			continue
		default:
			return "", p.expected("an escape")
		}
		p.at++
	}
	return "", p.expected("a quote")
}

// character reads the rest of an escape from its u on, and a second one if both
// stand for one character.
func (p *parser) character() (rune, *IntentError) {
	first, ok := p.unit()
	if !ok {
		return 0, p.expected("an escape of four hexadecimal digits")
	}
	if !utf16.IsSurrogate(first) {
		return first, nil
	}
	if p.word(`\`) && p.peek() == 'u' {
		if second, ok := p.unit(); ok {
			if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
				return r, nil
			}
		}
	}
	return 0, malformed("", `has half a surrogate pair, \u%04x, before byte %d`, first, p.at)
}

func (p *parser) unit() (rune, bool) {
	if len(p.text)-p.at < 5 {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.text[p.at+1 : p.at+5]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	p.at += 5
	return r, true
}

// numberEnd is where a number ends that begins at a byte of a text, or -1 if none
// does.
func numberEnd(text string, at int) int {
	digits := func() bool {
		start := at
		for at < len(text) && text[at] >= '0' && text[at] <= '9' {
			at++
		}
		return at > start
	}
	is := func(chars string) bool {
		for n := range len(chars) {
			if at < len(text) && text[at] == chars[n] {
				at++
				return true
			}
		}
		return false
	}
	is("-")
	if !is("0") && !digits() {
		return -1
	}
	if is(".") && !digits() {
		return -1
	}
	if is("eE") {
		is("+-")
		if !digits() {
			return -1
		}
	}
	return at
}
