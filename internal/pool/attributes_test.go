package pool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
	"github.com/berth-dev/berth/internal/telemetry"
)

// told is an attribute in one text: "absent", "invalid", or its items.
func told(v attribute.Value) string {
	switch {
	case !v.Present():
		return "absent"
	case v.Contradicted():
		return "invalid"
	default:
		return fmt.Sprintf("%q", v.Items())
	}
}

// says makes a page of what an engine says of itself.
func says(change func(s *telemetry.Snapshot)) *telemetry.Snapshot {
	s := &telemetry.Snapshot{}
	change(s)
	return s
}

func limit(value float64, state telemetry.State) *telemetry.Snapshot {
	return says(func(s *telemetry.Snapshot) {
		s.Readings[telemetry.ContextLimit] = telemetry.Reading{Value: value, Recorded: state}
	})
}

func version(text string, state telemetry.State) *telemetry.Snapshot {
	return says(func(s *telemetry.Snapshot) {
		s.Readings[telemetry.EngineVersion] = telemetry.Reading{Recorded: state, Detail: &telemetry.Detail{Text: text}}
	})
}

func serves(state telemetry.State, names ...string) *telemetry.Snapshot {
	return says(func(s *telemetry.Snapshot) {
		s.Readings[telemetry.ServedModels] = telemetry.Reading{Recorded: state, Detail: &telemetry.Detail{Names: names}}
	})
}

func engineIs(name string) *telemetry.Snapshot {
	return says(func(s *telemetry.Snapshot) { s.Engine = name })
}

func TestWhatAnAttributeOfAnEndpointIs(t *testing.T) {
	label := func(key, text string) Spec { return Spec{Name: "a", Labels: map[string]string{key: text}} }
	annotation := func(key, text string) Spec { return Spec{Name: "a", Annotations: map[string]string{key: text}} }
	both := func(key, label, annotation string) Spec {
		return Spec{Name: "a", Labels: map[string]string{key: label}, Annotations: map[string]string{key: annotation}}
	}
	with := func(s Spec, change func(*Spec)) Spec { change(&s); return s }
	const (
		pool, replica, node, zone = v1alpha1.AttributePool, v1alpha1.AttributeReplica, v1alpha1.AttributeNode, v1alpha1.AttributeZone
		engine, engineVersion     = v1alpha1.AttributeEngine, v1alpha1.AttributeEngineVersion
		served, context           = v1alpha1.AttributeServedModels, v1alpha1.AttributeContextLimit
	)
	plain, fresh, stale := Spec{Name: "a"}, telemetry.Fresh, telemetry.Stale
	for _, tc := range []struct {
		name string
		key  string
		spec Spec
		page *telemetry.Snapshot
		want string
	}{
		{"any key, nobody says it", "team", plain, nil, `absent`},
		{"any key, by a label", "team", label("team", "A"), nil, `["A"]`},
		{"any key, by an annotation", "team", annotation("team", "b, a,,b"), nil, `["a" "b"]`},
		{"any key, by both alike", "team", both("team", "a", " a,"), nil, `["a"]`},
		{"any key, by both otherwise", "team", both("team", "a", "a,b"), nil, `invalid`},
		{"any key, empty", "team", label("team", ""), nil, `[]`},

		{"the pool", pool, plain, nil, `["ns/pool"]`},
		{"the pool, a label says the same", pool, label(pool, "ns/pool"), nil, `["ns/pool"]`},
		{"the pool, a label says otherwise", pool, label(pool, "ns/other"), nil, `invalid`},
		{"the replica", replica, plain, nil, `["a"]`},
		{"the replica, an annotation says more", replica, annotation(replica, "a,b"), nil, `invalid`},
		{"no node", node, plain, nil, `absent`},
		{"the node", node, Spec{Name: "a", Node: "n1"}, nil, `["n1"]`},
		{"the node by a label alone", node, label(node, "n1"), nil, `["n1"]`},
		{"the node, a label says otherwise", node, with(label(node, "n2"), func(s *Spec) { s.Node = "n1" }), nil, `invalid`},
		{"no zone", zone, plain, nil, `absent`},
		{"the zone", zone, Spec{Name: "a", Zone: "z1"}, nil, `["z1"]`},
		{"the zone, an annotation says the same", zone, with(annotation(zone, " z1"), func(s *Spec) { s.Zone = "z1" }), nil, `["z1"]`},
		{"the zone, an annotation says otherwise", zone, with(annotation(zone, "z1,z2"), func(s *Spec) { s.Zone = "z1" }), nil, `invalid`},

		{"nobody has been asked", engine, plain, nil, `invalid`},
		{"an engine that no profile is for", engine, plain, engineIs(UnknownEngine), `absent`},
		{"a page that says no engine", engine, plain, engineIs(""), `absent`},
		{"a declared engine", engine, Spec{Engine: "vllm"}, nil, `["vllm"]`},
		{"a declared engine, the page unknown", engine, Spec{Engine: "vllm"}, engineIs(UnknownEngine), `["vllm"]`},
		{"a detected engine", engine, plain, engineIs("vllm"), `["vllm"]`},
		{"declared and detected alike", engine, Spec{Engine: "vllm"}, engineIs("vllm"), `["vllm"]`},
		{"declared and detected otherwise", engine, Spec{Engine: "vllm"}, engineIs("sglang"), `invalid`},
		{"a label names it by an alias", engine, with(label(engine, "vllm-openai"), func(s *Spec) { s.Engine = "vllm" }), engineIs("vllm"), `["vllm"]`},
		{"label and annotation of it contradict each other", engine, with(both(engine, "vllm", "sglang"), func(s *Spec) { s.Engine = "vllm" }), nil, `invalid`},
		{"a label alone, detected otherwise", engine, label(engine, "vllm"), engineIs("sglang"), `invalid`},

		{"nobody has been asked", engineVersion, plain, nil, `invalid`},
		{"unread: another page was read", engineVersion, plain, engineIs("vllm"), `invalid`},
		{"unread: its page fails", engineVersion, plain, says(unread(telemetry.EngineVersion)), `invalid`},
		{"its page was read, and has none", engineVersion, plain, says(lacks(telemetry.EngineVersion)), `absent`},
		{"unread, and said by a label", engineVersion, label(engineVersion, "0.9.1"), says(unread(telemetry.EngineVersion)), `["0.9.1"]`},
		{"a version", engineVersion, plain, version("0.9.1", fresh), `["0.9.1"]`},
		{"a version heard of long ago", engineVersion, plain, version("0.9.1", stale), `["0.9.1"]`},
		{"a version that made no sense", engineVersion, plain, version("0.9.1", telemetry.Invalid), `absent`},
		{"a version without a text", engineVersion, plain, version("", fresh), `absent`},
		{"a version without detail", engineVersion, plain, says(func(s *telemetry.Snapshot) { s.Readings[telemetry.EngineVersion].Recorded = fresh }), `absent`},
		{"a version by a label alone", engineVersion, label(engineVersion, "0.9.1"), nil, `["0.9.1"]`},
		{"a version by a label, and the same", engineVersion, label(engineVersion, "0.9.1"), version("0.9.1", fresh), `["0.9.1"]`},
		{"a version by a label, and another", engineVersion, label(engineVersion, "0.9.1"), version("0.9.2", fresh), `invalid`},

		{"nobody has been asked", served, plain, nil, `invalid`},
		{"unread: another page was read", served, plain, engineIs("vllm"), `invalid`},
		{"unread: its page fails", served, plain, says(unread(telemetry.ServedModels)), `invalid`},
		{"its page was read, and has none", served, plain, says(lacks(telemetry.ServedModels)), `absent`},
		{"a declared served set", served, Spec{ServedModels: []string{"n", "m"}}, nil, `["m" "n"]`},
		{"a declared served set of nothing", served, Spec{ServedModels: []string{}}, nil, `[]`},
		{"a stated served set", served, plain, serves(fresh, "m", "n"), `["m" "n"]`},
		{"a served set stated long ago", served, plain, serves(stale, "m"), `["m"]`},
		{"a served set that made no sense", served, plain, serves(telemetry.Invalid, "m"), `absent`},
		{"a stated served set of nothing", served, plain, serves(fresh), `[]`},
		{"declared and stated", served, Spec{ServedModels: []string{"m", "x"}}, serves(fresh, "n", "m"), `["m"]`},
		{"declared and stated, nothing in common", served, Spec{ServedModels: []string{"x"}}, serves(fresh, "m"), `[]`},
		{"an annotation says the same", served, annotation(served, "n,m"), serves(fresh, "m", "n"), `["m" "n"]`},
		{"an annotation says otherwise", served, annotation(served, "m"), serves(fresh, "m", "n"), `invalid`},
		{"an annotation alone", served, annotation(served, "m"), nil, `["m"]`},

		{"nobody has been asked", context, plain, nil, `invalid`},
		{"unread: another page was read", context, plain, engineIs("vllm"), `invalid`},
		{"unread: its page fails", context, plain, says(unread(telemetry.ContextLimit)), `invalid`},
		{"its page was read, and has none", context, plain, says(lacks(telemetry.ContextLimit)), `absent`},
		{"a declared limit", context, Spec{ContextLimit: 8192}, nil, `["8192"]`},
		{"a limit of a label", context, label(context, "8192"), nil, `["8192"]`},
		{"a limit of a label, with blanks", context, label(context, " 8192 "), nil, `["8192"]`},
		{"declared twice alike", context, with(label(context, "8192"), func(s *Spec) { s.ContextLimit = 8192 }), nil, `["8192"]`},
		{"declared twice otherwise", context, with(label(context, "4096"), func(s *Spec) { s.ContextLimit = 8192 }), nil, `invalid`},
		{"a stated limit", context, plain, limit(8192, fresh), `["8192"]`},
		{"a limit stated long ago", context, plain, limit(8192, stale), `["8192"]`},
		{"a limit that made no sense", context, plain, limit(8192, telemetry.Invalid), `absent`},
		{"a limit with a fraction", context, plain, limit(8192.9, fresh), `["8192"]`},
		{"stated lower", context, Spec{ContextLimit: 8192}, limit(4096, fresh), `["4096"]`},
		{"stated higher", context, Spec{ContextLimit: 4096}, limit(8192, fresh), `["4096"]`},
		{"stated as 0", context, plain, limit(0, fresh), `invalid`},
		{"stated below 0", context, Spec{ContextLimit: 8192}, limit(-1, fresh), `invalid`},
		{"a label of no number", context, label(context, "many"), limit(8192, fresh), `invalid`},
		{"a label of nothing", context, label(context, ""), nil, `invalid`},
		{"two limits", context, annotation(context, "4096,8192"), nil, `invalid`},
		{"a label of 0", context, label(context, "0"), nil, `invalid`},
		{"a label too large", context, label(context, "9223372036854775808"), limit(8192, fresh), `invalid`},
		{"declared below 0", context, Spec{ContextLimit: -1}, nil, `invalid`},
		{"label and annotation contradict each other", context, both(context, "8192", "4096"), limit(4096, fresh), `invalid`},
	} {
		t.Run(tc.key+": "+tc.name, func(t *testing.T) {
			e := newEndpoint("ns/pool", tc.spec, newLive(false, &shared{}))
			if tc.page != nil {
				e.Publish(tc.page, e.BeginScrape())
			}
			if got := told(e.Attribute(tc.key)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			unread := strings.HasPrefix(tc.name, "unread: ")
			asked := tc.name != "nobody has been asked" && !unread
			v, known := e.KnownAttribute(tc.key)
			if want := map[bool]string{true: tc.want, false: `absent`}[asked]; known != asked || told(v) != want {
				t.Errorf("%s, known %v; want %s, known %v", told(v), known, want, asked)
			}
			if tc.key != context || !asked {
				return
			}
			fit := map[string]int64{`absent`: -1, `invalid`: 0, `["8192"]`: 8192, `["4096"]`: 4096}[tc.want]
			if got := e.ContextFit(); got != fit {
				t.Errorf("ContextFit %d, want %d", got, fit)
			}
		})
	}
}

// unread is a reading that nobody could answer yet, lacks one whose page was read and
// does not have it.
func unread(f telemetry.Field) func(*telemetry.Snapshot) {
	return func(s *telemetry.Snapshot) {
		s.Readings[f] = telemetry.Reading{Detail: &telemetry.Detail{Reasons: []string{"not read: /page fails with timeout"}, Unread: true}}
	}
}

func lacks(f telemetry.Field) func(*telemetry.Snapshot) {
	return func(s *telemetry.Snapshot) {
		s.Readings[f] = telemetry.Reading{Support: telemetry.Unsupported, Detail: &telemetry.Detail{Reasons: []string{"the replica has no page /page"}}}
	}
}

// TestACountGoesUpWhenAnAttributeMayHaveChanged publishes one page after another. A
// count that stays means that what was found out may be kept.
func TestACountGoesUpWhenAnAttributeMayHaveChanged(t *testing.T) {
	fresh, stale := telemetry.Fresh, telemetry.Stale
	nothing := func() *telemetry.Snapshot { return &telemetry.Snapshot{} }
	bare := says(func(s *telemetry.Snapshot) { s.Readings[telemetry.EngineVersion].Recorded = fresh })
	for _, tc := range []struct {
		name            string
		first, then     *telemetry.Snapshot
		serving, engine bool
	}{
		{"the first page, which says nothing", nil, nothing(), true, true},
		{"nothing again", nothing(), nothing(), false, false},
		{"a model", nothing(), serves(fresh, "m"), true, false},
		{"the same models", serves(fresh, "m"), serves(fresh, "m"), false, false},
		{"the same models, from long ago", serves(fresh, "m"), serves(stale, "m"), false, false},
		{"another model", serves(fresh, "m"), serves(fresh, "n"), true, false},
		{"no models known any more", serves(fresh, "m"), serves(telemetry.Missing), true, false},
		{"an engine", nothing(), engineIs("vllm"), false, true},
		{"the same engine", engineIs("vllm"), engineIs("vllm"), false, false},
		{"a version", nothing(), version("1", fresh), false, true},
		{"another version", version("1", fresh), version("2", fresh), false, true},
		{"the same version, from long ago", version("1", fresh), version("1", stale), false, false},
		{"the version makes no sense any more", version("1", fresh), version("1", telemetry.Invalid), false, true},
		{"a version of no text that was none", bare, version("", fresh), false, false},
		{"a limit", nothing(), limit(1, fresh), false, true},
		{"another limit", limit(1, fresh), limit(2, fresh), false, true},
		{"the same limit, from long ago", limit(1, fresh), limit(1, stale), false, false},
		{"the page of the limit was read, and has none", nothing(), says(lacks(telemetry.ContextLimit)), false, true},
		{"the page of the version was read, and has none", says(unread(telemetry.EngineVersion)), says(lacks(telemetry.EngineVersion)), false, true},
		{"the page of the models was read, and has none", nothing(), says(lacks(telemetry.ServedModels)), true, false},
		{"the page of the models fails", nothing(), says(unread(telemetry.ServedModels)), false, false},
		{"the limit makes no sense any more", limit(1, fresh), limit(1, telemetry.Invalid), false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := registryOf(t, spec("a", "", "10.0.0.1:8000"))
			set := r.Set()
			e := set.Endpoints[0]
			if tc.first != nil {
				e.Publish(tc.first, e.BeginScrape())
			}
			var attributes [2]string
			all := func() (text string) {
				for _, key := range []string{v1alpha1.AttributeEngine, v1alpha1.AttributeEngineVersion, v1alpha1.AttributeServedModels, v1alpha1.AttributeContextLimit} {
					text += told(e.Attribute(key)) + " "
				}
				return text
			}
			serving, engine, discovery := set.Changes(ByServing), set.Changes(ByEngine), set.Changes(ByDiscovery)
			attributes[0] = all()
			e.Publish(tc.then, e.BeginScrape())
			attributes[1] = all()
			if got := set.Changes(ByServing) != serving; got != tc.serving {
				t.Errorf("served sets are counted as changed: %v, want %v", got, tc.serving)
			}
			if got := set.Changes(ByEngine) != engine; got != tc.engine {
				t.Errorf("what engines say is counted as changed: %v, want %v", got, tc.engine)
			}
			if set.Changes(ByDiscovery) != discovery {
				t.Error("what discovery states is counted as changed")
			}
			if attributes[0] != attributes[1] && !tc.serving && !tc.engine {
				t.Errorf("%s became %s, uncounted", attributes[0], attributes[1])
			}
		})
	}
}

func TestWhoStatesAnAttribute(t *testing.T) {
	for key, want := range map[string]Stated{
		v1alpha1.AttributeServedModels: ByServing, v1alpha1.AttributeEngine: ByEngine, v1alpha1.AttributeEngineVersion: ByEngine,
		v1alpha1.AttributeContextLimit: ByEngine, v1alpha1.AttributePool: ByDiscovery, v1alpha1.AttributeReplica: ByDiscovery,
		v1alpha1.AttributeNode: ByDiscovery, v1alpha1.AttributeZone: ByDiscovery, v1alpha1.AttributeTenants: ByDiscovery, "team": ByDiscovery,
	} {
		if got := StatedBy(key); got != want {
			t.Errorf("%s is stated as %d, want %d", key, got, want)
		}
	}
}

func TestAnAttributeFollowsThePoolsName(t *testing.T) {
	r := registryOf(t, spec("a", "", "10.0.0.1:8000"))
	if err := r.Update("ns/renamed", []Spec{spec("a", "", "10.0.0.1:8000")}); err != nil {
		t.Fatal(err)
	}
	if got := told(r.Set().Endpoints[0].Attribute(v1alpha1.AttributePool)); got != `["ns/renamed"]` {
		t.Errorf("the pool is %s", got)
	}
}
