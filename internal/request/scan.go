package request

import (
	"bytes"
	"math"
)

// MaxModelBytes is the longest model name that is accepted, in bytes after
// decoding. Names are repository paths and adapter ids; 1 KiB is several times
// the longest in use, and keeps what a client sends small in records.
const MaxModelBytes = 1024

// What is wanted of a model's name, wherever it stands.
const (
	wantShortModel = "at most 1024 bytes"
	wantNoControl  = "no control characters"
)

// Values of [Facts.Unread]: why a body was not read.
const (
	// UnreadPath: the path is none of the known APIs.
	UnreadPath = "path"
	// UnreadAPI: the API's body holds nothing that routing needs.
	UnreadAPI = "api"
	// UnreadEmptyBody: there is no byte to read.
	UnreadEmptyBody = "empty_body"
	// UnreadNotShown: the gateway shows no body before a replica must be picked.
	// This and the next two are for the caller to set, who knows it.
	UnreadNotShown = "not_shown"
	// UnreadRefused: the request was refused before its body was due to be read.
	UnreadRefused = "refused"
	// UnreadTunnel: what follows the headers is not a body.
	UnreadTunnel = "tunnel"
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
	// reading it, in the order path, API, empty body, content encoding, content
	// type. What a body states is then not known.
	Unread string
	// Model is the name by which a replica serves the model, decoded, at most
	// MaxModelBytes, without control characters: the body's "model", or what the
	// path names. HasModel is false if it is absent or empty.
	Model    string
	HasModel bool
	// Stream is true if "stream" is the literal true; or, where the path names
	// the model, if the path asks for a stream.
	Stream bool
	// MaxTokens is the limit on generated tokens, from 1 to 1<<63-1, in the
	// member that the API has for it. It is 0 if that is no integer in this
	// range, written without fraction or exponent.
	MaxTokens int64
	// Prompt is where the JSON value of the prompt lies, of whatever type it is.
	Prompt Region
	// Instructions is where the JSON value lies that an API keeps apart from the
	// prompt and that engines put in front of it: "instructions" (responses),
	// "system" (messages).
	Instructions Region
	// BodyBytes is the size of the body, read or not.
	BodyBytes int
}

// Region is a part of a body (or path): body[Start:End], in bytes. The zero
// Region is no part.
type Region struct{ Start, End int }

// Read reads the facts from a request's path and body: [Target] and [Scan] in
// one. Where the path names the model, a "model" in the body means nothing (to
// Triton it is one more input of the model) and is not looked at.
//
// An error is always an [*Error], and the facts beside it hold API and
// BodyBytes only.
func Read(path, contentType, contentEncoding string, body []byte) (Facts, error) {
	api, model, err := Target(path)
	if err != nil {
		return Facts{API: api, BodyBytes: len(body)}, err
	}
	facts, err := Scan(api, contentType, contentEncoding, body)
	if err == nil && model != "" {
		facts.Model, facts.HasModel = model, true
	}
	return facts, err
}

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
	m := members{api: of(api)}
	if facts.Unread = unread(m.api, contentType, contentEncoding, body); facts.Unread == "" {
		if err := m.scan(body); err != nil {
			return facts, err
		}
	}
	facts.Model, facts.HasModel = m.model, m.model != ""
	facts.Stream = m.stream
	if m.api.modelInPath {
		facts.Stream = m.api.streams
	}
	facts.MaxTokens = m.limit[0]
	if facts.MaxTokens == 0 {
		facts.MaxTokens = m.limit[1]
	}
	facts.Prompt = m.prompt[0]
	if facts.Prompt == (Region{}) {
		facts.Prompt = m.prompt[1]
	}
	facts.Instructions = m.instructions
	return facts, nil
}

func unread(api *traits, contentType, contentEncoding string, body []byte) string {
	switch {
	case api == of(Unknown):
		return UnreadPath
	case api.body == opaqueBody:
		return UnreadAPI
	case len(body) == 0:
		return UnreadEmptyBody
	case !isIdentity(contentEncoding):
		return UnreadContentEncoding
	case trimSpace(contentType) == "" && api.body == jsonBody:
		return ""
	case !isJSON(contentType):
		return UnreadContentType
	default:
		return ""
	}
}

// members are the top-level members that Facts are made of. Whatever is
// assigned twice keeps the last value, except the model.
type members struct {
	api          *traits
	model        string
	modelSeen    bool
	stream       bool
	limit        [2]int64
	prompt       [2]Region
	instructions Region
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

// longestKey is the length of the longest key of interest.
const longestKey = len("max_completion_tokens")

// set takes over one member. key and value are valid JSON, key with its
// quotes.
func (m *members) set(body []byte, key, value Region) error {
	raw := body[value.Start:value.End]
	name, escaped := body[key.Start+1:key.End-1], false
	var decoded [longestKey]byte
	// Each byte may be written as \u00XX.
	if len(name) <= longestKey*len(`\u0000`) && bytes.IndexByte(name, '\\') >= 0 {
		escaped = true
		var ok bool
		if name, ok = appendDecoded(decoded[:0], name, longestKey); !ok {
			return nil
		}
	}
	switch string(name) {
	case "": // would match every member that the API does not have
	case "model":
		if m.api.modelInPath {
			return nil
		}
		if m.modelSeen || escaped {
			return &Error{Token: TokenModelAmbiguous, Offset: key.Start,
				Detail: `expected one "model" key, written without escapes`}
		}
		m.modelSeen = true
		return m.setModel(body, value)
	case "stream":
		m.stream = string(raw) == "true"
	case m.api.prompt[0]:
		m.prompt[0] = value
	case m.api.prompt[1]:
		m.prompt[1] = value
	case m.api.limit[0]:
		m.limit[0] = tokenLimit(raw)
	case m.api.limit[1]:
		m.limit[1] = tokenLimit(raw)
	case m.api.instructions:
		m.instructions = value
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
		return "", wantShortModel + ` in "model"`
	}
	if hasControl(decoded) {
		return "", wantNoControl + ` in "model"`
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
