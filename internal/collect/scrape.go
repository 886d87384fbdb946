package collect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// worker scrapes one endpoint after the other.
type worker struct {
	opts   Options
	caller *caller
	table  *table
	// probes are the metrics pages to try while the engine is not known.
	probes []probe
	buf    []byte
}

// memory is what a worker knows of an endpoint from one scrape to the next.
type memory struct {
	// declared is what the rest holds for, and stated the profile of the engine
	// that it names; nil if there is none.
	declared declaration
	stated   *engine.Profile
	// profile is that of the engine that answers there; nil before it is known.
	// page is where its metrics are.
	profile *engine.Profile
	page    place
	// moved is where the metrics page was found, after a redirection.
	moved string
	// serving is the ip:port that requests go to.
	serving string
	kept    connections
	guards  []guard

	// own is what the endpoint itself says, without the exporters; mark is that
	// of the scrape that it came from.
	own     *telemetry.Snapshot
	mark    uint32
	history engine.History
	traffic traffic
	// idle: the endpoint is read at the idle cadence.
	idle bool
	// slow are the slow pages, in the profile's order; nil before the first
	// time.
	slow []slowPage
	// renewed is when all of them were last made due by another process.
	renewed telemetry.Instant
	// down: the endpoint could not be reached when it was last asked. failing: its
	// metrics page was of no use.
	down, failing bool
	// notText: the last metrics page was none.
	notText bool
	// contradiction is what was logged of an engine that was not declared.
	contradiction string
}

type declaration struct {
	engine string
	pool.MetricsTarget
}

// place is where a page is.
type place struct {
	scheme, host, path, accept string
}

// report is how a scrape went.
type report struct {
	started telemetry.Instant
	// interval to the next scrape, after success.
	interval time.Duration
	// reason is empty after success, and for a scrape that was called off.
	reason string
	// reached: there was an HTTP answer. hangs: the metrics page does not come,
	// though somebody took the connection.
	reached, hangs bool
	cause          error
}

func (r *report) fail(reason string, cause error) { r.reason, r.cause = reason, cause }

// page is a whole metrics page, in memory that the next question reuses.
type page struct {
	at   telemetry.Instant
	path string
	body []byte
}

// largestKept bounds the page memory that a worker keeps.
const largestKept = 1 << 20

func newWorker(opts Options, clients *clients, table *table) *worker {
	return &worker{opts: opts, caller: clients.caller(), table: table, probes: probesOf(opts.Profiles)}
}

// scrape asks one endpoint, or one exporter, for its pages and publishes what
// they say. Whatever goes wrong inside stays inside.
func (w *worker) scrape(j job) (r report) {
	t := j.target
	r.started = w.opts.Clock()
	defer func() {
		if fault := recover(); fault != nil {
			r.fail("panic", fmt.Errorf("panic: %v", fault))
			w.opts.Logger.Error("panic in a scrape, contained", zap.String(t.kind, t.name), zap.Any("panic", fault), zap.Stack("stack"))
		}
		if cap(w.buf) > largestKept {
			w.buf = nil
		}
		if j.ctx.Err() != nil {
			// Called off: the endpoint is gone or the collector ends.
			r.reason = ""
			return
		}
		name := "unknown"
		switch {
		case t.exporter != nil:
			name = t.exporter.Profile.Name()
		case t.memory.profile != nil:
			name = t.memory.profile.Name()
		}
		if r.reason != "" && j.endpoint != nil {
			j.endpoint.ScrapeFailed(r.reason)
		}
		w.opts.Observe(name, resultOf(r.reason), w.opts.Clock().Sub(r.started))
	}()
	switch {
	case j.ctx.Err() != nil:
	case t.exporter != nil:
		w.readExporter(j, &r)
	default:
		w.readEndpoint(j, &r)
	}
	return r
}

func resultOf(reason string) string {
	if reason == "" {
		return "ok"
	}
	return reason
}

func (w *worker) readEndpoint(j job, r *report) {
	m := &j.target.memory
	w.prepare(j.endpoint, m)
	mark := j.endpoint.BeginScrape()
	traffic := m.traffic.note(j.endpoint.Live, w.opts.Clock())
	s := w.understand(j, m, r, traffic)
	if s == nil {
		m.failing = true
		w.withoutMetrics(j, m, r)
		w.rejoin(j, m)
		return
	}
	if m.failing {
		// Something else may have answered in the engine's place until now.
		m.failing, m.slow = false, nil
	}
	now := w.opts.Clock()
	r.interval = w.opts.interval(j.endpoint.Live, s, now)
	m.idle = r.interval >= w.opts.Idle
	interval := w.opts.kept(r.interval, now.Sub(r.started))
	m.profile.Extend(s, w.opts.lease(interval))
	if !w.publish(j, m, s, mark) {
		return
	}
	more := w.slowPages(j, m, s)
	if late := w.opts.kept(r.interval, w.opts.Clock().Sub(r.started)); late > interval {
		// The slow pages have put off the next scrape.
		if more == s {
			own := *s
			more = &own
		}
		m.profile.Extend(more, w.opts.lease(late))
	}
	if more != s {
		w.publish(j, m, more, mark)
	}
}

// understand asks for the metrics page and reads it, the declared engine's first.
// If nothing comes of it, r says why.
func (w *worker) understand(j job, m *memory, r *report, traffic engine.Traffic) *telemetry.Snapshot {
	interrupted := m.down
	for _, ask := range []func(job, *memory, *report) (page, bool){w.metrics, w.search} {
		got, ok := ask(j, m, r)
		if r.reached {
			m.down = false
		}
		if !ok {
			continue
		}
		s, err := w.read(j, m, got, traffic, interrupted)
		if err == nil {
			m.notText = false
			return s
		}
		r.fail(readReason(err), err)
		m.notText = m.notText || r.reason == "not_text"
	}
	return nil
}

// prepare starts anew where discovery has changed what it declares.
func (w *worker) prepare(e *pool.Endpoint, m *memory) {
	declared := declaration{e.Spec.Engine, e.Metrics}
	if m.serving != "" && m.declared == declared {
		return
	}
	m.kept.close()
	*m = memory{declared: declared, serving: e.Address.String()}
	if e.Spec.Engine != "" && w.opts.Profiles != nil {
		m.stated = w.opts.Profiles.Profile(e.Spec.Engine)
	}
	m.forget(e)
}

// forget lets go of what was found out about the engine, so that another one
// behind the same address is seen.
func (m *memory) forget(e *pool.Endpoint) {
	m.guards, m.moved, m.slow = nil, "", nil
	m.profile = nil
	if m.stated != nil {
		m.become(m.stated, metricsAt(e, m.stated.Metrics()))
	}
}

// become holds to an engine whose metrics are at a place.
func (m *memory) become(p *engine.Profile, at place) {
	if m.profile != p {
		m.slow = nil
	}
	m.profile, m.page = p, at
}

// renew makes the slow pages due, since another process may say something else on
// them, but not with every page of one that seems to start all the time.
func (m *memory) renew(now telemetry.Instant) {
	at := max(now, m.renewed.Add(renewPause))
	if at == now {
		m.slow, m.renewed = nil, now
		return
	}
	for i := range m.slow {
		m.slow[i].due = min(m.slow[i].due, at)
	}
}

// metricsAt is where an endpoint's metrics page is. What is declared wins over
// what the profile says; the address is the endpoint's own in any case.
func metricsAt(e *pool.Endpoint, page engine.Page) place {
	at := place{
		scheme: page.Scheme,
		host:   hostAt(e, page.Port),
		path:   page.Path,
		accept: page.Accept,
	}
	if e.Metrics.Port != 0 {
		at.host = hostAt(e, e.Metrics.Port)
	}
	if e.Metrics.Path != "" {
		at.path = e.Metrics.Path
	}
	if e.Metrics.Scheme != "" {
		at.scheme = e.Metrics.Scheme
	}
	if at.scheme == "" {
		at.scheme = "http"
	}
	return at
}

// hostAt is a port at the endpoint's own address; 0 is the serving port.
func hostAt(e *pool.Endpoint, port uint16) string {
	if port == 0 {
		return e.Address.String()
	}
	return netip.AddrPortFrom(e.Address.Addr(), port).String()
}

// metrics asks for the metrics page. If there is none, r says why.
func (w *worker) metrics(j job, m *memory, r *report) (page, bool) {
	switch {
	case m.profile != nil:
		at := m.page
		if m.moved != "" {
			at.path = m.moved
		}
		if m.notText && w.barred(at.path) {
			// What was there may be what some engine drains when it is asked.
			owners, _ := w.owners(j, m, at)
			if a := w.drained(owners, at); a.reason != "" {
				r.reached = true
				r.fail(a.reason, a.cause)
				return page{}, false
			}
		}
		got, found, a := w.whole(j, at, m.profile)
		r.reached, r.hangs = a.status != 0, a.connected && a.reason == "timeout"
		if !found {
			r.fail(a.reason, a.cause)
			return page{}, false
		}
		if a.redirected != "" {
			m.moved = a.redirected
		}
		return got, true
	case j.endpoint.Engine != "":
		a := w.knock(j)
		if r.reached = a.status != 0; r.reached {
			a = a.fault("profile_unknown", fmt.Errorf("engine %q: no profile of this name", j.endpoint.Engine))
		}
		r.fail(a.reason, a.cause)
		return page{}, false
	default:
		return w.detect(j, m, r)
	}
}

// search tries the pages of other engines where the declared one has none: what is
// declared may be wrong. Where that is in vain too, r stays as it is.
func (w *worker) search(j job, m *memory, r *report) (page, bool) {
	wrongPlace := r.reason == "status_404" || r.reason == "not_text" || r.reason == "no_engine_families" ||
		r.reason == "refused" && m.page.host != m.serving
	if m.stated == nil || m.profile != m.stated || !wrongPlace || j.ctx.Err() != nil {
		return page{}, false
	}
	var other report
	got, found := w.detect(j, m, &other)
	r.reached = r.reached || other.reached
	if found {
		r.reason, r.cause = "", nil
	}
	return got, found
}

// access is what it takes to be let in, where it is sure who asks for it: any pod
// can show the families of an engine, and would be given that engine's key.
func (j job) access(p *engine.Profile) engine.Access {
	if j.target.exporter == nil && p != j.target.memory.stated {
		return engine.Access{}
	}
	return p.Access()
}

// errNever: the profile says of a path that it must not be asked for.
var errNever = errors.New("this page must not be asked for on this engine, and no other is known")

// whole asks for a metrics page at a place, of an engine that is known or nil.
func (w *worker) whole(j job, at place, p *engine.Profile) (page, bool, answer) {
	q := question{scheme: at.scheme, host: at.host, path: at.path, accept: at.accept}
	if p != nil {
		q.access, q.never = j.access(p), p.Never
		if at.host == j.target.memory.serving && p.Never(pathOf(at.path)) {
			return page{}, false, answer{reason: "no_text_page", cause: errNever}
		}
	} else {
		q.never = w.barred
	}
	asked := w.opts.Clock()
	a := w.get(j, q)
	if a.reason == "" && a.unended {
		a = a.fault("truncated", engine.ErrTruncated)
	}
	if a.reason != "" {
		return page{}, false, a
	}
	path := at.path
	if a.redirected != "" {
		path = a.redirected
	}
	return page{asked, path, a.body}, true, a
}

// limit is how large a page may be.
func (w *worker) limit(q question) int64 {
	if q.slow {
		return min(largestSlow, w.opts.MaxPage)
	}
	return w.opts.MaxPage
}

// get asks the endpoint and notes what that shows of it.
func (w *worker) get(j job, q question) answer {
	m := &j.target.memory
	a := w.caller.get(j.ctx, q, &m.kept, w.opts.Timeout, w.limit(q), w.buf)
	if a.body != nil {
		w.buf = a.body
	}
	if j.endpoint == nil || j.ctx.Err() != nil {
		return a
	}
	switch {
	case a.status != 0:
		j.endpoint.Answered()
	case q.host != m.serving:
		// Requests go to another port; what is wrong here says nothing of it.
	case a.reason == "refused" || a.reason == "reset":
		j.target.reporting.Store(true)
		j.endpoint.Refused()
		j.target.reporting.Store(false)
	}
	return a
}

// read makes a snapshot of a metrics page. Where the page is another engine's,
// that one's profile reads it: the page decides, not what was declared.
func (w *worker) read(j job, m *memory, got page, traffic engine.Traffic, interrupted bool) (*telemetry.Snapshot, error) {
	previous := m.previous(j.endpoint)
	in := engine.Input{
		At:          got.at,
		Path:        pathOf(got.path),
		Models:      servedModels(j.endpoint, previous),
		Previous:    previous,
		History:     &m.history,
		Interrupted: interrupted,
		Traffic:     traffic,
	}
	s, err := m.profile.Read(got.body, in)
	if errors.Is(err, engine.ErrNoEngineFamilies) {
		var other *engine.Profile
		if other, err = w.opts.Profiles.Detect(got.body); err == nil {
			m.become(other, m.page)
			s, err = other.Read(got.body, in)
		}
	}
	if err != nil {
		return nil, err
	}
	switch {
	case previous == nil, previous.Profile != s.Profile:
		m.slow = nil
	case engine.Restarted(previous, s):
		m.renew(got.at)
	}
	if m.declared.engine != "" && m.profile != m.stated {
		s.Declared = m.declared.engine
	}
	w.logContradiction(j, m, s)
	return s, nil
}

// previous is the newest snapshot, without what exporters have added as far as
// that is known.
func (m *memory) previous(e *pool.Endpoint) *telemetry.Snapshot {
	if m.own != nil {
		return m.own
	}
	return e.Snapshot()
}

// logContradiction tells of changes only.
func (w *worker) logContradiction(j job, m *memory, s *telemetry.Snapshot) {
	now := ""
	if s.Declared != "" {
		now = s.Engine
	}
	if now == m.contradiction {
		return
	}
	m.contradiction = now
	where := zap.String("endpoint", j.endpoint.Name)
	if now == "" {
		w.opts.Logger.Info("the page is that of the declared engine again", where, zap.String("engine", s.Engine))
		return
	}
	w.opts.Logger.Warn("the page is that of another engine than declared, and is read as such",
		where, zap.String("declared", s.Declared), zap.String("engine", now))
}

// publish makes s the endpoint's newest snapshot, with what the exporters say of
// its pod, unless the endpoint has left the pool in the meantime.
func (w *worker) publish(j job, m *memory, s *telemetry.Snapshot, mark uint32) bool {
	select {
	case <-j.endpoint.Gone():
		return false
	default:
	}
	m.own, m.mark = s, mark
	j.endpoint.Publish(w.table.join(s, j.endpoint.Pod, j.sharesPod), mark)
	return true
}

// withoutMetrics does what is left to do when the metrics page is of no use. The
// readings from it stay as they were and age.
func (w *worker) withoutMetrics(j job, m *memory, r *report) {
	if j.ctx.Err() != nil {
		return
	}
	m.moved = ""
	switch r.reason {
	case "refused", "reset", "unreachable":
		// Behind the same address there may be another process now.
		if !m.down {
			m.forget(j.endpoint)
		}
		m.down = true
	case "status_404", "not_text", "joined":
		if m.profile != m.stated {
			m.forget(j.endpoint)
		}
	}
	switch {
	case m.profile == nil:
		if !r.reached && metricsAt(j.endpoint, engine.Page{}).host != m.serving {
			// Only the serving port tells whether requests would be refused.
			r.reached = w.knock(j).status != 0
		}
		return
	case !r.reached && !r.hangs && m.page.host == m.serving && r.reason != "no_text_page":
		// Nobody is there to ask.
		return
	}
	before := m.previous(j.endpoint)
	s := before
	if s == nil {
		s = firstWithoutMetrics(m.profile, r, w.opts.Clock())
	}
	more := w.slowPages(j, m, s)
	r.reached = r.reached || !j.endpoint.OrderedLast()
	if more != s || before == nil && r.reason == "no_engine_families" {
		// The load on it is as old as it was: no request in flight is counted in.
		w.publish(j, m, more, m.mark)
	}
}

// rejoin takes over what exporters have said since: they may be well while the
// endpoint's own page is not.
func (w *worker) rejoin(j job, m *memory) {
	if len(w.table.exporters) > 0 && m.own != nil && j.ctx.Err() == nil {
		w.publish(j, m, m.own, m.mark)
	}
}

// firstWithoutMetrics is what is known of an engine whose metrics page was never
// of any use.
func firstWithoutMetrics(p *engine.Profile, r *report, now telemetry.Instant) *telemetry.Snapshot {
	if r.reason == "no_engine_families" {
		return p.Silent(now)
	}
	s := p.Silent(0)
	for f := range s.Readings {
		if s.Readings[f].Support == telemetry.Disabled {
			s.Readings[f] = telemetry.Reading{}
		}
	}
	return s
}

// servedModels are the names by which the endpoint serves its model, nil if
// nothing says so.
func servedModels(e *pool.Endpoint, s *telemetry.Snapshot) []string {
	if e.Spec.ServedModels != nil || s == nil {
		return e.Spec.ServedModels
	}
	r := &s.Readings[telemetry.ServedModels]
	if r.Recorded == telemetry.Fresh && r.Detail != nil {
		return r.Detail.Names
	}
	return nil
}

func readReason(err error) string {
	for _, known := range []struct {
		err    error
		reason string
	}{
		{engine.ErrNotText, "not_text"},
		{engine.ErrEmpty, "empty"},
		{engine.ErrNoEngineFamilies, "no_engine_families"},
		{engine.ErrSeveralEngines, "several_engines"},
		{engine.ErrJoined, "joined"},
		{engine.ErrTruncated, "truncated"},
		{engine.ErrTooLarge, "too_large"},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	return "malformed"
}

// isStatus reports that a reason is the status of an answer.
func isStatus(reason string) bool { return strings.HasPrefix(reason, "status_") }
