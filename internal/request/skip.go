package request

import (
	"encoding/binary"
	"math/bits"
)

// The functions below check one piece of JSON (RFC 8259) that begins at i and
// skip it. Each returns where the piece ends and "", or the offset of the first
// byte that does not fit and what was wanted there. None of them allocates or
// recurses, so neither length nor nesting of a body costs memory.

// MaxDepth is how deep arrays and objects may nest, the top-level object
// counted. It is encoding/json's own bound.
const MaxDepth = 10_000

// What was wanted, where it is said in more than one place.
const (
	wantObjectNext = "',' or '}' after an object's member"
	wantArrayNext  = "',' or ']' after an array's element"
	wantKey        = "a key in quotes"
	wantValue      = "a JSON value"
	wantColon      = "':' after a key"
	wantShallower  = "at most 10000 nested arrays and objects"
	wantDigit      = "a digit"
)

// skipValue skips any JSON value. b[i] is not white space.
func skipValue(b []byte, i int) (end int, want string) {
	if i < len(b) && (b[i] == '{' || b[i] == '[') {
		return skipNested(b, i)
	}
	return skipScalar(b, i)
}

// skipNested skips the array or object that opens at i, which is not the
// document's top level.
func skipNested(b []byte, i int) (end int, want string) {
	var (
		depth   int    // open levels below the top-level object, at most MaxDepth-1
		closer  byte   // what closes the innermost of them
		outside levels // what closes the others
	)
	for {
		// A value begins at i.
		switch {
		case i >= len(b):
			return i, wantValue
		case b[i] == '"':
			if i, want = skipString(b, i+1); want != "" {
				return i, want
			}
			i = skipSpace(b, i)
		case b[i] == '{':
			if depth == MaxDepth-1 {
				return i, wantShallower
			}
			outside.set(depth, closer == '}')
			depth++
			closer = '}'
			if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
				break
			}
			if i, want = skipName(b, i); want != "" {
				return i, want
			}
			continue
		case b[i] == '[':
			if depth == MaxDepth-1 {
				return i, wantShallower
			}
			outside.set(depth, closer == '}')
			depth++
			closer = ']'
			if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
				break
			}
			if i < len(b) && b[i]-'0' <= 9 {
				i = skipIntegers(b, i)
			}
			continue
		default:
			if i, want = skipScalar(b, i); want != "" {
				return i, want
			}
			i = skipSpace(b, i)
		}

		// A value has ended: close all that ends with it, or go on to the next
		// one at the same level.
		for i < len(b) && b[i] == closer {
			i++
			depth--
			if depth == 0 {
				return i, ""
			}
			closer = outside.closer(depth)
			i = skipSpace(b, i)
		}
		if i >= len(b) || b[i] != ',' {
			if closer == '}' {
				return i, wantObjectNext
			}
			return i, wantArrayNext
		}
		i = skipSpace(b, i+1)
		if closer == '}' {
			if i, want = skipName(b, i); want != "" {
				return i, want
			}
		}
	}
}

// levels holds one bit for each level of nesting: whether it is an object.
type levels [(MaxDepth + 63) / 64]uint64

func (l *levels) set(depth int, object bool) {
	bit := uint64(1) << (uint(depth) % 64)
	if object {
		l[uint(depth)/64] |= bit
	} else {
		l[uint(depth)/64] &^= bit
	}
}

// closer returns the byte that closes a level.
func (l *levels) closer(depth int) byte {
	if l[uint(depth)/64]>>(uint(depth)%64)&1 != 0 {
		return '}'
	}
	return ']'
}

// skipName skips a member's key, its colon and the white space up to its
// value.
func skipName(b []byte, i int) (end int, want string) {
	if i >= len(b) || b[i] != '"' {
		return i, wantKey
	}
	i++
	// Most keys end in their first word, and need no more than this.
	length := 8
	if i+8 <= len(b) {
		length = bits.TrailingZeros64(stops(b[i:i+8])) / 8
	}
	if length < 8 && b[i+length] == '"' {
		i += length + 1
	} else if i, want = skipString(b, i); want != "" {
		return i, want
	}
	if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
		return i, wantColon
	}
	return skipSpace(b, i+1), ""
}

func skipKey(b []byte, i int) (end int, want string) {
	if i == len(b) || b[i] != '"' {
		return i, wantKey
	}
	return skipString(b, i+1)
}

func skipColon(b []byte, i int) (end int, want string) {
	if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
		return i, wantColon
	}
	return i + 1, ""
}

func skipScalar(b []byte, i int) (end int, want string) {
	if i == len(b) {
		return i, wantValue
	}
	switch b[i] {
	case '"':
		return skipString(b, i+1)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return skipNumber(b, i)
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	default:
		return i, wantValue
	}
}

func skipLiteral(b []byte, i int, literal string) (end int, want string) {
	for j := range len(literal) {
		if i+j == len(b) || b[i+j] != literal[j] {
			return i + j, "the literal true, false or null"
		}
	}
	return i + len(literal), ""
}

// skipNumber skips a number, whose first byte is a minus or a digit.
func skipNumber(b []byte, i int) (end int, want string) {
	if b[i] == '-' {
		i++
	}
	first := i
	if i = skipDigits(b, i); i == first {
		return i, wantDigit
	}
	if b[first] == '0' && i > first+1 {
		return first + 1, "no digit after a leading zero"
	}
	if i < len(b) && b[i] == '.' {
		first = i + 1
		if i = skipDigits(b, first); i == first {
			return i, wantDigit
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		first = i
		if i = skipDigits(b, first); i == first {
			return i, wantDigit
		}
	}
	return i, ""
}

// skipIntegers skips elements of an array, the first of which begins with a
// digit at i, for as long as they are what token ids are: integers without a
// sign, with a comma and at most one space between them. It returns where the
// first element begins that it has not skipped, or where one should begin; that
// is i if the array is of another kind. Faults are left to who reads on there.
//
// Like stops, it looks at eight bytes at once and marks lanes by their top bit.
// For bytes up to 0x7f, adding 0x7f sets it unless the byte is zero, and adding
// 0x76 unless it is below ten; neither sum reaches into the next lane.
func skipIntegers(b []byte, i int) int {
	const (
		lanes = 0x0101010101010101
		tops  = 0x80 * lanes
	)
	first := i
	// Whether the byte before the word belongs to a separator, as '[' does, is a
	// comma, or is a zero that an element begins with; in the lowest lane.
	separatorBefore, commaBefore, zeroBefore := uint64(0x80), uint64(0), uint64(0)
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i : i+8])
		value := x ^ '0'*lanes
		separator := (value + 0x76*lanes) & tops // no digit
		space := separator & ((x ^ ','*lanes) + 0x7f*lanes)
		comma := separator ^ space
		begins := separator<<8 | separatorBefore
		zero := begins &^ (value + 0x7f*lanes)
		misfit := x&tops | // not ASCII
			space&((x^' '*lanes)+0x7f*lanes) | // no space either
			space&^(comma<<8|commaBefore) | // a space that follows no comma
			comma&begins | // a comma that follows no element
			(zero<<8|zeroBefore)&^separator // a digit that follows a leading zero
		if misfit != 0 {
			break
		}
		separatorBefore, commaBefore, zeroBefore = separator>>56, comma>>56, zero>>56
	}
	for i > first && b[i-1]-'0' <= 9 {
		i--
	}
	return skipSpace(b, i)
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString skips a string to behind its closing quote; i is behind the
// opening one. Bytes that are not UTF-8 pass, as they do in encoding/json.
func skipString(b []byte, i int) (end int, want string) {
	for {
		// One word first, which is all there is to most keys; then four at once,
		// for long text.
		if i+8 <= len(b) {
			hits := stops(b[i : i+8])
			if hits == 0 {
				i += 8
				for i+32 <= len(b) {
					w := b[i : i+32]
					h0, h1, h2, h3 := stops(w[0:8]), stops(w[8:16]), stops(w[16:24]), stops(w[24:32])
					if h0|h1|h2|h3 == 0 {
						i += 32
						continue
					}
					// The first of them that stops.
					word := 24
					hits = h3
					if h2 != 0 {
						word, hits = 16, h2
					}
					if h1 != 0 {
						word, hits = 8, h1
					}
					if h0 != 0 {
						word, hits = 0, h0
					}
					i += word
					break
				}
				if hits == 0 {
					continue
				}
			}
			i += bits.TrailingZeros64(hits) / 8
		} else if i == len(b) {
			return i, "the closing quote of a string"
		}
		c := b[i]
		if c == '"' {
			return i + 1, ""
		}
		if c == '\\' {
			if i++; i < len(b) && shortEscapes[b[i]] {
				i++
				// Short escapes come in runs: a line's end, then indentation.
				for i+1 < len(b) && b[i] == '\\' && shortEscapes[b[i+1]] {
					i += 2
				}
			} else if i, want = skipLongEscape(b, i); want != "" {
				return i, want
			}
			continue
		}
		if c < ' ' {
			return i, "control characters in a string to be escaped"
		}
		// One of the body's last seven bytes.
		i++
	}
}

// stops looks at the first eight bytes of w and marks, by the top bit of its
// lane in a little-endian word, the first one that is a quote, a backslash or a
// control character; 0 if there is none. Lanes behind the first mark may be
// marked wrongly.
//
// Subtracting n from a lane borrows, and shows that in the top bit, if and only
// if the byte is below n, unless the byte had the top bit set itself or an
// earlier lane has borrowed. Flipping bit 1 moves the quote (0x22) to 0x20 and
// leaves the control characters among themselves, so that one comparison with
// 0x21 finds both; a backslash is the one byte that its own xor makes zero.
func stops(w []byte) uint64 {
	const (
		lanes = 0x0101010101010101
		tops  = 0x80 * lanes
	)
	x := binary.LittleEndian.Uint64(w)
	quoteOrControl := (x ^ 0x02*lanes) - 0x21*lanes
	backslash := (x ^ '\\'*lanes) - lanes
	return (quoteOrControl | backslash) &^ x & tops
}

// shortEscapes are the characters that make an escape together with the
// backslash before them.
var shortEscapes = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// skipLongEscape skips the uXXXX behind a backslash.
func skipLongEscape(b []byte, i int) (end int, want string) {
	if i == len(b) || b[i] != 'u' {
		return i, `one of " \ / b f n r t u after a backslash`
	}
	i++
	for range 4 {
		if i == len(b) || !isHex(b[i]) {
			return i, `four hexadecimal digits after \u`
		}
		i++
	}
	return i, ""
}

func isHex(c byte) bool {
	return c-'0' <= 9 || c|0x20-'a' <= 5
}
