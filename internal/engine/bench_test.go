package engine

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/berth-dev/berth/internal/telemetry"
)

// endpoint is a busy one: whatever counts on its page has grown since it was last
// read.
type endpoint struct {
	profile *Profile
	page    []byte
	// counters are where the page has the digits of what counts.
	counters [][]byte
	grown    int
	history  History
	last     *telemetry.Snapshot
	at       telemetry.Instant
}

// What grows: counters, and histograms by values of a tenth of a second.
var (
	counterLine = regexp.MustCompile(`(?m)^(vllm:\S*(?:_total|_count)\{.*\}|vllm:.*le="(?:0\.[1-9]|[1-9]|\+Inf).*\}) \S+$`)
	sumLine     = regexp.MustCompile(`(?m)^(vllm:\S*_sum\{.*\}) \S+$`)
)

func busyEndpoint(t testing.TB) *endpoint {
	e := &endpoint{profile: vllm(t), at: laterThanEveryPage}
	e.page = counterLine.ReplaceAll(load(t, "vllm.prom"), []byte("$1 000000000000"))
	e.page = sumLine.ReplaceAll(e.page, []byte("$1 000000000000e-1"))
	for at := range bytes.Lines(e.page) {
		if i := bytes.Index(at, []byte(" 000000000000")); i >= 0 {
			e.counters = append(e.counters, at[i+1:i+13])
		}
	}
	if len(e.counters) < 50 || len(e.page) < 40_000 {
		t.Fatalf("%d counters on %d bytes", len(e.counters), len(e.page))
	}
	return e
}

// read takes the page some time after the last.
func (e *endpoint) read(t testing.TB, after time.Duration) {
	e.at = e.at.Add(after)
	e.grown++
	for n, i := 1_000_000_000+e.grown, 11; i >= 0; i-- {
		for _, digits := range e.counters {
			digits[i] = byte('0' + n%10)
		}
		n /= 10
	}
	s, err := e.profile.Read(e.page, Input{At: e.at, Previous: e.last, History: &e.history, Traffic: Traffic{BusySince: 1}})
	if err != nil {
		t.Fatal(err)
	}
	e.last = s
}

// settle reads until all windows are full.
func (e *endpoint) settle(t testing.TB, after time.Duration) {
	for range 200 {
		e.read(t, after)
	}
	for _, f := range []telemetry.Field{telemetry.TTFT, telemetry.ITL, telemetry.GenerationThroughput, telemetry.QueueDepth} {
		if r := &e.last.Readings[f]; r.Recorded != telemetry.Fresh {
			t.Fatalf("%s", scripted(f, r))
		}
	}
}

// BenchmarkPage is one page of 45 KB to a snapshot.
//
//   - first: the page of an endpoint that was never read, by a profile that knows
//     the series of others.
//   - steady: one a second, with windows. It must stay below 0.6 of
//     BenchmarkTextparseWalk in the same run.
//   - hot: one every 200 ms, of which every fifth reads the windows.
func BenchmarkPage(b *testing.B) {
	run := func(name string, read func(e *endpoint)) {
		b.Run(name, func(b *testing.B) {
			e := busyEndpoint(b)
			e.settle(b, time.Second)
			b.SetBytes(int64(len(e.page)))
			b.ReportAllocs()
			for b.Loop() {
				read(e)
			}
		})
	}
	run("first", func(e *endpoint) {
		e.history, e.last = History{}, nil
		e.read(b, time.Second)
	})
	run("steady", func(e *endpoint) { e.read(b, time.Second) })
	run("hot", func(e *endpoint) { e.read(b, 200*time.Millisecond) })
}

// BenchmarkTextparseWalk visits every sample of the same page without even
// looking at the labels.
func BenchmarkTextparseWalk(b *testing.B) {
	page := load(b, "vllm.prom")
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	symbols := labels.NewSymbolTable()
	for b.Loop() {
		parser := textparse.NewPromParser(page, symbols, false)
		var total float64
		for {
			entry, err := parser.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if entry == textparse.EntrySeries {
				_, _, v := parser.Series()
				total += v
			}
		}
		if total == 0 {
			b.Fatal("nothing read")
		}
	}
}
