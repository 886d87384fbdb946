package placement

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestRungAndUseOfFieldsFollowFromTheirStates(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		scorers              []Scorer
		queue, active, cache string
		inFlight             []int32
		latency              []float64
		rung                 Rung
		uses                 string
	}{
		{
			"every weighted field fresh everywhere",
			[]Scorer{queue(1), cache(1)}, "1 2", "", "0.1 0.2", nil, nil,
			Full, "queue full, active unused, cache full",
		},
		{
			"the states of a field nobody weights do not matter",
			[]Scorer{queue(1), active(0)}, "1 2", "! ?", "~1 ?", nil, nil,
			Full, "queue full, active unused, cache unused",
		},
		{
			"one field partial, one full",
			[]Scorer{queue(1), cache(1)}, "1 ~2", "", "0.1 0.2", nil, nil,
			Partial, "queue partial, active unused, cache full",
		},
		{
			"one field dropped, one full",
			[]Scorer{queue(1), cache(1)}, "1 2 3", "", "0.1 ? ~0.1", nil, nil,
			Partial, "queue full, active unused, cache dropped",
		},
		{
			"one field dropped, one partial",
			[]Scorer{queue(1), active(1)}, "? 2 3", "! ! 3", "", nil, nil,
			Partial, "queue partial, active dropped, cache unused",
		},
		{
			"all dropped, nothing in flight",
			[]Scorer{queue(1), cache(1)}, "? ? 3", "", "! ~1 ?", nil, nil,
			Spread, "queue dropped, active unused, cache dropped",
		},
		{
			"all dropped, one request in flight",
			[]Scorer{queue(1)}, "? ? 3", "", "", []int32{0, 1, 0}, nil,
			Local, "queue dropped, active unused, cache unused",
		},
		{
			"all dropped, one latency observed",
			[]Scorer{queue(1)}, "? ? 3", "", "", nil, []float64{math.NaN(), math.NaN(), 0.2},
			Local, "queue dropped, active unused, cache unused",
		},
		{
			"no weighted load field, nothing known",
			[]Scorer{given(1, 1, 0)}, "1 2", "1 2", "0 0", nil, nil,
			Spread, "queue unused, active unused, cache unused",
		},
		{
			"no weighted load field, something in flight",
			[]Scorer{given(1, 1, 0)}, "1 2", "1 2", "0 0", []int32{1, 0}, nil,
			Local, "queue unused, active unused, cache unused",
		},
		{
			"no scorer at all",
			nil, "1 2", "1 2", "0 0", nil, nil,
			Spread, "queue unused, active unused, cache unused",
		},
		{
			"one endpoint, fresh",
			[]Scorer{queue(1)}, "4", "", "", nil, nil,
			Full, "queue full, active unused, cache unused",
		},
		{
			"one endpoint, unknown",
			[]Scorer{queue(1)}, "?", "", "", nil, nil,
			Spread, "queue dropped, active unused, cache unused",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := len(strings.Fields(tc.queue))
			ev := evidence(n)
			ev.Load = [3]Column{column(t, n, tc.queue), column(t, n, tc.active), column(t, n, tc.cache)}
			copy(ev.InFlight, tc.inFlight)
			copy(ev.Latency, tc.latency)
			var res Result
			planOf(t, 0.5, tc.scorers...).Place(ev, 1, 0, &res)
			if res.Rung != tc.rung || showUses(&res) != tc.uses {
				t.Errorf("%s with %s;\nwant %s with %s", res.Rung, showUses(&res), tc.rung, tc.uses)
			}
			if ran := res.Rung <= Partial; ran != (len(res.Scores) > 0) {
				t.Errorf("rung %s shows scores of %d scorers", res.Rung, len(res.Scores))
			}
			for i, u := range res.Uses {
				if used := u == UsedFull || u == UsedPartial; used != (res.Estimate[i] != nil) {
					t.Errorf("%s is %s, with estimates %s", LoadFields[i], u, show(res.Estimate[i]))
				}
			}
		})
	}
}

func TestAFieldCountsFromTheCeilingOfItsQuorum(t *testing.T) {
	for _, tc := range []struct {
		quorum float64
		n      int
		needs  int
	}{
		{0.5, 1, 1},
		{0.5, 2, 1},
		{0.5, 3, 2},
		{0.5, 4, 2},
		{0.5, 5, 3},
		{0.34, 3, 2},
		{1.0 / 3, 3, 1},
		{1, 4, 4},
		{0.001, 1000, 1},
		{0.001, 1001, 2},
		{math.SmallestNonzeroFloat64, 5, 1},
		{0.8, 10, 8},
		// 0.07 x 100 and 0.55 x 100 are above 7 and 55 in doubles.
		{0.07, 100, 7},
		{0.55, 100, 55},
		{0.56, 25, 14},
	} {
		plan := planOf(t, tc.quorum, queue(1))
		for _, fresh := range []int{0, tc.needs - 1, tc.needs, tc.n} {
			ev := evidence(tc.n)
			for row := range fresh {
				ev.Load[0].State[row] = telemetry.Fresh
			}
			for row := fresh; row < tc.n; row++ {
				ev.Load[0].State[row] = telemetry.Missing
			}
			want := Dropped
			if fresh >= tc.needs {
				want = UsedPartial
			}
			if fresh == tc.n {
				want = UsedFull
			}
			var res Result
			plan.Place(ev, 1, 0, &res)
			if res.Uses[0] != want {
				t.Errorf("quorum %v, %d of %d fresh: %s, want %s", tc.quorum, fresh, tc.n, res.Uses[0], want)
			}
		}
	}
}

func TestEstimatesOfMissingValues(t *testing.T) {
	for _, tc := range []struct {
		name     string
		queue    string
		cache    string
		pending  []int32
		inFlight []int32
		// wantQueue and wantCache are worked out by hand.
		wantQueue, wantCache string
	}{
		{
			"fresh values as they are", "4 0 2", "0.5 0 1", nil, nil,
			"4 0 2", "0.5 0 1",
		},
		{
			"pending requests are on top of a count, not of a ratio", "4 0 2", "0.5 0 1", []int32{1, 0, 3}, []int32{1, 0, 3},
			"5 0 5", "0.5 0 1",
		},
		{
			"requests that the page has counted are not added", "4 0 2", "", nil, []int32{9, 9, 9},
			"4 0 2", "none",
		},
		{
			"a missing value is the median of the fresh", "? 1 5 3", "? 0.2 0.6 0.4", nil, nil,
			"3 1 5 3", "0.4 0.2 0.6 0.4",
		},
		{
			"of an even number, the mean of the two in the middle", "? 1 5", "? 0.2 0.6", nil, nil,
			"3 1 5", "0.4 0.2 0.6",
		},
		{
			"stale, invalid and missing are alike", "~0 ! ? 2 3 4", "~0 ! ? 0.2 0.3 0.4", nil, nil,
			"3 3 3 2 3 4", "0.3 0.3 0.3 0.2 0.3 0.4",
		},
		{
			"in flight above the median is the better guess of a count", "? 1 5 3", "? 0.2 0.6 0.4", nil, []int32{7, 0, 0, 0},
			"7 1 5 3", "0.4 0.2 0.6 0.4",
		},
		{
			"in flight below the median is not", "? 1 5 3", "", nil, []int32{2, 0, 0, 0},
			"3 1 5 3", "none",
		},
		{
			"pending counts in the median", "? 1 5 3", "", []int32{0, 6, 0, 0}, []int32{0, 6, 0, 0},
			"5 7 5 3", "none",
		},
		{
			"the last value of a stale row is not used, pending or not", "~90 1 2", "", []int32{1, 0, 0}, []int32{1, 0, 0},
			"1.5 1 2", "none",
		},
		{
			"beside idle endpoints an unknown one with nothing in flight is idle", "? 0 0", "", nil, nil,
			"0 0 0", "none",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := len(strings.Fields(tc.queue))
			ev := evidence(n)
			ev.Load[0], ev.Load[2] = column(t, n, tc.queue), column(t, n, tc.cache)
			copy(ev.Pending, tc.pending)
			copy(ev.InFlight, tc.inFlight)
			var res Result
			planOf(t, 0.5, queue(1), cache(1)).Place(ev, 1, 0, &res)
			if got := show(res.Estimate[0]); got != tc.wantQueue {
				t.Errorf("queue estimates %s, want %s", got, tc.wantQueue)
			}
			if got := show(res.Estimate[2]); got != tc.wantCache {
				t.Errorf("cache estimates %s, want %s", got, tc.wantCache)
			}
			if got := show(ev.Load[0].Value); got != show(column(t, n, tc.queue).Value) {
				t.Errorf("the evidence was changed: %s", got)
			}
		})
	}
}

func TestAMedianOfHugeValuesIsNotInfinite(t *testing.T) {
	if got := median([]float64{math.MaxFloat64, math.MaxFloat64}); got != math.MaxFloat64 {
		t.Errorf("the median is %v, want %v", got, math.MaxFloat64)
	}
}

// A request that the page cannot have counted is added once: to the queue, if
// that counts.
func TestPendingRequestsCountOnce(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		queue, active         string
		pending, inFlight     []int32
		wantQueue, wantActive string
	}{
		{"without a queue they make one", "0 0", "4 7", []int32{3, 0}, []int32{7, 7}, "3 0", "4 7"},
		{"with a queue they lengthen it", "2 0", "16 7", []int32{3, 1}, []int32{9, 7}, "5 1", "16 7"},
		{"where the queue is unknown they are what is known of it", "? 0 0", "4 7 7", []int32{3, 0, 0}, []int32{3, 0, 0}, "3 0 0", "4 7 7"},
		{"where the active requests do not count they wait", "0 0", "? ?", []int32{3, 0}, []int32{3, 0}, "3 0", "none"},
		{"where the queue does not count they run", "? ?", "4 7", []int32{3, 0}, []int32{3, 0}, "none", "7 7"},
		{"an unknown endpoint has at least what is in flight, once", "? 0 0", "? 1 1", []int32{2, 0, 0}, []int32{7, 0, 0}, "2 0 0", "5 1 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := len(strings.Fields(tc.queue))
			ev := evidence(n)
			ev.Load[0], ev.Load[1] = column(t, n, tc.queue), column(t, n, tc.active)
			copy(ev.Pending, tc.pending)
			copy(ev.InFlight, tc.inFlight)
			var res Result
			planOf(t, 0.5, queue(1), active(1)).Place(ev, 1, 0, &res)
			if got := show(res.Estimate[0]); got != tc.wantQueue {
				t.Errorf("queue estimates %s, want %s", got, tc.wantQueue)
			}
			if got := show(res.Estimate[1]); got != tc.wantActive {
				t.Errorf("active estimates %s, want %s", got, tc.wantActive)
			}
		})
	}
}

func TestTotalsAreWeightedSumsOfScores(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, tc := range []struct {
		name    string
		scorers []Scorer
		total   string
		ranked  []int // nil: decided by the hash
	}{
		{"one scorer", []Scorer{queue(1)}, "0.5 1 0.333", []int{1, 0, 2}},
		{"a weight scales", []Scorer{queue(3)}, "1.5 3 1", []int{1, 0, 2}},
		{"two scorers", []Scorer{queue(1), cache(2)}, "1.5 1.4 2.333", []int{2, 0, 1}},
		{"weight 0 switches a scorer off", []Scorer{queue(1), cache(0)}, "0.5 1 0.333", []int{1, 0, 2}},
		{"no evidence adds nothing", []Scorer{queue(1), given(2, nan, nan, 1)}, "0.5 1 2.333", []int{2, 1, 0}},
		{"no evidence anywhere changes nothing", []Scorer{queue(1), given(9, nan, nan, nan)}, "0.5 1 0.333", []int{1, 0, 2}},
		{"scores above 1 are 1", []Scorer{queue(1), given(1, inf, 0, 7)}, "1.5 1 1.333", []int{0, 2, 1}},
		{"scores below 0 are 0", []Scorer{queue(1), given(1, -3, -inf, 0)}, "0.5 1 0.333", []int{1, 0, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ev := evidence(3)
			ev.Load[0], ev.Load[2] = column(t, 3, "1 0 2"), column(t, 3, "0.5 0.8 0")
			var res Result
			planOf(t, 0.5, tc.scorers...).Place(ev, 1, 2, &res)
			if res.Rung != Full || show(res.Total) != tc.total || !slices.Equal(res.Ranked, tc.ranked) {
				t.Errorf("%s: totals %s, ranked %v; want full: %s, %v", res.Rung, show(res.Total), res.Ranked, tc.total, tc.ranked)
			}
		})
	}
}

func TestScoresAreShownByScorerWithoutThoseOfWeightZero(t *testing.T) {
	ev := evidence(2)
	ev.Load[0] = column(t, 2, "1 0")
	plan := planOf(t, 0.5, given(0, 1, 1), queue(1), given(2, 5, math.NaN()))
	var res Result
	plan.Place(ev, 1, 0, &res)
	if len(res.Scores) != len(plan.Scorers()) || len(res.Scores) != 2 {
		t.Fatalf("%d columns for %d scorers with weight, want 2", len(res.Scores), len(plan.Scorers()))
	}
	for i, want := range []string{"0.5 1", "1 NaN"} {
		if got := show(res.Scores[i]); got != want {
			t.Errorf("scores of %s: %s, want %s", plan.Scorers()[i].Name, got, want)
		}
	}
}

func TestTheLocalRungOrdersByInFlightAndClearSlowness(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name     string
		inFlight []int32
		latency  []float64
		total    string // 1 / ((in flight + 1) x floor of how much slower)
	}{
		{"in flight alone", []int32{0, 1, 3}, []float64{nan, nan, nan}, "1 0.5 0.25"},
		{"latencies less than twice the median are alike", []int32{0, 0, 0}, []float64{0.1, 0.1, 0.199}, "1 1 1"},
		{"twice the median counts twice", []int32{0, 0, 0}, []float64{0.1, 0.1, 0.2}, "1 1 0.5"},
		{"whole multiples of the median", []int32{0, 0, 0}, []float64{0.25, 0.25, 0.99}, "1 1 0.333"},
		{"slow and busy multiply", []int32{1, 0, 4}, []float64{0.1, 0.1, 0.25}, "0.5 1 0.1"},
		{"fast is no merit", []int32{0, 0, 0}, []float64{0.001, 0.1, 0.1}, "1 1 1"},
		{"an unknown latency is typical", []int32{0, 1, 0}, []float64{nan, 0.1, nan}, "1 0.5 1"},
		{"of two, the slower is compared with the faster", []int32{0, 0, 0}, []float64{0.1, 0.5, nan}, "1 0.2 1"},
		{"one latency is its own median", []int32{0, 0, 0}, []float64{nan, 9, nan}, "1 1 1"},
		{"a clock that did not move divides nothing by zero", []int32{0, 0, 0}, []float64{0, 0, 3e-6}, "1 1 0.333"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ev := evidence(3)
			copy(ev.InFlight, tc.inFlight)
			copy(ev.Latency, tc.latency)
			var res Result
			planOf(t, 0.5, queue(1)).Place(ev, 1, 0, &res)
			if res.Rung != Local || show(res.Total) != tc.total {
				t.Errorf("%s with totals %s, want local with %s", res.Rung, show(res.Total), tc.total)
			}
		})
	}
}

func TestRowsThatAreLastComeAfterAllOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		queue  string
		last   []bool
		ranked []int
	}{
		{"an idle one that refused, behind busy ones", "9 0 5", []bool{false, true, false}, []int{2, 0, 1}},
		{"two of them by their scores", "9 0 5", []bool{false, true, true}, []int{0, 1, 2}},
		{"when all are last, by score alone", "9 0 5", []bool{true, true, true}, []int{1, 2, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ev := evidence(3)
			ev.Load[0] = column(t, 3, tc.queue)
			copy(ev.Last, tc.last)
			var res Result
			planOf(t, 0.5, queue(1)).Place(ev, 1, 2, &res)
			if !slices.Equal(res.Ranked, tc.ranked) {
				t.Errorf("ranked %v, want %v", res.Ranked, tc.ranked)
			}
		})
	}
}

func TestLastHoldsOnEveryRung(t *testing.T) {
	for rung, prepare := range map[Rung]func(*Evidence){
		Full:    func(ev *Evidence) { ev.Load[0] = column(t, 3, "0 5 5") },
		Partial: func(ev *Evidence) { ev.Load[0] = column(t, 3, "0 5 ?") },
		Local:   func(ev *Evidence) { copy(ev.InFlight, []int32{0, 5, 5}) },
		Spread:  func(*Evidence) {},
	} {
		t.Run(rung.String(), func(t *testing.T) {
			ev := evidence(3)
			ev.Last[0] = true
			prepare(ev)
			plan := planOf(t, 0.5, queue(1))
			for key := range uint64(64) {
				var res Result
				plan.Place(ev, key, 2, &res)
				if res.Rung != rung || res.Ranked[2] != 0 {
					t.Fatalf("key %d: %s, ranked %v; want %s with row 0 behind", key, res.Rung, res.Ranked, rung)
				}
			}
		})
	}
}

func TestNumberOfRowsRanked(t *testing.T) {
	for _, tc := range []struct{ rows, fallbacks, want int }{
		{1, 0, 1}, {1, 4, 1}, {2, 0, 1}, {2, 1, 2}, {2, 4, 2},
		{9, 3, 4}, {9, MaxFallbacks, 5}, {9, MaxFallbacks + 1, 5}, {9, 1000, 5},
	} {
		var res Result
		planOf(t, 0.5, queue(1)).Place(evidence(tc.rows), 1, tc.fallbacks, &res)
		if len(res.Ranked) != tc.want {
			t.Errorf("%d rows with %d fallbacks: %d ranked, want %d", tc.rows, tc.fallbacks, len(res.Ranked), tc.want)
		}
	}
}

func TestTiesBreakByHashAndThenByRow(t *testing.T) {
	ev := evidence(4)
	order := []int{0, 1, 2, 3}
	const key = 7
	sort.Slice(order, func(i, j int) bool {
		return Rendezvous(key, ev.Hash[order[i]]) > Rendezvous(key, ev.Hash[order[j]])
	})
	plan := planOf(t, 0.5, queue(1))
	var res Result
	for name, queue := range map[string]string{"all zero": "0 0 0 0", "all seven": "7 7 7 7", "all huge": "1e300 1e300 1e300 1e300", "all unknown": ""} {
		ev.Load[0] = column(t, 4, queue)
		plan.Place(ev, key, 3, &res)
		if !slices.Equal(res.Ranked, order) {
			t.Errorf("%s: ranked %v, want %v by hash", name, res.Ranked, order)
		}
		if slices.ContainsFunc(res.Total, math.IsNaN) {
			t.Errorf("%s: totals %v", name, res.Total)
		}
	}
	for row := range ev.Hash {
		ev.Hash[row] = 42
	}
	plan.Place(ev, key, 3, &res)
	if !slices.Equal(res.Ranked, []int{0, 1, 2, 3}) {
		t.Errorf("with one hash for all: ranked %v, want by row", res.Ranked)
	}
}

// TestAPickIsTheSameOnEveryMachine holds fixed what a pick depends on: the
// mixing of key and hash, and the arithmetic of scores. The mixed values are
// those of the published splitmix64 finalizer.
func TestAPickIsTheSameOnEveryMachine(t *testing.T) {
	for _, tc := range []struct{ key, endpoint, want uint64 }{
		{0, 0, 0},
		{5, 5, 0},
		{0x9e3779b97f4a7c15, 0, 0xe220a8397b1dcdaf}, // the first output of splitmix64 with seed 0
		{0, 0x3c6ef372fe94f82a, 0x6e789e6aa1b965f4}, // the second
		{0xdaa66d2c7ddf743f, 0, 0x06c45d188009454f}, // the third
	} {
		if got := Rendezvous(tc.key, tc.endpoint); got != tc.want {
			t.Errorf("Rendezvous(%#x, %#x) = %#x, want %#x", tc.key, tc.endpoint, got, tc.want)
		}
	}
}

// Limits of χ² by degrees of freedom. Picks are held to p = 0.01; fallbacks, on
// top of ten such comparisons, to p = 0.001.
var (
	pickLimit     = map[int]float64{1: 6.635, 3: 11.345, 7: 18.475, 15: 30.578, 63: 92.010}
	fallbackLimit = map[int]float64{1: 10.828, 3: 16.266, 7: 24.322, 15: 37.697, 63: 103.442}
)

func chiSquare(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	expected := float64(total) / float64(len(counts))
	x := 0.0
	for _, c := range counts {
		d := float64(c) - expected
		x += d * d / expected
	}
	return x
}

func TestTiesSpreadEvenlyOverKeys(t *testing.T) {
	const keys = 10_000
	plan := planOf(t, 0.5, queue(1))
	for _, n := range []int{2, 4, 8, 16, 64} {
		for kind, key := range map[string]func(int) uint64{
			"hashed ids":         func(i int) uint64 { return xxhash.Sum64String(fmt.Sprint("decision-", i)) },
			"consecutive values": func(i int) uint64 { return uint64(i) },
		} {
			ev := evidence(n)
			var res Result
			counts := make([]int, n)
			seconds := make([]int, n)
			run, longest, before := 0, 0, -1
			for i := range keys {
				plan.Place(ev, key(i), 1, &res)
				counts[res.Ranked[0]]++
				seconds[res.Ranked[1]]++
				if res.Ranked[0] != before {
					run, before = 0, res.Ranked[0]
				}
				run++
				longest = max(longest, run)
			}
			if x, limit := chiSquare(counts), pickLimit[n-1]; x > limit {
				t.Errorf("%d endpoints, %s: χ² of picks %.1f above %.1f: %v", n, kind, x, limit, counts)
			}
			if x, limit := chiSquare(seconds), fallbackLimit[n-1]; x > limit {
				t.Errorf("%d endpoints, %s: χ² of fallbacks %.1f above %.1f: %v", n, kind, x, limit, seconds)
			}
			// A run of r has probability n^-(r-1) at each of the keys; beyond one in
			// a thousand for all of them it is no chance.
			if limit := 1 + int(math.Ceil(math.Log(keys*1000)/math.Log(float64(n)))); longest > limit {
				t.Errorf("%d endpoints, %s: %d picks in a row at one endpoint, want at most %d", n, kind, longest, limit)
			}
		}
	}
}

func TestAnEndpointThatLeavesMovesOnlyItsOwnRequests(t *testing.T) {
	const n, keys = 8, 2000
	plan := planOf(t, 0.5, queue(1))
	all := evidence(n)
	for leaving := range n {
		rest := evidence(n)
		rest.Hash = slices.Delete(rest.Hash, leaving, leaving+1)
		rest.Reset(n - 1) // all other columns are alike in every row
		moved := 0
		for key := range uint64(keys) {
			var before, after Result
			plan.Place(all, key, 1, &before)
			plan.Place(rest, key, 0, &after)
			was, is := all.Hash[before.Ranked[0]], rest.Hash[after.Ranked[0]]
			if before.Ranked[0] == leaving {
				moved++
				if next := all.Hash[before.Ranked[1]]; is != next {
					t.Fatalf("key %d: without %d the pick is not the one that was second", key, leaving)
				}
			} else if is != was {
				t.Fatalf("key %d moved from %#x to %#x though neither left", key, was, is)
			}
		}
		if moved == 0 {
			t.Errorf("endpoint %d had none of %d keys", leaving, keys)
		}
	}
}
