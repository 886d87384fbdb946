package policy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Reading never waits: a pipe that nobody writes to is refused at once.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		pipe: "cannot be read: it is not a regular file",
		link: "cannot be read: it is not a regular file",
		dir:  "cannot be read: is a directory",
	} {
		if _, err := LoadPool(path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
