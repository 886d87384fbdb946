package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/console"
)

// Defaults of Options.
const (
	// DefaultRate is about two thirds of what the impaired fleet can serve.
	DefaultRate    = 20.0
	DefaultLive    = 10 * time.Second
	DefaultCompare = 7 * time.Second
	DefaultSeed    = 1
)

// Options are what varies between runs of the demo.
type Options struct {
	// Envoy is the absolute path of the binary.
	Envoy string
	// Out is where the story goes.
	Out io.Writer
	// Width is the width of the terminal in columns, where the table is redrawn
	// in place. Nil writes plain text.
	Width func() int
	// Seed decides the workload: the same seed, the same requests at the same
	// times.
	Seed uint64
	// Rate is in requests per second. Above 0; default DefaultRate.
	Rate float64
	// Live and Compare are the length of the live part and of each run of a
	// comparison, until the last request is sent. Above 0; defaults
	// DefaultLive and DefaultCompare.
	Live, Compare time.Duration
	// Keep leaves the live part's fleet, picker and Envoy running after the
	// story, until the context ends.
	Keep bool
	// Command is how the story calls berthctl; default "berthctl".
	Command string
	// Dir is where the demo's temporary directory is made; empty means where
	// the system keeps such.
	Dir string
}

// Upper bounds of Options.
const (
	maxRate   = 1000.0
	maxLength = time.Hour
)

func (o Options) withDefaults() (Options, error) {
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if o.Live == 0 {
		o.Live = DefaultLive
	}
	if o.Compare == 0 {
		o.Compare = DefaultCompare
	}
	if o.Command == "" {
		o.Command = "berthctl"
	}
	var bad []error
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			bad = append(bad, fmt.Errorf("%s: %v: must be %s", field, value, allowed))
		}
	}
	check(filepath.IsAbs(o.Envoy), "Envoy", strconv.Quote(o.Envoy), "an absolute path")
	// Comparisons are written so that NaN fails them.
	check(o.Rate > 0 && o.Rate <= maxRate, "Rate", o.Rate, "above 0 and at most 1000 requests per second")
	check(o.Live > 0 && o.Live <= maxLength, "Live", o.Live, "above 0s and at most 1h")
	check(o.Compare > 0 && o.Compare <= maxLength, "Compare", o.Compare, "above 0s and at most 1h")
	return o, errors.Join(bad...)
}

// A Result is what the demo found.
type Result struct {
	Version string `json:"version"`
	Kind    string `json:"kind"`

	Live        *Live        `json:"live"`
	Comparisons []Comparison `json:"comparisons"`
	// Explained is the decision that the story explains; nil if the live part
	// made none worth it.
	Explained *v1alpha1.Decision `json:"explained,omitempty"`
}

// Run tells the whole story. It returns when the story is over, or, with Keep,
// when the context ends after it. The error is the context's, or says what went
// wrong: a part that does not start, a picker that does not notice a fault, or,
// beside the whole result, requests through the picker that failed without a
// fault.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "berth-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := &demo{Options: o, dir: dir, client: newClient(), out: &screen{w: o.Out, width: o.Width}}
	defer d.client.CloseIdleConnections()
	return d.run(ctx)
}

type demo struct {
	Options
	dir    string
	client *http.Client
	out    *screen
}

func (d *demo) run(ctx context.Context) (*Result, error) {
	result := &Result{Version: v1alpha1.Version, Kind: "Demo"}
	live, err := newStand(ctx, d.client, d.Envoy, filepath.Join(d.dir, "live"), impaired, throughPicker)
	if err != nil {
		return nil, err
	}
	closed := false
	closeLive := func() {
		if !closed {
			closed = true
			live.close()
		}
	}
	defer closeLive()
	d.introduce(live)
	if result.Live, err = runLive(ctx, live, d.out, workload(d.Seed, d.Rate, d.Live), d.Live); err != nil {
		return nil, err
	}
	decisions, err := live.decisions(ctx)
	if err != nil {
		return nil, err
	}
	if !d.Keep {
		closeLive()
	}
	for _, sh := range []shape{impaired, equal} {
		c, err := d.compare(ctx, sh)
		if err != nil {
			return nil, err
		}
		result.Comparisons = append(result.Comparisons, *c)
	}
	if result.Explained = telling(decisions); result.Explained != nil {
		if err := d.explain(result.Explained); err != nil {
			return nil, err
		}
	}
	if d.Keep {
		d.keep(live)
		<-ctx.Done()
	}
	return result, result.unexplained()
}

// unexplained is an error if requests through the picker failed without a
// fault.
func (r *Result) unexplained() error {
	failed, first := r.Live.Errors-r.Live.Cut, r.Live.FirstError
	for i := range r.Comparisons {
		s := &r.Comparisons[i].Berth
		failed += s.Errors
		if s.Errors > 0 {
			first = s.FirstError
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d requests through the picker failed without a fault that explains it; one of them: %s", failed, first)
}

// introduce says who is there.
func (d *demo) introduce(s *stand) {
	d.out.say("Four simulated replicas, a picker and Envoy, all on this machine:")
	for _, r := range s.replicas {
		line := fmt.Sprintf("  %-8s %s  vLLM, serves %s", r.Name, r.Address, model)
		if r.Note != "" {
			line += "; " + r.Note
		}
		d.out.say("%s", line)
	}
	d.out.say("  %-8s %s  configuration %s", "picker", s.picker.ExtProcAddr(), s.config)
	d.out.say("  %-8s %s  asks the picker where each request goes", "Envoy", s.envoy.Gateway)
	d.out.say("\n%s of requests from %d tenants, %.0f a second, seed %d:\n", d.Live, tenants, d.Rate, d.Seed)
}

// Names of the routers in summaries.
const (
	berthName      = "Berth"
	roundRobinName = "round robin"
)

// compare runs one workload through both routers, on fresh engines each.
func (d *demo) compare(ctx context.Context, sh shape) (*Comparison, error) {
	c := &Comparison{Fleet: sh.Name, Length: d.Compare.Seconds(), Rate: d.Rate, Seed: d.Seed}
	for _, r := range sh.Replicas {
		c.Replicas = append(c.Replicas, r.Name)
	}
	d.out.say("\nThe same requests through Berth and through Envoy's round robin, no faults, empty caches, %s each.\n%s: %s.",
		d.Compare, capitalise(sh.Name), sh.Note)
	work := workload(d.Seed, d.Rate, d.Compare)
	for _, router := range []struct {
		name   string
		before front
		to     *Summary
	}{{berthName, throughPicker, &c.Berth}, {roundRobinName, roundRobin, &c.RoundRobin}} {
		dir := filepath.Join(d.dir, strings.ReplaceAll(sh.Name+" "+router.name, " ", "-"))
		samples, err := d.oneRun(ctx, dir, sh, router.before, work)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", sh.Name, router.name, err)
		}
		*router.to = summarise(router.name, samples)
	}
	var table strings.Builder
	if err := c.table(&table); err != nil {
		return nil, err
	}
	d.out.say("%s%s", table.String(), c.verdict())
	return c, nil
}

func (d *demo) oneRun(ctx context.Context, dir string, sh shape, before front, work []request) ([]sample, error) {
	s, err := newStand(ctx, d.client, d.Envoy, dir, sh, before)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return send(ctx, d.client, s.gatewayURL(), work)
}

// telling is the decision that has most to tell: on the partial rung, if one
// was, and with the widest margin between the pick and the next. Nil if no
// request was answered.
func telling(decisions []*v1alpha1.Decision) *v1alpha1.Decision {
	var best *v1alpha1.Decision
	partial, margin := false, 0.0
	for _, d := range decisions {
		if d.Outcome == nil || d.Outcome.Cause != "complete" || d.Outcome.TTFT == nil {
			continue
		}
		p, m := d.Rung == "partial", marginOf(d)
		if best == nil || p && !partial || p == partial && m > margin {
			best, partial, margin = d, p, m
		}
	}
	return best
}

// marginOf is how far the pick's total is above the next.
func marginOf(d *v1alpha1.Decision) float64 {
	var pick, next float64
	for _, c := range d.Candidates {
		switch c.Rank {
		case 1:
			pick = c.Total
		case 2:
			next = c.Total
		}
	}
	return pick - next
}

func (d *demo) explain(decision *v1alpha1.Decision) error {
	d.out.say("\nOne decision of the first part, as `%s explain` tells it:\n", d.Command)
	var text strings.Builder
	if err := console.Explain(&text, decision); err != nil {
		return err
	}
	d.out.say("%s", strings.TrimSuffix(text.String(), "\n"))
	return nil
}

// keep says what can be tried.
func (d *demo) keep(s *stand) {
	d.out.say(`
The fleet, the picker and Envoy keep running until Ctrl-C. In another terminal:

  curl -sN %[1]s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model": "%[2]s", "stream": true, "max_tokens": 12, "messages": [{"role": "user", "content": "Is there a berth for me?"}]}'
  %[4]s top --server %[3]s
  %[4]s observe %[5]s --server %[3]s
  %[4]s explain latest --server %[3]s
  curl -s http://%[7]s/metrics

The replicas take faults. The first line makes the telemetry page of %[5]s hang, the second ends that:

  curl -s -X POST http://%[6]s/sim/faults -d '{"pageHang": true}'
  curl -s -X DELETE http://%[6]s/sim/faults`,
		s.gatewayURL(), model, s.reportsURL(), d.Command, silentReplica, s.named(silentReplica).Address,
		s.picker.MetricsAddr())
}

func capitalise(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
