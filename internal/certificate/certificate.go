// Package certificate is what the ext_proc listener shows of itself over TLS: a
// certificate and its private key, from a directory that may change at any time,
// or made at the start.
//
// Gateways that speak TLS to an endpoint picker mostly do not verify its
// certificate. Against those, TLS keeps who listens on the wire from reading
// prompts, and no more: whoever stands in between can answer in the picker's
// place. A gateway that verifies needs a pair from a directory, which is how
// Kubernetes mounts a secret of type kubernetes.io/tls.
//
//	Open        reads the pair of a directory, once
//	Files.Watch follows it: good pairs one after the other, and why others are not good
//	SelfSigned  makes a pair that nobody can verify
//	Config      is a listener's TLS, over whatever pair is in force
//
// A pair is good when a client could shake hands with it now: both files can be
// read, every certificate of the chain can be parsed, the key is that of the
// first one, which is valid at this time, and a handshake with it succeeds.
// Whether a client would trust it is not looked at, and neither is what becomes of
// it later: a pair that expires while it is in force stays there, since for
// gateways that do not verify it is as good as before.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

// Config is the TLS of a gRPC listener that shows the pair that current returns:
// TLS 1.2 or 1.3, and HTTP/2 by ALPN. Each handshake asks current once, from any
// goroutine; it must not return nil. Connections that are open are not touched
// when current returns another pair.
func Config(current func() *tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return current(), nil
		},
		// A resumed session would go by the certificate that it began with, so that
		// a gateway could reconnect under one that was replaced long ago. Gateways
		// hold few connections for long: whole handshakes cost them nothing.
		SessionTicketsDisabled: true,
	}
}

const (
	// selfSignedFor is how long a self-signed certificate is valid. It is as old as
	// the process, so this is to be longer than any process runs.
	selfSignedFor = 10 * 365 * 24 * time.Hour
	// clockSkew is how far a gateway's clock may be behind.
	clockSkew = time.Hour
)

// SelfSigned makes a pair for gateways that do not verify: an ECDSA P-256 key
// that never leaves the process and a certificate for ten years that names
// nobody's host, so that no client takes it for one that it can verify.
func SelfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("a self-signed certificate: %w", err)
	}
	// RFC 5280 allows 20 octets, and asks for a positive number.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("a self-signed certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: "berth-epp, self-signed"},
		DNSNames:              []string{"berth-epp.invalid"}, // never a host, by RFC 6761
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(selfSignedFor),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("a self-signed certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("a self-signed certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}, nil
}
