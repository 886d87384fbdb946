package intent

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
)

// The flat keys, with requirementPrefix + CLASS + "." + KEY.
const (
	flatLogicalModel        = "logicalModel"
	flatServedModels        = "servedModels"
	flatPriority            = "priority"
	flatSessionKey          = "sessionKey"
	flatContextInputTokens  = "contextInputTokens"
	flatContextOutputTokens = "contextOutputTokens"
	requirementPrefix       = "requirement."
)

const (
	// maxExact is the last whole number that a float64, and so a number in the
	// proxy's metadata, tells from its neighbours.
	maxExact = 1<<53 - 1
	// maxModels, maxValues and maxRequirements are the bounds of v1alpha1.
	maxModels       = 64
	maxValues       = 256
	maxRequirements = 64
	// maxFlat is every flat key at once.
	maxFlat = 6 + maxRequirements
)

// FlatKey reports what is wrong with the name of a flat key, nil if an intent can
// be stated by it. The error says what is allowed, as the rest of a sentence about
// the name.
func FlatKey(name string) error {
	f := flat{key: name, value: "x"}
	switch name {
	case flatPriority, flatContextInputTokens, flatContextOutputTokens:
		f.value = "0"
	}
	routing := &v1alpha1.RoutingIntent{Version: v1alpha1.Version}
	if err := f.state(routing); err != nil {
		return err
	}
	err := routing.Validate()
	if wrong, ok := errors.AsType[*v1alpha1.IntentError](err); ok {
		return errors.New(wrong.Problem)
	}
	return err
}

// flat is one flat key of an intent.
type flat struct {
	// name is what errors call it by: the key itself, or the header.
	name  string
	key   string
	value any
	// requirement is the index of what was stated among the intent's requirements, if
	// it is one.
	requirement int
}

// path is where the intent has what was stated.
func (f *flat) path() string {
	switch f.key {
	case flatLogicalModel, flatServedModels, flatSessionKey, flatPriority:
		return f.key
	case flatContextInputTokens:
		return "context.inputTokens"
	case flatContextOutputTokens:
		return "context.outputTokens"
	default:
		return "requirements[" + strconv.Itoa(f.requirement) + "]"
	}
}

// fromFlat makes the intent that the keys state, none of them twice.
func fromFlat(channel string, keys []flat) (*v1alpha1.RoutingIntent, error) {
	if len(keys) > maxFlat {
		return nil, malformed(channel, fmt.Sprintf("%d keys: must be at most %d", len(keys), maxFlat))
	}
	routing := &v1alpha1.RoutingIntent{Version: v1alpha1.Version}
	requirements := 0
	for i := range keys {
		if strings.HasPrefix(keys[i].key, requirementPrefix) {
			requirements++
		}
	}
	if requirements > 0 {
		routing.Requirements = make([]v1alpha1.Requirement, 0, requirements)
	}
	for i := range keys {
		if err := keys[i].state(routing); err != nil {
			return nil, malformed(channel, printable(keys[i].name)+": "+err.Error())
		}
	}
	err := routing.Validate()
	if err == nil {
		return routing, nil
	}
	if wrong, ok := errors.AsType[*v1alpha1.IntentError](err); ok {
		// Who wrote flat keys does not know the paths of the intent made of them.
		for _, k := range keys {
			if rest, ok := strings.CutPrefix(wrong.Field, k.path()); ok {
				part := printable(k.name) + ": "
				if rest = strings.TrimPrefix(rest, "."); rest != "" {
					part += rest + ": "
				}
				return nil, malformed(channel, part+wrong.Problem)
			}
		}
	}
	return nil, decoding(channel, err)
}

// state adds to an intent what the key states.
func (f *flat) state(routing *v1alpha1.RoutingIntent) (err error) {
	switch f.key {
	case flatLogicalModel:
		routing.LogicalModel, err = flatText(f.value)
	case flatServedModels:
		routing.ServedModels, err = flatList(f.value, maxModels)
	case flatSessionKey:
		routing.SessionKey, err = flatText(f.value)
	case flatPriority:
		var n int64
		n, err = flatNumber(f.value, math.MinInt32, math.MaxInt32)
		routing.Priority = int32(n)
	case flatContextInputTokens:
		contextOf(routing).InputTokens, err = flatNumber(f.value, 0, maxExact)
	case flatContextOutputTokens:
		contextOf(routing).OutputTokens, err = flatNumber(f.value, 0, maxExact)
	default:
		class, key, ok := requirementOf(f.key)
		if !ok {
			return errors.New("must be logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens" +
				" or requirement.CLASS.KEY with a class of requirements")
		}
		f.requirement = len(routing.Requirements)
		var values []string
		values, err = flatList(f.value, maxValues)
		routing.Requirements = append(routing.Requirements,
			v1alpha1.Requirement{Class: class, Key: key, Operator: v1alpha1.In, Values: values})
	}
	return err
}

// requirementOf splits requirement.CLASS.KEY; false if it is none of a known class.
// A class has no dot, most keys have some.
func requirementOf(name string) (class v1alpha1.RequirementClass, key string, ok bool) {
	rest, ok := strings.CutPrefix(name, requirementPrefix)
	if !ok {
		return "", "", false
	}
	before, key, ok := strings.Cut(rest, ".")
	if !ok || key == "" {
		return "", "", false
	}
	switch class := v1alpha1.RequirementClass(before); class {
	case v1alpha1.Authorization, v1alpha1.Safety, v1alpha1.Residency, v1alpha1.Capability, v1alpha1.Placement:
		return class, key, true
	}
	return "", "", false
}

// isFlatKey tells a flat key, whatever its value, from a name that is unknown.
func isFlatKey(name string) bool {
	switch name {
	case flatLogicalModel, flatServedModels, flatPriority, flatSessionKey, flatContextInputTokens, flatContextOutputTokens:
		return true
	}
	_, _, ok := requirementOf(name)
	return ok
}

func contextOf(routing *v1alpha1.RoutingIntent) *v1alpha1.ContextNeed {
	if routing.Context == nil {
		routing.Context = new(v1alpha1.ContextNeed)
	}
	return routing.Context
}

// flatText is a value as a text that is not empty.
func flatText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		if v = attribute.Trim(v); v != "" {
			return v, nil
		}
		return "", errors.New("must not be empty")
	case float64:
		return exact(v)
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			f = math.NaN()
		}
		return exact(f)
	}
	return "", errors.New("must be a string or a number")
}

// exact is the decimal text of a number that nothing was lost of.
func exact(f float64) (string, error) {
	// What is not a number is equal to nothing.
	if f != math.Trunc(f) || math.Abs(f) > maxExact {
		return "", errors.New("must be a whole number, -(2^53-1) to 2^53-1, or else a string")
	}
	return strconv.FormatInt(int64(f), 10), nil
}

// flatList is a value as the items of a comma-separated list, 1 to most.
func flatList(value any, most int) ([]string, error) {
	text, err := flatText(value)
	if err != nil {
		return nil, err
	}
	items := make([]string, 0, min(1+strings.Count(text, ","), most))
	for item := range strings.SplitSeq(text, ",") {
		if item = attribute.Trim(item); item == "" {
			continue
		}
		if len(items) == most {
			return nil, fmt.Errorf("must have at most %d items", most)
		}
		items = append(items, item)
	}
	if len(items) == 0 {
		return nil, errors.New("must have an item that is not empty")
	}
	return items, nil
}

// flatNumber is a value as a whole number in bounds.
func flatNumber(value any, least, most int64) (int64, error) {
	text, err := flatText(value)
	if err == nil && !strings.HasPrefix(text, "+") {
		n, err := strconv.ParseInt(text, 10, 64)
		if err == nil && n >= least && n <= most {
			return n, nil
		}
	}
	return 0, fmt.Errorf("must be a whole number, %d to %d", least, most)
}
