package ledger

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// A record is written as encoding/json would, whatever it holds. Every member
// of the document is drawn by reflection, so that one which the encoder does not
// know fails here.
func TestALineIsWhatEncodingJSONMakesOfTheRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &v1alpha1.Decision{}
		draw(t, reflect.ValueOf(d).Elem())
		want, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		r := newRecord(d, new([]byte))
		if r.err != nil {
			t.Fatal(r.err)
		}
		if got := r.appendLine(nil); string(got) != string(want) {
			t.Fatalf("wrote\n%s\nencoding/json writes\n%s", got, want)
		}
		if _, err := r.decode(); err != nil {
			t.Fatalf("cannot be read back: %v\n%s", err, want)
		}

		// Another end, as it is written when the request has ended.
		draw(t, reflect.ValueOf(&d.Acknowledgement).Elem())
		draw(t, reflect.ValueOf(&d.Outcome).Elem())
		if want, err = json.Marshal(d); err != nil {
			t.Fatal(err)
		}
		r.end(encodeEnding(&d.Acknowledgement, d.Outcome, new([]byte)))
		if got := r.appendLine(nil); string(got) != string(want) {
			t.Fatalf("ended as\n%s\nencoding/json writes\n%s", got, want)
		}
	})
}

// draw fills a value of any of the kinds that the documents are made of.
func draw(t *rapid.T, v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(0, rapid.Int64Range(0, 4e18).Draw(t, "time")).UTC()))
		return
	case map[string]int:
		v.Set(reflect.ValueOf(rapid.MapOfN(rapid.SampledFrom([]string{"subset", "health", "served_model"}), rapid.IntRange(0, 9), 0, 3).Draw(t, "counts")))
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
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		if n == 0 && rapid.Bool().Draw(t, "nil") {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			draw(t, v.Index(i))
		}
	case reflect.String:
		v.SetString(rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[ -~]{1,12}`), rapid.String()).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(-1<<31, 1<<31-1).Draw(t, "integer"))
	case reflect.Float64:
		v.SetFloat(rapid.OneOf(
			rapid.Float64Range(0, 1), rapid.Float64(), rapid.SampledFrom([]float64{0, 1, 17, 1e15, 1e21, 1e-7, 2.5, 4.0 / 3}),
		).Draw(t, "number"))
	default:
		t.Fatalf("the document has a member of kind %s, which this test cannot draw", v.Kind())
	}
}

func TestANumberThatJSONCannotSayIsAnError(t *testing.T) {
	infinite := math.Inf(1)
	if r := newRecord(&v1alpha1.Decision{Candidates: []v1alpha1.Candidate{{Total: infinite}}}, new([]byte)); r.err == nil {
		t.Error("no error for an infinite total")
	}
	r := newRecord(&v1alpha1.Decision{}, new([]byte))
	running := string(r.appendLine(nil))
	r.end(encodeEnding(&v1alpha1.Acknowledgement{}, &v1alpha1.Outcome{TTFT: &infinite}, new([]byte)))
	if r.err == nil {
		t.Error("no error for an infinite time to first byte")
	}
	if got := string(r.appendLine(nil)); got != running {
		t.Errorf("what is kept of it is %s, want %s", got, running)
	}
}

func BenchmarkLine(b *testing.B) {
	value, age := 0.4375, int64(87)
	d := &v1alpha1.Decision{Version: v1alpha1.Version, Kind: "Decision", ID: "01a228bd-fb36-70af-8d00-25ce638ee390", Time: time.Now().UTC()}
	for range 10 {
		c := v1alpha1.Candidate{Replica: "replica-1", Address: "10.0.0.1:8000", Total: 11.0 / 3}
		for range 3 {
			c.Readings = append(c.Readings, v1alpha1.FieldEvidence{State: "fresh", Value: &value, AgeMillis: &age})
			c.Scores = append(c.Scores, &value)
		}
		d.Candidates = append(d.Candidates, c)
	}
	b.Run("record", func(b *testing.B) {
		buffer := new([]byte)
		b.ReportAllocs()
		for b.Loop() {
			newRecord(d, buffer)
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = json.Marshal(d)
		}
	})
}
