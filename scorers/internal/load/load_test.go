package load

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRelativeScoresAreSharesOfTheHighestLoadOrTheFloor(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		floor  float64
		want   []float64
	}{
		{"no rows score nothing", nil, 1, nil},
		{"one idle row scores 1", []float64{0}, 1, []float64{1}},
		{"all idle rows score 1", []float64{0, 0, 0}, 1, []float64{1, 1, 1}},
		{"equal load scores equal", []float64{7, 7}, 1, []float64{0, 0}},
		{"the highest load scores 0 and none scores 1", []float64{0, 2, 8}, 1, []float64{1, 0.75, 0}},
		{"differences below the floor stay small", []float64{0, 1, 4}, 16, []float64{1, 0.9375, 0.75}},
		{"a load equal to the floor scores 0", []float64{0, 16}, 16, []float64{1, 0}},
		{"a small difference between long queues stays small", []float64{192, 256}, 1, []float64{0.25, 0}},
		{"the largest counts stay finite", []float64{math.MaxInt64, math.MaxInt64}, 1, []float64{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := make([]float64, len(c.values))
			Relative(c.values, c.floor, out)
			if !slices.Equal(out, c.want) {
				t.Errorf("Relative(%v, %v) = %v, want %v", c.values, c.floor, out, c.want)
			}
		})
	}
}

func TestRelativeKeepsNaNToItsOwnRow(t *testing.T) {
	out := make([]float64, 3)
	Relative([]float64{4, math.NaN(), 0}, 1, out)
	if out[0] != 0 || !math.IsNaN(out[1]) || out[2] != 1 {
		t.Errorf("scores are %v, want [0 NaN 1]", out)
	}
}

func TestRelativeNeverPrefersTheHigherLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e9), 1, 50).Draw(t, "values")
		floor := rapid.Float64Range(1e-6, 1e6).Draw(t, "floor")
		out := make([]float64, len(values))
		Relative(values, floor, out)
		for i := range values {
			if !(out[i] >= 0 && out[i] <= 1) {
				t.Fatalf("row %d scores %v, outside [0,1]", i, out[i])
			}
			for j := range values {
				if values[i] < values[j] && out[i] < out[j] {
					t.Fatalf("load %v scores %v, below the %v of load %v", values[i], out[i], out[j], values[j])
				}
			}
		}
	})
}

func TestAbstainLeavesNoRowWithAScore(t *testing.T) {
	out := []float64{0, 1, 0.5}
	Abstain(out)
	for row, v := range out {
		if !math.IsNaN(v) {
			t.Errorf("row %d scores %v, want NaN", row, v)
		}
	}
}

func BenchmarkRelative(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			values, out := make([]float64, n), make([]float64, n)
			for i := range values {
				values[i] = float64(i % 37)
			}
			b.ReportAllocs()
			for b.Loop() {
				Relative(values, 1, out)
			}
		})
	}
}
