package telemetry

import (
	"math"
	"time"
)

// Instant is nanoseconds since the Unix epoch; 0 is "never".
type Instant int64

// At converts a time.
func At(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return Instant(t.UnixNano())
}

// Time converts back; the zero time for "never".
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}

// Add moves an instant by d.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub is the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Clock tells the time. Packages take one instead of calling time.Now.
type Clock func() Instant

// Support says whether a replica can give a field at all.
type Support uint8

// The zero value is SupportUnknown: nothing was read yet.
const (
	SupportUnknown Support = iota
	Supported
	Unsupported
	Disabled
)

func (s Support) String() string {
	return [...]string{"unknown", "supported", "unsupported", "disabled"}[s]
}

// State says what a reading is worth.
type State uint8

// The zero value is Missing: an empty reading is not an idle replica.
const (
	Missing State = iota
	Fresh
	Stale
	Invalid
)

func (s State) String() string {
	return [...]string{"missing", "fresh", "stale", "invalid"}[s]
}

// Provenance says what kind of evidence a value is.
type Provenance uint8

// The zero value stands for a reading without a value.
const (
	NoProvenance Provenance = iota
	Measured
	Modeled
	Inferred
	Declared
)

func (p Provenance) String() string {
	return [...]string{"", "measured", "modeled", "inferred", "declared"}[p]
}

// Reading is one field at one replica. The zero value is a field that was
// never read.
type Reading struct {
	// Value is the number, 0 or 1 for a Bool, seconds since the epoch for a
	// Time. It means nothing unless the state is Fresh or Stale.
	Value float64
	// ObservedAt is when the page that carried the value was asked for.
	ObservedAt Instant
	// ExpiresAt is when the reading turns from Fresh to Stale; 0 is never.
	ExpiresAt Instant
	// Quality is 0 to 1; below 1, Detail.Reasons say why.
	Quality float32
	Support Support
	// Recorded is the state at ObservedAt: Missing, Fresh, Stale (judged so by
	// evidence other than age) or Invalid. Ask State for the state at a time.
	Recorded   State
	Provenance Provenance
	// Detail is what few readers need; nil when there is nothing to say.
	Detail *Detail
}

// Detail is the part of a reading that placement does not look at.
type Detail struct {
	// Max is the hottest rank's value; nil where it does not apply.
	Max          *float64
	EngineTime   Instant
	Names        []string
	Text         string
	Distribution *Distribution
	Source       *Source
	Reasons      []string
	// Unread: nobody could answer yet. The page that would tell was not read, or
	// not since the engine's process was started anew. It may tell later.
	Unread bool
}

// NotRead is the reason of a reading that no page was read for, and the beginning of
// the reason of one whose page fails.
const NotRead = "not read"

// Unread reports that nobody could answer yet: no page was read that could have told.
// A page that was read and lacks the field is an answer.
func (r *Reading) Unread() bool {
	return r.Recorded == Missing && (r.Detail == nil || r.Detail.Unread)
}

// Source says where a value was read.
type Source struct{ Path, Metric, Rule string }

// Distribution summarises a quantity over a window, in the field's unit. The
// quantiles are NaN where the engine tells no more than sum and count.
type Distribution struct {
	Mean, P50, P90, P99 float64
	Count               uint64
}

// State is the reading's state at the given time.
func (r *Reading) State(now Instant) State {
	if r.Recorded == Fresh && r.ExpiresAt != 0 && now >= r.ExpiresAt {
		return Stale
	}
	return r.Recorded
}

// MaxNumber is beyond every quantity of the catalogue in its unit. What is read
// above it is a fault of the page, and sums of what is below stay exact enough.
const MaxNumber = 1e15

// Possible reports whether v can be a value of a Number field: not negative, not
// beyond all measure, and within the field's range.
func (f Field) Possible(v float64) bool {
	if math.IsNaN(v) || v < 0 || v > MaxNumber {
		return false
	}
	upper := catalogue[f].upper
	return upper == 0 || v <= upper
}

// Snapshot is everything read from one replica, as one immutable value.
type Snapshot struct {
	Readings [NumFields]Reading
	// Engine is the kind of engine, "unknown" if the page did not say.
	Engine string
	// Profile is the profile's name and the digest of its text.
	Profile string
	// Declared is the kind of engine that was declared, where the page says
	// otherwise; empty where it does not.
	Declared string
	// Incarnation counts the engine processes seen behind the endpoint, from 1.
	Incarnation uint32
	// ScrapedAt is when the newest page was asked for.
	ScrapedAt Instant
}
