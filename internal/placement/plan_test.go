package placement

import (
	"math"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestPlansThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		scorers []Scorer
		quorum  float64
		says    []string
	}{
		{"quorum 0", nil, 0, []string{"quorum", "0", "above 0 and at most 1"}},
		{"quorum below 0", nil, -0.5, []string{"quorum", "-0.5"}},
		{"quorum above 1", nil, 1.5, []string{"quorum", "1.5"}},
		{"quorum not a number", nil, math.NaN(), []string{"quorum", "NaN"}},
		{"weight below 0", []Scorer{cache(1), queue(-1)}, 0.5, []string{`"queue"`, "weight", "-1", "at least 0"}},
		{"weight not a number", []Scorer{queue(math.NaN())}, 0.5, []string{`"queue"`, "weight", "NaN", "finite"}},
		{"weight without bound", []Scorer{queue(math.Inf(1))}, 0.5, []string{`"queue"`, "weight", "+Inf", "finite"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := NewPlan(tc.scorers, tc.quorum)
			if err == nil {
				t.Fatal("the plan was taken")
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %s", err, want)
				}
			}
		})
	}
}

func TestPlansAtTheEdgesAreTaken(t *testing.T) {
	for _, quorum := range []float64{math.SmallestNonzeroFloat64, 0.5, 1} {
		if _, err := NewPlan([]Scorer{queue(0), cache(math.MaxFloat64)}, quorum); err != nil {
			t.Errorf("quorum %v: %v", quorum, err)
		}
	}
}

func TestInputsGiveLoadFieldsOnly(t *testing.T) {
	in := NewInput(2, map[telemetry.Field][]float64{
		telemetry.QueueDepth: {1, 2},
		telemetry.Power:      {700, 300},
	})
	if in.Len() != 2 {
		t.Errorf("Len = %d, want 2", in.Len())
	}
	if values, ok := in.Field(telemetry.QueueDepth); !ok || show(values) != "1 2" {
		t.Errorf("queueDepth: %v, %v; want 1 2", values, ok)
	}
	for _, f := range []telemetry.Field{telemetry.ActiveRequests, telemetry.Power} {
		if values, ok := in.Field(f); ok || values != nil {
			t.Errorf("%s: %v, %v; want none", f, values, ok)
		}
	}
}
