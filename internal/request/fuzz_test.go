package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
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
		`{"messages":[1,22,333,4444,55555,0, 7, 88,128000,1,2,3]}`, `{"messages":[[1,2,3,4,5,6,7,8],[100,200, 300,0,400]],"a":[10,,11]}`,
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

// FuzzTarget holds the decoding of a model in a path against net/url.
func FuzzTarget(f *testing.F) {
	for _, path := range []string{
		"/v2/models/a%2Fb/versions/1/infer?x=y", "/v2/models/%zz/generate", "/x/v2/models/a/v2/models/é/", "/v2/models/%00", "/v2/models/%ff%",
		"/v1/chat/completions/?a=b", "/v2/models/stats", "/v2/models//infer", "/v2/models/a/versions/x/infer", "/score#/v2/models/a",
		"/v2/models/v2/models/0",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		api, model, err := Target(path)
		if got := APIOf(path); got != api {
			t.Fatalf("APIOf(%q) = %v, Target says %v", path, got, api)
		}
		if api < TritonInfer {
			if err != nil || model != "" {
				t.Fatalf("Target(%q) = %v, %q, %v: no model is in this path", path, api, model, err)
			}
			return
		}
		part := strings.FieldsFunc("."+path, func(r rune) bool { return r == '?' || r == '#' })[0]
		part = strings.TrimSuffix(part, "/")
		segment, _, _ := strings.Cut(part[strings.LastIndex(part, "/v2/models/")+len("/v2/models/"):], "/")
		want, decodeErr := url.PathUnescape(segment)
		usable := decodeErr == nil && len(want) <= MaxModelBytes && utf8.ValidString(want) && !strings.ContainsFunc(want, unicode.IsControl)
		if usable != (err == nil) || usable && model != want {
			t.Fatalf("Target(%q) = %v, %q, %v, want %q, usable %v", path, api, model, err, want, usable)
		}
	})
}
