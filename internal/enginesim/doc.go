// Package enginesim is a simulated LLM serving engine: an HTTP server that speaks the OpenAI API and shows an engine's
// telemetry page, around the model of enginemodel. What it generates is nonsense; how long it takes, what it queues,
// what it finds in its KV cache and what it says of all that on its page follow the model.
//
// # Dialects
//
// A Dialect is what one kind of engine shows besides inference: the telemetry page with the engine's names, types, labels and
// number format, and the pages with its health, version and models. It also has what is difficult about the engine:
//
//	vllm                  0.32   always true, in one format whatever is asked for; /metrics/ has another
//	sglang                0.5.23 gauges absent at first, then of the latest report, and left as they were when idle;
//	                             /health costs a token and a second, /server_info gives a secret away; asked for
//	                             OpenMetrics, samples lose the colon of their name
//	atom                  main   5 to 10 s behind; all 0 until there is something; no version; health says nothing
//	trtllm-serve          1.3    gauges absent at first, then of the latest completion; /metrics is another page, and
//	                             reading it takes away what it says
//	triton-tensorrt-llm          an ensemble, with gauges of the latest step and their time; no OpenAI model list
//
// How a page follows the model is in one place, the Cadence of its dialect.
//
// # Paths
//
//	POST /v1/chat/completions  inference, streaming or not
//	POST /v1/completions       the same for one prompt, as text or token ids
//	GET  the Dialect's pages   telemetry, health, version, models
//	GET  pages of others only  404, as are those that an engine has with a flag only
//	GET  /sim/requests         Arrivals: what reached the engine, with digests of bodies
//	     /sim/faults           GET shows, POST replaces, DELETE clears Faults
//	     /sim/load             GET shows, POST replaces, DELETE clears the background Load
//	POST /sim/die              Server.Die: no answer, every connection closes
//	POST /sim/restart          Server.Restart: every other connection closes
//
// Anything else is answered with 200 and {"path": ...}, and counted, so that a test can see where a request without a known
// path, or without a body, was sent. Every response carries x-sim-engine with the name of the engine.
//
// # Inference
//
// A token of a prompt is four bytes of its text, the last one perhaps shorter. The text of a chat is each message's role
// and content, in order. An answer's tokens are words from a fixed list, the same for every request. With a limit (max_tokens,
// or max_completion_tokens in a chat) the answer has exactly that many tokens and ends with "length"; without, it has
// Config.OutputTokens and ends with "stop". A request whose client goes away is cancelled in the model at once. As in vLLM, for all
// dialects, the last of two equal keys of a body counts, a body without a model goes to the first model, an unknown model is a 404, and an
// x-request-id becomes part of the response's id.
//
// # Processes
//
// Start, Die and Restart imitate the process of an engine. Each start begins from nothing: an empty cache, counters at 0, no
// faults, nothing reported, Config.Background, and a new process start time. Arrivals belong to the test and last as long as the Server.
package enginesim
