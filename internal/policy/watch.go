package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long a directory must be quiet before a file is read: an
	// editor truncates, writes and renames within a few milliseconds.
	settle = 50 * time.Millisecond
	// settleMost bounds the wait in a directory that is never quiet.
	settleMost = time.Second
	// recheck finds what no event told: network file systems, a directory that
	// was removed and made again, an overflowing event queue.
	recheck = 10 * time.Second
)

// Watch follows the configuration file at path until ctx ends, and then returns
// nil; it returns an error only if it could not begin. It calls onChange from
// its own goroutine, the caller's, one call at a time: first with what the file
// says at the start, so that no change between an earlier Load and Watch is
// missed, then whenever its bytes have changed. With an error the caller keeps
// the last good policy; the next good one follows even if it is the same again.
//
// The pool file that a policy names is not watched: see WatchPool.
func Watch(ctx context.Context, path string, catalog Catalog, onChange func(*Policy, []Warning, error)) error {
	return watchFile(ctx, path, func(data []byte, err error) {
		if err != nil {
			onChange(nil, nil, err)
			return
		}
		onChange(Parse(path, data, filepath.Dir(path), catalog))
	})
}

// WatchPool follows a StaticPool file as Watch follows a configuration.
func WatchPool(ctx context.Context, path string, onChange func(*Pool, error)) error {
	return watchFile(ctx, path, func(data []byte, err error) {
		if err != nil {
			onChange(nil, err)
			return
		}
		onChange(ParsePool(path, data))
	})
}

// watchFile watches directories, not the file: a watch on a file stays with the
// old inode when an editor renames a new one over it, and in a mounted
// ConfigMap only the symbolic link ..data beside the file changes.
func watchFile(ctx context.Context, path string, onChange func([]byte, error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return &Error{File: path, Allowed: "cannot be watched: " + err.Error(), cause: err}
	}
	defer w.Close()
	if err := w.Add(filepath.Dir(path)); err != nil {
		return &Error{File: path, Allowed: "cannot be watched: " + err.Error(), cause: err}
	}

	var last string
	read := func() {
		follow(w, path)
		data, err := readFile(path)
		state := fmt.Sprintf("%x", sha256.Sum256(data))
		if err != nil {
			state = err.Error()
		}
		if state != last {
			last = state
			onChange(data, err)
		}
	}
	read()

	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	quiet := time.NewTimer(settleMost)
	quiet.Stop()
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if now := time.Now(); since.IsZero() {
				since = now
				quiet.Reset(settle)
			} else if now.Sub(since) < settleMost-settle {
				quiet.Reset(settle)
			}
		case <-w.Errors: //nolint:errcheck // whatever it says is answered by reading the file
			// Events were lost, so that anything may have changed.
			quiet.Reset(settle)
		case <-quiet.C:
			since = time.Time{}
			read()
		case <-ticker.C:
			read()
		}
	}
}

// follow watches the file's directory and, where the file is a symbolic link,
// the directory of its target. Watching one twice is harmless; one that is gone
// is tried again by the next call.
func follow(w *fsnotify.Watcher, path string) {
	dirs := map[string]bool{filepath.Dir(path): true}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		dirs[filepath.Dir(target)] = true
	}
	for _, watched := range w.WatchList() {
		if !dirs[watched] {
			// It may have gone by itself.
			_ = w.Remove(watched)
		}
	}
	for dir := range dirs {
		// The read that follows reports a directory that is not there.
		_ = w.Add(dir)
	}
}
