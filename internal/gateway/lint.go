package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/policy"
)

// Filter is what an ext_proc filter in an Envoy configuration lets a picker see.
type Filter struct {
	// Line is where the filter's settings begin, from 1.
	Line int
	// Route is set for the settings by which a route replaces the filter's modes.
	Route bool

	mode     *extprocv3.ProcessingMode
	settings *extprocv3.ExternalProcessor
}

// Rule is one kind of finding in a gateway's configuration.
type Rule struct {
	Code        string
	Severity    policy.Severity
	Title       string
	Explanation string
	Fix         string

	// holds is nil in the rule that is about a configuration without a filter.
	holds func(*Filter) bool
}

// Rules are all rules in the order of their codes. A code is never used again
// for something else.
func Rules() []Rule {
	return []Rule{
		{
			Code: "BERTH100", Severity: policy.SeverityWarning, Title: "no ext_proc filter",
			Explanation: "The configuration has no filter of type envoy.filters.http.ext_proc: no picker is asked. In a dump, filters of listeners that come from a control plane are there only if the listeners are.",
			Fix:         "Add the filter, as in what berthctl gateway writes.",
		},
		{
			Code: "BERTH101", Severity: policy.SeverityWarning, Title: "request bodies are not shown in time",
			Explanation: "With this request_body_mode the replica is picked before the body is seen: the model that it names is not screened for, and nobody is refused for serving other models only.",
			Fix:         "Set request_body_mode to FULL_DUPLEX_STREAMED, and request_trailer_mode to SEND, which it demands; or to BUFFERED.",
			holds: func(f *Filter) bool {
				m := f.mode.GetRequestBodyMode()
				return m != extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && m != extprocv3.ProcessingMode_BUFFERED
			},
		},
		{
			Code: "BERTH102", Severity: policy.SeverityWarning, Title: "response headers are not shown",
			Explanation: "With response_header_mode SKIP the picker never learns who served, with which status, or how requests end: acknowledgements are unreported, outcomes unseen, and the in-flight unit mostly comes back before the replica has answered.",
			Fix:         "Set response_header_mode to SEND.",
			holds:       func(f *Filter) bool { return !f.showsResponses() },
		},
		{
			Code: "BERTH103", Severity: policy.SeverityWarning, Title: "the end of responses is not shown",
			Explanation: "With response_body_mode NONE and response trailers skipped the stream of a request ends with its response headers: the in-flight unit comes back then, so that a replica in mid-generation looks free to this picker, and outcomes are unseen. In return, a picker that dies harms no running response.",
			Fix:         "Set response_trailer_mode to SEND, so that the stream ends with the response; or know that load is told by the engines' telemetry alone.",
			holds: func(f *Filter) bool {
				return f.showsResponses() && !f.showsBodies() && f.mode.GetResponseTrailerMode() != extprocv3.ProcessingMode_SEND
			},
		},
		{
			Code: "BERTH104", Severity: policy.SeverityNote, Title: "the end of responses comes without its cause",
			Explanation: "With response_body_mode NONE the stream ends with the response, and does not say why: a client that leaves in mid-response, or a replica that dies, is recorded as complete. Usage, TTFT and error events inside responses are not seen.",
			Fix:         "Nothing, where that is enough: it is cheaper. Otherwise set response_body_mode to FULL_DUPLEX_STREAMED.",
			holds: func(f *Filter) bool {
				return f.showsResponses() && !f.showsBodies() && f.mode.GetResponseTrailerMode() == extprocv3.ProcessingMode_SEND
			},
		},
		{
			Code: "BERTH105", Severity: policy.SeverityWarning, Title: "the gateway fails open",
			Explanation: "With failure_mode_allow true, requests without a body (and, in some body modes, with one) pass without a pick while the picker is away. Where they go is up to the cluster's own load balancing, past screening.",
			Fix:         "Set failure_mode_allow to false, or see that the cluster serves nobody without a pick, as the one that berthctl gateway writes does.",
			holds:       func(f *Filter) bool { return f.settings.GetFailureModeAllow() },
		},
		{
			Code: "BERTH106", Severity: policy.SeverityNote, Title: "the gateway's subset does not reach the picker",
			Explanation: "metadata_options.forwarding_namespaces.untyped lacks envoy.lb.subset_hint: a subset that a filter sets there is not seen, and not obeyed.",
			Fix:         "Nothing, if no filter sets a subset. Otherwise add the namespace.",
			holds:       func(f *Filter) bool { return !f.Route && !f.forwards("envoy.lb.subset_hint") },
		},
		{
			Code: "BERTH107", Severity: policy.SeverityNote, Title: "the picker is not told who served",
			Explanation: "Neither is upstream.address among response_attributes, nor envoy.lb among the forwarded namespaces: acknowledgements are unreported, and a response from outside the screened set is not noticed.",
			Fix:         "Add upstream.address, upstream.request_attempt_count and response.code_details to response_attributes.",
			holds: func(f *Filter) bool {
				told := slices.Contains(f.settings.GetResponseAttributes(), "upstream.address") || f.forwards("envoy.lb")
				return !f.Route && f.showsResponses() && !told
			},
		},
	}
}

// Lint finds what is questionable in the ext_proc filters of a gateway.
func Lint(filters []Filter) []policy.Finding {
	var findings []policy.Finding
	for _, r := range Rules() {
		if r.holds == nil && len(filters) == 0 {
			findings = append(findings, r.finding("http_filters"))
		}
	}
	for i := range filters {
		where := fmt.Sprintf("ext_proc filter at line %d", filters[i].Line)
		if filters[i].Route {
			where = fmt.Sprintf("ext_proc settings of a route at line %d", filters[i].Line)
		}
		for _, r := range Rules() {
			if r.holds != nil && r.holds(&filters[i]) {
				findings = append(findings, r.finding(where))
			}
		}
	}
	return findings
}

func (r *Rule) finding(where string) policy.Finding {
	return policy.Finding{Code: r.Code, Severity: r.Severity, Where: where, Explanation: r.Explanation, Fix: r.Fix}
}

// IsEnvoy reports whether a file is an Envoy configuration, or the dump of one by
// Envoy's admin endpoint, by the keys at its top.
func IsEnvoy(data []byte) bool {
	var top struct {
		StaticResources  yaml.Node `yaml:"static_resources"`
		DynamicResources yaml.Node `yaml:"dynamic_resources"`
		Resources        yaml.Node `yaml:"resources"`
		Configs          yaml.Node `yaml:"configs"`
	}
	if yaml.Unmarshal(data, &top) != nil {
		return false
	}
	return !top.StaticResources.IsZero() || !top.DynamicResources.IsZero() || !top.Resources.IsZero() || !top.Configs.IsZero()
}

// The types of an ext_proc filter's settings, and of those that a route puts in
// their place.
const (
	filterType = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
	routeType  = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
)

// Filters reads the ext_proc filters of an Envoy configuration in YAML or JSON,
// wherever they stand in it: in a bootstrap, in resources, in a dump.
func Filters(data []byte) ([]Filter, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	var filters []Filter
	var errs []error
	visit(&root, func(n *yaml.Node) {
		kind := member(n, "@type")
		if kind == nil {
			return
		}
		f, err := filterOf(n, kind.Value)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %s: %w", n.Line, kind.Value, err))
		} else if f != nil {
			filters = append(filters, *f)
		}
	})
	return filters, errors.Join(errs...)
}

// filterOf reads the settings at n if they are those of an ext_proc filter.
func filterOf(n *yaml.Node, kind string) (*Filter, error) {
	switch {
	case strings.HasSuffix(kind, "/"+filterType):
		settings := &extprocv3.ExternalProcessor{}
		if err := decode(n, settings, "processing_mode", "failure_mode_allow", "metadata_options", "response_attributes"); err != nil {
			return nil, err
		}
		return &Filter{Line: n.Line, mode: settings.GetProcessingMode(), settings: settings}, nil
	case strings.HasSuffix(kind, "/"+routeType):
		overrides := &extprocv3.ExtProcOverrides{}
		under := member(n, "overrides")
		if under == nil {
			return nil, nil
		}
		if err := decode(under, overrides, "processing_mode"); err != nil || overrides.GetProcessingMode() == nil {
			return nil, err
		}
		return &Filter{Line: n.Line, Route: true, mode: overrides.GetProcessingMode()}, nil
	default:
		return nil, nil
	}
}

// decode reads the named members of a mapping. The others may hold types that
// only Envoy knows.
func decode(n *yaml.Node, into proto.Message, names ...string) error {
	kept := map[string]any{}
	for _, name := range names {
		if v := member(n, name); v != nil {
			var value any
			if err := v.Decode(&value); err != nil {
				return err
			}
			kept[name] = value
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, into)
}

// member is the value of a mapping's key, in either spelling that Envoy takes:
// processing_mode, processingMode.
func member(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if strings.EqualFold(strings.ReplaceAll(n.Content[i].Value, "_", ""), strings.ReplaceAll(name, "_", "")) {
			return n.Content[i+1]
		}
	}
	return nil
}

// visit calls see for each mapping of a document. Aliases are not followed: what
// they stand for is visited where it is written.
func visit(n *yaml.Node, see func(*yaml.Node)) {
	if n.Kind == yaml.MappingNode {
		see(n)
	}
	for _, child := range n.Content {
		visit(child, see)
	}
}

// showsResponses reports whether the picker sees response headers, showsBodies
// whether it sees response bodies.
func (f *Filter) showsResponses() bool {
	return f.mode.GetResponseHeaderMode() != extprocv3.ProcessingMode_SKIP
}

func (f *Filter) showsBodies() bool {
	return f.mode.GetResponseBodyMode() != extprocv3.ProcessingMode_NONE
}

func (f *Filter) forwards(namespace string) bool {
	return slices.Contains(f.settings.GetMetadataOptions().GetForwardingNamespaces().GetUntyped(), namespace)
}
