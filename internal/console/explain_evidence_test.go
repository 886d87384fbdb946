package console

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// missingEvidence, staleEvidence, invalidEvidence and doubtedEvidence are readings that have a reason.
func missingEvidence(support, reason string) v1alpha1.FieldEvidence {
	return v1alpha1.FieldEvidence{State: "missing", Support: support, Reason: reason}
}

func staleEvidence(reason string) v1alpha1.FieldEvidence {
	return v1alpha1.FieldEvidence{State: "stale", Value: ptr(3.0), AgeMillis: ptr(int64(9000)), Reason: reason}
}

func invalidEvidence(reason string) v1alpha1.FieldEvidence {
	return v1alpha1.FieldEvidence{State: "invalid", Reason: reason}
}

func doubtedEvidence(reason string) v1alpha1.FieldEvidence {
	r := fresh(3, 3)
	r.Reason = reason
	return r
}

// evidenceTold is what is said of the evidence of a decision over replicas r1, r2, ... with the
// given readings.
func evidenceTold(t *testing.T, fields []string, replicas ...[]v1alpha1.FieldEvidence) string {
	t.Helper()
	d := &v1alpha1.Decision{}
	for _, f := range fields {
		d.Fields = append(d.Fields, v1alpha1.FieldUse{Field: f, Use: "partial"})
	}
	for i, readings := range replicas {
		d.Candidates = append(d.Candidates,
			v1alpha1.Candidate{Replica: fmt.Sprintf("r%d", i+1), Readings: readings},
			v1alpha1.Candidate{Replica: fmt.Sprintf("gone%d", i+1), RemovedBy: "health"})
	}
	var out bytes.Buffer
	p := &printer{w: &out}
	explainEvidence(p, d)
	if p.err != nil {
		t.Fatal(p.err)
	}
	return out.String()
}

func TestEachCauseOfMissingEvidenceIsALine(t *testing.T) {
	const (
		frozen12 = "frozen: no value on the page moved for 12s although it says that the engine works"
		frozen15 = "frozen: no value on the page moved for 15s although it says that the engine works"
	)
	good := fresh(1, 1)
	one := func(r v1alpha1.FieldEvidence) []v1alpha1.FieldEvidence { return []v1alpha1.FieldEvidence{r} }
	queue := []string{"queueDepth"}
	load := []string{"queueDepth", "activeRequests", "kvCacheUtilization"}
	for _, tt := range []struct {
		name     string
		fields   []string
		replicas [][]v1alpha1.FieldEvidence
		want     string
	}{
		{"everything is fresh", queue, [][]v1alpha1.FieldEvidence{one(good), one(good)}, ""},
		{"no field is weighted", nil, [][]v1alpha1.FieldEvidence{nil, nil}, ""},
		{"several replicas share a cause", queue, [][]v1alpha1.FieldEvidence{
			one(missingEvidence("", "status_404")), one(good), one(missingEvidence("", "status_404")), one(missingEvidence("", "status_404")), one(good)},
			"  queueDepth missing on 3 of 5: status_404, there is no page at the path of the metrics (r1, r3, r4)\n"},
		{"several fields share a cause", load, [][]v1alpha1.FieldEvidence{
			{staleEvidence("timeout"), staleEvidence("timeout"), staleEvidence("timeout")}, {good, good, good}},
			"  queueDepth, activeRequests, kvCacheUtilization stale on 1 of 2: timeout, no whole page within the time limit (r1)\n"},
		{"fields share a cause at other replicas", load[:2], [][]v1alpha1.FieldEvidence{
			{staleEvidence("expired"), staleEvidence("expired")}, {good, staleEvidence("expired")}, {good, good}},
			"  activeRequests stale on 2 of 3: expired (r1, r2)\n" +
				"  queueDepth stale on 1 of 3: expired (r1)\n"},
		{"causes of most replicas come first", queue, [][]v1alpha1.FieldEvidence{
			one(missingEvidence("unsupported", "the engine has no family of it")), one(staleEvidence("status_503")), one(staleEvidence("status_503")),
			one(invalidEvidence("value -1: want 0 or more"))},
			"  queueDepth stale on 2 of 4: status_503, the page answers with status 503 (r2, r3)\n" +
				"  queueDepth missing, unsupported on 1 of 4: the engine has no family of it (r1)\n" +
				"  queueDepth invalid on 1 of 4: value -1: want 0 or more (r4)\n"},
		{"a field that is switched off", queue, [][]v1alpha1.FieldEvidence{
			one(missingEvidence("disabled", "--disable-log-stats is set")), one(good)},
			"  queueDepth missing, disabled on 1 of 2: --disable-log-stats is set (r1)\n"},
		{"a family that the page does not show", queue, [][]v1alpha1.FieldEvidence{
			one(missingEvidence("supported", "vllm:num_requests_waiting is not on the page")), one(good)},
			"  queueDepth missing on 1 of 2: vllm:num_requests_waiting is not on the page (r1)\n"},
		{"doubt", queue, [][]v1alpha1.FieldEvidence{one(doubtedEvidence("half of the requests are not counted")), one(good)},
			"  queueDepth of lower quality on 1 of 2: half of the requests are not counted (r1)\n"},
		{"frozen", queue, [][]v1alpha1.FieldEvidence{one(staleEvidence(frozen12)), one(good), one(staleEvidence(frozen12))},
			"  queueDepth stale on 2 of 3: " + frozen12 + " (r1, r3)\n"},
		{"frozen for one time and another", queue, [][]v1alpha1.FieldEvidence{one(staleEvidence(frozen12)), one(good), one(staleEvidence(frozen15))},
			"  queueDepth stale on 2 of 3: frozen: no value on the page moved for ... although it says that the engine works (r1, r3)\n"},
		{"two statuses are two causes", queue, [][]v1alpha1.FieldEvidence{one(missingEvidence("", "status_404")), one(missingEvidence("", "status_401"))},
			"  queueDepth missing on 1 of 2: status_404, there is no page at the path of the metrics (r1)\n" +
				"  queueDepth missing on 1 of 2: status_401, the page asks for credentials (r2)\n"},
		{"all of them", queue, [][]v1alpha1.FieldEvidence{one(missingEvidence("", "not read")), one(missingEvidence("", "not read"))},
			"  queueDepth missing on all 2: not read\n"},
		{"the only one", queue, [][]v1alpha1.FieldEvidence{one(missingEvidence("", "refused"))},
			"  queueDepth missing: refused, nothing listens at the address and port\n"},
		{"a record without reasons", queue, [][]v1alpha1.FieldEvidence{one(missingEvidence("", "")), one(good)},
			"  queueDepth missing on 1 of 2 (r1)\n"},
		{"a record that is not whole", load[:2], [][]v1alpha1.FieldEvidence{one(missingEvidence("", "reset")), nil},
			"  queueDepth missing on 1 of 2: reset, the connection was closed before an answer (r1)\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := evidenceTold(t, tt.fields, tt.replicas...); got != tt.want {
				t.Errorf("told\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestNothingIsReadWhereThePolicySaysSo(t *testing.T) {
	d := decision()
	d.Telemetry = "none"
	for i := range d.Candidates {
		for f := range d.Candidates[i].Readings {
			d.Candidates[i].Readings[f] = missingEvidence("", "")
		}
	}
	d.Candidates[0].Readings[0] = staleEvidence("expired")
	var out bytes.Buffer
	p := &printer{w: &out}
	explainEvidence(p, d)
	want := "  kvCacheUtilization missing on all 3: telemetry.mode is none\n" +
		"  queueDepth missing on 2 of 3: telemetry.mode is none (r3, r4)\n" +
		"  queueDepth stale on 1 of 3: expired (r1)\n"
	if p.err != nil || out.String() != want {
		t.Errorf("told\n%s\nwant\n%s", out.String(), want)
	}
}

func TestCausesAreBounded(t *testing.T) {
	t.Run("replicas of one cause", func(t *testing.T) {
		replicas := [][]v1alpha1.FieldEvidence{{fresh(1, 1)}}
		for range 500 {
			replicas = append(replicas, []v1alpha1.FieldEvidence{missingEvidence("", "status_404")})
		}
		want := "  queueDepth missing on 500 of 501: status_404, there is no page at the path of the metrics (r2, r3, r4, r5 and 496 more)\n"
		if got := evidenceTold(t, []string{"queueDepth"}, replicas...); got != want {
			t.Errorf("told\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("causes", func(t *testing.T) {
		var replicas [][]v1alpha1.FieldEvidence
		for i := range 100 {
			replicas = append(replicas, []v1alpha1.FieldEvidence{missingEvidence("", fmt.Sprintf("status_%d", 500+i))})
		}
		got := strings.Split(evidenceTold(t, []string{"queueDepth"}, replicas...), "\n")
		if len(got) != 10 || got[7] != "  queueDepth missing on 1 of 100: status_507, the page answers with status 507 (r8)" || got[8] != "  and 92 other causes" {
			t.Errorf("told %d lines, the last %q", len(got), got[max(0, len(got)-3):])
		}
	})
	t.Run("a reason", func(t *testing.T) {
		got := evidenceTold(t, []string{"queueDepth"}, []v1alpha1.FieldEvidence{missingEvidence("", strings.Repeat("é", 1<<20))})
		if want := "  queueDepth missing: " + strings.Repeat("é", 200) + "...\n"; got != want {
			t.Errorf("told %d bytes, want %d", len(got), len(want))
		}
	})
}

func TestExcludedReplicasAreListedUpToABound(t *testing.T) {
	d := decision()
	d.Intent.Requirements = []v1alpha1.Requirement{{Class: v1alpha1.Safety, Key: "k", Operator: v1alpha1.Exists}}
	d.Candidates, d.ScreenedOut = nil, map[string]int{"health": 20, "safety": 19}
	for i := range 20 {
		d.Candidates = append(d.Candidates, v1alpha1.Candidate{Replica: fmt.Sprintf("h%d", i+1), RemovedBy: "health"})
	}
	for i := range 19 {
		d.Candidates = append(d.Candidates, v1alpha1.Candidate{
			Replica: fmt.Sprintf("s%d", i+1), RemovedBy: "safety", Rule: ptr(0), Attribute: &v1alpha1.AttributeFacts{State: "absent"},
		})
	}
	var out bytes.Buffer
	if err := Explain(&out, d); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"  19 excluded (does not meet a safety requirement)",
		"    s1: k Exists; it has none", "    s2: k Exists; it has none", "    s3: k Exists; it has none", "    s4: k Exists; it has none",
		"    s5: k Exists; it has none", "    s6: k Exists; it has none", "    s7: k Exists; it has none", "    s8: k Exists; it has none",
		"    s9: k Exists; it has none", "    s10: k Exists; it has none", "    s11: k Exists; it has none", "    s12: k Exists; it has none",
		"    s13: k Exists; it has none", "    s14: k Exists; it has none", "    s15: k Exists; it has none", "    s16: k Exists; it has none",
		"    and 3 more",
		"  20 excluded (not ready, terminating, asleep or unhealthy): h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h12, h13, h14, h15, h16 and 4 more",
	}
	lines := strings.Split(out.String(), "\n")
	if from := slices.Index(lines, want[0]); from < 0 || !slices.Equal(lines[from:min(len(lines), from+len(want))], want) {
		t.Errorf("told\n%s\nwant in it\n%s", out.String(), strings.Join(want, "\n"))
	}
}

func TestAnExcludedReplicaHasWhatIsKnownOfIt(t *testing.T) {
	for _, tt := range []struct {
		has  *v1alpha1.AttributeFacts
		want string
	}{
		{&v1alpha1.AttributeFacts{State: "absent"}, "it has none"},
		{&v1alpha1.AttributeFacts{State: "present"}, "it has []"},
		{&v1alpha1.AttributeFacts{State: "present", Items: []string{"a", "b"}, More: 2}, "it has [a, b] and 2 more"},
		{&v1alpha1.AttributeFacts{State: "contradicted"}, "it has two that contradict each other"},
		{&v1alpha1.AttributeFacts{State: "unknown"}, "what it has is not known: its engine has not been asked yet"},
		{nil, "what it has was another when it was excluded"},
	} {
		if got := describeAttribute(tt.has); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.has, got, tt.want)
		}
	}
}

func TestWhatOtherChannelsBroughtIsTold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		intent v1alpha1.IntentFacts
		want   string
	}{
		{"nothing", v1alpha1.IntentFacts{Source: "none"}, ""},
		{"a signed header beside metadata", v1alpha1.IntentFacts{Source: "metadata", Outranked: []string{"signed"}},
			"  intent: by the gateway's metadata\n    not read, since what was is trusted more: a signed header\n"},
		{"all of them", v1alpha1.IntentFacts{Source: "metadata", Outranked: []string{"signed", "headers"}},
			"  intent: by the gateway's metadata\n    not read, since what was is trusted more: a signed header, plain headers\n"},
		{"a signed header whose channel is off", v1alpha1.IntentFacts{Source: "none", Untrusted: []string{"x-berth-intent"}},
			"    not read, since their channels are switched off: x-berth-intent\n"},
		{"a channel that this version does not know", v1alpha1.IntentFacts{Source: "mail", Outranked: []string{"fax"}},
			"  intent: by mail\n    not read, since what was is trusted more: fax\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			p := &printer{w: &out}
			explainIntent(p, &tt.intent)
			if p.err != nil || out.String() != tt.want {
				t.Errorf("told\n%s\nwant\n%s", out.String(), tt.want)
			}
		})
	}
}
