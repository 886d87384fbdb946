package request

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// A model is a name or there is none; whatever else stands in its place is
// refused, since engines and gateways would each make something else of it.
func TestX19_AModelIsANameOrThereIsNone(t *testing.T) {
	for _, test := range []struct {
		name, body, model string
		err               error
	}{
		{"R11: absent", `{"messages":[]}`, "", nil},
		{"empty", `{"model":""}`, "", nil},
		{"a name", `{"model":"meta-llama/Llama-3.1-8B-Instruct"}`, "meta-llama/Llama-3.1-8B-Instruct", nil},
		{"a name with quotes and a backslash", `{"model":"a\"b\\c"}`, `a"b\c`, nil},
		{"the longest name", `{"model":"` + strings.Repeat("m", 1024) + `"}`, strings.Repeat("m", 1024), nil},
		{"bytes that are no text", "{\"model\":\"a\xff\"}", "a\ufffd", nil},
		{"null", `{"model":null}`, "", ErrBodyMalformed},
		{"a number", `{"model":7}`, "", ErrBodyMalformed},
		{"true", `{"model":true}`, "", ErrBodyMalformed},
		{"a list", `{"model":["m"]}`, "", ErrBodyMalformed},
		{"an object", `{"model":{"id":"m"}}`, "", ErrBodyMalformed},
		{"10 KB", `{"model":"` + strings.Repeat("m", 10_000) + `"}`, "", ErrBodyMalformed},
		{"1 MB", `{"model":"` + strings.Repeat("m", 1_000_000) + `"}`, "", ErrBodyMalformed},
		{"a line feed", `{"model":"a\nb"}`, "", ErrBodyMalformed},
		{"a NUL", `{"model":"a\u0000"}`, "", ErrBodyMalformed},
		{"twice", `{"model":"a","model":"b"}`, "", ErrModelAmbiguous},
		{"twice the same", `{"model":"a","x":1,"model":"a"}`, "", ErrModelAmbiguous},
		{"twice, once by an escape", `{"model":"a","\u006dodel":"b"}`, "", ErrModelAmbiguous},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, api := range []API{ChatCompletions, Completions, Responses, Embeddings, Messages} {
				facts, err := Scan(api, "application/json", "", []byte(test.body))
				if !errors.Is(err, test.err) || facts.Model != test.model || facts.HasModel != (test.model != "") {
					t.Errorf("%v: model %.40q (stated: %t), %v; want %.40q, %v", api, facts.Model, facts.HasModel, err, test.model, test.err)
				}
				if !utf8.ValidString(facts.Model) || strings.ContainsFunc(facts.Model, unicode.IsControl) {
					t.Errorf("%v: %q is no name for a label", api, facts.Model)
				}
			}
		})
	}
}

func TestX18_AVeryLongPathIsLikeAnyOther(t *testing.T) {
	long := "/" + strings.Repeat("x", 8<<10)
	for path, want := range map[string]API{
		long:                                           Unknown,
		long + "/v1/completions":                       Completions,
		"/v1/completions?" + long:                      Completions,
		"/v1/completions" + long:                       Unknown,
		strings.Repeat("/", 8<<10):                     Unknown,
		strings.Repeat("/v2/models/", 1<<10):           Unknown,
		"/v1/completions" + strings.Repeat("?", 8<<10): Completions,
	} {
		if got := APIOf(path); got != want {
			t.Errorf("APIOf(%.40q..., %d bytes) = %v, want %v", path, len(path), got, want)
		}
	}
}

// Whatever form a prompt has, it is where the body says it is, and what comes
// behind a common beginning does not move that beginning.
func TestX20_PromptsOfOneBeginningBeginAlike(t *testing.T) {
	for name, pair := range map[string][2]string{
		"a text":             {`{"model":"m","prompt":"one two"}`, `{"model":"m","prompt":"one two three"}`},
		"texts":              {`{"model":"m","prompt":["one","two"]}`, `{"model":"m","prompt":["one","two","three"]}`},
		"token ids":          {`{"model":"m","prompt":[1,2]}`, `{"model":"m","prompt":[1,2,3]}`},
		"lists of token ids": {`{"model":"m","prompt":[[1],[2]]}`, `{"model":"m","prompt":[[1],[2],[3]]}`},
		"nothing":            {`{"model":"m","prompt":[]}`, `{"model":"m","prompt":[1]}`},
	} {
		var prompts [2]string
		for i, body := range pair {
			facts, err := Scan(Completions, "", "", []byte(body))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			prompts[i] = body[facts.Prompt.Start:facts.Prompt.End]
		}
		common := strings.TrimRight(prompts[0], `"]`)
		if common == "" || !strings.HasPrefix(prompts[1], common) {
			t.Errorf("%s: the prompts are %s and %s", name, prompts[0], prompts[1])
		}
	}
}
