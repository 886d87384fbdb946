package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/telemetry"
)

// member is one value of a JSON page.
type member struct {
	field telemetry.Field
	// name is as the profile spells it, path its parts; a part that ends in []
	// stands for every item of a list.
	name    string
	path    []string
	combine combination
	invert  bool
	quality float32
	because string
}

// parseMember reads which member of a JSON page a field is.
func (p *Profile) parseMember(n pair, page *Page) {
	f, ok := parseFieldName(n)
	if !ok {
		return
	}
	m := n.members("member", "combine", "invert", "quality", "because")
	got := member{
		field:   f,
		name:    m["member"].require(n.node, "member").text(),
		combine: map[string]combination{"one": one, "sum": sum, "max": largest}[m["combine"].one("one", "one", "sum", "max")],
		invert:  m["invert"].boolean(),
		quality: float32(m["quality"].number(1, leastQuality, 1)),
		because: m["because"].prose(),
	}
	got.path = strings.Split(got.name, ".")
	if slices.ContainsFunc(got.path, func(part string) bool { return part == "" || strings.Trim(part, "[]") == "" }) {
		m["member"].fail("%q, want names joined by dots, with [] after that of a list", got.name)
	}
	switch {
	case f.Kind() == telemetry.Dist:
		n.fail("a distribution cannot be read from JSON")
	case got.invert && f.Kind() != telemetry.Bool:
		m["invert"].fail("%s is not a yes-or-no field", f)
	case got.combine != one && f.Kind() != telemetry.Number:
		m["combine"].fail("%s is not a number", f)
	case (got.quality < 1) != (got.because != ""):
		n.fail("quality %v and because %q, want both or neither", got.quality, got.because)
	}
	page.fields = append(page.fields, f)
	page.members = append(page.members, got)
}

// read finds the member and makes a reading of it.
func (m *member) read(root map[string]any) telemetry.Reading {
	values := collect(nil, root, m.path)
	if len(values) == 0 {
		return missing(m.name + " is not stated")
	}
	r := telemetry.Reading{Support: telemetry.Supported, Recorded: telemetry.Fresh, Quality: m.quality, Detail: &telemetry.Detail{}}
	if m.because != "" {
		r.Detail.Reasons = []string{m.because}
	}
	var fault string
	switch m.field.Kind() {
	case telemetry.Names:
		r.Detail.Names, fault = texts(values)
	case telemetry.Text:
		var names []string
		if names, fault = texts(values); fault == "" && len(names) > 1 {
			fault = "says more than one thing"
		} else if fault == "" {
			r.Detail.Text = names[0]
		}
	case telemetry.Bool:
		r.Value, fault = m.truth(values)
	default:
		r.Value, fault = m.number(values)
	}
	if fault != "" {
		r = faulty(m.name + " " + fault)
		r.Support = telemetry.Supported
	}
	return r
}

// collect follows a path and appends what is at its end; nulls are nothing.
func collect(values []any, at any, path []string) []any {
	if len(path) == 0 {
		if at == nil {
			return values
		}
		return append(values, at)
	}
	object, ok := at.(map[string]any)
	if !ok {
		return values
	}
	name, list := strings.CutSuffix(path[0], "[]")
	at = object[name]
	if !list {
		return collect(values, at, path[1:])
	}
	items, _ := at.([]any)
	for _, item := range items {
		values = collect(values, item, path[1:])
	}
	return values
}

func texts(values []any) (names []string, fault string) {
	var listed nameSet
	for _, v := range values {
		name, ok := v.(string)
		if !ok {
			return nil, "is not a text"
		}
		if fault := unfit(name); fault != "" {
			return nil, fault
		}
		if listed.add(name) && len(listed.names) > maxNames {
			return nil, fmt.Sprintf("has more than %d names", maxNames)
		}
	}
	return listed.names, ""
}

func (m *member) truth(values []any) (float64, string) {
	all, ok := values[0].(bool)
	for _, v := range values {
		if v, yes := v.(bool); !ok || !yes || v != all {
			return 0, "is not one yes or no"
		}
	}
	return truth(all != m.invert), ""
}

func (m *member) number(values []any) (float64, string) {
	total, highest, lowest := 0.0, math.Inf(-1), math.Inf(1)
	for _, v := range values {
		v, ok := v.(float64)
		if !ok || !possibleNumber(v) {
			return 0, "is not a number of at least 0"
		}
		total, highest, lowest = total+v, max(highest, v), min(lowest, v)
	}
	v := total
	switch {
	case m.combine == largest:
		v = highest
	case m.combine == one && lowest != highest:
		return 0, fmt.Sprintf("is %v in one place and %v in another", lowest, highest)
	case m.combine == one:
		v = highest
	}
	possible := m.field.Possible(v) && (v != 0 || !neverZero(m.field))
	if m.field.Kind() == telemetry.Time {
		possible = v > 0 && v <= latestTime
	}
	if !possible {
		return 0, fmt.Sprintf("is %v: not possible for %s", v, m.field)
	}
	return v, ""
}
