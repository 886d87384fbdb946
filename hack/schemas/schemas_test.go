package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/admin"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

const (
	root      = "../.."
	published = "../../docs/schemas"
)

var update = flag.Bool("update", false, "write docs/schemas anew")

func TestThePublishedSchemasAreWhatTheGeneratorWrites(t *testing.T) {
	if *update {
		if err := run(root, published); err != nil {
			t.Fatal(err)
		}
	}
	want, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(published, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		got, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text, ok := want[filepath.Base(f)]
		switch {
		case !ok:
			t.Errorf("%s: no document has this schema: remove it", f)
		case !bytes.Equal(got, text):
			t.Errorf("%s is not what the types say: run go run ./hack/schemas", f)
		}
		delete(want, filepath.Base(f))
	}
	for name := range want {
		t.Errorf("%s is not in %s: run go run ./hack/schemas", name, published)
	}
}

func TestEveryDocumentOfTheAPIHasASchemaAndALineInTheREADME(t *testing.T) {
	api, err := readSource(filepath.Join(root, apiDirectory))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(published, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, d := range documents() {
		described[d.kind] = true
		if line := fmt.Sprintf("| [%s](%s) |", d.kind, d.file+suffix); !strings.Contains(string(readme), line) {
			t.Errorf("README.md has no line that begins with %s", line)
		}
	}
	found := 0
	for name, members := range api.members {
		if slices.ContainsFunc(members, func(m member) bool { return m.json == "kind" }) {
			found++
			if !described[name] {
				t.Errorf("%s is a document and has no schema: add it to documents", name)
			}
		}
	}
	if found < 4 {
		t.Errorf("%d documents found in %s, want Observation, Decision, BerthConfiguration and StaticPool at least", found, apiDirectory)
	}
}

// schemas has the published schemas by kind.
func schemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	compiled := map[string]*jsonschema.Schema{}
	for _, d := range documents() {
		text, err := os.ReadFile(filepath.Join(published, d.file+suffix))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", d.file, err)
		}
		if err := c.AddResource(idBase+d.file+suffix, doc); err != nil {
			t.Fatalf("%s: %v", d.file, err)
		}
		s, err := c.Compile(idBase + d.file + suffix)
		if err != nil {
			t.Fatalf("%s: %v", d.file, err)
		}
		compiled[d.kind] = s
	}
	return compiled
}

func validate(s *jsonschema.Schema, text []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

// The references between parts are resolved, and each schema is one, when it is
// compiled.
func TestEverySchemaCompiles(t *testing.T) {
	if got, want := len(schemas(t)), len(documents()); got != want {
		t.Errorf("%d schemas, want %d", got, want)
	}
}

var now = telemetry.At(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC))

// reading is a reading of any field: what the field's kind does not use is not
// rendered.
func reading(recorded telemetry.State, expires telemetry.Instant) telemetry.Reading {
	hottest := 0.75
	return telemetry.Reading{
		Value: 1, ObservedAt: now.Add(-time.Second), ExpiresAt: expires, Quality: 0.5,
		Support: telemetry.Supported, Recorded: recorded, Provenance: telemetry.Measured,
		Detail: &telemetry.Detail{
			Max: &hottest, EngineTime: now.Add(-2 * time.Second), Names: []string{"m"}, Text: "0.32.0",
			Distribution: &telemetry.Distribution{Mean: 0.2, P50: 0.1, P90: 0.3, P99: 0.9, Count: 7},
			Source:       &telemetry.Source{Path: "/metrics", Metric: "m", Rule: "sum over engine"},
			Reasons:      []string{"one rank of two"},
		},
	}
}

// report is what a picker's admin listener answers: of a replica for each state
// that readings can have, one that was never read, and one of which the page
// says nothing; and of every decision that the tests of internal/host keep.
func report(t *testing.T, path string) []byte {
	t.Helper()
	snapshots := []*telemetry.Snapshot{nil, {Engine: "unknown"}}
	for _, s := range []struct {
		recorded telemetry.State
		expires  telemetry.Instant
	}{
		{telemetry.Fresh, now.Add(time.Second)}, {telemetry.Fresh, now.Add(-1)}, {telemetry.Fresh, 0},
		{telemetry.Stale, now.Add(time.Second)}, {telemetry.Missing, 0}, {telemetry.Invalid, now.Add(time.Second)},
	} {
		snapshot := &telemetry.Snapshot{Engine: "vllm", Profile: "vllm@sha256:0123456789ab"}
		for f := range telemetry.NumFields {
			snapshot.Readings[f] = reading(s.recorded, s.expires)
		}
		snapshots = append(snapshots, snapshot)
	}
	var specs []pool.Spec
	for i := range snapshots {
		specs = append(specs, pool.Spec{
			Name: fmt.Sprintf("r%d", i), Address: netip.AddrPortFrom(netip.MustParseAddr("fd00::1"), uint16(8000+i)),
			Node: "n1", Zone: "eu-1", Ready: i != 3, Terminating: i == 4,
		})
	}
	pools := pool.NewRegistry("", false)
	if err := pools.Update("local/demo", specs); err != nil {
		t.Fatal(err)
	}
	for i, s := range snapshots {
		e := pools.Set().Endpoints[i]
		if s == nil {
			e.ScrapeFailed("connection refused")
			continue
		}
		e.Publish(s, e.BeginScrape())
	}
	l := ledger.New(10, nil, func(string) {})
	for file, text := range recorded(t) {
		d := &v1alpha1.Decision{}
		if err := json.Unmarshal(text, d); err != nil {
			t.Fatal(err)
		}
		d.ID = file // what is kept has all the same
		l.Open(d)
	}
	w := httptest.NewRecorder()
	h := admin.Reports(admin.Options{Pools: pools, Ledger: l, Clock: func() telemetry.Instant { return now }})
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

// recorded has the records that the tests of internal/host keep, by file.
func recorded(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "internal/host/testdata/record-*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("internal/host keeps no records")
	}
	records := map[string][]byte{}
	for _, f := range files {
		if records[f], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	return records
}

func TestWhatThePickerReportsIsValid(t *testing.T) {
	all := schemas(t)
	for _, tc := range []struct {
		path, list, kind string
		atLeast          int
	}{
		{"/v1alpha1/replicas", "ReplicaList", "Observation", 8},
		{"/v1alpha1/decisions", "DecisionList", "Decision", 3},
	} {
		text := report(t, tc.path)
		if err := validate(all[tc.list], text); err != nil {
			t.Errorf("%s: %v", tc.path, err)
		}
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) < tc.atLeast {
			t.Errorf("%s: %d items, want at least %d", tc.path, len(list.Items), tc.atLeast)
		}
		for _, item := range list.Items {
			if err := validate(all[tc.kind], item); err != nil {
				t.Errorf("%s: %v\n%s", tc.path, err, item)
			}
		}
	}
}

func TestRecordedDecisionsAreValid(t *testing.T) {
	s := schemas(t)["Decision"]
	for file, text := range recorded(t) {
		if err := validate(s, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Whatever an engine may say of a replica, its document is valid.
func TestEverySnapshotRendersAValidObservation(t *testing.T) {
	s := schemas(t)["Observation"]
	var empty v1alpha1.Observation
	if err := json.Unmarshal([]byte(`{"version": "berth.dev/v1alpha1", "kind": "Observation", "engine": "vllm", "order": "normal"}`), &empty); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		snapshot := &telemetry.Snapshot{}
		for f := range telemetry.NumFields {
			if rapid.Bool().Draw(t, "read") {
				state := rapid.SampledFrom([]telemetry.State{telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid}).Draw(t, "state")
				r := reading(state, rapid.SampledFrom([]telemetry.Instant{0, now.Add(-1), now.Add(1)}).Draw(t, "expires"))
				if f.Kind() == telemetry.Number {
					r.Value = rapid.Float64Range(0, 1e15).Filter(f.Possible).Draw(t, "value")
				}
				r.Support = rapid.SampledFrom([]telemetry.Support{
					telemetry.Supported, telemetry.Unsupported, telemetry.Disabled, telemetry.SupportUnknown,
				}).Draw(t, "support")
				r.Provenance = rapid.SampledFrom([]telemetry.Provenance{
					telemetry.NoProvenance, telemetry.Measured, telemetry.Modeled, telemetry.Inferred, telemetry.Declared,
				}).Draw(t, "provenance")
				snapshot.Readings[f] = r
			}
		}
		doc := empty
		doc.Fields = snapshot.Document(now)
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(s, text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}

// configurations has the YAML documents of a text that have a schema, as JSON.
func configurations(t *testing.T, text string) []json.RawMessage {
	t.Helper()
	var docs []json.RawMessage
	for dec := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc map[string]any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if doc["apiVersion"] != v1alpha1.Version {
			continue
		}
		converted, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, converted)
	}
}

// yamlBlocks are the blocks of YAML in a document, without their indentation.
func yamlBlocks(markdown string) []string {
	var blocks []string
	var block []string
	inside := false
	indent := 0
	for line := range strings.Lines(markdown) {
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case !inside && strings.TrimSpace(trimmed) == "```yaml":
			inside, indent, block = true, len(line)-len(trimmed), nil
		case inside && strings.HasPrefix(trimmed, "```"):
			inside = false
			blocks = append(blocks, strings.Join(block, ""))
		case inside:
			block = append(block, line[min(indent, len(line)-len(trimmed)):])
		}
	}
	return blocks
}

func TestConfigurationsThatTheProjectShowsAreValid(t *testing.T) {
	all := schemas(t)
	texts := map[string][]string{}
	for _, f := range []string{"berth.yaml", "effective-empty.yaml", "effective-example.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "internal/policy/testdata", f))
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = []string{string(text)}
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	texts["README.md"] = yamlBlocks(string(readme))
	seen := map[string]int{}
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		for _, block := range texts[file] {
			for _, doc := range configurations(t, block) {
				var head struct{ Kind string }
				if err := json.Unmarshal(doc, &head); err != nil {
					t.Fatal(err)
				}
				if all[head.Kind] == nil {
					t.Fatalf("%s: a %q has no schema", file, head.Kind)
				}
				seen[file+" "+head.Kind]++
				if err := validate(all[head.Kind], doc); err != nil {
					t.Errorf("%s: %v\n%s", file, err, doc)
				}
			}
		}
	}
	for _, want := range []string{
		"README.md BerthConfiguration", "README.md StaticPool", "berth.yaml BerthConfiguration", "berth.yaml StaticPool",
		"effective-empty.yaml BerthConfiguration", "effective-example.yaml BerthConfiguration", "effective-example.yaml StaticPool",
	} {
		if seen[want] == 0 {
			t.Errorf("no %s was found", want)
		}
	}
}
