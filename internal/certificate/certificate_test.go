package certificate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
)

func TestASelfSignedPairShakesHandsForTenYearsAndNamesNobody(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pair, err := SelfSigned(now)
	if err != nil {
		t.Fatal(err)
	}
	if err := tryHandshake(pair); err != nil {
		t.Errorf("a handshake: %v", err)
	}
	leaf := pair.Leaf
	if until := time.Date(2035, 12, 31, 3, 4, 5, 0, time.UTC); !leaf.NotAfter.Equal(until) || !leaf.NotBefore.Equal(now.Add(-time.Hour)) {
		t.Errorf("valid from %v to %v", leaf.NotBefore, leaf.NotAfter)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T", leaf.PublicKey)
	}
	if leaf.IsCA || leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 159 {
		t.Errorf("an authority: %v, serial %v", leaf.IsCA, leaf.SerialNumber)
	}
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != "berth-epp.invalid" || len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) != 0 {
		t.Errorf("it names %v %v", leaf.DNSNames, leaf.IPAddresses)
	}
	other, err := SelfSigned(now)
	if err != nil {
		t.Fatal(err)
	}
	if other.Leaf.SerialNumber.Cmp(leaf.SerialNumber) == 0 || other.PrivateKey.(*ecdsa.PrivateKey).Equal(pair.PrivateKey) {
		t.Error("two pairs share a serial number or a key")
	}
}

func TestAPairIsRead(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsa2048, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"Ed25519": ed, "ECDSA P-384": p384, "RSA 2048": rsa2048} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			authority.IssueFor(key, 7).Write(t, dir)
			serial(t, dir, 7)
		})
	}
	t.Run("with a chain, and other blocks around it", func(t *testing.T) {
		dir := t.TempDir()
		pair := authority.Issue(8)
		text := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 0}})
		pair.Cert = append(append(append([]byte("the picker's own\n"), text...), pair.Cert...), authority.PEM...)
		pair.Write(t, dir)
		if got := serial(t, dir, 8); len(got.Certificate) != 2 {
			t.Errorf("the chain has %d certificates, want 2", len(got.Certificate))
		}
	})
}

// serial opens a directory that must have a good pair.
func serial(t *testing.T, dir string, want int64) *tls.Certificate {
	t.Helper()
	_, pair, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if pair.Leaf.SerialNumber.Cmp(big.NewInt(want)) != 0 {
		t.Errorf("serial %v, want %d", pair.Leaf.SerialNumber, want)
	}
	return pair
}

func TestWhatIsNoGoodPairIsRefusedByFile(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	good, other := authority.Issue(1), authority.Issue(2)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, content ...byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
	}
	put := func(pair certificatetest.Pair) func(*testing.T, string) {
		return func(t *testing.T, dir string) { pair.Write(t, dir) }
	}
	at := func(from, to time.Duration) certificatetest.Pair {
		return authority.Issue(3, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).Add(from), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).Add(to)
		})
	}
	for _, tt := range []struct {
		name string
		// file is the one that the error names.
		file string
		put  func(t *testing.T, dir string)
		now  time.Time // zero: the time of day
		want string
	}{
		{name: "an empty directory", file: CertFile, put: func(*testing.T, string) {}, want: "cannot be read: no such file or directory"},
		{name: "no key", file: KeyFile, want: "cannot be read: no such file or directory", put: func(t *testing.T, dir string) {
			certificatetest.WriteFile(t, filepath.Join(dir, CertFile), good.Cert)
		}},
		{name: "a pipe", file: CertFile, want: "cannot be read: it is not a regular file", put: func(t *testing.T, dir string) {
			if err := syscall.Mkfifo(filepath.Join(dir, CertFile), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "a link to a device", file: KeyFile, want: "cannot be read: it is not a regular file", put: func(t *testing.T, dir string) {
			certificatetest.WriteFile(t, filepath.Join(dir, CertFile), good.Cert)
			if err := os.Symlink("/dev/zero", filepath.Join(dir, KeyFile)); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "a directory", file: KeyFile, want: "cannot be read: it is not a regular file", put: func(t *testing.T, dir string) {
			certificatetest.WriteFile(t, filepath.Join(dir, CertFile), good.Cert)
			if err := os.Mkdir(filepath.Join(dir, KeyFile), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{
			name: "a file without an end", file: CertFile, want: "cannot be read: it is longer than 128 KiB",
			put: put(certificatetest.Pair{Cert: append(make([]byte, 128<<10), good.Cert...), Key: good.Key}),
		},
		{name: "an empty certificate", file: CertFile, put: put(certificatetest.Pair{Key: good.Key}), want: "holds no certificate: must be PEM"},
		{
			name: "a certificate that is no PEM", file: CertFile, want: "holds no certificate: must be PEM",
			put: put(certificatetest.Pair{Cert: []byte("certificate"), Key: good.Key}),
		},
		{name: "the two files swapped", file: CertFile, put: put(certificatetest.Pair{Cert: good.Key, Key: good.Cert}), want: "holds no certificate"},
		{
			name: "a certificate that is none", file: CertFile, want: "PEM block 1 cannot be parsed: x509",
			put: put(certificatetest.Pair{Cert: block("CERTIFICATE", 0x30, 0), Key: good.Key}),
		},
		{
			name: "a chain that breaks off", file: CertFile, want: "PEM block 2 cannot be parsed: x509",
			put: put(certificatetest.Pair{Cert: append(good.Cert[:len(good.Cert):len(good.Cert)], block("CERTIFICATE", 1)...), Key: good.Key}),
		},
		{name: "an empty key", file: KeyFile, put: put(certificatetest.Pair{Cert: good.Cert}), want: "must be the private key of DIR/tls.crt, PEM and not encrypted"},
		{
			name: "an encrypted key", file: KeyFile, want: "must be the private key of DIR/tls.crt, PEM and not encrypted",
			put: put(certificatetest.Pair{Cert: good.Cert, Key: block("ENCRYPTED PRIVATE KEY", 0x30, 0)}),
		},
		{name: "another certificate's key", file: KeyFile, put: put(certificatetest.Pair{Cert: good.Cert, Key: other.Key}), want: "private key does not match public key"},
		{name: "expired", file: CertFile, put: put(at(-time.Hour, 0)), want: "expired at 2026-03-01T00:00:00Z", now: time.Date(2026, 3, 1, 0, 0, 1, 0, time.UTC)},
		{
			name: "not yet valid", file: CertFile, put: put(at(time.Hour, 2*time.Hour)),
			want: "is not valid before 2026-03-01T01:00:00Z", now: time.Date(2026, 3, 1, 0, 59, 59, 0, time.UTC),
		},
		{name: "a curve that TLS does not have", file: CertFile, put: put(authority.IssueFor(p224, 4)), want: "no client could shake hands with it: tls: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.put(t, dir)
			now := time.Now
			if !tt.now.IsZero() {
				now = func() time.Time { return tt.now }
			}
			files, pair, err := Open(dir, now)
			if files != nil || pair != nil {
				t.Error("there is a pair beside the error")
			}
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("error %v, want an *Error", err)
			}
			if want := filepath.Join(dir, tt.file); refused.File != want || !strings.HasPrefix(err.Error(), want+": ") {
				t.Errorf("error %q is about %s, want %s", err, refused.File, want)
			}
			if got := strings.ReplaceAll(refused.Problem, dir, "DIR"); !strings.Contains(got, tt.want) {
				t.Errorf("problem %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAFileThatIsNotThereIsToldApart(t *testing.T) {
	if _, _, err := Open(t.TempDir(), time.Now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestAPairIsValidFromItsFirstSecondToItsLast(t *testing.T) {
	from := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	pair := certificatetest.NewAuthority(t).Issue(1, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = from, from.Add(time.Hour) })
	dir := t.TempDir()
	pair.Write(t, dir)
	for now, good := range map[time.Time]bool{
		from.Add(-time.Nanosecond): false, from: true, from.Add(time.Hour): true, from.Add(time.Hour + time.Nanosecond): false,
	} {
		if _, _, err := Open(dir, func() time.Time { return now }); (err == nil) != good {
			t.Errorf("at %v: %v", now, err)
		}
	}
}

func FuzzPairs(f *testing.F) {
	authority := certificatetest.NewAuthority(f)
	good, other := authority.Issue(1), authority.Issue(2)
	f.Add(good.Cert, good.Key)
	f.Add(good.Cert, other.Key)
	f.Add(append(good.Cert[:len(good.Cert):len(good.Cert)], authority.PEM...), good.Key)
	f.Add(good.Key, good.Cert)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{})
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		pair, err := parse("c", cert, "k", key, time.Now())
		if (pair == nil) == (err == nil) {
			t.Fatalf("pair %v, error %v", pair, err)
		}
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || refused.File != "c" && refused.File != "k" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if pair.Leaf == nil || len(pair.Certificate) == 0 {
			t.Fatal("a pair without a certificate")
		}
	})
}
