package main

import (
	"math"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/test/finding"
)

// number is a fresh value of a replica, and NaN without one: yes is 1, no is 0, a
// distribution its mean.
func number(o *v1alpha1.Observation, field string) float64 {
	r := o.Fields[field]
	if r.State != v1alpha1.Fresh {
		return math.NaN()
	}
	switch v := r.Value.(type) {
	case float64:
		return v
	case bool:
		return truth(v)
	case v1alpha1.Distribution:
		return v.Mean
	default:
		return math.NaN()
	}
}

func truth(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// count is how many load fields of a replica are in a state.
func count(o *v1alpha1.Observation, state v1alpha1.State) (n int) {
	for _, f := range telemetry.LoadFields {
		if o.Fields[f.String()].State == state {
			n++
		}
	}
	return n
}

// growing reports fields that are read from what the engine counts. A field that
// the replica does not support is told and not held to.
func (s *session) growing(p phase, r *replica, o *v1alpha1.Observation, fields []limited) {
	for _, f := range fields {
		reading := o.Fields[f.field]
		s.report(finding.Finding{
			Name: p.name + "/" + r.name + "/" + f.field, Value: number(o, f.field), Limit: finding.AtLeast(f.least),
			Advisory: reading.Support != v1alpha1.Supported, About: f.about + "; the reading is " + say(reading),
		})
	}
}

// limited is a field and the least value that a phase gives it.
type limited struct {
	field string
	least float64
	about string
}

// reached reports that all fields that are supported have their values.
func reached(o *v1alpha1.Observation, fields []limited) bool {
	for _, f := range fields {
		// NaN is less than nothing.
		if o.Fields[f.field].Support == v1alpha1.Supported && !(number(o, f.field) >= f.least) {
			return false
		}
	}
	return true
}
