package host

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

func TestEveryMetricIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	pools := pool.NewRegistry("p", false)
	if err := pools.Update("p", []pool.Spec{endpoint(1)}); err != nil {
		t.Fatal(err)
	}
	m := newMetrics(pools, func() telemetry.Instant { return 1 })
	// Vectors without a series are not gathered: give each one.
	m.decided(0, 0)
	m.refused("internal")
	m.screened.WithLabelValues("health").Inc()
	m.finished(confirmed, "complete")
	m.scraped("vllm", "ok", 0)
	m.reloads.WithLabelValues("ok").Inc()
	m.ledgerRecords.WithLabelValues("written").Inc()
	m.policyInForce("sha256:0")
	m.untrusted.WithLabelValues("x-berth-intent").Inc()
	m.quarantines.WithLabelValues("begun").Inc()
	m.condition(&reporter{pools: pool.NewRegistry("p", false), index: screen.NewIndex(), clock: func() telemetry.Instant { return 1 }})
	m.follow(func() int64 { return 0 }, func() int { return 0 })
	m.certificate(func() time.Time { return epoch })
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	registered := 0
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "berth_") {
			continue
		}
		registered++
		if !strings.Contains(string(doc), "| `"+name+"` |") {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	if documented := strings.Count(string(doc), "\n| `berth_"); documented != registered {
		t.Errorf("docs/metrics.md has %d metrics, the picker registers %d", documented, registered)
	}
}

func TestEveryScreeningRefusalIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range screenRefusals {
		if !strings.Contains(string(doc), "| `"+r.Reason+"` |") {
			t.Errorf("docs/refusals.md lacks %s", r.Reason)
		}
	}
}
