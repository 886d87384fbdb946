package main

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"encoding/json"
	"fmt"

	"github.com/go-jose/go-jose/v4"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/test/finding"
)

const (
	// audience is the name of the picker that reads intents.
	audience = "berth"
)

// metadataOptions switch on the metadata alone.
var metadataOptions = intent.Options{Metadata: true, Aliases: map[string][]string{alias: models}}

// intentForm is one of the forms that metadata may have an intent in.
type intentForm struct {
	name, what string
	metadata   map[string]any
}

func intentForms() ([]intentForm, error) {
	text, err := intentJSON()
	if err != nil {
		return nil, err
	}
	tree, err := intentTree()
	if err != nil {
		return nil, err
	}
	flat := flatIntent()
	return []intentForm{
		{"struct", fmt.Sprintf("a struct, %d bytes as JSON", len(text)), map[string]any{"intent": tree}},
		{"flat", fmt.Sprintf("%d flat keys", len(flat)), flat},
		{"json", fmt.Sprintf("a JSON text of %d bytes", len(text)), map[string]any{"intent": text}},
	}, nil
}

func intentMetadataSubject() (subject, error) {
	forms, err := intentForms()
	if err != nil {
		return subject{}, err
	}
	traffic := fmt.Sprintf("no requests; an intent with an alias, a context need and %d requirements is read back to back, by turns as", len(requirements))
	for i, f := range forms {
		if i > 0 {
			traffic += ", as"
		}
		traffic += " " + f.what
	}
	return subject{
		configuration: "no policy; metadata alone is switched on, with one alias",
		served:        model,
		traffic:       traffic,
	}, nil
}

// intentReading reads one input again and again.
type intentReading struct {
	reader *intent.Reader
	input  intent.Input
	// err is the last error.
	err error
}

// newIntentReading makes sure that what is read is what was meant.
func newIntentReading(options intent.Options, input intent.Input) (*intentReading, error) {
	reader, err := intent.NewReader(options)
	if err != nil {
		return nil, err
	}
	read, err := reader.Read(&input, wall)
	if err != nil {
		return nil, err
	}
	if n := len(read.Routing.Requirements); n != len(requirements) || read.Routing.Context == nil || len(read.Models) != 1 || read.Models[0] != model {
		return nil, fmt.Errorf("%d requirements are read, context %v and models %q; want %d, a context need and %q",
			n, read.Routing.Context, read.Models, len(requirements), model)
	}
	return &intentReading{reader: reader, input: input}, nil
}

func (r *intentReading) again() {
	if _, err := r.reader.Read(&r.input, wall); err != nil {
		r.err = err
	}
}

func measureIntentMetadata(s *session) error {
	forms, err := intentForms()
	if err != nil {
		return err
	}
	for _, f := range forms {
		reading, err := newIntentReading(metadataOptions, intent.Input{Metadata: f.metadata})
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		c, err := least(s, f.name, reading.again)
		if err != nil {
			return err
		}
		if reading.err != nil {
			return fmt.Errorf("%s: %w", f.name, reading.err)
		}
		s.report(finding.Finding{
			Name: "intent-metadata/" + f.name, Value: c.ns / 1e3, Unit: "us", Limit: finding.AtMost(10),
			About: fmt.Sprintf("CPU of reading an intent with %d requirements from %s, least of %d rounds of %d; %s allocations",
				len(requirements), f.what, rounds, c.times, finding.Number(c.allocs)),
		})
	}
	return nil
}

// signingKey is one that a router signs intents with.
type signingKey struct {
	algorithm       jose.SignatureAlgorithm
	private, public any
}

// signingKeys are made of fixed seeds: they guard nothing.
func signingKeys() ([]signingKey, error) {
	ed := ed25519.NewKeyFromSeed([]byte("32 bytes that guard nothing: Ed."))
	ec, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), []byte("32 bytes that guard nothing: EC."))
	if err != nil {
		return nil, err
	}
	return []signingKey{{jose.EdDSA, ed, ed.Public()}, {jose.ES256, ec, ec.Public()}}, nil
}

// id is the key's name in the set.
func (k *signingKey) id() string { return "key-" + string(k.algorithm) }

// sign makes a token of a payload.
func (k *signingKey) sign(payload string) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: k.algorithm, Key: jose.JSONWebKey{Key: k.private, KeyID: k.id()}}, nil)
	if err != nil {
		return "", err
	}
	jws, err := signer.Sign([]byte(payload))
	if err != nil {
		return "", err
	}
	return jws.CompactSerialize()
}

// signedOptions switch on the signed header alone, with all keys in one set.
func signedOptions(keys []signingKey) (intent.Options, error) {
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.public, KeyID: k.id(), Algorithm: string(k.algorithm), Use: "sig"})
	}
	text, err := json.Marshal(set)
	if err != nil {
		return intent.Options{}, err
	}
	parsed, err := intent.ParseKeySet(text)
	if err != nil {
		return intent.Options{}, err
	}
	return intent.Options{Keys: parsed, Audience: audience, Aliases: metadataOptions.Aliases}, nil
}

func intentSignedSubject() (subject, error) {
	payload, err := signedPayload()
	if err != nil {
		return subject{}, err
	}
	return subject{
		configuration: "no policy; the signed header alone is switched on, with a key set of two keys and one alias",
		served:        model,
		traffic: fmt.Sprintf("no requests; one token per algorithm over the same intent of %d bytes, with %d requirements, is read back to back, "+
			"in turns with the check of its signature", len(payload), len(requirements)),
	}, nil
}

func measureIntentSigned(s *session) error {
	keys, err := signingKeys()
	if err != nil {
		return err
	}
	options, err := signedOptions(keys)
	if err != nil {
		return err
	}
	payload, err := signedPayload()
	if err != nil {
		return err
	}
	for _, k := range keys {
		token, err := k.sign(payload)
		if err != nil {
			return err
		}
		if err := measureToken(s, &k, options, token); err != nil {
			return fmt.Errorf("%s: %w", k.algorithm, err)
		}
	}
	return nil
}

func measureToken(s *session, k *signingKey, options intent.Options, token string) error {
	if err := k.check(token); err != nil {
		return err
	}
	reading, err := newIntentReading(options, intent.Input{Signed: []string{token}})
	if err != nil {
		return err
	}
	c, err := compare(s, rounds, reading.again, func() { _ = k.check(token) })
	if err != nil {
		return err
	}
	if reading.err != nil {
		return reading.err
	}
	s.report(finding.Finding{
		Name: "intent-signed/" + string(k.algorithm), Value: c.ratio, Unit: "x", Limit: finding.AtMost(1.5),
		About: fmt.Sprintf("CPU of reading a signed intent with %d requirements to that of go-jose's check of the same token's signature, "+
			"median of %d alternating pairs; at the least %s us beside %s us, and %s allocations",
			len(requirements), rounds, finding.Number(c.ours/1e3), finding.Number(c.theirs/1e3), finding.Number(c.allocs)),
	})
	return nil
}

// check does what no reader of a token can do without: it takes the token apart
// and verifies the signature.
func (k *signingKey) check(token string) error {
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{k.algorithm})
	if err != nil {
		return err
	}
	_, err = jws.Verify(k.public)
	return err
}
