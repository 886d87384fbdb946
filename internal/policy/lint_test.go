package policy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEachRuleIsDocumentedUnderItsOwnCode(t *testing.T) {
	last := ""
	for _, r := range Rules() {
		if !regexp.MustCompile(`^BERTH\d{3}$`).MatchString(r.Code) || r.Code <= last {
			t.Errorf("code %q after %q; want ascending codes BERTH001...", r.Code, last)
		}
		last = r.Code
		if text := r.Title + r.Explanation + r.Fix; strings.ContainsAny(text, "|\n") {
			t.Errorf("%s does not fit into a table: %q", r.Code, text)
		}
		if r.Title == "" || r.Explanation == "" || r.Fix == "" || r.Severity != SeverityWarning && r.Severity != SeverityNote {
			t.Errorf("%s lacks a title, an explanation, a fix or a severity: %+v", r.Code, r)
		}
	}
}

func TestTheDocumentedRulesAreTheRules(t *testing.T) {
	const path = "../../docs/lint.md"
	const begin, end = "<!-- rules -->\n", "<!-- end of rules -->\n"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	want := "| code | severity | title | explanation | fix |\n|---|---|---|---|---|\n"
	for _, r := range Rules() {
		want += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", r.Code, r.Severity, r.Title, r.Explanation, r.Fix)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s has\n%s\nwant (go test ./internal/policy -update writes it)\n%s", path, table, want)
	}
}

func TestLintFindsWhatIsValidAndQuestionable(t *testing.T) {
	profile := func(plugins, refs string) string {
		return head + "plugins: [" + plugins + "]\nschedulingProfiles: [{name: p, plugins: [" + refs + "]}]\n"
	}
	withPool := func(settings, failureMode, endpoints string) string {
		return berthHead + settings + "---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: demo}\nfailureMode: " + failureMode + "\nendpoints:\n" + endpoints
	}
	const vllm = "- {name: a, engine: vllm, address: 10.0.0.1, port: 80}\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", withPool("", "FailClose", vllm), nil},
		{"no weight", profile("{type: queue-depth}", "{pluginRef: queue-depth, weight: 0}"), []string{"BERTH001 schedulingProfiles[0].plugins", "BERTH009 discovery", "BERTH023 plugin queue-depth"}},
		{"no load", profile("{type: latency}, {type: queue-depth}", "{pluginRef: latency}, {pluginRef: queue-depth, weight: 0}"),
			[]string{"BERTH002 schedulingProfiles[0].plugins", "BERTH009 discovery", "BERTH023 plugin queue-depth"}},
		{"a stock load scorer counts", profile("{type: queue-scorer}", "{pluginRef: queue-scorer}"), []string{"BERTH009 discovery"}},
		{"no telemetry", withPool("telemetry: {mode: none, timeout: 10s}\n", "FailClose", vllm), []string{"BERTH003 telemetry.mode", "BERTH027 endpoint a"}},
		{"fallbacks", withPool("gateway: {fallbacks: 1}\n", "FailClose", vllm), []string{"BERTH004 gateway.fallbacks"}},
		{"fallbacks and trailers", withPool("gateway: {fallbacks: 1, requestTrailers: pass}\n", "FailClose", vllm), []string{"BERTH004 gateway.fallbacks", "BERTH005 gateway.requestTrailers"}},
		{"trailers alone", withPool("gateway: {requestTrailers: pass}\n", "FailClose", vllm), nil},
		{"timeout at ten intervals", withPool("telemetry: {timeout: 2s}\n", "FailClose", vllm), nil},
		{"timeout above ten intervals", withPool("telemetry: {timeout: 2001ms}\n", "FailClose", vllm), []string{"BERTH006 telemetry.timeout"}},
		{"one type twice", profile("{type: queue-depth}, {type: queue-scorer}, {type: windowed}, {type: windowed, name: w, parameters: {window: 2}}",
			"{pluginRef: queue-depth}, {pluginRef: queue-scorer}, {pluginRef: windowed}, {pluginRef: w}"), []string{"BERTH007 plugins queue-depth, queue-scorer", "BERTH009 discovery"}},
		{"small messages", withPool("limits: {body: 16MiB, message: 16MiB}\n", "FailClose", vllm), []string{"BERTH015 limits.message"}},
		{"messages that hold a body", withPool("limits: {body: 16MiB, message: 17MiB}\n", "FailClose", vllm), nil},
		{"a short drain", withPool("limits: {drain: 499ms}\n", "FailClose", vllm), []string{"BERTH008 limits.drain"}},
		{"a pool file", berthHead + "discovery: {file: pool.yaml}\n", nil},
		{"no endpoint", withPool("", "FailClose", "  []\n"), []string{"BERTH010 endpoints"}},
		{"none may serve", withPool("", "FailClose", "- {name: a, engine: vllm, ready: false, address: 10.0.0.1, port: 80}\n- {name: b, engine: vllm, terminating: true, address: 10.0.0.1, port: 81}\n"),
			[]string{"BERTH011 endpoints"}},
		{"fail open", withPool("", "FailOpen", vllm), []string{"BERTH012 failureMode"}},
		{"an engine left to detection", withPool("", "FailClose", vllm+"- {name: b, address: 10.0.0.2, port: 80}\n"), []string{"BERTH013 endpoint b"}},
		{"a shared page", withPool("", "FailClose", "- {name: a, engine: vllm, address: 10.0.0.1, port: 80, metrics: {port: 9100}}\n- {name: b, engine: vllm, address: 10.0.0.1, port: 81, metrics: {port: 9100}}\n- {name: c, engine: vllm, address: 10.0.0.2, port: 81, metrics: {port: 9100}}\n"),
			[]string{"BERTH014 endpoint a", "BERTH014 endpoint b"}},
	} {
		p, _ := mustParse(t, c.text)
		var got []string
		for _, f := range Lint(p, nil) {
			got = append(got, f.Code+" "+f.Where)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q; want %q", c.name, got, c.want)
		}
	}
}

func TestAPoolIsLintedByItselfAndInPlaceOfTheInlineOne(t *testing.T) {
	static, err := ParsePool("pool.yaml", []byte(poolHead+"- {name: spare, address: 10.0.0.1, port: 80}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := mustParse(t, berthHead)
	for name, findings := range map[string][]Finding{"alone": Lint(nil, static), "with a policy": Lint(p, static)} {
		if len(findings) != 1 || findings[0].Code != "BERTH013" || !strings.Contains(findings[0].Where, "spare") {
			t.Errorf("%s: %+v; want BERTH013 for spare", name, findings)
		}
	}
	if got := Lint(nil, nil); got != nil {
		t.Errorf("nothing gives %+v", got)
	}
}
