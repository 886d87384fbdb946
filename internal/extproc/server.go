package extproc

import (
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
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
	// Refused is told of every refusal that the protocol layer makes by itself,
	// before it is sent, with the decision if there was one already. It may set
	// the refusal's DecisionID.
	Refused func(*Request, Decision, *Refusal)
}

// Server is the ext_proc service.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	opts Options
	held atomic.Int64
	quit chan struct{}
	once sync.Once
}

var _ extprocv3.ExternalProcessorServer = (*Server)(nil)

// NewServer returns a server; all options must be set.
func NewServer(opts Options) *Server {
	return &Server{opts: opts, quit: make(chan struct{})}
}

// Held is how many bytes of request bodies are held now, over all streams.
func (s *Server) Held() int64 { return s.held.Load() }

// Quit ends every stream: requests without a decision are refused with 503,
// running responses are cut. Called when the time to drain is over.
func (s *Server) Quit() { s.once.Do(func() { close(s.quit) }) }

// process is one stream being served. The gateway's messages are handled on a
// goroutine of their own, so that what bounds their time can end the stream:
// nothing but the return of Process makes a blocked Recv give up.
type process struct {
	server *Server
	stream extprocv3.ExternalProcessor_ProcessServer

	// mu guards everything below. Messages are handled, and answers sent, with it
	// held; over then keeps whoever comes second from the stream.
	mu   sync.Mutex
	c    *conversation
	over bool
	err  error
	// ended is closed with over.
	ended chan struct{}
}

// Process runs one conversation. It returns nil only after an immediate
// response, or when the gateway closes the stream after the response has ended.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	c := newConversation(s.opts.Settings(), s.opts.Decider, s.opts.Clock, &s.held)
	c.onRefusal = s.opts.Refused
	p := &process{server: s, stream: stream, c: c, ended: make(chan struct{})}
	go p.receive()

	idle := time.NewTimer(min(c.settings.UploadIdle, emptyStream))
	defer idle.Stop()
	for {
		select {
		case <-p.ended:
			return p.err
		case <-idle.C:
			if again := p.checkIdle(); again > 0 {
				idle.Reset(again)
			}
		case <-s.quit:
			p.quit()
		}
	}
}

// receive handles messages until the stream is over.
func (p *process) receive() {
	for {
		msg, err := p.stream.Recv()
		if p.received(msg, err) {
			return
		}
	}
}

// received handles one message, or the stream's end, and reports whether the
// stream is over.
func (p *process) received(msg *extprocv3.ProcessingRequest, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.contain()
	switch {
	case p.over:
	case err != nil:
		p.finish(ClientDisconnect, endOfStream(p.c, err))
	default:
		p.handle(msg)
	}
	return p.over
}

func (p *process) handle(msg *extprocv3.ProcessingRequest) {
	out, err := p.c.handle(msg)
	if sendErr := p.send(out); sendErr != nil {
		p.finish(ClientDisconnect, endOfStream(p.c, sendErr))
		return
	}
	switch {
	case err != nil:
		p.finish(Internal, err)
	case p.c.phase == refused:
		p.finish(ServedOutside, nil)
	}
}

// checkIdle ends a stream on which the request has stopped coming. It returns
// how long to wait for the next check, 0 if none is needed any more.
func (p *process) checkIdle() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.contain()
	at, waits := p.c.idleDeadline()
	if p.over || !waits {
		return 0
	}
	if left := at.Sub(p.server.opts.Clock()); left > 0 {
		return left
	}
	if p.c.phase == awaitHeaders {
		p.finish(ClientDisconnect, status.Error(codes.DeadlineExceeded, "no message came on the stream"))
		return 0
	}
	err := p.send(p.c.uploadIdle())
	p.finish(ServedOutside, err)
	return 0
}

func (p *process) quit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.contain()
	if !p.over {
		p.fail(Shutdown, codes.Unavailable, shuttingDown)
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
	close(p.ended)
}

func (p *process) send(out []*extprocv3.ProcessingResponse) error {
	for _, msg := range out {
		if err := p.stream.Send(msg); err != nil {
			return err
		}
	}
	return nil
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
