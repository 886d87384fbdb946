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
	var root yaml.Node
	if err := dec.Decode(&root); err != nil {
		switch {
		case errors.Is(err, io.EOF):
			err = errors.New("the document is empty")
		case strings.Contains(err.Error(), "cannot start any token"):
			err = fmt.Errorf("%w (a tab? indent with spaces)", err)
		}
		return node{}, fmt.Errorf("%s: %w", file, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return node{}, fmt.Errorf("%s: more than one document, want one profile for each file", file)
	}
	return node{root.Content[0], doc, "", root.Content[0].Line}, nil
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

// Limits of one list and of one mapping. Nothing that an engine shows needs more.
const (
	maxItems   = 64
	maxMembers = 64
)

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
		if key.Kind != yaml.ScalarNode {
			node{key, n.doc, n.path, key.Line}.fail("a key must be a name")
		}
		if slices.ContainsFunc(pairs, func(p pair) bool { return p.name == m.name }) {
			m.fail("given twice")
		}
		pairs = append(pairs, m)
	}
	return pairs
}

func join(path, name string) string {
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

func (n node) texts() []string {
	var texts []string
	for _, item := range n.list() {
		texts = append(texts, item.text())
	}
	return texts
}

// text is a scalar that is not empty; "" for a place that does not exist.
func (n node) text() string {
	if !n.has() {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		n.fail("%s, want a text that is not empty", n.shown())
		return ""
	}
	return n.Value
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

// require faults a place that does not exist at its parent.
func (n node) require(parent node, name string) node {
	if !n.has() {
		parent.fail("%s is missing", name)
	}
	return n
}

func (n node) shown() string {
	switch n.Kind {
	case yaml.ScalarNode:
		return strconv.Quote(n.Value)
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "an alias"
	}
}
