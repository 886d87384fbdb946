package pool

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestReadLoadTellsEachStateApart(t *testing.T) {
	const now = telemetry.Instant(100)
	for _, tc := range []struct {
		name    string
		reading telemetry.Reading
		want    telemetry.State
	}{
		{"never read", telemetry.Reading{}, telemetry.Missing},
		{"invalid", telemetry.Reading{Recorded: telemetry.Invalid, ExpiresAt: 200}, telemetry.Invalid},
		{"fresh", telemetry.Reading{Recorded: telemetry.Fresh, ExpiresAt: 101}, telemetry.Fresh},
		{"expired", telemetry.Reading{Recorded: telemetry.Fresh, ExpiresAt: 100}, telemetry.Stale},
		{"without expiry", telemetry.Reading{Recorded: telemetry.Fresh}, telemetry.Fresh},
		{"judged stale", telemetry.Reading{Recorded: telemetry.Stale, ExpiresAt: 200}, telemetry.Stale},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLive(false, &shared{})
			tc.reading.Value = 7
			s := &telemetry.Snapshot{}
			s.Readings[telemetry.KVCacheUtilization] = tc.reading
			l.Publish(s, l.BeginScrape())
			var load Load
			l.ReadLoad(now, &load)
			if load.State[2] != tc.want || load.State[2] != tc.reading.State(now) {
				t.Errorf("state %v, want %v, and the reading itself says %v", load.State[2], tc.want, tc.reading.State(now))
			}
			if load.Value[2] != 7 {
				t.Errorf("value %v, want 7", load.Value[2])
			}
			if load.State[0] != telemetry.Missing {
				t.Errorf("another field is %v, want missing", load.State[0])
			}
		})
	}
}

// A decision never sees a part of one scrape beside a part of another.
func TestReadLoadIsOfOneSnapshot(t *testing.T) {
	l := newLive(false, &shared{})
	publish := func(v float64) {
		s := &telemetry.Snapshot{}
		for _, f := range telemetry.LoadFields {
			s.Readings[f] = telemetry.Reading{Value: v, Recorded: telemetry.Fresh, ExpiresAt: telemetry.Instant(v)}
		}
		l.Publish(s, l.BeginScrape())
	}
	publish(1)
	const rounds = 20000
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		for i := range rounds {
			publish(float64(i + 2))
		}
	}()
	for range rounds {
		var load Load
		l.ReadLoad(0, &load)
		if load.Value[0] != load.Value[1] || load.Value[1] != load.Value[2] {
			t.Fatalf("values %v are of several snapshots", load.Value)
		}
	}
	writer.Wait()
}

func TestEqualServedSetsAreOneValue(t *testing.T) {
	r := NewRegistry("p", false)
	specs := []Spec{
		{Name: "a", Address: netip.MustParseAddrPort("10.0.0.1:1"), ServedModels: []string{"m", "n"}},
		{Name: "b", Address: netip.MustParseAddrPort("10.0.0.2:1"), ServedModels: []string{"m", "n"}},
		{Name: "c", Address: netip.MustParseAddrPort("10.0.0.3:1"), ServedModels: []string{"m"}},
		{Name: "d", Address: netip.MustParseAddrPort("10.0.0.4:1")},
	}
	if err := r.Update("p", specs); err != nil {
		t.Fatal(err)
	}
	set := r.Set()
	declared := func(slot int) *ServedSet {
		_, set := set.Served(slot)
		return set
	}
	if declared(0) != declared(1) {
		t.Error("equal sets are two values")
	}
	if declared(0) == declared(2) {
		t.Error("different sets are one value")
	}
	if declared(3) != nil {
		t.Error("an undeclared set is not nil")
	}
	// What engines say is shared in the same way.
	s := &telemetry.Snapshot{}
	s.Readings[telemetry.ServedModels] = telemetry.Reading{
		Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: []string{"m"}},
	}
	e := set.Endpoints[0]
	e.Publish(s, e.BeginScrape())
	if said, _ := set.Served(0); said != declared(2) {
		t.Error("the set that the engine stated is not the equal declared one")
	}
}

func TestAdaptersCountAsServedNames(t *testing.T) {
	names := func(names ...string) telemetry.Reading {
		return telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: names}}
	}
	e := newEndpoint("", Spec{}, newLive(false, &shared{}))
	s := &telemetry.Snapshot{}
	s.Readings[telemetry.AdaptersLoaded] = names("sql-lora")
	e.Publish(s, e.BeginScrape())
	if e.Serving("sql-lora") != ServingUnknown {
		t.Error("adapters alone are not a served set")
	}
	s = &telemetry.Snapshot{}
	s.Readings[telemetry.ServedModels] = names("base")
	s.Readings[telemetry.AdaptersLoaded] = names("sql-lora")
	e.Publish(s, e.BeginScrape())
	for model, want := range map[string]Serving{"base": Serves, "sql-lora": Serves, "other": ServesOthers} {
		if got := e.Serving(model); got != want {
			t.Errorf("Serving(%q) = %v, want %v", model, got, want)
		}
	}
}
