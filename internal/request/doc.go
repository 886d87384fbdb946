// Package request says what an inference request's path, headers and body
// state: which API it calls, the model it names, whether it streams, its token
// limit, and where in the body the prompt lies. It decodes nothing else, keeps
// nothing and changes nothing; the body goes on to the replica byte for byte.
//
// # What is read, and when
//
// [APIOf] recognises the two OpenAI-style generation paths. [Scan] reads a body
// only if the path is one of them, the content type is JSON (or absent: engines
// take such bodies as JSON on these paths), the body is not compressed and is
// not empty. Anything else is opaque traffic: Scan names the reason in
// [Facts.Unread], returns no error, and the request is routed by its headers
// alone.
//
// # One pass over the top level
//
// Scan walks the members of the top-level object once. Nested values are
// skipped, never built, but they are checked on the way: Scan accepts exactly
// the documents that encoding/json.Valid accepts and whose top level is an
// object, down to the same nesting bound. A picker that let a broken body pass
// would spend a replica's time on a request that can only fail.
//
// A general scanner is not used here because of duplicate keys. Engines keep
// the last of two members with the same key; the usual scanners return the
// first. A body with two models could then be routed, and authorized, as one
// model and served as another. So:
//
//   - two model keys, or one that is spelled with an escape ("mod\u0065l"),
//     are refused as ambiguous: [ErrModelAmbiguous];
//   - of any other key the last member counts, as it does in the engine.
//
// Keys are case sensitive, as they are in the engines.
//
// # What is refused, and what is left to the engine
//
// Only what routing needs is judged. A body that is not one valid JSON object,
// or a model that is not a string, is too long or holds control characters, is
// malformed: [ErrBodyMalformed]. A missing or empty model is no error (an
// engine may answer with its base model). Wrong types of other members are the
// engine's to judge; here they count as not stated.
//
// An [Error] carries a reason token, a byte offset and what was expected there.
// It never quotes the body, so that prompts do not reach logs.
//
// # Cost
//
// Strings, most of any body, are checked eight bytes at a time for the three
// things that matter in them (closing quote, backslash, control character).
// The only allocation on success is the model's name.
//
// All functions are pure and safe for concurrent use; Scan retains no part of
// the body.
package request
