package request

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestScanReadsModelStreamAndLimits(t *testing.T) {
	const big = math.MaxInt64
	for _, test := range []struct {
		name, body string
		model      string
		stream     bool
		maxTokens  int64
	}{
		{"all of them", `{"model":"llama","stream":true,"max_tokens":16}`, "llama", true, 16},
		{"an empty object", `{}`, "", false, 0},
		{"white space everywhere", " \t\r\n{ \"model\" : \"a\" ,\n\"stream\"\t:\rtrue } \n", "a", true, 0},
		{"unknown fields pass", `{"seed":18446744073709551616,"temperature":0.10,"model":"a","x":{"y":[1,{"model":7}]}}`, "a", false, 0},
		{"a nested model does not count", `{"extra":{"model":"b"},"model":"a"}`, "a", false, 0},
		{"nested keys of any length and with escapes", `{"x":{"":1,"1234567":2,"12345678":3,"123456789":4,"a\"b\\":5,"\u0061:":6},"model":"a"}`, "a", false, 0},
		{"an empty model is no model", `{"model":""}`, "", false, 0},
		{"keys are case sensitive", `{"Model":"b","MODEL":7,"Stream":true,"model":"a"}`, "a", false, 0},
		{"a key that only begins like one", `{"models":7,"mode":8,"model ":9}`, "", false, 0},

		{"short escapes in the model", `{"model":"a\/b\\c\"d"}`, `a/b\c"d`, false, 0},
		{"a unicode escape in the model", `{"model":"\u006Clama-\u00e9"}`, "llama-é", false, 0},
		{"a surrogate pair in the model", `{"model":"\ud83d\ude80"}`, "🚀", false, 0},
		{"half a pair is replaced", `{"model":"a\ud83dz"}`, "a\ufffdz", false, 0},
		{"half a pair before another escape", `{"model":"\ud83d\u0041"}`, "\ufffdA", false, 0},
		{"two first halves", `{"model":"\ud83d\ud83d\ude80"}`, "\ufffd🚀", false, 0},
		{"a second half alone", `{"model":"\ude80"}`, "\ufffd", false, 0},
		{"text outside ASCII", `{"model":"モデル"}`, "モデル", false, 0},
		{"bytes that are not UTF-8 are replaced", "{\"model\":\"a\xffb\xc3\"}", "a\ufffdb\ufffd", false, 0},

		{"stream false", `{"stream":false}`, "", false, 0},
		{"stream of another type is ignored", `{"stream":"true"}`, "", false, 0},
		{"stream 1 is ignored", `{"stream":1}`, "", false, 0},
		{"the last stream counts", `{"stream":false,"stream":true}`, "", true, 0},
		{"the last stream counts even if it is null", `{"stream":true,"stream":null}`, "", false, 0},
		{"an escaped key is the same key", `{"str\u0065am":true,"\u006dax_tokens":5}`, "", true, 5},
		{"a longer key with escapes is another key", `{"max_completion_tokens\u0073":6,"x\u0020` + strings.Repeat("y", 200) + `":true}`, "", false, 0},
		{"every byte of a key escaped", `{"\u006d\u0061\u0078\u005f\u0063\u006f\u006d\u0070\u006c\u0065\u0074\u0069\u006f\u006e` +
			`\u005f\u0074\u006f\u006b\u0065\u006e\u0073":6}`, "", false, 6},

		{"max_completion_tokens alone", `{"max_completion_tokens":7}`, "", false, 7},
		{"max_completion_tokens wins", `{"max_completion_tokens":7,"max_tokens":8}`, "", false, 7},
		{"max_completion_tokens wins when it comes last", `{"max_tokens":8,"max_completion_tokens":7}`, "", false, 7},
		{"a null max_completion_tokens states none", `{"max_tokens":8,"max_completion_tokens":null}`, "", false, 8},
		{"the last max_tokens counts", `{"max_tokens":8,"max_tokens":9}`, "", false, 9},
		{"the last max_tokens counts even if it is none", `{"max_tokens":8,"max_tokens":"9"}`, "", false, 0},
		{"zero states none", `{"max_tokens":0}`, "", false, 0},
		{"a negative limit states none", `{"max_tokens":-1}`, "", false, 0},
		{"the largest int64", `{"max_tokens":9223372036854775807}`, "", false, big},
		{"one more is out of range", `{"max_tokens":9223372036854775808}`, "", false, 0},
		{"the largest of 19 digits is out of range", `{"max_tokens":9999999999999999999}`, "", false, 0},
		{"20 digits are out of range", `{"max_tokens":18446744073709551617}`, "", false, 0},
		{"a fraction is no integer", `{"max_tokens":1.5}`, "", false, 0},
		{"an exponent is not read", `{"max_tokens":1e2}`, "", false, 0},
		{"a string is ignored", `{"max_tokens":"16"}`, "", false, 0},
		{"an array is ignored", `{"max_tokens":[16]}`, "", false, 0},
		{"true is ignored", `{"max_tokens":true}`, "", false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Scan(ChatCompletions, "application/json", "", []byte(test.body))
			if err != nil {
				t.Fatalf("Scan: %v", err)
			}
			want := Facts{API: ChatCompletions, Model: test.model, HasModel: test.model != "", Stream: test.stream,
				MaxTokens: test.maxTokens, BodyBytes: len(test.body)}
			if got != want {
				t.Errorf("Scan(%s)\n got %+v\nwant %+v", test.body, got, want)
			}
		})
	}
}

func TestX20_ScanFindsThePromptRegion(t *testing.T) {
	for _, test := range []struct {
		name string
		api  API
		body string
		want string // "" for the zero region
	}{
		{"messages of a chat", ChatCompletions, `{"messages": [{"role":"user","content":"hi"}] ,"model":"a"}`, `[{"role":"user","content":"hi"}]`},
		{"a chat has no prompt", ChatCompletions, `{"prompt":"hi"}`, ""},
		{"a completion has no messages", Completions, `{"messages":[]}`, ""},
		{"a string", Completions, `{"prompt":"a \"b\" \u00e9"}`, `"a \"b\" \u00e9"`},
		{"strings", Completions, `{"prompt":["a","b"]}`, `["a","b"]`},
		{"token ids", Completions, `{"prompt":[1,2,3]}`, `[1,2,3]`},
		{"lists of token ids", Completions, `{"prompt":[[1],[2]]}`, `[[1],[2]]`},
		{"an empty list", ChatCompletions, `{"messages":[]}`, `[]`},
		{"null content and parts", ChatCompletions, `{"messages":[{"content":null},{"content":[{"type":"text"}]}],"tools":[{}]}`,
			`[{"content":null},{"content":[{"type":"text"}]}]`},
		{"null", ChatCompletions, `{"messages":null}`, `null`},
		{"a number at the end", Completions, `{"prompt":-0.5e+3}`, `-0.5e+3`},
		{"the last of two", ChatCompletions, `{"messages":[1],"messages": [2]}`, `[2]`},
		{"an escaped key", ChatCompletions, `{"mess\u0061ges":[3]}`, `[3]`},
		{"a nested key does not count", Completions, `{"x":{"prompt":"y"}}`, ""},

		{"a text of responses", Responses, `{"input":"hi","instructions":"be brief"}`, `"hi"`},
		{"items of responses", Responses, `{"input":[{"role":"user"}]}`, `[{"role":"user"}]`},
		{"responses have no messages", Responses, `{"messages":[1],"prompt":{"id":"x"}}`, ""},
		{"texts to embed", Embeddings, `{"input":["a","b"]}`, `["a","b"]`},
		{"token ids to embed", Embeddings, `{"input":[[1,2],[3]]}`, `[[1,2],[3]]`},
		{"messages of Anthropic", Messages, `{"system":"x","messages":[{"role":"user"}]}`, `[{"role":"user"}]`},
		{"messages to count", MessageTokens, `{"messages":[1]}`, `[1]`},
		{"a prompt to tokenize", Tokenize, `{"prompt":"a"}`, `"a"`},
		{"messages to tokenize", Tokenize, `{"messages":[1]}`, `[1]`},
		{"the prompt counts before messages", Tokenize, `{"messages":[1],"prompt":"a"}`, `"a"`},
		{"a text of Triton", TritonGenerate, `{"text_input":"a"}`, `"a"`},
		{"a text of Triton to stream", TritonGenerateStream, `{"text_input":["a"]}`, `["a"]`},
		{"tokens have no prompt", Detokenize, `{"tokens":[1]}`, ""},
		{"pooling", Pooling, `{"input":"a","messages":[1]}`, ""},
		{"classification", Classify, `{"input":"a"}`, ""},
		{"scores", Score, `{"text_1":"a","text_2":["b"]}`, ""},
		{"ranks", Rerank, `{"query":"a","documents":["b"]}`, ""},
		{"speech", AudioSpeech, `{"input":"a"}`, ""},
		{"images", ImageGenerations, `{"prompt":"a"}`, ""},
		{"an empty key is no member's name", Score, `{"":"a"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts, err := Scan(test.api, "", "", []byte(test.body))
			if err != nil {
				t.Fatalf("Scan: %v", err)
			}
			if got := test.body[facts.Prompt.Start:facts.Prompt.End]; got != test.want {
				t.Errorf("prompt region %+v of %s is %q, want %q", facts.Prompt, test.body, got, test.want)
			}
			if test.want == "" && facts.Prompt != (Region{}) {
				t.Errorf("prompt region is %+v, want the zero region", facts.Prompt)
			}
		})
	}
}

func TestScanFindsTheInstructionsRegion(t *testing.T) {
	for _, test := range []struct {
		name string
		api  API
		body string
		want string // "" for the zero region
	}{
		{"of responses", Responses, `{"instructions":"be brief","input":"hi"}`, `"be brief"`},
		{"of messages", Messages, `{"messages":[],"system":[{"type":"text"}]}`, `[{"type":"text"}]`},
		{"of messages to count", MessageTokens, `{"system":"s"}`, `"s"`},
		{"the last of two", Messages, `{"system":"s","system":null}`, `null`},
		{"of a chat they are messages", ChatCompletions, `{"system":"s","instructions":"i"}`, ""},
		{"each API has its own name", Responses, `{"system":"s"}`, ""},
		{"an empty key is no member's name", Completions, `{"":"s"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts, err := Scan(test.api, "", "", []byte(test.body))
			if err != nil {
				t.Fatalf("Scan: %v", err)
			}
			if got := test.body[facts.Instructions.Start:facts.Instructions.End]; got != test.want {
				t.Errorf("instructions %+v of %s are %q, want %q", facts.Instructions, test.body, got, test.want)
			}
		})
	}
}

func TestEachAPIHasItsOwnLimit(t *testing.T) {
	const body = `{"max_tokens":1,"max_completion_tokens":2,"max_output_tokens":3,"stream":true}`
	want := map[API]int64{ChatCompletions: 2, Completions: 1, Responses: 3, Messages: 1, TritonGenerate: 1, TritonGenerateStream: 1}
	for api := range apiCount {
		facts, err := Scan(api, "application/json", "", []byte(body))
		if err != nil || facts.MaxTokens != want[api] {
			t.Errorf("%v: limit %d, %v, want %d", api, facts.MaxTokens, err, want[api])
		}
	}
}

func TestReadTakesTheModelFromThePathOrTheBody(t *testing.T) {
	for _, test := range []struct {
		name, path, contentType, body string
		want                          Facts // without BodyBytes
	}{
		{"from the body", "/v1/messages?beta=true", "application/json", `{"model":"a","max_tokens":5,"stream":true}`,
			Facts{API: Messages, Model: "a", HasModel: true, MaxTokens: 5, Stream: true}},
		{"none in the body", "/tokenize", "", `{}`, Facts{API: Tokenize}},
		{"from the path", "/v2/models/a%20b/generate", "application/json", `{"text_input":"x","max_tokens":5}`,
			Facts{API: TritonGenerate, Model: "a b", HasModel: true, MaxTokens: 5, Prompt: Region{14, 17}}},
		{"the path wins", "/v2/models/a/generate", "", `{"model":"b"}`, Facts{API: TritonGenerate, Model: "a", HasModel: true}},
		{"a body's model is not judged beside it", "/v2/models/a/generate", "", `{"model":7,"model":"b","mod\u0065l":"c"}`,
			Facts{API: TritonGenerate, Model: "a", HasModel: true}},
		{"the path streams", "/v2/models/a/generate_stream", "", `{"stream":false}`,
			Facts{API: TritonGenerateStream, Model: "a", HasModel: true, Stream: true}},
		{"the path does not stream", "/v2/models/a/generate", "", `{"stream":true}`,
			Facts{API: TritonGenerate, Model: "a", HasModel: true}},
		{"from the path beside tensors", "/v2/models/a/versions/2/infer", "", `{"model":"b"}`,
			Facts{API: TritonInfer, Model: "a", HasModel: true, Unread: UnreadAPI}},
		{"from the path without a body", "/v2/models/a/ready", "", ``,
			Facts{API: TritonModel, Model: "a", HasModel: true, Unread: UnreadAPI}},
		{"from the path beside a body that is not read", "/v2/models/a/generate_stream", "text/plain", `x`,
			Facts{API: TritonGenerateStream, Model: "a", HasModel: true, Stream: true, Unread: UnreadContentType}},
		{"a form has none that is read", "/v1/audio/transcriptions", "multipart/form-data; boundary=x", "--x--",
			Facts{API: AudioTranscriptions, Unread: UnreadContentType}},
		{"an unknown path has none", "/v1/chat/completions/render", "application/json", `{"model":"a"}`, Facts{Unread: UnreadPath}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.want.BodyBytes = len(test.body)
			got, err := Read(test.path, test.contentType, "", []byte(test.body))
			if err != nil || got != test.want {
				t.Errorf("Read = %+v, %v\nwant %+v", got, err, test.want)
			}
		})
	}
}

func TestReadRefusesABrokenBodyBesideAModelInThePath(t *testing.T) {
	facts, err := Read("/v2/models/a/generate", "", "", []byte(`{"text_input":`))
	if want := (Facts{API: TritonGenerate, BodyBytes: 14}); !errors.Is(err, ErrBodyMalformed) || facts != want {
		t.Errorf("Read = %+v, %v, want %+v and a malformed body", facts, err, want)
	}
}

func TestScanRefuses(t *testing.T) {
	nest := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for _, test := range []struct {
		name, body string
		token      string
		offset     int
		detail     string // must occur in Detail
	}{
		{"an array", `[{"model":"a"}]`, TokenBodyMalformed, 0, "JSON object"},
		{"a string", `"model"`, TokenBodyMalformed, 0, "JSON object"},
		{"null", ` null`, TokenBodyMalformed, 1, "JSON object"},
		{"white space only", " \n", TokenBodyMalformed, 2, "body ends"},
		{"a byte order mark", "\ufeff{}", TokenBodyMalformed, 0, "JSON object"},
		{"bytes behind the object", `{} x`, TokenBodyMalformed, 3, "only white space"},
		{"a second object", `{"model":"a"}{}`, TokenBodyMalformed, 13, "only white space"},
		{"a NUL behind the object", "{}\x00", TokenBodyMalformed, 2, "only white space"},
		{"an open object", `{"model":"a"`, TokenBodyMalformed, 12, "body ends"},
		{"only its brace", `{`, TokenBodyMalformed, 1, "body ends"},
		{"a comma at the end", `{"a":1,}`, TokenBodyMalformed, 7, "key in quotes"},
		{"a comma at the start", `{,"a":1}`, TokenBodyMalformed, 1, "key in quotes"},
		{"a key without quotes", `{model:"a"}`, TokenBodyMalformed, 1, "key in quotes"},
		{"no colon", `{"a" 1}`, TokenBodyMalformed, 5, "':'"},
		{"no value", `{"a":}`, TokenBodyMalformed, 5, "JSON value"},
		{"no comma", `{"a":1 "b":2}`, TokenBodyMalformed, 7, "',' or '}'"},
		{"a wrong closer", `{"a":[1}}`, TokenBodyMalformed, 7, "',' or ']'"},
		{"a wrong closer in an object", `{"a":{"b":1]}`, TokenBodyMalformed, 11, "',' or '}'"},
		{"an array with a comma at the end", `{"a":[1,]}`, TokenBodyMalformed, 8, "JSON value"},
		{"a nested object with a comma at the end", `{"a":{"b":1,}}`, TokenBodyMalformed, 12, "key in quotes"},
		{"a nested key without quotes", `{"a":{b:1}}`, TokenBodyMalformed, 6, "key in quotes"},
		{"an open array", `{"a":[`, TokenBodyMalformed, 6, "JSON value"},
		{"a nested key without colon", `{"a":{"b"}}`, TokenBodyMalformed, 9, "':'"},
		{"single quotes", `{'a':1}`, TokenBodyMalformed, 1, "key in quotes"},
		{"NaN", `{"a":NaN}`, TokenBodyMalformed, 5, "JSON value"},
		{"a misspelt literal", `{"a":[trux]}`, TokenBodyMalformed, 9, "literal"},
		{"a cut literal", `{"a":nul`, TokenBodyMalformed, 8, "body ends"},
		{"a literal that goes on", `{"a":nulls}`, TokenBodyMalformed, 9, "',' or '}'"},
		{"a leading zero", `{"a":01}`, TokenBodyMalformed, 6, "leading zero"},
		{"a plus sign", `{"a":+1}`, TokenBodyMalformed, 5, "JSON value"},
		{"a leading zero in a list", `{"a":[01,2,3,4,5,6]}`, TokenBodyMalformed, 7, "leading zero"},
		{"a leading zero in a list of lists", `{"a":[[1],[00,2,3,4,5,6]]}`, TokenBodyMalformed, 12, "leading zero"},
		{"a minus alone", `{"a":-}`, TokenBodyMalformed, 6, "digit"},
		{"a point without digits", `{"a":1.}`, TokenBodyMalformed, 7, "digit"},
		{"a point without an integer", `{"a":.5}`, TokenBodyMalformed, 5, "JSON value"},
		{"an exponent without digits", `{"a":1e+}`, TokenBodyMalformed, 8, "digit"},
		{"an open string", `{"a":"secret`, TokenBodyMalformed, 12, "closing quote"},
		{"an open string that ends in a backslash", `{"a":"secret\`, TokenBodyMalformed, 13, "after a backslash"},
		{"an unknown escape", `{"a":"\x41"}`, TokenBodyMalformed, 7, "after a backslash"},
		{"a short unicode escape", `{"a":"\u12g4"}`, TokenBodyMalformed, 10, "hexadecimal"},
		{"a line feed in a string", "{\"a\":\"long enough for a word\nx\"}", TokenBodyMalformed, 28, "control characters"},
		{"a control character in a key", "{\"a\x1fb\":1}", TokenBodyMalformed, 3, "control characters"},
		{"a control character in a nested key", "{\"a\":{\"b\x1fc\":1}}", TokenBodyMalformed, 8, "control characters"},
		{"an unknown escape in a nested key", `{"a":{"b\q":1}}`, TokenBodyMalformed, 9, "after a backslash"},
		{"a nested key that ends the body", `{"a":{"b`, TokenBodyMalformed, 8, "closing quote"},
		{"a nested key behind which the body ends", `{"a":{"b"`, TokenBodyMalformed, 9, "the body ends"},
		{"nesting beyond the bound", `{"a":` + nest(MaxDepth) + `}`, TokenBodyMalformed, 5 + MaxDepth - 1, "at most 10000"},
		{"a fault behind the model", `{"model":"a","stream":tru}`, TokenBodyMalformed, 25, "literal"},

		{"a model that is null", `{"model":null}`, TokenBodyMalformed, 9, "string"},
		{"a model that is a number", `{"model": 7}`, TokenBodyMalformed, 10, "string"},
		{"a model that is an object", `{"model":{"name":"a"}}`, TokenBodyMalformed, 9, "string"},
		{"a model of 1025 bytes", `{"model":"` + strings.Repeat("a", 1025) + `"}`, TokenBodyMalformed, 9, "1024 bytes"},
		{"a model of 1025 bytes when decoded", `{"model":"` + strings.Repeat("a", 1023) + `\u00e9"}`, TokenBodyMalformed, 9, "1024 bytes"},
		{"a model of 10 KB", `{"model":"` + strings.Repeat("a", 10_000) + `"}`, TokenBodyMalformed, 9, "1024 bytes"},
		{"a model with an escaped line feed", `{"model":"a\nb"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with an escaped backspace", `{"model":"a\bb"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with an escaped form feed", `{"model":"a\fb"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with an escaped carriage return", `{"model":"a\rb"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with an escaped tab", `{"model":"a\tb"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with an escaped NUL", `{"model":"\u0000"}`, TokenBodyMalformed, 9, "control characters"},
		{"a model with DEL", "{\"model\":\"a\x7f\"}", TokenBodyMalformed, 9, "control characters"},
		{"a model with a C1 control character", `{"model":"a\u0085"}`, TokenBodyMalformed, 9, "control characters"},

		{"two models", `{"model":"a","model":"b"}`, TokenModelAmbiguous, 13, "one"},
		{"the same model twice", `{"model":"a","model":"a"}`, TokenModelAmbiguous, 13, "one"},
		{"an empty model, then another", `{"model":"","model":"b"}`, TokenModelAmbiguous, 12, "one"},
		{"a second model that is no string", `{"model":"a","model":7}`, TokenModelAmbiguous, 13, "one"},
		{"a second model with an escaped key", `{"model":"a","mod\u0065l":"b"}`, TokenModelAmbiguous, 13, "one"},
		{"one model with an escaped key", `{ "\u006dodel":"a"}`, TokenModelAmbiguous, 2, "without escapes"},
		{"one model with a wholly escaped key", `{"\u006d\u006f\u0064\u0065\u006C":"a"}`, TokenModelAmbiguous, 1, "without escapes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts, err := Scan(Completions, "", "", []byte(test.body))
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("Scan: %v, want an *Error", err)
			}
			if fault.Token != test.token || fault.Offset != test.offset || !strings.Contains(fault.Detail, test.detail) {
				t.Errorf("got %+v, want token %s, offset %d and %q in the detail", fault, test.token, test.offset, test.detail)
			}
			if got, want := errors.Is(err, ErrModelAmbiguous), test.token == TokenModelAmbiguous; got != want {
				t.Errorf("errors.Is(err, ErrModelAmbiguous) = %v, want %v", got, want)
			}
			if got, want := errors.Is(err, ErrBodyMalformed), test.token == TokenBodyMalformed; got != want {
				t.Errorf("errors.Is(err, ErrBodyMalformed) = %v, want %v", got, want)
			}
			if want := (Facts{API: Completions, BodyBytes: len(test.body)}); facts != want {
				t.Errorf("facts beside the error are %+v, want %+v", facts, want)
			}
		})
	}
}

func TestScanAcceptsWhatIsJustWithinTheBounds(t *testing.T) {
	depth := MaxDepth - 1 // the top-level object is one more
	for _, test := range []struct{ name, body, model string }{
		{"arrays", `{"a":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`, ""},
		{"objects", `{"a":` + strings.Repeat(`{"b":`, depth) + "1" + strings.Repeat("}", depth) + `}`, ""},
		{"both in turns", `{"a":` + strings.Repeat(`[{"b":`, depth/2) + "1" + strings.Repeat("}]", depth/2) + `}`, ""},
		{"a model of 1024 bytes", `{"model":"` + strings.Repeat("a", 1024) + `"}`, strings.Repeat("a", 1024)},
		{"a model of 1024 bytes when decoded", `{"model":"` + strings.Repeat(`\u0061`, 1024) + `"}`, strings.Repeat("a", 1024)},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts, err := Scan(ChatCompletions, "", "", []byte(test.body))
			if err != nil || facts.Model != test.model {
				t.Errorf("Scan = %+v, %v, want model %q", facts, err, test.model)
			}
		})
	}
}

// Every stop at every offset from an eight-byte word's start, and in the tail.
func TestStringsStopWhereverTheStopIs(t *testing.T) {
	for before := range 80 {
		for after := range 10 {
			plain, rest := strings.Repeat("é~ !#[]", 12)[:before], strings.Repeat("]", after)
			for _, test := range []struct {
				middle string
				ok     bool
			}{
				{"", true}, {`\n`, true}, {`\"`, true}, {`\\`, true}, {`\n\t\"`, true}, {`\u00e9`, true}, {"\x7f", true}, {"\x80\xff", true},
				{"\x00", false}, {"\x1f", false}, {"\n", false}, {`\a`, false}, {`\u00e`, false},
			} {
				body := `{"prompt":"` + plain + test.middle + rest + `"}`
				facts, err := Scan(Completions, "", "", []byte(body))
				if (err == nil) != test.ok {
					t.Fatalf("Scan(%q): %v, want success %v", body, err, test.ok)
				}
				if want := (Region{10, len(body) - 1}); err == nil && facts.Prompt != want {
					t.Fatalf("Scan(%q): prompt %+v, want %+v", body, facts.Prompt, want)
				}
			}
		}
	}
}

// Lists of token ids are checked eight bytes at a time: each fault, and each
// element that is none of that kind, at every offset from a word's start.
func TestTokenIDsStopWhereverTheStopIs(t *testing.T) {
	for before := 1; before <= 24; before++ {
		for _, list := range []string{strings.Repeat("9", before), strings.Repeat("1,20, 3,", 3)[:before] + "4"} {
			for _, test := range []struct {
				middle string
				fault  int // offset in middle; -1 if it is valid
			}{
				{"", -1}, {",0", -1}, {",0,10, 0", -1}, {", 7", -1}, {",  7", -1}, {" ,7", -1}, {" , 7", -1}, {",\n\t7", -1}, {" ", -1},
				{",-7", -1}, {",1.5e3", -1}, {",0.5", -1}, {",[7]", -1}, {`,"é"`, -1}, {",null", -1}, {",{}", -1}, {",18446744073709551616", -1},
				{",,7", 1}, {", ,7", 2}, {",00", 2}, {", 01", 3}, {",", 1}, {", ", 2}, {" 7", 1}, {",7 7", 3}, {",7  7", 4}, {",é", 1}, {",7é", 2},
				{",7\x80", 2}, {",+7", 1}, {",7a", 2}, {",7/", 2}, {",7:", 2}, {",7-", 2}, {",$", 1}, {",(7", 1}, {",\x00", 1}, {"}", 0}, {",7}", 2},
			} {
				for _, after := range []string{"]}", ",8]}", ",8,9,10,11,12, 13, 14]}"} {
					head := `{"prompt":[` + list
					body := head + test.middle + after
					facts, err := Scan(Completions, "", "", []byte(body))
					if test.fault < 0 {
						if want := (Region{10, len(body) - 1}); err != nil || facts.Prompt != want {
							t.Fatalf("Scan(%q) = %+v, %v, want prompt %+v", body, facts, err, want)
						}
						continue
					}
					var fault *Error
					if !errors.As(err, &fault) || fault.Offset != len(head)+test.fault {
						t.Fatalf("Scan(%q): %v, want a fault at %d", body, err, len(head)+test.fault)
					}
				}
			}
		}
	}
}

func TestTokenIDsAreSkippedInOneRun(t *testing.T) {
	for _, separator := range []string{",", ", "} {
		for digits := 1; digits <= 8; digits++ {
			list := []byte(strings.Repeat("1", digits) + strings.Repeat(separator+"128000"+separator+"0", 1000))
			// The last word may be cut short, and its element begin in the one before.
			if end := skipIntegers(list, 0); end < len(list)-16 {
				t.Errorf("the run over %d bytes that begin %.20q ends at %d", len(list), list, end)
			}
		}
	}
}

func TestZ3_ErrorsNeverQuoteTheBody(t *testing.T) {
	const secret = "hunter2"
	for _, body := range []string{
		`{"prompt":"` + secret, `{"prompt":"` + secret + "\n\"}", `{"prompt":"` + secret + `\q"}`, `{"` + secret + `" 1}`, `{` + secret + `}`,
		`{"model":["` + secret + `"]}`, `{"model":"` + secret + `\n"}`, `{"model":"` + strings.Repeat(secret, 200) + `"}`,
		`{"model":"` + secret + `","model":"b"}`, `{} ` + secret, secret,
	} {
		_, err := Scan(ChatCompletions, "", "", []byte(body))
		if err == nil {
			t.Errorf("Scan(%q) succeeds, want an error", body)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error quotes the body: %v", err)
		}
	}
}

func TestErrorSaysWhereAndWhat(t *testing.T) {
	_, err := Scan(ChatCompletions, "", "", []byte(`{"a":1`))
	const want = "request body is malformed: byte 6: expected ',' or '}' after an object's member, but the body ends"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestScanAllocatesTheModelOnly(t *testing.T) {
	for _, body := range []string{
		string(chatBody(4_000, 1)), `{"model":"a\u00e9","m\u0061x_tokens":12}`, `{"model":"x","max_tokens":1.5,"max_completion_tokens":"y"}`,
	} {
		raw := []byte(body)
		if n := testing.AllocsPerRun(10, func() { _, _ = Scan(ChatCompletions, "application/json; charset=utf-8", "identity", raw) }); n > 1 {
			t.Errorf("Scan(%.60s...) allocates %v times, want at most 1", body, n)
		}
	}
}

func TestR10_ScanNeverModifiesTheBody(t *testing.T) {
	pieces := []string{`{`, `}`, `[`, `]`, `:`, `,`, `"model"`, `"mod\u0065l"`, `"messages"`, `"stream"`, `"max_tokens"`, `"a\nb"`, `"\ud83d"`,
		`true`, `null`, `12`, `-0.5e3`, ` `, "\n", `"`, `\`, "\xff", `{"model":"a",`, `"prompt":[1,2]}`}
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), ""))
		before := bytes.Clone(body)
		facts, _ := Scan(rapid.SampledFrom([]API{ChatCompletions, Completions, Responses, Messages, Tokenize, TritonGenerate}).Draw(t, "api"), "", "", body)
		if !bytes.Equal(body, before) {
			t.Fatalf("the body is now %q, was %q", body, before)
		}
		if r := facts.Prompt; r.Start < 0 || r.Start > r.End || r.End > len(body) {
			t.Fatalf("prompt region %+v outside a body of %d bytes", r, len(body))
		}
		if facts.BodyBytes != len(body) {
			t.Fatalf("BodyBytes = %d, want %d", facts.BodyBytes, len(body))
		}
	})
}
