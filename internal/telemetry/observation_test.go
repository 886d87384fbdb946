package telemetry

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestAnObservationSaysWhatTheSnapshotKnowsOfTheReplica(t *testing.T) {
	replica := v1alpha1.Replica{Pool: "llm/pool", Name: "a", Pod: "llm/a", Address: "10.0.0.1:8000"}
	version := func(text string, state State) Reading {
		return Reading{Recorded: state, ExpiresAt: expires, Detail: &Detail{Text: text}}
	}
	begun := time.Unix(50, 250_000_000).UTC()
	for _, tc := range []struct {
		name     string
		snapshot *Snapshot
		now      Instant
		// Of the document, what is not fixed.
		engine, profile, declared, version string
		incarnation                        int
		start                              *time.Time
	}{
		{name: "nothing is known", now: observed, engine: "unknown"},
		{
			name: "all is known", now: observed,
			snapshot: &Snapshot{
				Engine: "sglang", Profile: "sglang@sha256:0123", Declared: "vllm", Incarnation: 3,
				Readings: [NumFields]Reading{
					ProcessStart:  {Value: 50.25, Recorded: Fresh, ExpiresAt: expires},
					EngineVersion: version("0.5.23", Fresh),
				},
			},
			engine: "sglang", profile: "sglang@sha256:0123", declared: "vllm", version: "0.5.23", incarnation: 3, start: &begun,
		},
		{
			name: "it was read long ago", now: expires.Add(time.Hour),
			snapshot: &Snapshot{
				Engine: "vllm", Incarnation: 1,
				Readings: [NumFields]Reading{
					ProcessStart:  {Value: 50.25, Recorded: Fresh, ExpiresAt: expires},
					EngineVersion: version("0.32.0", Fresh),
				},
			},
			engine: "vllm", version: "0.32.0", incarnation: 1, start: &begun,
		},
		{
			name: "neither makes sense", now: observed,
			snapshot: &Snapshot{
				Engine: "vllm", Incarnation: 1,
				Readings: [NumFields]Reading{
					ProcessStart:  {Value: 50.25, Recorded: Invalid},
					EngineVersion: version("0.32.0", Invalid),
				},
			},
			engine: "vllm", incarnation: 1,
		},
		{
			name: "neither was read", now: observed,
			snapshot: &Snapshot{Engine: "vllm", Incarnation: 1},
			engine:   "vllm", incarnation: 1,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := tc.snapshot.Observation(replica, tc.now)
			if doc.Version != "berth.dev/v1alpha1" || doc.Kind != "Observation" || doc.Order != "normal" {
				t.Errorf("version %q, kind %q, order %q", doc.Version, doc.Kind, doc.Order)
			}
			if doc.Engine != tc.engine || doc.Profile != tc.profile || doc.Declared != tc.declared {
				t.Errorf("engine %q, profile %q, declared %q, want %q, %q, %q", doc.Engine, doc.Profile, doc.Declared, tc.engine, tc.profile, tc.declared)
			}
			want := replica
			want.Incarnation, want.ProcessStart, want.EngineVersion = tc.incarnation, tc.start, tc.version
			if !reflect.DeepEqual(doc.Replica, want) {
				t.Errorf("replica %+v, want %+v", doc.Replica, want)
			}
			if len(doc.Fields) != len(contract) {
				t.Errorf("%d fields, want all of %d", len(doc.Fields), len(contract))
			}
		})
	}
}

func drawField(t *rapid.T) Field { return Field(rapid.IntRange(0, int(NumFields)-1).Draw(t, "field")) }

// drawReading is any reading that a field can have.
func drawReading(t *rapid.T, f Field) Reading {
	values := []float64{0, 1, 0.5, 7, 1e12}
	if f.Kind() == Time {
		// No engine started before the epoch, or ages from now.
		values = []float64{0, 1, 50.25, 1.7e9}
	}
	at := func(name string) Instant {
		return rapid.SampledFrom([]Instant{0, 1, observed, expires - 1, expires, expires + 1, math.MaxInt64}).Draw(t, name)
	}
	r := Reading{
		Value:      rapid.SampledFrom(values).Draw(t, "value"),
		ObservedAt: at("observed"),
		ExpiresAt:  at("expires"),
		Quality:    float32(rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "quality")),
		Support:    rapid.SampledFrom([]Support{SupportUnknown, Supported, Unsupported, Disabled}).Draw(t, "support"),
		Recorded:   rapid.SampledFrom([]State{Missing, Fresh, Stale, Invalid}).Draw(t, "recorded"),
		Provenance: rapid.SampledFrom([]Provenance{NoProvenance, Measured, Modeled, Inferred, Declared}).Draw(t, "provenance"),
	}
	if rapid.Bool().Draw(t, "detail") {
		r.Detail = &Detail{
			EngineTime:   at("engine time"),
			Names:        rapid.SampledFrom([][]string{nil, {}, {"a", "b"}}).Draw(t, "names"),
			Text:         rapid.SampledFrom([]string{"", "0.32.0"}).Draw(t, "text"),
			Distribution: rapid.SampledFrom([]*Distribution{nil, {Mean: 1, P50: math.NaN(), P90: math.NaN(), P99: math.NaN(), Count: 4}}).Draw(t, "distribution"),
			Reasons:      rapid.SampledFrom([][]string{nil, {"why"}}).Draw(t, "reasons"),
		}
	}
	return r
}

// Time alone makes a reading worth less, never more.
func TestAReadingNeverBecomesFreshByWaiting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawReading(t, drawField(t))
		instants := []Instant{0, 1, observed - 1, observed, expires - 1, expires, expires + 1, math.MaxInt64}
		turned := false
		for _, now := range instants {
			switch got := r.State(now); {
			case r.Recorded != Fresh && got != r.Recorded:
				t.Fatalf("recorded as %s, it is %s at %d", r.Recorded, got, now)
			case r.Recorded == Fresh && got != Fresh && got != Stale:
				t.Fatalf("recorded as fresh, it is %s at %d", got, now)
			case turned && got == Fresh:
				t.Fatalf("it is fresh again at %d", now)
			default:
				turned = turned || got == Stale
			}
		}
	})
}

// Unknown is never zero: a document has a value only where one was read, and says why
// wherever it is not fresh.
func TestADocumentOfAnyReadingIsTrueAndCanBeWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawField(t)
		now := rapid.SampledFrom([]Instant{observed, expires - 1, expires, expires.Add(time.Hour)}).Draw(t, "now")
		var s Snapshot
		s.Readings[f] = drawReading(t, f)
		r := &s.Readings[f]
		doc := s.Document(now)
		got, state := doc[f.String()], r.State(now)
		if string(got.State) != state.String() || string(got.Support) != r.Support.String() {
			t.Fatalf("state %s, support %s, want %s and %s", got.State, got.Support, state, r.Support)
		}
		if state != Fresh && state != Stale && (got.Value != nil || got.Max != nil) {
			t.Fatalf("%s with the value %v", state, got.Value)
		}
		if (state == Fresh || state == Stale) && got.Value == nil && f.Kind() != Dist {
			t.Fatalf("%s without a value", state)
		}
		if r.Recorded == Fresh && state == Stale && len(got.Reasons) == 0 {
			t.Fatal("stale by age, and no reason says so")
		}
		if state == Missing && r.Detail == nil && len(got.Reasons) == 0 {
			t.Fatal("missing, and no reason says so")
		}
		if got.Reasons == nil {
			t.Fatal("reasons are null, want a list")
		}
		for other, reading := range doc {
			if other != f.String() && (reading.Value != nil || reading.State != "missing") {
				t.Fatalf("%s of which nothing was read is %s %v", other, reading.State, reading.Value)
			}
		}
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]v1alpha1.Reading
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if again, err := json.Marshal(back); err != nil || string(again) != string(text) {
			t.Fatalf("%v: written again, it is\n%s\nand was\n%s", err, again, text)
		}
	})
}
