package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

// A9: neither telemetry nor an intent is needed.
func TestA9_PlainAddressesServeWithoutTelemetryAndWithoutAnIntent(t *testing.T) {
	f := start(t, spec{
		engines: engines(2, enginesim.Config{}),
		// Nothing but where they are.
		members: func(m []v1alpha1.StaticEndpoint) []v1alpha1.StaticEndpoint {
			for i := range m {
				m[i] = v1alpha1.StaticEndpoint{Name: m[i].Name, Address: m[i].Address, Port: m[i].Port}
			}
			return m
		},
		berth: tree{"telemetry": tree{"mode": "none"}},
	})
	first := f.post(f.h1, asks(1))
	if first.status != http.StatusOK || first.header.Get("X-Berth-Rung") != "spread" {
		t.Fatalf("the first request: status %d, rung %q, %s; want 200 and spread", first.status, first.header.Get("X-Berth-Rung"), first.body)
	}
	if d := f.record(first.decision()); d.Intent.Source != "none" || d.Acknowledgement.Acted != "confirmed" {
		t.Errorf("its record: source %q, acted %q; want none and confirmed", d.Intent.Source, d.Acknowledgement.Acted)
	}
	for version, c := range f.clients() {
		// What the picker knows by itself is what it has in flight.
		held := map[string]int{}
		var open []*stream
		for range 4 {
			s := f.open(c, streams(8000), "")
			if s.status != http.StatusOK || s.header.Get("X-Berth-Rung") != "local" {
				t.Fatalf("%s: status %d, rung %q; want 200 and local, since an outcome is known", version, s.status, s.header.Get("X-Berth-Rung"))
			}
			held[s.engine()]++
			open = append(open, s)
		}
		if held["e1"] != 2 || held["e2"] != 2 {
			t.Errorf("%s: 4 requests at once are served by %v, want two each", version, held)
		}
		for _, s := range open {
			s.close()
		}
		f.awaitInFlight(map[string]int{})
	}
	// Without telemetry nobody knows what a replica serves, so the replica says it.
	if a := f.post(f.h1, `{"model":"other","prompt":"hi"}`); a.status != http.StatusNotFound || a.engine() == "" {
		t.Errorf("a model that nobody is known to serve: status %d from %q, want a replica's own 404", a.status, a.engine())
	}
	if n := f.sum("berth_scrapes_total"); n != 0 {
		t.Errorf("replicas were asked for telemetry %v times, want never", n)
	}
	f.awaitInFlight(map[string]int{})
}

// addProvider adds a route in front of all others that asks no picker, to a provider
// at this address.
func addProvider(bootstrap tree, address string, match tree) {
	a := netip.MustParseAddrPort(address)
	resources := bootstrap["static_resources"].(tree)
	resources["clusters"] = append(resources["clusters"].([]any), tree{
		"name": "provider", "type": "STATIC",
		"load_assignment": tree{"cluster_name": "provider", "endpoints": []any{tree{"lb_endpoints": []any{tree{
			"endpoint": tree{"address": tree{"socket_address": tree{"address": a.Addr().String(), "port_value": int(a.Port())}}},
		}}}}},
	})
	host := connectionManager(listener(bootstrap))["route_config"].(tree)["virtual_hosts"].([]any)[0].(tree)
	host["routes"] = slices.Insert(host["routes"].([]any), 0, any(tree{
		"match": match,
		"route": tree{"cluster": "provider", "timeout": "0s"},
		"typed_per_filter_config": tree{"envoy.filters.http.ext_proc": tree{
			"@type":    "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
			"disabled": true,
		}},
	}))
}

// A9: a route that asks no picker needs none.
func TestA9_ARouteWithoutAPickerIsUntouchedByOneThatIsDown(t *testing.T) {
	type request struct {
		header http.Header
		body   string
	}
	var mu sync.Mutex
	var got []request
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, request{r.Header.Clone(), string(body)})
		_, _ = io.WriteString(w, "from the provider")
	}))
	defer provider.Close()
	f := start(t, spec{engines: engines(1, enginesim.Config{}), envoy: func(bootstrap tree) {
		addProvider(bootstrap, provider.Listener.Addr().String(), tree{"prefix": "/provider/"})
	}})
	const path = "/provider/v1/completions"
	serves := func(t *testing.T) {
		for version, c := range f.clients() {
			marker := t.Name() + version
			for _, body := range []string{odd(marker), "", strings.Repeat("x", 3<<20)} {
				a := f.do(c, f.request(t.Context(), http.MethodPost, path, body))
				if a.status != http.StatusOK || a.body != "from the provider" {
					t.Fatalf("%s: status %d, %s; want the provider's answer", version, a.status, a.body)
				}
				mu.Lock()
				last := got[len(got)-1]
				mu.Unlock()
				if last.body != body {
					t.Errorf("%s: the provider got a body of %d bytes that is not the client's of %d", version, len(last.body), len(body))
				}
				for name := range last.header {
					if strings.HasPrefix(name, "X-Berth-") || strings.HasPrefix(name, "X-Gateway-") {
						t.Errorf("%s: the provider got %s", version, name)
					}
				}
				for name := range a.header {
					if strings.HasPrefix(name, "X-Berth-") {
						t.Errorf("%s: the client got %s", version, name)
					}
				}
			}
		}
	}
	t.Run("while the picker runs", serves)
	if n := len(f.log.ended(t)); n != 0 {
		t.Errorf("%d decisions, want none", n)
	}
	f.stopPicker()
	t.Run("while the picker is down", serves)
	if a := f.post(f.h1, asks(1)); a.status != http.StatusInternalServerError || f.total() != 0 {
		t.Errorf("the pool's route: status %d, %d requests at the replica; want 500 and none", a.status, f.total())
	}
}
