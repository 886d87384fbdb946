package channel

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/scorers/parameters"
)

const (
	defaultSkew = 30 * time.Second
	maxSkew     = 5 * time.Minute
	// maxPath and maxAudience bound what is one name in practice, bytes.
	maxPath     = 4096
	maxAudience = 253
	// maxHeaders and maxAliases are those of a BerthConfiguration; maxServed is that
	// of an intent's servedModels.
	maxHeaders = 32
	maxAliases = 1024
	maxServed  = 64
)

// Settings are the parameters that say which intents are trusted.
type Settings struct {
	keySet, audience       string
	skew                   time.Duration
	plainHeaders, required bool
	headers                map[string]string
	aliases                map[string][]string
}

// Decode reads a filter's parameters: those of Settings, and its own. The error is
// a *parameters.Error. The key set is not read yet.
func Decode(params json.RawMessage, own ...parameters.Parameter) (*Settings, error) {
	s := &Settings{skew: -1}
	known := append([]parameters.Parameter{
		parameters.Text{Key: "keySet", Into: &s.keySet, AtMost: maxPath, Means: "the path of a JSON Web Key Set"},
		parameters.Text{Key: "audience", Into: &s.audience, AtMost: maxAudience, Means: "the name of this picker"},
		parameters.Duration{Key: "skew", Into: &s.skew, Min: 0, Max: maxSkew},
		parameters.Flag{Key: "plainHeaders", Into: &s.plainHeaders},
		parameters.Texts{Key: "headers", Into: &s.headers, AtMost: maxHeaders, Means: "the flat key of each header"},
		parameters.Flag{Key: "required", Into: &s.required},
	}, own...)
	if err := parameters.Decode(params, known...); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

// Aliases is the parameter of a filter that asks for the intent's models.
func Aliases(into *map[string][]string) parameters.Parameter {
	return parameters.Lists{Key: "aliases", Into: into, AtMost: maxAliases, EachAtMost: maxServed,
		Means: "the served models of each alias"}
}

// Alias sets the aliases, which the caller has decoded by the parameter of Aliases.
func (s *Settings) Alias(aliases map[string][]string) error {
	for _, alias := range slices.Sorted(maps.Keys(aliases)) {
		one := map[string][]string{alias: aliases[alias]}
		if _, err := intent.NewReader(intent.Options{Aliases: one}); err != nil {
			return &parameters.Error{Field: "aliases", Value: quoted(alias),
				Allowed: "names of models of 1 to 512 bytes, each with 1 to 64 such names"}
		}
	}
	s.aliases = aliases
	return nil
}

// check refuses what would leave a channel shut that the operator believes open: a
// constraint that is never read is a constraint that is never kept.
func (s *Settings) check() error {
	refuse := func(field, value, allowed string) error {
		return &parameters.Error{Field: field, Value: value, Allowed: allowed}
	}
	switch {
	case s.keySet != "" && s.audience == "":
		return refuse("audience", "missing", "the name of this picker, since a signed intent is meant for one")
	case s.keySet == "" && s.audience != "":
		return refuse("audience", quoted(s.audience), "left out without keySet: only signed intents have one here")
	case s.keySet == "" && s.skew >= 0:
		return refuse("skew", s.skew.String(), "left out without keySet: only signed intents have times here")
	case !s.plainHeaders && s.headers != nil:
		return refuse("headers", "an object", "left out unless plainHeaders is true")
	case s.required && s.keySet == "" && !s.plainHeaders:
		return refuse("required", "true", "false without keySet and plainHeaders: no intent could ever be trusted")
	}
	if s.skew < 0 {
		s.skew = defaultSkew
	}
	if s.plainHeaders && s.headers == nil {
		s.headers = map[string]string{"x-selected-model": "logicalModel"}
	}
	return s.checkHeaders()
}

func (s *Settings) checkHeaders() error {
	mapped := map[string]string{}
	for _, header := range slices.Sorted(maps.Keys(s.headers)) {
		key := s.headers[header]
		refuse := func(allowed string) error {
			return &parameters.Error{Field: "headers." + header, Value: quoted(key), Allowed: allowed}
		}
		if strings.HasPrefix(header, "x-berth-") || strings.HasPrefix(header, "x-gateway-") {
			return refuse("the key of a header that does not begin with x-berth- or x-gateway-: those have a meaning of their own")
		}
		if err := intent.FlatKey(key); err != nil {
			return refuse("logicalModel, servedModels, priority, sessionKey, contextInputTokens, contextOutputTokens" +
				" or requirement.CLASS.KEY with a class of requirements")
		}
		if _, err := intent.NewReader(intent.Options{PlainHeaders: map[string]string{header: key}}); err != nil {
			return refuse("the key of a header whose name is in lower case")
		}
		if other, twice := mapped[key]; twice {
			return refuse("a key of its own: " + other + " has this one")
		}
		mapped[key] = header
	}
	return nil
}

// Open makes the reader. It calls read once, for the key set, and not at all where
// there is none. An error about a parameter is a *parameters.Error; it shows no key.
func (s *Settings) Open(read func(path string) ([]byte, error)) (*Reader, error) {
	options := intent.Options{Required: s.required, Audience: s.audience, Skew: s.skew,
		PlainHeaders: s.headers, Aliases: s.aliases}
	if s.keySet != "" {
		refuse := func(err error) error {
			return &parameters.Error{Field: "keySet", Value: quoted(s.keySet), Allowed: "the path of a JSON Web Key Set: " + err.Error()}
		}
		data, err := read(s.keySet)
		if err != nil {
			return nil, refuse(err)
		}
		if options.Keys, err = intent.ParseKeySet(data); err != nil {
			return nil, refuse(err)
		}
	}
	intents, err := intent.NewReader(options)
	if err != nil {
		return nil, fmt.Errorf("reading intents: %w", err)
	}
	return &Reader{intents: intents, plain: slices.Sorted(maps.Keys(s.headers))}, nil
}

// quoted is a value for an error, cut to a readable length.
func quoted(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strconv.Quote(s)
}
