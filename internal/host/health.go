package host

import (
	"context"
	"sync/atomic"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthServices are the names that health is asked by: of no service in
// particular, of the one that gateways use, and those that the probes of GIE's
// chart name.
var healthServices = []string{
	"", extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension", "liveness", "readiness",
}

// maxWatches is how many may watch health at once, over all connections: a watch
// is a stream without an end.
const maxWatches = 1000

// healthServer is gRPC's health service, whose watches end with the picker: they
// would keep it from stopping until the time to drain is over.
type healthServer struct {
	*health.Server
	ending  context.Context
	end     context.CancelFunc
	watches atomic.Int64
}

func newHealthServer() *healthServer {
	ending, end := context.WithCancel(context.Background())
	s := &healthServer{Server: health.NewServer(), ending: ending, end: end}
	for _, service := range healthServices {
		s.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	return s
}

// Shutdown turns every status to NOT_SERVING, for good, and ends all watches.
func (s *healthServer) Shutdown() {
	s.Server.Shutdown()
	s.end()
}

// Watch implements the health service. The last that it tells is NOT_SERVING.
func (s *healthServer) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	defer s.watches.Add(-1)
	if s.watches.Add(1) > maxWatches {
		return status.Error(codes.ResourceExhausted, "as many watch the health of the endpoint picker as may")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	err := s.Server.Watch(req, &watch{stream, ctx})
	if s.ending.Err() == nil || stream.Context().Err() != nil {
		return err
	}
	if err := stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "the endpoint picker is shutting down")
}

// watch is a stream with a context that ends sooner.
type watch struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context
}

func (w *watch) Context() context.Context { return w.ctx }
