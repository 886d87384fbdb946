// Package pool is the live set of endpoints: who may serve, and what this
// process knows of each by itself.
//
// A Spec is what discovery declares of an endpoint; it is immutable. An
// Endpoint joins a Spec with its Live part: the latest telemetry snapshot, the
// requests in flight there, whether it answered or refused last, and what
// finished requests showed. A Live part belongs to one incarnation of one
// endpoint: it is carried over when discovery repeats or edits the spec, and
// goes with the endpoint when that is removed.
//
// A Set is one immutable state of the pool. The Registry publishes the newest
// Set behind an atomic pointer; a request takes it once and works on that.
package pool
