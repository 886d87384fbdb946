package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
)

func TestAPoolIsWhatItsFileDeclares(t *testing.T) {
	p, err := ParsePool("pool.yaml", []byte(`
apiVersion: berth.dev/v1alpha1
kind: StaticPool
metadata: {namespace: local, name: demo.example}
failureMode: FailOpen
endpoints:
- {name: r1, address: 127.0.0.1, port: 19101, engine: vllm, node: n1, zone: eu-1, ready: false, terminating: true,
   servedModels: [llama-3.1-8b, "8b"], contextLimit: 8192, labels: {berth.dev/tier: "1", app: x},
   annotations: {berth.dev/tenants: "a,b"}, metrics: {scheme: https, port: 19201, path: "/metrics?name=a"}}
- {name: "r2 (spare)", address: "::1", port: 65535}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []pool.Spec{{
		Name: "r1", Pod: "local/r1", Address: netip.MustParseAddrPort("127.0.0.1:19101"), Engine: "vllm", Node: "n1", Zone: "eu-1",
		Ready: false, Terminating: true, ServedModels: []string{"llama-3.1-8b", "8b"}, ContextLimit: 8192,
		Labels:      map[string]string{"berth.dev/tier": "1", "app": "x"},
		Annotations: map[string]string{"berth.dev/tenants": "a,b"},
		Metrics:     pool.MetricsTarget{Scheme: "https", Port: 19201, Path: "/metrics?name=a"},
	}, {
		Name: "r2 (spare)", Pod: "local/r2 (spare)", Address: netip.MustParseAddrPort("[::1]:65535"), Ready: true,
	}}
	if p.Namespace != "local" || p.Name != "demo.example" || p.FailureMode != v1alpha1.FailOpen || !reflect.DeepEqual(p.Endpoints, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
}

func TestAPoolFileMayLeaveOutNamespaceFailureModeAndEndpoints(t *testing.T) {
	p, err := ParsePool("pool.yaml", []byte("apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: demo}\n"), nil)
	if err != nil || p.Namespace != "default" || p.FailureMode != v1alpha1.FailClose || len(p.Endpoints) != 0 {
		t.Errorf("%+v, %v; want default/demo, FailClose, no endpoints", p, err)
	}
}

func TestAnAddressIsOneHostThatTrafficMayGoTo(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1":           "10.0.0.1:80",
		"127.0.0.1":          "127.0.0.1:80",
		"127.9.9.9":          "127.9.9.9:80",
		"::1":                "[::1]:80",
		"2001:DB8::1":        "[2001:db8::1]:80",
		"fd00::1":            "[fd00::1]:80",
		"::ffff:10.0.0.1":    "10.0.0.1:80",
		"0:0:0:0:0:ffff:a:1": "0.10.0.1:80",
	} {
		p, err := ParsePool("pool.yaml", fmt.Appendf(nil, "%s- {name: a, address: %q, port: 80}\n", poolHead, text), nil)
		if err != nil || p.Endpoints[0].Address.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, p, err, want)
		}
	}
	for text, fragment := range map[string]string{
		"localhost":              "hostnames are not resolved",
		"metrics.example.com":    "hostnames are not resolved",
		"":                       "an IPv4 or IPv6 address",
		"10.0.0.1:80":            "without port and brackets",
		"[::1]":                  "without port and brackets",
		"010.0.0.1":              "an IPv4 or IPv6 address",
		"10.1":                   "an IPv4 or IPv6 address",
		"2130706433":             "an IPv4 or IPv6 address",
		"10.0.0.0/8":             "an IPv4 or IPv6 address",
		"169.254.169.254":        "not a link-local one",
		"fe80::1":                "not a link-local one",
		"::ffff:169.254.169.254": "not a link-local one",
		"fe80::1%eth0":           "without a zone",
		"fd00::1%1":              "without a zone",
		"224.0.0.1":              "not a multicast or broadcast address",
		"ff02::1":                "not a multicast or broadcast address",
		"::ffff:224.0.0.1":       "not a multicast or broadcast address",
		"255.255.255.255":        "not a multicast or broadcast address",
		"0.0.0.0":                "not the unspecified address",
		"::":                     "not the unspecified address",
		"::ffff:0.0.0.0":         "not the unspecified address",
	} {
		_, err := ParsePool("pool.yaml", fmt.Appendf(nil, "%s- {name: a, address: %q, port: 80}\n", poolHead, text), nil)
		typed, _ := refusals(err)
		if len(typed) != 1 || typed[0].Field != "endpoints[0].address" || typed[0].Line != 5 || !strings.Contains(typed[0].Allowed, fragment) {
			t.Errorf("%q: %v; want line 5, endpoints[0].address, %q", text, err, fragment)
		}
	}
}

func TestLabelsAndAnnotationsAreUnderstoodWhereAFieldIsLeftOut(t *testing.T) {
	for _, c := range []struct {
		name, entry string
		engine      string
		limit       int64
		metrics     pool.MetricsTarget
	}{
		{"none", "", "", 0, pool.MetricsTarget{}},
		{"the field", "engine: vllm", "vllm", 0, pool.MetricsTarget{}},
		{"the stock label", "labels: {inference.networking.k8s.io/engine-type: vllm}", "vllm", 0, pool.MetricsTarget{}},
		{"the stock label as an annotation", "annotations: {inference.networking.k8s.io/engine-type: vllm}", "vllm", 0, pool.MetricsTarget{}},
		{"labels beside the field", "engine: vllm, labels: {inference.networking.k8s.io/engine-type: vllm, berth.dev/engine: vllm}", "vllm", 0, pool.MetricsTarget{}},
		{"an alias", "engine: trtllm", "trtllm-serve", 0, pool.MetricsTarget{}},
		{"an alias as the stock label", "labels: {inference.networking.k8s.io/engine-type: rocm-atom}", "atom", 0, pool.MetricsTarget{}},
		{"a field beside another label", "engine: sglang, labels: {inference.networking.k8s.io/engine-type: vllm}", "sglang", 0, pool.MetricsTarget{}},
		{"annotations", `annotations: {berth.dev/engine: vllm, berth.dev/context-limit: "4096", berth.dev/metrics-scheme: https, berth.dev/metrics-port: "9100", berth.dev/metrics-path: /stats}`,
			"vllm", 4096, pool.MetricsTarget{Scheme: "https", Port: 9100, Path: "/stats"}},
		{"labels", `labels: {berth.dev/context-limit: "4096", berth.dev/metrics-port: "9100"}`, "", 4096, pool.MetricsTarget{Port: 9100}},
		{"both, the same", `contextLimit: 4096, metrics: {port: 9100, path: /stats}, labels: {berth.dev/metrics-port: "9100"}, annotations: {berth.dev/context-limit: "4096", berth.dev/metrics-port: "9100", berth.dev/metrics-path: /stats, berth.dev/metrics-scheme: http}`,
			"", 4096, pool.MetricsTarget{Scheme: "http", Port: 9100, Path: "/stats"}},
		{"somebody else's", `annotations: {prometheus.io/port: "99999", example.com/berth.dev: x}`, "", 0, pool.MetricsTarget{}},
	} {
		p, err := ParsePool("pool.yaml", []byte(poolHead+"- {name: a, address: 10.0.0.1, port: 80, "+c.entry+"}\n"), nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if s := p.Endpoints[0]; s.Engine != c.engine || s.ContextLimit != c.limit || s.Metrics != c.metrics {
			t.Errorf("%s: engine %q, limit %d, metrics %+v; want %q, %d, %+v", c.name, s.Engine, s.ContextLimit, s.Metrics, c.engine, c.limit, c.metrics)
		}
	}
}

func TestListsOfAttributesAreCarriedAsTheyAreWritten(t *testing.T) {
	p, err := ParsePool("pool.yaml", []byte(poolHead+`- name: a
  address: 10.0.0.1
  port: 80
  labels: {berth.dev/tenants: a, berth.dev/tier: gold}
  annotations:
    berth.dev/safety: " a ,, b\t,"
    berth.dev/capabilities: |
      tools,vision
    example.com/empty: ""
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"berth.dev/safety": " a ,, b\t,", "berth.dev/capabilities": "tools,vision\n", "example.com/empty": ""}
	if s := p.Endpoints[0]; !reflect.DeepEqual(s.Annotations, want) || s.Labels["berth.dev/tenants"] != "a" {
		t.Errorf("labels %q, annotations %q; want %q", s.Labels, s.Annotations, want)
	}
}

// anEngine is what an endpoint may declare, with the engines that are built in.
const anEngine = "must be the name or an alias of an engine's profile (atom, sglang, triton-tensorrt-llm, trtllm-serve, vllm); " +
	"telemetry.profiles adds others; leave it out to serve without telemetry"

func TestEachBadPoolIsRefusedWithItsPlace(t *testing.T) {
	with := func(entry string) string {
		return poolHead + "- name: a\n  address: 10.0.0.1\n  port: 80\n  " + entry + "\n"
	}
	for _, c := range []refused{
		{"another kind", head, []string{"2: kind: EndpointPickerConfig: must be StaticPool"}},
		{"two documents", poolHead + "  []\n---\n" + poolHead + "  []\n", []string{"8: kind: StaticPool: must occur once"}},
		{"an empty file", "", []string{"0: : : is empty"}},
		{"no metadata", "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\n", []string{"1: metadata.name: missing: must be a DNS subdomain"}},
		{"metadata that is a text", "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: demo\n", []string{"3: metadata: demo: must be a mapping"}},
		{"a name in capitals", "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: Demo, namespace: a.b}\n",
			[]string{"3: metadata.namespace: a.b: must be a DNS label", "3: metadata.name: Demo: must be a DNS subdomain"}},
		{"failureMode", "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: demo}\nfailureMode: failopen\n", []string{"4: failureMode: failopen: must be one of FailClose, FailOpen"}},
		{"an endpoint that is a text", poolHead + "- 10.0.0.1\n", []string{"5: endpoints[0]: 10.0.0.1: must be a mapping"}},
		{"an empty endpoint", poolHead + "- {}\n", []string{"5: endpoints[0].name: missing: must be 1 to 253", "5: endpoints[0].address: missing: must be an IPv4", "5: endpoints[0].port: missing: must be 1 to 65535"}},
		{"a long name", poolHead + "- {name: " + strings.Repeat("a", 254) + ", address: 10.0.0.1, port: 80}\n",
			[]string{"5: endpoints[0].name: " + strings.Repeat("a", 64) + "...: must be 1 to 253 printable characters"}},
		{"a name with a line break", poolHead + "- {name: \"a\\nb\", address: 10.0.0.1, port: 80}\n", []string{`5: endpoints[0].name: "a\nb": must be 1 to 253 printable`}},
		{"a name twice", poolHead + "- {name: a, address: 10.0.0.1, port: 80}\n- {name: a, address: 10.0.0.1, port: 81}\n",
			[]string{"6: endpoints[1].name: a: must be a name of its own: endpoints[0] in line 5 has it"}},
		{"an address and port twice", poolHead + "- {name: a, address: 10.0.0.1, port: 80}\n- {name: b, address: \"::ffff:10.0.0.1\", port: 80}\n",
			[]string{"6: endpoints[1].port: 80: must make an address and port of its own: 10.0.0.1:80: endpoints[0] in line 5 has it"}},
		{"port zero", poolHead + "- {name: a, address: 10.0.0.1, port: 0}\n", []string{"5: endpoints[0].port: 0: must be 1 to 65535"}},
		{"port 70000", poolHead + "- {name: a, address: 10.0.0.1, port: 70000}\n", []string{"5: endpoints[0].port: 70000: must be 1 to 65535"}},
		{"port in quotes", poolHead + "- {name: a, address: 10.0.0.1, port: \"80\"}\n", []string{`5: endpoints[0].port: "80": must be a whole number`}},
		{"an address that is a number", poolHead + "- {name: a, address: 10.1, port: 80}\n", []string{"5: endpoints[0].address: 10.1: must be a string: put it in quotes"}},
		{"a label that is a number", with("labels: {berth.dev/tier: 1}"), []string{"8: endpoints[0].labels[berth.dev/tier]: 1: must be a string: put it in quotes"}},
		{"an unknown key of ours", with("annotations: {berth.dev/tenant: a}"), []string{"8: endpoints[0].annotations[berth.dev/tenant]: a: is an unknown key; known keys: berth.dev/capabilities, " +
			"berth.dev/context-limit, berth.dev/engine, berth.dev/metrics-path, berth.dev/metrics-port, berth.dev/metrics-scheme, berth.dev/residency, " +
			"berth.dev/revision, berth.dev/safety, berth.dev/tenants, berth.dev/tier"}},
		{"attributes that something else states", with("labels: {berth.dev/pool: a, berth.dev/replica: a, berth.dev/node: a, berth.dev/zone: a}\n  annotations: {berth.dev/served-models: a, berth.dev/engine-version: a}"), []string{
			"8: endpoints[0].labels[berth.dev/node]: a: must be left out: node states it",
			"8: endpoints[0].labels[berth.dev/pool]: a: must be left out: metadata states it",
			"8: endpoints[0].labels[berth.dev/replica]: a: must be left out: name states it",
			"8: endpoints[0].labels[berth.dev/zone]: a: must be left out: zone states it",
			"9: endpoints[0].annotations[berth.dev/engine-version]: a: must be left out: the engine itself states it",
			"9: endpoints[0].annotations[berth.dev/served-models]: a: must be left out: servedModels states it"}},
		{"lists of nothing", with("labels: {berth.dev/residency: \"\", berth.dev/tier: \" \", berth.dev/revision: \",\"}\n  annotations: {berth.dev/tenants: \" , \", berth.dev/safety: \"\", berth.dev/capabilities: \"\\t,\\n\"}"), []string{
			`8: endpoints[0].labels[berth.dev/residency]: "": must be a list of items with commas between them, at least one`,
			`8: endpoints[0].labels[berth.dev/revision]: ",": must be a list`,
			`8: endpoints[0].labels[berth.dev/tier]: " ": must be a list`,
			`9: endpoints[0].annotations[berth.dev/capabilities]: "\t,\n": must be a list`,
			`9: endpoints[0].annotations[berth.dev/safety]: "": must be a list`,
			`9: endpoints[0].annotations[berth.dev/tenants]: " , ": must be a list`}},
		{"items that no requirement can ask for", with("annotations: {berth.dev/tenants: \"a,b\\nc\", berth.dev/safety: \"a\\0\", berth.dev/capabilities: \"\\u0085x\"}\n  labels: {berth.dev/tier: " + strings.Repeat("a", 513) + "}"), []string{
			`8: endpoints[0].annotations[berth.dev/capabilities]: "\u0085x": must be a list`,
			`8: endpoints[0].annotations[berth.dev/safety]: "a\x00": must be a list`,
			`8: endpoints[0].annotations[berth.dev/tenants]: "a,b\nc": must be a list`,
			"9: endpoints[0].labels[berth.dev/tier]: " + strings.Repeat("a", 64) + "...: must be a list"}},
		{"another host for metrics", with("annotations: {berth.dev/metrics-host: 169.254.169.254}"), []string{"8: endpoints[0].annotations[berth.dev/metrics-host]: 169.254.169.254: is an unknown key"}},
		{"a metrics host", with("metrics: {host: 10.0.0.9}"), []string{"8: endpoints[0].metrics.host: 10.0.0.9: is an unknown key; known here: path, port, scheme"}},
		{"metrics scheme", with("metrics: {scheme: ftp}"), []string{"8: endpoints[0].metrics.scheme: ftp: must be http or https"}},
		{"metrics port", with("metrics: {port: 0}"), []string{"8: endpoints[0].metrics.port: 0: must be 1 to 65535"}},
		{"metrics path", with("metrics: {path: metrics}"), []string{"8: endpoints[0].metrics.path: metrics: must be a path that begins with one slash"}},
		{"metrics path with a host", with("metrics: {path: //evil.example/metrics}"), []string{"8: endpoints[0].metrics.path: //evil.example/metrics: must be a path that begins with one slash"}},
		{"metrics path with a fragment", with("metrics: {path: \"/m#x\"}"), []string{`8: endpoints[0].metrics.path: "/m#x": must be a path`}},
		{"metrics annotations", with("annotations: {berth.dev/metrics-scheme: HTTP, berth.dev/metrics-port: \"0x50\", berth.dev/metrics-path: \"http://h/\"}"), []string{
			"8: endpoints[0].annotations[berth.dev/metrics-scheme]: HTTP: must be http or https",
			`8: endpoints[0].annotations[berth.dev/metrics-port]: "0x50": must be 1 to 65535`,
			`8: endpoints[0].annotations[berth.dev/metrics-path]: "http://h/": must be a path`}},
		{"metrics that contradict", with("metrics: {scheme: http, port: 81, path: /a}\n  annotations: {berth.dev/metrics-scheme: https, berth.dev/metrics-port: \"82\", berth.dev/metrics-path: /b}"), []string{
			"9: endpoints[0].annotations[berth.dev/metrics-scheme]: https: must be what endpoints[0].metrics.scheme in line 8 says: http",
			`9: endpoints[0].annotations[berth.dev/metrics-port]: "82": must be what endpoints[0].metrics.port in line 8 says: 81`,
			"9: endpoints[0].annotations[berth.dev/metrics-path]: /b: must be what endpoints[0].metrics.path in line 8 says: /a"}},
		{"a label and an annotation that contradict", with("labels: {berth.dev/engine: vllm}\n  annotations: {berth.dev/engine: sglang}"), []string{
			`9: endpoints[0].annotations[berth.dev/engine]: sglang: must be what the label in line 8 says: "vllm"`}},
		{"contextLimit", with("contextLimit: 0"), []string{"8: endpoints[0].contextLimit: 0: must be a whole number of tokens above 0"}},
		{"contextLimit that contradicts", with("contextLimit: 8192\n  annotations: {berth.dev/context-limit: \"4096\"}"), []string{
			`9: endpoints[0].annotations[berth.dev/context-limit]: "4096": must be what endpoints[0].contextLimit in line 8 says: 8192`}},
		{"context-limit", with("annotations: {berth.dev/context-limit: 8k}"), []string{"8: endpoints[0].annotations[berth.dev/context-limit]: 8k: must be a whole number of tokens"}},
		{"no served model", with("servedModels: []"), []string{"8: endpoints[0].servedModels: [...]: must have at least one name"}},
		{"served models", with("servedModels: [a, \"\", a]"), []string{`8: endpoints[0].servedModels[1]: "": must be 1 to 512`, "8: endpoints[0].servedModels[2]: a: must occur once"}},
		{"an engine in another case", with("engine: vLLM"), []string{"8: endpoints[0].engine: vLLM: " + anEngine}},
		{"an engine that is not read", with("engine: llama.cpp"), []string{"8: endpoints[0].engine: llama.cpp: " + anEngine}},
		{"an exporter for an engine", with("engine: dcgm"), []string{"8: endpoints[0].engine: dcgm: " + anEngine}},
		{"an exporter's alias for an engine", with("engine: dcgm-exporter"), []string{"8: endpoints[0].engine: dcgm-exporter: " + anEngine}},
		{"an engine that is not read, by our label", with("labels: {berth.dev/engine: SGLang}"), []string{"8: endpoints[0].labels[berth.dev/engine]: SGLang: " + anEngine}},
		{"an engine that is not read, by our annotation", with("annotations: {berth.dev/engine: tgi}"), []string{"8: endpoints[0].annotations[berth.dev/engine]: tgi: " + anEngine}},
		{"an engine that is not read, by the stock label", with("labels: {inference.networking.k8s.io/engine-type: tgi}"), []string{
			"8: endpoints[0].labels[inference.networking.k8s.io/engine-type]: tgi: " + anEngine}},
		{"labels beside the field that no profile is for", with("engine: vllm\n  labels: {inference.networking.k8s.io/engine-type: tgi, berth.dev/engine: mlx}"), []string{
			"9: endpoints[0].labels[berth.dev/engine]: mlx: " + anEngine, "9: endpoints[0].labels[inference.networking.k8s.io/engine-type]: tgi: " + anEngine}},
		{"an engine with a space", with("engine: v llm"), []string{"8: endpoints[0].engine: v llm: " + anEngine}},
		{"an empty engine", with("engine: \"\""), []string{`8: endpoints[0].engine: "": ` + anEngine}},
		{"an empty zone", with("zone: \"\""), []string{`8: endpoints[0].zone: "": must be 1 to 253 printable`}},
		{"ready", with("ready: \"yes\""), []string{`8: endpoints[0].ready: "yes": must be true or false`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ParsePool("pool.yaml", []byte(c.text), nil)
			if p != nil {
				t.Errorf("a refused file gives %+v; want nothing", p)
			}
			wantRefusals(t, err, c.want)
		})
	}
}
