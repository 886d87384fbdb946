package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteFilesReplacesWhatChangedAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	o := valid()
	bootstrap, err := WriteFiles(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	endpoints := filepath.Join(dir, EndpointsName)
	content, err := os.ReadFile(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), "path: "+quote(endpoints)+"\n") {
		t.Errorf("the bootstrap does not read %s", endpoints)
	}
	before := stat(t, bootstrap, endpoints)

	if _, err := WriteFiles(dir, o); err != nil {
		t.Fatal(err)
	}
	after := stat(t, bootstrap, endpoints)
	if !os.SameFile(before[0], after[0]) || !os.SameFile(before[1], after[1]) {
		t.Error("files were replaced although nothing changed")
	}

	o.Endpoints = o.Endpoints[:1]
	if _, err := WriteFiles(dir, o); err != nil {
		t.Fatal(err)
	}
	after = stat(t, bootstrap, endpoints)
	if !os.SameFile(before[0], after[0]) {
		t.Error("the bootstrap was replaced for a change of endpoints")
	}
	if os.SameFile(before[1], after[1]) {
		t.Error("the endpoints were written in place, want a rename")
	}
	for _, f := range after {
		if f.Mode().Perm() != 0o644 {
			t.Errorf("%s has mode %v, want it readable for all", f.Name(), f.Mode())
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 2 {
		t.Errorf("directory holds %v, want the two files alone", left)
	}
}

func TestWriteFilesWritesNoEndpointsForOriginalDst(t *testing.T) {
	dir := t.TempDir()
	o := valid()
	o.Kind = OriginalDst
	if _, err := WriteFiles(dir, o); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Name() != BootstrapName {
		t.Errorf("directory holds %v, want %s alone", left, BootstrapName)
	}
}

func TestWriteFilesNamesADirectoryThatIsMissing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := WriteFiles(missing, valid()); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("error is %v, want one that names %s", err, missing)
	}
}

func TestWriteFilesLeavesTheOldFilesWhenOptionsAreBad(t *testing.T) {
	dir := t.TempDir()
	o := valid()
	bootstrap, err := WriteFiles(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	before := stat(t, bootstrap)
	o.Endpoints[1].Name = o.Endpoints[0].Name
	if _, err := WriteFiles(dir, o); err == nil {
		t.Fatal("a name given twice was accepted")
	}
	if after := stat(t, bootstrap); !os.SameFile(before[0], after[0]) {
		t.Error("the bootstrap was replaced")
	}
}

func stat(t *testing.T, paths ...string) []os.FileInfo {
	t.Helper()
	infos := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		var err error
		if infos[i], err = os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	return infos
}

func TestWriteFilesKeepsWhatSomebodyHasEdited(t *testing.T) {
	for _, name := range []string{BootstrapName, EndpointsName} {
		for _, c := range []struct {
			name string
			edit func(text string) string
			kept bool
		}{
			{"an edit", func(text string) string { return strings.Replace(text, "pool", "fool", 1) }, true},
			{"a line more", func(text string) string { return text + "# mine\n" }, true},
			{"a line less", func(text string) string { return strings.TrimSuffix(text, "\n") }, true},
			{"another file", func(string) string { return "static_resources: {}\n" }, true},
			{"an edit without the first line", func(text string) string { _, rest, _ := strings.Cut(text, "\n"); return rest + "#\n" }, true},
			{"nothing in it", func(string) string { return "" }, true},
			{"as it was written", func(text string) string { return text }, false},
		} {
			dir, o := t.TempDir(), valid()
			if _, err := WriteFiles(dir, o); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, name)
			text := c.edit(read(t, path))
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			other := filepath.Join(dir, BootstrapName)
			if name == BootstrapName {
				other = filepath.Join(dir, EndpointsName)
			}
			before := read(t, other)
			o.Endpoints, o.ListenAddress = o.Endpoints[:1], "127.0.0.1:18080"
			_, err := WriteFiles(dir, o)
			if errors.Is(err, ErrEdited) != c.kept || c.kept && !strings.Contains(err.Error(), path) || !c.kept && err != nil {
				t.Errorf("%s in %s: %v", c.name, name, err)
			}
			if got := read(t, path); (got == text) != c.kept {
				t.Errorf("%s in %s: kept %t, want %t", c.name, name, got == text, c.kept)
			}
			if c.kept && read(t, other) != before {
				t.Errorf("%s in %s: the other file was replaced", c.name, name)
			}
			o.Overwrite = true
			if _, err := WriteFiles(dir, o); err != nil || read(t, path) == text && c.kept {
				t.Errorf("%s in %s: not overwritten: %v", c.name, name, err)
			}
			o.Overwrite, o.ListenAddress = false, "127.0.0.1:18081"
			if _, err := WriteFiles(dir, o); err != nil {
				t.Errorf("%s in %s: what was overwritten is somebody else's: %v", c.name, name, err)
			}
		}
	}
}

func TestWriteFilesTakesOverWhatWasPrintedAndNothingThatIsNoFile(t *testing.T) {
	dir, o := t.TempDir(), valid()
	o.EndpointsFile = filepath.Join(dir, EndpointsName)
	printed, err := Bootstrap(o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, BootstrapName)
	if err := os.WriteFile(path, printed, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteFiles(dir, o); err != nil {
		t.Errorf("what was printed, and not edited: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteFiles(dir, o); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a pipe: %v, want an error with its path", err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
