package enginesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// ErrNotRunning says that the engine has not been started, has died or was closed.
var ErrNotRunning = errors.New("engine is not running")

// Server is a simulated engine at an address. All methods are safe for concurrent use.
type Server struct {
	cfg      Config
	pages    Pages
	absent   []string // paths where engines of other kinds have a page
	arrivals arrivalBook
	active   sync.WaitGroup // handlers and accept loops

	mu      sync.Mutex
	addr    string        // of the latest listener
	process *process      // nil while there is none
	http    *http.Server  // nil while there is none
	died    chan struct{} // of the latest listener; closed when it closes
	conns   map[net.Conn]struct{}
}

// New returns an engine that is not running yet. The error names each bad field.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("simulated engine: %w", err)
	}
	return &Server{cfg: cfg, pages: cfg.Dialect.Pages(), absent: pagesOfOthers()}, nil
}

// Start begins a process that listens on a host:port; port 0 takes a free one, see Addr. It is an error if one runs already.
func (s *Server) Start(addr string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(addr)
}

func (s *Server) start(addr string) error {
	if s.process != nil {
		return fmt.Errorf("engine %s runs already, at %s", s.cfg.Name, s.addr)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	process, err := startProcess(s.cfg)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.addr = listener.Addr().String()
	s.process = process
	s.died = make(chan struct{})
	s.conns = make(map[net.Conn]struct{})
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ConnState:         s.track,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: time.Minute,
		// Connections that break are part of what is simulated.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.http = server
	s.active.Go(func() {
		// Die closes the listener; nothing else ends the loop.
		_ = server.Serve(listener)
	})
	return nil
}

// Addr returns the host:port of the latest listener, and an empty string before the first.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Die ends the process as a crash would: the listener and all connections close at once, nothing is answered any more. It does
// nothing if no process runs.
func (s *Server) Die() {
	s.mu.Lock()
	process, server, died := s.process, s.http, s.died
	s.process, s.http = nil, nil
	s.mu.Unlock()
	if process == nil {
		return
	}
	// Connections first: a client must not see an orderly end.
	_ = server.Close()
	process.stop()
	close(died)
}

// Died returns a channel that is closed when the engine dies or is closed; a Restart of a running engine does not close it. It is
// closed already if the engine has died, and nil before the first Start.
func (s *Server) Died() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.died
}

// Restart replaces the process by a new one at the same address. If one runs, its connections close and the listener stays, so
// nobody finds the port closed; if it died, the address is listened on again.
func (s *Server) Restart() error { return s.restart(nil) }

// restart spares one connection, if given, for the answer.
func (s *Server) restart(spare net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		if s.addr == "" {
			return ErrNotRunning
		}
		return s.start(s.addr)
	}
	next, err := startProcess(s.cfg)
	if err != nil {
		return err
	}
	last := s.process
	s.process = next
	for c := range s.conns {
		if c != spare {
			_ = c.Close()
		}
	}
	last.stop()
	return nil
}

// Close ends the process and waits until everything that it started has returned.
func (s *Server) Close() {
	s.Die()
	s.active.Wait()
}

// Stats returns the model's state. The error is ErrNotRunning.
func (s *Server) Stats() (enginemodel.Stats, error) {
	p, err := s.running()
	if err != nil {
		return enginemodel.Stats{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engine.Stats(), nil
}

// Arrivals returns what has reached the engine so far.
func (s *Server) Arrivals() Arrivals { return s.arrivals.read() }

// SetFaults replaces the faults. The error names a bad field, or is ErrNotRunning.
func (s *Server) SetFaults(f Faults) error {
	p, err := s.running()
	if err != nil {
		return err
	}
	return p.setFaults(f)
}

// SetLoad replaces the background load. The error names a bad field, or is ErrNotRunning.
func (s *Server) SetLoad(l Load) error {
	p, err := s.running()
	if err != nil {
		return err
	}
	return p.setLoad(l)
}

func (s *Server) running() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil, ErrNotRunning
	}
	return s.process, nil
}

type connKey struct{}

// track keeps the set of open connections, for restart.
func (s *Server) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, c)
	case http.StateActive, http.StateIdle:
	}
}
