package host

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// told is a watch whose lines the test reads.
type told struct {
	*rig
	*loadWatch
	lines *observer.ObservedLogs
}

func watchLoads(t *testing.T, n int) *told {
	core, lines := observer.New(zapcore.DebugLevel)
	r := newRig(t, "")
	var specs []pool.Spec
	for i := range n {
		specs = append(specs, endpoint(i+1, at(fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250+1))))
	}
	r.update(specs...)
	return &told{r, newLoadWatch(r.metrics.fleet, zap.New(core)), lines}
}

// mustTell looks and checks the lines that come of it, each with its level and members
// as "warn load readings are lost {...}".
func (w *told) mustTell(when string, want ...string) {
	w.t.Helper()
	w.look()
	var got []string
	for _, line := range w.lines.TakeAll() {
		members, err := json.Marshal(line.ContextMap())
		if err != nil {
			w.t.Fatal(err)
		}
		got = append(got, line.Level.String()+" "+line.Message+" "+string(members))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("%s:\ntold %s\nwant %s", when, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestALoadReadingThatIsLostIsToldOnceAndOnceThatItIsBack(t *testing.T) {
	w := watchLoads(t, 2)
	good := func() {
		w.publish("r1", load{1, 2, 0.5}, 10*time.Second)
		w.publish("r2", load{1, 2, 0.5}, time.Hour)
	}
	w.mustTell("before anything was read")
	good()
	w.mustTell("when all is there for the first time")
	w.mustTell("when nothing has changed")

	w.clock.pass(10 * time.Second)
	w.live("r1").ScrapeFailed("status_404")
	const all = `"fields":["queueDepth","activeRequests","kvCacheUtilization"]`
	w.mustTell("when the page is gone and the readings have expired",
		`warn load readings are lost {"cause":"page_unread","endpoint":"r1",`+all+`,"reason":"status_404","state":"stale"}`)
	w.mustTell("while they are lost")
	w.live("r1").ScrapeFailed("timeout")
	w.mustTell("when the page is lost for another reason, which the collector tells")
	good()
	w.mustTell("when they are back", `info load readings are back {"endpoint":"r1",`+all+`}`)
	w.mustTell("while they are there")

	w.publish("r1", load{-1, 2, 0.5}, time.Hour, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{Support: telemetry.SupportUnknown}, "vllm:num_requests_waiting is not on the page")
	})
	w.mustTell("when one field is not on the page any more",
		`warn load readings are lost {"cause":"absent","endpoint":"r1","fields":["queueDepth"],"reason":"vllm:num_requests_waiting is not on the page","state":"missing"}`)
	w.publish("r1", load{-1, 2, 0.5}, time.Hour, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{Recorded: telemetry.Invalid, Support: telemetry.Supported}, "value -1: want a finite number of at least 0")
	})
	w.mustTell("when it is there again and cannot be true",
		`warn load readings are lost {"cause":"invalid","endpoint":"r1","fields":["queueDepth"],"reason":"value -1: want a finite number of at least 0","state":"invalid"}`)
	good()
	w.mustTell("when it is back", `info load readings are back {"endpoint":"r1","fields":["queueDepth"]}`)

	frozen := func(s *telemetry.Snapshot) {
		for _, f := range telemetry.LoadFields {
			r := because(s.Readings[f], "an estimate", "frozen: no value on the page moved for 11s although it says that the engine works")
			r.Recorded = telemetry.Stale
			s.Readings[f] = r
		}
	}
	w.publish("r1", load{1, 2, 0.5}, time.Hour, frozen)
	w.mustTell("when the page is frozen",
		`warn load readings are lost {"cause":"frozen","endpoint":"r1",`+all+`,"reason":"frozen: no value on the page moved for 11s although it says that the engine works","state":"stale"}`)
}

// M14: an engine without an optional family is told of in no line, however often it is
// looked at.
func TestM14_AFieldThatAReplicaNeverGaveIsNotTold(t *testing.T) {
	w := watchLoads(t, 1)
	for range 1000 {
		w.clock.pass(5 * time.Second)
		w.publish("r1", load{1, 2, -1}, 10*time.Second, func(s *telemetry.Snapshot) {
			s.Readings[telemetry.KVCacheUtilization] = because(telemetry.Reading{Support: telemetry.Unsupported}, "no family tells it")
		})
		w.mustTell("a page without an optional field")
	}
	// Nor is a replica that was never read: the collector says why not.
	w.update(endpoint(1), endpoint(2))
	w.live("r2").ScrapeFailed("refused")
	w.mustTell("a replica that was never read")
}

func TestAReadingThatIsBadFromTheStartIsTold(t *testing.T) {
	w := watchLoads(t, 1)
	w.publish("r1", load{-1, 2, 0.5}, time.Hour, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.QueueDepth] = because(telemetry.Reading{Recorded: telemetry.Invalid}, "value NaN: want a finite number of at least 0")
	})
	w.mustTell("the first page",
		`warn load readings are lost {"cause":"invalid","endpoint":"r1","fields":["queueDepth"],"reason":"value NaN: want a finite number of at least 0","state":"invalid"}`)
}

// P6: one aggregated line, and never more than one in a second on average, whatever
// happens to how many.
func TestP6_AFleetThatLosesItsReadingsIsOneLine(t *testing.T) {
	const n = 600
	w := watchLoads(t, n)
	all := func(upTo int) {
		for i := range upTo {
			w.publish(fmt.Sprintf("r%d", i+1), load{1, 2, 0.5}, 10*time.Second)
		}
	}
	all(n)
	w.mustTell("the first pages")
	w.clock.pass(10 * time.Second)
	for i := range n {
		if i%3 == 0 {
			w.live(fmt.Sprintf("r%d", i+1)).ScrapeFailed("timeout")
		}
	}
	w.mustTell("when all are lost",
		`warn load readings of replicas are lost {"causes":{"expired":400,"page_unread":200},"endpoints":600,"forExample":["r1","r2","r3"],"of":600,"reason":"timeout"}`)
	w.mustTell("while all are lost")
	all(5)
	w.mustTell("when five are back", `info load readings of replicas are back {"endpoints":5,"forExample":["r1","r2","r3"],"of":600}`)
	all(n)
	w.mustTell("when the others are back", `info load readings of replicas are back {"endpoints":595,"forExample":["r6","r7","r8"],"of":600}`)
	for range 20 {
		// Half of them flap at each look.
		w.clock.pass(10 * time.Second)
		w.look()
		all(n / 2)
		w.look()
	}
	if lines := w.lines.TakeAll(); len(lines) > 2*20 {
		t.Errorf("%d lines of 40 looks at a fleet that flaps, want one for each at most", len(lines))
	}
}

func TestReplicasThatComeAndGoAreNotTold(t *testing.T) {
	w := watchLoads(t, 2)
	w.publish("r1", load{1, 2, 0.5}, 10*time.Second)
	w.publish("r2", load{1, 2, 0.5}, 10*time.Second)
	w.mustTell("both are there")
	w.clock.pass(20 * time.Second)
	w.update(endpoint(1, at("10.0.0.1:8000"), notReady), endpoint(2, at("10.0.0.2:8000"), terminating))
	w.mustTell("one is not ready and one about to end")
	w.update(endpoint(1, at("10.0.0.9:8000")))
	w.mustTell("both are gone, and another one has come")
	if len(w.seen) != 1 {
		t.Errorf("%d endpoints are remembered of a pool of one", len(w.seen))
	}
}

func TestWithoutTelemetryNothingIsLost(t *testing.T) {
	w := watchLoads(t, 1)
	w.publish("r1", load{1, 2, 0.5}, time.Second)
	w.mustTell("it is there")
	w.clock.pass(time.Minute)
	w.metrics.fleet.policy = func() *policy.Policy {
		off := *w.decider.active.Load().policy
		off.Telemetry.Mode = v1alpha1.TelemetryNone
		return &off
	}
	w.mustTell("telemetry was switched off")
}

func TestTheWatchLooksAtEachTickUntilItsEnd(t *testing.T) {
	w := watchLoads(t, 1)
	w.publish("r1", load{1, 2, 0.5}, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	ticks, ended := make(chan time.Time), make(chan struct{})
	go func() {
		defer close(ended)
		w.follow(ctx, ticks)
	}()
	ticks <- epoch
	ticks <- epoch // the first look is over
	w.clock.pass(time.Minute)
	ticks <- epoch
	cancel()
	<-ended
	if n := w.lines.FilterMessage("load readings are lost").Len(); n != 1 {
		t.Errorf("%d lines, want one", n)
	}
}
