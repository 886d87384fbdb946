package host

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/response"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a document with its file in testdata.
func golden(t *testing.T, name string, doc any) {
	t.Helper()
	got, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs (run with -update to accept):\n%s", path, got)
	}
}

// anonymous blanks what differs between runs and builds: the id is random, the key
// follows from it.
func anonymous(d *v1alpha1.Decision) *v1alpha1.Decision {
	clone := *d
	clone.ID, clone.Key = "ID", "KEY"
	clone.Versions.Policy, clone.Versions.Build = "POLICY", "BUILD"
	return &clone
}

// recordOf reads back what was recorded of a request.
func (r *rig) recordOf(f *inFlight) *v1alpha1.Decision {
	r.t.Helper()
	rec, ok := r.ledger.Find(f.id)
	if !ok {
		r.t.Fatalf("no record of decision %s", f.id)
	}
	return rec
}

// TestARecordHoldsWholeDecisions follows one request through its record: five
// replicas, of which one is outside the subset, one not ready, one idle, one
// loaded with what was picked since its page, and one whose page is stale.
func TestARecordHoldsWholeDecisions(t *testing.T) {
	r := newRig(t, "gateway: {fallbacks: 1}\n")
	r.update(endpoint(1), endpoint(2), endpoint(3, notReady), endpoint(4), endpoint(5))
	r.publish("r4", load{1, 2, 0.25}, time.Second)
	r.clock.pass(2 * time.Second)
	r.publish("r1", load{2, 4, 0.5}, time.Minute)
	r.publish("r2", load{5, 4, 0.5}, time.Minute)
	r.live("r1").Observe(120*time.Millisecond, r.clock.read())
	unit := r.live("r1").Take(r.clock.read())
	defer unit.Release()
	r.clock.pass(40 * time.Millisecond)

	req := r.chat("m")
	req.Subset = screen.SplitSubset("10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000,10.0.0.4:8000")
	req.RequestID = "client-7"
	f := r.place(req)
	running := r.recordOf(f)
	golden(t, "record-running.json", anonymous(running))

	r.clock.pass(300 * time.Millisecond)
	f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: f.order[1].Destination, Attempts: 2, Details: viaUpstream})
	f.FirstByte(r.clock.read())
	r.clock.pass(time.Second)
	f.Finish(extproc.Outcome{
		Seen: extproc.SeenWhole,
		At:   r.clock.read(), Cause: extproc.Complete, RequestBytes: 60, ResponseBytes: 1234, ResponseSeen: true,
		Answer: response.Facts{Input: 20, Output: 5, Cached: -1},
	})
	ended := r.recordOf(f)
	golden(t, "record-ended.json", anonymous(ended))
}

func TestARecordOfARefusalSaysWhatRemovedWhom(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1, serving("a")), endpoint(2, serving("m"), notReady))
	_, refusal := r.decider.begin().Decide(r.chat("m"))
	rec, ok := r.ledger.Find(refusal.DecisionID)
	if !ok {
		t.Fatal("no record")
	}
	golden(t, "record-refused.json", anonymous(rec))
}

// Records are made in memory that other requests have used.
func TestARecordHoldsNothingOfTheOneBefore(t *testing.T) {
	line := func(before ...func(*rig)) string {
		r := newRig(t, "gateway: {fallbacks: 2}\n")
		used := new(scratch)
		r.decider.scratch.New = func() any { return used }
		r.update(endpoint(1), endpoint(2), endpoint(3))
		for _, f := range before {
			f(r)
		}
		r.update(endpoint(1), endpoint(2, notReady))
		r.publish("r1", load{1, -1, 0.5}, time.Second)
		f := r.place(r.chat("m"))
		defer f.Finish(extproc.Outcome{Cause: extproc.Complete})
		text, err := json.Marshal(anonymous(r.recordOf(f)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	after := line(func(r *rig) {
		for _, name := range []string{"r1", "r2"} {
			r.publish(name, load{2, 3, 0.25}, time.Second)
		}
		r.publish("r3", load{2, 3, 0.25}, time.Second, func(s *telemetry.Snapshot) { s.Profile = "another" })
		req := r.chat("m")
		req.Subset = screen.SplitSubset("10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000")
		req.RequestID = "another's"
		r.place(req).Finish(extproc.Outcome{Cause: extproc.Complete})
	}, func(r *rig) {
		if _, refusal := r.decider.begin().Decide(r.request("not JSON")); refusal == nil {
			t.Fatal("the request before was not refused")
		}
	})
	if alone := line(); after != alone {
		t.Errorf("after others\n%s\nalone\n%s", after, alone)
	}
}

// unstated is what is known of an answer that said nothing of itself.
var unstated = response.Facts{Input: -1, Output: -1, Cached: -1}

func TestTheEndOfARecordSaysHowItEnded(t *testing.T) {
	tests := []struct {
		name   string
		served *extproc.Served
		out    extproc.Outcome
		want   v1alpha1.Outcome
		ack    v1alpha1.Acknowledgement
	}{
		{
			name: "the client left before the response",
			out:  extproc.Outcome{Cause: extproc.ClientDisconnect, RequestBytes: 5, ResponseSeen: true, Answer: unstated},
			want: v1alpha1.Outcome{Cause: "client_disconnect", RequestBytes: 5, ResponseBytes: new(int64)},
			ack:  v1alpha1.Acknowledgement{Acted: "unreported"},
		},
		{
			name:   "the gateway's own answer",
			served: &extproc.Served{Status: 503, Address: "10.0.0.1:8000", Attempts: 1, Details: "no_healthy_upstream"},
			out:    extproc.Outcome{Cause: extproc.UpstreamError},
			want:   v1alpha1.Outcome{Cause: "upstream_error", Status: 503, Details: "no_healthy_upstream"},
			ack:    v1alpha1.Acknowledgement{Acted: "unreported", Attempts: 1},
		},
		{
			name:   "served outside the pool",
			served: &extproc.Served{Status: 200, Address: "10.9.9.9:80", Details: viaUpstream},
			out:    extproc.Outcome{Cause: extproc.Complete},
			want:   v1alpha1.Outcome{Cause: "complete", Status: 200},
			ack:    v1alpha1.Acknowledgement{Acted: "violated", ServedAddress: "10.9.9.9:80"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "")
			r.update(endpoint(1))
			f := r.place(r.chat("m"))
			if tt.served != nil {
				tt.served.At = r.clock.read()
				f.Served(*tt.served)
			}
			r.clock.pass(1500 * time.Millisecond)
			tt.out.At = r.clock.read()
			f.Finish(tt.out)
			rec := r.recordOf(f)
			tt.want.EndedAt, tt.want.Duration = epoch.Add(1500*time.Millisecond), 1.5
			tt.ack.RecommendedAt = rec.Acknowledgement.RecommendedAt
			if tt.served != nil {
				tt.ack.ActedAt = &epoch
			}
			got, _ := json.Marshal([]any{rec.Outcome, rec.Acknowledgement})
			want, _ := json.Marshal([]any{tt.want, tt.ack})
			if string(got) != string(want) {
				t.Errorf("record says\n%s, want\n%s", got, want)
			}
		})
	}
}

func TestARecordOfALargePoolSaysThatItCannotBeReplayed(t *testing.T) {
	r := newRig(t, "ledger: {candidates: 2}\n")
	r.update(endpoint(1), endpoint(2))
	f := r.place(r.chat("m"))
	if rec := r.recordOf(f); !rec.Replayable || len(rec.Candidates) != 2 {
		t.Errorf("2 members: replayable %t with %d candidates, want both", rec.Replayable, len(rec.Candidates))
	}
	f.Finish(extproc.Outcome{})
	r.update(endpoint(1), endpoint(2), endpoint(3))
	f = r.place(r.chat("m"))
	defer f.Finish(extproc.Outcome{})
	rec := r.recordOf(f)
	if rec.Replayable || len(rec.Candidates) != 0 || rec.Members != 3 || rec.Screened != 3 || rec.Pick == "" {
		t.Errorf("3 members: replayable %t, %d candidates, %d of %d screened, pick %q",
			rec.Replayable, len(rec.Candidates), rec.Screened, rec.Members, rec.Pick)
	}
	if want := "ledger.candidates: 2"; !strings.Contains(rec.NotReplayable, want) {
		t.Errorf("reason %q does not name %s", rec.NotReplayable, want)
	}
}

// replay places again from a record alone.
func replay(rec *v1alpha1.Decision, plan *placement.Plan, fallbacks int) (order []string, rung string, err error) {
	var names []string
	ev := &placement.Evidence{}
	var kept []*v1alpha1.Candidate
	for i := range rec.Candidates {
		if rec.Candidates[i].RemovedBy == "" {
			kept = append(kept, &rec.Candidates[i])
			names = append(names, rec.Candidates[i].Replica)
		}
	}
	states := map[string]telemetry.State{}
	for s := telemetry.Missing; s <= telemetry.Invalid; s++ {
		states[s.String()] = s
	}
	ev.Reset(len(kept))
	for row, c := range kept {
		ev.Hash[row] = xxhash.Sum64String(c.Replica)
		ev.Last[row], ev.InFlight[row], ev.Pending[row] = c.Last, c.InFlight, c.Pending
		ev.Latency[row] = math.NaN()
		if c.Latency != nil {
			ev.Latency[row] = *c.Latency
		}
		for i, f := range placement.LoadFields {
			ev.Load[i].Value[row], ev.Load[i].State[row] = math.NaN(), telemetry.Missing
			for at, reading := range c.Readings {
				if rec.Fields[at].Field != f.String() {
					continue
				}
				state, ok := states[reading.State]
				if !ok {
					return nil, "", fmt.Errorf("state %q", reading.State)
				}
				ev.Load[i].State[row] = state
				if reading.Value != nil {
					ev.Load[i].Value[row] = *reading.Value
				}
			}
		}
	}
	key, err := strconv.ParseUint(rec.Key, 16, 64)
	if err != nil {
		return nil, "", err
	}
	var res placement.Result
	plan.Place(ev, key, fallbacks, &res)
	for _, row := range res.Ranked {
		order = append(order, names[row])
	}
	return order, res.Rung.String(), nil
}

// Placement is a function of what the record holds: from the record alone comes
// the same order, bit for bit, whatever the pool was like.
func TestARecordIsEnoughToDecideAgain(t *testing.T) {
	rungs := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		quorum := rapid.SampledFrom([]string{"0.5", "0.01", "1", "0.34"}).Draw(rt, "quorum")
		fallbacks := rapid.IntRange(0, 4).Draw(rt, "fallbacks")
		r := newRig(t, fmt.Sprintf("gateway: {fallbacks: %d}\nplacement: {quorum: %s}\n", fallbacks, quorum))
		n := rapid.IntRange(1, 12).Draw(rt, "endpoints")
		specs := make([]pool.Spec, n)
		for i := range specs {
			specs[i] = endpoint(i+1, func(s *pool.Spec) {
				s.Ready = rapid.IntRange(0, 9).Draw(rt, "ready") > 0
				if rapid.IntRange(0, 9).Draw(rt, "other model") == 0 {
					s.ServedModels = []string{"other"}
				}
			})
		}
		r.update(specs...)
		number := rapid.OneOf(rapid.Float64Range(0, 50), rapid.SampledFrom([]float64{0, 1, 2, -1, 1e300, 5e-324}))
		blind := rapid.IntRange(0, 4).Draw(rt, "blind") == 0
		for i := range specs {
			live := r.live(specs[i].Name)
			for range rapid.IntRange(0, 3).Draw(rt, "units before") {
				live.Take(r.clock.read())
			}
			if !blind && rapid.IntRange(0, 4).Draw(rt, "scraped") > 0 {
				r.publish(specs[i].Name, load{
					number.Draw(rt, "queue"), number.Draw(rt, "active"), rapid.Float64Range(-0.3, 1).Draw(rt, "kv"),
				}, rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(rt, "ttl"), func(s *telemetry.Snapshot) {
					if rapid.IntRange(0, 9).Draw(rt, "invalid") == 0 {
						s.Readings[telemetry.QueueDepth] = telemetry.Reading{Recorded: telemetry.Invalid, Value: math.NaN()}
					}
				})
			}
			for range rapid.IntRange(0, 2).Draw(rt, "units since") {
				live.Take(r.clock.read())
			}
			if rapid.Bool().Draw(rt, "observed") && !blind {
				live.Observe(time.Duration(rapid.Int64Range(0, 1e10).Draw(rt, "ttfb")), r.clock.read())
			}
			if rapid.IntRange(0, 5).Draw(rt, "refused") == 0 {
				live.Refused()
			}
		}
		r.clock.pass(rapid.SampledFrom([]time.Duration{0, 1500 * time.Millisecond, 59 * time.Second, 61 * time.Second}).Draw(rt, "later"))

		d, refusal := r.decider.begin().Decide(r.chat("m"))
		if refusal != nil {
			rungs["refuse"]++
			return
		}
		f := d.(*inFlight)
		rec := r.recordOf(f)
		order, rung, err := replay(rec, r.decider.active.Load().plan, fallbacks)
		if err != nil {
			rt.Fatal(err)
		}
		if want := append([]string{rec.Pick}, rec.Fallbacks...); fmt.Sprint(order) != fmt.Sprint(want) || rung != rec.Rung {
			rt.Fatalf("replayed as %s %v, was %s %v\n%+v", rung, order, rec.Rung, want, rec)
		}
		rungs[rung]++
	})
	for _, rung := range []string{"full", "partial", "local", "spread", "refuse"} {
		if rungs[rung] == 0 && !t.Failed() {
			t.Logf("no case reached rung %s", rung)
		}
	}
}
