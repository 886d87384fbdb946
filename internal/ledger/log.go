package ledger

import (
	"io"
	"sync"
	"time"
)

const (
	// maxWaiting is how many records may wait for the log; more are dropped.
	maxWaiting = 4096
	// gather is how long records gather before they are written together: waking
	// the writer and calling the system for each would cost more than the line.
	gather = 20 * time.Millisecond
)

// lineLog writes records as lines, on a goroutine of its own.
type lineLog struct {
	w     io.Writer
	count func(result string)
	// changed hears of the first error, and of the first success after one.
	changed func(error)
	failing bool
	// wake holds a value while records wait.
	wake   chan struct{}
	ending chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	waiting []*Record
}

func newLineLog(w io.Writer, count func(result string)) *lineLog {
	l := &lineLog{
		w:       w,
		count:   count,
		changed: func(error) {},
		wake:    make(chan struct{}, 1),
		ending:  make(chan struct{}),
		ended:   make(chan struct{}),
	}
	go l.run()
	return l
}

// put hands over a record. It never waits for the writer.
func (l *lineLog) put(r *Record) {
	l.mu.Lock()
	n := len(l.waiting)
	if n < maxWaiting {
		l.waiting = append(l.waiting, r)
	}
	l.mu.Unlock()
	switch {
	case n == maxWaiting:
		l.count("dropped")
	case n == 0:
		select {
		case l.wake <- struct{}{}:
		default:
		}
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

// tell hears of every line's error or success.
func (l *lineLog) tell(err error) {
	if failing := err != nil; failing != l.failing {
		l.failing = failing
		l.changed(err)
	}
}

func (l *lineLog) run() {
	defer close(l.ended)
	timer := time.NewTimer(gather)
	defer timer.Stop()
	var batch []*Record
	var text []byte
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
		text = l.write(batch, text[:0])
		clear(batch)
	}
}

// take swaps the records that wait for an empty list.
func (l *lineLog) take(empty []*Record) []*Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.waiting
	l.waiting = empty[:0]
	return batch
}

// maxWrite bounds the text that is gathered before it is written, bytes.
const maxWrite = 256 << 10

func (l *lineLog) write(batch []*Record, text []byte) []byte {
	lines := 0
	for i, r := range batch {
		if r.err != nil {
			l.count("failed")
			l.tell(r.err)
		} else {
			text = append(r.appendLine(text), '\n')
			lines++
		}
		if lines > 0 && (len(text) >= maxWrite || i == len(batch)-1) {
			result := "written"
			_, err := l.w.Write(text)
			if err != nil {
				result = "failed"
			}
			l.tell(err)
			for range lines {
				l.count(result)
			}
			text, lines = text[:0], 0
		}
	}
	return text
}
