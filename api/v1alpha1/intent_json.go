package v1alpha1

import (
	"unicode/utf16"
	"unicode/utf8"
)

// parser reads JSON text that is one object. It takes what RFC 8259 takes, but for
// four things that encoding/json puts up with, each of which two readers may
// understand in two ways: a name that occurs twice in an object, bytes that are not
// UTF-8, half a surrogate pair, and nesting of any depth.
//
// What it has read it writes on a tape: a list of nodes in the order of the text,
// each value followed by all that is within it. A node holds no pointer, only where
// its text is, so that an intent costs a handful of allocations instead of one for
// each value. {"a":[1,2],"b":"x"} becomes
//
//	0 { of 2 members, next 5
//	1   "a": [ of 2 items, next 4
//	2          1
//	3          2
//	4   "b": "x"
type parser struct {
	source string
	// at is the byte that is read next.
	at    int
	nodes []node
	// unescaped are the strings that are not as they stand in the text.
	unescaped []string
}

// node is one value.
type node struct {
	// kind is the value's first byte, and 0 as a character for all numbers.
	kind byte
	// name is the value's as a member of an object, content that of a string or number.
	name, content span
	// n is how many members or items there are within.
	n uint32
	// next is the node after this one and all within it.
	next uint32
}

// span is a part of the text, or with to 0, where no string ends, the index of one
// that is unescaped.
type span struct{ from, to uint32 }

func (p *parser) text(s span) string {
	if s.to == 0 {
		return p.unescaped[s.from]
	}
	return p.source[s.from:s.to]
}

// find is the member of that name of the object at a node.
func (p *parser) find(object uint32, name string) (at uint32, ok bool) {
	at = object + 1
	for range p.nodes[object].n {
		if p.text(p.nodes[at].name) == name {
			return at, true
		}
		at = p.nodes[at].next
	}
	return 0, false
}

// parseObject reads a whole text. The object is the first node.
func (p *parser) parseObject(text string) *IntentError {
	if !utf8.ValidString(text) {
		return malformed("", "is not UTF-8")
	}
	p.source = text
	p.blanks()
	if p.peek() != '{' {
		return p.expected("an object")
	}
	if bad := p.value(1); bad != nil {
		return bad
	}
	if p.blanks(); p.at != len(text) {
		return p.expected("the end")
	}
	return nil
}

// peek is the next byte, 0 at the end. No text can go on with a real 0.
func (p *parser) peek() byte {
	if p.at < len(p.source) {
		return p.source[p.at]
	}
	return 0
}

func (p *parser) blanks() {
	for p.at < len(p.source) {
		switch p.source[p.at] {
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

// value reads a value that is no member of an object.
func (p *parser) value(depth int) *IntentError { return p.named(span{}, depth) }

// named reads what begins at the next byte that is no blank, as the member of that
// name. Depth is that of an object or list that it may be.
func (p *parser) named(name span, depth int) (bad *IntentError) {
	p.blanks()
	self := len(p.nodes)
	c := p.peek()
	p.nodes = append(p.nodes, node{kind: c, name: name})
	switch {
	case c == '"':
		p.nodes[self].content, bad = p.string()
	case c == '{':
		bad = p.object(self, depth)
	case c == '[':
		bad = p.list(self, depth)
	case c == '-' || c >= '0' && c <= '9':
		end := numberEnd(p.source, p.at)
		if end < 0 {
			return p.expected("a number")
		}
		p.nodes[self].kind = '0'
		p.nodes[self].content = span{uint32(p.at), uint32(end)}
		p.at = end
	case p.word("true"), p.word("false"), p.word("null"):
	default:
		return p.expected("a value")
	}
	p.nodes[self].next = uint32(len(p.nodes))
	return bad
}

func (p *parser) word(w string) bool {
	if len(p.source)-p.at < len(w) || p.source[p.at:p.at+len(w)] != w {
		return false
	}
	p.at += len(w)
	return true
}

func (p *parser) object(self, depth int) *IntentError {
	if depth > intentDepth {
		return tooDeep()
	}
	p.at++
	if p.next('}') {
		return nil
	}
	var many map[string]bool
	for {
		p.blanks()
		if p.peek() != '"' {
			return p.expected("a name in quotes")
		}
		name, bad := p.string()
		if bad != nil {
			return bad
		}
		if p.twice(self, p.text(name), &many) {
			return malformed(member(p.text(name)), "occurs twice")
		}
		if !p.next(':') {
			return p.expected("a colon").within(member(p.text(name)))
		}
		if bad = p.named(name, depth+1); bad != nil {
			return bad.within(member(p.text(name)))
		}
		p.nodes[self].n++
		if p.next('}') {
			return nil
		}
		if !p.next(',') {
			return p.expected("a comma or a brace")
		}
	}
}

// fewMembers is how many names are compared one by one to find one that came before.
const fewMembers = 32

// twice reports that an object has a member of that name already. many has the names
// once they are too many to compare.
func (p *parser) twice(object int, name string, many *map[string]bool) bool {
	if p.nodes[object].n < fewMembers {
		_, twice := p.find(uint32(object), name)
		return twice
	}
	if *many == nil {
		*many = map[string]bool{}
		for _, earlier := range (value{tape: p, at: uint32(object)}).names() {
			(*many)[earlier] = true
		}
	}
	twice := (*many)[name]
	(*many)[name] = true
	return twice
}

func (p *parser) list(self, depth int) *IntentError {
	if depth > intentDepth {
		return tooDeep()
	}
	p.at++
	if p.next(']') {
		return nil
	}
	for {
		if bad := p.value(depth + 1); bad != nil {
			return bad.within(item("", int(p.nodes[self].n)))
		}
		p.nodes[self].n++
		if p.next(']') {
			return nil
		}
		if !p.next(',') {
			return p.expected("a comma or a bracket")
		}
	}
}

func tooDeep() *IntentError {
	return malformed("", "is nested too deeply; allowed are at most %d objects and lists within each other", intentDepth)
}

// string reads a string that begins at the next byte.
func (p *parser) string() (span, *IntentError) {
	p.at++
	start := p.at
	for p.at < len(p.source) {
		switch c := p.source[p.at]; {
		case c == '"':
			p.at++
			return span{uint32(start), uint32(p.at - 1)}, nil
		case c == '\\':
			text, bad := p.escaped(p.source[start:p.at])
			p.unescaped = append(p.unescaped, text)
			return span{uint32(len(p.unescaped) - 1), 0}, bad
		case c < ' ':
			return span{}, malformed("", "is not JSON: byte %d is a control character that is not escaped", p.at)
		}
		p.at++
	}
	return span{}, p.expected("a quote")
}

// escaped reads on from the first escape of a string.
func (p *parser) escaped(before string) (string, *IntentError) {
	text := []byte(before)
	for p.at < len(p.source) {
		c := p.source[p.at]
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
	if len(p.source)-p.at < 5 {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.source[p.at+1 : p.at+5]) {
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
