package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A router answers as a semantic router does: nothing to the headers; to the body
// the headers that it sets, and a body with another model.
type router struct {
	extprocv3.UnimplementedExternalProcessorServer
	address netip.AddrPort

	mu   sync.Mutex
	sets []header
	// model is what the body's becomes; empty leaves the body alone.
	model string
	// breaks ends each stream with an error; cached answers for the replicas.
	breaks, cached bool
	seen           []map[string]string // the headers of each request
}

type header struct{ name, value string }

func newRouter(t *testing.T) *router {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{address: netip.MustParseAddrPort(listener.Addr().String())}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(server, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return r
}

// answer sets what becomes of the requests to come, and forgets the past.
func (r *router) answer(model string, sets ...header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.model, r.sets, r.seen = model, sets, nil
}

func (r *router) fail(breaks, cached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaks, r.cached = breaks, cached
}

func (r *router) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		r.mu.Lock()
		answer, err := r.to(message)
		r.mu.Unlock()
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (r *router) to(message *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
	if r.breaks {
		return nil, status.Error(codes.Internal, "the router is broken")
	}
	if r.cached {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extprocv3.ImmediateResponse{Body: []byte("from the router's cache")},
		}}, nil
	}
	answer := &extprocv3.ProcessingResponse{}
	switch m := message.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		r.seen = append(r.seen, headers(m.RequestHeaders.GetHeaders()))
		answer.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
	case *extprocv3.ProcessingRequest_RequestBody:
		common := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{}}
		for _, h := range r.sets {
			common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: h.name, RawValue: []byte(h.value)},
			})
		}
		if r.model != "" {
			var body map[string]any
			if err := json.Unmarshal(m.RequestBody.GetBody(), &body); err != nil {
				return nil, err
			}
			body["model"] = r.model
			text, err := json.Marshal(body)
			if err != nil {
				return nil, err
			}
			common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: text}}
			common.HeaderMutation.RemoveHeaders = []string{"content-length"}
			common.HeaderMutation.SetHeaders = append(common.HeaderMutation.SetHeaders, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: "content-length", RawValue: fmt.Append(nil, len(text))},
			})
		}
		answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		answer.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-vsr-selected-model", RawValue: []byte("told")}}},
			}},
		}}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "the gateway sent a %T", m)
	}
	return answer, nil
}

// residency is the decision header of these tests.
const residency = "x-residency"

// routed is a gateway with a router, and what is around it.
func routed(t *testing.T, o Options, edits ...func(bootstrap string) string) (*router, *picker, *replica, running) {
	t.Helper()
	from, asked, at := newRouter(t), newPicker(t), newReplica(t, "127.0.0.1:0")
	asked.answer(at.address.String())
	o.PickerAddress = asked.address.String()
	o.Endpoints = []Endpoint{{"r1", at.address}}
	o.Router = &Router{Address: from.address.String(), DecisionHeaders: []HeaderMapping{
		{residency, "requirement.residency.berth.dev/residency"},
	}}
	return from, asked, at, run(t, o, edits...)
}

// head is a response without its body.
type head struct {
	StatusCode int
	Header     http.Header
}

// send posts a body with headers.
func send(t *testing.T, r running, body string, sent http.Header) head {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.gateway+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(request.Header, sent)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return head{response.StatusCode, response.Header}
}

// placed is how many requests the picker was asked to place.
func (p *picker) placed() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.exchanges {
		if x.RequestHeaders != nil {
			n++
		}
	}
	return n
}

func TestWhatTheRouterSetsIsTheIntentThatThePickerGets(t *testing.T) {
	// A client that knows all names, and sends each twice.
	forged := http.Header{}
	for _, name := range []string{"x-selected-model", residency, "x-berth-intent", "x-gateway-destination-endpoint"} {
		forged[http.CanonicalHeaderKey(name)] = []string{"forged", "forged too"}
	}
	for _, kind := range []Kind{OverrideHost, OriginalDst} {
		from, asked, at, gateway := routed(t, Options{Kind: kind})
		for _, tc := range []struct {
			name  string
			sets  []header
			model string
			want  map[string]any
		}{
			{"a model and a decision", []header{{"x-selected-model", "fast"}, {residency, "eu, ch"}}, "llama-3.1-8b",
				map[string]any{"logicalModel": "fast", "requirement.residency.berth.dev/residency": "eu, ch"}},
			{"a model alone", []header{{"x-selected-model", "fast"}}, "a served id that makes the body far longer than it was",
				map[string]any{"logicalModel": "fast"}},
			{"a model whose name begins as auto does", []header{{"x-selected-model", "automatic"}}, "",
				map[string]any{"logicalModel": "automatic"}},
			{"no choice", []header{{"x-selected-model", "auto"}}, "", nil},
			{"no choice, by the router's other name for it", []header{{"x-selected-model", "MoM"}}, "", nil},
			{"no choice, by the router's newest name for it", []header{{"x-selected-model", "vllm-sr/auto"}}, "", nil},
			{"nothing", nil, "", nil},
			{"headers that are not mapped", []header{{"x-other", "eu"}}, "", nil},
		} {
			for client, headers := range map[string]http.Header{"an honest client": nil, "a client that sends all names itself": forged} {
				t.Run(fmt.Sprintf("%s, %s, %s", kind, tc.name, client), func(t *testing.T) {
					from.answer(tc.model, tc.sets...)
					asked.answer(at.address.String())
					response := send(t, gateway, `{"model":"auto"}`, headers)
					if response.StatusCode != http.StatusOK || response.Header.Get("X-Vsr-Selected-Model") != "told" {
						t.Fatalf("status %d, x-vsr-selected-model %q; want 200 with what the router tells", response.StatusCode, response.Header.Get("X-Vsr-Selected-Model"))
					}
					got := asked.last(t)
					if !maps.Equal(got.Intent, tc.want) {
						t.Errorf("the picker got the intent %v, want %v", got.Intent, tc.want)
					}
					model := tc.model
					if model == "" {
						model = "auto"
					}
					if want := fmt.Sprintf(`{"model":%q}`, model); got.Body != want {
						t.Errorf("the picker got the body %q, want %q", got.Body, want)
					}
					received := at.requests()
					last := received[len(received)-1].Header
					for _, name := range []string{"x-selected-model", residency, "x-berth-intent"} {
						_, toPicker := got.RequestHeaders[name]
						_, toRouter := from.seen[0][name]
						if toPicker || toRouter || last.Get(name) != "" {
							t.Errorf("%s reached the router (%t), the picker (%t), or the replica (%q)", name, toRouter, toPicker, last.Get(name))
						}
					}
				})
			}
		}
	}
}

// What early header mutation is for: a router overwrites what it sets, and where it
// sets nothing, a client's copy stands.
func TestWithoutTheEarlyMutationAClientDecidesWhereTheRouterDoesNot(t *testing.T) {
	from, asked, at, gateway := routed(t, Options{}, func(bootstrap string) string {
		return strings.Replace(bootstrap, "              - remove: \"x-residency\"\n", "", 1)
	})
	for _, tc := range []struct {
		sets []header
		want string
	}{
		{[]header{{"x-selected-model", "fast"}, {residency, "eu"}}, "eu"},
		{[]header{{"x-selected-model", "fast"}}, "us"},
	} {
		from.answer("", tc.sets...)
		asked.answer(at.address.String())
		send(t, gateway, `{"model":"auto"}`, http.Header{"X-Residency": {"us"}})
		if got := asked.last(t).Intent["requirement.residency.berth.dev/residency"]; got != tc.want {
			t.Errorf("where the router sets %v the picker got the residency %q, want %q", tc.sets, got, tc.want)
		}
	}
}

func TestAnAnswerOfTheRoutersOwnNeedsThePicker(t *testing.T) {
	from, at := newRouter(t), newReplica(t, "127.0.0.1:0")
	from.fail(false, true)
	r := run(t, Options{PickerAddress: refusing(t).String(), Endpoints: []Endpoint{{"r1", at.address}}, Router: &Router{Address: from.address.String()}})
	if response := send(t, r, `{"model":"auto"}`, nil); response.StatusCode != http.StatusInternalServerError {
		t.Errorf("status %d for the router's answer while the picker is down, want 500", response.StatusCode)
	}
}

func TestAClientsSignedIntentReachesAPickerThatVerifiesIt(t *testing.T) {
	for signed, want := range map[bool]string{true: "a.b.c", false: ""} {
		asked, at := newPicker(t), newReplica(t, "127.0.0.1:0")
		asked.answer(at.address.String())
		r := run(t, Options{PickerAddress: asked.address.String(), Endpoints: []Endpoint{{"r1", at.address}}, SignedIntents: signed})
		send(t, r, `{"model":"m"}`, http.Header{
			"X-Berth-Intent": {"a.b.c"}, "X-Berth-Decision": {"forged"}, "X-Berth-Rung": {"forged"}, "X-Berth-Acted": {"forged"},
			"X-Berth-Policy": {"forged"}, "X-Berth-Reason": {"forged"}, "X-Berth-Replica": {"forged"},
		})
		got := asked.last(t).RequestHeaders
		if got["x-berth-intent"] != want {
			t.Errorf("with SignedIntents %t the picker got the intent %q, want %q", signed, got["x-berth-intent"], want)
		}
		for name, value := range got {
			if value == "forged" {
				t.Errorf("with SignedIntents %t the picker got %s", signed, name)
			}
		}
	}
}

func TestRequestsWithoutABodyPassTheRouterWithoutAnIntent(t *testing.T) {
	from, asked, at, gateway := routed(t, Options{})
	from.answer("", header{"x-selected-model", "fast"})
	asked.answer(at.address.String())
	response, err := http.Get("http://" + gateway.gateway + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if got := asked.last(t); response.StatusCode != http.StatusOK || len(got.Intent) != 0 {
		t.Errorf("status %d, intent %v; want 200 and none", response.StatusCode, got.Intent)
	}
}

func TestNothingPassesARouterThatDoesNotAnswer(t *testing.T) {
	from, asked, at, gateway := routed(t, Options{})
	down := newPicker(t)
	down.answer(at.address.String())
	away := run(t, Options{PickerAddress: down.address.String(), Endpoints: []Endpoint{{"r1", at.address}}, Router: &Router{Address: refusing(t).String()}})

	from.fail(true, false)
	for name, r := range map[string]running{"one that breaks": gateway, "one that is down": away} {
		if response := send(t, r, `{"model":"auto"}`, nil); response.StatusCode != http.StatusInternalServerError {
			t.Errorf("%s: status %d, want 500", name, response.StatusCode)
		}
	}
	from.fail(false, true)
	if response := send(t, gateway, `{"model":"auto"}`, nil); response.StatusCode != http.StatusOK {
		t.Errorf("an answer of the router's own: status %d, want its 200", response.StatusCode)
	}
	// Envoy shows the picker each of these answers, and nothing of the requests.
	if a, d := asked.placed(), down.placed(); len(at.requests())+a+d != 0 {
		t.Errorf("the replica got %d requests, the pickers %d and %d; want none", len(at.requests()), a, d)
	}
}

func TestTheLongestBodyThatARouterCanReadIsTheBufferLimit(t *testing.T) {
	const limit = 3 << 20 // beyond what waits in a connection, and below what the picker's gRPC takes
	for _, fallbacks := range []int{0, 1} {
		from, asked, at, gateway := routed(t, Options{BodyBufferLimit: limit, Fallbacks: fallbacks})
		body := func(n int) string {
			const around = `{"model":"","p":""}`
			return `{"model":"","p":"` + strings.Repeat("x", n-len(around)) + `"}`
		}
		from.answer("m", header{"x-selected-model", "fast"})
		asked.answer(at.address.String())
		if response := send(t, gateway, body(limit-1024), nil); response.StatusCode != http.StatusOK {
			t.Errorf("fallbacks %d: status %d for a body below the limit, want 200", fallbacks, response.StatusCode)
		}
		if response := send(t, gateway, body(limit+1024), nil); response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("fallbacks %d: status %d for a body beyond the limit, want 413", fallbacks, response.StatusCode)
		}
		if sizes := slices.Collect(func(yield func(int64) bool) {
			for _, r := range at.requests() {
				if !yield(r.Size) {
					return
				}
			}
		}); len(sizes) != 1 || sizes[0] != limit-1024+1 {
			t.Errorf("fallbacks %d: the replica got bodies of %d bytes, want one of %d", fallbacks, sizes, limit-1024+1)
		}
	}
}
