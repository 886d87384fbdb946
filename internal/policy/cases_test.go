package policy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
)

// Configurations that are known to break endpoint pickers. The single mistakes are
// in TestEachBadConfigurationIsRefusedWithItsPlace and its like for pools and profiles;
// here is what holds of every key.

// key is one value of a BerthConfiguration.
type key struct {
	// path leads to it; [0] is the one entry of a list.
	path string
	// beside are keys that have to stand beside it, in YAML's flow style.
	beside string
	// zero is the zero of its type as a file says it, and refused what is allowed
	// instead; empty where zero is a value as good as any other.
	zero, refused string
	// shown is zero in the effective text, default_ what stands there if the file
	// says nothing; <absent> is no key at all.
	shown, default_ string
}

// keys are all of them. What a file may say about each is written down here and
// nowhere derived: a new one needs a line.
var keys = []key{
	{path: "discovery.file", zero: `""`, refused: "must be the path of a file", default_: "<absent>"},
	{path: "gateway.fallbacks", zero: "0", shown: "0", default_: "0"},
	{path: "gateway.onViolation", zero: `""`, refused: "must be one of report, refuse", default_: "report"},
	{path: "gateway.requestTrailers", zero: `""`, refused: "must be one of refuse, pass", default_: "refuse"},
	{path: "gateway.unknownPaths", zero: `""`, refused: "must be one of route, refuse", default_: "route"},
	{path: "limits.body", zero: "0", refused: "must be 1KiB to 1GiB", default_: "32MiB"},
	{path: "limits.buffered", zero: "0", refused: "must be 1KiB to 64GiB", default_: "1GiB"},
	{path: "limits.message", zero: "0", refused: "must be 2MiB to 2047MiB", default_: "33MiB"},
	{path: "limits.headerCount", zero: "0", refused: "must be 1 to 10000", default_: "1000"},
	{path: "limits.headerBytes", zero: "0", refused: "must be 1KiB to 16MiB", default_: "256KiB"},
	{path: "limits.streams", zero: "0", refused: "must be 1 to 10000000", default_: "100000"},
	{path: "limits.streamsPerConnection", zero: "0", refused: "must be 1 to 10000000", default_: "32768"},
	{path: "limits.uploadIdle", zero: "0s", refused: "must be 10ms to 10m", default_: "10s"},
	{path: "limits.uploadTime", zero: "0s", refused: "must be 10ms to 24h", default_: "5m"},
	{path: "limits.decisionDeadline", zero: "0s", refused: "must be 1ms to 1m", default_: "500ms"},
	{path: "limits.drain", zero: "0s", shown: "0s", default_: "30s"},
	{path: "limits.keepalive.interval", zero: "0s", refused: "must be 1s to 2h", default_: "1m"},
	{path: "limits.keepalive.timeout", zero: "0s", refused: "must be 10ms to 10m", default_: "20s"},
	{path: "limits.keepalive.minInterval", zero: "0s", refused: "must be 100ms to 1h", default_: "5s"},
	{path: "intent.required", zero: "false", shown: "false", default_: "false"},
	{path: "intent.unreadableBody", zero: `""`, refused: "must be one of refuse, pass", default_: "refuse"},
	{path: "intent.metadata", zero: "false", shown: "false", default_: "true"},
	{path: "intent.signedHeader.keySet", beside: "audience: berth", zero: `""`, refused: "must be the path of a file", default_: "<absent>"},
	{path: "intent.signedHeader.audience", beside: "keySet: keys.json", zero: `""`, refused: "must be this picker's name", default_: "<absent>"},
	{path: "intent.signedHeader.skew", beside: "keySet: keys.json, audience: berth", zero: "0s", shown: "0s", default_: "30s"},
	{path: "trust.plainHeaders", zero: "false", shown: "false", default_: "false"},
	{path: "trust.headers", zero: "{}", shown: "{}", default_: "{x-selected-model: logicalModel}"},
	{path: "models.aliases", zero: "{}", shown: "<absent>", default_: "<absent>"},
	{path: "screening.contextUnknown", zero: `""`, refused: "must be one of fail, pass", default_: "fail"},
	{path: "screening.quarantine.failures", zero: "0", refused: "must be 1 to 1000", default_: "3"},
	{path: "screening.quarantine.probeAfter", zero: "0s", refused: "must be 100ms to 1h", default_: "10s"},
	{path: "screening.quarantine.maxShare", zero: "0", shown: "0", default_: "0.5"},
	{path: "telemetry.mode", zero: `""`, refused: "must be one of auto, none", default_: "auto"},
	{path: "telemetry.hot", zero: "0s", refused: "must be 50ms to 1h", default_: "200ms"},
	{path: "telemetry.warm", zero: "0s", refused: "must be 50ms to 1h", default_: "1s"},
	{path: "telemetry.idle", zero: "0s", refused: "must be 50ms to 1h", default_: "5s"},
	{path: "telemetry.timeout", zero: "0s", refused: "must be 1ms to 10s", default_: "1s"},
	{path: "telemetry.maxPage", zero: "0", refused: "must be 64KiB to 64MiB", default_: "8MiB"},
	{path: "telemetry.workers", zero: "0", refused: "must be 1 to 1024", default_: "8"},
	{path: "telemetry.profiles", zero: `""`, refused: "must be the path of a directory", default_: "<absent>"},
	{path: "telemetry.exporters[0].profile", beside: "address: 10.0.0.1, port: 9400", zero: `""`, refused: "must be", default_: "<absent>"},
	{path: "telemetry.exporters[0].address", beside: "profile: dcgm, port: 9400", zero: `""`, refused: "must be", default_: "<absent>"},
	{path: "telemetry.exporters[0].port", beside: "profile: dcgm, address: 10.0.0.1", zero: "0", refused: "must be 1 to 65535", default_: "9400"},
	{path: "telemetry.exporters[0].scheme", beside: "profile: dcgm, address: 10.0.0.1, port: 9400", zero: `""`, refused: "must be", default_: "http"},
	{path: "placement.quorum", zero: "0", refused: "must be a number above 0, at most 1", default_: "0.5"},
	{path: "placement.replicas", zero: "0", refused: "must be 1", default_: "1"},
	{path: "acknowledgement.responseHeaders", zero: `""`, refused: "must be one of off, summary, full", default_: "summary"},
	{path: "ledger.dir", zero: `""`, shown: `""`, default_: `""`},
	{path: "ledger.ring", zero: "0", shown: "0", default_: "1000"},
	{path: "ledger.candidates", zero: "0", shown: "0", default_: "512"},
}

// says is a configuration with a value for the key, and with nothing for it if that
// is empty.
func (k key) says(value string) string {
	steps := strings.Split(k.path, ".")
	text := ""
	if value != "" {
		text = steps[len(steps)-1] + ": " + value
	}
	if k.beside != "" {
		text = strings.Join(slices.DeleteFunc([]string{k.beside, text}, func(s string) bool { return s == "" }), ", ")
	}
	for _, step := range slices.Backward(steps[:len(steps)-1]) {
		name, listed := strings.CutSuffix(step, "[0]")
		if listed {
			text = name + ": [{" + text + "}]"
		} else {
			text = name + ": {" + text + "}"
		}
	}
	return berthHead + text + "\n"
}

// shownIn is what the effective text says at the key's path.
func (k key) shownIn(t *testing.T, p *Policy) string {
	t.Helper()
	documents := strings.Split(p.Effective(), "---\n")
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(documents[1]), &n); err != nil {
		t.Fatal(err)
	}
	at := n.Content[0]
	for step := range strings.SplitSeq(k.path, ".") {
		name, listed := strings.CutSuffix(step, "[0]")
		i := 0
		for ; i < len(at.Content) && at.Content[i].Value != name; i += 2 {
		}
		if i >= len(at.Content) {
			return "<absent>"
		}
		if at = at.Content[i+1]; listed {
			at = at.Content[0]
		}
	}
	switch {
	case at.Kind == yaml.MappingNode:
		var items []string
		for i := 0; i < len(at.Content); i += 2 {
			items = append(items, at.Content[i].Value+": "+at.Content[i+1].Value)
		}
		return "{" + strings.Join(items, ", ") + "}"
	case at.Value == "":
		return `""`
	default:
		return at.Value
	}
}

// paths are those of all values of a configuration type.
func paths(path string, t reflect.Type) []string {
	switch {
	case t.Kind() == reflect.Pointer:
		return paths(path, t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return paths(path+"[0]", t.Elem())
	case t.Kind() != reflect.Struct:
		return []string{path}
	}
	var all []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "apiVersion" && name != "kind" {
			all = append(all, paths(strings.TrimPrefix(path+"."+name, "."), f.Type)...)
		}
	}
	return all
}

func TestC3_AnUnknownKeyIsRefusedInEverySection(t *testing.T) {
	sections := map[string]key{}
	for _, k := range keys {
		sections[k.path[:strings.LastIndex(k.path, ".")]] = k
	}
	for _, k := range sections {
		for _, name := range []string{"blocksize", "zz_unknown", "Name", "name "} {
			misspelt := k
			misspelt.path = k.path[:strings.LastIndex(k.path, ".")+1] + name
			misspelt.beside = ""
			field := child(k.path[:strings.LastIndex(k.path, ".")], name)
			p, _, err := Parse("berth.yaml", []byte(strings.Replace(misspelt.says("1"), name+": 1", fmt.Sprintf("%q: 1", name), 1)), "testdata", catalog{})
			typed, _ := refusals(err)
			i := slices.IndexFunc(typed, func(e *Error) bool { return e.Field == field })
			if p != nil || i < 0 || typed[i].Line != 6 || !strings.HasPrefix(typed[i].Allowed, "is an unknown key; known here: ") {
				t.Errorf("%s: %v; want line 6 and that the key is unknown", field, err)
			}
		}
	}
	if len(sections) != 15 {
		t.Errorf("%d sections, want 15: %v", len(sections), slices.Sorted(maps.Keys(sections)))
	}
}

// A key in other letters is another key: none is taken for the one that was meant, and
// none is left out of account.
func TestC3_AKeyInOtherLettersIsRefused(t *testing.T) {
	for _, k := range keys {
		at := strings.LastIndex(k.path, ".") + 1
		name := k.path[at:]
		for _, other := range []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], name[:len(name)-1], name + "s"} {
			misspelt := k
			misspelt.path = k.path[:at] + other
			p, _, err := Parse("berth.yaml", []byte(misspelt.says(k.zero)), "testdata", catalog{})
			typed, _ := refusals(err)
			if p != nil || !slices.ContainsFunc(typed, func(e *Error) bool {
				return e.Field == misspelt.path && e.Line == 6 && strings.HasPrefix(e.Allowed, "is an unknown key; known here: ")
			}) {
				t.Errorf("%s: %v; want that the key is unknown", misspelt.path, err)
			}
		}
	}
}

func TestC3_FilesThatAreFarTooLargeAreNotReadWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.yaml")
	write(t, path, head+strings.Repeat("# filler\n", 10<<20/9))
	for name, load := range map[string]func() error{
		"policy": func() error { _, _, err := Load(path, catalog{}); return err },
		"pool":   func() error { _, err := LoadPool(path, nil); return err },
	} {
		if want, err := path+": more than 1MiB: must be at most 1MiB", load(); fmt.Sprint(err) != want {
			t.Errorf("%s of 10MiB: %v; want %s", name, err, want)
		}
	}
}

// Nine levels of ten aliases each would be a thousand million values.
func TestC3_ABombOfAnchorsIsRefusedBeforeItGrows(t *testing.T) {
	bomb := func(key string) string {
		var b strings.Builder
		b.WriteString(key + ":\n  l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n")
		for i := 1; i <= 9; i++ {
			ref := fmt.Sprintf("*l%d, ", i-1)
			fmt.Fprintf(&b, "  l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(ref, 10), ", "))
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"in aliases of models": berthHead + "models:\n" + strings.ReplaceAll("\n"+bomb("aliases"), "\n", "\n  ") + "\n",
		"in headers":           berthHead + "trust:\n" + strings.ReplaceAll("\n"+bomb("headers"), "\n", "\n  ") + "\n",
		"in parameters":        head + "plugins:\n- type: windowed\n" + strings.ReplaceAll("\n"+bomb("parameters"), "\n", "\n  ") + "\n",
		"in a pool":            berthHead + "---\n" + poolHead + "- name: a\n" + strings.ReplaceAll("\n"+bomb("labels"), "\n", "\n  ") + "\n",
	} {
		_, _, err := Parse("berth.yaml", []byte(text), "testdata", catalog{})
		typed, others := refusals(err)
		if len(typed) == 0 || len(others) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		for _, e := range typed {
			if !strings.HasPrefix(e.Allowed, "must be written out: anchors and aliases") {
				t.Errorf("%s: %v; want that anchors are not allowed", name, e)
			}
		}
	}
}

func TestC4_EveryKeyHasALineInTheTableOfKeys(t *testing.T) {
	var got []string
	for _, k := range keys {
		got = append(got, k.path)
	}
	if want := paths("", reflect.TypeFor[v1alpha1.BerthConfiguration]()); !slices.Equal(got, want) {
		t.Errorf("the table has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A zero that a file states is a zero, or refused by name: it never means "as if
// left out".
func TestC4_AnExplicitZeroIsKeptOrRefusedByName(t *testing.T) {
	for _, k := range keys {
		p, _, err := Parse("berth.yaml", []byte(k.says(k.zero)), "testdata", catalog{})
		if k.refused == "" {
			if err != nil {
				t.Errorf("%s: %s: %v", k.path, k.zero, err)
			} else if got := k.shownIn(t, p); got != k.shown {
				t.Errorf("%s: %s: the effective text says %s, want %s", k.path, k.zero, got, k.shown)
			}
			continue
		}
		typed, _ := refusals(err)
		if p != nil || len(typed) != 1 || typed[0].Field != k.path || typed[0].Value != k.zero || !strings.HasPrefix(typed[0].Allowed, k.refused) {
			t.Errorf("%s: %s: %v; want one error of the key: %s", k.path, k.zero, err, k.refused)
		}
	}
}

func TestC4_AKeyThatIsLeftOutHasItsDefaultInTheEffectiveText(t *testing.T) {
	for _, k := range keys {
		switch k.path {
		case "intent.signedHeader.keySet", "intent.signedHeader.audience", "telemetry.exporters[0].profile", "telemetry.exporters[0].address":
			// It must not be left out where its section is there.
			typed, _ := refusals(errorOf(k.says("")))
			if !slices.ContainsFunc(typed, func(e *Error) bool { return e.Field == k.path && e.Value == "missing" }) {
				t.Errorf("%s: left out, it is not asked for: %v", k.path, typed)
			}
			k.beside = ""
			if p := parseIn(t, "testdata", berthHead); k.shownIn(t, p) != k.default_ {
				t.Errorf("%s: the effective text says %s, want %s", k.path, k.shownIn(t, p), k.default_)
			}
			continue
		}
		p := parseIn(t, "testdata", k.says(""))
		if got := k.shownIn(t, p); got != k.default_ {
			t.Errorf("%s: left out, the effective text says %s, want %s", k.path, got, k.default_)
		}
	}
}

func errorOf(text string) error {
	_, _, err := Parse("berth.yaml", []byte(text), "testdata", catalog{})
	return err
}

// A key without a value is a line that somebody forgot to end.
func TestC4_NullIsNeitherZeroNorTheDefault(t *testing.T) {
	for _, k := range keys {
		for _, null := range []string{"null", "~"} {
			p, _, err := Parse("berth.yaml", []byte(k.says(null)), "testdata", catalog{})
			typed, _ := refusals(err)
			if p != nil || !slices.ContainsFunc(typed, func(e *Error) bool { return e.Field == k.path && e.Value == "null" }) {
				t.Errorf("%s: %s: %v; want it refused", k.path, null, err)
			}
		}
	}
}

// What is shown is also what the policy runs by.
func TestC4_ZerosReachThePolicy(t *testing.T) {
	p := parseIn(t, "testdata", berthHead+`limits: {drain: 0s}
intent: {metadata: false, signedHeader: {keySet: keys.json, audience: berth, skew: 0s}}
trust: {headers: {}}
screening: {quarantine: {maxShare: 0}}
ledger: {ring: 0, candidates: 0}
`)
	for what, got := range map[string]any{
		"limits.drain": p.Limits.Drain, "intent.metadata": p.Intent.Metadata, "intent.signedHeader.skew": p.Intent.Skew,
		"screening.quarantine.maxShare": p.Screening.Quarantine.MaxShare, "ledger.ring": p.Ledger.Ring, "ledger.candidates": p.Ledger.Candidates,
	} {
		if !reflect.ValueOf(got).IsZero() {
			t.Errorf("%s is %v, want zero", what, got)
		}
	}
	if len(p.Trust.Headers) != 0 {
		t.Errorf("trust.headers are %v, want none", p.Trust.Headers)
	}
}

func TestC4_AnEndpointThatIsNotReadyIsNotOneThatDoesNotSay(t *testing.T) {
	pool, err := ParsePool("pool.yaml", []byte(poolHead+
		"- {name: says-no, address: 10.0.0.1, port: 80, ready: false}\n- {name: says-nothing, address: 10.0.0.2, port: 80}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if pool.Endpoints[0].Ready || !pool.Endpoints[1].Ready {
		t.Errorf("ready is %t and %t, want false and true", pool.Endpoints[0].Ready, pool.Endpoints[1].Ready)
	}
	for _, zero := range []string{"port: 0", "port: 80, metrics: {port: 0}", "port: 80, contextLimit: 0"} {
		if _, err := ParsePool("pool.yaml", []byte(poolHead+"- {name: a, address: 10.0.0.1, "+zero+"}\n"), nil); err == nil {
			t.Errorf("%s is accepted", zero)
		}
	}
}

// No number of a configuration may be one that nothing is greater, less or equal to.
func TestC5_NumbersThatAreNotFiniteAreRefusedEverywhere(t *testing.T) {
	weight := head + "plugins: [{type: latency}]\nschedulingProfiles:\n- name: p\n  plugins:\n  - {pluginRef: latency, weight: %}\n"
	at := map[string]string{
		"schedulingProfiles[0].plugins[0].weight": weight,
		"screening.quarantine.maxShare":           berthHead + "screening: {quarantine: {maxShare: %}}\n",
		"screening.quarantine.failures":           berthHead + "screening: {quarantine: {failures: %}}\n",
		"placement.quorum":                        berthHead + "placement: {quorum: %}\n",
		"gateway.fallbacks":                       berthHead + "gateway: {fallbacks: %}\n",
		"ledger.ring":                             berthHead + "ledger: {ring: %}\n",
		"limits.body":                             berthHead + "limits: {body: %}\n",
		"limits.drain":                            berthHead + "limits: {drain: %}\n",
		"telemetry.hot":                           berthHead + "telemetry: {hot: %}\n",
	}
	for field, format := range at {
		for _, value := range []string{".nan", ".NaN", ".inf", ".Inf", "-.inf", "+.inf", "-1", "1e308", "1e999", `"2"`, "true", "[]"} {
			p, _, err := Parse("berth.yaml", []byte(strings.Replace(format, "%", value, 1)), "testdata", catalog{})
			typed, _ := refusals(err)
			if p != nil || len(typed) != 1 || typed[0].Field != field {
				t.Errorf("%s: %s: %v; want one error of the key", field, value, err)
			}
		}
	}
}

func TestC5_ThreeWeightsThatOverflowTogetherAreEachRefused(t *testing.T) {
	three := func(weight string) string {
		return head + "plugins: [{type: latency}, {type: queue-depth}, {type: active-requests}]\nschedulingProfiles:\n- name: p\n  plugins:\n" +
			strings.ReplaceAll("  - {pluginRef: latency, weight: %}\n  - {pluginRef: queue-depth, weight: %}\n  - {pluginRef: active-requests, weight: %}\n", "%", weight)
	}
	wantRefusals(t, errorOf(three("1e308")), []string{
		"7: schedulingProfiles[0].plugins[0].weight: 1e308: must be a finite number from 0 to 1000000",
		"8: schedulingProfiles[0].plugins[1].weight: 1e308: must be a finite number from 0 to 1000000",
		"9: schedulingProfiles[0].plugins[2].weight: 1e308: must be a finite number from 0 to 1000000"})
	if _, warnings := mustParse(t, three("1000000")); len(warnings) != 0 {
		t.Errorf("the greatest weights are warned of: %v", warnings)
	}
	p, warnings := mustParse(t, three("0"))
	if len(p.Profile.Scorers) != 3 || len(warnings) != 1 || !strings.Contains(warnings[0].Message, "uniformly") {
		t.Errorf("weights of 0 leave %+v with %v; want all three, and one warning that says uniformly", p.Profile.Scorers, warnings)
	}
}

// How long a reading is believed follows from the interval and the timeout, so that
// no file can set it below them. What a file can set are three intervals and the
// timeout: their errors name both keys of a relation.
func TestC7_IntervalsThatDoNotGoTogetherAreRefusedByBothNames(t *testing.T) {
	for _, c := range []struct{ telemetry, field, names string }{
		{"hot: 6s", "telemetry.hot", "telemetry.warm (1s)"},
		{"hot: 1001ms", "telemetry.hot", "telemetry.warm (1s)"},
		{"warm: 199ms", "telemetry.warm", "telemetry.hot (200ms)"},
		{"warm: 5001ms", "telemetry.warm", "telemetry.idle (5s)"},
		{"idle: 999ms", "telemetry.idle", "telemetry.warm (1s)"},
		{"hot: 60s, warm: 30s, idle: 60s", "telemetry.warm", "telemetry.hot (1m)"},
		{"hot: 1s, warm: 60s, idle: 30s", "telemetry.idle", "telemetry.warm (1m)"},
	} {
		typed, _ := refusals(errorOf(berthHead + "telemetry: {" + c.telemetry + "}\n"))
		if len(typed) != 1 || typed[0].Field != c.field || !strings.Contains(typed[0].Allowed, c.names) {
			t.Errorf("%s: %v; want one error of %s that names %s", c.telemetry, typed, c.field, c.names)
		}
	}
	for _, key := range []string{"hot", "warm", "idle"} {
		for _, value := range []string{"1ms", "49ms", "0s", "-1s", "24h", "3601s"} {
			typed, _ := refusals(errorOf(berthHead + "telemetry: {" + key + ": " + value + "}\n"))
			if len(typed) != 1 || typed[0].Field != "telemetry."+key || typed[0].Allowed != "must be 50ms to 1h" {
				t.Errorf("%s: %s: %v; want 50ms to 1h", key, value, typed)
			}
		}
	}
	for _, value := range []string{"0s", "-1s", "10001ms", "24h"} {
		typed, _ := refusals(errorOf(berthHead + "telemetry: {timeout: " + value + "}\n"))
		if len(typed) != 1 || typed[0].Field != "telemetry.timeout" || typed[0].Allowed != "must be 1ms to 10s" {
			t.Errorf("timeout: %s: %v; want 1ms to 10s", value, typed)
		}
	}
	for _, slow := range []string{"hot: 60s, warm: 60s, idle: 60s", "hot: 1h, warm: 1h, idle: 1h, timeout: 10s", "hot: 50ms, warm: 50ms, idle: 50ms, timeout: 10s"} {
		if err := errorOf(berthHead + "telemetry: {" + slow + "}\n"); err != nil {
			t.Errorf("%s: %v", slow, err)
		}
	}
}

// Each endpoint is read by the profile of its own engine, and one that states none by
// no other's.
func TestC8_APoolOfSeveralEnginesKeepsEachToItsOwn(t *testing.T) {
	p, _ := mustParse(t, berthHead+"---\n"+poolHead+`- {name: a, address: 10.0.0.1, port: 80, engine: vllm}
- {name: b, address: 10.0.0.2, port: 80, labels: {inference.networking.k8s.io/engine-type: sglang}}
- {name: c, address: 10.0.0.3, port: 80, engine: trtllm}
- {name: d, address: 10.0.0.4, port: 80, annotations: {berth.dev/engine: triton-tensorrt-llm}}
- {name: e, address: 10.0.0.5, port: 80}
`)
	for i, want := range []string{"vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", ""} {
		e := p.Pool.Endpoints[i]
		if e.Engine != want {
			t.Errorf("%s is read as %q, want %q", e.Name, e.Engine, want)
		}
		if want != "" && p.Engines.Profile(want) == nil {
			t.Errorf("there is no profile for %s", want)
		}
	}
	var noticed []string
	for _, f := range Lint(p, nil) {
		noticed = append(noticed, f.Code+" "+f.Where)
	}
	if !slices.Equal(noticed, []string{"BERTH013 endpoint e"}) {
		t.Errorf("lint says %v, want BERTH013 of e alone", noticed)
	}
}

// A profile that names no metric reads nothing, which must not look like an idle
// engine.
func TestC8_AProfileWithoutANameForAMetricIsRefused(t *testing.T) {
	good := profileText("mlx", "")
	for name, text := range map[string]string{
		"an empty name":    strings.Replace(good, "metric: mlx_waiting", `metric: ""`, 1),
		"no name":          strings.Replace(good, "{metric: mlx_waiting}", "{}", 1),
		"no source":        strings.Replace(good, "[{metric: mlx_waiting}]", "[]", 1),
		"a null source":    strings.Replace(good, "[{metric: mlx_waiting}]", "[null]", 1),
		"an empty prefix":  strings.Replace(good, `["mlx_"]`, `[""]`, 1),
		"an unknown field": strings.Replace(good, "queueDepth", "queueLength", 1),
	} {
		if text == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		dir := beside(t, map[string]string{"mlx.yaml": text})
		p, _, err := Parse("berth.yaml", []byte(profilesSetting), dir, catalog{})
		if at := filepath.Join(dir, "profiles", "mlx.yaml") + ":"; p != nil || !strings.Contains(fmt.Sprint(err), at) {
			t.Errorf("%s: %v; want an error with %s and its line", name, err, at)
		}
	}
	if _, err := engine.Parse("mlx.yaml", []byte(good)); err != nil {
		t.Errorf("the profile that the others are made of: %v", err)
	}
}

// An engine whose profile is taken away is not read by whichever is left.
func TestC8_AnEngineThatIsKnownNoLongerIsRefused(t *testing.T) {
	dir := beside(t, map[string]string{"mlx.yaml": profileText("mlx", "")})
	text := profilesSetting + "---\n" + poolHead + "- {name: a, address: 10.0.0.1, port: 80, engine: mlx}\n"
	if got := parseIn(t, dir, text).Pool.Endpoints[0].Engine; got != "mlx" {
		t.Fatalf("engine %q, want mlx", got)
	}
	if err := os.Remove(filepath.Join(dir, "profiles", "mlx.yaml")); err != nil {
		t.Fatal(err)
	}
	_, _, err := Parse("berth.yaml", []byte(text), dir, catalog{})
	wantRefusals(t, err, []string{"12: endpoints[0].engine: mlx: must be the name or an alias of an engine's profile (atom, sglang, triton-tensorrt-llm, trtllm-serve, vllm)"})
}
