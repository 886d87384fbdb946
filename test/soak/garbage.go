package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/test/finding"
)

// rubbish is one kind of bytes that are no conversation.
type rubbish struct {
	name  string
	bytes func(random *rand.Rand) []byte
}

func rubbishes() []rubbish {
	fixed := func(parts ...[]byte) func(*rand.Rand) []byte {
		all := slices.Concat(parts...)
		return func(*rand.Rand) []byte { return all }
	}
	noise := func(n int) func(*rand.Rand) []byte {
		return func(random *rand.Rand) []byte {
			b := make([]byte, 1+random.IntN(n))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			return b
		}
	}
	after := func(before []byte, then func(*rand.Rand) []byte) func(*rand.Rand) []byte {
		return func(random *rand.Rand) []byte { return slices.Concat(before, then(random)) }
	}
	message := func(compressed byte, length uint32, payload []byte, flags byte) []byte {
		return slices.Concat(opening(), processHeaders(1), frame(dataFrame, flags, 1, grpcMessage(compressed, length, payload)))
	}
	some := []byte("not a message, and shorter than was said")
	stream := slices.Concat(opening(), processHeaders(1))
	return []rubbish{
		{"nothing", fixed()},
		{"random bytes", noise(4096)},
		{"random bytes for HTTP/2 frames", after(opening(), noise(4096))},
		{"random bytes for header fields", func(random *rand.Rand) []byte {
			return slices.Concat(opening(), frame(headersFrame, endHeaders, 1, noise(512)(random)))
		}},
		{"random bytes for a message", func(random *rand.Rand) []byte {
			b := noise(512)(random)
			return slices.Concat(stream, frame(dataFrame, 0, 1, grpcMessage(0, uint32(len(b)), b)))
		}},
		{"half a preface", fixed([]byte(preface[:11]))},
		{"an HTTP/1 request", fixed([]byte("GET /metrics HTTP/1.1\r\nHost: picker\r\n\r\n"))},
		{"an HTTP/1 request for HTTP/2", fixed([]byte("GET / HTTP/1.1\r\nHost: picker\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"))},
		{"an HTTP/1 upload", fixed([]byte("POST /v1/chat/completions HTTP/1.1\r\nHost: picker\r\nContent-Length: 9999999999\r\n\r\n"), bytes.Repeat([]byte("x"), 1<<16))},
		{"a TLS hello", fixed(clientHello())},
		{"a message of 0xFFFFFFFF bytes", fixed(message(0, 0xFFFFFFFF, some, 0))},
		{"a message of 0xFFFFFFFF bytes that ends", fixed(message(0, 0xFFFFFFFF, some, endStream))},
		{"a message of 0x7FFFFFFF bytes", fixed(message(0, 0x7FFFFFFF, some, 0))},
		{"a message that is cut off", fixed(message(0, 4096, some, 0))},
		{"a message that is cut off and ends", fixed(message(0, 4096, some, endStream))},
		{"a message of which only a part of the length comes", fixed(stream, frame(dataFrame, endStream, 1, []byte{0, 0}))},
		{"a compressed message without an encoding", fixed(message(1, uint32(len(some)), some, 0))},
		{"a frame that is longer than allowed", fixed(opening(), []byte{0xFF, 0xFF, 0xFF, dataFrame, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{0}, 1<<16))},
		{"a frame that is cut off", fixed(opening(), processHeaders(1)[:20])},
		{"data for a stream that is not open", fixed(opening(), frame(dataFrame, 0, 7, some))},
		{"a method that is not there", fixed(opening(), frame(headersFrame, endHeaders|endStream, 1, literals(
			":method", "POST", ":scheme", "http", ":path", "/no.Service/Method", "content-type", "application/grpc", "te", "trailers")))},
		{"headers without an end", fixed(opening(), frame(headersFrame, 0, 1, literals("a", "b")),
			bytes.Repeat(frame(continuationFrame, 0, 1, literals("name", "value")), 5000))},
		{"streams that are reset at once", func(*rand.Rand) []byte {
			b := opening()
			for i := range uint32(1000) {
				b = append(b, processHeaders(2*i+1)...)
				b = append(b, frame(resetFrame, 0, 2*i+1, []byte{0, 0, 0, 8})...)
			}
			return b
		}},
		{"pings without an end", fixed(opening(), bytes.Repeat(frame(pingFrame, 0, 0, make([]byte, 8)), 5000))},
		{"settings without an end", fixed(opening(), bytes.Repeat(frame(settingsFrame, 0, 0, []byte{0, 4, 0, 0, 255, 255}), 5000))},
		{"a window that overflows", fixed(stream, bytes.Repeat(frame(windowFrame, 0, 1, []byte{0x7F, 0xFF, 0xFF, 0xFF}), 3))},
		{"a window update of nothing", fixed(stream, frame(windowFrame, 0, 0, []byte{0, 0, 0, 0}))},
	}
}

// clientHello is what a TLS client says first.
func clientHello() []byte {
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		// It fails when nobody answers.
		_ = tls.Client(client, &tls.Config{ServerName: "picker", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}).Handshake()
	}()
	hello := make([]byte, 4096)
	n, _ := server.Read(hello)
	return hello[:n]
}

// checkGarbage brings all of it while a gateway has whole conversations. It does
// so twice, as checkStreams does.
func checkGarbage(s *session, p *picker) error {
	if _, err := s.warmUp(p); err != nil {
		return err
	}
	if err := s.bringGarbage(p, func(finding.Finding) {}); err != nil {
		return err
	}
	base, err := s.rest(p)
	if err != nil {
		return err
	}
	if err := s.bringGarbage(p, s.report); err != nil {
		return err
	}
	return s.compare("garbage", p, base, 8)
}

func (s *session) bringGarbage(p *picker, report func(finding.Finding)) error {
	g, err := dial(p.address)
	if err != nil {
		return err
	}
	defer g.close()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var served atomic.Int64
	traffic, trafficCtx := errgroup.WithContext(s.ctx)
	traffic.Go(func() error {
		t := usual(modes[0])
		steps := t.steps()
		for ctx.Err() == nil {
			if err := passOne(trafficCtx, g, t, steps); err != nil {
				return err
			}
			served.Add(1)
		}
		return nil
	})
	kinds := rubbishes()
	for seed, kind := range kinds {
		before := served.Load()
		if err := s.litter(p, kind, uint64(seed)); err != nil {
			return err
		}
		// The picker must go on after each kind, not only after the last.
		if err := s.await("a gateway is served beside "+kind.name, func() (bool, error) {
			return served.Load() > before+1 || trafficCtx.Err() != nil, nil
		}); err != nil {
			return err
		}
		s.logf("  %s: %d conversations meanwhile", kind.name, served.Load()-before)
	}
	cancel()
	lost := 0.0
	about := fmt.Sprintf("of %d conversations beside %d connections with %d kinds of garbage", served.Load(), s.size.garbage*len(kinds), len(kinds))
	if err := traffic.Wait(); err != nil {
		lost, about = 1, "the first that did not get its answers: "+err.Error()
	}
	report(finding.Finding{Name: "garbage/lost", Value: lost, Limit: finding.Exactly(0), About: about})
	return nil
}

// litter brings one kind of garbage on many connections, and leaves in three
// ways: by waiting for the picker to close, by a reset, and by closing.
func (s *session) litter(p *picker, kind rubbish, seed uint64) error {
	return inParallel(s.ctx, s.size.garbage, 16, func(_ context.Context, i int) error {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		conn, err := writeRaw(p.address, kind.bytes(random))
		if err != nil {
			return fmt.Errorf("%s: connection %d: %w", kind.name, i, err)
		}
		defer conn.Close()
		switch i % 3 {
		case 0:
			if conn.CloseWrite() == nil {
				_, _ = io.Copy(io.Discard, conn)
			}
		case 1:
			_ = conn.SetLinger(0)
		}
		return nil
	})
}
