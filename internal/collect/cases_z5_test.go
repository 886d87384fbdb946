package collect

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
)

// One server is asked with the settings of several profiles. Whichever is asked first,
// each answer is by its own settings: no connection, authority or token of another
// profile has a part in it.
func TestZ5_TheSettingsOfAProfileStayItsOwnInEveryOrder(t *testing.T) {
	ours, theirs := certificatetest.NewAuthority(t), certificatetest.NewAuthority(t)
	dir := t.TempDir()
	trusted, strangers, token := filepath.Join(dir, "ours.pem"), filepath.Join(dir, "theirs.pem"), filepath.Join(dir, "token")
	put(t, trusted, string(ours.PEM))
	put(t, strangers, string(theirs.PEM))
	put(t, token, "key-0123")
	settings := []struct {
		name, scheme string
		access       engine.Access
		want         string // the reason for the lack of a page, empty for a page
	}{
		{"trusts its authority", "https", engine.Access{CAFile: trusted}, ""},
		{"trusts another authority", "https", engine.Access{CAFile: strangers}, "tls"},
		{"trusts the system's authorities", "https", engine.Access{}, "tls"},
		{"wants another name", "https", engine.Access{CAFile: trusted, ServerName: "engine.example"}, "tls"},
		{"has a token", "https", engine.Access{CAFile: trusted, TokenFile: token}, ""},
		{"asks without TLS", "http", engine.Access{}, "status_400"},
	}
	var keyed, others atomic.Int64
	e := showing(t, ours.Issue(2), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			keyed.Add(1)
		} else {
			others.Add(1)
		}
		calm.handle(w, r)
	})
	host := e.address().String()

	for _, order := range orders(len(settings)) {
		keyed.Store(0)
		others.Store(0)
		o := Options{Timeout: patience, Clock: newFakeClock().Now, Logger: zap.NewNop()}
		all := newClients(&o).caller()
		var kept connections
		// In the second round there are connections that were opened in the first.
		for round := range 2 {
			for _, i := range order {
				s := settings[i]
				a := all.get(t.Context(), question{scheme: s.scheme, host: host, path: "/metrics", access: s.access}, &kept, patience, 1<<20, nil)
				if a.reason != s.want {
					t.Errorf("order %v, round %d: who %s is answered %q (%v), want %q", order, round, s.name, a.reason, a.cause, s.want)
				}
			}
		}
		kept.close()
		if with, without := keyed.Load(), others.Load(); with != 2 || without != 2 {
			t.Errorf("order %v: %d requests with the token and %d without, want 2 of each", order, with, without)
		}
	}
}

// orders are those in which each of n things comes first and last, before each other
// one and after it.
func orders(n int) [][]int {
	var all [][]int
	for first := range n {
		order := make([]int, n)
		for i := range order {
			order[i] = (first + i) % n
		}
		reverse := slices.Clone(order)
		slices.Reverse(reverse)
		all = append(all, order, reverse)
	}
	return all
}

// showing is an engine that shows a pair, and keeps no log of handshakes that failed.
func showing(t *testing.T, pair certificatetest.Pair, handler http.HandlerFunc) *fakeEngine {
	t.Helper()
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	e := newStoppedEngine(t, handler)
	e.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	e.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	e.StartTLS()
	return e
}

// Two engines show certificates of one authority, which the profile of one of them
// trusts: the other one stays strict, whichever engine it is and whichever is a member
// first. A third has no TLS at all.
func TestZ5_AStrictEngineStaysStrictBesideATrustingOne(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	put(t, trusted, string(authority.PEM))
	pages := map[string]http.HandlerFunc{
		"vllm": calm.handle, "sglang": site{"/metrics": string(golden(t, "sglang.prom"))}.ServeHTTP,
	}
	for trusting, strict := range map[string]string{"vllm": "sglang", "sglang": "vllm"} {
		for _, order := range orders(3) {
			shown := func(name, kind string) pool.Spec {
				spec := showing(t, authority.Issue(2), pages[kind]).spec(name)
				spec.Engine, spec.Metrics.Scheme = kind, "https"
				return spec
			}
			plain := newFakeEngine(t, pages[strict]).spec("plain")
			plain.Engine = strict
			members := []pool.Spec{shown("trusting", trusting), shown("strict", strict), plain}
			var specs []pool.Spec
			for _, i := range order {
				specs = append(specs, members[i])
			}
			f := start(t, func(o *Options) {
				o.Profiles = changed(t, trusting, func(text string) string { return text + "\ntls: {caFile: " + trusted + "}\n" })
			}, specs...)
			byName := map[string]*pool.Endpoint{}
			for _, e := range f.registry.Set().Endpoints {
				byName[e.Name] = e
			}
			for range 3 {
				began := f.clock.Now()
				f.turns("the others to be scraped", func() bool {
					one, other := byName["trusting"].Snapshot(), byName["plain"].Snapshot()
					return one != nil && other != nil && one.ScrapedAt > began && other.ScrapedAt > began && byName["strict"].ScrapeError() != ""
				})
				if got := byName["strict"].ScrapeError(); got != "tls" || byName["strict"].Snapshot() != nil {
					t.Errorf("%s trusts, order %v: %s is read, or not for %q; want that it is not, for tls", trusting, order, strict, got)
				}
			}
			f.stop()
		}
	}
}
