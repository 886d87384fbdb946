package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/enginesim"
)

// spoiled is what a report says of a field whose samples are not what they should
// be.
type spoiled struct {
	state v1alpha1.State
	// why is a part of the reason.
	why string
}

func (s spoiled) by(got v1alpha1.Reading) bool {
	return got.State == s.state && got.Value == nil && got.Quality == 0 &&
		slices.ContainsFunc(got.Reasons, func(reason string) bool { return strings.Contains(reason, s.why) })
}

// pageFault is something that is wrong with a page. FreezePage and Sleep have
// scenarios of their own, as have pages that are something else.
type pageFault struct {
	name string
	// faults are made for an engine: family is the one that says how long its
	// queue is.
	faults func(family string) enginesim.Faults
	// reason is why the page is not read. If it is empty the page is read, and
	// field is what becomes of the fields of the family; nil: they are well too.
	reason string
	field  *spoiled
}

func inPage(of func(family string) enginesim.PageFaults) func(string) enginesim.Faults {
	return func(family string) enginesim.Faults { return enginesim.Faults{Page: of(family)} }
}

func valued(text string) func(string) enginesim.Faults {
	return inPage(func(family string) enginesim.PageFaults {
		return enginesim.PageFaults{Values: map[string]string{family: text}}
	})
}

var pageFaults = []pageFault{
	// What is not an engine's page at all.
	{name: "500", reason: "status_500",
		faults: func(string) enginesim.Faults { return enginesim.Faults{PageStatus: http.StatusInternalServerError} }},
	{name: "hang", reason: "timeout", faults: func(string) enginesim.Faults { return enginesim.Faults{PageHang: true} }},
	{name: "slower than the limit", reason: "timeout",
		faults: func(string) enginesim.Faults { return enginesim.Faults{PageDelay: enginesim.Duration(time.Hour)} }},
	{name: "redirect to another host", reason: "redirect",
		faults: inPage(func(string) enginesim.PageFaults {
			return enginesim.PageFaults{Redirect: "http://127.0.0.2:1/metrics"}
		})},
	{name: "connection cut within the page", reason: "truncated",
		faults: inPage(func(string) enginesim.PageFaults {
			return enginesim.PageFaults{Truncate: &enginesim.Truncation{Bytes: 300}}
		})},
	{name: "cut within a line, without a sign in the transfer", reason: "truncated",
		faults: inPage(func(string) enginesim.PageFaults {
			return enginesim.PageFaults{Truncate: &enginesim.Truncation{Bytes: 300, Clean: true}}
		})},
	{name: "label of 22 MB", reason: "too_large",
		faults: inPage(func(string) enginesim.PageFaults { return enginesim.PageFaults{HugeLabel: 22 << 20} })},

	// What is no fault to a reader that expects it.
	{name: "slow", faults: func(string) enginesim.Faults {
		return enginesim.Faults{PageDelay: enginesim.Duration(300 * time.Millisecond)}
	}},
	{name: "wrong content type", faults: inPage(func(string) enginesim.PageFaults {
		return enginesim.PageFaults{ContentType: "application/octet-stream"}
	})},
	{name: "colon replaced", faults: inPage(func(string) enginesim.PageFaults { return enginesim.PageFaults{Colon: true} })},
	{name: "label of 1 MB", faults: inPage(func(string) enginesim.PageFaults { return enginesim.PageFaults{HugeLabel: 1 << 20} })},

	// What is wrong with one family.
	{name: "family dropped", field: &spoiled{v1alpha1.Missing, ""},
		faults: inPage(func(family string) enginesim.PageFaults {
			return enginesim.PageFaults{DropFamilies: []string{family}}
		})},
	{name: "NaN", field: &spoiled{v1alpha1.Invalid, "value NaN"}, faults: valued("NaN")},
	{name: "-nan", field: &spoiled{v1alpha1.Invalid, "value NaN"}, faults: valued("-nan")},
	{name: "negative", field: &spoiled{v1alpha1.Invalid, "value -1"}, faults: valued("-1")},
	{name: "huge", field: &spoiled{v1alpha1.Invalid, "value 1e+300"}, faults: valued("1e300")},
	{name: "infinite", field: &spoiled{v1alpha1.Invalid, "value +Inf"}, faults: valued("+Inf")},
	{name: "no number", field: &spoiled{v1alpha1.Invalid, "a line does not parse"}, faults: valued("soon")},
	{name: "duplicate series", field: &spoiled{v1alpha1.Invalid, "duplicate: one series with different values"},
		faults: inPage(func(family string) enginesim.PageFaults {
			return enginesim.PageFaults{Duplicates: []string{family}}
		})},
}

// of are the fields that an engine says with one family.
func (e engineFacts) of(family string) (fields []string) {
	for field, s := range e.load {
		if s.family == family {
			fields = append(fields, field)
		}
	}
	for field, f := range e.stated {
		if f.path == "" && f.metric == family {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// faultyPages has, one engine after the other, a replica for each fault, and one
// whose counters will be set to zero. All of them work alike, so that what is not
// spoiled says the same everywhere.
func faultyPages(t *testing.T, binary string) {
	for _, e := range allEngines {
		t.Run(e.name(), func(t *testing.T) { faultyPagesOf(t, binary, e) })
	}
}

func faultyPagesOf(t *testing.T, binary string, e engineFacts) {
	r := replica{e, enginesim.Load{Running: 4, Waiting: 3}, true}
	zeroed := len(pageFaults)
	f := startEngines(t, binary, slices.Repeat([]replica{r}, zeroed+1), spec{
		berth:     quick(t),
		unscraped: true,
		prepare: func(engines []*enginesim.Server) {
			for i, fault := range pageFaults {
				if err := engines[i].SetFaults(fault.faults(r.load["queueDepth"].family)); err != nil {
					t.Fatal(err)
				}
			}
		},
	})
	for i, fault := range pageFaults {
		if fault.reason != "" {
			// On a busy machine anything may time out first.
			o := f.reported(i, fault.name+": it fails by "+fault.reason, func(o *v1alpha1.Observation) bool { return o.ScrapeError == fault.reason })
			if o.Engine != r.name() {
				t.Errorf("%s: engine %q, want %s", fault.name, o.Engine, r.name())
			}
			f.truthful(i, r, "with "+fault.name, pageless)
			continue
		}
		var hurt []string
		if fault.field != nil {
			hurt = r.of(r.load["queueDepth"].family)
		}
		o := f.truthful(i, r, "with "+fault.name, well, hurt...)
		for _, field := range hurt {
			if got := o.Fields[field]; !fault.field.by(got) {
				t.Errorf("%s: %s should be %s since %q: %s", fault.name, field, fault.field.state, fault.field.why, inFull(got))
			}
		}
	}
	zeroedCounters(t, f, zeroed, r)
}

// zeroedCounters has the counters of a page begin anew within the process: what
// was counted before is in no window with what is counted after. It looks like
// another process where the page does not tell when that started.
func zeroedCounters(t *testing.T, f *fleet, engine int, r replica) {
	t.Helper()
	f.truthful(engine, r, "before its counters are zero", well)
	f.fault(engine, enginesim.Faults{ZeroCounters: true})
	began := time.Now()
	o := f.reported(engine, r.name()+" whose counters began anew: its windows are full again", func(o *v1alpha1.Observation) bool {
		for field := range r.grown {
			if v, counted := number(o.Fields[field]); counted && v < 0 {
				t.Fatalf("%s: %s is %v after its counters began anew", r.name(), field, v)
			}
		}
		at := o.Fields["promptThroughput"].ObservedAt
		return at != nil && at.Sub(began) > 3*time.Second && len(r.misread(o, well)) == 0
	})
	want := 2
	if _, told := r.stated["processStart"]; told {
		want = 1
	}
	if o.Replica.Incarnation != want {
		t.Errorf("%s whose counters began anew: incarnation %d, want %d", r.name(), o.Replica.Incarnation, want)
	}
}
