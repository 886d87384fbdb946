package gateway

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Names of the files that WriteFiles writes.
const (
	BootstrapName = "envoy.yaml"
	EndpointsName = "endpoints.yaml"
)

// WriteFiles writes the configuration of an Envoy into the existing directory
// dir and returns the path of its bootstrap. Options.EndpointsFile is not
// looked at: the endpoints go beside the bootstrap, by absolute path.
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
	if o.Kind != OriginalDst {
		endpoints, err := EndpointsFile(o)
		if err != nil {
			return "", err
		}
		// First, so that an Envoy that finds the bootstrap finds this too.
		if err := replace(o.EndpointsFile, endpoints); err != nil {
			return "", err
		}
	}
	bootstrap = filepath.Join(dir, BootstrapName)
	return bootstrap, replace(bootstrap, content)
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
