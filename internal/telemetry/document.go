package telemetry

import (
	"fmt"
	"math"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Observation is the document of one replica as of now, as far as its snapshot
// tells. A nil snapshot is that of a replica of which nothing is known.
func (s *Snapshot) Observation(replica v1alpha1.Replica, now Instant) v1alpha1.Observation {
	doc := v1alpha1.Observation{
		Version: v1alpha1.Version, Kind: "Observation", Replica: replica,
		Engine: "unknown", Order: "normal", Fields: s.Document(now),
	}
	if s == nil {
		return doc
	}
	doc.Engine, doc.Profile, doc.Declared = s.Engine, s.Profile, s.Declared
	doc.Replica.Incarnation = int(s.Incarnation)
	if start, ok := doc.Fields[ProcessStart.String()].Value.(time.Time); ok {
		doc.Replica.ProcessStart = &start
	}
	if version, ok := doc.Fields[EngineVersion.String()].Value.(string); ok {
		doc.Replica.EngineVersion = version
	}
	return doc
}

// Document renders every field of the catalogue as of now. A nil snapshot
// renders a replica of which nothing is known. Besides what the readings have to
// say, reasons tell of one that has expired and of one that was never read.
func (s *Snapshot) Document(now Instant) map[string]v1alpha1.Reading {
	if s == nil {
		s = &Snapshot{}
	}
	fields := make(map[string]v1alpha1.Reading, NumFields)
	for f := range NumFields {
		fields[f.String()] = s.Readings[f].document(f, now)
	}
	return fields
}

func (r *Reading) document(f Field, now Instant) v1alpha1.Reading {
	state := r.State(now)
	doc := v1alpha1.Reading{
		Support:    v1alpha1.Support(r.Support.String()),
		State:      v1alpha1.State(state.String()),
		Unit:       f.Unit(),
		Provenance: v1alpha1.Provenance(r.Provenance.String()),
		ObservedAt: timePointer(r.ObservedAt),
		ExpiresAt:  timePointer(r.ExpiresAt),
		Quality:    float64(r.Quality),
		Reasons:    []string{},
	}
	d := r.Detail
	if d != nil {
		doc.EngineTime = timePointer(d.EngineTime)
		if d.Source != nil {
			doc.Source = &v1alpha1.Source{Path: d.Source.Path, Metric: d.Source.Metric, Rule: d.Source.Rule}
		}
		doc.Reasons = append(doc.Reasons, d.Reasons...)
	}
	switch {
	case d == nil && r.Recorded == Missing:
		doc.Reasons = append(doc.Reasons, NotRead)
	case r.Recorded == Fresh && state == Stale:
		ago := now.Sub(r.ExpiresAt).Round(100 * time.Millisecond)
		doc.Reasons = append(doc.Reasons, fmt.Sprintf("expired %v ago", ago))
	}
	if state == Fresh || state == Stale {
		doc.Value = r.documentValue(f)
		if d != nil {
			doc.Max = d.Max
		}
	}
	return doc
}

func (r *Reading) documentValue(f Field) any {
	switch f.Kind() {
	case Bool:
		return r.Value != 0
	case Time:
		sec, frac := math.Modf(r.Value)
		return time.Unix(int64(sec), int64(frac*1e9)).UTC()
	case Names:
		names := []string{}
		if r.Detail != nil {
			names = append(names, r.Detail.Names...)
		}
		return names
	case Text:
		if r.Detail == nil {
			return ""
		}
		return r.Detail.Text
	case Dist:
		if r.Detail == nil || r.Detail.Distribution == nil {
			return nil
		}
		d := r.Detail.Distribution
		return v1alpha1.Distribution{Mean: d.Mean, P50: quantile(d.P50), P90: quantile(d.P90), P99: quantile(d.P99), Count: d.Count}
	default:
		return r.Value
	}
}

func quantile(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

func timePointer(i Instant) *time.Time {
	if i == 0 {
		return nil
	}
	t := i.Time()
	return &t
}
