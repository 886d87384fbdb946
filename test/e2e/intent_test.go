package e2e

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

func TestRoutingIntents(t *testing.T) {
	binary := buildPicker(t)
	for name, scenario := range map[string]func(*testing.T, string){
		"refusals tell why, and nothing else":                   refusedIntents,
		"each channel brings them":                              intentChannels,
		"HD1 HD5 what clients forge means nothing":              forgedIntents,
		"keys and aliases change under load, and nothing fails": intentReloads,
		"A12 replicas that fail are put away and tried again":   quarantinedReplicas,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, binary)
		})
	}
}

// The header that a gateway's filter makes the routing intent of, as JSON text.
const intentText = "x-test-intent"

// intentFromHeader stands for whatever filter of a gateway knows the intent.
func intentFromHeader(listener tree) {
	copyToMetadata(listener, "intent", "berth.dev", [2]string{intentText, "intent"})
}

// written is an intent as JSON text, with its version.
func written(t *testing.T, i v1alpha1.RoutingIntent) string {
	t.Helper()
	i.Version = v1alpha1.Version
	text, err := v1alpha1.EncodeIntent(&i)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// demands is an intent with one requirement.
func demands(t *testing.T, id string, class v1alpha1.RequirementClass, key string, values ...string) string {
	t.Helper()
	return written(t, v1alpha1.RoutingIntent{IntentID: id, Requirements: []v1alpha1.Requirement{
		{Class: class, Key: key, Operator: v1alpha1.In, Values: values},
	}})
}

// A signer is a router with a key.
type signer struct {
	id     string
	alg    jose.SignatureAlgorithm
	secret any // what it signs with
	public any // what the picker verifies with
}

func newSigner(t *testing.T, id string, alg jose.SignatureAlgorithm) signer {
	t.Helper()
	s := signer{id: id, alg: alg}
	var err error
	switch alg {
	case jose.EdDSA:
		s.public, s.secret, err = ed25519.GenerateKey(rand.Reader)
	case jose.ES256:
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			s.secret, s.public = key, key.Public()
		}
	case jose.HS256:
		key := make([]byte, 32)
		_, err = rand.Read(key)
		s.secret, s.public = key, key
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sign is the value of x-berth-intent for an intent as JSON text.
func (s signer) sign(t *testing.T, intent string) string {
	t.Helper()
	with, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.secret}, (&jose.SignerOptions{}).WithHeader("kid", s.id))
	if err != nil {
		t.Fatal(err)
	}
	jws, err := with.Sign([]byte(intent))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// keySet is the text of a picker's key set.
func keySet(t *testing.T, signers ...signer) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, s := range signers {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: s.public, KeyID: s.id, Algorithm: string(s.alg)})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// signable is an intent that the picker named berth takes from a signer until it
// expires.
func signable(id string, expires time.Time, requirements ...v1alpha1.Requirement) v1alpha1.RoutingIntent {
	return v1alpha1.RoutingIntent{
		IntentID: id, Issuer: "router.test", Audience: []string{"berth"}, Requirements: requirements,
		IssuedAt: time.Now().Add(-time.Minute), ExpiresAt: expires,
	}
}

// serves is the requirement that a replica serves a tenant.
func serves(tenant string) v1alpha1.Requirement {
	return v1alpha1.Requirement{Class: v1alpha1.Authorization, Key: v1alpha1.AttributeTenants, Operator: v1alpha1.In, Values: []string{tenant}}
}

// asksOf is the body of a completion request for a model.
func asksOf(model string, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":1,"stream":%t}`, model, stream)
}

// bodiless is a path whose requests engines count.
const bodiless = "/v1/files"

// A way is how a request comes to the picker.
type way struct {
	name  string
	route string
	// stream asks for a stream of events; without body it is a GET.
	body, stream bool
	// blind routes want the destination before they show the body.
	blind bool
}

// waysOf are those through routes of three request modes.
func waysOf() []way {
	return []way{
		{name: "POST", route: "gateway", body: true},
		{name: "POST for a stream", route: "gateway", body: true, stream: true},
		{name: "GET", route: "gateway"},
		{name: "POST, BUFFERED", route: buffered, body: true},
		{name: "POST for a stream, BUFFERED", route: buffered, body: true, stream: true},
		{name: "GET, BUFFERED", route: buffered},
		{name: "POST, STREAMED", route: streamed, body: true, blind: true},
		{name: "POST for a stream, STREAMED", route: streamed, body: true, stream: true, blind: true},
		{name: "GET, STREAMED", route: streamed},
	}
}

// ask sends a request in this way; empty headers are left out.
func (w way) ask(f *fleet, c *http.Client, model, id string, headers map[string]string) answer {
	f.t.Helper()
	method, path, body := http.MethodGet, bodiless, ""
	if w.body {
		method, path, body = http.MethodPost, completions, asksOf(model, w.stream)
	}
	req := f.through(f.t, w.route).request(f.t.Context(), method, path, body)
	req.Header.Set("X-Request-Id", id)
	for name, value := range headers {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	return f.do(c, req)
}

// A refusable is a request that is refused.
type refusable struct {
	// id is the intent's, where it comes so far as to be read.
	id     string
	intent string
	// subset is the gateway's; empty is the one replica that is all right.
	subset string
	model  string // of the body; empty is one that the replica serves
	reason string
	// unread is the reason where there is no body, or one that is not read although
	// intent.unreadableBody is pass; empty is the same.
	unread string
	// namesModel is set for an intent that does.
	namesModel bool
	// tells is a part of the message.
	tells string
}

// refusalStatus is what clients get with each reason.
var refusalStatus = map[string]int{
	"intent_malformed": 400, "intent_version": 400,
	"intent_expired": 403, "intent_untrusted": 403, "intent_required": 403, "model_not_eligible": 403,
	"authorization_unmet": 403, "safety_unmet": 403, "residency_unmet": 403,
	"model_unserved":   404,
	"capability_unmet": 422, "context_exceeded": 422, "placement_unmet": 422,
	"model_unknown": 503, "subset_empty": 503, "unhealthy": 503, "pool_empty": 503,
}

// refusedIntents has every refusal that an intent or the screening can cause, in
// every way that a request can come.
func refusedIntents(t *testing.T, binary string) {
	mute, stranger := closedPort(t), closedPort(t)
	const wanted, theirs = "wanted-qzv", "theirs-qzv" // of requirements, and of replicas
	f := start(t, spec{
		engines: engines(2, fast),
		binary:  binary,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			ready, limit := false, int64(4096)
			for i := range m {
				m[i].Name = "replica-qzv-" + m[i].Name
				m[i].ServedModels, m[i].ContextLimit = []string{"sim-model"}, &limit
				m[i].Annotations = map[string]string{
					v1alpha1.AttributeTenants: theirs + ", everyone", v1alpha1.AttributeSafety: theirs, v1alpha1.AttributeResidency: theirs,
					v1alpha1.AttributeCapabilities: theirs, v1alpha1.AttributeTier: theirs,
				}
			}
			m[1].Ready = &ready
			// Nobody is there, and it is not known what it serves.
			return append(m, member("replica-qzv-mute", mute))
		},
		berth: tree{"intent": tree{"signedHeader": tree{
			"keySet": writeKeys(t, newSigner(t, "router", jose.EdDSA)), "audience": "berth",
		}}},
		unscraped: true,
		envoy: func(bootstrap tree) {
			subsetFromHeader(bootstrap)
			intentFromHeader(listener(bootstrap))
			addRoutes(t, bootstrap, route{name: buffered, request: buffered}, route{name: streamed, request: streamed})
		},
	})
	eventually(t, "the replica has answered", func() bool { return f.replica("replica-qzv-e1").Order == "normal" })
	good, down := f.engines[0].Addr(), f.engines[1].Addr()

	past := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	unmet := func(id string, class v1alpha1.RequirementClass, key string) refusable {
		return refusable{id: id, intent: demands(t, id, class, key, wanted), reason: id, tells: key}
	}
	cases := []refusable{
		{intent: `{"version":"berth.dev/v1alpha1","Requirements":[{"values":["` + wanted + `"]}]}`, reason: "intent_malformed"},
		{intent: `{"version":"berth.dev/v9","intentID":"` + wanted + `"}`, reason: "intent_version"},
		{intent: written(t, v1alpha1.RoutingIntent{IntentID: wanted, ExpiresAt: past}), reason: "intent_expired"},
		{intent: written(t, v1alpha1.RoutingIntent{Audience: []string{wanted}}), reason: "intent_untrusted"},
		{id: "other", intent: written(t, v1alpha1.RoutingIntent{IntentID: "other", ServedModels: []string{wanted}}), namesModel: true,
			reason: "model_not_eligible", unread: "model_unserved"},
		{id: "unserved", intent: written(t, v1alpha1.RoutingIntent{IntentID: "unserved", LogicalModel: wanted}), namesModel: true,
			model: wanted, reason: "model_unserved"},
		{id: "unknown", intent: written(t, v1alpha1.RoutingIntent{IntentID: "unknown", LogicalModel: wanted}), namesModel: true,
			model: wanted, subset: good + "," + mute, reason: "model_unknown"},
		unmet("authorization_unmet", v1alpha1.Authorization, v1alpha1.AttributeTenants),
		unmet("safety_unmet", v1alpha1.Safety, v1alpha1.AttributeSafety),
		unmet("residency_unmet", v1alpha1.Residency, v1alpha1.AttributeResidency),
		unmet("capability_unmet", v1alpha1.Capability, v1alpha1.AttributeCapabilities),
		{id: "context", intent: written(t, v1alpha1.RoutingIntent{IntentID: "context", Context: &v1alpha1.ContextNeed{InputTokens: 4096, OutputTokens: 1}}),
			reason: "context_exceeded"},
		unmet("placement_unmet", v1alpha1.Placement, v1alpha1.AttributeTier),
		{id: "subset", intent: demands(t, "subset", v1alpha1.Authorization, v1alpha1.AttributeTenants, theirs), subset: stranger,
			reason: "subset_empty"},
		{id: "unhealthy", intent: demands(t, "unhealthy", v1alpha1.Authorization, v1alpha1.AttributeTenants, theirs), subset: down,
			reason: "unhealthy"},
	}
	secrets := []string{wanted, theirs, "everyone", "qzv", "127.0.0.1", portOf(good), portOf(down), portOf(mute)}

	// The answers are compared with their records when all have come.
	type told struct {
		answer
		name, reason, requestID, intentID string
	}
	var all []told
	refused := func(name string, w way, c *http.Client, r refusable, reason string) {
		t.Helper()
		subset := r.subset
		if subset == "" {
			subset = good
		}
		model := r.model
		if model == "" {
			model = "sim-model"
		}
		id := digest(name)
		a := w.ask(f, c, model, id, map[string]string{intentText: r.intent, "x-test-subset": subset})
		all = append(all, told{a, name, reason, id, r.id})
		t.Run(name, func(t *testing.T) {
			expectRefusal(t, a, refusalStatus[reason], reason)
			if later, unavailable := a.header.Get("Retry-After"), a.status == 503; unavailable != (later != "") {
				t.Errorf("status %d with retry-after %q", a.status, later)
			}
			if reason == r.reason && !strings.Contains(a.body, r.tells) {
				t.Errorf("the refusal does not name %s: %s", r.tells, a.body)
			}
			if _, err := uuid.Parse(a.decision()); err != nil {
				t.Errorf("the refusal names the decision %q: %v", a.decision(), err)
			}
			for header, values := range a.header {
				if header == "X-Berth-Decision" {
					continue // it may have the digits of a port
				}
				for _, secret := range secrets {
					if strings.Contains(strings.Join(values, " "), secret) {
						t.Errorf("header %s: %v tells %q", header, values, secret)
					}
				}
			}
			for _, secret := range secrets {
				if strings.Contains(a.body, secret) {
					t.Errorf("the body tells %q: %s", secret, a.body)
				}
			}
		})
	}
	// answered: what is refused below is not refused for how it came.
	answered := func(name string, w way, c *http.Client, intent string) {
		t.Helper()
		before := served(f.engines[0])
		a := w.ask(f, c, "sim-model", digest(name), map[string]string{intentText: intent})
		if a.status != http.StatusOK || a.engine() != "e1" || served(f.engines[0]) != before+1 {
			t.Errorf("%s: status %d from %q, %s; want 200 from e1", name, a.status, a.engine(), a.body)
		}
	}
	met := demands(t, "met", v1alpha1.Authorization, v1alpha1.AttributeTenants, "everyone")
	named := written(t, v1alpha1.RoutingIntent{IntentID: "named", ServedModels: []string{"sim-model"}})
	for _, pass := range []bool{false, true} {
		unreadable := ", unreadable bodies refused"
		if pass {
			unreadable = ", unreadable bodies passed"
			f.adopt(tree{"intent": tree{"unreadableBody": "pass"}})
		}
		for _, w := range waysOf() {
			for version, c := range f.clients() {
				suffix := " by " + w.name + " over " + version + unreadable
				answered("met"+suffix, w, c, met)
				if pass || !w.blind {
					answered("named"+suffix, w, c, named)
				} else {
					refused("named"+suffix, w, c, refusable{id: "named", intent: named}, "model_not_eligible")
				}
				before := f.total()
				for i, r := range cases {
					reason := r.reason
					switch {
					case w.blind && !pass && r.namesModel:
						reason = "model_not_eligible"
					case r.unread != "" && (w.blind || !w.body):
						reason = r.unread
					}
					refused(fmt.Sprintf("%d %s%s", i, reason, suffix), w, c, r, reason)
				}
				if n := f.total() - before; n != 0 {
					t.Errorf("%d refused requests%s reached a replica", n, suffix)
				}
			}
		}
	}

	before := f.total()
	f.adopt(tree{"intent": tree{"required": true}})
	for _, w := range waysOf() {
		for version, c := range f.clients() {
			refused("intent_required by "+w.name+" over "+version, w, c, refusable{}, "intent_required")
		}
	}
	f.writePool(nil)
	eventually(t, "the pool is empty", func() bool { return len(f.replicas()) == 0 })
	for _, w := range waysOf() {
		for version, c := range f.clients() {
			reason := "pool_empty"
			refused(reason+" by "+w.name+" over "+version, w, c, refusable{id: "met", intent: met}, reason)
		}
	}
	if n := f.total() - before; n != 0 {
		t.Errorf("%d requests without an intent or without a pool reached a replica", n)
	}

	t.Run("each leads to its record", func(t *testing.T) {
		f.quiet()
		records := map[string]v1alpha1.Decision{}
		for _, d := range f.log.ended(t) {
			records[d.ID] = d
		}
		for _, a := range all {
			d, ok := records[a.decision()]
			switch {
			case !ok || d.Refusal == nil:
				t.Errorf("%s: decision %q has no record of a refusal", a.name, a.decision())
			case d.Refusal.Reason != a.reason || d.Refusal.Status != a.status || d.Pick != "" || d.Rung != "refuse":
				t.Errorf("%s: the record has refusal %+v, pick %q, rung %s", a.name, d.Refusal, d.Pick, d.Rung)
			case d.Request.RequestID != a.requestID || d.Intent.IntentID != a.intentID:
				t.Errorf("%s: the record is of request %q with intent %q; want %q with %q", a.name, d.Request.RequestID, d.Intent.IntentID, a.requestID, a.intentID)
			}
		}
		var shown v1alpha1.Decision
		last := all[len(all)-1]
		if err := json.Unmarshal(fetch(t, f.admin+"/v1alpha1/decisions/"+last.decision()), &shown); err != nil || shown.ID != last.decision() {
			t.Errorf("the report of decisions shows %q, %v; want %s", shown.ID, err, last.decision())
		}
	})
	f.awaitInFlight(map[string]int{})
}

func portOf(address string) string {
	return fmt.Sprint(netip.MustParseAddrPort(address).Port())
}

// writeKeys writes a key set to a file and returns its path.
func writeKeys(t *testing.T, signers ...signer) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, []byte(keySet(t, signers...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// adapters is vLLM with adapters: of the served names, all but the first are loaded
// on top of it.
type adapters struct{ enginesim.VLLM }

// Pages implements enginesim.Dialect.
func (a adapters) Pages() enginesim.Pages {
	pages := a.VLLM.Pages()
	page := pages["/v1/models"]
	page.Make = func(s enginesim.State) enginesim.Content {
		type card struct {
			ID     string  `json:"id"`
			Object string  `json:"object"`
			Root   string  `json:"root"`
			Parent *string `json:"parent"`
		}
		cards := []card{{ID: s.Models[0], Object: "model", Root: s.Models[0]}}
		for _, name := range s.Models[1:] {
			cards = append(cards, card{ID: name, Object: "model", Root: "/adapters/" + name, Parent: &s.Models[0]})
		}
		body, err := json.Marshal(map[string]any{"object": "list", "data": cards})
		if err != nil {
			return enginesim.Content{Status: http.StatusInternalServerError}
		}
		return enginesim.Content{Status: http.StatusOK, ContentType: "application/json", Body: body}
	}
	pages["/v1/models"] = page
	return pages
}

// startSixth starts an engine at the IPv6 loopback address, with the port of
// another one if that is free; nil where the machine has no IPv6.
func startSixth(t *testing.T, name, like string) *enginesim.Server {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("no IPv6 loopback address: %v", err)
		return nil
	}
	_ = l.Close()
	c := fast
	c.Name = name
	e, err := enginesim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if e.Start("[::1]:"+portOf(like)) != nil {
		if err := e.Start("[::1]:0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(e.Close)
	return e
}

// A channels fleet takes intents by every channel. Each replica serves one tenant:
// who served says which intent counted.
type channels struct {
	*fleet
	signers map[string]signer
	sixth   *enginesim.Server
}

// The headers of the plain channel.
const (
	tenantHeader = "x-test-tenant"
	modelHeader  = "x-selected-model"
)

const luaIntent = `
function envoy_on_request(handle)
  handle:streamInfo():dynamicMetadata():set("berth.dev", "intent", {
    version = "berth.dev/v1alpha1", intentID = "lua", servedModels = {"sim-model"},
    requirements = {{class = "authorization", key = "berth.dev/tenants", operator = "In", values = {"metadata"}}},
    context = {inputTokens = 12},
  })
end`

const luaFlat = `
function envoy_on_request(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set("berth.dev", "logicalModel", "quick")
  metadata:set("berth.dev", "requirement.authorization.berth.dev/tenants", "nobody,metadata")
  metadata:set("berth.dev", "contextInputTokens", 12)
end`

func lua(source string) func(listener tree) {
	return func(listener tree) {
		insertFilter(listener, "lua", "envoy.extensions.filters.http.lua.v3.Lua", tree{"default_source_code": tree{"inline_string": source}})
	}
}

func intentChannels(t *testing.T, binary string) {
	ch := &channels{signers: map[string]signer{}}
	var all []signer
	for _, alg := range []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256, jose.HS256} {
		s := newSigner(t, "router-"+string(alg), alg)
		ch.signers[string(alg)] = s
		all = append(all, s)
	}
	withAdapter := fast
	withAdapter.Models, withAdapter.Dialect = []string{"sim-model", "sql-adapter"}, adapters{}
	ch.fleet = start(t, spec{
		engines: []enginesim.Config{fast, fast, withAdapter},
		binary:  binary,
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			if ch.sixth = startSixth(t, "e6", fmt.Sprintf("127.0.0.1:%d", m[0].Port)); ch.sixth != nil {
				m = append(m, member("e6", ch.sixth.Addr()))
			}
			for i, tenant := range []string{"metadata", "signed", "headers", "sixth"}[:len(m)] {
				m[i].Annotations = map[string]string{v1alpha1.AttributeTenants: tenant}
			}
			return m
		},
		berth: tree{
			"intent": tree{"signedHeader": tree{"keySet": writeKeys(t, all...), "audience": "berth", "skew": "0s"}},
			"trust": tree{"plainHeaders": true, "headers": tree{
				modelHeader: "logicalModel", tenantHeader: "requirement.authorization.berth.dev/tenants",
			}},
			"models": tree{"aliases": tree{"quick": []any{"sim-model"}}},
		},
		envoy: func(bootstrap tree) {
			l := listener(bootstrap)
			stripNothing(l)
			subsetFromHeader(bootstrap)
			intentFromHeader(l)
			addRoutes(t, bootstrap,
				route{name: "set_metadata", edit: func(l tree) {
					setMetadata(l, "set", "berth.dev", tree{"intent": tree{
						"version": "berth.dev/v1alpha1", "intentID": "struct", "logicalModel": "quick",
						"requirements": []any{tree{"class": "authorization", "key": "berth.dev/tenants", "operator": "In", "values": []any{"metadata"}}},
					}})
				}},
				route{name: "Lua", edit: lua(luaIntent)},
				route{name: "Lua, flat", edit: lua(luaFlat)},
				route{name: "header_to_metadata", edit: func(l tree) {
					copyToMetadata(l, "flat", "berth.dev",
						[2]string{"x-flat-tenants", "requirement.authorization.berth.dev/tenants"}, [2]string{"x-flat-models", "servedModels"},
						[2]string{"x-flat-priority", "priority"}, [2]string{"x-flat-foreign", "foreign"})
				}})
		},
	})
	eventually(t, "every replica says what it serves", func() bool {
		return !slices.ContainsFunc(ch.replicas(), func(r v1alpha1.Observation) bool { return r.Fields["servedModels"].State != v1alpha1.Fresh })
	})
	t.Run("what is said of the source", ch.sources)
	t.Run("the first one that is there counts", ch.priority)
	t.Run("one that is refused makes room for none", ch.neverFallThrough)
	t.Run("HD5 subsets are exact to the address and port, and add to requirements", ch.subsets)
	t.Run("A11 an adapter that an engine has loaded is a served name", ch.loadedAdapters)
	t.Run("an intent expires between two requests", ch.expiry)
	ch.awaitInFlight(map[string]int{})
}

func (ch *channels) sources(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	signed := func(alg string) map[string]string {
		return map[string]string{"x-berth-intent": ch.signers[alg].sign(t, written(t, signable("by-"+alg, hour, serves("signed"))))}
	}
	type facts struct {
		Source, IntentID, Issuer, KeyID, LogicalModel string
		Models                                        []string
	}
	quick := []string{"sim-model"}
	for _, tc := range []struct {
		name, route string
		headers     map[string]string
		by          string
		want        facts
	}{
		{"metadata, JSON text", "gateway", map[string]string{intentText: demands(t, "text", v1alpha1.Authorization, v1alpha1.AttributeTenants, "metadata")},
			"e1", facts{Source: "metadata", IntentID: "text"}},
		{"metadata, a struct by set_metadata", "set_metadata", nil,
			"e1", facts{Source: "metadata", IntentID: "struct", LogicalModel: "quick", Models: quick}},
		{"metadata, a table by Lua", "Lua", nil, "e1", facts{Source: "metadata", IntentID: "lua", Models: quick}},
		{"metadata, flat keys by Lua", "Lua, flat", nil, "e1", facts{Source: "metadata", LogicalModel: "quick", Models: quick}},
		{"metadata, flat keys by header_to_metadata", "header_to_metadata",
			map[string]string{"x-flat-tenants": "nobody, metadata", "x-flat-models": "other,sim-model", "x-flat-priority": "-3"},
			"e1", facts{Source: "metadata", Models: []string{"other", "sim-model"}}},
		{"signed with EdDSA", "gateway", signed("EdDSA"), "e2", facts{Source: "signed", IntentID: "by-EdDSA", Issuer: "router.test", KeyID: "router-EdDSA"}},
		{"signed with ES256", "gateway", signed("ES256"), "e2", facts{Source: "signed", IntentID: "by-ES256", Issuer: "router.test", KeyID: "router-ES256"}},
		{"signed with HS256", "gateway", signed("HS256"), "e2", facts{Source: "signed", IntentID: "by-HS256", Issuer: "router.test", KeyID: "router-HS256"}},
		{"plain headers", "gateway", map[string]string{tenantHeader: "headers", modelHeader: "quick"},
			"e3", facts{Source: "headers", LogicalModel: "quick", Models: quick}},
		{"none", "gateway", nil, "", facts{Source: "none"}},
	} {
		for version, c := range ch.clients() {
			for _, w := range []way{{name: "POST", route: tc.route, body: true}, {name: "GET", route: tc.route}} {
				t.Run(tc.name+" by "+w.name+" over "+version, func(t *testing.T) {
					f := ch.through(t, tc.route)
					id := requestID(t)
					a := w.ask(f, c, "sim-model", id, tc.headers)
					if a.status != http.StatusOK || tc.by != "" && a.engine() != tc.by {
						t.Fatalf("status %d from %q, %s; want 200 from %s", a.status, a.engine(), a.body, tc.by)
					}
					i := f.record(a.decision()).Intent
					if got := (facts{i.Source, i.IntentID, i.Issuer, i.KeyID, i.LogicalModel, i.Models}); fmt.Sprint(got) != fmt.Sprint(tc.want) {
						t.Errorf("the record says %+v, want %+v", got, tc.want)
					}
					ack, _ := f.envoy.logged(id)["acknowledgement"].(tree)
					said, _ := ack["intentID"].(string)
					if ack["intentSource"] != tc.want.Source || said != tc.want.IntentID || ack["decision"] != a.decision() || ack["acted"] != "confirmed" {
						t.Errorf("the access log has %v, want source %s and intent %q", ack, tc.want.Source, tc.want.IntentID)
					}
					if out := float64(len(f.members) - 1); tc.by != "" && (ack["candidates"] != 1.0 || ack["screenedOut.authorization"] != out) {
						t.Errorf("the access log has %v, want one candidate and %v that the tenant excludes", ack, out)
					}
					for name, values := range a.header {
						if strings.HasPrefix(name, "X-Berth-") && !slices.Contains([]string{"X-Berth-Decision", "X-Berth-Rung", "X-Berth-Acted", "X-Berth-Policy"}, name) {
							t.Errorf("the client is told %s: %v", name, values)
						}
					}
				})
			}
		}
	}
}

// brought are the headers that bring a good intent by each channel.
func (ch *channels) brought(t *testing.T) map[string]map[string]string {
	return map[string]map[string]string{
		"metadata": {intentText: demands(t, "text", v1alpha1.Authorization, v1alpha1.AttributeTenants, "metadata")},
		"signed": {"x-berth-intent": ch.signers["EdDSA"].sign(t,
			written(t, signable("signed", time.Now().Add(time.Hour), serves("signed"))))},
		"headers": {tenantHeader: "headers"},
	}
}

func (ch *channels) priority(t *testing.T) {
	brought := ch.brought(t)
	names := []string{"metadata", "signed", "headers"}
	for mask := 1; mask < 8; mask++ {
		var there []string
		headers := map[string]string{}
		for i, name := range names {
			if mask&(1<<i) != 0 {
				there = append(there, name)
				maps.Copy(headers, brought[name])
			}
		}
		by := nameOf(slices.Index(names, there[0]))
		for version, c := range ch.clients() {
			for _, w := range []way{{name: "POST", route: "gateway", body: true}, {name: "GET", route: "gateway"}} {
				t.Run(strings.Join(there, " and ")+" by "+w.name+" over "+version, func(t *testing.T) {
					f := ch.through(t, w.route)
					a := w.ask(f, c, "sim-model", requestID(t), headers)
					if a.status != http.StatusOK || a.engine() != by {
						t.Fatalf("status %d from %q, %s; want 200 from %s", a.status, a.engine(), a.body, by)
					}
					if got := f.record(a.decision()).Intent.Source; got != there[0] {
						t.Errorf("the record has the source %q, want %q", got, there[0])
					}
				})
			}
		}
	}
}

func (ch *channels) neverFallThrough(t *testing.T) {
	brought := ch.brought(t)
	hour := time.Now().Add(time.Hour)
	stranger := newSigner(t, "router-EdDSA", jose.EdDSA)
	good := written(t, signable("signed", hour, serves("signed")))
	expired := signable("expired", time.Now().Add(-time.Second), serves("signed"))
	elsewhere := signable("elsewhere", hour, serves("signed"))
	elsewhere.Audience = []string{"another"}
	token := brought["signed"]["x-berth-intent"]
	before := ch.total() + sixthServed(ch.sixth)
	for _, tc := range []struct {
		name, route string
		headers     map[string][]string
		// others are the channels that bring a good one beside it.
		others []string
		status int
		reason string
	}{
		{"metadata that is no JSON", "gateway", map[string][]string{intentText: {"{"}}, []string{"signed", "headers"}, 400, "intent_malformed"},
		{"metadata with a typo", "gateway", map[string][]string{intentText: {`{"version":"berth.dev/v1alpha1","Context":{}}`}}, []string{"signed", "headers"}, 400, "intent_malformed"},
		{"metadata of another version", "gateway", map[string][]string{intentText: {`{"version":"v1"}`}}, []string{"signed", "headers"}, 400, "intent_version"},
		{"metadata that has expired", "gateway", map[string][]string{intentText: {written(t, v1alpha1.RoutingIntent{ExpiresAt: time.Now().Add(-time.Second)})}},
			[]string{"signed", "headers"}, 403, "intent_expired"},
		{"metadata for another picker", "gateway", map[string][]string{intentText: {written(t, v1alpha1.RoutingIntent{Audience: []string{"another"}})}},
			[]string{"signed", "headers"}, 403, "intent_untrusted"},
		{"metadata in both forms", "header_to_metadata", map[string][]string{"x-flat-priority": {"1"}}, []string{"metadata", "signed", "headers"}, 400, "intent_malformed"},
		{"metadata with a foreign key", "header_to_metadata", map[string][]string{"x-flat-foreign": {"1"}}, []string{"signed", "headers"}, 400, "intent_malformed"},
		{"a signature of another key", "gateway", map[string][]string{"x-berth-intent": {stranger.sign(t, good)}}, []string{"headers"}, 403, "intent_untrusted"},
		{"no token", "gateway", map[string][]string{"x-berth-intent": {"garbage"}}, []string{"headers"}, 400, "intent_malformed"},
		{"a token that is there twice", "gateway", map[string][]string{"x-berth-intent": {token, token}}, []string{"headers"}, 400, "intent_malformed"},
		{"a signed intent that has expired", "gateway", map[string][]string{"x-berth-intent": {ch.signers["EdDSA"].sign(t, written(t, expired))}},
			[]string{"headers"}, 403, "intent_expired"},
		{"a signed intent for another picker", "gateway", map[string][]string{"x-berth-intent": {ch.signers["EdDSA"].sign(t, written(t, elsewhere))}},
			[]string{"headers"}, 403, "intent_untrusted"},
		{"a plain header that is there twice", "gateway", map[string][]string{tenantHeader: {"headers", "headers"}}, nil, 400, "intent_malformed"},
		{"a plain header with nothing in it", "gateway", map[string][]string{tenantHeader: {" , "}}, nil, 400, "intent_malformed"},
	} {
		for version, c := range ch.clients() {
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				t.Run(tc.name+" by "+method+" over "+version, func(t *testing.T) {
					f := ch.through(t, tc.route)
					path, body := completions, asks(1)
					if method == http.MethodGet {
						path, body = bodiless, ""
					}
					req := f.request(t.Context(), method, path, body)
					for _, other := range tc.others {
						for name, value := range brought[other] {
							req.Header.Set(name, value)
						}
					}
					for name, values := range tc.headers {
						req.Header.Del(name)
						for _, v := range values {
							req.Header.Add(name, v)
						}
					}
					expectRefusal(t, f.do(c, req), tc.status, tc.reason)
				})
			}
		}
	}
	if n := ch.total() + sixthServed(ch.sixth) - before; n != 0 {
		t.Errorf("%d refused requests reached a replica", n)
	}
}

func sixthServed(e *enginesim.Server) int {
	if e == nil {
		return 0
	}
	return served(e)
}

func (ch *channels) subsets(t *testing.T) {
	if ch.sixth == nil {
		t.Skip("the machine has no IPv6 loopback address")
	}
	address := func(i int) string { return ch.engines[i].Addr() }
	sixth := ch.sixth.Addr()
	bare := "::1:" + portOf(sixth)
	mapped := "[::ffff:127.0.0.1]:" + portOf(address(0))
	other := portOf(closedPort(t))
	tenants := func(names ...string) string {
		return demands(t, "", v1alpha1.Authorization, v1alpha1.AttributeTenants, names...)
	}
	for _, tc := range []struct {
		name, subset, intent string
		allowed              []string
		reason               string
	}{
		{"IPv6 in brackets", sixth, "", []string{"e6"}, ""},
		{"IPv6 bare", bare, "", []string{"e6"}, ""},
		{"IPv6 in full", "[0:0:0:0:0:0:0:1]:" + portOf(sixth), "", []string{"e6"}, ""},
		{"IPv4 as IPv6", mapped, "", []string{"e1"}, ""},
		{"two ports of one address", address(0) + "," + address(1), "", []string{"e1", "e2"}, ""},
		{"the same port of both addresses, if it was free", address(0), "", []string{"e1"}, ""},
		{"IPv6 without a port", "[::1]", "", nil, "subset_empty"},
		{"IPv6 with another port", "[::1]:" + other, "", nil, "subset_empty"},
		{"another address with the port", "[::2]:" + portOf(sixth), "", nil, "subset_empty"},
		{"a port alone", ":" + portOf(sixth), "", nil, "subset_empty"},
		{"requirements within it", address(0) + "," + sixth, tenants("sixth", "signed"), []string{"e6"}, ""},
		{"requirements of one outside", address(0) + "," + sixth, tenants("signed"), nil, "authorization_unmet"},
		{"requirements that two meet, one inside", address(1), tenants("metadata", "signed"), []string{"e2"}, ""},
		{"requirements, and nobody in it", "[::1]:" + other, tenants("sixth"), nil, "subset_empty"},
	} {
		for version, c := range ch.clients() {
			for _, w := range []way{{name: "POST", route: "gateway", body: true}, {name: "GET", route: "gateway"}} {
				t.Run(tc.name+" by "+w.name+" over "+version, func(t *testing.T) {
					f := ch.through(t, w.route)
					for range 4 {
						a := w.ask(f, c, "sim-model", requestID(t), map[string]string{"x-test-subset": tc.subset, intentText: tc.intent})
						if tc.reason != "" {
							expectRefusal(t, a, refusalStatus[tc.reason], tc.reason)
						} else if a.status != http.StatusOK || !slices.Contains(tc.allowed, a.engine()) || a.header.Get("X-Berth-Acted") != "confirmed" {
							t.Errorf("status %d from %q, acted %q, %s; want 200 from %v", a.status, a.engine(), a.header.Get("X-Berth-Acted"), a.body, tc.allowed)
						}
					}
				})
			}
		}
	}
}

func (ch *channels) loadedAdapters(t *testing.T) {
	intent := func(models ...string) string { return written(t, v1alpha1.RoutingIntent{ServedModels: models}) }
	for _, tc := range []struct {
		name, intent, model string
		reason              string // none: served by e3, which has loaded the adapter
	}{
		{"a loaded one", intent("sql-adapter"), "sql-adapter", ""},
		{"a loaded one by its own name", written(t, v1alpha1.RoutingIntent{LogicalModel: "sql-adapter"}), "sql-adapter", ""},
		{"a loaded one of two", intent("chat-adapter", "sql-adapter"), "sql-adapter", ""},
		{"a loaded one for a body that says it alone", "", "sql-adapter", ""},
		{"one that nobody has loaded", intent("chat-adapter"), "chat-adapter", "model_unserved"},
		{"one that nobody has loaded, of two", intent("chat-adapter", "sql-adapter"), "chat-adapter", "model_unserved"},
		{"the base where the intent says the adapter", intent("sql-adapter"), "sim-model", "model_not_eligible"},
	} {
		for version, c := range ch.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				f := ch.through(t, "gateway")
				for range 4 {
					a := way{route: "gateway", body: true}.ask(f, c, tc.model, requestID(t), map[string]string{intentText: tc.intent})
					if tc.reason != "" {
						expectRefusal(t, a, refusalStatus[tc.reason], tc.reason)
					} else if a.status != http.StatusOK || a.engine() != "e3" {
						t.Errorf("status %d from %q, %s; want 200 from e3", a.status, a.engine(), a.body)
					}
				}
			})
		}
	}
	t.Run("a request without a body goes where one of the names is served", func(t *testing.T) {
		f := ch.through(t, "gateway")
		get := way{route: "gateway"}
		if a := get.ask(f, f.h1, "", "", map[string]string{intentText: intent("chat-adapter", "sql-adapter")}); a.engine() != "e3" {
			t.Errorf("status %d from %q, want 200 from e3", a.status, a.engine())
		}
		expectRefusal(t, get.ask(f, f.h1, "", "", map[string]string{intentText: intent("chat-adapter")}), 404, "model_unserved")
	})
}

// expiry uses one token until it has expired. What is sent when it has is refused,
// what is answered before is not; in between either is right.
func (ch *channels) expiry(t *testing.T) {
	const life = 3 * time.Second
	for name, brings := range map[string]func(v1alpha1.RoutingIntent) map[string]string{
		"signed": func(i v1alpha1.RoutingIntent) map[string]string {
			return map[string]string{"x-berth-intent": ch.signers["ES256"].sign(t, written(t, i))}
		},
		"metadata": func(i v1alpha1.RoutingIntent) map[string]string {
			return map[string]string{intentText: written(t, i)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := ch.through(t, "gateway")
			post := way{route: "gateway", body: true}
			at := time.Now().Add(life)
			headers := brings(signable("short", at, serves("signed")))
			accepted := 0
			eventually(t, "the intent has expired", func() bool {
				before := served(f.engines[1])
				sent := time.Now()
				a := post.ask(f, f.h1, "sim-model", "", headers)
				reached := served(f.engines[1]) - before
				switch {
				case a.status == http.StatusOK && sent.Before(at) && reached == 1:
					accepted++
					return false
				case a.status == http.StatusOK:
					t.Fatalf("served %d times, sent %v after expiresAt", reached, sent.Sub(at))
				case time.Now().Before(at):
					t.Fatalf("status %d, %s before expiresAt", a.status, a.body)
				}
				expectRefusal(t, a, 403, "intent_expired")
				if reached != 0 {
					t.Error("the refused request reached the replica")
				}
				return true
			})
			if accepted == 0 {
				t.Error("no request was served before the intent expired")
			}
			// Sending it again does not help; a new one does.
			for _, c := range f.clients() {
				expectRefusal(t, post.ask(f, c, "sim-model", "", headers), 403, "intent_expired")
				fresh := brings(signable("fresh", time.Now().Add(time.Hour), serves("signed")))
				if a := post.ask(f, c, "sim-model", "", fresh); a.status != http.StatusOK || a.engine() != "e2" {
					t.Errorf("status %d from %q with a new intent, want 200 from e2", a.status, a.engine())
				}
			}
		})
	}
}
