package extproc

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Options configure a Server.
type Options struct {
	// Begin is called once per stream, at its start: a request is decided by what was
	// in force then.
	Begin func() (Settings, Decider)
	// Clock is used for deadlines and for what decisions are told.
	Clock telemetry.Clock
	// Panicked is told of a fault that was contained, with its stack.
	Panicked func(value any, stack []byte)
	// Refused is told of every refusal that the protocol layer makes by itself,
	// before it is sent, with the decision if there was one already. It may set
	// the refusal's DecisionID.
	Refused func(*Request, Decision, *Refusal)
	// Blind is told, once, that a gateway's body mode, which is named, does not
	// show bodies before a request must be placed.
	Blind func(mode string)
}

// Server is the ext_proc service.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	opts   Options
	shared shared
	blind  sync.Once

	// mu guards the streams that are open, and quitting, which lets no further
	// one wait.
	mu       sync.Mutex
	open     map[*process]struct{}
	quitting bool
}

var _ extprocv3.ExternalProcessorServer = (*Server)(nil)

// NewServer returns a server; all options must be set.
func NewServer(opts Options) *Server {
	return &Server{opts: opts, open: map[*process]struct{}{}}
}

// GRPCOptions must be given to the gRPC server that this service is registered
// with. They make it read and write messages cheaply, and give each stream a
// context that the picker can cancel, by which it ends a stream while it waits for
// the gateway: without, nothing but the gateway does, and a goroutine per stream
// would be needed to keep time.
func GRPCOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
			ctx, cancel := context.WithCancel(ctx)
			return &cancellable{ctx, cancel}, nil
		}),
	}
}

// cancellable is a stream's context with what cancels it, which is found by the
// key cancelKey.
type cancellable struct {
	context.Context
	cancel context.CancelFunc
}

type cancelKey struct{}

func (c *cancellable) Value(key any) any {
	if key == (cancelKey{}) {
		return c.cancel
	}
	return c.Context.Value(key)
}

// Held is how many bytes of request bodies are held now, over all streams.
func (s *Server) Held() int64 { return s.shared.held.Load() }

// Streams is how many streams are open now.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Quit ends every stream: requests without a decision are refused with 503,
// running responses are cut. Called when the time to drain is over.
func (s *Server) Quit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quitting = true
	for p := range s.open {
		// A stream whose gateway takes no answers may keep others waiting.
		go p.quit()
	}
}

// enter counts a stream in, and reports how many are open and whether it may stay.
func (s *Server) enter(p *process) (open int, stays bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[p] = struct{}{}
	return len(s.open), !s.quitting
}

func (s *Server) leave(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, p)
}

func (s *Server) left() Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quitting {
		return Shutdown
	}
	return ClientDisconnect
}

// process is one stream being served.
type process struct {
	server *Server
	stream extprocv3.ExternalProcessor_ProcessServer
	// cancel makes a Recv or Send that waits return.
	cancel context.CancelFunc
	// takenBy is when the part of a body that is being sent must have been taken;
	// 0 where there is none. stuck is set when it was not.
	takenBy atomic.Int64
	stuck   atomic.Bool
	// idle runs checkIdle; it is set, with the lock held, before any message is read.
	idle *time.Timer

	// mu guards everything below. Messages are handled, and answers sent, with it
	// held; over then keeps whoever comes second from the stream.
	mu   sync.Mutex
	c    *conversation
	over bool
	err  error
}

// Process runs one conversation. It returns nil only after an immediate
// response, or when the gateway closes the stream after the response has ended.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	cancel, ok := stream.Context().Value(cancelKey{}).(context.CancelFunc)
	if !ok {
		return status.Error(codes.Internal, "the gRPC server was made without GRPCOptions")
	}
	settings, decider := s.opts.Begin()
	c := newConversation(settings, decider, s.opts.Clock, &s.shared)
	c.onRefusal, c.onBlind = s.opts.Refused, s.wentBlind
	p := &process{server: s, stream: stream, cancel: cancel, c: c}

	open, stays := s.enter(p)
	defer s.leave(p)
	c.overloaded = open > settings.Streams
	if !stays {
		p.quit()
		return p.err
	}
	p.watchIdle(min(settings.UploadIdle, emptyStream))
	for {
		msg, err := stream.Recv()
		if p.received(msg, err) {
			p.idle.Stop()
			return p.err
		}
	}
}

func (s *Server) wentBlind(mode string) {
	s.blind.Do(func() { s.opts.Blind(mode) })
}

// received handles one message, or the stream's end, and reports whether the
// stream is over.
func (p *process) received(msg *extprocv3.ProcessingRequest, err error) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { over = p.over }()
	defer p.contain()
	switch {
	case p.over:
	case err != nil:
		if status.Code(err) == codes.ResourceExhausted {
			p.c.messageTooLarge()
		}
		p.c.reset = status.Code(err) == codes.Canceled
		p.finish(p.server.left(), endOfStream(p.c, err))
	default:
		p.handle(msg)
	}
	return p.over
}

func (p *process) handle(msg *extprocv3.ProcessingRequest) {
	out, err := p.c.handle(msg)
	sendErr := p.send(out)
	p.c.sent()
	if sendErr != nil {
		cause := p.server.left()
		if p.stuck.Load() {
			cause = Aborted
		}
		p.finish(cause, endOfStream(p.c, sendErr))
		return
	}
	switch {
	case err != nil:
		p.finish(Internal, err)
	case p.c.phase == refused:
		p.finish(p.c.refusedFor, nil)
	}
}

// checkIdle ends a stream on which the request has stopped coming, or comes
// back to it as long as that may happen.
func (p *process) checkIdle() {
	// Whoever waits to send has the lock.
	if p.checkStuck() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.interrupt()
	defer p.contain()
	at, waits := p.c.idleDeadline()
	if p.over || !waits {
		return
	}
	if left := at.Sub(p.server.opts.Clock()); left > 0 {
		p.idle.Reset(left)
		return
	}
	if p.c.phase == awaitHeaders {
		p.finish(ClientDisconnect, status.Error(codes.DeadlineExceeded, "no message came on the stream"))
		return
	}
	err := p.send(p.c.uploadEnded())
	p.finish(p.c.refusedFor, err)
}

func (p *process) quit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.interrupt()
	defer p.contain()
	if !p.over {
		p.fail(Shutdown, codes.Unavailable, shuttingDown)
	}
}

// interrupt lets Process return from a Recv on a stream that is over. gRPC then
// gives the stream the status CANCELLED by itself; what was sent before arrives
// before it.
func (p *process) interrupt() {
	if p.over {
		p.cancel()
	}
}

// contain turns a panic, which is a fault of this program, into the end of this
// one stream.
func (p *process) contain() {
	v := recover()
	if v == nil {
		return
	}
	p.server.opts.Panicked(v, debug.Stack())
	// What follows may meet the next fault; then the stream ends without it.
	defer func() {
		if v := recover(); v != nil {
			p.server.opts.Panicked(v, debug.Stack())
			p.end(status.Error(codes.Internal, internalFault.Message))
		}
	}()
	if p.over {
		return
	}
	p.fail(Internal, codes.Internal, internalFault)
}

// fail refuses what can still be refused and ends the stream with an error.
func (p *process) fail(cause Cause, code codes.Code, r *Refusal) {
	if p.c.answerable() {
		mine := *r
		r = &mine
		p.c.report(r)
		// The stream ends either way; a refusal that cannot be sent is lost.
		_ = p.stream.Send(immediate(r))
		p.c.phase = refused
	}
	p.finish(cause, status.Error(code, r.Message))
}

// finish tells the decision how the request ended, and ends the stream then.
func (p *process) finish(cause Cause, err error) {
	p.c.finish(cause)
	p.end(err)
}

// end lets Process return. The first error counts.
func (p *process) end(err error) {
	if p.over {
		return
	}
	p.over, p.err = true, err
}

// sendQuota is how much of a stream gRPC takes without waiting for the gateway.
const sendQuota = 64 << 10

// send gives answers to the gateway. A held body is not held for longer than it
// moves: where the gateway takes no part of it for the time that a pause in an
// upload may take, the stream is cancelled.
func (p *process) send(out []*extprocv3.ProcessingResponse) error {
	long := p.c.held > sendQuota
	for _, msg := range out {
		if long {
			p.takenBy.Store(int64(p.server.opts.Clock().Add(p.c.settings.UploadIdle)))
			p.idle.Reset(p.c.settings.UploadIdle)
		}
		if err := p.stream.Send(msg); err != nil {
			return err
		}
	}
	if long {
		p.takenBy.Store(0)
	}
	return nil
}

// watchIdle has the stream looked at after a while. The timer may fire before it
// is set: the lock keeps what it runs until then.
func (p *process) watchIdle(after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = time.AfterFunc(after, p.checkIdle)
}

// checkStuck reports whether a part of a body waits to be taken, and ends the
// stream when it has waited for too long.
func (p *process) checkStuck() bool {
	by := telemetry.Instant(p.takenBy.Load())
	if by == 0 {
		return false
	}
	if left := by.Sub(p.server.opts.Clock()); left > 0 {
		p.idle.Reset(left)
		return true
	}
	p.stuck.Store(true)
	p.cancel()
	return true
}

// endOfStream is what a stream ends with that the gateway closed or reset.
func endOfStream(c *conversation, err error) error {
	switch {
	case c.phase == done || c.phase == refused:
		return nil
	case errors.Is(err, io.EOF):
		return status.Error(codes.Canceled, "the gateway closed the stream before the response ended")
	default:
		return err
	}
}

var internalFault = &Refusal{Status: 500, Reason: "internal", Message: "the endpoint picker failed on this request"}

var shuttingDown = &Refusal{
	Status: 503, Reason: "shutting_down", Message: "the endpoint picker is shutting down", RetryAfter: time.Second,
}
