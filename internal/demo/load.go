package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxInFlight bounds the requests under way. A request that is due while as
// many are under way waits, and its wait counts.
const maxInFlight = 512

// requestLimit is how long one request may take.
const requestLimit = 60 * time.Second

// A sample is what the client saw of one request.
type sample struct {
	// Due is when the request was to be sent, End when it was over.
	Due, End time.Time
	// Err is nil if the answer came, whole and with status 200.
	Err error
	// Replica is who served; empty if nobody did.
	Replica string
	// FirstToken is from Due to the first byte of the body; 0 if the request was
	// not streamed.
	FirstToken time.Duration
	// PromptTokens and CachedTokens are the engine's count.
	PromptTokens, CachedTokens int
}

// newClient is a client for a run of requests and for the reports.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConns:        maxInFlight,
		MaxIdleConnsPerHost: maxInFlight,
		DisableCompression:  true,
	}}
}

// send sends each request of work to url when it is due, and returns when all
// are over. There is one sample for each, in the same order. The error is that
// of the context.
func send(ctx context.Context, client *http.Client, url string, work []request) ([]sample, error) {
	samples := make([]sample, len(work))
	places := make(chan struct{}, maxInFlight)
	var under sync.WaitGroup
	defer under.Wait()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for i := range work {
		due := start.Add(work[i].At)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		under.Go(func() {
			samples[i] = ask(ctx, client, url, &work[i], due)
			<-places
		})
	}
	under.Wait()
	return samples, ctx.Err()
}

// ask sends one request and reads its answer.
func ask(ctx context.Context, client *http.Client, url string, r *request, due time.Time) sample {
	s := sample{Due: due}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	s.Err = exchange(ctx, client, url, r, &s)
	s.End = time.Now()
	return s
}

func exchange(ctx context.Context, client *http.Client, url string, r *request, s *sample) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s.Replica = resp.Header.Get("X-Sim-Engine")
	body := bufio.NewReader(resp.Body)
	if _, err := body.Peek(1); err == nil && r.Stream {
		s.FirstToken = time.Since(s.Due)
	}
	text, err := io.ReadAll(body)
	switch {
	case err != nil:
		return fmt.Errorf("the answer broke off: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %.200s", resp.StatusCode, bytes.TrimSpace(text))
	}
	return s.count(text, r.Stream)
}

// streamEnd is the last event of a stream.
var streamEnd = []byte("data: [DONE]\n\n")

// count takes the token counts from a whole answer. The usage of a stream is in
// the event before the last.
func (s *sample) count(text []byte, stream bool) error {
	if stream {
		events, whole := bytes.CutSuffix(text, streamEnd)
		if !whole {
			return errors.New("the stream ended before its last event")
		}
		events = bytes.TrimSuffix(events, []byte("\n\n"))
		text = events[bytes.LastIndex(events, []byte("data: "))+len("data: "):]
	}
	var answer struct {
		Usage struct {
			PromptTokens  int `json:"prompt_tokens"`
			PromptDetails struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("the answer is not what an engine says: %w", err)
	}
	if answer.Usage.PromptTokens == 0 {
		return errors.New("the answer has no usage")
	}
	s.PromptTokens, s.CachedTokens = answer.Usage.PromptTokens, answer.Usage.PromptDetails.CachedTokens
	return nil
}
