// Package host puts a picker together and runs it: policy, discovery,
// telemetry, placement, the ext_proc server and the other listeners.
//
// Start checks everything that can be wrong with a configuration and binds all
// listeners before anything runs, so that nothing half starts. A reload builds a
// whole new policy and swaps it in one step; requests in flight end under the
// policy that they began with, and a configuration that does not load leaves
// the last good one in force.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/admin"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins"
)

// Options are what the command line says.
type Options struct {
	// ConfigFile is the configuration of INTERFACES: EndpointPickerConfig,
	// BerthConfiguration, StaticPool.
	ConfigFile string
	// Addresses to listen on; port 0 takes any free one.
	ExtProcAddress, HealthAddress, MetricsAddress, AdminAddress string
	// ExtProcTLS is the TLS of the ext_proc listener: TLSOff, TLSSelfSigned, or a
	// directory with tls.crt and tls.key, which is followed. Empty is TLSOff. The
	// other listeners have none.
	ExtProcTLS string
	// DecisionLog gets one line of JSON per ended request; nil writes none.
	DecisionLog io.Writer
	Log         *zap.Logger
	// Buffered is told the bytes of request bodies that may be held at once, at
	// the start and when a reload changes them; nil is allowed.
	Buffered func(bytes int64)
	// Clock must not go back; nil takes one that does not.
	Clock telemetry.Clock
	// Wall is the time of day as other machines have it; nil takes the system's.
	Wall func() time.Time
}

// Host is a running picker.
type Host struct {
	opts     Options
	pools    *pool.Registry
	decider  *decider
	reporter *reporter
	metrics  *metrics
	ledger   *ledger.Ledger
	extproc  *extproc.Server
	grpc     *grpc.Server
	healthz  *grpc.Server
	health   *healthServer
	metricsH *http.Server
	adminH   *http.Server

	extprocL, healthL, metricsL, adminL net.Listener

	// listener is what the ext_proc listener goes by since the start.
	listener policy.Listener

	// identity is the ext_proc listener's certificate; nil without TLS.
	identity *identity

	// watching is what reloads, certifying what follows the certificate, telling what
	// logs lost readings.
	watching, certifying, telling *task
	// mu orders reloads; feed and scraping are what a reload may restart.
	mu       sync.Mutex
	feed     *task
	scraping *task
	// awaited is a valid configuration that could not be put into force yet.
	awaited *policy.Policy
	// lastRefused is set while the file is not the configuration in force, since what
	// it says was refused.
	lastRefused bool
}

// steadyClock tells the time of day as it was at the start plus the time that
// has passed since: a step of the wall clock must not make readings fresh or
// stale.
func steadyClock() telemetry.Clock {
	start := time.Now()
	at := telemetry.At(start)
	return func() telemetry.Instant { return at.Add(time.Since(start)) }
}

// Start loads the configuration, binds the listeners and starts to serve. The
// error says what is wrong and where; nothing is left running then.
func Start(ctx context.Context, opts Options) (*Host, error) {
	if opts.Clock == nil {
		opts.Clock = steadyClock()
	}
	if opts.Wall == nil {
		opts.Wall = time.Now
	}
	p, warnings, err := policy.Load(opts.ConfigFile, plugins.Catalog{})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		opts.Log.Warn("configuration", zap.String("warning", w.String()))
	}
	act, err := activate(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opts.ConfigFile, err)
	}
	h := &Host{
		opts:     opts,
		listener: p.Limits.Listener,
		pools:    pool.NewRegistry("", p.Telemetry.Mode == v1alpha1.TelemetryNone),
	}
	if opts.Buffered == nil {
		h.opts.Buffered = func(int64) {}
	}
	h.opts.Buffered(p.Limits.Buffered)
	h.metrics = newMetrics(h.pools, opts.Clock)
	if h.identity, err = newIdentity(opts.ExtProcTLS, h.metrics, opts.Log); err != nil {
		return nil, err
	}
	if err := h.listen(); err != nil {
		return nil, err
	}
	h.ledger = ledger.New(p.Ledger.Ring, opts.DecisionLog, func(result string) {
		h.metrics.ledgerRecords.WithLabelValues(result).Inc()
	})
	h.decider = newDecider(h.pools, opts.Clock, opts.Wall, &recorder{ledger: h.ledger}, h.metrics)
	h.decider.active.Store(act)
	h.metrics.fleet.policy = func() *policy.Policy { return h.decider.active.Load().policy }
	h.reporter = &reporter{pools: h.pools, index: h.decider.index, clock: opts.Clock}
	h.metrics.condition(h.reporter)
	h.metrics.policyInForce(p.Digest)
	h.ledger.OnLogError(func(err error) {
		if err != nil {
			opts.Log.Error("decision records are being lost: the decision log cannot be written", zap.Error(err))
			return
		}
		opts.Log.Info("the decision log can be written again")
	})
	h.ledger.OnLogBehind(func(behind bool) {
		if behind {
			opts.Log.Error("decision records are being dropped: the decision log does not keep up")
			return
		}
		opts.Log.Info("the decision log keeps up again")
	})
	if err := h.follow(p); err != nil {
		h.closeListeners()
		h.ledger.Flush(flushGrace)
		return nil, err
	}
	h.scrape(p)
	h.serve()
	h.watching = start(ctx, h.watch)
	h.certifying = start(ctx, h.identity.follow)
	h.telling = start(ctx, newLoadWatch(h.metrics.fleet, opts.Log).run)
	opts.Log.Info("serving",
		zap.String("extproc", h.extprocL.Addr().String()), zap.String("health", h.healthL.Addr().String()),
		zap.String("metrics", h.metricsL.Addr().String()), zap.String("admin", h.adminL.Addr().String()),
		zap.String("extprocTLS", cmp.Or(opts.ExtProcTLS, "off")),
		zap.String("policy", p.Digest), zap.Int("endpoints", len(h.pools.Set().Endpoints)))
	h.tellReplaced(p)
	return h, nil
}

// activate builds what requests are decided by.
func activate(p *policy.Policy) (*active, error) {
	scorers := make([]placement.Scorer, 0, len(p.Profile.Scorers))
	for _, ref := range p.Profile.Scorers {
		s, err := plugins.Scorer(ref.Type, ref.Name, ref.Weight, ref.Parameters)
		if err != nil {
			return nil, fmt.Errorf("plugin %q: %w", ref.Name, err)
		}
		scorers = append(scorers, s)
	}
	plan, err := placement.NewPlan(scorers, p.Placement.Quorum)
	if err != nil {
		return nil, err
	}
	plain := p.Trust.Headers
	if !p.Trust.PlainHeaders {
		plain = nil
	}
	intents, err := intent.NewReader(intent.Options{
		Required:     p.Intent.Required,
		Metadata:     p.Intent.Metadata,
		Keys:         p.Intent.Keys,
		Audience:     p.Intent.Audience,
		Skew:         p.Intent.Skew,
		PlainHeaders: plain,
		Aliases:      p.Models.Aliases,
	})
	if err != nil {
		return nil, err
	}
	return &active{policy: p, plan: plan, intents: intents, headers: slices.Sorted(maps.Keys(p.Trust.Headers))}, nil
}

func (h *Host) listen() error {
	for _, l := range []struct {
		flag, address string
		to            *net.Listener
	}{
		{"--extproc-address", h.opts.ExtProcAddress, &h.extprocL},
		{"--health-address", h.opts.HealthAddress, &h.healthL},
		{"--metrics-address", h.opts.MetricsAddress, &h.metricsL},
		{"--admin-address", h.opts.AdminAddress, &h.adminL},
	} {
		listener, err := net.Listen("tcp", l.address)
		if err != nil {
			h.closeListeners()
			return fmt.Errorf("%s %s: %w", l.flag, l.address, err)
		}
		*l.to = listener
	}
	return nil
}

func (h *Host) closeListeners() {
	for _, l := range []net.Listener{h.extprocL, h.healthL, h.metricsL, h.adminL} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Flow-control windows, bytes. All streams of a gateway share a few connections:
// with gRPC's small default windows large uploads hold each other up, and small
// requests behind them.
const (
	streamWindow     = 1 << 20
	connectionWindow = 16 << 20
)

func (h *Host) serve() {
	h.extproc = extproc.NewServer(extproc.Options{
		Begin: h.begin,
		Clock: h.opts.Clock,
		Panicked: func(value any, stack []byte) {
			h.metrics.panics.Inc()
			h.opts.Log.Error("contained a fault", zap.String("panic", fault(value)), zap.ByteString("stack", stack))
		},
		Refused: h.decider.refusedByProtocol,
		Blind: func(mode string) {
			h.opts.Log.Warn("the gateway does not show request bodies before a replica must be picked: "+
				"requests are placed by their headers, and what their bodies say is not screened for", zap.String("requestBodyMode", mode))
		},
	})
	l := h.listener
	h.grpc = grpc.NewServer(append(append(h.identity.grpcOptions(), extproc.GRPCOptions()...),
		grpc.MaxRecvMsgSize(int(l.Message)),
		grpc.MaxHeaderListSize(metadataLimit),
		grpc.MaxConcurrentStreams(uint32(l.StreamsPerConnection)),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: l.KeepaliveInterval, Timeout: l.KeepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: l.GatewayInterval, PermitWithoutStream: true}),
	)...)
	h.metrics.follow(h.extproc.Held, h.extproc.Streams)
	extprocv3.RegisterExternalProcessorServer(h.grpc, h.extproc)
	h.health = newHealthServer()
	h.healthz = grpc.NewServer(grpc.MaxConcurrentStreams(maxWatches))
	healthv1.RegisterHealthServer(h.healthz, h.health)
	// Gateways may also ask on the port that they use.
	healthv1.RegisterHealthServer(h.grpc, h.health)

	const headerTimeout = 5 * time.Second
	h.metricsH = &http.Server{Handler: admin.Metrics(h.metrics.registry, h.ready), ReadHeaderTimeout: headerTimeout}
	h.adminH = &http.Server{
		Handler:           admin.Reports(admin.Options{Pools: h.pools, Ledger: h.ledger, Clock: h.opts.Clock, Pool: h.reporter.report}),
		ReadHeaderTimeout: headerTimeout,
	}
	// Each ends with an error when it is stopped, and for no other reason.
	go func() { _ = h.grpc.Serve(h.extprocL) }()
	go func() { _ = h.healthz.Serve(h.healthL) }()
	go func() { _ = h.metricsH.Serve(h.metricsL) }()
	go func() { _ = h.adminH.Serve(h.adminL) }()
}

// metadataLimit is how much gRPC metadata a gateway may send with a stream, bytes:
// far above what gateways do send, which is next to nothing.
const metadataLimit = 64 << 10

// fault describes what was panicked with. Only the runtime's own words are told:
// another value may hold what a request said.
func fault(value any) string {
	if err, ok := value.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("a value of type %T", value)
}

// begin is what a new stream goes by.
func (h *Host) begin() (extproc.Settings, extproc.Decider) {
	s := h.decider.begin()
	p := s.act.policy
	return extproc.Settings{
		Keep:             s.act.headers,
		BodyLimit:        p.Limits.Body,
		Buffered:         p.Limits.Buffered,
		Streams:          p.Limits.Streams,
		HeaderCount:      p.Limits.HeaderCount,
		HeaderBytes:      p.Limits.HeaderBytes,
		UploadIdle:       p.Limits.UploadIdle,
		UploadTime:       p.Limits.UploadTime,
		DecisionDeadline: p.Limits.DecisionDeadline,
		PassTrailers:     p.Gateway.RequestTrailers == v1alpha1.TrailersPass,
	}, s
}

func (h *Host) ready() error {
	if h.health.ending.Err() != nil {
		return errors.New("the picker is shutting down")
	}
	if len(h.pools.Set().Endpoints) == 0 {
		return errors.New("the pool has no endpoints")
	}
	return nil
}

// ExtProcAddr is where the ext_proc listener is.
func (h *Host) ExtProcAddr() net.Addr { return h.extprocL.Addr() }

// HealthAddr is where the gRPC health listener is.
func (h *Host) HealthAddr() net.Addr { return h.healthL.Addr() }

// MetricsAddr is where /metrics, /healthz and /readyz are.
func (h *Host) MetricsAddr() net.Addr { return h.metricsL.Addr() }

// AdminAddr is where the reports are.
func (h *Host) AdminAddr() net.Addr { return h.adminL.Addr() }

// Stop drains and ends the picker: health turns to NOT_SERVING and no new
// stream is taken at once, running requests may end within limits.drain, then
// those left are refused or cut.
func (h *Host) Stop() {
	h.health.Shutdown()
	drain := h.decider.active.Load().policy.Limits.Drain
	drained := make(chan struct{})
	go func() {
		h.grpc.GracefulStop()
		close(drained)
	}()
	timer := time.NewTimer(drain)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		h.extproc.Quit()
		grace := time.NewTimer(quitGrace)
		defer grace.Stop()
		select {
		case <-drained:
		case <-grace.C:
			h.grpc.Stop()
			<-drained
		}
	}
	// First the one that may restart the others.
	h.watching.stop()
	h.certifying.stop()
	h.telling.stop()
	h.mu.Lock()
	h.feed.stop()
	h.scraping.stop()
	h.mu.Unlock()
	h.healthz.Stop()
	_ = h.metricsH.Close()
	_ = h.adminH.Close()
	if !h.ledger.Flush(flushGrace) {
		h.opts.Log.Error("the decision log hangs: its last records are lost")
	}
}

// flushGrace is how long the decision log may take for its last records.
const flushGrace = 5 * time.Second

// quitGrace is how long the last refusals may take to be sent.
const quitGrace = time.Second
