package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesOfAProfileThatAreOfNoUseAreTold: they may come later, and are no error.
func TestFilesOfAProfileThatAreOfNoUseAreTold(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := filepath.Join(dir, "key")
	profile := put("engines/acme.yaml", `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: acme
detect: {prefixes: [acme_]}
pages: [{path: /metrics, format: prometheus}]
auth: {bearerTokenFile: `+key+`}
fields:
  queueDepth: {unit: requests, sources: [{metric: acme_waiting}]}
`)
	page := put("page.prom", "acme_waiting 1\n")
	config := put("berth.yaml", pickerDocument+settings("discovery: {file: pool.yaml}\ntelemetry: {profiles: engines}\n"))
	put("pool.yaml", "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: n, name: p}\nendpoints:\n- {name: a, address: 10.0.0.1, port: 80, engine: acme}\n")
	want := profile + `: auth.bearerTokenFile: "` + key + `": no such file or directory`
	for _, args := range [][]string{
		{"profiles", "list", "--profiles", filepath.Dir(profile)},
		{"profiles", "test", page, "--profiles", filepath.Dir(profile)},
	} {
		_, stderr, err := execute(args...)
		if err != nil || !strings.Contains(stderr, want+"\n") {
			t.Errorf("%q: %v, %q, want %s", args, err, stderr, want)
		}
	}
	if out, _, _ := execute("lint", config); !strings.Contains(out, "BERTH034") || !strings.Contains(out, want) {
		t.Errorf("lint says\n%s, want BERTH034 of %s", out, want)
	}
	put("key", "secret\n")
	for _, args := range [][]string{
		{"profiles", "list", "--profiles", filepath.Dir(profile)},
		{"lint", config},
	} {
		if out, stderr, err := execute(args...); err != nil || strings.Contains(out+stderr, key) {
			t.Errorf("%q with the key: %v, %q, %q, want no word of it", args, err, out, stderr)
		}
	}
}
