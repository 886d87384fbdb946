package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/berth-dev/berth/internal/response"
	"github.com/berth-dev/berth/internal/telemetry"
)

// patience is how long a thing may take that must happen, on a busy machine.
const patience = 20 * time.Second

// eventually waits for a condition that nothing signals.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("never came true: %s", what)
		}
	}
}

// handClock is moved by the test; step moves it at each look.
type handClock struct{ now, step atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.now.Store(int64(telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))))
	return c
}

func (c *handClock) read() telemetry.Instant {
	return telemetry.Instant(c.now.Add(c.step.Load()))
}

func (c *handClock) pass(d time.Duration) { c.now.Add(int64(d)) }

// fakeDecider places everything, and does what its hooks say on the way.
type fakeDecider struct {
	onDecide func(*Request) *Refusal
	onServed func(Served) *Refusal
	onByte   func()
	onFinish func(Outcome)

	mu        sync.Mutex
	decisions []*fakeDecision
}

type fakeDecision struct {
	of       *fakeDecider
	finished atomic.Int32
	mu       sync.Mutex
	outcome  Outcome
}

func (d *fakeDecider) Decide(req *Request) (Decision, *Refusal) {
	if d.onDecide != nil {
		if refusal := d.onDecide(req); refusal != nil {
			return nil, refusal
		}
	}
	decision := &fakeDecision{of: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decisions = append(d.decisions, decision)
	return decision, nil
}

func (d *fakeDecider) all() []*fakeDecision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*fakeDecision(nil), d.decisions...)
}

// ends checks that there are n decisions, each finished once, and returns how.
func (d *fakeDecider) ends(t *testing.T, n int) []Outcome {
	t.Helper()
	decisions := d.all()
	if len(decisions) != n {
		t.Fatalf("%d decisions were made, want %d", len(decisions), n)
	}
	outcomes := make([]Outcome, n)
	for i, decision := range decisions {
		eventually(t, "a decision is finished", func() bool { return decision.finished.Load() > 0 })
		if got := decision.finished.Load(); got != 1 {
			t.Errorf("decision %d was finished %d times, want once", i, got)
		}
		decision.mu.Lock()
		outcomes[i] = decision.outcome
		decision.mu.Unlock()
	}
	return outcomes
}

func (f *fakeDecision) Destination() string       { return "10.0.0.1:8000" }
func (f *fakeDecision) RequestHeaders() []Header  { return []Header{{"x-berth-decision", "d1"}} }
func (f *fakeDecision) Acknowledgement() []Member { return nil }
func (f *fakeDecision) ResponseHeaders() []Header { return nil }

func (f *fakeDecision) Served(s Served) *Refusal {
	if f.of.onServed != nil {
		return f.of.onServed(s)
	}
	return nil
}

func (f *fakeDecision) FirstByte(telemetry.Instant) {
	if f.of.onByte != nil {
		f.of.onByte()
	}
}

func (f *fakeDecision) Finish(o Outcome) {
	f.mu.Lock()
	f.outcome = o
	f.mu.Unlock()
	f.finished.Add(1)
	if f.of.onFinish != nil {
		f.of.onFinish(o)
	}
}

// tapped passes on what Process returns: what a gateway that has gone would
// never see.
type tapped struct {
	*Server
	ends chan error
}

func (s *tapped) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	err := s.Server.Process(stream)
	s.ends <- err
	return err
}

// rig is a Server on a gRPC connection in memory.
type rig struct {
	t       *testing.T
	clock   *handClock
	decider *fakeDecider
	server  *Server
	client  extprocv3.ExternalProcessorClient
	ends    chan error
	panics  atomic.Int32
	blind   atomic.Int32
	refused sync.Map // reason -> *atomic.Int32
}

// maxMessage is the largest message that the rig's server takes.
const maxMessage = 4 << 20

// wide are settings with limits that a test does not reach.
func wide() Settings {
	return Settings{
		Keep:      []string{"x-selected-model"},
		BodyLimit: 1 << 20, Buffered: 1 << 30, Streams: 1 << 20, HeaderCount: 1 << 10, HeaderBytes: 1 << 20,
		UploadIdle: time.Hour, UploadTime: 2 * time.Hour, DecisionDeadline: time.Hour,
	}
}

func newRig(t *testing.T, decider *fakeDecider, settings Settings) *rig {
	t.Helper()
	base := runtime.NumGoroutine()
	r := &rig{t: t, clock: newHandClock(), decider: decider, ends: make(chan error, 1<<16)}
	if settings.BodyLimit == 0 {
		settings = wide()
	}
	r.server = NewServer(Options{
		Begin:    func() (Settings, Decider) { return settings, decider },
		Clock:    r.clock.read,
		Panicked: func(any, []byte) { r.panics.Add(1) },
		Refused: func(_ *Request, _ Decision, refusal *Refusal) {
			n, _ := r.refused.LoadOrStore(refusal.Reason, new(atomic.Int32))
			n.(*atomic.Int32).Add(1)
		},
		Blind: func(string) { r.blind.Add(1) },
	})
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(append(GRPCOptions(), grpc.MaxRecvMsgSize(maxMessage))...)
	extprocv3.RegisterExternalProcessorServer(g, &tapped{r.server, r.ends})
	go func() { _ = g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.client = extprocv3.NewExternalProcessorClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		_ = listener.Close()
		eventually(t, "no bytes of bodies are held", func() bool { return r.server.Held() == 0 })
		eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= base })
	})
	return r
}

func (r *rig) refusals(reason string) int32 {
	n, ok := r.refused.Load(reason)
	if !ok {
		return 0
	}
	return n.(*atomic.Int32).Load()
}

// ended waits for one stream's end at the server.
func (r *rig) ended() error {
	r.t.Helper()
	select {
	case err := <-r.ends:
		return err
	case <-time.After(patience):
		r.t.Fatal("the stream never ended at the server")
		return nil
	}
}

// exchange is one stream, seen from the gateway.
type exchange struct {
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (r *rig) open() (*exchange, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	stream, err := r.client.Process(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &exchange{stream, cancel}, nil
}

func (r *rig) mustOpen() *exchange {
	r.t.Helper()
	x, err := r.open()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(x.cancel)
	return x
}

// step is one message and the kinds of the answers that it must get.
type step struct {
	send message
	want []kind
}

var (
	headersOnly = step{message{kind: requestHeaders, eos: true, mode: -1, respMode: -1}, []kind{requestHeaders}}
	headersOpen = step{message{kind: requestHeaders, mode: -1, respMode: -1}, nil}
	headersNone = step{message{kind: requestHeaders, mode: 1, respMode: 1}, []kind{requestHeaders}}
	headersBuff = step{message{kind: requestHeaders, mode: 2, respMode: 2}, []kind{requestHeaders}}
	bodyHalf    = step{message{kind: requestBody, body: []byte(`{"model":`), mode: -1, respMode: -1}, nil}
	bodyRest    = step{message{kind: requestBody, body: []byte(`"m"}`), eos: true, mode: -1, respMode: -1},
		[]kind{requestHeaders, requestBody, requestBody}}
	respHeaders = step{message{kind: responseHeaders, mode: -1, respMode: -1,
		headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}, []kind{responseHeaders}}
	respEvents = step{message{kind: responseHeaders, mode: -1, respMode: -1, headers: []*corev3.HeaderValue{
		{Key: ":status", RawValue: []byte("200")}, {Key: "content-type", RawValue: []byte("text/event-stream")}}}, []kind{responseHeaders}}
	respLast = step{message{kind: responseBodyKind, body: []byte("data: {}\n\ndata: [DONE]\n\n"), mode: -1, respMode: -1}, []kind{responseBodyKind}}
	respHalf = step{message{kind: responseBodyKind, body: []byte("half"), mode: -1, respMode: -1}, []kind{responseBodyKind}}
	respRest = step{message{kind: responseBodyKind, body: []byte("rest"), eos: true, mode: -1, respMode: -1}, []kind{responseBodyKind}}
)

func (x *exchange) play(steps ...step) error {
	for _, s := range steps {
		if err := x.stream.Send(s.send.proto()); err != nil {
			return fmt.Errorf("sending %s: %w", s.send, err)
		}
		for _, want := range s.want {
			answer, err := x.stream.Recv()
			if err != nil {
				return fmt.Errorf("after %s: %w", s.send, err)
			}
			if got := kindOf(answer); got != want {
				return fmt.Errorf("after %s: answer %s, want %s", s.send, got, want)
			}
		}
	}
	return nil
}

func (r *rig) play(x *exchange, steps ...step) {
	r.t.Helper()
	if err := x.play(steps...); err != nil {
		r.t.Fatal(err)
	}
}

// refusal reads an immediate response.
func (r *rig) refusal(x *exchange) (code int, reason, body string) {
	r.t.Helper()
	answer, err := x.stream.Recv()
	if err != nil {
		r.t.Fatalf("no immediate response: %v", err)
	}
	i := answer.GetImmediateResponse()
	if i == nil {
		r.t.Fatalf("answer %s, want an immediate response", kindOf(answer))
	}
	for _, h := range i.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == reasonHeader {
			reason = string(h.GetHeader().GetRawValue())
		}
	}
	return int(i.GetStatus().GetCode()), reason, string(i.GetBody())
}

// end reads the stream's status; OK is io.EOF to a client.
func (r *rig) end(x *exchange) codes.Code {
	r.t.Helper()
	answer, err := x.stream.Recv()
	switch {
	case err == nil:
		r.t.Fatalf("answer %s, want the end of the stream", kindOf(answer))
		return codes.OK
	case errors.Is(err, io.EOF):
		return codes.OK
	default:
		return status.Code(err)
	}
}

// phases are the ways that a request may have come before something happens.
// answerable says whether a refusal can still replace what is due.
var phases = []struct {
	name                string
	steps               []step
	decided, answerable bool
	// answered is true when the response has ended.
	answered bool
	cause    Cause // of a client that leaves
	// finished is true when the response has said that it is over.
	finished bool
}{
	{name: "nothing sent", answerable: true},
	{name: "headers", steps: []step{headersOpen}, answerable: true},
	{name: "headers of a buffered request", steps: []step{headersBuff}, answerable: true},
	{name: "half the body", steps: []step{headersOpen, bodyHalf}, answerable: true},
	{name: "headers of a streamed request", steps: []step{headersNone}, decided: true, answerable: true, cause: ClientDisconnect},
	{name: "decided", steps: []step{headersOpen, bodyHalf, bodyRest}, decided: true, answerable: true, cause: ClientDisconnect},
	{name: "response headers", steps: []step{headersOnly, respHeaders}, decided: true, cause: Aborted},
	{name: "half the response", steps: []step{headersOnly, respHeaders, respHalf}, decided: true, cause: Aborted},
	{name: "the last event of a stream", steps: []step{headersOnly, respEvents, respLast}, decided: true, cause: Complete, finished: true},
	{name: "the whole response", steps: []step{headersOnly, respHeaders, respHalf, respRest}, decided: true, answered: true, cause: Complete},
}

func TestAStreamThatIsServedEndsWithOK(t *testing.T) {
	r := newRig(t, &fakeDecider{}, Settings{})
	x := r.mustOpen()
	r.play(x, headersOpen, bodyHalf, bodyRest, respHeaders, respHalf, respRest)
	_ = x.stream.CloseSend()
	if code := r.end(x); code != codes.OK {
		t.Errorf("status %s, want OK", code)
	}
	outcome := r.decider.ends(t, 1)[0]
	want := Outcome{
		At: r.clock.read(), Cause: Complete, RequestBytes: 13, ResponseBytes: 8, ResponseSeen: true, Seen: SeenWhole, Answer: unstated,
	}
	if outcome != want {
		t.Errorf("outcome %+v, want %+v", outcome, want)
	}
}

// unstated is what is known of an answer that said nothing of itself: no count,
// which is not a count of zero.
var unstated = response.Facts{Input: -1, Output: -1, Cached: -1}

// A gateway takes OK before an answer for leave to go on by itself.
func TestR8_NoStreamEndsWithOKBeforeItWasAnswered(t *testing.T) {
	for _, phase := range phases {
		t.Run(phase.name, func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			r.play(x, phase.steps...)
			if err := x.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			code := r.end(x)
			if (code == codes.OK) != phase.answered {
				t.Errorf("the gateway closed the stream: status %s, response complete %t", code, phase.answered)
			}
			if phase.decided {
				outcome, answer := r.decider.ends(t, 1)[0], unstated
				answer.Finished = phase.finished
				if outcome.Cause != phase.cause || outcome.Answer != answer {
					t.Errorf("cause %s, answer %+v; want %s, %+v", outcome.Cause, outcome.Answer, phase.cause, answer)
				}
			}
		})
	}
}

// Clients leave at every phase, many at a time and in two ways: each decision is
// finished once, and nothing is left running.
func TestX14_ClientsLeaveAtEveryPhase(t *testing.T) {
	const streams = 500
	for _, phase := range phases {
		for _, way := range []string{"reset", "close"} {
			t.Run(phase.name+", "+way, func(t *testing.T) {
				r := newRig(t, &fakeDecider{}, Settings{})
				faults := make(chan error, streams)
				for range streams {
					go func() {
						x, err := r.open()
						if err != nil {
							faults <- err
							return
						}
						defer x.cancel()
						err = x.play(phase.steps...)
						if way == "close" && err == nil {
							_ = x.stream.CloseSend()
							// Reads until the server has ended the stream.
							for _, err := x.stream.Recv(); err == nil; _, err = x.stream.Recv() {
							}
						}
						faults <- err
					}()
				}
				for range streams {
					if err := <-faults; err != nil {
						t.Fatal(err)
					}
				}
				want := 0
				if phase.decided {
					want = streams
				}
				for _, outcome := range r.decider.ends(t, want) {
					if outcome.Cause != phase.cause {
						t.Fatalf("cause %s, want %s", outcome.Cause, phase.cause)
					}
				}
				// A stream that was reset before its first answer may never have
				// reached the server.
				if phase.decided || way == "close" {
					for range streams {
						if err := r.ended(); (err == nil) != phase.answered {
							t.Fatalf("a stream ended with %v, response complete %t", err, phase.answered)
						}
					}
				}
				if n := r.panics.Load(); n != 0 {
					t.Errorf("%d panics", n)
				}
			})
		}
	}
}

// The client leaves while the decision is being made: the decision is followed
// to its end all the same.
func TestX14_AClientLeavesDuringTheDecision(t *testing.T) {
	const streams = 500
	entered, leave := make(chan struct{}, streams), make(chan struct{})
	r := newRig(t, &fakeDecider{onDecide: func(*Request) *Refusal {
		entered <- struct{}{}
		<-leave
		return nil
	}}, Settings{})
	exchanges := make([]*exchange, streams)
	for i := range exchanges {
		exchanges[i] = r.mustOpen()
		r.play(exchanges[i], step{send: headersOnly.send})
	}
	for range exchanges {
		<-entered
	}
	for _, x := range exchanges {
		x.cancel()
	}
	close(leave)
	for range exchanges {
		if err := r.ended(); err == nil {
			t.Fatal("a stream without an answer ended with OK")
		}
	}
	for _, outcome := range r.decider.ends(t, streams) {
		if outcome.Cause != ClientDisconnect {
			t.Fatalf("cause %s, want client_disconnect", outcome.Cause)
		}
	}
}

func TestX23_AFaultIsContainedToItsStream(t *testing.T) {
	boom := func() { panic("boom: secret prompt") }
	tests := []struct {
		name    string
		decider *fakeDecider
		steps   []step
		last    step
		// immediate is whether the client still gets a refusal.
		immediate bool
		decisions int
		panics    int32
	}{
		{
			name:    "in the decision",
			decider: &fakeDecider{onDecide: func(*Request) *Refusal { boom(); return nil }},
			steps:   []step{headersOpen, bodyHalf}, last: step{send: bodyRest.send}, immediate: true, panics: 1,
		},
		{
			name:    "in Served",
			decider: &fakeDecider{onServed: func(Served) *Refusal { boom(); return nil }},
			steps:   []step{headersOnly}, last: step{send: respHeaders.send}, immediate: true, decisions: 1, panics: 1,
		},
		{
			name:    "in FirstByte",
			decider: &fakeDecider{onByte: boom},
			steps:   []step{headersOnly, respHeaders}, last: step{send: respHalf.send}, decisions: 1, panics: 1,
		},
		{
			name: "in Served, and then in Finish",
			decider: &fakeDecider{
				onServed: func(Served) *Refusal { boom(); return nil },
				onFinish: func(Outcome) { boom() },
			},
			steps: []step{headersOnly}, last: step{send: respHeaders.send}, immediate: true, decisions: 1, panics: 2,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.decider, Settings{})
			other := r.mustOpen()
			r.play(other, headersOpen)

			x := r.mustOpen()
			r.play(x, tt.steps...)
			r.play(x, tt.last)
			if tt.immediate {
				code, reason, body := r.refusal(x)
				if code != 500 || reason != "internal" || strings.Contains(body, "secret") {
					t.Errorf("refused with %d %s %s, want 500 internal and nothing of the fault", code, reason, body)
				}
			}
			if code := r.end(x); code != codes.Internal {
				t.Errorf("status %s, want Internal", code)
			}
			for _, outcome := range tt.decider.ends(t, tt.decisions) {
				if outcome.Cause != Internal {
					t.Errorf("cause %s, want internal", outcome.Cause)
				}
			}
			if n := r.panics.Load(); n != tt.panics {
				t.Errorf("%d faults were told, want %d", n, tt.panics)
			}
			if n := r.refusals("internal"); (n == 1) != tt.immediate {
				t.Errorf("%d refusals were counted, a refusal was sent: %t", n, tt.immediate)
			}

			// Others go on, and new ones come.
			tt.decider.onDecide, tt.decider.onServed, tt.decider.onByte, tt.decider.onFinish = nil, nil, nil, nil
			r.play(other, bodyHalf, bodyRest, respHeaders, respRest)
			r.play(r.mustOpen(), headersOnly, respHeaders, respRest)
		})
	}
}

// A fault in Finish comes when nothing is left to answer, or all is being cut.
func TestX23_AFaultInFinishIsContained(t *testing.T) {
	for _, phase := range phases {
		if !phase.decided {
			continue
		}
		for _, way := range []string{"close", "quit"} {
			t.Run(phase.name+", "+way, func(t *testing.T) {
				r := newRig(t, &fakeDecider{onFinish: func(Outcome) { panic("boom") }}, Settings{})
				x := r.mustOpen()
				r.play(x, phase.steps...)
				if way == "close" {
					_ = x.stream.CloseSend()
				} else {
					r.server.Quit()
				}
				immediates := 0
				for {
					answer, err := x.stream.Recv()
					if err != nil {
						if errors.Is(err, io.EOF) {
							t.Error("status OK after a fault")
						}
						break
					}
					if kindOf(answer) != immediateAnswer {
						t.Fatalf("answer %s to nothing", kindOf(answer))
					}
					immediates++
				}
				if want := map[bool]int{true: 1}[phase.answerable]; immediates != want {
					t.Errorf("%d immediate responses, want %d", immediates, want)
				}
				r.decider.ends(t, 1)
				if n := r.panics.Load(); n != 1 {
					t.Errorf("%d faults were told, want 1", n)
				}
			})
		}
	}
}

func TestX24_QuitRefusesWhatHasNoAnswerAndCutsTheRest(t *testing.T) {
	for _, phase := range phases {
		t.Run(phase.name, func(t *testing.T) {
			r := newRig(t, &fakeDecider{}, Settings{})
			x := r.mustOpen()
			r.play(x, phase.steps...)
			r.server.Quit()
			r.server.Quit()
			if phase.answerable {
				code, reason, _ := r.refusal(x)
				if code != 503 || reason != "shutting_down" {
					t.Errorf("refused with %d %s, want 503 shutting_down", code, reason)
				}
				if n := r.refusals("shutting_down"); n != 1 {
					t.Errorf("%d refusals were counted, want 1", n)
				}
			}
			// Which of the two depends on whether a message was just being read.
			if code := r.end(x); code != codes.Canceled && code != codes.Unavailable {
				t.Errorf("status %s, want Canceled or Unavailable", code)
			}
			want := Shutdown
			if phase.answered {
				want = Complete
			}
			if phase.decided {
				if got := r.decider.ends(t, 1)[0].Cause; got != want {
					t.Errorf("cause %s, want %s", got, want)
				}
			}
		})
	}
}

func TestX12_AnUploadThatStopsComingIsRefused(t *testing.T) {
	const idle = 20 * time.Millisecond
	settings := wide()
	settings.UploadIdle = idle
	r := newRig(t, &fakeDecider{}, settings)
	served := r.mustOpen()
	r.play(served, headersOnly)
	x := r.mustOpen()
	r.play(x, headersOpen, bodyHalf)
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		// Again and again, since the part may come after a step of the clock.
		tick := time.NewTicker(idle)
		defer tick.Stop()
		for i := 0; r.refusals("upload_idle") == 0 && i < 10000; i++ {
			r.clock.pass(idle)
			<-tick.C
		}
	}()
	code, reason, _ := r.refusal(x)
	if code != 408 || reason != "upload_idle" {
		t.Errorf("refused with %d %s, want 408 upload_idle", code, reason)
	}
	if code := r.end(x); code != codes.Canceled && code != codes.OK {
		t.Errorf("status %s, want Canceled or OK after an immediate response", code)
	}
	<-refused
	// A replica may think for as long as it likes.
	r.clock.pass(time.Hour)
	r.play(served, respHeaders, respRest)
}

func TestAStreamWithoutAMessageEnds(t *testing.T) {
	settings := wide()
	settings.UploadIdle = time.Millisecond
	r := newRig(t, &fakeDecider{}, settings)
	r.clock.step.Store(int64(emptyStream))
	x := r.mustOpen()
	if err := r.ended(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the server ended the stream with %v, want DeadlineExceeded", err)
	}
	if code := r.end(x); code != codes.Canceled {
		t.Errorf("status %s, want Canceled", code)
	}
	if n := r.refusals("upload_idle"); n != 0 {
		t.Errorf("%d refusals were counted of a request that never came", n)
	}
}

func TestX13_ARefusalEndsTheStreamWithOKAndFinishesWhatWasDecided(t *testing.T) {
	t.Run("by the decider", func(t *testing.T) {
		r := newRig(t, &fakeDecider{onDecide: func(*Request) *Refusal {
			return &Refusal{Status: 404, Reason: "model_unserved", Message: "no"}
		}}, Settings{})
		x := r.mustOpen()
		r.play(x, step{send: headersOnly.send})
		if code, reason, _ := r.refusal(x); code != 404 || reason != "model_unserved" {
			t.Errorf("refused with %d %s", code, reason)
		}
		if code := r.end(x); code != codes.OK {
			t.Errorf("status %s, want OK", code)
		}
		if n := r.refusals("model_unserved"); n != 0 {
			t.Errorf("the decider's own refusal was told %d times, want never", n)
		}
	})
	t.Run("in place of the response", func(t *testing.T) {
		r := newRig(t, &fakeDecider{onServed: func(Served) *Refusal {
			return &Refusal{Status: 502, Reason: "served_outside"}
		}}, Settings{})
		x := r.mustOpen()
		r.play(x, headersOnly, step{send: respHeaders.send})
		if code, _, _ := r.refusal(x); code != 502 {
			t.Errorf("refused with %d, want 502", code)
		}
		if code := r.end(x); code != codes.OK {
			t.Errorf("status %s, want OK", code)
		}
		if got := r.decider.ends(t, 1)[0].Cause; got != ServedOutside {
			t.Errorf("cause %s, want served_outside", got)
		}
	})
}

func TestX5_AMessageOutOfOrderEndsTheStreamWithAnError(t *testing.T) {
	r := newRig(t, &fakeDecider{}, Settings{})
	x := r.mustOpen()
	r.play(x, headersOnly, step{send: headersOnly.send})
	if code := r.end(x); code != codes.FailedPrecondition {
		t.Errorf("status %s, want FailedPrecondition", code)
	}
	if got := r.decider.ends(t, 1)[0].Cause; got != Internal {
		t.Errorf("cause %s, want internal", got)
	}
}
