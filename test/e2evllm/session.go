package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/hack/envoy"
	"github.com/berth-dev/berth/hack/vllm"
	"github.com/berth-dev/berth/test/finding"
)

// session is what the phases of one run share: two replicas, and a picker and a
// gateway before them.
type session struct {
	ctx context.Context
	// dir is a scratch directory of this run.
	dir string
	// pages takes the replicas' pages; empty where nobody wants them.
	pages string
	// verbose takes what -v asks for; nil without it.
	verbose io.Writer
	started time.Time
	client  *http.Client

	python, envoyBinary string
	replicas            []*replica
	picker, envoy       *process
	// gateway is where clients go, reports where the picker reports: ip:port.
	gateway, reports string

	report   func(finding.Finding)
	readings table
}

func newSession(ctx context.Context, dir, pages string, verbose io.Writer) *session {
	return &session{
		ctx: ctx, dir: dir, pages: pages, verbose: verbose, started: time.Now(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
	}
}

func (s *session) logf(format string, args ...any) {
	if s.verbose != nil {
		fmt.Fprintf(s.verbose, "%7s "+format+"\n", append([]any{time.Since(s.started).Round(100 * time.Millisecond)}, args...)...)
	}
}

// startLimit is how long two vLLM may take to start. They need 100 seconds of CPU
// for it, so on two cores that have nothing else to do about a minute.
const startLimit = 20 * time.Minute

// start starts everything, and returns when the picker has read both replicas.
func (s *session) start() (err error) {
	progress := s.verbose
	if progress == nil {
		progress = os.Stderr
	}
	if s.envoyBinary, err = envoy.Path(s.ctx, progress); err != nil {
		return err
	}
	if s.python, err = vllm.Python(s.ctx, progress); err != nil {
		return err
	}
	if s.pages != "" {
		if err := os.MkdirAll(s.pages, 0o755); err != nil {
			return err
		}
	}
	model := filepath.Join(s.dir, "model")
	if err := os.Mkdir(model, 0o755); err != nil {
		return err
	}
	if err := writeModel(model); err != nil {
		return err
	}
	for _, name := range []string{"r1", "r2"} {
		r, err := startReplica(name, s.dir, s.python)
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
		s.logf("%s: vLLM starts at %s", r.name, r.address)
	}
	var group errgroup.Group
	for _, r := range s.replicas {
		group.Go(func() error {
			if err := s.await(r.name+" serves", startLimit, func() (bool, error) { return s.healthy(r), nil }); err != nil {
				return fmt.Errorf("%w%s", err, r.lastWords())
			}
			s.logf("%s: serves", r.name)
			return nil
		})
	}
	// The picker is built meanwhile.
	err = s.buildPicker()
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	if err := s.startPicker(); err != nil {
		return err
	}
	if err := s.startGateway(); err != nil {
		return err
	}
	return s.quiet()
}

// close ends all that was started, from the client's side on.
func (s *session) close() {
	s.client.CloseIdleConnections()
	s.envoy.stop()
	s.picker.stop()
	var replicas sync.WaitGroup
	for _, r := range s.replicas {
		replicas.Go(r.stop)
	}
	replicas.Wait()
}

func (s *session) healthy(r *replica) bool {
	status, _, err := s.get(r.url("/health"))
	return err == nil && status == http.StatusOK
}

const (
	// patience bounds every wait for a condition after the start.
	patience = 2 * time.Minute
	// pollEvery is how often a condition is looked at: more often than the picker
	// reads a busy replica.
	pollEvery = 100 * time.Millisecond
)

// until waits for a condition and reports whether it came to hold in time.
func (s *session) until(limit time.Duration, condition func() (bool, error)) (bool, error) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		holds, err := condition()
		if holds || err != nil {
			return holds, err
		}
		if err := s.alive(); err != nil {
			return false, err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return false, nil
		case <-s.ctx.Done():
			return false, s.ctx.Err()
		}
	}
}

// await is until for a condition without which it cannot go on.
func (s *session) await(what string, limit time.Duration, condition func() (bool, error)) error {
	holds, err := s.until(limit, condition)
	if err == nil && !holds {
		err = fmt.Errorf("%s: not within %s", what, limit)
	}
	return err
}

// alive is an error if something ended that nobody killed.
func (s *session) alive() error {
	processes := []*process{s.picker, s.envoy}
	for _, r := range s.replicas {
		if !r.killed {
			processes = append(processes, r.process)
		}
	}
	for _, p := range slices.DeleteFunc(processes, func(p *process) bool { return p == nil }) {
		if err := p.alive(); err != nil {
			return err
		}
	}
	return nil
}

// get is the status and the body of a page.
func (s *session) get(url string) (status int, body string, err error) {
	return s.do(http.MethodGet, url)
}

// post is get for a request that changes something and has no body.
func (s *session) post(url string) error {
	status, body, err := s.do(http.MethodPost, url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("POST %s: status %d, %s", url, status, body)
	}
	return err
}

func (s *session) do(method, url string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
