package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"
	"strings"

	"github.com/berth-dev/berth/config/engines"
)

// Set is the profiles that a picker knows, by name. It is immutable.
type Set struct {
	profiles []*Profile
	// replaced are the names of those that stand for another of the same name.
	replaced []string
}

// Limits of what Load reads.
const (
	maxFiles = 64
	maxBytes = 4 << 20
)

// Defaults are the profiles that are built in.
func Defaults() (*Set, error) {
	s, err := Load(engines.FS)
	if err != nil {
		return nil, err
	}
	for _, p := range s.profiles {
		p.builtIn = true
	}
	return s, nil
}

// Load parses every .yaml file at the root of a file system: at most 64, of 256 KiB
// each and 4 MiB together. The error joins what is wrong with each of them.
func Load(files fs.FS) (*Set, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	if len(names) > maxFiles {
		return nil, fmt.Errorf("%d files that end in .yaml, want at most %d", len(names), maxFiles)
	}
	var profiles []*Profile
	var errs []error
	total := 0
	for _, name := range names {
		text, err := readFile(files, name)
		if total += len(text); err == nil && total > maxBytes {
			return nil, errors.Join(append(errs, &Fault{File: name, Words: fmt.Sprintf("more than %d bytes with the files before it, want at most that", maxBytes)})...)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p, err := Parse(name, text)
		if err != nil {
			errs = append(errs, Faults(err)...)
			continue
		}
		profiles = append(profiles, p)
	}
	switch len(errs) {
	case 0:
		return NewSet(profiles...)
	case 1:
		return nil, errs[0]
	default:
		return nil, errors.Join(errs...)
	}
}

// readFile reads a regular file of at most so many bytes as a profile may have, and
// one more where it has more. What is none is not opened: opening a pipe would wait.
func readFile(files fs.FS, name string) ([]byte, error) {
	refuse := func(err error) ([]byte, error) {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, &Fault{File: name, Words: printable(err.Error()) + ", want a file that can be read"}
	}
	info, err := fs.Stat(files, name)
	switch {
	case err != nil:
		return refuse(err)
	case !info.Mode().IsRegular():
		return nil, &Fault{File: name, Words: "not a regular file, want one"}
	}
	f, err := files.Open(name)
	if err != nil {
		return refuse(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProfile+1))
	if err != nil {
		return refuse(err)
	}
	return text, nil
}

// NewSet joins profiles. Two of one name, or of which one would recognise the
// other's page, are an error, which joins one for each profile that does not go with
// those before it: built-in ones come first, then the order is that of the files.
func NewSet(profiles ...*Profile) (*Set, error) {
	inOrder := slices.Clone(profiles)
	slices.SortStableFunc(inOrder, func(a, b *Profile) int {
		if a.builtIn != b.builtIn {
			if a.builtIn {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.file, b.file), strings.Compare(a.name, b.name))
	})
	owners := map[string]*Profile{}
	var errs []error
	var joined []*Profile
	for _, p := range inOrder {
		fault := p.takenName(owners)
		for _, other := range joined {
			if fault == nil {
				fault = p.overlaps(other)
			}
		}
		if fault != nil {
			errs = append(errs, fault)
			continue
		}
		for _, name := range append([]string{p.name}, p.aliases...) {
			owners[name] = p
		}
		joined = append(joined, p)
	}
	switch len(errs) {
	case 0:
	case 1:
		return nil, errs[0]
	default:
		return nil, errors.Join(errs...)
	}
	s := &Set{profiles: slices.Clone(profiles)}
	slices.SortFunc(s.profiles, func(a, b *Profile) int { return strings.Compare(a.name, b.name) })
	return s, nil
}

// fault is what is wrong with a place of the profile, in its file.
func (p *Profile) fault(path, format string, args ...any) *Fault {
	return &Fault{File: p.file, Line: p.lines[path], Field: path, Words: fmt.Sprintf(format, args...)}
}

// place names a profile beside another.
func (p *Profile) place() string {
	if p.builtIn {
		return fmt.Sprintf("the built-in profile %q", p.name)
	}
	return fmt.Sprintf("profile %q (%s:%d)", p.name, printable(p.file), p.lines["name"])
}

// takenName says which of the profile's names is that of another.
func (p *Profile) takenName(owners map[string]*Profile) *Fault {
	if other := owners[p.name]; other != nil {
		return p.fault("name", "%q is a name of %s, want one of its own", p.name, other.place())
	}
	for i, alias := range p.aliases {
		if other := owners[alias]; other != nil {
			return p.fault(fmt.Sprintf("aliases[%d]", i), "%q is a name of %s, want one of its own", alias, other.place())
		}
	}
	return nil
}

// overlaps says where the pages of two engines could not be told apart, as a fault
// of p.
func (p *Profile) overlaps(other *Profile) *Fault {
	if p.exporter || other.exporter {
		return nil
	}
	if p.detect.within(&other.detect) || other.detect.within(&p.detect) {
		return p.fault(p.detect.part(), "a page of one could be recognised as that of the other, which is %s: want families of its own", other.place())
	}
	for i, given := range p.detect.given {
		for _, prefix := range []string{given, flatten(given)} {
			path := fmt.Sprintf("detect.prefixes[%d]", i)
			for _, theirs := range other.detect.prefixes {
				if strings.HasPrefix(prefix, theirs) || strings.HasPrefix(theirs, prefix) {
					return p.fault(path, "%q overlaps with %q of %s: a page could be of either, want a prefix of its own", given, theirs, other.place())
				}
			}
			if name := other.reads(prefix); name != "" {
				return p.fault(path, "%q is how %s begins, which %s reads: want a prefix of its own", given, name, other.place())
			}
		}
	}
	for _, prefix := range other.detect.prefixes {
		if name := p.reads(prefix); name != "" {
			return p.fault(p.readAt[name], "%q begins with %s, by which %s is recognised: want families of its own", name, prefix, other.place())
		}
	}
	return nil
}

// part is the place that says by what a page is recognised.
func (d *detection) part() string {
	if len(d.families) > 0 {
		return "detect.families"
	}
	return "detect.prefixes[0]"
}

// reads is the first family of the profile that begins so, by name; empty if none
// does.
func (p *Profile) reads(prefix string) string {
	i := sort.SearchStrings(p.sorted, prefix)
	if i < len(p.sorted) && strings.HasPrefix(p.sorted[i], prefix) {
		return p.sorted[i]
	}
	return ""
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
	all, err := NewSet(joined...)
	if err != nil {
		return nil, err
	}
	for _, p := range all.profiles {
		instead := slices.ContainsFunc(s.profiles, func(o *Profile) bool { return o.name == p.name && o != p })
		if instead || s.Replaces(p.name) || other.Replaces(p.name) {
			all.replaced = append(all.replaced, p.name)
		}
	}
	return all, nil
}

// Replaces reports that the profile of this name stands instead of another, which
// With has taken it for: one's own instead of the one that is built in.
func (s *Set) Replaces(name string) bool { return slices.Contains(s.replaced, name) }

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
