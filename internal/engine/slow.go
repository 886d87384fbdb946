package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode"

	"github.com/berth-dev/berth/internal/telemetry"
)

// ReadSlow turns a page other than the metrics page into readings and returns
// onto with these readings in it; onto itself stays as it is. status is the HTTP
// status that page came with. lease is as in Extend.
//
// A page that is not there says that the replica has no such fields. An error
// says that the answer is not what the format promises; it tells nothing then.
// page is not kept.
func (p *Profile) ReadSlow(from Page, status int, page []byte, at telemetry.Instant, lease time.Duration, onto *telemetry.Snapshot) (*telemetry.Snapshot, error) {
	s := *onto
	set := func(f telemetry.Field, metric string, r telemetry.Reading) {
		own := telemetry.Detail{}
		if r.Detail != nil {
			own = *r.Detail
		}
		own.Source = &telemetry.Source{Path: from.Path, Metric: metric}
		r.Detail = &own
		if r.Recorded != telemetry.Missing {
			r.ObservedAt = at
		}
		if r.Recorded == telemetry.Fresh {
			r.ExpiresAt = at.Add(max(p.ttl[f], lease))
			r.Provenance = telemetry.Measured
			if r.Quality == 0 {
				r.Quality = 1
			}
		}
		s.Readings[f] = r
	}
	switch {
	case status == http.StatusNotFound:
		for _, f := range from.fields {
			set(f, "", telemetry.Reading{Support: telemetry.Unsupported, Detail: reasons("the replica has no page " + from.Path)})
		}
		return &s, nil
	case from.Format == Status:
		r := telemetry.Reading{Support: telemetry.Supported, Recorded: telemetry.Fresh, Value: 1}
		switch {
		case slices.Contains(from.no, status):
			r.Value = 0
		case status != http.StatusOK:
			return nil, fmt.Errorf("%s: status %d says neither yes nor no", from.Path, status)
		}
		set(from.fields[0], "status", r)
		return &s, nil
	case status != http.StatusOK:
		return nil, fmt.Errorf("%s: status %d", from.Path, status)
	}
	switch from.Format {
	case OpenAIModels:
		var list modelList
		if err := list.decode(page); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		for _, f := range from.fields {
			metric, r := "data[].id", telemetry.Reading{}
			switch f {
			case telemetry.ServedModels:
				r = list.names(false)
			case telemetry.AdaptersLoaded:
				r = list.names(true)
			default:
				metric, r = "data[].max_model_len", list.contextLimit()
			}
			r.Support = telemetry.Supported
			set(f, metric, r)
		}
	case JSON:
		var root map[string]any
		if err := decode(page, &root); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		for i := range from.members {
			m := &from.members[i]
			set(m.field, m.name, m.read(root))
		}
	default:
		return nil, fmt.Errorf("%s: format %s is not that of a slow page", from.Path, from.Format)
	}
	return &s, nil
}

// Reads are the fields that the page is the only source of. The slice must not
// be changed.
func (page *Page) Reads() []telemetry.Field { return page.fields }

// Owners are what the cards of /v1/models say of who serves them. whole reports
// that the page is a list, and that each of its cards says so.
func Owners(page []byte) (owners []string, whole bool) {
	var list modelList
	if list.decode(page) != nil || len(list.Data) == 0 {
		return nil, false
	}
	var listed nameSet
	whole = true
	for _, card := range list.Data {
		whole = whole && card.OwnedBy != "" && len(listed.names) < maxOwners
		if card.OwnedBy != "" && len(listed.names) < maxOwners {
			listed.add(card.OwnedBy)
		}
	}
	return listed.names, whole
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
	Data []*modelCard `json:"data"`
}

type modelCard struct {
	ID          string `json:"id"`
	Parent      string `json:"parent"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen any    `json:"max_model_len"`
}

// decode reads the page. An object without the list is an error that the engine
// tells, and not a list without models.
func (l *modelList) decode(page []byte) error {
	switch err := decode(page, l); {
	case err != nil:
		return err
	case l.Data == nil:
		return errors.New("no list of models, want data")
	case slices.Contains(l.Data, nil):
		return errors.New("a model is null, want an object")
	}
	return nil
}

func (l *modelList) names(adapters bool) telemetry.Reading {
	var listed nameSet
	for _, card := range l.Data {
		if (card.Parent != "") != adapters {
			continue
		}
		if reason := unfit(card.ID); reason != "" {
			return faulty("a model name " + reason)
		}
		if listed.add(card.ID) && len(listed.names) > maxNames {
			return faulty(fmt.Sprintf("more than %d names", maxNames))
		}
	}
	if len(listed.names) == 0 && !adapters {
		return missing("no model is listed")
	}
	return telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: listed.names}}
}

const (
	// maxOwners bounds who is looked at of those that serve the models.
	maxOwners = 64
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
