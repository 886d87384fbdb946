package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

type mode = extprocfilterv3.ProcessingMode_BodySendMode

// modes are the ways in which a gateway sends bodies, the same for both here.
var modes = [...]mode{
	extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	extprocfilterv3.ProcessingMode_BUFFERED,
	extprocfilterv3.ProcessingMode_STREAMED,
	extprocfilterv3.ProcessingMode_NONE,
}

// talk is what a gateway says of one request and its response.
type talk struct {
	mode mode
	// headers, if not nil, are the request's in place of the usual ones.
	headers *extprocv3.ProcessingRequest
	// request and response are bodies in their parts. In buffered mode each is
	// one message, without a mode none.
	request, response [][]byte
}

// step is one message, and the answers that are due when it has come.
type step struct {
	message func(x *exchange) *extprocv3.ProcessingRequest
	due     []protoreflect.Name
}

// Kinds of answers.
const (
	requestHeadersAnswer   protoreflect.Name = "request_headers"
	requestBodyAnswer      protoreflect.Name = "request_body"
	responseHeadersAnswer  protoreflect.Name = "response_headers"
	responseBodyAnswer     protoreflect.Name = "response_body"
	responseTrailersAnswer protoreflect.Name = "response_trailers"
)

// usual is a chat request in two parts with a response in two parts.
func usual(m mode) talk {
	body := chatBody(1 << 10)
	return talk{
		mode:     m,
		request:  [][]byte{body[:len(body)/2], body[len(body)/2:]},
		response: [][]byte{[]byte("data: {\"choices\":[]}\n\n"), []byte("data: [DONE]\n\n")},
	}
}

// steps are the whole conversation. The response ends with trailers.
func (t talk) steps() []step {
	headers := t.headers
	if headers == nil {
		headers = requestHeaders(t.mode, "/v1/chat/completions")
	}
	fixed := func(m *extprocv3.ProcessingRequest, due ...protoreflect.Name) step {
		return step{func(*exchange) *extprocv3.ProcessingRequest { return m }, due}
	}
	request, response := t.request, t.response
	duplex := t.mode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	switch t.mode {
	case extprocfilterv3.ProcessingMode_NONE:
		request, response = nil, nil
	case extprocfilterv3.ProcessingMode_BUFFERED:
		request, response = [][]byte{bytes.Join(request, nil)}, [][]byte{bytes.Join(response, nil)}
	}

	var steps []step
	if duplex {
		steps = append(steps, fixed(headers))
	} else {
		steps = append(steps, fixed(headers, requestHeadersAnswer))
	}
	for i, part := range request {
		last := i == len(request)-1
		due := []protoreflect.Name{requestBodyAnswer}
		if duplex {
			due = nil
			if last {
				due = append([]protoreflect.Name{requestHeadersAnswer}, slices.Repeat([]protoreflect.Name{requestBodyAnswer}, len(request))...)
			}
		}
		steps = append(steps, fixed(requestBody(part, last), due...))
	}
	steps = append(steps, step{responseHeaders, []protoreflect.Name{responseHeadersAnswer}})
	for _, part := range response {
		steps = append(steps, fixed(responseBody(part), responseBodyAnswer))
	}
	return append(steps, fixed(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}},
	}, responseTrailersAnswer))
}

// decidedAt is the step whose answers name the destination.
func (t talk) decidedAt() int {
	switch t.mode {
	case extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		return len(t.request)
	case extprocfilterv3.ProcessingMode_BUFFERED:
		return 1
	default:
		return 0
	}
}

// say sends the steps and takes the answers of all of them, or of all but the
// last.
func (x *exchange) say(steps []step, takeLast bool) error {
	for i, s := range steps {
		if err := x.send(s.message(x)); err != nil {
			return err
		}
		if i == len(steps)-1 && !takeLast {
			return nil
		}
		if err := x.takeAll(s.due); err != nil {
			return err
		}
	}
	return nil
}

// pass has n whole conversations on one connection and wants all answers.
func pass(ctx context.Context, g *gateway, t talk, n int) error {
	steps := t.steps()
	return inParallel(ctx, n, 16, func(ctx context.Context, _ int) error {
		return passOne(ctx, g, t, steps)
	})
}

func passOne(ctx context.Context, g *gateway, t talk, steps []step) error {
	x, err := g.open(ctx)
	if err != nil {
		return err
	}
	defer x.cancel()
	if err := x.say(steps, true); err != nil {
		return err
	}
	if x.destination == "" {
		return fmt.Errorf("mode %s: no destination in the answers", t.mode)
	}
	if want := t.size(); t.mode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED && x.echoed != want {
		return fmt.Errorf("bodies of %d bytes come back with %d", want, x.echoed)
	}
	code, err := x.end()
	if err == nil && code != codes.OK {
		err = fmt.Errorf("a whole conversation ends with status %s", code)
	}
	return err
}

func (t talk) size() int {
	n := 0
	for _, part := range slices.Concat(t.request, t.response) {
		n += len(part)
	}
	return n
}

// chatBody is a chat request of n bytes.
func chatBody(n int) []byte {
	const head, tail = `{"model":"` + model + `","stream":true,"messages":[{"role":"user","content":"`, `"}]}`
	body := append(make([]byte, 0, n), head...)
	body = append(body, bytes.Repeat([]byte("tell me more, "), n/14)...)
	return append(body[:n-len(tail)], tail...)
}

// split cuts a body into parts of n bytes; the last may be shorter.
func split(body []byte, n int) [][]byte { return slices.Collect(slices.Chunk(body, n)) }

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// requestHeaders are of a request that has a body.
func requestHeaders(m mode, path string, more ...string) *extprocv3.ProcessingRequest {
	pairs := append([]string{
		":method", "POST", ":path", path, ":scheme", "http", ":authority", "models.example.com",
		"content-type", "application/json", "accept", "text/event-stream", "user-agent", "openai-python/1.61.0",
	}, more...)
	return &extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...)}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: m, ResponseBodyMode: m},
	}
}

func requestBody(part []byte, last bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: last},
	}}
}

// responseHeaders say that the response is from where the picker sent the
// request; before that, from the first endpoint.
func responseHeaders(x *exchange) *extprocv3.ProcessingRequest {
	address := endpointHost(0) + ":" + strconv.Itoa(endpointPort)
	if x.destination != "" {
		first, _, _ := bytes.Cut([]byte(x.destination), []byte(","))
		address = string(first)
	}
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(
			":status", "200", "content-type", "text/event-stream",
		)}},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"upstream.address":               structpb.NewStringValue(address),
			"upstream.request_attempt_count": structpb.NewNumberValue(1),
			"response.code_details":          structpb.NewStringValue("via_upstream"),
		}}},
	}
}

// responseBody is a part that is not the last: trailers follow.
func responseBody(part []byte) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: part},
	}}
}
