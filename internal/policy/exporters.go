package policy

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/engine"
)

// maxExporters is how many pages of GPUs may be read: about one for each node.
const maxExporters = 4096

// Exporter is a page of GPUs that is read beside the engines. Its series join
// endpoints by the pod that they name.
type Exporter struct {
	// Profile is the name of a profile whose role is exporter, never an alias.
	Profile string
	Address netip.AddrPort
	// Scheme is http or https.
	Scheme string
}

// exporters checks telemetry.exporters, and writes into it what was left out.
// Without engines, what depends on them is not checked.
func (d *document) exporters(section []v1alpha1.ExporterConfiguration, engines *engine.Set) []Exporter {
	const at = "telemetry.exporters"
	if len(section) > maxExporters {
		d.refuse(at, fmt.Sprintf("must have at most %d entries", maxExporters))
		return nil
	}
	var exporters []Exporter
	type page struct {
		profile string
		address netip.AddrPort
	}
	seen := map[page]string{}
	for i := range section {
		path := index(at, i)
		if d.failed[path] {
			continue
		}
		e := d.exporter(path, &section[i], engines)
		if e.Profile != "" && e.Address.IsValid() {
			unique(d, seen, page{e.Profile, e.Address}, path, "address", "must be read once: "+e.Profile+" at "+e.Address.String())
		}
		exporters = append(exporters, e)
		port := int(e.Address.Port())
		section[i] = v1alpha1.ExporterConfiguration{Profile: e.Profile, Address: e.Address.Addr().String(), Port: &port, Scheme: e.Scheme}
	}
	return exporters
}

func (d *document) exporter(path string, c *v1alpha1.ExporterConfiguration, engines *engine.Set) Exporter {
	e := Exporter{Profile: c.Profile, Scheme: cmp.Or(c.Scheme, "http")}
	var page engine.Page
	if engines != nil {
		if p := engines.Profile(c.Profile); p != nil && p.Exporter() {
			e.Profile, page = p.Name(), p.Metrics()
			e.Scheme = cmp.Or(c.Scheme, page.Scheme, "http")
		} else {
			d.refuse(child(path, "profile"), "must be the name or an alias of an exporter's profile ("+
				list(namesOf(engines, true))+"); telemetry.profiles adds others")
		}
	}
	if at := child(path, "scheme"); d.has(at) && !validScheme(c.Scheme) {
		d.refuse(at, "must be http or https")
	}
	address, reason := parseAddress(c.Address)
	if reason != "" {
		d.refuse(child(path, "address"), reason)
	}
	port := int(page.Port)
	at := child(path, "port")
	switch {
	case c.Port != nil:
		if port = *c.Port; !validPort(port) {
			d.refuse(at, "must be 1 to 65535")
		}
	case port == 0 && engines != nil && !d.failed[child(path, "profile")]:
		d.refuse(at, "must be 1 to 65535: the profile names no port")
	}
	if reason == "" && validPort(port) {
		e.Address = netip.AddrPortFrom(address, uint16(port))
	}
	return e
}
