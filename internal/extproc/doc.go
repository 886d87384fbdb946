// Package extproc answers Envoy's external processing protocol (ext_proc v3)
// for an endpoint picker: it collects a request, has it decided once, tells the
// gateway where to send it, and follows the response to its end.
//
// One gRPC stream carries one HTTP request. The gateway sends messages, and
// each gets one answer of its own kind, in order:
//
//	gateway sends                      mode              answer
//	request_headers, end of stream     any               decide; request_headers with the destination
//	request_headers                    full duplex       nothing yet; the answer waits for the body
//	request_headers                    buffered          request_headers, empty; decided at the body
//	request_headers                    streamed, none    decide from headers alone; request_headers with the destination
//	request_body, not the last         full duplex       nothing yet; bytes are held, up to the body limit
//	request_body, the last             full duplex       decide; request_headers with the destination, then the held bytes
//	request_body                       buffered          decide; request_body with the destination
//	request_body                       streamed          request_body, empty
//	request_trailers                   any               refused (400), or by setting: decide as at the last body, then request_trailers
//	response_headers                   any               response_headers; who served is read here
//	response_body                      full duplex       response_body with the same bytes, at once
//	response_body                      others            response_body, empty
//	response_trailers                  any               response_trailers
//
// A refusal is an ImmediateResponse in place of the answer that is due; nothing
// follows it. Everything else ends the stream with a gRPC error: a message out
// of order, a panic, a stream that the gateway ends before it was answered. The
// handler never returns OK before the request was answered, since gateways then
// let the request go on by themselves.
//
// The mode is what protocol_config on the first message says; without it, full
// duplex is assumed. In streamed modes header changes act only on the answer to
// the headers, so the decision is made without the body.
//
// conversation.go and response.go are the protocol as a state machine without
// I/O: the request, and the response with its end; server.go runs it on a gRPC
// stream with its timers; codec.go is how messages get in and out of it. Bodies pass through byte for byte.
package extproc
