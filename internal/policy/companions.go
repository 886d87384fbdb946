package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// companions are what a configuration names and cannot do without: a change of one
// is a change of the configuration. The pool, which changes by itself, is none of
// them.
type companions struct {
	profiles profileDirectory
	keySet   companion
}

// readCompanions reads them from where a policy has them; an empty path names
// nothing.
func readCompanions(profiles, keySet string) companions {
	return companions{profiles: readProfiles(profiles), keySet: readCompanion(keySet, maxKeySet)}
}

// again reads the same ones once more.
func (c *companions) again() companions {
	return readCompanions(c.profiles.path, c.keySet.path)
}

// state is another one whenever one of them says something else.
func (c *companions) state() string { return c.profiles.state() + c.keySet.state() }

// places are the directories in which a change of them shows, in order, none
// twice.
func (c *companions) places() []string {
	all := slices.Concat(c.profiles.places, c.keySet.places)
	slices.Sort(all)
	return slices.Compact(all)
}

// companion is one file as it was read.
type companion struct {
	// path is empty where there is no such file to read.
	path string
	text []byte
	// err is why it could not be read, without the path.
	err error
	// places are the directories in which a change of it shows.
	places []string
}

// readCompanion reads a file of at most limit bytes.
func readCompanion(path string, limit int64) companion {
	if path == "" {
		return companion{}
	}
	c := companion{path: path, places: placesOf(path)}
	text, err := readRegular(path, limit)
	switch most := v1alpha1.Bytes(limit); {
	case err != nil:
		c.err = bare(err)
	case int64(len(text)) > limit:
		c.err = fmt.Errorf("more than %v, must be at most %v", most, most)
	default:
		c.text = text
	}
	return c
}

// state tells what the file says from what it said before, without keeping that.
func (c *companion) state() string {
	return fmt.Sprintf("%q %s", c.path, stateOf(c.text, c.err))
}

// bare is a file system's error without the path, which stands beside it.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// placesOf are the directories in which it shows that a path leads to something
// else: that of what it names, those of the symbolic links that it goes through,
// and that of where it ends.
func placesOf(path string) []string {
	places := []string{filepath.Dir(path)}
	for at := filepath.Dir(path); at != filepath.Dir(at); at = filepath.Dir(at) {
		if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			places = append(places, filepath.Dir(at))
		}
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		places = append(places, filepath.Dir(target))
	}
	return places
}
