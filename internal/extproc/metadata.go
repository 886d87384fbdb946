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
// Lengths come before what they are of, so they are summed up from the inside
// first; then everything is written once, from the outside.
func setMetadata(msg *extprocv3.ProcessingResponse, destination string, members []Member) {
	ack := 0
	for i := range members {
		ack += entrySize(members[i].name, members[i].valueSize())
	}
	berth := entrySize(acknowledgement, structSize(ack))
	size := entrySize(berthNamespace, structSize(berth))
	picked := Text(destinationKey, destination)
	lb := entrySize(picked.name, picked.valueSize())
	if destination != "" {
		size += entrySize(lbNamespace, structSize(lb))
	}

	b := make([]byte, 0, protowire.SizeTag(dynamicMetadataField)+protowire.SizeBytes(size))
	b = appendLength(b, dynamicMetadataField, size)
	if destination != "" {
		b = appendStruct(b, lbNamespace, lb)
		b = picked.appendTo(b)
	}
	b = appendStruct(b, berthNamespace, berth)
	b = appendStruct(b, acknowledgement, ack)
	for i := range members {
		b = members[i].appendTo(b)
	}
	msg.ProtoReflect().SetUnknown(b)
}

// appendTo appends the member as an entry of a Struct's map.
func (m *Member) appendTo(b []byte) []byte {
	b = appendEntry(b, m.name, m.valueSize())
	if m.numeric {
		b = protowire.AppendTag(b, valueNumber, protowire.Fixed64Type)
		return protowire.AppendFixed64(b, math.Float64bits(m.number))
	}
	b = protowire.AppendTag(b, valueString, protowire.BytesType)
	return protowire.AppendString(b, m.text)
}

// valueSize is the length of the member's Value.
func (m *Member) valueSize() int {
	if m.numeric {
		return protowire.SizeTag(valueNumber) + protowire.SizeFixed64()
	}
	return protowire.SizeTag(valueString) + protowire.SizeBytes(len(m.text))
}

// appendStruct appends the beginning of an entry whose value is a Struct; entries
// is the length of what must follow.
func appendStruct(b []byte, key string, entries int) []byte {
	b = appendEntry(b, key, structSize(entries))
	return appendLength(b, valueStruct, entries)
}

// structSize is the length of a Value that is a Struct with entries of so many
// bytes.
func structSize(entries int) int {
	return protowire.SizeTag(valueStruct) + protowire.SizeBytes(entries)
}

// appendEntry appends an entry of a Struct's map up to its value, which is value
// bytes long and must follow.
func appendEntry(b []byte, key string, value int) []byte {
	b = appendLength(b, structFields, entryContent(key, value))
	b = protowire.AppendTag(b, entryKey, protowire.BytesType)
	b = protowire.AppendString(b, key)
	return appendLength(b, entryValue, value)
}

// entrySize is the length of an entry of a Struct's map with its value.
func entrySize(key string, value int) int {
	return protowire.SizeTag(structFields) + protowire.SizeBytes(entryContent(key, value))
}

func entryContent(key string, value int) int {
	return protowire.SizeTag(entryKey) + protowire.SizeBytes(len(key)) +
		protowire.SizeTag(entryValue) + protowire.SizeBytes(value)
}

func appendLength(b []byte, field protowire.Number, length int) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(length))
}
