package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// tree is the state of the checkout that the working directory is in.
type tree struct {
	// commit has 40 hexadecimal digits, version is how git describes it.
	commit, version string
	dirty           bool
}

func readTree(ctx context.Context) (tree, error) {
	commit, err := output(ctx, "git", "rev-parse", "HEAD")
	if err != nil {
		return tree{}, err
	}
	version, err := output(ctx, "git", "describe", "--tags", "--always")
	if err != nil {
		return tree{}, err
	}
	// Results are made one after the other; the first does not spoil the second.
	changes, err := output(ctx, "git", "status", "--porcelain", "--", ":/", ":(top,exclude)docs/results")
	return tree{commit, version, changes != ""}, err
}

func readBuild(ctx context.Context, version string) (Build, error) {
	// The measured command is built by the go command of the working directory.
	settings, err := output(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return Build{}, err
	}
	words := strings.Fields(settings)
	if len(words) != 3 {
		return Build{}, fmt.Errorf("go env says %q, want GOVERSION, GOOS and GOARCH", settings)
	}
	return Build{version, words[0], words[1], words[2]}, nil
}

// output runs a command; its error ends with what the command said.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// readMachine asks the kernel, whose answers are in proc, usually /proc.
func readMachine(proc string) (Machine, error) {
	var texts [3]string
	for i, name := range []string{"cpuinfo", "meminfo", "sys/kernel/osrelease"} {
		text, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			return Machine{}, fmt.Errorf("describing the machine: %w", err)
		}
		texts[i] = strings.TrimSpace(string(text))
	}
	m := Machine{Cores: runtime.NumCPU(), Kernel: texts[2]}
	if m.CPU = field(texts[0], "model name"); m.CPU == "" {
		// On Arm the kernel has no names, only who made the core and its part number.
		implementer, part := field(texts[0], "CPU implementer"), field(texts[0], "CPU part")
		if implementer == "" || part == "" {
			return Machine{}, fmt.Errorf("%s/cpuinfo has no model name, and no CPU implementer with a CPU part", proc)
		}
		m.CPU = "implementer " + implementer + ", part " + part
	}
	total := field(texts[1], "MemTotal")
	kibibytes, err := strconv.ParseInt(strings.TrimSuffix(total, " kB"), 10, 64)
	if err != nil || kibibytes <= 0 {
		return Machine{}, fmt.Errorf("%s/meminfo: MemTotal: %q, want a number of kB", proc, total)
	}
	m.MemoryBytes = kibibytes * 1024
	return m, nil
}

// field is the first value of a key in lines "key : value".
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
