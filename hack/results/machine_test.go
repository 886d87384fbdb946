package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheMachineIsReadFromTheKernel(t *testing.T) {
	const arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\nCPU implementer\t: 0x42\n"
	for _, tc := range []struct{ name, cpuinfo, meminfo, cpu, says string }{
		{"x86", "vendor_id\t: AuthenticAMD\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\nmodel name\t: other\n", "MemTotal:       2048 kB\nMemFree: 1 kB\n", "AMD EPYC 7763", ""},
		{"Arm", arm, "MemTotal: 2048 kB\n", "implementer 0x41, part 0xd0c", ""},
		{"a core without a name", "processor : 0\n", "MemTotal: 2048 kB\n", "", "cpuinfo has no model name"},
		{"no memory", arm, "MemFree: 1 kB\n", "", `MemTotal: ""`},
		{"memory in another unit", arm, "MemTotal: 2 MB\n", "", `MemTotal: "2 MB"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proc := t.TempDir()
			if err := os.MkdirAll(filepath.Join(proc, "sys", "kernel"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"cpuinfo": tc.cpuinfo, "meminfo": tc.meminfo, "sys/kernel/osrelease": "6.18.44\n"} {
				if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := readMachine(proc)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %v, want one with %q", err, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.CPU != tc.cpu || m.MemoryBytes != 2<<20 || m.Kernel != "6.18.44" || m.Cores < 1 {
				t.Errorf("the machine is %+v", m)
			}
		})
	}
}

func TestAMachineWithoutProcIsNotDescribed(t *testing.T) {
	if _, err := readMachine(t.TempDir()); err == nil || !strings.Contains(err.Error(), "cpuinfo") {
		t.Errorf("error %v, want one that names cpuinfo", err)
	}
}

func TestOnlyResultsMayChangeInACleanTree(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not there")
	}
	// No setting of this machine reaches the repository of the test.
	for _, key := range []string{"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"} {
		t.Setenv(key, os.DevNull)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	git := func(args ...string) {
		t.Helper()
		if _, err := output(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dirty := func() bool {
		t.Helper()
		at, err := readTree(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !commitForm.MatchString(at.commit) || at.version != "v0.1.0" {
			t.Errorf("the commit is %q, the version %q, want 40 digits and v0.1.0", at.commit, at.version)
		}
		return at.dirty
	}
	git("init", "-q")
	if _, err := readTree(t.Context()); err == nil {
		t.Error("a repository without a commit has a state")
	}
	write("main.go")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	git("tag", "v0.1.0")
	if dirty() {
		t.Error("just committed, and dirty")
	}
	write("docs/results/budgets.json")
	if dirty() {
		t.Error("dirty by a result")
	}
	t.Chdir("docs")
	write("new.md")
	if !dirty() {
		t.Error("clean with a file that is new")
	}
	if err := os.Remove("new.md"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove("../main.go"); err != nil {
		t.Fatal(err)
	}
	if !dirty() {
		t.Error("clean without a file that is committed, seen from below")
	}
}

func TestAFailedCommandTellsWhatItSaid(t *testing.T) {
	_, err := output(context.Background(), "sh", "-c", "echo no such luck >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit status 3: no such luck") {
		t.Errorf("error %v, want exit status 3 and what it said", err)
	}
}
