package collect

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// client asks for pages with what one profile needs to be let in. What the
// profile of another engine trusts or sends has no part in it.
type client struct {
	engine.Access
	clock telemetry.Clock
	log   *zap.Logger

	// trusted follows the authorities and token the token, while the files change.
	trusted atomic.Pointer[tls.Config]
	token   atomic.Pointer[string]

	// looking is held by whoever reads the files. A file system that hangs keeps
	// one worker, not all of them.
	looking sync.Mutex
	begun   atomic.Bool
	looked  telemetry.Instant
	files   struct{ token, authorities watchedFile }
}

const (
	// lookEvery is the shortest time between two looks at the files.
	lookEvery = time.Second
	// maxSecret bounds a token, and maxAuthorities a bundle of certificates, in
	// bytes.
	maxSecret      = 16 << 10
	maxAuthorities = 4 << 20
)

func newClient(a engine.Access, clock telemetry.Clock, log *zap.Logger) *client {
	c := &client{Access: a, clock: clock, log: log}
	c.files.token = watchedFile{path: a.TokenFile, most: maxSecret}
	c.files.authorities = watchedFile{path: a.CAFile, most: maxAuthorities}
	var trusted *x509.CertPool
	if a.CAFile != "" {
		// Until the file was read, nobody is trusted.
		trusted = x509.NewCertPool()
	}
	c.trust(trusted)
	return c
}

// trust makes connections that are opened from now on verify by these
// authorities; nil stands for the system's. Those that are open are used no more.
func (c *client) trust(authorities *x509.CertPool) {
	c.trusted.Store(&tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    authorities,
		ServerName: c.ServerName,
	})
}

// prepare follows the files, at most once in lookEvery.
func (c *client) prepare() {
	if c.TokenFile == "" && c.CAFile == "" {
		return
	}
	switch {
	case !c.begun.Load():
		c.looking.Lock()
	case !c.looking.TryLock():
		return
	}
	defer c.looking.Unlock()
	now := c.clock()
	if c.begun.Load() && now.Sub(c.looked) < lookEvery {
		return
	}
	c.looked = now
	if text, changed := c.files.token.read(c.log, validToken); changed {
		token := string(text)
		c.token.Store(&token)
	}
	if text, changed := c.files.authorities.read(c.log, validAuthorities); changed && text != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		c.trust(pool)
	}
	c.begun.Store(true)
}

// authorize adds the token, if there is one.
func (c *client) authorize(req *http.Request) {
	if token := c.token.Load(); token != nil && *token != "" {
		req.Header.Set("Authorization", "Bearer "+*token)
	}
}

// validToken is a token without the blanks around it.
func validToken(text []byte) ([]byte, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, errors.New("it is empty")
	}
	for _, b := range text {
		if b <= ' ' || b > '~' {
			return nil, errors.New("a bearer token has printable ASCII characters only, and no blank among them")
		}
	}
	return text, nil
}

func validAuthorities(text []byte) ([]byte, error) {
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return nil, errors.New("it has no certificate in PEM")
	}
	return text, nil
}

// CheckAccess says which of the files that engines are asked with are of no use now, as
// "member: path: why". A picker starts without them all the same, since a file may come
// later, and says so in its log.
func CheckAccess(a engine.Access) (problems []string) {
	for _, f := range []struct {
		member, path string
		most         int64
		valid        func([]byte) ([]byte, error)
	}{
		{"auth.bearerTokenFile", a.TokenFile, maxSecret, validToken},
		{"tls.caFile", a.CAFile, maxAuthorities, validAuthorities},
	} {
		if f.path == "" {
			continue
		}
		text, err := readFile(f.path, f.most)
		if err == nil {
			_, err = f.valid(text)
		}
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %q: %v", f.member, f.path, err))
		}
	}
	return problems
}

// watchedFile is a file that may change at any time, and its last content.
type watchedFile struct {
	path string
	most int64
	text []byte
	// problem is why the file is of no use, as it was logged.
	problem string
}

// read returns the content if it is another than before; nil, if the file is of
// no use any more. A file without a path never changes.
func (f *watchedFile) read(log *zap.Logger, valid func([]byte) ([]byte, error)) (text []byte, changed bool) {
	if f.path == "" {
		return nil, false
	}
	text, err := readFile(f.path, f.most)
	if err == nil {
		text, err = valid(text)
	}
	problem := ""
	if err != nil {
		text, problem = nil, err.Error()
	}
	if problem != f.problem {
		f.problem = problem
		if problem != "" {
			log.Warn("a file that engines are asked with is of no use", zap.String("file", f.path), zap.String("problem", problem))
		} else {
			log.Info("a file that engines are asked with is good again", zap.String("file", f.path))
		}
	}
	changed = !bytes.Equal(text, f.text)
	f.text = text
	return text, changed
}

// readFile reads a regular file of at most so many bytes. Opening does not wait
// for a writer, as that of a pipe would.
func readFile(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return text, nil
}
