package engine

import (
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

// NewSet joins profiles. Two of one name are an error.
func NewSet(profiles ...*Profile) (*Set, error) {
	s := &Set{profiles: slices.Clone(profiles)}
	slices.SortFunc(s.profiles, func(a, b *Profile) int { return strings.Compare(a.name, b.name) })
	for i, p := range s.profiles {
		if i > 0 && s.profiles[i-1].name == p.name {
			return nil, fmt.Errorf("engine profile name %q: given twice, must be unique", p.name)
		}
	}
	return s, nil
}

// Profiles are all of them, ordered by name.
func (s *Set) Profiles() []*Profile { return slices.Clone(s.profiles) }

// Profile finds one by name, nil if there is none.
func (s *Set) Profile(name string) *Profile {
	for _, p := range s.profiles {
		if p.name == name {
			return p
		}
	}
	return nil
}

// Detect finds the profile whose families are on the page, nil if none or if
// the page is not text. The profile first by name wins a page of several.
func (s *Set) Detect(page []byte) *Profile {
	for _, p := range s.profiles {
		if p.recognises(page) {
			return p
		}
	}
	return nil
}
