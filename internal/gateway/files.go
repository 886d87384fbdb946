package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"

	"github.com/berth-dev/berth/internal/policy"
)

// Names of the files that WriteFiles writes.
const (
	BootstrapName = "envoy.yaml"
	EndpointsName = "endpoints.yaml"
)

// ErrEdited says of a file that it would be replaced, and is somebody else's.
var ErrEdited = errors.New("it is not as it was written here: somebody has edited it, or made it")

// WriteFiles writes the configuration of an Envoy into the existing directory
// dir and returns the path of its bootstrap. Options.EndpointsFile is not
// looked at: the endpoints go beside the bootstrap, by absolute path.
//
// Each file begins with a line that has a digest of the rest. One that is not as it
// was written, or never was, is not replaced without Options.Overwrite: the error is
// ErrEdited with the path, and no file has changed.
//
// Each file is replaced by a rename and only if its content differs, so that a
// running Envoy sees whole files and no idle changes. Calling it again with
// other Endpoints is how a running Envoy gets them; any other option takes
// effect when Envoy starts next. Calls for one directory must not overlap.
func WriteFiles(dir string, o Options) (bootstrap string, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("gateway: %w", err)
	}
	o.EndpointsFile = filepath.Join(dir, EndpointsName)
	content, err := Bootstrap(o)
	if err != nil {
		return "", err
	}
	type file struct {
		path    string
		content []byte
	}
	var files []file
	if o.Kind != OriginalDst {
		endpoints, err := EndpointsFile(o)
		if err != nil {
			return "", err
		}
		// First, so that an Envoy that finds the bootstrap finds this too.
		files = append(files, file{o.EndpointsFile, endpoints})
	}
	bootstrap = filepath.Join(dir, BootstrapName)
	files = append(files, file{bootstrap, content})
	for _, f := range files {
		if err := replaceable(f.path, f.content); err != nil && !o.Overwrite {
			return "", fmt.Errorf("gateway: %s: %w", f.path, err)
		}
	}
	for _, f := range files {
		if err := replace(f.path, marked(f.content)); err != nil {
			return "", err
		}
	}
	return bootstrap, nil
}

// mark is how the first line of a file begins that WriteFiles wrote; the digest of
// all that follows stands behind it.
const mark = "# Written by berthctl gateway, which replaces this file unless it was edited: xxh64 "

// marked is a file's content under its first line.
func marked(content []byte) []byte {
	return append(fmt.Appendf(nil, "%s%016x\n", mark, xxhash.Sum64(content)), content...)
}

// replaceable says why a file must not become one with this content; nil if it may,
// or if there is none.
func replaceable(path string, content []byte) error {
	f, err := policy.OpenRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if _, rest, found := bytes.Cut(old, []byte("\n")); found && bytes.Equal(old, marked(rest)) {
		return nil
	}
	if bytes.Equal(old, content) {
		return nil // printed, and kept as it was
	}
	return ErrEdited
}

// replace makes content that of the file, in one step for whoever reads it.
func replace(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	// In the same directory, so that the rename stays within one file system.
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if err := fill(tmp, content); err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("gateway: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}

// fill writes, syncs and closes f. Temporary files are private to their owner;
// Envoy may run as another user.
func fill(f *os.File, content []byte) error {
	_, err := f.Write(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
