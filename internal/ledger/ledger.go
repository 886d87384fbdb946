// Package ledger keeps decision records: the newest in memory for the admin
// listener, and each finished one as a line of JSON for a log.
//
// A record is kept as its JSON from the start. A document holds some hundred
// pointers, and a ring of them was most of what the garbage collector had to
// follow; of text it follows none. It is written when the request is decided,
// while what it tells is in the processor's cache. The end of the request
// completes it: the few members that it changes are a text of their own. Only
// then is the record's line written.
//
// Writing happens on a goroutine of its own, and no request waits for it. A log
// that nobody reads holds up a bounded number of records of a bounded size; more
// are dropped and counted. A log that takes a part of a line and fails, as a full
// disk does, has one broken line for it.
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
	// mu guards the ring, and the ends of the records in it.
	mu    sync.Mutex
	limit int
	// order holds the ids of the ring from the oldest to the newest; head is the
	// index of the oldest.
	order []string
	head  int
	byID  map[string]*Record
	bytes int

	// buffers are what records are written in before their length is known.
	buffers sync.Pool
	// log is nil where no lines are written.
	log *lineLog
}

// New returns a ledger with a ring of at most limit records. Lines go to w; a
// nil w writes none. w may take less than it is given. count is told, per line,
// "written" if the log has the whole of it, "failed" if not, and "dropped" if it
// was not tried, since too many waited already.
func New(limit int, w io.Writer, count func(result string)) *Ledger {
	l := &Ledger{
		limit:   limit,
		byID:    make(map[string]*Record, limit),
		buffers: sync.Pool{New: func() any { return new([]byte) }},
	}
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

// Open records a decision whose request still runs. The document may be reused
// when it returns.
func (l *Ledger) Open(d *v1alpha1.Decision) *Record {
	buffer := l.buffers.Get().(*[]byte)
	r := newRecord(d, buffer)
	l.buffers.Put(buffer)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep(r)
	return r
}

// End completes the record of a request that has ended and writes its line. It
// must be called at most once for a record.
func (l *Ledger) End(r *Record, a *v1alpha1.Acknowledgement, out *v1alpha1.Outcome) {
	buffer := l.buffers.Get().(*[]byte)
	ending, err := encodeEnding(a, out, buffer)
	l.buffers.Put(buffer)
	l.mu.Lock()
	before := r.size()
	r.end(ending, err)
	if l.byID[r.id] == r {
		l.bytes += r.size() - before
	} else {
		// It was pushed out meanwhile, and is news again.
		l.keep(r)
	}
	l.mu.Unlock()
	l.write(r)
}

// Close records a request that has ended already and writes its line. The
// document may be reused when it returns.
func (l *Ledger) Close(d *v1alpha1.Decision) { l.write(l.Open(d)) }

// Flush writes what waits and ends the log. It reports false if the log did not
// take it within the given time. Neither Close nor End may be called after.
func (l *Ledger) Flush(within time.Duration) bool {
	return l.log == nil || l.log.flush(within)
}

// OnLogError calls f when a line could not be written, and with nil when lines
// can be written again: once for each change. It must be set before the first
// Close or End.
func (l *Ledger) OnLogError(f func(error)) {
	if l.log != nil {
		l.log.changed = f
	}
}

// OnLogBehind calls f with true when a record is dropped since the log does not
// keep up, and with false when it keeps up again: once for each change. It must be
// set before the first Close or End. The calls come one after the other; nothing
// waits for them but Flush.
func (l *Ledger) OnLogBehind(f func(behind bool)) {
	if l.log != nil {
		l.log.fellBehind = f
	}
}

func (l *Ledger) write(r *Record) {
	if l.log != nil {
		l.log.put(r)
	}
}

// keep puts a record into the ring as the newest, or in the place of one with the
// same id. One that could not be written is not kept.
func (l *Ledger) keep(r *Record) {
	if l.limit == 0 || r.err != nil {
		return
	}
	if old, ok := l.byID[r.id]; ok {
		l.bytes -= old.size()
	} else {
		l.order = append(l.order, r.id)
	}
	l.byID[r.id] = r
	l.bytes += r.size()
	// The newest record stays, whatever its size.
	l.shrink(1)
}

// shrink drops the oldest records until the rest is within bounds, or at least
// are left.
func (l *Ledger) shrink(least int) {
	for len(l.byID) > least && (len(l.byID) > l.limit || l.bytes > ringBytes) {
		oldest := l.order[l.head]
		l.head++
		l.bytes -= l.byID[oldest].size()
		delete(l.byID, oldest)
	}
	if l.head > len(l.order)/2 && l.head > 64 {
		l.order = append(l.order[:0], l.order[l.head:]...)
		l.head = 0
	}
}

// Find returns the record with this id.
func (l *Ledger) Find(id string) (*v1alpha1.Decision, bool) {
	l.mu.Lock()
	kept, ok := l.byID[id]
	var r Record
	if ok {
		r = *kept
	}
	l.mu.Unlock()
	if !ok {
		return nil, false
	}
	d, err := r.decode()
	return d, err == nil
}

// Newest returns up to n records, the newest first.
func (l *Ledger) Newest(n int) []*v1alpha1.Decision {
	records := l.newest(n)
	out := make([]*v1alpha1.Decision, 0, len(records))
	for i := range records {
		if d, err := records[i].decode(); err == nil {
			out = append(out, d)
		}
	}
	return out
}

// newest copies the records as they are now. Their texts are never changed, and
// are read without keeping requests waiting.
func (l *Ledger) newest(n int) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.byID))
	records := make([]Record, 0, n)
	for i := len(l.order) - 1; len(records) < n; i-- {
		records = append(records, *l.byID[l.order[i]])
	}
	return records
}
