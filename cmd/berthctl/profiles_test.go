package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// savedPage is one of the pages that the profiles are tested with.
func savedPage(name string) string { return filepath.Join("../../internal/engine/testdata", name) }

const ownProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: own
aliases: [mine]
detect: {prefixes: [own_]}
pages:
- {path: /metrics, format: prometheus}
labels: {model: model}
fields:
  queueDepth: {unit: requests, sources: [{metric: own_waiting}]}
  generationThroughput: {unit: tokens/s, sources: [{metric: own_tokens_total, window: 30s}]}
`

func TestProfilesAreListed(t *testing.T) {
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	table, _, err := execute("profiles", "list")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Version, Kind string
		Items         []profileDocument
	}
	text, _, err := execute("profiles", "list", "-o", "json")
	if err != nil || json.Unmarshal([]byte(text), &doc) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if doc.Version != v1alpha1.Version || doc.Kind != "EngineProfileList" || len(doc.Items) != len(set.Profiles()) {
		t.Errorf("%s %s with %d items, want every profile", doc.Version, doc.Kind, len(doc.Items))
	}
	for i, p := range set.Profiles() {
		item := doc.Items[i]
		if item.Name != p.Name() || item.Digest != p.Digest() || item.Pages[0].Path != p.Metrics().Path || item.RecognisedBy == "" || item.Coverage != nil {
			t.Errorf("%s is listed as %+v", p.Name(), item)
		}
		if n := item.Counts["direct"] + item.Counts["partial"] + item.Counts["none"]; n != int(telemetry.NumFields) {
			t.Errorf("%s has %d fields in all, want %d", p.Name(), n, telemetry.NumFields)
		}
		if !strings.Contains(table, p.Digest()) {
			t.Errorf("the table lacks %s:\n%s", p.Digest(), table)
		}
	}
}

func TestAProfileIsShownAsItWasLoaded(t *testing.T) {
	dir := files(t, map[string]string{"own.yaml": ownProfile})
	for _, name := range []string{"own", "mine"} {
		if text, _, err := execute("profiles", "show", name, "--profiles", dir); err != nil || text != ownProfile {
			t.Errorf("show %s: %v\n%s", name, err, text)
		}
	}
	for _, format := range []string{"json", "yaml"} {
		text, _, err := execute("profiles", "show", "own", "--profiles", dir, "-o", format)
		var doc profileDocument
		if err != nil || yaml.Unmarshal([]byte(text), &doc) != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if doc.Name != "own" || !strings.HasPrefix(doc.Digest, "own@sha256:") || doc.Role != "engine" || len(doc.Coverage) != int(telemetry.NumFields) {
			t.Errorf("shown as %+v", doc)
		}
		q := doc.Coverage[telemetry.QueueDepth]
		want := v1alpha1.Source{Path: "/metrics", Metric: "own_waiting", Rule: "one series"}
		if q.Field != "queueDepth" || q.Level != "direct" || q.Unit != "requests" || len(q.Sources) != 1 || q.Sources[0].Source != want || q.Sources[0].Quality != 1 {
			t.Errorf("queueDepth is covered by %+v", q)
		}
		if p := doc.Coverage[telemetry.Power]; p.Level != "none" || p.Reason == "" || len(p.Sources) != 0 {
			t.Errorf("power is covered by %+v", p)
		}
	}
}

func TestADirectoryAddsProfilesAndReplacesThoseOfTheSameName(t *testing.T) {
	other := strings.ReplaceAll(ownProfile, "own_", "vllm:") // what vLLM's is recognised by
	other = strings.Replace(strings.Replace(other, "name: own", "name: vllm", 1), "aliases: [mine]\n", "", 1)
	dir := files(t, map[string]string{"own.yaml": ownProfile, "vllm.yaml": other, ".hidden.yaml": "broken", "notes.txt": "broken"})
	if text, _, err := execute("profiles", "show", "vllm", "--profiles", dir); err != nil || text != other {
		t.Errorf("%v\n%s", err, text)
	}
	if out, _, err := execute("profiles", "test", savedPage("vllm.prom"), "--profiles", dir); err != nil || !strings.Contains(out, ", not the built-in one\n") {
		t.Errorf("%v\n%s", err, out)
	}
	text, _, err := execute("profiles", "list", "--profiles", dir, "-o", "json")
	var doc struct{ Items []profileDocument }
	if err != nil || json.Unmarshal([]byte(text), &doc) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, item := range doc.Items {
		want := map[string]string{"own": "own", "vllm": "replacement"}[item.Name]
		if want == "" {
			want = "built-in"
		}
		if item.Origin != want {
			t.Errorf("%s is %s, want %s", item.Name, item.Origin, want)
		}
	}
	if text, _, err := execute("profiles", "list", "--profiles", dir); err != nil || !strings.Contains(text, "\nown ") || !strings.Contains(text, "\nsglang ") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestBrokenProfilesAreUnreadableInput(t *testing.T) {
	line := func(old, replacement string) string { return strings.Replace(ownProfile, old, replacement, 1) }
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"each with its line", map[string]string{"a.yaml": line("unit: requests", "unit: apples"), "b.yaml": line("kind: EngineProfile", "kind: Engine")},
			[]string{`a.yaml:10: fields.queueDepth: unit "apples", want "requests"`, `b.yaml:2: kind`}},
		{"no YAML", map[string]string{"a.yaml": "fields: ]"}, []string{"a.yaml"}},
		{"tabs", map[string]string{"a.yaml": line("  queueDepth:", "\tqueueDepth:")}, []string{"a.yaml:10: ", "found character that cannot start any token (a tab? indent with spaces)"}},
		{"two of one name", map[string]string{"a.yaml": ownProfile, "b.yaml": ownProfile}, []string{"--profiles: ", `b.yaml:3: name: "own"`, "a.yaml:3"}},
		{"the prefix of another engine", map[string]string{"a.yaml": line("own_", "vllm:")}, []string{"--profiles: ", "detect.prefixes", `"vllm:"`}},
		{"another extension", map[string]string{"a.yml": ownProfile}, []string{"a.yml: the name must end in .yaml"}},
		{"nothing", map[string]string{"a.txt": ownProfile}, []string{"has no profile, want files that end in .yaml"}},
		{"too large", map[string]string{"a.yaml": strings.Repeat("#", 1<<20+1)}, []string{"a.yaml: more than 1MiB"}},
	} {
		dir := files(t, tc.files)
		for _, args := range [][]string{{"list"}, {"show", "own"}, {"test", savedPage("vllm.prom")}} {
			_, _, err := execute(append(append([]string{"profiles"}, args...), "--profiles", dir)...)
			for _, want := range tc.want {
				if exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%s, %q: %v with exit %d, want %q", tc.name, args, err, exit(err), want)
				}
			}
		}
	}
	if _, _, err := execute("profiles", "list", "--profiles", filepath.Join(t.TempDir(), "missing")); exit(err) != exitUsage {
		t.Errorf("a directory that is missing: %v", err)
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := execute("profiles", "list", "--profiles", dir); exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), "it is not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

// tested runs profiles test and reads its document.
func tested(t *testing.T, args ...string) (*v1alpha1.Observation, error) {
	t.Helper()
	text, _, err := execute(append([]string{"profiles", "test", "-o", "json"}, args...)...)
	if text == "" {
		return nil, err
	}
	doc := &v1alpha1.Observation{}
	if err := json.Unmarshal([]byte(text), doc); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if len(doc.Fields) != int(telemetry.NumFields) {
		t.Errorf("%d fields, want all %d", len(doc.Fields), telemetry.NumFields)
	}
	return doc, err
}

func TestASavedPageIsReadThroughItsProfile(t *testing.T) {
	for _, args := range [][]string{{}, {"--engine", "vllm"}} {
		doc, err := tested(t, append(args, savedPage("vllm.prom"), "--at", "2026-08-31T14:00:00Z")...)
		if err != nil {
			t.Fatal(err)
		}
		if doc.Kind != "Observation" || doc.Engine != "vllm" || doc.Declared != "" || !strings.HasPrefix(doc.Profile, "vllm@sha256:") {
			t.Errorf("%s of %q, declared %q, by %q", doc.Kind, doc.Engine, doc.Declared, doc.Profile)
		}
		q := doc.Fields["queueDepth"]
		if q.Value != 12.0 || q.State != v1alpha1.Fresh || q.Source.Metric != "vllm:num_requests_waiting" || !q.ObservedAt.Equal(time.Date(2026, 8, 31, 14, 0, 0, 0, time.UTC)) {
			t.Errorf("queueDepth is %+v", q)
		}
		if r := doc.Fields["servedModels"]; r.State != v1alpha1.Missing || len(r.Reasons) != 1 || r.Reasons[0] != "read from /v1/models, which is not given: --page /v1/models=FILE" {
			t.Errorf("servedModels is %+v", r)
		}
		if doc.Replica.ProcessStart == nil || doc.Replica.Incarnation != 1 {
			t.Errorf("the replica is %+v, want its process", doc.Replica)
		}
	}
	table, _, err := execute("profiles", "test", savedPage("vllm.prom"))
	if err != nil || !strings.Contains(table, "12 requests") || !strings.Contains(table, "missing, unsupported") {
		t.Errorf("%v\n%s", err, table)
	}
}

func TestPagesInOrderFillWindows(t *testing.T) {
	dir := files(t, map[string]string{
		"own.yaml": ownProfile,
		"1.prom":   "own_waiting 1\nown_tokens_total 1000\n", "2.prom": "own_waiting 2\nown_tokens_total 4000\n",
		"fell.prom": "own_waiting 3\nown_tokens_total 10\n",
	})
	page := func(name string) string { return filepath.Join(dir, name) }
	for _, tc := range []struct {
		pages, args []string
		value       any
		reason      string
	}{
		{[]string{"1.prom"}, nil, nil, "first page"},
		{[]string{"1.prom", "2.prom"}, nil, 200.0, ""},
		{[]string{"1.prom", "2.prom"}, []string{"--every", "30s"}, 100.0, ""},
		{[]string{"1.prom", "2.prom"}, []string{"--every", "14s"}, nil, "it needs half of it"},
		{[]string{"2.prom", "1.prom"}, nil, nil, "a counter fell"},
		{[]string{"1.prom", "fell.prom"}, nil, nil, "a counter fell"},
	} {
		args := append([]string{"--profiles", dir}, tc.args...)
		for _, name := range tc.pages {
			args = append(args, page(name))
		}
		doc, err := tested(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		r := doc.Fields["generationThroughput"]
		if r.Value != tc.value || tc.reason != "" && !strings.Contains(strings.Join(r.Reasons, ";"), tc.reason) &&
			!strings.Contains(strings.Join(r.Reasons, ";"), "started anew") {
			t.Errorf("%q %q: %+v, want %v %s", tc.pages, tc.args, r, tc.value, tc.reason)
		}
	}
}

func TestPagesInAnotherOrderThanTheyWereTakenAreAskedAbout(t *testing.T) {
	dir := files(t, map[string]string{
		"own.yaml": ownProfile, "1.prom": "own_waiting 1\nown_tokens_total 1000\n", "2.prom": "own_waiting 2\nown_tokens_total 4000\n",
	})
	one, two := filepath.Join(dir, "1.prom"), filepath.Join(dir, "2.prom")
	for _, tc := range []struct {
		pages []string
		want  string
	}{
		{[]string{one, two}, ""},
		{[]string{two, one}, "berthctl: " + one + ": the engine's process was started anew since " + two + ": are the pages in the order in which they were taken?\n"},
		{[]string{two, one, two}, "berthctl: " + one + ": the engine's process was started anew since " + two + ": are the pages in the order in which they were taken?\n"},
	} {
		_, stderr, err := execute(append([]string{"profiles", "test", "--profiles", dir}, tc.pages...)...)
		if err != nil || stderr != tc.want {
			t.Errorf("%q: %v, and %q on stderr, want %q", tc.pages, err, stderr, tc.want)
		}
	}
}

func TestAPageThatSaysNothingOfLoadYetIsReadWithWhy(t *testing.T) {
	page := filepath.Join(files(t, map[string]string{"sglang.prom": "sglang:max_total_num_tokens{tp_rank=\"0\"} 1000\n"}), "sglang.prom")
	if out, _, err := execute("profiles", "test", page); err != nil || !strings.Contains(out, "\n\nNo value of queueDepth, activeRequests, kvCacheUtilization. SGLang shows") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err := execute("profiles", "test", savedPage("dcgm.prom"), "--engine", "dcgm", "--pod", "llm/vllm-0"); err != nil || strings.Contains(out, "No value of") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAPageComesFromStandardInput(t *testing.T) {
	text, err := os.ReadFile(savedPage("vllm.prom"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetIn(bytes.NewReader(text))
	cmd.SetArgs([]string{"profiles", "test", "-"})
	if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "12 requests") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestThePageSaysWhoseItIs(t *testing.T) {
	doc, err := tested(t, savedPage("sglang.prom"), "--engine", "vllm")
	if exit(err) != exitFindings || err.Error() != savedPage("sglang.prom")+": it is sglang, not vllm as --engine says" || doc.Engine != "sglang" || doc.Declared != "vllm" {
		t.Errorf("%v with exit %d: engine %q, declared %q, want sglang and vllm", err, exit(err), doc.Engine, doc.Declared)
	}
	if doc.Fields["queueDepth"].State != v1alpha1.Fresh {
		t.Errorf("queueDepth is %+v, want it read as SGLang's", doc.Fields["queueDepth"])
	}
	table, _, _ := execute("profiles", "test", savedPage("sglang.prom"), "--engine", "vllm")
	if !strings.Contains(table, "declared vllm, which its page is not") {
		t.Error(table)
	}
}

func TestRefusedPagesSayWhyAndWhatToDo(t *testing.T) {
	dir := files(t, map[string]string{
		"empty.prom": "\n", "other.prom": "go_goroutines 7\n", "cut.prom": "vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_run",
		"two.prom": "vllm:num_requests_waiting 1\nsglang:num_queue_reqs 1\n", "joined.prom": "vllm:num_requests_waiting{worker_addr=\"a\"} 1\n",
	})
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{savedPage("trtllm-iteration-stats.json")}, []string{"not a text metrics page", "/prometheus/metrics"}},
		{[]string{filepath.Join(dir, "empty.prom")}, []string{"the page is empty"}},
		{[]string{filepath.Join(dir, "other.prom")}, []string{"no family of the engine", "--disable-log-stats", "docs/engines.md"}},
		{[]string{filepath.Join(dir, "other.prom"), "--engine", "vllm"}, []string{"read as vllm: no family of the engine", "--disable-log-stats"}},
		{[]string{filepath.Join(dir, "cut.prom")}, []string{"the page was cut"}},
		{[]string{filepath.Join(dir, "two.prom")}, []string{"several engines", "--engine"}},
		{[]string{filepath.Join(dir, "joined.prom")}, []string{"joins several replicas", "router"}},
		{[]string{savedPage("vllm.prom"), filepath.Join(dir, "empty.prom")}, []string{"empty.prom: the page is empty"}},
		{[]string{savedPage("vllm.prom"), savedPage("sglang.prom")}, []string{"vllm.prom is a page of vllm, and ", "sglang.prom one of sglang: must all be of one replica"}},
		{[]string{savedPage("sglang.prom"), savedPage("vllm.prom"), "--engine", "sglang"}, []string{"sglang.prom is a page of sglang, and ", "vllm.prom one of vllm"}},
		{[]string{filepath.Join(dir, "other.prom")}, []string{"\n    Its families: \"go_goroutines\""}},
		{[]string{savedPage("dcgm.prom"), "--engine", "vllm"}, []string{"dcgm.prom: it is a page of dcgm, an exporter of GPUs, not of vllm\n    --engine dcgm --pod NAMESPACE/NAME reads it"}},
		{[]string{savedPage("dcgm.prom"), "--engine", "amd-gpu", "--pod", "a/b"}, []string{"it is a page of dcgm, an exporter of GPUs, not of amd-gpu\n    --engine dcgm"}},
		{[]string{savedPage("vllm.prom"), savedPage("dcgm.prom")}, []string{"dcgm.prom: it is a page of dcgm, an exporter of GPUs, and not of an engine"}},
	} {
		doc, err := tested(t, tc.args...)
		if doc != nil || exit(err) != exitFindings {
			t.Errorf("%q: %v with exit %d and the document %v, want a refusal", tc.args, err, exit(err), doc)
		}
		for _, want := range tc.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%q: %v, want %q", tc.args, err, want)
			}
		}
	}
	// Declared, a page of two engines is that one's.
	if doc, err := tested(t, filepath.Join(dir, "two.prom"), "--engine", "vllm"); err != nil || doc.Engine != "vllm" {
		t.Errorf("%v, %v", err, doc)
	}
}

func TestAnInvalidFieldIsAFinding(t *testing.T) {
	dir := files(t, map[string]string{"bad.prom": "vllm:num_requests_waiting{engine=\"0\"} NaN\nvllm:num_requests_running{engine=\"0\"} 3\n"})
	doc, err := tested(t, filepath.Join(dir, "bad.prom"))
	if exit(err) != exitFindings || err.Error() != filepath.Join(dir, "bad.prom")+": invalid: queueDepth" || doc == nil || doc.Fields["queueDepth"].State != v1alpha1.Invalid || doc.Fields["activeRequests"].Value != 3.0 {
		t.Errorf("%v with exit %d: %+v", err, exit(err), doc)
	}
}

func TestModelsChooseAmongThoseOfAPage(t *testing.T) {
	page := filepath.Join(files(t, map[string]string{
		"two.prom": "vllm:num_requests_waiting{engine=\"0\",model_name=\"a\"} 1\nvllm:num_requests_waiting{engine=\"0\",model_name=\"b\"} 2\n",
	}), "two.prom")
	if doc, err := tested(t, page, "--models", "b,c"); err != nil || doc.Fields["queueDepth"].Value != 2.0 {
		t.Errorf("%v, %+v", err, doc)
	}
	if doc, err := tested(t, page); exit(err) != exitFindings || doc.Fields["queueDepth"].State != v1alpha1.Invalid {
		t.Errorf("%v, %+v", err, doc)
	}
}

func TestTheTimeOfAPageIsThatOfItsFile(t *testing.T) {
	const page = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 4\n" +
		"nv_trt_llm_general_metrics{general_type=\"timestamp\",model=\"m\",version=\"1\"} %d\n"
	taken := time.Date(2026, 8, 31, 14, 0, 0, 0, time.UTC)
	path := filepath.Join(files(t, map[string]string{"triton.prom": fmt.Sprintf(page, taken.Unix()-2)}), "triton.prom")
	if err := os.Chtimes(path, taken, taken); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]v1alpha1.State{"": v1alpha1.Fresh, "2026-08-31T16:00:00+02:00": v1alpha1.Fresh, "2026-08-31T14:01:00Z": v1alpha1.Stale} {
		doc, err := tested(t, path, "--at", at)
		if err != nil || doc.Fields["activeRequests"].State != want {
			t.Errorf("at %q: %v, activeRequests is %+v, want %s by the engine's own time", at, err, doc.Fields["activeRequests"], want)
		}
	}
}

func TestAnExportersPageIsReadForOnePod(t *testing.T) {
	page := savedPage("dcgm.prom")
	doc, err := tested(t, page, "--engine", "dcgm", "--pod", "llm/vllm-0")
	if err != nil || doc.Engine != "dcgm" || doc.Replica.Pod != "llm/vllm-0" || doc.Fields["power"].State != v1alpha1.Fresh {
		t.Errorf("%v, %+v", err, doc)
	}
	if r := doc.Fields["queueDepth"]; r.State != v1alpha1.Missing || r.Reasons[0] != "an exporter tells of GPUs alone" {
		t.Errorf("queueDepth is %+v", r)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{page}, exitUsage, `--pod: missing: ` + page + ` has 2 pods: "llm/vllm-0", "llm/vllm-1"`},
		{[]string{page, "--pod", "llm/other"}, exitFindings, `no pod "llm/other"`},
		{[]string{page, "--pod", "llm/vllm-0", "--page", "/health=200"}, exitUsage, "--page: only for an engine: dcgm is an exporter of GPUs"},
		{[]string{page, "--engine", "dcgm"}, exitUsage, `--pod: missing: ` + page + ` has 2 pods: "llm/vllm-0", "llm/vllm-1"`},
		{[]string{page, "--engine", "dcgm-exporter", "--pod", "llm/other"}, exitFindings, `no pod "llm/other"`},
		{[]string{savedPage("vllm.prom"), "--engine", "dcgm"}, exitFindings, "read as dcgm: no family"},
		{[]string{savedPage("vllm.prom"), "--pod", "a/b"}, exitUsage, "--pod: only for the page of an exporter"},
	} {
		if _, err := tested(t, tc.args...); exit(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%q: %v with exit %d, want %q with %d", tc.args, err, exit(err), tc.want, tc.code)
		}
	}
	if doc, err := tested(t, page, "--pod", "llm/vllm-0"); err != nil || doc.Engine != "dcgm" || doc.Fields["power"].State != v1alpha1.Fresh {
		t.Errorf("without --engine: %v, %+v", err, doc)
	}
	for text, want := range map[string]string{
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",exported_namespace=\"n\",exported_pod=\"a\"} 1\n": "reads pods from the labels namespace and pod; those of the page are exported_namespace, exported_pod.",
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",namespace=\"\",pod=\"\"} 1\n":                     "reads pods from the labels namespace and pod, which no series has with a value: the exporter must be set to write them.",
	} {
		podless := filepath.Join(files(t, map[string]string{"gpu.prom": text}), "gpu.prom")
		if _, err := tested(t, podless); exit(err) != exitFindings || !strings.Contains(fmt.Sprint(err), "no series of dcgm names a pod") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v with exit %d, want %q", text, err, exit(err), want)
		}
	}
	hostile := filepath.Join(files(t, map[string]string{
		"gpu.prom": "DCGM_FI_DEV_POWER_USAGE{namespace=\"n\",pod=\"\x1b[31m\"} 1\nDCGM_FI_DEV_POWER_USAGE{namespace=\"n\",pod=\"b\"} 1\n",
	}), "gpu.prom")
	if _, err := tested(t, hostile, "--engine", "dcgm"); err == nil || strings.ContainsRune(err.Error(), '\x1b') {
		t.Errorf("names of pods reach the terminal as they are: %q", fmt.Sprint(err))
	}
	many := strings.Builder{}
	for i := range 100 {
		fmt.Fprintf(&many, "DCGM_FI_DEV_POWER_USAGE{namespace=\"n\",pod=\"%02d\"} 1\n", i)
	}
	page = filepath.Join(files(t, map[string]string{"gpu.prom": many.String()}), "gpu.prom")
	if _, err := tested(t, page, "--engine", "dcgm"); !strings.HasSuffix(fmt.Sprint(err), `"n/19", 80 more`) {
		t.Errorf("of many pods: %v, want the first ones", err)
	}
}

func TestWhatAPageSaysDoesNotActOnTheTerminal(t *testing.T) {
	page := filepath.Join(files(t, map[string]string{"hostile.prom": "vllm:num_requests_waiting{engine=\"0\"} 1\n" +
		"vllm:cache_config_info{engine=\"0\",block_size=\"\x1b]0;title\x07\",num_gpu_blocks=\"\u202e1\",enable_prefix_caching=\"\u009b31m\"} 1\n" +
		"vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\x1b[2Jb\",waiting_lora_adapters=\"c\x1b[2Jd\"} 1\n"}), "hostile.prom")
	out, _, err := execute("profiles", "test", page)
	if exit(err) != exitFindings {
		t.Errorf("%v with exit %d, want invalid fields", err, exit(err))
	}
	for line := range strings.Lines(out) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }) {
			t.Errorf("printed %q", line)
		}
	}
}

func TestWrongCommandLinesOfProfiles(t *testing.T) {
	page := savedPage("vllm.prom")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"dance"}, `"dance"`},
		{[]string{"show"}, "NAME: missing"},
		{[]string{"show", "acme"}, `NAME: "acme": must be one of amd-device-metrics-exporter, amd-gpu, atom`},
		{[]string{"list", "x"}, `"x"`},
		{[]string{"test"}, "PAGE: missing"},
		{[]string{"test", page, "--engine", "acme"}, `--engine: "acme": must be one of`},
		{[]string{"test", "missing.prom"}, "missing.prom"},
		{[]string{"test", t.TempDir()}, "is a directory"},
		{[]string{"test", page, "--every", "1ms"}, "--every: 1ms: must be from 1s to 1h0m0s"},
		{[]string{"test", page, "--at", "noon"}, `--at: "noon": must be a time from 1970 to 2200`},
		{[]string{"test", page, "--at", "0001-01-01T00:00:00Z"}, "--at: "},
		{[]string{"test", page, "--models", "a,,b"}, "--models: an empty name"},
		{[]string{"test", page, "--every", "15"}, `--every: "15": must be a time with its unit`},
		{[]string{"test", page, "--require", "queueDept"}, `--require: "queueDept": must be of queueDepth, activeRequests, `},
		{[]string{"test", page, "--page", "/nowhere=200"}, `--page: "/nowhere=200": must be PATH=FILE or PATH=STATUS, with PATH one of `},
		{[]string{"test", page, "--page", "/health"}, `--page: "/health": must be PATH=FILE or PATH=STATUS`},
		{[]string{"test", page, "--page", "/health="}, `--page: "/health=": must be PATH=FILE or PATH=STATUS`},
		{[]string{"test", page, "--page", "/health=200", "--page", "/health=503"}, "/health is given twice"},
		{[]string{"test", page, "--page", "/version=missing.json"}, "--page: /version: open missing.json"},
	} {
		if _, _, err := execute(append([]string{"profiles"}, tc.args...)...); exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%q: %v with exit %d, want %q with %d", tc.args, err, exit(err), tc.want, exitUsage)
		}
	}
}

func TestAQualityIsShownAsItsProfileWritesIt(t *testing.T) {
	for _, q := range []float64{0, 0.1, 0.5, 0.8, 0.999, 1} {
		if got := round(float32(q)); math.Abs(got-q) > 1e-12 {
			t.Errorf("%v becomes %v", q, got)
		}
	}
}
