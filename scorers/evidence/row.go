package evidence

import (
	"math"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/internal/placement"
)

// Key is the endpoint attribute under which Berth's host puts a *Row.
const Key = "berth.dev/estimates"

// Row is what placement knows of one endpoint for one request. It is immutable
// once it was put on an endpoint, and may be read concurrently.
type Row struct {
	// Hash identifies the endpoint in rendezvous hashing.
	Hash uint64
	// Last orders the endpoint after all endpoints without it.
	Last bool
	// Estimates are what scorers read of each load field, in the order of
	// placement.LoadFields; NaN where the field was unused or dropped.
	Estimates [len(placement.LoadFields)]float64
}

// NewRow takes one row out of a placement. It keeps nothing of ev and res,
// which may be reused.
func NewRow(ev *placement.Evidence, res *placement.Result, row int) *Row {
	r := &Row{Hash: ev.Hash[row], Last: ev.Last[row]}
	for i, column := range res.Estimate {
		r.Estimates[i] = math.NaN()
		if column != nil {
			r.Estimates[i] = column[row]
		}
	}
	return r
}

// Clone returns r itself: a row does not change. GIE asks for a clone at each
// read.
func (r *Row) Clone() datalayer.Cloneable { return r }

// RowOf is the row that Berth's host put on the endpoint, if it did.
func RowOf(endpoint scheduling.Endpoint) (*Row, bool) {
	value, _ := endpoint.Get(Key)
	row, ok := value.(*Row)
	return row, ok && row != nil
}
