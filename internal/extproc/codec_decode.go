package extproc

import (
	"math"
	"slices"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Tags of the fields that are decoded here, by message; see fields.
const (
	// envoy.service.ext_proc.v3.ProcessingRequest
	tagRequestHeaders  = 2<<3 | wireBytes
	tagResponseHeaders = 3<<3 | wireBytes
	tagRequestBody     = 4<<3 | wireBytes
	tagResponseBody    = 5<<3 | wireBytes
	tagMetadataContext = 8<<3 | wireBytes
	tagAttributes      = 9<<3 | wireBytes
	tagProtocolConfig  = 11<<3 | wireBytes

	// HttpHeaders
	tagHeaderMap          = 1<<3 | wireBytes
	tagHeadersEndOfStream = 3<<3 | wireVarint

	// HttpBody
	tagBody            = 1<<3 | wireBytes
	tagBodyEndOfStream = 2<<3 | wireVarint

	// ProtocolConfiguration
	tagRequestBodyMode  = 1<<3 | wireVarint
	tagResponseBodyMode = 2<<3 | wireVarint
	tagSendBodyEarly    = 3<<3 | wireVarint

	// envoy.config.core.v3.HeaderMap and HeaderValue
	tagHeader   = 1<<3 | wireBytes
	tagKey      = 1<<3 | wireBytes
	tagValue    = 2<<3 | wireBytes
	tagRawValue = 3<<3 | wireBytes

	// Metadata
	tagFilterMetadata = 1<<3 | wireBytes

	// Entries of maps, and google.protobuf.Struct and Value
	tagEntryKey    = 1<<3 | wireBytes
	tagEntryValue  = 2<<3 | wireBytes
	tagStructField = 1<<3 | wireBytes
	tagNumberValue = 2<<3 | wireFixed64
	tagStringValue = 3<<3 | wireBytes
	tagBoolValue   = 4<<3 | wireVarint
	tagStructValue = 5<<3 | wireBytes
	tagListValue   = 6<<3 | wireBytes
)

// Numbers of the fields that repeat, as bits for fields.repeated.
const (
	repeatsFirst      = 1 << 1
	repeatsAttributes = 1 << (tagAttributes >> 3)
)

// nested bounds how deep a value may be that is left to protobuf, within its own
// bound for the whole message.
const nested = 100

// decoder decodes requests, or declines to. Its methods return false for what
// they do not know, or that is not valid.
type decoder struct {
	// names are texts that come again and again: of headers, attributes and
	// namespaces.
	names map[string]string
}

func newDecoder() decoder {
	d := decoder{names: map[string]string{}}
	for _, name := range []string{
		":authority", ":method", ":path", ":protocol", ":scheme", ":status",
		"accept", "accept-encoding", "accept-language", "authorization", "cache-control", "connection",
		"content-encoding", "content-length", "content-type", "cookie", "date", "host", "openai-organization",
		"openai-processing-ms", "openai-project", "openai-version", "origin", "referer", "sec-fetch-mode", "server",
		"te", "traceparent", "tracestate", "transfer-encoding", "upgrade", "user-agent", "vary",
		"x-api-key", "x-b3-sampled", "x-b3-spanid", "x-b3-traceid",
		"x-envoy-attempt-count", "x-envoy-decorator-operation", "x-envoy-expected-rq-timeout-ms", "x-envoy-external-address",
		"x-envoy-internal", "x-envoy-original-path", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id",
		"x-envoy-upstream-service-time", "x-forwarded-client-cert", "x-forwarded-for", "x-forwarded-host",
		"x-forwarded-port", "x-forwarded-proto", "x-real-ip", "x-request-id",
		"x-stainless-arch", "x-stainless-async", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version",
		"x-stainless-read-timeout", "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
		intentHeader, "x-selected-model", destinationKey, servedKey, subsetKey,
		lbNamespace, subsetNamespace, berthNamespace, acknowledgement, attributesKey,
		"upstream.address", "upstream.request_attempt_count", "upstream.transport_failure_reason",
		"response.code_details", "via_upstream",
	} {
		d.names[name] = name
	}
	return d
}

// decode decodes a whole message. The result refers to b, which must never
// change. Of several kinds in one message the last counts, as in any oneof.
func (d *decoder) decode(b []byte, msg *extprocv3.ProcessingRequest) bool {
	msg.Reset()
	f := fields{message: b, repeated: repeatsAttributes}
	for f.next() {
		switch f.tag {
		case tagRequestHeaders, tagResponseHeaders:
			if !d.headers(f.data(), f.tag, msg) {
				return false
			}
		case tagRequestBody, tagResponseBody:
			if !d.body(f.data(), f.tag, msg, len(b)) {
				return false
			}
		case tagMetadataContext:
			msg.MetadataContext = &corev3.Metadata{}
			if !d.metadata(f.data(), msg.MetadataContext) {
				return false
			}
		case tagAttributes:
			if !d.structEntry(f.data(), &msg.Attributes) {
				return false
			}
		case tagProtocolConfig:
			msg.ProtocolConfig = &extprocv3.ProtocolConfiguration{}
			if !d.protocolConfig(f.data(), msg.ProtocolConfig) {
				return false
			}
		default:
			return false
		}
	}
	return !f.unusual
}

// headers decodes HttpHeaders of the kind that the tag names.
func (d *decoder) headers(b []byte, tag uint64, msg *extprocv3.ProcessingRequest) bool {
	m := &struct {
		request  extprocv3.ProcessingRequest_RequestHeaders
		response extprocv3.ProcessingRequest_ResponseHeaders
		headers  extprocv3.HttpHeaders
		list     corev3.HeaderMap
	}{}
	if tag == tagRequestHeaders {
		m.request.RequestHeaders = &m.headers
		msg.Request = &m.request
	} else {
		m.response.ResponseHeaders = &m.headers
		msg.Request = &m.response
	}
	f := fields{message: b}
	for f.next() {
		switch f.tag {
		case tagHeaderMap:
			m.headers.Headers = &m.list
			if !d.headerMap(f.data(), &m.list) {
				return false
			}
		case tagHeadersEndOfStream:
			m.headers.EndOfStream = f.number != 0
		default:
			return false
		}
	}
	return !f.unusual
}

// headerMap decodes a list of headers, which lie side by side.
func (d *decoder) headerMap(b []byte, to *corev3.HeaderMap) bool {
	n := 0
	f := fields{message: b, repeated: repeatsFirst}
	for f.next() {
		if f.tag != tagHeader {
			return false
		}
		n++
	}
	if f.unusual {
		return false
	}
	if n == 0 {
		return true
	}
	headers := make([]corev3.HeaderValue, n)
	to.Headers = make([]*corev3.HeaderValue, n)
	f = fields{message: b, repeated: repeatsFirst}
	for i := range headers {
		f.next()
		to.Headers[i] = &headers[i]
		if !d.header(f.data(), &headers[i]) {
			return false
		}
	}
	return true
}

func (d *decoder) header(b []byte, to *corev3.HeaderValue) (ok bool) {
	f := fields{message: b}
	for f.next() {
		switch f.tag {
		case tagKey:
			if to.Key, ok = d.text(f.data()); !ok {
				return false
			}
		case tagValue:
			if to.Value, ok = d.text(f.data()); !ok {
				return false
			}
		case tagRawValue:
			to.RawValue = bytesOf(f.data())
		default:
			return false
		}
	}
	return !f.unusual
}

// body decodes HttpBody of the kind that the tag names, of a message of size
// bytes.
func (d *decoder) body(b []byte, tag uint64, msg *extprocv3.ProcessingRequest, size int) bool {
	m := &struct {
		request  extprocv3.ProcessingRequest_RequestBody
		response extprocv3.ProcessingRequest_ResponseBody
		body     extprocv3.HttpBody
	}{}
	if tag == tagRequestBody {
		m.request.RequestBody = &m.body
		msg.Request = &m.request
	} else {
		m.response.ResponseBody = &m.body
		msg.Request = &m.response
	}
	f := fields{message: b}
	for f.next() {
		switch f.tag {
		case tagBody:
			m.body.Body = bytesOf(f.data())
			if len(f.data()) < size/2 {
				// Bodies are held. What comes with each part, for instance metadata,
				// must not be held with them.
				m.body.Body = slices.Clone(m.body.Body)
			}
		case tagBodyEndOfStream:
			m.body.EndOfStream = f.number != 0
		default:
			return false
		}
	}
	return !f.unusual
}

func (d *decoder) protocolConfig(b []byte, to *extprocv3.ProtocolConfiguration) bool {
	f := fields{message: b}
	for f.next() {
		switch f.tag {
		case tagRequestBodyMode:
			to.RequestBodyMode = extprocfilterv3.ProcessingMode_BodySendMode(f.number)
		case tagResponseBodyMode:
			to.ResponseBodyMode = extprocfilterv3.ProcessingMode_BodySendMode(f.number)
		case tagSendBodyEarly:
			to.SendBodyWithoutWaitingForHeaderResponse = f.number != 0
		default:
			return false
		}
	}
	return !f.unusual
}

func (d *decoder) metadata(b []byte, to *corev3.Metadata) bool {
	f := fields{message: b, repeated: repeatsFirst}
	for f.next() {
		if f.tag != tagFilterMetadata || !d.structEntry(f.data(), &to.FilterMetadata) {
			return false
		}
	}
	return !f.unusual
}

// structEntry decodes an entry of a map of Structs into that map.
func (d *decoder) structEntry(b []byte, to *map[string]*structpb.Struct) bool {
	key, value, ok := d.entry(b)
	if !ok {
		return false
	}
	s := &structpb.Struct{}
	f := fields{message: value, repeated: repeatsFirst}
	for f.next() {
		if f.tag != tagStructField || !d.valueEntry(f.data(), &s.Fields) {
			return false
		}
	}
	if *to == nil {
		*to = map[string]*structpb.Struct{}
	}
	(*to)[key] = s
	return !f.unusual
}

// valueEntry decodes an entry of a Struct into its map.
func (d *decoder) valueEntry(b []byte, to *map[string]*structpb.Value) bool {
	key, value, ok := d.entry(b)
	if !ok {
		return false
	}
	v, ok := d.value(value)
	if *to == nil {
		*to = map[string]*structpb.Value{}
	}
	(*to)[key] = v
	return ok
}

// entry splits an entry of a map.
func (d *decoder) entry(b []byte) (key string, value []byte, ok bool) {
	f := fields{message: b}
	for f.next() {
		switch f.tag {
		case tagEntryKey:
			if key, ok = d.text(f.data()); !ok {
				return "", nil, false
			}
		case tagEntryValue:
			value = f.data()
		default:
			return "", nil, false
		}
	}
	return key, value, !f.unusual
}

// value decodes a Value that has one field.
func (d *decoder) value(b []byte) (*structpb.Value, bool) {
	f := fields{message: b}
	if !f.next() || f.at < len(b) {
		return nil, false
	}
	switch f.tag {
	case tagStringValue:
		v := &struct {
			value structpb.Value
			kind  structpb.Value_StringValue
		}{}
		text, ok := d.text(f.data())
		v.kind.StringValue, v.value.Kind = text, &v.kind
		return &v.value, ok
	case tagNumberValue:
		return structpb.NewNumberValue(math.Float64frombits(f.number)), true
	case tagBoolValue:
		return structpb.NewBoolValue(f.number != 0), true
	case tagStructValue, tagListValue:
		v := &structpb.Value{}
		return v, proto.UnmarshalOptions{RecursionLimit: nested}.Unmarshal(b, v) == nil
	default:
		return nil, false
	}
}

// text returns a text, which must be valid UTF-8: one of the names, which takes no
// memory, or a copy, so that a text that is kept does not keep the message.
func (d *decoder) text(b []byte) (string, bool) {
	if name, ok := d.names[string(b)]; ok {
		return name, true
	}
	return string(b), utf8.Valid(b)
}

// bytesOf is a field's content as protobuf has it: nil if there is none.
func bytesOf(data []byte) []byte {
	if len(data) == 0 {
		return nil
	}
	return data
}
