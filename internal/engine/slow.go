package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode"

	"github.com/berth-dev/berth/internal/telemetry"
)

// ReadSlow turns a page other than the metrics page into readings and returns
// onto with these readings in it; onto itself stays as it is. lease is as in
// Extend.
//
// An error says that the page is not what its format promises; it tells nothing
// then. page is not kept.
func (p *Profile) ReadSlow(from Page, page []byte, at telemetry.Instant, lease time.Duration, onto *telemetry.Snapshot) (*telemetry.Snapshot, error) {
	s := *onto
	set := func(f telemetry.Field, metric string, r telemetry.Reading) {
		if r.Detail == nil {
			r.Detail = &telemetry.Detail{}
		}
		r.Detail.Source = &telemetry.Source{Path: from.Path, Metric: metric}
		r.Support = telemetry.Supported
		if r.Recorded != telemetry.Missing {
			r.ObservedAt = at
		}
		if r.Recorded == telemetry.Fresh {
			r.ExpiresAt = at.Add(max(p.ttl[f], lease))
			r.Provenance = telemetry.Measured
			r.Quality = 1
		}
		s.Readings[f] = r
	}
	switch from.Format {
	case OpenAIModels:
		var list modelList
		if err := decode(page, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		set(telemetry.ServedModels, "data[].id", list.names(false))
		set(telemetry.AdaptersLoaded, "data[].id", list.names(true))
		set(telemetry.ContextLimit, "data[].max_model_len", list.contextLimit())
	case Version:
		var v struct{ Version any }
		if err := decode(page, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		set(telemetry.EngineVersion, "version", version(v.Version))
	default:
		return nil, fmt.Errorf("%s: format %s is not that of a slow page", from.Path, from.Format)
	}
	return &s, nil
}

func decode(page []byte, into any) error {
	if page = bytes.TrimSpace(page); len(page) == 0 || page[0] != '{' {
		return fmt.Errorf("want a JSON object")
	}
	return json.Unmarshal(page, into)
}

func missing(words string) telemetry.Reading {
	return telemetry.Reading{Detail: reasons(words)}
}

func faulty(words string) telemetry.Reading {
	return telemetry.Reading{Recorded: telemetry.Invalid, Detail: reasons(words)}
}

// modelList is the answer of /v1/models: cards of base models, under each of
// their served names, and of adapters, which name a parent.
type modelList struct {
	Data []struct {
		ID          string `json:"id"`
		Parent      string `json:"parent"`
		MaxModelLen any    `json:"max_model_len"`
	} `json:"data"`
}

func (l *modelList) names(adapters bool) telemetry.Reading {
	var names []string
	for _, card := range l.Data {
		if (card.Parent != "") != adapters || slices.Contains(names, card.ID) {
			continue
		}
		if reason := unfit(card.ID); reason != "" {
			return faulty("a model name " + reason)
		}
		names = append(names, card.ID)
		if len(names) > maxNames {
			return faulty(fmt.Sprintf("more than %d names", maxNames))
		}
	}
	if len(names) == 0 && !adapters {
		return missing("no model is listed")
	}
	return telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: names}}
}

const (
	// maxNames bounds what one replica may claim to serve.
	maxNames = 4096
	// maxText bounds a name or a version, in bytes.
	maxText = 512
)

// unfit says why a text of an engine cannot be a name; empty if it can.
func unfit(text string) string {
	switch {
	case text == "":
		return "is empty"
	case len(text) > maxText:
		return fmt.Sprintf("has %d bytes, want at most %d", len(text), maxText)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return "has characters that do not print"
		}
	}
	return ""
}

// contextLimit is the lowest that a base model states.
func (l *modelList) contextLimit() telemetry.Reading {
	r := missing("max_model_len is not stated")
	for _, card := range l.Data {
		if card.Parent != "" || card.MaxModelLen == nil {
			continue
		}
		v, ok := card.MaxModelLen.(float64)
		if !ok || v < 1 || !telemetry.ContextLimit.Possible(v) {
			return faulty("max_model_len is not a number of at least 1")
		}
		if r.Recorded != telemetry.Fresh || v < r.Value {
			r = telemetry.Reading{Recorded: telemetry.Fresh, Value: v}
		}
	}
	return r
}

func version(v any) telemetry.Reading {
	text, ok := v.(string)
	if !ok {
		return missing("version is not stated")
	}
	if reason := unfit(text); reason != "" {
		return faulty("the version " + reason)
	}
	return telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Text: text}}
}
