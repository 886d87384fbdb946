package host

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/discovery"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

// task is something that runs until it is stopped.
type task struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func start(ctx context.Context, run func(ctx context.Context)) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		run(ctx)
	}()
	return t
}

// stopGrace is how long a task may take to end. One that hangs in a call to the
// system, for instance to a file system that does not answer, is left behind.
const stopGrace = 5 * time.Second

// stop ends the task and waits for it. A nil task has ended.
func (t *task) stop() {
	if t == nil {
		return
	}
	t.cancel()
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-t.ended:
	case <-timer.C:
	}
}

// watch reloads the configuration when its file changes.
func (h *Host) watch(ctx context.Context) {
	again := start(ctx, h.tryAgain)
	defer again.stop()
	err := policy.Watch(ctx, h.opts.ConfigFile, plugins.Catalog{}, func(p *policy.Policy, warnings []policy.Warning, err error) {
		switch {
		case err != nil:
			h.refused(nil, err)
			return
		case h.inForce(p):
			h.goodAgain(p)
			return
		}
		if err := h.reload(p); err != nil {
			h.refused(p, err)
			return
		}
		for _, w := range warnings {
			h.opts.Log.Warn("configuration", zap.String("warning", w.String()))
		}
		h.loaded(p)
	})
	if err != nil && ctx.Err() == nil {
		h.opts.Log.Error("the configuration file is not watched", zap.Error(err))
	}
}

// refused keeps the configuration that is in force, since another one could not be
// read. Next is that one if it is valid, and is tried again until the file says
// something else.
func (h *Host) refused(next *policy.Policy, err error) {
	h.mu.Lock()
	h.awaited, h.lastRefused = next, true
	h.mu.Unlock()
	fields := []zap.Field{zap.Error(err)}
	if ids := h.decider.active.Load().policy.KeyIDs(); ids != nil {
		fields = append(fields, zap.Strings("keys", ids))
	}
	h.opts.Log.Error("configuration not loaded; the last good one stays in force", fields...)
	h.metrics.reloads.WithLabelValues("failed").Inc()
}

// goodAgain tells, if the last configuration was refused, that the file says once more
// what is in force. Otherwise it was read again for nothing.
func (h *Host) goodAgain(p *policy.Policy) {
	h.mu.Lock()
	mended := h.lastRefused
	h.awaited, h.lastRefused = nil, false
	h.mu.Unlock()
	if !mended {
		return
	}
	h.opts.Log.Info("configuration is good again; it is the one in force", zap.String("policy", p.Digest))
	h.metrics.reloads.WithLabelValues("ok").Inc()
}

func (h *Host) loaded(p *policy.Policy) {
	h.opts.Log.Info("configuration loaded", zap.String("policy", p.Digest))
	h.tellReplaced(p)
	h.metrics.reloads.WithLabelValues("ok").Inc()
}

// tellReplaced says which engines are read by other profiles than one would expect of
// this binary.
func (h *Host) tellReplaced(p *policy.Policy) {
	if names := p.ReplacedProfiles(); len(names) > 0 {
		h.opts.Log.Info("engine profiles of the configuration stand instead of built-in ones", zap.Strings("engines", names))
	}
}

// againAfter is how often a configuration is tried again that is valid and could
// not be put into force, for instance since its pool file is not there yet.
const againAfter = 2 * time.Second

// tryAgain puts the configuration that waits into force as soon as it can be.
func (h *Host) tryAgain(ctx context.Context) {
	tick := time.NewTicker(againAfter)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if p := h.reloadAwaited(); p != nil {
			h.loaded(p)
		}
	}
}

// reloadAwaited puts the configuration that waits into force, and returns it; nil
// where there is none, or where it still cannot be.
func (h *Host) reloadAwaited() *policy.Policy {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.awaited
	if p == nil || h.reloadLocked(p) != nil {
		return nil
	}
	return p
}

// inForce reports whether a file that was read again still means the same.
func (h *Host) inForce(p *policy.Policy) bool {
	now := h.decider.active.Load().policy
	return p.Digest == now.Digest && p.SameKeys(now) && reflect.DeepEqual(p.Pool, now.Pool)
}

// reload puts a policy into force.
func (h *Host) reload(p *policy.Policy) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reloadLocked(p)
}

func (h *Host) reloadLocked(p *policy.Policy) error {
	was := h.decider.active.Load().policy
	act, err := activate(p)
	if err != nil {
		return err
	}
	// A pool may name the engines that there are profiles for.
	engines := !sameProfiles(p.Engines, was.Engines)
	if p.Discovery != was.Discovery || p.Pool != nil || engines {
		if err := h.followLocked(p); err != nil {
			return err
		}
	}
	if p.Limits.Listener != h.listener && p.Limits.Listener != was.Limits.Listener {
		h.opts.Log.Warn("limits.message (by default limits.body and 1MiB more), limits.streamsPerConnection and limits.keepalive "+
			"differ from what they were at the start: they act after a restart",
			zap.Stringer("now", p.Limits.Listener), zap.Stringer("atStart", h.listener))
	}
	h.ledger.SetLimit(p.Ledger.Ring)
	if p.Limits.Buffered != was.Limits.Buffered {
		h.opts.Buffered(p.Limits.Buffered)
	}
	h.awaited, h.lastRefused = nil, false
	h.decider.active.Store(act)
	h.tellKeys(was, p)
	h.metrics.policyInForce(p.Digest)
	if p.Telemetry != was.Telemetry || engines || !slices.Equal(p.Exporters, was.Exporters) {
		h.scrapeLocked(p)
	}
	return nil
}

// tellKeys logs a change of the keys that verify signed intents: the digest of a policy
// does not show it.
func (h *Host) tellKeys(was, now *policy.Policy) {
	if now.SameKeys(was) {
		return
	}
	change := now.KeysSince(was)
	h.opts.Log.Info("keys of signed intents changed", zap.String("policy", now.Digest), zap.String("keySet", now.Intent.KeySet),
		zap.Strings("added", change.Added), zap.Strings("removed", change.Removed), zap.Strings("replaced", change.Replaced))
}

// sameProfiles reports whether pages are read by a as they are by b.
func sameProfiles(a, b *engine.Set) bool {
	return slices.EqualFunc(a.Profiles(), b.Profiles(), func(a, b *engine.Profile) bool { return a.Digest() == b.Digest() })
}

// follow takes endpoints from where the policy says.
func (h *Host) follow(p *policy.Policy) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.followLocked(p)
}

func (h *Host) followLocked(p *policy.Policy) error {
	if p.Pool != nil {
		h.feed.stop()
		h.feed = nil
		return discovery.Apply(h.pools, p.Pool)
	}
	if p.Discovery.File == "" {
		return fmt.Errorf("%s: discovery: names no endpoints: give discovery.file, or a StaticPool document", h.opts.ConfigFile)
	}
	// The new source is loaded before the old one is let go.
	file, err := discovery.LoadFile(p.Discovery.File, h.pools, discovery.FileOptions{
		Log:     zapr.NewLogger(h.opts.Log),
		Engines: p.Engines,
		Loaded: func(_ *policy.Pool, err error) {
			result := "ok"
			if err != nil {
				result = "failed"
			}
			h.metrics.reloads.WithLabelValues(result).Inc()
		},
	})
	if err != nil {
		return p.PoolFileError(err)
	}
	h.feed.stop()
	h.feed = start(context.Background(), func(ctx context.Context) {
		if err := file.Run(ctx); err != nil {
			h.opts.Log.Error("the pool file is not watched", zap.Error(err))
		}
	})
	return nil
}

// scrape reads engines as the policy says.
func (h *Host) scrape(p *policy.Policy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapeLocked(p)
}

func (h *Host) scrapeLocked(p *policy.Policy) {
	h.scraping.stop()
	h.scraping = nil
	h.pools.SetTelemetryNone(p.Telemetry.Mode == v1alpha1.TelemetryNone)
	if p.Telemetry.Mode == v1alpha1.TelemetryNone {
		return
	}
	t := p.Telemetry
	collector := collect.New(collect.Options{
		Hot: t.Hot, Warm: t.Warm, Idle: t.Idle,
		Timeout:   t.Timeout,
		MaxPage:   t.MaxPage,
		Workers:   t.Workers,
		Profiles:  p.Engines,
		Exporters: exporters(p),
		Clock:     h.opts.Clock,
		Logger:    h.opts.Log,
		Observe:   h.metrics.scraped,
	})
	h.scraping = start(context.Background(), func(ctx context.Context) { collector.Run(ctx, h.pools) })
}

// exporters are those of the policy, with their profiles.
func exporters(p *policy.Policy) []collect.Exporter {
	list := make([]collect.Exporter, len(p.Exporters))
	for i, e := range p.Exporters {
		list[i] = collect.Exporter{Profile: p.Engines.Profile(e.Profile), Address: e.Address, Scheme: e.Scheme}
	}
	return list
}
