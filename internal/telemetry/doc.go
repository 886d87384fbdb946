// Package telemetry says what is known of a replica: fields, readings of
// fields, and snapshots of readings.
//
// A Field is one engine-neutral quantity of the catalogue. A Reading is a
// field's value at one replica with everything needed to decide what it is
// worth: support, state, provenance, when it was observed and when it expires.
// A Snapshot is the readings of one replica after one scrape; it is immutable
// once published, and readers hold it without a lock.
//
// Unknown is not zero. A reading that was never made is Missing, one that made
// no sense is Invalid, one that has expired is Stale; only a value that was
// read and has not expired is Fresh. Staleness is a function of the reading and
// the time asked about, so nothing sweeps and nothing has to be notified.
//
// The package is pure: time comes in as an Instant, and there is no I/O.
package telemetry
