package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
)

// limit is how long a change of a file may take to be seen on a busy machine.
const limit = time.Minute

// document is a StaticPool with one endpoint per port, named after it.
func document(ports ...int) string {
	var b strings.Builder
	b.WriteString("apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {namespace: local, name: demo}\nendpoints:\n")
	for _, port := range ports {
		fmt.Fprintf(&b, "- {name: r%d, address: 127.0.0.1, port: %d}\n", port, port)
	}
	if len(ports) == 0 {
		b.WriteString("  []\n")
	}
	return b.String()
}

// A following is a registry that follows a file for the length of a test.
type following struct {
	t        *testing.T
	path     string
	registry *pool.Registry
	sets     chan []string // names of each set that the registry published
	attempts chan error    // of each attempt to load
	log      *lines
}

func follow(t *testing.T, path string) *following {
	t.Helper()
	f := &following{
		t: t, path: path,
		registry: pool.NewRegistry("", false),
		sets:     make(chan []string, 100),
		attempts: make(chan error, 100),
		log:      &lines{},
	}
	file, err := LoadFile(path, f.registry, FileOptions{
		Log:    funcr.New(f.log.add, funcr.Options{}),
		Loaded: func(_ *policy.Pool, err error) { f.attempts <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.registry.Watch(func(s *pool.Set) { f.sets <- names(s) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- file.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v, want nil once its context has ended", err)
		}
	})
	return f
}

// becomes waits until the registry has the endpoints of these ports.
func (f *following) becomes(ports ...int) {
	f.t.Helper()
	want := make([]string, len(ports))
	for i, p := range ports {
		want[i] = fmt.Sprintf("r%d", p)
	}
	deadline := time.After(limit)
	for {
		select {
		case got := <-f.sets:
			if slices.Equal(got, want) {
				return
			}
		case <-deadline:
			f.t.Fatalf("the registry has %q, want %q within %v", names(f.registry.Set()), want, limit)
		}
	}
}

// fails waits for an attempt that fails and returns its error.
func (f *following) fails() error {
	f.t.Helper()
	deadline := time.After(limit)
	for {
		select {
		case err := <-f.attempts:
			if err != nil {
				return err
			}
		case <-deadline:
			f.t.Fatalf("no attempt to load failed within %v", limit)
		}
	}
}

// has says what the registry has at this moment.
func (f *following) has(ports ...int) {
	f.t.Helper()
	want := make([]string, len(ports))
	for i, p := range ports {
		want[i] = fmt.Sprintf("r%d", p)
	}
	if got := names(f.registry.Set()); !slices.Equal(got, want) {
		f.t.Errorf("the registry has %q, want %q", got, want)
	}
}

func names(s *pool.Set) []string {
	all := make([]string, len(s.Endpoints))
	for i, e := range s.Endpoints {
		all[i] = e.Name
	}
	return all
}

// lines are what was logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(prefix, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, prefix+args)
}

func (l *lines) containing(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.all {
		if strings.Contains(line, s) {
			n++
		}
	}
	return n
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace is how editors and careful programs write.
func replace(t *testing.T, path, content string) {
	t.Helper()
	write(t, path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestTheFirstLoadMustSucceed(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	write(t, broken, strings.Replace(document(1), "port: 1}", "port: 70000}", 1))
	for _, tc := range []struct {
		name, path, want string
	}{
		{"missing file", filepath.Join(dir, "missing.yaml"), "missing.yaml"},
		{"bad file", broken, "endpoints[0].port"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := pool.NewRegistry("before", false)
			before := registry.Set()
			var told []error
			f, err := LoadFile(tc.path, registry, FileOptions{Loaded: func(p *policy.Pool, err error) {
				if p != nil {
					t.Errorf("a pool was told: %+v", p)
				}
				told = append(told, err)
			}})
			if f != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("LoadFile: %v, %v, want an error with %q", f, err, tc.want)
			}
			if registry.Set() != before {
				t.Error("the registry changed")
			}
			if len(told) != 1 || !errors.Is(told[0], err) {
				t.Errorf("told %v, want the error once", told)
			}
		})
	}
}

func TestTheFirstLoadFillsTheRegistry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, document(1, 2))
	registry := pool.NewRegistry("", false)
	if _, err := LoadFile(path, registry, FileOptions{}); err != nil {
		t.Fatal(err)
	}
	set := registry.Set()
	if set.Pool != "local/demo" {
		t.Errorf("pool is %q, want local/demo", set.Pool)
	}
	if got := names(set); !slices.Equal(got, []string{"r1", "r2"}) {
		t.Errorf("endpoints are %q, want r1 and r2", got)
	}
}

func TestChangesOfTheFileReachTheRegistry(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, path, content string)
	}{
		{"replaced by a rename", replace},
		{"written in place", write},
		{"removed and made anew", func(t *testing.T, path, content string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, content)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pool.yaml")
			write(t, path, document(1))
			f := follow(t, path)
			f.has(1)
			kept := f.registry.Set().Endpoints[0].Live
			tc.change(t, path, document(1, 2))
			f.becomes(1, 2)
			if f.registry.Set().Endpoints[0].Live != kept {
				t.Error("what was known of r1 is lost")
			}
			tc.change(t, path, document(2))
			f.becomes(2)
			tc.change(t, path, document())
			f.becomes()
			tc.change(t, path, document(3))
			f.becomes(3)
		})
	}
}

// A ConfigMap volume shows each file as a link into ..data, which is a link to a
// directory with the current content. An update makes another directory, renames
// a new ..data over the old one and removes the old directory.
func TestASwappedConfigMapReachesTheRegistry(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, content string) {
		t.Helper()
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "pool.yaml"), content)
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		if old != "" {
			if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("..2026_01_01", document(1))
	path := filepath.Join(dir, "pool.yaml")
	if err := os.Symlink(filepath.Join("..data", "pool.yaml"), path); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	f.has(1)
	publish("..2026_01_02", document(1, 2))
	f.becomes(1, 2)
	publish("..2026_01_03", document(3))
	f.becomes(3)
}

func TestTheLastGoodSetStaysWhileTheFileIsBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, document(1, 2))
	f := follow(t, path)
	good := f.registry.Set()

	replace(t, path, "kind: [")
	if err := f.fails(); !strings.Contains(err.Error(), path) {
		t.Errorf("error %q does not name the file", err)
	}
	replace(t, path, strings.Replace(document(1, 1), "port: 1}", "port: 2}", 1)) // one name twice
	if err := f.fails(); !strings.Contains(err.Error(), "endpoints[1].name") {
		t.Errorf("error %q does not name the field", err)
	}
	if f.registry.Set() != good {
		t.Error("the registry changed")
	}
	replace(t, path, document(3))
	f.becomes(3)
}

func TestTheLastGoodSetStaysWhileTheFileIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, document(1))
	f := follow(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.fails(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v, want one that is fs.ErrNotExist", err)
	}
	f.has(1)
	replace(t, path, document(2))
	f.becomes(2)
	if n := f.log.containing("keeping the last good one"); n != 1 {
		t.Errorf("the missing file was logged %d times, want once", n)
	}
}

func TestEachDistinctErrorIsLoggedOnceAndCountedEachTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, document(1))
	var told []error
	log := &lines{}
	registry := pool.NewRegistry("", false)
	f, err := LoadFile(path, registry, FileOptions{
		Log:    funcr.New(log.add, funcr.Options{}),
		Loaded: func(_ *policy.Pool, err error) { told = append(told, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	good := func(ports ...int) *policy.Pool {
		t.Helper()
		p, err := policy.ParsePool(path, []byte(document(ports...)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	one, other := errors.New("one"), errors.New("other")
	f.changed(nil, one)
	f.changed(nil, errors.New("one"))
	f.changed(nil, other)
	f.changed(nil, one)
	f.changed(good(1), nil) // mended, as it was
	f.changed(nil, one)
	f.changed(good(2), nil)
	f.changed(good(2), nil) // nothing new
	want := []string{"", "one", "one", "other", "one", "", "one", ""}
	got := make([]string, len(told))
	for i, err := range told {
		if err != nil {
			got[i] = err.Error()
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if n := log.containing(`"error"="one"`); n != 3 {
		t.Errorf("error one was logged %d times, want 3: after good, after the other, after good", n)
	}
	if n := log.containing(`"error"="other"`); n != 1 {
		t.Errorf("the other error was logged %d times, want 1", n)
	}
	if n := log.containing("pool loaded"); n != 3 {
		t.Errorf("good sets were logged %d times, want 3", n)
	}
}

func TestAnUnchangedPoolDoesNotWakeTheRegistry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, document(1))
	f := follow(t, path)
	set := f.registry.Set()
	replace(t, path, "# a comment\n"+document(1))
	replace(t, path, "kind: [") // seen after the comment, or instead of it
	if err := f.fails(); err == nil {
		t.Fatal("the broken file was loaded")
	}
	if f.registry.Set() != set {
		t.Error("a comment replaced the registry's set")
	}
}
