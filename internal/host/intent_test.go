package host

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

func declared(key, value string) func(*pool.Spec) {
	return func(s *pool.Spec) {
		annotations := map[string]string{key: value}
		for k, v := range s.Annotations {
			annotations[k] = v
		}
		s.Annotations = annotations
	}
}

func holding(tokens int64) func(*pool.Spec) {
	return func(s *pool.Spec) { s.ContextLimit = tokens }
}

// flat is an intent in the flat keys of metadata.
func flat(pairs ...string) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

const tenants, residency = "requirement.authorization.berth.dev/tenants", "requirement.residency.berth.dev/residency"

func TestWhatAnIntentDemandsDecidesWhoServes(t *testing.T) {
	const policy = "models: {aliases: {fast: [m, m-lora]}}\n"
	members := []pool.Spec{
		endpoint(1, serving("m"), declared("berth.dev/tenants", "a,b"), declared("berth.dev/residency", "eu"), holding(8192)),
		endpoint(2, serving("m", "m-lora"), declared("berth.dev/tenants", "b"), declared("berth.dev/residency", "us"), holding(1024)),
		endpoint(3, declared("berth.dev/tenants", "a"), declared("berth.dev/residency", "eu")),
		endpoint(4, serving("other")),
	}
	const chat = `{"model":"m","messages":[]}`
	for _, c := range []struct {
		name     string
		policy   string
		metadata map[string]any
		body     string
		change   func(*extproc.Request)
		// pick is who may serve, or the refusal's status and token.
		pick, refused string
	}{
		{name: "an alias of the body's model, where it is known who serves it", metadata: flat("logicalModel", "fast", tenants, "a"), body: chat, pick: "r1"},
		{name: "the served models themselves", metadata: flat("servedModels", "m-lora"), body: `{"model":"m-lora"}`, pick: "r2"},
		{name: "the model by its own name", metadata: flat("logicalModel", "other"), body: `{"model":"other"}`, pick: "r4"},
		{name: "no model in the intent: the body's, also where it is not known who serves it",
			metadata: flat(residency, "eu", tenants, "a", "contextInputTokens", "1"), policy: "screening: {contextUnknown: pass}\n", body: `{"model":"new"}`, pick: "r3"},
		{name: "context that only one holds", metadata: flat("logicalModel", "fast", "contextInputTokens", "8000", "contextOutputTokens", "192"), body: chat, pick: "r1"},
		{name: "a request without a body is screened by all names", metadata: flat("logicalModel", "fast", residency, "us"),
			change: func(r *extproc.Request) { r.Body, r.Method, r.Path = nil, "GET", "/v1/models" }, pick: "r2"},

		{name: "another model than the intent's", metadata: flat("logicalModel", "fast"), body: `{"model":"other"}`, refused: "403 model_not_eligible"},
		{name: "the alias in the body", metadata: flat("logicalModel", "fast"), body: `{"model":"fast"}`, refused: "403 model_not_eligible"},
		{name: "a body without a model", metadata: flat("logicalModel", "fast"), body: `{"messages":[]}`, refused: "403 model_not_eligible"},
		{name: "a body without a model, let through", policy: "intent: {unreadableBody: pass}\n", metadata: flat("logicalModel", "fast", tenants, "a"),
			body: `{"messages":[]}`, pick: "r1"},
		{name: "a compressed body", metadata: flat("logicalModel", "fast"), body: "\x1f\x8b", refused: "403 model_not_eligible",
			change: func(r *extproc.Request) { r.ContentEncoding = "gzip" }},
		{name: "a body that the gateway does not show", metadata: flat("logicalModel", "fast"), refused: "403 model_not_eligible",
			change: func(r *extproc.Request) { r.Body, r.BodySeen = nil, false }},
		{name: "a tunnel", metadata: flat("logicalModel", "fast"), refused: "403 model_not_eligible",
			change: func(r *extproc.Request) { r.Body, r.Tunnel = nil, true }},
		{name: "a tunnel, let through", policy: "intent: {unreadableBody: pass}\n", metadata: flat("logicalModel", "fast", tenants, "a"), pick: "r1",
			change: func(r *extproc.Request) { r.Body, r.Tunnel = nil, true }},

		{name: "nobody is known to serve it", metadata: flat("logicalModel", "new"), body: `{"model":"new"}`, refused: "503 model_unknown"},
		{name: "nobody in the subset serves it", metadata: flat("logicalModel", "new"), body: `{"model":"new"}`, refused: "404 model_unserved",
			change: func(r *extproc.Request) { r.Subset = screen.SplitSubset("10.0.0.4:8000") }},
		{name: "a tenant of nobody", metadata: flat("logicalModel", "fast", tenants, "zz-secret"), body: chat, refused: "403 authorization_unmet"},
		{name: "authorization goes before capability", metadata: flat("logicalModel", "fast", tenants, "zz", "requirement.capability.tools", "x"), body: chat, refused: "403 authorization_unmet"},
		{name: "safety", metadata: flat("logicalModel", "fast", "requirement.safety.berth.dev/safety", "x"), body: chat, refused: "403 safety_unmet"},
		{name: "residency", metadata: flat("logicalModel", "fast", residency, "us", tenants, "a"), body: chat, refused: "403 residency_unmet"},
		{name: "capability", metadata: flat("logicalModel", "fast", "requirement.capability.tools", "x"), body: chat, refused: "422 capability_unmet"},
		{name: "placement", metadata: flat("logicalModel", "fast", "requirement.placement.berth.dev/zone", "x"), body: chat, refused: "422 placement_unmet"},
		{name: "more context than anybody holds", metadata: flat("logicalModel", "fast", "contextInputTokens", "8193"), body: chat, refused: "422 context_exceeded"},
		{name: "context where nobody says how much", metadata: flat(tenants, "a", residency, "eu", "contextInputTokens", "9000"), body: `{"model":"new"}`, refused: "422 context_exceeded"},

		{name: "no intent where one is required", policy: "intent: {required: true}\n", body: chat, refused: "403 intent_required"},
		{name: "metadata that is switched off is no intent", policy: "intent: {required: true, metadata: false}\ntrust: {plainHeaders: true}\n", metadata: flat("logicalModel", "fast"), body: chat, refused: "403 intent_required"},
		{name: "a key that is none", metadata: flat("logicalModel", "fast", "tenant", "a"), body: chat, refused: "400 intent_malformed"},
		{name: "no version", metadata: map[string]any{"intent": map[string]any{"logicalModel": "fast"}}, body: chat, refused: "400 intent_version"},
		{name: "an intent that has expired", refused: "403 intent_expired", body: chat,
			metadata: map[string]any{"intent": map[string]any{"version": v1alpha1.Version, "expiresAt": epoch.Format(time.RFC3339)}}},
		{name: "a body that is malformed, under an intent", metadata: flat("logicalModel", "fast"), body: "x", refused: "400 body_malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, policy+c.policy)
			r.update(members...)
			req := r.request(c.body)
			req.IntentMetadata = c.metadata
			if c.change != nil {
				c.change(req)
			}
			for range 5 {
				d, refusal := r.decider.begin().Decide(req)
				got := ""
				if refusal == nil {
					got = d.(*inFlight).order[0].Name
					d.Finish(extproc.Outcome{Cause: extproc.Complete})
				} else {
					got = fmt.Sprintf("%d %s", refusal.Status, refusal.Reason)
					if secret := "zz-secret"; strings.Contains(refusal.Message, secret) {
						t.Errorf("the client is told %q", refusal.Message)
					}
					if (refusal.RetryAfter > 0) != (refusal.Status == 503) {
						t.Errorf("%d with Retry-After %v", refusal.Status, refusal.RetryAfter)
					}
				}
				if want := c.pick + c.refused; got != want {
					t.Fatalf("%q, want %q (%+v)", got, want, refusal)
				}
			}
		})
	}
}

func TestARefusalNamesTheAttributesOfItsClassAndNothingElse(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1, declared("berth.dev/tenants", "alice")))
	req := r.chat("m")
	req.IntentMetadata = flat(tenants, "bob", "requirement.authorization.team", "red", "requirement.capability.tools", "x")
	_, refusal := r.decider.begin().Decide(req)
	if want := "no endpoint of the pool meets the authorization requirements on berth.dev/tenants, team"; refusal == nil || refusal.Message != want {
		t.Errorf("%+v, want %q", refusal, want)
	}
	d, _ := r.ledger.Find(refusal.DecisionID)
	if len(d.Candidates) != 1 || d.Candidates[0].Rule == nil || d.Intent.Requirements[*d.Candidates[0].Rule].Key != "berth.dev/tenants" ||
		d.Candidates[0].Attribute.State != "present" || strings.Join(d.Candidates[0].Attribute.Items, ",") != "alice" {
		t.Errorf("the record says %+v of the candidates", d.Candidates)
	}
}

func TestWhatIsWrongWithAnIntentIsInTheRecordAlone(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	req := r.chat("m")
	req.IntentMetadata = map[string]any{"intent": map[string]any{"version": v1alpha1.Version, "requirements": []any{
		map[string]any{"class": "authorization", "key": "team", "operator": "Within", "values": []any{"red"}},
	}}}
	_, refusal := r.decider.begin().Decide(req)
	if refusal == nil || refusal.Reason != "intent_malformed" || strings.Contains(refusal.Message, "operator") {
		t.Fatalf("%+v", refusal)
	}
	d, _ := r.ledger.Find(refusal.DecisionID)
	if d.Intent.Source != "metadata" {
		t.Errorf("the record says that it came by %q", d.Intent.Source)
	}
	if d.Refusal == nil || !strings.Contains(d.Refusal.Detail, "requirements[0].operator") || !strings.Contains(d.Refusal.Detail, "Within") {
		t.Errorf("the record says %+v", d.Refusal)
	}
}

func TestARequestKeepsTheAliasesThatItBeganWith(t *testing.T) {
	r := newRig(t, "models: {aliases: {fast: [m]}}\n")
	r.update(endpoint(1, serving("m", "n")))
	began := r.decider.begin()
	r.decider.active.Store(newRig(t, "models: {aliases: {fast: [n]}}\n").decider.active.Load())
	for _, c := range []struct {
		of    session
		model string
		ok    bool
	}{{began, "m", true}, {began, "n", false}, {r.decider.begin(), "m", false}, {r.decider.begin(), "n", true}} {
		req := r.chat(c.model)
		req.IntentMetadata = flat("logicalModel", "fast")
		if _, refusal := c.of.Decide(req); (refusal == nil) != c.ok {
			t.Errorf("model %s: %+v, want it placed: %v", c.model, refusal, c.ok)
		}
	}
}

func TestThePoolReportTellsWhoMeetsWhatRequestsDemand(t *testing.T) {
	r := newRig(t, "")
	r.update(
		endpoint(1, declared("berth.dev/tenants", "a,b")), endpoint(2, declared("berth.dev/tenants", "b"), notReady), endpoint(3))
	report := &reporter{pools: r.pools, index: r.decider.index, clock: r.clock.read}
	condition := func(status, message string, since time.Time) {
		t.Helper()
		doc := report.report()
		c := doc.Conditions[0]
		if c.Type != "ConstraintUncovered" || c.Status != status || !strings.Contains(c.Message, message) || !c.Since.Equal(since) {
			t.Errorf("%+v, want %s with %q since %v", c, status, message, since)
		}
	}
	condition("False", "", epoch)
	r.clock.pass(time.Minute)
	for _, values := range []string{"b", "a,c"} {
		req := r.chat("m")
		req.IntentMetadata = flat(tenants, values)
		r.place(req).Finish(extproc.Outcome{Cause: extproc.Complete})
	}
	doc := report.report()
	if doc.Members != 3 || doc.Ready != 2 || doc.Pool != "local/demo" {
		t.Errorf("members %d, ready %d of %s", doc.Members, doc.Ready, doc.Pool)
	}
	var got []string
	for _, c := range doc.Constraints {
		if !c.AskedAt.Equal(epoch.Add(time.Minute)) {
			t.Errorf("%s asked at %v", c.Value, c.AskedAt)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s: %d", c.Class, c.Key, c.Operator, c.Value, c.Replicas))
	}
	want := []string{
		"authorization berth.dev/tenants In a: 1", "authorization berth.dev/tenants In b: 2", "authorization berth.dev/tenants In c: 0",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", got, want)
	}
	condition("True", "no replica meets authorization berth.dev/tenants In c", epoch.Add(time.Minute))
	r.clock.pass(time.Minute)
	condition("True", "In c", epoch.Add(time.Minute))
	r.update(endpoint(1, declared("berth.dev/tenants", "a,b,c")))
	condition("False", "", epoch.Add(2*time.Minute))
	r.update(endpoint(1))
	r.clock.pass(2 * time.Hour)
	condition("False", "", epoch.Add(2*time.Minute)) // nobody has asked for long
}

// failing has a request end as a replica's failure would show.
func failing(r *rig, f *inFlight, how string) {
	s := extproc.Served{At: r.clock.read(), Attempts: 1}
	o := extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete}
	switch how {
	case "500":
		s.Status, s.Address, s.Details = 500, f.order[0].Destination, viaUpstream
	case "refused":
		s.Status, s.Details, s.TransportFailure = 503, "upstream_reset_before_response_started{connection_failure}", "delayed connect error: 111"
		o.Cause = extproc.UpstreamError
	case "error event":
		s.Status, s.Address, s.Details = 200, f.order[0].Destination, viaUpstream
		o.Cause = extproc.UpstreamError
	case "gateway timeout":
		s.Status, s.Details = 504, "response_timeout"
		o.Cause = extproc.GatewayTimeout
	case "client":
		o.Cause = extproc.ClientDisconnect
		f.Finish(o)
		return
	case "429":
		s.Status, s.Address, s.Details = 429, f.order[0].Destination, viaUpstream
	case "501":
		s.Status, s.Address, s.Details = 501, f.order[0].Destination, viaUpstream
	case "event 400":
		s.Status, s.Address, s.Details = 200, f.order[0].Destination, viaUpstream
		o.Cause, o.Answer.Failed, o.Answer.ErrorCode = extproc.UpstreamError, true, 400
	case "list of models":
		f.infers = false
		s.Status, s.Address, s.Details = 200, f.order[0].Destination, viaUpstream
	case "overflow":
		s.Status, s.Details = 503, "upstream_reset_before_response_started{overflow}"
		o.Cause = extproc.UpstreamError
	case "ok":
		s.Status, s.Address, s.Details = 200, f.order[0].Destination, viaUpstream
	}
	f.Served(s)
	f.Finish(o)
}

func TestAReplicaThatFailsSeveralRequestsInARowIsLeftAndTriedAgain(t *testing.T) {
	for _, how := range []string{"500", "refused", "error event"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, "screening: {quarantine: {failures: 2, probeAfter: 10s}}\n")
			r.update(endpoint(1), endpoint(2), endpoint(3))
			only := func() *inFlight {
				req := r.chat("m")
				req.Subset = screen.SplitSubset("10.0.0.1:8000")
				return r.place(req)
			}
			in := func() bool { return r.live("r1").Quarantine(telemetry.Instant(r.clock.now.Load())).In }
			failing(r, only(), how)
			failing(r, only(), "ok")
			failing(r, only(), how)
			for _, nothing := range []string{"client", "gateway timeout", "429", "event 400", "501", "overflow"} {
				failing(r, only(), nothing)
			}
			if in() {
				t.Fatal("in quarantine after one failure since a good answer")
			}
			failing(r, only(), how)
			if !in() || r.sample("berth_quarantines_total", "begun") != 1 || r.sample("berth_replicas", "quarantined") != 1 {
				t.Fatal("not in quarantine after two failures in a row")
			}
			for range 50 {
				f := r.place(r.chat("m"))
				if f.order[0].Name == "r1" {
					t.Fatal("picked while it is in quarantine")
				}
				failing(r, f, "ok")
			}
			// Alone it is let go, since nobody else is left.
			failing(r, only(), "client")

			r.clock.pass(10 * time.Second)
			if in() {
				t.Fatal("still in quarantine when it may be tried")
			}
			try := only()
			if !in() {
				t.Fatal("a second request may try it")
			}
			if how == "error event" {
				// Its answer has begun, and may take long: others need not wait for its end.
				try.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: try.order[0].Destination, Details: viaUpstream})
				if in() {
					t.Fatal("an answer that goes on keeps others away")
				}
			}
			failing(r, try, how)
			r.clock.pass(9 * time.Second)
			if !in() {
				t.Fatal("let out after a try that failed")
			}
			r.clock.pass(time.Second)
			for _, nothing := range []string{"429", "event 400", "501", "list of models", "overflow"} {
				failing(r, only(), nothing)
				if in() || r.sample("berth_quarantines_total", "ended") != 0 {
					t.Fatalf("%s decides a try", nothing)
				}
			}
			failing(r, only(), "ok")
			if in() || r.sample("berth_quarantines_total", "ended") != 1 {
				t.Fatal("in quarantine after a try that the engine answered")
			}
		})
	}
}

// A try that hangs, or that somebody else served, does not keep others from trying.
func TestATryKeepsOthersAwayForAWhileOnly(t *testing.T) {
	r := newRig(t, "gateway: {fallbacks: 1}\nscreening: {quarantine: {failures: 1, probeAfter: 10s}}\n")
	r.update(endpoint(1), endpoint(2))
	req := func() *extproc.Request {
		req := r.chat("m")
		req.Subset = screen.SplitSubset("10.0.0.1:8000")
		return req
	}
	in := func() bool { return r.live("r1").Quarantine(telemetry.Instant(r.clock.now.Load())).In }
	failing(r, r.place(req()), "500")
	r.clock.pass(10 * time.Second)
	hangs := r.place(req())
	if !in() {
		t.Fatal("a second request may try it at once")
	}
	r.clock.pass(10 * time.Second)
	if in() {
		t.Fatal("a try that hangs keeps others away for longer than probeAfter")
	}
	next := r.place(req())
	if !in() {
		t.Fatal("the next try keeps nobody away")
	}
	failing(r, hangs, "client")
	if !in() {
		t.Fatal("the end of an older try ends that of another request")
	}
	next.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: "10.0.0.2:8000", Attempts: 1, Details: viaUpstream})
	if in() {
		t.Fatal("a try that another replica served keeps others away")
	}
	next.Finish(extproc.Outcome{Cause: extproc.Complete})
}

// Somebody who makes good replicas fail must not have the bad ones chosen.
func TestOfTooManyInQuarantineThoseWhoCameLastAreLetGo(t *testing.T) {
	r := newRig(t, "screening: {quarantine: {failures: 1, maxShare: 0.5}}\n")
	r.update(endpoint(1), endpoint(2), endpoint(3), endpoint(4))
	rules := r.decider.active.Load().quarantine()
	for _, name := range []string{"r1", "r2", "r3", "r4"} {
		r.live(name).Failed(telemetry.Instant(r.clock.now.Load()), rules)
		r.clock.pass(time.Second)
	}
	for range 50 {
		f := r.place(r.chat("m"))
		if name := f.order[0].Name; name == "r1" || name == "r2" {
			t.Fatalf("%s was picked, which failed first", name)
		}
		f.Finish(extproc.Outcome{Cause: extproc.ClientDisconnect})
	}
}
