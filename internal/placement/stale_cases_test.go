package placement

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// Evidence that is missing, stale or late, and what share of the requests each
// endpoint gets by it.

// deal places n requests and counts the picks of each row. Where they stay, each
// is in flight there from then on, and on no page yet.
func deal(p *Plan, ev *Evidence, n int, stay bool) []int {
	picks := make([]int, ev.Len())
	var res Result
	for i := range n {
		p.Place(ev, xxhash.Sum64String(fmt.Sprintf("request %d", i)), 0, &res)
		row := res.Ranked[0]
		picks[row]++
		if stay {
			ev.InFlight[row]++
			ev.Pending[row]++
		}
	}
	return picks
}

// within checks that every row got between least and most.
func within(t *testing.T, picks []int, least, most int) {
	t.Helper()
	if slices.Min(picks) < least || slices.Max(picks) > most {
		t.Errorf("the rows got %v, want %d to %d each", picks, least, most)
	}
}

func TestS1_ARowThatWasNeverReadComesBeforeNoRowThatIsBetterThanTheMedian(t *testing.T) {
	for _, c := range []struct {
		name         string
		queue, cache string
		last         bool
		want         []int
	}{
		{"it has never answered", "? 1 9", "? 0.1 0.8", true, []int{1, 2, 0}},
		{"it answers without a page", "? 1 9", "? 0.1 0.8", false, []int{1, 0, 2}},
		{"its zeros are old", "~0 1 9", "~0 0.1 0.8", false, []int{1, 0, 2}},
		{"its zeros are invalid", "! 1 9", "! 0.1 0.8", false, []int{1, 0, 2}},
		{"it says zero", "0 1 9", "0 0.1 0.8", false, []int{0, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := evidence(3)
			ev.Load = [3]Column{column(t, 3, c.queue), column(t, 3, ""), column(t, 3, c.cache)}
			ev.Last[0] = c.last
			plan := planOf(t, 0.5, queue(1), cache(1))
			var res Result
			for key := range uint64(100) {
				if plan.Place(ev, xxhash.Sum64String(fmt.Sprint(key)), 2, &res); !slices.Equal(res.Ranked, c.want) {
					t.Fatalf("the order is %v, want %v", res.Ranked, c.want)
				}
			}
		})
	}
}

func TestS2_RowsThatAreAllStaleGetEqualShares(t *testing.T) {
	const n, requests = 8, 4000
	plan := planOf(t, 0.5, queue(2), active(1), cache(2))
	stale := func(queued, cached string) *Evidence {
		ev := evidence(n)
		ev.Load = [3]Column{column(t, n, queued), column(t, n, queued), column(t, n, cached)}
		return ev
	}
	unlike := func() *Evidence {
		return stale("~0 ~9 ? ~50 ! ~1 ~2 ~3", "~0 ~0.9 ? ~1 ! ~0.1 ~0.2 ~0.3")
	}
	t.Run("requests that follow each other", func(t *testing.T) {
		picks := deal(plan, unlike(), requests, false)
		within(t, picks, requests/n*9/10, requests/n*11/10)
		// What the rows once said is no part of it.
		alike := stale("~0 ~0 ~0 ~0 ~0 ~0 ~0 ~0", "~0 ~0 ~0 ~0 ~0 ~0 ~0 ~0")
		if others := deal(plan, alike, requests, false); !slices.Equal(picks, others) {
			t.Errorf("the rows got %v by unlike old values, %v by equal ones", picks, others)
		}
	})
	t.Run("requests that stay", func(t *testing.T) {
		within(t, deal(plan, unlike(), requests, true), requests/n, requests/n)
	})
	t.Run("two of eight are fresh, and idle", func(t *testing.T) {
		ev := stale("0 0 ~9 ~9 ~9 ? ? !", "0 0 ~1 ~1 ~1 ? ? !")
		within(t, deal(plan, ev, requests, true), requests/n, requests/n)
	})
}

func TestS6_ABurstIsDealtEvenlyToRowsThatAllSayZero(t *testing.T) {
	const n, requests = 4, 200
	for _, c := range []struct {
		name    string
		scorers []Scorer
	}{
		{"by queue", []Scorer{queue(1)}},
		{"by active requests", []Scorer{active(1)}},
		{"by queue, active requests and cache", []Scorer{queue(2), active(1), cache(2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := evidence(n)
			zeros := "0 0 0 0"
			ev.Load = [3]Column{column(t, n, zeros), column(t, n, zeros), column(t, n, zeros)}
			within(t, deal(planOf(t, 0.5, c.scorers...), ev, requests, true), requests/n, requests/n)
		})
	}
}

func TestS10_ARowWithoutLatencyIsNoWorseThanThoseWithOne(t *testing.T) {
	const n, requests = 5, 50
	for name, load := range map[string]string{"load is fresh": "1 1 1 1 1", "no load is known": ""} {
		t.Run(name, func(t *testing.T) {
			ev := evidence(n)
			ev.Load = [3]Column{column(t, n, load), column(t, n, load), column(t, n, load)}
			copy(ev.Latency, []float64{math.NaN(), 0.1, 0.1, 0.12, 0.15})
			within(t, deal(planOf(t, 0.5, queue(1)), ev, requests, true), requests/n, requests/n)
		})
	}
}

func TestS12_RowsOfWhichNothingIsKnownAreAllRanked(t *testing.T) {
	for _, c := range []struct {
		name  string
		queue string
		last  []bool
		// first are the rows that come first, in any order.
		first []int
	}{
		{"none has answered", "? ? ?", []bool{true, true, true}, []int{0, 1, 2}},
		{"all answer without a page", "? ? ?", []bool{false, false, false}, []int{0, 1, 2}},
		{"the others are full", "? 500 500", []bool{false, false, false}, []int{0, 1, 2}},
		{"the others are full, and it has never answered", "? 500 500", []bool{true, false, false}, []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := evidence(3)
			ev.Load[0], ev.Load[1], ev.Load[2] = column(t, 3, c.queue), column(t, 3, ""), column(t, 3, "")
			copy(ev.Last, c.last)
			first := map[int]int{}
			var res Result
			for key := range uint64(300) {
				planOf(t, 0.5, queue(1)).Place(ev, xxhash.Sum64String(fmt.Sprint(key)), MaxFallbacks, &res)
				if len(res.Ranked) != 3 {
					t.Fatalf("ranked %v, want all three rows", res.Ranked)
				}
				first[res.Ranked[0]]++
			}
			for row := range 3 {
				if n := first[row]; (n > 0) != slices.Contains(c.first, row) || n > 0 && n < 300/len(c.first)/2 {
					t.Errorf("first were %v, want each of %v about equally often", first, c.first)
				}
			}
		})
	}
}

func TestM13_ARowWithoutAPageGetsTheShareOfTheMedian(t *testing.T) {
	for name, stay := range map[string]bool{"requests that follow each other": false, "requests that stay": true} {
		t.Run(name, func(t *testing.T) {
			ev := evidence(2)
			ev.Load = [3]Column{column(t, 2, "? 2"), column(t, 2, "? 1"), column(t, 2, "? 0.2")}
			plan := planOf(t, 0.5, queue(2), active(1), cache(2))
			within(t, deal(plan, ev, 400, stay), 120, 280)
		})
	}
}
