package testevent_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berth-dev/berth/hack/testevent"
)

func TestEveryLineBecomesOneEventInOrder(t *testing.T) {
	const in = `{"Time":"2026-01-02T03:04:05Z","Action":"run","Package":"p","Test":"TestA/b"}
goroutine 7 [running]:
{"Action":"output","Package":"p","Output":"ok  \tp\t0.2s\n"}
{"unrelated":"object"}
{"Action":"fail","Package":"q","Elapsed":0.25,"FailedBuild":"q [q.test]"}
{"Action":"pass"` // cut off, no newline
	want := []testevent.Event{
		{Action: testevent.Run, Package: "p", Test: "TestA/b"},
		{Output: "goroutine 7 [running]:\n"},
		{Action: testevent.Output, Package: "p", Output: "ok  \tp\t0.2s\n"},
		{Output: `{"unrelated":"object"}` + "\n"},
		{Action: testevent.Fail, Package: "q", Elapsed: 0.25, FailedBuild: "q [q.test]"},
		{Output: `{"Action":"pass"`},
	}
	var got []testevent.Event
	if err := testevent.Read(strings.NewReader(in), func(e testevent.Event) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAReadErrorIsReported(t *testing.T) {
	cause := errors.New("disk gone")
	if err := testevent.Read(iotest.ErrReader(cause), func(testevent.Event) {}); !errors.Is(err, cause) {
		t.Errorf("error %v, want %v", err, cause)
	}
}
