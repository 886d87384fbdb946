package main

import (
	"context"
	"encoding/json"
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
	"sigs.k8s.io/yaml"

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
		o    = observer{maxPage: defaultMaxPage}
		from reports
		show = display{out: out}
		dir  string
	)
	cmd := &cobra.Command{
		Use:   "observe URL|NAME",
		Short: "Read one replica as the picker would, or ask a running picker, and print what is known of it",
		Long: "observe URL asks the replica whose requests go to URL, as in http://127.0.0.1:8000, for its pages and\n" +
			"prints each field: its value, where it is from, when it expires, or why there is none. A path in the URL\n" +
			"is that of the metrics page. What counts over a window needs time: --for 20s fills windows of 30s.\n\n" +
			"observe NAME asks the picker at --server what it knows of the replica with that name in its pool: what it\n" +
			"picks by, with its windows and with what exporters of GPUs say.\n\n" +
			"With --watch, -o json prints one document in a line every second, and -o yaml one after the other.\n\n" +
			"The exit code is 1 where the replica could not be read, it is another engine than is declared, a field is\n" +
			"invalid, or it was interrupted before there was anything to print. With --watch, what was printed last\n" +
			"decides.",
		Args: exactArgs("URL or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if show.profiles, err = loadProfiles(dir); err != nil {
				return err
			}
			show.w = cmd.OutOrStdout()
			f := cmd.Flags()
			if f.Changed("for") && (show.length < 100*time.Millisecond || show.length > 24*time.Hour) {
				return usageError{fmt.Errorf("--for: %s: must be from 100ms to 24h", show.length)}
			}
			if !strings.Contains(args[0], "://") {
				for _, flag := range []string{"engine", "timeout", "max-page"} {
					if f.Changed(flag) {
						return usageError{fmt.Errorf("--%s: only for a URL, which begins with http:// or https://: %q is the name of a replica of the picker", flag, args[0])}
					}
				}
				if f.Changed("for") && !show.watch {
					return usageError{errors.New("--for: of a replica of the picker only with --watch")}
				}
				return observeAt(cmd.Context(), &from, args[0], &show)
			}
			if f.Changed("server") {
				return usageError{fmt.Errorf("--server: only for the name of a replica of the picker: %q is a URL, and asked itself", args[0])}
			}
			if o.address, o.metrics, err = parseReplica(args[0]); err != nil {
				return err
			}
			o.url, o.profiles, o.notes = args[0], show.profiles, cmd.ErrOrStderr()
			if err := o.check(); err != nil {
				return err
			}
			return o.observe(cmd.Context(), &show)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.engine, "engine", "", "of a URL: `NAME` of the engine's profile; found out from its page if it is left out")
	f.DurationVar(&o.timeout, "timeout", time.Second, "of a URL: `TIME` limit of one page, as telemetry.timeout is the picker's")
	f.TextVar(&o.maxPage, "max-page", defaultMaxPage, "of a URL: `SIZE` limit of one page, as telemetry.maxPage is the picker's")
	from.flag(cmd)
	f.BoolVar(&show.watch, "watch", false, "print what is known every second, until it is interrupted or --for is over")
	f.DurationVar(&show.length, "for", 0, "`TIME` to read or to watch for; until every page was read once if it is left out")
	f.BoolVar(&show.wide, "wide", false, wideUsage)
	f.StringVar(&dir, "profiles", "", profilesUsage)
	return cmd
}

const wideUsage = "show the rule too by which several series became one value"

// The limits of a page, as those of telemetry.maxPage.
const (
	defaultMaxPage = 8 * v1alpha1.MiB
	leastMaxPage   = 64 * v1alpha1.KiB
	mostMaxPage    = 64 * v1alpha1.MiB
)

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
	timeout  time.Duration
	maxPage  v1alpha1.Bytes
	// notes is told what does not make a replica unreadable.
	notes io.Writer
}

func (o *observer) check() error {
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
	case o.timeout < 10*time.Millisecond || o.timeout > time.Minute:
		return usageError{fmt.Errorf("--timeout: %s: must be from 10ms to 1m", o.timeout)}
	case o.maxPage < leastMaxPage || o.maxPage > mostMaxPage:
		return usageError{fmt.Errorf("--max-page: %s: must be from %s to %s", o.maxPage, leastMaxPage, mostMaxPage)}
	}
	return nil
}

// observe reads the replica until there is enough, and shows what is known.
func (o *observer) observe(ctx context.Context, show *display) error {
	start := time.Now()
	clock := func() telemetry.Instant { return telemetry.At(start).Add(time.Since(start)) }
	show.now = func() time.Time { return clock().Time() }
	registry := pool.NewRegistry("berthctl/observe", false)
	err := registry.Update("berthctl/observe", []pool.Spec{{
		Name: o.address.String(), Address: o.address, Engine: o.engine, Ready: true, Metrics: o.metrics,
	}})
	if err != nil {
		return err
	}
	endpoint := registry.Set().Endpoints[0]
	reading, stop := context.WithCancel(ctx)
	heard := listen(reading)
	collector := collect.New(collect.Options{
		Idle: time.Second, Timeout: o.timeout, MaxPage: int64(o.maxPage), Workers: 1, Profiles: o.profiles, Clock: clock,
		Observe: heard.scraped, Logger: heard.logger(),
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		collector.Run(reading, registry)
	}()
	end := func() {
		stop()
		<-ended
	}
	defer end()
	look := func(context.Context) (*v1alpha1.Observation, error) {
		doc := admin.Observe(registry.Set().Pool, endpoint, clock())
		return &doc, nil
	}
	var doc *v1alpha1.Observation
	var failed []scrape
	if show.watch {
		first := make(chan struct{})
		go heard.forward(reading, first)
		doc, err = show.follow(ctx, first, look)
	} else {
		failed = o.wait(ctx, heard.scrapes, show.length)
		if ctx.Err() == nil {
			doc, _ = look(ctx)
			if endpoint.Snapshot() != nil || show.out.format != "table" {
				err = show.once(doc)
			}
		}
	}
	end()
	for _, note := range heard.warnings() {
		report(o.notes, fmt.Errorf("%s: %s", o.url, note))
	}
	switch {
	case err != nil:
		return err
	case doc == nil:
		return errors.New("interrupted")
	case doc.ScrapeError != "" || endpoint.Snapshot() == nil:
		return o.unread(doc, append(failed, heard.last()))
	}
	return faults(o.url, "--engine says", doc)
}

// wait returns once the replica was read for as long as was asked for, 0 for until
// every page was read, and why it was not read since it was read last.
func (o *observer) wait(ctx context.Context, scrapes <-chan scrape, length time.Duration) (failed []scrape) {
	once := length == 0
	if once {
		length = patience + 4*o.timeout
	}
	limit := time.NewTimer(length)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return failed
		case <-limit.C:
			return failed
		case s := <-scrapes:
			if s.reason == "" {
				failed = nil
			} else {
				failed = append(failed, s)
			}
			if once {
				return failed
			}
		}
	}
}

// unread says why the replica was not read, and what to do about it: the newest
// reason first, each once.
func (o *observer) unread(doc *v1alpha1.Observation, failed []scrape) error {
	known := doc.Engine
	if p := o.profiles.Profile(o.engine); p != nil {
		known = p.Name()
	}
	if doc.ScrapeError != "" && !slices.ContainsFunc(failed, func(s scrape) bool { return s.reason == doc.ScrapeError }) {
		failed = append(failed, scrape{reason: doc.ScrapeError})
	}
	told := map[string]bool{"": true}
	var all []error
	for _, s := range slices.Backward(failed) {
		if told[s.reason] {
			continue
		}
		told[s.reason] = true
		all = append(all, unreadBecause(o.url, s, o.profiles, o.profiles.Profile(known)))
	}
	if len(all) == 0 {
		return fmt.Errorf("%s: no answer yet; --for gives it more time", o.url)
	}
	return errors.Join(all...)
}

// unreadBecause says why a replica was not read and what to do about it. p is the
// profile of its engine, nil if that is not known.
func unreadBecause(name string, s scrape, set *engine.Set, p *engine.Profile) error {
	f := console.FailureOf(s.reason, set, p)
	text := fmt.Sprintf("%s: %s: %s", name, s.reason, f.Meaning)
	// The other causes are Go's, and say what the meaning says.
	if s.cause != "" && slices.Contains([]string{"redirect", "too_large", "no_text_page"}, s.reason) {
		text += ": " + console.Line(s.cause)
	}
	if f.Hint != "" {
		text += "\n    " + f.Hint
	}
	return errors.New(text)
}

// display shows observations of one replica.
type display struct {
	w        io.Writer
	out      *output
	profiles *engine.Set
	watch    bool
	// length is how long to look; 0 is until there is enough, or for ever with watch.
	length time.Duration
	wide   bool
	// now is the time of the observations.
	now func() time.Time
}

// once shows a document by itself.
func (d *display) once(doc *v1alpha1.Observation) error {
	return d.out.print(d.w, doc, d.table(doc))
}

func (d *display) table(doc *v1alpha1.Observation) func(io.Writer) error {
	view := console.View{Wide: d.wide, Profile: readBy(d.profiles, doc)}
	return func(w io.Writer) error { return view.Observation(w, d.now(), doc) }
}

// readBy is the profile that a replica is read by; nil if it is not known here.
func readBy(set *engine.Set, doc *v1alpha1.Observation) *engine.Profile {
	if p := set.Profile(doc.Engine); p != nil && p.Digest() == doc.Profile {
		return p
	}
	return nil
}

// next shows one of many documents, each in a form that programs tell from the next.
func (d *display) next(doc *v1alpha1.Observation, first, live bool) error {
	switch d.out.format {
	case "json":
		return json.NewEncoder(d.w).Encode(doc)
	case "yaml":
		text, err := yaml.Marshal(doc)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(d.w, "---\n%s", text)
		return err
	}
	switch {
	case live:
		fmt.Fprint(d.w, clearScreen)
	case !first:
		fmt.Fprintln(d.w)
	}
	if !live {
		fmt.Fprintln(d.w, time.Now().Format(time.RFC3339))
	}
	return d.table(doc)(d.w)
}

// follow shows what is known each second, and as soon as first says that there is
// something to show. It returns what it showed last, nil if it was interrupted before.
func (d *display) follow(
	ctx context.Context, first <-chan struct{}, look func(context.Context) (*v1alpha1.Observation, error),
) (last *v1alpha1.Observation, err error) {
	live := d.out.format == "table" && d.w == io.Writer(os.Stdout) && term.IsTerminal(int(os.Stdout.Fd()))
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var over <-chan time.Time
	if d.length > 0 {
		limit := time.NewTimer(d.length)
		defer limit.Stop()
		over = limit.C
	}
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case <-over:
			if last == nil {
				return look(ctx)
			}
			return last, nil
		case <-first:
			first = nil
		case <-tick.C:
		}
		doc, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return last, nil
		case err != nil:
			return last, err
		}
		if err := d.next(doc, last == nil, live); err != nil {
			return doc, err
		}
		last = doc
	}
}
