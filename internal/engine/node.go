package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// node is one place of a YAML document. Its readers report what is wrong with the place and yield zero values for it,
// so that a profile is read from top to bottom without a branch per member.
type node struct {
	*yaml.Node
	doc *document
	// path are the names that lead here, line is where the last one stands.
	path string
	line int
}

type document struct {
	faults
	// misspelt are the mappings with an unknown key.
	misspelt map[string]bool
}

func parseDocument(file string, text []byte) (node, error) {
	doc := &document{faults: faults{file: file}, misspelt: map[string]bool{}}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var root, second yaml.Node
	err := dec.Decode(&root)
	switch {
	case errors.Is(err, io.EOF):
		return node{}, doc.only(1, "the document is empty, want a profile")
	case err != nil:
		return node{}, doc.only(syntaxError(text, err))
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return node{}, doc.only(second.Line, "more than one document, want one profile for each file")
	case !errors.Is(err, io.EOF):
		return node{}, doc.only(syntaxError(text, err))
	}
	top := root.Content[0]
	if top.Tag == "!!null" {
		return node{}, doc.only(max(top.Line, 1), "the document is empty, want a profile")
	}
	return node{top, doc, "", top.Line}, nil
}

// fail reports what is wrong with a place. One that does not exist was reported by
// require, and one of which a part is wrong is not judged as a whole: it would be
// judged by what was put in for that part.
func (n node) fail(format string, args ...any) {
	if n.has() && !n.bad() {
		n.doc.add(n.line, n.path, n.path, fmt.Sprintf(format, args...))
	}
}

// lack reports that a member is missing which must be there. Beside a key that is
// unknown, it is more likely that one misspelt.
func (n node) lack(name, format string, args ...any) {
	if n.has() && !n.doc.wrong[n.path] && !n.doc.misspelt[n.path] {
		n.doc.add(n.line, n.path, join(n.path, name), fmt.Sprintf(format, args...))
	}
}

// bad reports that something was wrong with the place, or with a part of it.
func (n node) bad() bool {
	if !n.has() {
		return false
	}
	_, bad := n.doc.wrong[n.path]
	return bad
}

// has reports that the place exists; members that were left out do not.
func (n node) has() bool { return n.Node != nil }

// members splits a mapping into the allowed members, in their order. Those that
// were left out are places that do not exist. With allowed nil any name goes.
func (n node) members(allowed ...string) map[string]node {
	got := map[string]node{}
	for _, m := range n.pairs() {
		if len(allowed) > 0 && !slices.Contains(allowed, m.name) {
			m.fail("unknown key, allowed are %s", strings.Join(allowed, ", "))
			n.doc.misspelt[n.path] = true
		}
		got[m.name] = m.node
	}
	return got
}

// Limits of one list, of one mapping, and of one key and one text in bytes. Nothing
// that an engine shows needs more.
const (
	maxItems   = 64
	maxMembers = 64
	maxKey     = 128
	maxProse   = 1024
)

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// pair is a member of a mapping with its name.
type pair struct {
	name string
	node
}

// pairs are the members whose names can be told apart.
func (n node) pairs() []pair {
	if !n.has() {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		n.fail("%s, want a mapping", n.shown())
		return nil
	}
	if len(n.Content)/2 > maxMembers {
		n.fail("%d members, want at most %d", len(n.Content)/2, maxMembers)
		return nil
	}
	pairs := make([]pair, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		m := pair{key.Value, node{n.Content[i+1], n.doc, join(n.path, key.Value), key.Line}}
		switch {
		case key.Kind != yaml.ScalarNode:
			n.doc.add(key.Line, n.path, fmt.Sprintf("%s key %d", n.path, i), "a key must be a name")
		case len(key.Value) > maxKey || strings.ContainsFunc(key.Value, unprintable):
			n.doc.add(key.Line, n.path, fmt.Sprintf("%s key %d", n.path, i),
				fmt.Sprintf("a key %s, want at most %d printable characters", node{Node: key}.shown(), maxKey))
		case slices.ContainsFunc(pairs, func(p pair) bool { return p.name == m.name }):
			n.doc.add(m.line, m.path, fmt.Sprintf("%s twice %d", m.path, i), "given twice")
		default:
			pairs = append(pairs, m)
		}
	}
	return pairs
}

func join(path, name string) string {
	if name == "" {
		name = `""`
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// list yields the items of a sequence.
func (n node) list() []node {
	if !n.has() {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		n.fail("%s, want a list", n.shown())
		return nil
	}
	if len(n.Content) > maxItems {
		n.fail("%d items, want at most %d", len(n.Content), maxItems)
		return nil
	}
	items := make([]node, len(n.Content))
	for i, c := range n.Content {
		items[i] = node{c, n.doc, n.path + "[" + strconv.Itoa(i) + "]", c.Line}
	}
	return items
}

// texts yields the items of a sequence of texts, each of which may be there once.
func (n node) texts() []string {
	var texts []string
	for _, item := range n.list() {
		text := item.text()
		if slices.Contains(texts, text) {
			item.fail("%q given twice", text)
		}
		texts = append(texts, text)
	}
	return texts
}

// text is a scalar of printable characters that is not empty; "" for a place that
// does not exist.
func (n node) text() string {
	text := n.scalar()
	if strings.ContainsFunc(text, unprintable) {
		n.fail("%s, want printable characters", n.shown())
		return ""
	}
	return text
}

// scalar is a text as it stands there.
func (n node) scalar() string {
	if !n.has() {
		return ""
	}
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "":
		n.fail("%s, want a text that is not empty", n.shown())
		return ""
	case len(n.Value) > maxProse:
		n.fail("%s, a text of %d bytes, want at most %d", n.shown(), len(n.Value), maxProse)
		return ""
	}
	return n.Value
}

// prose is a text for people, in one line.
func (n node) prose() string {
	text := strings.TrimSpace(n.scalar())
	if n.has() && (text == "" || strings.ContainsFunc(text, unprintable)) {
		n.fail("%s, want one line of printable characters", n.shown())
		return ""
	}
	return text
}

// textOrEmpty is a scalar that may be empty.
func (n node) textOrEmpty() string {
	if n.has() && n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == "" {
		return ""
	}
	return n.text()
}

// one is a text out of a few; absent stands for a place that does not exist.
func (n node) one(absent string, allowed ...string) string {
	if !n.has() {
		return absent
	}
	v := n.text()
	if !slices.Contains(allowed, v) {
		n.fail("%q, want one of %s", shortened(v), strings.Join(allowed, ", "))
		return absent
	}
	return v
}

func (n node) boolean() bool {
	if !n.has() {
		return false
	}
	var v bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&v) != nil {
		n.fail("%s, want true or false", n.shown())
	}
	return v
}

func (n node) duration(absent, least time.Duration) time.Duration {
	if !n.has() {
		return absent
	}
	d, err := time.ParseDuration(n.text())
	if err != nil || d < least || d > longest {
		n.fail("%s, want a duration from %v to %v", n.shown(), least, longest)
		return absent
	}
	return d
}

func (n node) number(absent, least, most float64) float64 {
	if !n.has() {
		return absent
	}
	v, err := strconv.ParseFloat(n.text(), 64)
	if err != nil || !(v >= least && v <= most) {
		n.fail("%s, want a number from %v to %v", n.shown(), least, most)
		return absent
	}
	return v
}

// integer is like number, without fractions.
func (n node) integer(absent, least, most int) int {
	v := n.number(float64(absent), float64(least), float64(most))
	if v != float64(int(v)) {
		n.fail("%s, want a whole number from %d to %d", n.shown(), least, most)
		return absent
	}
	return int(v)
}

// orElse is n itself, or where it does not exist another place.
func (n node) orElse(other node) node {
	if n.has() {
		return n
	}
	return other
}

// require faults a place that does not exist at its parent.
func (n node) require(parent node, name string) node {
	if !n.has() {
		parent.lack(name, "%s is missing", name)
	}
	return n
}

// maxShown is how many characters of a value an error repeats.
const maxShown = 64

func (n node) shown() string {
	switch n.Kind {
	case yaml.ScalarNode:
		if short := shortened(n.Value); short != n.Value {
			return strconv.Quote(strings.TrimSuffix(short, "...")) + "..."
		}
		return strconv.Quote(n.Value)
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "an alias"
	}
}

// shortened is at most maxShown characters of a text.
func shortened(text string) string {
	n := 0
	for i := range text {
		if n == maxShown {
			return text[:i] + "..."
		}
		n++
	}
	return text
}
