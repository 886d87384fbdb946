package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
	"github.com/berth-dev/berth/internal/gateway"
)

// A semanticRouter stands for vLLM Semantic Router: asked over ext_proc with the
// whole body, it sets the headers that its choice has and the model that is served.
type semanticRouter struct {
	extprocv3.UnimplementedExternalProcessorServer
	address string
	stop    func()

	mu     sync.Mutex
	choice choice
	asked  int
}

// A choice is what a router makes of every request until it is told another.
type choice struct {
	// alias is the logical model in x-selected-model; empty sets no header.
	alias string
	// served is what the body's model becomes; empty leaves the body alone.
	served string
	// decision has further headers.
	decision map[string]string
	// cached answers in the place of a replica.
	cached string
	// reroute asks the gateway to choose the route anew.
	reroute bool
}

func startSemanticRouter(t *testing.T) *semanticRouter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &semanticRouter{address: l.Addr().String()}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, r)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	r.stop = func() {
		server.Stop()
		<-ended
	}
	t.Cleanup(r.stop)
	return r
}

func (r *semanticRouter) chooses(c choice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choice = c
}

func (r *semanticRouter) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Process implements the ext_proc service.
func (r *semanticRouter) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		r.mu.Lock()
		c := r.choice
		if message.GetRequestHeaders() != nil {
			r.asked++
		}
		r.mu.Unlock()
		answer, err := c.answer(message)
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (c choice) answer(message *extprocv3.ProcessingRequest) (*extprocv3.ProcessingResponse, error) {
	answer := &extprocv3.ProcessingResponse{}
	switch m := message.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		answer.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
	case *extprocv3.ProcessingRequest_RequestBody:
		if c.cached != "" {
			answer.Response = &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{Body: []byte(c.cached)}}
			return answer, nil
		}
		common, err := c.mutation(m.RequestBody.GetBody())
		if err != nil {
			return nil, err
		}
		answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		answer.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "the gateway sent a %T", m)
	}
	return answer, nil
}

func (c choice) mutation(body []byte) (*extprocv3.CommonResponse, error) {
	headers := &extprocv3.HeaderMutation{}
	set := func(name, value string) {
		headers.SetHeaders = append(headers.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)}})
	}
	if c.alias != "" {
		set("x-selected-model", c.alias)
	}
	for name, value := range c.decision {
		set(name, value)
	}
	common := &extprocv3.CommonResponse{HeaderMutation: headers, ClearRouteCache: c.reroute}
	if c.served == "" {
		return common, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	members["model"] = fmt.Appendf(nil, "%q", c.served)
	body, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	headers.RemoveHeaders = []string{"content-length"}
	set("content-length", fmt.Sprint(len(body)))
	common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
	return common, nil
}

// auto asks the router to choose.
const auto = `{"model":"auto","prompt":"hello","max_tokens":1}`

const (
	residencyKey    = "requirement.residency.berth.dev/residency"
	residencyHeader = "x-residency"
)

// routed is a fleet of two replicas in the EU and one elsewhere behind a router. Its
// policy requires an intent and knows one alias.
func routed(t *testing.T, edit func(bootstrap tree)) (*fleet, *semanticRouter) {
	t.Helper()
	router := startSemanticRouter(t)
	f := start(t, spec{
		engines: engines(3, enginesim.Config{}),
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i, region := range []string{"eu", "eu", "us"} {
				m[i].Labels = map[string]string{"berth.dev/residency": region}
			}
			return m
		},
		berth: tree{
			"intent": tree{"required": true},
			"models": tree{"aliases": tree{"fast": []any{"sim-model"}}},
		},
	})
	o := f.gatewayOptions(f.members)
	o.Router = &gateway.Router{
		Address:         router.address,
		DecisionHeaders: []gateway.HeaderMapping{{Header: residencyHeader, Key: residencyKey}},
	}
	f.envoy = startEnvoy(t, o, edit)
	return f, router
}

func TestA1_TheRouterChoosesTheModelAndThePickerTheReplica(t *testing.T) {
	f, router := routed(t, nil)
	router.chooses(choice{alias: "fast", served: "sim-model"})
	for version, c := range f.clients() {
		t.Run(version, func(t *testing.T) {
			seen := map[string]bool{}
			eventually(t, "every replica has served the model", func() bool {
				a := f.post(c, auto)
				if a.status != http.StatusOK || a.header.Get("X-Berth-Acted") != "confirmed" {
					t.Fatalf("status %d, acted %q, %s; want 200 and confirmed", a.status, a.header.Get("X-Berth-Acted"), a.body)
				}
				// The engine answers with the model that it was asked for.
				if !strings.Contains(a.body, `"model":"sim-model"`) {
					t.Fatalf("the replica was not asked for the served id: %s", a.body)
				}
				seen[a.engine()] = true
				return len(seen) == 3
			})
			d := f.record(f.post(c, auto).decision())
			if i := d.Intent; i.Source != "metadata" || i.LogicalModel != "fast" || i.Model != "sim-model" || !slices.Equal(i.Models, []string{"sim-model"}) {
				t.Errorf("the record has the intent %+v, want logical model fast from metadata, served as sim-model", i)
			}
			for i, e := range f.engines {
				for _, name := range []string{"x-selected-model", residencyHeader} {
					if got, reached := e.Arrivals().Last.Headers[name]; reached {
						t.Errorf("e%d got %s: %s", i+1, name, got)
					}
				}
			}
			// As operators see it.
			var shown v1alpha1.Decision
			if err := json.Unmarshal(fetch(t, f.admin+"/v1alpha1/decisions/"+d.ID), &shown); err != nil || shown.Intent.Source != "metadata" {
				t.Errorf("the admin endpoint shows the source %q, %v; want metadata", shown.Intent.Source, err)
			}
		})
	}
}

func TestA20_WhatTheRouterDecidesNarrowsTheReplicas(t *testing.T) {
	f, router := routed(t, nil)
	for _, tc := range []struct {
		region  string
		allowed []string // none: residency_unmet
	}{
		{"eu", []string{"e1", "e2"}},
		{"us", []string{"e3"}},
		{"us, eu", []string{"e1", "e2", "e3"}},
		{"ch", nil},
	} {
		t.Run(tc.region, func(t *testing.T) {
			router.chooses(choice{alias: "fast", served: "sim-model", decision: map[string]string{residencyHeader: tc.region}})
			before := f.counts()
			for range 20 {
				a := f.post(f.h1, auto)
				if tc.allowed == nil {
					expectRefusal(t, a, 403, "residency_unmet")
				} else if a.status != http.StatusOK || !slices.Contains(tc.allowed, a.engine()) {
					t.Errorf("status %d from %q, want 200 from one of %v", a.status, a.engine(), tc.allowed)
				}
			}
			for i, n := range f.counts() {
				if name := fmt.Sprintf("e%d", i+1); n > before[i] && !slices.Contains(tc.allowed, name) {
					t.Errorf("%d requests reached %s, which is not in %s", n-before[i], name, tc.region)
				}
			}
		})
	}
}

func TestAClientThatSpeaksAsTheRouterIsNotHeard(t *testing.T) {
	f, router := routed(t, nil)
	forge := func(req *http.Request) {
		for name, value := range map[string]string{
			"x-selected-model": "sim-model", residencyHeader: "us", "x-berth-intent": "x.y.z",
			"x-gateway-destination-endpoint": f.engines[2].Addr(),
		} {
			req.Header[http.CanonicalHeaderKey(name)] = []string{value, value}
		}
	}
	for version, c := range f.clients() {
		t.Run(version+", beside what the router says", func(t *testing.T) {
			router.chooses(choice{alias: "fast", served: "sim-model", decision: map[string]string{residencyHeader: "eu"}})
			for range 20 {
				req := f.request(t.Context(), http.MethodPost, completions, auto)
				forge(req)
				a := f.do(c, req)
				if a.status != http.StatusOK || a.engine() == "e3" {
					t.Fatalf("status %d from %q, want 200 from the EU: %s", a.status, a.engine(), a.body)
				}
				if i := f.record(a.decision()).Intent; i.LogicalModel != "fast" {
					t.Fatalf("the logical model is %q, want the router's", i.LogicalModel)
				}
			}
		})
		t.Run(version+", where the router says nothing", func(t *testing.T) {
			before := f.total()
			for name, silent := range map[string]choice{"no header": {}, "auto": {alias: "auto"}} {
				router.chooses(silent)
				for _, method := range []string{http.MethodPost, http.MethodGet} {
					body := asks(1)
					if method == http.MethodGet {
						body = ""
					}
					req := f.request(t.Context(), method, completions, body)
					forge(req)
					t.Run(name+" "+method, func(t *testing.T) { expectRefusal(t, f.do(c, req), 403, "intent_required") })
				}
			}
			if n := f.total() - before; n != 0 {
				t.Errorf("%d requests reached a replica without an intent", n)
			}
		})
	}
	if n := f.metric(`berth_untrusted_headers_total{name="x-selected-model"}`); n != 0 {
		t.Errorf("%v of a client's headers reached the picker, want none", n)
	}
}

func TestAModelThatTheAliasDoesNotHaveIsRefused(t *testing.T) {
	f, router := routed(t, nil)
	for name, c := range map[string]choice{
		"the body keeps what the client asked for": {alias: "fast"},
		"the router serves it as something else":   {alias: "fast", served: "other"},
	} {
		router.chooses(c)
		t.Run(name, func(t *testing.T) { expectRefusal(t, f.post(f.h1, auto), 403, "model_not_eligible") })
	}
	if n := f.total(); n != 0 {
		t.Errorf("%d requests reached a replica", n)
	}
}

func TestA17_AnAnswerOfTheRoutersOwnIsNoDecision(t *testing.T) {
	f, router := routed(t, nil)
	router.chooses(choice{cached: `{"cached":true}`})
	for version, c := range f.clients() {
		if a := f.post(c, auto); a.status != http.StatusOK || a.body != `{"cached":true}` || a.decision() != "" {
			t.Errorf("%s: status %d, decision %q, %s; want the router's answer and no decision", version, a.status, a.decision(), a.body)
		}
	}
	if n, records := f.total(), len(f.log.ended(t)); n != 0 || records != 0 {
		t.Errorf("%d requests reached a replica and %d were recorded, want none", n, records)
	}
	f.awaitInFlight(map[string]int{})
}

func TestA18_WithoutARouterOrWithoutAPickerNobodyServes(t *testing.T) {
	f, router := routed(t, nil)
	router.chooses(choice{alias: "fast", served: "sim-model"})
	closed := func(t *testing.T) {
		t.Helper()
		before := f.total()
		for version, c := range f.clients() {
			for _, req := range []*http.Request{
				f.request(t.Context(), http.MethodPost, completions, auto),
				f.request(t.Context(), http.MethodGet, "/v1/models", ""),
			} {
				req.Header.Set("X-Gateway-Destination-Endpoint", f.engines[0].Addr())
				if a := f.do(c, req); a.status != http.StatusInternalServerError || a.engine() != "" {
					t.Errorf("%s %s: status %d from %q, want 500 from nobody", version, req.Method, a.status, a.engine())
				}
			}
		}
		if n := f.total() - before; n != 0 {
			t.Errorf("%d requests reached a replica", n)
		}
	}
	if a := f.post(f.h1, auto); a.status != http.StatusOK {
		t.Fatalf("status %d with both, want 200: %s", a.status, a.body)
	}
	f.stopPicker()
	t.Run("no picker", closed)
	if n := router.requests(); n == 0 {
		t.Error("the router was not asked, want it to be asked first")
	}
	f.startPicker()
	o := f.gatewayOptions(f.members)
	o.Router = &gateway.Router{Address: router.address}
	f.envoy = startEnvoy(t, o, nil)
	a := f.post(f.h1, auto)
	if a.status != http.StatusOK {
		t.Fatalf("status %d with both again, want 200: %s", a.status, a.body)
	}
	f.record(a.decision())
	router.stop()
	records := len(f.log.ended(t))
	t.Run("no router", closed)
	if n := len(f.log.ended(t)) - records; n != 0 {
		t.Errorf("the picker was asked to place %d requests, want none", n)
	}
}

// TestAModelOfAProviderTakesItsOwnRoute: routes may match the router's header, since
// the route is chosen anew when the router asks for it, and before the header goes.
func TestAModelOfAProviderTakesItsOwnRoute(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, string(body))
		_, _ = io.WriteString(w, "from the provider")
	}))
	defer provider.Close()
	f, router := routed(t, func(bootstrap tree) {
		addProvider(bootstrap, provider.Listener.Addr().String(), tree{
			"prefix":  "/",
			"headers": []any{tree{"name": "x-selected-model", "string_match": tree{"exact": "large"}}},
		})
	})
	router.chooses(choice{alias: "fast", served: "sim-model", reroute: true})
	if a := f.post(f.h1, auto); a.status != http.StatusOK || a.engine() == "" {
		t.Fatalf("a model of the pool: status %d from %q, want 200 from a replica: %s", a.status, a.engine(), a.body)
	}
	f.stopPicker()
	router.chooses(choice{alias: "large", served: "provider/large-1", reroute: true})
	before := f.total()
	if a := f.post(f.h1, auto); a.status != http.StatusOK || a.body != "from the provider" {
		t.Errorf("a model of the provider: status %d, %s; want the provider's answer", a.status, a.body)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := f.total() - before; n != 0 || len(bodies) != 1 || !strings.Contains(bodies[0], `"model":"provider/large-1"`) {
		t.Errorf("%d requests reached replicas, and the provider got %q; want none, and the one with its model", n, bodies)
	}
}
