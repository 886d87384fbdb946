package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	wholeSubset = "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}}\n"
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
              metadataOptions: {forwardingNamespaces: {untyped: [envoy.lb.subset_hint]}}
`), nil},
		{"numbers of modes", mode("request_body_mode: 4, response_body_mode: 4, response_trailer_mode: 1"), nil},
		{"nothing is set", filter(""), []string{"BERTH101", "BERTH103", "BERTH106", "BERTH107"}},
		{"request bodies are streamed", mode("request_body_mode: STREAMED, response_body_mode: STREAMED"), []string{"BERTH101"}},
		{"request bodies are buffered in part", mode("request_body_mode: BUFFERED_PARTIAL, response_body_mode: STREAMED"), []string{"BERTH101"}},
		{"no response headers", mode(duplex + ", response_header_mode: SKIP, response_body_mode: NONE"), []string{"BERTH102"}},
		{"no end of responses", mode(duplex + ", response_body_mode: NONE, response_trailer_mode: SKIP"), []string{"BERTH103"}},
		{"no end of responses, by Envoy's defaults", mode(duplex), []string{"BERTH103"}},
		{"an end without a cause", mode(duplex + ", response_body_mode: NONE, response_trailer_mode: SEND"), []string{"BERTH104"}},
		{"fails open", filter(wholeMode + wholeTold + wholeSubset + "              failure_mode_allow: true\n"), []string{"BERTH105"}},
		{"no subset", filter(wholeMode + wholeTold), []string{"BERTH106"}},
		{"nobody says who served", filter(wholeMode + wholeSubset), []string{"BERTH107"}},
		{"metadata says who served", filter(wholeMode + "              metadata_options: {forwarding_namespaces: {untyped: [envoy.lb, envoy.lb.subset_hint]}}\n"), nil},
		{"a route with other modes", filter(wholeMode+wholeTold+wholeSubset) + `          route_config:
            virtual_hosts:
            - typed_per_filter_config:
                picker:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
                  overrides: {processing_mode: {request_body_mode: NONE, response_header_mode: SKIP}}
`, []string{"BERTH101", "BERTH102"}},
		{"a route that is switched off", filter(wholeMode+wholeTold+wholeSubset) + `          route_config:
            virtual_hosts:
            - typed_per_filter_config:
                picker: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, disabled: true}
`, nil},
		{"no filter", "static_resources: {listeners: []}\n", []string{"BERTH100"}},
		{"a dump", `{"configs":[{"dynamic_listeners":[{"active_state":{"listener":{"http_filters":[{"typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor","failure_mode_allow":true}}]}}}]}]}`,
			[]string{"BERTH101", "BERTH103", "BERTH105", "BERTH106", "BERTH107"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !IsEnvoy([]byte(c.config)) {
				t.Fatal("not taken for an Envoy configuration")
			}
			filters, err := Filters([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range Lint(filters) {
				got = append(got, f.Code)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}

func TestSettingsThatCannotBeReadAreAnErrorWithTheirLine(t *testing.T) {
	_, err := Filters([]byte(filter("              failure_mode_allow: perhaps\n")))
	if err == nil || !strings.Contains(err.Error(), "line 10: ") || !strings.Contains(err.Error(), "ExternalProcessor") {
		t.Errorf("got %v; want an error with line 10 and the type", err)
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
		filters, err := Filters(data)
		if err != nil || len(filters) != 1 || Lint(filters) != nil {
			t.Errorf("%s: %d filters, findings %+v, %v; want one filter and nothing else", file, len(filters), Lint(filters), err)
		}
	}
}

func TestAPickersConfigurationIsNoGateways(t *testing.T) {
	for _, text := range []string{"kind: StaticPool\n", "apiVersion: x\nkind: EndpointPickerConfig\n", "", "[]", "\x00", "a: [\n"} {
		if IsEnvoy([]byte(text)) {
			t.Errorf("%q is taken for an Envoy configuration", text)
		}
	}
}

// FuzzFilters: foreign configurations give filters or an error.
func FuzzFilters(f *testing.F) {
	f.Add(filter(wholeMode))
	f.Add(`{"configs":[{"@type":"/` + filterType + `","processing_mode":{"request_body_mode":9}}]}`)
	f.Add("a: &a {b: *a}\n")
	f.Fuzz(func(t *testing.T, text string) {
		filters, err := Filters([]byte(text))
		if err != nil {
			return
		}
		for _, finding := range Lint(filters) {
			if finding.Where == "" || finding.Fix == "" {
				t.Errorf("a finding without a place or a fix: %+v", finding)
			}
		}
	})
}
