package main

import (
	"encoding/binary"
	"net"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

// This file is as much of HTTP/2 (RFC 9113) as it takes to send what no library
// would.

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Types and flags of frames.
const (
	dataFrame         = 0x0
	headersFrame      = 0x1
	resetFrame        = 0x3
	settingsFrame     = 0x4
	pingFrame         = 0x6
	windowFrame       = 0x8
	continuationFrame = 0x9

	endStream  = 0x1
	endHeaders = 0x4
)

// frame is a frame whose length is true.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 9+len(payload)), uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// opening is how a client begins a connection.
func opening() []byte { return append([]byte(preface), frame(settingsFrame, 0, 0, nil)...) }

// processHeaders open a stream of ext_proc.
func processHeaders(stream uint32) []byte {
	return frame(headersFrame, endHeaders, stream, literals(
		":method", "POST", ":scheme", "http", ":path", extprocv3.ExternalProcessor_Process_FullMethodName,
		":authority", "picker", "content-type", "application/grpc", "te", "trailers",
	))
}

// literals encodes header fields by HPACK (RFC 7541, 6.2.2), each of less than
// 127 bytes, without an index and without Huffman's code.
func literals(pairs ...string) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, 0, byte(len(pairs[i])))
		b = append(b, pairs[i]...)
		b = append(b, byte(len(pairs[i+1])))
		b = append(b, pairs[i+1]...)
	}
	return b
}

// grpcMessage is a message that says of itself to have so many bytes.
func grpcMessage(compressed byte, length uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{compressed}, length)
	return append(b, payload...)
}

// muteRequest is a request that is decided at once, on a connection whose
// client will say nothing more.
func muteRequest(m *extprocv3.ProcessingRequest) ([]byte, error) {
	payload, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	b := append(opening(), processHeaders(1)...)
	return append(b, frame(dataFrame, 0, 1, grpcMessage(0, uint32(len(payload)), payload))...), nil
}

// writeRaw opens a connection and writes bytes to it. Whether the picker takes
// all of them is its own affair.
func writeRaw(address string, b []byte) (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_, _ = conn.Write(b)
	return conn.(*net.TCPConn), nil
}
