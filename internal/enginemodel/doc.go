// Package enginemodel describes how an LLM serving engine spends its time and its KV cache. It is a pure state machine: it
// has no goroutine, no clock and no I/O, and the same configuration, seed and calls give the same events, bit for bit. The
// simulated engines of tests and of the demo run it in real time; a policy simulator runs it in virtual time.
//
// # Time
//
// The caller brings the time. Submit, Cancel and Advance take it, it never runs backwards (an earlier time counts as the
// latest one seen), and NextEventAt says when Advance will next have something to tell. Between two calls nothing happens;
// a call with a late time catches up step by step, so the result does not depend on how often Advance is called.
//
// # Steps
//
// The engine works in steps, as engines with continuous batching do. A step takes a token budget (MaxBatchedTokens) and hands
// it out: first to the running requests, oldest first, then to requests from the waiting queue, first in, first out, as
// long as there is a place in the batch (MaxRunning), budget and KV cache. A request that still has prompt to compute gets a
// chunk of it; a request that decodes gets one token. The step lasts
//
//	(StepBase + PerSequence x sequences in the step + prefill tokens / PrefillRate) x (1 +- Jitter) / speed
//
// so decoding slows down for everybody as the batch grows or as somebody's prompt is computed. When the step ends, every
// request whose known tokens are all computed gains one token. The first token therefore comes at the end of the step that
// computes the last of the prompt, and time to first token is queueing plus prefill. A request that arrives during a step waits
// for its end, even if the batch has room.
//
// # KV cache
//
// The cache has Blocks blocks of BlockTokens tokens. A running request holds the blocks of its computed tokens; the last
// generated token is never computed, so a request of P prompt and O output tokens needs room for P+O-1. Requests that would
// never fit are refused by Submit.
//
// A prompt is given as one content hash per full block. The engine chains them, so that a block is known by everything
// that precedes it. A computed block of a prompt is published under its chained hash and can be shared by running requests. When
// nobody holds it any more it stays, free but cached, until it is evicted: free blocks without content go first, then the least
// recently released one, the end of a chain before its beginning. An admitted request starts after the longest cached prefix
// of its prompt; one token at least is always computed. Generated tokens are never published.
//
// When a running request needs a block and none is free, the youngest running request is preempted: it gives up its blocks,
// returns to the front of the waiting queue and later computes its prompt and what it had generated once more. No request
// is admitted in a step that preempts.
//
// # What it leaves out
//
// Speculative decoding, swapping to host memory, priorities, adapters, disaggregated prefill and parallel ranks. Time per
// decoded token does not grow with the length of the context.
package enginemodel
