package policy

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
	configapi "sigs.k8s.io/gateway-api-inference-extension/apix/config/v1alpha1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// catalog is a Catalog of a few types. "windowed" takes {window: int > 0} and
// "hosted" {hosts: [{name: string}]}.
type catalog struct{}

var classes = map[string]Class{
	"queue-depth": Scorer, "kv-cache-utilization": Scorer, "active-requests": Scorer, "latency": Scorer,
	"windowed": Scorer, "hosted": Scorer, "subset": Filter, "health": Filter,
	"berth-picker": Picker, "random-picker": Picker, "berth-telemetry": OffProfile,
}

func (catalog) Check(pluginType string, parameters json.RawMessage) (Class, error) {
	class, known := classes[pluginType]
	if !known {
		return 0, &UnknownTypeError{Type: pluginType, Known: slices.Collect(maps.Keys(classes))}
	}
	var given map[string]any
	if parameters != nil {
		if err := json.Unmarshal(parameters, &given); err != nil {
			return class, err
		}
	}
	var errs []error
	for key, value := range given {
		switch {
		case pluginType == "windowed" && key == "window":
			if n, ok := value.(float64); !ok || n <= 0 {
				errs = append(errs, &ParameterError{Key: "window", Allowed: "a number above 0"})
			}
		case pluginType == "hosted" && key == "hosts":
			errs = append(errs, &ParameterError{Key: "hosts[1].name", Allowed: "a short name"})
		case key == "broken":
			errs = append(errs, errors.New("cannot be had"))
		default:
			errs = append(errs, &ParameterError{Key: key, Allowed: "unknown parameter"})
		}
	}
	return class, errors.Join(errs...)
}

const head = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
`

const berthHead = head + `---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
`

const poolHead = `apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {name: demo}
endpoints:
`

func mustParse(t testing.TB, text string) (*Policy, []Warning) {
	t.Helper()
	p, warnings, err := Parse("berth.yaml", []byte(text), "/etc/berth", catalog{})
	if err != nil {
		t.Fatalf("refused:\n%v\n%s", err, text)
	}
	return p, warnings
}

// refusals are all typed errors of err, and everything else as text.
func refusals(err error) (typed []*Error, others []string) {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		var one *Error
		if errors.As(e, &one) {
			typed = append(typed, one)
		} else {
			others = append(others, e.Error())
		}
	}
	return typed, others
}

func TestTheExampleFileIsReadWhole(t *testing.T) {
	p, warnings, err := Load("testdata/berth.yaml", catalog{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %v", err, warnings)
	}
	want := Policy{
		Digest: p.Digest,
		Profile: Profile{
			Name: "default",
			Scorers: []ScorerRef{
				{Name: "kv-cache-utilization", Type: "kv-cache-utilization", Weight: 2},
				{Name: "load", Type: "active-requests", Weight: 1},
				{Name: "queue-depth", Type: "queue-depth", Weight: 2},
			},
			Picker: PluginRef{Name: "berth-picker", Type: "berth-picker"},
		},
		Gateway: Gateway{Fallbacks: 3, OnViolation: "report", RequestTrailers: "refuse", UnknownPaths: v1alpha1.UnknownPathRoute},
		Limits: Limits{
			Body: 33554432, Buffered: 1 << 30, HeaderCount: 1000, HeaderBytes: 262144, Streams: 100000, UploadIdle: 10 * time.Second,
			UploadTime: 5 * time.Minute, DecisionDeadline: 500 * time.Millisecond, Drain: 30 * time.Second,
			Listener: Listener{
				Message: 34603008, StreamsPerConnection: 32768,
				KeepaliveInterval: time.Minute, KeepaliveTimeout: 20 * time.Second, GatewayInterval: 5 * time.Second,
			},
		},
		Intent:          Intent{Metadata: true},
		Trust:           Trust{Headers: map[string]string{"x-selected-model": "logicalModel"}},
		Models:          Models{Aliases: map[string][]string{"fast": {"llama-3.1-8b"}}},
		Screening:       Screening{Quarantine: Quarantine{Failures: 3, ProbeAfter: 10 * time.Second, MaxShare: 0.5}},
		Telemetry:       Telemetry{Mode: "auto", Hot: 200 * time.Millisecond, Warm: time.Second, Idle: 5 * time.Second, Timeout: time.Second, MaxPage: 8388608, Workers: 8},
		Placement:       Placement{Quorum: 0.5},
		Acknowledgement: Acknowledgement{ResponseHeaders: "summary"},
		Ledger:          Ledger{Ring: 1000, Candidates: 512},
		Engines:         p.Engines,
		Pool:            p.Pool,
		effective:       p.effective,
	}
	if !reflect.DeepEqual(*p, want) {
		t.Errorf("got  %+v\nwant %+v", *p, want)
	}
	if !strings.HasPrefix(p.Digest, "sha256:") || len(p.Digest) != len("sha256:")+12 {
		t.Errorf("digest %q; want sha256: and 12 hex digits", p.Digest)
	}
	if p.Pool == nil || len(p.Pool.Endpoints) != 2 || p.Pool.Namespace != "local" || p.Pool.Name != "demo" {
		t.Fatalf("pool %+v; want local/demo with two endpoints", p.Pool)
	}
}

func TestTheEffectiveConfigurationLeavesNothingOut(t *testing.T) {
	parse := func(text string) (*Policy, []Warning) {
		t.Helper()
		p, warnings, err := Parse("berth.yaml", []byte(text), "testdata", catalog{})
		if err != nil {
			t.Fatalf("refused:\n%v\n%s", err, text)
		}
		return p, warnings
	}
	for _, c := range []struct{ golden, text string }{
		{"effective-empty.yaml", head},
		{"effective-example.yaml", exampleText(t)},
		{"effective-intent.yaml", intentText},
	} {
		p, _ := parse(c.text)
		path := filepath.Join("testdata", c.golden)
		if *update {
			if err := os.WriteFile(path, []byte(p.Effective()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if p.Effective() != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", c.golden, p.Effective(), want)
		}
		again, warnings := parse(p.Effective())
		if again.Digest != p.Digest || again.Effective() != p.Effective() || len(warnings) > 0 || !again.SameKeys(p) {
			t.Errorf("%s: read again it has digest %s instead of %s, warnings %v", c.golden, again.Digest, p.Digest, warnings)
		}
		if !reflect.DeepEqual(again.Pool, p.Pool) {
			t.Errorf("%s: read again the pool is\n%+v\ninstead of\n%+v", c.golden, again.Pool, p.Pool)
		}
	}
}

func exampleText(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("testdata/berth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestFilesThatMeanTheSameHaveTheSameDigest(t *testing.T) {
	base := head + `plugins:
- {type: queue-depth}
- {type: windowed, parameters: {window: 16}}
- {type: berth-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-depth, weight: 2}, {pluginRef: windowed}, {pluginRef: berth-picker}]}
`
	settings := "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"
	want, _ := mustParse(t, base)
	for name, text := range map[string]string{
		"comments":            "# why\n" + base + "# end\n",
		"a leading separator": "---\n" + base + "---\n",
		"an empty section":    base + settings + "telemetry: {}\n",
		"spelled defaults":    base + settings + "telemetry: {hot: 0.2s, warm: 1000ms}\nlimits: {body: 32768KiB}\nplacement: {quorum: 5e-1}\n",
		"spelled defaults of intents": base + settings + "intent: {metadata: true}\ntrust: {headers: {x-selected-model: logicalModel}}\nmodels: {aliases: {}}\n" +
			"screening: {quarantine: {probeAfter: 10000ms}}\n",
		"order of keys": "kind: EndpointPickerConfig\n" + strings.Replace(base, "kind: EndpointPickerConfig\n", "", 1),
		"order of plugins": head + `schedulingProfiles:
- {plugins: [{pluginRef: berth-picker}, {pluginRef: windowed, weight: 1.0}, {weight: 2.0, pluginRef: queue-depth}], name: default}
plugins:
- {type: berth-picker}
- {name: windowed, type: windowed, parameters: {window: 0x10}}
- {type: queue-depth, parameters: {}}
`,
		"no picker":         strings.Replace(strings.Replace(base, "- {type: berth-picker}\n", "", 1), ", {pluginRef: berth-picker}", "", 1),
		"with an own pool":  base + settings + "---\n" + poolHead + "- {name: a, address: 10.0.0.1, port: 80}\n",
		"with another pool": base + settings + "---\n" + poolHead + "- {name: b, address: 10.0.0.2, port: 80}\n",
	} {
		if p, _ := mustParse(t, text); p.Digest != want.Digest {
			t.Errorf("%s: digest differs:\n%s\n%s", name, p.Effective(), want.Effective())
		}
	}
	for name, text := range map[string]string{
		"a weight":        strings.Replace(base, "weight: 2", "weight: 0", 1),
		"a parameter":     strings.Replace(base, "window: 16", "window: 17", 1),
		"a setting":       base + settings + "ledger: {ring: 0}\n",
		"an alias":        base + settings + "models: {aliases: {a: [b]}}\n",
		"a header":        base + settings + "trust: {headers: {x-model: logicalModel}}\n",
		"no header":       base + settings + "trust: {headers: {}}\n",
		"a channel":       base + settings + "intent: {metadata: false}\n",
		"quarantine":      base + settings + "screening: {quarantine: {maxShare: 0}}\n",
		"the pool's file": base + settings + "discovery: {file: pool.yaml}\n",
	} {
		if p, _ := mustParse(t, text); p.Digest == want.Digest {
			t.Errorf("%s makes no difference to the digest", name)
		}
	}
}

func TestAnyValidConfigurationReadsBackFromItsEffectiveText(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := v1alpha1.DefaultBerthConfiguration()
		c.Gateway.Fallbacks = rapid.IntRange(0, 4).Draw(r, "fallbacks")
		c.Gateway.OnViolation = rapid.SampledFrom([]v1alpha1.ViolationAction{"report", "refuse"}).Draw(r, "onViolation")
		c.Limits.Body = v1alpha1.Bytes(rapid.Int64Range(1<<10, 1<<30).Draw(r, "body"))
		c.Limits.Drain = v1alpha1.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(r, "drain"))
		c.Telemetry.Hot = v1alpha1.Duration(rapid.Int64Range(int64(50*time.Millisecond), int64(time.Second)).Draw(r, "hot"))
		c.Placement.Quorum = rapid.Float64Range(1e-300, 1).Draw(r, "quorum")
		c.Intent.Required = rapid.Bool().Draw(r, "required")
		c.Models.Aliases = rapid.MapOfN(rapid.StringMatching(`[ -~]{1,12}`), rapid.SliceOfNDistinct(rapid.StringMatching(`[ -~]{1,12}`), 1, 4, rapid.ID), 1, 4).Draw(r, "aliases")
		c.Screening.Quarantine.MaxShare = rapid.Float64Range(0, 1).Draw(r, "maxShare")
		c.Discovery.File = rapid.StringMatching(`[a-z:#"' \\-]{1,12}`).Draw(r, "file")
		settings, err := json.Marshal(c)
		if err != nil {
			r.Fatal(err)
		}
		weight := rapid.Float64Range(0, maxWeight).Draw(r, "weight")
		name := rapid.String().Draw(r, "name")
		quotedName, err := json.Marshal("n" + strings.ToValidUTF8(name, "?"))
		if err != nil {
			r.Fatal(err)
		}
		text := fmt.Sprintf("%splugins: [{type: latency, name: %s}]\nschedulingProfiles: [{name: %s, plugins: [{pluginRef: %s, weight: %v}]}]\n---\n%s\n",
			head, quotedName, quotedName, quotedName, weight, settings)
		p, _, err := Parse("berth.yaml", []byte(text), "/etc/berth", catalog{})
		if err != nil {
			// YAML has no place for some characters, even in a JSON string.
			r.Skip(err)
		}
		again, warnings, err := Parse("berth.yaml", []byte(p.Effective()), "/etc/berth", catalog{})
		if err != nil {
			r.Fatalf("%v\n%s", err, p.Effective())
		}
		if again.Digest != p.Digest || again.Effective() != p.Effective() {
			r.Fatalf("not the same again (warnings %v):\n%s\n%s", warnings, p.Effective(), again.Effective())
		}
		// In the effective text discovery.file is in another line.
		again.poolFile = p.poolFile
		if !reflect.DeepEqual(again, p) {
			r.Fatalf("%+v\n%+v", again, p)
		}
	})
}

func TestAnyOrderOfPluginsIsTheSameConfiguration(t *testing.T) {
	refs := []string{"{pluginRef: berth-picker}", "{pluginRef: queue-depth}", "{pluginRef: latency}", "{pluginRef: load}"}
	plugins := []string{"{type: berth-picker}", "{type: queue-depth}", "{type: latency}", "{name: load, type: active-requests}"}
	first := ""
	count := 0
	permute(len(refs), func(order []int) {
		count++
		var a, b []string
		for _, i := range order {
			a, b = append(a, plugins[i]), append(b, refs[i])
		}
		p, _ := mustParse(t, fmt.Sprintf("%splugins: [%s]\nschedulingProfiles: [{name: default, plugins: [%s]}]\n",
			head, strings.Join(a, ", "), strings.Join(b, ", ")))
		if first == "" {
			first = p.Effective()
		}
		if p.Effective() != first {
			t.Errorf("order %v: got\n%s\nwant\n%s", order, p.Effective(), first)
		}
	})
	if count != 24 || strings.Count(first, "weight: 1") != 3 {
		t.Errorf("%d orders; effective\n%s\nwant 24 and the default weight three times", count, first)
	}
}

func permute(n int, each func([]int)) {
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) == n {
			each(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				extend(append(slices.Clone(order), i))
			}
		}
	}
	extend(nil)
}

func TestWhatIsLeftOutOfTheProfileHasADocumentedDefault(t *testing.T) {
	scorer := func(name, typ string, weight float64) ScorerRef {
		return ScorerRef{Name: name, Type: typ, Weight: weight}
	}
	ref := func(name string) PluginRef { return PluginRef{Name: name, Type: name} }
	for _, c := range []struct {
		name, text string
		want       Profile
	}{
		{"nothing said", head, Profile{Name: "default", Picker: ref("berth-picker"), Scorers: []ScorerRef{
			scorer("kv-cache-utilization", "kv-cache-utilization", 2), scorer("load", "active-requests", 1), scorer("queue-depth", "queue-depth", 2)}}},
		{"empty lists", head + "plugins: []\nschedulingProfiles: []\n", Profile{Name: "default", Picker: ref("berth-picker"), Scorers: []ScorerRef{
			scorer("kv-cache-utilization", "kv-cache-utilization", 2), scorer("load", "active-requests", 1), scorer("queue-depth", "queue-depth", 2)}}},
		{"plugins without a profile", head + "plugins: [{type: latency}, {type: health}, {type: random-picker}]\n",
			Profile{Name: "default", Picker: ref("random-picker"), Filters: []PluginRef{ref("health")}, Scorers: []ScorerRef{scorer("latency", "latency", 1)}}},
		{"a picker that no profile refers to", head + "plugins: [{type: latency}, {type: random-picker}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: latency}]}]\n",
			Profile{Name: "p", Picker: ref("random-picker"), Scorers: []ScorerRef{scorer("latency", "latency", 1)}}},
		{"no picker at all", head + "plugins: [{type: latency}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: latency, weight: 0.5}]}]\n",
			Profile{Name: "p", Picker: ref("berth-picker"), Scorers: []ScorerRef{scorer("latency", "latency", 0.5)}}},
		{"an explicit zero weight", head + "plugins: [{type: latency}, {type: queue-depth}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: latency, weight: 0}, {pluginRef: queue-depth}]}]\n",
			Profile{Name: "p", Picker: ref("berth-picker"), Scorers: []ScorerRef{scorer("latency", "latency", 0), scorer("queue-depth", "queue-depth", 1)}}},
		{"filters keep their order", head + "plugins: [{type: subset}, {type: health}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: subset}, {pluginRef: health}]}]\n",
			Profile{Name: "p", Picker: ref("berth-picker"), Filters: []PluginRef{ref("subset"), ref("health")}}},
		{"parameters become canonical JSON", head + "plugins: [{type: windowed, parameters: {'window': 1.0}}]\n",
			Profile{Name: "default", Picker: ref("berth-picker"), Scorers: []ScorerRef{{Name: "windowed", Type: "windowed", Weight: 1, Parameters: json.RawMessage(`{"window":1}`)}}}},
	} {
		p, _ := mustParse(t, c.text)
		if !reflect.DeepEqual(p.Profile, c.want) {
			t.Errorf("%s: got  %+v\nwant %+v", c.name, p.Profile, c.want)
		}
	}
}

func TestStockPluginTypesRunAsTheirTwins(t *testing.T) {
	p, warnings := mustParse(t, head+`plugins:
- {type: single-profile-handler}
- {type: queue-scorer}
- {name: kv, type: kv-cache-utilization-scorer}
- {type: running-requests-size-scorer}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: berth-telemetry}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: kv}, {pluginRef: running-requests-size-scorer}, {pluginRef: max-score-picker, weight: 3}]
`)
	want := Profile{Name: "default", Picker: PluginRef{Name: "max-score-picker", Type: "berth-picker"}, Scorers: []ScorerRef{
		{Name: "kv", Type: "kv-cache-utilization", Weight: 1},
		{Name: "queue-scorer", Type: "queue-depth", Weight: 2},
		{Name: "running-requests-size-scorer", Type: "active-requests", Weight: 1},
	}}
	if !reflect.DeepEqual(p.Profile, want) {
		t.Errorf("got  %+v\nwant %+v", p.Profile, want)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	wantWarnings := []string{
		"berth.yaml:4: plugins[0].type: single-profile-handler has no effect: Berth runs the one profile itself",
		"berth.yaml:5: plugins[1].type: queue-scorer runs as Berth's queue-depth",
		"berth.yaml:6: plugins[2].type: kv-cache-utilization-scorer runs as Berth's kv-cache-utilization",
		"berth.yaml:7: plugins[3].type: running-requests-size-scorer runs as Berth's active-requests",
		"berth.yaml:8: plugins[4].type: max-score-picker runs as Berth's berth-picker",
		"berth.yaml:8: plugins[4].parameters.maxNumOfEndpoints: has no effect: gateway.fallbacks says how many endpoints follow the pick",
		"berth.yaml:12: schedulingProfiles[0].plugins[3].weight: has no effect on a picker",
		"berth.yaml:9: plugins[5]: berth-telemetry has no effect: no profile refers to it",
	}
	if !slices.Equal(got, wantWarnings) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantWarnings, "\n"))
	}
}

func TestAProfileWithoutWeightSpreadsUniformlyAndSaysSo(t *testing.T) {
	_, warnings := mustParse(t, head+"plugins: [{type: latency}]\nschedulingProfiles:\n- {name: p, plugins: [{pluginRef: latency, weight: 0}]}\n")
	if len(warnings) != 1 || warnings[0].Line != 5 || !strings.Contains(warnings[0].Message, "uniformly") {
		t.Errorf("warnings %v; want one for line 5 that says uniformly", warnings)
	}
}

func TestThePoolFileIsMeantFromTheConfigurationsDirectory(t *testing.T) {
	for file, want := range map[string]string{
		"pool.yaml":     "/etc/berth/pool.yaml",
		"../pool.yaml":  "/etc/pool.yaml",
		"/srv/pool.yml": "/srv/pool.yml",
	} {
		p, _ := mustParse(t, berthHead+"discovery: {file: "+file+"}\n")
		if p.Discovery.File != want {
			t.Errorf("%s is %s; want %s", file, p.Discovery.File, want)
		}
		if !strings.Contains(p.Effective(), "file: "+file+"\n") {
			t.Errorf("%s is not in the effective text as written:\n%s", file, p.Effective())
		}
	}
}

func TestEveryKeyOfTheStockFormatIsReadOrRefusedByName(t *testing.T) {
	for f := range reflect.TypeFor[configapi.EndpointPickerConfig]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == "" || key == "plugins" || key == "schedulingProfiles" {
			continue
		}
		_, _, err := Parse("berth.yaml", []byte(head+key+": {}\n"), "", catalog{})
		want := "berth.yaml:3: " + key + ": {...}: is not supported by this version"
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", key, err, want)
		}
	}
}

func TestAPoolFileThatCannotBeReadIsAnErrorOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	missing, bad := filepath.Join(dir, "no.yaml"), filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte(poolHead+"- 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, file, want string }{
		{"missing", berthHead + "discovery:\n  file: no.yaml\n", missing, "berth.yaml:7: discovery.file: no.yaml: cannot be read: open " + missing + ": no such file or directory"},
		{"bad in itself", berthHead + "discovery: {file: bad.yaml}\n", bad, bad + ":5: endpoints[0]: 5: must be a mapping"},
		{"named by nobody", head, missing, missing + ": cannot be read: no such file or directory"},
	} {
		p, _, err := Parse("berth.yaml", []byte(c.text), dir, catalog{})
		if err != nil {
			t.Fatal(err)
		}
		_, cause := LoadPool(c.file, nil)
		err = p.PoolFileError(cause)
		var typed *Error
		if fmt.Sprint(err) != c.want || !errors.As(err, &typed) || errors.Is(err, fs.ErrNotExist) != (c.file == missing) {
			t.Errorf("%s: %v; want %s", c.name, err, c.want)
		}
	}
}

func TestAFileThatCannotBeReadKeepsTheSystemsReason(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.yaml")
	for name, load := range map[string]func(string) error{
		"policy": func(path string) error { _, _, err := Load(path, catalog{}); return err },
		"pool":   func(path string) error { _, err := LoadPool(path, nil); return err },
	} {
		err := load(missing)
		var typed *Error
		if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &typed) || typed.File != missing {
			t.Errorf("%s: %v; want a typed error that is fs.ErrNotExist", name, err)
		}
		if err := load(filepath.Dir(missing)); err == nil {
			t.Errorf("%s: a directory is accepted", name)
		}
	}
}
