package engine

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/berth-dev/berth/internal/telemetry"
)

// checkPossible fails for a reading that no engine can have.
func checkPossible(t *testing.T, s *telemetry.Snapshot) {
	t.Helper()
	for f := range telemetry.NumFields {
		r := &s.Readings[f]
		if r.Recorded != telemetry.Fresh {
			continue
		}
		if !f.Possible(r.Value) {
			t.Errorf("%s is %v", f, r.Value)
		}
		if r.Detail == nil || r.Detail.Source == nil {
			t.Errorf("%s has a value and no source", f)
		} else if m := r.Detail.Max; m != nil && (!f.Possible(*m) || *m < r.Value) {
			t.Errorf("%s is %v, its hottest rank %v", f, r.Value, *m)
		}
	}
}

// oracle reads the sum of a gauge's series with the parser of
// prometheus/common; ok is false where its rules and ours differ by intent.
func oracle(families map[string]*dto.MetricFamily, name string) (total float64, found, ok bool) {
	var values []float64
	seen := map[string]bool{}
	for _, spelling := range []string{name, flatten(name)} {
		family := families[spelling]
		if family == nil {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetName() == "pid" || l.GetName() == "model_name" || l.GetValue() == "" {
					return 0, false, false
				}
				labels = append(labels, l.GetName()+"\x00"+l.GetValue())
			}
			slices.Sort(labels)
			key := strings.Join(labels, "\x00")
			if seen[key] {
				return 0, false, false
			}
			seen[key] = true
			var v float64
			switch {
			case m.Gauge != nil:
				v = m.Gauge.GetValue()
			case m.Untyped != nil:
				v = m.Untyped.GetValue()
			case m.Counter != nil:
				v = m.Counter.GetValue()
			default:
				return 0, false, false
			}
			if !possibleNumber(v) {
				return 0, false, false
			}
			values = append(values, v)
		}
	}
	slices.Sort(values)
	for _, v := range values {
		total += v
	}
	return total, len(values) > 0, possibleNumber(total) && len(values) <= maxSeries
}

// regexpModel finds the label that tells models apart.
var regexpModel = regexp.MustCompile(`model_name="[^"]*",?`)

// sums are the fields whose value is a plain sum of one family.
var sums = map[telemetry.Field]string{
	telemetry.QueueDepth:     "vllm:num_requests_waiting",
	telemetry.ActiveRequests: "vllm:num_requests_running",
}

func compareWithOracle(t *testing.T, page []byte, s *telemetry.Snapshot) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		// It gives up at the first bad line; nothing to compare with.
		return
	}
	for f, name := range sums {
		want, found, ok := oracle(families, name)
		if !ok {
			continue
		}
		r := &s.Readings[f]
		if fresh := r.Recorded == telemetry.Fresh; fresh != found || fresh && r.Value != want {
			t.Errorf("%s: %s; prometheus/common found %t, %v", f, say(f, r), found, want)
		}
	}
}

func TestReadingsAgreeWithTheParserOfPrometheusCommon(t *testing.T) {
	pages, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(pages) != len(onPages) {
		t.Fatalf("%d pages in testdata, %d expected: %v", len(pages), len(onPages), err)
	}
	for _, name := range pages {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// The oracle below skips labels that need a rule of their own; here
		// there is one model on each page.
		page = regexpModel.ReplaceAll(page, nil)
		s := mustRead(t, string(page))
		compareWithOracle(t, page, s)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		if _, err := parser.TextToMetricFamilies(bytes.NewReader(page)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzPage(f *testing.F) {
	for _, c := range onPages {
		page, err := os.ReadFile(filepath.Join("testdata", c.page))
		if err != nil {
			f.Fatal(err)
		}
		// Short seeds: what is not read only slows the fuzzer down.
		f.Add(seed(page))
	}
	f.Add([]byte("vllm:num_requests_waiting{engine=\"0\"} -nan\r\nvllm:num_requests_running 1 1700000000000\n"))
	f.Add([]byte("vllm:num_requests_waiting{a=\"\n\"} 1\nvllm:x{b=\"\\\"\",} 2"))
	p := vllm(f)
	f.Fuzz(func(t *testing.T, page []byte) {
		original := bytes.Clone(page)
		s, err := p.Read(page, Input{At: second})
		if !bytes.Equal(page, original) {
			t.Fatal("the page was written to")
		}
		if err != nil {
			return
		}
		checkPossible(t, s)
		for _, r := range s.Readings {
			if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
				t.Errorf("a value of %v", r.Value)
			}
		}
		if !exotic(page) {
			compareWithOracle(t, page, s)
		}
	})
}

// seed cuts a page down to the lines of families that are read.
func seed(page []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(page) {
		for _, name := range []string{"num_requests_", "cache_usage", "cache_config", "sleep_state", "process_start"} {
			if bytes.Contains(line, []byte(name)) && !bytes.HasPrefix(line, []byte("# HELP")) {
				kept = append(kept, line...)
				break
			}
		}
	}
	return kept
}

// exotic reports forms that the two parsers treat differently by intent: metric
// names in quotes, which no engine writes with text 0.0.4, and bare carriage
// returns.
func exotic(page []byte) bool {
	return bytes.Contains(page, []byte(`{"`)) || bytes.Contains(page, []byte(`,"`)) || bytes.ContainsAny(page, "\r\x00\v\f")
}
