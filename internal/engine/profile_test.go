package engine

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berth-dev/berth/internal/telemetry"
)

const small = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: small
detect: ["small:"]
pages:
- {path: /metrics, format: prometheus, ttl: 3s}
- {path: /models, format: openai-models, every: 1m}
labels: {model: model, ranks: [rank]}
fields:
  queueDepth:
    unit: requests
    sources:
    - {metric: "small:waiting", combine: sum}
`

func TestAProfileWithAFaultNamesLineFieldValueAndWhatIsAllowed(t *testing.T) {
	if _, err := Parse("small.yaml", []byte(small)); err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	cases := []struct{ name, old, now, want string }{
		{"not YAML", "kind:", "kind", "small.yaml: yaml: line 2: could not find expected ':'"},
		{"another kind", "EngineProfile", "Engine", `small.yaml:2: kind: "Engine", want one of EngineProfile`},
		{"another version", "v1alpha1", "v1", `small.yaml:1: apiVersion: "berth.dev/v1", want one of berth.dev/v1alpha1`},
		{"no name", "name: small\n", "", "small.yaml:1: name is missing"},
		{"empty name", "name: small", "name:", `small.yaml:3: name: "", want a text that is not empty`},
		{"unknown key", "name:", "nam: x\nname:", "small.yaml:3: nam: unknown key, allowed are apiVersion, kind, name, detect, pages, labels, fields, unsupported"},
		{"key twice", "name:", "name: x\nname:", "small.yaml:4: name: given twice"},
		{"nothing to detect", `["small:"]`, `[]`, "small.yaml:1: detect is empty, want at least one family prefix"},
		{"a text for a list", `["small:"]`, `small`, `small.yaml:4: detect: "small", want a list`},
		{"relative path", "path: /metrics", "path: metrics", `small.yaml:6: pages[0].path: "metrics", want a path that begins with a slash`},
		{"no path", "path: /metrics, ", "", "small.yaml:6: pages[0]: path is missing"},
		{"unknown format", "openai-models", "models", `small.yaml:7: pages[1].format: "models", want one of prometheus, openai-models, version`},
		{"metrics page not first", "{path: /metrics, format: prometheus, ttl: 3s}", "{path: /v, format: version, every: 1m}", "small.yaml:6: pages[0]: the first page is the metrics page, want format prometheus"},
		{"no cadence", ", every: 1m", "", "small.yaml:7: pages[1]: every is missing"},
		{"short life", "ttl: 3s", "ttl: 3ms", `small.yaml:6: pages[0].ttl: "3ms", want a duration from 100ms to 1h0m0s`},
		{"unknown field", "queueDepth:", "queueLength:", "small.yaml:10: fields.queueLength: not a field of the catalogue"},
		{"a field of another page", "queueDepth:\n    unit: requests", "contextLimit:\n    unit: tokens", "small.yaml:10: fields.contextLimit: already read from /models"},
		{"a field that is no number", "queueDepth:\n    unit: requests", "ttft:\n    unit: seconds", "small.yaml:10: fields.ttft: not a number, a yes-or-no or a time: it cannot be read from series"},
		{"another unit", "unit: requests", "unit: tokens", `small.yaml:10: fields.queueDepth: unit "tokens", want "requests"`},
		{"no sources", "sources:\n    - {metric: \"small:waiting\", combine: sum}", "sources: []", "small.yaml:10: fields.queueDepth: sources is empty, want at least one"},
		{"unknown combination", "combine: sum", "combine: summ", `small.yaml:13: fields.queueDepth.sources[0].combine: "summ", want one of sum, mean, max, one`},
		{"weight of a sum", "combine: sum", "combine: sum, weight: {metric: x}", "small.yaml:13: fields.queueDepth.sources[0].weight: combine is not mean"},
		{"invert of a number", "combine: sum", "combine: sum, invert: true", "small.yaml:13: fields.queueDepth.sources[0].invert: queueDepth is not a yes-or-no field"},
		{"invert not a boolean", "combine: sum", "combine: sum, invert: 1", `small.yaml:13: fields.queueDepth.sources[0].invert: "1", want true or false`},
		{"quality beyond one", "combine: sum", "combine: sum, quality: 2", `small.yaml:13: fields.queueDepth.sources[0].quality: "2", want a number from 0 to 1`},
		{"doubt without a reason", "combine: sum", "combine: sum, quality: 0.5", `small.yaml:13: fields.queueDepth.sources[0]: quality 0.5 and because "", want both or neither`},
		{"a field both read and unsupported", "fields:", "unsupported: {queueDepth: no}\nfields:", "small.yaml:9: unsupported.queueDepth: also in fields"},
		{"an alias", `["small:"]`, "&a [\"small:\"]\nunsupported: *a", "small.yaml:5: unsupported: an alias, want a mapping"},
		{"a second document", "name: small", "name: small\n---\nname: x", "small.yaml: more than one document, want one profile for each file"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(small, c.old, c.now, 1)
			if text == small {
				t.Fatal("the fault was not put in")
			}
			_, err := Parse("small.yaml", []byte(text))
			if err == nil || err.Error() != c.want {
				t.Errorf("\n got  %v\n want %s", err, c.want)
			}
		})
	}
	if _, err := Parse("empty.yaml", nil); err == nil || err.Error() != "empty.yaml: the document is empty" {
		t.Errorf("empty: %v", err)
	}
}

func TestAnEngineIsAddedByAFileAlone(t *testing.T) {
	set, err := Load(fstest.MapFS{"small.yaml": {Data: []byte(small)}, "README.md": {Data: []byte("not a profile")}})
	if err != nil {
		t.Fatal(err)
	}
	page := []byte("small:waiting{rank=\"0\"} 4\nsmall:waiting{rank=\"1\"} 5\n")
	p := set.Detect(page)
	if p != set.Profile("small") {
		t.Fatalf("detected %v", p)
	}
	s, err := p.Read(page, Input{At: second})
	if err != nil {
		t.Fatal(err)
	}
	r := s.Readings[telemetry.QueueDepth]
	if r.Value != 9 || r.ExpiresAt != 4*second || r.Detail.Source.Rule != "sum over rank" {
		t.Errorf("%+v, rule %q", r, r.Detail.Source.Rule)
	}
}

const smallDigest = "small@sha256:701eeba6f44d"

func TestTheDigestFollowsTheText(t *testing.T) {
	parse := func(text string) string {
		p, err := Parse("small.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest()
	}
	// From: sha256sum of the text above.
	if got := parse(small); got != smallDigest {
		t.Errorf("digest %q, want %q", got, smallDigest)
	}
	if parse(small) == parse(small+"# another comment\n") {
		t.Error("another text has the same digest")
	}
}

func TestDetection(t *testing.T) {
	set, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"vllm:x 1\n":                       "vllm",
		"vllm_x 1\n":                       "vllm",
		"# TYPE vllm:x gauge\n":            "vllm",
		"# a comment on vllm:x\nother 1\n": "",
		"sglang:num_running_reqs 1\n":      "",
		"x{a=\"vllm:\"} 1\n":               "",
		"{\"vllm:x\":1}":                   "",
		"":                                 "",
	} {
		got := ""
		if p := set.Detect([]byte(page)); p != nil {
			got = p.Name()
		}
		if got != want {
			t.Errorf("%q: detected %q, want %q", page, got, want)
		}
	}
}

func TestTwoProfilesOfOneNameAreRefused(t *testing.T) {
	p, err := Parse("small.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewSet(p, p); err == nil || !strings.Contains(err.Error(), `"small": given twice`) {
		t.Errorf("got %v", err)
	}
}

func FuzzProfile(f *testing.F) {
	f.Add([]byte(small))
	if text, err := os.ReadFile("../../config/engines/vllm.yaml"); err == nil {
		f.Add(text)
	}
	f.Add([]byte("fields: {queueDepth: {sources: [{}]}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("fuzz.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz.yaml") {
				t.Errorf("an error without the file: %v", err)
			}
			return
		}
		page := []byte("vllm:num_requests_waiting 1\nsmall:waiting{rank=\"0\"} 4\n")
		if s, err := p.Read(page, Input{At: second}); err == nil {
			checkPossible(t, s)
		}
	})
}
