package engine

import (
	"os"
	"strings"
	"testing"
)

// reference is the language of profiles as the package comment has it.
func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		code, isCode := strings.CutPrefix(line, "//\t")
		switch {
		case isCode:
			lines = append(lines, code)
		case len(lines) > 0:
			return strings.Join(lines, "")
		}
	}
	t.Fatal("the package comment has no reference of the language")
	return ""
}

func TestTheDocumentHasTheReferenceOfTheLanguage(t *testing.T) {
	doc, err := os.ReadFile("../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "<!-- language -->\n```yaml\n")
	block, _, found := strings.Cut(rest, "```\n<!-- end of language -->\n")
	if want := reference(t); !found || block != want {
		t.Errorf("docs/engines.md: what stands under \"language\" is not the reference of the package comment, which is\n%s", want)
	}
}

// TestTheReferenceHasEachKeyOfTheLanguage: the keys are those that the parser allows,
// as it says itself.
func TestTheReferenceHasEachKeyOfTheLanguage(t *testing.T) {
	text := reference(t)
	for place, old := range map[string]string{
		"the profile": "role: engine\n", "detect": "{prefixes: [\"w:\"],", "a page": "{path: /metrics,", "a member": "{member: version}",
		"auth": "{bearerTokenFile: /etc/token}", "tls": "{caFile: /etc/ca.pem,", "labels": "{model: model,", "valid": `{metric: "w:ready",`,
		"engineTime": `{metric: "w:time",`, "a field": "    ttl: 4s\n", "a source": `{metric: "w:waiting",`, "a part": `{metric: "w:held",`,
		"a condition": `{metric: "w:info", label: stats,`,
	} {
		now := strings.Replace(old, "{", "{zz: 1, ", 1)
		if strings.HasSuffix(old, "\n") {
			now = old + old[:len(old)-len(strings.TrimLeft(old, " "))] + "zz: 1\n"
		}
		_, err := Parse("w.yaml", []byte(strings.Replace(whole, old, now, 1)))
		if err == nil {
			t.Errorf("%s: an unknown key is accepted", place)
			continue
		}
		_, allowed, found := strings.Cut(err.Error(), "zz: unknown key, allowed are ")
		if !found {
			t.Errorf("%s: %v", place, err)
		}
		for key := range strings.SplitSeq(allowed, ", ") {
			if !strings.Contains(text, key+":") {
				t.Errorf("%s: the reference does not have %s", place, key)
			}
		}
	}
	for _, field := range []string{"more:", "than:", "by:"} {
		if !strings.Contains(text, field) {
			t.Errorf("a contradiction: the reference does not have %s", field)
		}
	}
}
