package ledger

import (
	"encoding/json"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Record is one decision as it is kept: its JSON, with the members that its end
// changes in a text of their own. The ledger changes it, once, when it ends.
type Record struct {
	id string
	// text is the whole record as it was when the request was decided;
	// text[from:to] is what ending replaces once there is one.
	text     []byte
	from, to int
	ending   []byte
	// err is why the record, or its end, could not be written: it holds a number
	// that JSON cannot say.
	err error
}

// newRecord writes a document; buffer is any memory, which it grows as needed.
func newRecord(d *v1alpha1.Decision, buffer *[]byte) *Record {
	r := &Record{id: d.ID}
	o := object{b: append((*buffer)[:0], '{')}
	o.decided(d)
	r.from = len(o.b)
	o.ended(&d.Acknowledgement, d.Outcome)
	r.to = len(o.b)
	o.versions(&d.Versions)
	o.close()
	*buffer = o.b
	r.text, r.err = slices.Clone(o.b), o.err
	return r
}

// encodeEnding writes what Record.end puts in.
func encodeEnding(a *v1alpha1.Acknowledgement, out *v1alpha1.Outcome, buffer *[]byte) ([]byte, error) {
	// It follows other members: a value that is not there calls for the comma.
	o := object{b: append((*buffer)[:0], '0')}
	o.ended(a, out)
	*buffer = o.b
	return slices.Clone(o.b[1:]), o.err
}

// end completes the record. One that could not be written stays as it was.
func (r *Record) end(ending []byte, err error) {
	if err != nil {
		r.err = err
		return
	}
	r.ending = ending
}

// appendLine appends the record's JSON.
func (r *Record) appendLine(b []byte) []byte {
	b = slices.Grow(b, len(r.text)+len(r.ending))
	if r.ending == nil {
		return append(b, r.text...)
	}
	b = append(b, r.text[:r.from]...)
	b = append(b, r.ending...)
	return append(b, r.text[r.to:]...)
}

// recordBytes is what a record takes beside its texts: itself, its id, and its
// entries in the ring.
const recordBytes = 256

func (r *Record) size() int { return recordBytes + len(r.text) + len(r.ending) }

// decode reads the record back into the document that it was made of.
func (r *Record) decode() (*v1alpha1.Decision, error) {
	d := &v1alpha1.Decision{}
	return d, json.Unmarshal(r.appendLine(nil), d)
}
