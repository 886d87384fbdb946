// Package gateway writes the Envoy configuration that fits a policy: a gateway
// that asks a picker over ext_proc where each request goes, sends it there and
// nowhere else, and reports back who served it.
//
// There are two kinds, told apart by how Envoy finds the replica:
//
//	override-host  Envoy knows the pool's endpoints. The picker's answer is an
//	               ordered list of ip:port; retries walk down the list. Hosts
//	               that Envoy does not know are passed over.
//	original-dst   Envoy knows no endpoints and connects to the one ip:port
//	               that the picker answers. No list, so no fallbacks.
//
// Both fail closed. Where the picker is down, answers nothing, or names nothing
// usable, the client gets an error and no replica gets the request. Both read
// the destination from dynamic metadata, which only the picker can write, never
// from a header; and what a client sends under the reserved header names is
// removed before any filter sees it.
//
// # A semantic router in front
//
// With Options.Router the gateway has two stages. The router, an ext_proc service
// of its own, reads the whole request, says the logical model in a header, and
// writes the served id into the body. What it sets becomes the routing intent: a
// header_to_metadata filter between the stages copies the headers into the
// namespace berth.dev and removes them. The picker then finds a replica among those
// that the intent leaves. Copies of these headers that clients send are gone before
// the router sees the request, and the router can write no metadata itself.
//
// # Files
//
// Bootstrap is the whole of envoy.yaml. With Options.EndpointsFile the
// override-host kind keeps its endpoints in a file beside it, which Envoy
// watches: WriteFiles replaces that file by a rename, and Envoy takes over the
// change without a restart and without touching requests in flight. Without
// EndpointsFile the endpoints are part of the bootstrap.
//
// Everything but WriteFiles is a pure function of its Options: equal options
// give equal bytes.
//
// # Facts about Envoy 1.40 that the configuration rests on
//
//   - An override host that is unknown, absent or used up is given to the
//     policy's own fallback policy. Round robin there would serve requests that
//     the picker never placed, so the fallback is a subset that no host is in.
//   - ORIGINAL_DST with a metadata key ignores the destination header.
//   - A retry after request trailers sends the body twice when the body went
//     through ext_proc in full duplex. Hence no retries where trailers pass.
//   - h1 request trailers are dropped unless enabled; h2 trailers always come.
//   - To a cluster with TLS, Envoy speaks TLS 1.2 at most unless told otherwise,
//     and refuses certificates on P-384 in it. Ed25519 it refuses always.
//   - While an ext_proc filter waits for an answer to a buffered body, no later
//     filter sees the headers; and the longest body that is buffered is the route's
//     request_body_buffer_limit, where there is one.
//   - header_to_metadata writes no empty value, and none above 8 KiB.
//   - An answer that one ext_proc service gives in a replica's place passes the
//     filters behind, whose services see it as a response without a request.
//   - Envoy caps concurrent requests per cluster at 1,024 by default, and a
//     picker stream lives as long as its request.
package gateway
