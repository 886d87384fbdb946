package v1alpha1

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whoever passes documents on, reads one and writes it again: nothing may change
// on the way.

func TestADecisionThatWasReadIsWrittenAsItWas(t *testing.T) { isWrittenAsItWas[Decision](t) }

func TestAnObservationThatWasReadIsWrittenAsItWas(t *testing.T) { isWrittenAsItWas[Observation](t) }

func TestAConfigurationThatWasWrittenIsReadAsItWas(t *testing.T) {
	isWrittenAsItWas[BerthConfiguration](t)
}

func TestAPoolThatWasReadIsWrittenAsItWas(t *testing.T) { isWrittenAsItWas[StaticPool](t) }

// isWrittenAsItWas reads any document of a type and writes it again.
func isWrittenAsItWas[T any](t *testing.T) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		var doc T
		draw(t, reflect.ValueOf(&doc).Elem())
		first := encode(t, doc)
		if again := rewritten[T](t, first); !bytes.Equal(again, first) {
			t.Fatalf("was\n%s\nis\n%s", first, again)
		}
	})
}

// An observation as another program may write it: in any order, with members that
// this version does not know, and not every field.
const example = `{
  "kind": "Observation",
  "version": "berth.dev/v1alpha1",
  "replica": {"name": "r1", "pool": "local/demo", "address": "10.0.0.1:8000", "rack": "b7"},
  "engine": "vllm",
  "profile": "vllm@sha256:0123456789ab",
  "order": "normal",
  "inFlight": 2,
  "weather": {"outside": "fair"},
  "fields": {
    "queueDepth": {"support": "supported", "state": "fresh", "value": 4, "unit": "requests", "provenance": "measured",
      "source": {"path": "/metrics", "metric": "vllm:num_requests_waiting", "rule": "sum over engine"},
      "observedAt": "2026-01-02T03:04:05.678Z", "expiresAt": "2026-01-02T04:04:07+01:00", "quality": 1, "reasons": []},
    "kvCacheUtilization": {"support": "supported", "state": "stale", "value": 0.5, "max": 0.75, "unit": "util",
      "quality": 0.5, "reasons": ["one rank of two"]},
    "power": {"support": "unsupported", "state": "missing", "unit": "W", "quality": 0, "reasons": ["not exported"]}
  }
}`

func TestTheExampleOfAnObservationIsRead(t *testing.T) {
	hottest := 0.75
	observed := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	expires := time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC)
	want := Observation{
		Version:  "berth.dev/v1alpha1",
		Kind:     "Observation",
		Replica:  Replica{Pool: "local/demo", Name: "r1", Address: "10.0.0.1:8000"},
		Engine:   "vllm",
		Profile:  "vllm@sha256:0123456789ab",
		Order:    "normal",
		InFlight: 2,
		Fields: map[string]Reading{
			"queueDepth": {
				Support: Supported, State: Fresh, Value: 4.0, Unit: "requests", Provenance: Measured,
				Source:     &Source{Path: "/metrics", Metric: "vllm:num_requests_waiting", Rule: "sum over engine"},
				ObservedAt: &observed, ExpiresAt: &expires, Quality: 1, Reasons: []string{},
			},
			"kvCacheUtilization": {
				Support: Supported, State: Stale, Value: 0.5, Max: &hottest, Unit: "util", Quality: 0.5, Reasons: []string{"one rank of two"},
			},
			"power": {Support: Unsupported, State: Missing, Unit: "W", Reasons: []string{"not exported"}},
		},
	}
	got := decode[Observation](t, []byte(example))
	for name, r := range got.Fields {
		for _, at := range []*time.Time{r.ObservedAt, r.ExpiresAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
		if !reflect.DeepEqual(r, want.Fields[name]) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", name, r, want.Fields[name])
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func encode(t failer, doc any) []byte {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatalf("cannot be written: %v", err)
	}
	return text
}

func decode[T any](t failer, text []byte) T {
	t.Helper()
	var doc T
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("cannot be read: %v\n%s", err, text)
	}
	return doc
}

func rewritten[T any](t failer, text []byte) []byte {
	t.Helper()
	return encode(t, decode[T](t, text))
}

// draw fills a value of any of the kinds that the documents are made of, so that a
// member which is added to one of them is drawn, too.
func draw(t *rapid.T, v reflect.Value) {
	text := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[ -~]{1,12}`), rapid.String())
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(0, rapid.Int64Range(0, 4e18).Draw(t, "time")).UTC()))
		return
	case Duration, Bytes:
		v.SetInt(rapid.OneOf(rapid.Int64Range(0, 1<<12), rapid.Int64Range(0, 1<<62)).Draw(t, "quantity"))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			draw(t, v.Field(i))
		}
	case reflect.Pointer:
		v.SetZero()
		if rapid.Bool().Draw(t, "present") {
			v.Set(reflect.New(v.Type().Elem()))
			draw(t, v.Elem())
		}
	case reflect.Interface:
		drawReadingValue(t, v)
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		if n == 0 && rapid.Bool().Draw(t, "nil") {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			draw(t, v.Index(i))
		}
	case reflect.Map:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		if n == 0 && rapid.Bool().Draw(t, "nil") {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range n {
			item := reflect.New(v.Type().Elem()).Elem()
			draw(t, item)
			v.SetMapIndex(reflect.ValueOf(text.Draw(t, "key")), item)
		}
	case reflect.String:
		v.SetString(text.Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(-1<<31, 1<<31-1).Draw(t, "integer"))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64Range(0, 1<<53).Draw(t, "count"))
	case reflect.Float64:
		v.SetFloat(rapid.OneOf(
			rapid.Float64Range(0, 1), rapid.Float64(), rapid.SampledFrom([]float64{0, 1, 17, 1e15, 1e21, 1e-7, 4.0 / 3}),
		).Draw(t, "number"))
	default:
		t.Fatalf("the document has a member of kind %s, which this test cannot draw", v.Kind())
	}
}

// drawReadingValue draws what Reading.Value may hold.
func drawReadingValue(t *rapid.T, v reflect.Value) {
	types := []reflect.Type{
		nil,
		reflect.TypeFor[float64](), reflect.TypeFor[bool](), reflect.TypeFor[string](), reflect.TypeFor[time.Time](),
		reflect.TypeFor[[]string](), reflect.TypeFor[Distribution](),
	}
	of := rapid.SampledFrom(types).Draw(t, "type")
	if of == nil {
		v.SetZero()
		return
	}
	value := reflect.New(of).Elem()
	draw(t, value)
	if of.Kind() == reflect.Slice && value.IsNil() {
		value = reflect.MakeSlice(of, 0, 0) // a value that is there is never null
	}
	v.Set(value)
}
