package main

import (
	"strings"
	"testing"
)

func TestWhatIsLeftBehindIsNamedWithItsNumber(t *testing.T) {
	parse := func(text string) *page {
		p, err := parsePage(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	quiet := `berth_decisions_total{rung="full"} 10
berth_decisions_total{rung="refuse"} 4
berth_outcomes_total{cause="complete"} 10
`
	base := reading{goroutines: 11, descriptors: 14, page: parse(quiet)}
	for _, tc := range []struct {
		name string
		now  reading
		want string
	}{
		{"nothing", reading{goroutines: 11, descriptors: 14, page: parse(quiet)}, ""},
		{"less than before", reading{goroutines: 9, descriptors: 13, page: parse(quiet)}, ""},
		{"goroutines", reading{goroutines: 13, descriptors: 14, page: parse(quiet)}, "2 goroutines"},
		{"descriptors", reading{goroutines: 11, descriptors: 15, page: parse(quiet)}, "1 descriptors"},
		{"a request in flight", reading{goroutines: 11, descriptors: 14, page: parse(quiet + "berth_inflight_requests 1\n")}, "1 requests in flight"},
		{"streams and bytes", reading{goroutines: 11, descriptors: 14, page: parse(quiet + "berth_streams 2\nberth_buffered_bytes 300\n")}, "2 streams, 300 bytes held"},
		{"a fault", reading{goroutines: 11, descriptors: 14, page: parse(quiet + "berth_contained_panics_total 1\n")}, "1 contained faults"},
		{
			"a placed request without an outcome",
			reading{goroutines: 11, descriptors: 14, page: parse(strings.Replace(quiet, `"complete"} 10`, `"complete"} 9`, 1))},
			"1 placed requests without an outcome, or with two",
		},
		{
			"a placed request with two outcomes",
			reading{goroutines: 11, descriptors: 14, page: parse(quiet + `berth_outcomes_total{cause="aborted"} 1` + "\n")},
			"1 placed requests without an outcome, or with two",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := strings.Join(leftBehind(base, tc.now), ", "); got != tc.want {
				t.Errorf("left behind: %q, want %q", got, tc.want)
			}
		})
	}
}
