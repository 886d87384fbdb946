package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Each limit of the configuration, met by a whole picker: what the gateway gets,
// what the record says, and what the metrics count.

func limited(t *testing.T, limits string) *running {
	t.Helper()
	return run(t, quiet+"limits: {"+limits+"}\n", poolDocument("19101", "19102"))
}

// counted waits for a refusal to be in the metrics and in a record.
func (r *running) counted(reason string, refusals int, statusCode int) {
	r.t.Helper()
	series := fmt.Sprintf("berth_refusals_total{reason=%q} %d\n", reason, refusals)
	eventually(r.t, "the page has "+series, func() bool { return strings.Contains(r.metricsPage(), series) })
	record := fmt.Sprintf(`"refusal":{"status":%d,"reason":%q,`, statusCode, reason)
	eventually(r.t, "the log has "+record, func() bool { return strings.Count(r.records.String(), record) == refusals })
}

func TestMoreStreamsThanMayBeAreRefusedUntilOthersEnd(t *testing.T) {
	r := limited(t, "streams: 2")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	first, second := r.ask(conn, question{}), r.ask(conn, question{})
	mustPlace(t, first)
	mustPlace(t, second)
	if page := r.metricsPage(); !strings.Contains(page, "\nberth_streams 2\n") {
		t.Errorf("two streams are open, and the page does not say so")
	}
	mustRefuse(t, r.ask(conn, question{}), 503, "overloaded")
	r.counted("overloaded", 1, 503)
	first.tell("200", "application/json", "{}")
	eventually(t, "the first stream is closed", func() bool { return r.extproc.Streams() == 1 })
	third := r.ask(conn, question{})
	mustPlace(t, third)
	second.leave()
	third.leave()
}

func TestAConnectionIsToldHowManyStreamsItMayHave(t *testing.T) {
	r := limited(t, "streamsPerConnection: 1")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	first := r.ask(conn, question{})
	mustPlace(t, first)

	// A gateway that keeps to the number waits, or opens another connection.
	var waited reply
	var done sync.WaitGroup
	done.Go(func() { waited = r.ask(conn, question{}) })
	other := dial(t, r.ExtProcAddr())
	defer other.Close()
	second := r.ask(other, question{})
	mustPlace(t, second)
	if n := r.extproc.Streams(); n != 2 {
		t.Errorf("%d streams are open, want one on each of two connections", n)
	}
	first.tell("200", "application/json", "{}")
	done.Wait()
	mustPlace(t, waited)
	waited.leave()
	second.leave()
}

func TestX10_AMessageThatIsTooLargeIsCountedAndRecorded(t *testing.T) {
	r := limited(t, "body: 1MiB, message: 2MiB")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	c := begin(t, conn)
	first := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode: bodyBuffered, ResponseBodyMode: bodyNone,
		},
	}
	c.send(first)
	c.recv()
	// The picker may have ended the stream before all of it is sent.
	_ = c.stream.Send(bodyMessage(make([]byte, 2<<20), true))
	if _, err := c.stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the stream ended with %v, want ResourceExhausted", err)
	}
	r.counted("body_too_large", 1, 413)
	if !strings.Contains(r.records.String(), "limits.message") {
		t.Errorf("the record does not name the limit: %s", r.records.String())
	}
}

func TestHD7_HeadersAreLimitedInNumberAndLength(t *testing.T) {
	r := limited(t, "headerCount: 5, headerBytes: 1KiB")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	two := question{headers: headersOf("a", "1", "b", "2")}
	placed := r.ask(conn, two)
	mustPlace(t, placed)
	placed.leave()
	mustRefuse(t, r.ask(conn, question{headers: headersOf("a", "1", "b", "2", "c", "3")}), 431, "headers_too_large")
	mustRefuse(t, r.ask(conn, question{headers: headersOf("a", strings.Repeat("x", 1<<10))}), 431, "headers_too_large")
	mustRefuse(t, r.ask(conn, question{headers: headersOf(strings.Repeat("x", 1<<10), "")}), 431, "headers_too_large")
	r.counted("headers_too_large", 3, 431)
}

func TestX12_SlowUploadsAreRefused(t *testing.T) {
	for _, c := range []struct{ name, limits, reason string }{
		{"nothing comes", "uploadIdle: 20ms, uploadTime: 10m", "upload_idle"},
		{"a byte comes now and then", "uploadIdle: 200ms, uploadTime: 200ms", "upload_slow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := limited(t, c.limits)
			conn := dial(t, r.ExtProcAddr())
			defer conn.Close()
			call := begin(t, conn)
			call.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
				RequestHeaders: &extprocv3.HttpHeaders{},
			}})
			answered := make(chan struct{})
			var drip sync.WaitGroup
			if c.reason == "upload_slow" {
				drip.Go(func() {
					tick := time.NewTicker(5 * time.Millisecond)
					defer tick.Stop()
					for {
						select {
						case <-answered:
							return
						case <-tick.C:
							// The stream may be over.
							_ = call.stream.Send(bodyMessage([]byte{' '}, false))
						}
					}
				})
			}
			refusal := call.recv().GetImmediateResponse()
			close(answered)
			drip.Wait()
			if refusal.GetStatus().GetCode() != 408 || valueOf(refusal.GetHeaders(), "x-berth-reason") != c.reason {
				t.Errorf("got %v, want 408 %s", refusal, c.reason)
			}
			r.counted(c.reason, 1, 408)
			eventually(t, "nothing is held", func() bool { return r.extproc.Held() == 0 && r.extproc.Streams() == 0 })
			call.cancel()
		})
	}
}

func TestBodiesThatNobodyTakesBackAreNotHeldForEver(t *testing.T) {
	r := limited(t, "body: 4MiB, buffered: 8MiB, uploadIdle: 2s")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	c := begin(t, conn)
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{},
	}})
	const part = 1 << 20
	for i := range 4 {
		c.send(bodyMessage(make([]byte, part), i == 3))
	}
	// No answer is read: what does not fit into the windows of the stream stays.
	eventually(t, "the body was held, and the request placed", func() bool {
		return strings.Contains(r.metricsPage(), `berth_decisions_total{path="native",rung="spread"} 1`)
	})
	eventually(t, "nothing is held, and the unit is back", func() bool {
		return r.extproc.Held() == 0 && r.extproc.Streams() == 0 && strings.Contains(r.metricsPage(), "\nberth_inflight_requests 0\n")
	})
	eventually(t, "its end is recorded", func() bool { return strings.Contains(r.records.String(), `"cause":"aborted"`) })
	c.cancel()
}

func TestX18_UnknownPathsAreRefusedWhereThePolicySaysSo(t *testing.T) {
	r, conn := two(t, "gateway: {unknownPaths: refuse}\n")
	for _, path := range []string{"/", "/health", "/v1/chat/completions/render", "/v1/models/llama", "*", ""} {
		q := question{path: path}
		if path == "" {
			q.method = "CONNECT"
			q.path = "x:443"
		}
		mustRefuse(t, r.ask(conn, q), 404, "path_unknown")
	}
	r.counted("path_unknown", 6, 404)
	for _, path := range []string{"/v1/models", "/v1/chat/completions?x=1", "/team-a/v1/completions/", "/v2/models/m/infer", "/tokenize"} {
		g := r.ask(conn, question{method: "GET", path: path})
		mustPlace(t, g)
		g.leave()
	}
}

// freezer passes bytes between a gateway and the picker until it is told to drop
// them, as a network does that has lost one of the two.
type freezer struct {
	net.Listener
	frozen chan struct{}
	busy   sync.WaitGroup
}

func freeze(t *testing.T, to net.Addr) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{Listener: l, frozen: make(chan struct{})}
	f.busy.Go(func() {
		for {
			gateway, err := l.Accept()
			if err != nil {
				return
			}
			picker, err := net.Dial("tcp", to.String())
			if err != nil {
				_ = gateway.Close()
				return
			}
			f.busy.Go(func() { f.pass(gateway, picker) })
			f.busy.Go(func() { f.pass(picker, gateway) })
		}
	})
	return f
}

func (f *freezer) pass(from, to net.Conn) {
	defer to.Close()
	buffer := make([]byte, 1<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-f.frozen:
			continue
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestX14_RequestsOfAGatewayThatIsGoneWithoutAWordEnd(t *testing.T) {
	r := limited(t, "keepalive: {interval: 1s, timeout: 50ms}")
	f := freeze(t, r.ExtProcAddr())
	conn := dial(t, f.Addr())
	g := r.ask(conn, question{})
	mustPlace(t, g)
	close(f.frozen)
	eventually(t, "the unit came back", func() bool {
		page := r.metricsPage()
		return strings.Contains(page, "\nberth_inflight_requests 0\n") && strings.Contains(page, "\nberth_streams 0\n")
	})
	if d := r.record(g.decision, ended); d.Outcome.Cause != "client_disconnect" {
		t.Errorf("cause %s, want client_disconnect", d.Outcome.Cause)
	}
	g.leave()
	_ = conn.Close()
	_ = f.Close()
	f.busy.Wait()
}

// pings counts how many pings a connection may send in a row before it is told to
// go; at most 20 are sent.
func pings(t *testing.T, to net.Addr) int {
	t.Helper()
	conn, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	answered := 0
	for answered < 20 {
		if err := framer.WritePing(false, [8]byte{byte(answered)}); err != nil {
			t.Fatal(err)
		}
		for acked := false; !acked; {
			f, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.GoAwayFrame:
				if f.ErrCode != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("told to go with %s", f.ErrCode)
				}
				return answered
			case *http2.PingFrame:
				acked = f.IsAck()
			}
		}
		answered++
	}
	return answered
}

func TestAGatewayThatPingsTooOftenIsDisconnected(t *testing.T) {
	r := limited(t, "keepalive: {minInterval: 1h}")
	if n := pings(t, r.ExtProcAddr()); n > 5 {
		t.Errorf("%d pings in a row were answered, want a few at most", n)
	}
}

func TestLimitsOfTheListenerActAfterARestartAndAreWarnedOf(t *testing.T) {
	r := limited(t, "streamsPerConnection: 7")
	r.configure(quiet + "limits: {streamsPerConnection: 8}\n")
	eventually(t, "the log says when it acts", func() bool {
		return r.log.FilterMessageSnippet("streamsPerConnection").FilterMessageSnippet("after a restart").Len() == 1
	})
	r.configure(quiet + "limits: {streamsPerConnection: 7, streams: 1}\n")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	eventually(t, "the new limit of streams is in force", func() bool {
		settings, _ := r.begin()
		return settings.Streams == 1
	})
	first := r.ask(conn, question{})
	mustPlace(t, first)
	mustRefuse(t, r.ask(conn, question{}), 503, "overloaded")
	first.leave()
}

func headersOf(pairs ...string) (all []*corev3.HeaderValue) {
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, rawHeader(pairs[i], pairs[i+1]))
	}
	return all
}

func TestRecordsOfEarlyRefusalsSayWhatTheRequestWas(t *testing.T) {
	r := limited(t, "body: 1KiB, headerCount: 5")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	for _, c := range []struct {
		name string
		q    question
		want v1alpha1.RequestFacts
	}{
		{"too large", question{parts: []string{strings.Repeat("x", 1000), strings.Repeat("x", 1000)}},
			v1alpha1.RequestFacts{API: "chat_completions", BodyBytes: 2000, Unread: "refused"}},
		{"too many headers", question{path: "/v1/embeddings", headers: headersOf("a", "", "b", "", "c", "")},
			v1alpha1.RequestFacts{API: "embeddings", Unread: "refused"}},
		{"malformed", question{parts: []string{"{"}}, v1alpha1.RequestFacts{API: "chat_completions", BodyBytes: 1}},
	} {
		g := r.ask(conn, c.q)
		if g.refusal == nil {
			t.Fatalf("%s: placed", c.name)
		}
		if d := r.record(valueOf(g.refusal.GetHeaders(), "x-berth-decision"), written); d.Request != c.want {
			t.Errorf("%s: recorded as %+v, want %+v", c.name, d.Request, c.want)
		}
		g.leave()
	}
}

func TestWhatIsRefusedAfterItWasPlacedIsNoViolation(t *testing.T) {
	r, conn := two(t, "")
	c := begin(t, conn)
	c.send(&extprocv3.ProcessingRequest{
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: bodyStreamed, ResponseBodyMode: bodyNone},
	})
	id := valueOf(c.recv().GetRequestHeaders().GetResponse().GetHeaderMutation(), "x-berth-decision")
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}})
	if answer := c.recv().GetImmediateResponse(); answer.GetStatus().GetCode() != 400 {
		t.Fatalf("answered with %v, want 400", answer)
	}
	d := r.record(id, ended)
	if d.Outcome.Cause != "refused" || d.Outcome.Details != "trailers_refused" {
		t.Errorf("the outcome is %+v, want refused for trailers_refused", d.Outcome)
	}
	if page := r.metricsPage(); strings.Contains(page, "served_outside") {
		t.Error("it counts as served outside")
	}
	c.cancel()
}

func TestMetadataOfGatewaysIsLimited(t *testing.T) {
	r := limited(t, "drain: 0s")
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("y", metadataLimit))
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a stream with %d bytes of metadata ended with %v, want an error", metadataLimit, err)
	}
}
