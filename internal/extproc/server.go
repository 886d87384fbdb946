package extproc

import (
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Options configure a Server.
type Options struct {
	Decider Decider
	// Settings are asked for once per stream.
	Settings func() Settings
	// Clock is used for deadlines and for what decisions are told.
	Clock telemetry.Clock
	// Panicked is told of a fault that was contained, with its stack.
	Panicked func(value any, stack []byte)
	// Refused is told of every refusal that the protocol layer makes by itself.
	Refused func(*Refusal)
}

// Server is the ext_proc service.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	opts Options
	quit chan struct{}
	once sync.Once
}

var _ extprocv3.ExternalProcessorServer = (*Server)(nil)

// NewServer returns a server; all options must be set.
func NewServer(opts Options) *Server {
	return &Server{opts: opts, quit: make(chan struct{})}
}

// Quit ends every stream: requests without a decision are refused with 503,
// running responses are cut. Called when the time to drain is over.
func (s *Server) Quit() { s.once.Do(func() { close(s.quit) }) }

// received is one result of Recv.
type received struct {
	msg *extprocv3.ProcessingRequest
	err error
}

// Process runs one conversation. It returns nil only after an immediate
// response, or when the gateway closes the stream after the response has ended.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) (err error) {
	c := newConversation(s.opts.Settings(), s.opts.Decider, s.opts.Clock)
	c.onRefusal = s.opts.Refused
	defer func() {
		if v := recover(); v != nil {
			s.opts.Panicked(v, debug.Stack())
			err = s.fail(stream, c, Internal, internalFault)
		}
	}()

	// The reader ends with the stream: Recv fails once Process has returned. It
	// hands over every result until then, the stream's end above all: with that
	// dropped, a request whose client left would never end here.
	in := make(chan received)
	over := make(chan struct{})
	defer close(over)
	go read(stream, in, over)

	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	for c.phase != refused {
		var idleC <-chan time.Time
		if at, ok := c.idleDeadline(); ok {
			idle.Reset(at.Sub(s.opts.Clock()))
			idleC = idle.C
		}
		select {
		case r := <-in:
			if r.err != nil {
				return ended(c, r.err)
			}
			out, err := c.handle(r.msg)
			if sendErr := send(stream, out); sendErr != nil {
				return ended(c, sendErr)
			}
			if err != nil {
				c.finish(Internal)
				return err
			}
		case <-idleC:
			if at, ok := c.idleDeadline(); !ok || s.opts.Clock() < at {
				continue
			}
			if c.phase == awaitHeaders {
				return status.Error(codes.DeadlineExceeded, "no message came on the stream")
			}
			if err := send(stream, c.uploadIdle()); err != nil {
				return ended(c, err)
			}
		case <-s.quit:
			return s.fail(stream, c, Shutdown, shuttingDown)
		}
	}
	c.finish(ServedOutside)
	return nil
}

var internalFault = &Refusal{Status: 500, Reason: "internal", Message: "the endpoint picker failed on this request"}

var shuttingDown = &Refusal{
	Status: 503, Reason: "shutting_down", Message: "the endpoint picker is shutting down", RetryAfter: time.Second,
}

func read(stream extprocv3.ExternalProcessor_ProcessServer, in chan<- received, over <-chan struct{}) {
	for {
		msg, err := stream.Recv()
		select {
		case in <- received{msg, err}:
		case <-over:
			return
		}
		if err != nil {
			return
		}
	}
}

func send(stream extprocv3.ExternalProcessor_ProcessServer, out []*extprocv3.ProcessingResponse) error {
	for _, msg := range out {
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return nil
}

// fail refuses what can still be refused and ends the stream with an error.
func (s *Server) fail(stream extprocv3.ExternalProcessor_ProcessServer, c *conversation, cause Cause, r *Refusal) error {
	if c.answerable() {
		c.report(r)
		// The stream ends either way; a refusal that cannot be sent is lost.
		_ = stream.Send(immediate(r))
	}
	s.finish(c, cause)
	code := codes.Unavailable
	if cause == Internal {
		code = codes.Internal
	}
	return status.Error(code, r.Message)
}

// finish contains a fault of the decision's end, since nothing above it would:
// a stream that ends because of one fault may meet another here.
func (s *Server) finish(c *conversation, cause Cause) {
	defer func() {
		if v := recover(); v != nil {
			s.opts.Panicked(v, debug.Stack())
		}
	}()
	c.finish(cause)
}

// ended is the normal way out: the gateway closed or reset the stream.
func ended(c *conversation, err error) error {
	answered := c.phase == done || c.phase == refused
	c.finish(ClientDisconnect)
	if answered {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Canceled, "the gateway closed the stream before the response ended")
	}
	return err
}
