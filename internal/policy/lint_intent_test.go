package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// codes are findings as "code where".
func codes(findings []Finding) []string {
	var got []string
	for _, f := range findings {
		got = append(got, f.Code+" "+f.Where)
	}
	return got
}

func TestLintFindsWhatIsQuestionableInIntents(t *testing.T) {
	pool := func(failureMode, endpoints string) string {
		return "---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: demo}\nfailureMode: " + failureMode + "\nendpoints:\n" + endpoints
	}
	const (
		a     = "- {name: a, engine: vllm, address: 10.0.0.1, port: 80, contextLimit: 8192, servedModels: [llama, adapter]}\n"
		b     = "- {name: b, engine: vllm, address: 10.0.0.2, port: 80, servedModels: [qwen]}\n"
		undec = "- {name: c, engine: vllm, address: 10.0.0.3, port: 80}\n"
		keys  = "intent: {signedHeader: {keySet: keys.json, audience: berth, skew: "
	)
	with := func(entry string) string {
		return "- {name: a, engine: vllm, address: 10.0.0.1, port: 80, " + entry + "}\n"
	}
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"failing open without constraints", berthHead + pool("FailOpen", with("labels: {berth.dev/tier: gold}")), []string{"BERTH012 failureMode"}},
		{"failing open past aliases", berthHead + "models: {aliases: {fast: [llama]}}\n" + pool("FailOpen", a), []string{"BERTH012 failureMode", "BERTH017 failureMode"}},
		{"failing open past signed intents", berthHead + keys + "1s}}\n" + pool("FailOpen", a), []string{"BERTH012 failureMode", "BERTH017 failureMode"}},
		{"failing open past plain headers", berthHead + "trust: {plainHeaders: true}\n" + pool("FailOpen", a), []string{"BERTH012 failureMode", "BERTH017 failureMode", "BERTH019 trust.plainHeaders"}},
		{"failing open past tenants", berthHead + pool("FailOpen", with("annotations: {berth.dev/tenants: x}")), []string{"BERTH012 failureMode", "BERTH017 failureMode"}},
		{"failing open past safety", berthHead + pool("FailOpen", with("annotations: {berth.dev/safety: x}")), []string{"BERTH012 failureMode", "BERTH017 failureMode"}},
		{"failing open past residency", berthHead + pool("FailOpen", with("labels: {berth.dev/residency: x}")), []string{"BERTH012 failureMode", "BERTH017 failureMode"}},
		{"failing closed with all of them", berthHead + keys + "1s}}\nmodels: {aliases: {fast: [llama]}}\n" + pool("FailClose", with("labels: {berth.dev/residency: x}")), nil},

		{"an alias that some endpoint serves", berthHead + "models: {aliases: {fast: [gone, qwen]}}\n" + pool("FailClose", a+b), nil},
		{"aliases that no endpoint serves", berthHead + "models: {aliases: {fast: [gone], good: [llama], \"old one\": [a, b]}}\n" + pool("FailClose", a+b),
			[]string{"BERTH018 models.aliases.fast", "BERTH018 models.aliases[old one]"}},
		{"an alias that the engine may serve", berthHead + "models: {aliases: {fast: [gone]}}\n" + pool("FailClose", a+undec), nil},
		{"an alias without endpoints", berthHead + "models: {aliases: {fast: [gone]}}\n" + pool("FailClose", "  []\n"), []string{"BERTH010 endpoints"}},

		{"mapped headers that are not trusted", berthHead + "trust: {headers: {x-tenant: requirement.authorization.berth.dev/tenants}}\n" + pool("FailClose", a), []string{"BERTH020 trust.headers"}},
		{"the default mapping, written out", berthHead + "trust: {plainHeaders: false, headers: {x-selected-model: logicalModel}}\n" + pool("FailClose", a), nil},
		{"no mapping", berthHead + "trust: {headers: {}}\n" + pool("FailClose", a), nil},
		{"mapped headers that are trusted", berthHead + "trust: {plainHeaders: true, headers: {x-tenant: requirement.authorization.berth.dev/tenants}}\n" + pool("FailClose", a), []string{"BERTH019 trust.plainHeaders"}},

		{"an alias that hides a declared model", berthHead + "models: {aliases: {llama: [qwen]}}\n" + pool("FailClose", a+b), []string{"BERTH021 models.aliases.llama"}},
		{"an alias that adds to a declared model", berthHead + "models: {aliases: {llama: [qwen, llama]}}\n" + pool("FailClose", a+b), nil},
		{"an alias that lists another one", berthHead + "models: {aliases: {fast: [good], good: [llama]}}\n" + pool("FailClose", undec), []string{"BERTH021 models.aliases.good"}},
		{"an alias of aliases that mean themselves", berthHead + "models: {aliases: {fast: [llama], llama: [llama]}}\n" + pool("FailClose", undec), nil},

		{"contradicting labels", berthHead + pool("FailClose", with(`labels: {team: x, same: "b, a", one: x}, annotations: {team: "x,y", same: "a,b", other: y}`)), []string{"BERTH022 endpoint a, key team"}},

		{"plugins that never act", head + "plugins: [{type: subset}, {type: queue-depth}, {type: latency}, {type: windowed}]\n" +
			"schedulingProfiles: [{name: p, plugins: [{pluginRef: subset}, {pluginRef: queue-depth}, {pluginRef: latency, weight: 0}]}]\n" +
			"---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n" + pool("FailClose", a),
			[]string{"BERTH023 plugin subset", "BERTH023 plugin latency", "BERTH023 plugin windowed"}},

		{"required with metadata", berthHead + "intent: {required: true}\n" + pool("FailClose", a), nil},
		{"required with signed intents", berthHead + "intent: {required: true, metadata: false, signedHeader: {keySet: keys.json, audience: berth}}\n" + pool("FailClose", a), nil},
		{"required with plain headers", berthHead + "intent: {required: true, metadata: false}\ntrust: {plainHeaders: true}\n" + pool("FailClose", a), []string{"BERTH019 trust.plainHeaders"}},
		{"no channel, and none required", berthHead + "intent: {metadata: false}\n" + pool("FailClose", a), nil},

		{"settings of intents, and no channel", berthHead + "intent: {metadata: false, unreadableBody: pass}\nmodels: {aliases: {fast: [m]}}\nscreening: {contextUnknown: pass}\n" + pool("FailClose", a),
			[]string{"BERTH018 models.aliases.fast", "BERTH036 intent.unreadableBody", "BERTH036 models.aliases", "BERTH036 screening.contextUnknown"}},
		{"settings of intents, and a channel", berthHead + "intent: {unreadableBody: pass}\nscreening: {contextUnknown: pass}\n" + pool("FailClose", a), nil},

		{"no quarantine", berthHead + "screening: {quarantine: {maxShare: 0}}\n" + pool("FailClose", a), []string{"BERTH025 screening.quarantine.maxShare"}},
		{"a small quarantine", berthHead + "screening: {quarantine: {maxShare: 0.01}}\n" + pool("FailClose", a), nil},

		{"a skew of a minute", berthHead + keys + "1m}}\n" + pool("FailClose", a), nil},
		{"a longer skew", berthHead + keys + "1m1s}}\n" + pool("FailClose", a), []string{"BERTH026 intent.signedHeader.skew"}},

		{"contexts that nobody states", noLoad + "telemetry: {mode: none}\n" + pool("FailClose", a+b+undec), []string{"BERTH002 schedulingProfiles[0].plugins", "BERTH027 endpoint b", "BERTH027 endpoint c"}},
		{"contexts that engines may state", noLoad + "telemetry: {mode: auto}\n" + pool("FailClose", a+b), []string{"BERTH002 schedulingProfiles[0].plugins"}},
		{"exporters that are not read", noLoad + "telemetry: {mode: none, exporters: [{profile: dcgm, address: 10.0.0.9}]}\nscreening: {contextUnknown: pass}\n" + pool("FailClose", a),
			[]string{"BERTH002 schedulingProfiles[0].plugins", "BERTH031 telemetry.exporters"}},
		{"exporters that are read", noLoad + "telemetry: {exporters: [{profile: dcgm, address: 10.0.0.9}]}\n" + pool("FailClose", a), []string{"BERTH002 schedulingProfiles[0].plugins"}},
		{"contexts that nobody has to state", noLoad + "telemetry: {mode: none}\nscreening: {contextUnknown: pass}\n" + pool("FailClose", a+b), []string{"BERTH002 schedulingProfiles[0].plugins"}},
	} {
		p, _, err := Parse("berth.yaml", []byte(c.text), "testdata", catalog{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := codes(Lint(p, nil)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q; want %q", c.name, got, c.want)
		}
		again, _, err := Parse("berth.yaml", []byte(p.Effective()), "testdata", catalog{})
		if err != nil || again.Digest != p.Digest {
			t.Errorf("%s: the effective text is not the same: %v\n%s", c.name, err, p.Effective())
		}
	}
}

// noLoad is a profile that telemetry does not matter to.
const noLoad = head + "plugins: [{type: latency}]\n---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"

func TestAnAliasIsHeldAgainstThePoolThatIsGiven(t *testing.T) {
	p, _ := mustParse(t, berthHead+"models: {aliases: {fast: [gone]}}\n")
	static, err := ParsePool("pool.yaml", []byte(poolHead+"- {name: a, engine: vllm, address: 10.0.0.1, port: 80, servedModels: [llama, fast]}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := codes(Lint(p, static)), []string{"BERTH018 models.aliases.fast", "BERTH021 models.aliases.fast"}; !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
	if got := codes(Lint(nil, static)); got != nil {
		t.Errorf("the pool alone gives %q", got)
	}
}

func TestIntentsThatNoEndpointCanSatisfyAreFound(t *testing.T) {
	const (
		eu = "- {name: eu, engine: vllm, address: 10.0.0.1, port: 80, node: n1, zone: z1, servedModels: [llama], contextLimit: 8192,\n" +
			"   labels: {berth.dev/residency: eu, team: x}, annotations: {berth.dev/tenants: \"a,b\", team: y}}\n"
		us     = "- {name: us, engine: sglang, address: 10.0.0.2, port: 80, servedModels: [qwen], contextLimit: 4096, labels: {berth.dev/residency: us}}\n"
		asking = "- {name: asking, address: 10.0.0.3, port: 80}\n"
	)
	requirement := func(key string, op v1alpha1.Operator, values ...string) v1alpha1.Requirement {
		return v1alpha1.Requirement{Class: v1alpha1.Placement, Key: key, Operator: op, Values: values}
	}
	need := func(r ...v1alpha1.Requirement) v1alpha1.RoutingIntent { return v1alpha1.RoutingIntent{Requirements: r} }
	for _, c := range []struct {
		name, endpoints string
		intents         []v1alpha1.RoutingIntent
		want            []string
	}{
		{"nothing demanded", eu, []v1alpha1.RoutingIntent{{}}, nil},
		{"no endpoint", "  []\n", []v1alpha1.RoutingIntent{{LogicalModel: "llama", Requirements: []v1alpha1.Requirement{requirement("team", v1alpha1.Exists)}}}, nil},
		{"models that are served", eu + us, []v1alpha1.RoutingIntent{{LogicalModel: "llama"}, {LogicalModel: "fast"}, {ServedModels: []string{"gone", "qwen"}}}, nil},
		{"models that are not served", eu + us, []v1alpha1.RoutingIntent{{LogicalModel: "gone"}, {LogicalModel: "old"}, {LogicalModel: "llama", ServedModels: []string{"gone"}}},
			[]string{"BERTH028 intents[0].logicalModel", "BERTH028 intents[1].logicalModel", "BERTH028 intents[2].servedModels"}},
		{"a model that an engine may serve", eu + asking, []v1alpha1.RoutingIntent{{LogicalModel: "gone"}}, nil},
		{"requirements that are met", eu + us, []v1alpha1.RoutingIntent{need(
			requirement("berth.dev/residency", v1alpha1.In, " eu ", "mars"), requirement("berth.dev/tenants", v1alpha1.In, "b"),
			requirement("berth.dev/zone", v1alpha1.NotIn, "z2"), requirement("berth.dev/node", v1alpha1.Exists), requirement("berth.dev/replica", v1alpha1.In, "eu"),
			requirement("berth.dev/pool", v1alpha1.In, "default/demo"), requirement("berth.dev/safety", v1alpha1.DoesNotExist), requirement("berth.dev/engine", v1alpha1.In, "vllm"))}, nil},
		{"requirements that nothing meets", eu + us, []v1alpha1.RoutingIntent{{}, need(
			requirement("berth.dev/residency", v1alpha1.In, "mars"), requirement("berth.dev/safety", v1alpha1.NotIn, "x"), requirement("berth.dev/zone", v1alpha1.In, "z2"),
			requirement("team", v1alpha1.In, "x"), requirement("berth.dev/engine", v1alpha1.In, "atom"), requirement("berth.dev/pool", v1alpha1.In, "demo"))},
			[]string{"BERTH029 intents[1].requirements[0], key berth.dev/residency", "BERTH029 intents[1].requirements[1], key berth.dev/safety",
				"BERTH029 intents[1].requirements[2], key berth.dev/zone", "BERTH029 intents[1].requirements[3], key team",
				"BERTH029 intents[1].requirements[4], key berth.dev/engine", "BERTH029 intents[1].requirements[5], key berth.dev/pool"}},
		{"keys of Berth's that mean nothing", eu, []v1alpha1.RoutingIntent{need(
			requirement("berth.dev/residncy", v1alpha1.In, "eu"), requirement("berth.dev/Tenants", v1alpha1.DoesNotExist), requirement("example.com/residncy", v1alpha1.DoesNotExist))},
			[]string{"BERTH033 intents[0].requirements[0], key berth.dev/residncy, the nearest is berth.dev/residency",
				"BERTH033 intents[0].requirements[1], key berth.dev/Tenants, the nearest is berth.dev/tenants"}},
		{"what engines state", eu + us + asking, []v1alpha1.RoutingIntent{need(
			requirement("berth.dev/engine", v1alpha1.In, "atom"), requirement("berth.dev/engine-version", v1alpha1.In, "9"),
			requirement("berth.dev/context-limit", v1alpha1.Gt, "100000"), requirement("berth.dev/served-models", v1alpha1.In, "gone"))}, nil},
		{"requirements that are met apart only", eu + us, []v1alpha1.RoutingIntent{need(
			requirement("berth.dev/residency", v1alpha1.In, "us"), requirement("berth.dev/tenants", v1alpha1.In, "a"))}, []string{"BERTH030 intents[0]"}},
		{"a model in another place", eu + us, []v1alpha1.RoutingIntent{
			{LogicalModel: "qwen", Requirements: []v1alpha1.Requirement{requirement("berth.dev/residency", v1alpha1.In, "eu")}}}, []string{"BERTH030 intents[0]"}},
		{"contexts", eu + us, []v1alpha1.RoutingIntent{{Context: &v1alpha1.ContextNeed{InputTokens: 8000, OutputTokens: 192}}, {Context: &v1alpha1.ContextNeed{InputTokens: 8000, OutputTokens: 193}},
			{LogicalModel: "qwen", Context: &v1alpha1.ContextNeed{OutputTokens: 4097}}}, []string{"BERTH030 intents[1]", "BERTH030 intents[2]"}},
		{"a context that an engine may hold", eu + asking, []v1alpha1.RoutingIntent{{Context: &v1alpha1.ContextNeed{InputTokens: 1<<53 - 1, OutputTokens: 1<<53 - 1}}}, nil},
	} {
		static, err := ParsePool("pool.yaml", []byte(poolHead+c.endpoints), nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := mustParse(t, berthHead+"models: {aliases: {fast: [llama, gone], old: [gone]}}\n")
		if got := codes(LintIntents(p, static, c.intents)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got\n  %s\nwant\n  %s", c.name, strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
		}
	}
}

func TestIntentsAreHeldAgainstAPoolWithoutAPolicyAndAgainstTheInlineOne(t *testing.T) {
	intents := []v1alpha1.RoutingIntent{{LogicalModel: "gone"}}
	p, _ := mustParse(t, berthHead+"---\n"+poolHead+"- {name: a, address: 10.0.0.1, port: 80, servedModels: [llama]}\n")
	for name, findings := range map[string][]Finding{"inline": LintIntents(p, nil, intents), "alone": LintIntents(nil, p.Pool, intents)} {
		if len(findings) != 1 || findings[0].Code != "BERTH028" || findings[0].Severity != SeverityWarning || findings[0].Fix == "" || findings[0].Explanation == "" {
			t.Errorf("%s: %+v; want one BERTH028 with all that belongs to it", name, findings)
		}
	}
	bare, _ := mustParse(t, berthHead)
	if got := LintIntents(bare, nil, intents); got != nil {
		t.Errorf("without a pool: %+v", got)
	}
}

func TestMembersOfAnIntentThatAreIgnoredAreNotes(t *testing.T) {
	findings := LintIgnored(2, []string{"sessionkeys", "x\nBERTH001"})
	want := []string{"BERTH032 intents[2].sessionkeys, the nearest is sessionKey", `BERTH032 "intents[2][x\nBERTH001]", the nearest is `}
	got := codes(findings)
	if len(got) != 2 || got[0] != want[0] || !strings.HasPrefix(got[1], want[1]) || findings[0].Severity != SeverityNote || findings[0].Fix == "" {
		t.Errorf("got %q; want notes %q", got, want)
	}
	if got := LintIgnored(0, nil); got != nil {
		t.Errorf("nothing ignored gives %+v", got)
	}
}
