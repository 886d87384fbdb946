package telemetry

import "testing"

// BenchmarkReadingAField is what a decision does for each candidate and load
// field: take the value and judge its state.
func BenchmarkReadingAField(b *testing.B) {
	s := &Snapshot{}
	s.Readings[QueueDepth] = Reading{Value: 3, Recorded: Fresh, ExpiresAt: expires}
	b.ReportAllocs()
	sum := 0.0
	for b.Loop() {
		r := &s.Readings[QueueDepth]
		if r.State(observed) == Fresh {
			sum += r.Value
		}
	}
	if sum == 0 {
		b.Fatal("nothing was read")
	}
}

func TestReadingAFieldAllocatesNothing(t *testing.T) {
	s := &Snapshot{}
	s.Readings[QueueDepth] = Reading{Value: 3, Recorded: Fresh, ExpiresAt: expires}
	sum := 0.0
	allocs := testing.AllocsPerRun(100, func() {
		if r := &s.Readings[QueueDepth]; r.State(observed) == Fresh {
			sum += r.Value
		}
	})
	if allocs != 0 || sum == 0 {
		t.Errorf("%v allocations for a sum of %v, want none for more than 0", allocs, sum)
	}
}
