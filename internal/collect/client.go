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
)

// client asks engines for pages. Its connections are kept open between scrapes,
// one for each endpoint, and closed when the endpoint goes.
type client struct {
	transport *http.Transport
	http      *http.Client
	dialer    net.Dialer

	mu    sync.Mutex
	conns map[string]map[*trackedConn]struct{}
}

// idleConnection is longer than the longest pause between two scrapes.
const idleConnection = 90 * time.Second

func newClient(timeout time.Duration) *client {
	c := &client{
		dialer: net.Dialer{Timeout: timeout},
		conns:  map[string]map[*trackedConn]struct{}{},
	}
	c.transport = &http.Transport{
		// No proxy: an endpoint is asked at its own address or not at all.
		Proxy:       nil,
		DialContext: c.dial,
		// A compressed page could be a thousand times its transferred size.
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        idleConnection,
		TLSHandshakeTimeout:    timeout,
		ResponseHeaderTimeout:  timeout,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c.http = &http.Client{
		Transport:     c.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// trackedConn can be found by the address that it leads to.
type trackedConn struct {
	net.Conn
	client *client
	host   string
}

func (c *client) dial(ctx context.Context, network, host string) (net.Conn, error) {
	conn, err := c.dialer.DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	t := &trackedConn{conn, c, host}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[host] == nil {
		c.conns[host] = map[*trackedConn]struct{}{}
	}
	c.conns[host][t] = struct{}{}
	return t, nil
}

func (t *trackedConn) Close() error {
	t.client.mu.Lock()
	delete(t.client.conns[t.host], t)
	if len(t.client.conns[t.host]) == 0 {
		delete(t.client.conns, t.host)
	}
	t.client.mu.Unlock()
	return t.Conn.Close()
}

// forget closes the connections to one ip:port.
func (c *client) forget(host string) {
	c.mu.Lock()
	var conns []*trackedConn
	for t := range c.conns[host] {
		conns = append(conns, t)
	}
	c.mu.Unlock()
	for _, t := range conns {
		// The transport notices by itself; nothing can be done about an error.
		_ = t.Close()
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// question is one page at one endpoint.
type question struct {
	scheme, host, path, accept string
}

// url puts the question together member by member: a path is declared by people
// and must not be able to name another host.
func (q question) url() (string, error) {
	if !strings.HasPrefix(q.path, "/") {
		return "", fmt.Errorf("path %q, want one that begins with a slash", q.path)
	}
	path, err := url.ParseRequestURI(q.path)
	if err != nil {
		return "", err
	}
	u := url.URL{Scheme: q.scheme, Host: q.host, Path: path.Path, RawPath: path.RawPath, RawQuery: path.RawQuery}
	return u.String(), nil
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
func (c *client) get(ctx context.Context, q question, timeout time.Duration, limit int64, buf []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var a answer
	for {
		resp, err := c.ask(ctx, q)
		if err != nil {
			return a.fault(connectionReason(err), err)
		}
		a.status = resp.StatusCode
		next, moved := sameOrigin(q, resp)
		if moved && a.redirected == "" {
			q.path, a.redirected = next, next
			discard(resp)
			continue
		}
		return read(a, resp, limit, buf)
	}
}

func (c *client) ask(ctx context.Context, q question) (*http.Response, error) {
	to, err := q.url()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, err
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "berth-epp")
	return c.http.Do(req)
}

// sameOrigin is where a redirection leads, if to the same scheme, host and port.
func sameOrigin(q question, resp *http.Response) (path string, ok bool) {
	if resp.StatusCode < 300 || resp.StatusCode > 399 {
		return "", false
	}
	to, err := resp.Location()
	if err != nil || to.Scheme != q.scheme || hostPort(to) != q.host {
		return "", false
	}
	return to.RequestURI(), true
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// discard reads what little is left, so that the connection can be used again.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

func read(a answer, resp *http.Response, limit int64, buf []byte) answer {
	defer discard(resp)
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return a.fault("redirect", fmt.Errorf("status %d to %.200q", resp.StatusCode, resp.Header.Get("Location")))
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
	case errors.As(err, &op):
		return "unreachable"
	default:
		return "malformed"
	}
}
