package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

// change is one place of a document and what is put there, as JSON; empty to take
// away what is there. Names and indices of the path are separated by dots.
type change struct{ path, value string }

// changed applies changes to a document.
func changed(t *testing.T, text []byte, changes ...change) []byte {
	t.Helper()
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		var value any
		if c.value != "" {
			if err := json.Unmarshal([]byte(c.value), &value); err != nil {
				t.Fatalf("%s: %v", c.value, err)
			}
		}
		if !put(doc, strings.Split(c.path, "."), value, c.value == "") {
			t.Fatalf("%s: there is no such place", c.path)
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put reports whether there was a place for the value. Objects on the way are made.
func put(doc any, path []string, value any, remove bool) bool {
	switch doc := doc.(type) {
	case map[string]any:
		_, there := doc[path[0]]
		switch {
		case len(path) > 1 && !there && !remove:
			doc[path[0]] = map[string]any{}
			fallthrough
		case len(path) > 1:
			return put(doc[path[0]], path[1:], value, remove)
		case remove:
			delete(doc, path[0])
			return there
		}
		doc[path[0]] = value
		return true
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(doc) {
			return false
		}
		if len(path) > 1 {
			return put(doc[i], path[1:], value, remove)
		}
		doc[i] = value
		return !remove
	}
	return false
}

// An observation of which the first reading is fresh, and the decision that
// internal/host keeps of a request that has ended.
func documentsToBreak(t *testing.T) (observation, decision []byte) {
	t.Helper()
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(report(t, "/v1alpha1/replicas"), &list); err != nil {
		t.Fatal(err)
	}
	decision, err := os.ReadFile(filepath.Join(root, "internal/host/testdata/record-ended.json"))
	if err != nil {
		t.Fatal(err)
	}
	return list.Items[2], decision
}

func TestDocumentsThatNoPickerWritesAreRefused(t *testing.T) {
	all := schemas(t)
	observation, decision := documentsToBreak(t)
	for _, tc := range []struct {
		name, kind string
		changes    []change
	}{
		{"another version", "Observation", []change{{"version", `"berth.dev/v1"`}}},
		{"another kind", "Observation", []change{{"kind", `"Decision"`}}},
		{"no replica", "Observation", []change{{"replica", ""}}},
		{"a replica without a name", "Observation", []change{{"replica.name", ""}}},
		{"a field of the catalogue is missing", "Observation", []change{{"fields.queueDepth", ""}}},
		{"an unknown state", "Observation", []change{{"fields.queueDepth.state", `"old"`}}},
		{"an unknown support", "Observation", []change{{"fields.queueDepth.support", `"maybe"`}}},
		{"an unknown provenance", "Observation", []change{{"fields.queueDepth.provenance", `"guessed"`}}},
		{"an unknown order", "Observation", []change{{"order", `"first"`}}},
		{"no state", "Observation", []change{{"fields.queueDepth.state", ""}}},
		{"no reasons", "Observation", []change{{"fields.queueDepth.reasons", ""}}},
		{"reasons that are null", "Observation", []change{{"fields.queueDepth.reasons", "null"}}},
		{"a fresh field without a value", "Observation", []change{{"fields.queueDepth.value", ""}}},
		{"a stale field without a value", "Observation", []change{{"fields.queueDepth.state", `"stale"`}, {"fields.queueDepth.value", ""}}},
		{"a missing field with a value", "Observation", []change{{"fields.queueDepth.state", `"missing"`}, {"fields.queueDepth.max", ""}}},
		{"an invalid field with a value", "Observation", []change{{"fields.queueDepth.state", `"invalid"`}, {"fields.queueDepth.max", ""}}},
		{"a missing field with a hottest rank", "Observation", []change{{"fields.queueDepth.state", `"missing"`}, {"fields.queueDepth.value", ""}}},
		{"a number as text", "Observation", []change{{"fields.queueDepth.value", `"4"`}}},
		{"a number below 0", "Observation", []change{{"fields.queueDepth.value", `-1`}}},
		{"a ratio above 1", "Observation", []change{{"fields.kvCacheUtilization.value", `1.5`}}},
		{"a yes or no as a number", "Observation", []change{{"fields.sleeping.value", `1`}}},
		{"names as one text", "Observation", []change{{"fields.servedModels.value", `"a,b"`}}},
		{"a distribution as its mean", "Observation", []change{{"fields.ttft.value", `0.2`}}},
		{"a distribution without a count", "Observation", []change{{"fields.ttft.value.count", ""}}},
		{"a value of a field that is new, of no known form", "Observation", []change{
			{"fields.new", `{"support": "supported", "state": "fresh", "value": [1], "quality": 1, "reasons": []}`},
		}},
		{"another unit", "Observation", []change{{"fields.ttft.unit", `"ms"`}}},
		{"a time that is none", "Observation", []change{{"fields.queueDepth.observedAt", `"yesterday"`}}},
		{"a quality above 1", "Observation", []change{{"fields.queueDepth.quality", `1.1`}}},
		{"half a request in flight", "Observation", []change{{"inFlight", `0.5`}}},

		{"no id", "Decision", []change{{"id", ""}}},
		{"no candidates", "Decision", []change{{"candidates", ""}}},
		{"candidates that are null", "Decision", []change{{"candidates", "null"}}},
		{"no versions", "Decision", []change{{"versions", ""}}},
		{"an unknown rung", "Decision", []change{{"rung", `"best"`}}},
		{"an unknown use", "Decision", []change{{"fields.0.use", `"unused"`}}},
		{"an unknown class", "Decision", []change{{"candidates.2.removedBy", `"kept"`}}},
		{"an unknown acknowledgement", "Decision", []change{{"acknowledgement.acted", `"ignored"`}}},
		{"an unknown cause", "Decision", []change{{"outcome.cause", `"bored"`}}},
		{"an outcome without an end", "Decision", []change{{"outcome.endedAt", ""}}},
		{"a time as seconds", "Decision", []change{{"time", `1767322987`}}},
		{"an unknown state of evidence", "Decision", []change{{"candidates.0.readings.0.state", `"old"`}}},
		{"missing evidence with a value", "Decision", []change{{"candidates.0.readings.0.state", `"missing"`}, {"candidates.0.readings.0.ageMillis", ""}}},
		{"fresh evidence without a value", "Decision", []change{{"candidates.0.readings.0.value", ""}}},
		{"a score that is text", "Decision", []change{{"candidates.0.scores.0", `"NaN"`}}},
		{"a status that refuses nothing", "Decision", []change{{"refusal", `{"status": 200, "reason": "unhealthy", "message": "m"}`}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := map[string][]byte{"Observation": observation, "Decision": decision}[tc.kind]
			if err := validate(all[tc.kind], doc); err != nil {
				t.Fatalf("what is to be broken is not valid: %v", err)
			}
			broken := changed(t, doc, tc.changes...)
			if err := validate(all[tc.kind], broken); err == nil {
				t.Error("accepted")
			}
			list := map[string]string{"Observation": "ReplicaList", "Decision": "DecisionList"}[tc.kind]
			for of, valid := range map[string]bool{string(doc): true, string(broken): false} {
				in := fmt.Appendf(nil, `{"version": "berth.dev/v1alpha1", "kind": %q, "items": [%s]}`, list, of)
				if err := validate(all[list], in); (err == nil) != valid {
					t.Errorf("in a list: %v, want valid %v", err, valid)
				}
			}
		})
	}
}

func TestDocumentsOfALaterVersionMayHaveMoreMembers(t *testing.T) {
	all := schemas(t)
	observation, decision := documentsToBreak(t)
	for _, tc := range []struct {
		kind string
		doc  []byte
		at   []string
	}{
		{"Observation", observation, []string{"new", "replica.new", "fields.queueDepth.new", "fields.queueDepth.source.new", "fields.ttft.value.new"}},
		{"Decision", decision, []string{"new", "intent.new", "request.new", "candidates.0.new", "candidates.0.readings.0.new", "outcome.new", "versions.new"}},
	} {
		for _, at := range tc.at {
			if err := validate(all[tc.kind], changed(t, tc.doc, change{at, `{"anything": [1]}`})); err != nil {
				t.Errorf("%s: %s: %v", tc.kind, at, err)
			}
		}
	}
	more := change{"fields.new", `{"support": "supported", "state": "fresh", "value": true, "quality": 1, "reasons": []}`}
	if err := validate(all["Observation"], changed(t, observation, more)); err != nil {
		t.Errorf("a new field: %v", err)
	}
}

const (
	leastConfiguration = `{"apiVersion": "berth.dev/v1alpha1", "kind": "BerthConfiguration"}`
	leastPool          = `{"apiVersion": "berth.dev/v1alpha1", "kind": "StaticPool", "metadata": {"name": "a"},
		"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 1}]}`
	leastIntent = `{"version": "berth.dev/v1alpha1", "requirements": [{"class": "safety", "key": "k", "operator": "In", "values": ["a"]},
		{"class": "safety", "key": "k", "operator": "Exists"}, {"class": "safety", "key": "k", "operator": "Lt", "values": ["1"]}]}`

	pickerConfig = `apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-depth}
- {type: berth-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-depth}
  - {pluginRef: berth-picker}
---
`
)

// pickerTakes asks the picker itself. JSON is YAML.
func pickerTakes(kind string, doc []byte) error {
	switch kind {
	case "StaticPool":
		_, err := policy.ParsePool("pool.yaml", doc, nil)
		return err
	case "RoutingIntent":
		_, _, err := v1alpha1.DecodeIntent(doc)
		return err
	}
	_, _, err := policy.Parse("berth.yaml", append([]byte(pickerConfig), doc...), ".", plugins.Catalog{})
	return err
}

func leastOf(kind string) []byte {
	return []byte(map[string]string{
		"StaticPool": leastPool, "RoutingIntent": leastIntent, "BerthConfiguration": leastConfiguration,
	}[kind])
}

// The bounds of a schema are those of the picker, which documents.go repeats.
func TestWhatPeopleWriteIsTakenAndRefusedAsThePickerDoes(t *testing.T) {
	all := schemas(t)
	for _, tc := range []struct {
		kind, path     string
		taken, refused []string
	}{
		{"BerthConfiguration", "gateway.fallbacks", []string{"0", "4"}, []string{"-1", "5", `"1"`, "null"}},
		{"BerthConfiguration", "gateway.onViolation", []string{`"report"`, `"refuse"`}, []string{`"ignore"`, `""`, "1"}},
		{"BerthConfiguration", "gateway.requestTrailers", []string{`"refuse"`, `"pass"`}, []string{`"drop"`}},
		{"BerthConfiguration", "gateway.unknownPaths", []string{`"route"`, `"refuse"`}, []string{`"404"`}},
		{"BerthConfiguration", "gateway.unknown", nil, []string{"1"}},
		{"BerthConfiguration", "limits.body", []string{`"1MiB"`, "1048576", `"1048576"`}, []string{`"1MB"`, `"1.5MiB"`, `"-1"`, "-1", "true", `""`}},
		{"BerthConfiguration", "limits.headerCount", []string{"1", "10000"}, []string{"0", "10001"}},
		{"BerthConfiguration", "limits.streams", []string{"1", "10000000"}, []string{"0", "10000001"}},
		{"BerthConfiguration", "limits.streamsPerConnection", []string{"1", "10000000"}, []string{"0", "10000001"}},
		{"BerthConfiguration", "limits.drain", []string{`"0s"`, "0", `"0"`, `"1m30s"`, `"1.5s"`, `"+.5s"`, `"10µs"`}, []string{"5", `"5"`, `"5 s"`, `"1d"`, `"s"`, `".s"`, `""`, "true"}},
		{"BerthConfiguration", "limits.keepalive.interval", []string{`"1s"`}, []string{`"1"`}},
		{"BerthConfiguration", "telemetry.mode", []string{`"auto"`, `"none"`}, []string{`"off"`}},
		{"BerthConfiguration", "telemetry.workers", []string{"1", "1024"}, []string{"0", "1025", "1.5"}},
		{"BerthConfiguration", "placement.quorum", []string{"0.01", "1"}, []string{"0", "1.01", "-0.5", `"0.5"`}},
		{"BerthConfiguration", "placement.replicas", []string{"1"}, []string{"0"}},
		{"BerthConfiguration", "acknowledgement.responseHeaders", []string{`"off"`, `"summary"`, `"full"`}, []string{`"all"`, "false"}},
		{"BerthConfiguration", "ledger.ring", []string{"0", "100000"}, []string{"-1", "100001"}},
		{"BerthConfiguration", "ledger.candidates", []string{"0", "10000"}, []string{"-1", "10001"}},
		{"BerthConfiguration", "discovery.file", []string{`"pool.yaml"`}, []string{`""`, "1"}},
		{"BerthConfiguration", "intent.unreadableBody", []string{`"refuse"`, `"pass"`}, []string{`"ignore"`, "true"}},
		{"BerthConfiguration", "intent.signedHeader", nil, []string{"{}", `{"keySet": "keys.json"}`, `{"audience": "berth"}`, `{"keySet": "", "audience": "berth"}`}},
		{"BerthConfiguration", "trust.headers", []string{`{"x-tenant": "sessionKey"}`}, []string{`["x-tenant"]`, `{"x-tenant": 1}`}},
		{"BerthConfiguration", "models.aliases", []string{`{"fast": ["a", "b"]}`}, []string{`{"fast": "a"}`, `{"fast": []}`, `{"fast": [""]}`}},
		{"BerthConfiguration", "screening.contextUnknown", []string{`"fail"`, `"pass"`}, []string{`"refuse"`}},
		{"BerthConfiguration", "screening.quarantine.failures", []string{"1", "1000"}, []string{"0", "1001"}},
		{"BerthConfiguration", "screening.quarantine.maxShare", []string{"0", "1"}, []string{"-0.1", "1.1", `"0.5"`}},
		{"BerthConfiguration", "limits", []string{"{}"}, []string{"null", "[]"}},
		{"BerthConfiguration", "apiVersion", nil, []string{"", `"berth.dev/v1"`}},
		{"BerthConfiguration", "kind", nil, []string{"", `"Other"`}},
		{"BerthConfiguration", "unknown", nil, []string{"{}"}},

		{"StaticPool", "metadata", nil, []string{""}},
		{"StaticPool", "metadata.name", []string{`"a-1.b"`}, []string{"", `""`, `"A"`, `"a..b"`, `"-a"`, `"a-"`, `"a_b"`}},
		{"StaticPool", "metadata.namespace", []string{`"a-1"`}, []string{`""`, `"a.b"`, `"A"`, `"` + strings.Repeat("a", 64) + `"`}},
		{"StaticPool", "failureMode", []string{`"FailClose"`, `"FailOpen"`}, []string{`"failOpen"`}},
		{"StaticPool", "endpoints", []string{"", "[]"}, []string{"null", "{}"}},
		{"StaticPool", "endpoints.0.name", nil, []string{"", `""`, `"` + strings.Repeat("a", 254) + `"`}},
		{"StaticPool", "endpoints.0.address", []string{`"::1"`, `"127.0.0.1"`}, []string{"", `"localhost"`, `"10.0.0.1:80"`, `"[::1]"`, `"fe80::1%eth0"`}},
		{"StaticPool", "endpoints.0.port", []string{"1", "65535"}, []string{"", "0", "65536", `"80"`}},
		{"StaticPool", "endpoints.0.node", []string{`"n1"`}, []string{`""`}},
		{"StaticPool", "endpoints.0.ready", []string{"true", "false"}, []string{`"no"`, "0"}},
		{"StaticPool", "endpoints.0.servedModels", []string{`["a", "b"]`}, []string{"[]", `[""]`, `["a", "a"]`, `"a"`}},
		{"StaticPool", "endpoints.0.contextLimit", []string{"1", "8192"}, []string{"0", "-1", `"8k"`}},
		{"StaticPool", "endpoints.0.labels", []string{`{"a": "b"}`}, []string{`{"a": 1}`, `["a"]`}},
		{"StaticPool", "endpoints.0.metrics", []string{"{}"}, []string{`"http://10.0.0.1/metrics"`, `{"host": "10.0.0.2"}`}},
		{"StaticPool", "endpoints.0.metrics.scheme", []string{`"http"`, `"https"`}, []string{`"ftp"`, `""`}},
		{"StaticPool", "endpoints.0.metrics.port", []string{"1", "65535"}, []string{"0", "65536"}},
		{"StaticPool", "endpoints.0.metrics.path", []string{`"/metrics"`}, []string{`"metrics"`, `""`}},
		{"StaticPool", "endpoints.0.weight", nil, []string{"1"}},

		{"RoutingIntent", "version", nil, []string{"", "null", "1", `"berth.dev/v1"`}},
		{"RoutingIntent", "later", []string{"1", "null", `{"a": []}`}, nil},
		{"RoutingIntent", "intentID", []string{`"a"`, `"` + strings.Repeat("a", 253) + `"`}, []string{`""`, "1", "null", `"` + strings.Repeat("a", 254) + `"`}},
		{"RoutingIntent", "issuer", []string{`"a b"`}, []string{`""`, "[]", `"` + strings.Repeat("a", 254) + `"`}},
		{"RoutingIntent", "audience", []string{`["a"]`, listOf(16, `"a"`)}, []string{"[]", `"a"`, `[""]`, `[1]`, "null", listOf(17, `"a"`)}},
		{"RoutingIntent", "expiresAt", []string{`"2026-01-02T03:04:05.678Z"`, `"2026-01-02T03:04:05+01:00"`}, []string{`""`, "1767322987", `"2026-01-02"`, `"2026-01-02T03:04:05"`}},
		{"RoutingIntent", "logicalModel", []string{`"a"`}, []string{`""`, "null", `"` + strings.Repeat("a", 513) + `"`}},
		{"RoutingIntent", "servedModels", []string{"[]", `["a", "a"]`, listOf(64, `"a"`)}, []string{"null", `"a"`, `[""]`, listOf(65, `"a"`)}},
		{"RoutingIntent", "requirements", []string{"", "[]", listOf(64, `{"class": "safety", "key": "k", "operator": "Exists"}`)}, []string{"null", "{}", `["a"]`, listOf(65, `{"class": "safety", "key": "k", "operator": "Exists"}`)}},
		{"RoutingIntent", "requirements.0.class", []string{`"authorization"`, `"safety"`, `"residency"`, `"capability"`, `"placement"`}, []string{"", `""`, `"Safety"`, `"cost"`, "null"}},
		{"RoutingIntent", "requirements.0.key", []string{`"berth.dev/tenants"`}, []string{"", `""`, "1", `"` + strings.Repeat("a", 318) + `"`}},
		{"RoutingIntent", "requirements.0.operator", []string{`"In"`, `"NotIn"`}, []string{"", `"in"`, `"Exists"`, `"DoesNotExist"`, `"Gt"`, `"Equals"`}},
		{"RoutingIntent", "requirements.0.values", []string{`[" a "]`, listOf(256, `"a"`)}, []string{"", "[]", "null", `"a"`, `[""]`, `[" \t"]`, "[1]", listOf(257, `"a"`)}},
		{"RoutingIntent", "requirements.1.operator", []string{`"Exists"`, `"DoesNotExist"`}, []string{`"In"`, `"Lt"`}},
		{"RoutingIntent", "requirements.1.values", []string{"[]"}, []string{`["a"]`, "null"}},
		{"RoutingIntent", "requirements.2.operator", []string{`"Gt"`, `"Lt"`, `"In"`}, []string{`"Exists"`}},
		{"RoutingIntent", "requirements.2.values", []string{`["-7"]`, `[" +40 "]`}, []string{"", "[]", `["1", "2"]`, `["1.5"]`, `[" "]`, "[1]", `["1e3"]`}},
		{"RoutingIntent", "requirements.0.weight", nil, []string{"1"}},
		{"RoutingIntent", "context", []string{"{}"}, []string{"null", "[]", "8192", `{"max": 1}`}},
		{"RoutingIntent", "context.inputTokens", []string{"0", "9007199254740991", "1.0"}, []string{"-1", "0.5", "9007199254740992", `"1"`, "null"}},
		{"RoutingIntent", "slo.ttft", []string{"0", "0.25"}, []string{"-0.25", `"250ms"`, "null"}},
		{"RoutingIntent", "slo.itl", nil, []string{"1"}},
		{"RoutingIntent", "priority", []string{"-2147483648", "0", "2147483647"}, []string{"-2147483649", "2147483648", "0.5", `"1"`}},
		{"RoutingIntent", "sessionKey", []string{`"a"`}, []string{`""`, "1"}},
		{"RoutingIntent", "demand.outputTokens", []string{"0", "512"}, []string{"-1", "0.5"}},
		{"RoutingIntent", "demand.tokens", nil, []string{"1"}},
		{"RoutingIntent", "energy", []string{`"neutral"`, `"preferLow"`}, []string{`""`, `"low"`, "1"}},
	} {
		t.Run(tc.kind+" "+tc.path, func(t *testing.T) {
			for _, v := range tc.taken {
				doc := changed(t, leastOf(tc.kind), change{tc.path, v})
				if err := pickerTakes(tc.kind, doc); err != nil {
					t.Errorf("%s: the picker refuses it: %v", v, err)
				}
				if err := validate(all[tc.kind], doc); err != nil {
					t.Errorf("%s: the schema refuses it: %v", v, err)
				}
			}
			for _, v := range tc.refused {
				doc := changed(t, leastOf(tc.kind), change{tc.path, v})
				if pickerTakes(tc.kind, doc) == nil {
					t.Errorf("%s: the picker takes it", v)
				}
				if validate(all[tc.kind], doc) == nil {
					t.Errorf("%s: the schema takes it", v)
				}
			}
		})
	}
}

// listOf is a list of n equal items.
func listOf(n int, item string) string {
	return "[" + strings.Join(slices.Repeat([]string{item}, n), ",") + "]"
}

// candidates are values that some key may have, and a few that none has.
var candidates = []string{
	"0", "1", "2", "50", "1000", "65536", "0.25", "-1", "true", "false", "null", "{}", "[]", `""`, `"a"`, `"a b"`, `"A.b"`, `"0"`, `"64"`,
	`"0s"`, `"-0s"`, `"+1s"`, `"100ms"`, `"1h0m.5s"`, `"3us"`, `"2MiB"`, `"64KiB"`, `"1GiB"`, `"10.0.0.9"`, `"::ffff:10.0.0.9"`, `"fd00::9"`,
	`"report"`, `"refuse"`, `"pass"`, `"route"`, `"auto"`, `"none"`, `"off"`, `"full"`, `"FailOpen"`, `"vllm"`, `"http"`, `"/m?x=1"`,
	`"berth.dev/v1alpha1"`, `"safety"`, `"In"`, `"Exists"`, `"Gt"`, `["7"]`, `"2026-01-02T03:04:05Z"`, `"preferLow"`, "9007199254740991",
	`["a", "b"]`, `{"a": "b"}`, `{"berth.dev/context-limit": "8192"}`, `{"port": 80}`,
}

// A schema that refused what the picker takes would keep people from what is right.
// Documents that leave nothing out are changed at random; the picker judges.
func TestNoSchemaRefusesWhatThePickerTakes(t *testing.T) {
	all := schemas(t)
	text, err := os.ReadFile(filepath.Join(root, "internal/policy/testdata/berth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string][]byte{}
	for _, doc := range configurations(t, string(text)) {
		var head struct{ Kind string }
		if err := json.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		whole[head.Kind] = doc
	}
	if whole["RoutingIntent"], err = os.ReadFile(filepath.Join("testdata", "routing-intent.json")); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"BerthConfiguration", "StaticPool", "RoutingIntent"} {
		t.Run(kind, func(t *testing.T) {
			taken, judged := 0, 0
			paths := placesOf(t, whole[kind])
			rapid.Check(t, func(r *rapid.T) {
				doc := whole[kind]
				for range rapid.IntRange(1, 2).Draw(r, "changes") {
					path := rapid.SampledFrom(paths).Draw(r, "path")
					value := rapid.SampledFrom(candidates).Draw(r, "value")
					var tree any
					if err := json.Unmarshal(doc, &tree); err != nil {
						r.Fatal(err)
					}
					var v any
					if err := json.Unmarshal([]byte(value), &v); err != nil {
						r.Fatal(err)
					}
					// The first change may have taken the place of the second away.
					put(tree, path, v, rapid.Bool().Draw(r, "remove"))
					if doc, err = json.Marshal(tree); err != nil {
						r.Fatal(err)
					}
				}
				judged++
				if pickerTakes(kind, doc) != nil {
					return
				}
				taken++
				if err := validate(all[kind], doc); err != nil {
					r.Fatalf("the picker takes what the schema refuses: %v\n%s", err, doc)
				}
			})
			if taken*20 < judged {
				t.Errorf("the picker takes %d of %d: too few to show anything", taken, judged)
			}
		})
	}
}

// placesOf are the paths of everything in a document, apiVersion and kind apart.
func placesOf(t *testing.T, doc []byte) [][]string {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(doc, &tree); err != nil {
		t.Fatal(err)
	}
	delete(tree, "apiVersion")
	delete(tree, "kind")
	var places [][]string
	var walk func(at []string, v any)
	walk = func(at []string, v any) {
		if len(at) > 0 {
			places = append(places, at)
		}
		below := func(name string) []string { return append(slices.Clone(at), name) }
		switch v := v.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				walk(below(name), v[name])
			}
		case []any:
			for i, item := range v {
				walk(below(strconv.Itoa(i)), item)
			}
		}
	}
	walk(nil, tree)
	return places
}
