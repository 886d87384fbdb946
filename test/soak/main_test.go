package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/finding"
)

// TestMain lets the test binary be the picker that the checks start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pickerRole {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestARunThatDoesNotBeginSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		exit int
		says string
	}{
		{"an unknown flag", []string{"-x"}, finding.ExitUsage, "-x"},
		{"help", []string{"-h"}, 0, "-run"},
		{"a picker without a configuration", []string{pickerRole}, finding.ExitShort, "configuration file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(t.Context(), tc.args, &stdout, &stderr); got != tc.exit {
				t.Errorf("exit code %d, want %d", got, tc.exit)
			}
			if !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("it says %q, want %s in it", stderr.String(), tc.says)
			}
			if stdout.Len() != 0 {
				t.Errorf("standard output has %q, want nothing", stdout.String())
			}
		})
	}
}

func TestTheListHasWhatRunChooses(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := run(t.Context(), []string{"-list", "-run", "^(streams|names)$"}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit code %d: %s", got, &stderr)
	}
	var names []string
	for line := range strings.Lines(stdout.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	if got := strings.Join(names, " "); got != "streams names" {
		t.Errorf("the list has %q, want streams and names", got)
	}
}

func TestAPickerThatDoesNotStartIsShort(t *testing.T) {
	var out strings.Builder
	s := &session{ctx: t.Context(), dir: t.TempDir(), size: tinySize()}
	c := check{
		name:          "streams",
		configuration: func(size) configuration { return limited("body: none") },
		run:           func(*session, *picker) error { t.Error("the check runs without a picker"); return nil },
	}
	if exit := finding.Measure(t.Context(), []check{c}, &out, s.measure); exit != finding.ExitShort {
		t.Errorf("exit code %d, want %d", exit, finding.ExitShort)
	}
	if line := out.String(); !strings.HasPrefix(line, "short streams ") || !strings.Contains(line, "does not start") {
		t.Errorf("the line is %q, want a short one that says that the picker does not start", line)
	}
}

func TestTheManifestStatesWhatIsMeasured(t *testing.T) {
	var out strings.Builder
	if err := printManifest(checks(), fullSize(), &out); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "manifest" {
			t.Fatalf("line %q: want manifest, a key and a value", line)
		}
		count[fields[1]]++
	}
	n := len(checks())
	for key, want := range map[string]int{"configuration": n, "trafficShape": n, "servedIDs": 1, "cacheState": 1} {
		if count[key] != want {
			t.Errorf("%s is stated %d times, want %d", key, count[key], want)
		}
	}
}

// tinySize is enough of everything to take each way once.
func tinySize() size {
	return size{
		streams:      100,
		halfOpen:     20,
		oneByteParts: 100,
		bodies:       40, bodyBytes: 300_000, buffered: 4 << 20,
		unread:      8,
		disconnects: 4,
		names:       100, longNames: 2, longName: 100_000,
		garbage: 3,
		reloads: 6, reloadEvery: 150 * time.Millisecond,
	}
}

// Findings are those of a full run; memory is measured against limits that a
// few streams do not come near to.
func TestEachCheckPassesInSmall(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, log strings.Builder
			s := &session{ctx: t.Context(), dir: t.TempDir(), size: tinySize(), verbose: &log, started: time.Now()}
			if finding.Measure(t.Context(), []check{c}, &out, s.measure) != 0 {
				t.Errorf("not as it should be:\n%s\n%s", &out, &log)
			}
			for line := range strings.Lines(out.String()) {
				if name := strings.Fields(line)[1]; name != c.name && !strings.HasPrefix(name, c.name+"/") {
					t.Errorf("a finding is named %q, want a name that begins with %s/", name, c.name)
				}
			}
			if !strings.Contains(out.String(), c.name+"/left-behind") {
				t.Errorf("no finding says what was left behind:\n%s", &out)
			}
		})
	}
}
