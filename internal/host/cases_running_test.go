package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
)

// What a picker does as a process: it stops, it idles, it is attacked, it logs.

// Responses that run may end while a picker drains; requests that never become
// complete are refused when the time is over, and keep nobody.
func TestX24_StopLetsResponsesEndAndRefusesWhatIsIdle(t *testing.T) {
	r, conn := two(t, "limits: {drain: 5s, uploadIdle: 10m, uploadTime: 20m}\n")
	health := dial(t, r.HealthAddr())
	defer health.Close()
	const each = 50
	var idle []*call
	var running []reply
	for range each {
		c := begin(t, conn)
		defer c.cancel()
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}})
		c.send(bodyMessage([]byte(`{"model":`), false))
		idle = append(idle, c)
		running = append(running, r.ask(conn, question{parts: []string{hello}}))
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	eventually(t, "health says NOT_SERVING", func() bool {
		got, err := healthv1.NewHealthClient(health).Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err == nil && got.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING
	})
	for _, g := range running {
		g.tell("200", "application/json", "half", "rest")
	}
	for _, c := range idle {
		if status := c.recv().GetImmediateResponse().GetStatus().GetCode(); status != 503 {
			t.Errorf("an idle request got %d, want 503", status)
		}
	}
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("the picker never stopped")
	}
	if n := strings.Count(r.records.String(), `"cause":"complete"`); n != each {
		t.Errorf("%d responses ended by themselves, want %d", n, each)
	}
	if n := strings.Count(r.records.String(), `"reason":"shutting_down"`); n != each {
		t.Errorf("%d requests were refused, want %d", n, each)
	}
}

func TestZ7_DebugSurfacesAreNotServed(t *testing.T) {
	r, _ := two(t, "")
	for name, addr := range map[string]net.Addr{"metrics": r.MetricsAddr(), "admin": r.AdminAddr()} {
		for _, path := range []string{
			"/debug/pprof", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile", "/debug/pprof/heap?debug=1", "/debug/pprof/trace",
			"/debug/vars", "/debug/requests", "/debug/events", "/debug", "/metrics/../debug/pprof/", "/", "/config", "/quitquitquit",
		} {
			if code, _ := r.get(addr, path); code != 404 {
				t.Errorf("%s listener, %s: %d, want 404", name, path, code)
			}
		}
	}
	// What names replicas is on the admin listener alone, and metrics elsewhere.
	for _, path := range []string{"/v1alpha1/replicas", "/v1alpha1/decisions"} {
		if code, _ := r.get(r.MetricsAddr(), path); code != 404 {
			t.Errorf("metrics listener, %s: %d, want 404", path, code)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE"} {
		for _, url := range []string{"http://" + r.AdminAddr().String() + "/v1alpha1/replicas", "http://" + r.MetricsAddr().String() + "/metrics"} {
			req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d, want 405", method, url, resp.StatusCode)
			}
		}
	}
}

// An engine is read at its own address, whatever it and its annotations say.
func TestZ8_ScrapesGoToTheEndpointAlone(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	otherHost, otherPort, _ := net.SplitHostPort(other.Listener.Addr().String())
	var asked atomic.Int32
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		w.Header().Set("location", other.URL+req.URL.Path)
		w.Header().Set("link", "<"+other.URL+">; rel=canonical")
		w.WriteHeader([]int{301, 302, 303, 307, 308}[int(asked.Load())%5])
	}))
	defer engine.Close()
	_, port, _ := net.SplitHostPort(engine.Listener.Addr().String())
	annotations := "{prometheus.io/scrape: 'true', prometheus.io/host: " + otherHost + ", prometheus.io/port: '" + otherPort + "', prometheus.io/path: '" + other.URL + "/metrics'}"
	document := strings.Replace(poolDocument(port), "engine: vllm}", "engine: vllm, annotations: "+annotations+", labels: "+annotations+"}", 1)
	run(t, "telemetry: {hot: 50ms, warm: 50ms, idle: 50ms}\n", document)
	eventually(t, "the engine is asked with each kind of redirection", func() bool { return asked.Load() >= 5 })
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests went to another address", n)
	}
}

// rawStream posts bytes as the content of one ext_proc stream, as no gRPC client
// would, and returns the stream's status: "0" is OK.
func rawStream(t *testing.T, client *http.Client, addr net.Addr, content []byte) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+addr.String()+extprocv3.ExternalProcessor_Process_FullMethodName, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("content-type", "application/grpc")
	req.Header.Set("te", "trailers")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%x: %v", content[:min(20, len(content))], err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if code := resp.Header.Get("grpc-status"); code != "" {
		return code
	}
	return resp.Trailer.Get("grpc-status")
}

// frame is one message as gRPC frames it, with the length that is stated.
func frame(flag byte, length uint32, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, length), content...)
}

// Lengths are the sender's word. Whatever they say, the stream ends with an error,
// nothing of that size is allocated, and others are served on the same listener.
func TestZ9_StatedLengthsAreNotBelieved(t *testing.T) {
	r, conn := two(t, "")
	message, err := proto.Marshal(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}})
	if err != nil {
		t.Fatal(err)
	}
	whole := frame(0, uint32(len(message)), message)
	contents := map[string][]byte{
		"nothing":                              {},
		"the largest length":                   frame(0, 0xffffffff, message),
		"the largest length, and nothing else": frame(0, 0xffffffff, nil),
		"the largest signed length":            frame(0, 0x7fffffff, message),
		"the sign bit":                         frame(0, 0x80000000, message),
		"lengths that wrap with the header":    frame(0, 0xfffffffb, message),
		"a byte too long":                      frame(0, uint32(len(message))+1, message),
		"a byte too short":                     frame(0, uint32(len(message))-1, message),
		"compressed with nothing":              frame(1, uint32(len(message)), message),
		"a flag that does not exist":           frame(0xff, uint32(len(message)), message),
		"a second frame that is the largest":   append(bytes.Clone(whole), frame(0, 0xffffffff, nil)...),
		"a field that is longer than all":      frame(0, 11, append([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, message...)),
		"a field that is no field":             frame(0, 4, []byte{0xff, 0xff, 0xff, 0xff}),
	}
	for cut := range len(whole) {
		contents[fmt.Sprintf("cut after %d bytes", cut)] = whole[:cut]
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, content := range contents {
		if status := rawStream(t, client, r.ExtProcAddr(), content); status == "0" || status == "" {
			t.Errorf("%s: the stream ended with status %q, want an error", name, status)
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 256<<20 {
		t.Errorf("%d bytes were allocated for streams of some bytes", used)
	}
	g := r.ask(conn, question{parts: []string{hello}})
	mustPlace(t, g)
	g.leave()
	if !strings.Contains(r.metricsPage(), "\nberth_contained_panics_total 0\n") {
		t.Error("a fault was contained")
	}
}

// Below gRPC: HTTP/2 frames that are cut, too long or of no kind end their own
// connection.
func TestZ9_BrokenConnectionsEndAlone(t *testing.T) {
	r, conn := two(t, "")
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for name, content := range map[string]string{
		"nothing":                        "",
		"half a preface":                 preface[:12],
		"another protocol":               "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"TLS":                            "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"no settings":                    preface,
		"half a frame":                   preface + settings[:5],
		"a frame of the largest length":  preface + settings + "\xff\xff\xff\x00\x00\x00\x00\x00\x01" + "x",
		"headers of the largest length":  preface + settings + "\xff\xff\xff\x01\x04\x00\x00\x00\x01" + "x",
		"settings of an odd length":      preface + "\x00\x00\x05\x04\x00\x00\x00\x00\x00" + "abcde",
		"data on no stream":              preface + settings + "\x00\x00\x01\x00\x00\x00\x00\x00\x00" + "x",
		"headers that are no HPACK":      preface + settings + "\x00\x00\x04\x01\x04\x00\x00\x00\x01" + "\xff\xff\xff\xff",
		"padding longer than its frame":  preface + settings + "\x00\x00\x02\x00\x08\x00\x00\x00\x01" + "\xffx",
		"a continuation without headers": preface + settings + "\x00\x00\x01\x09\x04\x00\x00\x00\x01" + "x",
		"a window that overflows":        preface + settings + "\x00\x00\x04\x08\x00\x00\x00\x00\x00" + "\x7f\xff\xff\xff",
		"a frame of no kind":             preface + settings + "\x00\x00\x01\xee\x00\x00\x00\x00\x00" + "x",
	} {
		c, err := net.Dial("tcp", r.ExtProcAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, content); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		// The picker closes its side too, whatever it says before.
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%s: the connection stays open", name)
			}
		}
		_ = c.Close()
	}
	g := r.ask(conn, question{parts: []string{hello}})
	mustPlace(t, g)
	g.leave()
}

// goroutine is the head of one in a dump: its number and what it does.
var goroutine = regexp.MustCompile(`(?m)^goroutine (\d+) \[(running|runnable)`)

// busy are the goroutines that are not blocked, this one apart.
func busy() map[string]bool {
	dump := make([]byte, 1<<20)
	dump = dump[:runtime.Stack(dump, true)]
	found := map[string]bool{}
	for _, m := range goroutine.FindAllSubmatch(dump, -1)[1:] {
		found[string(m[1])] = true
	}
	return found
}

// cpu is what this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// After a request an idle picker waits for the next one, and does nothing else.
func TestP2_AnIdlePickerIsBlocked(t *testing.T) {
	r, conn := two(t, "")
	health := dial(t, r.HealthAddr())
	defer health.Close()
	check := func() {
		got, err := healthv1.NewHealthClient(health).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("health: %v, %v", got, err)
		}
	}
	g := r.ask(conn, question{parts: []string{hello}})
	g.tell("200", "application/json", "{}")
	r.record(g.decision, ended)
	http.DefaultClient.CloseIdleConnections()
	check()
	var base int
	eventually(t, "the goroutines of the request are gone", func() bool {
		before := base
		base = runtime.NumGoroutine()
		return base == before && len(busy()) == 0
	})

	// A goroutine that spins is never blocked, however busy the machine is: it is
	// in each of these dumps.
	const checks = 20
	spinning := busy()
	used, began := cpu(t), time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range checks {
		<-tick.C
		check()
		now := busy()
		for id := range spinning {
			if !now[id] {
				delete(spinning, id)
			}
		}
	}
	if len(spinning) > 0 {
		t.Errorf("goroutines %v are never blocked", spinning)
	}
	if share := float64(cpu(t)-used) / float64(time.Since(began)); share > 0.5 {
		t.Errorf("an idle picker uses %.2f cores", share)
	}
	if now := runtime.NumGoroutine(); now > base+2 {
		t.Errorf("%d goroutines after %d health checks, %d before", now, checks, base)
	}
}

// A state that is usual is not news with each request: many requests to many
// endpoints that say nothing write no line.
func TestP6_RequestsWriteNoLines(t *testing.T) {
	ports := make([]string, 100)
	for i := range ports {
		ports[i] = fmt.Sprint(19200 + i)
	}
	for name, members := range map[string]string{"engines that do not answer": "telemetry: {hot: 1h, warm: 1h, idle: 1h}\n", "engines that are not asked": quiet} {
		t.Run(name, func(t *testing.T) {
			r := run(t, members, poolDocument(ports...))
			conn := dial(t, r.ExtProcAddr())
			defer conn.Close()
			before, start := r.log.Len(), time.Now()
			for i := range 150 {
				body := hello
				if i%10 == 0 {
					body = "{" // refused
				}
				g := r.ask(conn, question{parts: []string{body}})
				if g.refusal == nil {
					g.tell("200", "application/json", "{}")
				}
				g.leave()
			}
			// What happens to engines may be told meanwhile, in one line a second.
			seconds := int(time.Since(start) / time.Second)
			if lines := r.log.All()[before:]; len(lines) > 2+seconds {
				t.Errorf("%d lines after 150 requests, such as %s %v", len(lines), lines[0].Message, lines[0].ContextMap())
			}
		})
	}
}

// A pick may cost more where there are more endpoints, and reading a body more
// where it is longer, but neither in allocations: those are what makes a picker
// slow at the size of a fleet.
func TestP8_ALongPromptAndAManyEndpointsCostNoMoreAllocations(t *testing.T) {
	cost := func(endpoints, tokens int) (allocations float64) {
		r := newRig(t, "gateway: {fallbacks: 4}\n")
		specs := make([]pool.Spec, endpoints)
		for i := range specs {
			specs[i] = endpoint(1, at(fmt.Sprintf("10.0.%d.%d:8000", i/250, 1+i%250)))
			specs[i].Name = fmt.Sprintf("r%d", i)
		}
		r.update(specs...)
		for i := range specs {
			r.publish(specs[i].Name, load{float64(i % 7), 1, 0.5}, 0)
		}
		req := r.request(`{"model":"m","prompt":[` + strings.TrimSuffix(strings.Repeat("128000,", tokens), ",") + `]}`)
		req.Path = "/v1/completions"
		return testing.AllocsPerRun(20, func() {
			d, refusal := r.decider.begin().Decide(req)
			if refusal != nil {
				t.Fatal(refusal)
			}
			d.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
		})
	}
	small, large := cost(10, 100), cost(500, 128_000)
	if large > small+20 {
		t.Errorf("%v allocations for 128,000 tokens and 500 endpoints, %v for 100 and 10", large, small)
	}
}
