package engine

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/berth-dev/berth/config/engines"
)

// Set is the profiles that a picker knows, by name. It is immutable.
type Set struct {
	profiles []*Profile
}

// Defaults are the profiles that are built in.
func Defaults() (*Set, error) { return Load(engines.FS) }

// Load parses every .yaml file at the root of a file system.
func Load(files fs.FS) (*Set, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	profiles := make([]*Profile, 0, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		p, err := Parse(name, text)
		if err != nil {
			return nil, err
		}
		profiles = append(profiles, p)
	}
	return NewSet(profiles...)
}

// NewSet joins profiles. Two of one name, or of which one would recognise the
// other's page, are an error.
func NewSet(profiles ...*Profile) (*Set, error) {
	s := &Set{profiles: slices.Clone(profiles)}
	slices.SortFunc(s.profiles, func(a, b *Profile) int { return strings.Compare(a.name, b.name) })
	owner := map[string]string{}
	for _, p := range s.profiles {
		for _, name := range append([]string{p.name}, p.aliases...) {
			if other, taken := owner[name]; taken {
				return nil, fmt.Errorf("engine profile %q: name %q is that of profile %q already, must be unique", p.name, name, other)
			}
			owner[name] = p.name
		}
	}
	for i, p := range s.profiles {
		for _, other := range s.profiles[i+1:] {
			if err := p.overlaps(other); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// overlaps says where the pages of two engines could not be told apart.
func (p *Profile) overlaps(other *Profile) error {
	if p.exporter || other.exporter {
		return nil
	}
	for _, pair := range [][2]*Profile{{p, other}, {other, p}} {
		if a, b := pair[0], pair[1]; a.detect.within(&b.detect) {
			return fmt.Errorf("engine profiles %q and %q: detect.families overlap, a page of %q would be recognised by %q too", p.name, other.name, b.name, a.name)
		}
	}
	for _, a := range p.detect.prefixes {
		for _, b := range other.detect.prefixes {
			if strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
				return fmt.Errorf("engine profiles %q and %q: detect.prefixes %q and %q overlap, a page could be of either", p.name, other.name, a, b)
			}
		}
	}
	for _, pair := range [][2]*Profile{{p, other}, {other, p}} {
		a, b := pair[0], pair[1]
		for _, prefix := range a.detect.prefixes {
			for _, family := range b.families {
				if strings.HasPrefix(family.name, prefix) {
					return fmt.Errorf("engine profiles %q and %q: detect.prefixes %q of the first is that of %s, which the second reads", a.name, b.name, prefix, family.name)
				}
			}
		}
	}
	return nil
}

// within reports that a page by which other is recognised shows this engine too,
// or the other way round, because of one engine's families.
func (d *detection) within(other *detection) bool {
	if len(d.families) == 0 {
		return false
	}
	all := true
	for _, family := range d.families {
		all = all && slices.Contains(other.families, family)
		if slices.ContainsFunc(other.prefixes, func(prefix string) bool { return strings.HasPrefix(family[0], prefix) }) {
			return true
		}
	}
	return all
}

// With is s with the profiles of other besides; of two with one name, that of
// other.
func (s *Set) With(other *Set) (*Set, error) {
	joined := slices.Clone(other.profiles)
	for _, p := range s.profiles {
		if !slices.ContainsFunc(other.profiles, func(o *Profile) bool { return o.name == p.name }) {
			joined = append(joined, p)
		}
	}
	return NewSet(joined...)
}

// Profiles are all of them, ordered by name.
func (s *Set) Profiles() []*Profile { return slices.Clone(s.profiles) }

// Engines are those that are not exporters, ordered by name.
func (s *Set) Engines() []*Profile {
	return slices.DeleteFunc(s.Profiles(), (*Profile).Exporter)
}

// Profile finds one by name or alias, nil if there is none.
func (s *Set) Profile(name string) *Profile {
	for _, p := range s.profiles {
		if p.name == name || slices.Contains(p.aliases, name) {
			return p
		}
	}
	return nil
}

// Detect finds the engine whose families are on the page. The error is
// ErrNotText, ErrEmpty, ErrNoEngineFamilies, or ErrSeveralEngines for a page that
// could be read by more than one profile. Exporters are not looked for.
func (s *Set) Detect(page []byte) (*Profile, error) {
	if notText(page) {
		return nil, ErrNotText
	}
	if len(bytes.TrimSpace(page)) == 0 {
		return nil, ErrEmpty
	}
	finders := make([]finder, len(s.profiles))
	for i, p := range s.profiles {
		finders[i] = p.detect.finder()
	}
	for line := range bytes.Lines(page) {
		about := subject(bytes.TrimLeft(line, " \t"))
		for i := range finders {
			finders[i].see(about)
		}
	}
	var found *Profile
	for i, p := range s.profiles {
		switch {
		case p.exporter || !finders[i].found():
		case found != nil:
			return nil, fmt.Errorf("%w: %s and %s", ErrSeveralEngines, found.name, p.name)
		default:
			found = p
		}
	}
	if found == nil {
		return nil, ErrNoEngineFamilies
	}
	return found, nil
}

// finder looks for an engine's families.
type finder struct {
	*detection
	owned bool
	// seen has a bit for each of families.
	seen uint64
}

func (d *detection) finder() finder { return finder{detection: d} }

// see takes a line from where the family's name begins.
func (f *finder) see(about []byte) {
	if f.owned || len(about) == 0 {
		return
	}
	for _, prefix := range f.prefixes {
		if n := len(prefix); len(about) > n && string(about[:n]) == prefix && !endsName(about[n]) {
			f.owned = true
			return
		}
	}
	for i, spellings := range f.families {
		for _, family := range spellings {
			if n := len(family); len(about) >= n && string(about[:n]) == family && (len(about) == n || endsName(about[n])) {
				f.seen |= 1 << i
			}
		}
	}
}

func (f *finder) found() bool {
	return f.owned || len(f.families) > 0 && f.seen == 1<<len(f.families)-1
}
