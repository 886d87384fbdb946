package demo

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestQuantilesAreNearestRank(t *testing.T) {
	upTo := func(n int) (d []time.Duration) {
		for i := n; i > 0; i-- {
			d = append(d, time.Duration(i)*time.Second)
		}
		return d
	}
	for _, tc := range []struct {
		name    string
		samples []time.Duration
		want    Quantiles
	}{
		{"of nothing are zero", nil, Quantiles{}},
		{"of one are that one", upTo(1), Quantiles{P50: 1, P90: 1, P99: 1, Count: 1}},
		{"of two", upTo(2), Quantiles{P50: 1, P90: 2, P99: 2, Count: 2}},
		{"of ten", upTo(10), Quantiles{P50: 5, P90: 9, P99: 10, Count: 10}},
		{"of a hundred", upTo(100), Quantiles{P50: 50, P90: 90, P99: 99, Count: 100}},
		{"of a hundred and one", upTo(101), Quantiles{P50: 51, P90: 91, P99: 100, Count: 101}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := quantiles(tc.samples); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestASummaryCountsWhatWasAnswered(t *testing.T) {
	due := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(ms int) time.Time { return due.Add(time.Duration(ms) * time.Millisecond) }
	got := summarise("R", []sample{
		{Due: due, End: after(400), Replica: "r1", FirstToken: 100 * time.Millisecond, PromptTokens: 300, CachedTokens: 200},
		{Due: due, End: after(200), Replica: "r2", PromptTokens: 100},
		{Due: due, End: after(600), Replica: "r1", FirstToken: 300 * time.Millisecond, PromptTokens: 100, CachedTokens: 50},
		// A broken answer is an error and nothing else, whatever had come of it.
		{Due: due, End: after(9000), Replica: "r2", FirstToken: 8 * time.Second, Err: errors.New("cut")},
		{Due: due, End: after(9000), Err: errors.New("refused")},
	})
	want := Summary{
		Router: "R", Requests: 5, Errors: 2, FirstError: "cut",
		FirstToken: Quantiles{P50: 0.1, P90: 0.3, P99: 0.3, Count: 2},
		EndToEnd:   Quantiles{P50: 0.4, P90: 0.6, P99: 0.6, Count: 3},
		Cached:     0.5,
		Served:     map[string]int{"r1": 2, "r2": 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAComparisonIsATable(t *testing.T) {
	c := Comparison{
		Replicas: []string{"r1", "r2"},
		Berth: Summary{Router: "Berth", Requests: 20, FirstToken: Quantiles{0.0604, 0.2, 1.234, 20},
			EndToEnd: Quantiles{0.5, 0.9, 12.346, 20}, Cached: 0.666, Served: map[string]int{"r1": 20}},
		RoundRobin: Summary{Router: "round robin", Requests: 20, Errors: 3, Served: map[string]int{"r1": 9, "r2": 8}},
	}
	const want = `
               requests  errors  TTFT p50    p90    p99  end to end p50     p99  cached  r1  r2
        Berth        20       0      60ms  200ms  1.23s           500ms  12.35s     67%  20   0
  round robin        20       3        0s     0s     0s              0s      0s      0%   9   8
`
	var got strings.Builder
	if err := c.table(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want[1:] {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want[1:])
	}
}

func TestAVerdictFollowsFromTheNumbers(t *testing.T) {
	for _, tc := range []struct {
		name      string
		berth, rr Quantiles
		want      string
	}{
		{
			"better", Quantiles{P50: 0.05, P99: 0.5, Count: 300}, Quantiles{P50: 0.1, P99: 5, Count: 300},
			"Berth's TTFT was 50 % of round robin's at the 50th percentile (50ms against 100ms) and 10 % at the 99th (500ms against 5s).\n" +
				"Of 300 streamed requests the 99th percentile is the 4th slowest.",
		},
		{
			"worse", Quantiles{P50: 0.11, P99: 3, Count: 90}, Quantiles{P50: 0.1, P99: 2, Count: 90},
			"Berth's TTFT was 110 % of round robin's at the 50th percentile (110ms against 100ms) and 150 % at the 99th (3s against 2s).\n" +
				"Of 90 streamed requests the 99th percentile is the slowest.",
		},
		{
			"nothing streamed", Quantiles{}, Quantiles{P50: 0.1, P99: 2, Count: 90},
			"There is no time to first token to compare: no streamed request was answered.",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Comparison{Berth: Summary{FirstToken: tc.berth}, RoundRobin: Summary{FirstToken: tc.rr}}
			if got := c.verdict(); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

func TestAQuantilesPlaceIsNamed(t *testing.T) {
	for n, want := range map[int]string{1: "slowest", 99: "slowest", 100: "second slowest", 200: "third slowest", 300: "4th slowest"} {
		if got := fromTheSlowest(n - rank(0.99, n)); got != want {
			t.Errorf("of %d: %s, want %s", n, got, want)
		}
	}
}

func TestTheStoryOfTheLivePartFollowsFromTheNumbers(t *testing.T) {
	for _, tc := range []struct {
		live Live
		want string
	}{
		{Live{Summary: Summary{Requests: 9}}, "9 of 9 requests were answered."},
		{Live{Summary: Summary{Requests: 9, Errors: 2}, Cut: 2},
			"7 of 9 requests were answered. 2 broke off: they were under way when r1 died."},
		{Live{Summary: Summary{Requests: 9, Errors: 3}, Cut: 2},
			"6 of 9 requests were answered. 2 broke off: they were under way when r1 died. 1 failed without a fault that explains it."},
	} {
		if got := tc.live.tell(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestADeathExplainsWhatWasUnderWay(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	death := span{from: at(10), to: at(12)}
	for _, tc := range []struct {
		name     string
		due, end int
		want     bool
	}{
		{"over before", 7, 9, false},
		{"under way at its start", 9, 11, true},
		{"within", 11, 11, true},
		{"all along", 9, 13, true},
		{"sent after the picker knew", 13, 14, false},
	} {
		if got := death.hit(&sample{Due: at(tc.due), End: at(tc.end)}); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
