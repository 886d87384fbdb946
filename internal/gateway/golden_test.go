package gateway

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files from what the code writes now")

// gateways are the configurations that golden files show and that the real
// Envoy has to accept.
func gateways() map[string]Options {
	pool := []Endpoint{
		{"local/r1", netip.MustParseAddrPort("10.0.0.1:8000")},
		{"local/r2", netip.MustParseAddrPort("[fd00::2]:8000")},
		{"local/r3 \"ünï\" {{x}}: %REQ(A)%", netip.MustParseAddrPort("[::ffff:10.0.0.3]:8001")},
	}
	return map[string]Options{
		"override-host": {
			ListenAddress: "127.0.0.1:8080",
			AdminAddress:  "127.0.0.1:0",
			PickerAddress: "127.0.0.1:9002",
			EndpointsFile: "/etc/berth/gateway/endpoints.yaml",
			Fallbacks:     3,
			Endpoints:     pool,
		},
		"override-host-inline": {
			Kind:            OverrideHost,
			ListenAddress:   "[::]:8080",
			PickerAddress:   "[fd00::9]:9002",
			PickerTLS:       "/etc/berth/a \"b\"/ca.crt",
			Endpoints:       pool,
			RequestTrailers: true,
			SignedIntents:   true,
			AccessLog:       "/var/log/envoy/a \"b\".log",
		},
		"override-host-empty": {
			ListenAddress:   "0.0.0.0:8080",
			PickerAddress:   "berth.inference.svc.cluster.local:9002",
			PickerTLS:       "/etc/berth/picker/ca.crt",
			Fallbacks:       1,
			BodyBufferLimit: 1 << 20,
		},
		"semantic-router": {
			ListenAddress: "127.0.0.1:8080",
			AdminAddress:  "127.0.0.1:9901",
			PickerAddress: "127.0.0.1:9002",
			Router: &Router{
				Address: "127.0.0.1:50051",
				DecisionHeaders: []HeaderMapping{
					{"x-residency", "requirement.residency.berth.dev/residency"},
				},
			},
			EndpointsFile:   "/etc/berth/gateway/endpoints.yaml",
			Fallbacks:       1,
			BodyBufferLimit: 32 << 20,
			Endpoints:       pool[:2],
		},
		"semantic-router-original-dst": {
			Kind:          OriginalDst,
			ListenAddress: "0.0.0.0:8080",
			PickerAddress: "berth.inference.svc.cluster.local:9002",
			PickerTLS:     PickerTLSUnverified,
			Router: &Router{
				Address: "semantic-router.vllm.svc.cluster.local:50051",
				TLS:     "/etc/berth/router/ca.crt",
				DecisionHeaders: []HeaderMapping{
					{"x-tenant", "requirement.authorization.berth.dev/tenants"},
					{"x-tier", "priority"},
				},
			},
		},
		"original-dst": {
			Kind:          OriginalDst,
			ListenAddress: "127.0.0.1:8080",
			AdminAddress:  "[::1]:9901",
			PickerAddress: "127.0.0.1:9002",
			PickerTLS:     PickerTLSUnverified,
			EndpointsFile: "/etc/berth/gateway/endpoints.yaml",
			Endpoints:     pool,
		},
	}
}

func TestBootstrapsAreAsTheGoldenFilesShow(t *testing.T) {
	for name, o := range gateways() {
		t.Run(name, func(t *testing.T) {
			content, err := Bootstrap(o)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".yaml", content)
		})
	}
}

func TestEndpointsFilesAreAsTheGoldenFilesShow(t *testing.T) {
	for _, name := range []string{"override-host", "override-host-empty"} {
		t.Run(name, func(t *testing.T) {
			content, err := EndpointsFile(gateways()[name])
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".endpoints.yaml", content)
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is written now (-update rewrites it):\n%s", path, got)
	}
}
