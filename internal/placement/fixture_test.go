package placement

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/telemetry"
)

// The scorers of these tests are simple enough to follow by hand.

// fewer scores a count: 1 for 0, 1/2 for 1, 1/3 for 2.
func fewer(name string, f telemetry.Field, weight float64) Scorer {
	return Scorer{Name: name, Weight: weight, Reads: []telemetry.Field{f}, Score: func(in *Input, out []float64) {
		values, ok := in.Field(f)
		for row := range out {
			out[row] = math.NaN()
			if ok {
				out[row] = 1 / (1 + values[row])
			}
		}
	}}
}

func queue(weight float64) Scorer  { return fewer("queue", telemetry.QueueDepth, weight) }
func active(weight float64) Scorer { return fewer("active", telemetry.ActiveRequests, weight) }

// cache scores the free share of the KV cache.
func cache(weight float64) Scorer {
	f := telemetry.KVCacheUtilization
	return Scorer{Name: "cache", Weight: weight, Reads: []telemetry.Field{f}, Score: func(in *Input, out []float64) {
		values, ok := in.Field(f)
		for row := range out {
			out[row] = math.NaN()
			if ok {
				out[row] = 1 - values[row]
			}
		}
	}}
}

// given scores rows with the numbers it was made of, and reads nothing.
func given(weight float64, scores ...float64) Scorer {
	return Scorer{Name: "given", Weight: weight, Score: func(_ *Input, out []float64) { copy(out, scores) }}
}

func planOf(t testing.TB, quorum float64, scorers ...Scorer) *Plan {
	t.Helper()
	p, err := NewPlan(scorers, quorum)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// evidence builds rows of which nothing is known, named 0, 1, 2 and so on, none
// of them last.
func evidence(n int) *Evidence {
	ev := &Evidence{}
	ev.Reset(n)
	for row := range n {
		ev.Hash[row] = xxhash.Sum64String(strconv.Itoa(row))
		ev.Latency[row] = math.NaN()
	}
	return ev
}

// column reads readings such as "3 0 ~5 ? !": fresh, fresh, stale, missing and
// invalid. An empty text is a column of missing values.
func column(t testing.TB, n int, text string) Column {
	t.Helper()
	col := Column{Value: make([]float64, n), State: make([]telemetry.State, n)}
	cells := strings.Fields(text)
	if len(cells) != n && text != "" {
		t.Fatalf("column %q has %d cells, want %d", text, len(cells), n)
	}
	for row, cell := range cells {
		switch cell {
		case "?":
			continue
		case "!":
			col.State[row], col.Value[row] = telemetry.Invalid, math.NaN()
			continue
		}
		number, stale := strings.CutPrefix(cell, "~")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Fatal(err)
		}
		col.Value[row], col.State[row] = v, telemetry.Fresh
		if stale {
			col.State[row] = telemetry.Stale
		}
	}
	return col
}

// show prints numbers as the tables write them, with three digits at most.
func show(values []float64) string {
	if values == nil {
		return "none"
	}
	cells := make([]string, len(values))
	for i, v := range values {
		cells[i] = strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
	}
	return strings.Join(cells, " ")
}

func showUses(res *Result) string {
	return fmt.Sprintf("queue %s, active %s, cache %s", res.Uses[0], res.Uses[1], res.Uses[2])
}
