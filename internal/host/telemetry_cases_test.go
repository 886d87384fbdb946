package host

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins"
)

// Replicas whose telemetry is missing, stale, frozen or untrue, and where their
// requests go all the same. Pages are read by the profiles that are built in, at
// times that the test sets.

// watched is a rig whose replicas show pages of one kind of engine.
type watched struct {
	*rig
	profile *engine.Profile
	// every is the time from one page of a replica to its next.
	every time.Duration
	seen  map[string]*pages
}

// pages is what the pages of one replica have left behind.
type pages struct {
	history engine.History
	traffic engine.Traffic
	picked  telemetry.Instant
}

func builtIn(t testing.TB) *engine.Set {
	t.Helper()
	set, err := engine.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// watchedPool makes a pool of r1 to r<n>, none of which has answered yet.
func watchedPool(t *testing.T, kind string, n int, every time.Duration) *watched {
	t.Helper()
	w := &watched{
		rig:     newRig(t, "gateway: {fallbacks: 4}\n"),
		profile: builtIn(t).Profile(kind),
		every:   every,
		seen:    map[string]*pages{},
	}
	var specs []pool.Spec
	for i := range n {
		specs = append(specs, endpoint(i+1))
	}
	w.update(specs...)
	return w
}

// follow puts another profile of scorers into force.
func (w *watched) follow(document string) {
	w.t.Helper()
	p, _, err := policy.Parse("berth.yaml", []byte(document+berthDocument("")), ".", plugins.Catalog{})
	if err != nil {
		w.t.Fatal(err)
	}
	act, err := activate(p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.decider.active.Store(act)
}

// show has a replica scraped: it is asked for a page and answers now.
func (w *watched) show(name, page string) error {
	w.t.Helper()
	live, now := w.live(name), w.clock.read()
	seen := w.seen[name]
	if seen == nil {
		seen = &pages{}
		w.seen[name] = seen
	}
	switch {
	case live.InFlight() > 0:
		if seen.traffic.BusySince == 0 {
			seen.traffic = engine.Traffic{BusySince: now}
		}
	case seen.traffic.IdleSince == 0, live.LastPicked() != seen.picked:
		seen.traffic = engine.Traffic{IdleSince: now}
	}
	seen.picked = live.LastPicked()
	mark := live.BeginScrape()
	live.Answered()
	s, err := w.profile.Read([]byte(page), engine.Input{
		At: now, Previous: live.Snapshot(), History: &seen.history, Traffic: seen.traffic,
	})
	if err != nil {
		live.ScrapeFailed(err.Error())
		return err
	}
	// As long as the collector has a reading live between two pages.
	w.profile.Extend(s, 3*w.every+time.Second)
	live.Publish(s, mark)
	return nil
}

func (w *watched) mustShow(name, page string) {
	w.t.Helper()
	if err := w.show(name, page); err != nil {
		w.t.Fatalf("the page of %s: %v", name, err)
	}
}

// vllm is a page of vLLM. tokens is what it has generated since its start.
func vllm(waiting, running int, kv float64, tokens int) string {
	const labels = `{engine="0",model_name="m"}`
	return fmt.Sprintf("vllm:num_requests_waiting%s %d\nvllm:num_requests_running%s %d\nvllm:kv_cache_usage_perc%s %g\nvllm:generation_tokens_total%s %d\n",
		labels, waiting, labels, running, labels, kv, labels, tokens)
}

// sglang is a page of SGLang, alike.
func sglang(waiting, running int, kv float64, tokens int) string {
	const labels = `{model_name="m",tp_rank="0",pp_rank="0",moe_ep_rank="0"`
	return fmt.Sprintf("sglang:num_queue_reqs%s} %d\nsglang:num_running_reqs%s} %d\nsglang:token_usage%s} %g\nsglang:realtime_tokens_total%s,mode=\"decode\"} %d\n",
		labels, waiting, labels, running, labels, kv, labels, tokens)
}

// atom is a page of ATOM; refreshed is the time that it states, in seconds.
func atom(available, waiting, running int, kv, refreshed float64) string {
	return fmt.Sprintf("atom:metrics_snapshot_available %d\natom:requests_waiting %d\natom:requests_running %d\natom:kv_cache_usage_ratio %g\natom:metrics_last_refresh_timestamp_seconds %f\n",
		available, waiting, running, kv, refreshed)
}

// end completes a request, whose first byte came ttfb after it was sent.
func (r *rig) end(f *inFlight, ttfb time.Duration) {
	f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: f.order[0].Destination, Attempts: 1, Details: viaUpstream})
	f.FirstByte(f.completeAt.Add(ttfb))
	f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
}

// orders has n requests placed, one after the other, each left by its client at
// once, and tells the orders in which they were given their replicas.
func (r *rig) orders(n int) map[string]int {
	r.t.Helper()
	all := map[string]int{}
	for range n {
		f := r.place(r.chat("m"))
		names := make([]string, len(f.order))
		for i, e := range f.order {
			names[i] = e.Name
		}
		all[strings.Join(names, " ")]++
		f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.ClientDisconnect})
	}
	return all
}

// mustOrder checks that requests are given the replicas in one order.
func (r *rig) mustOrder(when, want string) {
	r.t.Helper()
	if all := r.orders(50); all[want] != 50 {
		r.t.Errorf("%s: 50 requests were given %v, want %s for each", when, all, want)
	}
}

// picks has n requests placed of which the newest are in flight, at most this
// many, and tells how many each replica got. The others end as they should.
func (r *rig) picks(n, most int) map[string]int {
	r.t.Helper()
	to := map[string]int{}
	var flying []*inFlight
	for range n {
		if len(flying) == most {
			r.end(flying[0], 50*time.Millisecond)
			flying = flying[1:]
		}
		f := r.place(r.chat("m"))
		flying = append(flying, f)
		to[f.order[0].Name]++
	}
	for _, f := range flying {
		r.end(f, 50*time.Millisecond)
	}
	return to
}

// mustSpread checks that each of r1 to r<n> got between least and most picks.
func (r *rig) mustSpread(when string, to map[string]int, n, least, most int) {
	r.t.Helper()
	for i := range n {
		if name := fmt.Sprintf("r%d", i+1); to[name] < least || to[name] > most {
			r.t.Errorf("%s: %s got %d requests, want %d to %d: %v", when, name, to[name], least, most, to)
		}
	}
}

// mustCount checks how many replicas have a reading of every load field in a
// state; those of the states that are not named are none.
func (r *rig) mustCount(when string, want map[telemetry.State]float64) {
	r.t.Helper()
	for _, f := range telemetry.LoadFields {
		for _, s := range []telemetry.State{telemetry.Fresh, telemetry.Stale, telemetry.Missing, telemetry.Invalid} {
			if got := r.sample("berth_readings", f.String(), s.String()); got != want[s] {
				r.t.Errorf("%s: berth_readings{field=%q,state=%q} is %v, want %v", when, f, s, got, want[s])
			}
		}
	}
}

// mustServe checks that nothing was refused.
func (r *rig) mustServe() {
	r.t.Helper()
	if n := r.sample("berth_refusals_total"); n != 0 {
		r.t.Errorf("%v requests were refused", n)
	}
}

func TestS1_AReplicaThatWasNeverReadIsNotTheIdlestOne(t *testing.T) {
	w := watchedPool(t, "vllm", 3, time.Second)
	w.mustShow("r2", vllm(1, 1, 0.1, 10))
	w.mustShow("r3", vllm(9, 8, 0.8, 10))
	w.mustOrder("r1 has never answered", "r2 r3 r1")

	// It answers, and not with a page: it is there, and its load is unknown.
	if err := w.show("r1", "<html></html>"); err == nil {
		t.Fatal("a page was read in HTML")
	}
	w.mustOrder("r1 answers without a page", "r2 r1 r3")

	w.mustShow("r1", vllm(0, 0, 0, 0))
	w.mustOrder("r1 says that it is idle", "r1 r2 r3")
}

// collecting is the collector at work on a rig's pool. Its timer rings as soon as
// it lies down, and only while the test looks on: the clock is moved as far.
type collecting struct {
	*rig
	log   *observer.ObservedLogs
	lies  chan time.Duration
	rings chan time.Time
	ended <-chan struct{}
}

func (r *rig) collect() *collecting {
	core, log := observer.New(zapcore.InfoLevel)
	ctx, cancel := context.WithCancel(r.t.Context())
	c := &collecting{rig: r, log: log, lies: make(chan time.Duration), rings: make(chan time.Time, 1), ended: ctx.Done()}
	collector := collect.New(collect.Options{
		Profiles: builtIn(r.t), Clock: r.clock.read, NewTimer: func() collect.Timer { return c },
		// This one time passes by itself: a busy machine must not be too slow for it.
		Timeout: patience,
		Logger:  zap.New(core), Observe: r.metrics.scraped,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		collector.Run(ctx, r.pools)
	}()
	r.t.Cleanup(func() {
		cancel()
		<-done
	})
	return c
}

// Reset implements collect.Timer.
func (c *collecting) Reset(d time.Duration) {
	select {
	case c.lies <- d:
	case <-c.ended:
	}
}

// C implements collect.Timer.
func (c *collecting) C() <-chan time.Time { return c.rings }

// Stop implements collect.Timer.
func (c *collecting) Stop() {}

// until lets time pass for the collector until a condition holds.
func (c *collecting) until(what string, holds func() bool) {
	c.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !holds() {
		select {
		case d := <-c.lies:
			c.clock.pass(max(0, d))
			select {
			case c.rings <- c.clock.read().Time():
			default:
			}
		case <-limit.C:
			c.t.Fatalf("never came true: %s", what)
		}
	}
}

// server is a replica's HTTP server, whose answers can be exchanged.
type server struct {
	*httptest.Server
	answer chan http.HandlerFunc
}

func serve(t *testing.T, answer http.HandlerFunc) *server {
	s := &server{answer: make(chan http.HandlerFunc, 1)}
	s.answer <- answer
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		now := <-s.answer
		s.answer <- now
		now(rw, req)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) become(answer http.HandlerFunc) {
	<-s.answer
	s.answer <- answer
}

// spec is the replica r<n> that the server is.
func (s *server) spec(n int, engineName string) pool.Spec {
	return endpoint(n, at(s.Listener.Addr().String()), func(spec *pool.Spec) { spec.Engine = engineName })
}

// metricsPage answers /metrics alone.
func metricsPage(page func() string) http.HandlerFunc {
	return func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/metrics" {
			http.NotFound(rw, req)
			return
		}
		_, _ = io.WriteString(rw, page())
	}
}

// working is the page of a vLLM whose load stays as it is while it works.
func working(waiting, running int, kv float64) http.HandlerFunc {
	var tokens atomic.Int64
	return metricsPage(func() string { return vllm(waiting, running, kv, int(tokens.Add(1))) })
}

// text is a page that stays as it is.
func text(page string) http.HandlerFunc { return metricsPage(func() string { return page }) }

// all answers every path alike.
func all(status int, contentType, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("content-type", contentType)
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	}
}

func TestS2_APoolWhoseTelemetryIsAllStaleServesAndSpreads(t *testing.T) {
	t.Run("eight replicas", func(t *testing.T) {
		const n, picks, even = 8, 4000, 500
		r := newRig(t, "")
		var servers []*server
		var specs []pool.Spec
		for i := range n {
			// Were the readings believed for ever, r1 would get all.
			s := serve(t, working(3*i, 2*i, 0.1*float64(i)))
			servers, specs = append(servers, s), append(specs, s.spec(i+1, "vllm"))
		}
		r.update(specs...)
		c := r.collect()
		fresh := func() float64 { return r.sample("berth_readings", "queueDepth", "fresh") }
		c.until("all are fresh", func() bool { return fresh() == n })
		for _, s := range servers {
			s.become(all(500, "text/plain", "the directory of metrics cannot be read"))
		}
		const fails = "scrape fails"
		since := r.clock.read()
		c.until("no page for ten minutes, and each asked for many times", func() bool {
			return r.clock.read().Sub(since) > 10*time.Minute && c.log.FilterMessage(fails).Len() >= n &&
				r.sample("berth_scrapes_total", "vllm", "status_500") >= 20*n
		})
		r.mustCount("after ten minutes", map[telemetry.State]float64{telemetry.Stale: n})
		if got := r.sample("berth_replicas", "normal"); got != n {
			t.Errorf("%v replicas are in normal order, want %d: all answer", got, n)
		}
		if lines := c.log.FilterMessage(fails).Len(); lines != n {
			t.Errorf("%d lines tell of failures in ten minutes, want one for each of %d replicas", lines, n)
		}

		// The collector does nothing now, and the clock stands: whoever waited for
		// either would wait for ever.
		begin := r.clock.read()
		to := r.picks(picks, 40)
		r.mustSpread("all stale", to, n, even*9/10, even*11/10)
		if waited := r.clock.read().Sub(begin); waited != 0 {
			t.Errorf("%v passed", waited)
		}
		r.mustServe()
		if local := r.sample("berth_decisions_total", "native", "local"); local < picks-1 {
			t.Errorf("%v decisions were local, want all but the first", local)
		}

		for i, s := range servers {
			s.become(working(3*i, 2*i, 0.1*float64(i)))
		}
		const again = "scrape succeeds again"
		c.until("all are fresh again", func() bool { return fresh() == n && c.log.FilterMessage(again).Len() >= n })
		for _, what := range []string{fails, again} {
			if lines := c.log.FilterMessage(what).Len(); lines != n {
				t.Errorf("%d lines of %q in the end, want %d", lines, what, n)
			}
		}
		r.mustOrder("all fresh again", "r1")
	})
	t.Run("the only replica", func(t *testing.T) {
		w := watchedPool(t, "vllm", 1, 200*time.Millisecond)
		w.mustShow("r1", vllm(40, 64, 1, 100))
		// Scrapes time out for as long as a reading lives, and longer.
		for range 30 {
			w.clock.pass(100 * time.Millisecond)
			w.live("r1").ScrapeFailed("timeout")
			w.mustOrder("while scrapes time out", "r1")
		}
		w.mustCount("after three seconds", map[telemetry.State]float64{telemetry.Stale: 1})
		w.mustServe()
	})
}

// trial is a fleet at work: a request each 200 ms, which takes a second, and a
// page of every replica each second.
type trial struct {
	*watched
	// page is what a replica shows at a time since the beginning.
	page func(name string, after time.Duration) string
	// after is the time since the beginning.
	after  time.Duration
	flying []*inFlight
}

// run lets time pass, until a condition holds after a pick, and tells how many
// picks each replica got.
func (tr *trial) run(d time.Duration, until func(picked string) bool) map[string]int {
	tr.t.Helper()
	to := map[string]int{}
	for end := tr.after + d; tr.after < end; {
		for len(tr.flying) >= 5 {
			tr.end(tr.flying[0], 50*time.Millisecond)
			tr.flying = tr.flying[1:]
		}
		if tr.after%tr.every == 0 {
			for _, e := range tr.pools.Set().Endpoints {
				tr.mustShow(e.Name, tr.page(e.Name, tr.after))
			}
		}
		f := tr.place(tr.chat("m"))
		tr.flying = append(tr.flying, f)
		name := f.order[0].Name
		to[name]++
		tr.clock.pass(200 * time.Millisecond)
		tr.after += 200 * time.Millisecond
		if until(name) {
			return to
		}
	}
	return to
}

func never(string) bool { return false }

func TestS3_AReplicaWhoseGaugesAreFrozenHighIsTriedAndComesBack(t *testing.T) {
	for _, c := range []struct {
		name, engine string
		page         func(waiting, running int, kv float64, tokens int) string
		frozen       []string
	}{
		{"vLLM, one of three", "vllm", vllm, []string{"r1"}},
		{"vLLM, two of three", "vllm", vllm, []string{"r1", "r2"}},
		{"SGLang, one of three", "sglang", sglang, []string{"r1"}},
		{"ATOM, one of three", "atom", func(waiting, running int, kv float64, tokens int) string {
			return atom(1, waiting, running, kv, 0) + fmt.Sprintf("atom:generation_tokens_total %d\n", tokens)
		}, []string{"r1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchedPool(t, c.engine, 3, time.Second)
			// A request makes an engine step, and its page true.
			frozen := map[string]bool{}
			for _, name := range c.frozen {
				frozen[name] = true
			}
			tried := map[string]time.Duration{}
			tr := &trial{watched: w, page: func(name string, after time.Duration) string {
				if frozen[name] {
					return c.page(50, 0, 0.99, 7000)
				}
				return c.page(0, int(w.live(name).InFlight()), 0.05, 7000+int(after/time.Millisecond))
			}}
			if to := tr.run(5*time.Second, never); to["r1"] != 0 {
				t.Fatalf("r1 got %d requests in the first 5 s, while its page is believed", to["r1"])
			}
			tr.run(30*time.Second-tr.after, func(name string) bool {
				if frozen[name] {
					tried[name] = tr.after
					delete(frozen, name)
				}
				return len(frozen) == 0
			})
			for _, name := range c.frozen {
				if frozen[name] {
					t.Errorf("%s was not tried within 30 s", name)
				}
			}
			// Two pages later it is one of three that are alike.
			tr.run(2*tr.every, never)
			to := tr.run(20*time.Second, never)
			w.mustSpread(fmt.Sprintf("tried after %v, in 20 s from two pages later", tried), to, 3, 20, 50)
			w.mustCount("in the end", map[telemetry.State]float64{telemetry.Fresh: 3})
			w.mustServe()
		})
	}
}

func TestS4_AReplicaThatHasNoSnapshotYetIsNotIdle(t *testing.T) {
	w := watchedPool(t, "atom", 3, time.Second)
	now := float64(w.clock.read()) / 1e9
	w.mustShow("r1", atom(0, 0, 0, 0, now))
	w.mustShow("r2", atom(1, 1, 2, 0.1, now))
	w.mustShow("r3", atom(1, 9, 20, 0.8, now))
	w.mustCount("r1 has no snapshot", map[telemetry.State]float64{telemetry.Fresh: 2, telemetry.Missing: 1})
	w.mustOrder("r1 has no snapshot", "r2 r1 r3")

	w.mustShow("r1", atom(1, 0, 0, 0, now))
	w.mustCount("r1 has one", map[telemetry.State]float64{telemetry.Fresh: 3})
	w.mustOrder("r1 has one", "r1 r2 r3")
}

func TestS5_AReplicaIsJudgedByTheTimeThatItsEngineStates(t *testing.T) {
	for _, c := range []struct {
		name string
		// refreshed is the stated time from now, or the whole of it.
		refreshed, stated float64
		want              telemetry.State
		order             string
	}{
		{name: "two seconds ago", refreshed: -2, want: telemetry.Fresh, order: "r1 r2 r3"},
		{name: "two minutes ago", refreshed: -120, want: telemetry.Stale, order: "r2 r1 r3"},
		{name: "in an hour", refreshed: 3600, want: telemetry.Fresh, order: "r1 r2 r3"},
		{name: "never", stated: 0, want: telemetry.Fresh, order: "r1 r2 r3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchedPool(t, "atom", 3, time.Second)
			now := float64(w.clock.read()) / 1e9
			refreshed := c.stated
			if c.refreshed != 0 {
				refreshed = now + c.refreshed
			}
			w.mustShow("r1", atom(1, 0, 0, 0, refreshed))
			w.mustShow("r2", atom(1, 1, 2, 0.1, now))
			w.mustShow("r3", atom(1, 9, 20, 0.8, now))
			want := map[telemetry.State]float64{telemetry.Fresh: 2}
			want[c.want]++
			w.mustCount("read now", want)
			w.mustOrder("read now", c.order)

			// Half a second later, a page is half a second old, whatever it says.
			w.clock.pass(500 * time.Millisecond)
			f := w.place(w.chat("m"))
			record, ok := w.ledger.Find(f.id)
			if !ok {
				t.Fatal("the decision has no record")
			}
			for _, candidate := range record.Candidates {
				for i, reading := range candidate.Readings {
					if reading.AgeMillis == nil || *reading.AgeMillis != 500 {
						t.Errorf("%s of %s is %v ms old, want 500", record.Fields[i].Field, candidate.Replica, reading.AgeMillis)
					}
				}
			}
			w.end(f, time.Millisecond)
		})
	}
}

func TestS6_ABurstSpreadsOverReplicasThatAllSayZero(t *testing.T) {
	const n, requests = 4, 200
	for _, c := range []struct {
		name string
		// every is the time between two pages of a replica, which are spread over
		// it; lasts is how long a request takes.
		every, lasts time.Duration
		// kv is the cache in use at all but r1, which is the best by a shade.
		kv float64
		// most is the largest difference between two replicas.
		most int
	}{
		{"pages each 5 s, requests that stay", 5 * time.Second, time.Hour, 0, 1},
		{"pages each 5 s, requests that stay, one replica a shade better", 5 * time.Second, time.Hour, 0.02, 4},
		{"pages each 5 s, short requests", 5 * time.Second, 100 * time.Millisecond, 0, requests / 10},
		{"pages each 200 ms that lag behind, requests that stay", 200 * time.Millisecond, time.Hour, 0, requests / 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchedPool(t, "vllm", n, c.every)
			zeros := func(i int) {
				kv := c.kv
				if i == 0 {
					kv = 0
				}
				w.mustShow(fmt.Sprintf("r%d", i+1), vllm(0, 0, kv, 0))
			}
			for i := range n {
				zeros(i)
			}
			to := map[string]int{}
			var flying []*inFlight
			for i := range requests {
				after := time.Duration(i) * time.Second / requests
				for j := range n {
					if due := time.Duration(j+1) * c.every / n; after >= due && (after-due)%c.every == 0 {
						zeros(j)
					}
				}
				for len(flying) > 0 && w.clock.read().Sub(flying[0].decidedAt) >= c.lasts {
					w.end(flying[0], time.Millisecond)
					flying = flying[1:]
				}
				f := w.place(w.chat("m"))
				flying = append(flying, f)
				to[f.order[0].Name]++
				w.clock.pass(time.Second / requests)
			}
			least, most := requests, 0
			for i := range n {
				got := to[fmt.Sprintf("r%d", i+1)]
				least, most = min(least, got), max(most, got)
			}
			if most-least > c.most {
				t.Errorf("%v: from %d to %d, want a difference of at most %d", to, least, most, c.most)
			}
		})
	}
}

// SGLang shows its last batch until it flushes its gauges, 30 s after.
func TestS7_AReplicaThatStillShowsItsLastBatchGetsRequests(t *testing.T) {
	const flush = 30 * time.Second
	for _, c := range []struct{ name, policy string }{
		{"by queue, cache and active requests", pickerDocument},
		{"by active requests alone", strings.NewReplacer(
			"  - {pluginRef: queue-depth, weight: 2}\n", "", "  - {pluginRef: kv-cache-utilization, weight: 2}\n", "").Replace(pickerDocument)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchedPool(t, "sglang", 3, time.Second)
			w.follow(c.policy)
			tried := false
			tr := &trial{watched: w, page: func(name string, after time.Duration) string {
				if name == "r1" && !tried {
					return sglang(0, 24, 0.2, 7000)
				}
				return sglang(0, int(w.live(name).InFlight()), 0.05, 7000+int(after/time.Millisecond))
			}}
			tr.run(flush, func(name string) bool {
				tried = name == "r1"
				return tried
			})
			if !tried {
				t.Errorf("r1 got nothing in the %v in which it showed 24 requests and had none", flush)
			}
			w.mustServe()
		})
	}
}

func TestS9_APoolWithoutFreshReadingsIsCountedAndNotAveraged(t *testing.T) {
	w := watchedPool(t, "vllm", 3, time.Second)
	replicas := func(when string, normal, last float64) {
		t.Helper()
		for state, want := range map[string]float64{"normal": normal, "last": last, "excluded": 0} {
			if got := w.sample("berth_replicas", state); got != want {
				t.Errorf("%s: berth_replicas{state=%q} is %v, want %v", when, state, got, want)
			}
		}
	}
	read := func(tokens int) {
		t.Helper()
		w.mustShow("r1", vllm(1, 1, 0.1, tokens))
		w.mustShow("r2", vllm(2, 1, 0.1, tokens))
	}
	w.mustCount("nobody was read", map[telemetry.State]float64{telemetry.Missing: 3})
	replicas("nobody was read", 0, 3)
	read(10)
	w.mustCount("two were read", map[telemetry.State]float64{telemetry.Fresh: 2, telemetry.Missing: 1})
	replicas("two were read", 2, 1)
	w.clock.pass(time.Hour)
	w.mustCount("an hour later", map[telemetry.State]float64{telemetry.Stale: 2, telemetry.Missing: 1})
	replicas("an hour later", 2, 1)
	read(20)
	w.mustCount("read again", map[telemetry.State]float64{telemetry.Fresh: 2, telemetry.Missing: 1})

	families, err := w.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, word := range []string{"average", "avg", "mean"} {
			if name := family.GetName(); strings.HasPrefix(name, "berth_") && strings.Contains(name, word) {
				t.Errorf("%s: an average must say of whom, and be absent without them", name)
			}
		}
	}
}

func TestS10_ANewReplicaWithoutLatenciesGetsItsFirstRequests(t *testing.T) {
	// All have the same load; r1 alone has not served yet and shows no latency.
	const latencies = `vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="1"} 40
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 40
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 4
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 40
`
	const n = 5
	w := watchedPool(t, "vllm", n, time.Second)
	w.mustShow("r1", vllm(1, 2, 0.2, 0))
	for i := 2; i <= n; i++ {
		name := fmt.Sprintf("r%d", i)
		w.mustShow(name, vllm(1, 2, 0.2, 10)+latencies)
		w.live(name).Observe(100*time.Millisecond, w.clock.read())
	}
	if got := w.live("r1").Snapshot().Readings[telemetry.TTFT].Recorded; got != telemetry.Missing {
		t.Fatalf("r1's latency is %s", got)
	}
	if to := w.picks(50, 50); to["r1"] < 5 {
		t.Errorf("of 50 requests, r1 got %d of 10, with fresh load everywhere: %v", to["r1"], to)
	}
	// Nothing is fresh: what was observed of the others is no reason against it.
	w = watchedPool(t, "vllm", n, time.Second)
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("r%d", i)
		w.live(name).Answered()
		if i > 1 {
			w.live(name).Observe(100*time.Millisecond, w.clock.read())
		}
	}
	if to := w.picks(50, 50); to["r1"] < 5 {
		t.Errorf("of 50 requests, r1 got %d of 10, with no load known: %v", to["r1"], to)
	}
	w.mustServe()
}

func TestS12_ReplicasWithoutTelemetryAreCapacity(t *testing.T) {
	capacity := func(r *rig, replicas float64) {
		r.t.Helper()
		r.mustServe()
		if n := r.sample("berth_decisions_total", "native", "refuse"); n != 0 {
			r.t.Errorf("%v decisions were to refuse", n)
		}
		if n := r.sample("berth_replicas", "excluded"); n != 0 {
			r.t.Errorf("%v of %v replicas are excluded", n, replicas)
		}
	}
	t.Run("none has answered", func(t *testing.T) {
		w := watchedPool(t, "vllm", 3, time.Second)
		w.mustSpread("300 at once", w.picks(300, 300), 3, 99, 101)
		capacity(w.rig, 3)
	})
	t.Run("telemetry is off", func(t *testing.T) {
		w := watchedPool(t, "vllm", 3, time.Second)
		w.pools.SetTelemetryNone(true)
		w.mustSpread("300 at once", w.picks(300, 300), 3, 99, 101)
		w.mustCount("telemetry is off", map[telemetry.State]float64{telemetry.Missing: 3})
		capacity(w.rig, 3)
	})
	t.Run("the others are full", func(t *testing.T) {
		w := watchedPool(t, "vllm", 3, time.Second)
		if err := w.show("r1", ""); err == nil {
			t.Fatal("an empty page was read")
		}
		w.mustShow("r2", vllm(200, 256, 1, 10))
		w.mustShow("r3", vllm(200, 256, 1, 10))
		w.mustSpread("300 at once", w.picks(300, 300), 3, 30, 200)
		capacity(w.rig, 3)
	})
	t.Run("an empty pool alone is none", func(t *testing.T) {
		w := watchedPool(t, "vllm", 0, time.Second)
		d, refusal := w.decider.begin().Decide(w.chat("m"))
		if d != nil || refusal == nil || refusal.Status != 503 || refusal.Reason != "pool_empty" {
			t.Errorf("decision %v, refusal %+v, want 503 pool_empty", d, refusal)
		}
	})
}

func TestM13_M17_M18_AReplicaWithoutAUsablePageGetsItsShare(t *testing.T) {
	const process = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 812.47\npython_info{version=\"3.12\"} 1\n"
	for _, c := range []struct {
		name, engine string
		answer       http.HandlerFunc
		reason       string
	}{
		{"M13: an empty page", "vllm", text(""), "empty"},
		{"M13: the process alone", "vllm", text(process), "no_engine_families"},
		{"M17: an error", "vllm", all(500, "text/plain", "Internal Server Error"), "status_500"},
		{"M18: HTML", "vllm", all(200, "text/html", "<html><body>welcome</body></html>"), "not_text"},
		{"M18: JSON", "vllm", all(200, "application/json", `{"status":"ok"}`), "not_text"},
		{"M18: no such page", "vllm", http.NotFound, "status_404"},
		{"M18: HTML, and no engine is declared", "", all(200, "text/html", "<html><body>welcome</body></html>"), "not_text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "")
			r.update(serve(t, c.answer).spec(1, c.engine), serve(t, working(2, 1, 0.2)).spec(2, "vllm"))
			col := r.collect()
			failed := func() float64 { return r.sample("berth_scrapes_total", cmp.Or(c.engine, "unknown"), c.reason) }
			usable := func() bool {
				s := r.live("r2").Snapshot()
				return s != nil && s.Readings[telemetry.QueueDepth].State(r.clock.read()) == telemetry.Fresh
			}
			begin := r.clock.read()
			col.until("a minute of pages that are of no use", func() bool {
				return r.clock.read().Sub(begin) > time.Minute && failed() >= 5 && usable()
			})
			r.mustCount("after a minute", map[telemetry.State]float64{telemetry.Fresh: 1, telemetry.Missing: 1})
			if got := r.live("r1").ScrapeError(); got != c.reason {
				t.Errorf("the reason is %q, want %q", got, c.reason)
			}
			if got := r.sample("berth_replicas", "normal"); got != 2 {
				t.Errorf("%v replicas are in normal order, want both", got)
			}

			// Nothing is known of r1, and it counts as the median of the others: r2.
			r.mustSpread("one at a time", r.picks(400, 1), 2, 120, 280)
			r.mustSpread("all at once", r.picks(400, 400), 2, 100, 300)
			r.mustServe()

			// No answer of r1 gets better by being asked for more often.
			before, since := failed(), r.clock.read()
			col.until("two more minutes", func() bool { return r.clock.read().Sub(since) > 2*time.Minute })
			if n := failed() - before; n > 2*60/9+1 {
				t.Errorf("%v scrapes in two minutes, want a pause of 10 s, less a tenth at most", n)
			}
		})
	}
}
