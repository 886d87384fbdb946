package extproc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/telemetry"
)

// kind is a kind of message, and of the answer to it.
type kind string

const (
	requestHeaders   kind = "request_headers"
	requestBody      kind = "request_body"
	requestTrailers  kind = "request_trailers"
	responseHeaders  kind = "response_headers"
	responseBodyKind kind = "response_body"
	responseTrailers kind = "response_trailers"
	immediateAnswer  kind = "immediate"
	noKind           kind = "nothing"
)

// message is one message of a gateway, in the few ways that matter here.
type message struct {
	kind kind
	eos  bool
	body []byte
	// mode and respMode are sent as protocol_config unless they are negative.
	mode, respMode int32
	metadata       *corev3.Metadata
	headers        []*corev3.HeaderValue
}

func (m message) String() string {
	if m.eos {
		return string(m.kind) + "/eos"
	}
	return string(m.kind)
}

func (m message) proto() *extprocv3.ProcessingRequest {
	msg := &extprocv3.ProcessingRequest{MetadataContext: m.metadata}
	if m.mode >= 0 || m.respMode >= 0 {
		msg.ProtocolConfig = &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  extprocfilterv3.ProcessingMode_BodySendMode(m.mode),
			ResponseBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(m.respMode),
		}
	}
	headers := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: m.headers}, EndOfStream: m.eos}
	body := &extprocv3.HttpBody{Body: m.body, EndOfStream: m.eos}
	switch m.kind {
	case requestHeaders:
		msg.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers}
	case requestBody:
		msg.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case requestTrailers:
		msg.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}
	case responseHeaders:
		msg.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers}
	case responseBodyKind:
		msg.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	case responseTrailers:
		msg.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}
	}
	return msg
}

func kindOf(r *extprocv3.ProcessingResponse) kind {
	switch r.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return requestHeaders
	case *extprocv3.ProcessingResponse_RequestBody:
		return requestBody
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return requestTrailers
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return responseHeaders
	case *extprocv3.ProcessingResponse_ResponseBody:
		return responseBodyKind
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return responseTrailers
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return immediateAnswer
	}
	return noKind
}

// checkedDecider places or refuses, and counts how the protocol treats it.
type checkedDecider struct {
	refuse, violation bool

	decided, served, firstByte, finished int
	body                                 []byte
	outcome                              Outcome
	complaint                            string
}

func (d *checkedDecider) complain(format string, args ...any) {
	if d.complaint == "" {
		d.complaint = fmt.Sprintf(format, args...)
	}
}

func (d *checkedDecider) alive(call string) {
	if d.finished > 0 {
		d.complain("%s after Finish", call)
	}
}

func (d *checkedDecider) Decide(req *Request) (Decision, *Refusal) {
	if d.decided++; d.decided > 1 {
		d.complain("Decide was called twice")
	}
	d.body = bytes.Clone(req.Body)
	if d.refuse {
		return nil, &Refusal{Status: 503, Reason: "unhealthy"}
	}
	return d, nil
}

func (d *checkedDecider) Destination() string {
	d.alive("Destination")
	return "10.0.0.1:8000"
}
func (d *checkedDecider) RequestHeaders() []Header  { return nil }
func (d *checkedDecider) Acknowledgement() []Member { return nil }
func (d *checkedDecider) ResponseHeaders() []Header { return nil }

func (d *checkedDecider) Served(Served) *Refusal {
	d.alive("Served")
	if d.served++; d.served > 1 {
		d.complain("Served was called twice")
	}
	if d.violation {
		return &Refusal{Status: 502, Reason: "served_outside"}
	}
	return nil
}

func (d *checkedDecider) FirstByte(telemetry.Instant) {
	d.alive("FirstByte")
	if d.served == 0 {
		d.complain("FirstByte before Served")
	}
	if d.firstByte++; d.firstByte > 1 {
		d.complain("FirstByte was called twice")
	}
}

func (d *checkedDecider) Finish(o Outcome) {
	d.outcome = o
	if d.finished++; d.finished > 1 {
		d.complain("Finish was called twice")
	}
}

// transcript holds a conversation against what must be true of every one.
type transcript struct {
	decider  *checkedDecider
	settings Settings
	c        *conversation

	sent []message
	// answered is, per direction, the index in sent of the last message that an
	// answer was for: answers come in order.
	answered map[bool]int
	// over says why nothing may follow; empty while something may.
	over         string
	destinations int
	// in and back are the request's body bytes as sent, and as given back in
	// full duplex.
	in, back    []byte
	backEnded   bool
	unmatchedBy map[kind]int
	shared      *shared
}

func newTranscript(settings Settings, d *checkedDecider) *transcript {
	now := telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	all := new(shared)
	return &transcript{
		decider: d, settings: settings, shared: all,
		c:           newConversation(settings, d, func() telemetry.Instant { return now }, all),
		answered:    map[bool]int{true: -1, false: -1},
		unmatchedBy: map[kind]int{},
	}
}

func isRequest(k kind) bool { return strings.HasPrefix(string(k), "request_") }

// send hands the conversation one message and checks the answers. It returns
// false when the stream is over.
func (tr *transcript) send(m message) error {
	tr.sent = append(tr.sent, m)
	tr.unmatchedBy[m.kind]++
	if m.kind == requestBody {
		tr.in = append(tr.in, m.body...)
	}
	out, err := tr.c.handle(m.proto())
	for _, answer := range out {
		if fault := tr.check(answer); fault != nil {
			return fault
		}
	}
	tr.c.sent()
	if err != nil {
		if len(out) > 0 && kindOf(out[len(out)-1]) == immediateAnswer {
			return fmt.Errorf("an error after an immediate response: %w", err)
		}
		tr.over = err.Error()
	}
	if tr.c.phase == refused && tr.over == "" {
		return fmt.Errorf("phase refused without an immediate response")
	}
	return nil
}

func (tr *transcript) check(answer *extprocv3.ProcessingResponse) error {
	k := kindOf(answer)
	if tr.over != "" {
		return fmt.Errorf("answer %s after %s", k, tr.over)
	}
	if mutation := destinationIn(answer); mutation {
		tr.destinations++
	}
	if k == immediateAnswer {
		tr.over = "an immediate response"
		return nil
	}
	if tr.unmatchedBy[k] == 0 {
		return fmt.Errorf("answer %s without an unanswered message of its kind", k)
	}
	tr.unmatchedBy[k]--
	direction := isRequest(k)
	at := tr.answered[direction] + 1
	for at < len(tr.sent) && tr.sent[at].kind != k {
		at++
	}
	if at == len(tr.sent) {
		return fmt.Errorf("answer %s out of order", k)
	}
	tr.answered[direction] = at
	if k == requestBody {
		if streamed := answer.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); streamed != nil {
			if tr.backEnded {
				return fmt.Errorf("a part of the body after its end")
			}
			tr.back = append(tr.back, streamed.GetBody()...)
			tr.backEnded = streamed.GetEndOfStream()
		}
	}
	return nil
}

func destinationIn(r *extprocv3.ProcessingResponse) bool {
	common := r.GetRequestHeaders().GetResponse()
	if common == nil {
		common = r.GetRequestBody().GetResponse()
	}
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == destinationKey {
			return true
		}
	}
	return false
}

// close ends the stream and checks the whole.
func (tr *transcript) close() error {
	phase := tr.c.phase
	tr.c.finish(ClientDisconnect)
	tr.c.finish(Internal)
	d := tr.decider
	switch {
	case tr.shared.held.Load() != 0:
		return fmt.Errorf("%d bytes are still held", tr.shared.held.Load())
	case d.complaint != "":
		return fmt.Errorf("%s", d.complaint)
	case d.decided == 1 && !d.refuse && d.finished != 1:
		return fmt.Errorf("a decision was finished %d times", d.finished)
	case (d.decided == 0 || d.refuse) && d.finished != 0:
		return fmt.Errorf("Finish without a decision")
	case d.decided == 1 && !d.refuse && tr.destinations != 1:
		return fmt.Errorf("the destination was sent %d times", tr.destinations)
	case (d.decided == 0 || d.refuse) && tr.destinations != 0:
		return fmt.Errorf("a destination without a decision")
	case d.finished == 1 && phase == done && d.outcome.Cause != Complete:
		return fmt.Errorf("cause %s of a response that ended", d.outcome.Cause)
	case d.outcome.RequestBytes > int64(len(tr.in)):
		return fmt.Errorf("%d request bytes counted of %d", d.outcome.RequestBytes, len(tr.in))
	}
	fullDuplex := tr.c.reqMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	switch {
	case d.decided != 1 || d.refuse || !fullDuplex:
	case tr.c.req.Tunnel:
		if !bytes.HasPrefix(tr.in, tr.back) {
			return fmt.Errorf("of what went in, %q, came out %q", tr.in, tr.back)
		}
	default:
		if !bytes.Equal(d.body, tr.back) {
			return fmt.Errorf("decided by body %q, gave back %q", d.body, tr.back)
		}
		if int64(len(d.body)) > tr.settings.BodyLimit {
			return fmt.Errorf("a body of %d bytes was decided, the limit is %d", len(d.body), tr.settings.BodyLimit)
		}
	}
	return nil
}

// symbols are all kinds of messages, with and without the end of the stream.
func symbols(mode, respMode int32) []message {
	var all []message
	for _, k := range []kind{requestHeaders, requestBody, responseHeaders, responseBodyKind} {
		for _, eos := range []bool{false, true} {
			m := message{kind: k, eos: eos, mode: -1, respMode: -1}
			if k == requestHeaders {
				m.mode, m.respMode = mode, respMode
			}
			if k == requestBody || k == responseBodyKind {
				m.body = []byte("{}")
			}
			all = append(all, m)
		}
	}
	for _, k := range []kind{requestTrailers, responseTrailers, noKind} {
		all = append(all, message{kind: k, mode: -1, respMode: -1})
	}
	return all
}

// TestX5_EveryOrderOfMessagesIsSafe sends all sequences of up to five messages of
// all kinds, in every mode. What follows the end of a stream is not tried: no
// message is read then.
func TestX5_EveryOrderOfMessagesIsSafe(t *testing.T) {
	const longest, longestOfTunnels = 5, 4
	modes := map[string]int32{
		"no configuration": -1, "none": 0, "streamed": 1, "buffered": 2, "buffered partial": 3, "full duplex": 4,
	}
	type way struct {
		mode   int32
		tunnel bool
	}
	ways := map[string]way{"tunnel, full duplex": {4, true}, "tunnel, streamed": {1, true}, "tunnel, buffered": {2, true}}
	for name, mode := range modes {
		ways[name] = way{mode: mode}
	}
	for name, way := range ways {
		for _, passTrailers := range []bool{false, true} {
			for _, decider := range []checkedDecider{{}, {refuse: true}, {violation: true}} {
				all := symbols(way.mode, way.mode)
				if way.tunnel {
					for i := range all {
						if all[i].kind == requestHeaders {
							all[i].headers = upgradeHeaders()
						}
					}
				}
				tried := 0
				var extend func(prefix []message)
				extend = func(prefix []message) {
					for _, next := range all {
						d := decider
						tr := newTranscript(narrow(1<<10, 1<<20, passTrailers), &d)
						sequence := slices.Concat(prefix, []message{next})
						tried++
						var fault error
						for i := 0; i < len(sequence) && fault == nil; i++ {
							fault = tr.send(sequence[i])
						}
						over := tr.over != ""
						if fault == nil {
							fault = tr.close()
						}
						if fault != nil {
							t.Fatalf("mode %s, pass trailers %t, refuse %t, violation %t: %v: %v",
								name, passTrailers, decider.refuse, decider.violation, sequence, fault)
						}
						if !over && (len(sequence) < longestOfTunnels || !way.tunnel && len(sequence) < longest) {
							extend(sequence)
						}
					}
				}
				extend(nil)
				if tried < len(all) {
					t.Fatalf("only %d sequences were tried", tried)
				}
			}
		}
	}
}

// FuzzConversation reads bytes as a gateway's messages, with odd modes, parts of
// odd sizes and metadata of odd types, and holds the answers against what must
// be true of every conversation.
func FuzzConversation(f *testing.F) {
	f.Add([]byte{0, 0x10, 0x31, 0x42, 0x75, 0x96})
	f.Add([]byte{1, 0x11, 0x20, 0x40, 0x50})
	f.Add([]byte{2, 0x10, 0x3f, 0x41, 0x60, 0x51, 0x72})
	f.Add([]byte{7, 0x12, 0x32, 0x52, 0xff, 0x00})
	f.Add([]byte("a gateway gone mad"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		flags := data[0]
		d := &checkedDecider{refuse: flags&1 != 0, violation: flags&2 != 0}
		tr := newTranscript(narrow(64, 1<<10, flags&4 != 0), d)
		for i, b := range data[1:] {
			if tr.over != "" {
				break
			}
			if fault := tr.send(fuzzed(b, i, flags)); fault != nil {
				t.Fatalf("%v: %v", tr.sent, fault)
			}
		}
		if fault := tr.close(); fault != nil {
			t.Fatalf("%v: %v", tr.sent, fault)
		}
	})
}

// fuzzed makes one message of one byte: its kind from the upper half, the rest
// from the lower one.
func upgradeHeaders() []*corev3.HeaderValue {
	return []*corev3.HeaderValue{
		{Key: "connection", RawValue: []byte("keep-alive, Upgrade")}, {Key: "upgrade", RawValue: []byte("websocket")},
	}
}

func fuzzed(b byte, i int, flags byte) message {
	kinds := []kind{noKind, requestHeaders, requestHeaders, requestBody, requestBody, responseHeaders,
		responseBodyKind, responseBodyKind, requestTrailers, responseTrailers}
	m := message{kind: kinds[int(b>>4)%len(kinds)], eos: b&1 != 0, mode: -1, respMode: -1}
	switch m.kind {
	case requestHeaders:
		// 8 and above are modes that no protocol has.
		m.mode, m.respMode = int32(b&0xf)-1, int32(flags>>4)-1
		m.headers = []*corev3.HeaderValue{
			{Key: ":method", RawValue: []byte{b}}, {Key: ":path", Value: string(rune(flags))},
			{Key: "Content-Length", RawValue: []byte(strings.Repeat("9", int(flags>>3)))}, nil,
		}
		if b>>4 == 2 {
			m.headers = append(m.headers, upgradeHeaders()...)
		}
	case requestBody, responseBodyKind:
		m.body = bytes.Repeat([]byte{b}, int(b&0xe)*2+i%3)
	case responseHeaders:
		m.headers = []*corev3.HeaderValue{{Key: ":status", RawValue: []byte{'2', b, '0'}}}
	}
	if flags&8 != 0 {
		values := []*structpb.Value{
			structpb.NewStringValue("[::1]:80,,x"), structpb.NewNumberValue(7), structpb.NewNullValue(),
			structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{nil, structpb.NewStringValue("10.0.0.1:1")}}), nil,
		}
		v := values[int(b)%len(values)]
		m.metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: v}},
			berthNamespace:  {Fields: map[string]*structpb.Value{"intent": v, acknowledgement: v}},
			lbNamespace:     {Fields: map[string]*structpb.Value{servedKey: v}},
		}}
	}
	return m
}

// narrow are settings with limits that a sequence may reach.
func narrow(body, buffered int64, passTrailers bool) Settings {
	s := wide()
	s.BodyLimit, s.Buffered, s.PassTrailers = body, buffered, passTrailers
	return s
}
