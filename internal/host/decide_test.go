package host

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

func notReady(s *pool.Spec)    { s.Ready = false }
func terminating(s *pool.Spec) { s.Terminating = true }

func TestRefusalsTellTheTruth(t *testing.T) {
	ok := `{"model":"m","messages":[]}`
	tests := []struct {
		name      string
		endpoints []pool.Spec
		prepare   func(*rig)
		request   func(*extproc.Request)
		body      string
		status    int
		reason    string
		retry     bool
	}{
		{name: "an empty pool", body: ok, status: 503, reason: "pool_empty", retry: true},
		{
			name: "a subset of others", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			request: func(r *extproc.Request) { r.Subset = screen.SplitSubset("10.9.9.9:8000") },
			status:  503, reason: "subset_empty", retry: true,
		},
		{
			name: "a subset that names nobody", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			request: func(r *extproc.Request) { r.Subset = screen.NewSubset(nil) },
			status:  503, reason: "subset_empty", retry: true,
		},
		{
			name: "a model that nobody serves", endpoints: []pool.Spec{endpoint(1, serving("a")), endpoint(2, serving("b"))},
			body: ok, status: 404, reason: "model_unserved",
		},
		{
			name: "a pool that is not ready", endpoints: []pool.Spec{endpoint(1, notReady), endpoint(2, terminating)},
			body: ok, status: 503, reason: "unhealthy", retry: true,
		},
		{
			name: "a pool that sleeps", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			prepare: func(r *rig) { r.publish("r1", load{0, 0, 0}, 0, asleep) },
			status:  503, reason: "unhealthy", retry: true,
		},
		{
			name: "a pool that says it is unhealthy", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			prepare: func(r *rig) { r.publish("r1", load{0, 0, 0}, 0, unhealthy) },
			status:  503, reason: "unhealthy", retry: true,
		},
		{
			name: "the model is served only where nobody is ready", body: ok,
			endpoints: []pool.Spec{endpoint(1, serving("m"), notReady), endpoint(2, serving("b"))},
			status:    503, reason: "unhealthy", retry: true,
		},
		{name: "a body that is no object", endpoints: []pool.Spec{endpoint(1)}, body: `[]`, status: 400, reason: "body_malformed"},
		{name: "a body that breaks off", endpoints: []pool.Spec{endpoint(1)}, body: `{"model":"m"`, status: 400, reason: "body_malformed"},
		{name: "a model that is a number", endpoints: []pool.Spec{endpoint(1)}, body: `{"model":7}`, status: 400, reason: "body_malformed"},
		{
			name: "two models", endpoints: []pool.Spec{endpoint(1)}, body: `{"model":"m","model":"n"}`,
			status: 400, reason: "model_ambiguous",
		},
		{
			name: "a routing intent", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			request: func(r *extproc.Request) { r.IntentMetadata = map[string]any{"logicModel": "m"} },
			status:  400, reason: "intent_malformed",
		},
		{
			name: "a routing intent beside a body that is malformed", endpoints: []pool.Spec{endpoint(1)}, body: `x`,
			request: func(r *extproc.Request) { r.IntentMetadata = map[string]any{"intent": true} },
			status:  400, reason: "intent_malformed",
		},
		{
			name: "a decision after its deadline", endpoints: []pool.Spec{endpoint(1)}, body: ok,
			prepare: func(r *rig) { r.clock.step.Store(int64(time.Second)) },
			status:  504, reason: "deadline",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "")
			r.update(tt.endpoints...)
			req := r.request(tt.body)
			if tt.prepare != nil {
				tt.prepare(r)
			}
			if tt.request != nil {
				tt.request(req)
			}
			d, refusal := r.decider.begin().Decide(req)
			r.clock.step.Store(0)
			if d != nil || refusal == nil {
				t.Fatalf("decision %v, refusal %v: want a refusal alone", d, refusal)
			}
			if refusal.Status != tt.status || refusal.Reason != tt.reason || (refusal.RetryAfter > 0) != tt.retry {
				t.Errorf("refused with %d %s, retry after %s; want %d %s, retry %t",
					refusal.Status, refusal.Reason, refusal.RetryAfter, tt.status, tt.reason, tt.retry)
			}
			if refusal.Message == "" || strings.Contains(refusal.Message, "10.0.0.") || strings.Contains(refusal.Message, "r1") {
				t.Errorf("message %q: must say why and name no replica", refusal.Message)
			}
			rec, ok := r.ledger.Find(refusal.DecisionID)
			if !ok {
				t.Fatalf("no record of decision %q", refusal.DecisionID)
			}
			if rec.Rung != "refuse" || rec.Refusal == nil || rec.Refusal.Reason != tt.reason || rec.Pick != "" || rec.Outcome != nil {
				t.Errorf("record says rung %s, refusal %+v, pick %q, outcome %v", rec.Rung, rec.Refusal, rec.Pick, rec.Outcome)
			}
			if got := r.sample("berth_refusals_total", tt.reason); got != 1 {
				t.Errorf("%v refusals were counted, want 1", got)
			}
			if got := r.sample("berth_decisions_total", "native", "refuse"); got != 1 {
				t.Errorf("%v refused decisions were counted, want 1", got)
			}
			for _, e := range r.pools.Set().Endpoints {
				if e.InFlight() != 0 {
					t.Errorf("a refused request holds a unit at %s", e.Name)
				}
			}
			if got := r.sample("berth_inflight_requests"); got != 0 {
				t.Errorf("%v requests in flight after a refusal", got)
			}
		})
	}
}

func TestRequestsThatArePlaced(t *testing.T) {
	tests := []struct {
		name      string
		endpoints []pool.Spec
		request   func(*extproc.Request)
		body      string
		pick      string
	}{
		{name: "by the model that it names", endpoints: []pool.Spec{endpoint(1, serving("a")), endpoint(2, serving("m"))},
			body: `{"model":"m"}`, pick: "10.0.0.2:8000"},
		{name: "where what is served is unknown", endpoints: []pool.Spec{endpoint(1, serving("a")), endpoint(2)},
			body: `{"model":"m"}`, pick: "10.0.0.2:8000"},
		{name: "without a model", endpoints: []pool.Spec{endpoint(1, serving("a"))}, body: `{}`, pick: "10.0.0.1:8000"},
		{name: "with a compressed body", endpoints: []pool.Spec{endpoint(1, serving("a"))}, body: "\x1f\x8b",
			request: func(r *extproc.Request) { r.ContentEncoding = "gzip" }, pick: "10.0.0.1:8000"},
		{name: "to another path, whatever the body", endpoints: []pool.Spec{endpoint(1, serving("a"))}, body: `{"model":"m"`,
			request: func(r *extproc.Request) { r.Path = "/v1/anything/else" }, pick: "10.0.0.1:8000"},
		{name: "within the gateway's subset", endpoints: []pool.Spec{endpoint(1), endpoint(2), endpoint(3)}, body: `{}`,
			request: func(r *extproc.Request) { r.Subset = screen.SplitSubset("10.0.0.2:8000") }, pick: "10.0.0.2:8000"},
		{name: "to an IPv6 address, in brackets", endpoints: []pool.Spec{endpoint(1, at("[fd00::1]:8000"))}, body: `{}`,
			pick: "[fd00::1]:8000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "")
			r.update(tt.endpoints...)
			req := r.request(tt.body)
			if tt.request != nil {
				tt.request(req)
			}
			f := r.place(req)
			if f.Destination() != tt.pick {
				t.Errorf("destination %s, want %s", f.Destination(), tt.pick)
			}
			if got := r.sample("berth_inflight_requests"); got != 1 {
				t.Errorf("%v requests in flight, want 1", got)
			}
			f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
		})
	}
}

func TestFallbacksFollowThePickAndAreAllScreened(t *testing.T) {
	r := newRig(t, "gateway: {fallbacks: 4}\n")
	r.update(endpoint(1), endpoint(2, notReady), endpoint(3), endpoint(4))
	for i, queue := range []float64{2, 0, 1, 0} {
		r.publish(fmt.Sprintf("r%d", i+1), load{queue, 0, 0}, 0)
	}
	f := r.place(r.chat("m"))
	if want := "10.0.0.4:8000,10.0.0.3:8000,10.0.0.1:8000"; f.Destination() != want {
		t.Errorf("destination %s, want %s", f.Destination(), want)
	}
	f.Finish(extproc.Outcome{Cause: extproc.Complete})
}

func TestHD7_TheDestinationAndItsHeadersStayShort(t *testing.T) {
	r := newRig(t, "gateway: {fallbacks: 4}\nacknowledgement: {responseHeaders: full}\n")
	specs := make([]pool.Spec, 1000)
	for i := range specs {
		specs[i] = endpoint(1, at(fmt.Sprintf("[fd00:1111:2222:3333:4444:5555:6666:%x]:65000", i+1)))
		specs[i].Name = fmt.Sprintf("r%d", i)
	}
	r.update(specs...)
	f := r.place(r.chat("m"))
	defer f.Finish(extproc.Outcome{Cause: extproc.Complete})
	if n := len(strings.Split(f.Destination(), ",")); n != 5 {
		t.Errorf("%d destinations, want the pick and 4 fallbacks", n)
	}
	added := len(f.Destination())
	for _, h := range f.RequestHeaders() {
		added += len(h.Name) + len(h.Value)
	}
	if added >= 1<<10 {
		t.Errorf("%d bytes are added to a request, want less than 1 KiB", added)
	}
}

// The guard stands behind placement, whatever placement returns.
func TestZ8_TheGuardRefusesWhatIsOutsideTheScreenedSet(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1, notReady), endpoint(2))
	for name, ranked := range map[string][]int{
		"nobody": {}, "a row too many": {0, 1}, "a negative row": {-1},
	} {
		c := &cycle{set: r.pools.Set(), scratch: &scratch{}}
		screen.NewIndex().Screen(c.set, &screen.Request{}, screen.Rules{}, r.clock.read(), &c.screened)
		c.placed.Ranked = ranked
		if err := guard(c); err == nil {
			t.Errorf("%s: the guard let it pass", name)
		}
		c.placed.Ranked = []int{0}
		if err := guard(c); err != nil {
			t.Errorf("the only screened row: %v", err)
		}
		c.screened.Slots[0] = 0
		if err := guard(c); err == nil {
			t.Error("the guard let a slot pass that screening removed")
		}
	}
}

func TestARequestEndsUnderThePolicyThatItBeganWith(t *testing.T) {
	r := newRig(t, "gateway: {onViolation: refuse}\n")
	r.update(endpoint(1))
	f := r.place(r.chat("m"))
	lenient := newRig(t, "").decider.active.Load()
	r.decider.active.Store(lenient)
	if refusal := f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: "10.9.9.9:80"}); refusal == nil {
		t.Error("a violation passed, though the request's own policy refuses it")
	}
	f.Finish(extproc.Outcome{Cause: extproc.ServedOutside})
	f = r.place(r.chat("m"))
	if refusal := f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: "10.9.9.9:80"}); refusal != nil {
		t.Error("a violation was refused after the policy said to report it")
	}
	f.Finish(extproc.Outcome{Cause: extproc.Complete})
}

func TestHeadersThatWouldBeTrustedElsewhereAreCounted(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	req := r.chat("m")
	req.SignedIntents = []string{"forged"}
	req.Kept = []extproc.Header{{Name: "x-selected-model", Value: "m"}, {Name: "x-selected-model", Value: "n"}}
	f := r.place(req)
	f.Finish(extproc.Outcome{Cause: extproc.Complete})
	for _, name := range []string{"x-selected-model", "x-berth-intent"} {
		if got := r.sample("berth_untrusted_headers_total", name); got != 1 {
			t.Errorf("%s was counted %v times, want once", name, got)
		}
	}
}

// What a client sends makes no series.
func TestZ2_SeriesDoNotGrowWithWhatRequestsSay(t *testing.T) {
	r := newRig(t, "ledger: {ring: 10}\n")
	r.update(endpoint(1), endpoint(2, serving("m-7")))
	series := func() int {
		families, err := r.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, family := range families {
			if strings.HasPrefix(family.GetName(), "berth_") {
				n += len(family.GetMetric())
			}
		}
		return n
	}
	run := func(model, id string) {
		body, err := json.Marshal(map[string]string{"model": model})
		if err != nil {
			t.Fatal(err)
		}
		req := r.request(string(body))
		req.RequestID, req.Path = id, "/"+id+"/v1/chat/completions"
		d, refusal := r.decider.begin().Decide(req)
		if refusal != nil {
			return
		}
		d.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: "10.0.0.1:8000"})
		d.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
	}
	run("m", "warm")
	run("m\"\\\n", "malformed")
	before := series()
	for i := range 5000 {
		run(fmt.Sprintf("m-%d\"'é", i), fmt.Sprint(i))
	}
	// The rung may change as requests are observed: one series each.
	if after := series(); after > before+2 {
		t.Errorf("%d series after 5,000 models, %d before", after, before)
	}
}

func TestX23_AScorerThatPanicsLeavesNoUnitBehind(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	good := r.decider.active.Load()
	plan, err := placement.NewPlan([]placement.Scorer{{
		Name: "faulty", Weight: 1, Reads: []telemetry.Field{telemetry.QueueDepth},
		Score: func(*placement.Input, []float64) { panic("boom") },
	}}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	r.decider.active.Store(&active{policy: good.policy, plan: plan})
	r.publish("r1", load{0, 0, 0}, 0)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the fault was lost")
			}
		}()
		r.decider.begin().Decide(r.chat("m"))
	}()
	if n := r.live("r1").InFlight(); n != 0 {
		t.Errorf("%d units at r1", n)
	}
	r.decider.active.Store(good)
	f := r.place(r.chat("m"))
	f.Finish(extproc.Outcome{Cause: extproc.Complete})
}

// A request that the protocol layer refuses leaves a record like any other, and
// the client gets its id.
func TestRefusalsOfTheProtocolAreRecorded(t *testing.T) {
	r := newRig(t, "")
	req := &extproc.Request{Method: "POST", Path: "/v1/completions", RequestID: "mine"}
	refusal := &extproc.Refusal{Status: 413, Reason: "body_too_large", Message: "too large"}
	r.decider.refusedByProtocol(req, nil, refusal)
	rec, ok := r.ledger.Find(refusal.DecisionID)
	if !ok {
		t.Fatalf("no record with the id %q", refusal.DecisionID)
	}
	if rec.Rung != "refuse" || rec.Refusal == nil || rec.Refusal.Reason != "body_too_large" || rec.Request.RequestID != "mine" {
		t.Errorf("the record is %+v, refusal %+v", rec, rec.Refusal)
	}
	// One that was decided before has its record already.
	before := len(r.ledger.Newest(10))
	r.decider.refusedByProtocol(req, &inFlight{}, &extproc.Refusal{Status: 503, Reason: "shutting_down"})
	if after := len(r.ledger.Newest(10)); after != before {
		t.Errorf("%d records, want %d", after, before)
	}
}
