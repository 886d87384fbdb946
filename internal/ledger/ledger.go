// Package ledger keeps decision records: the newest in memory for the admin
// listener, and each finished one as a line of JSON for a log.
//
// Records are immutable. One is put in when its request is decided and replaced
// by a completed copy when the request has ended; only then is its line
// written. Writing happens on a goroutine of its own: no request waits for the
// log, and when the log falls behind, records are dropped and counted.
package ledger

import (
	"io"
	"sync"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// ringBytes bounds the memory of the ring, whatever its length: records of large
// pools hold one entry per candidate.
const ringBytes = 64 << 20

// Ledger keeps records. All methods may be called from any goroutine.
type Ledger struct {
	mu    sync.Mutex
	limit int
	// order holds the ids of the ring from the oldest to the newest; head is the
	// index of the oldest.
	order []string
	head  int
	byID  map[string]*v1alpha1.Decision
	bytes int

	// log is nil where no lines are written.
	log *lineLog
}

// New returns a ledger with a ring of at most limit records. Lines go to w; a
// nil w writes none. count is told "written", "dropped" or "failed" per line.
func New(limit int, w io.Writer, count func(result string)) *Ledger {
	l := &Ledger{limit: limit, byID: make(map[string]*v1alpha1.Decision, limit)}
	if w != nil {
		l.log = newLineLog(w, count)
	}
	return l
}

// SetLimit changes how many records the ring keeps.
func (l *Ledger) SetLimit(limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
	l.shrink(0)
}

// Open records a decision whose request still runs.
func (l *Ledger) Open(d *v1alpha1.Decision) { l.keep(d) }

// Close records a request that has ended and writes its line. A record with the
// same id is replaced.
func (l *Ledger) Close(d *v1alpha1.Decision) {
	l.keep(d)
	if l.log != nil {
		l.log.put(d)
	}
}

// Flush writes what waits and ends the log. It reports false if the log did not
// take it within the given time. Close must not be called after.
func (l *Ledger) Flush(within time.Duration) bool {
	return l.log == nil || l.log.flush(within)
}

// OnLogError calls f when a line could not be written, and with nil when lines
// can be written again: once for each change. It must be set before the first
// Close.
func (l *Ledger) OnLogError(f func(error)) {
	if l.log != nil {
		l.log.changed = f
	}
}

func (l *Ledger) keep(d *v1alpha1.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == 0 {
		return
	}
	if old, ok := l.byID[d.ID]; ok {
		l.bytes += size(d) - size(old)
		l.byID[d.ID] = d
		return
	}
	l.order = append(l.order, d.ID)
	l.byID[d.ID] = d
	l.bytes += size(d)
	// The newest record stays, whatever its size.
	l.shrink(1)
}

// shrink drops the oldest records until the rest is within bounds, or at least
// are left.
func (l *Ledger) shrink(least int) {
	for len(l.byID) > least && (len(l.byID) > l.limit || l.bytes > ringBytes) {
		oldest := l.order[l.head]
		l.head++
		l.bytes -= size(l.byID[oldest])
		delete(l.byID, oldest)
	}
	if l.head > len(l.order)/2 && l.head > 64 {
		l.order = append(l.order[:0], l.order[l.head:]...)
		l.head = 0
	}
}

// Sizes in memory of a record and of one candidate in it, measured on amd64 and
// rounded up.
const (
	recordBytes    = 1 << 10
	candidateBytes = 768
)

func size(d *v1alpha1.Decision) int {
	return recordBytes + candidateBytes*len(d.Candidates)
}

// Find returns the record with this id.
func (l *Ledger) Find(id string) (*v1alpha1.Decision, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.byID[id]
	return d, ok
}

// Newest returns up to n records, the newest first.
func (l *Ledger) Newest(n int) []*v1alpha1.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.byID))
	out := make([]*v1alpha1.Decision, 0, n)
	for i := len(l.order) - 1; len(out) < n; i-- {
		out = append(out, l.byID[l.order[i]])
	}
	return out
}
