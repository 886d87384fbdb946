package engine

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// noon is when pages of these tests are asked for; noonSeconds is the same as
// engines state it.
var noon = telemetry.At(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))

const noonSeconds = 1788264000

// builtIn are the same profiles for every page of a test: a History belongs to
// one of them.
var builtIn = sync.OnceValues(Defaults)

func profileOf(t testing.TB, name string) *Profile {
	t.Helper()
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	p := set.Profile(name)
	if p == nil {
		t.Fatalf("engine %q has no profile", name)
	}
	return p
}

func readPageOf(t testing.TB, name, page string, in Input) *telemetry.Snapshot {
	t.Helper()
	if in.At == 0 {
		in.At = noon
	}
	s, err := profileOf(t, name).Read([]byte(page), in)
	if err != nil {
		t.Fatalf("the page is refused: %v", err)
	}
	return s
}

// grownPages reads two pages, 30 s apart, and returns what the second says.
func grownPages(t testing.TB, name, before, after string) *telemetry.Snapshot {
	t.Helper()
	history := new(History)
	first := readPageOf(t, name, before, Input{At: noon, History: history})
	return readPageOf(t, name, after, Input{At: noon.Add(30 * time.Second), History: history, Previous: first})
}

func reasonsOf(s *telemetry.Snapshot, f telemetry.Field) string {
	if s.Readings[f].Detail == nil {
		return ""
	}
	return strings.Join(s.Readings[f].Detail.Reasons, "; ")
}

// wantValue checks a number that was read at the time of the snapshot.
func wantValue(t testing.TB, s *telemetry.Snapshot, f telemetry.Field, want float64) {
	t.Helper()
	r := &s.Readings[f]
	if r.State(s.ScrapedAt) != telemetry.Fresh || math.Abs(r.Value-want) > 1e-9*max(1, want) {
		t.Errorf("%s is %v, %s (%s), want %v", f, r.Value, r.State(s.ScrapedAt), reasonsOf(s, f), want)
	}
}

// wantNoValue checks that a field has none, and why.
func wantNoValue(t testing.TB, s *telemetry.Snapshot, f telemetry.Field, support telemetry.Support, reason string) {
	t.Helper()
	r := &s.Readings[f]
	if r.State(s.ScrapedAt) != telemetry.Missing || r.Support != support || !strings.Contains(reasonsOf(s, f), reason) {
		t.Errorf("%s is %v, %s, %s (%s), want it missing, %s (%s)",
			f, r.Value, r.Support, r.State(s.ScrapedAt), reasonsOf(s, f), support, reason)
	}
}

// wantMean checks a distribution.
func wantMean(t testing.TB, s *telemetry.Snapshot, f telemetry.Field, mean float64, count uint64) {
	t.Helper()
	r := &s.Readings[f]
	if r.State(s.ScrapedAt) != telemetry.Fresh || r.Detail.Distribution == nil {
		t.Fatalf("%s is %s (%s), want a distribution", f, r.State(s.ScrapedAt), reasonsOf(s, f))
	}
	if d := r.Detail.Distribution; math.Abs(d.Mean-mean) > 1e-9*max(1, mean) || d.Count != count {
		t.Errorf("%s has mean %v of %d, want %v of %d", f, d.Mean, d.Count, mean, count)
	}
}

const idleATOM = `atom:metrics_snapshot_available %d
atom:metrics_last_refresh_timestamp_seconds 1788263998
atom:requests_waiting 0
atom:requests_running 0
atom:kv_cache_usage_ratio 0
`

func TestS4_ATOMWithoutASnapshotIsUnknownAndNotIdle(t *testing.T) {
	s := readPageOf(t, "atom", fmt.Sprintf(idleATOM, 0), Input{})
	for _, f := range telemetry.LoadFields {
		wantNoValue(t, s, f, telemetry.SupportUnknown, "no rank has reported yet")
	}
	s = readPageOf(t, "atom", fmt.Sprintf(idleATOM, 1), Input{})
	for _, f := range telemetry.LoadFields {
		wantValue(t, s, f, 0)
	}
}

// What is read seldom would otherwise say for seconds that no rank has reported.
func TestTheFirstPageAfterATOMsSnapshotIsReadInFull(t *testing.T) {
	history := new(History)
	before := readPageOf(t, "atom", fmt.Sprintf(idleATOM, 0), Input{At: noon, History: history})
	wantNoValue(t, before, telemetry.KVCacheCapacity, telemetry.SupportUnknown, "no rank has reported yet")
	at := noon.Add(200 * time.Millisecond)
	s := readPageOf(t, "atom", fmt.Sprintf(idleATOM, 1), Input{At: at, History: history, Previous: before})
	if got := s.Readings[telemetry.KVCacheCapacity].Support; got != telemetry.Unsupported {
		t.Errorf("kvCacheCapacity is %v (%s), want unsupported", got, reasonsOf(s, telemetry.KVCacheCapacity))
	}
}

func TestS5_ATOMIsJudgedByTheTimeOnItsPage(t *testing.T) {
	const page = "atom:metrics_snapshot_available 1\natom:requests_waiting 3\natom:metrics_last_refresh_timestamp_seconds %d\n"
	for name, c := range map[string]struct {
		stated int
		state  telemetry.State
		// engineTime is in seconds, 0 where what the page states is no evidence.
		engineTime int
	}{
		"5 s ago":          {noonSeconds - 5, telemetry.Fresh, noonSeconds - 5},
		"30 s ago":         {noonSeconds - 30, telemetry.Fresh, noonSeconds - 30},
		"120 s ago":        {noonSeconds - 120, telemetry.Stale, noonSeconds - 120},
		"0":                {0, telemetry.Fresh, 0},
		"a clock 2 s fast": {noonSeconds + 2, telemetry.Fresh, noonSeconds},
		"an hour ahead":    {noonSeconds + 3600, telemetry.Fresh, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := readPageOf(t, "atom", fmt.Sprintf(page, c.stated), Input{})
			r := &s.Readings[telemetry.QueueDepth]
			if r.State(noon) != c.state {
				t.Errorf("state %s (%s), want %s", r.State(noon), reasonsOf(s, telemetry.QueueDepth), c.state)
			}
			if c.state == telemetry.Stale && (r.Quality >= 0.5 || !strings.Contains(reasonsOf(s, telemetry.QueueDepth), "2m0s")) {
				t.Errorf("quality %v, reasons %q, want little and the age of 2m0s", r.Quality, reasonsOf(s, telemetry.QueueDepth))
			}
			want := telemetry.Instant(0)
			if c.engineTime != 0 {
				want = telemetry.At(time.Unix(int64(c.engineTime), 0))
			}
			if r.Detail.EngineTime != want {
				t.Errorf("engine time %v, want %v", r.Detail.EngineTime.Time(), want.Time())
			}
			if r.ObservedAt != noon {
				t.Errorf("observed at %v, want the time of the scrape", r.ObservedAt.Time())
			}
		})
	}
}

// The refresh time advances though no rank pushes, and counters move only when
// a request completes.
func TestATOMMayStandStillForTwentySecondsUnderLoad(t *testing.T) {
	busy := Traffic{BusySince: noon.Add(-time.Minute)}
	for _, c := range []struct {
		still   time.Duration
		state   telemetry.State
		quality float32
	}{
		{19 * time.Second, telemetry.Fresh, 1},
		{21 * time.Second, telemetry.Fresh, 0.5},
		{61 * time.Second, telemetry.Stale, 0.1},
	} {
		history := new(History)
		page := func(after time.Duration) string {
			return fmt.Sprintf("atom:metrics_snapshot_available 1\natom:requests_running 4\natom:generation_tokens_total 100\n"+
				"atom:metrics_last_refresh_timestamp_seconds %d\n", noonSeconds+int(after.Seconds()))
		}
		readPageOf(t, "atom", page(0), Input{At: noon, History: history, Traffic: busy})
		s := readPageOf(t, "atom", page(c.still), Input{At: noon.Add(c.still), History: history, Traffic: busy})
		r := &s.Readings[telemetry.ActiveRequests]
		if r.State(s.ScrapedAt) != c.state || r.Quality != c.quality {
			t.Errorf("after %v: %s at %v (%s), want %s at %v", c.still, r.State(s.ScrapedAt), r.Quality,
				reasonsOf(s, telemetry.ActiveRequests), c.state, c.quality)
		}
	}
}

func TestENGINES0_ATOMsSeptemberFamiliesMayHaveAnyBucketsAndRole(t *testing.T) {
	const page = `atom:metrics_snapshot_available 1
atom:time_to_first_token_seconds_bucket{le="0.3",streaming="true"} %[1]d
atom:time_to_first_token_seconds_bucket{le="+Inf",streaming="true"} %[1]d
atom:time_to_first_token_seconds_count{streaming="true"} %[1]d
atom:time_to_first_token_seconds_sum{streaming="true"} %[2]v
atom:request_queue_time_seconds_bucket{dp_rank="0",engine_role="default",le="0.07"} %[1]d
atom:request_queue_time_seconds_bucket{dp_rank="0",engine_role="default",le="+Inf"} %[1]d
atom:request_queue_time_seconds_count{dp_rank="0",engine_role="default"} %[1]d
atom:request_queue_time_seconds_sum{dp_rank="0",engine_role="default"} %[3]v
`
	s := grownPages(t, "atom", fmt.Sprintf(page, 10, 2.0, 0.5), fmt.Sprintf(page, 30, 5.0, 0.9))
	wantMean(t, s, telemetry.TTFT, 0.15, 20)
	wantMean(t, s, telemetry.QueueTime, 0.02, 20)
}

func TestENGINES0_ATOMsOtherVariantNamesItsHistogramsShorter(t *testing.T) {
	const page = `atom:metrics_snapshot_available 1
atom:ttft_seconds_bucket{le="1.0",model="m",role="default"} %[1]d
atom:ttft_seconds_bucket{le="+Inf",model="m",role="default"} %[1]d
atom:ttft_seconds_count{model="m",role="default"} %[1]d
atom:ttft_seconds_sum{model="m",role="default"} %[2]v
atom:tpot_seconds_bucket{le="1.0",model="m",role="default"} %[1]d
atom:tpot_seconds_bucket{le="+Inf",model="m",role="default"} %[1]d
atom:tpot_seconds_count{model="m",role="default"} %[1]d
atom:tpot_seconds_sum{model="m",role="default"} %[3]v
atom:e2e_latency_seconds_bucket{le="1.0",model="m",role="default"} 0
atom:e2e_latency_seconds_bucket{le="+Inf",model="m",role="default"} %[1]d
atom:e2e_latency_seconds_count{model="m",role="default"} %[1]d
atom:e2e_latency_seconds_sum{model="m",role="default"} %[4]v
`
	s := grownPages(t, "atom", fmt.Sprintf(page, 10, 2.0, 0.5, 100.0), fmt.Sprintf(page, 20, 4.5, 0.75, 180.0))
	wantMean(t, s, telemetry.TTFT, 0.25, 10)
	wantMean(t, s, telemetry.TPOT, 0.025, 10)
	wantMean(t, s, telemetry.E2E, 8, 10)
}

// Two ranks of 500 blocks, of which one has not pushed: the page shows 500 and
// says that a snapshot is there.
func TestENGINES0_ATOMsCapacityMayLackARankAndSaysSo(t *testing.T) {
	s := readPageOf(t, "atom", `atom:metrics_snapshot_available 1
atom:kv_cache_blocks_total 500
atom:cache_config_info{block_size="16",num_gpu_blocks="500"} 1
`, Input{})
	wantValue(t, s, telemetry.KVCacheCapacity, 8000)
	if q := s.Readings[telemetry.KVCacheCapacity].Quality; q >= 1 ||
		!strings.Contains(reasonsOf(s, telemetry.KVCacheCapacity), "ranks that have not reported") {
		t.Errorf("quality %v (%s), want a doubt about ranks that have not reported", q, reasonsOf(s, telemetry.KVCacheCapacity))
	}
}

func TestATOMsBlocksWithoutASizeAreNoCapacity(t *testing.T) {
	s := readPageOf(t, "atom", "atom:metrics_snapshot_available 1\natom:kv_cache_blocks_total 500\n", Input{})
	wantNoValue(t, s, telemetry.KVCacheCapacity, telemetry.Unsupported, "atom:cache_config_info is not on the page")
}

func TestATOMWhoseCacheIsNotAllocatedHasNoCapacity(t *testing.T) {
	s := readPageOf(t, "atom", `atom:metrics_snapshot_available 1
atom:kv_cache_blocks_total 0
atom:cache_config_info{block_size="16",num_gpu_blocks="0"} 1
`, Input{})
	if r := &s.Readings[telemetry.KVCacheCapacity]; r.State(noon) != telemetry.Missing {
		t.Errorf("capacity is %v, %s, want none", r.Value, r.State(noon))
	}
}

func TestAtomeshsPageOfAllWorkersIsRefused(t *testing.T) {
	_, err := profileOf(t, "atom").Read([]byte(`atom:metrics_snapshot_available{worker_addr="10.0.0.1:8000"} 1
atom:requests_running{worker_addr="10.0.0.1:8000"} 4
atom:requests_running{worker_addr="10.0.0.2:8000"} 9
`), Input{At: noon})
	if !errors.Is(err, ErrJoined) {
		t.Errorf("error %v, want %v", err, ErrJoined)
	}
}

func TestATOMAsAPluginIsReadByItsHostsProfile(t *testing.T) {
	set, err := builtIn()
	if err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"atom:requests_running 1\n":       "atom",
		"vllm:num_requests_running 1\n":   "vllm",
		"sglang:num_running_reqs 1\n":     "sglang",
		string(load(t, "trtllm.prom")):    "trtllm-serve",
		string(load(t, "atom-next.prom")): "atom",
	} {
		p, err := set.Detect([]byte(page))
		if err != nil || p.Name() != want {
			t.Errorf("%.40q: detected as %v, %v, want %s", page, p, err, want)
		}
	}
}

func TestATOMsModelCardsGiveNamesAlone(t *testing.T) {
	p := profileOf(t, "atom")
	s := readPageOf(t, "atom", fmt.Sprintf(idleATOM, 1), Input{})
	body := []byte(`{"object":"list","data":[{"id":"deepseek-r1","object":"model","owned_by":"atom"}]}`)
	s, err := p.ReadSlow(p.SlowPages()[0], http.StatusOK, body, noon, time.Minute, s)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Readings[telemetry.ServedModels].Detail.Names; len(got) != 1 || got[0] != "deepseek-r1" {
		t.Errorf("served models %q, want deepseek-r1", got)
	}
	wantNoValue(t, s, telemetry.ContextLimit, telemetry.Unsupported, "/v1/models")
	wantNoValue(t, s, telemetry.AdaptersLoaded, telemetry.Unsupported, "not exported")
	if owners, whole := Owners(body); !whole || len(owners) != 1 || !p.Owns(owners[0]) {
		t.Errorf("owners %q, want one that is ATOM's", owners)
	}
}

// Asked for another format, client libraries spell names differently.
func TestENGINES0_MetricsPagesAreAskedForAsText(t *testing.T) {
	for _, name := range []string{"atom", "trtllm-serve", "triton-tensorrt-llm", "dcgm", "amd-gpu"} {
		if accept := profileOf(t, name).Metrics().Accept; accept != "text/plain;version=0.0.4" {
			t.Errorf("%s: Accept %q, want text/plain;version=0.0.4", name, accept)
		}
	}
}
