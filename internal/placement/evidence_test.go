package placement

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

const now telemetry.Instant = 1000e9

func setOf(t testing.TB, names ...string) *pool.Set {
	t.Helper()
	r := pool.NewRegistry("default/pool", false)
	var specs []pool.Spec
	for i, name := range names {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		specs = append(specs, pool.Spec{Name: name, Address: address, Ready: true})
	}
	if err := r.Update("default/pool", specs); err != nil {
		t.Fatal(err)
	}
	return r.Set()
}

func TestGatheringReadsOneRowPerSlot(t *testing.T) {
	set := setOf(t, "never-scraped", "left-out", "known")
	known := set.Endpoints[2]
	known.Answered()
	known.Take(now)
	mark := known.BeginScrape()
	known.Take(now)
	page := &telemetry.Snapshot{}
	page.Readings[telemetry.QueueDepth] = telemetry.Reading{Value: 4, Recorded: telemetry.Fresh, ExpiresAt: now + 1}
	page.Readings[telemetry.ActiveRequests] = telemetry.Reading{Value: 8, Recorded: telemetry.Fresh, ExpiresAt: now}
	page.Readings[telemetry.KVCacheUtilization] = telemetry.Reading{Recorded: telemetry.Invalid}
	known.Publish(page, mark)
	known.Observe(300*time.Millisecond, now.Add(-OutcomeWindow))
	set.Endpoints[0].Observe(time.Second, now.Add(-OutcomeWindow)-1)

	ev := evidence(5) // rows of an earlier decision
	ev.Gather(set, []int32{2, 0}, now)
	if ev.Len() != 2 {
		t.Fatalf("%d rows, want 2", ev.Len())
	}
	row := func(row int) string {
		s := fmt.Sprintf("last %v, in flight %d, pending %d, latency %v", ev.Last[row], ev.InFlight[row], ev.Pending[row], ev.Latency[row])
		for i := range ev.Load {
			s += fmt.Sprintf(", %v %s", ev.Load[i].Value[row], ev.Load[i].State[row])
		}
		return s
	}
	for i, want := range []string{
		"last false, in flight 2, pending 1, latency 0.3, 4 fresh, 8 stale, 0 invalid",
		"last true, in flight 0, pending 0, latency NaN, 0 missing, 0 missing, 0 missing",
	} {
		if got := row(i); got != want {
			t.Errorf("row %d:\ngot  %s\nwant %s", i, got, want)
		}
	}
	if ev.Hash[0] != known.Hash || ev.Hash[1] != set.Endpoints[0].Hash {
		t.Error("hashes are not those of slots 2 and 0")
	}
}

func TestGatheringNobodyMakesNoRows(t *testing.T) {
	ev := evidence(3)
	ev.Gather(setOf(t, "a"), nil, now)
	if ev.Len() != 0 || len(ev.Latency) != 0 || len(ev.Load[0].Value) != 0 {
		t.Errorf("%d rows", ev.Len())
	}
}

func TestResettingGrowsEveryColumn(t *testing.T) {
	var ev Evidence
	for _, n := range []int{3, 100, 0, 7} {
		ev.Reset(n)
		lengths := []int{ev.Len(), len(ev.Hash), len(ev.Last), len(ev.InFlight), len(ev.Pending), len(ev.Latency)}
		for i := range ev.Load {
			lengths = append(lengths, len(ev.Load[i].Value), len(ev.Load[i].State))
		}
		for _, got := range lengths {
			if got != n {
				t.Errorf("Reset(%d): columns have %v rows", n, lengths)
				break
			}
		}
	}
}

func TestLatencyCountsForTheOutcomeWindow(t *testing.T) {
	set := setOf(t, "a")
	set.Endpoints[0].Observe(time.Second, now)
	for _, tc := range []struct {
		after time.Duration
		known bool
	}{
		{0, true}, {OutcomeWindow, true}, {OutcomeWindow + 1, false}, {time.Hour, false},
	} {
		var ev Evidence
		ev.Gather(set, []int32{0}, now.Add(tc.after))
		if known := !math.IsNaN(ev.Latency[0]); known != tc.known {
			t.Errorf("%v after the outcome: known %v, want %v", tc.after, known, tc.known)
		}
	}
}
