// Package finding is how commands of this repository say what they measured: one
// line per finding, on standard output, as soon as it is known.
//
//	VERDICT NAME MEASURED LIMIT # ABOUT
//
//	VERDICT   ok          the value is within the limit
//	          short       it is not, or it could not be measured
//	          info        there is no verdict: no limit, or one that is not yet held to
//	NAME      PART[/...]  the part of the command that found it, and what of it
//	MEASURED  NUMBER UNIT as one word: 1.23x, 41, 20.7KiB
//	          unmeasured  there is no value
//	LIMIT     <=NUMBER UNIT, >=NUMBER UNIT or =NUMBER UNIT, as one word
//	          -           none
//	ABOUT     what was measured, in how many runs; to the end of the line
//
// Words are separated by one space or more and hold none, nor a "#". hack/results
// reads these lines, skips those that begin with another word, and makes a
// published result of them.
//
// Numbers are rounded by [Number]; the verdict is that of the value before. So a
// line may be short by less than it shows.
//
// [Command] is the command line of commands that measure several parts, and
// [Measure] their loop.
package finding

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Verdict is the first word of a line.
type Verdict string

// Verdicts.
const (
	OK    Verdict = "ok"
	Short Verdict = "short"
	Info  Verdict = "info"
)

// Limit is what a value is held against. The zero Limit is none.
type Limit struct {
	// sign is how the limit is written, in front of its value.
	sign  string
	value float64
}

// AtMost allows v and what is below.
func AtMost(v float64) Limit { return Limit{"<=", v} }

// AtLeast allows v and what is above.
func AtLeast(v float64) Limit { return Limit{">=", v} }

// Exactly allows v alone.
func Exactly(v float64) Limit { return Limit{"=", v} }

// holds is false for NaN under any limit.
func (l Limit) holds(v float64) bool {
	switch l.sign {
	case "<=":
		return v <= l.value
	case ">=":
		return v >= l.value
	case "=":
		return v == l.value
	default:
		return true
	}
}

// Finding is one measured value.
type Finding struct {
	// Name is one word. It begins with the name of the part that found it.
	Name string
	// Value is NaN where it could not be measured.
	Value float64
	// Unit follows the number: "us", "MiB", "x"; empty for a count.
	Unit  string
	Limit Limit
	// Advisory findings show their limit and are not held to it.
	Advisory bool
	// About says what was measured, and in how many runs. In the line, each run
	// of white space in it is one space, so that an error can be told, too.
	About string
}

// Unmeasured is the finding of a part that came to no end: short, because of
// err.
func Unmeasured(part string, err error) Finding {
	return Finding{Name: part, Value: math.NaN(), Limit: AtMost(0), About: err.Error()}
}

// Verdict is Info without a limit that counts. A value that could not be measured
// is Short otherwise.
func (f Finding) Verdict() Verdict {
	switch {
	case f.Advisory || f.Limit == Limit{}:
		return Info
	case f.Limit.holds(f.Value):
		return OK
	default:
		return Short
	}
}

// String is the finding's line, in columns, without the end of line.
func (f Finding) String() string {
	measured, limit := "unmeasured", "-"
	if !math.IsNaN(f.Value) {
		measured = Number(f.Value) + f.Unit
	}
	if f.Limit != (Limit{}) {
		limit = f.Limit.sign + Number(f.Limit.value) + f.Unit
	}
	return fmt.Sprintf("%-5s %-32s %12s %12s  # %s", f.Verdict(), f.Name, measured, limit, strings.Join(strings.Fields(f.About), " "))
}

// Number writes v without an exponent and with three digits that count: 0.0123,
// 1.23, 12.3. All that stand before the point are written, so that integers are
// whole: 12346. Zeros at the end of a fraction are not.
func Number(v float64) string {
	switch {
	case v == 0:
		// Without the sign that a zero may have.
		return "0"
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	// What FormatFloat writes can always be parsed.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}
