package v1alpha1

import "time"

// RoutingIntent is what a semantic router demands of the replica that serves a
// request: which model, and what must hold of the replica. What is hard is never
// relaxed; what is a hint orders the replicas that are left.
//
// A router in Go builds the value and calls EncodeIntent; DecodeIntent is the
// strict reader on the other side.
type RoutingIntent struct {
	// Version is "berth.dev/v1alpha1". Required.
	Version string `json:"version"`
	// IntentID correlates with the router's own decision, 1 to 253 bytes.
	IntentID string `json:"intentID,omitempty"`
	// Issuer names who made the intent, 1 to 253 bytes.
	Issuer string `json:"issuer,omitempty"`
	// Audience names the pickers that it is meant for, 1 to 16 names of 1 to 253
	// bytes. A picker that has a name of its own refuses an intent that names others
	// only. A signed intent must have it.
	Audience []string `json:"audience,omitempty"`
	// IssuedAt and ExpiresAt bound the time in which the intent may be used. A signed
	// intent must have both.
	IssuedAt  time.Time `json:"issuedAt,omitzero"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// LogicalModel is the router's choice, 1 to 512 bytes: an alias of the picker's
	// configuration, or else the name of a served model.
	LogicalModel string `json:"logicalModel,omitempty"`
	// ServedModels are the names by which a replica may serve it, adapters among
	// them, at most 64 of 1 to 512 bytes. Left out, LogicalModel tells.
	ServedModels []string `json:"servedModels,omitempty"`
	// Requirements must all be met by a replica; their order means nothing. At most
	// 64.
	Requirements []Requirement `json:"requirements,omitempty"`
	// Context is what must fit the replica's context limit.
	Context *ContextNeed `json:"context,omitempty"`

	// What follows are hints.

	SLO *SLO `json:"slo,omitempty"`
	// Priority below 0 marks a request that may be shed first. Default 0.
	Priority int32 `json:"priority,omitempty"`
	// SessionKey is equal for requests that gain by the same replica, 1 to 512 bytes.
	SessionKey string  `json:"sessionKey,omitempty"`
	Demand     *Demand `json:"demand,omitempty"`
	// Energy is neutral, the default, or preferLow.
	Energy EnergyPreference `json:"energy,omitempty"`
}

// Requirement is one hard constraint on an attribute of replicas.
type Requirement struct {
	// Class is why: it decides the status of a refusal.
	Class RequirementClass `json:"class"`
	// Key names the attribute, 1 to 317 bytes: a label's or annotation's key, or one
	// of the Attribute constants.
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	// Values are 1 to 256 texts with In and NotIn, one whole number as a text with Gt
	// and Lt, none with Exists and DoesNotExist. Blanks around a text do not count;
	// nothing may be left empty. At most 512 bytes each.
	Values []string `json:"values,omitempty"`
}

// RequirementClass is why a requirement is made.
type RequirementClass string

// The classes. A request that no replica can be found for by the first three is
// refused with 403, by the others with 422.
const (
	Authorization RequirementClass = "authorization"
	Safety        RequirementClass = "safety"
	Residency     RequirementClass = "residency"
	Capability    RequirementClass = "capability"
	Placement     RequirementClass = "placement"
)

// Operator compares the values of a requirement with an attribute, which is a set
// of texts. A replica without the attribute meets DoesNotExist and nothing else: in
// Kubernetes NotIn lets it pass, here it does not. An attribute that two sources
// tell differently meets nothing.
type Operator string

const (
	// In: the attribute has one of the values.
	In Operator = "In"
	// NotIn: there is the attribute, and it has none of the values.
	NotIn Operator = "NotIn"
	// Exists: there is the attribute, and it is not empty.
	Exists Operator = "Exists"
	// DoesNotExist: there is no such attribute.
	DoesNotExist Operator = "DoesNotExist"
	// Gt and Lt: the attribute is one whole number, above or below the value.
	Gt Operator = "Gt"
	Lt Operator = "Lt"
)

// ContextNeed is how many tokens must fit a replica's context limit together. Each
// is 0 to 2^53-1.
type ContextNeed struct {
	InputTokens  int64 `json:"inputTokens,omitempty"`
	OutputTokens int64 `json:"outputTokens,omitempty"`
}

// SLO is the latency that the client expects, in seconds, above 0; 0 is no
// expectation.
type SLO struct {
	// TTFT is the time to first token.
	TTFT float64 `json:"ttft,omitempty"`
	// TPOT is the time per output token after it.
	TPOT float64 `json:"tpot,omitempty"`
}

// Demand is what the request is expected to take, in tokens, each 0 to 2^53-1; 0
// is no expectation.
type Demand struct {
	InputTokens  int64 `json:"inputTokens,omitempty"`
	OutputTokens int64 `json:"outputTokens,omitempty"`
}

// EnergyPreference says whether a replica that takes less energy is preferred.
type EnergyPreference string

const (
	EnergyNeutral   EnergyPreference = "neutral"
	EnergyPreferLow EnergyPreference = "preferLow"
)

// Attributes of replicas that are known without a label or annotation of that key.
// One that is there must say the same. All other labels and annotations are
// attributes by their own keys.
const (
	// AttributePool is the pool's namespace/name, AttributeReplica the endpoint's
	// name.
	AttributePool    = "berth.dev/pool"
	AttributeReplica = "berth.dev/replica"
	AttributeNode    = "berth.dev/node"
	AttributeZone    = "berth.dev/zone"
	// AttributeEngine is the name of the engine's profile, declared or detected.
	AttributeEngine = "berth.dev/engine"
	// What the engine itself says, and what is declared of it.
	AttributeEngineVersion = "berth.dev/engine-version"
	AttributeServedModels  = "berth.dev/served-models"
	AttributeContextLimit  = "berth.dev/context-limit"
)

// Attributes that are declared by an annotation (lists, with commas) or, where one
// value is enough, a label.
const (
	AttributeTenants      = "berth.dev/tenants"
	AttributeSafety       = "berth.dev/safety"
	AttributeResidency    = "berth.dev/residency"
	AttributeCapabilities = "berth.dev/capabilities"
	AttributeRevision     = "berth.dev/revision"
	AttributeTier         = "berth.dev/tier"
)
