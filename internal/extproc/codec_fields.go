package extproc

import "google.golang.org/protobuf/encoding/protowire"

// fields reads the fields of one message, one after the other:
//
//	f := fields{message: b}
//	for f.next() {
//		switch f.tag { ... }
//	}
//	return !f.unusual
//
// It stops at what only a generic decoder should judge: input that is not well
// formed, groups, fixed 32-bit numbers, and a second field of a number that is not
// in repeated. Fields that nobody knows come up as any other.
type fields struct {
	message []byte
	// at is where the next field begins. Places are numbers, not slices: storing a
	// pointer costs several times as much while the garbage collector marks.
	at int
	// repeated has a bit for each field number, up to 63, that may come again.
	repeated, seen uint64
	// tag is the current field's number and wire type, as a tag* constant.
	tag uint64
	// from and to are where its content is if it is length-delimited; number is
	// its content if it is not.
	from, to int
	number   uint64
	// unusual is set where reading has stopped before the end.
	unusual bool
}

// Wire types in tags; a tag is number<<3 | wire type.
const (
	wireVarint  = uint64(protowire.VarintType)
	wireFixed64 = uint64(protowire.Fixed64Type)
	wireBytes   = uint64(protowire.BytesType)
)

// next goes to the next field. It returns false at the end, and where reading
// stops before it.
func (f *fields) next() bool {
	if f.at == len(f.message) {
		return false
	}
	var ok bool
	if f.tag, ok = f.varint(); !ok {
		return f.stop()
	}
	// Numbers above 63 have no bit. None of those is known.
	bit := uint64(1) << (f.tag >> 3)
	if bit&f.seen&^f.repeated != 0 {
		return f.stop()
	}
	f.seen |= bit
	switch f.tag & 7 {
	case wireVarint:
		if f.number, ok = f.varint(); !ok {
			return f.stop()
		}
	case wireBytes:
		length, ok := f.varint()
		if !ok || length > uint64(len(f.message)-f.at) {
			return f.stop()
		}
		f.from, f.to = f.at, f.at+int(length)
		f.at = f.to
	case wireFixed64:
		v, n := protowire.ConsumeFixed64(f.message[f.at:])
		if n < 0 {
			return f.stop()
		}
		f.number = v
		f.at += n
	default:
		return f.stop()
	}
	return true
}

// data is the content of a length-delimited field, as a slice that cannot be
// grown into what follows.
func (f *fields) data() []byte { return f.message[f.from:f.to:f.to] }

func (f *fields) varint() (uint64, bool) {
	// Nearly all tags and lengths are one byte.
	if f.at < len(f.message) && f.message[f.at] < 0x80 {
		v := uint64(f.message[f.at])
		f.at++
		return v, true
	}
	v, n := protowire.ConsumeVarint(f.message[f.at:])
	f.at += max(n, 0)
	return v, n > 0
}

func (f *fields) stop() bool {
	f.unusual = true
	return false
}
