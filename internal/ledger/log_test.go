package ledger

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"
)

// hanging is a log that takes nothing until it is let go.
type hanging struct{ leave chan struct{} }

func (h hanging) Write(p []byte) (int, error) {
	<-h.leave
	return len(p), nil
}

func TestALogThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	h := hanging{make(chan struct{})}
	l := New(1, h, func(string) {})
	l.Close(record("a", 0))
	if l.Flush(time.Millisecond) {
		t.Error("a log that hangs was flushed")
	}
	close(h.leave)
}

// fickle fails while it is told to.
type fickle struct {
	mu      sync.Mutex
	failing bool
	buf     bytes.Buffer
	writes  chan struct{}
}

func (f *fickle) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.writes <- struct{}{} }()
	if f.failing {
		return 0, errors.New("disk full")
	}
	return f.buf.Write(p)
}

func (f *fickle) fail(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = yes
}

func TestErrorsOfTheLogAreToldOncePerChange(t *testing.T) {
	f := &fickle{writes: make(chan struct{})}
	l := New(10, f, func(string) {})
	var told []error
	l.OnLogError(func(err error) { told = append(told, err) })
	for _, failing := range []bool{false, true, true, false, false} {
		f.fail(failing)
		l.Close(record("a", 0))
		<-f.writes
	}
	if !l.Flush(time.Minute) {
		t.Fatal("not flushed")
	}
	if len(told) != 2 || told[0] == nil || told[1] != nil {
		t.Errorf("told %v, want the first error and the first success after it", told)
	}
}
