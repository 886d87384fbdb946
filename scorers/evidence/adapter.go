package evidence

import (
	"fmt"
	"math"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/telemetry"
)

// quorum is the share of endpoints that must be known before a missing value is
// imputed. It is the default of placement.quorum; a stock EPP has no place to
// set another, and rows from Berth's host were judged by the configured one.
const quorum = 0.5

// Adapter runs one of Berth's scorers the way GIE expects. It keeps nothing
// between calls and may be used concurrently.
type Adapter struct {
	plan *placement.Plan
}

// NewAdapter adapts a scorer. Its weight is not used: GIE weights scores
// itself.
func NewAdapter(s placement.Scorer) (*Adapter, error) {
	s.Weight = 1
	plan, err := placement.NewPlan([]placement.Scorer{s}, quorum)
	if err != nil {
		return nil, fmt.Errorf("adapting a scorer: %w", err)
	}
	return &Adapter{plan: plan}, nil
}

// Score gives every endpoint a score in [0,1]. "No evidence" is 0 here, as GIE
// has no word for it, and only ever for all endpoints alike unless the scorer
// abstains from single rows: like placement, it then adds nothing to a total.
func (a *Adapter) Score(endpoints []scheduling.Endpoint) map[scheduling.Endpoint]float64 {
	scores := make(map[scheduling.Endpoint]float64, len(endpoints))
	if len(endpoints) == 0 {
		return scores
	}
	var (
		ev  placement.Evidence
		res placement.Result
	)
	gather(&ev, endpoints)
	a.plan.Place(&ev, 0, 0, &res)
	for row, e := range endpoints {
		scores[e] = 0
		if len(res.Scores) > 0 && !math.IsNaN(res.Scores[0][row]) {
			scores[e] = res.Scores[0][row]
		}
	}
	return scores
}

// gather fills the load columns. This picker's own requests are left out: in
// Berth they are part of the estimates already, and a stock EPP has no count.
func gather(ev *placement.Evidence, endpoints []scheduling.Endpoint) {
	ev.Reset(len(endpoints))
	for row, e := range endpoints {
		ev.Latency[row] = math.NaN()
		known, ok := RowOf(e)
		m := e.GetMetrics()
		for i, f := range placement.LoadFields {
			v := math.NaN()
			switch {
			case ok:
				v = known.Estimates[i]
			case m != nil && !m.UpdateTime.IsZero():
				v = stock(m, f)
			}
			column := &ev.Load[i]
			column.Value[row], column.State[row] = 0, telemetry.Missing
			if f.Possible(v) {
				column.Value[row], column.State[row] = v, telemetry.Fresh
			}
		}
	}
}

// stock reads a field of GIE's own metrics, NaN for a field that they lack.
// KVCacheUsagePercent is a ratio in spite of its name.
func stock(m *datalayer.Metrics, f telemetry.Field) float64 {
	switch f {
	case telemetry.QueueDepth:
		return float64(m.WaitingQueueSize)
	case telemetry.ActiveRequests:
		return float64(m.RunningRequestsSize)
	case telemetry.KVCacheUtilization:
		return m.KVCacheUsagePercent
	default:
		return math.NaN()
	}
}
