package certificate

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Names of the two files, as secrets of type kubernetes.io/tls have them.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// maxFile is the most that a file may hold, bytes. Clients refuse chains from
// about 100 KB on.
const maxFile = 128 << 10

// Files are tls.crt and tls.key of a directory.
type Files struct {
	dir string
	now func() time.Time
	// told is what the caller knows of the files: a digest of both, or an error.
	told string
}

// Open reads the pair of a directory. now is the time of day, by which a
// certificate is valid or not. An error is an *Error.
func Open(dir string, now func() time.Time) (*Files, *tls.Certificate, error) {
	f := &Files{dir: dir, now: now}
	pair, err := f.read()
	if err != nil {
		return nil, nil, err
	}
	return f, pair, nil
}

const (
	// settle is how long the directory must be quiet before the files are read:
	// who copies two files writes the second a moment after the first.
	settle = 50 * time.Millisecond
	// settleMost bounds the wait in a directory that is never quiet.
	settleMost = time.Second
	// recheck finds what no event told: a directory that became another one, a link
	// to a file elsewhere, an overflowing event queue, a certificate whose time
	// begins.
	recheck = 10 * time.Second
)

// Watch follows the files until ctx ends, and then returns nil; it returns an
// error only if it could not begin. It calls onChange from the caller's
// goroutine, one call at a time, whenever the files say something else than
// Open or the call before did: with a good pair, or with an *Error, after which
// the pair before it stays the last good one. A pair that becomes good again
// after an error is told again. Watch must be called at most once.
func (f *Files) Watch(ctx context.Context, onChange func(*tls.Certificate, error)) error {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	return f.watch(ctx, tick.C, onChange)
}

// watch looks at the directory, not at the files: a watch on a file stays with
// the old one when a new one is renamed over it, and in a mounted secret only
// the symbolic link ..data beside the files changes.
func (f *Files) watch(ctx context.Context, again <-chan time.Time, onChange func(*tls.Certificate, error)) error {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		err = w.Add(f.dir)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot be watched: %w", f.dir, err)
	}
	// The first look finds what changed since Open.
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	since := time.Now()
	// wait puts the next look off until the directory is quiet.
	wait := func() {
		if now := time.Now(); since.IsZero() {
			since = now
			quiet.Reset(settle)
		} else if now.Sub(since) < settleMost-settle {
			quiet.Reset(settle)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			wait()
		case <-w.Errors: //nolint:errcheck // whatever it says is answered by reading the files
			// Events were lost, so that anything may have changed.
			wait()
		case <-again:
			// Not at once: somebody may be between the two files.
			wait()
		case <-quiet.C:
			since = time.Time{}
			// What is watched is the directory that was there before. Watching one twice
			// is harmless, and the read reports one that is gone.
			_ = w.Add(f.dir)
			if pair, err := f.read(); pair != nil || err != nil {
				onChange(pair, err)
			}
		}
	}
}

// read returns what the files say, or nil and nil where that was told already. A
// pair that is not good is looked at each time: its time may have begun.
func (f *Files) read() (*tls.Certificate, error) {
	pair, digest, err := f.parse()
	state := digest
	if err != nil {
		state = err.Error()
	}
	if state == f.told {
		return nil, nil
	}
	f.told = state
	return pair, err
}

// parse returns the pair and a digest of both files; no pair where the digest is
// that of the pair that was told.
func (f *Files) parse() (pair *tls.Certificate, digest string, err error) {
	certFile, keyFile := filepath.Join(f.dir, CertFile), filepath.Join(f.dir, KeyFile)
	certPEM, err := readFile(certFile)
	if err != nil {
		return nil, "", err
	}
	keyPEM, err := readFile(keyFile)
	if err != nil {
		return nil, "", err
	}
	c, k := sha256.Sum256(certPEM), sha256.Sum256(keyPEM)
	digest = hex.EncodeToString(c[:]) + hex.EncodeToString(k[:])
	if digest == f.told {
		return nil, digest, nil
	}
	pair, err = parse(certFile, certPEM, keyFile, keyPEM, f.now())
	return pair, digest, err
}

var (
	errNotRegular = errors.New("it is not a regular file")
	errTooLong    = fmt.Errorf("it is longer than %d KiB", maxFile>>10)
)

// readFile reads a regular file of at most maxFile bytes. Opening does not wait:
// a pipe without a writer would hold up whoever asks, for ever.
func readFile(path string) ([]byte, error) {
	data, err := func() ([]byte, error) {
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		info, err := file.Stat()
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, errNotRegular
		}
		data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
		if len(data) > maxFile {
			return nil, errTooLong
		}
		return data, err
	}()
	if err == nil {
		return data, nil
	}
	reason := err
	var pe *os.PathError
	if errors.As(err, &pe) {
		reason = pe.Err
	}
	return nil, &Error{path, "cannot be read: " + reason.Error(), err}
}
