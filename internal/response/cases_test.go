package response

import (
	"fmt"
	"strings"
	"testing"
)

// Every member that is read, with every type that it should not have: it is not
// read then, and what stands beside it is.
func TestX8_MembersOfTheWrongTypeAreNotRead(t *testing.T) {
	numbers := []string{`-1`, `1.5`, `1e30`, `1e2`, `99999999999999999999999999`, `-0`, `0x10`, `+5`, `NaN`}
	others := []string{`"1024"`, `""`, `null`, `true`, `false`, `[]`, `[3]`, `{}`, `{"prompt_tokens":3}`, `{"x":[{"completion_tokens":3}]}`}
	for _, tc := range []struct {
		name string
		// format has one %s for the bad value.
		format string
		values []string
		want   Facts
	}{
		{"usage", `{"usage":%s,"id":"x"}`, append([]string{`3`, `"oops"`, `["prompt_tokens",3]`}, numbers...), none()},
		{"prompt_tokens", `{"usage":{"prompt_tokens":%s,"completion_tokens":2}}`, append(numbers, others...), Facts{Input: -1, Output: 2, Cached: -1}},
		{"completion_tokens", `{"usage":{"completion_tokens":%s,"prompt_tokens":2}}`, append(numbers, others...), Facts{Input: 2, Output: -1, Cached: -1}},
		{"input_tokens", `{"usage":{"input_tokens":%s,"output_tokens":2}}`, append(numbers, others...), Facts{Input: -1, Output: 2, Cached: -1}},
		{"output_tokens", `{"usage":{"output_tokens":%s,"input_tokens":2}}`, append(numbers, others...), Facts{Input: 2, Output: -1, Cached: -1}},
		{"cache_read_input_tokens", `{"usage":{"cache_read_input_tokens":%s,"input_tokens":2}}`, append(numbers, others...), Facts{Input: 2, Output: -1, Cached: -1}},
		{"prompt_tokens_details", `{"usage":{"prompt_tokens_details":%s,"prompt_tokens":2}}`, append(numbers, `0`, `"x"`, `null`, `[]`, `[{"cached_tokens":3}]`), Facts{Input: 2, Output: -1, Cached: -1}},
		{"cached_tokens", `{"usage":{"prompt_tokens_details":{"cached_tokens":%s},"prompt_tokens":2}}`, append(numbers, others...), Facts{Input: 2, Output: -1, Cached: -1}},
		{"choices", `{"choices":%s,"usage":{"prompt_tokens":2}}`, []string{`7`, `"abort"`, `null`, `{"finish_reason":"abort"}`, `[[{"finish_reason":"abort"}]]`, `["finish_reason","abort"]`}, Facts{Input: 2, Output: -1, Cached: -1}},
		{"finish_reason", `{"choices":[{"finish_reason":%s}],"usage":{"prompt_tokens":2}}`, []string{`7`, `null`, `["abort"]`, `{"abort":1}`, `"aborted"`}, Facts{Input: 2, Output: -1, Cached: -1}},
		{"error", `{"error":%s,"usage":{"prompt_tokens":2}}`, []string{`null`}, Facts{Input: 2, Output: -1, Cached: -1}},
		{"code", `{"error":{"code":%s},"usage":{"prompt_tokens":2}}`, []string{`"busy"`, `null`, `-1`, `1.5`, `[503]`, `{"code":503}`, `true`}, Facts{Input: 2, Output: -1, Cached: -1, Failed: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, value := range tc.values {
				doc := fmt.Sprintf(tc.format, value)
				for _, size := range []int{0, 1, 2, 3, 5, 7} {
					if got := read(JSON, doc, size); got != tc.want {
						t.Fatalf("%s in parts of %d: %+v, want %+v", doc, size, got, tc.want)
					}
					if got := read(EventStream, "data: "+doc+"\n\n", size); got != tc.want {
						t.Fatalf("%s as an event in parts of %d: %+v, want %+v", doc, size, got, tc.want)
					}
				}
			}
		})
	}
}

// What an engine says inside a stream of status 200, whatever the line breaks and
// wherever it is cut.
func TestR1_R2_R3_AnErrorOrAnAbortInsideAStreamIsSeen(t *testing.T) {
	for _, tc := range []struct {
		name, event string
		want        Facts
	}{
		{"R1: no room", `{"error":{"message":"no room","type":"ServiceUnavailable","param":null,"code":503}}`,
			Facts{Input: -1, Output: -1, Cached: -1, Failed: true, ErrorCode: 503, Finished: true}},
		{"R2: the engine is gone", `{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","param":null,"code":500}}`,
			Facts{Input: -1, Output: -1, Cached: -1, Failed: true, ErrorCode: 500, Finished: true}},
		{"R3: the engine is stopped", `{"choices":[{"index":0,"delta":{},"finish_reason":"abort","stop_reason":null}]}`,
			Facts{Input: -1, Output: -1, Cached: -1, Aborted: true, Finished: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, lineBreak := range []string{"\n", "\r\n", "\r"} {
				stream := strings.ReplaceAll("data: {\"choices\":[{\"delta\":{\"content\":\"half\"},\"finish_reason\":null}]}\n\ndata: "+
					tc.event+"\n\ndata: [DONE]\n\n", "\n", lineBreak)
				for size := range len(stream) {
					if got := read(EventStream, stream, size); got != tc.want {
						t.Fatalf("line break %q, in parts of %d: %+v, want %+v", lineBreak, size, got, tc.want)
					}
				}
			}
		})
	}
}

// The lines of an event are joined by whatever line break the engine uses, also
// where a CR and its LF come in two parts.
func TestX6_ADocumentOverSeveralLinesIsReadWithAnyLineBreak(t *testing.T) {
	want := Facts{Input: 4, Output: 2, Cached: -1, Finished: true}
	for _, lineBreak := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(": hello\ndata: {\"usage\":\ndata: {\"prompt_tokens\":\ndata: 4,\ndata:\"completion_tokens\":2}}\n\ndata: [DONE]\n\n", "\n", lineBreak)
		for cut := range len(stream) + 1 {
			o := NewObserver(EventStream)
			o.Write([]byte(stream[:cut]))
			o.Write(nil)
			o.Write([]byte(stream[cut:]))
			if got := o.Facts(); got != want {
				t.Fatalf("line break %q, cut at %d: %+v, want %+v", lineBreak, cut, got, want)
			}
		}
		for size := 1; size < len(stream); size++ {
			if got := read(EventStream, stream, size); got != want {
				t.Fatalf("line break %q, in parts of %d: %+v, want %+v", lineBreak, size, got, want)
			}
		}
	}
}
