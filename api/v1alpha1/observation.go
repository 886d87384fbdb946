package v1alpha1

import (
	"encoding/json"
	"time"
)

// Support says whether a replica can give a field at all.
type Support string

const (
	// Supported: the engine's profile names a source and the replica shows it.
	Supported Support = "supported"
	// Unsupported: the engine has no source for this field.
	Unsupported Support = "unsupported"
	// Disabled: the engine has a source that is switched off on this replica.
	Disabled Support = "disabled"
	// SupportUnknown: nothing was read from this replica yet.
	SupportUnknown Support = "unknown"
)

// State says what a reading is worth at the time the document was made.
type State string

const (
	// Fresh: observed and not expired.
	Fresh State = "fresh"
	// Stale: observed once, expired since.
	Stale State = "stale"
	// Missing: not observed. Missing is not zero.
	Missing State = "missing"
	// Invalid: observed, and not a possible value of the field.
	Invalid State = "invalid"
)

// Provenance says what kind of evidence a value is.
type Provenance string

const (
	// Measured: the engine itself said so.
	Measured Provenance = "measured"
	// Modeled: computed from a model of the engine.
	Modeled Provenance = "modeled"
	// Inferred: concluded by the router from its own traffic or other replicas.
	Inferred Provenance = "inferred"
	// Declared: stated by configuration, labels or annotations.
	Declared Provenance = "declared"
)

// Observation is everything Berth knows of one replica: each field of the
// catalogue is present, with a value or the reason for its absence.
type Observation struct {
	Version string  `json:"version"`
	Kind    string  `json:"kind"`
	Replica Replica `json:"replica"`
	// Engine is the kind of engine ("vllm"), "unknown" until it is known. The
	// page decides, not what was declared.
	Engine string `json:"engine"`
	// Declared is the kind of engine that discovery states, where the page says
	// otherwise.
	Declared string `json:"declared,omitempty"`
	// Profile names the engine profile and the digest of its text.
	Profile string `json:"profile,omitempty"`
	// Order is "normal", or "last" for a replica that has not answered yet or
	// refused its last connection.
	Order string `json:"order"`
	// Excluded is why no request is sent to the replica: not_ready, terminating,
	// asleep_or_unhealthy by the engine's own word, or quarantined after several
	// requests failed there in a row. Empty if nothing excludes it.
	Excluded string `json:"excluded,omitempty"`
	// InFlight is the number of requests that this picker has there now.
	InFlight int32 `json:"inFlight"`
	// ScrapeError is the reason the last scrape failed; empty if it succeeded.
	ScrapeError string             `json:"scrapeError,omitempty"`
	Fields      map[string]Reading `json:"fields"`
}

// Replica identifies one endpoint of a pool.
type Replica struct {
	// Pool is namespace/name of the InferencePool or StaticPool.
	Pool string `json:"pool"`
	// Name is unique in the pool.
	Name string `json:"name"`
	// Pod is the pod's namespace/name. Of a static endpoint it is the pool's
	// namespace and the endpoint's name.
	Pod string `json:"pod,omitempty"`
	// UID is the pod's, empty for static endpoints.
	UID     string `json:"uid,omitempty"`
	Address string `json:"address"`
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Incarnation counts the engine processes seen behind this endpoint, from 1;
	// 0 before the first page.
	Incarnation int `json:"incarnation,omitempty"`
	// ProcessStart is when the engine's process started, if it says so.
	ProcessStart  *time.Time `json:"processStart,omitempty"`
	EngineVersion string     `json:"engineVersion,omitempty"`
}

// Reading is one field at one replica.
type Reading struct {
	Support Support `json:"support"`
	State   State   `json:"state"`
	// Value is a number, a boolean, a string, a list of names or a
	// Distribution, by field. It is absent unless the state is fresh or stale.
	Value any `json:"value,omitempty"`
	// Max is the hottest rank's value where Value is a mean over ranks.
	Max        *float64   `json:"max,omitempty"`
	Unit       string     `json:"unit,omitempty"`
	Provenance Provenance `json:"provenance,omitempty"`
	Source     *Source    `json:"source,omitempty"`
	ObservedAt *time.Time `json:"observedAt,omitempty"`
	// EngineTime is the time that the engine itself states for the value.
	EngineTime *time.Time `json:"engineTime,omitempty"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	// Quality is 0 to 1; below 1 Reasons say why.
	Quality float64  `json:"quality"`
	Reasons []string `json:"reasons"`
}

// UnmarshalJSON reads a document. A value that is an object becomes a
// Distribution, a list a list of strings.
func (r *Reading) UnmarshalJSON(data []byte) error {
	type reading Reading
	own := struct {
		*reading
		Value json.RawMessage `json:"value"`
	}{reading: (*reading)(r)}
	if err := json.Unmarshal(data, &own); err != nil {
		return err
	}
	r.Value = nil
	if len(own.Value) == 0 {
		return nil
	}
	switch own.Value[0] {
	case '{':
		var d Distribution
		if err := json.Unmarshal(own.Value, &d); err != nil {
			return err
		}
		r.Value = d
	case '[':
		var names []string
		if err := json.Unmarshal(own.Value, &names); err != nil {
			return err
		}
		r.Value = names
	default:
		return json.Unmarshal(own.Value, &r.Value)
	}
	return nil
}

// Source says where a value was read.
type Source struct {
	// Path is the page, as the engine serves it.
	Path string `json:"path,omitempty"`
	// Metric is the family or JSON member.
	Metric string `json:"metric,omitempty"`
	// Rule says how several series became one value.
	Rule string `json:"rule,omitempty"`
}

// Distribution summarises a quantity over a window, in the field's unit. The
// quantiles are absent where the engine tells no more than sum and count.
type Distribution struct {
	Mean  float64  `json:"mean"`
	P50   *float64 `json:"p50,omitempty"`
	P90   *float64 `json:"p90,omitempty"`
	P99   *float64 `json:"p99,omitempty"`
	Count uint64   `json:"count"`
}
