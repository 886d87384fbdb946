package vllm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// An installer keeps an environment below dir.
type installer struct {
	// python is the interpreter that environments are made with: a name looked up
	// in PATH, or a path.
	python string
	// requirements is a file of pip's, with a sum for each file.
	requirements []byte
	// imports are the modules without which an installation is not usable.
	imports  []string
	dir      string
	progress io.Writer
}

// path returns the interpreter of the installed environment, and installs it
// first where it is missing.
//
// The environment comes to its place by one rename, after it was tried: whatever
// lies there is complete. Its scripts name the place where it was made, so only
// its interpreter is of use.
func (in installer) path(ctx context.Context) (string, error) {
	python, err := exec.LookPath(in.python)
	if err != nil {
		return "", fmt.Errorf("installing vLLM needs Python 3 with pip, and there is no %s in PATH: install them, %s", in.python, advice)
	}
	version, err := versionOf(ctx, python)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(in.requirements)
	final := filepath.Join(in.dir, fmt.Sprintf("%s-py%s-%s", Version, version, hex.EncodeToString(sum[:])[:8]))
	if complete(final) {
		return interpreter(final), nil
	}
	if err := os.MkdirAll(in.dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	// Beside the final place, so that the rename stays within one file system.
	tmp, err := os.MkdirTemp(in.dir, "installing-")
	if err != nil {
		return "", fmt.Errorf("making a temporary directory in the cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	fmt.Fprintf(in.progress, "vllm %s: downloading and installing once, about 2.9 GB, 6 GB of disk\n", Version)
	made := filepath.Join(tmp, "environment")
	if err := in.install(ctx, python, made, filepath.Join(tmp, "requirements.txt")); err != nil {
		return "", err
	}
	// Another installation may have come first.
	if err := os.Rename(made, final); err != nil && !complete(final) {
		return "", fmt.Errorf("moving vLLM to its place in the cache: %w", err)
	}
	fmt.Fprintf(in.progress, "vllm %s: kept in %s\n", Version, final)
	return interpreter(final), nil
}

func interpreter(environment string) string { return filepath.Join(environment, "bin", "python") }

// complete reports whether an environment is at its final place. Its interpreter
// is a link to the one that it was made with, which may be gone since.
func complete(environment string) bool {
	info, err := os.Stat(interpreter(environment))
	return err == nil && info.Mode().IsRegular()
}

// versionOf is the major and minor version of an interpreter, one of pythons.
func versionOf(ctx context.Context, python string) (string, error) {
	out, err := exec.CommandContext(ctx, python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").CombinedOutput()
	version := strings.TrimSpace(string(out))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s does not run: %w: %s", python, err, lastLines(version))
	case !slices.Contains(pythons, version):
		return "", fmt.Errorf("%s is Python %s; vLLM %s is pinned for %s: put one of them first in PATH, %s",
			python, version, Version, strings.Join(pythons, ", "), advice)
	}
	return version, nil
}

// install makes an environment with all that is required.
func (in installer) install(ctx context.Context, python, environment, requirements string) error {
	if err := os.WriteFile(requirements, in.requirements, 0o644); err != nil {
		return fmt.Errorf("writing pip's requirements file: %w", err)
	}
	made := interpreter(environment)
	steps := []struct {
		what string
		args []string
	}{
		{"making a virtual environment (on Debian it needs python3-venv)", []string{python, "-m", "venv", environment}},
		// What was downloaded is not kept a second time.
		{"installing with pip", []string{made, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
			"--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", requirements}},
		{"importing what was installed", []string{made, "-c", "import " + strings.Join(in.imports, ", ")}},
	}
	for _, step := range steps {
		out, err := exec.CommandContext(ctx, step.args[0], step.args[1:]...).CombinedOutput()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", step.what, ctx.Err())
		case err != nil:
			return fmt.Errorf("%s: %w; mend it, %s; it said:\n%s", step.what, err, advice, lastLines(string(out)))
		}
	}
	return nil
}

// shownLines is how much of a program's output an error repeats: enough for
// pip's own explanation, which comes last.
const shownLines = 12

// lastLines returns the end of a program's output.
func lastLines(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-shownLines):], "\n")
}
