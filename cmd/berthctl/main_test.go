package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/gateway"
	"github.com/berth-dev/berth/internal/policy"
)

// runMain makes the test binary run berthctl.
const runMain = "BERTH_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// execute runs berthctl in this process.
func execute(args ...string) (stdout, stderr string, err error) {
	cmd := command()
	var out, errOut bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return out.String(), errOut.String(), err
}

// exit is the exit code that main makes of an error.
func exit(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return exitUsage
	default:
		return exitFindings
	}
}

const pickerDocument = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth, weight: 2}
  - {pluginRef: berth-picker}
`

const poolDocument = `apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {namespace: local, name: demo}
failureMode: FailClose
endpoints:
- {name: r1, address: 127.0.0.1, port: 19101, engine: vllm}
- {name: r2, address: "::1", port: 19102, engine: vllm}
`

func settings(members string) string {
	return "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n" + members
}

// files writes files by name into a directory of their own and returns it.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWrongCommandLinesAreUsageErrorsThatNameThemselves(t *testing.T) {
	dir := files(t, map[string]string{
		"good.yaml":      pickerDocument + "---\n" + poolDocument,
		"fallbacks.yaml": pickerDocument + settings("gateway: {fallbacks: 2}\n---\n"+poolDocument),
		"trailers.yaml":  pickerDocument + settings("gateway: {fallbacks: 2, requestTrailers: pass}\n---\n"+poolDocument),
		"lost.yaml":      pickerDocument + settings("discovery: {file: missing.yaml}\n"),
	})
	good, fallbacks := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "fallbacks.yaml")
	trailers, lost := filepath.Join(dir, "trailers.yaml"), filepath.Join(dir, "lost.yaml")
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"dance"}, `"dance"`},
		{[]string{"--loud"}, "--loud"},
		{[]string{"version", "extra"}, `"extra"`},
		{[]string{"version", "-o", "xml"}, `--output: "xml": must be table, json or yaml`},
		{[]string{"lint"}, "FILE: missing"},
		{[]string{"lint", filepath.Join(dir, "missing.yaml")}, "missing.yaml"},
		{[]string{"lint", good, "--pool", filepath.Join(dir, "missing.yaml")}, "missing.yaml"},
		{[]string{"gateway"}, "FILE: missing"},
		{[]string{"gateway", "a", "b"}, `"b"`},
		{[]string{"gateway", filepath.Join(dir, "missing.yaml")}, "missing.yaml"},
		{[]string{"gateway", good, "--kind", "magic"}, `--kind: "magic": must be override-host or original-dst`},
		{[]string{"gateway", good, "--listen", "nowhere"}, `--listen: "nowhere": must be ip:port`},
		{[]string{"gateway", good, "--admin", "nowhere"}, `--admin: "nowhere": must be ip:port`},
		{[]string{"gateway", good, "--picker", "nowhere"}, `--picker: "nowhere": must be ip:port or name:port`},
		{[]string{"gateway", good, "--picker-tls", "on"}, `--picker-tls: "on": must be off, unverified, or the absolute and printable path of a file`},
		{[]string{"gateway", good, "--access-log", "a\tb"}, `--access-log: "a\tb": must be a printable path`},
		{[]string{"gateway", fallbacks, "--kind", "original-dst"}, "gateway.fallbacks: 2: must be 0 with --kind original-dst"},
		{[]string{"gateway", fallbacks, "--kind", "original-dst", "--dir", filepath.Join(dir, "out")}, "gateway.fallbacks: 2: must be 0 with --kind original-dst"},
		{[]string{"gateway", trailers}, "gateway.fallbacks: 2: must be 0 with gateway.requestTrailers pass: after trailers"},
		{[]string{"gateway", lost}, "lost.yaml:14: discovery.file: missing.yaml: cannot be read: open " + filepath.Join(dir, "missing.yaml")},
		{[]string{"lint", lost}, "lost.yaml:14: discovery.file: missing.yaml: cannot be read: open " + filepath.Join(dir, "missing.yaml")},
		{[]string{"gateway", good, "--dir", good}, "--dir"},
		{[]string{"explain"}, "ID: missing"},
		{[]string{"explain", "x", "--server", "not a url"}, `--server: "not a url"`},
		{[]string{"explain", "x", "--ledger", filepath.Join(dir, "missing.log")}, "missing.log"},
		{[]string{"explain", "x", "--ledger", good}, "good.yaml:1: not a decision record"},
		{[]string{"top", "--interval", "1ms"}, "--interval: 1ms: must be from 100ms to 1h"},
		{[]string{"top", "--interval", "soon"}, "soon"},
		{[]string{"top", "--once", "--server", "ftp//x"}, "--server"},
		{[]string{"demo", "extra"}, `"extra"`},
	}
	for _, tt := range tests {
		out, _, err := execute(tt.args...)
		if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%q: error %v with exit %d, want %q with exit 2", tt.args, err, exit(err), tt.want)
		}
		if out != "" && tt.args[0] != "lint" {
			t.Errorf("%q printed %q", tt.args, out)
		}
	}
}

func TestEveryOptionOfTheGatewayHasANameThatUsersKnow(t *testing.T) {
	for f := range reflect.TypeFor[gateway.Options]().Fields() {
		// The limit has its default here: nobody can set it wrong.
		if written := optionNames(f.Name); written == f.Name && f.Name != "BodyBufferLimit" {
			t.Errorf("%s is told by its Go name", f.Name)
		}
	}
}

func TestAllLinesOfAnErrorAreInOneForm(t *testing.T) {
	dir := files(t, map[string]string{
		"bad.yaml":   pickerDocument + settings("gateway: {fallbacks: 9}\ntelemetry: {workers: 0}\n"),
		"worse.yaml": pickerDocument + settings("ledger: {ring: -1}\n"),
		"good.yaml":  pickerDocument + "---\n" + poolDocument,
	})
	bad, worse, good := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "worse.yaml"), filepath.Join(dir, "good.yaml")
	fallbacks, workers := bad+":14: gateway.fallbacks: 9: must be 0 to 4\n", bad+":15: telemetry.workers: 0: must be 1 to 1024\n"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"lint", bad, worse}, fallbacks + workers + worse + ":14: ledger.ring: -1: must be 0 to 100000\n"},
		{[]string{"gateway", bad}, fallbacks + workers},
		{[]string{"gateway", good, "--kind", "magic", "--access-log", "\t"},
			"berthctl: --kind: \"magic\": must be override-host or original-dst\n" +
				"berthctl: --access-log: \"\\t\": must be a printable path, or empty for standard output\n"},
		{[]string{"lint"}, "berthctl: FILE: missing\n"},
	} {
		_, _, err := execute(tt.args...)
		if err == nil {
			t.Errorf("%q: no error", tt.args)
			continue
		}
		var printed bytes.Buffer
		report(&printed, err)
		if printed.String() != tt.want {
			t.Errorf("%q printed\n%swant\n%s", tt.args, printed.String(), tt.want)
		}
	}
}

func TestLintReportsErrorsByTheirParts(t *testing.T) {
	text := settings("discovery: {file: pool.yaml}\ngateway: {fallbacks: 9}\n")
	many := ""
	for i := range 21 {
		many += fmt.Sprintf("x%d: 1\n", i)
	}
	dir := files(t, map[string]string{
		"bad.yaml": pickerDocument + text, "many.yaml": pickerDocument + settings(many),
		"uses.yaml": pickerDocument + settings("discovery: {file: pool.yaml}\n"),
		"pool.yaml": strings.Replace(poolDocument, "engine: vllm", "engine: acme", 1),
	})
	report := func(name string) []lintError {
		t.Helper()
		out, _, err := execute("lint", filepath.Join(dir, name), "-o", "json")
		var doc lintDocument
		if exit(err) != exitUsage || json.Unmarshal([]byte(out), &doc) != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return doc.Errors
	}
	for name, want := range map[string]lintError{
		"bad.yaml": {filepath.Join(dir, "bad.yaml"), 15, "gateway.fallbacks", "9", "must be 0 to 4"},
		"uses.yaml": {filepath.Join(dir, "pool.yaml"), 6, "endpoints[0].engine", "acme",
			"must be the name or an alias of an engine's profile (atom, sglang, triton-tensorrt-llm, trtllm-serve, vllm); " +
				"telemetry.profiles adds others; leave it out to serve without telemetry"},
		"no.yaml": {filepath.Join(dir, "no.yaml"), 0, "", "", "cannot be read: no such file or directory"},
	} {
		if got := report(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v alone", name, got, want)
		}
	}
	got := report("many.yaml")
	if want := (lintError{File: filepath.Join(dir, "many.yaml"), Message: "1 more errors are not shown"}); len(got) != 21 || got[20] != want {
		t.Errorf("many.yaml: %d errors, the last %+v; want 21 and %+v", len(got), got[len(got)-1], want)
	}
}

func TestAPoolMayDeclareTheEnginesThatAreRead(t *testing.T) {
	profiles, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles.Engines() {
		text := strings.ReplaceAll(poolDocument, "engine: vllm", "engine: "+p.Name())
		if _, err := policy.ParsePool("pool.yaml", []byte(text), nil); err != nil {
			t.Errorf("%s has a profile and is refused: %v", p.Name(), err)
		}
	}
}

func TestHelpAndVersionAreNoErrors(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"lint", "--help"}} {
		if out, _, err := execute(args...); err != nil || !strings.Contains(out, "Usage:") {
			t.Errorf("%q: %v, %q", args, err, out)
		}
	}
	if out, _, err := execute("--version"); err != nil || !strings.Contains(out, runtime.Version()) {
		t.Errorf("--version: %v, %q", err, out)
	}
}

func TestVersionNamesTheBuildAndTheProfiles(t *testing.T) {
	out, _, err := execute("version")
	if err != nil || !strings.Contains(out, runtime.Version()) || !strings.Contains(out, "profile   vllm@sha256:") {
		t.Errorf("version: %v\n%s", err, out)
	}
	for _, format := range []string{"json", "yaml"} {
		out, _, err := execute("version", "-o", format)
		if err != nil {
			t.Fatal(err)
		}
		var doc versionDocument
		if err := yaml.UnmarshalStrict([]byte(out), &doc); err != nil {
			t.Fatalf("%s: %v\n%s", format, err, out)
		}
		if doc.Go != runtime.Version() || !slices.ContainsFunc(doc.Profiles, func(p string) bool { return strings.HasPrefix(p, "vllm@sha256:") }) {
			t.Errorf("%s: %+v", format, doc)
		}
	}
}

// aFilter is an ext_proc filter that fails open, as JSON and as YAML.
const aFilter = `{"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", "failure_mode_allow": true}`

func TestLint(t *testing.T) {
	dir := files(t, map[string]string{
		"good.yaml":     pickerDocument + settings("discovery: {file: pool.yaml}\n"),
		"pool.yaml":     poolDocument,
		"none.yaml":     strings.Replace(poolDocument, "FailClose", "FailOpen", 1),
		"warns.yaml":    pickerDocument + settings("discovery: {file: pool.yaml}\ntelemetry: {mode: none}\n"),
		"note.yaml":     pickerDocument + settings("discovery: {file: pool.yaml}\ngateway: {fallbacks: 1}\n"),
		"stock.yaml":    strings.ReplaceAll(pickerDocument, "queue-depth", "queue-scorer") + settings("discovery: {file: pool.yaml}\n"),
		"broken.yaml":   pickerDocument + settings("gateway: {fallbacks: 9}\n"),
		"nopool.yaml":   pickerDocument,
		"badpool.yaml":  strings.Replace(poolDocument, "19101", "0", 1),
		"garbage.yaml":  "\x00\x01: [",
		"stranger.yaml": "apiVersion: v1\nkind: ConfigMap\n",
		"envoy.yaml":    "static_resources: {}\n---\nstatic_resources: {f: " + aFilter + "}\n",
		"cut.yaml":      "static_resources:\n  listeners:\n  - name: [\n",
		"dump.json":     `{"configs": [` + aFilter + `]}`,
		"cut.json":      "{\"configs\": [\n" + aFilter + ",\n",
		"half.yaml":     "static_resources: [" + aFilter + ", {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, disabled: maybe}]\n",
	})
	long, err := os.Create(filepath.Join(dir, "long.yaml"))
	if err == nil {
		err = errors.Join(long.Truncate(maxLinted+1), long.Close())
	}
	if err == nil {
		err = syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		exit int
		// out and err are parts of what is printed and of the error.
		out, err string
	}{
		{name: "a good configuration", args: []string{"good.yaml"}, out: "good.yaml: no findings"},
		{name: "a good pool alone", args: []string{"pool.yaml"}, out: "pool.yaml: no findings"},
		{name: "a configuration with a warning", args: []string{"warns.yaml"}, exit: 1, out: "warns.yaml: BERTH003 warning: telemetry.mode"},
		{name: "what loading warns of, without a fix", args: []string{"stock.yaml"}, exit: 1, out: "stock.yaml: BERTH000 warning: line 4: plugins[0].type\n    queue-scorer runs as Berth's queue-depth\n"},
		{name: "a note alone", args: []string{"note.yaml"}, out: "note.yaml: BERTH004 note: gateway.fallbacks"},
		{name: "no pool", args: []string{"nopool.yaml"}, exit: 1, out: "BERTH009"},
		{name: "a pool that is given beside it", args: []string{"nopool.yaml", "--pool", "pool.yaml"}, out: "no findings"},
		{name: "a pool with a warning", args: []string{"none.yaml"}, exit: 1, out: "BERTH012"},
		{name: "a configuration that does not load", args: []string{"broken.yaml"}, exit: 2, err: "broken.yaml:14: gateway.fallbacks: 9: "},
		{name: "a pool that does not load", args: []string{"badpool.yaml"}, exit: 2, err: "badpool.yaml:6: endpoints[0].port: 0"},
		{name: "one that loads and one that does not", args: []string{"warns.yaml", "broken.yaml"}, exit: 2, out: "BERTH003", err: "gateway.fallbacks"},
		{name: "a file that is no YAML", args: []string{"garbage.yaml"}, exit: 2, err: "garbage.yaml"},
		{name: "a file of another kind", args: []string{"stranger.yaml"}, exit: 2, err: "stranger.yaml"},
		{name: "an Envoy configuration of two documents", args: []string{"envoy.yaml"}, exit: 1, out: "envoy.yaml: BERTH105 warning: ext_proc filter at line 3\n"},
		{name: "a dump of Envoy's", args: []string{"dump.json"}, exit: 1, out: "dump.json: BERTH105 warning: ext_proc filter at line 1\n"},
		{name: "an Envoy configuration that is cut", args: []string{"cut.yaml"}, exit: 2, err: "is not valid YAML: "},
		{name: "a dump that is cut", args: []string{"cut.json"}, exit: 2, err: "cut.json:2: is not valid JSON: "},
		{name: "an Envoy configuration of which a part cannot be read", args: []string{"half.yaml"}, exit: 2, out: "half.yaml: BERTH105",
			err: "half.yaml:1: envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute: cannot be read: "},
		{name: "a file that is too long", args: []string{"long.yaml"}, exit: 2, err: "long.yaml: more than 256MiB: must be at most 256MiB"},
		{name: "a pipe that nobody writes to", args: []string{"pipe.yaml"}, exit: 2, err: "pipe.yaml: cannot be read: it is not a regular file"},
		{name: "a device that never ends", args: []string{"/dev/zero"}, exit: 2, err: "/dev/zero: cannot be read: it is not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"lint"}
			for _, arg := range tt.args {
				if filepath.Ext(arg) != "" {
					arg = filepath.Join(dir, arg)
				}
				args = append(args, arg)
			}
			out, _, err := execute(args...)
			if exit(err) != tt.exit {
				t.Errorf("exit %d (%v), want %d", exit(err), err, tt.exit)
			}
			if strings.Contains(out, "fix: \n") {
				t.Errorf("an empty fix is printed: %q", out)
			}
			if !strings.Contains(out, tt.out) || (tt.out == "" && strings.Contains(out, "no findings")) {
				t.Errorf("printed %q, want %q in it", out, tt.out)
			}
			if tt.err != "" && !strings.Contains(fmt.Sprint(err), tt.err) {
				t.Errorf("error %v, want %q in it", err, tt.err)
			}
			var doc lintDocument
			out, _, _ = execute(append(args, "-o", "json")...)
			if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Kind != "LintReport" || doc.Findings == nil || doc.Errors == nil || (len(doc.Errors) > 0) != (tt.err != "") {
				t.Errorf("as JSON: %v, %s", err, out)
			}
			for _, f := range doc.Findings {
				if f.File == "" || f.Code == "" || f.Explanation == "" || (f.Fix == "") != (f.Code == warningCode) {
					t.Errorf("finding without a part: %+v", f)
				}
			}
		})
	}
}

func TestGatewayWritesWhatEnvoyReads(t *testing.T) {
	dir := files(t, map[string]string{"berth.yaml": pickerDocument + "---\n" + poolDocument, "bare.yaml": pickerDocument, "pool.yaml": poolDocument})
	config := filepath.Join(dir, "berth.yaml")
	for _, kind := range []string{"override-host", "original-dst"} {
		for _, format := range []string{"table", "yaml", "json"} {
			out, _, err := execute("gateway", config, "--kind", kind, "-o", format, "--listen", "127.0.0.1:18080", "--picker", "127.0.0.1:19002")
			if err != nil {
				t.Fatalf("%s, %s: %v", kind, format, err)
			}
			var doc map[string]any
			if err := yaml.Unmarshal([]byte(out), &doc); err != nil {
				t.Fatalf("%s, %s: %v", kind, format, err)
			}
			if doc["static_resources"] == nil || !strings.Contains(out, "18080") || !strings.Contains(out, "19002") {
				t.Errorf("%s, %s: no bootstrap for these addresses:\n%s", kind, format, out)
			}
			if isJSON := json.Valid([]byte(out)); isJSON != (format == "json") {
				t.Errorf("%s: printed JSON %t when asked for %s", kind, isJSON, format)
			}
		}
	}
	// The pool may be given beside a configuration that names none.
	out, _, err := execute("gateway", filepath.Join(dir, "bare.yaml"), "--pool", filepath.Join(dir, "pool.yaml"))
	if err != nil || !strings.Contains(out, "19101") {
		t.Errorf("with --pool: %v, the endpoint is there: %t", err, strings.Contains(out, "19101"))
	}

	for mode, want := range map[string]bool{"off": false, "unverified": true, "/etc/berth/ca.crt": true} {
		out, _, err := execute("gateway", config, "--picker-tls", mode)
		if err != nil || strings.Contains(out, "UpstreamTlsContext") != want || strings.Contains(out, `"/etc/berth/ca.crt"`) != (mode[0] == '/') {
			t.Errorf("--picker-tls %s: %v\n%s", mode, err, out)
		}
	}

	target := filepath.Join(dir, "made", "here")
	out, _, err = execute("gateway", config, "--dir", target)
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := filepath.Join(target, "envoy.yaml")
	if !strings.Contains(out, "wrote "+bootstrap) {
		t.Errorf("printed %q", out)
	}
	entries, err := os.ReadDir(target)
	if err != nil || len(entries) < 2 {
		t.Fatalf("%d files were written: %v", len(entries), err)
	}
	found := false
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(target, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Errorf("%s: %v", entry.Name(), err)
		}
		found = found || strings.Contains(string(text), "19101")
	}
	if !found {
		t.Error("no file names the endpoint")
	}
	out, _, err = execute("gateway", config, "--dir", target, "-o", "json")
	var doc map[string]string
	if err != nil || json.Unmarshal([]byte(out), &doc) != nil || doc["bootstrap"] != bootstrap {
		t.Errorf("as JSON: %v, %s", err, out)
	}
}

// aDecision is a record that explain can tell.
func aDecision(id, pick string) *v1alpha1.Decision {
	return &v1alpha1.Decision{
		Version: v1alpha1.Version, Kind: "Decision", ID: id, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Rung: "spread", Members: 1, Screened: 1, Pick: pick, Replayable: true,
		Candidates: []v1alpha1.Candidate{{Replica: pick, Rank: 1}},
	}
}

func TestExplainReadsALedger(t *testing.T) {
	var log bytes.Buffer
	enc := json.NewEncoder(&log)
	first, large := aDecision("d1", "r1"), aDecision("d2", "r2")
	for range 5000 { // a line far above a scanner's usual bound
		large.Candidates = append(large.Candidates, v1alpha1.Candidate{Replica: "other", RemovedBy: "health"})
	}
	for _, d := range []*v1alpha1.Decision{first, large} {
		if err := enc.Encode(d); err != nil {
			t.Fatal(err)
		}
	}
	dir := files(t, map[string]string{"records.log": log.String(), "empty.log": "", "cut.log": log.String()[:log.Len()/2]})
	records := filepath.Join(dir, "records.log")
	for id, pick := range map[string]string{"d1": "r1", "d2": "r2", "latest": "r2"} {
		out, _, err := execute("explain", id, "--ledger", records)
		if err != nil || !strings.Contains(out, pick+" was the only replica left.") {
			t.Errorf("explain %s: %v\n%.300s", id, err, out)
		}
	}
	out, _, err := execute("explain", "d1", "--ledger", records, "-o", "json")
	var d v1alpha1.Decision
	if err != nil || json.Unmarshal([]byte(out), &d) != nil || d.ID != "d1" || d.Pick != "r1" {
		t.Errorf("as JSON: %v, %s", err, out)
	}
	for file, want := range map[string]string{
		"records.log": `no decision with the id "d3"`, "empty.log": `no decision with the id "d3"`, "cut.log": "cut.log:2: not a decision record",
	} {
		_, _, err := execute("explain", "d3", "--ledger", filepath.Join(dir, file))
		if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v with exit %d, want %q", file, err, exit(err), want)
		}
	}
}

func TestExplainReadsNoPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "records.log")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		pipe: "it is not a regular file", "/dev/zero": "it is not a regular file", t.TempDir(): "is a directory",
	} {
		if _, _, err := execute("explain", "latest", "--ledger", path); exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), path+": "+want) {
			t.Errorf("%s: %v with exit %d, want %q", path, err, exit(err), want)
		}
	}
}

// A command that does not look at its context, here one whose reader has stopped
// reading, is ended by the second signal.
func TestASecondSignalEndsACommandThatHangs(t *testing.T) {
	pool := filepath.Join(files(t, map[string]string{"none.yaml": strings.Replace(poolDocument, "FailClose", "FailOpen", 1)}), "none.yaml")
	args := []string{"lint"}
	for range 2000 { // findings of far more than a pipe holds
		args = append(args, pool)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), runMain+"=1")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = cmd.Process.Wait()
		close(ended)
	}()
	// When the first signal was seen is not told, so that more are sent until the
	// process has ended.
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	limit := time.After(time.Minute)
	for {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
			return
		case <-again.C:
		case <-limit:
			_ = cmd.Process.Kill()
			t.Fatal("signals did not end the command")
		}
	}
}

// picker answers as an admin listener would.
func picker(t *testing.T, decisions ...*v1alpha1.Decision) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, doc any) {
		if err := json.NewEncoder(w).Encode(doc); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /v1alpha1/replicas", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"version": v1alpha1.Version, "kind": "ReplicaList", "items": []v1alpha1.Observation{{Replica: v1alpha1.Replica{Name: "r1"}, Order: "last", Engine: "vllm"}}})
	})
	mux.HandleFunc("GET /v1alpha1/decisions", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"version": v1alpha1.Version, "kind": "DecisionList", "items": decisions})
	})
	mux.HandleFunc("GET /v1alpha1/decisions/{id}", func(w http.ResponseWriter, r *http.Request) {
		for _, d := range decisions {
			if d.ID == r.PathValue("id") {
				answer(w, d)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		answer(w, map[string]string{"error": "no decision with this id is in memory"})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestExplainAsksAPicker(t *testing.T) {
	url := picker(t, aDecision("d2", "r2"), aDecision("d1", "r1"))
	for id, pick := range map[string]string{"d1": "r1", "latest": "r2"} {
		out, _, err := execute("explain", id, "--server", url+"/")
		if err != nil || !strings.Contains(out, pick+" was the only replica left.") {
			t.Errorf("explain %s: %v\n%s", id, err, out)
		}
	}
	_, _, err := execute("explain", "../replicas?x=1", "--server", url)
	if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), "no decision with this id") {
		t.Errorf("an id that is a path: %v", err)
	}
	_, _, err = execute("explain", "latest", "--server", picker(t))
	if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), "no decision yet") {
		t.Errorf("a picker without decisions: %v", err)
	}
}

func TestAServerThatIsNoPickerIsUnreadableInput(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer page.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer down.Close()
	for url, want := range map[string]string{
		page.URL: "not a report of a picker", gone.URL: "is the picker running there?", down.URL: "502 Bad Gateway",
	} {
		for _, args := range [][]string{{"explain", "latest"}, {"top", "--once"}} {
			_, _, err := execute(append(args, "--server", url)...)
			if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%q: %v with exit %d, want %q", args, err, exit(err), want)
			}
		}
	}
}

func TestTopLooksOnce(t *testing.T) {
	url := picker(t, aDecision("d1", "r1"))
	out, _, err := execute("top", "--once", "--server", url)
	if err != nil || !strings.Contains(out, "1 replicas, last 1 decisions") || !strings.Contains(out, "REPLICA") || strings.Contains(out, "\x1b") {
		t.Errorf("top --once: %v\n%s", err, out)
	}
	// Documents are printed once without being asked to.
	for _, format := range []string{"json", "yaml"} {
		out, _, err := execute("top", "-o", format, "--server", url)
		var doc topDocument
		if err != nil || yaml.Unmarshal([]byte(out), &doc) != nil || doc.Kind != "Top" || len(doc.Replicas) != 1 || len(doc.Decisions) != 1 {
			t.Errorf("top -o %s: %v\n%s", format, err, out)
		}
	}
}

func TestTopGoesOnUntilItIsInterrupted(t *testing.T) {
	url := picker(t)
	ctx, interrupt := context.WithCancel(t.Context())
	cmd := command()
	w := &tables{until: 2, then: interrupt}
	cmd.SetOut(w)
	cmd.SetArgs([]string{"top", "--interval", "100ms", "--server", url})
	if err := cmd.ExecuteContext(ctx); err != nil {
		t.Errorf("an interrupted top: %v, want no error", err)
	}
	if w.seen < 2 {
		t.Errorf("%d tables were printed, want 2", w.seen)
	}
}

// tables counts the tables that are written, and calls then at one of them.
type tables struct {
	seen, until int
	then        func()
}

func (w *tables) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("decisions\n")) {
		if w.seen++; w.seen == w.until {
			w.then()
		}
	}
	return len(p), nil
}
