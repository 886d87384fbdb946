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
	"discovery.inferencePool", "placement.shortlist",
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
	oneOf(d, "gateway.unknownPaths", c.Gateway.UnknownPaths, v1alpha1.UnknownPathRoute, v1alpha1.UnknownPathRefuse)
	d.limits(&c.Limits)
	d.intents(&c)

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
	if d.has("telemetry.profiles") && (t.Profiles == "" || strings.ContainsRune(t.Profiles, 0)) {
		d.refuse("telemetry.profiles", "must be the path of a directory")
		t.Profiles = ""
	}

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

// messageRoom is what a message may hold beside a body, unless the file says
// otherwise. leastMessage is twice what Envoy sends at once of a body that it does
// not buffer, by its defaults.
const messageRoom, leastMessage = v1alpha1.MiB, 2 * v1alpha1.MiB

func (d *document) limits(l *v1alpha1.LimitsConfiguration) {
	if within(d, "limits.body", l.Body, v1alpha1.KiB, v1alpha1.GiB) &&
		within(d, "limits.buffered", l.Buffered, v1alpha1.KiB, 64*v1alpha1.GiB) && l.Buffered < l.Body {
		d.refuse("limits.buffered", fmt.Sprintf("must be at least limits.body (%v)", l.Body))
	}
	if d.has("limits.message") {
		within(d, "limits.message", l.Message, leastMessage, 2047*v1alpha1.MiB)
	} else {
		l.Message = max(leastMessage, l.Body+messageRoom)
	}
	within(d, "limits.headerCount", l.HeaderCount, 1, 10000)
	within(d, "limits.headerBytes", l.HeaderBytes, v1alpha1.KiB, 16*v1alpha1.MiB)
	within(d, "limits.streams", l.Streams, 1, maxStreams)
	within(d, "limits.streamsPerConnection", l.StreamsPerConnection, 1, maxStreams)
	if within(d, "limits.uploadIdle", l.UploadIdle, span(10*time.Millisecond), span(10*time.Minute)) &&
		within(d, "limits.uploadTime", l.UploadTime, span(10*time.Millisecond), span(24*time.Hour)) {
		d.ascending("limits.uploadIdle", l.UploadIdle, "limits.uploadTime", l.UploadTime)
	}
	within(d, "limits.decisionDeadline", l.DecisionDeadline, span(time.Millisecond), span(time.Minute))
	within(d, "limits.drain", l.Drain, 0, span(10*time.Minute))
	within(d, "limits.keepalive.interval", l.Keepalive.Interval, span(time.Second), span(2*time.Hour))
	within(d, "limits.keepalive.timeout", l.Keepalive.Timeout, span(10*time.Millisecond), span(10*time.Minute))
	within(d, "limits.keepalive.minInterval", l.Keepalive.MinInterval, span(100*time.Millisecond), span(time.Hour))
}

// maxStreams is far above what one process can serve, and far below where
// HTTP/2 ends.
const maxStreams = 10_000_000

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
