package ledger

import (
	"bytes"
	"io"
)

// lineWriter writes records as lines and knows which of them the log has got. A
// full disk takes a part of what it is given and fails, in the middle of a line as
// a rule. What is written next then begins with a newline: one line is broken, and
// not the one after it too.
type lineWriter struct {
	w io.Writer
	// text holds the lines that were added and not written yet, as many as lines
	// says. It begins with a newline if torn was set when the first was added.
	text  []byte
	lines int
	// torn tells that the last byte in the log is not a newline.
	torn bool
}

// add appends a record's line to what is written next.
func (l *lineWriter) add(r *Record) {
	if l.lines == 0 && l.torn {
		l.text = append(l.text, '\n')
	}
	l.text = append(r.appendLine(l.text), '\n')
	l.lines++
}

// write writes the lines that were added. The first of them, as many as written
// says, can be read in the log, the other ones failed. A line that lacks its
// newline alone can be read: the newline is the first thing that follows it.
func (l *lineWriter) write() (written, failed int, err error) {
	if l.lines == 0 {
		return 0, 0, nil
	}
	began := l.torn
	n, err := l.put(l.text)
	// A line's newline is its only one: JSON escapes those in texts.
	written = bytes.Count(l.text[:min(n+1, len(l.text))], []byte{'\n'})
	if began {
		written--
	}
	failed = l.lines - written
	l.text, l.lines = l.text[:0], 0
	return written, failed, err
}

// end ends a torn line, so that whoever appends to the same file begins a new one.
func (l *lineWriter) end() {
	if l.torn {
		_, _ = l.put([]byte{'\n'})
	}
}

// put writes p, in several writes if the log takes only a part and does not say
// why, and returns how much of p is in the log.
func (l *lineWriter) put(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var took int
		took, err = l.w.Write(p[n:])
		if err == nil && took <= 0 {
			err = io.ErrShortWrite
		}
		n += max(0, min(took, len(p)-n))
	}
	if n > 0 {
		l.torn = p[n-1] != '\n'
	}
	return n, err
}
