package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
)

// overTLS starts a picker whose ext_proc listener has that TLS.
func overTLS(t *testing.T, mode string) *running {
	t.Helper()
	base := runtime.NumGoroutine()
	config := filepath.Join(t.TempDir(), "berth.yaml")
	write(t, config, pickerDocument+berthDocument(quiet)+"---\n"+poolDocument("19101", "19102"))
	core, logs := observer.New(zapcore.DebugLevel)
	r := &running{t: t, config: config, log: logs, records: &lockedBuffer{}, options: optionsFor(config)}
	r.options.Log, r.options.DecisionLog, r.options.ExtProcTLS = zap.New(core), r.records, mode
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	h, err := Start(ctx, r.options)
	if err != nil {
		r.cancel()
		t.Fatal(err)
	}
	r.Host = h
	t.Cleanup(func() {
		r.stop()
		eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= base })
	})
	return r
}

// dialTLS opens a gRPC connection, of which the handshake is made at once.
func dialTLS(t *testing.T, addr net.Addr, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr.String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// unverified is what gateways do that do not verify.
func unverified() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// handshake shakes hands with the ext_proc listener and reads what a gRPC server
// says first, of which it returns the first byte's presence.
func (r *running) handshake(config *tls.Config) (state tls.ConnectionState, spoke bool, err error) {
	r.t.Helper()
	raw, err := net.DialTimeout("tcp", r.ExtProcAddr().String(), patience)
	if err != nil {
		r.t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	conn := tls.Client(raw, config)
	if err := conn.Handshake(); err != nil {
		return tls.ConnectionState{}, false, err
	}
	state = conn.ConnectionState()
	_, err = io.ReadFull(conn, make([]byte, 1))
	return state, err == nil, err
}

// serial is the serial number that a new handshake shows.
func (r *running) serial() int64 {
	r.t.Helper()
	state, _, err := r.handshake(unverified())
	if err != nil {
		r.t.Fatal(err)
	}
	return state.PeerCertificates[0].SerialNumber.Int64()
}

func TestZ6_OnlyTLS12AndLaterWithH2IsSpoken(t *testing.T) {
	r := overTLS(t, TLSSelfSigned)
	for _, tt := range []struct {
		name   string
		config *tls.Config
		// version is what is agreed on; 0 where the handshake itself fails.
		version uint16
		speaks  bool
		want    string // of the error
	}{
		{name: "TLS 1.3 with h2", config: &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}, version: tls.VersionTLS13, speaks: true},
		{name: "TLS 1.2 with h2", config: &tls.Config{NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12}, version: tls.VersionTLS12, speaks: true},
		{name: "h2 as the second choice", config: &tls.Config{NextProtos: []string{"http/1.1", "h2"}}, version: tls.VersionTLS13, speaks: true},
		// Where no protocol is asked for, or what Go's TLS counts as none, the
		// handshake succeeds, and then the server hangs up without a word.
		{name: "no ALPN", config: &tls.Config{}, version: tls.VersionTLS13, want: "EOF"},
		{name: "no ALPN over TLS 1.2", config: &tls.Config{MaxVersion: tls.VersionTLS12}, version: tls.VersionTLS12, want: "EOF"},
		{name: "HTTP/1.1 alone", config: &tls.Config{NextProtos: []string{"http/1.1"}}, version: tls.VersionTLS13, want: "EOF"},
		{name: "HTTP/3 alone", config: &tls.Config{NextProtos: []string{"h3"}}, want: "no application protocol"},
		{name: "TLS 1.1", config: &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, want: "protocol version"},
		{name: "TLS 1.0", config: &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}, want: "protocol version"},
		{
			name: "a cipher suite that HTTP/2 forbids", want: "handshake failure",
			config: &tls.Config{NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := tt.config.Clone()
			config.InsecureSkipVerify = true
			state, spoke, err := r.handshake(config)
			if state.Version != tt.version || spoke != tt.speaks {
				t.Errorf("version %s, spoke: %v (%v); want %s, %v",
					tls.VersionName(state.Version), spoke, err, tls.VersionName(tt.version), tt.speaks)
			}
			if spoke && state.NegotiatedProtocol != "h2" {
				t.Errorf("agreed on %q, want h2", state.NegotiatedProtocol)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestZ6_AClientWithoutTLSIsNotServed(t *testing.T) {
	r := overTLS(t, TLSSelfSigned)
	conn := dial(t, r.ExtProcAddr())
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err == nil {
		t.Error("it was answered")
	}
}

func TestARequestIsPlacedOverTLSAndTheHealthListenerStaysPlain(t *testing.T) {
	r := overTLS(t, TLSSelfSigned)
	conn := dialTLS(t, r.ExtProcAddr(), unverified())
	g := r.ask(conn, question{parts: []string{hello}})
	mustPlace(t, g)
	g.tell("200", "application/json", "all of it")

	plain := dial(t, r.HealthAddr())
	defer plain.Close()
	got, err := healthv1.NewHealthClient(plain).Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", got, err)
	}
}

func TestZ6_AVerifyingClientTakesAnIssuedCertificateAndNoSelfSignedOne(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	authority.Issue(1).Write(t, dir)
	verifying := &tls.Config{RootCAs: authority.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"h2"}}
	if _, _, err := overTLS(t, dir).handshake(verifying); err != nil {
		t.Errorf("issued: %v", err)
	}
	var unknown x509.UnknownAuthorityError
	var misnamed x509.HostnameError
	if _, _, err := overTLS(t, TLSSelfSigned).handshake(verifying); !errors.As(err, &unknown) && !errors.As(err, &misnamed) {
		t.Errorf("self-signed: %v, want that it does not verify", err)
	}
}

// secret is a mounted secret as the kubelet has it: files that are links through
// ..data, which it swaps.
type secret struct {
	t   *testing.T
	dir string
}

func newSecret(t *testing.T, pair certificatetest.Pair) secret {
	t.Helper()
	s := secret{t, t.TempDir()}
	s.swap("..1", pair)
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s secret) swap(name string, pair certificatetest.Pair) {
	s.t.Helper()
	version, data := filepath.Join(s.dir, name), filepath.Join(s.dir, "..data")
	if err := os.Mkdir(version, 0o700); err != nil {
		s.t.Fatal(err)
	}
	pair.Write(s.t, version)
	if err := os.Symlink(name, data+"_tmp"); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(data+"_tmp", data); err != nil {
		s.t.Fatal(err)
	}
}

func TestZ6_ASwapLeavesOpenStreamsAloneAndNewHandshakesShowTheNewSerial(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	s := newSecret(t, authority.Issue(1))
	r := overTLS(t, s.dir)
	conn := dialTLS(t, r.ExtProcAddr(), unverified())
	open := r.ask(conn, question{parts: []string{hello}})
	mustPlace(t, open)

	// A client that would resume its session if it could.
	resuming := unverified()
	resuming.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	if state, _, err := r.handshake(resuming); err != nil || state.PeerCertificates[0].SerialNumber.Int64() != 1 {
		t.Fatalf("before: %v, %v", state.PeerCertificates, err)
	}

	until := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	s.swap("..2", authority.Issue(2, func(c *x509.Certificate) { c.NotAfter = until }))
	eventually(t, "new handshakes show serial 2", func() bool { return r.serial() == 2 })
	state, _, err := r.handshake(resuming)
	if err != nil || state.DidResume || state.PeerCertificates[0].SerialNumber.Int64() != 2 {
		t.Errorf("a client with a session: resumed %v, %v", state.DidResume, err)
	}

	open.tell("200", "application/json", "half", "rest")
	later := r.ask(conn, question{parts: []string{hello}})
	mustPlace(t, later)
	later.tell("200", "application/json", "all of it")

	page := r.metricsPage()
	for _, want := range []string{
		`berth_certificate_reloads_total{result="ok"} 1`, `berth_certificate_reloads_total{result="failed"} 0`,
		"berth_certificate_expiry_timestamp_seconds 1.935817689e+09", // 2031-05-06T07:08:09Z
	} {
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	loaded := r.log.FilterMessage("certificate loaded").All()
	if len(loaded) != 1 || loaded[0].ContextMap()["serial"] != "2" {
		t.Errorf("logged %v", loaded)
	}
}

func TestZ6_APairThatIsNotGoodKeepsTheLastGoodOneAndIsToldOnce(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	for _, tt := range []struct {
		name string
		pair func(fresh certificatetest.Pair) certificatetest.Pair
		want string // in the log
	}{
		{
			name: "the new certificate with another key", want: "/tls.key: must be the private key of ",
			pair: func(fresh certificatetest.Pair) certificatetest.Pair {
				return certificatetest.Pair{Cert: fresh.Cert, Key: authority.Issue(9).Key}
			},
		},
		{
			name: "expired", want: "/tls.crt: expired at 2020-01-02T03:04:05Z",
			pair: func(certificatetest.Pair) certificatetest.Pair {
				return authority.Issue(9, func(c *x509.Certificate) {
					c.NotAfter = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
					c.NotBefore = c.NotAfter.Add(-time.Hour)
				})
			},
		},
		{
			name: "half of a key", want: "/tls.key: must be the private key of ",
			pair: func(fresh certificatetest.Pair) certificatetest.Pair {
				return certificatetest.Pair{Cert: fresh.Cert, Key: fresh.Key[:len(fresh.Key)/2]}
			},
		},
		{
			name: "no certificate", want: "/tls.crt: holds no certificate",
			pair: func(fresh certificatetest.Pair) certificatetest.Pair { return certificatetest.Pair{Key: fresh.Key} },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSecret(t, authority.Issue(1))
			r := overTLS(t, s.dir)
			fresh := authority.Issue(2)
			const message = "certificate not loaded; new connections get the last good one"
			s.swap("..2", tt.pair(fresh))
			eventually(t, "the error is logged", func() bool { return r.log.FilterMessage(message).Len() > 0 })
			if got := r.serial(); got != 1 {
				t.Errorf("a new handshake shows serial %d, want 1", got)
			}
			s.swap("..3", fresh)
			eventually(t, "new handshakes show serial 2", func() bool { return r.serial() == 2 })

			told := r.log.FilterMessage(message).All()
			if len(told) != 1 || told[0].Level != zapcore.ErrorLevel {
				t.Fatalf("logged %v, want one error", told)
			}
			text, ok := told[0].ContextMap()["error"].(string)
			if !ok || !strings.Contains(text, tt.want) {
				t.Errorf("logged %q, want %q", text, tt.want)
			}
			if strings.Contains(text, strings.Split(string(fresh.Key), "\n")[1]) {
				t.Error("the log holds a part of a key")
			}
			if page := r.metricsPage(); !strings.Contains(page, `berth_certificate_reloads_total{result="failed"} 1`) {
				t.Error("the failure is not counted once")
			}
		})
	}
}

func TestZ6_APickerDoesNotStartWithoutTheTLSThatItIsToHave(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	good, other := authority.Issue(1), authority.Issue(2)
	expired := authority.Issue(3, func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) })
	with := func(pair certificatetest.Pair) string {
		dir := t.TempDir()
		pair.Write(t, dir)
		return dir
	}
	empty := t.TempDir()
	noKey := t.TempDir()
	write(t, filepath.Join(noKey, "tls.crt"), string(good.Cert))
	file := filepath.Join(with(good), "tls.crt")
	for _, tt := range []struct {
		name, mode string
		want       []string
	}{
		{"a word that is none", "on", []string{"no such directory", "must be off, self-signed, or a directory with tls.crt and tls.key"}},
		{"a file instead of its directory", file, []string{"no such directory", "must be off, self-signed, or a directory"}},
		{"an empty directory", empty, []string{filepath.Join(empty, "tls.crt") + ": cannot be read: no such file or directory"}},
		{"no key", noKey, []string{filepath.Join(noKey, "tls.key") + ": cannot be read: no such file or directory"}},
		{"another certificate's key", with(certificatetest.Pair{Cert: good.Cert, Key: other.Key}), []string{"tls.key: must be the private key of", "does not match"}},
		{"the files swapped", with(certificatetest.Pair{Cert: good.Key, Key: good.Cert}), []string{"tls.crt: holds no certificate"}},
		{"expired", with(expired), []string{"tls.crt: expired at "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := runtime.NumGoroutine()
			config := filepath.Join(t.TempDir(), "berth.yaml")
			write(t, config, pickerDocument+"---\n"+poolDocument("19101"))
			o := optionsFor(config)
			o.DecisionLog, o.ExtProcTLS = io.Discard, tt.mode
			h, err := Start(t.Context(), o)
			if err == nil {
				h.Stop()
				t.Fatal("it started")
			}
			for _, want := range append(tt.want, "--extproc-tls "+tt.mode+": ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			eventually(t, "goroutines are back to what they were", func() bool { return runtime.NumGoroutine() <= base })
		})
	}
}

func TestWithoutTLSThereIsNoCertificateInTheMetrics(t *testing.T) {
	for _, mode := range []string{"", TLSOff} {
		r := overTLS(t, mode)
		if page := r.metricsPage(); strings.Contains(page, "berth_certificate_") {
			t.Errorf("%q: the metrics know a certificate", mode)
		}
		conn := dial(t, r.ExtProcAddr())
		t.Cleanup(func() { _ = conn.Close() })
		mustPlace(t, r.ask(conn, question{parts: []string{hello}}))
	}
}
