package enginesim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/enginemodel"
)

const small = `{"prompt":"four","max_tokens":2}`

func TestBadConfigurationNamesTheField(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Name: "a\nb"}, `Name: "a\nb": must be printable ASCII`},
		{Config{Models: []string{"a", ""}}, "Models[1]: empty"},
		{Config{MaxModelLen: 1 << 20}, "MaxModelLen: 1048576: must be from 2 to the 65536 tokens"},
		{Config{OutputTokens: -1}, "OutputTokens: -1: must be at least 1"},
		{Config{Speed: -1}, "Speed: -1: must be above 0"},
		{Config{Engine: enginemodel.Config{Blocks: -1}}, "Engine: Blocks: -1"},
		{Config{Background: Load{Running: 33}}, "Background: running: 33: must be from 0 to the largest batch, 32"},
		{Config{Background: Load{Running: 31, Waiting: 1}}, "Background: waiting: 1: must be 0 unless running is 32"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestPathsBesidesInference(t *testing.T) {
	s := run(t, Config{Models: []string{"m", "alias"}, Root: "org/m", MaxModelLen: 1000, Clock: instant()})
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/health", ``},
		{"GET", "/version", `{"version":"0.32.0"}`},
		{"GET", "/v1/models", `{"data":[` +
			`{"id":"m","object":"model","created":1700000000,"owned_by":"vllm","root":"org/m","parent":null,"max_model_len":1000},` +
			`{"id":"alias","object":"model","created":1700000000,"owned_by":"vllm","root":"org/m","parent":null,"max_model_len":1000}` +
			`],"object":"list"}`},
		{"GET", "/foo", `{"path":"/foo"}`},
		{"POST", "/v1/embeddings", `{"path":"/v1/embeddings"}`},
		{"GET", "/v1/chat/completions", `{"path":"/v1/chat/completions"}`},
	} {
		if got := s.ok(c.method, c.path, ""); got != c.want {
			t.Errorf("%s %s: got %s, want %s", c.method, c.path, got, c.want)
		}
	}
	if a := s.Arrivals(); a.Other != 3 || a.Served != 0 {
		t.Errorf("%d other and %d inference requests counted, want 3 and 0", a.Other, a.Served)
	}
}

func TestArrivalsKnowEveryBody(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	first, second := small, `{"prompt":"\u0066our","max_tokens":2 }`
	s.ok("POST", "/v1/completions", first)
	s.ok("POST", "/v1/completions", second)
	s.ok("POST", "/v1/completions", first)
	s.do("POST", "/v1/chat/completions", "no JSON")

	var got Arrivals
	if err := json.Unmarshal([]byte(s.ok("GET", "/sim/requests", "")), &got); err != nil {
		t.Fatal(err)
	}
	digest := func(body string) string { sum := sha256.Sum256([]byte(body)); return hex.EncodeToString(sum[:]) }
	if got.Served != 4 || len(got.Recent) != 4 || got.BySHA256[digest(first)] != 2 || got.BySHA256[digest(second)] != 1 {
		t.Errorf("got %+v", got)
	}
	if got.Recent[1].SHA256 != digest(second) || got.Recent[1].Bytes != len(second) {
		t.Errorf("the second request was %+v", got.Recent[1])
	}
	if last := got.Last; last == nil || last.Path != "/v1/chat/completions" || last.SHA256 != digest("no JSON") ||
		last.Headers["x-request-id"] != "abc" || last.Headers["accept-encoding"] != "" {
		t.Errorf("the last request was %+v", last)
	}
}

func TestArrivalsStayBounded(t *testing.T) {
	var book arrivalBook
	r, err := http.NewRequest(http.MethodPost, "http://x/v1/completions", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxDigests + 10 {
		book.inference(r, []byte{byte(i), byte(i >> 8)})
	}
	if got := book.read(); got.Served != maxDigests+10 || len(got.Recent) != maxRecent || len(got.BySHA256) != maxDigests {
		t.Errorf("%d served, %d recent, %d digests", got.Served, len(got.Recent), len(got.BySHA256))
	}
}

func TestLargeBodiesAreAcceptedUpToTheirLimit(t *testing.T) {
	s := run(t, Config{Clock: instant()})
	s.ok("POST", "/v1/completions", `{"prompt":"four","max_tokens":1,"padding":"`+strings.Repeat("x", 2<<20)+`"}`)

	// At the limit, what is no JSON from its first byte on is quickest.
	body := strings.Repeat("x", maxBody)
	if status, got := s.do("POST", "/v1/completions", body); status != 400 || !strings.Contains(got, "JSON decode error") {
		t.Errorf("the largest body was answered with %d %s", status, got)
	}
	if got := s.Arrivals().Last.Bytes; got != maxBody {
		t.Errorf("the body had %d bytes, want %d", got, maxBody)
	}
	if status, _ := s.do("POST", "/v1/completions", body+"x"); status != http.StatusRequestEntityTooLarge {
		t.Errorf("one byte more: status %d, want 413", status)
	}
	if got := s.Arrivals().Served; got != 2 {
		t.Errorf("%d requests served, want 2", got)
	}
}

func TestAClientThatLeavesFreesItsPlace(t *testing.T) {
	for _, body := range []string{`{"prompt":"four"}`, `{"prompt":"four","stream":true}`} {
		s := run(t, Config{Engine: enginemodel.Config{MaxRunning: 1}, Clock: manual()})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			if resp, err := s.send(ctx, "POST", "/v1/completions", body); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		eventually(t, "it runs", func() bool { return s.stats().Running == 1 && s.stats().BlocksUsed == 1 })
		leave()
		<-left
		eventually(t, "its place is free", func() bool {
			st := s.stats()
			return st.Running == 0 && st.BlocksUsed == 0 && st.Aborted == 1
		})
	}
}

func TestDieClosesEverythingAtOnce(t *testing.T) {
	for _, die := range []struct {
		name string
		how  func(*sim)
	}{
		{"by method", func(s *sim) { s.Die() }},
		{"by request", func(s *sim) {
			if resp, err := s.send(context.Background(), "POST", "/sim/die", ""); err == nil {
				_ = resp.Body.Close()
				s.t.Error("/sim/die was answered")
			}
		}},
	} {
		t.Run(die.name, func(t *testing.T) {
			s := run(t, Config{Clock: manual()})
			died := s.Died()
			resp, err := s.send(t.Context(), "POST", "/v1/completions", `{"prompt":"four","stream":true}`)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			die.how(s)
			<-died
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("the stream came to an orderly end")
			}
			if conn, err := net.Dial("tcp", s.Addr()); err == nil {
				_ = conn.Close()
				t.Error("the port is still open")
			}
			if _, err := s.Stats(); !errors.Is(err, ErrNotRunning) {
				t.Errorf("Stats says %v, want ErrNotRunning", err)
			}

			addr := s.Addr()
			if err := s.Restart(); err != nil {
				t.Fatal(err)
			}
			if s.Addr() != addr {
				t.Errorf("came back at %s, was at %s", s.Addr(), addr)
			}
			s.ok("GET", "/health", "")
		})
	}
}

func TestRestartInPlaceBeginsFromNothing(t *testing.T) {
	clock := instant()
	s := run(t, Config{Engine: enginemodel.Config{BlockTokens: 1}, Clock: clock})
	s.ok("POST", "/v1/completions", `{"prompt":"four and more","max_tokens":5}`)
	s.ok("POST", "/sim/faults", `{"slow":3}`)
	before := page(t, s.ok("GET", "/metrics", ""))
	addr := s.Addr()

	s.ok("POST", "/sim/restart", "")
	if st, want := s.stats(), (enginemodel.Stats{BlocksTotal: 4096}); st != want {
		t.Errorf("stats after the restart: %+v, want %+v", st, want)
	}
	after := page(t, s.ok("GET", "/metrics", ""))
	if b, a := before.value("process_start_time_seconds"), after.value("process_start_time_seconds"); a <= b {
		t.Errorf("process start time went from %v to %v", b, a)
	}
	if got := after.value("vllm:generation_tokens_total"); got != 0 {
		t.Errorf("%v tokens generated, want 0", got)
	}
	if got := s.ok("GET", "/sim/faults", ""); !strings.Contains(got, `"slow":0`) {
		t.Errorf("faults after the restart: %s", got)
	}
	if got := s.Arrivals().Served; got != 1 {
		t.Errorf("%d arrivals are remembered, want 1", got)
	}
	if s.Addr() != addr {
		t.Errorf("moved from %s to %s", addr, s.Addr())
	}
}

func TestRestartCutsStreamsAndKeepsThePort(t *testing.T) {
	s := run(t, Config{Clock: manual()})
	resp, err := s.send(t.Context(), "POST", "/v1/completions", `{"prompt":"four","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream came to an orderly end")
	}
	if st := s.stats(); st.Running != 0 || st.Submitted != 0 {
		t.Errorf("the new process knows of the old one's requests: %+v", st)
	}
	s.ok("GET", "/health", "")
}

func TestLifecycleErrors(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Restart before Start says %v, want ErrNotRunning", err)
	}
	if err := s.SetFaults(Faults{}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("SetFaults before Start says %v, want ErrNotRunning", err)
	}
	s.Close()
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Start("127.0.0.1:0"); err == nil {
		t.Error("a second Start was accepted")
	}
	other, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(s.Addr()); err == nil {
		other.Close()
		t.Error("two engines listen at one address")
	}
}

func TestBackgroundLoadFillsBatchAndQueueAndIsReplaced(t *testing.T) {
	clock := manual()
	s := run(t, Config{Engine: enginemodel.Config{MaxRunning: 2, Blocks: 16, BlockTokens: 4}, Clock: clock,
		Background: Load{Running: 2, Waiting: 3}})
	after := func(d time.Duration, holds func(enginemodel.Stats) bool) func() bool {
		return func() bool { clock.advance(d); return holds(s.stats()) }
	}
	eventually(t, "some have ended", after(time.Millisecond, func(st enginemodel.Stats) bool { return st.Stopped >= 4 }))
	eventually(t, "batch and queue are full", after(time.Millisecond, func(st enginemodel.Stats) bool {
		return st.Running == 2 && st.Waiting == 3
	}))

	if status, body := s.do("POST", "/sim/load", `{"running":1,"waiting":1}`); status != 400 || !strings.Contains(body, "waiting: 1: must be 0") {
		t.Errorf("an impossible load was answered with %d %s", status, body)
	}
	s.ok("POST", "/sim/load", `{"running":1}`)
	if got := s.ok("GET", "/sim/load", ""); got != `{"running":1,"waiting":0}` {
		t.Errorf("load is %s", got)
	}
	eventually(t, "one is left", after(time.Millisecond, func(st enginemodel.Stats) bool {
		return st.Running == 1 && st.Waiting == 0
	}))
	s.ok("DELETE", "/sim/load", "")
	if st := s.stats(); st.Running+st.Waiting+st.BlocksUsed != 0 {
		t.Errorf("without load: %+v", st)
	}
}
