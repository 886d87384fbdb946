package main

import (
	"context"
	"fmt"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

// gateway is one connection to a picker, driven with the frames that Envoy
// sends in full duplex mode.
type gateway struct {
	conn   *grpc.ClientConn
	client extprocv3.ExternalProcessorClient

	requestHeaders, requestBody, responseBody *extprocv3.ProcessingRequest
}

// bodyBytes is the size of the bodies of a usual exchange.
const bodyBytes = 1 << 10

func dial(address string) (*gateway, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	answer := make([]byte, bodyBytes)
	for i := range answer {
		answer[i] = 'a' + byte(i%26)
	}
	return &gateway{
		conn:           conn,
		client:         extprocv3.NewExternalProcessorClient(conn),
		requestHeaders: requestHeaders(),
		requestBody: &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: shortBody(), EndOfStream: true},
		}},
		responseBody: responseBody(answer, true),
	}, nil
}

func (g *gateway) close() { _ = g.conn.Close() }

// shortBody is a chat request of bodyBytes.
func shortBody() []byte {
	const head, tail = `{"model":"` + model + `","stream":true,"max_tokens":128,"messages":[{"role":"user","content":"`, `"}]}`
	body := []byte(head)
	for len(body) < bodyBytes-len(tail) {
		body = append(body, "tell me how long "[len(body)%17])
	}
	return append(body, tail...)
}

func headers(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders() *extprocv3.ProcessingRequest {
	const duplex = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers(
			":method", "POST", ":path", "/v1/chat/completions", ":scheme", "http", ":authority", "models.example.com",
			"content-type", "application/json", "content-length", "1024", "accept", "text/event-stream",
			"user-agent", "openai-python/1.61.0", "authorization", "Bearer sk-0123456789abcdef",
			"x-forwarded-for", "10.1.2.3", "x-forwarded-proto", "http", "x-envoy-expected-rq-timeout-ms", "15000",
			"x-request-id", "5d1f3a52-2f57-4f5e-9a35-0ddc0a6a39b1",
		)}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex},
	}
}

// responseHeaders say that address gave the response.
func responseHeaders(address string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers(
			":status", "200", "content-type", "text/event-stream", "date", "Mon, 05 Jan 2026 10:00:00 GMT",
			"server", "uvicorn", "x-envoy-upstream-service-time", "12",
		)}},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"upstream.address":               structpb.NewStringValue(address),
			"upstream.request_attempt_count": structpb.NewNumberValue(1),
			"response.code_details":          structpb.NewStringValue("via_upstream"),
		}}},
	}
}

func responseBody(part []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: part, EndOfStream: end},
	}}
}

// exchange is one HTTP request on a stream of its own.
type exchange struct {
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

// begin sends a request and the headers of its response, and takes the answers.
func (g *gateway) begin(ctx context.Context) (*exchange, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := g.client.Process(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	x := &exchange{stream, cancel}
	if err := x.request(g); err != nil {
		cancel()
		return nil, err
	}
	return x, nil
}

func (x *exchange) request(g *gateway) error {
	for _, msg := range []*extprocv3.ProcessingRequest{g.requestHeaders, g.requestBody} {
		if err := x.stream.Send(msg); err != nil {
			return err
		}
	}
	answer, err := x.stream.Recv()
	if err != nil {
		return err
	}
	h := answer.GetRequestHeaders()
	if h == nil {
		return fmt.Errorf("request_headers are answered with %v", answer)
	}
	// An empty server picks nobody; what it is told is as long.
	served := "10.0.0.1:8000"
	for _, set := range h.GetResponse().GetHeaderMutation().GetSetHeaders() {
		if set.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			served = string(set.GetHeader().GetRawValue())
		}
	}
	if answer, err = x.stream.Recv(); err != nil {
		return err
	}
	if echo := streamed(answer.GetRequestBody()); len(echo) != bodyBytes {
		return fmt.Errorf("a request body of %d bytes comes back with %d", bodyBytes, len(echo))
	}
	if err := x.stream.Send(responseHeaders(served)); err != nil {
		return err
	}
	if answer, err = x.stream.Recv(); err != nil {
		return err
	}
	if answer.GetResponseHeaders() == nil {
		return fmt.Errorf("response_headers are answered with %v", answer)
	}
	return nil
}

func streamed(b *extprocv3.BodyResponse) []byte {
	return b.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()
}

// pass sends a part of the response and takes it back.
func (x *exchange) pass(msg *extprocv3.ProcessingRequest) error {
	if err := x.stream.Send(msg); err != nil {
		return err
	}
	answer, err := x.stream.Recv()
	if err != nil {
		return err
	}
	if sent, echo := len(msg.GetResponseBody().GetBody()), len(streamed(answer.GetResponseBody())); echo != sent {
		return fmt.Errorf("a part of the response of %d bytes comes back with %d", sent, echo)
	}
	return nil
}

// end is how Envoy ends a stream: by a reset.
func (x *exchange) end() { x.cancel() }

// run makes n exchanges over so many streams at a time.
func (g *gateway) run(ctx context.Context, n, streams int) error {
	var begun atomic.Int64
	workers, ctx := errgroup.WithContext(ctx)
	for range streams {
		workers.Go(func() error {
			for begun.Add(1) <= int64(n) {
				x, err := g.begin(ctx)
				if err != nil {
					return err
				}
				err = x.pass(g.responseBody)
				x.end()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return workers.Wait()
}
