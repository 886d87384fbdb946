package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// signedTraffic sends signed requests one after the other from several clients
// until it is ended. What was not a 200 goes to refused, with when it came.
type signedTraffic struct {
	*traffic
	// token is the value of x-berth-intent that requests are sent with.
	token atomic.Pointer[string]

	mu      sync.Mutex
	refused []late
}

// A late answer is one that was not a 200.
type late struct {
	sent, came time.Time
	what       string
	// untrusted is set for a refusal of the key.
	untrusted bool
}

func (f *fleet) signedTraffic(clients int, token string) *signedTraffic {
	tr := &signedTraffic{traffic: &traffic{}}
	tr.token.Store(&token)
	for i := range clients {
		c := f.h1
		if i%2 == 1 {
			c = f.h2
		}
		method, path, body := http.MethodPost, completions, asksOf("sim-model", i%3 == 2)
		if i == clients-1 && clients > 2 {
			method, path, body = http.MethodGet, bodiless, ""
		}
		tr.all.Go(func() {
			for !tr.stop.Load() {
				req := f.request(f.t.Context(), method, path, body)
				req.Header.Set("X-Berth-Intent", *tr.token.Load())
				sent := time.Now()
				a, err := try(c, req)
				tr.sent.Add(1)
				if err != nil || a.status != http.StatusOK {
					tr.mu.Lock()
					tr.refused = append(tr.refused, late{sent, time.Now(), fmt.Sprintf("%v, status %d, %s", err, a.status, a.body),
						a.status == 403 && a.header.Get("X-Berth-Reason") == "intent_untrusted"})
					tr.mu.Unlock()
				}
			}
		})
	}
	f.t.Cleanup(tr.end)
	return tr
}

// An openUpload is a request of which the picker has a part.
type openUpload struct {
	rest  *io.PipeWriter
	tail  string
	ended chan answer
}

// uploadSize is far more than all other requests at once have.
const uploadSize = 256 << 10

// startUpload sends the first part of a request and waits until the picker has it.
func (f *fleet) startUpload(token string) *openUpload {
	f.t.Helper()
	body := string(padded(uploadSize))
	read, write := io.Pipe()
	u := &openUpload{rest: write, tail: body[len(body)-1:], ended: make(chan answer, 1)}
	f.t.Cleanup(func() { _ = write.Close() })
	before := f.metric("berth_buffered_bytes")
	req := f.request(f.t.Context(), http.MethodPost, completions, "")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Berth-Intent", token)
	req.Body, req.ContentLength = read, -1
	go func() { _, _ = io.WriteString(write, body[:len(body)-1]) }()
	go func() {
		a, err := try(f.h1, req)
		if err != nil {
			a.body = err.Error()
		}
		u.ended <- a
	}()
	eventually(f.t, "the picker has the first part", func() bool {
		return f.metric("berth_buffered_bytes")-before > uploadSize*3/4
	})
	return u
}

// finish sends the rest.
func (u *openUpload) finish() answer {
	_, _ = io.WriteString(u.rest, u.tail)
	_ = u.rest.Close()
	return <-u.ended
}

// intentReloads changes keys and aliases under a load of signed requests. What was
// not refused for a key that is gone must have been served, once.
func intentReloads(t *testing.T, binary string) {
	oldKey, newKey := newSigner(t, "first", jose.EdDSA), newSigner(t, "second", jose.ES256)
	keys := filepath.Join(t.TempDir(), "keys.json")
	replaceFile(t, keys, keySet(t, oldKey))
	aliases := func(steady, moving []any) tree {
		return tree{"models": tree{"aliases": tree{"steady": steady, "moving": moving}}}
	}
	both := fast
	both.Models = []string{"sim-model", "next-model"}
	berth := aliases([]any{"sim-model"}, []any{"sim-model"})
	berth["intent"] = tree{"required": true, "signedHeader": tree{"keySet": keys, "audience": "berth"}}
	f := start(t, spec{
		engines: engines(2, both),
		binary:  binary,
		berth:   berth,
		envoy:   func(bootstrap tree) { stripNothing(listener(bootstrap)) },
	})
	signed := func(s signer, alias string) string {
		i := signable("", time.Now().Add(time.Hour))
		i.LogicalModel = alias
		return s.sign(t, written(t, i))
	}
	var others atomic.Int64 // served requests that are not the traffic's
	ask := func(token, model string) answer {
		req := f.request(t.Context(), http.MethodPost, completions, asksOf(model, false))
		req.Header.Set("X-Berth-Intent", token)
		a := f.do(f.h1, req)
		if a.status == http.StatusOK {
			others.Add(1)
		}
		return a
	}
	failures := func() float64 { return f.metric(`berth_config_reloads_total{result="failed"}`) }

	expectRefusal(t, ask(signed(newKey, "steady"), "sim-model"), 403, "intent_untrusted")
	tr := f.signedTraffic(5, signed(oldKey, "steady"))
	tr.more(t, 50)
	digest := f.policy()
	upload := f.startUpload(signed(oldKey, "moving"))

	t.Run("a key set that is broken leaves the keys as they are", func(t *testing.T) {
		before := failures()
		replaceFile(t, keys, `{"keys":[{"kid":"first","alg":"none"}]}`)
		eventually(t, "the failed reload is counted", func() bool { return failures() > before })
		tr.more(t, 50)
	})
	t.Run("a key is added", func(t *testing.T) {
		replaceFile(t, keys, keySet(t, oldKey, newKey))
		eventually(t, "the new key is trusted", func() bool { return ask(signed(newKey, "steady"), "sim-model").status == http.StatusOK })
		tr.more(t, 50)
	})
	// One router is late: it signs with the old key to the end.
	behind := f.signedTraffic(1, signed(oldKey, "steady"))
	behind.more(t, 5)
	token := signed(newKey, "steady")
	tr.token.Store(&token)
	switched := time.Now()
	tr.more(t, 50)
	var removing, removed time.Time
	t.Run("a key is removed", func(t *testing.T) {
		removing = time.Now()
		replaceFile(t, keys, keySet(t, newKey))
		eventually(t, "the old key is trusted no more", func() bool {
			a := ask(signed(oldKey, "steady"), "sim-model")
			return a.status == 403 && a.header.Get("X-Berth-Reason") == "intent_untrusted"
		})
		removed = time.Now()
		tr.more(t, 50)
		behind.more(t, 5)
	})
	t.Run("an alias is changed", func(t *testing.T) {
		if before := ask(signed(newKey, "moving"), "next-model"); before.status != http.StatusForbidden {
			t.Errorf("status %d for a model that the alias does not have yet, want 403", before.status)
		}
		f.adopt(aliases([]any{"next-model", "sim-model"}, []any{"next-model"}))
		if a := ask(signed(newKey, "moving"), "next-model"); a.status != http.StatusOK {
			t.Errorf("status %d, %s for what the alias has become", a.status, a.body)
		}
		expectRefusal(t, ask(signed(newKey, "moving"), "sim-model"), 403, "model_not_eligible")
		tr.more(t, 50)
	})
	t.Run("an upload that was open keeps the keys and aliases that it began with", func(t *testing.T) {
		a := upload.finish()
		others.Add(1)
		if a.status != http.StatusOK || a.header.Get("X-Berth-Policy") != digest {
			t.Fatalf("status %d by policy %q, %s; want 200 by %s", a.status, a.header.Get("X-Berth-Policy"), a.body, digest)
		}
		d := f.record(a.decision())
		if i := d.Intent; i.KeyID != "first" || i.LogicalModel != "moving" || strings.Join(i.Models, ",") != "sim-model" {
			t.Errorf("the record has key %q and models %v of %q, want those of before", i.KeyID, i.Models, i.LogicalModel)
		}
	})

	tr.end()
	behind.end()
	for _, l := range tr.refused {
		// One that was sent with the old key may have been long on its way.
		if !l.untrusted || l.came.Before(removing) || l.sent.After(switched) {
			t.Errorf("a request failed: %s", l.what)
		}
	}
	for _, l := range behind.refused {
		if !l.untrusted || l.came.Before(removing) {
			t.Errorf("with the old key, a request failed %v before it was removed: %s", removing.Sub(l.came), l.what)
		}
	}
	if len(behind.refused) == 0 || int(behind.sent.Load()) == len(behind.refused) {
		t.Errorf("with the old key, %d of %d requests were refused; want some, and not all", len(behind.refused), behind.sent.Load())
	}
	// None that was sent when the key was gone was served.
	f.awaitInFlight(map[string]int{})
	f.quiet()
	for _, d := range f.log.ended(t) {
		if d.Intent.KeyID == "first" && d.Time.After(removed) && d.Request.BodyBytes < uploadSize {
			t.Errorf("decision %s trusted the old key %v after it had gone", d.ID, d.Time.Sub(removed))
		}
	}
	want := int(tr.sent.Load()+behind.sent.Load()+others.Load()) - len(behind.refused) - len(tr.refused)
	if n := f.total(); n != want {
		t.Errorf("%d requests at the engines, want the %d that were served", n, want)
	}
}
