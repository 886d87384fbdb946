package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

// Error is a file that is no half of a good pair. Its text never holds what is in
// a file.
type Error struct {
	// File is the path.
	File string
	// Problem says what is wrong with it, and what it must be where that is not
	// plain.
	Problem string
	cause   error
}

func (e *Error) Error() string { return e.File + ": " + e.Problem }

// Unwrap is the error of the file system or of the parser.
func (e *Error) Unwrap() error { return e.cause }

// parse is the pair that two files hold, with its Leaf, or an *Error that names
// one of them.
func parse(certFile string, certPEM []byte, keyFile string, keyPEM []byte, now time.Time) (*tls.Certificate, error) {
	leaf, err := parseChain(certPEM)
	if err != nil {
		return nil, &Error{certFile, err.Error(), err}
	}
	const layout = time.RFC3339
	switch {
	case now.Before(leaf.NotBefore):
		return nil, &Error{certFile, "is not valid before " + leaf.NotBefore.UTC().Format(layout), nil}
	case now.After(leaf.NotAfter):
		return nil, &Error{certFile, "expired at " + leaf.NotAfter.UTC().Format(layout), nil}
	}
	// The chain can be parsed, so what is wrong from here on is the key.
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, &Error{keyFile, fmt.Sprintf("must be the private key of %s, PEM and not encrypted: %v", certFile, err), err}
	}
	pair.Leaf = leaf
	if err := tryHandshake(&pair); err != nil {
		return nil, &Error{certFile, "no client could shake hands with it: " + err.Error(), err}
	}
	return &pair, nil
}

var errNoCertificate = errors.New("holds no certificate: must be PEM, the picker's own first, then those of the authorities between it and the root")

// parseChain parses every certificate of the chain, of which TLS itself looks at
// the first alone, and returns that one.
func parseChain(data []byte) (*x509.Certificate, error) {
	var leaf *x509.Certificate
	for n := 1; ; n++ {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			// TLS skips other blocks too: a file may hold the key as well.
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d cannot be parsed: %w", n, err)
		}
		if leaf == nil {
			leaf = c
		}
	}
	if leaf == nil {
		return nil, errNoCertificate
	}
	return leaf, nil
}

// handshakeLimit bounds a handshake in which both sides wait for the other one
// to read what is wrong.
const handshakeLimit = 10 * time.Second

// tryHandshake shakes hands with a client in this process. Keys on curves that
// TLS does not have, or too short or too long to sign with, fit their
// certificates and load; only the handshake fails.
func tryHandshake(pair *tls.Certificate) error {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	deadline := time.Now().Add(handshakeLimit)
	if err := errors.Join(near.SetDeadline(deadline), far.SetDeadline(deadline)); err != nil {
		return err
	}
	server := tls.Server(near, Config(func() *tls.Certificate { return pair }))
	client := tls.Client(far, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		InsecureSkipVerify: true, // whether anyone trusts it is not the question
	})
	served := make(chan error, 1)
	go func() { served <- server.Handshake() }()
	err := client.Handshake()
	if err != nil {
		_ = far.Close()
	}
	// The side that found what is wrong says what; the other one, that it was told.
	var told *net.OpError
	if reason := <-served; reason != nil && (!errors.As(reason, &told) || told.Op != "remote error") {
		return reason
	}
	return err
}
