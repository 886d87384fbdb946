package policy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/intent"
)

// watchKeys watches a configuration; each load arrives as the policy or the error.
func watchKeys(t *testing.T, path string) <-chan attempt {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	loads, done := make(chan attempt), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, catalog{}, func(p *Policy, _ []Warning, err error) {
			select {
			case loads <- attempt{policy: p, err: err}:
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

// wantKeys waits for one load: of the key with this name, or with a part of an
// error.
func wantKeys(t *testing.T, loads <-chan attempt, want string) {
	t.Helper()
	var a attempt
	select {
	case a = <-loads:
	case <-time.After(limit):
		t.Fatalf("nothing loaded; want %q", want)
	}
	if part, ok := strings.CutPrefix(want, "error "); ok {
		if a.err == nil || a.policy != nil || !strings.Contains(a.err.Error(), part) || !strings.Contains(a.err.Error(), "intent.signedHeader.keySet") {
			t.Fatalf("loaded %v, error %v; want an error of intent.signedHeader.keySet with %q", a.policy, a.err, part)
		}
		return
	}
	if a.err != nil {
		t.Fatalf("error %v; want key %q", a.err, want)
	}
	if want == "" {
		if a.policy.Intent.Keys != nil {
			t.Fatalf("there are keys; want none")
		}
		return
	}
	keys, err := intent.ParseKeySet([]byte(keySetText(want)))
	if err != nil {
		t.Fatal(err)
	}
	if !a.policy.Intent.Keys.Equal(keys) {
		t.Fatalf("other keys than %q", want)
	}
}

func TestAKeySetIsLoadedWhenItsBytesChange(t *testing.T) {
	dir := t.TempDir()
	path, keys := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "keys.json")
	write(t, path, signedHead)
	write(t, keys, keySetText("one"))
	loads := watchKeys(t, path)
	wantKeys(t, loads, "one")
	put(t, keys, keySetText("two"))
	wantKeys(t, loads, "two")
	// The same bytes are no change: what arrives next is "three".
	put(t, keys, keySetText("two"))
	put(t, keys, keySetText("three"))
	wantKeys(t, loads, "three")
}

func TestABrokenKeySetIsReportedAndTheSameGoodOneAgainAfterIt(t *testing.T) {
	dir := t.TempDir()
	path, keys := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "keys.json")
	write(t, path, signedHead)
	write(t, keys, keySetText("one"))
	loads := watchKeys(t, path)
	wantKeys(t, loads, "one")
	put(t, keys, "{")
	wantKeys(t, loads, "error cannot be used: "+keys)
	put(t, keys, keySetText("one"))
	wantKeys(t, loads, "one")
	if err := os.Remove(keys); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, loads, "error no such file or directory")
	put(t, keys, keySetText("two"))
	wantKeys(t, loads, "two")
}

func TestASecretOfKeysIsSeenThroughItsSymbolicLinks(t *testing.T) {
	dir, at := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "berth.yaml")
	revision := func(name string) {
		target := filepath.Join(at, ".."+name)
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(target, "keys.json"), keySetText(name))
		symlink(t, ".."+name, filepath.Join(at, "..data_tmp"))
		rename(t, filepath.Join(at, "..data_tmp"), filepath.Join(at, "..data"))
	}
	revision("one")
	symlink(t, filepath.Join("..data", "keys.json"), filepath.Join(at, "keys.json"))
	write(t, path, strings.Replace(signedHead, "keys.json", filepath.Join(at, "keys.json"), 1))
	loads := watchKeys(t, path)
	wantKeys(t, loads, "one")
	revision("two")
	if err := os.RemoveAll(filepath.Join(at, "..one")); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, loads, "two")
	revision("three")
	wantKeys(t, loads, "three")
}

func TestALinkToTheDirectoryOfAKeySetIsFollowed(t *testing.T) {
	dir, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	path, link := filepath.Join(dir, "berth.yaml"), filepath.Join(t.TempDir(), "keys")
	write(t, filepath.Join(first, "keys.json"), keySetText("one"))
	write(t, filepath.Join(second, "keys.json"), keySetText("two"))
	symlink(t, first, link)
	write(t, path, strings.Replace(signedHead, "keys.json", filepath.Join(link, "keys.json"), 1))
	loads := watchKeys(t, path)
	wantKeys(t, loads, "one")
	symlink(t, second, link+"_tmp")
	rename(t, link+"_tmp", link)
	wantKeys(t, loads, "two")
	put(t, filepath.Join(second, "keys.json"), keySetText("three"))
	wantKeys(t, loads, "three")
}

func TestAnotherKeySetIsFollowedInPlaceOfTheFirst(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other.json")
	path, keys := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "keys.json")
	write(t, path, signedHead)
	write(t, keys, keySetText("one"))
	write(t, other, keySetText("two"))
	loads := watchKeys(t, path)
	wantKeys(t, loads, "one")
	put(t, path, strings.Replace(signedHead, "keys.json", other, 1))
	wantKeys(t, loads, "two")
	// The first one is of no interest now.
	put(t, keys, "broken")
	put(t, other, keySetText("three"))
	wantKeys(t, loads, "three")
	put(t, path, berthHead)
	wantKeys(t, loads, "")
}

func TestAKeySetIsFollowedWhileTheConfigurationIsRefused(t *testing.T) {
	dir := t.TempDir()
	path, keys := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "keys.json")
	write(t, path, signedHead)
	loads := watchKeys(t, path)
	wantKeys(t, loads, "error no such file or directory")
	put(t, keys, keySetText("one"))
	wantKeys(t, loads, "one")
}
