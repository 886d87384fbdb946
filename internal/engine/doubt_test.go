package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// clockProfile is an engine that states a time, and a start of its process.
const clockProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: clocked
detect: {prefixes: ["c:"]}
pages:
- {path: /metrics, format: prometheus, ttl: 2s}
engineTime: {metric: "c:time", maxAge: 30s}
stillAfter: 10s
fields:
  queueDepth:
    unit: requests
    sources: [{metric: "c:waiting", combine: sum}]
  activeRequests:
    unit: requests
    sources: [{metric: "c:running", combine: sum}]
  kvCacheUtilization:
    unit: util
    sources: [{metric: "c:kv", combine: max}]
  kvBlockSize:
    unit: tokens
    ttl: 1m
    sources: [{metric: "c:block"}]
  promptThroughput:
    unit: tokens/s
    sources: [{metric: "c:tokens_total", window: 30s}]
  processStart:
    unit: time
    sources: [{metric: "c:start", combine: max}]
`

// now is when the pages of these tests are asked for: 2027-01-01, 1798761600 s
// since the epoch.
const now = 1798761600

func TestTheTimeThatAnEngineStates(t *testing.T) {
	const second = telemetry.Instant(time.Second)
	type outcome struct {
		state   telemetry.State
		quality float32
		at      telemetry.Instant
		reason  string
	}
	cases := []struct {
		name, time string
		want       outcome
	}{
		{"just now", "1798761600", outcome{telemetry.Fresh, 1, now * second, ""}},
		{"just old enough", "1798761570", outcome{telemetry.Fresh, 1, (now - 30) * second, ""}},
		{"a fraction of a second", "1798761599.5", outcome{telemetry.Fresh, 1, now*second - second/2, ""}},
		{"too old", "1798761569", outcome{telemetry.Stale, 0.1, (now - 31) * second, "the engine's own time is 31s before the scrape, want at most 30s"}},
		{"very old", "1798761480", outcome{telemetry.Stale, 0.1, (now - 120) * second, "the engine's own time is 2m0s before the scrape, want at most 30s"}},
		{"milliseconds, old", "1798761480000", outcome{telemetry.Stale, 0.1, (now - 120) * second, "the engine's own time is 2m0s before the scrape, want at most 30s"}},
		{"milliseconds, new", "1798761599000", outcome{telemetry.Fresh, 1, (now - 1) * second, ""}},
		{"microseconds, old", "1798761480000000", outcome{telemetry.Stale, 0.1, (now - 120) * second, "the engine's own time is 2m0s before the scrape, want at most 30s"}},
		{"microseconds, new", "1798761599000000", outcome{telemetry.Fresh, 1, (now - 1) * second, ""}},
		{"nanoseconds, old", "1798761480000000000", outcome{telemetry.Stale, 0.1, (now - 120) * second, "the engine's own time is 2m0s before the scrape, want at most 30s"}},
		{"a clock that is a little ahead", "1798761630", outcome{telemetry.Fresh, 1, now * second, ""}},
		{"a clock that is ahead by a minute", "1798761660", outcome{telemetry.Fresh, 1, now * second, ""}},
		{"the future", "1798761661", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time is ahead of the scrape by more than 1m0s, and does not show how old the page is"}},
		{"the future by years", "2098761600", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time is ahead of the scrape by more than 1m0s, and does not show how old the page is"}},
		{"the future by centuries", "20000000000", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value 2e+10 is no time"}},
		{"the future beyond what nanoseconds can count", "50000000000", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value 5e+10 is no time"}},
		{"zero", "0", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value 0 is no time"}},
		{"seconds since the start", "86400", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value 86400 is no time"}},
		{"no time at all", "1e300", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value 1e+300 is no time"}},
		{"not a number", "NaN", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value NaN: want a finite number of at least 0"}},
		{"negative", "-5", outcome{telemetry.Fresh, 0.5, 0, "the engine's own time says nothing: c:time: value -5: want a finite number of at least 0"}},
	}
	if scriptBegins != now*second {
		t.Fatalf("the scripts begin at %d", scriptBegins)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := readerOf(t, clockProfile)
			s := r.read(0, "c:waiting 3\nc:kv 0.5\nc:block 16\nc:start 1700000000\nc:time "+c.time+"\n")
			for _, f := range []telemetry.Field{telemetry.QueueDepth, telemetry.KVCacheUtilization, telemetry.KVBlockSize} {
				got := &s.Readings[f]
				if got.Recorded != c.want.state || got.Quality != c.want.quality || got.Detail.EngineTime != c.want.at || strings.Join(got.Detail.Reasons, "; ") != c.want.reason {
					t.Errorf("%s is %s, quality %v, of %v, %q, want %+v", f, got.Recorded, got.Quality, got.Detail.EngineTime.Time(), got.Detail.Reasons, c.want)
				}
				if got.Recorded == telemetry.Stale && got.Value == 0 {
					t.Errorf("%s has lost its value", f)
				}
			}
			if start := &s.Readings[telemetry.ProcessStart]; start.Recorded != telemetry.Fresh {
				t.Errorf("processStart is %s: it does not age", start.Recorded)
			}
		})
	}
}

func TestATimeThatStandsWhileNothingRunsIsNoDoubtWhereTheProfileSaysSo(t *testing.T) {
	whileBusy := strings.Replace(clockProfile, "maxAge: 30s", "maxAge: 30s, whileBusy: true", 1)
	const old = "c:time 1798761480\n"
	for _, c := range []struct {
		name, text, page string
		want             telemetry.State
	}{
		{"idle", whileBusy, "c:waiting 0\nc:running 0\n", telemetry.Fresh},
		{"requests run", whileBusy, "c:waiting 0\nc:running 1\n", telemetry.Stale},
		{"requests wait", whileBusy, "c:waiting 1\nc:running 0\n", telemetry.Stale},
		{"idle, where time goes on", clockProfile, "c:waiting 0\nc:running 0\n", telemetry.Stale},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := readerOf(t, c.text).read(0, old+c.page)
			for _, f := range []telemetry.Field{telemetry.QueueDepth, telemetry.ActiveRequests} {
				if got := s.Readings[f].Recorded; got != c.want {
					t.Errorf("%s is %s, want %s", f, got, c.want)
				}
			}
		})
	}
}

// TestAnEnginesTimeDoesNotSpoilWhatWasReadBefore: a reading that a hot scrape
// carries over has its own time.
func TestAnEnginesTimeDoesNotSpoilWhatWasReadBefore(t *testing.T) {
	r := readerOf(t, clockProfile)
	page := func(tokens, at int) string {
		return fmt.Sprintf("c:waiting 1\nc:tokens_total %d\nc:time %d\n", tokens, at)
	}
	r.read(0, page(0, now))
	r.check(r.read(30*time.Second, page(300, now+30)), "promptThroughput fresh 10 tokens/s")
	s := r.read(30*time.Second+200*time.Millisecond, page(300, now-100))
	if got := s.Readings[telemetry.QueueDepth].Recorded; got != telemetry.Stale {
		t.Errorf("queueDepth is %s, want stale", got)
	}
	r.check(s, "promptThroughput fresh 10 tokens/s")
}

// busy and idle are what a page says of an engine that works, and of one that
// does not.
const (
	busy = "c:waiting 50\nc:running 8\nc:kv 0.99\nc:tokens_total 1000\n"
	idle = "c:waiting 0\nc:running 0\nc:kv 0.4\nc:tokens_total 1000\n"
)

func since(after time.Duration) telemetry.Instant { return scriptBegins.Add(after) }

// checkLoad compares the load fields with a state, a quality and a part of the
// reason, and all else with being as it was.
func checkLoad(t *testing.T, s *telemetry.Snapshot, state telemetry.State, quality float32, reason string) {
	t.Helper()
	for _, f := range telemetry.LoadFields {
		r := &s.Readings[f]
		why := strings.Join(r.Detail.Reasons, "; ")
		if r.Recorded != state || r.Quality != quality || why != reason {
			t.Errorf("%s is %s, quality %v, %q, want %s, %v, %q", f, r.Recorded, r.Quality, why, state, quality, reason)
		}
	}
	if r := &s.Readings[telemetry.KVBlockSize]; r.Recorded == telemetry.Stale || r.Recorded == telemetry.Fresh && r.Quality != 1 {
		t.Errorf("kvBlockSize is %s, quality %v: it may stand still", r.Recorded, r.Quality)
	}
}

func TestAPageThatStandsStillUnderOurOwnRequests(t *testing.T) {
	for name, page := range map[string]string{"and says it works": busy, "and says it is idle": idle} {
		t.Run(name, func(t *testing.T) {
			r := readerOf(t, clockProfile)
			page += "c:block 16\n"
			ours := Traffic{BusySince: since(0)}
			checkLoad(t, r.read(0, page, ours), telemetry.Fresh, 1, "")
			checkLoad(t, r.read(9*time.Second, page, ours), telemetry.Fresh, 1, "")
			checkLoad(t, r.read(10*time.Second, page, ours), telemetry.Fresh, 0.5, "no value on the page moved for 10s while requests of this picker were there")
			checkLoad(t, r.read(29*time.Second, page, ours), telemetry.Fresh, 0.5, "no value on the page moved for 29s while requests of this picker were there")
			checkLoad(t, r.read(30*time.Second, page, ours), telemetry.Stale, 0.1, "no value on the page moved for 30s while requests of this picker were there")
			// One counter that moves clears it.
			moved := strings.Replace(page, "c:tokens_total 1000", "c:tokens_total 1001", 1)
			checkLoad(t, r.read(31*time.Second, moved, ours), telemetry.Fresh, 1, "")
			checkLoad(t, r.read(40*time.Second, moved, ours), telemetry.Fresh, 1, "")
			checkLoad(t, r.read(41*time.Second, moved, ours), telemetry.Fresh, 0.5, "no value on the page moved for 10s while requests of this picker were there")
		})
	}
}

func TestRequestsThatHaveJustComeAreNoDoubtYet(t *testing.T) {
	r := readerOf(t, clockProfile)
	for second := time.Duration(0); second <= 100; second += 10 {
		checkLoad(t, r.read(second*time.Second, idle, Traffic{IdleSince: since(0)}), telemetry.Fresh, 1, "")
	}
	ours := Traffic{BusySince: since(100 * time.Second)}
	checkLoad(t, r.read(109*time.Second, idle, ours), telemetry.Fresh, 1, "")
	checkLoad(t, r.read(110*time.Second, idle, ours), telemetry.Fresh, 0.5, "no value on the page moved for 1m50s while requests of this picker were there")
	checkLoad(t, r.read(129*time.Second, idle, ours), telemetry.Fresh, 0.5, "no value on the page moved for 2m9s while requests of this picker were there")
	checkLoad(t, r.read(130*time.Second, idle, ours), telemetry.Stale, 0.1, "no value on the page moved for 2m10s while requests of this picker were there")
}

func TestAnIdleEngineMayStandStillForEver(t *testing.T) {
	r := readerOf(t, clockProfile)
	for hour := range time.Duration(48) {
		checkLoad(t, r.read(hour*time.Hour, idle, Traffic{IdleSince: since(0)}), telemetry.Fresh, 1, "")
	}
}

func TestAPageThatStandsStillIsNoDoubtIfNothingIsKnownOfRequests(t *testing.T) {
	r := readerOf(t, clockProfile)
	for minute := range time.Duration(10) {
		checkLoad(t, r.read(minute*time.Minute, busy), telemetry.Fresh, 1, "")
	}
}

func TestWhatMovesByItselfIsNoSignOfWork(t *testing.T) {
	r := readerOf(t, clockProfile)
	ours := Traffic{BusySince: since(0)}
	r.read(0, busy+"c:time 1798761600\nc:start 1700000000\n", ours)
	s := r.read(10*time.Second, busy+"c:time 1798761610\nc:start 1700000000\n", ours)
	checkLoad(t, s, telemetry.Fresh, 0.5, "no value on the page moved for 10s while requests of this picker were there")
}

func TestTheOrderOfLinesIsNoMovement(t *testing.T) {
	r := readerOf(t, clockProfile)
	ours := Traffic{BusySince: since(0)}
	r.read(0, "c:waiting{rank=\"0\"} 1\nc:waiting{rank=\"1\"} 2\nc:running 1\nc:kv 0.5\n", ours)
	s := r.read(10*time.Second, "c:kv 0.5\nc:waiting{rank=\"1\"} 2\nc:running 1\nc:waiting{rank=\"0\"} 1\n", ours)
	checkLoad(t, s, telemetry.Fresh, 0.5, "no value on the page moved for 10s while requests of this picker were there")
	// Values that change places are a movement.
	s = r.read(11*time.Second, "c:waiting{rank=\"0\"} 2\nc:waiting{rank=\"1\"} 1\nc:running 1\nc:kv 0.5\n", ours)
	checkLoad(t, s, telemetry.Fresh, 1, "")
}

func TestDoubtIsAddedToWhatTheProfileSaysOfItsSource(t *testing.T) {
	doubted := strings.Replace(clockProfile, `[{metric: "c:waiting", combine: sum}]`, `[{metric: "c:waiting", combine: sum, quality: 0.3, because: an old name}]`, 1)
	r := readerOf(t, doubted)
	ours := Traffic{BusySince: since(0)}
	r.read(0, busy, ours)
	r.check(r.read(10*time.Second, busy, ours),
		`queueDepth fresh 50 requests quality=0.3 "an old name; no value on the page moved for 10s while requests of this picker were there"`,
		`activeRequests fresh 8 requests quality=0.5 "no value on the page moved for 10s while requests of this picker were there"`)
}

// TestRequestsThatComeAndGoMakeAFrozenPageNoBetter: only what moves does.
func TestRequestsThatComeAndGoMakeAFrozenPageNoBetter(t *testing.T) {
	const frozen = "frozen: no value on the page moved for 10s although it says that the engine works"
	r := readerOf(t, clockProfile)
	r.read(0, busy, Traffic{IdleSince: since(0)})
	checkLoad(t, r.read(10*time.Second, busy, Traffic{IdleSince: since(0)}), telemetry.Stale, 0.1, frozen)
	checkLoad(t, r.read(12*time.Second, busy, Traffic{BusySince: since(11 * time.Second)}), telemetry.Stale, 0.1, frozen)
	checkLoad(t, r.read(14*time.Second, busy, Traffic{IdleSince: since(13 * time.Second)}), telemetry.Stale, 0.1, frozen)
	checkLoad(t, r.read(16*time.Second, strings.Replace(busy, "0.99", "0.98", 1), Traffic{IdleSince: since(13 * time.Second)}), telemetry.Fresh, 1, "")
}

// What a page that stands still counts, it does not count anew: its windows say
// nothing of the present either. What never changes is as it was.
func TestAFrozenPageSaysNothingOfThroughputEither(t *testing.T) {
	const frozen = "frozen: no value on the page moved for 10s although it says that the engine works"
	page := busy + "c:block 16\n"
	none := Traffic{IdleSince: since(0)}
	r := readerOf(t, clockProfile)
	r.read(0, strings.Replace(page, "c:tokens_total 1000", "c:tokens_total 400", 1), none)
	r.read(20*time.Second, page, none)
	r.check(r.read(30*time.Second, page, none),
		`queueDepth stale 50 requests quality=0.1 "`+frozen+`"`,
		`promptThroughput stale 20 tokens/s quality=0.1 "`+frozen+`"`,
		`kvBlockSize fresh 16 tokens`)
	// One that is read in part holds to it.
	r.check(r.read(30*time.Second+200*time.Millisecond, page, none),
		`queueDepth stale 50 requests quality=0.1 "`+frozen+`"`,
		`promptThroughput stale 20 tokens/s quality=0.1 "`+frozen+`"`)
}

// A page that is read in part shows neither that it moved nor that it stood still.
func TestAQuietEngineThatBeginsToWorkIsNotFrozen(t *testing.T) {
	r := readerOf(t, clockProfile)
	none := Traffic{IdleSince: since(0)}
	at := time.Duration(0)
	for ; at <= time.Minute; at += 5 * time.Second {
		checkLoad(t, r.read(at, idle, none), telemetry.Fresh, 1, "")
	}
	checkLoad(t, r.read(at, busy, none), telemetry.Fresh, 1, "")
	checkLoad(t, r.read(at+time.Second, busy, none), telemetry.Fresh, 1, "")
}

// TestS3FrozenHighGauges: after a mass abort vLLM shows 99 % of its cache and a
// long queue until its next step, and no step runs as no request is sent there.
func TestS3FrozenHighGauges(t *testing.T) {
	p := defaults(t).Profile("vllm")
	r := &pageReader{t: t, profile: p, history: &History{}}
	const page = `vllm:num_requests_running{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="0",model_name="m"} 50
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.99
vllm:generation_tokens_total{engine="0",model_name="m"} 70000
`
	none := Traffic{IdleSince: since(0)}
	checkLoad(t, r.read(0, page, none), telemetry.Fresh, 1, "")
	checkLoad(t, r.read(5*time.Second, page, none), telemetry.Fresh, 1, "")
	checkLoad(t, r.read(10*time.Second, page, none), telemetry.Stale, 0.1, "frozen: no value on the page moved for 10s although it says that the engine works")
	checkLoad(t, r.read(30*time.Second, page, none), telemetry.Stale, 0.1, "frozen: no value on the page moved for 10s although it says that the engine works")
	// The request that is sent there all the same makes a step.
	s := r.read(32*time.Second, strings.NewReplacer("} 50", "} 0", "0.99", "0.01", "70000", "70001").Replace(page), Traffic{BusySince: since(31 * time.Second)})
	checkLoad(t, s, telemetry.Fresh, 1, "")
	r.check(s, "queueDepth fresh 0 requests")
}

// TestS5ASnapshotFarOlderThanTheScrape: ATOM's server is alive, and its engine is
// not.
func TestS5ASnapshotFarOlderThanTheScrape(t *testing.T) {
	p := defaults(t).Profile("atom")
	for _, c := range []struct {
		name, refreshed string
		want            telemetry.State
	}{
		{"two minutes", "1798761480", telemetry.Stale},
		{"zero", "0", telemetry.Fresh},
		{"the future", "1798765200", telemetry.Fresh},
		{"two seconds", "1798761598", telemetry.Fresh},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &pageReader{t: t, profile: p, history: &History{}}
			s := r.read(0, "atom:metrics_snapshot_available 1\natom:requests_waiting 4\natom:requests_running 2\natom:kv_cache_usage_ratio 0.5\natom:metrics_last_refresh_timestamp_seconds "+c.refreshed+"\n")
			for _, f := range telemetry.LoadFields {
				got := &s.Readings[f]
				if got.State(scriptBegins) != c.want {
					t.Errorf("%s is %s, want %s", f, got.State(scriptBegins), c.want)
				}
				if got.ObservedAt != scriptBegins || got.Detail.EngineTime > scriptBegins {
					t.Errorf("%s was observed at %v, by the engine at %v", f, got.ObservedAt.Time(), got.Detail.EngineTime.Time())
				}
			}
		})
	}
}

// TestS7TheLastBatchIsBelievedForTenSeconds: SGLang shows its last batch until it
// flushes, up to 30 s after. Nobody's request is there; what moves is nothing.
func TestS7TheLastBatchIsBelievedForTenSeconds(t *testing.T) {
	p := defaults(t).Profile("sglang")
	r := &pageReader{t: t, profile: p, history: &History{}}
	page := func(running, tokens int) string {
		return fmt.Sprintf("sglang:num_running_reqs{tp_rank=\"0\"} %d\nsglang:num_queue_reqs{tp_rank=\"0\"} 0\nsglang:token_usage{tp_rank=\"0\"} 0.2\n"+
			"sglang:realtime_tokens_total{tp_rank=\"0\",mode=\"decode\"} %d\n", running, tokens)
	}
	r.read(0, page(24, 900), Traffic{BusySince: since(0)})
	none := Traffic{IdleSince: since(time.Second)}
	checkLoad(t, r.read(2*time.Second, page(24, 1000), none), telemetry.Fresh, 1, "")
	checkLoad(t, r.read(11*time.Second, page(24, 1000), none), telemetry.Fresh, 1, "")
	s := r.read(12*time.Second, page(24, 1000), none)
	checkLoad(t, s, telemetry.Stale, 0.1, "frozen: no value on the page moved for 10s although it says that the engine works")
	checkLoad(t, r.read(33*time.Second, page(0, 1000), none), telemetry.Fresh, 1, "")
}
