package gateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/policy"
)

func TestEachGatewayRuleIsDocumentedUnderItsOwnCode(t *testing.T) {
	const path = "../../docs/lint.md"
	const begin, end = "<!-- gateway rules -->\n", "<!-- end of gateway rules -->\n"
	want := "| code | severity | title | explanation | fix |\n|---|---|---|---|---|\n"
	last := ""
	for _, r := range Rules() {
		if !regexp.MustCompile(`^BERTH1\d\d$`).MatchString(r.Code) || r.Code <= last {
			t.Errorf("code %q after %q; want ascending codes BERTH100...", r.Code, last)
		}
		last = r.Code
		if r.Title == "" || r.Explanation == "" || r.Fix == "" || strings.ContainsAny(r.Title+r.Explanation+r.Fix, "|\n") {
			t.Errorf("%s lacks a text, or has one that does not fit into a table: %+v", r.Code, r)
		}
		want += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", r.Code, r.Severity, r.Title, r.Explanation, r.Fix)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s has\n%s\nwant (go test ./internal/gateway -update writes it)\n%s", path, table, want)
	}
}

// filter is an Envoy listener with one ext_proc filter with these settings.
func filter(settings string) string {
	return `static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          http_filters:
          - name: picker
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {google_grpc: {credentials: {call_credentials: [{from_plugin: {typed_config: {"@type": type.googleapis.com/only.Envoy.knows}}}]}}}
` + settings
}

const (
	wholeMode   = "              processing_mode: {request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND}\n"
	wholeTold   = "              response_attributes: [upstream.address]\n"
	wholeSubset = "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}, " + wholeDestination + "}\n"

	wholeDestination = "receiving_namespaces: {untyped: [envoy.lb, berth.dev]}"
)

// route puts the settings of a route behind a filter that shows everything.
func route(settings string) string {
	return filter(wholeMode+wholeTold+wholeSubset) + `          route_config:
            virtual_hosts:
            - typed_per_filter_config:
                picker:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                  ` + settings + "\n"
}

const (
	dumped    = `{"configs":[{"dynamic_listeners":[{"active_state":{"listener":{"http_filters":[{"typed_config":%s}]}}}]}]}`
	dumpedAny = `{"@type":"type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"%s}`
)

func TestAGatewayIsLintedForWhatItKeepsFromThePicker(t *testing.T) {
	mode := func(modes string) string {
		return filter("              processing_mode: {" + modes + "}\n" + wholeTold + wholeSubset)
	}
	const duplex = "request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND"
	for _, c := range []struct {
		name, config string
		want         []string
	}{
		{"everything is shown", filter(wholeMode + wholeTold + wholeSubset), nil},
		{"names as JSON has them", filter(`              processingMode: {requestBodyMode: BUFFERED, responseBodyMode: FULL_DUPLEX_STREAMED}
              responseAttributes: [upstream.address]
              metadataOptions: {forwardingNamespaces: {untyped: [envoy.lb.subset_hint]}, receivingNamespaces: {untyped: [envoy.lb, berth.dev]}}
`), nil},
		{"numbers of modes", mode("request_body_mode: 4, response_body_mode: 4, response_trailer_mode: 1"), nil},
		{"nothing is set", filter(""), []string{"BERTH101", "BERTH103", "BERTH106", "BERTH107", "BERTH111"}},
		{"request bodies are streamed", mode("request_body_mode: STREAMED, response_body_mode: STREAMED"), []string{"BERTH101"}},
		{"request bodies are buffered in part", mode("request_body_mode: BUFFERED_PARTIAL, response_body_mode: STREAMED"), []string{"BERTH101"}},
		{"no response headers", mode(duplex + ", response_header_mode: SKIP, response_body_mode: NONE"), []string{"BERTH102"}},
		{"no end of responses", mode(duplex + ", response_body_mode: NONE, response_trailer_mode: SKIP"), []string{"BERTH103"}},
		{"no end of responses, by Envoy's defaults", mode(duplex), []string{"BERTH103"}},
		{"an end without a cause", mode(duplex + ", response_body_mode: NONE, response_trailer_mode: SEND"), []string{"BERTH104"}},
		{"fails open", filter(wholeMode + wholeTold + wholeSubset + "              failure_mode_allow: true\n"), []string{"BERTH105"}},
		{"no subset", filter(wholeMode + wholeTold + "              metadata_options: {" + wholeDestination + "}\n"), []string{"BERTH106"}},
		{"nobody says who served", filter(wholeMode + wholeSubset), []string{"BERTH107"}},
		{"metadata says who served", filter(wholeMode + "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}, " + wholeDestination + "}\n"), nil},
		{"answers are ignored", filter(wholeMode + wholeTold + wholeSubset + "              observability_mode: true\n"), []string{"BERTH109"}},
		{"no request headers", mode(duplex + ", request_header_mode: SKIP, response_body_mode: STREAMED"), []string{"BERTH110"}},
		{"no destination in metadata", filter(wholeMode + wholeTold + "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}, receiving_namespaces: {untyped: [berth.dev]}}\n"), []string{"BERTH111"}},
		{"no acknowledgement in metadata", filter(wholeMode + wholeTold + "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}, receiving_namespaces: {untyped: [envoy.lb]}}\n"), []string{"BERTH111"}},
		{"a route with other modes", route("overrides: {processing_mode: {request_body_mode: NONE, response_header_mode: SKIP}}"), []string{"BERTH101", "BERTH102"}},
		{"a route without request headers", route("overrides: {processing_mode: {request_header_mode: SKIP, request_body_mode: BUFFERED, response_body_mode: STREAMED}}"), []string{"BERTH110"}},
		{"a route that fails open", route("overrides: {failure_mode_allow: true}"), []string{"BERTH105"}},
		{"a route that fails closed", route("overrides: {failureModeAllow: false}"), nil},
		{"a route that is switched off", route("disabled: true"), []string{"BERTH108"}},
		{"a route with other metadata", route("overrides: {metadata_options: {forwarding_namespaces: {untyped: [envoy.lb]}, receiving_namespaces: {}}}"), []string{"BERTH106", "BERTH111"}},
		{"a route with the destination alone", route("overrides: {metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}}}"), []string{"BERTH111"}},
		{"a route to another picker", route("overrides: {grpc_service: {envoy_grpc: {cluster_name: other}}}"), nil},
		{"overrides behind an alias", "x-overrides: &o {processing_mode: {request_body_mode: NONE, response_header_mode: SKIP}}\n" + route("overrides: *o"),
			[]string{"BERTH101", "BERTH102"}},
		{"a mode, a name and a type behind aliases", "x-mode: &m {request_body_mode: BUFFERED, response_body_mode: NONE}\nx-name: &n processing_mode\n" +
			"x-type: &t type.googleapis.com/" + routeType + "\n" + route("overrides: {}") + "x-route: {'@type': *t, overrides: {*n : *m}}\n", []string{"BERTH103"}},
		{"settings behind an alias", "x-filter: &f {'@type': type.googleapis.com/" + filterType + ", failure_mode_allow: true}\nstatic_resources: {typed_config: *f}\n",
			[]string{"BERTH101", "BERTH103", "BERTH105", "BERTH106", "BERTH107", "BERTH111"}},
		{"a second document", "static_resources: {}\n---\n" + filter(wholeMode+wholeTold+wholeSubset+"              failure_mode_allow: true\n"), []string{"BERTH105"}},
		{"no filter", "static_resources: {listeners: []}\n", []string{"BERTH100"}},
		{"a dump", fmt.Sprintf(dumped, fmt.Sprintf(dumpedAny, `,"failure_mode_allow":true`)),
			[]string{"BERTH101", "BERTH103", "BERTH105", "BERTH106", "BERTH107", "BERTH111"}},
		{"a dump with the type at the end, of numbers and names as JSON has them", "\n" + fmt.Sprintf(dumped,
			`{"processingMode":{"requestBodyMode":2,"responseBodyMode":"STREAMED"},"message_timeout":1e999,"responseAttributes":["upstream.address"],`+
				`"metadataOptions":{"forwardingNamespaces":{"untyped":["envoy.lb.subset_hint"]},"receivingNamespaces":{"untyped":["envoy.lb","berth.dev"]}},`+
				`"failureModeAllow":true,"\u0040type" : "type.googleapis.com\/`+filterType+`"}`), []string{"BERTH105"}},
		{"a route in a dump", `{"configs":[` + fmt.Sprintf(dumpedAny, `,"processing_mode":{"request_body_mode":"BUFFERED","response_body_mode":"STREAMED"},"response_attributes":["upstream.address"],`+
			`"metadata_options":{"forwarding_namespaces":{"untyped":["envoy.lb.subset_hint"]},"receiving_namespaces":{"untyped":["envoy.lb","berth.dev"]}}`) +
			`,{"@type":"type.googleapis.com/` + routeType + `","overrides":{"failure_mode_allow":true}},{"@type":"type.googleapis.com/` + routeType + `","disabled":true,"note":"\"@type\""}]}`,
			[]string{"BERTH105", "BERTH108"}},
		{"flow style that is no JSON", `{static_resources: [` + fmt.Sprintf(dumpedAny, `,"failure_mode_allow":true`) + `]}`,
			[]string{"BERTH101", "BERTH103", "BERTH105", "BERTH106", "BERTH107", "BERTH111"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := found(t, c.config, nil); !slices.Equal(got, c.want) {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}

// found are the codes of the findings in a configuration, in front of a picker with
// policy p.
func found(t *testing.T, config string, p *policy.Policy) (got []string) {
	t.Helper()
	c, err := Read("envoy", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Lint(p) {
		got = append(got, f.Code)
	}
	return got
}

func TestWhatCannotBeReadIsAnErrorWithItsPlace(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"a value", filter("              failure_mode_allow: perhaps\n"), "envoy:10: " + filterType + ": cannot be read: invalid value"},
		{"a value of a route", route("overrides: {failure_mode_allow: perhaps}"), "envoy:19: " + routeType + ": cannot be read: overrides: invalid value"},
		{"a value in a second document", "static_resources: {}\n---\n" + filter("              failure_mode_allow: perhaps\n"), "envoy:12: " + filterType + ": cannot be read: "},
		{"a value in JSON", "{\n\"configs\": [\n" + fmt.Sprintf(dumpedAny, `,"failure_mode_allow":7`) + "]}", "envoy:3: " + filterType + ": cannot be read: "},
		{"an alias that leads back", "static_resources:\n  f: &f\n    '@type': /" + filterType + "\n    metadata_options: {x: *f}\n", "envoy:2: " + filterType + ": cannot be read: metadata_options: "},
		{"YAML behind a key", "static_resources:\n  a: [\n  b: }\n", "is not valid YAML: "},
		{"YAML behind a quoted key", "# dump\n\"configs\":\n  a: [\n  b: }\n", "is not valid YAML: "},
		{"YAML of a second document", "{static_resources: {}}\n---\na: b: c\n", "envoy:3: is not valid YAML: "},
		{"JSON that is cut", "{\"configs\": [\n{\"a\": 1},\n", "envoy:2: is not valid JSON: unexpected end of JSON input"},
		{"JSON with a stray character", "{\"configs\": [\n{\"a\":\n}]}", "envoy:3: is not valid JSON: invalid character '}'"},
		{"two values of JSON", "{\"configs\": []}\n{\"configs\": []}", "envoy:2: is not valid JSON: invalid character '{' after top-level value"},
		{"JSON that is deep", `{"configs":` + strings.Repeat("[", 1<<20), "envoy:1: is not valid JSON: invalid character '[' exceeded max depth"},
		{"YAML that is large", "static_resources: {}\n" + strings.Repeat("#\n", maxYAML/2), "envoy: more than 64MiB: must be at most 64MiB as YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read("envoy", []byte(c.config))
			var refused *policy.Error
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want an error with %q", err, c.want)
			}
		})
	}
}

func TestTheLineOfBrokenYAMLIsThatOfTheFault(t *testing.T) {
	_, err := Read("envoy", []byte("static_resources:\n  clusters: []\n  listeners: []\n bad: 1\n"))
	var refused *policy.Error
	if !errors.As(err, &refused) || refused.Line != 4 {
		t.Errorf("%v, want line 4", err)
	}
}

// A tree of a dump would take some thirty times its size.
func TestALargeDumpIsReadWithoutATreeOfIt(t *testing.T) {
	listener := `{"name":"l","filters":[` + strings.Repeat(`{"name":"some filter","value":[1,2,3]},`, 100) + fmt.Sprintf(dumpedAny, "") + "]}"
	dump := []byte(`{"configs":[` + strings.Repeat(listener+",\n", 1000) + "{}]}")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := Read("envoy", dump)
	runtime.ReadMemStats(&after)
	if err != nil || len(c.Filters) != 1000 || c.Filters[0].Line != 1 || c.Filters[999].Line != 1000 {
		t.Fatalf("%d filters, %v; want 1000, one a line", len(c.Filters), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(2*len(dump)) {
		t.Errorf("reading took %d bytes for %d, want twice as many at most", took, len(dump))
	}
}

func TestTheWrittenGatewaysHaveNoFindings(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".endpoints.yaml") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Read(file, data)
		if err != nil {
			t.Fatal(err)
		}
		filters := 1
		if strings.Contains(file, "semantic-router") {
			filters = 2
		}
		if got := c.Lint(nil); len(c.Filters) != filters || got != nil {
			t.Errorf("%s: %d filters, findings %+v; want %d filters and nothing else", file, len(c.Filters), got, filters)
		}
	}
}

func TestAPickersConfigurationIsNoGateways(t *testing.T) {
	for _, text := range []string{
		"kind: StaticPool\n", "apiVersion: x\nkind: EndpointPickerConfig\n", "", "[]", "\x00", "a: [\n", "{}", `{"kind": "StaticPool"}`, `{"kind": `,
		`{"a": {"configs": []}}`, "a:\n  configs: [\n", "# configs\na: [\n", "null\n", "---\n---\n",
	} {
		if _, err := Read("berth.yaml", []byte(text)); !errors.Is(err, ErrNotEnvoy) {
			t.Errorf("%q is taken for an Envoy configuration: %v", text, err)
		}
	}
}

// FuzzFilters: foreign configurations give filters or an error.
func FuzzFilters(f *testing.F) {
	f.Add(filter(wholeMode))
	f.Add(route("overrides: {failure_mode_allow: true}"))
	f.Add(`{"configs":[{"@type":"/` + filterType + `","processing_mode":{"request_body_mode":9}}]}`)
	f.Add(`{"configs":[{"@type":"/` + routeType + `","overrides":{"processingMode":{"requestHeaderMode":"SKIP"}}}]} {"a":`)
	f.Add("configs: &a {b: *a, '@type': /" + routeType + ", overrides: *a}\n---\n*a : 1\n")
	f.Add(chained(routerFilter, intentFilter, pickerFilter))
	f.Add(`{"static_resources":{"type":"ORIGINAL_DST","route":{"retry_policy":{"numRetries":-1}},"typed_per_filter_config":{"x":{"@type":"/` + headersType + `"}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Read("fuzz", []byte(text))
		if err != nil && !errors.Is(err, ErrNotEnvoy) && !errors.As(err, new(*policy.Error)) {
			t.Errorf("an error without a place: %v", err)
		}
		if c == nil {
			if !errors.Is(err, ErrNotEnvoy) {
				t.Fatalf("nothing was read, for %v", err)
			}
			return
		}
		for _, finding := range c.Lint(everything) {
			if finding.Where == "" || finding.Fix == "" {
				t.Errorf("a finding without a place or a fix: %+v", finding)
			}
		}
	})
}
