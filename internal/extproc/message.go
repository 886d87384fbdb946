package extproc

import (
	"encoding/json"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/berth-dev/berth/internal/screen"
)

// Names of the endpoint picker protocol and of Berth's own headers.
const (
	destinationKey    = "x-gateway-destination-endpoint"
	servedKey         = "x-gateway-destination-endpoint-served"
	subsetKey         = "x-gateway-destination-endpoint-subset"
	lbNamespace       = "envoy.lb"
	subsetNamespace   = "envoy.lb.subset_hint"
	berthNamespace    = "berth.dev"
	acknowledgement   = "acknowledgement"
	attributesKey     = "envoy.filters.http.ext_proc"
	reasonHeader      = "x-berth-reason"
	decisionHeader    = "x-berth-decision"
	intentHeader      = "x-berth-intent"
	maxRequestIDBytes = 256
	connectMethod     = "CONNECT"
)

// headerValue reads either of the two places a gateway may put a value in.
func headerValue(h *corev3.HeaderValue) string {
	if len(h.GetRawValue()) > 0 {
		return string(h.GetRawValue())
	}
	return h.GetValue()
}

// headerMutation sets headers; none is no mutation. Everything that the message is
// made of lies side by side: an allocation for each part of each header was a good
// part of what an answer cost.
func headerMutation(headers []Header) *extprocv3.HeaderMutation {
	if len(headers) == 0 {
		return nil
	}
	size := 0
	for _, h := range headers {
		size += len(h.Value)
	}
	values := make([]byte, 0, size)
	parts := make([]struct {
		option corev3.HeaderValueOption
		header corev3.HeaderValue
	}, len(headers))
	m := &extprocv3.HeaderMutation{SetHeaders: make([]*corev3.HeaderValueOption, len(headers))}
	for i, h := range headers {
		start := len(values)
		values = append(values, h.Value...)
		part := &parts[i]
		part.header.Key, part.header.RawValue = h.Name, values[start:len(values):len(values)]
		part.option.Header = &part.header
		part.option.AppendAction = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
		m.SetHeaders[i] = &part.option
	}
	return m
}

// destinationMutation says in headers what setMetadata says in metadata, since
// gateways read one or the other.
//
// A signed intent does not go on: whoever runs a replica could use it again.
func destinationMutation(d Decision, signed bool) *extprocv3.HeaderMutation {
	headers := append(make([]Header, 0, 4), Header{destinationKey, d.Destination()})
	m := headerMutation(append(headers, d.RequestHeaders()...))
	if signed {
		m.RemoveHeaders = []string{intentHeader}
	}
	return m
}

func immediate(r *Refusal) *extprocv3.ProcessingResponse {
	headers := []Header{{"content-type", "application/json"}, {reasonHeader, r.Reason}}
	if r.DecisionID != "" {
		headers = append(headers, Header{decisionHeader, r.DecisionID})
	}
	if r.RetryAfter > 0 {
		seconds := int64((r.RetryAfter + 999_999_999) / 1_000_000_000)
		headers = append(headers, Header{"retry-after", strconv.FormatInt(seconds, 10)})
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(r.Status)},
			Headers: headerMutation(headers),
			Body:    refusalBody(r),
			Details: "berth_" + r.Reason,
		},
	}}
}

// refusalBody has the shape that OpenAI clients expect of an error.
func refusalBody(r *Refusal) []byte {
	var doc struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	doc.Error.Message = r.Message
	doc.Error.Type = errorType(r.Status)
	doc.Error.Code = r.Reason
	body, err := json.Marshal(doc)
	if err != nil {
		return []byte(`{"error":{"message":"internal error","type":"server_error","code":"internal"}}`)
	}
	return body
}

func errorType(status int) string {
	switch {
	case status == 403:
		return "permission_error"
	case status == 404:
		return "not_found_error"
	case status == 429:
		return "rate_limit_error"
	case status < 500:
		return "invalid_request_error"
	default:
		return "server_error"
	}
}

// subsetOf reads the gateway's subset. A value of the wrong type is a subset
// that nobody is in; only an absent key is no subset.
func subsetOf(metadata *corev3.Metadata) *screen.Subset {
	v, ok := metadata.GetFilterMetadata()[subsetNamespace].GetFields()[subsetKey]
	if !ok {
		return nil
	}
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return screen.SplitSubset(kind.StringValue)
	case *structpb.Value_ListValue:
		values := kind.ListValue.GetValues()
		entries := make([]string, len(values))
		for i, e := range values {
			// A member that is no string stays as an empty entry, which matches
			// nothing.
			entries[i] = e.GetStringValue()
		}
		return screen.NewSubset(entries)
	default:
		return screen.NewSubset(nil)
	}
}

// readIntent takes over what somebody else has set in Berth's own namespace. It
// returns true where that is more, or another thing, than was said before.
func (c *conversation) readIntent(metadata *corev3.Metadata) (news bool) {
	say := func(key string, value *structpb.Value) {
		if old, ok := c.said[key]; ok && proto.Equal(old, value) {
			return
		}
		if c.said == nil {
			c.said = map[string]*structpb.Value{}
		}
		news = true
		c.said[key] = value
	}
	for key, value := range metadata.GetFilterMetadata()[berthNamespace].GetFields() {
		if key != acknowledgement {
			say(key, value)
		}
	}
	if _, typed := metadata.GetTypedFilterMetadata()[berthNamespace]; typed {
		// Nothing of that form is an intent, and it must not be taken for none.
		say("typed_filter_metadata", structpb.NewNullValue())
	}
	return news
}

// intentMetadata is what was said, in the form that decisions are told it.
func (c *conversation) intentMetadata() map[string]any {
	if c.said == nil {
		return nil
	}
	members := make(map[string]any, len(c.said))
	for key, value := range c.said {
		members[key] = tree(value)
	}
	return members
}

// tree is a value as encoding/json has it, but that a number stays one even if it is
// none: AsInterface makes a text of it.
func tree(v *structpb.Value) any {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return kind.NumberValue
	case *structpb.Value_StructValue:
		members := make(map[string]any, len(kind.StructValue.GetFields()))
		for name, member := range kind.StructValue.GetFields() {
			members[name] = tree(member)
		}
		return members
	case *structpb.Value_ListValue:
		items := make([]any, len(kind.ListValue.GetValues()))
		for i, item := range kind.ListValue.GetValues() {
			items[i] = tree(item)
		}
		return items
	default:
		return v.AsInterface()
	}
}

func servedOf(msg *extprocv3.ProcessingRequest) Served {
	var s Served
	attributes := msg.GetAttributes()[attributesKey].GetFields()
	s.Address = attributes["upstream.address"].GetStringValue()
	s.Attempts = int(number(attributes["upstream.request_attempt_count"]))
	s.Details = attributes["response.code_details"].GetStringValue()
	s.TransportFailure = attributes["upstream.transport_failure_reason"].GetStringValue()
	lb := msg.GetMetadataContext().GetFilterMetadata()[lbNamespace].GetFields()
	if host := lb[servedKey].GetStringValue(); host != "" {
		s.Address = host
	}
	return s
}

// number reads a value that gateways send as a number or as its text.
func number(v *structpb.Value) float64 {
	if text := v.GetStringValue(); text != "" {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return v.GetNumberValue()
}
