package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berth-dev/berth/test/finding"
)

const fourKeys = "manifest configuration policy sha256:0123456789ab\nmanifest servedIDs llama-3.1-8b\n" +
	"manifest cacheState none: no engine runs\nmanifest trafficShape 8 streams at a time\n"

func TestFiguresAndStatementsAreTakenFromTheOutput(t *testing.T) {
	const output = "[1/2] warming up\r\n" + fourKeys + "manifest   trafficShape  then   one \n" +
		"ok    cycle/ratio     1.21x   <=1.25x  # median of 5 # pairs\n  short cycle/allocs 41 <=40\ninfo cycle/cpu 31.2us -\n" +
		"okay, manifestly\n\nshort last unmeasured >=1"
	var seen bytes.Buffer
	s := newStatements(&seen)
	// Lines come in pieces of one byte.
	if _, err := io.Copy(s, iotest.OneByteReader(strings.NewReader(output))); err != nil {
		t.Fatal(err)
	}
	subject, figures, err := s.end()
	if err != nil {
		t.Fatal(err)
	}
	if seen.String() != output {
		t.Errorf("passed through is %q, want %q", &seen, output)
	}
	if got := strings.Join(subject.TrafficShape, "|"); got != "8 streams at a time|then one" {
		t.Errorf("trafficShape is %q", got)
	}
	if got := strings.Join(subject.CacheState, "|"); got != "none: no engine runs" {
		t.Errorf("cacheState is %q", got)
	}
	want := []struct {
		verdict, name, measured, limit, about string
	}{
		{"ok", "cycle/ratio", "1.21x", "<=1.25x", "median of 5 # pairs"},
		{"short", "cycle/allocs", "41", "<=40", ""},
		{"info", "cycle/cpu", "31.2us", "-", ""},
		{"short", "last", "unmeasured", ">=1", ""},
	}
	if len(figures) != len(want) {
		t.Fatalf("figures are %+v, want %d", figures, len(want))
	}
	for i, w := range want {
		f := figures[i]
		verdict := "info"
		if f.OK != nil {
			verdict = map[bool]string{true: "ok", false: "short"}[*f.OK]
		}
		if verdict != w.verdict || f.Name != w.name || f.Measured != w.measured || f.Limit != w.limit || f.About != w.about {
			t.Errorf("figure %d is %s %+v, want %+v", i, verdict, f, w)
		}
	}
}

func TestOutputThatIsNotOfItsFormIsRefusedWithItsLine(t *testing.T) {
	for _, tc := range []struct{ name, output, says string }{
		{"an unknown key", fourKeys + "manifest cache warm\n", "line 5 of the output"},
		{"a key without a value", fourKeys + "manifest cacheState\n", "line 5 of the output"},
		{"a manifest without a key", fourKeys + "manifest\n", "configuration, servedIDs, cacheState, trafficShape"},
		{"a line of go test", fourKeys + "ok  \texample.com/m\t0.5s\n", "3 words before any #, want 4"},
		{"a figure with a word too many", fourKeys + "short cycle 1 us <=2us\n", "5 words before any #, want 4"},
		{"a key is not stated", strings.ReplaceAll(fourKeys, "manifest servedIDs", "manifest: servedIDs"), "does not state servedIDs"},
		{"nothing at all", "", "does not state trafficShape"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStatements(io.Discard)
			if _, err := io.WriteString(s, tc.output); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.end(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one with %q", err, tc.says)
			}
		})
	}
}

// Measuring commands print their figures with package finding.
func TestALineOfPackageFindingIsReadAsItsFigure(t *testing.T) {
	kept, missed := true, false
	for _, tc := range []struct {
		name string
		f    finding.Finding
		want Figure
	}{
		{
			"within a most, with a unit",
			finding.Finding{Name: "cycle/ratio", Value: 1.2345, Unit: "x", Limit: finding.AtMost(1.25), About: "median of 5 pairs"},
			Figure{Name: "cycle/ratio", OK: &kept, Measured: "1.23x", Limit: "<=1.25x", About: "median of 5 pairs"},
		},
		{
			"below a least",
			finding.Finding{Name: "scan", Value: 0.5, Unit: "x", Limit: finding.AtLeast(0.8), About: "beside another"},
			Figure{Name: "scan", OK: &missed, Measured: "0.5x", Limit: ">=0.8x", About: "beside another"},
		},
		{
			"exactly, a number wider than its column",
			finding.Finding{Name: "names/answered", Value: 1 << 53, Limit: finding.Exactly(1 << 53), About: "requests"},
			Figure{Name: "names/answered", OK: &kept, Measured: "9007199254740992", Limit: "=9007199254740992", About: "requests"},
		},
		{
			"no limit, a name wider than its column",
			finding.Finding{Name: "example.com/module/package.FuzzTarget/executions", Value: 12345.6, About: "so many"},
			Figure{Name: "example.com/module/package.FuzzTarget/executions", Measured: "12346", Limit: "-", About: "so many"},
		},
		{
			"a limit that is not held to",
			finding.Finding{Name: "stock", Value: 30, Unit: "x", Limit: finding.AtLeast(25), Advisory: true, About: "beside stock"},
			Figure{Name: "stock", Measured: "30x", Limit: ">=25x", About: "beside stock"},
		},
		{
			"no value",
			finding.Finding{Name: "heap", Value: math.NaN(), Unit: "MiB", Limit: finding.AtMost(8), About: "growth"},
			Figure{Name: "heap", OK: &missed, Measured: "unmeasured", Limit: "<=8MiB", About: "growth"},
		},
		{
			"an error of two lines that looks like another",
			finding.Unmeasured("streams", errors.New("exit status 1:\nok  \texample.com/m # 0.5s")),
			Figure{Name: "streams", OK: &missed, Measured: "unmeasured", Limit: "<=0", About: "exit status 1: ok example.com/m # 0.5s"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStatements(io.Discard)
			if _, err := fmt.Fprintf(s, "%s%v\n", fourKeys, tc.f); err != nil {
				t.Fatal(err)
			}
			_, figures, err := s.end()
			if err != nil {
				t.Fatal(err)
			}
			if want := []Figure{tc.want}; !reflect.DeepEqual(figures, want) {
				t.Errorf("%q is read as\n%+v, want\n%+v", tc.f, figures, want)
			}
		})
	}
}

// Whatever a command prints passes through, and a figure that is taken from it
// makes a result that can be read back.
func FuzzStatements(f *testing.F) {
	f.Add(fourKeys + "ok cycle/ratio 1.21x <=1.25x # median\ninfo cycle/cpu 31.2us -\n")
	f.Add("ok  \texample.com/m\t0.5s\n\nmanifest\nshort \xff 1 -# \u2028")
	f.Fuzz(func(t *testing.T, output string) {
		var seen bytes.Buffer
		s := newStatements(&seen)
		if _, err := io.WriteString(s, output); err != nil || seen.String() != output {
			t.Fatalf("passed through is %q, error %v", &seen, err)
		}
		subject, figures, err := s.end()
		if err != nil {
			return
		}
		r := valid()
		r.Manifest.Subject, r.Figures = subject, figures
		// Two figures of one name, or none, are refused later.
		text, err := r.encode()
		if err != nil {
			return
		}
		if _, err := decode(text); err != nil {
			t.Errorf("%q makes %s, which is refused: %v", output, text, err)
		}
	})
}
