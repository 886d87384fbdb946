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
	// others are the other pages, as --page gives them.
	others []string
	// required are the fields that must be fresh.
	required []string
}

// checkRequired finds the required fields that are none.
func (t *trial) checkRequired() error {
	var fields []string
	for f := range telemetry.NumFields {
		fields = append(fields, f.String())
	}
	for _, name := range t.required {
		if !slices.Contains(fields, name) {
			return usageError{fmt.Errorf("--require: %q: must be of %s", name, strings.Join(fields, ", "))}
		}
	}
	return nil
}

// lacking says which required fields are not fresh, nil if all are.
func (t *trial) lacking(name string, doc *v1alpha1.Observation) error {
	var found []error
	for _, field := range t.required {
		if r := doc.Fields[field]; r.State != v1alpha1.Fresh {
			found = append(found, fmt.Errorf("%s: %s is %s, and --require wants it fresh: %s", name, field, r.State, console.Line(strings.Join(r.Reasons, "; "))))
		}
	}
	return errors.Join(found...)
}

// read reads pages in order; names are what errors call them. notes are what their
// user should know besides.
func (t *trial) read(set *engine.Set, names []string, pages [][]byte) (doc *v1alpha1.Observation, notes []string, err error) {
	var declared *engine.Profile
	if t.engine != "" {
		if declared, err = profileOf(set, "--engine", t.engine); err != nil {
			return nil, nil, err
		}
	} else if _, err := set.Detect(pages[0]); errors.Is(err, engine.ErrNoEngineFamilies) {
		declared = exporterOf(set, pages[0])
	}
	if declared != nil && declared.Exporter() {
		if len(t.others) > 0 {
			return nil, nil, usageError{fmt.Errorf("--page: only for an engine: %s is an exporter of GPUs and has no other pages", declared.Name())}
		}
		doc, err = t.readPods(set, declared, names, pages)
		return doc, nil, err
	}
	if t.pod != "" {
		return nil, nil, usageError{fmt.Errorf("--pod: only for the page of an exporter of GPUs, which %s is not", names[0])}
	}
	return t.readReplica(set, declared, names, pages)
}

// readReplica reads the pages of an engine; declared is nil to find out which.
func (t *trial) readReplica(set *engine.Set, declared *engine.Profile, names []string, pages [][]byte) (doc *v1alpha1.Observation, notes []string, err error) {
	var last *telemetry.Snapshot
	var profile *engine.Profile
	var others []otherPage
	history := &engine.History{}
	for i, page := range pages {
		p, other, err := recognise(set, declared, page)
		if err != nil {
			return nil, nil, t.refused(set, names[i], nil, page, err)
		}
		if last != nil && last.Engine != p.Name() {
			return nil, nil, fmt.Errorf("%s is a page of %s, and %s one of %s: must all be of one replica", names[i-1], last.Engine, names[i], p.Name())
		}
		if last == nil {
			if others, err = t.otherPages(p); err != nil {
				return nil, nil, err
			}
		}
		s, err := p.Read(page, engine.Input{At: t.when(i, len(pages)), Models: t.served(p, others), Previous: last, History: history})
		if err != nil {
			return nil, nil, t.refused(set, names[i], p, page, err)
		}
		if last != nil && engine.Restarted(last, s) {
			notes = []string{fmt.Sprintf("%s: the engine's process was started anew since %s: are the pages in the order in which they were taken?", names[i], names[i-1])}
		}
		p.Extend(s, t.lease())
		if other {
			s.Declared = declared.Name()
		}
		last, profile = s, p
	}
	if last, err = t.readOthers(profile, others, last); err != nil {
		return nil, nil, err
	}
	seen := last.Observation(v1alpha1.Replica{Name: names[len(names)-1]}, telemetry.At(t.at))
	for _, near := range misspelt(profile, &seen, pages[len(pages)-1]) {
		notes = append(notes, names[len(names)-1]+": "+near)
	}
	return &seen, notes, nil
}

// refused is why a page says nothing, and what to do about it. p is what it was read
// by, nil if there was none to read it by.
func (t *trial) refused(set *engine.Set, name string, p *engine.Profile, page []byte, err error) error {
	none := errors.Is(err, engine.ErrNoEngineFamilies)
	if x := exporterOf(set, page); none && x != nil {
		if p == nil || p == x {
			return fmt.Errorf("%s: it is a page of %s, an exporter of GPUs, and not of an engine", name, x.Name())
		}
		return fmt.Errorf("%s: it is a page of %s, an exporter of GPUs, not of %s\n    --engine %s --pod NAMESPACE/NAME reads it", name, x.Name(), p.Name(), x.Name())
	}
	if p != nil {
		err = fmt.Errorf("read as %s: %w", p.Name(), err)
	}
	err = fmt.Errorf("%s: %w", name, err)
	if families := familiesOf(namesOn(page)); none && len(families) > 0 {
		err = fmt.Errorf("%w\n    Its families: %s", err, listed(families))
	}
	for _, r := range []struct {
		is     error
		reason string
	}{
		{engine.ErrNotText, "not_text"}, {engine.ErrEmpty, "empty"}, {engine.ErrTruncated, "truncated"}, {engine.ErrJoined, "joined"},
		{engine.ErrNoEngineFamilies, "no_engine_families"}, {engine.ErrSeveralEngines, "several_engines"},
	} {
		if hint := console.FailureOf(r.reason, set, p).Hint; errors.Is(err, r.is) && hint != "" {
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

// lease is how long readings live at least, by the picker's formula and the usual
// limit of time for a page.
func (t *trial) lease() time.Duration { return 3*t.every + time.Second }

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

// readPods reads the pages of an exporter and keeps what they say of one pod.
func (t *trial) readPods(set *engine.Set, p *engine.Profile, names []string, pages [][]byte) (*v1alpha1.Observation, error) {
	var pods map[engine.Pod]*engine.Readings
	histories := map[engine.Pod]*engine.History{}
	for i, page := range pages {
		var err error
		if pods, err = p.ReadPods(page, "", t.when(i, len(pages)), t.lease(), histories); err != nil {
			return nil, t.refused(set, names[i], p, page, err)
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
		return nil, fmt.Errorf("%s: no series of %s names a pod: nothing on the page belongs to a replica\n    %s", last, p.Name(), podHint(p, pages[len(pages)-1]))
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
