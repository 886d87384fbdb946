package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func record(id string, candidates int) *v1alpha1.Decision {
	return &v1alpha1.Decision{ID: id, Candidates: make([]v1alpha1.Candidate, candidates)}
}

func ids(records []*v1alpha1.Decision) string {
	names := make([]string, len(records))
	for i, d := range records {
		names[i] = d.ID
	}
	return strings.Join(names, " ")
}

// tally counts results.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) count(result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[result]++
}

func (c *tally) of(result string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[result]
}

func TestTheRingKeepsTheNewestRecords(t *testing.T) {
	l := New(3, nil, func(string) {})
	if got := ids(l.Newest(10)); got != "" {
		t.Errorf("an empty ring has %q", got)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		l.Open(record(id, 0))
	}
	for n, want := range map[int]string{0: "", 1: "e", 2: "e d", 3: "e d c", 100: "e d c"} {
		if got := ids(l.Newest(n)); got != want {
			t.Errorf("newest %d: %q, want %q", n, got, want)
		}
	}
	for id, want := range map[string]bool{"a": false, "b": false, "c": true, "e": true, "": false} {
		if _, ok := l.Find(id); ok != want {
			t.Errorf("record %q found: %t, want %t", id, ok, want)
		}
	}
}

// complete ends a record.
func complete(l *Ledger, r *Record) {
	l.End(r, &v1alpha1.Acknowledgement{Acted: "confirmed"}, &v1alpha1.Outcome{Cause: "complete"})
}

func TestAnEndedRecordTakesTheRunningOnesPlace(t *testing.T) {
	l := New(3, nil, func(string) {})
	a := l.Open(record("a", 0))
	l.Open(record("b", 0))
	if d, _ := l.Find("a"); d.Outcome != nil || d.Acknowledgement.Acted != "" {
		t.Errorf("the running record says %+v", d)
	}
	complete(l, a)
	if got := ids(l.Newest(10)); got != "b a" {
		t.Errorf("newest: %q, want %q: a record keeps its place", got, "b a")
	}
	for id, ended := range map[string]bool{"a": true, "b": false} {
		d, _ := l.Find(id)
		if got := d.Outcome != nil && d.Outcome.Cause == "complete" && d.Acknowledgement.Acted == "confirmed"; got != ended {
			t.Errorf("%s has ended: %t, want %t", id, got, ended)
		}
	}
}

func TestARecordThatWasPushedOutComesBackWhenItEnds(t *testing.T) {
	l := New(3, nil, func(string) {})
	a := l.Open(record("a", 0))
	for _, id := range []string{"b", "c", "d", "e"} {
		l.Open(record(id, 0))
	}
	complete(l, a)
	if got := ids(l.Newest(10)); got != "a e d" {
		t.Errorf("newest: %q, want %q", got, "a e d")
	}
	if d, _ := l.Find("a"); d.Outcome == nil {
		t.Error("it came back without its end")
	}
}

func TestARecordWithTheSameIDReplacesTheOlder(t *testing.T) {
	l := New(3, nil, func(string) {})
	l.Open(record("a", 9))
	l.Open(record("b", 0))
	l.Open(record("a", 2))
	if got := ids(l.Newest(10)); got != "b a" {
		t.Errorf("newest: %q, want %q", got, "b a")
	}
	if d, _ := l.Find("a"); len(d.Candidates) != 2 {
		t.Errorf("%d candidates, want 2: those of the newer", len(d.Candidates))
	}
}

func TestWhatIsReadIsTheReadersOwn(t *testing.T) {
	l := New(3, nil, func(string) {})
	doc := record("a", 1)
	doc.Candidates[0].Replica = "r1"
	l.Open(doc)
	doc.Candidates[0].Replica = "another request's"
	first, _ := l.Find("a")
	if first.Candidates[0].Replica != "r1" {
		t.Errorf("the record follows the document that it was made of: %q", first.Candidates[0].Replica)
	}
	first.Candidates[0].Replica = "changed"
	if second, _ := l.Find("a"); second.Candidates[0].Replica != "r1" {
		t.Errorf("the record follows what a reader does: %q", second.Candidates[0].Replica)
	}
}

func TestTheRingIsBoundedByMemoryToo(t *testing.T) {
	l := New(1000, nil, func(string) {})
	const candidates = 20000
	fits := ringBytes / newRecord(record("12", candidates), new([]byte)).size()
	if fits < 2 || fits > 90 {
		t.Fatalf("%d records fit; the test wants a few", fits)
	}
	// All ids have two digits, so that all records are as long.
	for i := range fits + 3 {
		l.Open(record(fmt.Sprint(10+i), candidates))
	}
	if got := len(l.byID); got != fits {
		t.Errorf("%d records are kept, %d fit", got, fits)
	}
	if l.byID[fmt.Sprint(10+fits+2)] == nil {
		t.Error("the newest record was pushed out")
	}
	// One that does not fit at all is kept alone, so that it can be looked at.
	huge := record("huge", 0)
	huge.Pick = strings.Repeat("x", ringBytes)
	l.Open(huge)
	if len(l.byID) != 1 || l.byID["huge"] == nil {
		t.Errorf("%d records are kept, want the newest alone", len(l.byID))
	}
}

func TestARecordThatCannotBeWrittenIsCountedAndNotKept(t *testing.T) {
	var out bytes.Buffer
	var c tally
	l := New(10, &out, c.count)
	var told []error
	l.OnLogError(func(err error) { told = append(told, err) })
	bad := record("bad", 1)
	bad.Candidates[0].Total = math.NaN()
	l.Close(bad)
	l.Flush(time.Minute)
	if _, ok := l.Find("bad"); ok || out.Len() > 0 || c.of("failed") != 1 || len(told) != 1 {
		t.Errorf("kept %t, written %q, failed %d, told %v; want it counted and told of alone", ok, &out, c.of("failed"), told)
	}
}

func TestARingOfZeroKeepsNothingAndStillWrites(t *testing.T) {
	var out bytes.Buffer
	var c tally
	l := New(0, &out, c.count)
	l.Open(record("a", 0))
	l.Close(record("a", 0))
	l.Flush(time.Minute)
	if got := ids(l.Newest(10)); got != "" || c.of("written") != 1 || !strings.Contains(out.String(), `"id":"a"`) {
		t.Errorf("kept %q, written %d, out %s", got, c.of("written"), &out)
	}
}

func TestOnlyEndedRecordsAreWrittenOnePerLine(t *testing.T) {
	var out bytes.Buffer
	var c tally
	l := New(2, &out, c.count)
	const n = 1000 // fewer than may wait, so that none is dropped
	for i := range n {
		l.Open(record("open", 0))
		d := record(fmt.Sprint(i), 0)
		d.Pick = "line\nbreak"
		l.Close(d)
	}
	l.Flush(time.Minute)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != n || c.of("written") != n {
		t.Fatalf("%d lines, %d counted, want %d", len(lines), c.of("written"), n)
	}
	for i, line := range lines {
		var d v1alpha1.Decision
		if err := json.Unmarshal([]byte(line), &d); err != nil || d.ID != fmt.Sprint(i) {
			t.Fatalf("line %d: id %q, %v", i, d.ID, err)
		}
	}
}

// blocked is a log that nobody reads until it is let go.
type blocked struct {
	entered chan struct{}
	leave   chan struct{}
	once    sync.Once
	mu      sync.Mutex
	lines   int
}

func (b *blocked) Write(p []byte) (int, error) {
	b.once.Do(func() { close(b.entered) })
	<-b.leave
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

func TestALogThatFallsBehindLosesRecordsAndNoTime(t *testing.T) {
	w := &blocked{entered: make(chan struct{}), leave: make(chan struct{})}
	var c tally
	l := New(10, w, c.count)
	l.Close(record("first", 0))
	<-w.entered
	const over = 7
	for i := range maxWaiting + over {
		l.Close(record(fmt.Sprint(i), 0)) // would hang here
	}
	if got := c.of("dropped"); got != over {
		t.Errorf("%d records were dropped, want %d", got, over)
	}
	if _, ok := l.Find(fmt.Sprint(maxWaiting + over - 1)); !ok {
		t.Error("a record that was not written is not in the ring either")
	}
	close(w.leave)
	l.Flush(time.Minute)
	if got := c.of("written"); got != maxWaiting+1 || w.lines != got {
		t.Errorf("%d records were written, %d lines, want %d", got, w.lines, maxWaiting+1)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestALogThatFailsIsCountedAndGoesOn(t *testing.T) {
	var c tally
	l := New(10, broken{}, c.count)
	l.Close(record("a", 0))
	l.Close(record("b", 0))
	l.Flush(time.Minute)
	if c.of("failed") != 2 || c.of("written") != 0 {
		t.Errorf("failed %d, written %d, want 2 and 0", c.of("failed"), c.of("written"))
	}
}

func TestWithoutALogFlushReturns(t *testing.T) {
	l := New(10, nil, func(result string) { t.Errorf("%s was counted without a log", result) })
	l.Close(record("a", 0))
	l.Flush(time.Minute)
}

// The ring against a plain list that does the same.
func TestTheRingIsAListOfTheNewest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(rt, "limit")
		l := New(limit, nil, func(string) {})
		var list []string
		running := map[string]*Record{}
		for range rapid.IntRange(0, 300).Draw(rt, "steps") {
			id := fmt.Sprint(rapid.IntRange(0, 8).Draw(rt, "id"))
			if !slices.Contains(list, id) {
				list = append(list, id)
			}
			if len(list) > limit {
				list = list[1:]
			}
			if r := running[id]; r != nil && rapid.Bool().Draw(rt, "ends") {
				complete(l, r)
				delete(running, id)
			} else {
				running[id] = l.Open(record(id, rapid.IntRange(0, 2).Draw(rt, "candidates")))
			}
		}
		newest := slices.Clone(list)
		slices.Reverse(newest)
		if got, want := ids(l.Newest(100)), strings.Join(newest, " "); got != want {
			rt.Fatalf("newest: %q, want %q", got, want)
		}
		taken := 0
		for _, id := range list {
			taken += l.byID[id].size()
		}
		if l.bytes != taken {
			rt.Fatalf("%d bytes are counted for %d records that take %d", l.bytes, len(list), taken)
		}
		if len(l.order) > 4*limit+256 {
			rt.Fatalf("the order holds %d ids for %d records", len(l.order), len(list))
		}
	})
}

func TestManyMayUseALedgerAtOnce(t *testing.T) {
	var c tally
	l := New(50, &bytes.Buffer{}, c.count)
	var all sync.WaitGroup
	for g := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 200 {
				id := fmt.Sprintf("%d-%d", g, i)
				r := l.Open(record(id, 1))
				l.Newest(10)
				l.Find(id)
				complete(l, r)
			}
		}()
	}
	all.Wait()
	l.Flush(time.Minute)
	if got := c.of("written") + c.of("dropped"); got != 1600 {
		t.Errorf("%d records were written or dropped, want 1600", got)
	}
	if got := len(l.Newest(100)); got != 50 {
		t.Errorf("%d records are kept, want 50", got)
	}
}

func TestTheRingFollowsItsLimit(t *testing.T) {
	l := New(5, nil, func(string) {})
	for _, id := range []string{"a", "b", "c", "d"} {
		l.Open(record(id, 0))
	}
	for _, step := range []struct {
		limit int
		add   string
		want  string
	}{
		{2, "e", "e d"},
		{3, "f", "f e d"},
		{0, "g", ""},
		{1, "h", "h"},
	} {
		l.SetLimit(step.limit)
		l.Open(record(step.add, 0))
		if got := ids(l.Newest(10)); got != step.want {
			t.Errorf("limit %d: newest are %q, want %q", step.limit, got, step.want)
		}
	}
}
