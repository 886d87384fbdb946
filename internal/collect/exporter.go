package collect

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/internal/engine"
	"github.com/berth-dev/berth/internal/telemetry"
)

// exporter is one page of GPUs and what it last said.
type exporter struct {
	Exporter
	// index is its place among the exporters.
	index int
	// moved and histories belong to the worker that reads it.
	moved     string
	histories map[engine.Pod]*engine.History
	pods      atomic.Pointer[map[engine.Pod]*engine.Readings]
}

// at is where the page is.
func (x *exporter) at() place {
	page := x.Profile.Metrics()
	return place{
		scheme: cmp.Or(x.Scheme, page.Scheme, "http"),
		host:   x.Address.String(),
		path:   cmp.Or(x.moved, page.Path),
		accept: page.Accept,
	}
}

// readExporter asks an exporter for its page and puts what it says into the
// table. What it said before stays until it expires.
func (w *worker) readExporter(j job, r *report) {
	x := j.target.exporter
	got, found, a := w.whole(j, x.at(), x.Profile)
	r.reached = a.status != 0
	if !found {
		x.moved = ""
		r.fail(a.reason, a.cause)
		return
	}
	pods, err := x.Profile.ReadPods(got.body, got.path, got.at, w.opts.lease(w.opts.Idle), x.histories)
	if err != nil {
		r.fail(readReason(err), err)
		return
	}
	x.moved = cmp.Or(a.redirected, x.moved)
	r.interval = w.opts.Idle
	w.table.put(x, pods)
}

// table is what all exporters say, by pod. Any worker may look something up
// while others put something in.
type table struct {
	exporters []*exporter
	// fields are those that one of them is read for.
	fields []telemetry.Field
	// mu orders changes of byPod, which has for each pod the exporters that know
	// it, in their order.
	mu    sync.Mutex
	byPod sync.Map
}

func newTable(list []Exporter) *table {
	t := &table{}
	for i, e := range list {
		t.exporters = append(t.exporters, &exporter{Exporter: e, index: i, histories: map[engine.Pod]*engine.History{}})
		t.fields = append(t.fields, e.Profile.Reads()...)
	}
	slices.Sort(t.fields)
	t.fields = slices.Compact(t.fields)
	return t
}

// put replaces what one exporter says.
func (t *table) put(x *exporter, pods map[engine.Pod]*engine.Readings) {
	before := x.pods.Swap(&pods)
	if before == nil {
		before = &map[engine.Pod]*engine.Readings{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for pod := range *before {
		if pods[pod] == nil {
			t.change(pod, func(known []*exporter) []*exporter {
				return slices.DeleteFunc(known, func(other *exporter) bool { return other == x })
			})
		}
	}
	for pod := range pods {
		if (*before)[pod] == nil {
			t.change(pod, func(known []*exporter) []*exporter {
				known = append(known, x)
				slices.SortFunc(known, func(a, b *exporter) int { return a.index - b.index })
				return known
			})
		}
	}
}

// change replaces the exporters that know a pod. Lists that were looked up stay
// as they are.
func (t *table) change(pod engine.Pod, how func([]*exporter) []*exporter) {
	known := how(slices.Clone(t.knowing(pod)))
	if len(known) == 0 {
		t.byPod.Delete(pod)
		return
	}
	t.byPod.Store(pod, known)
}

func (t *table) knowing(pod engine.Pod) []*exporter {
	known, _ := t.byPod.Load(pod)
	list, _ := known.([]*exporter)
	return list
}

// join is s with what the exporters say of a pod; s itself stays as it is. Of a
// pod with several endpoints it is not known which of them a value is of.
func (t *table) join(s *telemetry.Snapshot, pod string, shared bool) *telemetry.Snapshot {
	if len(t.exporters) == 0 || pod == "" {
		return s
	}
	known := t.knowing(engine.Pod(pod))
	joined := *s
	if len(known) == 0 {
		t.explain(&joined, pod)
		return &joined
	}
	for _, x := range known {
		pods := x.pods.Load()
		if pods == nil || (*pods)[engine.Pod(pod)] == nil {
			continue
		}
		if readings := (*pods)[engine.Pod(pod)]; shared {
			leaveOut(&joined, readings)
		} else {
			engine.Join(&joined, readings)
		}
	}
	return &joined
}

// explain says of the fields that exporters give why none of them does.
func (t *table) explain(s *telemetry.Snapshot, pod string) {
	words := "no exporter's page has the pod " + pod
	for _, f := range t.fields {
		r := &s.Readings[f]
		if r.Recorded != telemetry.Missing || r.Support == telemetry.Supported || r.Detail != nil && slices.Contains(r.Detail.Reasons, words) {
			continue
		}
		var own telemetry.Detail
		if r.Detail != nil {
			own = *r.Detail
		}
		own.Reasons = append(slices.Clone(own.Reasons), words)
		r.Detail = &own
	}
}

// ofSeveral says why a pod's values are left out.
var ofSeveral = &telemetry.Detail{Reasons: []string{"the exporter's value is of the pod, which has several endpoints of the pool"}}

// leaveOut says of each field that only the exporter knows why it is not known.
func leaveOut(s *telemetry.Snapshot, pod *engine.Readings) {
	for f := range pod {
		own, other := &s.Readings[f], &pod[f]
		silent := other.Recorded == telemetry.Missing && other.Support == telemetry.SupportUnknown
		if !silent && own.Recorded == telemetry.Missing && own.Support != telemetry.Supported {
			*own = telemetry.Reading{Detail: ofSeveral}
		}
	}
}
