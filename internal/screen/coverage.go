package screen

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// maxCoverage bounds how many constraint values are told of.
const maxCoverage = 1024

// Constraint is one value that requests demand of an attribute.
type Constraint struct {
	Class    v1alpha1.RequirementClass
	Key      string
	Operator v1alpha1.Operator
	// Value is empty with Exists and DoesNotExist.
	Value string
}

// Coverage is how many endpoints of a set meet a constraint by itself.
type Coverage struct {
	Constraint
	// AskedAt is when a request last stated it, to the second.
	AskedAt   telemetry.Instant
	Endpoints int
}

// Coverage tells of each constraint value that requests stated lately, at most 1024
// and of more those that were stated last, how many endpoints of the set meet it now:
// a request that allows two tenants asks for endpoints of either. The order is that of
// classes, then by key, operator and value.
func (x *Index) Coverage(set *pool.Set) []Coverage {
	asked := map[Constraint]telemetry.Instant{}
	note := func(c Constraint, at telemetry.Instant) {
		if was, known := asked[c]; known || len(asked) < maxCoverage {
			asked[c] = max(was, at)
		}
	}
	// The last first: what is beyond the bound is not looked at.
	for _, k := range slices.Backward(x.requirements.all()) {
		at := telemetry.Instant(k.asked.Load())
		c := Constraint{Class: k.rule.Class, Key: k.rule.Key, Operator: k.rule.Operator}
		if len(k.rule.Values) == 0 {
			note(c, at)
		}
		for _, c.Value = range k.rule.Values {
			note(c, at)
		}
		if len(asked) == maxCoverage {
			break
		}
	}
	result := make([]Coverage, 0, len(asked))
	for c, at := range asked {
		result = append(result, Coverage{Constraint: c, AskedAt: at})
	}
	slices.SortFunc(result, func(a, b Coverage) int { return a.compare(&b.Constraint) })
	byKey := map[string][]*Coverage{}
	for i := range result {
		byKey[result[i].Key] = append(byKey[result[i].Key], &result[i])
	}
	for key, of := range byKey {
		cover(set, key, of)
	}
	return result
}

// cover counts who meets some constraints on one attribute. It looks at each endpoint
// once, however many values are asked for: metrics are asked for often.
func cover(set *pool.Set, key string, of []*Coverage) {
	having := map[string]int{}
	var others []*Coverage
	for _, c := range of {
		if c.Operator == v1alpha1.In || c.Operator == v1alpha1.NotIn {
			having[c.Value] = 0
		} else {
			others = append(others, c)
		}
	}
	certain := 0
	for _, e := range set.Endpoints {
		v := e.Attribute(key)
		if v.Present() && !v.Contradicted() {
			certain++
		}
		for _, item := range v.Items() {
			if n, asked := having[item]; asked {
				having[item] = n + 1
			}
		}
		for _, c := range others {
			if v.Meets(c.Operator, c.values()) {
				c.Endpoints++
			}
		}
	}
	for _, c := range of {
		switch c.Operator {
		case v1alpha1.In:
			c.Endpoints = having[c.Value]
		case v1alpha1.NotIn:
			c.Endpoints = certain - having[c.Value]
		}
	}
}

func (c *Constraint) values() []string {
	if c.Operator == v1alpha1.Exists || c.Operator == v1alpha1.DoesNotExist {
		return nil
	}
	return []string{c.Value}
}

func (c *Constraint) compare(other *Constraint) int {
	return cmp.Or(cmp.Compare(classOf(c.Class), classOf(other.Class)), strings.Compare(c.Key, other.Key),
		strings.Compare(string(c.Operator), string(other.Operator)), strings.Compare(c.Value, other.Value))
}
