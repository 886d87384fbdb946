package response

import "strings"

// Facts are what an answer has said so far.
type Facts struct {
	// Input, Output and Cached are tokens; a negative count was not stated.
	Input, Output, Cached int64
	// Failed is set by an error that the answer itself carries, whatever the
	// HTTP status was; ErrorCode is its code, 0 if it has none.
	Failed    bool
	ErrorCode int
	// Aborted: the engine ended the generation by itself.
	Aborted bool
	// Finished: an event stream said [DONE]. Nothing comes after it, and clients
	// may leave.
	Finished bool
}

// Form is how an answer is read.
type Form uint8

const (
	// Opaque answers are not read.
	Opaque Form = iota
	// JSON is one document.
	JSON
	// EventStream is one document per server-sent event.
	EventStream
)

// FormOf tells the form by the response's headers. An encoded answer is opaque.
func FormOf(contentType, contentEncoding string) Form {
	if e := strings.TrimSpace(contentEncoding); e != "" && !strings.EqualFold(e, "identity") {
		return Opaque
	}
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	switch {
	case media == "text/event-stream":
		return EventStream
	case media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json"):
		return JSON
	default:
		return Opaque
	}
}

// Observer reads one answer. It is a plain value of fixed size, used by one
// goroutine; make one with NewObserver.
type Observer struct {
	form  Form
	facts Facts
	doc   scanner

	// For event streams: where the current line is, and how much of "data:" it
	// has matched.
	line  lineState
	match int
	// last is how much of the last event's text the line has matched; negative
	// where it says something else.
	last int
	// afterCR: the last byte was a CR, so that an LF now belongs to it.
	afterCR bool
}

type lineState uint8

const (
	// lineStart: matching the field name "data:".
	lineStart lineState = iota
	// lineSpace: the one space after the colon may be skipped.
	lineSpace
	// lineData: the rest is the document.
	lineData
	// lineOther: the rest of the line is of no interest.
	lineOther
)

// NewObserver returns an observer for an answer of this form.
func NewObserver(form Form) Observer {
	o := Observer{form: form, facts: Facts{Input: -1, Output: -1, Cached: -1}}
	o.doc.reset()
	return o
}

// Facts are what the answer has said so far.
func (o *Observer) Facts() Facts { return o.facts }

// Write looks at the next part.
func (o *Observer) Write(part []byte) {
	switch o.form {
	case JSON:
		o.doc.scan(part, &o.facts)
	case EventStream:
		o.events(part)
	}
}

const dataField = "data:"

func (o *Observer) events(part []byte) {
	for len(part) > 0 {
		if o.afterCR {
			o.afterCR = false
			if part[0] == '\n' {
				part = part[1:]
				continue
			}
		}
		end := lineEnd(part)
		o.inLine(part[:end])
		if end == len(part) {
			return
		}
		o.afterCR = part[end] == '\r'
		part = part[end+1:]
		o.endLine()
	}
}

func lineEnd(part []byte) int {
	for i, b := range part {
		if b == '\n' || b == '\r' {
			return i
		}
	}
	return len(part)
}

func (o *Observer) inLine(text []byte) {
	for o.line == lineStart && len(text) > 0 {
		if text[0] != dataField[o.match] {
			o.line = lineOther
			return
		}
		text = text[1:]
		o.match++
		if o.match == len(dataField) {
			o.line = lineSpace
		}
	}
	if o.line == lineSpace && len(text) > 0 {
		if text[0] == ' ' {
			text = text[1:]
		}
		o.line = lineData
	}
	if o.line == lineData {
		o.matchLast(text)
		o.doc.scan(text, &o.facts)
	}
}

// lastEvent is the text of the event that ends a stream.
const lastEvent = "[DONE]"

func (o *Observer) matchLast(text []byte) {
	for _, b := range text {
		if o.last < 0 || o.last == len(lastEvent) || b != lastEvent[o.last] {
			o.last = -1
			return
		}
		o.last++
	}
}

// endLine ends an event at a blank line. Engines put an event's document into
// one data line; one that is spread over several is joined by the standard's
// line break, which between JSON tokens means nothing.
func (o *Observer) endLine() {
	if o.line == lineStart && o.match == 0 {
		o.doc.reset()
	}
	o.facts.Finished = o.facts.Finished || o.last == len(lastEvent)
	o.line, o.match, o.last = lineStart, 0, 0
}
