package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
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

// closing finds the brace that closes the labels, outside of quotes; -1 if none
// does.
func closing(line []byte, open int) int {
	quoted := false
	for i := open + 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
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
	if bytes.ContainsAny(text, "\"}") {
		return noParse
	}
	return ""
}

var errValue = errors.New("not a value")

// parseValue reads what follows a series: a value, perhaps a timestamp, perhaps
// an exemplar.
func parseValue(rest []byte) (v float64, at telemetry.Instant, err error) {
	token, rest := word(rest)
	if v, err = parseNumber(token); err != nil {
		return 0, 0, err
	}
	token, rest = word(rest)
	if len(token) > 0 && token[0] != '#' {
		stamp, err := parseNumber(token)
		if err != nil {
			return 0, 0, err
		}
		at = instant(stamp)
		token, _ = word(rest)
	}
	if len(token) > 0 && token[0] != '#' {
		return 0, 0, errValue
	}
	return v, at, nil
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

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

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
