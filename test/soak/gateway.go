package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// gateway is one connection to a picker.
type gateway struct {
	conn *grpc.ClientConn

	mu sync.Mutex
	// socket is what the connection runs on, once it does.
	socket *net.TCPConn
}

// Windows of a connection that reads what it is sent, bytes.
const (
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
)

func dial(address string) (*gateway, error) {
	g := &gateway{}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithContextDialer(g.connect),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire{}), grpc.MaxCallRecvMsgSize(64<<20)),
	)
	if err != nil {
		return nil, err
	}
	g.conn = conn
	return g, nil
}

func (g *gateway) connect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.socket = conn.(*net.TCPConn)
	return conn, nil
}

func (g *gateway) close() { _ = g.conn.Close() }

// reset drops the connection by a TCP reset, without a word of HTTP/2.
func (g *gateway) reset() {
	g.mu.Lock()
	if g.socket != nil {
		_ = g.socket.SetLinger(0)
		_ = g.socket.Close()
	}
	g.mu.Unlock()
	g.close()
}

// dialMany opens the connections that a check shares; closeAll closes them.
func dialMany(address string) (gateways []*gateway, closeAll func(), err error) {
	closeAll = func() {
		for _, g := range gateways {
			g.close()
		}
	}
	for range connections {
		g, err := dial(address)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		gateways = append(gateways, g)
	}
	return gateways, closeAll, nil
}

// wire is gRPC's codec for protobuf, which sends bytes as they are: no library
// would encode all that a hostile client sends.
type wire struct{}

// Name implements encoding.Codec.
func (wire) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (wire) Marshal(v any) ([]byte, error) {
	switch m := v.(type) {
	case []byte:
		return m, nil
	case proto.Message:
		return proto.Marshal(m)
	default:
		return nil, fmt.Errorf("%T: neither bytes nor a message", v)
	}
}

// Unmarshal implements encoding.Codec.
func (wire) Unmarshal(data []byte, v any) error {
	m, isMessage := v.(proto.Message)
	if !isMessage {
		return fmt.Errorf("%T: not a message", v)
	}
	return proto.Unmarshal(data, m)
}

// exchange is one HTTP request on a stream of its own.
type exchange struct {
	stream grpc.ClientStream
	cancel context.CancelFunc
	// destination is where the picker said that the request goes; empty before.
	destination string
	// echoed counts the body bytes that came back.
	echoed int
}

var process = &grpc.StreamDesc{StreamName: "Process", ServerStreams: true, ClientStreams: true}

func (g *gateway) open(ctx context.Context) (*exchange, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := g.conn.NewStream(ctx, process, extprocv3.ExternalProcessor_Process_FullMethodName)
	if err != nil {
		cancel()
		return nil, err
	}
	return &exchange{stream: stream, cancel: cancel}, nil
}

// send sends a message, or its encoded bytes. A stream that the picker has ended
// is no error: what it said last is still to be taken.
func (x *exchange) send(m any) error {
	if err := x.stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// refusal is an answer of the picker's own.
type refusal struct {
	status int
	reason string
}

// Error implements error.
func (r *refusal) Error() string { return fmt.Sprintf("refused with %d %s", r.status, r.reason) }

// take takes one answer and returns its kind. A refusal is an error.
func (x *exchange) take() (kind protoreflect.Name, err error) {
	var answer extprocv3.ProcessingResponse
	if err := x.stream.RecvMsg(&answer); err != nil {
		return "", err
	}
	if im := answer.GetImmediateResponse(); im != nil {
		r := &refusal{status: int(im.GetStatus().GetCode())}
		for _, h := range im.GetHeaders().GetSetHeaders() {
			if h.GetHeader().GetKey() == "x-berth-reason" {
				r.reason = string(h.GetHeader().GetRawValue())
			}
		}
		return "immediate_response", r
	}
	mutation := answer.GetRequestHeaders().GetResponse().GetHeaderMutation()
	if mutation == nil {
		mutation = answer.GetRequestBody().GetResponse().GetHeaderMutation()
	}
	for _, h := range mutation.GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			x.destination = string(h.GetHeader().GetRawValue())
		}
	}
	for _, b := range []*extprocv3.BodyResponse{answer.GetRequestBody(), answer.GetResponseBody()} {
		x.echoed += len(b.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	m := answer.ProtoReflect()
	return m.WhichOneof(m.Descriptor().Oneofs().ByName("response")).Name(), nil
}

// takeAll takes the answers that are due, in order.
func (x *exchange) takeAll(due []protoreflect.Name) error {
	for _, want := range due {
		kind, err := x.take()
		if err != nil {
			return fmt.Errorf("in place of the answer %s: %w", want, err)
		}
		if kind != want {
			return fmt.Errorf("in place of the answer %s: %s", want, kind)
		}
	}
	return nil
}

// end says that nothing more comes, takes what is left and returns the stream's
// status.
func (x *exchange) end() (codes.Code, error) {
	defer x.cancel()
	if err := x.stream.CloseSend(); err != nil {
		return codes.OK, err
	}
	for {
		_, err := x.take()
		var r *refusal
		switch {
		case err == nil || errors.As(err, &r):
		case errors.Is(err, io.EOF):
			return codes.OK, nil
		default:
			return status.Code(err), nil
		}
	}
}
