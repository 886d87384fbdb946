// Package parameters decodes the parameters of a plugin, strictly: a key that
// the plugin does not know, a key given twice, a value of another type or out
// of its range is an error that names the key, the value and what is allowed.
//
// The values come in as JSON, which is what GIE's configuration loader makes
// of the YAML in an EndpointPickerConfig.
package parameters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Error is one parameter that cannot be used. Decode returns no other type.
type Error struct {
	// Field is the key; empty where the parameters as a whole are not an object.
	Field string
	// Value is what was given, as JSON, cut to a readable length.
	Value string
	// Allowed is what may stand there instead.
	Allowed string
}

// Error is "field: value: what is allowed".
func (e *Error) Error() string {
	field := e.Field
	if field == "" {
		field = "parameters"
	}
	return field + ": " + e.Value + ": " + e.Allowed
}

// Parameter is one key that a plugin understands: a Number, an Integer, or one of
// the kinds in texts.go.
type Parameter interface {
	key() string
	// set decodes one JSON value; on false nothing was set.
	set(literal string) bool
	// allowed describes the values that set takes.
	allowed() string
}

// Decode reads a JSON object and sets the parameters that it gives; the others
// keep their values, so callers set the defaults first. No parameters at all
// (nil, empty or null) is an empty object. After an error the caller must not
// use the values: those before the error are set.
func Decode(raw json.RawMessage, known ...Parameter) error {
	raw = bytes.Trim(raw, " \t\r\n")
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	malformed := &Error{Value: readable(raw), Allowed: "one JSON object"}
	d := json.NewDecoder(bytes.NewReader(raw))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return malformed
	}
	var given []string
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return malformed
		}
		// Inside an object the decoder gives nothing but strings as keys.
		key, _ := token.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return malformed
		}
		if err := set(known, given, key, value); err != nil {
			return err
		}
		given = append(given, key)
	}
	if _, err := d.Token(); err != nil {
		return malformed
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return malformed
	}
	return nil
}

// set finds the parameter with this key and gives it its value. given are the
// keys that came before.
func set(known []Parameter, given []string, key string, value json.RawMessage) error {
	fail := func(allowed string) error {
		return &Error{Field: key, Value: readable(value), Allowed: allowed}
	}
	var names []string
	for _, p := range known {
		if p.key() != key {
			names = append(names, p.key())
			continue
		}
		for _, g := range given {
			if g == key {
				return fail("a key that occurs once")
			}
		}
		if !p.set(string(value)) {
			return fail(p.allowed())
		}
		return nil
	}
	if len(names) == 0 {
		return fail("unknown parameter; this plugin has none")
	}
	return fail("unknown parameter; known here: " + strings.Join(names, ", "))
}

// Number is a finite number above Above and at most AtMost.
type Number struct {
	Key    string
	Into   *float64
	Above  float64
	AtMost float64
	// Unit is named in errors.
	Unit string
}

func (n Number) key() string { return n.Key }

func (n Number) set(literal string) bool {
	v, err := strconv.ParseFloat(literal, 64)
	if err != nil || !(v > n.Above && v <= n.AtMost) {
		return false
	}
	*n.Into = v
	return true
}

func (n Number) allowed() string {
	return fmt.Sprintf("a number above %s and at most %s %s", plain(n.Above), plain(n.AtMost), n.Unit)
}

// Integer is a whole number from Min to Max, both included.
type Integer struct {
	Key      string
	Into     *int
	Min, Max int
}

func (i Integer) key() string { return i.Key }

func (i Integer) set(literal string) bool {
	v, err := strconv.Atoi(literal)
	if err != nil || v < i.Min || v > i.Max {
		return false
	}
	*i.Into = v
	return true
}

func (i Integer) allowed() string {
	return fmt.Sprintf("a whole number from %d to %d", i.Min, i.Max)
}

// plain writes a limit without an exponent, as an operator would.
func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// maxReadable is how much of a value an error repeats, bytes: enough to
// recognise it, little enough for one log line.
const maxReadable = 64

func readable(value []byte) string {
	var compact bytes.Buffer
	s := strconv.Quote(string(value))
	if json.Compact(&compact, value) == nil {
		s = compact.String()
	}
	if len(s) > maxReadable {
		s = strings.ToValidUTF8(s[:maxReadable], "") + "..."
	}
	return s
}
