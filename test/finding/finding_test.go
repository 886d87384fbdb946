package finding

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestAVerdictFollowsFromTheValueAndItsLimit(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name string
		f    Finding
		want Verdict
	}{
		{"below the most", Finding{Value: 1, Limit: AtMost(2)}, OK},
		{"at the most", Finding{Value: 2, Limit: AtMost(2)}, OK},
		{"above the most", Finding{Value: 2.001, Limit: AtMost(2)}, Short},
		{"below zero, at most", Finding{Value: -1, Limit: AtMost(2)}, OK},
		{"zero at a most of zero", Finding{Value: 0, Limit: AtMost(0)}, OK},
		{"infinite, at most", Finding{Value: math.Inf(1), Limit: AtMost(2)}, Short},
		{"no value, at most", Finding{Value: nan, Limit: AtMost(2)}, Short},

		{"above the least", Finding{Value: 3, Limit: AtLeast(2)}, OK},
		{"at the least", Finding{Value: 2, Limit: AtLeast(2)}, OK},
		{"below the least", Finding{Value: 1.999, Limit: AtLeast(2)}, Short},
		{"no value, at least", Finding{Value: nan, Limit: AtLeast(2)}, Short},

		{"equal", Finding{Value: 0, Limit: Exactly(0)}, OK},
		{"more than equal", Finding{Value: 1, Limit: Exactly(0)}, Short},
		{"less than equal", Finding{Value: -1, Limit: Exactly(0)}, Short},
		{"no value, equal", Finding{Value: nan, Limit: Exactly(0)}, Short},

		{"no limit", Finding{Value: 1}, Info},
		{"no limit and no value", Finding{Value: nan}, Info},
		{"a limit that is not held to, kept", Finding{Value: 3, Limit: AtLeast(2), Advisory: true}, Info},
		{"a limit that is not held to, missed", Finding{Value: 1, Limit: AtLeast(2), Advisory: true}, Info},
		{"a limit that is not held to, no value", Finding{Value: nan, Limit: AtLeast(2), Advisory: true}, Info},

		{"a part without an end", Unmeasured("a", errors.New("no clock")), Short},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.f.Verdict(); got != tc.want {
				t.Errorf("verdict is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestALineIsVerdictNameMeasuredLimitAndAbout(t *testing.T) {
	for _, tc := range []struct {
		f    Finding
		want string
	}{
		{Finding{Name: "a/ratio", Value: 1.2345, Unit: "x", Limit: AtMost(1.25), About: "five pairs"}, "ok a/ratio 1.23x <=1.25x # five pairs"},
		{Finding{Name: "b", Value: 41, Limit: AtMost(40), About: "all"}, "short b 41 <=40 # all"},
		{Finding{Name: "c", Value: 0.5, Unit: "x", Limit: AtLeast(0.8), About: "all"}, "short c 0.5x >=0.8x # all"},
		{Finding{Name: "d", Value: 9999, Limit: Exactly(10_000), About: "all"}, "short d 9999 =10000 # all"},
		{Finding{Name: "e", Value: 3.25, Unit: "us", About: "all"}, "info e 3.25us - # all"},
		{Finding{Name: "f", Value: 3, Unit: "x", Limit: AtLeast(25), Advisory: true, About: "all"}, "info f 3x >=25x # all"},
		{Finding{Name: "g", Value: math.NaN(), Unit: "us", Limit: AtMost(1), About: "no clock"}, "short g unmeasured <=1us # no clock"},
		{Unmeasured("h", errors.New("two lines\n\tin one")), "short h unmeasured <=0 # two lines in one"},
	} {
		line := tc.f.String()
		if got := strings.Join(strings.Fields(line), " "); got != tc.want {
			t.Errorf("line is %q, want %q", got, tc.want)
		}
		if strings.Contains(line, "\n") {
			t.Errorf("%q is more than a line", line)
		}
	}
}

func TestColumnsStandBelowEachOther(t *testing.T) {
	got := Finding{Name: "streams/memory", Value: 20.744, Unit: "KiB", Limit: AtMost(48), About: "per stream"}.String() + "\n" +
		Finding{Name: "streams/heap", Value: 1, About: "all"}.String() + "\n"
	const want = "" +
		"ok    streams/memory                        20.7KiB      <=48KiB  # per stream\n" +
		"info  streams/heap                                1            -  # all\n"
	if got != want {
		t.Errorf("lines are\n%swant\n%s", got, want)
	}
}

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 2: "2", -2: "-2", 10: "10", 40: "40", 0.0123456: "0.0123", -0.00049: "-0.00049", 0.5: "0.5", 1.2345: "1.23", 12.345: "12.3",
		9.999: "10", 99.96: "100", 123.45: "123", 999.6: "1000", 12345.6: "12346", -12345: "-12345", 1 << 53: "9007199254740992",
		math.Inf(1): "+Inf", math.Inf(-1): "-Inf", math.Copysign(0, -1): "0",
	} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
	if got := Number(math.NaN()); got != "NaN" {
		t.Errorf("Number(NaN) = %q, want NaN", got)
	}
}
