package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// scrape is how one scrape ended.
type scrape struct {
	// reason is empty for one that succeeded.
	reason string
	// cause tells more of the reason, perhaps in the words of a library.
	cause string
}

// heard is what a collector says of its one endpoint while it runs. The collector
// tells of successes by its callback and of failures, with their cause, by its log.
type heard struct {
	// scrapes are those that succeeded and those that failed for another reason than
	// the one before.
	scrapes chan scrape
	done    <-chan struct{}

	mu     sync.Mutex
	newest scrape
	notes  []string
}

// listen hears a collector until ctx ends.
func listen(ctx context.Context) *heard {
	return &heard{scrapes: make(chan scrape, 16), done: ctx.Done()}
}

// scraped is Options.Observe of the collector.
func (h *heard) scraped(_, result string, _ time.Duration) {
	if result == "ok" {
		h.tell(scrape{})
	}
}

func (h *heard) tell(s scrape) {
	h.mu.Lock()
	h.newest = s
	h.mu.Unlock()
	select {
	case h.scrapes <- s:
	case <-h.done:
	}
}

// last is how the newest scrape ended.
func (h *heard) last() scrape {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// warnings are what was said besides, each once, in order.
func (h *heard) warnings() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.notes)
}

// forward takes the scrapes, so that none has to wait, and closes first at the first.
func (h *heard) forward(ctx context.Context, first chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.scrapes:
			if first != nil {
				close(first)
				first = nil
			}
		}
	}
}

func (h *heard) logger() *zap.Logger { return zap.New(heardLog{zapcore.WarnLevel, h}) }

// heardLog is the collector's log.
type heardLog struct {
	zapcore.LevelEnabler
	heard *heard
}

func (l heardLog) With([]zapcore.Field) zapcore.Core { return l }
func (l heardLog) Sync() error                       { return nil }

func (l heardLog) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !l.Enabled(e.Level) {
		return checked
	}
	return checked.AddCore(e, l)
}

func (l heardLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	members := zapcore.NewMapObjectEncoder()
	var rest []string
	for _, f := range fields {
		f.AddTo(members)
		// The others are told already: there is one endpoint.
		if f.Key != "endpoint" && f.Key != "engine" && f.Key != "stack" {
			rest = append(rest, fmt.Sprintf("%s %v", f.Key, members.Fields[f.Key]))
		}
	}
	if reason, fails := members.Fields["reason"].(string); fails {
		cause, _ := members.Fields["error"].(string)
		l.heard.tell(scrape{reason, cause})
		return nil
	}
	if members.Fields["declared"] != nil {
		// The observation says so.
		return nil
	}
	note := strings.Join(append([]string{e.Message}, strings.Join(rest, ", ")), ": ")
	l.heard.mu.Lock()
	defer l.heard.mu.Unlock()
	if !slices.Contains(l.heard.notes, note) && len(l.heard.notes) < maxNotes {
		l.heard.notes = append(l.heard.notes, note)
	}
	return nil
}

// maxNotes bounds what is kept of a log.
const maxNotes = 16
