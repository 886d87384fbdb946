package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// start runs the command and returns its address and a channel with its exit code.
func start(ctx context.Context, t *testing.T, args ...string) (string, <-chan int) {
	t.Helper()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, args, w, io.Discard)
		_ = w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), code
}

func TestASignalEndsItCleanly(t *testing.T) {
	ctx, signal := context.WithCancel(context.Background())
	addr, code := start(ctx, t, "--name", "r7", "--model", "a,b", "--speed", "10", "--max-running", "4",
		"--background-running", "4", "--background-waiting", "2")
	resp, err := http.Get("http://" + addr + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("X-Sim-Engine"); got != "r7" || !strings.Contains(string(body), `"id":"b"`) {
		t.Errorf("engine %q serves %s", got, body)
	}
	signal()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
}

func TestEachKindOfEngineHasItsOwnPage(t *testing.T) {
	for engine, c := range map[string]struct{ path, family string }{
		"vllm":                {"/metrics", "vllm:num_requests_running"},
		"sglang":              {"/metrics", "sglang:num_pages"},
		"atom":                {"/metrics", "atom:metrics_snapshot_available"},
		"trtllm-serve":        {"/prometheus/metrics", "trtllm_model_config_info"},
		"triton":              {"/metrics", "nv_trt_llm_request_metrics"},
		"triton-tensorrt-llm": {"/metrics", "nv_trt_llm_request_metrics"},
	} {
		ctx, signal := context.WithCancel(context.Background())
		addr, code := start(ctx, t, "--engine", engine)
		if status, body := get(t, "http://"+addr+c.path); status != http.StatusOK || !strings.Contains(body, "# TYPE "+c.family+" gauge") {
			t.Errorf("%s: %s is %d %s, want %s on it", engine, c.path, status, body, c.family)
		}
		signal()
		if got := <-code; got != 0 {
			t.Errorf("%s: exit code %d, want 0", engine, got)
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestDyingIsAFailure(t *testing.T) {
	addr, code := start(context.Background(), t)
	if resp, err := http.Post("http://"+addr+"/sim/die", "", nil); err == nil {
		_ = resp.Body.Close()
	}
	if got := <-code; got != 1 {
		t.Errorf("exit code %d, want 1", got)
	}
}

func TestWrongFlagsAreExplained(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--speed", "fast"}, 2, "invalid value \"fast\" for flag -speed"},
		{[]string{"--jitter", "1"}, 2, "Jitter: 1: must be at least 0 and below 1"},
		{[]string{"--engine", "llamafile"}, 2, "engine: \"llamafile\": must be vllm, sglang, atom, trtllm-serve, triton-tensorrt-llm or triton"},
		{[]string{"extra"}, 2, "\"extra\": no arguments are allowed"},
		{[]string{"--address", "nowhere"}, 1, "nowhere"},
		{[]string{"--help"}, 0, "-max-running"},
	} {
		var stderr bytes.Buffer
		if got := run(context.Background(), c.args, io.Discard, &stderr); got != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit code %d and %q, want %d and %q", c.args, got, stderr.String(), c.code, c.want)
		}
	}
}
