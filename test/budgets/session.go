package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/berth-dev/berth/test/finding"
)

// session is what the budgets of one run share.
type session struct {
	ctx context.Context
	// root is the module's directory, dir a scratch directory of this run.
	root, dir string
	// profiles is where CPU profiles go; empty for none.
	profiles string
	report   func(finding.Finding)
	// verbose takes what -v asks for; nil without it.
	verbose io.Writer
	// epp is the path of berth-epp, once it was built.
	epp string
}

func newSession(ctx context.Context, profiles string) (*session, error) {
	root, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}"))
	if err != nil {
		return nil, fmt.Errorf("finding the module: %w", err)
	}
	if profiles != "" {
		if err := os.MkdirAll(profiles, 0o755); err != nil {
			return nil, fmt.Errorf("making the directory of -profile: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "berth-budgets-")
	if err != nil {
		return nil, err
	}
	return &session{ctx: ctx, root: strings.TrimSpace(root), dir: dir, profiles: profiles}, nil
}

// close removes the scratch directory; one that stays behind does no harm.
func (s *session) close() { _ = os.RemoveAll(s.dir) }

// startProfile profiles this process until stop is called.
func startProfile(path string) (stop func(), err error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

func (s *session) logf(format string, args ...any) {
	if s.verbose != nil {
		fmt.Fprintf(s.verbose, format+"\n", args...)
	}
}

// golden reads one of the pages that the engine profiles are tested with.
func (s *session) golden(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.root, "internal", "engine", "testdata", name))
}

// build compiles a package of the module in dir.
func (s *session) build(dir, pkg, to string) error {
	cmd := exec.CommandContext(s.ctx, "go", "build", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("building %s: %w", pkg, err)
	}
	return nil
}

// output runs a command; its error ends with what the command said last.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return string(out), nil
}
