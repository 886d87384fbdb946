package host

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/extproc"
)

// intentOf is an intent in flat keys, as a filter of the gateway writes it.
func intentOf(pairs ...string) *corev3.Metadata {
	fields := map[string]*structpb.Value{}
	for i := 0; i < len(pairs); i += 2 {
		fields[pairs[i]] = structpb.NewStringValue(pairs[i+1])
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"berth.dev": {Fields: fields}}}
}

// An intent of the gateway's filters is the one that counts, whatever a client sends
// in headers that could bring one.
func TestHD1_IntentHeadersOfAClientDoNotTouchTheGatewaysIntent(t *testing.T) {
	r, conn := two(t, "gateway: {fallbacks: 1}\n")
	const pinned, other = "127.0.0.1:19102", "127.0.0.1:19101"
	replica := r.pools.Set().Endpoints[0].Name
	if r.pools.Set().Endpoints[0].Address.String() != other {
		replica = r.pools.Set().Endpoints[1].Name
	}
	for _, name := range []string{"x-selected-model", "X-Selected-Model", "x-berth-intent", "X-Berth-Intent", "berth.dev", "x-session-token"} {
		for _, value := range []string{"unserved", pinned, `{"version":"berth.dev/v1alpha1","logicalModel":"unserved"}`, "e30.e30.e30", "\xff", ""} {
			for _, copies := range []int{1, 2} {
				var headers []*corev3.HeaderValue
				for range copies {
					headers = append(headers, rawHeader(name, value))
				}
				g := r.ask(conn, question{metadata: intentOf("requirement.placement.berth.dev/replica", replica), headers: headers, parts: []string{hello}})
				if g.destination != other {
					t.Errorf("%s: %q, %d times: destination %q, refusal %v; want the replica that the intent asks for", name, value, copies, g.destination, g.refusal)
				} else if d := r.record(g.decision, written); d.Intent.Source != "metadata" || d.Screened != 1 {
					t.Errorf("%s: %q: the record says %d screened by an intent of %s", name, value, d.Screened, d.Intent.Source)
				}
				g.leave()
			}
		}
	}
}

// A session key names nobody, neither one that may serve nor one that may not.
func TestHD8_ASessionKeyNeverChangesWhoMayServe(t *testing.T) {
	r := newRig(t, "")
	r.update(
		endpoint(1, serving("m"), declared("berth.dev/tenants", "a")), endpoint(2, serving("m"), declared("berth.dev/tenants", "b")),
		endpoint(3, serving("m"), declared("berth.dev/tenants", "a"), notReady), endpoint(4, serving("n"), declared("berth.dev/tenants", "a")),
	)
	for _, key := range []string{"r1", "r2", "r3", "r4", "10.0.0.2:8000", "10.9.9.9:80", "local/demo/r2", "MTAuMC4wLjI6ODAwMA==", "%%%", strings.Repeat("k", 512)} {
		req := r.chat("m")
		req.IntentMetadata = flat("logicalModel", "m", tenants, "a", "sessionKey", key)
		f := r.place(req)
		if len(f.order) != 1 || f.order[0].Name != "r1" {
			t.Errorf("session key %.40q: %d may serve, the first is %s; want r1 alone", key, len(f.order), f.order[0].Name)
		}
		f.Finish(extproc.Outcome{Cause: extproc.Complete})
	}
	for _, key := range []string{strings.Repeat("k", 513), strings.Repeat("k", 1<<20), ""} {
		req := r.chat("m")
		req.IntentMetadata = flat("sessionKey", key)
		if _, refusal := r.decider.begin().Decide(req); refusal == nil || refusal.Status != 400 || refusal.Reason != "intent_malformed" {
			t.Errorf("a session key of %d bytes: %+v, want 400 intent_malformed", len(key), refusal)
		}
	}
}

// What intents say makes no series either.
func TestZ2_SeriesDoNotGrowWithWhatIntentsSay(t *testing.T) {
	r := newRig(t, "ledger: {ring: 10}\nmodels: {aliases: {fast: [m]}}\n")
	r.update(endpoint(1, serving("m"), declared("berth.dev/tenants", "a")))
	run := func(tenant string, which ...int) {
		for i, metadata := range []map[string]any{
			flat("logicalModel", "fast", tenants, tenant), flat("logicalModel", "fast", tenants, tenant+",a", "sessionKey", tenant),
			flat("logicalModel", tenant), flat("requirement.placement."+tenant, "x"), flat(tenant, "x"),
		} {
			if len(which) > 0 && !slices.Contains(which, i) {
				continue
			}
			req := r.chat("m")
			req.IntentMetadata = metadata
			if d, refusal := r.decider.begin().Decide(req); refusal == nil {
				d.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
			}
		}
	}
	series := func() (n, bytes int) {
		families, err := r.metrics.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if strings.HasPrefix(family.GetName(), "berth_") {
				n += len(family.GetMetric())
			}
			text := family.String()
			bytes += len(text)
			if strings.Contains(text, "tenant-") {
				t.Errorf("a tenant is in %.200s", text)
			}
		}
		return n, bytes
	}
	run("tenant-first")
	before, _ := series()
	for i := range 50_000 {
		run(fmt.Sprintf("tenant-%d", i), i%5)
	}
	run("tenant-\"\\\n")
	run("tenant-\xff")
	run("tenant-" + strings.Repeat("x", 1<<20))
	// The rung may change as requests are observed.
	if after, size := series(); after > before+2 || size > 5<<20 {
		t.Errorf("%d series in %d bytes after 50,000 tenants, %d before", after, size, before)
	}
}

// What an intent demands is between the router and the picker: it is in the records
// of decisions, and in the pool's report, which is for operators; never in a metric,
// a line of the log or an answer.
func TestZ3_WhatAnIntentDemandsIsInRecordsAlone(t *testing.T) {
	const canary = "CANARY-5f2b"
	r, conn := two(t, "acknowledgement: {responseHeaders: full}\n")
	var seen bytes.Buffer
	for _, metadata := range []*corev3.Metadata{
		intentOf("requirement.authorization.berth.dev/tenants", canary), intentOf("requirement.safety.k", canary), intentOf("requirement.residency.k", canary),
		intentOf("requirement.capability.k", canary), intentOf("requirement.placement.k", canary), intentOf("logicalModel", canary), intentOf("servedModels", "m,"+canary),
		intentOf("sessionKey", canary), intentOf("priority", canary), intentOf("contextInputTokens", canary), intentOf(canary, "x"),
		intentOf("requirement.safety.k", canary+"\n"), intentOf("requirement.safety.k", strings.Repeat(canary, 1000)), intentOf("intent", `{"`+canary),
		intentOf("intent", `{"version":"`+canary+`"}`), intentOf("intent", `{"version":"berth.dev/v1alpha1","audience":["`+canary+`"],"issuer":"`+canary+`"}`),
		intentOf("intent", `{"version":"berth.dev/v1alpha1","expiresAt":"2000-01-01T00:00:00Z","issuer":"`+canary+`"}`),
		intentOf("intent", `{"version":"berth.dev/v1alpha1","`+canary+`":1}`),
	} {
		g := r.ask(conn, question{metadata: metadata, headers: []*corev3.HeaderValue{
			rawHeader("x-selected-model", canary), rawHeader("x-berth-intent", canary),
		}, parts: []string{hello}})
		fmt.Fprintln(&seen, g.answers[0], g.refusal)
		if g.refusal != nil {
			g.leave()
			continue
		}
		g.call.send(responseMessage(ending{by: "pick", attempts: 1}, []string{g.destination}))
		fmt.Fprintln(&seen, g.call.recv())
		g.leave()
	}
	fmt.Fprintln(&seen, r.metricsPage())
	r.stop()
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg"})
	for _, entry := range r.log.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(line.Bytes())
	}
	for line := range strings.Lines(seen.String()) {
		if at := strings.Index(line, canary); at >= 0 {
			t.Errorf("found in: ...%s", line[max(0, at-150):min(len(line), at+50)])
		}
	}
	for _, want := range []string{"authorization_unmet", "safety_unmet", "residency_unmet", "capability_unmet", "placement_unmet", "intent_malformed", "intent_version", "intent_expired", "model_not_eligible"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("%s was not looked at", want)
		}
	}
	if !strings.Contains(r.records.String(), canary) {
		t.Error("the records do not say what was demanded")
	}
}
