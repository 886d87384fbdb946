package intent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// demands has a requirement of each class, and six in all.
const demands = `{"version":"berth.dev/v1alpha1","intentID":"6f1d1f0c-2c8e-4a57-9d0e-5f0b6d5b1f9e","issuer":"router","audience":["berth"],` +
	`"issuedAt":"2026-03-01T11:59:00Z","expiresAt":"2026-03-01T12:01:00Z","logicalModel":"fast","context":{"inputTokens":1200,"outputTokens":300},` +
	`"requirements":[{"class":"authorization","key":"berth.dev/tenants","operator":"In","values":["acme"]},` +
	`{"class":"safety","key":"berth.dev/safety","operator":"In","values":["strict"]},` +
	`{"class":"residency","key":"berth.dev/residency","operator":"In","values":["eu","ch"]},` +
	`{"class":"capability","key":"berth.dev/capabilities","operator":"In","values":["tools"]},` +
	`{"class":"placement","key":"berth.dev/tier","operator":"NotIn","values":["spot"]},` +
	`{"class":"placement","key":"berth.dev/zone","operator":"Exists"}]}`

func BenchmarkMetadata(b *testing.B) {
	var whole map[string]any
	if err := json.Unmarshal([]byte(demands), &whole); err != nil {
		b.Fatal(err)
	}
	r := mustReader(b, everything(b))
	for _, form := range []struct {
		name     string
		metadata map[string]any
	}{
		{"form=struct", map[string]any{"intent": whole}},
		{"form=json", map[string]any{"intent": demands}},
		{"form=flat", map[string]any{
			"logicalModel": "fast", "contextInputTokens": 1200.0, "contextOutputTokens": "300",
			"requirement.authorization.berth.dev/tenants":   "acme",
			"requirement.safety.berth.dev/safety":           "strict",
			"requirement.residency.berth.dev/residency":     "eu,ch",
			"requirement.capability.berth.dev/capabilities": "tools",
			"requirement.placement.berth.dev/tier":          "standard,reserved",
			"requirement.placement.berth.dev/zone":          "eu-1",
		}},
	} {
		b.Run(form.name, func(b *testing.B) {
			in := &Input{Metadata: form.metadata}
			b.ReportAllocs()
			for b.Loop() {
				got, err := r.Read(in, noon)
				if err != nil || len(got.Routing.Requirements) != 6 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// BenchmarkSigned compares a read with the verification that go-jose does of the
// same token.
func BenchmarkSigned(b *testing.B) {
	keys := testKeys(b)
	r := mustReader(b, Options{Keys: keys, Audience: "berth"})
	for _, c := range []struct {
		alg, kid string
		sign     signer
	}{{"EdDSA", "ed", signEd}, {"ES256", "ec", signEC}} {
		text := token(c.sign, `{"alg":"`+c.alg+`","kid":"`+c.kid+`"}`, demands)
		b.Run("alg="+c.alg+"/bare", func(b *testing.B) {
			algorithms := []jose.SignatureAlgorithm{jose.SignatureAlgorithm(c.alg)}
			key := keys.keys[c.kid].verifying
			b.ReportAllocs()
			for b.Loop() {
				jws, err := jose.ParseSignedCompact(text, algorithms)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := jws.Verify(key); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("alg="+c.alg+"/read", func(b *testing.B) {
			in := &Input{Signed: []string{text}}
			b.ReportAllocs()
			for b.Loop() {
				got, err := r.Read(in, noon)
				if err != nil || len(got.Routing.Requirements) != 6 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// BenchmarkUnsigned is what a client pays for with a token that is signed by
// nobody, of the largest size.
func BenchmarkUnsigned(b *testing.B) {
	r := mustReader(b, Options{Keys: testKeys(b), Audience: "berth"})
	in := &Input{Signed: []string{token(func([]byte) []byte { return make([]byte, 64) }, edHeader, strings.Repeat("x", 12000))}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Read(in, noon); err == nil {
			b.Fatal("accepted")
		}
	}
}
