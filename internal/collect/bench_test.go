package collect

import (
	"context"
	"net/http"
	"os"
	"testing"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
)

// BenchmarkScrape is one scrape of a page of 45 KB over a connection that is
// kept open. The time includes the HTTP server that stands for the engine.
func BenchmarkScrape(b *testing.B) {
	page, err := os.ReadFile("../engine/testdata/vllm.prom")
	if err != nil {
		b.Fatal(err)
	}
	e := newFakeEngine(b, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			calm.handle(w, r)
			return
		}
		_, _ = w.Write(page)
	})
	set, err := engine.Defaults()
	if err != nil {
		b.Fatal(err)
	}
	registry := pool.NewRegistry("test/pool", false)
	if err := registry.Update("test/pool", []pool.Spec{e.spec("a")}); err != nil {
		b.Fatal(err)
	}
	opts := Options{Profiles: set}.withDefaults()
	clients := newClients(&opts)
	w := newWorker(opts, clients, newTable(nil))
	j := job{ctx: context.Background(), target: &target{kind: "endpoint"}, endpoint: registry.Set().Endpoints[0]}
	b.ReportAllocs()
	for b.Loop() {
		if r := w.scrape(j); r.reason != "" {
			b.Fatal(r.reason, r.cause)
		}
	}
}
