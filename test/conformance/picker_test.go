// Package conformance lets the request builders of the Gateway API Inference
// Extension (GIE) v1.5.0 drive a whole picker over gRPC, in two tables.
//
// protocol_test.go goes through the endpoint picker protocol
// (docs/proposals/004-endpoint-picker-protocol of the GIE module): one case per
// demand on the picker. One is left out: 429 for a request that is dropped under
// load, since this picker drops none. One is read narrowly: an eligible endpoint
// of a subset is one that is ready. If those that are ready serve other models,
// the answer is 404, with a subset as without one.
//
// differences_test.go lists where the answers differ, on purpose, from those of
// the picker that GIE ships: what that one does, with the file of the GIE
// module that says so, what this one does, and why. The table is also a section
// of docs/protocol.md. showing_test.go has one test per entry.
//
// builders_test.go is what every builder makes and what is answered to it.
//
// The builders leave out what every gateway sends: the method, the path and the
// content type. atPath adds them.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/host"
)

// patience is how long a thing may take that must happen, on a busy machine.
const patience = time.Minute

// Names of the endpoint picker protocol, as its text has them.
const (
	destination     = "x-gateway-destination-endpoint"
	lbNamespace     = "envoy.lb"
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	servedKey       = "x-gateway-destination-endpoint-served"
)

// Paths of requests.
const (
	completions = "/v1/completions"
	chat        = "/v1/chat/completions"
)

// Shorter names for what every test handles.
type (
	asked    = *extprocv3.ProcessingRequest
	answered = *extprocv3.ProcessingResponse
)

const endpointPickerConfig = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: kv-cache-utilization}
- {type: active-requests}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: kv-cache-utilization, weight: 2}
  - {pluginRef: active-requests, weight: 1}
  - {pluginRef: berth-picker}
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
discovery: {file: pool.yaml}
`

// Members of a BerthConfiguration.
const (
	// unread reads no engine, so that addresses in the pool need not exist.
	unread = "telemetry: {mode: none}\n"
	// unhurried leaves time for a machine that is busy with other tests.
	unhurried = "limits: {uploadIdle: 1m, decisionDeadline: 30s}\n"
	// silent is what most tests need.
	silent = unread + unhurried
)

// A picker is a whole one, inside the test's process, with one gateway's
// connection to it.
type picker struct {
	t    *testing.T
	host *host.Host
	conn *grpc.ClientConn
}

// start starts a picker with the given members of a BerthConfiguration and of
// the pool. It ends with the test.
func start(t *testing.T, berth string, members ...v1alpha1.StaticEndpoint) *picker {
	t.Helper()
	dir := t.TempDir()
	pool, err := yaml.Marshal(v1alpha1.StaticPool{
		APIVersion:  v1alpha1.Version,
		Kind:        v1alpha1.KindStaticPool,
		Metadata:    v1alpha1.PoolMetadata{Namespace: "local", Name: "conformance"},
		FailureMode: v1alpha1.FailClose,
		Endpoints:   append([]v1alpha1.StaticEndpoint{}, members...),
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "berth.yaml")
	for path, text := range map[string]string{filepath.Join(dir, "pool.yaml"): string(pool), config: endpointPickerConfig + berth} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const free = "127.0.0.1:0"
	h, err := host.Start(context.Background(), host.Options{
		ConfigFile:     config,
		ExtProcAddress: free, HealthAddress: free, MetricsAddress: free, AdminAddress: free,
		Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Stop)
	conn, err := grpc.NewClient("passthrough:///"+h.ExtProcAddr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	// Runs before the picker stops, which then has no stream to wait for.
	t.Cleanup(func() { _ = conn.Close() })
	return &picker{t, h, conn}
}

// at is a member of the pool, named after its address.
func at(address string, change ...func(*v1alpha1.StaticEndpoint)) v1alpha1.StaticEndpoint {
	a := netip.MustParseAddrPort(address)
	e := v1alpha1.StaticEndpoint{Name: address, Address: a.Addr().String(), Port: int(a.Port()), Engine: "vllm"}
	for _, f := range change {
		f(&e)
	}
	return e
}

func notReady(e *v1alpha1.StaticEndpoint) {
	ready := false
	e.Ready = &ready
}

func serving(models ...string) func(*v1alpha1.StaticEndpoint) {
	return func(e *v1alpha1.StaticEndpoint) { e.ServedModels = models }
}

// three members, which GIE's own suites have too.
func three() []v1alpha1.StaticEndpoint {
	return []v1alpha1.StaticEndpoint{at("192.168.1.1:8000"), at("192.168.1.2:8000"), at("192.168.1.3:8000")}
}

// stream opens a stream, which ends with the test at the latest.
func (p *picker) stream() extprocv3.ExternalProcessor_ProcessClient {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(p.conn).Process(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return stream
}

// talk has a gateway send messages on a stream of its own, and returns the
// answers. n is how many to wait for; those beyond, which must not be, are
// returned too. err is what the stream ended with after the gateway closed its
// side of it; nil stands for an orderly end.
func (p *picker) talk(messages []asked, n int) (answers []answered, err error) {
	p.t.Helper()
	stream := p.stream()
	answers, err = integration.StreamedRequest(p.t, stream, messages, n)
	if err != nil {
		return answers, err
	}
	if err := stream.CloseSend(); err != nil {
		p.t.Fatal(err)
	}
	for {
		more, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return answers, nil
		}
		if err != nil {
			return answers, err
		}
		answers = append(answers, more)
	}
}

// expect compares the answers to messages with want, one text per answer, as
// tell has it.
func (p *picker) expect(messages []asked, want ...string) {
	p.t.Helper()
	answers, err := p.talk(messages, len(want))
	got := make([]string, len(answers))
	for i, a := range answers {
		got[i] = tell(a)
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("answered\n\t%s\nwant\n\t%s\nthe stream ended with: %v", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"), err)
	}
}

// expectError demands that messages get no answer and that the stream fails.
func (p *picker) expectError(messages []asked, code string) {
	p.t.Helper()
	answers, err := p.talk(messages, 0)
	if len(answers) != 0 || status.Code(err).String() != code {
		p.t.Errorf("%d answers, then %v; want no answer and %s", len(answers), err, code)
	}
}

// place returns the one answer that tells where the request goes.
func (p *picker) place(messages []asked) answered {
	p.t.Helper()
	answers, _ := p.talk(messages, 1)
	if len(answers) == 0 || answers[0].GetImmediateResponse() != nil {
		p.t.Fatalf("answered %v, want a destination", answers)
	}
	return answers[0]
}

// picks counts the destinations of n requests.
func (p *picker) picks(n int, messages func() []asked) map[string]int {
	p.t.Helper()
	count := map[string]int{}
	for range n {
		header, metadata := destinations(p.place(messages()))
		if header != metadata {
			p.t.Fatalf("the header says %q and the metadata %q, want the same", header, metadata)
		}
		count[header]++
	}
	return count
}

// tell says what an answer is, in a line:
//
//	request_headers to ADDRESS      the same destination in header and metadata
//	request_body to ADDRESS         likewise
//	request_body "BYTES", end       a streamed part; end is its end of stream
//	request_body                    as it is
//	503 pool_empty                  an immediate response
func tell(a answered) string {
	streamed := func(kind string, r *extprocv3.CommonResponse) string {
		part := r.GetBodyMutation().GetStreamedResponse()
		if part == nil {
			return kind
		}
		end := ""
		if part.GetEndOfStream() {
			end = ", end"
		}
		return fmt.Sprintf("%s %q%s", kind, part.GetBody(), end)
	}
	var what string
	switch r := a.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		what = "request_headers"
	case *extprocv3.ProcessingResponse_RequestBody:
		what = streamed("request_body", r.RequestBody.GetResponse())
	case *extprocv3.ProcessingResponse_RequestTrailers:
		what = "request_trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		what = "response_headers"
	case *extprocv3.ProcessingResponse_ResponseBody:
		what = streamed("response_body", r.ResponseBody.GetResponse())
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		what = "response_trailers"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		reason := setHeaders(r.ImmediateResponse.GetHeaders())["x-berth-reason"]
		what = fmt.Sprintf("%d %s", r.ImmediateResponse.GetStatus().GetCode(), reason)
	default:
		what = "nothing"
	}
	switch header, metadata := destinations(a); {
	case header == metadata && header != "":
		what += " to " + header
	case header != metadata:
		what += fmt.Sprintf(" to %q by header and %q by metadata", header, metadata)
	}
	return what
}

// destinations are what an answer says of the destination, in either way.
func destinations(a answered) (header, metadata string) {
	header = setHeaders(mutation(a))[destination]
	metadata = a.GetDynamicMetadata().GetFields()[lbNamespace].GetStructValue().GetFields()[destination].GetStringValue()
	return header, metadata
}

// mutation is what an answer changes of headers; nil if nothing.
func mutation(a answered) *extprocv3.HeaderMutation {
	switch r := a.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return r.RequestHeaders.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_RequestBody:
		return r.RequestBody.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return r.ResponseHeaders.GetResponse().GetHeaderMutation()
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return r.ImmediateResponse.GetHeaders()
	}
	return nil
}

// setHeaders are the headers that a mutation sets, by name in lower case.
func setHeaders(m *extprocv3.HeaderMutation) map[string]string {
	set := make(map[string]string, len(m.GetSetHeaders()))
	for _, h := range m.GetSetHeaders() {
		value := h.GetHeader().GetValue()
		if raw := h.GetHeader().GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		set[strings.ToLower(h.GetHeader().GetKey())] = value
	}
	return set
}

// atPath adds what the builders leave out of a request: it is a POST of JSON to
// the path, as far as its headers do not say otherwise.
func atPath(path string, messages []asked) []asked {
	headers := messages[0].GetRequestHeaders().GetHeaders()
	for _, h := range []*corev3.HeaderValue{
		{Key: ":method", Value: "POST"}, {Key: ":path", Value: path}, {Key: "content-type", Value: "application/json"},
	} {
		said := func(other *corev3.HeaderValue) bool { return other.GetKey() == h.Key }
		if !slices.ContainsFunc(headers.GetHeaders(), said) {
			headers.Headers = append(headers.Headers, h)
		}
	}
	return messages
}

// prompt is a completion request by GIE's usual builder. Its body is
// {"max_tokens":100,"model":"my-model","prompt":"test1","temperature":0}.
func prompt() []asked {
	return atPath(completions, integration.ReqLLM(logr.Discard(), "test1", "my-model", ""))
}

// promptBody is the body of prompt.
const promptBody = `{"max_tokens":100,"model":"my-model","prompt":"test1","temperature":0}`

// promptIn is prompt with a subset.
func promptIn(subset ...string) []asked {
	return atPath(completions, integration.GenerateStreamedRequestSet(logr.Discard(), "test1", "my-model", "", subset))
}

// raw is a request with a body of one's own, in pieces.
func raw(path string, pieces ...string) []asked {
	return atPath(path, integration.ReqRaw(map[string]string{"hi": "mom"}, pieces...))
}

// bodiless is a request without a body.
func bodiless() []asked {
	return integration.ReqHeaderOnly(map[string]string{":method": "GET", ":path": "/v1/models"})
}

// generate is a request of vLLM's gRPC API, which holds generateBody.
func generate() []asked {
	return overGRPC(integration.ReqGRPCLLM(logr.Discard(), "test1", "", integration.GenerateGRPCMethodName))
}

// generateBody is a GenerateRequest with the text "test1" (field 3, a string of
// 5 bytes) behind gRPC's prefix: not compressed, 7 bytes.
const generateBody = "\x00\x00\x00\x00\x07\x1a\x05test1"

func overGRPC(messages []asked) []asked {
	headers := messages[0].GetRequestHeaders().GetHeaders()
	headers.Headers = append(headers.Headers, &corev3.HeaderValue{Key: "content-type", Value: "application/grpc"})
	return atPath("", messages)
}

// restrict puts a subset, of whatever type, on one message.
func restrict(message asked, subset *structpb.Value) {
	message.MetadataContext = filterMetadata(subsetNamespace, subsetKey, subset)
}

func filterMetadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: value}},
	}}
}

// requestTrailers ends a request whose last body message must not.
func requestTrailers() asked {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
}

// responseHeaders is a response's beginning; served, unless empty, is who gave
// it.
func responseHeaders(served, contentType string) asked {
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":status", RawValue: []byte("200")}, {Key: "content-type", RawValue: []byte(contentType)},
		}}},
	}}
	if served != "" {
		m.MetadataContext = filterMetadata(lbNamespace, servedKey, structpb.NewStringValue(served))
	}
	return m
}

func responsePart(part string, end bool) asked {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: end},
	}}
}

func responseTrailers() asked {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// awaitQueues waits until the picker knows the queue of every member: whether
// it is empty, by address.
func (p *picker) awaitQueues(empty map[string]bool) {
	p.t.Helper()
	eventually(p.t, "the picker has read the queue of every engine", func() bool {
		known := 0
		for _, o := range p.observations() {
			queue := o.Fields["queueDepth"]
			length, ok := queue.Value.(float64)
			if ok && queue.State == v1alpha1.Fresh && (length == 0) == empty[o.Replica.Address] {
				known++
			}
		}
		return known == len(empty)
	})
}

func (p *picker) observations() []v1alpha1.Observation {
	p.t.Helper()
	resp, err := http.Get("http://" + p.host.AdminAddr().String() + "/v1alpha1/replicas")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var page bytes.Buffer
	if _, err := page.ReadFrom(resp.Body); err != nil {
		p.t.Fatal(err)
	}
	var doc struct {
		Items []v1alpha1.Observation `json:"items"`
	}
	if err := json.Unmarshal(page.Bytes(), &doc); err != nil {
		p.t.Fatal(err)
	}
	return doc.Items
}

// eventually asks again and again until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-limit.C:
			t.Fatalf("not within %v: %s", patience, what)
		case <-again.C:
		}
	}
}
