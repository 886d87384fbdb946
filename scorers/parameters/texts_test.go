package parameters

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

type wordings struct {
	Flag   bool
	Text   string
	Choice string
	Span   time.Duration
	Texts  map[string]string
	Lists  map[string][]string
}

func defaultWordings() wordings { return wordings{Choice: "a", Span: time.Second} }

func (w *wordings) decode(raw string) error {
	return Decode(json.RawMessage(raw),
		Flag{Key: "flag", Into: &w.Flag},
		Text{Key: "text", Into: &w.Text, AtMost: 4, Means: "the name of a thing"},
		Choice{Key: "choice", Into: &w.Choice, Of: []string{"a", "b"}},
		Duration{Key: "span", Into: &w.Span, Min: 0, Max: 5 * time.Minute},
		Texts{Key: "texts", Into: &w.Texts, AtMost: 2, Means: "names and what they mean"},
		Lists{Key: "lists", Into: &w.Lists, AtMost: 2, EachAtMost: 2, Means: "names and what they stand for"})
}

func TestWordsThatAreGivenReplaceTheDefaults(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		want      wordings
	}{
		{"none", `{}`, wordings{Choice: "a", Span: time.Second}},
		{"a flag", `{"flag": true}`, wordings{Flag: true, Choice: "a", Span: time.Second}},
		{"a flag that is off", `{"flag": false}`, wordings{Choice: "a", Span: time.Second}},
		{"a text at its bound", `{"text": "abcd"}`, wordings{Text: "abcd", Choice: "a", Span: time.Second}},
		{"a choice", `{"choice": "b"}`, wordings{Choice: "b", Span: time.Second}},
		{"no time", `{"span": "0s"}`, wordings{Choice: "a"}},
		{"a duration at its bound", `{"span": "5m"}`, wordings{Choice: "a", Span: 5 * time.Minute}},
		{"texts", `{"texts": {"x": "1", "y": "\u0032"}}`,
			wordings{Choice: "a", Span: time.Second, Texts: map[string]string{"x": "1", "y": "2"}}},
		{"lists", `{"lists": {"x": ["1", "2"], "y": ["3"]}}`,
			wordings{Choice: "a", Span: time.Second, Lists: map[string][]string{"x": {"1", "2"}, "y": {"3"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := defaultWordings()
			if err := got.decode(c.raw); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("values are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestWordsThatCannotBeUsedAreNamedWithWhatIsAllowed(t *testing.T) {
	const (
		text   = "the name of a thing, a text of 1 to 4 bytes"
		choice = "a or b"
		span   = "a duration from 0s to 5m0s"
		texts  = "an object of 1 to 2 entries, names and what they mean"
		lists  = "an object of 1 to 2 lists of 1 to 2 texts, names and what they stand for"
	)
	for _, c := range []struct{ key, value, allowed string }{
		{"flag", `"true"`, "true or false"},
		{"flag", `1`, "true or false"},
		{"flag", `null`, "true or false"},
		{"text", `""`, text},
		{"text", `"abcde"`, text},
		{"text", `"a\n"`, text},
		{"text", `"a\u007f"`, text},
		{"text", `"\ud800"`, text},
		{"text", "\"\xff\"", text},
		{"text", `1`, text},
		{"text", `null`, text},
		{"text", `["a"]`, text},
		{"choice", `"A"`, choice},
		{"choice", `"c"`, choice},
		{"choice", `true`, choice},
		{"span", `30`, span},
		{"span", `"30"`, span},
		{"span", `"-1s"`, span},
		{"span", `"5m1ns"`, span},
		{"span", `"soon"`, span},
		{"texts", `{}`, texts},
		{"texts", `null`, texts},
		{"texts", `["a"]`, texts},
		{"texts", `{"x": 1}`, texts},
		{"texts", `{"x": ""}`, texts},
		{"texts", `{"": "1"}`, texts},
		{"texts", `{"x": "1", "x": "1"}`, texts},
		{"texts", `{"x": "1", "y": "2", "z": "3"}`, texts},
		{"lists", `{}`, lists},
		{"lists", `{"x": "1"}`, lists},
		{"lists", `{"x": []}`, lists},
		{"lists", `{"x": null}`, lists},
		{"lists", `{"x": [1]}`, lists},
		{"lists", `{"x": [null]}`, lists},
		{"lists", `{"x": ["1", "2", "3"]}`, lists},
		{"lists", `{"x": ["1"], "x": ["2"]}`, lists},
		{"lists", `{"x": ["1"], "y": ["2"], "z": ["3"]}`, lists},
	} {
		got, want := defaultWordings(), defaultWordings()
		var refused *Error
		err := got.decode(`{"` + c.key + `": ` + c.value + `}`)
		if !errors.As(err, &refused) || refused.Field != c.key || refused.Allowed != c.allowed {
			t.Errorf("%s: %s gives %v, want %s", c.key, c.value, err, c.allowed)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s has set %+v", c.key, c.value, got)
		}
	}
}

// What is accepted, encoding/json accepts too, with the same values.
func FuzzDecodeWords(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"flag": true, "text": "abc", "choice": "b"}`, `{"span": "1m30s"}`, `{"texts": {"a": "b"}}`,
		`{"lists": {"a": ["b", "c"]}}`, `{"text": "\ud83d\ude00"}`, `{"text": "\ud83d"}`, `{"texts": {"a": {"b": "c"}}}`,
		`{"texts": {"a": "b", "\u0061": "c"}}`, `{"lists": {"a": [["b"]]}}`, "{\"text\": \"\xff\"}", `{"span": "9223372036s"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := defaultWordings()
		if got.decode(raw) != nil {
			return
		}
		if len(got.Text) > 4 || (got.Choice != "a" && got.Choice != "b") || got.Span < 0 || got.Span > 5*time.Minute ||
			len(got.Texts) > 2 || len(got.Lists) > 2 {
			t.Fatalf("%q was accepted with %+v", raw, got)
		}
		if strings.Trim(raw, " \t\r\n") == "" {
			return
		}
		var loose struct {
			Flag   bool                `json:"flag"`
			Text   string              `json:"text"`
			Choice string              `json:"choice"`
			Span   string              `json:"span"`
			Texts  map[string]string   `json:"texts"`
			Lists  map[string][]string `json:"lists"`
		}
		if err := json.Unmarshal([]byte(raw), &loose); err != nil {
			t.Fatalf("%q was accepted, encoding/json says %v", raw, err)
		}
		if got.Flag != loose.Flag || got.Text != loose.Text || len(got.Texts) != len(loose.Texts) || len(got.Lists) != len(loose.Lists) {
			t.Fatalf("%q gives %+v, encoding/json %+v", raw, got, loose)
		}
		for key, list := range loose.Lists {
			if !reflect.DeepEqual(got.Lists[key], list) {
				t.Fatalf("%q gives %q for %s, encoding/json %q", raw, got.Lists[key], key, list)
			}
		}
	})
}
