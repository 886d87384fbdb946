package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// completion is a request for so many tokens, whatever they are. No two prompts
// begin alike, so that no prefix is found in a cache.
func completion(ctx context.Context, address string, number, tokens int, stream bool) (*http.Request, error) {
	return request(ctx, address, fmt.Sprintf("%d ships wait for a berth", number), tokens, stream)
}

// repetition is a request whose prompt is always the same.
func repetition(ctx context.Context, address string) (*http.Request, error) {
	return request(ctx, address, strings.Repeat("=", repeatedPrompt), 4, false)
}

func request(ctx context.Context, address, prompt string, tokens int, stream bool) (*http.Request, error) {
	body := fmt.Sprintf(`{"model": %q, "prompt": %q, "max_tokens": %d, "ignore_eos": true, "stream": %t}`, servedModel, prompt, tokens, stream)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("content-type", "application/json")
	return req, nil
}

// answer is what became of a request through the gateway.
type answer struct {
	status int
	// reason is the picker's, if it refused the request itself.
	reason string
	// served is the replica that answered, acted how the gateway treated the pick.
	served, acted string
}

// ask sends n short requests through the gateway, one after the other.
func (s *session) ask(n int) ([]answer, error) {
	answers := make([]answer, 0, n)
	for i := range n {
		a, err := s.askOne(i)
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func (s *session) askOne(number int) (a answer, err error) {
	// A replica that sleeps takes a request and does not answer it.
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	req, err := completion(ctx, s.gateway, number, 4, false)
	if err != nil {
		return answer{}, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return answer{}, err
	}
	d, err := s.decision(resp.Header.Get("X-Berth-Decision"))
	if err != nil {
		return answer{}, err
	}
	if told := resp.Header.Get(replicaHeader); told != d.Acknowledgement.Served {
		return answer{}, fmt.Errorf("decision %s: the response names the replica %q, the record %q", d.ID, told, d.Acknowledgement.Served)
	}
	return answer{
		status: resp.StatusCode, reason: resp.Header.Get("X-Berth-Reason"),
		served: d.Acknowledgement.Served, acted: d.Acknowledgement.Acted,
	}, nil
}

// replicaHeader names the replica that answered.
const replicaHeader = "X-Berth-Replica"

// servedBy counts the answers with status 200 that a replica gave.
func servedBy(answers []answer, r *replica) float64 {
	n := 0
	for _, a := range answers {
		if a.status == http.StatusOK && a.served == r.name {
			n++
		}
	}
	return float64(n)
}

// opened are streams through the gateway that have begun.
type opened struct {
	// served counts them by replica.
	served map[string]int
	// leave ends them from the client's side, and returns when they have ended.
	leave func()
}

// open begins n streams of so many tokens each.
func (s *session) open(n, tokens int) (*opened, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	o := &opened{served: map[string]int{}, leave: func() { cancel(); running.Wait() }}
	for i := range n {
		if err := s.openOne(ctx, &running, o, i, tokens); err != nil {
			o.leave()
			return nil, err
		}
	}
	return o, nil
}

func (s *session) openOne(ctx context.Context, running *sync.WaitGroup, o *opened, number, tokens int) error {
	req, err := completion(ctx, s.gateway, number, tokens, true)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	events := bufio.NewReader(resp.Body)
	running.Go(func() {
		<-ctx.Done()
		_ = resp.Body.Close()
	})
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a stream is answered with status %d", resp.StatusCode)
	}
	if _, err := events.ReadString('\n'); err != nil {
		return fmt.Errorf("the first event of a stream: %w", err)
	}
	// The rest is read as it comes.
	running.Go(func() { _, _ = io.Copy(io.Discard, events) })
	o.served[resp.Header.Get(replicaHeader)]++
	return nil
}

// occupy has n clients ask a replica for so many tokens each, past the gateway,
// again and again. It returns how to send them away, which also returns the
// first error that one of them met.
func (s *session) occupy(r *replica, n, tokens int) (leave func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	var clients sync.WaitGroup
	failed := make(chan error, n)
	for i := range n {
		clients.Go(func() {
			for number := i; ctx.Err() == nil; number += n {
				if err := s.once(ctx, r, number, tokens); err != nil && ctx.Err() == nil {
					failed <- fmt.Errorf("a client of %s: %w", r.name, err)
					return
				}
			}
		})
	}
	return func() error {
		cancel()
		clients.Wait()
		select {
		case err := <-failed:
			return err
		default:
			return nil
		}
	}
}

func (s *session) once(ctx context.Context, r *replica, number, tokens int) error {
	req, err := completion(ctx, r.address, number, tokens, true)
	if err != nil {
		return err
	}
	return s.finish(req)
}

// finish sends a request and takes its answer to the end.
func (s *session) finish(req *http.Request) error {
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
