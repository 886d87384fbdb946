package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// tearing is a log that takes so many more bytes and then fails, once for each
// entry of rooms, and takes everything after.
type tearing struct {
	buf   bytes.Buffer
	rooms []int
}

var errNoSpace = errors.New("no space left on device")

func (d *tearing) Write(p []byte) (int, error) {
	if len(d.rooms) == 0 || d.rooms[0] > len(p) {
		return d.buf.Write(p)
	}
	n, _ := d.buf.Write(p[:d.rooms[0]])
	d.rooms = d.rooms[1:]
	return n, errNoSpace
}

// three are records whose lines take 11 bytes each, 33 together.
func three(t *testing.T, names string) []*Record {
	t.Helper()
	var batch []*Record
	for _, name := range names {
		batch = append(batch, &Record{text: []byte(`{"id":"` + string(name) + `"}`)})
	}
	if len(batch) != 3 || len(batch[0].text) != 10 {
		t.Fatalf("%d records of %d bytes", len(batch), len(batch[0].text))
	}
	return batch
}

// readable returns the ids in a log, in their order, with a "!" for each line that
// is not JSON.
func readable(log []byte) string {
	var names strings.Builder
	for line := range bytes.SplitSeq(bytes.TrimSuffix(log, []byte("\n")), []byte("\n")) {
		var d struct{ ID string }
		if json.Unmarshal(line, &d) != nil {
			d.ID = "!"
		}
		names.WriteString(d.ID)
	}
	return names.String()
}

func TestAWriteThatFailsAfterAnyByteBreaksOneLineAtMost(t *testing.T) {
	for k := range 34 {
		// The last byte of a line is its newline, which the next write makes up for.
		want := map[bool]string{true: "!"}[k%11 > 0 && k%11 < 10] + "def"
		whole := 0
		switch {
		case k >= 32:
			whole, want = 3, "abc"+want
		case k >= 21:
			whole, want = 2, "ab"+want
		case k >= 10:
			whole, want = 1, "a"+want
		}
		d := &tearing{rooms: []int{k}}
		var c tally
		var told []error
		l := &lineLog{out: lineWriter{w: d}, count: c.count, changed: func(err error) { told = append(told, err) }}
		l.write(three(t, "abc"))
		if got := c.of("written"); got != whole || c.of("failed") != 3-whole {
			t.Errorf("after %d bytes: %d written, %d failed, want %d and %d", k, got, c.of("failed"), whole, 3-whole)
		}
		l.write(three(t, "def"))
		if got := readable(d.buf.Bytes()); got != want {
			t.Errorf("after %d bytes the log reads %q, want %q:\n%s", k, got, want, d.buf.Bytes())
		}
		if got := c.of("written"); got != whole+3 || c.of("failed") != 3-whole {
			t.Errorf("after %d bytes and a batch: %d written, %d failed, want %d and %d", k, got, c.of("failed"), whole+3, 3-whole)
		}
		if len(told) != 2 || !errors.Is(told[0], errNoSpace) || told[1] != nil {
			t.Errorf("after %d bytes: told %v, want the error and its end", k, told)
		}
	}
}

// The second failure may fall on the newline that ends the first torn line.
func TestAsManyRecordsCanBeReadAsWereCountedHoweverTwoWritesFail(t *testing.T) {
	for first := range 34 {
		for second := range 35 {
			d := &tearing{rooms: []int{first, second}}
			var c tally
			l := &lineLog{out: lineWriter{w: d}, count: c.count, changed: func(error) {}}
			for _, names := range []string{"abc", "def", "ghi"} {
				l.write(three(t, names))
			}
			got := readable(d.buf.Bytes())
			good := len(got) - strings.Count(got, "!")
			if good != c.of("written") || good+c.of("failed") != 9 || !strings.HasSuffix(got, "ghi") {
				t.Fatalf("fails after %d, then %d bytes: %d written, %d failed, the log reads %q", first, second, c.of("written"), c.of("failed"), got)
			}
			if broken := strings.Count(got, "!"); broken > 2 || bytes.Contains(d.buf.Bytes(), []byte("\n\n")) {
				t.Fatalf("fails after %d, then %d bytes: the log reads %q, of\n%s", first, second, got, d.buf.Bytes())
			}
		}
	}
}

// short is a log that takes a few bytes at a time and does not say why.
type short struct{ bytes.Buffer }

func (s *short) Write(p []byte) (int, error) { return s.Buffer.Write(p[:min(3, len(p))]) }

func TestAShortWriteIsFinished(t *testing.T) {
	var s short
	var c tally
	l := &lineLog{out: lineWriter{w: &s}, count: c.count, changed: func(err error) { t.Errorf("told %v", err) }}
	l.write(three(t, "abc"))
	if got := s.String(); got != "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"c\"}\n" || c.of("written") != 3 {
		t.Errorf("%d written, the log is\n%s", c.of("written"), got)
	}
}

// lying is a log that says of each write that it took n bytes.
type lying int

func (n lying) Write([]byte) (int, error) { return int(n), nil }

func TestALogThatSaysNonsenseIsNeitherTrustedNorWaitedFor(t *testing.T) {
	for _, tt := range []struct {
		took    int
		written int
		err     error
	}{
		{took: 0, written: 0, err: io.ErrShortWrite},
		{took: -5, written: 0, err: io.ErrShortWrite},
		{took: 1000, written: 3, err: nil},
	} {
		l := &lineWriter{w: lying(tt.took)}
		for _, r := range three(t, "abc") {
			l.add(r)
		}
		written, failed, err := l.write()
		if written != tt.written || failed != 3-tt.written || !errors.Is(err, tt.err) {
			t.Errorf("it took %d bytes: %d written, %d failed, %v; want %d written, %v", tt.took, written, failed, err, tt.written, tt.err)
		}
	}
}

func TestATornLineIsEndedWithTheLog(t *testing.T) {
	for _, tt := range []struct {
		room int
		want string
	}{
		{0, ""},
		{4, "{\"id\n"},
		{10, "{\"id\":\"a\"}\n"},
		{11, "{\"id\":\"a\"}\n"},
	} {
		d := &tearing{rooms: []int{tt.room}}
		l := New(0, d, func(string) {})
		l.log.put(&Record{text: []byte(`{"id":"a"}`)})
		if !l.Flush(time.Minute) {
			t.Fatal("not flushed")
		}
		if got := d.buf.String(); got != tt.want {
			t.Errorf("room for %d bytes: the log is %q, want %q", tt.room, got, tt.want)
		}
	}
}

// A log that fails without a byte, after a torn line, is torn still.
func TestALogStaysTornUntilItTakesANewline(t *testing.T) {
	d := &tearing{rooms: []int{4, 0, 0}}
	l := &lineWriter{w: d}
	for range 4 {
		l.add(&Record{text: []byte(`{"id":"a"}`)})
		_, _, _ = l.write()
	}
	if got, want := d.buf.String(), "{\"id\n{\"id\":\"a\"}\n"; got != want {
		t.Errorf("the log is %q, want %q", got, want)
	}
}
