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

// read reads pages in order; names are what errors call them. note is what their
// user should know besides, empty if nothing.
func (t *trial) read(set *engine.Set, names []string, pages [][]byte) (doc *v1alpha1.Observation, note string, err error) {
	var declared *engine.Profile
	if t.engine != "" {
		if declared, err = profileOf(set, "--engine", t.engine); err != nil {
			return nil, "", err
		}
	}
	switch {
	case declared != nil && declared.Exporter():
		doc, err = t.readPods(set, declared, names, pages)
		return doc, "", err
	case t.pod != "":
		return nil, "", usageError{errors.New("--pod: only for the page of an exporter, which --engine names")}
	}
	return t.readReplica(set, declared, names, pages)
}

// readReplica reads the pages of an engine; declared is nil to find out which.
func (t *trial) readReplica(set *engine.Set, declared *engine.Profile, names []string, pages [][]byte) (doc *v1alpha1.Observation, note string, err error) {
	var last *telemetry.Snapshot
	history := &engine.History{}
	for i, page := range pages {
		p, other, err := recognise(set, declared, page)
		if err != nil {
			return nil, "", refused(set, names[i], t.engine, page, err)
		}
		if last != nil && last.Engine != p.Name() {
			return nil, "", fmt.Errorf("%s is a page of %s, and %s one of %s: must all be of one replica", names[i-1], last.Engine, names[i], p.Name())
		}
		s, err := p.Read(page, engine.Input{At: t.when(i, len(pages)), Models: t.models, Previous: last, History: history})
		if err != nil {
			return nil, "", refused(set, names[i], p.Name(), page, err)
		}
		if last != nil && engine.Restarted(last, s) {
			note = fmt.Sprintf("%s: the engine's process was started anew since %s: are the pages in the order in which they were taken?", names[i], names[i-1])
		}
		if other {
			s.Declared = declared.Name()
		}
		last = notGiven(p, s)
	}
	seen := last.Observation(v1alpha1.Replica{Name: names[len(names)-1]}, telemetry.At(t.at))
	return &seen, note, nil
}

// refused is why a page says nothing, and what to do about it. profile is what it
// was read by, empty if there was none to read it by.
func refused(set *engine.Set, name, profile string, page []byte, err error) error {
	none := errors.Is(err, engine.ErrNoEngineFamilies)
	if profile != "" {
		err = fmt.Errorf("read as %s: %w", profile, err)
	}
	err = fmt.Errorf("%s: %w", name, err)
	if none {
		if x := exporterOf(set, page); x != nil {
			return fmt.Errorf("%w\n    This is a page of %s: --engine %s --pod NAMESPACE/NAME", err, x.Name(), x.Name())
		}
	}
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

// exporterOf finds the exporter whose page it is, nil if it is none's.
func exporterOf(set *engine.Set, page []byte) *engine.Profile {
	for _, p := range set.Profiles() {
		if !p.Exporter() {
			continue
		}
		if _, err := p.Read(page, engine.Input{}); err == nil {
			return p
		}
	}
	return nil
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
func (t *trial) readPods(set *engine.Set, p *engine.Profile, names []string, pages [][]byte) (*v1alpha1.Observation, error) {
	var pods map[engine.Pod]*engine.Readings
	histories := map[engine.Pod]*engine.History{}
	for i, page := range pages {
		var err error
		if pods, err = p.ReadPods(page, "", t.when(i, len(pages)), 0, histories); err != nil {
			return nil, refused(set, names[i], p.Name(), page, err)
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
