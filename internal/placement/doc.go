// Package placement orders the screened endpoints of one request.
//
// It is a pure function: the same evidence, request key and plan give the same
// order, bit for bit, on every machine. There is no clock, no memory between
// decisions, no random source and no map whose order could matter; ties break
// by rendezvous hash of the request key.
//
// Evidence is gathered once per decision, in columns with one row per screened
// endpoint. Placement decides, once for all scorers, what missing evidence
// means. Per field, over the screened endpoints:
//
//	full      fresh at every endpoint
//	partial   fresh at ceil(quorum x endpoints) or more: a missing value is
//	          imputed as the larger of the fresh median and the requests that
//	          this picker has in flight there, so that it never looks better
//	          than the median
//	dropped   fresh at fewer: ignored for all, so that like is compared with like
//
// The rung of a decision follows from the load fields that the plan weights:
//
//	full      every weighted load field is full
//	partial   at least one reaches the quorum
//	local     none does, but this picker knows something itself: requests in
//	          flight, or the latency of requests that it sent before
//	spread    not even that: rendezvous hash alone
//
// An empty screened set is not placement's business; the request is refused
// before it comes here.
//
// Between two scrapes the picker's own picks are added to what was scraped, each
// once: to the queue, since a request that has just come is still to be prefilled
// and the next one waits behind it; to the active requests where the queue does
// not count in the decision.
//
// Endpoints that have not answered yet, or refused their last connection, are
// ordered after all others whatever their score.
package placement
