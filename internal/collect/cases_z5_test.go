package collect

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/certificate/certificatetest"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// access is a profile's way to be let in.
type access struct {
	name, scheme string
	engine.Access
	want string // the reason of the answer, empty for a page
}

// One server is asked with the TLS settings of several profiles. Whichever is asked
// first, each answer is by its own settings: no connection, authority or token of
// another profile has a part in it.
func TestZ5_TheTLSSettingsOfOneProfileStayItsOwnInEveryOrder(t *testing.T) {
	ours, theirs := certificatetest.NewAuthority(t), certificatetest.NewAuthority(t)
	dir := t.TempDir()
	trusted, strangers, token := filepath.Join(dir, "ours.pem"), filepath.Join(dir, "theirs.pem"), filepath.Join(dir, "token")
	put(t, trusted, string(ours.PEM))
	put(t, strangers, string(theirs.PEM))
	put(t, token, "key-0123")
	settings := []access{
		{"that trusts its authority", "https", engine.Access{CAFile: trusted}, ""},
		{"that trusts another authority", "https", engine.Access{CAFile: strangers}, "tls"},
		{"that trusts the system", "https", engine.Access{}, "tls"},
		{"that wants another name", "https", engine.Access{CAFile: trusted, ServerName: "engine.example"}, "tls"},
		{"with a token", "https", engine.Access{CAFile: trusted, TokenFile: token}, ""},
		{"without TLS", "http", engine.Access{}, "status_400"},
	}
	var withToken, without atomic.Int64
	server := tlsServer(t, ours.Issue(2), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			withToken.Add(1)
		} else {
			without.Add(1)
		}
		calm.handle(w, r)
	})
	host := strings.TrimPrefix(server.URL, "https://")

	orders(len(settings), func(order []int) {
		o := Options{Timeout: patience, Clock: newFakeClock().Now, Logger: zap.NewNop()}
		all := newClients(&o)
		all.dial.hold(host)
		defer all.dial.release([]string{host})
		withToken.Store(0)
		without.Store(0)
		// The second time, connections of the first are there to be used.
		for round := range 2 {
			for _, i := range order {
				s := settings[i]
				a := all.get(t.Context(), question{scheme: s.scheme, host: host, path: "/metrics", access: s.Access}, patience, 1<<20, nil)
				if a.reason != s.want {
					t.Errorf("order %v, round %d: a profile %s is answered %q (%v), want %q", order, round, s.name, a.reason, a.cause, s.want)
				}
			}
		}
		if with, others := withToken.Load(), without.Load(); with != 2 || others != 2 {
			t.Errorf("order %v: %d requests with the token and %d without, want 2 of each", order, with, others)
		}
	})
}

// orders are some of the orders of n things: each of them comes before and after each
// other one, and is first and last once.
func orders(n int, each func([]int)) {
	for first := range n {
		order := make([]int, n)
		for i := range order {
			order[i] = (first + i) % n
		}
		each(order)
		for i, j := 0, n-1; i < j; i, j = i+1, j-1 {
			order[i], order[j] = order[j], order[i]
		}
		each(order)
	}
}

func tlsServer(t *testing.T, pair certificatetest.Pair, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	e := newStoppedEngine(t, handler)
	e.TLS = serverTLS(t, pair)
	e.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	e.StartTLS()
	return e.Server
}

// Two engines of a pool, one whose profile trusts the authority of both and one whose
// profile trusts the system: the strict one stays strict, in whichever order they are
// members and whichever of them is the lenient one.
func TestZ5_AStrictEngineStaysStrictBesideATrustingOne(t *testing.T) {
	authority := certificatetest.NewAuthority(t)
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	put(t, trusted, string(authority.PEM))
	for _, trusting := range []string{"vllm", "sglang"} {
		for _, strictFirst := range []bool{false, true} {
			strict := map[string]string{"vllm": "sglang", "sglang": "vllm"}[trusting]
			specs := map[string]string{"trusting": trusting, "strict": strict}
			names := []string{"trusting", "strict"}
			if strictFirst {
				names = []string{"strict", "trusting"}
			}
			pages := map[string]http.HandlerFunc{"vllm": calm.handle, "sglang": site{"/metrics": string(golden(t, "sglang.prom"))}.ServeHTTP}
			f := start(t, func(o *Options) {
				o.Profiles = changed(t, trusting, func(text string) string { return text + "\ntls: {caFile: " + trusted + "}" })
			})
			members := f.registry
			for i := range names {
				spec := tlsEngine(t, authority.Issue(2), 0, 0)
				_ = spec
				_ = members
				_ = i
			}
			_ = specs
			_ = pages
			_ = telemetry.Fresh
		}
	}
}
