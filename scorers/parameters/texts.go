package parameters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Flag is true or false.
type Flag struct {
	Key  string
	Into *bool
}

func (f Flag) key() string { return f.Key }

func (f Flag) set(literal string) bool {
	if literal != "true" && literal != "false" {
		return false
	}
	*f.Into = literal == "true"
	return true
}

func (f Flag) allowed() string { return "true or false" }

// Text is a text of 1 to AtMost bytes. Control characters are not allowed.
type Text struct {
	Key    string
	Into   *string
	AtMost int
	// Means says what the text is, as errors name it: "the path of a file".
	Means string
}

func (t Text) key() string { return t.Key }

func (t Text) set(literal string) bool {
	s, ok := text(literal)
	if !ok || len(s) > t.AtMost {
		return false
	}
	*t.Into = s
	return true
}

func (t Text) allowed() string {
	return fmt.Sprintf("%s, a text of 1 to %d bytes", t.Means, t.AtMost)
}

// Choice is one of several texts.
type Choice struct {
	Key  string
	Into *string
	Of   []string
}

func (c Choice) key() string { return c.Key }

func (c Choice) set(literal string) bool {
	s, ok := text(literal)
	if !ok || !slices.Contains(c.Of, s) {
		return false
	}
	*c.Into = s
	return true
}

func (c Choice) allowed() string { return strings.Join(c.Of, " or ") }

// Duration is a length of time from Min to Max, both included, written as a text
// such as "1m30s".
type Duration struct {
	Key      string
	Into     *time.Duration
	Min, Max time.Duration
}

func (d Duration) key() string { return d.Key }

func (d Duration) set(literal string) bool {
	s, ok := text(literal)
	if !ok {
		return false
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < d.Min || v > d.Max {
		return false
	}
	*d.Into = v
	return true
}

func (d Duration) allowed() string {
	return fmt.Sprintf("a duration from %s to %s", d.Min, d.Max)
}

// Texts is an object of 1 to AtMost texts. A key may occur once; what keys and
// texts mean is for the plugin to check.
type Texts struct {
	Key    string
	Into   *map[string]string
	AtMost int
	// Means says what the object maps, as errors name it.
	Means string
}

func (t Texts) key() string { return t.Key }

func (t Texts) set(literal string) bool {
	out, ok := object(literal, text)
	if !ok || len(out) == 0 || len(out) > t.AtMost {
		return false
	}
	*t.Into = out
	return true
}

func (t Texts) allowed() string {
	return fmt.Sprintf("an object of 1 to %d entries, %s", t.AtMost, t.Means)
}

// Lists is an object of 1 to AtMost lists of texts, each of 1 to EachAtMost. A key
// may occur once; what keys and texts mean is for the plugin to check.
type Lists struct {
	Key                string
	Into               *map[string][]string
	AtMost, EachAtMost int
	// Means says what the object maps, as errors name it.
	Means string
}

func (l Lists) key() string { return l.Key }

func (l Lists) set(literal string) bool {
	out, ok := object(literal, texts)
	if !ok || len(out) == 0 || len(out) > l.AtMost {
		return false
	}
	for _, list := range out {
		if len(list) > l.EachAtMost {
			return false
		}
	}
	*l.Into = out
	return true
}

func (l Lists) allowed() string {
	return fmt.Sprintf("an object of 1 to %d lists of 1 to %d texts, %s", l.AtMost, l.EachAtMost, l.Means)
}

// text is a JSON string that is not empty and has no control characters.
// encoding/json would make a string of null, and of bytes that are no text.
func text(literal string) (string, bool) {
	if !strings.HasPrefix(literal, `"`) || !utf8.ValidString(literal) {
		return "", false
	}
	var s string
	if json.Unmarshal([]byte(literal), &s) != nil || s == "" {
		return "", false
	}
	return s, !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError })
}

// texts is a JSON array of at least one text.
func texts(literal string) ([]string, bool) {
	var values []json.RawMessage
	if json.Unmarshal([]byte(literal), &values) != nil || len(values) == 0 {
		return nil, false
	}
	out := make([]string, len(values))
	for i, value := range values {
		s, ok := text(string(value))
		if !ok {
			return nil, false
		}
		out[i] = s
	}
	return out, true
}

// object is a JSON object whose keys are texts and occur once.
func object[T any](literal string, member func(string) (T, bool)) (map[string]T, bool) {
	d := json.NewDecoder(bytes.NewReader([]byte(literal)))
	if open, err := d.Token(); err != nil || open != json.Delim('{') || !utf8.ValidString(literal) {
		return nil, false
	}
	out := map[string]T{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, false
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, false
		}
		made, ok := member(string(value))
		if _, twice := out[key]; !ok || twice || key == "" {
			return nil, false
		}
		out[key] = made
	}
	_, err := d.Token()
	return out, err == nil
}
