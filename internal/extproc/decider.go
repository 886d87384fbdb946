package extproc

import (
	"time"

	"github.com/berth-dev/berth/internal/response"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Decider decides requests. It is called from many streams at once.
type Decider interface {
	// Decide is called once per stream, when all that the decision may depend
	// on has arrived. It returns a decision or a refusal, never both.
	Decide(req *Request) (Decision, *Refusal)
}

// Request is what the gateway said of a request.
type Request struct {
	Method, Path                 string
	ContentType, ContentEncoding string
	// RequestID is the client's x-request-id. It correlates and nothing else;
	// two requests may share one.
	RequestID string
	// Body is the whole body. BodySeen is false when the gateway's mode does not
	// show it before the decision is due; a bodiless request has an empty Body.
	Body     []byte
	BodySeen bool
	// BodyBytes is how many bytes of the body have come, kept or not.
	BodyBytes int64
	// Tunnel is set for CONNECT and for requests that ask for another protocol
	// (WebSocket): what follows the headers is no body, and is not waited for.
	Tunnel bool
	// Subset is the gateway's own restriction; nil if it stated none.
	Subset *screen.Subset
	// IntentMetadata has the members of the berth.dev metadata namespace, Berth's own
	// acknowledgement apart; nil if there are none. Only filters of the gateway can
	// write there.
	IntentMetadata map[string]any
	// SignedIntents has the values of x-berth-intent, one for each copy.
	SignedIntents []string
	// Kept has the copies of the headers that Settings.Keep names, with their names
	// in lower case. Whether they may be believed is not said.
	Kept []Header
	// ReceivedAt is when the headers came, CompleteAt when the last part of the
	// request came. A decision made after Deadline is refused.
	ReceivedAt, CompleteAt, Deadline telemetry.Instant
}

// size is how many bytes its headers keep.
func (r *Request) size() int64 {
	n := len(r.Method) + len(r.Path) + len(r.ContentType) + len(r.ContentEncoding) + len(r.RequestID)
	for _, s := range r.SignedIntents {
		n += len(s)
	}
	for _, h := range r.Kept {
		n += len(h.Value)
	}
	return int64(n)
}

// Decision follows one placed request to its end. It is used by one stream;
// its methods are never called concurrently.
type Decision interface {
	// Destination is the pick and its fallbacks: ip:port, comma-separated.
	Destination() string
	// RequestHeaders are set on the request to the replica.
	RequestHeaders() []Header
	// Acknowledgement is what the gateway's access log gets to see.
	Acknowledgement() []Member
	// Served is called with the first response headers. A refusal replaces the
	// response.
	Served(Served) *Refusal
	// ResponseHeaders are set on the response; called after Served.
	ResponseHeaders() []Header
	// FirstByte is called once, at the first byte of the response body.
	FirstByte(now telemetry.Instant)
	// Finish is called exactly once, whatever happens.
	Finish(Outcome)
}

// Header is one header to set, replacing any copy that is there.
type Header struct{ Name, Value string }

// Served is what the gateway said of the attempt that it took the response
// from. Empty members were not said.
type Served struct {
	At     telemetry.Instant
	Status int
	// Address is the endpoint that answered.
	Address string
	// Attempts counts upstream attempts, retries included; 0 if not said.
	Attempts int
	// Details is Envoy's response.code_details, which tells an answer of the
	// replica from one that the gateway made itself.
	Details string
	// TransportFailure is why the last connection failed.
	TransportFailure string
}

// Envoy's code details for responses that a replica gave: any, and one that did
// not agree to the upgrade that was asked of it.
const viaUpstream, noUpgrade = "via_upstream", "websocket_handshake_unsuccessful"

// ByReplica reports that a replica gave the response, as far as the gateway says:
// otherwise it made one itself, and whom it tried last served nobody.
func (s Served) ByReplica() bool {
	return s.Details == "" || s.Details == viaUpstream || s.Details == noUpgrade
}

// Cause is how a request ended.
type Cause string

const (
	Complete Cause = "complete"
	// ClientDisconnect: the client left before the response began.
	ClientDisconnect Cause = "client_disconnect"
	// UpstreamError: the replica, or the way to it, failed before the response
	// began; or the replica sent an error inside a response that had begun well.
	UpstreamError Cause = "upstream_error"
	// EngineAbort: the engine ended the generation by itself and said so, as it
	// does when it is stopped.
	EngineAbort Cause = "engine_abort"
	// Aborted: the stream broke off in mid-response. The protocol does not say
	// whether the client left or the replica broke off.
	Aborted Cause = "aborted"
	// GatewayTimeout: the gateway gave up waiting.
	GatewayTimeout Cause = "gateway_timeout"
	// Unseen: the gateway does not show how such requests end.
	Unseen Cause = "unseen"
	// Shutdown: this picker ended first.
	Shutdown Cause = "shutdown"
	// ServedOutside: the response was replaced, since the gateway took it from
	// outside the screened set.
	ServedOutside Cause = "served_outside"
	// Refused: this picker refused the request after it was placed.
	Refused Cause = "refused"
	// Internal: a fault of the picker.
	Internal Cause = "internal"
)

// Seen is how much of a response the gateway showed.
type Seen string

const (
	// SeenWhole: its headers and its end.
	SeenWhole Seen = "whole"
	// SeenEnd: its headers, and its end by the end of the stream alone, which does
	// not say why.
	SeenEnd Seen = "end"
	// SeenHeaders: its headers, or a part; the rest may have come later or never.
	SeenHeaders Seen = "headers"
	// SeenNothing: no response, as far as the gateway shows.
	SeenNothing Seen = "nothing"
)

// Outcome is how a decided request ended.
type Outcome struct {
	At    telemetry.Instant
	Cause Cause
	// Reason is the token of the refusal that ended the request; empty without one.
	Reason string
	// RequestBytes and ResponseBytes are body bytes as seen here; ResponseSeen
	// is false where the gateway does not show the response body.
	RequestBytes, ResponseBytes int64
	ResponseSeen                bool
	// Seen is how far the response was shown.
	Seen Seen
	// Answer is what the response said of itself; all unknown where its body was
	// not seen, or could not be read.
	Answer response.Facts
}

// Refusal is an answer of the picker's own instead of a replica's.
type Refusal struct {
	Status int
	// Reason is a stable token.
	Reason string
	// Message is for people. It never holds addresses or body content.
	Message string
	// Detail is for operators: it is recorded and not sent.
	Detail string
	// RetryAfter is sent if it is not zero.
	RetryAfter time.Duration
	// DecisionID is set if the decider gave the request one.
	DecisionID string
}
