package extproc

import (
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Numbers of the fields that are encoded here, by message.
const (
	// envoy.service.ext_proc.v3.ProcessingResponse
	requestHeadersField  protowire.Number = 1
	responseHeadersField protowire.Number = 2
	requestBodyField     protowire.Number = 3
	responseBodyField    protowire.Number = 4

	// HeadersResponse and BodyResponse
	commonField protowire.Number = 1

	// CommonResponse
	headerMutationField protowire.Number = 2
	bodyMutationField   protowire.Number = 3

	// HeaderMutation
	setHeadersField protowire.Number = 1

	// BodyMutation and StreamedBodyResponse
	streamedField     protowire.Number = 3
	streamedBodyField protowire.Number = 1
	streamedEndField  protowire.Number = 2

	// envoy.config.core.v3.HeaderValueOption and HeaderValue
	optionHeaderField   protowire.Number = 1
	optionActionField   protowire.Number = 3
	headerKeyField      protowire.Number = 1
	headerRawValueField protowire.Number = 3
)

// answer is an answer to headers or to a body, taken apart for encoding. Lengths
// come before what they are of, so they are summed up from the inside first; then
// everything is written once, from the outside.
type answer struct {
	// field tells what is answered, as the oneof's field.
	field protowire.Number
	// common is nil where the answer is empty, headers and body where they are
	// not changed.
	common  *extprocv3.CommonResponse
	headers *extprocv3.HeaderMutation
	body    *extprocv3.StreamedBodyResponse
	// extra is what is encoded already, setMetadata's dynamic metadata.
	extra []byte
	// Lengths of the messages' contents in bytes, from the outside to the inside.
	responseSize, commonSize, headersSize, mutationSize, bodySize int
}

// encode encodes an answer, or declines to. Larger ones get a buffer of gRPC's
// pool, as they do from the generic codec.
func encode(msg *extprocv3.ProcessingResponse) (mem.BufferSlice, bool) {
	a, ok := takeApart(msg)
	if !ok {
		return nil, false
	}
	size := a.measure()
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(a.appendTo(make([]byte, 0, size)))}, true
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	*b = a.appendTo((*b)[:0])
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, true
}

// takeApart reports false for what is not one of the usual answers, in whatever
// part of it.
func takeApart(msg *extprocv3.ProcessingResponse) (a answer, ok bool) {
	if msg.DynamicMetadata != nil || msg.TypedDynamicMetadata != nil || msg.ModeOverride != nil ||
		msg.OverrideMessageTimeout != nil || msg.ServerWindowUpdate != nil ||
		msg.RequestDrain || msg.RequestDrainRequests || msg.RequestDrainResponses { //nolint:staticcheck // what is set must not get lost, deprecated or not
		return a, false
	}
	a.extra = msg.ProtoReflect().GetUnknown()
	switch m := msg.Response.(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		a.field = requestHeadersField
		a.common, ok = commonOfHeaders(m.RequestHeaders)
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		a.field = responseHeadersField
		a.common, ok = commonOfHeaders(m.ResponseHeaders)
	case *extprocv3.ProcessingResponse_RequestBody:
		a.field = requestBodyField
		a.common, ok = commonOfBody(m.RequestBody)
	case *extprocv3.ProcessingResponse_ResponseBody:
		a.field = responseBodyField
		a.common, ok = commonOfBody(m.ResponseBody)
	}
	if !ok || a.common == nil {
		return a, ok
	}
	if c := a.common; c.Status != 0 || c.Trailers != nil || c.ClearRouteCache || !known(c) {
		return a, false
	}
	if a.headers = a.common.HeaderMutation; a.headers != nil {
		if len(a.headers.RemoveHeaders) > 0 || !known(a.headers) {
			return a, false
		}
		for _, set := range a.headers.SetHeaders {
			if !usualHeader(set) {
				return a, false
			}
		}
	}
	if mutation := a.common.BodyMutation; mutation != nil {
		streamed, ok := mutation.Mutation.(*extprocv3.BodyMutation_StreamedResponse)
		if !ok || streamed.StreamedResponse == nil || !known(mutation) {
			return a, false
		}
		a.body = streamed.StreamedResponse
		if b := a.body; b.EndOfStreamWithoutMessage || b.GrpcMessageCompressed || b.DrainComplete || !known(b) {
			return a, false
		}
	}
	return a, true
}

func commonOfHeaders(r *extprocv3.HeadersResponse) (common *extprocv3.CommonResponse, ok bool) {
	if r == nil || !known(r) {
		return nil, false
	}
	return r.Response, true
}

func commonOfBody(r *extprocv3.BodyResponse) (common *extprocv3.CommonResponse, ok bool) {
	if r == nil || !known(r) {
		return nil, false
	}
	return r.Response, true
}

func usualHeader(set *corev3.HeaderValueOption) bool {
	//nolint:staticcheck // The deprecated field must be seen, to be left to the generic codec.
	if set == nil || set.Append != nil || set.KeepEmptyValue || !known(set) {
		return false
	}
	h := set.Header
	return h != nil && h.Value == "" && utf8.ValidString(h.Key) && known(h)
}

// known reports that the message has no fields that its type does not know.
func known(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) == 0 }

// measure sums up the lengths, and returns that of the whole.
func (a *answer) measure() int {
	if a.headers != nil {
		for _, set := range a.headers.SetHeaders {
			a.headersSize += sizeMessage(setHeadersField, optionSize(set))
		}
		a.commonSize += sizeMessage(headerMutationField, a.headersSize)
	}
	if a.body != nil {
		if n := len(a.body.Body); n > 0 {
			a.bodySize += sizeMessage(streamedBodyField, n)
		}
		if a.body.EndOfStream {
			a.bodySize += protowire.SizeTag(streamedEndField) + 1
		}
		a.mutationSize = sizeMessage(streamedField, a.bodySize)
		a.commonSize += sizeMessage(bodyMutationField, a.mutationSize)
	}
	if a.common != nil {
		a.responseSize = sizeMessage(commonField, a.commonSize)
	}
	return sizeMessage(a.field, a.responseSize) + len(a.extra)
}

func (a *answer) appendTo(b []byte) []byte {
	b = appendLength(b, a.field, a.responseSize)
	if a.common != nil {
		b = appendLength(b, commonField, a.commonSize)
	}
	if a.headers != nil {
		b = appendLength(b, headerMutationField, a.headersSize)
		for _, set := range a.headers.SetHeaders {
			b = appendOption(b, set)
		}
	}
	if a.body != nil {
		b = appendLength(b, bodyMutationField, a.mutationSize)
		b = appendLength(b, streamedField, a.bodySize)
		if n := len(a.body.Body); n > 0 {
			b = appendLength(b, streamedBodyField, n)
			b = append(b, a.body.Body...)
		}
		if a.body.EndOfStream {
			b = protowire.AppendTag(b, streamedEndField, protowire.VarintType)
			b = protowire.AppendVarint(b, 1)
		}
	}
	return append(b, a.extra...)
}

func appendOption(b []byte, set *corev3.HeaderValueOption) []byte {
	h := set.Header
	b = appendLength(b, setHeadersField, optionSize(set))
	b = appendLength(b, optionHeaderField, headerSize(h))
	if h.Key != "" {
		b = appendLength(b, headerKeyField, len(h.Key))
		b = append(b, h.Key...)
	}
	if len(h.RawValue) > 0 {
		b = appendLength(b, headerRawValueField, len(h.RawValue))
		b = append(b, h.RawValue...)
	}
	if action := set.AppendAction; action != 0 {
		b = protowire.AppendTag(b, optionActionField, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(action))
	}
	return b
}

func optionSize(set *corev3.HeaderValueOption) int {
	n := sizeMessage(optionHeaderField, headerSize(set.Header))
	if action := set.AppendAction; action != 0 {
		n += protowire.SizeTag(optionActionField) + protowire.SizeVarint(uint64(action))
	}
	return n
}

func headerSize(h *corev3.HeaderValue) int {
	n := 0
	if h.Key != "" {
		n += sizeMessage(headerKeyField, len(h.Key))
	}
	if len(h.RawValue) > 0 {
		n += sizeMessage(headerRawValueField, len(h.RawValue))
	}
	return n
}

// sizeMessage is the length of a field with a content of so many bytes.
func sizeMessage(field protowire.Number, content int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(content)
}
