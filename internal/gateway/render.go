package gateway

import (
	"bytes"
	"embed"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/cespare/xxhash/v2"
)

// ErrNoEndpointsFile says that the options put the endpoints nowhere that a
// file could change them.
var ErrNoEndpointsFile = fmt.Errorf("gateway: no endpoints file: Kind %s has no endpoints", OriginalDst)

// Bootstrap is the whole configuration of an Envoy, as YAML with comments. The
// errors are *Error, several joined.
func Bootstrap(o Options) ([]byte, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	picker, err := parseService(o.PickerAddress)
	if err != nil {
		return nil, err
	}
	v := bootstrapView{
		Options:      o,
		Listen:       socketOf(netip.MustParseAddrPort(o.ListenAddress)),
		Picker:       picker,
		Endpoints:    endpointViews(o.Endpoints),
		Dynamic:      o.Kind == OverrideHost && o.EndpointsFile != "",
		EndpointsDir: filepath.Dir(o.EndpointsFile),
	}
	if o.PickerTLS != PickerTLSOff {
		v.PickerTLS = tlsTo(picker, o.PickerTLS)
	}
	if r := o.Router; r != nil {
		address, err := parseService(r.Address)
		if err != nil {
			return nil, err
		}
		v.Router = &routerView{Router: *r, Socket: address}
		if r.TLS != PickerTLSOff {
			v.Router.TLS = tlsTo(address, r.TLS)
		}
	}
	if o.AdminAddress != "" {
		admin := socketOf(netip.MustParseAddrPort(o.AdminAddress))
		v.Admin = &admin
	}
	return execute("envoy.yaml.tmpl", v)
}

// EndpointsFile is the content of the file that Options.EndpointsFile names: an
// xDS DiscoveryResponse with the pool's endpoints. Its version is a digest of
// them, so that equal pools give equal files. The errors are those of Bootstrap,
// and ErrNoEndpointsFile with OriginalDst.
func EndpointsFile(o Options) ([]byte, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Kind == OriginalDst {
		return nil, ErrNoEndpointsFile
	}
	endpoints := endpointViews(o.Endpoints)
	digest := xxhash.New()
	for _, e := range endpoints {
		fmt.Fprintf(digest, "%q %q %d\n", e.Name, e.Socket.Host, e.Socket.Port)
	}
	return execute("endpoints.yaml.tmpl", endpointsView{
		Version:   fmt.Sprintf("%016x", digest.Sum64()),
		Endpoints: endpoints,
	})
}

// bootstrapView is what envoy.yaml.tmpl shows. Listen, PickerTLS, Router and
// Endpoints stand in front of the option of the same meaning.
type bootstrapView struct {
	Options
	Listen       socket
	Admin        *socket
	Picker       socket
	PickerTLS    *tlsView
	Router       *routerView
	Endpoints    []endpointView
	Dynamic      bool
	EndpointsDir string
}

// routerView is the semantic router. TLS stands in front of that of the options.
type routerView struct {
	Router
	Socket socket
	TLS    *tlsView
}

// tlsView is TLS to the picker or the router.
type tlsView struct {
	// ServerName is what Envoy asks for; empty where the service has no name.
	ServerName string
	// CAFile is empty where nothing is verified. Otherwise the certificate must
	// name Name, of which the kind is SANType.
	CAFile, SANType, Name string
}

func tlsTo(service socket, mode string) *tlsView {
	v := &tlsView{SANType: "IP_ADDRESS", Name: service.Host}
	if service.Name {
		// The dot at the end of a full name is for DNS alone.
		v.SANType, v.Name = "DNS", strings.TrimSuffix(service.Host, ".")
		v.ServerName = v.Name
	}
	if mode != PickerTLSUnverified {
		v.CAFile = mode
	}
	return v
}

// endpointsView is what endpoints.yaml.tmpl shows.
type endpointsView struct {
	Version   string
	Endpoints []endpointView
}

type endpointView struct {
	Name   string
	Socket socket
}

func endpointViews(endpoints []Endpoint) []endpointView {
	views := make([]endpointView, len(endpoints))
	for i, e := range endpoints {
		views[i] = endpointView{Name: e.Name, Socket: socketOf(e.Address)}
	}
	return views
}

//go:embed envoy.yaml.tmpl endpoints.yaml.tmpl
var templateFiles embed.FS

// templates never change after they were parsed; a mistake in them stops every
// test of this package.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"quote":     quote,
	"args":      listOf,
	"serviceOf": func(name string, s socket, tls *tlsView) service { return service{name, s, tls} },
}).ParseFS(templateFiles, "*.tmpl"))

// quote writes s as a double-quoted YAML scalar. In ASCII, Go's escapes are all
// YAML's as well, with the same meaning, for every valid string.
func quote(s string) string { return strconv.QuoteToASCII(s) }

// list is what the template "endpoints" shows, at its place in either file.
type list struct {
	Endpoints []endpointView
	Indent    string
}

// service is what the template "service" shows: the cluster of an ext_proc service.
type service struct {
	Name   string
	Socket socket
	TLS    *tlsView
}

// Role is what the service is in a sentence.
func (s service) Role() string {
	if s.Name == "semantic-router" {
		return "router"
	}
	return s.Name
}

func listOf(endpoints []endpointView, indent string) list { return list{endpoints, indent} }

func execute(name string, view any) ([]byte, error) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, view); err != nil {
		return nil, fmt.Errorf("gateway: %s: %w", name, err)
	}
	return b.Bytes(), nil
}
