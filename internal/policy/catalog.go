package policy

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Catalog knows the plugin types that this binary can run.
type Catalog interface {
	// Check says what a type is, and whether it takes the parameters, which are
	// a JSON object or nil. A type that the catalog does not know is an
	// *UnknownTypeError. For parameters that are refused it returns the class
	// and an error; a *ParameterError in it, or several joined, are reported
	// with their own lines. Check must be safe for concurrent use.
	Check(pluginType string, parameters json.RawMessage) (Class, error)
}

// Class is what a plugin does in a profile.
type Class uint8

const (
	// Filter removes candidates. Berth's own filters change nothing inside
	// Berth, where screening always runs.
	Filter Class = iota + 1
	// Scorer gives each candidate a number in [0,1].
	Scorer
	// Picker takes the pick from the scored candidates.
	Picker
	// OffProfile is everything that no scheduling profile may refer to: data
	// sources, producers, profile handlers.
	OffProfile
)

// String is the class as errors name it.
func (c Class) String() string {
	switch c {
	case Filter:
		return "filter"
	case Scorer:
		return "scorer"
	case Picker:
		return "picker"
	case OffProfile:
		return "plugin outside profiles"
	default:
		return fmt.Sprintf("class(%d)", uint8(c))
	}
}

// UnknownTypeError is the Catalog's answer to a type that it does not have.
type UnknownTypeError struct {
	Type string
	// Known are all types that may be used.
	Known []string
}

func (e *UnknownTypeError) Error() string {
	return fmt.Sprintf("unknown plugin type %q; known types: %s", e.Type, strings.Join(e.Known, ", "))
}

// ParameterError is one refused parameter.
type ParameterError struct {
	// Key is the path below parameters, as in "window" or "hosts[2].name".
	Key string
	// Allowed is what may stand there, as in "a whole number from 1 to 5", or
	// "unknown parameter" and which ones are known.
	Allowed string
}

func (e *ParameterError) Error() string { return "parameters." + e.Key + ": " + e.predicate() }

// predicate is Allowed in the form that Error.Allowed has.
func (e *ParameterError) predicate() string {
	if strings.HasPrefix(e.Allowed, "unknown ") {
		return "is an " + e.Allowed
	}
	return "must be " + e.Allowed
}

// defaultPicker is the picker of a profile that names none.
const defaultPicker = "berth-picker"

// stockHandler is a stock type that Berth has no use for: it runs one profile.
const stockHandler = "single-profile-handler"

// twin is Berth's plugin for a stock one.
type twin struct {
	runs string
	// drops are the stock type's parameters that the twin has no use for, with
	// what sets the same thing here.
	drops map[string]string
}

var twins = map[string]twin{
	"queue-scorer":                 {runs: "queue-depth"},
	"kv-cache-utilization-scorer":  {runs: "kv-cache-utilization"},
	"running-requests-size-scorer": {runs: "active-requests"},
	"max-score-picker": {runs: defaultPicker, drops: map[string]string{
		"maxNumOfEndpoints": "gateway.fallbacks says how many endpoints follow the pick",
	}},
}
