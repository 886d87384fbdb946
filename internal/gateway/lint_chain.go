package gateway

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

	"github.com/berth-dev/berth/internal/policy"
)

// Namespaces of dynamic metadata that the picker reads.
const (
	intentNamespace = "berth.dev"
	subsetNamespace = "envoy.lb.subset_hint"
)

// pickerNamespaces are those in which the picker reads or writes: a filter that
// forwards or receives one of them asks the picker.
var pickerNamespaces = []string{"envoy.lb", subsetNamespace, intentNamespace}

// manager is an HTTP connection manager: whatever is read of the file between two
// places belongs to it, in the order of its filters.
type manager struct{ from, to int }

func (m manager) has(at int) bool { return m.from <= at && at < m.to }

// writer is a filter that writes into dynamic metadata on the way of a request.
type writer struct {
	line, at int
	// route is set for what a route puts in a filter's place.
	route bool
	// namespace is what it writes into. source is what a client may have a say in,
	// such as "header x-selected-model"; empty for what the configuration states.
	namespace, source string
	// header is the name of the header in lower case; empty for a cookie or what the
	// configuration states.
	header string
	// keys are what it writes there.
	keys []metadataKey
}

// metadataKey is a key of a namespace and the line that names it.
type metadataKey struct {
	name string
	line int
}

// strip is what an early header mutation removes from what clients send.
type strip struct {
	at       int
	names    []string
	prefixes []string
}

// strips reports whether a manager removes what clients send under a name, in lower
// case.
func (c *Configuration) strips(m manager, name string) bool {
	return slices.ContainsFunc(c.stripped, func(s strip) bool {
		return m.has(s.at) && (slices.Contains(s.names, name) ||
			slices.ContainsFunc(s.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }))
	})
}

// tellApart marks the filters that ask another service than the picker. Where none
// of a manager's filters deals in the picker's metadata, all are taken for its.
func (c *Configuration) tellApart() {
	for _, m := range c.managers {
		var own []*Filter
		asksPicker := false
		for i := range c.Filters {
			if f := &c.Filters[i]; m.has(f.at) && !f.Route {
				own = append(own, f)
				asksPicker = asksPicker || f.asksPicker()
			}
		}
		for _, f := range own {
			f.other = asksPicker && !f.asksPicker()
		}
	}
}

func (f *Filter) asksPicker() bool {
	return slices.ContainsFunc(pickerNamespaces, func(n string) bool { return !f.withholds(n) || !f.drops(n) })
}

// pickers are the picker's filters in a manager, others those of other services.
func (c *Configuration) pickers(m manager) []*Filter { return c.asking(m, false) }
func (c *Configuration) others(m manager) []*Filter  { return c.asking(m, true) }

func (c *Configuration) asking(m manager, other bool) (list []*Filter) {
	for i := range c.Filters {
		if f := &c.Filters[i]; m.has(f.at) && !f.Route && f.other == other {
			list = append(list, f)
		}
	}
	return list
}

// readsBodies reports whether the service is shown bodies of requests, by which
// routers choose.
func (f *Filter) readsBodies() bool {
	return f.mode().GetRequestBodyMode() != extprocv3.ProcessingMode_NONE
}

// writersOf are the writers of a namespace in a manager.
func (c *Configuration) writersOf(m manager, namespace string) (list []writer) {
	for _, w := range c.writers {
		if m.has(w.at) && w.namespace == namespace {
			list = append(list, w)
		}
	}
	return list
}

func (c *Configuration) clientsWrite(*policy.Policy) (places []string) {
	for _, m := range c.managers {
		for _, w := range c.writersOf(m, intentNamespace) {
			if w.source != "" && (w.header == "" || !c.strips(m, w.header)) {
				places = append(places, fmt.Sprintf("%s in header_to_metadata at line %d", w.source, w.line))
			}
		}
	}
	return places
}

// unknownKeys finds what is written into the picker's namespace and is no part of an
// intent, or asks for what no replica has.
func (c *Configuration) unknownKeys(*policy.Policy) (places []string) {
	for _, w := range c.writers {
		if w.namespace != intentNamespace {
			continue
		}
		for _, key := range w.keys {
			var wrong *policy.KeyError
			if !errors.As(policy.MetadataKey(key.name), &wrong) {
				continue
			}
			place := fmt.Sprintf("key %s at line %d", shown(key.name), key.line)
			if wrong.Nearest != "" {
				place += ", the nearest is " + wrong.Nearest
			}
			if !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
	}
	return places
}

// shown is a foreign name as it can stand in a line.
func shown(name string) string {
	if name == "" || !printable(name) {
		return strconv.Quote(name)
	}
	return name
}

func (c *Configuration) intentsWithheld(p *policy.Policy) (places []string) {
	for i := range c.Filters {
		f := &c.Filters[i]
		written := p != nil && p.Intent.Metadata
		for _, m := range c.managers {
			written = written || m.has(f.at) && len(c.writersOf(m, intentNamespace)) > 0
		}
		if written && !f.other && f.withholds(intentNamespace) {
			places = append(places, f.where())
		}
	}
	return places
}

func (c *Configuration) behindThePicker(*policy.Policy) (places []string) {
	for _, m := range c.managers {
		pickers := c.pickers(m)
		for _, f := range c.others(m) {
			if len(pickers) > 0 && pickers[0].at < f.at && f.readsBodies() {
				places = append(places, f.where())
			}
		}
	}
	return places
}

func (c *Configuration) intentsMisplaced(*policy.Policy) (places []string) {
	for _, m := range c.managers {
		for _, w := range c.writersOf(m, intentNamespace) {
			behindPicker := slices.ContainsFunc(c.pickers(m), func(f *Filter) bool { return f.at < w.at })
			beforeRouter := slices.ContainsFunc(c.others(m), func(f *Filter) bool { return f.at > w.at && f.readsBodies() })
			if !w.route && (behindPicker || beforeRouter && w.header == SelectedModelHeader) {
				places = append(places, fmt.Sprintf("metadata filter at line %d", w.line))
			}
		}
	}
	return slices.Compact(places)
}

func (c *Configuration) routersFailOpen(p *policy.Policy) (places []string) {
	if p != nil && p.Intent.Required {
		return nil // the picker refuses what comes without an intent
	}
	for _, m := range c.managers {
		for _, f := range c.others(m) {
			if f.settings.GetFailureModeAllow() && f.readsBodies() {
				places = append(places, f.where())
			}
		}
	}
	return places
}

func (c *Configuration) subsetWithheld(*policy.Policy) (places []string) {
	for _, m := range c.managers {
		for _, f := range c.pickers(m) {
			if len(c.writersOf(m, subsetNamespace)) > 0 && f.withholds(subsetNamespace) {
				places = append(places, f.where())
			}
		}
	}
	return places
}

func (c *Configuration) fallbacksToOneAddress(p *policy.Policy) []string {
	if p == nil || p.Gateway.Fallbacks == 0 || c.originalDst == 0 || c.overrideHost {
		return nil
	}
	return []string{fmt.Sprintf("cluster of type ORIGINAL_DST at line %d, gateway.fallbacks %d", c.originalDst, p.Gateway.Fallbacks)}
}

func (c *Configuration) fallbacksWithoutRetries(p *policy.Policy) []string {
	// A file without the routes says nothing of their retries.
	if p == nil || !c.routes || c.retries >= p.Gateway.Fallbacks || len(c.fallbacksToOneAddress(p)) > 0 {
		return nil
	}
	return []string{fmt.Sprintf("retry_policy, num_retries %d at most, gateway.fallbacks %d", c.retries, p.Gateway.Fallbacks)}
}

func (c *Configuration) plainHeadersKept(p *policy.Policy) (places []string) {
	if p == nil || !p.Trust.PlainHeaders {
		return nil
	}
	for _, m := range c.managers {
		for _, f := range c.pickers(m) {
			for _, name := range slices.Sorted(maps.Keys(p.Trust.Headers)) {
				if !c.strips(m, name) {
					places = append(places, fmt.Sprintf("header %s before the %s", name, f.where()))
				}
			}
		}
	}
	return places
}

func (c *Configuration) signedIntentsRemoved(p *policy.Policy) (places []string) {
	if p == nil || p.Intent.Keys == nil {
		return nil
	}
	for _, m := range c.managers {
		for _, f := range c.pickers(m) {
			if c.strips(m, "x-berth-intent") {
				places = append(places, "header x-berth-intent before the "+f.where())
			}
		}
	}
	return places
}
