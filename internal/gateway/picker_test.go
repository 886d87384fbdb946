package gateway

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

const destinationKey = "x-gateway-destination-endpoint"

// A picker answers every request with one destination and passes everything
// else on. It is the smallest thing that speaks what the configuration
// announces, so that the configuration is tested alone.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	address netip.AddrPort

	mu          sync.Mutex
	destination string // empty: none is given
	exchanges   []exchange
}

// An exchange is what one stream told the picker.
type exchange struct {
	RequestHeaders map[string]string
	Intent         map[string]any // what the namespace of intents held with the request's headers
	Body           string         // of the request
	Trailers       bool
	Attributes     map[string]*structpb.Value
	Served         string // the metadata that Envoy wrote for the last attempt
}

func newPicker(t *testing.T) *picker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{address: netip.MustParseAddrPort(listener.Addr().String())}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return p
}

// answer sets the destination of the requests to come and forgets the past.
func (p *picker) answer(destination string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.destination, p.exchanges = destination, nil
}

// last is the newest exchange that has reached its response.
func (p *picker) last(t *testing.T) exchange {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.exchanges) == 0 {
		t.Fatal("no exchange has reached its response")
	}
	return p.exchanges[len(p.exchanges)-1]
}

func (p *picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	var x exchange
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &extprocv3.ProcessingResponse{}
		switch m := message.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			x.RequestHeaders = headers(m.RequestHeaders.GetHeaders())
			x.Intent = message.MetadataContext.GetFilterMetadata()["berth.dev"].AsMap()
			answer.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
			if answer.DynamicMetadata, err = p.pick(); err != nil {
				return err
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			x.Body += string(m.RequestBody.GetBody())
			answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: same(m.RequestBody)}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			x.Trailers = true
			answer.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			x.Attributes = message.Attributes["envoy.filters.http.ext_proc"].GetFields()
			x.Served = message.MetadataContext.GetFilterMetadata()["envoy.lb"].GetFields()[destinationKey+"-served"].GetStringValue()
			p.mu.Lock()
			p.exchanges = append(p.exchanges, x)
			p.mu.Unlock()
			answer.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			answer.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: same(m.ResponseBody)}
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			answer.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// pick is the destination, and what access logs are to show of the decision, as
// dynamic metadata.
func (p *picker) pick() (*structpb.Struct, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	namespaces := map[string]any{"berth.dev": map[string]any{"acknowledgement": map[string]any{"decision": "d1"}}}
	if p.destination != "" {
		namespaces["envoy.lb"] = map[string]any{destinationKey: p.destination}
	}
	return structpb.NewStruct(namespaces)
}

func headers(m *corev3.HeaderMap) map[string]string {
	all := make(map[string]string, len(m.GetHeaders()))
	for _, h := range m.GetHeaders() {
		all[h.Key] = string(h.RawValue)
	}
	return all
}

// same passes a piece of a body on as it came.
func same(b *extprocv3.HttpBody) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{
			Body: b.Body, EndOfStream: b.EndOfStream,
		}},
	}}}
}
