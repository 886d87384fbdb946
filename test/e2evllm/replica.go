package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// What each vLLM is told. Its page must say the same in other words.
const (
	// maxRunning is the size of a batch, requests.
	maxRunning = 4
	// kvBlocks of blockSize tokens are what a replica has for keys and values; one
	// of them is never given to a request. Four requests of 600 tokens fit, four of
	// the context limit do not.
	kvBlocks  = 24
	blockSize = 128
	// threads of a replica compute.
	threads = 1
)

// fitting and overflowing are the tokens that a request asks for where a full
// batch of such fits into the KV cache, and where it does not. With the prompt,
// both are below contextLimit.
const (
	fitting     = 600
	overflowing = 2000
)

// replica is one vLLM server.
type replica struct {
	name    string
	address string // ip:port
	*process
	// killed tells that its end is wanted.
	killed bool
}

func (r *replica) url(path string) string { return "http://" + r.address + path }

// arguments are those of vLLM's server.
func arguments(model, port string) []string {
	return []string{
		"-m", "vllm.entrypoints.openai.api_server",
		"--host", "127.0.0.1", "--port", port,
		"--model", model, "--served-model-name", servedModel,
		// The model has no weights.
		"--load-format", "dummy", "--dtype", "float32", "--max-model-len", strconv.Itoa(contextLimit),
		"--max-num-seqs", strconv.Itoa(maxRunning),
		"--block-size", strconv.Itoa(blockSize), "--num-gpu-blocks-override", strconv.Itoa(kvBlocks),
		// Compilation takes minutes and gains nothing for two layers.
		"--enforce-eager",
	}
}

// environment is what vLLM is told by its environment, beside that of the user.
func environment(cache string) []string {
	return []string{
		// Nothing is looked up on the hub, and nobody is told that vLLM runs.
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1",
		"HF_HOME=" + filepath.Join(cache, "hf"), "VLLM_CACHE_ROOT=" + filepath.Join(cache, "vllm"),
		"VLLM_CONFIG_ROOT=" + filepath.Join(cache, "vllm-config"),
		// GiB for keys and values, of which kvBlocks take a small part.
		"VLLM_CPU_KVCACHE_SPACE=1",
		// Two replicas share the cores.
		fmt.Sprintf("OMP_NUM_THREADS=%d", threads), "VLLM_CPU_OMP_THREADS_BIND=nobind",
		// POST /sleep and /wake_up.
		"VLLM_SERVER_DEV_MODE=1",
	}
}

// startReplica starts a vLLM on a port that was free.
func startReplica(name, dir, python string) (*replica, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	model := filepath.Join(dir, "model")
	p, err := startProcess(name, dir, environment(dir), python, arguments(model, port)...)
	if err != nil {
		return nil, err
	}
	return &replica{name: name, address: net.JoinHostPort("127.0.0.1", port), process: p}, nil
}

// freePort is a port of loopback that nobody listened on just now: vLLM takes
// none by itself.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if closeErr := l.Close(); err == nil {
		err = closeErr
	}
	return port, err
}

// page is the replica's metrics page without its HELP lines, which are a third of
// it and say nothing of the replica.
func (s *session) page(r *replica) (string, error) {
	_, text, err := s.get(r.url("/metrics"))
	if err != nil {
		return "", err
	}
	return withoutHelp(text), nil
}

func withoutHelp(page string) string {
	var kept strings.Builder
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "# HELP ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// counter is the sum of a family's samples on a page, and whether it has any.
func counter(page, family string) (sum float64, found bool) {
	for line := range strings.Lines(page) {
		rest, isIt := strings.CutPrefix(line, family)
		if !isIt || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		words := strings.Fields(rest)
		v, err := strconv.ParseFloat(words[len(words)-1], 64)
		if err != nil {
			continue
		}
		sum, found = sum+v, true
	}
	return sum, found
}

// keepPage writes the replica's page for a person to read, if that was asked for.
func (s *session) keepPage(phase string, r *replica) error {
	if s.pages == "" {
		return nil
	}
	page, err := s.page(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.pages, phase+".prom"), []byte(page), 0o644)
}
