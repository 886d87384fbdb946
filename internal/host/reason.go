package host

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// This file finds, when a record is made, why something was not as one would have
// it. Decisions carry none of it: a snapshot is never changed, and says afterwards
// what it said before.

// Reasons that readings do not hold themselves.
const (
	// expired is why a reading is stale whose page was read without fault.
	expired = "expired"
	// readAnew is said of a reading that another one has replaced since the decision.
	readAnew = "read anew since, and what it said is not kept"
)

// maxReason is how many bytes of a reason a record has: words of a profile may be
// longer.
const maxReason = 256

// why says, of a field that had a state and a value when the decision was made, why
// it was not fresh, or of less than full quality; and whether the endpoint can give it
// at all, if it had none. r is the endpoint's reading now, which may be a newer one.
func (c *cycle) why(e *pool.Endpoint, r *telemetry.Reading, state telemetry.State, value float64) (support, reason string) {
	if state == telemetry.Fresh && r.Quality >= 1 {
		return "", ""
	}
	if r.State(c.now) != state || (state == telemetry.Fresh || state == telemetry.Stale) && r.Value != value {
		if state == telemetry.Fresh {
			return "", ""
		}
		return "", readAnew
	}
	var reasons []string
	if r.Detail != nil {
		reasons = r.Detail.Reasons
	}
	switch {
	case state == telemetry.Missing:
		if r.Support != telemetry.SupportUnknown {
			support = r.Support.String()
		}
		// Of several sources, what the one that is preferred lacks.
		if reason = first(reasons); reason == "" || reason == telemetry.NotRead {
			reason = c.unread(e)
		}
	case state == telemetry.Invalid:
		reason = first(reasons)
	case r.Recorded == telemetry.Fresh && state == telemetry.Stale:
		if reason = e.ScrapeError(); reason == "" {
			reason = expired
		}
	case len(reasons) > 0:
		// The source's own comes before what speaks against the value.
		reason = reasons[len(reasons)-1]
	}
	return support, short(reason)
}

// unread is why nothing was read of an endpoint; empty where the policy reads none:
// the record says that once, and not for each field of each candidate.
func (c *cycle) unread(e *pool.Endpoint) string {
	if c.act.policy.Telemetry.Mode == v1alpha1.TelemetryNone {
		return ""
	}
	if failure := e.ScrapeError(); failure != "" {
		return short(failure)
	}
	return telemetry.NotRead
}

func first(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// short cuts a reason between two characters.
func short(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason
	for !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end]
}

// outranked are the channels that brought an intent, too, and made room for a more
// trusted one.
func outranked(c *cycle) (channels []string) {
	switch c.intent.Source {
	case intent.SourceMetadata:
		if c.act.policy.Intent.Keys != nil && len(c.input.Signed) > 0 {
			channels = append(channels, string(intent.SourceSigned))
		}
	case intent.SourceSigned:
	default:
		return nil
	}
	trust := &c.act.policy.Trust
	if trust.PlainHeaders && slices.ContainsFunc(c.input.Plain, func(h intent.Header) bool { return trust.Headers[h.Name] != "" }) {
		channels = append(channels, string(intent.SourceHeaders))
	}
	return channels
}

// Bounds of what a refusal tells of models: clients choose when it is made.
const (
	namedModels = 8
	// modelRunes is how many characters of a name are told.
	modelRunes = 64
)

// servedInstead says what the replicas serve that do not serve what was asked for.
func servedInstead(c *cycle) string {
	var names []string
	unknown, more := 0, false
	seen := map[[2]*pool.ServedSet]bool{}
	for slot, e := range c.set.Endpoints {
		if c.screened.Fate(slot) != screen.ByServedModel {
			continue
		}
		said, declared := c.set.Served(slot)
		if said == nil && declared == nil {
			unknown++
			continue
		}
		// Most replicas of a pool share one served set.
		both := [2]*pool.ServedSet{said, declared}
		if more || seen[both] {
			continue
		}
		seen[both] = true
		for _, name := range statedModels(e) {
			if e.Serving(name) != pool.Serves || slices.Contains(names, name) {
				continue
			}
			if more = len(names) == namedModels; more {
				break
			}
			names = append(names, name)
		}
	}
	who := "the replicas"
	if c.request.Subset != nil {
		who += " of the subset"
	}
	if unknown > 0 {
		who += " of which it is known"
	}
	var text string
	if len(seen) > 0 {
		text = who + " serve " + modelList(names, more)
	}
	if unknown > 0 {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf("of %d it is not known what they serve", unknown)
	}
	return text
}

// statedModels are the names that discovery declares of an endpoint, or else those
// that its engine states.
func statedModels(e *pool.Endpoint) []string {
	if e.ServedModels != nil {
		return e.ServedModels
	}
	var names []string
	if s := e.Snapshot(); s != nil {
		for _, f := range [...]telemetry.Field{telemetry.ServedModels, telemetry.AdaptersLoaded} {
			if d := s.Readings[f].Detail; d != nil {
				names = append(names, d.Names...)
			}
		}
	}
	return names
}

func modelList(names []string, more bool) string {
	if len(names) == 0 {
		return "no model"
	}
	slices.Sort(names)
	quoted := make([]string, len(names))
	for i, name := range names {
		if runes := []rune(name); len(runes) > modelRunes {
			name = string(runes[:modelRunes]) + "..."
		}
		quoted[i] = fmt.Sprintf("%q", name)
	}
	text := strings.Join(quoted, ", ")
	if more {
		text += " and others"
	}
	return text
}
