package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const signedHead = berthHead + "intent: {signedHeader: {keySet: keys.json, audience: berth}}\n"

// keySetText is a set of one public key, that of RFC 8037, appendix A.2.
func keySetText(kid string) string {
	return `{"keys":[{"kid":"` + kid + `","alg":"EdDSA","kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
}

const intentText = berthHead + `intent:
  required: true
  unreadableBody: pass
  metadata: false
  signedHeader: {keySet: keys.json, audience: berth-eu, skew: 0s}
trust:
  plainHeaders: true
  headers: {x-vsr-tenant: requirement.authorization.berth.dev/tenants, x-model: logicalModel, "x-odd!#$%&'*+-.^_` + "`" + `|~1": priority}
models:
  aliases:
    fast: [qwen-3, llama-3.1-8b]
    qwen-3: [qwen-3]
    "on: [": ["#1"]
screening:
  contextUnknown: pass
  quarantine: {failures: 1000, probeAfter: 1h, maxShare: 1}
`

func TestTheSectionsOnIntentsAreReadWhole(t *testing.T) {
	p, warnings, err := Parse("berth.yaml", []byte(intentText), "testdata", catalog{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %v", err, warnings)
	}
	if p.Intent.Keys == nil {
		t.Error("there are no keys")
	}
	if want := (Intent{
		Required: true, PassUnreadable: true, Metadata: false,
		Keys: p.Intent.Keys, KeySet: filepath.Join("testdata", "keys.json"), Audience: "berth-eu", Skew: 0,
	}); p.Intent != want {
		t.Errorf("intent %+v; want %+v", p.Intent, want)
	}
	if want := (Trust{PlainHeaders: true, Headers: map[string]string{
		"x-vsr-tenant": "requirement.authorization.berth.dev/tenants", "x-model": "logicalModel", "x-odd!#$%&'*+-.^_`|~1": "priority",
	}}); !reflect.DeepEqual(p.Trust, want) {
		t.Errorf("trust %+v; want %+v", p.Trust, want)
	}
	if want := (Models{Aliases: map[string][]string{"fast": {"llama-3.1-8b", "qwen-3"}, "qwen-3": {"qwen-3"}, "on: [": {"#1"}}}); !reflect.DeepEqual(p.Models, want) {
		t.Errorf("models %+v; want %+v", p.Models, want)
	}
	if want := (Screening{PassContextUnknown: true, Quarantine: Quarantine{Failures: 1000, ProbeAfter: time.Hour, MaxShare: 1}}); p.Screening != want {
		t.Errorf("screening %+v; want %+v", p.Screening, want)
	}
}

func TestTheSkewIsHalfAMinuteWhereTheFileSetsNone(t *testing.T) {
	p, _, err := Parse("berth.yaml", []byte(signedHead), "testdata", catalog{})
	if err != nil || p.Intent.Skew != 30*time.Second {
		t.Errorf("%+v, %v; want a skew of 30s", p, err)
	}
}

func TestTheBoundsOfIntentsAreAllowed(t *testing.T) {
	for name, text := range map[string]string{
		"skew":        "intent: {signedHeader: {keySet: keys.json, audience: " + strings.Repeat("a", 253) + ", skew: 5m}}\n",
		"headers":     "trust:\n  headers:\n" + numbered(32, "    x-%d: requirement.safety.k%d\n"),
		"names":       "models: {aliases: {" + strings.Repeat("a", 512) + ": [" + strings.Repeat("b", 512) + "]}}\n",
		"served":      "models: {aliases: {fast: [" + numbered(64, "m%d, ") + "]}}\n",
		"aliases":     "models:\n  aliases:\n" + numbered(1024, "    a%d: [m]\n"),
		"quarantine":  "screening: {quarantine: {failures: 1, probeAfter: 100ms, maxShare: -0.0}}\n",
		"long header": "trust: {headers: {" + strings.Repeat("x", 256) + ": logicalModel}}\n",
	} {
		p, _, err := Parse("berth.yaml", []byte(berthHead+text), "testdata", catalog{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(p.Effective(), "maxShare: -") {
			t.Errorf("%s: a negative zero is left:\n%s", name, p.Effective())
		}
	}
}

func TestTheOrderOfAnAliasesModelsMakesNoDifference(t *testing.T) {
	a, _ := mustParse(t, berthHead+"models: {aliases: {fast: [a, b, c]}}\n")
	b, _ := mustParse(t, berthHead+"models: {aliases: {fast: [c, a, b]}}\n")
	if a.Digest != b.Digest || a.Effective() != b.Effective() {
		t.Errorf("got\n%s\nand\n%s", a.Effective(), b.Effective())
	}
}

func TestAKeySetThatCannotBeUsedIsAnErrorOfTheConfiguration(t *testing.T) {
	const at = "6: intent.signedHeader.keySet: keys.json: cannot be used: "
	for _, c := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"missing", func(string) error { return nil }, "no such file or directory"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o755) }, "is a directory"},
		{"a device", func(path string) error { return os.Symlink("/dev/zero", path) }, "it is not a regular file"},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
		{"no key set", func(path string) error {
			return os.WriteFile(path, []byte(`{"keys":[{"kid":"a","alg":"none"}]}`), 0o600)
		}, "keys[0].alg"},
		{"above 64KiB", func(path string) error {
			return os.WriteFile(path, []byte(keySetText("a")+strings.Repeat(" ", 64<<10)), 0o600)
		}, "more than 64KiB, must be at most 64KiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "keys.json")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			p, _, err := Parse("berth.yaml", []byte(signedHead), dir, catalog{})
			if p != nil {
				t.Error("there is a policy")
			}
			wantRefusals(t, err, []string{at + path + ": " + c.want})
			var typed *Error
			if !errors.As(err, &typed) || !strings.Contains(err.Error(), "berth.yaml:6: intent.signedHeader.keySet: ") {
				t.Errorf("%v; want the line and the field", err)
			}
		})
	}
}

func TestAKeySetOfExactlyTheLargestSizeIsRead(t *testing.T) {
	dir := t.TempDir()
	text := keySetText("a")
	write(t, filepath.Join(dir, "keys.json"), text+strings.Repeat(" ", 64<<10-len(text)))
	if _, _, err := Parse("berth.yaml", []byte(signedHead), dir, catalog{}); err != nil {
		t.Error(err)
	}
}

func TestKeysAreComparedBesideTheDigestAndNeverPrinted(t *testing.T) {
	const secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"
	parse := func(keys string) *Policy {
		t.Helper()
		dir := t.TempDir()
		write(t, filepath.Join(dir, "keys.json"), keys)
		p, _, err := Parse("berth.yaml", []byte(signedHead), dir, catalog{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	one, same, other := parse(keySetText("a")), parse(" "+keySetText("a")+"\n"), parse(keySetText("b"))
	shared := parse(`{"keys":[{"kid":"a","alg":"HS256","kty":"oct","k":"` + secret + `"}]}`)
	none, _ := mustParse(t, berthHead)
	for _, p := range []*Policy{same, other, shared} {
		if p.Digest != one.Digest || p.Effective() != one.Effective() {
			t.Errorf("the keys make a difference to the digest or the effective text:\n%s", p.Effective())
		}
	}
	if !one.SameKeys(same) || one.SameKeys(other) || one.SameKeys(shared) || one.SameKeys(none) || none.SameKeys(one) || !none.SameKeys(none) {
		t.Error("keys are not compared by what they are")
	}
	if strings.Contains(shared.Effective(), secret) {
		t.Error("the effective text has the secret")
	}
}

func TestAChangeOfKeysIsToldByTheirIDs(t *testing.T) {
	with := func(ids ...string) *Policy {
		dir := t.TempDir()
		var keys []string
		for _, id := range ids {
			id, secret, _ := strings.Cut(id, "=")
			k := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%-32s", secret))
			keys = append(keys, fmt.Sprintf(`{"kid":%q,"alg":"HS256","kty":"oct","k":%q}`, id, k))
		}
		write(t, filepath.Join(dir, "keys.json"), `{"keys":[`+strings.Join(keys, ",")+`]}`)
		p, _, err := Parse("berth.yaml", []byte(signedHead), dir, catalog{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none, _ := mustParse(t, berthHead)
	if none.KeyIDs() != nil {
		t.Errorf("without a key set: %q", none.KeyIDs())
	}
	for _, c := range []struct {
		name     string
		was, now *Policy
		want     KeyChange
	}{
		{"nothing", with("a=1", "b=2"), with("b=2", "a=1"), KeyChange{}},
		{"one more and one less", with("a=1", "b=2"), with("c=1", "b=2"), KeyChange{Added: []string{"c"}, Removed: []string{"a"}}},
		{"another key of the same name", with("a=1", "b=2"), with("a=3", "b=2"), KeyChange{Replaced: []string{"a"}}},
		{"the first keys", none, with("b=2", "a=1"), KeyChange{Added: []string{"a", "b"}}},
		{"no keys any more", with("b=2", "a=1"), none, KeyChange{Removed: []string{"a", "b"}}},
	} {
		if got := c.now.KeysSince(c.was); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v; want %+v", c.name, got, c.want)
		}
		if same := c.now.SameKeys(c.was); same != reflect.DeepEqual(c.want, KeyChange{}) {
			t.Errorf("%s: the same keys: %t", c.name, same)
		}
	}
}
