package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// trial reads saved pages as the picker would have read them.
type trial struct {
	// engine is the declared kind of engine; empty to find it out.
	engine string
	// at is when the last page was taken, every what is between two.
	at     time.Time
	every  time.Duration
	models []string
	// pod is whose readings to take from an exporter's page.
	pod string
}

// read reads pages in order; names are what errors call them.
func (t *trial) read(set *engine.Set, names []string, pages [][]byte) (*v1alpha1.Observation, error) {
	var declared *engine.Profile
	if t.engine != "" {
		var err error
		if declared, err = profileOf(set, "--engine", t.engine); err != nil {
			return nil, err
		}
	}
	if declared != nil && declared.Exporter() {
		return t.readPods(declared, names, pages)
	}
	if t.pod != "" {
		return nil, usageError{errors.New("--pod: only for the page of an exporter, which --engine names")}
	}
	var last *telemetry.Snapshot
	history := &engine.History{}
	for i, page := range pages {
		p, other, err := recognise(set, declared, page)
		if err != nil {
			return nil, refused(names[i], t.engine, err)
		}
		s, err := p.Read(page, engine.Input{At: t.when(i, len(pages)), Models: t.models, Previous: last, History: history})
		if err != nil {
			return nil, refused(names[i], p.Name(), err)
		}
		if other {
			s.Declared = declared.Name()
		}
		last = notGiven(p, s)
	}
	doc := last.Observation(v1alpha1.Replica{Name: names[len(names)-1]}, telemetry.At(t.at))
	return &doc, nil
}

// refused is why a page says nothing, and what to do about it.
func refused(name, profile string, err error) error {
	if profile != "" {
		err = fmt.Errorf("read as %s: %w", profile, err)
	}
	err = fmt.Errorf("%s: %w", name, err)
	for _, r := range []struct {
		is     error
		reason string
	}{
		{engine.ErrNotText, "not_text"}, {engine.ErrEmpty, "empty"}, {engine.ErrTruncated, "truncated"}, {engine.ErrJoined, "joined"},
		{engine.ErrNoEngineFamilies, "no_engine_families"}, {engine.ErrSeveralEngines, "several_engines"},
	} {
		if hint := console.ScrapeFailure(r.reason, profile).Hint; errors.Is(err, r.is) && hint != "" {
			return fmt.Errorf("%w\n    %s", err, hint)
		}
	}
	return err
}

// when page i of n was taken.
func (t *trial) when(i, n int) telemetry.Instant {
	return telemetry.At(t.at).Add(-time.Duration(n-1-i) * t.every)
}

// recognise finds whose a page is. What it shows wins over what is declared;
// other reports that the two differ.
func recognise(set *engine.Set, declared *engine.Profile, page []byte) (p *engine.Profile, other bool, err error) {
	if declared == nil {
		p, err = set.Detect(page)
		return p, false, err
	}
	if _, err := declared.Read(page, engine.Input{}); !errors.Is(err, engine.ErrNoEngineFamilies) {
		return declared, false, nil
	}
	if found, err := set.Detect(page); err == nil {
		return found, found != declared, nil
	}
	return declared, false, nil
}

// notGiven says of the fields that other pages carry where they are read.
func notGiven(p *engine.Profile, s *telemetry.Snapshot) *telemetry.Snapshot {
	for _, page := range p.SlowPages() {
		for _, f := range page.Reads() {
			s.Readings[f] = telemetry.Reading{Detail: &telemetry.Detail{Reasons: []string{"read from " + page.Path + ", which is not given"}}}
		}
	}
	return s
}

// readPods reads the pages of an exporter and keeps what they say of one pod.
func (t *trial) readPods(p *engine.Profile, names []string, pages [][]byte) (*v1alpha1.Observation, error) {
	var pods map[engine.Pod]*engine.Readings
	histories := map[engine.Pod]*engine.History{}
	for i, page := range pages {
		var err error
		if pods, err = p.ReadPods(page, "", t.when(i, len(pages)), 0, histories); err != nil {
			return nil, refused(names[i], p.Name(), err)
		}
	}
	last := names[len(names)-1]
	var known []string
	for pod := range pods {
		known = append(known, string(pod))
	}
	slices.Sort(known)
	pod := t.pod
	switch {
	case len(known) == 0:
		return nil, fmt.Errorf("%s: no series of %s names a pod: nothing on the page belongs to a replica", last, p.Name())
	case pod == "" && len(known) == 1:
		pod = known[0]
	case pod == "":
		return nil, usageError{fmt.Errorf("--pod: missing: %s has %d pods: %s", last, len(known), listed(known))}
	case pods[engine.Pod(pod)] == nil:
		return nil, fmt.Errorf("%s: no pod %q; it has %s", last, pod, listed(known))
	}
	s := &telemetry.Snapshot{Engine: p.Name(), Profile: p.Digest(), Incarnation: 1, Readings: *pods[engine.Pod(pod)]}
	for f := range s.Readings {
		if r := &s.Readings[f]; r.Detail == nil {
			r.Detail = &telemetry.Detail{Reasons: []string{"an exporter tells of GPUs alone"}}
		}
	}
	doc := s.Observation(v1alpha1.Replica{Name: last, Pod: pod}, telemetry.At(t.at))
	return &doc, nil
}

// mostListed is how many names an error lists.
const mostListed = 20

// listed is a list of names for a message. They are from a page, and quoted.
func listed(names []string) string {
	var quoted []string
	for _, name := range names[:min(len(names), mostListed)] {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	if more := len(names) - len(quoted); more > 0 {
		quoted = append(quoted, fmt.Sprintf("%d more", more))
	}
	return strings.Join(quoted, ", ")
}
