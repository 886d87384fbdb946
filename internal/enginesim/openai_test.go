package enginesim

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// A chat of the user's "hello there ship" is "user\nhello there ship\n", 22 bytes and so 6 tokens.
const hello = `"messages":[{"role":"user","content":"hello there ship"}]`

func TestAnswersInOnePiece(t *testing.T) {
	for _, c := range []struct{ name, path, body, want string }{
		{"chat with a limit", "/v1/chat/completions", `{"model":"m","max_tokens":3,` + hello + `}`,
			`{"id":"chatcmpl-abc","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,` +
				`"message":{"role":"assistant","content":"the ship comes"},"logprobs":null,"finish_reason":"length","stop_reason":null}],` +
				`"usage":{"prompt_tokens":6,"total_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"chat without", "/v1/chat/completions", `{"model":"alias",` + hello + `}`,
			`{"id":"chatcmpl-abc","object":"chat.completion","created":1700000000,"model":"alias","choices":[{"index":0,` +
				`"message":{"role":"assistant","content":"the ship comes in"},"logprobs":null,"finish_reason":"stop","stop_reason":null}],` +
				`"usage":{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"completion", "/v1/completions", `{"prompt":"four","max_tokens":1}`,
			`{"id":"cmpl-abc","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,` +
				`"text":"the","logprobs":null,"finish_reason":"length","stop_reason":null}],` +
				`"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := run(t, Config{Name: "r1", Models: []string{"m", "alias"}, OutputTokens: 4, Clock: instant()})
			if got := s.ok("POST", c.path, c.body); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestAnswersInAStream(t *testing.T) {
	const (
		chat = `data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[`
		text = `data: {"id":"cmpl-abc","object":"text_completion","created":1700000000,"model":"m","choices":[`
		rest = `"logprobs":null,"finish_reason":null,"stop_reason":null}]`
		last = `"logprobs":null,"finish_reason":"length","stop_reason":null}]`
		done = "data: [DONE]\n\n"
	)
	for _, c := range []struct{ name, path, body, want string }{
		{"chat", "/v1/chat/completions", `{"stream":true,"max_completion_tokens":2,` + hello + `}`,
			chat + `{"index":0,"delta":{"role":"assistant","content":""},` + rest + "}\n\n" +
				chat + `{"index":0,"delta":{"content":"the"},` + rest + "}\n\n" +
				chat + `{"index":0,"delta":{"content":" ship"},` + last + "}\n\n" + done},
		{"chat with usage", "/v1/chat/completions",
			`{"stream":true,"stream_options":{"include_usage":true},"max_tokens":1,` + hello + `}`,
			chat + `{"index":0,"delta":{"role":"assistant","content":""},` + rest + "}\n\n" +
				chat + `{"index":0,"delta":{"content":"the"},` + last + "}\n\n" +
				chat + `],"usage":{"prompt_tokens":6,"total_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}` +
				"\n\n" + done},
		{"completion with usage everywhere", "/v1/completions",
			`{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":1,"prompt":[7,8]}`,
			text + `{"index":0,"text":"the",` + last +
				`,"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n" +
				text + `],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}` +
				"\n\n" + done},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := run(t, Config{Models: []string{"m"}, Clock: instant()})
			resp, err := s.send(t.Context(), "POST", c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if got := resp.Header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
				t.Errorf("content-type is %q", got)
			}
			if got := s.ok("POST", c.path, c.body); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestTheSamePromptIsFoundInTheCache(t *testing.T) {
	s := run(t, Config{Engine: enginemodel.Config{BlockTokens: 4}, Clock: instant()})
	// Six tokens: one full block of four.
	for i, want := range []string{`"cached_tokens":0`, `"cached_tokens":4`} {
		if got := s.ok("POST", "/v1/chat/completions", `{`+hello+`}`); !strings.Contains(got, want) {
			t.Errorf("request %d: %s does not say %s", i, got, want)
		}
	}
}

func TestErrorsHaveTheEnginesStatusAndShape(t *testing.T) {
	const chat, text = "/v1/chat/completions", "/v1/completions"
	for _, c := range []struct {
		name, path, body string
		status           int
		kind, message    string
	}{
		{"no JSON", chat, `{"model":`, 400, "BadRequestError", "JSON decode error"},
		{"no body", chat, ``, 400, "BadRequestError", "JSON decode error"},
		{"null", chat, `null`, 400, "BadRequestError", "must be an object"},
		{"a list", chat, `[]`, 400, "BadRequestError", "JSON decode error"},
		{"unknown model", chat, `{"model":"x",` + hello + `}`, 404, "NotFoundError", "The model `x` does not exist."},
		{"the last model counts", chat, `{"model":"m","model":"x",` + hello + `}`, 404, "NotFoundError", "`x`"},
		{"a model that is no text", chat, `{"model":7,` + hello + `}`, 400, "BadRequestError", "model: "},
		{"no messages", chat, `{"model":"m"}`, 400, "BadRequestError", "messages: must be"},
		{"empty messages", chat, `{"messages":[]}`, 400, "BadRequestError", "messages: must be"},
		{"no prompt", text, `{"messages":[]}`, 400, "BadRequestError", "prompt: absent"},
		{"two prompts", text, `{"prompt":["a","b"]}`, 400, "BadRequestError", "prompt: must be"},
		{"no tokens wanted", chat, `{"max_tokens":0,` + hello + `}`, 400, "BadRequestError", "max_tokens: 0: must be at least 1"},
		{"two choices", chat, `{"n":2,` + hello + `}`, 400, "BadRequestError", "n: 2: "},
		{"prompt and limit too long", chat, `{"max_tokens":95,` + hello + `}`, 400, "BadRequestError", "maximum context length is 100"},
		{"prompt too long", text, `{"prompt":"` + strings.Repeat("x", 400) + `"}`, 400, "BadRequestError", "100 in the prompt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := run(t, Config{Models: []string{"m"}, MaxModelLen: 100, Clock: instant()})
			status, body := s.do("POST", c.path, c.body)
			var got struct {
				Error struct {
					Message, Type string
					Code          int
				}
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if status != c.status || got.Error.Code != c.status || got.Error.Type != c.kind ||
				!strings.Contains(got.Error.Message, c.message) {
				t.Errorf("got %d %s, want %d %s with %q", status, body, c.status, c.kind, c.message)
			}
		})
	}
}

func TestBodiesAreReadAsTheEngineReadsThem(t *testing.T) {
	cfg := Config{Models: []string{"m"}}.withDefaults()
	for _, c := range []struct {
		name, body string
		chat       bool
		want       inference
	}{
		{"keys are case-sensitive", `{"Model":"x","prompt":"four","MAX_TOKENS":9}`, false, inference{model: "m", prompt: 1}},
		{"the last limit counts", `{"max_tokens":9,"prompt":"four","max_tokens":8}`, false, inference{model: "m", prompt: 1, limit: 8}},
		{"null is absent", `{"model":null,"max_tokens":null,"prompt":"fives"}`, false, inference{model: "m", prompt: 2}},
		{"the newer limit comes first", `{"max_tokens":9,"max_completion_tokens":7,"messages":[{"role":"a","content":"b"}]}`, true,
			inference{chat: true, model: "m", prompt: 1, limit: 7}},
		{"a completion has one limit", `{"max_completion_tokens":7,"prompt":"four"}`, false, inference{model: "m", prompt: 1}},
		// "u\n" + "abcd" + {"type":"x"} + "\n" is 2 + 4 + 12 + 1 bytes.
		{"parts of a content", `{"messages":[{"role":"u","content":[{"type":"text","text":"abcd"},{"type":"x"}]}]}`, true,
			inference{chat: true, model: "m", prompt: 5}},
		{"a message without content", `{"messages":[{"role":"user","content":null}]}`, true, inference{chat: true, model: "m", prompt: 2}},
		{"token ids", `{"prompt":[1,2,3]}`, false, inference{model: "m", prompt: 3}},
	} {
		got, err := readInference([]byte(c.body), c.chat, cfg)
		if err != nil {
			t.Errorf("%s: %s", c.name, err.message)
			continue
		}
		if len(got.blocks) > 0 || got.model != c.want.model || got.prompt != c.want.prompt || got.limit != c.want.limit || got.chat != c.want.chat {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func FuzzReadInference(f *testing.F) {
	f.Add([]byte(`{`+hello+`,"stream":true,"stream_options":{"include_usage":true},"max_tokens":5}`), true)
	f.Add([]byte(`{"prompt":[1,2,3],"model":"m","n":null}`), false)
	f.Add([]byte(`{"prompt":["x"],"max_tokens":1e3}`), false)
	f.Add([]byte(`{"messages":[{"content":[{"text":null},7]}]}`), true)
	cfg := Config{Models: []string{"m"}, MaxModelLen: 64}.withDefaults()
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		inf, bad := readInference(body, chat, cfg)
		if bad != nil {
			if bad.status != http.StatusBadRequest && bad.status != http.StatusNotFound || bad.message == "" {
				t.Fatalf("error %+v", bad)
			}
			return
		}
		engine, err := enginemodel.New(cfg.Engine, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.Submit(epoch, inf.request("r", cfg)); err != nil {
			t.Fatalf("%+v was read and then refused: %v", inf, err)
		}
	})
}
