package conformance

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the differences into docs/protocol.md")

const gieModule = "sigs.k8s.io/gateway-api-inference-extension"

// difference is one place where this picker answers otherwise than the stock
// one, on purpose.
type difference struct {
	name string
	// stock is what GIE's picker does, as the file of its module says in which
	// evidence stands.
	stock, file, evidence string
	// berth is what this one does, and shown the test of it.
	berth string
	shown func(t *testing.T)
	// reason is one sentence.
	reason string
}

// Files of the GIE module.
const (
	gieServer     = "pkg/epp/handlers/server.go"
	gieRequest    = "pkg/epp/handlers/request.go"
	gieResponse   = "pkg/epp/handlers/response.go"
	gieDirector   = "pkg/epp/requestcontrol/director.go"
	gieCandidates = "pkg/epp/requestcontrol/candidates.go"
	gieOpenAI     = "pkg/epp/framework/plugins/requesthandling/parsers/openai/openai.go"
	gieTypes      = "pkg/epp/framework/interface/scheduling/types.go"
	gieErrors     = "pkg/common/error/error.go"
	gieChunking   = "pkg/common/envoy/chunking.go"
	gieRunner     = "pkg/epp/server/runserver.go"
	gieSuite      = "test/integration/epp/hermetic_test.go"
	gieGRPCSuite  = "test/integration/epp/grpc_test.go"
)

// differences are in the order in which a request meets them.
func differences() []difference {
	return []difference{
		{
			"the gateway's body modes",
			"not read: the header answer waits for the body in every mode, and the body comes back as streamed parts", gieServer, "if v.RequestBody.EndOfStream {",
			"followed, as `protocol_config` on the first message says them", bodyModesAreFollowed,
			"In buffered and streamed modes a gateway waits for the answer to the headers before it sends the body.",
		},
		{
			"a body before any headers",
			"answered with a destination in an answer to headers that were not sent", gieServer, "case *extProcPb.ProcessingRequest_RequestBody:",
			"the stream ends with `FAILED_PRECONDITION`", aBodyBeforeHeadersIsAnError,
			"An answer of another kind than its message ends the stream as well, without saying why.",
		},
		{
			"a stream that the gateway closes before it was answered",
			"ends with `OK`", gieServer, "if recvErr == io.EOF || status.Code(recvErr) == codes.Canceled {",
			"ends with an error", anEarlyEndIsAnError,
			"After `OK` Envoy lets the request go on by itself, past the picker.",
		},
		{
			"the size of a body",
			"no limit on the whole; one gRPC message is limited to gRPC's default of 4 MiB", gieRunner, "srv = grpc.NewServer()",
			"limited by `limits.body`: 413 `body_too_large`", bodiesHaveALimit,
			"A picker that holds whole bodies must bound them, and a gateway's single message must not be what bounds them.",
		},
		{
			"an upload that stops",
			"held until the gateway gives up", gieServer, "body = append(body, v.RequestBody.Body...)",
			"408 `upload_idle` after `limits.uploadIdle`", anUploadThatStopsEnds,
			"What is held for a client that is gone is missing for others.",
		},
		{
			"request trailers",
			"never answered; a request that ends with them is not placed, and hangs", gieServer, "// This is currently unused.",
			"400 `trailers_refused`, or placed and answered with `gateway.requestTrailers: pass`", trailersAreAnswered,
			"A request must end, one way or the other.",
		},
		{
			"a request without a body",
			"goes to a random endpoint of the pool, past the filters and the gateway's subset", gieRequest, "s.director.GetRandomEndpoint()",
			"screened and placed like any other", bodilessIsPlaced,
			"Which endpoints may answer does not depend on the method.",
		},
		{
			"IPv6 for a request without a body",
			"the port follows the address without brackets", gieRequest, `endpoint.GetIPAddress() + ":" + endpoint.GetPort()`,
			"in brackets, as for every request", ipv6IsBracketed,
			"Without brackets the port cannot be told from the address.",
		},
		{
			"an empty pool, for a request without a body",
			"500", gieSuite, `"inference error: Internal - no pods available in datastore"`,
			"503 `pool_empty`", anEmptyPoolIs503,
			"The protocol asks for 503 where no endpoint is ready.",
		},
		{
			"filters that leave nobody",
			"429", gieDirector, `errcommon.Error{Code: errcommon.ResourceExhausted, Msg: fmt.Errorf("failed to find target endpoint`,
			"503 or 404, with the stage that left nobody as the reason", nobodyLeftIsNoOverload,
			"429 says that the client should send less, which changes nothing here.",
		},
		{
			"a model that no endpoint serves",
			"goes to an endpoint that serves others", gieSuite, `"passthrough: model not in objectives"`,
			"404 `model_unserved` where the served models of all endpoints are known", anUnservedModelIs404,
			"The engine would refuse it, after it took a place in a queue.",
		},
		{
			"ports in a subset",
			"cut off: every endpoint at the address is in", gieCandidates, "endpoints.Insert(epStr[:idx])",
			"compared: an entry is one address and port", subsetPortsCount,
			"Several replicas may share an address, and the protocol's entries have ports.",
		},
		{
			"a subset that is no list",
			"ignored: the whole pool is in", gieCandidates, "endpointSubsetList, found := subsetMap[metadata.SubsetFilterKey].([]any)",
			"a string is read as a list with commas; anything else is a subset with nobody in it", aSubsetIsNeverIgnored,
			"Filters of a gateway that write metadata write strings, and a restriction that cannot be read is still one.",
		},
		{
			"a subset on one message of several",
			"lost with the next message, whose metadata replaces it", gieServer, "reqCtx.Request.Metadata = envoy.ExtractMetadataValues(req)",
			"kept, from the first message that has one", aSubsetIsKept,
			"Gateways need not repeat metadata on every message.",
		},
		{
			"control headers of clients",
			"`x-gateway-model-name-rewrite` changes the body's model, `x-gateway-inference-objective` and `-fairness-id` set priority and queue", gieRequest, "case metadata.ModelNameRewriteKey:",
			"not read", controlHeadersAreNotRead,
			"Anybody can send them.",
		},
		{
			"a client's copy of the destination header",
			"kept or replaced as the gateway likes: the destination is set without an append action", gieRequest, "Key:      metadata.DestinationEndpointKey,",
			"overwritten, by `OVERWRITE_IF_EXISTS_OR_ADD`", theDestinationOverwrites,
			"A gateway that reads the first of two values would follow the client.",
		},
		{
			"other request headers",
			"all of the client's are set again, with `Content-Length` and an `x-request-id` of the picker's own where there is none", gieRequest, "// Include any non-system-owned headers.",
			"`x-berth-decision` is set, nothing else", requestHeadersAreLeftAlone,
			"Setting a header again drops or doubles its repetitions, and nothing about the body has changed.",
		},
		{
			"the gateway's route",
			"cleared, so that the gateway matches again", gieRequest, "ClearRouteCache: true,",
			"kept", theRouteIsKept,
			"Nothing that routes match on has changed, and another route may have other policies.",
		},
		{
			"request bodies",
			"JSON is decoded and written anew: other order, other spacing, integers above 2^53 changed", gieDirector, "requestBodyBytes, err := json.Marshal(v)",
			"byte for byte what the client sent", bodiesPassByteForByte,
			"Seeds and ids are large integers, and what an engine reads must be what the client wrote.",
		},
		{
			"parts of a body",
			"cut anew, at 62,000 bytes", gieChunking, "BodyByteLimit = 62000",
			"handed back as they came", partsStayAsTheyCame,
			"What the gateway could send it can take, and nothing is copied.",
		},
		{
			"a query behind the path",
			"`/v1/chat/completions?x=1` is taken for a completion: 400", gieOpenAI, `strings.HasSuffix(path, "/chat/completions")`,
			"does not count: the path says which API it is", aQueryDoesNotCount,
			"A query changes nothing about the body.",
		},
		{
			"a path of no known API",
			"its body must be a completion: 400 otherwise", gieOpenAI, "// Default to completions API for backward compatibility",
			"routed without reading the body, or 404 `path_unknown` with `gateway.unknownPaths: refuse`", unknownPathsAreRouted,
			"Engines have more APIs than a picker knows.",
		},
		{
			"gRPC",
			"400 by the default parser; by the parser for vLLM's API, 400 for a method or a payload that it cannot read", gieGRPCSuite, `"inference error: BadRequest - unsupported gRPC path: unsupportedMethod"`,
			"routed without reading the body", grpcIsRouted,
			"The engine is who can tell whether a message is valid.",
		},
		{
			"compressed bodies",
			"400", gieOpenAI, "error unmarshaling request bodyMap",
			"routed without reading the body", compressedBodiesAreRouted,
			"Engines or proxies in front of them may decompress.",
		},
		{
			"prompts of token ids",
			"400", gieTypes, `errors.New("prompt: must be a string or an array of strings")`,
			"placed", tokenPromptsArePlaced,
			"They are part of the completions API.",
		},
		{
			"a body without a prompt or messages",
			"400", gieOpenAI, `errors.New("invalid completions request: must have prompt field")`,
			"placed", promptsAreTheEnginesBusiness,
			"What a request must hold is the engine's to say, in its own words.",
		},
		{
			"a body without a model",
			"400", gieSuite, `"inference error: BadRequest - model not found in request body"`,
			"placed over the whole pool", aModelIsOptional,
			"Engines have a default model.",
		},
		{
			"a body that names its model twice",
			"the last one counts, and is the one that is sent on", gieOpenAI, "json.Unmarshal(body, &bodyMap)",
			"400 `model_ambiguous`", twoModelsAreRefused,
			"Since the bytes pass as they are, an engine could take the other one.",
		},
		{
			"answers of the picker's own",
			"a line of text without a content type", gieErrors, "[]byte(err.Error())",
			"an error in JSON as OpenAI clients expect it, with `x-berth-reason`", refusalsAreJSON,
			"Clients parse errors, and operators count reasons.",
		},
		{
			"who served",
			"left to plugins, of which only one for tests reads it", gieDirector, "func (d *Director) HandleResponseHeader(",
			"compared with the pick and the screened set: `x-berth-acted` and the record say how", servedIsCompared,
			"A gateway can choose otherwise, and that must show.",
		},
		{
			"response headers",
			"all are set again, with `x-went-into-resp-headers`", gieResponse, `"x-went-into-resp-headers"`,
			"`x-berth-` headers are set, nothing else", responseHeadersAreLeftAlone,
			"Setting a header again drops or doubles its repetitions, such as cookies.",
		},
		{
			"a response that is no event stream",
			"held until its end, unless the request asked for a stream", gieServer, "body = append(body, chunk...)",
			"each part is handed back at once", responsesAreNotHeld,
			"Engines stream in other types too, and a held response costs its whole size.",
		},
		{
			"the model's name in a response",
			"where a rewrite applies, replaced in the text wherever it stands", gieServer, "bytes.ReplaceAll(body, old, new)",
			"left as it is", responsesPassByteForByte,
			"Generated text may hold the same characters, and nothing was renamed on the way in.",
		},
		{
			"a response without a request",
			"taken like any other", gieSuite, "ReqResponseOnly(",
			"the stream ends with `FAILED_PRECONDITION`, unless the gateway says that it made the response itself", aResponseWithoutARequestIsAnError,
			"A replica that answers what the picker never saw was not screened.",
		},
	}
}

func TestDifferencesFromTheStockPicker(t *testing.T) {
	for _, d := range differences() {
		t.Run(d.name, d.shown)
	}
}

func TestTheStockPickerIsWhatTheDifferencesSay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", gieModule).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", gieModule, err)
	}
	dir := strings.TrimSpace(string(out))
	for _, d := range differences() {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(d.file)))
		if err != nil {
			t.Errorf("%s: %v", d.name, err)
			continue
		}
		if !bytes.Contains(text, []byte(d.evidence)) {
			t.Errorf("%s: %s does not hold %q any more: see what it does now", d.name, d.file, d.evidence)
		}
	}
}

// What docs/protocol.md has around the table.
const (
	document  = "../../docs/protocol.md"
	heading   = "## Differences from the stock endpoint picker\n"
	begin     = "<!-- differences -->\n"
	endMarker = "<!-- /differences -->"
)

func TestTheDocumentListsTheDifferences(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, ok2 := strings.Cut(rest, endMarker)
	if !ok || !ok2 {
		t.Fatalf("%s has no section between %q and %q", document, begin, endMarker)
	}
	last := strings.LastIndex(before, "\n## ") + 1
	if !strings.HasPrefix(before[last:], heading) {
		t.Errorf("the section before %q is %q, want %q", begin, strings.SplitN(before[last:], "\n", 2)[0], heading)
	}
	want := table()
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s has\n%s\nwant (go test ./test/conformance -update writes it)\n%s", document, got, want)
	}
	if err := os.WriteFile(document, []byte(before+begin+want+endMarker+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// table renders the differences for the document.
func table() string {
	var b strings.Builder
	b.WriteString("\n| what | GIE's picker, and where it says so | Berth | why |\n|---|---|---|---|\n")
	for _, d := range differences() {
		fmt.Fprintf(&b, "| %s | %s (`%s`) | %s | %s |\n", d.name, d.stock, d.file, d.berth, d.reason)
	}
	b.WriteString("\n")
	return b.String()
}
