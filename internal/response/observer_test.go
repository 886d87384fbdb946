package response

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func none() Facts { return Facts{Input: -1, Output: -1, Cached: -1} }

// read feeds an answer in parts of the given size; 0 is all at once.
func read(form Form, text string, size int) Facts {
	o := NewObserver(form)
	if size == 0 {
		size = max(len(text), 1)
	}
	for at := 0; at < len(text); at += size {
		o.Write([]byte(text[at:min(at+size, len(text))]))
	}
	return o.Facts()
}

func TestWhatAnAnswerSaysOfItself(t *testing.T) {
	const chat = `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"a \"usage\": {\"prompt_tokens\": 9} said"},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":11,"total_tokens":18,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":5}}}`
	for _, tc := range []struct {
		name string
		form Form
		text string
		want Facts
	}{
		{"a chat completion", JSON, chat, Facts{Input: 11, Output: 7, Cached: 5}},
		{"the same, not read", Opaque, chat, none()},
		{"the same, spread over lines", JSON, strings.NewReplacer(`,"`, ",\n  \"", ":", ": ").Replace(chat), Facts{Input: 11, Output: 7, Cached: 5}},
		{"no usage", JSON, `{"choices":[]}`, none()},
		{"usage is null", JSON, `{"usage":null,"choices":[{"finish_reason":null}]}`, none()},
		{"X8: usage is a string", JSON, `{"usage":"oops"}`, none()},
		{"X8: details are a number", JSON, `{"usage":{"prompt_tokens":3,"prompt_tokens_details":0}}`, Facts{Input: 3, Output: -1, Cached: -1}},
		{"X8: counts of the wrong type", JSON, `{"usage":{"prompt_tokens":"1024","completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":null}}}`, none()},
		{"X8: counts that are no whole numbers", JSON, `{"usage":{"prompt_tokens":1e30,"completion_tokens":1.5}}`, none()},
		{"X8: a count beyond all sense", JSON, `{"usage":{"prompt_tokens":99999999999999999999999999,"completion_tokens":2}}`, Facts{Input: -1, Output: 2, Cached: -1}},
		{"X8: a list at the top", JSON, `[{"usage":{"prompt_tokens":1}}]`, none()},
		{"X8: a page of HTML", JSON, `<html><body>"usage"</body></html>`, none()},
		{"X8: truncated", JSON, chat[:len(chat)-20], Facts{Input: 11, Output: 7, Cached: -1}},
		{"usage elsewhere is not the answer's", JSON, `{"metadata":{"usage":{"prompt_tokens":4}},"choices":[{"usage":{"prompt_tokens":4}}]}`, none()},
		{"a key with an escape is not read", JSON, `{"us\u0061ge":{"prompt_tokens":4}}`, none()},
		{"a key that comes as a value", JSON, `{"x":"usage","y":{"prompt_tokens":4}}`, none()},
		{"deep nesting comes back to the right level", JSON, `{"a":[[[[[[{"b":[{}]}]]]]]],"usage":{"prompt_tokens":4}}`, Facts{Input: 4, Output: -1, Cached: -1}},
		{"Responses API", JSON, `{"usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":2},"output_tokens":3}}`, Facts{Input: 8, Output: 3, Cached: 2}},
		{"an error", JSON, `{"error":{"message":"full","type":"overloaded","code":503}}`, Facts{Input: -1, Output: -1, Cached: -1, Failed: true, ErrorCode: 503}},
		{"an error with a code in words", JSON, `{"error":{"message":"x","code":"rate_limit"}}`, Facts{Input: -1, Output: -1, Cached: -1, Failed: true}},
		{"an error with a code in digits", JSON, `{"error":{"code":"429"}}`, Facts{Input: -1, Output: -1, Cached: -1, Failed: true, ErrorCode: 429}},
		{"an error that is a text", JSON, `{"error":"out of memory, or whatever else an engine may say"}`, Facts{Input: -1, Output: -1, Cached: -1, Failed: true}},
		{"an error that is null", JSON, `{"error":null}`, none()},

		{
			"X6: a stream with usage in its last event", EventStream,
			"data: {\"choices\":[{\"delta\":{\"content\":\"h\u00e9\"},\"finish_reason\":null}]}\n\n" +
				"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n" +
				"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
			Facts{Input: 21, Output: 2, Cached: -1, Finished: true},
		},
		{
			"X6: CRLF, no space after the colon, comments and event names", EventStream,
			": hello\r\nevent: chunk\r\nid: 7\r\ndata:{\"usage\":{\"prompt_tokens\":4}}\r\n\r\ndata:[DONE]\r\n\r\n",
			Facts{Input: 4, Output: -1, Cached: -1, Finished: true},
		},
		{"X6: CR alone", EventStream, "data: {\"usage\":{\"prompt_tokens\":4}}\r\rdata: [DONE]\r\r", Facts{Input: 4, Output: -1, Cached: -1, Finished: true}},
		{"X6: a document over several data lines", EventStream, "data: {\"usage\":\ndata: {\"prompt_tokens\":\ndata: 4}}\n\n", Facts{Input: 4, Output: -1, Cached: -1}},
		{
			"X9: usage on each chunk is cumulative", EventStream,
			"data: {\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n",
			Facts{Input: 4, Output: 2, Cached: -1},
		},
		{
			"X9: usage spread over events", EventStream,
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":20,\"output_tokens\":1}}}\n\n" +
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n",
			Facts{Input: 25, Output: 15, Cached: 20},
		},
		{
			"R1: an error event inside a stream", EventStream,
			"data: {\"error\":{\"message\":\"no room\",\"type\":\"ServiceUnavailable\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n",
			Facts{Input: -1, Output: -1, Cached: -1, Failed: true, ErrorCode: 503, Finished: true},
		},
		{
			"R3: the engine ends a stream", EventStream,
			"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n",
			Facts{Input: -1, Output: -1, Cached: -1, Aborted: true, Finished: true},
		},
		{"a broken event does not spoil the next", EventStream, "data: {\"usage\":{\"prompt_tok\n\ndata: {\"usage\":{\"prompt_tokens\":4}}\n\n", Facts{Input: 4, Output: -1, Cached: -1}},
		{"a broken string does not spoil the next event", EventStream, "data: {\"a\":\"never ends\n\ndata: {\"usage\":{\"prompt_tokens\":4}}\n\n", Facts{Input: 4, Output: -1, Cached: -1}},
		{"the end of a stream, and nothing like it", EventStream, "data:[DONE]\n\n", Facts{Input: -1, Output: -1, Cached: -1, Finished: true}},
		{"nearly the end of a stream", EventStream, "data: [DONE] \n\ndata: [DON\n\ndata: x[DONE]\n\nevent: [DONE]\n\n[DONE]\n\ndata: [DONE]", none()},
		{"lines that are nearly data", EventStream, "dat: {\"usage\":{\"prompt_tokens\":4}}\ndatax: {\"usage\":{\"prompt_tokens\":4}}\n\n", none()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for size := range len(tc.text) + 1 {
				if got := read(tc.form, tc.text, size); got != tc.want {
					t.Fatalf("in parts of %d: %+v, want %+v", size, got, tc.want)
				}
			}
			for cut := range tc.text {
				o := NewObserver(tc.form)
				o.Write([]byte(tc.text[:cut]))
				o.Write([]byte(tc.text[cut:]))
				if got := o.Facts(); got != tc.want {
					t.Fatalf("cut at %d: %+v, want %+v", cut, got, tc.want)
				}
			}
		})
	}
}

func TestFormOf(t *testing.T) {
	for _, tc := range []struct {
		contentType, encoding string
		want                  Form
	}{
		{"text/event-stream; charset=utf-8", "", EventStream},
		{"Text/Event-Stream", "identity", EventStream},
		{"application/json", "", JSON},
		{"application/problem+json", "", JSON},
		{"application/json", "gzip", Opaque},
		{"text/html", "", Opaque},
		{"", "", Opaque},
	} {
		if got := FormOf(tc.contentType, tc.encoding); got != tc.want {
			t.Errorf("FormOf(%q, %q) = %v, want %v", tc.contentType, tc.encoding, got, tc.want)
		}
	}
}

// FuzzObserver compares what is read of a document with what encoding/json
// makes of it, and checks that cutting it changes nothing.
func FuzzObserver(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}`), 3)
	f.Add([]byte(`{"error":{"code":503},"choices":[{"finish_reason":"abort"}]}`), 1)
	f.Add([]byte(`{"a":"\\\"","usage":{"input_tokens":7}}`), 2)
	f.Add([]byte(`{"a":[{"b":[[{}]]}],"response":{"usage":{"output_tokens":0}}}`), 5)
	f.Fuzz(func(t *testing.T, doc []byte, size int) {
		size = 1 + max(size, -size)%64
		whole := read(JSON, string(doc), 0)
		if cut := read(JSON, string(doc), size); cut != whole {
			t.Fatalf("in parts of %d: %+v, whole: %+v", size, cut, whole)
		}
		if strings.ContainsAny(string(doc), "\r\n") {
			return
		}
		event := "data: " + string(doc) + "\n\n"
		if got := read(EventStream, event, size); got != whole {
			t.Fatalf("as an event: %+v, as a document: %+v", got, whole)
		}
		want, ok := oracle(doc)
		if ok && (whole.Input != want.Input || whole.Output != want.Output) {
			t.Fatalf("%+v, encoding/json reads %+v", whole, want)
		}
	})
}

// oracle reads prompt_tokens and completion_tokens of documents that leave no
// room for interpretation: valid, without repeated or escaped keys of interest.
func oracle(doc []byte) (Facts, bool) {
	var parsed struct {
		Usage map[string]json.RawMessage `json:"usage"`
	}
	text := string(doc)
	if !json.Valid(doc) || strings.Contains(text, `\`) || strings.Count(text, `"usage"`) != 1 ||
		strings.Count(text, `_tokens"`) != strings.Count(text, `"prompt_tokens"`)+strings.Count(text, `"completion_tokens"`) ||
		strings.Count(text, `"prompt_tokens"`) > 1 || strings.Count(text, `"completion_tokens"`) > 1 ||
		json.Unmarshal(doc, &parsed) != nil {
		return Facts{}, false
	}
	for key := range parsed.Usage {
		if strings.ToLower(key) != key {
			return Facts{}, false
		}
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(doc, &top) != nil || top["usage"] == nil {
		return Facts{}, false
	}
	count := func(name string) int64 {
		var n int64
		raw := string(parsed.Usage[name])
		if _, err := fmt.Sscanf(raw, "%d", &n); err != nil || fmt.Sprint(n) != raw || n < 0 || n > maxCount {
			return -1
		}
		return n
	}
	return Facts{Input: count("prompt_tokens"), Output: count("completion_tokens")}, true
}

// BenchmarkObserver reads a stream of small chunks, as engines send them, and a
// long answer.
func BenchmarkObserver(b *testing.B) {
	chunk := []byte("data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000," +
		"\"model\":\"llama-3.1-8b\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n")
	long := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("some words ", 100_000) + `"}}]}`)
	for name, tc := range map[string]struct {
		form Form
		part []byte
	}{"chunk": {EventStream, chunk}, "long": {JSON, long}} {
		b.Run(name, func(b *testing.B) {
			o := NewObserver(tc.form)
			b.SetBytes(int64(len(tc.part)))
			b.ReportAllocs()
			for b.Loop() {
				o.Write(tc.part)
			}
		})
	}
}
