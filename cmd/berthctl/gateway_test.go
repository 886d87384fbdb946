package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// router are the arguments for a gateway with a semantic router.
func router(config string, more ...string) []string {
	return append([]string{"gateway", config, "--semantic-router", "127.0.0.1:50051"}, more...)
}

func TestASemanticRouterIsToldByFlags(t *testing.T) {
	dir := files(t, map[string]string{"good.yaml": pickerDocument + settings("limits: {body: 5MiB}\n---\n"+poolDocument)})
	good := filepath.Join(dir, "good.yaml")
	out, _, err := execute(router(good, "--semantic-router-tls", "unverified", "--decision-header", "x-tier=priority",
		"--decision-header", "x-place=requirement.placement.a,b=c")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`address: "127.0.0.1", port_value: 50051`, `- remove: "x-tier"`, `key: "priority"`, `key: "requirement.placement.a,b=c"`,
		"the router's address is the router", "request_body_buffer_limit: 5242880 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the gateway lacks %s", want)
		}
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{router(good, "--semantic-router", "nowhere"), `--semantic-router: "nowhere": must be ip:port or name:port`},
		{router(good, "--semantic-router", "127.0.0.1:9002"), `--semantic-router: "127.0.0.1:9002": must not be that of --picker`},
		{router(good, "--semantic-router-tls", "on"), `--semantic-router-tls: "on": must be off, unverified, or the absolute`},
		{router(good, "--decision-header", "x-tier"), `--decision-header: "x-tier": must be NAME=KEY`},
		{router(good, "--decision-header", "host=priority"), `--decision-header[0].name: "host": must be a header's name in lower case`},
		{router(good, "--decision-header", "x-a=priority", "--decision-header", "x-b=speed"), `--decision-header[1].key: "speed": must be`},
		{router(good, "--decision-header", "x-b=sessionkey"), `"sessionkey": must be logicalModel, servedModels, priority, sessionKey,`},
		{router(good, "--decision-header", "x-a=priority", "--decision-header", "x-b=priority"), `--decision-header[1].key: "priority": must be unique, and is that of --decision-header[0]`},
		{router(good, "--decision-header", "x-a=requirement.residency.berth.dev/residncy"),
			`--decision-header[0].key: "requirement.residency.berth.dev/residncy": must be a requirement on an attribute that replicas can have`},
		{router(good, "--decision-header", "x-a=requirement.residency.berth.dev/residncy"), "; the nearest is requirement.residency.berth.dev/residency"},
		{[]string{"gateway", good, "--force"}, "--force: needs --dir"},
		{[]string{"gateway", good, "--decision-header", "x-a=priority"}, "--decision-header: needs --semantic-router"},
		{[]string{"gateway", good, "--semantic-router-tls", "off"}, "--semantic-router-tls: needs --semantic-router"},
	} {
		out, _, err := execute(tc.args...)
		if out != "" || exit(err) != 2 || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: exit %d, %v; want 2 with %q", tc.args[1:], exit(err), err, tc.want)
		}
	}
}

func TestTheGatewayLetsSignedIntentsThroughWhereThePolicyVerifiesThem(t *testing.T) {
	keys, err := os.ReadFile("../../internal/policy/testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := files(t, map[string]string{
		"plain.yaml":  pickerDocument + "---\n" + poolDocument,
		"signed.yaml": pickerDocument + settings("intent: {signedHeader: {keySet: keys.json, audience: berth}}\n---\n"+poolDocument),
		"keys.json":   string(keys),
	})
	for name, want := range map[string]bool{"plain.yaml": true, "signed.yaml": false} {
		out, _, err := execute("gateway", filepath.Join(dir, name))
		if err != nil || strings.Contains(out, "prefix: x-berth-}") != want {
			t.Errorf("%s: %v, the gateway removes x-berth-intent: %t, want %t", name, err, !want, want)
		}
	}
}

func TestAnEnvoyConfigurationThatWasEditedIsKept(t *testing.T) {
	dir := files(t, map[string]string{"good.yaml": pickerDocument + "---\n" + poolDocument})
	args := []string{"gateway", filepath.Join(dir, "good.yaml"), "--dir", filepath.Join(dir, "out")}
	envoy := filepath.Join(dir, "out", "envoy.yaml")
	for _, more := range [][]string{nil, nil, {"--listen", "127.0.0.1:8081"}} {
		if _, _, err := execute(append(args, more...)...); err != nil {
			t.Fatalf("%q: %v", more, err)
		}
	}
	written, err := os.ReadFile(envoy)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(written), "127.0.0.1", "127.0.0.2", 1)
	if err := os.WriteFile(envoy, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := execute(args...); out != "" || exit(err) != 2 || !strings.Contains(err.Error(), envoy+": it is not as it was written") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("exit %d, %q, %v; want 2 with the path and --force", exit(err), out, err)
	}
	if now, err := os.ReadFile(envoy); err != nil || string(now) != edited {
		t.Errorf("the edited file is another one: %v", err)
	}
	if _, _, err := execute(append(args, "--force")...); err != nil {
		t.Error(err)
	}
	if now, err := os.ReadFile(envoy); err != nil || strings.Contains(string(now), "127.0.0.2") {
		t.Errorf("--force does not replace it: %v", err)
	}
}

// A policy and a gateway are linted against each other when both are named.
func TestAGatewayIsLintedAgainstThePoliciesBesideIt(t *testing.T) {
	dir := files(t, map[string]string{
		"none.yaml": pickerDocument + "---\n" + poolDocument,
		"two.yaml":  pickerDocument + settings("gateway: {fallbacks: 2}\n---\n"+poolDocument),
	})
	none, two, envoy := filepath.Join(dir, "none.yaml"), filepath.Join(dir, "two.yaml"), filepath.Join(dir, "envoy.yaml")
	text, _, err := execute("gateway", none)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(envoy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		files []string
		want  int // findings of BERTH119
	}{
		{[]string{envoy}, 0}, {[]string{none, envoy}, 0}, {[]string{two, envoy}, 1}, {[]string{envoy, two}, 1},
		{[]string{none, envoy, two, two}, 1},
	} {
		out, _, _ := execute(append([]string{"lint"}, tc.files...)...)
		if got := strings.Count(out, envoy+": BERTH119 "); got != tc.want || strings.Contains(out, none+": BERTH119") {
			t.Errorf("%q: %d findings of BERTH119, want %d:\n%s", tc.files, got, tc.want, out)
		}
	}
}

// docs/semantic-router.md shows what its command prints.
func TestTheDocumentOnSemanticRoutersShowsWhatIsWritten(t *testing.T) {
	doc, err := os.ReadFile("../../docs/semantic-router.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	for _, m := range regexp.MustCompile("(?s)<!-- ([a-z.]+) -->\n```[a-z]+\n(.*?)```\n").FindAllStringSubmatch(string(doc), -1) {
		blocks[m[1]] = append(blocks[m[1]], m[2])
	}
	if len(blocks["berth.yaml"]) != 1 || len(blocks["command"]) != 1 || len(blocks["envoy"]) != 5 {
		t.Fatalf("the document has the blocks %q; want a configuration, a command, and 5 parts of a gateway", blocks)
	}
	dir := files(t, map[string]string{"berth.yaml": blocks["berth.yaml"][0]})
	config, envoy := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "envoy.yaml")
	args := strings.Fields(blocks["command"][0])
	if i := slices.Index(args, "berth.yaml"); args[0] != "berthctl" || i < 0 {
		t.Fatalf("the command is %q", args)
	} else {
		args[i] = config
	}
	out, _, err := execute(args[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range blocks["envoy"] {
		if !strings.Contains(out, part) {
			t.Errorf("the command does not print\n%s", part)
		}
	}
	if err := os.WriteFile(envoy, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := execute("lint", config, envoy); exit(err) != 0 {
		t.Errorf("lint: %v\n%s", err, out)
	}
}
