package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-dev/berth/internal/telemetry"
)

// countingProfile is an engine with one of everything that counts, for scripts that
// show the rules and not an engine.
const countingProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: counting
detect: {prefixes: ["c:"]}
pages:
- {path: /metrics, format: prometheus, ttl: 2s}
- {path: /info, format: json, every: 1m, fields: {engineVersion: {member: version}}}
labels: {model: model, ranks: [rank], lowest: [tp], drop: [pid]}
stillAfter: 10s
fields:
  queueDepth:
    unit: requests
    sources: [{metric: "c:waiting", combine: sum}]
  activeRequests:
    unit: requests
    sources: [{metric: "c:running", combine: sum}]
  promptThroughput:
    unit: tokens/s
    sources: [{metric: "c:tokens_total", window: 30s}]
  generationThroughput:
    unit: tokens/s
    sources:
    - {metric: "c:made_total", window: 30s}
    - {metric: "c:done_total", window: 30s, quality: 0.5, because: an old name}
    off: [{metric: "c:info", label: stats, is: "off", because: statistics are off}]
  prefixCacheHitRatio:
    unit: util
    sources:
    - metric: c:hits_total
      window: 30s
      over: [{metric: "c:hits_total", combine: sum}, {metric: "c:misses_total", combine: sum}]
  ttft:
    unit: seconds
    sources: [{metric: "c:ttft_ms", window: 30s, scale: 0.001}]
  e2e:
    unit: seconds
    sources: [{metric: "c:busy_us_total", count: {metric: "c:ended_total"}, scale: 1e-6, window: 30s}]
  processStart:
    unit: time
    sources: [{metric: "c:start", combine: max}]
`

// TestScriptsOfWindows runs the conversations of testdata/windows: pages of one
// endpoint, one after the other, and what each says together with those before
// it. The results are written by hand; -rewrite writes what the code says.
//
//	scrape engine=NAME at=30s fields=(ttft,promptThroughput)
//	PAGE
//	----
//	ttft fresh mean=0.25 p50=0.2 p90=0.38 p99=0.398 count=40
//	promptThroughput fresh 123.5 tokens/s quality=0.5 "why it is doubted"
//	queueTime missing supported "why there is no value"
//
// engine and fields hold until another command names others; to name an engine
// is to turn to another endpoint. The engine of the files rules-*.txt is counting.
func TestScriptsOfWindows(t *testing.T) {
	own, err := NewSet(parse(t, countingProfile))
	if err != nil {
		t.Fatal(err)
	}
	set, err := defaults(t).With(own)
	if err != nil {
		t.Fatal(err)
	}
	datadriven.Walk(t, "testdata/windows", func(t *testing.T, path string) {
		s := windowScript{set: set}
		datadriven.RunTest(t, path, s.run)
	})
}

// windowScript is one endpoint that is read again and again.
type windowScript struct {
	set     *Set
	profile *Profile
	history *History
	last    *telemetry.Snapshot
	fields  []telemetry.Field
}

// scriptBegins is when a script's clock says 0.
var scriptBegins = telemetry.At(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))

func (s *windowScript) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd != "scrape" {
		d.Fatalf(t, "unknown command %q, want scrape", d.Cmd)
	}
	var at time.Duration
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "engine":
			s.profile = s.set.Profile(arg.Vals[0])
			s.history, s.last = &History{}, nil
		case "at":
			var err error
			if at, err = time.ParseDuration(arg.Vals[0]); err != nil {
				d.Fatalf(t, "%v", err)
			}
		case "fields":
			s.fields = nil
			for _, name := range arg.Vals {
				f, ok := telemetry.ParseField(name)
				if !ok {
					d.Fatalf(t, "%q is not a field", name)
				}
				s.fields = append(s.fields, f)
			}
		default:
			d.Fatalf(t, "unknown argument %q, want engine, at or fields", arg.Key)
		}
	}
	if s.profile == nil || len(s.fields) == 0 {
		d.Fatalf(t, "want the engine of a profile, and fields")
	}
	snapshot, err := s.profile.Read([]byte(d.Input+"\n"), Input{At: scriptBegins.Add(at), Previous: s.last, History: s.history})
	if err != nil {
		return err.Error()
	}
	s.last = snapshot
	var out strings.Builder
	for _, f := range s.fields {
		fmt.Fprintln(&out, scripted(f, &snapshot.Readings[f]))
	}
	return out.String()
}

// scripted is a reading in one line of a script.
func scripted(f telemetry.Field, r *telemetry.Reading) string {
	words := fmt.Sprintf("%s %s", f, r.Recorded)
	why := strings.Join(r.Detail.Reasons, "; ")
	if r.Recorded != telemetry.Fresh && r.Recorded != telemetry.Stale {
		return fmt.Sprintf("%s %s %q", words, r.Support, why)
	}
	switch d := r.Detail.Distribution; {
	case d != nil:
		words += fmt.Sprintf(" mean=%.6g p50=%.6g p90=%.6g p99=%.6g count=%d", d.Mean, d.P50, d.P90, d.P99, d.Count)
	case f.Unit() != "":
		words += fmt.Sprintf(" %.6g %s", r.Value, f.Unit())
	default:
		words += fmt.Sprintf(" %.6g", r.Value)
	}
	if r.Quality != 1 {
		words += fmt.Sprintf(" quality=%.6g", r.Quality)
	}
	if why != "" {
		words += fmt.Sprintf(" %q", why)
	}
	return words
}

// pageReader reads the pages of one endpoint, one after the other.
type pageReader struct {
	t       *testing.T
	profile *Profile
	history *History
	last    *telemetry.Snapshot
	models  []string
}

func readerOf(t *testing.T, text string) *pageReader {
	return &pageReader{t: t, profile: parse(t, text), history: &History{}}
}

// read takes the page of a time after scriptBegins.
func (r *pageReader) read(after time.Duration, page string, traffic ...Traffic) *telemetry.Snapshot {
	r.t.Helper()
	in := Input{At: scriptBegins.Add(after), Models: r.models, Previous: r.last, History: r.history}
	if len(traffic) > 0 {
		in.Traffic = traffic[0]
	}
	s, err := r.profile.Read([]byte(page), in)
	if err != nil {
		r.t.Fatalf("the page of %v is refused: %v", after, err)
	}
	checkPossible(r.t, s)
	r.last = s
	return s
}

func (r *pageReader) check(s *telemetry.Snapshot, want ...string) {
	r.t.Helper()
	for _, words := range want {
		name, _, _ := strings.Cut(words, " ")
		f, ok := telemetry.ParseField(name)
		if !ok {
			r.t.Fatalf("%q is not a field", name)
		}
		if got := scripted(f, &s.Readings[f]); got != words {
			r.t.Errorf("%v after the first page\n got  %s\n want %s", s.ScrapedAt.Sub(scriptBegins), got, words)
		}
	}
}

// TestHotScrapesCarryWhatCountsOver: a hot endpoint is read every 200 ms for its
// gauges. What counts stays as it was, from when it was read.
func TestHotScrapesCarryWhatCountsOver(t *testing.T) {
	r := readerOf(t, countingProfile)
	page := func(waiting, tokens int) string {
		return fmt.Sprintf("c:waiting %d\nc:tokens_total %d\n", waiting, tokens)
	}
	r.read(0, page(1, 100))
	r.check(r.read(30*time.Second, page(2, 400)), "queueDepth fresh 2 requests", "promptThroughput fresh 10 tokens/s")
	for i, waiting := range []int{3, 4, 5, 6} {
		after := 30*time.Second + time.Duration(i+1)*200*time.Millisecond
		s := r.read(after, page(waiting, 999999))
		r.check(s, fmt.Sprintf("queueDepth fresh %d requests", waiting), "promptThroughput fresh 10 tokens/s")
		if got, want := s.Readings[telemetry.QueueDepth].ObservedAt, scriptBegins.Add(after); got != want {
			t.Errorf("queueDepth was observed at %v, want %v", got, want)
		}
		carried := s.Readings[telemetry.PromptThroughput]
		if want := scriptBegins.Add(30 * time.Second); carried.ObservedAt != want || carried.ExpiresAt != want.Add(2*time.Second) {
			t.Errorf("promptThroughput was observed at %v and expires at %v, want what it was at %v", carried.ObservedAt, carried.ExpiresAt, want)
		}
	}
	// A second after the last time it is read again: 310 in 31 s.
	s := r.read(31*time.Second, page(7, 410))
	r.check(s, "queueDepth fresh 7 requests", "promptThroughput fresh 10 tokens/s")
	if got, want := s.Readings[telemetry.PromptThroughput].ObservedAt, scriptBegins.Add(31*time.Second); got != want {
		t.Errorf("promptThroughput was observed at %v, want %v", got, want)
	}
}

// TestALeaseDoesNotReviveWhatWasCarriedOver: Extend counts from when a value was
// observed.
func TestALeaseDoesNotReviveWhatWasCarriedOver(t *testing.T) {
	r := readerOf(t, countingProfile)
	r.read(0, "c:tokens_total 0\nc:waiting 1\n")
	r.read(30*time.Second, "c:tokens_total 30\nc:waiting 1\n")
	s := r.read(30*time.Second+200*time.Millisecond, "c:tokens_total 30\nc:waiting 1\n")
	r.profile.Extend(s, 5*time.Second)
	if got, want := s.Readings[telemetry.PromptThroughput].ExpiresAt, scriptBegins.Add(35*time.Second); got != want {
		t.Errorf("promptThroughput expires at %v, want %v", got, want)
	}
	if got, want := s.Readings[telemetry.QueueDepth].ExpiresAt, scriptBegins.Add(35*time.Second+200*time.Millisecond); got != want {
		t.Errorf("queueDepth expires at %v, want %v", got, want)
	}
}

// TestAHotScrapeSeesTheModelsOfTheWholePage: that it skips what counts must not
// change what a gauge means.
func TestAHotScrapeSeesTheModelsOfTheWholePage(t *testing.T) {
	const page = "c:waiting{model=\"a\"} 3\nc:tokens_total{model=\"a\"} 3\nc:tokens_total{model=\"b\"} 3\n"
	const ambiguous = `queueDepth invalid supported "ambiguous: 2 models on the page, and it is not known which the endpoint serves"`
	r := readerOf(t, countingProfile)
	r.check(r.read(0, page), ambiguous)
	r.check(r.read(200*time.Millisecond, page), ambiguous)
	r = readerOf(t, countingProfile)
	r.models = []string{"b"}
	const others = `queueDepth missing supported "c:waiting has no series for the models that the endpoint serves"`
	r.check(r.read(0, page), others)
	r.check(r.read(200*time.Millisecond, page), others)
}

// TestNoWindowIsReadWithoutAHistory: a page alone says what it would need.
func TestNoWindowIsReadWithoutAHistory(t *testing.T) {
	p := parse(t, countingProfile)
	for _, at := range []time.Duration{0, 200 * time.Millisecond, time.Minute} {
		s, err := p.Read([]byte("c:tokens_total 7\nc:waiting 1\n"), Input{At: scriptBegins.Add(at)})
		if err != nil {
			t.Fatal(err)
		}
		const want = `promptThroughput missing supported "first page: a window needs two"`
		if got := scripted(telemetry.PromptThroughput, &s.Readings[telemetry.PromptThroughput]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestAPageThatIsRefusedLeavesTheHistoryAsItWas: the window goes on with the next.
func TestAPageThatIsRefusedLeavesTheHistoryAsItWas(t *testing.T) {
	r := readerOf(t, countingProfile)
	r.read(0, "c:tokens_total 100\n")
	for _, page := range []string{"", "{}", "other 1\n", "c:tokens_total 5\nc:tok"} {
		if _, err := r.profile.Read([]byte(page), Input{At: scriptBegins.Add(15 * time.Second), Previous: r.last, History: r.history}); err == nil {
			t.Fatalf("%q is not refused", page)
		}
	}
	s := r.read(30*time.Second, "c:tokens_total 400\n")
	r.check(s, "promptThroughput fresh 10 tokens/s")
	if s.Incarnation != 1 {
		t.Errorf("incarnation %d, want 1", s.Incarnation)
	}
}

// TestAHistoryIsThatOfOneProfile: another numbers its windows differently.
func TestAHistoryIsThatOfOneProfile(t *testing.T) {
	r := readerOf(t, countingProfile)
	r.read(0, "c:tokens_total 100\n")
	r.profile = parse(t, countingProfile+"# another\n")
	s := r.read(30*time.Second, "c:tokens_total 400\n")
	r.check(s, `promptThroughput missing supported "first page: a window needs two"`)
	r.check(r.read(60*time.Second, "c:tokens_total 430\n"), "promptThroughput fresh 1 tokens/s")
}

// TestTimeThatRunsBackwardGivesNoRate: clocks are set.
func TestTimeThatRunsBackwardGivesNoRate(t *testing.T) {
	r := readerOf(t, countingProfile)
	r.read(100*time.Second, "c:tokens_total 100\n")
	r.read(130*time.Second, "c:tokens_total 400\n")
	for _, after := range []time.Duration{70 * time.Second, 90 * time.Second, 100 * time.Second} {
		s := r.read(after, "c:tokens_total 500\n")
		if rate := s.Readings[telemetry.PromptThroughput]; rate.Recorded == telemetry.Fresh && rate.Value != 0 {
			t.Errorf("at %v: %s", after, scripted(telemetry.PromptThroughput, &rate))
		}
	}
}

func TestRestartsAreCounted(t *testing.T) {
	type step struct {
		page        string
		incarnation uint32
	}
	const started, again = "c:start 1700000000\n", "c:start 1700000500\n"
	cases := []struct {
		name  string
		steps []step
	}{
		{"by the start of the process", []step{
			{started + "c:tokens_total 10\n", 1}, {started + "c:tokens_total 20\n", 1}, {again + "c:tokens_total 30\n", 2}, {again + "c:tokens_total 40\n", 2}, {started + "c:tokens_total 50\n", 3}}},
		{"by a counter that fell, where no start is stated", []step{
			{"c:tokens_total 10\n", 1}, {"c:tokens_total 5\n", 2}, {"c:tokens_total 6\n", 2}, {"c:tokens_total 1\n", 3}}},
		{"by several counters that fell at once, once", []step{
			{"c:tokens_total 10\nc:made_total 10\nc:hits_total 5\nc:misses_total 5\n", 1}, {"c:tokens_total 5\nc:made_total 0\nc:hits_total 0\nc:misses_total 0\n", 2}, {"c:tokens_total 6\nc:made_total 1\nc:hits_total 0\nc:misses_total 0\n", 2}}},
		{"not by a counter that fell while the start stayed", []step{
			{started + "c:tokens_total 10\n", 1}, {started + "c:tokens_total 5\n", 1}}},
		{"not by such a counter once the start is gone", []step{
			{started + "c:tokens_total 10\n", 1}, {started + "c:tokens_total 5\n", 1}, {"c:tokens_total 6\n", 1}}},
		{"not by a start that comes or goes or makes no sense", []step{
			{"c:tokens_total 10\n", 1}, {started + "c:tokens_total 20\n", 1}, {"c:start NaN\nc:tokens_total 30\n", 1}, {started + "c:tokens_total 40\n", 1}}},
		{"not by a rank that left", []step{
			{"c:tokens_total{rank=\"0\"} 10\nc:tokens_total{rank=\"1\"} 10\n", 1}, {"c:tokens_total{rank=\"1\"} 20\n", 1}}},
		{"not by a gauge that fell", []step{{"c:waiting 10\n", 1}, {"c:waiting 0\n", 1}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := readerOf(t, countingProfile)
			for i, step := range c.steps {
				before := r.last
				s := r.read(time.Duration(i)*30*time.Second, step.page)
				if s.Incarnation != step.incarnation {
					t.Errorf("page %d is of incarnation %d, want %d", i, s.Incarnation, step.incarnation)
				}
				if before != nil && Restarted(before, s) != (before.Incarnation != step.incarnation) {
					t.Errorf("page %d: restarted is %t", i, Restarted(before, s))
				}
			}
		})
	}
}

// TestARestartDropsWhatWasCounted: also where the new counters are above the old.
func TestARestartDropsWhatWasCounted(t *testing.T) {
	page := func(start, tokens, waiting int) string {
		return fmt.Sprintf("c:start %d\nc:tokens_total %d\nc:waiting %d\n", start, tokens, waiting)
	}
	const anew = `promptThroughput missing supported "the engine's process was started anew: a window needs two pages"`
	r := readerOf(t, countingProfile)
	r.read(0, page(1700000000, 100, 1))
	r.check(r.read(30*time.Second, page(1700000000, 400, 1)), "promptThroughput fresh 10 tokens/s")
	r.check(r.read(60*time.Second, page(1700000055, 9000, 2)), anew, "queueDepth fresh 2 requests")
	r.check(r.read(90*time.Second, page(1700000055, 9060, 2)), "promptThroughput fresh 2 tokens/s")

	// A hot scrape that sees the new process carries nothing of the old over.
	r.check(r.read(90*time.Second+200*time.Millisecond, page(1700000090, 5, 3)), anew, "queueDepth fresh 3 requests")
	// The next one is read in full, and the window begins with it.
	r.check(r.read(91*time.Second, page(1700000090, 6, 3)), `promptThroughput missing supported "first page: a window needs two"`, "queueDepth fresh 3 requests")
	r.check(r.read(121*time.Second, page(1700000090, 36, 3)), "promptThroughput fresh 1 tokens/s")
}

// TestWhatOtherPagesSaidEndsWithAProcessWhoseCounterFell: as with a start that is
// stated.
func TestWhatOtherPagesSaidEndsWithAProcessWhoseCounterFell(t *testing.T) {
	r := readerOf(t, countingProfile)
	info := slowPage(t, r.profile, JSON)
	s := r.read(0, "c:tokens_total 10\n")
	s, err := r.profile.ReadSlow(info, 200, []byte(`{"version":"1"}`), scriptBegins, time.Hour, s)
	if err != nil {
		t.Fatal(err)
	}
	r.last = s
	if got := r.read(30*time.Second, "c:tokens_total 20\n").Readings[telemetry.EngineVersion]; got.Recorded != telemetry.Fresh || got.ObservedAt != scriptBegins {
		t.Errorf("the same process: %+v", got)
	}
	if got := r.read(60*time.Second, "c:tokens_total 1\n").Readings[telemetry.EngineVersion].Recorded; got != telemetry.Missing {
		t.Errorf("another process: engineVersion is %v", got)
	}
}

// TestQuantiles: interpolation within the bucket that holds the rank.
func TestQuantiles(t *testing.T) {
	inf := math.Inf(1)
	cases := []struct {
		name       string
		share      float64
		bounds     []float64
		cumulative []float64
		want       float64
		beyond     bool
	}{
		{"the middle of the first bucket, which begins at 0", 0.5, []float64{2, inf}, []float64{10, 10}, 1, false},
		{"the end of a bucket", 0.5, []float64{1, 2, inf}, []float64{5, 10, 10}, 1, false},
		{"an empty bucket before it", 0.5, []float64{1, 2, 4, inf}, []float64{0, 0, 8, 8}, 3, false},
		{"beyond every bound", 0.99, []float64{1, 2, inf}, []float64{0, 5, 10}, 2, true},
		{"no bound at all", 0.5, []float64{inf}, []float64{10}, math.NaN(), true},
		{"a first bound of 0", 0.5, []float64{0, 1, inf}, []float64{10, 10, 10}, 0, false},
		{"a first bound below 0", 0.5, []float64{-1, 1, inf}, []float64{10, 10, 10}, 0, false},
		{"across 0", 0.5, []float64{-1, 1, inf}, []float64{0, 10, 10}, 0.5, false},
		{"all below 0", 0.5, []float64{-3, -1, inf}, []float64{0, 10, 10}, 0, false},
		{"beyond bounds below 0", 0.5, []float64{-3, -1, inf}, []float64{0, 0, 10}, math.NaN(), true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got, beyond := quantile(c.share, c.bounds, c.cumulative); compareBits(got, c.want) != 0 || beyond != c.beyond {
				t.Errorf("%v, beyond %t, want %v, %t", got, beyond, c.want, c.beyond)
			}
		})
	}
}

// A sum that the buckets cannot have is no distribution, but a value that is in
// the one and not yet in the others is what happens between two scrapes.
func TestASumMustFitTheBuckets(t *testing.T) {
	page := func(in1, in2, all int, sum float64) string {
		return fmt.Sprintf("vllm:time_to_first_token_seconds_bucket{le=\"0.1\"} %d\nvllm:time_to_first_token_seconds_bucket{le=\"0.5\"} %d\n"+
			"vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} %d\nvllm:time_to_first_token_seconds_count %d\nvllm:time_to_first_token_seconds_sum %v\n",
			in1, in2, all, all, sum)
	}
	for _, c := range []struct {
		name          string
		in1, in2, all int
		sum           float64
		want          telemetry.State
	}{
		{"within", 10, 20, 20, 4, telemetry.Fresh},
		{"more than all of the largest", 20, 20, 20, 4, telemetry.Invalid},
		{"less than all of the least", 0, 20, 20, 1, telemetry.Invalid},
		{"one value is not in its bucket yet", 20, 20, 20, 2.05, telemetry.Fresh},
		{"beyond the largest bound, any sum that is enough", 0, 0, 20, 4000, telemetry.Fresh},
		{"beyond the largest bound, and not enough", 0, 0, 20, 4, telemetry.Invalid},
	} {
		s := grownPages(t, "vllm", page(0, 0, 0, 0), page(c.in1, c.in2, c.all, c.sum))
		if r := &s.Readings[telemetry.TTFT]; r.Recorded != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, r.Recorded, reasonsOf(s, telemetry.TTFT), c.want)
		}
	}
}

// What is read seldom is not carried over into another process, and is read at the
// next page.
func TestARestartBetweenFullPagesLeavesNothingOfTheOldProcess(t *testing.T) {
	page := func(start, blocks int) string {
		return fmt.Sprintf("vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nprocess_start_time_seconds %d\n"+
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\nvllm:generation_tokens_total 5\n", start, blocks)
	}
	history := new(History)
	read := func(after time.Duration, page string, prev *telemetry.Snapshot) *telemetry.Snapshot {
		return readPageOf(t, "vllm", page, Input{At: noon.Add(after), History: history, Previous: prev})
	}
	s := read(0, page(1000, 100), nil)
	wantValue(t, s, telemetry.KVCacheCapacity, 1600)
	s = read(200*time.Millisecond, page(2000, 50), s)
	if s.Incarnation != 2 {
		t.Errorf("incarnation %d, want 2", s.Incarnation)
	}
	wantNoValue(t, s, telemetry.KVCacheCapacity, telemetry.SupportUnknown, "started anew")
	s = read(400*time.Millisecond, page(2000, 50), s)
	wantValue(t, s, telemetry.KVCacheCapacity, 800)
}
