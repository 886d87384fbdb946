package engine

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/berth-dev/berth/internal/telemetry"
)

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

// outside yields the places of the bytes outside of quotes, the quotes left out.
func outside(text []byte) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		quoted := false
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case c == '"':
				quoted = !quoted
			case c == '\\' && quoted:
				i++
			case !quoted && !yield(i, c):
				return
			}
		}
	}
}

// closing finds the brace that closes the labels; -1 if none does.
func closing(line []byte, open int) int {
	for i, c := range outside(line[open+1:]) {
		if c == '}' {
			return open + 1 + i
		}
	}
	return -1
}

// countLabels counts the equals signs outside of quotes.
func countLabels(text []byte) (n int) {
	for _, c := range outside(text) {
		if c == '=' {
			n++
		}
	}
	return n
}

const noParse = "a line does not parse"

// parseSeries reads the labels of a series. fault is empty if they are in order.
func parseSeries(text []byte, buf *[]byte) (l labels.Labels, fault string) {
	if bytes.IndexByte(text, '{') < 0 {
		return l, nameFault(text)
	}
	if closing(text, bytes.IndexByte(text, '{')) != len(text)-1 {
		return l, noParse
	}
	if hasControl(text) {
		return l, noParse
	}
	// Each label has an equals sign of its own, and a text may have more of them.
	if bytes.Count(text, []byte("=")) > maxLabels && countLabels(text) > maxLabels {
		return l, fmt.Sprintf("a series of more than %d labels", maxLabels)
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
	if bytes.ContainsAny(text, "\"}") || hasControl(text) {
		return noParse
	}
	return ""
}

var errValue = errors.New("not a value")

// stamp is the time that a sample states, in the unit of its page; 0 if it states
// none, NaN if it states what is none.
type stamp float64

// parseValue reads what follows a series: a value, perhaps a timestamp, perhaps
// an exemplar.
func parseValue(rest []byte) (v float64, at stamp, err error) {
	token, rest := word(rest)
	if v, err = parseNumber(token); err != nil {
		return 0, 0, err
	}
	token, rest = word(rest)
	if len(token) > 0 && token[0] != '#' {
		t, err := parseNumber(token)
		if err != nil {
			return 0, 0, err
		}
		switch {
		case t == 0:
			// As long ago as makes no difference, and not "none".
			t = 1
		case math.IsInf(t, 0):
			t = math.NaN()
		}
		at = stamp(t)
		token, _ = word(rest)
	}
	if len(token) > 0 && token[0] != '#' || len(token) > 0 && hasControl(rest) {
		return 0, 0, errValue
	}
	return v, at, nil
}

// instant is the time of a stamp: whole milliseconds since the epoch in the text
// format, seconds in OpenMetrics. It says what is wrong with one that is no time.
func (s stamp) instant(openMetrics bool) (at telemetry.Instant, fault string) {
	v, unit := float64(s), float64(time.Millisecond)
	switch {
	case s == 0:
		return 0, ""
	case openMetrics:
		unit = float64(time.Second)
	case v != math.Trunc(v):
		return 0, badStamp
	}
	if math.IsNaN(v) {
		return 0, badStamp
	}
	// What is before the epoch, or later than any clock of this picker, is as good as
	// any such time.
	return telemetry.Instant(min(max(v*unit, 1), math.MaxInt64/2)), ""
}

const badStamp = "a timestamp is no whole number of milliseconds"

// oldest is the older of two times, of which 0 is none: what has no time of its own
// is of now.
func oldest(a, b telemetry.Instant) telemetry.Instant {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
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

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// hasControl reports that a control character stands outside of quotes.
func hasControl(text []byte) bool {
	if !slices.ContainsFunc(text, isControl) {
		return false
	}
	for _, c := range outside(text) {
		if isControl(c) {
			return true
		}
	}
	return false
}

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
