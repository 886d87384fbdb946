package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
	"github.com/berth-dev/berth/test/finding"
)

const pageRounds = 15

func enginePageSubject() (subject, error) {
	return pageSubject("no requests; the page vllm.prom, read in turns with the walk, each page a second after the one before")
}

func measureEnginePage(s *session) error {
	page, err := s.golden("vllm.prom")
	if err != nil {
		return err
	}
	profiles, err := engine.Defaults()
	if err != nil {
		return err
	}
	profile := profiles.Profile("vllm")
	replica := steadyReplica{profile: profile, page: page, at: now}
	if err := replica.read(time.Second); err != nil {
		return err
	}
	symbols := labels.NewSymbolTable()
	if err := walkPage(page, symbols); err != nil {
		return err
	}
	c, err := compare(s, pageRounds,
		func() { _ = replica.read(time.Second) },
		func() { _ = walkPage(page, symbols) })
	if err != nil {
		return err
	}
	s.report(finding.Finding{
		Name: "engine-page/ratio", Value: c.ours / c.theirs, Unit: "x", Limit: finding.AtMost(0.6),
		About: fmt.Sprintf("CPU to that of a textparse walk over the same %d KB, least of %d alternating rounds; %s us beside %s us",
			len(page)/1000, pageRounds, finding.Number(c.ours/1e3), finding.Number(c.theirs/1e3)),
	})
	s.report(finding.Finding{Name: "engine-page/allocs", Value: c.allocs, Limit: finding.AtMost(30), About: "allocations per page, its snapshot included"})
	return nil
}

// steadyReplica is read again and again, as the collector does: with what it
// said before, and with its windows.
type steadyReplica struct {
	profile  *engine.Profile
	page     []byte
	at       telemetry.Instant
	history  engine.History
	snapshot *telemetry.Snapshot
}

// read reads the page again, some time after the last.
func (r *steadyReplica) read(later time.Duration) error {
	r.at = r.at.Add(later)
	s, err := r.profile.Read(r.page, engine.Input{At: r.at, Previous: r.snapshot, History: &r.history})
	if err == nil {
		r.snapshot = s
	}
	return err
}

// walkPage parses every sample without looking at its labels.
func walkPage(page []byte, symbols *labels.SymbolTable) error {
	parser := textparse.NewPromParser(page, symbols, false)
	for {
		entry, err := parser.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if entry == textparse.EntrySeries {
			parser.Series()
		}
	}
}
