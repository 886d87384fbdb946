package demo

import (
	"strings"
	"testing"
)

func TestATerminalRedrawsTheTableBelowTheLines(t *testing.T) {
	var out strings.Builder
	s := &screen{w: &out, width: func() int { return 8 }}
	s.say("hello")
	s.show("a b\n1 2\n")
	s.show("a b\n3 too wide\n")
	s.say("event")
	s.keep()
	s.say("end")
	const up2 = "\x1b[2A\x1b[J"
	want := "hello\n" +
		"a b\n1 2\n" +
		up2 + "a b\n3 too w\n" +
		up2 + "event\na b\n3 too w\n" +
		"end\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestPlainTextKeepsEveryTable(t *testing.T) {
	var out strings.Builder
	s := &screen{w: &out}
	s.say("hello")
	s.show("a b\n1 2\n")
	s.say("event")
	s.show("a b\n3 4\n")
	s.keep()
	s.say("end")
	if want := "hello\na b\n1 2\nevent\na b\n3 4\nend\n"; out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}
