package policy

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
)

func FuzzParse(f *testing.F) {
	f.Add(exampleText(f))
	f.Add(head)
	f.Add(berthHead + "telemetry: {profiles: profiles, exporters: [{profile: dcgm, address: 10.0.0.1, port: 9400}]}\n")
	f.Add(berthHead + "discovery: {file: pool.yaml}\nlimits: {body: 1GiB, drain: 0s}\ntelemetry: {hot: 50ms}\n")
	f.Add(head + "plugins:\n- &a {type: windowed, parameters: {window: 1e3, x: [1, .inf, ~, 2026-01-02]}}\n- *a\n")
	f.Add(head + "plugins: [{type: queue-scorer}, {type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}, {type: single-profile-handler}]\n")
	f.Add(intentText)
	f.Add(signedHead + "trust: {plainHeaders: true, headers: {x-a: requirement.safety.a, \":a\": priority, x-b: priority}}\nscreening: {quarantine: {maxShare: -0.0}}\n")
	f.Add("---\n---\n!!binary AA==: <<\n? [a]\n: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, warnings, err := Parse("f", []byte(text), "testdata", catalog{})
		if err != nil {
			if p != nil || warnings != nil {
				t.Fatalf("an error with %v, %v", p, warnings)
			}
			typed, others := refusals(err)
			if len(typed) == 0 || len(others) > 1 {
				t.Fatalf("untyped errors: %v", err)
			}
			for _, e := range typed {
				if !predicate.MatchString(e.Allowed) || strings.Contains(e.Error(), "\n") {
					t.Fatalf("an error that is no sentence or more than a line: %q", e.Error())
				}
			}
			return
		}
		again, _, err := Parse("f", []byte(p.Effective()), "testdata", catalog{})
		if err != nil {
			t.Fatalf("the effective text is refused: %v\n%s", err, p.Effective())
		}
		if again.Digest != p.Digest || again.Effective() != p.Effective() {
			t.Fatalf("the effective text means something else:\n%s\n%s", p.Effective(), again.Effective())
		}
		Lint(p, nil)
	})
}

func FuzzParsePool(f *testing.F) {
	_, inline, _ := strings.Cut(exampleText(f), "kind: StaticPool")
	f.Add("apiVersion: berth.dev/v1alpha1\nkind: StaticPool" + inline)
	f.Add(poolHead + "- {name: a, address: \"::ffff:169.254.1.1\", port: 1}\n")
	f.Add(poolHead + "- {name: a, address: 10.0.0.1, port: 1, labels: {berth.dev/metrics-path: /x, berth.dev/engine: a}, annotations: {berth.dev/metrics-port: \"1\"}}\n")
	f.Add(poolHead + "- {name: a, address: 10.0.0.1, port: 1, labels: {berth.dev/tenants: a, team: a}, annotations: {berth.dev/safety: \" , a\", team: b}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePool("f", []byte(text), nil)
		if (p == nil) != (err != nil) {
			t.Fatalf("%v with error %v", p, err)
		}
		if err != nil {
			return
		}
		for _, s := range p.Endpoints {
			if a := s.Address.Addr(); s.Name == "" || s.Address.Port() == 0 || !a.IsValid() || a.Is4In6() || a.Zone() != "" ||
				a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
				t.Fatalf("%+v is accepted", s)
			}
			attributes := attribute.FromMetadata(s.Labels, s.Annotations)
			for _, key := range declaredAttributes {
				if v := attributes[key]; v.Present() && !v.Meets(v1alpha1.Exists, nil) {
					t.Fatalf("%s of %+v serves nobody, and is accepted", key, s)
				}
			}
			if m := s.Metrics; m.Path != "" && (m.Path[0] != '/' || strings.HasPrefix(m.Path, "//")) {
				t.Fatalf("metrics %+v are accepted", m)
			}
		}
		Lint(nil, p)
		LintIntents(nil, p, []v1alpha1.RoutingIntent{{LogicalModel: "m", Requirements: []v1alpha1.Requirement{
			{Class: v1alpha1.Safety, Key: v1alpha1.AttributeSafety, Operator: v1alpha1.In, Values: []string{"a"}},
		}}})
	})
}
