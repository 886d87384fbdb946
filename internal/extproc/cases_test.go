package extproc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/response"
)

// Inputs that are known to break endpoint pickers, each with what is right. The
// scripts in testdata hold those that are a conversation; here are those that
// are a whole kind: every cut, every mode, every type.

// raw is a header whose value comes in raw_value, as from Envoy by default.
func raw(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
}

// said sends one message and returns the next n answers.
func (r *rig) said(x *exchange, m message, n int) []*extprocv3.ProcessingResponse {
	r.t.Helper()
	if err := x.stream.Send(m.proto()); err != nil {
		r.t.Fatalf("sending %s: %v", m, err)
	}
	answers := make([]*extprocv3.ProcessingResponse, n)
	for i := range answers {
		answer, err := x.stream.Recv()
		if err != nil {
			r.t.Fatalf("after %s: %v", m, err)
		}
		answers[i] = answer
	}
	return answers
}

// partMessages sends each part as it is, the last one with the end of the stream.
func partMessages(k kind, parts []string) []message {
	messages := make([]message, len(parts))
	for i, part := range parts {
		messages[i] = message{kind: k, body: []byte(part), eos: i == len(parts)-1, mode: -1, respMode: -1}
	}
	return messages
}

// upload plays a whole request in full duplex and returns the answers to it.
func (r *rig) upload(x *exchange, parts []string) (headers *extprocv3.ProcessingResponse, bodies []*extprocv3.ProcessingResponse) {
	r.t.Helper()
	r.said(x, message{kind: requestHeaders, mode: 4, respMode: 4}, 0)
	filled := 0
	for _, part := range parts {
		if part != "" {
			filled++
		}
	}
	messages := partMessages(requestBody, parts)
	for _, m := range messages[:len(messages)-1] {
		r.said(x, m, 0)
	}
	answers := r.said(x, messages[len(messages)-1], 1+max(filled, 1))
	return answers[0], answers[1:]
}

// download plays a whole response in full duplex and returns the answers to its
// body.
func (r *rig) download(x *exchange, headers []*corev3.HeaderValue, parts []string) []*extprocv3.ProcessingResponse {
	r.t.Helper()
	r.said(x, message{kind: responseHeaders, mode: -1, respMode: -1, headers: headers}, 1)
	var bodies []*extprocv3.ProcessingResponse
	for _, m := range partMessages(responseBodyKind, parts) {
		bodies = append(bodies, r.said(x, m, 1)...)
	}
	return bodies
}

// streamedOf joins body answers. Each must be in streamed form, and the last one
// alone end the stream.
func streamedOf(answers []*extprocv3.ProcessingResponse) (string, error) {
	var all []byte
	for i, answer := range answers {
		common := answer.GetRequestBody().GetResponse()
		if common == nil {
			common = answer.GetResponseBody().GetResponse()
		}
		part := common.GetBodyMutation().GetStreamedResponse()
		if part == nil {
			return "", fmt.Errorf("answer %d, %s, is not in streamed form", i, kindOf(answer))
		}
		if end := i == len(answers)-1; part.GetEndOfStream() != end {
			return "", fmt.Errorf("answer %d of %d ends the stream: %t", i, len(answers), part.GetEndOfStream())
		}
		all = append(all, part.GetBody()...)
	}
	return string(all), nil
}

func TestX2_HeadersAreAnsweredBeforeAnyPartOfTheBody(t *testing.T) {
	for _, parts := range [][]string{
		{`{"model":"m"}`}, {`{"model":`, `"m"}`, ``}, {`{`, `"model":`, `"m"}`}, {``, `{"model":"m"}`}, {``},
		strings.Split(`{"model":"m"}`, ""),
	} {
		t.Run(fmt.Sprintf("in %d parts, %q first", len(parts), parts[0]), func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			headers, bodies := r.upload(x, parts)
			if kindOf(headers) != requestHeaders || !destinationIn(headers) {
				t.Fatalf("the first answer is %s, with a destination: %t", kindOf(headers), destinationIn(headers))
			}
			for _, body := range bodies {
				if kindOf(body) != requestBody || destinationIn(body) {
					t.Fatalf("then came %s, with a destination: %t", kindOf(body), destinationIn(body))
				}
			}
			if got, err := streamedOf(bodies); err != nil || got != strings.Join(parts, "") {
				t.Errorf("the body came back as %q, %v", got, err)
			}
		})
	}
}

// A gateway that buffers sends the body only after the answer to the headers, one
// that streams in full duplex waits for nothing: in each mode the answer that the
// gateway waits for comes, and one of them has the destination.
func TestX3_EveryModeGetsTheAnswerThatItsGatewayWaitsFor(t *testing.T) {
	body := message{kind: requestBody, body: []byte(`{"model":"m"}`), eos: true, mode: -1, respMode: -1}
	for _, tt := range []struct {
		name string
		mode int32
		// atHeaders and atBody are the answers due after each message; destination
		// is the index of the one that has the destination, and blind is whether
		// the decision is made without the body.
		atHeaders, atBody []kind
		destination       int
		blind             bool
	}{
		{"none", 0, []kind{requestHeaders}, nil, 0, true},
		{"streamed", 1, []kind{requestHeaders}, []kind{requestBody}, 0, true},
		{"buffered", 2, []kind{requestHeaders}, []kind{requestBody}, 1, false},
		{"buffered partial", 3, []kind{requestHeaders}, []kind{requestBody}, 0, true},
		{"full duplex", 4, nil, []kind{requestHeaders, requestBody}, 0, false},
		{"not announced", -1, nil, []kind{requestHeaders, requestBody}, 0, false},
		{"announced and not known", 77, []kind{requestHeaders}, []kind{requestBody}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var seen Request
			r := newRig(t, &fakeDecider{onDecide: func(req *Request) *Refusal { seen = *req; return nil }}, Settings{})
			x := r.mustOpen()
			answers := r.said(x, message{kind: requestHeaders, mode: tt.mode, respMode: tt.mode}, len(tt.atHeaders))
			if tt.mode != 0 {
				answers = append(answers, r.said(x, body, len(tt.atBody))...)
			}
			for i, want := range slices.Concat(tt.atHeaders, tt.atBody) {
				if got := kindOf(answers[i]); got != want {
					t.Errorf("answer %d is %s, want %s", i, got, want)
				}
				if got := destinationIn(answers[i]); got != (i == tt.destination) {
					t.Errorf("answer %d has the destination: %t", i, got)
				}
			}
			if seen.BodySeen == tt.blind {
				t.Errorf("the decision saw the body: %t, want %t", seen.BodySeen, !tt.blind)
			}
		})
	}
}

func TestX6_UsageIsTheSameWhereverAStreamIsCut(t *testing.T) {
	const stream = "data: {\"choices\":[{\"delta\":{\"content\":\"h\u00e9 \U0001F680\"},\"finish_reason\":null}],\"usage\":null}\r\n\r\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":2," +
		"\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\r\n\r\n"
	sse := []*corev3.HeaderValue{raw(":status", "200"), raw("content-type", "text/event-stream")}
	r := newRig(t, &fakeDecider{}, Settings{})
	streams := 0
	play := func(parts []string) {
		t.Helper()
		x := r.mustOpen()
		r.play(x, headersOnly)
		got, err := streamedOf(r.download(x, sse, parts))
		if err != nil || got != stream {
			t.Fatalf("%q came back as %q, %v", parts, got, err)
		}
		_ = x.stream.CloseSend()
		r.end(x)
		streams++
	}
	for cut := range len(stream) + 1 {
		play([]string{stream[:cut], stream[cut:]})
	}
	bytewise := make([]string, len(stream))
	for i := range bytewise {
		bytewise[i] = stream[i : i+1]
	}
	play(bytewise)
	// The end of the stream is the protocol's, not the text's.
	play([]string{stream, "", ""})
	want := response.Facts{Input: 21, Output: 2, Cached: 16, Finished: true}
	for i, outcome := range r.decider.ends(t, streams) {
		if outcome.Answer != want || outcome.Cause != Complete {
			t.Fatalf("stream %d ended with %s, %+v; want complete, %+v", i, outcome.Cause, outcome.Answer, want)
		}
	}
}

func TestX8_AnAnswerOfAnyKindPassesUnchanged(t *testing.T) {
	const page = "<html><body>502 \"usage\": {\"prompt_tokens\": 3}</body></html>"
	for _, tt := range []struct {
		name, contentType, body string
		want                    response.Facts
	}{
		{"usage is a text", "application/json", `{"usage":"oops"}`, unstated},
		{"a detail is a number", "application/json", `{"usage":{"prompt_tokens":3,"prompt_tokens_details":0}}`, response.Facts{Input: 3, Output: -1, Cached: -1}},
		{"a count is a text", "application/json", `{"usage":{"prompt_tokens":"1024"}}`, unstated},
		{"a list at the top", "application/json", `[{"usage":{"prompt_tokens":3}}]`, unstated},
		{"a page", "text/html", page, unstated},
		{"a page that is announced as JSON", "application/json", page, unstated},
		{"a page that is announced as events", "text/event-stream", page, unstated},
		{"a document that breaks off", "application/json", `{"usage":{"prompt_tokens":3,"completion_tok`, response.Facts{Input: 3, Output: -1, Cached: -1}},
		{"bytes of any kind", "application/json", "\x00\xff\xfe{\"usage\"\x00:{", unstated},
		{"no content type", "", `{"usage":{"prompt_tokens":3}}`, unstated},
		{"a very deep document", "application/json", strings.Repeat(`{"usage":[`, 500), unstated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			r.play(x, headersOnly)
			var parts []string
			for chunk := range slices.Chunk([]byte(tt.body), 7) {
				parts = append(parts, string(chunk))
			}
			headers := []*corev3.HeaderValue{raw(":status", "200"), raw("content-type", tt.contentType)}
			if got, err := streamedOf(r.download(x, headers, parts)); err != nil || got != tt.body {
				t.Errorf("came back as %q, %v", got, err)
			}
			_ = x.stream.CloseSend()
			r.end(x)
			if got := r.decider.ends(t, 1)[0]; got.Answer != tt.want || got.Cause != Complete {
				t.Errorf("%s, %+v; want complete, %+v", got.Cause, got.Answer, tt.want)
			}
		})
	}
}

func TestX9_UsageOnAChunkEndsNothing(t *testing.T) {
	for name, parts := range map[string][]string{
		"cumulative, on each chunk": {
			"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":1}}\n\n",
			"data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":2}}\n\n",
			"data: {\"choices\":[{\"delta\":{\"content\":\"c\"}}],\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":15}}\n\n",
			"data: [DONE]\n\n",
		},
		"spread over events": {
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n",
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			r.play(x, headersOnly)
			sse := []*corev3.HeaderValue{raw(":status", "200"), raw("content-type", "text/event-stream")}
			answers := r.download(x, sse, parts)
			if got, err := streamedOf(answers); err != nil || got != strings.Join(parts, "") {
				t.Errorf("came back as %q, %v", got, err)
			}
			_ = x.stream.CloseSend()
			r.end(x)
			want := response.Facts{Input: 25, Output: 15, Cached: -1, Finished: name == "cumulative, on each chunk"}
			if got := r.decider.ends(t, 1)[0].Answer; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// Bodies pass as they are, so their framing is the gateway's: nothing here sets or
// removes a header of it, replaces a body, or overrides a mode, whatever the mode
// and however the request ends.
func TestX16_FramingIsNeverTouched(t *testing.T) {
	framing := []string{"content-length", "transfer-encoding", "trailer", "te", "connection", "content-encoding", ":status", ":path", ":authority", ":method"}
	check := func(t *testing.T, fullDuplex bool, answers []*extprocv3.ProcessingResponse) {
		t.Helper()
		for _, answer := range answers {
			var mutations []*extprocv3.HeaderMutation
			for _, common := range []*extprocv3.CommonResponse{
				answer.GetRequestHeaders().GetResponse(), answer.GetResponseHeaders().GetResponse(),
				answer.GetRequestBody().GetResponse(), answer.GetResponseBody().GetResponse(),
			} {
				mutations = append(mutations, common.GetHeaderMutation())
				if body := common.GetBodyMutation(); body != nil && (!fullDuplex || body.GetStreamedResponse() == nil) {
					t.Errorf("%s replaces the body: %v", kindOf(answer), body)
				}
				if common.GetStatus() != extprocv3.CommonResponse_CONTINUE || common.GetTrailers() != nil {
					t.Errorf("%s: %v", kindOf(answer), common)
				}
			}
			mutations = append(mutations, answer.GetImmediateResponse().GetHeaders(), answer.GetRequestTrailers().GetHeaderMutation(), answer.GetResponseTrailers().GetHeaderMutation())
			for _, m := range mutations {
				for _, h := range m.GetSetHeaders() {
					if slices.Contains(framing, strings.ToLower(h.GetHeader().GetKey())) {
						t.Errorf("%s sets %s", kindOf(answer), h.GetHeader().GetKey())
					}
				}
				if removed := m.GetRemoveHeaders(); len(removed) > 0 {
					t.Errorf("%s removes %v", kindOf(answer), removed)
				}
			}
			if answer.GetModeOverride() != nil || answer.GetOverrideMessageTimeout() != nil {
				t.Errorf("%s overrides what the gateway was told: %v", kindOf(answer), answer)
			}
		}
	}
	due := func(mode int32) (headers, body int) {
		switch mode {
		case 0:
			return 1, -1
		case 4:
			return 0, 2
		default:
			return 1, 1
		}
	}
	for mode := range int32(5) {
		t.Run(fmt.Sprintf("mode %d", mode), func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			atHeaders, atBody := due(mode)
			answers := r.said(x, message{kind: requestHeaders, mode: mode, respMode: mode, headers: []*corev3.HeaderValue{
				raw(":method", "POST"), raw("content-length", "13"), raw("transfer-encoding", "chunked"),
			}}, atHeaders)
			if atBody >= 0 {
				answers = append(answers, r.said(x, message{kind: requestBody, body: []byte(`{"model":"m"}`), eos: true, mode: -1, respMode: -1}, atBody)...)
			}
			answers = append(answers, r.said(x, message{kind: responseHeaders, mode: -1, respMode: -1, headers: []*corev3.HeaderValue{
				raw(":status", "200"), raw("content-type", "text/event-stream"), raw("content-length", "7"), raw("transfer-encoding", "chunked"),
			}}, 1)...)
			if mode != 0 {
				answers = append(answers, r.said(x, message{kind: responseBodyKind, body: []byte("data: 1"), mode: -1, respMode: -1}, 1)...)
				answers = append(answers, r.said(x, message{kind: responseBodyKind, eos: true, mode: -1, respMode: -1}, 1)...)
			}
			check(t, mode == 4, answers)
		})
	}
	t.Run("refused", func(t *testing.T) {
		r := newRig(t, &fakeDecider{onDecide: func(*Request) *Refusal { return &Refusal{Status: 503, Reason: "unhealthy"} }}, Settings{})
		x := r.mustOpen()
		check(t, true, r.said(x, message{kind: requestHeaders, eos: true, mode: -1, respMode: -1}, 1))
	})
}

func TestX22_StatusesOfAnyKindAreNoFault(t *testing.T) {
	for _, tt := range []struct {
		name    string
		headers []*corev3.HeaderValue
		want    int
	}{
		{"an error", []*corev3.HeaderValue{raw(":status", "503")}, 503},
		{"an error, in the other field", []*corev3.HeaderValue{{Key: ":status", Value: "503"}}, 503},
		{"letters", []*corev3.HeaderValue{raw(":status", "abc")}, 0},
		{"missing", nil, 0},
		{"empty", []*corev3.HeaderValue{raw(":status", "")}, 0},
		{"without its colon", []*corev3.HeaderValue{raw("status", "503")}, 0},
		{"with blanks", []*corev3.HeaderValue{raw(":status", " 200 ")}, 0},
		{"a fraction", []*corev3.HeaderValue{raw(":status", "200.0")}, 0},
		{"below all statuses", []*corev3.HeaderValue{raw(":status", "-5")}, 0},
		{"two digits", []*corev3.HeaderValue{raw(":status", "99")}, 0},
		{"beyond all numbers", []*corev3.HeaderValue{raw(":status", strings.Repeat("9", 400))}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status := -1
			r := newRig(t, &fakeDecider{onServed: func(s Served) *Refusal { status = s.Status; return nil }}, Settings{})
			x := r.mustOpen()
			r.play(x, headersOnly)
			r.said(x, message{kind: responseHeaders, mode: -1, respMode: -1, headers: tt.headers}, 1)
			r.play(x, respRest)
			_ = x.stream.CloseSend()
			r.end(x)
			if got := r.decider.ends(t, 1)[0].Cause; status != tt.want || got != Complete {
				t.Errorf("status %d, %s; want %d, complete", status, got, tt.want)
			}
			if n := r.panics.Load(); n != 0 {
				t.Errorf("%d panics", n)
			}
		})
	}
}

// A value may come in either of two fields, by the gateway's settings. What is
// read and what is answered is the same.
func TestHD3_BothFieldsOfAHeaderValueGiveIdenticalAnswers(t *testing.T) {
	type header struct{ name, value string }
	tests := []struct {
		name    string
		headers []header
		want    Request // beside what the test fills in itself
	}{
		{"all that is read", []header{
			{":method", "POST"}, {":path", "/v1/completions"}, {"content-type", "application/json"}, {"content-encoding", "identity"}, {"x-request-id", "7"},
		}, Request{Method: "POST", Path: "/v1/completions", ContentType: "application/json", ContentEncoding: "identity", RequestID: "7"}},
		{"mixed case", []header{{":Method", "POST"}, {":PATH", "/x"}, {"Content-Type", "text/plain"}, {"X-Request-ID", "7"}},
			Request{Method: "POST", Path: "/x", ContentType: "text/plain", RequestID: "7"}},
		{"of two copies the first counts", []header{{":path", "/a"}, {":path", "/b"}, {"x-request-id", "1"}, {"X-Request-Id", "2"}},
			Request{Path: "/a", RequestID: "1"}},
		{"an empty copy is none", []header{{"x-request-id", ""}, {"x-request-id", "2"}}, Request{RequestID: "2"}},
		{"empty values", []header{{":method", ""}, {":path", ""}, {"content-type", ""}, {"x-request-id", ""}}, Request{}},
		{"text outside ASCII", []header{{":path", "/é"}, {"x-request-id", "naïve"}}, Request{Path: "/é", RequestID: "naïve"}},
		{"each copy of an intent, an empty one too", []header{{"X-Berth-Intent", "a"}, {"x-berth-intent", ""}}, Request{SignedIntents: []string{"a", ""}}},
		{"headers that are kept", []header{{"X-Selected-Model", "m"}, {"x-other", "o"}, {"x-selected-model", ""}},
			Request{Kept: []Header{{"x-selected-model", "m"}, {"x-selected-model", ""}}}},
		{"nothing", nil, Request{}},
	}
	fields := []struct {
		name string
		make func(h header) *corev3.HeaderValue
	}{
		{"value", func(h header) *corev3.HeaderValue { return &corev3.HeaderValue{Key: h.name, Value: h.value} }},
		{"raw_value", func(h header) *corev3.HeaderValue { return raw(h.name, h.value) }},
		// Not sent by gateways that follow the protocol: the raw one counts.
		{"both", func(h header) *corev3.HeaderValue {
			if h.value == "" {
				return raw(h.name, "")
			}
			return &corev3.HeaderValue{Key: h.name, Value: "other", RawValue: []byte(h.value)}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var first []*extprocv3.ProcessingResponse
			for _, field := range fields {
				var seen Request
				var status int
				r := newRig(t, &fakeDecider{
					onDecide: func(req *Request) *Refusal { seen = *req; return nil },
					onServed: func(s Served) *Refusal { status = s.Status; return nil },
				}, Settings{})
				x := r.mustOpen()
				var headers []*corev3.HeaderValue
				for _, h := range tt.headers {
					headers = append(headers, field.make(h))
				}
				answers := r.said(x, message{kind: requestHeaders, eos: true, mode: -1, respMode: -1, headers: headers}, 1)
				answers = append(answers, r.said(x, message{kind: responseHeaders, mode: -1, respMode: -1, headers: []*corev3.HeaderValue{
					field.make(header{":status", "429"}), field.make(header{"content-type", "application/json"}),
				}}, 1)...)
				answers = append(answers, r.said(x, message{kind: responseBodyKind, eos: true, mode: -1, respMode: -1, body: []byte(`{"usage":{"prompt_tokens":3}}`)}, 1)...)
				_ = x.stream.CloseSend()
				r.end(x)

				got := Request{Method: seen.Method, Path: seen.Path, ContentType: seen.ContentType, ContentEncoding: seen.ContentEncoding,
					RequestID: seen.RequestID, SignedIntents: seen.SignedIntents, Kept: seen.Kept}
				if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
					t.Errorf("%s: read %+v, want %+v", field.name, got, tt.want)
				}
				if outcome := r.decider.ends(t, 1)[0]; status != 429 || outcome.Answer.Input != 3 {
					t.Errorf("%s: status %d, %d tokens in; want 429, 3", field.name, status, outcome.Answer.Input)
				}
				if first == nil {
					first = answers
				}
				for i := range answers {
					if !proto.Equal(answers[i], first[i]) {
						t.Errorf("%s: answer %d is\n%v, want\n%v", field.name, i, answers[i], first[i])
					}
				}
			}
			for _, h := range slices.Concat(
				first[0].GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders(),
				first[1].GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders(),
			) {
				if h.GetHeader().GetValue() != "" || len(h.GetHeader().GetRawValue()) == 0 {
					t.Errorf("%s is not set by raw_value alone", h.GetHeader().GetKey())
				}
			}
		})
	}
}

func TestHD9_BytesThatAreNoTextDoNoHarm(t *testing.T) {
	for _, value := range []string{"na\xefve", "\xff\xfe\x00", "\u2028", strings.Repeat("\xc3", 300), "00-\xff-\xff-01"} {
		var seen Request
		r := newRig(t, &fakeDecider{onDecide: func(req *Request) *Refusal { seen = *req; return nil }}, Settings{})
		var headers []*corev3.HeaderValue
		for _, name := range []string{":path", "content-type", "content-encoding", "x-request-id", "traceparent", "authorization", "content-length"} {
			headers = append(headers, raw(name, value))
		}
		x := r.mustOpen()
		answer := r.said(x, message{kind: requestHeaders, eos: true, mode: -1, respMode: -1, headers: headers}, 1)[0]
		if !destinationIn(answer) {
			t.Errorf("%q: no destination: %v", value, answer)
		}
		if seen.Path != value || seen.RequestID != value[:min(len(value), maxRequestIDBytes)] {
			t.Errorf("%q was read as path %q, id %q", value, seen.Path, seen.RequestID)
		}
		for _, h := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if bytes.Contains(h.GetHeader().GetRawValue(), []byte(value)) || h.GetHeader().GetKey() == "traceparent" {
				t.Errorf("%q: %s is set to %q", value, h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
			}
		}
	}
}

// What a body holds is between the client and the engine: the parts come back as
// they went in, wherever they are cut.
func TestR10_BodiesComeBackByteForByteWhereverTheyAreCut(t *testing.T) {
	r := newRig(t, &fakeDecider{}, Settings{})
	var mu sync.Mutex
	var decided string
	r.decider.onDecide = func(req *Request) *Refusal {
		mu.Lock()
		defer mu.Unlock()
		decided = string(req.Body)
		return nil
	}
	for _, body := range []string{
		`{"model":"m","seed":18446744073709551616,"temperature":0.10,"top_k":1e2,"x":1,"x":2,"unheard_of":{"a":[]}}`,
		"{ \"model\" :\t\"m\"\r\n}\n", "\x1f\x8b\x08\x00\xff\x00", "{\"a\":\"\xff\xfe\"}", "\x00",
	} {
		for cut := range len(body) + 1 {
			x := r.mustOpen()
			_, bodies := r.upload(x, []string{body[:cut], body[cut:]})
			if got, err := streamedOf(bodies); err != nil || got != body {
				t.Fatalf("cut at %d, %q came back as %q, %v", cut, body, got, err)
			}
			mu.Lock()
			if decided != body {
				t.Fatalf("cut at %d, %q was decided by %q", cut, body, decided)
			}
			mu.Unlock()
			if got, err := streamedOf(r.download(x, nil, []string{body[:cut], body[cut:]})); err != nil || got != body {
				t.Fatalf("as a response cut at %d, %q came back as %q, %v", cut, body, got, err)
			}
			x.cancel()
		}
	}
}

// An upgrade has no body: what follows waits for the replica's answer, so that
// waiting for it would be for ever.
func TestX12_AnUpgradeIsDecidedAtItsHeaders(t *testing.T) {
	upgrade := []*corev3.HeaderValue{raw(":method", "GET"), raw(":path", "/v1/realtime"), raw("Connection", "keep-alive, Upgrade"), raw("upgrade", "websocket")}
	for _, tt := range []struct {
		name    string
		mode    int32
		headers []*corev3.HeaderValue
		refused bool
	}{
		{"in full duplex", 4, upgrade, false},
		{"where no mode is announced", -1, upgrade, false},
		{"streamed", 1, upgrade, false},
		{"without the body", 0, upgrade, false},
		{"with a length that says there is a body", 4, append(slices.Clone(upgrade), raw("content-length", "9")), false},
		{"CONNECT", 4, []*corev3.HeaderValue{raw(":method", "CONNECT")}, false},
		{"buffered, where it could never pass", 2, upgrade, true},
		{"buffered in part", 3, upgrade, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			r.said(x, message{kind: requestHeaders, mode: tt.mode, respMode: tt.mode, headers: tt.headers}, 0)
			if tt.refused {
				if code, reason, _ := r.refusal(x); code != 501 || reason != "tunnel_unsupported" {
					t.Errorf("refused with %d %s, want 501 tunnel_unsupported", code, reason)
				}
				return
			}
			answer, err := x.stream.Recv()
			if err != nil || kindOf(answer) != requestHeaders || !destinationIn(answer) {
				t.Errorf("the headers were answered with %v, %v; want a destination", answer, err)
			}
		})
	}
}
