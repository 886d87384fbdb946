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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// clients ask engines for pages, each with what one profile needs to be let in.
type clients struct {
	clock telemetry.Clock
	log   *zap.Logger

	mu       sync.Mutex
	byAccess map[engine.Access]*client
}

func newClients(o *Options) *clients {
	return &clients{clock: o.Clock, log: o.Logger, byAccess: map[engine.Access]*client{}}
}

// of is the client that asks with what a profile needs.
func (c *clients) of(a engine.Access) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.byAccess[a]
	if own == nil {
		own = newClient(a, c.clock, c.log)
		c.byAccess[a] = own
	}
	return own
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
	// status is 0 when there was no HTTP answer at all; connected: somebody took the
	// connection, if so.
	status    int
	connected bool
	body      []byte
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
func (c *caller) get(ctx context.Context, q question, kept *connections, timeout time.Duration, limit int64, buf []byte) answer {
	deadline := time.Now().Add(timeout)
	own := c.of(q.access)
	own.prepare()
	var a answer
	for {
		req, err := own.request(q)
		if err != nil {
			return a.fault("malformed", err)
		}
		resp, conn, err := c.exchange(ctx, own, req, kept, deadline)
		a.connected = conn != nil
		if err != nil {
			return a.fault(connectionReason(err), err)
		}
		a.status = resp.StatusCode
		next, moved := sameOrigin(q, resp)
		switch {
		case q.status:
			// Where a question of yes or no is sent elsewhere, it is not answered.
		case moved && a.redirected == "":
			q.path, a.redirected = next, next
			c.settle(conn, resp, kept)
			continue
		default:
			a = read(a, resp, limit, buf)
		}
		c.settle(conn, resp, kept)
		return a
	}
}

// What every question says. Nothing changes these.
var (
	// A compressed page could be a thousand times its transferred size.
	identity = []string{"identity"}
	product  = []string{"berth-epp"}
)

func (c *client) request(q question) (*http.Request, error) {
	to, err := q.url()
	if err != nil {
		return nil, err
	}
	req := &http.Request{
		Method:     http.MethodGet,
		URL:        to,
		Host:       q.host,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     http.Header{"Accept-Encoding": identity, "User-Agent": product},
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	c.authorize(req)
	return req, nil
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

// skip reads what little is left of an answer that is not read to its end, and
// reports that it has ended.
func skip(resp *http.Response) bool {
	_, err := io.CopyN(io.Discard, resp.Body, 4<<10)
	return errors.Is(err, io.EOF)
}

func read(a answer, resp *http.Response, limit int64, buf []byte) answer {
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return a.fault("redirect", fmt.Errorf("status %d to %s", resp.StatusCode, whereTo(resp)))
	case resp.StatusCode != http.StatusOK:
		return a.fault(statusReason(resp.StatusCode), fmt.Errorf("status %d", resp.StatusCode))
	case encoded(resp):
		return a.fault("not_text", fmt.Errorf("content encoding %.32q was not asked for", resp.Header["Content-Encoding"]))
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
		return a.fault("too_large", fmt.Errorf("more than %d bytes", limit))
	}
	a.unended = resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !bytes.HasSuffix(body, []byte{'\n'})
	return a
}

func encoded(resp *http.Response) bool {
	return slices.ContainsFunc(resp.Header["Content-Encoding"], func(e string) bool { return e != "" && e != "identity" })
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
