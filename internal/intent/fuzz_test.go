package intent

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// checkRead holds for each input: what is refused gives nothing and says so in one
// line, what is accepted is a valid intent.
func checkRead(t *testing.T, got Intent, err error) {
	t.Helper()
	if err != nil {
		refused, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("error of type %T", err)
		}
		if !slices.Contains([]string{TokenMalformed, TokenVersion, TokenExpired, TokenUntrusted}, refused.Token) {
			t.Errorf("token %q", refused.Token)
		}
		if len(refused.Message) > 512 || !utf8.ValidString(refused.Message) || strings.ContainsFunc(refused.Message, unicode.IsControl) {
			t.Errorf("message %q", refused.Message)
		}
		if !reflect.DeepEqual(got, Intent{}) {
			t.Errorf("refused, and yet gave %+v", got)
		}
		return
	}
	if got.Source == SourceNone || got.Routing == nil {
		t.Fatalf("a channel that is present gave %+v", got)
	}
	if err := got.Routing.Validate(); err != nil {
		t.Errorf("accepted what is not valid: %v", err)
	}
	if (got.Models == nil) != (got.Routing.LogicalModel == "" && len(got.Routing.ServedModels) == 0) {
		t.Errorf("models %q of %+v", got.Models, got.Routing)
	}
}

func FuzzKeySet(f *testing.F) {
	for _, text := range []string{
		keySetText(edKey("ed", edPrivate), ecKey(f, "ec"), octKey("hs", hmacSecret)),
		keySetText(with(edKey("ed", edPrivate), `"use":"sig","key_ops":["verify"]`)),
		keySetText(with(edKey("ed", edPrivate), `"d":"`+b64(edPrivate.Seed())+`"`)),
		`{"keys":[{"kid":"a","kid":"b"}]}`, `{"keys":[]}`, `{"keys":[{"kid":"\ud800","alg":"HS256","kty":"oct","k":""}]}`, `[]`, ``, `{"keys":[{}],"keys":[]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseKeySet(data)
		if err != nil {
			if len(err.Error()) > 512 || strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("error %q", err)
			}
			return
		}
		if len(s.keys) < 1 || len(s.keys) > 64 {
			t.Errorf("%d keys", len(s.keys))
		}
		for id, k := range s.keys {
			if id == "" || len(id) > 253 {
				t.Errorf("kid %q", id)
			}
			ok := false
			switch v := k.verifying.(type) {
			case ed25519.PublicKey:
				ok = k.algorithm == "EdDSA" && len(v) == 32
			case *ecdsa.PublicKey:
				ok = k.algorithm == "ES256" && v.Curve.Params().Name == "P-256"
			case []byte:
				ok = k.algorithm == "HS256" && len(v) >= 32
			}
			if !ok {
				t.Errorf("key %q for %s is a %T", id, k.algorithm, k.verifying)
			}
			if !slices.Contains(s.algorithms, k.algorithm) {
				t.Errorf("%s is missing in %v", k.algorithm, s.algorithms)
			}
		}
		again, err := ParseKeySet(data)
		if err != nil || !again.Equal(s) {
			t.Errorf("read twice, it differs: %v", err)
		}
	})
}

// signedBy is the name of the test key that signed a token, as RFC 7515 and the
// standard library have it: an oracle that shares nothing with the reader.
func signedBy(t *testing.T, token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	var signature []byte
	for i, part := range parts {
		decoded, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || strings.ContainsAny(part, "\r\n") {
			return ""
		}
		if i == 2 {
			signature = decoded
		}
	}
	input := []byte(parts[0] + "." + parts[1])
	digest := sha256.Sum256(input)
	switch {
	case ed25519.Verify(edPublic(edPrivate), input, signature):
		return "ed"
	case hmac.Equal(signHMAC(hmacSecret)(input), signature):
		return "hs"
	case len(signature) == 64 && ecdsa.Verify(&ecPrivate.PublicKey, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])):
		return "ec"
	}
	return ""
}

func FuzzSigned(f *testing.F) {
	header := map[string]string{"ed": edHeader, "ec": `{"alg":"ES256","kid":"ec"}`, "hs": `{"alg":"HS256","kid":"hs"}`}
	sign := []signer{signEd, signEC, signHMAC(hmacSecret), signOther, signHMAC(edPublic(edPrivate)), func([]byte) []byte { return nil }}
	for by := range sign {
		for _, h := range header {
			f.Add("", h, good, uint8(by), uint16(0), byte(0))
			f.Add("", h, good, uint8(by), uint16(3), byte(1))
		}
	}
	for _, h := range []string{
		`{"alg":"none","kid":"ed"}`, `{"alg":"EdDSA","kid":"ed","crit":["b64"],"b64":false}`, `{"alg":"EdDSA","kid":"ed","jwk":` + edKey("ed", edOther) + `}`,
		`{"alg":"EdDSA","alg":"HS256","kid":"ed"}`, `{}`, ``,
	} {
		f.Add("", h, good, uint8(0), uint16(0), byte(0))
	}
	for _, payload := range []string{`{}`, ``, `{"version":1}`, strings.Repeat(`[`, 99), strings.Replace(good, "berth\"]", "x\"]", 1), strings.Replace(good, "12:01", "11:01", 1)} {
		f.Add("", edHeader, payload, uint8(0), uint16(0), byte(0))
	}
	for _, raw := range []string{token(signEd, edHeader, good), "a.b.c", "..", "eyJhbGciOiJub25lIn0.e30.", `{"payload":"","signatures":[]}`, "a.b.c.d.e"} {
		f.Add(raw, "", "", uint8(0), uint16(0), byte(0))
	}
	r := mustReader(f, Options{Keys: testKeys(f), Audience: "berth"})

	// A text that is not empty is a token as it stands. Otherwise one is made of a
	// header and a payload, and one byte of it may be changed afterwards.
	f.Fuzz(func(t *testing.T, raw, h, payload string, by uint8, at uint16, change byte) {
		text := raw
		if text == "" {
			made := []byte(token(sign[int(by)%len(sign)], h, payload))
			made[int(at)%len(made)] ^= change
			text = string(made)
		}
		got, err := r.Read(&Input{Signed: []string{text}}, noon)
		checkRead(t, got, err)
		if err != nil {
			return
		}
		key := signedBy(t, text)
		if key == "" || got.KeyID != key {
			t.Errorf("accepted as signed by %q, and it is signed by %q: %s", got.KeyID, key, text)
		}
		if !slices.Contains(got.Routing.Audience, "berth") || !got.Routing.ExpiresAt.After(noon) || got.Routing.IssuedAt.After(noon) {
			t.Errorf("accepted for %v from %v to %v", got.Routing.Audience, got.Routing.IssuedAt, got.Routing.ExpiresAt)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	for _, text := range []string{
		`{"intent":` + good + `}`, `{"intent":{"version":"berth.dev/v1alpha1","requirements":[{"class":"safety","key":"k","operator":"In","values":["a"]}]}}`,
		`{"intent":"{\"version\":\"berth.dev/v1alpha1\",\"logicalModel\":\"m\"}"}`, `{"intent":"{}","priority":1}`, `{"intent":null}`, `{"intent":[]}`,
		`{"logicalModel":"m","priority":"-1","servedModels":"a,b","contextInputTokens":12,"requirement.safety.berth.dev/safety":"strict,7"}`,
		`{"requirement.legal.k":"x"}`, `{"requirement.safety.k":[1]}`, `{"a\nb":1}`, `{"priority":1e300}`, `{"intent":{"version":"berth.dev/v1alpha1","Audience":[]}}`,
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	r := mustReader(f, Options{Metadata: true, Audience: "berth"})
	f.Fuzz(func(t *testing.T, text string, numbers bool) {
		decoder := json.NewDecoder(strings.NewReader(text))
		if numbers {
			decoder.UseNumber()
		}
		var metadata map[string]any
		if decoder.Decode(&metadata) != nil || len(metadata) == 0 {
			return
		}
		got, err := r.Read(&Input{Metadata: metadata}, noon)
		checkRead(t, got, err)
		again, errAgain := r.Read(&Input{Metadata: metadata}, noon)
		if !reflect.DeepEqual(got, again) || !reflect.DeepEqual(err, errAgain) {
			t.Errorf("read twice: %+v, %v and %+v, %v", got, err, again, errAgain)
		}
		if err != nil {
			return
		}
		if got.Source != SourceMetadata {
			t.Errorf("source %s", got.Source)
		}
		_, whole := metadata["intent"]
		for name := range metadata {
			if whole && name != "intent" || !whole && FlatKey(name) != nil {
				t.Errorf("accepted with the key %q", name)
			}
		}
	})
}

func FuzzFlat(f *testing.F) {
	for _, key := range []string{
		"logicalModel", "servedModels", "priority", "sessionKey", "contextInputTokens", "contextOutputTokens", "requirement.safety.k",
		"requirement.authorization.berth.dev/tenants", "requirement.legal.k", "requirement.safety.", "intent", "x",
	} {
		for _, text := range []string{"a, b,,c", "-12", "9007199254740992", " ", "", "\xff", "a\x00", strings.Repeat("x,", 300)} {
			f.Add(key, text, 0.0, false)
		}
		for _, number := range []float64{0, -1, 1.5, 1 << 53, 1e300, math.Inf(1), math.NaN(), math.Copysign(0, -1)} {
			f.Add(key, "", number, true)
		}
	}
	f.Fuzz(func(t *testing.T, key, text string, number float64, isNumber bool) {
		value := any(text)
		if isNumber {
			value = number
		}
		r := mustReader(t, Options{Metadata: true})
		got, err := r.Read(&Input{Metadata: map[string]any{key: value}}, noon)
		checkRead(t, got, err)

		bad := FlatKey(key)
		if bad != nil {
			if err == nil && key != "intent" {
				t.Fatalf("%q was read, and may not be mapped: %v", key, bad)
			}
			return
		}
		if err == nil {
			for _, q := range got.Routing.Requirements {
				if len(q.Values) == 0 || slices.ContainsFunc(q.Values, func(v string) bool { return v == "" || strings.ContainsRune(v, ',') }) {
					t.Errorf("values %q of %q", q.Values, text)
				}
			}
		}
		if isNumber {
			return
		}
		// A header says the same as metadata.
		r = mustReader(t, Options{PlainHeaders: map[string]string{"x-h": key}})
		plain, errPlain := r.Read(&Input{Plain: []Header{{"x-h", text}}}, noon)
		checkRead(t, plain, errPlain)
		if (err == nil) != (errPlain == nil) || !reflect.DeepEqual(got.Routing, plain.Routing) {
			t.Errorf("metadata gave %+v, %v, a header %+v, %v", got.Routing, err, plain.Routing, errPlain)
		}
	})
}
