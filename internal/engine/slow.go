package engine

import (
	"fmt"
	"net/http"
	"slices"
	"time"

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
				if r = list.base.reading(); r.Recorded == telemetry.Fresh && len(r.Detail.Names) == 0 {
					r = missing("no model is listed")
				}
			case telemetry.AdaptersLoaded:
				r = list.adapters.reading()
			default:
				metric, r = "data[].max_model_len", list.contextLimit()
			}
			r.Support = telemetry.Supported
			set(f, metric, r)
		}
	case JSON:
		root, err := parseObject(page)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		for i := range from.members {
			m := &from.members[i]
			set(m.field, m.name, m.read(root, at))
		}
	default:
		return nil, fmt.Errorf("%s: format %s is not that of a slow page", from.Path, from.Format)
	}
	return &s, nil
}

// Reads are the fields that the page is the only source of. The slice must not
// be changed.
func (page *Page) Reads() []telemetry.Field { return page.fields }

func missing(words string) telemetry.Reading {
	return telemetry.Reading{Detail: reasons(words)}
}

func faulty(words string) telemetry.Reading {
	return telemetry.Reading{Recorded: telemetry.Invalid, Detail: reasons(words)}
}
