// Package request says what an inference request's path, headers and body
// state: which API it calls, the model it names, whether it streams, its token
// limit, and where in the body the prompt lies. It decodes nothing else, keeps
// nothing and changes nothing; the body goes on to the replica byte for byte.
//
// # What is read, and when
//
// [APIOf] recognises the APIs below by how a path ends. What stands in front
// does not count, so that /score is also /v1/score and /rerank also /v2/rerank;
// TRITON is /v2/models/{model}[/versions/{version}]. Anything behind these paths
// is another operation.
//
//	API                    path ends with            prompt           instructions limit on tokens
//	chat_completions       /v1/chat/completions      messages                      max_completion_tokens, max_tokens
//	completions            /v1/completions           prompt                        max_tokens
//	responses              /v1/responses             input            instructions max_output_tokens
//	embeddings             /v1/embeddings            input
//	messages               /v1/messages              messages         system       max_tokens
//	message_tokens         /v1/messages/count_tokens messages         system
//	audio_transcriptions   /v1/audio/transcriptions  (a form)
//	audio_translations     /v1/audio/translations    (a form)
//	audio_speech           /v1/audio/speech
//	image_generations      /v1/images/generations
//	image_edits            /v1/images/edits          (a form)
//	image_variations       /v1/images/variations     (a form)
//	tokenize               /tokenize                 prompt, messages
//	detokenize             /detokenize
//	pooling                /pooling
//	classify               /classify
//	score                  /score
//	rerank                 /rerank
//	models                 /v1/models                (not read)
//	triton_infer           TRITON/infer              (not read)
//	triton_generate        TRITON/generate           text_input                    max_tokens
//	triton_generate_stream TRITON/generate_stream    text_input                    max_tokens
//	triton_model           TRITON                    (not read)
//	                       TRITON/ready
//	                       TRITON/config
//	                       TRITON/stats
//	                       TRITON/trace/setting
//
// Of two members for one thing the left one counts, if the body has it. A form
// that is announced as JSON is read as JSON.
//
// [Scan] reads a body only if the path is one of these, the content type is
// JSON (or absent, and the API is none of forms: engines take such bodies as
// JSON), the body is not compressed and is not empty. Anything else is opaque
// traffic: Scan names the reason in [Facts.Unread], returns no error, and the
// request is routed by its headers, and what its path states, alone. So are
// inference requests in tensors, whose bodies may be binary behind their JSON
// without a content type that says so.
//
// Where the path names the model, the path counts: [Target] decodes the name,
// and a "model" in the body is passed over.
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
// malformed: [ErrBodyMalformed]. So is a path whose model is too long, holds
// control characters or is wrongly encoded: [ErrPathMalformed]. A missing or
// empty model is no error (an engine may answer with its base model). Wrong
// types of other members are the engine's to judge; here they count as not
// stated.
//
// An [Error] carries a reason token, a byte offset and what was expected there.
// It never quotes the request, so that prompts do not reach logs.
//
// # Cost
//
// Strings, most of any body, are checked eight bytes at a time for the three
// things that matter in them (closing quote, backslash, control character), and
// so are lists of token ids. The only allocation on success is the model's name.
//
// All functions are pure and safe for concurrent use; Scan retains no part of
// the body.
package request
