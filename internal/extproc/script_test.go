package extproc

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/telemetry"
)

// TestConversations plays the scripts in testdata: what a gateway sends, and
// what it gets. Commands:
//
//	open [body-limit=N] [pass-trailers] [pick=ADDRESSES | refuse=REASON] [deadline=D]
//	request-headers [eos] [mode=fds|buffered|streamed|none] [response-mode=...] [NAME=VALUE ...]
//	request-body [eos] / response-body [eos]      the text below the command, or size=N
//	request-trailers / response-trailers
//	response-headers [eos] [sse] [status=N] [served=ADDRESS] [attempts=N] [details=D]
//	metadata namespace key                        for the next message; JSON below
//	pass D                                        time goes by
//	close                                         the gateway ends the stream
func TestConversations(t *testing.T) {
	datadriven.Walk(t, "testdata/conversations", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "open" {
				s = openScript(t, d)
				return ""
			}
			return s.run(t, d)
		})
	})
}

type script struct {
	now      telemetry.Instant
	shared   shared
	decider  *scriptDecider
	c        *conversation
	metadata *corev3.Metadata
	out      strings.Builder
}

func openScript(t *testing.T, d *datadriven.TestData) *script {
	s := &script{now: telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	s.decider = &scriptDecider{script: s, pick: "10.0.0.1:8000"}
	overloaded, shown := false, false
	settings := wide()
	settings.UploadIdle, settings.UploadTime, settings.DecisionDeadline = 10*time.Second, 5*time.Minute, 500*time.Millisecond
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "body-limit":
			settings.BodyLimit = mustInt(t, d, arg)
		case "buffered":
			settings.Buffered = mustInt(t, d, arg)
		case "upload-time":
			settings.UploadTime = mustDuration(t, d, arg.Vals[0])
		case "header-count":
			settings.HeaderCount = int(mustInt(t, d, arg))
		case "header-bytes":
			settings.HeaderBytes = mustInt(t, d, arg)
		case "shown":
			// Another stream in these modes was shown a response.
			shown = true
		case "overloaded":
			overloaded = true
		case "pass-trailers":
			settings.PassTrailers = true
		case "pick":
			s.decider.pick = strings.Join(arg.Vals, ",")
		case "refuse":
			s.decider.refuse = arg.Vals[0]
		case "violation":
			s.decider.violation = true
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
	s.c = newConversation(settings, s.decider, func() telemetry.Instant { return s.now }, &s.shared)
	s.c.overloaded = overloaded
	if shown {
		for i := range bodyModes {
			s.shared.in(extprocfilterv3.ProcessingMode_BodySendMode(i), extprocfilterv3.ProcessingMode_NONE).Store(true)
		}
	}
	s.c.onBlind = func(mode string) { fmt.Fprintf(&s.out, "warned of body mode %s\n", mode) }
	return s
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	switch d.Cmd {
	case "metadata":
		s.addMetadata(t, d)
		return ""
	case "pass":
		return s.pass(t, d)
	case "close":
		// As the gateway closes a stream, or, with "reset", resets it.
		s.c.reset = d.HasArg("reset")
		s.c.finish(ClientDisconnect)
		return s.result()
	}
	msg := s.message(t, d)
	if s.metadata != nil {
		msg.MetadataContext, s.metadata = s.metadata, nil
	}
	out, err := s.c.handle(msg)
	for _, m := range out {
		s.describe(decoded(t, m))
	}
	s.c.sent()
	if err != nil {
		fmt.Fprintf(&s.out, "error: %v\n", err)
		s.c.finish(Internal)
	}
	return s.result()
}

func (s *script) result() string {
	if s.out.Len() == 0 {
		return fmt.Sprintf("nothing, phase %s\n", s.c.phase)
	}
	return s.out.String()
}

func (s *script) pass(t *testing.T, d *datadriven.TestData) string {
	s.now = s.now.Add(mustDuration(t, d, d.CmdArgs[0].Key))
	if at, ok := s.c.idleDeadline(); ok && s.now >= at {
		for _, m := range s.c.uploadEnded() {
			s.describe(m)
		}
		s.c.finish(s.c.refusedFor)
	}
	return s.result()
}

func (s *script) addMetadata(t *testing.T, d *datadriven.TestData) {
	if s.metadata == nil {
		s.metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	}
	v := &structpb.Value{}
	if err := v.UnmarshalJSON([]byte(d.Input)); err != nil {
		d.Fatalf(t, "%v", err)
	}
	s.metadata.FilterMetadata[d.CmdArgs[0].Key] = &structpb.Struct{
		Fields: map[string]*structpb.Value{d.CmdArgs[1].Key: v},
	}
}

var modes = map[string]extprocfilterv3.ProcessingMode_BodySendMode{
	"fds":              extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
	"buffered":         extprocfilterv3.ProcessingMode_BUFFERED,
	"buffered-partial": extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL,
	"streamed":         extprocfilterv3.ProcessingMode_STREAMED,
	"none":             extprocfilterv3.ProcessingMode_NONE,
}

func (s *script) message(t *testing.T, d *datadriven.TestData) *extprocv3.ProcessingRequest {
	msg := &extprocv3.ProcessingRequest{}
	headers := &corev3.HeaderMap{}
	attributes := map[string]*structpb.Value{}
	var (
		eos        bool
		size       int64 = -1
		config     *extprocv3.ProtocolConfiguration
		modeOf     = func(name string) extprocfilterv3.ProcessingMode_BodySendMode { return modes[name] }
		raw        bool
		setFromArg = func(name, value string) {
			h := &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
			if raw {
				h = &corev3.HeaderValue{Key: name, Value: value}
			}
			headers.Headers = append(headers.Headers, h)
		}
	)
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, ",")
		switch arg.Key {
		case "eos":
			eos = true
		case "plain-values":
			raw = true
		case "size":
			size = mustInt(t, d, arg)
		case "mode", "response-mode":
			if config == nil {
				config = &extprocv3.ProtocolConfiguration{
					RequestBodyMode:  extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
					ResponseBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				}
			}
			if arg.Key == "mode" {
				config.RequestBodyMode = modeOf(value)
			} else {
				config.ResponseBodyMode = modeOf(value)
			}
		case "status":
			setFromArg(":status", value)
		case "sse":
			setFromArg("content-type", "text/event-stream")
		case "served":
			attributes["upstream.address"] = structpb.NewStringValue(value)
		case "attempts":
			attributes["upstream.request_attempt_count"] = structpb.NewStringValue(value)
		case "details":
			attributes["response.code_details"] = structpb.NewStringValue(value)
		default:
			setFromArg(arg.Key, value)
		}
	}
	msg.ProtocolConfig = config
	if len(attributes) > 0 {
		msg.Attributes = map[string]*structpb.Struct{attributesKey: {Fields: attributes}}
	}
	body := &extprocv3.HttpBody{Body: []byte(d.Input), EndOfStream: eos}
	if size >= 0 {
		body.Body = []byte(strings.Repeat("x", int(size)))
	}
	switch d.Cmd {
	case "request-headers":
		msg.Request = &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: headers, EndOfStream: eos},
		}
	case "request-body":
		msg.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case "request-trailers":
		msg.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}
	case "response-headers":
		msg.Request = &extprocv3.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers, EndOfStream: eos},
		}
	case "response-body":
		msg.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	case "response-trailers":
		msg.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}
	case "nothing":
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return msg
}

func (s *script) describe(m *extprocv3.ProcessingResponse) {
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		fmt.Fprintf(&s.out, "request_headers%s\n", describeCommon(r.RequestHeaders.GetResponse()))
	case *extprocv3.ProcessingResponse_RequestBody:
		fmt.Fprintf(&s.out, "request_body%s\n", describeCommon(r.RequestBody.GetResponse()))
	case *extprocv3.ProcessingResponse_RequestTrailers:
		fmt.Fprintf(&s.out, "request_trailers\n")
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		fmt.Fprintf(&s.out, "response_headers%s\n", describeCommon(r.ResponseHeaders.GetResponse()))
	case *extprocv3.ProcessingResponse_ResponseBody:
		fmt.Fprintf(&s.out, "response_body%s\n", describeCommon(r.ResponseBody.GetResponse()))
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		fmt.Fprintf(&s.out, "response_trailers\n")
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := r.ImmediateResponse
		fmt.Fprintf(&s.out, "immediate %d%s\n  %s\n", i.GetStatus().GetCode(), describeHeaders(i.GetHeaders()), i.GetBody())
	default:
		fmt.Fprintf(&s.out, "unknown answer %T\n", r)
	}
	var namespaces []string
	for ns := range m.GetDynamicMetadata().GetFields() {
		namespaces = append(namespaces, ns)
	}
	sort.Strings(namespaces)
	for _, ns := range namespaces {
		value := m.GetDynamicMetadata().GetFields()[ns].GetStructValue()
		for key, v := range value.GetFields() {
			if text := v.GetStringValue(); text != "" {
				fmt.Fprintf(&s.out, "  metadata %s %s=%s\n", ns, key, text)
			} else {
				fmt.Fprintf(&s.out, "  metadata %s %s\n", ns, key)
			}
		}
	}
}

func describeCommon(r *extprocv3.CommonResponse) string {
	text := describeHeaders(r.GetHeaderMutation())
	if streamed := r.GetBodyMutation().GetStreamedResponse(); streamed != nil {
		body := strconv.Quote(string(streamed.GetBody()))
		if len(body) > 80 {
			body = fmt.Sprintf("%d bytes", len(streamed.GetBody()))
		}
		text += " streamed " + body
		if streamed.GetEndOfStream() {
			text += " eos"
		}
	}
	return text
}

func describeHeaders(m *extprocv3.HeaderMutation) string {
	var b strings.Builder
	for _, h := range m.GetSetHeaders() {
		fmt.Fprintf(&b, " %s=%s", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
		if h.GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD || h.GetHeader().GetValue() != "" {
			b.WriteString(" (WRONG ACTION OR FIELD)")
		}
	}
	for _, name := range m.GetRemoveHeaders() {
		fmt.Fprintf(&b, " without %s", name)
	}
	return b.String()
}

func mustDuration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func mustInt(t *testing.T, d *datadriven.TestData, arg datadriven.CmdArg) int64 {
	n, err := strconv.ParseInt(arg.Vals[0], 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

// scriptDecider says what it was asked and what it was told.
type scriptDecider struct {
	script    *script
	pick      string
	refuse    string
	violation bool
}

func (s *scriptDecider) Decide(req *Request) (Decision, *Refusal) {
	out := &s.script.out
	fmt.Fprintf(out, "decide %s %s", req.Method, req.Path)
	if req.BodySeen {
		body := strconv.Quote(string(req.Body))
		if len(body) > 80 {
			body = fmt.Sprintf("%d bytes", len(req.Body))
		}
		fmt.Fprintf(out, " body %s", body)
	} else {
		fmt.Fprintf(out, " body not seen")
	}
	if req.Subset != nil {
		fmt.Fprintf(out, " subset of %d (%d invalid)", req.Subset.Len(), req.Subset.Invalid())
	}
	if len(req.IntentMetadata) > 0 {
		fmt.Fprintf(out, " intent metadata %v", req.IntentMetadata)
	}
	if len(req.SignedIntents) > 0 {
		fmt.Fprintf(out, " signed intents %q", req.SignedIntents)
	}
	if len(req.Kept) > 0 {
		fmt.Fprintf(out, " kept %v", req.Kept)
	}
	if req.RequestID != "" {
		fmt.Fprintf(out, " id %q", req.RequestID)
	}
	out.WriteString("\n")
	if s.refuse != "" {
		return nil, &Refusal{Status: 503, Reason: s.refuse, Message: "says the script", RetryAfter: 1500 * time.Millisecond}
	}
	return &scriptDecision{s}, nil
}

type scriptDecision struct{ *scriptDecider }

func (d *scriptDecision) Destination() string { return d.pick }

func (d *scriptDecision) RequestHeaders() []Header { return []Header{{"x-berth-decision", "d1"}} }

func (d *scriptDecision) Acknowledgement() []Member { return nil }

func (d *scriptDecision) Served(s Served) *Refusal {
	fmt.Fprintf(&d.script.out, "served status %d by %q attempts %d details %q\n", s.Status, s.Address, s.Attempts, s.Details)
	if d.violation {
		return &Refusal{Status: 502, Reason: "served_outside", Message: "says the script"}
	}
	return nil
}

func (d *scriptDecision) ResponseHeaders() []Header { return []Header{{"x-berth-acted", "confirmed"}} }

func (d *scriptDecision) FirstByte(telemetry.Instant) { d.script.out.WriteString("first byte\n") }

func (d *scriptDecision) Finish(o Outcome) {
	fmt.Fprintf(&d.script.out, "finish %s in %d out %d shown %s", o.Cause, o.RequestBytes, o.ResponseBytes, o.Seen)
	if o.Answer.ErrorCode != 0 {
		fmt.Fprintf(&d.script.out, " error %d", o.Answer.ErrorCode)
	}
	if o.Answer.Input > 0 {
		fmt.Fprintf(&d.script.out, " tokens %d in %d out", o.Answer.Input, o.Answer.Output)
	}
	d.script.out.WriteString("\n")
}
