package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

// FuzzPage reads any page by every profile that is built in, and holds what is
// seen on it against the parser of prometheus/common.
func FuzzPage(f *testing.F) {
	set := defaults(f)
	for _, page := range seedPages(f) {
		f.Add(page)
	}
	f.Add([]byte("vllm:num_requests_waiting{engine=\"0\"} -nan\r\nvllm:num_requests_running 1 1700000000000\n"))
	f.Add([]byte("vllm:num_requests_waiting{a=\"\n\"} 1\nvllm:x{b=\"\\\"\",} 2"))
	f.Add([]byte("vllm:kv_cache_usage_perc{pid=\"1\"} NaN\nvllm:kv_cache_usage_perc{pid=\"2\"} 0.5 # {x=\"}\"} 1\n"))
	f.Add([]byte("sglang:num_running_reqs{a=\"\",tp_rank=\"x\"} 1\nsglang_num_running_reqs{tp_rank=\"0\"} 2\n"))
	f.Add([]byte("vllm:num_requests_waiting{engine=\"0\"}\t0x1p1\t\nvllm:num_requests_running\t 1_0 \n"))
	f.Add([]byte("{\"vllm:num_requests_waiting\",engine=\"1\"} 3 1\n# TYPE \"vllm:x\" gauge\nvllm:num_requests_running\x00 5\n"))
	f.Add([]byte("vllm:cache_config_info{" + strings.Repeat("a=\"\",", maxLabels+1) + "} 1\n"))
	var plain []*Profile
	for _, p := range set.Profiles() {
		f.Add(everyFamily(p))
		plain = append(plain, asScanned(f, p))
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		original := bytes.Clone(page)
		byName := parsedByCommon(page)
		for i, p := range set.Profiles() {
			if p.Exporter() {
				checkPodsOf(t, p, page)
			} else if s, err := p.Read(page, Input{At: scriptBegins}); err == nil {
				checkPossible(t, s)
				// A page is read the same when its series are known.
				again, err := p.Read(page, Input{At: scriptBegins})
				if err != nil || !reflect.DeepEqual(again, s) {
					t.Fatalf("read again, %v:\n%s\nfirst:\n%s", err, sayEverything(again), sayEverything(s))
				}
			}
			compareWithCommon(t, plain[i], page, byName)
		}
		if !bytes.Equal(page, original) {
			t.Fatal("the page was written to")
		}
	})
}

func checkPodsOf(t *testing.T, p *Profile, page []byte) {
	pods, err := p.ReadPods(page, "", scriptBegins, time.Second, map[Pod]*History{})
	if err != nil {
		return
	}
	for pod, readings := range pods {
		if pod == anyPod {
			t.Error("readings of no pod")
		}
		s := p.Silent(scriptBegins)
		Join(s, readings)
		checkPossible(t, s)
	}
}

// seedPages are the pages of testdata, cut down: what is not read only slows the
// fuzzer down.
func seedPages(f *testing.F) (pages [][]byte) {
	paths, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(paths) == 0 {
		f.Fatalf("%d pages, %v", len(paths), err)
	}
	for _, path := range paths {
		page, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		var kept []byte
		for line := range bytes.Lines(page) {
			if len(line) < 400 && len(kept) < 1500 && worthASeed.Match(line) && !bytes.HasPrefix(line, []byte("# HELP")) {
				kept = append(kept, line...)
			}
		}
		pages = append(pages, kept)
	}
	return pages
}

var worthASeed = regexp.MustCompile(`(num_|requests_)(running|waiting|queue|active)|usage|cache_config|sleep_state|process_start|` +
	`snapshot|timestamp|first_token_seconds|prompt_tokens_total|request_metrics|block_metrics|inference_request|GPU_UTIL|_FB_|POWER|gfx_activity|vram|package_power`)

// FuzzWindow reads any two pages one after the other, 30 s apart.
func FuzzWindow(f *testing.F) {
	set := defaults(f)
	for _, page := range seedPages(f) {
		f.Add(page, page)
	}
	histogram := func(buckets ...string) []byte {
		var page strings.Builder
		for i, le := range []string{"0.1", "0.5", "+Inf"} {
			page.WriteString("vllm:time_to_first_token_seconds_bucket{le=\"" + le + "\"} " + buckets[i] + "\n")
		}
		page.WriteString("vllm:time_to_first_token_seconds_count " + buckets[2] + "\nvllm:time_to_first_token_seconds_sum " + buckets[3] + "\n")
		return []byte(page.String())
	}
	f.Add(histogram("1", "2", "3", "1"), histogram("5", "8", "9", "4"))
	f.Add(histogram("1", "2", "3", "1"), histogram("0", "8", "9", "4"))
	f.Add(histogram("0", "0", "0", "0"), histogram("1e308", "1e308", "1e308", "1e308"))
	f.Add(histogram("0", "0", "0", "0"), histogram("0.5", "0.5", "0.5", "1e308"))
	f.Add([]byte("vllm:prompt_tokens_total{engine=\"0\"} 1e308\nvllm:prompt_tokens_total{engine=\"1\"} 1e308\n"), []byte("vllm:prompt_tokens_total{engine=\"0\"} 1.5e308\n"))
	f.Add([]byte("vllm:prefix_cache_hits_total 1\nvllm:prefix_cache_queries_total 1\n"), []byte("vllm:prefix_cache_hits_total 9\nvllm:prefix_cache_queries_total 2\n"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		for _, p := range set.Engines() {
			h := &History{}
			var last *telemetry.Snapshot
			for i, page := range [][]byte{first, second, second} {
				s, err := p.Read(page, Input{At: scriptBegins.Add(time.Duration(i) * 30 * time.Second), Previous: last, History: h})
				if err != nil {
					continue
				}
				checkPossible(t, s)
				last = s
			}
		}
	})
}

// FuzzProfile parses any text. What it takes for a profile can be used, and is
// the same profile when it is parsed again.
func FuzzProfile(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(whole))
	for _, p := range defaults(f).Profiles() {
		f.Add(p.Text())
	}
	f.Add([]byte("fields: {queueDepth: {sources: [{}]}}"))
	f.Add([]byte("a: &a [*a]\n"))
	page := []byte("small:waiting{rank=\"0\"} 4\nw:waiting{kind=\"a\"} 4\nw:kv 0.5\nw:ttft_sum 1\nw:ttft_count 1\nw:ttft_bucket{le=\"+Inf\"} 1\n" +
		"vllm:num_requests_waiting 1\nvllm:cache_config_info{block_size=\"16\"} 1\nsglang:num_running_reqs 3\natom:requests_waiting 2\n")
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("fuzz.yaml", text)
		if err != nil {
			if list := Faults(err); len(list) > maxFaults+1 || p != nil {
				t.Errorf("%d faults, or a profile with them: %v", len(list), err)
			}
			for _, fault := range Faults(err) {
				words := fault.Error()
				if !strings.HasPrefix(words, "fuzz.yaml:") {
					t.Errorf("an error without the file: %v", fault)
				}
				if len(words) > 4096 || strings.ContainsFunc(words, unprintable) {
					t.Errorf("an error that does not fit in a line: %.100q", words)
				}
			}
			return
		}
		again, err := Parse("fuzz.yaml", p.Text())
		if err != nil || again.Digest() != p.Digest() {
			t.Fatalf("its text parsed again: %v", err)
		}
		set, err := NewSet(p)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = set.Detect(page)
		if s, err := p.Read(page, Input{At: second, History: &History{}}); err == nil {
			checkPossible(t, s)
		}
	})
}

// FuzzSlow reads any answer as each of the slow pages of every profile.
func FuzzSlow(f *testing.F) {
	for _, body := range []string{
		`{"data":[{"id":"m","parent":null,"max_model_len":8192,"owned_by":"vllm"}],"version":"0.32.0"}`,
		`{"data":[{"id":"a","parent":"m"}],"version":7}`,
		`{"data":[{"id":"a","max_model_len":1e300},{"id":"a"}]}`,
		`{"version":"1","disable_radix_cache":false,"loads":[{"max_running_requests":3},{"max_running_requests":1e15}]}`,
		`{"loads":[{"max_running_requests":-1},null,3,{"max_running_requests":"x"}],"version":""}`,
		`{"data":[{"id":"a"}],"data":[{"id":"b"}],"version":"1","version":"2"}`, `{"data":[{},{},{"id":"a\ud800"}],"loads":[{},{"max_running_requests":5.5}]}`,
		`{"version":{"version":[]},"loads":{"max_running_requests":1}}`, `[]`, `{}`, ``, "\xff", `{"version":"\u0000"}`,
	} {
		for _, status := range []int{200, 404, 503, 400, 0} {
			f.Add(status, []byte(body))
		}
	}
	set := defaults(f)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		Owners(body)
		for _, p := range set.Profiles() {
			blank := p.Silent(second)
			before := *blank
			for _, page := range p.SlowPages() {
				s, err := p.ReadSlow(page, status, body, second, time.Second, blank)
				if err != nil {
					if s != nil {
						t.Errorf("%s: an error with a snapshot", page.Path)
					}
					continue
				}
				checkPossible(t, s)
			}
			if *blank != before {
				t.Errorf("%s: the snapshot before was changed", p.Name())
			}
		}
	})
}
