package enginemodel

import "time"

// EventKind says what happened to a request.
type EventKind uint8

// The life of a request: Admitted, FirstToken, any number of Token, Finished. Preempted may come at any time after Admitted and
// is followed by another Admitted; Aborted may come at any time and is then the last.
const (
	// Admitted: the request entered the batch.
	Admitted EventKind = iota + 1
	// FirstToken: its first token was generated.
	FirstToken
	// Token: a later token was generated.
	Token
	// Preempted: it lost its blocks and went back to the front of the waiting queue.
	Preempted
	// Finished: its last token was generated, in the event before this one.
	Finished
	// Aborted: it was cancelled.
	Aborted
)

// String returns the kind as one lower-case word or two with a hyphen.
func (k EventKind) String() string {
	switch k {
	case Admitted:
		return "admitted"
	case FirstToken:
		return "first-token"
	case Token:
		return "token"
	case Preempted:
		return "preempted"
	case Finished:
		return "finished"
	case Aborted:
		return "aborted"
	}
	return "unknown"
}

// Reason says why a request finished.
type Reason uint8

// Reasons of Finished; other kinds of event have none.
const (
	// Stop: the model had no more to say (Request.OutputTokens).
	Stop Reason = iota + 1
	// Length: the limit of the request was reached (Request.MaxTokens).
	Length
)

// String returns the reason as the OpenAI API spells it in finish_reason.
func (r Reason) String() string {
	switch r {
	case Stop:
		return "stop"
	case Length:
		return "length"
	}
	return "none"
}

// Event is one thing that happened to one request.
type Event struct {
	// At is when it happened, in the caller's time.
	At   time.Time
	Kind EventKind
	// ID is the request's.
	ID string
	// Generated is the number of tokens that the request has generated so far.
	Generated int
	// Cached is how many prompt tokens the request's first admission found in the cache.
	Cached int
	// Reason is set for Finished only.
	Reason Reason
}

// Stats is the state of an engine: gauges of now, and counters since New.
type Stats struct {
	// Waiting and Running are requests.
	Waiting, Running int
	// BlocksUsed are held by running requests; BlocksCached are free but still hold a reusable prefix; both are part of
	// BlocksTotal and never overlap.
	BlocksUsed, BlocksCached, BlocksTotal int

	// Submitted counts requests that Submit accepted. It equals Waiting + Running + Stopped + Truncated + Aborted.
	Submitted uint64
	// Stopped and Truncated count finished requests, by reason Stop and Length; Aborted counts cancelled ones.
	Stopped, Truncated, Aborted uint64
	// Preemptions counts how often a running request was sent back to the queue.
	Preemptions uint64
	// PromptTokens counts tokens of prompts whose first token was generated, cached ones included.
	PromptTokens uint64
	// QueriedTokens and CachedTokens count prompt tokens looked up in the prefix cache and found there, at each request's
	// first admission. Both stay 0 if the prefix cache is off.
	QueriedTokens, CachedTokens uint64
	// GeneratedTokens counts generated tokens of all requests, finished or not.
	GeneratedTokens uint64
	// Steps counts finished steps.
	Steps uint64
}

// KVUsage is the fraction of blocks that running requests hold, from 0 to 1. Cached free blocks do not count.
func (s Stats) KVUsage() float64 {
	if s.BlocksTotal == 0 {
		return 0
	}
	return float64(s.BlocksUsed) / float64(s.BlocksTotal)
}
