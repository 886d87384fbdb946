package gateway

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
	"github.com/berth-dev/berth/internal/host"
)

// pickerOver starts a real picker with one replica, and returns the address of
// its ext_proc listener.
func pickerOver(t *testing.T, tls string, replica netip.AddrPort) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "berth.yaml")
	text := "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n" +
		"plugins: [{type: queue-depth}, {type: berth-picker}]\n" +
		"schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-depth, weight: 1}, {pluginRef: berth-picker}]}]\n" +
		"---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\ntelemetry: {mode: none}\n" +
		"---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: local, name: p}\n" +
		fmt.Sprintf("endpoints: [{name: r1, address: %s, port: %d, engine: vllm}]\n", replica.Addr(), replica.Port())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const free = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	h, err := host.Start(ctx, host.Options{
		ConfigFile: config, ExtProcTLS: tls, Log: zap.NewNop(),
		ExtProcAddress: free, HealthAddress: free, MetricsAddress: free, AdminAddress: free,
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Stop()
		cancel()
	})
	return h.ExtProcAddr().String()
}

func TestZ6_EnvoyAndThePickerAgreeOnTLSOrNobodyIsServed(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		certificatetest.WriteFile(t, path, content)
		return path
	}
	trusted, stranger := file("ca.crt", authority.PEM), file("stranger.crt", certificatetest.NewAuthority(t).PEM)
	pair := func(change ...func(*x509.Certificate)) string {
		d := t.TempDir()
		authority.Issue(1, change...).Write(t, d)
		return d
	}
	issued := pair()
	keyed := func(key crypto.Signer) string {
		d := t.TempDir()
		authority.IssueFor(key, 1).Write(t, d)
		return d
	}
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
	const (
		// Envoy's counters, by which it tells why it has no connection.
		untrusted = "cluster.picker.ssl.fail_verify_error"
		misnamed  = "cluster.picker.ssl.fail_verify_san"
		noTLS     = "cluster.picker.ssl.connection_error"
		noPlain   = "cluster.picker.upstream_cx_destroy_with_active_rq"
	)
	for _, tt := range []struct {
		name            string
		picker, gateway string
		byName          bool   // the gateway knows the picker as localhost
		why             string // nobody is served; empty: the replica serves
	}{
		{name: "no TLS", picker: host.TLSOff, gateway: PickerTLSOff},
		{name: "self-signed and unverified", picker: host.TLSSelfSigned, gateway: PickerTLSUnverified},
		{name: "issued and unverified", picker: issued, gateway: PickerTLSUnverified},
		{name: "issued and verified by address", picker: issued, gateway: trusted},
		{
			name: "issued and verified by name", gateway: trusted, byName: true,
			picker: pair(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"localhost"} }),
		},
		{name: "issued for a P-384 key", picker: keyed(p384), gateway: trusted},
		{name: "issued for an RSA key", picker: keyed(rsa2048), gateway: trusted},
		{name: "issued for an Ed25519 key, which Envoy does not take", picker: keyed(ed), gateway: trusted, why: noTLS},
		{name: "self-signed, and the gateway verifies", picker: host.TLSSelfSigned, gateway: trusted, why: untrusted},
		{name: "issued by an authority that the gateway does not trust", picker: issued, gateway: stranger, why: untrusted},
		{
			name: "issued for another host", gateway: trusted, why: misnamed,
			picker: pair(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} }),
		},
		{name: "issued for the address, and the gateway goes by the name", picker: issued, gateway: trusted, byName: true, why: misnamed},
		{name: "the gateway alone speaks TLS", picker: host.TLSOff, gateway: PickerTLSUnverified, why: noTLS},
		{name: "the picker alone speaks TLS", picker: host.TLSSelfSigned, gateway: PickerTLSOff, why: noPlain},
	} {
		t.Run(tt.name, func(t *testing.T) {
			replica := newReplica(t, "127.0.0.1:0")
			address := pickerOver(t, tt.picker, replica.address)
			if tt.byName {
				_, port, _ := net.SplitHostPort(address)
				address = net.JoinHostPort("localhost", port)
			}
			r := run(t, Options{PickerAddress: address, PickerTLS: tt.gateway, Endpoints: []Endpoint{{"r1", replica.address}}},
				func(bootstrap string) string { // localhost may be ::1 first
					return strings.Replace(bootstrap, "    type: STRICT_DNS\n", "    type: STRICT_DNS\n    dns_lookup_family: V4_ONLY\n", 1)
				})
			status, answer := r.send(t, client(t, false), http.MethodPost, strings.NewReader(`{"model":"m","prompt":"hello"}`), func(request *http.Request) {
				request.Header.Set("Content-Type", "application/json")
			})
			wantStatus, wantRequests := http.StatusOK, 1
			if tt.why != "" {
				wantStatus, wantRequests = http.StatusInternalServerError, 0
				if stats := r.get("/stats?usedonly&filter=cluster.picker"); !strings.Contains(stats, tt.why+": ") {
					t.Errorf("Envoy does not count %s:\n%s", tt.why, stats)
				}
			}
			if status != wantStatus {
				t.Errorf("status %d, want %d: %s", status, wantStatus, answer)
			}
			if got := len(replica.requests()); got != wantRequests {
				t.Errorf("the replica got %d requests, want %d", got, wantRequests)
			}
		})
	}
}
