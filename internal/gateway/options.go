package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/internal/policy"
)

// Kind is how Envoy gets from the picker's answer to a replica.
type Kind string

const (
	// OverrideHost picks among endpoints that Envoy knows, in the picker's
	// order.
	OverrideHost Kind = "override-host"
	// OriginalDst connects to the one address that the picker answers.
	OriginalDst Kind = "original-dst"
)

// What Options.PickerTLS and Router.TLS may be beside a file.
const (
	// PickerTLSOff is plain HTTP/2.
	PickerTLSOff = "off"
	// PickerTLSUnverified takes any certificate: nobody on the wire reads along,
	// but whoever gets in between can be the picker, or the router.
	PickerTLSUnverified = "unverified"
)

// MaxFallbacks is the largest number of endpoints that may follow the pick.
const MaxFallbacks = 4

// DefaultBodyBufferLimit is what Options.BodyBufferLimit 0 stands for: 8 MiB.
const DefaultBodyBufferLimit = 8 << 20

// maxBodyBufferLimit keeps a typing error from reserving the whole machine: the
// limit counts for each request in flight.
const maxBodyBufferLimit = 1 << 30

// Options are what varies between gateways. The zero value of a field is its
// default where one is named; the others must be set.
type Options struct {
	// Kind is OverrideHost when empty.
	Kind Kind

	// ListenAddress is the ip:port that clients connect to, h1 and h2c alike.
	// Port 0 takes a free one, which Envoy's admin endpoint tells. [::] accepts
	// IPv4 too.
	ListenAddress string

	// AdminAddress is the ip:port of Envoy's admin endpoint; empty means that
	// there is none. Port 0 takes a free one, which Envoy writes to the file
	// named by its flag --admin-address-path. The endpoint can stop Envoy and
	// shows the whole configuration: keep it on the loopback.
	AdminAddress string

	// PickerAddress is the ip:port or name:port of the picker's ext_proc
	// listener. A name is resolved by DNS, again and again.
	PickerAddress string

	// PickerTLS is the TLS of the picker's ext_proc listener: PickerTLSOff, which
	// is also what empty means; PickerTLSUnverified; or the absolute path, as
	// Envoy will see it, of a file with the certificates of authorities (PEM). Then
	// the picker's certificate must come from one of those and name the host of
	// PickerAddress. Envoy reads the file when it starts.
	PickerTLS string

	// Router is the semantic router that chooses the logical model of each request
	// before the picker is asked; nil where there is none.
	Router *Router

	// SignedIntents lets the header x-berth-intent of clients through to a picker that
	// verifies its signature. Otherwise it is removed.
	SignedIntents bool

	// Overwrite lets WriteFiles replace files that somebody has edited.
	Overwrite bool

	// EndpointsFile is the path, as Envoy will see it, of the file that holds
	// the endpoints; it ends in .yaml, by which Envoy tells its format. It must
	// exist when Envoy starts, and its directory is watched. Empty keeps the
	// endpoints in the bootstrap, where a change needs a new Envoy. OriginalDst
	// has no such file and ignores it.
	EndpointsFile string

	// Endpoints are the pool's members, in any order. Names and addresses are
	// unique. OriginalDst needs none and ignores them.
	Endpoints []Endpoint

	// Fallbacks is how many further endpoints the picker lists after its pick,
	// and so how often Envoy retries: 0 to MaxFallbacks. 0 means no retries at
	// all, and is all that OriginalDst can do.
	Fallbacks int

	// BodyBufferLimit is how many bytes of a request's body Envoy keeps, while
	// it may still retry, to send them again: up to 1 GiB, 0 means
	// DefaultBodyBufferLimit. A longer body flows all the same, but is not
	// retried once a part of it was sent. Without Fallbacks nothing is kept.
	// With a Router, which reads bodies as a whole, a longer one is refused with
	// 413.
	BodyBufferLimit int64

	// RequestTrailers lets h1 request trailers through to the picker; h2
	// trailers reach it in any case. It cannot be combined with Fallbacks.
	RequestTrailers bool

	// AccessLog is the file that gets one JSON line per request; empty means
	// standard output. The lines hold no header of the client's choosing but
	// x-request-id, no query and no body.
	AccessLog string
}

// Router is a semantic router: an ext_proc service that reads a request, sets
// the header x-selected-model to the logical model of its choice, and rewrites the
// body's model to the served id. What it sets becomes the routing intent that the
// picker trusts, so its address and TLS deserve the care that the picker's get.
type Router struct {
	// Address is the ip:port or name:port of the router's ext_proc listener, and
	// not that of the picker.
	Address string

	// TLS is as Options.PickerTLS.
	TLS string

	// DecisionHeaders are further headers that the router sets and that are part of
	// the intent. Headers and keys are unique.
	DecisionHeaders []HeaderMapping
}

// HeaderMapping makes a header that the router sets a part of the routing intent.
// Copies that clients send are removed before the router runs, and the router's own
// before the request goes to a replica.
type HeaderMapping struct {
	// Header is the header's name, in lower case.
	Header string
	// Key is the flat key of the intent: servedModels, priority, sessionKey,
	// contextInputTokens, contextOutputTokens, or requirement.CLASS.KEY with a class
	// of authorization, safety, residency, capability or placement.
	Key string
}

// SelectedModelHeader is the header in which the router says the logical model.
const SelectedModelHeader = "x-selected-model"

// selectedModelKey is the flat key that it is for.
const selectedModelKey = "logicalModel"

// Endpoint is one replica, as Envoy is to know it.
type Endpoint struct {
	// Name is for the access log.
	Name string
	// Address is where the replica serves; IPv6 zones are refused.
	Address netip.AddrPort
}

// Error is one option that cannot be used.
type Error struct {
	// Field is the option's name in Options, with an index where it is a list.
	Field string
	// Value is what was given.
	Value string
	// Allowed says what may be given instead.
	Allowed string
}

func (e *Error) Error() string {
	return fmt.Sprintf("gateway: %s: %s: %s", e.Field, strconv.Quote(e.Value), e.Allowed)
}

// withDefaults fills in the defaults of o, or says what is wrong with it: all
// of it, as *Error joined.
func (o Options) withDefaults() (Options, error) {
	if o.Kind == "" {
		o.Kind = OverrideHost
	}
	if o.PickerTLS == "" {
		o.PickerTLS = PickerTLSOff
	}
	if o.BodyBufferLimit == 0 {
		o.BodyBufferLimit = DefaultBodyBufferLimit
	}
	if o.Router != nil {
		router := *o.Router
		if router.TLS == "" {
			router.TLS = PickerTLSOff
		}
		o.Router = &router
	}
	var errs []error
	refuse := func(field string, value any, allowed string) {
		errs = append(errs, &Error{Field: field, Value: fmt.Sprint(value), Allowed: allowed})
	}

	if o.Kind != OverrideHost && o.Kind != OriginalDst {
		refuse("Kind", o.Kind, fmt.Sprintf("must be %s or %s", OverrideHost, OriginalDst))
	}
	if _, err := netip.ParseAddrPort(o.ListenAddress); err != nil || hasZone(o.ListenAddress) {
		refuse("ListenAddress", o.ListenAddress, "must be ip:port, IPv6 in brackets and without a zone, such as 0.0.0.0:8080 or [::]:8080")
	}
	if o.AdminAddress != "" {
		if _, err := netip.ParseAddrPort(o.AdminAddress); err != nil || hasZone(o.AdminAddress) {
			refuse("AdminAddress", o.AdminAddress, "must be ip:port, IPv6 in brackets and without a zone, such as 127.0.0.1:9901, or empty")
		}
	}
	picker, err := parseService(o.PickerAddress)
	if err != nil {
		refuse("PickerAddress", o.PickerAddress, serviceForm)
	}
	if !isTLSMode(o.PickerTLS) {
		refuse("PickerTLS", o.PickerTLS, tlsForm)
	}
	if r := o.Router; r != nil {
		switch address, err := parseService(r.Address); {
		case err != nil:
			refuse("Router.Address", r.Address, serviceForm)
		case address == picker:
			refuse("Router.Address", r.Address, "must not be that of PickerAddress: the router and the picker are two services")
		}
		if !isTLSMode(r.TLS) {
			refuse("Router.TLS", r.TLS, tlsForm)
		}
		errs = append(errs, checkDecisionHeaders(r.DecisionHeaders)...)
	}
	if o.EndpointsFile != "" && (filepath.Ext(o.EndpointsFile) != ".yaml" || !printable(o.EndpointsFile)) {
		refuse("EndpointsFile", o.EndpointsFile, "must be a printable path that ends in .yaml, or empty")
	}
	if !printable(o.AccessLog) {
		refuse("AccessLog", o.AccessLog, "must be a printable path, or empty for standard output")
	}
	if o.BodyBufferLimit < 0 || o.BodyBufferLimit > maxBodyBufferLimit {
		refuse("BodyBufferLimit", o.BodyBufferLimit, fmt.Sprintf("must be 0 to %d bytes", maxBodyBufferLimit))
	}
	switch {
	case o.Fallbacks < 0 || o.Fallbacks > MaxFallbacks:
		refuse("Fallbacks", o.Fallbacks, fmt.Sprintf("must be 0 to %d", MaxFallbacks))
	case o.Fallbacks > 0 && o.Kind == OriginalDst:
		refuse("Fallbacks", o.Fallbacks, fmt.Sprintf(
			"must be 0 with Kind %s, which takes one address and would retry at the same replica; Kind %s has fallbacks",
			OriginalDst, OverrideHost))
	case o.Fallbacks > 0 && o.RequestTrailers:
		refuse("Fallbacks", o.Fallbacks,
			"must be 0 with RequestTrailers true: after trailers, Envoy's retries would send the body twice")
	}
	if o.Kind == OverrideHost {
		errs = append(errs, checkEndpoints(o.Endpoints)...)
	}
	if len(errs) > 0 {
		return Options{}, errors.Join(errs...)
	}
	return o, nil
}

const serviceForm = "must be ip:port or name:port with a port from 1 to 65535, IPv6 in brackets and without a zone"

const tlsForm = "must be " + PickerTLSOff + ", " + PickerTLSUnverified + ", or the absolute and printable path of a file with certificates of authorities"

func isTLSMode(tls string) bool {
	return tls == PickerTLSOff || tls == PickerTLSUnverified || filepath.IsAbs(tls) && printable(tls)
}

// checkDecisionHeaders holds what would take a header away from those who need it,
// or never become part of an intent.
func checkDecisionHeaders(mappings []HeaderMapping) (errs []error) {
	headers, keys := make(map[string]int, len(mappings)), make(map[string]int, len(mappings))
	for i, m := range mappings {
		field := func(name string) string { return fmt.Sprintf("Router.DecisionHeaders[%d].%s", i, name) }
		if !decisionHeader.MatchString(m.Header) || isTaken(m.Header) {
			errs = append(errs, &Error{field("Header"), m.Header, "must be a header's name in lower case of at most 128 letters, digits, - and _" +
				" that begins with x-, and neither with x-gateway-, x-berth-, x-envoy- or x-forwarded- nor be x-selected-model, x-request-id or x-real-ip"})
		}
		if first, twice := headers[m.Header]; twice {
			errs = append(errs, &Error{field("Header"), m.Header, fmt.Sprintf("must be unique, and is that of Router.DecisionHeaders[%d]", first)})
		} else {
			headers[m.Header] = i
		}
		if m.Key == selectedModelKey {
			errs = append(errs, &Error{field("Key"), m.Key, "must not be the key that " + SelectedModelHeader + " is for"})
		} else if err := policy.FlatKey(m.Key); err != nil {
			errs = append(errs, &Error{field("Key"), m.Key, err.Error()})
		}
		if first, twice := keys[m.Key]; twice {
			errs = append(errs, &Error{field("Key"), m.Key, fmt.Sprintf("must be unique, and is that of Router.DecisionHeaders[%d]", first)})
		} else {
			keys[m.Key] = i
		}
	}
	return errs
}

// decisionHeader keeps to names of one's own: all others, such as authorization or
// content-type, are the client's, and removing them would break its request.
var decisionHeader = regexp.MustCompile(`^x-[a-z0-9_-]{1,126}$`)

// isTaken reports whether a header has a meaning already.
func isTaken(header string) bool {
	for _, prefix := range []string{"x-gateway-", "x-berth-", "x-envoy-", "x-forwarded-"} {
		if strings.HasPrefix(header, prefix) {
			return true
		}
	}
	return header == SelectedModelHeader || header == "x-request-id" || header == "x-real-ip"
}

// checkEndpoints holds what Envoy would refuse, or would silently merge.
func checkEndpoints(endpoints []Endpoint) (errs []error) {
	names := make(map[string]int, len(endpoints))
	addresses := make(map[netip.AddrPort]int, len(endpoints))
	for i, e := range endpoints {
		field := func(name string) string { return fmt.Sprintf("Endpoints[%d].%s", i, name) }
		if e.Name == "" || !printable(e.Name) {
			errs = append(errs, &Error{field("Name"), e.Name, "must be printable and not empty"})
		}
		if first, twice := names[e.Name]; twice {
			errs = append(errs, &Error{field("Name"), e.Name, fmt.Sprintf("must be unique, and is that of Endpoints[%d]", first)})
		} else {
			names[e.Name] = i
		}
		if !e.Address.IsValid() || e.Address.Port() == 0 || e.Address.Addr().Zone() != "" || e.Address.Addr().IsUnspecified() {
			errs = append(errs, &Error{field("Address"), e.Address.String(), "must be a specified IP without a zone, and a port from 1 to 65535"})
		}
		address := netip.AddrPortFrom(e.Address.Addr().Unmap(), e.Address.Port())
		if first, twice := addresses[address]; twice {
			errs = append(errs, &Error{field("Address"), address.String(), fmt.Sprintf("must be unique, and is that of Endpoints[%d]", first)})
		} else {
			addresses[address] = i
		}
	}
	return errs
}

// A socket is an address in the form that Envoy's configuration has it.
type socket struct {
	Host string
	Port uint16
	// Name is true where Host is to be resolved.
	Name bool
}

func socketOf(a netip.AddrPort) socket {
	return socket{Host: a.Addr().Unmap().String(), Port: a.Port()}
}

// dnsName is a host name as RFC 1123 has it, with an optional final dot.
var dnsName = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.?$`)

// onlyNumbers is what a mistyped IPv4 address looks like; no top-level domain
// is a number.
var onlyNumbers = regexp.MustCompile(`(^|\.)[0-9]+\.?$`)

var errService = errors.New("neither ip:port nor name:port")

func parseService(address string) (socket, error) {
	if a, err := netip.ParseAddrPort(address); err == nil {
		if a.Port() == 0 || a.Addr().Zone() != "" || a.Addr().IsUnspecified() {
			return socket{}, errService
		}
		return socketOf(a), nil
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return socket{}, errService
	}
	host := address[:i]
	port, err := strconv.ParseUint(address[i+1:], 10, 16)
	if err != nil || port == 0 || len(host) > 253 || !dnsName.MatchString(host) || onlyNumbers.MatchString(host) {
		return socket{}, errService
	}
	return socket{Host: host, Port: uint16(port), Name: true}, nil
}

func hasZone(address string) bool { return strings.ContainsRune(address, '%') }

// printable reports whether s can stand in a quoted YAML scalar as it is.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
