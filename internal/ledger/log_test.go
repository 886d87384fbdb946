package ledger

import (
	"bytes"
	"errors"
	"runtime"
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

// valve is a log whose writes wait while it is shut.
type valve struct {
	mu   sync.Mutex
	turn sync.Cond
	shut bool
	// entered gets a value for each write that finds it shut.
	entered chan struct{}
	bytes   int
}

func newValve() *valve {
	v := &valve{shut: true, entered: make(chan struct{}, 1)}
	v.turn.L = &v.mu
	return v
}

func (v *valve) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shut {
		v.entered <- struct{}{}
	}
	for v.shut {
		v.turn.Wait()
	}
	v.bytes += len(p)
	return len(p), nil
}

func (v *valve) set(shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = shut
	v.turn.Broadcast()
}

// holds returns the size of the records that the log holds, and their number but
// for those that are being written.
func (l *lineLog) holds() (size, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held, len(l.waiting)
}

// await returns what is told next.
func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	var v T
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing was told within a minute")
	}
	return v
}

// ofSize returns a record of this size. Nothing changes a record that is written,
// so that a test may write one many times.
func ofSize(size int) *Record { return &Record{text: make([]byte, size-recordBytes)} }

func TestALogThatNobodyReadsHoldsABoundedSize(t *testing.T) {
	v := newValve()
	var c tally
	l := New(0, v, c.count)
	told := make(chan bool, 100)
	l.OnLogBehind(func(behind bool) { told <- behind })
	large := ofSize(1 << 20)
	const fit, over = 64, 5 // 64 MiB
	for round := 1; round <= 2; round++ {
		v.set(true)
		l.log.put(large)
		await(t, v.entered)
		// One is being written. It counts, since it is in memory.
		for range fit - 1 + over {
			l.log.put(large)
		}
		if size, waiting := l.log.holds(); size != 64<<20 || waiting != fit-1 {
			t.Errorf("round %d: %d bytes are held, %d records wait, want %d and %d", round, size, waiting, 64<<20, fit-1)
		}
		if got := c.of("dropped"); got != round*over {
			t.Errorf("round %d: %d records were dropped, want %d", round, got, round*over)
		}
		if !await(t, told) {
			t.Errorf("round %d: told that the log keeps up, want that it does not", round)
		}
		v.set(false)
		if await(t, told) {
			t.Errorf("round %d: told again that the log does not keep up", round)
		}
		if size, waiting := l.log.holds(); size != 0 || waiting != 0 {
			t.Errorf("round %d: %d bytes are held, %d records wait, want none", round, size, waiting)
		}
	}
	if !l.Flush(time.Minute) {
		t.Fatal("not flushed")
	}
	if len(told) > 0 {
		t.Errorf("told %t as well", <-told)
	}
	// A line is its text and the newline.
	if got, want := c.of("written"), 2*fit; got != want || v.bytes != want*(len(large.text)+1) {
		t.Errorf("%d records in %d bytes were written, want %d", got, v.bytes, want)
	}
}

func TestARecordThatIsLargerThanTheBoundIsTakenAlone(t *testing.T) {
	v := newValve()
	var c tally
	l := New(0, v, c.count)
	l.log.put(ofSize(maxHeld + 1))
	await(t, v.entered)
	l.log.put(ofSize(1 << 10))
	if size, waiting := l.log.holds(); size != maxHeld+1 || waiting != 0 || c.of("dropped") != 1 {
		t.Errorf("%d bytes are held, %d records wait, %d were dropped; want the large one held and the other dropped", size, waiting, c.of("dropped"))
	}
	v.set(false)
	l.Flush(time.Minute)
	if size, _ := l.log.holds(); size != 0 || c.of("written") != 1 {
		t.Errorf("%d bytes are held, %d records were written, want 0 and 1", size, c.of("written"))
	}
}

func TestWhatCouldNotBeWrittenIsNotHeld(t *testing.T) {
	for name, batch := range map[string][]*Record{
		"a log that fails":             {ofSize(1000), ofSize(maxWrite), ofSize(1000)},
		"a record that is no JSON":     {{err: errors.New("no number")}},
		"such a record last":           {ofSize(1000), {err: errors.New("no number")}},
		"such a record after the text": {ofSize(2 * maxWrite), {err: errors.New("no number")}},
	} {
		var c tally
		l := New(0, broken{}, c.count)
		for _, r := range batch {
			l.log.put(r)
		}
		l.Flush(time.Minute)
		if size, _ := l.log.holds(); size != 0 || c.of("failed") != len(batch) {
			t.Errorf("%s: %d bytes are held, %d records failed, want 0 and %d", name, size, c.of("failed"), len(batch))
		}
	}
}

// flooded is a log that gets more records while it is written, and so never keeps
// up as long as it lasts.
type flooded struct {
	log    *lineLog
	record *Record
	writes int
}

func (f *flooded) Write(p []byte) (int, error) {
	if f.writes > 0 {
		f.writes--
		f.log.put(f.record)
		f.log.put(f.record)
	}
	return len(p), nil
}

func TestALogThatIsTooSlowAllTheTimeIsToldOfOnce(t *testing.T) {
	var c tally
	// 16 of these fill what may be held.
	f := &flooded{record: ofSize(4 << 20), writes: 100}
	l := New(0, f, c.count)
	f.log = l.log
	told := make(chan bool, 100)
	l.OnLogBehind(func(behind bool) { told <- behind })
	l.log.put(f.record)
	if first, second := await(t, told), await(t, told); !first || second {
		t.Errorf("told %t, then %t, want that it is behind, then that it is not", first, second)
	}
	if !l.Flush(time.Minute) {
		t.Fatal("not flushed")
	}
	if len(told) > 0 {
		t.Errorf("told %d times more", len(told))
	}
	if written, dropped := c.of("written"), c.of("dropped"); written+dropped != 201 || dropped < 50 {
		t.Errorf("%d written, %d dropped, want 201 together, and a good part dropped", written, dropped)
	}
}

// Who is told may be slow: a request that ends meanwhile does not wait, and what
// it is told is still the truth, in order.
func TestNobodyWaitsForWhoIsToldThatTheLogIsBehind(t *testing.T) {
	v := newValve()
	l := New(0, v, func(string) {})
	told, goOn := make(chan bool), make(chan struct{})
	l.OnLogBehind(func(behind bool) {
		told <- behind
		<-goOn
	})
	large := ofSize(maxHeld/2 + 1) // two are too many
	l.log.put(large)
	await(t, v.entered)
	l.log.put(large)
	if !await(t, told) {
		t.Error("told that the log keeps up")
	}
	// It catches up and falls behind again, while the first message is told.
	v.set(false)
	for size := 1; size > 0; size, _ = l.log.holds() {
		runtime.Gosched()
	}
	l.log.put(large)
	l.log.put(large)
	if l.Flush(time.Millisecond) {
		t.Error("the log has ended before who is told has")
	}
	close(goOn)
	if await(t, told) {
		t.Error("told twice that the log is behind")
	}
	await(t, l.log.ended)
}
