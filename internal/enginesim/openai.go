package enginesim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// bytesPerToken is a usual average for English text.
const bytesPerToken = 4

// inference is what a body asks for.
type inference struct {
	chat  bool
	model string // as asked for, or the first served name
	// stream, and whether it ends with usage or has it in every chunk.
	stream, usage, usageEverywhere bool
	prompt, limit                  int // tokens; limit 0 if the client set none
	blocks                         []uint64
}

// apiError is an error in the form that vLLM answers with.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // empty if it is not about one parameter
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: fmt.Sprintf(format, args...), param: param}
}

// readInference decodes a body. Only what the simulation needs is looked at; other parameters are accepted and have no effect. Keys
// are case-sensitive, the last of equal ones counts, and null is the same as absent, as in vLLM.
func readInference(body []byte, chat bool, cfg Config) (inference, *apiError) {
	inf := inference{chat: chat, model: cfg.Models[0]}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		return inf, badRequest("", "JSON decode error: %v", err)
	}
	if keys == nil {
		return inf, badRequest("", "JSON decode error: the body must be an object")
	}

	n := 1
	var options struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	}
	limits := []string{"max_tokens"}
	if chat {
		limits = []string{"max_completion_tokens", "max_tokens"}
	}
	for _, field := range []struct {
		key  string
		into any
	}{{"model", &inf.model}, {"stream", &inf.stream}, {"stream_options", &options}, {"n", &n}} {
		if err := decode(keys, field.key, field.into); err != nil {
			return inf, err
		}
	}
	if !slices.Contains(cfg.Models, inf.model) {
		return inf, &apiError{status: http.StatusNotFound, kind: "NotFoundError", param: "model",
			message: fmt.Sprintf("The model `%s` does not exist.", inf.model)}
	}
	if n != 1 {
		return inf, badRequest("n", "n: %d: this engine gives one choice only", n)
	}
	inf.usageEverywhere = options.IncludeUsage && options.ContinuousUsageStats
	inf.usage = options.IncludeUsage

	for _, key := range limits {
		var limit *int
		if err := decode(keys, key, &limit); err != nil {
			return inf, err
		}
		if limit != nil {
			if *limit < 1 {
				return inf, badRequest(key, "%s: %d: must be at least 1", key, *limit)
			}
			inf.limit = *limit
			break
		}
	}

	text, err := promptText(keys, chat)
	if err != nil {
		return inf, err
	}
	inf.prompt, inf.blocks = tokenize(text, cfg.Engine.BlockTokens)
	if asked := max(1, inf.limit); inf.prompt > cfg.MaxModelLen-asked {
		return inf, badRequest("", "This model's maximum context length is %d tokens, but %d were asked for: %d in the prompt "+
			"and at least %d in the answer.", cfg.MaxModelLen, inf.prompt+asked, inf.prompt, asked)
	}
	return inf, nil
}

// decode reads one key into what a pointer points to, and leaves it alone if the key is absent or null.
func decode(keys map[string]json.RawMessage, key string, into any) *apiError {
	raw, ok := keys[key]
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return badRequest(key, "%s: %v", key, err)
	}
	return nil
}

func promptText(keys map[string]json.RawMessage, chat bool) (string, *apiError) {
	if chat {
		return chatText(keys)
	}
	raw, ok := keys["prompt"]
	if !ok {
		return "", badRequest("prompt", "prompt: absent: must be a text, a list of one text or a list of token ids")
	}
	var text string
	var texts []string
	var ids []uint32
	switch {
	case json.Unmarshal(raw, &text) == nil && text != "":
		return text, nil
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1 && texts[0] != "":
		return texts[0], nil
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		// A token id takes as many bytes as a token of text.
		packed := make([]byte, 0, len(ids)*bytesPerToken)
		for _, id := range ids {
			packed = binary.LittleEndian.AppendUint32(packed, id)
		}
		return string(packed), nil
	}
	return "", badRequest("prompt", "prompt: must be a text, a list of one text or a list of token ids, and not empty")
}

func chatText(keys map[string]json.RawMessage) (string, *apiError) {
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := decode(keys, "messages", &messages); err != nil {
		return "", err
	}
	if len(messages) == 0 {
		return "", badRequest("messages", "messages: must be a list of at least one message")
	}
	var out strings.Builder
	for _, m := range messages {
		out.WriteString(m.Role + "\n")
		var text string
		var parts []json.RawMessage
		switch {
		case json.Unmarshal(m.Content, &text) == nil:
			out.WriteString(text)
		case json.Unmarshal(m.Content, &parts) == nil:
			for _, part := range parts {
				var typed struct {
					Text *string `json:"text"`
				}
				if json.Unmarshal(part, &typed) == nil && typed.Text != nil {
					out.WriteString(*typed.Text)
				} else {
					out.Write(part) // an image or the like: it takes tokens too
				}
			}
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

// tokenize returns the length of a text in tokens, and a hash of each block of tokens that it fills.
func tokenize(text string, blockTokens int) (tokens int, blocks []uint64) {
	size := blockTokens * bytesPerToken
	for rest := text; len(rest) >= size; rest = rest[size:] {
		blocks = append(blocks, xxhash.Sum64String(rest[:size]))
	}
	return (len(text) + bytesPerToken - 1) / bytesPerToken, blocks
}

// request is the inference as the model sees it.
func (inf inference) request(id string, cfg Config) enginemodel.Request {
	req := enginemodel.Request{ID: id, PromptTokens: inf.prompt, Blocks: inf.blocks}
	if inf.limit > 0 {
		// One more token than the limit, so that the limit is what ends it.
		req.OutputTokens, req.MaxTokens = inf.limit+1, inf.limit
	} else {
		req.OutputTokens = min(cfg.OutputTokens, cfg.MaxModelLen-inf.prompt)
	}
	return req
}

// words are the tokens of every answer, over and over.
var words = [...]string{"the", "ship", "comes", "in", "on", "the", "tide", "and", "finds", "a", "quiet", "berth", "by", "the", "old", "quay"}

// token is the text of an answer's token, from 0.
func token(i int) string {
	if i == 0 {
		return words[0]
	}
	return " " + words[i%len(words)]
}
