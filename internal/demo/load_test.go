package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const usageJSON = `{"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 16}}}`

func TestAnAnswerCountsOnlyIfItIsWhole(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stream bool
		status int
		body   string
		// cut breaks the connection off after the body.
		cut  bool
		fail string
	}{
		{"in one piece", false, 200, usageJSON, false, ""},
		{"streamed", true, 200, "data: {}\n\ndata: " + usageJSON + "\n\ndata: [DONE]\n\n", false, ""},
		{"an error", false, 503, "no replica", false, "status 503: no replica"},
		{"a stream that ends early", true, 200, "data: {}\n\n", false, "before its last event"},
		{"a connection that breaks off", true, 200, "data: {}\n\n", true, "broke off"},
		{"without usage", false, 200, `{}`, false, "no usage"},
		{"not JSON", false, 200, `hello`, false, "not what an engine says"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Sim-Engine", "r7")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
				if tc.cut {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			}))
			defer server.Close()
			client := newClient()
			defer client.CloseIdleConnections()
			samples, err := send(t.Context(), client, server.URL, []request{{Path: "/", Stream: tc.stream}})
			if err != nil || len(samples) != 1 {
				t.Fatalf("%d samples, %v", len(samples), err)
			}
			s := samples[0]
			if tc.fail != "" {
				if s.Err == nil || !strings.Contains(s.Err.Error(), tc.fail) {
					t.Errorf("error %v, want one with %q", s.Err, tc.fail)
				}
				return
			}
			if s.Err != nil || s.Replica != "r7" || s.PromptTokens != 40 || s.CachedTokens != 16 {
				t.Errorf("got %+v", s)
			}
			if streamed := s.FirstToken > 0; streamed != tc.stream {
				t.Errorf("first token after %s, streamed %v", s.FirstToken, tc.stream)
			}
		})
	}
}

func TestRequestsGoOutThoughEarlierOnesAreNotAnswered(t *testing.T) {
	const n = 20
	arrived := make(chan struct{}, n)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, usageJSON)
	}))
	defer server.Close()
	client := newClient()
	defer client.CloseIdleConnections()
	go func() {
		for range n {
			<-arrived
		}
		close(release)
	}()
	samples, err := send(t.Context(), client, server.URL, make([]request, n))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range samples {
		if s.Err != nil {
			t.Errorf("request %d: %v", i, s.Err)
		}
	}
}

func TestTimesCountFromWhenARequestWasDue(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", usageJSON)
	}))
	defer server.Close()
	client := newClient()
	defer client.CloseIdleConnections()
	late := time.Now().Add(-time.Minute)
	s := ask(t.Context(), client, server.URL, &request{Path: "/", Stream: true}, late)
	if s.Err != nil || s.FirstToken < time.Minute || s.End.Sub(s.Due) < s.FirstToken {
		t.Errorf("got %+v, want what took a minute before it was sent", s)
	}
}

func TestAnInterruptedLoadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	client := newClient()
	defer client.CloseIdleConnections()
	_, err := send(ctx, client, server.URL, []request{{Path: "/"}, {Path: "/", At: time.Hour}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}
