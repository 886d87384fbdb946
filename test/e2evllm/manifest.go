package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/policy"
	"github.com/berth-dev/berth/plugins"
)

// manifest states what is measured, as a published result must, in the lines that
// hack/results reads.
func (s *session) manifest(chosen []phase) (string, error) {
	p, _, err := policy.Parse("berth.yaml", []byte(s.configuration()), s.dir, plugins.Catalog{})
	if err != nil {
		return "", err
	}
	versions, err := s.versions()
	if err != nil {
		return "", err
	}
	r := s.replicas[0]
	o, err := s.see(r, func(o *v1alpha1.Observation) bool { return o.Fields["servedModels"].State == v1alpha1.Fresh })
	if err != nil {
		return "", err
	}
	var text strings.Builder
	line := func(key, format string, args ...any) {
		fmt.Fprintf(&text, "manifest %s %s\n", key, fmt.Sprintf(format, args...))
	}
	line("configuration", "policy %s, engine profile %s, fail-closed gateway with %d fallback", p.Digest, o.Profile, fallbacks)
	line("configuration", "%s", versions)
	line("configuration", "each of %d replicas: python %s", len(s.replicas), strings.Join(arguments("MODEL", "PORT"), " "))
	line("configuration", "MODEL: Llama of 2 layers, hidden size 128, %d tokens, random weights; environment: %s",
		vocabulary, strings.Join(environment("DIR"), " "))
	models, _ := o.Fields["servedModels"].Value.([]string)
	line("servedIDs", "%s, as r1 says itself", strings.Join(models, ", "))
	line("cacheState", "both prefix caches are empty at the start; but for phase caching, no prompt fills a block, so none is found there")
	for _, p := range chosen {
		line("trafficShape", "%s: %s", p.name, p.traffic)
	}
	return text.String(), nil
}

// versions are those of all that runs beside Berth.
func (s *session) versions() (string, error) {
	status, page, err := s.get(s.replicas[0].url("/version"))
	if err != nil {
		return "", err
	}
	var engine struct{ Version string }
	if err := json.Unmarshal([]byte(page), &engine); err != nil {
		return "", fmt.Errorf("vLLM's version: status %d, %w", status, err)
	}
	python, err := exec.CommandContext(s.ctx, s.python, "-c",
		"import sys; from importlib.metadata import version; print('torch', version('torch') + ', Python', sys.version.split()[0])").Output()
	if err != nil {
		return "", fmt.Errorf("the versions of torch and Python: %w", err)
	}
	gateway, err := exec.CommandContext(s.ctx, s.envoyBinary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("version of Envoy: %w", err)
	}
	return fmt.Sprintf("vLLM %s, %s, Envoy %s", engine.Version, strings.TrimSpace(string(python)), envoyVersion(string(gateway))), nil
}

// envoyVersion is the release in what envoy --version says:
//
//	/path/to/envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL
func envoyVersion(said string) string {
	_, version, _ := strings.Cut(strings.TrimSpace(said), "version: ")
	if parts := strings.Split(version, "/"); len(parts) > 1 {
		return parts[1]
	}
	return filepath.Base(version)
}
