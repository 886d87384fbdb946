package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/telemetry"
)

func slowPage(t *testing.T, p *Profile, format Format) Page {
	t.Helper()
	for _, page := range p.SlowPages() {
		if page.Format == format {
			return page
		}
	}
	t.Fatalf("no page of format %s", format)
	return Page{}
}

func TestTheModelListNamesWhatIsServed(t *testing.T) {
	const base = `{"id":"llama","object":"model","root":"/models/llama","parent":null,"max_model_len":8192}`
	const alias = `{"id":"fast","parent":null,"max_model_len":4096}`
	const adapter = `{"id":"sql-v2","parent":"llama","max_model_len":null}`
	cases := []struct {
		name, cards      string
		served, adapters string
		limit            string
	}{
		{"one model", base, "llama", "", "8192"},
		{"an alias and an adapter", base + "," + alias + "," + adapter, "llama,fast", "sql-v2", "4096"},
		{"one name twice", base + "," + base, "llama", "", "8192"},
		{"no model", "", "supported, missing: no model is listed", "", "supported, missing: max_model_len is not stated"},
		{"no length", `{"id":"a"}`, "a", "", "supported, missing: max_model_len is not stated"},
		{"length as a text", `{"id":"a","max_model_len":"8192"}`, "a", "", "supported, invalid: max_model_len is not a number of at least 1"},
		{"length zero", `{"id":"a","max_model_len":0}`, "a", "", "supported, invalid: max_model_len is not a number of at least 1"},
		{"an empty name", `{"id":""}`, "supported, invalid: a model name is empty", "", "supported, missing: max_model_len is not stated"},
		{"a name with a newline", `{"id":"a\nb"}`, "supported, invalid: a model name has characters that do not print", "", "supported, missing: max_model_len is not stated"},
	}
	p := vllm(t)
	page := slowPage(t, p, OpenAIModels)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := p.ReadSlow(page, []byte(`{"object":"list","data":[`+c.cards+`]}`), 50*second, time.Second, mustRead(t, minimal))
			if err != nil {
				t.Fatal(err)
			}
			names := func(f telemetry.Field) string {
				if r := &s.Readings[f]; r.Recorded != telemetry.Fresh {
					return say(f, r)
				}
				return strings.Join(s.Readings[f].Detail.Names, ",")
			}
			if got := names(telemetry.ServedModels); got != c.served {
				t.Errorf("servedModels %s, want %s", got, c.served)
			}
			if got := names(telemetry.AdaptersLoaded); got != c.adapters {
				t.Errorf("adaptersLoaded %s, want %s", got, c.adapters)
			}
			if got := say(telemetry.ContextLimit, &s.Readings[telemetry.ContextLimit]); got != c.limit {
				t.Errorf("contextLimit %s, want %s", got, c.limit)
			}
			if s.Readings[telemetry.QueueDepth].Value != 2 {
				t.Error("readings of the metrics page are lost")
			}
		})
	}
}

func TestASlowReadingHasItsOwnTimes(t *testing.T) {
	p := vllm(t)
	before := mustRead(t, minimal)
	s, err := p.ReadSlow(slowPage(t, p, Version), []byte(`{"version":"0.32.0"}`), 50*second, 91*time.Second, before)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Readings[telemetry.EngineVersion]
	if r.Detail.Text != "0.32.0" || r.ObservedAt != 50*second || r.ExpiresAt != 141*second || r.Support != telemetry.Supported {
		t.Errorf("%+v", r)
	}
	if before.Readings[telemetry.EngineVersion].Recorded != telemetry.Missing {
		t.Error("the snapshot before was changed")
	}
}

func TestASlowPageThatIsNotJSONIsRefused(t *testing.T) {
	p := vllm(t)
	for _, page := range p.SlowPages() {
		for _, body := range []string{"", "[]", "<html>", "{", `{"data":3,"version":}`, "null"} {
			if s, err := p.ReadSlow(page, []byte(body), second, 0, mustRead(t, minimal)); err == nil {
				t.Errorf("%s with %q: read as %v", page.Path, body, s)
			}
		}
	}
}

func TestWhatSlowPagesSaidIsCarriedOverUntilTheProcessStartsAnew(t *testing.T) {
	p := vllm(t)
	page := func(start string) []byte { return []byte(minimal + "process_start_time_seconds " + start + "\n") }
	read := func(page []byte, prev *telemetry.Snapshot) *telemetry.Snapshot {
		s, err := p.Read(page, Input{At: 100 * second, Previous: prev})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, err := p.ReadSlow(slowPage(t, p, OpenAIModels), []byte(`{"data":[{"id":"m"}]}`), 90*second, 0, read(page("1.7e9"), nil))
	if err != nil {
		t.Fatal(err)
	}
	next := read(page("1.7e9"), first)
	r := next.Readings[telemetry.ServedModels]
	if r.Recorded != telemetry.Fresh || !slices.Equal(r.Detail.Names, []string{"m"}) || r.ObservedAt != 90*second {
		t.Errorf("same process: %+v", r)
	}
	if Restarted(first, next) {
		t.Error("the same process start is taken for a restart")
	}
	again := read(page("1.8e9"), next)
	if got := again.Readings[telemetry.ServedModels].Recorded; got != telemetry.Missing {
		t.Errorf("another process: servedModels is %v", got)
	}
	if !Restarted(next, again) {
		t.Error("another process start is not taken for a restart")
	}
	other := *first
	other.Profile = "vllm@sha256:000000000000"
	if got := read(page("1.7e9"), &other).Readings[telemetry.ServedModels].Recorded; got != telemetry.Missing {
		t.Errorf("another profile: servedModels is %v", got)
	}
}

func FuzzSlowPages(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"m","parent":null,"max_model_len":8192}],"version":"0.32.0"}`))
	f.Add([]byte(`{"data":[{"id":"a","parent":"m"}],"version":7}`))
	p := vllm(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, page := range p.SlowPages() {
			if s, err := p.ReadSlow(page, body, second, 0, &telemetry.Snapshot{}); err == nil {
				checkPossible(t, s)
			}
		}
	})
}
