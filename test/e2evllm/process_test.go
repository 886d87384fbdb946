package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// testSession has no stand.
func testSession(t *testing.T) *session {
	t.Helper()
	return newSession(t.Context(), t.TempDir(), "", nil)
}

// startShell starts a shell script and waits until it has written the file ready.
func startShell(t *testing.T, s *session, script string) *process {
	t.Helper()
	p, err := startProcess("shell", s.dir, []string{"WORD=berth"}, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	err = s.await("the script is ready", patience, func() (bool, error) {
		_, err := os.Stat(filepath.Join(s.dir, "ready"))
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// gone waits until no process has the id.
func gone(t *testing.T, s *session, pid int) {
	t.Helper()
	err := s.await("process "+strconv.Itoa(pid)+" is gone", patience, func() (bool, error) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		// An orphan may stay until init takes note of its end.
		return err != nil || strings.Contains(string(stat), ") Z "), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAStoppedProcessTakesItsChildrenAlong(t *testing.T) {
	s := testSession(t)
	p := startShell(t, s, `sleep 1000 & echo $! > child; echo "$WORD"; touch ready; wait`)
	text, err := os.ReadFile(filepath.Join(s.dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.alive(); err != nil {
		t.Fatal(err)
	}
	p.stop()
	gone(t, s, p.cmd.Process.Pid)
	gone(t, s, child)
	if err := p.alive(); err == nil || !strings.Contains(err.Error(), "shell ended by itself; its log ends with:\nberth") {
		t.Errorf("error %v, want one with the last words", err)
	}
}

func TestAKilledProcessLeavesItsChildrenToStop(t *testing.T) {
	s := testSession(t)
	p := startShell(t, s, `sleep 1000 & echo $! > child; touch ready; wait`)
	text, err := os.ReadFile(filepath.Join(s.dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Errorf("the child is gone: %v", err)
	}
	p.stop()
	gone(t, s, child)
}

func TestAProgramThatIsNotThereDoesNotStart(t *testing.T) {
	if _, err := startProcess("nothing", t.TempDir(), nil, "/nowhere/program"); err == nil || !strings.Contains(err.Error(), "nothing does not start") {
		t.Errorf("error %v", err)
	}
}
