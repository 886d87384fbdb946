package gateway

import (
	"fmt"
	"slices"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/berth-dev/berth/internal/policy"
)

// Filter is what an ext_proc filter in an Envoy configuration lets a picker see
// and do, or what a route changes of that.
type Filter struct {
	// Line is where the settings begin, from 1.
	Line int
	// Route is set for the settings by which a route replaces some of the
	// filter's. What it does not set is nil or false here, and the filter's.
	Route bool

	// disabled is set for a route that switches the filter off.
	disabled bool
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
				m := f.mode().GetRequestBodyMode()
				return f.setsMode() && m != extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && m != extprocv3.ProcessingMode_BUFFERED
			},
		},
		{
			Code: "BERTH102", Severity: policy.SeverityWarning, Title: "response headers are not shown",
			Explanation: "With response_header_mode SKIP the picker never learns who served, with which status, or how requests end: acknowledgements are unreported, outcomes unseen, and the in-flight unit mostly comes back before the replica has answered.",
			Fix:         "Set response_header_mode to SEND.",
			holds:       func(f *Filter) bool { return f.setsMode() && !f.showsResponses() },
		},
		{
			Code: "BERTH103", Severity: policy.SeverityWarning, Title: "the end of responses is not shown",
			Explanation: "With response_body_mode NONE and response trailers skipped the stream of a request ends with its response headers: the in-flight unit comes back then, so that a replica in mid-generation looks free to this picker, and outcomes are unseen. In return, a picker that dies harms no running response.",
			Fix:         "Set response_trailer_mode to SEND, so that the stream ends with the response; or know that load is told by the engines' telemetry alone.",
			holds: func(f *Filter) bool {
				return f.setsMode() && f.showsResponses() && !f.showsBodies() && !f.showsTrailers()
			},
		},
		{
			Code: "BERTH104", Severity: policy.SeverityNote, Title: "the end of responses comes without its cause",
			Explanation: "With response_body_mode NONE the stream ends with the response, and does not say why: a client that leaves in mid-response, or a replica that dies, is recorded as complete. Usage, TTFT and error events inside responses are not seen.",
			Fix:         "Nothing, where that is enough: it is cheaper. Otherwise set response_body_mode to FULL_DUPLEX_STREAMED.",
			holds: func(f *Filter) bool {
				return f.setsMode() && f.showsResponses() && !f.showsBodies() && f.showsTrailers()
			},
		},
		{
			Code: "BERTH105", Severity: policy.SeverityWarning, Title: "the gateway fails open",
			Explanation: "With failure_mode_allow true, requests without a body (and, in some body modes, with one) pass without a pick while the picker is away. Where they go is up to the cluster's own load balancing, past screening.",
			Fix:         "Set failure_mode_allow to false, in the overrides of routes too, or see that the cluster serves nobody without a pick, as the one that berthctl gateway writes does.",
			holds:       func(f *Filter) bool { return f.settings.GetFailureModeAllow() },
		},
		{
			Code: "BERTH106", Severity: policy.SeverityNote, Title: "the gateway's subset does not reach the picker",
			Explanation: "metadata_options.forwarding_namespaces.untyped lacks envoy.lb.subset_hint: a subset that a filter sets there is not seen, and not obeyed.",
			Fix:         "Nothing, if no filter sets a subset. Otherwise add the namespace.",
			holds:       func(f *Filter) bool { return f.withholds("envoy.lb.subset_hint") },
		},
		{
			Code: "BERTH107", Severity: policy.SeverityNote, Title: "the picker is not told who served",
			Explanation: "Neither is upstream.address among response_attributes, nor envoy.lb among the forwarded namespaces: acknowledgements are unreported, and a response from outside the screened set is not noticed.",
			Fix:         "Add upstream.address, upstream.request_attempt_count and response.code_details to response_attributes.",
			holds: func(f *Filter) bool {
				told := slices.Contains(f.settings.GetResponseAttributes(), "upstream.address") || !f.withholds("envoy.lb")
				return !f.Route && f.showsResponses() && !told
			},
		},
		{
			Code: "BERTH108", Severity: policy.SeverityNote, Title: "a route without a picker",
			Explanation: "With disabled true the picker is not asked on this route: where its requests go is up to the cluster's own load balancing, past screening. The clusters that berthctl gateway writes answer 503 to requests without a pick.",
			Fix:         "Nothing, if the route leads to no replica of the pool. Otherwise remove disabled.",
			holds:       func(f *Filter) bool { return f.disabled },
		},
		{
			Code: "BERTH109", Severity: policy.SeverityWarning, Title: "the picker's answers are ignored",
			Explanation: "With observability_mode true the gateway shows requests to the picker and does not wait for its answers, nor act on them: every request passes without a pick, refused ones too, and the picker counts load that it did not place.",
			Fix:         "Set observability_mode to false.",
			holds:       func(f *Filter) bool { return f.settings.GetObservabilityMode() },
		},
		{
			Code: "BERTH110", Severity: policy.SeverityWarning, Title: "request headers are not shown",
			Explanation: "With request_header_mode SKIP requests are routed before the picker knows of them: where they go is up to the cluster's own load balancing, past screening. What the picker is shown first, a body or a response, is nothing that a conversation can begin with, and the client gets 500, even where a replica has answered.",
			Fix:         "Set request_header_mode to SEND. Where a filter skips all for routes to set modes of their own, as some control planes write it, see that each route to the pool does.",
			holds: func(f *Filter) bool {
				return f.mode().GetRequestHeaderMode() == extprocv3.ProcessingMode_SKIP
			},
		},
		{
			Code: "BERTH111", Severity: policy.SeverityNote, Title: "what the picker writes into metadata is dropped",
			Explanation: "metadata_options.receiving_namespaces.untyped lacks envoy.lb or berth.dev. Without envoy.lb the destination reaches the gateway in a header only: override_host by metadata and an ORIGINAL_DST cluster with a metadata_key find none. Without berth.dev access logs have no acknowledgement.",
			Fix:         "Add envoy.lb, unless the gateway takes the destination from the header, and berth.dev, unless nothing logs it.",
			holds:       func(f *Filter) bool { return f.drops("envoy.lb") || f.drops("berth.dev") },
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

// mode is nil for a route that keeps the filter's; setsMode says so.
func (f *Filter) mode() *extprocv3.ProcessingMode { return f.settings.GetProcessingMode() }

func (f *Filter) setsMode() bool { return !f.Route || f.mode() != nil }

// showsResponses reports whether the picker sees response headers, showsBodies
// whether it sees response bodies, and showsTrailers whether it sees that they
// ended.
func (f *Filter) showsResponses() bool {
	return f.mode().GetResponseHeaderMode() != extprocv3.ProcessingMode_SKIP
}

func (f *Filter) showsBodies() bool {
	return f.mode().GetResponseBodyMode() != extprocv3.ProcessingMode_NONE
}

func (f *Filter) showsTrailers() bool {
	return f.mode().GetResponseTrailerMode() == extprocv3.ProcessingMode_SEND
}

// withholds reports whether metadata in a namespace is kept from the picker. A
// route's list replaces the filter's whole.
func (f *Filter) withholds(namespace string) bool {
	listed := f.settings.GetMetadataOptions().GetForwardingNamespaces()
	return (!f.Route || listed != nil) && !slices.Contains(listed.GetUntyped(), namespace)
}

// drops reports whether metadata that the picker writes in a namespace is lost.
func (f *Filter) drops(namespace string) bool {
	listed := f.settings.GetMetadataOptions().GetReceivingNamespaces()
	return (!f.Route || listed != nil) && !slices.Contains(listed.GetUntyped(), namespace)
}
