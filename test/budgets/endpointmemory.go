package main

import (
	"fmt"
	"runtime"
	"time"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/test/finding"
)

const (
	largePool   = 5000
	idleCadence = 5 * time.Second
)

func endpointMemorySubject() (subject, error) {
	return pageSubject(fmt.Sprintf("no requests; a pool of %d endpoints at rest, each with a snapshot and the full windows of the page vllm.prom", largePool))
}

// measureEndpointMemory is a large pool whose every endpoint has a snapshot and
// windows of its own, read from pages.
func measureEndpointMemory(s *session) error {
	page, err := s.golden("vllm.prom")
	if err != nil {
		return err
	}
	profiles, err := engine.Defaults()
	if err != nil {
		return err
	}
	profile := profiles.Profile("vllm")
	before, _ := liveMemory()
	registry := pool.NewRegistry("default/pool", false)
	if err := registry.Update("default/pool", specs(largePool)); err != nil {
		return err
	}
	replicas := make([]steadyReplica, largePool)
	for i, e := range registry.Set().Endpoints {
		replicas[i] = steadyReplica{profile: profile, page: page, at: now}
		for range 8 {
			if err := replicas[i].read(idleCadence); err != nil {
				return err
			}
		}
		e.Publish(replicas[i].snapshot, e.BeginScrape())
	}
	after, _ := liveMemory()
	runtime.KeepAlive(registry)
	runtime.KeepAlive(replicas)
	s.report(finding.Finding{
		Name: "endpoint-memory/5000", Value: (after - before) / largePool / 1024, Unit: "KiB", Limit: finding.AtMost(endpointMemory),
		About: fmt.Sprintf("live heap per endpoint in a pool of %d, each with its own snapshot and windows of a %d KB page", largePool, len(page)/1000),
	})
	return nil
}
