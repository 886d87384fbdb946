package extproc

import (
	"strconv"
	"strings"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/berth-dev/berth/internal/response"
)

// This file is the second half of a conversation: the response, and how the
// request ended.

func (c *conversation) responseHeaders(msg *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) error {
	switch c.phase {
	case awaitResponse:
		c.tailEnded = true
	case requestTail:
	case awaitHeaders:
		// The gateway refused the request before it showed it, or another filter
		// answered it. Anything that is not known to be such an answer came from a
		// replica that was never picked, and must not pass. A filter's answer may have
		// no details: then the attribute is there, and empty.
		_, told := msg.GetAttributes()[attributesKey].GetFields()["response.code_details"]
		s := servedOf(msg)
		if own := !s.ByReplica() || told && s.Details == ""; !own || s.Address != "" {
			return c.unexpected("response_headers")
		}
		c.passResponseHeaders(h)
		return nil
	case collectBody, awaitBuffered:
		// The gateway answers by itself before there was a decision: its own
		// limits or time-outs. There is nothing to add.
		c.letGo()
		c.passResponseHeaders(h)
		return nil
	default:
		return c.unexpected("response_headers")
	}
	// No part of the request is asked for more: a response may take long.
	c.said = nil
	c.responseShown = true
	c.shown.Store(true)
	c.served = servedOf(msg)
	c.served.At = c.clock()
	c.readResponseHeaders(h)
	if refusal := c.decision.Served(c.served); refusal != nil {
		c.replace(refusal)
		c.refusedFor = ServedOutside
		return nil
	}
	answer := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: headerMutation(c.decision.ResponseHeaders())},
		}},
	}
	setMetadata(answer, "", c.decision.Acknowledgement())
	c.out = append(c.out, answer)
	c.endResponseHeaders(h)
	return nil
}

func (c *conversation) readResponseHeaders(h *extprocv3.HttpHeaders) {
	var contentType, contentEncoding string
	for _, hv := range h.GetHeaders().GetHeaders() {
		switch strings.ToLower(hv.GetKey()) {
		case ":status":
			// HTTP's statuses have three digits; anything else is no status.
			if n, err := strconv.Atoi(headerValue(hv)); err == nil && n >= 100 && n <= 999 {
				c.served.Status = n
			}
		case "content-type":
			contentType = headerValue(hv)
		case "content-encoding":
			contentEncoding = headerValue(hv)
		}
	}
	c.answer = response.NewObserver(response.FormOf(contentType, contentEncoding))
}

// passResponseHeaders answers the gateway's own response, of a request that was
// not decided.
func (c *conversation) passResponseHeaders(h *extprocv3.HttpHeaders) {
	c.out = append(c.out, &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}},
	})
	c.endResponseHeaders(h)
}

func (c *conversation) endResponseHeaders(h *extprocv3.HttpHeaders) {
	c.phase = responseBody
	if h.GetEndOfStream() {
		c.phase = done
	}
}

func (c *conversation) responseBody(b *extprocv3.HttpBody) error {
	if c.phase != responseBody {
		return c.unexpected("response_body")
	}
	part := b.GetBody()
	if len(part) > 0 && c.bytesOut == 0 && c.decision != nil {
		c.decision.FirstByte(c.clock())
	}
	c.bytesOut += int64(len(part))
	c.answer.Write(part)
	answer := &extprocv3.BodyResponse{}
	if c.respMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		answer = streamed(part, b.GetEndOfStream())
	}
	c.out = append(c.out, &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: answer},
	})
	if b.GetEndOfStream() {
		c.phase = done
	}
	return nil
}

func (c *conversation) responseTrailers() error {
	if c.phase != responseBody {
		return c.unexpected("response_trailers")
	}
	c.out = append(c.out, &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}},
	})
	c.phase = done
	return nil
}

// answerable reports that a refusal can still replace what is due.
func (c *conversation) answerable() bool {
	return c.phase < responseBody
}

// finish tells the decision how the request ended, once. cause says why the
// stream is over; it counts only if the response had not ended before.
func (c *conversation) finish(cause Cause) {
	c.letGo()
	if c.decision == nil || c.finished {
		return
	}
	c.finished = true
	switch {
	case c.phase == done:
		cause = c.endCause()
	case c.phase == refused && cause == ClientDisconnect:
		cause = c.refusedFor
	case cause == ClientDisconnect:
		cause = c.cutCause()
	}
	c.decision.Finish(Outcome{
		At:            c.clock(),
		Cause:         cause,
		Reason:        c.reason,
		RequestBytes:  c.bytesIn,
		ResponseBytes: c.bytesOut,
		ResponseSeen:  c.observes(),
		Seen:          c.seen(),
		Answer:        c.answer.Facts(),
	})
}

// endCause is the cause of a response that came to its end.
func (c *conversation) endCause() Cause {
	answer := c.answer.Facts()
	switch {
	case !c.served.ByReplica():
		return localCause(c.served.Details)
	case answer.Failed && c.served.Status < 400:
		return UpstreamError
	case answer.Aborted:
		return EngineAbort
	default:
		return Complete
	}
}

// cutCause is the cause of a request whose stream the gateway ended before the
// response came to its end on it. In the modes without a response body that is how
// gateways end streams: Envoy resets one on which nothing more is due, and closes
// one when the exchange is over, or the client has left.
func (c *conversation) cutCause() Cause {
	switch {
	case c.responseShown && c.answer.Facts().Finished:
		// The client left behind the last event; nothing is missing.
		return c.endCause()
	case c.responseShown && c.observes() && !c.req.Tunnel:
		return Aborted
	case c.responseShown && !c.served.ByReplica():
		return localCause(c.served.Details)
	case c.responseShown && c.reset:
		// The gateway has nothing more to show, since it shows no ends, or since the
		// response was over already; or the gateway is gone.
		return Unseen
	case c.responseShown:
		// The stream's end is the only sign that such a gateway gives, and the only
		// end that a tunnel has.
		return Complete
	case !c.observes() && (c.reset || !c.shown.Load()):
		return Unseen
	default:
		return ClientDisconnect
	}
}

func (c *conversation) seen() Seen {
	switch {
	case !c.responseShown:
		return SeenNothing
	case c.phase == done:
		return SeenWhole
	case c.observes() && !c.req.Tunnel, c.reset:
		return SeenHeaders
	default:
		return SeenEnd
	}
}

// observes reports that the gateway shows the response body.
func (c *conversation) observes() bool {
	return c.respMode != extprocfilterv3.ProcessingMode_NONE
}

// localCause reads Envoy's detail for a response that it made itself.
func localCause(details string) Cause {
	if strings.Contains(details, "timeout") {
		return GatewayTimeout
	}
	return UpstreamError
}
