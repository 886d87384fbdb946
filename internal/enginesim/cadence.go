package enginesim

import (
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

// Cadence says when an engine reports to its own telemetry page. The zero value is an engine that never does, for pages that show
// what is true at the moment of the scrape.
type Cadence struct {
	// AtStart: when the process starts.
	AtStart bool
	// Step: at the end of each step.
	Step bool
	// Prefill: at the end of each step that computed a part of a prompt, and when a request is admitted.
	Prefill bool
	// DecodeSteps: at the end of every so many steps that only decoded; 0 is never.
	DecodeSteps int
	// Completion: when a request has ended by itself.
	Completion bool
	// Idle: that long after the latest report, if there is no work then, and as soon as there is none otherwise; the first one
	// counts from the start. 0 is never.
	Idle time.Duration
	// Gap is the shortest time between two reports; one that is due earlier is left out.
	Gap time.Duration
	// Reread is how often the server of the page looks for a report, from the start on; the page shows what it found last. It
	// looks just before the engine reports, if both happen at once. 0: the page shows the latest report.
	Reread time.Duration
	// Device is how often the server of the page asks the driver of the device how it is, from the start on; 0 is never.
	Device time.Duration
	// Rows is how many reports of single steps are kept for a page that empties when it is read.
	Rows int
	// TTFTAtEnd: the time to first token is told when the request has ended.
	TTFTAtEnd bool
}

// Report is what an engine tells its telemetry page: gauges of one instant, and counters since the start. The zero Report is that of
// an engine that has not told anything yet.
type Report struct {
	At    time.Time
	Stats enginemodel.Stats
	Totals
	// Computing is how many of the running requests have a part of their prompt to compute.
	Computing int

	// Took, Admitted and Completed are of the step that the report ends: its length, and requests.
	Took                time.Duration
	Admitted, Completed int
	// Throughput is the tokens generated in a second between the latest two reports by Cadence.DecodeSteps.
	Throughput float64
	// HitRate is the part of prompt tokens that was found in the cache, between the latest two reports by Cadence.Prefill; a
	// report by Cadence.DecodeSteps sets it to 0.
	HitRate float64
}

// Device is how the device was when its driver was last asked.
type Device struct {
	At time.Time
	// Working: there were requests in the batch.
	Working bool
	// Busy is how long there were, since the start.
	Busy time.Duration
}

// Totals count requests since the start, and tokens of those that have finished.
type Totals struct {
	// LookedUp are requests that have been admitted at least once.
	LookedUp uint64
	// Recovered are preemptions after which their request has generated again.
	Recovered uint64
	// Finished are those that have ended by themselves.
	Finished                                    uint64
	PromptTokens, CachedTokens, GeneratedTokens uint64
}

func (t Totals) plus(o Totals) Totals {
	return Totals{t.LookedUp + o.LookedUp, t.Recovered + o.Recovered, t.Finished + o.Finished, t.PromptTokens + o.PromptTokens,
		t.CachedTokens + o.CachedTokens, t.GeneratedTokens + o.GeneratedTokens}
}

// reporter knows what the telemetry page of an engine shows. It is a pure state machine: its caller tells it how time passes and what
// happens, in order.
type reporter struct {
	cadence Cadence
	// truth has been true since the last thing that happened.
	truth Report
	// latest is the engine's latest report, shown what its page shows of it.
	latest, shown Report
	// looked is when the server last looked for a report; meaningful only with Cadence.Reread.
	looked time.Time
	device Device // meaningful only with Cadence.Device
	passed time.Time
	busy   time.Duration // with requests in the batch
	rows   []Report

	last                time.Time // time of the latest report, or of the start
	decoded             int       // steps that only decoded
	atPrefill, atDecode Report    // the latest by Prefill and by DecodeSteps
}

func newReporter(c Cadence, start time.Time, truth Report) *reporter {
	r := &reporter{cadence: c, truth: truth, looked: start, passed: start, last: start}
	r.atDecode.At, r.device.At = start, start
	if c.AtStart {
		r.report(start)
	}
	return r
}

// pass lets time pass in which nothing happened. While the scheduler stands still it reports nothing; the server looks nevertheless.
func (r *reporter) pass(to time.Time, still bool) {
	if to.Before(r.passed) {
		return
	}
	r.poll(to, still)
	idle := r.truth.Stats.Running+r.truth.Stats.Waiting == 0
	for {
		report, look := to, to
		reports := idle && !still && r.cadence.Idle > 0
		if reports {
			report = later(r.last.Add(r.cadence.Idle), r.passed)
			reports = !report.After(to)
		}
		looks := r.cadence.Reread > 0
		if looks {
			look = r.looked.Add(r.cadence.Reread)
			looks = !look.After(to)
		}
		switch {
		case looks && (!reports || !report.Before(look)):
			r.looked, r.shown = look, r.latest
		case reports:
			r.report(report)
		default:
			r.busy = r.busyAt(to, still)
			r.passed = to
			return
		}
	}
}

// poll asks the driver for the last time in what passes.
func (r *reporter) poll(to time.Time, still bool) {
	if r.cadence.Device == 0 {
		return
	}
	if times := to.Sub(r.device.At) / r.cadence.Device; times > 0 {
		at := r.device.At.Add(times * r.cadence.Device)
		r.device = Device{At: at, Working: r.truth.Stats.Running > 0 && !still, Busy: r.busyAt(at, still)}
	}
}

// busyAt is how long there were requests in the batch, at a time up to which nothing happens.
func (r *reporter) busyAt(at time.Time, still bool) time.Duration {
	if r.truth.Stats.Running > 0 && !still {
		return r.busy + at.Sub(r.passed)
	}
	return r.busy
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// occurrence is what has happened at one instant.
type occurrence struct {
	at time.Time
	// step: a step has ended; it took that long.
	step bool
	took time.Duration
	// prefill: a part of a prompt was computed in it, or a request was admitted after it.
	prefill             bool
	admitted, completed int
}

// know takes over what is true now. What only the reporter knows stays.
func (r *reporter) know(truth Report) {
	truth.Throughput, truth.HitRate = r.truth.Throughput, r.truth.HitRate
	r.truth = truth
}

// happen takes over what is true after something has happened. The time until then must have passed.
func (r *reporter) happen(o occurrence, truth Report) {
	r.know(truth)
	r.truth.Took, r.truth.Admitted, r.truth.Completed = o.took, o.admitted, o.completed
	due := r.cadence.Step && o.step || r.cadence.Completion && o.completed > 0
	if r.cadence.Prefill && o.prefill {
		due = true
		st, since := r.truth.Stats, r.atPrefill.Stats
		if queried := st.QueriedTokens - since.QueriedTokens; queried > 0 {
			r.truth.HitRate = float64(st.CachedTokens-since.CachedTokens) / float64(queried)
		}
		r.atPrefill = r.truth
	}
	if n := r.cadence.DecodeSteps; n > 0 && o.step && !o.prefill {
		r.decoded++
		if r.decoded%n == 0 {
			due = true
			made := r.truth.Stats.GeneratedTokens - r.atDecode.Stats.GeneratedTokens
			r.truth.Throughput = float64(made) / o.at.Sub(r.atDecode.At).Seconds()
			r.truth.HitRate = 0
			r.atDecode = r.truth
			r.atDecode.At = o.at
		}
	}
	if due && o.at.Sub(r.last) >= r.cadence.Gap {
		r.report(o.at)
	}
	if r.cadence.Rows > 0 && o.step {
		if len(r.rows) == r.cadence.Rows {
			r.rows = r.rows[1:]
		}
		row := r.truth
		row.At = o.at
		r.rows = append(r.rows, row)
	}
}

func (r *reporter) report(at time.Time) {
	r.latest = r.truth
	r.latest.At, r.last = at, at
	if r.cadence.Reread == 0 {
		r.shown = r.latest
	}
}

// drain hands out the rows since the last drain.
func (r *reporter) drain() []Report {
	rows := r.rows
	r.rows = nil
	return rows
}
