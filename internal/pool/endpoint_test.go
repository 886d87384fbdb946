package pool

import (
	"testing"

	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	now     telemetry.Instant = 100e9
	expires telemetry.Instant = 110e9
)

// endpointWith is an endpoint whose newest page says r of field f.
func endpointWith(s Spec, f telemetry.Field, r telemetry.Reading) *Endpoint {
	e := newEndpoint("", s, newLive(false, &shared{}))
	page := &telemetry.Snapshot{}
	page.Readings[f] = r
	e.Publish(page, e.BeginScrape())
	return e
}

func TestServingAModel(t *testing.T) {
	names := func(recorded telemetry.State, names ...string) *telemetry.Reading {
		return &telemetry.Reading{Recorded: recorded, ExpiresAt: expires, Detail: &telemetry.Detail{Names: names}}
	}
	for _, tc := range []struct {
		name     string
		declared []string
		stated   *telemetry.Reading // nil: never scraped
		model    string
		want     Serving
	}{
		{"nothing declared, never scraped", nil, nil, "m", ServingUnknown},
		{"nothing declared, the page is silent", nil, &telemetry.Reading{}, "m", ServingUnknown},
		{"nothing declared, the list made no sense", nil, names(telemetry.Invalid, "m"), "m", ServingUnknown},
		{"nothing declared, a list without detail", nil, &telemetry.Reading{Recorded: telemetry.Fresh}, "m", ServingUnknown},
		{"declared", []string{"other", "m"}, nil, "m", Serves},
		{"declared without it", []string{"other"}, nil, "m", ServesOthers},
		{"declared to serve nothing", []string{}, nil, "m", ServesOthers},
		{"declared, the page is silent", []string{"m"}, &telemetry.Reading{}, "m", Serves},
		{"declared, the list made no sense", []string{"m"}, names(telemetry.Invalid, "other"), "m", Serves},
		{"stated", nil, names(telemetry.Fresh, "base", "m"), "m", Serves},
		{"stated without it", nil, names(telemetry.Fresh, "base"), "m", ServesOthers},
		{"stated to serve nothing", nil, names(telemetry.Fresh), "m", ServesOthers},
		{"the engine denies what was declared", []string{"m"}, names(telemetry.Fresh, "other"), "m", ServesOthers},
		{"the engine serves more than it may", []string{"other"}, names(telemetry.Fresh, "m", "other"), "m", ServesOthers},
		{"declared and stated", []string{"m", "x"}, names(telemetry.Fresh, "m", "y"), "m", Serves},
		{"an old statement counts", nil, names(telemetry.Stale, "m"), "m", Serves},
		{"an old denial counts", []string{"m"}, names(telemetry.Stale, "other"), "m", ServesOthers},
		{"names are exact", []string{"org/m"}, nil, "m", ServesOthers},
		{"names keep their case", []string{"M"}, nil, "m", ServesOthers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEndpoint("", Spec{Name: "a", ServedModels: tc.declared}, newLive(false, &shared{}))
			if tc.stated != nil {
				e = endpointWith(e.Spec, telemetry.ServedModels, *tc.stated)
			}
			if got := e.Serving(tc.model); got != tc.want {
				t.Errorf("Serving(%q) = %d, want %d", tc.model, got, tc.want)
			}
		})
	}
}

func TestAFreshWordOfSleepOrIllHealthExcludes(t *testing.T) {
	const yes, no = 1, 0
	for _, tc := range []struct {
		name      string
		value     float64
		recorded  telemetry.State
		at        telemetry.Instant
		asleep    bool // when the word is about sleeping
		unhealthy bool // when the word is about health
	}{
		{"a fresh yes", yes, telemetry.Fresh, now, true, false},
		{"a fresh no", no, telemetry.Fresh, now, false, true},
		{"a yes that has expired", yes, telemetry.Fresh, expires, false, false},
		{"a no that has expired", no, telemetry.Fresh, expires, false, false},
		{"a yes a moment before it expires", yes, telemetry.Fresh, expires - 1, true, false},
		{"a no a moment before it expires", no, telemetry.Fresh, expires - 1, false, true},
		{"a yes judged stale", yes, telemetry.Stale, now, false, false},
		{"a no judged stale", no, telemetry.Stale, now, false, false},
		{"an invalid yes", yes, telemetry.Invalid, now, false, false},
		{"an invalid no", no, telemetry.Invalid, now, false, false},
		{"no word", no, telemetry.Missing, now, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := telemetry.Reading{Value: tc.value, Recorded: tc.recorded, ExpiresAt: expires}
			if got := endpointWith(Spec{}, telemetry.Sleeping, r).Excluded(tc.at); got != tc.asleep {
				t.Errorf("sleeping: Excluded = %v, want %v", got, tc.asleep)
			}
			if got := endpointWith(Spec{}, telemetry.Ready, r).Excluded(tc.at); got != tc.unhealthy {
				t.Errorf("ready: Excluded = %v, want %v", got, tc.unhealthy)
			}
			if got := endpointWith(Spec{}, telemetry.Health, r).Excluded(tc.at); got != tc.unhealthy {
				t.Errorf("health: Excluded = %v, want %v", got, tc.unhealthy)
			}
		})
	}
}

func TestAnEndpointThatWasNeverScrapedIsNotExcluded(t *testing.T) {
	e := newEndpoint("", Spec{}, newLive(false, &shared{}))
	if e.Excluded(now) {
		t.Error("excluded; unknown is neither asleep nor unhealthy")
	}
}
