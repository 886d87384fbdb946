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

// node is one place of a YAML document. Its readers report the first fault of the document and yield zero values after
// it, so that a profile is read from top to bottom without a branch per member.
type node struct {
	*yaml.Node
	doc *document
	// path are the names that lead here, line is where the last one stands.
	path string
	line int
}

type document struct {
	file string
	err  error
}

func parseDocument(file string, text []byte) (node, error) {
	doc := &document{file: file}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var root, second yaml.Node
	err := dec.Decode(&root)
	switch {
	case errors.Is(err, io.EOF):
		return node{}, fmt.Errorf("%s: the document is empty", file)
	case err != nil:
		return node{}, syntaxError(file, text, err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return node{}, fmt.Errorf("%s:%d: more than one document, want one profile for each file", file, second.Line)
	case !errors.Is(err, io.EOF):
		return node{}, syntaxError(file, text, err)
	}
	top := root.Content[0]
	if top.Tag == "!!null" {
		return node{}, fmt.Errorf("%s: the document is empty", file)
	}
	return node{top, doc, "", top.Line}, nil
}

// fail reports the first fault. A place that does not exist was reported by
// require.
func (n node) fail(format string, args ...any) {
	if !n.has() || n.doc.err != nil {
		return
	}
	where := fmt.Sprintf("%s:%d: ", n.doc.file, n.line)
	if n.path != "" {
		where += n.path + ": "
	}
	n.doc.err = errors.New(where + fmt.Sprintf(format, args...))
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
		if at := (node{key, n.doc, n.path, key.Line}); key.Kind != yaml.ScalarNode {
			at.fail("a key must be a name")
		} else if len(key.Value) > maxKey || strings.ContainsFunc(key.Value, unprintable) {
			at.fail("a key %s, want at most %d printable characters", at.shown(), maxKey)
		}
		if slices.ContainsFunc(pairs, func(p pair) bool { return p.name == m.name }) {
			m.fail("given twice")
		}
		pairs = append(pairs, m)
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

// text is a scalar that is not empty; "" for a place that does not exist.
func (n node) text() string {
	if !n.has() {
		return ""
	}
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "":
		n.fail("%s, want a text that is not empty", n.shown())
		return ""
	case len(n.Value) > maxProse:
		n.fail("%s, a text of %d bytes, want at most %d", n.shown(), len(n.Value), maxProse)
	}
	return n.Value
}

// prose is a text for people, in one line.
func (n node) prose() string {
	text := strings.TrimSpace(n.text())
	if n.has() && (text == "" || strings.ContainsFunc(text, unprintable)) {
		n.fail("%s, want one line of printable characters", n.shown())
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
		n.fail("%q, want one of %s", v, strings.Join(allowed, ", "))
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
	}
	return v
}

// integer is like number, without fractions.
func (n node) integer(absent, least, most int) int {
	v := n.number(float64(absent), float64(least), float64(most))
	if v != float64(int(v)) {
		n.fail("%s, want a whole number from %d to %d", n.shown(), least, most)
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
		parent.fail("%s is missing", name)
	}
	return n
}

// maxShown is how many characters of a value an error repeats.
const maxShown = 64

func (n node) shown() string {
	switch n.Kind {
	case yaml.ScalarNode:
		if len(n.Value) > maxShown {
			return fmt.Sprintf("%.*q...", maxShown, n.Value)
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
