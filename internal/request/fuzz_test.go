package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// FuzzScanAgainstEncodingJSON holds Scan against encoding/json: the same
// documents are valid, and the facts are those of a decode in which the last of
// duplicate members counts.
func FuzzScanAgainstEncodingJSON(f *testing.F) {
	for _, body := range []string{
		`{"model":"llama","messages":[{"role":"user","content":"hi \"there\" \\ \n \u00e9 \ud83d\ude80"}],"stream":true,"max_tokens":16}`,
		`{"model":"m","prompt":[1,-2.5e+3,[true,false,null],{}],"max_completion_tokens":9223372036854775807,"max_tokens":1}`,
		`{"model":"a","model":"b"}`, `{"mod\u0065l":"a"}`, `{"model":null}`, `{"model":"\ud83d\u0041\n"}`, `{"Model":1}`, `[]`, `1E01000`, `{} x`, `{"a":01}`,
		`{"str\u0065am":true,"stream":null,"messages":1,"messages":[2]}`, "{\"a\":\"\x01\"}", "{\"model\":\"\xff\"}", ` {"a" : { } , "b" : [ ] } `,
		`{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `{"a":"0123456789012345678901234567890123456789\"`,
		`{"max_tokens":-0,"stream":"true","prompt":1e5}`, `{"model":"` + strings.Repeat("x", 1030) + `"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		facts, err := Scan(ChatCompletions, "", "", body)
		if !bytes.Equal(body, before) {
			t.Fatal("Scan modified the body")
		}
		if len(body) == 0 {
			if err != nil || facts.Unread != UnreadEmptyBody {
				t.Fatalf("an empty body: %+v, %v", facts, err)
			}
			return
		}
		var fault *Error
		if err != nil && (!errors.As(err, &fault) || fault.Offset < 0 || fault.Offset > len(body)) {
			t.Fatalf("error %#v is not an *Error with an offset inside the body", err)
		}
		if !json.Valid(body) {
			if err == nil {
				t.Fatalf("accepted what encoding/json refuses: %q", body)
			}
			return
		}
		want, token := decode(t, body)
		switch {
		case token == "" && err != nil:
			t.Fatalf("refused %q: %v", body, err)
		case token != "" && (fault == nil || fault.Token != token):
			t.Fatalf("%q: got %v, want %s", body, err, token)
		case token == "":
			prompt := body[facts.Prompt.Start:facts.Prompt.End]
			if !bytes.Equal(prompt, want.prompt) {
				t.Fatalf("%q: prompt %q, want %q", body, prompt, want.prompt)
			}
			got := Facts{API: ChatCompletions, Model: want.model, HasModel: want.model != "", Stream: want.stream,
				MaxTokens: want.maxTokens, Prompt: facts.Prompt, BodyBytes: len(body)}
			if facts != got {
				t.Fatalf("%q:\n got %+v\nwant %+v", body, facts, got)
			}
		}
	})
}

type decoded struct {
	model     string
	stream    bool
	maxTokens int64
	prompt    json.RawMessage
}

// decode reads a valid document's top level with encoding/json, and says with
// which token it must be refused, if so.
func decode(t *testing.T, body []byte) (want decoded, token string) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // valid numbers may be outside float64
	next := func() json.Token {
		token, err := decoder.Token()
		if err != nil {
			t.Fatalf("decoding %q: %v", body, err)
		}
		return token
	}
	if next() != json.Delim('{') {
		return want, TokenBodyMalformed
	}
	last := map[string]json.RawMessage{}
	for decoder.More() {
		from := decoder.InputOffset()
		key := next().(string)
		spelling := body[from:decoder.InputOffset()]
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			t.Fatalf("decoding %q: %v", body, err)
		}
		if key == "model" {
			if _, seen := last[key]; seen || bytes.ContainsRune(spelling, '\\') {
				return want, TokenModelAmbiguous
			}
			if value[0] != '"' || json.Unmarshal(value, &want.model) != nil ||
				len(want.model) > 1024 || strings.ContainsFunc(want.model, unicode.IsControl) {
				return want, TokenBodyMalformed
			}
		}
		last[key] = value
	}
	want.stream = string(last["stream"]) == "true"
	want.prompt = last["messages"]
	for _, key := range []string{"max_completion_tokens", "max_tokens"} {
		// Only plain digits: strconv reads neither fractions nor exponents, and
		// quotes, signs and literals fail it or the comparison.
		if n, err := strconv.ParseInt(string(last[key]), 10, 64); err == nil && n > 0 && want.maxTokens == 0 {
			want.maxTokens = n
		}
	}
	return want, ""
}
