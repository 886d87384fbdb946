package intent

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// noon is the time of all tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// good is an intent that is issued a minute before noon, expires a minute after it
// and is meant for "berth".
const good = `{"version":"berth.dev/v1alpha1","audience":["berth"],"issuedAt":"2026-03-01T11:59:00Z",` +
	`"expiresAt":"2026-03-01T12:01:00Z","logicalModel":"fast"}`

const edHeader = `{"alg":"EdDSA","kid":"ed"}`

func mustReader(t testing.TB, o Options) *Reader {
	t.Helper()
	r, err := NewReader(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func signedReader(t testing.TB) *Reader {
	return mustReader(t, Options{Keys: testKeys(t), Audience: "berth", Skew: 30 * time.Second})
}

// refusal is the error of a read, which gave nothing else.
func refusal(t *testing.T, got Intent, err error) *Error {
	t.Helper()
	refused, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("accepted as %+v, error %v", got, err)
	}
	if got.Source != "" || got.Routing != nil || got.KeyID != "" || got.Unknown != nil || got.Models != nil {
		t.Errorf("refused, and yet gave %+v", got)
	}
	return refused
}

func TestAnIntentIsAcceptedWithASignatureOfEachAlgorithm(t *testing.T) {
	r := signedReader(t)
	for _, c := range []struct {
		kid, header string
		sign        signer
	}{
		{"ed", `{"alg":"EdDSA","kid":"ed"}`, signEd},
		{"ec", `{"alg":"ES256","kid":"ec"}`, signEC},
		{"hs", `{"alg":"HS256","kid":"hs"}`, signHMAC(hmacSecret)},
		{"ed", ` {"typ":"JWT", "kid":"\u0065d", "cty":"json", "alg":"EdDSA"} `, signEd},
	} {
		got, err := r.Read(&Input{Signed: []string{token(c.sign, c.header, good)}}, noon)
		if err != nil {
			t.Errorf("%s: %v", c.header, err)
			continue
		}
		if got.Source != SourceSigned || got.KeyID != c.kid || got.Routing.LogicalModel != "fast" {
			t.Errorf("%s: got %+v", c.header, got)
		}
	}
}

func TestATokenIsRefused(t *testing.T) {
	const untrusted = SignedHeader + ": must be signed by a key of the key set, with that key's kid and alg"
	point := ecPublic(t)
	valid := token(signEd, edHeader, good)
	part := strings.Split(valid, ".")
	header := func(h string) []string { return []string{token(signEd, h, good)} }
	zeros := func(n int) signer { return func([]byte) []byte { return make([]byte, n) } }

	for _, c := range []struct {
		name   string
		copies []string
		token  string
		says   string
	}{
		// What is no token at all.
		{"empty", []string{""}, TokenMalformed, "must be a JWS in compact serialization"},
		{"two copies", []string{valid, valid}, TokenMalformed, "2 copies: must be sent once"},
		{"a blank before it", []string{" " + valid}, TokenMalformed, "must be a JWS in compact"},
		{"a line end in it", []string{part[0] + "\n." + part[1] + "." + part[2]}, TokenMalformed, "must be a JWS in compact"},
		{"two tokens in one copy", []string{valid + "," + valid}, TokenMalformed, "must be a JWS in compact"},
		{"one part", []string{part[0]}, TokenMalformed, "must be a JWS in compact"},
		{"two parts", []string{part[0] + "." + part[1]}, TokenMalformed, "must be a JWS in compact"},
		{"an extra dot", []string{valid + "."}, TokenMalformed, "must be a JWS in compact"},
		{"five parts, as of a JWE", []string{valid + ".x.x"}, TokenMalformed, "must be a JWS in compact"},
		{"padding", []string{valid + "=="}, TokenMalformed, "must be a JWS in compact"},
		{"base64 of the other alphabet", []string{part[0] + "." + part[1] + ".+/" + part[2][2:]}, TokenMalformed, "must be a JWS in compact"},
		{"spare bits set", []string{part[0] + "." + part[1] + "." + part[2][:85] + "B"}, TokenMalformed, "must be a JWS in compact"},
		{"no header", []string{"." + part[1] + "." + part[2]}, TokenMalformed, "must be a JWS in compact"},
		{"JSON serialization", []string{`{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`},
			TokenMalformed, "must be a JWS in compact"},
		{"JSON serialization with two signatures", []string{`{"payload":"` + part[1] + `","signatures":[{"protected":"` + part[0] + `","signature":"` +
			part[2] + `"},{"protected":"` + part[0] + `","signature":"` + part[2] + `"}]}`}, TokenMalformed, "must be a JWS in compact"},
		{"more than 16 KiB", []string{strings.Repeat("A", 16<<10+1)}, TokenMalformed, "16385 bytes: must be at most 16384"},
		{"exactly 16 KiB", []string{strings.Repeat("A", 16<<10)}, TokenMalformed, "must be a JWS in compact"},
		{"a token of more than 16 KiB that is signed", []string{token(signEd, edHeader, strings.Repeat(" ", 12<<10)+good)}, TokenMalformed, "must be at most 16384"},
		{"a header that is no JSON", header(`alg`), TokenMalformed, "with a header that names alg and kid"},
		{"a header that is a list", header(`["EdDSA"]`), TokenMalformed, "with a header that names alg and kid"},
		{"a header that is null", header(`null`), TokenMalformed, "with a header that names alg and kid"},
		{"a header with text after it", header(edHeader + `{}`), TokenMalformed, "with a header that names alg and kid"},
		{"a header of deep nesting", header(`{"alg":"EdDSA","kid":"ed","x":` + strings.Repeat("[", 8000)), TokenMalformed, "with a header that names alg and kid"},
		{"no alg", header(`{"kid":"ed"}`), TokenMalformed, "with a header that names alg and kid"},
		{"alg null", header(`{"alg":null,"kid":"ed"}`), TokenMalformed, "with a header that names alg and kid"},
		{"alg twice", header(`{"alg":"EdDSA","alg":"EdDSA","kid":"ed"}`), TokenMalformed, "with a header that names alg and kid"},
		{"alg twice in two spellings", header(`{"alg":"EdDSA","\u0061lg":"none","kid":"ed"}`), TokenMalformed, "with a header that names alg and kid"},
		{"kid twice", header(`{"alg":"EdDSA","kid":"ed","kid":"hs"}`), TokenMalformed, "with a header that names alg and kid"},
		{"a number as kid", header(`{"alg":"EdDSA","kid":1}`), TokenMalformed, "with a header that names alg and kid"},

		{"an embedded key that is none", header(`{"alg":"EdDSA","kid":"ed","jwk":{"kty":"none"}}`), TokenMalformed, "with a header that names alg and kid"},
		{"an embedded certificate that is none", header(`{"alg":"EdDSA","kid":"ed","x5c":["AAAA"]}`), TokenMalformed, "with a header that names alg and kid"},

		// What is a token, and not vouched for.
		{"alg none, no signature", []string{token(zeros(0), `{"alg":"none","kid":"ed"}`, good)}, TokenUntrusted, untrusted},
		{"alg none with the signature", header(`{"alg":"none","kid":"ed"}`), TokenUntrusted, untrusted},
		{"alg None", header(`{"alg":"None","kid":"ed"}`), TokenUntrusted, untrusted},
		{"alg empty", header(`{"alg":"","kid":"ed"}`), TokenMalformed, "with a header that names alg and kid"},
		{"alg in small letters", header(`{"alg":"eddsa","kid":"ed"}`), TokenUntrusted, untrusted},
		{"RS256", header(`{"alg":"RS256","kid":"ed"}`), TokenUntrusted, untrusted},
		{"HS512 with the secret's name", header(`{"alg":"HS512","kid":"hs"}`), TokenUntrusted, untrusted},
		{"ES256 under the name of an Ed25519 key", []string{token(signEC, `{"alg":"ES256","kid":"ed"}`, good)}, TokenUntrusted, untrusted},
		{"EdDSA under the name of a P-256 key", header(`{"alg":"EdDSA","kid":"ec"}`), TokenUntrusted, untrusted},
		{"HS256 with the Ed25519 public key as the secret",
			[]string{token(signHMAC(edPublic(edPrivate)), `{"alg":"HS256","kid":"ed"}`, good)}, TokenUntrusted, untrusted},
		{"HS256 with the P-256 public point as the secret", []string{token(signHMAC(point), `{"alg":"HS256","kid":"ec"}`, good)}, TokenUntrusted, untrusted},
		{"HS256 with x of the P-256 key as the secret", []string{token(signHMAC(point[1:33]), `{"alg":"HS256","kid":"ec"}`, good)}, TokenUntrusted, untrusted},
		{"HS256 with the text of the public key as the secret",
			[]string{token(signHMAC([]byte(ecKey(t, "ec"))), `{"alg":"HS256","kid":"ec"}`, good)}, TokenUntrusted, untrusted},
		{"HS256 with the public key under the secret's name",
			[]string{token(signHMAC(edPublic(edPrivate)), `{"alg":"HS256","kid":"hs"}`, good)}, TokenUntrusted, untrusted},
		{"HS256 with an empty secret", []string{token(signHMAC(nil), `{"alg":"HS256","kid":"hs"}`, good)}, TokenUntrusted, untrusted},
		{"no kid", header(`{"alg":"EdDSA"}`), TokenUntrusted, untrusted},
		{"kid null", header(`{"alg":"EdDSA","kid":null}`), TokenUntrusted, untrusted},
		{"an empty kid", header(`{"alg":"EdDSA","kid":""}`), TokenUntrusted, untrusted},
		{"an unknown kid", header(`{"alg":"EdDSA","kid":"ed2"}`), TokenUntrusted, untrusted},
		{"kid in capitals", header(`{"alg":"EdDSA","kid":"ED"}`), TokenUntrusted, untrusted},
		{"KID instead of kid", header(`{"alg":"EdDSA","KID":"ed"}`), TokenUntrusted, untrusted},
		{"another key's signature", []string{token(signOther, edHeader, good)}, TokenUntrusted, untrusted},
		{"a swapped payload", []string{part[0] + "." + b64([]byte(strings.Replace(good, "fast", "best", 1))) + "." + part[2]}, TokenUntrusted, untrusted},
		{"a payload that is no intent, not signed", []string{part[0] + "." + b64([]byte(`{"version":1}`)) + "." + part[2]}, TokenUntrusted, untrusted},
		{"a swapped header", []string{b64([]byte(edHeader+" ")) + "." + part[1] + "." + part[2]}, TokenUntrusted, untrusted},
		{"no signature", []string{part[0] + "." + part[1] + "."}, TokenUntrusted, untrusted},
		{"half a signature", []string{part[0] + "." + part[1] + "." + b64(make([]byte, 32))}, TokenUntrusted, untrusted},
		{"a signature of zeros", []string{token(zeros(64), edHeader, good)}, TokenUntrusted, untrusted},
		{"an ES256 signature of zeros", []string{token(zeros(64), `{"alg":"ES256","kid":"ec"}`, good)}, TokenUntrusted, untrusted},
		{"an ES256 signature in DER", []string{token(func(b []byte) []byte { return append([]byte{0x30, 0x44}, signEC(b)...) }, `{"alg":"ES256","kid":"ec"}`, good)},
			TokenUntrusted, untrusted},
		{"an embedded key that signed", []string{token(signOther, `{"alg":"EdDSA","kid":"ed","jwk":`+edKey("ed", edOther)+`}`, good)}, TokenUntrusted, untrusted},
		{"an embedded key that signed, without kid", []string{token(signOther, `{"alg":"EdDSA","jwk":`+edKey("ed", edOther)+`}`, good)}, TokenUntrusted, untrusted},
		{"a URL of keys", []string{token(signOther, `{"alg":"EdDSA","kid":"ed","jku":"https://127.0.0.1/keys"}`, good)}, TokenUntrusted, untrusted},
		{"a detached payload", []string{part[0] + ".." + part[2]}, TokenUntrusted, untrusted},

		// What asks for more than is done.
		{"an unknown critical extension", header(`{"alg":"EdDSA","kid":"ed","crit":["exp"],"exp":1}`), TokenUntrusted, "header crit: must not be there"},
		{"no critical extension", header(`{"alg":"EdDSA","kid":"ed","crit":[]}`), TokenUntrusted, "header crit: must not be there"},
		{"crit as a text", header(`{"alg":"EdDSA","kid":"ed","crit":"b64"}`), TokenUntrusted, "header crit: must not be there"},
		{"b64 false", header(`{"alg":"EdDSA","kid":"ed","b64":false,"crit":["b64"]}`), TokenUntrusted, "header crit: must not be there"},
		{"b64 false, signed over the payload as it is", []string{unencoded(`{"alg":"EdDSA","kid":"ed","b64":false,"crit":["b64"]}`)},
			TokenUntrusted, "header crit: must not be there"},
		{"b64 false without crit", []string{unencoded(`{"alg":"EdDSA","kid":"ed","b64":false}`)}, TokenUntrusted, "header b64: must not be there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := signedReader(t).Read(&Input{Signed: c.copies}, noon)
			refused := refusal(t, got, err)
			if refused.Token != c.token || !strings.Contains(refused.Message, c.says) {
				t.Errorf("refused with %v, want %s: ...%s", refused, c.token, c.says)
			}
		})
	}
}

// unencoded is a token signed as RFC 7797 has it, over the payload's own bytes.
func unencoded(header string) string {
	h := b64([]byte(header))
	return h + "." + b64([]byte(good)) + "." + b64(signEd([]byte(h+"."+good)))
}

func TestAnEmbeddedKeyDoesNotMatterToAGoodSignature(t *testing.T) {
	for name, header := range map[string]string{
		"another key":    `{"alg":"EdDSA","kid":"ed","jwk":` + edKey("x", edOther) + `}`,
		"a URL of keys":  `{"alg":"EdDSA","kid":"ed","jku":"https://127.0.0.1/keys"}`,
		"a URL of certs": `{"alg":"EdDSA","kid":"ed","x5u":"https://127.0.0.1/certs","x5c":[]}`,
	} {
		got, err := signedReader(t).Read(&Input{Signed: []string{token(signEd, header, good)}}, noon)
		if err != nil || got.KeyID != "ed" {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

func TestWhatASignedIntentMustState(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	const issued, expires = `"2026-03-01T11:59:00Z"`, `"2026-03-01T12:01:00Z"`
	for _, c := range []struct{ name, payload, token, message string }{
		{"nothing", ``, TokenMalformed, ""},
		{"no JSON", `version`, TokenMalformed, ""},
		{"a bomb of nesting", `{"version":"berth.dev/v1alpha1","x":` + strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000) + `}`, TokenMalformed, ""},
		{"a member twice", replace(`"logicalModel"`, `"logicalModel":"x","logicalModel"`), TokenMalformed, ""},
		{"a class that is unknown", replace(`"logicalModel":"fast"`, `"requirements":[{"class":"legal","key":"k","operator":"Exists"}]`), TokenMalformed, ""},
		{"no version", replace(`"version":"berth.dev/v1alpha1",`, ``), TokenVersion, ""},
		{"a version to come", replace(`v1alpha1`, `v1`), TokenVersion, ""},
		{"no issuedAt", replace(`"issuedAt":`+issued+`,`, ``), TokenMalformed, "x-berth-intent: issuedAt: must be stated by a signed intent"},
		{"no expiresAt", replace(`"expiresAt":`+expires+`,`, ``), TokenMalformed, "x-berth-intent: expiresAt: must be stated by a signed intent"},
		{"no audience", replace(`"audience":["berth"],`, ``), TokenUntrusted, "x-berth-intent: audience: must be stated by a signed intent"},
		{"an empty audience", replace(`["berth"]`, `[]`), TokenMalformed, ""},
		{"a text as audience", replace(`["berth"]`, `"berth"`), TokenMalformed, ""},
		{"another audience", replace(`["berth"]`, `["berth-2","Berth"]`), TokenUntrusted, "x-berth-intent: audience: must contain berth"},
		{"this audience among others", replace(`["berth"]`, `["a","berth","b"]`), "", ""},
		{"issued exactly the skew ahead", replace(issued, `"2026-03-01T12:00:30Z"`), "", ""},
		{"issued more than the skew ahead", replace(issued, `"2026-03-01T12:00:30.000000001Z"`), TokenUntrusted, "x-berth-intent: issuedAt: must not be in the future"},
		{"issued ahead in another zone", replace(issued, `"2026-03-01T11:00:31-01:00"`), TokenUntrusted, "x-berth-intent: issuedAt: must not be in the future"},
		{"expired less than the skew ago", replace(expires, `"2026-03-01T11:59:30.000000001Z"`), "", ""},
		{"expired exactly the skew ago", replace(expires, `"2026-03-01T11:59:30Z"`), TokenExpired, "x-berth-intent: expiresAt: must be in the future"},
		{"expired long ago", replace(expires, `"0001-01-02T00:00:00Z"`), TokenExpired, ""},
		{"issued long ago", replace(issued, `"1970-01-01T00:00:00Z"`), "", ""},
		{"expires at the end of time", replace(expires, `"9999-12-31T23:59:59Z"`), "", ""},
		{"expired and for another audience", replace(`["berth"]`, `["x"]`), TokenUntrusted, "x-berth-intent: audience: must contain berth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := signedReader(t).Read(&Input{Signed: []string{token(signEd, edHeader, c.payload)}}, noon)
			if c.token == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			refused := refusal(t, got, err)
			if refused.Token != c.token || c.message != "" && refused.Message != c.message {
				t.Errorf("refused with %v, want %s: %s", refused, c.token, c.message)
			}
			if !strings.HasPrefix(refused.Message, "x-berth-intent: ") {
				t.Errorf("message %q does not name the channel", refused.Message)
			}
		})
	}
}

func TestTheSkewIsZeroUnlessItIsGiven(t *testing.T) {
	r := mustReader(t, Options{Keys: testKeys(t), Audience: "berth"})
	in := &Input{Signed: []string{token(signEd, edHeader, good)}}
	expires := time.Date(2026, 3, 1, 12, 1, 0, 0, time.UTC)
	if _, err := r.Read(in, expires.Add(-time.Nanosecond)); err != nil {
		t.Errorf("a nanosecond before expiresAt: %v", err)
	}
	got, err := r.Read(in, expires)
	if refused := refusal(t, got, err); refused.Token != TokenExpired {
		t.Errorf("at expiresAt: %v", refused)
	}
	issued := time.Date(2026, 3, 1, 11, 59, 0, 0, time.UTC)
	if _, err := r.Read(in, issued); err != nil {
		t.Errorf("at issuedAt: %v", err)
	}
	got, err = r.Read(in, issued.Add(-time.Nanosecond))
	if refused := refusal(t, got, err); refused.Token != TokenUntrusted {
		t.Errorf("a nanosecond before issuedAt: %v", refused)
	}
}

func TestARotatedKeyIsTrustedAsLongAsItIsInTheSet(t *testing.T) {
	of := func(keys ...string) *Reader {
		return mustReader(t, Options{Keys: mustKeys(t, keys...), Audience: "berth"})
	}
	before := of(edKey("2026-02", edPrivate))
	both := of(edKey("2026-02", edPrivate), edKey("2026-03", edOther))
	after := of(edKey("2026-03", edOther))
	reused := of(edKey("2026-02", edOther))
	old := &Input{Signed: []string{token(signEd, `{"alg":"EdDSA","kid":"2026-02"}`, good)}}
	next := &Input{Signed: []string{token(signOther, `{"alg":"EdDSA","kid":"2026-03"}`, good)}}
	for _, c := range []struct {
		name      string
		r         *Reader
		in        *Input
		untrusted bool
	}{
		{"the old key before", before, old, false},
		{"the next key before", before, next, true},
		{"the old key in between", both, old, false},
		{"the next key in between", both, next, false},
		{"the old key after", after, old, true},
		{"the next key after", after, next, false},
		{"the old key where its name was given to the next", reused, old, true},
	} {
		got, err := c.r.Read(c.in, noon)
		if !c.untrusted {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if refused := refusal(t, got, err); refused.Token != TokenUntrusted {
			t.Errorf("%s: %v", c.name, refused)
		}
	}
}

func TestAlgorithmsThatNoKeyHasAreNotTrusted(t *testing.T) {
	r := mustReader(t, Options{Keys: mustKeys(t, edKey("ed", edPrivate)), Audience: "berth"})
	for _, in := range []string{
		token(signHMAC(edPublic(edPrivate)), `{"alg":"HS256","kid":"ed"}`, good),
		token(signEC, `{"alg":"ES256","kid":"ed"}`, good),
	} {
		got, err := r.Read(&Input{Signed: []string{in}}, noon)
		if refused := refusal(t, got, err); refused.Token != TokenUntrusted {
			t.Errorf("refused with %v", refused)
		}
	}
}

// Key sets as no text makes them: what a key could verify is not what it may.
func TestAKeyVerifiesWithItsOwnAlgorithmAlone(t *testing.T) {
	text := token(signHMAC(hmacSecret), `{"alg":"HS256","kid":"k"}`, good)
	for name, keys := range map[string]*KeySet{
		"the key is bound to another algorithm": {
			keys: map[string]key{"k": {"ES256", hmacSecret}}, algorithms: []jose.SignatureAlgorithm{"ES256", "HS256"}},
		"the set has no key for the algorithm": {
			keys: map[string]key{"k": {"HS256", hmacSecret}}, algorithms: []jose.SignatureAlgorithm{"ES256"}},
	} {
		got, err := mustReader(t, Options{Keys: keys, Audience: "berth"}).Read(&Input{Signed: []string{text}}, noon)
		if refused := refusal(t, got, err); refused.Token != TokenUntrusted {
			t.Errorf("%s: %v", name, refused)
		}
	}
}

// A message of the codec may quote a value, but no message quotes the token.
func TestMessagesQuoteNeitherTokensNorHeaders(t *testing.T) {
	const canary = "canary-6f1d"
	r := signedReader(t)
	for name, in := range map[string]string{
		"kid":        token(signEd, `{"alg":"EdDSA","kid":"`+canary+`"}`, good),
		"kid list":   token(signEd, `{"alg":"EdDSA","kid":["`+canary+`"]}`, good),
		"alg":        token(signEd, `{"alg":"`+canary+`","kid":"ed"}`, good),
		"header key": token(signEd, `{"alg":"EdDSA","kid":"ed","`+canary+`":1,"`+canary+`":2}`, good),
		"crit":       token(signEd, `{"alg":"EdDSA","kid":"ed","crit":["`+canary+`"]}`, good),
		"x5c":        token(signEd, `{"alg":"EdDSA","kid":"ed","x5c":["`+canary+`"]}`, good),
		"payload":    token(signOther, edHeader, `{"version":"`+canary+`"}`),
		"no token":   canary,
	} {
		got, err := r.Read(&Input{Signed: []string{in}}, noon)
		message := refusal(t, got, err).Error()
		if strings.Contains(message, canary) || strings.Contains(message, in[:min(len(in), 24)]) {
			t.Errorf("%s: %s", name, message)
		}
	}
}

func TestCanonicalIsWhatEncodingGives(t *testing.T) {
	strict := base64.RawURLEncoding.Strict()
	const alphabet = "AQgwBhxz019-_+/=\n. é"
	for _, a := range alphabet {
		for _, b := range alphabet {
			for _, c := range alphabet {
				for _, s := range []string{string(a), string(a) + string(b), string(a) + string(b) + string(c), "AAAA" + string(a) + string(b) + string(c)} {
					decoded, err := strict.DecodeString(s)
					want := err == nil && b64(decoded) == s
					if canonical(s) != want {
						t.Fatalf("%q: canonical %v, want %v", s, !want, want)
					}
				}
			}
		}
	}
}
