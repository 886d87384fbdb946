package placement

import (
	"fmt"
	"math"

	"github.com/berth-dev/berth/internal/telemetry"
)

// MaxFallbacks is the most fallbacks that are ever handed to a gateway.
const MaxFallbacks = 4

// Scorer is one weighted preference of a plan.
type Scorer struct {
	// Name is the plugin's name in the configuration.
	Name string
	// Weight is finite and at least 0; 0 switches the scorer off.
	Weight float64
	// Reads are the fields that Score asks for.
	Reads []telemetry.Field
	// Score writes one number in [0,1] for each row, or NaN for "no evidence".
	// It must be a pure function of its input.
	Score func(in *Input, out []float64)
}

// Plan is how endpoints are ordered: what a scheduling profile says, in the
// form that Place runs. It is immutable and may be used concurrently.
type Plan struct {
	scorers []Scorer
	// weighted tells which load fields a scorer with weight reads.
	weighted [numLoadFields]bool
	quorum   float64
}

// NewPlan checks and builds a plan. quorum is the share of screened endpoints,
// above 0 and at most 1, at which a load field must be fresh to count.
func NewPlan(scorers []Scorer, quorum float64) (*Plan, error) {
	if math.IsNaN(quorum) || quorum <= 0 || quorum > 1 {
		return nil, fmt.Errorf("quorum: %v: must be above 0 and at most 1", quorum)
	}
	p := &Plan{quorum: quorum}
	for _, s := range scorers {
		if math.IsNaN(s.Weight) || math.IsInf(s.Weight, 0) || s.Weight < 0 {
			return nil, fmt.Errorf("scorer %q: weight: %v: must be finite and at least 0", s.Name, s.Weight)
		}
		if s.Weight == 0 {
			continue
		}
		p.scorers = append(p.scorers, s)
		for i, load := range LoadFields {
			for _, f := range s.Reads {
				if f == load {
					p.weighted[i] = true
				}
			}
		}
	}
	return p, nil
}

// Scorers are the plan's scorers with weight, in the order of Result.Scores.
func (p *Plan) Scorers() []Scorer { return p.scorers }

// Input is what a scorer reads.
type Input struct {
	n        int
	estimate [numLoadFields][]float64
}

// NewInput hands columns of estimates to a scorer outside Place: to a GIE
// plugin, or a test. All columns must have n values.
func NewInput(n int, columns map[telemetry.Field][]float64) *Input {
	in := &Input{n: n}
	for i, f := range LoadFields {
		in.estimate[i] = columns[f]
	}
	return in
}

// Len is the number of rows.
func (in *Input) Len() int { return in.n }

// Field is the best estimate of a field for each row, none of them missing.
// ok is false when the field was dropped for all rows.
func (in *Input) Field(f telemetry.Field) (values []float64, ok bool) {
	for i, load := range LoadFields {
		if load == f {
			return in.estimate[i], in.estimate[i] != nil
		}
	}
	return nil, false
}
