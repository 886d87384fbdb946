package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/pool"
	"github.com/berth-dev/berth/internal/telemetry"
)

// replica serves pages by path; others are 404.
func replica(t *testing.T, pages map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func pageText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(savedPage(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// vllmPages are those of a vLLM; more replaces some.
func vllmPages(t *testing.T, more map[string]string) map[string]string {
	pages := map[string]string{
		"/metrics":   pageText(t, "vllm.prom"),
		"/version":   `{"version":"0.32.0"}`,
		"/v1/models": `{"object":"list","data":[{"id":"llama","object":"model","owned_by":"vllm","max_model_len":4096}]}`,
		"/health":    "",
	}
	for path, page := range more {
		pages[path] = page
	}
	return pages
}

func TestALiveReplicaIsObservedWithAllItsPages(t *testing.T) {
	url := replica(t, vllmPages(t, nil))
	for _, args := range [][]string{{url}, {url + "/"}, {url + "/metrics"}, {url, "--engine", "vllm"}, {strings.Replace(url, "127.0.0.1", "localhost", 1)}} {
		text, _, err := execute(append([]string{"observe", "-o", "json"}, args...)...)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		doc := &v1alpha1.Observation{}
		if err := json.Unmarshal([]byte(text), doc); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, text)
		}
		if doc.Engine != "vllm" || doc.Declared != "" || doc.ScrapeError != "" || "http://"+doc.Replica.Address != url || doc.Replica.EngineVersion != "0.32.0" || doc.Order != "normal" {
			t.Errorf("%q: %+v", args, doc)
		}
		for field, want := range map[string]any{"queueDepth": 12.0, "contextLimit": 4096.0, "health": true, "engineVersion": "0.32.0"} {
			if r := doc.Fields[field]; r.State != v1alpha1.Fresh || r.Value != want {
				t.Errorf("%q: %s is %+v, want %v", args, field, r, want)
			}
		}
		if len(doc.Fields) != int(telemetry.NumFields) {
			t.Errorf("%q: %d fields", args, len(doc.Fields))
		}
	}
	table, _, err := execute("observe", url)
	if err != nil || !strings.Contains(table, "engine   vllm 0.32.0") || !strings.Contains(table, "12 requests") || !strings.Contains(table, "llama") || strings.Contains(table, "\x1b") {
		t.Errorf("%v\n%s", err, table)
	}
}

func TestThePathInTheURLIsThatOfTheMetricsPage(t *testing.T) {
	pages := vllmPages(t, map[string]string{"/somewhere/else": pageText(t, "vllm.prom")})
	delete(pages, "/metrics")
	url := replica(t, pages)
	if out, _, err := execute("observe", url+"/somewhere/else"); err != nil || !strings.Contains(out, "/somewhere/else vllm:num_requests_waiting") || !strings.Contains(out, "llama") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAnEngineOfOnesOwnIsObserved(t *testing.T) {
	url := replica(t, map[string]string{"/metrics": "own_waiting 4\nown_tokens_total 1\n"})
	dir := files(t, map[string]string{"own.yaml": ownProfile})
	if out, _, err := execute("observe", url, "--profiles", dir); err != nil || !strings.Contains(out, "engine   own, read by") || !strings.Contains(out, "4 requests") {
		t.Errorf("%v\n%s", err, out)
	}
}

// stuck accepts connections and never answers.
func stuck(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "http://" + l.Addr().String()
}

func TestAReplicaThatCannotBeReadSaysWhyAndWhatToDo(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	status := func(code int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"nothing there", []string{gone.URL}, []string{": refused: nothing listens", "8002"}},
		{"without the flag of SGLang", []string{replica(t, nil), "--engine", "sglang"}, []string{": status_404: there is no page", "--enable-metrics"}},
		{"without the flag of nobody knows whom", []string{replica(t, nil)}, []string{": status_404: there is no page", "--enable-metrics", "return_perf_metrics"}},
		{"JSON", []string{replica(t, map[string]string{"/prometheus/metrics": `[{"a":1}]`}), "--engine", "trtllm-serve"}, []string{": not_text: the page is JSON"}},
		{"statistics switched off", []string{replica(t, map[string]string{"/metrics": "go_goroutines 7\n"}), "--engine", "vllm"}, []string{": no_engine_families: ", "--disable-log-stats"}},
		{"another program", []string{replica(t, map[string]string{"/metrics": "go_goroutines 7\n"})}, []string{": no_engine_families: ", "docs/engines.md"}},
		{"hangs", []string{stuck(t), "--timeout", "50ms", "--engine", "vllm"}, []string{": timeout: no whole page"}},
		{"credentials", []string{status(http.StatusUnauthorized), "--engine", "vllm"}, []string{": status_401: the page asks for credentials", "bearerTokenFile"}},
		{"credentials of nobody knows whom", []string{status(http.StatusUnauthorized)}, []string{"Keys are sent only to an engine that is named: --engine, or engine: in the pool."}},
		{"broken", []string{status(http.StatusInternalServerError), "--engine", "vllm"}, []string{": status_500: the page answers with status 500", "log of the engine"}},
		{"no TLS there", []string{strings.Replace(replica(t, nil), "http://", "https://", 1), "--engine", "vllm"}, []string{": tls: "}},
		{"a limit too short for the first answer", []string{stuck(t), "--for", "100ms", "--timeout", "1m"}, []string{"no answer yet; --for gives it more time"}},
	} {
		out, _, err := execute(append([]string{"observe"}, tc.args...)...)
		if exit(err) != exitFindings || errors.Is(err, errFindings) {
			t.Errorf("%s: %v with exit %d\n%s", tc.name, err, exit(err), out)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tc.name, err, want)
			}
		}
	}
	text, _, err := execute("observe", gone.URL, "--engine", "vllm", "-o", "json")
	doc := &v1alpha1.Observation{}
	if exit(err) != exitFindings || json.Unmarshal([]byte(text), doc) != nil || doc.ScrapeError != "refused" || doc.Order != "last" || len(doc.Fields) != int(telemetry.NumFields) {
		t.Errorf("as JSON: %v\n%s", err, text)
	}
}

// Of several pages that were tried, what the engine does tells most, and is told alone.
func TestAPageThatHangsIsNotToldAsOneThatIsNotThere(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "/v1/models":
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"llama","object":"model","owned_by":"vllm"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	defer close(release)
	for _, more := range [][]string{nil, {"--for", "500ms"}, {"--engine", "vllm"}} {
		_, _, err := execute(append([]string{"observe", s.URL, "--timeout", "100ms"}, more...)...)
		if exit(err) != exitFindings || !strings.HasPrefix(fmt.Sprint(err), s.URL+": timeout: no whole page within the time limit\n") || strings.Contains(fmt.Sprint(err), "404") {
			t.Errorf("%q: %v with exit %d", more, err, exit(err))
		}
	}
}

func TestAPageThatIsTooLargeIsToldWithItsSizeAndTheLimit(t *testing.T) {
	page := pageText(t, "vllm.prom")
	url := replica(t, vllmPages(t, map[string]string{"/metrics": page + strings.Repeat("# a comment of thirty-two bytes\n", 1<<12)}))
	_, _, err := execute("observe", url, "--max-page", "64KiB", "--engine", "vllm")
	if exit(err) != exitFindings || !strings.Contains(fmt.Sprint(err), ": too_large: the page is larger than the limit: ") ||
		!strings.Contains(fmt.Sprint(err), "65536") {
		t.Errorf("%v with exit %d, want the limit", err, exit(err))
	}
	if out, _, err := execute("observe", url, "--max-page", "1MiB", "--engine", "vllm"); err != nil || !strings.Contains(out, "12 requests") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestARedirectionIsToldWithWhereItLeads(t *testing.T) {
	s := httptest.NewServer(http.RedirectHandler("https://192.0.2.1:8443/stats?token=secret", http.StatusTemporaryRedirect))
	defer s.Close()
	_, _, err := execute("observe", s.URL, "--engine", "vllm")
	if exit(err) != exitFindings || !strings.Contains(fmt.Sprint(err), `: redirect: the answer leads to another host or port: status 307 to "https://192.0.2.1:8443/stats"`) || strings.Contains(fmt.Sprint(err), "secret") {
		t.Errorf("%v with exit %d", err, exit(err))
	}
}

func TestAPageElsewhereThanItsProfileSaysIsNoted(t *testing.T) {
	dir := files(t, map[string]string{"own.yaml": strings.Replace(ownProfile, "path: /metrics", "path: /stats", 1)})
	url := replica(t, map[string]string{"/metrics": "own_waiting 4\nown_tokens_total 1\n", "/v1/models": `{"data":[{"id":"m","owned_by":"own"}]}`})
	out, stderr, err := execute("observe", url, "--profiles", dir, "--engine", "own")
	const want = ": the metrics page is not where the profile says, and is read elsewhere: profile /stats, path /metrics\n"
	if err != nil || !strings.Contains(out, "4 requests") || stderr != "berthctl: "+url+want {
		t.Errorf("%v, and %q on stderr\n%s", err, stderr, out)
	}
}

func TestAnEngineOfOnesOwnIsToldWhatItsProfileNeeds(t *testing.T) {
	const needs = "Start it with --stats."
	dir := files(t, map[string]string{"own.yaml": strings.Replace(ownProfile, "format: prometheus", "format: prometheus, needs: "+needs, 1)})
	url := replica(t, map[string]string{"/metrics": "go_goroutines 7\n"})
	for _, args := range [][]string{{"observe", url}, {"observe", url, "--engine", "own"}} {
		_, _, err := execute(append(args, "--profiles", dir)...)
		if exit(err) != exitFindings || !strings.Contains(fmt.Sprint(err), needs) || strings.Contains(fmt.Sprint(err), "SGLang") {
			t.Errorf("%q: %v with exit %d", args, err, exit(err))
		}
	}
}

func TestAReplicaIsAnotherEngineThanDeclared(t *testing.T) {
	url := replica(t, map[string]string{"/metrics": pageText(t, "sglang.prom")})
	out, _, err := execute("observe", url, "--engine", "vllm")
	if exit(err) != exitFindings || err.Error() != url+": it is sglang, not vllm as --engine says" || !strings.Contains(out, "engine   sglang") || !strings.Contains(out, "declared vllm, which its page is not") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAReplicaThatSaysNothingOfItsLoadYetIsObservedWithWhy(t *testing.T) {
	url := replica(t, map[string]string{"/metrics": "sglang:max_total_num_tokens{tp_rank=\"0\"} 1000\n"})
	out, _, err := execute("observe", url)
	if err != nil || !strings.Contains(out, "\n\nNo value of queueDepth, activeRequests, kvCacheUtilization. SGLang shows") || !strings.Contains(out, "with the first request") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWhatAnEngineSaysDoesNotActOnTheTerminal(t *testing.T) {
	const evil = `\u001b]0;title\u0007\u202e\r\nFORGED`
	url := replica(t, vllmPages(t, map[string]string{
		"/version":   `{"version":"` + evil + `"}`,
		"/v1/models": `{"data":[{"id":"` + evil + `","owned_by":"vllm"},{"id":"b\u200b","owned_by":"vllm"}]}`,
	}))
	out, _, _ := execute("observe", url)
	if !strings.Contains(out, "12 requests") {
		t.Errorf("one page spoils the others:\n%s", out)
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "FORGED") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }) {
			t.Errorf("printed %q", line)
		}
	}
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://192.0.2.1/\x1b[31m")
		w.WriteHeader(http.StatusFound)
	}))
	defer redirecting.Close()
	if _, _, err := execute("observe", redirecting.URL, "--engine", "vllm"); exit(err) != exitFindings || strings.ContainsRune(err.Error(), '\x1b') {
		t.Errorf("%q", fmt.Sprint(err))
	}
}

// frames counts the tables that are written, and calls then at one of them. It
// calls end once told is written, if it is set.
type frames struct {
	bytes.Buffer
	seen, until int
	then        func()
	told        string
	end         func()
}

func (w *frames) Write(p []byte) (int, error) {
	if w.told != "" && bytes.Contains(p, []byte(w.told)) {
		w.end()
	}
	if bytes.Contains(p, []byte("FIELD")) {
		if w.seen++; w.seen == w.until {
			w.then()
		}
	}
	return w.Buffer.Write(p)
}

func TestWatchingGoesOnUntilItIsInterruptedOrOver(t *testing.T) {
	url := replica(t, vllmPages(t, nil))
	ctx, interrupt := context.WithCancel(t.Context())
	w := &frames{until: 2, then: interrupt}
	cmd := command()
	cmd.SetOut(w)
	cmd.SetArgs([]string{"observe", url, "--watch"})
	if err := cmd.ExecuteContext(ctx); err != nil || w.seen < 2 {
		t.Errorf("%v after %d tables, want no error after 2", err, w.seen)
	}
	if strings.Contains(w.String(), "\x1b") {
		t.Error("what is no terminal is not cleared")
	}
	if heads := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\nreplica `).FindAllString(w.String(), -1); len(heads) != w.seen {
		t.Errorf("%d tables with the time above them, want all %d:\n%s", len(heads), w.seen, w.String())
	}
	out, _, err := execute("observe", url, "--watch", "--for", "500ms")
	if err != nil || strings.Count(out, "FIELD") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWatchingPrintsDocumentsForPrograms(t *testing.T) {
	url := replica(t, vllmPages(t, nil))
	ctx, interrupt := context.WithCancel(t.Context())
	w := &frames{told: "\n", end: func() {}}
	w.end = func() {
		if strings.Count(w.String(), "\n") > 0 {
			interrupt()
		}
	}
	cmd := command()
	cmd.SetOut(w)
	cmd.SetArgs([]string{"observe", url, "--watch", "-o", "json"})
	if err := cmd.ExecuteContext(ctx); err != nil {
		t.Error(err)
	}
	lines := strings.Split(strings.TrimSuffix(w.String(), "\n"), "\n")
	if len(lines) < 2 {
		t.Errorf("%d lines, want one for each document", len(lines))
	}
	for _, line := range lines {
		doc := &v1alpha1.Observation{}
		if err := json.Unmarshal([]byte(line), doc); err != nil || doc.Kind != "Observation" || doc.Fields["queueDepth"].Value != 12.0 {
			t.Errorf("%v: %.200s", err, line)
		}
	}
	out, _, err := execute("observe", url, "--watch", "-o", "yaml", "--for", "1500ms")
	docs := strings.Split(out, "---\n")
	if err != nil || len(docs) < 2 || docs[0] != "" {
		t.Fatalf("%v, %d documents:\n%s", err, len(docs), out)
	}
	for _, text := range docs[1:] {
		doc := &v1alpha1.Observation{}
		if err := yaml.Unmarshal([]byte(text), doc); err != nil || doc.Engine != "vllm" {
			t.Errorf("%v:\n%s", err, text)
		}
	}
}

func TestWatchingShowsAReplicaThatIsNotThere(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	out, _, err := execute("observe", gone.URL, "--watch", "--for", "600ms", "--engine", "vllm")
	if exit(err) != exitFindings || !strings.Contains(err.Error(), gone.URL+": refused: ") || !strings.Contains(out, "failing  refused: nothing listens at the address and port") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = execute("observe", stuck(t), "--watch", "--for", "100ms", "--timeout", "1m")
	if exit(err) != exitFindings || !strings.Contains(err.Error(), "no answer yet; --for gives it more time") || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheLastTableDecidesHowWatchingEnds(t *testing.T) {
	page := pageText(t, "vllm.prom")
	var gone atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || gone.Load() {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page)
	}))
	defer s.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	w := &frames{until: 1, then: func() { gone.Store(true) }, told: "failing  status_404", end: interrupt}
	cmd := command()
	cmd.SetOut(w)
	cmd.SetArgs([]string{"observe", s.URL, "--watch", "--engine", "vllm", "--for", "1m"})
	if err := cmd.ExecuteContext(ctx); exit(err) != exitFindings || !strings.Contains(err.Error(), ": status_404: ") {
		t.Errorf("%v with exit %d, want that of the last table:\n%s", err, exit(err), w.String())
	}
}

func TestObservingIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	cmd := command()
	cmd.SetOut(io.Discard)
	asked := make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	cmd.SetArgs([]string{"observe", s.URL, "--timeout", "1m"})
	go func() {
		<-asked
		interrupt()
	}()
	if err := cmd.ExecuteContext(ctx); exit(err) != exitFindings || err.Error() != "interrupted" {
		t.Errorf("%v with exit %d", err, exit(err))
	}
}

func TestReplicasAreNamedByAURL(t *testing.T) {
	for text, want := range map[string]struct {
		address string
		metrics pool.MetricsTarget
	}{
		"http://127.0.0.1:8000":       {"127.0.0.1:8000", pool.MetricsTarget{}},
		"http://localhost:8000/":      {"127.0.0.1:8000", pool.MetricsTarget{}},
		"http://10.0.0.1":             {"10.0.0.1:80", pool.MetricsTarget{}},
		"https://10.0.0.1":            {"10.0.0.1:443", pool.MetricsTarget{Scheme: "https"}},
		"http://[::1]:30000/a%2Fb/c":  {"[::1]:30000", pool.MetricsTarget{Path: "/a%2Fb/c"}},
		"http://[::ffff:10.0.0.1]:80": {"10.0.0.1:80", pool.MetricsTarget{}},
	} {
		address, metrics, err := parseReplica(text)
		if err != nil || address != netip.MustParseAddrPort(want.address) || metrics != want.metrics {
			t.Errorf("%s: %s %+v %v, want %+v", text, address, metrics, err, want)
		}
	}
}

func TestWrongCommandLinesOfObserve(t *testing.T) {
	const url = "http://127.0.0.1:9"
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "URL or NAME: missing"},
		{[]string{url, "x"}, `"x"`},
		{[]string{"127.0.0.1:8000", "--server", "http://127.0.0.1:9"}, `"127.0.0.1:8000" is taken for the name of a replica; the URL of a replica itself begins with http:// or https://`},
		{[]string{"r1", "--engine", "vllm"}, "--engine: only for a URL"},
		{[]string{"r1", "--timeout", "2s"}, "--timeout: only for a URL"},
		{[]string{"r1", "--max-page", "1MiB"}, "--max-page: only for a URL"},
		{[]string{"r1", "--for", "2s"}, "--for: of a replica of the picker only with --watch"},
		{[]string{url, "--server", "http://127.0.0.1:9091"}, "--server: only for the name of a replica of the picker"},
		{[]string{"ftp://127.0.0.1"}, "must be a URL such as"},
		{[]string{"http://example.com"}, "the host must be an IP address or localhost"},
		{[]string{"http://[fe80::1%25eth0]:80"}, "the host must be an IP address or localhost"},
		{[]string{"http://127.0.0.1:0"}, "the port must be 1 to 65535"},
		{[]string{"http://127.0.0.1:70000"}, "the port must be 1 to 65535"},
		{[]string{"http://u:p@127.0.0.1"}, "and nothing else"},
		{[]string{url + "/?a=b"}, "and nothing else"},
		{[]string{url, "--engine", "acme"}, `--engine: "acme": must be one of`},
		{[]string{url, "--engine", "dcgm"}, `--engine: "dcgm": is an exporter of GPUs, must be an engine`},
		{[]string{url, "--for", "0s"}, "--for: 0s: must be from 100ms to 24h"},
		{[]string{url, "--timeout", "2m"}, "--timeout: 2m0s: must be from 10ms to 1m"},
		{[]string{url, "--timeout", "2"}, `--timeout: "2": must be a time with its unit, such as 500ms, 20s or 5m`},
		{[]string{url, "--max-page", "1KiB"}, "--max-page: 1KiB: must be from 64KiB to 64MiB"},
		{[]string{url, "--max-page", "lots"}, `--max-page: "lots" is not a number of bytes`},
		{[]string{url, "--wide=perhaps"}, `--wide: "perhaps": must be true or false`},
		{[]string{url, "--profiles", "missing"}, "--profiles: "},
	} {
		if _, _, err := execute(append([]string{"observe"}, tc.args...)...); exit(err) != exitUsage || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%q: %v with exit %d, want %q with %d", tc.args, err, exit(err), tc.want, exitUsage)
		}
	}
}
