package intent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// SignedHeader is the name of the header that carries a signed intent.
const SignedHeader = "x-berth-intent"

// maxSigned bounds the header's value before any of it is looked at, bytes.
const maxSigned = 16 << 10

// unverified is the message for each token that no key of the set vouches for: who
// guesses learns nothing from it.
const unverified = SignedHeader + ": must be signed by a key of the key set, with that key's kid and alg"

// readSigned reads the copies of the header.
func (r *Reader) readSigned(copies []string, now time.Time) (Intent, error) {
	payload, keyID, err := r.verify(copies)
	if err != nil {
		return Intent{}, err
	}
	routing, unknown, err := v1alpha1.DecodeIntent(payload)
	if err != nil {
		return Intent{}, decoding(SignedHeader, err)
	}

	switch {
	case routing.IssuedAt.IsZero():
		return Intent{}, malformed(SignedHeader, "issuedAt: must be stated by a signed intent")
	case routing.ExpiresAt.IsZero():
		return Intent{}, malformed(SignedHeader, "expiresAt: must be stated by a signed intent")
	case len(routing.Audience) == 0:
		return Intent{}, &Error{Token: TokenUntrusted, Message: SignedHeader + ": audience: must be stated by a signed intent"}
	case routing.IssuedAt.After(now.Add(r.skew)):
		return Intent{}, &Error{Token: TokenUntrusted, Message: SignedHeader + ": issuedAt: must not be in the future"}
	}
	if err := r.admit(SignedHeader, routing, now.Add(-r.skew)); err != nil {
		return Intent{}, err
	}
	return Intent{Source: SourceSigned, Routing: routing, KeyID: keyID, Unknown: unknown}, nil
}

// verify returns what a key of the set signed, and that key's name.
func (r *Reader) verify(copies []string) (payload []byte, keyID string, err error) {
	if len(copies) != 1 {
		return nil, "", malformed(SignedHeader, fmt.Sprintf("%d copies: must be sent once", len(copies)))
	}
	token := copies[0]
	if len(token) > maxSigned {
		return nil, "", malformed(SignedHeader, fmt.Sprintf("%d bytes: must be at most %d", len(token), maxSigned))
	}
	if !compact(token) {
		return nil, "", malformed(SignedHeader, "must be a JWS in compact serialization")
	}

	jws, err := jose.ParseSignedCompact(token, r.keys.algorithms)
	if err != nil {
		unexpected, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err)
		if ok && unexpected.Got != "" {
			return nil, "", &Error{Token: TokenUntrusted, Message: unverified}
		}
		return nil, "", malformed(SignedHeader, "must be a JWS in compact serialization with a header that names alg and kid")
	}
	header := jws.Signatures[0].Protected
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, there := header.ExtraHeaders[name]; there {
			return nil, "", &Error{Token: TokenUntrusted, Message: SignedHeader + ": header " + string(name) + ": must not be there"}
		}
	}
	// No key is named "", so that a token without a kid has none.
	k, known := r.keys.keys[header.KeyID]
	if !known || k.algorithm != jose.SignatureAlgorithm(header.Algorithm) {
		return nil, "", &Error{Token: TokenUntrusted, Message: unverified}
	}
	payload, err = jws.Verify(k.verifying)
	if err != nil {
		return nil, "", &Error{Token: TokenUntrusted, Message: unverified}
	}
	return payload, header.KeyID, nil
}

// compact reports whether a token has the shape of RFC 7515, section 7.1: three
// parts in base64url, in the one spelling that their bytes have. The decoder of
// go-jose would skip line ends and ignore spare bits, and so take many texts for
// the one that was signed.
func compact(token string) bool {
	header, rest, ok := strings.Cut(token, ".")
	if !ok || header == "" {
		return false
	}
	payload, signature, ok := strings.Cut(rest, ".")
	return ok && canonical(header) && canonical(payload) && canonical(signature)
}

// canonical reports whether s is what encoding some bytes to base64url without
// padding gives.
func canonical(s string) bool {
	last := byte(0)
	for i := range len(s) {
		var ok bool
		if last, ok = sextet(s[i]); !ok {
			return false
		}
	}
	switch len(s) % 4 {
	case 1:
		return false
	case 2:
		return last&0b1111 == 0
	case 3:
		return last&0b11 == 0
	}
	return true
}

// sextet is the value of a character of base64url (RFC 4648, section 5).
func sextet(c byte) (byte, bool) {
	switch {
	case 'A' <= c && c <= 'Z':
		return c - 'A', true
	case 'a' <= c && c <= 'z':
		return c - 'a' + 26, true
	case '0' <= c && c <= '9':
		return c - '0' + 52, true
	case c == '-':
		return 62, true
	case c == '_':
		return 63, true
	}
	return 0, false
}
