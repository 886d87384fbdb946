package host

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Inputs that are known to break endpoint pickers, each sent to a whole picker as
// a gateway would send it.

// Body modes of a gateway.
const (
	bodyNone       = extprocfilterv3.ProcessingMode_NONE
	bodyStreamed   = extprocfilterv3.ProcessingMode_STREAMED
	bodyBuffered   = extprocfilterv3.ProcessingMode_BUFFERED
	bodyPartial    = extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	bodyFullDuplex = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// question is a request in the form that a gateway sends it in.
type question struct {
	method, path, contentType string // POST /v1/chat/completions, application/json
	headers                   []*corev3.HeaderValue
	// mode is announced; none announces NONE, which is not announced otherwise.
	mode extprocfilterv3.ProcessingMode_BodySendMode
	none bool
	// parts of the body. No parts: the headers end the request.
	parts    []string
	metadata *corev3.Metadata
}

// reply is what came of it.
type reply struct {
	// destination is empty where the request was refused.
	destination string
	decision    string
	refusal     *extprocv3.ImmediateResponse
	// body is what came back in full duplex.
	body []byte
	// answers are all of them, in order.
	answers []*extprocv3.ProcessingResponse
	call    *call
}

func rawHeader(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
}

func valueOf(m *extprocv3.HeaderMutation, name string) string {
	for _, h := range m.GetSetHeaders() {
		if h.GetHeader().GetKey() == name {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}

// ask sends a request and reads until it is placed or refused.
func (r *running) ask(conn *grpc.ClientConn, q question) reply {
	r.t.Helper()
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	headers := append([]*corev3.HeaderValue{
		rawHeader(":method", or(q.method, "POST")), rawHeader(":path", or(q.path, "/v1/chat/completions")),
		rawHeader("content-type", or(q.contentType, "application/json")),
	}, q.headers...)
	first := &extprocv3.ProcessingRequest{
		MetadataContext: q.metadata,
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: headers}, EndOfStream: len(q.parts) == 0,
		}},
	}
	mode := q.mode
	switch {
	case q.none || mode != bodyNone:
		first.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode, ResponseBodyMode: mode}
	default:
		mode = bodyFullDuplex
	}
	c := begin(r.t, conn)
	got := reply{call: c}
	c.send(first)
	read := func() *extprocv3.ProcessingResponse {
		answer := c.recv()
		got.answers = append(got.answers, answer)
		got.refusal = answer.GetImmediateResponse()
		common := answer.GetRequestHeaders().GetResponse()
		if common == nil {
			common = answer.GetRequestBody().GetResponse()
		}
		if d := valueOf(common.GetHeaderMutation(), "x-gateway-destination-endpoint"); d != "" {
			got.destination, got.decision = d, valueOf(common.GetHeaderMutation(), "x-berth-decision")
		}
		return answer
	}
	if len(q.parts) == 0 || mode != bodyFullDuplex {
		if read(); got.refusal != nil || len(q.parts) == 0 || mode == bodyNone {
			return got
		}
	}
	for i, part := range q.parts {
		// The picker may have refused already, and the stream be over.
		if err := c.stream.Send(bodyMessage([]byte(part), i == len(q.parts)-1)); err != nil {
			break
		}
	}
	if mode != bodyFullDuplex {
		read()
		return got
	}
	for read(); got.refusal == nil; {
		part := read().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		got.body = append(got.body, part.GetBody()...)
		if part.GetEndOfStream() {
			break
		}
	}
	return got
}

// tell plays the response of a request that was placed, by the pick.
func (g reply) tell(status, contentType string, parts ...string) {
	g.call.t.Helper()
	by, _, _ := strings.Cut(g.destination, ",")
	msg := responseMessage(ending{by: "pick", attempts: 1}, []string{by})
	msg.GetResponseHeaders().Headers.Headers = []*corev3.HeaderValue{rawHeader(":status", status), rawHeader("content-type", contentType)}
	g.call.send(msg)
	g.call.recv()
	for i, part := range parts {
		g.call.send(responsePart(part, i == len(parts)-1))
		g.call.recv()
	}
	_ = g.call.stream.CloseSend()
	if _, err := g.call.stream.Recv(); !errors.Is(err, io.EOF) {
		g.call.t.Errorf("the stream ended with %v", err)
	}
	g.call.cancel()
}

// leave breaks the request off.
func (g reply) leave() { g.call.cancel() }

// record waits for a decision's record to be as wanted, on the admin listener.
func (r *running) record(id string, ok func(*v1alpha1.Decision) bool) v1alpha1.Decision {
	r.t.Helper()
	var d v1alpha1.Decision
	eventually(r.t, "the record of "+id+" is complete", func() bool {
		code, page := r.get(r.AdminAddr(), "/v1alpha1/decisions/"+id)
		if code != 200 {
			return false
		}
		d = v1alpha1.Decision{}
		if err := json.Unmarshal([]byte(page), &d); err != nil {
			r.t.Fatal(err)
		}
		return ok(&d)
	})
	return d
}

func ended(d *v1alpha1.Decision) bool { return d.Outcome != nil }
func written(*v1alpha1.Decision) bool { return true }

// mustRefuse checks an immediate response and what a client makes of it.
func mustRefuse(t *testing.T, g reply, status int, reason string) {
	t.Helper()
	if g.refusal == nil {
		t.Fatalf("placed at %q, want a refusal with %d %s", g.destination, status, reason)
	}
	if got, token := int(g.refusal.GetStatus().GetCode()), valueOf(g.refusal.GetHeaders(), "x-berth-reason"); got != status || token != reason {
		t.Errorf("refused with %d %s, want %d %s", got, token, status, reason)
	}
	var doc struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(g.refusal.GetBody(), &doc); err != nil || doc.Error.Code != reason || doc.Error.Message == "" || doc.Error.Type == "" {
		t.Errorf("the body is no error document: %v: %s", err, g.refusal.GetBody())
	}
	if got := valueOf(g.refusal.GetHeaders(), "content-type"); got != "application/json" {
		t.Errorf("content-type %q, want application/json", got)
	}
	if _, err := g.call.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after a refusal the stream ended with %v, want OK", err)
	}
	g.call.cancel()
}

// two is a pool of two endpoints that nobody listens at.
func two(t *testing.T, members string) (*running, *grpc.ClientConn) {
	t.Helper()
	r := run(t, quiet+members, poolDocument("19101", "19102"))
	conn := dial(t, r.ExtProcAddr())
	t.Cleanup(func() { _ = conn.Close() })
	return r, conn
}

// nobody is a pool without endpoints.
func nobody(t *testing.T) (*running, *grpc.ClientConn) {
	t.Helper()
	r := run(t, quiet, poolDocument())
	conn := dial(t, r.ExtProcAddr())
	t.Cleanup(func() { _ = conn.Close() })
	return r, conn
}

func mustPlace(t *testing.T, g reply) {
	t.Helper()
	if g.destination != "127.0.0.1:19101" && g.destination != "127.0.0.1:19102" {
		t.Fatalf("destination %q, refusal %v; want one of the pool's", g.destination, g.refusal)
	}
}

const hello = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

// A gateway whose body mode hides what bodies say is served, and named in the log
// once: nothing is screened for the model then.
func TestX3_AModeThatHidesBodiesIsNamedInTheLogOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		q    question
		line string // the mode that the log names; none if it is empty
	}{
		{"none", question{none: true}, "NONE"},
		{"streamed", question{mode: bodyStreamed}, "STREAMED"},
		{"buffered in part", question{mode: bodyPartial}, "BUFFERED_PARTIAL"},
		{"buffered", question{mode: bodyBuffered}, ""},
		{"full duplex", question{mode: bodyFullDuplex}, ""},
		{"no mode said", question{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, conn := two(t, "")
			before := r.log.Len()
			for range 3 {
				q := tt.q
				q.parts = []string{hello}
				g := r.ask(conn, q)
				mustPlace(t, g)
				g.leave()
			}
			var modes []string
			for _, entry := range r.log.All()[before:] {
				modes = append(modes, fmt.Sprint(entry.ContextMap()["requestBodyMode"]))
			}
			if got := strings.Join(modes, ","); got != tt.line {
				t.Errorf("the log names %q, want %q", got, tt.line)
			}
		})
	}
}

func TestX4_RequestsWithoutABodyArePickedLikeAnyOther(t *testing.T) {
	r, conn := two(t, "")
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "POST"} {
		for _, path := range []string{"/v1/models", "/v1/models/", "/v1/chat/completions", "/"} {
			t.Run(method+" "+path, func(t *testing.T) {
				r.t = t
				var facts []v1alpha1.RequestFacts
				for _, parts := range [][]string{nil, {""}} {
					g := r.ask(conn, question{method: method, path: path, parts: parts})
					mustPlace(t, g)
					d := r.record(g.decision, written)
					if d.Request.BodyBytes != 0 || d.Screened != 2 || d.Pick == "" {
						t.Errorf("%d bytes, %d screened, pick %q; want 0, 2 and one of them", d.Request.BodyBytes, d.Screened, d.Pick)
					}
					facts = append(facts, d.Request)
					g.leave()
				}
				if facts[0] != facts[1] {
					t.Errorf("without a body it is %+v, with an empty one %+v", facts[0], facts[1])
				}
			})
		}
	}
}

func TestX10_LargeBodiesAreRoutedAndTheLargestRefused(t *testing.T) {
	const mib = 1 << 20
	// Only what is refused depends on the size, not how long reading it takes here.
	r, conn := two(t, "limits: {body: 20MiB, buffered: 32MiB, decisionDeadline: 1m}\n")
	prompt := func(size int) []string {
		head, tail := `{"model":"m","prompt":"`, `"}`
		return []string{head + strings.Repeat("x", size-len(head)-len(tail)) + tail}
	}
	cut := func(size int) []string {
		parts := slices.Repeat([]string{strings.Repeat("x", mib)}, size/mib)
		return append(parts, strings.Repeat("y", size%mib))
	}
	const octets = "application/octet-stream"
	for _, tt := range []struct {
		name, contentType string
		mode              extprocfilterv3.ProcessingMode_BodySendMode
		parts             []string
		ok                bool
	}{
		{"5 MiB in one message", "", bodyBuffered, prompt(5 * mib), true},
		{"the limit in one message", "", bodyBuffered, prompt(20 * mib), true},
		{"more than the limit in one message", "", bodyBuffered, prompt(20*mib + 1), false},
		{"the limit in parts", octets, bodyFullDuplex, cut(20 * mib), true},
		{"more than the limit in parts", octets, bodyFullDuplex, cut(20*mib + 1), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			g := r.ask(conn, question{path: "/v1/completions", contentType: tt.contentType, mode: tt.mode, parts: tt.parts})
			if !tt.ok {
				mustRefuse(t, g, 413, "body_too_large")
			} else {
				mustPlace(t, g)
				if tt.mode == bodyFullDuplex && string(g.body) != strings.Join(tt.parts, "") {
					t.Errorf("%d bytes came back, not those that were sent", len(g.body))
				}
				g.leave()
			}
			eventually(t, "no bytes are held", func() bool { return strings.Contains(r.metricsPage(), "\nberth_buffered_bytes 0\n") })
		})
	}
}

// Nobody to pick is a refusal in each mode, and never a stream that breaks: what
// gateways make of that is to serve the request by themselves.
func TestX13_NobodyToPickIsARefusalInEveryMode(t *testing.T) {
	r, conn := nobody(t)
	for _, tt := range []struct {
		name string
		q    question
	}{
		{"without a body", question{}},
		{"no mode said", question{parts: []string{hello}}},
		{"none", question{none: true, parts: []string{hello}}},
		{"streamed", question{mode: bodyStreamed, parts: []string{hello}}},
		{"buffered", question{mode: bodyBuffered, parts: []string{hello}}},
		{"buffered in part", question{mode: bodyPartial, parts: []string{hello}}},
		{"full duplex", question{mode: bodyFullDuplex, parts: []string{hello[:9], hello[9:]}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			g := r.ask(conn, tt.q)
			mustRefuse(t, g, 503, "pool_empty")
			if valueOf(g.refusal.GetHeaders(), "retry-after") == "" {
				t.Error("a 503 without Retry-After")
			}
		})
	}
}

// Clients that leave are no errors: nothing is logged of them.
func TestX14_AClientThatLeavesIsNothingToLog(t *testing.T) {
	r, conn := two(t, "")
	before := r.log.Len()
	const each = 20
	for range each {
		// Nothing sent, headers, half the body, a pick, response headers, half the
		// response.
		begin(t, conn).cancel()
		c := begin(t, conn)
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}})
		c.cancel()
		c = begin(t, conn)
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}})
		c.send(bodyMessage([]byte(`{"model":`), false))
		c.cancel()
		r.ask(conn, question{parts: []string{hello}}).leave()
		for half := range 2 {
			g := r.ask(conn, question{parts: []string{hello}})
			g.call.send(responseMessage(ending{by: "pick"}, []string{g.destination}))
			g.call.recv()
			if half == 1 {
				g.call.send(responsePart("half", false))
				g.call.recv()
			}
			g.leave()
		}
	}
	eventually(t, "every decision has a record", func() bool {
		return strings.Contains(r.metricsPage(), fmt.Sprintf(`berth_ledger_records_total{result="written"} %d`, 3*each))
	})
	eventually(t, "nothing is in flight", func() bool { return strings.Contains(r.metricsPage(), "\nberth_inflight_requests 0\n") })
	for _, entry := range r.log.All()[before:] {
		t.Errorf("logged: %s %s %v", entry.Level, entry.Message, entry.ContextMap())
	}
}

// A client that asked for a stream gets a refusal that it can read: one whole
// JSON document, with a status and an end.
func TestX15_RefusalsSuitClientsThatAskedForAStream(t *testing.T) {
	const streams = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	t.Run("nobody to pick", func(t *testing.T) {
		r, conn := nobody(t)
		mustRefuse(t, r.ask(conn, question{parts: []string{streams}}), 503, "pool_empty")
	})
	r, conn := two(t, "")
	t.Run("a body that is malformed", func(t *testing.T) {
		mustRefuse(t, r.ask(conn, question{parts: []string{streams[:len(streams)-1]}}), 400, "body_malformed")
	})
	t.Run("two models", func(t *testing.T) {
		mustRefuse(t, r.ask(conn, question{parts: []string{`{"stream":true,"model":"a","model":"b"}`}}), 400, "model_ambiguous")
	})
	// What a body lacks for the engine is the engine's to say.
	t.Run("no messages", func(t *testing.T) {
		g := r.ask(conn, question{parts: []string{`{"model":"m","stream":true}`}})
		mustPlace(t, g)
		g.leave()
	})
}

func TestX17_CompressedBodiesAreRoutedUnread(t *testing.T) {
	r, conn := two(t, "")
	packed := func(content []byte) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(content)
		_ = w.Close()
		return b.String()
	}
	noise := make([]byte, 4096)
	source := rand.NewChaCha8([32]byte{17})
	_, _ = source.Read(noise)
	// Members of a gzip file one after the other are one: 100 KB that are 100 MiB.
	const bombSize = 100 << 20
	bomb := strings.Repeat(packed(make([]byte, 1<<20)), bombSize>>20)
	for _, tt := range []struct{ name, encoding, body string }{
		{"gzip", "gzip", packed([]byte(hello))},
		{"gzip in capitals", "GZip", packed([]byte(hello))},
		{"zstd", "zstd", "\x28\xb5\x2f\xfd\x04\x00" + string(noise)},
		{"br", "br", string(noise)},
		{"deflate", "deflate", string(noise)},
		{"gzip, br", "gzip, br", string(noise)},
		{"an encoding that nobody knows", "x-secret", string(noise)},
		{"gzip on plain JSON", "gzip", hello},
		{"gzip on JSON that breaks off", "gzip", hello[:20]},
		{"a bomb", "gzip", bomb},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			g := r.ask(conn, question{headers: []*corev3.HeaderValue{rawHeader("content-encoding", tt.encoding)}, parts: []string{tt.body[:10], tt.body[10:]}})
			runtime.ReadMemStats(&after)
			mustPlace(t, g)
			if string(g.body) != tt.body {
				t.Errorf("%d bytes came back, not the %d that were sent", len(g.body), len(tt.body))
			}
			if d := r.record(g.decision, written); d.Request.Unread != "content_encoding" || d.Request.BodyBytes != len(tt.body) {
				t.Errorf("unread %q, %d bytes; want content_encoding, %d", d.Request.Unread, d.Request.BodyBytes, len(tt.body))
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > bombSize/4 {
				t.Errorf("%d bytes were allocated for %d", used, len(tt.body))
			}
			g.leave()
		})
	}
}

func TestX18_EveryPathIsPlaced(t *testing.T) {
	r, conn := two(t, "")
	for _, tt := range []struct{ path, api string }{
		{"/v1/chat/completions", "chat_completions"},
		{"/v1/chat/completions?beta=true", "chat_completions"},
		{"/v1/chat/completions/", "chat_completions"},
		{"/v1/messages?beta=true", "messages"},
		{"/vendor/openai/v1/chat/completions", "chat_completions"},
		{"//v1/chat/completions", "chat_completions"},
		{"/v1/chat/completions/render", "unknown"},
		{"/v1//chat/completions", "unknown"},
		{"/v1/chat%2Fcompletions", "unknown"},
		{"/%zz", "unknown"},
		{"/" + strings.Repeat("x", 8<<10), "unknown"},
		{"*", "unknown"},
		{"/v1/chat/completions?" + strings.Repeat("x", 8<<10), "chat_completions"},
	} {
		t.Run(tt.path[:min(40, len(tt.path))], func(t *testing.T) {
			g := r.ask(conn, question{path: tt.path, parts: []string{hello}})
			mustPlace(t, g)
			if d := r.record(g.decision, written); d.Request.API != tt.api {
				t.Errorf("API %s, want %s", d.Request.API, tt.api)
			}
			if string(g.body) != hello {
				t.Errorf("the body came back as %q", g.body)
			}
			g.leave()
		})
	}
}

func TestX19_ModelsOfAnyKindHaveOneAnswerEach(t *testing.T) {
	r, conn := two(t, "")
	for _, tt := range []struct{ name, body, refusal string }{
		{"R11: none", `{"messages":[]}`, ""},
		{"empty", `{"model":""}`, ""},
		{"null", `{"model":null}`, "body_malformed"},
		{"a number", `{"model":7}`, "body_malformed"},
		{"a list", `{"model":["m"]}`, "body_malformed"},
		{"an object", `{"model":{}}`, "body_malformed"},
		{"twice", `{"model":"a","model":"b"}`, "model_ambiguous"},
		{"an escaped key", `{"mod\u0065l":"a"}`, "model_ambiguous"},
		{"10 KB", `{"model":"` + strings.Repeat("m", 10_000) + `"}`, "body_malformed"},
		{"a line feed", `{"model":"a\nb"}`, "body_malformed"},
		{"quotes", `{"model":"a\"b{}"}`, ""},
		{"bytes that are no text", "{\"model\":\"a\xff\"}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 {
				g := r.ask(conn, question{parts: []string{tt.body}})
				if tt.refusal != "" {
					mustRefuse(t, g, 400, tt.refusal)
					continue
				}
				mustPlace(t, g)
				g.leave()
			}
		})
	}
	page := r.metricsPage()
	if !utf8.ValidString(page) || strings.Contains(page, "mmmm") {
		t.Error("a model is on the metrics page")
	}
}

func TestX20_PromptsOfAnyShapeArePlaced(t *testing.T) {
	r, conn := two(t, "")
	for _, tt := range []struct{ path, body, prompt string }{
		{"/v1/completions", `{"prompt":"a"}`, `"a"`},
		{"/v1/completions", `{"prompt":["a","b"]}`, `["a","b"]`},
		{"/v1/completions", `{"prompt":[1,2,3]}`, `[1,2,3]`},
		{"/v1/completions", `{"prompt":[[1],[2]]}`, `[[1],[2]]`},
		{"/v1/completions", `{"prompt":null}`, `null`},
		{"/v1/completions", `{"prompt":7}`, `7`},
		{"/v1/completions", `{}`, ``},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
			`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]`},
		{"/v1/chat/completions", `{"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":[{"role":"assistant","content":null,"tool_calls":[]}]}`,
			`[{"role":"assistant","content":null,"tool_calls":[]}]`},
		{"/v1/chat/completions", `{"messages":[]}`, `[]`},
		{"/v1/chat/completions", `{"messages":"a"}`, `"a"`},
		{"/v1/embeddings", `{"input":["a"]}`, `["a"]`},
	} {
		t.Run(tt.body[:min(40, len(tt.body))], func(t *testing.T) {
			g := r.ask(conn, question{path: tt.path, parts: []string{tt.body}})
			mustPlace(t, g)
			if d := r.record(g.decision, written); d.Request.PromptBytes != len(tt.prompt) {
				t.Errorf("a prompt of %d bytes, want %d", d.Request.PromptBytes, len(tt.prompt))
			}
			g.leave()
		})
	}
}

// subsetOf is the gateway's subset, as one of its filters sets it.
func subsetOf(value string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.lb.subset_hint": {Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint-subset": structpb.NewStringValue(value)}},
	}}
}

// routing are headers by which one picker or another steers requests.
var routing = []string{
	"x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint", "X-GATEWAY-DESTINATION-ENDPOINT",
	"x-gateway-destination-endpoint-served", "x-gateway-destination-endpoint-subset",
	"x-prefiller-host-port", "x-data-parallel-host-port", "x-envoy-original-dst-host", "test-epp-endpoint-selection",
	"x-berth-decision", "x-berth-replica", "x-selected-model", "x-berth-intent", "x-session-token",
}

func TestHD1_RoutingHeadersOfAClientChooseNothing(t *testing.T) {
	const elsewhere = "10.9.9.9:80"
	variants := func(name string) map[string][]*corev3.HeaderValue {
		return map[string][]*corev3.HeaderValue{
			"an address":                   {rawHeader(name, elsewhere)},
			"an address in the other one":  {{Key: name, Value: elsewhere}},
			"twice":                        {rawHeader(name, elsewhere), rawHeader(name, "127.0.0.1:19102")},
			"a list":                       {rawHeader(name, elsewhere+",127.0.0.1:19101")},
			"a member of the pool, pinned": {rawHeader(name, "127.0.0.1:19102")},
			"nonsense":                     {rawHeader(name, "\xff,,:")},
			"empty":                        {rawHeader(name, "")},
		}
	}
	r, conn := two(t, "gateway: {fallbacks: 1}\n")
	for _, name := range routing {
		for variant, headers := range variants(name) {
			for _, parts := range [][]string{{hello}, nil} {
				g := r.ask(conn, question{headers: headers, parts: parts})
				if g.destination != "127.0.0.1:19101,127.0.0.1:19102" && g.destination != "127.0.0.1:19102,127.0.0.1:19101" {
					t.Errorf("%s, %s: destination %q, refusal %v", name, variant, g.destination, g.refusal)
				}
				if d := r.record(g.decision, written); d.Screened != 2 || d.Members != 2 || d.Intent.Subset != nil || d.Intent.Source != "none" {
					t.Errorf("%s, %s: %d of %d screened, intent %+v", name, variant, d.Screened, d.Members, d.Intent)
				}
				mutation := g.answers[0].GetRequestHeaders().GetResponse().GetHeaderMutation()
				copies := 0
				for _, h := range mutation.GetSetHeaders() {
					if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
						t.Errorf("%s, %s: %s does not replace the client's", name, variant, h.GetHeader().GetKey())
					}
					if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
						copies++
					}
				}
				if copies != 1 {
					t.Errorf("%s, %s: the destination is set %d times", name, variant, copies)
				}
				if all := fmt.Sprint(g.answers); strings.Contains(all, elsewhere) {
					t.Errorf("%s, %s: the answer repeats what the client sent: %s", name, variant, all)
				}
				g.leave()
			}
		}
	}
	t.Run("in a response", func(t *testing.T) {
		r.t = t
		g := r.ask(conn, question{parts: []string{hello}})
		msg := responseMessage(ending{by: "silent"}, []string{""})
		h := msg.GetResponseHeaders().GetHeaders()
		for _, name := range routing {
			h.Headers = append(h.Headers, rawHeader(name, elsewhere))
		}
		g.call.send(msg)
		if acted := valueOf(g.call.recv().GetResponseHeaders().GetResponse().GetHeaderMutation(), "x-berth-acted"); acted != "unreported" {
			t.Errorf("acted %q by what a replica says, want unreported", acted)
		}
		g.leave()
	})
	t.Run("with nobody to pick", func(t *testing.T) {
		r, conn := nobody(t)
		for _, name := range routing {
			for _, headers := range variants(name) {
				mustRefuse(t, r.ask(conn, question{headers: headers, parts: []string{hello}}), 503, "pool_empty")
			}
		}
	})
}

func TestHD5_TheSubsetComesFromMetadataAlone(t *testing.T) {
	r, conn := two(t, "")
	header := func(value string) []*corev3.HeaderValue {
		return []*corev3.HeaderValue{rawHeader("x-gateway-destination-endpoint-subset", value), rawHeader("test-epp-endpoint-selection", value)}
	}
	for range 10 {
		g := r.ask(conn, question{metadata: subsetOf("127.0.0.1:19101"), headers: header("127.0.0.1:19102"), parts: []string{hello}})
		if g.destination != "127.0.0.1:19101" {
			t.Errorf("destination %q, want the one that the metadata names", g.destination)
		}
		g.leave()
	}
	g := r.ask(conn, question{headers: header("127.0.0.1:19102"), parts: []string{hello}})
	if d := r.record(g.decision, written); d.Screened != 2 || d.Intent.Subset != nil {
		t.Errorf("a header alone left %d candidates, subset %v", d.Screened, d.Intent.Subset)
	}
	g.leave()
	mustRefuse(t, r.ask(conn, question{metadata: subsetOf("10.9.9.9:80"), headers: header("127.0.0.1:19102"), parts: []string{hello}}), 503, "subset_empty")
}

func TestHD7_ALargeRequestGetsASmallAnswer(t *testing.T) {
	ports := make([]string, 1000)
	for i := range ports {
		ports[i] = fmt.Sprint(20000 + i)
	}
	r := run(t, quiet+"gateway: {fallbacks: 4}\nacknowledgement: {responseHeaders: full}\n", poolDocument(ports...))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	var headers []*corev3.HeaderValue
	for i := range 60 {
		headers = append(headers, rawHeader(fmt.Sprintf("x-header-%d", i), strings.Repeat("v", 1<<10)))
	}
	g := r.ask(conn, question{headers: headers, parts: []string{hello}})
	if n := len(strings.Split(g.destination, ",")); n != 5 {
		t.Errorf("%d destinations, want the pick and 4 fallbacks", n)
	}
	by, _, _ := strings.Cut(g.destination, ",")
	g.call.send(responseMessage(ending{by: "pick", attempts: 1}, []string{by}))
	response := g.call.recv()
	for _, m := range []*extprocv3.HeaderMutation{
		g.answers[0].GetRequestHeaders().GetResponse().GetHeaderMutation(), response.GetResponseHeaders().GetResponse().GetHeaderMutation(),
	} {
		if size := proto.Size(m); size == 0 || size >= 1<<10 {
			t.Errorf("%d bytes of headers, want less than 1 KiB: %v", size, m)
		}
	}
	for _, answer := range []*extprocv3.ProcessingResponse{g.answers[0], response} {
		if size := proto.Size(answer); size >= 2<<10 {
			t.Errorf("an answer of %d bytes, want less than 2 KiB", size)
		}
	}
	g.leave()
}

func TestHD9_R12_HeadersThatAreNoTextAreRoutedAndRecordedAsText(t *testing.T) {
	r, conn := two(t, "")
	values := []string{"naïve", "na\xefve", "\xff\xfe", "00-zz", "00-" + strings.Repeat("0", 32) + "-" + strings.Repeat("0", 16) + "-01", "\u2028"}
	var decisions []string
	for _, value := range values {
		for _, name := range []string{"x-request-id", "authorization", "traceparent", "tracestate", "baggage", "user-agent", "content-type"} {
			g := r.ask(conn, question{headers: []*corev3.HeaderValue{rawHeader(name, value)}, parts: []string{hello}})
			mustPlace(t, g)
			for _, h := range g.answers[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
				if key := h.GetHeader().GetKey(); key != "x-gateway-destination-endpoint" && key != "x-berth-decision" {
					t.Errorf("%s: the picker sets %s", name, key)
				}
			}
			g.tell("200", "application/json", "{}")
			decisions = append(decisions, g.decision)
		}
	}
	r.stop()
	lines := strings.Split(strings.TrimSuffix(r.records.String(), "\n"), "\n")
	if len(lines) != len(decisions) {
		t.Fatalf("%d lines of records, want %d", len(lines), len(decisions))
	}
	for _, line := range lines {
		var d v1alpha1.Decision
		if err := json.Unmarshal([]byte(line), &d); err != nil || !utf8.ValidString(line) {
			t.Errorf("%v, text: %t: %q", err, utf8.ValidString(line), line)
		}
	}
}

// The client's id correlates and nothing else: whatever it is, each request has a
// decision, a key and a record of its own.
func TestR12_RequestIDsAreNoKeys(t *testing.T) {
	r, conn := two(t, "")
	ids := []string{"same", "same", "same", strings.Repeat("x", 10_000), strings.Repeat("é", 5_000), "a\nb", `a"b\c`, "", "a\x00b", "a\r\n{}"}
	seen, keys := map[string]bool{}, map[string]bool{}
	var asked []reply
	for _, id := range ids {
		g := r.ask(conn, question{headers: []*corev3.HeaderValue{rawHeader("x-request-id", id)}, parts: []string{hello}})
		mustPlace(t, g)
		asked = append(asked, g)
		d := r.record(g.decision, written)
		seen[g.decision], keys[d.Key] = true, true
		if len(d.Request.RequestID) > 256+len("\ufffd") || (id != "" && len(id) < 10 && d.Request.RequestID != id) {
			t.Errorf("the id %.20q is recorded as %.300q", id, d.Request.RequestID)
		}
	}
	if len(seen) != len(ids) || len(keys) != len(ids) {
		t.Errorf("%d decisions with %d keys of %d requests", len(seen), len(keys), len(ids))
	}
	if !strings.Contains(r.metricsPage(), fmt.Sprintf("\nberth_inflight_requests %d\n", len(ids))) {
		t.Errorf("not %d requests are in flight", len(ids))
	}
	for _, g := range asked {
		g.tell("200", "application/json", "{}")
	}
	eventually(t, "nothing is in flight", func() bool { return strings.Contains(r.metricsPage(), "\nberth_inflight_requests 0\n") })
	r.stop()
	if lines := strings.Count(r.records.String(), "\n"); lines != len(ids) {
		t.Errorf("%d lines of records of %d requests", lines, len(ids))
	}
}

// What an engine says inside a stream of status 200 is how the request ended.
func TestR1_R2_R3_TheEndOfARequestIsWhatTheEngineSays(t *testing.T) {
	r, conn := two(t, "")
	for _, tt := range []struct {
		name, last, cause string
		code              int
	}{
		{"R1: no room", `data: {"error":{"message":"no room","type":"ServiceUnavailable","code":503}}`, "upstream_error", 503},
		{"R2: the engine is gone", `data: {"error":{"message":"gone","type":"InternalServerError","code":500}}`, "upstream_error", 500},
		{"R3: the engine is stopped", `data: {"choices":[{"delta":{},"finish_reason":"abort"}]}`, "engine_abort", 0},
		{"a whole answer", `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`, "complete", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			g := r.ask(conn, question{parts: []string{hello}})
			g.tell("200", "text/event-stream", "data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n", tt.last+"\n\n", "data: [DONE]\n\n", "")
			d := r.record(g.decision, ended)
			if d.Outcome.Cause != tt.cause || d.Outcome.Status != 200 || d.Outcome.ErrorCode != tt.code {
				t.Errorf("%s, status %d, error %d; want %s, 200, %d", d.Outcome.Cause, d.Outcome.Status, d.Outcome.ErrorCode, tt.cause, tt.code)
			}
		})
	}
}

// Names are everywhere in requests, and on the metrics page nowhere.
func TestZ2_NamesOfAnyKindMakeNoSeries(t *testing.T) {
	r, conn := two(t, "ledger: {ring: 10}\n")
	series := func() map[string]bool {
		all := map[string]bool{}
		for line := range strings.Lines(r.metricsPage()) {
			if name, _, ok := strings.Cut(line, " "); ok && strings.HasPrefix(name, "berth_") {
				all[name] = true
			}
		}
		return all
	}
	send := func(model, name string) {
		body, err := json.Marshal(map[string]string{"model": model})
		if err != nil {
			t.Fatal(err)
		}
		g := r.ask(conn, question{path: "/" + name + "/v1/chat/completions", parts: []string{string(body)}, headers: []*corev3.HeaderValue{
			rawHeader("x-request-id", name), rawHeader("x-gateway-inference-fairness-id", name), rawHeader("x-gateway-inference-objective", name),
			rawHeader("x-selected-model", name), rawHeader("user-agent", name), rawHeader("x-canary-"+fmt.Sprint(len(name)), name),
		}})
		if g.refusal == nil {
			g.tell("200", "application/json", "{}")
			return
		}
		g.leave()
	}
	for range 3 {
		send("canary", "canary")
	}
	send("canary\n", "canary")
	before := series()
	for i := range 300 {
		send(fmt.Sprintf("canary-%d", i), fmt.Sprintf("canary-%d", i))
	}
	for _, name := range []string{`canary"\`, "canary\n", "canary\xff", "canary" + strings.Repeat("x", 1<<20)} {
		send(name, name[:min(len(name), 1<<10)])
	}
	page := r.metricsPage()
	for name := range series() {
		if !before[name] && !strings.Contains(name, "rung=") && !strings.Contains(name, "result=") {
			t.Errorf("a new series: %s", name)
		}
	}
	if len(page) > 5<<20 || strings.Contains(page, "canary") {
		t.Errorf("a metrics page of %d bytes, with a client's name: %t", len(page), strings.Contains(page, "canary"))
	}
	if _, list := r.get(r.AdminAddr(), "/v1alpha1/decisions?limit=1000"); strings.Count(list, `"kind":"Decision"`) > 10 {
		t.Errorf("%d decisions are kept, want at most 10", strings.Count(list, `"kind":"Decision"`))
	}
}

// All that a client and a replica say beside the model's name and the request's
// id stays where it is: paths, headers, bodies of responses, and whatever comes
// with a refusal of the protocol's own.
func TestZ3_Z4_WhatIsSaidOnTheWayStaysThere(t *testing.T) {
	const canary = "CANARY-5f2b"
	secrets := func() []*corev3.HeaderValue {
		var all []*corev3.HeaderValue
		for _, name := range []string{"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "user-agent", "x-forwarded-for", "traceparent", "content-type"} {
			all = append(all, rawHeader(name, canary), &corev3.HeaderValue{Key: name, Value: canary})
		}
		return all
	}
	r, conn := two(t, "acknowledgement: {responseHeaders: full}\ngateway: {onViolation: refuse}\nlimits: {body: 1KiB, buffered: 1KiB}\n")
	var seen bytes.Buffer
	look := func(g reply) { fmt.Fprintln(&seen, g.answers[0], g.refusal) }

	for _, q := range []question{
		{path: "/v1/chat/completions?key=" + canary, parts: []string{hello}},
		{path: "/" + canary, method: canary, parts: []string{canary}},
		{path: "/v2/models/%zz" + canary + "/infer", parts: []string{canary}},
		{parts: []string{`{"model":"` + canary + "\n" + `"}`}},
		{parts: []string{canary + strings.Repeat("x", 1<<10)}},
		{metadata: subsetOf(canary), parts: []string{hello}},
		{metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"berth.dev": {Fields: map[string]*structpb.Value{"not-a-key": structpb.NewStringValue(canary)}},
		}}, parts: []string{hello}},
	} {
		q.headers = secrets()
		g := r.ask(conn, q)
		look(g)
		if g.refusal != nil {
			g.leave()
			continue
		}
		msg := responseMessage(ending{by: "pick", attempts: 1}, []string{g.destination})
		h := msg.GetResponseHeaders().GetHeaders()
		h.Headers = append(h.Headers, rawHeader("set-cookie", canary), rawHeader("server", canary), rawHeader("content-type", "text/event-stream"))
		g.call.send(msg)
		fmt.Fprintln(&seen, g.call.recv())
		// The body goes through, and is looked for everywhere else.
		g.call.send(responsePart(`data: {"error":{"message":"`+canary+`","type":"`+canary+`","code":"`+canary+`"}}`+"\n\n", true))
		g.call.recv()
		_ = g.call.stream.CloseSend()
		_, _ = g.call.stream.Recv()
		g.leave()
	}
	// Trailers, a violation, a message out of order, and a client that leaves.
	g := begin(t, conn)
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: secrets()},
	}}})
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{
		Trailers: &corev3.HeaderMap{Headers: secrets()},
	}}})
	fmt.Fprintln(&seen, g.recv())
	g.cancel()
	outside := r.ask(conn, question{headers: secrets(), parts: []string{hello}})
	outside.call.send(responseMessage(ending{by: "outside"}, []string{outside.destination}))
	refusal := outside.call.recv().GetImmediateResponse()
	if refusal.GetStatus().GetCode() != 502 {
		t.Errorf("a violation was answered with %v, want 502", refusal)
	}
	fmt.Fprintln(&seen, refusal)
	outside.leave()
	twice := r.ask(conn, question{headers: secrets(), parts: []string{hello}})
	twice.call.send(bodyMessage([]byte(canary), true))
	_, err := twice.call.stream.Recv()
	fmt.Fprintln(&seen, err)
	twice.leave()

	for _, path := range []string{"/v1alpha1/replicas", "/v1alpha1/decisions?limit=1000", "/v1alpha1/decisions/" + canary, "/v1alpha1/decisions?limit=" + canary, "/" + canary} {
		_, page := r.get(r.AdminAddr(), path)
		fmt.Fprintln(&seen, page)
	}
	fmt.Fprintln(&seen, r.metricsPage())
	r.stop()
	fmt.Fprintln(&seen, r.records)
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
	for _, want := range []string{"served_outside", "trailers_refused", "body_too_large", "intent_malformed", "subset_empty", "upstream_error"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("%s was not looked at", want)
		}
	}
}
