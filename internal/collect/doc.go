// Package collect scrapes the endpoints of a pool and publishes what their
// engines say as snapshots.
//
// One goroutine keeps the times at which endpoints are due in a heap; a fixed
// number of workers do the scraping. There is no goroutine for each endpoint,
// and never more than one request in flight to one endpoint. Nothing on the
// request path waits for any of this: it reads the newest snapshot.
//
// # When
//
// How often an endpoint is scraped follows from what happens there:
//
//	hot   requests in flight, picked within 2 s, or the engine says it is busy
//	warm  a candidate within 30 s
//	idle  otherwise
//
// A wake (the first pick on an idle endpoint, or a refused request) scrapes at
// once, unless the last scrape is not a hot interval ago. A page that takes long
// is followed by a pause as long as itself. A reading expires at observedAt +
// max(profile TTL, 3 x interval + timeout), with the interval to the next
// scrape, so that idle endpoints do not look stale when a burst comes, and
// becoming hot never shortens a reading's life.
//
// After failures the pause doubles up to 10 s. An endpoint that could not be
// reached is tried sooner while somebody wants it: at the hot cadence with
// requests in flight or after a wake, every second while it is a candidate.
// One that answers, but not with a page, keeps to the doubling pause: nothing
// is won by asking again. Endpoints whose last scrape failed may hold a quarter
// of the workers, and those that were never scraped a half, so that neither a
// part of the fleet that hangs nor one that is new stalls the rest.
//
// # Which page
//
// The metrics page is where the endpoint's declaration says, or else where the
// profile of its engine does, and always at the endpoint's own address. The other
// pages of the profile follow in the same turn when they are due. They are asked
// for while the metrics page is of no use, too: what a replica serves and whether
// it is well must be known even if its load is not. One that answers 404 is let
// alone for ten minutes, or until the process or its version is another.
//
// The page decides which engine there is. Where nothing is declared, or the
// declared engine has no page at its place, the metrics pages of all profiles are
// tried. A path that must not be asked for on some
// engine, since reading it changes something there, comes last, and only after
// the models of the endpoint have said that it is not that engine. Where the page
// has families of another engine than the declared one, that one's profile reads
// it, and the snapshot names both. What was found out is forgotten when
// connections are refused: another engine may come up behind the address. A
// profile's credentials are sent and its authorities trusted only where that
// engine is known to be; an engine that asks for a key must be declared.
//
// # What of it counts
//
// A scrape is applied whole or not at all: after a failure the readings of the
// metrics page stay as they were and age, and the endpoint shows the reason. The
// reasons:
//
//	refused       connection refused
//	reset         connection reset or closed before an answer
//	unreachable   no connection, for another reason
//	timeout       no complete page in time
//	status_NNN    an answer with this status, status_other if it has no name
//	redirect      an answer that leads elsewhere than the same host and port, or
//	              to a page that must not be asked for
//	too_large     more bytes than the limit
//	truncated     the page was cut
//	not_text      JSON, HTML or binary
//	empty         a page with nothing on it
//	joined        a page that joins those of several replicas
//	no_engine_families   a text page without one family of an engine
//	several_engines      a text page with families of more than one
//	no_text_page  no page may be asked for: the engine has only one that must not
//	profile_unknown      an engine is declared that no profile is for
//	tls           no trust in the certificate, or no TLS at all there
//	malformed     the answer is not HTTP
//	panic         a fault of this process, contained
//
// # Exporters
//
// Pages of GPUs are read at the idle cadence by two workers of their own, under
// the same limits. What they say is kept by pod and joins the snapshots of the
// endpoint that is this pod, below what its engine says itself. Of a pod with
// several endpoints it cannot be told whose a value is: it is left unknown.
package collect
