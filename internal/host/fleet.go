package host

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/collect"
	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// fleet tells what is known of the replicas, and of each why it is not known.
type fleet struct {
	pools *pool.Registry
	clock telemetry.Clock
	// policy is the one in force; nil stands for one that reads the built-in engines
	// and leaves out nothing.
	policy func() *policy.Policy
}

// sight is what is known of one endpoint at a time.
type sight struct {
	// snapshot is nil where nothing was read.
	snapshot *telemetry.Snapshot
	// engine is the one that answers there, or else the declared one, or unknown.
	engine string
	// failure is why the last scrape failed, empty if it did not.
	failure string
	// named are the fields that the engine's profile names; nil if it is not known.
	named *[telemetry.NumFields]bool
}

// result is that of the last scrape: ok, none before the first, or why it failed.
func (s *sight) result() string {
	switch {
	case s.failure != "":
		return s.failure
	case s.snapshot == nil:
		return "none"
	default:
		return "ok"
	}
}

// reading is the state of a field, and why it is not fresh.
func (s *sight) reading(f telemetry.Field, now telemetry.Instant) (telemetry.State, cause) {
	if s.snapshot == nil {
		return telemetry.Missing, unreadCause(s.failure)
	}
	r := &s.snapshot.Readings[f]
	state := r.State(now)
	return state, causeOf(r, state, s.failure, s.named == nil || s.named[f])
}

// look is one look at the fleet.
type look struct {
	engines *engine.Set
	// off: nothing is read at all.
	off bool
	// named are the fields that profiles name, by the profile's name.
	named map[string]*[telemetry.NumFields]bool
}

func (f *fleet) look() *look {
	l := &look{named: map[string]*[telemetry.NumFields]bool{}}
	if f.policy != nil {
		p := f.policy()
		l.engines, l.off = p.Engines, p.Telemetry.Mode == v1alpha1.TelemetryNone
	}
	return l
}

// at looks at one endpoint.
func (l *look) at(e *pool.Endpoint) sight {
	if l.off {
		// What was read before that was switched off is of no use any more.
		return sight{engine: l.declared(e)}
	}
	s := sight{snapshot: e.Snapshot(), failure: e.ScrapeError()}
	if s.snapshot == nil {
		s.engine = l.declared(e)
		return s
	}
	s.engine = s.snapshot.Engine
	s.named = l.namedBy(s.engine)
	return s
}

// declared is the engine that discovery states. It becomes a label: only the name of a
// profile may.
func (l *look) declared(e *pool.Endpoint) string {
	if p := l.profile(e.Engine); p != nil {
		return p.Name()
	}
	return "unknown"
}

func (l *look) profile(name string) *engine.Profile {
	if name == "" || l.engines == nil {
		return nil
	}
	return l.engines.Profile(name)
}

func (l *look) namedBy(name string) *[telemetry.NumFields]bool {
	named, seen := l.named[name]
	if seen {
		return named
	}
	if p := l.profile(name); p != nil {
		named = &[telemetry.NumFields]bool{}
		for _, c := range p.Coverage() {
			named[c.Field] = len(c.Origins) > 0
		}
	}
	l.named[name] = named
	return named
}

// fleetCollector counts replicas and readings when it is asked, so that there is one
// series per state however many replicas there are.
type fleetCollector struct{ *fleet }

var (
	replicasDesc = prometheus.NewDesc("berth_replicas",
		"Members of the pool: normal, last (not answered yet, or refused its last connection), "+
			"excluded (not ready, terminating, asleep, unhealthy), or quarantined (failed several requests in a row).",
		[]string{"state"}, nil)
	readingsDesc = prometheus.NewDesc("berth_readings",
		"Replicas by the state of their reading of a field.", []string{"field", "state"}, nil)
	unfreshDesc = prometheus.NewDesc("berth_unfresh_readings",
		"Replicas whose reading of a field is not fresh, by the cause.", []string{"cause", "field"}, nil)
	lastScrapesDesc = prometheus.NewDesc("berth_last_scrapes",
		"Replicas by their engine and the result of their last scrape: ok, none (not scraped), or why it failed.",
		[]string{"engine", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(out chan<- *prometheus.Desc) {
	out <- replicasDesc
	out <- readingsDesc
	out <- unfreshDesc
	out <- lastScrapesDesc
}

// census is the fleet, counted.
type census struct {
	normal, last, excluded, quarantined int

	states [telemetry.NumFields][telemetry.Invalid + 1]int
	causes [telemetry.NumFields][numCauses]int
	// results are the replicas of an engine by the result of their last scrape.
	results map[string]map[string]int
}

func (f *fleet) count() *census {
	now, look := f.clock(), f.look()
	all := &census{results: map[string]map[string]int{}}
	for _, e := range f.pools.Set().Endpoints {
		switch {
		case !e.Ready || e.Terminating || e.Excluded(now):
			all.excluded++
		case e.Quarantine(now).In:
			all.quarantined++
		case e.OrderedLast():
			all.last++
		default:
			all.normal++
		}
		s := look.at(e)
		for f := range telemetry.NumFields {
			state, why := s.reading(f, now)
			all.states[f][state]++
			all.causes[f][why]++
		}
		results := all.results[s.engine]
		if results == nil {
			results = map[string]int{"ok": 0, "none": 0}
			for _, reason := range collect.Reasons() {
				results[reason] = 0
			}
			all.results[s.engine] = results
		}
		results[s.result()]++
	}
	return all
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(out chan<- prometheus.Metric) {
	all := c.count()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(replicasDesc, all.normal, "normal")
	gauge(replicasDesc, all.last, "last")
	gauge(replicasDesc, all.excluded, "excluded")
	gauge(replicasDesc, all.quarantined, "quarantined")
	for f := range telemetry.NumFields {
		for state, n := range all.states[f] {
			gauge(readingsDesc, n, f.String(), telemetry.State(state).String())
		}
		for why := noCause + 1; why < numCauses; why++ {
			gauge(unfreshDesc, all.causes[f][why], why.String(), f.String())
		}
	}
	for name, results := range all.results {
		for result, n := range results {
			gauge(lastScrapesDesc, n, name, result)
		}
	}
}
