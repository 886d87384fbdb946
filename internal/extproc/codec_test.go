package extproc

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

const fullDuplex = extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED

// rawHeaders are headers as Envoy sends them: with raw values.
func rawHeaders(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func aStruct(members map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: members}
}

// usualRequests are messages of gateways: Envoy's in full duplex mode, with the
// subset that some send with each message, and what others put elsewhere.
func usualRequests() map[string]*extprocv3.ProcessingRequest {
	subset := func(v *structpb.Value) *corev3.Metadata {
		return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			subsetNamespace: aStruct(map[string]*structpb.Value{subsetKey: v}),
		}}
	}
	return map[string]*extprocv3.ProcessingRequest{
		"request_headers": {
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: rawHeaders(
				":method", "POST", ":path", "/v1/chat/completions", ":scheme", "http", ":authority", "models.example.com",
				"content-type", "application/json", "content-length", "1024", "accept", "text/event-stream",
				"user-agent", "openai-python/1.61.0", "authorization", "Bearer sk-0123456789abcdef",
				"x-forwarded-for", "10.1.2.3", "x-forwarded-proto", "http", "x-envoy-expected-rq-timeout-ms", "15000",
				"x-request-id", "5d1f3a52-2f57-4f5e-9a35-0ddc0a6a39b1",
			)}},
			MetadataContext: &corev3.Metadata{},
			ProtocolConfig:  &extprocv3.ProtocolConfiguration{RequestBodyMode: fullDuplex, ResponseBodyMode: fullDuplex},
		},
		"request_headers with a subset, names that nobody knows and values as text": {
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
				EndOfStream: true,
				Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
					{Key: ":method", Value: "GET"}, {Key: "X-Tenant", Value: "blå"}, {Key: "x-empty"}, {},
				}},
			}},
			MetadataContext: subset(structpb.NewStringValue("10.0.0.1:8000,10.0.0.2:8000")),
			ProtocolConfig:  &extprocv3.ProtocolConfiguration{SendBodyWithoutWaitingForHeaderResponse: true},
		},
		"request_body": {
			Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
				Body: []byte(`{"model": "llama", "prompt": "a prompt of some length"}`), EndOfStream: true,
			}},
			MetadataContext: &corev3.Metadata{},
		},
		"request_body with a subset": {
			Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("{")}},
			MetadataContext: subset(structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
				structpb.NewStringValue("10.0.0.1:8000"), structpb.NewStringValue("10.0.0.2:8000"),
			}})),
		},
		"request_body, empty": {Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{EndOfStream: true}}},
		"response_headers": {
			Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: rawHeaders(
				":status", "200", "content-type", "text/event-stream", "date", "Mon, 05 Jan 2026 10:00:00 GMT",
				"server", "uvicorn", "x-envoy-upstream-service-time", "12",
			)}},
			MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				lbNamespace: aStruct(map[string]*structpb.Value{servedKey: structpb.NewStringValue("10.0.0.1:8000")}),
				"other":     aStruct(map[string]*structpb.Value{"on": structpb.NewBoolValue(true)}),
				"empty":     {},
			}},
			Attributes: map[string]*structpb.Struct{attributesKey: aStruct(map[string]*structpb.Value{
				"upstream.address":               structpb.NewStringValue("10.0.0.1:8000"),
				"upstream.request_attempt_count": structpb.NewNumberValue(1),
				"response.code_details":          structpb.NewStringValue("via_upstream"),
			})},
		},
		"response_body": {Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{
			Body: []byte(`data: {"choices": []}`),
		}}},
	}
}

// unusualRequests are valid, and of kinds that are left to the generic codec.
func unusualRequests() map[string]*extprocv3.ProcessingRequest {
	return map[string]*extprocv3.ProcessingRequest{
		"nothing":          {ObservabilityMode: true},
		"request_trailers": {Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: rawHeaders("x-sum", "1")}}},
		"body of a kind that gRPC has": {Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			EndOfStreamWithoutMessage: true,
		}}},
		"an attribute that is null": {Attributes: map[string]*structpb.Struct{"a": aStruct(map[string]*structpb.Value{"b": structpb.NewNullValue()})}},
	}
}

func wireOf(t testing.TB, msg proto.Message) []byte {
	t.Helper()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

// inBuffers is a message as gRPC hands it over: in several buffers.
func inBuffers(wire []byte) mem.BufferSlice {
	var data mem.BufferSlice
	for len(wire) > 0 {
		n := min(len(wire), 1+len(wire)/2)
		data = append(data, mem.SliceBuffer(bytes.Clone(wire[:n])))
		wire = wire[n:]
	}
	return data
}

// reuse is what gRPC does with buffers that were read.
func reuse(data mem.BufferSlice) {
	for _, buffer := range data {
		b := buffer.ReadOnlyData()
		for i := range b {
			b[i] = 0xff
		}
	}
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// mustDecodeAlike decodes wire both ways, into a message that holds something
// already, and compares when gRPC's buffers hold something else.
func mustDecodeAlike(t fataler, c *codec, wire []byte) {
	want := &extprocv3.ProcessingRequest{}
	wantErr := proto.Unmarshal(wire, want)
	got := &extprocv3.ProcessingRequest{ObservabilityMode: true, Attributes: map[string]*structpb.Struct{"old": {}}}
	data := inBuffers(wire)
	err := c.Unmarshal(data, got)
	reuse(data)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("decoding %x: error %v, protobuf's is %v", wire, err, wantErr)
	}
	if err == nil && !proto.Equal(got, want) {
		t.Fatalf("decoding %x: got %v, want %v", wire, got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, requests := range []map[string]*extprocv3.ProcessingRequest{usualRequests(), unusualRequests()} {
		for _, msg := range requests {
			f.Add(wireOf(f, msg))
		}
	}
	for _, wire := range oddities() {
		// The deep ones take most of the time, and lead nowhere new.
		if len(wire) < 1000 {
			f.Add(wire)
		}
	}
	c := newCodec()
	f.Fuzz(func(t *testing.T, wire []byte) { mustDecodeAlike(t, c, wire) })
}

func TestUsualMessagesAreNotLeftToTheGenericCodec(t *testing.T) {
	c := newCodec()
	for name, msg := range usualRequests() {
		got := &extprocv3.ProcessingRequest{}
		if !c.decode(wireOf(t, msg), got) {
			t.Errorf("%s is not decoded", name)
		} else if !proto.Equal(got, msg) {
			t.Errorf("%s is decoded to %v, want %v", name, got, msg)
		}
	}
	for name, msg := range usualAnswers() {
		if _, ok := encode(msg); !ok {
			t.Errorf("%s is not encoded", name)
		}
	}
}

func TestUnusualMessagesAreDecodedAllTheSame(t *testing.T) {
	c := newCodec()
	for name, msg := range unusualRequests() {
		if c.decode(wireOf(t, msg), &extprocv3.ProcessingRequest{}) {
			t.Errorf("%s: decoded, although nothing here knows it", name)
		}
		mustDecodeAlike(t, c, wireOf(t, msg))
	}
}

// field encodes a length-delimited field with these contents, one after the other.
func field(number protowire.Number, contents ...[]byte) []byte {
	b := protowire.AppendTag(nil, number, protowire.BytesType)
	return protowire.AppendBytes(b, bytes.Join(contents, nil))
}

// deepLists is an attribute that is a list of a list and so on, which takes two
// messages for each.
func deepLists(depth int) []byte {
	var lengths []int
	for length := 0; len(lengths) < 2*depth; length = sizeMessage(1, length) {
		lengths = append(lengths, length)
	}
	var value []byte
	for i := len(lengths) - 1; i >= 0; i -= 2 {
		value = appendLength(value, 6, lengths[i])
		value = appendLength(value, 1, lengths[i-1])
	}
	return field(9, field(1, []byte("a")), field(2, field(1, field(1, []byte("deep")), field(2, value))))
}

// oddities are encodings of which protobuf has its own idea.
func oddities() map[string][]byte {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	varint := func(number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
	}
	text := func(number protowire.Number, s string) []byte { return field(number, []byte(s)) }
	header := func(parts ...[]byte) []byte { return field(2, field(1, field(1, parts...))) }
	attribute := func(entry ...[]byte) []byte {
		return field(9, text(1, "a"), field(2, field(1, entry...)))
	}
	group := join(protowire.AppendTag(nil, 1, protowire.StartGroupType), protowire.AppendTag(nil, 1, protowire.EndGroupType))
	return map[string][]byte{
		"empty":                             {},
		"kinds: two":                        join(field(2), field(4, text(1, "body"))),
		"kinds: the same twice":             join(field(4, text(1, "first")), field(4, varint(2, 1))),
		"kinds: of the wrong type":          varint(2, 1),
		"headers: two lists":                field(2, field(1, header()), field(1, field(1, text(1, "x")))),
		"headers: both values":              header(text(1, ":path"), text(2, "/a"), text(3, "/b")),
		"headers: a name twice":             header(text(1, "a"), text(1, "b")),
		"headers: a name of the wrong type": header(varint(1, 7)),
		"headers: a name that is no UTF-8":  header(text(1, "x-\xff")),
		"headers: a value that is no UTF-8": header(text(1, "x"), text(2, "\xff")),
		"headers: raw bytes":                header(text(1, "x"), text(3, "\xff\x00")),
		"headers: attributes in them":       field(2, field(2, text(1, "a"), field(2))),
		"headers: an unknown field":         header(text(1, "x"), text(77, "y")),
		"end of stream: 2":                  field(2, varint(3, 2)),
		"end of stream: 0":                  field(4, varint(2, 0)),
		"body: twice":                       field(4, text(1, "first"), text(1, "second")),
		"body: longer than the message":     {4<<3 | 2, 5, 1<<3 | 2, 100, 'a', 'b'},
		"length: overlong":                  {4<<3 | 2, 0x82, 0x80, 0x00, 2 << 3, 1},
		"length: of 64 bits":                append([]byte{4<<3 | 2}, protowire.AppendVarint(nil, 1<<63)...),
		"length: missing":                   {4<<3 | 2},
		"tag: overlong":                     {0x80 | 4<<3 | 2, 0x00, 2, 2 << 3, 1},
		"tag: of more than 64 bits":         bytes.Repeat([]byte{0xff}, 11),
		"tag: number 0":                     {0<<3 | 2, 0},
		"tag: number 64":                    field(64),
		"tag: the greatest number":          field(protowire.MaxValidNumber),
		"tag: a number too great":           join(protowire.AppendVarint(nil, (uint64(protowire.MaxValidNumber)+1)<<3|2), []byte{0}),
		"tag: a reserved wire type":         {2<<3 | 6, 0},
		"unknown: fixed32":                  {15<<3 | 5, 1, 2, 3, 4},
		"unknown: fixed64, cut off":         {15<<3 | 1, 1, 2, 3},
		"group":                             field(2, group),
		"group: not closed":                 protowire.AppendTag(nil, 3, protowire.StartGroupType),
		"group: only the end":               protowire.AppendTag(nil, 3, protowire.EndGroupType),
		"mode: negative":                    field(11, varint(1, ^uint64(0))),
		"mode: unknown":                     field(11, varint(1, 99), varint(2, 1<<40|3)),
		"configuration: twice":              join(field(11, varint(1, 1)), field(11, varint(2, 2))),
		"metadata: typed":                   field(8, field(2, text(1, "a"), field(2))),
		"metadata: twice":                   join(field(8, field(1, text(1, "a"), field(2))), field(8, field(1, text(1, "b"), field(2)))),
		"map: the same key twice":           join(attribute(text(1, "b")), attribute(text(1, "c"), field(2, varint(4, 1)))),
		"map: the value before the key":     attribute(field(2, varint(4, 1)), text(1, "b")),
		"map: no key":                       attribute(field(2, varint(4, 1))),
		"map: no value":                     attribute(text(1, "b")),
		"map: an empty value":               attribute(text(1, "b"), field(2)),
		"map: two values":                   attribute(text(1, "b"), field(2, varint(4, 1)), field(2, text(3, "x"))),
		"map: a key that is no UTF-8":       attribute(text(1, "\xff"), field(2, varint(4, 1))),
		"value: two kinds":                  attribute(text(1, "b"), field(2, varint(4, 1), text(3, "x"))),
		"value: a text that is no UTF-8":    attribute(text(1, "b"), field(2, text(3, "\xff"))),
		"value: not a number":               attribute(text(1, "b"), field(2, join([]byte{2<<3 | 1}, protowire.AppendFixed64(nil, 0x7ff8000000000001)))),
		"value: a number cut off":           attribute(text(1, "b"), field(2, []byte{2<<3 | 1, 0, 0})),
		"value: lists, 30 deep":             deepLists(30),
		"value: lists, 300 deep":            deepLists(300),
		"value: lists, 4900 deep":           deepLists(4900),
		"value: lists, 5100 deep":           deepLists(5100),
	}
}

func TestOddEncodingsAreJudgedAsProtobufJudgesThem(t *testing.T) {
	c := newCodec()
	for name, wire := range oddities() {
		t.Run(name, func(t *testing.T) { mustDecodeAlike(t, c, wire) })
	}
	// Somewhere among these is the depth that is too much for the whole message.
	for depth := 4993; depth <= 5000; depth++ {
		mustDecodeAlike(t, c, deepLists(depth))
	}
	// Both happens: some of them are valid, others are not.
	for name, valid := range map[string]bool{
		"kinds: two": true, "length: overlong": true, "headers: raw bytes": true, "value: lists, 4900 deep": true,
		"headers: a name that is no UTF-8": false, "value: lists, 5100 deep": false, "length: of 64 bits": false,
	} {
		if err := c.Unmarshal(inBuffers(oddities()[name]), &extprocv3.ProcessingRequest{}); (err == nil) != valid {
			t.Errorf("%s: error %v, want valid %t", name, err, valid)
		}
	}
}

// A fill draws messages of any type.
type fill struct {
	t *rapid.T
	// usual has the full names of the fields that are set in half of the messages.
	usual map[protoreflect.FullName]bool
	// strange sets others in some, and gives some messages fields of a number that
	// nobody knows.
	strange bool
	// invalid lets texts be no UTF-8.
	invalid bool
}

// oneIn2To draws true once in two to the power of n times.
func (f fill) oneIn2To(n int) bool {
	for range n {
		if !rapid.Bool().Draw(f.t, "coin") {
			return false
		}
	}
	return true
}

func (f fill) message(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if depth == 0 || !f.wants(fd) {
			continue
		}
		if oneof := fd.ContainingOneof(); oneof != nil && m.WhichOneof(oneof) != nil && f.oneIn2To(1) {
			continue
		}
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range rapid.IntRange(0, 4).Draw(f.t, "length") {
				list.Append(f.value(list.NewElement, fd, depth))
			}
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			for range rapid.IntRange(0, 4).Draw(f.t, "length") {
				key := protoreflect.ValueOfString(f.text()).MapKey()
				entries.Set(key, f.value(entries.NewValue, fd.MapValue(), depth))
			}
		default:
			m.Set(fd, f.value(func() protoreflect.Value { return m.NewField(fd) }, fd, depth))
		}
	}
	if f.strange && f.oneIn2To(7) {
		m.SetUnknown(field(1234, []byte("from the future")))
	}
}

func (f fill) wants(fd protoreflect.FieldDescriptor) bool {
	if f.usual[fd.FullName()] {
		return f.oneIn2To(1)
	}
	return f.strange && f.oneIn2To(4)
}

func (f fill) value(empty func() protoreflect.Value, fd protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		v := empty()
		f.message(v.Message(), depth-1)
		return v
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(f.t, "bytes"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(f.t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32Range(0, 200).Draw(f.t, "enum")))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.Float64().Draw(f.t, "double"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(f.t, "int64"))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(f.t, "int32"))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(f.t, "uint32"))
	default:
		f.t.Fatalf("%s is of kind %s, which this generator does not know", fd.FullName(), fd.Kind())
		return protoreflect.Value{}
	}
}

func (f fill) text() string {
	if f.invalid && f.oneIn2To(6) {
		return "\xff"
	}
	return rapid.OneOf(rapid.SampledFrom([]string{"", ":path", "x-request-id", attributesKey}), rapid.String()).Draw(f.t, "text")
}

func named(message string, fields ...string) (names []protoreflect.FullName) {
	for _, f := range fields {
		names = append(names, protoreflect.FullName(message+"."+f))
	}
	return names
}

func set(lists ...[]protoreflect.FullName) map[protoreflect.FullName]bool {
	all := map[protoreflect.FullName]bool{}
	for _, list := range lists {
		for _, name := range list {
			all[name] = true
		}
	}
	return all
}

const extprocPackage = "envoy.service.ext_proc.v3."

// decodedFields is all that is decoded without the generic codec; values may also
// be lists and structures.
var decodedFields = set(
	named(extprocPackage+"ProcessingRequest", "request_headers", "response_headers", "request_body", "response_body",
		"metadata_context", "attributes", "protocol_config"),
	named(extprocPackage+"HttpHeaders", "headers", "end_of_stream"),
	named(extprocPackage+"HttpBody", "body", "end_of_stream"),
	named(extprocPackage+"ProtocolConfiguration", "request_body_mode", "response_body_mode", "send_body_without_waiting_for_header_response"),
	named("envoy.config.core.v3.HeaderMap", "headers"),
	named("envoy.config.core.v3.HeaderValue", "key", "value", "raw_value"),
	named("envoy.config.core.v3.Metadata", "filter_metadata"),
	named("google.protobuf.Struct", "fields"),
)

// encodedFields is all that is encoded without the generic codec.
var encodedFields = set(
	named(extprocPackage+"ProcessingResponse", "request_headers", "response_headers", "request_body", "response_body"),
	named(extprocPackage+"HeadersResponse", "response"),
	named(extprocPackage+"BodyResponse", "response"),
	named(extprocPackage+"CommonResponse", "header_mutation", "body_mutation"),
	named(extprocPackage+"HeaderMutation", "set_headers"),
	named(extprocPackage+"BodyMutation", "streamed_response"),
	named(extprocPackage+"StreamedBodyResponse", "body", "end_of_stream"),
	named("envoy.config.core.v3.HeaderValueOption", "header", "append_action"),
	named("envoy.config.core.v3.HeaderValue", "key", "raw_value"),
)

// depth is how deep messages are filled; it reaches the texts of values.
const depth = 8

func TestDecodingIsWhatProtobufDoes(t *testing.T) {
	c := newCodec()
	t.Run("for any message", rapid.MakeCheck(func(t *rapid.T) {
		msg := &extprocv3.ProcessingRequest{}
		fill{t: t, usual: decodedFields, strange: true}.message(msg.ProtoReflect(), depth)
		wire, err := proto.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		switch place := rapid.IntRange(0, max(0, len(wire)-1)).Draw(t, "place"); rapid.IntRange(0, 5).Draw(t, "damage") {
		case 1:
			// A message after a message is one that is merged.
			wire = append(wire, wire...)
		case 2:
			wire = wire[:place]
		case 3:
			if len(wire) > 0 {
				wire[place] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			}
		}
		mustDecodeAlike(t, c, wire)
	}))
	t.Run("without falling back, for all that is known", rapid.MakeCheck(func(t *rapid.T) {
		msg := &extprocv3.ProcessingRequest{}
		fill{t: t, usual: decodedFields}.message(msg.ProtoReflect(), depth)
		for _, s := range msg.GetAttributes() {
			for name := range s.GetFields() {
				s.Fields[name] = structpb.NewStringValue(rapid.String().Draw(t, "value"))
			}
		}
		for _, s := range msg.GetMetadataContext().GetFilterMetadata() {
			for name := range s.GetFields() {
				s.Fields[name] = structpb.NewNumberValue(rapid.Float64().Draw(t, "value"))
			}
		}
		wire, err := proto.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		got := &extprocv3.ProcessingRequest{}
		if !c.decode(wire, got) {
			t.Fatalf("%v is not decoded", msg)
		}
		if !proto.Equal(got, msg) {
			t.Fatalf("got %v, want %v", got, msg)
		}
	}))
}

func TestDecodedMessagesOutliveTheBuffersOfGRPC(t *testing.T) {
	c := newCodec()
	for name, msg := range usualRequests() {
		data := inBuffers(wireOf(t, msg))
		got := &extprocv3.ProcessingRequest{}
		if err := c.Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		reuse(data)
		if !proto.Equal(got, msg) {
			t.Errorf("%s: when gRPC uses its buffers again, the message becomes %v", name, got)
		}
	}
}

func TestPartsOfAMessageDoNotRunIntoEachOther(t *testing.T) {
	c := newCodec()
	want := usualRequests()["request_headers"]
	got := &extprocv3.ProcessingRequest{}
	if err := c.Unmarshal(inBuffers(wireOf(t, want)), got); err != nil {
		t.Fatal(err)
	}
	for _, h := range got.GetRequestHeaders().GetHeaders().GetHeaders() {
		_ = append(h.RawValue, "and more of it"...)
	}
	if !proto.Equal(got, want) {
		t.Errorf("values that are made longer change others: %v", got)
	}
}

func TestSmallBodiesDoNotKeepLargeMessages(t *testing.T) {
	c := newCodec()
	for _, test := range []struct {
		name     string
		body     int
		metadata int
		refers   bool
	}{
		{"a body by itself stays where it is", 1000, 0, true},
		{"a body stays beside metadata of its length", 1000, 900, true},
		{"a body is copied from among longer metadata", 1000, 1200, false},
		{"one byte is copied", 1, 100, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			wire := wireOf(t, &extprocv3.ProcessingRequest{
				Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: bytes.Repeat([]byte("b"), test.body)}},
				MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
					"n": aStruct(map[string]*structpb.Value{"k": structpb.NewStringValue(strings.Repeat("m", test.metadata))}),
				}},
			})
			msg := &extprocv3.ProcessingRequest{}
			if !c.decode(wire, msg) {
				t.Fatal("not decoded")
			}
			body := msg.GetRequestBody().GetBody()
			if len(body) != test.body || cap(body) > 2*test.body+64 {
				t.Errorf("a body of %d bytes with room for %d, want %d bytes", len(body), cap(body), test.body)
			}
			clear(wire)
			if got := body[0] == 0; got != test.refers {
				t.Errorf("the body refers to its message of %d bytes: %t, want %t", len(wire), got, test.refers)
			}
		})
	}
}

// usualAnswers are what a usual exchange is answered with.
func usualAnswers() map[string]*extprocv3.ProcessingResponse {
	const destination = "10.0.0.1:8000,10.0.0.2:8000"
	mutation := headerMutation([]Header{{destinationKey, destination}, {decisionHeader, "01a228ef-16be-798d-893d-7e7d44c4eb70"}, {"x-empty", ""}})
	requestHeaders := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation},
		}},
	}
	setMetadata(requestHeaders, destination, []Member{Text("rung", "full"), Number("candidates", 10)})
	responseHeaders := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation},
		}},
	}
	setMetadata(responseHeaders, "", []Member{Text("acted", "confirmed")})
	return map[string]*extprocv3.ProcessingResponse{
		"request_headers":         requestHeaders,
		"request_headers, empty":  {Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}},
		"response_headers":        responseHeaders,
		"request_body":            {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamed(bytes.Repeat([]byte("b"), 1000), false)}},
		"request_body, large":     {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: streamed(bytes.Repeat([]byte("b"), 100_000), true)}},
		"request_body, unchanged": {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}},
		"response_body, the end":  {Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: streamed(nil, true)}},
	}
}

// mustEncodeAlike encodes both ways and compares what a gateway reads.
func mustEncodeAlike(t fataler, c *codec, msg *extprocv3.ProcessingResponse) {
	wire, wantErr := proto.Marshal(msg)
	data, err := c.Marshal(msg)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("encoding %v: error %v, protobuf's is %v", msg, err, wantErr)
	}
	if err != nil {
		return
	}
	got, want := &extprocv3.ProcessingResponse{}, &extprocv3.ProcessingResponse{}
	if err := proto.Unmarshal(wire, want); err != nil {
		t.Fatalf("%v", err)
	}
	if err := proto.Unmarshal(data.Materialize(), got); err != nil {
		t.Fatalf("%v is encoded as what cannot be read: %v", msg, err)
	}
	data.Free()
	if !proto.Equal(got, want) {
		t.Fatalf("%v is encoded as %v", want, got)
	}
}

func TestEncodingIsReadAsTheSameMessage(t *testing.T) {
	c := newCodec()
	for name, msg := range usualAnswers() {
		t.Run(name, func(t *testing.T) { mustEncodeAlike(t, c, msg) })
	}
	for name, msg := range map[string]*extprocv3.ProcessingResponse{
		"nothing":    {},
		"a refusal":  immediate(&Refusal{Status: 503, Reason: "pool_empty", Message: "nobody is there"}),
		"no headers": {Response: &extprocv3.ProcessingResponse_RequestHeaders{}},
		"no header in an option": {Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{}}}},
		}}},
		"a name that is no UTF-8": {Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: headerMutation([]Header{{"x-\xff", ""}})},
		}}},
		"a negative action": {Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
				{Header: &corev3.HeaderValue{Key: "x"}, AppendAction: -1},
			}}},
		}}},
	} {
		t.Run(name, func(t *testing.T) { mustEncodeAlike(t, c, msg) })
	}
	t.Run("for any message", rapid.MakeCheck(func(t *rapid.T) {
		msg := &extprocv3.ProcessingResponse{}
		fill{t: t, usual: encodedFields, strange: true, invalid: true}.message(msg.ProtoReflect(), depth)
		mustEncodeAlike(t, c, msg)
	}))
	t.Run("without falling back, for all that is made here", rapid.MakeCheck(func(t *rapid.T) {
		var headers []Header
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			headers = append(headers, Header{rapid.String().Draw(t, "name"), rapid.String().Draw(t, "value")})
		}
		body := streamed(rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "body"), rapid.Bool().Draw(t, "end"))
		changed := &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: headerMutation(headers)}}
		msg := &extprocv3.ProcessingResponse{}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			msg.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: changed}
		case 1:
			msg.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: changed}
		case 2:
			msg.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}
		case 3:
			msg.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: body}
		case 4:
			body.Response.HeaderMutation, body.Response.BodyMutation = headerMutation(headers), nil
			msg.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: body}
		}
		if rapid.Bool().Draw(t, "metadata") {
			setMetadata(msg, "10.0.0.1:8000", []Member{Text("rung", rapid.String().Draw(t, "member"))})
		}
		if _, ok := encode(msg); !ok {
			t.Fatalf("%v is not encoded", msg)
		}
		mustEncodeAlike(t, c, msg)
	}))
}

// What a later version of the protocol adds to an answer must not get lost.
func TestEncodingLosesNoFieldOfAnAnswer(t *testing.T) {
	c := newCodec()
	for name, usual := range usualAnswers() {
		for i, part := range partsOf(usual.ProtoReflect()) {
			again := func() (*extprocv3.ProcessingResponse, protoreflect.Message) {
				msg := proto.CloneOf(usual)
				return msg, partsOf(msg.ProtoReflect())[i]
			}
			fields := part.Descriptor().Fields()
			for j := range fields.Len() {
				t.Run(name+"/"+string(fields.Get(j).FullName()), func(t *testing.T) {
					msg, part := again()
					setSomething(t, part, fields.Get(j))
					mustEncodeAlike(t, c, msg)
				})
			}
			msg, part := again()
			part.SetUnknown(append(part.GetUnknown(), field(1234, []byte("from the future"))...))
			mustEncodeAlike(t, c, msg)
		}
	}
}

// partsOf lists m and the messages in it.
func partsOf(m protoreflect.Message) []protoreflect.Message {
	parts := []protoreflect.Message{m}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		switch v := m.Get(fd); {
		case !m.Has(fd) || fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for j := range v.List().Len() {
				parts = append(parts, partsOf(v.List().Get(j).Message())...)
			}
		default:
			parts = append(parts, partsOf(v.Message())...)
		}
	}
	return parts
}

// setSomething sets a field to something that is not its zero value.
func setSomething(t *testing.T, m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	t.Helper()
	switch {
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		entries.Set(protoreflect.ValueOfString("key").MapKey(), entries.NewValue())
	case fd.IsList() && fd.Kind() == protoreflect.MessageKind:
		m.Mutable(fd).List().AppendMutable()
	case fd.IsList():
		m.Mutable(fd).List().Append(protoreflect.ValueOfString("x-gone"))
	case fd.Kind() == protoreflect.MessageKind:
		m.Set(fd, m.NewField(fd))
	case fd.Kind() == protoreflect.StringKind:
		m.Set(fd, protoreflect.ValueOfString("text"))
	case fd.Kind() == protoreflect.BytesKind:
		m.Set(fd, protoreflect.ValueOfBytes([]byte("bytes")))
	case fd.Kind() == protoreflect.BoolKind:
		m.Set(fd, protoreflect.ValueOfBool(true))
	case fd.Kind() == protoreflect.EnumKind:
		m.Set(fd, protoreflect.ValueOfEnum(1))
	default:
		t.Fatalf("%s is of kind %s, which this test does not know", fd.FullName(), fd.Kind())
	}
}

func TestOtherTypesAreLeftToTheGenericCodec(t *testing.T) {
	c := newCodec()
	want := &healthv1.HealthCheckRequest{Service: "a service"}
	data, err := c.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &healthv1.HealthCheckRequest{}
	if err := c.Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := c.Marshal("not a message"); err == nil {
		t.Error("what is no message is encoded")
	}
}

func TestAllocationsDoNotGrowWithHeaders(t *testing.T) {
	c := newCodec()
	requests, answers := usualRequests(), usualAnswers()
	for name, most := range map[string]float64{
		// The message as bytes; the kind with its parts; headers and the list of
		// them; metadata; configuration.
		"request_headers": 6,
		// The message as bytes, the kind with its parts, metadata.
		"request_body":  3,
		"response_body": 2,
	} {
		data := mem.BufferSlice{mem.SliceBuffer(wireOf(t, requests[name]))}
		got := testing.AllocsPerRun(100, func() {
			msg := extprocv3.ProcessingRequest{}
			if err := c.Unmarshal(data, &msg); err != nil {
				t.Fatal(err)
			}
		})
		// The message itself is one.
		if got > most+1 {
			t.Errorf("decoding %s takes %v allocations, want at most %v", name, got, most+1)
		}
	}
	for _, name := range []string{"request_headers", "response_headers", "request_body"} {
		got := testing.AllocsPerRun(100, func() {
			data, ok := encode(answers[name])
			if !ok {
				t.Fatal("not encoded")
			}
			data.Free()
		})
		// The bytes, the buffer around them, the list of it.
		if got > 3 {
			t.Errorf("encoding %s takes %v allocations, want at most 3", name, got)
		}
	}
}

// BenchmarkCodec runs beside gRPC's own codec.
func BenchmarkCodec(b *testing.B) {
	own := newCodec()
	requests, answers := usualRequests(), usualAnswers()
	for _, c := range []struct {
		name string
		encoding.CodecV2
	}{{"own", own}, {"usual", own.usual}} {
		for _, name := range []string{"request_headers", "request_body", "response_headers", "response_body"} {
			b.Run("decode/"+name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				data := mem.BufferSlice{mem.SliceBuffer(wireOf(b, requests[name]))}
				for b.Loop() {
					if err := c.Unmarshal(data, &extprocv3.ProcessingRequest{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		for _, name := range []string{"request_headers", "request_body", "response_headers"} {
			b.Run("encode/"+name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					data, err := c.Marshal(answers[name])
					if err != nil {
						b.Fatal(err)
					}
					data.Free()
				}
			})
		}
	}
}
