package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func TestFramesAreEncodedAsTheStandardSays(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want []byte
	}{
		{"a frame", frame(resetFrame, 0, 5, []byte{0, 0, 0, 8}), []byte{0, 0, 4, 3, 0, 0, 0, 0, 5, 0, 0, 0, 8}},
		{"a long frame with a flag", frame(dataFrame, endStream, 1, make([]byte, 0x0102))[:9], []byte{0, 1, 2, 0, 1, 0, 0, 0, 1}},
		{"header fields", literals("te", "trailers"), []byte("\x00\x02te\x08trailers")},
		{"a message that lies", grpcMessage(0, 0xFFFFFFFF, []byte("x")), []byte("\x00\xff\xff\xff\xffx")},
	} {
		if !bytes.Equal(tc.got, tc.want) {
			t.Errorf("%s: % x, want % x", tc.name, tc.got, tc.want)
		}
	}
}

func TestRubbishHasNamesOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rubbishes() {
		if seen[r.name] || r.name == "" {
			t.Errorf("%q comes twice, or is empty", r.name)
		}
		seen[r.name] = true
	}
}

func TestAClientHelloIsATLSRecord(t *testing.T) {
	// A handshake record (22) of any version 3.x, with a ClientHello (1) in it.
	if hello := clientHello(); len(hello) < 100 || hello[0] != 22 || hello[1] != 3 || hello[5] != 1 {
		t.Errorf("%d bytes that begin with % x", len(hello), hello[:min(len(hello), 6)])
	}
}

func TestADroppedConnectionIsResetNotClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.connect(t.Context(), l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	g.reset()
	if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the other side reads %v, want a reset", err)
	}
}
