package engine

import (
	"fmt"
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
		{"length as a text", `{"id":"a","max_model_len":"8192"}`, "a", "", "supported, invalid: max_model_len is not a whole number of at least 1"},
		{"length zero", `{"id":"a","max_model_len":0}`, "a", "", "supported, invalid: max_model_len is not a whole number of at least 1"},
		{"an empty name", `{"id":""}`, "supported, invalid: a model name is empty", "", "supported, missing: max_model_len is not stated"},
		{"a name with a newline", `{"id":"a\nb"}`, "supported, invalid: a model name has characters that do not print", "", "supported, missing: max_model_len is not stated"},
	}
	p := vllm(t)
	page := slowPage(t, p, OpenAIModels)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := p.ReadSlow(page, 200, []byte(`{"object":"list","data":[`+c.cards+`]}`), 50*second, time.Second, mustRead(t, minimal))
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
	s, err := p.ReadSlow(slowPage(t, p, JSON), 200, []byte(`{"version":"0.32.0"}`), 50*second, 91*time.Second, before)
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
		if page.Format == Status {
			continue
		}
		for _, body := range []string{"", "[]", "<html>", "{", `{"data":3,"version":}`, "null"} {
			if s, err := p.ReadSlow(page, 200, []byte(body), second, 0, mustRead(t, minimal)); err == nil || s != nil {
				t.Errorf("%s with %q: %v and a snapshot %t, want an error alone", page.Path, body, err, s != nil)
			}
		}
	}
}

func TestTheStatusOfAStatusPageIsTheAnswer(t *testing.T) {
	set := defaults(t)
	cases := []struct {
		engine, path string
		status       int
		field, want  string
	}{
		{"vllm", "/health", 200, "health", "true"},
		{"vllm", "/health", 503, "health", "false"},
		{"vllm", "/health", 404, "health", "unsupported, missing: the replica has no page /health"},
		{"vllm", "/health", 500, "health", "/health: status 500 says neither yes nor no"},
		{"vllm", "/health", 401, "health", "/health: status 401 says neither yes nor no"},
		{"vllm", "/health", 204, "health", "/health: status 204 says neither yes nor no"},
		{"sglang", "/ready", 503, "ready", "false"},
		{"triton", "/v2/health/ready", 400, "ready", "false"},
		{"triton", "/v2/health/live", 200, "health", "true"},
	}
	for _, c := range cases {
		p := set.Profile(c.engine)
		i := slices.IndexFunc(p.SlowPages(), func(page Page) bool { return page.Path == c.path })
		if i < 0 {
			t.Fatalf("%s has no page %s", c.engine, c.path)
		}
		f, _ := telemetry.ParseField(c.field)
		s, err := p.ReadSlow(p.SlowPages()[i], c.status, []byte("any body"), 50*second, time.Second, p.Silent(second))
		got := fmt.Sprint(err)
		if err == nil {
			got = say(f, &s.Readings[f])
		}
		if got != c.want {
			t.Errorf("%s%s, status %d: %s, want %s", c.engine, c.path, c.status, got, c.want)
		}
	}
}

func TestAPageThatIsNotThereTellsThatTheReplicaHasNoSuchFields(t *testing.T) {
	p := vllm(t)
	s, err := p.ReadSlow(slowPage(t, p, OpenAIModels), 404, []byte("<html>not found"), second, 0, mustRead(t, minimal))
	if err != nil {
		t.Fatal(err)
	}
	const want = "unsupported, missing: the replica has no page /v1/models"
	checkReadings(t, s, map[string]string{"servedModels": want, "adaptersLoaded": want, "contextLimit": want, "queueDepth": "2"})
}

func TestAnErrorPageTellsNothing(t *testing.T) {
	p := vllm(t)
	for _, format := range []Format{OpenAIModels, JSON} {
		page := slowPage(t, p, format)
		for _, status := range []int{0, 204, 301, 401, 500, 503} {
			s, err := p.ReadSlow(page, status, []byte(`{"data":[{"id":"m"}],"version":"1"}`), second, 0, mustRead(t, minimal))
			if want := fmt.Sprintf("%s: status %d", page.Path, status); err == nil || err.Error() != want || s != nil {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

func TestAMetricsPageIsNoSlowPage(t *testing.T) {
	p := vllm(t)
	if _, err := p.ReadSlow(p.Metrics(), 200, []byte("{}"), second, 0, mustRead(t, minimal)); err == nil ||
		err.Error() != "/metrics: format prometheus is not that of a slow page" {
		t.Errorf("got %v", err)
	}
}

func TestAProfileReadsOnlySomeFieldsOfTheModelList(t *testing.T) {
	p := defaults(t).Profile("atom")
	s, err := p.ReadSlow(slowPage(t, p, OpenAIModels), 200, []byte(`{"data":[{"id":"m","max_model_len":100}]}`), second, 0, p.Silent(second))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Readings[telemetry.ServedModels].Detail.Names; !slices.Equal(got, []string{"m"}) {
		t.Errorf("servedModels %q", got)
	}
	if got := s.Readings[telemetry.ContextLimit].Recorded; got != telemetry.Missing {
		t.Errorf("contextLimit is %v, and the profile does not read it there", got)
	}
}

func TestMoreNamesThanAReplicaMayServeAreInvalid(t *testing.T) {
	var cards []string
	for i := range maxNames + 1 {
		cards = append(cards, fmt.Sprintf(`{"id":"m%d"}`, i))
	}
	p := vllm(t)
	s, err := p.ReadSlow(slowPage(t, p, OpenAIModels), 200, []byte(`{"data":[`+strings.Join(cards, ",")+`]}`), second, 0, mustRead(t, minimal))
	if err != nil {
		t.Fatal(err)
	}
	checkReadings(t, s, map[string]string{"servedModels": "supported, invalid: more than 4096 names"})
}

func TestOwnersAreThoseOfTheCards(t *testing.T) {
	for body, want := range map[string][]string{
		`{"data":[{"id":"a","owned_by":"vllm"},{"id":"b","owned_by":"vllm"}]}`:   {"vllm"},
		`{"data":[{"id":"a","owned_by":"vllm"},{"id":"b","owned_by":"sglang"}]}`: {"vllm", "sglang"},
		`{"data":[{"id":"a"},{"id":"b","owned_by":""}]}`:                         nil,
		`{"data":3}`: nil, `[]`: nil, ``: nil, `{`: nil,
	} {
		if got, _ := Owners([]byte(body)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", body, got, want)
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
	first, err := p.ReadSlow(slowPage(t, p, OpenAIModels), 200, []byte(`{"data":[{"id":"m"}]}`), 90*second, 0, read(page("20"), nil))
	if err != nil {
		t.Fatal(err)
	}
	next := read(page("20"), first)
	r := next.Readings[telemetry.ServedModels]
	if r.Recorded != telemetry.Fresh || !slices.Equal(r.Detail.Names, []string{"m"}) || r.ObservedAt != 90*second {
		t.Errorf("same process: %+v", r)
	}
	if Restarted(first, next) {
		t.Error("the same process start is taken for a restart")
	}
	again := read(page("30"), next)
	if got := again.Readings[telemetry.ServedModels].Recorded; got != telemetry.Missing {
		t.Errorf("another process: servedModels is %v", got)
	}
	if !Restarted(next, again) {
		t.Error("another process start is not taken for a restart")
	}
	other := *first
	other.Profile = "vllm@sha256:000000000000"
	if got := read(page("20"), &other).Readings[telemetry.ServedModels].Recorded; got != telemetry.Missing {
		t.Errorf("another profile: servedModels is %v", got)
	}
}

// A list that is not there is an error that the engine tells, and not a replica
// without models or adapters.
func TestAnAnswerWithoutAListOfModelsTellsNothing(t *testing.T) {
	p := profileOf(t, "vllm")
	for _, body := range []string{`{}`, `{"error":{"message":"no"}}`, `{"data":null}`, `{"data":[null]}`, `{"data":{}}`} {
		if s, err := p.ReadSlow(pageAt(t, p, "/v1/models"), 200, []byte(body), second, 0, &telemetry.Snapshot{}); err == nil {
			t.Errorf("%s: read as %v", body, s.Readings[telemetry.AdaptersLoaded])
		}
	}
}
