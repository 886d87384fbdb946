package intent

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
)

// The keys that tests sign with. Signatures are made with the standard library, so
// that no error of go-jose's could stand on both sides.
var (
	edPrivate  = ed25519.NewKeyFromSeed([]byte("the seed of the Ed25519 test key"))
	edOther    = ed25519.NewKeyFromSeed([]byte("the seed of another Ed25519 key."))
	ecPrivate  = mustEC("a scalar of 32 bytes for P-256 1")
	hmacSecret = []byte("an HS256 secret of 40 bytes for the test")
)

func mustEC(scalar string) *ecdsa.PrivateKey {
	k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), []byte(scalar))
	if err != nil {
		panic(err)
	}
	return k
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func edPublic(k ed25519.PrivateKey) []byte { return k.Public().(ed25519.PublicKey) }

// ecPublic is the point as 0x04, x, y.
func ecPublic(t testing.TB) []byte {
	t.Helper()
	point, err := ecPrivate.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return point
}

func edKey(kid string, k ed25519.PrivateKey) string {
	return `{"kid":"` + kid + `","alg":"EdDSA","kty":"OKP","crv":"Ed25519","x":"` + b64(edPublic(k)) + `"}`
}

func ecKey(t testing.TB, kid string) string {
	point := ecPublic(t)
	return `{"kid":"` + kid + `","alg":"ES256","kty":"EC","crv":"P-256","x":"` + b64(point[1:33]) + `","y":"` + b64(point[33:]) + `"}`
}

func octKey(kid string, secret []byte) string {
	return `{"kid":"` + kid + `","alg":"HS256","kty":"oct","k":"` + b64(secret) + `"}`
}

func keySetText(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func mustKeys(t testing.TB, keys ...string) *KeySet {
	t.Helper()
	s, err := ParseKeySet([]byte(keySetText(keys...)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testKeys has the keys "ed", "ec" and "hs".
func testKeys(t testing.TB) *KeySet {
	t.Helper()
	return mustKeys(t, edKey("ed", edPrivate), ecKey(t, "ec"), octKey("hs", hmacSecret))
}

type signer func(input []byte) []byte

func signEd(input []byte) []byte { return ed25519.Sign(edPrivate, input) }

func signOther(input []byte) []byte { return ed25519.Sign(edOther, input) }

func signEC(input []byte) []byte {
	digest := sha256.Sum256(input)
	r, s, err := ecdsa.Sign(rand.Reader, ecPrivate, digest[:])
	if err != nil {
		panic(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signature
}

func signHMAC(secret []byte) signer {
	return func(input []byte) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write(input)
		return mac.Sum(nil)
	}
}

// token is a JWS in compact serialization.
func token(sign signer, header, payload string) string {
	input := b64([]byte(header)) + "." + b64([]byte(payload))
	return input + "." + b64(sign([]byte(input)))
}
