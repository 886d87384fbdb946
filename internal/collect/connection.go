package collect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// link is what a connection is opened for.
type link struct {
	scheme, host string
	// client is whose authorities count, and trust those of the time; nil without
	// TLS.
	client *client
	trust  *tls.Config
}

// connections are those that a target keeps open from one scrape to the next, one
// for each link. They belong to whoever has the target.
type connections []*connection

// idleConnection is longer than the longest pause between two scrapes.
const idleConnection = 90 * time.Second

// take is the connection of a link, which is kept no longer; nil, if there is none
// or it has ended. Those that were of no use for long are closed.
func (k *connections) take(l link, now telemetry.Instant) *connection {
	var found *connection
	*k = slices.DeleteFunc(*k, func(c *connection) bool {
		switch {
		case c.link == l && c.quiet():
			found = c
			return true
		case c.link == l, c.host == l.host && c.client == l.client && c.trust != l.trust, now.Sub(c.used) > idleConnection:
			c.drop()
			return true
		default:
			return false
		}
	})
	return found
}

func (k *connections) close() {
	for _, c := range *k {
		c.drop()
	}
	*k = nil
}

// connection is one connection to an engine. It has at most one question in flight.
type connection struct {
	net.Conn
	link
	// under is what Conn goes over; Conn itself without TLS.
	under net.Conn
	used  telemetry.Instant
	// stop ends the watch over the context of the question.
	stop func() bool
	// left is how many bytes more may come; heard: some have.
	left  int64
	heard bool
}

// maxHead bounds what comes before a page, its headers above all, in bytes.
const maxHead = 64 << 10

var errLongHead = fmt.Errorf("more than %d bytes of headers", maxHead)

// Read reads no more than what is left.
func (c *connection) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	c.heard = c.heard || n > 0
	return n, err
}

// begin bounds what follows, up to end, by a context and by a time.
func (c *connection) begin(ctx context.Context, deadline time.Time) error {
	if err := c.under.SetDeadline(deadline); err != nil {
		return err
	}
	c.stop = context.AfterFunc(ctx, func() { _ = c.under.SetDeadline(time.Unix(0, 0)) })
	return nil
}

// quiet reports that the other side has neither closed the connection nor said
// anything without being asked: that would be taken for the next answer.
func (c *connection) quiet() bool {
	if !quiet(c.under) {
		return false
	}
	if c.trust == nil {
		return true
	}
	// Something may have been decrypted already. Nothing is waited for.
	if c.SetReadDeadline(time.Unix(0, 0)) != nil {
		return false
	}
	var one [1]byte
	n, err := c.Conn.Read(one[:])
	return n == 0 && isTimeout(err)
}

// drop closes the connection. Nothing can be done about an error.
func (c *connection) drop() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.under.Close()
}

// caller asks for one worker, one question after the other.
type caller struct {
	*clients
	in  *bufio.Reader
	out bytes.Buffer
}

func (c *clients) caller() *caller {
	// Pages come in tens of kilobytes.
	return &caller{clients: c, in: bufio.NewReaderSize(nil, 16<<10)}
}

// exchange is a question's answer up to its body, over a connection that was kept
// or is new. conn.end must follow.
func (c *caller) exchange(ctx context.Context, own *client, req *http.Request, kept *connections, deadline time.Time) (*http.Response, *connection, error) {
	l := link{scheme: req.URL.Scheme, host: req.URL.Host, client: own}
	if l.scheme == "https" {
		l.trust = own.trusted.Load()
	}
	if conn := kept.take(l, c.clock()); conn != nil {
		resp, err := c.ask(ctx, conn, req, deadline)
		if err == nil || conn.heard || isTimeout(err) {
			return resp, conn, err
		}
		// It was closed at the very moment at which it was used.
	}
	conn, err := c.dial(ctx, l, deadline)
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.ask(ctx, conn, req, deadline)
	return resp, conn, err
}

// dial opens the connection of a link.
func (c *caller) dial(ctx context.Context, l link, deadline time.Time) (*connection, error) {
	under, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, "tcp", l.host)
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: under, under: under, link: l}
	if l.trust == nil {
		return conn, nil
	}
	if err := conn.begin(ctx, deadline); err != nil {
		conn.drop()
		return nil, err
	}
	secured := tls.Client(under, l.config())
	if err := secured.Handshake(); err != nil {
		conn.drop()
		return nil, err
	}
	conn.stop()
	conn.Conn = secured
	return conn, nil
}

// config names whom the certificate must be of: the host, where no name is declared.
func (l link) config() *tls.Config {
	if l.trust.ServerName != "" {
		return l.trust
	}
	config := l.trust.Clone()
	config.ServerName, _, _ = net.SplitHostPort(l.host)
	return config
}

// ask sends a question and reads the head of the answer. After an error the
// connection is closed.
func (c *caller) ask(ctx context.Context, conn *connection, req *http.Request, deadline time.Time) (*http.Response, error) {
	resp, err := c.askOver(ctx, conn, req, deadline)
	if err != nil {
		conn.drop()
	}
	return resp, err
}

func (c *caller) askOver(ctx context.Context, conn *connection, req *http.Request, deadline time.Time) (*http.Response, error) {
	if err := conn.begin(ctx, deadline); err != nil {
		return nil, err
	}
	conn.left, conn.heard = maxHead, false
	c.out.Reset()
	if err := req.Write(&c.out); err != nil {
		return nil, err
	}
	if _, err := conn.Write(c.out.Bytes()); err != nil {
		return nil, err
	}
	c.in.Reset(conn)
	for {
		resp, err := http.ReadResponse(c.in, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, errors.New("the answer changes the protocol, which was not asked for")
		}
		if resp.StatusCode >= 200 {
			conn.left = math.MaxInt64
			return resp, nil
		}
	}
}

// settle keeps the connection for the next question if the answer has been read to
// its end, or nearly so, and nothing follows it; otherwise it is closed.
func (c *caller) settle(conn *connection, resp *http.Response, kept *connections) {
	if whole := skip(resp); conn.stop() && whole && !resp.Close && c.in.Buffered() == 0 {
		conn.used = c.clock()
		*kept = append(*kept, conn)
	} else {
		conn.drop()
	}
	// Only now: it reads to the end, which a closed connection has soon.
	_ = resp.Body.Close()
}
