package gateway

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// valid are options that each bad case spoils in one place.
func valid() Options {
	return Options{
		ListenAddress: "127.0.0.1:8080",
		PickerAddress: "127.0.0.1:9002",
		EndpointsFile: "/etc/berth/gateway/endpoints.yaml",
		Endpoints: []Endpoint{
			{"r1", netip.MustParseAddrPort("10.0.0.1:8000")},
			{"r2", netip.MustParseAddrPort("[fd00::2]:8000")},
		},
	}
}

func TestOptionsThatCannotWorkAreRefusedByField(t *testing.T) {
	address := netip.MustParseAddrPort
	for _, tc := range []struct {
		name  string
		spoil func(*Options)
		field string
		want  string // a fragment of the message
	}{
		{"unknown kind", func(o *Options) { o.Kind = "strict-dns" }, "Kind", `"strict-dns": must be override-host or original-dst`},
		{"no listener", func(o *Options) { o.ListenAddress = "" }, "ListenAddress", `"": must be ip:port`},
		{"listener without an address", func(o *Options) { o.ListenAddress = ":8080" }, "ListenAddress", `":8080"`},
		{"listener by name", func(o *Options) { o.ListenAddress = "localhost:8080" }, "ListenAddress", "ip:port"},
		{"listener in a zone", func(o *Options) { o.ListenAddress = "[fe80::1%eth0]:8080" }, "ListenAddress", "without a zone"},
		{"listener's port too large", func(o *Options) { o.ListenAddress = "127.0.0.1:65536" }, "ListenAddress", "65536"},
		{"admin without a port", func(o *Options) { o.AdminAddress = "127.0.0.1" }, "AdminAddress", "or empty"},
		{"no picker", func(o *Options) { o.PickerAddress = "" }, "PickerAddress", "ip:port or name:port"},
		{"picker without a host", func(o *Options) { o.PickerAddress = ":9002" }, "PickerAddress", `":9002"`},
		{"picker at port 0", func(o *Options) { o.PickerAddress = "127.0.0.1:0" }, "PickerAddress", "from 1 to 65535"},
		{"picker everywhere", func(o *Options) { o.PickerAddress = "0.0.0.0:9002" }, "PickerAddress", "0.0.0.0"},
		{"picker with a mistyped IP", func(o *Options) { o.PickerAddress = "10.0.0.256:9002" }, "PickerAddress", "10.0.0.256"},
		{"picker's IPv6 without brackets", func(o *Options) { o.PickerAddress = "fd00::1:9002" }, "PickerAddress", "IPv6 in brackets"},
		{"picker by URL", func(o *Options) { o.PickerAddress = "http://picker:9002" }, "PickerAddress", "name:port"},
		{"picker's name breaks out of the file", func(o *Options) { o.PickerAddress = "a\"}\nx: {\":1" }, "PickerAddress", `\n`},
		{"picker's TLS mistyped", func(o *Options) { o.PickerTLS = "unverfied" }, "PickerTLS", `"unverfied": must be off, unverified, or the absolute`},
		{"picker's authorities by a relative path", func(o *Options) { o.PickerTLS = "etc/ca.crt" }, "PickerTLS", "absolute"},
		{"picker's authorities with a line break", func(o *Options) { o.PickerTLS = "/etc/a\nb" }, "PickerTLS", "printable"},
		{"endpoints file in another format", func(o *Options) { o.EndpointsFile = "/etc/endpoints.txt" }, "EndpointsFile", "ends in .yaml"},
		{"endpoints file with a line break", func(o *Options) { o.EndpointsFile = "/etc/a\nb.yaml" }, "EndpointsFile", "printable"},
		{"access log with a line break", func(o *Options) { o.AccessLog = "/var/log/a\nb" }, "AccessLog", "printable"},
		{"access log that is not UTF-8", func(o *Options) { o.AccessLog = "/var/log/\xff" }, "AccessLog", "printable"},
		{"negative buffer", func(o *Options) { o.BodyBufferLimit = -1 }, "BodyBufferLimit", `"-1"`},
		{"buffer above 1 GiB", func(o *Options) { o.BodyBufferLimit = 1<<30 + 1 }, "BodyBufferLimit", "0 to 1073741824 bytes"},
		{"negative fallbacks", func(o *Options) { o.Fallbacks = -1 }, "Fallbacks", "0 to 4"},
		{"more fallbacks than a list may hold", func(o *Options) { o.Fallbacks = 5 }, "Fallbacks", `"5": must be 0 to 4`},
		{"fallbacks of original-dst", func(o *Options) { o.Kind, o.Fallbacks = OriginalDst, 1 }, "Fallbacks", `"1": must be 0 with Kind original-dst`},
		{"fallbacks with trailers", func(o *Options) { o.RequestTrailers, o.Fallbacks = true, 1 }, "Fallbacks", "must be 0 with RequestTrailers true"},
		{"endpoint without a name", func(o *Options) { o.Endpoints[1].Name = "" }, "Endpoints[1].Name", "not empty"},
		{"endpoint's name with a line break", func(o *Options) { o.Endpoints[1].Name = "a\nb" }, "Endpoints[1].Name", "printable"},
		{"name given twice", func(o *Options) { o.Endpoints[1].Name = "r1" }, "Endpoints[1].Name", `"r1": must be unique, and is that of Endpoints[0]`},
		{"address given twice", func(o *Options) { o.Endpoints[1].Address = address("[::ffff:10.0.0.1]:8000") }, "Endpoints[1].Address", "Endpoints[0]"},
		{"endpoint without an address", func(o *Options) { o.Endpoints[1].Address = netip.AddrPort{} }, "Endpoints[1].Address", "port from 1 to 65535"},
		{"endpoint at port 0", func(o *Options) { o.Endpoints[1].Address = address("10.0.0.2:0") }, "Endpoints[1].Address", "10.0.0.2:0"},
		{"endpoint everywhere", func(o *Options) { o.Endpoints[1].Address = address("[::]:8000") }, "Endpoints[1].Address", "specified IP"},
		{"endpoint in a zone", func(o *Options) { o.Endpoints[1].Address = address("[fe80::1%eth0]:8000") }, "Endpoints[1].Address", "without a zone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := valid()
			tc.spoil(&o)
			content, err := Bootstrap(o)
			if content != nil {
				t.Errorf("got a bootstrap of %d bytes beside the error", len(content))
			}
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if bad.Field != tc.field {
				t.Errorf("field is %q, want %q", bad.Field, tc.field)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("message %q lacks %q", err, tc.want)
			}
		})
	}
}

func TestEveryBadOptionIsNamedAtOnce(t *testing.T) {
	_, err := Bootstrap(Options{Kind: "other", Fallbacks: 9})
	for _, field := range []string{"Kind", "ListenAddress", "PickerAddress", "Fallbacks"} {
		if err == nil || !strings.Contains(err.Error(), "gateway: "+field+": ") {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

func TestOriginalDstIgnoresEndpointsAndHasNoFileOfThem(t *testing.T) {
	o := valid()
	o.Kind = OriginalDst
	with, err := Bootstrap(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Endpoints, o.EndpointsFile = nil, ""
	without, err := Bootstrap(o)
	if err != nil {
		t.Fatal(err)
	}
	if string(with) != string(without) {
		t.Error("endpoints change the bootstrap of original-dst")
	}
	if _, err := EndpointsFile(o); !errors.Is(err, ErrNoEndpointsFile) {
		t.Errorf("EndpointsFile: error is %v, want ErrNoEndpointsFile", err)
	}
}

func TestTheVersionOfTheEndpointsFollowsTheirContent(t *testing.T) {
	version := func(o Options) string {
		t.Helper()
		content, err := EndpointsFile(o)
		if err != nil {
			t.Fatal(err)
		}
		var response struct {
			Version string `json:"version_info"`
		}
		if err := yaml.Unmarshal(content, &response); err != nil {
			t.Fatal(err)
		}
		return response.Version
	}
	o := valid()
	first := version(o)
	if again := version(valid()); again != first || first == "" {
		t.Errorf("equal endpoints have versions %q and %q", first, again)
	}
	o.Endpoints[1].Address = netip.MustParseAddrPort("[fd00::2]:8001")
	if moved := version(o); moved == first {
		t.Errorf("version stays %q although an endpoint moved", moved)
	}
}

func TestQuotedStringsReadBackUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "string")
		var got struct {
			S string `json:"s"`
		}
		if err := yaml.UnmarshalStrict([]byte("{s: "+quote(want)+"}"), &got); err != nil {
			t.Fatalf("%s: %v", quote(want), err)
		}
		if got.S != want {
			t.Fatalf("%s reads back as %q", quote(want), got.S)
		}
	})
}

func TestARouterThatCannotWorkIsRefusedByField(t *testing.T) {
	mapped := func(header, key string) func(*Router) {
		return func(r *Router) { r.DecisionHeaders = append(r.DecisionHeaders, HeaderMapping{header, key}) }
	}
	for _, tc := range []struct {
		name  string
		spoil func(*Router)
		field string
		want  string // a fragment of the message
	}{
		{"no address", func(r *Router) { r.Address = "" }, "Router.Address", `"": must be ip:port or name:port`},
		{"the picker's address", func(r *Router) { r.Address = "127.0.0.1:9002" }, "Router.Address", "must not be that of PickerAddress"},
		{"TLS mistyped", func(r *Router) { r.TLS = "on" }, "Router.TLS", `"on": must be off, unverified, or the absolute`},
		{"no header", mapped("", "priority"), "Router.DecisionHeaders[1].Header", `"": must be a header's name in lower case`},
		{"header in capitals", mapped("X-Tenant", "priority"), "Router.DecisionHeaders[1].Header", "X-Tenant"},
		{"header that breaks out of the file", mapped("x-a\"}\n", "priority"), "Router.DecisionHeaders[1].Header", `\n`},
		{"key that no replica has", mapped("x-a", "requirement.residency.berth.dev/residncy"), "Router.DecisionHeaders[1].Key", "the nearest is requirement.residency.berth.dev/residency"},
		{"header of the client's", mapped("authorization", "priority"), "Router.DecisionHeaders[1].Header", "begins with x-"},
		{"header of Envoy's", mapped("x-envoy-max-retries", "priority"), "Router.DecisionHeaders[1].Header", "x-envoy-"},
		{"header of the picker's", mapped("x-berth-intent", "priority"), "Router.DecisionHeaders[1].Header", "x-berth-"},
		{"header of the destination", mapped("x-gateway-destination-endpoint", "priority"), "Router.DecisionHeaders[1].Header", "x-gateway-"},
		{"header that joins records", mapped("x-request-id", "priority"), "Router.DecisionHeaders[1].Header", "x-request-id"},
		{"header of the model", mapped("x-selected-model", "servedModels"), "Router.DecisionHeaders[1].Header", "nor be x-selected-model"},
		{"header given twice", mapped("x-residency", "priority"), "Router.DecisionHeaders[1].Header", `"x-residency": must be unique, and is that of Router.DecisionHeaders[0]`},
		{"key of the model", mapped("x-model", "logicalModel"), "Router.DecisionHeaders[1].Key", "must not be the key that x-selected-model is for"},
		{"unknown key", mapped("x-model", "model"), "Router.DecisionHeaders[1].Key", `"model": must be logicalModel, servedModels`},
		{"unknown class", mapped("x-model", "requirement.speed.x"), "Router.DecisionHeaders[1].Key", "class"},
		{"key with a line break", mapped("x-model", "requirement.safety.a\nb"), "Router.DecisionHeaders[1].Key", `\n`},
		{"key given twice", mapped("x-place", "requirement.residency.berth.dev/residency"), "Router.DecisionHeaders[1].Key", "Router.DecisionHeaders[0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := valid()
			o.Router = &Router{Address: "127.0.0.1:50051", DecisionHeaders: []HeaderMapping{{"x-residency", "requirement.residency.berth.dev/residency"}}}
			if _, err := Bootstrap(o); err != nil {
				t.Fatal(err)
			}
			tc.spoil(o.Router)
			_, err := Bootstrap(o)
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if bad.Field != tc.field || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q names the field %q; want %q and %q", err, bad.Field, tc.field, tc.want)
			}
		})
	}
}
