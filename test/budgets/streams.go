package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/internal/host"
	"github.com/berth-dev/berth/test/finding"
)

const (
	mebibyte  = 1 << 20
	chunkSize = 64 << 10
	// streamGrowth bounds what responses may add to the picker's live memory.
	streamGrowth = 4

	longStreamChunks = 100_000_000 / chunkSize
	openStreams      = 1000
	// openParts follow the first part on each open stream.
	openParts = 8
)

var streamsPicker = setup{endpoints: 10, candidates: 512, ring: 0}

func streamsSubject() (subject, error) {
	configuration, err := pickers(streamsPicker)
	return subject{configuration, model, fmt.Sprintf("ext_proc frames without a gateway or replicas: %d short exchanges, then one response of %d parts "+
		"of %d KiB, then %d responses open at once, each of %d parts of %d KiB; a part is sent when the last has come back",
		warmUp, longStreamChunks, chunkSize>>10, openStreams, 1+openParts, chunkSize>>10)}, err
}

// playPicker is the picker inside this binary: it can be asked for its live
// memory, and profiled. Its arguments are the configuration file and, where a
// CPU profile is wanted, the file that takes it.
func playPicker(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("the configuration file is missing")
	}
	if len(args) > 1 {
		stop, err := startProfile(args[1])
		if err != nil {
			return err
		}
		defer stop()
	}
	const anyPort = "127.0.0.1:0"
	h, err := host.Start(ctx, host.Options{
		ConfigFile:     args[0],
		ExtProcAddress: anyPort, HealthAddress: anyPort, MetricsAddress: anyPort, AdminAddress: anyPort,
		DecisionLog: io.Discard,
		Log:         zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer h.Stop()
	fmt.Println(h.ExtProcAddr())
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		fmt.Println(liveMemory())
	}
	return nil
}

// measureStreams passes long responses through the picker and asks it what it
// holds meanwhile.
func measureStreams(s *session) error {
	config := filepath.Join(s.dir, "streams.yaml")
	if err := os.WriteFile(config, []byte(streamsPicker.config()), 0o600); err != nil {
		return err
	}
	picker, err := s.play("picker", config)
	if err != nil {
		return err
	}
	defer picker.stop()
	g, err := dial(picker.address)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.run(s.ctx, warmUp, cycleStreams); err != nil {
		return err
	}
	if err := longStream(s, picker, g); err != nil {
		return err
	}
	return manyStreams(s, picker, g)
}

// longStream is one response of 100 MB.
func longStream(s *session, picker *child, g *gateway) error {
	const probes = 8
	x, err := g.begin(s.ctx)
	if err != nil {
		return err
	}
	defer x.end()
	part := responseBody(make([]byte, chunkSize), false)
	var base, most, stacks float64
	for i := range longStreamChunks {
		if err := x.pass(part); err != nil {
			return err
		}
		if i%(longStreamChunks/probes) != 0 {
			continue
		}
		var heap float64
		if err := picker.ask(&heap, &stacks); err != nil {
			return err
		}
		s.logf("  after %d chunks: %.2f MiB", i+1, heap/mebibyte)
		if i == 0 {
			base = heap
		}
		most = max(most, heap)
	}
	s.report(finding.Finding{
		Name: "stream-memory/100MB", Value: (most - base) / mebibyte, Unit: "MiB", Limit: finding.AtMost(streamGrowth),
		About: fmt.Sprintf("live heap of the picker while a response of 100 MB passes in parts of 64 KiB, most of %d probes, beyond that after the first part", probes),
	})
	return nil
}

// manyStreams is a thousand responses at a time, of which each part could be
// kept.
func manyStreams(s *session, picker *child, g *gateway) error {
	var idle, idleStacks float64
	if err := picker.ask(&idle, &idleStacks); err != nil {
		return err
	}
	part := responseBody(make([]byte, chunkSize), false)
	var open []*exchange
	defer func() {
		for _, x := range open {
			x.end()
		}
	}()
	for range openStreams {
		x, err := g.begin(s.ctx)
		if err != nil {
			return err
		}
		open = append(open, x)
		if err := x.pass(part); err != nil {
			return err
		}
	}
	var first, firstStacks, last, lastStacks float64
	if err := picker.ask(&first, &firstStacks); err != nil {
		return err
	}
	for range openParts {
		for _, x := range open {
			if err := x.pass(part); err != nil {
				return err
			}
		}
	}
	if err := picker.ask(&last, &lastStacks); err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "stream-memory/1000-open", Value: (last - first) / mebibyte, Unit: "MiB", Limit: finding.AtMost(streamGrowth),
		About: fmt.Sprintf("live heap of the picker after %d more parts of 64 KiB on each of %d open streams, beyond that after one part", openParts, openStreams),
	})
	s.report(finding.Finding{
		Name: "stream-memory/per-stream", Value: (first + firstStacks - idle - idleStacks) / openStreams / 1024, Unit: "KiB",
		About: "live heap and stacks of the picker per open stream",
	})
	return nil
}
