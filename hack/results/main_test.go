package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const first, second = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"

// states are trees that are seen one after the other.
func states(list ...tree) func(context.Context) (tree, error) {
	return func(context.Context) (tree, error) {
		at := list[0]
		list = list[min(1, len(list)-1):]
		return at, nil
	}
}

func TestAResultIsWrittenAndExitsAsTheCommandDid(t *testing.T) {
	clean, changed := tree{first, "v0.1.0", false}, tree{first, "v0.1.0", true}
	for _, tc := range []struct {
		name   string
		tree   func(context.Context) (tree, error)
		allow  bool
		figure string
		code   int
		dirty  bool
	}{
		{"all kept", states(clean), false, "ok a 1 <=2", 0, false},
		{"one short", states(clean), false, "short a 3 <=2", 1, false},
		{"another exit code, with a figure", states(clean), false, "info a 3 -", 7, false},
		{"changes, allowed", states(changed), true, "ok a 1 <=2", 0, true},
		{"changes that come meanwhile, allowed", states(clean, changed), true, "ok a 1 <=2", 0, true},
		{"no changes, although allowed", states(clean), true, "ok a 1 <=2", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "new", "one.json")
			var stdout, stderr bytes.Buffer
			script := `printf '%s' "$1"; echo aside >&2; exit "$2"`
			command := []string{"sh", "-c", script, "sh", fourKeys + tc.figure + "\n", string(rune('0' + tc.code))}
			code, err := job{out, tc.allow, command, tc.tree, &stdout, &stderr}.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if code != tc.code || stdout.String() != command[4] || stderr.String() != "aside\n" {
				t.Errorf("code %d, output %q and %q, want %d and both passed through", code, &stdout, &stderr, tc.code)
			}
			text, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			r, err := decode(text)
			if err != nil {
				t.Fatal(err)
			}
			m := r.Manifest
			if m.Name != "one" || m.Commit != first || m.Build.Version != "v0.1.0" || m.Dirty != tc.dirty || len(m.Command) != 6 || r.ExitCode != tc.code {
				t.Errorf("the result is %s", text)
			}
		})
	}
}

func TestAResultIsNotWritten(t *testing.T) {
	clean := states(tree{first, "v0.1.0", false})
	const figure = "echo 'ok a 1 <=2'"
	stated := "printf '%s' '" + fourKeys + "'; "
	for _, tc := range []struct {
		name   string
		tree   func(context.Context) (tree, error)
		script string
		says   string
		// ran tells whether the command is started at all.
		ran bool
	}{
		{"of a tree with changes", states(tree{first, "v0.1.0", true}), stated + figure, "-allow-dirty", false},
		{"of a tree that is unknown", func(context.Context) (tree, error) { return tree{}, errors.New("no repository") }, stated + figure, "no repository", false},
		{"of a tree that changed meanwhile", states(tree{first, "v0.1.0", false}, tree{first, "v0.1.0", true}), stated + figure, "changed while", true},
		{"of two commits", states(tree{first, "v0.1.0", false}, tree{second, "v0.1.0", false}), stated + figure, second, true},
		{"of a failure without a figure", clean, stated + "exit 3", "no figure; its exit code is 3", true},
		{"of nothing", clean, stated, "no figure; its exit code is 0", true},
		{"without the manifest", clean, figure, "does not state configuration", true},
		{"with two figures of one name", clean, stated + figure + "; " + figure, "figures[1].name", true},
		{"of a command that is killed", clean, stated + figure + "; kill -9 $$", "ended from outside", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "one.json")
			var stdout bytes.Buffer
			script := "echo started; " + tc.script
			_, err := job{out, false, []string{"sh", "-c", script}, tc.tree, &stdout, io.Discard}.run(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one with %q", err, tc.says)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file is there, or unknown: %v", err)
			}
			if ran := strings.HasPrefix(stdout.String(), "started\n"); ran != tc.ran {
				t.Errorf("the command ran: %v, want %v", ran, tc.ran)
			}
		})
	}
}

// cancelling cancels as soon as something is written.
type cancelling struct{ cancel context.CancelFunc }

func (c cancelling) Write(p []byte) (int, error) {
	c.cancel()
	return len(p), nil
}

func TestAnInterruptReachesWhatTheCommandRuns(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	out, endless := filepath.Join(dir, "one.json"), filepath.Join(dir, "endless")
	if err := os.WriteFile(endless, []byte("ready\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The shell waits for what it runs, as a go command does for what it has built.
	command := []string{"sh", "-c", `tail -f "$1"; :`, "sh", endless}
	ended := make(chan error, 1)
	go func() {
		_, err := job{out, false, command, states(tree{first, "v0.1.0", false}), cancelling{cancel}, io.Discard}.run(ctx)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "interrupted" {
			t.Errorf("error %v, want interrupted", err)
		}
	case <-time.After(stopTime / 2):
		t.Fatal("the command goes on")
	}
}
