package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

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
	case uncombined(f, got.combine, false) != "":
		m["combine"].fail("sum, want max or one: %s does not add up", f)
	case (got.quality < 1) != (got.because != ""):
		n.fail("quality %v and because %q, want both or neither", got.quality, got.because)
	}
	page.fields = append(page.fields, f)
	page.members = append(page.members, got)
}

// maxPlaces bounds the places of one page that a member is read from.
const maxPlaces = 4096

// places are what a path leads to; nulls are nothing.
type places struct {
	values []gjson.Result
	// lacks: an item of a list does not say it. Nobody knows then what the sum or the
	// largest of them all is.
	lacks bool
	fault string
}

// read finds the member and makes a reading of it. asked is when the page was asked
// for.
func (m *member) read(root gjson.Result, asked telemetry.Instant) telemetry.Reading {
	var at places
	at.collect(root, m.path, false)
	whole := m.combine == one && m.field.Kind() != telemetry.Names || !at.lacks
	switch {
	case at.fault != "":
		return m.faulty(at.fault)
	case len(at.values) == 0:
		return missing(m.name + " is not stated")
	case !whole:
		r := missing(m.name + " is not stated in each place: what it is together is not known")
		r.Support = telemetry.Supported
		return r
	}
	r := telemetry.Reading{Support: telemetry.Supported, Recorded: telemetry.Fresh, Quality: m.quality, Detail: &telemetry.Detail{}}
	if m.because != "" {
		r.Detail.Reasons = []string{m.because}
	}
	var fault string
	switch m.field.Kind() {
	case telemetry.Names:
		r.Detail.Names, fault = texts(at.values)
	case telemetry.Text:
		var names []string
		if names, fault = texts(at.values); fault == "" && len(names) > 1 {
			fault = "says more than one thing"
		} else if fault == "" {
			r.Detail.Text = names[0]
		}
	case telemetry.Bool:
		r.Value, fault = m.truth(at.values)
	default:
		r.Value, fault = m.number(at.values)
		if now := float64(asked) / 1e9; fault == "" && m.field.Kind() == telemetry.Time && r.Value > now+clockSkew.Seconds() {
			fault = fmt.Sprintf("is %v: later than the page, which was asked for at %.0f", r.Value, now)
		}
	}
	if fault != "" {
		return m.faulty(fault)
	}
	return r
}

func (m *member) faulty(fault string) telemetry.Reading {
	r := faulty(m.name + " " + fault)
	r.Support = telemetry.Supported
	return r
}

// collect follows a path to its ends. item: what it leads through is one of a list.
func (p *places) collect(at gjson.Result, path []string, item bool) {
	if len(path) == 0 {
		switch {
		case at.Type == gjson.Null:
			p.lacks = p.lacks || item
		case len(p.values) == maxPlaces:
			p.fault = fmt.Sprintf("is in more than %d places", maxPlaces)
		default:
			p.values = append(p.values, at)
		}
		return
	}
	name, list := strings.CutSuffix(path[0], "[]")
	v, twice := memberOf(at, name)
	switch {
	case twice:
		p.fault = "is given twice"
	case !list:
		p.collect(v, path[1:], item)
	case !v.IsArray():
		p.lacks = p.lacks || item
	default:
		v.ForEach(func(_, one gjson.Result) bool {
			p.collect(one, path[1:], true)
			return p.fault == ""
		})
	}
}

func texts(values []gjson.Result) (names []string, fault string) {
	var listed nameSet
	for _, v := range values {
		if v.Type != gjson.String {
			return nil, "is not a text"
		}
		if fault := unfit(v.Str); fault != "" {
			return nil, fault
		}
		if listed.add(v.Str) {
			if fault := listed.tooMuch(); fault != "" {
				return nil, "has " + fault
			}
		}
	}
	return listed.names, ""
}

func (m *member) truth(values []gjson.Result) (float64, string) {
	all := values[0]
	for _, v := range values {
		if !v.IsBool() || v.Type != all.Type {
			return 0, "is not one yes or no"
		}
	}
	return truth(all.Bool() != m.invert), ""
}

func (m *member) number(values []gjson.Result) (float64, string) {
	total, highest, lowest := 0.0, math.Inf(-1), math.Inf(1)
	for _, v := range values {
		n := v.Num
		switch {
		case v.Type != gjson.Number || !possibleNumber(n):
			return 0, "is not a number of at least 0"
		case n != math.Trunc(n) && indivisible(m.field):
			return 0, fmt.Sprintf("is %v, want a whole number", n)
		}
		total, highest, lowest = total+n, max(highest, n), min(lowest, n)
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

// indivisible reports that the field counts things that have no parts.
func indivisible(f telemetry.Field) bool {
	switch f.Unit() {
	case "requests", "tokens", "count":
		return true
	default:
		return false
	}
}
