package collect

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
	"github.com/berth-dev/berth/internal/engine"
)

// talker is an engine that says word by word what a test wants. Each connection is
// given to say with its number, from 1.
type talker struct {
	net.Listener
	opened atomic.Int64
	ended  sync.WaitGroup
}

func newTalker(t *testing.T, secured *tls.Config, say func(conn net.Conn, requests *bufio.Reader, number int64)) *talker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &talker{Listener: l}
	e.ended.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			number := e.opened.Add(1)
			e.ended.Go(func() {
				defer conn.Close()
				if secured != nil {
					conn = tls.Server(conn, secured)
				}
				say(conn, bufio.NewReader(conn), number)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		e.ended.Wait()
	})
	return e
}

// asked reads one request; false when there is none any more.
func asked(requests *bufio.Reader) bool {
	req, err := http.ReadRequest(requests)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, req.Body)
	return true
}

func saying(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// asker asks one engine as a worker does.
type asker struct {
	t *testing.T
	*caller
	kept  connections
	clock *fakeClock
	question
}

func newAsker(t *testing.T, e *talker, q question) *asker {
	clock := newFakeClock()
	q.host, q.path = e.Addr().String(), "/metrics"
	if q.scheme == "" {
		q.scheme = "http"
	}
	a := &asker{t: t, caller: newClients(&Options{Clock: clock.Now, Logger: zap.NewNop()}).caller(), clock: clock, question: q}
	// Before the engine waits for its connections to end.
	t.Cleanup(func() { a.kept.close() })
	return a
}

func (a *asker) ask(timeout time.Duration) answer {
	return a.get(a.t.Context(), a.question, &a.kept, timeout, 1<<20, nil)
}

// want asks, and wants a page or the reason for there being none.
func (a *asker) want(page, reason string) {
	a.t.Helper()
	if got := a.ask(patience); string(got.body) != page || got.reason != reason {
		a.t.Fatalf("answered %q, reason %q (%v), want %q, reason %q", got.body, got.reason, got.cause, page, reason)
	}
}

func (e *talker) wantOpened(t *testing.T, want int64) {
	t.Helper()
	if got := e.opened.Load(); got != want {
		t.Errorf("%d connections were opened, want %d", got, want)
	}
}

func TestOneConnectionCarriesOneQuestionAfterTheOther(t *testing.T) {
	n := 0
	e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
		for asked(requests) {
			n++
			switch {
			case n%3 == 0:
				// In chunks, with a trailer.
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\npage \r\n1\r\n%d\r\n0\r\nX-Sum: 1\r\n\r\n", n)
			default:
				_, _ = io.WriteString(conn, saying(fmt.Sprintf("page %d", n)))
			}
		}
	})
	a := newAsker(t, e, question{})
	for i := range 7 {
		a.want(fmt.Sprintf("page %d", i+1), "")
	}
	e.wantOpened(t, 1)
}

func TestAConnectionThatTheEngineHasClosedIsReplacedUnnoticed(t *testing.T) {
	for name, last := range map[string]string{
		"without a word":  saying("page"),
		"as it announced": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\npage",
		"in HTTP/1.0":     "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\npage",
		"as the end":      "HTTP/1.1 200 OK\r\n\r\npage",
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan struct{}, 10)
			e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
				if asked(requests) {
					_, _ = io.WriteString(conn, last)
					_ = conn.Close()
					closed <- struct{}{}
				}
			})
			a := newAsker(t, e, question{})
			for range 3 {
				a.want("page", "")
				wait(t, closed, "the engine to close the connection")
			}
			e.wantOpened(t, 3)
		})
	}
}

// The engine closes a kept connection when the next question is on its way already.
func TestAQuestionThatAClosedConnectionSwallowedIsAskedOnceMore(t *testing.T) {
	e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
		if asked(requests) {
			_, _ = io.WriteString(conn, saying("page"))
			asked(requests)
		}
	})
	a := newAsker(t, e, question{})
	a.want("page", "")
	a.want("page", "")
	e.wantOpened(t, 2)
}

func TestANewConnectionThatIsClosedIsNotTriedAgain(t *testing.T) {
	e := newTalker(t, nil, func(_ net.Conn, requests *bufio.Reader, _ int64) { asked(requests) })
	newAsker(t, e, question{}).want("", "reset")
	e.wantOpened(t, 1)
}

func TestAnAnswerThatHasBegunIsNotAskedForOnceMore(t *testing.T) {
	e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
		if asked(requests) {
			_, _ = io.WriteString(conn, saying("page"))
			asked(requests)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n")
		}
	})
	a := newAsker(t, e, question{})
	a.want("page", "")
	a.want("", "reset")
	e.wantOpened(t, 1)
}

// What an engine says before it is asked is old when it is read: it must not become
// the answer of the next question.
func TestAnAnswerBeforeItsQuestionIsNotTakenForOne(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	pair := authority.Issue(1)
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	certificatetest.WriteFile(t, trusted, authority.PEM)
	for name, secured := range map[string]*tls.Config{"plain": nil, "TLS": {Certificates: []tls.Certificate{certificate}}} {
		for when, together := range map[string]bool{"with the one before": true, "later": false} {
			t.Run(name+" "+when, func(t *testing.T) {
				goOn, said := make(chan struct{}), make(chan struct{}, 10)
				e := newTalker(t, secured, func(conn net.Conn, requests *bufio.Reader, number int64) {
					if !asked(requests) {
						return
					}
					page := saying(fmt.Sprintf("page %d", number))
					if together {
						_, _ = io.WriteString(conn, page+saying("old"))
					} else {
						_, _ = io.WriteString(conn, page)
						<-goOn
						_, _ = io.WriteString(conn, saying("old"))
						said <- struct{}{}
					}
					asked(requests)
				})
				q := question{}
				if secured != nil {
					q.scheme, q.access = "https", engine.Access{CAFile: trusted}
				}
				a := newAsker(t, e, q)
				a.want("page 1", "")
				if !together {
					goOn <- struct{}{}
					wait(t, said, "the engine to speak unasked")
				}
				defer close(goOn)
				a.want("page 2", "")
				e.wantOpened(t, 2)
			})
		}
	}
}

func TestWhatComesBeforeAPageIsBounded(t *testing.T) {
	flood := func(begin, again string) func(net.Conn, *bufio.Reader, int64) {
		return func(conn net.Conn, requests *bufio.Reader, _ int64) {
			asked(requests)
			for text := begin; ; text = again {
				// A write fails when the other side has had enough.
				if _, err := io.WriteString(conn, strings.Repeat(text, 100)); err != nil {
					return
				}
			}
		}
	}
	for name, say := range map[string]func(net.Conn, *bufio.Reader, int64){
		"a header without end":           flood("HTTP/1.1 200 OK\r\nX: x", "xxxxxxxxxx"),
		"headers without end":            flood("HTTP/1.1 200 OK\r\nX: x\r\n", "Y: y\r\n"),
		"a status without end":           flood("HTTP/1.1 200 OK", "OK"),
		"interim answers without end":    flood("HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n"),
		"another protocol":               flood("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "x"),
		"something else than HTTP":       flood("SSH-2.0-OpenSSH_9.9\r\n", "\x00\x01\x02"),
		"two lengths":                    flood("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n", "x"),
		"a length that is less than one": flood("HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "x"),
	} {
		t.Run(name, func(t *testing.T) {
			e := newTalker(t, nil, say)
			newAsker(t, e, question{}).want("", "malformed")
			e.wantOpened(t, 1)
		})
	}
}

func TestInterimAnswersAreSkipped(t *testing.T) {
	e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
		for asked(requests) {
			_, _ = io.WriteString(conn, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 20)+saying("page"))
		}
	})
	a := newAsker(t, e, question{})
	a.want("page", "")
	a.want("page", "")
	e.wantOpened(t, 1)
}

// Of an answer whose status is all that counts, little is read.
func TestABodyThatNobodyWantsIsNotReadToItsEnd(t *testing.T) {
	stopped := make(chan struct{}, 1)
	e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, number int64) {
		asked(requests)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			if _, err := io.WriteString(conn, "1000\r\n"+strings.Repeat("x", 0x1000)+"\r\n"); err != nil {
				stopped <- struct{}{}
				return
			}
		}
	})
	a := newAsker(t, e, question{status: true})
	if got := a.ask(patience); got.status != 200 || got.reason != "" {
		t.Errorf("status %d, reason %q", got.status, got.reason)
	}
	wait(t, stopped, "the engine to notice")
}

func TestAConnectionOfNoMoreUseIsClosed(t *testing.T) {
	ended := make(chan string, 10)
	say := func(name string) func(net.Conn, *bufio.Reader, int64) {
		return func(conn net.Conn, requests *bufio.Reader, _ int64) {
			for asked(requests) {
				_, _ = io.WriteString(conn, saying(name))
			}
			ended <- name
		}
	}
	one, other := newTalker(t, nil, say("one")), newTalker(t, nil, say("other"))
	a := newAsker(t, one, question{})
	a.want("one", "")
	a.host = other.Addr().String()
	a.want("other", "")
	a.clock.Advance(idleConnection)
	a.want("other", "")
	a.clock.Advance(time.Second)
	a.want("other", "")
	if got := wait(t, ended, "a connection to end"); got != "one" {
		t.Errorf("the connection to %q ended first", got)
	}
	if hosts := []string{a.kept[0].host}; len(a.kept) != 1 || !slices.Equal(hosts, []string{a.host}) {
		t.Errorf("%d connections are kept, to %v", len(a.kept), hosts)
	}
	other.wantOpened(t, 1)
}

// A question is given up at once with its endpoint, whatever it waits for.
func TestAQuestionEndsWithItsContext(t *testing.T) {
	for name, begin := range map[string]string{
		"before the answer": "",
		"in the headers":    "HTTP/1.1 200 OK\r\n",
		"in the page":       "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npage",
	} {
		for scheme, first := range map[string]func(*bufio.Reader){
			"http":  func(requests *bufio.Reader) { asked(requests) },
			"https": func(requests *bufio.Reader) { _, _ = requests.Peek(1) },
		} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				waiting := make(chan struct{}, 1)
				e := newTalker(t, nil, func(conn net.Conn, requests *bufio.Reader, _ int64) {
					first(requests)
					if scheme == "http" {
						_, _ = io.WriteString(conn, begin)
					}
					waiting <- struct{}{}
					_, _ = io.Copy(io.Discard, requests)
				})
				a := newAsker(t, e, question{scheme: scheme})
				ctx, cancel := context.WithCancel(t.Context())
				answers := make(chan answer, 1)
				go func() { answers <- a.get(ctx, a.question, &a.kept, time.Hour, 1<<20, nil) }()
				wait(t, waiting, "the question")
				cancel()
				if got := wait(t, answers, "the end of the question"); got.reason != "timeout" || len(a.kept) != 0 {
					t.Errorf("reason %q (%v), %d connections kept", got.reason, got.cause, len(a.kept))
				}
			})
		}
	}
}
