// Package collect scrapes the endpoints of a pool and publishes what their
// engines say as snapshots.
//
// One goroutine keeps the times at which endpoints are due in a heap; a fixed
// number of workers do the scraping. There is no goroutine for each endpoint,
// and never more than one request in flight to one endpoint. Nothing on the
// request path waits for any of this: it reads the newest snapshot.
//
// How often an endpoint is scraped follows from what happens there:
//
//	hot   requests in flight, picked within 2 s, or the engine says it is busy
//	warm  a candidate within 30 s
//	idle  otherwise
//
// A wake (the first pick on an idle endpoint, or a refused request) scrapes at
// once, unless the last scrape is not a hot interval ago. A page that takes long is followed by a pause as long as itself. A
// reading expires at observedAt + max(profile TTL, 3 x interval + timeout),
// with the interval to the next scrape, so that idle endpoints do not look
// stale when a burst comes, and becoming hot never shortens a reading's life.
//
// After failures the pause doubles up to 10 s. An endpoint that could not be
// reached is tried sooner while somebody wants it: at the hot cadence with
// requests in flight or after a wake, every second while it is a candidate.
// One that answers, but not with a page, keeps to the doubling pause: nothing
// is won by asking again. Scrapes of endpoints whose last failure was slow (a
// time-out, as a rule) may hold a quarter of the workers, so that a half of the
// fleet that hangs does not stall the other half.
//
// A scrape is applied whole or not at all: after a failure the snapshot stays
// as it was and ages, and the endpoint shows the reason. The reasons:
//
//	refused       connection refused
//	reset         connection reset or closed before an answer
//	unreachable   no connection, for another reason
//	timeout       no complete page in time
//	status_NNN    an answer with this status, status_other if it has no name
//	redirect      an answer that leads elsewhere than the same host and port
//	too_large     more bytes than the limit
//	truncated     the page was cut
//	not_text      JSON, HTML or binary
//	no_engine_families   a text page without one family of the engine
//	profile_unknown      an engine is declared that no profile is for
//	tls           no trust in the certificate, or no TLS at all there
//	malformed     the answer is not HTTP
//	panic         a fault of this process, contained
package collect
