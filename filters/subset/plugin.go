// Package subset keeps the endpoints that the gateway restricts a request to: the
// filter subset. README.md is its page for operators.
package subset

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/plugin"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"

	"github.com/berth-dev/berth/filters/internal/candidates"
	"github.com/berth-dev/berth/filters/internal/refusal"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/scorers/parameters"
)

// Type is the plugin type in configuration.
const Type = "subset"

// maxHeader bounds a header's name, bytes.
const maxHeader = 256

// Filter keeps what the subset names. It may be used concurrently.
type Filter struct {
	name plugin.TypedName
	// header is the name of the header that has the subset, in lower case; "" is
	// none, and no restriction.
	header  string
	now     func() time.Time
	refused refusal.Log
}

var (
	_ scheduling.Filter  = (*Filter)(nil)
	_ plugin.FactoryFunc = Factory
)

// Factory builds the plugin for GIE. The handle is not used.
func Factory(name string, params json.RawMessage, _ plugin.Handle) (plugin.Plugin, error) {
	f, err := New(params)
	if err != nil {
		return nil, fmt.Errorf("plugin %q of type %s: %w", name, Type, err)
	}
	f.name.Name = name
	return f, nil
}

// New builds the filter from its parameters; none at all means that no header is
// read. An error of theirs is a *parameters.Error.
func New(params json.RawMessage) (*Filter, error) {
	f := &Filter{name: plugin.TypedName{Type: Type, Name: Type}, now: time.Now}
	const means = "the name of a header in lower case"
	err := parameters.Decode(params, parameters.Text{Key: "header", Into: &f.header, AtMost: maxHeader, Means: means})
	if err != nil {
		return nil, err
	}
	if !headerName(f.header) {
		return nil, &parameters.Error{Field: "header", Value: strconv.Quote(f.header), Allowed: means}
	}
	return f, nil
}

// headerName reports whether s has only characters that a header's name may have in
// HTTP/2 (RFC 9110, section 5.6.2, in lower case).
func headerName(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// TypedName is the plugin's type and its name in the configuration.
func (f *Filter) TypedName() plugin.TypedName { return f.name }

// Filter keeps the endpoints that the subset names, all of them where there is none.
func (f *Filter) Filter(ctx context.Context, _ *scheduling.CycleState, request *scheduling.LLMRequest,
	endpoints []scheduling.Endpoint) []scheduling.Endpoint {
	stated := f.stated(request)
	if stated == nil {
		return endpoints
	}
	kept := candidates.Where(endpoints, func(e scheduling.Endpoint) bool { return contains(stated, e) })
	if len(kept) == 0 && len(endpoints) > 0 {
		f.refused.Say(ctx, f.now(), f.name, "subset_empty")
	}
	return kept
}

// stated is the subset that the request's header states, nil if it has none. Two
// spellings of the header's name are two subsets, and nobody is in both.
func (f *Filter) stated(request *scheduling.LLMRequest) *screen.Subset {
	if request == nil || f.header == "" {
		return nil
	}
	var found *screen.Subset
	for name, value := range request.Headers {
		if strings.EqualFold(name, f.header) {
			if found != nil {
				return screen.NewSubset(nil)
			}
			found = read(value)
		}
	}
	return found
}

// read reads a subset as a gateway writes metadata into a header: a text as it is,
// and a list as JSON.
func read(value string) *screen.Subset {
	var members []any
	if !strings.HasPrefix(value, "[") || json.Unmarshal([]byte(value), &members) != nil {
		// IPv6 in brackets, for one.
		return screen.SplitSubset(value)
	}
	entries := make([]string, len(members))
	for i, m := range members {
		// A member that is no text stays as an empty entry, which matches nothing.
		entries[i], _ = m.(string)
	}
	return screen.NewSubset(entries)
}

// contains reports whether the subset names the endpoint's address and port.
func contains(s *screen.Subset, e scheduling.Endpoint) bool {
	m := e.GetMetadata()
	if m == nil {
		return false
	}
	address, err := netip.ParseAddr(m.Address)
	port, err2 := strconv.ParseUint(m.Port, 10, 16)
	if err != nil || err2 != nil {
		return false
	}
	return s.Contains(netip.AddrPortFrom(address.Unmap(), uint16(port)))
}
