package collect

import (
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// slowPage is when a page that changes only with the engine's process, or that
// says only whether it is well, is to be asked for again.
type slowPage struct {
	due telemetry.Instant
	// asked counts the times, for jitter; absent those in a row that it was not
	// there.
	asked, absent uint64
}

const (
	// slowRetry is the part of a slow page's cadence after which a failed one is
	// asked for again.
	slowRetry = 6
	// largestSlow bounds a slow page, bytes. Decoded JSON takes some forty times its
	// length.
	largestSlow = 1 << 20
	// idleSlower is how many times less often the slow pages of an idle endpoint are
	// asked for.
	idleSlower = 2
	// renewPause is the shortest time from one process whose slow pages are asked for
	// to the next.
	renewPause = 10 * time.Second
	// absentPause is how long a page that is not there is let alone at most, while
	// the process and its version stay the same.
	absentPause = 10 * time.Minute
)

// slowPages asks for the slow pages that are due and returns s with what they
// say; s itself stays as it is. Their failure is theirs alone: what they said
// before stays and ages.
func (w *worker) slowPages(j job, m *memory, s *telemetry.Snapshot) *telemetry.Snapshot {
	pages := m.profile.SlowPages()
	if m.slow == nil {
		m.slow = make([]slowPage, len(pages))
	}
	changed := false
	began := w.opts.Clock()
	for i := range pages {
		at := w.opts.Clock()
		if at < m.slow[i].due && !changed {
			continue
		}
		if at.Sub(began) >= w.opts.Timeout/2 {
			// The others have their turn with the next scrape.
			break
		}
		next, pause, goOn := w.slowPage(j, m, i, s)
		m.slow[i].asked++
		m.slow[i].due = at.Add(jitter(pause, j.endpoint.Hash+uint64(i)<<32, m.slow[i].asked))
		if newVersion(s, next) {
			changed = true
			for before := range i {
				m.slow[before].due = at
			}
		}
		s = next
		if !goOn {
			break
		}
	}
	return s
}

// slowPage asks for one page. pause is that until it is asked for again; goOn is
// false if there is no use in asking for others now.
func (w *worker) slowPage(j job, m *memory, i int, s *telemetry.Snapshot) (next *telemetry.Snapshot, pause time.Duration, goOn bool) {
	from, at := m.profile.SlowPages()[i], w.opts.Clock()
	a := w.get(j, m.slowQuestion(j, from))
	debug := func(reason string, cause error) {
		w.opts.Logger.Debug("slow page fails", zap.String("endpoint", j.endpoint.Name), zap.String("path", from.Path), zap.String("reason", reason), zap.Error(cause))
	}
	retry := from.Every / slowRetry
	// Where the metrics page is not there either, it may be that the engine is not.
	absent := a.status == http.StatusNotFound && !m.failing
	if !absent {
		m.slow[i].absent = 0
	}
	if !absent && (a.reason != "" || a.status == http.StatusNotFound) {
		debug(a.reason, a.cause)
		// Where one hangs, the others would as well, and the next metrics page wait.
		return unread(s, from, a.reason), retry, a.status != 0 && a.reason != "timeout"
	}
	every := from.Every
	if m.idle {
		every *= idleSlower
	}
	next, err := m.profile.ReadSlow(from, a.status, a.body, at, w.opts.lease(every), s)
	switch {
	case err != nil:
		debug("malformed", err)
		return unread(s, from, "malformed"), retry, true
	case absent:
		debug(a.reason, a.cause)
		pause := min(from.Every<<min(m.slow[i].absent, 10), absentPause)
		m.slow[i].absent++
		return next, pause, true
	default:
		return next, every, true
	}
}

// unread is s with the reason for which the fields of a page were never read; s
// itself where they were, the reason is there already, or nothing else was read
// either.
func unread(s *telemetry.Snapshot, from engine.Page, reason string) *telemetry.Snapshot {
	if s.ScrapedAt == 0 {
		return s
	}
	words := telemetry.NotRead + ": " + from.Path + " fails with " + reason
	next := s
	for _, f := range from.Reads() {
		r := &s.Readings[f]
		if r.ObservedAt != 0 || r.Detail != nil && slices.Equal(r.Detail.Reasons, []string{words}) {
			continue
		}
		if next == s {
			own := *s
			next = &own
		}
		next.Readings[f] = telemetry.Reading{Support: r.Support, Detail: &telemetry.Detail{Reasons: []string{words}, Unread: true}}
	}
	return next
}

// slowQuestion is where a slow page is: at its own port, or at the serving one.
func (m *memory) slowQuestion(j job, from engine.Page) question {
	q := question{
		scheme: from.Scheme,
		host:   hostAt(j.endpoint, from.Port),
		path:   from.Path,
		accept: from.Accept,
		access: j.access(m.profile),
		never:  m.profile.Never,
		status: from.Format == engine.Status,
		slow:   true,
	}
	switch {
	case q.host == m.page.host && (m.declared.Scheme != "" || q.scheme == ""):
		// One port speaks one scheme. What is declared for the metrics port says
		// nothing of another one.
		q.scheme = m.page.scheme
	case q.scheme == "":
		q.scheme = "http"
	}
	return q
}

// newVersion reports that the engine states another version than before.
func newVersion(before, after *telemetry.Snapshot) bool {
	b, a := &before.Readings[telemetry.EngineVersion], &after.Readings[telemetry.EngineVersion]
	return b.Recorded == telemetry.Fresh && a.Recorded == telemetry.Fresh && b.Detail.Text != a.Detail.Text
}
