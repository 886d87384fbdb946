package conformance

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"
)

func TestWhatTheBuildersMakeIsPlacedAndPassedOn(t *testing.T) {
	none := logr.Discard()
	const to = "request_headers to 192.168.1.1:8000"
	// Of two fields protobuf does not say which comes first: the bytes to expect
	// are those that were made.
	streaming := overGRPC(integration.ReqGRPCLLMWithStream(none, "test1", "", integration.GenerateGRPCMethodName))
	for _, tc := range []struct {
		name     string
		messages []asked
		want     []string
	}{
		{
			"ReqLLM", atPath(completions, integration.ReqLLM(none, "test1", "my-model", "")),
			[]string{to, `request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`},
		},
		{
			"ReqLLM without a model", atPath(completions, integration.ReqLLM(none, "test1", "", "")),
			[]string{to, `request_body "{\"max_tokens\":100,\"prompt\":\"test1\",\"temperature\":0}", end`},
		},
		{
			"ReqLLMWithStream", atPath(completions, integration.ReqLLMWithStream(none, "test1", "my-model", "")),
			[]string{to, `request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"stream\":true,\"temperature\":0}", end`},
		},
		{
			"GenerateStreamedRequestSet with a subset",
			atPath(completions, integration.GenerateStreamedRequestSet(none, "test1", "my-model", "", []string{"192.168.1.1:8000", "192.168.1.2:8000"})),
			[]string{to, `request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`},
		},
		{
			"ReqRaw in pieces", raw(completions, `{"max_tokens":100,"model":"sql-lo`, `ra-sheddable","prompt":"test6","temperature":0}`),
			[]string{to, `request_body "{\"max_tokens\":100,\"model\":\"sql-lo"`, `request_body "ra-sheddable\",\"prompt\":\"test6\",\"temperature\":0}", end`},
		},
		{
			"ReqRaw in pieces of which the last is empty", raw(completions, `{"model":"m","prompt":"p"}`, ""),
			[]string{to, `request_body "{\"model\":\"m\",\"prompt\":\"p\"}", end`},
		},
		{
			"ReqRaw with headers and GenerateRequest for its body",
			append(raw(chat), integration.GenerateRequest(none, "test1", "my-model", nil)),
			[]string{to, `request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`},
		},
		{
			"ReqHeaderOnly", integration.ReqHeaderOnly(map[string]string{":method": "GET", ":path": "/v1/models"}),
			[]string{to},
		},
		{
			"ReqHeaderOnly as it is, without a method and a path", integration.ReqHeaderOnly(map[string]string{"content-type": "text/event-stream", "status": "200"}),
			[]string{to},
		},
		{
			"ReqGRPCLLM for Generate", overGRPC(integration.ReqGRPCLLM(none, "test1", "", integration.GenerateGRPCMethodName)),
			[]string{to, `request_body "\x00\x00\x00\x00\a\x1a\x05test1", end`},
		},
		{
			// EmbedRequest: tokenized is field 2, its original_text field 1.
			"ReqGRPCLLM for Embed", overGRPC(integration.ReqGRPCLLM(none, "test1", "", integration.EmbedGRPCMethodName)),
			[]string{to, `request_body "\x00\x00\x00\x00\t\x12\a\n\x05test1", end`},
		},
		{
			"ReqGRPCLLMWithStream", streaming,
			[]string{to, fmt.Sprintf("request_body %q, end", streaming[1].GetRequestBody().GetBody())},
		},
		{
			"GenerateStreamedGRPCRequestSet with a subset",
			overGRPC(integration.GenerateStreamedGRPCRequestSet(none, "test1", "", []string{"192.168.1.1:8000"}, integration.GenerateGRPCMethodName)),
			[]string{to, `request_body "\x00\x00\x00\x00\a\x1a\x05test1", end`},
		},
		{
			"CreateGrpcPayload in pieces",
			overGRPC(integration.ReqRaw(map[string]string{":path": integration.GenerateGRPCMethodName}, payload(t)[:6], payload(t)[6:])),
			[]string{to, `request_body "\x00\x00\x00\x00\a\x1a"`, `request_body "\x05test1", end`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, silent, at("192.168.1.1:8000"))
			p.expect(tc.messages, tc.want...)
		})
	}
}

// payload is a framed GenerateRequest, as GIE's own suite cuts it up.
func payload(t *testing.T) string {
	t.Helper()
	framed, err := integration.CreateGrpcPayload(integration.GRPCRequestProto("test1", integration.GenerateGRPCMethodName, false))
	if err != nil {
		t.Fatal(err)
	}
	if string(framed) != generateBody {
		t.Fatalf("the builder framed %q, want %q", framed, generateBody)
	}
	return string(framed)
}

func TestAWholeExchangeIsAnsweredMessageByMessage(t *testing.T) {
	for _, tc := range []struct {
		name     string
		messages []asked
		want     []string
	}{
		{
			"JSON",
			append(prompt(),
				responseHeaders("192.168.1.1:8000", "application/json"),
				responsePart(`{"model":"my-`, false), responsePart(`model"}`, false), responsePart("", true)),
			[]string{
				"request_headers to 192.168.1.1:8000",
				`request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`,
				"response_headers",
				`response_body "{\"model\":\"my-"`, `response_body "model\"}"`, `response_body "", end`,
			},
		},
		{
			"a response that is not JSON although it says so",
			append(prompt(), responseHeaders("192.168.1.1:8000", "application/json"), responsePart("no healthy upstream", true)),
			[]string{
				"request_headers to 192.168.1.1:8000",
				`request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`,
				"response_headers", `response_body "no healthy upstream", end`,
			},
		},
		{
			"server-sent events",
			append(prompt(), responseHeaders("192.168.1.1:8000", "text/event-stream"), responsePart("data: {}\n\n", false), responsePart("data: [DONE]\n\n", true)),
			[]string{
				"request_headers to 192.168.1.1:8000",
				`request_body "{\"max_tokens\":100,\"model\":\"my-model\",\"prompt\":\"test1\",\"temperature\":0}", end`,
				"response_headers", `response_body "data: {}\n\n"`, `response_body "data: [DONE]\n\n", end`,
			},
		},
		{
			"no body either way",
			append(bodiless(), responseHeaders("192.168.1.1:8000", "application/json"), responsePart("", true)),
			[]string{"request_headers to 192.168.1.1:8000", "response_headers", `response_body "", end`},
		},
		{
			"gRPC, which ends with trailers",
			append(generate(), responseHeaders("192.168.1.1:8000", "application/grpc"), responsePart("\x00\x00\x00\x00\x02\x0a\x00", false), responseTrailers()),
			[]string{
				"request_headers to 192.168.1.1:8000", `request_body "\x00\x00\x00\x00\a\x1a\x05test1", end`,
				"response_headers", `response_body "\x00\x00\x00\x00\x02\n\x00"`, "response_trailers",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, silent, at("192.168.1.1:8000"))
			p.expect(tc.messages, tc.want...)
		})
	}
}
