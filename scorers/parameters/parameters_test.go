package parameters

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

type values struct {
	Floor float64 `json:"floor"`
	Count int     `json:"count"`
}

func (v *values) decode(raw string) error {
	return Decode(json.RawMessage(raw),
		Number{Key: "floor", Into: &v.Floor, Above: 0, AtMost: 1e6, Unit: "requests"},
		Integer{Key: "count", Into: &v.Count, Min: 1, Max: 5})
}

func TestParametersThatAreGivenReplaceTheDefaults(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		want      values
	}{
		{"none", "", values{2, 3}},
		{"null", " null ", values{2, 3}},
		{"an empty object", "{}", values{2, 3}},
		{"one of two", `{"floor": 0.5}`, values{0.5, 3}},
		{"both, at their limits", `{"count": 5, "floor": 1e6}`, values{1e6, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := values{Floor: 2, Count: 3}
			if err := got.decode(c.raw); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("values are %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParametersThatCannotBeUsedAreNamedWithTheirValueAndWhatIsAllowed(t *testing.T) {
	const (
		number  = "a number above 0 and at most 1000000 requests"
		integer = "a whole number from 1 to 5"
		object  = "one JSON object"
	)
	for _, c := range []struct {
		name, raw string
		want      Error
	}{
		{"a zero below an open limit", `{"floor": 0}`, Error{"floor", "0", number}},
		{"a negative number", `{"floor": -1.5}`, Error{"floor", "-1.5", number}},
		{"a number above the limit", `{"floor": 1000001}`, Error{"floor", "1000001", number}},
		{"a number too large for a float", `{"floor": 1e999}`, Error{"floor", "1e999", number}},
		{"a string", `{"floor": "2"}`, Error{"floor", `"2"`, number}},
		{"a string that floats are written as", `{"floor": "NaN"}`, Error{"floor", `"NaN"`, number}},
		{"null for one parameter", `{"floor": null}`, Error{"floor", "null", number}},
		{"an object for one parameter", `{"floor": {"a": [1, 2]}}`, Error{"floor", `{"a":[1,2]}`, number}},
		{"a fraction for a whole number", `{"count": 1.5}`, Error{"count", "1.5", integer}},
		{"a whole number below its range", `{"count": 0}`, Error{"count", "0", integer}},
		{"a whole number above its range", `{"count": 6}`, Error{"count", "6", integer}},
		{"a whole number beyond 64 bits", `{"count": 99999999999999999999}`, Error{"count", "99999999999999999999", integer}},
		{"a key given twice", `{"count": 1, "count": 1}`, Error{"count", "1", "a key that occurs once"}},
		{"a key in another case", `{"Floor": 1}`, Error{"Floor", "1", "unknown parameter; known here: floor, count"}},
		{"an array", `[1]`, Error{"", "[1]", object}},
		{"a number", `1`, Error{"", "1", object}},
		{"something after the object", `{} {}`, Error{"", `"{} {}"`, object}},
		{"a cut object", `{"floor": 1`, Error{"", `"{\"floor\": 1"`, object}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v values
			var got *Error
			if err := v.decode(c.raw); !errors.As(err, &got) {
				t.Fatalf("Decode(%s) = %v, want an *Error", c.raw, err)
			}
			if *got != c.want {
				t.Errorf("the error is %+v, want %+v", *got, c.want)
			}
		})
	}
}

func TestAPluginWithoutParametersSaysSo(t *testing.T) {
	err := Decode(json.RawMessage(`{"floor": 1}`))
	const want = "floor: 1: unknown parameter; this plugin has none"
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestParametersThatAreNoObjectAreCalledParameters(t *testing.T) {
	err := Decode(json.RawMessage(`[1, 2]`))
	const want = "parameters: [1,2]: one JSON object"
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestAnErrorRepeatsOnlyTheStartOfALongValue(t *testing.T) {
	var v values
	err := v.decode(`{"floor": "` + strings.Repeat("é", 500) + `"}`)
	if err == nil || len(err.Error()) > 200 || !utf8.ValidString(err.Error()) {
		t.Errorf("the error is %v, want one short line of text", err)
	}
}

// What Decode accepts, encoding/json accepts too, with the same values.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", `{"floor": 1, "count": 2}`, `{"floor": 1e999}`, `{"count": 1.0}`, `{"count": -0}`,
		`{"floor": 1, "floor": 2}`, `{"a": {"b": [`, `{"floor": 0x1p4}`, "{}{}", "[]", `{"\u0066loor": 3}`, "\f{}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := values{Floor: 2, Count: 3}
		if got.decode(raw) != nil {
			return
		}
		if !(got.Floor > 0 && got.Floor <= 1e6) || got.Count < 1 || got.Count > 5 {
			t.Fatalf("%q was accepted with %+v", raw, got)
		}
		if len(bytes.Trim([]byte(raw), " \t\r\n")) == 0 {
			return
		}
		want := values{Floor: 2, Count: 3}
		strict := json.NewDecoder(strings.NewReader(raw))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&want); err != nil || got != want {
			t.Fatalf("%q gives %+v, encoding/json says %+v, %v", raw, got, want, err)
		}
	})
}
