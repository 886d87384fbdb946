package gateway

import (
	"os"
	"path/filepath"
	"strings"
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
