package host

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/intent"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/placement"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
	"github.com/berth-dev/berth/internal/telemetry"
)

// Acted says how the gateway acted on a recommendation.
type acted string

const (
	confirmed  acted = "confirmed"
	overridden acted = "overridden"
	violated   acted = "violated"
	unreported acted = "unreported"
)

// inFlight is a placed request on its way: the unit that it holds at a replica,
// and what becomes of the recommendation. It implements extproc.Decision and
// belongs to one stream.
type inFlight struct {
	decider *decider
	act     *active
	set     *pool.Set
	// screened are the slots that the request may be served by. They are those
	// of set, whatever the pool has become since.
	screened screen.Members
	// order is the pick and its fallbacks; destination names them.
	order       []*pool.Endpoint
	destination string
	unit        pool.Unit
	// What acknowledgements tell of the decision: candidates is how many members
	// the screen left, removed how many each class excluded.
	id         string
	rung       placement.Rung
	candidates int
	removed    [screen.NumClasses]int
	record     *ledger.Record
	// intentSource and intentID are of the routing intent.
	intentSource intent.Source
	intentID     string
	// infers is set for a request that the engine's core has to answer.
	infers bool

	decidedAt, completeAt, firstByteAt telemetry.Instant

	served extproc.Served
	acted  acted
	// servedBy is nil until a member of the pool is reported to have answered.
	servedBy *pool.Endpoint
}

var _ extproc.Decision = (*inFlight)(nil)

// newInFlight takes the unit at the pick.
func newInFlight(c *cycle, d *decider) *inFlight {
	f := &inFlight{
		decider:    d,
		act:        c.act,
		set:        c.set,
		screened:   slices.Clone(c.screened.Members()),
		order:      make([]*pool.Endpoint, len(c.placed.Ranked)),
		id:         c.id,
		rung:       c.placed.Rung,
		candidates: len(c.screened.Slots),
		removed:    c.screened.Removed,
		decidedAt:  c.now,
		completeAt: c.request.CompleteAt,
		acted:      unreported,

		intentSource: c.intent.Source,
		infers:       c.facts.API.Infers() && !slices.Contains(asking[:], c.request.Method),
	}
	if i := c.intent.Routing; i != nil {
		// The request's own memory need not be kept for it.
		f.intentID = strings.Clone(i.IntentID)
	}
	for i := range f.order {
		f.order[i] = c.ranked(i)
	}
	f.destination = addresses(f.order)
	f.unit = f.order[0].Take(c.now)
	d.metrics.inFlight.Inc()
	return f
}

// Destination implements extproc.Decision.
func (f *inFlight) Destination() string { return f.destination }

// addresses joins the pick and its fallbacks as gateways read them.
func addresses(order []*pool.Endpoint) string {
	if len(order) == 1 {
		return order[0].Destination
	}
	size := len(order) - 1
	for _, e := range order {
		size += len(e.Destination)
	}
	var b strings.Builder
	b.Grow(size)
	for i, e := range order {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(e.Destination)
	}
	return b.String()
}

// RequestHeaders implements extproc.Decision.
func (f *inFlight) RequestHeaders() []extproc.Header {
	return []extproc.Header{{Name: "x-berth-decision", Value: f.id}}
}

// Acknowledgement implements extproc.Decision.
func (f *inFlight) Acknowledgement() []extproc.Member {
	members := make([]extproc.Member, 0, 12)
	members = append(members,
		extproc.Text("version", v1alpha1.Version),
		extproc.Text("decision", f.id),
		extproc.Text("rung", f.rung.String()),
		extproc.Text("policy", f.act.policy.Digest),
		extproc.Number("candidates", float64(f.candidates)),
		extproc.Text("intentSource", string(f.intentSource)),
		extproc.Text("recommended", f.order[0].Destination),
	)
	if f.intentID != "" {
		members = append(members, extproc.Text("intentID", f.intentID))
	}
	for class, n := range f.removed {
		if n > 0 {
			members = append(members, extproc.Number("screenedOut."+screen.Class(class).String(), float64(n)))
		}
	}
	if f.served.At != 0 {
		members = append(members, extproc.Text("acted", string(f.acted)))
		if f.servedBy != nil {
			members = append(members, extproc.Text("served", f.servedBy.Destination))
		}
	}
	return members
}

// acknowledgement is the record's, as far as the decision alone tells it.
func (f *inFlight) acknowledgement() v1alpha1.Acknowledgement {
	at := f.decidedAt.Time()
	return v1alpha1.Acknowledgement{RecommendedAt: &at}
}

// asking are the methods that generate nothing.
var asking = [...]string{"GET", "HEAD", "OPTIONS"}

// faultStatuses are those by which an engine, or a proxy before it, says that it could
// not serve. Others from 500 up are about the request, such as 501.
var faultStatuses = [...]int{500, 502, 503, 504}

// Served implements extproc.Decision.
func (f *inFlight) Served(s extproc.Served) *extproc.Refusal {
	f.served = s
	if f.served.ByReplica() {
		f.acted, f.servedBy = f.judge(s.Address)
	}
	f.learn()
	if f.servedBy != nil {
		f.unit.Move(f.servedBy.Live)
	}
	if s.Status < 500 && f.servedBy == f.order[0] {
		f.unit.EndTry()
	}
	if f.acted != violated || f.act.policy.Gateway.OnViolation != v1alpha1.ViolationRefuse {
		return nil
	}
	f.decider.metrics.refused("served_outside")
	return &extproc.Refusal{
		Status:     502,
		Reason:     "served_outside",
		Message:    "the gateway took the response from outside the endpoints that the request may use",
		DecisionID: f.id,
	}
}

// judge compares who served with who was recommended and who was eligible.
func (f *inFlight) judge(address string) (acted, *pool.Endpoint) {
	if address == "" {
		return unreported, nil
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return violated, nil
	}
	slot, ok := f.set.ByAddress(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	if !ok {
		return violated, nil
	}
	e := f.set.Endpoints[slot]
	switch {
	case e == f.order[0]:
		return confirmed, e
	case f.screened.Contains(slot):
		return overridden, e
	default:
		return violated, e
	}
}

// learn takes what the attempts say of the replicas: one that answered is
// there, those that the gateway tried before it and gave up on are not.
func (f *inFlight) learn() {
	failed := f.served.Attempts
	switch {
	case f.served.ByReplica() && f.servedBy == nil:
		// Somebody answered, and nobody said who: it may have been any of them.
		return
	case f.served.ByReplica():
		failed--
		f.servedBy.Answered()
	case f.served.TransportFailure == "" && !resetByReplica(f.served.Details):
		// The gateway gave up for a reason that is not a connection's.
		return
	}
	for i := 0; i < failed && i < len(f.order); i++ {
		if f.order[i] != f.servedBy {
			f.order[i].Refused()
			f.failed(f.order[i], f.served.At)
		}
	}
}

// resetByReplica tells from Envoy's details that a request was reset for want of the
// replica. With these reasons in them it was the gateway's own doing: its circuit
// breaker was full, or it gave up itself.
func resetByReplica(details string) bool {
	for _, own := range []string{"{overflow}", "{local_reset}", "{local_refused_stream_reset}"} {
		if strings.Contains(details, own) {
			return false
		}
	}
	return strings.Contains(details, "reset")
}

// failed counts a request that a replica failed.
func (f *inFlight) failed(e *pool.Endpoint, now telemetry.Instant) {
	if e.Failed(now, f.act.quarantine()) {
		f.decider.metrics.quarantines.WithLabelValues("begun").Inc()
	}
}

// weigh counts what the end of a request says of the replica that served it. Much
// says nothing: a gateway's time-out, since how long an answer takes is the request's
// doing as much as the replica's; what a client has done wrong, whether a status says
// so or an event inside the answer; and a good answer to a question that an engine
// whose core is dead answers too, such as which models there are.
func (f *inFlight) weigh(o extproc.Outcome) {
	if f.servedBy == nil || !f.served.ByReplica() {
		return
	}
	faulty := o.Answer.ErrorCode < 400 || o.Answer.ErrorCode > 499
	switch {
	case slices.Contains(faultStatuses[:], f.served.Status),
		faulty && (o.Cause == extproc.UpstreamError || o.Cause == extproc.EngineAbort):
		f.failed(f.servedBy, o.At)
	case f.infers && f.served.Status < 400 && (o.Cause == extproc.Complete || o.Cause == extproc.Unseen):
		if f.servedBy.Succeeded() {
			f.decider.metrics.quarantines.WithLabelValues("ended").Inc()
		}
	}
}

// ResponseHeaders implements extproc.Decision.
func (f *inFlight) ResponseHeaders() []extproc.Header {
	verbosity := f.act.policy.Acknowledgement.ResponseHeaders
	if verbosity == v1alpha1.ResponseHeadersOff {
		return nil
	}
	headers := []extproc.Header{
		{Name: "x-berth-decision", Value: f.id},
		{Name: "x-berth-rung", Value: f.rung.String()},
		{Name: "x-berth-acted", Value: string(f.acted)},
		{Name: "x-berth-policy", Value: f.act.policy.Digest},
	}
	if verbosity == v1alpha1.ResponseHeadersFull && f.servedBy != nil {
		headers = append(headers, extproc.Header{Name: "x-berth-replica", Value: f.servedBy.Name})
	}
	return headers
}

// FirstByte implements extproc.Decision. The gateway's own answers have none.
func (f *inFlight) FirstByte(now telemetry.Instant) {
	if f.served.ByReplica() {
		f.firstByteAt = now
	}
}

// Finish implements extproc.Decision.
func (f *inFlight) Finish(o extproc.Outcome) {
	// Before the unit is given back: a request that tries a replica decides.
	f.weigh(o)
	f.unit.Release()
	f.decider.metrics.inFlight.Dec()
	f.decider.metrics.finished(f.acted, o.Cause)
	at := f.order[0]
	if f.servedBy != nil {
		at = f.servedBy
	}
	switch o.Cause {
	case extproc.Complete:
		if f.firstByteAt != 0 && f.served.Status < 400 {
			at.Observe(f.firstByteAt.Sub(f.completeAt), o.At)
		}
	case extproc.Aborted, extproc.EngineAbort, extproc.UpstreamError, extproc.GatewayTimeout:
		at.Wake()
	}
	f.decider.recorder.finished(f, o)
}
