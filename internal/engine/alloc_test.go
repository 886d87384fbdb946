//go:build !race

// The race detector makes sync.Pool drop values at random.

package engine

import (
	"testing"
	"time"
)

// TestAPageNeedsFewAllocations: a picker reads thousands of pages a second, and
// what they leave behind is the collector's load. A first page says of most
// fields why they have no value; the next ones say it again in the same words.
func TestAPageNeedsFewAllocations(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		most  float64
	}{{"steady", time.Second, 30}, {"hot", 200 * time.Millisecond, 12}} {
		e := busyEndpoint(t)
		e.settle(t, c.after)
		if got := testing.AllocsPerRun(50, func() { e.read(t, c.after) }); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", c.name, got, c.most)
		}
	}
}
