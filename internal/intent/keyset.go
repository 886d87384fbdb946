package intent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxKeySetBytes = 64 << 10
	maxKeys        = 64
	// maxKeyID is the bound of identifiers in intents, too.
	maxKeyID = 253
	// minSecret is what RFC 7518, section 3.2, demands of HS256 keys.
	minSecret = 32
	// coordinate is the size of x and y on P-256, and of an Ed25519 public key.
	coordinate = 32
)

// KeySet has the keys that may sign intents. It is immutable, safe for concurrent
// use, and prints no key.
type KeySet struct {
	keys map[string]key
	// algorithms are those of the keys: no other one is worth a look at a token.
	algorithms []jose.SignatureAlgorithm
}

// key verifies with one algorithm and no other one.
type key struct {
	algorithm jose.SignatureAlgorithm
	// verifying is an ed25519.PublicKey, an *ecdsa.PublicKey or, for HS256, the
	// secret as []byte.
	verifying any
}

// ParseKeySet reads a JSON Web Key Set (RFC 7517) of 1 to 64 keys and at most
// 64 KiB. Each key has a kid (1 to 253 bytes, printable, unique in the set) and an
// alg that says what it may be used with:
//
//	EdDSA  kty OKP, crv Ed25519, x
//	ES256  kty EC, crv P-256, x, y
//	HS256  kty oct, k of at least 32 bytes
//
// use, if there, is "sig", and key_ops contains "verify". Everything else is
// refused: other members, members that come twice, private keys of asymmetric
// algorithms. Errors name the member as keys[i].member, and show no key.
func ParseKeySet(data []byte) (*KeySet, error) {
	if len(data) > maxKeySetBytes {
		return nil, fmt.Errorf("key set: %d bytes: must be at most %d", len(data), maxKeySetBytes)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("key set: must be valid UTF-8")
	}
	var text json.RawMessage
	if err := json.Unmarshal(data, &text); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("key set: must be JSON, and is not from byte %d on", syntax.Offset)
		}
		return nil, errors.New("key set: must be JSON")
	}
	top, err := members("", text)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	for _, m := range top {
		if m.name != "keys" {
			return nil, fmt.Errorf("%s: must not be there: a key set has keys alone", printable(m.name))
		}
		if m.value[0] != '[' || json.Unmarshal(m.value, &list) != nil {
			return nil, fmt.Errorf("keys: %s: must be a list of keys", show(m.value))
		}
	}
	if len(list) < 1 || len(list) > maxKeys {
		return nil, fmt.Errorf("keys: %d keys: must be 1 to %d", len(list), maxKeys)
	}

	s := &KeySet{keys: make(map[string]key, len(list))}
	for i, raw := range list {
		at := "keys[" + strconv.Itoa(i) + "]"
		id, k, err := parseKey(at, raw)
		if err != nil {
			return nil, err
		}
		if _, taken := s.keys[id]; taken {
			return nil, fmt.Errorf("%s.kid: %s: must be unique in the set", at, quoted(id))
		}
		s.keys[id] = k
		if !slices.Contains(s.algorithms, k.algorithm) {
			s.algorithms = append(s.algorithms, k.algorithm)
		}
	}
	return s, nil
}

// Equal reports whether both sets have the same keys under the same names, in
// whatever order their texts have them. A nil set equals a nil set alone.
func (s *KeySet) Equal(other *KeySet) bool {
	if s == nil || other == nil {
		return s == other
	}
	return maps.EqualFunc(s.keys, other.keys, key.equal)
}

func (k key) equal(other key) bool {
	if k.algorithm != other.algorithm {
		return false
	}
	switch v := k.verifying.(type) {
	case ed25519.PublicKey:
		o, ok := other.verifying.(ed25519.PublicKey)
		return ok && v.Equal(o)
	case *ecdsa.PublicKey:
		o, ok := other.verifying.(*ecdsa.PublicKey)
		return ok && v.Equal(o)
	case []byte:
		o, ok := other.verifying.([]byte)
		return ok && bytes.Equal(v, o)
	}
	return false
}

// String says how many keys there are.
func (s *KeySet) String() string {
	if s == nil {
		return "no key set"
	}
	return "key set of " + strconv.Itoa(len(s.keys))
}

// GoString is String: the keys of HS256 are secrets.
func (s *KeySet) GoString() string { return s.String() }

// parseKey reads the key that stands at a path.
func parseKey(at string, raw json.RawMessage) (id string, k key, err error) {
	list, err := members(at, raw)
	if err != nil {
		return "", key{}, err
	}
	of := make(map[string]json.RawMessage, len(list))
	for _, m := range list {
		of[m.name] = m.value
	}

	id, ok := text(of["kid"])
	if !ok || len(id) < 1 || len(id) > maxKeyID || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", key{}, fmt.Errorf("%s.kid: %s: must be a printable text of 1 to %d bytes", at, show(of["kid"]), maxKeyID)
	}
	alg, _ := text(of["alg"])
	kind, ok := kinds[jose.SignatureAlgorithm(alg)]
	if !ok {
		return "", key{}, fmt.Errorf("%s.alg: %s: must be EdDSA, ES256 or HS256", at, show(of["alg"]))
	}
	if kty, ok := text(of["kty"]); !ok || kty != kind.kty {
		return "", key{}, fmt.Errorf("%s.kty: %s: must be %s with alg %s", at, show(of["kty"]), kind.kty, alg)
	}
	if crv, there := of["crv"]; kind.crv != "" {
		if name, ok := text(crv); !ok || name != kind.crv {
			return "", key{}, fmt.Errorf("%s.crv: %s: must be %s with alg %s", at, show(crv), kind.crv, alg)
		}
	} else if there {
		return "", key{}, fmt.Errorf("%s.crv: %s: must not be there with alg %s", at, show(crv), alg)
	}
	if use, there := of["use"]; there {
		if name, ok := text(use); !ok || name != "sig" {
			return "", key{}, fmt.Errorf("%s.use: %s: must be sig", at, show(use))
		}
	}
	if ops, there := of["key_ops"]; there {
		var names []*string
		if json.Unmarshal(ops, &names) != nil || !slices.ContainsFunc(names, func(n *string) bool { return n != nil && *n == "verify" }) {
			return "", key{}, fmt.Errorf("%s.key_ops: %s: must be a list of texts that contains verify", at, show(ops))
		}
	}

	for _, m := range list {
		switch {
		case slices.Contains(common, m.name), slices.Contains(kind.material, m.name):
		case slices.Contains(private, m.name):
			return "", key{}, fmt.Errorf("%s.%s: must not be there: it is private, and verifying needs the public key alone", at, m.name)
		default:
			return "", key{}, fmt.Errorf("%s.%s: must not be there: a key for %s has %s", at, printable(m.name), alg,
				strings.Join(slices.Concat(common, kind.material), ", "))
		}
	}
	for _, name := range kind.material {
		size, ok := decodedSize(of[name])
		if !ok || size < kind.least || size > kind.most {
			bound := "exactly"
			if kind.most > kind.least {
				bound = "at least"
			}
			return "", key{}, fmt.Errorf("%s.%s: must be %s %d bytes in base64url without padding", at, name, bound, kind.least)
		}
	}
	// What is left to go wrong is a point that is not on the curve or, with
	// Ed25519, one of low order, for which anybody could sign.
	var jwk jose.JSONWebKey
	if jwk.UnmarshalJSON(raw) != nil {
		return "", key{}, fmt.Errorf("%s.%s: must be a public key on the curve", at, kind.material[0])
	}
	return id, key{algorithm: jose.SignatureAlgorithm(alg), verifying: jwk.Key}, nil
}

// kinds says what the keys of an algorithm look like.
var kinds = map[jose.SignatureAlgorithm]struct {
	kty, crv string
	// material are the members that hold the key, each least to most bytes.
	material    []string
	least, most int
}{
	jose.EdDSA: {kty: "OKP", crv: "Ed25519", material: []string{"x"}, least: coordinate, most: coordinate},
	jose.ES256: {kty: "EC", crv: "P-256", material: []string{"x", "y"}, least: coordinate, most: coordinate},
	jose.HS256: {kty: "oct", material: []string{"k"}, least: minSecret, most: maxKeySetBytes},
}

var (
	// common are the members of keys of each algorithm.
	common = []string{"kid", "alg", "kty", "crv", "use", "key_ops"}
	// private are the members that RFC 7518, section 6, has for private keys.
	private = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "priv"}
)

type member struct {
	name  string
	value json.RawMessage
}

// members are those of the object at a path, in order. raw is valid JSON, so that
// the decoder has nothing to refuse.
func members(at string, raw json.RawMessage) ([]member, error) {
	where, dot := at, "."
	if at == "" {
		where, dot = "key set", ""
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if t, err := decoder.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%s: %s: must be an object", where, show(raw))
	}
	var list []member
	for decoder.More() {
		t, err := decoder.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || decoder.Decode(&value) != nil {
			return nil, fmt.Errorf("%s: must be an object", where)
		}
		if slices.ContainsFunc(list, func(m member) bool { return m.name == name }) {
			return nil, fmt.Errorf("%s%s%s: must be there once", at, dot, printable(name))
		}
		list = append(list, member{name, value})
	}
	return list, nil
}

// text is the string that raw is, false if it is none.
func text(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// decodedSize is the number of bytes that a text in base64url holds, false if it is
// no such text.
func decodedSize(raw json.RawMessage) (int, bool) {
	s, ok := text(raw)
	if !ok || !canonical(s) {
		return 0, false
	}
	return base64.RawURLEncoding.DecodedLen(len(s)), true
}

// show is a value for an error: only of members that hold no key.
func show(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "missing"
	}
	switch raw[0] {
	case '{':
		return "{...}"
	case '[':
		return "[...]"
	}
	if s, ok := text(raw); ok {
		return quoted(s)
	}
	return cut(string(raw))
}

// maxShown is how many bytes of a foreign text an error quotes.
const maxShown = 64

// cut shortens s to maxShown bytes, between characters.
func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	end := maxShown
	for end > maxShown-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

func quoted(s string) string { return strconv.Quote(cut(s)) }

// printable is s, cut, and quoted where it could forge a line of a log.
func printable(s string) string {
	s = cut(s)
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
