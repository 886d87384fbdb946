package request

import (
	"bytes"
	"math"
	"strconv"
)

// MaxModelBytes is the longest model name that is accepted, in bytes after
// decoding. Names are repository paths and adapter ids; 1 KiB is several times
// the longest in use, and keeps what a client sends small in records.
const MaxModelBytes = 1024

// Values of [Facts.Unread]: why a body was not read.
const (
	// UnreadPath: the path is none of the known APIs.
	UnreadPath = "path"
	// UnreadEmptyBody: there is no byte to read.
	UnreadEmptyBody = "empty_body"
	// UnreadContentEncoding: the body is compressed.
	UnreadContentEncoding = "content_encoding"
	// UnreadContentType: the body is announced as something other than JSON.
	UnreadContentType = "content_type"
)

// Facts are what a request states about itself. The zero value of each field
// means that the request does not state it.
type Facts struct {
	API API
	// Unread is "" if the body was read, otherwise the first reason against
	// reading it, in the order path, empty body, content encoding, content
	// type. All fields below but BodyBytes are then zero.
	Unread string
	// Model is the decoded "model": the name by which a replica serves it, at
	// most MaxModelBytes, without control characters. HasModel is false if it
	// is absent or empty.
	Model    string
	HasModel bool
	// Stream is true if "stream" is the literal true.
	Stream bool
	// MaxTokens is the limit on generated tokens, from 1 to 1<<63-1:
	// "max_completion_tokens", or "max_tokens" if the former states none. It is
	// 0 if neither is an integer in that range, written without fraction or
	// exponent.
	MaxTokens int64
	// Prompt is where the JSON value of "messages" (chat) or "prompt"
	// (completions) lies, of whatever type it is.
	Prompt Region
	// BodyBytes is the size of the body, read or not.
	BodyBytes int
}

// Region is a part of a body: body[Start:End], in bytes. The zero Region is
// no part.
type Region struct{ Start, End int }

// Scan reads the facts from a request's body. contentType and contentEncoding
// are the header values, "" if absent. The package documentation says when a
// body is read and what is refused.
//
// An error is always an [*Error] and matches [ErrBodyMalformed] or
// [ErrModelAmbiguous]. Scan stops at the first member with a fault, and checks
// a member's syntax before its meaning; the facts then hold API and BodyBytes
// only. The body is neither changed nor retained.
func Scan(api API, contentType, contentEncoding string, body []byte) (Facts, error) {
	facts := Facts{API: api, BodyBytes: len(body)}
	if facts.Unread = unread(api, contentType, contentEncoding, body); facts.Unread != "" {
		return facts, nil
	}
	var m members
	if err := m.scan(body); err != nil {
		return facts, err
	}
	facts.Model, facts.HasModel = m.model, m.model != ""
	facts.Stream = m.stream
	facts.MaxTokens = m.maxCompletionTokens
	if facts.MaxTokens == 0 {
		facts.MaxTokens = m.maxTokens
	}
	switch api {
	case ChatCompletions:
		facts.Prompt = m.messages
	case Completions:
		facts.Prompt = m.prompt
	}
	return facts, nil
}

func unread(api API, contentType, contentEncoding string, body []byte) string {
	switch {
	case api != ChatCompletions && api != Completions:
		return UnreadPath
	case len(body) == 0:
		return UnreadEmptyBody
	case !isIdentity(contentEncoding):
		return UnreadContentEncoding
	case !isJSON(contentType):
		return UnreadContentType
	default:
		return ""
	}
}

// members are the top-level members that Facts are made of. Whatever is
// assigned twice keeps the last value, except the model.
type members struct {
	model               string
	modelSeen           bool
	stream              bool
	maxTokens           int64
	maxCompletionTokens int64
	messages            Region
	prompt              Region
}

// scan walks the document once.
func (m *members) scan(body []byte) error {
	i := skipSpace(body, 0)
	if i == len(body) || body[i] != '{' {
		return malformed(body, i, "a JSON object")
	}
	i = skipSpace(body, i+1)
	if i < len(body) && body[i] == '}' {
		return m.end(body, i+1)
	}
	for {
		key := Region{Start: i}
		var want string
		if i, want = skipKey(body, i); want != "" {
			return malformed(body, i, want)
		}
		key.End = i
		if i, want = skipColon(body, i); want != "" {
			return malformed(body, i, want)
		}
		value := Region{Start: skipSpace(body, i)}
		if i, want = skipValue(body, value.Start); want != "" {
			return malformed(body, i, want)
		}
		value.End = i
		if err := m.set(body, key, value); err != nil {
			return err
		}
		i = skipSpace(body, i)
		switch {
		case i < len(body) && body[i] == ',':
			i = skipSpace(body, i+1)
		case i < len(body) && body[i] == '}':
			return m.end(body, i+1)
		default:
			return malformed(body, i, wantObjectNext)
		}
	}
}

// end checks that nothing follows the document.
func (m *members) end(body []byte, i int) error {
	if i = skipSpace(body, i); i != len(body) {
		return malformed(body, i, "only white space after the JSON object")
	}
	return nil
}

// set takes over one member. key and value are valid JSON, key with its
// quotes.
func (m *members) set(body []byte, key, value Region) error {
	raw := body[value.Start:value.End]
	name, escaped := body[key.Start+1:key.End-1], false
	// The longest key of interest, with each of its bytes written as \u00XX.
	const longest = len("max_completion_tokens")
	var decoded [longest]byte
	if len(name) <= longest*len(`\u0000`) && bytes.IndexByte(name, '\\') >= 0 {
		escaped = true
		var ok bool
		if name, ok = appendDecoded(decoded[:0], name, longest); !ok {
			return nil
		}
	}
	switch string(name) {
	case "model":
		if m.modelSeen || escaped {
			return &Error{Token: TokenModelAmbiguous, Offset: key.Start,
				Detail: `expected one "model" key, written without escapes`}
		}
		m.modelSeen = true
		return m.setModel(body, value)
	case "stream":
		m.stream = string(raw) == "true"
	case "max_tokens":
		m.maxTokens = tokenLimit(raw)
	case "max_completion_tokens":
		m.maxCompletionTokens = tokenLimit(raw)
	case "messages":
		m.messages = value
	case "prompt":
		m.prompt = value
	}
	return nil
}

func (m *members) setModel(body []byte, value Region) error {
	if body[value.Start] != '"' {
		return malformed(body, value.Start, `a string as "model"`)
	}
	name, want := modelName(body[value.Start+1 : value.End-1])
	if want != "" {
		return malformed(body, value.Start, want)
	}
	m.model = name
	return nil
}

// modelName decodes what stands between the quotes of a model's name.
func modelName(raw []byte) (name, want string) {
	if len(raw) <= MaxModelBytes && isPlain(raw) {
		return string(raw), ""
	}
	var buf [MaxModelBytes]byte
	decoded, ok := appendDecoded(buf[:0], raw, MaxModelBytes)
	if !ok {
		return "", `at most ` + strconv.Itoa(MaxModelBytes) + ` bytes in "model"`
	}
	if hasControl(decoded) {
		return "", `no control characters in "model"`
	}
	return string(decoded), ""
}

// tokenLimit reads a JSON value as a positive integer; 0 if it is none.
func tokenLimit(raw []byte) int64 {
	// The longest int64 has 19 digits, and JSON numbers have no leading zeros;
	// 19 digits cannot overflow a uint64.
	if len(raw) > 19 || skipDigits(raw, 0) != len(raw) {
		return 0
	}
	var n uint64
	for _, c := range raw {
		n = n*10 + uint64(c-'0')
	}
	if n > math.MaxInt64 {
		return 0
	}
	return int64(n)
}
