package console

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// hostile is what a record must not do to a terminal: begin a line of its own,
// move the cursor, set a title, turn the order of what follows around, or hide.
const hostile = "x\r\nFORGED\t\x1b[31m\x1b]0;title\x07\x7f\u0085\u009b31m\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e" +
	"\u2066\u2067\u2068\u2069\u2028\u2029\ufeff\U000e0041\x9b31m"

func TestPlainTextStaysOnItsLineInItsOrder(t *testing.T) {
	for text, want := range map[string]string{
		"meta-llama/Llama-3.1 é 日本 🚢":  "meta-llama/Llama-3.1 é 日本 🚢",
		"a\x1b[31mb\tc\nd\x7f":         "a\ufffd[31mb\ufffdc\ufffdd\ufffd",
		"a\u009bb\u0085c\x9bd":         "a\ufffdb\ufffdc\ufffdd",
		"a\u202eb\u2066c\u200ed\u200f": "a\ufffdb\ufffdc\ufffdd\ufffd",
		"a\u2028b\u200bc\U000e0041":    "a\ufffdb\ufffdc\ufffd",
	} {
		if got := plain(text); got != want {
			t.Errorf("plain(%q) is %q, want %q", text, got, want)
		}
	}
}

// eachString calls see for each string in v that can be set, with a function that
// sets it: members of structs, elements, and the keys and values of maps.
func eachString(v reflect.Value, path string, see func(path string, set func(string))) {
	switch v.Kind() {
	case reflect.String:
		see(path, func(text string) { v.SetString(text) })
	case reflect.Pointer:
		if !v.IsNil() {
			eachString(v.Elem(), path, see)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				eachString(v.Field(i), path+"."+v.Type().Field(i).Name, see)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachString(v.Index(i), path+"[]", see)
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return
		}
		for _, key := range v.MapKeys() {
			value := v.MapIndex(key)
			see(path+"[key]", func(text string) {
				v.SetMapIndex(key, reflect.Value{})
				v.SetMapIndex(reflect.ValueOf(text).Convert(v.Type().Key()), value)
			})
			if value.Kind() == reflect.String {
				see(path+"[value]", func(text string) { v.SetMapIndex(key, reflect.ValueOf(text).Convert(value.Type())) })
			}
		}
	}
}

// filled gives every string of a type a place: nil pointers, empty slices and
// empty maps get one element.
func filled(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		filled(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				filled(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			filled(v.Index(i))
		}
	case reflect.Map:
		if v.Len() == 0 {
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		}
	}
}

// records are decisions of each shape that Explain tells in its own way.
func records() map[string]*v1alpha1.Decision {
	complete := v1alpha1.Outcome{Status: 200, Cause: "complete", Details: "via_upstream", Duration: 1.5}
	violated := ended("violated", "", complete)
	violated.Acknowledgement.ServedAddress = "10.9.9.9:80"
	stale := decision()
	stale.Candidates[0].Readings[0] = v1alpha1.FieldEvidence{State: "stale", Value: ptr(9.0)}
	stale.Candidates[2].Readings[0] = v1alpha1.FieldEvidence{State: "missing"}
	refused := decision()
	refused.Refusal = &v1alpha1.Refusal{Status: 503, Reason: "unhealthy", Message: "every endpoint is not ready"}
	alone := decision()
	alone.Screened = 1
	unlisted := decision()
	unlisted.Candidates, unlisted.NotReplayable, unlisted.Request.Unread = nil, "the pool is large", "content_encoding"
	everything := ended("overridden", "r1", complete)
	filled(reflect.ValueOf(everything))
	for i := range everything.Candidates {
		everything.Candidates[i].RemovedBy = ""
	}
	everything.Refusal = nil
	return map[string]*v1alpha1.Decision{
		"running": decision(), "overridden": ended("overridden", "r1", complete), "violated": violated,
		"stale": stale, "refused": refused, "alone": alone, "unlisted": unlisted, "everything": everything,
	}
}

func copied(t *testing.T, d *v1alpha1.Decision) *v1alpha1.Decision {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	c := &v1alpha1.Decision{}
	if err := json.Unmarshal(text, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNoStringOfARecordActsOnATerminal(t *testing.T) {
	shown := map[string]bool{}
	check := func(name, path string, d *v1alpha1.Decision) {
		t.Helper()
		var out bytes.Buffer
		if err := Explain(&out, d); err != nil {
			t.Fatal(err)
		}
		shown[path] = shown[path] || strings.Contains(out.String(), "FORGED")
		for line := range strings.Lines(out.String()) {
			bad := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) })
			if bad >= 0 || strings.HasPrefix(line, "FORGED") {
				t.Errorf("%s with a hostile %s prints %q", name, path, line)
			}
		}
	}
	for name, record := range records() {
		var paths []string
		eachString(reflect.ValueOf(copied(t, record)), "", func(path string, _ func(string)) { paths = append(paths, path) })
		// One at a time: a string may also decide which of the others are told.
		for i, path := range paths {
			d, n := copied(t, record), 0
			eachString(reflect.ValueOf(d), "", func(_ string, set func(string)) {
				if n == i {
					set(hostile)
				}
				n++
			})
			check(name, path, d)
		}
		all := copied(t, record)
		eachString(reflect.ValueOf(all), "", func(_ string, set func(string)) { set(hostile) })
		check(name, "everything", all)
	}
	// What is told at all was told with the hostile text in it.
	for _, path := range []string{
		".ID", ".Pool", ".Intent.Model", ".Request.API", ".Request.Unread", ".Rung", ".Fields[].Field", ".Scorers[].Scorer", ".ScreenedOut[key]",
		".Candidates[].Replica", ".Candidates[].Readings[].State", ".Pick", ".Fallbacks[]", ".Refusal.Reason", ".Refusal.Message", ".NotReplayable",
		".Acknowledgement.Served", ".Acknowledgement.ServedAddress", ".Outcome.Cause", ".Outcome.Details", ".Versions.Policy",
	} {
		if !shown[path] {
			t.Errorf("no record shows a hostile %s", path)
		}
	}
}

func TestNoStringOfTheFleetActsOnATerminal(t *testing.T) {
	o := observation("r1", nil)
	filled(reflect.ValueOf(&o))
	eachString(reflect.ValueOf(&o), "", func(_ string, set func(string)) { set(hostile) })
	var out bytes.Buffer
	if err := Fleet(&out, at, []v1alpha1.Observation{o}, nil); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("%d lines for one replica, want a header and a row:\n%q", lines, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }) {
			t.Errorf("printed %q", line)
		}
	}
}
