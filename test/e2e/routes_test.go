package e2e

import (
	"encoding/json"
	"net/netip"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/gateway"
)

// A route is one way to configure a gateway in front of the picker. Several of
// them are listeners of one Envoy, since each start of one costs time.
type route struct {
	name string
	// cluster is where requests go; empty is the one that the fleet's kind has.
	cluster string
	// request is the mode of the request body; response is how much of responses
	// the picker sees. Empty is what gateway.Bootstrap writes: everything.
	request  string
	response responseMode
	edit     func(listener tree)
}

// Modes of request bodies.
const (
	fullDuplex      = "FULL_DUPLEX_STREAMED"
	buffered        = "BUFFERED"
	bufferedPartial = "BUFFERED_PARTIAL"
	streamed        = "STREAMED"
	none            = "NONE"
)

// A responseMode is how much of a response the picker sees.
type responseMode struct{ headers, body, trailers string }

func (m responseMode) String() string {
	switch {
	case m.headers == "SKIP":
		return "headers SKIP, trailers " + m.trailers
	case m.body == none:
		return "NONE, trailers " + m.trailers
	default:
		return m.body
	}
}

var (
	wholeResponse   = responseMode{"SEND", fullDuplex, "SEND"}
	endOfResponse   = responseMode{"SEND", none, "SEND"}
	responseHeaders = responseMode{"SEND", none, "SKIP"}
	noResponse      = responseMode{"SKIP", none, "SKIP"}
)

// Clusters that addClusters adds to an Envoy of kind override-host.
const (
	originalDst = "pool-original-dst"
	// anyHost takes any member of the pool where the picker named none that is
	// usable.
	anyHost = "pool-any-host"
)

// addClusters adds other ways to get to the pool's replicas.
func addClusters(t *testing.T, bootstrap tree) {
	t.Helper()
	resources := bootstrap["static_resources"].(tree)
	text, err := gateway.Bootstrap(gateway.Options{
		Kind: gateway.OriginalDst, ListenAddress: "127.0.0.1:0", PickerAddress: "127.0.0.1:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	var other tree
	if err := yaml.Unmarshal(text, &other); err != nil {
		t.Fatal(err)
	}
	direct := other["static_resources"].(tree)["clusters"].([]any)[0].(tree)
	direct["name"] = originalDst

	lenient := clone(t, resources["clusters"].([]any)[0].(tree))
	lenient["name"] = anyHost
	policy := lenient["load_balancing_policy"].(tree)["policies"].([]any)[0].(tree)["typed_extension_config"].(tree)
	policy["typed_config"].(tree)["fallback_policy"] = tree{"policies": []any{tree{"typed_extension_config": tree{
		"name":         "envoy.load_balancing_policies.round_robin",
		"typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
	}}}}
	resources["clusters"] = append(resources["clusters"].([]any), direct, lenient)
}

// onlyHosts has a cluster consist of just these hosts: where it takes any of
// its hosts, the test decides which ones those are.
func onlyHosts(bootstrap tree, cluster string, addresses ...string) {
	var hosts []any
	for _, address := range addresses {
		a := netip.MustParseAddrPort(address)
		hosts = append(hosts, tree{"endpoint": tree{"address": tree{"socket_address": tree{
			"address": a.Addr().String(), "port_value": int(a.Port()),
		}}}})
	}
	for _, c := range bootstrap["static_resources"].(tree)["clusters"].([]any) {
		if c := c.(tree); c["name"] == cluster {
			delete(c, "eds_cluster_config")
			c["type"] = "STATIC"
			c["load_assignment"] = tree{"cluster_name": cluster, "endpoints": []any{tree{"lb_endpoints": hosts}}}
		}
	}
}

// addRoutes adds a listener for each route.
func addRoutes(t *testing.T, bootstrap tree, routes ...route) {
	t.Helper()
	resources := bootstrap["static_resources"].(tree)
	listeners := resources["listeners"].([]any)
	for _, r := range routes {
		l := clone(t, listener(bootstrap))
		l["name"] = r.name
		if r.cluster != "" {
			routeTo(l)["cluster"] = r.cluster
		}
		mode := processingMode(l)
		if r.request != "" {
			mode["request_body_mode"] = r.request
			if r.request != fullDuplex {
				mode["request_trailer_mode"] = "SKIP"
			}
		}
		if r.response != (responseMode{}) {
			mode["response_header_mode"] = r.response.headers
			mode["response_body_mode"] = r.response.body
			mode["response_trailer_mode"] = r.response.trailers
		}
		if r.edit != nil {
			r.edit(l)
		}
		listeners = append(listeners, l)
	}
	resources["listeners"] = listeners
}

// clone copies a tree, so that edits of one do not show in the other.
func clone(t *testing.T, of tree) tree {
	t.Helper()
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	var copied tree
	if err := json.Unmarshal(text, &copied); err != nil {
		t.Fatal(err)
	}
	return copied
}

// through is the fleet as clients of one of its gateway's routes see it.
func (f *fleet) through(t *testing.T, route string) *fleet {
	t.Helper()
	address, ok := f.envoy.listeners[route]
	if !ok {
		t.Fatalf("the gateway has no route %q", route)
	}
	seen, envoy := *f, *f.envoy
	envoy.gateway = address
	seen.t, seen.envoy = t, &envoy
	return &seen
}
