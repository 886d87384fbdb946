package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"
)

// This file shows the differences, in their order.

// passed is the answer to a whole body in full duplex.
func passed(body string) string { return fmt.Sprintf("request_body %q, end", body) }

func bodyModesAreFollowed(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expect(announce(prompt(), extprocfilterv3.ProcessingMode_BUFFERED, extprocfilterv3.ProcessingMode_NONE),
		"request_headers", "request_body to 192.168.1.1:8000")
	p.expect(announce(prompt(), extprocfilterv3.ProcessingMode_STREAMED, extprocfilterv3.ProcessingMode_NONE),
		"request_headers to 192.168.1.1:8000", "request_body")
	// Each is answered before the body is there.
	p.expect(announce(prompt()[:1], extprocfilterv3.ProcessingMode_BUFFERED, extprocfilterv3.ProcessingMode_NONE), "request_headers")
	p.expect(announce(prompt()[:1], extprocfilterv3.ProcessingMode_STREAMED, extprocfilterv3.ProcessingMode_NONE),
		"request_headers to 192.168.1.1:8000")
}

func aBodyBeforeHeadersIsAnError(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expectError([]asked{integration.ReqLLMUnary(logr.Discard(), "test1", "my-model")}, "FailedPrecondition")
}

func anEarlyEndIsAnError(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expectError(nil, "Canceled")
	p.expectError(raw(completions), "Canceled")
	p.expectError(raw(completions, `{"model":`, "")[:2], "Canceled")
}

func bodiesHaveALimit(t *testing.T) {
	p := start(t, unread+"limits: {body: 1KiB, decisionDeadline: 30s}\n", at("192.168.1.1:8000"))
	p.expect(raw("/other", strings.Repeat("x", 1024)), "request_headers to 192.168.1.1:8000", passed(strings.Repeat("x", 1024)))
	p.expect(raw("/other", strings.Repeat("x", 1024), "x"), "413 body_too_large")
	p = start(t, silent, at("192.168.1.1:8000"))
	answers, _ := p.talk(raw("/other", strings.Repeat("x", 5<<20)), 2)
	if len(answers) != 2 || tell(answers[0]) != "request_headers to 192.168.1.1:8000" {
		t.Errorf("%d answers to 5 MiB in one message, want its destination and its body", len(answers))
	}
}

func anUploadThatStopsEnds(t *testing.T) {
	p := start(t, unread+"limits: {uploadIdle: 50ms}\n", at("192.168.1.1:8000"))
	// The headers are all that comes, and the gateway keeps the stream open.
	answers, err := integration.StreamedRequest(t, p.stream(), raw(completions), 1)
	if err != nil || len(answers) != 1 || tell(answers[0]) != "408 upload_idle" {
		t.Errorf("answered %v, %v, want 408 upload_idle", answers, err)
	}
}

// withTrailers is a request of raw that ends with trailers.
func withTrailers(path string, pieces ...string) []asked {
	messages := raw(path, pieces...)
	messages[len(messages)-1].GetRequestBody().EndOfStream = false
	return append(messages, requestTrailers())
}

func trailersAreAnswered(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expect(withTrailers(completions, `{"model":"m","prompt":"p"}`), "400 trailers_refused")
	p = start(t, silent+"gateway: {requestTrailers: pass}\n", at("192.168.1.1:8000"))
	p.expect(withTrailers(completions, `{"model":"m",`, `"prompt":"p"}`),
		"request_headers to 192.168.1.1:8000", `request_body "{\"model\":\"m\","`, `request_body "\"prompt\":\"p\"}"`, "request_trailers")
}

func bodilessIsPlaced(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", notReady), at("192.168.1.2:8000"), at("192.168.1.3:8000"))
	onlyIn(t, p.picks(enough, bodiless), "192.168.1.2:8000", "192.168.1.3:8000")
	onlyIn(t, p.picks(enough, func() []asked {
		messages := bodiless()
		restrict(messages[0], list("192.168.1.3:8000", "192.168.1.1:8000"))
		return messages
	}), "192.168.1.3:8000")
}

func ipv6IsBracketed(t *testing.T) {
	p := start(t, silent, at("[2001:db8::1]:8000"))
	p.expect(bodiless(), "request_headers to [2001:db8::1]:8000")
}

func anEmptyPoolIs503(t *testing.T) {
	p := start(t, silent)
	p.expect(bodiless(), "503 pool_empty")
	p.expect(integration.ReqHeaderOnly(map[string]string{"content-type": "application/json"}), "503 pool_empty")
}

func nobodyLeftIsNoOverload(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", notReady), at("192.168.1.2:8000", serving("other-model")))
	p.expect(prompt(), "503 unhealthy")
	p.expect(promptIn("192.168.1.1:8000"), "503 unhealthy")
	p.expect(promptIn("192.168.1.2:8000"), "404 model_unserved")
	p.expect(promptIn("192.168.1.3:8000"), "503 subset_empty")
}

func anUnservedModelIs404(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", serving("foo", "bar")), at("192.168.1.2:8000", serving("foo")))
	p.expect(raw(completions, `{"max_tokens":100,"model":"direct-`, `model","prompt":"test6","temperature":0}`), "404 model_unserved")
	// One that may serve anything, as far as is known, is enough.
	p = start(t, silent, at("192.168.1.1:8000", serving("foo", "bar")), at("192.168.1.2:8000"))
	p.expect(raw(completions, `{"model":"direct-model","prompt":"test6"}`),
		"request_headers to 192.168.1.2:8000", passed(`{"model":"direct-model","prompt":"test6"}`))
}

func subsetPortsCount(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"), at("192.168.1.1:8001"))
	onlyIn(t, p.picks(enough, func() []asked { return promptIn("192.168.1.1:8001") }), "192.168.1.1:8001")
	p.expect(promptIn("192.168.1.1:9000"), "503 subset_empty")
	p.expect(promptIn("192.168.1.1"), "503 subset_empty")
}

func aSubsetIsNeverIgnored(t *testing.T) {
	p := start(t, silent, three()...)
	subset := func(v *structpb.Value) func() []asked {
		return func() []asked {
			messages := prompt()
			restrict(messages[0], v)
			return messages
		}
	}
	onlyIn(t, p.picks(enough, subset(structpb.NewStringValue("192.168.1.2:8000"))), "192.168.1.2:8000")
	onlyIn(t, p.picks(enough, subset(structpb.NewStringValue("192.168.1.2:8000, 192.168.1.3:8000"))), "192.168.1.2:8000", "192.168.1.3:8000")
	onlyIn(t, p.picks(enough, subset(list(8000, "192.168.1.2:8000"))), "192.168.1.2:8000")
	for _, v := range []*structpb.Value{
		structpb.NewStringValue(""), structpb.NewNumberValue(8000), structpb.NewBoolValue(true), structpb.NewNullValue(),
		structpb.NewStructValue(&structpb.Struct{}), list(8000), list(list("192.168.1.2:8000")), list("r1"),
	} {
		p.expect(subset(v)(), "503 subset_empty")
	}
}

func aSubsetIsKept(t *testing.T) {
	p := start(t, silent, three()...)
	onlyIn(t, p.picks(enough, func() []asked {
		messages := promptIn("192.168.1.2:8000")
		messages[1].MetadataContext = nil
		return messages
	}), "192.168.1.2:8000")
	onlyIn(t, p.picks(enough, func() []asked {
		messages := promptIn("192.168.1.2:8000")
		messages[0].MetadataContext = nil
		return messages
	}), "192.168.1.2:8000")
	onlyIn(t, p.picks(enough, func() []asked {
		messages := promptIn("192.168.1.2:8000")
		restrict(messages[1], list("192.168.1.3:8000"))
		return messages
	}), "192.168.1.2:8000")
}

func controlHeadersAreNotRead(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", serving("my-model")), at("192.168.1.2:8000", serving("other-model")))
	onlyIn(t, p.picks(enough, func() []asked {
		// The builder's last argument becomes the rewrite header, the model the
		// objective.
		return atPath(completions, integration.ReqLLM(logr.Discard(), "test1", "my-model", "other-model"))
	}), "192.168.1.1:8000")
	p.expect(atPath(completions, integration.ReqLLM(logr.Discard(), "test1", "my-model", "other-model")),
		"request_headers to 192.168.1.1:8000", passed(promptBody))
	p.expect(atPath(completions, integration.ReqRaw(map[string]string{
		"x-gateway-inference-objective":   "sheddable",
		"x-gateway-inference-fairness-id": "somebody",
		subsetKey:                         "192.168.1.2:8000",
	}, promptBody)), "request_headers to 192.168.1.1:8000", passed(promptBody))
}

func theDestinationOverwrites(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	messages := atPath(completions, integration.ReqRaw(map[string]string{destination: "10.0.0.1:80"}, promptBody))
	found := false
	for _, h := range mutation(p.place(messages)).GetSetHeaders() {
		if h.GetHeader().GetKey() == destination {
			found = true
			if got := h.GetAppendAction(); got != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				t.Errorf("append action %v, want OVERWRITE_IF_EXISTS_OR_ADD", got)
			}
		}
	}
	if !found {
		t.Error("the destination is not set")
	}
}

func requestHeadersAreLeftAlone(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	for name, messages := range map[string][]asked{
		"prompt": prompt(), "gRPC": generate(), "bodiless": bodiless(), "no x-request-id": raw(completions, promptBody),
	} {
		m := mutation(p.place(messages))
		if got, want := names(m), []string{"x-berth-decision", destination}; !slices.Equal(got, want) {
			t.Errorf("%s: sets %v, want %v", name, got, want)
		}
		if removed := m.GetRemoveHeaders(); len(removed) != 0 {
			t.Errorf("%s: removes %v, want none", name, removed)
		}
	}
}

// names are those of the headers that a mutation sets, in order.
func names(m *extprocv3.HeaderMutation) []string {
	var all []string
	for name := range setHeaders(m) {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func theRouteIsKept(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	for name, messages := range map[string][]asked{"prompt": prompt(), "bodiless": bodiless()} {
		if p.place(messages).GetRequestHeaders().GetResponse().GetClearRouteCache() {
			t.Errorf("%s: clears the route, want it kept", name)
		}
	}
}

func bodiesPassByteForByte(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	for _, body := range []string{
		`{"seed": 9007199254740993, "prompt":"p",  "model":"m"}`,
		`{"temperature":1e400,"prompt":"é\u00e9<&>","model":"m"}` + "\n",
		`{"prompt":"p","model":"m","stop":["a","a"],"n":1.0}`,
	} {
		p.expect(raw(completions, body), "request_headers to 192.168.1.1:8000", passed(body))
	}
}

func partsStayAsTheyCame(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	parts := []string{`{"model":"m","prompt":"`, strings.Repeat("x", 100_000), `"}`}
	answers, _ := p.talk(raw(completions, parts...), 1+len(parts))
	if len(answers) != 1+len(parts) {
		t.Fatalf("%d answers, want %d", len(answers), 1+len(parts))
	}
	for i, part := range parts {
		got := answers[1+i].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if !bytes.Equal(got.GetBody(), []byte(part)) || got.GetEndOfStream() != (i == len(parts)-1) {
			t.Errorf("part %d has %d bytes, end %t; want the %d bytes that came", i, len(got.GetBody()), got.GetEndOfStream(), len(part))
		}
	}
}

func aQueryDoesNotCount(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", serving("my-model")), at("192.168.1.2:8000", serving("other-model")))
	const body = `{"model":"my-model","messages":[{"role":"user","content":"hello"}]}`
	for _, path := range []string{chat + "?x=1", chat + "/?x=1", "/prefix" + chat + "?a=/v1/completions"} {
		// The body was read: only one serves its model.
		onlyIn(t, p.picks(enough, func() []asked { return raw(path, body) }), "192.168.1.1:8000")
		p.expect(raw(path, body), "request_headers to 192.168.1.1:8000", passed(body))
	}
}

func unknownPathsAreRouted(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	for _, messages := range [][]asked{
		raw("/v1/fine_tuning/jobs", "no healthy upstream"),
		// Without a path, as GIE's suite sends it.
		integration.ReqRaw(map[string]string{"hi": "mom"}, "no healthy upstream"),
	} {
		p.expect(messages, "request_headers to 192.168.1.1:8000", passed("no healthy upstream"))
	}
	// Where the API is known, a broken body is refused here too.
	p.expect(raw(completions, "no healthy upstream"), "400 body_malformed")
	p = start(t, silent+"gateway: {unknownPaths: refuse}\n", at("192.168.1.1:8000"))
	p.expect(raw("/v1/fine_tuning/jobs", "no healthy upstream"), "404 path_unknown")
}

func grpcIsRouted(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expect(generate(), "request_headers to 192.168.1.1:8000", passed(generateBody))
	p.expect(overGRPC(integration.ReqRaw(map[string]string{":path": integration.GenerateGRPCMethodName}, "plain text not grpc payload style")),
		"request_headers to 192.168.1.1:8000", passed("plain text not grpc payload style"))
	// For a method that the builder does not know, it makes no message to frame.
	p.expect(overGRPC(integration.ReqGRPCLLM(logr.Discard(), "test2", "", "unsupportedMethod")),
		"request_headers to 192.168.1.1:8000", passed("\x00\x00\x00\x00\x00"))
}

func compressedBodiesAreRouted(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	const gzip = "\x1f\x8b\x08\x00"
	p.expect(atPath(completions, integration.ReqRaw(map[string]string{"content-encoding": "gzip"}, gzip)),
		"request_headers to 192.168.1.1:8000", passed(gzip))
}

func tokenPromptsArePlaced(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", serving("my-model")), at("192.168.1.2:8000", serving("other-model")))
	for _, body := range []string{`{"model":"my-model","prompt":[1,2,3]}`, `{"model":"my-model","prompt":[[1,2],[3]]}`} {
		onlyIn(t, p.picks(enough, func() []asked { return raw(completions, body) }), "192.168.1.1:8000")
	}
}

func promptsAreTheEnginesBusiness(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	for path, body := range map[string]string{
		completions: `{"model":"m"}`, chat: `{"model":"m","messages":[]}`, "/v1/responses": `{"model":"m"}`, "/v1/embeddings": `{"model":"m"}`,
	} {
		p.expect(raw(path, body), "request_headers to 192.168.1.1:8000", passed(body))
	}
}

func aModelIsOptional(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000", serving("my-model")), at("192.168.1.2:8000", serving("other-model")))
	onlyIn(t, p.picks(enough, func() []asked { return raw(completions, `{"prompt":"hello world"}`) }), "192.168.1.1:8000", "192.168.1.2:8000")
}

func twoModelsAreRefused(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expect(raw(completions, `{"model":"a","prompt":"p","model":"b"}`), "400 model_ambiguous")
}

func refusalsAreJSON(t *testing.T) {
	p := start(t, silent, three()...)
	for reason, messages := range map[string][]asked{
		"subset_empty": promptIn("192.168.1.99:8000"), "body_malformed": raw(completions, "no healthy upstream"),
	} {
		answers, err := p.talk(messages, 1)
		if err != nil || len(answers) != 1 {
			t.Fatalf("answered %v, %v, want a refusal", answers, err)
		}
		refusal := answers[0].GetImmediateResponse()
		headers := setHeaders(refusal.GetHeaders())
		if headers["x-berth-reason"] != reason || headers["content-type"] != "application/json" {
			t.Errorf("%s: headers %v, want the reason and application/json", reason, headers)
		}
		var doc struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal(refusal.GetBody(), &doc); err != nil {
			t.Errorf("%s: body %q: %v", reason, refusal.GetBody(), err)
		}
		if doc.Error.Code != reason || doc.Error.Message == "" || doc.Error.Type == "" {
			t.Errorf("%s: body %q, want code, message and type", reason, refusal.GetBody())
		}
	}
}

func servedIsCompared(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"), at("192.168.1.2:8000", notReady))
	for served, want := range map[string]string{"192.168.1.1:8000": "confirmed", "192.168.1.2:8000": "violated"} {
		answers, _ := p.talk(append(prompt(), responseHeaders(served, "application/json"), responsePart("", true)), 4)
		if len(answers) != 4 {
			t.Fatalf("%d answers, want 4", len(answers))
		}
		if got := setHeaders(mutation(answers[2]))["x-berth-acted"]; got != want {
			t.Errorf("served by %s: acted %q, want %q", served, got, want)
		}
	}
}

func responseHeadersAreLeftAlone(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	answers, _ := p.talk(append(prompt(), responseHeaders("192.168.1.1:8000", "text/event-stream"), responsePart("", true)), 4)
	if len(answers) != 4 {
		t.Fatalf("%d answers, want 4", len(answers))
	}
	m := mutation(answers[2])
	if got, want := names(m), []string{"x-berth-acted", "x-berth-decision", "x-berth-policy", "x-berth-rung"}; !slices.Equal(got, want) {
		t.Errorf("sets %v, want %v", got, want)
	}
	if removed := m.GetRemoveHeaders(); len(removed) != 0 {
		t.Errorf("removes %v, want none", removed)
	}
}

func responsesAreNotHeld(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	// No more of the response comes than its first part.
	p.expect(append(prompt(), responseHeaders("192.168.1.1:8000", "application/json"), responsePart(`{"choices":`, false)),
		"request_headers to 192.168.1.1:8000", passed(promptBody), "response_headers", `response_body "{\"choices\":"`)
}

func responsesPassByteForByte(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expect(
		append(atPath(completions, integration.ReqLLM(logr.Discard(), "test1", "my-model", "other-model")),
			responseHeaders("192.168.1.1:8000", "application/json"), responsePart(`{"model":"other-model","n":9007199254740993}`, true)),
		"request_headers to 192.168.1.1:8000", passed(promptBody),
		"response_headers", `response_body "{\"model\":\"other-model\",\"n\":9007199254740993}", end`)
}

func aResponseWithoutARequestIsAnError(t *testing.T) {
	p := start(t, silent, at("192.168.1.1:8000"))
	p.expectError([]asked{responseHeaders("192.168.1.1:8000", "application/json")}, "FailedPrecondition")
	p.expectError([]asked{responseHeaders("", "application/json")}, "FailedPrecondition")
	own := responseHeaders("", "text/plain")
	own.Attributes = map[string]*structpb.Struct{
		"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{"response.code_details": structpb.NewStringValue("upgrade_failed")}},
	}
	p.expect([]asked{own, responsePart("", true)}, "response_headers", `response_body "", end`)
}
