package collect

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// clients ask engines for pages. Connections are kept open between scrapes, one
// for each endpoint and port, and closed when nobody asks there any more.
type clients struct {
	dial  dialer
	clock telemetry.Clock
	log   *zap.Logger

	mu       sync.Mutex
	byAccess map[engine.Access]*client
}

func newClients(o *Options) *clients {
	return &clients{
		dial:     dialer{timeout: o.Timeout, hosts: &hosts{conns: map[string]*hostConns{}}},
		clock:    o.Clock,
		log:      o.Logger,
		byAccess: map[engine.Access]*client{},
	}
}

// of is the client that asks with what a profile needs.
func (c *clients) of(a engine.Access) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.byAccess[a]
	if own == nil {
		own = newClient(a, c.dial, c.clock, c.log)
		c.byAccess[a] = own
	}
	return own
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, own := range c.byAccess {
		own.transport.Load().CloseIdleConnections()
	}
}

// dialer opens connections that can be found by where they lead to.
type dialer struct {
	timeout time.Duration
	*hosts
}

// idleConnection is longer than the longest pause between two scrapes.
const idleConnection = 90 * time.Second

func (d dialer) transport(c *tls.Config) *http.Transport {
	return &http.Transport{
		// No proxy: an endpoint is asked at its own address or not at all.
		Proxy:           nil,
		DialContext:     d.DialContext,
		TLSClientConfig: c,
		// A compressed page could be a thousand times its transferred size.
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        idleConnection,
		TLSHandshakeTimeout:    d.timeout,
		MaxResponseHeaderBytes: 64 << 10,
		// Pages come in tens of kilobytes.
		ReadBufferSize:  16 << 10,
		WriteBufferSize: 1 << 10,
	}
}

func (d dialer) DialContext(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: d.timeout}).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	if t := d.track(host, conn); t != nil {
		return t, nil
	}
	_ = conn.Close()
	return nil, errors.New("nobody asks there any more")
}

// hosts knows who asks at which ip:port, and the connections there. Endpoints of
// one address may share a port.
type hosts struct {
	mu    sync.Mutex
	conns map[string]*hostConns
}

type hostConns struct {
	users int
	conns map[*trackedConn]struct{}
}

// trackedConn can be found by the ip:port that it leads to.
type trackedConn struct {
	net.Conn
	hosts *hosts
	host  string
}

func (h *hosts) at(host string) *hostConns {
	if h.conns[host] == nil {
		h.conns[host] = &hostConns{conns: map[*trackedConn]struct{}{}}
	}
	return h.conns[host]
}

func (h *hosts) drop(host string) {
	if at := h.conns[host]; at != nil && at.users == 0 && len(at.conns) == 0 {
		delete(h.conns, host)
	}
}

// hold says that somebody is going to ask at host.
func (h *hosts) hold(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at(host).users++
}

// release says that somebody will not ask at these hosts again, and closes the
// connections that nobody else needs.
func (h *hosts) release(list []string) {
	var unused []*trackedConn
	h.mu.Lock()
	for _, host := range list {
		at := h.at(host)
		if at.users--; at.users == 0 {
			for t := range at.conns {
				unused = append(unused, t)
			}
		}
		h.drop(host)
	}
	h.mu.Unlock()
	for _, t := range unused {
		// The transport notices by itself; nothing can be done about an error.
		_ = t.Close()
	}
}

// track notes a connection; nil, if whoever asked for it has gone meanwhile.
func (h *hosts) track(host string, conn net.Conn) *trackedConn {
	t := &trackedConn{conn, h, host}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.conns[host]
	if at == nil || at.users == 0 {
		return nil
	}
	at.conns[t] = struct{}{}
	return t
}

func (t *trackedConn) Close() error {
	t.hosts.mu.Lock()
	if at := t.hosts.conns[t.host]; at != nil {
		delete(at.conns, t)
		t.hosts.drop(t.host)
	}
	t.hosts.mu.Unlock()
	return t.Conn.Close()
}

// question is one page at one endpoint.
type question struct {
	scheme, host, path, accept string
	// access is what it takes to be let in.
	access engine.Access
	// never names paths that must not be asked for, not after a redirection
	// either; nil is none.
	never func(path string) bool
	// status: the status is the answer, and there is no page to read. slow: it is
	// not the metrics page.
	status, slow bool
}

// pathOf is a page's path without its query.
func pathOf(page string) string {
	path, _, _ := strings.Cut(page, "?")
	return path
}

// url puts the question together member by member: a path is declared by people
// and must not be able to name another host.
func (q question) url() (*url.URL, error) {
	if !strings.HasPrefix(q.path, "/") {
		return nil, fmt.Errorf("path %q, want one that begins with a slash", q.path)
	}
	path, err := url.ParseRequestURI(q.path)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: q.scheme, Host: q.host, Path: path.Path, RawPath: path.RawPath, RawQuery: path.RawQuery}, nil
}

// answer is what came back. The body is in memory that the next question of
// the same worker reuses.
type answer struct {
	// status is 0 when there was no HTTP answer at all.
	status int
	body   []byte
	// unended: only the end of the connection ended the body, and not in a
	// newline. A page of lines may have been cut in the middle of a number.
	unended bool
	// redirected is where the page was found, empty if where it was asked for.
	redirected string
	// reason is empty for a whole page with status 200.
	reason string
	cause  error
}

// fault is an answer without a page.
func (a answer) fault(reason string, cause error) answer {
	a.body, a.reason, a.cause = nil, reason, cause
	return a
}

// get asks for a page and reads it into buf. timeout bounds all of it.
func (c *clients) get(ctx context.Context, q question, timeout time.Duration, limit int64, buf []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	own := c.of(q.access)
	own.prepare()
	var a answer
	for {
		resp, err := own.ask(ctx, q)
		if err != nil {
			return a.fault(connectionReason(err), err)
		}
		a.status = resp.StatusCode
		if q.status {
			// Where a question of yes or no is sent elsewhere, it is not answered.
			discard(resp)
			return a
		}
		next, moved := sameOrigin(q, resp)
		if moved && a.redirected == "" {
			q.path, a.redirected = next, next
			discard(resp)
			continue
		}
		return read(a, resp, limit, buf)
	}
}

// What every question says. Nothing changes these.
var (
	identity = []string{"identity"}
	product  = []string{"berth-epp"}
)

func (c *client) ask(ctx context.Context, q question) (*http.Response, error) {
	to, err := q.url()
	if err != nil {
		return nil, err
	}
	req := (&http.Request{
		Method:     http.MethodGet,
		URL:        to,
		Host:       q.host,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     http.Header{"Accept-Encoding": identity, "User-Agent": product},
	}).WithContext(ctx)
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	c.authorize(req)
	// A redirection is followed above, if at all.
	return c.transport.Load().RoundTrip(req)
}

// sameOrigin is where a redirection leads, if to the same scheme, host and port,
// and to a path that may be asked for.
func sameOrigin(q question, resp *http.Response) (path string, ok bool) {
	if resp.StatusCode < 300 || resp.StatusCode > 399 {
		return "", false
	}
	to, err := resp.Location()
	if err != nil || to.Scheme != q.scheme || hostPort(to) != q.host {
		return "", false
	}
	if q.never != nil && q.never(to.Path) {
		return "", false
	}
	path = to.RequestURI()
	return path, len(path) <= maxPath
}

// maxPath bounds the path that a redirection leads to, bytes: it goes into the
// source of each reading.
const maxPath = 512

// whereTo is the address that a redirection leads to, for the log. Its query may
// hold what is nobody's business.
func whereTo(resp *http.Response) string {
	to, err := resp.Location()
	if err != nil {
		return "nowhere"
	}
	return fmt.Sprintf("%.200q", to.Scheme+"://"+to.Host+to.EscapedPath())
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// discard reads what little is left of an answer that is not read to its end, so
// that the connection can be used again.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

func read(a answer, resp *http.Response, limit int64, buf []byte) answer {
	defer discard(resp)
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return a.fault("redirect", fmt.Errorf("status %d to %s", resp.StatusCode, whereTo(resp)))
	case resp.StatusCode != http.StatusOK:
		return a.fault(statusReason(resp.StatusCode), fmt.Errorf("status %d", resp.StatusCode))
	case encoded(resp):
		return a.fault("not_text", fmt.Errorf("content encoding %.32q was not asked for", resp.Header.Get("Content-Encoding")))
	case resp.ContentLength > limit:
		return a.fault("too_large", fmt.Errorf("%d bytes, the limit is %d", resp.ContentLength, limit))
	}
	body, err := readUpTo(resp.Body, limit, buf)
	a.body = body
	switch {
	case isTimeout(err):
		return a.fault("timeout", err)
	case err != nil:
		return a.fault("truncated", err)
	case int64(len(body)) > limit:
		_ = resp.Body.Close()
		return a.fault("too_large", fmt.Errorf("more than %d bytes", limit))
	}
	a.unended = resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !bytes.HasSuffix(body, []byte{'\n'})
	return a
}

func encoded(resp *http.Response) bool {
	e := resp.Header.Get("Content-Encoding")
	return e != "" && e != "identity"
}

// usualPage is more than most engine pages have.
const usualPage = 64 << 10

// readUpTo reads at most one byte more than limit.
func readUpTo(r io.Reader, limit int64, buf []byte) ([]byte, error) {
	r = io.LimitReader(r, limit+1)
	if cap(buf) < usualPage {
		buf = make([]byte, 0, usualPage)
	}
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// statusReason names a status; those without a name share one, since a reason
// becomes a metric label.
func statusReason(status int) string {
	if http.StatusText(status) == "" {
		return "status_other"
	}
	return "status_" + strconv.Itoa(status)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// connectionReason tells why there was no answer.
func connectionReason(err error) string {
	var (
		op          *net.OpError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
	)
	switch {
	case isTimeout(err):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &certificate), errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "tls"
	case errors.As(err, &op) && op.Op != "remote error":
		return "unreachable"
	case strings.Contains(err.Error(), "tls: "):
		// An alert of the other side, or no version that both speak: these have no
		// type of their own.
		return "tls"
	default:
		return "malformed"
	}
}
