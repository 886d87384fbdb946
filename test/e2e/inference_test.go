package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

func TestTheOfficialOpenAIClientIsServed(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{})})
	for version, c := range f.clients() {
		t.Run(version, func(t *testing.T) {
			api := openai.NewClient(option.WithBaseURL("http://"+f.envoy.gateway+"/v1/"), option.WithAPIKey("any"),
				option.WithHTTPClient(c), option.WithMaxRetries(0))
			// The simulated engine counts four bytes of "user\nhello\n" as a token.
			chat := openai.ChatCompletionNewParams{
				Model:               "sim-model",
				Messages:            []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
				MaxCompletionTokens: openai.Int(3),
			}

			t.Run("chat", func(t *testing.T) {
				got, err := api.Chat.Completions.New(t.Context(), chat)
				if err != nil {
					t.Fatal(err)
				}
				if text := got.Choices[0].Message.Content; text != "the ship comes" || got.Choices[0].FinishReason != "length" {
					t.Errorf("answer %q, finish reason %q", text, got.Choices[0].FinishReason)
				}
				if u := got.Usage; u.PromptTokens != 3 || u.CompletionTokens != 3 || u.TotalTokens != 6 {
					t.Errorf("usage %s, want 3 + 3 = 6", u.RawJSON())
				}
			})
			t.Run("chat as a stream with usage", func(t *testing.T) {
				chat := chat
				chat.StreamOptions.IncludeUsage = openai.Bool(true)
				events := api.Chat.Completions.NewStreaming(t.Context(), chat)
				defer func() { _ = events.Close() }()
				var whole openai.ChatCompletionAccumulator
				chunks := 0
				for events.Next() {
					chunks++
					if !whole.AddChunk(events.Current()) {
						t.Errorf("chunk %d does not belong to the answer: %s", chunks, events.Current().RawJSON())
					}
				}
				if err := events.Err(); err != nil {
					t.Fatal(err)
				}
				// The role, three tokens, the usage.
				if text := whole.Choices[0].Message.Content; chunks != 5 || text != "the ship comes" {
					t.Errorf("%d chunks make %q, want 5 and %q", chunks, text, "the ship comes")
				}
				if u := whole.Usage; u.PromptTokens != 3 || u.CompletionTokens != 3 || u.TotalTokens != 6 {
					t.Errorf("usage %+v, want 3 + 3 = 6", u)
				}
			})
			t.Run("completion", func(t *testing.T) {
				got, err := api.Completions.New(t.Context(), openai.CompletionNewParams{
					Model: "sim-model", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("hello")}, MaxTokens: openai.Int(2),
				})
				if err != nil {
					t.Fatal(err)
				}
				if text := got.Choices[0].Text; text != "the ship" {
					t.Errorf("answer %q, want %q", text, "the ship")
				}
			})
			t.Run("models", func(t *testing.T) {
				got, err := api.Models.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Data) != 1 || got.Data[0].ID != "sim-model" {
					t.Errorf("models %s, want sim-model", got.RawJSON())
				}
			})
		})
	}
	f.awaitInFlight(map[string]int{})
	for _, d := range f.log.ended(t) {
		// The client closes a stream at [DONE], without waiting for its end: over h2
		// that is a reset, which may come before the end has passed.
		if d.Acknowledgement.Acted != "confirmed" || d.Outcome.Cause != "complete" {
			t.Errorf("decision %s: acted %q, outcome %q; want confirmed and complete", d.ID, d.Acknowledgement.Acted, d.Outcome.Cause)
		}
	}
}

// A tap stands in front of an engine and keeps what it answers to inference.
type tap struct {
	*httptest.Server
	mu   sync.Mutex
	last []byte
}

func newTap(t *testing.T, engine string) *tap {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})
	proxy.FlushInterval = -1
	tp := &tap{}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.Request.Method == http.MethodPost {
			tp.reset()
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(resp.Body, tp), resp.Body}
		}
		return nil
	}
	tp.Server = httptest.NewServer(proxy)
	t.Cleanup(tp.Close)
	return tp
}

func (tp *tap) Write(p []byte) (int, error) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.last = append(tp.last, p...)
	return len(p), nil
}

func (tp *tap) reset() {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.last = nil
}

func (tp *tap) sent() string {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return string(tp.last)
}

func TestResponsesReachTheClientByteForByte(t *testing.T) {
	var tp *tap
	f := start(t, spec{
		engines: engines(1, enginesim.Config{}),
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			tp = newTap(t, fmt.Sprintf("%s:%d", m[0].Address, m[0].Port))
			return []v1alpha1.StaticEndpoint{member("e1", tp.Listener.Addr().String())}
		},
		unscraped: true,
	})
	for _, tc := range []struct {
		name, path, body string
		events           int // 0 for an answer that is no stream
	}{
		{"chat stream with usage", "/v1/chat/completions",
			`{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":20,"stream":true,"stream_options":{"include_usage":true}}`, 23},
		{"completion stream", completions, streams(20), 21},
		{"whole answer", completions, asks(20), 0},
		{"the engine's own refusal", completions, `{"model":"sim-model","max_tokens":1}`, 0},
	} {
		for version, c := range f.clients() {
			t.Run(tc.name+" over "+version, func(t *testing.T) {
				a := f.do(c, f.request(t.Context(), http.MethodPost, tc.path, tc.body))
				if sent := tp.sent(); a.body != sent || sent == "" {
					t.Errorf("the client got\n%q\nand the engine sent\n%q", a.body, sent)
				}
				if n := strings.Count(a.body, "data: "); n != tc.events {
					t.Errorf("%d events, want %d", n, tc.events)
				}
				if tc.events > 0 && a.header.Get("Content-Length") != "" {
					t.Errorf("X16: a stream with content-length %s", a.header.Get("Content-Length"))
				}
			})
		}
	}
}

// once hides what kind of reader it is, so that no length is known in advance.
type once struct{ io.Reader }

func digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// arrivedUnchanged is how often the engines got just this body.
func (f *fleet) arrivedUnchanged(body string) int {
	n := uint64(0)
	for _, e := range f.engines {
		n += e.Arrivals().BySHA256[digest(body)]
	}
	return int(n)
}

// upload sends a body and says how it was answered; chunked hides its length.
func (f *fleet) upload(c *http.Client, body []byte, chunked bool) answer {
	f.t.Helper()
	req := f.request(f.t.Context(), http.MethodPost, completions, "")
	req.Header.Set("Content-Type", "application/json")
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if chunked {
		req.Body, req.ContentLength = io.NopCloser(once{bytes.NewReader(body)}), -1
	}
	return f.do(c, req)
}

func TestX10_LargeBodiesArriveByteForByte(t *testing.T) {
	f := start(t, spec{engines: engines(2, enginesim.Config{}), fallbacks: 2})
	for _, size := range []int{2 << 20, 20 << 20} {
		for version, c := range f.clients() {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d bytes over %s, chunked %v", size, version, chunked), func(t *testing.T) {
					body := padded(size)
					// No two uploads are the same bytes.
					copy(body[len(body)-40:], fmt.Sprintf("%d %s %v", size, version, chunked))
					if a := f.upload(c, body, chunked); a.status != http.StatusOK {
						t.Fatalf("status %d: %s", a.status, a.body)
					}
					if n := f.arrivedUnchanged(string(body)); n != 1 {
						t.Errorf("the body arrived unchanged %d times, want once", n)
					}
				})
			}
		}
	}
}

// padded is a request for one token whose body has just this size.
func padded(size int) []byte {
	const head, tail = `{"model":"sim-model","prompt":"hello","max_tokens":1,"padding":"`, `"}`
	body := bytes.Repeat([]byte("x"), size)
	copy(body, head)
	copy(body[size-len(tail):], tail)
	return body
}

func TestX10_BodiesOver32MiBAreRefusedAndReachNoEngine(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{})})
	body := padded(32<<20 + 1)
	for version, c := range f.clients() {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %v", version, chunked), func(t *testing.T) {
				expectRefusal(t, f.upload(c, body, chunked), 413, "body_too_large")
			})
		}
	}
	if n := f.total(); n != 0 {
		t.Errorf("%d requests reached the engine, want none", n)
	}
}

func TestR10_BodiesArriveAsTheyWereWritten(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{})})
	for name, body := range map[string]string{
		"integers above 2^53 and 2^63": `{"model":"sim-model","prompt":"hi","max_tokens":1,"seed":18446744073709551617,"user_id":9007199254740993}`,
		"a float with a final zero":    `{"model":"sim-model","prompt":"hi","max_tokens":1,"temperature":0.10,"top_p":1.0,"min_p":1e-3}`,
		"unknown fields":               `{"model":"sim-model","x_new":{"b":1,"a":[null,{}]},"prompt":"hi","max_tokens":1}`,
		"duplicate keys":               `{"model":"sim-model","prompt":"no","prompt":"hi","max_tokens":1,"top_k":1,"top_k":2}`,
		"invalid UTF-8 in a string":    "{\"model\":\"sim-model\",\"prompt\":\"hi\",\"max_tokens\":1,\"user\":\"\xff\xfe\xc3\"}",
		"space and escapes":            "\n\t{ \"model\" : \"sim\\u002dmodel\" ,\r\n \"prompt\":\"\\u0068i \\ud83d\\ude00\", \"max_tokens\":1 }\n ",
		"R11 no model":                 `{"prompt":"hi","max_tokens":1}`,
	} {
		for version, c := range f.clients() {
			t.Run(name+" over "+version, func(t *testing.T) {
				a := f.post(c, body)
				last := f.engines[0].Arrivals().Last
				if a.status != http.StatusOK {
					t.Errorf("status %d: %s", a.status, a.body)
				}
				if last == nil || last.SHA256 != digest(body) {
					t.Errorf("the engine got %+v, want %d bytes with digest %s", last, len(body), digest(body))
				}
			})
		}
	}
}

func TestR12_TheClientsRequestIDCorrelatesAndNothingElse(t *testing.T) {
	f := start(t, spec{engines: engines(1, enginesim.Config{})})
	long := strings.Repeat("x", 10_000)
	decisions := map[string]bool{}
	for _, id := range []string{"same", "same", `quo"ted`, long} {
		req := f.request(t.Context(), http.MethodPost, completions, asks(1))
		req.Header.Set("X-Request-Id", id)
		a := f.do(f.h1, req)
		if a.status != http.StatusOK {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		last := f.engines[0].Arrivals().Last.Headers
		if last["x-request-id"] != id {
			t.Errorf("the engine got x-request-id of %d bytes, want that of the client, %d bytes", len(last["x-request-id"]), len(id))
		}
		if last["x-berth-decision"] != a.decision() || a.decision() == "" {
			t.Errorf("the engine was told decision %q and the client %q", last["x-berth-decision"], a.decision())
		}
		if d := f.record(a.decision()); !strings.HasPrefix(id, d.Request.RequestID) || d.Request.RequestID == "" || len(d.Request.RequestID) > 256 {
			t.Errorf("recorded request id %q, want the first 256 bytes at most of %.300q", d.Request.RequestID, id)
		}
		decisions[a.decision()] = true
	}
	if len(decisions) != 4 {
		t.Errorf("4 requests got %d decision ids", len(decisions))
	}
}
