package host

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// gauges are the picker's own series of a name that are not 0, by the values of their
// labels, in the order of the labels' names.
func (r *rig) gauges(name string) map[string]float64 {
	r.t.Helper()
	families, err := r.metrics.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if v := m.GetGauge().GetValue(); v != 0 {
				all[strings.Join(values, " ")] = v
			}
		}
	}
	return all
}

func kind(engine string) func(*pool.Spec) { return func(s *pool.Spec) { s.Engine = engine } }

// underPolicy has the rig's gauges follow its policy, as a host's do.
func (r *rig) underPolicy() {
	r.metrics.fleet.policy = func() *policy.Policy { return r.decider.active.Load().policy }
}

func TestHalfAFleetWithoutTelemetryShowsWhichHalfAndWhy(t *testing.T) {
	r := newRig(t, "")
	r.underPolicy()
	r.update(endpoint(1, kind("vllm")), endpoint(2, kind("vllm")), endpoint(3, kind("vllm")), endpoint(4, kind("vllm")),
		endpoint(5, kind("sglang")), endpoint(6, kind("sglang")), endpoint(7), endpoint(8, kind("no-such-engine")))
	ofSGLang := func(s *telemetry.Snapshot) { s.Engine, s.Profile = "sglang", "sglang@sha256:0123456789ab" }
	// r1 is well, r2 has expired since its page hangs, r3's queue cannot be true, r4's is
	// frozen, r5 has lost a family and r6 its page; r7 and r8 were never asked.
	r.publish("r1", load{1, 2, 0.5}, time.Hour)
	r.publish("r2", load{1, 2, 0.5}, time.Second)
	r.publish("r3", load{-1, 2, 0.5}, time.Hour, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{Recorded: telemetry.Invalid}, "value -1: want a finite number of at least 0")
	})
	r.publish("r4", load{1, 2, 0.5}, time.Hour, func(s *telemetry.Snapshot) {
		for _, f := range telemetry.LoadFields {
			s.Readings[f] = because(s.Readings[f], "frozen: no value on the page moved for 11s although it says that the engine works")
			s.Readings[f].Recorded = telemetry.Stale
		}
	})
	r.publish("r5", load{-1, 2, 0.5}, time.Hour, ofSGLang, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{}, "sglang:num_queue_reqs is not on the page")
	})
	r.publish("r6", load{1, 2, 0.5}, time.Second, ofSGLang)
	r.clock.pass(time.Second)
	r.live("r2").ScrapeFailed("timeout")
	r.live("r6").ScrapeFailed("status_404")

	for name, want := range map[string]map[string]float64{
		"berth_last_scrapes": {"vllm ok": 3, "vllm timeout": 1, "sglang ok": 1, "sglang status_404": 1, "unknown none": 2},
	} {
		if got := r.gauges(name); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	of := func(name string, field telemetry.Field) map[string]float64 {
		all := map[string]float64{}
		for labels, n := range r.gauges(name) {
			// Of berth_readings the field comes first, of berth_unfresh_readings last.
			first, second, _ := strings.Cut(labels, " ")
			switch field.String() {
			case first:
				all[second] = n
			case second:
				all[first] = n
			}
		}
		return all
	}
	for _, tt := range []struct {
		field          telemetry.Field
		states, causes map[string]float64
	}{
		{telemetry.QueueDepth,
			map[string]float64{"fresh": 1, "stale": 3, "invalid": 1, "missing": 3},
			map[string]float64{"page_unread": 2, "frozen": 1, "invalid": 1, "absent": 1, "not_read": 2}},
		{telemetry.ActiveRequests,
			map[string]float64{"fresh": 3, "stale": 3, "missing": 2},
			map[string]float64{"page_unread": 2, "frozen": 1, "not_read": 2}},
		// vLLM has a page for it, which nobody has asked for here. SGLang's costs a token,
		// and its profile has none.
		{telemetry.Health,
			map[string]float64{"missing": 8}, map[string]float64{"not_read": 5, "page_unread": 1, "no_source": 2}},
		// Neither names it: an exporter would.
		{telemetry.Power,
			map[string]float64{"missing": 8}, map[string]float64{"no_source": 6, "not_read": 2}},
	} {
		if got := of("berth_readings", tt.field); !maps.Equal(got, tt.states) {
			t.Errorf("states of %s: %v, want %v", tt.field, got, tt.states)
		}
		if got := of("berth_unfresh_readings", tt.field); !maps.Equal(got, tt.causes) {
			t.Errorf("causes of %s: %v, want %v", tt.field, got, tt.causes)
		}
	}
}

func TestEachReplicaIsCountedOnceForEachFieldAndForItsLastScrape(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1), endpoint(2, kind("vllm"), notReady), endpoint(3, terminating))
	r.publish("r1", load{1, 2, 0.5}, time.Second)
	for range 2 {
		states, scrapes := map[string]float64{}, 0.0
		for labels, n := range r.gauges("berth_readings") {
			field, state, _ := strings.Cut(labels, " ")
			states[field] += n
			if state != "fresh" {
				states["unfresh "+field] += n
			}
		}
		causes := map[string]float64{}
		for labels, n := range r.gauges("berth_unfresh_readings") {
			_, field, _ := strings.Cut(labels, " ")
			causes[field] += n
		}
		for _, n := range r.gauges("berth_last_scrapes") {
			scrapes += n
		}
		if scrapes != 3 {
			t.Errorf("%v last scrapes of 3 replicas", scrapes)
		}
		for f := range telemetry.NumFields {
			if states[f.String()] != 3 {
				t.Errorf("%v readings of %s of 3 replicas", states[f.String()], f)
			}
			if causes[f.String()] != states["unfresh "+f.String()] {
				t.Errorf("%v readings of %s are not fresh, and there are causes of %v", states["unfresh "+f.String()], f, causes[f.String()])
			}
		}
		r.clock.pass(time.Hour)
	}
}

// A metric has one series per state, whatever replicas are called, however many come and
// go, and whatever they answer.
func TestNoNameOfAReplicaBecomesASeries(t *testing.T) {
	r := newRig(t, "")
	r.underPolicy()
	series := func() int {
		families, err := r.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, family := range families {
			if !strings.HasPrefix(family.GetName(), "berth_") {
				continue
			}
			n += len(family.GetMetric())
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if strings.Contains(l.GetValue(), "churn") {
						t.Fatalf("%s has the label %s=%q", family.GetName(), l.GetName(), l.GetValue())
					}
				}
			}
		}
		return n
	}
	churn := func(i int) {
		name := fmt.Sprintf("churn-%d", i)
		r.update(endpoint(1, func(s *pool.Spec) { s.Name, s.Engine = name, fmt.Sprintf("churn-engine-%d", i) }),
			endpoint(2, func(s *pool.Spec) { s.Name = name + "b" }))
		r.publish(name+"b", load{1, 2, 0.5}, time.Second, func(s *telemetry.Snapshot) {
			s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{}, "a reason with the text churn")
		})
		r.live(name).ScrapeFailed("status_404")
	}
	churn(0)
	before := series()
	for i := range 1000 {
		churn(i)
	}
	if after := series(); after != before {
		t.Errorf("%d series before 1,000 replicas have come and gone, %d after", before, after)
	}
}

func TestWhatDoesNotHappenIsZero(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	r.publish("r1", load{1, 2, 0.5}, time.Hour)
	families, err := r.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, family := range families {
		got[family.GetName()] = len(family.GetMetric())
	}
	// 30 fields in 4 states and of 13 causes; of the one engine, ok, none and the 17
	// reasons that are no status.
	for name, want := range map[string]int{"berth_readings": 120, "berth_unfresh_readings": 390, "berth_last_scrapes": 19} {
		if got[name] != want {
			t.Errorf("%s has %d series, want %d", name, got[name], want)
		}
	}
}

func TestWithoutTelemetryNothingWasScraped(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1, kind("vllm")), endpoint(2))
	r.publish("r1", load{1, 2, 0.5}, time.Hour)
	r.live("r2").ScrapeFailed("timeout")
	r.metrics.fleet.policy = func() *policy.Policy {
		off := *r.decider.active.Load().policy
		off.Telemetry.Mode = v1alpha1.TelemetryNone
		return &off
	}
	if got, want := r.gauges("berth_last_scrapes"), (map[string]float64{"vllm none": 1, "unknown none": 1}); !maps.Equal(got, want) {
		t.Errorf("last scrapes: %v, want %v", got, want)
	}
	for labels, n := range r.gauges("berth_unfresh_readings") {
		if !strings.HasPrefix(labels, "not_read ") || n != 2 {
			t.Errorf("unfresh readings: %s is %v, want not_read alone, 2 of each", labels, n)
		}
	}
}

func BenchmarkFleet(b *testing.B) {
	const n = 5000
	r := newRig(b, "")
	r.underPolicy()
	var specs []pool.Spec
	for i := range n {
		specs = append(specs, endpoint(i+1, at(fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1))))
	}
	r.update(specs...)
	publish := func(ttl time.Duration) {
		set := r.pools.Set()
		for _, e := range set.Endpoints {
			s := &telemetry.Snapshot{Engine: "vllm", ScrapedAt: r.clock.read()}
			for _, f := range telemetry.LoadFields {
				s.Readings[f] = telemetry.Reading{Recorded: telemetry.Fresh, ExpiresAt: r.clock.read().Add(ttl), Detail: &telemetry.Detail{}}
			}
			e.Publish(s, e.BeginScrape())
		}
	}
	publish(time.Hour)
	b.Run("count", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.metrics.fleet.count()
		}
	})
	for _, state := range []string{"fresh", "lost"} {
		b.Run("watch "+state, func(b *testing.B) {
			b.ReportAllocs()
			w := newLoadWatch(r.metrics.fleet, zap.NewNop())
			w.look()
			if state == "lost" {
				r.clock.pass(2 * time.Hour)
				w.look()
			}
			for b.Loop() {
				w.look()
			}
		})
	}
}
