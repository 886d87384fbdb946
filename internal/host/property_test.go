package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// patience is how long a thing may take that must happen, on a busy machine.
const patience = 30 * time.Second

// eventually waits for a condition that nothing signals.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("never came true: %s", what)
		}
	}
}

// member is what a test knows of an endpoint, written down on its own: screening
// is judged against this, and not by the code that it judges.
type member struct {
	address string
	closed  bool
	sleeps  bool
	serves  string // a comma list; "?" is not known
	tenants string // as annotated; "-" is not at all
}

// world is the pool at one time.
type world map[string]member

// need is what a request demands of who serves it; "" demands nothing.
type need struct {
	model, subset string
	// trusted says that an intent names the model; tenant is whom the replica must
	// serve.
	trusted bool
	tenant  string
}

// eligible is the whole of screening in its plainest form.
func (w world) eligible(by need) map[string]bool {
	left := map[string]bool{}
	for _, m := range w {
		switch {
		case by.subset != "" && !slices.Contains(strings.Split(by.subset, ","), m.address):
		case by.trusted && m.serves == "?":
		case by.model != "" && m.serves != "?" && !slices.Contains(strings.Split(m.serves, ","), by.model):
		case by.tenant != "" && !slices.Contains(strings.Split(m.tenants, ","), by.tenant):
		case m.closed, m.sleeps:
		default:
			left[m.address] = true
		}
	}
	return left
}

// history is the pool over time. A change is announced before it is made, and is
// made when the call returns, so that whoever looks at the clock before and after
// a decision knows all worlds that the decision may have seen.
type history struct {
	mu     sync.Mutex
	worlds []world
	made   int // index of the newest world that is surely in force
}

func (h *history) change(next world, apply func()) {
	h.mu.Lock()
	h.worlds = append(h.worlds, next)
	h.mu.Unlock()
	apply()
	h.mu.Lock()
	h.made = len(h.worlds) - 1
	h.mu.Unlock()
}

func (h *history) before() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made
}

func (h *history) since(from int) []world {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.worlds[from:])
}

// ending is how a planned request goes on, and how it ends.
type ending struct {
	need
	bodiless bool
	// form is how an intent is written: flat, struct or text.
	form string
	// stop is after how many of the steps the client leaves; above the number of
	// steps it stays to the end.
	stop int
	// reset tells a reset stream from a closed one.
	reset bool
	// by says who serves: pick, last (the last fallback), any (some member),
	// outside, nonsense or silent.
	by string
	// local is a response that the gateway made itself.
	local    bool
	attempts int
	// fault is where the decision panics: "", decide, served, byte or finish.
	fault string
}

func drawEnding(rt *rapid.T) ending {
	demand := need{
		model:   rapid.SampledFrom([]string{"", "a", "b", "nobody's"}).Draw(rt, "model"),
		subset:  rapid.SampledFrom([]string{"", "", "", "10.0.0.1:8000,10.0.0.3:8000", "10.0.0.2:8000", "10.9.9.9:8000"}).Draw(rt, "subset"),
		trusted: rapid.IntRange(0, 2).Draw(rt, "trusted") == 0,
		tenant:  rapid.SampledFrom([]string{"", "", "x", "x", "y", "nobody"}).Draw(rt, "tenant"),
	}
	demand.trusted = demand.trusted && demand.model != ""
	return ending{
		need:     demand,
		form:     rapid.SampledFrom([]string{"flat", "struct", "text"}).Draw(rt, "form"),
		bodiless: rapid.IntRange(0, 3).Draw(rt, "bodiless") == 0,
		stop:     rapid.IntRange(0, 9).Draw(rt, "stop"),
		reset:    rapid.Bool().Draw(rt, "reset"),
		by:       rapid.SampledFrom([]string{"pick", "pick", "last", "any", "outside", "nonsense", "silent"}).Draw(rt, "by"),
		local:    rapid.IntRange(0, 5).Draw(rt, "local") == 0,
		attempts: rapid.IntRange(0, 4).Draw(rt, "attempts"),
		fault:    rapid.SampledFrom([]string{"", "", "", "", "", "decide", "served", "byte", "finish"}).Draw(rt, "fault"),
	}
}

// metadata is what the gateway's filters say of the request.
func (e ending) metadata() *corev3.Metadata {
	namespaces := map[string]*structpb.Struct{}
	if e.subset != "" {
		namespaces["envoy.lb.subset_hint"] = &structpb.Struct{Fields: map[string]*structpb.Value{
			"x-gateway-destination-endpoint-subset": structpb.NewStringValue(e.subset),
		}}
	}
	if intent := e.intent(); len(intent) > 0 {
		namespaces["berth.dev"] = &structpb.Struct{Fields: intent}
	}
	return &corev3.Metadata{FilterMetadata: namespaces}
}

// intent is the routing intent, in the form that is planned; empty if nothing is
// demanded that takes one.
func (e ending) intent() map[string]*structpb.Value {
	flat := map[string]*structpb.Value{}
	whole := map[string]any{"version": v1alpha1.Version}
	if e.trusted {
		flat["logicalModel"] = structpb.NewStringValue(e.model)
		whole["logicalModel"] = e.model
	}
	if e.tenant != "" {
		flat["requirement.authorization.berth.dev/tenants"] = structpb.NewStringValue(e.tenant)
		whole["requirements"] = []any{
			map[string]any{"class": "authorization", "key": "berth.dev/tenants", "operator": "In", "values": []any{e.tenant}},
		}
	}
	if len(flat) == 0 || e.form == "flat" {
		return flat
	}
	tree, err := structpb.NewStruct(whole)
	if err != nil {
		panic(err) // of the test's own making
	}
	if e.form == "struct" {
		return map[string]*structpb.Value{"intent": structpb.NewStructValue(tree)}
	}
	text, err := tree.MarshalJSON()
	if err != nil {
		panic(err)
	}
	return map[string]*structpb.Value{"intent": structpb.NewStringValue(string(text))}
}

// judged is a decider that checks where requests are sent, by the test's own
// knowledge of the pool, and panics where the plan says so. The plan of a request
// is named in its x-request-id.
type judged struct {
	*decider
	history *history
	plans   []ending

	mu            sync.Mutex
	placed, ended int
	bound         int // of those placed, for a tenant
	complaint     string
	finishedOf    map[int]int
}

func (j *judged) complain(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.complaint == "" {
		j.complaint = fmt.Sprintf(format, args...)
	}
}

func (j *judged) Decide(req *extproc.Request) (extproc.Decision, *extproc.Refusal) {
	var i int
	if _, err := fmt.Sscan(req.RequestID, &i); err != nil {
		j.complain("request without a number: %q", req.RequestID)
	}
	plan := j.plans[i]
	if plan.fault == "decide" {
		panic("planned: in Decide")
	}
	from := j.history.before()
	d, refusal := j.decider.begin().Decide(req)
	worlds := j.history.since(from)
	demand := plan.need
	if plan.bodiless && !plan.trusted {
		demand.model = ""
	}
	if refusal != nil {
		if len(worlds) == 1 && len(worlds[0].eligible(demand)) > 0 {
			j.complain("request %d was refused with %s though %v may serve it", i, refusal.Reason, worlds[0].eligible(demand))
		}
		return nil, refusal
	}
	for _, destination := range strings.Split(d.Destination(), ",") {
		if !slices.ContainsFunc(worlds, func(w world) bool { return w.eligible(demand)[destination] }) {
			j.complain("request %d was sent to %s, outside the screened set of %d worlds, the last being %v", i, destination, len(worlds), worlds[len(worlds)-1])
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.placed++
	if demand.tenant != "" {
		j.bound++
	}
	return &judgedDecision{Decision: d, of: j, number: i, fault: plan.fault}, nil
}

type judgedDecision struct {
	extproc.Decision
	of     *judged
	number int
	fault  string
}

func (d *judgedDecision) Served(s extproc.Served) *extproc.Refusal {
	if d.fault == "served" {
		panic("planned: in Served")
	}
	return d.Decision.Served(s)
}

func (d *judgedDecision) FirstByte(now telemetry.Instant) {
	if d.fault == "byte" {
		panic("planned: in FirstByte")
	}
	d.Decision.FirstByte(now)
}

func (d *judgedDecision) Finish(o extproc.Outcome) {
	d.Decision.Finish(o)
	d.of.mu.Lock()
	d.of.ended++
	d.of.finishedOf[d.number]++
	d.of.mu.Unlock()
	if d.fault == "finish" {
		panic("planned: in Finish")
	}
}

func (j *judged) counts() (placed, ended int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.placed, j.ended
}

// gatewaySide plays one planned request and returns after its first part: where
// the client leaves early, or at the point where the response is half through.
// Calling rest plays what is left.
func gatewaySide(client extprocv3.ExternalProcessorClient, i int, plan ending) (rest func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	stream, err := client.Process(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	leave := func() {
		defer cancel()
		if plan.reset {
			return
		}
		_ = stream.CloseSend()
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}
	step := 0
	gone := func() bool { step++; return step > plan.stop }
	// exchange sends a message and reads n answers; ok is false when the stream
	// is over: a refusal, or the end of it.
	exchange := func(msg *extprocv3.ProcessingRequest, n int) (last *extprocv3.ProcessingResponse, ok bool) {
		if err := stream.Send(msg); err != nil {
			return nil, false
		}
		for range n {
			answer, err := stream.Recv()
			if err != nil || answer.GetImmediateResponse() != nil {
				return nil, false
			}
			if last == nil {
				last = answer
			}
		}
		return last, true
	}
	finished := func() {}
	if gone() {
		return leave, nil
	}
	headers := &extprocv3.HttpHeaders{EndOfStream: plan.bodiless, Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: ":method", RawValue: []byte("POST")}, {Key: ":path", RawValue: []byte("/v1/chat/completions")},
		{Key: "content-type", RawValue: []byte("application/json")}, {Key: "x-request-id", RawValue: []byte(fmt.Sprint(i))},
	}}}
	first := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers}}
	first.MetadataContext = plan.metadata()
	expect := map[bool]int{true: 1}[plan.bodiless]
	answer, ok := exchange(first, expect)
	if !ok {
		cancel()
		return finished, nil
	}
	if !plan.bodiless {
		body := []byte(`{"messages":[]}`)
		if plan.model != "" {
			body = []byte(fmt.Sprintf(`{"model":%q,"messages":[]}`, plan.model))
		}
		if gone() {
			return leave, nil
		}
		if _, ok = exchange(bodyMessage(body[:7], false), 0); !ok {
			cancel()
			return finished, nil
		}
		if gone() {
			return leave, nil
		}
		if answer, ok = exchange(bodyMessage(body[7:], true), 3); !ok {
			cancel()
			return finished, nil
		}
	}
	if gone() {
		return leave, nil
	}
	if _, ok = exchange(responseMessage(plan, destinationOf(answer)), 1); !ok {
		cancel()
		return finished, nil
	}
	if gone() {
		return leave, nil
	}
	if _, ok = exchange(responsePart("half", false), 1); !ok {
		cancel()
		return finished, nil
	}
	return func() {
		if !gone() {
			exchange(responsePart("rest", true), 1)
		}
		leave()
	}, nil
}

func destinationOf(answer *extprocv3.ProcessingResponse) []string {
	for _, h := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			return strings.Split(string(h.GetHeader().GetRawValue()), ",")
		}
	}
	return []string{""}
}

func bodyMessage(part []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: part, EndOfStream: end},
	}}
}

func responsePart(part string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: end},
	}}
}

func responseMessage(plan ending, offered []string) *extprocv3.ProcessingRequest {
	address := map[string]string{
		"pick": offered[0], "last": offered[len(offered)-1], "any": "10.0.0.2:8000",
		"outside": "10.9.9.9:80", "nonsense": "\x00:", "silent": "",
	}[plan.by]
	details := "via_upstream"
	if plan.local {
		details = "upstream_reset_before_response_started{connection_failure}"
	}
	attributes := map[string]*structpb.Value{
		"response.code_details":          structpb.NewStringValue(details),
		"upstream.request_attempt_count": structpb.NewNumberValue(float64(plan.attempts)),
	}
	if address != "" {
		attributes["upstream.address"] = structpb.NewStringValue(address)
	}
	return &extprocv3.ProcessingRequest{
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: attributes}},
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: ":status", RawValue: []byte("200")}}},
		}},
	}
}

// service serves an extproc.Server on a connection in memory.
func service(t testing.TB, server *extproc.Server) (client extprocv3.ExternalProcessorClient, stop func()) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(extproc.GRPCOptions()...)
	extprocv3.RegisterExternalProcessorServer(g, server)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	return extprocv3.NewExternalProcessorClient(conn), func() {
		_ = conn.Close()
		g.GracefulStop()
		<-served
	}
}

// drawWorld makes a pool of some of six endpoints, with what they serve, for whom,
// and whether they are ready.
func drawWorld(rt *rapid.T) world {
	w := world{}
	for i := 1; i <= 6; i++ {
		if rapid.IntRange(0, 3).Draw(rt, "member") == 0 {
			continue
		}
		w[fmt.Sprintf("r%d", i)] = member{
			address: fmt.Sprintf("10.0.0.%d:8000", i),
			closed:  rapid.IntRange(0, 5).Draw(rt, "closed") == 0,
			serves:  rapid.SampledFrom([]string{"?", "a", "b", "a,b"}).Draw(rt, "serves"),
			tenants: rapid.SampledFrom([]string{"-", "", "x", "y", "x,y"}).Draw(rt, "tenants"),
		}
	}
	return w
}

func (w world) specs() []pool.Spec {
	names := make([]string, 0, len(w))
	for name := range w {
		names = append(names, name)
	}
	slices.Sort(names)
	specs := make([]pool.Spec, 0, len(w))
	for i, name := range names {
		m := w[name]
		spec := pool.Spec{Name: name, Address: netip.MustParseAddrPort(m.address), Ready: !m.closed || i%2 == 0, Terminating: m.closed}
		if m.serves != "?" {
			spec.ServedModels = strings.Split(m.serves, ",")
		}
		if m.tenants != "-" {
			spec.Annotations = map[string]string{"berth.dev/tenants": m.tenants}
		}
		specs = append(specs, spec)
	}
	return specs
}

// TestUnitsAndScreeningHoldWhateverHappens runs many requests at once through a
// real ext_proc server, with intents and without, under a pool whose members and
// annotations change, engines that answer scrapes or
// do not, gateways that do as they like, clients that leave at any time, and
// faults. However they interleave: every unit that was taken is given back once,
// and no request is ever sent outside its screened set.
func TestUnitsAndScreeningHoldWhateverHappens(t *testing.T) {
	var placedInAll, boundInAll int
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, fmt.Sprintf("gateway: {fallbacks: %d, onViolation: %s}\n",
			rapid.IntRange(0, 3).Draw(rt, "fallbacks"), rapid.SampledFrom([]string{"report", "refuse"}).Draw(rt, "onViolation")))
		plans := rapid.SliceOfN(rapid.Custom(drawEnding), 1, 40).Draw(rt, "plans")
		worlds := rapid.SliceOfN(rapid.Custom(drawWorld), 1, 6).Draw(rt, "worlds")
		scrapes := rapid.SliceOfN(rapid.IntRange(0, 11), 0, 30).Draw(rt, "scrapes")

		h := &history{worlds: []world{{}}}
		j := &judged{decider: r.decider, history: h, plans: plans, finishedOf: map[int]int{}}
		var livesMu sync.Mutex
		lives := map[*pool.Live]string{}
		r.pools.Watch(func(s *pool.Set) {
			livesMu.Lock()
			defer livesMu.Unlock()
			for _, e := range s.Endpoints {
				lives[e.Live] = e.Name
			}
		})
		apply := func(w world) { h.change(w, func() { r.update(w.specs()...) }) }
		apply(worlds[0])

		server := extproc.NewServer(extproc.Options{
			Clock: r.clock.read,
			Begin: func() (extproc.Settings, extproc.Decider) {
				return extproc.Settings{
					BodyLimit: 1 << 20, Buffered: 1 << 30, Streams: 1 << 20, HeaderCount: 1000, HeaderBytes: 1 << 20,
					UploadIdle: time.Hour, UploadTime: time.Hour, DecisionDeadline: time.Hour,
				}, j
			},
			Panicked: func(v any, _ []byte) {
				if text, ok := v.(string); !ok || !strings.HasPrefix(text, "planned") {
					j.complain("an unplanned panic: %v", v)
				}
			},
			Refused: func(_ *extproc.Request, _ extproc.Decision, refusal *extproc.Refusal) {
				r.metrics.refused(refusal.Reason)
			},
		})
		client, stop := service(t, server)

		var busy sync.WaitGroup
		busy.Add(2)
		go func() {
			defer busy.Done()
			for _, w := range worlds[1:] {
				apply(w)
			}
		}()
		go func() {
			// Engines answer, or do not; sleeping is not among it, since that is
			// part of screening and drawn elsewhere.
			defer busy.Done()
			for n, s := range scrapes {
				set := r.pools.Set()
				if len(set.Endpoints) == 0 {
					continue
				}
				live := set.Endpoints[s%len(set.Endpoints)].Live
				mark := live.BeginScrape()
				if s%3 == 0 {
					live.ScrapeFailed("connection refused")
					continue
				}
				snapshot := &telemetry.Snapshot{}
				for _, f := range []telemetry.Field{telemetry.QueueDepth, telemetry.ActiveRequests} {
					snapshot.Readings[f] = telemetry.Reading{Value: float64(n), Recorded: telemetry.Fresh}
				}
				live.Publish(snapshot, mark)
			}
		}()
		rests := make([]func(), len(plans))
		for i, plan := range plans {
			busy.Add(1)
			go func() {
				defer busy.Done()
				rest, err := gatewaySide(client, i, plan)
				if err != nil {
					j.complain("request %d: %v", i, err)
					rest = func() {}
				}
				rests[i] = rest
			}()
		}
		busy.Wait()

		// Half way: what the picker counts is what is open, at the endpoints and in
		// all. Streams that were reset end in their own time.
		units := func() (inFlight, pending int32) {
			livesMu.Lock()
			defer livesMu.Unlock()
			for live := range lives {
				if live.InFlight() < 0 || live.Pending() < 0 || live.Pending() > live.InFlight() {
					j.complain("%s: %d in flight, %d pending", lives[live], live.InFlight(), live.Pending())
				}
				inFlight += live.InFlight()
				pending += live.Pending()
			}
			return inFlight, pending
		}
		eventually(t, "units, gauge and open decisions agree", func() bool {
			placed, ended := j.counts()
			inFlight, _ := units()
			again, endedAgain := j.counts()
			return placed == again && ended == endedAgain &&
				int(inFlight) == placed-ended && r.sample("berth_inflight_requests") == float64(placed-ended)
		})

		for _, rest := range rests {
			busy.Add(1)
			go func() { defer busy.Done(); rest() }()
		}
		busy.Wait()
		stop()

		placed, ended := j.counts()
		if j.complaint != "" {
			rt.Fatal(j.complaint)
		}
		if inFlight, pending := units(); inFlight != 0 || pending != 0 || placed != ended {
			rt.Fatalf("%d placed, %d ended; %d units and %d pending are left", placed, ended, inFlight, pending)
		}
		for live, name := range lives {
			if live.InFlight() != 0 || live.Pending() != 0 {
				rt.Fatalf("%s: %d in flight, %d pending", name, live.InFlight(), live.Pending())
			}
		}
		if gauge := r.sample("berth_inflight_requests"); gauge != 0 {
			rt.Fatalf("the gauge stands at %v", gauge)
		}
		for i, n := range j.finishedOf {
			if n != 1 {
				rt.Fatalf("request %d gave its unit back %d times", i, n)
			}
		}
		for _, name := range []string{"berth_acknowledgements_total", "berth_outcomes_total"} {
			if got := r.sample(name); got != float64(placed) {
				rt.Fatalf("%s adds up to %v after %d placed requests", name, got, placed)
			}
		}
		placedInAll += placed
		boundInAll += j.bound
	})
	if placedInAll == 0 || boundInAll == 0 {
		t.Errorf("%d requests were placed, %d of them for a tenant", placedInAll, boundInAll)
	}
}

// Endpoints that fall asleep between decisions leave the screened set at once.
func TestNobodyIsSentToAnEndpointThatIsAsleep(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, "gateway: {fallbacks: 4}\n")
		w := drawWorld(rt)
		r.update(w.specs()...)
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			for name, m := range w {
				m.sleeps = rapid.Bool().Draw(rt, "sleeps")
				w[name] = m
				if m.sleeps {
					r.publish(name, load{0, 0, 0}, 0, asleep)
				} else {
					r.publish(name, load{5, 5, 0.5}, 0)
				}
			}
			model := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "model")
			d, refusal := r.decider.begin().Decide(r.chat(model))
			want := w.eligible(need{model: model})
			if (refusal != nil) != (len(want) == 0) {
				rt.Fatalf("refused %v, eligible %v", refusal, want)
			}
			if refusal != nil {
				continue
			}
			for _, destination := range strings.Split(d.Destination(), ",") {
				if !want[destination] {
					rt.Fatalf("sent to %s, eligible %v", destination, want)
				}
			}
			d.Finish(extproc.Outcome{Cause: extproc.Complete})
		}
	})
}
