package enginesim

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// The pages of negotiation were written by hand after what prometheus_client 0.25 answers.
const (
	inText = `# HELP sglang:num_running_reqs R.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="a: b"} 3.0
# HELP sglang:prompt_tokens_total P.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="a: b"} 5.0
# HELP sglang:prompt_tokens_created P.
# TYPE sglang:prompt_tokens_created gauge
sglang:prompt_tokens_created{model_name="a: b"} 1.7e+09
# HELP sglang:total_time H.
# TYPE sglang:total_time histogram
sglang:total_time_bucket{le="+Inf"} 1.0
sglang:total_time_count 1.0
sglang:total_time_sum 0.5
`
	inOpenMetrics = `# HELP sglang:num_running_reqs R.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="a: b"} 3.0
# HELP sglang:prompt_tokens P.
# TYPE sglang:prompt_tokens counter
sglang:prompt_tokens_total{model_name="a: b"} 5.0
sglang:prompt_tokens_created{model_name="a: b"} 1.7e+09
# HELP sglang:total_time H.
# TYPE sglang:total_time histogram
sglang:total_time_bucket{le="+Inf"} 1.0
sglang:total_time_count 1.0
sglang:total_time_sum 0.5
# EOF
`
	inOpenMetricsEscaped = `# HELP sglang:num_running_reqs R.
# TYPE sglang:num_running_reqs gauge
sglang_num_running_reqs{model_name="a: b"} 3.0
# HELP sglang:prompt_tokens P.
# TYPE sglang:prompt_tokens counter
sglang_prompt_tokens_total{model_name="a: b"} 5.0
sglang_prompt_tokens_created{model_name="a: b"} 1.7e+09
# HELP sglang:total_time H.
# TYPE sglang:total_time histogram
sglang_total_time_bucket{le="+Inf"} 1.0
sglang_total_time_count 1.0
sglang_total_time_sum 0.5
# EOF
`
)

func TestThePythonClientAnswersByTheAcceptHeader(t *testing.T) {
	const (
		plain = "text/plain; version=0.0.4; charset=utf-8"
		open  = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	)
	for _, c := range []struct{ accept, contentType, body string }{
		{"", plain, inText},
		{"*/*", plain, inText},
		{"text/plain", plain, inText},
		{"text/plain;version=0.0.4", plain, inText},
		{"application/json", plain, inText},
		{"application/openmetrics-text;version=0.0.1", plain, inText},
		{"text/plain;version=1.0.0", "text/plain; version=1.0.0; charset=utf-8; escaping=underscores", inText},
		{"text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8", inText},
		{"application/openmetrics-text", open, inOpenMetricsEscaped},
		// Without a version, what is said of escaping is not looked at.
		{"application/openmetrics-text;escaping=allow-utf-8", open, inOpenMetricsEscaped},
		{"application/openmetrics-text; version=1.0.0", open + "; escaping=underscores", inOpenMetricsEscaped},
		{"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8", open + "; escaping=allow-utf-8", inOpenMetrics},
		// Weights are not looked at.
		{"text/plain;version=0.0.4;q=0.9, application/openmetrics-text;version=1.0.0;q=0.1", open + "; escaping=underscores", inOpenMetricsEscaped},
		{"text/html, text/plain;version=1.0.0, application/openmetrics-text", "text/plain; version=1.0.0; charset=utf-8; escaping=underscores", inText},
	} {
		if got := negotiated(Content{ContentType: "text/plain", Body: []byte(inText)}, c.accept); got.ContentType != c.contentType || string(got.Body) != c.body {
			t.Errorf("%q: got %q and\n%s, want %q and\n%s", c.accept, got.ContentType, got.Body, c.contentType, c.body)
		}
	}
}

// TestColonTrap asks every telemetry page for OpenMetrics, as a careless scraper does. Those of Python's client library lose the colon
// on samples; vLLM's page without a slash at its end, ATOM's and Triton's are what they always are.
func TestColonTrap(t *testing.T) {
	const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
	for _, c := range []struct {
		dialect           Dialect
		path, contentType string
		// sample begins a sample where text is asked for, trapped where OpenMetrics is.
		sample, trapped string
	}{
		{VLLM{}, "/metrics", "text/plain; version=1.0.0; charset=utf-8", "vllm:num_requests_running{", "vllm:num_requests_running{"},
		{VLLM{}, "/metrics/", openMetrics, "vllm:num_requests_running{", "vllm_num_requests_running{"},
		{SGLang{}, "/metrics", openMetrics, "sglang:num_running_reqs{", "sglang_num_running_reqs{"},
		{SGLang{}, "/metrics/", openMetrics, "sglang:num_running_reqs{", "sglang_num_running_reqs{"},
		{ATOM{}, "/metrics", "text/plain; version=1.0.0; charset=utf-8", "atom:requests_running ", "atom:requests_running "},
		{TRTLLM{}, "/prometheus/metrics", openMetrics, "trtllm_num_requests_running{", "trtllm_num_requests_running{"},
		{Triton{}, "/metrics", "text/plain; charset=utf-8", "nv_trt_llm_request_metrics{", "nv_trt_llm_request_metrics{"},
	} {
		s := run(t, Config{Dialect: c.dialect, Clock: instant()})
		s.ok("POST", "/v1/completions", small)
		ask := func(accept string) (contentType, body string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", accept)
			return s.read(req)
		}
		contentType, body := ask("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
		if contentType != c.contentType || !strings.Contains(body, "\n"+c.trapped) || strings.HasSuffix(body, "# EOF\n") != (contentType == openMetrics) {
			t.Errorf("%s %s, asked for OpenMetrics: no %q, or another end or type, in %s\n%s", c.dialect.Name(), c.path, c.trapped, contentType, body)
		}
		contentType, body = ask("text/plain;version=0.0.4")
		if strings.Contains(contentType, "openmetrics") || !strings.Contains(body, "\n"+c.sample) || strings.Contains(body, "# EOF") {
			t.Errorf("%s %s, asked for text: no %q in %s\n%s", c.dialect.Name(), c.path, c.sample, contentType, body)
		}
	}
}

// read returns the content type and the body of an answer.
func (s *sim) read(req *http.Request) (contentType, body string) {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.Header.Get("Content-Type"), string(text)
}
