package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// whole is a profile in which nearly every key has a place. Errors tell lines,
// so the table below knows them.
const whole = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: whole
aliases: [all]
role: engine
detect: {prefixes: ["w:"], families: [w_total], ownedBy: [whole]}
never: [/drain]
pages:
- {path: /metrics, format: prometheus, accept: text/plain, scheme: http, port: 9000, ttl: 3s, needs: "a flag: -m"}
- {path: /models, format: openai-models, fields: [servedModels, contextLimit], every: 1m}
- {path: /health, format: status, field: health, no: [503], every: 10s}
- path: /info
  format: json
  every: 1m
  fields:
    engineVersion: {member: version}
    maxConcurrency: {member: "ranks[].max", combine: sum, quality: 0.5, because: a guess}
auth: {bearerTokenFile: /etc/token}
tls: {caFile: /etc/ca.pem, serverName: engine}
labels: {model: model, placeholders: [none], ranks: [rank], lowest: [tp], drop: [pid], refuse: [worker]}
valid: {metric: "w:ready", where: {kind: page}, because: not ready}
engineTime: {metric: "w:time", where: {kind: page}, maxAge: 30s, whileBusy: true}
stillAfter: 20s
fields:
  queueDepth:
    unit: requests
    ttl: 4s
    absent: unsupported
    sources:
    - {metric: "w:waiting", where: {kind: a}, combine: sum, plus: [{metric: "w:held", combine: sum}]}
    - {metric: "w:queue", combine: sum, quality: 0.5, because: an old name}
    off:
    - {metric: "w:info", label: stats, is: "False", because: no statistics}
    - {metric: "w:done", above: 0, because: no statistics}
  kvCacheUtilization:
    unit: util
    sources:
    - {metric: "w:kv", combine: mean, weight: {metric: "w:blocks"}}
  kvCacheCapacity:
    unit: tokens
    sources:
    - {metric: "w:blocks", combine: sum, times: {metric: "w:block"}, scale: 2}
  prefixCacheEnabled:
    sources:
    - {metric: "w:info", label: caching, invert: true}
  prefixCacheHitRatio:
    unit: util
    sources:
    - {metric: "w:hits", window: 30s, over: [{metric: "w:asked", combine: sum}]}
  ttft:
    unit: seconds
    sources:
    - {metric: "w:ttft", window: 30s}
  e2e:
    unit: seconds
    sources:
    - {metric: "w:busy", window: 30s, count: {metric: "w:done"}}
  adaptersWaiting:
    sources:
    - {metric: "w:lora", label: waiting, combine: newest, differs: running}
unsupported:
  power: not measured
`

const sourceKeys = "metric, label, where, combine, weight, plus, times, over, scale, window, count, differs, invert, quality, because"

func TestAProfileWithAFaultNamesLineKeyValueAndWhatIsAllowed(t *testing.T) {
	if _, err := Parse("w.yaml", []byte(whole)); err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	cases := []struct{ name, old, now, want string }{
		// The document.
		{"not YAML", "kind:", "kind", "w.yaml:2: not YAML: could not find expected ':'"},
		{"a second document", "role: engine", "---\nrole: engine", "w.yaml:5: more than one document, want one profile for each file"},
		{"another version", "v1alpha1", "v1", `w.yaml:1: apiVersion: "berth.dev/v1", want one of berth.dev/v1alpha1`},
		{"no version", "apiVersion: berth.dev/v1alpha1\n", "", "w.yaml:1: apiVersion is missing"},
		{"another kind", "EngineProfile", "Engine", `w.yaml:2: kind: "Engine", want one of EngineProfile`},
		{"no kind", "kind: EngineProfile\n", "", "w.yaml:1: kind is missing"},
		{"no name", "name: whole\n", "", "w.yaml:1: name is missing"},
		{"an empty name", "name: whole", "name:", `w.yaml:3: name: "", want a text that is not empty`},
		{"a name that no metric label takes", "name: whole", "name: W hole", `w.yaml:3: name: "W hole", want at most 63 of a-z, 0-9, - and ., and not unknown`},
		{"the name of engines without a profile", "name: whole", "name: unknown", `w.yaml:3: name: "unknown", want at most 63 of a-z, 0-9, - and ., and not unknown`},
		{"an alias that is no name", "aliases: [all]", "aliases: [all, a/b]", `w.yaml:4: aliases[1]: "a/b", want at most 63 of a-z, 0-9, - and ., and not unknown`},
		{"aliases as a text", "aliases: [all]", "aliases: all", `w.yaml:4: aliases: "all", want a list`},
		{"an unknown role", "role: engine", "role: sidecar", `w.yaml:5: role: "sidecar", want one of engine, exporter`},
		{"an unknown key", "role:", "roles:", "w.yaml:5: roles: unknown key, allowed are apiVersion, kind, name, aliases, role, detect, never, pages, auth, tls, labels, valid, engineTime, stillAfter, fields, unsupported"},
		{"a key twice", "role: engine", "name: other", "w.yaml:5: name: given twice"},
		{"a key that is a list", "role: engine", "[role]: engine", "w.yaml:5: a key must be a name"},
		{"an alias of YAML", "{bearerTokenFile: /etc/token}\ntls: {caFile: /etc/ca.pem, serverName: engine}", "&a {bearerTokenFile: /etc/token}\ntls: *a", "w.yaml:19: tls: an alias, want a mapping"},
		{"an alias without its anchor", "detect: {prefixes", "auth: *a\ndetect: &a {prefixes", "w.yaml:6: not YAML: unknown anchor 'a' referenced"},
		{"too short a standstill", "stillAfter: 20s", "stillAfter: 20ms", `w.yaml:23: stillAfter: "20ms", want a duration from 1s to 1h0m0s`},
		{"a standstill without a unit", "stillAfter: 20s", "stillAfter: 20", `w.yaml:23: stillAfter: "20", want a duration from 1s to 1h0m0s`},

		// How the page is recognised.
		{"nothing to recognise", `{prefixes: ["w:"], families: [w_total], ownedBy: [whole]}`, "{ownedBy: [whole]}", "w.yaml:6: detect: neither detect.prefixes nor detect.families, want at least one by which the page is recognised"},
		{"detect as a list", `{prefixes: ["w:"], families: [w_total], ownedBy: [whole]}`, `["w:"]`, "w.yaml:6: detect: a list, want a mapping"},
		{"an unknown key of detect", "ownedBy:", "owned_by:", "w.yaml:6: detect.owned_by: unknown key, allowed are prefixes, families, ownedBy"},
		{"an empty prefix", `["w:"]`, `[""]`, `w.yaml:6: detect.prefixes[0]: "", want a text that is not empty`},
		{"a prefix that is a list", `["w:"]`, `[["w:"]]`, `w.yaml:6: detect.prefixes[0]: a list, want a text that is not empty`},
		{"more families than can be looked for", "[w_total]", "[" + numbered("a%d, ", 63) + "b]", "w.yaml:6: detect.families: 64 families, want at most 63"},

		// Pages.
		{"no page", whole[strings.Index(whole, "- {path: /metrics"):strings.Index(whole, "auth:")], "  []\n", "w.yaml:8: pages: no page, want the metrics page at least"},
		{"pages as a mapping", whole[strings.Index(whole, "- {path: /metrics"):strings.Index(whole, "auth:")], "  {path: /metrics}\n", "w.yaml:8: pages: a mapping, want a list"},
		{"an unknown key of a page", "accept:", "accepts:", "w.yaml:9: pages[0].accepts: unknown key, allowed are path, format, accept, scheme, port, every, ttl, needs, fields, field, no"},
		{"no path", "path: /metrics, ", "", "w.yaml:9: pages[0]: path is missing"},
		{"a relative path", "path: /metrics", "path: metrics", `w.yaml:9: pages[0].path: "metrics", want a path on the replica that begins with one slash`},
		{"a path that must never be asked", "path: /models", "path: /drain", `w.yaml:10: pages[1].path: "/drain", which never says must not be asked`},
		{"no format", "format: prometheus, ", "", "w.yaml:9: pages[0]: format is missing"},
		{"an unknown format", "openai-models", "models", `w.yaml:10: pages[1].format: "models", want one of prometheus, openai-models, status, json`},
		{"a metrics page that is not the first", `{path: /metrics, format: prometheus, accept: text/plain, scheme: http, port: 9000, ttl: 3s, needs: "a flag: -m"}`, "{path: /h, format: status, field: ready, every: 1m}", `w.yaml:9: pages[0].format: "status", want prometheus: the first page is the metrics page`},
		{"two metrics pages", "{path: /models, format: openai-models, fields: [servedModels, contextLimit], every: 1m}", "{path: /m, format: prometheus, every: 1m}", `w.yaml:10: pages[1].format: "prometheus", want it on the first page alone`},
		{"an unknown scheme", "scheme: http", "scheme: ftp", `w.yaml:9: pages[0].scheme: "ftp", want one of http, https`},
		{"a port that is none", "port: 9000", "port: 90000", `w.yaml:9: pages[0].port: "90000", want a number from 1 to 65535`},
		{"half a port", "port: 9000", "port: 9000.5", `w.yaml:9: pages[0].port: "9000.5", want a whole number from 1 to 65535`},
		{"a cadence of the metrics page", "port: 9000", "every: 1m", "w.yaml:9: pages[0].every: the metrics page is asked for at every scrape, want none"},
		{"no cadence", "contextLimit], every: 1m", "contextLimit]", "w.yaml:10: pages[1]: every is missing"},
		{"too fast a cadence", "every: 10s", "every: 10ms", `w.yaml:11: pages[2].every: "10ms", want a duration from 1s to 1h0m0s`},
		{"too short a life", "ttl: 3s", "ttl: 3ms", `w.yaml:9: pages[0].ttl: "3ms", want a duration from 100ms to 1h0m0s`},
		{"fields of the metrics page", "port: 9000", "fields: {}", "w.yaml:9: pages[0].fields: not for format prometheus"},
		{"a field that the model list has not", "[servedModels, contextLimit]", "[queueDepth]", `w.yaml:10: pages[1].fields[0]: "queueDepth", want one of servedModels, adaptersLoaded, contextLimit`},
		{"the field of a status page on a model list", "fields: [servedModels, contextLimit]", "field: health", "w.yaml:10: pages[1].field: not for format openai-models"},
		{"a status page without a field", "field: health, ", "", "w.yaml:11: pages[2]: field is missing"},
		{"a status page of another field", "field: health", "field: sleeping", `w.yaml:11: pages[2].field: "sleeping", want one of health, ready`},
		{"a status that says yes", "no: [503]", "no: [200]", `w.yaml:11: pages[2].no[0]: "200", want a number from 400 to 599`},
		{"a status that says that there is no page", "no: [503]", "no: [404]", "w.yaml:11: pages[2].no[0]: 404 says that there is no such page"},
		{"a field from two pages", "contextLimit], every: 1m}\n", "contextLimit], every: 1m}\n- {path: /h, format: status, field: health, every: 1m}\n", "w.yaml:12: pages[3]: field health is already read from /h"},

		// Members of a JSON page.
		{"a JSON page without fields", "  fields:\n    engineVersion: {member: version}\n    maxConcurrency: {member: \"ranks[].max\", combine: sum, quality: 0.5, because: a guess}\n", "", "w.yaml:12: pages[3]: fields is missing"},
		{"a member for no field", "engineVersion: {", "version: {", "w.yaml:16: pages[3].fields.version: not a field of the catalogue, which are " + catalogueOf},
		{"no member", "{member: version}", "{invert: false}", "w.yaml:16: pages[3].fields.engineVersion: member is missing"},
		{"an unknown key of a member", "{member: version}", "{path: version}", "w.yaml:16: pages[3].fields.engineVersion.path: unknown key, allowed are member, combine, invert, quality, because"},
		{"a member without a name between dots", "member: version", "member: a..b", `w.yaml:16: pages[3].fields.engineVersion.member: "a..b", want names joined by dots, with [] after that of a list`},
		{"a list without a name", "ranks[].max", "[].max", `w.yaml:17: pages[3].fields.maxConcurrency.member: "[].max", want names joined by dots, with [] after that of a list`},
		{"a distribution from JSON", "engineVersion: {", "itl: {", "w.yaml:16: pages[3].fields.itl: a distribution cannot be read from JSON"},
		{"an inverted text", "{member: version}", "{member: version, invert: true}", "w.yaml:16: pages[3].fields.engineVersion.invert: engineVersion is not a yes-or-no field"},
		{"a sum of texts", "{member: version}", "{member: version, combine: sum}", "w.yaml:16: pages[3].fields.engineVersion.combine: engineVersion is not a number"},
		{"a mean of members", `max", combine: sum`, `max", combine: mean`, `w.yaml:17: pages[3].fields.maxConcurrency.combine: "mean", want one of one, sum, max`},
		{"a doubted member without a reason", "quality: 0.5, because: a guess}", "quality: 0.5}", `w.yaml:17: pages[3].fields.maxConcurrency: quality 0.5 and because "", want both or neither`},

		// Access.
		{"an unknown key of auth", "bearerTokenFile", "token", "w.yaml:18: auth.token: unknown key, allowed are bearerTokenFile"},
		{"an unknown key of tls", "serverName:", "insecureSkipVerify:", "w.yaml:19: tls.insecureSkipVerify: unknown key, allowed are caFile, serverName"},

		// Labels.
		{"an unknown key of labels", "ranks:", "rank:", "w.yaml:20: labels.rank: unknown key, allowed are model, placeholders, ranks, lowest, drop, refuse, namespace, pod"},
		{"a label in two roles", "drop: [pid]", "drop: [pid, rank]", `w.yaml:20: labels.drop[1]: "rank" is in ranks already`},
		{"a label twice in one role", "refuse: [worker]", "refuse: [worker, worker]", `w.yaml:20: labels.refuse[1]: "worker" given twice`},
		{"more labels than are compared", "lowest: [tp]", "lowest: [a, b, c, d, e]", "w.yaml:20: labels.lowest: 5 labels, want at most 4"},
		{"the pod of an engine's series", "refuse: [worker]", "namespace: ns, pod: pod", "w.yaml:20: labels: namespace and pod are for role exporter alone"},
		{"an exporter that does not tell pods apart", "role: engine", "role: exporter", "w.yaml:10: pages[1]: an exporter has the metrics page alone\nw.yaml:11: pages[2]: an exporter has the metrics page alone\nw.yaml:12: pages[3]: an exporter has the metrics page alone\n" +
			"w.yaml:20: labels: labels.namespace and labels.pod are missing: an exporter's page must say whose each series is"},

		// Validity and time.
		{"validity without a metric", `{metric: "w:ready", where: {kind: page}, because: not ready}`, "{because: not ready}", "w.yaml:21: valid: metric is missing"},
		{"validity without a reason", ", because: not ready", "", "w.yaml:21: valid: because is missing"},
		{"an unknown key of valid", "because: not ready", "is: 1", "w.yaml:21: valid.is: unknown key, allowed are metric, where, because"},
		{"a time without an age", "maxAge: 30s, ", "", "w.yaml:22: engineTime: maxAge is missing"},
		{"too short an age", "maxAge: 30s", "maxAge: 30ms", `w.yaml:22: engineTime.maxAge: "30ms", want a duration from 1s to 1h0m0s`},
		{"a yes that is a number", "whileBusy: true", "whileBusy: 1", `w.yaml:22: engineTime.whileBusy: "1", want true or false`},

		// Fields.
		{"no fields", "\nfields:" + fieldsOf(whole), "\n", "w.yaml:1: fields is missing"},
		{"an unknown field", "  queueDepth:", "  queueLength:", "w.yaml:25: fields.queueLength: not a field of the catalogue, which are " + catalogueOf},
		{"a field of another page", "  queueDepth:", "  health:", "w.yaml:25: fields.health: already read from /health"},
		{"an unknown key of a field", "    ttl: 4s", "    every: 4s", "w.yaml:27: fields.queueDepth.every: unknown key, allowed are unit, ttl, absent, sources, contradicted, off"},
		{"another unit", "unit: requests", "unit: tokens", `w.yaml:26: fields.queueDepth: unit "tokens", want "requests"`},
		{"a unit of what has none", "  prefixCacheEnabled:", "  prefixCacheEnabled:\n    unit: bool", `w.yaml:44: fields.prefixCacheEnabled.unit: "bool", want none`},
		{"too long a life", "ttl: 4s", "ttl: 4h", `w.yaml:27: fields.queueDepth.ttl: "4h", want a duration from 100ms to 1h0m0s`},
		{"an unknown meaning of absence", "absent: unsupported", "absent: zero", `w.yaml:28: fields.queueDepth.absent: "zero", want one of unknown, unsupported`},
		{"no sources", "sources:\n    - {metric: \"w:ttft\", window: 30s}", "sources: []", "w.yaml:50: fields.ttft: sources is empty, want at least one"},
		{"sources left out", "    sources:\n    - {metric: \"w:ttft\", window: 30s}\n", "", "w.yaml:50: fields.ttft: sources is missing"},
		{"a field both read and unsupported", "power: not measured", "queueDepth: not measured", "w.yaml:62: unsupported.queueDepth: also in fields"},
		{"a field both of a page and unsupported", "power: not measured", "health: not measured", "w.yaml:62: unsupported.health: also read from a page"},
		{"an unknown field that is unsupported", "power: not measured", "watts: not measured", "w.yaml:62: unsupported.watts: not a field of the catalogue, which are " + catalogueOf},
		{"unsupported without a reason", "power: not measured", "power:", `w.yaml:62: unsupported.power: "", want a text that is not empty`},

		// Sources.
		{"an unknown selector", `"w:waiting", where`, `"w:waiting", select`, "w.yaml:30: fields.queueDepth.sources[0].select: unknown key, allowed are " + sourceKeys},
		{"a selector that is a list", "where: {kind: a}", "where: [kind]", "w.yaml:30: fields.queueDepth.sources[0].where: a list, want a mapping"},
		{"a selector by a label that does not count", "where: {kind: a}", "where: {pid: 7}", "w.yaml:30: fields.queueDepth.sources[0].where.pid: a label that does not count cannot choose series"},
		{"a selector by a label that is refused", "where: {kind: a}", "where: {worker: x}", "w.yaml:30: fields.queueDepth.sources[0].where.worker: a label that does not count cannot choose series"},
		{"no metric", `metric: "w:queue", `, "", "w.yaml:31: fields.queueDepth.sources[1]: metric is missing"},
		{"an unknown combination", `"w:queue", combine: sum`, `"w:queue", combine: summ`, `w.yaml:31: fields.queueDepth.sources[1].combine: "summ", want one of sum, mean, max, newest, one`},
		{"the newest number", `"w:queue", combine: sum`, `"w:queue", combine: newest`, "w.yaml:31: fields.queueDepth.sources[1].combine: newest, want a label to read from the series with the latest time"},
		{"one series twice", `metric: "w:queue", combine: sum`, `metric: "w:waiting", combine: max, where: {kind: a}`, "w.yaml:31: fields.queueDepth.sources[1]: chooses the same series as sources[0], which comes first"},
		{"quality above one", "quality: 0.5, because: an old name", "quality: 2", `w.yaml:31: fields.queueDepth.sources[1].quality: "2", want a number from 0.01 to 1`},
		{"doubt without a reason", ", because: an old name", "", `w.yaml:31: fields.queueDepth.sources[1]: quality 0.5 and because "", want both or neither`},
		{"a reason without doubt", "quality: 0.5, because: an old name", "because: an old name", `w.yaml:31: fields.queueDepth.sources[1]: quality 1 and because "an old name", want both or neither`},
		{"weight of a sum", "combine: sum, times", "combine: sum, weight: {metric: \"w:x\"}, times", "w.yaml:42: fields.kvCacheCapacity.sources[0].weight: combine is not mean"},
		{"an unknown key of a part", `weight: {metric: "w:blocks"}`, `weight: {metric: "w:blocks", scale: 2}`, "w.yaml:38: fields.kvCacheUtilization.sources[0].weight.scale: unknown key, allowed are metric, label, where, combine"},
		{"a scale of zero", "scale: 2", "scale: 0", `w.yaml:42: fields.kvCacheCapacity.sources[0].scale: "0", want a number from 1e-12 to 1e+12`},
		{"a scale of a yes or no", "invert: true", "scale: 2", "w.yaml:45: fields.prefixCacheEnabled.sources[0].scale: prefixCacheEnabled is not a number"},
		{"a factor of a yes or no", "invert: true", `times: {metric: "w:x"}`, "w.yaml:45: fields.prefixCacheEnabled.sources[0].times: only for a number that does not count"},
		{"a summand of a yes or no", "invert: true", `plus: [{metric: "w:x"}]`, "w.yaml:45: fields.prefixCacheEnabled.sources[0].plus: only for a number that does not count"},
		{"a divisor of a yes or no", "invert: true", `over: [{metric: "w:x"}]`, "w.yaml:45: fields.prefixCacheEnabled.sources[0].over: prefixCacheEnabled is not a number"},
		{"a window of a yes or no", "invert: true", "window: 30s", "w.yaml:45: fields.prefixCacheEnabled.sources[0].window: prefixCacheEnabled is not a number"},
		{"an inverted number", "scale: 2", "invert: true", "w.yaml:42: fields.kvCacheCapacity.sources[0].invert: kvCacheCapacity is not a yes-or-no field"},
		{"a count of a number", "scale: 2", `count: {metric: "w:x"}`, "w.yaml:42: fields.kvCacheCapacity.sources[0].count: kvCacheCapacity is not a distribution"},
		{"names of a number", "scale: 2", "differs: x", "w.yaml:42: fields.kvCacheCapacity.sources[0].differs: kvCacheCapacity is not a list of names from a label"},
		{"a summand of what counts", `over: [{metric: "w:asked", combine: sum}]`, `over: [{metric: "w:asked", combine: sum}], plus: [{metric: "w:asked"}]`, "w.yaml:49: fields.prefixCacheHitRatio.sources[0].plus: only for a number that does not count"},
		{"a factor of what counts", `over: [{metric: "w:asked", combine: sum}]`, `over: [{metric: "w:asked", combine: sum}], times: {metric: "w:asked"}`, "w.yaml:49: fields.prefixCacheHitRatio.sources[0].times: only for a number that does not count"},
		{"the maximum of what counts", `"w:ttft", window: 30s`, `"w:ttft", window: 30s, combine: max`, "w.yaml:53: fields.ttft.sources[0].combine: what counts is summed, want sum or none"},
		{"a label of what counts", `"w:ttft", window: 30s`, `"w:ttft", window: 30s, label: x`, "w.yaml:53: fields.ttft.sources[0].label: a text does not count"},
		{"too short a window", `"w:ttft", window: 30s`, `"w:ttft", window: 30ms`, `w.yaml:53: fields.ttft.sources[0].window: "30ms", want a duration from 1s to 1h0m0s`},
		{"a distribution of a moment", `"w:ttft", window: 30s`, `"w:ttft"`, "w.yaml:53: fields.ttft.sources[0]: window is missing: a distribution is read as growth"},
		{"names without a label", "label: waiting, combine: newest, differs: running", "combine: one", "w.yaml:60: fields.adaptersWaiting.sources[0]: label is missing: adaptersWaiting is a text"},

		// Texts that could never work, or would work on every page.
		{"a path of another host", "path: /metrics", "path: //evil.example/metrics", `w.yaml:9: pages[0].path: "//evil.example/metrics", want a path on the replica that begins with one slash`},
		{"a path with a fragment", "path: /metrics", "path: /metrics#top", `w.yaml:9: pages[0].path: "/metrics#top", want a path on the replica that begins with one slash`},
		{"a path with half an escape", "path: /metrics", "path: /met%zz", `w.yaml:9: pages[0].path: "/met%zz", want a path on the replica that begins with one slash`},
		{"a metric with labels", `metric: "w:queue"`, `metric: "w:queue{a}"`, `w.yaml:31: fields.queueDepth.sources[1].metric: "w:queue{a}", want the name of a metric`},

		// Conditions.
		{"a contradiction without a part", "    off:\n", "    contradicted: [{more: [{metric: \"w:held\"}], because: x}]\n    off:\n", "w.yaml:32: fields.queueDepth.contradicted[0]: than is missing"},
		{"a contradiction with an empty part", "    off:\n", "    contradicted: [{more: [], than: [{metric: \"w:held\"}], because: x}]\n    off:\n", "w.yaml:32: fields.queueDepth.contradicted[0].more: is empty, want at least one series"},
		{"a contradiction without a reason", "    off:\n", "    contradicted: [{more: [{metric: \"w:a\"}], than: [{metric: \"w:b\"}]}]\n    off:\n", "w.yaml:32: fields.queueDepth.contradicted[0]: because is missing"},
		{"a contradiction with too wide a margin", "    off:\n", "    contradicted: [{more: [{metric: \"w:a\"}], than: [{metric: \"w:b\"}], by: 5, because: x}]\n    off:\n", `w.yaml:32: fields.queueDepth.contradicted[0].by: "5", want a number from 0 to 1`},
		{"an unknown key of a contradiction", "    off:\n", "    contradicted: [{most: [{metric: \"w:a\"}]}]\n    off:\n", "w.yaml:32: fields.queueDepth.contradicted[0].most: unknown key, allowed are more, than, by, because"},
		{"an unknown key of a condition", "is: \"False\"", "equals: \"False\"", "w.yaml:33: fields.queueDepth.off[0].equals: unknown key, allowed are metric, label, where, is, above, because"},
		{"a condition without a measure", ", is: \"False\"", "", "w.yaml:33: fields.queueDepth.off[0]: want is or above, and not both"},
		{"a condition with two measures", "above: 0", "above: 0, is: \"1\"", "w.yaml:34: fields.queueDepth.off[1]: want is or above, and not both"},
		{"a label above a number", "is: \"False\"", "above: 0", "w.yaml:33: fields.queueDepth.off[0]: label, want is with it"},
		{"a condition without a reason", "above: 0, because: no statistics", "above: 0", "w.yaml:34: fields.queueDepth.off[1]: because is missing"},
		{"a negative measure", "above: 0", "above: -1", `w.yaml:34: fields.queueDepth.off[1].above: "-1", want a number from 0 to 1e+15`},

		// What is given twice, is no label's name, or is for the metrics page alone.
		{"a prefix twice", `["w:"]`, `["w:", "w:"]`, `w.yaml:6: detect.prefixes[1]: "w:" given twice`},
		{"a family twice", "[w_total]", "[w_total, w_total]", `w.yaml:6: detect.families[1]: "w_total" given twice`},
		{"a forbidden path twice", "[/drain]", "[/drain, /drain]", `w.yaml:7: never[1]: "/drain" given twice`},
		{"a page twice", "path: /health", "path: /models", `w.yaml:11: pages[2].path: "/models" is that of pages[1] already`},
		{"a label that is none", "ranks: [rank]", `ranks: ["ra nk"]`, `w.yaml:20: labels.ranks[0]: "ra nk", want the name of a label`},
		{"a selector by what is no label", "where: {kind: a}", `where: {"": a}`, `w.yaml:30: fields.queueDepth.sources[0].where."": "", want the name of a label`},
		{"a text from what is no label", "label: caching", "label: cach-ing", `w.yaml:45: fields.prefixCacheEnabled.sources[0].label: "cach-ing", want the name of a label`},
		{"needs of another page", "field: health,", "field: health, needs: a flag,", "w.yaml:11: pages[2].needs: want it on the first page alone"},
		{"needs of no words", `"a flag: -m"`, `" "`, `w.yaml:9: pages[0].needs: " ", want one line of printable characters`},
		{"needs in two lines", `"a flag: -m"`, `"a\nb"`, `w.yaml:9: pages[0].needs: "a\nb", want one line of printable characters`},
		{"needs that a terminal obeys", `"a flag: -m"`, `"\x1b[2J"`, `w.yaml:9: pages[0].needs: "\x1b[2J", want one line of printable characters`},
		{"needs as a list", `"a flag: -m"`, "[a]", "w.yaml:9: pages[0].needs: a list, want a text that is not empty"},
		{"needs without an end", `"a flag: -m"`, strings.Repeat("x", 1025), `w.yaml:9: pages[0].needs: "` + strings.Repeat("x", 64) + `"..., a text of 1025 bytes, want at most 1024`},
		{"a reason in two lines", "power: not measured", "power: |\n    not\n    measured", `w.yaml:62: unsupported.power: "not\nmeasured\n", want one line of printable characters`},
		{"a source of no worth", "quality: 0.5, because: an old", "quality: 0, because: an old", `w.yaml:31: fields.queueDepth.sources[1].quality: "0", want a number from 0.01 to 1`},
		{"no field at all", "\nfields:" + fieldsOf(whole), "\nfields: {}\n", "w.yaml:24: fields: no field, want at least one"},

		// Numbers that are none, and beyond what may be.
		{"a life that is not a number", "ttl: 4s", "ttl: NaN", `w.yaml:27: fields.queueDepth.ttl: "NaN", want a duration from 100ms to 1h0m0s`},
		{"a negative life", "ttl: 4s", "ttl: -4s", `w.yaml:27: fields.queueDepth.ttl: "-4s", want a duration from 100ms to 1h0m0s`},
		{"a life that is a list", "ttl: 4s", "ttl: [4s]", "w.yaml:27: fields.queueDepth.ttl: a list, want a text that is not empty"},
		{"a quality that is not a number", "quality: 0.5, because: an old", "quality: .nan, because: an old", `w.yaml:31: fields.queueDepth.sources[1].quality: ".nan", want a number from 0.01 to 1`},
		{"a scale without an end", "scale: 2", "scale: inf", `w.yaml:42: fields.kvCacheCapacity.sources[0].scale: "inf", want a number from 1e-12 to 1e+12`},
		{"a yes of another dialect", "invert: true", "invert: yes", `w.yaml:45: fields.prefixCacheEnabled.sources[0].invert: "yes", want true or false`},
		{"a key twice deep inside", "    ttl: 4s", "    ttl: 4s\n    ttl: 5s", "w.yaml:28: fields.queueDepth.ttl: given twice"},
		{"a field twice", "  kvCacheCapacity:", "  queueDepth:", "w.yaml:39: fields.queueDepth: given twice"},
		{"a merge", "auth: {bearerTokenFile: /etc/token}", "auth: {<<: {bearerTokenFile: /etc/token}}", "w.yaml:18: auth.<<: unknown key, allowed are bearerTokenFile"},
		{"a key without an end", "    ttl: 4s", "    " + strings.Repeat("k", 900) + ": 4s", `w.yaml:27: fields.queueDepth: a key "` + strings.Repeat("k", 64) + `"..., want at most 128 printable characters`},
		{"a key that forges a line", "    ttl: 4s", `    "a\nb": 4s`, `w.yaml:27: fields.queueDepth: a key "a\nb", want at most 128 printable characters`},
		{"a value without an end", "combine: sum, quality", "combine: " + strings.Repeat("x", 5000) + ", quality", `w.yaml:17: pages[3].fields.maxConcurrency.combine: "` + strings.Repeat("x", 64) + `"..., a text of 5000 bytes, want at most 1024`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(whole, c.old, c.now, 1)
			if text == whole {
				t.Fatal("the fault was not put in")
			}
			p, err := Parse("w.yaml", []byte(text))
			if err == nil || err.Error() != c.want || p != nil {
				t.Errorf("\n got  %v\n want %s", err, c.want)
			}
		})
	}
}

func TestAnExporterTellsPodsApart(t *testing.T) {
	const text = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: gpus
role: exporter
detect: {prefixes: [gpu_]}
pages: [{path: /metrics, format: prometheus}]
labels: {namespace: namespace, pod: pod}
fields:
  power: {unit: W, sources: [{metric: gpu_power, combine: sum}]}
`
	if p, err := Parse("gpus.yaml", []byte(text)); err != nil || !p.Exporter() {
		t.Fatalf("got %v", err)
	}
	const want = "gpus.yaml:7: labels: labels.namespace and labels.pod are missing: an exporter's page must say whose each series is"
	for _, without := range []string{"namespace: namespace, ", ", pod: pod"} {
		if _, err := Parse("gpus.yaml", []byte(strings.Replace(text, without, "", 1))); err == nil || err.Error() != want {
			t.Errorf("without %q\n got  %v\n want %s", without, err, want)
		}
	}
}

func TestAProfileOfNothingOrTooMuchIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "e.yaml:1: the document is empty, want a profile",
		"# a comment\n":            "e.yaml:1: the document is empty, want a profile",
		"[]":                       "e.yaml:1: a list, want a mapping",
		"just words":               `e.yaml:1: "just words", want a mapping`,
		"null":                     "e.yaml:1: the document is empty, want a profile",
		"---\n":                    "e.yaml:2: the document is empty, want a profile",
		"---\n---\n":               "e.yaml:2: more than one document, want one profile for each file",
		"<html>\n<body>":           `e.yaml:1: "<html> <body>", want a mapping`,
		strings.Repeat("[", 20000): "e.yaml:1: not YAML: exceeded max depth of 10000",
		strings.Repeat("#", 1<<21): "e.yaml: 2097152 bytes or more, want at most 262144",
	} {
		if _, err := Parse("e.yaml", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%.20q\n got  %v\n want %s", text, err, want)
		}
	}
}

// aliasBomb is a few hundred bytes that would be a billion items.
func aliasBomb() string {
	text := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for name := 'b'; name <= 'j'; name++ {
		before := strings.TrimSuffix(strings.Repeat("*"+string(name-1)+" , ", 9), " , ")
		text += fmt.Sprintf("%c: &%c [%s]\n", name, name, before)
	}
	return text
}

// TestATextThatIsNoYAMLNamesTheLineOfTheFault: where a person has to look, and not
// where the parser stood.
func TestATextThatIsNoYAMLNamesTheLineOfTheFault(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"an open list", "a: [", "1: not YAML: did not find expected node content"},
		{"an open list in a middle line", "a: 1\n\nkind: [\n\nb: 1\n", "3: not YAML: did not find expected ',' or ']'"},
		{"a bracket without a partner", "a: ]\n", "1: not YAML: did not find expected node content"},
		{"a bracket without a partner, further down", "a: 1\nb: ]\n", "2: not YAML: did not find expected node content"},
		{"a bracket of the other kind", "k: 1\na: [1,\n 2,\n 3}\nb: 1\n", "4: not YAML: did not find expected ',' or ']' of what begins in line 2"},
		{"a comma that is missing", "a:\n  {b: 1,\n   c: 2\n   d: 3}\n", "4: not YAML: did not find expected ',' or '}' of what begins in line 2"},
		{"indented too little", "a:\n    b: 1\n   c: 2\nd: 1\n", "3: not YAML: did not find expected key of what begins in line 1"},
		{"a key below a list", "- a\nb: 1\n", "2: not YAML: did not find expected '-' indicator of what begins in line 1"},
		{"a key without a colon", "a: 1\nb\nc: 2\n", "2: not YAML: could not find expected ':'"},
		{"a colon too many", "a: 1\nb: c: d\n", "2: not YAML: mapping values are not allowed in this context (quote a text that has a colon)"},
		{"a colon too many in the first line", "b: c: d\n", "1: not YAML: mapping values are not allowed in this context (quote a text that has a colon)"},
		{"a quote that is not closed", "a: 1\nb: \"c\nd: 1\n", "2: not YAML: found unexpected end of stream"},
		{"an unknown escape", "a: 1\nb: \"\\q\"\n", "2: not YAML: found unknown escape character"},
		{"a tab in front of a key", "a:\n\tb: 1\n", "2: not YAML: found character that cannot start any token (a tab? indent with spaces)"},
		{"a tab in front of the first key", "\ta: 1\n", "1: not YAML: found character that cannot start any token (a tab? indent with spaces)"},
		{"an at sign", "a: 1\nb: @c\n", "2: not YAML: found character that cannot start any token (quote a text that begins with it)"},
		{"an at sign in the first line", "a: @b\n", "1: not YAML: found character that cannot start any token (quote a text that begins with it)"},
		{"an alias without its anchor", "a: 1\nb: *c\n", "2: not YAML: unknown anchor 'c' referenced"},
		{"a control character", "a: 1\nb: 2\nc: \x01\n", "3: not YAML: control characters are not allowed"},
		{"a byte that is not UTF-8", "a: 1\nb: \xff\n", "2: not YAML: invalid leading UTF-8 octet"},
		{"Windows' line ends", "a: 1\r\nb: 2\r\nc: ]\r\n", "3: not YAML: did not find expected node content"},
		{"a byte order mark", "\ufeffa: 1\nb: ]\n", "2: not YAML: did not find expected node content"},
		{"a second document", "a: 1\n---\nb: 1\nc: ]\n", "4: not YAML: did not find expected node content"},
		{"comments in front", "# a\n\n# b\na: ]\n", "4: not YAML: did not find expected node content"},
		{"a list that is whole, in front", "a: [1,\n  2]\nb: [1, 2}\n", "3: not YAML: did not find expected ',' or ']'"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Parse("e.yaml", []byte(c.text)); err == nil || err.Error() != "e.yaml:"+c.want {
				t.Errorf("\n got  %v\n want e.yaml:%s", err, c.want)
			}
		})
	}
}

// TestAnAliasIsNotFollowed: what is a few hundred bytes stays that.
func TestAnAliasIsNotFollowed(t *testing.T) {
	_, err := Parse("e.yaml", []byte(aliasBomb()))
	faults := Faults(err)
	if len(faults) != 10 || !strings.HasPrefix(faults[9].Error(), "e.yaml:10: j: unknown key, allowed are apiVersion, ") {
		t.Errorf("%d faults, the last of %v, want an unknown key in each of 10 lines", len(faults), err)
	}
}

func TestAllFaultsOfAProfileAreReportedInTheOrderOfTheirLines(t *testing.T) {
	text := strings.NewReplacer("power: not", "watts: not", "unit: requests", "unit: tokens", "combine: mean", "combine: meen",
		"kind: EngineProfile", "kind: Engine", "format: status", "formt: status", "[/drain]", "[drain]", "maxAge: 30s, ", "").Replace(whole)
	const want = `w.yaml:2: kind: "Engine", want one of EngineProfile
w.yaml:7: never[0]: "drain", want a path on the replica that begins with one slash
w.yaml:11: pages[2].formt: unknown key, allowed are path, format, accept, scheme, port, every, ttl, needs, fields, field, no
w.yaml:22: engineTime: maxAge is missing
w.yaml:26: fields.queueDepth: unit "tokens", want "requests"
w.yaml:38: fields.kvCacheUtilization.sources[0].combine: "meen", want one of sum, mean, max, newest, one
w.yaml:62: unsupported.watts: not a field of the catalogue, which are ` + catalogueOf
	_, err := Parse("w.yaml", []byte(text))
	if err == nil || err.Error() != want {
		t.Errorf("\n got  %v\n want %s", err, want)
	}
	var first *Fault
	if !errors.As(err, &first) || *first != (Fault{"w.yaml", 2, "kind", `"Engine", want one of EngineProfile`}) {
		t.Errorf("the first is %+v", first)
	}
	if got := len(Faults(err)); got != 7 || len(Faults(nil)) != 0 {
		t.Errorf("%d faults, want 7", got)
	}
}

// TestOneMistakeIsOneFault: what follows from it is not told besides.
func TestOneMistakeIsOneFault(t *testing.T) {
	for old, now := range map[string]string{
		"name: whole":             "nam: whole",
		"{path: /health, format:": "{path: /health, formatt:",
		"format: status":          "format: statis",
		"every: 10s":              "every: soon",
		"[rank]":                  `["ra nk"]`,
		`"w:ttft", window: 30s`:   `"w:ttft", window: 30`,
		"label: waiting":          "label: [waiting]",
		"because: an old name":    `because: ""`,
		"combine: mean":           "combine: average",
		`["w:"]`:                  `[[]]`,
		"queueDepth:":             "queueDepht:",
		"[servedModels, ":         "[servedModel, ",
		"member: version":         "membr: version",
		"whole]}\nnever":          "whole]\nnever",
	} {
		text := strings.Replace(whole, old, now, 1)
		if _, err := Parse("w.yaml", []byte(text)); text == whole || len(Faults(err)) != 1 {
			t.Errorf("%q for %q: want one fault, got\n%v", now, old, err)
		}
	}
}

func TestFaultsBeyondTwentyAreCounted(t *testing.T) {
	list := func(n int) string {
		return strings.Replace(whole, "[/drain]", "["+strings.TrimSuffix(numbered("x%d, ", n), ", ")+"]", 1)
	}
	_, err := Parse("w.yaml", []byte(list(20)))
	if got := Faults(err); len(got) != 20 || got[19].Error() != `w.yaml:7: never[19]: "x19", want a path on the replica that begins with one slash` {
		t.Errorf("%d faults of 20: %v", len(got), err)
	}
	_, err = Parse("w.yaml", []byte(list(50)))
	if got := Faults(err); len(got) != 21 || got[20].Error() != "w.yaml: 30 more faults are not shown" {
		t.Errorf("%d faults of 50: %v", len(got), err)
	}
	// A list of 64 lists of 64 has more faults than are remembered.
	var pages strings.Builder
	for i := range 64 {
		fmt.Fprintf(&pages, "- {path: /%d, format: status, field: ready, every: 1m, no: [%s]}\n", i, strings.TrimSuffix(strings.Repeat("1, ", 64), ", "))
	}
	sixtyFour := strings.TrimSpace(pages.String())
	before, rest, _ := strings.Cut(whole, "- {path: /models")
	_, after, _ := strings.Cut(rest, "auth:")
	_, err = Parse("w.yaml", []byte(before+sixtyFour[:strings.LastIndex(sixtyFour, "\n")+1]+"auth:"+after))
	if got := Faults(err); len(got) != 21 || got[20].Error() != "w.yaml: at least 980 more faults are not shown" {
		t.Errorf("%d faults of 4,000: %v", len(got), err)
	}
}

// TestAnErrorCommandsNoTerminal: whatever a profile holds, and whatever its name, an
// error of it is lines of printable characters.
func TestAnErrorCommandsNoTerminal(t *testing.T) {
	const evil = `"\e[31m\e]0;x\a\u202e\n\r\t\x9b"`
	for _, old := range []string{
		"berth.dev/v1alpha1", "name: whole", "[all]", "role: engine", `["w:"]`, "w_total]", "[whole]", "[/drain]", "path: /models", "openai-models", "text/plain", "scheme: http",
		"port: 9000", "every: 10s", `"a flag: -m"`, "[servedModels, ", "field: health", "[503]", "member: version", "because: a guess", "/etc/token", "/etc/ca.pem", "serverName: engine",
		"model: model", "[none]", "[rank]", "[pid]", "[worker]", `"w:ready"`, "{kind: page}", "kind: page", "because: not ready", "maxAge: 30s", "whileBusy: true", "stillAfter: 20s",
		"queueDepth:", "unit: requests", "absent: unsupported", "combine: sum", "quality: 0.5", "because: an old name", "label: stats", `is: "False"`, "because: no statistics", "above: 0",
		"scale: 2", "invert: true", "window: 30s", "differs: running", "not measured", "power:",
	} {
		now := evil
		switch {
		case strings.HasSuffix(old, ":"):
			now += ":"
		case strings.HasPrefix(old, "["):
			now = strings.Replace("["+evil+"]", "]", strings.TrimLeft(old[len(old)-1:], "]")+"]", 1)
			if strings.HasSuffix(old, ", ") {
				now = "[" + evil + ", "
			}
		case strings.HasSuffix(old, "]"):
			now += "]"
		case strings.HasPrefix(old, "{"):
			now = "{" + evil + ": page}"
		case strings.Contains(old, ": "):
			now = old[:strings.Index(old, ": ")+2] + evil
		}
		text := strings.Replace(whole, old, now, 1)
		p, err := Parse("\x1b[2J.yaml", []byte(text))
		if text == whole || p != nil || err == nil {
			t.Errorf("%q: accepted", now)
			continue
		}
		for _, fault := range Faults(err) {
			if strings.ContainsFunc(fault.Error(), unprintable) || !strings.HasPrefix(fault.Error(), `"\x1b[2J.yaml":`) {
				t.Errorf("%q: %q", now, fault)
			}
		}
	}
}

// TestWhatCanMeanNothingIsRefused: each of these combinations of a field and a way to
// read it yields a number that is not in the field's unit, or none at all.
func TestWhatCanMeanNothingIsRefused(t *testing.T) {
	const (
		util     = ", and a growth per second is not: want over, by whose growth it is divided, or no window"
		number   = " is not a number"
		growth   = " does not grow: want no window"
		shares   = "shares of several ranks do not add up to that of all: "
		anyShare = ", want mean, max or one, or over"
		truths   = ", want max, which is yes where one says so, or one"
		ranks    = " is not more for more ranks: want max or one"
	)
	for _, c := range []struct{ field, unit, source, want string }{
		{"kvCacheUtilization", "util", "window: 30s", "window: kvCacheUtilization is in util" + util},
		{"kvCacheUtilization", "util", "window: 30s, over: []", "window: kvCacheUtilization is in util" + util},
		{"kvCacheUtilization", "util", "window: 30s, over: [{metric: b}]", ""},
		{"kvCacheUtilization", "util", "over: [{metric: b, combine: sum}], combine: sum", ""},
		{"kvCacheUtilization", "util", "combine: mean", ""},
		{"kvCacheUtilization", "util", "combine: sum", "combine: " + shares + "kvCacheUtilization in util" + anyShare},
		{"prefixCacheHitRatio", "util", "window: 30s", "window: prefixCacheHitRatio is in util" + util},
		{"gpuUtilization", "util", "window: 30s", "window: gpuUtilization is in util" + util},
		{"memoryPressure", "util", "window: 30s", "window: memoryPressure is in util" + util},
		{"memoryPressure", "util", "combine: sum, scale: 0.01", "combine: " + shares + "memoryPressure in util" + anyShare},
		{"energyPerToken", "J/token", "window: 30s", "window: energyPerToken is in J/token" + util},
		{"energyPerToken", "J/token", "window: 30s, over: [{metric: b}]", ""},
		{"energyPerToken", "J/token", "combine: sum", "combine: " + shares + "energyPerToken in J/token" + anyShare},
		{"queueDepth", "requests", "window: 30s", "window: queueDepth is in requests" + util},
		{"activeRequests", "requests", "window: 30s", "window: activeRequests is in requests" + util},
		{"activeRequests", "requests", "window: 30s, over: [{metric: b}]", ""},
		{"maxConcurrency", "requests", "window: 30s", "window: maxConcurrency is in requests" + util},
		{"contextLimit", "tokens", "window: 30s", "window: contextLimit" + growth},
		{"contextLimit", "tokens", "window: 30s, over: [{metric: b}]", "window: contextLimit" + growth},
		{"contextLimit", "tokens", "combine: sum", "combine: contextLimit" + ranks},
		{"kvCacheCapacity", "tokens", "window: 30s", "window: kvCacheCapacity" + growth},
		{"kvCacheCapacity", "tokens", "combine: sum", ""},
		{"kvBlockSize", "tokens", "window: 30s", "window: kvBlockSize" + growth},
		{"kvBlockSize", "tokens", "combine: sum", "combine: kvBlockSize" + ranks},
		{"kvBlockSize", "tokens", "combine: mean", "combine: kvBlockSize" + ranks},
		{"kvBlockSize", "tokens", "combine: max", ""},
		{"adaptersMax", "count", "window: 30s", "window: adaptersMax" + growth},
		{"promptThroughput", "tokens/s", "window: 30s", ""},
		{"generationThroughput", "tokens/s", "window: 30s, over: [{metric: b}]", ""},
		{"generationThroughput", "tokens/s", "combine: sum", ""},
		{"preemptionRate", "1/s", "window: 30s", ""},
		{"power", "W", "window: 30s, scale: 0.001", ""},
		{"power", "W", "combine: sum", ""},
		{"processStart", "time", "window: 30s", "window: processStart" + number},
		{"processStart", "time", "combine: sum", "combine: times cannot be added up: processStart, want max or one"},
		{"processStart", "time", "combine: mean", "combine: times cannot be added up: processStart, want max or one"},
		{"processStart", "time", "plus: [{metric: b}]", "plus: only for a number that does not count"},
		{"processStart", "time", "over: [{metric: b}]", "over: processStart is not a number"},
		{"processStart", "time", "combine: max", ""},
		{"sleeping", "", "window: 30s", "window: sleeping" + number},
		{"sleeping", "", "combine: sum", "combine: yes and no cannot be added up: sleeping" + truths},
		{"sleeping", "", "combine: mean", "combine: yes and no cannot be added up: sleeping" + truths},
		{"sleeping", "", "combine: max, invert: true", ""},
		{"servedModels", "", "label: a, window: 30s", "window: servedModels" + number},
		{"servedModels", "", "label: a, combine: mean", "combine: texts have no mean: servedModels, want newest or one"},
		{"adaptersLoaded", "", "label: a, combine: max", "combine: texts have no max: adaptersLoaded, want newest or one"},
		{"adaptersLoaded", "", "label: a, combine: newest", ""},
		{"engineVersion", "", "label: a, window: 30s", "window: engineVersion" + number},
		{"engineVersion", "", "label: a, combine: sum", "combine: texts have no sum: engineVersion, want newest or one"},
		{"engineVersion", "", "label: a", ""},
		{"ttft", "seconds", "window: 30s", ""},
		{"ttft", "seconds", "window: 30s, over: [{metric: b}]", "over: ttft is not a number"},
	} {
		unit := ""
		if c.unit != "" {
			unit = "unit: " + c.unit + ", "
		}
		text := strings.Replace(small, "fields:\n", "fields:\n  "+c.field+": {"+unit+"sources: [{metric: a, "+c.source+"}]}\n", 1)
		text = strings.Replace(text, "format: openai-models", "format: openai-models, fields: []", 1)
		if c.field == "queueDepth" {
			text, _, _ = strings.Cut(text, "\n  queueDepth:\n")
		}
		if c.want != "" {
			c.want = "s.yaml:10: fields." + c.field + ".sources[0]." + c.want
		}
		got := ""
		if _, err := Parse("s.yaml", []byte(text)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: {%s}\n got  %s\n want %s", c.field, c.source, got, c.want)
		}
	}
}

// TestAMemberThatCanMeanNothingIsRefused: what holds for metrics holds for JSON.
func TestAMemberThatCanMeanNothingIsRefused(t *testing.T) {
	for field, want := range map[string]string{
		"contextLimit":       "sum, want max or one: contextLimit does not add up",
		"kvCacheUtilization": "sum, want max or one: kvCacheUtilization does not add up",
		"processStart":       "processStart is not a number",
		"kvCacheCapacity":    "",
	} {
		text := strings.Replace(whole, "maxConcurrency: {member:", field+": {member:", 1)
		if field == "contextLimit" {
			text = strings.Replace(text, ", contextLimit]", "]", 1)
		}
		if field == "kvCacheUtilization" || field == "kvCacheCapacity" {
			text = strings.Replace(text, "  "+field+":\n    unit", "  memoryPressure:\n    unit", 1)
			text = strings.Replace(text, "memoryPressure:\n    unit: tokens", "memoryPressure:\n    unit: util", 1)
			text = strings.Replace(text, `{metric: "w:blocks", combine: sum, times`, `{metric: "w:blocks", combine: max, times`, 1)
		}
		if want != "" {
			want = "w.yaml:17: pages[3].fields." + field + ".combine: " + want
		}
		got := ""
		if _, err := Parse("w.yaml", []byte(text)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s\n got  %s\n want %s", field, got, want)
		}
	}
}

// TestAProfileOfManyFamiliesIsRefusedWithoutComparingThem: each name is looked up, so
// that what is read is in proportion to the text.
func TestAProfileOfManyFamiliesIsRefusedWithoutComparingThem(t *testing.T) {
	text := func(families int) string {
		var b strings.Builder
		b.WriteString(small)
		// Up to 64 sources of 64 divisors each in a field.
		for n, field := 0, 0; n < families; field++ {
			name := []string{"maxConcurrency", "kvCacheUtilization", "memoryPressure"}[field]
			unit := []string{"requests", "util", "util"}[field]
			fmt.Fprintf(&b, "  %s:\n    unit: %s\n    sources:\n", name, unit)
			for s := 0; s < 64 && n < families; s++ {
				fmt.Fprintf(&b, "    - {metric: m, where: {s: '%d'}, over: [", s)
				for o := 0; o < 64 && n < families; o, n = o+1, n+1 {
					fmt.Fprintf(&b, "{metric: small_%d},", n)
				}
				b.WriteString("]}\n")
			}
		}
		return b.String()
	}
	// small:waiting and m are two more.
	if p, err := Parse("s.yaml", []byte(text(510))); err != nil || len(p.families) != 512 {
		t.Fatalf("of as many families as may be: %v", err)
	}
	if _, err := Parse("s.yaml", []byte(text(511))); err == nil || err.Error() != "s.yaml:1: 513 families are read, want at most 512" {
		t.Errorf("of one family more: %v", err)
	}
	if _, err := Parse("s.yaml", []byte(text(8000))); err == nil || err.Error() != "s.yaml:1: 8002 families are read, want at most 512" {
		t.Errorf("of 8,000 families: %v", err)
	}
	few, many := text(4000), text(8000)
	cost := func(text string) float64 {
		return testing.AllocsPerRun(2, func() { _, _ = Parse("s.yaml", []byte(text)) })
	}
	if a, b := cost(few), cost(many); b > 2.5*a {
		t.Errorf("%.0f allocations for 4,000 families and %.0f for 8,000, want in proportion", a, b)
	}
}

const catalogueOf = "queueDepth, activeRequests, kvCacheUtilization, sleeping, servedModels, contextLimit, health, ready, maxConcurrency, kvCacheCapacity, kvBlockSize, prefixCacheEnabled, prefixCacheHitRatio, adaptersLoaded, adaptersWaiting, adaptersMax, ttft, itl, tpot, e2e, queueTime, promptThroughput, generationThroughput, preemptionRate, gpuUtilization, memoryPressure, power, energyPerToken, engineVersion, processStart"

// numbered repeats a text with its number in it.
func numbered(format string, times int) string {
	var text strings.Builder
	for i := range times {
		fmt.Fprintf(&text, format, i)
	}
	return text.String()
}

// fieldsOf is a profile from its fields on.
func fieldsOf(text string) string {
	_, fields, _ := strings.Cut(text, "\nfields:")
	return fields
}
