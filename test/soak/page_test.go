package main

import (
	"math"
	"strings"
	"testing"
)

const somePage = `# HELP berth_decisions_total Requests decided.
# TYPE berth_decisions_total counter
berth_decisions_total{path="native",rung="full"} 7
berth_decisions_total{path="native",rung="local"} 3
berth_decisions_total{path="native",rung="refuse"} 5
# TYPE berth_outcomes_total counter
berth_outcomes_total{cause="complete"} 6
berth_outcomes_total{cause="aborted"} 3
# TYPE berth_refusals_total counter
berth_refusals_total{reason="overloaded"} 4
berth_refusals_total{reason="upload_idle"} 1
# TYPE berth_inflight_requests gauge
berth_inflight_requests 1
# TYPE berth_buffered_bytes gauge
berth_buffered_bytes 2e+07
# TYPE berth_streams gauge
berth_streams 12
# TYPE berth_contained_panics_total counter
berth_contained_panics_total 0
# TYPE berth_config_reloads_total counter
berth_config_reloads_total{result="ok"} 9
berth_config_reloads_total{result="failed"} 2
# TYPE berth_decision_duration_seconds histogram
berth_decision_duration_seconds_bucket{le="0.001"} 8
berth_decision_duration_seconds_bucket{le="+Inf"} 10
berth_decision_duration_seconds_sum 0.5
berth_decision_duration_seconds_count 10
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0"} 0.1
go_gc_duration_seconds{quantile="0.5"} 0.2
go_gc_duration_seconds{quantile="1"} 0.3
go_gc_duration_seconds_sum 4
go_gc_duration_seconds_count 5
`

func TestAPageIsReadByItsFamilies(t *testing.T) {
	p, err := parsePage(strings.NewReader(somePage))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what      string
		got, want float64
	}{
		{"bytes", float64(p.bytes), float64(len(somePage))},
		{"placed, refusals apart", p.placed(), 10},
		{"outcomes of all causes", p.outcomes(), 9},
		{"refused for one reason", p.refused("overloaded"), 4},
		{"refused for none that there is", p.refused("nothing"), 0},
		{"in flight", p.inFlight(), 1},
		{"held", p.held(), 20_000_000},
		{"streams", p.streams(), 12},
		{"faults", p.faults(), 0},
		{"reloads", p.reloads("ok"), 9},
		{"failed reloads", p.reloads("failed"), 2},
		{"a family that is not there", p.sum("berth_nothing", nil), 0},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, tc.got, tc.want)
		}
	}
}

func TestSeriesAreCountedAsTheyAreStored(t *testing.T) {
	p, err := parsePage(strings.NewReader(somePage))
	if err != nil {
		t.Fatal(err)
	}
	// Each line that is no comment is one series.
	if got := p.series(); got != 22 {
		t.Errorf("%d series, want 22", got)
	}
}

func TestAPageThatIsNoneIsAnError(t *testing.T) {
	if _, err := parsePage(strings.NewReader("berth_streams{ 12\n")); err == nil {
		t.Error("no error for a label list without an end")
	}
}

func TestSizesAreReadFromTheStatusOfAProcess(t *testing.T) {
	const status = "Name:\tsoak\nVmHWM:\t  70 kB\nVmRSS:\t  12 kB\nVmSwap:\tmany kB\nThreads:\t9\n"
	for name, want := range map[string]float64{"VmHWM": 71_680, "VmRSS": 12_288} {
		if got := statusBytes(status, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"VmSwap", "Threads", "VmPeak"} {
		if got := statusBytes(status, name); !math.IsNaN(got) {
			t.Errorf("%s is %v, want none", name, got)
		}
	}
}
