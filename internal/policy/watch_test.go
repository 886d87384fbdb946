package policy

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// limit is far above what any step takes: a test that reaches it has failed.
const limit = 20 * time.Second

// load is one call of onChange.
type load struct {
	name string
	err  error
}

// watchPool watches a pool file; each load arrives on the channel.
func watchPool(t *testing.T, path string) <-chan load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	loads, done := make(chan load), make(chan error, 1)
	go func() {
		done <- WatchPool(ctx, path, nil, func(p *Pool, err error) {
			l := load{err: err}
			if p != nil {
				l.name = p.Name
			}
			select {
			case loads <- l:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("watching ended with %v; want nil", err)
			}
		case <-time.After(limit):
			t.Error("watching does not end with its context")
		}
	})
	return loads
}

func wantLoad(t *testing.T, loads <-chan load, name string) {
	t.Helper()
	select {
	case l := <-loads:
		if l.name != name || (l.err == nil) != (name != "") {
			t.Fatalf("loaded %q, error %v; want %q", l.name, l.err, name)
		}
	case <-time.After(limit):
		t.Fatalf("nothing loaded; want %q", name)
	}
}

func poolText(name string) string {
	return "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: " + name + "}\n"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestAWatchedFileIsLoadedAtTheStartAndAfterEachChangeOfItsBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, poolText("one"))
	loads := watchPool(t, path)
	wantLoad(t, loads, "one")

	put(t, path, poolText("two"))
	wantLoad(t, loads, "two")

	// The same bytes are no change: what arrives next is "three".
	put(t, path, poolText("two"))
	write(t, filepath.Join(filepath.Dir(path), "other.yaml"), "x")
	put(t, path, poolText("three"))
	wantLoad(t, loads, "three")
}

func TestAnEditorsRenameOverTheFileIsSeen(t *testing.T) {
	dir := t.TempDir()
	path, draft := filepath.Join(dir, "pool.yaml"), filepath.Join(dir, ".pool.yaml.swp")
	write(t, path, poolText("one"))
	loads := watchPool(t, path)
	wantLoad(t, loads, "one")
	for _, name := range []string{"two", "three"} {
		write(t, draft, poolText(name))
		rename(t, draft, path)
		wantLoad(t, loads, name)
	}
}

func TestAConfigMapUpdateIsSeenThroughItsSymbolicLinks(t *testing.T) {
	// A mounted ConfigMap: the file is a link to ..data/pool.yaml, ..data one to
	// a directory by the time of the update, and an update swaps ..data.
	dir := t.TempDir()
	revision := func(name string) string {
		at := filepath.Join(dir, ".."+name)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(at, "pool.yaml"), poolText(name))
		return filepath.Base(at)
	}
	data, path := filepath.Join(dir, "..data"), filepath.Join(dir, "pool.yaml")
	symlink(t, revision("one"), data)
	symlink(t, filepath.Join("..data", "pool.yaml"), path)
	loads := watchPool(t, path)
	wantLoad(t, loads, "one")
	previous := "..one"
	for _, name := range []string{"two", "three"} {
		next := revision(name)
		symlink(t, next, data+"_tmp")
		rename(t, data+"_tmp", data)
		if err := os.RemoveAll(filepath.Join(dir, previous)); err != nil {
			t.Fatal(err)
		}
		previous = next
		wantLoad(t, loads, name)
	}
}

func TestATargetInAnotherDirectoryIsFollowed(t *testing.T) {
	target, path := filepath.Join(t.TempDir(), "real.yaml"), filepath.Join(t.TempDir(), "pool.yaml")
	put(t, target, poolText("one"))
	symlink(t, target, path)
	loads := watchPool(t, path)
	wantLoad(t, loads, "one")
	put(t, target, poolText("two"))
	wantLoad(t, loads, "two")
}

func TestABadOrMissingFileIsReportedOnceAndTheSameGoodOneAgainAfterIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pool.yaml")
	write(t, path, poolText("one"))
	loads := watchPool(t, path)
	wantLoad(t, loads, "one")
	put(t, path, poolText("NOT VALID"))
	wantLoad(t, loads, "")
	write(t, path, poolText("one"))
	wantLoad(t, loads, "one")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantLoad(t, loads, "")
	write(t, path, poolText("one"))
	wantLoad(t, loads, "one")
}

func TestAWatchedConfigurationArrivesParsed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	path := filepath.Join(t.TempDir(), "berth.yaml")
	put(t, path, berthHead+"ledger: {ring: 7}\ndiscovery: {file: pool.yaml}\n")
	type result struct {
		policy *Policy
		err    error
	}
	results, done := make(chan result), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, catalog{}, func(p *Policy, _ []Warning, err error) {
			select {
			case results <- result{p, err}:
			case <-ctx.Done():
			}
		})
	}()
	next := func() result {
		t.Helper()
		select {
		case r := <-results:
			return r
		case <-time.After(limit):
			t.Fatal("nothing loaded")
			return result{}
		}
	}
	if r := next(); r.err != nil || r.policy.Ledger.Ring != 7 || r.policy.Discovery.File != filepath.Join(filepath.Dir(path), "pool.yaml") {
		t.Fatalf("%+v; want ring 7 and the pool file beside the configuration", r)
	}
	put(t, path, berthHead+"ledger: {ring: -7}\n")
	if r := next(); r.err == nil || r.policy != nil {
		t.Fatalf("%+v; want an error and no policy", r)
	}
	put(t, path, berthHead+"ledger: {ring: 8}\n")
	if r := next(); r.err != nil || r.policy.Ledger.Ring != 8 {
		t.Fatalf("%+v; want ring 8", r)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("watching ended with %v; want nil", err)
		}
	case <-time.After(limit):
		t.Error("watching does not end with its context")
	}
}

func TestWatchingADirectoryThatIsNotThereIsAnError(t *testing.T) {
	err := WatchPool(context.Background(), filepath.Join(t.TempDir(), "no", "pool.yaml"), nil, func(*Pool, error) {
		t.Error("called without a watch")
	})
	if err == nil {
		t.Error("no error")
	}
}
