package host

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// reporter tells of the pool as a whole.
type reporter struct {
	pools *pool.Registry
	index *screen.Index
	clock telemetry.Clock

	mu sync.Mutex
	// since has, for each type of condition, the status that was seen last and when
	// it was seen first.
	since map[string]sighting
}

type sighting struct {
	status string
	at     telemetry.Instant
}

// askedLately is how long a constraint that no replica meets counts as amiss after a
// request has stated it.
const askedLately = time.Hour

// report is the pool as it is now.
func (r *reporter) report() v1alpha1.PoolReport {
	now := r.clock()
	set := r.pools.Set()
	doc := v1alpha1.PoolReport{
		Version:     v1alpha1.Version,
		Kind:        "PoolReport",
		Pool:        set.Pool,
		Time:        now.Time(),
		Members:     len(set.Endpoints),
		Constraints: []v1alpha1.ConstraintCoverage{},
	}
	for slot, e := range set.Endpoints {
		if !set.Closed[slot] && !e.Excluded(now) && !e.Quarantine(now).In {
			doc.Ready++
		}
	}
	var uncovered []string
	for _, c := range r.index.Coverage(set) {
		doc.Constraints = append(doc.Constraints, v1alpha1.ConstraintCoverage{
			Class: c.Class, Key: c.Key, Operator: c.Operator, Value: c.Value, AskedAt: c.AskedAt.Time(), Replicas: c.Endpoints,
		})
		if c.Endpoints == 0 && now.Sub(c.AskedAt) < askedLately {
			uncovered = append(uncovered, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", c.Class, c.Key, c.Operator, c.Value)))
		}
	}
	doc.Conditions = []v1alpha1.Condition{r.coverageCondition(uncovered, now)}
	return doc
}

// namedUncovered is how many constraints a condition names.
const namedUncovered = 5

func (r *reporter) coverageCondition(uncovered []string, now telemetry.Instant) v1alpha1.Condition {
	c := v1alpha1.Condition{
		Type: v1alpha1.ConditionConstraintUncovered, Status: "False",
		Reason: "Covered", Message: "some replica meets each requirement that was stated lately, by itself",
	}
	if n := len(uncovered); n > 0 {
		c.Status, c.Reason = "True", "NoReplica"
		c.Message = "no replica meets " + strings.Join(uncovered[:min(n, namedUncovered)], "; ")
		if n > namedUncovered {
			c.Message += fmt.Sprintf("; and %d more", n-namedUncovered)
		}
	}
	c.Since = r.seen(c.Type, c.Status, now).Time()
	return c
}

// seen notes the status of a condition and returns since when it has been that.
func (r *reporter) seen(kind, status string, now telemetry.Instant) telemetry.Instant {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.since[kind]; ok && was.status == status {
		return was.at
	}
	if r.since == nil {
		r.since = map[string]sighting{}
	}
	r.since[kind] = sighting{status, now}
	return now
}
