package main

import (
	"bytes"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	names "github.com/prometheus/common/model"
)

// page is a picker's metrics page.
type page struct {
	bytes    int
	families map[string]*dto.MetricFamily
}

func parsePage(r io.Reader) (*page, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(names.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return &page{len(text), families}, nil
}

// series counts what a scrape of the page stores.
func (p *page) series() int {
	n := 0
	for _, f := range p.families {
		for _, m := range f.GetMetric() {
			switch {
			case m.GetHistogram() != nil:
				// Its buckets, the sum and the count.
				n += len(m.GetHistogram().GetBucket()) + 2
			case m.GetSummary() != nil:
				n += len(m.GetSummary().GetQuantile()) + 2
			default:
				n++
			}
		}
	}
	return n
}

// sum adds up a counter or a gauge over the series that keep allows; nil allows
// all. A family that is not there adds up to nothing.
func (p *page) sum(name string, keep func(labels map[string]string) bool) float64 {
	var total float64
	for _, m := range p.families[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if keep == nil || keep(labels) {
			total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return total
}

func label(name, value string) func(map[string]string) bool {
	return func(labels map[string]string) bool { return labels[name] == value }
}

func (p *page) inFlight() float64 { return p.sum("berth_inflight_requests", nil) }
func (p *page) streams() float64  { return p.sum("berth_streams", nil) }
func (p *page) held() float64     { return p.sum("berth_buffered_bytes", nil) }
func (p *page) outcomes() float64 { return p.sum("berth_outcomes_total", nil) }
func (p *page) faults() float64   { return p.sum("berth_contained_panics_total", nil) }

// placed counts the decisions that were no refusals.
func (p *page) placed() float64 {
	return p.sum("berth_decisions_total", func(labels map[string]string) bool { return labels["rung"] != "refuse" })
}

func (p *page) refused(reason string) float64 {
	return p.sum("berth_refusals_total", label("reason", reason))
}

func (p *page) reloads(result string) float64 {
	return p.sum("berth_config_reloads_total", label("result", result))
}
