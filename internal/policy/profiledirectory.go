package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/internal/engine"
)

const (
	// maxProfiles is how many profiles a directory may have: far more than there
	// are kinds of engines.
	maxProfiles = 64
	profileEnd  = ".yaml"
)

// profileDirectory is a directory of profiles as it was read.
type profileDirectory struct {
	// path is empty where the configuration names no directory.
	path  string
	files []companion
	// err is why the directory could not be read.
	err error
	// places are the directories in which a change of it shows.
	places []string
}

// readProfiles reads a directory of profiles. Names that begin with a dot are
// those of editors, and of the links that swap a mounted ConfigMap.
func readProfiles(path string) profileDirectory {
	d := profileDirectory{path: path}
	if path == "" {
		return d
	}
	d.places = append(placesOf(path), path)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		d.places = append(d.places, target)
	}
	entries, err := readDirectory(path)
	if err != nil {
		d.err = err
		return d
	}
	for _, e := range entries {
		extension := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || extension != profileEnd && extension != ".yml" {
			continue
		}
		if len(d.files) == maxProfiles {
			d.files, d.err = nil, fmt.Errorf("it has more than %d files that end in %s", maxProfiles, profileEnd)
			return d
		}
		d.files = append(d.files, companion{path: filepath.Join(path, e.Name())})
	}
	for i := range d.files {
		f := &d.files[i]
		if filepath.Ext(f.path) == profileEnd {
			*f = readCompanion(f.path, maxFile)
		} else {
			f.err = errors.New("the name must end in " + profileEnd)
		}
		d.places = append(d.places, f.places...)
	}
	slices.Sort(d.places)
	d.places = slices.Compact(d.places)
	return d
}

// readDirectory lists a directory by names. Opening does not wait, as that of
// OpenRegular.
func readDirectory(path string) ([]fs.DirEntry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, bare(err)
}

// state is another one whenever the directory says something else.
func (d *profileDirectory) state() string {
	sum := sha256.New()
	for _, f := range d.files {
		fmt.Fprintln(sum, f.state())
	}
	return fmt.Sprintf("%q %v %s", d.path, d.err, hex.EncodeToString(sum.Sum(nil)))
}

// parse reads each file. The profiles are in the order of their files.
func (d *profileDirectory) parse() (profiles []*engine.Profile, errs []error) {
	if d.err != nil {
		return nil, []error{fmt.Errorf("%s: %w", d.path, d.err)}
	}
	for _, f := range d.files {
		if f.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.path, f.err))
			continue
		}
		p, err := engine.Parse(f.path, f.text)
		if err != nil {
			errs = append(errs, engine.Faults(err)...)
			continue
		}
		profiles = append(profiles, p)
	}
	return profiles, errs
}
