// Package attribute says what is known of a replica in the form that hard
// constraints are stated over: named sets of texts, and six operators.
//
// Three cases are told apart. An attribute is absent, or it is there with a set
// that may be empty, or two sources contradict each other and it is invalid. An
// absent one meets DoesNotExist alone, an invalid one meets nothing at all: what is
// not known for certain never lets a request pass.
package attribute

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Value is one attribute of one replica. The zero value is an absent one. It is
// immutable.
type Value struct {
	items   []string
	present bool
	invalid bool
}

// Of is the attribute with these items: blanks around an item are trimmed, empty
// ones and repetitions dropped, case is kept. Without items it is there and empty.
func Of(items ...string) Value {
	v := Value{present: true, items: make([]string, 0, len(items))}
	for _, item := range items {
		if item = Trim(item); item != "" {
			v.items = append(v.items, item)
		}
	}
	slices.Sort(v.items)
	v.items = slices.Compact(v.items)
	return v
}

// List is the attribute that a comma-separated text says.
func List(text string) Value { return Of(strings.Split(text, ",")...) }

// Invalid is the attribute of a replica of which two sources say two things.
func Invalid() Value { return Value{present: true, invalid: true} }

// Trim removes the blanks around an item, as attributes and requirements both have
// it.
func Trim(item string) string { return strings.Trim(item, " \t\r\n") }

// Join is what two sources say together: the same, or nothing that holds.
func (v Value) Join(other Value) Value {
	switch {
	case !v.present:
		return other
	case !other.present:
		return v
	case v.invalid || other.invalid || !slices.Equal(v.items, other.items):
		return Invalid()
	default:
		return v
	}
}

// Present is false for an attribute that nobody states.
func (v Value) Present() bool { return v.present }

// Contradicted reports that two sources state it differently.
func (v Value) Contradicted() bool { return v.invalid }

// Items are the sorted items of the set. The slice must not be changed.
func (v Value) Items() []string { return v.items }

// Meets reports whether the attribute satisfies an operator with its values, which
// are as in a valid v1alpha1.Requirement. An operator that it does not know is met
// by nothing.
func (v Value) Meets(op v1alpha1.Operator, values []string) bool {
	if v.invalid {
		return false
	}
	switch op {
	case v1alpha1.DoesNotExist:
		return !v.present
	case v1alpha1.Exists:
		return len(v.items) > 0
	case v1alpha1.In:
		return v.intersects(values)
	case v1alpha1.NotIn:
		return v.present && !v.intersects(values)
	case v1alpha1.Gt, v1alpha1.Lt:
		if len(values) != 1 || len(v.items) != 1 {
			return false
		}
		have, err := strconv.ParseInt(v.items[0], 10, 64)
		bound, err2 := strconv.ParseInt(Trim(values[0]), 10, 64)
		if err != nil || err2 != nil {
			return false
		}
		if op == v1alpha1.Gt {
			return have > bound
		}
		return have < bound
	default:
		return false
	}
}

func (v Value) intersects(values []string) bool {
	for _, want := range values {
		if _, ok := slices.BinarySearch(v.items, Trim(want)); ok {
			return true
		}
	}
	return false
}

// Set has the attributes of one replica by their keys. It must not be changed once
// it is shared.
type Set map[string]Value

// FromMetadata has the attributes that labels and annotations state. An annotation
// is a list, a label one value or, since it can hold no comma, a list of one.
func FromMetadata(labels, annotations map[string]string) Set {
	s := make(Set, len(labels)+len(annotations))
	for key, text := range labels {
		s[key] = List(text)
	}
	for key, text := range annotations {
		s[key] = s[key].Join(List(text))
	}
	return s
}

// State adds what another source states of an attribute.
func (s Set) State(key string, v Value) { s[key] = s[key].Join(v) }
