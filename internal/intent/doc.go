// Package intent finds the routing intent of a request, and decides whether it may
// be trusted.
//
// An intent demands things of a replica that are never relaxed, so what states it
// must be known. There are four channels, in this order of trust:
//
//	metadata  dynamic metadata of the proxy, namespace berth.dev: a filter of the
//	          proxy wrote it, and no client can
//	signed    the header x-berth-intent: a compact JWS (RFC 7515) over the intent,
//	          by a key of the key set
//	headers   plain headers, each mapped to one flat key: only as good as the
//	          gateway that strips the copies that clients send
//	none      the body's model alone, and no demands
//
// The first channel that is switched on and present is read, and no other one:
// an intent that is refused never makes room for one that is trusted less, and
// nothing malformed counts as absent. A channel that is switched off is not read
// at all; [Reader.Untrusted] says that it was used.
//
// # Forms
//
// An intent comes whole, as JSON or as a decoded tree (package v1alpha1 reads
// both), or as flat keys, which simple proxy filters can write:
//
//	logicalModel, sessionKey                 a text
//	servedModels                             a list, with commas
//	priority                                 a whole number, -2^31 to 2^31-1
//	contextInputTokens, contextOutputTokens  a whole number, 0 to 2^53-1
//	requirement.CLASS.KEY                    a list: the operator is In
//
// A number may be written as a text of decimal digits, and a text as a number that
// is whole and exact, between -(2^53-1) and 2^53-1: any other one is refused, since
// 1.10 or a long tenant number would arrive as another text than was meant. Blanks
// around a text do not count. Empty items of a list are dropped; a list or text of
// which nothing is left is refused.
//
// # Time and audience
//
// An intent is refused from its expiresAt on. A signed one must state issuedAt,
// expiresAt and audience, the skew is added in its favour to both times, and one
// that is issued in the future is refused. In each channel, an audience that does
// not have this picker's name is refused.
//
// # Signatures
//
// Nothing of a token is believed, its payload not even parsed, until its signature
// is verified. The key is found by the header's kid alone, and the header's alg
// must be the one that the key set binds to that key: a token chooses neither the
// algorithm nor, by an embedded jwk, jku or x5c, the key. (They are ignored; a jwk or
// x5c that cannot be read makes the token malformed.) Critical extensions and
// unencoded payloads (crit, b64) are refused. Errors quote neither tokens nor keys,
// and do not tell an unknown key from a wrong signature.
//
// The package does no I/O, starts no goroutine and takes the time from its caller.
package intent
