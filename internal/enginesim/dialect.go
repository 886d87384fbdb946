package enginesim

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// Dialect is how one kind of engine shows its state. Implementations keep no state of their own and are safe for concurrent use.
type Dialect interface {
	// Version is what /version says.
	Version() string
	// HasPage says whether this kind of engine has a telemetry page at a path.
	HasPage(path string) bool
	// Page returns the telemetry page at a path for which HasPage is true.
	Page(path string, s State) Page
}

// Page is a telemetry page.
type Page struct {
	ContentType string
	Body        []byte
}

// State is everything that a page can be made from, at one instant.
type State struct {
	// Model is the first served name.
	Model string
	// MaxModelLen is in tokens.
	MaxModelLen int
	Engine      enginemodel.Config
	Stats       enginemodel.Stats
	// Started is when the process started, Now when the state was read.
	Started, Now time.Time

	// Latencies in seconds. TTFT and E2E are measured from arrival; Queue is the time until the first admission; ITL has one
	// value per token after the first, TPOT their mean for each finished request with two tokens or more. E2E, TPOT and
	// Queue have values of finished requests only.
	TTFT, ITL, TPOT, E2E, Queue Histogram
}

// Histogram counts values by size.
type Histogram struct {
	// Bounds are the upper bounds of the buckets, inclusive and ascending; a last bucket without a bound follows.
	Bounds []float64
	// Counts holds the values in each bucket alone, one more than there are bounds.
	Counts []uint64
	Sum    float64
}

func newHistogram(bounds []float64) Histogram {
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (h *Histogram) observe(d time.Duration) {
	v := d.Seconds()
	i, _ := slices.BinarySearch(h.Bounds, v)
	h.Counts[i]++
	h.Sum += v
}

func (h *Histogram) clone() Histogram {
	return Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts), Sum: h.Sum}
}
