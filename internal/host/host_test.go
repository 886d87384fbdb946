package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
)

const loopback = "127.0.0.1:0"

// running is a whole picker on loopback ports, from files of its own.
type running struct {
	*Host
	t       *testing.T
	options Options
	config  string
	log     *observer.ObservedLogs
	records *lockedBuffer
	cancel  context.CancelFunc
	stopped bool
}

// poolDocument is a StaticPool of endpoints at the given ports of loopback.
func poolDocument(ports ...string) string {
	text := "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: local, name: demo}\nendpoints:\n"
	for i, port := range ports {
		text += fmt.Sprintf("- {name: r%d, address: 127.0.0.1, port: %s, engine: vllm}\n", i+1, port)
	}
	if len(ports) == 0 {
		text += "  []\n"
	}
	return text
}

// write replaces a file the way that editors do: whole, by a rename.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// quiet are the members of a configuration that asks no engine anything.
const quiet = "telemetry: {mode: none}\n"

func optionsFor(config string) Options {
	return Options{
		ConfigFile: config, ExtProcAddress: loopback, HealthAddress: loopback,
		MetricsAddress: loopback, AdminAddress: loopback, Log: zap.NewNop(),
	}
}

// run starts a picker with the given BerthConfiguration members and pool file.
func run(t *testing.T, members, poolText string) *running {
	t.Helper()
	base := runtime.NumGoroutine()
	dir := t.TempDir()
	r := &running{t: t, config: filepath.Join(dir, "berth.yaml"), records: &lockedBuffer{}}
	write(t, filepath.Join(dir, "pool.yaml"), poolText)
	write(t, r.config, pickerDocument+berthDocument("discovery: {file: pool.yaml}\n"+members))
	core, logs := observer.New(zapcore.DebugLevel)
	r.log = logs
	r.options = optionsFor(r.config)
	r.options.Log, r.options.DecisionLog = zap.New(core), r.records
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel // after Stop, which must end everything by itself
	h, err := Start(ctx, r.options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r.Host = h
	t.Cleanup(func() {
		r.stop()
		http.DefaultClient.CloseIdleConnections()
		eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= base })
	})
	return r
}

func (r *running) stop() {
	if !r.stopped {
		r.stopped = true
		r.Stop()
		r.cancel()
	}
}

func (r *running) pool(text string) {
	write(r.t, filepath.Join(filepath.Dir(r.config), "pool.yaml"), text)
}

func (r *running) configure(members string) {
	write(r.t, r.config, pickerDocument+berthDocument("discovery: {file: pool.yaml}\n"+members))
}

// get reads a page of one of the HTTP listeners.
func (r *running) get(addr net.Addr, path string) (code int, body string) {
	r.t.Helper()
	resp, err := http.Get("http://" + addr.String() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (r *running) metricsPage() string {
	_, page := r.get(r.MetricsAddr(), "/metrics")
	return page
}

// dial opens a gRPC connection for the length of the test.
func dial(t *testing.T, addr net.Addr) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// call plays one request as a gateway would. An immediate response is returned
// instead of a destination.
type call struct {
	t      *testing.T
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func begin(t *testing.T, conn *grpc.ClientConn) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return &call{t, stream, cancel}
}

func (c *call) send(msg *extprocv3.ProcessingRequest) {
	c.t.Helper()
	if err := c.stream.Send(msg); err != nil {
		c.t.Fatal(err)
	}
}

func (c *call) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	answer, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return answer
}

// decide sends the request and returns the destination or the refusal.
func (c *call) decide(body string, headers ...*corev3.HeaderValue) (destination string, refusal *extprocv3.ImmediateResponse) {
	c.t.Helper()
	all := append([]*corev3.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")}, {Key: ":path", RawValue: []byte("/v1/chat/completions")},
		{Key: "content-type", RawValue: []byte("application/json")},
	}, headers...)
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: all}},
	}})
	c.send(bodyMessage([]byte(body), true))
	answer := c.recv()
	if refusal := answer.GetImmediateResponse(); refusal != nil {
		return "", refusal
	}
	c.recv() // the body
	return destinationOf(answer)[0], nil
}

// respond plays the response to its end.
func (c *call) respond(by, body string) {
	c.t.Helper()
	c.send(responseMessage(ending{by: "pick", attempts: 1}, []string{by}))
	c.recv()
	c.send(responsePart(body, true))
	c.recv()
	_ = c.stream.CloseSend()
	if _, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Errorf("the stream ended with %v", err)
	}
	c.cancel()
}

func TestStartRefusesWhatCannotRun(t *testing.T) {
	taken, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	in := taken.Addr().String()
	inline := "---\n" + poolDocument("19101")
	tests := []struct {
		name   string
		config string
		pool   string
		change func(*Options)
		want   []string
	}{
		{name: "the ext_proc port is taken", config: pickerDocument + inline, change: func(o *Options) { o.ExtProcAddress = in }, want: []string{"--extproc-address", in}},
		{name: "the health port is taken", config: pickerDocument + inline, change: func(o *Options) { o.HealthAddress = in }, want: []string{"--health-address", in}},
		{name: "the metrics port is taken", config: pickerDocument + inline, change: func(o *Options) { o.MetricsAddress = in }, want: []string{"--metrics-address", in}},
		{name: "the admin port is taken", config: pickerDocument + inline, change: func(o *Options) { o.AdminAddress = in }, want: []string{"--admin-address", in}},
		{name: "no such address", config: pickerDocument + inline, change: func(o *Options) { o.AdminAddress = "nowhere" }, want: []string{"--admin-address", "nowhere"}},
		{name: "no such file", change: func(o *Options) { o.ConfigFile += ".missing" }, want: []string{"berth.yaml.missing"}},
		{name: "a member that does not exist", config: pickerDocument + berthDocument("limits: {boddy: 1MiB}\n"), want: []string{"berth.yaml:18", "boddy"}},
		{name: "a value out of range", config: pickerDocument + berthDocument("gateway: {fallbacks: 5}\n"), want: []string{"berth.yaml:18", "gateway.fallbacks", "5"}},
		{name: "no source of endpoints", config: pickerDocument, want: []string{"berth.yaml", "discovery", "discovery.file", "StaticPool"}},
		{name: "a pool file that is not there", config: pickerDocument + berthDocument("discovery: {file: pool.yaml}\n"), want: []string{"pool.yaml"}},
		{
			name: "a pool file that is broken", config: pickerDocument + berthDocument("discovery: {file: pool.yaml}\n"),
			pool: poolDocument("99999"), want: []string{"pool.yaml:5", "port", "99999"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := runtime.NumGoroutine()
			dir := t.TempDir()
			config := filepath.Join(dir, "berth.yaml")
			write(t, config, tt.config)
			if tt.pool != "" {
				write(t, filepath.Join(dir, "pool.yaml"), tt.pool)
			}
			o := optionsFor(config)
			o.DecisionLog = io.Discard
			if tt.change != nil {
				tt.change(&o)
			}
			h, err := Start(t.Context(), o)
			if err == nil {
				h.Stop()
				t.Fatal("it started")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
			eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= base })
		})
	}
}

// freePort is an address that nobody listens on at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestAStartThatFailsLeavesNothingListening(t *testing.T) {
	taken, err := net.Listen("tcp", loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	config := filepath.Join(t.TempDir(), "berth.yaml")
	write(t, config, pickerDocument+"---\n"+poolDocument("19101"))
	o := optionsFor(config)
	o.ExtProcAddress, o.HealthAddress, o.MetricsAddress = freePort(t), freePort(t), freePort(t)
	o.AdminAddress = taken.Addr().String()
	if _, err := Start(t.Context(), o); err == nil {
		t.Fatal("it started")
	}
	for _, address := range []string{o.ExtProcAddress, o.HealthAddress, o.MetricsAddress} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Errorf("still taken: %v", err)
			continue
		}
		_ = l.Close()
	}
}

func TestAPickerServesReportsAndStops(t *testing.T) {
	page, err := os.ReadFile("../engine/testdata/vllm.prom")
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "text/plain; version=0.0.4")
		_, _ = w.Write(page)
	}))
	defer engine.Close()
	_, port, _ := net.SplitHostPort(engine.Listener.Addr().String())

	r := run(t, "", poolDocument(port))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	eventually(t, "the engine is read", func() bool {
		return strings.Contains(r.metricsPage(), `berth_readings{field="queueDepth",state="fresh"} 1`)
	})

	c := begin(t, conn)
	destination, refusal := c.decide(`{"messages":[]}`)
	if destination != "127.0.0.1:"+port {
		t.Fatalf("sent to %q, refused %v", destination, refusal)
	}
	c.respond(destination, "{}")
	bad := begin(t, conn)
	if _, refusal := bad.decide(`{`); refusal.GetStatus().GetCode() != 400 {
		t.Errorf("a malformed body was answered with %v, want 400", refusal)
	}
	bad.cancel()

	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := r.get(r.MetricsAddr(), path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	eventually(t, "both records are written", func() bool {
		return strings.Contains(r.metricsPage(), `berth_ledger_records_total{result="written"} 2`)
	})
	metricsPage := r.metricsPage()
	for _, name := range []string{
		`berth_decisions_total{path="native",rung="full"} 1`, `berth_decisions_total{path="native",rung="refuse"} 1`,
		"berth_decision_duration_seconds_count 2", `berth_refusals_total{reason="body_malformed"} 1`,
		`berth_acknowledgements_total{state="confirmed"} 1`, `berth_outcomes_total{cause="complete"} 1`,
		"berth_inflight_requests 0", `berth_replicas{state="normal"} 1`, `berth_replicas{state="last"} 0`,
		`berth_replicas{state="excluded"} 0`, "berth_scrapes_total{", `engine="vllm"`, "berth_scrape_duration_seconds_count",
		`berth_policy_info{digest="sha256:`,
	} {
		if !strings.Contains(metricsPage, name) {
			t.Errorf("the metrics page lacks %s", name)
		}
	}
	for _, secret := range []string{port, "r1", "127.0.0.1"} {
		for line := range strings.Lines(metricsPage) {
			if strings.HasPrefix(line, "berth_") && strings.Contains(line, `"`+secret) {
				t.Errorf("a metric names a replica: %s", line)
			}
		}
	}

	var replicas struct{ Items []v1alpha1.Observation }
	_, body := r.get(r.AdminAddr(), "/v1alpha1/replicas")
	if err := json.Unmarshal([]byte(body), &replicas); err != nil || len(replicas.Items) != 1 || replicas.Items[0].Engine != "vllm" {
		t.Errorf("replicas: %v, %s", err, body)
	}

	health := dial(t, r.HealthAddr())
	defer health.Close()
	for _, address := range []*grpc.ClientConn{health, conn} {
		for _, service := range []string{
			"", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "liveness", "readiness",
		} {
			got, err := healthv1.NewHealthClient(address).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
			if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health of %q: %v, %v", service, got, err)
			}
		}
	}

	r.stop()
	lines := strings.Split(strings.TrimSpace(r.records.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d records were written, want 2:\n%s", len(lines), r.records)
	}
	for _, line := range lines {
		var d v1alpha1.Decision
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Errorf("a record that is none: %v", err)
		}
	}
	for _, addr := range []net.Addr{r.ExtProcAddr(), r.HealthAddr(), r.MetricsAddr(), r.AdminAddr()} {
		l, err := net.Listen("tcp", addr.String())
		if err != nil {
			t.Errorf("still listening after Stop: %v", err)
			continue
		}
		_ = l.Close()
	}
}

func TestAPickerWithoutEndpointsIsAliveAndNotReady(t *testing.T) {
	r := run(t, quiet, poolDocument())
	if code, _ := r.get(r.MetricsAddr(), "/healthz"); code != 200 {
		t.Errorf("/healthz: %d, want 200", code)
	}
	if code, body := r.get(r.MetricsAddr(), "/readyz"); code != 503 || !strings.Contains(body, "no endpoints") {
		t.Errorf("/readyz: %d %s, want 503 and why", code, body)
	}
	r.pool(poolDocument("19101"))
	eventually(t, "the picker is ready", func() bool {
		code, _ := r.get(r.MetricsAddr(), "/readyz")
		return code == 200
	})
}

func TestAChangedConfigurationIsTakenOver(t *testing.T) {
	r := run(t, quiet, poolDocument("19101"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	large := `{"messages":[],"x":"` + strings.Repeat("x", 2000) + `"}`
	before := begin(t, conn)
	destination, _ := before.decide(large)
	if destination != "127.0.0.1:19101" {
		t.Fatalf("sent to %q", destination)
	}
	digest := func() string {
		_, rest, _ := strings.Cut(r.metricsPage(), "berth_policy_info{")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	was := digest()

	// A broken file, then one with a lower limit.
	r.configure(quiet + "limits: {body: lots}\n")
	eventually(t, "the broken file is counted", func() bool {
		return strings.Contains(r.metricsPage(), `berth_config_reloads_total{result="failed"} 1`)
	})
	if now := digest(); now != was {
		t.Errorf("policy %s after a broken file, was %s", now, was)
	}
	if logged := r.log.FilterMessageSnippet("last good one").All(); len(logged) != 1 || !strings.Contains(fmt.Sprint(logged[0].ContextMap()["error"]), "limits.body") {
		t.Errorf("the broken file was logged as %v", logged)
	}
	r.configure(quiet + "limits: {body: 1KiB}\n")
	eventually(t, "the new policy is in force", func() bool { return digest() != was })
	if n := strings.Count(r.metricsPage(), "\nberth_policy_info{"); n != 1 {
		t.Errorf("%d policies are in force", n)
	}
	after := begin(t, conn)
	after.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: "content-length", RawValue: []byte("2000")},
		}}},
	}})
	if got := after.recv().GetImmediateResponse().GetStatus().GetCode(); got != 413 {
		t.Errorf("a body above the new limit was answered with %d, want 413", got)
	}
	after.cancel()
	// The request that began before ends as it would have.
	before.respond(destination, "{}")
}

func TestAChangedPoolIsTakenOver(t *testing.T) {
	r := run(t, quiet, poolDocument("19101"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	sentTo := func() string {
		c := begin(t, conn)
		defer c.cancel()
		destination, _ := c.decide(`{}`)
		return destination
	}
	if got := sentTo(); got != "127.0.0.1:19101" {
		t.Fatalf("sent to %q", got)
	}
	r.pool(poolDocument("0"))
	eventually(t, "the broken pool is counted", func() bool {
		return strings.Contains(r.metricsPage(), `berth_config_reloads_total{result="failed"} 1`)
	})
	if got := sentTo(); got != "127.0.0.1:19101" {
		t.Errorf("sent to %q after a broken pool, want the last good one", got)
	}
	r.pool(poolDocument("19102"))
	eventually(t, "the new endpoint is used", func() bool { return sentTo() == "127.0.0.1:19102" })
}

func TestAConfigurationWaitsForItsPoolFile(t *testing.T) {
	r := run(t, quiet, poolDocument("19101"))
	address := func() string { return r.pools.Set().Endpoints[0].Destination }
	later := filepath.Join(filepath.Dir(r.config), "later.yaml")
	write(t, r.config, pickerDocument+berthDocument("discovery: {file: later.yaml}\n"+quiet))
	eventually(t, "the missing file is counted", func() bool {
		return strings.Contains(r.metricsPage(), `berth_config_reloads_total{result="failed"}`)
	})
	if got := address(); got != "127.0.0.1:19101" {
		t.Errorf("the endpoint is %s, want the last good one", got)
	}
	write(t, later, poolDocument("19102"))
	eventually(t, "the configuration is in force", func() bool { return address() == "127.0.0.1:19102" })
}

func TestAPoolInTheConfigurationIsTakenOverToo(t *testing.T) {
	r := run(t, quiet, poolDocument("19101"))
	inline := func(port string) {
		write(t, r.config, pickerDocument+berthDocument(quiet)+"---\n"+poolDocument(port))
	}
	address := func() string {
		set := r.pools.Set()
		if len(set.Endpoints) != 1 {
			return ""
		}
		return set.Endpoints[0].Destination
	}
	for _, port := range []string{"19102", "19103"} {
		inline(port)
		eventually(t, "the endpoint at "+port+" is known", func() bool { return address() == "127.0.0.1:"+port })
	}
	// The old file is no longer followed, and is when it is named again.
	r.pool(poolDocument("19104"))
	r.configure(quiet)
	eventually(t, "the pool file is followed again", func() bool { return address() == "127.0.0.1:19104" })
	r.pool(poolDocument("19105"))
	eventually(t, "the pool file is followed on", func() bool { return address() == "127.0.0.1:19105" })
}

func TestX24_StopDrains(t *testing.T) {
	r := run(t, quiet+"limits: {drain: 1m}\n", poolDocument("19101"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	health := dial(t, r.HealthAddr())
	defer health.Close()
	c := begin(t, conn)
	destination, _ := c.decide(`{}`)
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	eventually(t, "health says NOT_SERVING", func() bool {
		got, err := healthv1.NewHealthClient(health).Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err == nil && got.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING
	})
	select {
	case <-stopped:
		t.Fatal("stopped before its request had ended")
	default:
	}
	c.respond(destination, "{}")
	<-stopped
	if !strings.Contains(r.records.String(), `"cause":"complete"`) {
		t.Errorf("the request did not end by itself: %s", r.records)
	}
}

func TestX24_StopCutsWhatDoesNotEndInTime(t *testing.T) {
	r := run(t, quiet+"limits: {drain: 0s}\n", poolDocument("19101"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	const each = 50
	var idle, half []*call
	for range each {
		c := begin(t, conn)
		defer c.cancel()
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{}}})
		idle = append(idle, c)
		c = begin(t, conn)
		defer c.cancel()
		destination, _ := c.decide(`{}`)
		c.send(responseMessage(ending{by: "pick"}, []string{destination}))
		c.recv()
		half = append(half, c)
	}
	r.stop()
	for _, c := range idle {
		answer, err := c.stream.Recv()
		if err != nil || answer.GetImmediateResponse().GetStatus().GetCode() != 503 {
			t.Fatalf("a request without a decision got %v, %v; want 503", answer, err)
		}
	}
	for _, c := range half {
		if _, err := c.stream.Recv(); status.Code(err) != codes.Canceled {
			t.Fatalf("a running response ended with %v, want Canceled", err)
		}
	}
	if n := strings.Count(r.records.String(), `"cause":"shutdown"`); n != each {
		t.Errorf("%d records of requests that were cut, want %d", n, each)
	}
}

// What a prompt says is nobody's business: it is in no record, log line, metric,
// report or refusal, whatever the body is like. Neither are credentials.
func TestZ3_Z4_PromptsAndCredentialsStayWhereTheyAre(t *testing.T) {
	const canary = "CANARY-5f2b"
	bodies := []string{
		`{"model":"m","messages":[{"role":"user","content":"CANARY-5f2b"}]}`,
		`{"model":"m","messages":[{"role":"user","content":"CANARY-5f2b"}],"model":"n"}`,
		`{"messages":[{"role":"user","content":"CANARY-5f2b"}`,
		`{"messages":"CANARY-5f2b" "x"}`,
		`CANARY-5f2b`,
		`{"model":{"CANARY-5f2b":1}}`,
		`{"CANARY-5f2b":1,"model":7}`,
		`{"model":"m","prompt":"\uZZZZCANARY-5f2b"}`,
		"{\"model\":\"m\",\"prompt\":\"CANARY-5f2b\x01\"}",
		`{"model":"m","tools":[{"function":{"arguments":"CANARY-5f2b"}}]} CANARY-5f2b`,
		`{"model":"` + strings.Repeat("x", 2000) + `CANARY-5f2b"}`,
		`{"mod\u0065l":"CANARY-5f2b"}`,
	}
	r := run(t, quiet+"acknowledgement: {responseHeaders: full}\n", poolDocument("19101", "19102"))
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	var seen bytes.Buffer
	for _, body := range bodies {
		c := begin(t, conn)
		destination, refusal := c.decide(body,
			&corev3.HeaderValue{Key: "authorization", RawValue: []byte("Bearer " + canary)},
			&corev3.HeaderValue{Key: "x-api-key", Value: canary}, &corev3.HeaderValue{Key: "cookie", Value: canary},
			&corev3.HeaderValue{Key: "x-berth-intent", Value: canary}, &corev3.HeaderValue{Key: "traceparent", Value: canary},
		)
		if refusal != nil {
			fmt.Fprintln(&seen, refusal)
			c.cancel()
			continue
		}
		c.respond(destination, `{"choices":[{"message":{"content":"`+canary+`"}}]}`)
	}
	// Messages out of order end with an error, which gateways log.
	c := begin(t, conn)
	defer c.cancel()
	c.send(bodyMessage([]byte(canary), true))
	_, err := c.stream.Recv()
	fmt.Fprintln(&seen, err)

	for _, path := range []string{"/v1alpha1/replicas", "/v1alpha1/decisions"} {
		_, page := r.get(r.AdminAddr(), path)
		fmt.Fprintln(&seen, page)
	}
	fmt.Fprintln(&seen, r.metricsPage())
	decisions := r.ledger.Newest(1000)
	if len(decisions) != len(bodies) {
		t.Errorf("%d decisions were recorded of %d requests", len(decisions), len(bodies))
	}
	for _, d := range decisions {
		if err := console.Explain(&seen, d); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	fmt.Fprintln(&seen, r.records)
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	for _, entry := range r.log.All() {
		line, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(line.Bytes())
	}
	for line := range strings.Lines(seen.String()) {
		if strings.Contains(line, canary) {
			t.Errorf("found in: %.300s", line)
		}
	}
	if !strings.Contains(seen.String(), "model_ambiguous") || !strings.Contains(seen.String(), "body_malformed") {
		t.Error("the refusals were not looked at")
	}
}

// A clock that stands still, or steps, decides nothing by itself.
func TestTheSteadyClockFollowsTheTimeThatPasses(t *testing.T) {
	clock := steadyClock()
	first := clock()
	if off := time.Since(first.Time()).Abs(); off > patience {
		t.Errorf("the clock is off by %s", off)
	}
	eventually(t, "the clock moves on", func() bool { return clock() > first })
}
