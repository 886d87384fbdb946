package enginesim

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// answer writes the responses to one inference request. Shapes and object names are those of vLLM's OpenAI API.
type answer struct {
	inf     inference
	id      string
	created int64 // Unix seconds
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

// choice has one of Message, Delta and Text.
type choice struct {
	Index        int      `json:"index"`
	Message      *message `json:"message,omitempty"`
	Delta        *message `json:"delta,omitempty"`
	Text         *string  `json:"text,omitempty"`
	Logprobs     *string  `json:"logprobs"`
	FinishReason *string  `json:"finish_reason"`
	StopReason   *string  `json:"stop_reason"`
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type usage struct {
	PromptTokens        int           `json:"prompt_tokens"`
	TotalTokens         int           `json:"total_tokens"`
	CompletionTokens    int           `json:"completion_tokens"`
	PromptTokensDetails promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

func newAnswer(inf inference, id string, now time.Time) *answer {
	prefix := "cmpl-"
	if inf.chat {
		prefix = "chatcmpl-"
	}
	return &answer{inf: inf, id: prefix + id, created: now.Unix()}
}

func (a *answer) object(stream bool) string {
	switch {
	case !a.inf.chat:
		return "text_completion"
	case stream:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (a *answer) completion(stream bool, choices ...choice) completion {
	if choices == nil {
		choices = []choice{} // an empty list, not null
	}
	return completion{ID: a.id, Object: a.object(stream), Created: a.created, Model: a.inf.model, Choices: choices}
}

func (a *answer) usage(generated, cached int) *usage {
	return &usage{PromptTokens: a.inf.prompt, CompletionTokens: generated, TotalTokens: a.inf.prompt + generated,
		PromptTokensDetails: promptDetails{CachedTokens: cached}}
}

// whole writes the answer in one piece.
func (a *answer) whole(w http.ResponseWriter, now progress) {
	var text strings.Builder
	for i := range now.generated {
		text.WriteString(token(i))
	}
	content, reason := text.String(), now.reason.String()
	c := choice{FinishReason: &reason}
	if a.inf.chat {
		c.Message = &message{Role: "assistant", Content: &content}
	} else {
		c.Text = &content
	}
	full := a.completion(false, c)
	full.Usage = a.usage(now.generated, now.cached)
	writeJSON(w, http.StatusOK, full)
}

// stream writes server-sent events, one per token.
type stream struct {
	*answer
	w    io.Writer
	sent int // tokens
}

// tokens writes all tokens up to the progress; the last one of the answer says why it ended.
func (s *stream) tokens(now progress) error {
	if s.sent == 0 && s.inf.chat {
		empty := ""
		opening := s.completion(true, choice{Delta: &message{Role: "assistant", Content: &empty}})
		if err := s.event(opening, 0, now.cached); err != nil {
			return err
		}
	}
	for ; s.sent < now.generated; s.sent++ {
		text := token(s.sent)
		c := choice{}
		if s.inf.chat {
			c.Delta = &message{Content: &text}
		} else {
			c.Text = &text
		}
		if now.ended && s.sent == now.generated-1 {
			reason := now.reason.String()
			c.FinishReason = &reason
		}
		if err := s.event(s.completion(true, c), s.sent+1, now.cached); err != nil {
			return err
		}
	}
	return nil
}

// end writes what follows the last token.
func (s *stream) end(now progress) error {
	if s.inf.usage {
		last := s.completion(true)
		last.Usage = s.usage(now.generated, now.cached)
		if err := s.data(last); err != nil {
			return err
		}
	}
	_, err := io.WriteString(s.w, "data: [DONE]\n\n")
	return err
}

func (s *stream) event(c completion, generated, cached int) error {
	if s.inf.usageEverywhere {
		c.Usage = s.usage(generated, cached)
	}
	return s.data(c)
}

func (s *stream) data(c completion) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = s.w.Write(append(append([]byte("data: "), body...), "\n\n"...))
	return err
}

// write answers with the error.
func (e *apiError) write(w http.ResponseWriter) {
	var param *string
	if e.param != "" {
		param = &e.param
	}
	writeJSON(w, e.status, map[string]any{
		"error": map[string]any{"message": e.message, "type": e.kind, "param": param, "code": e.status},
	})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that has gone is noticed by whoever waits for it.
	_, _ = w.Write(body)
}
