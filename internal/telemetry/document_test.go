package telemetry

import (
	"encoding/json"
	"testing"
	"time"
)

func TestADocumentOfNothingListsEveryFieldAsMissing(t *testing.T) {
	const nothing = `"support":"unknown","state":"missing",`
	for name, snapshot := range map[string]*Snapshot{
		"a replica that was never scraped": nil,
		"a page that said nothing":         {},
	} {
		t.Run(name, func(t *testing.T) {
			doc := snapshot.Document(observed)
			if len(doc) != len(contract) {
				t.Errorf("document has %d fields, want %d", len(doc), len(contract))
			}
			for field, want := range contract {
				unit := ""
				if want.unit != "" {
					unit = `"unit":"` + want.unit + `",`
				}
				expect := `{` + nothing + unit + `"quality":0,"reasons":["not read"]}`
				if got := marshal(t, doc[field]); got != expect {
					t.Errorf("%s:\ngot  %s\nwant %s", field, got, expect)
				}
			}
		})
	}
}

func TestADocumentHasAValueOnlyWhenFreshOrStale(t *testing.T) {
	for _, tc := range []struct {
		recorded  State
		now       Instant
		state     string
		withValue bool
	}{
		{Missing, observed, "missing", false},
		{Fresh, observed, "fresh", true},
		{Fresh, expires, "stale", true},
		{Stale, observed, "stale", true},
		{Invalid, observed, "invalid", false},
		{Invalid, expires, "invalid", false},
	} {
		t.Run(tc.recorded.String()+" shown as "+tc.state, func(t *testing.T) {
			hottest := 0.75
			for f := range NumFields {
				var s Snapshot
				s.Readings[f] = Reading{
					Value: 1, Recorded: tc.recorded, ExpiresAt: expires,
					Detail: &Detail{Max: &hottest, Names: []string{"a"}, Text: "b", Distribution: &Distribution{}},
				}
				doc := s.Document(tc.now)[f.String()]
				if string(doc.State) != tc.state {
					t.Errorf("%s: state %s, want %s", f, doc.State, tc.state)
				}
				if (doc.Value != nil) != tc.withValue {
					t.Errorf("%s: value %v, want one: %v", f, doc.Value, tc.withValue)
				}
				if (doc.Max != nil) != tc.withValue {
					t.Errorf("%s: max %v, want one: %v", f, doc.Max, tc.withValue)
				}
			}
		})
	}
}

func TestADocumentSaysWhyAReadingIsNotFresh(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reading Reading
		now     Instant
		want    string
	}{
		{"before it expires", Reading{Recorded: Fresh, ExpiresAt: expires}, expires - 1, `[]`},
		{"at the moment", Reading{Recorded: Fresh, ExpiresAt: expires}, expires, `["expired 0s ago"]`},
		{"rounded to tenths of a second", Reading{Recorded: Fresh, ExpiresAt: expires}, expires.Add(3249 * time.Millisecond), `["expired 3.2s ago"]`},
		{"after what the engine had to say", Reading{Recorded: Fresh, ExpiresAt: expires, Detail: &Detail{Reasons: []string{"a half"}}},
			expires.Add(time.Minute), `["a half","expired 1m0s ago"]`},
		{"one that never expires", Reading{Recorded: Fresh}, expires, `[]`},
		{"stale by other evidence", Reading{Recorded: Stale, ExpiresAt: expires, Detail: &Detail{Reasons: []string{"frozen"}}},
			expires.Add(time.Minute), `["frozen"]`},
		{"invalid", Reading{Recorded: Invalid, ExpiresAt: expires, Detail: &Detail{Reasons: []string{"NaN"}}}, expires.Add(time.Minute), `["NaN"]`},
		{"never read", Reading{}, expires, `["not read"]`},
		{"missing for a reason", Reading{Detail: &Detail{Reasons: []string{"no recent data"}}}, expires, `["no recent data"]`},
	} {
		var s Snapshot
		s.Readings[QueueDepth] = tc.reading
		if got := marshal(t, s.Document(tc.now)["queueDepth"].Reasons); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestDocumentsOfEachKindOfField(t *testing.T) {
	hottest := 0.9
	times := `"observedAt":"1970-01-01T00:01:40Z","expiresAt":"1970-01-01T00:01:50Z",`
	for _, tc := range []struct {
		name    string
		field   Field
		reading Reading
		want    string
	}{
		{
			"a scraped zero is a value", QueueDepth,
			Reading{Value: 0},
			`{"support":"supported","state":"fresh","value":0,"unit":"requests","provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"false is a value", Sleeping,
			Reading{Value: 0},
			`{"support":"supported","state":"fresh","value":false,"provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"true", Health,
			Reading{Value: 1},
			`{"support":"supported","state":"fresh","value":true,"provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"a mean over ranks, with the hottest, its source and the engine's own time", KVCacheUtilization,
			Reading{Value: 0.5, Detail: &Detail{
				Max: &hottest, EngineTime: At(time.Unix(99, 0)),
				Source:  &Source{Path: "/metrics", Metric: "vllm:kv_cache_usage_perc", Rule: "mean"},
				Reasons: []string{"two of three ranks"},
			}},
			`{"support":"supported","state":"fresh","value":0.5,"max":0.9,"unit":"util","provenance":"measured",` +
				`"source":{"path":"/metrics","metric":"vllm:kv_cache_usage_perc","rule":"mean"},` +
				`"observedAt":"1970-01-01T00:01:40Z","engineTime":"1970-01-01T00:01:39Z","expiresAt":"1970-01-01T00:01:50Z",` +
				`"quality":1,"reasons":["two of three ranks"]}`,
		},
		{
			"an empty list is a list", AdaptersLoaded,
			Reading{Detail: &Detail{}},
			`{"support":"supported","state":"fresh","value":[],"provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"names in their order", ServedModels,
			Reading{Detail: &Detail{Names: []string{"m-2", "m-1"}}},
			`{"support":"supported","state":"fresh","value":["m-2","m-1"],"provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"a text", EngineVersion,
			Reading{Detail: &Detail{Text: "0.9.1"}},
			`{"support":"supported","state":"fresh","value":"0.9.1","provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"a time, with its fraction", ProcessStart,
			Reading{Value: 50.25},
			`{"support":"supported","state":"fresh","value":"1970-01-01T00:00:50.25Z","unit":"time","provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"a distribution", TTFT,
			Reading{Detail: &Detail{Distribution: &Distribution{Mean: 1, P50: 0.5, P90: 2, P99: 4, Count: 8}}},
			`{"support":"supported","state":"fresh","value":{"mean":1,"p50":0.5,"p90":2,"p99":4,"count":8},"unit":"seconds","provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
		{
			"a distribution that was not summarised has no value", TTFT,
			Reading{},
			`{"support":"supported","state":"fresh","unit":"seconds","provenance":"measured",` + times + `"quality":1,"reasons":[]}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Snapshot
			r := tc.reading
			r.Recorded, r.Support, r.Provenance, r.Quality = Fresh, Supported, Measured, 1
			r.ObservedAt, r.ExpiresAt = observed, expires
			s.Readings[tc.field] = r
			if got := marshal(t, s.Document(observed)[tc.field.String()]); got != tc.want {
				t.Errorf("\ngot  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestOneInvalidFieldLeavesTheOthersAsTheyWere(t *testing.T) {
	var s Snapshot
	s.Readings[QueueDepth] = Reading{Value: 2, Recorded: Fresh}
	s.Readings[ActiveRequests] = Reading{Recorded: Invalid, Detail: &Detail{Reasons: []string{"NaN"}}}
	doc := s.Document(observed)
	if got := doc["queueDepth"]; got.State != "fresh" || got.Value != 2.0 {
		t.Errorf("queueDepth is %s %v, want fresh 2", got.State, got.Value)
	}
	if got := doc["activeRequests"]; got.State != "invalid" || got.Value != nil || len(got.Reasons) != 1 {
		t.Errorf("activeRequests is %s %v %q, want invalid without a value and with its reason", got.State, got.Value, got.Reasons)
	}
}

func TestADocumentSharesNoListWithTheSnapshot(t *testing.T) {
	var s Snapshot
	s.Readings[ServedModels] = Reading{Recorded: Fresh, Detail: &Detail{Names: []string{"m"}, Reasons: []string{"why"}}}
	doc := s.Document(observed)["servedModels"]
	doc.Value.([]string)[0] = "changed"
	doc.Reasons[0] = "changed"
	if d := s.Readings[ServedModels].Detail; d.Names[0] != "m" || d.Reasons[0] != "why" {
		t.Errorf("changing a document changed the snapshot: %q %q", d.Names, d.Reasons)
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
