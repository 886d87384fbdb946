package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// client speaks one version of HTTP to the gateway, without TLS.
func client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// send has one request answered, whatever the status.
func (r running) send(t *testing.T, c *http.Client, method string, body io.Reader, edit func(*http.Request)) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.gateway+"/v1/completions?secret=1", body)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(request)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

func TestARequestGoesWhereThePickerSaysAndNowhereElse(t *testing.T) {
	a, b := newReplica(t, "127.0.0.1:0"), newReplica(t, "127.0.0.1:0")
	unknown := newReplica(t, "127.0.0.1:0") // of which the pool does not know
	dead := refusing(t)
	list := func(addresses ...netip.AddrPort) string {
		texts := make([]string, len(addresses))
		for i, a := range addresses {
			texts[i] = a.String()
		}
		return strings.Join(texts, ",")
	}
	for _, tc := range []struct {
		name        string
		kind        Kind
		fallbacks   int
		destination string
		served      *replica // nil: nobody, with 503
		attempts    float64
	}{
		{"the pick", OverrideHost, 0, list(a.address), a, 1},
		{"another pick", OverrideHost, 0, list(b.address), b, 1},
		{"the fallback of a dead pick", OverrideHost, 2, list(dead, b.address), b, 2},
		{"no fallback where none is configured", OverrideHost, 0, list(dead, b.address), nil, 0},
		{"a dead pick without a fallback", OverrideHost, 2, list(dead), nil, 0},
		{"the known one of a list", OverrideHost, 2, list(unknown.address, b.address), b, 1},
		{"an unknown pick", OverrideHost, 2, list(unknown.address), nil, 0},
		{"no pick", OverrideHost, 2, "", nil, 0},
		{"a pick that is no address", OverrideHost, 2, "localhost", nil, 0},
		{"the pick", OriginalDst, 0, list(a.address), a, 1},
		{"a dead pick", OriginalDst, 0, list(dead), nil, 0},
		{"a list", OriginalDst, 0, list(a.address, b.address), nil, 0},
		{"no pick", OriginalDst, 0, "", nil, 0},
	} {
		t.Run(string(tc.kind)+" "+tc.name, func(t *testing.T) {
			p := newPicker(t)
			r := run(t, Options{
				Kind:          tc.kind,
				PickerAddress: p.address.String(),
				Fallbacks:     tc.fallbacks,
				Endpoints:     []Endpoint{{"a", a.address}, {"b", b.address}, {"dead", dead}},
			})
			for _, body := range []string{`{"model":"m"}`, ""} {
				p.answer(tc.destination)
				before := map[*replica]int{a: len(a.requests()), b: len(b.requests()), unknown: len(unknown.requests())}
				method := http.MethodPost
				if body == "" {
					method = http.MethodGet
				}
				status, _ := r.send(t, client(t, false), method, strings.NewReader(body), func(request *http.Request) {
					// A client's own idea must change nothing.
					request.Header.Set(destinationKey, list(b.address))
					request.Header.Set("X-Envoy-Max-Retries", "5")
					request.Header.Set("X-Envoy-Retry-On", "connect-failure,5xx")
				})
				want := http.StatusOK
				if tc.served == nil {
					want = http.StatusServiceUnavailable
				}
				if status != want {
					t.Errorf("%s: status %d, want %d", method, status, want)
				}
				for replica, n := range before {
					got, want := len(replica.requests())-n, 0
					if replica == tc.served {
						want = 1
					}
					if got != want {
						t.Errorf("%s: replica %s got %d requests, want %d", method, replica.address, got, want)
					}
				}
				x := p.last(t)
				if tc.served == nil {
					if details := x.Attributes["response.code_details"].GetStringValue(); details == "via_upstream" || details == "" {
						t.Errorf("%s: response.code_details is %q for an answer of Envoy's own", method, details)
					}
					continue
				}
				if seen := tc.served.requests(); len(seen) > 0 && seen[len(seen)-1].Size != int64(len(body)) {
					t.Errorf("%s: the replica got a body of %d bytes, want %d", method, seen[len(seen)-1].Size, len(body))
				}
				if got := x.Attributes["upstream.address"].GetStringValue(); got != tc.served.address.String() {
					t.Errorf("%s: upstream.address is %q, want %s", method, got, tc.served.address)
				}
				if got := x.Attributes["upstream.request_attempt_count"].GetNumberValue(); got != tc.attempts {
					t.Errorf("%s: upstream.request_attempt_count is %v, want %v", method, got, tc.attempts)
				}
				if got := x.Attributes["response.code_details"].GetStringValue(); got != "via_upstream" {
					t.Errorf("%s: response.code_details is %q, want via_upstream", method, got)
				}
				if tc.kind == OverrideHost && x.Served != tc.served.address.String() {
					t.Errorf("%s: the served metadata is %q, want %s", method, x.Served, tc.served.address)
				}
			}
		})
	}
}

func TestAnIPv6ReplicaIsReached(t *testing.T) {
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6 loopback")
	}
	_ = probe.Close()
	replica := newReplica(t, "[::1]:0")
	for _, kind := range []Kind{OverrideHost, OriginalDst} {
		t.Run(string(kind), func(t *testing.T) {
			p := newPicker(t)
			r := run(t, Options{Kind: kind, PickerAddress: p.address.String(), Endpoints: []Endpoint{{"six", replica.address}}})
			p.answer(replica.address.String())
			if status, _ := r.send(t, client(t, false), http.MethodPost, strings.NewReader("{}"), nil); status != http.StatusOK {
				t.Errorf("status %d, want 200", status)
			}
			if got := p.last(t).Attributes["upstream.address"].GetStringValue(); got != replica.address.String() {
				t.Errorf("upstream.address is %q, want %s", got, replica.address)
			}
		})
	}
}

func TestReservedHeadersOfAClientReachNobody(t *testing.T) {
	replica, p := newReplica(t, "127.0.0.1:0"), newPicker(t)
	r := run(t, Options{PickerAddress: p.address.String(), Endpoints: []Endpoint{{"r1", replica.address}}})
	p.answer(replica.address.String())
	reserved := []string{
		"X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Subset", "X-GATEWAY-INFERENCE-OBJECTIVE",
		"X-Berth-Intent", "X-Berth-Decision", "X-Selected-Model", "X-Envoy-Upstream-Rq-Timeout-Ms", "X-Envoy-Max-Retries",
	}
	for _, h2 := range []bool{false, true} {
		status, _ := r.send(t, client(t, h2), http.MethodPost, strings.NewReader("{}"), func(request *http.Request) {
			for _, name := range reserved {
				request.Header.Add(name, "1")
				request.Header.Add(name, "2")
			}
			request.Header.Set("X-Request-Id", "mine")
			request.Header.Set("X-Kept", "yes")
		})
		if status != http.StatusOK {
			t.Fatalf("h2 %v: status %d, want 200", h2, status)
		}
		seen := replica.requests()
		atReplica, atPicker := seen[len(seen)-1].Header, p.last(t).RequestHeaders
		for _, name := range reserved {
			if got := atReplica.Values(name); len(got) != 0 {
				t.Errorf("h2 %v: the replica got %s: %q", h2, name, got)
			}
			if got, ok := atPicker[strings.ToLower(name)]; ok {
				t.Errorf("h2 %v: the picker got %s: %q", h2, name, got)
			}
		}
		for name, want := range map[string]string{"X-Request-Id": "mine", "X-Kept": "yes"} {
			if got := atReplica.Get(name); got != want {
				t.Errorf("h2 %v: the replica got %s: %q, want %q", h2, name, got, want)
			}
			if got := atPicker[strings.ToLower(name)]; got != want {
				t.Errorf("h2 %v: the picker got %s: %q, want %q", h2, name, got, want)
			}
		}
	}
}

func TestLargeBodiesAndHeadersFlow(t *testing.T) {
	replica, p := newReplica(t, "127.0.0.1:0"), newPicker(t)
	r := run(t, Options{
		PickerAddress: p.address.String(),
		Fallbacks:     2, // so that Envoy keeps the body as far as its limit goes
		Endpoints:     []Endpoint{{"r1", replica.address}},
	})
	p.answer(replica.address.String())
	for h2, size := range map[bool]int64{
		false: 72 << 20,
		true:  DefaultBodyBufferLimit + 3<<20,
	} {
		sum := sha256.New()
		body := io.TeeReader(io.LimitReader(newPattern(), size), sum)
		status, answer := r.send(t, client(t, h2), http.MethodPost, body, func(request *http.Request) {
			request.Header.Set("X-Large", strings.Repeat("a", 80<<10))
		})
		if status != http.StatusOK {
			t.Fatalf("h2 %v: status %d, want 200: %.200s", h2, status, answer)
		}
		seen := replica.requests()
		got := seen[len(seen)-1]
		if got.Size != size {
			t.Errorf("h2 %v: the replica got %d bytes, want %d", h2, got.Size, size)
		}
		if want := hex.EncodeToString(sum.Sum(nil)); got.Sum != want || answer != want {
			t.Errorf("h2 %v: the replica got a body with sum %s and the client %s, want %s", h2, got.Sum, answer, want)
		}
		if n := len(got.Header.Get("X-Large")); n != 80<<10 {
			t.Errorf("h2 %v: the replica got a header of %d bytes, want %d", h2, n, 80<<10)
		}
	}
}

// A pattern is an endless body. Its period is prime, so that a piece that was
// lost, doubled or moved by a buffer's size changes the sum.
type pattern struct {
	block [65521]byte
	at    int
}

func newPattern() *pattern {
	p := &pattern{}
	for i := range p.block {
		p.block[i] = byte(i ^ i>>8)
	}
	return p
}

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, p.block[p.at:])
	p.at = (p.at + n) % len(p.block)
	return n, nil
}

func TestRequestTrailersReachThePickerOverH1OnlyWhereTheyPass(t *testing.T) {
	for _, pass := range []bool{false, true} {
		replica, p := newReplica(t, "127.0.0.1:0"), newPicker(t)
		r := run(t, Options{
			PickerAddress: p.address.String(), RequestTrailers: pass,
			Endpoints: []Endpoint{{"r1", replica.address}},
		})
		p.answer(replica.address.String())
		status, _ := r.send(t, client(t, false), http.MethodPost, strings.NewReader("{}"), func(request *http.Request) {
			request.ContentLength = -1
			request.Trailer = http.Header{"X-Checksum": {"1"}}
		})
		if status != http.StatusOK {
			t.Errorf("RequestTrailers %v: status %d, want 200", pass, status)
		}
		if got := p.last(t).Trailers; got != pass {
			t.Errorf("RequestTrailers %v: the picker got trailers: %v", pass, got)
		}
		if n := len(replica.requests()); n != 1 {
			t.Errorf("RequestTrailers %v: the replica got %d requests, want 1", pass, n)
		}
	}
}

func TestTheAccessLogSaysWhoServedAndHoldsNoQuery(t *testing.T) {
	replica, p := newReplica(t, "127.0.0.1:0"), newPicker(t)
	r := run(t, Options{PickerAddress: p.address.String(), Endpoints: []Endpoint{{"local/r1", replica.address}}})
	p.answer(replica.address.String())
	if status, _ := r.send(t, client(t, false), http.MethodPost, strings.NewReader("{}"), func(request *http.Request) {
		request.Header.Set("X-Request-Id", `a","code":"9`)
	}); status != http.StatusOK {
		t.Fatalf("status %d, want 200", status)
	}
	var line []byte
	eventually(t, "Envoy has written its access log", func() bool {
		var err error
		line, err = os.ReadFile(r.log)
		return err == nil && len(line) > 0 && line[len(line)-1] == '\n'
	})
	var got struct {
		Path            string
		Code            int
		Upstream        string
		Replica         string
		Attempts        int
		RequestID       string `json:"request_id"`
		Acknowledgement struct{ Decision string }
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	want := got
	want.Path, want.Code, want.Upstream, want.Replica, want.Attempts = "/v1/completions", 200, replica.address.String(), "local/r1", 1
	want.RequestID, want.Acknowledgement.Decision = `a","code":"9`, "d1"
	if got != want {
		t.Errorf("logged %+v, want %+v\n%s", got, want, line)
	}
}
