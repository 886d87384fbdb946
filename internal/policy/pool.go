package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/attribute"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
)

// Pool is a valid StaticPool. Nothing in it changes after ParsePool returned
// it.
type Pool struct {
	Namespace   string
	Name        string
	FailureMode v1alpha1.FailureMode
	// Endpoints are in the order of the file; there may be none.
	Endpoints []pool.Spec

	source v1alpha1.StaticPool
}

// LoadPool reads and parses the StaticPool file at path. Its endpoints may name
// the engines that there is a profile for in engines, which is a policy's; nil
// stands for those that are built in.
func LoadPool(path string, engines *engine.Set) (*Pool, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return ParsePool(path, data, engines)
}

// ParsePool is LoadPool for bytes that were read already: one StaticPool and
// nothing else. Name stands in errors, which are as those of Parse.
func ParsePool(name string, data []byte, engines *engine.Set) (*Pool, error) {
	p := &problems{file: name}
	if engines == nil {
		engines, _ = p.engines(nil, &profileDirectory{})
	}
	var result *Pool
	for i, d := range split(p, data) {
		switch {
		case d.kind != kindPool:
			d.refuse("kind", "must be StaticPool")
		case i > 0:
			d.refuse("kind", "must occur once: a pool file has one document")
		default:
			result = d.pool(engines)
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return result, nil
}

// pool decodes and checks the StaticPool. Without engines, their names are not
// checked.
func (d *document) pool(engines *engine.Set) *Pool {
	c := v1alpha1.StaticPool{
		Metadata:    v1alpha1.PoolMetadata{Namespace: "default"},
		FailureMode: v1alpha1.FailClose,
		Endpoints:   []v1alpha1.StaticEndpoint{},
	}
	d.decode(&c, nil)
	if !dnsName(c.Metadata.Namespace, 63, false) {
		d.refuse("metadata.namespace", "must be a DNS label of at most 63 characters")
	}
	if !d.failed["metadata"] && !dnsName(c.Metadata.Name, 253, true) {
		d.refuse("metadata.name", "must be a DNS subdomain of at most 253 characters")
	}
	oneOf(d, "failureMode", c.FailureMode, v1alpha1.FailClose, v1alpha1.FailOpen)

	p := &Pool{Namespace: c.Metadata.Namespace, Name: c.Metadata.Name, FailureMode: c.FailureMode, source: c}
	names, addresses := map[string]string{}, map[netip.AddrPort]string{}
	for i := range c.Endpoints {
		path := index("endpoints", i)
		if d.failed[path] {
			continue
		}
		spec := d.endpoint(path, &c.Endpoints[i], engines)
		spec.Pod = c.Metadata.Namespace + "/" + spec.Name
		unique(d, names, spec.Name, path, "name", "must be a name of its own")
		if spec.Address.IsValid() {
			// The line of the port, where one host has several endpoints.
			unique(d, addresses, spec.Address, path, "port", "must make an address and port of its own: "+spec.Address.String())
		}
		p.Endpoints = append(p.Endpoints, spec)
		c.Endpoints[i].Ready = &spec.Ready
	}
	return p
}

// unique refuses a key that an earlier endpoint has.
func unique[K comparable](d *document, seen map[K]string, key K, path, field, allowed string) {
	if earlier, twice := seen[key]; twice {
		d.refuse(child(path, field), fmt.Sprintf("%s: %s in line %d has it", allowed, earlier, d.line(earlier)))
		return
	}
	seen[key] = path
}

func (d *document) endpoint(path string, e *v1alpha1.StaticEndpoint, engines *engine.Set) pool.Spec {
	at := func(key string) string { return child(path, key) }
	spec := pool.Spec{
		Name:         e.Name,
		Node:         e.Node,
		Zone:         e.Zone,
		Ready:        e.Ready == nil || *e.Ready,
		Terminating:  e.Terminating,
		ServedModels: e.ServedModels,
		Labels:       e.Labels,
		Annotations:  e.Annotations,
	}
	if !plainText(e.Name, 253) {
		d.refuse(at("name"), "must be 1 to 253 printable characters")
	}
	for _, optional := range []struct{ key, value string }{{"node", e.Node}, {"zone", e.Zone}} {
		if d.has(at(optional.key)) && !plainText(optional.value, 253) {
			d.refuse(at(optional.key), "must be 1 to 253 printable characters; leave it out if there is none")
		}
	}
	address, reason := parseAddress(e.Address)
	if reason != "" {
		d.refuse(at("address"), reason)
	}
	if !validPort(e.Port) {
		d.refuse(at("port"), "must be 1 to 65535")
	} else if reason == "" {
		spec.Address = netip.AddrPortFrom(address, uint16(e.Port))
	}
	d.servedModels(at("servedModels"), e.ServedModels)
	known := d.declarations(path, e)
	spec.Engine = d.engine(path, e, known, engines)
	spec.ContextLimit = d.contextLimit(path, e, known)
	spec.Metrics = d.metrics(path, e, known)
	return spec
}

// parseAddress takes what a request may be sent to, or says what it must be.
func parseAddress(text string) (netip.Addr, string) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, "must be an IPv4 or IPv6 address without port and brackets; hostnames are not resolved"
	}
	if a.Zone() != "" {
		return a, "must be an address without a zone"
	}
	a = a.Unmap()
	switch {
	case a.IsUnspecified():
		return a, "must be an address of one host: not the unspecified address"
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, "must be an address of one host: not a multicast or broadcast address"
	case a.IsLinkLocalUnicast():
		return a, "must be a routable or loopback address: not a link-local one"
	}
	return a, ""
}

func (d *document) servedModels(path string, models []string) {
	if d.has(path) && len(models) == 0 {
		d.refuse(path, "must have at least one name; leave it out to ask the engine")
	}
	d.modelNames(path, models)
}

// Labels and annotations that Berth understands, beside the attributes that
// api/v1alpha1 names.
const (
	labelPrefix   = "berth.dev/"
	labelScheme   = "berth.dev/metrics-scheme"
	labelPort     = "berth.dev/metrics-port"
	labelPath     = "berth.dev/metrics-path"
	engineTypeGIE = "inference.networking.k8s.io/engine-type"
)

// declaredAttributes are the attributes of Berth's that nothing but a label or an
// annotation states.
var declaredAttributes = []string{
	v1alpha1.AttributeCapabilities, v1alpha1.AttributeResidency, v1alpha1.AttributeRevision,
	v1alpha1.AttributeSafety, v1alpha1.AttributeTenants, v1alpha1.AttributeTier,
}

// understood are all keys of Berth's that may stand in a file, in order.
var understood = slices.Sorted(slices.Values(append(slices.Clone(declaredAttributes),
	v1alpha1.AttributeContextLimit, v1alpha1.AttributeEngine, labelPath, labelPort, labelScheme)))

// stated are the attributes that are known without a label, and what states them: a
// second place could only repeat it, or contradict it.
var stated = map[string]string{
	v1alpha1.AttributePool:          "metadata states it",
	v1alpha1.AttributeReplica:       "name states it",
	v1alpha1.AttributeNode:          "node states it",
	v1alpha1.AttributeZone:          "zone states it",
	v1alpha1.AttributeServedModels:  "servedModels states it",
	v1alpha1.AttributeEngineVersion: "the engine itself states it",
}

// declaration is one understood label or annotation and where it stands.
type declaration struct{ value, path string }

// declarations joins what labels and annotations say. A key of Berth's that it
// does not understand is refused: a misspelt constraint would be no constraint.
func (d *document) declarations(path string, e *v1alpha1.StaticEndpoint) map[string]declaration {
	known := map[string]declaration{}
	for _, part := range []struct {
		name   string
		values map[string]string
	}{{"labels", e.Labels}, {"annotations", e.Annotations}} {
		for _, key := range slices.Sorted(maps.Keys(part.values)) {
			value := part.values[key]
			at := child(child(path, part.name), key)
			ours := strings.HasPrefix(key, labelPrefix)
			switch earlier, twice := known[key]; {
			case stated[key] != "":
				d.refuse(at, "must be left out: "+stated[key])
			case ours && !slices.Contains(understood, key):
				d.refuse(at, "is an unknown key; known keys: "+strings.Join(understood, ", "))
			case !ours && key != engineTypeGIE:
			case twice && earlier.value != value:
				d.refuse(at, fmt.Sprintf("must be what the label in line %d says: %s", d.line(earlier.path), quoted(earlier.value)))
			default:
				if slices.Contains(declaredAttributes, key) && !wellFormed(value) {
					d.refuse(at, "must be a list of items with commas between them, at least one and each of at most 512 bytes "+
						"without control characters; leave it out if there is none")
				}
				known[key] = declaration{value, at}
			}
		}
	}
	return known
}

// wellFormed says whether an attribute has items that a requirement could ask for.
// A list of nothing would make a replica serve nobody, in silence.
func wellFormed(text string) bool {
	items := attribute.List(text).Items()
	return len(items) > 0 && !slices.ContainsFunc(items, func(item string) bool {
		return len(item) > 512 || strings.ContainsFunc(item, unicode.IsControl)
	})
}

// engine is the name of the declared engine's profile. It prefers what is said
// more directly; every place must name an engine that a profile is for: another
// name would be believed, and the endpoint never read, since to declare an engine
// is to leave out its detection.
func (d *document) engine(path string, e *v1alpha1.StaticEndpoint, known map[string]declaration, engines *engine.Set) string {
	var said []declaration
	if at := child(path, "engine"); d.has(at) {
		said = append(said, declaration{e.Engine, at})
	}
	for _, key := range []string{v1alpha1.AttributeEngine, engineTypeGIE} {
		if l, ok := known[key]; ok {
			said = append(said, l)
		}
	}
	if len(said) == 0 || engines == nil {
		return ""
	}
	names := make([]string, len(said))
	for i, s := range said {
		p := engines.Profile(s.value)
		if p == nil || p.Exporter() {
			d.refuse(s.path, "must be the name or an alias of an engine's profile ("+list(namesOf(engines, false))+
				"); telemetry.profiles adds others; leave it out to serve without telemetry")
			continue
		}
		names[i] = p.Name()
	}
	return names[0]
}

func (d *document) contextLimit(path string, e *v1alpha1.StaticEndpoint, known map[string]declaration) int64 {
	const allowed = "must be a whole number of tokens above 0; leave it out to ask the engine"
	at := child(path, "contextLimit")
	var limit int64
	if e.ContextLimit != nil {
		if limit = *e.ContextLimit; limit <= 0 {
			d.refuse(at, allowed)
		}
	}
	if l, ok := known[v1alpha1.AttributeContextLimit]; ok {
		n, err := strconv.ParseInt(l.value, 10, 64)
		switch {
		case err != nil || n <= 0:
			d.refuse(l.path, allowed)
		case e.ContextLimit != nil && n != limit:
			d.differs(l.path, at)
		default:
			limit = n
		}
	}
	return limit
}

// metrics joins the metrics section with the labels and annotations.
func (d *document) metrics(path string, e *v1alpha1.StaticEndpoint, known map[string]declaration) pool.MetricsTarget {
	const (
		schemes = "must be http or https"
		ports   = "must be 1 to 65535"
		paths   = "must be a path that begins with one slash, without a host, spaces or a fragment"
	)
	section := child(path, "metrics")
	m := e.Metrics
	if m == nil {
		m = &v1alpha1.EndpointMetrics{}
	}
	var target pool.MetricsTarget

	at := child(section, "scheme")
	if d.has(at) && !validScheme(m.Scheme) {
		d.refuse(at, schemes)
	}
	target.Scheme = m.Scheme
	if l, ok := known[labelScheme]; ok {
		switch {
		case !validScheme(l.value):
			d.refuse(l.path, schemes)
		case d.has(at) && l.value != m.Scheme:
			d.differs(l.path, at)
		}
		target.Scheme = l.value
	}

	at = child(section, "port")
	if m.Port != nil {
		if !validPort(*m.Port) {
			d.refuse(at, ports)
		}
		target.Port = uint16(*m.Port)
	}
	if l, ok := known[labelPort]; ok {
		n, err := strconv.ParseUint(l.value, 10, 16)
		switch {
		case err != nil || n == 0:
			d.refuse(l.path, ports)
		case m.Port != nil && int(n) != *m.Port:
			d.differs(l.path, at)
		}
		target.Port = uint16(n)
	}

	at = child(section, "path")
	if d.has(at) && !validPath(m.Path) {
		d.refuse(at, paths)
	}
	target.Path = m.Path
	if l, ok := known[labelPath]; ok {
		switch {
		case !validPath(l.value):
			d.refuse(l.path, paths)
		case d.has(at) && l.value != m.Path:
			d.differs(l.path, at)
		}
		target.Path = l.value
	}
	return target
}

// differs refuses a label or annotation that contradicts the field at path.
func (d *document) differs(label, path string) {
	if !d.failed[path] {
		d.refuse(label, fmt.Sprintf("must be what %s in line %d says: %s", path, d.line(path), d.value(path)))
	}
}

func validPort(p int) bool { return p >= 1 && p <= 65535 }

func validScheme(s string) bool { return s == "http" || s == "https" }

// validPath refuses two slashes at the start, which a URL takes for a host.
func validPath(s string) bool {
	if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || len(s) > 1024 || strings.ContainsAny(s, " #\\") {
		return false
	}
	u, err := url.ParseRequestURI(s)
	return err == nil && u.Host == "" && plainText(s, 1024)
}

// plainText says whether s is 1 to limit bytes of printable text.
func plainText(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// dnsName says whether s is a DNS label, or with dots a DNS subdomain.
func dnsName(s string, limit int, dots bool) bool {
	if s == "" || len(s) > limit {
		return false
	}
	labels := []string{s}
	if dots {
		labels = strings.Split(s, ".")
	}
	for _, l := range labels {
		if l == "" || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for i := range len(l) {
			if c := l[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
		}
	}
	return true
}
