// Package load turns load into scores, for the scorers that share a shape.
package load

import "math"

// Relative writes to out how far below the highest load each row is:
//
//	1 - value / max(highest value, floor)
//
// so that no load scores 1 whatever the others do, and equal load scores
// equal. values are finite and at least 0, in the same unit as floor; floor is
// finite and above 0. A NaN scores NaN and does not move the other rows.
//
// The scale is the highest load and not the distance from lowest to highest: a
// stretched distance makes 200 and 210 look like 1 and 0, and everything is
// sent to one of two endpoints that are equally busy. The floor does for small
// numbers what the highest load does for large ones: a difference is worth at
// most its share of floor, so that noise near idle is not amplified.
func Relative(values []float64, floor float64, out []float64) {
	scale := floor
	for _, v := range values {
		if v > scale {
			scale = v
		}
	}
	for i, v := range values {
		out[i] = 1 - v/scale
	}
}

// Abstain writes "no evidence" for all rows.
func Abstain(out []float64) {
	for i := range out {
		out[i] = math.NaN()
	}
}
