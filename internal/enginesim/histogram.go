package enginesim

import "slices"

// Histogram counts values by size.
type Histogram struct {
	// Bounds are the upper bounds of the buckets, inclusive and ascending; a last bucket without a bound follows.
	Bounds []float64
	// Counts holds the values in each bucket alone, one more than there are bounds.
	Counts []uint64
	Sum    float64
}

func newHistogram(bounds []float64) Histogram {
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (h *Histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.Bounds, v)
	h.Counts[i]++
	h.Sum += v
}

// Count is the number of values.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// plus returns both histograms' values in one; they have the same bounds.
func (h Histogram) plus(o Histogram) Histogram {
	all := Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts), Sum: h.Sum + o.Sum}
	for i, c := range o.Counts {
		all.Counts[i] += c
	}
	return all
}

// minus returns the values that have come since an earlier state of the same histogram; the zero Histogram is before all values.
func (h Histogram) minus(o Histogram) Histogram {
	since := Histogram{Bounds: h.Bounds, Counts: slices.Clone(h.Counts), Sum: h.Sum - o.Sum}
	for i, c := range o.Counts {
		since.Counts[i] -= c
	}
	return since
}

// Bounds are the bucket bounds of an engine's histograms, in seconds and in tokens. What the engine's page does not show needs none.
type Bounds struct {
	TTFT, ITL, TPOT, E2E, Queue, Prefill, Decode, Inference []float64
	PromptLength, OutputLength                              []float64
}

// Latencies are histograms of requests.
type Latencies struct {
	// In seconds. TTFT and E2E are measured from arrival; Queue is the time until the first admission, Prefill from there to
	// the first token, Decode from the first token to the last, Inference from admission to the last token. ITL has one value
	// per token after the first, TPOT their mean for each finished request with two tokens or more. All but ITL and, unless
	// the Cadence says otherwise, TTFT have values of finished requests only.
	TTFT, ITL, TPOT, E2E, Queue, Prefill, Decode, Inference Histogram
	// In tokens of finished requests.
	PromptLength, OutputLength Histogram
}

func newLatencies(b Bounds) Latencies {
	return Latencies{
		TTFT: newHistogram(b.TTFT), ITL: newHistogram(b.ITL), TPOT: newHistogram(b.TPOT), E2E: newHistogram(b.E2E),
		Queue: newHistogram(b.Queue), Prefill: newHistogram(b.Prefill), Decode: newHistogram(b.Decode),
		Inference: newHistogram(b.Inference), PromptLength: newHistogram(b.PromptLength), OutputLength: newHistogram(b.OutputLength),
	}
}

func (l Latencies) plus(o Latencies) Latencies { return l.with(o, Histogram.plus) }

func (l Latencies) minus(o Latencies) Latencies { return l.with(o, Histogram.minus) }

func (l Latencies) with(o Latencies, f func(a, b Histogram) Histogram) Latencies {
	return Latencies{
		TTFT: f(l.TTFT, o.TTFT), ITL: f(l.ITL, o.ITL), TPOT: f(l.TPOT, o.TPOT), E2E: f(l.E2E, o.E2E),
		Queue: f(l.Queue, o.Queue), Prefill: f(l.Prefill, o.Prefill), Decode: f(l.Decode, o.Decode),
		Inference: f(l.Inference, o.Inference), PromptLength: f(l.PromptLength, o.PromptLength),
		OutputLength: f(l.OutputLength, o.OutputLength),
	}
}
