package host

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// signer is a router that signs its intents with a key of its own.
type signer struct{ kid string }

// secret is made of the name, so that each signer has another one.
func (s signer) secret() []byte { return fmt.Appendf(nil, "%-32s", "the secret of "+s.kid) }

// key is the signer's key as a key set has it.
func (s signer) key() string {
	return fmt.Sprintf(`{"kty":"oct","alg":"HS256","kid":%q,"k":%q}`, s.kid, base64.RawURLEncoding.EncodeToString(s.secret()))
}

// header is an intent for the model m, signed.
func (s signer) header(t *testing.T) *corev3.HeaderValue {
	t.Helper()
	now := time.Now()
	payload, err := v1alpha1.EncodeIntent(&v1alpha1.RoutingIntent{
		Version: v1alpha1.Version, Audience: []string{"berth"}, IssuedAt: now, ExpiresAt: now.Add(time.Hour), LogicalModel: "m",
	})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode(fmt.Appendf(nil, `{"alg":"HS256","kid":%q}`, s.kid)) + "." + encode(payload)
	mac := hmac.New(sha256.New, s.secret())
	mac.Write([]byte(signed))
	return &corev3.HeaderValue{Key: "x-berth-intent", RawValue: []byte(signed + "." + encode(mac.Sum(nil)))}
}

func keySet(signers ...signer) string {
	keys := make([]string, len(signers))
	for i, s := range signers {
		keys[i] = s.key()
	}
	return `{"keys":[` + strings.Join(keys, ",") + `]}`
}

// servingPool is one endpoint that is declared to serve m and n.
func servingPool() string {
	return strings.ReplaceAll(poolDocument("19101"), "engine: vllm", "engine: vllm, servedModels: [m, n]")
}

// patientUploads are limits that let a test hold a request back for as long as it takes.
const patientUploads = "limits: {uploadIdle: 5m}\n"

// outcome is how a request for a model is answered: "placed", or status and reason.
func outcome(t *testing.T, conn *grpc.ClientConn, model string, headers ...*corev3.HeaderValue) string {
	t.Helper()
	c := begin(t, conn)
	defer c.cancel()
	_, refusal := c.decide(fmt.Sprintf(`{"model":%q}`, model), headers...)
	return answered(refusal)
}

func answered(refusal *extprocv3.ImmediateResponse) string {
	if refusal == nil {
		return "placed"
	}
	for _, h := range refusal.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-berth-reason" {
			return fmt.Sprintf("%d %s", refusal.GetStatus().GetCode(), h.GetHeader().GetRawValue())
		}
	}
	return fmt.Sprint(refusal.GetStatus().GetCode())
}

// heldBack is a request that has begun, and whose body is still to come.
type heldBack struct{ *call }

// holdBack begins one, and returns when the picker has.
func (r *running) holdBack(conn *grpc.ClientConn, headers ...*corev3.HeaderValue) heldBack {
	r.t.Helper()
	open := r.extproc.Streams()
	c := begin(r.t, conn)
	all := append([]*corev3.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")}, {Key: ":path", RawValue: []byte("/v1/chat/completions")},
		{Key: "content-type", RawValue: []byte("application/json")},
	}, headers...)
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: all}},
	}})
	eventually(r.t, "the request has begun", func() bool { return r.extproc.Streams() > open })
	return heldBack{c}
}

// finish sends the body, and tells how the request is answered.
func (h heldBack) finish(model string) string {
	h.t.Helper()
	defer h.cancel()
	h.send(bodyMessage(fmt.Appendf(nil, `{"model":%q}`, model), true))
	return answered(h.recv().GetImmediateResponse())
}

// settled waits until all streams have ended that were cancelled.
func (r *running) settled() {
	r.t.Helper()
	eventually(r.t, "no stream is open", func() bool { return r.extproc.Streams() == 0 })
}

func (r *running) digest() string { return r.decider.active.Load().policy.Digest }

func TestARotatedKeySetIsTakenOverAndABrokenOneIsNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.json")
	older, newer, stranger := signer{"older"}, signer{"newer"}, signer{"stranger"}
	write(t, file, keySet(older))
	r := run(t, quiet+patientUploads+fmt.Sprintf("intent: {required: true, signedHeader: {keySet: %q, audience: berth}}\n", file), servingPool())
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	was := r.digest()

	const placed, untrusted = "placed", "403 intent_untrusted"
	expect := func(when, byOlder, byNewer string) {
		t.Helper()
		for _, c := range []struct {
			by   signer
			want string
		}{{older, byOlder}, {newer, byNewer}, {stranger, untrusted}} {
			if got := outcome(t, conn, "m", c.by.header(t)); got != c.want {
				t.Errorf("%s, signed by %s: %s, want %s", when, c.by.kid, got, c.want)
			}
		}
		if r.digest() != was {
			t.Errorf("%s: the digest is another one", when)
		}
	}
	pools := r.reloads("ok") // of the pool file, at the start
	loaded := func(n int) {
		t.Helper()
		eventually(t, "the key set is taken over", func() bool { return r.reloads("ok") == pools+n })
	}
	expect("at the start", placed, untrusted)

	write(t, file, keySet(older, newer))
	loaded(1)
	expect("with both keys", placed, placed)

	r.settled()
	before := r.holdBack(conn, older.header(t))
	write(t, file, keySet(newer))
	loaded(2)
	expect("with the new key alone", untrusted, placed)
	if got := before.finish("m"); got != placed {
		t.Errorf("a request that began before the old key went: %s", got)
	}

	for i, broken := range []string{"{", strings.Replace(keySet(older), "HS256", "none", 1), keySet()} {
		write(t, file, broken)
		eventually(t, "the broken key set is counted", func() bool { return r.reloads("failed") == i+1 })
		expect("with a broken key set", untrusted, placed)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing key set is counted", func() bool { return r.reloads("failed") == 4 })
	expect("without a key set", untrusted, placed)
	logged := r.log.FilterMessageSnippet("last good one").All()
	if len(logged) != 4 {
		t.Errorf("%d errors were logged, want 4", len(logged))
	}
	for _, entry := range logged {
		text := fmt.Sprint(entry.ContextMap()["error"])
		if entry.Level.String() != "error" || !strings.Contains(text, "intent.signedHeader.keySet") {
			t.Errorf("%s: %s", entry.Level, text)
		}
	}
	for _, entry := range r.log.All() {
		if text := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(text, base64.RawURLEncoding.EncodeToString(older.secret())) {
			t.Errorf("a key was logged: %s", text)
		}
	}

	// What is mended is another set than the last good one.
	write(t, file, keySet(older))
	loaded(3)
	expect("mended", placed, untrusted)
	if r.reloads("failed") != 4 {
		t.Errorf("%d reloads failed, want 4", r.reloads("failed"))
	}
}

func TestARequestKeepsTheAliasesOfItsBeginningWhileTheyAreReloaded(t *testing.T) {
	aliases := func(served string) string {
		return quiet + patientUploads + "trust: {plainHeaders: true}\nmodels: {aliases: {fast: [" + served + "]}}\n"
	}
	r := run(t, aliases("m"), servingPool())
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	fast := &corev3.HeaderValue{Key: "x-selected-model", RawValue: []byte("fast")}
	const placed, ineligible = "placed", "403 model_not_eligible"
	now := func(when, byM, byN string) {
		t.Helper()
		for model, want := range map[string]string{"m": byM, "n": byN} {
			if got := outcome(t, conn, model, fast); got != want {
				t.Errorf("%s, model %s: %s, want %s", when, model, got, want)
			}
		}
	}
	now("at the start", placed, ineligible)
	r.settled()
	first, second := r.holdBack(conn, fast), r.holdBack(conn, fast)

	was := r.digest()
	r.configure(aliases("n"))
	eventually(t, "the new aliases are in force", func() bool { return r.digest() != was })
	now("after the reload", ineligible, placed)
	if got := first.finish("m"); got != placed {
		t.Errorf("a request from before, with a model of the old alias: %s", got)
	}
	if got := second.finish("n"); got != ineligible {
		t.Errorf("a request from before, with a model of the new alias: %s", got)
	}

	r.configure(aliases(`""`))
	eventually(t, "the broken aliases are counted", func() bool { return r.reloads("failed") == 1 })
	now("after broken aliases", ineligible, placed)
}

// fail plays a response that is an error of the engine's own, to its end.
func (c *call) fail(by string) {
	c.t.Helper()
	defer c.cancel()
	msg := responseMessage(ending{by: "pick", attempts: 1}, []string{by})
	msg.GetResponseHeaders().Headers.Headers[0].RawValue = []byte("500")
	c.send(msg)
	c.recv()
	c.send(responsePart("{}", true))
	c.recv()
	_ = c.stream.CloseSend()
	for {
		if _, err := c.stream.Recv(); err != nil {
			return
		}
	}
}

func TestQuarantineRulesThatAreReloadedActOnLaterRequests(t *testing.T) {
	rules := func(failures int, probeAfter string) string {
		return quiet + fmt.Sprintf("screening: {quarantine: {failures: %d, probeAfter: %s}}\n", failures, probeAfter)
	}
	r := run(t, rules(1000, "1h"), servingPool())
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	place := func() (*call, string) {
		t.Helper()
		c := begin(t, conn)
		destination, refusal := c.decide(`{"model":"m"}`)
		if refusal != nil {
			t.Fatal(answered(refusal))
		}
		return c, destination
	}
	replica := r.pools.Set().Endpoints[0]
	state := func() (in bool, lasts time.Duration) {
		q := replica.Quarantine(r.opts.Clock())
		return q.In, q.Until.Sub(q.Since)
	}
	ended := func(n int) {
		t.Helper()
		eventually(t, "the requests have ended", func() bool {
			return strings.Contains(r.metricsPage(), fmt.Sprintf("berth_outcomes_total{cause=\"complete\"} %d\n", n))
		})
	}
	for range 3 {
		c, destination := place()
		c.fail(destination)
	}
	before, destination := place()
	ended(3)

	was := r.digest()
	r.configure(rules(3, "30m"))
	eventually(t, "the new rules are in force", func() bool { return r.digest() != was })
	if in, _ := state(); in {
		t.Fatal("in quarantine by a reload alone")
	}
	before.fail(destination)
	ended(4)
	if in, _ := state(); in {
		t.Fatal("in quarantine by a request that began under rules that allow it")
	}
	after, destination := place()
	after.fail(destination)
	ended(5)
	if in, lasts := state(); !in || lasts != 30*time.Minute {
		t.Fatalf("in quarantine: %v, for %s; want it for the new 30m", in, lasts)
	}
	if !strings.Contains(r.metricsPage(), `berth_replicas{state="quarantined"} 1`) {
		t.Error("the quarantine is not counted")
	}

	// What is put away stays as long as it was told to, whatever is reloaded.
	was = r.digest()
	r.configure(rules(1000, "100ms"))
	eventually(t, "the rules are reloaded again", func() bool { return r.digest() != was })
	if in, lasts := state(); !in || lasts != 30*time.Minute {
		t.Errorf("in quarantine: %v, for %s after the reload", in, lasts)
	}
	// And a success ends it.
	c, destination := place()
	c.respond(destination, "{}")
	ended(6)
	if in, _ := state(); in {
		t.Error("in quarantine after a request that went well")
	}
}
