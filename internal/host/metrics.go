package host

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// metrics are the picker's own series. Label values come from fixed sets, never
// from requests or replicas.
type metrics struct {
	registry         *prometheus.Registry
	decisions        *prometheus.CounterVec
	decisionDuration prometheus.Histogram
	refusals         *prometheus.CounterVec
	screened         *prometheus.CounterVec
	acknowledgements *prometheus.CounterVec
	outcomes         *prometheus.CounterVec
	inFlight         prometheus.Gauge
	scrapes          *prometheus.CounterVec
	scrapeDuration   prometheus.Histogram
	reloads          *prometheus.CounterVec
	ledgerRecords    *prometheus.CounterVec
	policyInfo       *prometheus.GaugeVec
	untrusted        *prometheus.CounterVec
	quarantines      *prometheus.CounterVec
	panics           prometheus.Counter
	fleet            *fleet
}

func newMetrics(pools *pool.Registry, clock telemetry.Clock) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_" + name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		fleet:    &fleet{pools: pools, clock: clock},
		decisions: counter("decisions_total",
			"Requests decided, by the rung of evidence (refuse: not placed) and the path that ran.", "rung", "path"),
		decisionDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_decision_duration_seconds",
			Help:    "Time from the complete request to the decision.",
			Buckets: prometheus.ExponentialBuckets(5e-6, 2.5, 12),
		}),
		refusals: counter("refusals_total", "Requests refused by the picker, by reason token.", "reason"),
		screened: counter("screened_out_total",
			"Endpoints excluded from decisions, by screening class.", "class"),
		acknowledgements: counter("acknowledgements_total",
			"Placed requests by how the gateway acted on the recommendation.", "state"),
		outcomes: counter("outcomes_total", "Placed requests by how they ended.", "cause"),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_inflight_requests", Help: "Placed requests that have not ended.",
		}),
		scrapes: counter("scrapes_total", "Engine scrapes by engine and result.", "engine", "result"),
		scrapeDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_scrape_duration_seconds",
			Help:    "Time of one engine scrape.",
			Buckets: prometheus.ExponentialBuckets(5e-4, 2.5, 10),
		}),
		reloads: counter("config_reloads_total", "Configuration and pool reloads by result.", "result"),
		ledgerRecords: counter("ledger_records_total",
			"Decision records by what became of their log line.", "result"),
		policyInfo: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "berth_policy_info", Help: "1 for the policy in force, by its digest.",
		}, []string{"digest"}),
		untrusted: counter("untrusted_headers_total",
			"Headers and metadata that would be a routing intent, and came by a channel that is off.", "name"),
		quarantines: counter("quarantines_total", "Endpoints put into quarantine and let out of it again.", "event"),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_contained_panics_total", Help: "Faults of the picker that were contained to one stream.",
		}),
	}
	for _, result := range []string{"ok", "failed"} {
		// From nothing to 1 is no increase, and the first failure is to be seen.
		m.reloads.WithLabelValues(result)
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.decisions, m.decisionDuration, m.refusals, m.screened, m.acknowledgements, m.outcomes, m.inFlight,
		m.scrapes, m.scrapeDuration, m.reloads, m.ledgerRecords, m.policyInfo, m.untrusted, m.quarantines, m.panics,
		&fleetCollector{m.fleet},
	)
	return m
}

func (m *metrics) decided(r placement.Rung, d time.Duration) {
	m.decisions.WithLabelValues(r.String(), "native").Inc()
	m.decisionDuration.Observe(d.Seconds())
}

func (m *metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

func (m *metrics) screenedOut(removed *[screen.NumClasses]int) {
	for class, n := range removed {
		if n > 0 {
			m.screened.WithLabelValues(screen.Class(class).String()).Add(float64(n))
		}
	}
}

func (m *metrics) finished(a acted, c extproc.Cause) {
	m.acknowledgements.WithLabelValues(string(a)).Inc()
	m.outcomes.WithLabelValues(string(c)).Inc()
}

// follow shows what the protocol layer holds now: bytes of request bodies, and
// streams.
func (m *metrics) follow(held func() int64, streams func() int) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_buffered_bytes", Help: "Bytes of request bodies that are held until their requests are decided.",
		}, func() float64 { return float64(held()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_streams", Help: "Streams of gateways that are open, one per request.",
		}, func() float64 { return float64(streams()) }),
	)
}

// condition shows the conditions of the pool.
func (m *metrics) condition(r *reporter) { m.registry.MustRegister(&conditionCollector{reporter: r}) }

// conditionCollector looks at the conditions when it is asked, not more often than
// every conditionStep: it is the same for however many ask.
type conditionCollector struct {
	reporter *reporter

	mu   sync.Mutex
	seen []v1alpha1.Condition
	at   telemetry.Instant
}

const conditionStep = 5 * time.Second

var conditionDesc = prometheus.NewDesc("berth_condition", "1 for a condition of the pool that holds, 0 for one that does not.", []string{"type"}, nil)

// Describe implements prometheus.Collector.
func (c *conditionCollector) Describe(out chan<- *prometheus.Desc) { out <- conditionDesc }

// Collect implements prometheus.Collector.
func (c *conditionCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.reporter.clock(); c.seen == nil || now.Sub(c.at) >= conditionStep {
		c.seen, c.at = c.reporter.report().Conditions, now
	}
	for _, condition := range c.seen {
		holds := 0.0
		if condition.Status == "True" {
			holds = 1
		}
		out <- prometheus.MustNewConstMetric(conditionDesc, prometheus.GaugeValue, holds, condition.Type)
	}
}

// scraped counts one scrape.
func (m *metrics) scraped(engineName, result string, took time.Duration) {
	m.scrapes.WithLabelValues(engineName, result).Inc()
	m.scrapeDuration.Observe(took.Seconds())
}

func (m *metrics) policyInForce(digest string) {
	m.policyInfo.Reset()
	m.policyInfo.WithLabelValues(digest).Set(1)
}
