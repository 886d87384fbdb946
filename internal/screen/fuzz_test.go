package screen

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
)

// FuzzRequirement asks one endpoint for one requirement. Whatever a label, an annotation
// and the values are, screening and coverage agree with the naive evaluation. Texts
// with a line feed in front are not there; values stand in lines.
func FuzzRequirement(f *testing.F) {
	for _, seed := range [][4]string{
		{"a", "\n", "In", "a"}, {"\n", "a,b", "NotIn", "c\nb"}, {"a", "a,b", "In", "a"}, {" a ", "a,,a", "In", "a"},
		{"", "\n", "Exists", ""}, {"\n", "\n", "DoesNotExist", ""}, {"7", "7", "Gt", "6"}, {"\n", "7,8", "Lt", "9"},
		{"+7", "\n", "Gt", "-0"}, {"9223372036854775807", "\n", "Lt", "9223372036854775808"}, {"1_000", "\n", "Gt", "0"},
		{"0x10", "\n", "Gt", "1"}, {"A", "\n", "In", "a"}, {"a\u00a0", "\n", "In", "a"}, {"\v1", "\n", "Gt", "0"},
		{"a", "\n", "in", "a"}, {"a", "\n", "", ""}, {"\xff", "\xff,", "In", "\xff"}, {"\x00", "\n", "NotIn", "\x00"},
	} {
		for key := range uint8(4) {
			f.Add(key, seed[0], seed[1], seed[2], seed[3])
		}
	}
	keys := []string{"team", v1alpha1.AttributeZone, v1alpha1.AttributeContextLimit, v1alpha1.AttributeServedModels}
	f.Fuzz(func(t *testing.T, key uint8, label, annotation, op, lines string) {
		rule := v1alpha1.Requirement{
			Class: v1alpha1.Capability, Key: keys[int(key)%len(keys)], Operator: v1alpha1.Operator(op),
		}
		if lines != "" {
			rule.Values = strings.Split(lines, "\n")
		}
		numeric := op == "Gt" || op == "Lt"
		if numeric && len(rule.Values) > 1 {
			// Decoding lets only one through.
			rule.Values = rule.Values[:1]
		}
		s := subject{name: "it", address: "10.0.0.1:8000", ready: true}
		if !strings.HasPrefix(label, "\n") {
			s.labels = map[string]string{rule.Key: label}
		}
		if !strings.HasPrefix(annotation, "\n") {
			s.annotations = map[string]string{rule.Key: annotation}
		}
		set, x := update(t, pool.NewRegistry(poolName, false), []subject{s}), NewIndex()
		want := s.meets(&rule)
		var res Result
		for range 2 {
			x.Screen(set, &Request{Requirements: []v1alpha1.Requirement{rule}}, Rules{}, now, &res)
			if got := len(res.Slots) == 1; got != want || (res.Fate(0) == ByCapability) == want || (res.Rule(0) == 0) == want {
				t.Fatalf("%+v over label %q and annotation %q: met %v, want %v", rule, s.labels, s.annotations, got, want)
			}
		}
		for _, c := range x.Coverage(set) {
			one := v1alpha1.Requirement{Class: c.Class, Key: c.Key, Operator: c.Operator}
			if len(rule.Values) > 0 {
				one.Values = []string{c.Value}
			}
			if (c.Endpoints == 1) != s.meets(&one) {
				t.Fatalf("%+v over label %q and annotation %q: covered by %d", c, s.labels, s.annotations, c.Endpoints)
			}
		}
	})
}
