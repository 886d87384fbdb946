package host

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

func TestTheCauseOfAReadingIsOneWord(t *testing.T) {
	fresh := telemetry.Reading{Value: 3, Recorded: telemetry.Fresh, Quality: 1, ExpiresAt: 100, Support: telemetry.Supported}
	stale := telemetry.Reading{Value: 3, Recorded: telemetry.Stale, Quality: 0.1, Support: telemetry.Supported}
	missing := func(s telemetry.Support) telemetry.Reading { return telemetry.Reading{Support: s} }
	const unknown, supported = telemetry.SupportUnknown, telemetry.Supported
	for _, tt := range []struct {
		name    string
		reading telemetry.Reading
		// at is when it is looked at; 50 where it is 0.
		at      telemetry.Instant
		failure string
		unnamed bool
		want    string
	}{
		{name: "fresh", reading: fresh, want: ""},
		{name: "fresh, and the last scrape failed", reading: fresh, failure: "timeout", want: ""},
		{name: "fresh and doubtful", reading: because(fresh, "no value on the page moved for 11s while requests of this picker were there"), want: ""},

		{name: "expired", reading: fresh, at: 100, want: "expired"},
		{name: "expired, and what its source says of itself", reading: because(fresh, "not read: it is an estimate"), at: 100, want: "expired"},
		{name: "expired, since scrapes fail", reading: fresh, at: 200, failure: "status_404", want: "page_unread"},

		{name: "frozen", reading: because(stale, "an estimate", "frozen: no value on the page moved for 12s although it says that the engine works"), want: "frozen"},
		{name: "frozen, and the last scrape failed", reading: because(stale, "frozen: no value moved"), failure: "timeout", want: "frozen"},
		{name: "standing still", reading: because(stale, "no value on the page moved for 31s while requests of this picker were there"), want: "standstill"},
		{name: "of an old engine time", reading: because(stale, "the engine's own time is 20s before the scrape, want at most 15s"), want: "engine_time"},
		{name: "stale for another reason", reading: because(stale, "it rains"), want: "doubted"},
		{name: "stale without a word", reading: stale, want: "doubted"},

		{name: "impossible", reading: because(telemetry.Reading{Recorded: telemetry.Invalid, Support: supported}, "value -1: want 0 or more"), want: "invalid"},

		{name: "never asked for", reading: because(missing(unknown), "not read"), want: "not_read"},
		{name: "never asked for, without a word", reading: missing(unknown), want: "not_read"},
		{name: "the metrics page fails, and nothing was read", reading: because(missing(unknown), "not read"), failure: "refused", want: "page_unread"},
		{name: "another page fails", reading: because(missing(unknown), "not read: /health fails with timeout"), want: "page_unread"},
		{name: "not in the profile", reading: because(missing(unknown), "not read"), unnamed: true, want: "no_source"},
		{name: "not in the profile, and the last scrape failed", reading: because(missing(unknown), "not read"), failure: "timeout", unnamed: true, want: "no_source"},
		{name: "not in the profile, and on no exporter's page", reading: because(missing(unknown), "not read", "no exporter's page has the pod a/b"), unnamed: true, want: "absent"},
		{name: "not on the page", reading: because(missing(unknown), "a is not on the page", "b is not on the page"), want: "absent"},
		{name: "not on the page, and the last scrape failed", reading: because(missing(unknown), "a is not on the page"), failure: "timeout", want: "absent"},
		{name: "on the page without a value", reading: because(missing(supported), "a says 0: not known yet"), want: "no_data"},
		{name: "after a restart", reading: because(missing(unknown), "the engine's process was started anew: not read yet"), want: "no_data"},
		{name: "the engine has none", reading: because(missing(telemetry.Unsupported), "no family tells it"), want: "unsupported"},
		{name: "the engine has none, and the last scrape failed", reading: because(missing(telemetry.Unsupported), "no family tells it"), failure: "timeout", want: "unsupported"},
		{name: "switched off", reading: because(missing(telemetry.Disabled), "--disable-log-stats"), want: "off"},
	} {
		at := tt.at
		if at == 0 {
			at = 50
		}
		if got := causeOf(&tt.reading, tt.reading.State(at), tt.failure, !tt.unnamed); got.String() != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// What engines' pages are judged by tells the causes in words alone; these are theirs.
func TestCausesAreRecognisedByTheWordsThatReadingsHave(t *testing.T) {
	cause := func(w *watched, f telemetry.Field) string {
		e := w.pools.Set().Endpoints[0]
		look := w.metrics.fleet.look()
		s := look.at(e)
		_, why := s.reading(f, w.clock.read())
		return why.String()
	}
	every := func(w *watched, n int, page func(i int) string) {
		for i := range n {
			w.clock.pass(time.Second)
			w.mustShow("r1", page(i))
		}
	}
	t.Run("frozen", func(t *testing.T) {
		w := watchedPool(t, "vllm", 1, time.Second)
		every(w, 15, func(int) string { return vllm(2, 1, 0.5, 10) })
		if got := cause(w, telemetry.QueueDepth); got != "frozen" {
			t.Errorf("a page that says it works and stands still: %q, want frozen", got)
		}
	})
	t.Run("standstill", func(t *testing.T) {
		w := watchedPool(t, "vllm", 1, time.Second)
		w.mustShow("r1", vllm(0, 0, 0, 10))
		f := w.place(w.chat("m"))
		defer w.end(f, time.Second)
		every(w, 40, func(int) string { return vllm(0, 0, 0, 10) })
		if got := cause(w, telemetry.QueueDepth); got != "standstill" {
			t.Errorf("a page that stands still under our request: %q, want standstill", got)
		}
	})
	t.Run("engine_time", func(t *testing.T) {
		w := watchedPool(t, "atom", 1, time.Second)
		w.clock.pass(time.Minute)
		w.mustShow("r1", atom(1, 2, 1, 0.5, float64(w.clock.read().Add(-time.Minute))/1e9))
		if got := cause(w, telemetry.QueueDepth); got != "engine_time" {
			t.Errorf("a page of a minute ago: %q, want engine_time", got)
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		w := watchedPool(t, "vllm", 1, time.Second)
		every(w, 5, func(i int) string { return vllm(2, 1, 0.5, 100*(i+1)) })
		every(w, 1, func(int) string { return vllm(2, 1, 0.5, 1) })
		if got := cause(w, telemetry.GenerationThroughput); got != "no_data" {
			t.Errorf("a window right after a restart: %q, want no_data", got)
		}
	})
}
