package console

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with its file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
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
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update to accept):\n%s", path, got)
	}
}

var at = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)

func ptr[T any](v T) *T { return &v }

// fresh is a reading of a second ago that scorers read as estimate.
func fresh(value, estimate float64) v1alpha1.FieldEvidence {
	r := v1alpha1.FieldEvidence{State: "fresh", Value: &value, AgeMillis: ptr(int64(1000))}
	if estimate != value {
		r.Estimate = &estimate
	}
	return r
}

// decision is a decision of the full rung over three replicas and two that
// screening removed, which is still running.
func decision() *v1alpha1.Decision {
	return &v1alpha1.Decision{
		ID: "01978f2a-0000-7000-8000-000000000001", Time: at, Pool: "local/demo", Path: "native",
		Intent:  v1alpha1.IntentFacts{Source: "none", Model: "llama"},
		Request: v1alpha1.RequestFacts{API: "chat_completions", Stream: true, BodyBytes: 512},
		Rung:    "full",
		Fields:  []v1alpha1.FieldUse{{Field: "queueDepth", Use: "full"}, {Field: "kvCacheUtilization", Use: "full"}},
		Scorers: []v1alpha1.ScorerUse{{Scorer: "queue-depth", Weight: 2}, {Scorer: "kv-cache-utilization", Weight: 1}},
		Members: 5, Screened: 3, ScreenedOut: map[string]int{"health": 1, "served_model": 1},
		Candidates: []v1alpha1.Candidate{
			{Replica: "r1", Rank: 2, Total: 1.6, InFlight: 2, Pending: 1, Readings: []v1alpha1.FieldEvidence{
				fresh(1, 2), fresh(0.4, 0.4)}, Scores: []*float64{ptr(0.5), ptr(0.6)}},
			{Replica: "r2", RemovedBy: "health"},
			{Replica: "r3", Total: 0.9, Last: true, Readings: []v1alpha1.FieldEvidence{
				fresh(4, 4), fresh(0.1, 0.1)}, Scores: []*float64{ptr(0.0), ptr(0.9)}},
			{Replica: "r4", Rank: 1, Total: 2.5, Readings: []v1alpha1.FieldEvidence{
				fresh(0, 0), fresh(0.5, 0.5)}, Scores: []*float64{ptr(1.0), ptr(0.5)}},
			{Replica: "r5", RemovedBy: "served_model"},
		},
		Pick: "r4", Fallbacks: []string{"r1"}, Replayable: true,
		Versions: v1alpha1.Versions{Policy: "sha256:0123456789ab"},
	}
}

// ended is decision with its end.
func ended(acted, served string, o v1alpha1.Outcome) *v1alpha1.Decision {
	d := decision()
	d.Acknowledgement = v1alpha1.Acknowledgement{Acted: acted, Served: served, Attempts: 1}
	d.Outcome = &o
	return d
}

func TestADecisionIsToldAsAPersonWould(t *testing.T) {
	complete := v1alpha1.Outcome{Status: 200, Cause: "complete", TTFT: ptr(0.0421), Duration: 1.5, ResponseBytes: ptr(int64(2048))}
	tests := map[string]func() *v1alpha1.Decision{
		"running": decision,
		"full":    func() *v1alpha1.Decision { return ended("confirmed", "r4", complete) },
		"partial": func() *v1alpha1.Decision {
			d := ended("confirmed", "r4", complete)
			d.Rung, d.Fields[0].Use, d.Fields[1].Use = "partial", "partial", "dropped"
			d.Candidates[0].Readings = []v1alpha1.FieldEvidence{
				{State: "missing", Estimate: ptr(2.0)}, {State: "invalid"},
			}
			d.Candidates[2].Readings[0] = v1alpha1.FieldEvidence{
				State: "stale", Value: ptr(9.0), AgeMillis: ptr(int64(61500)), Estimate: ptr(2.0),
			}
			for i := range d.Candidates {
				if s := d.Candidates[i].Scores; s != nil {
					s[1] = nil
				}
			}
			return d
		},
		"local": func() *v1alpha1.Decision {
			d := ended("confirmed", "r4", complete)
			d.Rung, d.Scorers, d.Fields[0].Use, d.Fields[1].Use = "local", nil, "dropped", "dropped"
			for i, total := range []float64{1.0 / 3, 0, 0.25, 1, 0} {
				d.Candidates[i].Total, d.Candidates[i].Scores, d.Candidates[i].Last = total, nil, false
				for j := range d.Candidates[i].Readings {
					d.Candidates[i].Readings[j] = v1alpha1.FieldEvidence{State: "missing"}
				}
			}
			return d
		},
		"spread": func() *v1alpha1.Decision {
			d := ended("unreported", "", v1alpha1.Outcome{Cause: "client_disconnect", Duration: 0.25})
			d.Rung, d.Fields, d.Scorers, d.Request.Stream, d.Intent.Model = "spread", nil, nil, false, ""
			d.Request.Unread = "content_encoding"
			for i := range d.Candidates {
				c := &d.Candidates[i]
				c.Total, c.Scores, c.Readings, c.InFlight, c.Pending = 0, nil, nil, 0, 0
			}
			return d
		},
		"refused": func() *v1alpha1.Decision {
			d := decision()
			d.Rung, d.Pick, d.Fallbacks, d.Screened, d.Fields = "refuse", "", nil, 0, nil
			d.ScreenedOut = map[string]int{"health": 4, "subset": 1}
			for i := range d.Candidates {
				d.Candidates[i] = v1alpha1.Candidate{Replica: d.Candidates[i].Replica, RemovedBy: "health"}
			}
			d.Candidates[4].RemovedBy = "subset"
			d.Refusal = &v1alpha1.Refusal{Status: 503, Reason: "unhealthy", Message: "every endpoint is not ready"}
			return d
		},
		"requirements": func() *v1alpha1.Decision {
			d := decision()
			tenants := v1alpha1.Requirement{Class: v1alpha1.Authorization, Key: "berth.dev/tenants", Operator: v1alpha1.In, Values: []string{"a", "b"}}
			d.Intent = v1alpha1.IntentFacts{
				Source: "signed", IntentID: "i-7", Issuer: "router", KeyID: "2026-1", LogicalModel: "fast", Models: []string{"llama", "llama-lora"}, Model: "llama",
				Requirements:  []v1alpha1.Requirement{tenants, {Class: v1alpha1.Safety, Key: "unfiltered", Operator: v1alpha1.DoesNotExist}},
				ContextTokens: 9000, Ignored: []string{"colour"},
			}
			d.ScreenedOut = map[string]int{"authorization": 2, "context": 1, "quarantine": 1}
			d.Members, d.Screened = 6, 2
			limit := int64(8192)
			d.Candidates[0].Quarantined = true
			d.Candidates[1] = v1alpha1.Candidate{Replica: "r2", RemovedBy: "authorization", Rule: ptr(0),
				Attribute: &v1alpha1.AttributeFacts{State: "present", Items: []string{"c", "d"}, More: 7}}
			d.Candidates[2] = v1alpha1.Candidate{Replica: "r3", RemovedBy: "context", ContextLimit: &limit}
			d.Candidates[4] = v1alpha1.Candidate{Replica: "r5", RemovedBy: "authorization", Rule: ptr(0), Attribute: &v1alpha1.AttributeFacts{State: "absent"}}
			d.Candidates = append(d.Candidates, v1alpha1.Candidate{Replica: "r6", RemovedBy: "quarantine"})
			return d
		},
		"refused-early": func() *v1alpha1.Decision {
			d := decision()
			d.Rung, d.Pick, d.Fallbacks, d.Screened, d.Fields, d.Scorers, d.Candidates = "refuse", "", nil, 0, nil, nil, nil
			d.ScreenedOut = nil
			d.Request.Unread = "refused"
			d.Refusal = &v1alpha1.Refusal{Status: 413, Reason: "body_too_large", Message: "the request body is larger than 1024 bytes"}
			return d
		},
		"overridden": func() *v1alpha1.Decision {
			d := ended("overridden", "r1", complete)
			d.Acknowledgement.Attempts = 2
			return d
		},
		"violated": func() *v1alpha1.Decision {
			d := ended("violated", "", v1alpha1.Outcome{Cause: "served_outside", Status: 200, Duration: 0.5})
			d.Acknowledgement.ServedAddress = "10.9.9.9:80"
			return d
		},
		"gateway-answered": func() *v1alpha1.Decision {
			return ended("unreported", "", v1alpha1.Outcome{
				Cause: "upstream_error", Status: 503, Details: "no_healthy_upstream", Duration: 0.001, ResponseBytes: ptr(int64(19)),
			})
		},
		"error-inside": func() *v1alpha1.Decision {
			o := complete
			o.Cause, o.ErrorCode = "upstream_error", 503
			return ended("confirmed", "r4", o)
		},
		"unseen-end": func() *v1alpha1.Decision {
			return ended("confirmed", "r4", v1alpha1.Outcome{Status: 200, Cause: "unseen", Seen: "headers", Duration: 0.05})
		},
		"unseen-response": func() *v1alpha1.Decision {
			return ended("unreported", "", v1alpha1.Outcome{Cause: "unseen", Seen: "nothing", Duration: 0.001})
		},
		"unseen-body": func() *v1alpha1.Decision {
			return ended("confirmed", "r4", v1alpha1.Outcome{Status: 200, Cause: "complete", Seen: "end", Duration: 1.5})
		},
		"usage": func() *v1alpha1.Decision {
			o := complete
			o.InputTokens, o.OutputTokens, o.CachedTokens = ptr(int64(900)), ptr(int64(64)), ptr(int64(512))
			return ended("confirmed", "r4", o)
		},
		"only-one-left": func() *v1alpha1.Decision {
			d := decision()
			d.Candidates = d.Candidates[3:4]
			d.Members, d.Screened, d.ScreenedOut, d.Fallbacks = 1, 1, nil, nil
			return d
		},
		"pool-too-large": func() *v1alpha1.Decision {
			d := decision()
			d.Candidates, d.Replayable = nil, false
			d.Members, d.Screened = 900, 898
			d.NotReplayable = "the pool has 900 members, more than the record may list (ledger.candidates: 512)"
			return d
		},
		"all-others-last": func() *v1alpha1.Decision {
			d := decision()
			d.Candidates[0].Last, d.Fallbacks, d.Candidates[0].Rank = true, nil, 0
			return d
		},
	}
	for name, make := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Explain(&out, make()); err != nil {
				t.Fatal(err)
			}
			golden(t, "explain-"+name+".txt", out.Bytes())
		})
	}
}

func observation(name string, change func(*v1alpha1.Observation)) v1alpha1.Observation {
	reading := func(v float64) v1alpha1.Reading {
		return v1alpha1.Reading{Support: "supported", State: "fresh", Value: v, ObservedAt: ptr(at.Add(-250 * time.Millisecond))}
	}
	o := v1alpha1.Observation{
		Replica: v1alpha1.Replica{Name: name}, Engine: "vllm", Order: "normal", InFlight: 3,
		Fields: map[string]v1alpha1.Reading{
			"queueDepth": reading(4), "activeRequests": reading(17), "kvCacheUtilization": reading(0.375),
		},
	}
	if change != nil {
		change(&o)
	}
	return o
}

func TestTheFleetIsATable(t *testing.T) {
	replicas := []v1alpha1.Observation{
		observation("all-fresh", nil),
		observation("one-stale", func(o *v1alpha1.Observation) {
			r := o.Fields["queueDepth"]
			r.State, r.ObservedAt = "stale", ptr(at.Add(-time.Minute))
			o.Fields["queueDepth"] = r
		}),
		observation("one-invalid", func(o *v1alpha1.Observation) {
			o.Declared = "sglang"
			o.Fields["kvCacheUtilization"] = v1alpha1.Reading{State: "invalid"}
		}),
		observation("unreachable", func(o *v1alpha1.Observation) {
			o.Order, o.InFlight, o.ScrapeError = "last", 0, "connection refused"
			o.Fields = map[string]v1alpha1.Reading{
				"queueDepth": {State: "missing"}, "activeRequests": {State: "missing"}, "kvCacheUtilization": {State: "missing"},
			}
		}),
		observation("failing", func(o *v1alpha1.Observation) { o.Excluded = "quarantined" }),
	}
	decisions := []*v1alpha1.Decision{
		{Pick: "all-fresh"},
		{Rung: "refuse"},
		{Pick: "unreachable", Acknowledgement: v1alpha1.Acknowledgement{Served: "one-stale"}, Outcome: &v1alpha1.Outcome{TTFT: ptr(0.5)}},
	}
	for i := range 100 {
		decisions = append(decisions, &v1alpha1.Decision{
			Pick: "one-stale", Acknowledgement: v1alpha1.Acknowledgement{Served: "all-fresh"},
			Outcome: &v1alpha1.Outcome{TTFT: ptr(float64(i+1) / 1000)},
		})
	}
	var out bytes.Buffer
	if err := Fleet(&out, at, replicas, decisions); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet.txt", out.Bytes())
	out.Reset()
	if err := Fleet(&out, at, nil, nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet-empty.txt", out.Bytes())
}

// Each legend stands below a table that has what it explains, and below no other.
func TestOnlyWhatATableHasIsExplainedBelowIt(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Observation)
		want   string
	}{
		"nothing special": {nil, ""},
		"a stale value": {func(o *v1alpha1.Observation) {
			r := o.Fields["kvCacheUtilization"]
			r.State = v1alpha1.Stale
			o.Fields["kvCacheUtilization"] = r
		}, "(n): stale, what its page said last; picks go by an estimate, or without\n"},
		"stale without a value to show": {func(o *v1alpha1.Observation) {
			o.Fields["queueDepth"] = v1alpha1.Reading{State: v1alpha1.Stale}
		}, ""},
		"last": {func(o *v1alpha1.Observation) { o.Order = "last" },
			"last: has not answered yet, or refused its last connection; is picked after all others\n"},
		"quarantined, which is more than last": {func(o *v1alpha1.Observation) { o.Order, o.Excluded = "last", "quarantined" },
			"quarantined: failed several requests in a row; one tries it now and then (screening.quarantine.probeAfter) until one goes well\n"},
		"not ready, which says itself": {func(o *v1alpha1.Observation) { o.Excluded = "not_ready" }, ""},
	} {
		var out bytes.Buffer
		if err := Fleet(&out, at, []v1alpha1.Observation{observation("r1", tc.change)}, nil); err != nil {
			t.Fatal(err)
		}
		if below := strings.Join(strings.SplitAfter(out.String(), "\n")[2:], ""); below != tc.want {
			t.Errorf("%s: %q is below the table, want %q", name, below, tc.want)
		}
	}
}

func TestQuantilesAreNearestRanks(t *testing.T) {
	tests := []struct {
		samples []float64
		q       float64
		want    string
	}{
		{nil, 0.5, "-"},
		{[]float64{0.003}, 0.5, "3ms"},
		{[]float64{0.003}, 0.99, "3ms"},
		{[]float64{0.002, 0.001}, 0.5, "1ms"},
		{[]float64{0.003, 0.001, 0.002}, 0.5, "2ms"},
		{[]float64{0.003, 0.001, 0.002}, 0.99, "3ms"},
		{[]float64{0.003, 0.001, 0.002}, 0, "1ms"},
	}
	for _, tt := range tests {
		if got := quantile(tt.samples, tt.q); got != tt.want {
			t.Errorf("quantile %v of %v: %s, want %s", tt.q, tt.samples, got, tt.want)
		}
	}
}

// full is a writer that has no room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAnErrorOfTheWriterIsReturned(t *testing.T) {
	if err := Explain(full{}, decision()); !errors.Is(err, errFull) {
		t.Errorf("Explain: %v", err)
	}
	if err := Fleet(full{}, at, nil, nil); !errors.Is(err, errFull) {
		t.Errorf("Fleet: %v", err)
	}
}
