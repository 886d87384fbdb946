package demo

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// A Summary is what became of one run's requests.
type Summary struct {
	// Router is who chose the replicas.
	Router   string `json:"router"`
	Requests int    `json:"requests"`
	// Errors counts the requests without a whole answer; they are in none of
	// the numbers below.
	Errors int `json:"errors"`
	// FirstError is one of them; empty if there was none.
	FirstError string `json:"firstError,omitempty"`
	// FirstToken is of streamed requests, EndToEnd of all.
	FirstToken Quantiles `json:"firstToken"`
	EndToEnd   Quantiles `json:"endToEnd"`
	// Cached is the share of prompt tokens that the engines found in their KV
	// caches, 0 to 1.
	Cached float64 `json:"cached"`
	// Served counts the answers of each replica.
	Served map[string]int `json:"served"`
}

// Quantiles are nearest-rank quantiles in seconds; zero if nothing was counted.
type Quantiles struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Count int     `json:"count"`
}

func summarise(router string, samples []sample) Summary {
	s := Summary{Router: router, Requests: len(samples), Served: map[string]int{}}
	var first, total []time.Duration
	prompt, cached := 0, 0
	for i := range samples {
		x := &samples[i]
		if x.Err != nil {
			s.Errors++
			if s.FirstError == "" {
				s.FirstError = x.Err.Error()
			}
			continue
		}
		s.Served[x.Replica]++
		total = append(total, x.End.Sub(x.Due))
		if x.FirstToken > 0 {
			first = append(first, x.FirstToken)
		}
		prompt += x.PromptTokens
		cached += x.CachedTokens
	}
	s.FirstToken, s.EndToEnd = quantiles(first), quantiles(total)
	if prompt > 0 {
		s.Cached = float64(cached) / float64(prompt)
	}
	return s
}

// quantiles sorts the samples in place.
func quantiles(samples []time.Duration) Quantiles {
	slices.Sort(samples)
	at := func(q float64) float64 {
		if len(samples) == 0 {
			return 0
		}
		return samples[rank(q, len(samples))-1].Seconds()
	}
	return Quantiles{P50: at(0.5), P90: at(0.9), P99: at(0.99), Count: len(samples)}
}

// rank is the place, from 1, of a quantile among n ordered samples: the
// smallest that is no less than a share q of them.
func rank(q float64, n int) int { return max(1, int(math.Ceil(q*float64(n)))) }

// A Comparison is the same workload through both routers.
type Comparison struct {
	// Fleet says what the fleet was like.
	Fleet    string   `json:"fleet"`
	Replicas []string `json:"replicas"`
	// Length is the seconds in which requests were sent, Rate how many a second
	// on average, from Seed.
	Length float64 `json:"length"`
	Rate   float64 `json:"rate"`
	Seed   uint64  `json:"seed"`

	Berth      Summary `json:"berth"`
	RoundRobin Summary `json:"roundRobin"`
}

// table writes the comparison for people.
func (c *Comparison) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\trequests\terrors\tTTFT p50\tp90\tp99\tend to end p50\tp99\tcached\t")
	for _, r := range c.Replicas {
		fmt.Fprintf(t, "%s\t", r)
	}
	fmt.Fprintln(t)
	for _, s := range []*Summary{&c.Berth, &c.RoundRobin} {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.0f%%\t", s.Router, s.Requests, s.Errors,
			seconds(s.FirstToken.P50), seconds(s.FirstToken.P90), seconds(s.FirstToken.P99),
			seconds(s.EndToEnd.P50), seconds(s.EndToEnd.P99), s.Cached*100)
		for _, r := range c.Replicas {
			fmt.Fprintf(t, "%d\t", s.Served[r])
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// verdict says what the numbers of the table come to.
func (c *Comparison) verdict() string {
	berth, rr := c.Berth.FirstToken, c.RoundRobin.FirstToken
	if berth.Count == 0 || rr.Count == 0 {
		return "There is no time to first token to compare: no streamed request was answered."
	}
	return fmt.Sprintf("Berth's TTFT was %s of round robin's at the 50th percentile (%s against %s) and %s at the 99th (%s against %s).\n"+
		"Of %d streamed requests the 99th percentile is the %s.",
		percent(berth.P50, rr.P50), seconds(berth.P50), seconds(rr.P50),
		percent(berth.P99, rr.P99), seconds(berth.P99), seconds(rr.P99),
		berth.Count, fromTheSlowest(berth.Count-rank(0.99, berth.Count)))
}

func percent(part, whole float64) string { return fmt.Sprintf("%.0f %%", part/whole*100) }

// fromTheSlowest names a place in the order of durations: 0 is the slowest.
func fromTheSlowest(place int) string {
	switch place {
	case 0:
		return "slowest"
	case 1:
		return "second slowest"
	case 2:
		return "third slowest"
	}
	return fmt.Sprintf("%dth slowest", place+1)
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
