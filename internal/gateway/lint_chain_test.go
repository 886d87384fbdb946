package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/policy"
)

// everything is a policy that needs all that a gateway can do.
var everything = &policy.Policy{
	Gateway: policy.Gateway{Fallbacks: 4},
	Intent:  policy.Intent{Metadata: true},
	Trust:   policy.Trust{PlainHeaders: true, Headers: map[string]string{"x-selected-model": "logicalModel", "x-tenant": "requirement.authorization.t"}},
}

const (
	routerFilter = `
          - name: semantic-router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              processing_mode: {request_body_mode: BUFFERED}
`
	intentFilter = `
          - name: intent
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - {header: X-Selected-Model, on_header_present: {metadata_namespace: berth.dev, key: logicalModel}, remove: true}
`
	pickerFilter = `
          - name: picker
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              processing_mode: {request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_body_mode: STREAMED}
              response_attributes: [upstream.address]
              metadata_options:
                forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint, berth.dev]}
                receiving_namespaces: {untyped: [envoy.lb, berth.dev]}
`
)

// chained is a gateway with these filters, in this order.
func chained(filters ...string) string {
	return `static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          early_header_mutation_extensions:
          - name: strip
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations: [{remove: x-selected-model}, {remove_on_match: {key_matcher: {prefix: x-berth-}}}, {remove_on_match: {key_matcher: {exact: x-tenant}}}]
          http_filters:
` + strings.Join(filters, "") + `
          route_config: {virtual_hosts: [{routes: [{route: {cluster: pool, retry_policy: {num_retries: 4}}}]}]}
  clusters:
  - name: pool
    typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost}
`
}

func TestAGatewayIsLintedForWhatStandsAroundThePicker(t *testing.T) {
	whole := chained(routerFilter, intentFilter, pickerFilter)
	edit := func(old, with string) string {
		t.Helper()
		edited := strings.Replace(whole, old, with, 1)
		if edited == whole {
			t.Fatalf("there is no %q to edit", old)
		}
		return edited
	}
	rule := func(from, namespace string) string {
		return strings.NewReplacer("header: X-Selected-Model", from, "berth.dev", namespace).Replace(intentFilter)
	}
	const set = `
          - name: set
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata: [{metadata_namespace: envoy.lb.subset_hint, value: {a: b}}]
`
	perRoute := strings.Replace(whole, "route_config: {", `route_config: {typed_per_filter_config: {intent: {"@type": type.googleapis.com/`+headersType+
		`, request_rules: [{header: x-route, on_header_present: {metadata_namespace: berth.dev, key: priority}}]}}, `, 1)
	for _, c := range []struct {
		name, config string
		policy       *policy.Policy
		want         []string
	}{
		{"a router, its intents, the picker", whole, nil, nil},
		{"a router, its intents, the picker, and a policy that needs it all", whole, everything, nil},
		{"a router without intents", chained(routerFilter, pickerFilter), nil, nil},
		{"a router and a picker that say nothing of metadata are both linted", chained(routerFilter, strings.Split(pickerFilter, "              metadata_options")[0]),
			nil, []string{"BERTH103", "BERTH106", "BERTH107", "BERTH111", "BERTH106", "BERTH111"}},

		{"BERTH112 a header that clients may send", edit("{remove: x-selected-model}, ", ""), nil, []string{"BERTH112"}},
		{"BERTH112 a header that the listener removes under another prefix", chained(routerFilter, rule("header: x-other", "berth.dev"), pickerFilter), nil, []string{"BERTH112"}},
		{"BERTH112 a cookie", chained(routerFilter, rule("cookie: model", "berth.dev"), pickerFilter), nil, []string{"BERTH112"}},
		{"BERTH112 a header on a route", perRoute, nil, []string{"BERTH112"}},
		{"a header that the listener removes by its prefix", chained(routerFilter, rule("header: x-berth-x", "berth.dev"), pickerFilter), nil, nil},
		{"a header for another namespace", chained(routerFilter, rule("header: x-other", "other"), pickerFilter), nil, nil},

		{"BERTH113 intents that are not forwarded", edit("envoy.lb.subset_hint, berth.dev]", "envoy.lb.subset_hint]"), nil, []string{"BERTH113"}},
		{"BERTH113 intents that the policy waits for", strings.Replace(chained(pickerFilter), "envoy.lb.subset_hint, berth.dev]", "envoy.lb.subset_hint]", 1), everything, []string{"BERTH113"}},
		{"intents that nobody waits for", strings.Replace(chained(pickerFilter), "envoy.lb.subset_hint, berth.dev]", "envoy.lb.subset_hint]", 1), &policy.Policy{}, nil},

		{"BERTH114 a router behind the picker", chained(pickerFilter, routerFilter), nil, []string{"BERTH114"}},
		{"a service without bodies behind the picker", chained(pickerFilter, strings.Replace(routerFilter, "BUFFERED", "NONE", 1)), nil, nil},

		{"BERTH115 intents before the router", chained(intentFilter, routerFilter, pickerFilter), nil, []string{"BERTH115"}},
		{"BERTH115 intents behind the picker", chained(routerFilter, pickerFilter, intentFilter), nil, []string{"BERTH115"}},
		{"other intents before the router", chained(rule("header: x-tenant", "berth.dev"), routerFilter, pickerFilter), nil, nil},

		{"BERTH116 a router that fails open", edit("request_body_mode: BUFFERED}", "request_body_mode: BUFFERED}\n              failure_mode_allow: true"), nil, []string{"BERTH116"}},
		{"a router that fails open before a picker that requires intents", edit("request_body_mode: BUFFERED}", "request_body_mode: BUFFERED}\n              failure_mode_allow: true"),
			&policy.Policy{Intent: policy.Intent{Required: true, Metadata: true}}, nil},

		{"BERTH117 a header's subset", chained(rule("header: x-subset", "envoy.lb.subset_hint"), strings.Replace(pickerFilter, "envoy.lb.subset_hint, ", "", 1)), nil, []string{"BERTH106", "BERTH117"}},
		{"BERTH117 a fixed subset", chained(set, strings.Replace(pickerFilter, "envoy.lb.subset_hint, ", "", 1)), nil, []string{"BERTH106", "BERTH117"}},
		{"a subset that is forwarded", chained(set, pickerFilter), nil, nil},

		{"BERTH118 a list for one address", strings.Replace(edit("OverrideHost}", "Other}"), "- name: pool", "- name: pool\n    type: ORIGINAL_DST", 1), everything, []string{"BERTH118"}},
		{"one address where there are no fallbacks", strings.Replace(edit("OverrideHost}", "Other}"), "- name: pool", "- name: pool\n    type: ORIGINAL_DST", 1), &policy.Policy{}, nil},
		{"a cluster of one address beside one that walks a list", edit("- name: pool", "- name: pool\n    type: ORIGINAL_DST"), everything, nil},

		{"BERTH119 fewer retries", edit("num_retries: 4", "num_retries: 3"), everything, []string{"BERTH119"}},
		{"BERTH119 one retry, by Envoy's default", edit("retry_policy: {num_retries: 4}", "retry_policy: {retry_on: 5xx}"), everything, []string{"BERTH119"}},
		{"BERTH119 no retries", edit(", retry_policy: {num_retries: 4}", ""), everything, []string{"BERTH119"}},
		{"as many retries as the policy has fallbacks", edit("retry_policy: {num_retries: 4}", "retry_policy: {retry_on: 5xx}"), &policy.Policy{Gateway: policy.Gateway{Fallbacks: 1}}, nil},
		{"no routes in the file", edit("route: {cluster: pool, retry_policy: {num_retries: 4}}", "redirect: {}"), everything, nil},

		{"BERTH120 a plain header that clients may send", edit(", {remove_on_match: {key_matcher: {exact: x-tenant}}}", ""), everything, []string{"BERTH120"}},
		{"BERTH121 signed intents that never arrive", whole, &policy.Policy{Intent: policy.Intent{Keys: &intent.KeySet{}}}, []string{"BERTH121"}},
		{"signed intents that arrive", edit("{prefix: x-berth-}", "{prefix: x-berth-d}"), &policy.Policy{Intent: policy.Intent{Keys: &intent.KeySet{}}}, nil},

		{"BERTH122 a key that is none", edit("key: logicalModel", "key: logicalModl"), nil, []string{"BERTH122"}},
		{"BERTH122 a rule without a key", edit(", key: logicalModel", ""), nil, []string{"BERTH122"}},
		{"a key of another namespace", chained(routerFilter, strings.Replace(rule("header: x-other", "other"), "logicalModel", "logicalModl", 1), pickerFilter), nil, nil},
		{"a whole intent", edit("key: logicalModel", "key: intent"), nil, nil},

		{"a plain header that is not trusted", edit(", {remove_on_match: {key_matcher: {exact: x-tenant}}}", ""),
			&policy.Policy{Trust: policy.Trust{Headers: everything.Trust.Headers}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := found(t, c.config, c.policy); !slices.Equal(got, c.want) {
				t.Errorf("as YAML: got %q; want %q", got, c.want)
			}
			asJSON, err := yaml.YAMLToJSON([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			if got := found(t, string(asJSON), c.policy); !slices.Equal(got, c.want) {
				t.Errorf("as JSON: got %q; want %q", got, c.want)
			}
		})
	}
}

func TestAKeyOfNoIntentIsNamedWithItsLineAndTheNearest(t *testing.T) {
	const writers = `static_resources:
  x:
  - "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
    http_filters:
    - typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
        request_rules:
        - header: x-a
          on_header_present: {metadata_namespace: berth.dev, key: requirement.residency.berth.dev/residncy}
          on_header_missing: {metadata_namespace: berth.dev, key: sessionkey, value: x}
        - header: x-b
          on_header_present: {metadata_namespace: berth.dev}
        - cookie: c
          on_header_present:
            metadata_namespace: berth.dev
            key: "\nBERTH001"
        - header: x-d
          on_header_present: {metadata_namespace: berth.dev, key: requirement.placement.example.com/residncy}
    - typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
        metadata_namespace: berth.dev
        value:
          priority: 1
          prioritty: 2
        metadata:
        - metadata_namespace: berth.dev
          value:
            intents: {version: x}
            requirement.placement.berth.dev/zoned: z
        - metadata_namespace: other
          value: {zone: z}
    - typed_config: &again
        "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
        metadata:
        - metadata_namespace: berth.dev
          value: &value
            sesionKey: x
            more: *value
`
	places := func(config string) (places []string) {
		t.Helper()
		c, err := Read("envoy.yaml", []byte(config))
		if c == nil {
			t.Fatal(err)
		}
		for _, f := range c.Lint(nil) {
			if f.Code == "BERTH122" {
				places = append(places, f.Where)
			}
		}
		return places
	}
	want := []string{
		"key requirement.residency.berth.dev/residncy at line 9, the nearest is requirement.residency.berth.dev/residency",
		"key sessionkey at line 10, the nearest is sessionKey",
		"key x-b at line 11, the nearest is ",
		`key "\nBERTH001" at line 16, the nearest is `,
		"key prioritty at line 24, the nearest is priority",
		"key intents at line 28, the nearest is intent",
		"key requirement.placement.berth.dev/zoned at line 29, the nearest is requirement.placement.berth.dev/zone",
	}
	compare := func(as string, got []string) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: got\n%s", as, strings.Join(got, "\n"))
		}
		for i := range want {
			if got[i] != want[i] && !(strings.HasSuffix(want[i], " is ") && strings.HasPrefix(got[i], want[i])) {
				t.Errorf("%s: got %q; want %q", as, got[i], want[i])
			}
		}
	}
	// What leads back to itself is an error, and no key.
	compare("YAML", places(writers))

	withoutLoop, _, _ := strings.Cut(writers, "    - typed_config: &again")
	asJSON, err := yaml.YAMLToJSON([]byte(strings.Replace(withoutLoop, `"\nBERTH001"`, "nolines", 1)))
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, asJSON, "", " "); err != nil {
		t.Fatal(err)
	}
	got := places(indented.String())
	if len(got) != len(want) {
		t.Fatalf("JSON: got\n%s", strings.Join(got, "\n"))
	}
	for _, place := range got {
		var key string
		var line int
		if _, err := fmt.Sscanf(place, "key %s at line %d", &key, &line); err != nil || !strings.Contains(strings.Split(indented.String(), "\n")[line-1], strconv.Quote(key)) {
			t.Errorf("JSON: %s: %v; the line does not name the key", place, err)
		}
	}
}

// Envoy's own dump has other spellings, and lists routes before the filters.
func TestAnEnvoysOwnDumpIsReadAsItsBootstrap(t *testing.T) {
	o := gateways()["semantic-router"]
	from, asked := newRouter(t), newPicker(t)
	o.Router.Address, o.PickerAddress = from.address.String(), asked.address.String()
	r := run(t, o, func(bootstrap string) string {
		return strings.Replace(bootstrap, "              - remove: \"x-residency\"\n", "", 1)
	})
	dump := r.get("/config_dump")
	if !json.Valid([]byte(dump)) {
		t.Fatalf("no dump: %.200s", dump)
	}
	if got := slices.Compact(found(t, dump, &policy.Policy{Gateway: policy.Gateway{Fallbacks: 2}})); !slices.Equal(got, []string{"BERTH112", "BERTH119"}) {
		t.Errorf("got %q, want BERTH112 and BERTH119", got)
	}
}

func TestTheGatewaysThatAreWrittenFitThePolicyThatTheyAreWrittenFor(t *testing.T) {
	for name, o := range gateways() {
		data, err := os.ReadFile(fmt.Sprintf("testdata/%s.yaml", name))
		if err != nil {
			t.Fatal(err)
		}
		p := &policy.Policy{Gateway: policy.Gateway{Fallbacks: o.Fallbacks}, Intent: policy.Intent{Metadata: true}}
		if o.SignedIntents {
			p.Intent.Keys = &intent.KeySet{}
		}
		if got := found(t, string(data), p); got != nil {
			t.Errorf("%s: findings %q, want none", name, got)
		}
	}
}
