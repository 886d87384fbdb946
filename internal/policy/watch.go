package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berth-dev/berth/internal/engine"
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

// Watch follows the configuration file at path, and the directory of
// telemetry.profiles and the file of intent.signedHeader.keySet if it names them,
// until ctx ends, and then returns nil; it returns an error only if it could not
// begin. It calls onChange from its own
// goroutine, the caller's, one call at a time: first with what the files say at
// the start, so that no change between an earlier Load and Watch is missed, then
// whenever the bytes of one have changed, or there is one more or one less. With
// an error the caller keeps the last good policy; the next good one follows even
// if it is the same again.
//
// The pool file that a policy names is not watched: see WatchPool.
func Watch(ctx context.Context, path string, catalog Catalog, onChange func(*Policy, []Warning, error)) error {
	// States are of what was parsed, so that a change during that is one for the
	// next look.
	var file, beside string
	var read companions
	return watch(ctx, path, func() []string {
		data, err := readFile(path)
		now := read.again()
		if stateOf(data, err) == file && now.state() == beside {
			return now.places()
		}
		a := attempt{err: err}
		if err == nil {
			a = parse(path, data, filepath.Dir(path), catalog)
		}
		read = a.companions
		file, beside = stateOf(data, err), read.state()
		onChange(a.policy, a.warnings, a.err)
		return read.places()
	})
}

// WatchPool follows a StaticPool file as Watch follows a configuration. Engines
// are as for LoadPool.
func WatchPool(ctx context.Context, path string, engines *engine.Set, onChange func(*Pool, error)) error {
	var file string
	return watch(ctx, path, func() []string {
		data, err := readFile(path)
		s := stateOf(data, err)
		switch {
		case s == file:
			return nil
		case err != nil:
			onChange(nil, err)
		default:
			onChange(ParsePool(path, data, engines))
		}
		file = s
		return nil
	})
}

// stateOf tells what a file says from what it said before, unreadable files
// among them.
func stateOf(data []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// watch calls look at the start and whenever something may have changed beside
// path or in the directories that look returned last.
//
// It watches directories, not the file: a watch on a file stays with the old
// inode when an editor renames a new one over it, and in a mounted ConfigMap only
// the symbolic link ..data beside the file changes.
func watch(ctx context.Context, path string, look func() (beside []string)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return &Error{File: path, Allowed: "cannot be watched: " + err.Error(), cause: err}
	}
	defer w.Close()
	if err := w.Add(filepath.Dir(path)); err != nil {
		return &Error{File: path, Allowed: "cannot be watched: " + err.Error(), cause: err}
	}

	var beside []string
	read := func() {
		follow(w, path, beside)
		if now := look(); !slices.Equal(now, beside) {
			// What changed there before it was watched shows in a second look.
			follow(w, path, now)
			beside = look()
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
// the directory of its target, and those beside. Watching one twice is harmless;
// one that is gone is tried again by the next call.
func follow(w *fsnotify.Watcher, path string, beside []string) {
	dirs := map[string]bool{filepath.Dir(path): true}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		dirs[filepath.Dir(target)] = true
	}
	for _, dir := range beside {
		dirs[dir] = true
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
