package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// emptyServer is the least that an ext_proc server can do in full duplex mode:
// every message gets the right answer, bodies go back as they came, and nothing
// is decided, kept or counted.
type emptyServer struct {
	extprocv3.UnimplementedExternalProcessorServer
}

// playEmptyServer serves with the gRPC settings of internal/host. Its argument is
// the file that takes a CPU profile, where one is wanted.
func playEmptyServer(_ context.Context, args []string) error {
	if len(args) > 0 {
		stop, err := startProfile(args[0])
		if err != nil {
			return err
		}
		defer stop()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(33<<20),
		grpc.MaxConcurrentStreams(1<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	extprocv3.RegisterExternalProcessorServer(server, emptyServer{})
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	return server.Serve(l)
}

func (emptyServer) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &extprocv3.ProcessingResponse{}
		switch m := msg.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			answer.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_RequestBody:
			answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: echo(m.RequestBody)}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			answer.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			answer.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: echo(m.ResponseBody)}
		default:
			return fmt.Errorf("message of kind %T: not one that this server is sent", m)
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func echo(b *extprocv3.HttpBody) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
		BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b.GetBody(), EndOfStream: b.GetEndOfStream()},
		}},
	}}
}
