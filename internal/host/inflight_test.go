package host

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/screen"
)

// threeOf is a pool in which a request for the given subset is placed at r1
// first, then at r2; r3 is a member that the subset leaves out.
func threeOf(t *testing.T, members string, specs ...pool.Spec) (*rig, *inFlight) {
	t.Helper()
	r := newRig(t, members)
	r.update(specs...)
	for i, e := range r.pools.Set().Endpoints {
		r.publish(e.Name, load{float64(i), 0, 0}, 0)
	}
	req := r.chat("m")
	req.Subset = screen.NewSubset([]string{specs[0].Address.String(), specs[1].Address.String()})
	f := r.place(req)
	if f.order[0].Name != "r1" {
		t.Fatalf("the pick is %s, want r1", f.order[0].Name)
	}
	return r, f
}

func TestWhatTheGatewayActedOn(t *testing.T) {
	v4 := []pool.Spec{endpoint(1), endpoint(2), endpoint(3)}
	v6 := []pool.Spec{endpoint(1, at("[fd00::1]:8000")), endpoint(2, at("[fd00::2]:8000")), endpoint(3, at("[fd00::3]:8000"))}
	refused, reset := "upstream_reset_before_response_started{connection_failure}", "upstream_reset_before_response_started{connection_termination}"
	tests := []struct {
		name   string
		specs  []pool.Spec
		served extproc.Served
		acted  acted
		by     string
		// last are the endpoints that are ordered last afterwards.
		last []string
	}{
		{name: "the pick served", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.1:8000", Attempts: 1, Details: viaUpstream}, acted: confirmed, by: "r1"},
		{name: "an engine's own error is an answer", specs: v4, served: extproc.Served{Status: 503, Address: "10.0.0.1:8000", Attempts: 1, Details: viaUpstream}, acted: confirmed, by: "r1"},
		{name: "the fallback served after the pick refused", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.2:8000", Attempts: 2, Details: viaUpstream}, acted: overridden, by: "r2", last: []string{"r1"}},
		{name: "another screened one served at once", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.2:8000", Attempts: 1, Details: viaUpstream}, acted: overridden, by: "r2"},
		{name: "a retry at the same address", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.1:8000", Attempts: 2, Details: viaUpstream}, acted: confirmed, by: "r1"},
		{name: "a member outside the subset served", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.3:8000", Attempts: 1, Details: viaUpstream}, acted: violated, by: "r3"},
		{name: "an address that is no member", specs: v4, served: extproc.Served{Status: 200, Address: "10.9.9.9:80", Attempts: 1, Details: viaUpstream}, acted: violated},
		{name: "the right address at another port", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.1:8001", Attempts: 1}, acted: violated},
		{name: "an address that is none", specs: v4, served: extproc.Served{Status: 200, Address: "envoy://internal", Attempts: 1}, acted: violated},
		{name: "nothing was said", specs: v4, served: extproc.Served{Status: 200}, acted: unreported},
		{name: "no address, one attempt", specs: v4, served: extproc.Served{Status: 200, Attempts: 1, Details: viaUpstream}, acted: unreported},
		{name: "an IPv4-mapped address", specs: v4, served: extproc.Served{Status: 200, Address: "[::ffff:10.0.0.1]:8000", Attempts: 1}, acted: confirmed, by: "r1"},
		{name: "an IPv6 address", specs: v6, served: extproc.Served{Status: 200, Address: "[fd00::1]:8000", Attempts: 1}, acted: confirmed, by: "r1"},
		{name: "an IPv6 address in another spelling", specs: v6, served: extproc.Served{Status: 200, Address: "[fd00:0:0::2]:8000", Attempts: 1}, acted: overridden, by: "r2"},
		{name: "the gateway's own answer after a refused connection", specs: v4, served: extproc.Served{Status: 503, Address: "10.0.0.1:8000", Attempts: 1, Details: refused, TransportFailure: "connection refused"}, acted: unreported, last: []string{"r1"}},
		{name: "the gateway's own answer after two resets", specs: v4, served: extproc.Served{Status: 503, Address: "10.0.0.2:8000", Attempts: 2, Details: reset}, acted: unreported, last: []string{"r1", "r2"}},
		{name: "the gateway's own time-out says nothing of a connection", specs: v4, served: extproc.Served{Status: 504, Address: "10.0.0.1:8000", Attempts: 1, Details: "response_timeout"}, acted: unreported},
		{name: "the gateway's own limit", specs: v4, served: extproc.Served{Status: 429, Attempts: 0, Details: "request_rate_limited"}, acted: unreported},
		{name: "attempts beyond what was recommended", specs: v4, served: extproc.Served{Status: 503, Attempts: 99, Details: reset}, acted: unreported, last: []string{"r1", "r2"}},
		{name: "attempts below zero", specs: v4, served: extproc.Served{Status: 200, Address: "10.0.0.1:8000", Attempts: -7}, acted: confirmed, by: "r1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, f := threeOf(t, "gateway: {fallbacks: 1}\n", tt.specs...)
			tt.served.At = r.clock.read()
			if refusal := f.Served(tt.served); refusal != nil {
				t.Fatalf("refused with %s, though violations are only reported", refusal.Reason)
			}
			if f.acted != tt.acted {
				t.Errorf("%s, want %s", f.acted, tt.acted)
			}
			by := ""
			if f.servedBy != nil {
				by = f.servedBy.Name
			}
			if by != tt.by {
				t.Errorf("served by %q, want %q", by, tt.by)
			}
			holder := "r1"
			if tt.by != "" {
				holder = tt.by
			}
			for _, e := range r.pools.Set().Endpoints {
				if want := map[bool]int32{true: 1}[e.Name == holder]; e.InFlight() != want {
					t.Errorf("%d units at %s, want %d", e.InFlight(), e.Name, want)
				}
				wantLast := false
				for _, name := range tt.last {
					wantLast = wantLast || name == e.Name
				}
				if e.OrderedLast() != wantLast {
					t.Errorf("%s ordered last: %t, want %t", e.Name, e.OrderedLast(), wantLast)
				}
			}
			f.Finish(extproc.Outcome{At: r.clock.read(), Cause: extproc.Complete})
			for _, e := range r.pools.Set().Endpoints {
				if e.InFlight() != 0 || e.Pending() != 0 {
					t.Errorf("%d units and %d pending at %s after the end", e.InFlight(), e.Pending(), e.Name)
				}
			}
			if got := r.sample("berth_acknowledgements_total", string(tt.acted)); got != 1 {
				t.Errorf("%s was counted %v times, want once", tt.acted, got)
			}
			rec, ok := r.ledger.Find(f.id)
			if !ok || rec.Acknowledgement.Acted != string(tt.acted) || rec.Acknowledgement.Served != tt.by {
				t.Errorf("record says %+v", rec)
			}
		})
	}
}

func TestAnAnswerBringsAnEndpointBack(t *testing.T) {
	r, f := threeOf(t, "gateway: {fallbacks: 1}\n", endpoint(1), endpoint(2), endpoint(3))
	r.live("r1").Refused()
	f.Served(extproc.Served{At: r.clock.read(), Status: 500, Address: "10.0.0.1:8000", Attempts: 1, Details: viaUpstream})
	if r.live("r1").OrderedLast() {
		t.Error("r1 answered and is still ordered last")
	}
	f.Finish(extproc.Outcome{Cause: extproc.Complete})
}

func TestAViolationIsRefusedWherePolicySaysSo(t *testing.T) {
	for address, refuse := range map[string]bool{
		"10.0.0.1:8000": false, "10.0.0.2:8000": false, "10.0.0.3:8000": true, "10.9.9.9:80": true, "": false,
	} {
		r, f := threeOf(t, "gateway: {fallbacks: 0, onViolation: refuse}\n", endpoint(1), endpoint(2), endpoint(3))
		refusal := f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: address, Attempts: 1, Details: viaUpstream})
		if (refusal != nil) != refuse {
			t.Errorf("served by %q: refused %t, want %t", address, refusal != nil, refuse)
		}
		if refusal != nil && (refusal.Status != 502 || refusal.Reason != "served_outside" || refusal.DecisionID != f.id) {
			t.Errorf("refused with %+v", refusal)
		}
		if got := r.sample("berth_refusals_total", "served_outside"); (got == 1) != refuse {
			t.Errorf("served by %q: %v refusals were counted", address, got)
		}
		f.Finish(extproc.Outcome{Cause: extproc.ServedOutside})
	}
}

func TestResponseHeadersSayAsMuchAsPolicyAllows(t *testing.T) {
	tests := []struct {
		verbosity string
		served    string
		want      []string
	}{
		{"off", "10.0.0.1:8000", nil},
		{"summary", "10.0.0.1:8000", []string{"x-berth-decision", "x-berth-rung", "x-berth-acted", "x-berth-policy"}},
		{"full", "10.0.0.1:8000", []string{"x-berth-decision", "x-berth-rung", "x-berth-acted", "x-berth-policy", "x-berth-replica"}},
		{"full", "", []string{"x-berth-decision", "x-berth-rung", "x-berth-acted", "x-berth-policy"}},
	}
	for _, tt := range tests {
		r, f := threeOf(t, "acknowledgement: {responseHeaders: "+tt.verbosity+"}\n", endpoint(1), endpoint(2), endpoint(3))
		f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: tt.served})
		headers := f.ResponseHeaders()
		if len(headers) != len(tt.want) {
			t.Fatalf("%s: %d headers, want %d", tt.verbosity, len(headers), len(tt.want))
		}
		for i, h := range headers {
			if h.Name != tt.want[i] || h.Value == "" || h.Value == "10.0.0.1:8000" {
				t.Errorf("%s: header %s: %q", tt.verbosity, h.Name, h.Value)
			}
		}
		f.Finish(extproc.Outcome{Cause: extproc.Complete})
	}
}

// Only a whole answer of a replica's own says how fast the replica is.
func TestLatencyIsLearntFromCompleteAnswersOfReplicas(t *testing.T) {
	tests := []struct {
		name   string
		served extproc.Served
		cause  extproc.Cause
		byte   bool
		at     string // whose latency is 0.25 s afterwards
	}{
		{"complete", extproc.Served{Status: 200, Address: "10.0.0.1:8000"}, extproc.Complete, true, "r1"},
		{"complete at another", extproc.Served{Status: 200, Address: "10.0.0.2:8000"}, extproc.Complete, true, "r2"},
		{"not said who served", extproc.Served{Status: 200}, extproc.Complete, true, "r1"},
		{"no byte came", extproc.Served{Status: 200, Address: "10.0.0.1:8000"}, extproc.Complete, false, ""},
		{"an error", extproc.Served{Status: 429, Address: "10.0.0.1:8000"}, extproc.Complete, true, ""},
		{"the gateway's own answer", extproc.Served{Status: 200, Address: "10.0.0.1:8000", Details: "direct_response"}, extproc.UpstreamError, true, ""},
		{"broken off", extproc.Served{Status: 200, Address: "10.0.0.1:8000"}, extproc.Aborted, true, ""},
		{"cut by the picker", extproc.Served{Status: 200, Address: "10.0.0.1:8000"}, extproc.Shutdown, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, f := threeOf(t, "", endpoint(1), endpoint(2), endpoint(3))
			tt.served.At = r.clock.read()
			f.Served(tt.served)
			r.clock.pass(250 * time.Millisecond)
			if tt.byte {
				f.FirstByte(r.clock.read())
			}
			r.clock.pass(time.Second)
			f.Finish(extproc.Outcome{At: r.clock.read(), Cause: tt.cause})
			for _, e := range r.pools.Set().Endpoints {
				seconds, _, ok := e.Latency()
				if ok != (e.Name == tt.at) || (ok && seconds != 0.25) {
					t.Errorf("latency of %s: %v s, known %t", e.Name, seconds, ok)
				}
			}
		})
	}
}

// A request whose stream breaks off asks for a scrape of where it was.
func TestR2_ABrokenRequestWakesTheScraper(t *testing.T) {
	for cause, want := range map[extproc.Cause]bool{
		extproc.Complete: false, extproc.ClientDisconnect: false, extproc.Shutdown: false,
		extproc.Aborted: true, extproc.UpstreamError: true, extproc.GatewayTimeout: true,
	} {
		r, f := threeOf(t, "", endpoint(1), endpoint(2), endpoint(3))
		woken := 0
		r.live("r1").OnWake(func() { woken++ })
		f.Served(extproc.Served{At: r.clock.read(), Status: 200, Address: "10.0.0.1:8000"})
		f.Finish(extproc.Outcome{At: r.clock.read(), Cause: cause})
		if (woken > 0) != want {
			t.Errorf("%s: a scrape was asked for: %t, want %t", cause, woken > 0, want)
		}
	}
}
