package placement

import (
	"math"
	"reflect"
	"slices"
	"sort"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/telemetry"
)

// drawEvidence makes rows with distinct hashes and few distinct values, so that
// ties are common.
func drawEvidence(t *rapid.T) *Evidence {
	n := rapid.IntRange(1, 12).Draw(t, "rows")
	ev := &Evidence{}
	ev.Reset(n)
	copy(ev.Hash, rapid.SliceOfNDistinct(rapid.Uint64(), n, n, rapid.ID[uint64]).Draw(t, "hash"))
	// Drawn once for all rows, so that full, partial and dropped fields all occur.
	states := rapid.SampledFrom([][]telemetry.State{
		{telemetry.Fresh},
		{telemetry.Fresh, telemetry.Fresh, telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid},
		{telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid},
		{telemetry.Missing},
	})
	var of [numLoadFields][]telemetry.State
	for i := range of {
		of[i] = states.Draw(t, LoadFields[i].String()+" states")
	}
	for row := range n {
		ev.Last[row] = rapid.IntRange(0, 4).Draw(t, "last") == 0
		ev.InFlight[row] = rapid.Int32Range(0, 6).Draw(t, "in flight")
		ev.Pending[row] = rapid.Int32Range(0, ev.InFlight[row]).Draw(t, "pending")
		ev.Latency[row] = rapid.SampledFrom([]float64{math.NaN(), 0, 0.1, 0.15, 0.2, 1, 30}).Draw(t, "latency")
		for i := range ev.Load {
			col := &ev.Load[i]
			col.State[row] = rapid.SampledFrom(of[i]).Draw(t, "state")
			values := []float64{0, 1, 2, 3, 50, 1e300}
			if LoadFields[i] == telemetry.KVCacheUtilization {
				values = []float64{0, 0.1, 0.5, 0.99, 1}
			}
			col.Value[row] = rapid.SampledFrom(values).Draw(t, "value")
			if col.State[row] == telemetry.Invalid {
				col.Value[row] = math.NaN()
			}
		}
	}
	return ev
}

func drawPlan(t *rapid.T) *Plan {
	weight := rapid.SampledFrom([]float64{0, 0.5, 1, 3})
	p, err := NewPlan(
		[]Scorer{queue(weight.Draw(t, "queue weight")), active(weight.Draw(t, "active weight")), cache(weight.Draw(t, "cache weight"))},
		rapid.SampledFrom([]float64{0.01, 0.3, 0.5, 1}).Draw(t, "quorum"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// permuted is ev with its rows in another order.
func permuted(ev *Evidence, order []int) *Evidence {
	out := &Evidence{}
	out.Reset(ev.Len())
	for to, from := range order {
		out.Hash[to] = ev.Hash[from]
		out.Last[to] = ev.Last[from]
		out.InFlight[to] = ev.InFlight[from]
		out.Pending[to] = ev.Pending[from]
		out.Latency[to] = ev.Latency[from]
		for i := range ev.Load {
			out.Load[i].Value[to] = ev.Load[i].Value[from]
			out.Load[i].State[to] = ev.Load[i].State[from]
		}
	}
	return out
}

// rankedHashes names the ranked endpoints whatever their rows.
func rankedHashes(ev *Evidence, res *Result) []uint64 {
	hashes := make([]uint64, len(res.Ranked))
	for i, row := range res.Ranked {
		hashes[i] = ev.Hash[row]
	}
	return hashes
}

// bits make NaNs comparable, and tell 0 from -0.
func bits(columns ...[]float64) [][]uint64 {
	out := make([][]uint64, len(columns))
	for i, col := range columns {
		for _, v := range col {
			out[i] = append(out[i], math.Float64bits(v))
		}
	}
	return out
}

func TestPlacementIsAFunctionOfItsInputs(t *testing.T) {
	var reused Result
	rapid.Check(t, func(t *rapid.T) {
		ev, plan := drawEvidence(t), drawPlan(t)
		key, fallbacks := rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 6).Draw(t, "fallbacks")
		var first, again Result
		plan.Place(ev, key, fallbacks, &first)
		plan.Place(ev, key, fallbacks, &again)
		plan.Place(ev, key, fallbacks, &reused) // holds the columns of another decision
		for name, other := range map[string]*Result{"again": &again, "in a used result": &reused} {
			if other.Rung != first.Rung || other.Uses != first.Uses || !slices.Equal(other.Ranked, first.Ranked) ||
				!reflect.DeepEqual(bits(other.Total), bits(first.Total)) ||
				!reflect.DeepEqual(bits(other.Scores...), bits(first.Scores...)) ||
				!reflect.DeepEqual(bits(other.Estimate[:]...), bits(first.Estimate[:]...)) {
				t.Fatalf("%s: %+v\nfirst: %+v", name, other, first)
			}
		}
	})
}

func TestTheOrderOfRowsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev, plan := drawEvidence(t), drawPlan(t)
		key, fallbacks := rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 6).Draw(t, "fallbacks")
		rows := make([]int, ev.Len())
		for row := range rows {
			rows[row] = row
		}
		other := permuted(ev, rapid.Permutation(rows).Draw(t, "order"))
		var a, b Result
		plan.Place(ev, key, fallbacks, &a)
		plan.Place(other, key, fallbacks, &b)
		if a.Rung != b.Rung || a.Uses != b.Uses || !slices.Equal(rankedHashes(ev, &a), rankedHashes(other, &b)) {
			t.Fatalf("%s %v ranked %x\nin another order of rows %s %v ranked %x",
				a.Rung, a.Uses, rankedHashes(ev, &a), b.Rung, b.Uses, rankedHashes(other, &b))
		}
	})
}

// TestRankedIsTheHeadOfAFullSort compares the selection with a plain sort.
func TestRankedIsTheHeadOfAFullSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev, plan := drawEvidence(t), drawPlan(t)
		key, fallbacks := rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 6).Draw(t, "fallbacks")
		var res Result
		plan.Place(ev, key, fallbacks, &res)
		rows := make([]int, ev.Len())
		for row := range rows {
			rows[row] = row
		}
		sort.SliceStable(rows, func(i, j int) bool {
			a, b := rows[i], rows[j]
			switch {
			case ev.Last[a] && !ev.Last[b]:
				return false
			case !ev.Last[a] && ev.Last[b]:
				return true
			case res.Total[a] > res.Total[b]:
				return true
			case res.Total[a] < res.Total[b]:
				return false
			}
			return Rendezvous(key, ev.Hash[a]) > Rendezvous(key, ev.Hash[b])
		})
		want := rows[:min(1+min(fallbacks, 4), len(rows))]
		if !slices.Equal(res.Ranked, want) {
			t.Fatalf("ranked %v, want %v", res.Ranked, want)
		}
	})
}

func TestRankedRowsAreDistinctInRangeAndLastOnesBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev, plan := drawEvidence(t), drawPlan(t)
		var res Result
		plan.Place(ev, rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 6).Draw(t, "fallbacks"), &res)
		seen := map[int]bool{}
		behind := false
		for _, row := range res.Ranked {
			if row < 0 || row >= ev.Len() || seen[row] {
				t.Fatalf("ranked %v of %d rows", res.Ranked, ev.Len())
			}
			seen[row] = true
			if behind && !ev.Last[row] {
				t.Fatalf("ranked %v: row %d, not last, behind one that is", res.Ranked, row)
			}
			behind = ev.Last[row]
		}
		for row, total := range res.Total {
			if math.IsNaN(total) || math.IsInf(total, 0) {
				t.Fatalf("row %d has total %v", row, total)
			}
			if !ev.Last[row] && !seen[row] && behind {
				t.Fatalf("ranked %v: a row that is last was chosen before row %d", res.Ranked, row)
			}
		}
	})
}

func TestAnImputedValueIsNeverBetterThanTheMedianOfTheFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev, plan := drawEvidence(t), drawPlan(t)
		var res Result
		plan.Place(ev, 1, 0, &res)
		for i, values := range res.Estimate {
			if values == nil {
				continue
			}
			for row, v := range values {
				if ev.Load[i].State[row] == telemetry.Fresh {
					continue
				}
				worse, fresh := 0, 0
				for other, state := range ev.Load[i].State {
					if state == telemetry.Fresh {
						fresh++
						if values[other] > v {
							worse++
						}
					}
				}
				if 2*worse > fresh {
					t.Fatalf("%s of row %d: imputed %v is better than %d of %d fresh ones: %v", LoadFields[i], row, v, worse, fresh, values)
				}
				// What this picker has there is known, each request once.
				own := ev.InFlight[row]
				switch {
				case i == queueColumn && res.Estimate[activeColumn] != nil:
					own = ev.Pending[row]
				case i == activeColumn && res.Estimate[queueColumn] != nil:
					own = ev.InFlight[row] - ev.Pending[row]
				}
				if i < 2 && v < float64(own) {
					t.Fatalf("%s of row %d: imputed %v, but %d are in flight", LoadFields[i], row, v, own)
				}
			}
		}
	})
}

func TestAnotherPendingRequestNeverRaisesAScore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev := drawEvidence(t)
		plan, err := NewPlan([]Scorer{queue(1), active(2)}, rapid.SampledFrom([]float64{0.01, 0.5, 1}).Draw(t, "quorum"))
		if err != nil {
			t.Fatal(err)
		}
		row := rapid.IntRange(0, ev.Len()-1).Draw(t, "row")
		var before, after Result
		plan.Place(ev, 1, 0, &before)
		ev.Pending[row]++
		ev.InFlight[row]++
		plan.Place(ev, 1, 0, &after)
		if after.Total[row] > before.Total[row] && before.Rung != Spread {
			t.Fatalf("%s: total %v, with one more pending %v", before.Rung, before.Total[row], after.Total[row])
		}
		for i := range before.Scores {
			if after.Scores[i][row] > before.Scores[i][row] {
				t.Fatalf("scorer %d: %v, with one more pending %v", i, before.Scores[i][row], after.Scores[i][row])
			}
		}
	})
}

func TestAPlanMayBeUsedConcurrently(t *testing.T) {
	plan := planOf(t, 0.5, queue(1), active(1), cache(1))
	ev := evidence(8)
	for i := range ev.Load {
		ev.Load[i] = column(t, 8, "0 1 0 ? 1 0 ~3 1")
	}
	const keys = 200
	var want [keys]int
	for key := range want {
		var res Result
		plan.Place(ev, uint64(key), 0, &res)
		want[key] = res.Ranked[0]
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			var res Result
			for key := range want {
				plan.Place(ev, uint64(key), 0, &res)
				if res.Ranked[0] != want[key] {
					t.Errorf("key %d: picked %d, alone %d", key, res.Ranked[0], want[key])
					return
				}
			}
		})
	}
	wg.Wait()
}
