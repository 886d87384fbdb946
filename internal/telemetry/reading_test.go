package telemetry

import (
	"math"
	"testing"
	"time"
)

// At second 100 a page was asked for; what it said expires at second 110.
var (
	observed = At(time.Unix(100, 0))
	expires  = At(time.Unix(110, 0))
)

func TestStateIsAFunctionOfReadingAndTime(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reading Reading
		now     Instant
		want    State
	}{
		{"the zero reading is missing, not an idle zero", Reading{}, observed, Missing},
		{"the zero reading is missing at the beginning of time", Reading{}, 0, Missing},
		{"a value without a recorded state is missing", Reading{Value: 7, ExpiresAt: expires}, observed, Missing},
		{"fresh when it was observed", Reading{Recorded: Fresh, ObservedAt: observed, ExpiresAt: expires}, observed, Fresh},
		{"a fresh zero is a value", Reading{Recorded: Fresh, Value: 0, ExpiresAt: expires}, observed, Fresh},
		{"fresh a nanosecond before it expires", Reading{Recorded: Fresh, ExpiresAt: expires}, expires - 1, Fresh},
		{"stale at the instant it expires", Reading{Recorded: Fresh, ExpiresAt: expires}, expires, Stale},
		{"stale ever after", Reading{Recorded: Fresh, ExpiresAt: expires}, expires.Add(time.Hour), Stale},
		{"fresh for ever without an expiry", Reading{Recorded: Fresh, ObservedAt: observed}, math.MaxInt64, Fresh},
		{"fresh when asked about a time before it was observed", Reading{Recorded: Fresh, ObservedAt: observed, ExpiresAt: expires}, observed.Add(-time.Hour), Fresh},
		{"judged stale stays stale while it is young", Reading{Recorded: Stale, ObservedAt: observed, ExpiresAt: expires}, observed, Stale},
		{"invalid stays invalid before the expiry", Reading{Recorded: Invalid, ExpiresAt: expires}, observed, Invalid},
		{"invalid stays invalid after the expiry", Reading{Recorded: Invalid, ExpiresAt: expires}, expires, Invalid},
		{"missing does not become stale with age", Reading{Recorded: Missing, ExpiresAt: expires}, expires, Missing},
		{"support does not make a value", Reading{Support: Supported}, observed, Missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.reading.State(tc.now); got != tc.want {
				t.Errorf("State(%d) = %s, want %s", tc.now, got, tc.want)
			}
		})
	}
}

func TestAskingForTheStateDoesNotChangeTheReading(t *testing.T) {
	r := Reading{Recorded: Fresh, Value: 3, ExpiresAt: expires}
	if got := r.State(expires); got != Stale {
		t.Fatalf("State(expires) = %s, want stale", got)
	}
	if got := r.State(expires - 1); got != Fresh {
		t.Errorf("State before the expiry, asked after it, = %s, want fresh", got)
	}
}

func TestPossibleValuesOfNumberFields(t *testing.T) {
	for _, tc := range []struct {
		name  string
		field Field
		value float64
		want  bool
	}{
		{"an idle queue", QueueDepth, 0, true},
		{"negative zero is zero", QueueDepth, math.Copysign(0, -1), true},
		{"a long queue has no upper bound", QueueDepth, 1e12, true},
		{"a queue of -5", QueueDepth, -5, false},
		{"a queue that is not a number", QueueDepth, math.NaN(), false},
		{"the largest number that is believed", QueueDepth, 1e15, true},
		{"a number beyond all measure", QueueDepth, math.Nextafter(1e15, math.Inf(1)), false},
		{"a number beyond all measure, of power", Power, 1e16, false},
		{"an endless queue", QueueDepth, math.Inf(1), false},
		{"minus an endless queue", QueueDepth, math.Inf(-1), false},
		{"an empty cache", KVCacheUtilization, 0, true},
		{"a full cache", KVCacheUtilization, 1, true},
		{"a cache fuller than full", KVCacheUtilization, math.Nextafter(1, 2), false},
		{"a percentage where a ratio belongs", KVCacheUtilization, 83, false},
		{"a ratio below zero", GPUUtilization, -math.SmallestNonzeroFloat64, false},
		{"watts are not a ratio", Power, 700, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.field.Possible(tc.value); got != tc.want {
				t.Errorf("%s.Possible(%v) = %v, want %v", tc.field, tc.value, got, tc.want)
			}
		})
	}
}

func TestInstantsConvertBothWays(t *testing.T) {
	moment := time.Date(2025, 3, 4, 5, 6, 7, 890, time.FixedZone("east", 3600))
	i := At(moment)
	if got := i.Time(); !got.Equal(moment) || got.Location() != time.UTC {
		t.Errorf("At(%v).Time() = %v, want the same moment in UTC", moment, got)
	}
	if got := i.Add(1500 * time.Millisecond).Sub(i); got != 1500*time.Millisecond {
		t.Errorf("Sub undoes Add to %v, want 1.5s", got)
	}
	if At(time.Time{}) != 0 || !Instant(0).Time().IsZero() {
		t.Errorf("the zero time and the instant 0 are both never; got %d and %v", At(time.Time{}), Instant(0).Time())
	}
}
