package host

import (
	"io"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/extproc"
	"github.com/berth-dev/berth/internal/ledger"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// BenchmarkRequest is one request's way through the picker without the protocol:
// decided, served, ended and recorded, with ten endpoints that are all fresh.
func BenchmarkRequest(b *testing.B) {
	r := newRig(b, "gateway: {fallbacks: 2}\n")
	var specs []pool.Spec
	for n := range 10 {
		specs = append(specs, endpoint(n+1))
	}
	if err := r.pools.Update("local/demo", specs); err != nil {
		b.Fatal(err)
	}
	for _, e := range r.pools.Set().Endpoints {
		s := &telemetry.Snapshot{}
		for i, f := range telemetry.LoadFields {
			s.Readings[f] = telemetry.Reading{Value: 0.3 + float64(i), ObservedAt: r.clock.read(), Recorded: telemetry.Fresh}
		}
		e.Publish(s, e.BeginScrape())
		e.Answered()
	}
	lines := ledger.New(1000, io.Discard, func(string) {})
	r.decider.recorder.ledger = lines
	defer lines.Flush(time.Minute)
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + string(make([]byte, 0)) + `hello"}]}`)
	b.ReportAllocs()
	for b.Loop() {
		now := r.clock.read()
		req := &extproc.Request{
			Method: "POST", Path: "/v1/chat/completions", ContentType: "application/json",
			Body: body, BodySeen: true, ReceivedAt: now, CompleteAt: now, Deadline: now + 1e9,
		}
		d, refusal := r.decider.begin().Decide(req)
		if refusal != nil {
			b.Fatal(refusal)
		}
		_ = d.Destination()
		_ = d.RequestHeaders()
		_ = d.Acknowledgement()
		_ = d.Served(extproc.Served{At: now, Status: 200, Address: "10.0.0.1:8000", Attempts: 1, Details: "via_upstream"})
		_ = d.ResponseHeaders()
		_ = d.Acknowledgement()
		d.FirstByte(now)
		d.Finish(extproc.Outcome{At: now, Cause: extproc.Complete, ResponseSeen: true})
	}
}
