package host

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// because gives a reading its reasons.
func because(r telemetry.Reading, reasons ...string) telemetry.Reading {
	r.Detail = &telemetry.Detail{Reasons: reasons}
	return r
}

// queued publishes a page of which queueDepth is as given, and the rest good.
func (r *rig) queued(name string, ttl time.Duration, reading telemetry.Reading) {
	r.publish(name, load{1, 2, 0.5}, ttl, func(s *telemetry.Snapshot) {
		if reading.Recorded == telemetry.Fresh && ttl > 0 {
			reading.ExpiresAt = s.ScrapedAt.Add(ttl)
		}
		reading.ObservedAt = s.ScrapedAt
		s.Readings[telemetry.QueueDepth] = reading
	})
}

func TestARecordSaysWhyAReadingWasNotFresh(t *testing.T) {
	const frozen = "frozen: no value on the page moved for 12s although it says that the engine works"
	fresh := telemetry.Reading{Value: 3, Recorded: telemetry.Fresh, Quality: 1, Support: telemetry.Supported}
	doubtful, stale := fresh, fresh
	doubtful.Quality = 0.5
	stale.Recorded, stale.Quality = telemetry.Stale, 0.1
	missing := func(s telemetry.Support) telemetry.Reading { return telemetry.Reading{Support: s} }
	for _, tt := range []struct {
		name   string
		policy string
		// know is what happens before the decision.
		know func(*rig)
		want v1alpha1.FieldEvidence
		// telemetry is what the record says of it as a whole.
		telemetry string
	}{
		{name: "fresh", know: func(r *rig) { r.queued("r1", time.Minute, fresh) }, want: v1alpha1.FieldEvidence{State: "fresh"}},
		{name: "fresh, and what its source says of itself", know: func(r *rig) { r.queued("r1", time.Minute, because(fresh, "of the scheduler alone")) },
			want: v1alpha1.FieldEvidence{State: "fresh"}},
		{name: "fresh, and the last scrape failed", know: func(r *rig) {
			r.queued("r1", time.Minute, fresh)
			r.live("r1").ScrapeFailed("timeout")
		}, want: v1alpha1.FieldEvidence{State: "fresh"}},
		{name: "of lower quality: what speaks against it comes last", know: func(r *rig) {
			r.queued("r1", time.Minute, because(doubtful, "nearly the same", "no value on the page moved for 4s while requests of this picker were there"))
		}, want: v1alpha1.FieldEvidence{State: "fresh", Reason: "no value on the page moved for 4s while requests of this picker were there"}},
		{name: "of lower quality without a word", know: func(r *rig) { r.queued("r1", time.Minute, doubtful) }, want: v1alpha1.FieldEvidence{State: "fresh"}},

		{name: "expired", know: func(r *rig) {
			r.queued("r1", time.Second, because(fresh, "of the scheduler alone"))
			r.clock.pass(time.Second)
		}, want: v1alpha1.FieldEvidence{State: "stale", Reason: "expired"}},
		{name: "expired, since scrapes fail", know: func(r *rig) {
			r.queued("r1", time.Second, doubtful)
			r.clock.pass(2 * time.Second)
			r.live("r1").ScrapeFailed("status_500")
		}, want: v1alpha1.FieldEvidence{State: "stale", Reason: "status_500"}},
		{name: "frozen", know: func(r *rig) { r.queued("r1", time.Minute, because(stale, "nearly the same", frozen)) },
			want: v1alpha1.FieldEvidence{State: "stale", Reason: frozen}},
		{name: "frozen, and the last scrape failed", know: func(r *rig) {
			r.queued("r1", time.Minute, because(stale, frozen))
			r.live("r1").ScrapeFailed("timeout")
		}, want: v1alpha1.FieldEvidence{State: "stale", Reason: frozen}},

		{name: "impossible", know: func(r *rig) {
			r.queued("r1", time.Minute, because(telemetry.Reading{Recorded: telemetry.Invalid, Support: telemetry.Supported}, "value -1: want 0 or more"))
		}, want: v1alpha1.FieldEvidence{State: "invalid", Reason: "value -1: want 0 or more"}},

		{name: "never asked", know: func(*rig) {}, want: v1alpha1.FieldEvidence{State: "missing", Reason: "not read"}},
		{name: "asked, and there is no page", know: func(r *rig) { r.live("r1").ScrapeFailed("status_404") },
			want: v1alpha1.FieldEvidence{State: "missing", Reason: "status_404"}},
		{name: "other pages are there, and this one is not", know: func(r *rig) {
			r.queued("r1", time.Minute, because(missing(telemetry.SupportUnknown), "not read"))
			r.live("r1").ScrapeFailed("status_404")
		}, want: v1alpha1.FieldEvidence{State: "missing", Reason: "status_404"}},
		{name: "telemetry is switched off", policy: "telemetry: {mode: none}\n", know: func(*rig) {},
			want: v1alpha1.FieldEvidence{State: "missing"}, telemetry: "none"},
		{name: "no such family: of several sources, the first", know: func(r *rig) {
			r.queued("r1", time.Minute, because(missing(telemetry.Supported), "a is not on the page", "b is not on the page"))
		}, want: v1alpha1.FieldEvidence{State: "missing", Support: "supported", Reason: "a is not on the page"}},
		{name: "no such family, and the last scrape failed", know: func(r *rig) {
			r.queued("r1", time.Minute, because(missing(telemetry.Supported), "a is not on the page"))
			r.live("r1").ScrapeFailed("timeout")
		}, want: v1alpha1.FieldEvidence{State: "missing", Support: "supported", Reason: "a is not on the page"}},
		{name: "the engine has none", know: func(r *rig) {
			r.queued("r1", time.Minute, because(missing(telemetry.Unsupported), "no family tells it"))
		},
			want: v1alpha1.FieldEvidence{State: "missing", Support: "unsupported", Reason: "no family tells it"}},
		{name: "switched off there", know: func(r *rig) { r.queued("r1", time.Minute, because(missing(telemetry.Disabled), "--disable-log-stats")) },
			want: v1alpha1.FieldEvidence{State: "missing", Support: "disabled", Reason: "--disable-log-stats"}},
		{name: "a long reason is cut between characters", know: func(r *rig) {
			r.queued("r1", time.Minute, because(missing(telemetry.Disabled), "x"+strings.Repeat("é", 200)))
		}, want: v1alpha1.FieldEvidence{State: "missing", Support: "disabled", Reason: "x" + strings.Repeat("é", 127)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.policy)
			r.update(endpoint(1), endpoint(2))
			r.publish("r2", load{2, 4, 0.5}, time.Hour)
			tt.know(r)
			f := r.place(r.chat("m"))
			defer f.Finish(extproc.Outcome{Cause: extproc.Complete})
			rec := r.recordOf(f)
			got := rec.Candidates[0].Readings[0]
			if rec.Fields[0].Field != "queueDepth" || got.State != tt.want.State || got.Support != tt.want.Support || got.Reason != tt.want.Reason {
				t.Errorf("%s is recorded as %s, support %q, reason %q; want %s, %q, %q",
					rec.Fields[0].Field, got.State, got.Support, got.Reason, tt.want.State, tt.want.Support, tt.want.Reason)
			}
			if rec.Telemetry != tt.telemetry {
				t.Errorf("telemetry is recorded as %q, want %q", rec.Telemetry, tt.telemetry)
			}
			if other := rec.Candidates[1].Readings[0]; other.State != "fresh" || other.Reason != "" {
				t.Errorf("another replica's is recorded as %s, reason %q; want it fresh without any", other.State, other.Reason)
			}
		})
	}
}

// The snapshot that is asked for reasons may be newer than the evidence: what it says
// of another reading is no reason of this one.
func TestAReasonIsOfTheReadingThatWasUsed(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	c := &cycle{now: r.clock.read(), act: r.decider.active.Load()}
	e := r.pools.Set().Endpoints[0]
	later := c.now.Add(time.Minute)
	now := because(telemetry.Reading{Value: 4, Recorded: telemetry.Fresh, ExpiresAt: later, Quality: 0.5, Support: telemetry.Supported}, "doubt")
	frozen := because(telemetry.Reading{Value: 4, Recorded: telemetry.Stale, Quality: 0.1, Support: telemetry.Supported}, "frozen")
	gone := because(telemetry.Reading{Support: telemetry.Disabled}, "switched off")
	for _, tt := range []struct {
		name    string
		reading telemetry.Reading
		state   telemetry.State
		value   float64
		support string
		reason  string
	}{
		{"the one that was used", now, telemetry.Fresh, 4, "", "doubt"},
		{"fresh with another value", now, telemetry.Fresh, 5, "", ""},
		{"fresh, and frozen since", frozen, telemetry.Fresh, 4, "", ""},
		{"stale, and fresh again", now, telemetry.Stale, 4, "", readAnew},
		{"stale with another value", frozen, telemetry.Stale, 5, "", readAnew},
		{"missing, and there now", now, telemetry.Missing, 0, "", readAnew},
		{"invalid, and gone now", gone, telemetry.Invalid, 0, "", readAnew},
		{"missing still", gone, telemetry.Missing, 0, "disabled", "switched off"},
	} {
		support, reason := c.why(e, &tt.reading, tt.state, tt.value)
		if support != tt.support || reason != tt.reason {
			t.Errorf("%s: support %q, reason %q; want %q, %q", tt.name, support, reason, tt.support, tt.reason)
		}
	}
}

func TestAReasonTakesNoMemory(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1))
	c := &cycle{now: r.clock.read(), act: r.decider.active.Load()}
	e := r.pools.Set().Endpoints[0]
	e.ScrapeFailed("timeout")
	readings := []telemetry.Reading{
		{Value: 4, Recorded: telemetry.Fresh, Quality: 1},
		because(telemetry.Reading{Value: 4, Recorded: telemetry.Fresh, Quality: 0.5}, "doubt"),
		{Value: 4, Recorded: telemetry.Fresh, Quality: 1, ExpiresAt: c.now},
		because(telemetry.Reading{}, "not read"),
		because(telemetry.Reading{Support: telemetry.Disabled}, strings.Repeat("switched off ", 100)),
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := range readings {
			c.why(e, &readings[i], readings[i].State(c.now), 4)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestARefusedModelsRecordSaysWhatIsServed(t *testing.T) {
	var many []string
	for n := range 12 {
		many = append(many, fmt.Sprintf("m%02d", n))
	}
	says := func(r *rig, name string, models, adapters []string) {
		r.publish(name, load{1, 1, 0.1}, time.Minute, func(s *telemetry.Snapshot) {
			s.Readings[telemetry.ServedModels] = telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: models}}
			s.Readings[telemetry.AdaptersLoaded] = telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Names: adapters}}
		})
	}
	intended := func(req *extproc.Request) { req.IntentMetadata = flat("logicalModel", "new") }
	for _, tt := range []struct {
		name      string
		endpoints []pool.Spec
		know      func(*rig)
		request   func(*extproc.Request)
		// reason is of the refusal, detail what operators are told.
		reason, detail string
	}{
		{name: "declared", endpoints: []pool.Spec{endpoint(1, serving("b", "a")), endpoint(2, serving("a")), endpoint(3, serving("b", "a"))},
			reason: "model_unserved", detail: `the replicas serve "a", "b"`},
		{name: "stated by engines, adapters too", endpoints: []pool.Spec{endpoint(1), endpoint(2)},
			know: func(r *rig) {
				says(r, "r1", []string{"base"}, []string{"lora"})
				says(r, "r2", []string{"base"}, nil)
			}, reason: "model_unserved", detail: `the replicas serve "base", "lora"`},
		{name: "declared and stated: what both say", endpoints: []pool.Spec{endpoint(1, serving("a", "b"))},
			know: func(r *rig) { says(r, "r1", []string{"b", "c"}, nil) }, reason: "model_unserved", detail: `the replicas serve "b"`},
		{name: "nothing at all", endpoints: []pool.Spec{endpoint(1, serving())}, reason: "model_unserved", detail: `the replicas serve no model`},
		{name: "more than are named", endpoints: []pool.Spec{endpoint(1, serving(many...))}, reason: "model_unserved",
			detail: `the replicas serve "m00", "m01", "m02", "m03", "m04", "m05", "m06", "m07" and others`},
		{name: "as many as are named", endpoints: []pool.Spec{endpoint(1, serving(many[:8]...)), endpoint(2, serving(many[:7]...))}, reason: "model_unserved",
			detail: `the replicas serve "m00", "m01", "m02", "m03", "m04", "m05", "m06", "m07"`},
		{name: "names that are long, and move cursors", endpoints: []pool.Spec{endpoint(1, serving(strings.Repeat("é", 65), "a\x1b[31m\n"))},
			reason: "model_unserved", detail: `the replicas serve "a\x1b[31m\n", "` + strings.Repeat("é", 64) + `..."`},
		{name: "of the subset alone", endpoints: []pool.Spec{endpoint(1, serving("a")), endpoint(2, serving("new"))},
			request: func(req *extproc.Request) { req.Subset = screen.SplitSubset("10.0.0.1:8000") },
			reason:  "model_unserved", detail: `the replicas of the subset serve "a"`},
		{name: "of some it is not known", endpoints: []pool.Spec{endpoint(1, serving("a")), endpoint(2), endpoint(3)}, request: intended,
			reason: "model_unknown", detail: `the replicas of which it is known serve "a"; of 2 it is not known what they serve`},
		{name: "of all it is not known", endpoints: []pool.Spec{endpoint(1)}, request: intended,
			reason: "model_unknown", detail: `of 1 it is not known what they serve`},
		{name: "another refusal has none", endpoints: []pool.Spec{endpoint(1, serving("new"), notReady), endpoint(2, serving("a"))}, reason: "unhealthy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "")
			r.update(tt.endpoints...)
			if tt.know != nil {
				tt.know(r)
			}
			req := r.chat("new")
			if tt.request != nil {
				tt.request(req)
			}
			_, refusal := r.decider.begin().Decide(req)
			if refusal == nil {
				t.Fatal("it was placed")
			}
			if refusal.Detail != "" || strings.Contains(refusal.Message, "serve \"") {
				t.Errorf("the protocol has %q and %q to tell", refusal.Message, refusal.Detail)
			}
			rec, _ := r.ledger.Find(refusal.DecisionID)
			if rec == nil || rec.Refusal == nil {
				t.Fatalf("no record of the refusal: %+v", rec)
			}
			if rec.Refusal.Reason != tt.reason || rec.Refusal.Detail != tt.detail {
				t.Errorf("recorded as %s: %s\nwant %s: %s", rec.Refusal.Reason, rec.Refusal.Detail, tt.reason, tt.detail)
			}
		})
	}
}

// What an engine may state and has not been asked for is neither absent nor
// contradicted.
func TestARecordTellsWhatIsNotKnownFromWhatIsContradicted(t *testing.T) {
	const key = v1alpha1.AttributeEngineVersion
	states := func(version string) func(*telemetry.Snapshot) {
		return func(s *telemetry.Snapshot) {
			s.Readings[telemetry.EngineVersion] = telemetry.Reading{Recorded: telemetry.Fresh, Detail: &telemetry.Detail{Text: version}}
		}
	}
	r := newRig(t, "")
	r.update(endpoint(1), endpoint(2, declared(key, "0.9.1")), endpoint(3), endpoint(4), endpoint(5, declared(key, "0.9.3")), endpoint(6))
	r.publish("r2", load{1, 1, 0.1}, time.Minute, states("0.9.2"))
	// The page was read, and has no version.
	r.publish("r3", load{1, 1, 0.1}, time.Minute, func(s *telemetry.Snapshot) {
		s.Readings[telemetry.EngineVersion] = telemetry.Reading{Detail: &telemetry.Detail{Reasons: []string{"has no version"}}}
	})
	// Its metrics page was read, and no other yet.
	r.publish("r6", load{1, 1, 0.1}, time.Minute)
	r.publish("r4", load{1, 1, 0.1}, time.Minute, states("0.9.2"))
	req := r.chat("m")
	req.IntentMetadata = flat("requirement.capability."+key, "0.9.3")
	f := r.place(req)
	defer f.Finish(extproc.Outcome{Cause: extproc.Complete})
	rec := r.recordOf(f)
	var got []string
	for _, c := range rec.Candidates {
		text := "kept"
		if c.Attribute != nil {
			text = c.Attribute.State + " " + strings.Join(c.Attribute.Items, ",")
		}
		got = append(got, c.Replica+" "+strings.TrimSpace(text))
	}
	if want := []string{"r1 unknown", "r2 contradicted", "r3 absent", "r4 present 0.9.2", "r5 kept", "r6 unknown"}; !slices.Equal(got, want) {
		t.Errorf("recorded as %q, want %q", got, want)
	}
}

func TestAnAttributeThatHasChangedSinceIsNotRecorded(t *testing.T) {
	r := newRig(t, "")
	r.update(endpoint(1, declared("team", "blue")))
	e := r.pools.Set().Endpoints[0]
	for value, want := range map[string]*v1alpha1.AttributeFacts{
		"red": {State: "present", Items: []string{"blue"}}, "blue": nil,
	} {
		got := attributeFacts(e, &v1alpha1.Requirement{Class: v1alpha1.Safety, Key: "team", Operator: v1alpha1.In, Values: []string{value}})
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("excluded by team In [%s]: %+v, want %+v", value, got, want)
		}
	}
}

func TestARecordSaysWhichChannelsWereNotRead(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.json")
	write(t, keys, keySet(signer{"k"}))
	all := fmt.Sprintf("intent: {metadata: true, signedHeader: {keySet: %q, audience: berth}}\n", keys) +
		"trust: {plainHeaders: true, headers: {x-selected-model: logicalModel}}\n"
	const metadataAlone = "intent: {metadata: true}\n"
	metadata := func(req *extproc.Request) { req.IntentMetadata = flat("logicalModel", "m") }
	signed := func(req *extproc.Request) { req.SignedIntents = []string{"not.a.token"} }
	plain := func(req *extproc.Request) {
		req.Kept = append(req.Kept, extproc.Header{Name: "x-selected-model", Value: "m"})
	}
	other := func(req *extproc.Request) { req.Kept = append(req.Kept, extproc.Header{Name: "x-other", Value: "m"}) }
	for _, tt := range []struct {
		name, policy         string
		brought              []func(*extproc.Request)
		source               string
		outranked, untrusted []string
	}{
		{"nothing", all, nil, "none", nil, nil},
		{"metadata alone", all, []func(*extproc.Request){metadata}, "metadata", nil, nil},
		{"a signed header beside metadata", all, []func(*extproc.Request){metadata, signed}, "metadata", []string{"signed"}, nil},
		{"each channel", all, []func(*extproc.Request){metadata, signed, plain}, "metadata", []string{"signed", "headers"}, nil},
		{"plain headers beside a signed one that is refused", all, []func(*extproc.Request){signed, plain}, "signed", []string{"headers"}, nil},
		{"a header that is not mapped", all, []func(*extproc.Request){metadata, other}, "metadata", nil, nil},
		{"plain headers alone", all, []func(*extproc.Request){plain}, "headers", nil, nil},
		{"channels that are off", metadataAlone, []func(*extproc.Request){metadata, signed, plain}, "metadata", nil, []string{"x-berth-intent", "x-selected-model"}},
		{"a channel that is off, alone", metadataAlone, []func(*extproc.Request){signed}, "none", nil, []string{"x-berth-intent"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.policy)
			r.update(endpoint(1, serving("m")))
			req := r.chat("m")
			for _, bring := range tt.brought {
				bring(req)
			}
			var id string
			if d, refusal := r.decider.begin().Decide(req); refusal != nil {
				id = refusal.DecisionID
			} else {
				id = d.(*inFlight).id
				d.Finish(extproc.Outcome{Cause: extproc.Complete})
			}
			rec, ok := r.ledger.Find(id)
			if !ok {
				t.Fatal("no record")
			}
			if got := rec.Intent; got.Source != tt.source || !slices.Equal(got.Outranked, tt.outranked) || !slices.Equal(got.Untrusted, tt.untrusted) {
				t.Errorf("source %s, outranked %q, untrusted %q; want %s, %q, %q", got.Source, got.Outranked, got.Untrusted, tt.source, tt.outranked, tt.untrusted)
			}
		})
	}
}
