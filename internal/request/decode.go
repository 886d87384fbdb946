package request

import (
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// pathModel decodes the model's name in a path.
func pathModel(path string, name Region) (string, error) {
	var buf [MaxModelBytes]byte
	decoded := buf[:0]
	for i := name.Start; i < name.End; i++ {
		if len(decoded) == MaxModelBytes {
			return "", malformedPath(i, wantShortModel)
		}
		c := path[i]
		if c == '%' {
			// The digits end where the name does.
			n, ok := hexByte(path[i+1 : name.End])
			if !ok {
				return "", malformedPath(i, "two hexadecimal digits after a percent sign")
			}
			c, i = n, i+2
		}
		decoded = append(decoded, c)
	}
	switch {
	case !utf8.Valid(decoded):
		return "", malformedPath(name.Start, "UTF-8")
	case hasControl(decoded):
		return "", malformedPath(name.Start, wantNoControl)
	}
	return string(decoded), nil
}

// hexByte reads the two hexadecimal digits that s begins with.
func hexByte(s string) (value byte, ok bool) {
	if len(s) < 2 || !isHex(s[0]) || !isHex(s[1]) {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:2], 16, 8)
	return byte(n), err == nil
}

// isPlain reports whether a JSON string's inside is printable ASCII without
// escapes, so that it is its own decoding.
func isPlain(raw []byte) bool {
	for _, c := range raw {
		if c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}

// hasControl reports whether decoded, which is valid UTF-8, holds a control
// character (Unicode class Cc: C0, DEL and C1).
func hasControl(decoded []byte) bool {
	for len(decoded) > 0 {
		r, size := utf8.DecodeRune(decoded)
		if unicode.IsControl(r) {
			return true
		}
		decoded = decoded[size:]
	}
	return false
}

// appendDecoded appends the decoding of a JSON string's inside to dst. raw has
// passed skipString. As in encoding/json, bytes that are not UTF-8 and halves
// of surrogate pairs become U+FFFD. It gives up, and returns false, once dst
// would grow beyond limit bytes.
func appendDecoded(dst, raw []byte, limit int) ([]byte, bool) {
	for len(raw) > 0 {
		var r rune
		switch {
		case raw[0] != '\\':
			var size int
			r, size = utf8.DecodeRune(raw)
			raw = raw[size:]
		case raw[1] != 'u':
			r, raw = rune(unescaped(raw[1])), raw[2:]
		default:
			r, raw = codeUnit(raw), raw[6:]
			if utf16.IsSurrogate(r) {
				pair := rune(unicode.ReplacementChar)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					pair = utf16.DecodeRune(r, codeUnit(raw))
				}
				// A half is replaced alone; what follows it is read for itself.
				if r = pair; r != unicode.ReplacementChar {
					raw = raw[6:]
				}
			}
		}
		if len(dst)+utf8.RuneLen(r) > limit {
			return dst, false
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

// codeUnit reads the \uXXXX that raw begins with.
func codeUnit(raw []byte) rune {
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	if err != nil {
		return unicode.ReplacementChar
	}
	return rune(n)
}

// unescaped is the character that a one-letter escape stands for.
func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	default: // quote, backslash and slash stand for themselves
		return c
	}
}
