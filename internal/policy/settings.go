package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// refusedBerthKeys are keys whose behaviour this version does not have.
var refusedBerthKeys = []string{
	"discovery.inferencePool", "placement.shortlist", "intent", "trust", "models", "screening",
}

// settings decodes and checks the BerthConfiguration.
func (d *document) settings() v1alpha1.BerthConfiguration {
	c := v1alpha1.DefaultBerthConfiguration()
	d.decode(&c, refusedBerthKeys)

	if d.has("discovery.file") && (c.Discovery.File == "" || strings.ContainsRune(c.Discovery.File, 0)) {
		d.refuse("discovery.file", "must be the path of a file")
	}

	within(d, "gateway.fallbacks", c.Gateway.Fallbacks, 0, 4)
	oneOf(d, "gateway.onViolation", c.Gateway.OnViolation, v1alpha1.ViolationReport, v1alpha1.ViolationRefuse)
	oneOf(d, "gateway.requestTrailers", c.Gateway.RequestTrailers, v1alpha1.TrailersRefuse, v1alpha1.TrailersPass)

	if within(d, "limits.body", c.Limits.Body, v1alpha1.KiB, v1alpha1.GiB) &&
		within(d, "limits.buffered", c.Limits.Buffered, v1alpha1.KiB, 64*v1alpha1.GiB) && c.Limits.Buffered < c.Limits.Body {
		d.refuse("limits.buffered", fmt.Sprintf("must be at least limits.body (%v)", c.Limits.Body))
	}
	within(d, "limits.uploadIdle", c.Limits.UploadIdle, span(10*time.Millisecond), span(10*time.Minute))
	within(d, "limits.decisionDeadline", c.Limits.DecisionDeadline, span(time.Millisecond), span(time.Minute))
	within(d, "limits.drain", c.Limits.Drain, 0, span(10*time.Minute))

	t := &c.Telemetry
	oneOf(d, "telemetry.mode", t.Mode, v1alpha1.TelemetryAuto, v1alpha1.TelemetryNone)
	// Below 50ms scraping itself becomes the engine's load.
	least, most := span(50*time.Millisecond), span(time.Hour)
	if within(d, "telemetry.hot", t.Hot, least, most) && within(d, "telemetry.warm", t.Warm, least, most) {
		d.ascending("telemetry.hot", t.Hot, "telemetry.warm", t.Warm)
	}
	if within(d, "telemetry.idle", t.Idle, least, most) {
		d.ascending("telemetry.warm", t.Warm, "telemetry.idle", t.Idle)
	}
	within(d, "telemetry.timeout", t.Timeout, span(time.Millisecond), span(10*time.Second))
	within(d, "telemetry.maxPage", t.MaxPage, 64*v1alpha1.KiB, 64*v1alpha1.MiB)
	within(d, "telemetry.workers", t.Workers, 1, 1024)

	// NaN fails every comparison.
	if q := c.Placement.Quorum; !(q > 0 && q <= 1) {
		d.refuse("placement.quorum", "must be a number above 0, at most 1")
	}
	if c.Placement.Replicas != 1 {
		d.refuse("placement.replicas", "must be 1: other values are not supported by this version")
	}
	oneOf(d, "acknowledgement.responseHeaders", c.Acknowledgement.ResponseHeaders,
		v1alpha1.ResponseHeadersOff, v1alpha1.ResponseHeadersSummary, v1alpha1.ResponseHeadersFull)
	if c.Ledger.Dir != "" {
		d.refuse("ledger.dir", "is not supported by this version: leave it empty")
	}
	within(d, "ledger.ring", c.Ledger.Ring, 0, 100000)
	within(d, "ledger.candidates", c.Ledger.Candidates, 0, 10000)
	return c
}

func span(d time.Duration) v1alpha1.Duration { return v1alpha1.Duration(d) }

func within[T interface {
	int | v1alpha1.Duration | v1alpha1.Bytes
}](d *document, path string, v, least, most T) bool {
	if d.failed[path] {
		return false
	}
	if v < least || v > most {
		d.refuse(path, fmt.Sprintf("must be %v to %v", least, most))
		return false
	}
	return true
}

func oneOf[T ~string](d *document, path string, v T, allowed ...T) {
	if slices.Contains(allowed, v) {
		return
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	d.refuse(path, "must be one of "+strings.Join(names, ", "))
}

// ascending refuses low above high, at the one that the file sets.
func (d *document) ascending(lowPath string, low v1alpha1.Duration, highPath string, high v1alpha1.Duration) {
	if low <= high || d.failed[lowPath] || d.failed[highPath] {
		return
	}
	if d.has(highPath) {
		d.refuse(highPath, fmt.Sprintf("must be at least %s (%v)", lowPath, low))
		return
	}
	d.refuse(lowPath, fmt.Sprintf("must be at most %s (%v)", highPath, high))
}
