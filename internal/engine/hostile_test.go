package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
)

// words is a reading in one line: its state, its value and why.
func words(f telemetry.Field, r *telemetry.Reading, now telemetry.Instant) string {
	text := r.State(now).String()
	if r.Recorded == telemetry.Fresh || r.Recorded == telemetry.Stale {
		text += fmt.Sprintf(" %v", r.Value)
		if r.Quality != 1 {
			text += fmt.Sprintf(" at %v", r.Quality)
		}
	}
	if why := strings.Join(r.Detail.Reasons, "; "); why != "" {
		text += ": " + why
	}
	return text
}

func wantWords(t *testing.T, s *telemetry.Snapshot, f telemetry.Field, want string) {
	t.Helper()
	if got := words(f, &s.Readings[f], s.ScrapedAt); got != want {
		t.Errorf("%s is %s\nwant %s", f, got, want)
	}
}

// TestEveryReportOfAnyPageCanBeEncoded: one replica whose numbers no JSON can say
// would take the reports of all others with it.
func TestEveryReportOfAnyPageCanBeEncoded(t *testing.T) {
	set := defaults(t)
	rapid.Check(t, func(t *rapid.T) {
		p := drawEngine(t, set)
		value := rapid.SampledFrom([]string{"1.7e308", "0", "1", "3", "9e15", "1e300", "+Inf", "NaN", "4.9e-324", "1.7976931348623157e308", "0.5"})
		h := &History{}
		var prev *telemetry.Snapshot
		for i := range 3 {
			var page strings.Builder
			for j := range p.families {
				for rank := range 2 {
					fmt.Fprintf(&page, "%s{engine=\"%d\",dp_rank=\"%d\",le=\"+Inf\"} %s\n", p.families[j].name, rank, rank, value.Draw(t, "value"))
				}
			}
			at := scriptBegins.Add(time.Duration(i) * 20 * time.Second)
			s, err := p.Read([]byte(page.String()), Input{At: at, Previous: prev, History: h})
			if err != nil {
				t.Fatal(err)
			}
			checkPossible(t, s)
			if _, err := json.Marshal(s.Observation(v1alpha1.Replica{Name: "r"}, at)); err != nil {
				t.Errorf("%v\n%s", err, page.String())
			}
			prev = s
		}
	})
}

func histogram(name, rank, sum string, count int) string {
	return fmt.Sprintf("%[1]s_bucket{engine=%[2]q,le=\"1\"} 0\n%[1]s_bucket{engine=%[2]q,le=\"+Inf\"} %[4]d\n%[1]s_sum{engine=%[2]q} %[3]s\n%[1]s_count{engine=%[2]q} %[4]d\n",
		name, rank, sum, count)
}

func TestSumsBeyondAnyNumberAreInvalid(t *testing.T) {
	r := &pageReader{t: t, profile: vllm(t), history: &History{}}
	var s *telemetry.Snapshot
	for i := range 3 {
		count := 10 * (i + 1)
		s = r.read(time.Duration(i)*20*time.Second, minimal+histogram("vllm:time_to_first_token_seconds", "0", "1.7e308", count)+histogram("vllm:time_to_first_token_seconds", "1", "1.7e308", count))
	}
	wantWords(t, s, telemetry.TTFT, "invalid: vllm:time_to_first_token_seconds_sum: what 2 series say together is beyond any number")
}

// TestWeightsAreFoundByTheLabelsThatBothFamiliesHave: vLLM names the model on one
// family and not on the other.
func TestWeightsAreFoundByTheLabelsThatBothFamiliesHave(t *testing.T) {
	const weighted = "mean over engine weighted by vllm:cache_config_info label kv_cache_size_tokens"
	const byHead = "mean over engine, each the same, as the page does not tell vllm:cache_config_info label kv_cache_size_tokens of each"
	usage := "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 1\nvllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0\n"
	for _, c := range []struct {
		name, page string
		want       float64
		rule       string
	}{
		{"the model on one family alone", usage + `vllm:cache_config_info{engine="0",kv_cache_size_tokens="1000"} 1
vllm:cache_config_info{engine="1",kv_cache_size_tokens="9000"} 1
`, 0.1, weighted},
		{"no weights", usage, 0.5, byHead},
		{"a weight of one rank alone", usage + `vllm:cache_config_info{engine="0",kv_cache_size_tokens="1000"} 1
`, 0.5, byHead},
		{"one weight that names no rank", usage + `vllm:cache_config_info{kv_cache_size_tokens="1000"} 1
`, 0.5, byHead},
		{"two weights of one rank", usage + `vllm:cache_config_info{engine="0",kv_cache_size_tokens="1000"} 1
vllm:cache_config_info{engine="0",x="1",kv_cache_size_tokens="2000"} 1
vllm:cache_config_info{engine="1",kv_cache_size_tokens="9000"} 1
`, 0.5, byHead},
	} {
		s := readPageOf(t, "vllm", c.page, Input{At: noon})
		r := &s.Readings[telemetry.KVCacheUtilization]
		if r.Value != c.want || r.Detail.Source.Rule != c.rule || *r.Detail.Max != 1 {
			t.Errorf("%s: %v by %q, want %v by %q", c.name, r.Value, r.Detail.Source.Rule, c.want, c.rule)
		}
	}
}

// TestControlCharactersMakeAPageNoText, wherever the line stands; those within a
// label's value or a help text are the engine's own affair.
func TestControlCharactersMakeAPageNoText(t *testing.T) {
	bad := []string{
		"vllm:num_requests_running\x00 5", "vllm:num_requests_running\x01junk 5", "vllm:num_requests_running\rvllm:foo 5", "vllm:num_requests_running\v 5",
		"vllm:num_requests_running\x7f 5", "vllm:num_requests_running 5\x00", "vllm:num_requests_running 5 \r7", "vllm:num_requests_running{engine\x00=\"0\"} 5",
		"vllm:num_requests_running{engine=\"0\"}\x02 5", "other\x00 5", "# TYPE vllm:x\x00 gauge",
	}
	good := []string{"vllm:num_requests_running{engine=\"0\",a=\"\x01\"} 3\r", "# HELP vllm:x a\x00b\rc", "vllm:num_requests_running\t3\t"}
	for _, line := range bad {
		for _, page := range []string{line + "\n" + minimal, minimal + line + "\n", strings.Replace(minimal, "\n", "\n"+line+"\n", 1)} {
			if s, err := vllm(t).Read([]byte(page), Input{At: noon}); !errors.Is(err, ErrNotText) || s != nil {
				t.Errorf("%q: %v, want %v", page, err, ErrNotText)
			}
		}
	}
	for _, line := range good {
		if _, err := vllm(t).Read([]byte("vllm:num_requests_waiting 1\n"+line+"\n"), Input{At: noon}); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// TestALastLineWithoutALineFeedIsCut: HTTP may end in order where a number could have
// had more digits.
func TestALastLineWithoutALineFeedIsCut(t *testing.T) {
	for last, want := range map[string]error{
		"vllm:num_requests_running 12":           ErrTruncated,
		"vllm:num_requests_running 1":            ErrTruncated,
		"vllm:num_requests_running 5 17000000":   ErrTruncated,
		"{\"vllm:num_requests_running\"} 1":      ErrTruncated,
		"vllm:num_requests_running 1\r":          ErrTruncated,
		"# TYPE vllm:num_requests_running gauge": nil,
		"# EOF":                                  nil,
		"# EOF\r":                                nil,
		"python_info 1":                          nil,
	} {
		if _, err := vllm(t).Read([]byte("vllm:num_requests_waiting 1\n"+last), Input{At: noon}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", last, err, want)
		}
	}
}

func TestTimestampsAreEvidenceOfAge(t *testing.T) {
	const line = "vllm:num_requests_running"
	ms := int64(noon) / 1e6
	const notOne = "invalid: vllm:num_requests_running: a timestamp is no whole number of milliseconds"
	const old = "stale 5: the timestamp of the sample is older than the reading lives"
	for _, c := range []struct{ stamp, want string }{
		{"1", old}, {"-1", old}, {"0", old}, {"915148800000", old},
		{"NaN", notOne}, {"1e400", notOne}, {fmt.Sprintf("%d.5", ms), notOne},
		// Seconds are no milliseconds.
		{fmt.Sprint(ms / 1000), old},
		{fmt.Sprint(ms - 1000), "fresh 5"},
		{fmt.Sprint(ms + 1000), "fresh 5"},
		{fmt.Sprint(ms + 3_600_000), "fresh 5 at 0.5: a timestamp is ahead of the scrape by more than 1m0s"},
		{"99999999999999999999999", "fresh 5 at 0.5: a timestamp is ahead of the scrape by more than 1m0s"},
	} {
		stamped, plain := line+" 5 "+c.stamp+"\n", line+" 5\n"
		// A duplicate without a stamp hides nothing, wherever it stands.
		for _, page := range []string{stamped, stamped + plain, plain + stamped} {
			s := readPageOf(t, "vllm", page, Input{At: noon})
			if got := words(telemetry.ActiveRequests, &s.Readings[telemetry.ActiveRequests], noon); got != c.want {
				t.Errorf("%q: %s, want %s", page, got, c.want)
			}
		}
	}
	// OpenMetrics has seconds, with fractions.
	s := readPageOf(t, "vllm", fmt.Sprintf("%s 5 %d.5\n# EOF\n", line, ms/1000-1), Input{At: noon})
	if r := &s.Readings[telemetry.ActiveRequests]; r.ObservedAt != noon.Add(-500*time.Millisecond) || r.State(noon) != telemetry.Fresh {
		t.Errorf("OpenMetrics: %v before noon, %s", noon.Sub(r.ObservedAt), r.State(noon))
	}
	// The oldest of all that a value is made of counts.
	s = readPageOf(t, "sglang", fmt.Sprintf("sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:num_grammar_queue_reqs{tp_rank=\"0\"} 1 %d\n", ms-60_000), Input{At: noon})
	wantWords(t, s, telemetry.QueueDepth, "stale 3: the timestamp of the sample is older than the reading lives")
}

// TestCountersThatVanishTellOfARestart: all of SGLang's tokenizer families come with
// the first observation, and are gone after a restart.
func TestCountersThatVanishTellOfARestart(t *testing.T) {
	const gauges = "sglang:num_running_reqs{tp_rank=\"0\"} 1\n"
	tokens := func(rank, n int) string {
		return fmt.Sprintf("sglang:realtime_tokens_total{mode=\"decode\",tp_rank=\"0\",dp_rank=\"%d\"} %d\n", rank, n)
	}
	for _, c := range []struct {
		name, then string
		restarted  bool
	}{
		{"every counter is gone", gauges, true},
		{"the first rank is gone, the other fell", gauges + tokens(1, 7), true},
		{"the second rank is gone, the other fell", gauges + tokens(0, 7), true},
		{"a rank blinks", gauges + tokens(0, 1000), false},
		{"the other rank blinks", gauges + tokens(1, 1005), false},
		{"a family blinks, another stands", gauges + "sglang:generation_tokens_total 50\n", false},
		{"nothing is gone", gauges + tokens(0, 1000) + tokens(1, 1000), false},
	} {
		r := &pageReader{t: t, profile: profileOf(t, "sglang"), history: &History{}}
		before := gauges + tokens(0, 1000) + tokens(1, 1000)
		if strings.Contains(c.then, "generation_tokens_total") {
			before = gauges + "sglang:generation_tokens_total 50\nsglang:prompt_tokens_total 70\n"
		}
		r.read(0, before)
		s := r.read(20*time.Second, before)
		next, err := r.profile.ReadSlow(slowPage(t, r.profile, OpenAIModels), 200, []byte(`{"data":[{"id":"m"}]}`), s.ScrapedAt, 0, s)
		if err != nil {
			t.Fatal(err)
		}
		r.last = next
		s = r.read(40*time.Second, c.then)
		if got := Restarted(next, s); got != c.restarted {
			t.Errorf("%s: restarted %t, want %t", c.name, got, c.restarted)
		}
		if got := s.Readings[telemetry.ServedModels].Recorded == telemetry.Fresh; got == c.restarted {
			t.Errorf("%s: the models are still known: %t", c.name, got)
		}
	}
}

func TestANameInQuotesIsTheSameName(t *testing.T) {
	for page, want := range map[string]string{
		"vllm:num_requests_running{engine=\"0\"} 2\n{\"vllm:num_requests_running\",engine=\"1\"} 3\n":             "fresh 5",
		"{\"vllm:num_requests_running\",engine=\"1\"} 3\n":                                                        "fresh 3",
		" { \"vllm:num_requests_running\" } 3\n":                                                                  "fresh 3",
		"# TYPE \"vllm:num_requests_running\" counter\nvllm:num_requests_running 3\n":                             "invalid: vllm:num_requests_running is a counter, which says something only over a window",
		"vllm:num_requests_running{engine=\"0\"} 2\n{\"a name with blanks\",engine=\"1\"} 3\n":                    "fresh 2",
		"vllm:num_requests_running{engine=\"0\"} 2\n{\"vllm:num_requests_running\",engine=\"0\"} 3\n":             "invalid: vllm:num_requests_running: duplicate: one series with different values",
		"vllm:num_requests_running{engine=\"0\"} 2\n{\"vllm:num_requests_running\",engine=\"1\"} 4 # {a=\"b\"}\n": "fresh 6",
	} {
		s := readPageOf(t, "vllm", page, Input{At: noon})
		wantWords(t, s, telemetry.ActiveRequests, want)
	}
	for _, line := range []string{"\"vllm:num_requests_running\" 3", "{engine=\"1\",\"vllm:num_requests_running\"} 3", "{engine=\"1\"} 3", "{\"vllm:num_requests_running\" 3", "# TYPE \"vllm:x gauge"} {
		if _, err := vllm(t).Read([]byte(minimal+line+"\n"), Input{At: noon}); !errors.Is(err, ErrNotText) {
			t.Errorf("%q: %v, want %v", line, err, ErrNotText)
		}
	}
}

func TestAnEmptyLabelIsNoLabel(t *testing.T) {
	s := readPageOf(t, "vllm", "vllm:num_requests_running{model_name=\"a\"} 5\nvllm:num_requests_running{model_name=\"a\",engine=\"\"} 5\n", Input{At: noon})
	wantWords(t, s, telemetry.ActiveRequests, "fresh 5")
}

func TestNumbersInLabelsAreThoseOfSamples(t *testing.T) {
	const blank = " "
	for text, want := range map[string]string{
		"1e3": "fresh 1000", "+7": "fresh 7",
		"0x10p0":     `invalid: vllm:cache_config_info: label kv_cache_size_tokens is "0x10p0", want a number or None`,
		"1_000":      `invalid: vllm:cache_config_info: label kv_cache_size_tokens is "1_000", want a number or None`,
		blank + "12": `invalid: vllm:cache_config_info: label kv_cache_size_tokens is " 12", want a number or None`,
		"1e300":      "invalid: value 1e+300: want 0 to 1e+15",
	} {
		s := readPageOf(t, "vllm", "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\""+text+"\"} 1\n", Input{At: noon})
		wantWords(t, s, telemetry.KVCacheCapacity, want)
	}
}

// TestModelsAreLookedUpOnceForEachSeries: a page of many models beside an endpoint
// that serves as many names costs one look at each.
func TestModelsAreLookedUpOnceForEachSeries(t *testing.T) {
	p := vllm(t)
	sc := newScratch(p)
	var page strings.Builder
	for i := range 300 {
		fmt.Fprintf(&page, "vllm:num_requests_waiting{model_name=\"m%d\",engine=\"%d\"} 1\n", i%3, i)
	}
	if err := p.scan([]byte(page.String()), sc, true); err != nil {
		t.Fatal(err)
	}
	if len(sc.names) != 3 {
		t.Errorf("%d names of models, want 3", len(sc.names))
	}
	models := make([]string, maxNames)
	for i := range models {
		models[i] = fmt.Sprintf("m%d", i+1)
	}
	s := readPageOf(t, "vllm", page.String(), Input{At: noon, Models: models})
	wantWords(t, s, telemetry.QueueDepth, "fresh 200")
}

// TestASeriesOfMoreLabelsThanAnEngineHasIsRefused before they are read: the cost of a
// page is bounded by its length.
func TestASeriesOfMoreLabelsThanAnEngineHasIsRefused(t *testing.T) {
	line := func(labels int) string {
		var b strings.Builder
		b.WriteString("vllm:num_requests_running{")
		for i := range labels {
			fmt.Fprintf(&b, "a%05d=\"=\",", i)
		}
		return b.String() + "} 5\n"
	}
	wantWords(t, readPageOf(t, "vllm", line(maxLabels), Input{At: noon}), telemetry.ActiveRequests, "fresh 5")
	wantWords(t, readPageOf(t, "vllm", line(maxLabels+1), Input{At: noon}), telemetry.ActiveRequests,
		"invalid: vllm:num_requests_running: a series of more than 128 labels")
	page := []byte(minimal + line(60_000))
	if got := allocated(func() {
		if _, err := vllm(t).Read(page, Input{At: noon}); err != nil {
			t.Fatal(err)
		}
	}); got > 16<<20 {
		t.Errorf("%d bytes for a page of %d, a profile included", got, len(page))
	}
}

// allocated is how many bytes a call asks for.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestASlowPageTakesTheMemoryOfItsLength, and not that of all it has: 1 MB of empty
// objects would be forty.
func TestASlowPageTakesTheMemoryOfItsLength(t *testing.T) {
	p := profileOf(t, "sglang")
	blank := p.Silent(noon)
	const size = 1 << 20
	many := func(begin, each, end string) []byte {
		return []byte(begin + strings.TrimSuffix(strings.Repeat(each+",", size/(len(each)+1)), ",") + end)
	}
	for name, body := range map[string][]byte{
		"empty objects":  many(`{"data":[`, `{}`, `]}`),
		"empty names":    many(`{"data":[{"id":"a"}],"version":"1","loads":[{"":0}],"x":[`, `{"":0}`, `]}`),
		"places":         many(`{"loads":[`, `{"max_running_requests":1}`, `]}`),
		"members":        many(`{`, `"":0`, `}`),
		"lists in lists": many(`{"data":[{"id":"a"}],"x":`+strings.Repeat("[", 9000), `0`, strings.Repeat("]", 9000)+`}`),
	} {
		for _, page := range p.SlowPages() {
			if page.Format == Status {
				continue
			}
			got := allocated(func() { _, _ = p.ReadSlow(page, 200, body, noon, 0, blank) })
			if got > 6*size {
				t.Errorf("%s as %s: %d bytes for a page of %d", name, page.Path, got, len(body))
			}
		}
	}
}

func TestAModelListIsReadToTheLetter(t *testing.T) {
	p := vllm(t)
	page := slowPage(t, p, OpenAIModels)
	for _, body := range []string{
		`{"data":[{"id":"a","max_model_len":4096}],"data":[{"id":"b"}]}`, `{"data":[{"id":"a","id":"b"}]}`, `{"DATA":[{"ID":"a"}]}`,
		"{\"data\":[{\"id\":\"a\xff\"}]}", `{"data":[{"id":"a"}]} trailing`, `{"data":[7]}`,
	} {
		if s, err := p.ReadSlow(page, 200, []byte(body), noon, 0, p.Silent(noon)); err == nil || s != nil {
			t.Errorf("%q is read", body)
		}
	}
	for _, c := range []struct {
		body  string
		field telemetry.Field
		want  string
	}{
		{`{"data":[{"ID":"a","MAX_MODEL_LEN":5}]}`, telemetry.ServedModels, "invalid: a model name is empty"},
		{`{"data":[{"id":7}]}`, telemetry.ServedModels, "invalid: a model name is not a text"},
		{`{"data":[{"id":"a\ud800"},{"id":"a\ud801"}]}`, telemetry.ServedModels, "invalid: a model name has what is no character"},
		{`{"data":[{"id":"a","parent":7}]}`, telemetry.AdaptersLoaded, "invalid: the parent of a model is not a text"},
		{`{"data":[{"id":"a","max_model_len":4096.5}]}`, telemetry.ContextLimit, "invalid: max_model_len is not a whole number of at least 1"},
		{`{"data":[{"id":"a","max_model_len":4096}]}`, telemetry.ContextLimit, "fresh 4096"},
	} {
		s, err := p.ReadSlow(page, 200, []byte(c.body), noon, time.Second, p.Silent(noon))
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		wantWords(t, s, c.field, c.want)
	}
	long := make([]string, 200)
	for i := range long {
		long[i] = fmt.Sprintf(`{"id":"%s%03d"}`, strings.Repeat("m", 400), i)
	}
	s, err := p.ReadSlow(page, 200, []byte(`{"data":[`+strings.Join(long, ",")+`]}`), noon, 0, p.Silent(noon))
	if err != nil {
		t.Fatal(err)
	}
	wantWords(t, s, telemetry.ServedModels, "invalid: names of more than 65536 bytes together")
}

// twice reads two pages that are 20 s apart.
func twice(t *testing.T, engine, first, second string) *telemetry.Snapshot {
	t.Helper()
	r := &pageReader{t: t, profile: profileOf(t, engine), history: &History{}}
	r.read(0, first)
	return r.read(20*time.Second, second)
}

func TestAHistogramSaysNoMoreThanItsBuckets(t *testing.T) {
	page := func(le string, count, sum int) string {
		const name = "vllm:time_to_first_token_seconds"
		text := fmt.Sprintf("%[1]s_bucket{le=\"+Inf\"} %[2]d\n%[1]s_sum %[3]d\n%[1]s_count %[2]d\n", name, count, sum)
		if le != "" {
			text += fmt.Sprintf("%s_bucket{le=%q} %d\n", name, le, count)
		}
		return minimal + text
	}
	s := twice(t, "vllm", page("", 10, 5), page("", 20, 10))
	wantWords(t, s, telemetry.TTFT, "fresh 0 at 0.5: no bucket bounds the quantiles that are left out")
	d := s.Readings[telemetry.TTFT].Detail.Distribution
	if d.Mean != 0.5 || d.Count != 10 || !math.IsNaN(d.P50) || !math.IsNaN(d.P90) || !math.IsNaN(d.P99) {
		t.Errorf("%+v", d)
	}
	for _, le := range []string{"-5", "-Inf"} {
		s := twice(t, "vllm", page(le, 10, 5), page(le, 20, 10))
		if r := &s.Readings[telemetry.TTFT]; r.Recorded != telemetry.Invalid {
			t.Errorf("le=%q: %s", le, words(telemetry.TTFT, r, s.ScrapedAt))
		}
	}
}

func TestWhatCannotBeCountedIsInvalid(t *testing.T) {
	tokens := func(n uint64) string { return minimal + fmt.Sprintf("vllm:generation_tokens_total %d\n", n) }
	s := twice(t, "vllm", tokens(1<<60), tokens(1<<60+1000))
	wantWords(t, s, telemetry.GenerationThroughput, "invalid: vllm:generation_tokens_total: 1.152921504606848e+18: the growth of more than 9007199254740992 cannot be told")
	s = twice(t, "vllm", tokens(1<<53-200), tokens(1<<53-100))
	wantWords(t, s, telemetry.GenerationThroughput, "fresh 5")

	part := func(v string) string {
		return minimal + strings.ReplaceAll("N_bucket{le=\"1\"} V\nN_bucket{le=\"+Inf\"} V\nN_sum V\nN_count V\n", "V", v)
	}
	name := strings.NewReplacer("N_", "vllm:time_to_first_token_seconds_")
	s = twice(t, "vllm", name.Replace(part("0.1")), name.Replace(part("0.2")))
	wantWords(t, s, telemetry.TTFT, "invalid: vllm:time_to_first_token_seconds_count: 0.2, want a whole number")
}

// TestARankThatIsNotOnEveryLoadFamilyIsNotZero.
func TestARankThatIsNotOnEveryLoadFamilyIsNotZero(t *testing.T) {
	const running = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n"
	s := readPageOf(t, "vllm", running+"vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n", Input{At: noon})
	wantWords(t, s, telemetry.ActiveRequests, "fresh 7")
	wantWords(t, s, telemetry.QueueDepth, "missing: vllm:num_requests_waiting shows 1 of 2 ranks that are on the page")
	wantWords(t, s, telemetry.KVCacheUtilization, "fresh 0.5 at 0.5: vllm:kv_cache_usage_perc shows 1 of 2 ranks that are on the page")
	if got := s.Readings[telemetry.QueueDepth].Support; got != telemetry.Supported {
		t.Errorf("queueDepth is %s", got)
	}
	s = readPageOf(t, "vllm", running+"vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 9\n", Input{At: noon})
	wantWords(t, s, telemetry.QueueDepth, "fresh 9")
}

// TestABadValueOnAnExportersPageIsItsOwnPods.
func TestABadValueOnAnExportersPageIsItsOwnPods(t *testing.T) {
	page := `DCGM_FI_DEV_GPU_UTIL{namespace="a",pod="x",gpu="0"} 50
DCGM_FI_DEV_GPU_UTIL{namespace="b",pod="y",gpu="1"} 130
DCGM_FI_DEV_GPU_UTIL{namespace="c",pod="z",gpu="1"} x
DCGM_FI_DEV_GPU_UTIL{namespace="a",pod="b/c",gpu="2"} 10
`
	pods, err := profileOf(t, "dcgm").ReadPods([]byte(page), "", noon, 0, map[Pod]*History{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[Pod]string{
		"a/x": "fresh 0.5",
		"b/y": "invalid: value 1.3: want 0 to 1",
		"c/z": "invalid: DCGM_FI_DEV_GPU_UTIL: a line does not parse",
	}
	for pod, readings := range pods {
		if got := words(telemetry.GPUUtilization, &readings[telemetry.GPUUtilization], noon); got != want[pod] {
			t.Errorf("%s is %s, want %s", pod, got, want[pod])
		}
	}
	if len(pods) != len(want) {
		t.Errorf("%d pods, want %d", len(pods), len(want))
	}
}

const gaugeProfile = `apiVersion: berth.dev/v1alpha1
kind: EngineProfile
name: typed
detect: {prefixes: ["t:"]}
pages: [{path: /metrics, format: prometheus}]
fields:
  generationThroughput: {unit: tokens/s, sources: [{metric: "t:speed", window: 4s}]}
  ttft: {unit: seconds, sources: [{metric: "t:wait", window: 4s}]}
`

// TestWhatIsOfAnotherTypeIsSaidToBe: the name is on the page, and not as what the
// profile takes it for.
func TestWhatIsOfAnotherTypeIsSaidToBe(t *testing.T) {
	r := readerOf(t, gaugeProfile)
	for i, v := range []int{10, 80, 20} {
		s := r.read(time.Duration(i)*3*time.Second, fmt.Sprintf("# TYPE t:speed gauge\nt:speed %d\n# TYPE t:wait gauge\nt:wait 3\n", v))
		wantWords(t, s, telemetry.GenerationThroughput, "invalid: t:speed is a gauge, which says what is now: its growth over a window means nothing")
		wantWords(t, s, telemetry.TTFT, "missing: t:wait is a gauge: want a histogram, or the sum of what was observed with count")
		if s.Incarnation != 1 {
			t.Errorf("a gauge that falls is taken for a restart: incarnation %d", s.Incarnation)
		}
	}
	for page, want := range map[string]string{
		"# TYPE t:wait summary\nt:wait{quantile=\"0.5\"} 1\nt:wait_sum 3\nt:wait_count 2\n": "missing: t:wait is a summary: want a histogram, or the sum of what was observed with count",
		"t:wait 3\n":                "missing: t:wait has no buckets: want a histogram",
		"# TYPE t:wait histogram\n": "missing: t:wait has no sample",
		"t:speed 1\n":               "missing: t:wait is not on the page",
	} {
		wantWords(t, readerOf(t, gaugeProfile).read(0, page), telemetry.TTFT, want)
	}
	s := readerOf(t, gaugeProfile).read(0, "# TYPE t:speed histogram\nt:speed_sum 3\nt:speed_count 1\n")
	wantWords(t, s, telemetry.GenerationThroughput, "missing: t:speed is a histogram: want a number, as t:speed_sum and t:speed_count are")
}

// TestOnlyValuesOfWorkShowThatAnEngineWorks.
func TestOnlyValuesOfWorkShowThatAnEngineWorks(t *testing.T) {
	frozen := "stale 3 at 0.1: frozen: no value on the page moved for 10s although it says that the engine works"
	for name, c := range map[string]struct {
		line func(i int) string
		want string
	}{
		"nothing moves":             {func(int) string { return "" }, frozen},
		"two values that cannot be": {func(i int) string { return "vllm:num_requests_waiting " + []string{"NaN", "-1"}[i%2] + "\n" }, frozen},
		"the label of an info":      {func(i int) string { return fmt.Sprintf("vllm:cache_config_info{engine=\"0\",x=\"%d\"} 1\n", i) }, frozen},
		"the time of an info":       {func(i int) string { return fmt.Sprintf("vllm:lora_requests_info{max_lora=\"1\"} %d\n", 1700000000+i) }, frozen},
		"a label of a counter":      {func(i int) string { return fmt.Sprintf("vllm:generation_tokens_total{x=\"%d\"} 7\n", i) }, frozen},
		"a counter of work":         {func(i int) string { return fmt.Sprintf("vllm:generation_tokens_total %d\n", i) }, "fresh 3"},
	} {
		h := &History{}
		var s *telemetry.Snapshot
		for i := range 13 {
			var err error
			s, err = vllm(t).Read([]byte("vllm:num_requests_running 3\n"+c.line(i)), Input{At: noon.Add(time.Duration(i) * time.Second), Previous: s, History: h, Traffic: Traffic{IdleSince: noon}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := words(telemetry.ActiveRequests, &s.Readings[telemetry.ActiveRequests], s.ScrapedAt); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestWhatNobodyCouldAnswerYetIsMarked, and what has no source is not waited for.
func TestWhatNobodyCouldAnswerYetIsMarked(t *testing.T) {
	p := parse(t, gaugeProfile)
	s, err := p.Read([]byte("t:speed 1\n"), Input{At: noon})
	if err != nil {
		t.Fatal(err)
	}
	wantWords(t, s, telemetry.Sleeping, "missing: no source: the engine's profile names none")
	if s.Readings[telemetry.Sleeping].Unread() || s.Readings[telemetry.TTFT].Unread() {
		t.Error("a field without a source, or one that its page lacks, is taken for unread")
	}
	s = mustRead(t, minimal)
	for _, f := range []telemetry.Field{telemetry.ServedModels, telemetry.ContextLimit, telemetry.EngineVersion} {
		if !s.Readings[f].Unread() || !slices.Equal(s.Readings[f].Detail.Reasons, []string{telemetry.NotRead}) {
			t.Errorf("%s is not marked: %+v", f, s.Readings[f].Detail)
		}
	}
	absent, err := vllm(t).ReadSlow(slowPage(t, vllm(t), OpenAIModels), 404, nil, noon, 0, s)
	if err != nil || absent.Readings[telemetry.ServedModels].Unread() {
		t.Errorf("a page that is not there is no answer: %v", err)
	}
}
