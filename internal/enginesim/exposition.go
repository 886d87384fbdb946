package enginesim

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// exposition writes a page in Prometheus' text format. Labels of a series are in alphabetical order, as all engines write them.
type exposition struct {
	buf bytes.Buffer
	// common are labels of every series.
	common []label
	// number formats values and bucket bounds.
	number func(float64) string
}

type label struct{ name, value string }

// family begins a family; its series must follow.
func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(&e.buf, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// series writes a series with the common labels and some of its own.
func (e *exposition) series(name string, value float64, own ...label) {
	e.bare(name, value, slices.Concat(e.common, own)...)
}

// bare writes a series without the common labels.
func (e *exposition) bare(name string, value float64, labels ...label) {
	e.buf.WriteString(name)
	if len(labels) > 0 {
		slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
		for i, l := range labels {
			e.buf.WriteByte("{,"[min(i, 1)])
			e.buf.WriteString(l.name + `="` + escapeLabel(l.value) + `"`)
		}
		e.buf.WriteByte('}')
	}
	e.buf.WriteString(" " + e.number(value) + "\n")
}

// gauge writes a family of one series.
func (e *exposition) gauge(name, help string, value float64, own ...label) {
	e.family(name, "gauge", help)
	e.series(name, value, own...)
}

// counter writes a family of one series.
func (e *exposition) counter(name, help string, value uint64, own ...label) {
	e.family(name, "counter", help)
	e.series(name, float64(value), own...)
}

// buckets writes the buckets of a histogram, in its family.
func (e *exposition) buckets(name string, h Histogram, own ...label) {
	var below uint64
	for i, count := range h.Counts {
		bound := "+Inf"
		if i < len(h.Bounds) {
			bound = e.number(h.Bounds[i])
		}
		below += count
		e.series(name+"_bucket", float64(below), append(slices.Clone(own), label{"le", bound})...)
	}
}

// multiprocess writes a histogram's series in the order of Python's client library when several processes share a page.
func (e *exposition) multiprocess(name string, h Histogram, own ...label) {
	e.series(name+"_sum", h.Sum, own...)
	e.buckets(name, h, own...)
	e.series(name+"_count", float64(h.Count()), own...)
}

// pythonNumber formats as Python's client library does: 3.0, 0.25, 1.4123e+06.
func pythonNumber(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".eIN") {
		text += ".0"
	}
	return text
}

// pythonBool is how Python spells a truth value.
func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// cppNumber formats as prometheus-cpp does, with 16 significant digits at most: 3, 0.25, 1412300.
func cppNumber(v float64) string { return strconv.FormatFloat(v, 'g', 16, 64) }

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}
