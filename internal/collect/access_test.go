package collect

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
)

// with adds a member to the profile of vLLM.
func with(t *testing.T, format string, args ...any) *engine.Set {
	t.Helper()
	return changed(t, "vllm", func(text string) string { return text + "\n" + fmt.Sprintf(format, args...) })
}

// put replaces a file as a mounted secret is replaced: at once.
func put(t *testing.T, path, text string) {
	t.Helper()
	certificatetest.WriteFile(t, path, []byte(text))
}

// until scrapes until the result is another than the one before it must be.
func (f *fleet) until(before, want string) {
	f.t.Helper()
	for range 10 {
		switch _, got := f.scrape(); got {
		case want:
			return
		case before:
		default:
			f.t.Fatalf("scrape: %s, want %s or %s", got, before, want)
		}
	}
	f.t.Fatalf("after 10 scrapes still %s, want %s", before, want)
}

func TestM24_AKeyIsReadFromItsFileAndFollowedWhileItChanges(t *testing.T) {
	const first, second = "first-key-0123", "second-key-4567"
	var key atomic.Value
	key.Store(first)
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		calm.handle(w, r)
	})
	file := filepath.Join(t.TempDir(), "token")
	logs, recorded := observer.New(zapcore.DebugLevel)
	f := start(t, func(o *Options) {
		o.Profiles = with(t, "auth: {bearerTokenFile: %s}", file)
		o.Logger = zap.New(logs)
	}, e.spec("a"))
	a := f.endpoint(0)
	f.mustScrape("status_401")
	if a.ScrapeError() != "status_401" || a.OrderedLast() {
		t.Errorf("scrape error %q, ordered last %t", a.ScrapeError(), a.OrderedLast())
	}
	put(t, file, first+"\n")
	f.until("status_401", "ok")
	f.settle()
	if got := names(a.Snapshot()); len(got) != 1 {
		t.Errorf("servedModels %v: the other pages need the key too", got)
	}
	key.Store(second)
	f.mustScrape("status_401")
	put(t, file, second)
	f.until("status_401", "ok")
	for _, useless := range []string{"", "two words", strings.Repeat("x", maxSecret+1)} {
		put(t, file, useless)
		f.until("ok", "status_401")
		put(t, file, second)
		f.until("status_401", "ok")
	}
	for _, l := range recorded.All() {
		if text := fmt.Sprint(l.Message, l.ContextMap()); strings.Contains(text, first) || strings.Contains(text, second) {
			t.Errorf("a key is in the log: %s", text)
		}
	}
	if recorded.FilterMessageSnippet("of no use").Len() != 4 {
		t.Errorf("a useless file is logged %d times, want once for each of four reasons", recorded.FilterMessageSnippet("of no use").Len())
	}
}

func TestAKeyGoesOnlyToItsOwnEngineAtItsOwnAddress(t *testing.T) {
	var keyed, others atomic.Int64
	note := func(count *atomic.Int64, next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				count.Add(1)
			}
			next(w, r)
		}
	}
	stranger := newFakeEngine(t, note(&others, calm.handle))
	own := newFakeEngine(t, note(&keyed, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, stranger.URL+"/metrics", http.StatusTemporaryRedirect)
	}))
	sglang := newFakeEngine(t, note(&others, site{"/metrics": string(golden(t, "sglang.prom"))}.ServeHTTP))
	unknown := newFakeEngine(t, note(&others, http.NotFound))
	file := filepath.Join(t.TempDir(), "token")
	put(t, file, "key")
	other := sglang.spec("b")
	other.Engine = "sglang"
	f := start(t, func(o *Options) { o.Profiles = with(t, "auth: {bearerTokenFile: %s}", file) },
		own.spec("a"), other, unknown.undeclared("c"))
	seen := map[string]int{}
	f.turns("each to be asked", func() bool {
		select {
		case got := <-f.results:
			seen[got]++
		default:
		}
		return seen["redirect"] > 0 && seen["ok"] > 0 && seen["status_404"] > 0
	})
	if keyed.Load() == 0 || others.Load() != 0 {
		t.Errorf("the key was sent %d times to its engine and %d times to others", keyed.Load(), others.Load())
	}
}

// tlsEngine is a fake vLLM that shows a pair.
func tlsEngine(t *testing.T, pair certificatetest.Pair, lowest, highest uint16) pool.Spec {
	t.Helper()
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	e := newStoppedEngine(t, calm.handle)
	e.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: lowest, MaxVersion: highest}
	e.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	e.StartTLS()
	spec := e.spec("a")
	spec.Metrics.Scheme = "https"
	return spec
}

func TestAnEngineIsVerifiedByTheAuthoritiesOfItsProfile(t *testing.T) {
	ours, theirs := certificatetest.NewAuthority(t), certificatetest.NewAuthority(t)
	dir := t.TempDir()
	trusted, strangers := filepath.Join(dir, "ours.pem"), filepath.Join(dir, "theirs.pem")
	put(t, trusted, string(ours.PEM))
	put(t, strangers, string(theirs.PEM))
	pair := ours.Issue(2)
	cases := []struct {
		name            string
		tls             string
		lowest, highest uint16
		want            string
	}{
		{"trusted", "tls: {caFile: " + trusted + "}", 0, 0, "ok"},
		{"of another authority", "tls: {caFile: " + strangers + "}", 0, 0, "tls"},
		{"by the system's authorities", "", 0, 0, "tls"},
		{"no such file", "tls: {caFile: " + trusted + ".not}", 0, 0, "tls"},
		{"for another name", "tls: {caFile: " + trusted + ", serverName: engine.example}", 0, 0, "tls"},
		{"TLS 1.2", "tls: {caFile: " + trusted + "}", tls.VersionTLS12, tls.VersionTLS12, "ok"},
		{"nothing newer than TLS 1.1", "tls: {caFile: " + trusted + "}", tls.VersionTLS10, tls.VersionTLS11, "tls"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			spec := tlsEngine(t, pair, c.lowest, c.highest)
			f := start(t, func(o *Options) { o.Profiles = with(t, "%s", c.tls) }, spec)
			f.mustScrape(c.want)
			if c.want != "ok" {
				return
			}
			f.settle()
			if got := names(f.endpoint(0).Snapshot()); len(got) != 1 {
				t.Errorf("servedModels %v: the other pages are at the same port", got)
			}
		})
	}
}

func TestAuthoritiesAreFollowedWhileTheyChange(t *testing.T) {
	ours, theirs := certificatetest.NewAuthority(t), certificatetest.NewAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	put(t, file, string(theirs.PEM))
	f := start(t, func(o *Options) { o.Profiles = with(t, "tls: {caFile: %s}", file) }, tlsEngine(t, ours.Issue(2), 0, 0))
	f.mustScrape("tls")
	put(t, file, string(ours.PEM))
	f.until("tls", "ok")
	// A file that is being written is no reason to trust nobody, or everybody.
	put(t, file, "-----BEGIN")
	f.mustScrape("ok")
	f.mustScrape("ok")
	put(t, file, string(theirs.PEM))
	f.until("ok", "tls")
}

// Any pod can show the families of an engine.
func TestAKeyIsNotSentToWhoeverShowsTheFamiliesOfItsEngine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	put(t, file, "first-key-0123")
	var keyed atomic.Int64
	impostor := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			keyed.Add(1)
		}
		calm.handle(w, r)
	})
	declared := impostor.spec("declared")
	declared.Engine = "sglang"
	for _, spec := range []pool.Spec{impostor.undeclared("undeclared"), declared} {
		f := start(t, func(o *Options) { o.Profiles = with(t, "auth: {bearerTokenFile: %s}", file) }, spec)
		f.mustScrape("ok")
		f.mustScrape("ok")
		f.settle()
		if kindOf(f.endpoint(0)) != "vllm" {
			t.Errorf("%s is %q", spec.Name, kindOf(f.endpoint(0)))
		}
	}
	if n := keyed.Load(); n != 0 {
		t.Errorf("the key was sent %d times", n)
	}
}
