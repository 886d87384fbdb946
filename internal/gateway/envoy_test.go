package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/hack/envoy"
	"github.com/berth-dev/berth/internal/certificate/certificatetest"
)

// limit is how long a condition may take on a busy machine before the test
// gives up.
const limit = time.Minute

// envoyBinary is the real Envoy. It is fetched where it is missing.
func envoyBinary(t *testing.T) string {
	t.Helper()
	path, err := envoy.Path(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A running is an Envoy that a test talks to.
type running struct {
	admin   string // http://ip:port
	gateway string // ip:port
	dir     string // where WriteFiles wrote
	log     string // the access log
}

// run starts Envoy on free ports with the rest of o, and ends it with the test.
// Edits change the bootstrap before.
func run(t *testing.T, o Options, edits ...func(bootstrap string) string) running {
	t.Helper()
	dir := t.TempDir()
	o.ListenAddress, o.AdminAddress = "127.0.0.1:0", "127.0.0.1:0"
	o.AccessLog = filepath.Join(dir, "access.log")
	bootstrap, err := WriteFiles(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range edits {
		text, err := os.ReadFile(bootstrap)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(bootstrap, []byte(edit(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	adminFile := filepath.Join(dir, "admin")
	var stderr bytes.Buffer
	cmd := exec.Command(envoyBinary(t), "-c", bootstrap, "--concurrency", "1",
		"--disable-hot-restart", "--file-flush-interval-msec", "50",
		"--admin-address-path", adminFile, "-l", "warning")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("Envoy said:\n%s", stderr.String())
		}
	})

	r := running{dir: dir, log: o.AccessLog}
	eventually(t, "Envoy is ready", func() bool {
		select {
		case <-ended:
			t.Fatal("Envoy ended by itself")
		default:
		}
		address, err := os.ReadFile(adminFile)
		if err != nil || len(address) == 0 {
			return false
		}
		r.admin = "http://" + string(address)
		return strings.Contains(r.get("/ready"), "LIVE")
	})
	var listeners struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(r.get("/listeners?format=json")), &listeners); err != nil || len(listeners.Statuses) != 1 {
		t.Fatalf("Envoy's listeners: %+v, %v", listeners, err)
	}
	socket := listeners.Statuses[0].Local.Socket
	r.gateway = net.JoinHostPort(socket.Address, fmt.Sprint(socket.Port))
	return r
}

// get is a page of the admin endpoint; empty where it cannot be had.
func (r running) get(path string) string {
	response, err := http.Get(r.admin + path)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// hosts are the addresses that Envoy has in cluster "pool", sorted.
func (r running) hosts() []string {
	var page struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if json.Unmarshal([]byte(r.get("/clusters?format=json")), &page) != nil {
		return nil
	}
	hosts := []string{}
	for _, c := range page.Clusters {
		if c.Name != "pool" {
			continue
		}
		for _, h := range c.Hosts {
			hosts = append(hosts, net.JoinHostPort(h.Address.Socket.Address, fmt.Sprint(h.Address.Socket.Port)))
		}
	}
	slices.Sort(hosts)
	return hosts
}

// eventually asks again and again until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		case <-again.C:
		}
	}
}

func TestTheRealEnvoyAcceptsEveryGateway(t *testing.T) {
	binary := envoyBinary(t)
	for name, o := range gateways() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if o.AccessLog != "" { // Envoy opens it
				o.AccessLog = filepath.Join(dir, filepath.Base(o.AccessLog))
			}
			authorities := func(path string) string { // Envoy reads them
				if !filepath.IsAbs(path) {
					return path
				}
				path = filepath.Join(dir, filepath.Base(path))
				certificatetest.WriteFile(t, path, certificatetest.NewAuthority(t).PEM)
				return path
			}
			o.PickerTLS = authorities(o.PickerTLS)
			if o.Router != nil {
				o.Router.TLS = authorities(o.Router.TLS)
			}
			bootstrap, err := WriteFiles(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			if o.EndpointsFile == "" { // as a file that stands alone
				content, err := Bootstrap(o)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(bootstrap, content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.Command(binary, "--mode", "validate", "-l", "warning", "-c", bootstrap).CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			// Deprecated or unused settings are warnings, not errors.
			if got := strings.TrimSpace(string(out)); got != fmt.Sprintf("configuration '%s' OK", bootstrap) {
				t.Errorf("Envoy said:\n%s", got)
			}
		})
	}
}

func TestEnvoyFailsClosedWhileThePickerIsDown(t *testing.T) {
	for _, kind := range []Kind{OverrideHost, OriginalDst} {
		t.Run(string(kind), func(t *testing.T) {
			replica := newReplica(t, "127.0.0.1:0")
			r := run(t, Options{
				Kind:          kind,
				PickerAddress: refusing(t).String(),
				Endpoints:     []Endpoint{{"r1", replica.address}},
			})
			for _, tc := range []struct {
				method string
				body   io.Reader
			}{
				{http.MethodPost, strings.NewReader(`{"model":"m"}`)},
				{http.MethodGet, nil},
			} {
				request, err := http.NewRequestWithContext(t.Context(), tc.method, "http://"+r.gateway+"/v1/models", tc.body)
				if err != nil {
					t.Fatal(err)
				}
				// What a client would send to be served without a picker.
				request.Header.Set("X-Gateway-Destination-Endpoint", replica.address.String())
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if response.StatusCode != http.StatusInternalServerError {
					t.Errorf("%s: status %d, want 500", tc.method, response.StatusCode)
				}
			}
			if seen := replica.requests(); len(seen) != 0 {
				t.Errorf("the replica got %d requests, want none", len(seen))
			}
		})
	}
}

func TestEnvoyTakesOverAChangedPoolWithoutARestart(t *testing.T) {
	o := Options{
		PickerAddress: refusing(t).String(),
		Endpoints: []Endpoint{
			{"r1", netip.MustParseAddrPort("127.0.0.1:19101")},
			{"r2", netip.MustParseAddrPort("[::1]:19102")},
		},
	}
	r := run(t, o)
	write := func(endpoints ...Endpoint) {
		t.Helper()
		o.ListenAddress, o.AdminAddress, o.AccessLog = "127.0.0.1:0", "127.0.0.1:0", r.log
		o.Endpoints = endpoints
		if _, err := WriteFiles(r.dir, o); err != nil {
			t.Fatal(err)
		}
	}
	has := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("Envoy's pool is %q", want), func() bool { return slices.Equal(r.hosts(), want) })
	}
	has("127.0.0.1:19101", "[::1]:19102")
	write(o.Endpoints[1], Endpoint{"r3", netip.MustParseAddrPort("127.0.0.1:19103")})
	has("127.0.0.1:19103", "[::1]:19102")
	write()
	has()
	write(Endpoint{"r1", netip.MustParseAddrPort("127.0.0.1:19101")})
	has("127.0.0.1:19101")
}
