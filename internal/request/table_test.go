package request

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The package documentation holds the table of APIs. It is written by hand and
// compared here, so that it stays the one that the code works by.
func TestDocumentationListsEveryAPI(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	row := func(cells ...any) string {
		return strings.TrimRight(fmt.Sprintf("//\t%-22s %-25s %-16s %-12s %s", cells...), " ") + "\n"
	}
	either := func(members [2]string) string {
		return strings.TrimSuffix(strings.Join(members[:], ", "), ", ")
	}
	want := row("API", "path ends with", "prompt", "instructions", "limit on tokens")
	for api := Unknown + 1; api < apiCount; api++ {
		traits := of(api)
		for i, path := range traits.paths {
			if traits.modelInPath {
				path = "TRITON" + path
			}
			if i > 0 {
				want += row("", path, "", "", "")
				continue
			}
			prompt := either(traits.prompt)
			switch traits.body {
			case formBody:
				prompt = "(a form)"
			case opaqueBody:
				prompt = "(not read)"
			}
			want += row(traits.name, path, prompt, traits.instructions, either(traits.limit))
		}
	}
	if !strings.Contains(string(doc), "//\n"+want+"//\n") {
		t.Errorf("doc.go does not hold this table:\n%s", want)
	}
}

func TestTableIsSound(t *testing.T) {
	names, paths := map[string]API{}, map[string]API{}
	for api := range apiCount {
		traits := of(api)
		if other, taken := names[traits.name]; taken || traits.name == "" {
			t.Errorf("API %d is named %q, as is API %d", api, traits.name, other)
		}
		names[traits.name] = api
		for _, path := range traits.paths {
			if traits.modelInPath {
				path = "/v2/models/a" + path
			}
			if other, taken := paths[path]; taken {
				t.Errorf("%v and %v share the path %s", api, other, path)
			}
			paths[path] = api
			if got := APIOf(path); got != api {
				t.Errorf("APIOf(%q) = %v, want %v", path, got, api)
			}
		}
		for _, member := range []string{traits.prompt[0], traits.prompt[1], traits.limit[0], traits.limit[1], traits.instructions} {
			if len(member) > longestKey {
				t.Errorf("%v: member %q is longer than any that is decoded, which is %d bytes", api, member, longestKey)
			}
			if member == "model" || member == "stream" {
				t.Errorf("%v: member %q has a meaning of its own", api, member)
			}
		}
	}
}
