package console

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Fleet writes one row per replica: its engine, its state, what its telemetry
// says and how old that is, and what the given decisions came to there. What needs
// explaining is explained below.
func Fleet(w io.Writer, now time.Time, replicas []v1alpha1.Observation, decisions []*v1alpha1.Decision) error {
	tallies := count(decisions)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "REPLICA\tENGINE\tSTATE\tTELEMETRY\tAGE\tQUEUE\tACTIVE\tKV\tIN FLIGHT\tPICKS\tTTFT p50\tp99\t")
	for i := range replicas {
		r := &replicas[i]
		c := tallies[r.Replica.Name]
		state, age := telemetryState(now, r)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t\n",
			plain(r.Replica.Name), plain(kind(r)), plain(standing(r)), plain(state), age,
			value(r, "queueDepth", "%.0f", 1), value(r, "activeRequests", "%.0f", 1), value(r, "kvCacheUtilization", "%.0f%%", 100),
			r.InFlight, c.picks, quantile(c.ttft, 0.5), quantile(c.ttft, 0.99))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, legend := range []struct {
		words string
		holds func(*v1alpha1.Observation) bool
	}{
		{"(n): stale, what its page said last; picks go by an estimate, or without", func(r *v1alpha1.Observation) bool {
			return slices.ContainsFunc(telemetry.LoadFields[:], func(f telemetry.Field) bool { return showsStale(r, f.String()) })
		}},
		{"last: has not answered yet, or refused its last connection; is picked after all others", func(r *v1alpha1.Observation) bool {
			return standing(r) == orderedLast
		}},
		{"quarantined: failed several requests in a row; one tries it now and then (screening.quarantine.probeAfter) until one goes well", func(r *v1alpha1.Observation) bool {
			return r.Excluded == "quarantined"
		}},
	} {
		if !slices.ContainsFunc(replicas, func(r v1alpha1.Observation) bool { return legend.holds(&r) }) {
			continue
		}
		if _, err := fmt.Fprintln(w, legend.words); err != nil {
			return err
		}
	}
	return nil
}

// showsStale reports that the table shows a value that is stale.
func showsStale(r *v1alpha1.Observation, field string) bool {
	_, shown := r.Fields[field].Value.(float64)
	return shown && r.Fields[field].State == v1alpha1.Stale
}

// kind is the kind of engine, and what was declared where that is another.
func kind(r *v1alpha1.Observation) string {
	if r.Declared != "" {
		return fmt.Sprintf("%s (declared %s)", r.Engine, r.Declared)
	}
	return r.Engine
}

// orderedLast is Observation.Order of a replica that comes after all others.
const orderedLast = "last"

// standing is how a replica stands to requests: excluded, last or normal.
func standing(r *v1alpha1.Observation) string {
	if r.Excluded != "" {
		return strings.ReplaceAll(r.Excluded, "_", " ")
	}
	return r.Order
}

type tally struct {
	picks int
	ttft  []float64
}

func count(decisions []*v1alpha1.Decision) map[string]tally {
	all := map[string]tally{}
	for _, d := range decisions {
		if d.Pick != "" {
			t := all[d.Pick]
			t.picks++
			all[d.Pick] = t
		}
		if served := d.Acknowledgement.Served; served != "" && d.Outcome != nil && d.Outcome.TTFT != nil {
			t := all[served]
			t.ttft = append(t.ttft, *d.Outcome.TTFT)
			all[served] = t
		}
	}
	return all
}

// telemetryState sums a replica's load fields up: the worst state among them,
// and the age of the newest.
func telemetryState(now time.Time, r *v1alpha1.Observation) (state, age string) {
	rank := map[v1alpha1.State]int{v1alpha1.Fresh: 0, v1alpha1.Stale: 1, v1alpha1.Invalid: 2, v1alpha1.Missing: 3}
	worst := v1alpha1.Fresh
	var newest time.Time
	for _, f := range telemetry.LoadFields {
		reading := r.Fields[f.String()]
		if rank[reading.State] > rank[worst] {
			worst = reading.State
		}
		if reading.ObservedAt != nil && reading.ObservedAt.After(newest) {
			newest = *reading.ObservedAt
		}
	}
	state = string(worst)
	if r.ScrapeError != "" {
		state += ", last scrape " + r.ScrapeError
	}
	if newest.IsZero() {
		return state, "-"
	}
	return state, now.Sub(newest).Round(10 * time.Millisecond).String()
}

func value(r *v1alpha1.Observation, field, format string, factor float64) string {
	v, ok := r.Fields[field].Value.(float64)
	if !ok {
		return "-"
	}
	text := fmt.Sprintf(format, v*factor)
	if showsStale(r, field) {
		text = "(" + text + ")"
	}
	return text
}

// quantile is the nearest-rank quantile of samples in seconds.
func quantile(samples []float64, q float64) string {
	if len(samples) == 0 {
		return "-"
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	i := max(int(math.Ceil(q*float64(len(sorted))))-1, 0)
	return time.Duration(sorted[i] * float64(time.Second)).Round(time.Millisecond).String()
}
