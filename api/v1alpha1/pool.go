package v1alpha1

import "time"

// PoolReport is what a picker knows of its pool as a whole.
type PoolReport struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// Pool is namespace/name.
	Pool string    `json:"pool"`
	Time time.Time `json:"time"`
	// Members is the size of the pool; Ready how many of them requests may be sent to
	// at all.
	Members int `json:"members"`
	Ready   int `json:"ready"`
	// Constraints are the values that requirements of requests stated lately, at most
	// 1024, in the order of classes, keys, operators and values.
	Constraints []ConstraintCoverage `json:"constraints"`
	Conditions  []Condition          `json:"conditions"`
}

// ConstraintCoverage is how many members meet one value of a requirement.
type ConstraintCoverage struct {
	Class    RequirementClass `json:"class"`
	Key      string           `json:"key"`
	Operator Operator         `json:"operator"`
	// Value is absent with Exists and DoesNotExist.
	Value string `json:"value,omitempty"`
	// AskedAt is when a request last stated it, to the second.
	AskedAt time.Time `json:"askedAt"`
	// Replicas is how many members meet it now.
	Replicas int `json:"replicas"`
}

// Condition is one thing that may be amiss with a pool.
type Condition struct {
	// Type is ConstraintUncovered: no member meets a value that a requirement stated
	// within the last hour.
	Type string `json:"type"`
	// Status is "True" where it is amiss, and "False".
	Status string `json:"status"`
	// Reason is one word for why.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Since is when the status was first seen. It is looked at when a report or the
	// metrics are asked for.
	Since time.Time `json:"since"`
}

// ConditionConstraintUncovered is a Condition.Type.
const ConditionConstraintUncovered = "ConstraintUncovered"
