package collect

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// worker scrapes one endpoint after the other.
type worker struct {
	opts   Options
	client *client
	// probes are the metrics pages to try while the engine is not known.
	probes []engine.Page
	buf    []byte
}

// memory is what a worker knows of an endpoint from one scrape to the next.
type memory struct {
	// declared is what the rest holds for.
	declared declaration
	// profile is that of the engine that was recognised; nil before.
	profile *engine.Profile
	// probe counts the pages tried in vain.
	probe int
	// metrics and serving are the ip:port of the metrics page and of the rest.
	metrics, serving string
	// moved is where the metrics page was found, after a redirection.
	moved string
	// slow are when the slow pages are due, in the profile's order.
	slow []telemetry.Instant
}

type declaration struct {
	engine string
	pool.MetricsTarget
}

// report is how a scrape went.
type report struct {
	started telemetry.Instant
	// interval to the next scrape, and how long the metrics page took; after
	// success.
	interval, took time.Duration
	// reason is empty after success, and for a scrape that was called off.
	reason string
	// reached: there was an HTTP answer.
	reached bool
	cause   error
}

// largestKept bounds the page memory that a worker keeps.
const largestKept = 1 << 20

// defaultPage is asked for when no profile says where the metrics are.
var defaultPage = engine.Page{Path: "/metrics", Format: engine.Prometheus, Accept: "text/plain;version=0.0.4"}

func newWorker(opts Options, client *client) *worker {
	w := &worker{opts: opts, client: client}
	seen := map[string]bool{}
	if opts.Profiles != nil {
		for _, p := range opts.Profiles.Profiles() {
			if page := p.Metrics(); !seen[page.Path] {
				seen[page.Path] = true
				w.probes = append(w.probes, page)
			}
		}
	}
	if len(w.probes) == 0 {
		w.probes = []engine.Page{defaultPage}
	}
	return w
}

// scrape asks one endpoint for its pages and publishes what they say. Whatever
// goes wrong inside stays inside.
func (w *worker) scrape(j job) (r report) {
	m := &j.target.memory
	name := "unknown"
	r.started = w.opts.Clock()
	defer func() {
		if fault := recover(); fault != nil {
			r.reason, r.cause = "panic", fmt.Errorf("panic: %v", fault)
			w.opts.Logger.Error("panic in a scrape, contained", zap.String("endpoint", j.endpoint.Name), zap.Any("panic", fault), zap.Stack("stack"))
		}
		if cap(w.buf) > largestKept {
			w.buf = nil
		}
		if j.ctx.Err() != nil {
			// Called off: the endpoint is gone or the collector ends.
			r.reason = ""
			return
		}
		if r.reason != "" {
			j.endpoint.ScrapeFailed(r.reason)
		}
		if m.profile != nil {
			name = m.profile.Name()
		}
		w.opts.Observe(name, resultOf(r.reason), w.opts.Clock().Sub(r.started))
	}()
	w.attempt(j, m, &r)
	return r
}

func resultOf(reason string) string {
	if reason == "" {
		return "ok"
	}
	return reason
}

func (w *worker) attempt(j job, m *memory, r *report) {
	w.prepare(j.endpoint, m)
	profile, page := w.page(j.endpoint, m)
	mark := j.endpoint.BeginScrape()
	at := w.opts.Clock()
	a := w.get(j, question{host: m.metrics, accept: page.Accept, path: page.Path})
	r.reached = a.status != 0
	if a.reason != "" {
		r.reason, r.cause = a.reason, a.cause
		w.lost(m, a)
		return
	}
	if a.unended {
		r.reason, r.cause = "truncated", engine.ErrTruncated
		return
	}
	if a.redirected != "" {
		m.moved, page.Path = a.redirected, a.redirected
	}
	if j.endpoint.Engine != "" && profile == nil {
		r.reason, r.cause = "profile_unknown", fmt.Errorf("engine %q: no profile of this name", j.endpoint.Engine)
		return
	}
	if profile == nil {
		if profile = w.opts.Profiles.Detect(a.body); profile == nil {
			m.probe++
			r.reason, r.cause = "no_engine_families", engine.ErrNoEngineFamilies
			return
		}
	}
	previous := j.endpoint.Snapshot()
	s, err := profile.Read(a.body, engine.Input{
		At:       at,
		Path:     page.Path,
		Models:   servedModels(j.endpoint, previous),
		Previous: previous,
	})
	if err != nil {
		r.reason, r.cause = readReason(err), err
		if j.endpoint.Engine == "" {
			m.profile = nil
		}
		return
	}
	if m.profile != profile || previous == nil || engine.Restarted(previous, s) {
		m.slow = nil
	}
	m.profile = profile
	now := w.opts.Clock()
	r.took = now.Sub(at)
	r.interval = w.opts.interval(j.endpoint.Live, s, now)
	profile.Extend(s, w.opts.lease(r.interval))
	if publish(j, s, mark) {
		w.slowPages(j, m, s, mark)
	}
}

// publish makes s the endpoint's newest snapshot, unless the endpoint has left
// the pool in the meantime.
func publish(j job, s *telemetry.Snapshot, mark uint32) bool {
	select {
	case <-j.endpoint.Gone():
		return false
	default:
		j.endpoint.Publish(s, mark)
		return true
	}
}

// prepare starts anew where discovery has changed what it declares.
func (w *worker) prepare(e *pool.Endpoint, m *memory) {
	declared := declaration{e.Spec.Engine, e.Metrics}
	if m.metrics != "" && m.declared == declared {
		return
	}
	port := e.Address.Port()
	if e.Metrics.Port != 0 {
		port = e.Metrics.Port
	}
	*m = memory{
		declared: declared,
		metrics:  netip.AddrPortFrom(e.Address.Addr(), port).String(),
		serving:  e.Address.String(),
	}
	if e.Spec.Engine != "" && w.opts.Profiles != nil {
		m.profile = w.opts.Profiles.Profile(e.Spec.Engine)
	}
}

// page is the metrics page to ask for, and whose it is if that is known. What
// is declared for the endpoint wins over what the profile says.
func (w *worker) page(e *pool.Endpoint, m *memory) (*engine.Profile, engine.Page) {
	var page engine.Page
	switch {
	case m.profile != nil:
		page = m.profile.Metrics()
	case e.Spec.Engine != "":
		page = defaultPage
	default:
		page = w.probes[m.probe%len(w.probes)]
	}
	switch {
	case m.moved != "":
		page.Path = m.moved
	case e.Metrics.Path != "":
		page.Path = e.Metrics.Path
	}
	return m.profile, page
}

// get asks the endpoint and notes what that shows of it.
func (w *worker) get(j job, q question) answer {
	q.scheme = "http"
	// A declared scheme is that of the metrics port, whether or not it serves
	// the other pages too.
	if m := &j.target.memory; j.endpoint.Metrics.Scheme != "" && q.host == m.metrics {
		q.scheme = j.endpoint.Metrics.Scheme
	}
	a := w.client.get(j.ctx, q, w.opts.Timeout, w.opts.MaxPage, w.buf)
	if a.body != nil {
		w.buf = a.body
	}
	switch {
	case j.ctx.Err() != nil:
	case a.status != 0:
		j.endpoint.Answered()
	case a.reason == "refused" || a.reason == "reset":
		j.target.reporting.Store(true)
		j.endpoint.Refused()
		j.target.reporting.Store(false)
	}
	return a
}

// lost forgets what an endpoint that gave no page may not hold to when it is
// back.
func (w *worker) lost(m *memory, a answer) {
	m.moved = ""
	if a.status == 0 {
		// Behind the same address there may be another process now.
		m.slow = nil
	}
	if m.profile == nil {
		m.probe++
	}
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
	switch {
	case errors.Is(err, engine.ErrNotText):
		return "not_text"
	case errors.Is(err, engine.ErrNoEngineFamilies):
		return "no_engine_families"
	case errors.Is(err, engine.ErrTruncated):
		return "truncated"
	default:
		return "malformed"
	}
}

// slowRetry is the part of a slow page's cadence after which a failed one is
// asked for again.
const slowRetry = 6

// slowPages asks for the pages that change only with the engine's process, when
// they are due. Their failure is theirs alone: what they said before stays and
// ages.
func (w *worker) slowPages(j job, m *memory, s *telemetry.Snapshot, mark uint32) {
	pages := m.profile.SlowPages()
	if m.slow == nil {
		m.slow = make([]telemetry.Instant, len(pages))
	}
	before := s
	changed := false
	for i, page := range pages {
		at := w.opts.Clock()
		if at < m.slow[i] && !changed {
			continue
		}
		m.slow[i] = at.Add(page.Every / slowRetry)
		a := w.get(j, question{host: m.serving, accept: page.Accept, path: page.Path})
		if a.reason != "" {
			w.opts.Logger.Debug("slow page fails", zap.String("endpoint", j.endpoint.Name), zap.String("path", page.Path), zap.String("reason", a.reason))
			if a.reason == "timeout" {
				// The others would hang as well, and the next metrics page wait.
				break
			}
			continue
		}
		next, err := m.profile.ReadSlow(page, a.body, at, w.opts.lease(page.Every), s)
		if err != nil {
			w.opts.Logger.Debug("slow page fails", zap.String("endpoint", j.endpoint.Name), zap.String("path", page.Path), zap.Error(err))
			continue
		}
		m.slow[i] = at.Add(page.Every)
		changed = changed || newVersion(s, next)
		s = next
	}
	if s != before {
		publish(j, s, mark)
	}
}

// newVersion reports that the engine states another version than before.
func newVersion(before, after *telemetry.Snapshot) bool {
	b, a := &before.Readings[telemetry.EngineVersion], &after.Readings[telemetry.EngineVersion]
	return b.Recorded == telemetry.Fresh && a.Recorded == telemetry.Fresh && b.Detail.Text != a.Detail.Text
}
