package extproc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/response"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Settings are what a stream goes by. It takes them once, at its start.
type Settings struct {
	// BodyLimit is the largest request body in bytes; above it 413.
	BodyLimit int64
	// Buffered is the most bytes of requests that are held at once, over all
	// streams of the server, until they are decided; above it 503.
	Buffered int64
	// Streams is how many streams may be open at once; those above it get 503.
	Streams int
	// HeaderCount and HeaderBytes are the most headers of a request, and the
	// longest that their names and values may be together; above either 431.
	HeaderCount int
	HeaderBytes int64
	// UploadIdle is the longest pause in a request body that is held here,
	// UploadTime the longest time from the headers to the body's end; above either
	// 408.
	UploadIdle, UploadTime time.Duration
	// DecisionDeadline bounds the time from the end of the request to the
	// decision; above it 504.
	DecisionDeadline time.Duration
	// Keep names headers, in lower case, that the decision is told of.
	Keep []string
	// PassTrailers lets requests with trailers through. Off, they are refused:
	// a gateway that retries sends their body twice.
	PassTrailers bool
}

// phase is where a conversation is. Each names what may come next.
type phase uint8

const (
	// awaitHeaders: nothing has come yet.
	awaitHeaders phase = iota
	// collectBody: the request body is being held; nothing is answered yet.
	collectBody
	// awaitBuffered: the headers are answered, the decision waits for the one
	// body message, which the gateway collects.
	awaitBuffered
	// requestTail: decided; the rest of the request passes by.
	requestTail
	// awaitResponse: the whole request has been answered.
	awaitResponse
	// responseBody: the response headers are answered.
	responseBody
	// done: the response has ended.
	done
	// refused: an immediate response was given; nothing may follow.
	refused
)

func (p phase) String() string {
	return [...]string{"await-headers", "collect-body", "await-buffered", "request-tail",
		"await-response", "response-body", "done", "refused"}[p]
}

// conversation is one ext_proc stream without its transport: messages go in,
// answers come out. It is used by one goroutine.
type conversation struct {
	settings Settings
	decider  Decider
	clock    telemetry.Clock

	phase    phase
	reqMode  extprocfilterv3.ProcessingMode_BodySendMode
	respMode extprocfilterv3.ProcessingMode_BodySendMode
	req      Request
	chunks   [][]byte
	// held is what this stream has of the server's held bytes.
	held   int64
	shared *shared
	// bytesIn and bytesOut count body bytes of the request and the response.
	bytesIn, bytesOut int64
	decision          Decision
	served            Served
	answer            response.Observer
	finished          bool
	// refusedFor is the cause of a placed request's end by a refusal, reason the
	// token of it.
	refusedFor Cause
	reason     string
	// responseShown is set by response headers. shown says what all streams in
	// these body modes were shown: those of a gateway that shows less end otherwise.
	responseShown bool
	shown         *atomic.Bool
	// reset is set where the gateway has reset the stream, not closed it.
	reset bool
	// said is what filters of the gateway have set in Berth's own namespace.
	said map[string]*structpb.Value
	// signed is set where the request has a signed intent.
	signed bool
	// tailEnded is set by the last part of a request that is passed by.
	tailEnded bool
	// idleSince is when the last part of an unfinished request came.
	idleSince telemetry.Instant

	// overloaded is set where the picker has as many streams as it may have.
	overloaded bool

	// onRefusal, if set, is told of refusals that the decider did not make, before
	// they are sent. It may set the refusal's DecisionID.
	onRefusal func(*Request, Decision, *Refusal)
	// onBlind, if set, is told of a body mode in which requests are placed without
	// their bodies.
	onBlind func(mode string)

	out []*extprocv3.ProcessingResponse
}

// shared is what all streams of a server know together.
type shared struct {
	// held counts the bytes of bodies that streams hold.
	held atomic.Int64
	// shown is set for the body modes, of requests and responses, in which a gateway
	// has shown response headers: the messages do not say whether it will.
	shown [bodyModes][bodyModes]atomic.Bool
	// nowhere stands for body modes that this version does not know.
	nowhere atomic.Bool
}

// bodyModes is how many body modes there are.
const bodyModes = 5

func (s *shared) in(request, response extprocfilterv3.ProcessingMode_BodySendMode) *atomic.Bool {
	if request < 0 || request >= bodyModes || response < 0 || response >= bodyModes {
		return &s.nowhere
	}
	return &s.shown[request][response]
}

// newConversation starts a stream.
func newConversation(settings Settings, decider Decider, clock telemetry.Clock, all *shared) *conversation {
	return &conversation{
		shared:    all,
		shown:     &all.nowhere,
		settings:  settings,
		decider:   decider,
		clock:     clock,
		reqMode:   extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		respMode:  extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		idleSince: clock(),
		answer:    response.NewObserver(response.Opaque),
	}
}

// handle takes the gateway's next message and returns the answers that are due,
// in order. The slice is reused by the next call. After an error the stream
// must end with that error.
func (c *conversation) handle(msg *extprocv3.ProcessingRequest) ([]*extprocv3.ProcessingResponse, error) {
	clear(c.out)
	c.out = c.out[:0]
	var err error
	switch m := msg.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		err = c.requestHeaders(msg, m.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		err = c.requestBody(msg, m.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		err = c.requestTrailers(msg)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		err = c.responseHeaders(msg, m.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		err = c.responseBody(m.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		err = c.responseTrailers()
	default:
		err = status.Error(codes.InvalidArgument, "message of no known kind")
	}
	return c.out, err
}

func (c *conversation) unexpected(kind string) error {
	return status.Error(codes.FailedPrecondition, fmt.Sprintf("%s in phase %s", kind, c.phase))
}

func (c *conversation) requestHeaders(msg *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	if c.phase != awaitHeaders {
		return c.unexpected("request_headers")
	}
	if pc := msg.GetProtocolConfig(); pc != nil {
		c.reqMode, c.respMode = pc.GetRequestBodyMode(), pc.GetResponseBodyMode()
	}
	c.shown = c.shared.in(c.reqMode, c.respMode)
	now := c.clock()
	c.req.ReceivedAt, c.idleSince = now, now
	length, refusal := c.readHeaders(h)
	kept := c.readMetadata(msg) + c.req.size()
	switch {
	case c.overloaded:
		c.refuse(overloaded("the endpoint picker serves as many requests as it may"))
		return nil
	case refusal != nil:
		c.refuse(refusal)
		return nil
	}

	if h.GetEndOfStream() {
		c.req.BodySeen = true
		if c.decide() {
			c.answerRequestHeaders()
			c.phase = awaitResponse
		}
		return nil
	}
	holds := c.reqMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffers := c.reqMode == extprocfilterv3.ProcessingMode_BUFFERED
	partly := c.reqMode == extprocfilterv3.ProcessingMode_BUFFERED_PARTIAL
	switch {
	case c.req.Tunnel && (buffers || partly):
		// Envoy waits for the end of what it buffers before it connects.
		c.refuse(&Refusal{
			Status:  501,
			Reason:  "tunnel_unsupported",
			Message: "the gateway buffers request bodies, so that CONNECT and upgrades cannot pass",
		})
	case c.req.Tunnel:
		// What follows is not a body, and may wait for the response.
		if c.decide() {
			c.answerRequestHeaders()
			c.phase = requestTail
		}
	case (holds || buffers) && length > c.settings.BodyLimit:
		c.refuse(c.bodyTooLarge())
	case (holds || buffers) && !c.charge(kept):
	case holds:
		c.phase = collectBody
	case buffers:
		c.out = append(c.out, &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}},
		})
		c.phase = awaitBuffered
	default:
		if c.onBlind != nil {
			c.onBlind(c.reqMode.String())
		}
		if c.decide() {
			c.answerRequestHeaders()
			c.phase = requestTail
		}
	}
	return nil
}

// readHeaders keeps the few headers that matter and returns the declared
// content length, 0 if there is none, or a refusal. Names come in lower case from
// Envoy and in any case from others; of several copies the first counts.
func (c *conversation) readHeaders(h *extprocv3.HttpHeaders) (length int64, refusal *Refusal) {
	keep := func(to *string, v string) {
		if *to == "" {
			*to = v
		}
	}
	headers := h.GetHeaders().GetHeaders()
	var size int64
	var connection, upgrade string
	for _, hv := range headers {
		size += int64(len(hv.GetKey()) + len(hv.GetRawValue()) + len(hv.GetValue()))
		switch name := strings.ToLower(hv.GetKey()); name {
		case ":method":
			keep(&c.req.Method, headerValue(hv))
		case ":path":
			keep(&c.req.Path, headerValue(hv))
		case "content-type":
			keep(&c.req.ContentType, headerValue(hv))
		case "content-encoding":
			keep(&c.req.ContentEncoding, headerValue(hv))
		case "content-length":
			if n, err := strconv.ParseInt(headerValue(hv), 10, 64); err == nil {
				length = n
			}
		case "x-request-id":
			id := headerValue(hv)
			if len(id) > maxRequestIDBytes {
				// Not a part of it: that would keep the whole in memory.
				id = strings.Clone(id[:maxRequestIDBytes])
			}
			keep(&c.req.RequestID, id)
		case "connection":
			keep(&connection, headerValue(hv))
		case "upgrade":
			keep(&upgrade, headerValue(hv))
		case intentHeader:
			c.req.SignedIntents = append(c.req.SignedIntents, headerValue(hv))
		default:
			if i := slices.Index(c.settings.Keep, name); i >= 0 {
				c.req.Kept = append(c.req.Kept, Header{c.settings.Keep[i], headerValue(hv)})
			}
		}
	}
	c.req.Tunnel = c.req.Method == connectMethod || upgrades(connection, upgrade)
	switch {
	case len(headers) > c.settings.HeaderCount:
		return 0, headersTooLarge("the request has %d headers, more than %d", len(headers), c.settings.HeaderCount)
	case size > c.settings.HeaderBytes:
		return 0, headersTooLarge("the request has headers of %d bytes, more than %d", size, c.settings.HeaderBytes)
	}
	return length, nil
}

func headersTooLarge(format string, numbers ...any) *Refusal {
	return &Refusal{Status: 431, Reason: "headers_too_large", Message: fmt.Sprintf(format, numbers...)}
}

// upgrades reports that the request asks for another protocol on its connection.
// HTTP/2 is none: clients offer it on usual requests, which proxies take as such.
func upgrades(connection, upgrade string) bool {
	if upgrade == "" || strings.EqualFold(upgrade, "h2c") {
		return false
	}
	for option := range strings.SplitSeq(connection, ",") {
		if strings.EqualFold(strings.Trim(option, " \t"), "upgrade") {
			return true
		}
	}
	return false
}

// readMetadata takes what filters in the gateway said, from the first request
// message that carries it. It returns how many bytes of it are kept.
func (c *conversation) readMetadata(msg *extprocv3.ProcessingRequest) (kept int64) {
	metadata := msg.GetMetadataContext()
	if metadata == nil {
		return 0
	}
	if c.req.Subset == nil {
		if c.req.Subset = subsetOf(metadata); c.req.Subset != nil {
			kept = int64(proto.Size(metadata))
		}
	}
	if c.readIntent(metadata) {
		kept = int64(proto.Size(metadata))
	}
	return kept
}

func (c *conversation) requestBody(msg *extprocv3.ProcessingRequest, b *extprocv3.HttpBody) error {
	switch c.phase {
	case collectBody:
		c.idleSince = c.clock()
		if !c.charge(c.readMetadata(msg)) || !c.hold(b.GetBody()) {
			return nil
		}
		if b.GetEndOfStream() && c.decideWithBody() {
			c.answerRequestHeaders()
			c.answerHeldBody(true)
			c.phase = awaitResponse
		}
	case awaitBuffered:
		if c.charge(c.readMetadata(msg)) && c.hold(b.GetBody()) && c.decideWithBody() {
			msg := &extprocv3.ProcessingResponse{
				Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
					Response: &extprocv3.CommonResponse{HeaderMutation: destinationMutation(c.decision, c.signed)},
				}},
			}
			setMetadata(msg, c.decision.Destination(), c.decision.Acknowledgement())
			c.out = append(c.out, msg)
			c.phase = requestTail
			if b.GetEndOfStream() {
				c.phase = awaitResponse
			}
		}
	case requestTail:
		if c.intentCameLate(msg) {
			return nil
		}
		c.passRequestBody(b)
		if b.GetEndOfStream() {
			c.phase = awaitResponse
		}
	case responseBody, done:
		if !c.tailOpen() {
			return c.unexpected("request_body")
		}
		c.passRequestBody(b)
	default:
		return c.unexpected("request_body")
	}
	return nil
}

// intentCameLate refuses a request that was placed by its headers, and of which the
// gateway states now what it did not state with them.
func (c *conversation) intentCameLate(msg *extprocv3.ProcessingRequest) bool {
	if msg.GetMetadataContext() == nil || !c.readIntent(msg.GetMetadataContext()) {
		return false
	}
	c.refuse(&Refusal{
		Status:  400,
		Reason:  "intent_malformed",
		Message: "the routing intent of the request came after a replica had to be picked: the gateway shows no bodies in time",
	})
	return true
}

// tailOpen reports that more of the request may come although the response has
// begun: a replica that answers early leaves the rest of a streamed request, and
// what goes through a tunnel has no order.
func (c *conversation) tailOpen() bool {
	duplex := c.reqMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	return c.decision != nil && !c.tailEnded && (!duplex || c.req.Tunnel)
}

func (c *conversation) passRequestBody(b *extprocv3.HttpBody) {
	c.bytesIn += int64(len(b.GetBody()))
	c.tailEnded = b.GetEndOfStream()
	answer := &extprocv3.BodyResponse{}
	if c.reqMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		answer = streamed(b.GetBody(), b.GetEndOfStream())
	}
	c.out = append(c.out, &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: answer},
	})
}

// hold keeps a part of the body, or refuses the request.
func (c *conversation) hold(part []byte) bool {
	c.bytesIn += int64(len(part))
	if c.bytesIn > c.settings.BodyLimit {
		c.refuse(c.bodyTooLarge())
		return false
	}
	if len(part) == 0 {
		return true
	}
	if !c.charge(int64(len(part)) + partOverhead) {
		return false
	}
	c.chunks = append(c.chunks, part)
	return true
}

// charge counts what is held of the request until it is decided, or refuses it.
func (c *conversation) charge(bytes int64) bool {
	c.held += bytes
	if c.shared.held.Add(bytes) > c.settings.Buffered {
		c.refuse(overloaded("the endpoint picker holds as much of requests as it may"))
		return false
	}
	return true
}

// partOverhead is about what a part takes beside its bytes, so that many small
// ones are not held for nothing.
const partOverhead = 64

// letGo stops holding the body.
func (c *conversation) letGo() {
	c.shared.held.Add(-c.held)
	c.held, c.chunks, c.req.Body = 0, nil, nil
}

func (c *conversation) bodyTooLarge() *Refusal {
	return &Refusal{
		Status:  413,
		Reason:  "body_too_large",
		Message: fmt.Sprintf("the request body is larger than %d bytes", c.settings.BodyLimit),
	}
}

func overloaded(message string) *Refusal {
	return &Refusal{Status: 503, Reason: "overloaded", Message: message, RetryAfter: time.Second}
}

// messageTooLarge reports a message that was not taken in. gRPC has ended the
// stream already: the gateway answers the request by itself.
func (c *conversation) messageTooLarge() {
	if c.decision == nil && c.phase != refused {
		c.report(&Refusal{
			Status:  413,
			Reason:  "body_too_large",
			Message: "the gateway sent a message that is larger than limits.message",
		})
	}
}

func (c *conversation) requestTrailers(msg *extprocv3.ProcessingRequest) error {
	switch c.phase {
	case collectBody, awaitBuffered, requestTail:
	case responseBody, done:
		if !c.tailOpen() {
			return c.unexpected("request_trailers")
		}
		// The replica has answered: there is nothing left to refuse.
		c.tailEnded = true
		c.out = append(c.out, &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		})
		return nil
	default:
		return c.unexpected("request_trailers")
	}
	if c.phase == requestTail && c.intentCameLate(msg) {
		return nil
	}
	c.readMetadata(msg)
	if !c.settings.PassTrailers {
		c.refuse(&Refusal{
			Status:  400,
			Reason:  "trailers_refused",
			Message: "requests with trailers are not accepted here",
		})
		return nil
	}
	switch c.phase {
	case collectBody:
		if !c.decideWithBody() {
			return nil
		}
		c.answerRequestHeaders()
		if c.bytesIn > 0 {
			c.answerHeldBody(false)
		}
	case awaitBuffered:
		// No body message came: the destination can only go on the trailers,
		// where gateways do not look for it.
		return c.unexpected("request_trailers")
	}
	c.out = append(c.out, &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
	})
	c.phase = awaitResponse
	return nil
}

// decideWithBody joins the held parts, once, and decides.
func (c *conversation) decideWithBody() bool {
	if len(c.chunks) > 1 {
		whole := make([]byte, 0, c.bytesIn)
		for i, part := range c.chunks {
			start := len(whole)
			whole = append(whole, part...)
			c.chunks[i] = whole[start:len(whole):len(whole)]
		}
		c.req.Body = whole
	} else if len(c.chunks) == 1 {
		c.req.Body = c.chunks[0]
	}
	c.req.BodySeen, c.req.BodyBytes = true, c.bytesIn
	return c.decide()
}

// decide has the request decided, or refuses it.
func (c *conversation) decide() bool {
	c.req.CompleteAt = c.clock()
	c.req.Deadline = c.req.CompleteAt.Add(c.settings.DecisionDeadline)
	c.req.IntentMetadata = c.intentMetadata()
	d, refusal := c.decider.Decide(&c.req)
	c.signed = len(c.req.SignedIntents) > 0
	// A response may take long, and nothing of the request is needed for it.
	c.req = Request{Tunnel: c.req.Tunnel, ReceivedAt: c.req.ReceivedAt, CompleteAt: c.req.CompleteAt}
	if refusal != nil {
		c.replace(refusal)
		return false
	}
	c.decision = d
	return true
}

// refuse is a refusal of the protocol's own.
func (c *conversation) refuse(r *Refusal) {
	c.report(r)
	c.replace(r)
}

func (c *conversation) report(r *Refusal) {
	if c.onRefusal != nil {
		c.req.BodyBytes, c.req.IntentMetadata = c.bytesIn, c.intentMetadata()
		c.onRefusal(&c.req, c.decision, r)
	}
}

// replace puts a refusal in place of the answer that is due.
func (c *conversation) replace(r *Refusal) {
	c.letGo()
	c.out = append(c.out, immediate(r))
	c.phase = refused
	c.refusedFor, c.reason = Refused, r.Reason
}

func (c *conversation) answerRequestHeaders() {
	msg := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: destinationMutation(c.decision, c.signed)},
		}},
	}
	setMetadata(msg, c.decision.Destination(), c.decision.Acknowledgement())
	c.out = append(c.out, msg)
}

// answerHeldBody hands the body back in the parts it came in. The last part
// ends the stream unless trailers follow; an empty body still needs one.
func (c *conversation) answerHeldBody(last bool) {
	if len(c.chunks) == 0 {
		c.chunks = append(c.chunks, nil)
	}
	for i, part := range c.chunks {
		end := last && i == len(c.chunks)-1
		c.out = append(c.out, &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamed(part, end)},
		})
	}
}

// sent is called when the answers were sent: a body that was handed back, or that
// the gateway has, need not be held any more.
func (c *conversation) sent() {
	if c.decision != nil {
		clear(c.out)
		c.letGo()
	}
}

// streamed passes a part of a body on. A message of five is made for every part:
// they lie side by side.
func streamed(part []byte, end bool) *extprocv3.BodyResponse {
	m := &struct {
		answer   extprocv3.BodyResponse
		common   extprocv3.CommonResponse
		mutation extprocv3.BodyMutation
		kind     extprocv3.BodyMutation_StreamedResponse
		body     extprocv3.StreamedBodyResponse
	}{}
	m.answer.Response = &m.common
	m.common.BodyMutation = &m.mutation
	m.mutation.Mutation = &m.kind
	m.kind.StreamedResponse = &m.body
	m.body.Body, m.body.EndOfStream = part, end
	return &m.answer
}

// emptyStream is how long a stream may be open without a message. A gateway opens
// it to send one; on a connection that is full of uploads that can take a while.
const emptyStream = time.Minute

// idleDeadline is when the upload counts as idle; ok is false when no part of
// the request is being waited for.
func (c *conversation) idleDeadline() (at telemetry.Instant, ok bool) {
	switch c.phase {
	case awaitHeaders:
		return c.idleSince.Add(emptyStream), true
	case collectBody:
		return min(c.idleSince.Add(c.settings.UploadIdle), c.req.ReceivedAt.Add(c.settings.UploadTime)), true
	case awaitBuffered:
		// The gateway does not tell when parts come.
		return c.req.ReceivedAt.Add(c.settings.UploadTime), true
	default:
		return 0, false
	}
}

// uploadEnded refuses a request whose body has stopped coming, or takes too long.
func (c *conversation) uploadEnded() []*extprocv3.ProcessingResponse {
	c.out = c.out[:0]
	refusal := &Refusal{
		Status:  408,
		Reason:  "upload_idle",
		Message: fmt.Sprintf("no part of the request body came for %s", c.settings.UploadIdle),
	}
	if c.clock() >= c.req.ReceivedAt.Add(c.settings.UploadTime) {
		refusal.Reason = "upload_slow"
		refusal.Message = fmt.Sprintf("the request body was not complete after %s", c.settings.UploadTime)
	}
	c.refuse(refusal)
	return c.out
}
