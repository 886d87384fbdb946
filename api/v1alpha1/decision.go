package v1alpha1

import "time"

// Decision is the record of one request: what it demanded, what became of every
// candidate, what was recommended, what the gateway acted on, and how it ended.
// Acknowledgement.Acted and Outcome are absent while the request runs.
type Decision struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// ID is a UUIDv7 made by the picker.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Pool string    `json:"pool"`
	// Path is "native", or "gie" when GIE's scheduler ran.
	Path    string       `json:"path"`
	Intent  IntentFacts  `json:"intent"`
	Request RequestFacts `json:"request"`
	// Key is the request key in hexadecimal: the hash that ties break by.
	Key string `json:"key"`
	// Rung is full, partial, local, spread or refuse.
	Rung string `json:"rung"`
	// Telemetry is none where the policy reads no engine; absent where it does. Nothing
	// is read then, and FieldEvidence has no reason for that.
	Telemetry string `json:"telemetry,omitempty"`
	// Fields says what became of each load field that the policy weights.
	Fields []FieldUse `json:"fields,omitempty"`
	// Scorers are those that ran, in the order of Candidate.Scores.
	Scorers []ScorerUse `json:"scorers,omitempty"`
	// Members is the size of the pool, Screened how many of them were left.
	Members  int `json:"members"`
	Screened int `json:"screened"`
	// ScreenedOut counts the excluded members by class.
	ScreenedOut map[string]int `json:"screenedOut,omitempty"`
	Candidates  []Candidate    `json:"candidates"`
	// Pick and Fallbacks are replica names, in the order they were offered.
	Pick      string   `json:"pick,omitempty"`
	Fallbacks []string `json:"fallbacks,omitempty"`
	Refusal   *Refusal `json:"refusal,omitempty"`
	// Replayable is false when the record does not hold every input; NotReplayable
	// says which is missing.
	Replayable      bool            `json:"replayable"`
	NotReplayable   string          `json:"notReplayable,omitempty"`
	Acknowledgement Acknowledgement `json:"acknowledgement"`
	Outcome         *Outcome        `json:"outcome,omitempty"`
	Versions        Versions        `json:"versions"`
}

// IntentFacts says what was demanded of the replica, and by whom.
type IntentFacts struct {
	// Source is the channel that the routing intent came by: metadata, signed,
	// headers, or none when the request alone was asked.
	Source string `json:"source"`
	// IntentID and Issuer are the router's own words; KeyID names the key that a
	// signed intent was verified with.
	IntentID string `json:"intentID,omitempty"`
	Issuer   string `json:"issuer,omitempty"`
	KeyID    string `json:"keyID,omitempty"`
	// Outranked are the channels, of signed and headers, that brought something too
	// and were not read, since Source is trusted more.
	Outranked []string `json:"outranked,omitempty"`
	// Untrusted is what came by a channel that is switched off, and was not read:
	// berth.dev for metadata, x-berth-intent, or the names of plain headers.
	Untrusted []string `json:"untrusted,omitempty"`
	// LogicalModel is the router's choice, Models the names by which a replica may
	// serve it.
	LogicalModel string   `json:"logicalModel,omitempty"`
	Models       []string `json:"models,omitempty"`
	// Requirements are in the order of the intent.
	Requirements []Requirement `json:"requirements,omitempty"`
	// ContextTokens is how many tokens must fit a replica's context limit.
	ContextTokens int64 `json:"contextTokens,omitempty"`
	Priority      int32 `json:"priority,omitempty"`
	// Ignored are keys of the intent that this version does not know.
	Ignored []string `json:"ignored,omitempty"`
	// Model is the served id that the body names; empty if it names none.
	Model string `json:"model,omitempty"`
	// Subset is the number of addresses in the gateway's subset; absent when it
	// stated none.
	Subset *int `json:"subset,omitempty"`
}

// RequestFacts are sizes and shapes. There is no content.
type RequestFacts struct {
	// RequestID is the client's x-request-id, for correlation only.
	RequestID string `json:"requestID,omitempty"`
	API       string `json:"api"`
	Stream    bool   `json:"stream,omitempty"`
	// MaxTokens is the limit that the request states; 0 if it states none.
	MaxTokens   int64 `json:"maxTokens,omitempty"`
	BodyBytes   int   `json:"bodyBytes"`
	PromptBytes int   `json:"promptBytes,omitempty"`
	// Unread is why the body was not read; empty if it was.
	Unread string `json:"unread,omitempty"`
}

// FieldUse says what became of one field in the decision.
type FieldUse struct {
	Field string `json:"field"`
	// Use is full, partial or dropped.
	Use string `json:"use"`
}

// ScorerUse is one scorer that ran.
type ScorerUse struct {
	Scorer string  `json:"scorer"`
	Weight float64 `json:"weight"`
}

// Candidate is one member of the pool and its fate.
type Candidate struct {
	Replica string `json:"replica"`
	Address string `json:"address"`
	// RemovedBy is the screening class that excluded the member; empty for
	// members that were placed. The members below are absent when it is set.
	RemovedBy string `json:"removedBy,omitempty"`
	// Rule is the index in Intent.Requirements of the one that the member does not
	// meet, of several of the class the first by key, operator and values; Attribute is
	// what the member has, absent where that has changed since it was excluded.
	Rule      *int            `json:"rule,omitempty"`
	Attribute *AttributeFacts `json:"attribute,omitempty"`
	// ContextLimit is the member's where that excluded it; absent if nobody has
	// stated one.
	ContextLimit *int64 `json:"contextLimit,omitempty"`
	// Quarantined is true for a member that was placed although it is in quarantine,
	// since too many were.
	Quarantined bool `json:"quarantined,omitempty"`
	// Rank is 1 for the pick, 2 and up for fallbacks, 0 for the others.
	Rank int `json:"rank,omitempty"`
	// Last is true for a member ordered after the others: it has not answered
	// yet, or refused its last connection.
	Last     bool  `json:"last,omitempty"`
	InFlight int32 `json:"inFlight"`
	Pending  int32 `json:"pending"`
	// Latency is the observed time to first byte in seconds; absent if none was
	// observed lately.
	Latency *float64 `json:"latency,omitempty"`
	// Readings are in the order of Decision.Fields.
	Readings []FieldEvidence `json:"readings,omitempty"`
	// Scores are in the order of Decision.Scorers; null is "no evidence".
	Scores []*float64 `json:"scores,omitempty"`
	// Total is what the members were ordered by.
	Total float64 `json:"total"`
}

// AttributeFacts is an attribute of a replica.
type AttributeFacts struct {
	// State is absent, present, contradicted (two sources state it differently), or
	// unknown: the member's engine may state it and has not been asked yet.
	State string `json:"state"`
	// Items are the first 16 of the set, sorted; absent unless the state is present.
	Items []string `json:"items,omitempty"`
	// More is how many items there are beyond them.
	More int `json:"more,omitempty"`
}

// FieldEvidence is what was known of a field at a candidate. Value is measured:
// the engine said it. Estimate is inferred: the picker concluded it.
type FieldEvidence struct {
	State string `json:"state"`
	// Support says of a missing field whether the member can give it at all:
	// supported, unsupported or disabled. Absent where that is not known, and of
	// other states.
	Support string `json:"support,omitempty"`
	// Value is what was read; absent unless the state is fresh or stale.
	Value *float64 `json:"value,omitempty"`
	// AgeMillis is how old the reading was.
	AgeMillis *int64 `json:"ageMillis,omitempty"`
	// Estimate is what scorers read instead of Value: with this picker's own
	// picks added, or imputed. Absent if they read Value itself, or the field was
	// dropped.
	Estimate *float64 `json:"estimate,omitempty"`
	// Reason is why the field was not fresh, or, of a fresh one, why its quality was
	// below 1: one of the reading's own reasons, "expired", or why the last scrape
	// failed (as in Observation.ScrapeError), at most 256 bytes. Absent if the field
	// was fresh and nothing speaks against it.
	Reason string `json:"reason,omitempty"`
}

// Refusal is an answer of the picker's own.
type Refusal struct {
	Status  int    `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Detail is what operators are told beyond that; absent if there is no more.
	Detail string `json:"detail,omitempty"`
}

// Acknowledgement says what was recommended and what was acted on.
type Acknowledgement struct {
	RecommendedAt *time.Time `json:"recommendedAt,omitempty"`
	// Acted is confirmed (the pick served), overridden (another screened
	// replica did), violated (one outside the screened set did), unreported (the
	// gateway did not say), or empty while the request runs.
	Acted   string     `json:"acted,omitempty"`
	ActedAt *time.Time `json:"actedAt,omitempty"`
	// Served is the replica that answered; ServedAddress is given when it is no
	// member of the pool.
	Served        string `json:"served,omitempty"`
	ServedAddress string `json:"servedAddress,omitempty"`
	// Attempts counts the gateway's attempts, retries included; 0 if it did not
	// say.
	Attempts int `json:"attempts,omitempty"`
}

// Outcome is how a request ended. Durations are seconds.
type Outcome struct {
	EndedAt time.Time `json:"endedAt"`
	// Status is the HTTP status of the response; 0 if none began.
	Status int `json:"status,omitempty"`
	// Cause is complete, client_disconnect, upstream_error, engine_abort,
	// gateway_timeout, aborted (in mid-response, by client or replica), unseen (the
	// gateway does not show it), refused (after it was placed), served_outside,
	// shutdown or internal. An error event inside a response with status 200 is an
	// upstream_error.
	Cause string `json:"cause"`
	// Seen is how far the gateway showed the response: whole (headers and end), end
	// (headers, and the stream's end for its own, which does not say why), headers
	// (the request's unit came back then, or the response broke off), nothing.
	Seen string `json:"seen"`
	// ErrorCode is the code of an error inside the response; absent without one.
	ErrorCode int `json:"errorCode,omitempty"`
	// Details is the gateway's own word for a response that it made itself, or the
	// token of the picker's refusal that replaced what was due.
	Details string `json:"details,omitempty"`
	// TTFT is the time from the end of the request to the first byte of the
	// response body; absent if there was none or it was not seen.
	TTFT          *float64 `json:"ttft,omitempty"`
	Duration      float64  `json:"duration"`
	RequestBytes  int64    `json:"requestBytes"`
	ResponseBytes *int64   `json:"responseBytes,omitempty"`
	// InputTokens, OutputTokens and CachedTokens are what the response stated as
	// usage; absent where it stated none or was not read.
	InputTokens  *int64 `json:"inputTokens,omitempty"`
	OutputTokens *int64 `json:"outputTokens,omitempty"`
	CachedTokens *int64 `json:"cachedTokens,omitempty"`
}

// Versions say by what the decision was made.
type Versions struct {
	Schema string `json:"schema"`
	Policy string `json:"policy"`
	Build  string `json:"build"`
	// Profiles are the engine profiles of the candidates.
	Profiles []string `json:"profiles,omitempty"`
}
