// Package certificatetest issues certificates for tests.
package certificatetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority issues pairs that verify under its own certificate.
type Authority struct {
	PEM []byte

	t           testing.TB
	certificate *x509.Certificate
	key         crypto.Signer
}

// A Pair is a certificate and its key as a secret has them.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes a root of its own.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t, elliptic.P256())}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	a.PEM = encode("CERTIFICATE", raw)
	return a
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Issue makes a pair with that serial number, valid now for 127.0.0.1 and with a
// key of its own, unless the changes say otherwise.
func (a *Authority) Issue(serial int64, change ...func(*x509.Certificate)) Pair {
	a.t.Helper()
	return a.IssueFor(newKey(a.t, elliptic.P256()), serial, change...)
}

// IssueFor makes a pair with a given key.
func (a *Authority) IssueFor(key crypto.Signer, serial int64, change ...func(*x509.Certificate)) Pair {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "picker of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, f := range change {
		f(template)
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return Pair{encode("CERTIFICATE", raw), encode("PRIVATE KEY", private)}
}

// Write puts both files into a directory, each by a rename.
func (p Pair) Write(t testing.TB, dir string) {
	t.Helper()
	WriteFile(t, filepath.Join(dir, "tls.crt"), p.Cert)
	WriteFile(t, filepath.Join(dir, "tls.key"), p.Key)
}

// WriteFile replaces a file by a rename, so that nobody reads half of it.
func WriteFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
