package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// tunnelRoutes are the request modes of a gateway that lets clients change to
// another protocol: by an upgrade, and by CONNECT, which it ends itself.
func tunnelRoutes(response responseMode) []route {
	var routes []route
	for _, request := range []string{none, streamed, buffered, bufferedPartial, fullDuplex} {
		routes = append(routes, route{name: request, request: request, response: response, edit: func(l tree) {
			manager := connectionManager(l)
			manager["upgrade_configs"] = []any{tree{"upgrade_type": "websocket"}, tree{"upgrade_type": "CONNECT"}}
			host := manager["route_config"].(tree)["virtual_hosts"].([]any)[0].(tree)
			host["routes"] = append([]any{tree{
				"match": tree{"connect_matcher": tree{}},
				"route": tree{
					"cluster": "pool", "timeout": "0s",
					"upgrade_configs": []any{tree{"upgrade_type": "CONNECT", "connect_config": tree{}}},
				},
			}}, host["routes"].([]any)...)
		}})
	}
	return routes
}

// newEcho is a replica that answers every upgrade and sends back what it gets.
// Other requests, such as those that come through a tunnel, are answered "plain".
func newEcho(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "plain")
			return
		}
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, buffered)
	}))
	t.Cleanup(s.Close)
	return s
}

// dial opens a connection to the gateway; what is read from it must come in time.
func (f *fleet) dial() (net.Conn, *bufio.Reader) {
	f.t.Helper()
	c, err := net.Dial("tcp", f.envoy.gateway)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		f.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// ask sends a request by hand and returns the response; its body is not read.
func (f *fleet) ask(c net.Conn, r *bufio.Reader, method, head string) heard {
	f.t.Helper()
	if _, err := io.WriteString(c, method+head+"X-Request-Id: "+requestID(f.t)+"\r\n\r\n"); err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, &http.Request{Method: method}) //nolint:bodyclose // the test closes the connection
	if err != nil {
		f.t.Fatal(err)
	}
	return heard{resp.StatusCode, resp.Header, resp.Body}
}

// heard is a response on a connection that the test closes.
type heard struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

const (
	upgradeHead = " /v1/realtime HTTP/1.1\r\nHost: pool\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
	connectHead = " pool:443 HTTP/1.1\r\nHost: pool:443\r\n"
)

func TestX12_UpgradesAndConnectAreDecidedAtTheirHeaders(t *testing.T) {
	for _, response := range []responseMode{wholeResponse, endOfResponse} {
		t.Run("response "+response.String(), func(t *testing.T) {
			routes := tunnelRoutes(response)
			f := start(t, spec{
				unscraped: true,
				members: func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
					return []v1alpha1.StaticEndpoint{member("e1", newEcho(t).Listener.Addr().String())}
				},
				envoy: func(bootstrap tree) { addRoutes(t, bootstrap, routes...) },
			})
			for _, r := range routes {
				t.Run("X12 an upgrade, request "+r.request, func(t *testing.T) {
					f := f.through(t, r.name)
					c, read := f.dial()
					resp := f.ask(c, read, http.MethodGet, upgradeHead)
					if !f.tunnels(r, resp, http.StatusSwitchingProtocols) {
						return
					}
					for _, piece := range []string{"one", strings.Repeat("2", 100_000), "three"} {
						echo := make([]byte, len(piece))
						if _, err := io.WriteString(c, piece); err != nil {
							t.Fatal(err)
						}
						if _, err := io.ReadFull(read, echo); err != nil || string(echo) != piece {
							t.Fatalf("%d bytes came back as others, %v", len(piece), err)
						}
					}
					f.tunnelEnds(c, http.StatusSwitchingProtocols)
				})
				t.Run("X12 CONNECT, request "+r.request, func(t *testing.T) {
					f := f.through(t, r.name)
					c, read := f.dial()
					if !f.tunnels(r, f.ask(c, read, http.MethodConnect, connectHead), http.StatusOK) {
						return
					}
					resp := f.ask(c, read, http.MethodGet, " /v1/models HTTP/1.1\r\nHost: pool\r\n")
					if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "plain" {
						t.Errorf("through the tunnel came %q, %v; want plain", body, err)
					}
					f.tunnelEnds(c, http.StatusOK)
				})
			}
		})
	}
}

// tunnels checks the answer to a request for a tunnel, and reports whether there
// is to be one.
func (f *fleet) tunnels(r route, resp heard, status int) bool {
	f.t.Helper()
	if r.request == buffered || r.request == bufferedPartial {
		// Such a gateway waits for the end of a body, and a tunnel has none.
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			f.t.Fatal(err)
		}
		expectRefusal(f.t, answer{resp.StatusCode, resp.Header, string(body)}, 501, "tunnel_unsupported")
		return false
	}
	if resp.StatusCode != status {
		f.t.Fatalf("status %d, want %d", resp.StatusCode, status)
	}
	f.awaitInFlight(map[string]int{"e1": 1})
	return true
}

// tunnelEnds closes the client's end of a tunnel and reads the record.
func (f *fleet) tunnelEnds(c net.Conn, status int) {
	f.t.Helper()
	_ = c.Close()
	f.awaitInFlight(map[string]int{})
	d := f.record(requestID(f.t))
	if d.Request.Unread != "tunnel" || d.Acknowledgement.Acted != "confirmed" || d.Outcome.Status != status {
		f.t.Errorf("unread %q, acted %q, status %d; want tunnel, confirmed, %d",
			d.Request.Unread, d.Acknowledgement.Acted, d.Outcome.Status, status)
	}
}

func TestX12_AGatewayWithoutUpgradesAnswersByItself(t *testing.T) {
	f := start(t, spec{
		unscraped: true,
		members: func([]v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			return []v1alpha1.StaticEndpoint{member("e1", newEcho(t).Listener.Addr().String())}
		},
	})
	for _, how := range []struct {
		name, method, head string
		status             int
	}{
		{"an upgrade", http.MethodGet, upgradeHead, http.StatusForbidden},
		{"CONNECT", http.MethodConnect, connectHead, http.StatusNotFound},
	} {
		t.Run(how.name, func(t *testing.T) {
			f := f.through(t, "gateway")
			c, read := f.dial()
			if resp := f.ask(c, read, how.method, how.head); resp.StatusCode != how.status || resp.Header.Get("X-Sim-Engine") != "" {
				t.Errorf("status %d, want the gateway's own %d", resp.StatusCode, how.status)
			}
		})
	}
	f.awaitInFlight(map[string]int{})
}
