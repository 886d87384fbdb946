package extproc

import (
	"math"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// Member is one member of an acknowledgement: a text or a number.
type Member struct {
	name    string
	text    string
	number  float64
	numeric bool
}

// Text is a member with a text, which must be valid UTF-8.
func Text(name, value string) Member { return Member{name: name, text: value} }

// Number is a member with a number.
func Number(name string, value float64) Member {
	return Member{name: name, number: value, numeric: true}
}

// Field numbers of ProcessingResponse, google.protobuf.Struct, of an entry of
// its map, and of google.protobuf.Value.
const (
	dynamicMetadataField protowire.Number = 8
	structFields         protowire.Number = 1
	entryKey             protowire.Number = 1
	entryValue           protowire.Number = 2
	valueNumber          protowire.Number = 2
	valueString          protowire.Number = 3
	valueStruct          protowire.Number = 5
)

// setMetadata sets the dynamic metadata of an answer: the acknowledgement, and
// the destination if it is not empty.
//
// The Struct is encoded here and attached as a field that the message type does
// not know, which marshals to the same bytes. Going through structpb, whose maps
// take protobuf's slowest path, was a third of what a request cost the picker.
func setMetadata(msg *extprocv3.ProcessingResponse, destination string, members []Member) {
	var scratch [512]byte
	ack := scratch[:0]
	for i := range members {
		ack = appendMember(ack, &members[i])
	}
	namespace := appendStructEntry(make([]byte, 0, len(ack)+64), acknowledgement, ack)

	b := make([]byte, 0, len(namespace)+2*len(destination)+128)
	if destination != "" {
		member := Text(destinationKey, destination)
		var lb [256]byte
		b = appendStructEntry(b, lbNamespace, appendMember(lb[:0], &member))
	}
	b = appendStructEntry(b, berthNamespace, namespace)

	field := make([]byte, 0, len(b)+8)
	field = protowire.AppendTag(field, dynamicMetadataField, protowire.BytesType)
	field = protowire.AppendBytes(field, b)
	msg.ProtoReflect().SetUnknown(field)
}

// appendMember appends an entry of a Struct's map.
func appendMember(b []byte, m *Member) []byte {
	var value [128]byte
	v := value[:0]
	if m.numeric {
		v = protowire.AppendTag(v, valueNumber, protowire.Fixed64Type)
		v = protowire.AppendFixed64(v, math.Float64bits(m.number))
	} else {
		v = protowire.AppendTag(v, valueString, protowire.BytesType)
		v = protowire.AppendString(v, m.text)
	}
	return appendEntry(b, m.name, v)
}

// appendStructEntry appends an entry whose value is a Struct with these encoded
// entries.
func appendStructEntry(b []byte, key string, entries []byte) []byte {
	size := protowire.SizeTag(valueStruct) + protowire.SizeBytes(len(entries))
	v := make([]byte, 0, size)
	v = protowire.AppendTag(v, valueStruct, protowire.BytesType)
	v = protowire.AppendBytes(v, entries)
	return appendEntry(b, key, v)
}

func appendEntry(b []byte, key string, value []byte) []byte {
	size := protowire.SizeTag(entryKey) + protowire.SizeBytes(len(key)) +
		protowire.SizeTag(entryValue) + protowire.SizeBytes(len(value))
	b = protowire.AppendTag(b, structFields, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, entryKey, protowire.BytesType)
	b = protowire.AppendString(b, key)
	b = protowire.AppendTag(b, entryValue, protowire.BytesType)
	return protowire.AppendBytes(b, value)
}
