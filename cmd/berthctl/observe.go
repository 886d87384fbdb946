package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/admin"
	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/console"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// patience is how long observe waits for the first whole reading, apart from
// what slow answers take.
const patience = 10 * time.Second

func observeCommand(out *output) *cobra.Command {
	var (
		o   observer
		dir string
	)
	cmd := &cobra.Command{
		Use:   "observe URL",
		Short: "Read one replica as the picker would, and print what is known of it",
		Long: "observe asks the replica whose requests go to URL, as in http://127.0.0.1:8000, for its pages and prints\n" +
			"each field: its value, where it is from, or why there is none. A path in the URL is that of the metrics\n" +
			"page. What counts over a window needs time: --for 20s fills windows of 30s.\n\n" +
			"The exit code is 1 where the replica could not be read, it is another engine than --engine says, a field\n" +
			"is invalid, or it was interrupted before there was anything to print. With --watch, the last table decides.",
		Args: exactArgs("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.address, o.metrics, err = parseReplica(args[0]); err != nil {
				return err
			}
			o.url = args[0]
			if o.profiles, err = loadProfiles(dir); err != nil {
				return err
			}
			if err := o.check(cmd, out); err != nil {
				return err
			}
			return o.observe(cmd.Context(), cmd.OutOrStdout(), out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.engine, "engine", "", "`NAME` of the engine's profile; found out from its page if it is left out")
	f.BoolVar(&o.watch, "watch", false, "print what is known every second, until it is interrupted or --for is over")
	f.DurationVar(&o.length, "for", 0, "`TIME` to read for; until every page was read once if it is left out")
	f.DurationVar(&o.timeout, "timeout", time.Second, "`TIME` limit of one page, as telemetry.timeout is the picker's")
	f.StringVar(&dir, "profiles", "", profilesUsage)
	return cmd
}

// parseReplica reads where a replica is: the address of its requests, and what
// the URL says of the metrics page.
func parseReplica(text string) (address netip.AddrPort, metrics pool.MetricsTarget, err error) {
	refuse := func(why string) (netip.AddrPort, pool.MetricsTarget, error) {
		return netip.AddrPort{}, pool.MetricsTarget{}, usageError{fmt.Errorf("URL: %q: %s", text, why)}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return refuse("must be a URL such as http://127.0.0.1:8000")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return refuse("must have a host, a port and perhaps a path, and nothing else")
	}
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" {
		return refuse("the host must be an IP address or localhost: a name may stand for several replicas")
	}
	port, err := strconv.ParseUint(map[string]string{"http": "80", "https": "443"}[u.Scheme], 10, 16)
	if u.Port() != "" {
		port, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil || port == 0 {
		return refuse("the port must be 1 to 65535")
	}
	if u.Scheme == "https" {
		metrics.Scheme = "https"
	}
	if path := u.EscapedPath(); path != "/" {
		metrics.Path = path
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), metrics, nil
}

// observer reads one replica.
type observer struct {
	url      string
	address  netip.AddrPort
	metrics  pool.MetricsTarget
	engine   string
	profiles *engine.Set
	watch    bool
	// length is how long to read; 0 is until every page was read once.
	length  time.Duration
	timeout time.Duration
}

func (o *observer) check(cmd *cobra.Command, out *output) error {
	if o.engine != "" {
		p, err := profileOf(o.profiles, "--engine", o.engine)
		if err != nil {
			return err
		}
		if p.Exporter() {
			return usageError{fmt.Errorf("--engine: %q: is an exporter of GPUs, must be an engine", o.engine)}
		}
	}
	switch {
	case cmd.Flags().Changed("for") && (o.length < 100*time.Millisecond || o.length > 24*time.Hour):
		return usageError{fmt.Errorf("--for: %s: must be from 100ms to 24h", o.length)}
	case o.timeout < 10*time.Millisecond || o.timeout > time.Minute:
		return usageError{fmt.Errorf("--timeout: %s: must be from 10ms to 1m", o.timeout)}
	case o.watch && out.format != "table":
		return usageError{fmt.Errorf("--watch: only with --output table, not %s", out.format)}
	}
	return nil
}

// observe reads the replica until there is enough, and prints what is known.
func (o *observer) observe(ctx context.Context, w io.Writer, out *output) error {
	start := time.Now()
	clock := func() telemetry.Instant { return telemetry.At(start).Add(time.Since(start)) }
	registry := pool.NewRegistry("berthctl/observe", false)
	err := registry.Update("berthctl/observe", []pool.Spec{{
		Name: o.address.String(), Address: o.address, Engine: o.engine, Ready: true, Metrics: o.metrics,
	}})
	if err != nil {
		return err
	}
	endpoint := registry.Set().Endpoints[0]
	scrapes := make(chan string, 16)
	reading, stop := context.WithCancel(ctx)
	collector := collect.New(collect.Options{
		Idle: time.Second, Timeout: o.timeout, Workers: 1, Profiles: o.profiles, Clock: clock,
		Observe: func(_, result string, _ time.Duration) {
			select {
			case scrapes <- result:
			case <-reading.Done():
			}
		},
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		collector.Run(reading, registry)
	}()
	defer func() {
		stop()
		<-ended
	}()
	look := func() *v1alpha1.Observation {
		doc := admin.Observe(registry.Set().Pool, endpoint, clock())
		return &doc
	}
	show := func(doc *v1alpha1.Observation) error {
		return out.print(w, doc, func(w io.Writer) error { return console.Observation(w, clock().Time(), doc) })
	}
	var doc *v1alpha1.Observation
	var failed []string
	if o.watch {
		doc, err = o.redraw(ctx, w, scrapes, look, show)
	} else {
		failed = o.wait(ctx, scrapes)
		if ctx.Err() == nil {
			doc = look()
			if endpoint.Snapshot() != nil || out.format != "table" {
				err = show(doc)
			}
		}
	}
	switch {
	case err != nil:
		return err
	case doc == nil:
		return errors.New("interrupted")
	case doc.ScrapeError != "" || endpoint.Snapshot() == nil:
		return o.unread(doc, failed)
	}
	return faults(o.url, doc)
}

// wait returns once the replica was read for as long as was asked for, and the
// reasons for which it was not.
func (o *observer) wait(ctx context.Context, scrapes <-chan string) (failed []string) {
	length := o.length
	if length == 0 {
		length = patience + 4*o.timeout
	}
	limit := time.NewTimer(length)
	defer limit.Stop()
	tries := 1
	if o.engine == "" {
		tries = o.probes()
	}
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return failed
		case <-limit.C:
			return failed
		case result := <-scrapes:
			if result == "ok" && o.length == 0 {
				return nil
			}
			if result == "ok" {
				failed = nil
				continue
			}
			failures++
			if !slices.Contains(failed, result) {
				failed = append(failed, result)
			}
			if o.length == 0 && failures >= tries {
				return failed
			}
		}
	}
}

// probes is how many places there are at which an engine may have its page.
func (o *observer) probes() int {
	type place struct {
		port uint16
		path string
	}
	seen := map[place]bool{}
	for _, p := range o.profiles.Engines() {
		page := p.Metrics()
		if o.metrics.Path != "" {
			page.Path = o.metrics.Path
		}
		seen[place{page.Port, page.Path}] = true
	}
	return max(1, len(seen))
}

// redraw shows what is known each second, and returns what it showed last: nil if
// it was interrupted before.
func (o *observer) redraw(
	ctx context.Context, w io.Writer, scrapes <-chan string,
	look func() *v1alpha1.Observation, show func(*v1alpha1.Observation) error,
) (last *v1alpha1.Observation, err error) {
	live := w == io.Writer(os.Stdout) && term.IsTerminal(int(os.Stdout.Fd()))
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var over <-chan time.Time
	if o.length > 0 {
		limit := time.NewTimer(o.length)
		defer limit.Stop()
		over = limit.C
	}
	first := scrapes
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case <-over:
			if last == nil {
				last = look()
			}
			return last, nil
		case <-scrapes:
			if first == nil {
				continue
			}
			// The first is shown as soon as there is something to show.
			first = nil
		case <-tick.C:
		}
		if live {
			fmt.Fprint(w, clearScreen)
		} else {
			if last != nil {
				fmt.Fprintln(w)
			}
			fmt.Fprintln(w, time.Now().Format(time.RFC3339))
		}
		last = look()
		if err := show(last); err != nil {
			return last, err
		}
	}
}

// unread says why the replica was not read, and what to do about it. An answer
// of any kind tells more than a port at which nothing is.
func (o *observer) unread(doc *v1alpha1.Observation, failed []string) error {
	if doc.ScrapeError != "" && !slices.Contains(failed, doc.ScrapeError) {
		failed = append(failed, doc.ScrapeError)
	}
	if len(failed) == 0 {
		return fmt.Errorf("%s: no answer yet; --for gives it more time", o.url)
	}
	slices.SortStableFunc(failed, func(a, b string) int { return silence(a) - silence(b) })
	known := doc.Engine
	if p := o.profiles.Profile(o.engine); p != nil {
		known = p.Name()
	}
	var lines []string
	for _, reason := range failed {
		f := console.ScrapeFailure(reason, known)
		lines = append(lines, fmt.Sprintf("%s: %s: %s", o.url, reason, f.Meaning))
		if f.Hint != "" {
			lines = append(lines, "    "+f.Hint)
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// silence is 0 for reasons that come with an answer, and 1 for the others.
func silence(reason string) int {
	switch reason {
	case "refused", "reset", "unreachable", "timeout":
		return 1
	}
	return 0
}
