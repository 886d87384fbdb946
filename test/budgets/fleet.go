package main

import (
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/plugins"
	"github.com/berth-dev/berth/scorers/activerequests"
	"github.com/berth-dev/berth/scorers/kvcacheutilization"
	"github.com/berth-dev/berth/scorers/queuedepth"
)

// model is what every replica serves and every request names.
const model = "llama-3.1-8b"

var models = []string{model}

// now is when decisions are made that need no clock.
const now telemetry.Instant = 1000e9

// specs are n endpoints with addresses of their own.
func specs(n int) []pool.Spec {
	list := make([]pool.Spec, n)
	for i := range list {
		list[i] = pool.Spec{
			Name:         fmt.Sprintf("default/replica-%d:8000", i),
			Address:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000),
			Ready:        true,
			ServedModels: []string{model},
		}
	}
	return list
}

// load is how busy the i-th replica of a fleet is.
func load(i int) (queued, active int, cache float64) {
	return i * 7 % 13, i * 5 % 31, float64(i*11%97) / 97
}

// freshFleet is a pool of replicas that were all scraped just now.
func freshFleet(list []pool.Spec) (*pool.Registry, error) {
	registry := pool.NewRegistry("default/pool", false)
	if err := registry.Update("default/pool", list); err != nil {
		return nil, err
	}
	for i, e := range registry.Set().Endpoints {
		queued, active, cache := load(i)
		page := &telemetry.Snapshot{}
		for f, v := range map[telemetry.Field]float64{
			telemetry.QueueDepth:         float64(queued),
			telemetry.ActiveRequests:     float64(active),
			telemetry.KVCacheUtilization: cache,
			telemetry.Health:             1,
			telemetry.Sleeping:           0,
		} {
			page.Readings[f] = telemetry.Reading{Value: v, Recorded: telemetry.Fresh, ExpiresAt: now + 1}
		}
		e.Answered()
		e.Publish(page, e.BeginScrape())
	}
	return registry, nil
}

// defaultScorers are those of the default profile.
var defaultScorers = []struct {
	kind   string
	weight float64
}{{queuedepth.Type, 2}, {kvcacheutilization.Type, 2}, {activerequests.Type, 1}}

// quorum is the default of placement.quorum.
const quorum = 0.5

func defaultPlan() (*placement.Plan, error) {
	var scorers []placement.Scorer
	for _, p := range defaultScorers {
		scorer, err := plugins.Scorer(p.kind, p.kind, p.weight, nil)
		if err != nil {
			return nil, err
		}
		scorers = append(scorers, scorer)
	}
	return placement.NewPlan(scorers, quorum)
}
