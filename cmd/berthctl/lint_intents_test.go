package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLintTellsWhichDemandNobodyMeets(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pool := file("pool.yaml", `apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {name: demo}
endpoints:
- {name: r1, address: 10.0.0.1, port: 8000, engine: vllm, servedModels: [m], contextLimit: 8192, annotations: {berth.dev/tenants: "a,b"}}
`)
	const met = `{"version":"berth.dev/v1alpha1","logicalModel":"m","requirements":[
	{"class":"authorization","key":"berth.dev/tenants","operator":"In","values":["a"]}]}`
	for _, c := range []struct {
		name, intents, want string
		code                int
	}{
		{"all met", met + "\n" + met, "no findings", 0},
		{"none", "", "no findings", 0},
		{"a tenant of nobody", met + strings.Replace(met, `"a"`, `"c"`, 1), "BERTH029 warning: intents[1].requirements[0]", 1},
		{"a model of nobody", strings.Replace(met, `"m"`, `"x"`, 1), "BERTH028 warning: intents[0]", 1},
		{"no JSON", met + "\nx", "intents.json:3: must be JSON documents", 2},
		{"no JSON in the middle of one", met + "\n{\n\"version\": \"berth.dev/v1alpha1\",\n\"priority\" 1}", "intents.json:5: must be JSON documents", 2},
		{"JSON that does not end", met + "\n{\n\"version\":", "intents.json:3: must be JSON documents", 2},
		{"a member that is ignored", met + "\n" + strings.Replace(met, `"logicalModel"`, `"sesionKey":"x","logicalModel"`, 1),
			"intents.json: BERTH032 note: line 3: intents[1].sesionKey, the nearest is sessionKey", 0},
		{"a key that no replica has", strings.Replace(met, "berth.dev/tenants", "berth.dev/tenant", 1),
			"BERTH033 warning: intents[0].requirements[0], key berth.dev/tenant, the nearest is berth.dev/tenants", 1},
		{"no intent", met + "\n" + `{"version":"berth.dev/v1alpha1","requirements":[{"class":"x"}]}`, "intents.json:3: intents[1].requirements[0].class", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, _, err := execute("lint", pool, "--intents", file("intents.json", c.intents))
			said := out
			if err != nil {
				said += err.Error()
			}
			if exit(err) != c.code || !strings.Contains(said, c.want) {
				t.Errorf("exit %d:\n%s\nwant exit %d with %q", exit(err), said, c.code, c.want)
			}
		})
	}
	if _, _, err := execute("lint", pool, "--intents", filepath.Join(dir, "missing.json")); exit(err) != 2 || !strings.Contains(err.Error(), "missing.json") {
		t.Errorf("a file that is missing: %v", err)
	}
}
