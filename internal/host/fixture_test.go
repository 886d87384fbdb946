package host

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins"
)

// pickerDocument is a profile with all three load scorers.
const pickerDocument = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {name: load, type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: load, weight: 1}
  - {pluginRef: berth-picker}
`

// berthDocument is a BerthConfiguration with the given members.
func berthDocument(members string) string {
	return "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n" + members
}

// viaUpstream is Envoy's code detail for a response that a replica gave.
const viaUpstream = "via_upstream"

// epoch is the time at which these tests begin.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// handClock is moved by the test; step moves it at each look.
type handClock struct{ now, step atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.now.Store(int64(telemetry.At(epoch)))
	return c
}

func (c *handClock) read() telemetry.Instant {
	return telemetry.Instant(c.now.Add(c.step.Load()))
}

func (c *handClock) pass(d time.Duration) { c.now.Add(int64(d)) }

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a decider with everything that it decides by.
type rig struct {
	t       testing.TB
	clock   *handClock
	pools   *pool.Registry
	ledger  *ledger.Ledger
	metrics *metrics
	decider *decider
}

// newRig builds a decider under the members of a BerthConfiguration.
func newRig(t testing.TB, members string) *rig {
	t.Helper()
	p, _, err := policy.Parse("berth.yaml", []byte(pickerDocument+berthDocument(members)), ".", plugins.Catalog{})
	if err != nil {
		t.Fatal(err)
	}
	act, err := activate(p)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, clock: newHandClock(), pools: pool.NewRegistry("local/demo", false)}
	r.metrics = newMetrics(r.pools, r.clock.read)
	r.ledger = ledger.New(p.Ledger.Ring, nil, func(string) {})
	r.decider = newDecider(r.pools, r.clock.read, func() time.Time { return r.clock.read().Time() }, &recorder{ledger: r.ledger}, r.metrics)
	r.decider.active.Store(act)
	return r
}

// endpoint is a ready endpoint r<n> at 10.0.0.<n>:8000.
func endpoint(n int, change ...func(*pool.Spec)) pool.Spec {
	spec := pool.Spec{
		Name:    fmt.Sprintf("r%d", n),
		Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 8000),
		Ready:   true,
	}
	for _, f := range change {
		f(&spec)
	}
	return spec
}

func at(address string) func(*pool.Spec) {
	return func(s *pool.Spec) { s.Address = netip.MustParseAddrPort(address) }
}

func serving(models ...string) func(*pool.Spec) {
	return func(s *pool.Spec) { s.ServedModels = append([]string{}, models...) }
}

func (r *rig) update(specs ...pool.Spec) {
	r.t.Helper()
	if err := r.pools.Update("local/demo", specs); err != nil {
		r.t.Fatal(err)
	}
}

// load is what an engine's page says; negative is missing.
type load struct{ queue, active, kv float64 }

// publish makes readings known of an endpoint that expire after ttl; 0 is never.
func (r *rig) publish(name string, l load, ttl time.Duration, change ...func(*telemetry.Snapshot)) {
	r.t.Helper()
	now := telemetry.Instant(r.clock.now.Load())
	s := &telemetry.Snapshot{Engine: "vllm", Profile: "vllm@sha256:0123456789ab", ScrapedAt: now}
	for f, v := range map[telemetry.Field]float64{
		telemetry.QueueDepth: l.queue, telemetry.ActiveRequests: l.active, telemetry.KVCacheUtilization: l.kv,
	} {
		if v < 0 {
			continue
		}
		reading := telemetry.Reading{
			Value: v, ObservedAt: now, Quality: 1, Support: telemetry.Supported,
			Recorded: telemetry.Fresh, Provenance: telemetry.Measured,
		}
		if ttl > 0 {
			reading.ExpiresAt = now.Add(ttl)
		}
		s.Readings[f] = reading
	}
	for _, f := range change {
		f(s)
	}
	live := r.live(name)
	live.Publish(s, live.BeginScrape())
	live.Answered()
}

func asleep(s *telemetry.Snapshot) {
	s.Readings[telemetry.Sleeping] = telemetry.Reading{Value: 1, Recorded: telemetry.Fresh}
}

func unhealthy(s *telemetry.Snapshot) {
	s.Readings[telemetry.Health] = telemetry.Reading{Value: 0, Recorded: telemetry.Fresh}
}

func (r *rig) live(name string) *pool.Live {
	r.t.Helper()
	for _, e := range r.pools.Set().Endpoints {
		if e.Name == name {
			return e.Live
		}
	}
	r.t.Fatalf("no endpoint %s", name)
	return nil
}

// chat is a chat request for a model with the deadline that the policy sets.
func (r *rig) chat(model string) *extproc.Request {
	return r.request(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}]}`, model))
}

func (r *rig) request(body string) *extproc.Request {
	now := telemetry.Instant(r.clock.now.Load())
	return &extproc.Request{
		Method: "POST", Path: "/v1/chat/completions", ContentType: "application/json",
		Body: []byte(body), BodySeen: true,
		ReceivedAt: now, CompleteAt: now,
		Deadline: now.Add(r.decider.active.Load().policy.Limits.DecisionDeadline),
	}
}

// place has a request placed.
func (r *rig) place(req *extproc.Request) *inFlight {
	r.t.Helper()
	d, refusal := r.decider.begin().Decide(req)
	if refusal != nil {
		r.t.Fatalf("refused with %d %s: %s", refusal.Status, refusal.Reason, refusal.Message)
	}
	return d.(*inFlight)
}

// sample reads the value of one of the picker's own series; 0 if it is not there.
// labels are the values of its labels, in the order of their names.
func (r *rig) sample(name string, labels ...string) float64 {
	r.t.Helper()
	total := 0.0
	families, err := r.metrics.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := true
			for i, want := range labels {
				matches = matches && i < len(m.GetLabel()) && m.GetLabel()[i].GetValue() == want
			}
			if matches {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return total
}
