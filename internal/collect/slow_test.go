package collect

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// Two processes behind one address look like one that starts anew with each page.
func TestAnEngineThatStartsAnewWithEachPageIsNotAskedForAllPagesEachTime(t *testing.T) {
	var starts atomic.Int64
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		next := calm
		if r.URL.Path == "/metrics" {
			next.start = fmt.Sprint(1.7e9 + float64(starts.Add(1)))
		}
		next.handle(w, r)
	})
	f := start(t, nil, e.spec("a"))
	f.mustScrape("ok")
	begin := f.clock.Now()
	unit := f.endpoint(0).Take(begin)
	defer unit.Release()
	for f.clock.Now().Sub(begin) < 35*time.Second {
		f.mustScrape("ok")
	}
	// At the start, with the first page that is another process's, and 10, 20 and 30 s
	// after that.
	if got := e.count("/v1/models"); got < 4 || got > 6 {
		t.Errorf("the models were asked for %d times in %v, want about 5", got, f.clock.Now().Sub(begin))
	}
	if got := e.count("/metrics"); got < 150 {
		t.Errorf("the metrics were asked for %d times", got)
	}
}

// A metrics page that hangs says nothing of the other pages: who is asleep or unwell
// must be seen all the same.
func TestTheOtherPagesAreReadWhileTheMetricsPageHangs(t *testing.T) {
	e := newFakeEngine(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			<-r.Context().Done()
		case "/health":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			calm.handle(w, r)
		}
	})
	spec := e.spec("a")
	spec.Engine = "vllm"
	f := start(t, func(o *Options) { o.Timeout = 2 * time.Second }, spec)
	f.mustScrape("timeout")
	f.settle()
	s := f.endpoint(0).Snapshot()
	if s == nil {
		t.Fatal("nothing was read")
	}
	if got := names(s); !slices.Equal(got, []string{"m"}) {
		t.Errorf("servedModels %v", got)
	}
	if got := &s.Readings[telemetry.Health]; got.State(f.clock.Now()) != telemetry.Fresh || got.Value != 0 {
		t.Errorf("health %+v", got)
	}
	if got := s.Readings[telemetry.QueueDepth].Recorded; got != telemetry.Missing {
		t.Errorf("queueDepth %v", got)
	}
}
