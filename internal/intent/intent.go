package intent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Namespace is that of the dynamic metadata that an intent comes in.
const Namespace = "berth.dev"

// wholeKey is the key of the metadata that has the intent in one piece.
const wholeKey = "intent"

// metadataChannel is how errors name the channel.
const metadataChannel = Namespace + " metadata"

// Bounds of Options.
const (
	maxSkew = 5 * time.Minute
	// maxModelName is that of v1alpha1.
	maxModelName = 512
)

// Options says which channels are switched on, and what they are checked against.
type Options struct {
	// Required refuses a request without an intent.
	Required bool
	// Metadata switches the channel metadata on.
	Metadata bool
	// Keys switches the signed header on; nil: off.
	Keys *KeySet
	// Audience is the name of this picker. With Keys it must be there: without one,
	// an intent that was signed for another picker would pass. Otherwise "" accepts
	// every audience.
	Audience string
	// Skew is by how much the clocks of signers may differ from this one, 0 to 5m.
	Skew time.Duration
	// PlainHeaders are names of headers, in lower case, and the flat key of each;
	// none: the channel is off.
	PlainHeaders map[string]string
	// Aliases has, for a logical model, the 1 to 64 names by which replicas may
	// serve it.
	Aliases map[string][]string
}

// Reader reads intents. It is immutable and safe for concurrent use.
type Reader struct {
	required bool
	metadata bool
	keys     *KeySet
	audience string
	skew     time.Duration
	// plain is sorted by header.
	plain   []mapping
	aliases map[string][]string
}

type mapping struct{ header, key string }

// NewReader checks the options and copies what could change. Errors name the
// option, its value and what is allowed.
func NewReader(o Options) (*Reader, error) {
	r := &Reader{required: o.Required, metadata: o.Metadata, keys: o.Keys, audience: o.Audience, skew: o.Skew,
		aliases: make(map[string][]string, len(o.Aliases))}
	if o.Keys != nil && len(o.Keys.keys) == 0 {
		return nil, errors.New("Options.Keys: must come from ParseKeySet")
	}
	if o.Keys != nil && o.Audience == "" {
		return nil, errors.New(`Options.Audience: "": must be the name of this picker, by which it knows that a signed intent is meant for it`)
	}
	if o.Skew < 0 || o.Skew > maxSkew {
		return nil, fmt.Errorf("Options.Skew: %v: must be 0s to %v", o.Skew, maxSkew)
	}

	headerOf := make(map[string]string, len(o.PlainHeaders))
	for _, header := range slices.Sorted(maps.Keys(o.PlainHeaders)) {
		key := o.PlainHeaders[header]
		at := "Options.PlainHeaders[" + quoted(header) + "]"
		if !headerName(header) || header == SignedHeader {
			return nil, fmt.Errorf("%s: must be the name of a header in lower case, other than %s", at, SignedHeader)
		}
		if err := FlatKey(key); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", at, printable(key), err)
		}
		if other, taken := headerOf[key]; taken {
			return nil, fmt.Errorf("%s: %s: must not be the key of %s, too", at, printable(key), other)
		}
		headerOf[key] = header
		r.plain = append(r.plain, mapping{header, key})
	}

	for _, alias := range slices.Sorted(maps.Keys(o.Aliases)) {
		names := o.Aliases[alias]
		at := "Options.Aliases[" + quoted(alias) + "]"
		if !modelName(alias) {
			return nil, fmt.Errorf("%s: must be a name of 1 to %d bytes", at, maxModelName)
		}
		if len(names) < 1 || len(names) > maxModels {
			return nil, fmt.Errorf("%s: %d names: must be 1 to %d", at, len(names), maxModels)
		}
		for i, name := range names {
			if !modelName(name) {
				return nil, fmt.Errorf("%s[%d]: %s: must be a name of 1 to %d bytes", at, i, quoted(name), maxModelName)
			}
		}
		r.aliases[alias] = slices.Clone(names)
	}
	return r, nil
}

// headerName reports whether s is a field name of RFC 9110, section 5.6.2, in lower
// case, as HTTP/2 has them.
func headerName(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func modelName(s string) bool { return s != "" && len(s) <= maxModelName && utf8.ValidString(s) }

// Input is what a request brought in each channel.
type Input struct {
	// Metadata has the members of the namespace berth.dev but acknowledgement: texts,
	// numbers as float64, true and false, nil, []any and map[string]any. Without any,
	// the channel is not present.
	Metadata map[string]any
	// Signed has the values of x-berth-intent, one for each copy of the header.
	Signed []string
	// Plain has the copies of all headers that may be mapped, with their names in
	// lower case. Headers that are not mapped do not count.
	Plain []Header
}

// Header is one copy of a header.
type Header struct{ Name, Value string }

// Source is the channel that an intent came by.
type Source string

// The sources. "headers" are the plain ones.
const (
	SourceNone     Source = "none"
	SourceMetadata Source = "metadata"
	SourceSigned   Source = "signed"
	SourceHeaders  Source = "headers"
)

// Intent is what was demanded of the replica, by whom.
type Intent struct {
	Source Source
	// Routing is valid, and nil with SourceNone.
	Routing *v1alpha1.RoutingIntent
	// KeyID is the name of the key that signed it, "" if it is not signed.
	KeyID string
	// Unknown are top-level keys that were ignored, sorted, at most 16 of at most
	// 64 bytes each.
	Unknown []string
	// Models are the names by which a replica may serve what the intent names: its
	// servedModels, or else the alias's, or else its logicalModel. Nil if it names
	// no model. The slice must not be changed.
	Models []string
}

// Read finds the intent of a request. now is wall-clock time. The error is an
// *Error.
func (r *Reader) Read(in *Input, now time.Time) (Intent, error) {
	source := r.source(in)
	intent, err := r.read(source, in, now)
	if err != nil {
		var refused *Error
		if errors.As(err, &refused) {
			refused.Source = source
		}
		return Intent{}, err
	}
	intent.Models = r.models(intent.Routing)
	return intent, nil
}

// source is the first channel that is switched on and present.
func (r *Reader) source(in *Input) Source {
	isMapped := func(h Header) bool {
		return slices.ContainsFunc(r.plain, func(m mapping) bool { return m.header == h.Name })
	}
	switch {
	case r.metadata && len(in.Metadata) > 0:
		return SourceMetadata
	case r.keys != nil && len(in.Signed) > 0:
		return SourceSigned
	case slices.ContainsFunc(in.Plain, isMapped):
		return SourceHeaders
	default:
		return SourceNone
	}
}

func (r *Reader) read(from Source, in *Input, now time.Time) (Intent, error) {
	switch from {
	case SourceMetadata:
		return r.readMetadata(in.Metadata, now)
	case SourceSigned:
		return r.readSigned(in.Signed, now)
	case SourceHeaders:
		keys, err := r.mapped(in.Plain)
		if err != nil {
			return Intent{}, err
		}
		routing, err := fromFlat("header", keys)
		return Intent{Source: SourceHeaders, Routing: routing}, err
	}
	if r.required {
		return Intent{}, &Error{Token: TokenRequired, Message: "a routing intent is required, and no trusted channel brought one"}
	}
	return Intent{Source: SourceNone}, nil
}

// Untrusted names what a request brought in channels that are switched off, each
// once: "berth.dev" for metadata, "x-berth-intent", and the names of plain headers.
// It is empty where nothing was ignored.
func (r *Reader) Untrusted(in *Input) []string {
	var names []string
	if !r.metadata && len(in.Metadata) > 0 {
		names = append(names, Namespace)
	}
	if r.keys == nil && len(in.Signed) > 0 {
		names = append(names, SignedHeader)
	}
	if len(r.plain) == 0 {
		for _, h := range in.Plain {
			if !slices.Contains(names, h.Name) {
				names = append(names, h.Name)
			}
		}
	}
	return names
}

func (r *Reader) readMetadata(metadata map[string]any, now time.Time) (Intent, error) {
	// In order, so that an intent and an error do not depend on that of a map.
	names := make([]string, 0, len(metadata))
	for name := range metadata {
		names = append(names, name)
	}
	slices.Sort(names)
	whole, isWhole := metadata[wholeKey]
	if !isWhole {
		keys := make([]flat, len(names))
		for i, name := range names {
			keys[i] = flat{name: name, key: name, value: metadata[name]}
		}
		routing, err := fromFlat(metadataChannel, keys)
		return Intent{Source: SourceMetadata, Routing: routing}, err
	}
	for _, name := range names {
		switch {
		case name == wholeKey:
		case isFlatKey(name):
			return Intent{}, malformed(metadataChannel, printable(name)+": must not be there together with intent")
		default:
			return Intent{}, malformed(metadataChannel, printable(name)+": is not a key of an intent")
		}
	}

	var (
		routing *v1alpha1.RoutingIntent
		unknown []string
		err     error
	)
	switch v := whole.(type) {
	case map[string]any:
		routing, unknown, err = v1alpha1.IntentFromValue(v)
	case string:
		routing, unknown, err = v1alpha1.DecodeIntent([]byte(v))
	default:
		return Intent{}, malformed(metadataChannel, "intent: must be an object or a JSON text")
	}
	if err != nil {
		return Intent{}, decoding(metadataChannel, err)
	}
	if err := r.admit(metadataChannel, routing, now); err != nil {
		return Intent{}, err
	}
	return Intent{Source: SourceMetadata, Routing: routing, Unknown: unknown}, nil
}

// mapped has the flat keys that plain headers state; none: the channel is not
// present.
func (r *Reader) mapped(headers []Header) ([]flat, error) {
	var keys []flat
	for _, m := range r.plain {
		copies := 0
		for _, h := range headers {
			if h.Name != m.header {
				continue
			}
			if copies++; copies > 1 {
				return nil, malformed("header", m.header+": must be sent once")
			}
			keys = append(keys, flat{name: m.header, key: m.key, value: h.Value})
		}
	}
	return keys, nil
}

// admit refuses an intent that is not meant for this picker, or not for this time.
func (r *Reader) admit(channel string, routing *v1alpha1.RoutingIntent, now time.Time) error {
	if r.audience != "" && len(routing.Audience) > 0 && !slices.Contains(routing.Audience, r.audience) {
		return &Error{Token: TokenUntrusted, Message: channel + ": audience: must contain " + printable(r.audience)}
	}
	if !routing.ExpiresAt.IsZero() && !routing.ExpiresAt.After(now) {
		return &Error{Token: TokenExpired, Message: channel + ": expiresAt: must be in the future"}
	}
	return nil
}

func (r *Reader) models(routing *v1alpha1.RoutingIntent) []string {
	switch {
	case routing == nil:
		return nil
	case len(routing.ServedModels) > 0:
		return routing.ServedModels
	case routing.LogicalModel == "":
		return nil
	}
	if names, ok := r.aliases[routing.LogicalModel]; ok {
		return names
	}
	return []string{routing.LogicalModel}
}
