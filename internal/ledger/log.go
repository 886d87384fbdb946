package ledger

import (
	"io"
	"sync"
	"time"
)

const (
	// maxWaiting is how many records may wait for the log; more are dropped.
	maxWaiting = 4096
	// maxHeld bounds the memory of the records that wait and of those that are
	// being written, bytes: records of large pools hold one entry per candidate. A
	// record that is larger is taken when there is no other.
	maxHeld = 64 << 20
	// gather is how long records gather before they are written together: waking
	// the writer and calling the system for each would cost more than the line.
	gather = 20 * time.Millisecond
	// maxWrite bounds the text that is gathered before it is written, bytes.
	maxWrite = 256 << 10
)

// lineLog writes records as lines, on a goroutine of its own. Another one tells
// that the log falls behind: neither the writer, which hangs then, nor a request
// could.
type lineLog struct {
	out   lineWriter
	count func(result string)
	// changed hears of the first error, and of the first success after one.
	changed func(error)
	failing bool
	// fellBehind hears of the first record that is dropped, and of the log having
	// caught up after it.
	fellBehind func(behind bool)
	// wake holds a value while records wait.
	wake   chan struct{}
	ending chan struct{}
	// turned holds a value while there may be something for fellBehind to hear.
	turned chan struct{}
	// written is closed after the last line, ended when all was told as well.
	written, ended chan struct{}

	mu      sync.Mutex
	waiting []*Record
	// held is the size of the records that wait or are being written.
	held int
	// behind tells that records were dropped since the log kept up; dropped, that
	// one was since fellBehind was last seen to.
	behind, dropped bool
}

func newLineLog(w io.Writer, count func(result string)) *lineLog {
	l := &lineLog{
		out:        lineWriter{w: w},
		count:      count,
		changed:    func(error) {},
		fellBehind: func(bool) {},
		wake:       make(chan struct{}, 1),
		ending:     make(chan struct{}),
		turned:     make(chan struct{}, 1),
		written:    make(chan struct{}),
		ended:      make(chan struct{}),
	}
	go l.run()
	go l.report()
	return l
}

// put hands over a record, which must not change after. It never waits for the
// writer.
func (l *lineLog) put(r *Record) {
	size := r.size()
	l.mu.Lock()
	fits := len(l.waiting) < maxWaiting && (l.held == 0 || l.held+size <= maxHeld)
	first, turned := false, false
	if fits {
		first = len(l.waiting) == 0
		l.waiting = append(l.waiting, r)
		l.held += size
	} else {
		turned = !l.behind
		l.behind, l.dropped = true, true
	}
	l.mu.Unlock()
	if !fits {
		l.count("dropped")
	}
	if first {
		signal(l.wake)
	}
	if turned {
		signal(l.turned)
	}
}

// signal puts a value into a channel that has room for one, if it holds none.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush writes what waits and ends the log, or gives up on a log that hangs.
func (l *lineLog) flush(within time.Duration) bool {
	close(l.ending)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-l.ended:
		return true
	case <-timer.C:
		return false
	}
}

// tell hears of every write's error or success.
func (l *lineLog) tell(err error) {
	if failing := err != nil; failing != l.failing {
		l.failing = failing
		l.changed(err)
	}
}

func (l *lineLog) run() {
	defer close(l.written)
	timer := time.NewTimer(gather)
	defer timer.Stop()
	var batch []*Record
	for ending := false; !ending; {
		select {
		case <-l.wake:
			timer.Reset(gather)
			select {
			case <-timer.C:
			case <-l.ending:
				ending = true
			}
		case <-l.ending:
			ending = true
		}
		batch = l.take(batch)
		l.write(batch)
		l.keptUp()
	}
	l.out.end()
}

// take swaps the records that wait for an empty list.
func (l *lineLog) take(empty []*Record) []*Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.waiting
	l.waiting = empty[:0]
	return batch
}

// write writes a batch, and lets go of each record when its line was written.
func (l *lineLog) write(batch []*Record) {
	from := 0
	for i, r := range batch {
		if r.err != nil {
			l.count("failed")
			l.tell(r.err)
		} else {
			l.out.add(r)
		}
		if len(l.out.text) < maxWrite && i < len(batch)-1 {
			continue
		}
		if l.out.lines > 0 {
			written, failed, err := l.out.write()
			l.tell(err)
			for range written {
				l.count("written")
			}
			for range failed {
				l.count("failed")
			}
		}
		l.release(batch[from : i+1])
		from = i + 1
	}
}

func (l *lineLog) release(records []*Record) {
	size := 0
	for _, r := range records {
		size += r.size()
	}
	clear(records)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= size
}

// keptUp looks, after a batch, at what came meanwhile. As long as records come
// faster than they are written it is about what may wait, so that half of it, and
// not the first record that is taken again, tells that the log keeps up.
func (l *lineLog) keptUp() {
	l.mu.Lock()
	turned := l.behind && len(l.waiting) <= maxWaiting/2 && l.held <= maxHeld/2
	if turned {
		l.behind = false
	}
	l.mu.Unlock()
	if turned {
		signal(l.turned)
	}
}

// report tells fellBehind, until the last line is written. What turned more than
// once while it was telling is told as far as it is news: that records were
// dropped always is.
func (l *lineLog) report() {
	defer close(l.ended)
	told := false
	for ending := false; !ending; {
		select {
		case <-l.turned:
		case <-l.written:
			ending = true
		}
		l.mu.Lock()
		behind, dropped := l.behind, l.dropped
		l.dropped = false
		l.mu.Unlock()
		if dropped && !told {
			told = true
			l.fellBehind(true)
		}
		if told && !behind {
			told = false
			l.fellBehind(false)
		}
	}
}
