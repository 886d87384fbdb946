package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
)

// patience is how long a busy machine may take.
const patience = 30 * time.Second

// told is one call of onChange: a serial number, or an error.
type told struct {
	serial int64
	err    error
}

// following is a directory that is watched until the test ends.
type following struct {
	t     *testing.T
	calls chan told
	again chan time.Time
}

// follow opens a directory and watches it. between runs after the one and before
// the other.
func follow(t *testing.T, dir string, between func()) *following {
	t.Helper()
	files, _, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if between != nil {
		between()
	}
	f := &following{t: t, calls: make(chan told, 16), again: make(chan time.Time)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- files.watch(ctx, f.again, func(pair *tls.Certificate, err error) {
			if err != nil {
				f.calls <- told{err: err}
				return
			}
			f.calls <- told{serial: pair.Leaf.SerialNumber.Int64()}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch ended with %v", err)
		}
		select {
		case c := <-f.calls:
			t.Errorf("nobody waited for %+v", c)
		default:
		}
	})
	f.recheck() // so that it watches from here on
	return f
}

// recheck has the files looked at without an event, soon after it returns.
func (f *following) recheck() {
	f.t.Helper()
	select {
	case f.again <- time.Time{}:
	case <-time.After(patience):
		f.t.Fatal("nobody looks at the files any more")
	}
}

func (f *following) next() told {
	f.t.Helper()
	select {
	case c := <-f.calls:
		return c
	case <-time.After(patience):
		f.t.Fatal("no change was told")
		return told{}
	}
}

func (f *following) wantSerial(want int64) {
	f.t.Helper()
	if c := f.next(); c.err != nil || c.serial != want {
		f.t.Fatalf("told %+v, want serial %d", c, want)
	}
}

// becomes waits for a pair whose files were written one after the other. On a
// busy machine more time may lie between the two than the watcher waits.
func (f *following) becomes(want int64) {
	f.t.Helper()
	c := f.next()
	for c.err != nil {
		c = f.next()
	}
	if c.serial != want {
		f.t.Fatalf("told serial %d, want %d", c.serial, want)
	}
}

func (f *following) wantError(fragment string) {
	f.t.Helper()
	var refused *Error
	if c := f.next(); !errors.As(c.err, &refused) || !strings.Contains(c.err.Error(), fragment) {
		f.t.Fatalf("told %+v, want an *Error with %q", c, fragment)
	}
}

func TestAPairThatWasReplacedIsTold(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	authority.Issue(1).Write(t, dir)
	f := follow(t, dir, nil)
	authority.Issue(2).Write(t, dir)
	f.becomes(2)
	authority.Issue(3).Write(t, dir)
	f.becomes(3)
}

func TestAChangeBetweenOpenAndWatchIsTold(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	authority.Issue(1).Write(t, dir)
	f := follow(t, dir, func() { authority.Issue(2).Write(t, dir) })
	f.wantSerial(2)
}

// opened is a directory whose files are read by the test itself.
func opened(t *testing.T, dir string, now func() time.Time) *Files {
	t.Helper()
	files, _, err := Open(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func wantNothing(t *testing.T, files *Files) {
	t.Helper()
	if pair, err := files.read(); pair != nil || err != nil {
		t.Fatalf("told a pair (%v) or an error: %v", pair != nil, err)
	}
}

func TestFilesThatAreAsTheyWereAreNotTold(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	same := authority.Issue(1)
	same.Write(t, dir)
	files := opened(t, dir, time.Now)
	wantNothing(t, files)
	same.Write(t, dir)
	certificatetest.WriteFile(t, filepath.Join(dir, "ca.crt"), authority.PEM)
	wantNothing(t, files)
}

func TestAnErrorIsToldOnceAndThePairAfterItEvenIfItIsTheSame(t *testing.T) {
	dir := t.TempDir()
	good := certificatetest.NewAuthority(t).Issue(1)
	good.Write(t, dir)
	files := opened(t, dir, time.Now)
	for _, broken := range []string{"", "-----BEGIN PRIVATE KEY-----\n"} {
		certificatetest.WriteFile(t, filepath.Join(dir, KeyFile), []byte(broken))
		var refused *Error
		if pair, err := files.read(); pair != nil || !errors.As(err, &refused) {
			t.Fatalf("a pair: %v, error %v; want an *Error", pair != nil, err)
		}
		wantNothing(t, files)
		wantNothing(t, files)
		good.Write(t, dir)
		if pair, err := files.read(); pair == nil || err != nil {
			t.Fatalf("a pair: %v, error %v; want the pair", pair != nil, err)
		}
		wantNothing(t, files)
	}
}

func TestAPairWhoseTimeHasNotComeIsTakenWhenItHas(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	from := func(begin time.Time) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = begin, begin.Add(time.Hour) }
	}
	authority.Issue(1, from(at)).Write(t, dir)
	files := opened(t, dir, func() time.Time { return at })
	authority.Issue(2, from(at.Add(time.Minute))).Write(t, dir)
	if pair, err := files.read(); pair != nil || err == nil || !strings.Contains(err.Error(), "is not valid before 2026-01-02T03:05:05Z") {
		t.Fatalf("a pair: %v, error %v", pair != nil, err)
	}
	wantNothing(t, files)
	at = at.Add(time.Minute)
	if pair, err := files.read(); err != nil || pair == nil || pair.Leaf.SerialNumber.Int64() != 2 {
		t.Fatalf("a pair: %v, error %v; want serial 2", pair != nil, err)
	}
}

// Whoever copies one file after the other passes through a pair that does not
// fit. If that takes long it is told, and so is the end of it.
func TestZ6_APairThatDoesNotFitInMidSwapIsToldAndReplaced(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	old, renewed := authority.Issue(1), authority.Issue(2)
	old.Write(t, dir)
	f := follow(t, dir, nil)
	certificatetest.WriteFile(t, filepath.Join(dir, CertFile), renewed.Cert)
	f.wantError(KeyFile + ": must be the private key of ")
	certificatetest.WriteFile(t, filepath.Join(dir, KeyFile), renewed.Key)
	f.wantSerial(2)
}

func TestZ6_APairThatComesBackAfterAnErrorIsTold(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	good := authority.Issue(1)
	good.Write(t, dir)
	f := follow(t, dir, nil)
	certificatetest.WriteFile(t, filepath.Join(dir, CertFile), []byte("broken"))
	f.wantError("holds no certificate")
	if err := os.Remove(filepath.Join(dir, CertFile)); err != nil {
		t.Fatal(err)
	}
	f.wantError("no such file")
	good.Write(t, dir)
	f.wantSerial(1)
}

// The kubelet writes a new directory beside the old one and renames a symbolic
// link, ..data, over the one that leads to the old; the files are links through
// it and do not change.
func TestZ6_ASecretThatTheKubeletSwapsIsTold(t *testing.T) {
	authority, dir := certificatetest.NewAuthority(t), t.TempDir()
	mount := func(name string, pair certificatetest.Pair) {
		t.Helper()
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		pair.Write(t, filepath.Join(dir, name))
		link(t, name, filepath.Join(dir, "..data"))
		if old != "" {
			if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mount("..2026_01_02_03_04_05.1", authority.Issue(1))
	for _, name := range []string{CertFile, KeyFile} {
		link(t, filepath.Join("..data", name), filepath.Join(dir, name))
	}
	f := follow(t, dir, nil)
	mount("..2026_02_02_03_04_05.2", authority.Issue(2))
	f.wantSerial(2)
	mount("..2026_03_02_03_04_05.3", authority.Issue(3))
	f.wantSerial(3)
}

// link makes a symbolic link, in one step where there is one already.
func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at+"_tmp", at); err != nil {
		t.Fatal(err)
	}
}

// A directory that is a link to one of several has no event for its swap: it is
// found when it is looked at the next time, and followed by events from then on.
func TestADirectoryThatBecomesAnotherOneIsFollowed(t *testing.T) {
	authority, base := certificatetest.NewAuthority(t), t.TempDir()
	a, b, dir := filepath.Join(base, "a"), filepath.Join(base, "b"), filepath.Join(base, "current")
	for i, d := range []string{a, b} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		authority.Issue(int64(1+i)).Write(t, d)
	}
	link(t, "a", dir)
	f := follow(t, dir, nil)
	link(t, "b", dir)
	f.recheck()
	f.wantSerial(2)
	authority.Issue(3).Write(t, b)
	f.becomes(3)
}

func TestADirectoryThatIsGoneCannotBeWatched(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	certificatetest.NewAuthority(t).Issue(1).Write(t, dir)
	files, _, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err = files.Watch(t.Context(), func(*tls.Certificate, error) { t.Error("something was told") })
	if err == nil || !strings.Contains(err.Error(), dir+": cannot be watched") {
		t.Errorf("error %v, want one that names the directory", err)
	}
}
