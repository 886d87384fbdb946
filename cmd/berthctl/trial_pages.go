package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// otherPage is a page besides the metrics page, as a replica answers with it.
type otherPage struct {
	page   engine.Page
	name   string
	status int
	body   []byte
}

// largestOther bounds such a page, bytes, as the picker does.
const largestOther = 1 << 20

// otherPages reads what --page gives.
func (t *trial) otherPages(p *engine.Profile) ([]otherPage, error) {
	var all []otherPage
	given := map[string]bool{}
	for _, text := range t.others {
		page, value, ok := pageGiven(p, text)
		if !ok {
			return nil, usageError{fmt.Errorf("--page: %q: must be PATH=FILE or PATH=STATUS, with PATH %s", text, pathsOf(p))}
		}
		if given[page.Path] {
			return nil, usageError{fmt.Errorf("--page: %q: %s is given twice", text, page.Path)}
		}
		given[page.Path] = true
		other := otherPage{page: page, name: value, status: http.StatusOK}
		if status, err := strconv.Atoi(value); err == nil && status >= 100 && status <= 599 {
			other.status = status
		} else if other.body, err = readRegular(value, largestOther); err != nil {
			return nil, usageError{fmt.Errorf("--page: %s: %w", page.Path, err)}
		}
		all = append(all, other)
	}
	return all, nil
}

// pageGiven finds the page that PATH=VALUE is about. Both may have a =.
func pageGiven(p *engine.Profile, text string) (page engine.Page, value string, ok bool) {
	for _, page := range p.SlowPages() {
		if value, ok := strings.CutPrefix(text, page.Path+"="); ok && value != "" {
			return page, value, true
		}
	}
	return engine.Page{}, "", false
}

func pathsOf(p *engine.Profile) string {
	var paths []string
	for _, page := range p.SlowPages() {
		paths = append(paths, page.Path)
	}
	if len(paths) == 0 {
		return "of a page besides the metrics page: the profile " + p.Name() + " has none"
	}
	return "one of " + strings.Join(paths, ", ")
}

// served are the names by which the replica serves its model, nil if nothing says so.
func (t *trial) served(p *engine.Profile, others []otherPage) []string {
	if len(t.models) > 0 {
		return t.models
	}
	for _, o := range others {
		// What is wrong with the page is told when it is read for good.
		if s, err := p.ReadSlow(o.page, o.status, o.body, telemetry.At(t.at), 0, &telemetry.Snapshot{}); err == nil {
			if r := &s.Readings[telemetry.ServedModels]; r.Recorded == telemetry.Fresh && r.Detail != nil {
				return r.Detail.Names
			}
		}
	}
	return nil
}

// readOthers adds what the other pages say, and of the fields of those that are not
// given where they are read.
func (t *trial) readOthers(p *engine.Profile, others []otherPage, s *telemetry.Snapshot) (*telemetry.Snapshot, error) {
	for _, page := range p.SlowPages() {
		for _, f := range page.Reads() {
			s.Readings[f] = telemetry.Reading{Detail: &telemetry.Detail{
				Reasons: []string{"read from " + page.Path + ", which is not given: --page " + page.Path + "=FILE"},
			}}
		}
	}
	for _, o := range others {
		more, err := p.ReadSlow(o.page, o.status, o.body, telemetry.At(t.at), t.lease(), s)
		if err != nil {
			return nil, fmt.Errorf("%s: read as %s of %s: %s", o.name, o.page.Path, p.Name(), console.Line(pageFault(err, o)))
		}
		s = more
	}
	return s, nil
}

// pageFault is what is wrong with a page of JSON, with its line.
func pageFault(err error, o otherPage) string {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		before := o.body[:min(max(syntax.Offset-1, 0), int64(len(o.body)))]
		return fmt.Sprintf("line %d: it is not JSON", 1+bytes.Count(before, []byte("\n")))
	case errors.As(err, &kind):
		return fmt.Sprintf("%s is a %s, and must be of another type", kind.Field, kind.Value)
	default:
		return strings.TrimPrefix(err.Error(), o.page.Path+": ")
	}
}
