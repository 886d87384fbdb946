package engine

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

func benchmarkPage(b *testing.B) []byte {
	page, err := os.ReadFile("testdata/vllm.prom")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	b.ResetTimer()
	return page
}

// BenchmarkPage is one page of 45 KB to a snapshot. It must stay below 0.6 of
// BenchmarkTextparseWalk in the same run, with at most 30 allocations.
func BenchmarkPage(b *testing.B) {
	profiles, err := Defaults()
	if err != nil {
		b.Fatal(err)
	}
	p := profiles.Profile("vllm")
	page := benchmarkPage(b)
	for b.Loop() {
		if _, err := p.Read(page, Input{At: 1}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTextparseWalk visits every sample of the same page without even
// looking at the labels.
func BenchmarkTextparseWalk(b *testing.B) {
	page := benchmarkPage(b)
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
