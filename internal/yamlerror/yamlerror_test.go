package yamlerror

import (
	"strings"
	"testing"
)

func TestASyntaxErrorNamesTheLineOfTheFault(t *testing.T) {
	for _, c := range []struct {
		name, text string
		line       int
		reason     string
	}{
		{"a bracket in the first line", "a: ]\n", 1, "did not find expected node content"},
		{"a bracket in the second line", "a: 1\nb: ]\n", 2, "did not find expected node content"},
		{"no colon in the first line", "a\nb: 1\n", 2, "mapping values are not allowed"},
		{"a key without a colon", "a: 1\nb\nc: 2\n", 2, "could not find expected ':'"},
		{"a key without a colon in the first of nested lines", "x:\n  b\n  c: 2\n", 3, "mapping values are not allowed"},
		{"a colon too many", "a: 1\nb: c: d\n", 2, "mapping values are not allowed"},
		{"a colon too many in the first line", "b: c: d\n", 1, "mapping values are not allowed"},
		{"indented too little", "a:\n  b: 1\n c: 2\nd: 1\n", 3, "did not find expected key of what begins in line 1"},
		{"indented too little below other members", "k: 1\na:\n  b:\n    c: 1\n   d: 2\n", 5, "did not find expected key"},
		{"a member among items", "a:\n- 1\n- 2\n  b: 1\n", 4, "mapping values are not allowed"},
		{"an item among items that are deeper", "k: 1\na:\n  - 1\n - 2\n", 4, "did not find expected"},
		{"a key below items at their depth", "- a\nb: 1\n", 2, "did not find expected '-' indicator of what begins in line 1"},
		{"a comma that is missing in one line", "k: 1\na: {b: 1 c: 2}\n", 2, ""},
		{"a comma that is missing between lines", "{\n\"a\": 1,\n\"b\": 2\n\"c\": 3\n}\n", 4, "did not find expected ',' or '}' of what begins in line 1"},
		{"a bracket of the other kind", "k: 1\na: [1,\n 2,\n 3}\nb: 1\n", 4, "did not find expected ',' or ']' of what begins in line 2"},
		{"a bracket that is not closed", "k: 1\na: [1, 2\n", 2, "did not find expected ',' or ']'"},
		{"a bracket that is not closed in the first line", "a: {b: 1\n\n\n", 1, "did not find expected ',' or '}'"},
		{"a quote that is not closed", "k: 1\na: \"b\nc: 1\n", 2, "found unexpected end of stream"},
		{"a quote that is not closed in the first line", "a: 'b\nc: 1\n", 1, "found unexpected end of stream"},
		{"an escape that is unknown", "k: 1\na: \"\\y\"\n", 2, "found unknown escape character"},
		{"a tab", "k:\n\ta: 1\n", 2, "found character that cannot start any token"},
		{"a percent sign", "a: 1\nb: %c\n", 2, "found character that cannot start any token"},
		{"an at sign in the first line", "a: @b\n", 1, "found character that cannot start any token"},
		{"a block indicator with something behind it", "k: 1\na: |x\n", 2, "did not find expected comment or line break"},
		{"a control character", "a: 1\nb: 2\nc: \x01\n", 3, "control characters are not allowed"},
		{"a byte that is no UTF-8", "a: 1\nb: \xff\n", 2, "invalid leading UTF-8 octet"},
		{"an alias of nothing", "a: 1\nb: *c\n", 2, "unknown anchor 'c' referenced"},
		{"a tag handle that is undefined", "a: 1\nb: !x!y 1\n", 2, "found undefined tag handle"},
		{"a second document", "a: 1\n---\nb: 1\nc: ]\n", 4, "did not find expected node content"},
		{"text behind the end of a document", "a: 1\n...\nb: 1\nc: 2\n", 3, "did not find expected <document start>"},
		{"Windows' line ends", "a: 1\r\nb: 2\r\nc: ]\r\n", 3, "did not find expected node content"},
		{"a byte order mark", "\ufeffa: 1\nb: ]\n", 2, "did not find expected node content"},
		{"no line end at the end", "a: 1\nb: ]", 2, "did not find expected node content"},
		{"comments in front", "# a\n\n# b\na: ]\n", 4, "did not find expected node content"},
	} {
		err := syntaxError([]byte(c.text))
		if err == nil {
			t.Errorf("%s: is valid", c.name)
			continue
		}
		if line, reason := Place([]byte(c.text), err); line != c.line || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: line %d: %s; want line %d: %s (%v)", c.name, line, reason, c.line, c.reason, err)
		}
	}
}

func TestTheLineOfASyntaxErrorIsToldOfALongTextToo(t *testing.T) {
	// Too long to be searched: the line is that of the collection.
	text := []byte("k: 1\na: [1,\n 2}\n" + strings.Repeat("# \n", maxSearched/3))
	if line, reason := Place(text, syntaxError(text)); line != 2 || reason != "did not find expected ',' or ']'" {
		t.Errorf("line %d: %s; want line 2", line, reason)
	}
}

func FuzzPlace(f *testing.F) {
	for _, text := range []string{"a: ]", "a: {b\nc: 1", "a:\n  b: 1\n c: 2\n", "- a\nb: 1", "\xef\xbb\xbfa: [1\r\n", "a: *b\r", "\x00", "\xff\xfe["} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := syntaxError(data)
		if err == nil {
			return
		}
		if line, reason := Place(data, err); line < 0 || line > 1+len(data) || reason == "" {
			t.Errorf("line %d: %q of %q", line, reason, data)
		}
	})
}
