package response

import "bytes"

// node is a place in a document that something is read at or below.
type node uint8

const (
	// nowhere: nothing below is read.
	nowhere node = iota
	root
	wrapper // message, response
	usage
	details // prompt_tokens_details, input_tokens_details
	failure // error
	choices // the list
	choice  // one of them

	// Leaves.
	input
	output
	cached
	code
	finishReason
)

// member is the node of an object's member.
func (n node) member(key []byte) node {
	switch n {
	case root, wrapper:
		switch string(key) {
		case "usage":
			return usage
		case "error":
			return failure
		}
		if n == root {
			switch string(key) {
			case "message", "response":
				return wrapper
			case "choices":
				return choices
			}
		}
	case usage:
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			return input
		case "completion_tokens", "output_tokens":
			return output
		case "prompt_tokens_details", "input_tokens_details":
			return details
		case "cache_read_input_tokens":
			return cached
		}
	case details:
		if string(key) == "cached_tokens" {
			return cached
		}
	case failure:
		if string(key) == "code" {
			return code
		}
	case choice:
		if string(key) == "finish_reason" {
			return finishReason
		}
	}
	return nowhere
}

// element is the node of a list's elements.
func (n node) element() node {
	if n == choices {
		return choice
	}
	return nowhere
}

// maxNodes is the depth to which places are told apart: choices[].x is the
// deepest. Below, only the depth is counted.
const maxNodes = 5

// maxToken bounds what is kept of a key or a value: the longest key that is read
// has 21 bytes, the longest number 19 digits.
const maxToken = 24

// scanner walks one JSON document byte by byte, in parts of any size. It judges
// no syntax: of a malformed document it reads something or nothing.
type scanner struct {
	// path holds the containers that are open, up to maxNodes; depth counts all.
	path  [maxNodes]frame
	depth int
	// at is the node of the value that comes next.
	at node
	// inString, escaped: inside a string, after a backslash.
	inString, escaped bool
	// isKey: the string is a member's key.
	isKey bool
	// inScalar: inside a number or a literal.
	inScalar bool
	// token is what was kept of the current string or scalar; overflow, that it
	// was longer or had an escape, and is none that is read.
	token    [maxToken]byte
	length   int
	overflow bool
}

type frame struct {
	node   node
	object bool
	// expectKey: in an object, the next string is a key.
	expectKey bool
}

func (s *scanner) reset() { *s = scanner{at: root} }

func (s *scanner) scan(part []byte, facts *Facts) {
	for len(part) > 0 {
		if s.inString {
			part = s.string(part, facts)
			continue
		}
		b := part[0]
		part = part[1:]
		switch b {
		case '"':
			s.startToken()
			s.inString = true
			f := s.top()
			s.isKey = f != nil && f.object && f.expectKey
		case '{', '[':
			s.open(b == '{', facts)
		case '}', ']':
			s.endScalar(facts)
			s.close()
		case ',':
			s.endScalar(facts)
			if f := s.top(); f != nil {
				f.expectKey = f.object
				s.at = f.node.element()
			}
		case ':', ' ', '\t', '\n', '\r':
			s.endScalar(facts)
		default:
			if !s.inScalar {
				s.startToken()
				s.inScalar = true
			}
			s.keep(b)
		}
	}
}

// string takes bytes of a string up to its end.
func (s *scanner) string(part []byte, facts *Facts) []byte {
	for i := 0; i < len(part); i++ {
		b := part[i]
		switch {
		case s.escaped:
			s.escaped = false
		case b == '\\':
			s.escaped, s.overflow = true, true
		case b == '"':
			s.inString = false
			s.endString(facts)
			return part[i+1:]
		default:
			s.keep(b)
			if s.overflow {
				// Nothing of it is read any more: go to what can end it.
				if skip := bytes.IndexAny(part[i:], `"\`); skip < 0 {
					return nil
				} else if skip > 0 {
					i += skip - 1
				}
			}
		}
	}
	return nil
}

func (s *scanner) startToken() { s.length, s.overflow = 0, false }

func (s *scanner) keep(b byte) {
	if s.length == maxToken {
		s.overflow = true
		return
	}
	s.token[s.length] = b
	s.length++
}

// top is the innermost open container; nil outside of all, and where the depth
// is beyond what is told apart.
func (s *scanner) top() *frame {
	if s.depth == 0 || s.depth > maxNodes {
		return nil
	}
	return &s.path[s.depth-1]
}

func (s *scanner) open(object bool, facts *Facts) {
	if s.at == failure {
		facts.Failed = true
	}
	s.depth++
	f := s.top()
	if f == nil {
		s.at = nowhere
		return
	}
	*f = frame{node: s.at, object: object, expectKey: object}
	s.at = nowhere
	if !object {
		s.at = f.node.element()
	}
}

func (s *scanner) close() {
	if s.depth > 0 {
		s.depth--
	}
	s.at = nowhere
}

func (s *scanner) endString(facts *Facts) {
	text := s.token[:s.length]
	if s.isKey {
		f := s.top()
		f.expectKey = false
		s.at = nowhere
		if !s.overflow {
			s.at = f.node.member(text)
		}
		return
	}
	at := s.at
	s.at = nowhere
	if s.overflow {
		if at == failure {
			facts.Failed = true
		}
		return
	}
	switch at {
	case failure:
		facts.Failed = true
	case code:
		// Some engines write the status as a string.
		if n, ok := whole(text); ok {
			facts.ErrorCode = int(min(n, maxCode))
		}
	case finishReason:
		if string(text) == "abort" {
			facts.Aborted = true
		}
	}
}

// maxCode keeps a code of any size from meaning something else as an int.
const maxCode = 999

func (s *scanner) endScalar(facts *Facts) {
	if !s.inScalar {
		return
	}
	s.inScalar = false
	at := s.at
	s.at = nowhere
	if s.overflow {
		return
	}
	n, ok := whole(s.token[:s.length])
	if !ok {
		return
	}
	switch at {
	case input:
		facts.Input = n
	case output:
		facts.Output = n
	case cached:
		facts.Cached = n
	case code:
		facts.ErrorCode = int(min(n, maxCode))
	}
}

// maxCount is the largest count that is read: what a float64 holds exactly.
const maxCount = 1 << 53

// whole reads a whole number of at least 0, without fraction or exponent.
func whole(text []byte) (int64, bool) {
	if len(text) == 0 {
		return 0, false
	}
	var n int64
	for _, b := range text {
		if b < '0' || b > '9' {
			return 0, false
		}
		if n = n*10 + int64(b-'0'); n > maxCount {
			return 0, false
		}
	}
	return n, true
}
