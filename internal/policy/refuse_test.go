package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// refused is one bad input. Each wanted line is "line: field: value: beginning of
// what is allowed"; there must be exactly these errors, in this order.
type refused struct {
	name string
	text string
	want []string
}

func TestEachBadConfigurationIsRefusedWithItsPlace(t *testing.T) {
	one := func(weight string) string {
		return head + "plugins:\n- {type: latency}\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: latency\n    weight: " + weight + "\n"
	}
	cases := []refused{
		// The file.
		{"an empty file", "", []string{"0: : : is empty"}},
		{"only comments and separators", "# nothing\n---\n---\n", []string{"0: : : is empty"}},
		{"a file above 1MiB", head + strings.Repeat("#", 1<<20), []string{"0: : more than 1MiB: must be at most 1MiB"}},
		{"no YAML", head + "plugins: [\n", []string{"3: : : is not valid YAML"}},
		{"a tab for indentation", head + "plugins:\n\t- {}\n", []string{"4: : : is not valid YAML"}},
		{"a list as document", "- a\n", []string{"1: : [...]: must be a mapping with apiVersion and kind"}},
		{"a scalar as document", "hello\n", []string{"1: : hello: must be a mapping with apiVersion and kind"}},
		{"an anchor", head + "plugins: &all []\n", []string{"3: plugins: [...]: must be written out: anchors and aliases are not allowed"}},
		{"an anchored document", "&doc\napiVersion: a\nkind: b\n", []string{"1: : {...}: must be written out"}},
		{"an anchored null document", "&doc\n", []string{"1: : null: must be written out"}},
		{"an anchor on a key", head + "&k plugins: []\n", []string{"3: : plugins: must be a plain string"}},
		{"a bomb of aliases", head + "plugins:\n- &a [x, x]\n- &b [*a, *a]\n- &c [*b, *b]\n", []string{
			"4: plugins[0]: [...]: must be written out", "5: plugins[1]: [...]: must be written out", "6: plugins[2]: [...]: must be written out"}},
		{"a bottomless value", head + "plugins: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n", []string{
			"3: plugins" + strings.Repeat("[0]", 32) + ": [...]: must have at most 32 levels"}},
		{"a merge key", head + "<<: {a: b}\n", []string{"3: : <<: must be a plain string"}},
		{"a number as key", head + "1: a\n", []string{"3: : 1: must be a plain string"}},
		{"a duplicate key", head + "plugins: []\nplugins: []\n", []string{"4: plugins: [...]: must occur once: it is in line 3 already"}},
		{"a duplicate key in parameters", head + "plugins:\n- type: windowed\n  parameters:\n    window: 1\n    window: 2\n",
			[]string{"7: plugins[0].parameters.window: 2: must occur once: it is in line 6 already"}},

		{"a list or mapping is in the line of its key", head + "nonsense:\n\n  a: b\nplugins:\n- type: windowed\n  parameters:\n    windows:\n    - 1\n", []string{
			"3: nonsense: {...}: is an unknown key", "9: plugins[0].parameters.windows: [...]: is an unknown"}},
		{"a syntax error in the first line", "a: ]\n", []string{"1: : : is not valid YAML: did not find expected node content"}},
		{"a syntax error in the second document", head + "---\nkind: BerthConfiguration\nlimits:\n  body: 1KiB\n drain: 1s\n", []string{
			"7: : : is not valid YAML: did not find expected key of what begins in line 4"}},

		// The documents.
		{"no kind", "apiVersion: berth.dev/v1alpha1\n", []string{"1: kind: missing: must be one of EndpointPickerConfig"}},
		{"an unknown kind", "apiVersion: v1\nkind: ConfigMap\n", []string{"2: kind: ConfigMap: must be one of EndpointPickerConfig"}},
		{"a kind that is a number", "apiVersion: v1\nkind: 5\n", []string{"2: kind: 5: must be one of EndpointPickerConfig"}},
		{"another apiVersion", "apiVersion: inference.networking.x-k8s.io/v1\nkind: EndpointPickerConfig\n",
			[]string{"1: apiVersion: inference.networking.x-k8s.io/v1: must be inference.networking.x-k8s.io/v1alpha1 for kind EndpointPickerConfig"}},
		{"no apiVersion", head + "---\nkind: BerthConfiguration\n", []string{"4: apiVersion: missing: must be berth.dev/v1alpha1 for kind BerthConfiguration"}},
		{"no EndpointPickerConfig", "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n",
			[]string{"2: kind: BerthConfiguration: must be EndpointPickerConfig in the first document"}},
		{"EndpointPickerConfig not first", "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n---\n" + head,
			[]string{"5: kind: EndpointPickerConfig: must be in its place"}},
		{"the pool before the settings", head + "---\n" + poolHead + "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n",
			[]string{"7: endpoints: null: must be a list", "10: kind: BerthConfiguration: must be in its place"}},
		{"two of one kind", berthHead + "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n",
			[]string{"8: kind: BerthConfiguration: must occur once"}},
		{"a pool twice over", berthHead + "discovery: {file: pool.yaml}\n---\n" + poolHead + "- {name: a, address: 10.0.0.1, port: 80}\n",
			[]string{"8: kind: StaticPool: must be left out, or else discovery.file"}},

		// Shapes.
		{"an unknown top-level key", head + "plugin: []\n", []string{"3: plugin: [...]: is an unknown key; known here: apiVersion, kind, plugins, schedulingProfiles"}},
		{"a misspelt key", berthHead + "gateway:\n  fallback: 1\n", []string{"7: gateway.fallback: 1: is an unknown key; known here: fallbacks, onViolation, requestTrailers"}},
		{"another case", berthHead + "gateway: {Fallbacks: 1}\n", []string{"6: gateway.Fallbacks: 1: is an unknown key"}},
		{"a scalar for a mapping", berthHead + "gateway: yes\n", []string{"6: gateway: yes: must be a mapping"}},
		{"a null section", berthHead + "gateway:\n", []string{"6: gateway: null: must be a mapping"}},
		{"a mapping for a list", head + "plugins: {type: a}\n", []string{"3: plugins: {...}: must be a list"}},
		{"a text for a number", berthHead + "gateway: {fallbacks: \"1\"}\n", []string{"6: gateway.fallbacks: \"1\": must be a whole number"}},
		{"a fraction for a whole number", berthHead + "ledger: {ring: 1.5}\n", []string{"6: ledger.ring: 1.5: must be a whole number"}},
		{"a number beyond 64 bits", berthHead + "ledger: {ring: 99999999999999999999}\n", []string{"6: ledger.ring: 99999999999999999999: must be a whole number"}},
		{"a number for a text", berthHead + "discovery: {file: 5}\n", []string{"6: discovery.file: 5: must be a string: put it in quotes"}},
		{"a tag of one's own", berthHead + "discovery: {file: !secret x}\n", []string{"6: discovery.file: x: must be a string"}},
		{"a value with a line break", berthHead + "gateway: {onViolation: \"a\\nb\"}\n", []string{`6: gateway.onViolation: "a\nb": must be one of report, refuse`}},

		// Plugins and profiles.
		{"an unknown plugin type", head + "plugins:\n- {type: latencies}\n", []string{"4: plugins[0].type: latencies: is an unknown type; known types: active-requests, berth-picker"}},
		{"a plugin without type", head + "plugins:\n- {name: a}\n", []string{"4: plugins[0].type: missing: must be a plugin type"}},
		{"a plugin that is a text", head + "plugins:\n- latency\n", []string{"4: plugins[0]: latency: must be a mapping"}},
		{"a plugin with an empty name", head + "plugins:\n- {type: latency, name: \"\"}\n", []string{`4: plugins[0].name: "": must be a name`}},
		{"a duplicate plugin name", head + "plugins:\n- {type: latency}\n- {type: windowed, name: latency}\n",
			[]string{"5: plugins[1].name: latency: must come with a name of its own: plugins[0] in line 4 has this one"}},
		{"a type twice without names", head + "plugins:\n- {type: latency}\n- {type: latency}\n",
			[]string{"5: plugins[1].type: latency: must come with a name of its own: plugins[0] in line 4 has this one"}},
		{"parameters as a list", head + "plugins:\n- {type: latency, parameters: [a]}\n", []string{"4: plugins[0].parameters: [...]: must be a mapping"}},
		{"parameters that are null", head + "plugins:\n- type: latency\n  parameters:\n", []string{"5: plugins[0].parameters: null: must be a mapping"}},
		{"an unknown parameter", head + "plugins:\n- type: windowed\n  parameters:\n    windows: 3\n", []string{"6: plugins[0].parameters.windows: 3: is an unknown parameter"}},
		{"a parameter out of range", head + "plugins:\n- type: windowed\n  parameters: {\n    window: -1}\n", []string{"6: plugins[0].parameters.window: -1: must be a number above 0"}},
		{"a nested parameter", head + "plugins:\n- type: hosted\n  parameters:\n    hosts:\n    - {name: a}\n    - {name: bbbb}\n",
			[]string{"8: plugins[0].parameters.hosts[1].name: bbbb: must be a short name"}},
		{"parameters that the type cannot take", head + "plugins:\n- type: latency\n  parameters: {broken: true}\n", []string{"5: plugins[0].parameters: {...}: cannot be used: cannot be had"}},
		{"parameters that JSON cannot hold", head + "plugins:\n- type: windowed\n  parameters:\n    window: .nan\n    when: 2026-01-02\n    none:\n",
			[]string{"6: plugins[0].parameters.window: .nan: must be a string, a finite number", "7: plugins[0].parameters.when: 2026-01-02: must be a string", "8: plugins[0].parameters.none: null: must be a string"}},
		{"the twin's parameters are strict too", head + "plugins:\n- {type: queue-scorer, parameters: {x: 1}}\n", []string{"4: plugins[0].parameters.x: 1: is an unknown parameter"}},
		{"a reference to nothing", head + "plugins:\n- {type: latency}\nschedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: latencies}\n",
			[]string{"8: schedulingProfiles[0].plugins[0].pluginRef: latencies: must be the name of a plugin; plugins has latency"}},
		{"a reference without plugins", head + "schedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: latency}\n",
			[]string{"6: schedulingProfiles[0].plugins[0].pluginRef: latency: must be the name of a plugin; plugins has none"}},
		{"a reference that is missing", head + "plugins: [{type: latency}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - {weight: 1}\n",
			[]string{"7: schedulingProfiles[0].plugins[0].pluginRef: missing: must be the name of a plugin"}},
		{"one plugin referred to twice", head + "plugins: [{type: latency}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: latency}\n  - {pluginRef: latency}\n",
			[]string{"8: schedulingProfiles[0].plugins[1].pluginRef: latency: must be referred to once: line 7"}},
		{"a plugin that no profile can use", head + "plugins: [{type: berth-telemetry}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: berth-telemetry}\n",
			[]string{"7: schedulingProfiles[0].plugins[0].pluginRef: berth-telemetry: must be a filter, scorer or picker"}},
		{"two pickers in a profile", head + "plugins: [{type: berth-picker}, {type: random-picker}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: berth-picker}\n  - {pluginRef: random-picker}\n",
			[]string{"8: schedulingProfiles[0].plugins[1].pluginRef: random-picker: must not be a second picker: berth-picker in line 7"}},
		{"two pickers and no reference", head + "plugins: [{type: berth-picker}, {type: random-picker}]\nschedulingProfiles:\n- name: a\n  plugins: []\n",
			[]string{"6: schedulingProfiles[0].plugins: [...]: must refer to one picker"}},
		{"the default picker's name taken", head + "plugins:\n- {type: latency, name: berth-picker}\n",
			[]string{"4: plugins[0]: {...}: must have another name"}},
		{"two profiles", head + "schedulingProfiles:\n- {name: a, plugins: []}\n- {name: b, plugins: []}\n",
			[]string{"5: schedulingProfiles[1]: {...}: must be left out: several scheduling profiles are not supported by this version"}},
		{"a profile without name", head + "plugins: [{type: latency}]\nschedulingProfiles:\n- plugins: [{pluginRef: latency}]\n",
			[]string{"5: schedulingProfiles[0].name: missing: must be a name"}},
		{"the stock handler in a profile", head + "plugins: [{type: single-profile-handler}]\nschedulingProfiles:\n- name: a\n  plugins:\n  - {pluginRef: single-profile-handler}\n",
			[]string{"7: schedulingProfiles[0].plugins[0].pluginRef: single-profile-handler: must be a filter, scorer or picker"}},

		// Weights.
		{"a negative weight", one("-1"), []string{"9: schedulingProfiles[0].plugins[0].weight: -1: must be a finite number from 0 to 1000000"}},
		{"a weight that is no number", one(".nan"), []string{"9: schedulingProfiles[0].plugins[0].weight: .nan: must be a finite number"}},
		{"an infinite weight", one(".inf"), []string{"9: schedulingProfiles[0].plugins[0].weight: .inf: must be a finite number"}},
		{"an infinite negative weight", one("-.inf"), []string{"9: schedulingProfiles[0].plugins[0].weight: -.inf: must be a finite number"}},
		{"a weight whose sum is infinite", one("1e308"), []string{"9: schedulingProfiles[0].plugins[0].weight: 1e308: must be a finite number"}},
		{"a weight beyond float64", one("1e999"), []string{"9: schedulingProfiles[0].plugins[0].weight: 1e999: must be a number"}},
		{"a weight in quotes", one(`"2"`), []string{`9: schedulingProfiles[0].plugins[0].weight: "2": must be a number`}},
		{"a weight of nothing", one(""), []string{"9: schedulingProfiles[0].plugins[0].weight: null: must be a number"}},
		{"a weight that is true", one("true"), []string{"9: schedulingProfiles[0].plugins[0].weight: true: must be a number"}},

		// Settings.
		{"an empty pool file", berthHead + "discovery: {file: \"\"}\n", []string{`6: discovery.file: "": must be the path of a file`}},
		{"fallbacks", berthHead + "gateway: {fallbacks: 5}\n", []string{"6: gateway.fallbacks: 5: must be 0 to 4"}},
		{"negative fallbacks", berthHead + "gateway: {fallbacks: -1}\n", []string{"6: gateway.fallbacks: -1: must be 0 to 4"}},
		{"onViolation", berthHead + "gateway: {onViolation: ignore}\n", []string{"6: gateway.onViolation: ignore: must be one of report, refuse"}},
		{"requestTrailers", berthHead + "gateway: {requestTrailers: \"\"}\n", []string{`6: gateway.requestTrailers: "": must be one of refuse, pass`}},
		{"fewer bytes for all than for one", berthHead + "limits: {body: 2MiB, buffered: 1MiB}\n", []string{"6: limits.buffered: 1MiB: must be at least limits.body (2MiB)"}},
		{"body", berthHead + "limits: {body: 2GiB}\n", []string{"6: limits.body: 2GiB: must be 1KiB to 1GiB"}},
		{"body unit", berthHead + "limits: {body: 32MB}\n", []string{"6: limits.body: 32MB: must be a number of bytes: a whole number with KiB, MiB, GiB"}},
		{"body zero", berthHead + "limits: {body: 0}\n", []string{"6: limits.body: 0: must be 1KiB to 1GiB"}},
		{"uploadIdle", berthHead + "limits: {uploadIdle: 1h}\n", []string{"6: limits.uploadIdle: 1h: must be 10ms to 10m"}},
		{"uploadTime", berthHead + "limits: {uploadTime: 25h}\n", []string{"6: limits.uploadTime: 25h: must be 10ms to 24h"}},
		{"less time for all than for a pause", berthHead + "limits: {uploadIdle: 20s, uploadTime: 10s}\n", []string{"6: limits.uploadTime: 10s: must be at least limits.uploadIdle (20s)"}},
		{"message", berthHead + "limits: {message: 512KiB}\n", []string{"6: limits.message: 512KiB: must be 2MiB to 2047MiB"}},
		{"headerCount", berthHead + "limits: {headerCount: 0}\n", []string{"6: limits.headerCount: 0: must be 1 to 10000"}},
		{"headerBytes", berthHead + "limits: {headerBytes: 1GiB}\n", []string{"6: limits.headerBytes: 1GiB: must be 1KiB to 16MiB"}},
		{"streams", berthHead + "limits: {streams: 0}\n", []string{"6: limits.streams: 0: must be 1 to 10000000"}},
		{"streamsPerConnection", berthHead + "limits: {streamsPerConnection: -1}\n", []string{"6: limits.streamsPerConnection: -1: must be 1 to 10000000"}},
		{"keepalive interval", berthHead + "limits: {keepalive: {interval: 10ms}}\n", []string{"6: limits.keepalive.interval: 10ms: must be 1s to 2h"}},
		{"keepalive timeout", berthHead + "limits: {keepalive: {timeout: 0s}}\n", []string{"6: limits.keepalive.timeout: 0s: must be 10ms to 10m"}},
		{"keepalive minInterval", berthHead + "limits: {keepalive: {minInterval: 2h}}\n", []string{"6: limits.keepalive.minInterval: 2h: must be 100ms to 1h"}},
		{"a keepalive key", berthHead + "limits: {keepalive: {every: 1m}}\n", []string{"6: limits.keepalive.every: 1m: is an unknown key; known here: interval, minInterval, timeout"}},
		{"unknownPaths", berthHead + "gateway: {unknownPaths: drop}\n", []string{"6: gateway.unknownPaths: drop: must be one of route, refuse"}},
		{"decisionDeadline", berthHead + "limits: {decisionDeadline: 0s}\n", []string{"6: limits.decisionDeadline: 0s: must be 1ms to 1m"}},
		{"drain", berthHead + "limits: {drain: -1s}\n", []string{"6: limits.drain: -1s: must be 0s to 10m"}},
		{"a duration without unit", berthHead + "limits: {drain: 30}\n", []string{"6: limits.drain: 30: must be a duration: a number with a unit"}},
		{"a duration that is a list", berthHead + "limits: {drain: [30s]}\n", []string{"6: limits.drain: [...]: must be a value with a unit"}},
		{"mode", berthHead + "telemetry: {mode: off}\n", []string{"6: telemetry.mode: off: must be one of auto, none"}},
		{"hot too often", berthHead + "telemetry: {hot: 1ms}\n", []string{"6: telemetry.hot: 1ms: must be 50ms to 1h"}},
		{"idle too rare", berthHead + "telemetry: {idle: 24h}\n", []string{"6: telemetry.idle: 24h: must be 50ms to 1h"}},
		{"hot above the default warm", berthHead + "telemetry: {hot: 2s}\n", []string{"6: telemetry.hot: 2s: must be at most telemetry.warm (1s)"}},
		{"warm below hot", berthHead + "telemetry:\n  hot: 500ms\n  warm: 400ms\n", []string{"8: telemetry.warm: 400ms: must be at least telemetry.hot (500ms)"}},
		{"idle below warm", berthHead + "telemetry: {idle: 999ms}\n", []string{"6: telemetry.idle: 999ms: must be at least telemetry.warm (1s)"}},
		{"timeout zero", berthHead + "telemetry: {timeout: 0s}\n", []string{"6: telemetry.timeout: 0s: must be 1ms to 10s"}},
		{"timeout", berthHead + "telemetry: {timeout: 11s}\n", []string{"6: telemetry.timeout: 11s: must be 1ms to 10s"}},
		{"maxPage", berthHead + "telemetry: {maxPage: 1KiB}\n", []string{"6: telemetry.maxPage: 1KiB: must be 64KiB to 64MiB"}},
		{"workers", berthHead + "telemetry: {workers: 0}\n", []string{"6: telemetry.workers: 0: must be 1 to 1024"}},
		{"quorum zero", berthHead + "placement: {quorum: 0}\n", []string{"6: placement.quorum: 0: must be a number above 0, at most 1"}},
		{"quorum above one", berthHead + "placement: {quorum: 1.01}\n", []string{"6: placement.quorum: 1.01: must be a number above 0"}},
		{"quorum no number", berthHead + "placement: {quorum: .nan}\n", []string{"6: placement.quorum: .nan: must be a number above 0"}},
		{"responseHeaders", berthHead + "acknowledgement: {responseHeaders: on}\n", []string{"6: acknowledgement.responseHeaders: on: must be one of off, summary, full"}},
		{"ring", berthHead + "ledger: {ring: 100001}\n", []string{"6: ledger.ring: 100001: must be 0 to 100000"}},
		{"candidates", berthHead + "ledger: {candidates: -1}\n", []string{"6: ledger.candidates: -1: must be 0 to 10000"}},

		// Intents.
		{"a section that is a list", berthHead + "intent: []\n", []string{"6: intent: [...]: must be a mapping"}},
		{"an unknown key of intents", berthHead + "intent: {require: true}\n", []string{
			"6: intent.require: true: is an unknown key; known here: metadata, required, signedHeader, unreadableBody"}},
		{"required", berthHead + "intent: {required: \"true\"}\n", []string{`6: intent.required: "true": must be true or false`}},
		{"unreadableBody", berthHead + "intent: {unreadableBody: ignore}\n", []string{"6: intent.unreadableBody: ignore: must be one of refuse, pass"}},
		{"a signed header of nothing", berthHead + "intent:\n  signedHeader: {}\n", []string{
			"7: intent.signedHeader.keySet: missing: must be the path of a file with the keys to verify with",
			"7: intent.signedHeader.audience: missing: must be this picker's name in intents, 1 to 253 printable characters"}},
		{"a signed header that is null", berthHead + "intent:\n  signedHeader:\n", []string{"7: intent.signedHeader: null: must be a mapping"}},
		{"a key set without an audience", berthHead + "intent: {signedHeader: {keySet: no.json}}\n", []string{
			"6: intent.signedHeader.audience: missing: must be this picker's name",
			"6: intent.signedHeader.keySet: no.json: cannot be used: no.json: no such file or directory"}},
		{"an audience without a key set", berthHead + "intent: {signedHeader: {audience: berth}}\n", []string{"6: intent.signedHeader.keySet: missing: must be the path of a file"}},
		{"an empty key set and audience", berthHead + "intent: {signedHeader: {keySet: \"\", audience: \"\"}}\n", []string{
			`6: intent.signedHeader.keySet: "": must be the path of a file`, `6: intent.signedHeader.audience: "": must be this picker's name`}},
		{"a key set with a zero byte", berthHead + "intent: {signedHeader: {keySet: \"a\\0b\", audience: a}}\n", []string{
			`6: intent.signedHeader.keySet: "a\x00b": must be the path of a file`}},
		{"skew", berthHead + "intent: {signedHeader: {audience: a, keySet: /dev/null, skew: 301s}}\n", []string{
			"6: intent.signedHeader.skew: 301s: must be 0s to 5m",
			"6: intent.signedHeader.keySet: /dev/null: cannot be used: /dev/null: it is not a regular file"}},
		{"a negative skew", berthHead + "intent: {signedHeader: {audience: \"a\\nb\", skew: -1s}}\n", []string{
			"6: intent.signedHeader.keySet: missing: must be the path of a file",
			`6: intent.signedHeader.audience: "a\nb": must be this picker's name`, "6: intent.signedHeader.skew: -1s: must be 0s to 5m"}},
		{"a key set in the configuration", berthHead + "intent: {signedHeader: {audience: a, keySet: {keys: []}}}\n", []string{
			"6: intent.signedHeader.keySet: {...}: must be a string"}},

		// Headers.
		{"headers that are a list", berthHead + "trust: {headers: [x-model]}\n", []string{"6: trust.headers: [...]: must be a mapping of strings"}},
		{"no header to trust", berthHead + "trust: {plainHeaders: true, headers: {}}\n", []string{"6: trust.headers: {...}: must have at least one entry with trust.plainHeaders true"}},
		{"too many headers", berthHead + "trust:\n  headers:\n" + numbered(33, "    x-%d: requirement.safety.k%d\n"), []string{"7: trust.headers: {...}: must have at most 32 entries"}},
		{"headers that are none", berthHead + "trust:\n  headers:\n    X-Model: logicalModel\n    x model: servedModels\n    \"\": priority\n    \":path\": sessionKey\n    é: contextInputTokens\n", []string{
			"8: trust.headers.X-Model: logicalModel: must stand for a header's name in lower case: 1 to 256 letters, digits and",
			"9: trust.headers[x model]: servedModels: must stand for a header's name",
			"10: trust.headers[]: priority: must stand for a header's name",
			"11: trust.headers[:path]: sessionKey: must stand for a header's name",
			"12: trust.headers[é]: contextInputTokens: must stand for a header's name"}},
		{"a long header", berthHead + "trust: {headers: {" + strings.Repeat("x", 257) + ": logicalModel}}\n", []string{
			"6: trust.headers." + strings.Repeat("x", 242) + "...: logicalModel: must stand for a header's name"}},
		{"headers with a meaning of their own", berthHead + "trust:\n  headers:\n    authorization: logicalModel\n    cookie: servedModels\n    host: priority\n    content-type: sessionKey\n" +
			"    transfer-encoding: contextInputTokens\n    connection: contextOutputTokens\n    x-berth-intent: requirement.safety.a\n    x-gateway-destination-endpoint: requirement.safety.b\n", []string{
			"8: trust.headers.authorization: logicalModel: must stand for another header: not authorization, connection, cookie, ",
			"9: trust.headers.cookie: servedModels: must stand for another header",
			"10: trust.headers.host: priority: must stand for another header",
			"11: trust.headers.content-type: sessionKey: must stand for another header",
			"12: trust.headers.transfer-encoding: contextInputTokens: must stand for another header",
			"13: trust.headers.connection: contextOutputTokens: must stand for another header",
			"14: trust.headers.x-berth-intent: requirement.safety.a: must stand for another header",
			"15: trust.headers.x-gateway-destination-endpoint: requirement.safety.b: must stand for another header"}},
		{"unknown flat keys", berthHead + "trust:\n  headers:\n    x-a: model\n    x-b: requirement.safty.level\n    x-c: \"\"\n    x-d: requirement.safety.\n    x-e: requirement.safety." + strings.Repeat("k", 318) + "\n", []string{
			"8: trust.headers.x-a: model: must be logicalModel, servedModels, priority, sessionKey",
			"9: trust.headers.x-b: requirement.safty.level: must be logicalModel",
			`10: trust.headers.x-c: "": must be logicalModel`,
			"11: trust.headers.x-d: requirement.safety.: must be logicalModel",
			"12: trust.headers.x-e: requirement.safety." + strings.Repeat("k", 45) + "...: cannot be used: it has 318 bytes"}},
		{"flat keys that no replica could meet", berthHead + "trust:\n  headers:\n    x-a: requirement.residency.berth.dev/residncy\n    x-b: logicalModl\n", []string{
			"8: trust.headers.x-a: requirement.residency.berth.dev/residncy: must be a requirement on an attribute that replicas can have; of berth.dev these are",
			"9: trust.headers.x-b: logicalModl: must be logicalModel, servedModels,"}},
		{"intents that are required where none can arrive", berthHead + "intent: {required: true, metadata: false,\n  unreadableBody: pass}\nmodels:\n  aliases:\n    a: [b]\nscreening: {contextUnknown: pass}\n", []string{
			"6: intent.required: true: must be false unless intents can arrive: with intent.metadata true, intent.signedHeader, or trust.plainHeaders true; all requests would be refused"}},
		{"channels that are refused are not missed", berthHead + "intent: {required: true, metadata: false}\ntrust: {plainHeaders: 1}\n", []string{"7: trust.plainHeaders: 1: must be true or false"}},
		{"two headers for one flat key", berthHead + "trust:\n  headers:\n    x-b: logicalModel\n    x-a: logicalModel\n", []string{
			"9: trust.headers.x-a: logicalModel: must be a key of its own: trust.headers.x-b in line 8 has it"}},
		{"a number as a header's key", berthHead + "trust: {headers: {x-a: 5}}\n", []string{"6: trust.headers.x-a: 5: must be a string: put it in quotes"}},
		{"plainHeaders", berthHead + "trust: {plainHeaders: 1}\n", []string{"6: trust.plainHeaders: 1: must be true or false"}},

		// Aliases.
		{"aliases that are a list", berthHead + "models: {aliases: [a]}\n", []string{"6: models.aliases: [...]: must be a mapping of lists of strings"}},
		{"an alias that is a text", berthHead + "models: {aliases: {fast: llama}}\n", []string{"6: models.aliases.fast: llama: must be a list"}},
		{"an alias of nothing", berthHead + "models: {aliases: {fast: []}}\n", []string{"6: models.aliases.fast: [...]: must be a list of 1 to 64 served models"}},
		{"an alias of too much", berthHead + "models: {aliases: {fast: [" + numbered(65, "m%d, ") + "]}}\n", []string{"6: models.aliases.fast: [...]: must be a list of 1 to 64 served models"}},
		{"an alias without a name", berthHead + "models: {aliases: {\"\": [a]}}\n", []string{"6: models.aliases[]: [...]: must stand for a name of 1 to 512 printable characters"}},
		{"an alias with a line break", berthHead + "models: {aliases: {\"a\\nb\": [a]}}\n", []string{`6: "models.aliases[a\nb]": [...]: must stand for a name of 1 to 512 printable`}},
		{"a long alias", berthHead + "models: {aliases: {" + strings.Repeat("a", 513) + ": [a]}}\n", []string{"6: models.aliases." + strings.Repeat("a", 241) + "...: [...]: must stand for a name"}},
		{"served models of an alias", berthHead + "models: {aliases: {fast: [a, \"\", a, 5, \"b\\tc\"]}}\n", []string{
			"6: models.aliases.fast[3]: 5: must be a string: put it in quotes", `6: models.aliases.fast[1]: "": must be 1 to 512 printable characters`,
			"6: models.aliases.fast[2]: a: must occur once", `6: models.aliases.fast[4]: "b\tc": must be 1 to 512 printable characters`}},
		{"too many aliases", berthHead + "models:\n  aliases:\n" + numbered(1025, "    a%d: [m]\n"), []string{"7: models.aliases: {...}: must have at most 1024 entries"}},
		{"an alias twice", berthHead + "models:\n  aliases:\n    a: [b]\n    a: [c]\n", []string{"9: models.aliases.a: [...]: must occur once: it is in line 8 already"}},
		{"an unknown key of models", berthHead + "models: {default: a}\n", []string{"6: models.default: a: is an unknown key; known here: aliases"}},

		// Screening.
		{"contextUnknown", berthHead + "screening: {contextUnknown: refuse}\n", []string{"6: screening.contextUnknown: refuse: must be one of fail, pass"}},
		{"failures", berthHead + "screening: {quarantine: {failures: 0}}\n", []string{"6: screening.quarantine.failures: 0: must be 1 to 1000"}},
		{"too many failures", berthHead + "screening: {quarantine: {failures: 1001}}\n", []string{"6: screening.quarantine.failures: 1001: must be 1 to 1000"}},
		{"probeAfter", berthHead + "screening: {quarantine: {probeAfter: 99ms}}\n", []string{"6: screening.quarantine.probeAfter: 99ms: must be 100ms to 1h"}},
		{"a late probe", berthHead + "screening: {quarantine: {probeAfter: 61m}}\n", []string{"6: screening.quarantine.probeAfter: 61m: must be 100ms to 1h"}},
		{"maxShare", berthHead + "screening: {quarantine: {maxShare: 1.01}}\n", []string{"6: screening.quarantine.maxShare: 1.01: must be a number from 0 to 1"}},
		{"a negative maxShare", berthHead + "screening: {quarantine: {maxShare: -0.1}}\n", []string{"6: screening.quarantine.maxShare: -0.1: must be a number from 0 to 1"}},
		{"a maxShare that is no number", berthHead + "screening: {quarantine: {maxShare: .nan}}\n", []string{"6: screening.quarantine.maxShare: .nan: must be a number from 0 to 1"}},
		{"a key of quarantine", berthHead + "screening: {quarantine: {after: 3}}\n", []string{"6: screening.quarantine.after: 3: is an unknown key; known here: failures, maxShare, probeAfter"}},

		// What does not exist yet, by name.
		{"an InferencePool", berthHead + "discovery: {inferencePool: {namespace: a, name: b}}\n", []string{"6: discovery.inferencePool: {...}: is not supported by this version"}},
		{"shortlist", berthHead + "placement: {shortlist: 32}\n", []string{"6: placement.shortlist: 32: is not supported by this version"}},
		{"replicas", berthHead + "placement: {replicas: 2}\n", []string{"6: placement.replicas: 2: must be 1: other values are not supported by this version"}},
		{"ledger.dir", berthHead + "ledger: {dir: /var/lib/berth}\n", []string{"6: ledger.dir: /var/lib/berth: is not supported by this version"}},

		// Several at once.
		{"errors of several documents", head + "plugins: [{type: nope}]\n---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\ngateway: {fallbacks: 9, x: 1}\n---\n" + poolHead + "- {name: a, address: localhost, port: 0}\n",
			[]string{"3: plugins[0].type: nope: is an unknown type", "7: gateway.x: 1: is an unknown key", "7: gateway.fallbacks: 9: must be 0 to 4",
				"13: endpoints[0].address: localhost: must be an IPv4 or IPv6 address", "13: endpoints[0].port: 0: must be 1 to 65535"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, warnings, err := Parse("berth.yaml", []byte(c.text), "", catalog{})
			if p != nil || warnings != nil {
				t.Errorf("a refused file gives %v and %v; want nothing", p, warnings)
			}
			wantRefusals(t, err, c.want)
		})
	}
}

// numbered repeats a text with its number in it.
func numbered(n int, format string) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(strings.ReplaceAll(format, "%d", strconv.Itoa(i)))
	}
	return text.String()
}

func wantRefusals(t *testing.T, err error, want []string) {
	t.Helper()
	typed, others := refusals(err)
	var got []string
	for _, e := range typed {
		got = append(got, fmt.Sprintf("%d: %s: %s: %s", e.Line, e.Field, e.Value, e.Allowed))
	}
	ok := len(got) == len(want) && len(others) == 0
	for i := 0; ok && i < len(want); i++ {
		ok = strings.HasPrefix(got[i], want[i]) && predicate.MatchString(typed[i].Allowed)
	}
	if !ok {
		t.Errorf("got\n  %s\nand %q; want\n  %s", strings.Join(got, "\n  "), others, strings.Join(want, "\n  "))
	}
}

// predicate is how Error.Allowed begins.
var predicate = regexp.MustCompile(`^(must|is|cannot) [a-zA-Z0-9]`)

func TestAnErrorReadsAsPlaceFieldValueAndWhatIsAllowed(t *testing.T) {
	_, _, err := Parse("conf/berth.yaml", []byte(berthHead+"gateway:\n  fallbacks: 9\n"), "", catalog{})
	if err == nil || err.Error() != "conf/berth.yaml:7: gateway.fallbacks: 9: must be 0 to 4" {
		t.Errorf("got %v", err)
	}
	var typed *Error
	if !errors.As(err, &typed) || typed.Line != 7 || typed.Field != "gateway.fallbacks" || typed.Value != "9" || typed.Allowed != "must be 0 to 4" {
		t.Errorf("typed %+v", typed)
	}
}

func TestAtMostTwentyErrorsAreShownAndTheRestCounted(t *testing.T) {
	text := berthHead
	for i := range 30 {
		text += fmt.Sprintf("x%d: 1\n", i)
	}
	_, _, err := Parse("berth.yaml", []byte(text), "", catalog{})
	typed, others := refusals(err)
	if len(typed) != 20 || len(others) != 1 || others[0] != "berth.yaml: 10 more errors are not shown" {
		t.Errorf("%d errors and %q; want 20 and one line that counts 10 more", len(typed), others)
	}
}

func TestALongOrForgedValueIsShortenedAndQuoted(t *testing.T) {
	_, _, err := Parse("berth.yaml", []byte(berthHead+"\"a\\nlevel=error\": 1\ngateway: {onViolation: "+strings.Repeat("é", 500)+"}\n"), "", catalog{})
	text := fmt.Sprint(err)
	if strings.Count(text, "\n") != 1 || len(text) > 600 || !strings.Contains(text, `\nlevel=error`) {
		t.Errorf("got %d bytes: %s", len(text), text)
	}
}
