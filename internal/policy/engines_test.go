package policy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/internal/engine"
)

// profileText is a profile that reads the queue from NAME_waiting.
func profileText(name, more string) string {
	return fmt.Sprintf(`apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: %[1]s
detect: {prefixes: ["%[1]s_"]}
pages:
- {path: /metrics, format: prometheus}
fields:
  queueDepth: {unit: requests, sources: [{metric: %[1]s_waiting}]}
%[2]s`, name, more)
}

// exporterText is an exporter's profile; page has further members of its page.
func exporterText(name, page string) string {
	return fmt.Sprintf(`apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: %[1]s
role: exporter
detect: {prefixes: ["%[1]s_"]}
labels: {namespace: ns, pod: pod}
pages:
- {path: /metrics, format: prometheus%[2]s}
fields:
  power: {unit: W, sources: [{metric: %[1]s_power, combine: sum}]}
`, name, page)
}

const profilesSetting = berthHead + "telemetry: {profiles: profiles}\n"

// beside makes a configuration's directory whose profiles directory has these
// files.
func beside(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "profiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, "profiles", name), text)
	}
	return dir
}

func parseIn(t *testing.T, dir, text string) *Policy {
	t.Helper()
	p, _, err := Parse("berth.yaml", []byte(text), dir, catalog{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(set *engine.Set) []string {
	var all []string
	for _, p := range set.Profiles() {
		all = append(all, p.Name())
	}
	return all
}

func TestProfilesOfADirectoryReplaceAndJoinTheBuiltInOnes(t *testing.T) {
	defaults, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	builtInAlone, _ := mustParse(t, berthHead)
	if !slices.Equal(names(builtInAlone.Engines), names(defaults)) || builtInAlone.Telemetry.Profiles != "" {
		t.Errorf("without a directory there are %v; want those that are built in", names(builtInAlone.Engines))
	}

	dir := beside(t, map[string]string{
		"vllm.yaml":  profileText("vllm", ""),
		"other.yaml": profileText("mlx", "aliases: [mlx-lm]\n"),
		"README.md":  "not a profile",
		".mlx.yaml":  "an editor's",
		"mlx.yaml~":  "an editor's too",
	})
	if err := os.Mkdir(filepath.Join(dir, "profiles", "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := parseIn(t, dir, profilesSetting+"---\n"+poolHead+
		"- {name: a, address: 10.0.0.1, port: 80, engine: mlx-lm}\n- {name: b, address: 10.0.0.2, port: 80, labels: {berth.dev/engine: mlx}}\n")
	want := append(names(defaults), "mlx")
	slices.Sort(want)
	if got := names(p.Engines); !slices.Equal(got, want) {
		t.Errorf("profiles %v; want %v", got, want)
	}
	if got := string(p.Engines.Profile("vllm").Text()); got != profileText("vllm", "") {
		t.Errorf("vllm is read by\n%s\nwant the file's", got)
	}
	if got := p.ReplacedProfiles(); !slices.Equal(got, []string{"vllm"}) {
		t.Errorf("replaced are %v; want vllm alone", got)
	}
	if got := builtInAlone.ReplacedProfiles(); len(got) > 0 {
		t.Errorf("without a directory %v are replaced", got)
	}
	var told []string
	for _, f := range Lint(p, nil) {
		if f.Code == "BERTH035" {
			told = append(told, f.Where)
		}
	}
	if !slices.Equal(told, []string{"telemetry.profiles: vllm"}) {
		t.Errorf("lint tells %q", told)
	}
	if got := p.Engines.Profile("sglang").Digest(); got != defaults.Profile("sglang").Digest() {
		t.Errorf("sglang is %s; want the built-in one", got)
	}
	if a, b := p.Pool.Endpoints[0].Engine, p.Pool.Endpoints[1].Engine; a != "mlx" || b != "mlx" {
		t.Errorf("engines %q and %q; want mlx for its alias and for its name", a, b)
	}
	if p.Telemetry.Profiles != filepath.Join(dir, "profiles") {
		t.Errorf("the directory is %s; want it beside the configuration", p.Telemetry.Profiles)
	}

	pool := poolHead + "- {name: a, address: 10.0.0.1, port: 80, engine: mlx}\n"
	if _, err := ParsePool("pool.yaml", []byte(pool), p.Engines); err != nil {
		t.Errorf("a pool file may not name the engine: %v", err)
	}
	if _, err := ParsePool("pool.yaml", []byte(pool), nil); err == nil {
		t.Error("by the built-in profiles alone, the engine is accepted")
	}
}

func TestAnEmptyDirectoryOfProfilesIsAllowed(t *testing.T) {
	p := parseIn(t, beside(t, nil), profilesSetting)
	if p.Engines.Profile("vllm") == nil {
		t.Error("the built-in profiles are gone")
	}
}

func TestEachBadDirectoryOfProfilesIsRefusedWithFileLineAndMember(t *testing.T) {
	many := map[string]string{}
	for i := range 65 {
		name := fmt.Sprintf("e%02d", i)
		many[name+".yaml"] = profileText(name, "")
	}
	good := profileText("mlx", "")
	for _, c := range []struct {
		name  string
		files map[string]string
		// want are what follows "cannot be used: "; % is the directory.
		want []string
	}{
		{"an unknown key", map[string]string{"mlx.yaml": good + "ttl: 5s\n"}, []string{
			"%/mlx.yaml:9: ttl: unknown key, allowed are apiVersion, kind, name, aliases, role, detect, never, pages, auth, tls, labels, valid, engineTime, stillAfter, fields, unsupported"}},
		{"a value out of range", map[string]string{"mlx.yaml": strings.Replace(good, "prometheus}", "prometheus, ttl: 1ms}", 1)}, []string{
			`%/mlx.yaml:6: pages[0].ttl: "1ms", want a duration from 100ms to 1h0m0s`}},
		{"no YAML", map[string]string{"mlx.yaml": "kind: [\n"}, []string{"%/mlx.yaml:1: not YAML: did not find expected node content"}},
		{"an empty file", map[string]string{"mlx.yaml": ""}, []string{"%/mlx.yaml:1: the document is empty, want a profile"}},
		{"another kind", map[string]string{"mlx.yaml": strings.Replace(good, "EngineProfile", "StaticPool", 1)}, []string{
			`%/mlx.yaml:2: kind: "StaticPool", want one of EngineProfile`}},
		{"another extension", map[string]string{"mlx.yml": good}, []string{"%/mlx.yml: the name must end in .yaml"}},
		{"a file above 1MiB", map[string]string{"mlx.yaml": good + strings.Repeat("#", 1<<20)}, []string{"%/mlx.yaml: more than 1MiB, must be at most 1MiB"}},
		{"more than 64 files", many, []string{"%: it has more than 64 files that end in .yaml"}},
		{"a name in two files", map[string]string{"a.yaml": good, "b.yaml": good, "c.yaml": profileText("tgi", "")}, []string{
			`%/b.yaml:3: name: "mlx" is a name of profile "mlx" (%/a.yaml:3), want one of its own`}},
		{"an alias that is a built-in name", map[string]string{"mlx.yaml": good + "aliases: [vllm]\n"}, []string{
			`%/mlx.yaml:9: aliases[0]: "vllm" is a name of the built-in profile "vllm", want one of its own`}},
		{"the families of a built-in engine", map[string]string{"mine.yaml": strings.Replace(profileText("mine", ""), "mine_", "sglang:", 1)}, []string{
			`%/mine.yaml:4: detect.prefixes[0]: "sglang:" overlaps with "sglang:" of the built-in profile "sglang": a page could be of either, want a prefix of its own`}},
		{"files from nowhere in particular", map[string]string{"mlx.yaml": good + "auth: {bearerTokenFile: token}\ntls: {caFile: ../ca.pem}\n"}, []string{
			`%/mlx.yaml:9: auth.bearerTokenFile: "token", want an absolute path`, `%/mlx.yaml:10: tls.caFile: "../ca.pem", want an absolute path`}},
		{"two bad files, and a good one", map[string]string{"a.yaml": "a", "b.yaml": good, "c.yaml": "- c"}, []string{
			`%/a.yaml:1: "a", want a mapping`, "%/c.yaml:1: a list, want a mapping"}},
		{"a name that forges a line", map[string]string{"a\nb.yaml": ""}, []string{`"%/a\nb.yaml":1: the document is empty, want a profile`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := beside(t, c.files)
			// The pool names what the profile would have been for: one mistake, one error.
			p, _, err := Parse("berth.yaml", []byte(profilesSetting+"---\n"+poolHead+"- {name: a, address: 10.0.0.1, port: 80, engine: mlx}\n"), dir, catalog{})
			if p != nil {
				t.Error("the configuration is accepted")
			}
			wantProfileErrors(t, err, dir, c.want)
		})
	}
}

// wantProfileErrors compares whole texts.
func wantProfileErrors(t *testing.T, err error, dir string, want []string) {
	t.Helper()
	var lines []string
	for _, w := range want {
		lines = append(lines, "berth.yaml:6: telemetry.profiles: profiles: cannot be used: "+strings.ReplaceAll(w, "%", filepath.Join(dir, "profiles")))
	}
	if got := fmt.Sprint(err); got != strings.Join(lines, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
	}
	if _, others := refusals(err); len(others) > 0 {
		t.Errorf("untyped errors %q", others)
	}
}

func TestOnlyRegularFilesAreReadAsProfiles(t *testing.T) {
	dir := beside(t, nil)
	at := filepath.Join(dir, "profiles")
	if err := syscall.Mkfifo(filepath.Join(at, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(at, "b.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	symlink(t, "/dev/zero", filepath.Join(at, "c.yaml"))
	symlink(t, "nowhere", filepath.Join(at, "d.yaml"))
	_, _, err := Parse("berth.yaml", []byte(profilesSetting), dir, catalog{})
	wantProfileErrors(t, err, dir, []string{
		"%/a.yaml: it is not a regular file", "%/b.yaml: is a directory",
		"%/c.yaml: it is not a regular file", "%/d.yaml: no such file or directory",
	})
}

func TestTheDirectoryOfProfilesMustBeOne(t *testing.T) {
	dir := t.TempDir()
	_, _, err := Parse("berth.yaml", []byte(profilesSetting), dir, catalog{})
	wantProfileErrors(t, err, dir, []string{"%: no such file or directory"})

	write(t, filepath.Join(dir, "profiles"), profileText("mlx", ""))
	_, _, err = Parse("berth.yaml", []byte(profilesSetting), dir, catalog{})
	wantProfileErrors(t, err, dir, []string{"%: not a directory"})

	if err := os.Remove(filepath.Join(dir, "profiles")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "profiles"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = Parse("berth.yaml", []byte(profilesSetting), dir, catalog{})
	wantProfileErrors(t, err, dir, []string{"%: not a directory"})
}

func TestTheDigestCoversTheProfilesOfTheDirectory(t *testing.T) {
	files := map[string]string{"a.yaml": profileText("mlx", ""), "b.yaml": profileText("tgi", "")}
	dir := beside(t, files)
	first := parseIn(t, dir, profilesSetting)
	again := parseIn(t, dir, first.Effective())
	if again.Digest != first.Digest || again.Effective() != first.Effective() {
		t.Errorf("the effective text is another policy:\n%s\n%s", first.Effective(), again.Effective())
	}
	if other := parseIn(t, beside(t, map[string]string{"x.yaml": files["b.yaml"], "y.yaml": files["a.yaml"], "README": ""}), profilesSetting); other.Digest != first.Digest {
		t.Error("names of files, or what is no profile, make a difference")
	}
	for name, change := range map[string]map[string]string{
		"a changed profile": {"a.yaml": profileText("mlx", "stillAfter: 20s\n")},
		"a new profile":     {"c.yaml": profileText("ray", "")},
	} {
		changed := map[string]string{}
		for name, text := range files {
			changed[name] = text
		}
		for name, text := range change {
			changed[name] = text
		}
		if other := parseIn(t, beside(t, changed), profilesSetting); other.Digest == first.Digest {
			t.Errorf("%s makes no difference to the digest", name)
		}
	}
}

func TestExportersTakeWhatIsLeftOutFromTheirProfile(t *testing.T) {
	dir := beside(t, map[string]string{
		"plain.yaml":  exporterText("plain", ""),
		"secure.yaml": exporterText("secure", ", port: 9443, scheme: https"),
	})
	at := func(profile, address, scheme string) Exporter {
		return Exporter{Profile: profile, Address: netip.MustParseAddrPort(address), Scheme: scheme}
	}
	p := parseIn(t, dir, berthHead+`telemetry:
  profiles: profiles
  exporters:
  - {profile: secure, address: "fd00::1"}
  - {profile: dcgm-exporter, address: 10.0.0.2}
  - {profile: dcgm, address: "::ffff:10.0.0.1", port: 9401, scheme: https}
  - {profile: secure, address: 127.0.0.1, port: 1, scheme: http}
  - {profile: plain, address: 10.0.0.2, port: 9400}
`)
	want := []Exporter{
		at("secure", "[fd00::1]:9443", "https"),
		at("dcgm", "10.0.0.2:9400", "http"),
		at("dcgm", "10.0.0.1:9401", "https"),
		at("secure", "127.0.0.1:1", "http"),
		at("plain", "10.0.0.2:9400", "http"),
	}
	if !reflect.DeepEqual(p.Exporters, want) {
		t.Errorf("got  %v\nwant %v", p.Exporters, want)
	}
	again := parseIn(t, dir, p.Effective())
	if again.Digest != p.Digest || !reflect.DeepEqual(again.Exporters, want) {
		t.Errorf("read again from the effective text: %v\n%s", again.Exporters, p.Effective())
	}
	if other := parseIn(t, dir, strings.Replace(p.Effective(), "port: 9401", "port: 9402", 1)); other.Digest == p.Digest {
		t.Error("an exporter's port makes no difference to the digest")
	}
}

func TestEachBadExporterIsRefusedWithItsPlace(t *testing.T) {
	const head = berthHead + "telemetry:\n  profiles: profiles\n  exporters:\n"
	const profiles = "must be the name or an alias of an exporter's profile (amd-gpu, dcgm, plain); telemetry.profiles adds others"
	tooMany := strings.Repeat("  - {profile: dcgm, address: 10.0.0.1}\n", 4097)
	for _, c := range []refused{
		{"no list", berthHead + "telemetry: {profiles: profiles, exporters: {}}\n", []string{"6: telemetry.exporters: {...}: must be a list"}},
		{"no mapping", head + "  - dcgm\n", []string{"9: telemetry.exporters[0]: dcgm: must be a mapping"}},
		{"an unknown key", head + "  - {profile: dcgm, address: 10.0.0.1, path: /x}\n", []string{
			"9: telemetry.exporters[0].path: /x: is an unknown key; known here: address, port, profile, scheme"}},
		{"nothing", head + "  - {}\n", []string{
			"9: telemetry.exporters[0].profile: missing: " + profiles, "9: telemetry.exporters[0].address: missing: must be an IPv4 or IPv6 address without port and brackets; hostnames are not resolved"}},
		{"an unknown profile", head + "  - {profile: gpus, address: 10.0.0.1}\n", []string{"9: telemetry.exporters[0].profile: gpus: " + profiles}},
		{"an engine for an exporter", head + "  - {profile: vllm, address: 10.0.0.1, port: 1}\n", []string{"9: telemetry.exporters[0].profile: vllm: " + profiles}},
		{"a hostname", head + "  - {profile: dcgm, address: localhost}\n", []string{"9: telemetry.exporters[0].address: localhost: must be an IPv4 or IPv6 address"}},
		{"a link-local address", head + "  - {profile: dcgm, address: 169.254.169.254}\n", []string{
			"9: telemetry.exporters[0].address: 169.254.169.254: must be a routable or loopback address: not a link-local one"}},
		{"a multicast address", head + "  - {profile: dcgm, address: \"ff02::1\"}\n", []string{
			"9: telemetry.exporters[0].address: \"ff02::1\": must be an address of one host: not a multicast or broadcast address"}},
		{"port 0", head + "  - {profile: dcgm, address: 10.0.0.1, port: 0}\n", []string{"9: telemetry.exporters[0].port: 0: must be 1 to 65535"}},
		{"no port at all", head + "  - {profile: plain, address: 10.0.0.1}\n", []string{
			"9: telemetry.exporters[0].port: missing: must be 1 to 65535: the profile names no port"}},
		{"another scheme", head + "  - {profile: dcgm, address: 10.0.0.1, scheme: ftp}\n", []string{"9: telemetry.exporters[0].scheme: ftp: must be http or https"}},
		{"an empty scheme", head + "  - {profile: dcgm, address: 10.0.0.1, scheme: \"\"}\n", []string{`9: telemetry.exporters[0].scheme: "": must be http or https`}},
		{"one twice", head + "  - {profile: dcgm, address: 10.0.0.1, port: 9400}\n  - {profile: plain, address: 10.0.0.1, port: 9400}\n  - {profile: dcgm-exporter, address: \"::ffff:10.0.0.1\", scheme: https}\n", []string{
			"11: telemetry.exporters[2].address: \"::ffff:10.0.0.1\": must be read once: dcgm at 10.0.0.1:9400: telemetry.exporters[0] in line 9 has it"}},
		{"more than 4096", head + tooMany, []string{"8: telemetry.exporters: [...]: must have at most 4096 entries"}},
		{"an empty directory name", berthHead + "telemetry: {profiles: \"\"}\n", []string{`6: telemetry.profiles: "": must be the path of a directory`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := beside(t, map[string]string{"plain.yaml": exporterText("plain", "")})
			p, _, err := Parse("berth.yaml", []byte(c.text), dir, catalog{})
			if p != nil {
				t.Error("the configuration is accepted")
			}
			wantRefusals(t, err, c.want)
		})
	}
}

func TestAProfileWhoseLifeOfReadingsTheCadenceOverrulesIsNoted(t *testing.T) {
	withTTL := func(name, ttl string) string {
		return strings.Replace(profileText(name, ""), "prometheus}", "prometheus, ttl: "+ttl+"}", 1)
	}
	dir := beside(t, map[string]string{
		"below.yaml": withTTL("below", "15999ms"), "at.yaml": withTTL("at", "16s"), "unset.yaml": profileText("unset", ""),
		"exporter.yaml": exporterText("gpus", ", ttl: 1s"),
	})
	for telemetry, want := range map[string][]string{
		// Three idle intervals of 5s and a timeout of 1s.
		"{profiles: profiles}":                            {"profile below"},
		"{profiles: profiles, idle: 6s}":                  {"profile at", "profile below"},
		"{profiles: profiles, idle: 5s, timeout: 1001ms}": {"profile at", "profile below"},
		"{profiles: profiles, idle: 4s}":                  nil,
		"{profiles: profiles, mode: none}":                nil,
		"{}":                                              nil,
	} {
		var got []string
		for _, f := range Lint(parseIn(t, dir, berthHead+"telemetry: "+telemetry+"\n"), nil) {
			if f.Code == "BERTH016" {
				got = append(got, f.Where)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("telemetry: %s: %q; want %q", telemetry, got, want)
		}
	}
}
