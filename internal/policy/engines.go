package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berth-dev/berth/internal/engine"
)

// builtIn are the profiles of this binary, which do not change: they are parsed
// once, at the first configuration.
var builtIn = sync.OnceValues(engine.Defaults)

// LoadProfiles reads a directory of engine profiles by the rules of
// telemetry.profiles: they stand beside the built-in ones, or instead of those of
// the same name. The error joins one for each fault, with file and line.
func LoadProfiles(dir string) (*engine.Set, error) {
	base, err := builtIn()
	if err != nil {
		return nil, err
	}
	read := readProfiles(dir)
	own, errs := read.parse()
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(own) == 0 {
		return nil, fmt.Errorf("%s: has no profile, want files that end in %s", dir, profileEnd)
	}
	all, errs := join(base, own)
	return all, errors.Join(errs...)
}

// engines are the profiles that a configuration reads by, and those of them that
// are its own, by name. The first result is nil where one of its own was refused.
// d is the BerthConfiguration, nil if there is none.
func (p *problems) engines(d *document, dir *profileDirectory) (all *engine.Set, own []*engine.Profile) {
	base, err := builtIn()
	if err != nil {
		p.refuse(0, "", "", "cannot be read with the engine profiles of this binary: "+err.Error())
		return nil, nil
	}
	if dir.path == "" {
		return base, nil
	}
	own, errs := dir.parse()
	if len(errs) == 0 {
		all, errs = join(base, own)
	}
	if len(errs) > 0 {
		for _, err := range errs {
			d.unusable("telemetry.profiles", err)
		}
		return nil, nil
	}
	slices.SortFunc(own, func(a, b *engine.Profile) int { return strings.Compare(a.Name(), b.Name()) })
	return all, own
}

// unusable refuses what the file names at path, for each of what is wrong with it.
func (d *document) unusable(path string, err error) {
	d.problems.refuse(d.line(path), path, d.value(path), "cannot be used: "+printable(err.Error(), 1000))
}

// join puts a directory's profiles instead of or beside the built-in ones.
func join(base *engine.Set, profiles []*engine.Profile) (all *engine.Set, errs []error) {
	own, err := engine.NewSet(profiles...)
	if err == nil {
		all, err = base.With(own)
	}
	return all, engine.Faults(err)
}

// namesOf are the names of the engines in a set, or of its exporters.
func namesOf(set *engine.Set, exporters bool) []string {
	var names []string
	for _, p := range set.Profiles() {
		if p.Exporter() == exporters {
			names = append(names, p.Name())
		}
	}
	return names
}

// ReplacedProfiles are the names of the built-in engine profiles that the
// configuration has its own instead of, ordered.
func (p *Policy) ReplacedProfiles() []string {
	var names []string
	for _, own := range p.Engines.Profiles() {
		if p.Engines.Replaces(own.Name()) {
			names = append(names, own.Name())
		}
	}
	return names
}
