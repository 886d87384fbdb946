package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/policy"
)

// What a pool names is where requests and scrapes go: what is no address of one
// host, or would send a scrape elsewhere, does not start.
func TestZ8_PoolsThatPointElsewhereDoNotStart(t *testing.T) {
	const head = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n" +
		"plugins: [{type: queue-depth}, {type: berth-picker}]\n" +
		"schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-depth, weight: 1}, {pluginRef: berth-picker}]}]\n" +
		"---\napiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: l, name: p}\nendpoints:\n"
	for _, tt := range []struct{ name, endpoint, field string }{
		{"a metadata service", "{name: r1, address: 169.254.169.254, port: 80}", "endpoints[0].address"},
		{"a metadata service as IPv6", "{name: r1, address: '::ffff:169.254.169.254', port: 80}", "endpoints[0].address"},
		{"link-local IPv6", "{name: r1, address: 'fe80::1', port: 80}", "endpoints[0].address"},
		{"a zone", "{name: r1, address: 'fe80::1%eth0', port: 80}", "endpoints[0].address"},
		{"a hostname", "{name: r1, address: engine.example, port: 80}", "endpoints[0].address"},
		{"localhost", "{name: r1, address: localhost, port: 80}", "endpoints[0].address"},
		{"an address with a port", "{name: r1, address: '10.0.0.1:8000', port: 80}", "endpoints[0].address"},
		{"a number that other programs read as loopback", "{name: r1, address: '2130706433', port: 80}", "endpoints[0].address"},
		{"leading zeros", "{name: r1, address: 010.0.0.1, port: 80}", "endpoints[0].address"},
		{"everywhere", "{name: r1, address: 0.0.0.0, port: 80}", "endpoints[0].address"},
		{"everywhere as IPv6", "{name: r1, address: '::', port: 80}", "endpoints[0].address"},
		{"multicast", "{name: r1, address: 224.0.0.1, port: 80}", "endpoints[0].address"},
		{"broadcast", "{name: r1, address: 255.255.255.255, port: 80}", "endpoints[0].address"},
		{"no address", "{name: r1, port: 80}", "endpoints[0].address"},
		{"port 0", "{name: r1, address: 10.0.0.1, port: 0}", "endpoints[0].port"},
		{"port 70000", "{name: r1, address: 10.0.0.1, port: 70000}", "endpoints[0].port"},
		{"a negative port", "{name: r1, address: 10.0.0.1, port: -1}", "endpoints[0].port"},
		{"a metrics host", "{name: r1, address: 10.0.0.1, port: 80, metrics: {host: 10.9.9.9}}", "endpoints[0].metrics.host"},
		{"a metrics address", "{name: r1, address: 10.0.0.1, port: 80, metrics: {address: 10.9.9.9}}", "endpoints[0].metrics.address"},
		{"an annotation with a metrics host", "{name: r1, address: 10.0.0.1, port: 80, annotations: {berth.dev/metrics-host: 10.9.9.9}}",
			"endpoints[0].annotations[berth.dev/metrics-host]"},
		{"a metrics path that is a URL", "{name: r1, address: 10.0.0.1, port: 80, metrics: {path: 'http://10.9.9.9/metrics'}}", "endpoints[0].metrics.path"},
		{"a metrics path that begins with a host", "{name: r1, address: 10.0.0.1, port: 80, metrics: {path: //10.9.9.9/metrics}}", "endpoints[0].metrics.path"},
		{"an annotation with such a path", "{name: r1, address: 10.0.0.1, port: 80, annotations: {berth.dev/metrics-path: //10.9.9.9/metrics}}",
			"endpoints[0].annotations[berth.dev/metrics-path]"},
		{"a metrics scheme that is none", "{name: r1, address: 10.0.0.1, port: 80, metrics: {scheme: file}}", "endpoints[0].metrics.scheme"},
		{"the same address twice", "{name: r1, address: 10.0.0.1, port: 80}\n- {name: r2, address: '::ffff:10.0.0.1', port: 80}", "endpoints[1].port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "berth.yaml")
			if err := os.WriteFile(path, []byte(head+"- "+tt.endpoint+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := execute(t.Context(), "--config", path, "--extproc-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0",
				"--metrics-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0")
			var refused *policy.Error
			if !errors.As(err, &refused) || refused.Field != tt.field {
				t.Errorf("%v, want an error that names %s", err, tt.field)
			}
		})
	}
}

// The reports name replicas: unless told otherwise, they are for this host alone.
func TestZ7_ReportsListenOnLoopbackUnlessToldOtherwise(t *testing.T) {
	address := command().Flags().Lookup("admin-address").DefValue
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		t.Errorf("--admin-address is %s, want one of loopback", address)
	}
	for _, word := range []string{"pprof", "profil", "debug-"} {
		if strings.Contains(command().Flags().FlagUsages(), word) {
			t.Errorf("a flag has to do with %q: the listeners that it may open are not tested here", word)
		}
	}
}
