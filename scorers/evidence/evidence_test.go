package evidence

import (
	"math"
	"testing"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/telemetry"
)

// value scores a row by the estimate itself, so that tests see what a scorer
// would read.
func value(f telemetry.Field) placement.Scorer {
	return placement.Scorer{
		Name:  "value",
		Reads: []telemetry.Field{f},
		Score: func(in *placement.Input, out []float64) {
			values, _ := in.Field(f)
			copy(out, values)
		},
	}
}

func adapter(t *testing.T, s placement.Scorer) *Adapter {
	t.Helper()
	a, err := NewAdapter(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func endpoint(kv float64, scraped time.Time, row *Row) scheduling.Endpoint {
	e := scheduling.NewEndpoint(nil, &datalayer.Metrics{KVCacheUsagePercent: kv, UpdateTime: scraped}, nil)
	if row != nil {
		e.Put(Key, row)
	}
	return e
}

func estimates(kv float64) *Row {
	return &Row{Estimates: [...]float64{math.NaN(), math.NaN(), kv}}
}

type foreign struct{}

func (foreign) Clone() datalayer.Cloneable { return foreign{} }

func TestMissingValuesAreImputedWhereHalfOfTheEndpointsAreKnown(t *testing.T) {
	scraped, never := time.Unix(1, 0), time.Time{}
	for _, c := range []struct {
		name      string
		endpoints []scheduling.Endpoint
		want      []float64
	}{
		{"all known", []scheduling.Endpoint{endpoint(0.25, scraped, nil), endpoint(0.5, scraped, nil)}, []float64{0.25, 0.5}},
		{"a zero UpdateTime is missing, whatever the value", []scheduling.Endpoint{
			endpoint(0, never, nil), endpoint(0.25, scraped, nil), endpoint(0.5, scraped, nil), endpoint(0.75, scraped, nil),
		}, []float64{0.5, 0.25, 0.5, 0.75}},
		{"a ratio above 1 is missing", []scheduling.Endpoint{
			endpoint(42.5, scraped, nil), endpoint(0.25, scraped, nil), endpoint(0.5, scraped, nil), endpoint(0.75, scraped, nil),
		}, []float64{0.5, 0.25, 0.5, 0.75}},
		{"one known of two is half", []scheduling.Endpoint{endpoint(0, never, nil), endpoint(0.5, scraped, nil)}, []float64{0.5, 0.5}},
		{"one known of three is less than half", []scheduling.Endpoint{
			endpoint(0, never, nil), endpoint(0, never, nil), endpoint(0.5, scraped, nil),
		}, []float64{0, 0, 0}},
		{"the host's row wins over stock metrics", []scheduling.Endpoint{
			endpoint(1, scraped, estimates(0.25)), endpoint(1, never, estimates(0.5)),
		}, []float64{0.25, 0.5}},
		{"a field that the host dropped is not read from stock metrics", []scheduling.Endpoint{
			endpoint(0.25, scraped, estimates(math.NaN())), endpoint(0.5, scraped, estimates(math.NaN())),
		}, []float64{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			scores := adapter(t, value(telemetry.KVCacheUtilization)).Score(c.endpoints)
			for row, e := range c.endpoints {
				if scores[e] != c.want[row] {
					t.Errorf("endpoint %d reads %v, want %v", row, scores[e], c.want[row])
				}
			}
		})
	}
}

func TestARowThatAScorerAbstainsFromScoresZero(t *testing.T) {
	s := value(telemetry.KVCacheUtilization)
	s.Score = func(_ *placement.Input, out []float64) { out[0], out[1] = math.NaN(), 0.5 }
	a, b := endpoint(0.25, time.Unix(1, 0), nil), endpoint(0.5, time.Unix(1, 0), nil)
	scores := adapter(t, s).Score([]scheduling.Endpoint{a, b})
	if scores[a] != 0 || scores[b] != 0.5 {
		t.Errorf("scores are %v and %v, want 0 and 0.5", scores[a], scores[b])
	}
}

func TestStockMetricsHaveEachLoadField(t *testing.T) {
	m := &datalayer.Metrics{WaitingQueueSize: 1, RunningRequestsSize: 2, KVCacheUsagePercent: 0.5}
	for i, want := range []float64{1, 2, 0.5} {
		f := placement.LoadFields[i]
		if got := stock(m, f); got != want {
			t.Errorf("%s is %v, want %v", f, got, want)
		}
	}
	if got := stock(m, telemetry.Power); !math.IsNaN(got) {
		t.Errorf("a field that stock metrics lack is %v, want NaN", got)
	}
}

func TestNewRowKeepsWhatPlacementKnew(t *testing.T) {
	var ev placement.Evidence
	ev.Reset(2)
	ev.Hash[1], ev.Last[1] = 42, true
	var res placement.Result
	res.Estimate[0] = []float64{7, 8}
	row := NewRow(&ev, &res, 1)
	res.Estimate[0][1], ev.Hash[1] = 0, 0
	if row.Hash != 42 || !row.Last || row.Estimates[0] != 8 {
		t.Errorf("the row is %+v, want hash 42, last, and an estimate of 8", *row)
	}
	for i, v := range row.Estimates[1:] {
		if !math.IsNaN(v) {
			t.Errorf("dropped field %s is %v, want NaN", placement.LoadFields[i+1], v)
		}
	}
}

func TestRowOfTakesOnlyARow(t *testing.T) {
	e := endpoint(0, time.Time{}, nil)
	if _, ok := RowOf(e); ok {
		t.Error("an endpoint without the attribute has a row")
	}
	e.Put(Key, foreign{})
	if _, ok := RowOf(e); ok {
		t.Error("an attribute of another type is taken for a row")
	}
	e.Put(Key, (*Row)(nil))
	if _, ok := RowOf(e); ok {
		t.Error("a nil row is taken for a row")
	}
	want := estimates(0.5)
	e.Put(Key, want)
	if got, ok := RowOf(e); !ok || got != want {
		t.Errorf("the row is %v, want the one that was put", got)
	}
}
