// Package response reads what an engine's answer says about itself while it
// passes by: token counts, an error inside a stream, why generation stopped.
//
// The answer comes in parts cut anywhere: in the middle of a line, of a
// character, of a number. An Observer looks at each part once, keeps nothing of
// it and never needs more than a fixed few hundred bytes, however long the
// answer is. It changes and delays nothing.
//
// JSON answers are one document; server-sent events are one document per
// event, in data lines ended by LF, CRLF or CR. Of every document the members
// below are read, wherever they stand in it:
//
//	usage, message.usage, response.usage
//	    prompt_tokens, input_tokens                     Input
//	    completion_tokens, output_tokens                Output
//	    prompt_tokens_details.cached_tokens,
//	    input_tokens_details.cached_tokens,
//	    cache_read_input_tokens                         Cached
//	error, response.error                               Failed
//	    code (a number, or a string of digits)          ErrorCode
//	choices[].finish_reason                             "abort" is Aborted
//
// A count that is not a whole number of at least 0 is not read. Where several
// documents state a count, the last one holds: usage on each chunk is
// cumulative, and some APIs spread it over events. Anything else, malformed
// documents included, is passed over: this is evidence, not a gate.
package response
