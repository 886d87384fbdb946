package collect

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
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
