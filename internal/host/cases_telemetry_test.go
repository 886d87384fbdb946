package host

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Pages that say something odd, and where requests go by them.

// steady checks that many requests, one after the other, are all given the replicas in
// one order, by totals that are numbers and scores between 0 and 1.
func (r *rig) steady(when, want string, n int) {
	r.t.Helper()
	for range n {
		f := r.place(r.chat("m"))
		record, ok := r.ledger.Find(f.id)
		if !ok {
			r.t.Fatalf("%s: a decision has no record", when)
		}
		for _, c := range record.Candidates {
			if math.IsNaN(c.Total) || math.IsInf(c.Total, 0) {
				r.t.Fatalf("%s: the total of %s is %v", when, c.Replica, c.Total)
			}
			for i, score := range c.Scores {
				if score != nil && !(*score >= 0 && *score <= 1) {
					r.t.Fatalf("%s: %s gives %s %v, want 0 to 1", when, record.Scorers[i].Scorer, c.Replica, *score)
				}
			}
		}
		var names []string
		for _, e := range f.order {
			names = append(names, e.Name)
		}
		f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.ClientDisconnect})
		if got := strings.Join(names, " "); got != want {
			r.t.Fatalf("%s: a request was given %s, want %s as each", when, got, want)
		}
	}
}

func TestM2_M3_ARankThatIsIdleHidesNoneThatIsFull(t *testing.T) {
	vllmRank := func(rank, waiting int) string {
		return fmt.Sprintf("vllm:num_requests_waiting{engine=\"%d\"} %d\nvllm:num_requests_running{engine=\"%d\"} 1\nvllm:kv_cache_usage_perc{engine=\"%d\"} 0.5\n", rank, waiting, rank, rank)
	}
	sglangRank := func(dp, tp, waiting int) string {
		labels := fmt.Sprintf("{model_name=\"m\",dp_rank=\"%d\",tp_rank=\"%d\",pp_rank=\"0\",moe_ep_rank=\"0\"}", dp, tp)
		return fmt.Sprintf("sglang:num_queue_reqs%s %d\nsglang:num_running_reqs%s 1\nsglang:token_usage%s 0.5\n", labels, waiting, labels, labels)
	}
	var ranks []string
	for tp := range 4 {
		ranks = append(ranks, sglangRank(0, tp, 3), sglangRank(1, tp, 5))
	}
	backwards := slices.Clone(ranks)
	slices.Reverse(backwards)
	for _, c := range []struct {
		name, engine string
		// page is r1's; r2 has fewer waiting than it and r3 more.
		page   string
		r2, r3 string
	}{
		{"0 and 40 waiting", "vllm", vllmRank(0, 0) + vllmRank(1, 40), vllmRank(0, 39) + vllmRank(1, 0), vllmRank(0, 41) + vllmRank(1, 0)},
		{"40 and 0 waiting", "vllm", vllmRank(1, 40) + vllmRank(0, 0), vllmRank(0, 39) + vllmRank(1, 0), vllmRank(0, 41) + vllmRank(1, 0)},
		{"two ranks of four", "sglang", strings.Join(ranks, ""), sglangRank(0, 0, 4) + sglangRank(1, 0, 3), sglangRank(0, 0, 9) + sglangRank(1, 0, 0)},
		{"two ranks of four, backwards", "sglang", strings.Join(backwards, ""), sglangRank(0, 0, 4) + sglangRank(1, 0, 3), sglangRank(0, 0, 9) + sglangRank(1, 0, 0)},
		{"of each only rank 0", "sglang", sglangRank(0, 0, 3) + sglangRank(1, 0, 5), sglangRank(0, 0, 4) + sglangRank(1, 0, 3), sglangRank(0, 0, 9) + sglangRank(1, 0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := watchedPool(t, c.engine, 3, time.Second)
			w.mustShow("r1", c.page)
			w.mustShow("r2", c.r2)
			w.mustShow("r3", c.r3)
			w.mustOrder("by what waits", "r2 r1 r3")
		})
	}
}

// Two replicas hold two models each, and the endpoints serve one of them.
func TestM4_RequestsForAModelGoByItsOwnQueue(t *testing.T) {
	page := func(a, b int) http.HandlerFunc {
		return text(fmt.Sprintf("vllm:num_requests_waiting{model_name=\"model-a\"} %d\nvllm:num_requests_waiting{model_name=\"model-b\"} %d\n", a, b) +
			"vllm:num_requests_running{model_name=\"model-a\"} 1\nvllm:num_requests_running{model_name=\"model-b\"} 1\n")
	}
	for _, c := range []struct {
		model, want string
		queues      [2]float64
	}{
		{"model-b", "r2", [2]float64{7, 1}},
		{"model-a", "r1", [2]float64{0, 50}},
	} {
		t.Run(c.model, func(t *testing.T) {
			r := newRig(t, "")
			var specs []pool.Spec
			for i, s := range []*server{serve(t, page(0, 7)), serve(t, page(50, 1))} {
				spec := s.spec(i+1, "vllm")
				spec.ServedModels = []string{c.model}
				specs = append(specs, spec)
			}
			r.update(specs...)
			r.collect().until("both are read", func() bool { return r.sample("berth_readings", "queueDepth", "fresh") == 2 })
			for i, want := range c.queues {
				name := fmt.Sprintf("r%d", i+1)
				if got := r.live(name).Snapshot().Readings[telemetry.QueueDepth].Value; got != want {
					t.Errorf("queueDepth of %s is %v, want %v", name, got, want)
				}
			}
			f := r.place(r.chat(c.model))
			if got := f.order[0].Name; got != c.want {
				t.Errorf("a request is given %s, want %s", got, c.want)
			}
			f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.ClientDisconnect})
		})
	}
}

// trtllm is a page of trtllm-serve that was started with the path of its model.
func trtllm(model string, waiting, running int, kv float64) string {
	labels := fmt.Sprintf("{engine_type=%q,model_name=%q,pid=\"71\"}", model, model)
	return fmt.Sprintf("trtllm_num_requests_waiting%s %d\ntrtllm_num_requests_running%s %d\ntrtllm_kv_cache_utilization%s %g\n", labels, waiting, labels, running, labels, kv)
}

func TestM5_AReplicaWhoseModelIsAPlaceholderIsReadAndNamesNobodyThat(t *testing.T) {
	page := func(waiting int) http.HandlerFunc {
		return func(rw http.ResponseWriter, req *http.Request) {
			if req.URL.Path != "/prometheus/metrics" {
				http.NotFound(rw, req)
				return
			}
			_, _ = io.WriteString(rw, trtllm("undefined", waiting, 8, 0.5))
		}
	}
	r := newRig(t, "")
	var specs []pool.Spec
	for i, waiting := range []int{9, 1, 5} {
		spec := serve(t, page(waiting)).spec(i+1, "trtllm-serve")
		spec.ServedModels = []string{"m"}
		specs = append(specs, spec)
	}
	r.update(specs...)
	r.collect().until("all are read", func() bool { return r.sample("berth_readings", "queueDepth", "fresh") == 3 })
	r.mustOrder("by what waits", "r2")
	r.mustCount("all are read", map[telemetry.State]float64{telemetry.Fresh: 3})
	families, err := r.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.Contains(family.String(), "undefined") {
			t.Errorf("%s tells of a model or an engine called undefined", family.GetName())
		}
	}
}

func TestM6_AReplicaThatAnswersInJSONIsNeitherIdleNorLost(t *testing.T) {
	const statistics = `[{"iter":1,"numActiveRequests":3,"numQueuedRequests":9},{"iter":2,"numActiveRequests":0,"numQueuedRequests":0}]`
	for name, body := range map[string]string{"nothing happened": "[]", "statistics": statistics} {
		t.Run(name, func(t *testing.T) {
			good := func(rw http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/prometheus/metrics" {
					http.NotFound(rw, req)
					return
				}
				_, _ = io.WriteString(rw, trtllm("m", 2, 1, 0.2))
			}
			r := newRig(t, "")
			r.update(serve(t, all(200, "application/json", body)).spec(1, "trtllm-serve"), serve(t, good).spec(2, "trtllm-serve"))
			r.collect().until("one is read, and the other is of no use", func() bool {
				return r.sample("berth_scrapes_total", "trtllm-serve", "not_text") >= 3 && r.sample("berth_readings", "queueDepth", "fresh") == 1
			})
			if got := r.live("r1").ScrapeError(); got != "not_text" {
				t.Errorf("the reason is %q, want not_text", got)
			}
			r.mustCount("one answers in JSON", map[telemetry.State]float64{telemetry.Fresh: 1, telemetry.Missing: 1})
			r.mustSpread("one at a time", r.picks(400, 1), 2, 120, 280)
			r.mustServe()
		})
	}
}

// badNumbers are what broken engines have put in place of a number.
var badNumbers = []string{"NaN", "-nan", "+Inf", "-Inf", "-5", "1e300"}

func TestM8_ABadValueIsNeitherTheBestNorTheWorst(t *testing.T) {
	gauges := []string{"sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"}
	fields := []telemetry.Field{telemetry.QueueDepth, telemetry.ActiveRequests, telemetry.KVCacheUtilization}
	page := func(values ...string) string {
		var b strings.Builder
		b.WriteString("sglang:fwd_occupancy{tp_rank=\"0\"} NaN\n")
		for i, name := range gauges {
			fmt.Fprintf(&b, "%s{tp_rank=\"0\"} %s\n", name, values[i])
		}
		return b.String()
	}
	t.Run("in a gauge that nobody asks for", func(t *testing.T) {
		w := watchedPool(t, "sglang", 3, time.Second)
		w.mustShow("r1", page("5", "8", "0.5"))
		w.mustShow("r2", page("0", "1", "0.1"))
		w.mustShow("r3", page("9", "16", "0.9"))
		w.mustCount("a bad gauge", map[telemetry.State]float64{telemetry.Fresh: 3})
		w.steady("a bad gauge", "r2 r1 r3", 50)
	})
	for i, field := range fields {
		for _, bad := range badNumbers {
			t.Run(field.String()+" "+bad, func(t *testing.T) {
				w := watchedPool(t, "sglang", 3, time.Second)
				// By what else is known, r1 is between the others.
				values := []string{"5", "8", "0.5"}
				values[i] = bad
				w.mustShow("r1", page(values...))
				w.mustShow("r2", page("0", "1", "0.1"))
				w.mustShow("r3", page("9", "16", "0.9"))
				for j, other := range fields {
					r := w.live("r1").Snapshot().Readings[other]
					if want := map[bool]telemetry.State{true: telemetry.Invalid, false: telemetry.Fresh}[j == i]; r.Recorded != want {
						t.Errorf("%s is %v, want %v", other, r.Recorded, want)
					}
				}
				n := 100
				if bad == "NaN" {
					n = 1000
				}
				w.steady("a bad value", "r2 r1 r3", n)
				w.mustServe()
			})
		}
	}
}

func TestM9_ASignedNaNGivesTheSameDecisionsWhereverItStands(t *testing.T) {
	lines := strings.SplitAfter(strings.TrimSuffix(vllm(5, 8, 0.5, 100), "\n"), "\n")
	lines[len(lines)-1] += "\n"
	for _, line := range []string{"vllm:tokens_per_second{engine=\"0\",model_name=\"m\"} -nan\n", "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} -nan\n"} {
		var first string
		for at := range len(lines) + 1 {
			w := watchedPool(t, "vllm", 3, time.Second)
			w.mustShow("r1", strings.Join(slices.Insert(slices.Clone(lines), at, line), ""))
			w.mustShow("r2", vllm(0, 1, 0.1, 100))
			w.mustShow("r3", vllm(9, 16, 0.9, 100))
			w.steady("-nan", "r2 r1 r3", 20)
			f := w.place(w.chat("m"))
			record, ok := w.ledger.Find(f.id)
			if !ok {
				t.Fatal("the decision has no record")
			}
			var said strings.Builder
			for _, c := range record.Candidates {
				fmt.Fprintf(&said, "%s %v", c.Replica, c.Total)
				for _, reading := range c.Readings {
					fmt.Fprintf(&said, " %s", reading.State)
				}
				said.WriteByte('\n')
			}
			if first == "" {
				first = said.String()
			}
			if got := said.String(); got != first {
				t.Errorf("%q before line %d: %s, and before the first %s", line, at, got, first)
			}
		}
	}
}

func TestM25_NoScoreLeavesItsRangeWhateverAPageTakesForAPart(t *testing.T) {
	for _, c := range []struct {
		kv    string
		state telemetry.State
		order string
	}{
		{"1.0001", telemetry.Fresh, "r2 r3 r1"},
		{"87.5", telemetry.Invalid, "r2 r1 r3"},
		{"-0.01", telemetry.Invalid, "r2 r1 r3"},
	} {
		t.Run(c.kv, func(t *testing.T) {
			w := watchedPool(t, "vllm", 3, time.Second)
			w.mustShow("r1", strings.Replace(vllm(1, 1, 0.123, 10), "0.123", c.kv, 1))
			w.mustShow("r2", vllm(1, 1, 0.1, 10))
			w.mustShow("r3", vllm(1, 1, 0.9, 10))
			if r := w.live("r1").Snapshot().Readings[telemetry.KVCacheUtilization]; r.Recorded != c.state || c.state == telemetry.Fresh && r.Value != 1 {
				t.Errorf("kvCacheUtilization is %v %v, want %v", r.Recorded, r.Value, c.state)
			}
			w.steady("an odd part", c.order, 200)
			w.mustServe()
		})
	}
}

// A page that is read in part, as those of quiet engines are, does not tell how long it
// has stood still.
func TestAQuietEngineThatGetsBusyIsNotFrozen(t *testing.T) {
	w := watchedPool(t, "vllm", 1, 5*time.Second)
	for range 14 {
		w.clock.pass(5 * time.Second)
		w.mustShow("r1", vllm(0, 0, 0, 10))
	}
	w.clock.pass(5 * time.Second)
	w.mustShow("r1", vllm(5, 4, 0.4, 20))
	if r := w.live("r1").Snapshot().Readings[telemetry.QueueDepth]; r.Recorded != telemetry.Fresh {
		t.Errorf("the first busy page after a quiet minute: %v %q, want fresh", r.Recorded, r.Detail.Reasons)
	}
}
