package policy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/engine"
)

// watchConfiguration watches a configuration whose profiles are in the directory
// profiles beside it. Each load arrives as the names of the profiles that are not
// built in, with the time that their pages may stand still, or as the error.
func watchConfiguration(t *testing.T, path string) <-chan string {
	t.Helper()
	defaults, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	loads, done := make(chan string), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, catalog{}, func(p *Policy, _ []Warning, err error) {
			text := ""
			if err != nil {
				text = err.Error()
			} else {
				var own []string
				for _, e := range p.Engines.Profiles() {
					if defaults.Profile(e.Name()) == nil {
						own = append(own, lastLine(e.Text()))
					}
				}
				text = strings.Join(own, " ")
			}
			select {
			case loads <- text:
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

// put replaces a file in one step: what watches it must not see it half written.
func put(t *testing.T, path, text string) {
	t.Helper()
	draft := filepath.Join(filepath.Dir(path), ".draft")
	write(t, draft, text)
	rename(t, draft, path)
}

// marked is a profile with a comment as its last line.
func marked(name, mark string) string { return profileText(name, "# "+mark) }

func lastLine(text []byte) string {
	lines := strings.Split(string(text), "\n# ")
	return lines[len(lines)-1]
}

// wantProfiles waits for one load: the marks of profiles, or a part of an error.
func wantProfiles(t *testing.T, loads <-chan string, want string) {
	t.Helper()
	select {
	case got := <-loads:
		if got != want && (!strings.HasPrefix(want, "error ") || !strings.Contains(got, strings.TrimPrefix(want, "error "))) {
			t.Fatalf("loaded %q; want %q", got, want)
		}
	case <-time.After(limit):
		t.Fatalf("nothing loaded; want %q", want)
	}
}

func TestAFileOfTheProfilesDirectoryIsLoadedWhenItIsAddedChangedAndRemoved(t *testing.T) {
	dir := beside(t, map[string]string{"a.yaml": marked("mlx", "one")})
	path, at := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles")
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")

	put(t, filepath.Join(at, "a.yaml"), marked("mlx", "two"))
	wantProfiles(t, loads, "two")
	// What is no profile is no change: what arrives next is the file after it.
	write(t, filepath.Join(at, "README"), "x")
	put(t, filepath.Join(at, "b.yaml"), marked("tgi", "draft"))
	wantProfiles(t, loads, "two draft")
	if err := os.Remove(filepath.Join(at, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	wantProfiles(t, loads, "draft")
}

func TestABrokenProfileIsReportedAndTheSameGoodOneAgainAfterIt(t *testing.T) {
	dir := beside(t, map[string]string{"a.yaml": marked("mlx", "one")})
	path, file := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles", "a.yaml")
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")
	put(t, file, "kind: [")
	wantProfiles(t, loads, "error telemetry.profiles: profiles: cannot be used: "+file)
	put(t, file, marked("mlx", "one"))
	wantProfiles(t, loads, "one")
}

func TestTheProfilesDirectoryIsFollowedThroughItsDisappearance(t *testing.T) {
	dir := beside(t, map[string]string{"a.yaml": marked("mlx", "one")})
	path, at := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles")
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")
	rename(t, at, at+".old")
	wantProfiles(t, loads, "error no such file or directory")
	rename(t, at+".old", at)
	wantProfiles(t, loads, "one")
	put(t, filepath.Join(at, "a.yaml"), marked("mlx", "two"))
	wantProfiles(t, loads, "two")
}

func TestAnotherDirectoryOfProfilesIsFollowedInPlaceOfTheFirst(t *testing.T) {
	dir := beside(t, map[string]string{"a.yaml": marked("mlx", "one")})
	path, other := filepath.Join(dir, "berth.yaml"), t.TempDir()
	write(t, filepath.Join(other, "b.yaml"), marked("tgi", "other"))
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")
	put(t, path, berthHead+"telemetry: {profiles: "+other+"}\n")
	wantProfiles(t, loads, "other")
	// The first one is of no interest now.
	put(t, filepath.Join(dir, "profiles", "a.yaml"), "broken")
	put(t, filepath.Join(other, "b.yaml"), marked("tgi", "changed"))
	wantProfiles(t, loads, "changed")
	put(t, path, berthHead)
	wantProfiles(t, loads, "")
}

func TestAConfigMapOfProfilesIsSeenThroughItsSymbolicLinks(t *testing.T) {
	dir := beside(t, nil)
	path, at := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles")
	// Each revision is a directory, ..data the link to it, and each key a link
	// through ..data.
	revision := func(name string, files map[string]string) {
		target := filepath.Join(at, ".."+name)
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			write(t, filepath.Join(target, file), text)
		}
		symlink(t, ".."+name, filepath.Join(at, "..data_tmp"))
		rename(t, filepath.Join(at, "..data_tmp"), filepath.Join(at, "..data"))
	}
	revision("1", map[string]string{"a.yaml": marked("mlx", "one")})
	symlink(t, filepath.Join("..data", "a.yaml"), filepath.Join(at, "a.yaml"))
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")
	revision("2", map[string]string{"a.yaml": marked("mlx", "two")})
	if err := os.RemoveAll(filepath.Join(at, "..1")); err != nil {
		t.Fatal(err)
	}
	wantProfiles(t, loads, "two")
	revision("3", map[string]string{"a.yaml": marked("mlx", "three")})
	wantProfiles(t, loads, "three")
}

func TestALinkToTheProfilesDirectoryAndAFileElsewhereAreFollowed(t *testing.T) {
	dir, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	path, link := filepath.Join(dir, "berth.yaml"), filepath.Join(dir, "profiles")
	elsewhere := filepath.Join(t.TempDir(), "real.yaml")
	write(t, filepath.Join(first, "a.yaml"), marked("mlx", "one"))
	write(t, elsewhere, marked("mlx", "two"))
	symlink(t, elsewhere, filepath.Join(second, "a.yaml"))
	symlink(t, first, link)
	write(t, path, profilesSetting)
	loads := watchConfiguration(t, path)
	wantProfiles(t, loads, "one")
	symlink(t, second, link+"_tmp")
	rename(t, link+"_tmp", link)
	wantProfiles(t, loads, "two")
	put(t, elsewhere, marked("mlx", "three"))
	wantProfiles(t, loads, "three")
}

func TestThePlacesOfADirectoryHaveNoneTwice(t *testing.T) {
	dir := beside(t, map[string]string{"a.yaml": "", "b.yaml": ""})
	at, elsewhere := filepath.Join(dir, "profiles"), t.TempDir()
	write(t, filepath.Join(elsewhere, "real.yaml"), "")
	symlink(t, filepath.Join(elsewhere, "real.yaml"), filepath.Join(at, "c.yaml"))
	want := []string{dir, at, elsewhere}
	slices.Sort(want)
	if d := readProfiles(at); !slices.Equal(d.places, want) {
		t.Errorf("places %q; want %q", d.places, want)
	}
}
