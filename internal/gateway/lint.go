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

	// at is the filter's place among what is read of the file.
	at int
	// other is set for a filter that asks another service than the picker: one of
	// several, of which others deal in the picker's metadata.
	other bool
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

	// holds is about each filter that asks the picker, find about a configuration as a
	// whole: it returns the places. The policy is nil where none is known. Both are
	// nil in the rule that is about a configuration without a filter.
	holds func(*Filter) bool
	find  func(*Configuration, *policy.Policy) []string
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
		{
			Code: "BERTH112", Severity: policy.SeverityWarning, Title: "a client can write routing intents",
			Explanation: "A header_to_metadata filter copies a header, or a cookie, into the namespace berth.dev, which the picker trusts, and early_header_mutation of the same listener does not remove what clients send under that name: wherever the filters in between set nothing, the client's word is the intent.",
			Fix:         "Remove the header in early_header_mutation_extensions, which run before every filter, so that only a filter in between can set it. Take no intent from a cookie.",
			find:        (*Configuration).clientsWrite,
		},
		{
			Code: "BERTH113", Severity: policy.SeverityWarning, Title: "routing intents do not reach the picker",
			Explanation: "metadata_options.forwarding_namespaces.untyped lacks berth.dev, while a filter writes intents into that namespace, or the policy takes them from there: the picker sees none, and no constraint is obeyed.",
			Fix:         "Add berth.dev to the forwarded namespaces of the picker's filter, and of routes that replace them. If no intents are meant to come, set intent.metadata to false.",
			find:        (*Configuration).intentsWithheld,
		},
		{
			Code: "BERTH114", Severity: policy.SeverityWarning, Title: "another service reads requests behind the picker",
			Explanation: "An ext_proc filter that is shown request bodies stands behind the picker's. A semantic router there chooses the model after the replica was chosen: the picker screens for the model that the client has named, and what the router writes into the body may be served by nobody there.",
			Fix:         "Put the router's filter in front of the picker's. Nothing, if the service changes neither the model nor where requests go.",
			find:        (*Configuration).behindThePicker,
		},
		{
			Code: "BERTH115", Severity: policy.SeverityWarning, Title: "routing intents are written at the wrong place",
			Explanation: "A header_to_metadata filter that writes intents stands behind the picker's filter, which has decided by then; or it copies x-selected-model and stands in front of a router's filter, which has not set it yet. Either way there is no intent.",
			Fix:         "Put it behind the router's filter and in front of the picker's.",
			find:        (*Configuration).intentsMisplaced,
		},
		{
			Code: "BERTH116", Severity: policy.SeverityWarning, Title: "the router fails open",
			Explanation: "An ext_proc filter in front of the picker's has failure_mode_allow true: while that service is away requests go on without what it says. The intent is missing then, and with it every hard constraint, such as residency.",
			Fix:         "Set failure_mode_allow to false; or intent.required to true in the policy, by which the picker refuses requests without an intent.",
			find:        (*Configuration).routersFailOpen,
		},
		{
			Code: "BERTH117", Severity: policy.SeverityWarning, Title: "a subset is set and kept from the picker",
			Explanation: "A filter writes into envoy.lb.subset_hint, and the picker's filter does not forward that namespace: the subset is not obeyed.",
			Fix:         "Add envoy.lb.subset_hint to metadata_options.forwarding_namespaces.untyped of the picker's filter.",
			find:        (*Configuration).subsetWithheld,
		},
		{
			Code: "BERTH118", Severity: policy.SeverityWarning, Title: "fallbacks for a cluster that takes one address",
			Explanation: "The policy has gateway.fallbacks above 0, so that the destination is a list. An ORIGINAL_DST cluster takes one address and answers 503 to a list, and the configuration has no override_host policy, which would walk it.",
			Fix:         "Set gateway.fallbacks to 0, or use a cluster with override_host, as berthctl gateway writes it with --kind override-host.",
			find:        (*Configuration).fallbacksToOneAddress,
		},
		{
			Code: "BERTH119", Severity: policy.SeverityWarning, Title: "fallbacks without retries",
			Explanation: "Fallbacks are reached by retries. No retry_policy of the configuration has a num_retries as large as gateway.fallbacks of the policy, so that the end of the list, or all of it, is never used.",
			Fix:         "Give the pool's route a retry_policy with num_retries equal to gateway.fallbacks and a request_body_buffer_limit that holds the bodies to be sent again, as berthctl gateway writes it; or lower gateway.fallbacks.",
			find:        (*Configuration).fallbacksWithoutRetries,
		},
		{
			Code: "BERTH120", Severity: policy.SeverityWarning, Title: "plain headers are trusted and not removed",
			Explanation: "The policy has trust.plainHeaders true, so that the picker believes headers by their names, and early_header_mutation of a listener with the picker's filter does not remove what clients send under one of those names.",
			Fix:         "Remove the header in early_header_mutation_extensions; or set trust.plainHeaders to false and let header_to_metadata copy it into berth.dev, as berthctl gateway writes it with --semantic-router.",
			find:        (*Configuration).plainHeadersKept,
		},
		{
			Code: "BERTH121", Severity: policy.SeverityWarning, Title: "signed intents are removed",
			Explanation: "The policy verifies signed intents, which come in the header x-berth-intent, and early_header_mutation of a listener with the picker's filter removes that header: no signed intent arrives.",
			Fix:         "Remove x-berth-decision, x-berth-rung, x-berth-acted, x-berth-policy, x-berth-reason and x-berth-replica by name in place of the prefix x-berth-, as berthctl gateway writes it for such a policy. Leave intent.signedHeader out, if no signed intents are meant to come.",
			find:        (*Configuration).signedIntentsRemoved,
		},
		{
			Code: "BERTH122", Severity: policy.SeverityWarning, Title: "a key of an intent that means nothing",
			Explanation: "A filter writes a key into the namespace berth.dev that is none of an intent, by which the picker refuses each such request with intent_malformed; or a requirement on an attribute of berth.dev that no replica has, by which none is found. A header_to_metadata rule without a key has the header's name as its key.",
			Fix:         "Correct the key: logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens, requirement.CLASS.KEY, or intent for a whole one. Attributes of one's own have a prefix of one's own, or none.",
			find:        (*Configuration).unknownKeys,
		},
	}
}

// Lint finds what is questionable in a gateway; in front of a picker with policy p,
// if that is known. It may be nil.
func (c *Configuration) Lint(p *policy.Policy) []policy.Finding {
	var findings []policy.Finding
	rules := Rules()
	for _, r := range rules {
		if r.holds == nil && r.find == nil && len(c.Filters) == 0 {
			findings = append(findings, r.finding("http_filters"))
		}
	}
	for i := range c.Filters {
		f := &c.Filters[i]
		for _, r := range rules {
			if !f.other && r.holds != nil && r.holds(f) {
				findings = append(findings, r.finding(f.where()))
			}
		}
	}
	for _, r := range rules {
		if r.find == nil {
			continue
		}
		for _, where := range r.find(c, p) {
			findings = append(findings, r.finding(where))
		}
	}
	return findings
}

func (f *Filter) where() string {
	if f.Route {
		return fmt.Sprintf("ext_proc settings of a route at line %d", f.Line)
	}
	return fmt.Sprintf("ext_proc filter at line %d", f.Line)
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
