package extproc

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
)

// The tables of docs/protocol.md that stand between comments are read here, and
// each cell is played: the messages go through a conversation, and what comes out
// is told in the words of the document.

// docTable is the table between <!-- name --> and <!-- /name -->.
type docTable struct {
	head []string
	rows [][]string
}

func protocolTable(t *testing.T, name string) docTable {
	t.Helper()
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "\n<!-- "+name+" -->\n")
	text, _, closed := strings.Cut(rest, "\n<!-- /"+name+" -->\n")
	if !ok || !closed {
		t.Fatalf("docs/protocol.md has no table between <!-- %s --> and <!-- /%s -->", name, name)
	}
	var table docTable
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case table.head == nil:
			table.head = cells
		case len(cells) != len(table.head):
			t.Fatalf("table %s: %q has %d cells, want %d", name, line, len(cells), len(table.head))
		default:
			table.rows = append(table.rows, cells)
		}
	}
	if len(table.rows) == 0 {
		t.Fatalf("table %s of docs/protocol.md has no rows", name)
	}
	return table
}

// names are the first cells of the rows, without backquotes.
func (d docTable) names() []string {
	all := make([]string, len(d.rows))
	for i, row := range d.rows {
		all[i] = strings.Trim(row[0], "`")
	}
	return all
}

// modesOf are the body modes that the head of a column names.
func modesOf(t *testing.T, head string) []int32 {
	t.Helper()
	var all []int32
	for _, name := range regexp.MustCompile("`([A-Z_]+)`").FindAllStringSubmatch(head, -1) {
		mode, ok := extprocfilterv3.ProcessingMode_BodySendMode_value[name[1]]
		if !ok {
			t.Fatalf("%s is no body mode", name[1])
		}
		all = append(all, mode)
	}
	return all
}

// docDecider places everything at one endpoint, unless it is told to refuse.
type docDecider struct {
	refuse, outside bool

	decided int
	request Request
	served  Served
	outcome Outcome
}

const (
	docPick   = "192.0.2.1:8000,192.0.2.2:8000"
	docHeader = "x-berth-probe"
)

func (d *docDecider) Decide(r *Request) (Decision, *Refusal) {
	d.decided++
	d.request = *r
	if d.refuse {
		return nil, &Refusal{Status: 503, Reason: "unhealthy", Message: "nobody"}
	}
	return d, nil
}

func (d *docDecider) Destination() string { return docPick }

func (d *docDecider) RequestHeaders() []Header { return []Header{{docHeader, "request"}} }

func (d *docDecider) Acknowledgement() []Member { return []Member{Text("decision", "d1")} }

func (d *docDecider) Served(s Served) *Refusal {
	d.served = s
	if d.outside {
		return &Refusal{Status: 502, Reason: "served_outside", Message: "outside"}
	}
	return nil
}

func (d *docDecider) ResponseHeaders() []Header { return []Header{{docHeader, "response"}} }

func (d *docDecider) FirstByte(telemetry.Instant) {}

func (d *docDecider) Finish(o Outcome) { d.outcome = o }

// playing is one conversation of a table's row.
type playing struct {
	t       *testing.T
	decider docDecider
	c       *conversation
	shared  shared
	// sent is the request body that came and was not handed back.
	sent []byte
}

func play(t *testing.T, passTrailers bool) *playing {
	p := &playing{t: t}
	settings := wide()
	settings.BodyLimit, settings.PassTrailers = docBodyLimit, passTrailers
	p.c = newConversation(settings, &p.decider, func() telemetry.Instant { return 1 }, &p.shared)
	return p
}

const docBodyLimit = 64

// say sends a message and tells the answer in the words of the document.
func (p *playing) say(m *extprocv3.ProcessingRequest) string {
	p.t.Helper()
	p.sent = append(p.sent, m.GetRequestBody().GetBody()...)
	before := p.decider.decided
	out, err := p.c.handle(m)
	if err != nil {
		return "gRPC error"
	}
	decides := p.decider.decided > before
	var answers []string
	for _, answer := range out {
		text := p.tell(decoded(p.t, answer), m, decides)
		// Parts of one body are one answer.
		if len(answers) == 0 || text != partOfBody || answers[len(answers)-1] != text {
			answers = append(answers, text)
		}
	}
	switch {
	case len(out) == 0:
		return "nothing yet"
	case decides && p.c.phase != refused:
		return "decides; " + strings.Join(answers, ", ")
	default:
		return strings.Join(answers, ", ")
	}
}

const partOfBody = "`request_body` per part"

// tell names an answer by its kind and by what it changes. Any change that the
// document does not know is told too, so that no cell matches it.
func (p *playing) tell(answer *extprocv3.ProcessingResponse, m *extprocv3.ProcessingRequest, decides bool) string {
	var (
		kind   string
		common *extprocv3.CommonResponse
	)
	switch r := answer.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		kind, common = "`request_headers`", r.RequestHeaders.GetResponse()
	case *extprocv3.ProcessingResponse_RequestBody:
		kind, common = "`request_body`", r.RequestBody.GetResponse()
	case *extprocv3.ProcessingResponse_RequestTrailers:
		kind = "`request_trailers`"
		if r.RequestTrailers.GetHeaderMutation() != nil {
			kind += " with changed trailers"
		}
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		kind, common = "`response_headers`", r.ResponseHeaders.GetResponse()
	case *extprocv3.ProcessingResponse_ResponseBody:
		kind, common = "`response_body`", r.ResponseBody.GetResponse()
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		kind = "`response_trailers`"
		if r.ResponseTrailers.GetHeaderMutation() != nil {
			kind += " with changed trailers"
		}
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return fmt.Sprintf("`immediate_response` %d", r.ImmediateResponse.GetStatus().GetCode())
	}
	if answer.GetModeOverride() != nil || common.GetClearRouteCache() || common.GetTrailers() != nil ||
		len(common.GetHeaderMutation().GetRemoveHeaders()) > 0 || common.GetStatus() != extprocv3.CommonResponse_CONTINUE {
		kind += " with a change that is not documented"
	}
	switch what := p.change(answer, common); what {
	case "":
	case "bytes":
		if decides {
			return partOfBody
		}
		kind += " + same bytes"
		if got := common.GetBodyMutation().GetStreamedResponse(); got.GetEndOfStream() != endOf(m) {
			kind += " with another end"
		}
	default:
		kind += " + " + what
	}
	return kind
}

// change says what an answer changes: nothing, the destination, the
// acknowledgement, or the bytes that it hands back.
func (p *playing) change(answer *extprocv3.ProcessingResponse, common *extprocv3.CommonResponse) string {
	set := map[string]string{}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		set[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	metadata := answer.GetDynamicMetadata().GetFields()
	acknowledged := metadata[berthNamespace].GetStructValue().GetFields()[acknowledgement] != nil
	destination := metadata[lbNamespace].GetStructValue().GetFields()[destinationKey].GetStringValue()
	mutation := common.GetBodyMutation()
	switch {
	case mutation != nil && len(set) == 0 && len(metadata) == 0 && mutation.GetStreamedResponse() != nil:
		part := mutation.GetStreamedResponse().GetBody()
		if answer.GetRequestBody() == nil {
			return "bytes"
		}
		rest, ok := bytes.CutPrefix(p.sent, part)
		if !ok {
			return "other bytes"
		}
		p.sent = rest
		return "bytes"
	case mutation != nil:
		return "a body that is not documented"
	case len(set) == 0 && len(metadata) == 0:
		return ""
	case maps.Equal(set, map[string]string{destinationKey: docPick, docHeader: "request"}) &&
		acknowledged && destination == docPick && len(metadata) == 2:
		return "destination"
	case maps.Equal(set, map[string]string{docHeader: "response"}) && acknowledged && len(metadata) == 1:
		return "acknowledgement"
	default:
		return fmt.Sprintf("headers %v and metadata %v", set, metadata)
	}
}

func endOf(m *extprocv3.ProcessingRequest) bool {
	return m.GetRequestBody().GetEndOfStream() || m.GetResponseBody().GetEndOfStream()
}

// docMessages are the messages that rows are made of, for one mode.
type docMessages struct{ mode, respMode int32 }

func (d docMessages) headers(eos bool, headers ...string) *extprocv3.ProcessingRequest {
	return message{kind: requestHeaders, eos: eos, mode: d.mode, respMode: d.respMode, headers: docHeaders(headers...)}.proto()
}

func (d docMessages) tunnel() *extprocv3.ProcessingRequest {
	return d.headers(false, ":method", "GET", "connection", "Upgrade", "upgrade", "websocket")
}

func (docMessages) of(k kind, eos bool, body string) *extprocv3.ProcessingRequest {
	return message{kind: k, eos: eos, body: []byte(body), mode: -1, respMode: -1}.proto()
}

// buffers reports that the gateway collects the request body.
func (d docMessages) buffers() bool {
	mode := extprocfilterv3.ProcessingMode_BodySendMode(d.mode)
	return mode == extprocfilterv3.ProcessingMode_BUFFERED || mode == extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
}

// response are response headers with what the gateway says of their origin.
func (docMessages) response(eos bool, attributes map[string]string, headers ...string) *extprocv3.ProcessingRequest {
	m := message{kind: responseHeaders, eos: eos, mode: -1, respMode: -1, headers: docHeaders(headers...)}.proto()
	fields := map[string]*structpb.Value{}
	for name, value := range attributes {
		fields[name] = structpb.NewStringValue(value)
	}
	m.Attributes = map[string]*structpb.Struct{attributesKey: {Fields: fields}}
	return m
}

func docHeaders(pairs ...string) []*corev3.HeaderValue {
	var all []*corev3.HeaderValue
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, &corev3.HeaderValue{Key: pair[0], RawValue: []byte(pair[1])})
	}
	return all
}

// frameRow plays a row: all messages but the last lead up to what the row is
// about.
type frameRow struct {
	messages        func(m docMessages) []*extprocv3.ProcessingRequest
	passTrailers    bool
	refuse, outside bool
}

type frames = []*extprocv3.ProcessingRequest

var requestRows = map[string]frameRow{
	"`request_headers`, end of stream": {messages: func(m docMessages) frames {
		return frames{m.headers(true)}
	}},
	"`request_headers`, a body to come": {messages: func(m docMessages) frames {
		return frames{m.headers(false)}
	}},
	"`request_headers`, content-length over `limits.body`": {messages: func(m docMessages) frames {
		return frames{m.headers(false, "content-length", fmt.Sprint(docBodyLimit+1))}
	}},
	"`request_body`, not the last": {messages: func(m docMessages) frames {
		return frames{m.headers(false), m.of(requestBody, false, "a part")}
	}},
	"`request_body`, the last": {messages: func(m docMessages) frames {
		if m.buffers() {
			return frames{m.headers(false), m.of(requestBody, true, "the whole")}
		}
		return frames{m.headers(false), m.of(requestBody, false, "two "), m.of(requestBody, false, "parts "), m.of(requestBody, true, "and one")}
	}},
	"`request_body`, over `limits.body`": {messages: func(m docMessages) frames {
		return frames{m.headers(false), m.of(requestBody, true, strings.Repeat("x", docBodyLimit+1))}
	}},
	"`request_trailers`, by default": {messages: func(m docMessages) frames {
		return frames{m.headers(false), m.of(requestBody, false, "a part"), m.of(requestTrailers, false, "")}
	}},
	"`request_trailers`, with `requestTrailers: pass`": {passTrailers: true, messages: func(m docMessages) frames {
		return frames{m.headers(false), m.of(requestBody, false, "a part"), m.of(requestTrailers, false, "")}
	}},
	"`request_trailers`, with `pass`, and no body came": {passTrailers: true, messages: func(m docMessages) frames {
		return frames{m.headers(false), m.of(requestTrailers, false, "")}
	}},
	"`request_body`, after `response_headers`": {messages: func(m docMessages) frames {
		return frames{m.headers(false), m.response(false, map[string]string{"response.code_details": "response_timeout"}), m.of(requestBody, false, "a part")}
	}},
	"`request_headers`, a second time": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.headers(true)}
	}},
	"anything, after an `immediate_response`": {refuse: true, messages: func(m docMessages) frames {
		return frames{m.headers(true), m.of(requestBody, true, "late")}
	}},
}

var tunnelRows = map[string]frameRow{
	"`request_headers`": {messages: func(m docMessages) frames {
		return frames{m.tunnel()}
	}},
	"`request_body`, before `response_headers` or after": {messages: func(m docMessages) frames {
		if m.buffers() {
			return frames{m.tunnel(), m.of(requestBody, false, "to")}
		}
		return frames{
			m.tunnel(), m.of(requestBody, false, "to"), m.response(false, nil),
			m.of(responseBodyKind, false, "fro"), m.of(requestBody, false, "to"),
		}
	}},
}

var responseRows = map[string]frameRow{
	"`response_headers`": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(false, nil)}
	}},
	"`response_headers`, served from outside, with `onViolation: refuse`": {outside: true, messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(false, nil)}
	}},
	"`response_headers`, of the gateway's own making before the decision": {messages: func(m docMessages) frames {
		return frames{m.headers(false), m.response(false, map[string]string{"response.code_details": "request_overall_timeout"})}
	}},
	"`response_headers`, of the gateway's own making before any message": {messages: func(m docMessages) frames {
		return frames{m.response(false, map[string]string{"response.code_details": "direct_response"})}
	}},
	"`response_headers`, of another filter's making before any message": {messages: func(m docMessages) frames {
		return frames{m.response(false, map[string]string{"response.code_details": ""})}
	}},
	"`response_headers`, of a replica before any message": {messages: func(m docMessages) frames {
		return frames{m.response(false, map[string]string{"response.code_details": viaUpstream, "upstream.address": "192.0.2.1:8000"})}
	}},
	"`response_body`, not the last": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(false, nil), m.of(responseBodyKind, false, "a part")}
	}},
	"`response_body`, the last": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(false, nil), m.of(responseBodyKind, true, "a part")}
	}},
	"`response_trailers`": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(false, nil), m.of(responseBodyKind, false, "a part"), m.of(responseTrailers, false, "")}
	}},
	"anything, after the end of the response": {messages: func(m docMessages) frames {
		return frames{m.headers(true), m.response(true, nil), m.of(responseBodyKind, true, "late")}
	}},
}

func TestTheFramesInTheDocumentAreThoseThatAreAnswered(t *testing.T) {
	const duplex = int32(extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED)
	t.Run("request", func(t *testing.T) {
		playTable(t, protocolTable(t, "request frames"), requestRows, func(mode int32) docMessages { return docMessages{mode, duplex} })
	})
	t.Run("tunnel", func(t *testing.T) {
		playTable(t, protocolTable(t, "tunnel frames"), tunnelRows, func(mode int32) docMessages { return docMessages{mode, duplex} })
	})
	t.Run("response", func(t *testing.T) {
		playTable(t, protocolTable(t, "response frames"), responseRows, func(mode int32) docMessages { return docMessages{duplex, mode} })
	})
}

func playTable(t *testing.T, table docTable, rows map[string]frameRow, in func(mode int32) docMessages) {
	var modes []int32
	for _, head := range table.head[1:] {
		modes = append(modes, modesOf(t, head)...)
	}
	for name, mode := range extprocfilterv3.ProcessingMode_BodySendMode_value {
		known := name == "GRPC"
		if slices.Contains(modes, mode) == known {
			t.Errorf("body mode %s: in the table %t, want %t", name, !known, known)
		}
	}
	documented := map[string]bool{}
	for _, cells := range table.rows {
		documented[cells[0]] = true
		row, ok := rows[cells[0]]
		if !ok {
			t.Errorf("the document has a row %q that nothing here plays", cells[0])
			continue
		}
		for column, want := range cells[1:] {
			for _, mode := range modesOf(t, table.head[column+1]) {
				if got := row.last(t, in(mode)); got != want {
					t.Errorf("%s in mode %s:\n  the document says %s\n  the answer is     %s", cells[0],
						extprocfilterv3.ProcessingMode_BodySendMode_name[mode], want, got)
				}
			}
		}
	}
	for name := range rows {
		if !documented[name] {
			t.Errorf("the document lacks a row %q", name)
		}
	}
}

// last plays the row and returns the answer to its last message.
func (row frameRow) last(t *testing.T, m docMessages) (answer string) {
	p := play(t, row.passTrailers)
	p.decider.refuse, p.decider.outside = row.refuse, row.outside
	all := row.messages(m)
	for i, msg := range all {
		answer = p.say(msg)
		if i < len(all)-1 && answer == "gRPC error" {
			t.Fatalf("message %d of %d: %s", i+1, len(all), answer)
		}
	}
	if strings.Contains(answer, "per part") && len(p.sent) > 0 {
		answer += fmt.Sprintf(", %q kept back", p.sent)
	}
	return answer
}

// seen is all that a request and the response to it have an influence on.
type seen struct {
	request Request
	served  Served
	answers string
}

// look sends a whole exchange in full duplex, and tells what was seen of it.
func look(t *testing.T, request, response *corev3.Metadata, headers []*corev3.HeaderValue, attributes map[string]string) string {
	t.Helper()
	p := play(t, false)
	var s seen
	first := message{kind: requestHeaders, mode: -1, respMode: -1, headers: headers, metadata: request}.proto()
	s.answers = p.say(first)
	if p.c.phase == collectBody {
		s.answers += p.say(message{kind: requestBody, eos: true, body: []byte("{}"), mode: -1, respMode: -1}.proto())
	}
	if p.c.phase != refused {
		last := docMessages{}.response(true, attributes)
		last.MetadataContext = response
		s.answers += p.say(last)
	}
	s.request, s.served = p.decider.request, p.decider.served
	subset := s.request.Subset
	s.request.Subset = nil
	return fmt.Sprintf("%+v, subset %t", s, subset != nil)
}

func TestTheHeadersInTheDocumentAreThoseThatAreRead(t *testing.T) {
	values := map[string]string{
		":method": "POST", ":path": "/v1/completions", "content-type": "application/json", "content-encoding": "gzip",
		"content-length": fmt.Sprint(docBodyLimit + 1), "x-request-id": "a", "x-berth-intent": "b", "x-selected-model": "c",
		"connection": "keep-alive, Upgrade", "upgrade": "websocket",
	}
	// The length of what is not a body has no meaning.
	exclusive := map[string][]string{"content-length": {"connection", "upgrade"}}
	pairs := func(without ...string) []*corev3.HeaderValue {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if !slices.Contains(without, name) {
				all = append(all, name, values[name])
			}
		}
		return docHeaders(all...)
	}
	documented := protocolTable(t, "headers read").names()
	if want := slices.Sorted(maps.Keys(values)); !slices.Equal(slices.Sorted(slices.Values(documented)), want) {
		t.Fatalf("the document lists %q, want %q", documented, want)
	}
	for _, name := range documented {
		others := exclusive[name]
		if look(t, nil, nil, pairs(others...), nil) == look(t, nil, nil, pairs(append(others, name)...), nil) {
			t.Errorf("%s is documented as read, and makes no difference", name)
		}
	}
	for _, name := range []string{
		destinationKey, subsetKey, servedKey, "x-gateway-inference-objective", "x-gateway-model-name-rewrite", decisionHeader,
		"authorization", "cookie", ":authority", "x-forwarded-for", "traceparent", "transfer-encoding", "te", "trailer",
	} {
		with := append(pairs(), docHeaders(name, "192.0.2.9:80")...)
		if got, want := look(t, nil, nil, with, nil), look(t, nil, nil, pairs(), nil); got != want {
			t.Errorf("%s is not documented as read, and makes a difference:\n%s\n%s", name, got, want)
		}
	}
}

func TestTheMetadataInTheDocumentIsThatWhichIsRead(t *testing.T) {
	of := func(namespace, key string) *corev3.Metadata {
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			namespace: {Fields: map[string]*structpb.Value{key: structpb.NewStringValue("192.0.2.9:80")}},
		}}
	}
	nothing := look(t, nil, nil, nil, nil)
	differs := func(namespace, key string, onRequest bool) bool {
		if onRequest {
			return look(t, of(namespace, key), nil, nil, nil) != nothing
		}
		return look(t, nil, of(namespace, key), nil, nil) != nothing
	}
	var rows []string
	documented := map[string]bool{}
	for _, row := range protocolTable(t, "metadata read").rows {
		rows = append(rows, strings.Join(row[:3], " | "))
		namespace, key, onRequest := strings.Trim(row[0], "`"), strings.Trim(row[1], "`"), row[2] == "the request"
		if except, ok := strings.CutPrefix(row[1], "any but "); ok {
			if differs(namespace, strings.Trim(except, "`"), onRequest) {
				t.Errorf("%s %s makes a difference", namespace, except)
			}
			key = "logicalModel"
		}
		documented[namespace+" "+key] = true
		if !differs(namespace, key, onRequest) {
			t.Errorf("%s %s is documented as read with %s, and makes no difference", namespace, key, row[2])
		}
		if differs(namespace, key, !onRequest) {
			t.Errorf("%s %s is documented as read with %s alone, and makes a difference with the other", namespace, key, row[2])
		}
	}
	want := []string{
		"`envoy.lb.subset_hint` | `x-gateway-destination-endpoint-subset` | the request",
		"`berth.dev` | any but `acknowledgement` | the request",
		"`envoy.lb` | `x-gateway-destination-endpoint-served` | the response",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the document lists %q, want %q", rows, want)
	}
	for _, namespace := range []string{lbNamespace, subsetNamespace, "envoy.filters.http.jwt_authn"} {
		for _, key := range []string{destinationKey, subsetKey, servedKey, acknowledgement} {
			for _, onRequest := range []bool{true, false} {
				if !documented[namespace+" "+key] && differs(namespace, key, onRequest) {
					t.Errorf("%s %s is not documented as read, and makes a difference", namespace, key)
				}
			}
		}
	}
}

func TestTheAttributesInTheDocumentAreThoseThatAreRead(t *testing.T) {
	nothing := look(t, nil, nil, nil, nil)
	documented := protocolTable(t, "attributes read").names()
	for _, name := range []string{
		"upstream.address", "upstream.request_attempt_count", "upstream.transport_failure_reason", "response.code_details",
		"response.code", "response.flags", "upstream.port", "source.address", "request.path",
	} {
		reads := look(t, nil, nil, nil, map[string]string{name: "7"}) != nothing
		if reads != slices.Contains(documented, name) {
			t.Errorf("%s: read %t, documented %t", name, reads, !reads)
		}
	}
	if len(documented) != 4 {
		t.Errorf("%d attributes are documented: %q", len(documented), documented)
	}
}

func TestTheEndingsInTheDocumentAreThoseThatAreRecorded(t *testing.T) {
	const duplex, none = int32(extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED), int32(extprocfilterv3.ProcessingMode_NONE)
	m, unshown := docMessages{duplex, duplex}, docMessages{duplex, none}
	byGateway := func(details string) frames {
		return frames{m.headers(true), m.response(true, map[string]string{"response.code_details": details})}
	}
	events := func(event string) frames {
		return frames{
			m.headers(true),
			m.response(false, nil, ":status", "200", "content-type", "text/event-stream"),
			m.of(responseBodyKind, true, "data: "+event+"\n\n"),
		}
	}
	type ending struct {
		messages frames
		cause    Cause
		outside  bool
		reset    bool
	}
	endings := map[string]ending{
		"after the whole response": {
			messages: frames{m.headers(true), m.response(false, nil), m.of(responseBodyKind, true, "{}")}, cause: ClientDisconnect,
		},
		"after the whole response, which the gateway made after a time-out":    {messages: byGateway("response_timeout"), cause: ClientDisconnect},
		"after the whole response, which the gateway made for another reason":  {messages: byGateway("no_healthy_upstream"), cause: ClientDisconnect},
		"after an event stream with status 200 and an error event in it":       {messages: events(`{"error":{"message":"no","code":500}}`), cause: ClientDisconnect},
		"after an event stream in which the engine's finish reason is `abort`": {messages: events(`{"choices":[{"delta":{},"finish_reason":"abort"}]}`), cause: ClientDisconnect},
		"before the response headers":                                          {messages: frames{m.headers(true)}, cause: ClientDisconnect},
		"behind the `data: [DONE]` of an event stream": {messages: frames{m.headers(true),
			m.response(false, nil, ":status", "200", "content-type", "text/event-stream"), m.of(responseBodyKind, false, "data: [DONE]\n\n")}, cause: ClientDisconnect},
		"within a response whose body is shown":                                                  {messages: frames{m.headers(true), m.response(false, nil)}, cause: ClientDisconnect},
		"after the response headers of a tunnel, closed":                                         {messages: frames{m.tunnel(), m.response(false, nil)}, cause: ClientDisconnect},
		"after response headers without a body to show, closed":                                  {messages: frames{unshown.headers(true), m.response(false, nil)}, cause: ClientDisconnect},
		"after response headers without a body to show, reset":                                   {messages: frames{unshown.headers(true), m.response(false, nil)}, cause: ClientDisconnect, reset: true},
		"before response headers without a body to show, reset":                                  {messages: frames{unshown.headers(true)}, cause: ClientDisconnect, reset: true},
		"before response headers without a body to show, closed, in modes that never showed any": {messages: frames{unshown.headers(true)}, cause: ClientDisconnect},
		"by the refusal of a response from outside":                                              {messages: frames{m.headers(true), m.response(false, nil)}, outside: true, cause: ServedOutside},
		"by the end of the picker, after `limits.drain`":                                         {messages: frames{m.headers(true)}, cause: Shutdown},
		"by a message out of order, or a fault of the picker":                                    {messages: frames{m.headers(true)}, cause: Internal},
	}
	table := protocolTable(t, "endings")
	for _, row := range table.rows {
		e, ok := endings[row[0]]
		if !ok {
			t.Errorf("the document has an ending %q that nothing here plays", row[0])
			continue
		}
		p := play(t, false)
		p.decider.outside = e.outside
		for _, msg := range e.messages {
			if answer := p.say(msg); answer == "gRPC error" {
				t.Fatalf("%s: %s", row[0], answer)
			}
		}
		p.c.reset = e.reset
		p.c.finish(e.cause)
		if got := "`" + string(p.decider.outcome.Cause) + "`"; got != row[1] {
			t.Errorf("%s: recorded as %s, the document says %s", row[0], got, row[1])
		}
	}
	if len(table.rows) != len(endings) {
		t.Errorf("the document has %d endings, want %d", len(table.rows), len(endings))
	}
}

func TestTheLimitsInTheDocumentAreThoseOfTheConfiguration(t *testing.T) {
	var want []string
	var keys func(prefix string, of reflect.Type)
	keys = func(prefix string, of reflect.Type) {
		for field := range of.Fields() {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Type.Kind() == reflect.Struct {
				keys(prefix+key+".", field.Type)
				continue
			}
			want = append(want, prefix+key)
		}
	}
	keys("limits.", reflect.TypeFor[v1alpha1.LimitsConfiguration]())
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(protocolTable(t, "limits").names())); !slices.Equal(got, want) {
		t.Errorf("the document lists %q, want %q", got, want)
	}
}
