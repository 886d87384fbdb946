package e2e

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/internal/enginesim"
)

// traffic sends requests one after the other from several clients until it is
// ended, and keeps whatever was not a 200.
type traffic struct {
	stop   atomic.Bool
	sent   atomic.Int64
	all    sync.WaitGroup
	mu     sync.Mutex
	failed []string
}

func (f *fleet) traffic() *traffic {
	tr := &traffic{}
	for i := range 6 {
		c, body := f.h1, asks(2)
		if i%2 == 1 {
			c = f.h2
		}
		if i%3 == 2 {
			body = streams(20)
		}
		tr.all.Go(func() {
			for !tr.stop.Load() {
				a, err := try(c, f.request(f.t.Context(), http.MethodPost, completions, body))
				tr.sent.Add(1)
				if err != nil || a.status != http.StatusOK {
					tr.mu.Lock()
					tr.failed = append(tr.failed, fmt.Sprintf("%v, status %d, reason %q: %s", err, a.status, a.header.Get("X-Berth-Reason"), a.body))
					tr.mu.Unlock()
				}
			}
		})
	}
	f.t.Cleanup(tr.end)
	return tr
}

func (tr *traffic) end() {
	tr.stop.Store(true)
	tr.all.Wait()
}

// more waits until so many further requests have been answered.
func (tr *traffic) more(t *testing.T, n int64) {
	t.Helper()
	want := tr.sent.Load() + n
	eventually(t, "traffic goes on", func() bool { return tr.sent.Load() >= want })
}

func TestReloadsUnderTrafficFailNoRequest(t *testing.T) {
	f := start(t, spec{engines: engines(3, enginesim.Config{Speed: 4})})
	policy := func() string { return f.post(f.h1, asks(1)).header.Get("X-Berth-Policy") }
	failures := func() float64 { return f.metric(`berth_config_reloads_total{result="failed"}`) }
	others := 0 // requests that are not the traffic's
	ask := func() string { others++; return policy() }

	// The third engine is not in the pool at first.
	f.writePool(f.members[:2])
	eventually(t, "the pool is e1 and e2", func() bool { return len(f.replicas()) == 2 })
	tr := f.traffic()
	tr.more(t, 50)

	t.Run("a replica is added", func(t *testing.T) {
		before := served(f.engines[2])
		f.writePool(f.members)
		eventually(t, "e3 serves", func() bool { return served(f.engines[2]) > before })
		tr.more(t, 50)
	})
	t.Run("a replica is removed", func(t *testing.T) {
		f.writePool(f.members[1:])
		eventually(t, "the pool is e2 and e3", func() bool { return f.replica("e1") == nil })
		eventually(t, "e1 has finished what it had", func() bool { return f.holds(0, 0, 0) })
		after := served(f.engines[0])
		// The gateway forgets it after the picker did.
		f.envoy.write(f.gatewayOptions(f.members[1:]))
		eventually(t, "the gateway knows e2 and e3", func() bool {
			return f.envoy.knows(f.engines[1].Addr(), f.engines[2].Addr())
		})
		tr.more(t, 100)
		if n := served(f.engines[0]) - after; n != 0 {
			t.Errorf("%d requests reached e1 after it had left the pool", n)
		}
	})
	t.Run("the policy is changed", func(t *testing.T) {
		before := ask()
		f.writeBerth(tree{"acknowledgement": tree{"responseHeaders": "full"}})
		eventually(t, "answers name another policy", func() bool { return ask() != before })
		others++
		if a := f.post(f.h1, asks(1)); a.header.Get("X-Berth-Replica") != a.engine() {
			t.Errorf("x-berth-replica %q, want %s", a.header.Get("X-Berth-Replica"), a.engine())
		}
		tr.more(t, 50)
	})
	for _, broken := range []struct{ name, file, text string }{
		{"a broken configuration keeps the last good one", f.config(), "kind: EndpointPickerConfig\nplugins: [{type: no-such-scorer}]\n"},
		{"a configuration that is not YAML keeps the last good one", f.config(), "{{{"},
		{"a broken pool keeps the last good one", f.poolFile(), "apiVersion: berth.dev/v1alpha1\nkind: StaticPool\nmetadata: {name: p}\nendpoints: [{name: x, address: localhost, port: 0}]\n"},
	} {
		t.Run(broken.name, func(t *testing.T) {
			good, err := os.ReadFile(broken.file)
			if err != nil {
				t.Fatal(err)
			}
			digest, failed := ask(), failures()
			replaceFile(t, broken.file, broken.text)
			eventually(t, "the failed reload is counted", func() bool { return failures() > failed })
			tr.more(t, 50)
			if got := ask(); got != digest {
				t.Errorf("policy %q, want that of before, %q", got, digest)
			}
			if n := len(f.replicas()); n != 2 {
				t.Errorf("the pool has %d replicas, want the 2 of before", n)
			}
			replaceFile(t, broken.file, string(good))
		})
	}

	tr.end()
	for _, failure := range tr.failed {
		t.Errorf("a request failed: %s", failure)
	}
	f.awaitInFlight(map[string]int{})
	if want := int(tr.sent.Load()) + others; f.total() != want {
		t.Errorf("%d requests at the engines, want the %d that were sent", f.total(), want)
	}
}
